"""Metrics of a Spark batch application, computed: pure functions of what it does and of what is kept of it.

Times are the driver's clock, so that no two clocks are ever compared; only ages leave. Spark counts the bytes that a
running task has read so far as those of finished ones, so bytes are a little too many until they have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.clients.spark import Stage, Work, parse_time
from autoscaler.clients.spark_work import Memory, keeps_files, migrates, query_of, shuffle_hosts, unread


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
    """What is left of a stage that runs.

    Attributes:
        stage: the stage.
        pending: its tasks that wait for a slot.
        running: its tasks that run. A fraction where more are counted than there are slots.
    """

    stage: Stage
    pending: int
    running: float

    @property
    def unfinished(self) -> float:
        """Its tasks that wait or run."""
        return self.pending + self.running


def loads(work: Work) -> list[Load]:
    """What is left of each stage that runs."""
    running = sum(stage.running for stage in work.stages)
    # The driver counts a task before it takes the one before off, so more seem to run than there are slots.
    real = min(1.0, work.slots / running) if running else 0.0
    return [
        Load(stage, max(0, stage.tasks - stage.finished - stage.running), stage.running * real) for stage in work.stages
    ]


def pending_tasks(work: Work, memory: Memory) -> float:  # noqa: ARG001 - as all metrics
    """Tasks of running stages that wait for a slot."""
    return float(sum(load.pending for load in loads(work)))


def running_tasks(work: Work, memory: Memory) -> float:  # noqa: ARG001
    """Tasks that run now, at most as many as there are slots."""
    return float(min(work.slots, sum(stage.running for stage in work.stages)))


def remaining_task_time(work: Work, memory: Memory) -> float:
    """Slot-seconds that the unfinished tasks of running stages still need; one that runs is taken to be half done."""
    fresh = _bytes_per_fresh_task(work, memory)
    return sum(
        ((load.pending + load.running / 2) * _mean(load.stage, work, memory, fresh) for load in loads(work)), 0.0
    )


def _mean(stage: Stage, work: Work, memory: Memory, fresh: float) -> float:
    """Seconds that a task of a stage takes: the mean of those that have finished.

    While none has, as long as the first one has run already, or what stages before took for as many bytes.
    """
    if stage.finished:
        return stage.run_ms / 1000 / stage.finished
    launched = parse_time(stage.launched)
    so_far = 0.0 if launched is None else max(0.0, work.now - launched)
    return max(so_far, fresh * (memory.seconds_per_byte or 0.0))


def runnable_bytes(work: Work, memory: Memory) -> float:
    """Bytes that running stages have yet to read."""
    left = sum(
        (load.stage.input_bytes + load.stage.shuffle_bytes) / load.stage.finished * load.unfinished
        for load in loads(work)
        if load.stage.finished
    )
    return left + _fresh_bytes(work, memory)


def _fresh_bytes(work: Work, memory: Memory) -> float:
    """Shuffle bytes that stages without a finished task have to read: those that wait, less what others will read.

    How many bytes a stage has to read is not known before tasks have finished, so all of them share these.
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
    """Workers whose loss would have tasks run again: on their disks are shuffle files that may still be read.

    It falls to 0 once the application is idle, not between two jobs. 0 where a drained worker hands its files on.
    """
    if not keeps_files(work.settings) or migrates(work.settings):
        return 0.0
    return float(len(shuffle_hosts(memory, work)))


def job_time(work: Work, memory: Memory) -> float:
    """Seconds since the oldest job that runs was submitted; of the jobs of one SQL query, the first one counts."""
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
