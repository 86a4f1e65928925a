"""Stages from Spark's REST API and from an event log, and the report of them. The data was recorded with Spark 4.3."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.injob import BatchReportError, batch_report, batch_stages
from autoscaler.injob.batch_stages import (
    Application,
    BatchOptions,
    Executor,
    Stage,
    parallelism_by_rule,
    read_event_log,
    read_rest,
    stage_from_rest,
    table,
    within_one_power_of_two,
)
from autoscaler.schedulers.batch import BatchSettings

DATA = Path(__file__).parent / "data"
LOG = DATA / "batch-events.jsonl"
OPTIONS = BatchOptions(settings=BatchSettings(avg_data_volume_per_task=100, max_parallelism=8))


def stage(**values: Any) -> Stage:
    """A stage that reads shuffles, with these values replaced."""
    usual = Stage(
        number=3, attempt=0, name="join", status="COMPLETE", tasks=4, submitted=10.0, ended=12.5, input_bytes=0,
        shuffle_read_bytes=400, shuffle_write_bytes=0, spilled_bytes=0, median_bytes=100, largest_bytes=150,
        streaming=False,
    )  # fmt: skip
    return replace(usual, **values)


def application(*stages: Stage, **values: Any) -> Application:
    usual = Application(
        id="app-1", name="orders", stages=stages, executors=(), skewed_partitions=0, skew_splits=0, conf={}
    )
    return replace(usual, **values)


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Recorded answers of the REST API, by the path element after the application."""
    answers: dict[str, Any] = json.loads((DATA / "batch-rest.json").read_text())
    monkeypatch.setattr(batch_stages, "_get", lambda _, path: answers[re.match(r"[^/]*/?(\w*)", path)[1]])  # type: ignore[index]
    return answers


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({}, 4),
        ({"shuffle_read_bytes": 401}, 5),
        ({"shuffle_read_bytes": 9000}, 8),
        ({"shuffle_read_bytes": 1}, 1),
        ({"attempt": 1}, None),
        ({"status": "ACTIVE"}, None),
        ({"shuffle_read_bytes": 0}, None),
        ({"shuffle_read_bytes": 0, "input_bytes": 10_000}, None),
    ],
)
def test_the_number_of_tasks_of_a_stage_that_reads_shuffles_follows_the_rule(values: dict[str, Any], rule: int) -> None:
    assert parallelism_by_rule(stage(**values), OPTIONS) == rule


def test_a_stage_that_reads_files_has_the_parallelism_of_sources() -> None:
    source = stage(shuffle_read_bytes=0, input_bytes=10_000)
    assert parallelism_by_rule(source, replace(OPTIONS, default_source_parallelism=6)) == 6
    assert within_one_power_of_two(source, replace(OPTIONS, default_source_parallelism=6)) is None


@pytest.mark.parametrize(("tasks", "within"), [(1, False), (2, True), (4, True), (8, True), (9, False)])
def test_half_to_twice_as_many_tasks_are_within_one_power_of_two(tasks: int, within: bool) -> None:
    assert within_one_power_of_two(stage(tasks=tasks), OPTIONS) is within


def test_skew_is_the_largest_task_divided_by_the_median() -> None:
    assert stage().skew == 1.5
    assert stage(median_bytes=None, largest_bytes=None).skew is None
    assert stage(median_bytes=0, largest_bytes=5).skew is None


def test_a_stage_of_the_rest_api_is_read(rest: dict[str, Any]) -> None:
    found = stage_from_rest(rest["stages"][0])
    assert replace(found, task_times=()) == Stage(
        number=6, attempt=0, name="skewed join", status="COMPLETE", tasks=26, submitted=1795626306.627,
        ended=1795626307.92, input_bytes=0, shuffle_read_bytes=39746221, shuffle_write_bytes=0, spilled_bytes=0,
        median_bytes=931232, largest_bytes=9812861, streaming=False,
    )  # fmt: skip
    assert len(found.task_times) == 26
    assert found.task_times[0] == (1795626306.643, 1795626306.932)


