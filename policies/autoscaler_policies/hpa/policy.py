"""The Kubernetes HPA v2 as a policy: its metrics, its behavior, its memory of recommendations and changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from autoscaler.policy_api import (
    AMOUNT,
    ZERO,
    ParameterError,
    Range,
    Reading,
    Reason,
    Recommendation,
    Select,
    View,
)
from autoscaler_policies.hpa.rules import (
    LEGACY_WINDOW,
    MOST_USAGE,
    SCALE_DOWN,
    SCALE_UP,
    Condition,
    Event,
    MetricError,
    Outcome,
    Pod,
    PodState,
    Recommended,
    ScalingPolicy,
    ScalingRules,
    Sized,
    Tolerances,
    combined,
    controller,
    object_or_external_value,
    per_pod_value,
    pod_average_value,
    utilization_ratio,
)
from autoscaler_policies.shared.checks import FROM_0, METRIC, check
from autoscaler_policies.shared.readings import GAP
from autoscaler_policies.shared.recommend import format_number, missing, replicas, sized

MILLI = 1000
SHARE = 1_000_000  # parts of a request, if a reading is a share of it: finer than the percentage that counts
# With these limits the memory stays within the 1000 numbers that a policy may keep.
MOST_RECOMMENDATIONS = 300
MOST_EVENTS = 100

USAGE, REQUEST, READY = "usage", "request", "ready"
"""The numbers of a replica in `Reading.parts`: usage and request in the same unit, and ready (1) or not (0)."""


class MetricType(StrEnum):
    """How a size follows from a metric; the names follow `target.type` of an HPA."""

    UTILIZATION = "utilization"  # Resource, averageUtilization: percent of the request
    AVERAGE_VALUE = "average_value"  # Pods, or Resource with averageValue
    VALUE = "value"  # Object or External, value
    VALUE_PER_REPLICA = "value_per_replica"  # Object or External, averageValue


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and its target, as an entry of an HPA's `spec.metrics`.

    Attributes:
        type: `utilization`: the share of the request that replicas use; `average_value`: the average of the replicas;
            `value`: one number for all, whose ratio to the target multiplies the replicas that are up;
            `value_per_replica`: one number for all, which is divided by the target.
        metric: name of the metric.
        target: its wanted value; for `utilization` a whole percentage of 1 or more, although the metric is read from
            0 to 1; else in the metric's unit, 0.001 or more, since an HPA counts in thousandths.
    """

    type: MetricType
    metric: str
    target: float

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        if self.type is MetricType.UTILIZATION:
            if not 1 <= self.target < MOST_USAGE or self.target != int(self.target):
                raise ParameterError(
                    "target", f"is {self.target:g}, expected a whole percentage of the request, like 60"
                )
        elif not 1 / MILLI <= self.target < MOST_USAGE / MILLI:
            raise ParameterError(
                "target",
                f"is {self.target:g}, expected 0.001 or more and below {MOST_USAGE / MILLI:.1e}: "
                "an HPA counts in thousandths",
            )

    def __str__(self) -> str:
        """The name of the metric, which the configuration takes as a required one."""
        return self.metric

    def size(self, view: View, reading: Reading, tolerances: Tolerances) -> Sized:
        """The size that the metric asks for.

        Raises:
            MetricError: no size follows from this reading.
        """
        current, ready = view.current, view.ready
        if self.type is MetricType.UTILIZATION:
            return utilization_ratio(current, int(self.target), _pods(view, reading, SHARE), tolerances)
        target = _units(self.target, MILLI)
        if self.type is MetricType.AVERAGE_VALUE:
            return pod_average_value(current, target, _pods(view, reading, MILLI), tolerances)
        values = [_units(number, MILLI) for number in _numbers(reading)]
        if self.type is MetricType.VALUE_PER_REPLICA:
            # The original uses the number of existing pods: while pods start, that would undo the requested size.
            return per_pod_value(current, target, values, tolerances)
        found = object_or_external_value(current, ready, target, values, tolerances)
        if found.usage > target and found.replicas < current:
            # The original multiplies the few pods that are up, and would remove starting ones during an overload.
            return Sized(current, found.usage)
        return found


@dataclass(frozen=True, slots=True)
class _Rules(ScalingRules):
    def __post_init__(self) -> None:
        if not self.policies:
            raise ParameterError("policies", "is empty, expected at least one")


@dataclass(frozen=True, slots=True)
class ScaleUp(_Rules):
    """`behavior.scaleUp` of an HPA.

    Attributes:
        stabilization_window: scale up to the smallest size asked for within it; default 0s.
        select_policy: which of the policies counts: max, min, or disabled for no change upwards; default max.
        policies: the rate limits; default 4 pods in 15s and 100 percent in 15s.
    """

    stabilization_window: timedelta = SCALE_UP.stabilization_window
    select_policy: Select = SCALE_UP.select_policy
    policies: tuple[ScalingPolicy, ...] = SCALE_UP.policies


