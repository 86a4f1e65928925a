"""The metrics of Spark batch applications, from answers in the shape of Spark 4.3."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.clients.spark import Executor, Job, Stage, Work
from autoscaler.clients.spark_work import IDLE_AFTER, Memory, migrates, observe, query_of, shuffle_hosts
from autoscaler.sources.spark_batch import BATCH_METRICS, BatchMetric

DATA = Path(__file__).parent / "data"
NOW = datetime(2026, 11, 21, 2, 12, 20, tzinfo=UTC).timestamp()
MIGRATES = {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"}
QUERY = "spark-session-041bde63-d049-4c0e-a6fb-8740fd2dc2ae-execution-root-id-24"


def sample(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text())
    return found


def stage(number: int = 24, tasks: int = 4, finished: int = 0, running: int = 0, **changes: Any) -> Stage:
    counts = {"stageId": number, "numTasks": tasks, "numCompleteTasks": finished, "numActiveTasks": running}
    return Stage.model_validate_json(json.dumps({**sample("stages_active")[0], **counts, **changes}))


def job(number: int = 12, query: int | None = 24, at: str = "2026-11-21T02:12:16.500GMT", **changes: Any) -> Job:
    tags = [] if query is None else [QUERY.replace("24", str(query))]
    known = {**sample("jobs")[0], "jobId": number, "submissionTime": at, "jobTags": ["a-tag-of-the-program", *tags]}
    return Job.model_validate_json(json.dumps({**known, **changes}))


def executors(*written: int, **changes: Any) -> list[Executor]:
    """Executors with one slot and their own host, given by the shuffle bytes that they have written."""
    known = {**sample("allexecutors")[0], "totalShuffleRead": 0, "totalTasks": 0, **changes}
    return [
        Executor.model_validate_json(
            json.dumps({**known, "id": str(number), "hostPort": f"127.0.0.{number}:1", "totalShuffleWrite": size})
        )
        for number, size in enumerate(written)
    ]


def work(
    *stages: Stage,
    jobs: Sequence[Job] | None = None,
    workers: Sequence[Executor] | None = None,
    settings: dict[str, str] | None = None,
    **changes: Any,
) -> Work:
    known: dict[str, Any] = {"application": "app-1", "now": NOW, "settings": settings or {}, "stages": stages}
    known["jobs"] = ([job()] if stages else []) if jobs is None else jobs
    known["executors"] = executors(0, 0) if workers is None else workers
    return Work(**{**known, **changes})


def value(metric: str, now: Work, *before: tuple[float, Work], at: float = 100.0) -> float:
    """A metric of the present work, after the work at earlier times."""
    memory = Memory()
    for when, done in (*before, (at, now)):
        memory = observe(memory, done, when)
    return BATCH_METRICS[BatchMetric(metric)](now, memory)


def test_the_samples_of_a_real_spark_are_read() -> None:
    now = work(
        *(Stage.model_validate_json(json.dumps(known)) for known in sample("stages_active")),
        jobs=[Job.model_validate_json(json.dumps(known)) for known in sample("jobs")],
        workers=[Executor.model_validate_json(json.dumps(known)) for known in sample("allexecutors")],
    )
    found = {metric: value(metric, now) for metric in BatchMetric}
    assert found == {
        BatchMetric.PENDING_TASKS: 4,
        BatchMetric.RUNNING_TASKS: 0,
        BatchMetric.REMAINING_TASK_TIME: 0,
        BatchMetric.RUNNABLE_BYTES: 0,  # as many were read as written
        BatchMetric.SHUFFLE_WORKERS: 2,
        BatchMetric.JOB_TIME: pytest.approx(3.473),
    }
    assert query_of(now.jobs[0]) == QUERY


@pytest.mark.parametrize("metric", BatchMetric)
def test_everything_is_0_after_some_seconds_without_work(metric: str) -> None:
    before = work(stage(running=2), workers=executors(500, 0))
    quiet = work(workers=executors(500, 0))
    assert value(metric, quiet, (90.0, before), (91.0, quiet), at=91.0 + IDLE_AFTER) == 0


@pytest.mark.parametrize(
    ("stages", "slots", "pending", "running"),
    [
        ([], 2, 0, 0),
        ([stage(tasks=8, finished=3, running=2)], 2, 3, 2),
        ([stage(1, tasks=8, running=2), stage(2, tasks=5, finished=5)], 2, 6, 2),
        ([stage(1, tasks=4, running=1), stage(2, tasks=4, running=1)], 2, 6, 2),
        ([stage(tasks=8, finished=3, running=4)], 2, 1, 2),  # each compared with the one before it
        ([stage(tasks=4, finished=4, running=1)], 2, 0, 1),
        ([stage(tasks=4, finished=2, running=2)], 0, 0, 0),  # the executors are gone already
    ],
)
def test_tasks_wait_or_run(stages: list[Stage], slots: int, pending: float, running: float) -> None:
    now = work(*stages, workers=executors(*[0] * slots))
    assert (value("pending_tasks", now), value("running_tasks", now)) == (pending, running)


def test_slots_of_dead_executors_are_not_counted() -> None:
    now = work(stage(tasks=8, running=2), workers=executors(0, 0, isActive=False))
    assert value("running_tasks", now) == 0


def test_remaining_time_is_the_mean_of_finished_tasks_per_pending_one_and_half_of_it_per_running_one() -> None:
    now = work(stage(1, tasks=8, finished=4, running=2, executorRunTime=12_000), stage(2, 9, 9, executorRunTime=9))
    assert value("remaining_task_time", now) == pytest.approx((2 + 2 / 2) * 3.0)


def test_tasks_that_are_counted_twice_add_no_work() -> None:
    """The mean task, remaining time over pending and half of the running tasks, is that of the finished ones."""
    now = work(stage(tasks=8, finished=3, running=4, executorRunTime=6_000))
    remaining, running = value("remaining_task_time", now), value("running_tasks", now)
    assert remaining / (value("pending_tasks", now) + running / 2) == pytest.approx(2.0)


def test_before_a_task_has_finished_tasks_are_assumed_to_take_twice_as_long_as_the_first_has_run() -> None:
    started: dict[str, Any] = {"firstTaskLaunchedTime": "2026-11-21T02:12:13.000GMT"}
    assert value("remaining_task_time", work(stage(tasks=5, running=2, **started))) == pytest.approx((3 + 1) * 14.0)
    later: dict[str, Any] = {"firstTaskLaunchedTime": "2026-11-21T02:12:25.000GMT"}
    assert value("remaining_task_time", work(stage(tasks=5, running=2, **later))) == 0, "another clock's time is none"
    odd: dict[str, Any] = {"firstTaskLaunchedTime": "soon"}
    assert value("remaining_task_time", work(stage(tasks=5, running=2, **odd))) == 0


def test_before_a_task_has_finished_its_bytes_are_assumed_to_cost_as_much_as_in_earlier_stages() -> None:
    first = work(stage(1, tasks=4, finished=4, executorRunTime=8_000, shuffleReadBytes=1000), workers=executors(1000))
    # The second stage reads 4000 bytes in 4 tasks; each takes as long as 1000 bytes before: 8 s.
    second = work(stage(2, tasks=4, running=2), workers=executors(5000, totalShuffleRead=1000))
    assert value("remaining_task_time", second) == 0
    assert value("remaining_task_time", second, (90.0, first)) == pytest.approx((2 + 1 / 2) * 8.0)  # one slot
    between = work(workers=executors(5000, totalShuffleRead=1000))
    assert value("remaining_task_time", second, (90.0, first), (99.0, between)) == pytest.approx(20.0)


def test_without_finished_tasks_and_bytes_tasks_are_assumed_to_take_as_long_as_earlier_ones() -> None:
    scans = work(stage(1, 4, 4, executorRunTime=8_000), stage(2, 16, 12, executorRunTime=16_000), workers=executors(0))
    fresh = work(stage(3, tasks=10), workers=executors(0))
    assert value("remaining_task_time", fresh) == 0
    assert value("remaining_task_time", fresh, (90.0, scans)) == pytest.approx(10 * 24 / 16)


def test_the_cost_of_bytes_is_that_of_all_stages_that_mainly_read_shuffles() -> None:
    scan = {"executorRunTime": 90_000, "inputBytes": 10, "shuffleReadBytes": 5}  # a tiny part of local files counts
    memory = Memory()
    for at, done in (
        (1.0, work(stage(1, 4, 2, executorRunTime=1_000, shuffleReadBytes=1000), stage(9, 4, 4, **scan))),
        (2.0, work(stage(1, 4, 4, executorRunTime=2_000, shuffleReadBytes=2000), stage(9, 4, 4, **scan))),
        (3.0, work(stage(2, 4, 4, executorRunTime=1_000, shuffleReadBytes=4000))),
    ):
        memory = observe(memory, done, at)
    assert memory.seconds_per_byte == pytest.approx(3 / 6000)
    again = stage(2, 4, 4, attemptId=1, executorRunTime=3_000, shuffleReadBytes=6000)
    assert observe(memory, work(again), 4.0).seconds_per_byte == pytest.approx(6 / 12000)


def test_runnable_bytes_are_those_of_the_finished_tasks_per_unfinished_one() -> None:
    now = work(stage(tasks=8, finished=4, running=2, inputBytes=4000, shuffleReadBytes=400))
    assert value("runnable_bytes", now) == pytest.approx(4 * 1100)


def test_bytes_of_stages_without_a_finished_task_are_the_waiting_ones_counted_once() -> None:
    fresh = stage(1, tasks=4), stage(2, tasks=4)
    assert value("runnable_bytes", work(*fresh, workers=executors(600, 400, totalShuffleRead=100))) == 800
    other = stage(3, tasks=4, finished=2, shuffleReadBytes=200)
    now = work(*fresh, other, workers=executors(600, 400, totalShuffleRead=100))
    assert value("runnable_bytes", now) == 200 + (800 - 200)
    read_twice = work(*fresh, workers=executors(600, totalShuffleRead=900))
    assert value("runnable_bytes", read_twice) == 0


def test_files_from_before_an_idle_time_are_not_waited_for() -> None:
    quiet = work(workers=executors(600, 400))
    idle = ((80.0, quiet), (80.0 + IDLE_AFTER, quiet))
    now = work(stage(tasks=4), workers=executors(600, 450, 70))
    assert value("runnable_bytes", now, *idle) == 50 + 70
    assert value("shuffle_workers", now, *idle) == 2
    assert value("shuffle_workers", now) == 3, "who has not seen it idle keeps all of them"


def test_a_gap_between_the_jobs_of_a_query_is_not_idle_time() -> None:
    """Adaptive execution runs each stage as a job of its own; a poll may fall between two."""
    first = work(stage(tasks=4, running=2), workers=executors(600, 400))
    gap = work(workers=executors(600, 400))
    assert value("shuffle_workers", gap, (99.0, first)) == 2
    assert value("shuffle_workers", first, (98.0, first), (99.0, gap)) == 2


def test_gaps_at_every_poll_are_not_idle_time_while_tasks_run_between_them() -> None:
    polls = [(float(at), work(workers=executors(600, 400, totalTasks=at))) for at in range(0, 40, 4)]
    assert value("shuffle_workers", polls[-1][1], *polls[:-1], at=36.0) == 2
    assert value("shuffle_workers", polls[-1][1], *polls, at=36.0 + IDLE_AFTER) == 0


@pytest.mark.parametrize(
    ("settings", "workers", "hosts"),
    [
        ({}, 2, 2),
        ({"spark.decommission.enabled": "true"}, 2, 2),
        (MIGRATES, 1, 2),  # one worker has to be there to take the files
        ({**MIGRATES, "spark.storage.decommission.shuffleBlocks.enabled": "TRUE"}, 1, 2),
        ({**MIGRATES, "spark.storage.decommission.shuffleBlocks.enabled": "false"}, 2, 2),
        ({**MIGRATES, "spark.decommission.enabled": "false"}, 2, 2),
        ({"spark.shuffle.manager": "sort"}, 2, 2),
        ({"spark.shuffle.manager": "org.apache.spark.shuffle.celeborn.SparkShuffleManager"}, 0, 0),
        ({"spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"}, 2, 2),
        ({"spark.shuffle.sort.io.plugin.class": "com.example.RemoteDataIO"}, 0, 0),
    ],
)
def test_workers_are_kept_for_their_shuffle_files_unless_the_files_outlive_them(
    settings: dict[str, str], workers: int, hosts: int
) -> None:
    now = work(stage(running=2), workers=executors(600, 0, 400), settings=settings)
    assert value("shuffle_workers", now) == workers
    assert len(shuffle_hosts(observe(Memory(), now, 1.0), now)) == hosts
    assert migrates(settings) == (workers < hosts)


def test_one_worker_is_kept_for_migrated_files() -> None:
    (dead,), (taker,) = executors(400, isActive=False, hostPort=""), executors(0)
    other = taker.model_copy(update={"id": "7"})
    assert value("shuffle_workers", work(stage(), workers=[dead, other], settings=MIGRATES)) == 1
    assert value("shuffle_workers", work(stage(), workers=[other], settings=MIGRATES)) == 0
    idle = work(workers=[dead, other], settings=MIGRATES)
    assert value("shuffle_workers", idle, (1.0, idle), (1.0 + IDLE_AFTER, idle), at=20.0) == 0


def test_several_executors_of_a_host_count_as_one_worker_and_dead_ones_as_none() -> None:
    (here,), (dead,) = executors(600), executors(400, isActive=False, hostPort="")
    other = here.model_copy(update={"id": "7"})
    assert value("shuffle_workers", work(stage(), workers=[here, other])) == 1
    assert value("shuffle_workers", work(stage(), workers=[dead])) == 0


def test_the_time_of_a_job_is_that_of_the_oldest_running_one() -> None:
    old, new = job(1, None, "2026-11-21T02:12:00.000GMT"), job(2, None, "2026-11-21T02:12:10.000GMT")
    assert value("job_time", work(jobs=[new, old])) == 20
    assert value("job_time", work(jobs=[new])) == 10
    assert value("job_time", work(jobs=[])) == 0
    assert value("job_time", work(jobs=[new], now=NOW - 60)) == 0
    assert value("job_time", work(jobs=[job(3, None, "soon")])) == 0


def test_the_time_of_the_jobs_of_a_sql_query_counts_from_the_first_one() -> None:
    first, then = job(1, 7, "2026-11-21T02:12:00.000GMT"), job(2, 7, "2026-11-21T02:12:10.000GMT")
    other = job(2, 8, "2026-11-21T02:12:10.000GMT")
    before = (90.0, work(jobs=[first])), (91.0, work(jobs=[]))
    assert value("job_time", work(jobs=[]), *before) == 0, "nothing runs"
    assert value("job_time", work(jobs=[then]), *before) == 20
    assert value("job_time", work(jobs=[other]), *before) == 10
    assert value("job_time", work(jobs=[then]), *before, at=91.5) == 20


def test_a_query_is_remembered_across_rare_polls_and_then_forgotten() -> None:
    first, then = job(1, 7, "2026-11-21T02:12:00.000GMT"), job(2, 7, "2026-11-21T02:12:10.000GMT")
    assert value("job_time", work(jobs=[then]), (10.0, work(jobs=[first]))) == 20
    others = tuple((20.0 + at, work(jobs=[job(at, at)])) for at in range(10, 30))
    assert value("job_time", work(jobs=[then]), (10.0, work(jobs=[first])), *others) == 10
    memory = Memory()
    for at, done in others:
        memory = observe(memory, done, at)
    assert len(memory.queries) <= IDLE_AFTER + 2


def test_a_restarted_driver_starts_anew_and_an_older_answer_changes_nothing() -> None:
    memory = observe(Memory(), work(jobs=[job()], workers=executors(600)), 10.0)
    assert observe(memory, work(jobs=[], workers=executors(900)), 10.0) is memory
    other = observe(memory, work(jobs=[], application="app-2", workers=executors(900)), 5.0)
    assert (other.application, other.quiet_since, dict(other.queries)) == ("app-2", 5.0, {})


COUNTS = st.integers(0, 2**63 - 1)
STAGES = st.builds(
    stage,
    number=st.integers(0, 3),
    tasks=COUNTS,
    finished=COUNTS,
    running=COUNTS,
    executorRunTime=COUNTS,
    inputBytes=COUNTS,
    shuffleReadBytes=COUNTS,
    firstTaskLaunchedTime=st.sampled_from(["2026-11-21T02:12:13.000GMT", "2036-11-21T02:12:13.000GMT", "", None]),
)
JOBS = st.builds(
    job,
    number=st.integers(0, 9),
    query=st.none() | st.integers(0, 3),
    at=st.sampled_from(["2026-11-21T02:12:13.000GMT", "2036-11-21T02:12:13.000GMT", "1970-01-01T00:00:00.000GMT", ""]),
)
WORK = st.builds(
    lambda stages, jobs, written, read, tasks: work(
        *stages, jobs=jobs, workers=executors(*written, totalShuffleRead=read, totalTasks=tasks)
    ),
    st.lists(STAGES, max_size=3),
    st.lists(JOBS, max_size=3),
    st.lists(COUNTS, max_size=3),
    COUNTS,
    st.integers(0, 9),
)


@given(st.lists(st.tuples(st.floats(0, 100), WORK), min_size=1, max_size=5, unique_by=lambda poll: poll[0]))
def test_no_reading_is_ever_negative_or_not_finite(polls: list[tuple[float, Work]]) -> None:
    memory = Memory()
    for at, done in sorted(polls, key=lambda poll: poll[0]):
        memory = observe(memory, done, at)
        for metric, of in BATCH_METRICS.items():
            found = of(done, memory)
            assert isinstance(found, float), metric
            assert math.isfinite(found), metric
            assert found >= 0, metric
            if not done.stages and not done.jobs and metric is not BatchMetric.SHUFFLE_WORKERS:
                assert found == 0, metric
        slots = done.slots
        assert BATCH_METRICS[BatchMetric.RUNNING_TASKS](done, memory) <= slots
        assert BATCH_METRICS[BatchMetric.SHUFFLE_WORKERS](done, memory) <= len(done.executors)
        assert len(memory.active) <= len(done.stages)


@given(WORK, st.floats(IDLE_AFTER, 1e6))
def test_once_idle_nothing_is_needed_any_more(done: Work, after: float) -> None:
    quiet = work(workers=done.executors)
    memory = observe(observe(observe(Memory(), done, 0.0), quiet, 1.0), quiet, 1.0 + after)
    assert memory.idle
    assert all(of(quiet, memory) == 0 for of in BATCH_METRICS.values())
