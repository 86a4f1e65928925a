"""The arithmetic of EC2 Auto Scaling policies as pure functions, as the EC2 Auto Scaling user guide publishes it.

https://docs.aws.amazon.com/autoscaling/ec2/userguide/: as-scaling-simple-step (step adjustments, adjustment types,
warm-up), as-scaling-target-tracking, as-using-sqs-queue (backlog per instance), as-scale-based-on-demand (several
policies), predictive-scaling-policy-overview, ec2-auto-scaling-warm-pools; and StepAdjustment of the API reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise

from autoscaler.policy_api import Observation, ParameterError, View
from autoscaler_policies.shared.checks import FINITE, check

ROUNDING = 1e-9
"""Tolerance for rounding errors of floats: 30 % of 10 can come out as 3.0000000000000004."""
MOST = 2**31 - 1
"""The largest size of a group, whatever the value of a metric."""
DAY = timedelta(days=1)
"""The longest time an alarm may evaluate: CloudWatch's limit for periods of less than an hour."""


class AdjustmentType(StrEnum):
    """The meaning of a step's adjustment."""

    CHANGE = "ChangeInCapacity"
    EXACT = "ExactCapacity"
    PERCENT = "PercentChangeInCapacity"


class Aggregation(StrEnum):
    """How the values within a period become one (`MetricAggregationType`, an alarm's `Statistic`)."""

    AVERAGE = "Average"
    MINIMUM = "Minimum"
    MAXIMUM = "Maximum"


@dataclass(frozen=True, slots=True)
class Step:
    """An adjustment for a range of the metric, given by its distance from the threshold.

    Attributes:
        adjustment: replicas to add (below 0: to remove), a size, or percent of the size, as the adjustment type says.
        lower: where the range begins; none: minus infinity. The bound itself is included only above the threshold.
        upper: where the range ends; none: infinity. The bound itself is included only below the threshold.
    """

    adjustment: int
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        check(self, "lower upper", *FINITE)
        if self.lower is None and self.upper is None:
            raise ParameterError("lower", "is missing and so is upper, expected at least one of the two")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ParameterError("upper", f"is {self.upper:g}, expected more than lower ({self.lower:g})")

    def holds(self, distance: float, *, above: bool) -> bool:
        """Whether a distance from the threshold is in the range, for an alarm that fires above (or below) it."""
        lower = -math.inf if self.lower is None else self.lower
        upper = math.inf if self.upper is None else self.upper
        return lower <= distance < upper if above else lower < distance <= upper


def flaw(steps: Sequence[Step]) -> str:
    """Why AWS would refuse a policy's steps, or the empty string."""
    ordered = sorted(steps, key=lambda step: -math.inf if step.lower is None else step.lower)
    if not ordered:
        return "is empty, expected at least one step"
    for below, step in pairwise(ordered):
        if step.lower is None or below.upper is None or below.upper > step.lower:
            return "has steps that overlap, expected each to begin where the one before it ends"
        if below.upper < step.lower:
            return f"has a gap from {below.upper:g} to {step.lower:g}, expected none"
    first, last = ordered[0].lower, ordered[-1].upper
    if first is not None and first < 0:
        return f"has a step from {first:g} and none below it, expected one without a lower bound"
    if last is not None and last > 0:
        return f"has a step up to {last:g} and none above it, expected one without an upper bound"
    return ""


def reached(steps: Iterable[Step], *, above: bool) -> bool:
    """Whether any step covers values on the side of the threshold on which the alarm fires."""
    if above:
        return any(step.upper is None or step.upper > 0 for step in steps)
    return any(step.lower is None or step.lower < 0 for step in steps)


def watch(name: str, count: int, period: timedelta) -> None:
    """Refuse an alarm that evaluates no period, or more than a day.

    Raises:
        ParameterError: it does.
    """
    if count < 1:
        raise ParameterError(name, f"is {count}, expected 1 or more")
    if count > DAY / period:
        raise ParameterError(name, f"is {count} of {period.total_seconds():g}s, expected at most a day together")


def step_for(distance: float, steps: Iterable[Step], *, above: bool) -> Step | None:
    """The step whose range contains a distance from the threshold; None: no step does, so nothing is adjusted."""
    return next((step for step in steps if step.holds(distance, above=above)), None)


