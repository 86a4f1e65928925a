"""The values of a profile at a given time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import Direction
from autoscaler.core.workload_profile import (
    MINUTES,
    MONDAY_S,
    WEEK_S,
    Curve,
    Profile,
    Season,
    Spread,
    is_stale,
    local_seconds,
    reading,
    seasonal_value,
)

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
DAY = 86400.0


def test_the_week_begins_on_monday() -> None:
    week = tuple(float(10 * day) for day in range(7))  # Monday 0, Tuesday 10, ... Sunday 60
    assert seasonal_value(week, MONDAY.timestamp() + DAY / 2) == 0
    assert seasonal_value(week, MONDAY_S + 1.5 * DAY) == 10
    assert seasonal_value(week, MONDAY_S - 0.5 * DAY) == 60


def test_values_are_interpolated_between_the_middles_of_two_slots_also_over_the_end_of_the_week() -> None:
    week = tuple(float(10 * day) for day in range(7))
    assert seasonal_value(week, MONDAY_S + 2 * DAY) == pytest.approx(15)
    assert seasonal_value(week, MONDAY_S) == pytest.approx(30)  # Sunday's 60 and Monday's 0
    assert seasonal_value(week, MONDAY_S + 7 * DAY - 0.25 * DAY) == pytest.approx(45)
    assert seasonal_value(week, MONDAY_S + 2800 * WEEK_S + 1.5 * DAY) == pytest.approx(10)
    assert seasonal_value((7.0,), 12345.0) == 7


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40), st.floats(-1e10, 1e10))
def test_it_stays_between_the_least_and_the_most(week: list[float], at: float) -> None:
    assert min(week) * (1 - 1e-9) <= seasonal_value(tuple(week), at) <= max(week) * (1 + 1e-9)


def test_a_reading_has_the_current_and_each_of_the_next_minutes() -> None:
    week = tuple(float(minute) for minute in range(7 * 24 * 60))
    profile = Profile(
        cluster="c", made_at=MONDAY, begin=MONDAY, end=MONDAY, observations=1, season=Season(week, week, week)
    )
    found = reading(profile, MONDAY + timedelta(minutes=90, seconds=30))
    assert found.value == tuple(float(90 + minute) for minute in range(MINUTES + 1))
    assert found.at == MONDAY + timedelta(minutes=90, seconds=30)
    assert found.parts == {}
    assert found.finite()


def test_the_other_parts_of_a_profile_are_parts_of_its_reading() -> None:
    times = {Direction.DOWN: {"stall": Spread(8.0, 6.0, 11.0, 9)}}
    profile = Profile(
        cluster="c",
        made_at=MONDAY,
        begin=MONDAY,
        end=MONDAY,
        observations=1,
        capacity=Curve(rate=100.0, exponent=0.9, rate_error=0.01, exponent_error=0.02, drift=0.1, sizes={4: 348.0}),
        times=times,
    )
    found = reading(profile, MONDAY)
    assert set(found.value if isinstance(found.value, tuple) else ()) == {0.0}
    assert found.parts == {
        "capacity": {"rate": 100.0, "exponent": 0.9, "rate_error": 0.01, "exponent_error": 0.02},
        "down": {"stall": 8.0},
    }


def test_a_profile_is_as_old_as_its_latest_part() -> None:
    profile = Profile(cluster="c", made_at=MONDAY + timedelta(days=30), begin=MONDAY, end=MONDAY, observations=1)
    assert not is_stale(profile, MONDAY + timedelta(days=14), timedelta(days=14))
    assert is_stale(profile, MONDAY + timedelta(days=14, seconds=1), timedelta(days=14))


@pytest.mark.parametrize(
    ("zone", "before", "after"),
    [
        ("Europe/Berlin", datetime(2026, 3, 23, 8, tzinfo=UTC), datetime(2026, 3, 30, 7, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 10, 26, 13, tzinfo=UTC), datetime(2026, 11, 2, 14, tzinfo=UTC)),
    ],
)
def test_a_season_with_a_time_zone_follows_its_daylight_saving_time(
    zone: str, before: datetime, after: datetime
) -> None:
    week = tuple(float(minute) for minute in range(7 * 24 * 60))
    season = Season(week, week, week, time_zone=zone)
    profile = Profile(cluster="c", made_at=MONDAY, begin=MONDAY, end=MONDAY, observations=1, season=season)
    for at in (before, after):
        assert reading(profile, at + timedelta(seconds=30)).value == tuple(float(9 * 60 + each) for each in range(31))


def test_the_next_minutes_skip_the_hour_that_a_clock_change_skips() -> None:
    week = tuple(float(minute) for minute in range(7 * 24 * 60))
    season = Season(week, week, week, time_zone="Europe/Berlin")
    profile = Profile(cluster="c", made_at=MONDAY, begin=MONDAY, end=MONDAY, observations=1, season=season)
    found = reading(profile, datetime(2026, 3, 29, 0, 50, 30, tzinfo=UTC)).value
    assert isinstance(found, tuple)
    sunday = 6 * 1440
    assert (found[0], found[9], found[11]) == (sunday + 110, sunday + 119, sunday + 181)


@pytest.mark.parametrize("name", ["Europe/Nowhere", "Europe", "", "../etc/passwd"])
def test_an_invalid_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a time zone"):
        local_seconds(0.0, name)
