"""The batch job of the demo: an ordinary PySpark application, in its own process.

    python -m autoscaler.demo.spark_batch.job SETTINGS.json

The job reads the tables, calls a slow service for each row (it sleeps, so rows cost time but no CPU), and writes
Parquet files. The autoscaler needs one line in the job: `report(spark, ...)`. With `adaptive_batch`, the number of
tasks of a stage follows from its volume of data.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.demo.environment import get
from autoscaler.demo.spark.cluster import Driver
from autoscaler.demo.spark_batch.tables import SCHEMAS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PRICE_COST = 0.0006
"""Seconds to price a line."""
REPORT_COST = 0.030
"""Seconds to write a row of the report, which has one row per 100 lines; one task writes all rows."""
READ_COST = 0.024
"""Seconds for the driver to read a row of the report."""
SCORE_COST = 0.0024
"""Seconds to score an order with its customer."""
STATEMENT_COST = 0.0016
"""Seconds to add an order to its customer's statement; one task writes the whole statement."""

VOLUME = "1m"
"""The volume of shuffle data that a task should read. It is small because the tables are; the default is 64 MB."""

GIVING_BACK: Mapping[str, str] = {
    "spark.decommission.enabled": "true",
    # Move shuffle files to other workers, so that no stage is computed again.
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    # How often a worker checks whether all shuffle files have moved: 30 s by default.
    "spark.storage.decommission.replicationReattemptInterval": "1s",
    # New workers get tasks at once.
    "spark.locality.wait": "0s",
}
"""Spark settings with which workers can be added and removed during a batch job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Driver):
    """Settings of the job.

    The job's directory has the subdirectories `results`, for its output, `scratch`, and `events`, for the event log.
    The job writes the files `phase`, with its present phase in a few words, and `result.json`, at the end.

    Attributes:
        tables: directory of the tables.
        sources: tasks of a stage that reads a large table; None: Spark's defaults determine the number of tasks.
        conf: Spark settings.
    """

    tables: str
    sources: int | None
    conf: Mapping[str, str]


def call_service(cost: float) -> Any:  # noqa: ANN401 - a function for mapInArrow
    """Create the function that processes rows: each costs `cost` seconds of waiting."""

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(cost * batch.num_rows)
            yield batch

    return call


class Job:
    """The queries of the job, one after the other."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings

    def price(self) -> None:
        """Run a wide stage, then a single task that writes the report."""
        self._now("price lines, write the report")
        lines = self._called(self._table("lineitem"), PRICE_COST)
        self._write("report", self._called(lines.where("l_orderkey % 100 = 0").repartition(1), REPORT_COST))

    def read(self) -> int:
        """Read the report in the driver, without tasks. Returns the sum of the report."""
        self._now("read the report in the driver")
        total = 0
        report = self._spark.read.schema(SCHEMAS["lineitem"]).parquet(str(self._settings.place("results/report")))
        for row in report.collect():
            time.sleep(READ_COST)
            total += row.l_cents
        return total

    def score(self) -> None:
        """Run a join, skewed by the large customer, followed by a wide stage."""
        self._now("join orders with customers, score")
        # Force a merge join, as if there were too many customers for a broadcast.
        joined = self._table("orders").join(
            self._table("customer").hint("merge").withColumnRenamed("c_custkey", "o_custkey"), "o_custkey"
        )
        scored = self._called(joined.selectExpr("c_nationkey", "o_cents", "crc32(o_comment) AS score"), SCORE_COST)
        self._write("scores", scored.groupBy("c_nationkey").sum("o_cents", "score"))

    def state(self) -> None:
        """Process all orders of a customer in one task; the task of the large customer is long."""
        self._now("write statements")
        orders = self._table("orders").repartition("o_custkey")
        stated = self._called(orders.selectExpr("o_custkey", "o_cents", "crc32(o_comment) AS sum"), STATEMENT_COST)
        self._write("statements", stated.groupBy("o_custkey").sum("o_cents", "sum"))

    def _now(self, phase: str) -> None:
        self._spark.sparkContext.setJobDescription(phase)
        self._settings.place("phase").write_text(phase)

    def _table(self, name: str) -> DataFrame:
        return self._spark.read.schema(SCHEMAS[name]).parquet(f"{self._settings.tables}/{name}")

    def _called(self, rows: DataFrame, cost: float) -> DataFrame:
        return rows.mapInArrow(call_service(cost), rows.schema)

    def _write(self, name: str, rows: DataFrame) -> None:
        rows.write.parquet(str(self._settings.place(f"results/{name}")))


def failed_tasks(spark: SparkSession) -> int | None:
    """The number of failed tasks; None if Spark's REST API does not report it."""
    context = spark.sparkContext
    executors = get(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/allexecutors", seconds=10.0)
    return None if executors is None else sum(int(executor["failedTasks"]) for executor in executors)


def main(path: str) -> int:
    """Run the job. Returns the exit code."""
    from autoscaler.injob import adaptive_batch, report  # noqa: PLC0415 - not needed for the settings

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("autoscaler").setLevel(logging.INFO)
    settings = Settings(**json.loads(Path(path).read_text()))
    log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": settings.place("events").as_uri()}
    spark = settings.session({**log, **settings.conf})
    report(spark, port=settings.report)
    if settings.sources is not None:
        adaptive_batch(spark, VOLUME, default_source_parallelism=settings.sources)
    job = Job(spark, settings)
    began = time.time()
    job.price()
    total = job.read()
    job.score()
    job.state()
    result = {"began": began, "ended": time.time(), "total": total, "failed_tasks": failed_tasks(spark)}
    settings.place("result.json").write_text(json.dumps(result))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
