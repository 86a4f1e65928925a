import itertools
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulation.plant import STEP, Track
from autoscaler.simulation.scoring import Score, ages, convergence, delays, needed, quantiles, score

# Workers needed


def test_the_peak_needs_exactly_the_intended_number_of_workers() -> None:
    one = 1000 / 16**0.9
    assert needed([1000 * STEP, 1001 * STEP, 0.0, one * STEP, one * STEP * 1.01], one, 0.9) == [16, 17, 1, 1, 2]


@given(st.floats(0, 1e6), st.floats(0.1, 1e4), st.floats(0.3, 1.0))
def test_it_is_the_smallest_size_that_carries_the_arrivals(rate: float, one: float, exponent: float) -> None:
    rate = min(rate, one * 100**exponent)
    size = needed([rate * STEP], one, exponent)[0]
    assert one * size**exponent >= rate * (1 - 1e-8)
    assert size == 1 or one * (size - 1) ** exponent < rate


@pytest.mark.parametrize(("one", "exponent"), [(0.0, 0.9), (-1.0, 0.9), (math.nan, 0.9), (10.0, 0.0)])
def test_workers_with_a_rate_of_zero_are_refused(one: float, exponent: float) -> None:
    with pytest.raises(ValueError, match="expected above 0"):
        needed([1.0], one, exponent)


@pytest.mark.parametrize("top", [1e9, 1e300])
def test_more_workers_than_there_are_anywhere_are_refused(top: float) -> None:
    with pytest.raises(ValueError, match=r"records/s need more than 1,000,000 workers, if one processes 100/s"):
        needed([1.0, top * STEP], 100.0, 0.9)


# Age of the oldest unprocessed record


def test_records_that_wait_grow_older() -> None:
    assert ages([10, 10, 10, 10], [10, 10, 10, 40]) == [0, 5, 10, 0]


def test_within_a_step_records_arrive_evenly() -> None:
    assert ages([10, 10], [7.5, 12]) == pytest.approx([1.25, 4])


def test_the_age_of_a_record_does_not_include_the_quiet_time_before_it() -> None:
    assert ages([10, 0, 0, 10], [10, 10, 10, 10]) == [0, 0, 0, 5]


def test_records_that_a_restart_replays_are_unprocessed_again() -> None:
    assert ages([10, 10, 10], [10, 20, 5]) == [0, 0, 12.5]


def test_a_rounding_error_is_not_a_waiting_record() -> None:
    assert ages([1e6, 1e6], [1e6 - 1e-4, 2e6 + 1e-4]) == [0, 0]


def test_without_arrivals_nothing_waits() -> None:
    assert ages([0, 0], [0, 0]) == [0, 0]
    assert ages([], []) == []


# Delay of records


def _flat(found: Sequence[tuple[float, float]]) -> list[float]:
    return [number for pair in found for number in pair]


def test_a_job_that_keeps_up_has_no_delay() -> None:
    assert delays([10, 10], [10, 20]) == [(0, 10), (0, 10)]


def test_a_stall_delays_the_records_that_arrive_in_it() -> None:
    # The arrivals from 0 to 5 s are processed evenly from 10 to 15 s.
    assert delays([10, 0, 0], [0, 0, 10]) == [(10, 10)]


def test_old_and_new_records_have_separate_delays() -> None:
    # From 5 to 10 s 20 are processed: first the arrivals from 0 to 5 s, then those that arrive meanwhile.
    assert _flat(delays([10, 10], [0, 20])) == pytest.approx([3.75, 10, 1.25, 10])


def test_a_replayed_record_counts_once_at_its_final_processing() -> None:
    found = delays([10, 10, 0, 0], [10, 5, 5, 20])
    assert sum(records for _, records in found) == 20
    # The first five stay processed. The restart delays the others until they are processed from 15 to 20 s.
    assert _flat(found[:1]) == pytest.approx([1.25, 5])
    assert _flat(found[1:]) == pytest.approx([(12.5 + 11 + 2 / 3) / 2, 5, (11 + 2 / 3 + 10) / 2, 10])


