"""KEDA's Kafka scaler with the HPA behind it: lag divided by a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from autoscaler.policy_api import (
    AMOUNT,
    MOST_LEARNED,
    ZERO,
    ParameterError,
    Range,
    Reading,
    Reason,
    Recommendation,
    View,
    expression,
    source_partitions,
)
from autoscaler_policies.keda.rules import (
    HPA_TOLERANCE,
    NOTHING_COMMITTED,
    Behaviour,
    Reset,
    hpa_average_size,
    milli,
    next_factor,
    safe_fallback_size,
    safe_partition_lag,
    safe_size,
)
from autoscaler_policies.shared.checks import ABOVE_0, FINITE, FROM_0, FROM_0S, METRIC, at_least, check
from autoscaler_policies.shared.recommend import finite, format_number, missing, replicas, sized

OFFSET = "offset"
ACTIVE = "active_at"  # when a trigger was last active, or could not be read
MOST_FAILURES = 1_000_000  # counting stops here


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A metric with the lag, and how many replicas this lag asks for: the metadata of a `kafka` trigger.

    Attributes:
        metric: name of the metric with the records waiting, a sum or one number per partition; default lag.
        lag_threshold: records per replica; above 0; default 10.
        activation_lag_threshold: the trigger is active above this number of records; default 0.
        name: its name in the formula; default: the metric's name.
        offset_reset_policy: where a group without a committed offset begins: latest or earliest; default latest.
            Used only if the source reports the offset and the end of each partition.
        scale_to_zero_on_invalid_offset: whether a partition without a committed offset has no lag; default false.
        allow_idle_consumers: whether there may be more replicas than partitions; default false.
        limit_to_partitions_with_lag: whether only partitions with lag count for that; default false.
        ensure_even_distribution_of_partitions: whether the partitions must divide evenly among replicas; default false.
        exclude_persistent_lag: whether partitions whose offset stands still do not count for the size; default false.
            Needs a source that reports offsets; without them nothing is left out.
        persistent_after: how long the offset must have stood still; default 5m, as a job may commit only at its
            checkpoints; 0s: from one reading to the next, as KEDA does.
    """

    metric: str = "lag"
    lag_threshold: float = 10.0
    activation_lag_threshold: float = 0.0
    name: str = ""
    offset_reset_policy: Reset = Reset.LATEST
    scale_to_zero_on_invalid_offset: bool = False
    allow_idle_consumers: bool = False
    limit_to_partitions_with_lag: bool = False
    ensure_even_distribution_of_partitions: bool = False
    exclude_persistent_lag: bool = False
    persistent_after: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        check(self, "metric", *METRIC)
        check(self, "lag_threshold", *ABOVE_0)
        check(self, "activation_lag_threshold", *FROM_0)
        if self.allow_idle_consumers and self.limit_to_partitions_with_lag:
            raise ParameterError(
                "allow_idle_consumers", "is set together with limit_to_partitions_with_lag, expected one"
            )
        check(self, "persistent_after", *FROM_0S)

    @property
    def label(self) -> str:
        """Its name in the formula."""
        return self.name or self.metric


@dataclass(frozen=True, slots=True)
class Fallback:
    """The size while a trigger keeps failing.

    Attributes:
        replicas: the size for that time, and for a formula that gives nil; 0 or more.
        failure_threshold: failures in a row that are tolerated; default 3.
        behavior: static, currentReplicas, currentReplicasIfHigher, currentReplicasIfLower, or scalingModifiers: the
            failing trigger is nil in the formula; default static. None of them lowers the size.
    """

    replicas: int
    failure_threshold: int = 3
    behavior: Behaviour = Behaviour.STATIC

    def __post_init__(self) -> None:
        check(self, "replicas failure_threshold", *at_least(0))


