from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import ClusterSpec, Learned, Limits, Observation, Reading, Reason, View
from autoscaler.core.parameters import ParameterError
from autoscaler.testing import PolicyContract
from autoscaler_policies.aws.target_tracking import AwsTargetTracking

Value = float | tuple[float, ...]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def view(
    values: Sequence[Value | None],
    *,
    current: int = 10,
    ready: int | None = None,
    sizes: Mapping[int, tuple[int, int]] | None = None,
    minimum: int = 1,
    maximum: int = 100,
) -> View:
    """Values of a metric each minute, the newest first; `sizes`: desired and ready then, if they differ from now."""
    ready = current if ready is None else ready
    seen = []
    for index, value in enumerate(values):
        at = NOW - index * MINUTE
        readings = {} if value is None else {"cpu": Reading(value, at)}
        desired, up = (sizes or {}).get(index, (current, ready))
        seen.append(Observation(at=at, desired=desired, ready=up, metrics=readings))
    limits = Limits(minimum, maximum)
    return View(
        now=NOW,
        current=current,
        ready=ready,
        metrics=dict(seen[0].metrics),
        past=tuple(reversed(seen)),
        limits=limits,
        learned=Learned(),
        spec=ClusterSpec(name="c", limits=limits, policies=()),
    )


POLICY = AwsTargetTracking(metric="cpu", target=50.0)
BACKLOG = AwsTargetTracking(
    metric="cpu",
    acceptable_latency=timedelta(seconds=10),
    processing_time=timedelta(seconds=0.1),
    high_periods=1,
    low_periods=1,
)


@pytest.mark.parametrize(
    ("values", "expected", "reason"),
    [
        ([60.0] * 3, 12, Reason.ABOVE),
        ([51.0, 60.0, 60.0], 11, Reason.ABOVE),
        ([57.5] * 3, 12, Reason.ABOVE),
        ([60.0, 50.0, 60.0], 10, Reason.STEADY),
        ([60.0, 60.0], 10, Reason.STEADY),
        ([60.0, None, 60.0, 60.0], 10, Reason.STEADY),
        ([40.0] * 14, 10, Reason.STEADY),
        ([40.0] * 15, 8, Reason.BELOW),
        ([40.0] * 14 + [46.0], 10, Reason.STEADY),
        ([42.0] * 15, 9, Reason.BELOW),
        ([45.0] * 15, 10, Reason.STEADY),
        # for scaling in the highest value of 15 minutes counts
        ([20.0] * 10 + [40.0] * 5, 8, Reason.BELOW),
        ([40.0] * 7 + [None] + [40.0] * 7, 10, Reason.STEADY),
        ([0.0] * 15, 1, Reason.BELOW),
        ([1e308] * 3, 100, Reason.ABOVE),
    ],
)
def test_scales_out_after_three_minutes_and_in_after_fifteen(
    values: Sequence[float | None], expected: int, reason: Reason
) -> None:
    answer = POLICY.evaluate(view(values))
    assert (answer.replicas, answer.reason) == (expected, reason)


def test_a_missing_metric_never_lowers_the_size() -> None:
    answer = POLICY.evaluate(view([None, *[1.0] * 20]))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)


def test_scaling_in_can_be_disabled() -> None:
    out_only = AwsTargetTracking(metric="cpu", target=50.0, disable_scale_in=True)
    assert out_only.evaluate(view([60.0] * 3)).replicas == 12
    quiet = out_only.evaluate(view([10.0] * 15))
    assert (quiet.replicas, quiet.reason) == (None, Reason.ABSTAINED)


@pytest.mark.parametrize(
    ("queue", "current", "expected"),
    [(1500.0, 10, 15), (1000.0, 10, 10), (950.0, 10, 10), (850.0, 10, 9), (0.0, 10, 1), (250.0, 0, 3)],
)
def test_a_backlog_is_divided_among_enough_replicas_to_process_it_in_time(
    queue: float, current: int, expected: int
) -> None:
    assert BACKLOG.goal == 100
    assert BACKLOG.evaluate(view([queue], current=current)).replicas == expected


def test_replicas_that_warm_up_count_for_a_backlog_but_not_for_an_average() -> None:
    coming = {0: (15, 15), 1: (15, 10), 2: (10, 10)}
    assert POLICY.evaluate(view([70.0] * 3, current=15, sizes=coming)).replicas == 15
    assert POLICY.evaluate(view([90.0] * 3, current=15, sizes=coming)).replicas == 18
    assert BACKLOG.evaluate(view([1600.0] * 3, current=15, sizes=coming)).replicas == 16
    low = AwsTargetTracking(metric="cpu", target=50.0, low_periods=1)
    assert low.evaluate(view([10.0] * 3, current=15, sizes=coming)).replicas == 15
    assert low.evaluate(view([10.0] * 9, current=15, sizes={7: (10, 10)})).replicas == 3


