"""`adaptive_batch`: its settings, warnings and refusals."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from autoscaler.injob import AdaptiveBatch, BatchReportError, adaptive_batch
from autoscaler.injob.batch import parse_size

SKEW = "spark.sql.adaptive.skewJoin."
COALESCE = "spark.sql.adaptive.coalescePartitions."


class Conf(dict[str, str]):
    """The used part of a session's `conf`."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        del self[key]


def session(
    queries: tuple[str, ...] = (), conf: dict[str, str] | None = None, ui: str | None = "http://127.0.0.1:1"
) -> Any:
    """The used part of a SparkSession; the settings without `spark.`."""
    active = [SimpleNamespace(name=name, id="1") for name in queries]
    return SimpleNamespace(
        conf=Conf({f"spark.{key}": value for key, value in (conf or {}).items()}),
        streams=SimpleNamespace(active=active),
        sparkContext=SimpleNamespace(uiWebUrl=ui, applicationId="app-1"),
    )


def warnings(queries: tuple[str, ...] = (), conf: dict[str, str] | None = None, **options: Any) -> tuple[str, ...]:
    return adaptive_batch(session(queries, conf), **options).warnings


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("64m", 64 << 20),
        ("64mb", 64 << 20),
        (" 1G ", 1 << 30),
        ("512", 512),
        ("512b", 512),
        ("3k", 3072),
        ("2tb", 2 << 40),
        ("1p", 1 << 50),
        (4096, 4096),
    ],
)
def test_sizes_are_read_as_spark_reads_them(given: object, size: int) -> None:
    assert parse_size("volume", given) == size


@pytest.mark.parametrize("given", ["0", "0m", 0, -1, "-64m", "1.5g", "64 parsecs", "64x", "", "m", None, True, "9999p"])
def test_an_invalid_size_is_refused_with_the_expected_form(given: object) -> None:
    with pytest.raises(ValueError, match=r"^avg_data_volume_per_task: is .*, expected a size above 0 .*'64m'"):
        adaptive_batch(session(), avg_data_volume_per_task=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"min_parallelism": 0}, "min_parallelism: is 0, expected a number of tasks of 1 or more"),
        ({"max_parallelism": -1}, "max_parallelism: is -1, expected"),
        ({"max_parallelism": "8"}, "max_parallelism: is '8', expected"),
        ({"max_parallelism": True}, "max_parallelism: is True, expected"),
        ({"default_source_parallelism": 0}, "default_source_parallelism: is 0, expected"),
        (
            {"min_parallelism": 9, "max_parallelism": 8},
            r"min_parallelism: is 9, expected max_parallelism \(8\) or less",
        ),
    ],
)
def test_invalid_numbers_are_refused_by_name_and_nothing_is_set(options: dict[str, Any], says: str) -> None:
    spark = session()
    with pytest.raises(ValueError, match=says):
        adaptive_batch(spark, **options)
    assert spark.conf == {}


def test_the_options_become_settings_of_the_session() -> None:
    spark = session()
    adaptive_batch(spark, "16m", 2, 32, default_source_parallelism=5)
    assert spark.conf == {
        f"{COALESCE}parallelismFirst": "false",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16777216b",
        f"{COALESCE}minPartitionSize": "1b",
        f"{COALESCE}initialPartitionNum": "32",
        f"{COALESCE}minPartitionNum": "2",
        f"{SKEW}enabled": "true",
        f"{SKEW}skewedPartitionFactor": "4",
        f"{SKEW}skewedPartitionThresholdInBytes": "67108864b",
        "spark.sql.files.minPartitionNum": "5",
        "spark.sql.files.maxPartitionNum": "5",
    }


def test_a_second_call_replaces_the_first() -> None:
    spark = session()
    adaptive_batch(spark, "16m", min_parallelism=2)
    adaptive_batch(spark, "8m")
    assert spark.conf["spark.sql.adaptive.advisoryPartitionSizeInBytes"] == "8388608b"
    assert f"{COALESCE}minPartitionNum" not in spark.conf


def test_without_a_source_parallelism_spark_splits_files_as_usual() -> None:
    spark = session()
    adaptive_batch(spark)
    assert not [key for key in spark.conf if ".files." in key]


