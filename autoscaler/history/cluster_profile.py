"""The profile of one cluster, from its minutes and its rescales. No Spark here: this runs in its Python workers.

A minute is what a minute of observations comes to: however often a cluster was looked at, it has at most as many rows
as minutes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.core.capacity import effective_slots
from autoscaler.core.model import Cause, Direction
from autoscaler.core.workload_profile import Curve, Done, Profile, Spread
from autoscaler.history import capacity_fit
from autoscaler.history import seasonality as season
from autoscaler.history.findings import Seen, found

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

MINUTE_S = 60.0
WARM_S = 120.0
"""After a restart caches are cold, the backlog is worked off, and averages still hold the time of the stall."""
GAP = 3
"""So many times the usual time between two looks is a gap: what happened in it nobody knows."""
MOST_REPLICAS = 10_000
MOST_RATIO = 1e9
"""Of arrivals to what one replica does: its powers are still numbers."""
KNOWN = 0.5
"""At least this share of the time must be known before a number is said to be that of all of it."""


@dataclass(frozen=True, slots=True)
class Minutes:
    """Minutes of one cluster, in order of time: equally long columns, NaN where nothing is known.

    Attributes:
        minute: minutes since 1970. Rates that are means over a while count for the middle of that while.
        looks: observations.
        first, last: the times of the first and the last of them, seconds since 1970.
        least, most: the least and greatest size: replicas wanted, and ready ones.
        paid: replicas, mean.
        arrivals, throughput, utilization, lag: means.
        late: share of the looks in which the oldest record was older than the objective.
        behind: share in which the job did all it could and more arrived.
        stopped: share in which the job did not run.
        since: when the job last began to run, seconds since 1970.
        slots, partitions: of the engine.
    """

    minute: Numbers
    looks: Numbers
    first: Numbers
    last: Numbers
    least: Numbers
    most: Numbers
    paid: Numbers
    arrivals: Numbers
    throughput: Numbers
    utilization: Numbers
    lag: Numbers
    late: Numbers
    behind: Numbers
    stopped: Numbers
    since: Numbers
    slots: Numbers
    partitions: Numbers

    @property
    def hours(self) -> Numbers:
        """How long each stands for: until the next, but no longer than usual."""
        every = self.every
        if not len(self.minute):
            return self.minute
        until = np.append(np.diff(self.minute), every)
        return np.where(until > GAP * every, every, until) / 60.0

    @property
    def every(self) -> float:
        """Minutes from one to the next, usually; at least 1."""
        apart = np.diff(self.minute)
        return max(float(np.median(apart)), 1.0) if len(apart) else 1.0


COLUMNS = tuple(column.name for column in fields(Minutes))


@dataclass(frozen=True, slots=True)
class Rescaled:
    """One rescale, as in the table `rescales`; times in seconds."""

    at: float
    before: int
    after: int
    direction: str
    cause: str
    ready_s: float | None = None
    absorbed_s: float | None = None
    stall_s: float | None = None
    caught_up_s: float | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What profiles are made of.

    Attributes:
        made_at: the time now.
        objective: seconds; records that wait longer are too late.
        holidays: days that do not count for the usual week.
    """

    made_at: datetime
    objective: float = 60.0
    holidays: Collection[date] = ()


