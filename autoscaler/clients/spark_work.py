"""What is kept of a Spark batch application between polls: pure functions of what it does.

Adaptive execution runs every stage of a query as a job of its own, with some ten milliseconds between them in which
nothing runs; a program may also take a moment between two queries. An application is therefore idle only once nothing
has run for some seconds. Asking for running SQL executions would not tell more: Spark lists them oldest first, without
a filter, and jobs of RDDs belong to none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.clients.spark import Executor, Job, Stage, Work, parse_time

IDLE_AFTER = 5.0
"""Seconds without a job after which an application is idle."""

OWN_SHUFFLE = {
    "spark.shuffle.manager": {"sort", "tungsten-sort", "org.apache.spark.shuffle.sort.SortShuffleManager"},
    "spark.shuffle.sort.io.plugin.class": {"org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO"},
}
MIGRATION = {
    "spark.decommission.enabled": "false",
    "spark.storage.decommission.enabled": "false",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
}
"""The settings that have shuffle files moved off a drained worker, with Spark's defaults."""


class Cost(NamedTuple):
    """What tasks took, and how many they were.

    Attributes:
        tasks: their number.
        seconds: slot-seconds of all of them.
        shuffle_seconds: slot-seconds of those that mainly read shuffles: of local files Spark counts next to no bytes.
        shuffle_bytes: what these read.
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
    """What is kept. The empty one is of an application that has done nothing yet, as far as is known.

    Attributes:
        application: its id.
        at: when it was last seen, on the clock of `time.monotonic`.
        quiet_since: since when nothing runs, on the same clock; None while something does.
        tasks: tasks that its executors have been given.
        written: executor -> shuffle bytes that it had written when the application was last idle.
        read: executor -> shuffle bytes that it had read then.
        queries: query -> when it began, of those that run or ran a moment ago.
        active: stage and attempt -> the cost of its finished tasks, of those that run.
        ended: the same of all that ran before, added up.
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
        """Whether nothing has run for some seconds."""
        return self.quiet_since is not None and self.at - self.quiet_since >= IDLE_AFTER

    @property
    def seconds_per_byte(self) -> float | None:
        """Slot-seconds that finished tasks took for a byte of shuffles; None while no stage was seen to read any."""
        known = total(self.ended, *self.active.values())
        return known.shuffle_seconds / known.shuffle_bytes if known.shuffle_bytes else None

    @property
    def seconds_per_task(self) -> float | None:
        """Slot-seconds that a finished task took; None while no task was seen to finish."""
        known = total(self.ended, *self.active.values())
        return known.seconds / known.tasks if known.tasks else None


def total(*costs: Cost) -> Cost:
    """All of them together."""
    return Cost(*(sum(each) for each in zip(*costs, strict=True)))


def query_of(job: Job) -> str:
    """The query that a job is of. Spark tags the jobs of a SQL query with its number; another job is its own."""
    return next((tag for tag in job.tags if re.search(r"-execution-root-id-\d+$", tag)), f"job {job.number}")


def _cost(stage: Stage) -> Cost:
    """What its finished tasks took."""
    seconds = stage.run_ms / 1000 if stage.finished else 0.0
    shuffles = stage.finished and stage.shuffle_bytes > stage.input_bytes
    return Cost(stage.finished, seconds, seconds if shuffles else 0.0, stage.shuffle_bytes if shuffles else 0)


def observe(memory: Memory, work: Work, at: float) -> Memory:
    """Take what an application does at `at` into account. What is older than what is known changes nothing."""
    if work.application != memory.application:
        memory = Memory(application=work.application)
    if at <= memory.at:
        return memory
    tasks = sum(executor.tasks for executor in work.executors)
    quiet = memory.quiet_since
    if work.jobs or work.stages:
        quiet = None
    elif quiet is None or tasks != memory.tasks:  # or something has run between the two polls
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
    """The queries that run, and those that did in the seconds before the last poll, which may be between two jobs."""
    since = memory.at - IDLE_AFTER
    queries = {name: begin for name, begin in memory.queries.items() if begin.seen >= since}
    for job in work.jobs:
        submitted, query = parse_time(job.submitted), query_of(job)
        if submitted is not None:
            before = queries.get(query)
            queries[query] = Begin(submitted if before is None else min(submitted, before.submitted), at)
    return queries


def unread(memory: Memory, work: Work) -> int:
    """Shuffle bytes that were written and not read since the application was last idle, at least 0."""
    written = sum(_grown(executor.written, executor, memory.written) for executor in work.executors)
    return max(0, written - sum(_grown(executor.read, executor, memory.read) for executor in work.executors))


def shuffle_hosts(memory: Memory, work: Work) -> frozenset[str]:
    """Hosts of live executors on whose disks shuffle files are that may still be read.

    Those that were written since the application was last idle; none where another shuffle service has them.
    """
    if not keeps_files(work.settings):
        return frozenset()
    return frozenset(
        executor.host
        for executor in work.executors
        if executor.active and _grown(executor.written, executor, memory.written)
    )


def has_files(memory: Memory, work: Work) -> bool:
    """Whether any executor, also one that is gone, has written shuffle files since the application was last idle."""
    return any(_grown(executor.written, executor, memory.written) for executor in work.executors)


def keeps_files(settings: Mapping[str, str]) -> bool:
    """Whether shuffle files are on the disks of the workers: Spark's own shuffle, not a remote service."""
    return all(key not in settings or settings[key].strip() in own for key, own in OWN_SHUFFLE.items())


def migrates(settings: Mapping[str, str]) -> bool:
    """Whether shuffle files are moved off a worker that is drained."""
    return all(settings.get(key, default).strip().lower() == "true" for key, default in MIGRATION.items())


def _grown(count: int, executor: Executor, before: Mapping[str, int]) -> int:
    return max(0, count - before.get(executor.id, 0))
