"""Makes or profiles the history of a fleet in a process of its own, as a JVM has one master; prints what it took.

    python -m tests.benchmarks.pipeline_run MASTER write DATASET:CLUSTERS:DAYS:SKEWED...
    python -m tests.benchmarks.pipeline_run MASTER profile

Prints lines of JSON: how many observations each dataset has; for each dataset whose name comes on standard input what
its profiles took, and the most memory of the driver so far in bytes. Spark properties are taken from
AUTOSCALER_BENCH_CONF, like `spark.driver.memory=1g spark.sql.shuffle.partitions=8`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from autoscaler.history.dataset import open_dataset
from autoscaler.history.profile_job import fetched, profiles, stored
from autoscaler.history.session import session
from tests.history.fleet import Fleet, write

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}
MADE_AT = datetime(2026, 2, 1, tzinfo=UTC)


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the maximum memory of this process and its JVM, without Python workers."""
    me = psutil.Process()
    processes = [me, *(child for child in me.children(recursive=True) if child.name() == "java")]
    most, stop = 0, threading.Event()

    def poll() -> None:
        nonlocal most
        while not stop.wait(0.25):
            most = max(most, sum(process.memory_info().rss for process in processes))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield lambda: most
    finally:
        stop.set()
        thread.join()


def profiled(spark: SparkSession, dataset: str) -> dict[str, Any]:
    """Profile a dataset like the command, but without writing files."""
    begin = time.perf_counter()
    # Only a digest of each: the command does not keep them all either.
    with stored(profiles(spark, open_dataset(dataset), made_at=MADE_AT)) as rows:
        seen = [hashlib.sha256(row.profile.encode()).digest() for row in fetched(rows)]
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "profiles": len(seen),
        "digest": hashlib.sha256(b"".join(sorted(seen))).hexdigest(),
    }


def written(spark: SparkSession, dataset: str, clusters: str, days: str, skewed: str) -> int:
    """Write a dataset; returns the number of observations."""
    fleet = Fleet(clusters=int(clusters), days=int(days), skewed=skewed == "skewed")
    return write(spark, fleet, Path(dataset))


def main(master: str, what: str, *arguments: str) -> None:
    """Do what the arguments say."""
    given = dict(pair.split("=", 1) for pair in os.environ.get("AUTOSCALER_BENCH_CONF", "").split())
    with session("benchmark", master=master, settings=SETTINGS | given) as spark:
        if what == "write":
            _tell([written(spark, *argument.split(":")) for argument in arguments])
            return
        with watched() as most:
            for dataset in sys.stdin:
                _tell({**profiled(spark, dataset.rstrip("\n")), "memory": most()})


def _tell(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - read by the caller


if __name__ == "__main__":
    main(*sys.argv[1:])
