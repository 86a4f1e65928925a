"""The capacity of a size: learned while the job is saturated, interpolated between the sizes seen.

Capacity is the "true processing rate" of the literature (DS2, OSDI 2018): records/s when the job is never idle.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from statistics import median

from autoscaler.core.censored import percentiles
from autoscaler.core.model import (
    PHASES,
    ClusterSpec,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Observation,
    Phase,
    Rescale,
    RescaleTimes,
    SizeCapacity,
)

_KEPT_DURATIONS = 8
_KEPT_TIMES = 32
STALL_GROWTH = 0.2
"""A stall grows with the number of added replicas to this power: they register one after another, and each merge window
stops the job again. In simulation it is 0 if one restart waits for all of them, and 0.3 to 0.6 for machines."""
_median = lru_cache(maxsize=4096)(median)  # every decision needs medians, and only a rescale changes them
_UNTIL_RUNNING = PHASES[1 : PHASES.index(Phase.CAUGHT_UP)]


def effective_slots(size: int, slots_per_replica: int, partitions: int | None) -> float:
    """How many fully used slots the slots of `size` replicas are worth.

    Equal tasks run in waves: P tasks on s slots take ceil(P / s) waves, so s slots do the work of P / ceil(P / s).
    """
    slots = size * slots_per_replica
    if not partitions or slots == 0:
        return float(slots)
    return partitions / -(-partitions // slots)


def source_partitions(spec: ClusterSpec, engine: EngineStatus | None, past: tuple[Observation, ...]) -> int | None:
    """Partitions that the engine reports or last reported; else those of a source's log; else those configured."""
    return _shown(spec, engine, past, "partitions") or _read(past) or spec.partitions


def _read(past: tuple[Observation, ...]) -> int | None:
    """Partitions of the widest log that a metric was read from, also if it cannot be read at present."""
    counts: dict[str, int] = {}
    for seen in reversed(past):
        for name, reading in seen.metrics.items():
            if reading.partitions and name not in counts:
                counts[name] = reading.partitions
        if not seen.missing:
            # This observation has all metrics: searching the whole past at every decision would be slow.
            break
    return max(counts.values()) if counts else None


def usable_slots(spec: ClusterSpec, engine: EngineStatus | None, past: tuple[Observation, ...]) -> int | None:
    """The most slots the job can use, or None when nothing limits it."""
    partitions = source_partitions(spec, engine, past)
    key_groups = _shown(spec, engine, past, "max_parallelism")
    if not key_groups:
        return partitions
    return key_groups if partitions is None else min(partitions, key_groups)


def beyond_use(spec: ClusterSpec, engine: EngineStatus | None, past: tuple[Observation, ...]) -> str:
    """A text that says by how much the maximum exceeds what the job can use, or the empty string."""
    usable = usable_slots(spec, engine, past)
    slots = spec.limits.maximum * spec.slots_per_replica
    if not usable or slots - usable < spec.slots_per_replica:
        return ""
    return f"max {spec.limits.maximum} gives {slots} slots, of which the job can use {usable}"


def _shown(spec: ClusterSpec, engine: EngineStatus | None, past: tuple[Observation, ...], name: str) -> int | None:
    """A number of the job. The last known one counts while the engine cannot be polled or the job is starting."""
    now: int | None = None if engine is None else getattr(engine, name)
    if now or not spec.engine or (engine is not None and engine.job is JobState.RUNNING):
        return now
    for seen in reversed(past):
        before: int | None = None if seen.engine is None else getattr(seen.engine, name)
        if before:
            return before
    return None


