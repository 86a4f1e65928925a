"""Weekly seasonality: the arrivals at each time of the week, if they repeat, and how well they predict other days.

A history has few weeks but many days. Each weekday is therefore computed in one of four ways: as the median of all
days, of all workdays or weekends, of the same weekday, or as the mean of the last two. The way with the smallest error
on held-out days is chosen. Medians over days, and over neighbouring times, preserve sharp jumps. If the resulting week
does not predict other days better than the assumption that nothing changes, there is no season.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from autoscaler.core.workload_profile import Season, local_seconds
from autoscaler.history.minutes import Flags, Numbers

DAY_S = 86400
QUARTER_S = 900
"""Local clocks differ from UTC by multiples of this span, and change at multiples of it."""
WEEK = 7
WEEKS = 8
"""The number of weeks that are used; older weeks may have another season."""
BINS_S = (60, 300, 900, 1800, 3600)
"""The day is divided into slots. Their length is the first of these that is not shorter than the given slots."""
COARSE_S = 300
"""The length of a profile's slots, unless sharp jumps need finer ones..."""
MAX_COARSE_ERROR = 0.1
"""... because coarse slots would have an error above this share of the mean."""

WHOLE = 0.5
"""The share of a day that must be known for the day to count as whole."""
MIN_DAYS = 6
MIN_SPAN = 6.5
"""A week needs at least this many whole days, and this many days' worth of known slots."""
HELD_OUT = 28
JUDGED = 14
TRIED = 6
"""How many of the last days are used to choose how weekdays are computed, to evaluate forecasts, and to choose the
smoothing."""

ODD_DISTANCE_MEDIANS = 3.0
MIN_ODD_DISTANCE = 0.25
"""A day is odd if its distance from similar days is above this many times the median distance, and above this share of
the mean."""
MAX_ODD_SHARE = 0.25
"""If more than this share of days would be odd, no day is: the days simply differ."""
COMPARED = 48
"""The number of parts of a day that are compared."""

MAX_FEWER_DAYS_ERROR_RATIO = 0.97
"""A way that uses fewer days is chosen if its error, relative to that of a way with more days, is below this."""
WIDTHS = (1, 5, 15, 31)
"""Widths of the running median, in slots."""

AHEAD = (5, 15, 30, 60)
"""Forecast horizons in minutes at which forecasts are evaluated."""
EVERY_S = 300
NOISE_SHARE = 0.05
"""Below this share of the mean, ratios of seasonal rates are noise."""
MAX_TOTAL_ERROR_RATIO = 0.95
MAX_BEST_ERROR_RATIO = 0.9
MIN_GAIN_LOSS_RATIO = 2.0
"""The first two bound the error of the season's forecasts relative to the assumption that nothing changes: over all
horizons together, or at the best horizon. In addition, the gain on some days must exceed the loss on the others by the
third factor."""

ALL, KIND, HALF, OWN = range(4)
"""How a weekday is computed: from all days, from workdays or weekends, as the mean of KIND and OWN, or from the same
weekday only."""


@dataclass(frozen=True, slots=True)
class SeasonFit:
    """The season fitted to some weeks of arrivals.

    Attributes:
        season: the season; None: there is no season, or less than a week is known.
        errors: minutes ahead -> mean error of the season's forecasts on held-out days, as a share of the mean arrivals;
            empty if less than a week is known.
        unchanged_errors: the same for the assumption that nothing changes.
        odd: excluded days: holidays, and days unlike similar days.
        days: the number of days of which at least half is known.
    """

    season: Season | None
    errors: Mapping[int, float] = field(default_factory=dict)
    unchanged_errors: Mapping[int, float] = field(default_factory=dict)
    odd: tuple[date, ...] = ()
    days: int = 0


