"""What usually arrives, by a profile: at which level it is now, how far it is to be believed, and what it foretells.

What is learned are a few numbers in a policy's memory, under names that begin with `season.`. A profile may be old, or
of another cluster: it counts as far as it foretold the last days better than "it stays as it is" did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoscaler_policies.shared.recommend import LARGEST

MINUTE_S = 60.0

RATIO_DECAY_S = 3600.0
"""The level at which the usual is now is learned within an hour..."""
RATIOS = (0.25, 4.0)
"""... and is nothing beyond these: that is another load."""
MAX_RATIO_STEP = 0.2
"""What is off by more than this share says no more about the level: a jump that comes minutes early or late."""

AHEAD_MINUTES = 20
"""What the profile says of so long ahead is held against what comes..."""
ERROR_DECAY_S = 2 * 86400.0
"""... and remembered for so long."""
MAX_DELAY_S = 60.0
"""What nobody looked at when it was due is not judged."""
MAX_ERROR = 0.5
"""An error counts at most for this share of the arrivals: a day that is not usual must not spoil a week."""
MINUTE_ERROR = 0.03
"""An error that is no greater may be that of a minute."""
FULL_TRUST_GAIN = 0.3
"""Fully believed is what was further off, squared, by this share less than "it stays as it is" was where that was."""
PRIOR_ERROR = 0.05
"""So much of errors on both sides is assumed in the beginning, so that a profile is half believed until it has shown
what it is worth, and a few small errors say little."""

ABNORMAL = 0.25
"""What is more by this share is nothing usual: no profile tells how it goes on. What is less by it may stay so."""
RETURN_S = 300.0
"""What is off by less comes back, to a third within so long."""


def compare(memory: dict[str, float], usual: Sequence[float], now: float) -> None:
    """Hold what arrives against the usual, and what was foretold against what came.

    Args:
        memory: what is known, changed in place; it has `arrivals.level`.
        usual: usual arrivals of now and of the next minutes, records/s; empty: nothing is usual.
        now: seconds since 1970.
    """
    level = memory.get("arrivals.level", 0.0)
    if not usual or usual[0] <= 0 or level <= 0:
        return
    since = max(now - memory.get("season.seen_at", now), 0.0)
    memory["season.seen_at"] = now
    low, high = RATIOS
    ratio = min(max(level / usual[0], low), high)
    known = memory.get("season.ratio", ratio)
    off = min(max(ratio - known, -MAX_RATIO_STEP * known), MAX_RATIO_STEP * known)
    memory["season.ratio"] = known + (1.0 - math.exp(-since / RATIO_DECAY_S)) * off
    due = memory.get("season.due_at", now)
    if now < due <= now + AHEAD_MINUTES * MINUTE_S:
        return
    # Believed by what was known before: a greater reading must not make less of what is expected.
    memory["season.trust"] = _trust(memory)
    predicted, stable = memory.pop("season.told", None), memory.pop("season.same", None)
    if predicted is not None and stable is not None and due <= now <= due + MAX_DELAY_S:
        kept = math.exp(-AHEAD_MINUTES * MINUTE_S / ERROR_DECAY_S)
        wrong, unchanged = (
            min(max(abs(guess - level) / level - MINUTE_ERROR, 0.0), MAX_ERROR) ** 2 for guess in (predicted, stable)
        )
        # Where both are equally wrong, as through a quiet night, nothing is said against either.
        for name, more in (("season.wrong", wrong - unchanged), ("season.wrong_unchanged", unchanged - wrong)):
            memory[name] = memory.get(name, 0.0) * kept + max(more, 0.0)
    memory["season.due_at"] = now + AHEAD_MINUTES * MINUTE_S
    memory["season.told"] = memory["season.ratio"] * usual[min(AHEAD_MINUTES, len(usual) - 1)]
    memory["season.same"] = level


def _trust(memory: Mapping[str, float]) -> float:
    wrong = memory.get("season.wrong", 0.0) + PRIOR_ERROR * (1.0 - FULL_TRUST_GAIN / 2)
    same = memory.get("season.wrong_unchanged", 0.0) + PRIOR_ERROR
    return min(max((1.0 - wrong / same) / FULL_TRUST_GAIN, 0.0), 1.0)


def season_trust(memory: Mapping[str, float]) -> float:
    """How far the usual is believed, 0 to 1."""
    return min(max(memory.get("season.trust", 0.0), 0.0), 1.0)


def expected(memory: Mapping[str, float], usual: Sequence[float]) -> tuple[float, ...]:
    """The usual arrivals of now and of the next minutes at the level at which they are now; empty: not known."""
    ratio = memory.get("season.ratio")
    if ratio is None:
        return ()
    return tuple([min(ratio * each, LARGEST) for each in usual])


def is_far_above(level: float, usual: Sequence[float]) -> bool:
    """Whether so much more arrives than is foretold that this tells nothing now. `usual` is not empty."""
    return level > (1.0 + ABNORMAL) * usual[0]


def is_far_below(level: float, usual: Sequence[float]) -> bool:
    """The same for less."""
    return level < (1.0 - ABNORMAL) * usual[0]


def peak_backlog(level: float, usual: Sequence[float], trusted: float, capacity: float, lag: float) -> float:
    """The most records that will wait within the time foretold if the size stays, as far as the usual is believed.

    Args:
        level: what arrives now, records/s.
        usual: what is foretold of now and of the next minutes.
        trusted: how far that is believed, 0 to 1: as for the rest, it stays as it is.
        capacity: what the size can process, records/s.
        lag: what waits now.
    """
    off = level - usual[0]
    most = lag
    for minute, each in enumerate(usual[1:], 1):
        back = each + off * math.exp(-minute * MINUTE_S / RETURN_S)
        arriving = level + trusted * (back - level)
        lag = max(lag + (arriving - capacity) * MINUTE_S, 0.0)
        most = max(most, lag)
    return most
