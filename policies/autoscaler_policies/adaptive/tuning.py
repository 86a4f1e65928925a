"""Constants of `adaptive` that users do not set; docs/contributing/benchmark.md shows what half and twice of each do.

Names that end in `_s` are seconds. The description of a share says what it is a share of.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The constants, grouped by their use."""

    # All
    significance: float = 3.0
    """A deviation of this many standard deviations (or errors) is not noise: chance causes it once in 700 times. Each
    second in which no smaller size is enough also subtracts this many replica-seconds from the savings of one."""
    noise: float = 0.05
    """Standard deviation of readings, as a share, until it is learned: machines of one cloud differ by 1-7 %."""
    stale_s: float = 600.0
    """Readings within this time share their errors; after this time without a reading, level and trend start again."""
    memory_s: float = 7200.0
    """Learned numbers about variation decay to 37 % within this time."""

    # Arrivals
    slope_weight: float = 0.1
    """Weight of a new reading in the slope of the arrivals..."""
    noise_weight: float = 0.03
    """... and in the noise."""
    brief_s: float = 200.0
    """A swing that lasts no longer than this is left to pass; and samples take this long to show a changed capacity."""
    points: int = 15
    """Readings, a minute apart, that show how much of a deviation lasts: the deviation of the last reading of the first
    two thirds from their mean is compared with the last third."""

    # Capacity
    exponent: float = 0.9
    """Capacity grows with this power of the size: 0.80 to 0.90 measured with Nexmark and saturated TaskManagers..."""
    exponent_error: float = 0.1
    """... and its standard deviation."""
    drift: float = 0.05
    """How far capacity drifts within an hour (standard deviation, as a share)."""
    min_utilization: float = 0.05
    """Below this utilization, throughput / utilization is a ratio of two small numbers, which means nothing."""
    min_fit: float = 0.9
    """A line of utilization over throughput must explain this share of the variance, else a record's cost changed."""
    saturated_utilization: float = 0.6
    """A job that is behind counts as saturated if its workers are busier than this, or as busy as they have ever been;
    else something else delays it."""
    warm_up_s: float = 120.0
    """For this time after a restart, caches are cold, a backlog is processed, and averages contain the stall. A rise of
    the last minute goes on for this time. The policy asks for more this time before the delay would approach the
    objective."""
    plateau_growth: float = 1.5
    """Throughputs of two sizes are compared if one size is this many times the other: noise hides smaller steps."""
    plateau_s: float = 1800.0
    """Throughputs further apart in time belong to different records. After this time, more workers are tried again. The
    highest utilization seen decays to 37 % within it."""

    # Profile
    profile_ahead_minutes: int = 20
    """The prediction of a profile for this time ahead is compared with the arrivals..."""
    profile_memory_s: float = 2 * 86400.0
    """... and its error decays to 37 % within this time."""
    abnormal: float = 0.25
    """A profile predicts nothing if arrivals are lower by more than this share. A jump, which may be minutes early or
    late, changes their ratio by at most this share. If throughput varied by less, idle CPU cannot be estimated."""
    lead_downtimes: float = 2.7
    """The policy acts on a rise that a profile predicts this many downtimes before it comes."""

    # Decisions
    horizon_s: float = 450.0
    """A size must be enough for this time: later arrivals are left to the next rescale."""
    peak_share: float = 0.4
    """A passing peak may leave a backlog worth this share of the objective, and the lag may be this large at a step
    down..."""
    past_share: float = 0.1
    """... but at a smaller size, the arrivals of the scale-down window or usual swings may leave only this share."""


TUNING = Tuning()
