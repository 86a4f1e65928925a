"""Simulated clusters from files."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from autoscaler.offline.plants import plant
from autoscaler.ports import ConfigurationError
from autoscaler.replay.plant import PLANTS, PlantSpec


def _file(folder: Path, text: str) -> str:
    path = folder / "plant.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_has_a_name(name: str) -> None:
    assert plant(name) is PLANTS[name]


def test_a_file_says_what_differs_from_another_plant(tmp_path: Path) -> None:
    found = plant(_file(tmp_path, "like: ec2\nstartup: 2m\nrestart_up: 45\nslo: 1m30s\ngamma: 1\n"))
    assert found == replace(PLANTS["ec2"], startup=120.0, restart_up=45.0, slo=90.0, gamma=1.0)
    assert plant(_file(tmp_path, "gamma: 0.8\n")) == replace(PLANTS["k8s"], gamma=0.8)


def test_every_number_of_a_plant_can_be_written(tmp_path: Path) -> None:
    numbers = {field.name: field.default for field in fields(PlantSpec) if isinstance(field.default, float)}
    text = "".join(f"{name}: {value}\n" for name, value in numbers.items())
    assert plant(_file(tmp_path, text)) == PlantSpec()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("like: ec3\n", ["1: like: 'ec3' is no plant, expected one of k8s, ec2, redeploy, ungraceful; did you mean"]),
        ("startupp: 3\n", ["1: startupp: unknown key; did you mean 'startup'?"]),
        ("slo: 1m\nstartup: 0\n", ["2: startup: is 0, expected above 0"]),
        ("- startup\n", ["1: (file): expected a mapping (key: value), not a list"]),
        ("startup: soon\ngamma: [1]\n", ["1: startup: expected a number, or a time: ", "2: gamma: expected a number"]),
        ("tau: true\ncheckpoint:\n", ["1: tau: expected a number, not true", "2: checkpoint: expected a number"]),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path: Path, text: str, problems: list[str]) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        plant(path)
    assert len(error.value.problems) == len(problems)
    for told, expected in zip(error.value.problems, problems, strict=True):
        assert told.startswith(f"{path}:{expected}")


def test_what_is_neither_a_plant_nor_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--plant k9s: is no plant and no file, .* did you mean 'k8s'"):
        plant("k9s")
    with pytest.raises(ConfigurationError, match="this is a directory"):
        plant(str(tmp_path))
