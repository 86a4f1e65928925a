from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autoscaler_policies.schedule.cron import after, before, by, parse

BERLIN = ZoneInfo("Europe/Berlin")
# A zone with half an hour of daylight saving time, one with quarters of an hour, the southern hemisphere, UTC.
ZONES = tuple(
    map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Santiago"))
)


def instants(text: str, begin: datetime, count: int, zone: ZoneInfo = BERLIN) -> list[datetime]:
    cron, moment, found = parse(text), by(begin.astimezone(UTC)), []
    for _ in range(count):
        moment = after(cron, zone, moment)
        found.append(moment[0])
    return found


def shown(text: str, begin: str, count: int) -> list[str]:
    """The next time in Berlin after a local time there, with its UTC offset."""
    found = instants(text, datetime.fromisoformat(begin).replace(tzinfo=BERLIN), count)
    return [f"{one.astimezone(BERLIN):%d %H:%M %Z}" for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", ["10 12:31", "10 12:32", "10 12:33"]),
        ("*/20 * * * *", ["10 12:40", "10 13:00", "10 13:20"]),
        ("5/25 8-9 * * *", ["11 08:05", "11 08:30", "11 08:55"]),
        ("0 8-18/5 * * *", ["10 13:00", "10 18:00", "11 08:00"]),
        ("15,45 12 * * *", ["10 12:45", "11 12:15", "11 12:45"]),
        ("0 9 * * mon-fri", ["11 09:00", "12 09:00", "13 09:00"]),
        ("0 9 * * 0", ["15 09:00", "22 09:00", "01 09:00"]),
        ("0 9 * * 7", ["15 09:00", "22 09:00", "01 09:00"]),
        ("0 9 * * Sat-Sun", ["14 09:00", "15 09:00", "21 09:00"]),
        ("0 9 * * fri-0", ["13 09:00", "14 09:00", "15 09:00"]),
        ("0 0 1 MAR,may *", ["01 00:00", "01 00:00", "01 00:00"]),
        # a day of the month or of the week, unless one of the fields begins with a star
        ("0 0 13 * 2", ["13 00:00", "17 00:00", "24 00:00"]),
        ("0 0 */12 * 5", ["13 00:00", "13 00:00", "01 00:00"]),
        ("@hourly", ["10 13:00", "10 14:00", "10 15:00"]),
        ("@daily", ["11 00:00", "12 00:00", "13 00:00"]),
        (" @Weekly ", ["15 00:00", "22 00:00", "01 00:00"]),
        ("@monthly", ["01 00:00", "01 00:00", "01 00:00"]),
    ],
)
def test_the_next_time_is_that_of_crontab(text: str, expected: list[str]) -> None:
    assert [one[:8] for one in shown(text, "2026-02-10 12:30", 3)] == expected


def test_yearly_and_leap_days_are_found_however_far_away_they_are() -> None:
    begin = datetime(2096, 3, 1, tzinfo=UTC)
    assert instants("0 0 29 2 *", begin, 1, ZoneInfo("UTC")) == [datetime(2104, 2, 29, tzinfo=UTC)]
    # a leap day that is a Monday: none between 2072 and 2112
    assert instants("0 0 29/40 2 mon", begin, 1, ZoneInfo("UTC")) == [datetime(2097, 2, 4, tzinfo=UTC)]
    assert instants("@yearly", begin, 1, ZoneInfo("UTC")) == instants("@annually", begin, 1, ZoneInfo("UTC"))


def test_a_skipped_time_runs_when_the_clock_goes_forward() -> None:
    assert shown("30 2 * * *", "2026-03-28 12:00", 2) == ["29 03:00 CEST", "30 02:30 CEST"]
    assert shown("10,50 2,3 * * *", "2026-03-29 00:00", 4) == ["29 03:00 CEST"] * 2 + ["29 03:10 CEST", "29 03:50 CEST"]


def test_a_repeated_time_runs_once() -> None:
    assert shown("30 2 * * *", "2026-10-24 12:00", 2) == ["25 02:30 CEST", "26 02:30 CET"]


def test_an_expression_that_begins_with_a_star_follows_the_clock() -> None:
    assert shown("30 * * * *", "2026-03-29 01:00", 2) == ["29 01:30 CET", "29 03:30 CEST"]
    assert shown("30 * * * *", "2026-10-25 02:00", 3) == ["25 02:30 CEST", "25 02:30 CET", "25 03:30 CET"]
    assert shown("*/30 2 * * *", "2026-03-29 00:00", 2) == ["30 02:00 CEST", "30 02:30 CEST"]


def test_a_time_repeated_within_half_an_hour_is_found_twice() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    found = instants("30 * * * *", datetime(2026, 4, 4, 14, 0, tzinfo=UTC), 3, zone)
    assert [f"{one.astimezone(zone):%H:%M}" for one in found] == ["01:30", "01:30", "02:30"]


