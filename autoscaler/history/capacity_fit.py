"""Fit the capacity of each size to observations of a job that ran undisturbed.

Throughput divided by utilization is the "true processing rate" of DS2 (Kalavri et al., OSDI 2018). Robust regression
(Huber 1964) fits its medians for each day, size and utilization with n^exponent and a drift. A power law is used
because additional workers add less than their share: exponents of 0.80 to 0.90 were measured for Nexmark and for
saturated TaskManagers.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.workload_profile import Curve
from autoscaler.history.minutes import Numbers

EXPONENT = 0.9
EXPONENT_ERROR = 0.1
"""The prior of the exponent, and its standard deviation."""
EXPONENTS = (0.3, 1.1)
"""Bounds of the exponent: outside these bounds the job does not scale, or a measurement is wrong."""
DRIFT_ERROR = 0.05
"""The standard deviation of the prior of a rate's drift per week, in ln."""
WEEK_S = 7 * 86400.0
DAY_S = 86400.0

LARGEST = 690.0
MAX_RATE = 1e200
"""Limits of the ln of a rate and of a rate; the largest float is e^709."""

MIN_BUSY = 0.05
"""Below this utilization, throughput over utilization is noise: a ratio of two small numbers."""
BUSY_ENOUGH = 0.4
"""Below this utilization, the idle load of workers (JVM, heartbeats) distorts the ratio."""
MIN_MINUTES = 5.0
"""A rate needs at least this many minutes."""
BUCKETS = 10.0
"""Utilizations are grouped by tenths."""

NOISE = 0.05
HELD = 10.0
"""Machines of one cloud differ by 1-7 %, and such a difference lasts for this many minutes."""
ITSELF = 0.02
"""The error of a size, or of a day, that more observations do not reduce."""
HUBER = 1.345
"""Huber's threshold in standard deviations: without outliers it has 95 % of the efficiency of least squares."""
ROUNDS = 20

MIN_IDLE, MAX_IDLE = 0.015, 0.3
SPREAD = 0.25
"""To estimate the utilization without records, throughput must vary by this share of its mean..."""
FITS = 0.9
"""... and a line must explain this share of the variance."""


def fit(
    size: Numbers, throughput: Numbers, utilization: Numbers, at: Numbers, minutes: Numbers, workers: Numbers
) -> Curve | None:
    """Fit the capacity curve to samples, with rates as of the last sample; None: there are too few samples.

    Args:
        size: the replicas of each sample.
        throughput: records/s.
        utilization: the utilization of the busiest worker, 0 to 1; 1 if the job fell behind.
        at: the time in seconds since 1970.
        minutes: the duration.
        workers: the effective number of replicas: below `size` if partitions leave some replicas idle; 0: same as
            `size`.
    """
    good = np.isfinite(size) & np.isfinite(throughput) & np.isfinite(utilization) & np.isfinite(at)
    good &= (size >= 1) & (throughput > 0) & (throughput < MAX_RATE) & (utilization >= MIN_BUSY)
    good &= (minutes > 0) & np.isfinite(workers)
    columns = np.array([size, throughput, np.minimum(utilization, 1.0), at, minutes, workers])[:, good]
    if not columns.size or columns[4].sum() < MIN_MINUTES:
        return None
    cells = _cells(columns)
    with_work = np.where(cells[5] > 0, cells[5], cells[0])
    x, ago = np.log(with_work), (cells[3].max() - cells[3]) / WEEK_S
    busy, passed = cells[2], cells[1]
    variance = NOISE * NOISE * np.maximum(HELD / cells[4], 1e-3) + ITSELF * ITSELF
    variance *= np.maximum(1.0, BUSY_ENOUGH / busy) ** 2
    exponent, without = EXPONENT, 0.0
    for _ in range(3):
        rate = np.log(passed * (1.0 - without) / np.maximum(busy - without, MIN_BUSY))
        level, exponent, drift, errors, weights = _line(x, ago, rate, variance)
        found = _idle(passed / with_work**exponent, busy, 1.0 / variance)
        if abs(found - without) < 1e-3:  # noqa: PLR2004 - it has converged
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
    """The medians of each combination of day, size and utilization."""
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
    """Level, exponent and drift per week by iteratively reweighted least squares; the prior counts as a sample."""
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
    # The error at the mean of the observed sizes, which is the point around which the line turns with its exponent.
    at_sizes = float(np.sqrt(middle @ covariance @ middle))
    level = float(found[0] + (found[1] - exponent) * middle[1])
    return level, exponent, float(found[2]), (at_sizes, float(np.sqrt(covariance[1, 1]))), both


def _idle(x: Numbers, y: Numbers, weights: Numbers) -> float:
    """The utilization without records, from a line through throughput and utilization; 0 if no line fits well.

    CPU utilization is never 0. Without this correction, a job with little load would appear to have little capacity.
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
    return min(found, MAX_IDLE) if found >= MIN_IDLE else 0.0


def _sizes(size: Numbers, rate: Numbers, weights: Numbers, minutes: Numbers) -> dict[int, float]:
    """The measured rate of each size that ran for at least MIN_MINUTES."""
    found: dict[int, float] = {}
    for each in np.unique(size):
        mine = size == each
        if minutes[mine].sum() >= MIN_MINUTES:
            found[int(each)] = float(np.exp(np.average(rate[mine], weights=weights[mine])))
    return found
