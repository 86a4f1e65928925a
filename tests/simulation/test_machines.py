"""Equal seeds give equal results on every machine, although `exp`, `log` and `pow` differ there in their last digit."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from datetime import timedelta
from random import Random
from types import SimpleNamespace

import pytest

import autoscaler.core
import autoscaler_policies
from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.ports import Record
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS
from autoscaler_policies.adaptive.policy import Adaptive


def lived(load: str, name: str) -> tuple[object, ...]:
    """All decisions and their results, to the last digit."""
    plant = PLANTS[name]
    policy = Adaptive(objective=timedelta(seconds=plant.slo))
    policies = (NamedPolicy("adaptive", policy),)
    spec = ClusterSpec(
        name="plant",
        limits=Limits(1, 24),
        policies=policies,
        metrics=policy.metrics,
        engine=True,
        lookback=policy.lookback,
    )
    records: list[Record] = []
    track = run(spec, plant, load_by_name(load, 1), 1, record=records.append).track
    return tuple(track.billed), tuple(track.position), [each.decision.desired for each in records]


@pytest.mark.parametrize(
    ("load", "name"),
    [("steps6h", "k8s"), *(pytest.param("bursts12h", name, marks=pytest.mark.e2e) for name in ("ec2", "redeploy"))],
)
def test_a_different_last_digit_on_another_machine_changes_no_decision(
    load: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lived(load, name)
    dice = Random(1)  # noqa: S311 - not a secret
    off = 0

    def elsewhere(function: Callable[..., float]) -> Callable[..., float]:
        def answered(*arguments: float) -> float:
            nonlocal off
            found = function(*arguments)
            towards = dice.choice((found, math.inf, -math.inf))
            off += towards != found
            return math.nextafter(found, towards)

        return answered

    other = SimpleNamespace(**{each: getattr(math, each) for each in dir(math)})
    for each in ("exp", "log", "pow"):
        setattr(other, each, elsewhere(getattr(math, each)))
    for package in (autoscaler_policies, autoscaler.core):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            if getattr(module, "math", None) is math:
                monkeypatch.setattr(module, "math", other)
    assert lived(load, name) == here
    assert off > 1000
