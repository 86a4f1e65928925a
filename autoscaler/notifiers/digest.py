"""Several notifications as one text, for receivers that are read by people."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.wording import first_of
from autoscaler.ports import Notification

MAX_LINES = 20


def digest(notifications: Sequence[Notification]) -> str:
    """Their texts, the first ones of many, each on its own line."""
    return "\n".join(first_of([each.text for each in notifications], MAX_LINES))
