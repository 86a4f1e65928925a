from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.docs.blocks import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"flink-test", "docs", "dev"})


@pytest.mark.parametrize("extra", EXTRAS)
def test_installing_an_extra_needs_no_package_index_for_the_installed_project(extra: str) -> None:
    """Installed from a clone or a wheel, an extra can be added although the project itself is on no index."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", f"reactive-autoscaler[{extra}]"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_extra_of_the_program_is_in_the_table_of_the_page() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    table = page.partition("| extra | for |\n|---|---|\n")[2].partition("\n\n")[0]
    named = re.findall(r"`([\w-]+)`", "\n".join(row.split("|")[1] for row in table.splitlines()))
    assert sorted(named) == EXTRAS


def test_no_page_installs_the_project_by_its_name() -> None:
    """If the name is on no index, or belongs to another project, that fails or installs something else."""
    assert len(EXTRAS) > 4
    texts = [*PAGES, *(ROOT / "deploy").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "autoscaler").rglob("*.py")]
    for path in texts:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"install\b.*[ '\"]reactive[-_]autoscaler([\[ '\"]|$)", line), f"{path}: {line}"
