"""Kubernetes Events, which `kubectl describe` shows with an object."""

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
        message: a sentence; it is cut to the longest message of an Event.
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
    """A time in the API's format."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def cut(text: str) -> str:
    """Cut a text to the longest message of an Event, which is limited in bytes."""
    if len(text.encode()) <= LONGEST_MESSAGE:
        return text
    return text.encode()[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."
