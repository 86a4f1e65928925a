"""KEDA's rules as pure functions, exact to the digit. Functions that avoid a known harm of KEDA are named `safe_...`.

Each function names the function of https://github.com/kedacore/keda that it follows.
"""

from __future__ import annotations

import math
from enum import StrEnum

from autoscaler_policies.shared.recommend import whole

NOTHING_COMMITTED = -1
"""The offset of a group without a commit in a partition."""
HPA_TOLERANCE = 0.1
"""Share of the target that the HPA ignores by default."""
EXACT = 2.0**53
"""From this number on, floats have no thousandths, and 1000 times the number may be too large for a float."""


class Reset(StrEnum):
    """Where a group without a committed offset begins to read."""

    LATEST = "latest"
    EARLIEST = "earliest"


class Behaviour(StrEnum):
    """The size while a trigger keeps failing (`fallback.behavior`)."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    IF_HIGHER = "currentReplicasIfHigher"
    IF_LOWER = "currentReplicasIfLower"
    MODIFIERS = "scalingModifiers"


def factors(partitions: int) -> tuple[int, ...]:
    """All divisors, smallest first; none below 1 (kafka_scaler.go, FindFactors)."""
    small = [number for number in range(1, math.isqrt(max(partitions, 0)) + 1) if partitions % number == 0]
    return tuple(sorted({*small, *(partitions // number for number in small)}))


def next_factor(lag: float, partitions: int, threshold: float) -> int:
    """The fewest consumers that share the partitions evenly and are enough for the lag.

    kafka_scaler.go, getNextFactorThatBalancesConsumersToTopicPartitions.
    """
    return next((number for number in factors(partitions) if number * threshold >= lag), partitions)


def safe_partition_lag(
    committed: float, latest: float | None, reset: Reset = Reset.LATEST, *, zero_on_invalid: bool = False
) -> float | None:
    """Like getLagForPartition, but unknown if the end of the log is missing or before the committed offset.

    KEDA then computes zero or less. A log that was deleted and created again ends before the offset that the group has
    committed; KEDA subtracts the difference from the lag of other partitions.
    """
    if committed == NOTHING_COMMITTED:
        if zero_on_invalid:
            return 0.0
        return 1.0 if reset is Reset.LATEST else latest
    return None if latest is None or latest < committed else latest - committed


def hpa_average_size(value: float, target: float, current: int, tolerance: float = HPA_TOLERANCE) -> int:
    """The HPA's size for an external metric with a target per replica (GetExternalPerPodMetricReplicas)."""
    if current and 1 - tolerance <= value / (target * current) <= 1 + tolerance:
        return current
    return whole(value / target)


def safe_size(
    lag: float,
    threshold: float,
    current: int,
    *,
    bound: int | None = None,
    even: int | None = None,
    tolerance: float = HPA_TOLERANCE,
) -> int:
    """The size for a lag: the size that the HPA computes, then limited by the partitions.

    KEDA limits the lag instead, with an integer division that allows up to one replica too many (keda#4483), and then
    the HPA's tolerance keeps the size below the limit however large the lag is (keda#2908).

    Args:
        lag: sum over all partitions, unlimited.
        threshold: lag per replica.
        current: the current size.
        bound: the most replicas that can be used; None: no limit.
        even: partitions that replicas must share evenly; None: they need not.
        tolerance: share of the threshold that is ignored.
    """
    size = hpa_average_size(lag, threshold, current, tolerance)
    if even is not None and (size != current or even % max(current, 1)):
        size = next_factor(lag, even, threshold)
    return size if bound is None else min(size, bound)


def safe_fallback_size(behaviour: Behaviour, current: int, replicas: int) -> int:
    """The size while a trigger keeps failing: never below the current one, since a missing lag is not zero.

    KEDA's `static` and `currentReplicasIfLower` lower the size exactly when nothing is known.
    """
    return max(current, replicas) if behaviour in (Behaviour.STATIC, Behaviour.IF_HIGHER) else current


def milli(value: float) -> float:
    """The value, truncated to thousandths."""
    return math.trunc(value * 1000) / 1000 if abs(value) < EXACT else value