@dataclass(frozen=True, slots=True)
class _Lag:
    """The known lag of a trigger.

    Attributes:
        lag: the lag that counts for the size; None: unknown.
        whole: the lag that counts for activation.
        partitions: partitions of the log; None: unknown.
        bound: the most replicas that the partitions allow; None: any number.
        complete: whether the whole lag is known; if not, `lag` is a lower bound.
    """

    lag: float | None
    whole: float
    partitions: int | None
    bound: int | None
    complete: bool

    def cut(self, trigger: Trigger) -> float | None:
        """The lag, limited to what the largest usable number of replicas handles; None: not all of it is known."""
        if self.lag is None or not self.complete:
            return None
        lag = self.lag
        if trigger.ensure_even_distribution_of_partitions and self.partitions is not None:
            lag = next_factor(lag, self.partitions, trigger.lag_threshold) * trigger.lag_threshold
        return finite(lag if self.bound is None else min(lag, self.bound * trigger.lag_threshold))


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaLag:
    """As many replicas as a lag asks for, computed as KEDA's Kafka scaler and the HPA do it.

    size = ceil(lag / threshold), at most one replica per partition, and no change within the tolerance. The largest
    size of all triggers counts, or the result of a formula over their lags.

    Lag is not a load metric: see the documentation before you use this for a job that did not come from KEDA.

    Attributes:
        triggers: the metrics to read, with their thresholds; at least one.
        formula: computes one number from all triggers, by their names, as `scalingModifiers.formula`; default none.
        target: the wanted number of the formula per replica; needed with a formula, above 0.
        activation_target: active while the formula's number is above this; default 0.
        fallback: the size while a trigger keeps failing; default none.
        active_minimum: the fewest replicas while a trigger is active; otherwise the cluster's `min` holds; default 1.
        cooldown: the size goes to the cluster's `min` when no trigger has been active for this long; default 5m.
        tolerance: share of the threshold or target that is ignored; default 0.1, the HPA's.
    """

    lookback: ClassVar[timedelta] = ZERO

    triggers: tuple[Trigger, ...]
    formula: str = ""
    target: float | None = None
    activation_target: float = 0.0
    fallback: Fallback | None = None
    active_minimum: int = 1
    cooldown: timedelta = timedelta(minutes=5)
    tolerance: float = HPA_TOLERANCE

    def __post_init__(self) -> None:
        labels = [trigger.label for trigger in self.triggers]
        if not labels:
            raise ParameterError("triggers", "is empty, expected at least one")
        if len(set(labels)) < len(labels):
            raise ParameterError("triggers", f"have the names {', '.join(labels)}, expected different ones")
        if self.formula and self.target is None:
            raise ParameterError("target", "is missing, expected the wanted number of the formula per replica")
        if not self.formula and self.target is not None:
            raise ParameterError("target", f"is {self.target:g} without a formula, expected both or none")
        check(self, "target", *ABOVE_0)
        self._check_formula(labels)
        check(self, "activation_target", *FINITE)
        check(self, "active_minimum", *at_least(1))
        check(self, "cooldown", *FROM_0S)
        check(self, "tolerance", *FROM_0)

    def _check_formula(self, labels: list[str]) -> None:
        if not self.formula:
            if self.fallback is not None and self.fallback.behavior is Behaviour.MODIFIERS:
                raise ParameterError("fallback", "has the behavior scalingModifiers, expected a formula with it")
            return
        odd = next(
            (one for one in labels if not (one.isascii() and one.isidentifier()) or one in expression.WORDS), None
        )
        if odd is not None:
            raise ParameterError(
                "triggers", f"have the name {odd!r}, expected one of letters, digits and _ for the formula"
            )
        try:
            names = expression.Expression(self.formula).names
        except ValueError as error:
            raise ParameterError("formula", f"{error}") from error
        for name, column in names.items():
            if name not in labels:
                raise ParameterError(
                    "formula", f"column {column}: there is no trigger {name!r}; triggers: {', '.join(labels)}"
                )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics it reads."""
        return tuple(dict.fromkeys(trigger.metric for trigger in self.triggers))

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of its metrics. A formula may compute with negative numbers, as in KEDA."""
        return {} if self.formula else dict.fromkeys(self.metrics, AMOUNT)

    def learn(self, view: View) -> Mapping[str, float]:
        """Keep failures in a row, when a trigger was last active, and the offsets of partitions."""
        found = self._read(view)
        memory: dict[str, float] = {}
        for trigger in self.triggers:
            name = f"{trigger.label} failures"
            memory[name] = 0.0 if found[trigger.label].complete else min(view.memory.get(name, 0.0) + 1, MOST_FAILURES)
        now = view.now.timestamp()
        memory[ACTIVE] = now if self._active(found) else view.memory.get(ACTIVE, now)
        for trigger in self.triggers:
            reading = view.metrics.get(trigger.metric)
            if reading is None or not trigger.exclude_persistent_lag:
                continue
            offsets = {part: numbers[OFFSET] for part, numbers in reading.parts.items() if OFFSET in numbers}
            if len(memory) + 2 * len(offsets) > MOST_LEARNED:
                continue  # too many partitions to remember: keep none, so no partition's lag is left out
            at = reading.at.timestamp()
            for part, offset in offsets.items():
                name = f"{trigger.label}/{part}"
                stands = view.memory.get(f"{name} {OFFSET}") == offset
                memory[f"{name} {OFFSET}"] = offset
                memory[f"{name} since_at"] = view.memory.get(f"{name} since_at", at) if stands else at
        return memory

    def evaluate(self, view: View) -> Recommendation:
        """Ask for the size that the lag needs."""
        found = self._read(view)
        failing = tuple(trigger for trigger in self.triggers if not found[trigger.label].complete)
        inputs = {label: finite(lag.lag) for label, lag in found.items() if lag.lag is not None}
        try:
            size, why = self._by_formula(view, found, failing) if self.formula else self._by_trigger(view, found)
        except ValueError as error:
            return Recommendation(None, Reason.MISSING, inputs, f"the formula {error}")
        if size is None or (failing and size < view.current):
            return missing(view, *dict.fromkeys(trigger.metric for trigger in failing))
        idle = view.limits.minimum
        if self.active_minimum > idle:
            if not self._active(found) and self._rested(view):
                return sized(view, idle, inputs, f"{why}; no trigger is active: {replicas(idle)}")
            size = max(size, self.active_minimum)
        return sized(view, size, inputs, why)

    def _rested(self, view: View) -> bool:
        """Whether the size is already the minimum, or the last activity is long enough ago."""
        now = view.now.timestamp()
        passed = ACTIVE in view.memory and now - view.memory[ACTIVE] >= self.cooldown.total_seconds()
        return passed or view.current <= view.limits.minimum

    def _active(self, found: Mapping[str, _Lag]) -> bool:
        """Whether a trigger is active, or may be: one that cannot be read counts as active."""
        if not all(lag.complete for lag in found.values()):
            return True
        if not self.formula:
            return any(found[trigger.label].whole > trigger.activation_lag_threshold for trigger in self.triggers)
        try:
            value = self._compute(found)
        except ValueError:
            return True
        return value is None or value > self.activation_target

    def _by_trigger(self, view: View, found: Mapping[str, _Lag]) -> tuple[int | None, str]:
        """The largest size that a trigger asks for; None: no trigger asks for one."""
        sizes: list[tuple[int, str]] = []
        for trigger in self.triggers:
            lag = found[trigger.label]
            if lag.lag is not None:
                even = lag.partitions if trigger.ensure_even_distribution_of_partitions else None
                size = safe_size(
                    lag.lag, trigger.lag_threshold, view.current, bound=lag.bound, even=even, tolerance=self.tolerance
                )
                limit = "" if lag.bound is None else f", at most {lag.bound} can be used"
                what = f"{trigger.label} {format_number(lag.lag)} at {format_number(trigger.lag_threshold)} per replica"
                sizes.append((size, f"{what}: {replicas(size)}{limit}"))
            if not lag.complete and self.fallback is not None and self._fallen(view, trigger):
                sizes.append(self._fall_back(view, self.fallback, f"{trigger.label} keeps failing"))
        return max(sizes, key=lambda asked: asked[0], default=(None, ""))

    def _by_formula(
        self, view: View, found: Mapping[str, _Lag], failing: tuple[Trigger, ...]
    ) -> tuple[int | None, str]:
        """The size that the formula asks for; None: it cannot be computed.

        Raises:
            ValueError: it has no value for these numbers.
        """
        fallback = self.fallback
        if failing:
            if fallback is None or not all(self._fallen(view, trigger) for trigger in failing):
                return None, ""
            if fallback.behavior is not Behaviour.MODIFIERS:
                return self._fall_back(view, fallback, f"{failing[0].label} keeps failing")
        value = self._compute(found)
        if value is None:
            return (None, "") if fallback is None else self._fall_back(view, fallback, "the formula gives nil")
        target = self.target or 1.0
        size = hpa_average_size(value, target, view.current, self.tolerance)
        return (
            size,
            f"the formula gives {format_number(value)} at {format_number(target)} per replica: {replicas(size)}",
        )

    def _fallen(self, view: View, trigger: Trigger) -> bool:
        """Whether a trigger has failed more often than is tolerated."""
        failures = view.memory.get(f"{trigger.label} failures", 0.0)
        return self.fallback is not None and failures > self.fallback.failure_threshold

    @staticmethod
    def _fall_back(view: View, fallback: Fallback, why: str) -> tuple[int, str]:
        size = safe_fallback_size(fallback.behavior, view.current, fallback.replicas)
        return size, f"{why}, falls back to {replicas(size)}"

    def _compute(self, found: Mapping[str, _Lag]) -> float | None:
        """The result of the formula; before, each lag is limited to what the partitions allow, as in KEDA."""
        values = {trigger.label: found[trigger.label].cut(trigger) for trigger in self.triggers}
        value = expression.Expression(self.formula).compute(values)
        return None if value is None else milli(value)

    def _read(self, view: View) -> Mapping[str, _Lag]:
        return {trigger.label: _read(trigger, view) for trigger in self.triggers}


