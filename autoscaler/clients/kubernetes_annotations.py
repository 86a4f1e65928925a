"""Annotations with which people pause a cluster or hold it at a size: on the scaled object or a StreamAutoscaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoscaler.core.foreign import foreign_text, shorten
from autoscaler.core.model import MAX_REPLICAS, Control, ControlKind

PAUSED = "autoscaler/paused"
HOLD = "autoscaler/hold"

_DIRECTIONS = {"true": (True, True), "up": (True, False), "down": (False, True), "false": (False, False)}
_LONGEST = 40  # the most characters of a value that a message shows


def keep_controls(annotations: Mapping[str, str] | None) -> Mapping[str, str]:
    """The annotations of an object that pause or hold a cluster."""
    return {key: annotations[key] for key in (PAUSED, HOLD) if key in annotations} if annotations else {}


def read_controls(annotations: Mapping[str, str], subject: str) -> tuple[tuple[Control, ...], tuple[str, ...]]:
    """Return the controls that the annotations set, and a sentence for each invalid one, which has no effect.

    Args:
        annotations: all annotations of the object; unrelated ones are ignored.
        subject: the object, such as `deployments prod/orders`.
    """
    found = [*_read(annotations, subject)]
    return (
        tuple([each for each in found if isinstance(each, Control)]),
        tuple([each for each in found if isinstance(each, str)]),
    )


def _read(annotations: Mapping[str, str], subject: str) -> Iterator[Control | str]:
    paused, hold = annotations.get(PAUSED), annotations.get(HOLD)
    if paused is not None:
        by = f"the annotation {PAUSED} of {subject}"
        up, down = _DIRECTIONS.get(paused, (None, None))
        if up is None or down is None:
            yield f"{by} is {_shown(paused)}, expected true, up, down or false: no effect"
        elif up or down:
            yield Control(kind=ControlKind.PAUSE, by=by, up=up, down=down)
    if hold is not None:
        by = f"the annotation {HOLD} of {subject}"
        # Check the length first: `int` raises an error for a number with thousands of digits.
        if hold.isascii() and hold.isdecimal() and len(hold) <= len(str(MAX_REPLICAS)) and int(hold) <= MAX_REPLICAS:
            yield Control(kind=ControlKind.HOLD, by=by, replicas=int(hold))
        else:
            yield f"{by} is {_shown(hold)}, expected a number of replicas, at most {MAX_REPLICAS}: no effect"


def _shown(value: str) -> str:
    return repr(shorten(foreign_text(value), _LONGEST))
