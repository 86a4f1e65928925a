"""The demo on Spark: a standalone cluster and a PySpark Structured Streaming job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.clients.java_home import find_java
from autoscaler.demo.config import Parts
from autoscaler.demo.environment import JOB, STOP_TIMEOUT, Environment, FinishedJob, get, require, url
from autoscaler.demo.processes import Processes, free_port
from autoscaler.demo.sink import commits, read_sink
from autoscaler.demo.spark.cluster import WORKER_MEMORY, WORKER_TIMEOUT, spark_variables, start_master
from autoscaler.demo.spark.job import Settings
from autoscaler.injob.reactive.snapshot import Step

WORKER_RATE = 21.0  # records/s, measured with the overhead of batches


class SparkEnvironment(Environment):
    """Spark's Master and the application's driver. The daemon scales the workers."""

    def __init__(self, processes: Processes, work: Path) -> None:
        require(("pyspark", "pyarrow"), "demo")
        super().__init__(processes, work)
        self.java = find_java(work / "java")
        self.variables = spark_variables(self.java)
        self._master, self._master_ui, self._driver_ui, self._report = (free_port() for _ in range(4))

    @property
    def parts(self) -> Parts:
        """The parts of the daemon's configuration that depend on Spark."""
        return Parts(
            about_source="the job itself: its report (one line in the job) and Spark's own pages",
            source={
                "type": "spark",
                "app": JOB,
                "report": url(self._report),
                "master": url(self._master_ui),
                "driver": url(self._driver_ui),
                "window": "10s",
            },
            about_target="what is scaled: workers of one core each on this machine",
            target={
                "kind": "spark-worker",
                "directory": str(self._processes.pool),
                "master": f"spark://127.0.0.1:{self._master}",
                "master_ui": url(self._master_ui),
                "cores": 1,
                "memory": WORKER_MEMORY,
                "worker_timeout": f"{WORKER_TIMEOUT}s",
            },
            about_engine="Spark gives a new worker's cores to the job at once",
            timeout="1500ms",
            restart=0,
            about_restart="the job continues while workers come and go",
            # The overhead of small batches keeps the slots busy, so only full load shows the capacity.
            utilization=False,
            settle=dict.fromkeys(("ready", "registered", "absorbed", "running"), "1m"),
            per_worker=WORKER_RATE,
        )

    def start_cluster(self) -> None:
        """Start the Master."""
        start_master(self._processes, self._master, self._master_ui, self.variables)

    def up(self) -> bool:
        """Whether the Master responds."""
        return get(f"{url(self._master_ui)}/json/") is not None

    def start_job(self) -> None:
        """Start the application."""
        settings = Settings(master=self._master, ui=self._driver_ui, report=self._report, directory=str(self._work))
        settings.start(self._processes, "autoscaler.demo.spark.job", self.variables)

    def running(self) -> bool:
        """Whether the job has run tasks on a worker."""
        return (self._work / "ready").exists()

    def lag(self, offered: int) -> int | None:
        """The records offered but not yet in a committed batch, from the job's own report."""
        report = get(f"{url(self._report)}/v1/progress")
        if report is None or not report["queries"]:
            return None
        progress = report["queries"][-1]["progress"]
        done = (progress[-1]["sources"][0]["end"] or 0) if progress else 0
        return max(0, offered - done)

    def facts(self) -> Mapping[str, Any]:
        """The number of failed tasks."""
        base = f"{url(self._driver_ui)}/api/v1/applications"
        applications = get(base, seconds=5.0)
        executors = get(f"{base}/{applications[0]['id']}/allexecutors", seconds=5.0) if applications else None
        failed = None if executors is None else sum(int(executor["failedTasks"]) for executor in executors)
        return {"failed_tasks": failed}

    def finish(self) -> FinishedJob:
        """Stop the application and read its output."""
        self._processes.stop("job", STOP_TIMEOUT)

        def read(sink: Path) -> FinishedJob:
            timeline = tuple(Step(**step) for step in json.loads((self._work / "timeline.json").read_text()))
            return FinishedJob(read_sink(sink), commits=commits(sink), timeline=timeline)

        return self._read_sink(read)
