"""Estimates of when a rescale stopped the job and when the job ran again."""

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
    """The times of a rescale from 2, requested at 0 s; the last of the polls shows the job running."""
    rescale = Rescale(before=2, to=to, at=T0, cause=Cause.REQUEST, phase=Phase.RUNNING, since=T0)
    *past, now = [Observation(at=at(when), desired=to, ready=to, engine=engine) for when, engine in polls]
    state = ClusterState(at=past[-1].at if past else None, past=tuple(past))
    return observed_times(rescale, state, now)


def test_the_start_time_that_the_engine_reports_is_exact() -> None:
    polls = [(0, running()), (15, running()), (30, RESTARTING), (45, running(since=41.5))]
    assert found(polls) == (15, 30, 41.5, 41.5, 2)


def test_a_job_that_stopped_and_ran_again_between_two_polls_stopped_before_it_ran() -> None:
    assert found([(0, running()), (15, running()), (30, running(since=22))]) == (15, 22, 22, 22, 2)


def test_removing_replicas_on_request_stops_the_job_at_once() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=18))]
    assert found(polls, to=1) == (0, 0, 18, 18, 1)
    assert found(polls) == (0, 15, 18, 18, 2)


@pytest.mark.parametrize("engine", [STARTING, RESTARTING])
def test_a_job_that_is_still_restoring_its_state_counts_as_stalled(engine: EngineStatus) -> None:
    # Flink reports RUNNING from 18 s on; its tasks restore their state until some time between 75 and 90 s.
    polls = [(0.0, running()), *((each, engine) for each in (15.0, 30.0, 45.0, 60.0, 75.0)), (90.0, running(since=18))]
    assert found(polls, to=1) == (0, 0, 75, 90, 1)


def test_an_answer_that_is_a_few_seconds_old_does_not_lengthen_the_stall() -> None:
    assert found([(0, running()), (15, RESTARTING), (30, running(since=11))], to=1) == (0, 0, 11, 11, 1)


def test_an_earlier_restart_does_not_affect_the_times_of_the_last_one() -> None:
    polls = [(0, running()), (15, RESTARTING), (30, running(since=16)), (45, running(since=40))]
    assert found(polls) == (30, 40, 40, 40, 2)


def test_a_job_that_keeps_running_had_no_stall() -> None:
    assert found([(0, running()), (15, running()), (30, running())]) == (30, 30, 15, 30, 2)


def test_without_a_start_time_from_the_engine_the_polls_bound_the_time_and_the_stall_is_unknown() -> None:
    for engine in (None, SILENT, running(since=31)):
        assert found([(0, engine), (15, engine), (30, engine)]) == (None, None, 15, 30, 2)
    assert found([(30, None)]) == (None, None, 0, 30, 2)
    # The job was not observed running before.
    assert found([(0, RESTARTING), (15, None), (30, running(since=22))]) == (None, None, 22, 22, 2)


def test_times_are_learned_for_each_direction_and_only_recent_ones_are_kept() -> None:
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


def test_a_stall_grows_with_the_number_of_added_replicas_but_not_of_removed_ones() -> None:
    learned = Learned()
    for stall, replicas in ((20.0, 1), (30.0, 4), (40.0, 16)):
        for direction in Direction:
            learned = learn_times(learned, direction, RescaleTimes(30.0, 30.0, 30.0 + stall, 30.0 + stall, replicas))
    assert stall_time(learned, Direction.UP) == 30
    # Per added replica they took 20, 30 / 4^0.2 = 22.7 and 40 / 16^0.2 = 23 s.
    assert [stall_time(learned, Direction.UP, replicas) for replicas in (1, 4, 16)] == [
        pytest.approx(22.7 * replicas**0.2, abs=0.1) for replicas in (1, 4, 16)
    ]
    assert {stall_time(learned, Direction.DOWN, replicas) for replicas in (None, 1, 4, 16)} == {30.0}


@pytest.mark.parametrize(("start_up", "stall"), [(22.0, 24.3), (34.6, 9.5), (63.4, 16.0)])
def test_the_times_learned_from_polls_half_a_minute_apart_are_accurate(start_up: float, stall: float) -> None:
    """With as many rescales as are kept: each is within a fifth, and the mean of all seeds within a tenth."""
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


def test_without_an_engine_the_time_until_a_size_is_ready_is_accurate_too() -> None:
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


def test_adjusting_the_clock_does_not_change_the_times() -> None:
    learned = learn_times(Learned(), Direction.UP, RescaleTimes(0.0, 1.0, 2.0, 3.0))
    assert rebase(ClusterState(learned=learned), timedelta(hours=1)).learned == learned
