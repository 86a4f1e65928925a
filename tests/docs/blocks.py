"""The fenced blocks of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
)
_FENCE = re.compile(r"(<!-- excerpt -->\n)?^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        where: page and line.
        language: the word after the fence.
        text: its content.
        excerpt: whether it is marked as one: `<!-- excerpt -->` before the fence, or `# excerpt` as its first line.
    """

    where: str
    language: str
    text: str
    excerpt: bool


def blocks(*languages: str) -> Iterator[Block]:
    """All blocks in these languages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[2] in languages:
                line = text.count("\n", 0, match.start(3)) + 1
                excerpt = bool(match[1]) or match[3].startswith("# excerpt")
                yield Block(f"{page.relative_to(ROOT)}:{line}", match[2], match[3], excerpt)