def rate(learned: Learned, spec: ClusterSpec, size: int, partitions: int | None) -> float | None:
    """Records/s that `size` replicas process when busy, or None when nothing is known.

    Between two measured sizes the rate is interpolated over effective slots; outside them it is proportional to the
    nearest. A larger size never gets a lower rate than a smaller one: if it was measured lower, the higher rate counts.
    """
    spr = spec.slots_per_replica
    table = learned.capacity
    if not table:
        per_replica = spec.capacity.per_replica
        return None if per_replica is None else per_replica * effective_slots(size, spr, partitions) / spr
    at = effective_slots(size, spr, partitions)
    low_slots, low_rate = 0.0, 0.0
    best = 0.0
    for known in sorted(table):
        best = max(best, table[known].rate)
        slots = effective_slots(known, spr, partitions)
        if slots > at:
            return low_rate + (best - low_rate) * (at - low_slots) / (slots - low_slots)
        low_slots, low_rate = slots, best
    return low_rate * at / low_slots


def learn_rate(learned: Learned, spec: ClusterSpec, size: int, throughput: float, at: datetime) -> Learned:
    """Add the throughput of a saturated job to the table, as a moving average per size.

    Rates of other sizes that contradict it are dropped, as a smaller size cannot process more, nor a larger one less:
    they were measured when a record cost more or less than now.
    """
    if size < 1 or throughput <= 0:
        return learned
    known = learned.capacity.get(size)
    if known is None:
        new = SizeCapacity(throughput, at, 1)
    else:
        average = known.rate + spec.capacity.memory * (throughput - known.rate)
        new = SizeCapacity(average, at, known.samples + 1)
    kept = {
        other: figure
        for other, figure in learned.capacity.items()
        if (figure.rate <= new.rate if other < size else figure.rate >= new.rate)
    }
    return Learned({**kept, size: new}, learned.durations, learned.memory, learned.times)


def learn_durations(learned: Learned, rescale: Rescale) -> Learned:
    """Add the durations of a settled rescale, and keep the last few per direction and phase."""
    seen = learned.durations.get(rescale.direction, {})
    merged = dict(seen)
    for phase, seconds in rescale.durations.items():
        merged[phase] = (*seen.get(phase, ()), seconds)[-_KEPT_DURATIONS:]
    return replace(learned, durations={**learned.durations, rescale.direction: merged})


def learn_times(learned: Learned, direction: Direction, times: RescaleTimes) -> Learned:
    """Add the times of a rescale, and keep those of the last rescales in its direction."""
    kept = (*learned.times.get(direction, ()), times)[-_KEPT_TIMES:]
    return replace(learned, times={**learned.times, direction: kept})


def restart_time(learned: Learned, direction: Direction) -> float | None:
    """Median seconds from a request in that direction until the job runs with the new size; None: never seen."""
    times = learned.times.get(direction)
    if times:
        return _median_start(times)
    phases = learned.durations.get(direction)
    if not phases:
        return None
    seconds = 0.0
    for phase in _UNTIL_RUNNING:
        seen = phases.get(phase)
        if seen:
            seconds += _median(seen)
    return seconds


def stall_time(learned: Learned, direction: Direction, replicas: int | None = None) -> float | None:
    """Median seconds that the job stands still for a rescale in that direction; None: never seen.

    Args:
        learned: what was learned.
        direction: up or down. Removed replicas stop at once, so their number does not lengthen the stall.
        replicas: number of added replicas; None: as many as were usually added at a time.
    """
    times = learned.times.get(direction)
    growth = 0.0 if replicas is None or direction is Direction.DOWN else STALL_GROWTH
    of_one = _median_stall(times, growth) if times else None
    return of_one and of_one * math.pow(replicas or 1, growth)


@lru_cache(maxsize=4096)  # see `_median`
def _median_start(times: tuple[RescaleTimes, ...]) -> float | None:
    found = percentiles([(each.ran_after, each.ran_before) for each in times])
    return found and found[0]


@lru_cache(maxsize=4096)
def _median_stall(times: tuple[RescaleTimes, ...], growth: float) -> float | None:
    begins, ends = [], []
    for stopped_after, stopped_before, ran_after, ran_before, replicas in times:
        if stopped_after is not None and stopped_before is not None:
            one = math.pow(max(replicas, 1), -growth)
            begins.append((one * stopped_after, one * stopped_before))
            ends.append((one * max(ran_after, stopped_after), one * ran_before))
    found = percentiles(ends, begins)
    return found and found[0]
