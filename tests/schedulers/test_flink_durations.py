"""Durations of Flink's and Spark's settings: read and written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.schedulers.flink_durations import format_seconds, seconds


@given(st.integers(0, 10**12))
def test_a_time_that_is_written_is_read_again_by_the_reader(milliseconds: int) -> None:
    text = format_seconds(milliseconds / 1000)

    assert seconds(text) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 s", 10.0),
        ("10", 0.01),
        ("'1 min'", 60.0),
        ("5 Min", 300.0),
        ("2h", 7200.0),
        ("P1DT2H", 93600.0),
        ("pt1.5s", 1.5),
        ("100 µs", 1e-4),
        ("-1", -0.001),
        ("1.5 s", None),
        ("1 mo", None),
        ("+5 s", None),
        ("P", None),
        ("", None),
        ("10s 5s", None),
    ],
)
def test_times_are_parsed_as_flink_parses_them(text: str, expected: float | None) -> None:
    assert seconds(text) == (None if expected is None else pytest.approx(expected))


def test_a_bare_number_has_the_unit_of_the_setting() -> None:
    assert seconds("120", "s") == 120


@pytest.mark.parametrize(
    ("span", "text"), [(math.inf, "-1 ms"), (0.0, "0 ms"), (90.0, "90 s"), (120.0, "2 min"), (0.25, "250 ms")]
)
def test_a_time_is_written_in_the_largest_unit_that_gives_an_integer(span: float, text: str) -> None:
    assert format_seconds(span) == text
