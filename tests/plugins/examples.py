"""Installs the worked examples of the documentation, each into its own environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs"


def install_example(kind: str, home: Path) -> Path:
    """Create an environment that sees the packages installed here, with `docs/example-<kind>` installed on top.

    Returns: Its interpreter. The example's files are in `home/example-<kind>`.
    """
    for needed in ("pip", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            missing = f"{needed} is not installed here; `make test` installs it"
            if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
                pytest.fail(missing)
            pytest.skip(missing)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    python = home / "venv" / "bin" / "python"
    variables = {"base": str(home / "venv"), "platbase": str(home / "venv")}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=variables))
    # Nothing is downloaded: the new environment sees the packages of this one, editable ones included.
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    example = home / f"example-{kind}"
    shutil.copytree(EXAMPLES / example.name, example, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    install = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, example], check=True)
    return python


def run_example(kind: str, python: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the interpreter in the example's folder and return what it prints."""
    result = subprocess.run(
        [python, *arguments],
        cwd=python.parents[2] / f"example-{kind}",
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
