"""KEDA's rules as pure functions, to the digit, and beside them what we do where KEDA is known to be wrong.

Each function names the one of https://github.com/kedacore/keda that it follows. Those called `safe_...` are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autoscaler_policies.keda.formula import compute, parse

NOTHING_COMMITTED = -1
"""The offset of a group that has not committed in a partition."""
PLACEHOLDER = -1.0
"""What is exported for a failing trigger that is nil in a formula; nobody reads it."""
HPA_TOLERANCE = 0.1
"""Share of the target that the HPA ignores, unless it is told otherwise."""
EXACT = 2.0**53
"""A number from here on has no thousandths, and a thousand times as much may be beyond all floats."""
MOST = 2**31 - 1
"""The largest size Kubernetes knows; a lag divided by a tiny threshold is not."""


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


@dataclass(frozen=True, slots=True)
class Fallen:
    """What is exported for a trigger: its failures in a row, and a value, or None where the error is passed on."""

    failures: int
    metric_value: float | None


def factors(partitions: int) -> tuple[int, ...]:
    """All divisors, smallest first; none below 1 (kafka_scaler.go, FindFactors)."""
    small = [number for number in range(1, math.isqrt(max(partitions, 0)) + 1) if partitions % number == 0]
    return tuple(sorted({*small, *(partitions // number for number in small)}))


def next_factor(lag: float, partitions: int, threshold: float) -> int:
    """The fewest consumers that share the partitions evenly and are enough for the lag.

    kafka_scaler.go, getNextFactorThatBalancesConsumersToTopicPartitions.
    """
    return next((number for number in factors(partitions) if number * threshold >= lag), partitions)


def partition_lag(
    committed: int,
    latest: int | None,
    reset: Reset = Reset.LATEST,
    *,
    zero_on_invalid: bool = False,
    previous: int | None = None,
    exclude_persistent: bool = False,
) -> tuple[int, int]:
    """Lag of a partition that counts for the size, and the one that counts for activation (getLagForPartition).

    Args:
        committed: the group's offset; -1: none.
        latest: the end of the log; None: missing from the answer, which KEDA takes for no lag.
        reset: where a group without an offset begins.
        zero_on_invalid: whether a group without an offset has no lag (`scaleToZeroOnInvalidOffset`).
        previous: the group's offset the time before; None: unknown.
        exclude_persistent: whether a partition whose offset stands still counts for activation only.
    """
    if committed == NOTHING_COMMITTED and (reset is Reset.LATEST or zero_on_invalid):
        lag = 0 if zero_on_invalid else 1
        return lag, lag
    if latest is None:
        return 0, 0
    if committed == NOTHING_COMMITTED:
        return latest, latest
    lag = latest - committed
    return (0 if exclude_persistent and previous == committed else lag), lag


def safe_partition_lag(
    committed: float, latest: float | None, reset: Reset = Reset.LATEST, *, zero_on_invalid: bool = False
) -> float | None:
    """Like `partition_lag`, but unknown where KEDA sees zero or less: an end that is missing, or behind the group.

    A log that was deleted and made anew ends before what the group has committed; KEDA subtracts that from the lag
    of other partitions.
    """
    if committed == NOTHING_COMMITTED:
        if zero_on_invalid:
            return 0.0
        return 1.0 if reset is Reset.LATEST else latest
    return None if latest is None or latest < committed else latest - committed


def exported_lag(
    lag: float,
    threshold: float,
    partitions: int,
    *,
    with_lag: int | None = None,
    allow_idle: bool = False,
    only_with_lag: bool = False,
    even: bool = False,
) -> float:
    """The lag that is shown to the HPA: cut down so that partitions limit the size (kafka_scaler.go, getTotalLag).

    Args:
        lag: sum over all partitions.
        threshold: lag per replica (`lagThreshold`).
        partitions: how many there are.
        with_lag: how many of them have any.
        allow_idle: whether there may be more consumers than partitions (`allowIdleConsumers`).
        only_with_lag: whether only partitions with lag count (`limitToPartitionsWithLag`).
        even: whether consumers must divide the partitions evenly (`ensureEvenDistributionOfPartitions`).
    """
    if allow_idle and not only_with_lag and not even:
        return lag
    bound = partitions
    if even:
        lag = next_factor(lag, partitions, threshold) * threshold
    if only_with_lag:
        bound = partitions if with_lag is None else with_lag
    return bound * threshold if lag // threshold > bound else lag


def hpa_average_size(value: float, target: float, current: int, tolerance: float = HPA_TOLERANCE) -> int:
    """The HPA's size for an external metric with a target per replica (GetExternalPerPodMetricReplicas)."""
    if current and 1 - tolerance <= value / (target * current) <= 1 + tolerance:
        return current
    # 1e-12: a quotient like 21.000000000000004 is a whole number that floats could not hold
    return math.ceil(max(0.0, min(value / target, MOST)) * (1 - 1e-12))