def test_a_stage_that_has_just_started_is_read(rest: dict[str, Any]) -> None:
    begun = rest["stages"][0] | {"status": "ACTIVE", "completionTime": None, "taskMetricsDistributions": None}
    running = {"launchTime": "2026-11-25T17:05:07.000GMT", "status": "RUNNING", "duration": 5}
    ended = running | {"status": "SUCCESS"}
    found = stage_from_rest(begun | {"tasks": {"1": running, "2": {}, "3": ended}})
    assert (found.status, found.ended, found.median_bytes, found.skew) == ("ACTIVE", None, None, None)
    assert found.task_times == ((1795626307.0, 1795626307.005), (1795626307.0, None))


def test_stages_of_streaming_queries_are_recognized_by_their_description(rest: dict[str, Any]) -> None:
    streaming = rest["stages"][0] | {"description": "orders\nid = 1\nrunId = 2\nbatch = 3"}
    assert (stage_from_rest(streaming).name, stage_from_rest(streaming).streaming) == ("orders", True)


@pytest.mark.usefixtures("rest")
def test_rest_and_event_log_give_the_same_stages() -> None:
    by_rest, by_log = read_rest("http://ui", "local-1795626287009"), read_event_log(LOG)
    assert [each.number for each in by_log.stages] == [0, 1, 2, 3, 6]
    assert by_rest == replace(by_log, conf={}, stages=by_rest.stages)
    for one, other in zip(by_rest.stages, by_log.stages, strict=True):
        assert one == other
    assert (by_log.skewed_partitions, by_log.skew_splits) == (1, 2)
    assert by_log.executors == (Executor(1795626287.303, None, 2),)


def test_stages_that_spark_has_dropped_are_counted(rest: dict[str, Any]) -> None:
    rest["stages"] = [each for each in rest["stages"] if each["stageId"] > 1]
    (warning,) = read_rest("http://ui", "app-1").warnings
    assert warning.startswith("stages that Spark no longer knows: 2 (spark.ui.retainedStages)")


def test_executors_are_those_with_slots_in_the_order_of_their_start(rest: dict[str, Any]) -> None:
    times = {"maxTasks": 2, "addTime": "2026-11-25T17:04:50.500GMT", "removeTime": "2026-11-25T17:05:00.000GMT"}
    rest["allexecutors"] = [times, rest["allexecutors"][0], {"maxTasks": 0, "addTime": "2026-11-25T17:04:40.000GMT"}]
    assert read_rest("http://ui", "app-1").executors == (
        Executor(1795626287.303, None, 2),
        Executor(1795626290.5, 1795626300.0, 2),
    )


def test_a_ui_that_does_not_answer_is_named_with_the_remedy() -> None:
    with pytest.raises(
        BatchReportError, match=r"^http://127\.0\.0\.1:1/api/v1/applications/app-1.*refused.*batch_report\(path\)"
    ):
        read_rest("http://127.0.0.1:1", "app-1")


def lines() -> list[str]:
    return LOG.read_text().splitlines(keepends=True)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_report_has_the_settings_of_the_last_stage() -> None:
    assert batch_report(LOG).splitlines()[:2] == [
        "pyspark-shell (local-1795626287009)",
        "Rule: 1.0 MiB a task, 1 to 64",
    ]


def test_settings_of_an_earlier_session_are_not_those_of_the_last(tmp_path: Path) -> None:
    def submitted(**conf: str) -> str:
        properties = {f"spark.sql.adaptive.{key}": value for key, value in conf.items()}
        return event("StageSubmitted", **{"Stage Info": info(), "Properties": properties})

    first = {"coalescePartitions.minPartitionNum": "4", "advisoryPartitionSizeInBytes": "1m"}
    log = submitted(**first) + submitted(advisoryPartitionSizeInBytes="2m") + submitted()
    stream = {
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "3m",
        "spark.job.description": "q\nrunId = 2\nbatch = 3",
    }
    log += event("StageSubmitted", **{"Stage Info": info(), "Properties": stream})
    assert batch_report(written(tmp_path / "log", log)).splitlines()[1] == "Rule: 2.0 MiB a task, 1 to 200"


