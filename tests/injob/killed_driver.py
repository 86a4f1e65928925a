"""A driver with a reactive job in a local session: it writes its state to a file, and runs until it is killed."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from autoscaler.injob import ReactiveJob
from autoscaler.schedulers.slots import Bounds


def main() -> None:
    place, number = Path(sys.argv[1]), sys.argv[2]
    logging.basicConfig(level=logging.INFO)
    spark = SparkSession.builder.master("local[2]").appName("orders").config("spark.ui.enabled", "false").getOrCreate()

    def build(spark: SparkSession) -> Any:
        source = spark.readStream.format("rate").load().writeStream.format("noop").queryName("words")
        return source.option("checkpointLocation", str(place / "checkpoint")).start()

    job = ReactiveJob(spark, build)

    def show() -> None:
        while job.snapshot().committed < 2:
            time.sleep(0.1)
        if number == "first":
            (query,) = job.snapshot().queries
            job.require({query.id: Bounds(1, 1)})
        while job.snapshot().queries[0].bounds.upper != 1:
            time.sleep(0.1)
        seen = job.snapshot()
        shown = {"id": seen.id, "timeline": [[one.at, one.state.value, one.why] for one in seen.timeline]}
        (place / "part").write_text(json.dumps(shown))
        (place / "part").rename(place / number)

    threading.Thread(target=show, daemon=True).start()
    job.run()


main()