def test_a_suitable_session_gets_no_warning() -> None:
    assert warnings() == ()


@pytest.mark.parametrize("key", ["sql.adaptive.enabled", "sql.adaptive.coalescePartitions.enabled"])
def test_adaptive_execution_disabled_by_the_user_stays_off_with_a_warning(key: str) -> None:
    spark = session(conf={key: "false"})
    (warning,) = adaptive_batch(spark).warnings
    name = f"spark.{key}"
    assert warning.startswith(f"{name} is false, so stages keep spark.sql.shuffle.partitions tasks")
    assert spark.conf[name] == "false"


@pytest.mark.parametrize(
    ("conf", "volume", "warned"),
    [
        ({}, "1g", False),
        ({}, "1025m", True),
        ({"executor.memory": "2g"}, "2g", False),
        ({"executor.memory": "2g", "executor.cores": "4"}, "513m", True),
        ({"executor.memory": "2g", "executor.cores": "4", "task.cpus": "2"}, "513m", False),
        ({"executor.memory": "2048"}, "2g", False),
        ({"master": "local[2]", "driver.memory": "2g", "executor.memory": "9g"}, "1025m", True),
        ({"master": "local[*]", "driver.memory": "2g"}, "2g", False),
        ({"master": "local-cluster[2,1,1024]", "driver.memory": "9g"}, "2g", True),
    ],
)
def test_a_volume_above_a_tasks_share_of_memory_gives_a_warning(
    conf: dict[str, str], volume: str, warned: bool
) -> None:
    found = warnings(conf=conf, avg_data_volume_per_task=volume)
    assert [each.startswith("avg_data_volume_per_task is ") for each in found] == [True] * warned


def test_the_minimum_parallelism_is_reported_as_a_hint() -> None:
    (warning,) = warnings(min_parallelism=4)
    assert warning.startswith("min_parallelism=4 is a hint to Spark (minPartitionNum)")


def test_streaming_queries_of_the_session_are_named() -> None:
    (warning,) = warnings(queries=("orders", "clicks"))
    assert warning.startswith("the session has streaming queries (orders, clicks)")


def test_a_job_without_ui_gets_a_warning_and_its_report_names_the_setting_and_the_event_log() -> None:
    spark = session(ui=None, conf={"ui.enabled": "false"})
    batch = adaptive_batch(spark)
    assert [each.partition(",")[0] for each in batch.warnings] == ["spark.ui.enabled is false"]
    with pytest.raises(BatchReportError, match=r"set spark\.ui\.enabled=true, or .*spark\.eventLog\.enabled=true"):
        batch.report()


def test_a_session_without_context_cannot_report() -> None:
    spark = session()
    del spark.sparkContext
    batch = adaptive_batch(spark)
    assert isinstance(batch, AdaptiveBatch)
    with pytest.raises(BatchReportError, match=r"Spark Connect; .*batch_report\(path\)"):
        batch.report()


def test_warnings_and_limits_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autoscaler.injob.batch"):
        batch = adaptive_batch(session(), min_parallelism=2)
    assert [(each.levelname, each.getMessage()[:24]) for each in caplog.records] == [
        ("WARNING", batch.warnings[0][:24]),
        ("INFO", "limits of adaptive_batch"),
    ]
    for limit in ("not adaptive", "compressed", "repartition(n)", "the cluster manager"):
        assert limit in caplog.text


def test_a_report_with_late_events_says_so_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BatchReportError, match=r"^http://127\.0\.0\.1:1/"):
        adaptive_batch(session()).report()
    assert "Spark's events are late" in caplog.text


def test_a_second_call_replaces_the_settings_of_the_first_and_keeps_those_of_the_user() -> None:
    spark = session()
    adaptive_batch(spark, min_parallelism=2, default_source_parallelism=8)
    adaptive_batch(spark)
    assert not [key for key in spark.conf if key.endswith("PartitionNum") and "initial" not in key]
    theirs = session(conf={"sql.files.minPartitionNum": "3"})
    adaptive_batch(theirs)
    assert theirs.conf["spark.sql.files.minPartitionNum"] == "3"
