"""The Spark session of the pipeline: embedded by default, on any cluster unchanged.

Workers of a cluster need Python with PySpark's own packages (pyarrow, pandas) and nothing of this project: its code is
sent to them when the session opens.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
import tempfile
import urllib.parse
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from autoscaler.clients.java_home import find_java
from autoscaler.ports import EdgeError

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # A batch for Python is bounded in rows and in bytes: memory does not depend on how wide rows are.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
    # Tasks share 1 GB of heap: what is 64 MB when it is sent does not fit into what one of two has, and goes to disk.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # What is kept may have as few partitions as it fills: 200 of them, most with next to nothing, cost a Python worker
    # 30 ms each.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    # Else times are INT96, of which a file does not tell the least and the greatest.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Thousands of hourly files are looked at by a few tasks, not by one each.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}

PACKAGES = ("autoscaler", "autoscaler_policies")
"""What is sent to the workers of a cluster."""

CONNECT_PORT = 15002
CONNECT_S = 10.0
"""A server that does not answer within so many seconds is not there."""

_WHERE_DEFINED = "spark.python.sql.dataFrameDebugging.enabled"
"""Each column that is defined costs Java two calls more, half a second of each profile, so that errors tell which line
of ours it is of. It cannot be changed once Spark runs."""
_OPTIONS = "spark.driver.extraJavaOptions"
_COLLECTOR = "-XX:-UseG1GC -XX:+UseParallelGC"
"""Nobody waits for this JVM, so it is the whole that counts: the default collector takes an eighth more of it. That one
is switched off by name, as a spark-defaults.conf, not seen here, may ask for it: with two Java does not start."""
_LATER = 10
"""Java compiles what has run some thousand times, in another thread: most of Spark's planner, of its logging and of its
start, which took a sixth of all that the cores of a first profile did. What is done for each row has run so many times
as often within a second."""
_COMPILED = " ".join(
    [
        # What Spark generates for wide rows is one long method, which Java would interpret.
        "-XX:-DontCompileHugeMethods",
        *(
            f"-XX:Tier4{name}Threshold={usual * _LATER}"
            for name, usual in {"Invocation": 5000, "MinInvocation": 600, "Compile": 15000, "BackEdge": 40000}.items()
        ),
    ]
)
_CHOSEN = re.compile(r"-XX:\+Use\w*GC\b")
_DEFAULTS = "spark.driver.defaultJavaOptions"
_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where else a collector can be chosen."""

LOCAL = re.compile(r"local(\[.*\])?")
"""Masters that do all work in the session's own process."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""What spark-submit sets for the Python that it starts."""


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end unless there was one before.

    Args:
        name: what Spark's UI calls it.
        master: `local[*]`, `spark://host:7077`, `k8s://...`; None: what spark-submit or the environment says, else
            `local[*]`.
        remote: a Spark Connect server, like `sc://host:15002`, instead of a master; None: SPARK_REMOTE where there is
            no master either.
        settings: Spark properties on top of ours.

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
            # They are the server's: it would be said of each that it cannot be changed.
            chosen = {key: value for key, value in chosen.items() if not key.startswith(("spark.driver.", "spark.ui."))}
        elif before is None:
            if _SUBMITTED not in os.environ:
                os.environ["JAVA_HOME"] = str(find_java(directory))
                master = master or chosen.get("spark.master") or os.environ.get("MASTER") or "local[*]"
                if LOCAL.fullmatch(master):
                    # Workers elsewhere have their own Python: PYSPARK_PYTHON tells which, else it is python3.
                    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if master is not None:
                builder = builder.master(master)
            chosen = {"spark.driver.memory": "1g", _WHERE_DEFINED: "false", **chosen}
            chosen[_OPTIONS] = _with_ours(chosen.get(_OPTIONS, ""), chosen.get(_DEFAULTS, ""))
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            if before is None:
                _send(spark, directory, remote)
            yield spark
        finally:
            if before is None:
                with suppress(OSError, Py4JError):  # if its Java is gone: that is told, not that it cannot be stopped
                    spark.stop()


def _with_ours(options: str, defaults: str) -> str:
    """Options of Java: ours before those, without a collector where one was chosen."""
    told = " ".join([options, defaults, *(os.environ.get(name, "") for name in _OF_JAVA)])
    return f"{_COMPILED} {options}" if _CHOSEN.search(told) else f"{_COLLECTOR} {_COMPILED} {options}"


def _reach(remote: str) -> None:
    """Make sure that something listens there: Spark Connect itself tries for ten minutes without a word."""
    try:
        url = urllib.parse.urlsplit(remote)
        host, port = url.hostname, url.port or CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if not remote.startswith("sc://") or not host:
        raise EdgeError(f"{remote}: is no address of a Spark Connect server, expected one like sc://host:15002")
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        raise EdgeError(f"{remote}: no Spark Connect server can be reached there: {error.strerror or error}") from error


def _send(spark: SparkSession, directory: Path, remote: str | None) -> None:
    """Send the code of this project to where the session's Python workers run, if that is elsewhere."""
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
    """The code of this project as a zip file that Python can import from.

    Returns:
        The file; None where this runs from such a file itself, which was then sent with it (`--py-files`).
    """
    file = directory / "reactive_autoscaler.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in PACKAGES:
            found = importlib.util.find_spec(name)
            for place in (found and found.submodule_search_locations) or ():
                root = Path(place)
                for module in sorted(root.rglob("*.py")):
                    packed.write(module, Path(name) / module.relative_to(root))
        return file if packed.namelist() else None
