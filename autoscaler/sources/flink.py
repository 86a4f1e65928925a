"""Metrics of a Flink job, from the JobManager's REST API: the plug-in, which polls once for all metrics of a job.

`flink_samples` has the samples that the polls produce. `flink_metrics` computes the metrics from them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from autoscaler.clients.flink import Aggregate, FlinkApi, FlinkParameters, Job, Vertex
from autoscaler.core.model import Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeError, RefusedError, Shared
from autoscaler.sources.flink_metrics import (
    CHECKPOINT_METRICS,
    CPU,
    GC,
    HEAP_MAX,
    HEAP_USED,
    METRICS,
    RATE_METRICS,
    WORKER_METRICS,
    FlinkQuery,
    Metric,
    averaging_span,
    hottest_vertex,
    parts,
    worker_shares,
)
from autoscaler.sources.flink_samples import (
    PENDING,
    TASK,
    Sample,
    Snapshot,
    SubtasksSample,
    Track,
    continues,
    make_sample,
    make_subtasks_sample,
    partitions,
    trim_sample,
    useful_names,
)

NAMES_REFRESH = 60.0
NAMES_RETRY = 10.0  # Flink's Kafka source has no pendingRecords before its first record
MAX_GAP = 60.0
MAX_GAP_WINDOWS = 4
LESS_THAN_MEAN = 0.05  # the hottest subtask may be this much below the mean of the busiest vertex


@dataclass(frozen=True, kw_only=True)
class Flink(FlinkParameters):
    """Metrics of a Flink job. The engine `flink` has the same parameters.

    Attributes:
        url: the JobManager's REST address, such as http://jobmanager:8081.
        job: the job's name, which stays the same over restarts, or its id; default: the only job that runs.
        window: time over which rates and shares are averaged; default 30s.
        timeout: time-out for all requests of a reading together; each single request gets 45 % of it; default 3s.
        username: user for basic authentication, if a proxy in front of the JobManager requires it; default: none.
        password: the user's password.
        token: bearer token, instead of user and password; default: none.
        ca_file: PEM file with the CA certificates for the server's certificate; default: those of the system.
    """

    window: timedelta = timedelta(seconds=30)

    Query: ClassVar[type] = FlinkQuery

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window <= timedelta(0):
            raise ParameterError("window", "must be above 0")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FlinkSource]:
        """Open the source. The first `collect` sends the first request."""
        source = FlinkSource(await self.api(shared), self)
        try:
            yield source
        finally:
            await source.close()


class FlinkSource:
    """The connected source. It polls all vertices once for all metrics of one observation."""

    def __init__(self, api: FlinkApi, parameters: Flink) -> None:
        self._api = api
        self._parameters = parameters
        self._window = parameters.window.total_seconds()
        self._run: tuple[object, ...] = ()
        self._samples: dict[str, deque[Sample]] = {}
        self._names: dict[str, tuple[float, frozenset[str]]] = {}
        self._partitions: dict[str, int] = {}
        self._subtasks: dict[str, deque[SubtasksSample]] = {}
        self._hottest: str | None = None
        self._sampled: str | None = None
        self._asked_by_worker = False
        self._shows_subtasks = True
        self._polling: asyncio.Task[Snapshot] | None = None
        self._polled_for: datetime | None = None
        self._missed = False

    async def close(self) -> None:
        """Cancel a pending poll."""
        if self._polling is not None and not self._polling.done():
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def collect(self, query: FlinkQuery, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError."""
        metric = Metric(query.metric)
        self._asked_by_worker |= metric is Metric.UTILIZATION
        async with self._parameters.in_time():
            snapshot = await self._snapshot(metric, now)
        value = METRICS[metric](snapshot, query)
        if not math.isfinite(value) or value < 0:
            raise AnswerError(f"job {snapshot.job.name!r}: {metric} is {value}, expected a finite number >= 0")
        known = parts(snapshot, query) if metric is Metric.VERTICES else {}
        over = timedelta(seconds=averaging_span(snapshot) if metric in RATE_METRICS else 0.0)
        at = now - timedelta(seconds=max(0.0, time.monotonic() - snapshot.at))
        shares = worker_shares(snapshot.subtasks) if metric is Metric.UTILIZATION else ()
        if shares and max(shares) > value - LESS_THAN_MEAN:
            return Reading(shares, at, mean=value)
        return Reading(value, at, parts=known, over=over)

    async def _snapshot(self, metric: Metric, now: datetime) -> Snapshot:
        if metric in WORKER_METRICS:
            job, at = await self._job()
            names = {Metric.HEAP: [HEAP_USED, HEAP_MAX], Metric.GC: [GC], Metric.CPU: [CPU]}[metric]
            return Snapshot(job, at, workers=await self._api.taskmanager_metrics(names))
        if metric in CHECKPOINT_METRICS:
            job, _ = await self._job()
            checkpoints = await self._api.checkpoints(job.jid)
            return Snapshot(job, time.monotonic(), checkpoints=checkpoints)
        return await self._poll(now)

    async def _poll(self, now: datetime) -> Snapshot:
        """One poll for all metrics of one observation."""
        task = self._polling
        if task is None or (task.done() and (self._polled_for != now or task.cancelled() or task.exception())):
            task = self._polling = asyncio.create_task(self._vertices())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._polled_for = now
        # If one caller is cancelled, the others must still get the answer.
        return await asyncio.shield(task)

    async def _job(self) -> tuple[Job, float]:
        """The job, and the time at which its metrics were true. Raises AnswerError when the job does not run."""
        line = await self._api.find_job(self._parameters.job)
        name = self._parameters.job
        if line is None:
            raise AnswerError(f"{self._api.endpoint.url} runs no job" + (f" named {name!r}" if name else ""))
        if line.ended:
            raise AnswerError(f"job {line.name!r} is {line.state}")
        job = await self._api.job(line.jid)
        state = line.state if line.state != "RUNNING" else job.state
        if state != "RUNNING":
            raise AnswerError(f"job {line.name!r} is {state}, so it has no metrics now")
        age = await self._api.metrics_age(job)
        if age is None:
            raise AnswerError(f"job {line.name!r} has just started: Flink has no metrics of this run yet")
        return job, time.monotonic() - age

    async def _vertices(self) -> Snapshot:
        try:
            snapshot = await self._tracks()
        except EdgeError:
            self._missed = True
            raise
        self._missed = False
        return snapshot

    async def _tracks(self) -> Snapshot:
        job, at = await self._job()
        run = (job.jid, job.since("RUNNING"), tuple((vertex.id, vertex.parallelism) for vertex in job.vertices))
        if run != self._run:
            self._run = run
            self._samples.clear()
            self._names.clear()
            self._partitions.clear()
            self._subtasks.clear()
            self._hottest, self._shows_subtasks = None, True
        # Sample the subtasks of the vertex that was hottest at the last poll. So this request need not wait for the
        # others, and a rate needs two polls anyway.
        tracks, subtasks = await asyncio.gather(
            asyncio.gather(*(self._track(job, vertex, at) for vertex in job.vertices)),
            self._sample_subtasks(job, self._hottest, at),
        )
        self._hottest = hottest_vertex(tracks)
        # If a TaskManager hangs, Flink keeps its last figures. To gather them again does not make them younger.
        newest = [track.samples[-1].at for track in tracks if track.samples]
        return Snapshot(job, min([at, *newest]), {track.vertex.id: track for track in tracks}, subtasks)

    async def _sample_subtasks(self, job: Job, vertex: str | None, at: float) -> tuple[SubtasksSample, ...]:
        """The subtask samples of a vertex over the window. If there are none, utilization falls back to the mean."""
        if vertex is None or not (self._asked_by_worker and self._shows_subtasks):
            return ()
        try:
            found = make_subtasks_sample(await self._api.subtasks(job.jid, vertex), at)
        except RefusedError:
            self._shows_subtasks = False  # this server has no subtasks, such as a scheduler inside a Spark job
            return ()
        except EdgeError:
            return ()
        if found is None:
            return ()
        samples = self._subtasks.setdefault(vertex, deque())
        paused = self._missed or self._sampled != vertex
        self._sampled = vertex
        if samples:
            before, after = samples[-1].subtasks, found.subtasks
            if before == after:
                return tuple(samples)  # the JobManager has gathered no new metrics since the last poll
            same = before.keys() == after.keys() and all(before[key].age <= after[key].age for key in after)
            if not same or (paused and at - samples[-1].at > max(MAX_GAP, MAX_GAP_WINDOWS * self._window)):
                samples.clear()
        samples.append(found)
        while len(samples) > 2 and samples[1].at <= at - self._window:  # noqa: PLR2004 - a rate lies between two
            samples.popleft()
        return tuple(samples)

    async def _track(self, job: Job, vertex: Vertex, at: float) -> Track:
        counted = {state: count for state, count in vertex.tasks.items() if count}
        if counted and counted.keys() <= {"FINISHED"}:
            return Track(vertex, ended=True)
        if not vertex.running:
            return Track(vertex, missing="not all of its subtasks run")
        found = make_sample(await self._metrics(job, vertex), at, counted.get("RUNNING", 0))
        if isinstance(found, str):
            self._names.pop(vertex.id, None)
            return Track(vertex, missing=found)
        samples = self._samples.setdefault(vertex.id, deque())
        if samples:
            last = samples[-1]
            gap = self._missed and at - last.at > max(MAX_GAP, MAX_GAP_WINDOWS * self._window)
            if gap or not continues(last, found):
                samples.clear()  # a gap in the polls, or restarted subtasks
            elif found.clock is not None and found.clock == last.clock:
                # the JobManager has gathered no new metrics since the last poll
                return Track(vertex, tuple(samples), partitions=self._partitions.get(vertex.id, 0))
            else:
                samples[-1] = trim_sample(last)
        samples.append(found)
        while len(samples) > 2 and samples[1].at <= at - self._window:  # noqa: PLR2004 - a rate lies between two
            samples.popleft()
        return Track(vertex, tuple(samples), partitions=self._partitions.get(vertex.id, 0))

    async def _metrics(self, job: Job, vertex: Vertex) -> Mapping[str, Aggregate]:
        """The metrics of a vertex. Its names are requested again if they are missing or old, or new ones may appear."""
        kept = self._names.get(vertex.id)
        now = time.monotonic()
        if kept is not None and now - kept[0] <= (NAMES_REFRESH if kept[1] >= TASK else NAMES_RETRY):
            found = await self._api.vertex_metrics(job.jid, vertex.id, kept[1])
            if found:
                return found
        known = await self._api.vertex_metric_names(job.jid, vertex.id)
        names = useful_names(known)
        if not names:
            return {}
        if vertex in job.sources:
            self._partitions[vertex.id] = partitions(known)
        lazy = vertex in job.sources and not any(name.endswith("." + PENDING) for name in names)
        self._names[vertex.id] = (now - (NAMES_REFRESH - NAMES_RETRY if lazy else 0), names)
        return await self._api.vertex_metrics(job.jid, vertex.id, names)
