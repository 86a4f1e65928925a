"""A PySpark Structured Streaming job that reads a Kafka topic, written as a user would write it.

python tests/e2e/kafka_job.py SETTINGS.json
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from autoscaler.demo.spark.job import call_service
from autoscaler.injob import report

SCHEMA = "partition int, offset long, worker string, at double"


class CommitProgress(StreamingQueryListener):  # type: ignore[misc] # PySpark has no types here
    """Commits the offsets of each batch to a Kafka group, for tools that watch the lag there."""

    def __init__(self, servers: str, group: str) -> None:
        self._servers, self._group = servers, group

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        asyncio.run(self._commit(json.loads(event.progress.sources[0].endOffset)))

    async def _commit(self, ends: dict[str, dict[str, int]]) -> None:
        offsets = {TopicPartition(topic, int(p)): end for topic, parts in ends.items() for p, end in parts.items()}
        client = AIOKafkaConsumer(bootstrap_servers=self._servers, group_id=self._group, enable_auto_commit=False)
        async with client as consumer:
            consumer.assign(list(offsets))
            await consumer.commit(offsets)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass


def main(path: str) -> int:
    """Run the job until SIGTERM; returns 0 when it was stopped by it."""
    settings = json.loads(Path(path).read_text())
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    builder = SparkSession.builder.appName(settings["name"]).master(settings["master"])
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    report(spark, port=settings["report_port"])
    spark.streams.addListener(CommitProgress(settings["servers"], settings["group"]))

    # The first tasks start the Python workers and warm the JVM up; they must not count as slow batches.
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
    query.stop()  # stopped by the test, after every record has arrived: this interrupts no batch
    failure = query.exception()
    spark.stop()
    if failure is not None:
        print(f"the query failed: {failure}", file=sys.stderr)  # noqa: T201 - this process's own log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
