"""Tests of the contract of every policy, and of the numbers of this one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from autoscaler.policy_api import ClusterSpec, Learned, Limits, Observation, Reading, Reason, View
from autoscaler.testing import PolicyContract

from autoscaler_trend import Trend

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Trend:
        return Trend(per_replica=100, over=timedelta(minutes=1))


def view(current: int, **values: float) -> View:
    """The view of the policy. Values are named by the minutes since they were read: m5=300."""
    past = []
    for name, value in values.items():
        at = NOW - timedelta(minutes=int(name[1:]))
        past.append(Observation(at=at, desired=current, ready=current, metrics={"sessions": Reading(value, at)}))
    past.sort(key=lambda seen: seen.at)
    limits = Limits(1, 10)
    metrics = past[-1].metrics if past and past[-1].at == NOW else {}
    return View(
        now=NOW,
        current=current,
        ready=current,
        metrics=metrics,
        past=tuple(past),
        limits=limits,
        learned=Learned(),
        spec=ClusterSpec(name="shop", limits=limits, policies=()),
    )


def test_it_sizes_for_where_a_rising_metric_will_be() -> None:
    # 300 more in 5 minutes, so 120 more in 2: 600 + 120 = 720, and 8 replicas carry it
    answer = Trend(per_replica=100).evaluate(view(6, m5=300, m0=600))
    assert (answer.replicas, answer.reason, answer.inputs["expected"]) == (8, Reason.ABOVE, 720)


def test_a_falling_metric_is_taken_as_it_is() -> None:
    answer = Trend(per_replica=100).evaluate(view(6, m5=600, m0=300))
    assert (answer.replicas, answer.reason) == (3, Reason.BELOW)


def test_it_asks_for_no_more_than_there_may_be() -> None:
    assert Trend(per_replica=100).evaluate(view(6, m5=0, m0=5000)).replicas == 10


def test_without_a_reading_it_abstains() -> None:
    answer = Trend(per_replica=100).evaluate(view(6, m5=300))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)


def test_it_watches_before_it_speaks() -> None:
    answer = Trend(per_replica=100).evaluate(view(6, m4=300, m0=600))
    assert (answer.replicas, answer.reason) == (None, Reason.LEARNING)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_replica_must_carry_something(wrong: float) -> None:
    with pytest.raises(ValueError, match="per_replica: must be above 0"):
        Trend(per_replica=wrong)
