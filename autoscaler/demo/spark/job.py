"""The demo's job: an ordinary PySpark Structured Streaming application, in its own process.

    python -m autoscaler.demo.spark.job SETTINGS.json

The job reads the virtual log, calls a slow service for each record (that is, it sleeps), and writes Parquet files. The
autoscaler needs one line in the job: `report(spark, ...)`. The scheduler inside the job is `ReactiveJob`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.demo.environment import PARTITIONS
from autoscaler.demo.spark.cluster import WORKER_TIMEOUT, Driver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


COST = 0.04
"""Seconds per record: at most 25 records/s per worker."""
BATCH = 3.0
"""Seconds that a full batch should take."""
MAX_BATCH = 1000
"""Maximum records of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Driver):
    """Settings of the job.

    The job's directory has `clock.json`, with the time when the load began. The job creates the directories `sink`, for
    Parquet files, and `checkpoint`, the file `ready` when it runs on a worker, and the file `timeline.json`, with the
    timeline of its scheduler, when it ends.

    Attributes:
        partitions: partitions of the log.
        batch: the time that a full batch should take, in seconds.
        cost: the time to process one record, in seconds.
    """

    partitions: int = PARTITIONS
    batch: float = BATCH
    cost: float = COST


def call_service(cost: float) -> Any:  # noqa: ANN401 - a function for mapInArrow
    """Create the function that processes records: each costs `cost` seconds of waiting."""

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - this runs in Spark's Python workers

        worker = os.environ.get("SPARK_LOCAL_IP", "")
        for batch in batches:
            done = []
            for _ in range(batch.num_rows):
                time.sleep(cost)
                done.append(time.time())
            columns = [*batch.columns, pa.array([worker] * len(done)), pa.array(done)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "worker", "at"])

    return call


def main(path: str) -> int:
    """Run the job until SIGTERM. Returns the exit code."""
    from autoscaler.demo.spark.source import VirtualLog  # noqa: PLC0415 - it belongs to an extra
    from autoscaler.injob import JobFailedError, ReactiveJob, reactive_conf, report  # noqa: PLC0415

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("autoscaler").setLevel(logging.INFO)
    settings = Settings(**json.loads(Path(path).read_text()))
    spark = settings.session(
        {
            **reactive_conf(heartbeat_timeout=WORKER_TIMEOUT),
            "spark.worker.timeout": str(WORKER_TIMEOUT),
            "spark.sql.shuffle.partitions": str(settings.partitions),
        }
    )
    report(spark, port=settings.report)
    spark.dataSource.register(VirtualLog)

    def build(spark: SparkSession) -> StreamingQuery:
        query = start_query(spark, settings)
        settings.place("ready").touch()
        return query

    # The demo is short, so slots count as stable after one second.
    job = ReactiveJob(spark, build, executing_stabilization=1.0, cooldown=5.0)
    # The demo sends SIGTERM after every record has arrived.
    signal.signal(signal.SIGTERM, lambda *_: job.stop())
    try:
        job.run()
    except JobFailedError as error:
        print(f"the job failed: {error}", file=sys.stderr)  # noqa: T201 - this process's own log
        return 1
    finally:
        steps = [asdict(step) for step in job.snapshot().timeline]
        settings.place("timeline.json").write_text(json.dumps(steps, indent=1))
        spark.stop()
    return 0


def start_query(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Run some tasks that start the Python workers and warm up the JVM, then start the query."""
    schema = "partition int, offset long, worker string, at double"
    warm = spark.range(settings.partitions, numPartitions=settings.partitions)
    warm.selectExpr("0 AS partition", "id AS offset").mapInArrow(call_service(0.0), schema).collect()
    records = (
        spark.readStream.format("virtual-log")
        .option("clock", str(settings.place("clock.json")))
        .option("partitions", settings.partitions)
        .option("maxRowsPerBatch", MAX_BATCH)
        .option("secondsPerBatch", settings.batch)
        .load()
    )
    return (
        records.mapInArrow(call_service(settings.cost), schema)
        .writeStream.format("parquet")
        .queryName("surge")
        .option("path", str(settings.place("sink")))
        .option("checkpointLocation", str(settings.place("checkpoint")))
        .start()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
