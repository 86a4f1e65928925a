"""A PySpark batch job of two wide stages with a shuffle between them, whose tasks take a known time.

Arguments: port of the report, seconds per task, file to write when the query is done, file to wait for then.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from autoscaler.injob import report


def main(port: int, cost: float, done: Path, stop: Path) -> None:
    """Run one query, then wait for the file that ends the job."""

    def work(number: int) -> int:
        time.sleep(cost)
        return number

    spark = SparkSession.builder.appName("batch-job").getOrCreate()
    report(spark, port=port)
    slow = F.udf(work, "long").asNondeterministic()  # otherwise it happens once, after the shuffle
    wide = spark.range(0, 12, numPartitions=12).select(slow("id").alias("id"))
    rows = wide.repartition(6, "id").select(slow("id").alias("id")).collect()
    done.write_text(str(len(rows)))
    while not stop.exists():
        time.sleep(0.2)
    spark.stop()


main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
