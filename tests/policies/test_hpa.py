from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config import load
from autoscaler.core.model import (
    MOST_LEARNED,
    ZERO,
    Behaviour,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    Recommendation,
    Select,
    View,
)
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler_policies.hpa import rules
from autoscaler_policies.hpa.policy import Behavior, Hpa, Metric, MetricType, ScaleDown, ScaleUp
from autoscaler_policies.hpa.rules import (
    MetricError,
    Pod,
    PodState,
    PolicyType,
    Recommended,
    ScalingPolicy,
    Tolerances,
)
from tests.policies.hpa_event_log import LoggedEvent, stored

Make = Callable[..., View]
CASES = json.loads((Path(__file__).parent / "data" / "hpa.json").read_text())
T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(seconds=15)
CPU = Metric(MetricType.UTILIZATION, "cpu", 60)
LAG = Metric(MetricType.VALUE_PER_REPLICA, "lag", 100)
QUEUE = replace(LAG, metric="queue")  # while a metric called lag is high, the core waits until the job has caught up
AT_ONCE = Behavior(ScaleUp(), ScaleDown(stabilization_window=ZERO))
ONE_A_MINUTE = ScalingPolicy(PolicyType.PODS, 1, timedelta(minutes=1))


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> Hpa:
        value = Metric(MetricType.VALUE, "arrivals", 50)
        average = Metric(MetricType.AVERAGE_VALUE, "requests", 10)
        return Hpa((CPU, LAG, value, average), Behavior())

    @pytest.fixture
    def metrics(self) -> Sequence[str]:
        return ("cpu", "lag", "arrivals", "requests")


class TestContractWithoutBehavior(TestContract):
    @pytest.fixture
    def policy(self) -> Hpa:
        return Hpa((CPU, LAG))

    @pytest.fixture
    def metrics(self) -> Sequence[str]:
        return ("cpu", "lag")


class Run:
    """One policy, evaluated turn by turn as in the core; by default the size follows its recommendation."""

    def __init__(self, policy: Hpa, size: int, minimum: int = 1, maximum: int = 100) -> None:
        self.policy = policy
        self.size = size
        self.now = T0
        self.limits = Limits(minimum, maximum)
        self.memory: Mapping[str, float] = {}

    def turn(self, metrics: Mapping[str, Any], *, after: timedelta = TICK, follow: bool = True) -> Recommendation:
        readings = {
            name: value if isinstance(value, Reading) else Reading(value, self.now) for name, value in metrics.items()
        }
        view = View(
            now=self.now,
            current=self.size,
            ready=self.size,
            metrics=readings,
            past=(Observation(at=self.now, desired=self.size, ready=self.size, metrics=readings),),
            limits=self.limits,
            learned=ClusterState().learned,
            spec=ClusterSpec(name="c", limits=self.limits, policies=(), interval=TICK),
            memory=self.memory,
        )
        self.memory = self.policy.learn(view)
        assert len(self.memory) <= MOST_LEARNED
        assert all(map(math.isfinite, self.memory.values()))
        answer = self.policy.evaluate(replace(view, memory=self.memory))
        assert answer == self.policy.evaluate(view), "learning changes nothing that the same turn decides"
        if follow and answer.replicas is not None:
            self.size = answer.replicas
        self.now += after
        return answer

    def sizes(self, metric: str, *values: Any) -> list[int | None]:
        return [self.turn({} if value is None else {metric: value}).replicas for value in values]


SIZED = {
    "utilization_ratio": MetricType.UTILIZATION,
    "pod_average_value": MetricType.AVERAGE_VALUE,
    "object_or_external_value": MetricType.VALUE,
    "per_pod_value": MetricType.VALUE_PER_REPLICA,
}


OTHERWISE = {"external value multiplies ready pods only": 3}
"""Cases in which the policy meant to be safer asks for another size than the controller, and which."""