@dataclass(frozen=True, slots=True)
class ScaleDown(_Rules):
    """`behavior.scaleDown` of an HPA.

    Attributes:
        stabilization_window: scale down to the largest size asked for within it; default 5m.
        select_policy: which of the policies counts: max, min, or disabled for no change downwards; default max.
        policies: the rate limits; default 100 percent in 15s.
    """

    stabilization_window: timedelta = SCALE_DOWN.stabilization_window
    select_policy: Select = SCALE_DOWN.select_policy
    policies: tuple[ScalingPolicy, ...] = SCALE_DOWN.policies


@dataclass(frozen=True, slots=True)
class Behavior:
    """`behavior` of an HPA.

    Attributes:
        scale_up: the rules for scaling up; default those of an HPA.
        scale_down: the rules for scaling down; default those of an HPA.
    """

    scale_up: ScaleUp = ScaleUp()
    scale_down: ScaleDown = ScaleDown()

    @property
    def rules(self) -> tuple[ScalingRules, ScalingRules]:
        """The rules up and down."""
        return self.scale_up, self.scale_down


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is remembered between two evaluations.

    Attributes:
        log: recommendations, oldest first; None: the controller has just started.
        events: changes of size, oldest first; signed, in replicas.
        gap: whether too little was observed recently to use the recommendations.
    """

    log: tuple[Recommended, ...] | None
    events: tuple[Event, ...]
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Hpa:
    """Does what a Kubernetes HorizontalPodAutoscaler (autoscaling/v2) with the same specification would do.

    The arithmetic is that of pkg/controller/podautoscaler, rounding included; see `hpa.rules`. The cluster's `min`,
    `max` and `interval` are its minReplicas, maxReplicas and sync period. The largest size that a metric asks for
    counts; a metric that cannot be read forbids fewer replicas. Recommendations and changes of size are remembered,
    also across a restart. Without a memory it starts with the present size and does not scale down before its window
    has passed.

    Attributes:
        metrics: the metrics and their targets, as `spec.metrics` of an HPA; at least one.
        behavior: as `spec.behavior` of an HPA, with its defaults for omitted fields. Without it, as for an HPA: scale
            down to the largest size asked for within 5m, and scale up to at most twice the size, or 4, at a time.
        tolerance_up: share above the target that is ignored; default 0.1.
        tolerance_down: share below the target that is ignored; default 0.1; 1 or more: never scale down.
    """

    lookback: ClassVar[timedelta] = ZERO

    metrics: tuple[Metric, ...]
    behavior: Behavior | None = None
    tolerance_up: float = 0.1
    tolerance_down: float = 0.1

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ParameterError("metrics", "is empty, expected at least one metric with its target")
        check(self, "tolerance_up tolerance_down", *FROM_0)

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics."""
        return {metric.metric: AMOUNT for metric in self.metrics}

    def learn(self, view: View) -> Mapping[str, float]:
        """Remember what is recommended now, and by how much the size has changed."""
        return self._turn(view)[0]

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """The targets of averages. Those of utilizations are percentages, and those of values are for all replicas."""
        return tuple((one.metric, one.target) for one in self.metrics if one.type is MetricType.AVERAGE_VALUE)

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that the HPA would set."""
        return self._turn(view)[1]

    def _turn(self, view: View) -> tuple[Mapping[str, float], Recommendation]:
        """One evaluation by the controller: the new memory, and the recommendation."""
        before = self._recall(view)
        found: list[Sized | None] = []
        words: list[str] = []
        failed: list[str] = []
        inputs: dict[str, float] = {}
        tolerances = Tolerances(self.tolerance_down, self.tolerance_up)
        for metric in self.metrics:
            reading = view.metrics.get(metric.metric)
            one: Sized | None = None
            if reading is None:
                failed.append(metric.metric)
            else:
                try:
                    one = metric.size(view, reading, tolerances)
                except MetricError as error:
                    words.append(f"{metric.metric}: {error}")
                else:
                    inputs[metric.metric] = _shown(one)
                    words.append(_describe(view, metric, reading, one))
            found.append(one)
        proposals = [None if one is None else one.replicas for one in found]
        log = before.log
        desired = combined(view.current, proposals)
        if log is not None and before.gap and desired is not None:
            # In the original the window could be empty by now, and the first reading would lower the size. Scaling up
            # is delayed by nothing that does not delay it there.
            log = (*log, Recommended(max(view.current, desired), ZERO))
        outcome = controller(
            view.current,
            view.limits.minimum,
            view.limits.maximum,
            proposals,
            log,
            None if self.behavior is None else self.behavior.rules,
            [event for event in before.events if event.change > 0],
            [Event(-event.change, event.age) for event in before.events if event.change < 0],
        )
        return self._remember(view, before, outcome), self._answer(view, outcome, inputs, words, failed)

    def _answer(
        self, view: View, outcome: Outcome, inputs: dict[str, float], words: Sequence[str], failed: Sequence[str]
    ) -> Recommendation:
        condition = outcome.condition
        if condition is Condition.DISABLED:
            detail = "scaling is disabled, as by an HPA: the size is 0 and min is above 0"
            return Recommendation(None, Reason.ABSTAINED, {}, detail)
        if condition is Condition.HOLD:
            texts = [*words, *([missing(view, *failed).detail] if failed else [])]
            return Recommendation(None, Reason.MISSING, {}, "; ".join(texts))
        size = outcome.replicas
        if outcome.desired is None:
            return sized(view, size, {}, f"the size {view.current} is {condition}: {replicas(size)}")
        inputs["desired"] = float(outcome.desired)
        texts = [*words, *([f"{', '.join(failed)} cannot be read"] if failed else [])]
        texts.append(f"{replicas(outcome.desired)} asked for")
        if outcome.stabilized:
            texts.append("limited by earlier recommendations (stabilization window)")
        texts.append(f"{replicas(size)} ({condition})")
        return sized(view, size, inputs, "; ".join(texts))

    @property
    def _windows(self) -> tuple[timedelta, timedelta]:
        if self.behavior is None:
            return ZERO, LEGACY_WINDOW
        return self.behavior.scale_up.stabilization_window, self.behavior.scale_down.stabilization_window

    def _recall(self, view: View) -> _Memory:
        """The memory, with the change of size since then.

        A change that was asked for counts as made right after that evaluation, as in the HPA; any other change as made
        now.
        """
        memory = view.memory
        if not memory.keys() >= {"turn_at", "size", "asked"}:
            return _Memory(None, ())
        now = view.now.timestamp()
        log = tuple(Recommended(int(size), age) for size, age in _dated(memory, "recommended", now))
        events = tuple(Event(int(change), age) for change, age in _dated(memory, "changed", now))
        size, asked = int(memory["size"]), int(memory["asked"])
        change = view.current - size
        if change:
            ours = (asked - size) * change > 0
            events = (*events, Event(change, _age(now, memory["turn_at"]) if ours else ZERO))
        if "seen_at" not in memory:
            return _Memory(None, events)
        unseen = _age(now, memory["seen_at"])
        return _Memory(log, events, unseen > max(view.spec.interval * GAP, self._windows[1] / 2))

    def _remember(self, view: View, before: _Memory, outcome: Outcome) -> Mapping[str, float]:
        now = view.now.timestamp()
        memory = {"turn_at": now, "size": float(view.current), "asked": float(outcome.replicas)}
        seen = view.memory.get("seen_at") if outcome.desired is None else now
        if seen is not None:  # until the first reading, every evaluation is a first one
            memory["seen_at"] = seen
        log = _needed(outcome.log, *self._windows)
        memory |= _written("recommended", [(one.replicas, one.age) for one in log], now)
        longest = ZERO
        if self.behavior is not None:
            policies = (*self.behavior.scale_up.policies, *self.behavior.scale_down.policies)
            longest = max(policy.period for policy in policies)
        events = [event for event in before.events if event.age < longest]
        while len(events) > MOST_EVENTS:
            events[:2] = [Event(events[0].change + events[1].change, events[1].age)]
        return memory | _written("changed", [(event.change, event.age) for event in events], now)


def _needed(log: Sequence[Recommended], up: timedelta, down: timedelta) -> list[Recommended]:
    """The recommendations that can still decide, oldest first.

    If a later one is as small (or as large), an earlier one never decides again, as it leaves the window first.
    """
    kept: list[Recommended] = []
    least, greatest = math.inf, -math.inf
    oldest_first = sorted(log, key=lambda one: one.age, reverse=True)  # stable for equal ages
    for one in reversed(oldest_first):
        smaller, greater = one.replicas < least, one.replicas > greatest
        least, greatest = min(least, one.replicas), max(greatest, one.replicas)
        if (smaller and one.age <= up) or (greater and one.age <= down):
            kept.append(one)
    kept.reverse()
    while len(kept) > MOST_RECOMMENDATIONS:
        # Merge two into the larger size with the younger age: scaling down is later, scaling up earlier.
        kept[:2] = [Recommended(max(kept[0].replicas, kept[1].replicas), kept[1].age)]
    return kept


def _age(now: float, at: float) -> timedelta:
    """The time since `at`, to the microsecond."""
    return timedelta(seconds=now - at)


def _dated(memory: Mapping[str, float], name: str, now: float) -> list[tuple[float, timedelta]]:
    """Numbers with their ages, in the order they were written."""
    keys = [key for key in memory if key.startswith(f"{name}_") and not key.endswith("_at")]
    return [(memory[key], _age(now, memory[f"{key}_at"])) for key in keys if f"{key}_at" in memory]


def _written(name: str, entries: Sequence[tuple[int, timedelta]], now: float) -> dict[str, float]:
    memory = {}
    for index, (number, age) in enumerate(entries):
        memory[f"{name}_{index}"] = float(number)
        memory[f"{name}_{index}_at"] = now - age.total_seconds()
    return memory


def _numbers(reading: Reading) -> tuple[float, ...]:
    averaged = reading.averaged
    return averaged if isinstance(averaged, tuple) else (averaged,)


def _units(number: float, scale: int) -> int:
    """A number in whole parts, rounded up as a Kubernetes quantity is, and limited to the largest one.

    First it is rounded to a thousandth of a part: 20.666 x 1000 is 20666.000000000004 in floats.
    """
    parts = number * scale
    if abs(parts) >= MOST_USAGE:
        return MOST_USAGE if parts > 0 else -MOST_USAGE
    return math.ceil(round(parts, 3))


def _replicas(reading: Reading) -> Mapping[str, Mapping[str, float]]:
    """The numbers of each replica in a reading; empty if its parts are something else.

    Parts with a request but no usage are replicas without a measurement: then the value of the reading does not count.
    """
    return reading.parts if any(USAGE in part or REQUEST in part for part in reading.parts.values()) else {}


def _silent(view: View, reading: Reading) -> int:
    """How many replicas are up without a reading."""
    reported = _replicas(reading)
    if reported:
        up = [part for part in reported.values() if part.get(READY, 1.0)]
        return sum(USAGE not in part for part in up) + max(view.ready - len(up), 0)
    averaged = reading.averaged
    return max(view.ready - len(averaged), 0) if isinstance(averaged, tuple) else 0


def _pods(view: View, reading: Reading, scale: int) -> list[Pod]:
    """The replicas as pods: with a reading, up without a reading, or not up."""
    reported = _replicas(reading)
    if reported:
        return _parts(view, reported)
    request, averaged = scale, reading.averaged
    if isinstance(averaged, tuple):
        pods = [Pod(_units(number, scale), request) for number in averaged]
        silent = view.ready - len(pods)
    else:
        # The mean of all that are up.
        pods = [Pod(_units(averaged, scale), request, count=view.ready)] if view.ready else []
        silent = 0
    return _complete(view, pods, silent, request)


def _complete(view: View, pods: list[Pod], silent: int, request: int | None) -> list[Pod]:
    """The pods, plus those that are up without a reading and those that are starting."""
    if silent > 0:
        pods = [*pods, Pod(None, request, count=silent)]
    starting = view.current - max(view.ready, sum(pod.count for pod in pods))
    if starting > 0:
        pods = [*pods, Pod(None, request, PodState.PENDING, starting)]
    return pods


def _parts(view: View, reported: Mapping[str, Mapping[str, float]]) -> list[Pod]:
    pods = [
        Pod(
            _units(part[USAGE], MILLI) if USAGE in part else None,
            _units(part[REQUEST], MILLI) if REQUEST in part else None,
            PodState.READY if part.get(READY, 1.0) else PodState.UNREADY,
        )
        for part in reported.values()
    ]
    # An unknown request counts as the greatest one, which slows scaling down.
    request = max((pod.request for pod in pods if pod.request is not None), default=None)
    return _complete(view, pods, view.ready - sum(pod.state is PodState.READY for pod in pods), request)


def _shown(one: Sized) -> float:
    """The number that was compared: a percentage, or a value in the metric's unit."""
    return float(one.utilization) if one.utilization is not None else one.usage / MILLI


def _describe(view: View, metric: Metric, reading: Reading, one: Sized) -> str:
    unit = "%" if one.utilization is not None else ""
    text = f"{metric.metric} {format_number(_shown(one))}{unit} at target {format_number(metric.target)}{unit}"
    if metric.type in {MetricType.UTILIZATION, MetricType.AVERAGE_VALUE} and (silent := _silent(view, reading)):
        text = f"{text}, no value of {replicas(silent)}"
    return f"{text}: {replicas(one.replicas)}"
