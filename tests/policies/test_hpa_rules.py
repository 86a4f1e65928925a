from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import ZERO, Select
from autoscaler_policies.hpa import rules
from autoscaler_policies.hpa.rules import (
    SCALE_DOWN,
    SCALE_UP,
    Condition,
    Event,
    MetricError,
    Pod,
    PodState,
    PolicyType,
    Recommended,
    ScalingPolicy,
    ScalingRules,
    Tolerances,
)
from tests.policies.hpa_event_log import LoggedEvent, stored

CASES = json.loads((Path(__file__).parent / "data" / "hpa.json").read_text())
Inputs = Mapping[str, Any]
TOLERANCES = Tolerances(0.1, 0.1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def tolerances_of(inputs: Inputs) -> Tolerances:
    return Tolerances(inputs["tolerance_down"], inputs["tolerance_up"])


def pods_of(inputs: Inputs) -> list[Pod]:
    return [
        Pod(
            pod["usage_m"] if "usage_m" in pod else pod["value_m"],
            pod.get("request_m"),
            PodState(pod.get("state", "ready")),
        )
        for pod in inputs["pods"]
    ]


def rules_of(given_: Inputs) -> ScalingRules:
    policies = tuple(
        ScalingPolicy(PolicyType(policy["type"].lower()), policy["value"], seconds(policy["period_s"]))
        for policy in given_["policies"]
    )
    return ScalingRules(seconds(given_["stabilization_s"]), Select(given_["select"].lower()), policies)


def events_of(given_: Iterable[Inputs]) -> tuple[LoggedEvent, ...]:
    return tuple(
        LoggedEvent(event["change"], seconds(event["age_s"]), event.get("outdated", False)) for event in given_
    )


def seen_of(given_: Iterable[Inputs]) -> tuple[Recommended, ...]:
    return tuple(Recommended(seen["replicas"], seconds(seen["age_s"])) for seen in given_)


def utilization_ratio(inputs: Inputs) -> Inputs:
    sized = rules.utilization_ratio(
        inputs["current_replicas"], inputs["target_utilization_pct"], pods_of(inputs), tolerances_of(inputs)
    )
    return {"replicas": sized.replicas, "utilization_pct": sized.utilization, "raw_average_m": sized.usage}


def pod_average_value(inputs: Inputs) -> Inputs:
    sized = rules.pod_average_value(
        inputs["current_replicas"], inputs["target_average_m"], pods_of(inputs), tolerances_of(inputs)
    )
    return {"replicas": sized.replicas, "usage_m": sized.usage}


def object_or_external_value(inputs: Inputs) -> Inputs:
    sized = rules.object_or_external_value(
        inputs["current_replicas"],
        inputs["ready_pods"],
        inputs["target_value_m"],
        inputs["values_m"],
        tolerances_of(inputs),
    )
    return {"replicas": sized.replicas, "usage_m": sized.usage}


def per_pod_value(inputs: Inputs) -> Inputs:
    sized = rules.per_pod_value(
        inputs["status_replicas"], inputs["target_average_m"], inputs["values_m"], tolerances_of(inputs)
    )
    return {"replicas": sized.replicas, "usage_m": sized.usage}


def rate_limit(inputs: Inputs) -> Inputs:
    limited = rules.rate_limit(
        inputs["current_replicas"],
        inputs["desired_replicas"],
        inputs["min_replicas"],
        inputs["max_replicas"],
        rules_of(inputs["scale_up_rules"]),
        rules_of(inputs["scale_down_rules"]),
        events_of(inputs["scale_up_events"]),
        events_of(inputs["scale_down_events"]),
    )
    return {"replicas": limited.replicas, "condition": limited.condition.value}


def legacy_rate_limit(inputs: Inputs) -> Inputs:
    names = ("current_replicas", "desired_replicas", "min_replicas", "max_replicas")
    limited = rules.legacy_rate_limit(*(inputs[name] for name in names))
    return {"replicas": limited.replicas, "condition": limited.condition.value}


def limit(of: Callable[..., int]) -> Callable[[Inputs], int]:
    def run(inputs: Inputs) -> int:
        return of(
            inputs["current_replicas"],
            rules_of(inputs["rules"]),
            events_of(inputs["scale_up_events"]),
            events_of(inputs["scale_down_events"]),
        )

    return run


def stabilization(inputs: Inputs) -> Inputs:
    calm = rules.stabilization(
        inputs["current_replicas"],
        inputs["desired_replicas"],
        seconds(inputs["up_window_s"]),
        seconds(inputs["down_window_s"]),
        seen_of(inputs["recommendations"]),
    )
    return {"replicas": calm.replicas, "log": [seen.replicas for seen in calm.log]}


def stabilization_down_only(inputs: Inputs) -> Inputs:
    calm = rules.stabilization_down_only(
        inputs["desired_replicas"], seconds(inputs["window_s"]), seen_of(inputs["recommendations"])
    )
    return {"replicas": calm.replicas, "log_length": len(calm.log)}


def event_log(inputs: Inputs) -> Inputs:
    events = events_of(inputs["events"])
    behavior = None if inputs["rules"] is None else rules_of(inputs["rules"])
    log = stored(inputs["replica_change"], events, behavior)
    return {
        "change_last_60s": rules.change_within(seconds(60), events),
        "log": [[event.change, event.outdated] for event in log],
    }


def controller(inputs: Inputs) -> Inputs:
    up, down = inputs.get("scale_up_rules"), inputs.get("scale_down_rules")
    behavior = (rules_of(up) if up else SCALE_UP, rules_of(down) if down else SCALE_DOWN)
    seen = inputs.get("recommendations")
    outcome = rules.controller(
        inputs["spec_replicas"],
        inputs["min_replicas"],
        inputs["max_replicas"],
        [proposal(metric) for metric in inputs["metrics"]],
        None if seen is None else seen_of(seen),
        behavior if up or down else None,
        events_of(inputs.get("scale_up_events", ())),
        events_of(inputs.get("scale_down_events", ())),
    )
    found = {"replicas": outcome.replicas, "reason": outcome.condition.value}
    return {**found, "stabilized": True} if outcome.stabilized else found


def proposal(metric: Inputs) -> int | None:
    if metric["kind"] not in RUN:
        return None
    found: int | None = run(metric["kind"], metric["inputs"]).get("replicas")
    return found


RUN: Mapping[str, Callable[[Inputs], Any]] = {
    "utilization_ratio": utilization_ratio,
    "pod_average_value": pod_average_value,
    "object_or_external_value": object_or_external_value,
    "per_pod_value": per_pod_value,
    "rate_limit": rate_limit,
    "scale_up_limit": limit(rules.scale_up_limit),
    "scale_down_limit": limit(rules.scale_down_limit),
    "legacy_rate_limit": legacy_rate_limit,
    "stabilization": stabilization,
    "stabilization_down_only": stabilization_down_only,
    "event_log": event_log,
    "controller": controller,
}


def run(kind: str, inputs: Inputs) -> Any:
    """The result of the rules for a case, in the form of its `expected`."""
    try:
        return RUN[kind](inputs)
    except MetricError as error:
        return {"error": str(error)}


def comparable(found: Any, expected: Any) -> Any:
    """The part of the result that a case has: some omit the log."""
    return {key: found.get(key) for key in {*expected, *(found.keys() - {"log"})}} if isinstance(found, dict) else found


@pytest.mark.parametrize("case", CASES, ids=[f"{case['kind']}: {case['name']}" for case in CASES])
def test_the_results_are_those_of_the_kubernetes_controller(case: dict[str, Any]) -> None:
    found = run(case["kind"], case["inputs"])
    assert comparable(found, case["expected"]) == case["expected"]


def test_every_kind_has_cases() -> None:
    assert {case["kind"] for case in CASES} == set(RUN)


def ready(usage: int | None, request: int | None = 1000, count: int = 1) -> Pod:
    return Pod(usage, request, count=count)


UNLISTED = Pod(500, None, PodState.UNLISTED)


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([], "no metrics returned from resource metrics API"),
        ([ready(None)], "no metrics returned from resource metrics API"),
        ([UNLISTED], "no pods returned by selector while calculating replica count"),
        ([ready(None), UNLISTED], "no metrics returned matched known pods"),
        ([ready(500, 0)], "no metrics returned matched known pods"),
        ([Pod(500, 1000, PodState.UNREADY)], r"did not receive metrics for targeted pods \(pods might be unready\)"),
        ([Pod(500, 1000, PodState.PENDING)], "did not receive metrics for targeted pods"),
        ([Pod(500, 1000, PodState.IGNORED)], "did not receive metrics for targeted pods"),
        ([ready(500), ready(500, None)], "missing request"),
        ([ready(500), Pod(None, None, PodState.IGNORED)], "missing request"),
    ],
)
def test_without_metrics_or_pods_there_is_no_utilization(pods: list[Pod], message: str) -> None:
    with pytest.raises(MetricError, match=f"^{message}"):
        rules.utilization_ratio(3, 50, pods, TOLERANCES)


