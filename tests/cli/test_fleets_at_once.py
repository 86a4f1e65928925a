"""Commands on a configuration with fleets: commands that connect find the members."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.cli.configuration import summarized
from autoscaler.cli.daemon_client import find_daemon

FLEET = """
daemon: {directory: var, listen: '127.0.0.1:0'}
fleets:
  jobs:
    discover: {type: files, path: jobs}
    name: "prod/${name}"
    template:
      target: {type: advice, size: "${values.size | 2}"}
      interval: 2s
      min: "${values.min | 1}"
      max: "${values.max | 5}"
      policies: {calendar: {type: schedule, windows: [{name: new-year, start: '0 0 1 1 *', duration: 1s, min: 1}]}}
"""
STATIC = """
clusters:
  own:
    target: {type: advice, size: 2}
    max: 5
    policies: {calendar: {type: schedule, windows: [{name: new-year, start: '0 0 1 1 *', duration: 1s, min: 1}]}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(FLEET)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "orders.yaml").write_text("min: 3\n")
    (tmp_path / "jobs" / "clicks.yaml").write_text("{}\n")
    return path


def test_check_without_connecting_checks_the_template(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(fleet)]) == 0
    assert capsys.readouterr().out == f"{fleet} is valid: 1 fleet: jobs\n"
    fleet.write_text(FLEET + STATIC)
    assert cli.main(["check", str(fleet)]) == 0
    assert capsys.readouterr().out == f"{fleet} is valid: 1 cluster: own; 1 fleet: jobs\n"
    assert cli.main(["check", str(fleet), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clusters"], found["fleets"]) == (["own"], ["jobs"])
    fleet.write_text(FLEET.replace("${values.min", "${value.min"))
    assert cli.main(["check", str(fleet)]) == 2
    assert capsys.readouterr().err.startswith(
        f"{fleet}:10: fleets.jobs.template.min: unknown variable value in ${{value.min | 1}}; variables: name, values"
    )


def test_a_file_with_fleets_only_names_its_daemon(fleet: Path) -> None:
    fleet.write_text(FLEET.replace("127.0.0.1:0", "127.0.0.1:7654"))
    found = find_daemon(argparse.Namespace(url=None, config=fleet, token_file=None, ca_file=None))
    assert (found.url, found.problems) == ("http://127.0.0.1:7654", ())


def test_check_online_asks_the_discovery_and_lists_the_problems_of_members(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--online", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert {line.split()[0] for line in out.splitlines() if line.startswith("prod/")} == {"prod/clicks", "prod/orders"}
    assert out.endswith("2 clusters, 0 readings failed, 0 findings.\n")
    (fleet.parent / "jobs" / "clicks.yaml").write_text("min: many\n")
    (fleet.parent / "jobs" / "views.yaml").write_text("- a\n")
    (fleet.parent / "jobs" / "orders.json").write_text("{}")
    assert cli.main(["check", "--online", str(fleet)]) == 1
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ERROR: ")]
    place = f"ERROR: {fleet}"
    assert errors == [
        f"{place}:10: fleets.jobs[clicks.yaml].template.min: expected a whole number, not a string",
        f"{place}:6: fleets.jobs[orders.yaml].name: the member 'orders.json' has the name 'prod/orders' already",
        (
            f"{place}:4: fleets.jobs[views.yaml]: {fleet.parent}/jobs/views.yaml:1: (file): "
            "expected a mapping of names to values"
        ),
    ]
    assert cli.main(["check", "--online", str(fleet), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], list(found["clusters"])) == (False, ["prod/orders"])
    assert [f"ERROR: {problem}" for problem in found["fleets"]["jobs"]["problems"]] == errors


def test_check_online_reports_a_discovery_that_fails(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET.replace("path: jobs", "path: nowhere") + STATIC)
    assert cli.main(["check", "--online", str(fleet)]) == 1
    out = capsys.readouterr().out
    assert f"ERROR: {fleet}: fleets.jobs.discover: {fleet.parent}/nowhere cannot be listed" in out
    assert "own" in out  # clusters outside that fleet are checked all the same


def test_the_same_problem_of_several_members_is_shown_once(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        (fleet.parent / "jobs" / f"{name}.yaml").write_text("min: many\n")
    assert cli.main(["check", "--online", str(fleet)]) == 1
    assert (
        f"{fleet}:10: fleets.jobs[a.yaml].template.min: expected a whole number, not a string (and 2 more like it)\n"
        in capsys.readouterr().out
    )


def test_different_problems_are_cut_to_a_screen() -> None:
    one = r'x.yaml:1: fleets.a["say \"]\" x"].name: is bad'
    assert summarized([one, "x.yaml:1: fleets.a[b/c].name: is bad", "x.yaml:1: fleets.b[b/c].name: is bad"]) == [
        f"{one} (and 1 more like it)",
        "x.yaml:1: fleets.b[b/c].name: is bad",
    ]
    many = [f"x.yaml:1: fleets.a[m{number}].name: {number} is bad" for number in range(50)]
    assert summarized(many) == [*many[:20], "and 30 more problems"]


def test_plan_decides_for_every_member(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fleet.parent / "jobs" / "views.yaml").write_text("max: many\n")
    assert cli.main(["plan", str(fleet)]) == 1
    captured = capsys.readouterr()
    assert "cluster prod/orders would be scaled up from 2 to 3" in captured.out
    assert "cluster prod/clicks stays at 2" in captured.out
    assert captured.err == f"{fleet}:11: fleets.jobs[views.yaml].template.max: expected a whole number, not a string\n"
    assert cli.main(["plan", str(fleet), "--filter", "prod/o*", "--json"]) == 1
    assert [plan["decision"]["cluster"] for plan in json.loads(capsys.readouterr().out)] == ["prod/orders"]
    assert cli.main(["plan", str(fleet), "--filter", "test/*"]) == 1
    assert "no cluster matches test/*" in capsys.readouterr().err


def test_hundreds_of_members_are_summarized_on_a_screen(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(58):
        text = "min: 3\n" if number < 12 else "max: 1\n" if number < 14 else "{}\n"
        (fleet.parent / "jobs" / f"m{number:03}.yaml").write_text(text)
    assert cli.main(["plan", str(fleet)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert [line.split()[:3] for line in lines[1:11]] == [[f"prod/m{number:03}", "2", "3"] for number in range(10)]
    assert lines[-2:] == [
        (
            "60 clusters: 13 would be scaled up, 2 down; 120 replicas, then 131. 0 clusters with a missing reading; "
            "listed above: the first 10 that would be scaled or have a missing reading."
        ),
        "--filter PATTERN explains the decisions of the clusters whose names match.",
    ]
    assert cli.main(["plan", str(fleet), "--filter", "prod/m00*"]) == 0
    assert capsys.readouterr().out.count("would be scaled up from 2 to 3") == 10
    assert cli.main(["check", "--online", str(fleet)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"0 of \d+ rows; --json lists all\.", lines[2])
    assert lines[-1] == "60 clusters, 0 readings failed, 0 findings."


SIMULATED = """\
sources:
  flink: &flink {type: flink, url: "http://flink:8081", token: "${TOKEN}"}
fleets:
  jobs:
    discover: {type: kubernetes}
    name: "${namespace}/${name}"
    template:
      target: {type: kubernetes, name: "${name}", namespace: "${namespace}"}
      max: "${annotations['autoscaler/max'] | 8}"
      metrics: {load: {source: flink, metric: arrivals}}
      policies: {load: {type: target-tracking, metric: load, target: "${labels.target}", mode: total}}
"""
VALUES = ("name=orders", "namespace=prod", "labels.target=500", "annotations.autoscaler/max=12")


def simulated(directory: Path, text: str, *words: str, values: Sequence[str] = VALUES) -> int:
    path = directory / "jobs.yaml"
    path.write_text(text)
    members = [word for value in values for word in ("--member", value)]
    return cli.main(["simulate", str(path), "--load", "steps6h", "--hours", "0.5", *members, *words])


def test_a_member_of_a_fleet_is_simulated_with_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(tmp_path, SIMULATED, "--json") == 0
    of_member = json.loads(capsys.readouterr().out)
    assert of_member["cluster"] == "prod/orders"
    assert simulated(tmp_path, SIMULATED, "--fleet", "jobs") == 0
    assert "Cluster prod/orders of" in (shown := capsys.readouterr().out)
    assert "1 to 12 workers" in shown
    written = SIMULATED.replace('"${labels.target}"', "500").replace("\"${annotations['autoscaler/max'] | 8}\"", "12")
    written = written.replace("${name}", "orders").replace("${namespace}", "prod").replace("  jobs:", "  orders:")
    lines = [line for line in written.splitlines() if "discover:" not in line and "name:" not in line.split("{")[0]]
    written = "\n".join(lines).replace("fleets:", "clusters:").replace("    template:\n", "")
    assert simulated(tmp_path, written, "--json", values=()) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert {**of_member, "cluster": "orders"} == of_file


@pytest.mark.parametrize(
    ("words", "values", "problem"),
    [
        (
            (),
            VALUES[:2],
            "11: fleets.jobs[--member].template.policies.load.target: ${labels.target} has no value and no",
        ),
        (
            (),
            ("nmae=orders",),
            "'nmae' is not a variable of fleet jobs, expected one of annotations, labels, name, name",
        ),
        ((), (*VALUES, "name.x=1"), "--member name.x: name has either one value or keys"),
        ((), (*VALUES, "labels=1"), "--member labels: labels has either one value or keys"),
        (("--fleet", "job"), VALUES, "'job' is not a fleet of"),
        (("--fleet", "jobs"), (), "--fleet: chooses the template that --member fills"),
        ((), (), "or simulate one member by its values, with --member name=NAME"),
    ],
)
def test_values_that_no_member_can_have_are_refused(
    tmp_path: Path,
    words: Sequence[str],
    values: Sequence[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated(tmp_path, SIMULATED, *words, values=values) == 2
    assert problem in capsys.readouterr().err


def test_the_fleet_of_the_member_must_be_unambiguous(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = SIMULATED + "  streams: {discover: {type: stream-autoscalers}, name: '${name}'}\n"
    assert simulated(tmp_path, two) == 2
    assert "has the fleets jobs, streams: choose with --fleet NAME" in capsys.readouterr().err
    assert simulated(tmp_path, two, "--fleet", "streams") == 2
    assert "fleets.streams: its members bring their own templates: write one of them as" in capsys.readouterr().err
    assert simulated(tmp_path, STATIC) == 2
    assert "has no fleet, but --member needs one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "{config}", "--load", "sine6h"],
        ["replay", "{trace}", "{config}"],
        ["tune", "{trace}", "{config}", "--plant", "k8s"],
        ["backtest", "{trace}", "{config}", "--plant", "k8s"],
    ],
)
def test_commands_that_do_not_connect_need_a_cluster_in_the_file(
    fleet: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(config=fleet, trace=fleet.parent) for word in command]
    assert cli.main(words) == 2
    assert f"{fleet}: has only fleets, but this command needs a cluster in the file" in capsys.readouterr().err
