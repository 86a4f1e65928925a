"""The memory of a Spark batch application between polls, and pure functions that update and read it.

Adaptive execution runs every stage of a query as a job of its own, with about ten milliseconds between two jobs in
which nothing runs. A program may also pause between two queries. Therefore an application counts as idle only when
nothing has run for some seconds. A request for running SQL executions would not help: Spark lists them oldest first,
without a filter, and RDD jobs do not belong to any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.clients.spark import Executor, Job, Stage, Work, parse_time

IDLE_AFTER = 5.0
"""Seconds without a running job after which an application counts as idle."""

OWN_SHUFFLE = {
    "spark.shuffle.manager": {"sort", "tungsten-sort", "org.apache.spark.shuffle.sort.SortShuffleManager"},
    "spark.shuffle.sort.io.plugin.class": {"org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"},
}
MIGRATION = {
    "spark.decommission.enabled": "false",
    "spark.storage.decommission.enabled": "false",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
}
"""If all these settings are true, Spark moves shuffle files off a drained worker. The values are Spark's defaults."""


class Cost(NamedTuple):
    """The number and the cost of finished tasks.

    Attributes:
        tasks: the number of tasks.
        seconds: slot-seconds of all tasks.
        shuffle_seconds: slot-seconds of the tasks whose stages read more shuffle bytes than input bytes. The other
            stages are left out, because Spark counts almost no bytes for local input files.
        shuffle_bytes: the shuffle bytes that these tasks read.
    """

    tasks: int = 0
    seconds: float = 0.0
    shuffle_seconds: float = 0.0
    shuffle_bytes: int = 0


class Begin(NamedTuple):
    """When a query's first job was submitted, by the driver's clock, and when one of its jobs was last seen."""

    submitted: float
    seen: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one application. The empty one means that no work of the application was seen yet.

    Attributes:
        application: the application's id.
        at: when the application was last polled, on the clock of `time.monotonic`.
        quiet_since: since when nothing runs, on the same clock; None while something runs.
        tasks: the number of tasks assigned to executors so far.
        written: executor -> shuffle bytes that it had written when the application was last idle.
        read: executor -> shuffle bytes that it had read at that time.
        queries: query -> its begin, for queries that run or ran a moment ago.
        active: (stage, attempt) -> the cost of its finished tasks, for running stages.
        ended: the total cost of the stages that ran before.
    """

    application: str = ""
    at: float = -math.inf
    quiet_since: float | None = None
    tasks: int = 0
    written: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, int] = field(default_factory=dict)
    queries: Mapping[str, Begin] = field(default_factory=dict)
    active: Mapping[tuple[int, int], Cost] = field(default_factory=dict)
    ended: Cost = field(default_factory=Cost)

    @property
    def idle(self) -> bool:
        """Whether nothing has run for `IDLE_AFTER` seconds."""
        return self.quiet_since is not None and self.at - self.quiet_since >= IDLE_AFTER

    @property
    def seconds_per_byte(self) -> float | None:
        """Slot-seconds of finished tasks per byte of shuffle read; None if no such stage was seen."""
        known = total(self.ended, *self.active.values())
        return known.shuffle_seconds / known.shuffle_bytes if known.shuffle_bytes else None

    @property
    def seconds_per_task(self) -> float | None:
        """Slot-seconds per finished task; None while no finished task was seen."""
        known = total(self.ended, *self.active.values())
        return known.seconds / known.tasks if known.tasks else None


def total(*costs: Cost) -> Cost:
    """The sum of costs."""
    return Cost(*(sum(each) for each in zip(*costs, strict=True)))


def query_of(job: Job) -> str:
    """The query of a job. Spark tags the jobs of a SQL query with its number; any other job is a query of its own."""
    return next((tag for tag in job.tags if re.search(r"-execution-root-id-\d+$", tag)), f"job {job.number}")


def _cost(stage: Stage) -> Cost:
    """The cost of the stage's finished tasks."""
    seconds = stage.run_ms / 1000 if stage.finished else 0.0
    shuffles = stage.finished and stage.shuffle_bytes > stage.input_bytes
    return Cost(stage.finished, seconds, seconds if shuffles else 0.0, stage.shuffle_bytes if shuffles else 0)


def observe(memory: Memory, work: Work, at: float) -> Memory:
    """Update the memory with the work seen at time `at`. Work that is older than the last update changes nothing."""
    if work.application != memory.application:
        memory = Memory(application=work.application)
    if at <= memory.at:
        return memory
    tasks = sum(executor.tasks for executor in work.executors)
    quiet = memory.quiet_since
    if work.jobs or work.stages:
        quiet = None
    elif quiet is None or tasks != memory.tasks:  # tasks have run between the two polls
        quiet = at
    active = {(stage.number, stage.attempt): _cost(stage) for stage in work.stages}
    gone = [cost for key, cost in memory.active.items() if key not in active]
    seen = replace(
        memory,
        at=at,
        quiet_since=quiet,
        tasks=tasks,
        queries=_queries(memory, work, at),
        active=active,
        ended=total(memory.ended, *gone),
    )
    if not seen.idle:
        return seen
    return replace(
        seen,
        written={executor.id: executor.written for executor in work.executors},
        read={executor.id: executor.read for executor in work.executors},
        queries={},
    )


def _queries(memory: Memory, work: Work, at: float) -> dict[str, Begin]:
    """The running queries, and those seen within `IDLE_AFTER` before the last poll: they may be between two jobs."""
    since = memory.at - IDLE_AFTER
    queries = {name: begin for name, begin in memory.queries.items() if begin.seen >= since}
    for job in work.jobs:
        submitted, query = parse_time(job.submitted), query_of(job)
        if submitted is not None:
            before = queries.get(query)
            queries[query] = Begin(submitted if before is None else min(submitted, before.submitted), at)
    return queries


def unread(memory: Memory, work: Work) -> int:
    """Shuffle bytes written minus shuffle bytes read since the application was last idle, at least 0."""
    written = sum(_grown(executor.written, executor, memory.written) for executor in work.executors)
    return max(0, written - sum(_grown(executor.read, executor, memory.read) for executor in work.executors))


def shuffle_hosts(memory: Memory, work: Work) -> frozenset[str]:
    """The hosts of live executors that have shuffle files on disk which may still be read.

    These are files written since the application was last idle. With a remote shuffle service there are none.
    """
    if not keeps_files(work.settings):
        return frozenset()
    return frozenset(
        executor.host
        for executor in work.executors
        if executor.active and _grown(executor.written, executor, memory.written)
    )


def has_files(memory: Memory, work: Work) -> bool:
    """Whether any executor, including dead ones, has written shuffle files since the application was last idle."""
    return any(_grown(executor.written, executor, memory.written) for executor in work.executors)


def keeps_files(settings: Mapping[str, str]) -> bool:
    """Whether Spark's own shuffle is used, which keeps files on the workers' disks, and not a remote service."""
    return all(key not in settings or settings[key].strip() in own for key, own in OWN_SHUFFLE.items())


def migrates(settings: Mapping[str, str]) -> bool:
    """Whether Spark moves shuffle files off a worker that is drained."""
    return all(settings.get(key, default).strip().lower() == "true" for key, default in MIGRATION.items())


def _grown(count: int, executor: Executor, before: Mapping[str, int]) -> int:
    return max(0, count - before.get(executor.id, 0))
