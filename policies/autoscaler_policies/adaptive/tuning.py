"""Constants of `adaptive` that users do not set; docs/contributing/benchmark.md has what half and twice of each does.

Names that end in `_s` are seconds; shares are of the thing named in their description.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The constants, by what they are used for."""

    # All
    significance: float = 3.0
    """So many standard deviations (or errors) stand out of the noise: chance does so once in 700 times. And each second
    in which no smaller size suffices takes so many replica-seconds from what one would have saved."""
    noise: float = 0.05
    """Standard deviation of readings, as a share, until it was seen: machines of one cloud differ by 1-7 %."""
    stale_s: float = 600.0
    """Readings within so long share their errors; after so long without one, what the last one showed begins anew."""
    memory_s: float = 7200.0
    """What was learned of how things vary is forgotten to 37 % within so long."""

    # Arrivals
    slope_weight: float = 0.1
    """Weight of a new reading in the rise of the last minute..."""
    noise_weight: float = 0.03
    """... and in the noise."""
    brief_s: float = 200.0
    """A swing that lasts no longer is left to pass; and in so long samples of capacity show that it has changed."""
    points: int = 15
    """How much of a deviation lasts is looked for in so many readings, a minute apart: what the last of the first two
    thirds is off from their mean is compared with the last third."""

    # Capacity
    exponent: float = 0.9
    """Of the size, with which capacity grows: 0.80 to 0.90 were measured for Nexmark and saturated TaskManagers..."""
    exponent_error: float = 0.1
    """... and its standard deviation."""
    drift: float = 0.05
    """How far capacity wanders within an hour (standard deviation, as a share)."""
    min_utilization: float = 0.05
    """Below this the ratio of two small numbers means nothing."""
    min_fit: float = 0.9
    """A line through utilization by throughput must explain so much of the variance, else its records' cost changed."""
    saturated_utilization: float = 0.6
    """A job that is behind does all it can if its workers are busier than this, or as busy as they have ever been; else
    something else holds it up."""
    warm_up_s: float = 120.0
    """After a restart caches are cold, the backlog is worked off, and averages still hold the stall; as long
    before the delay would approach the objective more is asked for; and so long a rise of the last minute goes on."""
    plateau_growth: float = 1.5
    """Throughputs are compared between sizes of which one is so many times the other: noise hides smaller steps."""
    plateau_s: float = 1800.0
    """Throughputs further apart are of other records; after so long it is tried again; and how busy workers were is
    forgotten to 37 % within so long."""

    # Profile
    profile_ahead_minutes: int = 20
    """The prediction of a profile for so long ahead is compared with the arrivals..."""
    profile_memory_s: float = 2 * 86400.0
    """... and its error is remembered for so long (to 37 %)."""
    abnormal: float = 0.25
    """A profile predicts nothing where arrivals are lower by more than this share; a jump, which may be minutes early
    or late, changes their ratio by no more; and throughput that has varied by less shows nothing of idle CPU."""
    lead_downtimes: float = 2.7
    """A rise that a profile predicts is acted on so many downtimes before it comes."""

    # Decisions
    horizon_s: float = 450.0
    """A size must suffice for so long: what comes later is left to the next rescale."""
    peak_share: float = 0.4
    """Of a peak that passes this share of the objective may wait, and of all when fewer are asked for..."""
    past_share: float = 0.1
    """... and this of what arrived within the scale-down window, or usually swings, if a smaller size is to do."""


TUNING = Tuning()
