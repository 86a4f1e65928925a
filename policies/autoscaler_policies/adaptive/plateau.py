"""Whether more workers still raise what a job processes that cannot keep up.

Where something else limits it (a database that it writes to, one partition with most of the records), more of them cost
money and change nothing. What is learned are a few numbers in a policy's memory, under names that begin with `climb.`
and `plateau.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoscaler_policies.shared.recommend import format_number

GROWTH = 1.5
"""Throughputs are compared between sizes of which one is so many times the other: noise hides smaller steps..."""
GAIN = 0.15
"""... and more workers do not help where they bring less than this share of what they would at best."""
AGE_S = 1800.0
"""Throughputs further apart are of other records; and after so long it is tried again."""


def climb(memory: dict[str, float], size: int, rate: float, now: float) -> None:
    """Keep what a size can process, records/s, that is left for a larger one; of several in a row that of the first."""
    if now - memory.get("climb.seen_at", -math.inf) > AGE_S or size < memory.get("climb.size", math.inf):
        memory.update({"climb.size": float(size), "climb.rate": rate, "climb.seen_at": now})


def compare(memory: dict[str, float], size: int, throughput: float, now: float) -> None:
    """Compare what a job processes that is behind, undisturbed and busy, with what a smaller size could.

    Args:
        memory: what is known, changed in place.
        size: its size.
        throughput: records/s.
        now: seconds since 1970.
    """
    before, rate = memory.get("climb.size", 0.0), memory.get("climb.rate", 0.0)
    recent = now - memory.get("climb.seen_at", -math.inf) <= AGE_S
    if "plateau.seen_at" in memory or not recent or before <= 0 or size < GROWTH * before:
        return
    if throughput < rate * (1.0 + GAIN * (size / before - 1.0)):
        memory.update({"plateau.size": float(size), "plateau.rate": throughput, "plateau.seen_at": now})
    else:
        memory.update({"climb.size": float(size), "climb.rate": throughput, "climb.seen_at": now})


def forget(memory: dict[str, float], size: int, throughput: float, now: float) -> None:
    """Forget that more do not help where it is too long ago, the size is smaller now, or far more is processed."""
    rate, at = memory.get("plateau.rate", 0.0), memory.get("plateau.seen_at", -math.inf)
    if now - at > AGE_S or size < memory.get("plateau.size", math.inf) or throughput > (1.0 + GAIN) * rate:
        for name in ("plateau.size", "plateau.rate", "plateau.seen_at"):
            memory.pop(name, None)


def describe(memory: Mapping[str, float]) -> str | None:
    """Why more would not help; None where they may."""
    if "plateau.seen_at" not in memory:
        return None
    before, less, size, more = (
        format_number(memory.get(name, 0.0)) for name in ("climb.size", "climb.rate", "plateau.size", "plateau.rate")
    )
    return f"{before} replicas could process {less}/s, {size} process {more}/s: something else limits the job"
