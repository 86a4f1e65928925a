"""The verdicts of a decision in short, as they are recorded: nearly always no guard changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.guards import passed
from autoscaler.core.model import Reason, Verdict


def shortened(trail: Sequence[Verdict], proposed: int) -> tuple[tuple[Reason, ...], tuple[Verdict, ...]]:
    """The names of all guards, and the verdicts of those that changed something or have a detail.

    Where `restored` could not make the trail of it again, there are no names, and all verdicts.
    """
    names = tuple([verdict.guard for verdict in trail])
    kept = tuple([one for one in trail if one.before != one.after or one.detail or one.reason is not one.guard])
    unique = len(set(names)) == len(names)
    return (names, kept) if unique and restored(names, kept, proposed) == tuple(trail) else ((), tuple(trail))


def restored(names: Sequence[Reason], kept: Sequence[Verdict], proposed: int) -> tuple[Verdict, ...]:
    """The trail that `shortened` has made short: a guard that has no verdict there let the size pass as it found it.

    Raises:
        ValueError: a guard comes twice, or has a verdict and is not named.
    """
    if not names:
        return tuple(kept)
    by_guard = {verdict.guard: verdict for verdict in kept}
    unique = set(names)
    if len(unique) < len(names) or len(by_guard) < len(kept) or not by_guard.keys() <= unique:
        raise ValueError("verdicts: a guard has a verdict and is not among the names in guards, or one comes twice")
    trail, size = [], proposed
    for name in names:
        verdict = by_guard.get(name) or passed(name, size)
        trail.append(verdict)
        size = verdict.after
    return tuple(trail)
