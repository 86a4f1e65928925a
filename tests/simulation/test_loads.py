import math
import os
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulation import loads
from autoscaler.simulation.loads import RECORDED, SCENARIOS, SYNTHETIC, Load, LoadError, Recorded
from autoscaler.simulation.plant import STEP

EXPECTED_SUMS = {
    "steps6h": 2142.0,
    "diurnal24h": 10045.722543,
    "waves6h": 2335.720769,
    "match24h": 3592.155242,
    "ramps8h": 2887.462799,
    "bursts12h": 3743.735615,
    "steady12h": 8645.074718,
}

# Reading


def _file(folder: Path, text: str) -> Path:
    path = folder / "load.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_are_read_in_order_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = _file(tmp_path, "t_seconds,value\n0,1\n60, 2.5\n\n90.5,0\n")
    assert loads.read_points(path) == [(0.0, 1.0), (60.0, 2.5), (90.5, 0.0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: is empty, expected the header t_seconds,value"),
        ("t_seconds,value\n\n", ":2: has no line after the header, expected two or more"),
        ("time,value\n0,1\n", ":1: is 'time,value', expected the header t_seconds,value"),
        ("t_seconds,value\n0,1\n5\n", ":3: has 1 columns, expected t_seconds and value"),
        ("t_seconds,value\n0,1\n5,many\n", ":3: value: is 'many', expected a number"),
        ("t_seconds,value\nnan,1\n", ":2: t_seconds: is 'nan', expected a number"),
        ("t_seconds,value\n0,inf\n", ":2: value: is 'inf', expected a number"),
        ("t_seconds,value\n0,-1\n", ":2: value: is -1, expected 0 or more"),
        ("t_seconds,value\n0,1\n5,1\n5,1\n", ":4: t_seconds: is 5 after 5, expected to increase"),
    ],
)
def test_an_unreadable_line_is_reported_with_its_number(tmp_path: Path, text: str, expected: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(LoadError) as error:
        loads.read_points(path)
    assert str(error.value) == f"{path}{expected}"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"none\.csv: cannot be read: No such file"):
        loads.read_points(tmp_path / "none.csv")


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_bytes(b"t_seconds,value\n0,\xff\n")
    with pytest.raises(LoadError, match=r"load.csv: is not UTF-8: .* at byte 18"):
        loads.read_points(path)


def test_an_endless_field_is_not_csv(tmp_path: Path) -> None:
    path = _file(tmp_path, "t_seconds,value\n" + '"' + "x" * 200_000)
    with pytest.raises(LoadError, match=r"load.csv: is not a CSV file: field larger than"):
        loads.read_points(path)


def test_a_whole_file_starts_at_its_first_point_and_gives_the_load_its_name(tmp_path: Path) -> None:
    assert loads.from_csv(_file(tmp_path, "t_seconds,value\n100,10\n110,30\n")) == Load("load", (15.0, 25.0))


@pytest.mark.parametrize("text", ["t_seconds,value\n7,1\n", "t_seconds,value\n0,1\n4,1\n"])
def test_a_file_shorter_than_a_step_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(LoadError, match=r"load.csv: .* and a step takes 5 s"):
        loads.from_csv(_file(tmp_path, text))


# Resampling


def test_rates_are_interpolated_between_points_and_averaged_over_a_step() -> None:
    assert loads.resample([(0, 0), (10, 10), (20, 0)]) == pytest.approx((2.5, 7.5, 7.5, 2.5))


def test_all_points_within_a_step_count() -> None:
    assert loads.resample([(n, 50.0 if n == 3 else 0.0) for n in range(6)]) == pytest.approx((10.0,))


def test_a_part_is_cut_out_and_an_incomplete_last_step_is_dropped() -> None:
    points = [(0.0, 0.0), (100.0, 100.0)]
    assert loads.resample(points, 20, 14) == pytest.approx((22.5, 27.5))


@pytest.mark.parametrize(("begin", "seconds"), [(-5, 10), (90, 15), (0, 4)])
def test_a_part_outside_the_file_is_refused(begin: float, seconds: float) -> None:
    with pytest.raises(LoadError, match="the trace has 0 to 100 s, and a step takes 5 s"):
        loads.resample([(0.0, 1.0), (100.0, 1.0)], begin, seconds)


@given(
    st.lists(st.tuples(st.floats(0.1, 40), st.floats(0, 1e6)), min_size=2, max_size=30),
    st.integers(1, 200),
)
def test_no_record_is_lost_or_made_by_resampling(pieces: list[tuple[float, float]], steps: int) -> None:
    points, at = [(0.0, 5.0)], 0.0
    for gap, value in pieces:
        at += gap
        points.append((at, value))
    points.append((at + steps * STEP, 7.0))
    rates = loads.resample(points)
    end = len(rates) * STEP
    area = 0.0
    for (t0, v0), (t1, v1) in pairwise(points):
        stop = min(t1, end)
        if stop > t0:
            area += (v0 + v0 + (v1 - v0) * (stop - t0) / (t1 - t0)) / 2 * (stop - t0)
    assert points[-1][0] - end < STEP
    assert sum(rates) * STEP == pytest.approx(area, rel=1e-6, abs=1e-6)


