"""Foreign code in our words: what a plug-in raises may have any text, or none."""

from __future__ import annotations

MAX_TEXT = 2000
"""Characters of a foreign text that are kept and shown."""


def shorten(text: str, limit: int = MAX_TEXT) -> str:
    """A text, cut to a length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def foreign_text(value: object) -> str:
    """The text of a foreign object, such as an exception's message, on one line of at most `MAX_TEXT` characters."""
    try:
        text = shorten(str(value))
    except BaseException as raised:  # noqa: BLE001 - what its __str__ raises is as foreign
        text = f"its text cannot be shown: {type(raised).__name__}"
    return " ".join(text.split())


def format_exception(error: BaseException) -> str:
    """A foreign exception with its type, on one line, cut. It never raises."""
    text = foreign_text(error)
    name = shorten(type(error).__name__, 100)
    return f"{name}: {text}" if text else name
