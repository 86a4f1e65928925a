from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.config import load
from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    View,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler_policies.aws.rules import (
    AdjustmentType,
    Aggregation,
    Step,
    adjusted,
    backlog_target,
    datapoints,
    flaw,
    rounded,
    step_for,
    tracked,
)
from autoscaler_policies.aws.step_scaling import AwsStep, Comparison
from autoscaler_policies.aws.target_tracking import AwsTargetTracking

Inputs = Mapping[str, Any]
Value = float | tuple[float, ...]
CASES = json.loads((Path(__file__).parent / "data" / "aws.json").read_text())
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def one_policy(capacity: int, policy: Inputs) -> int:
    if "exact" in policy:
        return adjusted(capacity, policy["exact"], AdjustmentType.EXACT)
    if "percent" in policy:
        return adjusted(capacity, policy["percent"], AdjustmentType.PERCENT, policy.get("min_adjustment", 0))
    return adjusted(capacity, policy["change"], AdjustmentType.CHANGE)


def steps(i: Inputs) -> int:
    """Two policies with one threshold: one alarm is active at and above it, the other at and below it."""
    distance = i["metric"] - i["threshold"]
    kind = AdjustmentType(i.get("adjustment_type", "PercentChangeInCapacity"))
    sizes = []
    for above, key in ((True, "out_steps"), (False, "in_steps")):
        ranges = [Step(adjustment, lower, upper) for lower, upper, adjustment in i[key]]
        found = step_for(distance, ranges, above=above) if (distance >= 0 if above else distance <= 0) else None
        if found is not None:
            sizes.append(adjusted(i["capacity"], found.adjustment, kind, i.get("min_adjustment", 0)))
    return max(sizes) if sizes else i["capacity"]


def run(kind: str, i: Inputs) -> object:
    match kind:
        case "aws_percent_rounding":
            return rounded(i["value"])
        case "aws_step":
            return steps(i)
        case "aws_min_adjustment":
            return one_policy(i["capacity"], i)
        case "aws_target_tracking":
            target = backlog_target(i["acceptable_latency_s"], i["processing_s"])
            return {"target": target, "capacity": tracked(i["capacity"], i["queue"] / i["capacity"], target)}
        case "aws_target_tracking_rounding":
            # the change from 10 that brings the metric back to its target
            return {"out": tracked(10, 10 + i["out"], 10) - 10, "in": 10 - tracked(10, 10 - i["in"], 10)}
        case "aws_multi_policy":
            return max([one_policy(i["capacity"], policy) for policy in i["policies"]])
    raise AssertionError(kind)


@pytest.mark.parametrize("case", CASES, ids=[f"{case['kind']}: {case['name']}" for case in CASES])
def test_the_rules_give_the_results_that_aws_publishes(case: Mapping[str, Any]) -> None:
    assert run(case["kind"], case["inputs"]) == case["expected"]


def test_rounding_errors_of_floats_cost_no_replica() -> None:
    assert 0.29 * 100 < 29
    assert rounded(0.29 * 100) == 29
    assert tracked(3, 0.7 / 0.1, 1) == tracked(3, 7, 1) == 21
    assert rounded(1e308) == 2**31 - 1


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ([Step(1, 0, 10), Step(2, 10)], ""),
        ([Step(2, 10), Step(1, 0, 10)], ""),
        ([Step(-1, -10, 0), Step(-2, None, -10)], ""),
        ([Step(-1, None, 0), Step(1, 0)], ""),
        ([Step(1, 5)], ""),
        ([], "is empty"),
        ([Step(1, 0, 10), Step(2, 9)], "overlap"),
        ([Step(1, 0), Step(2, 10)], "overlap"),
        ([Step(1, None, 5), Step(2, None, 9)], "overlap"),
        ([Step(1, 0, 10), Step(2, 20)], "a gap from 10 to 20"),
        ([Step(1, 0, 10)], "a step up to 10 and none above it"),
        ([Step(-1, -10, 0)], "a step from -10 and none below it"),
    ],
)
def test_reports_what_the_service_would_refuse(ranges: Sequence[Step], problem: str) -> None:
    found = flaw(ranges)
    assert problem in found
    assert bool(problem) == bool(found)


