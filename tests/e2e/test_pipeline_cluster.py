"""The pipeline on clusters: a standalone one, by --master and by spark-submit, and a Spark Connect server.

The executors have a separate Python with PySpark's packages and nothing of this project.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from autoscaler.targets.local.workers import spark_home
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
        """Run a command of the CLI with a local driver."""
        environment = self.environment | {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        return subprocess.run(
            [*command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,  # on a busy machine it may have almost no CPU time
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def applications(self) -> list[str]:
        """Names of all applications of the Master so far."""
        state = get(f"http://127.0.0.1:{self.ui}/json/")
        return [app["name"] for app in [*state["activeapps"], *state["completedapps"]]]


def bare_python(directory: Path) -> Path:
    """A Python with the packages that PySpark needs on a worker, and no other package."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    here = Path(importlib.util.find_spec("pyarrow").origin).parent.parent  # type: ignore[union-attr, arg-type]
    for name in BARE:
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    python = directory / "python3"
    # -S: no site-packages. The paths that Spark adds remain.
    start = f'PYTHONPATH="{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec {sys._base_executable} -S "$@"'  # type: ignore[attr-defined]
    python.write_text(f"#!/bin/sh\n{start}\n")
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of three clusters as recorded by two daemons, with an invalid line."""
    from tests.history import fleet  # noqa: PLC0415 - it needs pyspark

    directory = tmp_path_factory.mktemp("traces")
    for part in fleet.Fleet(clusters=3, days=1, together=2).parts():
        fleet._write_traces(part, directory / f"daemon-{part.first}")
    with (directory / "daemon-0" / "2026-01-05T03.jsonl").open("a") as file:
        file.write("{broken\n")
    return directory


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output and the files of an import and a profile."""

    imported: dict[str, Any]
    profiles: list[dict[str, Any]]


def piped(cluster: Cluster, start: Sequence[str], options: Sequence[str], traces: Path, work: Path) -> Outcome:
    """Import and profile."""

    def run(*command: str) -> Any:
        answer = cluster.run(*start, *command, "--json", *options)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    dataset, out = str(work / "dataset"), work / "profiles"
    sources = sorted(map(str, traces.iterdir()))
    imported = run("history", "import", *sources, dataset)
    run("profile", dataset, "--out", str(out))
    profiles = [json.loads(file.read_text()) for file in sorted(out.iterdir())]
    return Outcome(imported, [{**profile, "made_at": None} for profile in profiles])


SMALL = ("--conf", "spark.driver.memory=600m", "--conf", "spark.sql.shuffle.partitions=4")
ON_CLUSTER = (
    *("--conf", "spark.executor.memory=700m", "--conf", "spark.driver.host=127.0.0.1"),
    *("--conf", "spark.ui.enabled=false"),
)
COMMAND = (sys.executable, "-m", "autoscaler")


@pytest.fixture(scope="module")
def embedded(cluster: Cluster, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The result on this machine alone."""
    own = Cluster(cluster.master, cluster.ui, Path(sys.executable), cluster.environment)
    return piped(own, COMMAND, ("--master", "local[2]", *SMALL), traces, tmp_path_factory.mktemp("embedded"))


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
    from autoscaler.demo.processes import Processes, free_port  # noqa: PLC0415 - it needs pyspark
    from autoscaler.demo.spark.cluster import spark_variables  # noqa: PLC0415

    directory = tmp_path_factory.mktemp("cluster")
    processes = Processes(directory / "logs", directory / "pool")
    port, ui = free_port(), free_port()
    environment = spark_variables(java)
    started = str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy"
    try:
        address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
        processes.start("master", [started[0], f"{started[1]}.master.Master", *address], environment)
        for number in range(2):
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "-d", str(directory / f"work-{number}"))
            argv = [started[0], f"{started[1]}.worker.Worker", *options, f"spark://127.0.0.1:{port}"]
            processes.start(f"worker-{number}", argv, environment)
        until(lambda: len(get(f"http://127.0.0.1:{ui}/json/")["workers"]) == 2)
        yield Cluster(f"spark://127.0.0.1:{port}", ui, bare_python(directory / "bare"), environment)
    finally:
        processes.clear()


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
        from autoscaler.history.session import session

        def poll(batches):
            import importlib.util, autoscaler.core.step, autoscaler_policies.adaptive.policy
            for _ in batches:
                yield pyarrow.RecordBatch.from_pydict({{
                    "place": [autoscaler.core.step.__file__], "pydantic": [str(importlib.util.find_spec("pydantic"))]
                }})

        settings = {{"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}}
        with session("look", master="{cluster.master}", settings=settings) as spark:
            for row in spark.range(2, numPartitions=2).mapInArrow(poll, "place string, pydantic string").collect():
                print(row.place, row.pydantic)
        """,
    )
    answer = cluster.run(sys.executable, name)
    assert answer.returncode == 0, answer.stderr
    seen = answer.stdout.split("\n")[:2]
    assert all(line.endswith("reactive_autoscaler.zip/autoscaler/core/step.py None") for line in seen), seen
    assert "look" in cluster.applications()


