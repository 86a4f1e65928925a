"""The Spark session of the commands: embedded by default, or on any cluster.

An embedded Spark listens on the loopback interface only. It has no UI unless `spark.ui.enabled=true` is set, because
the UI has no authentication. The driver of a cluster uses the settings of the user's Spark.

Workers of a cluster need Python with the packages of PySpark (pyarrow, pandas). They need neither this project nor
plug-ins, because their code is sent to the workers when the session opens.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import urllib.parse
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from autoscaler import plugins
from autoscaler.clients.java_home import find_java, without_incubator
from autoscaler.plugins import Kind
from autoscaler.ports import EdgeError

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Bound the batches for Python in rows and in bytes, so that memory does not depend on the width of rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
    # Tasks share 1 GB of heap. A partition of 64 MB of shuffle data does not fit into half of it, and would spill.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Let Spark merge partitions of cached data: 200 nearly empty partitions cost a Python worker 30 ms each.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    # The default type of times is INT96, which has no statistics in a file.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # List thousands of hourly files with a few tasks, not with one task each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}

_LITTLE: Mapping[str, str] = {
    # With one partition there is no shuffle, and nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # By default Spark runs a job to list more than 32 files, each time that they are read.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}
LITTLE_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java options for work on little data, which ends before Java's second compiler pays off. With the first compiler
alone, Java reserves a fifth of the usual code cache, and would have to discard and recompile Spark's code."""

PACKAGES = ("autoscaler", "autoscaler_policies")
"""The packages that are sent to the workers of a cluster."""

LOOPBACK = "127.0.0.1"
EMBEDDED: Mapping[str, str] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
}

CONNECT_PORT = 15002
CONNECT_S = 10.0
"""Time-out in seconds to connect to a Spark Connect server."""

_WHERE_DEFINED = "spark.python.sql.dataFrameDebugging.enabled"
"""Adds the Python line to errors, at the cost of two more Java calls per column: half a second per profile. The setting
cannot be changed once Spark runs."""
_OPTIONS = "spark.driver.extraJavaOptions"
_COLLECTOR = "-XX:-UseG1GC -XX:+UseParallelGC"
"""Throughput matters here, not pauses: G1, the default collector, takes an eighth more CPU. The option disables G1 by
name in case a spark-defaults.conf enables it, because Java does not start with two collectors."""
_LATER = 30
"""Factor on Java's compilation thresholds. By default Java optimizes most of Spark's planner, logging and start-up,
which takes a sixth of the CPU of a first profile. With this factor, code for each row still reaches the thresholds
within seconds; a factor of 100 is too late for 500,000 rows."""
_COMPILED = " ".join(
    [
        # Spark generates one long method for wide rows. Without this option Java would only interpret it.
        "-XX:-DontCompileHugeMethods",
        *(
            f"-XX:Tier4{name}Threshold={default * _LATER}"
            for name, default in {"Invocation": 5000, "MinInvocation": 600, "Compile": 15000, "BackEdge": 40000}.items()
        ),
    ]
)
_RESOLVED: Mapping[str, tuple[str, ...]] = {
    "functions": ("col", "lit"),
    "org.apache.spark.sql.functions": ("col", "lit"),
    "PythonUtils": ("toSeq",),
}
"""Java classes and methods that PySpark looks up for each column. It tries the names in several packages, and for most
of them Java searches all of Spark's jars."""
_CHOSEN = re.compile(r"-XX:\+Use\w*GC\b")
_DEFAULTS = "spark.driver.defaultJavaOptions"
_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Environment variables with further Java options, which may choose a collector."""

LOCAL = re.compile(r"local(\[.*\])?")
"""Masters that run all tasks in the session's process."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable that spark-submit sets for the Python process that it starts."""


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a Spark session, and stop it at the end unless it existed before.

    Args:
        name: the application's name in Spark's UI.
        master: `local[*]`, `spark://host:7077`, `k8s://...`; None: the master of spark-submit or of the environment, or
            else `local[*]`.
        remote: a Spark Connect server, like `sc://host:15002`, instead of a master; None: SPARK_REMOTE, unless there is
            a master.
        settings: further Spark properties, which override the properties of this module.

    Raises:
        EdgeError: there is no Java for an embedded Spark, or no server at `remote`.
    """
    before = SparkSession.getActiveSession()
    if remote is None and master is None:
        remote = os.environ.get("SPARK_REMOTE")
    builder = SparkSession.builder.appName(name)
    chosen = {**SETTINGS, **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="autoscaler-spark-") as made:
        directory = Path(made)
        if remote is not None:
            _reach(remote)
            builder = builder.remote(remote)
            # The server has these settings: Spark would warn for each that it cannot be changed.
            chosen = {key: value for key, value in chosen.items() if not key.startswith(("spark.driver.", "spark.ui."))}
        elif before is None:
            if _SUBMITTED not in os.environ:
                java = find_java(directory)
                master = master or chosen.get("spark.master") or os.environ.get("MASTER") or "local[*]"
                if LOCAL.fullmatch(master):
                    # Only for a local master: workers of a cluster use their own Python, PYSPARK_PYTHON or python3.
                    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
                    # If Spark's UI is enabled, it listens on this address.
                    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
                    java = without_incubator(java, directory / "java")
                os.environ["JAVA_HOME"] = str(java)
            if master is not None:
                builder = builder.master(master)
            embedded = EMBEDDED if LOCAL.fullmatch(master or _submitted_master()) else {}
            chosen = {"spark.driver.memory": "1g", _WHERE_DEFINED: "false", **embedded, **chosen}
            chosen[_OPTIONS] = _with_ours(chosen.get(_OPTIONS, ""), chosen.get(_DEFAULTS, ""))
            _start_java({**chosen, "spark.app.name": name, **({} if master is None else {"spark.master": master})})
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            if before is None:
                _resolve(spark, remote)
                _send(spark, directory, remote)
            yield spark
        finally:
            if before is None:
                with suppress(OSError, Py4JError):  # if Spark's Java has ended, report the first error, not this one
                    spark.stop()


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, and handle SIGINT and SIGTERM only afterwards.

    If PySpark is interrupted earlier, it removes the directory in which Java writes its address. Java then fails to
    write it, and its process never ends.
    """
    received: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda one, _: received.append(one))
    try:
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))  # noqa: SLF001 - the only way
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in received:
        signal.raise_signal(one)


