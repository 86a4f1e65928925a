"""The arithmetic of the Kubernetes HPA: as many replicas as bring a metric to its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from autoscaler.policy_api import AMOUNT, ZERO, Range, Reason, Recommendation, View
from autoscaler_policies.shared.checks import ABOVE_0, FROM_0, METRIC, check
from autoscaler_policies.shared.recommend import are, finite, format_number, missing, replicas, sized, whole


class Mode(StrEnum):
    """The meaning of a metric with a single number."""

    AVERAGE = "average"  # the value of an average replica, or a utilization
    TOTAL = "total"  # the sum over all replicas


@dataclass(frozen=True, slots=True)
class TargetTracking:
    """Keeps a metric per replica, or a utilization, at a target.

    size = ceil(replicas x value / target), and no change while value / target is within the tolerance: the
    algorithm of https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details

    A metric with one number per replica is averaged whatever the mode; if the source knows the mean of the whole job,
    that counts. For scaling up, replicas without a number count as 0; for scaling down, those that are up count as
    being at the target. If that would reverse the direction, the size stays. This also holds for single numbers: a
    value above the target never asks for fewer replicas, and a value below it never for more.

    Attributes:
        metric: name of the metric.
        target: what the metric should be per replica, in the metric's unit (a utilization: 0 to 1); above 0.
        mode: meaning of a single number: `average`, the value of an average replica, or `total`, the sum over all
            replicas; default average.
        tolerance_up: share above the target that is ignored; default 0.1.
        tolerance_down: share below the target that is ignored; default 0.1; 1 or more: never scale down.
    """

    lookback: ClassVar[timedelta] = ZERO

    metric: str
    target: float
    mode: Mode = Mode.AVERAGE
    tolerance_up: float = 0.1
    tolerance_down: float = 0.1

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        check(self, "target", *ABOVE_0)
        check(self, "tolerance_up tolerance_down", *FROM_0)

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The level that it compares its metric with; none for a sum, since a sum of shares may be above 1."""
        return () if self.mode is Mode.TOTAL else ((self.metric, self.target),)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it reads."""
        return (self.metric,)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {self.metric: AMOUNT}

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that brings the metric to its target."""
        reading = view.metrics.get(self.metric)
        if reading is None:
            return missing(view, self.metric)
        current, ready, value = view.current, view.ready, reading.averaged
        if isinstance(value, tuple):
            ratio, count = self._fill(value, current, ready)
            usage = finite(sum(value) / len(value))
        elif self.mode is Mode.TOTAL:
            usage = value
            count = max(current, 1)
            ratio = value / self.target / count
        else:
            usage = value
            count = ready if current else 1
            ratio = value / self.target
        inputs = {self.metric: usage, "target": self.target, "replicas": float(count), "ratio": finite(ratio)}
        if not count:
            return Recommendation(
                None, Reason.ABSTAINED, inputs, f"no replica is up that {self.metric} could be an average of"
            )
        what = f"{self.metric} {format_number(usage)} at target {format_number(self.target)}"
        if current and 1 - self.tolerance_down <= ratio <= 1 + self.tolerance_up:
            return sized(
                view,
                current,
                inputs,
                f"{what}: ratio {ratio:.3f} is within the tolerance, {replicas(current)} {are(current)} kept",
            )
        wanted = whole(ratio * count)
        if current and (wanted < current if ratio > 1 else wanted > current):
            return sized(
                view,
                current,
                inputs,
                f"{what}: ceil({count} ready x {ratio:.3f}) would change the direction, "
                f"{replicas(current)} {are(current)} kept",
            )
        return sized(view, wanted, inputs, f"{what}: ceil({count} x {ratio:.3f}) = {replicas(wanted)}")

    def _fill(self, values: tuple[float, ...], current: int, ready: int) -> tuple[float, int]:
        """Ratio to the target, and the number of replicas it averages, with replicas without a number filled in."""
        reported = len(values)
        total = sum(values)
        ratio = total / reported / self.target
        if ratio > 1:
            count = max(reported, ready, current)
            filled = total / count / self.target
            # a ratio below 1 would reverse the direction: exactly 1 keeps the size
            return (max(filled, 1.0), count)
        if ready > reported:
            return ((total + (ready - reported) * self.target) / ready / self.target, ready)
        return (ratio, ready or reported)