def rounded(change: float) -> int:
    """A change as a whole number: rounded towards 0, but to 1 or -1 if it is smaller than one.

    12.7 -> 12, 0.67 -> 1, -0.58 -> -1, -6.67 -> -6.
    """
    change = max(-MOST, min(change, MOST))
    whole = math.trunc(change + math.copysign(ROUNDING, change))
    return whole if whole or abs(change) < ROUNDING else int(math.copysign(1, change))


def adjusted(capacity: int, adjustment: float, kind: AdjustmentType, least: int = 0) -> int:
    """The capacity after an adjustment, 0 or more.

    Args:
        capacity: the present capacity.
        adjustment: the adjustment of the step.
        kind: the meaning of the adjustment.
        least: a change in percent is at least this many replicas (`MinAdjustmentMagnitude`), unless it is 0.
    """
    if kind is AdjustmentType.EXACT:
        return max(0, rounded(adjustment))
    change = rounded(adjustment if kind is AdjustmentType.CHANGE else capacity * adjustment / 100)
    if kind is AdjustmentType.PERCENT and adjustment:
        change = int(math.copysign(max(abs(change), least), adjustment))
    return max(0, capacity + change)


def tracked(capacity: int, metric: float, target: float) -> int:
    """The capacity that brings an average to its target, rounded up: 1.5 more become 2, 1.5 fewer become 1."""
    return math.ceil(max(0.0, min(capacity * metric / target, MOST)) * (1 - ROUNDING))


def backlog_target(acceptable_latency: float, processing_time: float) -> float:
    """Messages that an instance processes within an acceptable latency, both in seconds (as-using-sqs-queue)."""
    return acceptable_latency / processing_time


def datapoints(
    view: View, metric: str, period: timedelta, count: int, how: Aggregation, *, per_replica: bool = False
) -> tuple[float | None, ...]:
    """A metric's last periods as an alarm sees them, newest first; None: a period without a trusted value.

    Periods are counted back from now, and are at least as long as the interval between two observations. A value
    belongs to the period in which it was observed; the observation may have been slightly late.

    Args:
        view: the view of the policy.
        metric: name of the metric.
        period: length of a period.
        count: number of periods.
        how: how the values of a period, and the numbers of replicas, become one.
        per_replica: whether to divide the metric, a total, by the replicas that were up.
    """
    spec = view.spec
    period = max(period, spec.interval)
    values: list[list[float]] = [[] for _ in range(count)]
    for seen in reversed(view.past):
        index = (view.now - seen.at + spec.interval / 2) // period
        if index >= count:
            break
        reading = seen.metrics.get(metric)
        trusted = reading is not None and -spec.max_ahead <= seen.at - reading.at <= spec.max_age
        if reading is None or not trusted or not reading.finite() or index < 0:
            continue
        value = reading.averaged if how is Aggregation.AVERAGE else reading.value
        number = _AGGREGATE[how](value) if isinstance(value, tuple) else value
        values[index].append(number / max(_up(seen), 1) if per_replica else number)
    return tuple(_AGGREGATE[how](found) if found else None for found in values)


def warm(view: View, warmup: timedelta) -> int:
    """Replicas that are up, warm and will stay: at most as many as were up at any poll during the warm-up.

    Replicas that have been up for less do not count when capacity is added, and nothing is removed meanwhile.
    """
    sizes = [_up(seen) for seen in view.past if view.now - seen.at <= warmup and seen.desired is not None]
    return min([view.current, view.ready, *sizes])


def shrinking(view: View, period: timedelta) -> bool:
    """Whether the size was lowered within a period: leaving replicas still count, so no more may be removed."""
    recent = (seen for seen in view.past if view.now - seen.at <= period)
    return view.ready > view.current or any((seen.desired or 0) > view.current for seen in recent)


def _up(seen: Observation) -> int:
    """Replicas that were up, or the desired size if the target did not report them."""
    return seen.ready if seen.ready is not None else seen.desired or 0


def _mean(numbers: Sequence[float]) -> float:
    """The mean, limited to the range of the numbers: for equal numbers (a threshold, say) it is exactly that number."""
    try:
        mean = math.fsum(numbers) / len(numbers)
    except OverflowError:  # the sum of finite numbers may be beyond all floats
        mean = math.fsum(number / len(numbers) for number in numbers)
    return max(min(numbers), min(mean, max(numbers)))


_AGGREGATE: dict[Aggregation, Callable[[Sequence[float]], float]] = {
    Aggregation.AVERAGE: _mean,
    Aggregation.MINIMUM: min,
    Aggregation.MAXIMUM: max,
}
