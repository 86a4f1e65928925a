from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="numpy is not installed (extra simulate)")

from autoscaler.cli import benchmark, benchmark_run, main
from autoscaler.cli.benchmark_run import cluster
from autoscaler.ports import ConfigurationError
from autoscaler.simulation.baselines import BASELINES
from autoscaler.simulation.benchmark import FAST
from autoscaler.simulation.plant import PLANTS

SMALL = ("benchmark", "--plant", "k8s", "--scenario", "steps6h", "--seeds", "1", "--processes", "1")
ONE = "one={type: target-tracking, metric: cpu, target: 0.5}"


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOSCALER_TRACES", raising=False)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_equal_seeds_give_equal_figures_with_any_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("benchmark", "--plant", "k8s", "--plant", "ec2", "--scenario", "steps6h", "--seeds", "2")
    policies = ("--policy", "static", "--policy", ONE)
    one = _json(capsys, *common, *policies, "--processes", "1")
    two = _json(capsys, *common, *policies, "--processes", "2")
    assert one == two
    other = _json(capsys, *common, "--policy", ONE, "--policy", "static", "--processes", "1")
    assert other["digest"] == one["digest"]
    assert [(run["plant"], run["policy"], run["seed"]) for run in one["runs"]] == [
        (plant, policy, seed) for plant in ("k8s", "ec2") for policy in ("static", "one") for seed in (1, 2)
    ]
    static = one["runs"][0]["score"]
    assert static["cost"] == 18 * 6
    assert (static["rescales"], static["violation"]) == (0, 0)


def test_tables_show_means_scenarios_and_the_best_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policy", "static", "--policy", "adaptive", "--each"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0] == "k8s: objective 60 s, 1 scenario, 1 seed"
    titles = [number for number, line in enumerate(lines) if line.startswith("steps6h ")]
    rows = [lines[number + 1 : number + 3] for number in titles]
    assert [[line.split()[0] for line in some] for some in rows] == [["static", "adaptive"]]
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("static ") and line.endswith("1 of 1") for line in lines)
    assert "J of adaptive is the lowest in 1 of 1" in output.out
    assert "CPU seconds for a simulated day: static " in output.err


def test_a_table_for_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--policy", "static", "--markdown"]) == 0
    head, line, row = capsys.readouterr().out.splitlines()
    assert (head, line) == ("| policy | cost | too late | rescales/h | J |", "|---|---|---|---|---|")
    assert row == "| `static` | 2.32 | 0.00% | 0.0 | 2.32 |"


def test_the_gate_accepts_recorded_results_and_fails_on_worse_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.json"
    small = (*SMALL, "--policy", "adaptive")
    assert main([*small, "--record", str(file)]) == 0
    assert main([*small, "--against", str(file)]) == 0
    assert f"nothing is worse than {file}" in capsys.readouterr().err
    before = json.loads(file.read_text())
    before["plants"]["k8s"]["cost"] /= 1.05
    file.write_text(json.dumps(before))
    assert main([*small, "--against", str(file)]) == 1
    assert f"worse than {file}:\n  k8s: cost is " in capsys.readouterr().err
    # it ignores other loads
    assert main([*SMALL, "--scenario", "waves6h", "--policy", "adaptive", "--against", str(file)]) == 2
    assert "scenarios: recorded of ['steps6h']" in capsys.readouterr().err


def test_a_picture_is_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "costs.png"
    assert main([*SMALL, "--policy", "static", "--policy", ONE, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    (tmp_path / "taken").mkdir()
    assert main([*SMALL, "--policy", "static", "--record", str(tmp_path / "taken")]) == 1
    assert f"{tmp_path / 'taken'}: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("module", "extra"), [("numpy", "simulate"), ("matplotlib", "plot")])
def test_a_missing_extra_is_reported_before_anything_runs(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import autoscaler.cli  # noqa: PLC0415
    import autoscaler.simulation  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, module, None)
    for package, name in (
        (autoscaler.simulation, "optimum"),
        (autoscaler.cli, "benchmark_plot"),
        (autoscaler, "plot_style"),
    ):
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    assert main([*SMALL, "--plot", str(tmp_path / "costs.png")]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert f"pip install '.[{extra}]'" in output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "mine"], "mine: expected NAME=SETTINGS, or one of static, hpa70"),
        (["--policy", "mine={type: target-tracking, metric: cpu, goal: 1}"], "mine:1: policies.mine.goal: unknown key"),
        (["--seeds", "0"], "'0' is not a number from 1"),
        (["--scenario", "traffic7h"], "traffic7h: is a recorded trace: use --traces"),
        (["--against", "nothing.json"], "nothing.json"),
        (["--plot", "no/where/costs.png"], "no/where: is not a directory"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_recorded_loads_are_used_if_there_are_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{at},{100 + at % 600}" for at in range(0, 3601, 5)]
    (tmp_path / "daedalus_sine_1s_6h.csv").write_text("\n".join(["t_seconds,value", *lines]))
    monkeypatch.setenv("AUTOSCALER_TRACES", str(tmp_path))
    arguments = ("benchmark", "--plant", "k8s", "--scenario", "sine6h", "--policy", "static", "--processes", "1")
    found = _json(capsys, *arguments, "--seeds", "2")
    assert [run["scenario"] for run in found["runs"]] == ["sine6h", "sine6h"]
    assert found["runs"][0]["score"]["hours"] == 1.0


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("plant", PLANTS)
def test_every_baseline_can_be_created_for_every_plant(name: str, plant: str) -> None:
    spec = cluster(name, BASELINES[name], PLANTS[plant].slo, 123.4)
    assert spec.limits.maximum == (18 if name == "static" else 24)
    assert [named.name for named in spec.policies] == ([] if name == "static" else [name])
    for named in spec.policies:
        if hasattr(named.policy, "objective"):
            assert named.policy.objective.total_seconds() == PLANTS[plant].slo


def test_a_baseline_with_other_settings_keeps_its_guards_or_their_absence() -> None:
    name, baseline = benchmark.policy("ds2={type: ds2}")
    assert (name, baseline.settings, baseline.bare) == ("ds2", "{type: ds2}", True)
    assert benchmark.policy("mine={type: ds2}")[1].bare is False


def test_all_problems_of_invalid_settings_are_reported() -> None:
    with pytest.raises(ConfigurationError) as caught:
        cluster("mine", benchmark.policy("mine={policies: {}, min: x, max: y}")[1], 60.0, 1.0)
    assert len(caught.value.problems) == 2


def test_a_load_beyond_every_size_has_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    from autoscaler.simulation.loads import Load  # noqa: PLC0415

    monkeypatch.setattr(benchmark_run, "LARGEST", 2)
    assert benchmark_run.least(Load("much", (1.0,) * 120), PLANTS["k8s"]) is None


def test_the_pages_name_every_policy_plant_and_option() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "contributing" / "benchmark.md").read_text()
    table = (root / "README.md").read_text().partition("<!-- benchmark -->")[2].partition("<!-- /benchmark -->")[0]
    assert [line.split("`")[1] for line in table.strip().splitlines()[2:]] == list(BASELINES)
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    options = [action.option_strings[0] for action in parser._actions[1:]]
    for name in (*BASELINES, *PLANTS, *FAST, *options):
        assert f"`{name}`" in page or f"`{name} " in page, name
