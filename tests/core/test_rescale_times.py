"""When a rescale stopped the job and when it ran again, by what was observed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.capacity import STALL_GROWTH, learn_times, restart_time, stall_growth, stall_time
from autoscaler.core.model import (
    Cause,
    ClusterState,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Observation,
    Phase,
    Rescale,
    RescaleTimes,
)
from autoscaler.core.rescale_times import observed_times
from autoscaler.core.state import rebase
from tests.core.build import T0, at


def running(since: float = -3600.0) -> EngineStatus:
    return EngineStatus(job=JobState.RUNNING, parallelism=4, running_since=at(since))


STARTING, RESTARTING = EngineStatus(job=JobState.STARTING), EngineStatus(job=JobState.RESTARTING)
SILENT = EngineStatus(job=JobState.RUNNING, parallelism=4)


Times = tuple[float | None, float | None, float, float]


def times(polls: Sequence[tuple[float, EngineStatus | None]], *, to: int = 4) -> Times:
    """Those of a rescale as in `found`, without the number of replicas."""
    return found(polls, to=to)[:4]


def found(polls: Sequence[tuple[float, EngineStatus | None]], *, to: int = 4) -> RescaleTimes:
    """Of a rescale from 2 that was requested at 0 s, by polls of which the last shows it running."""
    rescale = Rescale(before=2, to=to, at=T0, cause=Cause.REQUEST, phase=Phase.RUNNING, since=T0)
    *past, now = [Observation(at=at(when), desired=to, ready=to, engine=engine) for when, engine in polls]
    state = ClusterState(at=past[-1].at if past else None, past=tuple(past))
    return observed_times(rescale, state, now)


def test_the_time_since_which_the_engine_says_to_run_is_exact() -> None:
    polls = [(0, running()), (15, running()), (30, RESTARTING), (45, running(since=41.5))]
    assert times(polls) == (15, 30, 41.5, 41.5)


def test_a_job_that_stopped_and_ran_again_between_two_polls_stopped_before_it_ran() -> None:
    assert times([(0, running()), (15, running()), (30, running(since=22))]) == (15, 22, 22, 22)


def test_replicas_that_are_removed_on_request_stop_the_job_at_once() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=18))]
    assert times(polls, to=1) == (0, 0, 18, 18)
    assert times(polls) == (0, 15, 18, 18)


@pytest.mark.parametrize("engine", [STARTING, RESTARTING])
def test_a_job_that_runs_without_its_state_stands_still(engine: EngineStatus) -> None:
    # Flink's job runs from 18 s on, its tasks read their state until some time between 75 and 90 s.
    polls = [(0.0, running()), *((each, engine) for each in (15.0, 30.0, 45.0, 60.0, 75.0)), (90.0, running(since=18))]
    assert times(polls, to=1) == (0, 0, 75, 90)


def test_an_answer_that_is_a_few_seconds_old_makes_no_stall_longer() -> None:
    assert times([(0, running()), (15, RESTARTING), (30, running(since=11))], to=1) == (0, 0, 11, 11)


def test_a_restart_before_says_nothing_of_the_last_one() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=16)), (45, running(since=40))]
    assert times(polls) == (30, 40, 40, 40)


def test_a_job_that_goes_on_did_not_stop() -> None:
    assert times([(0, running()), (15, running()), (30, running())]) == (30, 30, 15, 30)


def test_where_the_engine_says_nothing_the_polls_enclose_the_time_and_no_stall_is_known() -> None:
    for engine in (None, SILENT, running(since=31)):
        assert times([(0, engine), (15, engine), (30, engine)]) == (None, None, 15, 30)
    assert times([(30, None)]) == (None, None, 0, 30)
    # It was not seen to run before.
    assert times([(0, RESTARTING), (15, None), (30, running(since=22))]) == (None, None, 22, 22)


@pytest.mark.parametrize(("to", "replicas"), [(3, 1), (6, 4), (0, 2), (2, 1)])
def test_how_many_came_or_went_is_known_and_at_least_one(to: int, replicas: int) -> None:
    for engine in (running(since=22), None):
        assert found([(0, running()), (15, running()), (30, engine)], to=to).replicas == replicas


def learned_stalls(stalls: Sequence[tuple[int, float]], direction: Direction = Direction.UP) -> Learned:
    """Of rescales by so many replicas that stopped the job for so long."""
    learned = Learned()
    for replicas, stall in stalls:
        learned = learn_times(learned, direction, RescaleTimes(30.0, 30.0, 30.0 + stall, 30.0 + stall, replicas))
    return learned


def test_a_stall_grows_with_the_replicas_that_come_as_far_as_it_was_seen_to() -> None:
    # Seconds of a rescale by 1, 2, 6 and 12 machines that register one after another, as they were measured.
    true = {1: 31.0, 2: 60.0, 6: 85.0, 12: 98.0}
    learned = learned_stalls([*true.items()] * 4)
    assert [stall_time(learned, Direction.UP, replicas) for replicas in true] == pytest.approx(
        [*true.values()], rel=0.25
    )
    assert stall_growth(learned, Direction.UP) == pytest.approx(0.43, abs=0.02)
    same = learned_stalls([(replicas, 75.0) for replicas in (1, 3, 8)] * 8)
    assert stall_growth(same, Direction.UP) < 0.05
    assert stall_time(same, Direction.UP, 16) == pytest.approx(75.0, rel=0.1)


def test_of_few_stalls_little_is_believed_and_none_grows_faster_than_the_replicas_or_shrinks() -> None:
    assert stall_growth(Learned(), Direction.UP) == STALL_GROWTH
    assert stall_growth(learned_stalls([(5, 20.0)]), Direction.UP) == STALL_GROWTH
    assert stall_growth(learned_stalls([(1, 90.0), (8, 10.0)] * 8), Direction.UP) == 0.0
    assert stall_growth(learned_stalls([(1, 1.0), (8, 500.0)] * 8), Direction.UP) == 1.0


def test_replicas_that_go_do_so_at_once_however_many_they_are() -> None:
    learned = learned_stalls([(1, 8.0), (8, 40.0), (2, 10.0)], Direction.DOWN)
    assert stall_growth(learned, Direction.DOWN) == 0.0
    assert {stall_time(learned, Direction.DOWN, replicas) for replicas in (None, 1, 8)} == {10.0}


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.0, 1e4)), min_size=1, max_size=40), st.integers(0, 1000))
def test_more_replicas_never_stop_the_job_for_less_time(stalls: list[tuple[int, float]], replicas: int) -> None:
    learned = learned_stalls(stalls)
    fewer, more = (stall_time(learned, Direction.UP, count) for count in (replicas, replicas + 1))
    assert fewer is not None
    assert more is not None
    assert 0 <= fewer <= more
    assert math.isfinite(more)


def test_times_of_both_directions_are_learned_apart_and_the_last_of_them_count() -> None:
    learned = Learned()
    assert (restart_time(learned, Direction.UP), stall_time(learned, Direction.UP)) == (None, None)
    learned = learn_times(learned, Direction.UP, RescaleTimes(None, None, 40.0, 40.0))
    assert (restart_time(learned, Direction.UP), stall_time(learned, Direction.UP)) == (40, None)
    for seconds in range(40):
        learned = learn_times(learned, Direction.DOWN, RescaleTimes(0.0, 0.0, seconds, seconds))
    assert stall_time(learned, Direction.DOWN) == restart_time(learned, Direction.DOWN) == median(range(8, 40))
    assert restart_time(learned, Direction.UP) == 40
    moving = learn_times(Learned(), Direction.UP, RescaleTimes(30.0, 30.0, 15.0, 30.0))
    assert stall_time(moving, Direction.UP) == 0


@pytest.mark.parametrize(("start_up", "stall"), [(22.0, 24.3), (34.6, 9.5), (63.4, 16.0)])
def test_the_times_that_are_learned_at_half_a_minute_between_polls_are_true(start_up: float, stall: float) -> None:
    """With as many rescales as are kept: each within a fifth, and all seeds together within a tenth."""
    starts, stalls = [], []
    for seed in range(12):
        dice = Random(seed)  # noqa: S311
        learned, true = Learned(), []
        for _ in range(32):
            stopped = start_up * math.exp(dice.gauss(0, 0.25)) + 10.0
            ran = stopped + stall * math.exp(dice.gauss(0, 0.3))
            true.append((ran, ran - stopped))
            polls: list[tuple[float, EngineStatus]] = []
            while not polls or polls[-1][0] < ran:
                when = 30.0 * len(polls)
                polls.append((when, running() if when < stopped else RESTARTING if when < ran else running(since=ran)))
            learned = learn_times(learned, Direction.UP, found(polls))
        restart, stood = restart_time(learned, Direction.UP), stall_time(learned, Direction.UP)
        assert restart == pytest.approx(median(each for each, _ in true), abs=0.01)
        assert stood is not None
        starts.append(restart)
        stalls.append(stood / median(each for _, each in true))
    assert sum(stalls) / len(stalls) == pytest.approx(1.0, abs=0.1)
    assert stalls == pytest.approx([1.0] * len(stalls), abs=0.3)


def test_without_an_engine_the_time_until_a_size_runs_is_true_as_well() -> None:
    for truth in (22.0, 34.6, 63.4):
        errors = []
        for seed in range(12):
            dice = Random(seed)  # noqa: S311
            learned, true = Learned(), []
            for _ in range(32):
                ran = truth * math.exp(dice.gauss(0, 0.25))
                true.append(ran)
                polls = [(30.0 * each, None) for each in range(math.ceil(ran / 30.0) + 1)]
                learned = learn_times(learned, Direction.UP, found(polls))
            restart = restart_time(learned, Direction.UP)
            assert restart is not None
            errors.append(restart / median(true) - 1)
        assert abs(sum(errors) / len(errors)) < 0.1


def test_a_shift_of_the_clock_leaves_the_times() -> None:
    learned = learn_times(Learned(), Direction.UP, RescaleTimes(0.0, 1.0, 2.0, 3.0))
    assert rebase(ClusterState(learned=learned), timedelta(hours=1)).learned == learned
