"""The demo's job: an ordinary PySpark Structured Streaming application, in its own process.

    python -m autoscaler.demo.spark.job SETTINGS.json

It reads the virtual log, calls a slow service for each record (it sleeps), and writes Parquet files. The autoscaler
needs one line of it: `report(spark, ...)`. The scheduler inside the job is `ReactiveJob`.
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

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the job.

    Attributes:
        name: the application's name.
        master: address of the Spark Master.
        ui_port: port of the driver's web UI.
        report_port: port of the report.
        clock: file with the time when the load began.
        sink: directory of the Parquet files.
        checkpoint: directory of the query's checkpoint.
        scratch: directory for Spark's temporary files.
        ready: file that is made when the job runs on a worker.
        timeline: file for what the scheduler inside the job did, written when it ends.
        partitions: partitions of the log.
        most: most records of one batch.
        batch: time that a batch should take when there is enough to do, in seconds.
        cost: time to process one record, in seconds.
        executor_memory: memory of an executor's JVM.
        java_options: options of the driver's and the executors' JVMs.
        worker_timeout: `spark.worker.timeout`, in seconds, as the Master and the workers have it.
    """

    name: str
    master: str
    ui_port: int
    report_port: int
    clock: str
    sink: str
    checkpoint: str
    scratch: str
    ready: str
    timeline: str
    partitions: int
    most: int
    batch: float
    cost: float
    executor_memory: str
    java_options: str
    worker_timeout: int

    def write(self, path: Path) -> None:
        """Write them to a file."""
        path.write_text(json.dumps(asdict(self), indent=1))


def call_service(cost: float) -> Any:  # noqa: ANN401 - a function for mapInArrow
    """Make the function that processes records: each costs `cost` seconds of waiting."""

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
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it belongs to an extra

    from autoscaler.demo.spark.source import VirtualLog  # noqa: PLC0415 - likewise
    from autoscaler.injob import JobFailedError, ReactiveJob, reactive_conf, report  # noqa: PLC0415

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("autoscaler").setLevel(logging.INFO)
    settings = Settings(**json.loads(Path(path).read_text()))
    spark = (
        SparkSession.builder.appName(settings.name)
        .master(settings.master)
        .config(map=reactive_conf(heartbeat_timeout=settings.worker_timeout))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", settings.java_options)
        .config("spark.executor.extraJavaOptions", settings.java_options)
        .config("spark.executor.cores", "1")
        .config("spark.executor.memory", settings.executor_memory)
        .config("spark.ui.port", str(settings.ui_port))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.worker.timeout", str(settings.worker_timeout))
        .config("spark.local.dir", settings.scratch)
        .config("spark.sql.shuffle.partitions", str(settings.partitions))
        .getOrCreate()
    )
    report(spark, port=settings.report_port)
    spark.dataSource.register(VirtualLog)

    def build(spark: SparkSession) -> StreamingQuery:
        query = start_query(spark, settings)
        Path(settings.ready).touch()
        return query

    # The demo is short: what has not changed for a second is taken to last.
    job = ReactiveJob(spark, build, executing_stabilization=1.0, cooldown=5.0)
    # The demo stops the job after every record has arrived.
    signal.signal(signal.SIGTERM, lambda *_: job.stop())
    try:
        job.run()
    except JobFailedError as error:
        print(f"the job failed: {error}", file=sys.stderr)  # noqa: T201 - this process's own log
        return 1
    finally:
        Path(settings.timeline).write_text(json.dumps([asdict(step) for step in job.snapshot().timeline], indent=1))
        spark.stop()
    return 0


def start_query(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the query, once the first tasks have started the Python workers and warmed up the JVM."""
    schema = "partition int, offset long, worker string, at double"
    warm = spark.range(settings.partitions, numPartitions=settings.partitions)
    warm.selectExpr("0 AS partition", "id AS offset").mapInArrow(call_service(0.0), schema).collect()
    records = (
        spark.readStream.format("virtual-log")
        .option("clock", settings.clock)
        .option("partitions", settings.partitions)
        .option("maxRowsPerBatch", settings.most)
        .option("secondsPerBatch", settings.batch)
        .load()
    )
    return (
        records.mapInArrow(call_service(settings.cost), schema)
        .writeStream.format("parquet")
        .queryName("surge")
        .option("path", settings.sink)
        .option("checkpointLocation", settings.checkpoint)
        .start()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