def test_a_bound_belongs_to_the_step_further_from_the_threshold() -> None:
    out = (Step(0, 0, 10), Step(1, 10, 20), Step(2, 20))
    down = (Step(0, -10, 0), Step(-1, -20, -10), Step(-2, None, -20))
    for distance, number in ((0, 0), (9.99, 0), (10, 1), (19.99, 1), (20, 2), (1e9, 2)):
        assert step_for(distance, out, above=True) is out[number]
        assert step_for(-distance, down, above=False) is down[number]


PAGE = (Path(__file__).parents[2] / "docs" / "policies" / "aws.md").read_text()


def test_the_migration_from_asg_policies_on_the_page_is_equivalent(tmp_path: Path) -> None:
    section = PAGE[PAGE.index("## From ASG policies") :]
    stepping, alarm, tracking = (
        json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)[:3]
    )
    after = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)[0]
    path = tmp_path / "autoscaler.yaml"
    path.write_text(after)
    found = {named.name: named.policy for named in load(path, {}).clusters["spark-workers"].spec.policies}
    assert found == {
        stepping["PolicyName"]: AwsStep(
            metric="hottest",
            threshold=alarm["Threshold"],
            comparison={"GreaterThanOrEqualToThreshold": Comparison.AT_LEAST}[alarm["ComparisonOperator"]],
            steps=tuple(
                Step(
                    given_["ScalingAdjustment"],
                    given_.get("MetricIntervalLowerBound"),
                    given_.get("MetricIntervalUpperBound"),
                )
                for given_ in stepping["StepAdjustments"]
            ),
            adjustment_type=AdjustmentType(stepping["AdjustmentType"]),
            min_adjustment_magnitude=stepping["MinAdjustmentMagnitude"],
            period=timedelta(seconds=alarm["Period"]),
            evaluation_periods=alarm["EvaluationPeriods"],
            datapoints_to_alarm=alarm["DatapointsToAlarm"],
            aggregation=Aggregation(alarm["Statistic"]),
            warmup=timedelta(seconds=stepping["EstimatedInstanceWarmup"]),
        ),
        tracking["PolicyName"]: AwsTargetTracking(
            metric="cpu",
            target=tracking["TargetTrackingConfiguration"]["TargetValue"],
            disable_scale_in=tracking["TargetTrackingConfiguration"]["DisableScaleIn"],
            warmup=timedelta(seconds=tracking["EstimatedInstanceWarmup"]),
        ),
    }


def view(
    values: Sequence[Value | None],
    *,
    current: int = 10,
    ready: int | None = None,
    sizes: Mapping[int, tuple[int | None, int | None]] | None = None,
    every: timedelta = MINUTE,
    minimum: int = 1,
    maximum: int = 100,
    past: bool = True,
) -> View:
    """Values of a metric, the newest first; `sizes`: desired and ready at some of them, if they differ from now."""
    ready = current if ready is None else ready
    seen = []
    for index, value in enumerate(values):
        at = NOW - index * every
        readings = {} if value is None else {"cpu": Reading(value, at)}
        desired, up = (sizes or {}).get(index, (current, ready))
        seen.append(Observation(at=at, desired=desired, ready=up, metrics=readings))
    now = dict(seen[0].metrics)
    limits = Limits(minimum, maximum)
    spec = ClusterSpec(name="c", limits=limits, policies=(), interval=min(every, MINUTE))
    return View(
        now=NOW,
        current=current,
        ready=ready,
        metrics=now,
        past=tuple(reversed(seen)) if past else (),
        limits=limits,
        learned=Learned(),
        spec=spec,
    )


OUT = AwsStep(
    metric="cpu",
    threshold=60,
    comparison=Comparison.AT_LEAST,
    steps=(Step(10, 0, 10), Step(30, 10)),
    adjustment_type=AdjustmentType.PERCENT,
    min_adjustment_magnitude=1,
)
IN = AwsStep(
    metric="cpu",
    threshold=40,
    comparison=Comparison.AT_MOST,
    steps=(Step(-10, -10, 0), Step(-30, None, -10)),
    adjustment_type=AdjustmentType.PERCENT,
)