def test_on_this_machine_everything_is_imported_and_profiled(embedded: Outcome) -> None:
    assert embedded.imported["added"]["decisions"] == embedded.imported["added"]["observations"] == 3 * 5760
    assert sum(embedded.imported["rejected"].values()) == 1
    assert [profile["cluster"] for profile in embedded.profiles] == ["job-0000", "job-0001", "job-0002"]
    assert all(profile["capacity"] for profile in embedded.profiles)


def test_a_standalone_cluster_gives_the_same_import_and_profile(
    cluster: Cluster, traces: Path, embedded: Outcome, tmp_path: Path
) -> None:
    options = ("--master", cluster.master, *SMALL, *ON_CLUSTER)
    assert piped(cluster, COMMAND, options, traces, tmp_path) == embedded
    assert "autoscaler profile" in cluster.applications()


def test_a_policy_of_a_plug_in_is_sent_to_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    from tests.history import written  # noqa: PLC0415 - it needs pyspark

    plugin = tmp_path / "plugin"
    information = plugin / "autoscaler_trend-1.0.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "docs" / "example-policy" / "autoscaler_trend.py", plugin)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: autoscaler-trend\nVersion: 1.0.0\n")
    (information / "entry_points.txt").write_text("[autoscaler.policies]\ntrend = autoscaler_trend:Trend\n")
    dataset = written.dataset(tmp_path / "dataset", ())
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    observed = [
        {"cluster": "shop", "at": begin + timedelta(minutes=minute), "arrivals": 500.0} for minute in range(0, 1440, 5)
    ]
    written.write(dataset, "observations", observed)
    config = tmp_path / "autoscaler.yaml"
    config.write_text(
        """
        sources: {prometheus: {type: prometheus, url: "http://127.0.0.1:9090"}}
        clusters:
          shop:
            target: {type: advice, size: 6}
            max: 10
            metrics: {arrivals: {source: prometheus, query: sum(arrivals)}}
            policies: {soon: {type: trend, per_replica: 100, metric: arrivals}}
        """
    )
    cluster.environment["PYTHONPATH"] = str(plugin)
    try:
        # So many trials are too many for the driver alone.
        command = (
            *COMMAND,
            "backtest",
            str(dataset),
            str(config),
            "--seeds",
            "4",
            "--json",
            "--master",
            cluster.master,
        )
        answer = cluster.run(*command, *SMALL, *ON_CLUSTER)
    finally:
        del cluster.environment["PYTHONPATH"]
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)["results"]
    assert [(row["cluster"], row["days"]) for row in rows] == 4 * [("shop", 1)]


def test_spark_submit_gives_the_same_import_and_profile(
    cluster: Cluster, traces: Path, embedded: Outcome, tmp_path: Path
) -> None:
    submit = str(spark_home() / "bin" / "spark-submit")
    file = str(Path(sys.modules["autoscaler"].__file__ or "").with_name("__main__.py"))
    start = (submit, "--master", cluster.master, *SMALL, *ON_CLUSTER, file)
    before = len(cluster.applications())
    assert piped(cluster, start, (), traces, tmp_path) == embedded
    assert len(cluster.applications()) == before + 2


@pytest.fixture(scope="module")
def connect(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, whose workers have the same bare Python."""
    if importlib.util.find_spec("grpc") is None:
        missing("Spark Connect is not installed (pyspark[connect])")
    from autoscaler.demo.processes import Processes, free_port  # noqa: PLC0415 - it needs pyspark

    directory = tmp_path_factory.mktemp("connect")
    processes = Processes(directory / "logs", directory / "pool")
    port = free_port()
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]")
    binding = (
        "--conf",
        "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
    )
    options = (
        "--driver-memory",
        "700m",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.sql.shuffle.partitions=4",
    )
    try:
        argv = [str(spark_home() / "bin" / "spark-submit"), *server, *binding, *options, "spark-internal"]
        # For Spark's scripts this server is a daemon, like the Master.
        own = {"PYSPARK_PYTHON": str(cluster.python), "SPARK_DAEMON_MEMORY": "700m"}
        processes.start("connect", argv, cluster.environment | own)

        def started() -> bool:
            processes.check()
            return "server started at" in processes.log("connect").read_text()

        until(started)
        yield f"sc://127.0.0.1:{port}"
    finally:
        processes.clear()


def test_a_spark_connect_server_gives_the_same_import_and_profile(
    connect: str, cluster: Cluster, traces: Path, embedded: Outcome, tmp_path: Path
) -> None:
    assert piped(cluster, COMMAND, ("--remote", connect), traces, tmp_path) == embedded


def test_a_missing_spark_connect_server_is_reported_at_once(cluster: Cluster, tmp_path: Path) -> None:
    # A missing dataset is reported before a server is contacted.
    (tmp_path / "autoscaler-history.json").write_text('{"format": "autoscaler-history", "version": 1}')
    answer = cluster.run(*COMMAND, "profile", str(tmp_path), "--out", str(tmp_path), "--remote", "sc://127.0.0.1:1")
    assert answer.returncode == 1
    assert "sc://127.0.0.1:1: no Spark Connect server can be reached: Connection refused" in answer.stderr
