"""What arrives and what will arrive: the level, how much of it lasts, and trends that stand out of the noise.

Every forecast of a trend is compared with the arrivals, and counts as much as it was right recently.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter, sub
from typing import NamedTuple

NEVER = -math.inf
"""The time of what has not been seen."""
MINUTE_S = 60.0
"""Rates are mostly means over a minute: readings closer together repeat each other."""
READING_AGE_S = MINUTE_S / 2
"""... and they describe a moment so long ago."""
READING_S = 15.0
"""Readings closer together than this count proportionally less for how arrivals rise and swing."""
STALE_S = 600.0
"""After so long without a reading what was learned from the last one begins anew."""
SIGNIFICANCE = 3.0
"""What stands out of the noise is so many times its standard error (or deviation): chance does so once in 700 times."""

LEVEL_WEIGHT = 0.4
SLOPE_WEIGHT = 0.1
"""Weights of a new reading in the level and in the trend of the last minute (Holt's linear smoothing), unless it is off
by more than noise: then it is the level."""
NOISE = 0.05
NOISE_WEIGHT = 0.03
"""Standard deviation of readings, as a share of the level, until it was seen; and the weight of a new reading in it."""
MIN_NOISE = 0.01
LATEST_NOISE = 0.2
"""The noise of the latest rate starts high: it amplifies the error of a single reading..."""
MAX_AMPLIFICATION = 8.0
"""... at most so many times."""
NORMAL_RATIO = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute deviation of a normal distribution."""

POINTS = 15
"""Trends, and how much of a deviation lasts, are looked for in so many readings, a minute apart."""
MEAN_S = (POINTS - 1) * MINUTE_S
TREND_POINTS = 12
"""A trend is a line through so many, but for the present one, which may be a jump."""
TREND_S = (TREND_POINTS - 1) * MINUTE_S
MIN_POINTS = 4
SWING = 0.03
SWING_WEIGHT = 0.005
"""How much arrivals swing around their trend from minute to minute: learned in an hour, as a jump is no swing."""
AHEAD_S = 300.0
"""Forecasts are compared with the arrivals so long after, and what arrivals are off from their mean with the mean of so
long after."""
ERROR_WEIGHT = 0.2
"""Weight of the last comparison in the error of the forecast."""

LASTING_DECAY_S = 7200.0
"""How much of a deviation lasts is forgotten to 37 % within so long."""
LASTING_PRIOR = 0.05
"""Until it was seen all of it is expected to last: worth so many minutes times the square of a share of the mean."""
STEADY_MINUTES = 30.0
"""Arrivals are said to swing around a level once that was seen for so long..."""
STEADY_S = 200.0
"""... where a deviation decays within so long (to 37 %): longer ones look like a change of the level."""
MIN_LASTING = 0.02
"""... and of which this share lasts at least: it is learned of few."""
CHANCE = 2.0
"""Where the mean of a quarter of an hour is within so many standard errors of that of hours, the latter counts."""

TIME_OF = itemgetter(0)
"""That of a point."""


@dataclass(slots=True)
class Arrivals:
    """The arrivals now.

    Attributes:
        seen_at: time of the last reading, seconds since 1970.
        level: records/s now; None: nothing was seen.
        foreseen: records/s that were expected for the last reading.
        slope: rise of the level, records/s per second.
        noise: standard deviation of a reading, as a share of the level...
        latest_noise: ... and of the latest rate.
        rose_at: when a jump began that a mean over a longer time has not followed yet.
        doubted: whether the last reading was a jump that other readings did not confirm.
    """

    seen_at: float = NEVER
    level: float | None = None
    foreseen: float = 0.0
    slope: float = 0.0
    noise: float = NOISE
    latest_noise: float = LATEST_NOISE
    rose_at: float = NEVER
    doubted: bool = False


@dataclass(slots=True)
class Trend:
    """How arrivals rise, records/s per second; 0 where no rise stands out of the noise.

    Attributes:
        seen_at: when it was looked for last.
        line: by a line through the last minutes.
        minute: by the last minute.
        swing: how much arrivals swing around that line, as a share of the level.
        due_at: when a forecast is compared with the arrivals...
        expected, unchanged: ... with the trend, and the level when it was made; None: there is none.
        error, unchanged_error: how wrong both were lately, as a share; None: not known.
    """

    seen_at: float = NEVER
    line: float = 0.0
    minute: float = 0.0
    swing: float = SWING
    due_at: float | None = None
    expected: float | None = None
    unchanged: float | None = None
    error: float | None = None
    unchanged_error: float | None = None

    @property
    def trust(self) -> float:
        """How far a trend counts, 0 to 1: fully, unless it was worse recently than to expect no change."""
        if not self.error or self.unchanged_error is None or self.error <= 0:
            return 1.0
        return min(1.0, max(self.unchanged_error, 0.0) / self.error) ** 2

    def rise(self, ahead: float, persistence: float) -> float:
        """How much more will arrive so many seconds ahead, records/s, 0 or more.

        A trend is expected to last `persistence` times as long as it has been seen.
        """
        lasting = self.trust * self.line * (min(ahead, persistence * TREND_S) + READING_AGE_S)
        return max(lasting, self.minute * (min(ahead, persistence * MINUTE_S) + READING_AGE_S), 0.0)


@dataclass(slots=True)
class Lasting:
    """How much of what arrivals are off from their mean lasts: a line through what was off before and after.

    Attributes:
        seen_at: time of the last reading.
        mean: arrivals of the last quarter of an hour, records/s; None: not known.
        weight: minutes that were looked at, of which earlier ones count less.
        total: the sum of that mean over them.
        square, both: their sums of squares of what was off before, and of products with what was off after.
    """

    seen_at: float | None = None
    mean: float | None = None
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    both: float = 0.0

    @property
    def _is_of_jumps(self) -> bool:
        """Whether a jump out of next to nothing outweighs all else, so that no swing can be recognised."""
        return self.both < -self.square

    def rate(self, level: float) -> float:
        """What will arrive by the present level, records/s: of what it is off from the mean as much as mostly lasts."""
        if self.mean is None or self.square <= 0 or self.weight <= 0 or self._is_of_jumps:
            return level
        most = SIGNIFICANCE * self.mean * math.sqrt(self.square / self.weight)  # more than that is no swing: it lasts
        swing = min(max(level - self.mean, -most), most)
        lasts = (self.both + LASTING_PRIOR) / (self.square + LASTING_PRIOR)
        return level - (1.0 - min(max(lasts, 0.0), 1.0)) * swing

    def swings(self) -> Swings | None:
        """The level that arrivals have swung around, if they return to it quickly.

        It is the mean of hours, as far as chance explains that the last quarter of an hour differs from it: the mean
        of what swings for a time T has a variance of 2 T / 15 minutes of that of a reading.
        """
        if self.mean is None or self.mean <= 0 or self.weight < STEADY_MINUTES or self.square <= 0 or self._is_of_jumps:
            return None
        lasts = AHEAD_S * max(self.both / self.square, MIN_LASTING)
        if lasts > STEADY_S:
            return None
        spread = math.sqrt(self.square / self.weight)
        chance = CHANCE * spread * math.sqrt(2 * lasts / MEAN_S) * self.mean
        middle = self.mean + min(max(self.total / self.weight - self.mean, -chance), chance)
        return Swings(middle, spread, lasts)


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


class Line(NamedTuple):
    """A straight line through the recent past.

    Attributes:
        slope: its rise per second.
        error: standard error of the slope; infinite with too few points.
        noise: standard deviation of the points around it.
    """

    slope: float
    error: float
    noise: float


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Ordinary least squares through (seconds, value), in order of time; at least one point."""
    count = len(points)
    end, last = points[-1]
    if count < MIN_POINTS or end <= points[0][0]:
        return Line(0.0, math.inf, 0.0)
    sum_t = sum_v = sum_tt = sum_tv = 0.0
    for at, value in points:
        t = at - end
        v = value - last
        sum_t += t
        sum_v += v
        sum_tt += t * t
        sum_tv += t * v
    mean_t, mean_v = sum_t / count, sum_v / count
    spread = sum_tt - count * mean_t * mean_t
    slope = (sum_tv - count * mean_t * mean_v) / spread
    squares = 0.0
    for at, value in points:
        off = value - last - mean_v - slope * (at - end - mean_t)
        squares += off * off
    noise = math.sqrt(squares / (count - 2))
    return Line(slope, noise / math.sqrt(spread), noise)


def latest_rate(points: Sequence[tuple[float, float]], over: float) -> float:
    """The rate since the reading before, of readings that are means over a longer time.

    What came in `over` seconds is what came since the reading before, and what the last of them but that held: the
    difference of the two means is how much more it is than the rate `over` seconds ago, for which the middle one
    of the means of that time stands. A jump is so seen whole long before the mean has followed it.

    Args:
        points: (seconds, records/s) in order of time, the newest last; at least one.
        over: seconds that each is a mean over.
    """
    value = points[0][1]
    # A reading that is the same to the last digit was probably not measured anew: Prometheus asked more often than it
    # scrapes. What is new in the next one came since the last that was.
    anew = []
    for time, now in points:
        if now != value:
            anew.append(time)
        value = now
    at = anew[-1] if anew else points[-1][0]
    apart = min(map(sub, anew[1:], anew), default=0.0)
    before = bisect_right(points, at - max(apart, READING_S, over / MAX_AMPLIFICATION), key=TIME_OF) - 1
    ago = bisect_right(points, at - over, key=TIME_OF) - 1
    if before < 0 or ago < 0:
        return value
    since, then = points[before]
    if at - since > over / 2:
        return value
    usual = sorted([rate for _, rate in points[ago - 1 : ago + 2]])[1] if ago else points[0][1]
    return max(usual + over / (at - since) * (value - then), 0.0)


def follow(
    known: Arrivals, value: float, at: float, *, latest: float = 0.0, over: float = 0.0, doubtful: bool = False
) -> None:
    """Take a new reading of the arrivals into their level and slope.

    Args:
        known: changed in place.
        value: records/s.
        at: when it was true, seconds since 1970. A reading that was seen before changes nothing.
        latest: the latest rate, where the value is a mean over a longer time (`latest_rate`). It swings more than
            the mean, which therefore counts, but while there is a jump in it.
        over: seconds that the value is a mean over; 0 where it is none.
        doubtful: other readings do not confirm it: a jump up counts once the next reading is one as well.
    """
    since = at - known.seen_at
    if since <= 0:
        return
    known.seen_at = at
    level = known.level
    if level is None or since > STALE_S:
        known.level = known.foreseen = value
        known.slope = 0.0
        return
    known.foreseen = foreseen = max(level + known.slope * since, 0.0)
    rises = False
    if over > 0:
        rises = _rises_above(known, max(level, latest), latest - foreseen)
        if rises or at - known.rose_at < over:
            value = max(value, latest)  # of a jump within an interval the mean knows more at last
    off = value - foreseen
    largest = max(level, value)
    most = SIGNIFICANCE * known.noise * largest
    doubted, known.doubted = known.doubted, False
    if off > most:
        if doubtful and not doubted:
            known.doubted = True
            return
        if rises:
            known.rose_at = at
    known.level = value if abs(off) > most else foreseen + LEVEL_WEIGHT * off
    known.slope += SLOPE_WEIGHT * off / max(since, READING_S)
    if largest > 0:
        known.noise = _noise(known.noise, off, most, largest)


def _noise(noise: float, off: float, most: float, largest: float) -> float:
    """The noise after a reading that is off by so much, of which no more than `most` counts."""
    return max(noise + NOISE_WEIGHT * (min(abs(off), most) / largest * NORMAL_RATIO - noise), MIN_NOISE)


def _rises_above(known: Arrivals, largest: float, off: float) -> bool:
    """Whether the latest rate is higher than expected, beyond its noise."""
    most = SIGNIFICANCE * known.latest_noise * largest
    if largest > 0:
        known.latest_noise = _noise(known.latest_noise, off, most, largest)
    return off > most


def find_trend(trend: Trend, arrivals: Arrivals, points: Sequence[tuple[float, float]]) -> None:
    """Look for a rise. Both are changed in place; `follow` comes first.

    What a trend must stand out of does not depend on the present reading: a greater one must not hide it.

    Args:
        trend: what was found before.
        arrivals: their level and slope.
        points: (seconds since 1970, records/s) about a minute apart, in order of time; at least one.
    """
    level = points[-1][1] if arrivals.level is None else arrivals.level
    since = min(max(points[-1][0] - trend.seen_at, 0.0), READING_S)
    trend.seen_at = points[-1][0]
    found = line(points[-TREND_POINTS:-1] or points)
    trend.line = found.slope if found.slope > SIGNIFICANCE * found.error else 0.0
    stands_out = arrivals.slope * MINUTE_S > SIGNIFICANCE * trend.swing * arrivals.foreseen
    trend.minute = arrivals.slope if stands_out else 0.0
    if found.noise > 0 and level > 0:
        off = min(found.noise / level, 2 * trend.swing) - trend.swing
        trend.swing = max(trend.swing + SWING_WEIGHT * since / READING_S * off, MIN_NOISE)


def judge_trend(trend: Trend, level: float, now: float) -> None:
    """Compare the trend of a while ago with the arrivals, and make a new forecast.

    Args:
        trend: changed in place; `find_trend` comes first.
        level: of the arrivals, records/s.
        now: seconds since 1970.
    """
    due = now if trend.due_at is None else trend.due_at
    if now < due <= now + AHEAD_S:
        return
    if trend.expected is not None and trend.unchanged is not None and due <= now <= due + MINUTE_S and level > 0:
        trend.error = _error(trend.error, trend.expected, level)
        trend.unchanged_error = _error(trend.unchanged_error, trend.unchanged, level)
    trend.due_at = now + AHEAD_S
    trend.expected, trend.unchanged = (level + trend.line * AHEAD_S, level) if trend.line > 0 else (None, None)


def _error(known: float | None, guess: float, level: float) -> float:
    error = min(abs(guess - level) / level, 10.0)
    return error if known is None else known + ERROR_WEIGHT * (error - known)


def learn_lasting(known: Lasting, points: Sequence[tuple[float, float]]) -> None:
    """Learn how much of a deviation from the mean lasts.

    Args:
        known: changed in place.
        points: (seconds since 1970, records/s) as for `find_trend`.
    """
    now = points[-1][0]
    since = 0.0 if known.seen_at is None else min(max(now - known.seen_at, 0.0), MINUTE_S)
    known.seen_at = now
    known.mean = _mean(points)
    first = bisect_right(points, now - AHEAD_S, key=TIME_OF)
    if now - points[0][0] < 2 * AHEAD_S or not (mean := _mean(points[:first])):
        return
    before, after = points[first - 1][1] / mean - 1.0, _mean(points[first:]) / mean - 1.0
    kept, weight = math.exp(-since / LASTING_DECAY_S), since / MINUTE_S
    known.weight = known.weight * kept + weight
    known.total = known.total * kept + weight * known.mean
    known.square = known.square * kept + weight * before * before
    known.both = known.both * kept + weight * before * after


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum([value for _, value in points]) / len(points)