def part(pod: Mapping[str, Any]) -> dict[str, float]:
    names = {"usage": pod.get("usage_m", pod.get("value_m")), "request": pod.get("request_m")}
    numbers = {name: number / 1000 for name, number in names.items() if number is not None}
    return {**numbers, "ready": float(pod["state"] == "ready")}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kind"] in SIZED and "overflow" not in case["name"]],
    ids=lambda case: case["name"],
)
def test_the_sizes_from_the_readings_of_a_source_are_those_of_the_controller(view: Make, case: dict[str, Any]) -> None:
    inputs, kind = case["inputs"], SIZED[case["kind"]]
    target = next(inputs[name] for name in inputs if name.startswith("target"))
    metric = Metric(kind, "m", target if kind is MetricType.UTILIZATION else target / 1000)
    seen = [pod for pod in inputs.get("pods", ()) if pod["state"] in ("ready", "unready")]
    current = inputs.get("current_replicas", inputs.get("status_replicas"))
    ready = sum(pod["state"] == "ready" for pod in seen) if seen else inputs.get("ready_pods", current)
    reading = Reading(
        tuple(value / 1000 for value in inputs.get("values_m", (0,))),
        T0,
        parts={f"pod-{index}": part(pod) for index, pod in enumerate(seen)},
    )
    tolerances = Tolerances(inputs["tolerance_down"], inputs["tolerance_up"])
    seen_by = view(current=current, ready=ready)
    if "error" in case["expected"]:
        with pytest.raises(MetricError, match=r"no metrics returned|missing request"):
            metric.size(seen_by, reading, tolerances)
        return
    expected = OTHERWISE.get(case["name"], case["expected"]["replicas"])
    assert metric.size(seen_by, reading, tolerances).replicas == expected


@pytest.mark.parametrize(
    ("metric", "value", "current", "ready", "expected"),
    [
        # a value per replica: the mean, in whole percent
        (CPU, (0.9, 0.9, 0.9, 0.9), 4, 4, 6),
        (CPU, (0.6659, 0.6659), 2, 2, 2),
        (CPU, (0.67, 0.67), 2, 2, 3),
        # one of four is silent: it counts as zero upwards, as its full request downwards
        (CPU, (0.9, 0.9, 0.9), 4, 4, 5),
        (CPU, (0.2, 0.2, 0.2), 4, 4, 3),
        # one of four is starting: it counts as zero upwards, not at all downwards
        (CPU, (0.9, 0.9, 0.9), 4, 3, 5),
        (CPU, (0.2, 0.2, 0.2), 4, 3, 1),
        # one number: the mean of the ready replicas
        (CPU, 0.9, 4, 4, 6),
        (CPU, 0.9, 4, 3, 5),
        (CPU, 0.2, 4, 3, 1),
        # a surge has more replicas than desired
        (CPU, (0.6,) * 5, 4, 5, 4),
        (CPU, 0.61, 4, 5, 4),
        # as many report as desired, and some of them are not ready: none is missing
        (CPU, (0.9,) * 4, 4, 2, 6),
        (Metric(MetricType.AVERAGE_VALUE, "cpu", 2.5), (5.0, 2.6, 2.6), 3, 3, 5),
        (Metric(MetricType.AVERAGE_VALUE, "cpu", 2.5), 3.4, 3, 3, 5),
        (Metric(MetricType.VALUE, "cpu", 2.5), 5.0, 3, 3, 6),
        (Metric(MetricType.VALUE, "cpu", 2.5), (2.0, 3.0), 3, 3, 6),
        (Metric(MetricType.VALUE, "cpu", 2.5), 1.0, 3, 3, 2),
        (Metric(MetricType.VALUE, "cpu", 2.5), 5.1, 0, 0, 3),
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 2.5), 5.1, 1, 1, 3),
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 2.5), (2.6, 2.5), 1, 1, 3),
        # one thousandth above the target is enough: floats are rounded before rounding up
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 0.001), 0.0071, 1, 1, 8),
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 0.001), 0.007, 1, 1, 7),
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 0.001), 2.007, 1, 1, 2007),
        (Metric(MetricType.VALUE_PER_REPLICA, "cpu", 1), 1.7e308, 1, 1, 2**31 - 1),
        (Metric(MetricType.VALUE, "cpu", 1), -1.7e308, 0, 0, -(2**63 // 1000)),
    ],
)
def test_sizes_by_each_type_of_metric(
    view: Make, metric: Metric, value: float | tuple[float, ...], current: int, ready: int, expected: int
) -> None:
    found = metric.size(view(current=current, ready=ready), Reading(value, T0), Tolerances()).replicas
    assert found == (expected if expected >= 0 else pytest.approx(expected))


