"""Errors and remarks quoted on a page are those of the program."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import PAGES, ROOT

TABLE = re.compile(r"^\| (?:error|remark|message) \|.*\n\|---.*\n((?:\|.*\n)+)", re.MULTILINE)
# Numbers, and the words and names of external systems in a message.
VARIABLE = re.compile(r"\d+(?:/\d+)?|\.\.\.|…|:|\b(?:tm|deployments\.apps|kubectl|main|pods?|by|in|at|on|is)\b")


def code() -> str:
    """All strings of the program, one per line; a placeholder ends a string."""
    found = []
    for path in (ROOT / "autoscaler").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


def quoted() -> list[tuple[str, str]]:
    """Page and message, for each table of messages."""
    found = []
    for page in PAGES:
        for table in TABLE.findall(page.read_text(encoding="utf-8")):
            for row in table.splitlines():
                found += [(page.name, message) for message in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return found


@pytest.fixture(scope="module")
def strings() -> str:
    return code()


@pytest.mark.parametrize(("page", "message"), quoted(), ids=lambda part: part[:60])
def test_every_quoted_message_exists_in_the_program(page: str, message: str, strings: str) -> None:
    parts = [part.strip(" (),'.") for part in VARIABLE.split(message)]
    assert any(len(part) > 5 and part in strings for part in parts), f"{page}: {message!r}"


def test_there_are_messages() -> None:
    assert len(quoted()) > 30