def test_a_log_truncated_inside_an_event_is_read_up_to_there(tmp_path: Path) -> None:
    text = LOG.read_text()
    cut = written(tmp_path / "log.inprogress", text[: text.rindex('"SparkListenerTaskEnd"') + 100])
    found = read_event_log(cut)
    assert [each.status for each in found.stages] == ["COMPLETE"] * 4 + ["ACTIVE"]
    assert (found.stages[-1].tasks, len(found.stages[-1].task_times)) == (26, 25)
    assert [each.partition(",")[0] for each in found.warnings] == [
        "unreadable lines in the event log",
        "the event log has no end of the application",
    ]
    assert batch_report(cut).splitlines()[8].split()[-1] == "active"
    assert "Warning: unreadable lines in the event log" in batch_report(cut)


def test_a_rolled_log_is_read_in_its_order(tmp_path: Path) -> None:
    parts = lines()
    for number, part in ((1, parts[:10]), (2, parts[10:40]), (10, parts[40:])):
        written(tmp_path / f"events_{number}_app-1", "".join(part))
    written(tmp_path / "appstatus_app-1", "")
    assert read_event_log(tmp_path) == read_event_log(LOG)


def test_a_log_compressed_with_zstd_is_read_even_if_it_is_truncated(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    whole = tmp_path / "whole.zstd"
    with pyarrow.output_stream(str(whole), compression="zstd") as stream:
        stream.write(LOG.read_bytes() * 4)  # longer than the read buffer
    assert read_event_log(whole).warnings == ()
    cut = tmp_path / "cut.zstd"
    cut.write_bytes(whole.read_bytes()[:-10])
    found = read_event_log(cut)
    assert len(found.stages) == 5
    assert found.warnings[0].startswith("cut.zstd is cut off (")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("log.lz4", "x", r"log\.lz4 is compressed with lz4, expected zstd or none; .*compression\.codec=zstd"),
        ("log", "", r"log has no event of Spark, expected an event log: .*spark\.eventLog\.dir"),
        ("log", "[1]\nno\n", "log has no event of Spark"),
        ("logs/app-1", "x", "logs is a directory with app-1, expected the event log of one application"),
    ],
)
def test_a_file_that_is_not_an_event_log_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    written(path, text)
    with pytest.raises(BatchReportError, match=says):
        batch_report(path if path.parent == tmp_path else path.parent)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.zstd"])
def test_a_missing_log_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        batch_report(tmp_path / name)


def event(kind: str, **values: Any) -> str:
    return json.dumps({"Event": f"SparkListener{kind}", **values}) + "\n"


def info(**values: Any) -> dict[str, Any]:
    return {"Stage ID": 1, "Stage Attempt ID": 0, "Stage Name": "count", "Number of Tasks": 2, **values}


def test_an_event_without_the_expected_fields_is_counted_and_skipped(tmp_path: Path) -> None:
    log = LOG.read_text() + event("TaskEnd") + event("StageSubmitted", **{"Stage Info": None})
    (warning,) = read_event_log(written(tmp_path / "log", log)).warnings
    assert warning == "unreadable lines in the event log, such as a truncated last line: 2"


def test_failed_tasks_lost_executors_and_several_cores_per_task_are_read(tmp_path: Path) -> None:
    task = {"Launch Time": 1000, "Finish Time": 3000}
    log = [
        event("EnvironmentUpdate", **{"Spark Properties": {"spark.task.cpus": "2"}}),
        event("ExecutorAdded", **{"Timestamp": 500, "Executor ID": "0", "Executor Info": {"Total Cores": 4}}),
        event("ExecutorRemoved", **{"Timestamp": 2500, "Executor ID": "0"}),
        event("ExecutorRemoved", **{"Timestamp": 2500, "Executor ID": "9"}),
        event("StageSubmitted", **{"Stage Info": info(**{"Submission Time": 900})}),
        event("TaskEnd", **info(**{"Task Info": task, "Task End Reason": {"Reason": "ExecutorLostFailure"}})),
        event("StageCompleted", **{"Stage Info": info(**{"Completion Time": 3000, "Failure Reason": "gone"})}),
        event("StageCompleted", **{"Stage Info": info(**{"Stage ID": 2, "Completion Time": 3000})}),
        event("ApplicationEnd"),
    ]
    found = read_event_log(written(tmp_path / "log", "".join(log)))
    assert (found.name, found.executors, found.warnings) == ("unknown", (Executor(0.5, 2.5, 2),), ())
    assert [each.status for each in found.stages] == ["FAILED", "COMPLETE"]
    assert (found.stages[0].task_times, found.stages[0].median_bytes) == (((1.0, 3.0),), None)


