"""Batch jobs on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Limits,
    Observation,
    Reason,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.core.step import Decide
from autoscaler.ports import Record
from autoscaler.simulation.batch import (
    METRICS,
    BatchCluster,
    BatchJob,
    BatchRun,
    Stage,
    Workload,
    run,
    run_dynamic_allocation,
)
from autoscaler.simulation.plant import PlantSpec

# No randomness: workers are ready after 30 s.
CALM = PlantSpec(startup=30, startup_sd=0)


def _stage(tasks: int, seconds: float, driver: float = 0.0, **more: Any) -> Stage:
    task_time, driver_time = timedelta(seconds=seconds), timedelta(seconds=driver)
    return Stage(tasks=tasks, task_time=task_time, driver_time=driver_time, **more)


def _workload(*stages: Stage, at: float = 0.0, migrate: bool = True) -> Workload:
    return Workload(jobs=(BatchJob(stages=stages, at=timedelta(seconds=at)),), migrate=migrate)


def _cluster(workload: Workload, size: int, slots: int = 1, plant: PlantSpec = CALM) -> BatchCluster:
    return BatchCluster(workload, plant, 1, Limits(size, 100), slots)


def _values(cluster: BatchCluster) -> tuple[float, ...]:
    observation = cluster.observe()
    return tuple([observation.metrics[name].value for name in METRICS])  # type: ignore[misc]


def _spec(minimum: int, maximum: int, slots: int = 1) -> ClusterSpec:
    interval = timedelta(seconds=10)
    return ClusterSpec(
        name="x", limits=Limits(minimum, maximum), policies=(), slots_per_replica=slots, interval=interval
    )


def _asks(size: Callable[[Observation], int]) -> Decide:
    def decide(spec: ClusterSpec, state: ClusterState, seen: Observation) -> tuple[ClusterState, Decision]:
        current = seen.desired or 0
        wanted = max(spec.limits.minimum, min(size(seen), spec.limits.maximum))
        return state, Decision(
            cluster="x", at=seen.at, current=current, proposed=wanted, desired=wanted, reason=Reason.STEADY
        )

    return decide


def _fixed(workload: Workload, size: int, slots: int = 1) -> BatchRun:
    return run(_spec(size, size, slots), workload, CALM, 1)


# stages and tasks


def test_tasks_run_on_free_slots_and_a_stage_begins_when_the_previous_one_is_done() -> None:
    cluster = _cluster(_workload(_stage(5, 10), _stage(2, 4)), size=1, slots=2)
    shown = []
    for second in (0, 5, 15, 25, 31, 34):
        cluster.advance(second)
        shown.append((cluster.pending, cluster.running))
    assert shown == [(3, 2), (3, 2), (1, 2), (0, 1), (0, 2), (0, 0)]
    assert cluster.result().times == (34.0,)


@pytest.mark.parametrize(
    ("workload", "size", "slots", "expected"),
    [
        (_workload(_stage(8, 10)), 2, 2, 20),
        (_workload(_stage(9, 10)), 2, 2, 30),
        (_workload(_stage(1, 10)), 4, 1, 10),
        (_workload(_stage(4, 10, skew=5.0)), 4, 1, 50),
        (_workload(_stage(4, 10, driver=7), _stage(1, 1, driver=20)), 4, 1, 38),
        (_workload(_stage(4, 10), at=100), 4, 1, 10),
    ],
)
def test_the_duration_of_a_job_is_that_of_its_waves_of_tasks_and_of_its_driver(
    workload: Workload, size: int, slots: int, expected: float
) -> None:
    found = _fixed(workload, size, slots)
    assert found.times == (expected,)
    assert found.worker_seconds == size * (expected + workload.jobs[0].at.total_seconds())


def test_the_first_submitted_job_has_priority_and_the_other_uses_the_free_slots() -> None:
    early = BatchJob(stages=(_stage(3, 10),))
    late = BatchJob(stages=(_stage(4, 10),), at=timedelta(seconds=5))
    assert _fixed(Workload(jobs=(late, early)), 2).times == (35.0, 20.0)


def test_a_cluster_without_workers_does_nothing() -> None:
    found = run(_spec(0, 4), _workload(_stage(1, 10)), CALM, 1)
    assert (found.times, found.finished, found.worker_seconds) == ((None,), 0, 0.0)


# workers


def test_workers_are_ready_after_their_start_up_and_billed_from_their_request() -> None:
    cluster = _cluster(_workload(_stage(4, 100)), size=1)
    cluster.scale(3)
    shown = []
    for second in (0, 29, 31):
        cluster.advance(second)
        shown.append((cluster.billed, cluster.up, cluster.running))
    assert shown == [(3, 1, 1), (3, 1, 1), (3, 3, 3)]
    assert cluster.result().worker_seconds == 3 * 31


def test_a_worker_that_is_removed_finishes_its_tasks_and_takes_no_more() -> None:
    cluster = _cluster(_workload(_stage(9, 10)), size=3)
    cluster.advance(5)
    cluster.scale(1)
    assert (cluster.billed, cluster.up, cluster.running, cluster.observe().ready) == (3, 1, 3, 3)
    cluster.advance(11)
    assert (cluster.billed, cluster.up, cluster.running, cluster.observe().ready) == (1, 1, 1, 1)
    assert cluster.result().worker_seconds == 3 * 10 + 1


def test_starting_workers_are_removed_before_ready_ones_and_idle_ones_before_busy_ones() -> None:
    cluster = _cluster(_workload(_stage(1, 100)), size=2)
    cluster.advance(1)
    cluster.scale(4)
    cluster.scale(2)
    assert (cluster.billed, cluster.up, cluster.running) == (2, 2, 1)
    cluster.scale(1)
    assert (cluster.billed, cluster.up, cluster.running) == (1, 1, 1)
    cluster.advance(50)
    assert cluster.billed == 1


def test_a_worker_that_never_starts_is_billed_until_it_is_cancelled() -> None:
    cluster = _cluster(_workload(_stage(1, 10)), size=0, plant=replace(CALM, never=1.0))
    cluster.scale(1)
    cluster.advance(1000)
    cluster.scale(0)
    cluster.advance(2000)
    assert (cluster.result().worker_seconds, cluster.up) == (1000, 0)


# metrics


def test_the_metrics_are_those_of_the_source_spark() -> None:
    cluster = _cluster(_workload(_stage(5, 10), _stage(3, 30, driver=20), at=100, migrate=False), size=2)
    cluster.advance(99)
    assert _values(cluster) == (0, 0, 0, 0, 0)
    cluster.advance(104)  # no task has ended: assumed to take twice as long as the first has run
    assert _values(cluster) == (3, 2, (3 + 1) * 8, 0, 4)
    cluster.advance(115)
    assert _values(cluster) == (1, 2, (1 + 1) * 10, 2, 15)
    cluster.advance(131)  # the driver works
    assert _values(cluster) == (0, 0, 0, 2, 31)
    cluster.advance(171)
    assert _values(cluster) == (1, 2, (1 + 1) * 42, 2, 71)
    cluster.advance(1000)
    assert _values(cluster) == (0, 0, 0, 0, 0)


def test_before_the_first_worker_the_task_duration_is_unknown() -> None:
    cluster = _cluster(_workload(_stage(5, 10)), size=0)
    cluster.advance(20)
    assert _values(cluster) == (5, 0, 0, 0, 20)


def test_with_migration_of_shuffle_files_one_worker_has_to_stay() -> None:
    cluster = _cluster(_workload(_stage(4, 10), _stage(4, 10)), size=4)
    cluster.advance(11)
    assert cluster.observe().metrics["shuffle_workers"].value == 1
    cluster.advance(21)
    assert cluster.observe().metrics["shuffle_workers"].value == 0


def test_the_engine_is_idle_while_no_job_runs() -> None:
    cluster = _cluster(_workload(_stage(2, 10), at=100), size=1, slots=2)
    idle = EngineStatus(job=JobState.IDLE)
    assert cluster.observe().engine == idle
    cluster.advance(100)
    assert cluster.observe().engine == EngineStatus(job=JobState.RUNNING, slots=2, parallelism=2)
    cluster.advance(110)
    assert cluster.observe().engine == idle


# shuffle files


def test_lost_files_are_recomputed_before_their_readers_continue() -> None:
    stages = _stage(4, 10), _stage(4, 10), _stage(6, 10, driver=20)
    cluster = _cluster(_workload(*stages, migrate=False), size=4)
    cluster.advance(25)
    cluster.scale(2)  # each of the two has a file of both stages
    cluster.advance(39)
    assert (cluster.pending, cluster.running) == (0, 0)
    cluster.advance(41)
    assert (cluster.pending, cluster.running) == (0, 2)  # of the first stage
    cluster.advance(51)
    assert (cluster.pending, cluster.running) == (0, 2)  # of the second
    cluster.advance(61)
    assert (cluster.pending, cluster.running) == (4, 2)
    cluster.advance(1000)
    found = cluster.result()
    assert found.times == (90.0,)
    assert (found.finished, found.repeated) == (4 + 4 + 6 + 4, 4)


def test_files_of_a_job_that_ended_are_not_missed() -> None:
    cluster = _cluster(_workload(_stage(4, 10), _stage(4, 10, shuffle=False), _stage(6, 10), migrate=False), size=4)
    cluster.advance(25)
    cluster.scale(2)
    cluster.advance(1000)
    found = cluster.result()
    assert (found.times, found.repeated) == ((40.0,), 0)


def test_migrated_files_are_not_recomputed_unless_no_worker_is_left_to_take_them() -> None:
    stages = _stage(4, 10), _stage(4, 10, driver=100)
    some, none = (_cluster(_workload(*stages), size=4) for _ in range(2))
    for cluster, left in ((some, 1), (none, 0)):
        cluster.advance(20)
        cluster.scale(left)
        cluster.advance(30)
        cluster.scale(4)
        cluster.advance(1000)
    assert (some.result().times, some.result().repeated) == ((120.0,), 0)
    assert (none.result().times, none.result().repeated) == ((130.0,), 4)


def test_workers_with_files_are_removed_last_unless_files_are_migrated() -> None:
    stages = _stage(1, 10), _stage(1, 100, driver=10)
    for migrate in (False, True):
        cluster = _cluster(_workload(*stages, migrate=migrate), size=8)
        cluster.advance(15)
        cluster.scale(1)
        cluster.advance(1000)
        assert (cluster.result().times, cluster.result().repeated) == ((120.0,), 0)


# the loop


def test_decisions_are_made_every_interval_until_the_cluster_is_at_its_minimum() -> None:
    records: list[Record] = []
    decide = _asks(lambda seen: 4 if seen.metrics["pending_tasks"].value else 0)
    found = run(_spec(0, 4), _workload(_stage(4, 15), at=5), CALM, 1, records.append, decide)
    assert [record.decision.desired for record in records] == [4, 4, 4, 0, 0]
    assert found.times == (50.0,)
    assert found.worker_seconds == 4 * (55 - 10)
    assert found.changes == 2
    assert [sample.after for sample in found.samples] == [10, 20, 30, 40, 50]


def test_workers_that_are_removed_late_are_billed_above_the_minimum() -> None:
    found = run(_spec(1, 4), _workload(_stage(4, 100)), CALM, 1, decide=_asks(lambda _: 4))
    assert found.times == (140.0,)
    assert found.worker_seconds == 10 + 4 * 130 + 3 * 600  # it never does: the run does not wait for it


@given(st.data())
def test_every_task_is_done_once_or_again_after_a_loss(data: st.DataObject) -> None:
    workload = data.draw(_workloads())
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    slots = data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 3))

    def result() -> BatchRun:
        wanted = cycle(sizes)
        return run(_spec(1, 6, slots), workload, PlantSpec(startup=10), seed, decide=_asks(lambda _: next(wanted)))

    found = result()
    tasks = sum(stage.tasks for job in workload.jobs for stage in job.stages)
    assert found == result()
    if None not in found.times:
        assert tasks <= found.finished <= tasks + found.repeated
        assert found.worker_seconds * slots >= workload.task_seconds - 1e-6
    else:
        assert not workload.migrate  # lost repeatedly
    if workload.migrate:
        assert found.finished == tasks
        assert found.repeated == 0


def _workloads() -> st.SearchStrategy[Workload]:
    stages = st.builds(
        _stage,
        st.integers(1, 12),
        st.integers(1, 40),
        st.sampled_from([0, 0, 25]),
        skew=st.sampled_from([1.0, 1.0, 6.0]),
        shuffle=st.sampled_from([True, True, False]),
    )
    jobs = st.builds(
        BatchJob,
        stages=st.lists(stages, min_size=1, max_size=4).map(tuple),
        at=st.integers(0, 200).map(lambda seconds: timedelta(seconds=seconds)),
    )
    return st.builds(Workload, jobs=st.lists(jobs, min_size=1, max_size=3).map(tuple), migrate=st.booleans())


@given(_workloads(), st.integers(1, 8))
def test_more_workers_never_make_a_job_slower_without_skew(workload: Workload, size: int) -> None:
    even = tuple([replace(stage, skew=1.0) for stage in workload.jobs[0].stages])
    few, more = (_fixed(_workload(*even), workers).times[0] for workers in (size, size + 1))
    assert few is not None
    assert more is not None
    assert more <= few


# dynamic allocation


def _allocated(workload: Workload, limits: Limits, slots: int = 1, *, tracking: bool = True) -> BatchRun:
    return run_dynamic_allocation(limits, slots, workload, CALM, 1, tracking=tracking)


def test_dynamic_allocation_grows_by_1_2_4_8_a_second_up_to_the_slots_that_tasks_can_use() -> None:
    found = _allocated(_workload(_stage(40, 100), at=0.5), Limits(0, 100), slots=2)
    # Noticed at 1 s; 1, 3, 7, 15 and 20 executors are requested from 2 s on, and are ready 30 s later.
    assert found.times == (36 + 100 - 0.5,)
    billed = sum((136 - second) * more for second, more in ((2, 1), (3, 2), (4, 4), (5, 8), (6, 5)))
    # The first of them have finished all tasks before the last one has.
    assert found.worker_seconds <= billed
    assert found.repeated == 0


def test_dynamic_allocation_stays_within_its_limits() -> None:
    found = _allocated(_workload(_stage(8, 10)), Limits(2, 4))
    assert found.worker_seconds <= 4 * (found.times[0] or 0)
    fixed = _allocated(_workload(_stage(8, 10)), Limits(4, 4))
    assert (fixed.times, fixed.changes) == ((20.0,), 0)


def test_dynamic_allocation_removes_executors_idle_for_a_minute_except_those_with_files() -> None:
    stages = _stage(4, 100), _stage(1, 300)
    kept, moved = (_allocated(_workload(*stages), Limits(1, 4), tracking=tracking) for tracking in (True, False))
    assert kept.times == moved.times
    assert moved.worker_seconds < kept.worker_seconds - 150
    unread = _allocated(_workload(_stage(4, 100, shuffle=False), stages[1]), Limits(1, 4))
    assert unread.worker_seconds == moved.worker_seconds


def test_dynamic_allocation_cancels_requests_when_fewer_tasks_are_left() -> None:
    workload = _workload(_stage(6, 20), _stage(1, 5))
    found = _allocated(workload, Limits(1, 6))
    # Executors requested for the first stage are cancelled if they would be too late for it.
    assert found.times[0] is not None
    assert found.worker_seconds < 6 * found.times[0]


def test_executors_end_with_their_application() -> None:
    jobs = tuple([BatchJob(stages=(_stage(4, 50),), at=timedelta(seconds=at)) for at in (0.5, 1000.5)])
    once = _allocated(Workload(jobs=jobs[:1]), Limits(0, 4))
    twice = _allocated(Workload(jobs=jobs), Limits(0, 4))
    assert twice.times == (once.times[0], once.times[0])
    assert twice.worker_seconds <= 2 * once.worker_seconds + 4


def test_dynamic_allocation_whose_executors_never_start_ends_at_some_time() -> None:
    found = run_dynamic_allocation(Limits(0, 2), 1, _workload(_stage(1, 1)), replace(CALM, never=1.0), 1)
    assert found.times == (None,)


# refusals


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: _stage(0, 1), "tasks", "is 0, expected 1 to 1000000"),
        (lambda: _stage(1, 0), "task_time", "must be above 0s"),
        (lambda: _stage(1, 1, skew=0.5), "skew", "is 0.5, expected 1 or more"),
        (lambda: _stage(1, 1, skew=float("inf")), "skew", "is inf, expected 1 or more"),
        (lambda: _stage(1, 1, driver=-1), "driver_time", "must be 0s or more"),
        (lambda: BatchJob(stages=()), "stages", "must have at least one"),
        (lambda: BatchJob(stages=(_stage(1, 1),), at=timedelta(seconds=-1)), "at", "must be 0s or more"),
        (lambda: Workload(jobs=()), "jobs", "must have at least one"),
    ],
)
def test_invalid_parameters_are_refused(make: Callable[[], object], name: str, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make()
    assert (caught.value.name, caught.value.message) == (name, message)
