"""A policy that forecasts: it sizes for the future value of a rising metric, not for its present value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from autoscaler.policy_api import Observation, ParameterError, Reason, Recommendation, View


@dataclass(frozen=True, slots=True)
class Trend:
    """As many replicas as a metric will need a little later, if it continues to rise as now.

    For a falling metric the present value counts: scaling down on a guess would be rash.

    Attributes:
        per_replica: what one replica can carry, in the metric's unit; above 0.
        metric: name of the metric, a sum over all replicas; default sessions.
        ahead: how far ahead the forecast is; default 2m.
        over: the time over which the rise is measured; default 5m.
    """

    per_replica: float
    metric: str = "sessions"
    ahead: timedelta = timedelta(minutes=2)
    over: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        # The error is reported on the parameter's line of the file.
        if not (math.isfinite(self.per_replica) and self.per_replica > 0):
            raise ParameterError("per_replica", f"must be above 0, not {self.per_replica}")
        if self.over <= timedelta(0):
            raise ParameterError("over", "must be above 0s")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it needs; a configuration without them is refused."""
        return (self.metric,)

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: a little more than the time over which the rise is measured."""
        return self.over * 1.5

    def evaluate(self, view: View) -> Recommendation:
        """The size for the metric's value `ahead` from now."""
        value = view.number(self.metric)
        if value is None or not math.isfinite(value):
            # A missing value is not zero: abstain, and nothing is scaled down.
            return Recommendation(None, Reason.MISSING, detail=f"no trusted reading of {self.metric}")
        before = self._before(view)
        if before is None:
            detail = f"{self.metric} has not been watched for {self.over.total_seconds():g} s yet"
            return Recommendation(None, Reason.LEARNING, {"value": value}, detail)
        at, earlier = before
        rise = max(0.0, value - earlier) * (self.ahead / (view.now - at.at))
        expected = min(value + rise, 1e300)
        most = view.limits.maximum
        size = most if expected >= most * self.per_replica else max(0, math.ceil(expected / self.per_replica))
        if size > view.current:
            reason = Reason.ABOVE
        elif size < view.current:
            reason = Reason.BELOW
        else:
            reason = Reason.STEADY
        detail = (
            f"{self.metric} is {value:g} and will be about {expected:g} in {self.ahead.total_seconds():g} s; "
            f"at {self.per_replica:g} per replica that takes {size}"
        )
        return Recommendation(size, reason, {"value": value, "expected": expected}, detail)

    def _before(self, view: View) -> tuple[Observation, float] | None:
        """The latest observation that is at least `over` old and has the metric, with its value."""
        for seen in reversed(view.past):
            reading = seen.metrics.get(self.metric)
            if seen.at > view.now - self.over or reading is None or not reading.finite():
                continue
            value = reading.value
            return seen, sum(value) / len(value) if isinstance(value, tuple) else value
        return None