def safe_size(
    lag: float,
    threshold: float,
    current: int,
    *,
    bound: int | None = None,
    even: int | None = None,
    tolerance: float = HPA_TOLERANCE,
) -> int:
    """The size for a lag: what the HPA makes of it, and only then cut down to the partitions.

    KEDA cuts the lag, by an integer division that lets up to one replica too many through (keda#4483), and the HPA's
    tolerance then stops short of the cap however large the lag is (keda#2908).

    Args:
        lag: sum over all partitions, uncut.
        threshold: lag per replica.
        current: the size there is.
        bound: the most replicas that can be used; None: no limit.
        even: partitions that replicas have to share evenly; None: they need not.
        tolerance: share of the threshold that is ignored.
    """
    size = hpa_average_size(lag, threshold, current, tolerance)
    if even is not None and (size != current or even % max(current, 1)):
        size = next_factor(lag, even, threshold)
    return size if bound is None else min(size, bound)


def fallback(
    behaviour: Behaviour,
    *,
    current: int,
    replicas: int,
    target: float,
    threshold: int,
    failures: int,
    metric_type: str = "AverageValue",
    ready: int | None = None,
) -> Fallen:
    """What a trigger that has failed once more exports (pkg/fallback/fallback.go, GetMetricsWithFallback, doFallback).

    Args:
        behaviour: which size counts.
        current: the size there is.
        replicas: the size configured.
        target: the trigger's target, or that of the formula.
        threshold: failures in a row that are put up with (`failureThreshold`).
        failures: failures in a row before this one.
        metric_type: `AverageValue`, or `Value`, of which the HPA multiplies the ratio by the ready replicas.
        ready: those, for `Value`.
    """
    if threshold < 0 or replicas < 0:
        return Fallen(failures, None)
    failures += 1
    known = metric_type == "AverageValue" or (metric_type == "Value" and ready)
    if failures <= threshold or not known:
        return Fallen(failures, None)
    if behaviour is Behaviour.MODIFIERS:
        return Fallen(failures, PLACEHOLDER)
    size = {
        Behaviour.CURRENT: current,
        Behaviour.IF_HIGHER: max(current, replicas),
        Behaviour.IF_LOWER: min(current, replicas),
    }.get(behaviour, replicas)
    share = size / ready if metric_type == "Value" and ready else size
    return Fallen(failures, math.trunc(target * 1000 * share) / 1000)


def safe_fallback_size(behaviour: Behaviour, current: int, replicas: int) -> int:
    """The size while a trigger keeps failing: never less than there is, since what is missing is not zero.

    KEDA's `static` and `currentReplicasIfLower` lower the size exactly when nothing is known.
    """
    return max(current, replicas) if behaviour in (Behaviour.STATIC, Behaviour.IF_HIGHER) else current


def trigger_value(value: float | None, failures: int | None, threshold: int | None) -> float | None:
    """A trigger's value in a formula: nil once it has failed more often than `threshold` (scalingModifierTriggerValue).

    `failures` None: nothing is known of its health; `threshold` None: no fallback is configured.
    """
    return None if failures is not None and threshold is not None and failures > threshold else value