def fit_season(starts: Numbers, rates: Numbers, holidays: Collection[date] = (), time_zone: str = "UTC") -> SeasonFit:
    """Fit the season of arrivals, and measure how well it predicts held-out days.

    Args:
        starts: the start of each slot, seconds since 1970, in any order; slots have equal lengths, and may be missing.
        rates: the mean records/s of each slot.
        holidays: days to exclude.
        time_zone: the time zone of days and weeks. The load is assumed to follow its daylight saving time.

    Raises:
        ValueError: there is no such time zone.
    """
    good = np.isfinite(starts) & np.isfinite(rates) & (rates >= 0)
    starts, rates = starts[good], rates[good]
    if not len(starts):
        return SeasonFit(None)
    width = _width(starts)
    starts = _local(starts, time_zone)
    first, table = _days(starts, rates, width)
    known = np.isfinite(table).mean(axis=1)
    whole = known >= WHOLE
    mean = float(np.nanmean(table))
    if whole.sum() < MIN_DAYS or known.sum() < MIN_SPAN or not mean > 0:
        return SeasonFit(None, days=int(whole.sum()))
    week = _Weeks(first, table / mean, whole, width)
    odd = week.odd(holidays)
    dates = tuple(_date(first + int(day)) for day in np.flatnonzero(odd))
    used = ~odd
    if (used & whole).sum() < MIN_DAYS - 1:
        return SeasonFit(None, odd=dates, days=int(whole.sum()))
    found = week.evaluate(used, mean, dates)
    return found if found.season is None else replace(found, season=replace(found.season, time_zone=time_zone))


def _local(starts: Numbers, time_zone: str) -> Numbers:
    """Local times. A repeated hour becomes one hour with the mean of both; a skipped hour becomes a gap."""
    quarters, place = np.unique(np.floor_divide(starts, QUARTER_S), return_inverse=True)
    begins = (quarters * QUARTER_S).tolist()
    moved: Numbers = starts + np.array([local_seconds(begin, time_zone) - begin for begin in begins])[place]
    return moved


def _width(starts: Numbers) -> int:
    """The length of the slots into which the day is divided."""
    apart = np.diff(np.unique(starts))
    usual = float(np.median(apart)) if len(apart) else 0.0
    return next((each for each in BINS_S if usual <= each), BINS_S[-1])


def _days(starts: Numbers, rates: Numbers, width: int) -> tuple[int, Numbers]:
    """The number of the first day since 1970, and a row for each day with the means of its slots."""
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
    """The median of each column, ignoring NaN; faster than `np.nanmedian`, which processes columns one by one."""
    ordered = np.sort(rows, axis=0)  # NaN goes to the end
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
    """Reduce the columns of rows to `parts`, each the mean of several."""
    if rows.shape[1] <= parts:
        return rows
    cut = rows.reshape(len(rows), parts, -1)
    count = np.isfinite(cut).sum(axis=2)
    with np.errstate(invalid="ignore"):
        means: Numbers = np.nansum(cut, axis=2) / np.where(count > 0, count, np.nan)
    return means


def _filled(row: Numbers) -> Numbers:
    """Interpolate the gaps of a row, across midnight too."""
    known = np.flatnonzero(np.isfinite(row))
    if len(known) in (0, len(row)):
        return row
    return np.interp(np.arange(len(row)), known, row[known], period=len(row))


def _smooth(row: Numbers, width: int) -> Numbers:
    """The running median, which preserves jumps."""
    if width <= 1:
        return row
    side = width // 2
    padded = np.concatenate([row[-side:], row, row[:side]])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    # Not `np.median`: it also searches for NaN, which doubles its time, and there is no NaN here.
    smooth: Numbers = np.partition(windows, side, axis=-1)[:, side]
    return smooth


def _off(rows: Numbers, like: Numbers) -> float:
    """The mean distance of rows from the row `like`, over values that both have."""
    off = np.abs(rows - like)
    return float(np.nanmean(off)) if np.isfinite(off).any() else np.inf


