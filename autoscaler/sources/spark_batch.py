"""Computes the metrics of a Spark batch application: pure functions of its running work and its memory.

All times are on the driver's clock, so two clocks are never compared, and results are ages. Spark adds the bytes that
running tasks have read so far to those of finished tasks. So byte counts are a little too high until tasks end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.clients.spark import Stage, Work, parse_time
from autoscaler.clients.spark_work import Memory, has_files, keeps_files, migrates, query_of, shuffle_hosts, unread


class BatchMetric(StrEnum):
    """The metrics of a batch application."""

    PENDING_TASKS = "pending_tasks"
    RUNNING_TASKS = "running_tasks"
    REMAINING_TASK_TIME = "remaining_task_time"
    RUNNABLE_BYTES = "runnable_bytes"
    SHUFFLE_WORKERS = "shuffle_workers"
    JOB_TIME = "job_time"


@dataclass(frozen=True, slots=True)
class Load:
    """The unfinished tasks of a running stage.

    Attributes:
        stage: the stage.
        pending: number of tasks that wait for a slot.
        running: number of running tasks. It is a fraction if Spark counts more running tasks than there are slots.
    """

    stage: Stage
    pending: int
    running: float

    @property
    def unfinished(self) -> float:
        """The number of tasks that wait or run."""
        return self.pending + self.running


def loads(work: Work) -> list[Load]:
    """The unfinished tasks of each running stage."""
    running = sum(stage.running for stage in work.stages)
    # The driver counts a new task before it subtracts the previous one, so more tasks seem to run than slots exist.
    real = min(1.0, work.slots / running) if running else 0.0
    return [
        Load(stage, max(0, stage.tasks - stage.finished - stage.running), stage.running * real) for stage in work.stages
    ]


def pending_tasks(work: Work, memory: Memory) -> float:  # noqa: ARG001 - all metrics have the same signature
    """Tasks of running stages that wait for a slot."""
    return float(sum(load.pending for load in loads(work)))


def running_tasks(work: Work, memory: Memory) -> float:  # noqa: ARG001
    """Running tasks, at most the number of slots."""
    return float(min(work.slots, sum(stage.running for stage in work.stages)))


def remaining_task_time(work: Work, memory: Memory) -> float:
    """Slot-seconds that unfinished tasks of running stages still need. A running task is assumed to be half done."""
    fresh = _bytes_per_fresh_task(work, memory)
    return sum(
        ((load.pending + load.running / 2) * _mean(load.stage, work, memory, fresh) for load in loads(work)), 0.0
    )


def _mean(stage: Stage, work: Work, memory: Memory, fresh: float) -> float:
    """Seconds that a task of a stage takes: the mean of the stage's finished tasks.

    Without finished tasks it is the larger of two estimates. The first is twice the time that the first task has run:
    the expected length if nothing else is known (Gott, "Implications of the Copernican principle for our future
    prospects", Nature 363, 1993). The second is the time that earlier tasks took for as many bytes, or, if the bytes
    are unknown, the mean time of earlier tasks.
    """
    if stage.finished:
        return stage.run_ms / 1000 / stage.finished
    launched = parse_time(stage.launched)
    so_far = 0.0 if launched is None else max(0.0, work.now - launched)
    before = fresh * (memory.seconds_per_byte or 0.0) if fresh else memory.seconds_per_task
    return max(2 * so_far, before or 0.0)


def runnable_bytes(work: Work, memory: Memory) -> float:
    """Bytes that running stages still have to read."""
    left = sum(
        (load.stage.input_bytes + load.stage.shuffle_bytes) / load.stage.finished * load.unfinished
        for load in loads(work)
        if load.stage.finished
    )
    return left + _fresh_bytes(work, memory)


def _fresh_bytes(work: Work, memory: Memory) -> float:
    """Shuffle bytes that stages without a finished task have to read.

    These are the unread bytes minus the bytes that the other stages will read. The share of each single stage is not
    known before its first tasks have finished.
    """
    if all(stage.finished for stage in work.stages):
        return 0.0
    theirs = sum(
        load.stage.shuffle_bytes / load.stage.finished * load.unfinished for load in loads(work) if load.stage.finished
    )
    return float(max(0, unread(memory, work) - theirs))


def _bytes_per_fresh_task(work: Work, memory: Memory) -> float:
    tasks = sum(stage.tasks for stage in work.stages if not stage.finished)
    return _fresh_bytes(work, memory) / tasks if tasks else 0.0


def shuffle_workers(work: Work, memory: Memory) -> float:
    """Workers with shuffle files on disk that may still be read. If such a worker is lost, tasks must run again.

    The value falls to 0 when the application is idle, not between two jobs. If a drained worker moves its files to
    another worker, the value is at most 1, because one worker must remain. With a remote shuffle service it is 0.
    """
    if keeps_files(work.settings) and migrates(work.settings):
        return float(has_files(memory, work))
    return float(len(shuffle_hosts(memory, work)))


def job_time(work: Work, memory: Memory) -> float:
    """Seconds since the oldest running job was submitted. For a job of a SQL query, the query's first job counts."""
    begins = [memory.queries[query].submitted for query in map(query_of, work.jobs) if query in memory.queries]
    return max(0.0, work.now - min(begins)) if begins else 0.0


BATCH_METRICS: dict[BatchMetric, Callable[[Work, Memory], float]] = {
    BatchMetric.PENDING_TASKS: pending_tasks,
    BatchMetric.RUNNING_TASKS: running_tasks,
    BatchMetric.REMAINING_TASK_TIME: remaining_task_time,
    BatchMetric.RUNNABLE_BYTES: runnable_bytes,
    BatchMetric.SHUFFLE_WORKERS: shuffle_workers,
    BatchMetric.JOB_TIME: job_time,
}
