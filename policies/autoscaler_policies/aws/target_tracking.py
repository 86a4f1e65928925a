"""Target tracking of EC2 Auto Scaling: keeps a metric near its target; scales out at once and scales in late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from autoscaler.policy_api import AMOUNT, ParameterError, Range, Reason, Recommendation, View
from autoscaler_policies.aws.rules import Aggregation, backlog_target, datapoints, shrinking, tracked, warm, watch
from autoscaler_policies.shared.checks import ABOVE_0, ABOVE_0_TO_1, ABOVE_0S, FROM_0S, METRIC, check
from autoscaler_policies.shared.readings import MARGIN
from autoscaler_policies.shared.recommend import are, format_number, missing, replicas, sized


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsTargetTracking:
    """Keeps an average per replica, or a backlog per replica, at a target the way an Auto Scaling group does.

    Two alarms decide: the high one if each of the last `high_periods` datapoints was above the target, the low one
    if each of the last `low_periods` was below the share `low` of it. Then size = ceil(replicas x metric / target),
    with the newest datapoint for scaling out and the highest one for scaling in. AWS publishes that it scales out in
    proportion and scales in more carefully, but not the alarms' numbers; the defaults are those of its alarms.

    Attributes:
        metric: name of the metric: an average per replica or a utilization; with acceptable_latency and
            processing_time, the messages that wait for all replicas together.
        target: the wanted average, in the metric's unit; above 0. Set either this or the next two.
        acceptable_latency: how long a message may wait; divided by processing_time it is the target of the backlog
            per replica.
        processing_time: how long a replica needs for a message on average.
        disable_scale_in: whether this policy never asks for fewer; default false.
        warmup: replicas count only after they have been up for this long, and nothing is removed before; default 5m.
        period: the time over which one datapoint is averaged; default 60s. Not shorter than the cluster's interval.
        high_periods: this many datapoints above the target ask for more; default 3.
        low_periods: this many datapoints below the share `low` ask for fewer; default 15.
        low: share of the target below which a datapoint asks for fewer, above 0 to 1; default 0.9.
    """

    metric: str
    target: float | None = None
    acceptable_latency: timedelta | None = None
    processing_time: timedelta | None = None
    disable_scale_in: bool = False
    warmup: timedelta = timedelta(minutes=5)
    period: timedelta = timedelta(seconds=60)
    high_periods: int = 3
    low_periods: int = 15
    low: float = 0.9

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        self._check_target()
        check(self, "period", *ABOVE_0S)
        check(self, "warmup", *FROM_0S)
        for name in ("high_periods", "low_periods"):
            watch(name, getattr(self, name), self.period)
        check(self, "low", *ABOVE_0_TO_1)

    def _check_target(self) -> None:
        if (self.acceptable_latency is None) != (self.processing_time is None):
            left = "acceptable_latency" if self.acceptable_latency is None else "processing_time"
            raise ParameterError(left, "is missing, expected acceptable_latency and processing_time or none of them")
        if (self.target is None) == (self.acceptable_latency is None):
            found = "is missing" if self.target is None else f"is {self.target:g} together with acceptable_latency"
            raise ParameterError("target", f"{found}, expected either this or acceptable_latency with processing_time")
        check(self, "acceptable_latency processing_time", *ABOVE_0S)
        check(self, "target", *ABOVE_0)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it reads."""
        return (self.metric,)

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The level with which it compares its metric; none for a backlog, whose target is computed."""
        return () if self.target is None else ((self.metric, self.target),)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.metric: AMOUNT}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: the periods it evaluates, and the warm-up."""
        return max(self.period * max(self.high_periods, self.low_periods), self.warmup) + MARGIN

    @property
    def goal(self) -> float:
        """The wanted average, or the wanted backlog per replica."""
        if self.acceptable_latency is not None and self.processing_time is not None:
            return backlog_target(self.acceptable_latency.total_seconds(), self.processing_time.total_seconds())
        return self.target or 1.0

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that brings the metric to its target."""
        backlog = self.acceptable_latency is not None
        count = max(self.high_periods, self.low_periods)
        points = datapoints(view, self.metric, self.period, count, Aggregation.AVERAGE, per_replica=backlog)
        newest = points[0]
        reading = view.metrics.get(self.metric)
        if reading is None or newest is None:
            return missing(view, self.metric)
        current, goal, ready = view.current, self.goal, warm(view, self.warmup)
        inputs = {self.metric: newest, "target": goal, "warm": float(ready)}
        what = (
            f"{self.metric} {format_number(newest)}{' per replica' if backlog else ''} at target {format_number(goal)}"
        )
        if all(point is not None and point > goal for point in points[: self.high_periods]):
            # A backlog is shared by all replicas that are up, even by those that are still warming up.
            counted = max(view.ready if backlog else ready, 1)
            size = max(current, tracked(counted, newest, goal))
            return sized(view, size, inputs, f"{what} for {self.high_periods} datapoints: {replicas(size)}")
        if self.disable_scale_in:
            return Recommendation(None, Reason.ABSTAINED, inputs, f"{what}: no alarm to scale out")
        lows = [point for point in points[: self.low_periods] if point is not None and point < goal * self.low]
        if len(lows) < self.low_periods:
            return sized(view, current, inputs, f"{what}: no alarm, {replicas(current)} {are(current)} kept")
        if isinstance(reading.averaged, tuple) and len(reading.averaged) < view.ready:
            return missing(view, self.metric)
        if ready < current or shrinking(view, self.period):
            return sized(view, current, inputs, f"{what}: waits until replicas that start or stop have done so")
        size = min(current, tracked(current, max(lows), goal))
        return sized(
            view,
            size,
            inputs,
            f"{what} for {self.low_periods} datapoints, {format_number(max(lows))} at most: {replicas(size)}",
        )
