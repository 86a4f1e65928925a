"""Common parts of the commands that run on Spark: their options, the plan, and errors in one line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from autoscaler import cli
from autoscaler.cli import spark_options
from autoscaler.history.progress import explain_plan, show_progress
from autoscaler.ports import AutoscalerError


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    spark_options.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_jobs_of_a_block_are_described(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "what was there before")
    with show_progress(spark, "counting"):
        assert context.getLocalProperty("spark.job.description") == "counting"
    assert context.getLocalProperty("spark.job.description") == "what was there before"
    context.setLocalProperty("spark.job.description", None)
    # This is not a terminal.
    assert capfd.readouterr().err == ""


def test_the_plan_is_physical_and_nothing_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(spark, "explaining"):
        plan = explain_plan(spark.range(10).selectExpr("raise_error('it ran')"))
    assert plan.startswith("== Physical Plan ==")
    spark_options.print_plans(parsed(), {"nothing": spark.range(1)})
    assert capsys.readouterr() == ("", "")
    spark_options.print_plans(parsed("--explain"), {"the numbers": spark.range(1)})
    printed = capsys.readouterr()
    assert printed.err.startswith("The plan of the numbers:\n== Physical Plan ==")
    assert printed.out == ""


@pytest.mark.usefixtures("spark")
def test_an_error_of_spark_becomes_one_line() -> None:
    with (
        pytest.raises(AutoscalerError, match=r"^Spark failed: \[USER_RAISED_EXCEPTION\] no such luck.*$") as raised,
        spark_options.open_session(parsed(), "history") as session,
    ):
        session.sql("SELECT raise_error('no such luck')").collect()
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("spark")
def test_on_a_terminal_the_start_of_spark_is_shown_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with spark_options.open_session(parsed(), "history"):
            assert ("Starting Spark ..." in capsys.readouterr().err) is terminal


def test_a_path_that_is_not_a_dataset_is_reported_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autoscaler.history.session.session", None)
    config = Path(__file__).parents[2] / "examples" / "spark-local.yaml"
    for arguments in (
        ("profile", tmp_path, "--out", tmp_path / "out"),
        ("history", "query", tmp_path, "SELECT 1"),
        ("backtest", tmp_path, config),
        ("tune", tmp_path, config),
    ):
        assert cli.main(list(map(str, arguments))) != 0
        assert f"{tmp_path}: is not a dataset" in capsys.readouterr().err


@pytest.mark.usefixtures("spark")
def test_a_module_that_workers_lack_is_reported_with_the_remedy() -> None:
    with (
        pytest.raises(AutoscalerError, match=r"ModuleNotFoundError: No module named 'mine'; workers need it: install"),
        spark_options.open_session(parsed(), "backtest"),
    ):
        raise PySparkException("Traceback (most recent call last):\nModuleNotFoundError: No module named 'mine'")


@pytest.mark.usefixtures("spark")
def test_a_java_that_has_ended_is_reported() -> None:
    with (
        pytest.raises(AutoscalerError, match=r"^Spark failed: its Java was killed, or had no memory left; run this"),
        spark_options.open_session(parsed(), "history"),
    ):
        raise ConnectionRefusedError(111, "Connection refused")  # as Py4J does if nothing listens


def test_the_innermost_cause_is_reported() -> None:
    stack = "An error occurred while calling o1.collect.\n: A: outer\n\tat a.b(C.java:1)\nCaused by: B: inner\n\tat d\n"
    assert spark_options.cause(ValueError(stack)) == "B: inner"
    assert spark_options.cause(ValueError()) == "ValueError"


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(AutoscalerError, match=r"history needs PySpark: pip install '\.\[spark\]'"):
        spark_options.require_pyspark("history")


def test_master_and_remote_exclude_each_other() -> None:
    options = parsed("--master", "local[1]", "--remote", "sc://here")
    with (
        pytest.raises(AutoscalerError, match="--master and --remote exclude"),
        spark_options.open_session(options, "history"),
    ):
        pass


@pytest.mark.parametrize("text", ["memory=4g", "spark.driver.memory", "spark.=1"])
def test_an_invalid_property_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--conf", text)
    assert "is not like spark.driver.memory=4g" in capsys.readouterr().err


def test_properties_are_added_to_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parsed("--conf", "spark.driver.extraJavaOptions=-Xss4m", "--conf", "spark.a=b=c")
    settings = spark_options._settings(dict(options.conf), little=False)
    assert settings["spark.a"] == "b=c"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:///")
    assert settings["spark.driver.extraJavaOptions"].endswith("log4j2.properties -Xss4m")
    assert settings["spark.ui.showConsoleProgress"] == "false"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert spark_options._settings({}, little=False)["spark.ui.showConsoleProgress"] == "true"