# Loads


def test_a_scaled_load_has_the_requested_peak_and_the_same_shape() -> None:
    load = Load("x", (1.0, 4.0, 2.0), (5.0,)).scaled(1000)
    assert load == Load("x", (250.0, 1000.0, 500.0), (5.0,))
    assert load.peak == 1000
    assert load.seconds == 15


@given(st.floats(0.1, 1.0), st.floats(1e-3, 1e9))
def test_sixteen_workers_process_the_peak_at_full_load(exponent: float, peak: float) -> None:
    assert Load("x", (peak / 2, peak)).per_worker(exponent) * 16**exponent == pytest.approx(peak)


def test_the_rate_of_one_worker_can_be_given() -> None:
    load = Load("x", (0.0, 0.0), rate_per_worker=25.0)
    assert load.per_worker(0.9) == 25.0
    assert replace(load, rates=(1.0, 4.0)).scaled(1000).per_worker(0.9) == 25.0


@pytest.mark.parametrize("one", [0.0, -1.0, math.inf, math.nan])
def test_a_worker_with_a_rate_of_zero_is_refused(one: float) -> None:
    with pytest.raises(LoadError, match=r"x: the rate per worker is .*, expected above 0"):
        Load("x", (1.0,), rate_per_worker=one)


def test_a_load_of_zero_can_neither_be_scaled_nor_size_a_worker() -> None:
    load = Load("x", (0.0, 0.0))
    with pytest.raises(LoadError, match="x: is 0 throughout"):
        load.scaled(10)
    with pytest.raises(LoadError, match="x: is 0 throughout"):
        load.per_worker(0.9)


@pytest.mark.parametrize("peak", [0.0, -1.0, math.nan, math.inf])
def test_a_peak_must_be_above_0(peak: float) -> None:
    with pytest.raises(LoadError, match="expected above 0"):
        Load("x", (1.0,)).scaled(peak)


@pytest.mark.parametrize("rates", [(), (1.0, -0.1), (math.nan,), (math.inf,)])
def test_a_load_has_only_steps_and_rates(rates: tuple[float, ...]) -> None:
    with pytest.raises(LoadError, match="expected"):
        Load("x", rates)


@pytest.mark.parametrize("changes", [(0.0,), (10.0,), (-5.0,), (5.0, 5.0), (7.0, 5.0), (math.nan,)])
def test_jumps_are_in_order_and_within_the_load(changes: tuple[float, ...]) -> None:
    with pytest.raises(LoadError, match="expected in order within 10 s"):
        Load("x", (1.0, 2.0), changes)


# Synthetic loads


def test_the_step_load_equals_the_published_one_to_the_second() -> None:
    load = loads.load_by_name("steps6h")
    levels = [(1, 0.25), (1, 1.0), (1, 0.25), (0.5, 0.5), (0.5, 0.75), (0.5, 1.0), (0.5, 0.5), (1, 0.1)]
    expected: list[float] = []
    for hours, level in levels:
        expected += [level] * int(hours * 720)
    assert load.rates == tuple(expected)
    assert load.changes == (3600, 7200, 10800, 12600, 14400, 16200, 18000)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_load_has_the_length_in_its_name(name: str) -> None:
    load = loads.load_by_name(name, 3)
    assert load.name == name
    assert load.seconds == int(name.removesuffix("h").lstrip("abcdefghijklmnopqrstuvwxyz")) * 3600


@pytest.mark.parametrize("name", [name for name in SYNTHETIC if name != "steps6h"])
def test_equal_seeds_give_equal_loads_and_others_differ(name: str) -> None:
    assert loads.load_by_name(name, 1) == loads.load_by_name(name, 1)
    assert loads.load_by_name(name, 1) != loads.load_by_name(name, 2)


def test_seeds_give_the_same_load_on_every_machine() -> None:
    made = {name: loads.load_by_name(name, 1).rates for name in SYNTHETIC}
    assert {name: round(math.fsum(rates), 6) for name, rates in made.items()} == EXPECTED_SUMS


def test_noise_has_its_deviation_and_time_constant_and_is_never_negative() -> None:
    noisy = loads.noise([100.0] * 20_000, 0.1, 4, memory=60)
    assert statistics.fmean(noisy) == pytest.approx(100, abs=1)
    assert statistics.pstdev(noisy) == pytest.approx(10, rel=0.1)
    assert statistics.correlation(noisy[:-12], noisy[12:]) == pytest.approx(math.exp(-1), abs=0.1)
    white = loads.noise([100.0] * 20_000, 0.1, 4, memory=0)
    assert statistics.correlation(white[:-1], white[1:]) == pytest.approx(0, abs=0.03)
    assert min(loads.noise([1.0] * 1000, 3.0, 1)) == 0
    assert loads.noise([1.0, 2.0], 0.0, 1) == [1.0, 2.0]