@pytest.mark.parametrize(
    ("policy", "value", "expected", "reason"),
    [
        (OUT, 59.9, None, Reason.ABSTAINED),
        (OUT, 60.0, 11, Reason.ABOVE),
        (OUT, 69.9, 11, Reason.ABOVE),
        (OUT, 70.0, 13, Reason.ABOVE),
        (IN, 40.1, None, Reason.ABSTAINED),
        (IN, 40.0, 9, Reason.BELOW),
        (IN, 30.0, 7, Reason.BELOW),
        (IN, 30.1, 9, Reason.BELOW),
    ],
)
def test_the_distance_from_the_threshold_selects_the_step(
    policy: AwsStep, value: float, expected: int | None, reason: Reason
) -> None:
    answer = policy.evaluate(view([value]))
    assert (answer.replicas, answer.reason) == (expected, reason)


@pytest.mark.parametrize(
    ("comparison", "value", "expected"),
    [
        (Comparison.AT_LEAST, 50.0, 12),
        (Comparison.ABOVE, 50.0, None),
        (Comparison.ABOVE, 50.1, 12),
        (Comparison.AT_MOST, 50.0, None),
        (Comparison.AT_MOST, 49.9, 9),
        (Comparison.BELOW, 50.0, None),
        (Comparison.BELOW, 49.9, 9),
    ],
)
def test_the_comparison_defines_a_breach_of_the_threshold(
    comparison: Comparison, value: float, expected: int | None
) -> None:
    above = comparison in (Comparison.AT_LEAST, Comparison.ABOVE)
    ranges = (Step(2, 0),) if above else (Step(-1, None, -0.01),)
    assert (
        AwsStep(metric="cpu", threshold=50, comparison=comparison, steps=ranges).evaluate(view([value])).replicas
        == expected
    )


def test_a_distance_without_a_step_changes_nothing() -> None:
    policy = AwsStep(metric="cpu", threshold=50, comparison=Comparison.AT_LEAST, steps=(Step(5, 20),))
    answer = policy.evaluate(view([60.0]))
    assert (answer.replicas, answer.reason) == (None, Reason.ABSTAINED)
    assert answer.detail == "cpu 60 is 10 from 50: no step covers this distance"
    assert policy.evaluate(view([70.0])).replicas == 15
    still = AwsStep(metric="cpu", threshold=50, comparison=Comparison.AT_LEAST, steps=(Step(0, 0),)).evaluate(
        view([60.0])
    )
    assert (still.reason, still.detail) == (
        Reason.ABSTAINED,
        "cpu 60 is 10 from 50: ChangeInCapacity 0 of 10 replicas changes nothing",
    )


def test_an_exact_capacity_may_raise_or_lower_the_size() -> None:
    policy = AwsStep(
        metric="cpu",
        threshold=50,
        comparison=Comparison.AT_LEAST,
        steps=(Step(6, 0, 10), Step(14, 10)),
        adjustment_type=AdjustmentType.EXACT,
    )
    assert policy.evaluate(view([55.0])).replicas == 6
    assert policy.evaluate(view([60.0])).replicas == 14


def test_the_alarm_needs_enough_breaches_among_the_last_datapoints() -> None:
    policy = AwsStep(
        metric="cpu",
        threshold=60,
        comparison=Comparison.AT_LEAST,
        steps=(Step(2, 0),),
        evaluation_periods=3,
        datapoints_to_alarm=2,
        warmup=MINUTE,
    )
    assert policy.evaluate(view([70.0, 50.0, 70.0, 70.0])).replicas == 12
    assert policy.evaluate(view([70.0, 50.0, 50.0, 70.0])).replicas is None
    # the alarm is active, and the newest value is on the side without a step
    assert policy.evaluate(view([50.0, 70.0, 70.0])).replicas is None
    all_three = AwsStep(
        metric="cpu", threshold=60, comparison=Comparison.AT_LEAST, steps=(Step(2, 0),), evaluation_periods=3
    )
    assert all_three.evaluate(view([70.0, 70.0, 70.0])).replicas == 12
    assert all_three.evaluate(view([70.0, 50.0, 70.0])).detail == "cpu 70: 2 of 3 datapoints >= 60, no alarm"
    assert all_three.lookback == timedelta(minutes=10)
    assert dataclasses.replace(all_three, evaluation_periods=10).lookback == timedelta(minutes=15)


