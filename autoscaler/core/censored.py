"""Median and spread of durations whose beginning or end is only known to lie between two observations.

The middle of such an interval is a poor estimate: requests are made right after an observation, so a start that takes
22 s is always seen at 30 s if the cluster is observed every 30 s. Instead, a lognormal distribution is fitted to the
intervals (interval-censored data, by expectation maximization).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import NormalDist

TYPICAL_SD = 0.25
"""Prior for the standard deviation of ln(duration): that of starting machines and pods..."""
PRIOR_SHARE = 0.15
"""... with the weight of this share of the durations."""
EXACT = 0.1
"""If the uncertainty of every duration is at most this share of it, the middles of the intervals are used."""
STEP = 0.12
MOST_POINTS = 12
"""An interval is represented by points that are `STEP` of the duration apart, `MOST_POINTS` at most."""
RARE = 2.5
"""A duration this many standard deviations away counts less: a single image pull must not move the median."""
LEAST_S = 0.05
"""Shorter durations count as zero."""
MOST_ROUNDS = 100
CONVERGED = 1e-3
HASTE = 1.6
"""Factor on the steps of expectation maximization, which are small: up to 2 it converges as safely."""

Interval = tuple[float, float]
"""Bounds of a time, in seconds; equal if the time is known exactly."""
Point = tuple[float, float, float]
Rows = Counter[tuple[bool, tuple[Point, ...]]]

Percentiles = tuple[float, float, float]
"""The median, the tenth and the ninetieth percentile, in seconds."""


def percentiles(ends: Sequence[Interval], begins: Sequence[Interval] | None = None) -> Percentiles | None:
    """The percentiles of durations; None if there are no durations.

    Args:
        ends: when each duration ended, in seconds after its own reference time.
        begins: when each duration began, on the same scale; None: at the reference time. None ends before it begins.
    """
    begins = [(0.0, 0.0)] * len(ends) if begins is None else begins
    both = [(begin, end) for begin, end in zip(begins, ends, strict=True) if end[1] - begin[0] > LEAST_S]
    nothing = len(ends) - len(both)
    if all(_is_exact(begin, end) for begin, end in both):
        return _percentiles([0.0] * nothing + [sum(end) / 2 - sum(begin) / 2 for begin, end in both])
    middle, deviation = _fit(_possible(both))
    share = nothing / len(ends)

    def percentile(which: float) -> float:
        if which <= share:
            return 0.0
        return math.exp(middle + deviation * NormalDist().inv_cdf((which - share) / (1.0 - share)))

    return percentile(0.5), percentile(0.1), percentile(0.9)


def _is_exact(begin: Interval, end: Interval) -> bool:
    return (end[1] - end[0]) + (begin[1] - begin[0]) <= EXACT * (end[1] - begin[0])


def _percentiles(durations: list[float]) -> Percentiles | None:
    if not durations:
        return None
    ordered = sorted(durations)

    def percentile(which: float) -> float:
        place = which * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return percentile(0.5), percentile(0.1), percentile(0.9)


def _possible(both: Iterable[tuple[Interval, Interval]]) -> Rows:
    """The possible lengths of each duration, with the wait until it began if that is not known exactly.

    When a duration begins depends on how it is observed, so the distribution of the waits is fitted too. Equal rows are
    counted: since requests follow observations, there are few different ones.
    """
    rows: Rows = Counter()
    for begin, end in both:
        waits = begin[0] < begin[1]
        last = sum(end) / 2
        if waits:
            found = [_point(last - at, at) for at in _points((begin[0], min(begin[1], last)), last - begin[0])]
        else:
            found = [_point(at - begin[0], 1.0) for at in _points(end, end[1] - begin[0])]
        rows[waits, tuple(found)] += 1
    return rows


def _points(interval: Interval, duration: float) -> list[float]:
    """Points of an interval, closer together for a short duration."""
    low, high = round(interval[0], 1), round(interval[1], 1)
    points = max(math.ceil(min((high - low) / max(STEP * duration, LEAST_S), MOST_POINTS)), 1)
    return [low + (high - low) * (point + 0.5) / points for point in range(points)]


def _point(duration: float, wait: float) -> Point:
    """The sum of the two logarithms, then each of them. The sum turns a density per logarithm into one per second."""
    log, log_wait = math.log(max(duration, LEAST_S)), math.log(max(wait, LEAST_S))
    return log + log_wait, log, log_wait


def _fit(rows: Rows) -> tuple[float, float]:
    """Mean and standard deviation of the logarithms of the durations."""
    mean = sum(count * math.log(sum(math.exp(log) for _, log, _ in row) / len(row)) for (_, row), count in rows.items())
    waits = [wait for known, row in rows if known for _, _, wait in row] or [0.0]
    found = (mean / rows.total(), TYPICAL_SD, sum(waits) / len(waits), TYPICAL_SD)
    step, rounds = math.inf, 0
    while step > CONVERGED and rounds < MOST_ROUNDS:
        before, found = found, _improved(rows, *found)
        step, rounds = abs(found[0] - before[0]), rounds + 1
    return found[0], found[1]


def _improved(
    rows: Rows, mean: float, deviation: float, wait_mean: float, wait_deviation: float
) -> tuple[float, float, float, float]:
    """One round: the probability of each point under the distributions, then new distributions from these weights."""
    exp = math.exp
    precision, wait_precision = 0.5 / deviation**2, 0.5 / wait_deviation**2
    durations, waits = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for (known, row), count in rows.items():
        of_wait = wait_precision if known else 0.0
        whole = here = here2 = there = there2 = 0.0
        for both, log, log_wait in row:
            off, late = log - mean, log_wait - wait_mean
            weight = exp(-both - precision * off * off - of_wait * late * late)
            whole += weight
            here += weight * off
            here2 += weight * off * off
            there += weight * late
            there2 += weight * late * late
        if whole <= 0.0:
            continue  # too far away to belong to this distribution
        counted = count * min(1.0, RARE * deviation * whole / max(abs(here), LEAST_S * whole))
        _add(durations, counted, here / whole, here2 / whole)
        if known:
            _add(waits, counted, there / whole, there2 / whole)
    return *_moved(mean, durations), *_moved(wait_mean, waits)


def _add(sums: list[float], count: float, first: float, second: float) -> None:
    sums[0] += count
    sums[1] += count * first
    sums[2] += count * second


def _moved(mean: float, sums: list[float]) -> tuple[float, float]:
    """New mean and standard deviation, from the sums of the deviations from the assumed mean."""
    total, first, second = sums
    if not total:
        return mean, TYPICAL_SD
    prior = PRIOR_SHARE * total
    square = (second - first * first / total + prior * TYPICAL_SD**2) / (total + prior)
    return mean + HASTE * first / total, math.sqrt(square)
