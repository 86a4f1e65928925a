from __future__ import annotations

import re
import shlex

import pytest

from autoscaler import cli
from tests.docs.blocks import blocks

COMMAND = re.compile(r"^ *(?:\$ )?(?:\.venv/bin/)?autoscaler ((?:.*\\\n)*.*)$", re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for block in blocks("bash", "console", "sh"):
        for line in COMMAND.findall(block.text):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            if "--help" not in words:
                found.append((f"{block.where}: {' '.join(words)}", words))
    return found


@pytest.mark.parametrize("words", [words for _, words in commands()], ids=[name for name, _ in commands()])
def test_every_command_in_the_documentation_exists(words: list[str]) -> None:
    assert cli.parse(words[: words.index(">")] if ">" in words else words).command


def test_there_are_commands_in_the_documentation() -> None:
    assert len(commands()) > 25
