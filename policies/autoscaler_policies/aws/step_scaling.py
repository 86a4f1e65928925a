"""Step scaling of EC2 Auto Scaling: the distance of a metric from a threshold sets how much the size changes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from autoscaler.policy_api import AMOUNT, ParameterError, Range, Reason, Recommendation, View
from autoscaler_policies.aws.rules import (
    AdjustmentType,
    Aggregation,
    Step,
    adjusted,
    datapoints,
    flaw,
    reached,
    shrinking,
    step_for,
    warm,
    watch,
)
from autoscaler_policies.shared.checks import ABOVE_0S, FINITE, FROM_0S, METRIC, at_least, check
from autoscaler_policies.shared.readings import MARGIN
from autoscaler_policies.shared.recommend import finite, format_number, missing, replicas, sized


class Comparison(StrEnum):
    """When a datapoint breaches the threshold (an alarm's `ComparisonOperator`)."""

    AT_LEAST = ">="
    ABOVE = ">"
    AT_MOST = "<="
    BELOW = "<"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsStep:
    """Changes the size in steps, by how far a metric is beyond a threshold: one alarm and its step scaling policy.

    Scaling out and scaling in need two such policies, as on AWS. A policy without an alarm abstains. If several have
    one, the largest size counts.

    Attributes:
        metric: name of the metric.
        threshold: the alarm's threshold, in the metric's unit. If it is above 0, a negative reading counts as
            missing, unless the steps add replicas when the metric is low.
        comparison: when a value breaches it: `>=`, `>`, `<=` or `<`.
        steps: the adjustment for each range of distances from the threshold; without overlap or gap.
        adjustment_type: the meaning of a step's adjustment: ChangeInCapacity, ExactCapacity or
            PercentChangeInCapacity; default ChangeInCapacity.
        min_adjustment_magnitude: a change in percent is at least this many replicas; default 0.
        period: the time that one datapoint covers; default 60s. Not shorter than the cluster's interval.
        evaluation_periods: datapoints that the alarm evaluates; default 1.
        datapoints_to_alarm: how many of them must breach; default: all.
        aggregation: how the values in a period, and the numbers of replicas, become one: Average, Minimum or Maximum;
            default Average.
        warmup: replicas count for further steps only after they have been up for this long, and nothing is removed
            before; default 5m.
    """

    metric: str
    threshold: float
    comparison: Comparison
    steps: tuple[Step, ...]
    adjustment_type: AdjustmentType = AdjustmentType.CHANGE
    min_adjustment_magnitude: int = 0
    period: timedelta = timedelta(seconds=60)
    evaluation_periods: int = 1
    datapoints_to_alarm: int | None = None
    aggregation: Aggregation = Aggregation.AVERAGE
    warmup: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        check(self, "threshold", *FINITE)
        if found := flaw(self.steps):
            raise ParameterError("steps", f"{found}")
        if not reached(self.steps, above=self.above):
            raise ParameterError("steps", f"has none for values {self.comparison} the threshold, expected at least one")
        exact = self.adjustment_type is AdjustmentType.EXACT
        lowest = min(step.adjustment for step in self.steps)
        if exact and lowest < 0:
            raise ParameterError("steps", f"has the size {lowest}, expected 0 or more")
        check(self, "min_adjustment_magnitude", *at_least(0))
        check(self, "period", *ABOVE_0S)
        watch("evaluation_periods", self.evaluation_periods, self.period)
        if not 1 <= self.needed <= self.evaluation_periods:
            expected = f"1 to evaluation_periods ({self.evaluation_periods})"
            raise ParameterError("datapoints_to_alarm", f"is {self.needed}, expected {expected}")
        check(self, "warmup", *FROM_0S)

    @property
    def above(self) -> bool:
        """Whether the alarm is for values above the threshold."""
        return self.comparison in (Comparison.AT_LEAST, Comparison.ABOVE)

    @property
    def needed(self) -> int:
        """How many datapoints must breach."""
        return self.evaluation_periods if self.datapoints_to_alarm is None else self.datapoints_to_alarm

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it reads."""
        return (self.metric,)

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The level with which it compares its metric."""
        return ((self.metric, self.threshold),)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The range of its metric: with a threshold above 0 it is an amount, unless low values add replicas."""
        removes = self.adjustment_type is not AdjustmentType.EXACT and all(step.adjustment < 0 for step in self.steps)
        return {self.metric: AMOUNT} if self.threshold > 0 and (self.above or removes) else {}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: the periods it evaluates, and the warm-up."""
        return max(self.period * self.evaluation_periods, self.warmup) + MARGIN

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that the step gives."""
        points = datapoints(view, self.metric, self.period, self.evaluation_periods, self.aggregation)
        newest = points[0]
        reading = view.metrics.get(self.metric)
        if reading is None or newest is None:
            return missing(view, self.metric)
        breaching = sum(point is not None and self._breaches(point) for point in points)
        distance = finite(newest - self.threshold)
        inputs = {self.metric: newest, "distance": distance, "breaching": float(breaching)}
        what = (
            f"{self.metric} {format_number(newest)} is {format_number(distance)} from {format_number(self.threshold)}"
        )
        alarm = f"{breaching} of {self.evaluation_periods} datapoints {self.comparison} {format_number(self.threshold)}"
        if breaching < self.needed or not self._breaches(newest):
            return Recommendation(
                None, Reason.ABSTAINED, inputs, f"{self.metric} {format_number(newest)}: {alarm}, no alarm"
            )
        step = step_for(distance, self.steps, above=self.above)
        if step is None:
            return Recommendation(None, Reason.ABSTAINED, inputs, f"{what}: no step covers this distance")
        current, ready = view.current, warm(view, self.warmup)
        size = adjusted(ready, step.adjustment, self.adjustment_type, self.min_adjustment_magnitude)
        inputs |= {"adjustment": float(step.adjustment), "warm": float(ready)}
        act = f"{what}: {self.adjustment_type} {step.adjustment} of {replicas(ready)}"
        if size > ready:
            # Earlier steps have requested the replicas that are warming up.
            there = f", and {current} are there" if current > size else ""
            return sized(view, max(size, current), inputs, f"{act} gives {size}{there}")
        if size == ready:
            return Recommendation(None, Reason.ABSTAINED, inputs, f"{act} changes nothing")
        if isinstance(reading.averaged, tuple) and len(reading.averaged) < view.ready:
            return missing(view, self.metric)
        if ready < current or shrinking(view, self.period):
            return Recommendation(
                None, Reason.ABSTAINED, inputs, f"{act} waits until replicas that start or stop have done so"
            )
        return sized(view, size, inputs, f"{act} gives {size}")

    def _breaches(self, value: float) -> bool:
        return _BREACHES[self.comparison](value, self.threshold)


_BREACHES: Mapping[Comparison, Callable[[float, float], bool]] = {
    Comparison.AT_LEAST: operator.ge,
    Comparison.ABOVE: operator.gt,
    Comparison.AT_MOST: operator.le,
    Comparison.BELOW: operator.lt,
}
