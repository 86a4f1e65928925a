"""How Flink's autoscaler decides from its measurements, as pure functions.

`autoscaler.core.dataflow` computes what the vertices of a job could process and must process; this module computes
which parallelism they get. The rules of both are those of the Flink Kubernetes operator 1.16 (module flink-autoscaler),
number for number; each docstring names the class and method it follows. Numbers are doubles as in Java: an unknown
number is NaN, a comparison with NaN is false, and a division by zero gives an infinity or NaN. Points in time are
seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import ClassVar

from autoscaler.policy_api import dataflow

NAN = math.nan
MOST = 2**31 - 1
"""The largest int of Java. It stands for a limit that is not set."""

_SECOND = timedelta(seconds=1)
_THOUSANDTH = Decimal("0.001")
_COARSE = 2.0**43  # from here on doubles are further apart than a thousandth


class Alignment(StrEnum):
    """How a parallelism is aligned with key groups or source partitions.

    The first three are the values of `job.autoscaler.scaling.parallelism-alignment.mode`, the others those of the
    deprecated `job.autoscaler.scaling.key-group.partitions.adjust.mode`, the default before 1.16.
    """

    BALANCED = "BALANCED"  # the next parallelism that gives the fullest subtask less, a divisor or not
    EVENLY_SPREAD = "EVENLY_SPREAD"  # the next divisor
    OFF = "OFF"
    LEGACY_EVENLY_SPREAD = "LEGACY_EVENLY_SPREAD"
    LEGACY_MAXIMIZE_UTILISATION = "LEGACY_MAXIMIZE_UTILISATION"


_LEGACY = frozenset({Alignment.LEGACY_EVENLY_SPREAD, Alignment.LEGACY_MAXIMIZE_UTILISATION})
_LOOSE = frozenset({Alignment.BALANCED, Alignment.LEGACY_MAXIMIZE_UTILISATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parameters that the decision about a vertex depends on; `FlinkOperator` explains them."""

    rounded_from: ClassVar[float] = -math.inf
    """Capacities below this, records/s, are not rounded to whole numbers, and rates below it not to thousandths; the
    original rounds all of them."""

    utilization_target: float = 0.7
    target_utilization_boundary: float = 0.3
    utilization_max: float | None = None
    utilization_min: float | None = None
    catch_up_duration: timedelta = timedelta(minutes=30)
    scale_down_interval: timedelta = timedelta(hours=1)
    scale_down_max_factor: float = 0.6
    scale_up_max_factor: float = 100_000.0
    vertex_min_parallelism: int = 1
    vertex_max_parallelism: int = 200
    scaling_parallelism_alignment_mode: Alignment = Alignment.BALANCED
    scaling_effectiveness_detection_enabled: bool = False
    scaling_effectiveness_threshold: float = 0.1
    observed_scalability_enabled: bool = False
    observed_scalability_min_observations: int = 3
    observed_scalability_coefficient_min: float = 0.5

    @property
    def upper(self) -> float:
        """The utilization above which a vertex needs more subtasks."""
        target, most = self.utilization_target, self.utilization_max
        return target + self.target_utilization_boundary if most is None else most

    @property
    def lower(self) -> float:
        """The utilization below which a vertex needs fewer subtasks."""
        target, least = self.utilization_target, self.utilization_min
        return target - self.target_utilization_boundary if least is None else least


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The measured numbers of one vertex.

    Attributes:
        parallelism: its number of subtasks.
        target: records/s it must process.
        true_rate: records/s it could process with these subtasks; NaN: unknown.
        max_parallelism: its number of key groups.
        partitions: partitions of its source; 0: none, or not reported.
        keyed: whether one of its inputs is distributed by key.
    """

    parallelism: int
    target: dataflow.TargetRate
    true_rate: float
    max_parallelism: int = MOST
    partitions: int = 0
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """One past change of a vertex: `ScalingSummary`.

    Attributes:
        at: when it was made.
        parallelism: the parallelism before.
        new_parallelism: the parallelism after.
        true_rate: records/s it could process before.
        expected_rate: records/s it was expected to process after.
    """

    at: float
    parallelism: int
    new_parallelism: int
    true_rate: float
    expected_rate: float = NAN


@dataclass(frozen=True, slots=True)
class Wanted:
    """A lower parallelism that was wanted at a time, and whether the vertex was outside its band then."""

    at: float
    parallelism: int
    outside: bool


@dataclass(frozen=True, slots=True)
class Delayed:
    """A scale down that waits: `DelayedScaleDown.VertexDelayedScaleDownInfo`.

    Attributes:
        since: when a lower parallelism was first wanted.
        wanted: the parallelisms wanted since then, oldest first; only those that are greater than all later ones.
    """

    since: float
    wanted: tuple[Wanted, ...] = ()

    def push(self, at: float, parallelism: int, outside: bool) -> Delayed:
        """Add the one wanted now: `recordRecommendedParallelism`. Earlier ones that are not above it are dropped."""
        kept = list(self.wanted)
        while kept and kept[-1].parallelism <= parallelism:
            kept.pop()
        return replace(self, wanted=(*kept, Wanted(at, parallelism, outside)))

    def within(self, start: float) -> Delayed:
        """Without the parallelisms that were wanted before a time."""
        return replace(self, wanted=tuple(one for one in self.wanted if one.at >= start))

    @property
    def greatest(self) -> Wanted:
        """The greatest wanted parallelism: `getMaxRecommendedParallelism`.

        Raises:
            IndexError: there is none.
        """
        return self.wanted[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The decision about a vertex.

    Attributes:
        parallelism: its new parallelism; the present one if nothing changes.
        outside: whether its true rate is outside the band of its utilization; False if nothing changes.
        expected_rate: records/s it is expected to process after the change; NaN if nothing changes.
        delayed: the waiting scale down, if any.
        why: why nothing changes although another parallelism was computed.
    """

    parallelism: int
    changed: bool = False
    outside: bool = False
    expected_rate: float = NAN
    delayed: Delayed | None = None
    why: str | None = None


