"""Shortens the verdicts of a decision for recording, because guards change nothing in nearly all decisions."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.core.guards import passed
from autoscaler.core.model import Reason, Verdict


def shortened(trail: Sequence[Verdict], proposed: int) -> tuple[tuple[Reason, ...], tuple[Verdict, ...]]:
    """The names of all guards, and the verdicts of those that changed something or have a detail.

    If `restored` could not make the same trail of these, returns no names and all verdicts.
    """
    names = tuple([verdict.guard for verdict in trail])
    kept = tuple([one for one in trail if one.before != one.after or one.detail or one.reason is not one.guard])
    unique = len(set(names)) == len(names)
    return (names, kept) if unique and restored(names, kept, proposed) == tuple(trail) else ((), tuple(trail))


def restored(names: Sequence[Reason], kept: Sequence[Verdict], proposed: int) -> tuple[Verdict, ...]:
    """Restore the trail that `shortened` has shortened. A guard without a verdict did not change the size.

    Raises:
        ValueError: a guard occurs twice, or has a verdict but is not named.
    """
    if not names:
        return tuple(kept)
    by_guard = {verdict.guard: verdict for verdict in kept}
    unique = set(names)
    if len(unique) < len(names) or len(by_guard) < len(kept) or not by_guard.keys() <= unique:
        raise ValueError("verdicts: a guard has a verdict but is not among the names in guards, or occurs twice")
    trail, size = [], proposed
    for name in names:
        verdict = by_guard.get(name) or passed(name, size)
        trail.append(verdict)
        size = verdict.after
    return tuple(trail)
