"""The worked example of docs/plugins.md: built, installed into its own environment, and used by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.plugins.examples import EXAMPLES, install_example, run_example

EXAMPLE = EXAMPLES / "example-policy"

# Loads the example's configuration and makes steps through the core, as the daemon does.
PROGRAM = """
import os, pathlib
from datetime import UTC, datetime, timedelta
from autoscaler import plugins
from autoscaler.config import load
from autoscaler.core.model import ClusterState, Observation, Reading
from autoscaler.core.step import step

config = load(pathlib.Path("example.yaml"), os.environ)
spec = config.clusters["shop"].spec
state = ClusterState()
for minute, sessions in ((0, 300.0), (5, 600.0)):
    at = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
    observation = Observation(at=at, desired=6, ready=6, metrics={"sessions": Reading(sessions, at)})
    state, decision = step(spec, state, observation)
    (answer,) = decision.recommendations
    print(answer.policy, answer.replicas, answer.reason, decision.desired)
print(*[f"{p.package} {p.version} {p.reference}" for p in plugins.installed() if p.name == "trend"])
"""


REFUSED = """
import pathlib
from autoscaler.config import load
from autoscaler.ports import ConfigurationError

try:
    load(pathlib.Path("bad.yaml"), {})
except ConfigurationError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the example installed from its sources."""
    return install_example("policy", tmp_path_factory.mktemp("environment"))


def run(python: Path, *arguments: str) -> str:
    return run_example("policy", python, *arguments)


def test_the_example_is_used_by_name_from_a_configuration(python: Path) -> None:
    assert run(python, "-P", "-c", PROGRAM).splitlines() == [
        "soon None learning 6",
        "soon 8 above 8",
        "autoscaler-trend 1.0.0 autoscaler_trend:Trend",
    ]


def test_the_example_passes_its_own_tests_and_the_contract(python: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]  # a policy needs no event loop
    assert " passed" in run(python, "-P", "-m", "pytest", *options)


def test_the_example_reports_invalid_parameters(python: Path) -> None:
    example = python.parents[2] / "example-policy"
    text = (EXAMPLE / "example.yaml").read_text()
    (example / "bad.yaml").write_text(text.replace("per_replica: 100", "per_replica: 0"))
    line = text[: text.index("soon:")].count("\n") + 1
    where = f"bad.yaml:{line}: clusters.shop.policies.soon.per_replica"
    assert run(python, "-P", "-c", REFUSED) == f"{where}: must be above 0, not 0.0\n"


def test_the_example_is_not_installed_here() -> None:
    assert importlib.util.find_spec("autoscaler_trend") is None
