"""Metrics of a Spark Structured Streaming query or of batch jobs, from the driver's report and its REST API.

`spark_metrics` computes the metrics of queries, `spark_batch` those of batch jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from autoscaler.clients.spark import Executor, Report, SparkApi, SparkParameters, find_run, milliseconds, parse_time
from autoscaler.clients.spark_progress import Run
from autoscaler.clients.spark_work import Memory, observe
from autoscaler.core.model import Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeError, NotYetError, Shared
from autoscaler.sources.spark_batch import BATCH_METRICS, BatchMetric
from autoscaler.sources.spark_metrics import (
    METRICS,
    MIN_TRUSTED,
    TRUSTED_WINDOWS,
    Metric,
    Snapshot,
    check_active,
    saturation,
)

log = logging.getLogger("autoscaler.sources")


def slot_changes(executors: Sequence[Executor]) -> tuple[float, ...]:
    """The times at which executors were added and removed."""
    times = (parse_time(text) for executor in executors for text in (executor.added, executor.removed))
    return tuple(at for at in times if at is not None)


@dataclass(frozen=True, slots=True)
class BusySample:
    """Executor counters at one time: executor id -> (milliseconds of completed tasks, slots, running tasks)."""

    at: float
    executors: dict[str, tuple[int, int, int]]


def busy_share(samples: Sequence[BusySample]) -> float | None:
    """Busy share of the slots over the samples, oldest first; None with fewer than two samples, or without slots.

    Only executors that are in the first and the last sample count. If an executor's counter went back, it is another
    executor with the same id and does not count. Spark adds a task's time to the counter when the task ends. Therefore
    an executor with running tasks is assumed to have worked on them since its counter last changed.
    """
    first, last = samples[0], samples[-1]
    both = {
        key
        for key in first.executors.keys() & last.executors.keys()
        if first.executors[key][0] <= last.executors[key][0]
    }
    slots = sum(last.executors[key][1] for key in both)
    seconds = last.at - first.at
    if not slots or seconds <= 0:
        return None
    busy = 0.0
    for key in both:
        booked, own, running = last.executors[key]
        busy += (booked - first.executors[key][0]) / 1000
        still = last.at
        for sample in reversed(samples):
            if sample.executors.get(key, (None,))[0] != booked:
                break
            still = sample.at
        busy += (last.at - still) * min(running, own)
    return min(1.0, busy / (seconds * slots))


# ----------------------------------------------------------------------------------------------------------
# the plug-in


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """One metric of a Spark application.

    Attributes:
        metric: lag, lag_seconds, arrivals, throughput, saturation, utilization or batch_time; with `batch: true`:
            pending_tasks, running_tasks, remaining_task_time, runnable_bytes, shuffle_workers or job_time.
    """

    metric: str

    def __post_init__(self) -> None:
        if self.metric not in {*Metric, *BatchMetric}:
            expected = f"{', '.join(Metric)}, or with batch: true of {', '.join(BatchMetric)}"
            raise ParameterError("metric", f"must be one of {expected}, not {self.metric!r}")

    @property
    def share(self) -> bool:
        """Whether the metric is a share from 0 to 1."""
        return self.metric in {Metric.SATURATION, Metric.UTILIZATION}


@dataclass(frozen=True, kw_only=True)
class Spark(SparkParameters):
    """Metrics of a Spark Structured Streaming query or of batch jobs. The job calls `autoscaler.injob.report(spark)`.

    The engine `spark` has the same parameters.

    Attributes:
        app: the application's name or id; a name survives a restart of the driver.
        report: address of the report in the driver, such as http://driver:4050.
        master: address of the standalone Master's web UI, such as http://master:8080; default: not used.
        driver: address of the driver's web UI, such as http://driver:4040; default: the address in the report.
        batch: whether the application runs batch jobs instead of streaming queries; default false.
        query: name of the streaming query; default: the only one.
        window: time over which rates and shares are averaged; default 15s.
        timeout: time-out for all requests of a reading together; each single request gets 45 % of it; default 3s.
        master_conf: settings of the Master that the doctor cannot see, each `key=value`; default none.
        worker_conf: settings of the Workers that the doctor cannot see, each `key=value`; default none.
    """

    Query: ClassVar[type] = SparkQuery

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[SparkSource]:
        """Open the source. The first `collect` sends the first request."""
        yield SparkSource(SparkApi(shared, self), self.window.total_seconds())

    def check_query(self, query: SparkQuery) -> None:
        """Raise ParameterError for a streaming metric of a batch application, or the other way round."""
        if self.batch and query.metric in set(Metric):
            message = (
                f"{query.metric} is for streaming queries, but the source has batch: true; use {', '.join(BatchMetric)}"
            )
            raise ParameterError("metric", message)
        if not self.batch and query.metric in set(BatchMetric):
            message = f"{query.metric} is for batch applications; give the source batch: true"
            raise ParameterError("metric", message)


class SparkSource:
    """The connected source."""

    def __init__(self, api: SparkApi, window: float) -> None:
        self._api = api
        self._window = window
        self._samples: deque[BusySample] = deque()
        self._blind = ""
        self._application = ""
        self._missed = False
        self._memory = Memory()

    async def collect(self, query: SparkQuery, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError."""
        if self._api.parameters.batch:
            return await self._collect_batch(BatchMetric(query.metric), now)
        fetched = await self._api.report()
        report = fetched.value
        if report.application.id != self._application:
            # The executors of a new driver count from 0 and have the same ids as those of the old driver.
            self._application = report.application.id
            self._samples.clear()
        run = find_run(report, self._api.parameters.query)
        if run is None:
            raise AnswerError(f"application {report.application.name!r} has not started a streaming query yet")
        metric = Metric(query.metric)
        check_active(run, report.now)
        if metric is Metric.UTILIZATION:
            share, age = await self._utilization(run, report)
            return Reading(share, now - timedelta(seconds=age))
        working, changes = await self._driver(run)
        every = milliseconds(report.settings.get("spark.sql.streaming.noDataProgressEventInterval"), 10.0)
        snapshot = Snapshot(
            run=run,
            now=report.now,
            window=self._window,
            working=working,
            changes=changes,
            idle_every=10.0 if every is None else every,
            steady=report.steady,
        )
        value = METRICS[metric](snapshot)
        if not math.isfinite(value.value) or value.value < 0:
            raise AnswerError(f"{run.label}: {metric} is {value.value}, expected a finite number >= 0")
        return Reading(value.value, now - timedelta(seconds=fetched.age + max(0.0, report.now - value.at)))

    async def _collect_batch(self, metric: BatchMetric, now: datetime) -> Reading:
        fetched = await self._api.work()
        work, at = fetched.value, now - timedelta(seconds=fetched.age)
        if work is None:
            self._memory = Memory()
            return Reading(0.0, at)
        self._memory = observe(self._memory, work, fetched.at)
        return Reading(BATCH_METRICS[metric](work, self._memory), at)

    async def _driver(self, run: Run) -> tuple[bool | None, tuple[float, ...]]:
        """Whether a batch runs, and when executors changed. If the UI is unreachable, the report must be enough."""
        try:
            jobs, changes = await asyncio.gather(self._api.running_jobs(), self._executors())
        except EdgeError as error:
            if not self._blind:
                log.warning(
                    "the driver's UI cannot be reached; metrics come only from the report",
                    extra={"app": self._api.parameters.app, "error": str(error)},
                )
            self._blind = str(error)
            return run.working or None, ()
        if self._blind:
            log.info("the driver's UI can be reached again", extra={"app": self._api.parameters.app})
            self._blind = ""
        return run.working or any(job.group == run.run for job in jobs.value), changes

    async def _executors(self) -> tuple[float, ...]:
        try:
            fetched = await self._api.executors()
        except EdgeError:
            self._missed = True
            raise
        if self._missed and self._samples:
            self._missed = False
            if fetched.at - self._samples[-1].at > max(MIN_TRUSTED, TRUSTED_WINDOWS * self._window):
                # A mean over a gap in the polls does not describe the present.
                self._samples.clear()
        if not self._samples or fetched.at > self._samples[-1].at:
            # An executor that is excluded after failures gets no tasks, so it does not count as idle.
            usable = [e for e in fetched.value if e.active and e.slots and not e.excluded]
            live = {e.id: (e.busy_ms, e.slots, e.running) for e in usable}
            self._samples.append(BusySample(fetched.at, live))
            while len(self._samples) > 2 and self._samples[1].at <= fetched.at - self._window:  # noqa: PLR2004
                self._samples.popleft()
        return slot_changes(fetched.value)

    async def _utilization(self, run: Run, report: Report) -> tuple[float, float]:
        """Busy share of the slots and its age: from the counters, else from the batches of a fixed-interval trigger."""
        await self._executors()
        last = self._samples[-1]
        share = busy_share(self._samples)
        age = time.monotonic() - last.at
        if share is not None:
            return share, age
        if run.interval:
            value = saturation(Snapshot(run=run, now=report.now, window=self._window, steady=report.steady))
            return value.value, max(0.0, report.now - value.at)
        if not last.executors:
            raise AnswerError(f"application {self._api.parameters.app!r} has no executor, so no busy share")
        raise NotYetError("the busy share of the slots needs two polls of the executors; this was the first")