def test_a_period_without_a_value_is_not_a_breach() -> None:
    policy = AwsStep(
        metric="cpu",
        threshold=40,
        comparison=Comparison.BELOW,
        steps=(Step(-2, None, 0),),
        evaluation_periods=3,
        warmup=MINUTE,
    )
    assert policy.evaluate(view([10.0, 10.0, 10.0])).replicas == 8
    assert policy.evaluate(view([10.0, None, 10.0])).replicas is None
    assert policy.evaluate(view([10.0, math.nan, 10.0])).replicas is None
    assert policy.evaluate(view([10.0, 10.0])).replicas is None
    for missing in (view([None, 10.0, 10.0]), view([10.0], past=False)):
        assert policy.evaluate(missing).reason is Reason.MISSING


def test_a_missing_metric_never_lowers_the_size() -> None:
    answer = IN.evaluate(view([None]))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)


@pytest.mark.parametrize("number", [0.7, 50.0, 60.0, 1e308])
def test_the_mean_of_equal_numbers_is_that_number(number: float) -> None:
    for replicas in range(1, 120):  # 11 times a 11th of 50 is not 50 in floats, and 50 may be the threshold
        seen = view([(number,) * replicas], current=replicas)
        assert datapoints(seen, "cpu", MINUTE, 1, Aggregation.AVERAGE) == (number,)


@pytest.mark.parametrize(
    ("how", "expected"), [(Aggregation.AVERAGE, 25.0), (Aggregation.MINIMUM, 10.0), (Aggregation.MAXIMUM, 40.0)]
)
def test_a_datapoint_is_the_mean_of_all_values_within_its_period(how: Aggregation, expected: float) -> None:
    seen = view([10.0, 20.0, 30.0, 40.0, 99.0], every=timedelta(seconds=15))
    assert datapoints(seen, "cpu", MINUTE, 2, how) == (expected, 99.0)
    replicas = view([(10.0, 40.0)])
    assert datapoints(replicas, "cpu", MINUTE, 1, how) == (expected,)


def test_a_period_is_never_shorter_than_the_interval() -> None:
    seen = view([1.0, 2.0, 3.0], every=MINUTE)
    assert datapoints(seen, "cpu", timedelta(seconds=1), 3, Aggregation.AVERAGE) == (1.0, 2.0, 3.0)


def test_values_that_are_too_old_or_in_the_future_are_not_used() -> None:
    stale = Observation(at=NOW - MINUTE, desired=10, ready=10, metrics={"cpu": Reading(70.0, NOW - 3 * MINUTE)})
    ahead = Observation(at=NOW - 2 * MINUTE, desired=10, ready=10, metrics={"cpu": Reading(70.0, NOW)})
    later = Observation(at=NOW + 2 * MINUTE, desired=10, ready=10, metrics={"cpu": Reading(70.0, NOW)})
    now = view([70.0])
    odd = View(
        now=NOW,
        current=10,
        ready=10,
        metrics=now.metrics,
        past=(ahead, stale, *now.past, later),
        limits=now.limits,
        learned=now.learned,
        spec=now.spec,
    )
    assert datapoints(odd, "cpu", MINUTE, 3, Aggregation.AVERAGE) == (70.0, None, None)
    edge = Observation(at=NOW, desired=10, ready=10, metrics={"cpu": Reading(70.0, NOW - odd.spec.max_age)})
    assert datapoints(dataclasses.replace(odd, past=(edge,)), "cpu", MINUTE, 1, Aggregation.AVERAGE) == (70.0,)
    edge = Observation(at=NOW, desired=10, ready=10, metrics={"cpu": Reading(70.0, NOW + odd.spec.max_ahead)})
    assert datapoints(dataclasses.replace(odd, past=(edge,)), "cpu", MINUTE, 1, Aggregation.AVERAGE) == (70.0,)


