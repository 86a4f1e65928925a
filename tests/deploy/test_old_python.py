"""On Python 3.10 every way of installing fails at once with the reason."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.tags import compatible_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]
PRETEND = "import sys; sys.version_info = (3, 10, 13, 'final', 0); sys.version = '3.10.13 (main)'; "


def test_a_build_says_which_python_is_required() -> None:
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    code = f"{PRETEND}import {system['build-backend']}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("reactive-autoscaler needs Python 3.11 or newer, and this is 3.10.13 (")


def test_make_says_which_python_is_required(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{PRETEND}exec(sys.argv[1])" "$2"\n')
    python.chmod(0o755)
    (tmp_path / "pyproject.toml").touch()
    command = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), f"PYTHON={python}", "test"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    first, *_ = done.stderr.splitlines()
    assert first == "needs Python 3.11 or newer, not 3.10.13; say make PYTHON=/path/to/it"
    assert (done.stdout, (tmp_path / ".venv").exists()) == ("", False)


def test_the_name_of_a_wheel_shows_which_python_is_required(tmp_path: Path) -> None:
    """Otherwise pip first chooses versions of all dependencies of an extra."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, capture_output=True, check=True)
    (wheel,) = tmp_path.iterdir()
    *_, wheel_tags = parse_wheel_filename(wheel.name)
    supported = {minor: set(compatible_tags((3, minor))) for minor in (10, 11, 12, 13, 14)}
    assert [minor for minor, tags in supported.items() if wheel_tags & tags] == [11, 12, 13, 14]
