"""The worked examples of a target and a source: built, installed into their own environments, and used by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.plugins.examples import EXAMPLES, install_example, run_example

KINDS = {"target": ("autoscaler_nomad", "Nomad"), "source": ("autoscaler_rabbitmq", "RabbitMQ")}
SECRETS = {"NOMAD_TOKEN": "hunter2", "RABBITMQ_PASSWORD": "hunter2"}

# Loads a configuration and prints the adapter in it, or its problems.
PROGRAM = """
import os, pathlib, sys
from autoscaler.config import load
from autoscaler.ports import ConfigurationError

try:
    config = load(pathlib.Path(sys.argv[1]), os.environ)
    print(repr(config.clusters["shop"].target if sys.argv[2] == "target" else config.sources["rabbitmq"]))
except ConfigurationError as error:
    print(error)
"""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(kind, tmp_path_factory.mktemp(kind))


def test_it_is_used_by_name_from_a_configuration(kind: str, python: Path) -> None:
    shown = run_example(kind, python, "-P", "-c", PROGRAM, "example.yaml", kind, environment=SECRETS)
    assert shown.startswith(KINDS[kind][1] + "(url=")
    assert "hunter2" not in shown


def test_it_passes_its_own_tests_and_the_contract(kind: str, python: Path) -> None:
    assert " passed" in run_example(kind, python, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_an_invalid_address_is_reported_at_its_line(kind: str, python: Path) -> None:
    text = (EXAMPLES / f"example-{kind}" / "example.yaml").read_text()
    needle = KINDS[kind][0].removeprefix("autoscaler_")
    (line,) = (line for line in text.splitlines() if f"type: {needle}" in line)
    wrong = line.replace("http://", "")
    (python.parents[2] / f"example-{kind}" / "bad.yaml").write_text(text.replace(line, wrong))
    shown = run_example(kind, python, "-P", "-c", PROGRAM, "bad.yaml", kind, environment=SECRETS)
    assert shown.startswith(f"bad.yaml:{text.splitlines().index(line) + 1}: ")
    assert "url: must be an address such as http://host:8081, not '127.0.0.1:" in shown


def test_it_is_not_installed_here(kind: str) -> None:
    assert importlib.util.find_spec(KINDS[kind][0]) is None


def test_adding_one_needs_little_code(kind: str) -> None:
    source = (EXAMPLES / f"example-{kind}" / f"{KINDS[kind][0]}.py").read_text()
    assert len(source.splitlines()) <= 80
    assert "aiohttp" not in source, "the shared client carries the requests"