def test_records_that_arrive_in_one_step_and_are_processed_in_one_count_together() -> None:
    # After a stall all are processed at once, and still the first have waited longer than the last.
    assert _flat(delays([10, 10, 10, 0], [0, 0, 0, 30])) == pytest.approx([40 / 3, 10, 10, 10, 20 / 3, 10])
    assert _flat(delays([10, 0, 0, 20], [0, 0, 0, 0])) == pytest.approx([17.5, 10, 2.5, 20])


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1200)), min_size=1, max_size=50))
def test_all_delays_together_are_the_records_that_wait_summed_over_time(steps: list[tuple[int, int]]) -> None:
    arrivals = [float(records) for records, _ in steps]
    come = list(itertools.accumulate(arrivals))
    position = [min(total, total * share / 1000) for total, (_, share) in zip(come, steps, strict=True)]
    good = [min(position[step:]) for step in range(len(steps))]
    waiting = [0.0, *(total - done for total, done in zip(come, good, strict=True))]
    area = sum((before + after) / 2 * STEP for before, after in itertools.pairwise(waiting))
    together = math.fsum(delay * records for delay, records in delays(arrivals, position))
    assert together == pytest.approx(area, rel=1e-6, abs=1e-6 * come[-1])


def test_records_that_wait_at_the_end_count_with_their_age() -> None:
    assert delays([10, 0, 0], [0, 0, 0]) == [(12.5, 10)]


def test_extremely_few_records_still_have_a_delay() -> None:
    assert _flat(delays([2e-308], [1e-308])) == pytest.approx([1.25, 1e-308, 1.25, 1e-308])


def test_without_records_there_is_no_delay() -> None:
    assert delays([], []) == []
    assert delays([0, 0], [0, 0]) == []


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1.2)), min_size=1, max_size=50))
def test_every_record_is_counted_once_and_none_is_processed_before_it_arrives(steps: list[tuple[float, float]]) -> None:
    arrivals = [records for records, _ in steps]
    position, come = [], 0.0
    for records, share in steps:
        come += records
        position.append(min(come, come * share))
    found = delays(arrivals, position)
    assert math.fsum(records for _, records in found) == pytest.approx(come, rel=1e-6, abs=1e-6)
    assert all(0 <= delay <= len(steps) * STEP and records > 0 for delay, records in found)


# Quantiles


def test_a_quantile_is_weighted() -> None:
    weighted = [(30.0, 1.0), (0.0, 98.0), (7.0, 1.0)]
    assert quantiles(weighted, (0.5, 0.98, 0.99, 1.0)) == (0, 0, 7, 30)
    assert quantiles([], (0.5, 0.99)) == (0, 0)


# Time to converge


def _converged(running: Sequence[int], old: Sequence[float] | None = None, need: int = 4) -> list[float]:
    return convergence([need] * len(running), running, old or [0.0] * len(running), [100.0])


def test_it_converges_when_the_size_fits_and_continues_to_fit() -> None:
    assert _converged([1] * 30 + [4] * 130) == [50]
    assert _converged([4] * 160) == [0]


def test_a_size_that_changes_again_within_ten_minutes_did_not_fit() -> None:
    assert _converged([1] * 30 + [4] * 60 + [3] * 10 + [4] * 130) == [400]
    assert _converged([1] * 30 + [4] * 121 + [3] * 10) == [50]


def test_up_to_half_as_much_again_fits() -> None:
    assert _converged([7] * 30 + [6] * 130) == [50]
    assert _converged([3] * 30 + [2] * 130, need=1) == [50]


def test_convergence_also_requires_that_the_backlog_is_gone() -> None:
    assert _converged([4] * 160, [10.0] * 30 + [9.9] * 130) == [50]


def test_a_size_that_never_fits_counts_until_the_next_jump_or_the_end() -> None:
    assert convergence([4] * 300, [1] * 300, [0.0] * 300, [100.0, 600.0]) == [500, 900]
    assert convergence([4] * 100, [4] * 100, [0.0] * 100, [100.0]) == [400]
    assert convergence([4] * 100, [4] * 100, [0.0] * 100, []) == []


# The whole score


def stalled(position: list[float]) -> Track:
    return Track(
        arrivals=[100.0] * 24,
        position=position,
        billed=[4] * 6 + [3] * 18,
        running=[1] * 6 + [3] * 18,
        stopped=[1.0] * 6 + [0.0] * 18,
        requests=[(0, 4), (6, 3)],
        restarts=2,
    )


def two_workers() -> Track:
    arrivals, workers = [100.0] * 300, [2] * 300
    position = [100.0 * n for n in range(1, 301)]
    return Track(arrivals=arrivals, position=position, billed=workers, running=workers, stopped=[0.0] * 300)


