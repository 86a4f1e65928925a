"""The version is defined in pyproject.toml; other mentions are generated from it, and the installed package has it."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.refresh import MENTION, ROOT, VERSION, VERSIONED, versioned
from tests.docs.test_install import PROJECT

REQUIREMENTS = ROOT / "deploy" / "requirements"
IN_THE_IMAGE = ("kubernetes", "aws", "kafka", "http", "postgres", "promql")


@pytest.mark.parametrize("path", VERSIONED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_mention_of_the_version_is_that_of_the_project(path: Path) -> None:
    text = path.read_text()
    assert text == versioned(text), "run `python -m tests.docs.refresh`"


def test_a_different_version_would_be_detected() -> None:
    named = [path for path in VERSIONED if MENTION.search(path.read_text())]
    assert {path.name for path in named} >= {"Chart.yaml", "kustomization.yaml", "README.md", "getting-started.md"}
    for path in named:
        assert versioned(path.read_text().replace(VERSION, "99.0.1")) == path.read_text()


def test_the_installed_package_has_the_version_of_the_project() -> None:
    assert version("reactive-autoscaler") == VERSION


def test_the_changelog_begins_with_the_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first
    assert first[1] == VERSION


def locked(name: str) -> dict[str, str]:
    """Name -> version of a file of requirements, each of which has a hash."""
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    found = re.findall(r"^([\w.-]+)==(\S+)(?: ;[^\\]+)? \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), "each is pinned and has a hash"
    return {canonicalize_name(each): pinned for each, pinned in found}


@pytest.mark.parametrize("name", ["runtime", "build"])
def test_the_locked_requirements_are_those_of_the_project(name: str) -> None:
    if name == "runtime":
        extras = PROJECT["optional-dependencies"]
        wanted = [*PROJECT["dependencies"], *(each for extra in IN_THE_IMAGE for each in extras[extra])]
    else:
        lines = (REQUIREMENTS / "build.in").read_text().splitlines()
        wanted = [line for line in lines if not line.startswith("#")]
    found = locked(name)
    for requirement in map(Requirement, wanted):
        pinned = found.get(canonicalize_name(requirement.name), "0")
        assert requirement.specifier.contains(pinned), f"{requirement} is locked as {pinned}: run `make lock`"
    makefile = (ROOT / "Makefile").read_text()
    assert f"$(addprefix --extra ,{' '.join(IN_THE_IMAGE)})" in makefile
