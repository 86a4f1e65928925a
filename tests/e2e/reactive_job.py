"""A PySpark job under `ReactiveJob` that counts the words of files, and writes its state after each batch."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from autoscaler.injob import ReactiveJob, reactive_conf


def main() -> None:
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    builder = SparkSession.builder.master(settings["master"]).appName("reactive")
    for name, value in {**reactive_conf(stateful=True), **settings["spark"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    place = Path(settings["directory"])

    def build(spark: SparkSession) -> Any:
        if (place / "broken").exists():
            (place / "broken").unlink()
            raise TypeError("this code is wrong")

        def write(found: Any, batch: int) -> None:
            if (place / "fail").exists():
                (place / "fail").unlink()
                raise RuntimeError("this batch fails")
            rows = {row["word"]: row["count"] for row in found.collect()}
            (place / "out" / f"{batch}.part").write_text(json.dumps(rows))
            (place / "out" / f"{batch}.part").rename(place / "out" / f"{batch}.json")

        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(place / "in"))
        words = lines.selectExpr("value as word").groupBy("word").count()
        return (
            words.writeStream.queryName("words")
            .outputMode("complete")
            .option("checkpointLocation", str(place / "checkpoint"))
            .foreachBatch(write)
            .start()
        )

    (place / "started").touch()
    job = ReactiveJob(
        spark, build, rest=settings["rest"], token=settings["token"], conf=settings["conf"], **settings["options"]
    )
    try:
        job.run()
    finally:
        (place / "ended").write_text(job.snapshot().state.value)
        spark.stop()


main()
