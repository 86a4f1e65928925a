"""The cost of `ReactiveJob` in its driver: processor time and memory, beside the same job without it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autoscaler.injob import reactive_conf
from autoscaler.targets.local.workers import spark_home
from tests.e2e.test_local_target import Cluster, get, java, until

__all__ = ["java"]

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 9 minutes"
    ),
]

SETTLE = float(os.environ.get("AUTOSCALER_BENCH_SETTLE", "150"))
"""Seconds until the JVMs have compiled most of what they do each second."""

SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "300"))
"""Seconds that are measured: over 120 the difference of two JVMs that do the same varies by some 0.6 % of a core."""

# A batch fills 9 MB of each driver's heap, most of it by arrays of more than half a region of G1, such as the blocks of
# a broadcast. By default G1 shrinks the heap to about twice the live data; if live data takes more than 45 % of it,
# each such array starts a marking of the whole heap, together 1 to 2 % of a core. It is random which driver gets into
# this state, and it does not depend on `ReactiveJob`, which fills 0.05 MB a second.
HEAP = "-Xms640m"
"""Options of the drivers' JVMs: a heap of one size."""

# A batch each second with a few rows and no state: this shows best what a driver does besides.
JOB = """
import json, sys
from pyspark.sql import SparkSession
import pyspark.sql.streaming

settings = json.loads(sys.argv[1])
builder = SparkSession.builder.master(settings["master"]).appName(settings["kind"])
spark = builder.config(map=settings["spark"]).getOrCreate()
spark.sparkContext.setLogLevel("WARN")

def build(spark):
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).option("numPartitions", 2).load()
    writer = rows.writeStream.format("noop").queryName("rows").trigger(processingTime="1 second")
    return writer.option("checkpointLocation", settings["checkpoint"]).start()

if settings["kind"].startswith("reactive"):
    from autoscaler.injob.reactive import ReactiveJob
    ReactiveJob(spark, build, rest="127.0.0.1:0" if "REST" in settings["kind"] else None).run()
else:
    build(spark).awaitTermination()
"""

KINDS = ("plain", "settings", "reactive", "reactive, REST")
"""Plain Spark; with the settings of `reactive_conf` only; under `ReactiveJob`, without and with its REST API."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a driver: shares of one core, and bytes of Python's memory, total and unshared."""

    python: float
    jvm: float
    resident: int
    own: int


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measured(drivers: dict[str, psutil.Process]) -> dict[str, Cost]:
    """The cost of each driver from now on."""
    pairs = {kind: (driver, *driver.children()) for kind, driver in drivers.items()}
    begun = time.monotonic()
    before = {kind: [used(process) for process in pair] for kind, pair in pairs.items()}
    time.sleep(SPAN)
    after = {kind: [used(process) for process in pair] for kind, pair in pairs.items()}
    span = time.monotonic() - begun
    found = {}
    for kind, (driver, *jvm) in pairs.items():
        assert [process.name() for process in jvm] == ["java"]
        python, java = ((now - then) / span for now, then in zip(after[kind], before[kind], strict=True))
        memory = driver.memory_full_info()
        found[kind] = Cost(python=python, jvm=java, resident=memory.rss, own=memory.uss)
    return found


def test_a_reactive_job_costs_little_of_its_driver(tmp_path: Path, java: Path) -> None:
    cluster = Cluster(tmp_path, java)
    try:
        worker = ["--host", "127.0.0.1", "--cores", str(2 * len(KINDS)), "--memory", "4g", "--webui-port", "0"]
        start = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", *worker]
        master = f"spark://127.0.0.1:{cluster.port}"
        cluster.processes.start("worker", [*start, "-d", str(tmp_path / "work"), master], cluster.environment)
        root = Path(__file__).parents[2]
        for kind in KINDS:
            settings = {
                "kind": kind,
                "master": master,
                "checkpoint": str(tmp_path / kind),
                "spark": {
                    **({} if kind == "plain" else reactive_conf()),
                    "spark.cores.max": "2",
                    "spark.executor.cores": "2",
                    "spark.executor.memory": "640m",
                    "spark.driver.memory": "640m",
                    "spark.driver.extraJavaOptions": HEAP,
                    "spark.driver.host": "127.0.0.1",
                    "spark.ui.port": "0",
                },
            }
            argv = [sys.executable, "-c", JOB, json.dumps(settings)]
            cluster.processes.start(kind, argv, {**cluster.environment, "PYTHONPATH": str(root)})
        until(lambda: all(len(list((tmp_path / kind / "commits").glob("[0-9]*"))) > 3 for kind in KINDS), 400)
        time.sleep(SETTLE)
        found = measured({kind: psutil.Process(cluster.processes.pid(kind)) for kind in KINDS})
        cluster.processes.check()
        assert len(get(f"http://127.0.0.1:{cluster.ui}/json/")["activeapps"]) == len(KINDS)
    finally:
        cluster.processes.clear()
    lines = [f"\n{SPAN:g} s of a batch each second, after {SETTLE:g} s: shares of one core, and memory of Python"]
    lines += [
        f"  {kind:<15} Python {one.python:6.2%}   JVM {one.jvm:6.2%}   resident {one.resident / 1e6:6.1f} MB, "
        f"its own {one.own / 1e6:6.1f} MB"
        for kind, one in found.items()
    ]
    print("\n".join(lines))  # noqa: T201 - the figures are the point of a benchmark
    base, full = found["settings"], found["reactive, REST"]
    assert full.python + full.jvm - base.python - base.jvm < 0.03
    assert full.own - base.own < 40e6
