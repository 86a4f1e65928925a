"""Estimated durations match the true ones although polls are further apart than the durations are long."""

from __future__ import annotations

import math
from random import Random
from statistics import median

import pytest

from autoscaler.core.censored import Interval, percentiles

INTERVAL = 30.0
SEEDS = range(1, 6)


def seen(at: float) -> Interval:
    """The polls before and after an event; the request is made right after the first of them."""
    after = math.floor(at / INTERVAL) * INTERVAL
    return after, after + INTERVAL


def lognormal(dice: Random, middle: float, deviation: float, count: int) -> list[float]:
    return [middle * math.exp(dice.gauss(0.0, deviation)) for _ in range(count)]


@pytest.mark.parametrize("truth", [22.0, 34.6, 63.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_start_up_times_are_estimated_within_a_tenth_from_polls_half_a_minute_apart(truth: float, seed: int) -> None:
    true = lognormal(Random(seed), truth, 0.25, 200)  # noqa: S311
    found = percentiles([seen(each) for each in true])
    assert found is not None
    assert found[0] == pytest.approx(median(true), rel=0.1)
    assert found[1] < found[0] < found[2]
    # The middles of the intervals give a larger error with every seed.
    middle = median(sum(seen(each)) / 2 for each in true)
    assert truth == 63.4 or middle != pytest.approx(median(true), rel=0.1)


@pytest.mark.parametrize(("start_up", "truth"), [(22.0, 24.3), (34.6, 9.5), (63.4, 16.0)])
@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_that_begin_between_polls_are_estimated_within_a_tenth(start_up: float, truth: float, seed: int) -> None:
    dice = Random(seed)  # noqa: S311
    true = lognormal(dice, truth, 0.3, 300)
    stopped = [10.0 + each for each in lognormal(dice, start_up, 0.25, 300)]
    ran = [begin + each for begin, each in zip(stopped, true, strict=True)]
    begins = [(seen(begin)[0], min(seen(begin)[1], end)) for begin, end in zip(stopped, ran, strict=True)]
    found = percentiles([(end, end) for end in ran], begins)
    assert found is not None
    assert found[0] == pytest.approx(median(true), rel=0.1)


def test_exact_durations_are_used_unchanged() -> None:
    known = [(each, each) for each in (5.0, 1.0, 2.0, 900.0, 3.0)]
    assert percentiles(known) == pytest.approx((3.0, 1.4, 542.0))
    assert percentiles([(7.0, 7.0)], [(2.0, 2.0)]) == (5.0, 5.0, 5.0)
    assert percentiles([]) is None


def test_jobs_that_do_not_stop_count_as_stalls_of_zero() -> None:
    still, moving = ((0.0, 30.0), (20.0, 20.0)), ((40.0, 40.0), (40.0, 40.0))
    most = [moving] * 6 + [still] * 4
    found = percentiles([end for _, end in most], [begin for begin, _ in most])
    assert found is not None
    assert found[:2] == (0.0, 0.0)
    assert 5 < found[2] < 40


def test_an_event_with_a_known_start_does_not_change_the_starts_of_others() -> None:
    unknown = [((10.0, 40.0), (45.0, 45.0))] * 20
    known = [((0.0, 0.0), (0.0, 30.0))]
    alone = percentiles([end for _, end in unknown], [begin for begin, _ in unknown])
    both = [*unknown, *known]
    together = percentiles([end for _, end in both], [begin for begin, _ in both])
    assert alone is not None
    assert together is not None
    assert together[0] == pytest.approx(alone[0], rel=0.1)


def test_a_very_slow_start_hardly_moves_the_median() -> None:
    usual = [seen(each) for each in lognormal(Random(1), 40.0, 0.25, 30)]  # noqa: S311
    for late in ((600.0, 630.0), (1e6, 1e6 + 1)):
        without, found = percentiles(usual), percentiles([*usual, late])
        assert without is not None
        assert found is not None
        assert found[0] == pytest.approx(without[0], rel=0.06)
