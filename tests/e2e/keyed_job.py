"""A PySpark job that counts keys in files, one file per batch, under `ReactiveJob` or as a plain Spark query.

The cost of a row is a sleep in the tasks with the state, so that throughput depends on the slots and not on the cores.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from autoscaler.injob import ReactiveJob, reactive_conf


def work(batches: Any) -> Any:
    """Sleep as long as the rows of each batch cost."""
    for batch in batches:
        time.sleep(sum(batch.column("cost").to_pylist()))
        yield batch


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("autoscaler").setLevel(logging.INFO)
    builder = SparkSession.builder.master(settings["master"]).appName("keyed")
    conf = reactive_conf(stateful=True) if settings["reactive"] else {}
    spark = builder.config(map={**conf, **settings["spark"]}).getOrCreate()
    place = Path(settings["directory"])

    def write(found: DataFrame, batch: int) -> None:
        found.select("key", "n").write.mode("overwrite").parquet(str(place / "out" / str(batch)))

    def build(spark: SparkSession) -> Any:
        files = spark.readStream.schema("key long, cost double").option("maxFilesPerTrigger", 1)
        counts = (
            files.parquet(str(place / "in")).groupBy("key").agg(F.count("*").alias("n"), F.max("cost").alias("cost"))
        )
        worked = counts.mapInArrow(work, "key long, n long, cost double")
        writer = worked.writeStream.outputMode("update").queryName("keyed").foreachBatch(write)
        return writer.option("checkpointLocation", str(place / "checkpoint")).start()

    if settings["reactive"]:
        job = ReactiveJob(spark, build, rest=settings["rest"], conf=settings["conf"])
        signal.signal(signal.SIGTERM, lambda *_: job.cancel())
        job.run()
    else:
        query = build(spark)
        signal.signal(signal.SIGTERM, lambda *_: query.stop())
        while query.isActive:
            time.sleep(0.2)
    spark.stop()


main()
