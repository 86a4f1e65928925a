"""The usual week: what arrives at each time of the week, where that repeats, and how well it foretells other days.

Weeks are few and days are many. So a weekday is told by the least that tells it best: the median of all days, of all
workdays or all weekends, of its own weeks, or half of each; what is best is what comes nearest to days that it was not
made from. Medians over days, and of neighbouring times, keep sharp jumps sharp. Where the week so found does not
foretell other days better than that all stays as it is, there is no season.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.core.workload_profile import Season

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

DAY_S = 86400
WEEK = 7
WEEKS = 8
"""Only the last so many weeks count: what is older is another season."""
BINS_S = (60, 300, 900, 1800, 3600)
"""Times of the day are told apart by the first of these that is not shorter than the slots given..."""
COARSE_S = 300
"""... a profile has slots of this length, unless sharp jumps need finer ones..."""
SHARP = 0.1
"""... that is, where the coarse ones are off by more than this share of the mean."""

WHOLE = 0.5
"""A day of which at least this share is known can be held against others."""
LEAST_DAYS = 6
LEAST_SPAN = 6.5
"""Fewer whole days, or fewer days' worth of slots, are no week."""
HELD_OUT = 28
JUDGED = 14
TRIED = 6
"""So many days, the last ones, tell how to make a weekday; what the forecasts are worth; and how to smooth."""

ODD = 3.0
LEAST_ODD = 0.25
"""A day is odd that is further from its like than so many times what is usual, and than this share of the mean..."""
MOST_ODD = 0.25
"""... unless more than this share of days are: then that is how days are."""
COMPARED = 48
"""Parts of a day that are held against each other."""

BETTER = 0.97
"""What is made of fewer days must be so much better."""
WIDTHS = (1, 5, 15, 31)
"""Slots that are smoothed over, by a running median."""

AHEAD = (5, 15, 30, 60)
"""Minutes that forecasts are judged by."""
EVERY_S = 300
LITTLE = 0.05
"""Below this share of the mean a ratio of two usual rates says nothing."""
WORTH = 0.95
CLEARLY = 0.9
GAINS = 2.0
"""The season's forecasts must be so much better than that all stays as it is: all together, or those of one of the
times ahead; and they must gain on some days so many times what they lose on others."""
NEAR_S = 1800
"""Percentiles of a time are those of all days within so long before and after."""