def made(
    cluster: str, minutes: Minutes, rescales: Sequence[Rescaled], asked: Asked, notes: Mapping[str, Any] | None = None
) -> Profile:
    """All that minutes and rescales of a cluster tell; there is at least one minute.

    Args:
        cluster: its name.
        minutes: its minutes, in order.
        rescales: its rescales.
        asked: what was asked for.
        notes: what is known from elsewhere: `renamed_to`, `renamed_from` and `skew_s`.
    """
    rescales = sorted(rescales, key=lambda rescale: rescale.at)
    partitions = _last(minutes.partitions)
    slots = _slots(minutes)
    curve = capacity_fit.fit(*_samples(minutes, partitions, slots))
    needed = _needed(minutes.arrivals, curve, partitions, slots)
    usual = season.find(minutes.minute * MINUTE_S, minutes.arrivals, asked.holidays)
    times = _times(rescales)
    done = _done(minutes, rescales, needed)
    seen = Seen(
        cluster=cluster,
        minutes=minutes,
        rescales=rescales,
        times=times,
        curve=curve,
        usual=usual,
        needed=needed,
        useful=_useful(minutes, partitions, slots),
        partitions=partitions,
        objective=asked.objective,
        notes=notes or {},
    )
    return Profile(
        cluster=cluster,
        made_at=asked.made_at,
        begin=_time(float(np.nanmin(minutes.first))),
        end=_time(float(np.nanmax(minutes.last))),
        observations=int(minutes.looks.sum()),
        capacity=curve,
        times=times,
        season=usual.season,
        errors=usual.errors,
        done=done,
        findings=found(seen),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _last(column: Numbers) -> int | None:
    """The last number above 0."""
    known = column[np.isfinite(column) & (column > 0)]
    return int(known[-1]) if len(known) else None


def _slots(minutes: Minutes) -> int:
    """Slots that a replica offers."""
    known = np.isfinite(minutes.slots) & (minutes.slots > 0) & (minutes.least > 0) & (minutes.least == minutes.most)
    if not known.any():
        return 1
    return max(round(float(np.median(minutes.slots[known] / minutes.least[known]))), 1)


def _workers(sizes: Numbers, partitions: int | None, slots: int) -> Numbers:
    """How many replicas' work sizes do: partitions that do not divide evenly leave some of it idle."""
    if not partitions:
        return sizes
    known = {size: effective_slots(int(size), slots, partitions) / slots for size in np.unique(sizes[sizes > 0])}
    return np.array([known.get(size, 0.0) for size in sizes])


# Capacity


def _samples(minutes: Minutes, partitions: int | None, slots: int) -> tuple[Numbers, ...]:
    """What was seen while the job ran undisturbed, as `capacity_fit.fit` takes it."""
    quiet = _undisturbed(minutes)
    size = minutes.least[quiet]
    busy = np.where(minutes.behind == 1.0, 1.0, minutes.utilization)[quiet]
    long = minutes.hours[quiet] * 60.0
    at = minutes.minute[quiet] * MINUTE_S
    return size, minutes.throughput[quiet], busy, at, long, _workers(size, partitions, slots)


def _undisturbed(minutes: Minutes) -> Flags:
    """Whether what is seen is what a size does, not a transient."""
    same: Flags = (minutes.least == minutes.most) & (minutes.least >= 1) & ~(minutes.stopped > 0)
    if not len(same):
        return same
    apart = np.diff(minutes.minute, prepend=-math.inf)
    same &= apart <= GAP * minutes.every
    same[1:] &= minutes.most[1:] == minutes.most[:-1]
    unlike = np.where(same, -math.inf, minutes.minute)
    last = np.maximum.accumulate(unlike)
    begun = minutes.first - np.where(np.isfinite(minutes.since), minutes.since, -math.inf)
    # One that began later than the look: clocks differ, and nobody knows by how much.
    quiet: Flags = same & ((minutes.minute - last) * MINUTE_S >= WARM_S) & ((begun >= WARM_S) | (begun < 0))
    return quiet


def _needed(arrivals: Numbers, curve: Curve | None, partitions: int | None, slots: int) -> Numbers:
    """The smallest size that processes what arrives, at least 1; NaN where that is not known."""
    if curve is None or not np.isfinite(arrivals).any():
        return np.full(len(arrivals), math.nan)
    workers = min(float(np.nanmax(arrivals)) / curve.rate, MOST_RATIO) ** (1.0 / curve.exponent)
    most = math.ceil(min(workers, MOST_REPLICAS))
    if partitions:
        most = min(max(most, 1) * 2, -(-partitions // slots), MOST_REPLICAS)
    sizes = np.arange(1.0, max(most, 1) + 1)
    able = curve.rate * _workers(sizes, partitions, slots) ** curve.exponent
    able = np.maximum.accumulate(able)
    size = np.minimum(np.searchsorted(able, arrivals, side="left") + 1.0, sizes[-1])
    return np.where(np.isfinite(arrivals), size, math.nan)


def _useful(minutes: Minutes, partitions: int | None, slots: int) -> Numbers:
    """The smallest size that does as much as that which there was."""
    if not partitions:
        return minutes.paid
    sizes = np.arange(1.0, -(-partitions // slots) + 1)
    able = _workers(sizes, partitions, slots)
    have = _workers(np.round(minutes.paid), partitions, slots)
    size = np.searchsorted(able, have, side="left") + 1.0
    return np.where(np.isfinite(minutes.paid), np.minimum(size, minutes.paid), minutes.paid)


# Times


def _times(rescales: Sequence[Rescaled]) -> dict[Direction, dict[str, Spread]]:
    """How long rescales take, each part after the one before; those that somebody asked for."""
    times: dict[Direction, dict[str, Spread]] = {}
    for direction in Direction:
        mine = [each for each in rescales if each.direction == direction and each.cause != Cause.LOSS]
        spreads = {
            "start_up": _spread([each.ready_s for each in mine]),
            "absorb": _spread([_after(each.absorbed_s, each.ready_s) for each in mine]),
            "stall": _spread([each.stall_s for each in mine]),
            "catch_up": _spread([_after(each.caught_up_s, each.absorbed_s, each.ready_s) for each in mine]),
        }
        known = {name: spread for name, spread in spreads.items() if spread is not None}
        if known:
            times[direction] = known
    return times


def _after(end: float | None, *before: float | None) -> float | None:
    """Seconds from the latest of what came before; never less than 0."""
    if end is None:
        return None
    return max(end - max([0.0, *(begin for begin in before if begin is not None)]), 0.0)


def _spread(seconds: Sequence[float | None]) -> Spread | None:
    known = [each for each in seconds if each is not None and math.isfinite(each) and each >= 0]
    if not known:
        return None
    low, middle, high = np.percentile(known, (10, 50, 90))
    return Spread(float(middle), float(low), float(high), len(known))


# What was done


def _done(minutes: Minutes, rescales: Sequence[Rescaled], needed: Numbers) -> Done | None:
    hours = minutes.hours
    whole = float(hours.sum())
    paid = np.isfinite(minutes.paid)
    if not paid.any():
        return None
    bought = float((hours * minutes.paid)[paid].sum())
    both = paid & np.isfinite(needed)
    share = float(hours[both].sum()) / whole
    late = np.isfinite(minutes.late)
    told = float(hours[late].sum())
    changes = sum(1 for each in rescales if each.cause != Cause.LOSS) or _changes(minutes)
    return Done(
        bought,
        float((hours * needed)[both].sum()) / share if share >= KNOWN else None,
        float((hours * minutes.late)[late].sum()) / told if told >= KNOWN * whole else None,
        changes / whole,
    )


def _changes(minutes: Minutes) -> int:
    """How often the size changed, where nobody has followed the rescales."""
    sizes = minutes.most[np.isfinite(minutes.most) & (minutes.least == minutes.most)]
    return int((np.diff(sizes) != 0).sum())
