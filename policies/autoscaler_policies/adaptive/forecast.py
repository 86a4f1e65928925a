"""Present and expected arrivals: their level, how much of a deviation lasts, and a rise that is more than noise."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from autoscaler_policies.adaptive.tuning import TUNING

NEVER = -math.inf
"""The time of something that was never seen."""
MINUTE_S = 60.0
"""Most rates are means over a minute: readings closer together than this repeat each other..."""
READING_AGE_S = MINUTE_S / 2
"""... and a reading describes a moment this long ago."""
READING_S = MINUTE_S / 4
"""Readings closer together than this count proportionally less for the slope of the arrivals."""
LEAST_NOISE = TUNING.noise / 10_000
"""The smallest noise. No jump counts as noise, so from 0 it could never grow again; from here it takes half an hour."""
NORMAL_RATIO = math.sqrt(math.pi / 2)
"""Standard deviation divided by mean absolute deviation, for a normal distribution."""

MEAN_S = (TUNING.points - 1) * MINUTE_S
AHEAD_S = TUNING.points * MINUTE_S / 3
"""A deviation of the arrivals from their mean is compared with the mean deviation of this time after it."""
BEFORE_S = (MEAN_S - AHEAD_S) / 2
"""A reading is this much later than the middle of the minutes with whose mean it is compared..."""
STRAIGHT = (MEAN_S + MINUTE_S) / 2 / BEFORE_S - 1.0
"""... so if arrivals rise in a straight line, the mean after it deviates by this share more than the reading."""

TIME_OF = itemgetter(0)
"""The time of a point."""


@dataclass(slots=True)
class Arrivals:
    """The arrivals now.

    Attributes:
        seen_at: time of the last reading, seconds since 1970.
        level: records/s now; None: no reading was seen.
        slope: how they rose recently, records/s per second.
        trend: the slope if it is more than noise; else 0.
        noise: standard deviation of a reading, as a share of the level.
        doubted: whether the last reading was a jump that other readings did not confirm.
    """

    seen_at: float = NEVER
    level: float | None = None
    slope: float = 0.0
    trend: float = 0.0
    noise: float = TUNING.noise
    doubted: bool = False

    def follow(self, value: float, at: float, *, latest: float = 0.0, confirmed: float = math.inf) -> None:
        """Learn from a new reading.

        Args:
            value: records/s.
            at: when it was measured, seconds since 1970. A reading that was seen before changes nothing.
            latest: the most recent arrivals, records/s, if the value is a mean over a longer time (`latest_rate`).
            confirmed: the rate that other readings confirm, records/s. A jump above it counts only up to this rate, or
                up to what noise explains, until the next reading is as high.
        """
        since = at - self.seen_at
        if since <= 0:
            return
        self.seen_at = at
        level = self.level
        if level is None or since > TUNING.stale_s:
            self.level, self.slope, self.trend = value, 0.0, 0.0
            return
        # The noise from before this reading: a rise must not hide itself by increasing the noise.
        most = TUNING.significance * self.noise
        foreseen = max(level + self.slope * since, 0.0)
        doubted, self.doubted = self.doubted, False
        usual = max(foreseen + most * level, foreseen / (1.0 - most)) if most < 1.0 else math.inf
        if value > max(usual, confirmed) and not doubted:
            self.doubted, value = True, max(usual, confirmed)
        elif latest - value > 2.0 * most * latest:  # it has the errors of two readings, each doubled
            value = latest
        off, largest = value - foreseen, max(level, value)
        self.level = value
        self.slope += TUNING.slope_weight * off / max(since, READING_S)
        # Deviations between readings are independent: within a minute their sum grows with the square root.
        within_a_minute = most * math.sqrt(MINUTE_S / min(max(since, READING_S), MINUTE_S))
        self.trend = self.slope if self.slope * MINUTE_S > within_a_minute * foreseen else 0.0
        if largest > 0:
            seen = min(abs(off) / largest, most) * NORMAL_RATIO  # a jump is not noise
            self.noise = max(self.noise + TUNING.noise_weight * (seen - self.noise), LEAST_NOISE)

    def rise(self, ahead: float) -> float:
        """How much more will arrive in `ahead` seconds, records/s, 0 or more."""
        return max(self.trend, 0.0) * (min(ahead, TUNING.warm_up_s) + READING_AGE_S)


@dataclass(slots=True)
class Lasting:
    """How much of a deviation of the arrivals from their mean lasts: the slope of later over earlier deviations.

    Attributes:
        seen_at: time of the last reading.
        mean: mean arrivals of the last quarter of an hour, records/s; None: unknown.
        recent: the same for the last ten minutes.
        weight: number of minutes that were evaluated; earlier ones count less.
        total: weighted sum of `mean` over these minutes.
        square, both: weighted sums of the squares of earlier deviations, and of their products with later ones.
        absolute: weighted sum of the absolute values of earlier deviations.
    """

    seen_at: float | None = None
    mean: float | None = None
    recent: float | None = None
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    both: float = 0.0
    absolute: float = 0.0

    def learn(self, points: Sequence[tuple[float, float]]) -> None:
        """Learn from points (seconds since 1970, records/s) about a minute apart, in order of time; at least one."""
        now = points[-1][0]
        since = 0.0 if self.seen_at is None else min(max(now - self.seen_at, 0.0), MINUTE_S)
        self.seen_at = now
        self.mean = _mean(points)
        self.recent = _mean(points[bisect_right(points, now - MEAN_S + AHEAD_S - READING_S, key=TIME_OF) :])
        first = bisect_right(points, now - AHEAD_S, key=TIME_OF)
        if now - points[0][0] < 2 * AHEAD_S or not (mean := _mean(points[:first])):
            return
        before, after = points[first - 1][1] / mean - 1.0, _mean(points[first:]) / mean - 1.0
        kept, weight = math.exp(-since / TUNING.memory_s), since / MINUTE_S
        self.weight = self.weight * kept + weight
        self.total = self.total * kept + weight * self.mean
        self.square = self.square * kept + weight * before * before
        self.both = self.both * kept + weight * before * after
        self.absolute = self.absolute * kept + weight * abs(before)

    @property
    def _share(self) -> float | None:
        """The share of a deviation that lasts, 0 to 1; None: unknown, or a jump from almost no arrivals hides it."""
        if self.mean is None or self.square <= 0 or self.weight <= 0 or self.both < -self.square:
            return None
        return min(max(self.both / self.square, 0.0), 1.0)

    @property
    def _usual(self) -> float:
        """The largest usual deviation of arrivals from their mean, records/s; a larger one is not a swing."""
        return TUNING.significance * (self.mean or 0.0) * math.sqrt(self.square / self.weight)

    def rate(self, level: float) -> float:
        """The arrivals to expect at the present level, records/s, without the part of its deviation that will pass."""
        share = self._share
        if share is None or self.mean is None:
            return level
        most = self._usual
        return level - (1.0 - share) * min(max(level - self.mean, -most), most)

    def rise(self, level: float, ahead: float) -> float:
        """How much more will arrive in `ahead` seconds, records/s, 0 or more, if the rise goes on like earlier ones.

        The slope follows from the deviation of the level from the mean of the last minutes. It counts in full if
        earlier deviations grew as in a straight rise, and not at all if they did not grow.
        """
        if self.square <= 0 or self.weight < TUNING.points or self.recent is None:
            return 0.0
        goes_on = min((self.both / self.square - 1.0) / STRAIGHT, 1.0)
        off = min(level - self.recent, self._usual)
        return max(goes_on, 0.0) * max(off, 0.0) / BEFORE_S * (ahead + READING_AGE_S)

    def swings(self) -> Swings | None:
        """The level around which arrivals swing, if they return to it quickly; else None.

        It is the mean of hours, as far as chance explains its difference from the mean of the last quarter of an hour:
        if swings last for a time T, the variance of that mean is 2 T / 15 minutes of the variance of a reading.
        """
        share = self._share
        if share is None or self.mean is None or self.mean <= 0 or self.weight < 2 * TUNING.points:
            return None
        lasts = max(AHEAD_S * share, READING_S)
        if lasts > TUNING.brief_s:
            return None
        # From the mean deviation: with squares, one burst would count for ten hours.
        spread = NORMAL_RATIO * self.absolute / self.weight
        chance = TUNING.significance * spread * math.sqrt(2 * lasts / MEAN_S) * self.mean
        return Swings(self.mean + min(max(self.total / self.weight - self.mean, -chance), chance), spread, lasts)


class Swings(NamedTuple):
    """Arrivals that swing around a level and return to it quickly.

    Attributes:
        middle: that level, records/s.
        spread: how far they swing around it (standard deviation as a share of it).
        lasts: how long a swing lasts, seconds.
    """

    middle: float
    spread: float
    lasts: float

    def backlog(self, off: float, capacity: float) -> float:
        """The largest backlog, in records, of a swing that begins `off` records/s above the level.

        The excess decays exponentially (time constant `lasts`). The backlog is the area between the arrivals and the
        capacity; infinite if the capacity is not above the level.
        """
        spare = capacity - self.middle
        if spare <= 0:
            return math.inf
        return self.lasts * (off - spare - spare * (math.log(off) - math.log(spare))) if off > spare else 0.0


def latest_rate(points: Sequence[tuple[float, float]], over: float) -> float:
    """Arrivals in the last half of the time over which readings are averaged, records/s; 0: unknown.

    Since then the mean has gained the new arrivals and lost those that are now too old, for which the mean of one
    averaging time ago stands. So a jump shows in full long before the mean has followed it.

    Args:
        points: (seconds, records/s) in order of time, the newest last.
        over: the averaging time of each reading, seconds.
    """
    at, value = points[-1]
    half = bisect_right(points, at - over / 2, key=TIME_OF) - 1
    whole = bisect_right(points, at - over, key=TIME_OF) - 1
    if whole < 1:
        return 0.0
    return max(_middle(points, whole) + over / (at - points[half][0]) * (value - _middle(points, half)), 0.0)


def _middle(points: Sequence[tuple[float, float]], number: int) -> float:
    """The median of a point and its two neighbours, so that a single outlier does not count."""
    return sorted([value for _, value in points[number - 1 : number + 2]])[1]


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum([value for _, value in points]) / len(points)
