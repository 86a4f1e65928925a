"""`adaptive_batch` in a real Spark: one application, a session per case, read over REST and from its event log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from autoscaler.injob import AdaptiveBatch, BatchReportError, adaptive_batch, batch_report
from autoscaler.injob.batch_stages import Application, Stage, parallelism_by_rule, read_event_log
from tests.e2e.test_local_target import missing, until

pytestmark = pytest.mark.e2e

ROWS = 100_000
VOLUME = "256k"


@dataclass
class Ran:
    """The result of an application: the data read while it ran, and its event log."""

    application: Application
    report: str
    log: Path
    picture: Path
    batches: dict[str, AdaptiveBatch] = field(default_factory=dict)

    def reading(self, name: str) -> list[Stage]:
        """The stages of a case that read shuffles."""
        return [each for each in self.application.stages if each.name == name and each.shuffle_read_bytes]


def rows(spark: Any, count: int, key: str) -> Any:
    """A table of so many rows of 64 characters with that key, made by 8 tasks: a skewed partition has 8 parts."""
    return spark.range(0, count, 1, 8).selectExpr(f"{key} AS k", "sha2(CAST(id AS STRING), 256) AS v")


def join(spark: Any, scale: int, key: str = "id % 5000") -> None:
    right = rows(spark, 5000, "id").withColumnRenamed("v", "w")
    rows(spark, scale * ROWS, key).join(right, "k").write.format("noop").mode("overwrite").save()


def shuffle(table: Any) -> None:
    table.groupBy("k").agg({"v": "max"}).write.format("noop").mode("overwrite").save()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    sql = pytest.importorskip("pyspark.sql")
    directory = tmp_path_factory.mktemp("spark")
    try:
        java = find_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        missing(str(error))
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(directory),
        "spark.ui.enabled": "true",  # another test may have started a JVM with it disabled
        "spark.ui.port": "0",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        spark = sql.SparkSession.builder.master("local[2]").appName("batch").config(map=conf).getOrCreate()
        try:
            batches = dict(cases(spark, directory))
            last = batches["join x1"]
            found, report = last.read(with_tasks=True), last.report(plot=directory / "rest.png")
            log = directory / f"eventlog_v2_{spark.sparkContext.applicationId}"
        finally:
            spark.stop()
        yield Ran(found, report, log, directory / "rest.png", batches)


def cases(spark: Any, directory: Path) -> Iterator[tuple[str, AdaptiveBatch]]:
    """Run each case in its own session."""

    def session(name: str, conf: dict[str, str] | None = None) -> Any:
        own = spark.newSession()
        for key, value in (conf or {}).items():
            own.conf.set(key, value)
        spark.sparkContext.setJobDescription(name)
        return own

    for name, scale in (("join x1", 1), ("join x4", 4)):
        own = session(name)
        yield name, adaptive_batch(own, VOLUME, max_parallelism=64)
        join(own, scale)

    own = session("skewed join")
    yield "skewed join", adaptive_batch(own, VOLUME, max_parallelism=64)
    join(own, 1, "IF(id % 10 < 5, 0, id % 5000)")

    own = session("at least 4")
    yield "at least 4", adaptive_batch(own, "64m", min_parallelism=4, max_parallelism=64)
    shuffle(rows(own, 5000, "id % 500"))

    own = session("files")
    rows(own, 2 * ROWS, "id").coalesce(1).write.parquet(str(directory / "table"))
    spark.sparkContext.setJobDescription("scan")
    yield "scan", adaptive_batch(own, "64m", default_source_parallelism=3)
    own.read.parquet(str(directory / "table")).write.format("noop").mode("overwrite").save()

    own = session("by the user")
    yield "by the user", adaptive_batch(own, "64m")
    rows(own, ROWS, "id").repartition(9, "k").write.format("noop").mode("overwrite").save()

    own = session("not adaptive", {"spark.sql.adaptive.enabled": "false"})
    yield "not adaptive", adaptive_batch(own, "64m")
    shuffle(rows(own, ROWS, "id % 5000"))

    own = session("beside a stream")
    stream = own.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = stream.groupBy("value").count().writeStream.outputMode("update").format("noop").queryName("clicks")
    query = counts.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        yield "beside a stream", adaptive_batch(own, "64m")
        until(lambda: query.lastProgress is not None)
        shuffle(rows(own, ROWS, "id % 5000"))
    finally:
        query.stop()
    spark.sparkContext.setJobDescription(None)


@pytest.mark.parametrize(("name", "least"), [("join x1", 10), ("join x4", 40)])
def test_the_parallelism_of_a_join_is_within_one_power_of_two_of_the_rule(ran: Ran, name: str, least: int) -> None:
    (stage,) = ran.reading(name)
    rule = parallelism_by_rule(stage, ran.batches[name].options)
    assert rule is not None
    assert rule >= least
    assert rule / 2 <= stage.tasks <= rule * 2


def test_a_skewed_join_splits(ran: Ran) -> None:
    (stage,) = ran.reading("skewed join")
    assert ran.application.skewed_partitions == 1
    assert ran.application.skew_splits >= 4
    # The key has half of the rows, made by 8 tasks, and no task reads more than a few of the other rows.
    assert stage.largest_bytes is not None
    assert stage.largest_bytes < stage.shuffle_read_bytes / 4


def test_a_stage_with_little_input_has_the_requested_minimum_parallelism(ran: Ran) -> None:
    (stage,) = ran.reading("at least 4")
    assert 4 <= stage.tasks <= 6
    assert parallelism_by_rule(stage, ran.batches["at least 4"].options) == 4


def test_files_are_read_by_the_requested_number_of_tasks(ran: Ran) -> None:
    (stage,) = (each for each in ran.application.stages if each.name == "scan" and each.tasks > 1)
    assert stage.tasks == 3
    assert parallelism_by_rule(stage, ran.batches["scan"].options) == 3


def test_a_number_of_partitions_set_by_the_program_overrides_the_rule(ran: Ran) -> None:
    (stage,) = ran.reading("by the user")
    assert stage.tasks == 9
    assert parallelism_by_rule(stage, ran.batches["by the user"].options) == 1


def test_without_adaptive_execution_the_job_runs_with_a_warning_and_all_partitions(ran: Ran) -> None:
    (warning,) = ran.batches["not adaptive"].warnings
    assert warning.startswith("spark.sql.adaptive.enabled is false")
    (stage,) = ran.reading("not adaptive")
    assert stage.tasks == 16


def test_beside_a_streaming_query_the_batch_query_runs_and_the_stages_of_the_streaming_query_are_omitted(
    ran: Ran,
) -> None:
    (warning,) = ran.batches["beside a stream"].warnings
    assert warning.startswith("the session has streaming queries (clicks)")
    (stage,) = ran.reading("beside a stream")
    assert stage.tasks == 1
    assert [each for each in ran.application.stages if each.streaming]
    assert "stages of streaming queries are left out" in ran.report
    assert "clicks" not in ran.report


def test_rest_and_event_log_agree(ran: Ran) -> None:
    by_log = read_event_log(ran.log)
    batch = tuple(each for each in by_log.stages if not each.streaming)
    by_rest = replace(ran.application, stages=tuple(each for each in ran.application.stages if not each.streaming))
    assert replace(by_log, stages=batch, conf={}) == by_rest
    assert ran.picture.stat().st_size > 0


def test_the_report_of_the_event_log_equals_the_report_in_the_job(ran: Ran, tmp_path: Path) -> None:
    # Except for the rule and its warnings, which are those of the last session.
    def stages(report: str) -> list[tuple[str, ...]]:
        return [tuple(line.split())[:7] for line in report.splitlines() if line.lstrip()[:1].isdigit()]

    assert "\nRule: 64.0 MiB a task, 1 to 128\n" in batch_report(ran.log)
    report = batch_report(ran.log, plot=tmp_path / "log.png")
    assert stages(report) == stages(ran.report)
    assert "Skewed partitions of joins: 1, split into" in report
    assert (tmp_path / "log.png").stat().st_size > 0


def test_a_truncated_log_is_read_up_to_its_end(ran: Ran, tmp_path: Path) -> None:
    (file,) = ran.log.glob("events_1_*")
    whole = read_event_log(file)
    cut = tmp_path / file.name
    cut.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    found = read_event_log(cut)
    assert 0 < len(found.stages) < len(whole.stages)
    assert found.stages[0] == whole.stages[0]
    assert any("has no end of the application" in warning for warning in found.warnings)
    assert any("cut off" in warning for warning in found.warnings)
    assert "Warning: " in batch_report(cut)


def test_a_stopped_session_cannot_report(ran: Ran) -> None:
    with pytest.raises(BatchReportError, match="event log"):
        ran.batches["join x1"].report()


def test_a_job_without_ui_runs_and_its_report_says_what_to_do(ran: Ran, tmp_path: Path) -> None:
    assert ran.batches, "its session has ended, so that this one is another application"
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.eventLog.enabled": "false"}
    conf["spark.sql.warehouse.dir"] = str(tmp_path)
    spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    try:
        batch = adaptive_batch(spark)
        assert [each.partition(",")[0] for each in batch.warnings] == ["spark.ui.enabled is false"]
        assert spark.range(10).groupBy("id").count().count() == 10
        with pytest.raises(BatchReportError, match=r"spark\.ui\.enabled=true, or read the event log"):
            batch.report()
    finally:
        spark.stop()
