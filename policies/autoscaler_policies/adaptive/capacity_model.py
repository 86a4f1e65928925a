"""The capacity of each size, learned whenever the job runs undisturbed, not only when it is saturated.

x replicas process e^level * x^exponent records/s. A Kalman filter estimates level and exponent from
ln(throughput / utilization), the "true processing rate" of DS2 (Kalavri et al., OSDI 2018). The model is a power law,
since capacity grows less than in proportion: exponents of 0.80 to 0.90 were measured for Nexmark and for saturated
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
"""Bounds of the exponent. Outside them, the job does not scale or the measurement is wrong."""
SHIFT = TUNING.significance * TUNING.noise
"""If samples deviate by more than this for minutes, the cost of a record has changed."""


@dataclass(slots=True)
class Saturation:
    """The utilization at which a job is saturated.

    It is below 1 if workers wait for another system, or use fewer cores than they may: then the CPU never shows that
    they are fully busy.

    Attributes:
        utilization: the utilization of the saturated job, above 0 to 1.
        highest: the highest utilization seen; it decays.
    """

    utilization: float = 1.0
    highest: float = 0.0

    def plausible(self, busy: float) -> bool:
        """Whether a job that is behind may be saturated at this utilization; else something else delays it."""
        return busy > TUNING.saturated_utilization * self.utilization or busy >= (1.0 - SHIFT) * self.highest

    def follow(self, busy: float, since: float, *, saturated: bool) -> float:
        """Learn from the present utilization of the workers.

        Args:
            busy: the utilization, 0 to 1.
            since: seconds since the last call; a higher utilization decays to 37 % within `TUNING.plateau_s`.
            saturated: whether the job has been behind for a while although it was as busy as it can be.

        Returns:
            The factor by which the capacity changes.
        """
        before = self.utilization if 0.0 < self.utilization <= 1.0 else 1.0  # the memory may be damaged
        self.highest = max(busy, busy + (self.highest - busy) * math.exp(-since / TUNING.plateau_s))
        differs = busy > (1.0 + SHIFT) * before or (saturated and 0.0 < busy < (1.0 - SHIFT) * before)
        self.utilization = min(busy, 1.0) if differs else before
        return self.utilization / before


@dataclass(slots=True)
class Idle:
    """Decaying sums of x, throughput / replicas^exponent, and y, utilization, for a line through these points."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def learn(self, x: float, y: float, since: float) -> None:
        """Add a reading, `since` seconds after the last one."""
        kept = math.exp(-since / TUNING.memory_s)
        self.weight = self.weight * kept + 1.0
        self.x, self.y = self.x * kept + x, self.y * kept + y
        self.xx, self.xy, self.yy = self.xx * kept + x * x, self.xy * kept + x * y, self.yy * kept + y * y

    def utilization(self) -> float:
        """Utilization without any records, 0 to 1, from the line; 0 until the fit is good enough.

        The CPU is never idle: without this correction, the capacity of a job with little load would seem too small.
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
    """The capacity model.

    Attributes:
        seen_at: time of the last sample, seconds since 1970.
        level: ln of the records/s of one replica; None: unknown.
        exponent: the power with which capacity grows with the replicas.
        level_variance, covariance, exponent_variance: the uncertainty of both.
        surprise: moving average of the deviations of the last samples, in ln.
        least: whether the job was never busy enough, so that the model is only a lower bound.
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
        """Records/s that this many fully used replicas process when busy; 0 if unknown."""
        if self.level is None or replicas <= 0:
            return 0.0
        return math.exp(min(self.level + self.exponent * math.log(replicas), 700.0))  # e^709 is the largest float

    def uncertainty(self, replicas: float) -> float:
        """Standard deviation of `rate`, as a share of it."""
        x = math.log(replicas)
        variance = self.level_variance + 2 * x * self.covariance + x * x * self.exponent_variance
        return math.sqrt(max(variance, 0.0))

    def sample(self, idle: Idle, replicas: float, throughput: float, utilization: float, now: float) -> None:
        """Learn from one observation of a job that has run undisturbed at one size for a while.

        Args:
            idle: the sums for idle utilization; changed in place.
            replicas: the number of fully used replicas that the size is worth.
            throughput: processed records/s.
            utilization: how busy the hottest worker was, 0 to 1.
            now: seconds since 1970.
        """
        if not (throughput > 0 and utilization >= TUNING.min_utilization and replicas > 0):
            return
        low, high = EXPONENTS
        self.exponent = min(max(self.exponent, low), high)  # with a damaged memory, the power below could overflow
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
        # Samples within TUNING.stale_s share their errors: one after a shorter time counts for that part of a sample.
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
