# ruff: noqa: INP001 - MkDocs loads it by its path
"""Makes the README the first page of the site, so that its text exists only once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

README = Path(__file__).parents[1] / "README.md"


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - MkDocs' own configuration
    """Add the README as index.md. Links to files that are not on the site become plain paths."""
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", README.read_text(encoding="utf-8"))
    text = re.sub(r"\[([^]]*)\]\((?:examples|deploy|LICENSE|CONTRIBUTING|SECURITY|CHANGELOG)[^)]*\)", r"\1", text)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_pre_build(config: Any) -> None:  # noqa: ANN401
    """Read the README again while `mkdocs serve` runs."""
    if str(README) not in config.watch:
        config.watch.append(str(README))
