"""Excluded periods: daily ranges and Quartz's cron expressions, against Quartz's own documentation."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler_policies.flink_operator.excluded_periods import cron, daily, excluded, parse


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("expression", "inside", "outside"),
    [
        # the tutorial of Quartz's CronTrigger
        ("0 0 12 * * ?", "2026-01-01 12:00:00", "2026-01-01 12:00:01"),
        ("0 15 10 ? * *", "2026-01-01 10:15:00", "2026-01-01 10:16:00"),
        ("0 15 10 * * ? 2026", "2026-01-01 10:15:00", "2027-01-01 10:15:00"),
        ("0 * 14 * * ?", "2026-01-01 14:59:00", "2026-01-01 15:00:00"),
        ("0 0/5 14 * * ?", "2026-01-01 14:55:00", "2026-01-01 14:56:00"),
        ("0 0/5 14,18 * * ?", "2026-01-01 18:05:00", "2026-01-01 17:05:00"),
        ("0 0-5 14 * * ?", "2026-01-01 14:05:00", "2026-01-01 14:06:00"),
        ("0 10,44 14 ? 3 WED", "2026-03-04 14:44:00", "2026-03-05 14:44:00"),
        ("0 15 10 ? * MON-FRI", "2026-01-02 10:15:00", "2026-01-03 10:15:00"),
        ("0 15 10 15 * ?", "2026-01-15 10:15:00", "2026-01-16 10:15:00"),
        ("0 15 10 L * ?", "2028-02-29 10:15:00", "2028-02-28 10:15:00"),
        ("0 15 10 L-2 * ?", "2026-01-29 10:15:00", "2026-01-31 10:15:00"),
        ("0 15 10 ? * 6L", "2026-01-30 10:15:00", "2026-01-23 10:15:00"),
        ("0 15 10 ? * FRIL 2026-2028", "2027-01-29 10:15:00", "2029-01-26 10:15:00"),
        ("0 15 10 ? * 6#3", "2026-01-16 10:15:00", "2026-01-09 10:15:00"),
        ("0 15 10 ? * fri#1", "2026-01-02 10:15:00", "2026-01-09 10:15:00"),
        ("0 0 12 1/5 * ?", "2026-01-06 12:00:00", "2026-01-05 12:00:00"),
        ("0 11 11 11 11 ?", "2026-11-11 11:11:00", "2026-10-11 11:11:00"),
        # other valid fields
        ("* * 22-2 * * ?", "2026-01-01 01:30:00", "2026-01-01 03:00:00"),
        ("* * * ? * FRI-MON", "2026-01-04 00:00:00", "2026-01-06 00:00:00"),
        ("* * * ? * L", "2026-01-03 00:00:00", "2026-01-04 00:00:00"),
        ("* * * ? JAN,MAR *", "2026-03-01 00:00:00", "2026-02-01 00:00:00"),
        ("*/20 * * * * ?", "2026-01-01 00:00:40", "2026-01-01 00:00:41"),
        ("/20 * * * * ? *", "2026-01-01 00:00:40", "2026-01-01 00:00:41"),
        ("10-30/10 * * * * ?", "2026-01-01 00:00:30", "2026-01-01 00:00:40"),
        # the weekday nearest to a day, never in another month: the 1st is a Saturday, the 15th a Sunday
        ("* * * 1W 8 ?", "2026-08-03 00:00:00", "2026-08-01 00:00:00"),
        ("* * * 15W 2 ?", "2026-02-16 00:00:00", "2026-02-15 00:00:00"),
        ("* * * 14W 2 ?", "2026-02-13 00:00:00", "2026-02-14 00:00:00"),
        ("* * * 13W 2 ?", "2026-02-13 00:00:00", "2026-02-12 00:00:00"),
        ("* * * LW 5 ?", "2026-05-29 00:00:00", "2026-05-31 00:00:00"),
        ("* * * L-1W 5 ?", "2026-05-29 00:00:00", "2026-05-30 00:00:00"),
        ("* * * 31W * ?", "2026-03-31 00:00:00", "2026-04-30 00:00:00"),
        # the operator's own
        ("* * 9-11,14-16 * * ?", "2023-12-14 16:59:59", "2023-12-14 12:00:00"),
        ("9:30:30-10:50:20 && * * * ? * 2,5", "2023-12-14 10:50:20", "2023-12-13 10:50:20"),
        ("* * * ? * 2,5 && 14:01:20-16:00:00", "2023-12-11 14:01:20", "2023-12-11 14:01:19"),
        ("09:13:17:500-11:15:18", "2026-01-01 09:13:17.500", "2026-01-01 09:13:17.499"),
        ("09:00 - 10:00", "2026-01-01 10:00:00", "2026-01-01 10:00:00.001"),
    ],
)
def test_a_period_excludes_its_times(expression: str, inside: str, outside: str) -> None:
    periods = (parse(expression),)
    assert excluded(periods, at(inside))
    assert not excluded(periods, at(outside))


def test_one_matching_period_is_enough_and_without_periods_nothing_is_excluded() -> None:
    periods = (parse("09:13:17-11:15:18"), parse("14:01:20-16:00:00"))
    assert excluded(periods, at("2026-01-01 10:00:00"))
    assert excluded(periods, at("2026-01-01 15:00:00"))
    assert not excluded(periods, at("2026-01-01 12:00:00"))
    assert not excluded((), at("2026-01-01 12:00:00"))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        # the expressions that the operator's own tests refuse
        ("09:13:17-08:15:18", "does not end after it begins"),
        ("09:13:17-25:15:18", "'25:15:18' is not a time"),
        ("09:13:17-11:15:18 && 12:01:20-16:00:00", "joins two of the same kind"),
        ("* * * ? * 2,5555", "'5555': expected 1 to 7 or SUN/MON"),
        ("* * * ? * 2,5 && 18:01:20-16:00:00", "does not end after it begins"),
        ("* * * ? * 2,5 && * * 11-13 * * ?", "joins two of the same kind"),
        # others
        ("9:00-10:00 && * * * ? * 2 && 9:00-10:00", "more than one &&"),
        ("", "neither a daily range .* nor a cron expression"),
        ("9-10", "'9' is not a time"),
        ("0 5 * * *", "6 or 7 fields"),
        ("* * * * * *", "either the day of the month or the day of the week must be ?"),
        ("* * * ? * ?", "either the day of the month or the day of the week must be ?"),
        ("60 * * * * ?", "'60': expected 0 to 59"),
        ("* * * 0 * ?", "'0': expected 1 to 31"),
        ("* * * * 13 ?", "'13': expected 1 to 12 or JAN"),
        ("* * * ? * 6#6", "'6#6': expected"),
        ("* * * L-31 * ?", "at most 30"),
        ("*/x * * * * ?", "'*/X': expected a whole number after /"),
        ("*/0 * * * * ?", "a step must be from 1 to 59"),
        ("0/60 * * * * ?", "a step must be from 1 to 59"),
        ("1,,2 * * * * ?", "has an empty part"),
        ("x * * * * ?", "'X': expected 0 to 59"),
    ],
)
def test_an_invalid_period_is_refused(expression: str, text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("*/", r"\*/").replace("?", r"\?")):
        parse(expression)


@given(st.datetimes(at("2026-01-01"), at("2030-01-01")), st.sampled_from(["L", "1W", "15W", "L-5", "LW", "10"]))
def test_a_day_of_every_month_is_found_once(start: datetime, field: str) -> None:
    every_day = cron(f"* * * {field} * ?")
    first = start.replace(day=1)
    month = [day for day in (first + timedelta(days=n) for n in range(31)) if day.month == first.month]
    assert sum(map(every_day.holds, month)) == 1


@given(st.times(), st.times())
def test_a_daily_range_holds_its_ends(one: object, other: object) -> None:
    start, end = sorted(f"{moment:%H:%M:%S}" for moment in (one, other))
    if start == end:
        with pytest.raises(ValueError, match="does not end"):
            daily(f"{start}-{end}")
    else:
        known = daily(f"{start}-{end}")
        assert known.holds(at(f"2026-01-01 {start}"))
        assert known.holds(at(f"2026-01-01 {end}"))
