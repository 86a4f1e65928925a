"""`autoscaler history query`: SQL over a dataset."""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger

from autoscaler.cli import history_query
from autoscaler.core.model import Decision, Observation, Reading, Reason
from autoscaler.history.dataset import DatasetError
from autoscaler.ports import ConfigurationError, Record
from tests.history import written

pytestmark = pytest.mark.usefixtures("spark")

BEGIN = datetime(2026, 1, 5, 12, tzinfo=UTC)
DOCUMENT = Path(__file__).parents[2] / "docs" / "history.md"


def record(cluster: str, number: int) -> Record:
    at = BEGIN + timedelta(minutes=number)
    metrics = {"lag": Reading(10.0 * number, at), "cpu": Reading(0.5, at)}
    missing = {"throughput": "no sample"} if number == 3 else {}
    return Record(
        Observation(at=at, desired=4, ready=4, metrics=metrics, missing=missing),
        Decision(cluster=cluster, at=at, current=4, proposed=4, desired=4, reason=Reason.STEADY),
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [record(cluster, number) for cluster in ("orders", "clicks") for number in range(5)]
    place = written.dataset(tmp_path_factory.mktemp("query") / "dataset", records)
    rescale = {
        "cluster": "orders",
        "at": BEGIN,
        "before": 4,
        "after": 8,
        "direction": "up",
        "cause": "request",
        "absorbed_s": 42.5,
        "outcome": "settled",
    }
    written.write(place, "rescales", [rescale])
    return place


def ask(dataset: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    history_query.register(parser.add_subparsers())
    return history_query.run(parser.parse_args(["query", str(dataset), *arguments]))


def test_a_query_prints_a_table(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "SELECT cluster, max(lag) AS worst, min(at) AS since, null AS n FROM observations GROUP BY cluster ORDER BY 1"
    )
    assert ask(dataset, asked) == 0
    lines = [line.split("  ") for line in re.sub(r" {2,}", "  ", capsys.readouterr().out).splitlines()]
    assert lines == [
        ["cluster", "worst", "since", "n"],
        ["clicks", "40", "2026-01-05 12:00:00", "-"],
        ["orders", "40", "2026-01-05 12:00:00", "-"],
    ]


def test_json_and_csv_have_all_columns_of_a_row(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "SELECT at, metrics['cpu'] AS cpu, missing, double('NaN') AS odd, 1 AS one, 2 AS one, 'a\"b\nc' AS text "
        "FROM observations WHERE cluster = 'orders' AND missing['throughput'] IS NOT NULL"
    )
    assert ask(dataset, asked.replace("2 AS one, ", ""), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    at = "2026-01-05T12:03:00+00:00"
    cpu: dict[str, Any] = {"value": 0.5, "values": None, "at": at, "partitions": None, "parts": {}, "over": 0.0}
    assert row == {
        "at": at, "cpu": cpu, "missing": {"throughput": "no sample"}, "odd": "NaN", "one": 1, "text": 'a"b\nc'
    }  # fmt: skip
    assert ask(dataset, asked, "--csv") == 0
    head, cells = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == ["at", "cpu", "missing", "odd", "one", "one", "text"]
    assert cells == [at, json.dumps(cpu), '{"throughput": "no sample"}', "NaN", "1", "2", 'a"b\nc']


def test_the_limit_of_rows_is_applied(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dataset, "SELECT * FROM observations", "--limit", "3", "--json") == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 3
    assert printed.err == "There are more than 3 rows: --limit prints more of them.\n"
    assert ask(dataset, "SELECT * FROM observations", "--limit", "10", "--json") == 0
    printed = capsys.readouterr()
    assert (len(json.loads(printed.out)), printed.err) == (10, "")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("SELECT lagg FROM observations", r"`lagg` cannot be resolved. Did you mean .*`lag`.*line 1 pos 7$"),
        ("SELECT * FROM observation", r"The table or view `observation` cannot be found.*"),
        ("SELECT cluster FORM observations x", r"\[PARSE_SYNTAX_ERROR\] Syntax error at or near .*line 1, pos.*"),
        ("SELECT 1 / (desired - 4) FROM observations", r"\[DIVIDE_BY_ZERO\] Division by zero.*"),
        ("SELECT int(cluster) FROM observations", r"\[CAST_INVALID_INPUT\] The value '.*' of the type.*"),
    ],
)
def test_an_error_of_a_query_is_one_line(dataset: Path, asked: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ask(dataset, asked)
    (line,) = raised.value.problems
    assert "\n" not in line
    assert line.startswith("history query: ")
    assert re.search(says, line), line


def test_an_error_of_a_query_is_not_logged_as_well(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[logging.LogRecord] = []
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    monkeypatch.setattr(logger, "handle", logged.append)
    with pytest.raises(ConfigurationError):
        ask(dataset, "SELECT lagg FROM observations")
    assert logged == []


def test_the_plan_is_printed_beside_the_result(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "SELECT count(*) AS n FROM observations WHERE date = '2026-01-05'"
    assert ask(dataset, asked, "--explain", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [{"n": 10}]
    assert "== Physical Plan ==" in printed.err
    assert "PartitionFilters: [isnotnull(date" in printed.err


def test_profiles_are_a_table_if_they_exist(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["SELECT cluster FROM profiles", "--profiles", str(tmp_path), "--json"]
    with pytest.raises(ConfigurationError, match="contains no profile"):
        ask(dataset, *asked)
    for cluster in ("orders", "_clicks"):
        profile = {"format": "autoscaler-profile", "version": 1, "cluster": cluster}
        (tmp_path / f"{cluster}.json").write_text(json.dumps(profile, indent=2))
    assert ask(dataset, *asked) == 0
    assert {row["cluster"] for row in json.loads(capsys.readouterr().out)} == {"orders", "_clicks"}
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigurationError, match=r"folder\.json: cannot be read: Is a directory"):
        ask(dataset, *asked)


def test_a_damaged_file_is_named(dataset: Path, tmp_path: Path) -> None:
    del dataset
    broken = written.dataset(tmp_path / "dataset", [record("orders", 0)])
    (file,) = broken.glob("observations/*/*.parquet")
    file.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(DatasetError, match=r"part-0.parquet: cannot be read"):
        ask(broken, "SELECT * FROM observations")


EXAMPLES = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("asked", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_documentation_run(dataset: Path, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dataset, asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found or "rejected" in asked


def test_there_are_examples_in_the_documentation() -> None:
    assert len(EXAMPLES) >= 6
