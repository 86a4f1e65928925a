"""Several notifications as one text, for receivers that people read."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.wording import first_of
from autoscaler.ports import Notification

MAX_LINES = 20


def digest(notifications: Sequence[Notification]) -> str:
    """The texts of the notifications, one per line: at most `MAX_LINES`, then the number of the others."""
    return "\n".join(first_of([each.text for each in notifications], MAX_LINES))