@pytest.mark.parametrize(("share", "memory"), [(-0.1, 60), (math.nan, 60), (0.1, -1), (0.1, math.inf)])
def test_negative_noise_is_refused(share: float, memory: float) -> None:
    with pytest.raises(LoadError, match="expected 0 or more of both"):
        loads.noise([1.0], share, 1, memory)


def test_a_sine_oscillates_between_its_bounds_with_its_period() -> None:
    wave = loads.sine(4, 2, 0.2)
    assert len(wave) == 4 * 720
    assert max(wave) == pytest.approx(1, abs=1e-4)
    assert min(wave) == pytest.approx(0.2, abs=1e-4)
    assert wave[:1440] == pytest.approx(wave[1440:])


def test_a_day_is_lowest_in_the_early_morning_and_the_next_day_is_equal() -> None:
    day = loads.diurnal(48, 0.15)
    assert min(day) >= 0.15
    assert max(day) == 1
    assert day.index(min(day)) * STEP / 3600 == pytest.approx(4, abs=0.5)
    assert day[:17280] == pytest.approx(day[17280:])


def test_ramps_reach_both_bounds_without_jumps() -> None:
    rates = loads.ramps(8, 5, 0.1, (5, 60))
    assert min(rates) == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1)
    assert max(abs(a - b) for a, b in pairwise(rates)) < 0.05


def test_bursts_have_two_levels_and_about_the_requested_duration() -> None:
    rates = loads.bursts(1000, 5, 0.3, every=60, lasting=15)
    assert set(rates) == {0.3, 1.0}
    assert rates.count(1.0) / len(rates) == pytest.approx(0.2, abs=0.03)


def test_spikes_rise_within_minutes_and_fade() -> None:
    base = loads.constant(4, 0.2)
    rates = loads.spikes(base, 1, 6, (0.5, 0.5), (20, 20))
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(0.7, abs=0.02)
    begin = next(n for n, rate in enumerate(rates) if rate > 0.2)
    assert (top - begin) * STEP <= 2 * 60 + STEP
    assert rates[top + 240] == pytest.approx(0.2 + 0.5 * math.exp(-1), abs=0.02)
    assert all(rate >= 0.2 for rate in rates)


def test_a_steady_load_has_no_trend() -> None:
    rates = loads.load_by_name("steady12h", 2).rates
    assert len(rates) == 8640
    assert statistics.fmean(rates[:4320]) == pytest.approx(statistics.fmean(rates[4320:]), rel=0.02)


# Recorded loads


def test_the_full_benchmark_has_sixteen_scenarios() -> None:
    assert len(set(SCENARIOS)) == 16
    assert set(SCENARIOS) <= {*RECORDED, *SYNTHETIC}


def test_a_recorded_part_is_cut_out_and_rates_below_the_offset_are_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{hour * 3600},{100 + 10 * hour}" for hour in range(6)]
    (tmp_path / "part.csv").write_text("t_seconds,value\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(loads, "RECORDED", {"part2h": Recorded("part.csv", 1, 2, 120)})
    load = loads.load_by_name("part2h", 9, tmp_path)
    assert load.seconds == 7200
    assert load.rates[:720] == (0.0,) * 720
    assert load.rates[-1] == pytest.approx(10, abs=0.01)


def test_a_load_of_more_than_a_year_is_refused() -> None:
    with pytest.raises(LoadError, match=r"0 to 1e\+18 s is longer than the 366 days .*: are the times in seconds\?"):
        loads.resample([(0.0, 1.0), (1e18, 1.0)])


def test_the_error_names_a_trace_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / RECORDED["elb24h"].file
    path.write_text("t_seconds,value\n0,1\n300,1\n")
    with pytest.raises(LoadError, match=f"{path.name}: 259200 to 345600 s were requested, the trace has 0 to 300 s"):
        loads.load_by_name("elb24h", folder=tmp_path)


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LoadError, match=r"lunch: is not a load, expected one of traffic7h, .*steps6h"):
        loads.load_by_name("lunch")


def test_a_recorded_load_without_a_folder_gives_an_error_that_names_it() -> None:
    with pytest.raises(
        LoadError, match=r"taxi48h: is a recorded trace: use --traces with the directory of nyc_taxi_30min_7mo"
    ):
        loads.load_by_name("taxi48h")


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_trace_has_the_length_in_its_name(name: str) -> None:
    folder = os.environ.get("AUTOSCALER_TRACES")
    if not folder:
        pytest.skip("the recorded loads are not part of the project: set AUTOSCALER_TRACES to their folder")
    load = loads.load_by_name(name, folder=Path(folder))
    hours = int(name.removesuffix("h").lstrip("abcdefghijklmnopqrstuvwxyz"))
    assert load.seconds / 3600 == pytest.approx(hours, rel=0.01)
    assert load.peak > 0
