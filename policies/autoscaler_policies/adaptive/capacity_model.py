"""What a job can process by its size, learned whenever it runs undisturbed, not only when it is saturated.

x replicas process e^level * x^exponent records/s, and single sizes a share more or less. Level and exponent are
followed by a Kalman filter on ln(throughput / utilization), the "true processing rate" of DS2 (Kalavri et al., OSDI
2018). It is a power law because more workers add less than their share: exponents of 0.80 to 0.90 were measured for
Nexmark and for saturated TaskManagers.

The model is a few numbers in a policy's memory, under names that begin with `capacity.` and `size.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

EXPONENT = 0.9
EXPONENT_VARIANCE = 0.1**2
"""The exponent before anything is known, and how uncertain that is..."""
EXPONENTS = (0.3, 1.1)
"""... and what is believed at all: beyond lies a job that does not scale, or a measurement that is wrong."""

NOISE = 0.05
"""Standard deviation of ln(true rate) of one sample: machines of one cloud differ by 1-7 %..."""
ERROR_S = 600.0
"""... and its errors hold on for so long: samples within that time add little."""
DRIFT = 0.05
EXPONENT_DRIFT = 0.01
"""How far level and exponent wander within an hour (standard deviation)."""
MAX_AGE_S = 7 * 86400.0
"""Uncertainty does not grow further after so long without a sample."""

SHIFT = 0.12
SHIFT_S = 180.0
"""Samples that are off by more than this, for minutes, mean that a record costs something else now."""

MIN_UTILIZATION = 0.05
"""Below this utilization the ratio of two small numbers means nothing."""
RELIABLE_UTILIZATION = 0.4
"""Below this the workers' own idle work (JVM, heartbeats) weighs too much in the ratio."""
MAX_IDLE = 0.3
LINE_DECAY_S = 6 * 3600.0
MIN_SPREAD = 0.25
"""Throughput must have varied by this share of its mean before a utilization without records is believed..."""
MIN_FIT = 0.9
"""... and the line must explain so much of the variance: where the cost of records changed there is no single line."""

LINE_SUMS = tuple([f"capacity.line.{name}" for name in ("weight", "x", "y", "xx", "xy", "yy")])
"""The sums that make the line; without one of them it begins anew."""

DEVIATION_S = 1800.0
"""After so long at a size half of its own deviation from the power law is believed..."""
DEVIATION_DECAY_S = 6 * 3600.0
"""... and so long it is remembered."""
MAX_SIZES = 64


def rate(memory: Mapping[str, float], replicas: float, size: int) -> float:
    """Records/s that a size processes when busy; 0 when nothing is known.

    Args:
        memory: the model.
        replicas: how many replicas' work it does: fewer than `size` where partitions leave some idle.
        size: the size, for its own deviation.
    """
    level = memory.get("capacity.level")
    if level is None or replicas <= 0:
        return 0.0
    power = level + memory.get("capacity.exponent", EXPONENT) * math.log(replicas) + _deviation(memory, size)
    return math.exp(min(power, 700.0))  # e^709 is the largest float


def uncertainty(memory: Mapping[str, float], replicas: float) -> float:
    """By how much `rate` may be wrong, as a share of it (standard deviation)."""
    x = math.log(replicas)
    both = 2 * x * memory.get("capacity.covariance", 0.0) + x * x * memory.get("capacity.exponent_variance", 0.0)
    return math.sqrt(max(memory.get("capacity.level_variance", 0.0) + both, 0.0))


@lru_cache(maxsize=1024)
def _names(size: int) -> tuple[str, str, str]:
    """Under which names a size's own deviation is kept: to make them takes as long as all that is done with them."""
    return f"size.{size}.deviation", f"size.{size}.seconds", f"size.{size}.seen_at"


def _deviation(memory: Mapping[str, float], size: int) -> float:
    name, seconds_name, _ = _names(size)
    deviation = memory.get(name)
    if deviation is None:
        return 0.0
    seconds = max(memory.get(seconds_name, 0.0), 0.0)
    return deviation * seconds / (seconds + DEVIATION_S)


def idle(memory: Mapping[str, float]) -> float:
    """Utilization without any record, 0 to 0.3, by the line through throughput and utilization; 0 until it is clear.

    CPU is never 0: uncorrected, it makes the capacity of a job that is hardly busy seem small.
    """
    weight = memory.get("capacity.line.weight", 0.0)
    if weight <= 0:
        return 0.0
    mean_x, mean_y = memory.get("capacity.line.x", 0.0) / weight, memory.get("capacity.line.y", 0.0) / weight
    variance = memory.get("capacity.line.xx", 0.0) / weight - mean_x * mean_x
    spread = MIN_SPREAD * mean_x
    if not variance > spread * spread:
        return 0.0
    both = memory.get("capacity.line.xy", 0.0) / weight - mean_x * mean_y
    slope = both / variance
    if not slope * both >= MIN_FIT * (memory.get("capacity.line.yy", 0.0) / weight - mean_y * mean_y):
        return 0.0
    return min(max(mean_y - slope * mean_x, 0.0), MAX_IDLE)


