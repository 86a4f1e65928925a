"""Simulated clusters from files."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from autoscaler.cli.plants import KNOWN, Described, plant
from autoscaler.ports import ConfigurationError
from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.slots import Bounds
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation.plant import PLANTS, SCHEDULER_PLANTS, PlantSpec


def _file(folder: Path, text: str) -> str:
    path = folder / "plant.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", [*PLANTS, *SCHEDULER_PLANTS])
def test_a_plant_has_a_name(name: str) -> None:
    assert plant(name) == Described(KNOWN[name])


def test_a_file_has_the_differences_from_another_plant(tmp_path: Path) -> None:
    found = plant(_file(tmp_path, "like: ec2\nstartup: 2m\nrestart_up: 45\nslo: 1m30s\ngamma: 1\n")).plant
    assert found == replace(PLANTS["ec2"], startup=120.0, restart_up=45.0, slo=90.0, gamma=1.0)
    assert plant(_file(tmp_path, "gamma: 0.8\n")).plant == replace(PLANTS["k8s"], gamma=0.8)


def test_every_number_of_a_plant_can_be_written(tmp_path: Path) -> None:
    numbers = {field.name: field.default for field in fields(PlantSpec) if isinstance(field.default, float)}
    text = "".join(f"{name}: {value}\n" for name, value in numbers.items())
    assert plant(_file(tmp_path, text)).plant == PlantSpec()


def test_a_file_may_set_the_rate_per_worker_and_the_names_of_metrics(tmp_path: Path) -> None:
    for key in ("rate_per_worker", "one"):
        text = f"{key}: 2500\nmetrics:\n  consumer_lag: lag\n  busy: utilization\n"
        assert plant(_file(tmp_path, text)) == Described(
            PLANTS["k8s"], 2500.0, {"consumer_lag": "lag", "busy": "utilization"}
        )


def test_the_old_name_of_the_rate_is_reported_once_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, "rate_per_worker: 2\n")
    plant(path)
    assert capsys.readouterr().err == ""
    _file(tmp_path, "gamma: 1\none: 2\n")
    plant(path)
    plant(path)
    assert capsys.readouterr().err == f"warning: {path}:2: one is now called rate_per_worker\n"


def test_a_file_may_set_the_scheduler_of_the_job(tmp_path: Path) -> None:
    def scheduler(text: str) -> object:
        return plant(_file(tmp_path, text)).plant.scheduler

    flink = "checkpoint: 1m\nscheduler:\n  type: flink\n  version: 1.20\n"
    assert scheduler(flink) == FlinkSettings.of("1.20", checkpoint_interval=60.0)
    more = "  cooldown: 2m\n  min_increase: 2\n  max_parallelism: 24\n"
    assert scheduler(flink + more) == FlinkSettings.of(
        "1.20", checkpoint_interval=60.0, cooldown=120.0, min_increase=2, groups=((Bounds(1, 24),),)
    )
    assert scheduler("scheduler: {type: spark, used_after: 6s, most: 12}\n") == SparkSettings(6.0, most=12.0)
    assert scheduler("like: spark\n") == SparkSettings()
    assert scheduler("like: spark\nscheduler: null\n") is None


def test_the_time_a_rescale_waits_for_checkpoints_follows_from_their_interval(tmp_path: Path) -> None:
    found = plant(_file(tmp_path, "like: flink-2.3\ncheckpoint: 1m\n")).plant
    assert found.scheduler == FlinkSettings.of("2.3", checkpoint_interval=60.0)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "like: ec3\n",
            ["1: like: 'ec3' is not a plant, expected one of k8s, ec2, redeploy, ungraceful, flink-2.3, flink-"],
        ),
        ("startupp: 3\n", ["1: startupp: unknown key; did you mean 'startup'?"]),
        ("slo: 1m\nstartup: 0\n", ["2: startup: is 0, expected above 0"]),
        ("", ["1: (file): the file is empty, expected a mapping (key: value)"]),
        ("- startup\n", ["1: (file): expected a mapping (key: value), not a list"]),
        ("startup: soon\ngamma: [1]\n", ["1: startup: expected a number, or a time: ", "2: gamma: expected a number"]),
        (
            "one: 0\nmetrics: {a: lags}\nslow: 2\n",
            ["1: one: is 0, expected above 0", "2: metrics.a: 'lags' is not a m"],
        ),
        (
            "rate_per_worker: 1\none: 2\n",
            ["2: one: is the old name of rate_per_worker, which is set as well"],
        ),
        ("one: much\nstartup: soon\n", ["1: one: expected a number, not a string", "2: startup: expected a number"]),
        ("scheduler: flink\n", ["1: scheduler: expected a mapping (key: value), not a string"]),
        ("scheduler:\n  version: 2.3\n", ["1: scheduler.type: expected flink or spark, not nothing"]),
        ("scheduler: {type: storm}\n", ["1: scheduler.type: expected flink or spark, not storm"]),
        (
            "scheduler:\n  type: flink\n  version: 1.9\n",
            ["3: scheduler.version: expected a version of Flink from 1.18"],
        ),
        ("scheduler: {type: flink}\n", ["1: scheduler.version: expected a version of Flink from 1.18 on"]),
        (
            "scheduler:\n  type: flink\n  version: 2.3\n  max_parallelism: 0\n",
            ["4: scheduler.max_parallelism: is 0, expected 1 or more"],
        ),
        (
            "scheduler:\n  type: spark\n  heartbeat: 60s\n",
            ["3: scheduler.heartbeat: set `heartbeat` and `crash_noticed` of the plant instead"],
        ),
        (
            "scheduler: {type: spark, used_aftr: 3}\n",
            ["1: scheduler.used_aftr: unknown key; did you mean 'used_after'"],
        ),
        ("scheduler: {type: spark, most: -1}\n", ["1: scheduler.most: is -1, expected 0 or more"]),
        ("checkpoint: soon\nscheduler: {type: flink, version: 2.3}\n", ["1: checkpoint: expected a number, or a time"]),
        ("tau: true\ncheckpoint:\n", ["1: tau: expected a number, not true", "2: checkpoint: expected a number"]),
    ],
)
def test_errors_in_a_file_are_reported_with_their_line(tmp_path: Path, text: str, problems: list[str]) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        plant(path)
    assert len(error.value.problems) == len(problems)
    for output, expected in zip(error.value.problems, problems, strict=True):
        assert output.startswith(f"{path}:{expected}")


def test_an_unknown_plant_that_is_not_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--plant k9s: is not a plant and not a file, .* did you mean 'k8s'"):
        plant("k9s")
    with pytest.raises(ConfigurationError, match="this is a directory"):
        plant(str(tmp_path))
