"""A local Spark session for tests of the modules that a driver imports."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from tests.e2e.test_local_target import missing


@contextmanager
def local_spark(directory: Path, slots: int, conf: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A session of two shuffle partitions, without a UI; its files are in the directory."""
    if importlib.util.find_spec("pyspark") is None:
        missing("pyspark is not installed (extra spark)")
    try:
        java = find_java(directory / "java")
    except JavaNotFoundError as error:
        missing(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java))
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

        settings = {
            # The settings with which a process starts its Java are defaults of all its sessions.
            "spark.scheduler.mode": "FIFO",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        builder = SparkSession.builder.master(f"local[{slots}]").config(map=settings | dict(conf or {}))
        session = builder.getOrCreate()
        yield session
        session.stop()
