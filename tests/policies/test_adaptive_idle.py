"""What the default policy learns of workers that have hardly anything to do."""

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
    """Replicas that are observed every 15 s, and what the policy knows of them."""

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
def test_more_to_do_for_hardly_busy_workers_is_no_shortage(current: int) -> None:
    life = Life()
    for arrivals in (20.0, 50.0, 120.0, 400.0, 490.0):
        found = life.poll(arrivals, current)
        assert found.replicas == current
        assert found.inputs["capacity"] >= 20 * arrivals * 0.999


def test_less_to_do_does_not_make_them_able_to_do_less() -> None:
    life = Life()
    life.poll(400.0, 1)
    assert life.poll(20.0, 1).inputs["capacity"] == pytest.approx(8000.0)


def test_what_they_do_at_least_is_forgotten_once_they_are_busy_enough_to_be_measured() -> None:
    life = Life()
    life.poll(20.0, 1)
    assert life.poll(600.0, 1).inputs["capacity"] == pytest.approx(WORKER)
    assert life.poll(100.0, 1).inputs["capacity"] == pytest.approx(WORKER)


def test_an_idle_cluster_gets_fewer_and_is_not_short_there() -> None:
    life = Life()
    assert life.poll(300.0, 20, polls=40).replicas in range(1, 3)
    assert life.poll(450.0, 1).replicas == 1
