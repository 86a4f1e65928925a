"""What sizes can process, by all that was seen of a job that ran undisturbed.

Throughput over utilization is the "true processing rate" of DS2 (Kalavri et al., OSDI 2018). Its medians for each day,
size and utilization are laid through n^exponent and a drift by a robust regression (Huber 1964). A power law, because
more workers add less than their share: exponents of 0.80 to 0.90 were measured for Nexmark and for saturated
TaskManagers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.core.workload_profile import Curve

Numbers = NDArray[np.float64]

EXPONENT = 0.9
EXPONENT_ERROR = 0.1
"""The exponent before anything is known, and how uncertain that is..."""
EXPONENTS = (0.3, 1.1)
"""... and what is believed at all: beyond lies a job that does not scale, or a measurement that is wrong."""
DRIFT_ERROR = 0.05
"""How far a rate drifts in a week before anything is known (standard deviation of ln)."""
WEEK_S = 7 * 86400.0
DAY_S = 86400.0

LARGEST = 690.0
MOST = 1e200
"""e^709 is the largest float; what is beyond this is no rate."""

LEAST_BUSY = 0.05
"""Below this utilization the ratio of two small numbers says nothing."""
BUSY_ENOUGH = 0.4
"""Below this the workers' own idle work (JVM, heartbeats) weighs too much in the ratio."""
LEAST_MINUTES = 5.0
"""Less than this says nothing."""
BUCKETS = 10.0
"""Utilizations are told apart by a tenth."""

NOISE = 0.05
HELD = 10.0
"""Machines of one cloud differ by 1-7 %, and that holds on for so many minutes..."""
ITSELF = 0.02
"""... and what a size is off by for itself, or a day, does not go away however long one looks."""
HUBER = 1.345
"""Beyond so many standard deviations a sample counts linearly only: 95 % as good as least squares without outliers."""
ROUNDS = 20

LEAST_IDLE, MOST_IDLE = 0.015, 0.3
SPREAD = 0.25
"""Throughput must have varied by this share of its mean before a utilization without records is believed..."""
FITS = 0.9
"""... and the line must tell so much of the variance."""


class Sample(NamedTuple):
    """What a size was seen to do, undisturbed, for a while.

    Attributes:
        size: replicas.
        throughput: records/s.
        utilization: how busy the hottest worker was, 0 to 1; 1 where the job fell behind.
        at: seconds since 1970.
        minutes: for how long.
        workers: how many replicas' work the size does: fewer where partitions leave some idle; 0: as many.
    """

    size: int
    throughput: float
    utilization: float
    at: float
    minutes: float = 1.0
    workers: float = 0.0


def curve(samples: Sequence[Sample]) -> Curve | None:
    """The curve through samples, its rates at the time of the last; None: they say nothing."""
    if not samples:
        return None
    return fit(*np.array(samples, dtype=np.float64).T)


def fit(
    size: Numbers, throughput: Numbers, utilization: Numbers, at: Numbers, minutes: Numbers, workers: Numbers
) -> Curve | None:
    """The same of columns: each argument is that field of all samples."""
    good = np.isfinite(size) & np.isfinite(throughput) & np.isfinite(utilization) & np.isfinite(at)
    good &= (size >= 1) & (throughput > 0) & (throughput < MOST) & (utilization >= LEAST_BUSY)
    good &= (minutes > 0) & np.isfinite(workers)
    columns = np.array([size, throughput, np.minimum(utilization, 1.0), at, minutes, workers])[:, good]
    if not columns.size or columns[4].sum() < LEAST_MINUTES:
        return None
    cells = _cells(columns)
    with_work = np.where(cells[5] > 0, cells[5], cells[0])
    x, ago = np.log(with_work), (cells[3].max() - cells[3]) / WEEK_S
    busy, passed = cells[2], cells[1]
    variance = NOISE * NOISE * np.maximum(HELD / cells[4], 1e-3) + ITSELF * ITSELF
    variance *= np.maximum(1.0, BUSY_ENOUGH / busy) ** 2
    exponent, without = EXPONENT, 0.0
    for _ in range(3):
        rate = np.log(passed * (1.0 - without) / np.maximum(busy - without, LEAST_BUSY))
        level, exponent, drift, errors, weights = _line(x, ago, rate, variance)
        found = _idle(passed / with_work**exponent, busy, 1.0 / variance)
        if abs(found - without) < 1e-3:  # noqa: PLR2004 - it has settled
            break
        without = found
    if not all(map(math.isfinite, (level, exponent, drift, *errors))) or abs(level) > LARGEST:
        return None
    return Curve(
        rate=math.exp(level),
        exponent=exponent,
        rate_error=errors[0],
        exponent_error=errors[1],
        drift=math.expm1(drift),
        sizes=_sizes(cells[0], rate + drift * ago, weights * cells[4], cells[4]),
    )