def test_without_measurements_there_is_no_average() -> None:
    with pytest.raises(MetricError, match=r"^no metrics returned from custom metrics API$"):
        rules.pod_average_value(3, 1000, [ready(None)], TOLERANCES)
    with pytest.raises(MetricError, match=r"^no metrics returned from resource metrics API$"):
        rules.pod_average_value(3, 1000, [], TOLERANCES, "resource")


@pytest.mark.parametrize(
    ("current", "pods", "expected"),
    [
        # 700 of 1000 at 50 %, another pod starting: 35 % of two would reverse the direction
        (2, [ready(700), Pod(None, 1000, PodState.PENDING)], 2),
        # a starting pod does not count on the way down
        (2, [ready(100), Pod(900, 1000, PodState.UNREADY)], 1),
        # however much it requests: 800 of 2000 and not of 12000
        (3, [ready(400, count=2), Pod(900, 10000, PodState.UNREADY)], 2),
        # if the silent ones would reverse the direction, the size stays: 400 of 1000 are low, 1400 of 2000 would be
        # high
        (2, [ready(400), ready(None)], 2),
        # a pod marked silent is silent, whatever it reported
        (4, [ready(900, count=3), Pod(900, 1000, PodState.MISSING)], 6),
        # silent pods count as using their full request: (100 + 1000) / 2000 is above the target
        (2, [ready(100), ready(None)], 2),
        # as many equal pods count as that many
        (6, [ready(200, count=5), ready(None)], 4),
        (4, [ready(900, count=4)], 8),
        # (900 x 4 + 0) / 5000 = 72 % of five
        (4, [ready(900, count=4), ready(None)], 8),
        # fewer pods than the size, all of them busy: counting them would lower the size
        (9, [ready(900, count=3), Pod(None, 1000, PodState.PENDING)], 9),
        # a metric of a missing pod counts once pods have to be filled in
        (2, [ready(900), UNLISTED, ready(None)], 2),
        (2, [ready(1500), UNLISTED, ready(None)], 5),
        (2, [ready(1500), UNLISTED], 3),
        # a failed pod never counts
        (2, [ready(100), ready(100), Pod(5000, 1000, PodState.IGNORED)], 1),
    ],
)
def test_sizes_by_utilization_with_silent_and_starting_pods(current: int, pods: list[Pod], expected: int) -> None:
    assert rules.utilization_ratio(current, 50, pods, TOLERANCES).replicas == expected


