"""The parts of the demo with a batch job that need no cluster: options, tables, configuration, figures, picture."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from autoscaler.config.load import load
from autoscaler.core.model import Limits
from autoscaler.demo import run
from autoscaler.demo.live_view import LiveView
from autoscaler.demo.result import Rescale
from autoscaler.demo.spark_batch.cluster import Moment, read_results
from autoscaler.demo.spark_batch.config import Ports, configuration
from autoscaler.demo.spark_batch.job import VOLUME
from autoscaler.demo.spark_batch.result import BatchRun, problems, run_summary, summary
from autoscaler.demo.spark_batch.runner import BatchView, batch_options, describe_result, line
from autoscaler.demo.spark_batch.tables import LARGE_CUSTOMER, files, write_tables
from autoscaler.injob.batch_stages import Application, Executor, Stage
from tests.demo.test_demo_options import parsed

START = 1_000_000.0
OPTIONS = batch_options(6.0)


@pytest.mark.parametrize(("option", "value"), [("--load", "load.csv"), ("--duration", "120"), ("--open", None)])
def test_an_option_of_streaming_is_refused_by_name(
    option: str, value: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(parsed("--engine", "spark-batch", option, *filter(None, [value]), "--output", str(output))) == 2
    assert f"{option} is for streaming jobs: leave it out with --engine spark-batch" in capsys.readouterr().out
    assert not output.exists()


@pytest.mark.parametrize("engine", ["spark-batch", "spark"])
def test_missing_software_is_named_with_the_remedy(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several packages the error names the extra that has all of them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert run(parsed("--engine", engine, "--output", str(tmp_path / "out"))) == 1
    assert "the package pyspark is not installed: pip install '.[demo]'" in capsys.readouterr().out


@pytest.mark.parametrize("directory", ["plain", "with a blank: and # more"])
@pytest.mark.parametrize("limits", [(0, 4), (4, 4)])
def test_the_configuration_file_is_valid(tmp_path: Path, directory: str, limits: tuple[int, int]) -> None:
    place = tmp_path / directory
    text = configuration(
        Ports(1, 2, 3, 4, 5),
        app="job",
        limits=limits,
        state=place / "state",
        pool=place / "pool",
        memory="1g",
        worker_timeout=60,
    )
    path = tmp_path / "autoscaler.yaml"
    path.write_text(text)
    cluster = load(path, {}).clusters["demo"]
    assert cluster.spec.limits == Limits(*limits)
    assert cluster.spec.down.window.total_seconds() == 0
    assert set(cast("Any", cluster.spec.policies[0].policy).metrics) <= set(cluster.spec.metrics)


def test_one_customer_has_3_of_10_orders_and_the_tables_are_the_same_each_time(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra spark)")
    for name in ("one", "other"):
        write_tables(tmp_path / name, 0.25)
    tables = {name: pq.read_table(tmp_path / "one" / name) for name in ("customer", "orders", "lineitem")}
    assert {name: table.num_rows for name, table in tables.items()} == {
        "customer": 250,
        "orders": 2500,
        "lineitem": 10_000,
    }
    owners = Counter(tables["orders"]["o_custkey"].to_pylist())
    assert owners.pop(LARGE_CUSTOMER) == 750
    assert max(owners.values()) < 10
    assert set(owners) <= set(tables["customer"]["c_custkey"].to_pylist())
    assert len(list((tmp_path / "one" / "lineitem").iterdir())) == files(0.25) == 2
    for name, table in tables.items():
        assert table.equals(pq.read_table(tmp_path / "other" / name))


@pytest.mark.parametrize(("scale", "expected"), [(0.01, 1), (1, 8), (6, 48), (64, 64)])
def test_there_are_as_many_files_as_reading_tasks(scale: float, expected: int) -> None:
    assert files(scale) == batch_options(scale).default_source_parallelism == expected


def stage(number: int, began: float, ended: float | None, tasks: int, shuffle: int = 0, **changes: Any) -> Stage:
    times = tuple((START + began, None if ended is None else START + ended) for _ in range(tasks))
    whole = Stage(
        number=number,
        attempt=0,
        name="join",
        status="COMPLETE",
        tasks=tasks,
        submitted=START + began - 1,
        ended=None if ended is None else START + ended,
        input_bytes=0,
        shuffle_read_bytes=shuffle,
        shuffle_write_bytes=0,
        spilled_bytes=0,
        median_bytes=None,
        largest_bytes=None,
        streaming=False,
        task_times=times,
    )
    return replace(whole, **changes)


def good(**changes: Any) -> BatchRun:
    """1 worker from the start on, 4 from second 20 to 40, 1 until second 60."""
    run = BatchRun(
        application=Application(
            id="app-1",
            name="demo",
            stages=(stage(0, 10, 40, 4), stage(1, 41, 60, 1, shuffle=1 << 20)),
            executors=(Executor(START + 10, None, 1), Executor(START + 25, START + 38, 1)),
            skewed_partitions=1,
            skew_splits=8,
            conf={},
        ),
        began=START,
        ended=START + 60,
        workers=[(START - 5, 0), (START, 1), (START + 20, 4), (START + 40, 1), (START + 70, 0)],
        rescales=[Rescale(20.0, 1, 4, "48 tasks"), Rescale(38.0, 4, 1, "1 task"), Rescale(68.0, 1, 0, "no task")],
        left=0,
        failed_tasks=0,
        total=12,
        rows={"scores": [(1, 2)]},
    )
    return replace(run, **changes)


FIXED = good(workers=[(START - 30, 4)], rescales=[], left=None, ended=START + 50)


def test_worker_seconds_count_all_processes_while_the_job_runs() -> None:
    assert good().worker_seconds == 20 + 4 * 20 + 20
    assert FIXED.worker_seconds == 4 * 50
    assert good(workers=[]).worker_seconds == 0


def test_executor_seconds_count_from_registration_to_removal_or_to_the_end() -> None:
    assert good().executor_seconds == 50 + 13


def test_the_figures_of_a_run() -> None:
    figures = run_summary(good(), OPTIONS)
    assert (figures["time_s"], figures["worker_seconds"], figures["task_seconds"]) == (60, 120, 139)
    assert (figures["stages_that_read_shuffles"], figures["stages_by_the_rule"]) == (1, 1)
    assert figures["most_workers"] == 4
    assert figures["rescales"][0] == {"at": 20.0, "before": 1, "to": 4, "reason": "48 tasks"}


def test_a_good_run_is_a_success_and_is_described() -> None:
    result = summary(good(), FIXED, OPTIONS)
    assert (result["ok"], result["reasons"], result["results_equal"]) == (True, [], True)
    assert (result["fewer_worker_seconds"], result["more_time"]) == (0.4, 0.2)
    said = "\n".join(describe_result(result))
    assert "at 20 s: 1 -> 4 workers: 48 tasks" in said
    assert "40% fewer worker-seconds in 20% more time; results equal" in said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rescales": [Rescale(38.0, 4, 1, "")]}, "never requested more"),
        ({"rescales": [Rescale(20.0, 1, 4, ""), Rescale(68.0, 4, 0, "")]}, "never requested fewer workers while"),
        ({"left": 2}, "2 workers are left"),
        ({"failed_tasks": 1}, "1 tasks failed"),
        ({"total": 13}, "have written different results"),
        ({"rows": {"scores": [(1, 3)]}}, "have written different results"),
        (
            {"application": replace(good().application, stages=(stage(3, 1, 2, 1, attempt=1),))},
            "computed again under the autoscaler: 3.1",
        ),
    ],
)
def test_each_missing_part_is_a_failure_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = problems(good(**changes), FIXED)
    assert len(found) == 1
    assert reason in found[0]
    assert summary(good(**changes), FIXED, OPTIONS)["ok"] is False


def test_results_are_compared_in_order(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra spark)")
    import pyarrow.parquet as pq  # noqa: PLC0415 - it needs the package

    place = tmp_path / "scores"
    place.mkdir()
    for part, keys in enumerate(([3, 1], [2])):
        pq.write_table(pa.table({"key": keys, "value": [10 * key for key in keys]}), place / f"{part}.parquet")
    assert read_results(tmp_path) == {"scores": [(1, 10), (2, 20), (3, 30)]}


def test_the_picture_is_drawn_even_for_a_run_without_stages(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    from autoscaler.demo.spark_batch.plot import draw  # noqa: PLC0415 - it needs matplotlib

    draw(good(), FIXED, tmp_path / "good.png")
    empty = replace(good().application, stages=(), executors=())
    draw(good(application=empty, rescales=[]), FIXED, tmp_path / "empty.png")
    unfinished = replace(good().application, stages=(stage(0, 5, None, 2),))
    draw(good(application=unfinished), FIXED, tmp_path / "unfinished.png")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


CLUSTER: dict[str, Any] = {
    "current": 4,
    "rescale": {"before": 1, "to": 4, "at": "2026-01-01T10:00:20+00:00"},
    "observation": {"metrics": {"pending_tasks": {"value": 44.0}, "running_tasks": {"value": 1.0}}},
    "decision": {"reason": "above", "recommendations": [{"detail": "48 tasks [wait]"}]},
}


def test_observations_are_shown_in_lines_and_rescales_once() -> None:
    console = Console(file=io.StringIO(), width=300)
    view = BatchView(LiveView(console, None), "the autoscaler")
    moment = Moment(at=21.0, phase="score", cluster=CLUSTER, workers=1)
    view.update(moment)
    view.update(moment)
    assert cast("io.StringIO", console.file).getvalue().splitlines() == ["1 -> 4 workers (10:00:20)", line(moment)]
    assert line(moment) == "   21 s  1 running, 44 pending  workers 1 -> 4  score: 48 tasks [wait]"


def test_unknown_numbers_are_shown_as_question_marks() -> None:
    moment = Moment(at=1.0, phase="starting", cluster={}, workers=0)
    assert line(moment) == "    1 s  ? running, ? pending  workers 0  starting: (no decision yet)"


def test_the_volume_of_the_job_is_that_of_the_rule() -> None:
    assert (VOLUME, OPTIONS.settings.avg_data_volume_per_task) == ("1m", 1 << 20)
