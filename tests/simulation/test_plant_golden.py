"""The plants of the benchmark, to the last digit, so that published figures stay valid."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.plant import PLANTS, STEP, Plant, PlantSpec

HOURS = 6

ENGINE = ("job", "slots", "parallelism", "running_since", "last_checkpoint", "restarts")
TRACK = ("arrivals", "position", "billed", "running", "stopped", "requests", "restarts")


def _digest(spec: PlantSpec, seed: int) -> str:
    """A digest of the events and observations under a drawn load and drawn sizes."""
    dice = Random(seed)  # noqa: S311 - a load, not a secret
    plant = Plant(spec, 100.0, seed, 4)
    found = hashlib.sha256()
    rate = 500.0
    for step in range(round(HOURS * 3600 / STEP)):
        if dice.random() < 0.02:
            rate = dice.uniform(0.0, 1200.0)
        if dice.random() < 0.015:
            plant.scale(dice.randint(1, 16))
        plant.advance(rate * STEP)
        if step % 3 == 2:
            seen = plant.observe()
            values = [reading.value for reading in seen.metrics.values()]
            job = [str(getattr(seen.engine, name)) for name in ENGINE]
            found.update(repr((str(seen.at), seen.desired, seen.ready, values, job)).encode())
    found.update(repr([getattr(plant.track, name) for name in TRACK]).encode())
    return found.hexdigest()[:16]


def _load(seed: int) -> str:
    load = load_by_name("match24h", seed)
    return hashlib.sha256(repr((load.rates, load.per_worker(0.9))).encode()).hexdigest()[:16]


SPECS = {**PLANTS, "crashes": replace(PLANTS["k8s"], crash_every=600.0), "calm": PlantSpec(sigma=0.0, cold=1.0)}

GOLDEN = {
    ("k8s", 1): "3f1eaa289a97ef3b",
    ("k8s", 2): "ccef947645961105",
    ("k8s", 3): "f5a1950159a9e02b",
    ("ec2", 1): "632558c5365fa1e5",
    ("ec2", 2): "0831cae2e57418ed",
    ("ec2", 3): "9b993a1caa726065",
    ("redeploy", 1): "7d2c586a12a81708",
    ("redeploy", 2): "f011aec30b0f5301",
    ("redeploy", 3): "3a4ebced2bba6f6b",
    ("ungraceful", 1): "086e4aea1e63faf4",
    ("ungraceful", 2): "ecdfadc06733045d",
    ("ungraceful", 3): "eaa543a254891fbe",
    ("crashes", 1): "589b13e36d174291",
    ("calm", 1): "42445625e34316ef",
}

LOADS = {3: "0927da93bbf7a8f5"}


@pytest.mark.parametrize(("name", "seed"), GOLDEN)
def test_a_seed_gives_the_recorded_run(name: str, seed: int) -> None:
    assert _digest(SPECS[name], seed) == GOLDEN[name, seed]


def test_a_synthetic_load_equals_the_recorded_one() -> None:
    assert {seed: _load(seed) for seed in LOADS} == LOADS


@pytest.mark.parametrize("beyond", [-math.inf, math.inf])
def test_other_logarithms_and_powers_of_another_machine_give_the_same_run(
    beyond: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(function: Callable[..., float]) -> Callable[..., float]:
        return lambda *numbers: math.nextafter(function(*numbers), beyond)

    # The functions that `random` and the plant use, with another last digit.
    for name in ("_exp", "_log", "_sqrt", "_cos", "_sin"):
        monkeypatch.setattr(random, name, off(getattr(random, name)))
    for name in ("exp", "log", "pow"):
        monkeypatch.setattr(math, name, off(getattr(math, name)))
    assert _digest(SPECS["crashes"], 1) == GOLDEN["crashes", 1]
    assert _load(3) == LOADS[3]
