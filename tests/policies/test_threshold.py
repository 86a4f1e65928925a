from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import (
    AMOUNT,
    Behaviour,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Range,
    Reading,
    Reason,
    View,
)
from autoscaler.core.step import step
from autoscaler_policies.aws.rules import Step
from autoscaler_policies.aws.step_scaling import AwsStep, Comparison
from autoscaler_policies.rules.threshold import Aggregate, Rule, Threshold

Make = Callable[..., View]
Value = float | tuple[float, ...]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HIGH = Rule(metric="cpu", above=0.8)
LOW = Rule(metric="cpu", below=0.3)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def seen(ago: float, value: Value | None, *, name: str = "cpu", age: float = 0) -> Observation:
    at = NOW - seconds(ago)
    return Observation(
        at=at, desired=4, ready=4, metrics={} if value is None else {name: Reading(value, at - seconds(age))}
    )


@pytest.mark.parametrize(
    ("value", "expected", "reason"),
    [
        (0.81, 5, Reason.ABOVE),
        (0.8, 4, Reason.STEADY),  # the bound itself does not fire
        (0.3, 4, Reason.STEADY),
        (0.29, 3, Reason.BELOW),
    ],
)
def test_steps_when_the_metric_is_beyond_the_bound(view: Make, value: float, expected: int, reason: Reason) -> None:
    answer = Threshold(up=(HIGH,), down=(LOW,)).evaluate(view({"cpu": value}, current=4))
    assert (answer.replicas, answer.reason) == (expected, reason)
    assert answer.inputs == {"cpu": value}


@pytest.mark.parametrize(
    ("step", "current", "up", "down"),
    [
        ({}, 4, 5, 3),
        ({"replicas": 3}, 4, 7, 1),
        ({"percent": 50}, 4, 6, 2),
        ({"percent": 10}, 4, 5, 3),  # at least one replica
        ({"percent": 30}, 4, 6, 2),  # 1.2 replicas are rounded up
        ({"percent": 55}, 100, 155, 45),  # 55.00000000000001 in floats
        ({"percent": 100}, 0, 1, 0),
        ({"percent": 100}, 4, 8, 0),
        ({"replicas": 9}, 4, 13, 0),
    ],
)
def test_the_step_is_a_number_or_a_share_of_the_size(
    view: Make, step: dict[str, Any], current: int, up: int, down: int
) -> None:
    more = Threshold(up=(Rule(metric="cpu", above=0.8, **step),))
    fewer = Threshold(down=(Rule(metric="cpu", below=0.3, **step),))
    assert more.evaluate(view({"cpu": 0.9}, current=current, minimum=0, maximum=200)).replicas == up
    assert fewer.evaluate(view({"cpu": 0.1}, current=current, minimum=0, maximum=200)).replicas == down


def test_never_leaves_the_limits(view: Make) -> None:
    policy = Threshold(
        up=(Rule(metric="cpu", above=0.8, percent=1e300),), down=(Rule(metric="cpu", below=0.3, replicas=99),)
    )
    assert policy.evaluate(view({"cpu": 0.9}, current=4)).replicas == 10
    assert policy.evaluate(view({"cpu": 0.1}, current=4)).replicas == 1
    full = policy.evaluate(view({"cpu": 0.9}, current=10))
    assert (full.replicas, full.reason) == (10, Reason.STEADY)


def test_the_largest_requested_size_counts(view: Make) -> None:
    policy = Threshold(
        up=(
            Rule(metric="cpu", above=0.8),
            Rule(metric="lag", above=100, replicas=4),
            Rule(metric="lag", above=10, replicas=2),
        ),
        down=(
            Rule(metric="cpu", below=0.3, replicas=3),
            Rule(metric="lag", below=1),
            Rule(metric="lag", below=2, replicas=2),
        ),
    )
    more = policy.evaluate(view({"cpu": 0.9, "lag": 500.0}, current=4))
    assert (more.replicas, more.detail) == (8, "lag 500 above 100: 4 replicas + 4")
    fewer = policy.evaluate(view({"cpu": 0.1, "lag": 0.0}, current=4))
    assert (fewer.replicas, fewer.detail) == (3, "lag 0 below 1: 4 replicas - 1")
    assert policy.metrics == ("cpu", "lag")


def test_a_down_rule_counts_only_when_no_up_rule_fires(view: Make) -> None:
    policy = Threshold(up=(Rule(metric="lag", above=100),), down=(LOW,))
    assert policy.evaluate(view({"cpu": 0.1, "lag": 500.0}, current=4)).replicas == 5


