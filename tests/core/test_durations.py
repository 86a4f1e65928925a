from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.durations import LONGEST, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("7d", 604800),
        ("1d2h3m4s5ms", 93784.005),
        ("90s", 90),
        ("0.25h", 900),
        (" 5s ", 5),
        ("0h0m", 0),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "5",
        "0",
        "1.5",
        "-5s",
        "+5s",
        "5 s",
        "5s5m",
        "5m5m",
        "5S",
        "1w",
        "5µs",
        "1e3s",
        "five",
        "1:30",
        "1,5s",
        "٣s",
        "5s\n5s",
        "99999999999s",
        "4000d",
        "999999999d",
    ],
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|no unit|too long"):
        parse_duration(text)


def test_a_bare_number_gets_the_advice_to_add_a_unit() -> None:
    with pytest.raises(ValueError, match=r"^30 has no unit; write it like 30s, 5m, 1h30m or 500ms$"):
        parse_duration("30")


def test_the_longest_duration_is_ten_years() -> None:
    assert parse_duration("3650d") == LONGEST
    with pytest.raises(ValueError, match="at most 3650d"):
        parse_duration("3650d1ms")


@given(st.integers(0, LONGEST // timedelta(milliseconds=1)))
def test_formatted_durations_are_parsed_back(milliseconds: int) -> None:
    span = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(span)) == span


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        span = parse_duration(text)
    except ValueError:
        return
    assert timedelta(0) <= span <= LONGEST


def test_negative_durations_are_formatted_with_their_sign() -> None:
    assert format_duration(timedelta(seconds=-90)) == "-1m30s"
    assert format_duration(timedelta(0)) == "0s"


def test_a_sum_that_timedelta_cannot_hold_is_refused_as_too_long() -> None:
    with pytest.raises(ValueError, match="is too long"):
        parse_duration("999999999d999999999h")