def test_a_log_of_another_job_is_evaluated_by_its_own_settings_with_a_warning(tmp_path: Path) -> None:
    text = re.sub(r'"spark\.sql\.adaptive\.coal[^"]*": ?"[^"]*",?', "", LOG.read_text()).replace(",}", "}")
    report = batch_report(written(tmp_path / "log", text))
    assert report.splitlines()[1] == "Rule: 1.0 MiB a task, 1 to 200"
    assert "Warning: the application did not run under adaptive_batch" in report


def test_the_table_compares_the_actual_parallelism_with_the_rule() -> None:
    found = application(
        stage(
            number=0,
            name="scan",
            shuffle_read_bytes=0,
            input_bytes=3 << 30,
            submitted=7.0,
            ended=9.0,
            shuffle_write_bytes=1 << 20,
        ),
        stage(),
        stage(number=4, tasks=2, spilled_bytes=2048, name="a description that is longer than its column"),
        skewed_partitions=2,
        skew_splits=9,
        warnings=("something is missing",),
    )
    assert table(found, OPTIONS, ["a hint"]).splitlines() == [
        "orders (app-1)",
        "Rule: 100 B a task, 1 to 8",
        "",
        "stage  of                           at   took  tasks  rule    input  shuffle  largest  skew  spilled  written",
        "    0  scan                      0.0 s  2.0 s      4     -  3.0 GiB        -    150 B   1.5        -  1.0 MiB",
        "    3  join                      3.0 s  2.5 s      4     4        -    400 B    150 B   1.5        -        -",
        "    4  a description that is...  3.0 s  2.5 s      2     4        -    400 B    150 B   1.5  2.0 KiB        -",
        "",
        "Stages that read shuffles: 2, of which 2 have from half to twice as many tasks as by the rule.",
        "Skewed partitions of joins: 2, split into 9 tasks.",
        "Warning: a hint.",
        "Warning: something is missing.",
    ]


def test_the_table_shows_deviations_from_the_rule() -> None:
    stages = (
        stage(tasks=20),
        stage(attempt=1, status="FAILED", tasks=20),
        stage(number=4, status="ACTIVE", ended=None),
    )
    lines = table(application(*stages, stage(number=6, streaming=True)), OPTIONS).splitlines()
    assert [(row.split()[0], row.rpartition("  ")[2]) for row in lines[4:7]] == [
        ("3", "not by the rule"),
        ("3.1", "failed"),
        ("4", "active"),
    ]
    assert lines[8].startswith("Stages that read shuffles: 1, of which 0 have")
    assert lines[-1] == "Warning: stages of streaming queries are left out (1): the rule is for batch jobs."


def test_an_application_without_stages_has_a_report() -> None:
    assert "Stages that read shuffles: 0" in table(application(), OPTIONS)


def test_levels_are_the_sums_of_slots_over_time() -> None:
    plot = pytest.importorskip("autoscaler.injob.batch_plot", reason="needs matplotlib")
    assert plot.levels([(1.0, 14.0, 2), (8.0, None, 1), (12.0, 14.0, 4)], 10.0, 20.0) == (
        [0.0, 2.0, 4.0, 10.0],
        [3, 7, 1, 1],
    )
    assert plot.levels([(5.0, 8.0, 2)], 10.0, 10.0) == ([0.0], [0])


@pytest.mark.parametrize("stages", [(), (stage(streaming=True),), (stage(number=5, ended=None),)])
def test_applications_with_almost_no_data_can_be_drawn(tmp_path: Path, stages: tuple[Stage, ...]) -> None:
    plot = pytest.importorskip("autoscaler.injob.batch_plot", reason="needs matplotlib")
    plot.draw(application(*stages), OPTIONS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_is_drawn_into_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    batch_report(LOG, plot=tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