def test_the_numbers_of_a_run() -> None:
    # Two minutes of 20 records/s, one worker processes 10: stopped for half a minute, then three of them catch up.
    position = [0.0] * 6 + [150.0 * n for n in range(1, 13)] + [100.0 * n for n in range(19, 25)]
    track = stalled(position)
    found = score(track, 10, 1.0, slo=20, optimum=0.08)
    assert found.hours == pytest.approx(1 / 30)
    assert found.cost == pytest.approx((6 * 4 + 18 * 3) * 5 / 3600)
    assert found.demand == pytest.approx(24 * 2 * 5 / 3600)
    assert found.to_demand == pytest.approx(78 / 48)
    assert found.to_optimum == pytest.approx(78 * 5 / 3600 / 0.08)
    # 30 s behind after 6 steps, and 2.5 s less with each further one: above 20 s in steps 4 (25 s), 5, and 6 to 8.
    assert found.worst == pytest.approx(30)
    assert found.violation == pytest.approx(5 / 24)
    assert found.rescales == 2
    assert found.rescales_per_hour == pytest.approx(60)
    assert found.restarts == 2
    assert found.stopped == pytest.approx(0.25)
    assert found.under == pytest.approx(6 / 24 * 0.5)
    assert found.over == pytest.approx(18 / 24 * 0.5)
    assert 20 < found.p99 <= 30
    assert found.converged is None


NOTHING: dict[str, Any] = dict.fromkeys((field.name for field in fields(Score)), 0)
BASE = Score(**{**NOTHING, "hours": 1.0, "cost": 10.0, "demand": 8.0, "optimum": 10.0})


def test_ten_percent_of_cost_count_like_one_percent_too_late_and_five_rescales_an_hour() -> None:
    assert BASE.j == 1
    worse = (replace(BASE, cost=11.0), replace(BASE, violation=0.01), replace(BASE, rescales=5))
    assert [each.j for each in worse] == pytest.approx([1.1] * 3)


def test_without_the_optimum_cost_is_relative_to_the_demand() -> None:
    unknown = replace(BASE, optimum=None)
    assert unknown.to_optimum is None
    assert unknown.j == 1.25


def test_a_jump_of_the_load_gives_a_time_to_converge() -> None:
    track = two_workers()
    assert score(track, 10, 1.0, 20, changes=[50.0, 905.0]).converged == pytest.approx((0 + 595) / 2)


def test_a_skipped_beginning_does_not_count_but_its_backlog_does() -> None:
    # As above: the half minute of the stall is skipped, and its backlog is 30 s old when it ends.
    position = [0.0] * 6 + [150.0 * n for n in range(1, 13)] + [100.0 * n for n in range(19, 25)]
    track = stalled(position)
    found = score(track, 10, 1.0, slo=20, begin=6)
    assert found.hours == pytest.approx(18 * 5 / 3600)
    assert found.cost == pytest.approx(18 * 3 * 5 / 3600)
    assert found.worst == pytest.approx(27.5)
    assert found.violation == pytest.approx(3 / 18)
    assert found.rescales == 1
    assert found.stopped == found.under == 0
    assert 20 < found.p99 <= 30
    quiet = score(track, 10, 1.0, slo=20, begin=20)
    assert quiet.worst == quiet.p99 == quiet.violation == quiet.rescales == 0
    with pytest.raises(ValueError, match="expected at least one"):
        score(track, 10, 1.0, 20, begin=24)


def test_a_skipped_jump_does_not_count() -> None:
    track = two_workers()
    assert score(track, 10, 1.0, 20, changes=[50.0, 905.0], begin=20).converged == pytest.approx(595)


def test_time_after_the_end_does_not_count_and_records_waiting_then_count_with_their_age() -> None:
    # As above: at the end of the stall the records of 30 s wait, none of which has been processed.
    position = [0.0] * 6 + [150.0 * n for n in range(1, 13)] + [100.0 * n for n in range(19, 25)]
    track = stalled(position)
    found = score(track, 10, 1.0, slo=20, end=6)
    assert found.hours == pytest.approx(6 * 5 / 3600)
    assert found.cost == pytest.approx(6 * 4 * 5 / 3600)
    assert found.worst == pytest.approx(30.0)
    assert found.violation == pytest.approx(2 / 6)
    assert found.p50 == pytest.approx(12.5)
    assert (found.stopped, found.under, found.rescales) == (1.0, 0.5, 1)
    whole = score(track, 10, 1.0, slo=20)
    rest = score(track, 10, 1.0, slo=20, begin=6)
    assert found.rescales + rest.rescales == whole.rescales
    assert found.cost + rest.cost == pytest.approx(whole.cost)
    with pytest.raises(ValueError, match="from `begin` to `end`, expected at least one"):
        score(track, 10, 1.0, 20, begin=6, end=6)


def test_a_jump_after_the_end_does_not_count() -> None:
    track = two_workers()
    early = score(track, 10, 1.0, 20, changes=[50.0, 905.0], end=181).converged
    assert early == score(track, 10, 1.0, 20, changes=[50.0], end=181).converged


def test_an_empty_run_has_no_score() -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        score(Track(), 10, 1.0, 20)
