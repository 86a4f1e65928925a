"""Several notifications as one text, for receivers that are read by people."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.ports import Notification

MAX_LINES = 20


def digest(notifications: Sequence[Notification]) -> str:
    """Their texts, the first ones of many, each on its own line."""
    more = len(notifications) - MAX_LINES
    lines = [each.text for each in notifications[:MAX_LINES]]
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
