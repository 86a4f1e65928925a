"""Capacity is learned while the job is saturated and read off as a staircase."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.capacity import (
    beyond_use,
    effective_slots,
    learn_durations,
    learn_rate,
    rate,
    restart_time,
    source_partitions,
)
from autoscaler.core.model import (
    CapacitySpec,
    Cause,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    Observation,
    Phase,
    Reading,
    Rescale,
    SizeCapacity,
)
from tests.core.build import T0, at, spec


def known(**rates: float) -> Learned:
    return Learned({int(size[1:]): SizeCapacity(value, T0, 1) for size, value in rates.items()})


@pytest.mark.parametrize(
    ("slots", "partitions", "effective"),
    [
        (1, 4, 1.0),
        (2, 4, 2.0),
        (3, 4, 2.0),
        (4, 4, 4.0),
        (6, 4, 4.0),
        (3, None, 3.0),
        (0, 4, 0.0),
        (5, 12, 4.0),
    ],
)
def test_equal_tasks_run_in_waves(slots: int, partitions: int | None, effective: float) -> None:
    assert effective_slots(slots, 1, partitions) == effective


def test_without_samples_there_is_no_capacity_unless_one_is_assumed() -> None:
    assert rate(Learned(), spec(), 3, None) is None
    assumed = spec(capacity=CapacitySpec(per_replica=50), slots_per_replica=2)
    assert rate(Learned(), assumed, 3, None) == 150
    assert rate(Learned(), assumed, 3, 4) == pytest.approx(100)


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 50), (2, 100), (3, 140), (4, 180), (6, 270)])
def test_capacity_is_interpolated_between_known_sizes_and_proportional_outside_them(size: int, expected: float) -> None:
    assert rate(known(n2=100, n4=180), spec(), size, None) == pytest.approx(expected)


def test_sizes_with_the_same_number_of_waves_share_the_larger_figure() -> None:
    table = known(n2=100, n3=130)
    assert [rate(table, spec(), n, 4) for n in (1, 2, 3, 4)] == [50, 130, 130, 260]


def test_a_new_figure_drops_those_that_contradict_it() -> None:
    table = known(n2=1000, n4=1600, n6=1700)
    slower = learn_rate(table, spec(capacity=CapacitySpec(memory=1.0)), 4, 400, at(60))
    assert slower.capacity == {4: SizeCapacity(400, at(60), 2), 6: SizeCapacity(1700, T0, 1)}
    faster = learn_rate(table, spec(capacity=CapacitySpec(memory=1.0)), 4, 9000, at(60))
    assert faster.capacity == {2: SizeCapacity(1000, T0, 1), 4: SizeCapacity(9000, at(60), 2)}


def test_the_staircase_of_partitions_holds_for_unseen_sizes() -> None:
    table = known(n1=184)
    assert [rate(table, spec(), n, 4) for n in (1, 2, 3, 4, 5)] == [184, 368, 368, 736, 736]


@given(
    st.dictionaries(st.integers(1, 30), st.floats(0.1, 1e6), max_size=6),
    st.one_of(st.none(), st.integers(1, 60)),
    st.integers(1, 4),
)
def test_a_larger_size_never_has_less_capacity(table: dict[int, float], partitions: int | None, slots: int) -> None:
    learned = Learned({size: SizeCapacity(value, T0, 1) for size, value in table.items()})
    s = spec(capacity=CapacitySpec(per_replica=7), slots_per_replica=slots)
    rates = [rate(learned, s, size, partitions) or 0.0 for size in range(40)]
    for smaller, larger in pairwise(rates):
        assert larger >= smaller * (1 - 1e-9)


def test_without_a_sample_nothing_is_learned() -> None:
    assert learn_rate(Learned(), spec(), 2, 0, T0) == Learned()
    assert learn_rate(Learned(), spec(), 0, 100, T0) == Learned()
    assert learn_rate(Learned(), spec(), 2, 100, T0).capacity == {2: SizeCapacity(100, T0, 1)}


def test_samples_are_averaged_with_memory() -> None:
    learned = learn_rate(known(n2=100, n3=150), spec(), 2, 110, at(60))
    assert learned.capacity == {2: SizeCapacity(103, at(60), 2), 3: SizeCapacity(150, T0, 1)}


def settled(**durations: float) -> Rescale:
    phases = {Phase(name): value for name, value in durations.items()}
    return Rescale(before=1, to=2, at=T0, cause=Cause.REQUEST, phase=Phase.CAUGHT_UP, since=T0, durations=phases)


def test_restart_time_is_the_sum_of_medians_up_to_running() -> None:
    assert restart_time(Learned(), Direction.UP) is None
    learned = Learned()
    for ready in (10, 30, 11):
        learned = learn_durations(learned, settled(ready=ready, registered=2, running=1, caught_up=500))
    assert restart_time(learned, Direction.UP) == 14
    assert restart_time(learned, Direction.DOWN) is None
    learned = learn_durations(learned, settled(ready=13))
    assert restart_time(learned, Direction.UP) == 12 + 2 + 1


def test_only_the_last_few_durations_are_kept() -> None:
    learned = Learned()
    for ready in range(20):
        learned = learn_durations(learned, settled(ready=ready))
    assert learned.durations[Direction.UP][Phase.READY] == tuple(range(12, 20))


@pytest.mark.parametrize(
    "changes",
    [
        {"per_replica": 0.0},
        {"per_replica": float("nan")},
        {"saturated_at": 0.0},
        {"saturated_at": 1.1},
        {"memory": 0.0},
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        CapacitySpec(**changes)


@pytest.mark.parametrize(
    ("maximum", "partitions", "problem"),
    [(5, 9, ""), (5, 10, ""), (5, 8, "max 5 gives 10 slots, of which the job can use 8"), (5, None, "")],
)
def test_a_useless_maximum_is_reported_in_whole_replicas(maximum: int, partitions: int | None, problem: str) -> None:
    s = spec(limits=Limits(1, maximum), slots_per_replica=2, partitions=partitions)
    assert beyond_use(s, EngineStatus(job=JobState.RUNNING), ()) == problem


def observed(second: float, *missing: str, **partitions: int | None) -> Observation:
    metrics = {name: Reading(5.0, at(second), count) for name, count in partitions.items()}
    return Observation(at=at(second), desired=2, ready=2, metrics=metrics, missing=dict.fromkeys(missing, "no broker"))


def test_the_partitions_are_those_of_the_widest_log_that_a_metric_was_read_from() -> None:
    s = spec(metrics=("wide", "narrow", "cpu"), partitions=3)
    both = observed(0, wide=8, narrow=2, cpu=None)
    assert source_partitions(s, None, (both,)) == 8
    assert source_partitions(s, None, (observed(0, cpu=None),)) == 3
    assert source_partitions(s, None, ()) == 3


def test_a_log_that_is_briefly_unreadable_keeps_its_partitions_also_beside_another_log() -> None:
    """Otherwise a missing reading would prevent a scale-up."""
    s = spec(metrics=("wide", "narrow"))
    both = observed(0, wide=8, narrow=2)
    one, none = observed(15, "wide", narrow=2), observed(30, "wide", "narrow")
    assert source_partitions(s, None, (both, one)) == 8
    assert source_partitions(s, None, (both, one, none)) == 8


def test_the_partitions_are_those_of_the_latest_reading() -> None:
    s = spec(metrics=("lag",))
    assert source_partitions(s, None, (observed(0, lag=8), observed(15, lag=12))) == 12
    assert source_partitions(s, None, (observed(0, lag=8), observed(15, lag=None))) is None
