"""One run of the batch job: a Spark cluster that the daemon scales, the job, and the observations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autoscaler.clients.java_home import find_java
from autoscaler.demo.config import api
from autoscaler.demo.environment import JOB, describe, get, rescales, url
from autoscaler.demo.processes import DemoError, Processes, free_port, uninterrupted
from autoscaler.demo.result import Rescale
from autoscaler.demo.spark.cluster import WORKER_MEMORY, WORKER_TIMEOUT, spark_variables, start_master
from autoscaler.demo.spark_batch.config import Ports, configuration
from autoscaler.demo.spark_batch.job import GIVING_BACK, Settings
from autoscaler.demo.spark_batch.result import BatchRun
from autoscaler.injob.batch_stages import BatchReportError, read_event_log
from autoscaler.targets.local.pool import request_size

POLL_INTERVAL = 0.5
START_TIMEOUT = 120.0
END_TIMEOUT = 180.0  # seconds within which the workers must be released after the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to run the job.

    Attributes:
        name: the name of the run's directories.
        least, most: minimum and maximum workers. They are equal for a cluster of fixed size, whose workers are all up
            before the job starts.
        sources: tasks of a stage that reads a large table, under `adaptive_batch`; None: Spark's defaults.
        conf: Spark settings.
    """

    name: str
    least: int
    most: int
    sources: int | None
    conf: Mapping[str, str]

    @property
    def fixed(self) -> bool:
        """Whether the cluster has a fixed size."""
        return self.least == self.most


def autoscaled(most: int, sources: int, least: int = 0) -> Variant:
    """The daemon scales the cluster, and `adaptive_batch` sets the number of tasks by the volume of data."""
    return Variant(name="autoscaler", least=least, most=most, sources=sources, conf=GIVING_BACK)


def defaults(size: int) -> Variant:
    """Spark's defaults on a cluster of fixed size."""
    return Variant(name="fixed", least=size, most=size, sources=None, conf={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a run at one time.

    Attributes:
        at: seconds since the run began.
        phase: the present phase of the job.
        cluster: the cluster's state as the daemon reports it; empty if the daemon does not respond.
        workers: worker processes, including those that start or drain.
    """

    at: float
    phase: str
    cluster: Mapping[str, Any]
    workers: int


class BatchCluster:
    """One run with its processes."""

    def __init__(self, variant: Variant, tables: Path, output: Path, watch: Callable[[Moment], None]) -> None:
        """Prepare a run. Its directories are named after the variant, in `logs` and `work` of the output directory.

        The run calls `watch` with its state about twice a second.

        Raises:
            AutoscalerError: something is not installed.
        """
        self._variant = variant
        self._tables = tables
        self._work = output / "work" / variant.name
        self._watch = watch
        self.file = output / f"{variant.name}.yaml"
        self.processes = Processes(output / "logs" / variant.name, self._work / "workers")
        self._variables = spark_variables(find_java(output / "work" / "java"))
        self._ports = Ports(*(free_port() for _ in range(5)))
        self._result = self._work / "result.json"
        self._phase = self._work / "phase"
        self._start = time.time()
        self._workers: list[tuple[float, int]] = []

    def run(self) -> BatchRun:
        """Run the job, then end all processes.

        Raises:
            DemoError: the run failed; the message names the log to read.
        """
        try:
            return self._run()
        finally:
            with uninterrupted():
                self.processes.clear()

    def _run(self) -> BatchRun:
        for name in ("events", "scratch", "results"):
            (self._work / name).mkdir(parents=True)
        variant, ports = self._variant, self._ports
        self.file.write_text(
            configuration(
                ports,
                app=JOB,
                limits=(variant.least, variant.most),
                state=self._work / "autoscaler",
                pool=self.processes.pool,
                memory=WORKER_MEMORY,
                worker_timeout=WORKER_TIMEOUT,
            )
        )
        request_size(self.processes.pool, variant.least)
        start_master(self.processes, ports.master, ports.master_ui, self._variables)
        self._wait_until(lambda: get(f"{url(ports.master_ui)}/json/") is not None, "the Master to respond")
        daemon = [sys.executable, "-m", "autoscaler", "run", str(self.file)]
        self.processes.start("daemon", daemon, self._variables)
        self._wait_until(lambda: self._ready() == variant.least, "the workers to register")
        self._start_job()
        while not self._result.exists():
            self._poll(self._phase.read_text() if self._phase.exists() else "starting")
        self.processes.wait_for_exit("job", END_TIMEOUT)
        deadline = time.monotonic() + END_TIMEOUT
        while not variant.fixed and self._count() > variant.least and time.monotonic() < deadline:
            self._poll("the job has ended")
        return self._observed(json.loads(self._result.read_text()))

    def _observed(self, result: Mapping[str, Any]) -> BatchRun:
        variant = self._variant
        try:
            application = read_event_log(next((self._work / "events").iterdir()))
        except (OSError, StopIteration, BatchReportError) as error:
            raise DemoError(f"the job's event log cannot be read: {error}") from error
        decisions = rescales(self.processes, self._ports.listen)
        began = result["began"]
        return BatchRun(
            application=application,
            began=began,
            ended=result["ended"],
            workers=self._workers,
            rescales=[
                Rescale(_at(each) - began, each["current"], each["desired"], describe(each)) for each in decisions
            ],
            left=None if variant.fixed else self._count() - variant.least,
            failed_tasks=result["failed_tasks"],
            total=result["total"],
            rows=read_results(self._work / "results"),
        )

    def _start_job(self) -> None:
        settings = Settings(
            master=self._ports.master,
            ui=self._ports.driver_ui,
            report=self._ports.report,
            directory=str(self._work),
            tables=str(self._tables),
            sources=self._variant.sources,
            conf=self._variant.conf,
        )
        settings.start(self.processes, "autoscaler.demo.spark_batch.job", self._variables)

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not done():
            if time.monotonic() > deadline:
                raise DemoError(f"{what} took longer than {START_TIMEOUT:g} s; see the logs in {self.processes.logs}")
            self._poll("starting")

    def _poll(self, phase: str) -> None:
        """Check the processes, note the workers, show the state, and sleep until the next poll."""
        began = time.monotonic()
        self.processes.check()
        at, count = time.time(), self._count()
        if not self._workers or self._workers[-1][1] != count:
            self._workers.append((at, count))
        cluster = get(api(self._ports.listen), seconds=POLL_INTERVAL) or {}
        self._watch(Moment(at=at - self._start, phase=phase, cluster=cluster, workers=count))
        time.sleep(max(0.05, POLL_INTERVAL - (time.monotonic() - began)))

    def _count(self) -> int:
        return len(list((self.processes.pool / "workers").glob("*.json")))

    def _ready(self) -> int | None:
        cluster = get(api(self._ports.listen)) or {}
        ready: int | None = cluster.get("ready")
        return ready


def read_results(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The sorted rows that each query has written.

    Raises:
        DemoError: the files cannot be read.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - it belongs to an extra

    try:
        return {
            place.name: sorted(tuple(row.values()) for row in pq.read_table(place).to_pylist())
            for place in sorted(directory.iterdir())
        }
    except (OSError, ValueError) as error:
        raise DemoError(f"the job's output cannot be read: {error}") from error


def _at(decision: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(decision["at"]).timestamp()
