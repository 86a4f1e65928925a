"""What the default policy learns from workers that are almost idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import Recommendation
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import NOW, make

WORKER = 10_000.0
"""Records/s that one really does."""


class Life:
    """Replicas that are observed every 15 s, and the memory of the policy."""

    def __init__(self) -> None:
        self.policy = Adaptive()
        self.memory: dict[str, float] = {}
        self.at = 0

    def poll(self, arrivals: float, current: int, polls: int = 1) -> Recommendation:
        for _ in range(polls):
            self.at += 15
            now = NOW + timedelta(seconds=self.at)
            busy = arrivals / WORKER / current
            metrics = {"lag": 0.0, "arrivals": arrivals, "throughput": arrivals, "utilization": busy}
            view = make(metrics, current=current, maximum=24)
            view = replace(view, now=now, metrics={name: replace(each, at=now) for name, each in view.metrics.items()})
            self.memory = dict(self.policy.learn(replace(view, memory=self.memory)))
            found = self.policy.evaluate(replace(view, memory=self.memory))
        return found


@pytest.mark.parametrize("current", [1, 4])
def test_more_load_on_almost_idle_workers_is_not_a_shortage(current: int) -> None:
    life = Life()
    for arrivals in (20.0, 50.0, 120.0, 400.0, 490.0):
        found = life.poll(arrivals, current)
        assert found.replicas == current
        assert found.inputs["capacity"] >= 20 * arrivals * 0.999


def test_less_load_does_not_lower_the_learned_capacity() -> None:
    life = Life()
    life.poll(400.0, 1)
    assert life.poll(20.0, 1).inputs["capacity"] == pytest.approx(8000.0)


def test_the_lower_bound_of_capacity_is_replaced_once_workers_are_busy_enough_to_measure() -> None:
    life = Life()
    life.poll(20.0, 1)
    assert life.poll(600.0, 1).inputs["capacity"] == pytest.approx(WORKER)
    assert life.poll(100.0, 1).inputs["capacity"] == pytest.approx(WORKER)


def test_an_idle_cluster_is_scaled_down_and_then_has_no_shortage() -> None:
    life = Life()
    assert life.poll(300.0, 20, polls=40).replicas in range(1, 3)
    assert life.poll(450.0, 1).replicas == 1
