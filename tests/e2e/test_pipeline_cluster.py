"""The pipeline on clusters: a standalone one, by --master and by spark-submit, and a Spark Connect server.

The executors have a Python of their own with PySpark's packages and nothing of this project.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoscaler.java import JavaNotFoundError, find_java
from autoscaler.targets.workers import spark_home
from tests.e2e.test_local_target import get, missing, until

pytestmark = pytest.mark.e2e

BARE = ("numpy", "numpy.libs", "pandas", "pyarrow", "dateutil", "pytz", "tzdata", "six.py")
"""What PySpark itself needs on a worker."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A standalone cluster of two workers whose Python is `python`."""

    master: str
    ui: int
    python: Path
    environment: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of ours, its driver here."""
        environment = self.environment | {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        return subprocess.run(
            [*command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def applications(self) -> list[str]:
        """Names of all applications that the Master has seen."""
        state = get(f"http://127.0.0.1:{self.ui}/json/")
        return [app["name"] for app in [*state["activeapps"], *state["completedapps"]]]


def bare_python(directory: Path) -> Path:
    """A Python with what PySpark needs on a worker, and nothing else that is installed here."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    here = Path(importlib.util.find_spec("pyarrow").origin).parent.parent  # type: ignore[union-attr, arg-type]
    for name in BARE:
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    python = directory / "python3"
    # -S: no site-packages. What Spark adds to the path stays.
    start = f'PYTHONPATH="{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec {sys._base_executable} -S "$@"'  # type: ignore[attr-defined]
    python.write_text(f"#!/bin/sh\n{start}\n")
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("pyspark") is None:
        missing("pyspark is not installed (extra spark)")
    try:
        return find_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        missing(str(error))
        raise


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java: Path) -> Iterator[Cluster]:
    from autoscaler.demo.stage import Stage, free_port, spark_environment  # noqa: PLC0415 - it needs pyspark

    directory = tmp_path_factory.mktemp("cluster")
    stage = Stage(directory / "logs", directory / "pool")
    port, ui = free_port(), free_port()
    environment = spark_environment(spark_home(), java, sys.executable, 60)
    started = str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy"
    try:
        address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
        stage.start("master", [started[0], f"{started[1]}.master.Master", *address], environment)
        for number in range(2):
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "-d", str(directory / f"work-{number}"))
            argv = [started[0], f"{started[1]}.worker.Worker", *options, f"spark://127.0.0.1:{port}"]
            stage.start(f"worker-{number}", argv, environment)
        until(lambda: len(get(f"http://127.0.0.1:{ui}/json/")["workers"]) == 2)
        yield Cluster(f"spark://127.0.0.1:{port}", ui, bare_python(directory / "bare"), environment)
    finally:
        stage.clear()


def script(directory: Path, text: str) -> str:
    """A Python file with that text."""
    file = directory / "script.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


def test_a_workers_python_gets_this_projects_code_from_the_driver(cluster: Cluster, tmp_path: Path) -> None:
    name = script(
        tmp_path,
        f"""
        import pyarrow
        from autoscaler.pipeline.session import session

        def look(batches):
            import importlib.util, autoscaler.core.step, autoscaler_policies.adaptive
            for _ in batches:
                yield pyarrow.RecordBatch.from_pydict({{
                    "place": [autoscaler.core.step.__file__], "pydantic": [str(importlib.util.find_spec("pydantic"))]
                }})

        settings = {{"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}}
        with session("look", master="{cluster.master}", settings=settings) as spark:
            for row in spark.range(2, numPartitions=2).mapInArrow(look, "place string, pydantic string").collect():
                print(row.place, row.pydantic)
        """,
    )
    answer = cluster.run(sys.executable, name)
    assert answer.returncode == 0, answer.stderr
    seen = answer.stdout.split("\n")[:2]
    assert all(line.endswith("reactive_autoscaler.zip/autoscaler/core/step.py None") for line in seen), seen
    assert "look" in cluster.applications()
