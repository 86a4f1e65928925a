from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoscaler.cli.plugins_markdown import markdown
from autoscaler.plugins import Kind, installed
from tests.docs.refresh import BLOCK, KEYS, PAGES, refreshed

BUILT_IN = [found for found in installed() if found.package == "reactive-autoscaler"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_match_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == refreshed(text), "run `python -m tests.docs.refresh`"


def test_a_changed_table_is_detected() -> None:
    page = next(page.read_text() for page in PAGES if page.name == "adaptive.md")
    assert refreshed(page.replace("| `objective` |", "| `other` |")) == page


def test_the_errors_of_the_page_are_those_of_its_file() -> None:
    page = next(page.read_text() for page in PAGES if page.name == "configuration.md")
    assert refreshed(page.replace("did you mean 'window'?", "other")) == page


def test_every_built_in_plug_in_has_a_table() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {match["name"] for match in BLOCK.finditer(text)}
    # `null` is the former name of `advice`
    assert {found.name for found in BUILT_IN} - shown <= {"null"}
    ours = {match["name"] for match in BLOCK.finditer(text) if match["kind"] in {None, "discovery"}}
    assert {found.name for found in BUILT_IN if found.kind is Kind.DISCOVERY} <= ours
    assert len(KEYS.findall(text)) == 6


@pytest.mark.parametrize("found", BUILT_IN, ids=lambda found: f"{found.kind.noun} {found.name}")
def test_every_key_has_a_description(found: object) -> None:
    rows = [row for row in markdown(found).splitlines() if row.startswith("| `")]  # type: ignore[arg-type]
    assert rows
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 6, row
        assert not row.endswith("|  |"), row
