"""The plug-ins of docs/plugins.md keep their contracts, unchanged and with the change of a recipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PLUGINS = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = {"target": "targets", "source": "sources", "discovery": "discoveries"}
FILES = dict(re.findall(r"```python\n# ([\w/.]+)\n(.*?)```", PLUGINS, re.DOTALL))
KEY = re.search(r"```python\n(    def __post_init__.*?)```", RECIPES, re.DOTALL)


def with_scale(source: str) -> str:
    """The source with the recipe for a further key applied."""
    assert KEY is not None
    source = source.replace(
        "        name: name of the file in the directory.\n",
        "        name: name of the file in the directory.\n        scale: the number is multiplied by it; default 1.\n",
    )
    source = source.replace("    name: str\n", f"    name: str\n    scale: float = 1.0\n\n{KEY[1]}", 1)
    source = source.replace("float(text)", "float(text) * query.scale")
    before = "from autoscaler.ports import"
    return source.replace(before, f"from autoscaler.core.parameters import ParameterError\n{before}")


def passes(folder: Path, kind: str, source: str) -> str:
    """The output of pytest for the contract test of a recipe, with its plug-in as a separate module."""
    (folder / f"file_{kind}.py").write_text(source)
    test = FILES[f"tests/contracts/test_file_{kind}.py"]
    (folder / "test_contract.py").write_text(test.replace(f"autoscaler.{FOLDERS[kind]}.file", f"file_{kind}"))
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", "test_contract.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_plug_in_of_a_recipe_keeps_its_contract(kind: str, tmp_path: Path) -> None:
    assert re.search(r"\d{2} passed|[7-9] passed", passes(tmp_path, kind, FILES[f"autoscaler/{FOLDERS[kind]}/file.py"]))


def test_the_source_with_a_further_key_keeps_its_contract_and_refuses_invalid_values(tmp_path: Path) -> None:
    source = with_scale(FILES["autoscaler/sources/file.py"])
    passes(tmp_path, "source", source)
    program = [sys.executable, "-c", "from file_source import Query; print(Query('lag').scale); Query('lag', 0)"]
    run = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout == "1.0\n"
    assert run.stderr.rstrip().endswith("scale: must not be 0")


def test_the_code_that_the_first_recipe_changes_exists() -> None:
    (module,) = re.findall(r"In `(policies/[\w/]+\.py)` the method `_rescale_price`", RECIPES)
    (method,) = re.findall(r"```python\n(    def _rescale_price.*?)```", RECIPES, re.DOTALL)
    assert method in (ROOT / module).read_text()
