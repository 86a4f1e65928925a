"""What a job can process by its size, learned whenever it runs undisturbed, not only when it is saturated.

x replicas process e^level * x^exponent records/s. Level and exponent are followed by a Kalman filter on
ln(throughput / utilization), the "true processing rate" of DS2 (Kalavri et al., OSDI 2018). It is a power law because
more workers add less than their share: exponents of 0.80 to 0.90 were measured for Nexmark and for saturated
TaskManagers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(slots=True)
class Idle:
    """Moving sums of throughput per replica^exponent, x, and utilization, y: for the line through them."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def learn(self, x: float, y: float, since: float) -> None:
        """Take in a reading, so many seconds after the last one."""
        kept = math.exp(-since / LINE_DECAY_S)
        self.weight = self.weight * kept + 1.0
        self.x, self.y = self.x * kept + x, self.y * kept + y
        self.xx, self.xy, self.yy = self.xx * kept + x * x, self.xy * kept + x * y, self.yy * kept + y * y

    def utilization(self) -> float:
        """Utilization without any record, 0 to 0.3, by the line; 0 until it is clear.

        CPU is never 0: uncorrected, it makes the capacity of a job that is hardly busy seem small.
        """
        if self.weight <= 0:
            return 0.0
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        variance = self.xx / self.weight - mean_x * mean_x
        spread = MIN_SPREAD * mean_x
        if not variance > spread * spread:
            return 0.0
        both = self.xy / self.weight - mean_x * mean_y
        slope = both / variance
        if not slope * both >= MIN_FIT * (self.yy / self.weight - mean_y * mean_y):
            return 0.0
        return min(max(mean_y - slope * mean_x, 0.0), MAX_IDLE)


@dataclass(slots=True)
class Capacity:
    """The model.

    Attributes:
        seen_at: when it was measured last, seconds since 1970.
        level: ln of the records/s of one replica; None: nothing is known.
        exponent: how that grows with the replicas.
        level_variance, covariance, exponent_variance: how uncertain both are.
        surprise: what the last samples were off by, ln.
        least: whether it was only seen so idle that it can do this much at least.
    """

    seen_at: float | None = None
    level: float | None = None
    exponent: float = EXPONENT
    level_variance: float = 0.0
    covariance: float = 0.0
    exponent_variance: float = 0.0
    surprise: float = 0.0
    least: bool = False

    def rate(self, replicas: float) -> float:
        """Records/s that so many replicas' work is when busy; 0 when nothing is known."""
        if self.level is None or replicas <= 0:
            return 0.0
        return math.exp(min(self.level + self.exponent * math.log(replicas), 700.0))  # e^709 is the largest float

    def uncertainty(self, replicas: float) -> float:
        """By how much `rate` may be wrong, as a share of it (standard deviation)."""
        x = math.log(replicas)
        variance = self.level_variance + 2 * x * self.covariance + x * x * self.exponent_variance
        return math.sqrt(max(variance, 0.0))

    def sample(self, idle: Idle, replicas: float, throughput: float, utilization: float, now: float) -> None:
        """Take in one observation of a job that has run undisturbed on a size for a while.

        Args:
            idle: changed in place.
            replicas: how many replicas' work the size does.
            throughput: records/s that were processed.
            utilization: how busy the hottest worker was, 0 to 1.
            now: seconds since 1970.
        """
        if not (throughput > 0 and utilization >= MIN_UTILIZATION and replicas > 0):
            return
        low, high = EXPONENTS
        self.exponent = min(max(self.exponent, low), high)  # of a damaged memory the power below may overflow
        busy = min(utilization, 1.0)
        since = 0.0 if self.seen_at is None else min(max(now - self.seen_at, 0.0), MAX_AGE_S)
        idle.learn(throughput / replicas**self.exponent, busy, since)
        without = idle.utilization()
        true_rate = throughput * (1.0 - without) / max(busy - without, MIN_UTILIZATION)
        if not 0.0 < true_rate < math.inf:
            return
        seen, x = math.log(true_rate), math.log(replicas)
        self.seen_at = now
        if self.level is None:
            # The first sample fixes the level at its size; the exponent stays as uncertain as it was.
            self.level = seen - self.exponent * x
            self.level_variance = NOISE * NOISE + x * x * EXPONENT_VARIANCE
            self.covariance, self.exponent_variance = -x * EXPONENT_VARIANCE, EXPONENT_VARIANCE
        elif since > 0:
            self._follow(x, seen - self.level - self.exponent * x, busy, since, self.level)

    def _follow(self, x: float, off: float, busy: float, since: float, level: float) -> None:
        """One step of the Kalman filter: the state is (level, exponent), the measurement level + exponent * x."""
        hours = since / 3600.0
        level_variance = self.level_variance + DRIFT * DRIFT * hours
        exponent_variance = min(self.exponent_variance + EXPONENT_DRIFT * EXPONENT_DRIFT * hours, EXPONENT_VARIANCE)
        lasted = min(since, ERROR_S)
        share = min(lasted / SHIFT_S, 1.0)
        self.surprise += share * (off - self.surprise)
        if abs(self.surprise) > SHIFT:
            level_variance += self.surprise * self.surprise * share
        # Errors that hold on for ERROR_S make a sample of a shorter time worth that part of one.
        noise = NOISE * NOISE * ERROR_S / lasted * max(1.0, (RELIABLE_UTILIZATION / busy) ** 2)
        by_level = level_variance + x * self.covariance
        by_exponent = self.covariance + x * exponent_variance
        total = by_level + x * by_exponent + noise
        gain, bend = by_level / total, by_exponent / total
        low, high = EXPONENTS
        self.level = level + gain * off
        self.exponent = min(max(self.exponent + bend * off, low), high)
        self.level_variance = level_variance - gain * by_level
        self.covariance -= gain * by_exponent
        self.exponent_variance = exponent_variance - bend * by_exponent
