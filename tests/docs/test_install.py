from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import PAGES, ROOT

CODE = "".join(path.read_text() for path in (ROOT / "autoscaler").rglob("*.py"))
EXTRAS = sorted(set(re.findall(r"pip install 'reactive-autoscaler\[(\w[\w-]*)\]'", CODE)) - {"flink-test"})


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_of_an_error_needs_no_package_index_for_what_is_installed(extra: str) -> None:
    """Installed from a clone or a wheel, it adds an extra although the project itself is on no index."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", f"reactive-autoscaler[{extra}]"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_pages_install_from_a_clone_or_a_wheel() -> None:
    assert len(EXTRAS) > 4
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if "pip install" in line and "reactive-autoscaler[" in line:
                assert page.name == "getting-started.md", line
