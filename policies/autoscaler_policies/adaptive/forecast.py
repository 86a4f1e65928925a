"""What arrives and what will arrive: the level, and trends that stand out of the noise.

What is learned are a few numbers in a policy's memory, under names that begin with `arrivals.`, `trend.`,
`forecast.` and `error.`. Every forecast is compared with the arrivals, and counts as much as it was right recently.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter, sub
from typing import NamedTuple

MINUTE_S = 60.0
"""Rates are mostly means over a minute: readings closer together repeat each other."""
TRENDS: Mapping[str, int] = {"minutes": 6, "quarter": 15}
"""Trends are searched in so many readings, a minute apart."""
TREND_NAMES = tuple([(f"trend.{name}", count) for name, count in TRENDS.items()])
SLOPE_SIGNIFICANCE = 3.0
"""A slope must be so many times its standard error (a t-test with few degrees of freedom, hence more than 2)..."""
RISE_SIGNIFICANCE = 3.0
"""... and rise within its time by so many times what arrivals swing by from minute to minute..."""
MINUTE_SIGNIFICANCE = 3.0
"""... and that of the last minute by so many times within a minute."""
MIN_POINTS = 4
READING_S = 15.0
"""Readings closer together than this count proportionally less for how arrivals rise and swing."""

LEVEL_WEIGHT = 0.4
SLOPE_WEIGHT = 0.1
"""Weights of a new reading in the level and in the trend of the last minute (Holt's linear smoothing)..."""
JUMP_SIGNIFICANCE = 4.0
"""... unless it is off by more than so many times the noise: then it is the level."""
NOISE = 0.05
MIN_NOISE = 0.01
MAX_AMPLIFICATION = 8.0
"""Errors of a mean are amplified at most so many times in the latest rate."""
LATEST_NOISE = 0.2
"""The noise of the latest rate starts high: it amplifies the error of a single reading several times."""
NOISE_WEIGHT = 0.03
NORMAL_RATIO = 1.2533
"""Standard deviation over mean absolute deviation of a normal distribution."""
SWING = 0.03
SWING_WEIGHT = 0.005
"""How much arrivals swing around their trend from minute to minute: learned in an hour, as a jump is no swing."""
STALE_S = 600.0
"""After so long without a reading the level begins anew."""

LINE_DECAY_S = 3600.0
"""Weights of the readings in the long line fade to 37 % within so long."""
DRIFT_DECAY_S = 300.0
LINE_EXIT = 4.5
"""The line is left when the mean over so long, or one reading, is off by so many times what that swings by..."""
LINE_JUMP = 3.0
"""... or arrivals jump to so far above it: a jump from below to above it may be but a swing."""
MIN_LINE_AGE_S = 1800.0
"""Arrivals only swing around a line that has held for so long..."""
FLATNESS_S = 600.0
"""... that within so long rises or falls by less than they swing by..."""
MAX_SWING_S = 400.0
"""... and a deviation from which decays within so long (to 37 %)."""
SPREAD_WEIGHT = 1 / 120
"""How much they swing around it, and for how long, is learned from a reading a minute, in two hours..."""
INITIAL_WEIGHT = 1 / 6
"""... and in minutes at first, when what is assumed counts as much as five readings."""
MAX_DEVIATIONS = 4.0
"""What is off by more than so many times the spread counts no more in it."""
LONGEST_SWING_S = 600.0
"""Longer swings cannot be recognised by a line through the last hour."""

OUTLAST_S = 300.0
"""How much of what arrivals are off from their mean lasts is learned by the mean of so long after..."""
OUTLAST_DECAY_S = 7200.0
"""... and that is forgotten to 37 % within so long."""
OUTLAST_PRIOR = 0.05
"""Until then all of it is expected to last: worth so many minutes times the square of a share of the mean."""
OUTLAST_DEVIATIONS = 3.0
"""What is off by more than so many times what is usual lasts: it is no swing."""

FORECAST_AHEAD_S = 300.0
"""Forecasts are compared with the arrivals so long after."""
ERROR_WEIGHT = 0.2


LINE_SUMS = tuple([f"line.{name}" for name in ("weight", "t", "tt", "x", "tx")])
"""The sums that make the long line; without one of them it begins anew."""


TIME_OF = itemgetter(0)
"""That of a point."""


class SteadyLine(NamedTuple):
    """A line that arrivals have long swung around and return to quickly.

    Attributes:
        middle: where it is, records/s.
        spread: by how much they swing around it (standard deviation as a share of it).
        lasts: how long that lasts, seconds.
    """

    middle: float
    spread: float
    lasts: float

    def backlog(self, off: float, capacity: float) -> float:
        """Records that wait at most after arrivals were `off` above the line, records/s, which fades while it lasts.

        The area between that and what is processed; infinite where not even the middle is.
        """
        spare = capacity - self.middle
        if spare <= 0:
            return math.inf
        return self.lasts * (off - spare - spare * (math.log(off) - math.log(spare))) if off > spare else 0.0


class Line(NamedTuple):
    """A straight line through the recent past.

    Attributes:
        now: its value at the last point.
        slope: its rise per second.
        error: standard error of the slope; infinite with too few points.
        noise: standard deviation of the points around it.
        span: seconds from the first point to the last.
    """

    now: float
    slope: float
    error: float
    noise: float
    span: float


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Ordinary least squares through (seconds, value), in order of time; at least one point."""
    count = len(points)
    end, last = points[-1]
    begin = points[0][0]
    if count < MIN_POINTS or end <= begin:
        return Line(last, 0.0, math.inf, 0.0, 0.0)
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
    return Line(last + mean_v - slope * mean_t, slope, noise / math.sqrt(spread), noise, end - begin)


def is_significant(points: Sequence[tuple[float, float]], found: Line) -> bool:
    """Whether the slope of the line through the points stands out of the noise around it.

    A last point far above the line of those before it makes the slope steeper and less certain. That must not unmake
    a trend which a lower point there would have made, or more arrivals would ask for fewer replicas: beyond the value
    that makes it most certain, that value is judged.
    """
    if found.slope > SLOPE_SIGNIFICANCE * found.error:
        return True
    at, last = points[-1]
    if len(points) <= MIN_POINTS or found.slope <= 0 or last <= found.now:
        return False
    before = line(points[:-1])
    if before.slope <= 0:
        return False
    count = len(points)
    mean = sum([t for t, _ in points]) / count
    spread = sum([(t - mean) ** 2 for t, _ in points])
    # With the last point off by d the slope is b + w d, and the squares around the line are R + k d^2: the slope is
    # greatest beside its error at d = w R / (b k).
    weight = (at - mean) / spread
    kept = 1.0 - 1.0 / count - (at - mean) ** 2 / spread
    squares = before.noise * before.noise * (count - 3)
    foreseen = before.now + before.slope * (at - points[-2][0])
    best = foreseen + weight * squares / (before.slope * kept)
    if last <= best:
        return False
    judged = line([*points[:-1], (at, best)])
    return judged.slope > SLOPE_SIGNIFICANCE * judged.error


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
    memory: dict[str, float],
    value: float,
    at: float,
    *,
    latest: float = 0.0,
    over: float = 0.0,
    doubtful: bool = False,
) -> None:
    """Take a new reading of the arrivals into their level and the trend of the last minute.

    Args:
        memory: what is known, changed in place.
        value: records/s.
        at: when it was true, seconds since 1970. A reading that was seen before changes nothing.
        latest: the latest rate, where the value is a mean over a longer time (`latest_rate`). It swings more than
            the mean, which therefore counts, but while there is a jump in it.
        over: seconds that the value is a mean over; 0 where it is none.
        doubtful: other readings do not confirm it: a jump up counts once the next reading is one as well.
    """
    seen = memory.get("arrivals.seen_at", -math.inf)
    since = at - seen
    if since <= 0:
        return
    memory["arrivals.seen_at"] = at
    level, slope, noise = map(memory.get, ("arrivals.level", "arrivals.slope", "arrivals.noise"))
    if level is None or slope is None or noise is None or since > STALE_S:
        memory["arrivals.level"] = value
        memory["arrivals.foreseen"] = value
        memory["arrivals.slope"] = 0.0
        memory["arrivals.noise"] = NOISE if noise is None else noise
        return
    foreseen = max(level + slope * since, 0.0)
    memory["arrivals.foreseen"] = foreseen
    rises = False
    if over > 0:
        rises = _rises_above(memory, max(level, latest), latest - foreseen)
        if rises or at - memory.get("arrivals.rose_at", -math.inf) < over:
            value = max(value, latest)  # of a jump within an interval the mean knows more at last
    off = value - foreseen
    largest = max(level, value)
    most = JUMP_SIGNIFICANCE * noise * largest
    doubted = memory.pop("arrivals.doubted_at", None)
    if off > most:
        if doubtful and doubted is None:
            memory["arrivals.doubted_at"] = at
            return
        memory["arrivals.jumped_at"] = at
        if rises:
            if at - memory.get("arrivals.rose_at", -math.inf) >= over:
                memory["arrivals.rises_at"] = at
            memory["arrivals.rose_at"] = at
    memory["arrivals.level"] = value if abs(off) > most else foreseen + LEVEL_WEIGHT * off
    memory["arrivals.slope"] = slope + SLOPE_WEIGHT * off / max(since, READING_S)
    if largest > 0:
        memory["arrivals.noise"] = max(
            noise + NOISE_WEIGHT * (min(abs(off), most) / largest * NORMAL_RATIO - noise), MIN_NOISE
        )


def _rises_above(memory: dict[str, float], largest: float, off: float) -> bool:
    """Whether the latest rate is higher than expected, beyond its noise."""
    noise = memory.get("arrivals.latest_noise", LATEST_NOISE)
    most = JUMP_SIGNIFICANCE * noise * largest
    if largest > 0:
        noise += NOISE_WEIGHT * (min(abs(off), most) / largest * NORMAL_RATIO - noise)
        memory["arrivals.latest_noise"] = max(noise, MIN_NOISE)
    return off > most


def find_trends(memory: dict[str, float], points: Sequence[tuple[float, float]]) -> None:
    """Look for trends in the past.

    `follow` comes first. The points are (seconds since 1970, records/s) about a minute apart, in order of time; at
    least one.
    """
    level = memory.get("arrivals.level", points[-1][1])
    # What a trend must stand out of does not depend on the present reading: a greater one must not hide it.
    foreseen = memory.get("arrivals.foreseen", level)
    swing = memory.get("arrivals.swing", SWING)
    since = min(max(points[-1][0] - memory.get("arrivals.looked_at", -math.inf), 0.0), READING_S)
    memory["arrivals.looked_at"] = points[-1][0]
    for name, count in TREND_NAMES:
        some = points[-count:]
        found = line(some)
        stands_out = found.slope * found.span > RISE_SIGNIFICANCE * swing * foreseen
        memory[name] = found.slope if stands_out and is_significant(some, found) else 0.0
    slope = memory.get("arrivals.slope", 0.0)
    memory["trend.minute"] = slope if slope * MINUTE_S > MINUTE_SIGNIFICANCE * swing * foreseen else 0.0
    if found.noise > 0 and level > 0:
        swing += SWING_WEIGHT * since / READING_S * (min(found.noise / level, 2 * swing) - swing)
        memory["arrivals.swing"] = max(swing, MIN_NOISE)


def follow_line(memory: dict[str, float], value: float, at: float) -> None:
    """Follow the line through the last hour, how much arrivals swing around it, and how long that lasts.

    A weighted least-squares line, and a first-order autoregression of what is off from it: by how much (`line.spread`,
    a standard deviation as a share of the line) and for how long (`line.lasts`, seconds after which 37 % are left).
    Where arrivals leave the line it begins anew. All but a jump is judged by the readings before the present one, of
    which a greater value must not undo what a smaller one would have found.

    Args:
        memory: what is known, changed in place; `follow` comes first.
        value: records/s.
        at: when it was true, seconds since 1970. One that was seen before, or is doubtful, changes nothing.
    """
    since = at - memory.get("line.seen_at", -math.inf)
    if since <= 0 or memory.get("arrivals.doubted_at") == at:
        return
    weight, t, tt, x, tx = [memory.get(name, math.nan) for name in LINE_SUMS]
    whole = math.isfinite(weight + t + tt + x + tx)
    jumped = memory.get("arrivals.jumped_at") == at
    if not whole or since > STALE_S or (jumped and _is_far_above(memory, value)) or _has_left(memory):
        weight = t = tt = x = tx = off = drift = slope = 0.0
        since = READING_S
        middle = value
        memory["line.since_at"] = memory["line.minute_at"] = at
        memory.pop("line.minute_off", None)
    else:
        kept = math.exp(-since / LINE_DECAY_S)
        tt = kept * (tt - 2 * since * t + since * since * weight)
        tx = kept * (tx - since * x)
        t, x, weight = kept * (t - since * weight), kept * x, kept * weight
        spread_t = tt - t * t / weight
        slope = (tx - t * x / weight) / spread_t if spread_t > 0 else 0.0
        middle = max((x - slope * t) / weight, 0.0)
        off = (value - middle) / middle if middle > 0 else 0.0
        drift = memory.get("line.drift", 0.0)
        drift += (1 - math.exp(-since / DRIFT_DECAY_S)) * (off - drift)
    counts = min(since, MINUTE_S)
    memory["line.seen_at"] = at
    memory["line.weight"], memory["line.x"] = weight + counts, x + counts * value
    memory["line.t"], memory["line.tt"], memory["line.tx"] = t, tt, tx
    memory["line.now"], memory["line.slope"], memory["line.off"], memory["line.drift"] = middle, slope, off, drift
    passed = at - memory.get("line.minute_at", at)
    if passed >= MINUTE_S and at - memory.get("line.since_at", at) >= DRIFT_DECAY_S:
        _learn_spread(memory, off, passed)
        memory["line.minute_at"], memory["line.minute_off"] = at, off


def _is_far_above(memory: Mapping[str, float], value: float) -> bool:
    """Whether a reading is far above the long line."""
    middle = memory.get("line.now", 0.0)
    return value - middle > LINE_JUMP * memory.get("line.spread", SWING) * middle


def _learn_spread(memory: dict[str, float], off: float, passed: float) -> None:
    """How much arrivals swing around the long line, and how long that lasts, by two readings some time apart."""
    before = memory.get("line.minute_off")
    if before is None:
        return
    spread = memory.get("line.spread", SWING)
    weight = memory.get("line.learns", INITIAL_WEIGHT)
    memory["line.learns"] = max(weight / (1 + weight), SPREAD_WEIGHT)
    most = MAX_DEVIATIONS * MAX_DEVIATIONS * spread * spread
    spread = max(math.sqrt(spread * spread + weight * (min(off * off, most) - spread * spread)), MIN_NOISE)
    both = memory.get("line.both", spread * spread / math.e)
    both += weight * (min(max(off * before, -most), most) - both)
    alike = min(max(both / (spread * spread), 0.05), math.exp(-passed / LONGEST_SWING_S))
    memory["line.spread"], memory["line.both"], memory["line.lasts"] = spread, both, -passed / math.log(alike)


def _line_variance(memory: Mapping[str, float]) -> float:
    """Variance of where the long line is now, in that of a reading: an end of a line through what lasts for a while."""
    held = memory.get("line.seen_at", 0.0) - memory.get("line.since_at", 0.0)
    return 8 * memory.get("line.lasts", MINUTE_S) / min(max(held, 1.0), 2 * LINE_DECAY_S)


def _has_left(memory: Mapping[str, float]) -> bool:
    """Whether arrivals have left the long line."""
    if not memory["line.seen_at"] - memory.get("line.since_at", math.inf) >= MIN_LINE_AGE_S:
        return False
    unsure, lasts = _line_variance(memory), memory.get("line.lasts", MINUTE_S)
    most = LINE_EXIT * memory.get("line.spread", SWING)
    drift = abs(memory.get("line.drift", 0.0))
    return abs(memory.get("line.off", 0.0)) > most * math.sqrt(1 + unsure) or drift > most * math.sqrt(
        lasts / (lasts + DRIFT_DECAY_S) + unsure
    )


def steady_line(memory: Mapping[str, float]) -> SteadyLine | None:
    """The line that arrivals have long swung around and return to quickly; None where there is none."""
    held = memory.get("line.seen_at", 0.0) - memory.get("line.since_at", math.inf)
    middle, spread = memory.get("line.now", 0.0), memory.get("line.spread", SWING)
    lasts = memory.get("line.lasts", math.inf)
    if (
        held < MIN_LINE_AGE_S
        or lasts > MAX_SWING_S
        or abs(memory.get("line.slope", 0.0)) * FLATNESS_S > spread * middle
    ):
        return None
    return SteadyLine(middle, spread, lasts)


def learn_outlasting(memory: dict[str, float], points: Sequence[tuple[float, float]]) -> None:
    """Learn how much of a deviation from the mean lasts: the slope of a line through what was off before and after.

    Args:
        memory: what is known, changed in place.
        points: (seconds since 1970, records/s) as for `find_trends`.
    """
    now = points[-1][0]
    since = min(max(now - memory.get("outlast.seen_at", now), 0.0), MINUTE_S)
    memory["outlast.seen_at"] = now
    memory["outlast.mean"] = _mean(points)
    first = bisect_right(points, now - OUTLAST_S, key=TIME_OF)
    if now - points[0][0] < 2 * OUTLAST_S or not (mean := _mean(points[:first])):
        return
    before, after = points[first - 1][1] / mean - 1.0, _mean(points[first:]) / mean - 1.0
    kept, weight = math.exp(-since / OUTLAST_DECAY_S), since / MINUTE_S
    for name, product in (("weight", 1.0), ("square", before * before), ("both", before * after)):
        memory[f"outlast.{name}"] = memory.get(f"outlast.{name}", 0.0) * kept + weight * product


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum([value for _, value in points]) / len(points)


def lasting_rate(memory: Mapping[str, float], level: float) -> float:
    """What will arrive by the present level, records/s: as much of what it is off from the mean as mostly lasts."""
    mean, square = memory.get("outlast.mean", level), memory.get("outlast.square", 0.0)
    weight = memory.get("outlast.weight", 0.0)
    if square <= 0 or weight <= 0:
        return level
    most = OUTLAST_DEVIATIONS * mean * math.sqrt(square / weight)
    swing = min(max(level - mean, -most), most)
    lasts = (memory.get("outlast.both", 0.0) + OUTLAST_PRIOR) / (square + OUTLAST_PRIOR)
    return level - (1.0 - min(max(lasts, 0.0), 1.0)) * swing


def trends(memory: Mapping[str, float], share: float = 1.0) -> tuple[tuple[float, float], ...]:
    """The trends upward that stand out of the noise, as far as trusted: (rise per second, seconds it was seen for).

    So much of them counts as `share`, 0 to 1: none of what something better foretells.
    """
    if share <= 0:
        return ()
    found = []
    for name, count in TREND_NAMES:
        slope = memory.get(name, 0.0)
        if slope > 0:
            found.append((slope * share * trend_trust(memory), count * MINUTE_S))
    slope = memory.get("trend.minute", 0.0)
    if slope > 0:
        found.append((slope * share, MINUTE_S))
    return tuple(found)


def judge_forecast(memory: dict[str, float], now: float) -> None:
    """Compare the trend of a while ago with the arrivals, and make a new forecast.

    `follow` and `find_trends` come first.
    """
    due = memory.get("forecast.due_at", now)
    level = memory.get("arrivals.level", 0.0)
    if now < due <= now + FORECAST_AHEAD_S:
        return
    unchanged, value = memory.pop("forecast.unchanged", None), memory.pop("forecast.trend", None)
    if value is not None and unchanged is not None and due <= now <= due + MINUTE_S and level > 0:
        for what, guess in (("trend", value), ("trend_unchanged", unchanged)):
            error = min(abs(guess - level) / level, 10.0)
            known = memory.get(f"error.{what}", error)
            memory[f"error.{what}"] = known + ERROR_WEIGHT * (error - known)
    memory["forecast.due_at"] = now + FORECAST_AHEAD_S
    memory["forecast.unchanged"] = level
    rise = max(memory.get(name, 0.0) * min(FORECAST_AHEAD_S, count * MINUTE_S) for name, count in TREND_NAMES)
    if rise > 0:
        memory["forecast.trend"] = level + rise


def trend_trust(memory: Mapping[str, float]) -> float:
    """How far trends count, 0 to 1: fully, unless they were worse recently than to expect no change."""
    error = memory.get("error.trend", 0.0)
    if error <= 0:
        return 1.0
    return min(1.0, memory.get("error.trend_unchanged", error) / error) ** 2
