"""What arrives and what will arrive: the level, how much of it lasts, and a rise that stands out of the noise."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from autoscaler_policies.adaptive.tuning import TUNING

NEVER = -math.inf
"""The time of what has not been seen."""
MINUTE_S = 60.0
"""Rates are mostly means over a minute: readings closer together repeat each other."""
READING_AGE_S = MINUTE_S / 2
"""... and they describe a moment so long ago."""
READING_S = MINUTE_S / 4
"""Readings closer together than this count proportionally less for how arrivals rise."""
LEAST_NOISE = TUNING.noise / 10_000
"""As no jump is noise, from nothing it would never grow again; from here it takes half an hour."""
NORMAL_RATIO = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation of a normal distribution."""

MEAN_S = (TUNING.points - 1) * MINUTE_S
AHEAD_S = TUNING.points * MINUTE_S / 3
"""What arrivals are off from their mean is compared with the mean of so long after."""
BEFORE_S = (MEAN_S - AHEAD_S) / 2
"""A reading is so much later than the middle of the minutes before it that it is compared with..."""
STRAIGHT = (MEAN_S + MINUTE_S) / 2 / BEFORE_S - 1.0
"""... and of arrivals that rise straight, the mean after it is off by so much more than the reading."""

TIME_OF = itemgetter(0)
"""That of a point."""


@dataclass(slots=True)
class Arrivals:
    """The arrivals now.

    Attributes:
        seen_at: time of the last reading, seconds since 1970.
        level: records/s now; None: nothing was seen.
        slope: how they rose recently, records/s per second...
        trend: ... where that stands out of the noise; else 0.
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
        """Take in a new reading.

        Args:
            value: records/s.
            at: when it was true, seconds since 1970. A reading that was seen before changes nothing.
            latest: what arrived recently, records/s, where the value is a mean over a longer time (`latest_rate`).
            confirmed: what other readings confirm, records/s: of a jump beyond it, no more than that, or than what
                noise explains, counts until the next reading is one as well.
        """
        since = at - self.seen_at
        if since <= 0:
            return
        self.seen_at = at
        level = self.level
        if level is None or since > TUNING.stale_s:
            self.level, self.slope, self.trend = value, 0.0, 0.0
            return
        # The noise before this reading: a greater one must not hide the rise that it is part of.
        most = TUNING.significance * self.noise
        foreseen = max(level + self.slope * since, 0.0)
        doubted, self.doubted = self.doubted, False
        usual = max(foreseen + most * level, foreseen / (1.0 - most)) if most < 1.0 else math.inf
        if value > max(usual, confirmed) and not doubted:
            self.doubted, value = True, max(usual, confirmed)
        elif latest - value > 2.0 * most * latest:  # it has the errors of two readings, and twice
            value = latest
        off, largest = value - foreseen, max(level, value)
        self.level = value
        self.slope += TUNING.slope_weight * off / max(since, READING_S)
        # What is off between readings is independent of each other: within a minute it adds up by the root.
        within_a_minute = most * math.sqrt(MINUTE_S / min(max(since, READING_S), MINUTE_S))
        self.trend = self.slope if self.slope * MINUTE_S > within_a_minute * foreseen else 0.0
        if largest > 0:
            seen = min(abs(off) / largest, most) * NORMAL_RATIO  # a jump is no noise
            self.noise = max(self.noise + TUNING.noise_weight * (seen - self.noise), LEAST_NOISE)

    def rise(self, ahead: float) -> float:
        """How much more will arrive so many seconds ahead, records/s, 0 or more."""
        return max(self.trend, 0.0) * (min(ahead, TUNING.warm_up_s) + READING_AGE_S)


@dataclass(slots=True)
class Lasting:
    """How much of what arrivals are off from their mean lasts: a line through what was off before and after.

    Attributes:
        seen_at: time of the last reading.
        mean: arrivals of the last quarter of an hour, records/s; None: not known.
        recent: the same of the last ten minutes.
        weight: minutes that were looked at, of which earlier ones count less.
        total: the sum of that mean over them.
        square, both: their sums of squares of what was off before, and of products with what was off after.
        absolute: their sum of what was off before, without its sign.
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
        """Learn from (seconds since 1970, records/s) about a minute apart, in order of time; at least one."""
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
        """What lasts of a deviation, 0 to 1; None: not known, or of a jump out of next to nothing, which hides it."""
        if self.mean is None or self.square <= 0 or self.weight <= 0 or self.both < -self.square:
            return None
        return min(max(self.both / self.square, 0.0), 1.0)

    @property
    def _usual(self) -> float:
        """By how much arrivals are off from their mean at most, records/s; what is more than that is no swing."""
        return TUNING.significance * (self.mean or 0.0) * math.sqrt(self.square / self.weight)

    def rate(self, level: float) -> float:
        """What will arrive by the present level, records/s: of what it is off from the mean as much as mostly lasts."""
        share = self._share
        if share is None or self.mean is None:
            return level
        most = self._usual
        return level - (1.0 - share) * min(max(level - self.mean, -most), most)

    def rise(self, level: float, ahead: float) -> float:
        """How much more will arrive so many seconds ahead, records/s, 0 or more, as rises went on before.

        The slope is by what the level is off from the mean of the last minutes. It counts fully where what was off
        before grew as it does when arrivals rise straight, and not at all where it grew no further.
        """
        if self.square <= 0 or self.weight < TUNING.points or self.recent is None:
            return 0.0
        goes_on = min((self.both / self.square - 1.0) / STRAIGHT, 1.0)
        off = min(level - self.recent, self._usual)
        return max(goes_on, 0.0) * max(off, 0.0) / BEFORE_S * (ahead + READING_AGE_S)

    def swings(self) -> Swings | None:
        """The level that arrivals have swung around, if they return to it quickly.

        It is the mean of hours, as far as chance explains that the last quarter of an hour differs from it: the mean
        of what swings for a time T has a variance of 2 T / 15 minutes of that of a reading.
        """
        share = self._share
        if share is None or self.mean is None or self.mean <= 0 or self.weight < 2 * TUNING.points:
            return None
        lasts = max(AHEAD_S * share, READING_S)
        if lasts > TUNING.brief_s:
            return None
        # By the mean deviation: the squares of one burst would count for ten hours.
        spread = NORMAL_RATIO * self.absolute / self.weight
        chance = TUNING.significance * spread * math.sqrt(2 * lasts / MEAN_S) * self.mean
        return Swings(self.mean + min(max(self.total / self.weight - self.mean, -chance), chance), spread, lasts)


