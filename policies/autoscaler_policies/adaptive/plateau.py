"""Whether more workers still raise what a job processes that cannot keep up.

Where something else limits it (a database that it writes to, one partition with most of the records), more of them cost
money and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler_policies.adaptive.forecast import NEVER
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.recommend import format_number

GAIN = TUNING.significance * TUNING.noise
"""More workers do not help where they bring less than this share of what they would at best."""


@dataclass(slots=True)
class Throughput:
    """What a size processes, or could.

    Attributes:
        size: replicas; 0: nothing is known.
        rate: records/s.
        seen_at: when, seconds since 1970.
    """

    size: float = 0.0
    rate: float = 0.0
    seen_at: float = NEVER

    def set(self, size: float, rate: float, now: float) -> None:
        """Keep what was seen now."""
        self.size, self.rate, self.seen_at = size, rate, now


def climb(smaller: Throughput, size: int, rate: float, now: float) -> None:
    """Keep what a size can process, records/s, that is left for a larger one; of several in a row that of the first."""
    if now - smaller.seen_at > TUNING.plateau_s or size < smaller.size:
        smaller.set(size, rate, now)


def compare(smaller: Throughput, limit: Throughput, size: int, throughput: float, now: float) -> None:
    """Compare what a job processes that is behind, undisturbed and busy, with what a smaller size could.

    Args:
        smaller: what is known of a smaller size, changed in place.
        limit: where more did not help, changed in place.
        size: the job's size.
        throughput: records/s.
        now: seconds since 1970.
    """
    before = smaller.size
    if limit.size or now - smaller.seen_at > TUNING.plateau_s or before <= 0 or size < TUNING.plateau_growth * before:
        return
    helps = throughput >= smaller.rate * (1.0 + GAIN * (size / before - 1.0))
    (smaller if helps else limit).set(size, throughput, now)


def forget(limit: Throughput, size: int, throughput: float, now: float) -> None:
    """Forget that more do not help where it is too long ago, the size is smaller now, or far more is processed."""
    if now - limit.seen_at > TUNING.plateau_s or size < limit.size or throughput > (1.0 + GAIN) * limit.rate:
        limit.set(0.0, 0.0, NEVER)


def describe(smaller: Throughput, limit: Throughput) -> str | None:
    """Why more would not help; None where they may."""
    if limit.size <= 0:
        return None
    before, less, size, more = map(format_number, (smaller.size, smaller.rate, limit.size, limit.rate))
    return f"{before} replicas could process {less}/s, {size} process {more}/s: something else limits the job"
