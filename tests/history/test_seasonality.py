"""The usual week found from weeks whose true values are known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from random import Random

import numpy as np
import pytest

from autoscaler.core.workload_profile import Season, local_seconds, seasonal_value
from autoscaler.history.seasonality import SeasonFit, fit_season

MONDAY = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
WEEK_S = 7 * 86400.0
Shape = Callable[[float], float]


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _hour(since: float) -> float:
    return since % 86400 / 3600


def _weekday(since: float) -> int:
    return int(since // 86400) % 7


def _diurnal(since: float) -> float:
    day = 1.15 - math.cos(2 * math.pi * (_hour(since) - 4) / 24)
    return 100 * day * (0.6 if _weekday(since) >= 5 else 1.0)


def _office(since: float) -> float:
    return 100.0 if 9 <= _hour(since) < 17 and _weekday(since) < 5 else 30.0


def _monday(since: float) -> float:
    return _diurnal(since) + (300.0 if _weekday(since) == 0 and 9 <= _hour(since) < 10 else 0.0)


def _nights(since: float) -> float:
    return max(0.0, 100 * math.sin(2 * math.pi * (_hour(since) - 6) / 24))


def _noisy(truth: list[float], seed: int, share: float = 0.05, memory: float = 1.0) -> list[float]:
    """Times 1 + noise with a time constant of so many slots."""
    dice = Random(seed)  # noqa: S311 - noise of a test, not a secret
    keeps = math.exp(-1.0 / memory)
    state = dice.gauss(0.0, share)
    found = []
    for rate in truth:
        found.append(rate * max(0.0, 1 + state))
        state = keeps * state + dice.gauss(0.0, share * math.sqrt(1 - keeps * keeps))
    return found


def _weeks(shape: Shape, weeks: float, seed: int = 1, width: float = 60.0) -> list[tuple[float, float]]:
    starts = [number * width for number in range(int(weeks * WEEK_S / width))]
    rates = _noisy([shape(start + width / 2) for start in starts], seed)
    return [(MONDAY + start, rate) for start, rate in zip(starts, rates, strict=True)]


def _find(slots: list[tuple[float, float]], holidays: tuple[date, ...] = ()) -> SeasonFit:
    starts, rates = np.array(slots, dtype=np.float64).reshape(-1, 2).T
    return fit_season(starts, rates, holidays)


def _season(slots: list[tuple[float, float]]) -> Season | None:
    return _find(slots).season


def _off(found: SeasonFit, shape: Shape, week: int) -> float:
    """Mean error of a season relative to the true week, as a share of the mean."""
    assert found.season is not None
    times = [week * WEEK_S + minute * 60.0 for minute in range(7 * 1440)]
    truth = [shape(time) for time in times]
    seen = [seasonal_value(found.season.usual, MONDAY + time) for time in times]
    return sum(abs(a - b) for a, b in zip(seen, truth, strict=True)) / sum(truth)


@pytest.mark.parametrize("shape", [_diurnal, _office, _monday, _nights])
def test_two_weeks_give_the_season(shape: Shape) -> None:
    found = _find(_weeks(shape, 2))

    assert _off(found, shape, 1) < 0.02
    assert all(found.errors[ahead] < found.unchanged_errors[ahead] for ahead in (30, 60))


@pytest.mark.parametrize("days", [7, 8, 9, 10])
@pytest.mark.parametrize("shape", [_office, _diurnal])
def test_one_week_gives_the_season_of_similar_days(shape: Shape, days: int) -> None:
    assert _off(_find(_weeks(shape, days / 7)), shape, 0) < 0.02


def test_a_jump_at_a_fixed_time_is_found_within_a_minute() -> None:
    found = _find(_weeks(_office, 2)).season

    assert found is not None
    tuesday_9 = MONDAY + 86400 + 9 * 3600
    assert seasonal_value(found.usual, tuesday_9 - 60) < 40
    assert seasonal_value(found.usual, tuesday_9 + 60) > 90


def test_smooth_days_take_few_slots() -> None:
    found = _find(_weeks(lambda since: 100 - 50 * math.cos(since / 86400 * 2 * math.pi), 2)).season

    assert found is not None
    assert len(found.usual) == 2016


def test_without_repetition_there_is_no_season() -> None:
    dice = Random(1)  # noqa: S311 - noise of a test, not a secret
    count = 14 * 1440
    walk, level = [], 0.0
    bursts: list[float] = []
    for _ in range(count):
        level += dice.gauss(0.0, 0.01)
        walk.append(100 * math.exp(level))
    while len(bursts) < count:
        bursts += [30.0] * (int(dice.expovariate(1 / 60)) + 1) + [100.0] * (int(dice.expovariate(1 / 15)) + 1)
    never = {
        "steady": _noisy([100.0] * count, 2),
        "constant": [100.0] * count,
        "walk": walk,
        "bursts": _noisy(bursts[:count], 3),
        "lasting": _noisy([100.0] * count, 4, 0.3, 360.0),
        "nothing": [0.0] * count,
    }

    seasons = {
        name: _season([(MONDAY + 60.0 * n, rate) for n, rate in enumerate(rates)]) for name, rates in never.items()
    }

    assert seasons == dict.fromkeys(never)


def test_less_than_a_week_gives_no_season() -> None:
    assert _season(_weeks(_office, 5 / 7)) is None


def test_growth_is_found_and_the_level_is_that_of_the_last_week() -> None:
    def growing(since: float) -> float:
        return _office(since) * float(1.2 ** (since // WEEK_S))

    found = _find(_weeks(growing, 4))

    assert found.season is not None
    assert found.season.trend == pytest.approx(0.2, abs=0.01)
    assert _off(found, growing, 3) < 0.02


def test_a_holiday_does_not_count() -> None:
    def with_holiday(since: float) -> float:
        return 30.0 if since // 86400 == 9 else _office(since)

    found = _find(_weeks(with_holiday, 2))

    assert found.odd == (date(2026, 1, 14),)
    assert _off(found, _office, 1) < 0.02


def test_a_named_holiday_does_not_count() -> None:
    found = _find(_weeks(_office, 2), (date(2026, 1, 14),))

    assert found.odd == (date(2026, 1, 14),)


def test_a_gap_of_days_is_filled_from_the_others() -> None:
    slots = [slot for slot in _weeks(_office, 2) if not 3.3 <= (slot[0] - MONDAY) / 86400 < 5]

    assert _off(_find(slots), _office, 1) < 0.02


def test_percentiles_enclose_four_days_in_five() -> None:
    found = _find(_weeks(_diurnal, 3)).season

    assert found is not None
    slots = _weeks(_diurnal, 1, seed=9)
    low = np.mean([rate < seasonal_value(found.low, at + 30) for at, rate in slots])
    high = np.mean([rate > seasonal_value(found.high, at + 30) for at, rate in slots])
    assert 0.04 < low < 0.16
    assert 0.04 < high < 0.16


def test_the_season_scales_with_the_arrivals() -> None:
    slots = _weeks(_office, 2)

    once, more = (_season([(at, factor * rate) for at, rate in slots]) for factor in (1.0, 1000.0))

    assert once is not None
    assert more is not None
    assert more.usual == pytest.approx([1000 * rate for rate in once.usual], rel=1e-9)
    assert more.trend == pytest.approx(once.trend, abs=1e-9)


@pytest.mark.parametrize("width", [15.0, 300.0, 900.0, 3600.0])
def test_slots_of_any_length_work(width: float) -> None:
    found = _find(_weeks(_diurnal, 2, width=width))

    assert _off(found, _diurnal, 1) < 0.05
    assert all(map(math.isfinite, [*found.errors.values(), *found.unchanged_errors.values()]))


@pytest.mark.parametrize(
    "slots",
    [
        [],
        [(MONDAY, 1.0)],
        [(MONDAY, math.nan), (MONDAY + 60, math.inf), (MONDAY + 120, -1.0)],
        [(MONDAY + 60.0 * n, math.nan if n % 3 else 1e308) for n in range(20_000)],
        [(MONDAY + 86400.0 * n, 5.0) for n in range(30)],
        [(MONDAY + 86400.0 * 400 * n, 5.0) for n in range(3)],
    ],
)
def test_without_enough_data_there_is_no_season(slots: list[tuple[float, float]]) -> None:
    assert _season(slots) is None


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ],
)
def test_after_a_clock_change_the_week_of_the_time_zone_is_right(zone: str, change: datetime) -> None:
    begin, end = change.timestamp() - 5 * WEEK_S, change.timestamp() + WEEK_S

    def load(at: float) -> float:
        return _diurnal(local_seconds(at, zone) - MONDAY)

    def off(found: Season | None) -> float:
        """Mean error in the week after the change, as a share of the mean."""
        assert found is not None
        times = np.arange(change.timestamp(), end, 60.0) + 30.0
        truth = np.array([load(at) for at in times])
        seen = np.array([seasonal_value(found.usual, local_seconds(at, found.time_zone)) for at in times])
        return float(np.abs(seen - truth).sum() / truth.sum())

    before = np.arange(begin, change.timestamp(), 60.0)
    rates = np.array([load(at + 30.0) for at in before])
    of_zone, of_utc = (fit_season(before, rates, (), name).season for name in (zone, "UTC"))
    assert off(of_zone) < 0.01
    assert off(of_utc) > 0.04
    # Days on both sides of it are the same days.
    both = np.arange(begin, end, 60.0)
    assert off(fit_season(both, np.array([load(at + 30.0) for at in both]), (), zone).season) < 0.01