ALL, KIND, HALF, OWN = range(4)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in the arrivals of some weeks.

    Attributes:
        season: the usual week; None: there is none, or less than a week is known.
        errors: minutes ahead -> mean error of what the season forecasts, as a share of the mean arrivals, on days that
            it was not made from. Empty where no week is known.
        stays: the same if all is expected to stay as it is.
        odd: days that do not count, given or found.
        days: days that are known at least by half.
    """

    season: Season | None
    errors: Mapping[int, float] = field(default_factory=dict)
    stays: Mapping[int, float] = field(default_factory=dict)
    odd: tuple[date, ...] = ()
    days: int = 0


def season(slots: Sequence[tuple[float, float]], holidays: Collection[date] = ()) -> Season | None:
    """The usual week by the mean rates of slots of equal length.

    Args:
        slots: (begin of the slot in seconds since 1970, records/s), in any order; what is missing is left out.
        holidays: days (UTC) that do not count.
    """
    if not slots:
        return None
    starts, rates = np.array(slots, dtype=np.float64).T
    return find(starts, rates, holidays).season


def find(starts: Numbers, rates: Numbers, holidays: Collection[date] = ()) -> Found:
    """The usual week, and how well it foretells days that it was not made from. Arguments as those of `season`."""
    good = np.isfinite(starts) & np.isfinite(rates) & (rates >= 0)
    starts, rates = starts[good], rates[good]
    if not len(starts):
        return Found(None)
    width = _width(starts)
    first, table = _days(starts, rates, width)
    known = np.isfinite(table).mean(axis=1)
    whole = known >= WHOLE
    mean = float(np.nanmean(table))
    if whole.sum() < LEAST_DAYS or known.sum() < LEAST_SPAN or not mean > 0:
        return Found(None, days=int(whole.sum()))
    week = _Weeks(first, table / mean, whole, width)
    odd = week.odd(holidays)
    dates = tuple(_date(first + int(day)) for day in np.flatnonzero(odd))
    used = ~odd
    if (used & whole).sum() < LEAST_DAYS - 1:
        return Found(None, odd=dates, days=int(whole.sum()))
    return week.judged(used, mean, dates)


def _width(starts: Numbers) -> int:
    """Length of the slots that the day is cut into."""
    apart = np.diff(np.unique(starts))
    usual = float(np.median(apart)) if len(apart) else 0.0
    return next((each for each in BINS_S if usual <= each), BINS_S[-1])


def _days(starts: Numbers, rates: Numbers, width: int) -> tuple[int, Numbers]:
    """The first day (since 1970) and a row for each day, with the mean of each of its slots."""
    slot = np.floor_divide(starts, width).astype(np.int64)
    per_day = DAY_S // width
    last = int(slot.max()) // per_day
    first = max(int(slot.min()) // per_day, last - WEEKS * WEEK)
    slot -= first * per_day
    inside = slot >= 0
    size = (last - first + 1) * per_day
    sums = np.bincount(slot[inside], rates[inside], size)
    counts = np.bincount(slot[inside], minlength=size)
    with np.errstate(invalid="ignore"):
        return first, (sums / np.where(counts > 0, counts, np.nan)).reshape(-1, per_day)


def _date(day: int) -> date:
    return datetime.fromtimestamp(day * DAY_S, UTC).date()


def _middle(rows: Numbers) -> Numbers:
    """The median of each column without what is missing; quicker than numpy's own, which looks at them one by one."""
    ordered = np.sort(rows, axis=0)  # what is missing goes to the end
    count = np.isfinite(ordered).sum(axis=0)
    if not len(ordered):
        return np.full(rows.shape[1], np.nan)
    column = np.arange(rows.shape[1])
    low, high = (
        ordered[np.maximum(count - 1, 0) // 2, column],
        ordered[np.minimum(count // 2, len(ordered) - 1), column],
    )
    return np.where(count > 0, (low + high) / 2, np.nan)


def _coarser(rows: Numbers, parts: int) -> Numbers:
    """Rows with fewer columns, each the mean of several."""
    if rows.shape[1] <= parts:
        return rows
    cut = rows.reshape(len(rows), parts, -1)
    count = np.isfinite(cut).sum(axis=2)
    with np.errstate(invalid="ignore"):
        means: Numbers = np.nansum(cut, axis=2) / np.where(count > 0, count, np.nan)
    return means


def _filled(row: Numbers) -> Numbers:
    """A row whose gaps are bridged by straight lines, around midnight too."""
    known = np.flatnonzero(np.isfinite(row))
    if len(known) in (0, len(row)):
        return row
    return np.interp(np.arange(len(row)), known, row[known], period=len(row))


def _smooth(row: Numbers, width: int) -> Numbers:
    """Running median, which keeps jumps sharp."""
    if width <= 1:
        return row
    side = width // 2
    padded = np.concatenate([row[-side:], row, row[:side]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    # numpy's own median looks for what is missing as well, which takes as long again: a row has no gaps here.
    smooth: Numbers = np.partition(windows, side, axis=-1)[:, side]
    return smooth


def _off(rows: Numbers, like: Numbers) -> float:
    """Mean distance from something, where both are known."""
    off = np.abs(rows - like)
    return float(np.nanmean(off)) if np.isfinite(off).any() else np.inf


class _Weeks:
    """The days of some weeks, as shares of their mean, each block of seven days at the level of the last."""

    def __init__(self, first: int, table: Numbers, whole: Flags, width: int) -> None:
        self.first = first
        self.whole = whole
        self.width = width
        self.weekday = (first + np.arange(len(table)) + 3) % WEEK  # the first of 1970 was a Thursday
        self.weekend = self.weekday >= 5  # noqa: PLR2004 - Saturday and Sunday
        last = int(np.flatnonzero(whole)[-1])
        self.block = np.maximum(last - np.arange(len(table)), 0) // WEEK
        self.levels = self._levels(table)
        self.days = table / self.levels[self.block][:, None]
        self.coarse = _coarser(self.days, min(DAY_S // COARSE_S, table.shape[1]))

    def _levels(self, table: Numbers) -> Numbers:
        """The level of each block of seven days, counted back from the last, as a share of the mean."""
        rows = _coarser(table, COMPARED)
        means = np.array([np.nan if np.isnan(row).all() else np.nanmean(row) for row in rows])
        blocks = int(self.block.max()) + 1
        levels = np.ones(blocks)
        for block in range(blocks):
            mine = means[(self.block == block) & self.whole]
            levels[block] = np.median(mine) if len(mine) else np.nan
        levels = np.where(levels > 0, levels, np.nan)
        if not np.isfinite(levels).any():
            return np.ones(blocks)
        levels = np.where(np.isfinite(levels), levels, np.nanmedian(levels))
        # Days differ: a block that is not whole is held against the days that it has.
        scaled = rows / levels[self.block][:, None]
        usual = np.array([_middle(scaled[self.weekend == weekend]) for weekend in (False, True)])
        like = usual[self.weekend.astype(int)]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.where(like > 0.2 * np.nanmean(like), scaled / like, np.nan)
        for block in range(blocks):
            mine = ratios[self.block == block]
            if np.isfinite(mine).any():
                levels[block] *= max(float(np.nanmedian(mine)), 0.01)
        return levels

    def odd(self, holidays: Collection[date]) -> Flags:
        """Days that are unlike the others of their kind, and those that are said to be."""
        count = len(self.days)
        odd = np.array([_date(self.first + day) in holidays for day in range(count)], dtype=bool)
        rows = _coarser(self.days, COMPARED)
        mean = float(np.nanmean(rows)) or 1.0
        far, own = np.zeros(count), np.full(count, np.inf)
        judged = self.whole & ~odd
        for day in np.flatnonzero(judged):
            others = judged.copy()
            others[day] = False
            like = others & (self.weekend == self.weekend[day])
            if like.sum() < 2:  # noqa: PLR2004 - of two that differ nobody knows which is the odd one
                continue
            far[day] = _off(rows[day], _middle(rows[like])) / mean
            for other in np.flatnonzero(others & (self.weekday == self.weekday[day])):
                own[day] = min(own[day], _off(rows[day], rows[other]) / mean)
        limit = max(LEAST_ODD, ODD * float(np.median(far[judged]))) if judged.any() else np.inf
        found = judged & (far > limit) & (own > limit)
        if found.sum() > MOST_ODD * count:
            return odd
        odd |= found
        return odd

    def made(self, rows: Numbers, used: Flags, weekday: int) -> Numbers:
        """What a weekday usually is, in the four ways to make it; what is missing in one is as in the one before."""
        kind = self.weekend == (weekday >= 5)  # noqa: PLR2004 - Saturday and Sunday
        every, alike, own = (_middle(rows[some]) for some in (used, used & kind, used & (self.weekday == weekday)))
        alike = np.where(np.isfinite(alike), alike, every)
        own = np.where(np.isfinite(own), own, alike)
        return np.array([every, alike, (alike + own) / 2, own])

    def choose(self, used: Flags) -> list[int]:
        """How to make each weekday: as it comes nearest to days that it was not made from."""
        errors = np.zeros((WEEK, 4))
        judged = np.flatnonzero(used & self.whole)[-HELD_OUT:]
        for day in judged:
            others = used.copy()
            others[day] = False
            ways = self.made(self.coarse, others, int(self.weekday[day]))
            errors[self.weekday[day]] += [_off(self.coarse[day], way) for way in ways]
        chosen = []
        for weekday in range(WEEK):
            best = ALL
            for way in (KIND, HALF, OWN):
                if errors[weekday, way] < BETTER * errors[weekday, best]:
                    best = way
            if not (judged.size and (self.weekday[judged] == weekday).any()):
                best = KIND
            chosen.append(best)
        return chosen

    def judged(self, used: Flags, mean: float, odd: tuple[date, ...]) -> Found:
        """The season, if its forecasts are worth it."""
        chosen = self.choose(used)
        judged = np.flatnonzero(used & self.whole)[-JUDGED:]
        foretold: dict[int, Numbers] = {}
        for day in judged:
            others = used.copy()
            others[day] = False
            weekday = int(self.weekday[day])
            foretold[int(day)] = _filled(self.made(self.days, others, weekday)[chosen[weekday]])
        tried = list(foretold)[-TRIED:]
        off = [sum(_off(self.days[day], _smooth(foretold[day], width)) for day in tried) for width in WIDTHS]
        width = WIDTHS[int(np.argmin(off))]
        errors = np.zeros((len(judged), len(AHEAD)))
        stays = np.zeros_like(errors)
        for number, day in enumerate(judged):
            errors[number], stays[number] = _errors(self.days[day], _smooth(foretold[int(day)], width), self.width)
        level = float(np.nanmean(self.days[judged]))
        known = [number for number in range(len(AHEAD)) if np.isfinite(errors[:, number]).any()]
        if not (level > 0 and known):
            return Found(None, odd=odd, days=int(self.whole.sum()))
        relative = {AHEAD[number]: float(np.nanmean(errors[:, number])) / level for number in known}
        resting = {AHEAD[number]: float(np.nanmean(stays[:, number])) / level for number in known}
        days = int(self.whole.sum())
        gained = np.nansum(stays - errors, axis=1)
        share = np.nansum(errors) / max(float(np.nansum(stays)), 1e-12)
        best = min(relative[ahead] / max(resting[ahead], 1e-12) for ahead in relative)
        worth = share <= WORTH or (share < 1.0 and best <= CLEARLY)
        clear = gained[gained > 0].sum() > GAINS * -gained[gained < 0].sum()
        if not (worth and clear):
            return Found(None, relative, resting, odd, days)
        return Found(self.season(used, chosen, width, mean), relative, resting, odd, days)

    def season(self, used: Flags, chosen: Sequence[int], width: int, mean: float) -> Season:
        """The usual week at the level of the last, in slots as fine as its jumps need them."""
        week = np.concatenate(
            [_filled(self.made(self.days, used, weekday)[chosen[weekday]]) for weekday in range(WEEK)]
        )
        week = _smooth(_filled(week), width)
        low, high = self._spread(week, used)
        unit = mean * float(self.levels[0])
        coarse = COARSE_S // self.width
        if coarse > 1:
            rough = week.reshape(-1, coarse).mean(axis=1)
            middles = (np.arange(len(week)) + 0.5) / coarse - 0.5
            between = np.interp(middles, np.arange(len(rough)), rough, period=len(rough))
            if np.abs(between - week).max() <= SHARP * week.mean():
                week, low, high = rough, low.reshape(-1, coarse).mean(axis=1), high.reshape(-1, coarse).mean(axis=1)
        return Season(_rates(week * unit), _rates(low * unit), _rates(high * unit), self._trend())

    def _spread(self, week: Numbers, used: Flags) -> tuple[Numbers, Numbers]:
        """Tenth and ninetieth percentile, by how far days were from their usual at about that time of the day."""
        table = week.reshape(WEEK, -1)
        floor = LITTLE * float(week.mean())
        like = table[self.weekday]
        parts = min(COMPARED, table.shape[1])
        with np.errstate(invalid="ignore"):
            ratios = np.where(used[:, None], (self.days + floor) / (like + floor), np.nan)
        cut = ratios.reshape(len(ratios), parts, -1).transpose(1, 0, 2).reshape(parts, -1)
        shares = np.ones((2, parts))
        for part in range(parts):
            near = np.concatenate([cut[part - 1], cut[part], cut[(part + 1) % parts]])
            near = near[np.isfinite(near)]
            if len(near):
                shares[:, part] = np.percentile(near, (10, 90))
        middle = np.arange(table.shape[1]) / table.shape[1] * parts + 0.5 * parts / table.shape[1] - 0.5
        low, high = (np.interp(middle, np.arange(parts), share, period=parts) for share in shares)
        return (
            np.minimum(np.maximum((table + floor) * low - floor, 0.0), table).ravel(),
            np.maximum((table + floor) * high - floor, table).ravel(),
        )

    def _trend(self) -> float:
        """By what share the level grows from week to week: the median of all pairs of weeks (Theil and Sen)."""
        known = [block for block in range(len(self.levels)) if (self.whole & (self.block == block)).sum() >= 3]  # noqa: PLR2004
        logs = np.log(self.levels)
        slopes = [(logs[new] - logs[old]) / (old - new) for new in known for old in known if old > new]
        return float(np.clip(np.expm1(np.median(slopes)), -0.9, 9.0)) if slopes else 0.0


def _errors(seen: Numbers, foretold: Numbers, width: int) -> tuple[Numbers, Numbers]:
    """Mean errors, for each time ahead, of what is foretold from the moments of a day, and of that nothing changes."""
    every = max(EVERY_S // width, 1)
    floor = LITTLE * float(np.nanmean(foretold))
    errors, stays = np.full(len(AHEAD), np.nan), np.full(len(AHEAD), np.nan)
    for number, ahead in enumerate(AHEAD):
        steps = round(ahead * 60 / width)
        if not steps:
            continue
        now, then = seen[:-steps:every], seen[steps::every]
        usual, next_ = foretold[:-steps:every], foretold[steps::every]
        forecast = np.where(usual > floor, now * next_ / np.maximum(usual, floor), now + next_ - usual)
        off, rests = np.abs(forecast - then), np.abs(now - then)
        if np.isfinite(off).any():
            errors[number], stays[number] = np.nanmean(off), np.nanmean(rests)
    return errors, stays


def _rates(row: Numbers) -> tuple[float, ...]:
    rounded: list[Any] = np.maximum(row, 0.0).tolist()
    return tuple(rounded)
