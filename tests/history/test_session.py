"""The session of the pipeline."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from autoscaler.history.dataset import open_dataset
from autoscaler.history.session import little_data

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys
from autoscaler.history.session import session
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "600m"}
settings |= dict(one.split("=", 1) for one in sys.argv[1:])
with session("test", master="local[1]", settings=settings) as spark:
    beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    print(beans[0].getName(), spark._jvm.java.lang.System.getProperty("given", "nothing"))
"""
EXTRA, DEFAULT = "spark.driver.extraJavaOptions=-Dgiven=this", "spark.driver.defaultJavaOptions="
SERIAL = "-XX:+UseSerialGC"


@pytest.mark.parametrize(
    ("properties", "variables", "defaults", "output"),
    [
        ([EXTRA], {}, "", "PS this"),
        ([f"{EXTRA} {SERIAL}"], {}, "", "Copy this"),
        ([EXTRA, DEFAULT + SERIAL], {}, "", "Copy this"),
        ([], {"JAVA_TOOL_OPTIONS": SERIAL}, "", "Copy nothing"),
        ([], {"SPARK_SUBMIT_OPTS": SERIAL}, "", "Copy nothing"),
        ([], {}, "spark.driver.defaultJavaOptions -XX:+UseG1GC", "PS nothing"),
    ],
)
def test_a_chosen_collector_does_not_prevent_java_from_starting(
    properties: list[str], variables: dict[str, str], defaults: str, output: str, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(defaults + "\n")
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *properties],
        env={**os.environ, **variables, "SPARK_CONF_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    name, given = answer.stdout.split()[0], answer.stdout.split()[-1]
    assert f"{name} {given}" == output


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """The addresses on which a process and its children listen."""
    tree = [process, *process.children(recursive=True)]
    found = {one.laddr for each in tree for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN}
    return sorted((one.ip.removeprefix("::ffff:"), one.port) for one in found)


def is_ui(port: int) -> bool:
    """Whether Spark's UI answers on a port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/jobs/", timeout=10) as answer:
            return b"Spark" in answer.read()
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(("options", "uis"), [((), 0), (("--conf", "spark.ui.enabled=true"), 1)])
def test_a_local_command_listens_only_on_loopback_without_a_ui_and_java_gives_no_warnings(
    options: tuple[str, ...], uis: int, tmp_path: Path
) -> None:
    (tmp_path / "history").mkdir()
    command = ("history", "follow", str(tmp_path / "history"), str(tmp_path / "dataset"), "--master", "local[1]")
    options = ("--explain", *options)  # it starts Spark
    with subprocess.Popen(
        [sys.executable, "-m", "autoscaler", *command, *options],
        env={name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline().startswith("Following ")
            places = listening(psutil.Process(process.pid))
            assert sum(is_ui(port) for _, port in places) == uis
        finally:
            process.terminate()
        # Other servers fail on the request that a UI answers.
        assert "incubator" not in process.stderr.read()
    # Py4J's, the driver's and the block manager's ports, and Python's for the batches.
    assert len(places) >= 3 + uis
    assert {address for address, _ in places} == {"127.0.0.1"}


@pytest.mark.parametrize("when", ["Java starts", "a query runs"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_leaves_neither_java_nor_files_and_logs_nothing(
    when: str, number: signal.Signals, tmp_path: Path
) -> None:
    open_dataset(tmp_path / "dataset", make=True)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    asked = "SELECT count(a.id + b.id) FROM range(1000000) a, range(1000000) b"
    with subprocess.Popen(
        [sys.executable, "-m", "autoscaler", "history", "query", str(tmp_path / "dataset"), asked, "--explain"],
        env={**os.environ, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        started = list[psutil.Process]()
        while [each.name() for each in started] != ["java"]:
            assert process.poll() is None
            started = psutil.Process(process.pid).children()
        if when == "a query runs":
            assert process.stderr.readline() == "The plan of the query:\n"
            time.sleep(1)  # the query begins after its plan
        process.send_signal(number)
        try:
            code = process.wait(30)
        finally:
            process.kill()
        assert code == 130
        _, running = psutil.wait_procs(started, 30)
        for each in running:
            each.kill()
        assert not running
        logged = process.stderr.read()
    assert "Traceback" not in logged
    assert list(temporary.iterdir()) == []


def test_settings_for_little_data_are_restored_afterwards(spark: SparkSession) -> None:
    names = ("spark.sql.shuffle.partitions", "spark.sql.leafNodeDefaultParallelism", "spark.sql.adaptive.enabled")
    before = [spark.conf.get(name, None) for name in names]
    assert before[:2] != ["1", "1"]
    with little_data(spark, {"spark.sql.adaptive.enabled"}):
        assert [spark.conf.get(name, None) for name in names] == ["1", "1", before[2]]
        rows = spark.range(9).selectExpr("id % 3 AS of").groupBy("of").count().orderBy("of")
        assert rows.rdd.getNumPartitions() == 1
    assert [spark.conf.get(name, None) for name in names] == before


def test_a_column_needs_one_call_of_java(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    F.col("first")  # which reads settings of the session
    client = spark._jvm._gateway_client
    send, sent = client.send_command, []

    def record(text: str, *more: object) -> object:
        sent.append(text)
        return send(text, *more)

    monkeypatch.setattr(client, "send_command", record)
    F.col("lag")
    # Objects that Python no longer needs are released at any time.
    assert [text[0] for text in sent if not text.startswith("m\n")] == ["c"]
