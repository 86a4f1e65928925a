"""Seasonal arrivals by a profile: their level now, how far the profile is trusted, and what it predicts.

A profile may be old, or of another cluster: it counts as far as it predicted the last days better than constant
arrivals would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler_policies.shared.recommend import LARGEST

MINUTE_S = 60.0

RATIO_DECAY_S = 3600.0
"""Time constant with which the ratio of the arrivals to the profile is learned..."""
RATIOS = (0.25, 4.0)
"""... which is limited to this range: anything beyond it is another load."""
MAX_RATIO_STEP = 0.2
"""A larger relative change of the ratio counts only this much: a jump may be minutes early or late."""

AHEAD_MINUTES = 20
"""The prediction of the profile for so long ahead is compared with the arrivals..."""
ERROR_DECAY_S = 2 * 86400.0
"""... and its error is remembered for so long (to 37 %)."""
MAX_DELAY_S = 60.0
"""A prediction is not compared when the next poll is later than this after it was due."""
MAX_ERROR = 0.5
"""An error counts at most for this share of the arrivals: one abnormal day must not spoil a week."""
MINUTE_ERROR = 0.03
"""Smaller errors are ignored: a single minute may be off by so much."""
FULL_TRUST_GAIN = 0.3
"""A profile is fully trusted when its squared error is smaller by this share than that of constant arrivals."""
PRIOR_ERROR = 0.05
"""Squared error assumed for both at the start: a profile is half trusted until it has been compared often enough, and
a few small errors change little."""

ABNORMAL = 0.25
"""Arrivals that exceed the profile by this share are abnormal: the profile cannot predict them. Lower ones may stay."""
RETURN_S = 300.0
"""A smaller deviation decays, to 37 % within so long."""


@dataclass(slots=True)
class Season:
    """How well a profile has predicted the arrivals.

    Attributes:
        seen_at: when it was compared last, seconds since 1970.
        ratio: the arrivals in those of the profile; None: not known.
        due_at: when the last prediction is compared with the arrivals...
        predicted, unchanged: ... by the profile, and if nothing changed; None: there is none.
        wrong, wrong_unchanged: by how much more each was wrong, summed squares.
        trust: how far the profile is trusted, 0 to 1.
    """

    seen_at: float | None = None
    ratio: float | None = None
    due_at: float | None = None
    predicted: float | None = None
    unchanged: float | None = None
    wrong: float = 0.0
    wrong_unchanged: float = 0.0
    trust: float = 0.0

    def expected(self, usual: Sequence[float]) -> tuple[float, ...]:
        """The arrivals of the profile now and in the next minutes, scaled to the present level; empty: not known."""
        ratio = self.ratio
        return () if ratio is None else tuple([min(ratio * each, LARGEST) for each in usual])

    def compare(self, level: float, usual: Sequence[float], now: float) -> None:
        """Compare the arrivals with the profile, and the last prediction with the arrivals.

        Args:
            level: of the arrivals, records/s.
            usual: arrivals of the profile now and in the next minutes, records/s; empty: there is no profile.
            now: seconds since 1970.
        """
        if not usual or usual[0] <= 0 or level <= 0:
            return
        since = 0.0 if self.seen_at is None else max(now - self.seen_at, 0.0)
        self.seen_at = now
        low, high = RATIOS
        ratio = min(max(level / usual[0], low), high)
        known = ratio if self.ratio is None else self.ratio
        off = min(max(ratio - known, -MAX_RATIO_STEP * known), MAX_RATIO_STEP * known)
        self.ratio = known + (1.0 - math.exp(-since / RATIO_DECAY_S)) * off
        due = now if self.due_at is None else self.due_at
        if now < due <= now + AHEAD_MINUTES * MINUTE_S:
            return
        # Trusted by what was known before: a larger reading must not lower what is expected.
        self.trust = self._trust()
        if self.predicted is not None and self.unchanged is not None and due <= now <= due + MAX_DELAY_S:
            kept = math.exp(-AHEAD_MINUTES * MINUTE_S / ERROR_DECAY_S)
            wrong, unchanged = (
                min(max(abs(guess - level) / level - MINUTE_ERROR, 0.0), MAX_ERROR) ** 2
                for guess in (self.predicted, self.unchanged)
            )
            # Where both errors are equal, as in a quiet night, neither counts.
            self.wrong = self.wrong * kept + max(wrong - unchanged, 0.0)
            self.wrong_unchanged = self.wrong_unchanged * kept + max(unchanged - wrong, 0.0)
        self.due_at = now + AHEAD_MINUTES * MINUTE_S
        self.predicted = self.ratio * usual[min(AHEAD_MINUTES, len(usual) - 1)]
        self.unchanged = level

    def _trust(self) -> float:
        wrong, same = self.wrong + PRIOR_ERROR * (1.0 - FULL_TRUST_GAIN / 2), self.wrong_unchanged + PRIOR_ERROR
        return min(max((1.0 - wrong / same) / FULL_TRUST_GAIN, 0.0), 1.0)


def is_far_above(level: float, usual: Sequence[float]) -> bool:
    """Whether the arrivals exceed the profile by so much that it predicts nothing now. `usual` is not empty."""
    return level > (1.0 + ABNORMAL) * usual[0]


def is_far_below(level: float, usual: Sequence[float]) -> bool:
    """The same for less."""
    return level < (1.0 - ABNORMAL) * usual[0]


def peak_backlog(level: float, usual: Sequence[float], trusted: float, capacity: float, lag: float) -> float:
    """The largest backlog within the time predicted if the size stays, as far as the profile is trusted.

    Args:
        level: what arrives now, records/s.
        usual: what is predicted for now and for the next minutes.
        trusted: how far that is trusted, 0 to 1; the rest is constant arrivals.
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
