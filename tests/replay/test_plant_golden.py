"""The plants of the benchmark, to the last digit: figures that were published stay what they were."""

import hashlib
from dataclasses import replace
from random import Random

import pytest

from autoscaler.replay.plant import PLANTS, STEP, Plant, PlantSpec

HOURS = 6

ENGINE = ("job", "slots", "parallelism", "running_since", "last_checkpoint", "restarts")
TRACK = ("arrivals", "position", "billed", "running", "stopped", "requests", "restarts")


def _digest(spec: PlantSpec, seed: int) -> str:
    """What happens, and what is seen of it, under a load and sizes that are drawn."""
    dice = Random(seed)  # noqa: S311 - a load, nothing secret
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


SPECS = {**PLANTS, "crashes": replace(PLANTS["k8s"], crash_every=600.0), "calm": PlantSpec(sigma=0.0, cold=1.0)}

GOLDEN = {
    ("k8s", 1): "440ee58c3b56e90b",
    ("k8s", 2): "e3c59e889d456de1",
    ("k8s", 3): "d5f8a284890bc90a",
    ("ec2", 1): "084bc2deb0cb6d3d",
    ("ec2", 2): "182cc979764730c9",
    ("ec2", 3): "af19b29af2313e9a",
    ("redeploy", 1): "1ccb22531d7e9443",
    ("redeploy", 2): "84455db9f85fb054",
    ("redeploy", 3): "4fd8f7f3b4eba70a",
    ("ungraceful", 1): "628bd65c5671e7f7",
    ("ungraceful", 2): "e071afe9675bcd34",
    ("ungraceful", 3): "48b157733e2a7561",
    ("crashes", 1): "c971c2d60e8ca878",
    ("calm", 1): "8bc1d87a733d3d3a",
}


@pytest.mark.parametrize(("name", "seed"), GOLDEN)
def test_a_seed_gives_the_run_that_it_gave_before(name: str, seed: int) -> None:
    assert _digest(SPECS[name], seed) == GOLDEN[name, seed]
