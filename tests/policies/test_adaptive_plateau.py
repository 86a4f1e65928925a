"""More workers that do not raise what a job processes."""

from __future__ import annotations

import pytest

from autoscaler_policies.adaptive import plateau

CLIMBED = {"climb.size": 4.0, "climb.rate": 400.0, "climb.seen_at": 0.0}
LIMITED = {**CLIMBED, "plateau.size": 8.0, "plateau.rate": 450.0, "plateau.seen_at": 300.0}


def compared(size: int, throughput: float, now: float = 300.0, **known: float) -> dict[str, float]:
    memory = {**CLIMBED, **{name.replace("_", ".", 1): value for name, value in known.items()}}
    plateau.compare(memory, size, throughput, now)
    return memory


def test_twice_the_workers_that_process_hardly_more_are_a_plateau() -> None:
    assert compared(8, 450.0) == LIMITED
    assert plateau.describe(LIMITED) == "4 replicas could process 400/s, 8 process 450/s: something else limits the job"


def test_workers_that_help_are_what_the_next_ones_are_compared_with() -> None:
    found = compared(8, 700.0)
    assert found == {"climb.size": 8.0, "climb.rate": 700.0, "climb.seen_at": 300.0}
    assert plateau.describe(found) is None


@pytest.mark.parametrize(
    ("size", "now", "known"),
    [
        (5, 300.0, {}),  # noise hides so small a step
        (8, 1801.0, {}),  # other records
        (8, 300.0, {"climb_size": 0.0}),
        (3, 300.0, {}),
    ],
    ids=["small step", "long ago", "from nothing", "fewer"],
)
def test_what_cannot_be_compared_says_nothing(size: int, now: float, known: dict[str, float]) -> None:
    assert plateau.describe(compared(size, 1.0, now, **known)) is None


def test_without_a_climb_there_is_nothing_to_compare_with() -> None:
    memory: dict[str, float] = {}
    plateau.compare(memory, 8, 1.0, 0.0)
    assert memory == {}


def test_of_steps_in_a_row_the_first_counts_and_of_one_further_down_that() -> None:
    memory: dict[str, float] = {}
    for size, rate, now in ((4, 400.0, 0.0), (6, 500.0, 60.0)):
        plateau.climb(memory, size, rate, now)
    assert memory == CLIMBED
    plateau.climb(memory, 3, 300.0, 120.0)
    assert memory == {"climb.size": 3.0, "climb.rate": 300.0, "climb.seen_at": 120.0}
    plateau.climb(memory, 12, 900.0, 120.0 + 1801.0)
    assert memory["climb.size"] == 12.0


@pytest.mark.parametrize(
    ("size", "throughput", "now", "kept"),
    [
        *((8, 450.0, 2100.0, True), (8, 450.0, 2101.0, False)),
        *((9, 450.0, 2100.0, True), (7, 450.0, 400.0, False)),
        *((8, 517.0, 400.0, True), (8, 518.0, 400.0, False)),
    ],
)
def test_it_is_tried_again_after_half_an_hour_with_fewer_or_when_far_more_is_processed(
    size: int, throughput: float, now: float, *, kept: bool
) -> None:
    memory = dict(LIMITED)
    plateau.forget(memory, size, throughput, now)
    assert (plateau.describe(memory) is not None) is kept
    assert memory == (LIMITED if kept else CLIMBED)
    plateau.compare(memory, size, throughput, now)  # what is known to be limited is not judged again
    assert kept is (memory == LIMITED)