@pytest.mark.parametrize("absent", ["cpu", "lag"])
def test_nothing_is_lowered_while_a_metric_of_any_rule_is_missing(view: Make, absent: str) -> None:
    policy = Threshold(up=(Rule(metric="lag", above=100),), down=(LOW, Rule(metric="lag", below=1)))
    metrics = {"cpu": 0.1, "lag": 0.0}
    del metrics[absent]
    answer = policy.evaluate(view(metrics, current=4, missing={absent: "time-out"}))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == f"no trusted reading of {absent} (time-out)"


def test_an_up_rule_fires_whatever_else_is_missing(view: Make) -> None:
    policy = Threshold(up=(Rule(metric="lag", above=100), HIGH), down=(LOW,))
    assert policy.evaluate(view({"cpu": 0.9}, current=4)).replicas == 5


@pytest.mark.parametrize(
    ("aggregate", "expected", "name"),
    [
        (Aggregate.MEAN, None, "cpu"),
        (Aggregate.MAX, 5, "cpu max"),
        (Aggregate.MIN, None, "cpu min"),
    ],
)
def test_values_per_replica_are_aggregated(view: Make, aggregate: Aggregate, expected: int | None, name: str) -> None:
    policy = Threshold(up=(Rule(metric="cpu", above=0.8, aggregate=aggregate),))
    answer = policy.evaluate(view({"cpu": (0.9, 0.5, 0.1, 0.5)}, current=4))
    assert answer.replicas == expected
    assert list(answer.inputs) == [name]


def test_a_silent_ready_replica_prevents_a_scale_down_but_not_a_scale_up(view: Make) -> None:
    policy = Threshold(up=(HIGH,), down=(LOW,))
    assert policy.evaluate(view({"cpu": (0.1, 0.1, 0.1)}, current=4)).reason is Reason.MISSING
    assert policy.evaluate(view({"cpu": (0.1, 0.1, 0.1)}, current=4, ready=3)).replicas == 3
    assert policy.evaluate(view({"cpu": (0.9, 0.9)}, current=4)).replicas == 5


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        # beyond the bound all the time, and an observation at or before the start of the hold
        ([(30, 0.9), (20, 0.9), (10, 0.9), (0, 0.9)], True),
        ([(35, 0.9), (20, 0.9), (0, 0.9)], True),
        # values before the start do not matter
        ([(60, 0.1), (31, 0.9), (15, 0.9), (0, 0.9)], True),
        # not observed for long enough
        ([(29, 0.9), (10, 0.9), (0, 0.9)], False),
        ([(0, 0.9)], False),
        ([], False),
        # once below the bound, or not readable, in between
        ([(40, 0.9), (20, 0.5), (0, 0.9)], False),
        ([(40, 0.9), (20, None), (0, 0.9)], False),
        # not a number
        ([(40, 0.9), (20, math.inf), (0, 0.9)], False),
        ([(40, 0.9), (20, math.nan), (0, 0.9)], False),
        ([(40, 0.9), (20, (0.9, math.nan)), (0, 0.9)], False),
        ([(40, 0.9), (20, ()), (0, 0.9)], False),
        ([(40, 0.9), (20, (0.9, 0.9)), (0, 0.9)], True),
        ([(40, 0.9), (20, (0.9, 0.1)), (0, 0.9)], False),
        # a minute (max_age) without an observation
        ([(70, 0.9), (61, 0.9), (0, 0.9)], False),
        ([(70, 0.9), (60, 0.9), (0, 0.9)], True),
        # the clock went back
        ([(40, 0.9), (-20, 0.9), (0, 0.9)], False),
    ],
)
def test_a_rule_with_a_hold_fires_after_that_time_without_a_gap(
    view: Make, past: list[tuple[float, Value | None]], expected: bool
) -> None:
    rule = Rule(metric="cpu", above=0.8, hold=seconds(30))
    observations = tuple(seen(ago, value) for ago, value in past)
    answer = Threshold(up=(rule,)).evaluate(view({"cpu": 0.9}, current=4, past=observations))
    assert (answer.reason is Reason.ABOVE) == expected


@pytest.mark.parametrize(("age", "expected"), [(0, True), (60, True), (61, False), (-5, True), (-6, False)])
def test_a_past_reading_counts_for_a_hold_only_if_it_was_fresh(view: Make, age: float, expected: bool) -> None:
    past = (seen(30, 0.9), seen(15, 0.9, age=age), seen(0, 0.9))
    rule = Rule(metric="cpu", above=0.8, hold=seconds(30))
    answer = Threshold(up=(rule,)).evaluate(view({"cpu": 0.9}, current=4, past=past))
    assert (answer.reason is Reason.ABOVE) == expected


