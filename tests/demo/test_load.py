"""The load, its integral, and its division among partitions and batches. Pure functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.demo.load import BatchSizer, Load, admit, read_load, split, stretch, surge

STAIRS = Load(((0.0, 10.0), (5.0, 50.0), (8.0, 0.0), (9.0, 20.0)), 12.0)


@pytest.mark.parametrize(
    ("at", "rate", "offered"),
    [(-1, 0, 0), (0, 10, 0), (4.99, 10, 49), (5, 50, 50), (7, 50, 150), (8.5, 0, 200), (12, 0, 260), (99, 0, 260)],
)
def test_the_offered_records_are_the_integral_of_the_rate(at: float, rate: float, offered: int) -> None:
    assert (STAIRS.rate(at), STAIRS.offered(at)) == (rate, offered)


@given(st.lists(st.floats(0, 20), min_size=2, max_size=30))
def test_the_offered_records_never_decrease(times: list[float]) -> None:
    counts = [STAIRS.offered(at) for at in sorted(times)]
    assert counts == sorted(counts)


def test_rise_and_fall_times() -> None:
    assert (STAIRS.rise, STAIRS.fall) == (5.0, 8.0)
    assert (Load(((0.0, 5.0),), 10.0).rise, Load(((0.0, 5.0),), 10.0).fall) == (None, None)
    falling = Load(((0.0, 5.0), (2.0, 1.0)), 10.0)
    assert (falling.rise, falling.fall) == (None, None)


def test_the_surge_needs_three_workers_of_25_records_a_second() -> None:
    load = surge(240)
    highest = max(rate for _, rate in load.steps)
    # A batch has a fixed cost: two workers processed 42 of their 50 records/s in a measurement.
    assert 42 < highest < 62
    assert load.duration == 240
    assert load.rise is not None
    assert load.fall is not None


def test_a_load_is_stretched_only_in_time() -> None:
    short = stretch(STAIRS, 6.0)
    assert short.steps == ((0.0, 10.0), (2.5, 50.0), (4.0, 0.0), (4.5, 20.0))
    assert short.offered(99) == 130


@pytest.mark.parametrize(
    ("steps", "duration"),
    [
        ((), 10),
        (((1.0, 5.0),), 10),
        (((0.0, 5.0), (0.0, 6.0)), 10),
        (((0.0, -1.0),), 10),
        (((0.0, float("nan")),), 10),
        (((0.0, 5.0), (10.0, 6.0)), 10),
        (((0.0, 5.0),), float("inf")),
    ],
)
def test_an_invalid_load_is_refused(steps: tuple[tuple[float, float], ...], duration: float) -> None:
    with pytest.raises(ValueError, match="load"):
        Load(steps, duration)


def test_a_load_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t_seconds,value\n0,10\n60,50\n\n150,10\n")
    assert read_load(path) == Load(((0.0, 10.0), (60.0, 50.0), (150.0, 10.0)), 240.0)
    assert read_load(path, 120.0).steps == ((0.0, 10.0), (30.0, 50.0), (75.0, 10.0))
    path.write_text("0,7\n")
    assert read_load(path) == Load(((0.0, 7.0),), 240.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty, expected"),
        ("t_seconds,value\n", "is empty, expected"),
        ("0,10\n5,many\n", r"load\.csv:2: expected t_seconds,value, not '5,many'"),
        ("0,10,3\n", r"load\.csv:1"),
        ("5,10\n", "begins at 0"),
        ("0,10\n10,5\n9,4\n", "must increase"),
        ("0,nan\n", "0 or more"),
    ],
)
def test_an_invalid_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "load.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_load(path)


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_records_are_divided_evenly_and_none_is_lost(total: int, partitions: int) -> None:
    dealt = split(total, partitions)
    assert sum(dealt) == total
    assert max(dealt) - min(dealt) <= 1
    assert all(after >= before for before, after in zip(dealt, split(total + 1, partitions), strict=True))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=20), st.integers(1, 600))
def test_a_batch_takes_its_share_of_every_partition(places: list[tuple[int, int]], most: int) -> None:
    start = [begin for begin, _ in places]
    head = [begin + waiting for begin, waiting in places]
    end = admit(start, head, most)
    taken = [until - begin for begin, until in zip(start, end, strict=True)]
    waiting = sum(count for _, count in places)
    assert sum(taken) == min(most, waiting)
    for got, (_, count) in zip(taken, places, strict=True):
        assert 0 <= got <= count
        if waiting > most:
            assert abs(got * waiting - count * most) <= waiting  # within one record, in integers


@pytest.mark.parametrize(("rate", "rows"), [(25.0, 62), (75.0, 188), (5.0, 60)])
def test_batches_take_the_same_time_at_any_speed(rate: float, rows: int) -> None:
    pace, now = BatchSizer(3.0, least=60), 100.0
    for _ in range(12):
        admitted = pace.rows(now)
        pace.admitted(admitted, now)
        now += admitted / rate + 0.5
    assert pace.rows(now) == pytest.approx(rows, abs=2)


def test_a_batch_that_took_all_records_does_not_show_the_speed() -> None:
    pace = BatchSizer(3.0, least=10)
    pace.admitted(pace.rows(0.0), 0.0)
    assert pace.rows(0.5) == 60
    pace.admitted(3, 0.5)
    assert pace.rows(9.0) == 60