# parallelism


def aligned(
    mode: Alignment,
    current: int,
    target: int,
    *,
    max_parallelism: int = MOST,
    partitions: int = 0,
    keyed: bool = False,
    lower: int = 1,
    upper: int = MOST,
) -> int:
    """Align a parallelism with key groups or partitions: `ParallelismAligner.align`.

    Only sources that report their partitions, and vertices with a keyed input, are aligned. The search goes up from the
    target: to the limits when scaling up, and at most to the present parallelism when scaling down. If it finds none,
    the present modes keep the target; the legacy modes go down to the next parallelism that gives the fullest subtask
    more, and block a change that would reverse the direction. `partitions` of 0: none, or unknown.
    """
    if partitions <= 0 and not keyed:
        return target
    count = partitions if partitions > 0 else max_parallelism
    if mode is Alignment.OFF:
        return target
    target = min(target, count)  # no more subtasks than partitions, since 1.16 (FLINK-40389)
    if target == current:
        return target
    rises = target > current
    most = min(count, max_parallelism, upper)
    share = count // target
    found = _next_divisor(count, target)
    if mode in _LOOSE and share:
        found = min(found, count // share + 1)  # the least that gives the fullest subtask less
    if found <= (most if rises else min(current, most)):
        return found
    if mode not in _LEGACY:
        return target
    back = count // (share + 1)  # the greatest that gives the fullest subtask more
    if back and count % back:
        back += 1
    back = max(back, lower)
    if (back <= current) if rises else (back >= current):
        return current
    return back


def _next_divisor(count: int, least: int) -> int:
    """The smallest divisor of `count` that is at least `least`; if there is none, a number above `count`."""
    found = count if least <= count else MOST + 1
    for small in range(1, math.isqrt(count) + 1):
        if count % small == 0:
            for divisor in (small, count // small):
                if least <= divisor < found:
                    found = divisor
    return found


def scaled(
    current: int,
    factor: float,
    mode: Alignment = Alignment.BALANCED,
    *,
    max_parallelism: int = MOST,
    partitions: int = 0,
    keyed: bool = False,
    lower: int = 1,
    upper: int = MOST,
) -> int:
    """The parallelism times a factor, rounded up, within its limits and aligned: `JobVertexScaler.scale`.

    Raises:
        ValueError: the lower limit is above the upper.
    """
    if lower > upper:
        raise ValueError(f"the lower limit ({lower}) must not be above the upper ({upper})")
    product = factor * current
    # Java converts NaN to 0 and larger numbers to its largest int.
    target = 0 if math.isnan(product) else MOST if product >= MOST else math.ceil(max(product, 0.0))
    target = min(max(lower, target), max_parallelism, upper)
    if target == current and not 0 < partitions < target:
        return target
    return aligned(
        mode,
        current,
        target,
        max_parallelism=max_parallelism,
        partitions=partitions,
        keyed=keyed,
        lower=lower,
        upper=upper,
    )


def scaling_coefficient(history: Sequence[Summary], observations: int = 3, least: float = 0.5) -> float:
    """How linearly a vertex has scaled, from `least` to 1: `JobVertexScaler.calculateObservedScalingCoefficient`.

    The least squares fit of rate = coefficient x parallelism x rate per subtask, rounded up to two digits. The rate per
    subtask is that of the last change from the smallest parallelism. The result is 1 for fewer than `observations`
    changes. `history` is oldest first.
    """
    if not history or len(history) < observations:
        return 1.0
    smallest = min(reversed(history), key=lambda one: one.parallelism)
    baseline = smallest.true_rate / smallest.parallelism
    products = squares = 0.0
    for one in history:
        products += one.parallelism * one.true_rate
        squares += float(one.parallelism) * one.parallelism
    fitted = dataflow.divided(products, squares * baseline)
    if math.isnan(baseline) or math.isnan(fitted):
        return 1.0
    return float(Decimal(repr(max(least, min(1.0, fitted)))).quantize(Decimal("0.01"), ROUND_CEILING))


# a vertex


def vertex_change(
    load: Load,
    settings: Settings,
    restart: timedelta = timedelta(0),
    *,
    history: Sequence[Summary] = (),
    delayed: Delayed | None = None,
    now: float = 0.0,
    backlog: bool = False,
) -> Change:
    """The decision about one vertex: `JobVertexScaler.computeScaleTargetParallelism`.

    `history` has its past changes, oldest first; `delayed` is its waiting scale down.
    """
    current = load.parallelism
    load = _rounded(load, settings.rounded_from)
    capacity = needed_capacity(load.target, settings, restart)
    if math.isnan(load.true_rate) or math.isnan(capacity):
        return Change(parallelism=current, delayed=delayed, why="its rates are not known")
    factor = dataflow.divided(capacity, load.true_rate)
    if settings.observed_scalability_enabled:
        least = settings.observed_scalability_coefficient_min
        factor /= scaling_coefficient(history, settings.observed_scalability_min_observations, least)
    if factor < 1 - settings.scale_down_max_factor:
        factor = 1 - settings.scale_down_max_factor
    elif factor > 1 + settings.scale_up_max_factor:
        factor = 1 + settings.scale_up_max_factor
    target = scaled(
        current,
        factor,
        settings.scaling_parallelism_alignment_mode,
        max_parallelism=load.max_parallelism,
        partitions=load.partitions,
        keyed=load.keyed,
        lower=min(current, settings.vertex_min_parallelism),
        upper=max(current, settings.vertex_max_parallelism),
    )
    if target == current:
        return Change(parallelism=current)
    outside = outside_band(load, settings, restart, backlog=backlog)
    if target < current:
        return _lowered(load, target, settings, outside, delayed, now)
    if history and (last := history[-1]).new_parallelism == current and last.new_parallelism > last.parallelism:
        gained = effectiveness(last, load.true_rate)
        if settings.scaling_effectiveness_detection_enabled and not gained >= settings.scaling_effectiveness_threshold:
            return Change(parallelism=current, why=f"the last scale up gained {gained:.0%} of what was expected")
    return _to(load, target, outside, None)


def _rounded(load: Load, least: float) -> Load:
    """The load with rates rounded to thousandths, so that the last digits of a mean do not cost a subtask."""
    target = load.target
    return replace(
        load,
        target=dataflow.TargetRate(rounded(target.rate, least), rounded(target.catch_up, least)),
        true_rate=rounded(load.true_rate, least),
    )


def rounded(value: float, least: float = -math.inf) -> float:
    """A rate rounded to thousandths, halves up, never to 0: `ScalingMetrics.roundMetric`. Unchanged below `least`."""
    if not least <= value or not -_COARSE < value < _COARSE:
        return value
    return float(Decimal(repr(value)).quantize(_THOUSANDTH, ROUND_HALF_UP)) or value


def _lowered(load: Load, target: int, settings: Settings, outside: bool, delayed: Delayed | None, now: float) -> Change:
    """Wait for the interval, then use the greatest parallelism wanted within it: `applyScaleDownInterval`."""
    interval = settings.scale_down_interval / _SECOND
    if interval <= 0:
        return _to(load, target, outside, None)
    start = now - interval
    delayed = (delayed or Delayed(now)).push(now, target, outside)
    if start < delayed.since:
        left = delayed.since - start
        return Change(
            parallelism=load.parallelism,
            delayed=delayed,
            why=f"parallelism {target} is enough, scaling down in {left:.0f} s at the earliest",
        )
    delayed = delayed.within(start)
    greatest = delayed.greatest
    return _to(load, greatest.parallelism, greatest.outside, delayed)


def _to(load: Load, parallelism: int, outside: bool, delayed: Delayed | None) -> Change:
    expected = load.true_rate * (parallelism / load.parallelism)
    return Change(parallelism=parallelism, changed=True, outside=outside, expected_rate=expected, delayed=delayed)


def outside_band(load: Load, settings: Settings, restart: timedelta, *, backlog: bool = False) -> bool:
    """Whether the true rate is outside the band of the utilization: `outsideUtilizationBound`."""
    up, down = thresholds(load.target, settings, restart, backlog=backlog)
    return load.true_rate < up or load.true_rate > down


def thresholds(
    target: dataflow.TargetRate, settings: Settings, restart: timedelta, *, backlog: bool = False
) -> tuple[float, float]:
    """The true rates below which a vertex needs more subtasks, and above which it needs fewer.

    As in `ScalingMetricEvaluator.computeProcessingRateThresholds`. While a backlog is processed, vertices may be busy
    all the time, and nothing is scaled down (the second rate is infinite).

    Returns:
        (scale up below, scale down above), records/s.
    """
    upper, lower = (1.0, 0.0) if backlog else (settings.upper, settings.lower)
    catch_up, least = settings.catch_up_duration, settings.rounded_from
    return (
        dataflow.target_capacity(target, upper, catch_up, rounded_from=least),
        dataflow.target_capacity(target, lower, catch_up, restart, rounded_from=least),
    )


def needed_capacity(target: dataflow.TargetRate, settings: Settings, restart: timedelta) -> float:
    """Records/s that a vertex must be able to process."""
    return dataflow.target_capacity(
        target, settings.utilization_target, settings.catch_up_duration, restart, rounded_from=settings.rounded_from
    )


def effectiveness(last: Summary, true_rate: float) -> float:
    """The share of the expected gain that a scale up has brought: `detectIneffectiveScaleUp`."""
    return dataflow.divided(true_rate - last.true_rate, last.expected_rate - last.true_rate)


def processing_backlog(lag: float, records_in: float, threshold: timedelta) -> bool:
    """Whether a source needs longer than `threshold` to process its lag: `ScalingMetricEvaluator.isProcessingBacklog`.

    `lag` is that of its last reading. If `records_in`, per second, is unknown, the result is False. The threshold
    counts in whole seconds.
    """
    return dataflow.divided(lag, records_in) > threshold // _SECOND


# a job


@dataclass(frozen=True, slots=True)
class Job:
    """The decision about a job.

    Attributes:
        changes: vertex -> the decision about it; excluded vertices are left out.
        released: whether the changes are made: at least one vertex that changes is outside its band.
    """

    changes: Mapping[str, Change]
    released: bool

    @property
    def changed(self) -> dict[str, Change]:
        """The changes that are made."""
        return {vertex: change for vertex, change in self.changes.items() if change.changed} if self.released else {}


def job_changes(
    loads: Mapping[str, Load],
    settings: Settings,
    restart: timedelta = timedelta(0),
    *,
    histories: Mapping[str, Sequence[Summary]] | None = None,
    delayed: Mapping[str, Delayed] | None = None,
    now: float = 0.0,
    backlog: bool = False,
    excluded: Iterable[str] = (),
) -> Job:
    """The decision about a whole job: `ScalingExecutor.computeScalingSummary`.

    Nothing changes while every vertex that would change is within its band. If one is outside, all changes are made.
    """
    left_out = frozenset(excluded)
    changes = {
        vertex: vertex_change(
            load,
            settings,
            restart,
            history=(histories or {}).get(vertex, ()),
            delayed=(delayed or {}).get(vertex),
            now=now,
            backlog=backlog,
        )
        for vertex, load in loads.items()
        if vertex not in left_out
    }
    return Job(changes, any(change.changed and change.outside for change in changes.values()))


def job_slots(groups: Iterable[tuple[int, int]]) -> int:
    """Slots with which every slot sharing group runs at the parallelism it needs.

    Reactive Mode gives all groups the same number of slots, up to the number that a group can use: so the neediest
    group decides. A group is given as the parallelism of its neediest vertex, and the most that its vertices can use.
    """
    known = tuple(groups)
    measure = max((needed for needed, _ in known), default=0)
    return sum(min(measure, max(most, needed)) for needed, most in known)


def exceeds_quota(
    now: Sequence[int],
    new: Sequence[int],
    slots_per_worker: int,
    *,
    worker_cpu: float = 0.0,
    worker_memory: float = 0.0,
    cpu: float | None = None,
    memory: float | None = None,
) -> bool:
    """Whether a change would need more than a quota: `ScalingExecutor.scalingWouldExceedResourceQuota`.

    The number of workers is rounded down here, unlike elsewhere in the original. A change that needs no more workers
    than now never exceeds a quota. `now` and `new` have the greatest parallelism among the changed vertices of each
    slot sharing group. None: no quota. Memory can have any unit, the same for both numbers.
    """
    workers = sum(new) // slots_per_worker
    if workers <= sum(now) // slots_per_worker:
        return False
    return (cpu is not None and workers * worker_cpu > cpu) or (memory is not None and workers * worker_memory > memory)


# time


def restart_time(
    seen: Iterable[float | None],
    configured: timedelta,
    *,
    tracked: bool = False,
    limit: timedelta = timedelta(minutes=15),
) -> timedelta:
    """How long a restart takes: `ScalingTracking.getMaxRestartTimeOrDefault`.

    Args:
        seen: seconds of past restarts; None: one that has not ended.
        configured: `restart.time`, which counts if no restart was seen; the limit does not apply to it.
        tracked: `restart.time-tracking.enabled`: the longest restart seen counts, in whole seconds.
        limit: `restart.time-tracking.limit`: upper limit of that time.
    """
    known = [math.floor(one) for one in seen if one is not None]
    if not tracked or not known:
        return configured
    return timedelta(seconds=min(max(known), limit // _SECOND))


def recent(
    ats: Sequence[float], now: float, age: timedelta, count: int, *, keep_last: bool = False
) -> tuple[float, ...]:
    """The last `count` times, oldest first, that are not older than `age`: `getTrimmedScalingHistory`.

    `keep_last` keeps the last time whatever its age, as `ScalingTracking.removeOldRecords` does.
    """
    kept = tuple(at for at in ats if at >= now - age / _SECOND)[-count:] if count > 0 else ()
    return kept or (tuple(ats[-1:]) if keep_last else ())