@pytest.mark.parametrize(
    ("current", "pods", "expected"),
    [
        (2, [ready(700), Pod(None, None, PodState.PENDING)], 2),
        (2, [ready(2000), Pod(None, None, PodState.PENDING)], 4),
        (2, [ready(100), ready(None)], 2),
        (4, [ready(100, count=3), ready(None)], 2),
        (2, [ready(2100), ready(None)], 5),
        (2, [ready(500), ready(None)], 2),
        (2, [ready(540), ready(None)], 2),
        # a whole number of thousandths on average, the fraction dropped on both sides of zero
        (3, [ready(1000), ready(0), ready(0)], 2),
        (3, [ready(-1000), ready(0), ready(0)], -1),
    ],
)
def test_sizes_by_an_average_with_silent_and_starting_pods(current: int, pods: list[Pod], expected: int) -> None:
    assert rules.pod_average_value(current, 500, pods, TOLERANCES).replicas == expected


def test_an_average_truncates_the_fraction_as_go_does() -> None:
    assert rules.pod_average_value(3, 500, [ready(-1000), ready(0), ready(0)], TOLERANCES).usage == -333
    assert rules.pod_average_value(3, 500, [ready(1000), ready(0), ready(0)], TOLERANCES).usage == 333


def test_a_value_multiplies_the_number_of_ready_pods() -> None:
    assert rules.object_or_external_value(10, 2, 1000, [1500], TOLERANCES).replicas == 3  # fewer in an overload
    assert rules.object_or_external_value(10, 0, 1000, [1500], TOLERANCES).replicas == 0
    assert rules.object_or_external_value(10, 10, 1000, [900, 100], TOLERANCES).usage == 1000
    assert rules.object_or_external_value(0, 0, 1000, [2100], TOLERANCES).replicas == 3
    assert rules.object_or_external_value(0, 0, 1000, [0], TOLERANCES).replicas == 0


