"""Plateaus: more workers that do not raise the throughput."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler_policies.adaptive import plateau
from autoscaler_policies.adaptive.plateau import Throughput
from autoscaler_policies.adaptive.tuning import TUNING

NOTHING = Throughput()
CLIMBED = Throughput(4.0, 400.0, 0.0)
LIMITED = Throughput(8.0, 450.0, 300.0)


def compared(
    size: int, throughput: float, now: float = 300.0, smaller: Throughput = CLIMBED, limit: Throughput = NOTHING
) -> tuple[Throughput, Throughput]:
    """The smaller size and the limit that are known after a comparison."""
    smaller, limit = replace(smaller), replace(limit)
    plateau.compare(smaller, limit, size, throughput, now)
    return smaller, limit


def test_twice_the_workers_with_hardly_more_throughput_are_a_plateau() -> None:
    assert compared(8, 450.0) == (CLIMBED, LIMITED)
    assert plateau.describe(CLIMBED, LIMITED) == (
        "4 replicas could process 400/s, 8 process 450/s: something else limits the job"
    )


def test_the_next_size_is_compared_with_the_last_one_that_helped() -> None:
    found = compared(8, 700.0)
    assert found == (Throughput(8.0, 700.0, 300.0), NOTHING)
    assert plateau.describe(*found) is None


@pytest.mark.parametrize(("now", "size"), [(1799.0, 8), (1801.0, 0)])
def test_throughputs_are_compared_within_half_an_hour(now: float, size: int) -> None:
    assert compared(8, 450.0, now)[1].size == size


@pytest.mark.parametrize(("throughput", "helps"), [(459.0, False), (461.0, True)])
def test_workers_help_if_they_bring_15_percent_of_the_best_possible_gain(throughput: float, *, helps: bool) -> None:
    # twice as many: at best 400/s more
    assert compared(8, throughput)[1].size == (0 if helps else 8)


@pytest.mark.parametrize(
    ("size", "now", "smaller"),
    [
        (5, 300.0, CLIMBED),  # noise hides so small a step
        (8, TUNING.plateau_s + 1, CLIMBED),  # other records
        (8, 300.0, replace(CLIMBED, size=0.0)),
        (3, 300.0, CLIMBED),
        (8, 0.0, NOTHING),
    ],
    ids=["small step", "long ago", "from nothing", "fewer", "without a climb"],
)
def test_sizes_that_cannot_be_compared_change_nothing(size: int, now: float, smaller: Throughput) -> None:
    assert compared(size, 1.0, now, smaller) == (smaller, NOTHING)


def test_consecutive_steps_up_are_compared_with_the_first_size_until_a_step_goes_below_it() -> None:
    smaller = Throughput()
    for size, rate, now in ((4, 400.0, 0.0), (6, 500.0, 60.0)):
        plateau.climb(smaller, size, rate, now)
    assert smaller == CLIMBED
    plateau.climb(smaller, 3, 300.0, 120.0)
    assert smaller == Throughput(3.0, 300.0, 120.0)
    plateau.climb(smaller, 12, 900.0, 120.0 + TUNING.plateau_s + 1)
    assert smaller.size == 12


@pytest.mark.parametrize(
    ("size", "throughput", "now", "kept"),
    [
        *((8, 450.0, 300 + TUNING.plateau_s, True), (8, 450.0, 300 + TUNING.plateau_s + 1, False)),
        *((9, 450.0, 300 + TUNING.plateau_s, True), (7, 450.0, 400.0, False)),
        *((8, 517.0, 400.0, True), (8, 518.0, 400.0, False)),
    ],
)
def test_a_limit_is_forgotten_after_half_an_hour_at_fewer_replicas_or_with_far_more_throughput(
    size: int, throughput: float, now: float, *, kept: bool
) -> None:
    limit = replace(LIMITED)
    plateau.forget(limit, size, throughput, now)
    assert limit == (LIMITED if kept else NOTHING)
    assert (plateau.describe(CLIMBED, limit) is not None) is kept


def test_a_known_limit_is_not_evaluated_again() -> None:
    assert compared(8, 700.0, limit=LIMITED) == (CLIMBED, LIMITED)
    assert compared(16, 1.0, limit=LIMITED) == (CLIMBED, LIMITED)