def test_replicas_that_are_being_removed_are_not_removed_twice() -> None:
    low = AwsTargetTracking(metric="cpu", target=50.0, low_periods=1)
    held = low.evaluate(view([40.0] * 2, current=8, sizes={1: (10, 10)}))
    assert (held.replicas, held.detail) == (
        8,
        "cpu 40 at target 50: waits until replicas that start or stop have done so",
    )


def test_without_a_value_of_every_replica_the_size_is_not_lowered() -> None:
    low = AwsTargetTracking(metric="cpu", target=50.0, low_periods=1, high_periods=1)
    assert low.evaluate(view([(40.0,) * 9])).reason is Reason.MISSING
    assert low.evaluate(view([(40.0,) * 10])).replicas == 8
    assert low.evaluate(view([(60.0,) * 9])).replicas == 12


def test_the_detail_explains_the_calculation() -> None:
    answer = BACKLOG.evaluate(view([1500.0]))
    assert answer.detail == "cpu 150 per replica at target 100 for 1 datapoints: 15 replicas"
    assert answer.inputs == {"cpu": 150.0, "target": 100.0, "warm": 10.0}
    assert POLICY.evaluate(view([40.0] * 15)).detail == "cpu 40 at target 50 for 15 datapoints, 40 at most: 8 replicas"
    assert POLICY.metrics == ("cpu",)
    assert POLICY.lookback == timedelta(minutes=20)


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"metric": ""}, "metric: is empty"),
        ({"target": None}, "target: is missing, expected either this or"),
        ({"acceptable_latency": SECOND}, "processing_time: is missing, expected"),
        ({"processing_time": SECOND}, "acceptable_latency: is missing, expected"),
        (
            {"acceptable_latency": SECOND, "processing_time": SECOND},
            "target: is 50 together with acceptable_latency, expected",
        ),
        ({"high_periods": 1441}, "high_periods: is 1441 of 60s, expected at most a day together"),
        (
            {"target": None, "acceptable_latency": SECOND, "processing_time": 0 * SECOND},
            "processing_time: is 0s, expected above",
        ),
        ({"target": 0.0}, "target: is 0.0, expected"),
        ({"target": math.inf}, "target: is inf, expected"),
        ({"period": 0 * SECOND}, "period: is 0s, expected"),
        ({"warmup": -SECOND}, "warmup: is -1s, expected"),
        ({"high_periods": 0}, "high_periods: is 0, expected"),
        ({"low_periods": 0}, "low_periods: is 0, expected"),
        ({"low": 0.0}, "low: is 0.0, expected"),
        ({"low": 1.1}, "low: is 1.1, expected"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        AwsTargetTracking(**{"metric": "cpu", "target": 50.0, **parameters})


def test_accepts_the_limits_of_valid_parameters() -> None:
    eager = AwsTargetTracking(metric="cpu", target=50.0, warmup=timedelta(0), high_periods=1, low_periods=1, low=1.0)
    assert eager.evaluate(view([49.0], current=100)).replicas == 98


@settings(deadline=None)  # a busy machine is not a failure
@given(value=st.floats(0, 1e6), more=st.floats(0, 1e6), current=st.integers(1, 100))
def test_a_higher_value_never_asks_for_less(value: float, more: float, current: int) -> None:
    low, high = (POLICY.evaluate(view([v] * 15, current=current)).replicas for v in (value, value + more))
    assert low is not None
    assert high is not None
    assert low <= high


@settings(deadline=None)  # a busy machine is not a failure
@given(load=st.floats(1, 4000), current=st.integers(1, 100))
def test_a_constant_load_is_settled_in_one_change(load: float, current: int) -> None:
    first = POLICY.evaluate(view([load / current] * 15, current=current)).replicas or 0
    assert POLICY.evaluate(view([load / first] * 15, current=first)).replicas == first


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> AwsTargetTracking:
        return AwsTargetTracking(metric="utilization", target=0.5, high_periods=1, low_periods=1)


class TestContractOfABacklog(PolicyContract):
    @pytest.fixture
    def policy(self) -> AwsTargetTracking:
        return AwsTargetTracking(
            metric="lag", acceptable_latency=timedelta(seconds=1), processing_time=timedelta(seconds=0.5), low_periods=2
        )