def test_parts_have_the_usage_and_the_request_of_each_replica(view: Make) -> None:
    parts: dict[str, dict[str, float]] = {
        "a": {"usage": 0.9, "request": 1.0},
        "b": {"usage": 0.9, "request": 1.0, "ready": 1.0},
        "c": {"usage": 0.1, "request": 2.0, "ready": 0.0},
        "d": {"request": 1.0},
    }
    # upwards c, which starts, and d, which is silent, count as zero: 1.8 of 5.0 is 36 %
    assert CPU.size(view(current=4), Reading(0.0, T0, parts=parts), Tolerances()).replicas == 4
    parts["c"]["ready"] = 1.0
    # 1.9 of 4.0 is 47 %; downwards d counts as its full request: 2.9 of 5.0 is 58 %
    assert CPU.size(view(current=4), Reading(0.0, T0, parts=parts), Tolerances()).replicas == 4
    # without d, and with an unreported one that is assumed as large as the largest: 3.9 of 6.0 is 65 %
    del parts["d"]
    assert CPU.size(view(current=4), Reading(0.0, T0, parts=parts), Tolerances()).replicas == 4
    # a silent third one counts as the largest request: 5.4 of 11.0 is 49 %; 1.4 of 7.0 would be 20 %
    light = {"a": {"usage": 0.2, "request": 1.0}, "b": {"usage": 0.2, "request": 5.0}}
    assert CPU.size(view(current=3), Reading(0.0, T0, parts=light), Tolerances()).replicas == 3
    # without silent replicas 47 % of 60 % for three is three
    assert CPU.size(view(current=3), Reading(0.0, T0, parts=parts), Tolerances()).replicas == 3
    # with one more that is not ready, which does not count on the way down
    assert CPU.size(view(current=4, ready=3), Reading(0.0, T0, parts=parts), Tolerances()).replicas == 3


def test_parts_that_are_not_replicas_are_ignored(view: Make) -> None:
    reading = Reading(0.9, T0, parts={"source -> map": {"busy": 0.4}})
    assert CPU.size(view(current=4), reading, Tolerances()).replicas == 6


def test_a_utilization_requires_the_requests(view: Make) -> None:
    reading = Reading(0.9, T0, parts={"a": {"usage": 0.9}, "b": {"usage": 0.9}})
    with pytest.raises(MetricError, match="missing request"):
        CPU.size(view(current=3), reading, Tolerances())


def test_scales_up_at_once_by_at_most_four_pods_or_double() -> None:
    run = Run(Hpa((CPU,), Behavior()), 3)
    assert run.sizes("cpu", 2.0, 2.0, 2.0) == [7, 14, 28]


def test_without_behavior_it_scales_up_to_at_most_double_or_four() -> None:
    run = Run(Hpa((CPU,)), 3)
    assert run.sizes("cpu", 2.0, 2.0) == [6, 12]


def test_a_new_policy_does_not_scale_down_before_a_whole_window() -> None:
    run = Run(Hpa((CPU,), Behavior()), 6)
    # 19 turns of 15 s after the first are 285 s; with the 20th the present size of the first turn is 300 s old
    assert run.sizes("cpu", *[0.2] * 20) == [6] * 20
    assert run.sizes("cpu", 0.2) == [2]


def test_without_behavior_a_recommendation_counts_for_the_whole_window_including_its_end() -> None:
    run = Run(Hpa((CPU,)), 6)
    assert run.sizes("cpu", *[0.2] * 21) == [6] * 21
    assert run.sizes("cpu", 0.2) == [2]


def test_scales_down_to_the_greatest_size_of_the_window() -> None:
    run = Run(Hpa((CPU,), Behavior(scale_down=ScaleDown(stabilization_window=seconds(60)))), 6)
    assert run.sizes("cpu", 0.4, 0.3, 0.2, 0.2) == [6, 6, 6, 6]  # 4, 3, 2, 2 are recommended
    assert run.sizes("cpu", 0.2, 0.2) == [3, 2]  # a recommendation a minute old no longer counts