class Swings(NamedTuple):
    """Arrivals that swing around a level and return to it quickly.

    Attributes:
        middle: that level, records/s.
        spread: by how much they swing around it (standard deviation as a share of it).
        lasts: how long that lasts, seconds.
    """

    middle: float
    spread: float
    lasts: float

    def backlog(self, off: float, capacity: float) -> float:
        """Records that wait at most after arrivals were `off` above the level, records/s, which fades while it lasts.

        The area between that and what is processed; infinite where not even the level is.
        """
        spare = capacity - self.middle
        if spare <= 0:
            return math.inf
        return self.lasts * (off - spare - spare * (math.log(off) - math.log(spare))) if off > spare else 0.0


def latest_rate(points: Sequence[tuple[float, float]], over: float) -> float:
    """What arrived in the last half of the time that readings are means over, records/s; 0: not known.

    What the mean has grown by since then is what arrived since, without what the mean has left behind, for which the
    mean of that time stands. So a jump is seen whole long before the mean has followed it.

    Args:
        points: (seconds, records/s) in order of time, the newest last.
        over: seconds that each is a mean over.
    """
    at, value = points[-1]
    half = bisect_right(points, at - over / 2, key=TIME_OF) - 1
    whole = bisect_right(points, at - over, key=TIME_OF) - 1
    if whole < 1:
        return 0.0
    return max(_middle(points, whole) + over / (at - points[half][0]) * (value - _middle(points, half)), 0.0)


def _middle(points: Sequence[tuple[float, float]], number: int) -> float:
    """The value of a point, but for one that is off from both of its neighbours."""
    return sorted([value for _, value in points[number - 1 : number + 2]])[1]


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum([value for _, value in points]) / len(points)
