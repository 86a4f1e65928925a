"""What the history of a cluster tells: its usual week, what each size can do, how long a rescale takes.

A profile is made from weeks of history (`autoscaler profile`) and shown to policies as one more reading, which holds
what matters now: so it is kept with every observation, and any driver decides with it as the daemon did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from autoscaler.core.model import Direction, Reading

WEEK_S = 7 * 86400.0
MONDAY_S = 4 * 86400.0
"""The first Monday of 1970 was the 5th of January."""

MINUTES = 30
"""A reading tells the usual arrivals of now and of each of so many minutes to come."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something takes, in seconds: the median, the tenth and the ninetieth percentile, and of how many."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What sizes can process: n replicas do rate * n^exponent records/s when they are busy.

    Attributes:
        rate: records/s of one replica.
        exponent: how that grows with the size; 1: in proportion.
        rate_error: standard error of ln(rate) at the sizes that were seen.
        exponent_error: standard error of the exponent.
        drift: by what share the rate grows in a week (negative: it sinks), as last seen.
        sizes: size -> records/s that it was seen to do.
    """

    rate: float
    exponent: float
    rate_error: float
    exponent_error: float
    drift: float = 0.0
    sizes: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Season:
    """The usual arrivals, records/s, in equal slots of a week that begins on Monday, 0:00 UTC.

    Attributes:
        usual: the median of each slot, at the level of the last week.
        low, high: tenth and ninetieth percentile.
        trend: by what share arrivals grow in a week.
    """

    usual: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    trend: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """What was done in the time that a profile is of.

    Attributes:
        replica_hours: that were paid for.
        needed_hours: replica-hours that the arrivals needed at each moment, by the curve; None: it is not known.
        violation: share of the time in which the oldest record was older than the objective; None: lag is not known.
        rescales_per_hour: changes of size.
    """

    replica_hours: float
    needed_hours: float | None
    violation: float | None
    rescales_per_hour: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Something people should know.

    Attributes:
        kind: a word for it, the same for all clusters.
        text: a sentence with the numbers.
        replica_hours: what it costs in a week, where that can be told.
    """

    kind: str
    text: str
    replica_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that the history of one cluster tells.

    Attributes:
        cluster: its name.
        made_at: when this was found.
        begin, end: the first and the last observation that it is of.
        observations: how many.
        capacity: what sizes can do; None: it was never busy enough to tell.
        times: direction -> name -> how long it takes: `start_up` (from the request until all are ready), `absorb`
            (until the job uses them), `stall` (the job stands still), `catch_up` (until what piled up is gone).
        season: the usual week; None: there is none, or less than a week is known.
        errors: minutes ahead -> mean error of what the season forecasts, as a share of the arrivals, on days
            that it was not made from.
        done: what was paid, how late it was, how often it was changed.
        findings: what people should know, the most expensive first.
    """

    cluster: str
    made_at: datetime
    begin: datetime
    end: datetime
    observations: int
    capacity: Curve | None = None
    times: Mapping[Direction, Mapping[str, Spread]] = field(default_factory=dict)
    season: Season | None = None
    errors: Mapping[int, float] = field(default_factory=dict)
    done: Done | None = None
    findings: tuple[Finding, ...] = ()


def usual(slots: tuple[float, ...], at: float) -> float:
    """The usual value at a time (seconds since 1970, UTC), between the middles of two slots."""
    place = ((at - MONDAY_S) % WEEK_S) / WEEK_S * len(slots) - 0.5
    slot = int(place) if place >= 0 else -1
    share = place - slot
    return slots[slot % len(slots)] * (1.0 - share) + slots[(slot + 1) % len(slots)] * share


def reading(profile: Profile, at: datetime) -> Reading:
    """What a profile says at a time: the usual arrivals of now and of the minutes to come, and what else it knows.

    The value has `MINUTES` + 1 numbers, all 0 where there is no season. `parts` has `capacity` (rate, exponent and
    their errors) and `up` and `down` (seconds that each thing takes), as far as they are known.
    """
    now = at.timestamp()
    season = profile.season
    value = (
        (0.0,) * (MINUTES + 1)
        if season is None
        else tuple([round(usual(season.usual, now + 60.0 * minute), 3) for minute in range(MINUTES + 1)])
    )
    parts: dict[str, Mapping[str, float]] = {}
    curve = profile.capacity
    if curve is not None:
        parts["capacity"] = {
            "rate": curve.rate,
            "exponent": curve.exponent,
            "rate_error": curve.rate_error,
            "exponent_error": curve.exponent_error,
        }
    for direction, times in profile.times.items():
        parts[direction.value] = {name: spread.median for name, spread in times.items()}
    return Reading(value, at, parts=parts)


def old(profile: Profile, at: datetime, most: timedelta) -> bool:
    """Whether the last thing a profile knows of is longer ago than `most`."""
    return at - profile.end > most
