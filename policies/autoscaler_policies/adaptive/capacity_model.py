"""What a job can process by its size, learned whenever it runs undisturbed, not only when it is saturated.

x replicas process e^level * x^exponent records/s. Level and exponent are followed by a Kalman filter on
ln(throughput / utilization), the "true processing rate" of DS2 (Kalavri et al., OSDI 2018). It is a power law because
more workers add less than their share: exponents of 0.80 to 0.90 were measured for Nexmark and for saturated
TaskManagers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler_policies.adaptive.tuning import TUNING

EXPONENT_VARIANCE = TUNING.exponent_error**2
EXPONENTS = (
    TUNING.exponent - TUNING.significance * TUNING.exponent_error,
    TUNING.exponent + TUNING.significance * TUNING.exponent_error,
)
"""Beyond lies a job that does not scale, or a measurement that is wrong."""
SHIFT = TUNING.significance * TUNING.noise
"""Samples that are off by more than this, for minutes, mean that a record costs something else now."""


@dataclass(slots=True)
class Saturation:
    """The utilization at which a job does all it can.

    It is below 1 where workers wait for another system, or use fewer cores than they may: then the CPU never shows
    that they are busy.

    Attributes:
        utilization: that one, above 0 to 1.
        highest: the highest utilization that was seen.
    """

    utilization: float = 1.0
    highest: float = 0.0

    def plausible(self, busy: float) -> bool:
        """Whether a job that is behind does all it can when so busy: else something else holds it up for a while."""
        return busy > TUNING.saturated_utilization * self.utilization or busy >= (1.0 - SHIFT) * self.highest

    def follow(self, busy: float, since: float, *, saturated: bool) -> float:
        """Take in how busy the workers are, so many seconds after the last time.

        Args:
            busy: 0 to 1.
            since: seconds; what was higher is forgotten to 37 % within `TUNING.plateau_s`.
            saturated: whether the job has been behind for a while though it was as busy as it may be.

        Returns:
            By how many times that changes what it can do.
        """
        before = self.utilization if 0.0 < self.utilization <= 1.0 else 1.0  # of a damaged memory
        self.highest = max(busy, busy + (self.highest - busy) * math.exp(-since / TUNING.plateau_s))
        differs = busy > (1.0 + SHIFT) * before or (saturated and 0.0 < busy < (1.0 - SHIFT) * before)
        self.utilization = min(busy, 1.0) if differs else before
        return self.utilization / before


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
        kept = math.exp(-since / TUNING.memory_s)
        self.weight = self.weight * kept + 1.0
        self.x, self.y = self.x * kept + x, self.y * kept + y
        self.xx, self.xy, self.yy = self.xx * kept + x * x, self.xy * kept + x * y, self.yy * kept + y * y

    def utilization(self) -> float:
        """Utilization without any record, 0 to 1, by the line; 0 until it is clear.

        CPU is never 0: uncorrected, it makes the capacity of a job that is hardly busy seem small.
        """
        if self.weight <= 0:
            return 0.0
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        variance = self.xx / self.weight - mean_x * mean_x
        spread = TUNING.abnormal * mean_x
        if not variance > spread * spread:
            return 0.0
        both = self.xy / self.weight - mean_x * mean_y
        slope = both / variance
        if slope <= 0 or not slope * both >= TUNING.min_fit * (self.yy / self.weight - mean_y * mean_y):
            return 0.0
        return max(mean_y - slope * mean_x, 0.0)


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
    exponent: float = TUNING.exponent
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
        if not (throughput > 0 and utilization >= TUNING.min_utilization and replicas > 0):
            return
        low, high = EXPONENTS
        self.exponent = min(max(self.exponent, low), high)  # of a damaged memory the power below may overflow
        busy = min(utilization, 1.0)
        since = 0.0 if self.seen_at is None else max(now - self.seen_at, 0.0)
        idle.learn(throughput / replicas**self.exponent, busy, since)
        without = idle.utilization()
        true_rate = throughput * (1.0 - without) / max(busy - without, TUNING.min_utilization)
        if not 0.0 < true_rate < math.inf:
            return
        seen, x = math.log(true_rate), math.log(replicas)
        self.seen_at = now
        if self.level is None:
            # The first sample fixes the level at its size; the exponent stays as uncertain as it was.
            self.level = seen - self.exponent * x
            self.level_variance = TUNING.noise * TUNING.noise + x * x * EXPONENT_VARIANCE
            self.covariance, self.exponent_variance = -x * EXPONENT_VARIANCE, EXPONENT_VARIANCE
        elif since > 0:
            self._follow(x, seen - self.level - self.exponent * x, since, self.level)

    def _follow(self, x: float, off: float, since: float, level: float) -> None:
        """One step of the Kalman filter: the state is (level, exponent), the measurement level + exponent * x."""
        hours = since / 3600.0
        level_variance = min(self.level_variance + TUNING.drift * TUNING.drift * hours, 1.0)
        exponent_variance = self.exponent_variance
        lasted = min(since, TUNING.stale_s)
        share = min(lasted / TUNING.brief_s, 1.0)
        self.surprise += share * (off - self.surprise)
        if abs(self.surprise) > SHIFT:
            level_variance += self.surprise * self.surprise * share
        # Errors that hold on for TUNING.stale_s make a sample of a shorter time worth that part of one.
        noise = TUNING.noise * TUNING.noise * TUNING.stale_s / lasted
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