def test_setting_the_clock_back_over_midnight_keeps_the_order() -> None:
    # St John's: at 00:01 of 7 November 2010 the clock went back to 23:01 of the day before.
    zone = ZoneInfo("America/St_Johns")
    found = instants("0,30 * * * *", datetime(2010, 11, 7, 2, 20, tzinfo=UTC), 4, zone)
    assert [f"{one.astimezone(zone):%d %H:%M}" for one in found] == ["07 00:00", "06 23:30", "07 00:00", "07 00:30"]
    end = by(datetime(2010, 11, 7, 3, 20, tzinfo=UTC))
    assert f"{before(parse('0,30 * * * *'), zone, end)[0].astimezone(zone):%d %H:%M}" == "06 23:30"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'': expected five fields (minute, hour, day of month, month, day of week), found 0"),
        ("0 8 * *", "'0 8 * *': expected five fields (minute, hour, day of month, month, day of week), found 4"),
        ("0 0 8 * * *", "found 6; seconds are not supported"),
        ("@reboot", "'@reboot': expected one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or"),
        ("60 * * * *", "'60 * * * *': field 1 (minute) is 60, expected 0 to 59"),
        ("0 25 * * *", "field 2 (hour) is 25, expected 0 to 23"),
        ("0 8 0 * *", "field 3 (day of month) is 0, expected 1 to 31"),
        ("0 8 * 13 *", "field 4 (month) is 13, expected 1 to 12"),
        ("0 8 * xyz *", "field 4 (month) is 'xyz', expected 1 to 12 or jan to dec"),
        ("0 8 * * 8", "field 5 (day of week) is 8, expected 0 to 7"),
        ("0 8 * * monday", "field 5 (day of week) is 'monday', expected 0 to 7 or sun to sat"),
        ("0 mon * * *", "field 2 (hour) is 'mon', expected 0 to 23"),
        ("99999999999999999999999 * * * *", "field 1 (minute) is 99999999999999999999, expected 0 to 59"),
        ("0 8 L * *", "field 3 (day of month) is 'L', expected 1 to 31"),
        ("0 8 * * 1#2", "field 5 (day of week) has '1#2', expected `*`, a number or a range like 1-5, each also with"),
        ("0 8, * * *", "field 2 (hour) has '', expected"),
        ("0 22-2 * * *", "field 2 (hour) has the range 22-2, which goes backwards; write it as two ranges"),
        ("0 5-0 * * *", "field 2 (hour) has the range 5-0, which goes backwards"),
        ("0 8 * * fri-mon", "field 5 (day of week) has the range fri-mon, which goes backwards"),
        ("*/0 * * * *", "field 1 (minute) has the step 0, expected a whole number above 0"),
        ("*/a * * * *", "field 1 (minute) has the step a, expected a whole number above 0"),
        ("*/1000 * * * *", "field 1 (minute) has the step 1000, expected a whole number above 0"),
        ("٣ * * * *", "field 1 (minute) has '٣', expected"),
        ("0 0 30 2 *", "'0 0 30 2 *' is never due: none of these months has such a day"),
        ("0 0 31 apr,jun *", "'0 0 31 apr,jun *' is never due"),
        ("1," * 150 + "1 * * * *", "... is longer than 200 characters"),
    ],
)
def test_the_error_names_the_wrong_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^'") as caught:
        parse(text)
    assert message in str(caught.value)


def test_the_longest_valid_expressions_are_read() -> None:
    minutes = ",".join(map(str, range(60)))
    assert parse(f"{minutes} * * * *").minutes == tuple(range(60))


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    # For a range of one number with a step cronsim makes one without an end.
    ranges = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    plain = st.one_of(st.just("*"), number.map(str), ranges)
    term = st.one_of(plain, st.tuples(plain, st.integers(1, most)).map(lambda pair: f"{pair[0]}/{pair[1]}"))
    return st.one_of(st.just("*"), term, st.lists(term, min_size=2, max_size=3).map(",".join))


fixed = st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7)).map(" ".join)
begins = st.datetimes(datetime(2024, 1, 1), datetime(2027, 12, 31))  # noqa: DTZ001 - local times
# Mostly around the nights in which the clocks of these zones change.
near = st.sampled_from(
    [datetime.fromisoformat(day) for day in ("2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05")]
).flatmap(lambda day: st.integers(-1500, 1500).map(lambda minutes: day + timedelta(minutes=minutes)))


@settings(deadline=None)
@given(text=fixed, zone=st.sampled_from(ZONES), wall=near | begins)
@example("30 2 * * *", BERLIN, datetime(2026, 3, 28, 12))  # noqa: DTZ001
@example("*/30 2 * * *", BERLIN, datetime(2026, 3, 28, 12))  # noqa: DTZ001
@example("30 2 * * *", BERLIN, datetime(2026, 10, 24, 12))  # noqa: DTZ001
def test_agrees_with_cronsim(text: str, zone: ZoneInfo, wall: datetime) -> None:
    begin = wall.replace(second=0, microsecond=0, tzinfo=zone)
    # cronsim forgets which of two equal times it received, and skipped times.
    assume(begin.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == begin.replace(tzinfo=None))
    # With the clock set back by half an hour it misses the second time of the half hour.
    assume(zone.key != "Australia/Lord_Howe" or not any(part.startswith("*") for part in text.split()[:2]))
    try:
        theirs = CronSim(text, begin)
        expected = [next(theirs).astimezone(UTC) for _ in range(4)]
    except (CronSimError, StopIteration):
        with pytest.raises(ValueError, match="is never due"):
            parse(text)
        return
    # If several fall together into a skipped hour it returns one.
    cron, found = parse(text), [begin.astimezone(UTC)]
    for _ in expected:
        found.append(after(cron, zone, by(found[-1]))[0])
    assert found[1:] == expected


@settings(deadline=None)
@given(text=fixed, zone=st.sampled_from(ZONES), wall=near | begins)
def test_the_last_time_and_the_next_have_none_between_them(text: str, zone: ZoneInfo, wall: datetime) -> None:
    try:
        cron = parse(text)
    except ValueError:
        assume(False)
    now = by(wall.replace(tzinfo=UTC))
    last, following = before(cron, zone, now), after(cron, zone, now)
    assert last[0] <= now[0] < following[0]
    assert after(cron, zone, last) == following
    assert before(cron, zone, following) == following