def test_replicas_that_warm_up_count_for_a_further_scale_up() -> None:
    # Ten were warm, a step requested one more, and it got ready a minute ago.
    coming = {0: (11, 11), 1: (11, 10), 2: (10, 10)}
    assert OUT.evaluate(view([62.0] * 3, current=11, sizes=coming)).replicas == 11
    # 30 % of the ten that are warm
    assert OUT.evaluate(view([70.0] * 3, current=11, sizes=coming)).replicas == 13
    # no scale-down meanwhile
    held = IN.evaluate(view([20.0] * 3, current=11, sizes=coming))
    assert (held.replicas, held.reason) == (None, Reason.ABSTAINED)
    assert held.detail.endswith("waits until replicas that start or stop have done so")
    # after the warm-up they count
    old = dict.fromkeys(range(6, 9), (10, 10))
    assert OUT.evaluate(view([70.0] * 9, current=11, sizes=old)).replicas == 14
    assert IN.evaluate(view([35.0] * 9, current=11, sizes=old)).replicas == 10
    assert IN.evaluate(view([35.0] * 9, current=11, sizes={5: (10, 10)})).replicas is None


def test_replicas_that_are_being_removed_are_not_removed_twice() -> None:
    going = {0: (9, 10), 1: (10, 10)}
    assert IN.evaluate(view([35.0] * 2, current=9, ready=10, sizes=going)).replicas is None
    assert IN.evaluate(view([35.0] * 2, current=9, ready=9, sizes={1: (10, 9)})).replicas is None
    assert IN.evaluate(view([35.0] * 3, current=9, ready=9, sizes={2: (10, 10)})).replicas == 8


def test_an_unknown_past_size_does_not_affect_the_present_one() -> None:
    assert IN.evaluate(view([35.0] * 3, sizes={1: (None, None), 2: (10, None)})).replicas == 9


def test_without_a_value_of_every_replica_the_size_is_not_lowered() -> None:
    some = view([(35.0,) * 9])
    assert IN.evaluate(some).reason is Reason.MISSING
    assert OUT.evaluate(view([(65.0,) * 9])).replicas == 11
    assert IN.evaluate(view([(35.0,) * 10])).replicas == 9


def test_the_worked_examples_of_the_page_hold() -> None:
    assert OUT.evaluate(view([72.0])).replicas == 13
    coming = {2: (10, 10)}
    assert OUT.evaluate(view([75.0] * 3, current=13, sizes=coming)).replicas == 13
    assert OUT.evaluate(view([65.0] * 3, current=13, sizes=coming)).replicas == 13
    assert OUT.evaluate(view([65.0] * 3, current=13)).replicas == 14
    assert adjusted(4, 25, AdjustmentType.PERCENT, 2) == 6


def test_the_detail_explains_the_calculation() -> None:
    answer = OUT.evaluate(view([72.0]))
    assert answer.detail == "cpu 72 is 12 from 60: PercentChangeInCapacity 30 of 10 replicas gives 13"
    assert answer.inputs == {"cpu": 72.0, "distance": 12.0, "breaching": 1.0, "adjustment": 30.0, "warm": 10.0}
    assert OUT.metrics == ("cpu",)


def test_the_detail_explains_that_the_size_stays_during_a_warmup() -> None:
    answer = OUT.evaluate(view([65.0] * 3, current=13, sizes={2: (10, 10)}))
    assert answer.replicas == 13
    assert answer.detail.endswith("PercentChangeInCapacity 10 of 10 replicas gives 11, and 13 are there")


