"""Compute the profile of one cluster from its minutes and rescales. Uses no Spark, since it runs in Python workers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, TypeGuard

import numpy as np

from autoscaler.core.capacity import effective_slots
from autoscaler.core.censored import Percentiles, percentiles
from autoscaler.core.model import Cause, Direction
from autoscaler.core.workload_profile import Curve, Profile, Spread, Summary
from autoscaler.history import capacity_fit, seasonality
from autoscaler.history.findings import Evidence, list_findings
from autoscaler.history.minutes import GAP, Flags, Minutes, Numbers, Rescaled

MINUTE_S = 60.0
WARM_S = 120.0
"""Seconds to ignore after a restart: caches are cold, the backlog is processed, and means still include the stall."""
MAX_REPLICAS = 10_000
MAX_RATIO = 1e9
"""Maximum of arrivals over the capacity of one replica; powers of it are still finite."""
LATEST = 300
"""At most this many rescales in a direction, the last ones, are used for their times."""
MIN_KNOWN = 0.5
"""A figure is computed only if its input is known for this share of the time."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a profile.

    Attributes:
        made_at: the present time.
        objective: seconds; records that wait longer are late.
        holidays: days to exclude from the season.
        time_zones: cluster -> the time zone of its days; the empty name is for all other clusters, by default UTC.
    """

    made_at: datetime
    objective: float = 60.0
    holidays: Collection[date] = ()
    time_zones: Mapping[str, str] = field(default_factory=dict)


def build_profile(
    cluster: str,
    minutes: Minutes,
    rescales: Sequence[Rescaled],
    options: ProfileOptions,
    notes: Mapping[str, Any] | None = None,
) -> Profile:
    """Compute the profile of a cluster from its minutes, in order and at least one, and its rescales.

    `notes` are facts from other data: `renamed_to`, `renamed_from` and `skew_s`.
    """
    rescales = sorted(rescales, key=lambda rescale: rescale.at)
    partitions = _last(minutes.partitions)
    slots = _slots(minutes)
    curve = capacity_fit.fit(*_samples(minutes, partitions, slots))
    needed = _needed(minutes.arrivals, curve, partitions, slots)
    time_zone = options.time_zones.get(cluster) or options.time_zones.get("", "UTC")
    season = seasonality.fit_season(minutes.minute * MINUTE_S, minutes.arrivals, options.holidays, time_zone)
    times = rescale_times(rescales)
    done = _summary(minutes, rescales, needed)
    evidence = Evidence(
        cluster=cluster,
        minutes=minutes,
        rescales=rescales,
        times=times,
        curve=curve,
        needed=needed,
        useful=_useful(minutes, partitions, slots),
        partitions=partitions,
        notes=notes or {},
    )
    return Profile(
        cluster=cluster,
        made_at=options.made_at,
        begin=_time(float(np.nanmin(minutes.first))),
        end=_time(float(np.nanmax(minutes.last))),
        observations=int(minutes.observations.sum()),
        capacity=curve,
        times=times,
        season=season.season,
        errors=season.errors,
        done=done,
        findings=list_findings(evidence),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _last(column: Numbers) -> int | None:
    """The last value above 0."""
    known = column[np.isfinite(column) & (column > 0)]
    return int(known[-1]) if len(known) else None


def _slots(minutes: Minutes) -> int:
    """The slots of one replica."""
    known = np.isfinite(minutes.slots) & (minutes.slots > 0) & (minutes.least > 0) & (minutes.least == minutes.most)
    if not known.any():
        return 1
    return max(round(float(np.median(minutes.slots[known] / minutes.least[known]))), 1)


def _workers(sizes: Numbers, partitions: int | None, slots: int) -> Numbers:
    """The effective replicas of each size: if partitions do not divide evenly, some replicas are idle."""
    if not partitions:
        return sizes
    known = {size: effective_slots(int(size), slots, partitions) / slots for size in np.unique(sizes[sizes > 0])}
    return np.array([known.get(size, 0.0) for size in sizes])


# Capacity


def _samples(minutes: Minutes, partitions: int | None, slots: int) -> tuple[Numbers, ...]:
    """The minutes in which the job ran undisturbed, as arguments of `capacity_fit.fit`."""
    quiet = _undisturbed(minutes)
    size = minutes.least[quiet]
    busy = np.where(minutes.behind == 1.0, 1.0, minutes.utilization)[quiet]
    long = minutes.hours[quiet] * 60.0
    at = minutes.minute[quiet] * MINUTE_S
    return size, minutes.throughput[quiet], busy, at, long, _workers(size, partitions, slots)


def _undisturbed(minutes: Minutes) -> Flags:
    """Whether a minute shows the steady throughput of a size, not a transient."""
    same: Flags = (minutes.least == minutes.most) & (minutes.least >= 1) & ~(minutes.stopped > 0)
    if not len(same):
        return same
    apart = np.diff(minutes.minute, prepend=-math.inf)
    same &= apart <= GAP * minutes.every
    same[1:] &= minutes.most[1:] == minutes.most[:-1]
    disturbed = np.where(same, -math.inf, minutes.minute)
    last = np.maximum.accumulate(disturbed)
    begun = minutes.first - np.where(np.isfinite(minutes.running_since), minutes.running_since, -math.inf)
    # A start after the observation (begun < 0) means that the clocks differ by an unknown time.
    quiet: Flags = same & ((minutes.minute - last) * MINUTE_S >= WARM_S) & ((begun >= WARM_S) | (begun < 0))
    return quiet


def _needed(arrivals: Numbers, curve: Curve | None, partitions: int | None, slots: int) -> Numbers:
    """The smallest size that can process the arrivals, at least 1; NaN if it is not known."""
    if curve is None or not np.isfinite(arrivals).any():
        return np.full(len(arrivals), math.nan)
    workers = min(float(np.nanmax(arrivals)) / curve.rate, MAX_RATIO) ** (1.0 / curve.exponent)
    most = math.ceil(min(workers, MAX_REPLICAS))
    if partitions:
        most = min(max(most, 1) * 2, -(-partitions // slots), MAX_REPLICAS)
    sizes = np.arange(1.0, max(most, 1) + 1)
    capacity = curve.rate * _workers(sizes, partitions, slots) ** curve.exponent
    capacity = np.maximum.accumulate(capacity)
    size = np.minimum(np.searchsorted(capacity, arrivals, side="left") + 1.0, sizes[-1])
    return np.where(np.isfinite(arrivals), size, math.nan)


def _useful(minutes: Minutes, partitions: int | None, slots: int) -> Numbers:
    """The smallest size that can process as much as the actual size."""
    if not partitions:
        return minutes.paid
    sizes = np.arange(1.0, -(-partitions // slots) + 1)
    capacity = _workers(sizes, partitions, slots)
    actual = _workers(np.round(minutes.paid), partitions, slots)
    size = np.searchsorted(capacity, actual, side="left") + 1.0
    return np.where(np.isfinite(minutes.paid), np.minimum(size, minutes.paid), minutes.paid)


# Times


def rescale_times(rescales: Sequence[Rescaled]) -> dict[Direction, dict[str, Spread]]:
    """How long the phases of rescales other than losses take, each counted from the end of the previous phase."""
    times: dict[Direction, dict[str, Spread]] = {}
    for direction in Direction:
        mine = [each for each in rescales if each.direction == direction and each.cause != Cause.LOSS]
        spreads = {
            "start_up": _start_ups(mine[-LATEST:]),
            "absorb": _spread([_after(each.absorbed_s, each.ready_s) for each in mine]),
            "stall": _stalls(mine[-LATEST:]),
            "catch_up": _spread([_after(each.caught_up_s, each.absorbed_s, each.ready_s) for each in mine]),
        }
        known = {name: spread for name, spread in spreads.items() if spread is not None}
        if known:
            times[direction] = known
    return times


def _start_ups(rescales: Sequence[Rescaled]) -> Spread | None:
    ends = [
        (each.ready_s, each.ready_s)
        if each.ready_after_s is None
        else (each.ready_after_s, 2 * each.ready_s - each.ready_after_s)
        for each in rescales
        if _is_time(each.ready_s)
    ]
    return _counted(percentiles(ends), len(ends))


def _stalls(rescales: Sequence[Rescaled]) -> Spread | None:
    begins, ends = [], []
    for each in rescales:
        if _is_time(each.stall_s):
            after, before = each.stopped_after_s or 0.0, each.stopped_before_s or 0.0
            begins.append((after, before))
            ends.append(((after + before) / 2 + each.stall_s,) * 2)
    return _counted(percentiles(ends, begins), len(ends))


def _after(end: float | None, *before: float | None) -> float | None:
    """Seconds from the latest of some times to `end`; at least 0."""
    if end is None:
        return None
    return max(end - max([0.0, *(begin for begin in before if begin is not None)]), 0.0)


def _spread(seconds: Sequence[float | None]) -> Spread | None:
    known = [(each, each) for each in seconds if _is_time(each)]
    return _counted(percentiles(known), len(known))


def _counted(found: Percentiles | None, count: int) -> Spread | None:
    return None if found is None else Spread(*found, count)


def _is_time(seconds: float | None) -> TypeGuard[float]:
    return seconds is not None and math.isfinite(seconds) and seconds >= 0


# Cost and lateness


def _summary(minutes: Minutes, rescales: Sequence[Rescaled], needed: Numbers) -> Summary | None:
    hours = minutes.hours
    whole = float(hours.sum())
    paid = np.isfinite(minutes.paid)
    if not paid.any():
        return None
    bought = float((hours * minutes.paid)[paid].sum())
    both = paid & np.isfinite(needed)
    # Scale `needed` up to the time in which the size is known, as for `bought`, so that both figures are comparable.
    share = float(hours[both].sum()) / float(hours[paid].sum())
    late = np.isfinite(minutes.late)
    known = float(hours[late].sum())
    changes = sum(1 for each in rescales if each.cause != Cause.LOSS) or _changes(minutes)
    return Summary(
        bought,
        float((hours * needed)[both].sum()) / share if hours[both].sum() >= MIN_KNOWN * whole else None,
        float((hours * minutes.late)[late].sum()) / known if known >= MIN_KNOWN * whole else None,
        changes / whole,
    )


def _changes(minutes: Minutes) -> int:
    """How often the size changed; used if no rescales are recorded."""
    sizes = minutes.most[np.isfinite(minutes.most) & (minutes.least == minutes.most)]
    return int((np.diff(sizes) != 0).sum())