def test_scales_up_to_the_least_size_of_the_upper_window() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(stabilization_window=seconds(60)))), 4)
    assert run.sizes("cpu", 0.9, 1.2, 0.9, 0.9) == [4, 4, 4, 4]
    assert run.sizes("cpu", 0.9) == [6]


def test_its_memory_survives_a_restart_and_its_times_move_with_the_clock() -> None:
    run = Run(Hpa((CPU,), Behavior()), 6)
    run.sizes("cpu", *[0.2] * 10)
    back = timedelta(hours=1)
    run.memory = {
        name: number - back.total_seconds() if name.endswith("_at") else number for name, number in run.memory.items()
    }
    run.now -= back
    assert run.sizes("cpu", *[0.2] * 10) == [6] * 10
    assert run.sizes("cpu", 0.2) == [2]


def test_incomplete_memory_counts_as_empty() -> None:
    run = Run(Hpa((CPU,), Behavior()), 6)
    run.sizes("cpu", *[0.2] * 19)
    run.memory = {name: number for name, number in run.memory.items() if name != "seen_at"}
    assert run.sizes("cpu", 0.2, 0.2, 0.2) == [6, 6, 6]
    # a recommendation without its time is dropped
    run.memory = {name: number for name, number in run.memory.items() if name != "recommended_0_at"}
    assert run.sizes("cpu", 0.2) == [2]


def test_after_a_gap_between_observations_it_starts_anew_like_a_new_hpa() -> None:
    # The original would scale down at once when a metric returns after its window: the window is empty.
    run = Run(Hpa((CPU,), Behavior()), 6)
    run.sizes("cpu", *[0.6] * 3, *[None] * 30)
    assert run.sizes("cpu", *[0.2] * 20) == [6] * 20
    assert run.sizes("cpu", 0.2) == [2]
    run = Run(Hpa((CPU,), Behavior()), 6)
    assert run.sizes("cpu", None, None, *[0.2] * 20) == [None, None] + [6] * 20
    assert run.sizes("cpu", 0.2) == [2]
    log: Sequence[Recommended] = (Recommended(6, seconds(480)),)
    assert rules.controller(6, 1, 100, [2], log, (rules.SCALE_UP, rules.SCALE_DOWN)).replicas == 2


def test_a_gap_in_the_metrics_does_not_delay_a_scale_up() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(stabilization_window=seconds(60)))), 6)
    run.sizes("cpu", *[0.6] * 3, *[None] * 30)
    assert run.sizes("cpu", 0.9) == [9]


def test_a_short_gap_keeps_the_window() -> None:
    run = Run(Hpa((CPU,), Behavior()), 6)
    assert run.sizes("cpu", *[0.2] * 10, *[None] * 9, 0.2) == [6] * 10 + [None] * 9 + [6]
    assert run.sizes("cpu", 0.2) == [2]


def test_the_up_limit_counts_replicas_added_within_the_period() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(policies=(ONE_A_MINUTE,)))), 3)
    assert run.sizes("cpu", *[2.0] * 9) == [4, 4, 4, 4, 5, 5, 5, 5, 6]


def test_the_down_limit_counts_replicas_removed_within_the_period() -> None:
    down = ScaleDown(ZERO, Select.MIN, (ONE_A_MINUTE, rules.ALL))
    run = Run(Hpa((CPU,), Behavior(scale_down=down)), 9)
    assert run.sizes("cpu", *[0.0] * 6) == [8, 8, 8, 8, 7, 7]


def test_the_rate_limits_count_actual_changes_and_not_recommendations() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(policies=(replace(ONE_A_MINUTE, value=4),)))), 4)
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 8  # a guard prevents it
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 8
    run.size = 6  # a guard allows two, after the turn before
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 8
    assert run.memory["changed_0"] == 2
    assert run.memory["changed_0_at"] == (T0 + TICK).timestamp()
    for _ in range(2):
        assert run.turn({"cpu": 2.0}, follow=False).replicas == 8
    # a minute after the turn that recommended them the two no longer count
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 10


