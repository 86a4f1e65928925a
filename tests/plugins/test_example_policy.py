"""The worked example of docs/plugins.md: built, installed into an environment of its own, used by name."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example-policy"

# Loads the example's configuration and takes steps through the core, as the daemon does.
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
    state, decision = step(spec, state, Observation(at, 6, 6, {"sessions": Reading(sessions, at)}))
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
    """An environment that sees what is installed here, with the example installed from its sources on top."""
    for needed in ("pip", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            missing = f"{needed} is not installed here; `make test` installs it"
            if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
                pytest.fail(missing)
            pytest.skip(missing)
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    python = home / "venv" / "bin" / "python"
    variables = {"base": str(home / "venv"), "platbase": str(home / "venv")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=variables))
    # Nothing is downloaded: this environment's packages, editable ones included, are seen from the new one.
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    shutil.copytree(EXAMPLE, home / "example", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    install = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, home / "example"], check=True)
    return python


def run(python: Path, *arguments: str) -> str:
    example = python.parents[2] / "example"
    result = subprocess.run([python, *arguments], cwd=example, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_example_is_used_by_name_from_a_configuration(python: Path) -> None:
    assert run(python, "-P", "-c", PROGRAM).splitlines() == [
        "soon None learning 6",
        "soon 8 above 8",
        "autoscaler-trend 1.0.0 autoscaler_trend:Trend",
    ]


def test_the_example_passes_its_own_tests_and_the_contract(python: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]  # a policy needs no event loop
    assert " passed" in run(python, "-P", "-m", "pytest", *options)


def test_the_example_says_what_is_wrong_with_its_parameters(python: Path) -> None:
    example = python.parents[2] / "example"
    text = (EXAMPLE / "example.yaml").read_text()
    (example / "bad.yaml").write_text(text.replace("per_replica: 100", "per_replica: 0"))
    line = text[: text.index("soon:")].count("\n") + 1
    where = f"bad.yaml:{line}: clusters.shop.policies.soon.per_replica"
    assert run(python, "-P", "-c", REFUSED) == f"{where}: per_replica must be above 0, not 0.0\n"


def test_the_example_is_not_installed_here() -> None:
    assert importlib.util.find_spec("autoscaler_trend") is None
