from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.docs.blocks import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"flink-test", "docs", "dev"})


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_needs_no_package_index_for_the_installed_project(extra: str) -> None:
    """Installed from a clone or a wheel, it adds an extra although the project itself is on no index."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", f"reactive-autoscaler[{extra}]"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_pages_install_from_a_clone_or_a_wheel() -> None:
    assert len(EXTRAS) > 4
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not ("pip install" in line and "reactive-autoscaler[" in line), line