def test_forgets_a_change_that_is_older_than_every_period() -> None:
    run = Run(Hpa((CPU,), AT_ONCE), 4)
    run.turn({"cpu": 0.9})
    run.turn({"cpu": 0.6}, after=seconds(0.001))
    assert "changed_0" not in run.memory  # it happened a turn ago, and the periods are one turn long
    run = Run(Hpa((CPU,), Behavior(ScaleUp(policies=(ONE_A_MINUTE,)))), 4)
    run.turn({"cpu": 0.9})
    for _ in range(3):
        run.turn({"cpu": 0.6})
        assert run.memory["changed_0"] == 1
    run.turn({"cpu": 0.6})
    assert "changed_0" not in run.memory


def test_an_external_change_counts_from_when_it_is_observed() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(policies=(replace(ONE_A_MINUTE, value=4),)))), 4)
    run.turn({"cpu": 0.6})
    run.size = 7
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 8
    assert run.memory["changed_0_at"] == (T0 + TICK).timestamp()
    run.size = 5  # and back: the removed replicas may be added again
    assert run.turn({"cpu": 2.0}, follow=False).replicas == 8
    assert (run.memory["changed_0"], run.memory["changed_1"]) == (3, -2)


def test_the_greatest_size_counts() -> None:
    run = Run(Hpa((CPU, LAG), AT_ONCE), 4)
    assert run.turn({"cpu": 0.3, "lag": 550.0}).replicas == 6
    assert run.turn({"cpu": 0.3, "lag": 80.0}).replicas == 3


def test_a_missing_metric_never_lowers_the_size() -> None:
    run = Run(Hpa((CPU, LAG), AT_ONCE), 4)
    answer = run.turn({"cpu": 0.3})
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == "cpu 30% at target 60%: 2 replicas; no trusted reading of lag"


def test_a_readable_metric_may_raise_the_size_beside_an_unreadable_one() -> None:
    answer = Run(Hpa((CPU, LAG), AT_ONCE), 4).turn({"cpu": 0.9})
    assert (answer.replicas, answer.reason) == (6, Reason.ABOVE)
    assert answer.detail == (
        "cpu 90% at target 60%: 6 replicas; lag cannot be read; 6 replicas asked for; 6 replicas (DesiredWithinRange)"
    )
    assert answer.inputs == {"cpu": 90.0, "desired": 6.0}


def test_the_detail_explains_why_the_size_differs_from_that_of_the_metrics() -> None:
    answer = Run(Hpa((CPU,)), 4).turn({"cpu": 0.3})
    assert answer.detail == (
        "cpu 30% at target 60%: 2 replicas; 2 replicas asked for; "
        "limited by earlier recommendations (stabilization window); "
        "4 replicas (DesiredWithinRange)"
    )
    answer = Run(Hpa((LAG,)), 4).turn({"lag": 2000.0})
    assert answer.detail == "lag 500 at target 100: 20 replicas; 20 replicas asked for; 8 replicas (ScaleUpLimit)"


def test_reports_how_many_replicas_are_silent() -> None:
    average = Metric(MetricType.AVERAGE_VALUE, "cpu", 2.0)
    for metric, value, said in (
        (CPU, (0.2, 0.1, 0.15), "cpu 15% at target 60%, no value of 2 replicas: 5 replicas"),
        (CPU, (0.2, 0.1, 0.15, 0.15), "cpu 15% at target 60%, no value of 1 replica: 3 replicas"),
        (CPU, (0.6,) * 5, "cpu 60% at target 60%: 5 replicas"),
        (average, (1.0,) * 4, "cpu 1 at target 2, no value of 1 replica: 3 replicas"),
        (LAG, (200.0, 300.0), "cpu 100 at target 100: 5 replicas"),
    ):
        answer = Run(Hpa((replace(metric, metric="cpu"),)), 5).turn({"cpu": value})
        assert answer.detail.partition(";")[0] == said

    parts = {
        "a": {"usage": 0.3, "request": 1.0},
        "b": {"request": 1.0},
        "c": {"usage": 9.0, "request": 1.0, "ready": 0.0},
    }
    answer = Run(Hpa((CPU,)), 5).turn({"cpu": Reading(0.0, T0, parts=parts)})
    assert answer.detail.startswith("cpu 30% at target 60%, no value of 4 replicas: ")