class _Weeks:
    """The days of some weeks as shares of their mean, with each block of seven days scaled to the same level."""

    def __init__(self, first: int, table: Numbers, whole: Flags, width: int) -> None:
        self.first = first
        self.whole = whole
        self.width = width
        self.weekday = (first + np.arange(len(table)) + 3) % WEEK  # 1 January 1970 was a Thursday
        self.weekend = self.weekday >= 5  # noqa: PLR2004 - Saturday and Sunday
        last = int(np.flatnonzero(whole)[-1])
        self.block = np.maximum(last - np.arange(len(table)), 0) // WEEK
        self.levels = self._levels(table)
        self.days = table / self.levels[self.block][:, None]
        self.coarse = _coarser(self.days, min(DAY_S // COARSE_S, table.shape[1]))

    def _levels(self, table: Numbers) -> Numbers:
        """The level of each block of seven days, counted back from the last day, as a share of the mean."""
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
        # Workdays and weekends differ, so an incomplete block is compared with days of the same kind.
        scaled = rows / levels[self.block][:, None]
        typical = np.array([_middle(scaled[self.weekend == weekend]) for weekend in (False, True)])
        like = typical[self.weekend.astype(int)]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.where(like > 0.2 * np.nanmean(like), scaled / like, np.nan)
        for block in range(blocks):
            mine = ratios[self.block == block]
            if np.isfinite(mine).any():
                levels[block] *= max(float(np.nanmedian(mine)), 0.01)
        return levels

    def odd(self, holidays: Collection[date]) -> Flags:
        """Holidays, and days that are unlike the others of their kind."""
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
            if like.sum() < 2:  # noqa: PLR2004 - if only two days differ, either may be the odd one
                continue
            far[day] = _off(rows[day], _middle(rows[like])) / mean
            for other in np.flatnonzero(others & (self.weekday == self.weekday[day])):
                own[day] = min(own[day], _off(rows[day], rows[other]) / mean)
        limit = max(MIN_ODD_DISTANCE, ODD_DISTANCE_MEDIANS * float(np.median(far[judged]))) if judged.any() else np.inf
        found = judged & (far > limit) & (own > limit)
        if found.sum() > MAX_ODD_SHARE * count:
            return odd
        odd |= found
        return odd

    def compute(self, rows: Numbers, used: Flags, weekday: int) -> Numbers:
        """A weekday, computed in the four ways; a gap in one way is filled from the previous way."""
        kind = self.weekend == (weekday >= 5)  # noqa: PLR2004 - Saturday and Sunday
        every, alike, own = (_middle(rows[some]) for some in (used, used & kind, used & (self.weekday == weekday)))
        alike = np.where(np.isfinite(alike), alike, every)
        own = np.where(np.isfinite(own), own, alike)
        return np.array([every, alike, (alike + own) / 2, own])

    def choose(self, used: Flags) -> list[int]:
        """Choose how to compute each weekday: the way with the smallest error on held-out days."""
        errors = np.zeros((WEEK, 4))
        judged = np.flatnonzero(used & self.whole)[-HELD_OUT:]
        for day in judged:
            others = used.copy()
            others[day] = False
            ways = self.compute(self.coarse, others, int(self.weekday[day]))
            errors[self.weekday[day]] += [_off(self.coarse[day], way) for way in ways]
        chosen = []
        for weekday in range(WEEK):
            best = ALL
            for way in (KIND, HALF, OWN):
                if errors[weekday, way] < MAX_FEWER_DAYS_ERROR_RATIO * errors[weekday, best]:
                    best = way
            if not (judged.size and (self.weekday[judged] == weekday).any()):
                best = KIND
            chosen.append(best)
        return chosen

    def evaluate(self, used: Flags, mean: float, odd: tuple[date, ...]) -> SeasonFit:
        """Evaluate the season's forecasts, and return the season if they are good enough."""
        chosen = self.choose(used)
        judged = np.flatnonzero(used & self.whole)[-JUDGED:]
        predicted: dict[int, Numbers] = {}
        for day in judged:
            others = used.copy()
            others[day] = False
            weekday = int(self.weekday[day])
            predicted[int(day)] = _filled(self.compute(self.days, others, weekday)[chosen[weekday]])
        tried = list(predicted)[-TRIED:]
        off = [sum(_off(self.days[day], _smooth(predicted[day], width)) for day in tried) for width in WIDTHS]
        width = WIDTHS[int(np.argmin(off))]
        errors = np.zeros((len(judged), len(AHEAD)))
        unchanged = np.zeros_like(errors)
        for number, day in enumerate(judged):
            errors[number], unchanged[number] = _errors(self.days[day], _smooth(predicted[int(day)], width), self.width)
        level = float(np.nanmean(self.days[judged]))
        known = [number for number in range(len(AHEAD)) if np.isfinite(errors[:, number]).any()]
        if not (level > 0 and known):
            return SeasonFit(None, odd=odd, days=int(self.whole.sum()))
        relative = {AHEAD[number]: float(np.nanmean(errors[:, number])) / level for number in known}
        resting = {AHEAD[number]: float(np.nanmean(unchanged[:, number])) / level for number in known}
        days = int(self.whole.sum())
        gained = np.nansum(unchanged - errors, axis=1)
        share = np.nansum(errors) / max(float(np.nansum(unchanged)), 1e-12)
        best = min(relative[ahead] / max(resting[ahead], 1e-12) for ahead in relative)
        worth = share <= MAX_TOTAL_ERROR_RATIO or (share < 1.0 and best <= MAX_BEST_ERROR_RATIO)
        clear = gained[gained > 0].sum() > MIN_GAIN_LOSS_RATIO * -gained[gained < 0].sum()
        if not (worth and clear):
            return SeasonFit(None, relative, resting, odd, days)
        return SeasonFit(self.season(used, chosen, width, mean), relative, resting, odd, days)

    def season(self, used: Flags, chosen: Sequence[int], width: int, mean: float) -> Season:
        """The season at the level of the last week, in slots that are fine enough for its jumps."""
        week = np.concatenate(
            [_filled(self.compute(self.days, used, weekday)[chosen[weekday]]) for weekday in range(WEEK)]
        )
        week = _smooth(_filled(week), width)
        low, high = self._spread(week, used)
        unit = mean * float(self.levels[0])
        coarse = COARSE_S // self.width
        if coarse > 1:
            rough = week.reshape(-1, coarse).mean(axis=1)
            middles = (np.arange(len(week)) + 0.5) / coarse - 0.5
            between = np.interp(middles, np.arange(len(rough)), rough, period=len(rough))
            if np.abs(between - week).max() <= MAX_COARSE_ERROR * week.mean():
                week, low, high = rough, low.reshape(-1, coarse).mean(axis=1), high.reshape(-1, coarse).mean(axis=1)
        return Season(_rates(week * unit), _rates(low * unit), _rates(high * unit), self._trend())

    def _spread(self, week: Numbers, used: Flags) -> tuple[Numbers, Numbers]:
        """The 10th and 90th percentile, from the ratios of days to the season around that time of the day."""
        table = week.reshape(WEEK, -1)
        floor = NOISE_SHARE * float(week.mean())
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
        """The growth of the level per week, as a share: the median over all pairs of weeks (Theil and Sen)."""
        known = [block for block in range(len(self.levels)) if (self.whole & (self.block == block)).sum() >= 3]  # noqa: PLR2004
        logs = np.log(self.levels)
        slopes = [(logs[new] - logs[old]) / (old - new) for new in known for old in known if old > new]
        return float(np.clip(np.expm1(np.median(slopes)), -0.9, 9.0)) if slopes else 0.0


def _errors(seen: Numbers, predicted: Numbers, width: int) -> tuple[Numbers, Numbers]:
    """The mean errors over a day, at each horizon, of the forecast and of the assumption that nothing changes."""
    every = max(EVERY_S // width, 1)
    floor = NOISE_SHARE * float(np.nanmean(predicted))
    errors, unchanged = np.full(len(AHEAD), np.nan), np.full(len(AHEAD), np.nan)
    for number, ahead in enumerate(AHEAD):
        steps = round(ahead * 60 / width)
        if not steps:
            continue
        now, then = seen[:-steps:every], seen[steps::every]
        expected, next_ = predicted[:-steps:every], predicted[steps::every]
        forecast = np.where(expected > floor, now * next_ / np.maximum(expected, floor), now + next_ - expected)
        off, rests = np.abs(forecast - then), np.abs(now - then)
        if np.isfinite(off).any():
            errors[number], unchanged[number] = np.nanmean(off), np.nanmean(rests)
    return errors, unchanged


def _rates(row: Numbers) -> tuple[float, ...]:
    rounded: list[Any] = np.maximum(row, 0.0).tolist()
    return tuple(rounded)
