"""Durations as Flink and Spark write them in their settings."""

from __future__ import annotations

import math
import re

_UNITS = {
    86400 * 10**9: "d day days",
    3600 * 10**9: "h hour hours",
    60 * 10**9: "min m minute minutes",
    10**9: "s sec secs second seconds",
    10**6: "ms milli millis millisecond milliseconds",
    10**3: "us µs micro micros microsecond microseconds",
    1: "ns nano nanos nanosecond nanoseconds",
}
_NANOSECONDS = {name: length for length, names in _UNITS.items() for name in names.split()}


LONG = 19
"""A number with this many digits may be too large for Java's long."""


def seconds(text: str, unit: str = "ms") -> float | None:
    """A duration as Flink and Spark write it: `10 s`, `500ms`, `1 min`, `PT5S`.

    Args:
        text: the duration.
        unit: the unit of a bare number; Flink's is ms.

    Returns:
        Seconds, below 0 for `-1`; None if the text is not a duration.
    """
    plain = text.strip().strip("'\"").lower()
    if (found := re.fullmatch(r"(-?\d+)\s*([a-zµ]*)", plain)) and (found[2] or unit) in _NANOSECONDS:
        number = int(found[1]) if len(found[1]) < LONG else float(found[1])  # too many digits: a float, maybe infinite
        return number * _NANOSECONDS[found[2] or unit] / 10**9
    iso = re.fullmatch(r"p(?:(\d+)d)?(?:t(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,9})?)s)?)?", plain)
    if iso and any(iso.groups()):
        return sum(float(part or 0) * length for part, length in zip(iso.groups(), (86400, 3600, 60, 1), strict=True))
    return None


def format_seconds(span: float) -> str:
    """A duration as Flink writes it, in the largest unit that gives a whole number; no limit is `-1 ms`."""
    if span == math.inf:
        return "-1 ms"
    whole = round(span * 1000) * 10**6
    length, names = next((length, names) for length, names in _UNITS.items() if whole % length == 0)
    return f"{whole // length} {names.split()[0]}" if whole else "0 ms"