def test_a_reading_without_information_counts_as_missing() -> None:
    reading = Reading(0.9, T0, parts={"a": {"usage": 0.9}})
    answer = Run(Hpa((CPU,)), 4).turn({"cpu": reading})
    assert (answer.replicas, answer.reason, answer.detail) == (None, Reason.MISSING, "cpu: missing request")


def test_keeps_a_size_of_zero_unless_it_is_the_minimum() -> None:
    answer = Run(Hpa((LAG,)), 0).turn({"lag": 500.0})
    assert (answer.replicas, answer.reason) == (None, Reason.ABSTAINED)
    assert Run(Hpa((LAG,)), 0, minimum=0).turn({"lag": 350.0}).replicas == 4
    assert Run(Hpa((LAG,), AT_ONCE), 3, minimum=0).turn({"lag": 0.0}).replicas == 0


def test_restores_the_bounds_whatever_the_metrics_say() -> None:
    answer = Run(Hpa((LAG,)), 12, maximum=10).turn({"lag": 5000.0})
    assert (answer.replicas, answer.detail) == (10, "the size 12 is above max: 10 replicas")
    answer = Run(Hpa((LAG,)), 1, minimum=3).turn({})
    assert (answer.replicas, answer.detail) == (3, "the size 1 is below min: 3 replicas")


def test_replicas_added_by_the_bounds_count_for_the_rate_limit_too() -> None:
    run = Run(Hpa((CPU,), Behavior(ScaleUp(policies=(replace(ONE_A_MINUTE, value=4),)))), 1, minimum=3)
    assert run.sizes("cpu", 2.0, 2.0) == [3, 5]


def test_an_overload_never_removes_replicas_while_others_are_starting(view: Make) -> None:
    # A deliberate difference: the original multiplies the ratio by the two ready ones and goes from 10 to 3.
    metric = Metric(MetricType.VALUE, "v", 1)
    assert rules.object_or_external_value(10, 2, 1000, [1500], Tolerances()).replicas == 3
    assert metric.size(view(current=10, ready=2), Reading(1.5, T0), Tolerances()).replicas == 10


def test_a_value_per_replica_within_the_tolerance_keeps_the_desired_size(view: Make) -> None:
    # A deliberate difference: the original goes back to the 8 existing pods although it has asked for 10.
    assert rules.per_pod_value(8, 1000, [8100], Tolerances()).replicas == 8
    metric = Metric(MetricType.VALUE_PER_REPLICA, "v", 1)
    assert metric.size(view(current=10, ready=8), Reading(10.4, T0), Tolerances()).replicas == 10


def test_its_memory_stays_small_however_long_the_windows_are() -> None:
    slow = replace(ONE_A_MINUTE, value=1000, period=timedelta(hours=3))
    behavior = Behavior(ScaleUp(timedelta(hours=2), policies=(slow,)), ScaleDown(timedelta(hours=3), policies=(slow,)))
    run = Run(Hpa((LAG,), behavior), 5000, minimum=0, maximum=9000)
    for turn in range(420):
        run.size = 5000 + turn % 2
        run.turn({"lag": 100.0 * (4000 - turn)}, follow=False)
    assert len(run.memory) == 4 + 2 * 300 + 2 * 100
    # the greatest is kept beyond its time, so the scale-down comes later and never sooner
    assert run.memory["recommended_0"] == 5000
    changes = sum(number for name, number in run.memory.items() if name.startswith("changed") and name[-3:] != "_at")
    assert changes == 1