def test_infinite_values_give_the_largest_size() -> None:
    huge = [rules.MOST_USAGE, 1, -5]
    assert rules.object_or_external_value(3, 3, 1, huge, TOLERANCES) == rules.Sized(rules.MOST, rules.MOST_USAGE)
    assert rules.per_pod_value(3, 1, huge, TOLERANCES) == rules.Sized(rules.MOST, rules.MOST_USAGE)
    assert rules.utilization_ratio(3, 1, [ready(rules.MOST_USAGE, 1)], TOLERANCES).utilization == rules.MOST


def test_a_negative_sum_is_treated_as_an_overflow() -> None:
    assert rules.per_pod_value(3, 1000, [-5], TOLERANCES) == rules.Sized(rules.MOST, rules.MOST_USAGE)


def test_a_value_per_pod_works_without_pods() -> None:
    assert rules.per_pod_value(0, 1000, [2500], TOLERANCES) == rules.Sized(3, 2500)
    assert rules.per_pod_value(0, 1000, [0], TOLERANCES) == rules.Sized(0, 0)


PODS = ScalingPolicy(PolicyType.PODS, 2, seconds(60))
PERCENT = ScalingPolicy(PolicyType.PERCENT, 10, seconds(60))


def scaling(select: Select, *policies: ScalingPolicy) -> ScalingRules:
    return ScalingRules(ZERO, select, policies)


@pytest.mark.parametrize(
    ("of", "given_", "expected"),
    [
        (rules.scale_up_limit, scaling(Select.MAX, PERCENT), 111),  # 100 x 1.1 is 110.00000000000001 in floats
        (rules.scale_up_limit, scaling(Select.MIN, PERCENT, PODS), 102),
        (rules.scale_up_limit, scaling(Select.DISABLED, PERCENT), 100),
        (rules.scale_up_limit, scaling(Select.MAX), -(2**31)),
        (rules.scale_up_limit, scaling(Select.MIN), 2**31 - 1),
        (rules.scale_down_limit, scaling(Select.MAX, PERCENT, PODS), 90),
        (rules.scale_down_limit, scaling(Select.MAX, replace(PERCENT, value=35)), 65),
        (rules.scale_down_limit, scaling(Select.MIN, PERCENT, PODS), 98),
        (rules.scale_down_limit, scaling(Select.DISABLED, PERCENT), 100),
        (rules.scale_down_limit, scaling(Select.MAX), 2**31 - 1),
        (rules.scale_down_limit, scaling(Select.MIN), -(2**31)),
    ],
)
def test_limits_the_steps(of: Callable[..., int], given_: ScalingRules, expected: int) -> None:
    assert of(100, given_, (), ()) == expected


def test_the_remaining_size_is_computed_in_floats_and_truncated() -> None:
    most = scaling(Select.MAX, replace(PERCENT, value=90))
    assert rules.scale_down_limit(10, most, (), ()) == 0  # 10 x (1 - 0.9) is 0.9999999999999998
    half = scaling(Select.MAX, replace(PERCENT, value=50))
    assert rules.scale_down_limit(5, half, [Event(10, ZERO)], ()) == -2


def test_changes_beyond_the_rate_limit_wait_and_do_not_reverse() -> None:
    many = [Event(15, seconds(20))]
    few = scaling(Select.MAX, PODS)
    assert rules.rate_limit(100, 50, 1, 1000, down=few, downs=many) == rules.Limited(100, Condition.DOWN_LIMIT)
    assert rules.rate_limit(100, 500, 1, 1000, up=few, ups=many) == rules.Limited(100, Condition.UP_LIMIT)


def test_the_bound_is_named_if_it_equals_the_limit() -> None:
    assert rules.rate_limit(5, 99, 1, 10) == rules.Limited(10, Condition.TOO_MANY)
    assert rules.rate_limit(5, 0, 3, 10, down=scaling(Select.MAX, PODS)) == rules.Limited(3, Condition.TOO_FEW)
    assert rules.legacy_rate_limit(5, 99, 1, 10) == rules.Limited(10, Condition.TOO_MANY)


def test_an_event_counts_for_strictly_less_than_the_period() -> None:
    events = (Event(3, seconds(59.999)), Event(5, seconds(60)))
    assert rules.change_within(seconds(60), events) == 3
    assert rules.scale_up_limit(100, scaling(Select.MAX, PODS), events, (Event(1, ZERO),)) == 100
    assert rules.scale_down_limit(100, scaling(Select.MAX, PODS), events, (Event(1, ZERO),)) == 96


