"""The output in docs/simulate.md is the actual output."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.cli.plants import plant
from autoscaler.simulation.batch import BatchJob, Stage, Workload
from autoscaler.simulation.faults import DESCRIPTIONS
from autoscaler.simulation.loads import SYNTHETIC
from autoscaler.simulation.plant import PLANTS

TEXT = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
YAML = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
CONSOLE = re.findall(r"```console\n\$ autoscaler (.*?)\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_prints_the_documented_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clicks.yaml").write_text(YAML[0])
    Path("lower.yaml").write_text(YAML[0].replace("target: 0.7", "target: 0.5"))
    Path("jobs.yaml").write_text(YAML[2])
    Path("batch.yaml").write_text(YAML[3])
    assert len(CONSOLE) == 4
    for command, expected in CONSOLE:
        assert cli.main(shlex.split(command)) == (2 if "--load" in command and "--metric" not in command else 0)
        captured = capsys.readouterr()
        printed = (captured.out or captured.err).splitlines()
        for part in expected.split("...\n"):
            lines = part.rstrip("\n").split("\n") if part else []
            begins = [n for n in range(len(printed)) if printed[n : n + len(lines)] == lines]
            assert begins, f"autoscaler {command} does not print, after what was shown before:\n{part}"
            printed = printed[begins[0] + len(lines) :]


def test_the_plant_of_the_example_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plant.yaml"
    path.write_text(YAML[1])
    assert plant(str(path)).plant.slo == 180


def test_in_the_example_batch_costs_clearly_less_than_the_largest_size_and_dynamic_allocation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text(YAML[2])
    Path("batch.yaml").write_text(YAML[3])
    costs: Counter[str] = Counter()
    for seed in ("1", "2", "3"):
        assert cli.main(["simulate", "batch.yaml", "--jobs", "jobs.yaml", "--seed", seed, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["results"]
        costs.update({name: result["worker_seconds"] for name, result in found.items()})
        times = {name: result["job_times"][0] for name, result in found.items()}
        assert times["nightly"] < 1.2 * times["always 16"]
    assert costs["nightly"] < 0.8 * costs["always 16"]
    assert costs["nightly"] < 0.85 * costs["dynamic allocation"]


def test_all_keys_of_a_file_of_jobs_are_in_the_example() -> None:
    keys = [field.name for each in (Workload, BatchJob, Stage) for field in fields(each)]
    assert [key for key in keys if f"{key}:" not in YAML[2]] == []


def test_the_plants_equal_those_of_the_table() -> None:
    for name, spec in PLANTS.items():
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |"))
        numbers = [float(number) for number in re.findall(r"(\d+) s", row)]
        assert numbers == [spec.startup, spec.restart_up, spec.restart_down + spec.heartbeat, spec.checkpoint, spec.slo]


def test_every_fault_is_in_the_table_with_its_default_amount() -> None:
    rows = [
        (name, text)
        for name, text in re.findall(r"^\| `(\w+)` \| (.*?) \|$", TEXT, re.MULTILINE)
        if name in DESCRIPTIONS
    ]
    assert [name for name, _ in rows] == list(DESCRIPTIONS)
    for name, text in rows:
        number = re.match(r"\d+", DESCRIPTIONS[name].default)
        assert number is not None
        assert f" {number[0]} " in f" {text} " or text.endswith("in an hour"), name


def test_every_synthetic_load_is_named() -> None:
    assert [name for name in SYNTHETIC if f"`{name}`" not in TEXT] == []


def test_the_keys_of_a_plant_are_explained_in_its_docstring() -> None:
    spec = type(PLANTS["k8s"])
    assert [field.name for field in fields(spec) if field.name not in (spec.__doc__ or "")] == []
