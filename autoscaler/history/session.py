"""The Spark session of the commands: embedded by default, or on any cluster.

An embedded Spark listens on the loopback interface only, and has no UI unless `spark.ui.enabled=true` asks for it: that
has no authentication. A cluster's driver is set up as its user's Spark is.

Workers of a cluster need Python with the packages of PySpark (pyarrow, pandas), but neither this project nor plug-ins:
their code is sent to them when the session opens.
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
    # Batches for Python are bounded in rows and in bytes: memory does not depend on the width of rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
    # Tasks share 1 GB of heap: a partition of 64 MB of shuffle data does not fit into half of it, and spills.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Cached data may have few partitions: 200 nearly empty ones cost a Python worker 30 ms each.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    # Else times are INT96, which have no statistics in a file.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Thousands of hourly files are listed by a few tasks, not by one each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}

_LITTLE: Mapping[str, str] = {
    # Steps of one partition need no shuffle between them, and leave nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    # More than 32 files would be listed by a job, each time that they are read.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}
LITTLE_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java options for work on little data: it is done before Java's second compiler has earned what it costs. With the
first one alone Java reserves a fifth of the usual room for code: Spark's would be thrown out and compiled again."""

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
"""Seconds to connect to a server."""

_WHERE_DEFINED = "spark.python.sql.dataFrameDebugging.enabled"
"""Adds the Python line to errors, at two more Java calls per column: half a second of each profile. Fixed once "
"Spark runs."""
_OPTIONS = "spark.driver.extraJavaOptions"
_COLLECTOR = "-XX:-UseG1GC -XX:+UseParallelGC"
"""Throughput matters here, not pauses: G1, the default collector, takes an eighth more CPU. It is switched off by name,
in case a spark-defaults.conf asks for it: Java does not start with two collectors."""
_LATER = 30
"""By default Java optimizes most of Spark's planner, logging and start-up: a sixth of the CPU of a first profile. Code
for each row reaches thresholds this many times higher within seconds; 100 times is too late for 500,000."""
_COMPILED = " ".join(
    [
        # Spark generates one long method for wide rows, which Java would interpret.
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
"""Java classes and methods that PySpark looks up for each column, as names in several packages: Java searches all jars
of Spark for most of these."""
_CHOSEN = re.compile(r"-XX:\+Use\w*GC\b")
_DEFAULTS = "spark.driver.defaultJavaOptions"
_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Other places of Java options, which may choose a collector."""

LOCAL = re.compile(r"local(\[.*\])?")
"""Masters that run all tasks in the session's process."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python that it starts."""


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end unless there was one before.

    Args:
        name: the application's name in Spark's UI.
        master: `local[*]`, `spark://host:7077`, `k8s://...`; None: that of spark-submit or of the environment, else
            `local[*]`.
        remote: a Spark Connect server, like `sc://host:15002`, instead of a master; None: SPARK_REMOTE, if there is no
            master either.
        settings: further Spark properties, which override ours.

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
            # These are the server's: Spark would warn about each that it cannot be changed.
            chosen = {key: value for key, value in chosen.items() if not key.startswith(("spark.driver.", "spark.ui."))}
        elif before is None:
            if _SUBMITTED not in os.environ:
                java = find_java(directory)
                master = master or chosen.get("spark.master") or os.environ.get("MASTER") or "local[*]"
                if LOCAL.fullmatch(master):
                    # Workers of a cluster have their own Python: PYSPARK_PYTHON, else python3.
                    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
                    # Spark's UI, where it is asked for, listens on the address that is named here.
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
                with suppress(OSError, Py4JError):  # if its Java has ended, the first error is reported, not this one
                    spark.stop()


def _start_java(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, and act on SIGINT and SIGTERM only then.

    PySpark interrupted before removes the directory in which Java leaves its address. Without that Java fails and runs
    on, without end.
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
    """Have Spark plan queries for little data on this machine, except for settings that are chosen."""
    ours = {name: value for name, value in _LITTLE.items() if name not in chosen}
    before = {name: spark.conf.get(name, None) for name in ours}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        # If its Java or its server has ended, the first error is reported, not this one.
        with suppress(OSError, Py4JError, PySparkException):
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)


def _resolve(spark: SparkSession, remote: str | None) -> None:
    """Look up once what PySpark would look up for each column."""
    if remote is not None:
        return
    jvm = spark._jvm  # noqa: SLF001 - there is no public way
    for name, members in _RESOLVED.items():
        found = getattr(jvm, name)
        for member in members:
            setattr(found, member, getattr(found, member))
        setattr(jvm, name, found)


def _submitted_master() -> str:
    """The master that spark-submit was given."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - the only way to its configuration before there is a session
    return SparkConf().get("spark.master", "") or ""


def _with_ours(options: str, defaults: str) -> str:
    """Java options: ours before the given ones, without a collector if one was chosen."""
    chosen = " ".join([options, defaults, *(os.environ.get(name, "") for name in _OF_JAVA)])
    return f"{_COMPILED} {options}" if _CHOSEN.search(chosen) else f"{_COLLECTOR} {_COMPILED} {options}"


def _reach(remote: str) -> None:
    """Check that a server listens: Spark Connect tries for ten minutes without a message."""
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
        raise EdgeError(f"{remote}: no Spark Connect server can be reached there: {error.strerror or error}") from error


def _send(spark: SparkSession, directory: Path, remote: str | None) -> None:
    """Send our code and that of policies to the session's Python workers, if they run on other machines."""
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
    """The code of this project, and of all installed policies, as a zip file that Python can import from.

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