def test_a_hold_works_even_if_ticks_are_slower_than_the_maximum_age(view: Make) -> None:
    rule = Rule(metric="cpu", above=0.8, hold=seconds(300))
    slow = replace(view({"cpu": 0.9}, current=4), past=tuple(seen(ago, 0.9) for ago in (480, 240, 0)))
    policy = Threshold(up=(rule,))
    assert policy.evaluate(replace(slow, spec=replace(slow.spec, interval=seconds(240)))).reason is Reason.ABOVE
    assert policy.evaluate(replace(slow, spec=replace(slow.spec, interval=seconds(96)))).reason is Reason.ABOVE
    assert policy.evaluate(replace(slow, spec=replace(slow.spec, interval=seconds(95)))).reason is Reason.STEADY


def test_a_policy_with_only_up_rules_does_not_prevent_others_from_lowering_the_size(view: Make) -> None:
    policy = Threshold(up=(HIGH,))
    idle = policy.evaluate(view({"cpu": 0.5}, current=4))
    assert (idle.replicas, idle.reason, idle.detail) == (None, Reason.ABSTAINED, "no rule fires: cpu 0.5")
    # Beyond the bound, but not for long enough yet: this is no time to scale down.
    waiting = Threshold(up=(Rule(metric="cpu", above=0.8, hold=seconds(30)),))
    assert waiting.evaluate(view({"cpu": 0.9}, current=4)).replicas == 4
    # With a down rule that does not fire, the policy votes for the present size.
    assert Threshold(up=(HIGH,), down=(LOW,)).evaluate(view({"cpu": 0.5}, current=4)).replicas == 4


def test_a_hold_works_downwards_too_and_is_in_the_detail(view: Make) -> None:
    policy = Threshold(down=(Rule(metric="cpu", below=0.3, hold=seconds(30)),))
    past = tuple(seen(ago, 0.1) for ago in (40, 20, 0))
    answer = policy.evaluate(view({"cpu": 0.1}, current=4, past=past))
    assert (answer.replicas, answer.detail) == (3, "cpu 0.1 below 0.3 for 30 s: 4 replicas - 1")
    assert policy.evaluate(view({"cpu": 0.1}, current=4)).detail == "no rule fires: cpu 0.1"


def test_the_lookback_covers_the_longest_hold() -> None:
    assert Threshold(up=(HIGH,), down=(LOW,)).lookback == timedelta(0)
    policy = Threshold(up=(Rule(metric="cpu", above=0.8, hold=seconds(30)),), down=(LOW,))
    assert policy.lookback == timedelta(minutes=5, seconds=30)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"metric": "", "above": 1}, "metric: is empty"),
        ({}, "above: is None and below is None, expected exactly one"),
        ({"above": 1, "below": 2}, "above: is 1 and below is 2, expected exactly one"),
        ({"above": math.nan}, "above: is nan, expected a finite number"),
        ({"below": -math.inf}, "below: is -inf, expected a finite number"),
        ({"above": 1, "hold": seconds(-1)}, "hold: is -1s, expected 0s or more"),
        ({"above": 1, "replicas": 1, "percent": 10}, "replicas: is given together with percent"),
        ({"above": 1, "replicas": 0}, "replicas: is 0, expected 1 or more"),
        ({"above": 1, "percent": 0}, "percent: is 0, expected a finite number above 0"),
        ({"above": 1, "percent": math.inf}, "percent: is inf, expected a finite number above 0"),
    ],
)
def test_refuses_invalid_rules(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**{"metric": "cpu", **parameters})


@pytest.mark.parametrize(
    ("up", "down", "message"),
    [
        ((), (), "up: has no rule and neither has down"),
        ((), (Rule(metric="cpu", below=0.3, percent=101),), "down: percent of rule 1 is 101, expected at most 100"),
        (
            (HIGH,),
            (LOW, Rule(metric="cpu", below=0.9)),
            r"down: below of rule 2 is 0.9, expected less than above \(0.8\) of rule 1",
        ),
        (
            (Rule(metric="m", below=3),),
            (Rule(metric="m", above=2),),
            r"down: above of rule 1 is 2, expected more than below \(3\) of rule 1",
        ),
    ],
)
def test_refuses_rules_that_would_make_the_size_oscillate(
    up: tuple[Rule, ...], down: tuple[Rule, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Threshold(up=up, down=down)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        ((HIGH,), (Rule(metric="mem", below=0.9),)),
        ((Rule(metric="cpu", above=0.8, aggregate=Aggregate.MAX),), (Rule(metric="cpu", below=0.9),)),
        ((Rule(metric="m", below=3),), (Rule(metric="m", above=4),)),
        ((HIGH,), (Rule(metric="cpu", above=0.9),)),
        ((Rule(metric="m", below=3),), (Rule(metric="m", below=1),)),
    ],
)
def test_accepts_rules_that_do_not_oscillate(up: tuple[Rule, ...], down: tuple[Rule, ...]) -> None:
    assert Threshold(up=up, down=down).metrics


