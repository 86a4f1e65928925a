"""The score of a run: cost, violations of the delay objective and rescales, always together.

It is computed from what happened in each step (`Track`). A record counts as processed when the position passes it for
the last time, because a restart may go back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter

from autoscaler.simulation.plant import STEP, Track

SETTLED_FOR = 600.0
"""A size has converged if it fits for this many seconds..."""

SETTLED_EXCESS = 1.5
"""... with at most this many times the needed workers..."""

SETTLED_AGE = 10.0
"""... and the oldest record waits less than this many seconds."""

VIOLATION_WEIGHT = 10.0
RESCALE_WEIGHT = 0.02
"""Weights of `Score.j`: 1 % of the time too late counts as much as 10 % of cost, or five rescales an hour."""

MOST_WORKERS = 1_000_000
"""If more workers seem to be needed, the two rates have different units."""

_EXACT = 1e-9
"""Two positions that differ by this share of all records are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The numbers of one run.

    Attributes:
        hours: the length of the run.
        cost: billed workers, worker-hours.
        demand: the workers that the arrivals need at each moment, worker-hours.
        optimum: the least cost that would have kept the objective, worker-hours (`optimum.optimum`); None: not
            known.
        violation: share of the time in which the oldest unprocessed record was older than the objective.
        p50, p99: delay of records, seconds.
        worst: the greatest age of an unprocessed record, seconds.
        rescales: requested changes of size.
        restarts: restarts of the job, for any reason.
        stopped: share of the time in which the job was stopped.
        under, over: mean number of workers that the job lacked, or had in excess, as a share of the workers needed.
        converged: mean seconds from a jump of the load until the size fits, None without a jump. If the size never
            fits, the time until the next jump or the end counts.
    """

    hours: float
    cost: float
    demand: float
    optimum: float | None
    violation: float
    p50: float
    p99: float
    worst: float
    rescales: int
    restarts: int
    stopped: float
    under: float
    over: float
    converged: float | None = None

    @property
    def rescales_per_hour(self) -> float:
        """Requested changes of size per hour."""
        return self.rescales / self.hours

    @property
    def to_demand(self) -> float:
        """Cost as a ratio to what the arrivals need at each moment."""
        return self.cost / self.demand

    @property
    def to_optimum(self) -> float | None:
        """Cost as a ratio to the least possible cost, if that is known."""
        return None if self.optimum is None else self.cost / self.optimum

    @property
    def j(self) -> float:
        """One number, for ranking only. Without the optimum, it uses the cost as a ratio to the demand."""
        ratio = self.to_demand if self.optimum is None else self.cost / self.optimum
        return ratio + VIOLATION_WEIGHT * self.violation + RESCALE_WEIGHT * self.rescales_per_hour


def score(
    track: Track,
    rate_per_worker: float,
    exponent: float,
    slo: float,
    optimum: float | None = None,
    changes: Iterable[float] = (),
    begin: int = 0,
    end: int | None = None,
) -> Score:
    """The numbers of a run.

    Args:
        track: what happened in each step.
        rate_per_worker: records/s that one worker processes; n process n^exponent times as much.
        exponent: see `rate_per_worker`.
        slo: the age of the oldest unprocessed record should be at most this, seconds.
        optimum: the least cost possible, worker-hours.
        changes: seconds from the beginning at which the load jumps.
        begin: the steps before this one do not count. Records that wait at its beginning count with their full delay.
            `restarts` are those of the whole run.
        end: this step and later ones do not count. Records that wait then count with their age. None: all steps count.
    """
    arrivals, position = track.arrivals[:end], track.position[:end]
    steps = len(arrivals) - begin
    if steps <= 0:
        raise ValueError("the run has no step from `begin` to `end`, expected at least one")
    need = needed(arrivals, rate_per_worker, exponent)[begin:]
    old = ages(arrivals, position)[begin:]
    half, most = quantiles(delays(arrivals, position, begin), (0.5, 0.99))
    running = track.running[begin:end]
    under = over = 0.0
    for wanted, used in zip(need, running, strict=True):
        if used < wanted:
            under += (wanted - used) / wanted
        else:
            over += (used - wanted) / wanted
    hours = steps * STEP / 3600
    jumps = [at - begin * STEP for at in changes if 0 <= at - begin * STEP < steps * STEP]
    times = convergence(need, running, old, jumps)
    return Score(
        hours=hours,
        cost=sum(track.billed[begin:end]) * STEP / 3600,
        demand=sum(need) * STEP / 3600,
        optimum=optimum,
        violation=sum([age > slo for age in old]) / steps,
        p50=half,
        p99=most,
        worst=max(old),
        rescales=sum([step >= begin and (end is None or step < end) for step, _ in track.requests]),
        restarts=track.restarts,
        stopped=sum(track.stopped[begin:end]) / steps,
        under=under / steps,
        over=over / steps,
        converged=sum(times) / len(times) if times else None,
    )


def needed(arrivals: Sequence[float], rate_per_worker: float, exponent: float) -> list[int]:
    """The smallest size whose capacity is at least the arrivals, for each step; at least 1.

    One worker processes `rate_per_worker` records/s, n workers process n^exponent times as much.

    Raises:
        ValueError: a worker processes nothing, or more than `MOST_WORKERS` are needed.
    """
    if not (rate_per_worker > 0 and exponent > 0):
        raise ValueError(
            f"one worker processes {rate_per_worker:g}/s, n of them n^{exponent:g} times as much: expected above 0"
        )
    top = max(arrivals, default=0.0) / STEP
    if top > rate_per_worker * MOST_WORKERS**exponent:
        raise ValueError(
            f"{top:g} records/s need more than {MOST_WORKERS:,} workers, if one processes {rate_per_worker:g}/s: "
            "the two rates have different units"
        )
    # The capacity of each size, plus rounding: a peak may be exactly the capacity of a size.
    capacity = [0.0]
    while capacity[-1] < top:
        capacity.append(rate_per_worker * len(capacity) ** exponent * (1 + _EXACT))
    return [bisect_left(capacity, records / STEP, 1) for records in arrivals]


def ages(arrivals: Sequence[float], position: Sequence[float]) -> list[float]:
    """Age of the oldest unprocessed record at the end of each step, seconds; 0 when nothing waits.

    Within a step records arrive evenly. `position` is what has been processed; it decreases at a restart.
    """
    arrived = list(accumulate(arrivals))
    slack = _slack(arrived)
    found = []
    for step, (total, done) in enumerate(zip(arrived, position, strict=True)):
        if done >= total - slack:
            found.append(0.0)
            continue
        # The step in which the next record arrived: after it more had arrived than is done, before it not more.
        there = bisect_right(arrived, done)
        before = arrived[there - 1] if there else 0.0
        found.append((step + 1) * STEP - (there + (done - before) / (arrived[there] - before)) * STEP)
    return found


def _slack(arrived: Sequence[float]) -> float:
    return _EXACT * (arrived[-1] if arrived else 0.0)


def _pieces(arrived: Sequence[float], low: float, high: float) -> list[tuple[float, float, float]]:
    """Split the records between two positions by the step of their arrival.

    A piece has the time when its first record arrived, the time of its last record, and the position at its end. Within
    a piece, records arrived evenly.
    """
    found = []
    for step in range(bisect_right(arrived, low), len(arrived)):
        if low >= high:
            break
        before = arrived[step - 1] if step else 0.0
        total = arrived[step]
        width = total - before
        if width > 0:
            until = min(total, high)
            found.append(((step + (low - before) / width) * STEP, (step + (until - before) / width) * STEP, until))
            low = until
    return found


def delays(arrivals: Sequence[float], position: Sequence[float], begin: int = 0) -> list[tuple[float, float]]:
    """Delays from arrival until the last processing, as (seconds, records), of records processed from a step on.

    Within a step, records arrive and are processed evenly. Records that arrived in the same step and were processed in
    the same step count with their mean delay. Records that wait at the end count with their age.
    """
    arrived = list(accumulate(arrivals))
    slack = _slack(arrived)
    good = list(accumulate(reversed(list(map(min, arrived, position))), min))
    good.reverse()
    found = []
    before, earlier = (good[begin - 1], arrived[begin - 1]) if begin else (0.0, 0.0)
    for step, (total, done) in enumerate(zip(arrived[begin:], good[begin:], strict=True), begin):
        records = done - before
        if records > slack:
            if before >= earlier - slack and done >= total - slack:
                found.append((0.0, records))
            else:
                low = before
                for first, last, high in _pieces(arrived, before, done):
                    at = (step + ((low + high) / 2 - before) / records) * STEP
                    found.append((max(0.0, at - (first + last) / 2), high - low))
                    low = high
            before = done
        earlier = total
    if earlier - before > slack:
        for first, last, high in _pieces(arrived, before, earlier):
            found.append((len(arrived) * STEP - (first + last) / 2, high - before))
            before = high
    return found


def quantiles(weighted: Iterable[tuple[float, float]], shares: Sequence[float]) -> tuple[float, ...]:
    """The values that these shares of the weight do not exceed; 0 if there is no weight.

    The pairs are (value, weight); shares ascend from 0 to 1.
    """
    ordered = sorted(weighted, key=itemgetter(0))
    total = math.fsum(weight for _, weight in ordered)
    found = []
    reached = 0.0
    entries = iter(ordered)
    value = 0.0
    for share in shares:
        while reached < share * total * (1 - _EXACT):
            value, weight = next(entries)
            reached += weight
        found.append(value)
    return tuple(found)


def convergence(
    need: Sequence[int], running: Sequence[int], old: Sequence[float], changes: Iterable[float]
) -> list[float]:
    """Seconds from each jump of the load until the size fits and continues to fit for `SETTLED_FOR` seconds.

    If it never does before the next jump, or the end, the time until then counts.
    """
    begins = [round(change / STEP) for change in changes]
    held = round(SETTLED_FOR / STEP)
    found = []
    for begin, end in pairwise([*begins, len(need)]):
        first = begin
        for step in range(begin, end):
            fits = need[step] <= running[step] <= math.ceil(SETTLED_EXCESS * need[step]) and old[step] < SETTLED_AGE
            if not fits:
                first = step + 1
            elif step + 1 - first >= held:
                break
        else:
            first = end
        found.append((first - begin) * STEP)
    return found
