"""Spark's standalone scheduler: how a query uses workers that come and go."""

from __future__ import annotations

import pytest

from autoscaler.schedulers.spark import SparkSettings
from autoscaler.schedulers.state_machine import (
    Checkpoint,
    Event,
    Instruction,
    Job,
    Killed,
    Passed,
    Phase,
    Resize,
    Restored,
    Slots,
    advance,
)

SPARK = SparkSettings(used_after=4.0, heartbeat=90.0)


def play(settings: SparkSettings, job: Job, *events: Event) -> tuple[Job, list[Instruction]]:
    done: list[Instruction] = []
    for event in events:
        job, more = advance(settings, job, event)
        done += more
    return job, done


def test_a_query_runs_once_it_has_its_first_executor() -> None:
    job, done = play(SPARK, Job(), Passed(1), Slots(2, 2))
    assert (done, job.phase, job.runs, job.wakes_at) == ([], Phase.WAITING_FOR_RESOURCES, False, 6)
    job, done = play(SPARK, job, Passed(6))
    assert (done, job.phase, job.since, job.parallelism) == ([Resize(6, 2)], Phase.EXECUTING, 6, 2)
    assert job.runs


def test_each_worker_is_used_soon_after_its_registration_and_the_query_does_not_stop() -> None:
    job, done = play(SPARK, SPARK.executing(4, 0.0), Slots(10, 5), Slots(12, 7), Passed(100))
    assert done == [Resize(14, 5), Resize(16, 7)]
    assert (job.since, job.runs) == (0, True)


def test_after_a_worker_is_stopped_the_query_continues_on_the_others() -> None:
    job, done = play(SPARK, SPARK.executing(4, 0.0), Slots(10, 3), Passed(100))
    assert done == [Resize(10, 3)]
    assert job.runs


def test_a_worker_that_leaves_before_it_is_used_has_no_effect() -> None:
    assert play(SPARK, SPARK.executing(4, 0.0), Slots(10, 5), Slots(12, 4, spare=True), Passed(100))[1] == []


def test_if_a_worker_leaves_a_new_one_is_kept_and_an_old_one_is_removed() -> None:
    done = play(SPARK, SPARK.executing(4, 0.0), Slots(10, 5), Slots(12, 4), Passed(100))[1]
    assert done == [Resize(12, 3), Resize(14, 4)]


def test_a_query_without_workers_waits_for_some() -> None:
    job, done = play(SPARK, SPARK.executing(1, 0.0), Slots(10, 0))
    assert (done, job.phase, job.since) == ([Resize(10, 0)], Phase.WAITING_FOR_RESOURCES, 10)
    assert not job.restored
    assert play(SPARK, job, Slots(50, 1), Passed(60))[1] == [Resize(54, 1)]


def test_a_hung_worker_stalls_the_batch_until_it_is_noticed() -> None:
    job, done = play(SPARK, SPARK.executing(4, 0.0), Killed(10, 1))
    assert (done, job.runs, job.wakes_at) == ([], False, 100)
    job, done = play(SPARK, job, Slots(30, 4), Passed(34))  # its replacement is used, but does not finish its tasks
    assert (done, job.runs) == ([Resize(34, 5)], False)
    job, done = play(SPARK, job, Passed(100))
    assert (done, job.runs) == ([Resize(100, 4)], True)


def test_a_hung_worker_without_tasks_stalls_nothing() -> None:
    job, _ = play(SPARK, SPARK.executing(4, 0.0), Slots(10, 5), Killed(11, 1, spare=True))
    assert job.runs
    assert play(SPARK, job, Killed(12, 0), Passed(200))[1] == [Resize(14, 5), Resize(101, 4)]


def test_an_application_uses_at_most_its_slots_and_replaces_each_lost_one() -> None:
    settings = SparkSettings(most=3)
    job = settings.executing(5, 0.0)
    assert job.parallelism == 3
    assert play(settings, job, Slots(10, 6), Passed(20))[1] == []
    assert play(settings, job, Slots(10, 4), Passed(20))[1] == [Resize(10, 2), Resize(14, 3)]
    assert play(settings, job, Killed(10, 1), Passed(200))[1] == [Resize(100, 2), Resize(104, 3)]


def test_checkpoints_have_no_effect() -> None:
    job = SPARK.executing(4, 0.0)
    for event in (Checkpoint(5), Restored(5), Passed(5), Slots(5, 4)):
        assert advance(SPARK, job, event) == (job, ())


@pytest.mark.parametrize("name", ["used_after", "heartbeat", "most"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: is -1, expected 0 or more"):
        SparkSettings(**{name: -1.0})
