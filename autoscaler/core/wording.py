"""Numbers, counts and times in words for users."""

from __future__ import annotations

from collections.abc import Sequence


def format_number(value: float) -> str:
    """A number for users: four significant digits, without a fraction from 1000 on."""
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN is the one that differs
        return str(value)
    if abs(value) >= 1000:  # noqa: PLR2004 - from here on a fraction is noise
        return f"{value:.0f}"
    return f"{value:.4g}"


def format_span(seconds: float) -> str:
    """A duration in at most two units: 12 s, 3 min 20 s, 5 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {small}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def format_age(seconds: float) -> str:
    """How long ago something was."""
    if seconds < -0.5:  # noqa: PLR2004 - below that it is rounding
        return f"{format_span(-seconds)} in the future"
    if seconds < 1:
        return "just now"
    return f"{format_span(seconds)} ago"


def count_of(amount: int, noun: str) -> str:
    """A count with its noun: 1 cluster, 2 clusters."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def first_of(texts: Sequence[str], most: int) -> list[str]:
    """The first texts of a list, and how many are left out: a, b, and 3 more."""
    more = len(texts) - most
    return [*texts[:most], f"and {more} more"] if more > 0 else list(texts)


def list_of(texts: Sequence[str], most: int) -> str:
    """The same as one text: `a, b and 3 more`."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def agree(amount: int, one: str, many: str) -> str:
    """The word that goes with a count: `is` or `are`."""
    return one if amount == 1 else many
