"""The number of rows of printed tables, and times in them."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_ROWS = 30
"""The maximum number of rows of a list without --all."""


def omitted_rows(shown: Sequence[object], rows: Sequence[object], what: str) -> list[str]:
    """A line with the number of rows that were left out; no line if none was."""
    rest = len(rows) - len(shown)
    return [f"... and {rest} more {what}: --all lists them"] if rest else []


def format_elapsed(seconds: float) -> str:
    """A time since the beginning: 1:02:30."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