def test_a_disabled_direction_allows_no_change() -> None:
    closed = scaling(Select.DISABLED, PODS)
    assert rules.rate_limit(5, 9, 1, 10, up=closed) == rules.Limited(5, Condition.UP_LIMIT)
    assert rules.rate_limit(5, 2, 1, 10, down=closed) == rules.Limited(5, Condition.DOWN_LIMIT)
    assert rules.rate_limit(5, 5, 1, 10, up=closed, down=closed) == rules.Limited(5, Condition.WITHIN)


def test_an_hpa_without_behavior_at_most_doubles() -> None:
    assert rules.legacy_rate_limit(3, 100, 1, 100) == rules.Limited(6, Condition.UP_LIMIT)
    assert rules.legacy_rate_limit(1, 100, 1, 100) == rules.Limited(4, Condition.UP_LIMIT)
    assert rules.legacy_rate_limit(0, 100, 0, 100) == rules.Limited(4, Condition.UP_LIMIT)


def test_a_recommendation_as_old_as_the_window_counts_only_without_behavior() -> None:
    seen = (Recommended(9, seconds(300)),)
    assert rules.stabilization_down_only(3, seconds(300), seen).replicas == 9
    assert rules.stabilization(10, 3, ZERO, seconds(300), seen).replicas == 3


def test_an_outdated_event_differs_from_one_as_old_as_the_longest_period() -> None:
    longest = scaling(Select.MAX, PODS, ScalingPolicy(PolicyType.PODS, 1, seconds(15)))
    kept = LoggedEvent(1, seconds(60))
    assert stored(4, [kept], longest) == (kept, LoggedEvent(4, ZERO))
    assert stored(4, [LoggedEvent(1, seconds(60.001))], longest) == (LoggedEvent(4, ZERO),)
    assert stored(4, [LoggedEvent(1, ZERO, outdated=True)], longest) == (LoggedEvent(4, ZERO),)
    assert stored(4, [], scaling(Select.MAX)) == (LoggedEvent(4, ZERO),)


@pytest.mark.parametrize(
    ("current", "proposals", "expected"),
    [
        (4, [], None),
        (4, [None, None], None),
        (4, [3, None], None),
        (4, [4, None], 4),
        (4, [None, 5], 5),
        (4, [2, 3], 3),
        (4, [0, 0], 0),
        (4, [-7], 0),
        (0, [None, 0], 0),
    ],
)
def test_a_failing_metric_prevents_a_scale_down(
    current: int, proposals: list[int | None], expected: int | None
) -> None:
    assert rules.combined(current, proposals) == expected


@pytest.mark.parametrize("behavior", [None, (SCALE_UP, SCALE_DOWN)])
def test_bounds_are_restored_without_reading_the_metrics(behavior: tuple[ScalingRules, ScalingRules] | None) -> None:
    above = rules.controller(9, 1, 5, [None], behavior=behavior)
    assert (above.replicas, above.condition, above.desired) == (5, Condition.ABOVE_MAXIMUM, None)
    below = rules.controller(1, 2, 5, [4], behavior=behavior)
    assert (below.replicas, below.condition, below.desired) == (2, Condition.BELOW_MINIMUM, None)


def test_a_restarted_controller_remembers_the_present_size() -> None:
    outcome = rules.controller(5, 1, 9, [None])
    assert outcome.log == (Recommended(5, ZERO),)
    assert rules.controller(5, 1, 9, [2], outcome.log).replicas == 5


@pytest.mark.parametrize(
    ("value", "period", "message"),
    [(0, seconds(15), "value: is 0, expected"), (1, ZERO, "period: is 0s, expected")],
)
def test_refuses_invalid_policies(value: int, period: timedelta, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScalingPolicy(PolicyType.PODS, value, period)


sizes = st.integers(0, 50)
ages = st.integers(0, 400).map(seconds)
behaviors = st.none() | st.just((SCALE_UP, SCALE_DOWN))


@given(
    current=sizes,
    proposals=st.lists(st.none() | sizes, max_size=3),
    seen=st.none() | st.lists(st.builds(Recommended, sizes, ages), max_size=5),
    behavior=behaviors,
    ups=st.lists(st.builds(Event, st.integers(1, 9), ages), max_size=3),
    downs=st.lists(st.builds(Event, st.integers(1, 9), ages), max_size=3),
)
def test_a_metric_that_is_missing_never_lowers_the_size(
    current: int,
    proposals: list[int | None],
    seen: list[Recommended] | None,
    behavior: tuple[ScalingRules, ScalingRules] | None,
    ups: list[Event],
    downs: list[Event],
) -> None:
    outcome = rules.controller(current, 0, 50, [*proposals, None], seen, behavior, ups, downs)
    assert current <= outcome.replicas <= 50
