from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="numpy is not installed (extra simulate)")

from autoscaler.cli import main
from autoscaler.simulation.baselines import ABLATIONS
from autoscaler.simulation.families import FAMILIES, FOLDS

TINY = ("benchmark", "--loads", "1", "--hours", "1.1", "--processes", "1")
TWO = ("--policy", "adaptive", "--policy", "static")
ONE = ("--policy", "static")


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOSCALER_TRACES", raising=False)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _families(found: Any) -> list[str]:
    return list(dict.fromkeys(one["family"] for one in found["runs"]))


def test_equal_seeds_give_equal_figures_with_any_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    one = _json(capsys, *TINY, *ONE, "--generalize", "verdict")
    assert one == _json(capsys, *TINY[:-2], *ONE, "--generalize", "verdict", "--processes", "2")
    assert one["digest"] != _json(capsys, *TINY, *ONE, "--generalize", "verdict", "--seed", "2")["digest"]


@pytest.mark.parametrize("fold", range(1, len(FOLDS) + 1))
def test_the_verdict_uses_families_that_were_held_out_of_development(
    fold: int, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ("--fold", str(fold))
    develop = _json(capsys, *TINY, *ONE, *of, "--generalize", "develop")
    verdict = _json(capsys, *TINY, *ONE, *of, "--generalize", "verdict")
    assert sorted(_families(verdict)) == sorted(FOLDS[fold - 1])
    assert not set(_families(develop)) & set(_families(verdict))
    assert {*_families(develop), *_families(verdict)} == set(FAMILIES)
    assert {run["kept"] for run in develop["runs"]} == {False}
    assert {run["kept"] for run in verdict["runs"]} == {True}


def test_every_family_is_used_for_development_and_held_out_and_the_verdict_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = _json(capsys, *TINY, *ONE, "--generalize", "all")
    assert len(found["runs"]) == 2 * len(FAMILIES)
    kept = [run["rest"] for run in found["runs"] if run["kept"]]
    assert found["summaries"][0]["runs"] == len(kept) == len(FAMILIES)
    assert found["summaries"][0]["violation"]["worst"] == max(score["violation"] for score in kept)
    assert all(run["first"]["hours"] == 1.0 for run in found["runs"])


def _tables(output: str) -> dict[str, list[str]]:
    """The first word of each title, and the first cells of its table's rows, including the last lines of a head."""
    tables = re.findall(r"^(\S+).*:\n\n((?:.+\n)+)", output, re.MULTILINE)
    return {title: [row.split("  ")[0].strip() for row in rows.splitlines()] for title, rows in tables}


def test_tables_show_figures_combinations_and_splits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *TWO, "--policy", "adaptive-oracle", "--generalize", "all"]) == 0
    output = capsys.readouterr()
    tables = _tables(output.out)
    assert list(tables) == ["Mean,", "J", "adaptive,"]
    assert tables["Mean,"][-3:] == ["adaptive", "static", "adaptive-oracle"]
    assert tables["J"][1:] == [*FAMILIES, "all"]
    assert [row.split(":")[0] for row in tables["adaptive,"][-len(FOLDS) :]] == ["1", "2", "3", "4"]
    # an oracle is no competitor, and `static` hardly ever
    counted = output.out.partition("Another rule without foresight is better than adaptive by more than 0.05 on ")[2]
    assert counted.splitlines()[0].endswith(f" of {len(FAMILIES)} loads.")
    assert "adaptive-oracle" not in counted
    assert output.err.startswith("16 loads, ")


def test_an_ablation_shows_each_disabled_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *TWO, "--generalize", "verdict", "--ablate"]) == 0
    tables = _tables(capsys.readouterr().out)
    assert tables["Mean,"][-2:] == ["adaptive", "static"]
    assert tables["adaptive"][-1 - len(ABLATIONS) :] == ["adaptive", *ABLATIONS]


def test_a_loss_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    bad = "adaptive={policies: {}, min: 24, max: 24}"
    assert main([*TINY, "--generalize", "verdict", "--policy", bad, "--policy", "static"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "Another rule without foresight is better than adaptive by more than 0.05 on 2 of 2 loads."
    assert all(" 0 on " in line and ", static " in line for line in lines[-2:])


def test_a_single_policy_has_no_competitors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *ONE, "--generalize", "all"]) == 0
    output = capsys.readouterr().out
    assert "in brackets" not in output
    assert "cross-validated" not in output
    assert "Another rule" not in output


def test_tables_for_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *ONE, "--generalize", "verdict", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| policy | J | cost |")
    assert lines[4].startswith("| static | ")


def test_an_ablation_includes_the_default_policy(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, *TINY, *ONE, "--generalize", "verdict", "--ablate")
    assert [one["policy"] for one in found["summaries"]] == ["static", "adaptive", *ABLATIONS]


def test_recorded_traces_are_used_for_the_verdict_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        lines = [f"{at},{100 + at % 600}" for at in range(0, 7201, 60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["t_seconds,value", *lines]))
    traces = ("--traces", str(tmp_path))
    verdict = _json(capsys, *TINY, *ONE, *traces, "--generalize", "verdict")
    assert _families(verdict) == [*sorted(FOLDS[0], key=list(FAMILIES).index), "recorded"]
    assert [run["number"] for run in verdict["runs"] if run["family"] == "recorded"] == [0, 1]  # each file once
    develop = _json(capsys, *TINY, *ONE, *traces, "--generalize", "develop")
    assert "recorded" not in _families(develop)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--generalize", "none"], "invalid choice: 'none'"),
        (["--generalize", "develop", "--fold", "5"], "--fold: invalid choice: 5"),
        (["--generalize", "all", "--fold", "1"], "--fold: has no effect with --generalize all"),
        (["--generalize", "all", "--fast"], "--fast: has no effect with --generalize all"),
        (["--generalize", "verdict", "--plant", "k8s"], "--plant: has no effect with --generalize verdict"),
        (["--loads", "2"], "--loads: has no effect without --generalize"),
        (["--ablate"], "--ablate: has no effect without --generalize"),
        (["--generalize", "verdict", "--hours", "1"], "--hours 1: expected more than 1"),
        (["--generalize", "verdict", "--policy", "mine={type: hpa, goal: 1}"], "mine:1: policies.mine.goal: "),
        (["--generalize", "verdict", "--traces", "no/where"], "--traces no/where: has no CSV file"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_too_short_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "short.csv"
    file.write_text("t_seconds,value\n0,1\n3600,2\n")
    assert main([*TINY, *ONE, "--generalize", "verdict", "--traces", str(tmp_path)]) == 2
    assert f"{file}: expected more than 1 hour, because the first hour is scored separately" in capsys.readouterr().err
