"""Rules of thumb: a metric beyond a bound for a time moves the size by a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from autoscaler.policy_api import AMOUNT, ZERO, ParameterError, Range, Reading, Reason, Recommendation, View
from autoscaler_policies.shared.checks import ABOVE_0, FINITE, FROM_0S, METRIC, at_least, check
from autoscaler_policies.shared.readings import GAP, MARGIN
from autoscaler_policies.shared.recommend import finite, format_number, missing, replicas, sized


class Aggregate(StrEnum):
    """How one number per replica becomes one number."""

    MEAN = "mean"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One metric beyond a bound for a time, and the step it then asks for.

    Attributes:
        metric: name of the metric.
        above: the rule holds while the metric is above this, in the metric's unit. One of above and below.
        below: the rule holds while the metric is below this, in the metric's unit.
        hold: the rule fires when it has held at every observation for this long; default 0s: at once.
        replicas: step in replicas; default 1 when percent is not given either.
        percent: step in percent of the present size, rounded up, at least one replica.
        aggregate: how the numbers of a metric with one number per replica become one: mean, max or min; default mean.
    """

    metric: str
    above: float | None = None
    below: float | None = None
    hold: timedelta = ZERO
    replicas: int | None = None
    percent: float | None = None
    aggregate: Aggregate = Aggregate.MEAN

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        if (self.above is None) == (self.below is None):
            raise ParameterError("above", f"is {self.above} and below is {self.below}, expected exactly one of the two")
        check(self, "above below", *FINITE)
        check(self, "hold", *FROM_0S)
        if self.replicas is not None and self.percent is not None:
            raise ParameterError("replicas", "is given together with percent, expected at most one of the two")
        check(self, "replicas", *at_least(1))
        check(self, "percent", *ABOVE_0)

    @property
    def bound(self) -> float:
        """The number with which the metric is compared."""
        return self.above if self.above is not None else self.below  # type: ignore[return-value]  # one is set

    @property
    def range(self) -> tuple[float, float]:
        """The rule holds between these numbers, both excluded: infinities and NaN are never within."""
        return (self.above, math.inf) if self.above is not None else (-math.inf, self.bound)

    def step(self, size: int) -> int:
        """How many replicas the step is at a size, at least 1."""
        if self.percent is None:
            return self.replicas or 1
        # 1e-9: a product like 55.00000000000001 stands for a whole number
        return max(1, math.ceil(min(size * self.percent / 100, 1e9) - 1e-9))

    def number(self, reading: Reading) -> float:
        """The one number of a reading that is compared with the bound."""
        value = reading.value
        if not isinstance(value, tuple):
            return value
        if self.aggregate is Aggregate.MAX:
            return max(value)
        if self.aggregate is Aggregate.MIN:
            return min(value)
        return finite(sum(value) / len(value)) if reading.mean is None else reading.mean

    def beyond(self, number: float) -> bool:
        """Whether a number is beyond the bound; the bound itself is not."""
        return number > self.above if self.above is not None else number < self.below  # type: ignore[operator]

    def held(self, view: View) -> bool:
        """Whether every observation of the last `hold` was beyond the bound, and none is missing.

        Without a hold, the present number is enough, which the caller has checked.

        After a gap between observations that exceeds both `max_age` and `GAP` intervals, the hold starts again.
        """
        if not self.hold:
            return True
        metric = self.metric
        low, high = self.range
        max_age = view.spec.max_age
        gap = max(max_age, view.spec.interval * GAP)
        ahead = -view.spec.max_ahead
        begin = view.now - self.hold
        later = view.now
        for seen in reversed(view.past):
            at = seen.at
            if not ZERO <= later - at <= gap:
                return False
            reading = seen.metrics.get(metric)
            if reading is None or not ahead <= at - reading.at <= max_age:
                return False
            value = reading.value
            if isinstance(value, tuple):
                if not reading.finite():
                    return False
                value = self.number(reading)
            if not low < value < high:
                return False
            if at <= begin:
                return True
            later = at
        return False

    def text(self, number: float) -> str:
        """The rule in words, with the present number."""
        side = "above" if self.above is not None else "below"
        span = f" for {self.hold.total_seconds():g} s" if self.hold else ""
        return f"{self.metric} {format_number(number)} {side} {format_number(self.bound)}{span}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Steps up or down while a metric is beyond a bound for a time.

    If several rules fire, the one that asks for the largest size counts. Down rules count only if no up rule fires and
    every metric of every rule can be trusted. A metric with one number per replica counts for a down rule only if every
    replica that is up has a number. A negative reading counts as missing if all bounds of its metric are 0 or more, one
    is above 0, and no up rule is for low values. If no rule fires, the policy asks for the present size. Without down
    rules it abstains instead, unless an up rule is beyond its bound but not yet for long enough.

    Attributes:
        up: rules that ask for more replicas; default none.
        down: rules that ask for fewer replicas; default none.
    """

    up: tuple[Rule, ...] = ()
    down: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if not self.up and not self.down:
            raise ParameterError("up", "has no rule and neither has down, expected at least one rule")
        for i, rule in enumerate(self.down, 1):
            if rule.percent is not None and rule.percent > 100:  # noqa: PLR2004 - percent
                raise ParameterError("down", f"percent of rule {i} is {rule.percent:g}, expected at most 100")
            for j, other in enumerate(self.up, 1):
                if (other.metric, other.aggregate) != (rule.metric, rule.aggregate):
                    continue
                if rule.below is not None and other.above is not None and rule.below >= other.above:
                    raise ParameterError(
                        "down",
                        f"below of rule {i} is {rule.below:g}, expected less than above ({other.above:g}) of "
                        f"rule {j} of up on the same metric, otherwise the two rules scale up and down in turn",
                    )
                if rule.above is not None and other.below is not None and rule.above <= other.below:
                    raise ParameterError(
                        "down",
                        f"above of rule {i} is {rule.above:g}, expected more than below ({other.below:g}) of "
                        f"rule {j} of up on the same metric, otherwise the two rules scale up and down in turn",
                    )

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The levels with which it compares its metrics."""
        return tuple((rule.metric, rule.bound) for rule in (*self.up, *self.down))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it reads."""
        return tuple(dict.fromkeys(rule.metric for rule in (*self.up, *self.down)))

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics: a metric with a bound above 0 and no bound below 0 is an amount.

        This does not hold if a low value asks for more replicas: then it would not be safe to treat it as missing.
        """
        least: dict[str, float] = {}
        most: dict[str, float] = {}
        for metric, bound in self.levels:
            least[metric] = min(bound, least.get(metric, bound))
            most[metric] = max(bound, most.get(metric, bound))
        urgent = {rule.metric for rule in self.up if rule.below is not None}
        return {metric: AMOUNT for metric in least if least[metric] >= 0 < most[metric] and metric not in urgent}

    @property
    def lookback(self) -> timedelta:
        """How much of the past it needs: the longest hold and the observation before it."""
        longest = max(rule.hold for rule in (*self.up, *self.down))
        return longest + MARGIN if longest else ZERO

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that the rules give."""
        inputs: dict[str, float] = {}
        absent: list[str] = []
        current = view.current

        size, why, waiting = current, "", False
        for rule in self.up:
            number = _read(rule, view, inputs, absent)
            if number is None or not rule.beyond(number):
                continue
            waiting = True
            wanted = current + rule.step(current)
            if wanted > size and rule.held(view):
                size, why = wanted, rule.text(number)
        if why:
            return sized(view, size, inputs, f"{why}: {replicas(current)} + {size - current}")

        largest = -1
        for rule in self.down:
            number = _read(rule, view, inputs, absent, ready=view.ready)
            if (
                number is not None
                and rule.beyond(number)
                and (wanted := max(0, current - rule.step(current))) > largest
                and rule.held(view)
            ):
                largest, why = wanted, rule.text(number)
        if absent:
            return missing(view, *dict.fromkeys(absent))
        if why:
            return sized(view, largest, inputs, f"{why}: {replicas(current)} - {current - largest}")
        readings = ", ".join([f"{name} {format_number(number)}" for name, number in inputs.items()])
        if self.down or waiting:
            return sized(view, current, inputs, f"no rule fires: {readings}")
        # Rules for scaling up alone must not hold back another policy that asks for fewer.
        return Recommendation(None, Reason.ABSTAINED, inputs, f"no rule fires: {readings}")


def _read(rule: Rule, view: View, inputs: dict[str, float], absent: list[str], ready: int = 0) -> float | None:
    """The present number of a rule's metric, which is added to `inputs`; without one, its name is added to `absent`."""
    reading = view.metrics.get(rule.metric)
    if reading is None or (reading.mean is None and isinstance(reading.value, tuple) and len(reading.value) < ready):
        absent.append(rule.metric)
        return None
    number = rule.number(reading)
    name = rule.metric if rule.aggregate is Aggregate.MEAN else f"{rule.metric} {rule.aggregate}"
    inputs[name] = number
    return number
