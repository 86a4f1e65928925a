"""Seasonal arrivals from a profile: their present level, and whether the profile is trusted.

A profile may be old, or belong to another cluster: it counts only if it predicted the last days no worse than constant
arrivals would have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler_policies.adaptive.forecast import MINUTE_S
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.recommend import LARGEST


@dataclass(slots=True)
class Season:
    """How well a profile has predicted the arrivals.

    Attributes:
        seen_at: when it was compared last, seconds since 1970.
        ratio: arrivals divided by those of the profile; None: unknown.
        due_at: when the last prediction will be compared with the arrivals.
        least, most: the profile's prediction for the minutes around that time, as a jump may be early or late; None:
            there is no prediction.
        unchanged: the prediction of constant arrivals for that time.
        wrong, wrong_unchanged: by how much the squared error of each prediction exceeded the other's; decaying sums.
        trusted: whether the profile was no more wrong than constant arrivals.
    """

    seen_at: float | None = None
    ratio: float | None = None
    due_at: float | None = None
    least: float | None = None
    most: float | None = None
    unchanged: float | None = None
    wrong: float = 0.0
    wrong_unchanged: float = 0.0
    trusted: bool = True

    def expected(self, level: float, usual: Sequence[float]) -> tuple[float, ...]:
        """Arrivals now and in the next minutes according to the profile; empty: it predicts nothing.

        Args:
            level: level of the present arrivals, records/s.
            usual: arrivals of the profile now and in the next minutes, records/s.
        """
        ratio = self.ratio
        if ratio is None or not self.trusted or not usual or level < (1.0 - TUNING.abnormal) * ratio * usual[0]:
            return ()
        return tuple([min(ratio * each, LARGEST) for each in usual])

    def compare(self, level: float, usual: Sequence[float], now: float) -> None:
        """Compare the arrivals with the profile, and the last prediction with the arrivals.

        Args:
            level: level of the present arrivals, records/s.
            usual: arrivals of the profile now and in the next minutes, records/s; empty: there is no profile.
            now: seconds since 1970.
        """
        if not usual or usual[0] <= 0 or level <= 0:
            return
        since = 0.0 if self.seen_at is None else max(now - self.seen_at, 0.0)
        self.seen_at = now
        ratio = level / usual[0]
        known = ratio if self.ratio is None else self.ratio
        off = min(max(ratio - known, -TUNING.abnormal * known), TUNING.abnormal * known)
        self.ratio = known + (1.0 - math.exp(-since / TUNING.memory_s)) * off
        due = now if self.due_at is None else self.due_at
        if now < due <= now + TUNING.profile_ahead_minutes * MINUTE_S:
            return
        # Based on earlier errors only: a larger reading must not lower the expected arrivals.
        self.trusted = self.wrong <= self.wrong_unchanged
        if self.least is not None and self.most is not None and due <= now <= due + MINUTE_S:
            predicted = min(max(level, self.least), self.most)
            wrong, unchanged = (
                max(abs(guess - level) / max(guess, level) - TUNING.noise, 0.0) ** 2
                for guess in (predicted, self.unchanged or 0.0)
            )
            # If both errors are equal, as in a quiet night, neither counts.
            kept = math.exp(-TUNING.profile_ahead_minutes * MINUTE_S / TUNING.profile_memory_s)
            self.wrong = self.wrong * kept + max(wrong - unchanged, 0.0)
            self.wrong_unchanged = self.wrong_unchanged * kept + max(unchanged - wrong, 0.0)
        self.due_at = now + TUNING.profile_ahead_minutes * MINUTE_S
        then = usual[TUNING.profile_ahead_minutes - 1 : TUNING.profile_ahead_minutes + 2] or usual[-1:]
        self.least, self.most = self.ratio * min(then), self.ratio * max(then)
        self.unchanged = level