def test_of_several_policies_the_largest_size_counts() -> None:
    policies = (NamedPolicy("out", OUT), NamedPolicy("in", IN))
    spec = ClusterSpec(name="c", limits=Limits(1, 50), policies=policies, metrics=("cpu",), lookback=OUT.lookback)
    for value, expected in ((80.0, 13), (50.0, 10), (20.0, 7)):
        seen = Observation(at=NOW, desired=10, ready=10, metrics={"cpu": Reading(value, NOW)})
        assert step(spec, ClusterState(), seen)[1].proposed == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"metric": ""}, "metric: is empty"),
        ({"threshold": math.nan}, "threshold: is nan, expected"),
        ({"steps": ()}, "steps: is empty"),
        ({"steps": (Step(1, 0, 5),)}, "steps: has a step up to 5"),
        ({"steps": (Step(-1, 0),), "adjustment_type": AdjustmentType.EXACT}, "steps: has the size -1, expected"),
        (
            {"steps": (Step(-2, 0, 5), Step(5, 5)), "adjustment_type": AdjustmentType.EXACT},
            "steps: has the size -2, expected",
        ),
        ({"steps": (Step(1, None, 0),)}, "steps: has none for values >= the threshold, expected at least one"),
        ({"steps": (Step(1, None, -5),), "comparison": Comparison.ABOVE}, "steps: has none for values > the threshold"),
        ({"comparison": Comparison.AT_MOST}, "steps: has none for values <= the threshold"),
        ({"min_adjustment_magnitude": -1}, "min_adjustment_magnitude: is -1, expected"),
        ({"period": timedelta(0)}, "period: is 0s, expected"),
        ({"evaluation_periods": 0}, "evaluation_periods: is 0, expected"),
        ({"datapoints_to_alarm": 2}, r"datapoints_to_alarm: is 2, expected 1 to evaluation_periods \(1\)"),
        ({"datapoints_to_alarm": 0}, r"datapoints_to_alarm: is 0, expected 1 to evaluation_periods \(1\)"),
        ({"evaluation_periods": 1441}, "evaluation_periods: is 1441 of 60s, expected at most a day together"),
        ({"evaluation_periods": 10**15}, "evaluation_periods: is 1000000000000000 of 60s, expected at most a day"),
        ({"warmup": timedelta(seconds=-1)}, "warmup: is -1s, expected"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    usual = {"metric": "cpu", "threshold": 60.0, "comparison": Comparison.AT_LEAST, "steps": (Step(1, 0),)}
    with pytest.raises(ParameterError, match=message):
        AwsStep(**{**usual, **parameters})


@pytest.mark.parametrize("comparison", list(Comparison))
def test_steps_on_both_sides_of_the_threshold_are_accepted(comparison: Comparison) -> None:
    both = (Step(-1, None, 0), Step(1, 0))
    assert AwsStep(
        metric="cpu", threshold=60.0, comparison=comparison, steps=both, evaluation_periods=1440
    ).lookback > timedelta(days=1)


def test_accepts_the_limits_of_valid_parameters() -> None:
    policy = AwsStep(
        metric="cpu",
        threshold=60,
        comparison=Comparison.AT_LEAST,
        steps=(Step(0, 0),),
        adjustment_type=AdjustmentType.EXACT,
        warmup=timedelta(0),
    )
    assert policy.evaluate(view([60.0], minimum=0)).replicas == 0


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((None, None), "lower: is missing and so is upper"),
        ((math.nan, None), "lower: is nan, expected"),
        ((None, math.inf), "upper: is inf, expected"),
        ((5.0, 5.0), "upper: is 5, expected more than lower"),
    ],
)
def test_refuses_an_invalid_step(bounds: tuple[float | None, float | None], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Step(1, *bounds)


@given(capacity=st.integers(0, 10_000), percent=st.integers(-200, 500), least=st.integers(0, 20))
def test_a_change_in_percent_is_never_zero_and_never_in_the_wrong_direction(
    capacity: int, percent: int, least: int
) -> None:
    size = adjusted(capacity, percent, AdjustmentType.PERCENT, least)
    assert size >= 0
    if percent and (capacity or least):
        change = size - capacity
        assert change * percent > 0 or size == 0
        assert abs(change) >= min(least, capacity if percent < 0 else least)


@settings(deadline=None)  # a busy machine is not a failure
@given(value=st.floats(0, 200), more=st.floats(0, 100), current=st.integers(1, 100))
def test_a_higher_value_never_asks_for_less(value: float, more: float, current: int) -> None:
    low, high = (
        OUT.evaluate(view([v], current=current, maximum=1000)).replicas or current for v in (value, value + more)
    )
    assert current <= low <= high


class TestContract(PolicyContract):
    @pytest.fixture
    def policy(self) -> AwsStep:
        return AwsStep(
            metric="utilization",
            threshold=0.5,
            comparison=Comparison.BELOW,
            steps=(Step(-2, None, 0),),
            period=timedelta(seconds=30),
        )


class TestContractOfScalingOut(PolicyContract):
    @pytest.fixture
    def policy(self) -> AwsStep:
        return AwsStep(
            metric="lag",
            threshold=10,
            comparison=Comparison.AT_LEAST,
            steps=(Step(50, 0),),
            adjustment_type=AdjustmentType.PERCENT,
            evaluation_periods=2,
        )
