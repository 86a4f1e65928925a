"""A PySpark Structured Streaming job that reads a Kafka topic, as anybody would write it.

python tests/e2e/kafka_job.py SETTINGS.json
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from autoscaler.demo.app import call_service
from autoscaler.injob import report

SCHEMA = "partition int, offset long, worker string, at double"


def main(path: str) -> int:
    """Run the job until SIGTERM; 0 when it ended as asked."""
    settings = json.loads(Path(path).read_text())
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    builder = SparkSession.builder.appName(settings["name"]).master(settings["master"])
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    report(spark, port=settings["report_port"])

    # The first tasks start the Python workers and warm the JVM up; they should not count as slow batches.
    warm = spark.range(settings["partitions"], numPartitions=settings["partitions"])
    warm.selectExpr("cast(id AS int) AS partition", "id AS offset").mapInArrow(call_service(0.0), SCHEMA).collect()

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings["servers"])
        .option("subscribe", settings["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["most"])
        .load()
    )
    query = (
        records.select("partition", "offset")
        .mapInArrow(call_service(settings["cost"]), SCHEMA)
        .writeStream.format("parquet")
        .queryName("orders")
        .trigger(processingTime=settings["trigger"])
        .option("path", settings["sink"])
        .option("checkpointLocation", settings["checkpoint"])
        .start()
    )
    Path(settings["ready"]).touch()
    while query.isActive and not ended:
        time.sleep(0.2)
    query.stop()  # asked to end, every record has arrived: no batch is cut off by this
    failure = query.exception()
    spark.stop()
    if failure is not None:
        print(f"the query failed: {failure}", file=sys.stderr)  # noqa: T201 - this process's own log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