def _cells(columns: Numbers) -> Numbers:
    """Medians of each day, size and utilization."""
    size, throughput, busy, at, _, workers = columns
    cell = np.zeros(len(size), dtype=np.int64)
    for names in (size, np.floor(busy * BUCKETS), np.floor(at / DAY_S), workers):
        distinct, number = np.unique(names, return_inverse=True)
        cell = cell * len(distinct) + number
    order = np.lexsort((throughput / busy, cell))
    columns, cell = columns[:, order], cell[order]
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    counts = np.diff(begins, append=len(cell))
    together = np.add.reduceat(columns[4], begins)
    middle = columns[:, begins + (counts - 1) // 2]
    upper = columns[:, begins + counts // 2]
    found = np.sqrt(middle) * np.sqrt(upper)
    found[4] = together
    found[3] = (middle[3] + upper[3]) / 2
    found[0], found[5] = middle[0], middle[5]
    return np.asarray(found, dtype=np.float64)


def _line(
    x: Numbers, ago: Numbers, rate: Numbers, variance: Numbers
) -> tuple[float, float, float, tuple[float, float], Numbers]:
    """Level, exponent and drift a week by iterated weighted least squares; what was known before counts as a sample."""
    design = np.array([np.ones_like(x), x, -ago])
    prior = np.diag([1e-12, 1.0 / EXPONENT_ERROR**2, 1.0 / DRIFT_ERROR**2])
    before = np.array([0.0, EXPONENT, 0.0])
    sure = 1.0 / variance
    weights = np.ones_like(x)
    found = np.array([float(np.median(rate - EXPONENT * x)), EXPONENT, 0.0])
    for _ in range(ROUNDS):
        off = np.abs(rate - found @ design) * np.sqrt(sure)
        scale = max(float(np.median(off)) * 1.4826, 1.0)
        weights = np.minimum(1.0, HUBER * scale / np.maximum(off, 1e-12))
        both = sure * weights / scale**2
        precision = (design * both) @ design.T + prior
        new = np.linalg.solve(precision, (design * both) @ rate + prior @ before)
        settled = np.abs(new - found).max() < 1e-9  # noqa: PLR2004
        found = new
        if settled:
            break
    low, high = EXPONENTS
    exponent = float(min(max(found[1], low), high))
    middle = design @ both / both.sum()
    covariance = np.linalg.inv(precision)
    # What is uncertain at the sizes seen: where the line turns when its exponent does.
    at_sizes = float(np.sqrt(middle @ covariance @ middle))
    level = float(found[0] + (found[1] - exponent) * middle[1])
    return level, exponent, float(found[2]), (at_sizes, float(np.sqrt(covariance[1, 1]))), both


def _idle(x: Numbers, y: Numbers, weights: Numbers) -> float:
    """Utilization without any record, by the line through throughput and utilization; 0 until it is clear.

    CPU is never nought: taken as it is, it makes a job that is hardly busy look as if it could do little.
    """
    total = weights.sum()
    x = x / np.average(x, weights=weights)
    mean_x, mean_y = float(np.average(x, weights=weights)), float(np.average(y, weights=weights))
    xx = float(weights @ (x - mean_x) ** 2) / total
    xy = float(weights @ ((x - mean_x) * (y - mean_y))) / total
    yy = float(weights @ (y - mean_y) ** 2) / total
    if not (xx > (SPREAD * mean_x) ** 2 and xy * xy >= FITS * xx * yy):
        return 0.0
    found = mean_y - xy / xx * mean_x
    return min(found, MOST_IDLE) if found >= LEAST_IDLE else 0.0


def _sizes(size: Numbers, rate: Numbers, weights: Numbers, minutes: Numbers) -> dict[int, float]:
    """What each size was seen to do, for at least a while."""
    found: dict[int, float] = {}
    for each in np.unique(size):
        mine = size == each
        if minutes[mine].sum() >= LEAST_MINUTES:
            found[int(each)] = float(np.exp(np.average(rate[mine], weights=weights[mine])))
    return found
