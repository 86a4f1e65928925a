"""A PySpark job under `ReactiveJob` that reads a log with a known load, at a fixed cost per record."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from autoscaler.demo.load import Clock
from autoscaler.demo.spark.job import call_service
from autoscaler.demo.spark.source import VirtualLog, VirtualLogReader
from autoscaler.injob import ReactiveJob, reactive_conf


class ChangingClock(Clock):
    """A load whose file may be rewritten."""

    def offered(self) -> int:
        self._known = None
        return super().offered()


class ChangingLog(VirtualLog):
    """The log of such a load; a batch reads all available records."""

    def streamReader(self, schema: object) -> VirtualLogReader:  # noqa: ARG002, N802 - Spark's signature
        return VirtualLogReader(ChangingClock(Path(self.options["clock"])), partitions=6, most=10_000, seconds=60)


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    builder = SparkSession.builder.master(settings["master"]).appName("reactive")
    for name, value in {**reactive_conf(), **settings["spark"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(ChangingLog)
    place = Path(settings["directory"])

    def build(spark: SparkSession) -> Any:
        log = spark.readStream.format("virtual-log").option("clock", str(place / "clock.json")).load()
        return (
            log.mapInArrow(call_service(0.002), "partition int, offset long, worker string, at double")
            .writeStream.format("noop")
            .queryName("log")
            .option("checkpointLocation", str(place / "checkpoint"))
            .start()
        )

    state = ReactiveJob(
        spark, build, rest=settings["rest"], token=settings["token"], conf=settings["conf"], **settings["options"]
    ).run()
    (place / "ended").write_text(state.value)
    spark.stop()


main()