numbers = st.floats(allow_nan=False, allow_infinity=False)
values = numbers | st.lists(numbers, min_size=1, max_size=5).map(tuple)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    cpu=st.none() | values,
    lag=st.none() | values,
    current=st.integers(0, 12),
    aggregate=st.sampled_from(Aggregate),
    hold=st.sampled_from([0, 15]),
    ages=st.lists(st.integers(0, 90), max_size=4),
)
def test_is_total_stays_within_limits_and_never_lowers_the_size_on_missing_metrics(
    view: Make,
    *,
    cpu: Value | None,
    lag: Value | None,
    current: int,
    aggregate: Aggregate,
    hold: int,
    ages: list[int],
) -> None:
    policy = Threshold(
        up=(Rule(metric="cpu", above=0.8, aggregate=aggregate, hold=seconds(hold)),),
        down=(Rule(metric="lag", below=1.0, percent=50, aggregate=aggregate, hold=seconds(hold)),),
    )
    metrics = {name: value for name, value in (("cpu", cpu), ("lag", lag)) if value is not None}
    past = tuple(
        Observation(
            at=NOW - seconds(ago),
            desired=current,
            ready=current,
            metrics={n: Reading(v, NOW) for n, v in metrics.items()},
        )
        for ago in sorted({*ages, 0}, reverse=True)
    )
    answer = policy.evaluate(view(metrics, current=current, past=past))
    assert all(map(math.isfinite, answer.inputs.values()))
    if answer.replicas is None:
        assert answer.reason is Reason.MISSING
        return
    assert 1 <= answer.replicas <= 10
    if answer.reason is Reason.BELOW and current <= 10:
        assert len(metrics) == 2


def test_its_levels_are_the_bounds_of_its_rules() -> None:
    policy = Threshold(up=(Rule(metric="cpu", above=0.8),), down=(Rule(metric="lag", below=1.0, percent=50),))
    assert policy.levels == (("cpu", 0.8), ("lag", 1.0))


@pytest.mark.parametrize(
    ("rules", "ranges"),
    [
        ({"up": (Rule(metric="queue", above=100.0),), "down": (Rule(metric="queue", below=10.0),)}, {"queue": AMOUNT}),
        ({"up": (Rule(metric="queue", above=10.0),), "down": (Rule(metric="queue", below=0.0),)}, {"queue": AMOUNT}),
        # A low headroom asks for more: a negative one is the most urgent.
        ({"up": (Rule(metric="headroom", below=2.0),)}, {}),
        ({"up": (Rule(metric="growth", above=100.0),), "down": (Rule(metric="growth", below=-10.0),)}, {}),
        ({"up": (Rule(metric="growth", above=0.0),)}, {}),
    ],
)
def test_a_metric_with_positive_bounds_has_no_negative_values(
    rules: dict[str, tuple[Rule, ...]], ranges: dict[str, Range]
) -> None:
    assert Threshold(**rules).ranges == ranges


@pytest.mark.parametrize(
    "policy",
    [
        Threshold(down=(Rule(metric="queue", below=10.0),)),
        AwsStep(metric="queue", threshold=10.0, comparison=Comparison.BELOW, steps=(Step(upper=0.0, adjustment=-1),)),
    ],
)
def test_a_negative_amount_never_lowers_the_size(policy: Policy) -> None:
    spec = ClusterSpec(
        name="c", limits=Limits(1, 9), policies=(NamedPolicy("p", policy),), metrics=("queue",), down=Behaviour()
    )
    for value, size in ((5.0, 3), (-500.0, 4)):
        state = ClusterState()
        for number in range(40):
            at = NOW + seconds(15 * number)
            observation = Observation(at=at, desired=4, ready=4, metrics={"queue": Reading(value, at)})
            state, decision = step(spec, state, observation)
            if decision.desired != 4:
                break
        assert decision.desired == size


def test_a_negative_reading_adds_replicas_if_a_low_one_does() -> None:
    for policy in (
        Threshold(up=(Rule(metric="headroom", below=2.0),)),
        AwsStep(
            metric="headroom",
            threshold=2.0,
            comparison=Comparison.BELOW,
            steps=(Step(upper=0.0, adjustment=1),),
            period=seconds(15),
        ),
    ):
        named = NamedPolicy("p", policy)
        spec = ClusterSpec(name="c", limits=Limits(1, 9), policies=(named,), metrics=("headroom",))
        state = ClusterState()
        for number in range(4):
            at = NOW + seconds(15 * number)
            observation = Observation(at=at, desired=4, ready=4, metrics={"headroom": Reading(-3.0, at)})
            state, decision = step(spec, state, observation)
            if decision.desired != 4:
                break
        assert decision.desired == 5, policy
