"""Annotations by which people pause a cluster or hold it at a size, on the object that is scaled or describes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoscaler.core.foreign import foreign_text, shorten
from autoscaler.core.model import MAX_REPLICAS, Control, ControlKind

PAUSED = "autoscaler/paused"
HOLD = "autoscaler/hold"

_DIRECTIONS = {"true": (True, True), "up": (True, False), "down": (False, True), "false": (False, False)}
_LONGEST = 40  # characters of a value that are shown


def keep_controls(annotations: Mapping[str, str] | None) -> Mapping[str, str]:
    """Those of an object's annotations that order something."""
    return {key: annotations[key] for key in (PAUSED, HOLD) if key in annotations} if annotations else {}


def read_controls(annotations: Mapping[str, str], subject: str) -> tuple[tuple[Control, ...], tuple[str, ...]]:
    """What annotations order, and what is wrong with them, as sentences. A wrong one orders nothing.

    Args:
        annotations: of the object, also others.
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
        # Long ones are not converted: Python raises another error for thousands of digits.
        if hold.isascii() and hold.isdecimal() and len(hold) <= len(str(MAX_REPLICAS)) and int(hold) <= MAX_REPLICAS:
            yield Control(kind=ControlKind.HOLD, by=by, replicas=int(hold))
        else:
            yield f"{by} is {_shown(hold)}, expected a number of replicas, at most {MAX_REPLICAS}: no effect"


def _shown(value: str) -> str:
    return repr(shorten(foreign_text(value), _LONGEST))
