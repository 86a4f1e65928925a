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
    """What tasks took: slot-seconds, and the bytes that they read."""

    seconds: float = 0.0
    bytes: int = 0


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
        active: stage and attempt -> the cost of its finished tasks, of those that run and read shuffles.
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
        costs = (self.ended, *self.active.values())
        total = sum(cost.bytes for cost in costs)
        return sum(cost.seconds for cost in costs) / total if total else None


def query_of(job: Job) -> str:
    """The query that a job is of. Spark tags the jobs of a SQL query with its number; another job is its own."""
    return next((tag for tag in job.tags if re.search(r"-execution-root-id-\d+$", tag)), f"job {job.number}")


def _cost(stage: Stage) -> Cost | None:
    """What its finished tasks took, if they mainly read shuffles: of local files Spark counts next to no bytes."""
    if not stage.finished or stage.shuffle_bytes <= stage.input_bytes:
        return None
    return Cost(stage.run_ms / 1000, stage.shuffle_bytes)


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
    active = {(stage.number, stage.attempt): cost for stage in work.stages if (cost := _cost(stage)) is not None}
    gone = [cost for key, cost in memory.active.items() if key not in active]
    seen = replace(
        memory,
        at=at,
        quiet_since=quiet,
        tasks=tasks,
        queries=_queries(memory, work, at),
        active=active,
        ended=Cost(
            memory.ended.seconds + sum(cost.seconds for cost in gone),
            memory.ended.bytes + sum(cost.bytes for cost in gone),
        ),
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


def keeps_files(settings: Mapping[str, str]) -> bool:
    """Whether shuffle files are on the disks of the workers: Spark's own shuffle, not a remote service."""
    return all(key not in settings or settings[key].strip() in own for key, own in OWN_SHUFFLE.items())


def migrates(settings: Mapping[str, str]) -> bool:
    """Whether shuffle files are moved off a worker that is drained."""
    return all(settings.get(key, default).strip().lower() == "true" for key, default in MIGRATION.items())


def _grown(count: int, executor: Executor, before: Mapping[str, int]) -> int:
    return max(0, count - before.get(executor.id, 0))