@contextmanager
def little_data(spark: SparkSession, chosen: Collection[str] = ()) -> Iterator[None]:
    """Make Spark plan queries for little data on this machine; settings in `chosen` stay unchanged."""
    ours = {name: value for name, value in _LITTLE.items() if name not in chosen}
    before = {name: spark.conf.get(name, None) for name in ours}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        # If Spark's Java or server has ended, report the first error, not this one.
        with suppress(OSError, Py4JError, PySparkException):
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)


def _resolve(spark: SparkSession, remote: str | None) -> None:
    """Look up Java names once that PySpark would otherwise look up for each column."""
    if remote is not None:
        return
    jvm = spark._jvm  # noqa: SLF001 - there is no public way
    for name, members in _RESOLVED.items():
        found = getattr(jvm, name)
        for member in members:
            setattr(found, member, getattr(found, member))
        setattr(jvm, name, found)


def _submitted_master() -> str:
    """The master that the user passed to spark-submit."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - the only way to the configuration before there is a session
    return SparkConf().get("spark.master", "") or ""


def _with_ours(options: str, defaults: str) -> str:
    """Put our Java options before the given ones; without our collector if the user has chosen one."""
    chosen = " ".join([options, defaults, *(os.environ.get(name, "") for name in _OF_JAVA)])
    return f"{_COMPILED} {options}" if _CHOSEN.search(chosen) else f"{_COLLECTOR} {_COMPILED} {options}"


def _reach(remote: str) -> None:
    """Check that a server listens, because Spark Connect would retry for ten minutes without a message."""
    try:
        url = urllib.parse.urlsplit(remote)
        host, port = url.hostname, url.port or CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if not remote.startswith("sc://") or not host:
        raise EdgeError(f"{remote}: is not the address of a Spark Connect server, expected one like sc://host:15002")
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        raise EdgeError(f"{remote}: no Spark Connect server can be reached: {error.strerror or error}") from error


def _send(spark: SparkSession, directory: Path, remote: str | None) -> None:
    """Send the code of this project and of policies to the session's Python workers if they run on other machines."""
    if remote is None and LOCAL.fullmatch(spark.sparkContext.master):
        return
    packed = pack(directory)
    if packed is None:
        return
    if remote is None:
        spark.sparkContext.addPyFile(str(packed))
    else:
        spark.addArtifacts(str(packed), pyfile=True)


def pack(directory: Path) -> Path | None:
    """Pack the code of this project and of all installed policies as a zip file from which Python can import.

    Returns:
        The file; None if this code itself runs from such a file, which spark-submit has sent (`--py-files`).
    """
    file = directory / "reactive_autoscaler.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in dict.fromkeys([*PACKAGES, *plugins.modules(Kind.POLICY)]):
            found = importlib.util.find_spec(name)
            places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
            if found and found.origin and not places and Path(found.origin).suffix == ".py":
                packed.write(found.origin, f"{name}.py")
            for root in places:
                for module in sorted(root.rglob("*.py")):
                    packed.write(module, Path(name) / module.relative_to(root))
        return file if packed.namelist() else None
