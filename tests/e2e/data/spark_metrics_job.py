"""A PySpark job with a true backlog: a virtual log whose head follows the rates in a file, read with a cap per batch.

Arguments: control file (JSON list of [time, records/s], rewritten while it runs), port of the report, checkpoint
directory, records per batch at most, seconds that one record takes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from autoscaler.injob import report

PARTITIONS = 4


class Slice(InputPartition):  # type: ignore[misc] # pyspark is not followed by mypy
    """Records of one partition, from `start` up to but excluding `end`."""

    def __init__(self, partition: str, start: int, end: int) -> None:
        self.partition, self.start, self.end = partition, start, end


class Reader(DataSourceStreamReader):  # type: ignore[misc] # likewise
    """Reads the virtual log."""

    def __init__(self, options: dict[str, str]) -> None:
        self.control, self.most, self.cost = options["control"], int(options["most"]), float(options["cost"])

    def _head(self) -> dict[str, int]:
        steps = json.loads(Path(self.control).read_text())
        ends = [step[0] for step in steps[1:]] + [time.time()]
        records = sum(rate * max(0.0, end - begin) for (begin, rate), end in zip(steps, ends, strict=True))
        return {str(part): int(records) // PARTITIONS for part in range(PARTITIONS)}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {str(part): 0 for part in range(PARTITIONS)}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name and type
        return ReadMaxRows(self.most)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        share = limit.max_rows // PARTITIONS
        return {part: min(end, start[part] + share) for part, end in self._head().items()}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return self._head()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Slice]:
        return [Slice(part, start[part], end[part]) for part in start]

    def read(self, partition: Slice) -> Iterator[tuple[int, int]]:
        time.sleep((partition.end - partition.start) * self.cost)
        for offset in range(partition.start, partition.end):
            yield int(partition.partition), offset


class Backlog(DataSource):  # type: ignore[misc] # pyspark is not followed by mypy
    """The virtual log as a data source."""

    @classmethod
    def name(cls) -> str:
        return "backlog"

    def schema(self) -> str:
        return "part INT, offset BIGINT"

    def streamReader(self, schema: Any) -> Reader:  # noqa: ARG002, N802 - Spark's signature
        return Reader(self.options)


def main() -> None:
    """Run the query until the process is stopped."""
    control, port, checkpoint, most, cost = sys.argv[1:]
    spark = SparkSession.builder.appName("metrics-job").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report(spark, port=int(port))
    spark.dataSource.register(Backlog)
    stream = spark.readStream.format("backlog").options(control=control, most=most, cost=cost).load()
    query = stream.writeStream.format("noop").queryName("backlog").option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
