"""Constants of `adaptive` that users do not set: times, shares and counts, tuned on the benchmark's loads.

Names that end in `_s` are seconds; shares are of the thing named in their description.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The constants of `adaptive`; for those of the forecasts and of the capacity see their modules."""

    warm_up: timedelta = timedelta(seconds=120)
    """After a restart caches are cold, the backlog is worked off, and averages still hold the time of the stall."""
    checkpoint_interval_s: float = 10.0
    """How far back a restart resumes, until checkpoints have been observed."""

    behind_s: float = 10.0
    """A job with a backlog of more than so many seconds of its throughput is behind."""
    saturated_s: float = 60.0
    """A job that has been behind for so long shows what it can do..."""
    saturated_share: float = 0.85
    """... where that is less than this share of the estimate, which was learned on little load."""
    saturated_utilization: float = 0.6
    """A job that is behind does all it can if its workers are busier than this; else something else holds it up."""

    unprocessed_s: float = 2.0
    """Of what arrives and is not processed at least so many seconds' worth waits, or one of the readings is wrong."""
    lag_growth_limit: float = 2.0
    """A lag of a running job that grew by more than so many times the arrivals counts only once it is read again."""
    trend_persistence: float = 3.0
    """A trend is expected to last so many times as long as it has been seen."""
    horizon_s: float = 450.0
    """A size must suffice for so long: trends that last longer are handled by the next rescale."""

    reaction_s: float = 120.0
    """More is asked for when the delay would approach the objective within so long."""
    shortage_objectives: float = 5.0
    """A backlog that takes so many objectives to be worked off is a shortage, though nothing more arrives."""
    recovered_share: float = 0.25
    """Fewer are asked for once the backlog is no more than this share of the objective."""

    profile_trust: float = 0.4
    """A profile that is trusted so far is acted on before anything has risen..."""
    lead_downtimes: float = 2.7
    """... where the expected rate exceeds the capacity so many downtimes after a rescale that is asked for now..."""
    lead_margin: float = 0.09
    """... or nearly, by this times the square of downtime / objective: the longer the downtime, the smaller the backlog
    may be when it begins."""
    bump_share: float = 0.45
    """A bump that passes is left alone where it delays records by less than this share of a rescale's downtime."""
    exponents: tuple[float, float] = (0.75, 1.05)
    """A profile is not trusted if its capacity grows with another exponent of the size..."""
    profiled_limit_s: float = 600.0
    """... nor if it has a longer start-up time or downtime."""
    peak_share: float = 0.4
    """Of a peak that passes this share of the objective may wait, and what is worked off sooner than by a rescale."""

    peak_deviations: float = 6.0
    """A peak above a level that arrivals swing around passes, unless it is so many standard deviations off."""
    swing_deviations: float = 3.6
    """Fewer must do for swings of so many standard deviations around a level..."""
    past_delay_share: float = 0.05
    """... and for what arrived within the scale-down window, each delaying records by this share of the objective."""
    relapse_weight: float = 3.0
    """A time in which fewer do not suffice undoes so many in which they did."""
    unobserved_s: float = 240.0
    """After so long without an observation, the saving by fewer is counted from zero."""


TUNING = Tuning()
