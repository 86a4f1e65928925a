"""`autoscaler simulate` as used at a terminal or by a script."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from autoscaler import cli
from autoscaler.trace.format import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
# The clusters of a fleet are known only from its discovery, which a simulation does not poll.
WITH_CLUSTERS = [path for path in EXAMPLES if re.search("^clusters:", path.read_text(), re.MULTILINE)]

CONFIG = """
sources:
  kafka: {type: kafka, bootstrap_servers: 'kafka:9092', password: '${NOBODY_HAS_SET_THIS}', username: me,
          sasl_mechanism: PLAIN, security_protocol: SASL_SSL}
  prom: {type: prometheus, url: 'http://127.0.0.1:9'}
clusters:
  orders:
    interval: 10s
    target: {type: advice}
    min: 1
    max: 12
    metrics:
      waiting: {source: kafka, metric: lag, group: orders, topics: [orders]}
      busy: {source: prom, query: busy}
    policies: {busy: {type: target-tracking, metric: busy, target: 0.7}}
"""


WITH_METRIC = ("--metric", "busy=cpu")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def simulate(*arguments: object) -> int:
    return cli.main(["simulate", *map(str, arguments)])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert simulate(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("example", WITH_CLUSTERS, ids=lambda path: path.stem)
def test_a_new_user_can_simulate_every_example_of_clusters(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(example, "--load", "steps6h", "--hours", 2) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.search(r"^cost, worker-hours +[\d.]+ +\d+$", shown.out, re.MULTILINE)
    assert re.search(r"^\d:\d\d:\d\d +\d+ to \d+ +above +main: ", shown.out, re.MULTILINE)


def test_a_seed_gives_the_same_result_twice_and_another_seed_another(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (config, "--load", "bursts12h", "--hours", 1, *WITH_METRIC, "--faults", "nan:5m,crash:20m")
    first, again, other = (as_json(capsys, *arguments, "--seed", seed) for seed in (3, 3, 4))
    assert first == again
    assert first["score"] != other["score"]


def test_json_has_everything_that_is_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(
        capsys,
        config,
        "--load",
        "steps6h",
        "--hours",
        3,
        "--metric",
        "busy=cpu",
        "--optimum",
        "--explain",
        "--faults",
        "refused",
    )
    assert found["cluster"] == "orders"
    assert found["plant"]["name"] == "k8s"
    assert found["plant"]["startup"] == 30
    assert found["load"] == {"name": "steps6h", "hours": 3, "peak": pytest.approx(1000 * 8**0.9)}
    assert found["one"] == 1000
    assert found["metrics"] == {"waiting": "lag", "busy": "cpu"}
    assert found["faults"] == ["30% of the scale calls fail"]
    assert found["static"]["size"] == 9
    assert found["static"]["score"]["cost"] == 27
    assert found["score"]["to_optimum"] == found["score"]["cost"] / found["optimum"]
    assert found["score"]["rescales"] == sum(asked["failed"] is None for asked in found["rescales"])
    assert any(asked["failed"] for asked in found["rescales"])
    first = found["rescales"][0]
    assert first["at"] == "2026-01-05T00:00:10+00:00"
    assert (first["after"], first["to"] > first["from"], first["reason"]) == (10, True, "above")
    assert "What the policies asked for:" in first["explanation"]


def test_the_rate_per_worker_comes_from_the_command_line_the_configuration_or_the_peak(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = tmp_path / "mine.csv"
    load.write_text("t_seconds,value\n0,100\n600,800\n1200,100\n")
    given = (config, *WITH_METRIC, "--load", load)
    found = as_json(capsys, *given)
    assert found["load"]["name"] == "mine"
    assert found["one"] == pytest.approx(found["load"]["peak"] / 8**0.9)
    assert found["load"]["peak"] == pytest.approx(800, rel=0.01)
    assert as_json(capsys, *given, "--rate-per-worker", 50)["one"] == 50
    stretched = as_json(capsys, *given, "--rate-per-worker", 50, "--peak", 400)
    assert (stretched["one"], stretched["load"]["peak"]) == (50, 400)
    config.write_text(CONFIG + "    capacity: {per_replica: 90}\n")
    found = as_json(capsys, *given)
    assert found["one"] == 90
    assert found["load"]["peak"] == pytest.approx(800, rel=0.01)
    assert found["notes"] == ["One worker processes 90 records/s: capacity.per_replica of the configuration."]
    made = as_json(capsys, config, *WITH_METRIC, "--load", "steps6h", "--hours", 2)
    assert made["load"]["peak"] == pytest.approx(90 * 8**0.9)


def test_the_important_assumptions_are_printed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("interval: 10s", "interval: 12s"))
    load = tmp_path / "mine.csv"
    load.write_text("t_seconds,value\n0,500\n600,500\n")
    assert (
        simulate(config, *WITH_METRIC, "--load", load, "--rate-per-worker", 10, "--optimum", "--faults", "restart") == 0
    )
    shown = capsys.readouterr().out
    assert "The objective of " not in shown
    assert "The interval is 15s, not 12s: the simulation runs in steps of 5 s." in shown
    assert "The peak needs 78 workers, and at most 12 are allowed." in shown
    assert "Fault: the daemon is restarted once in 1h." in shown
    assert "Not even 12 workers keep the delay below 60 s all the time." in shown


def test_a_plant_file_may_set_the_rate_per_worker_and_the_metrics(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, load = tmp_path / "plant.yaml", tmp_path / "mine.csv"
    plant.write_text("one: 100\nmetrics: {busy: utilization, of_another_cluster: lag}\n")
    load.write_text("t_seconds,value\n0,100\n600,800\n1200,100\n")
    given = (config, "--plant", plant, "--load", load)
    found = as_json(capsys, *given)
    assert (found["one"], found["notes"]) == (100, [])
    assert as_json(capsys, *given, "--metric", "busy=utilization")["score"] == found["score"]
    assert as_json(capsys, *given, "--rate-per-worker", 50)["one"] == 50


def test_partitions_of_the_configuration_limit_the_useful_workers(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = tmp_path / "mine.csv"
    load.write_text("t_seconds,value\n0,800\n1200,800\n")
    given = (config, *WITH_METRIC, "--load", load, "--rate-per-worker", 120)
    free = as_json(capsys, *given)
    config.write_text(CONFIG + "    partitions: 4\n")
    found = as_json(capsys, *given)
    assert found["notes"] == ["The source has 4 partitions: partitions of the configuration."]
    assert found["score"]["violation"] > 0.5 > free["score"]["violation"]
    file = tmp_path / "plant.yaml"
    file.write_text("partitions: 12\n")
    assert as_json(capsys, *given, "--plant", file)["notes"] == []


def test_the_optimum_accounts_for_spark_not_stopping(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 2, "--optimum")
    stops, goes_on = (as_json(capsys, *given, "--plant", plant)["optimum"] for plant in ("k8s", "spark"))
    assert goes_on < stops


def test_an_objective_other_than_the_slo_of_the_plant_is_printed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ("lag", "arrivals", "throughput", "utilization")
    read = "".join(f"      {name}: {{source: prom, query: up}}\n" for name in metrics)
    policies = "    policies: {main: {type: adaptive, objective: 30s},"
    config.write_text(CONFIG.replace("    policies: {", f"{read}{policies} "))
    plant = tmp_path / "plant.yaml"
    plant.write_text("like: k8s\nslo: 30s\n")
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 0.1)
    note = (
        "The objective of main is 30 s; too old means older than 60 s, the `slo` of the simulated cluster, which a "
        "file for --plant can set."
    )
    assert note in as_json(capsys, *given)["notes"]
    assert note not in as_json(capsys, *given, "--plant", plant)["notes"]


def test_a_size_that_never_changes_is_reported(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = tmp_path / "mine.csv"
    load.write_text("t_seconds,value\n0,62\n900,62\n")
    assert simulate(config, *WITH_METRIC, "--load", load, "--rate-per-worker", 100) == 0
    assert "The size never changed." in capsys.readouterr().out


def test_stalls_are_those_of_the_plant(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 2)
    quick, slow = (as_json(capsys, *given, "--plant", plant)["score"] for plant in ("k8s", "redeploy"))
    assert slow["stopped"] > 2 * quick["stopped"]


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        ("k8s", "; the job stops for 12 s when workers are added, 8 s when they are removed; no record"),
        ("ungraceful", "12 s when workers are added, 58 s when they are removed; no record"),
        ("flink-2.3", "8 s when they are removed; when it stops follows the rules of Flink's scheduler; no record"),
        ("spark", "; the query continues while workers come and go; no record"),
    ],
)
def test_the_effect_of_a_change_of_size_is_printed(
    config: Path, capsys: pytest.CaptureFixture[str], plant: str, expected: str
) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 1, "--plant", plant)
    assert simulate(*given) == 0
    assert expected in capsys.readouterr().out
    assert simulate(*given, "--json") == 0
    assert "Infinity" not in capsys.readouterr().out


def test_only_the_metrics_of_the_configuration_are_observed(config: Path, tmp_path: Path) -> None:
    directory = tmp_path / "trace"
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 2)
    assert simulate(*given, "--record", directory) == 0
    records = list(read(directory))
    assert len(records) == 720
    assert all(set(one.observation.metrics) == {"waiting", "busy"} for one in records)
    assert all(one.observation.engine is None for one in records)
    assert sorted(path.name for path in directory.iterdir()) == [f"2026-01-05T0{hour}.jsonl" for hour in range(3)]


def test_a_worker_has_the_configured_number_of_slots(tmp_path: Path) -> None:
    example = next(path for path in EXAMPLES if path.stem == "flink-kubernetes")
    assert (
        simulate(
            example, "--load", "steps6h", "--hours", 1, "--record", tmp_path / "trace", "--faults", "missing@engine:5m"
        )
        == 0
    )
    records = list(read(tmp_path / "trace"))
    slots = {one.observation.engine.slots for one in records if one.observation.engine is not None}
    assert slots == {8}
    assert any("engine" in one.observation.missing for one in records)


def test_a_fault_uses_the_configured_name_of_a_metric(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        config,
        "--metric",
        "busy=cpu",
        "--load",
        "steps6h",
        "--hours",
        2,
        "--faults",
        "missing@busy:10m,missing@target",
    )
    assert simulate(*given, "--record", tmp_path / "trace") == 0
    assert "Fault: busy: metrics cannot be read for 10m in every hour." in capsys.readouterr().out
    missing = [set(one.observation.missing) for one in read(tmp_path / "trace")]
    assert {"busy"} in missing
    assert {"target"} in missing
    assert not any("waiting" in names or "engine" in names for names in missing)


def test_a_long_list_is_cut_and_can_be_shown_completely(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 2, "--faults", "refused:95%")
    assert simulate(*given) == 0
    short = capsys.readouterr().out
    rest = re.search(r"\.\.\. and (\d+) more changes of size: --all lists them", short)
    assert rest is not None
    assert simulate(*given, "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(short.splitlines()) + int(rest[1]) - 1


def test_a_picture_is_drawn(config: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    assert simulate(config, *WITH_METRIC, "--load", "steps6h", "--hours", 2, "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("zone", "label", "first"),
    [("UTC", "hours", "0.00"), ("Asia/Kolkata", "time in Asia/Kolkata", "Mon 05:30")],
)
def test_the_time_axis_of_a_picture_is_in_the_time_zone_of_the_cluster(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, label: str, first: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("autoscaler.plot_style.save", lambda figure, *_: drawn.append(figure))
    with config.open("a") as file:
        file.write(f"\ndaemon: {{time_zone: {zone}}}\n")
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 2, "--plot", tmp_path / "timeline.png")
    assert simulate(*given) == 0
    (figure,) = drawn
    figure.canvas.draw()
    axis = figure.axes[-1].xaxis
    shown = [text.get_text() for text, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True) if at >= 0]
    assert axis.get_label_text() == label
    assert shown[0] == first


def test_every_decision_can_be_explained_completely(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(config, *WITH_METRIC, "--load", "steps6h", "--hours", 2, "--explain") == 0
    shown = capsys.readouterr().out
    assert "2026-01-05 00:00:10 UTC: cluster orders is scaled up from" in shown
    assert "What the guards did:" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (),
            "metric busy of orders: the simulated cluster has arrivals, throughput, lag, utilization, saturation, ",
        ),
        ((), "like --metric busy=arrivals"),
        (("--metric", "busy=cpus"), "--metric busy=cpus: the simulated cluster has "),
        (("--metric", "bussy=cpu"), "--metric bussy: cluster orders has no such metric, it has waiting, busy"),
        ((*WITH_METRIC, "--load", "stepps6h"), "--load stepps6h: is not a load and not a file"),
        ((*WITH_METRIC, "--load", "stepps6h"), "did you mean 'steps6h'?"),
        ((*WITH_METRIC, "--plant", "k9s"), "--plant k9s: is not a plant and not a file"),
        ((*WITH_METRIC, "--plant", "k9s"), "did you mean 'k8s'?"),
        ((*WITH_METRIC, "--cluster", "order"), "'order' is not a cluster of "),
        ((*WITH_METRIC, "--cluster", "order"), "expected one of orders; did you mean 'orders'?"),
        ((*WITH_METRIC, "--faults", "mising"), "'mising' is not a fault; did you mean 'missing'?"),
        ((*WITH_METRIC, "--faults", "nan@waitin"), "nan@waitin: cluster orders does not read it; did you mean"),
        ((*WITH_METRIC, "--faults", "nan@lag"), "it has waiting, busy, target"),
        ((*WITH_METRIC, "--faults", "missing@engine"), "missing@engine: cluster orders does not read it"),
        ((*WITH_METRIC, "--hours", "7"), "--hours 7: steps6h has 6 hours"),
        ((*WITH_METRIC, "--peak", "1e12", "--rate-per-worker", "1"), "records/s need more than 1,000,000 workers"),
        ((*WITH_METRIC, "--load", "sine6h", "--traces", "/nowhere"), "daedalus_sine_1s_6h.csv: cannot be read"),
    ],
)
def test_invalid_arguments_are_an_error_with_a_remedy(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert simulate(config, "--load", "steps6h", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert expected in shown.err


def test_recorded_loads_need_a_directory(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOSCALER_TRACES", raising=False)
    assert simulate(config, *WITH_METRIC, "--load", "ads18h") == 2
    assert "use --traces with the directory of demeter_ads_5s_18h.csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "load.csv:1: is empty, expected the header t_seconds,value"),
        ("t_seconds,value\n", "load.csv:1: has no line after the header"),
        ("t_seconds,value\n7,1\n", "load.csv: 7 to 7 s were requested"),
        ("time,rate\n0,1\n", "load.csv:1: is 'time,rate', expected the header t_seconds,value"),
        ("t_seconds,value\n0,1\n5,nan\n10,1\n", "load.csv:3: value: is 'nan', expected a number"),
        ("t_seconds,value\n0,1\n5,-1\n", "load.csv:3: value: is -1, expected 0 or more"),
        ("t_seconds,value\n0,1\n0,2\n", "load.csv:3: t_seconds: is 0 after 0, expected to increase"),
        ("t_seconds,value\n0,1,2\n", "load.csv:2: has 3 columns"),
        ("t_seconds,value\n0,0\n600,0\n", "load: is 0 throughout: set --rate-per-worker"),
    ],
)
def test_an_invalid_load_is_reported_with_its_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    load = tmp_path / "load.csv"
    load.write_text(text)
    assert simulate(config, *WITH_METRIC, "--load", load) == 2
    assert expected in capsys.readouterr().err


def test_an_invalid_configuration_is_reported_as_by_check(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("max: 12", "max: 0"))
    assert simulate(config, "--load", "steps6h") == 2
    assert re.match(rf"{config}:\d+: clusters.orders.max: ", capsys.readouterr().err)
    config.write_text(CONFIG + CONFIG.partition("clusters:")[2].replace("orders:", "others:"))
    assert simulate(config, "--load", "steps6h") == 2
    assert "has the clusters orders, others: choose with --cluster NAME" in capsys.readouterr().err
    assert simulate(config, "--load", "steps6h", "--hours", 1, "--cluster", "others", *WITH_METRIC) == 0


def test_a_file_that_cannot_be_written_is_an_error(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 1)
    assert simulate(*given, "--record", tmp_path) == 2
    assert "is not empty; its records would be mixed with those of this run" in capsys.readouterr().err
    assert simulate(*given, "--record", config) == 1
    assert f"{config}: cannot be written: File exists" in capsys.readouterr().err
    (tmp_path / "taken.png").mkdir()
    assert simulate(*given, "--plot", tmp_path / "taken.png") == 1
    assert "taken.png: cannot be written" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_simulation(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, expected in (("nowhere/x.png", "there is no directory"), ("x.pdf", "is not a PNG file")):
        assert simulate(config, *WITH_METRIC, "--load", "steps6h", "--plot", tmp_path / path) == 2
        shown = capsys.readouterr()
        assert expected in shown.err
        assert shown.out == ""


@pytest.mark.parametrize(
    "arguments",
    [("--rate-per-worker", "0"), ("--hours", "-1"), ("--peak", "nan"), ("--metric", "busy"), ("--seed", "x")],
)
def test_options_that_are_not_numbers_or_pairs_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert simulate(config, "--load", "steps6h", *arguments) == 2
    assert arguments[0] in capsys.readouterr().err


def test_missing_extras_are_named(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (config, *WITH_METRIC, "--load", "steps6h", "--hours", 1)
    monkeypatch.setattr("autoscaler.cli.simulate_plot.find_spec", lambda _: None)
    assert simulate(*given, "--plot", tmp_path / "x.png") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pip install '.[plot]'" in shown.err
    # As if it had never been imported, and could not be.
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "autoscaler.simulation.optimum", raising=False)
    monkeypatch.delattr("autoscaler.simulation.optimum", raising=False)
    assert simulate(*given, "--optimum") == 1
    assert "pip install '.[simulate]'" in capsys.readouterr().err


def test_all_numbers_of_the_json_are_finite(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, config, *WITH_METRIC, "--load", "steady12h", "--hours", 1)
    numbers = [value for value in found["score"].values() if isinstance(value, float)]
    assert all(map(math.isfinite, numbers))
    assert found["score"]["converged"] is None
