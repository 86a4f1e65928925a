"""Whether more workers still raise the throughput of a job that cannot keep up.

If something else limits the job (a database that it writes to, one partition with most of the records), more workers
cost money and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler_policies.adaptive.forecast import NEVER
from autoscaler_policies.adaptive.tuning import TUNING
from autoscaler_policies.shared.recommend import format_number

GAIN = TUNING.significance * TUNING.noise
"""More workers do not help if they bring less than this share of the gain in proportion to their number."""


@dataclass(slots=True)
class Throughput:
    """The throughput, or the capacity, of a size.

    Attributes:
        size: replicas; 0: nothing is known.
        rate: records/s.
        seen_at: when, seconds since 1970.
    """

    size: float = 0.0
    rate: float = 0.0
    seen_at: float = NEVER

    def set(self, size: float, rate: float, now: float) -> None:
        """Store the throughput of a size, seen now."""
        self.size, self.rate, self.seen_at = size, rate, now


def climb(smaller: Throughput, size: int, rate: float, now: float) -> None:
    """Store the capacity of a size, records/s, when a larger size follows it; of several in a row, the first counts."""
    if now - smaller.seen_at > TUNING.plateau_s or size < smaller.size:
        smaller.set(size, rate, now)


def compare(smaller: Throughput, limit: Throughput, size: int, throughput: float, now: float) -> None:
    """Compare the throughput of a job that is behind, undisturbed and busy with the capacity of a smaller size.

    Args:
        smaller: the capacity of a smaller size; changed in place.
        limit: the size from which more workers did not help; changed in place.
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
    """Forget the limit if it is too old, if the size is smaller now, or if the throughput is far higher."""
    if now - limit.seen_at > TUNING.plateau_s or size < limit.size or throughput > (1.0 + GAIN) * limit.rate:
        limit.set(0.0, 0.0, NEVER)


def describe(smaller: Throughput, limit: Throughput) -> str | None:
    """Why more workers would not help; None: they may."""
    if limit.size <= 0:
        return None
    before, less, size, more = map(format_number, (smaller.size, smaller.rate, limit.size, limit.rate))
    return f"{before} replicas could process {less}/s, {size} process {more}/s: something else limits the job"
