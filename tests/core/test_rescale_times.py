"""When a rescale stopped the job and when it ran again, by what was observed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from statistics import median

import pytest

from autoscaler.core.capacity import learn_times, restart_time, stall_time
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


def found(polls: Sequence[tuple[float, EngineStatus | None]], *, to: int = 4) -> RescaleTimes:
    """Of a rescale from 2 that was requested at 0 s, by polls of which the last shows it running."""
    rescale = Rescale(before=2, to=to, at=T0, cause=Cause.REQUEST, phase=Phase.RUNNING, since=T0)
    *past, now = [Observation(at=at(when), desired=to, ready=to, engine=engine) for when, engine in polls]
    state = ClusterState(at=past[-1].at if past else None, past=tuple(past))
    return observed_times(rescale, state, now)


def test_the_time_since_which_the_engine_says_to_run_is_exact() -> None:
    polls = [(0, running()), (15, running()), (30, RESTARTING), (45, running(since=41.5))]
    assert found(polls) == (15, 30, 41.5, 41.5, 2)


def test_a_job_that_stopped_and_ran_again_between_two_polls_stopped_before_it_ran() -> None:
    assert found([(0, running()), (15, running()), (30, running(since=22))]) == (15, 22, 22, 22, 2)


def test_replicas_that_are_removed_on_request_stop_the_job_at_once() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=18))]
    assert found(polls, to=1) == (0, 0, 18, 18, 1)
    assert found(polls) == (0, 15, 18, 18, 2)


@pytest.mark.parametrize("engine", [STARTING, RESTARTING])
def test_a_job_that_runs_without_its_state_stands_still(engine: EngineStatus) -> None:
    # Flink's job runs from 18 s on, its tasks read their state until some time between 75 and 90 s.
    polls = [(0.0, running()), *((each, engine) for each in (15.0, 30.0, 45.0, 60.0, 75.0)), (90.0, running(since=18))]
    assert found(polls, to=1) == (0, 0, 75, 90, 1)


def test_an_answer_that_is_a_few_seconds_old_makes_no_stall_longer() -> None:
    assert found([(0, running()), (15, RESTARTING), (30, running(since=11))], to=1) == (0, 0, 11, 11, 1)


def test_a_restart_before_says_nothing_of_the_last_one() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=16)), (45, running(since=40))]
    assert found(polls) == (30, 40, 40, 40, 2)


def test_a_job_that_goes_on_did_not_stop() -> None:
    assert found([(0, running()), (15, running()), (30, running())]) == (30, 30, 15, 30, 2)


def test_where_the_engine_says_nothing_the_polls_enclose_the_time_and_no_stall_is_known() -> None:
    for engine in (None, SILENT, running(since=31)):
        assert found([(0, engine), (15, engine), (30, engine)]) == (None, None, 15, 30, 2)
    assert found([(30, None)]) == (None, None, 0, 30, 2)
    # It was not seen to run before.
    assert found([(0, RESTARTING), (15, None), (30, running(since=22))]) == (None, None, 22, 22, 2)


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


def test_a_stall_grows_with_the_replicas_that_come_and_not_with_those_that_go() -> None:
    learned = Learned()
    for stall, replicas in ((20.0, 1), (30.0, 4), (40.0, 16)):
        for direction in Direction:
            learned = learn_times(learned, direction, RescaleTimes(30.0, 30.0, 30.0 + stall, 30.0 + stall, replicas))
    assert stall_time(learned, Direction.UP) == 30
    # of one each has taken 20, 30 / 4^0.2 = 22.7 and 40 / 16^0.2 = 23 s
    assert [stall_time(learned, Direction.UP, replicas) for replicas in (1, 4, 16)] == [
        pytest.approx(22.7 * replicas**0.2, abs=0.1) for replicas in (1, 4, 16)
    ]
    assert {stall_time(learned, Direction.DOWN, replicas) for replicas in (None, 1, 4, 16)} == {30.0}


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