def sample(
    memory: dict[str, float], replicas: float, size: int, throughput: float, utilization: float, now: float
) -> None:
    """Take in one observation of a job that has run undisturbed on a size for a while.

    Args:
        memory: the model, changed in place.
        replicas: how many replicas' work the size does.
        size: the size, for its own deviation.
        throughput: records/s that were processed.
        utilization: how busy the hottest worker was, 0 to 1.
        now: seconds since 1970.
    """
    if not (throughput > 0 and utilization >= MIN_UTILIZATION and replicas > 0):
        return
    busy = min(utilization, 1.0)
    last = memory.get("capacity.seen_at")
    since = 0.0 if last is None else min(max(now - last, 0.0), MAX_AGE_S)
    exponent = memory.get("capacity.exponent", EXPONENT)
    _learn_line(memory, throughput / replicas**exponent, busy, since)
    without = idle(memory)
    true_rate = throughput * (1.0 - without) / max(busy - without, MIN_UTILIZATION)
    if not 0.0 < true_rate < math.inf:
        return
    seen, x = math.log(true_rate), math.log(replicas)
    memory["capacity.seen_at"] = now
    if "capacity.level" not in memory:
        # The first sample fixes the level at its size; the exponent stays as uncertain as it was.
        memory["capacity.level"] = seen - exponent * x
        memory["capacity.exponent"] = exponent
        memory["capacity.level_variance"] = NOISE * NOISE + x * x * EXPONENT_VARIANCE
        memory["capacity.covariance"] = -x * EXPONENT_VARIANCE
        memory["capacity.exponent_variance"] = EXPONENT_VARIANCE
        memory["capacity.seconds"] = 0.0
        memory["capacity.surprise"] = 0.0
        return
    if since > 0:
        _follow(memory, x, size, seen, busy, since, now)


def forget(memory: dict[str, float]) -> None:
    """Forget everything learned."""
    for name in [name for name in memory if name.startswith(("capacity.", "size."))]:
        del memory[name]


def _follow(memory: dict[str, float], x: float, size: int, seen: float, busy: float, since: float, now: float) -> None:
    """One step of the Kalman filter: the state is (level, exponent), the measurement level + exponent * x."""
    level, exponent = memory["capacity.level"], memory.get("capacity.exponent", EXPONENT)
    hours = since / 3600.0
    level_variance = memory.get("capacity.level_variance", NOISE * NOISE) + DRIFT * DRIFT * hours
    covariance = memory.get("capacity.covariance", 0.0)
    exponent_variance = memory.get("capacity.exponent_variance", EXPONENT_VARIANCE)
    exponent_variance = min(exponent_variance + EXPONENT_DRIFT * EXPONENT_DRIFT * hours, EXPONENT_VARIANCE)
    own = _deviation(memory, size)
    off = seen - level - exponent * x - own
    lasted = min(since, ERROR_S)
    share = min(lasted / SHIFT_S, 1.0)
    surprise = memory.get("capacity.surprise", 0.0)
    surprise += share * (off - surprise)
    if abs(surprise) > SHIFT:
        level_variance += surprise * surprise * share
    # Errors that hold on for HELD_S make a sample of a shorter time worth that part of one.
    noise = NOISE * NOISE * ERROR_S / lasted * max(1.0, (RELIABLE_UTILIZATION / busy) ** 2)
    by_level = level_variance + x * covariance
    by_exponent = covariance + x * exponent_variance
    total = by_level + x * by_exponent + noise
    gain, bend = by_level / total, by_exponent / total
    low, high = EXPONENTS
    memory["capacity.level"] = level + gain * off
    memory["capacity.exponent"] = min(max(exponent + bend * off, low), high)
    memory["capacity.level_variance"] = level_variance - gain * by_level
    memory["capacity.covariance"] = covariance - gain * by_exponent
    memory["capacity.exponent_variance"] = exponent_variance - bend * by_exponent
    memory["capacity.seconds"] = memory.get("capacity.seconds", 0.0) + lasted
    memory["capacity.surprise"] = surprise
    _learn_deviation(memory, size, off + own, lasted, now)


def _learn_deviation(memory: dict[str, float], size: int, from_law: float, lasted: float, now: float) -> None:
    """What a size is off by for itself: key groups or partitions that do not divide evenly."""
    deviation_name, seconds_name, seen_name = _names(size)
    if deviation_name not in memory:
        _forget_oldest(memory)
    deviation = memory.get(deviation_name, 0.0)
    age = max(now - memory.get(seen_name, now), 0.0)
    seconds = max(memory.get(seconds_name, 0.0), 0.0) * math.exp(-age / DEVIATION_DECAY_S) + lasted
    memory[deviation_name] = deviation + lasted / seconds * (from_law - deviation)
    memory[seconds_name] = seconds
    memory[seen_name] = now


def _forget_oldest(memory: dict[str, float]) -> None:
    """Make room for another size."""
    known = [name[:-7] for name in memory if name.startswith("size.") and name.endswith(".seen_at")]
    if len(known) >= MAX_SIZES:
        oldest = min(known, key=lambda name: memory[name + "seen_at"])
        for what in ("deviation", "seconds", "seen_at"):
            memory.pop(oldest + what, None)


def _learn_line(memory: dict[str, float], x: float, y: float, since: float) -> None:
    """Moving sums of throughput, per replica^exponent, and utilization."""
    sums = [memory.get(name) for name in LINE_SUMS]
    kept = 0.0 if None in sums else math.exp(-since / LINE_DECAY_S)
    for name, known, value in zip(LINE_SUMS, sums, (1.0, x, y, x * x, x * y, y * y), strict=True):
        memory[name] = (known or 0.0) * kept + value