def _read(trigger: Trigger, view: View) -> _Lag:
    """The known lag of a trigger. A negative number counts as unknown."""
    reading = view.metrics.get(trigger.metric)
    if reading is None:
        return _Lag(None, 0.0, None, None, complete=False)
    averaged = reading.averaged
    parts = {part: numbers for part, numbers in reading.parts.items() if "lag" in numbers or OFFSET in numbers}
    if parts:
        lags = [_part_lag(trigger, numbers) for numbers in parts.values()]
        stand = [trigger.exclude_persistent_lag and _stands(trigger, view, reading, part) for part in parts]
    elif isinstance(averaged, tuple):
        lags = [number if number >= 0 else None for number in averaged]
        stand = [False] * len(lags)
    else:
        known = averaged >= 0
        partitions = reading.partitions or source_partitions(view.spec, view.engine, view.past)
        return _Lag(averaged if known else None, averaged, partitions, _bound(trigger, partitions, None), known)
    there = [lag for lag in lags if lag is not None]
    counted = [lag for lag, stands in zip(lags, stand, strict=True) if lag is not None and not stands]
    partitions = reading.partitions or len(lags)
    complete = len(there) >= partitions and len(there) == len(lags)
    # Partitions without a known lag may have lag as well.
    with_lag = sum(lag > 0 for lag in counted) + max(partitions - len(there), 0)
    bound = _bound(trigger, partitions, with_lag)
    return _Lag(finite(sum(counted)) if there else None, finite(sum(there)), partitions, bound, complete)


