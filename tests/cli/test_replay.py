"""`autoscaler replay` as used at a terminal or by a script."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoscaler import cli

CONFIG = """
sources:
  prom: {type: prometheus, url: 'http://127.0.0.1:9', token: '${NOBODY_HAS_SET_THIS}'}
clusters:
  orders:
    target: {type: advice}
    min: 1
    max: 12
    metrics: {cpu: {source: prom, query: cpu}}
    policies: {busy: {type: target-tracking, metric: cpu, target: 0.7}}
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hours of a simulation: the load rises after the first."""
    directory = tmp_path_factory.mktemp("simulated")
    (directory / "config.yaml").write_text(CONFIG)
    trace = directory / "trace"
    arguments = ["simulate", directory / "config.yaml", "--load", "steps6h", "--hours", 2, "--record", trace]
    assert cli.main(list(map(str, arguments))) == 0
    return trace


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def replay(*arguments: object) -> int:
    return cli.main(["replay", *map(str, arguments)])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert replay(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def changed(config: Path, before: str, after: str) -> None:
    assert before in CONFIG
    config.write_text(CONFIG.replace(before, after))


def test_a_recorded_simulation_gives_the_same_decisions(
    trace: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(trace, config) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "orders: 480 decisions from 2026-01-05 00:00:15 to 2026-01-05 02:00:00 (1 h 59 min)." in shown.out
    assert "480 the same, 0 different (0.0%)\n" in shown.out
    found = as_json(capsys, trace, config)["clusters"]["orders"]
    assert (found["decisions"], found["equal"], found["differences"]) == (480, 480, [])
    assert found["rescales"]["recorded"] == found["rescales"]["agreed"] > 1
    assert found["replica_hours"]["recorded"] == found["replica_hours"]["again"] > 0


def test_a_single_file_is_read_like_a_directory(trace: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, trace / "2026-01-05T00.jsonl", config)["clusters"]["orders"]
    assert found["decisions"] == 239


def test_differences_are_reported_with_the_first_part_that_differs(
    trace: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(config, "target: 0.7}", "target: 0.35}")
    assert replay(trace, config) == 0
    shown = capsys.readouterr().out
    assert "different (" in shown
    assert "policy busy" in shown
    assert "Every decision sees the recorded sizes: a different decision has no effect on the next one" in shown
    found = as_json(capsys, trace, config, "--explain")["clusters"]["orders"]
    assert found["equal"] < found["decisions"]
    assert found["replica_hours"]["again"] > found["replica_hours"]["recorded"]
    first = found["differences"][0]
    assert first["why"]["stage"] == "policy busy"
    assert "at target 0.7" in first["why"]["recorded"]
    assert "at target 0.35" in first["why"]["again"]
    assert first["again"][0] > first["recorded"][0]
    assert "What the policies asked for:" in first["explanations"]["recorded"]
    assert "at target 0.35" in first["explanations"]["again"]
    assert replay(trace, config, "--explain") == 0
    shown = capsys.readouterr().out
    assert shown.count("Recorded:\n") == shown.count("Replayed:\n") == len(found["differences"])


def test_a_guard_that_differs_is_named(trace: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(config, "max: 12", "max: 12\n    up: {select: disabled}")
    found = as_json(capsys, trace, config)["clusters"]["orders"]
    assert {one["why"]["stage"] for one in found["differences"]} == {"rate_limit"}
    assert "disabled" in found["differences"][0]["why"]["again"]


def test_only_the_requested_time_is_compared(trace: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = ("--from", "2026-01-05T01:00:00", "--to", "2026-01-05T01:30:00Z")
    found = as_json(capsys, trace, config, *times)["clusters"]["orders"]
    assert (found["decisions"], found["from"], found["to"]) == (
        121,
        "2026-01-05T01:00:00+00:00",
        "2026-01-05T01:30:00+00:00",
    )
    assert found["equal"] == 121
    assert replay(trace, config, "--from", "2027-01-01T00:00:00Z") == 2
    assert "has no decision between --from and --to" in capsys.readouterr().err
    assert replay(trace, config, "--from", "yesterday") == 2
    assert "'yesterday' is not a time" in capsys.readouterr().err


def test_unrecorded_metrics_are_reported(trace: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(
        config,
        "metrics: {cpu: {source: prom, query: cpu}}",
        "metrics: {cpu: {source: prom, query: c}, lag: {source: prom, query: l}}",
    )
    assert replay(trace, config) == 0
    assert "The trace never has lag, which the configuration uses" in capsys.readouterr().out
    assert as_json(capsys, trace, config)["clusters"]["orders"]["missing"] == ["lag"]


def test_several_clusters_in_one_file_are_distinguished(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (trace / "2026-01-05T00.jsonl").read_text().splitlines()
    both = [
        text
        for line in lines
        for text in (
            line,
            line.replace('"cluster":"orders"', '"cluster":"clicks"'),
            line.replace('"cluster":"orders"', '"cluster":"views"'),
        )
    ]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join(both) + "\n")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG + CONFIG.partition("clusters:")[2].replace("orders:", "clicks:").replace("0.7", "0.3"))
    assert replay(mixed, config) == 0
    shown = capsys.readouterr()
    assert "orders: 239 decisions" in shown.out
    assert "clicks: 239 decisions" in shown.out
    assert shown.err == f"Not compared: views (239 records); {config} has clicks, orders.\n"
    found = as_json(capsys, mixed, config)
    assert found["left_out"] == {"views": 239}
    assert found["clusters"]["orders"]["equal"] == 239
    assert found["clusters"]["clicks"]["equal"] < 239
    assert set(as_json(capsys, mixed, config, "--cluster", "clicks")["clusters"]) == {"clicks"}


def test_a_cluster_recorded_under_another_name_can_be_selected(
    trace: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(config, "orders:", "renamed:")
    assert replay(trace, config) == 2
    assert (
        f"has records of orders, but {config} has the clusters renamed; use --cluster orders if"
        in capsys.readouterr().err
    )
    assert as_json(capsys, trace, config, "--cluster", "orders")["clusters"]["orders"]["equal"] == 480
    assert replay(trace, config, "--cluster", "renamed") == 2
    assert "has no record of cluster 'renamed'; it has records of orders" in capsys.readouterr().err
    config.write_text(CONFIG + CONFIG.partition("clusters:")[2].replace("orders:", "clicks:"))
    assert replay(trace, config, "--cluster", "order") == 2
    assert "expected one of clicks, orders; did you mean 'orders'?" in capsys.readouterr().err


def test_unreadable_lines_are_counted_and_reported_and_cost_no_other_line(
    trace: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (trace / "2026-01-05T00.jsonl").read_text()
    torn = tmp_path / "2026-01-05T00.jsonl"
    torn.write_text("nonsense\n" + text + text.splitlines()[0][:100])
    assert replay(torn, config) == 0
    shown = capsys.readouterr()
    assert "239 decisions" in shown.out
    assert "2 lines could not be read and are left out:" in shown.err
    assert f"{torn}:1: Invalid JSON" in shown.err
    assert f"{torn}:241: is cut off; a daemon may still be writing it" in shown.err
    assert len(as_json(capsys, torn, config)["unreadable"]) == 2


def test_a_damaged_file_of_a_directory_is_named_and_costs_only_its_remaining_lines(
    trace: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "history"
    directory.mkdir()
    first, second = (trace / f"2026-01-05T{hour}.jsonl" for hour in ("00", "01"))
    (directory / first.name).write_bytes(first.read_bytes())
    damaged = directory / f"{second.name}.gz"
    packed = gzip.compress(second.read_bytes())
    damaged.write_bytes(packed[: len(packed) // 2])
    counts = []
    for whole in (False, True):
        if whole:
            damaged.write_bytes(packed)
        assert replay(directory, config) == 0
        shown = capsys.readouterr()
        counts.append(int(re.findall(r"(\d+) decisions", shown.out)[0]))
        assert (f"{damaged}: cannot be read: Compressed file ended" in shown.err) is not whole
        assert len(as_json(capsys, directory, config)["unreadable"]) == (not whole)
    assert 239 < counts[0] < counts[1]
    damaged.write_bytes(b"no gzip")
    assert replay(directory, config, "--from", "2026-01-05T01:00Z") == 2
    assert f"{damaged}: cannot be read: Not a gzipped file" in capsys.readouterr().err
    assert replay(damaged, config) == 2
    assert f"has no readable record; {damaged}: cannot be read: Not a gzipped file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "trace.jsonl: has no readable record"),
        ("nonsense\n", "trace.jsonl:1: Invalid JSON"),
        (None, "trace.jsonl: there is no such file or directory"),
    ],
)
def test_a_trace_without_records_is_an_error(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, expected: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text)
    assert replay(path, config) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert expected in shown.err


def test_an_invalid_configuration_is_reported_as_by_check(
    trace: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(config, "max: 12", "max: 0")
    assert replay(trace, config) == 2
    assert f"{config}:8: clusters.orders.max: must be 1 or more, not 0" in capsys.readouterr().err


def test_a_long_list_shows_the_most_important_differences_in_order_of_time(
    trace: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Every other record proposes more than it got: as many periods.
    lines = (trace / "2026-01-05T00.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[:140]]
    for number, record in enumerate(records):
        current = record["decision"]["current"]
        record["decision"].update(proposed=current, desired=current, recommendations=[])
        del record["decision"]["guards"]
        record["observation"].update(desired=5, ready=5)
        record["decision"].update(current=5, desired=5, proposed=5)
        record["observation"]["metrics"]["cpu"]["value"] = 0.7 if number % 2 else 0.7 + number / 500
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = as_json(capsys, path, config)["clusters"]["orders"]["differences"]
    assert replay(path, config) == 0
    shown = capsys.readouterr().out
    assert len(found) > 31
    assert f"... and {len(found) - 30} more periods, all smaller: --all lists them" in shown
    rows = [line.split()[1] for line in shown.splitlines() if line.startswith("2026")]
    assert rows == sorted(rows)
    assert len(rows) == 30
    assert replay(path, config, "--all") == 0
    assert sum(line.startswith("2026") for line in capsys.readouterr().out.splitlines()) == len(found)


def test_a_period_that_ends_on_another_day_shows_the_date(
    trace: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tmp_path / "late.jsonl"
    late.write_text((trace / "2026-01-05T00.jsonl").read_text().replace("2026-01-05T00:", "2026-01-04T23:"))
    changed(config, "target: 0.7}", "target: 0.05}")
    assert replay(late, config, "--from", "2026-01-04T23:59:00Z") == 0
    assert "2026-01-05 00:00:00" in capsys.readouterr().out
