"""Durations as people write them: `30s`, `5m`, `1h30m`, `500ms`."""

from __future__ import annotations

import re
from datetime import timedelta

# Ten years: far beyond any sensible setting, and every time plus or minus it can still be written as a date.
LONGEST = timedelta(days=3650)

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
PATTERN = rf"^(?=.)(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?$"
_UNITS = ("days", "hours", "minutes", "seconds", "milliseconds")
_DURATION = re.compile(PATTERN.replace(_NUMBER, f"({_NUMBER})"))
_BARE = re.compile(r"[-+]?[0-9.]+")


def parse_duration(text: str) -> timedelta:
    """Read a duration: numbers with the units d, h, m, s, ms, each at most once and in this order.

    Raises:
        ValueError: it is not a duration, or it is longer than ten years.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        if _BARE.fullmatch(text):
            raise ValueError(f"{text} has no unit; write it like {text.lstrip('+-')}s, 5m, 1h30m or 500ms")
        raise ValueError(f"expected a duration like 30s, 5m, 1h30m or 500ms, not {text!r}")
    try:
        span = timedelta(**{unit: float(number) for unit, number in zip(_UNITS, match.groups(), strict=True) if number})
    except OverflowError:
        span = timedelta.max
    if span > LONGEST:
        raise ValueError(f"{text} is too long; a duration is at most {format_duration(LONGEST)}")
    return span


def format_duration(span: timedelta) -> str:
    """Write a duration so that `parse_duration` reads it again, to the millisecond; zero is `0s`."""
    rest = round(abs(span) / timedelta(milliseconds=1))
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return f"-{text}" if span < timedelta(0) and text else text or "0s"
