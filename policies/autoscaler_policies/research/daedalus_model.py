"""The predictions of Daedalus: a regression of throughput over CPU, a straight line of arrivals, the recovery time.

See `autoscaler_policies.research.daedalus` for the source. Times are seconds from now, rates are records/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SPREAD = 0.05
"""If the busy share varied by less than this (standard deviation), no slope is used: it would fit noise."""

REMEMBERED = 240.0
"""From this many samples on (four hours of minutes), new samples keep the same weight, and older ones fade."""


MINUTE = 60.0
"""The seconds for which each number of a forecast holds."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Throughput against busy share by least squares, updated sample by sample (Welford).

    Attributes:
        count: samples, at most `REMEMBERED`.
        x, y: means of busy share and throughput.
        variance, covariance: variance of the busy share, and its covariance with throughput; divided by the count.
    """

    count: float = 0.0
    x: float = 0.0
    y: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def seen(self, x: float, y: float) -> Regression:
        """The regression with one more sample."""
        count = min(self.count + 1, REMEMBERED)
        dx = x - self.x
        mean_x, mean_y = self.x + dx / count, self.y + (y - self.y) / count
        return Regression(
            count,
            mean_x,
            mean_y,
            self.variance + (dx * (x - mean_x) - self.variance) / count,
            self.covariance + (dx * (y - mean_y) - self.covariance) / count,
        )

    def at(self, share: float) -> float:
        """The throughput at a busy share; NaN if the busy share was 0.

        If the share has hardly varied, or throughput did not rise with it, the ratio throughput / share is used.
        """
        if self.variance >= SPREAD * SPREAD and self.covariance > 0:
            return self.y + self.covariance / self.variance * (share - self.x)
        return self.y / self.x * share if self.x > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Line:
    """Arrivals as a straight line, never below 0: max(0, level + slope t), up to `horizon` seconds ahead."""

    level: float
    slope: float
    horizon: float

    def at(self, time: float) -> float:
        """Records/s at a time."""
        return max(0.0, self.level + self.slope * time)

    def most(self, until: float) -> float:
        """The most records/s up to a time, or up to the horizon if that is nearer."""
        return max(self.at(0.0), self.at(min(until, self.horizon)))

    def total(self, until: float) -> float:
        """Records that arrive until then."""
        if self.level < 0 or self.at(until) > 0 or not self.slope:
            # Rises from below zero, stays above it, or is flat.
            begin = -self.level / self.slope if self.level < 0 and self.slope > 0 else 0.0
            return (self.at(begin) + self.at(until)) / 2 * max(0.0, until - begin)
        return self.level / 2 * (-self.level / self.slope)

    def crosses(self, rate: float) -> float:
        """The time at which it reaches that rate; infinite for never."""
        return (rate - self.level) / self.slope if self.slope else math.inf

    def pieces(self, _begin: float, capacity: float) -> Iterable[float]:
        """Times between which the spare capacity changes linearly, and the horizon; ascending."""
        return sorted((self.crosses(0.0), self.crosses(capacity), self.horizon))

    def spare(self, begin: float, end: float, capacity: float) -> tuple[float, float]:
        """The spare part of a capacity at the begin and the end of a piece, records/s."""
        low, high = (max(0.0, capacity - self.at(time)) for time in (begin, end))
        return low, high


@dataclass(frozen=True, slots=True)
class Curve:
    """Arrivals from an external forecast: a rate for each of the next minutes; the last one holds from then on.

    Attributes:
        rates: records/s of each minute, 0 or more; at least one.
        horizon: for how many seconds ahead it is used.
    """

    rates: tuple[float, ...]
    horizon: float

    def at(self, time: float) -> float:
        """Records/s at a time."""
        return self.rates[min(int(time // MINUTE), len(self.rates) - 1)]

    def most(self, until: float) -> float:
        """The most records/s up to a time, or up to the horizon if that is nearer."""
        return max(self.rates[: max(math.ceil(min(until, self.horizon) / MINUTE), 1)])

    def total(self, until: float) -> float:
        """Records that arrive until then."""
        whole = int(until // MINUTE)
        return math.fsum([self.at(minute * MINUTE) for minute in range(whole)]) * MINUTE + self.at(until) * (
            until - whole * MINUTE
        )

    def pieces(self, begin: float, _capacity: float) -> Iterable[float]:
        """The times after `begin` at which the rate changes, and the horizon; ascending."""
        minute = math.floor(begin / MINUTE) + 1
        while minute * MINUTE < self.horizon:
            yield minute * MINUTE
            minute += 1
        yield self.horizon

    def spare(self, begin: float, _end: float, capacity: float) -> tuple[float, float]:
        """The spare part of a capacity at the begin and the end of a piece, records/s."""
        spare = max(0.0, capacity - self.at(begin))
        return spare, spare


def fit(points: Sequence[tuple[float, float]], horizon: float) -> Line:
    """The straight line through points (time, records/s) by least squares; time 0 is now.

    If the times do not differ, it is flat, through the mean of the rates.
    """
    count = len(points)
    mean_t = sum(time for time, _ in points) / count
    mean_y = sum(rate for _, rate in points) / count
    spread = sum((time - mean_t) * (time - mean_t) for time, _ in points)
    if spread <= 0:
        return Line(mean_y, 0.0, horizon)
    slope = sum((time - mean_t) * (rate - mean_y) for time, rate in points) / spread
    return Line(mean_y - slope * mean_t, slope, horizon)


def wape(line: Line, points: Sequence[tuple[float, float]]) -> float:
    """Weighted absolute percentage error of a forecast: sum |seen - forecast| / sum seen, as a share.

    `points` are (time relative to the line's time 0, records/s). Infinite if nothing arrived.
    """
    arrived = sum(rate for _, rate in points)
    if not arrived > 0:
        return math.inf
    return sum(abs(rate - line.at(time)) for time, rate in points) / arrived


def recovery_time(line: Line | Curve, capacity: float, waiting: float, downtime: float) -> float:
    """Seconds from a rescale until there is no backlog; infinite if it takes longer than the line's horizon.

    The job is down for `downtime`, then it processes `capacity` records/s. Spare capacity reduces the backlog, which
    consists of the waiting records, those to be processed again, and the arrivals during the downtime.
    """
    left = waiting + line.total(downtime)
    begin = downtime
    for end in line.pieces(begin, capacity):
        if not begin < end <= line.horizon:
            continue
        low, high = line.spare(begin, end, capacity)
        area = (low + high) / 2 * (end - begin)
        if area >= left:
            return begin + _time_for(left, low, (high - low) / (end - begin))
        left -= area
        begin = end
    return math.inf


def _time_for(records: float, rate: float, rise: float) -> float:
    """Seconds in which `records` are processed at a rate that rises by `rise` each second."""
    twice_mean = rate + math.sqrt(max(0.0, rate * rate + 2 * rise * records))
    return 2 * records / twice_mean if twice_mean > 0 else 0.0
