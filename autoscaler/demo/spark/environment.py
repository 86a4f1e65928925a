"""Spark on the demo's stage: a standalone cluster and a PySpark Structured Streaming job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.clients.java_home import find_java
from autoscaler.demo.config import Parts
from autoscaler.demo.environment import PARTITIONS, Ending, get, require
from autoscaler.demo.processes import QUICK_START, DemoError, Stage, free_port, spark_environment
from autoscaler.demo.sink import commits, read_sink
from autoscaler.demo.spark.job import Settings
from autoscaler.targets.local.workers import spark_home

APP = "autoscaler-demo"
COST = 0.04  # seconds of waiting per record: 25 records/s per worker at best
WORKER_RATE = 21.0  # records/s that were measured, with what a batch costs besides
MOST = 1000  # records per batch, whatever their pace
BATCH = 3.0  # seconds that a batch should take
EXECUTOR_MEMORY = "640m"
WORKER_MEMORY = "1g"
WORKER_TIMEOUT = 60
STOP_TIMEOUT = 60.0


class SparkScene:
    """Spark's Master and the application's driver; the workers come and go."""

    def __init__(self, stage: Stage, work: Path) -> None:
        require(("pyspark", "pyarrow"), "demo")
        self._stage = stage
        self._work = work
        self._home = spark_home()
        self.java = find_java(work / "java")
        self.environment = spark_environment(self._home, self.java, sys.executable, WORKER_TIMEOUT)
        self._master, self._master_ui, self._driver_ui, self._report = (free_port() for _ in range(4))

    @property
    def parts(self) -> Parts:
        """What the daemon's configuration says of Spark."""
        master_ui = f"http://127.0.0.1:{self._master_ui}"
        return Parts(
            about_source="the job itself: its report (one line in the job) and Spark's own pages",
            source={
                "type": "spark",
                "app": APP,
                "report": f"http://127.0.0.1:{self._report}",
                "master": master_ui,
                "driver": f"http://127.0.0.1:{self._driver_ui}",
                "window": "10s",
            },
            about_target="what is scaled: workers of one core each on this machine",
            target={
                "kind": "spark-worker",
                "directory": str(self._stage.pool),
                "master": f"spark://127.0.0.1:{self._master}",
                "master_ui": master_ui,
                "cores": 1,
                "memory": WORKER_MEMORY,
                "worker_timeout": f"{WORKER_TIMEOUT}s",
            },
            about_engine="Spark gives a new worker's cores to the job at once",
            timeout="1500ms",
            restart=0,
            about_restart="the job goes on while workers come and go",
            # Small batches keep the slots busy with what a batch costs besides: what it can do is seen at full load.
            utilization=False,
            settle=dict.fromkeys(("ready", "registered", "absorbed", "running"), "1m"),
            per_worker=WORKER_RATE,
        )

    def start_cluster(self) -> None:
        """Start the Master."""
        place = ["--host", "127.0.0.1", "--port", str(self._master), "--webui-port", str(self._master_ui)]
        program = [str(self._home / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
        self._stage.start("master", [*program, *place], self.environment)

    def up(self) -> bool:
        """Whether the Master answers."""
        return get(f"http://127.0.0.1:{self._master_ui}/json/") is not None

    def start_job(self) -> None:
        """Start the application."""
        settings = Settings(
            name=APP,
            master=f"spark://127.0.0.1:{self._master}",
            ui_port=self._driver_ui,
            report_port=self._report,
            clock=str(self._work / "clock.json"),
            sink=str(self._work / "sink"),
            checkpoint=str(self._work / "checkpoint"),
            scratch=str(self._work / "scratch"),
            ready=str(self._work / "ready"),
            partitions=PARTITIONS,
            most=MOST,
            batch=BATCH,
            cost=COST,
            executor_memory=EXECUTOR_MEMORY,
            java_options=QUICK_START,
            worker_timeout=WORKER_TIMEOUT,
        )
        path = self._work / "job.json"
        settings.write(path)
        self._stage.start("job", [sys.executable, "-m", "autoscaler.demo.spark.job", str(path)], self.environment)

    def running(self) -> bool:
        """Whether it has run something on a worker."""
        return (self._work / "ready").exists()

    def lag(self, offered: int) -> int | None:
        """Records offered and not yet in a committed batch, by the job's own report."""
        report = get(f"http://127.0.0.1:{self._report}/v1/progress")
        if report is None or not report["queries"]:
            return None
        progress = report["queries"][-1]["progress"]
        done = (progress[-1]["sources"][0]["end"] or 0) if progress else 0
        return max(0, offered - done)

    def facts(self) -> Mapping[str, Any]:
        """How many tasks have failed."""
        base = f"http://127.0.0.1:{self._driver_ui}/api/v1/applications"
        applications = get(base, seconds=5.0)
        executors = get(f"{base}/{applications[0]['id']}/allexecutors", seconds=5.0) if applications else None
        failed = None if executors is None else sum(int(executor["failedTasks"]) for executor in executors)
        return {"failed_tasks": failed}

    def finish(self) -> Ending:
        """Stop the application and read its files."""
        self._stage.stop("job", STOP_TIMEOUT)
        try:
            sink = self._work / "sink"
            return Ending(read_sink(sink), commits=commits(sink))
        except (OSError, ValueError) as error:
            raise DemoError(f"the sink cannot be read back: {error}") from error
