"""The profile of a cluster: its seasonal arrivals, the capacity of each size, the duration of rescales.

`autoscaler profile` computes it from weeks of history. Policies get it as one more reading, with the values that matter
now: so every recorded observation contains it, and a replay decides with it as the daemon did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from autoscaler.core.model import Direction, Reading

WEEK_S = 7 * 86400.0
MONDAY_S = 4 * 86400.0
"""The first Monday of 1970 was the 5th of January."""

MINUTES = 30
"""A reading has the seasonal arrivals of the present and of this many next minutes."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Durations, in seconds: the median, the tenth and the ninetieth percentile, and their number."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The capacity of sizes: n replicas process rate * n^exponent records/s when they are busy.

    Attributes:
        rate: records/s of one replica.
        exponent: how the capacity grows with the size; 1: in proportion.
        rate_error: standard error of ln(rate) at the observed sizes.
        exponent_error: standard error of the exponent.
        drift: growth of the rate per week, as a share; negative: it shrinks.
        sizes: size -> measured records/s.
    """

    rate: float
    exponent: float
    rate_error: float
    exponent_error: float
    drift: float = 0.0
    sizes: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Season:
    """The seasonal arrivals, records/s, in equal slots of a week that begins on Monday, 0:00, of a time zone.

    Attributes:
        usual: the median of each slot, at the level of the last week.
        low, high: tenth and ninetieth percentile.
        trend: growth of the arrivals per week, as a share.
        time_zone: the IANA name of the time zone, such as Europe/Berlin.
    """

    usual: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    trend: float = 0.0
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Summary:
    """Cost and lateness in the time of a profile.

    Attributes:
        replica_hours: replica-hours that were paid for while the size was known.
        needed_hours: replica-hours that the arrivals needed in that time, according to the curve; None: unknown.
        violation: share of the time in which the oldest record was older than the objective; None: lag is unknown.
        rescales_per_hour: changes of size per hour.
    """

    replica_hours: float
    needed_hours: float | None
    violation: float | None
    rescales_per_hour: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a possible saving.

    Attributes:
        kind: its kind, such as `flaps`, the same for all clusters.
        text: a sentence with the numbers.
        replica_hours: its cost in a week, if known.
    """

    kind: str
    text: str
    replica_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that is computed from the history of one cluster.

    Attributes:
        cluster: its name.
        made_at: when it was computed.
        begin, end: the times of the first and the last observation.
        observations: their number.
        capacity: the capacity of sizes; None: the job was never busy enough.
        times: direction -> phase -> durations: `start_up` (from the request until all replicas are ready), `absorb`
            (until the job uses them), `stall` (the job stands still), `catch_up` (until the backlog is processed).
        season: the seasonal arrivals; None: there is no season, or less than a week of history.
        errors: minutes ahead -> mean error of the seasonal forecasts, as a share of the arrivals, on days that were not
            used to compute the season.
        done: cost, lateness and number of rescales.
        findings: problems and possible savings, the most expensive first.
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
    done: Summary | None = None
    findings: tuple[Finding, ...] = ()


def local_seconds(at: float, time_zone: str) -> float:
    """The local time of a time zone at a time (seconds since 1970, UTC), as seconds since 1970 as if it were UTC.

    Raises ValueError: there is no such time zone.
    """
    if time_zone == "UTC":
        return at
    offset = datetime.fromtimestamp(at, _zone(time_zone)).utcoffset()
    return at + (0.0 if offset is None else offset.total_seconds())


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # unknown; no name at all; a directory such as Europe
        raise ValueError(f"{name!r} is not the name of a time zone, such as Europe/Berlin") from error


def seasonal_value(slots: tuple[float, ...], at: float) -> float:
    """The value at a local time (`local_seconds`), interpolated between the centers of two slots."""
    place = ((at - MONDAY_S) % WEEK_S) / WEEK_S * len(slots) - 0.5
    slot = int(place) if place >= 0 else -1
    share = place - slot
    return slots[slot % len(slots)] * (1.0 - share) + slots[(slot + 1) % len(slots)] * share


def reading(profile: Profile, at: datetime) -> Reading:
    """The profile as a reading: present and next seasonal arrivals, capacity and durations.

    The value has `MINUTES` + 1 numbers, all 0 if there is no season. `parts` has `capacity` (rate, exponent and their
    errors) and `up` and `down` (median seconds of each phase), as far as they are known.
    """
    now = at.timestamp()
    season = profile.season
    value = (
        (0.0,) * (MINUTES + 1)
        if season is None
        else tuple(
            [
                round(seasonal_value(season.usual, local_seconds(now + 60.0 * minute, season.time_zone)), 3)
                for minute in range(MINUTES + 1)
            ]
        )
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


def is_stale(profile: Profile, at: datetime, max_age: timedelta) -> bool:
    """Whether the history of a profile ended longer ago than `max_age`."""
    return at - profile.end > max_age
