"""The Spark session of the pipeline: embedded by default, on any cluster unchanged."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from autoscaler.java import find_java

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # A batch for Python is bounded in rows and in bytes: memory does not depend on how wide rows are.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
}


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end unless there was one before.

    Args:
        name: what Spark's UI calls it.
        master: `local[*]`, `spark://host:7077`, `k8s://...`; None: what spark-submit or the environment says, else
            `local[*]`.
        remote: a Spark Connect server, like `sc://host:15002`, instead of a master.
        settings: Spark properties on top of ours.

    Raises:
        EdgeError: there is no Java for an embedded Spark.
    """
    before = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName(name)
    chosen = {**SETTINGS, **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="autoscaler-java-") as directory:
        if remote is not None:
            builder = builder.remote(remote)
        elif before is None:
            os.environ["JAVA_HOME"] = str(find_java(Path(directory)))
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if master is not None:
                builder = builder.master(master)
            elif "SPARK_ENV_LOADED" not in os.environ and "MASTER" not in os.environ:
                builder = builder.master("local[*]")
            chosen = {"spark.driver.memory": "1500m", **chosen}
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            if before is None:
                spark.stop()
