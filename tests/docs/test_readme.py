from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.simulation.baselines import BASELINES
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_its_first_configuration_is_the_example_with_adaptive_alone() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block == re.sub(r"\A(#.*\n|\n)*", "", (ROOT / "examples" / "flink-kubernetes.yaml").read_text())
    assert block.count("type: adaptive") == block.count("policies:") == 1


def test_its_explanation_is_the_output_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (command,) = re.findall(r"^autoscaler (simulate .*)$", README, re.MULTILINE)
    (shown,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert cli.main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    for part in shown.split("...\n"):
        assert part in printed
        printed = printed[printed.index(part) + len(part) :]


def test_its_table_has_every_policy_of_the_benchmark_and_the_formula_of_j() -> None:
    table = README.partition("<!-- benchmark -->")[2].partition("<!-- /benchmark -->")[0]
    rows = [line.split("|")[1:-1] for line in table.strip().splitlines()[2:]]
    assert [row[0].strip(" `") for row in rows] == list(BASELINES)
    assert "J = cost + 10 x share too late + 0.02 x rescales/h" in README
    for _, cost, late, rescales, j in rows:
        # J is a mean over the loads, cost a geometric mean: equal to within the difference of the two
        by_hand = float(cost) + 10 * float(late.strip().rstrip("%")) / 100 + 0.02 * float(rescales)
        assert float(j) == pytest.approx(by_hand, rel=0.03)
    recorded = json.loads((ROOT / "tests" / "benchmarks" / "recorded.json").read_text())["plants"]["k8s"]
    (shown,) = (row for row in rows if row[0].strip() == "`adaptive`")
    figures = (f"{recorded['cost']:.2f}", f"{recorded['violation']:.2%}", f"{recorded['rescales_per_hour']:.1f}")
    assert tuple(cell.strip() for cell in shown[1:4]) == figures


def test_the_cost_of_the_holding_cpu_policy_is_the_output_of_simulate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    assert "from 1.19 to 1.48 times what the arrivals need" in README
    example = (ROOT / "examples" / "flink-kubernetes.yaml").read_text()
    both = example.replace("    policies:\n", "      cpu: {source: flink, metric: cpu}\n    policies:\n")
    both += "      cpu: {type: target-tracking, metric: cpu, target: 0.7}\n    combine: max(main, min(cpu, current))\n"
    for text, *expected in ((example, "1.19", "0.07%"), (both, "1.48", "0.07%")):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        assert cli.main(["simulate", str(path), "--load", "waves6h"]) == 0
        printed = capsys.readouterr().out
        (cost,) = re.findall(r"relative to what the arrivals need +(\S+)", printed)
        (late,) = re.findall(r"time with a record too old +(\S+)", printed)
        assert [cost, late] == expected
