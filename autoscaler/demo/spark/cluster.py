"""The common part of the demos on Spark: a standalone cluster on this machine, and the driver of the job."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.demo.environment import JOB, variables_without
from autoscaler.demo.processes import QUICK_START, Processes
from autoscaler.targets.local.workers import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTOR_MEMORY = "640m"
WORKER_MEMORY = "1g"
WORKER_TIMEOUT = 60
"""`spark.worker.timeout`, in seconds."""


def spark_variables(java: Path) -> dict[str, str]:
    """The environment variables of all processes of the demo on Spark; `java` is a JAVA_HOME."""
    options = f"-Dspark.decommission.enabled=true -Dspark.worker.timeout={WORKER_TIMEOUT}"
    return {
        **variables_without("SPARK_"),
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Disable the Master's REST server: it has no authentication, and the demo submits nothing to it.
        "SPARK_MASTER_OPTS": f"{options} -Dspark.master.rest.enabled=false",
    }


def start_master(processes: Processes, port: int, ui: int, variables: Mapping[str, str]) -> None:
    """Start the Master, with its web UI at port `ui`."""
    place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
    program = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    processes.start("master", [*program, *place], variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Settings of a job's driver.

    Attributes:
        name: the application's name.
        master: port of the Spark Master.
        ui: port of the driver's web UI.
        report: port of the report.
        directory: the directory for the job's output and Spark's temporary files.
    """

    name: str = JOB
    master: int
    ui: int
    report: int
    directory: str

    def place(self, name: str) -> Path:
        """The path of a file or subdirectory in the job's directory."""
        return Path(self.directory, name)

    def start(self, processes: Processes, module: str, variables: Mapping[str, str]) -> None:
        """Start the job's module as the process `job`, with these settings."""
        path = self.place("job.json")
        path.write_text(json.dumps(asdict(self), indent=1))
        processes.start("job", [sys.executable, "-m", module, str(path)], variables)

    def session(self, conf: Mapping[str, str]) -> SparkSession:
        """Create the job's session, with the Spark settings `conf` in addition."""
        from pyspark.sql import SparkSession  # noqa: PLC0415 - it belongs to an extra

        ours = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.executor.cores": "1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.ui.port": str(self.ui),
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(self.place("scratch")),
        }
        builder = SparkSession.builder.appName(self.name).master(f"spark://127.0.0.1:{self.master}")
        return builder.config(map={**ours, **conf}).getOrCreate()
