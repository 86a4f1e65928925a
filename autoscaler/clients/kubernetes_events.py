"""Kubernetes Events, as `kubectl describe` shows them beside an object."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from autoscaler.clients.kubernetes import Json

COMPONENT = "reactive-autoscaler"
LONGEST_MESSAGE = 1000  # characters, of the 1,024 bytes that an Event may have


def event(subject: Mapping[str, str], kind: str, reason: str, message: str, at: datetime) -> Json:
    """An Event about an object.

    Args:
        subject: the object: `apiVersion`, `kind`, `name`, `namespace` and `uid`.
        kind: `Normal` or `Warning`.
        reason: one word in CamelCase.
        message: a sentence, cut to what an Event may have.
        at: when it happened.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{subject['name'][:200].rstrip('.-')}.", "namespace": subject["namespace"]},
        "involvedObject": dict(subject),
        "type": kind,
        "reason": reason,
        "message": cut(message),
        "source": {"component": COMPONENT},
        "firstTimestamp": format_time(at),
        "lastTimestamp": format_time(at),
        "count": 1,
    }


def format_time(at: datetime) -> str:
    """A time as the API has it."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def cut(text: str) -> str:
    """As much of it as an Event may have, whose message is limited in bytes."""
    if len(text.encode()) <= LONGEST_MESSAGE:
        return text
    return text.encode()[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."