def test_forgets_a_recommendation_that_can_no_longer_decide() -> None:
    run = Run(Hpa((LAG,), Behavior()), 9)
    for lag in (100.0, 200.0, 900.0, 500.0, 500.0, 300.0):
        run.turn({"lag": lag})
    assert [number for name, number in run.memory.items() if name.startswith("recommended") and name[-3:] != "_at"] == [
        9,
        5,
        3,
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Metric(MetricType.VALUE, "", 1), "metric: is empty"),
        (lambda: Metric(MetricType.VALUE, "m", 0.0009), "target: is 0.0009, expected 0.001 or more"),
        (lambda: Metric(MetricType.VALUE, "m", 1e16), r"target: is 1e\+16, expected 0.001 or more and below 9.2e\+15"),
        (lambda: Metric(MetricType.VALUE, "m", math.nan), "target: is nan, expected"),
        (lambda: Metric(MetricType.VALUE, "m", math.inf), "target: is inf, expected"),
        (lambda: Metric(MetricType.UTILIZATION, "m", 0.6), "target: is 0.6, expected a whole percentage"),
        (lambda: Metric(MetricType.UTILIZATION, "m", 60.5), "target: is 60.5, expected a whole percentage"),
        (lambda: Metric(MetricType.UTILIZATION, "m", math.nan), "target: is nan, expected a whole percentage"),
        (lambda: Metric(MetricType.UTILIZATION, "m", math.inf), "target: is inf, expected a whole percentage"),
        (lambda: Hpa(()), "metrics: is empty"),
        (lambda: Hpa((CPU,), tolerance_up=-0.1), "tolerance_up: is -0.1, expected"),
        (lambda: Hpa((CPU,), tolerance_down=math.nan), "tolerance_down: is nan, expected"),
        (lambda: ScaleUp(policies=()), "policies: is empty"),
        (lambda: ScaleDown(policies=()), "policies: is empty"),
    ],
)
def test_refuses_invalid_parameters(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_metric_is_identified_by_its_name() -> None:
    assert tuple(map(str, Hpa((CPU, LAG)).metrics)) == ("cpu", "lag")


PAGE = (Path(__file__).parents[2] / "docs" / "policies" / "hpa-keda.md").read_text()
NAMES = {
    ("Resource", "averageUtilization"): MetricType.UTILIZATION,
    ("External", "averageValue"): MetricType.VALUE_PER_REPLICA,
}


def moved(rules_: Mapping[str, Any], default: ScaleUp | ScaleDown) -> Any:
    """One direction of the behavior of an HPA in our form."""
    window = rules_.get("stabilizationWindowSeconds")
    given_ = tuple(
        ScalingPolicy(PolicyType(one["type"].lower()), one["value"], seconds(one["periodSeconds"]))
        for one in rules_.get("policies", ())
    )
    return replace(
        default,
        stabilization_window=default.stabilization_window if window is None else seconds(window),
        select_policy=Select(rules_.get("selectPolicy", "Max").lower()),
        policies=given_ or default.policies,
    )


def test_the_migration_from_kubernetes_on_the_page_is_equivalent(tmp_path: Path) -> None:
    section = PAGE[PAGE.index("## From the Kubernetes HPA") :]
    before, after = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[:2]
    path = tmp_path / "autoscaler.yaml"
    path.write_text(after)
    spec = load(path, {}).clusters["taskmanagers"].spec
    hpa = yaml.safe_load(before)["spec"]
    metrics = []
    for metric in hpa["metrics"]:
        found = metric[metric["type"].lower()]
        kind, target = next((name, number) for name, number in found["target"].items() if name != "type")
        amount = float(str(target).replace("k", "000"))
        metrics.append(Metric(NAMES[metric["type"], kind], found.get("name") or found["metric"]["name"], amount))
    up, down = hpa["behavior"]["scaleUp"], hpa["behavior"]["scaleDown"]
    policy = Hpa(
        tuple(metrics),
        Behavior(moved(up, ScaleUp()), moved(down, ScaleDown())),
        up.get("tolerance", 0.1),
        down.get("tolerance", 0.1),
    )
    assert spec.policies == (NamedPolicy("hpa", policy),)
    assert spec.limits == Limits(hpa["minReplicas"], hpa["maxReplicas"])
    assert (spec.interval, spec.down, spec.up) == (TICK, Behaviour(), Behaviour())
    assert spec.settle.short == 0


class Loop:
    """The controller as a plain loop over its rules: the log and the events grow, their ages are counted."""

    def __init__(self, policy: Hpa, size: int, limits: Limits) -> None:
        self.policy = policy
        self.size = size
        self.limits = limits
        self.log: tuple[Recommended, ...] | None = None
        self.ups: tuple[LoggedEvent, ...] = ()
        self.downs: tuple[LoggedEvent, ...] = ()

    def turn(self, cpu: tuple[float, ...] | None, lag: float | None) -> int:
        tolerances = Tolerances(self.policy.tolerance_down, self.policy.tolerance_up)
        proposals: list[int | None] = [None, None]
        if cpu is not None:
            pods = [Pod(round(share * 1000), 1000) for share in cpu]
            pods += [Pod(None, 1000, PodState.READY)] * (self.size - len(pods))
            proposals[0] = rules.utilization_ratio(self.size, 60, pods, tolerances).replicas
        if lag is not None:
            proposals[1] = rules.per_pod_value(self.size, 100_000, [round(lag * 1000)], tolerances).replicas
        behavior = None if self.policy.behavior is None else self.policy.behavior.rules
        outcome = rules.controller(
            self.size,
            self.limits.minimum,
            self.limits.maximum,
            proposals,
            self.log,
            behavior,
            self.ups,
            self.downs,
        )
        up, down = behavior or (None, None)
        if outcome.replicas > self.size:
            self.ups = stored(outcome.replicas - self.size, self.ups, up)
        elif outcome.replicas < self.size:
            self.downs = stored(self.size - outcome.replicas, self.downs, down)
        self.size = outcome.replicas
        self.log = tuple(replace(one, age=one.age + TICK) for one in outcome.log)
        self.ups = tuple(replace(one, age=one.age + TICK) for one in self.ups)
        self.downs = tuple(replace(one, age=one.age + TICK) for one in self.downs)
        return self.size


windows = st.sampled_from([0, 15, 40, 60, 300]).map(seconds)
policies = st.lists(
    st.builds(
        ScalingPolicy, st.sampled_from(PolicyType), st.integers(1, 150), st.sampled_from([15, 20, 60, 90]).map(seconds)
    ),
    min_size=1,
    max_size=2,
).map(tuple)
behaviors = st.builds(
    Behavior,
    st.builds(ScaleUp, windows, st.sampled_from(Select), policies),
    st.builds(ScaleDown, windows, st.sampled_from(Select), policies),
)
shares = st.lists(st.integers(0, 2000).map(lambda number: number / 1000), min_size=1, max_size=12).map(tuple)
lags = st.integers(0, 3000).map(float)


@settings(deadline=None, max_examples=300)  # a busy machine is not a failure
@given(
    behavior=st.none() | behaviors,
    size=st.integers(1, 12),
    turns=st.lists(st.tuples(st.none() | shares, st.none() | lags), min_size=5, max_size=40),
)
def test_the_same_observations_give_the_same_sizes_as_the_controller(
    behavior: Behavior | None,
    size: int,
    turns: list[tuple[tuple[float, ...] | None, float | None]],
) -> None:
    policy = Hpa((CPU, QUEUE), behavior)
    limits = Limits(1, 12)
    # An interval so long that no turn without metrics is a gap: after one we are more careful than the original.
    spec = ClusterSpec(
        name="c",
        limits=limits,
        policies=(NamedPolicy("hpa", policy),),
        down=Behaviour(window=ZERO),
        metrics=("cpu", "queue"),
        interval=timedelta(minutes=10),
    )
    loop = Loop(policy, size, limits)
    state, now = ClusterState(), T0
    for cpu, lag in [((0.6,) * size, 100.0 * size), *turns]:
        shown_cpu = cpu
        values: dict[str, float | tuple[float, ...]] = {}
        if shown_cpu is not None:
            shown_cpu = values["cpu"] = shown_cpu[:size]
        if lag is not None:
            values["queue"] = lag
        metrics = {name: Reading(value, now) for name, value in values.items()}
        state, decision = step(spec, state, Observation(at=now, desired=size, ready=size, metrics=metrics))
        assert decision.desired == loop.turn(shown_cpu, lag)
        size = decision.desired
        now += TICK