def _bound(trigger: Trigger, partitions: int | None, with_lag: int | None) -> int | None:
    """The most replicas that partitions allow; None: nothing limits them."""
    if trigger.limit_to_partitions_with_lag:
        return partitions if with_lag is None else with_lag
    return None if trigger.allow_idle_consumers and not trigger.ensure_even_distribution_of_partitions else partitions


def _part_lag(trigger: Trigger, numbers: Mapping[str, float]) -> float | None:
    """The lag of one partition, from the numbers that the source reports."""
    if "lag" in numbers:
        return numbers["lag"] if numbers["lag"] >= 0 else None
    return safe_partition_lag(
        numbers[OFFSET],
        numbers.get("end"),
        trigger.offset_reset_policy,
        zero_on_invalid=trigger.scale_to_zero_on_invalid_offset,
    )


def _stands(trigger: Trigger, view: View, reading: Reading, part: str) -> bool:
    """Whether the offset of a partition has stood still for long enough, over at least two readings."""
    offset = reading.parts[part].get(OFFSET, NOTHING_COMMITTED)
    since = view.memory.get(f"{trigger.label}/{part} since_at")
    if since is None or offset == NOTHING_COMMITTED or view.memory[f"{trigger.label}/{part} {OFFSET}"] != offset:
        return False
    age = reading.at.timestamp() - since
    return age > 0 and age >= trigger.persistent_after.total_seconds()