def composite(formula: str, values: Mapping[str, float | None], target: float, fallback_replicas: int) -> float:
    """The value of a formula; nil stands for the fallback's replicas (calculateScalingModifiersFormula).

    Kubernetes counts in thousandths, and what is less is dropped.

    Raises:
        ValueError: it cannot be read or computed.
    """
    value = compute(parse(formula, tuple(values)), values)
    return fallback_replicas * target if value is None else milli(value)


def milli(value: float) -> float:
    """Cut off after thousandths."""
    return math.trunc(value * 1000) / 1000 if abs(value) < EXACT else value


def activation(
    current: int,
    *,
    minimum: int,
    active: bool,
    idle: int | None = None,
    cooldown_passed: bool = True,
    pause_in: bool = False,
    pause_out: bool = False,
    force: bool = False,
    error: bool = False,
    fallback_replicas: int | None = None,
) -> int:
    """The size that KEDA itself sets, beside the HPA (executor/scale_scaledobjects.go, RequestScale).

    Args:
        current: the size there is.
        minimum: `minReplicaCount`.
        active: whether a trigger is above its activation threshold.
        idle: `idleReplicaCount`; None: not set.
        cooldown_passed: whether the last activity is longer ago than `cooldownPeriod`.
        pause_in: the annotation `paused-scale-in`.
        pause_out: the annotation `paused-scale-out`.
        force: the annotation `force-activation`.
        error: whether a trigger failed.
        fallback_replicas: `fallback.replicas`; None: no fallback is configured.
    """
    if active or force:
        wakes = current == 0 or (idle is not None and current < minimum)
        return max(minimum, 1) if wakes and not pause_out else current
    if error and fallback_replicas != 0:
        return current
    if (idle is not None and current > idle) or (current > 0 and minimum == 0):
        rests = cooldown_passed and not pause_in
        return (minimum if idle is None else idle) if rests else current
    return minimum if idle is None and current < minimum else current


@dataclass(frozen=True, slots=True)
class JobQueue:
    """What waits for one trigger of a ScaledJob: how much, how much one job does, and whether the trigger is active."""

    queue: float
    target: float
    active: bool


def job_queue(mode: str, maximum: int, scalers: Sequence[JobQueue]) -> tuple[int, int]:
    """Queue length and jobs for it over several triggers (scaledjob/metrics.go, IsScaledJobActive).

    `mode` is `multipleScalersCalculation`: min, avg, sum, anything else: max, as in KEDA.
    """
    found = [(scaler.queue, min(scaler.queue / scaler.target, maximum)) for scaler in scalers if scaler.active]
    queue, jobs = 0.0, 0.0
    if mode == "min":
        for length, count in found:
            if queue == 0 or length < queue:
                queue, jobs = length, count
    elif mode in ("avg", "sum"):
        share = max(len(found), 1) if mode == "avg" else 1
        queue, jobs = (sum(numbers) / share for numbers in zip((0.0, 0.0), *found, strict=True))
    else:
        for length, count in found:
            if length > queue:
                queue, jobs = length, count
    return math.ceil(queue), math.ceil(min(jobs, maximum))


def job_scale(
    strategy: str,
    most: int,
    running: int,
    pending: int,
    maximum: int,
    *,
    deduction: int = 0,
    share: float | None = None,
) -> int:
    """How many jobs are started (executor/scale_jobs.go, GetEffectiveMaxScale).

    Args:
        strategy: custom, accurate, eager, anything else: default, as in KEDA.
        most: jobs that the queue asks for.
        running: jobs that run, pending ones among them.
        pending: jobs without a pod yet.
        maximum: `maxReplicaCount`.
        deduction: `customScalingQueueLengthDeduction`.
        share: `customScalingRunningJobPercentage`; None: not given, which makes custom the default one.
    """
    if strategy == "custom" and share is not None:
        return min(most - deduction - int(running * share), maximum)
    if strategy == "accurate":
        return min(most - pending, maximum - running)
    if strategy == "eager":
        return min(maximum - running - pending, most)
    return most - running
