"""What people should know of a cluster, as sentences with numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.core.explain import count_of, format_number, format_span
from autoscaler.core.model import Cause, Direction
from autoscaler.core.workload_profile import Curve, Finding, Spread

if TYPE_CHECKING:
    from autoscaler.history.cluster_profile import Minutes, Rescaled
    from autoscaler.history.seasonality import Found

Numbers = NDArray[np.float64]

WEEK_H = 7 * 24.0
FLAP_S = 3600.0
LEAST_FLAPS = 3
SLOW = 2.0
LEAST_SLOW_S = 30.0
LEAST_COUNT = 5
"""Percentiles of fewer say nothing."""
HEARTBEAT_S = 20.0
"""A loss that stops the job for longer was noticed by a time-out: workers that are stopped in good order say so."""
LEAST_LOSSES = 2
SHARE = 0.1
"""What is less than this share of what was paid is not worth a word..."""
LEAST_SHORT = 0.01
"""... and so much of the time without enough is."""
DRIFT, DRIFT_WEEKS = 0.03, 1.0
GAP_H = 12.0
SKEW_S = 30.0
FLAT = 0.35
"""A job with this exponent gains next to nothing by more replicas."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What findings are made of; see `cluster_profile`.

    Attributes:
        cluster: its name.
        needed: the smallest size for what arrived in each minute; NaN where nothing is known.
        useful: the smallest size that does as much as that which there was.
        notes: what is known from elsewhere: `renamed_to`, `renamed_from`, `skew_s`.
    """

    cluster: str
    minutes: Minutes
    rescales: Sequence[Rescaled]
    times: Mapping[Direction, Mapping[str, Spread]]
    curve: Curve | None
    usual: Found
    needed: Numbers
    useful: Numbers
    partitions: int | None
    objective: float
    notes: Mapping[str, Any]

    @property
    def weeks(self) -> float:
        """How much history there is, without gaps."""
        return max(float(self.minutes.hours.sum()) / WEEK_H, 1e-9)


def found(seen: Seen) -> tuple[Finding, ...]:
    """All there is to say, the most expensive first."""
    kinds = (
        _flaps,
        _slow_starts,
        _heartbeats,
        _partitions,
        _over,
        _under,
        _unknown,
        _short,
        _gaps,
        _renamed,
        _skew,
        _drift,
    )
    findings = [finding for kind in kinds for finding in kind(seen)]
    return tuple(sorted(findings, key=lambda finding: -(finding.replica_hours or 0.0)))


def _flaps(seen: Seen) -> Iterator[Finding]:
    """Up and down again within an hour, or the other way round."""
    asked = [each for each in seen.rescales if each.cause != Cause.LOSS]
    count, lost = 0, 0.0
    last = None
    for each in asked:
        if last is not None and each.direction != last.direction and each.at - last.at <= FLAP_S:
            count += 1
            for one in (last, each):
                lost += (one.stall_s or 0.0) * max(one.before, one.after) / 3600.0
            last = None  # each rescale is part of one flap only
        else:
            last = each
    if count >= LEAST_FLAPS:
        cost = lost / seen.weeks if lost else None
        text = (
            f"the size went one way and back within an hour {count} times ({format_number(count / seen.weeks)} a week)"
        )
        if cost:
            text += f"; the job stood still for that as long as {format_number(cost)} replica-hours a week"
        yield Finding("flaps", text, cost)


def _slow_starts(seen: Seen) -> Iterator[Finding]:
    spread = seen.times.get(Direction.UP, {}).get("start_up")
    if spread is None or spread.count < LEAST_COUNT:
        return
    if spread.high < SLOW * spread.median or spread.high < spread.median + LEAST_SLOW_S:
        return
    waits = [
        (each.ready_s - spread.median) * (each.after - each.before) / 3600.0
        for each in seen.rescales
        if each.direction == Direction.UP and each.ready_s is not None and each.ready_s > spread.median
    ]
    yield Finding(
        "slow_starts",
        f"one start in ten takes more than {format_span(spread.high)}, usual are {format_span(spread.median)} "
        f"(of {count_of(spread.count, 'start')})",
        sum(waits) / seen.weeks,
    )


def _heartbeats(seen: Seen) -> Iterator[Finding]:
    up, down = (seen.times.get(way, {}).get("stall") for way in (Direction.UP, Direction.DOWN))
    # A job is redeployed as quickly with fewer workers as with more, unless nobody tells it that they are gone.
    killed = up is not None and down is not None and down.median >= up.median + HEARTBEAT_S
    stalls = [
        (each.stall_s, max(each.before, each.after))
        for each in seen.rescales
        if (each.cause == Cause.LOSS or (killed and each.direction == Direction.DOWN))
        and each.stall_s is not None
        and each.stall_s >= HEARTBEAT_S
    ]
    if len(stalls) < LEAST_LOSSES:
        return
    middle = float(np.median([stall for stall, _ in stalls]))
    yield Finding(
        "heartbeat_stalls",
        f"{len(stalls)} times workers went and the job stood still for {format_span(middle)} (median), as when a "
        "heartbeat has to time out; workers that get a signal and time to stop are noticed at once",
        sum(stall * size for stall, size in stalls) / 3600.0 / seen.weeks,
    )


def _partitions(seen: Seen) -> Iterator[Finding]:
    minutes, hours = seen.minutes, seen.minutes.hours
    if seen.partitions:
        wasted = np.where(np.isfinite(minutes.paid), minutes.paid - seen.useful, 0.0)
        cost = float((hours * wasted).sum()) / seen.weeks
        long = float(hours[wasted > 0].sum())
        if cost > 0 and long >= LEAST_SHORT * float(hours.sum()):
            yield Finding(
                "partition_bound",
                f"for {format_number(long)} h there were more replicas than "
                f"{count_of(seen.partitions, 'partition')} can use, "
                f"or divide among them better: fewer would do as much, {format_number(cost)} replica-hours a week less",
                cost,
            )
    elif seen.curve is not None and len(seen.curve.sizes) > 1 and seen.curve.exponent <= FLAT:
        yield Finding(
            "partition_bound",
            f"more replicas add next to nothing (exponent {format_number(seen.curve.exponent)}): something else "
            "limits the "
            "job, such as partitions, skewed keys or a sink",
        )


def _over(seen: Seen) -> Iterator[Finding]:
    hours, more = seen.minutes.hours, seen.minutes.paid - seen.needed
    known = np.isfinite(more)
    paid = float((hours * seen.minutes.paid)[known].sum())
    spare = float((hours * np.maximum(more, 0.0))[known].sum())
    if paid > 0 and spare > SHARE * paid:
        cost = spare / seen.weeks
        yield Finding(
            "over_provisioned",
            f"{format_number(100 * spare / paid)} % of what was paid was more than the arrivals needed: "
            f"{format_number(cost)} replica-hours a week",
            cost,
        )


def _under(seen: Seen) -> Iterator[Finding]:
    hours, less = seen.minutes.hours, seen.needed - seen.minutes.paid
    known = np.isfinite(less)
    long = float(hours[known & (less > 0.5)].sum())  # noqa: PLR2004 - half a replica: the mean of a minute is not whole
    if long > LEAST_SHORT * float(hours[known].sum()) and long > 0:
        missing = float((hours * np.maximum(less, 0.0))[known].sum())
        yield Finding(
            "under_provisioned",
            f"for {format_number(long / seen.weeks)} h a week there were fewer replicas than the arrivals needed, "
            f"{format_number(missing / long)} too few on average",
        )


def _unknown(seen: Seen) -> Iterator[Finding]:
    minutes = seen.minutes
    if not np.isfinite(minutes.paid).any():
        yield Finding("no_size", "the size was never seen: the target could not be asked")
    for name, effect in (
        ("arrivals", "there is no season, and nobody can tell what was needed"),
        ("throughput", "what a size can do is not known"),
        ("utilization", "what a size can do shows only while the job falls behind"),
        ("lag", "nobody can tell how late records were"),
    ):
        if not np.isfinite(getattr(minutes, name)).any():
            yield Finding(f"no_{name}", f"there is no metric {name}: {effect}")


def _short(seen: Seen) -> Iterator[Finding]:
    days = seen.weeks * 7
    if days < 7:  # noqa: PLR2004 - a week
        yield Finding(
            "little_history", f"only {format_span(days * 86400)} are known: a season needs a week, better two"
        )
    elif seen.curve is None:
        yield Finding("no_capacity", "it was never seen busy and undisturbed: what a size can do is not known")


def _gaps(seen: Seen) -> Iterator[Finding]:
    minute = seen.minutes.minute
    apart = np.diff(minute) / 60.0
    for place in np.flatnonzero(apart >= max(GAP_H, 2 * seen.minutes.every / 60.0))[:3]:
        begin, end = (_told(float(minute[at]) * 60.0) for at in (place, place + 1))
        yield Finding("gap", f"nothing is known from {begin} to {end} ({format_span(float(apart[place]) * 3600)})")


def _told(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _renamed(seen: Seen) -> Iterator[Finding]:
    if after := seen.notes.get("renamed_to"):
        yield Finding(
            "renamed",
            f"it ended when {after} began with the like load: if that is the same, both are made one by "
            f"--rename {seen.cluster}={after}",
        )
    if before := seen.notes.get("renamed_from"):
        yield Finding(
            "renamed",
            f"it began when {before} ended with the like load: if that is the same, both are made one by "
            f"--rename {before}={seen.cluster}",
        )


def _skew(seen: Seen) -> Iterator[Finding]:
    skew = seen.notes.get("skew_s")
    if skew is None or not math.isfinite(skew) or abs(skew) < SKEW_S:
        return
    way = "older than the looks at them" if skew > 0 else "from the future"
    yield Finding(
        "clock_skew", f"readings are {format_span(abs(skew))} {way} (median): clocks differ, or a source is slow"
    )


def _drift(seen: Seen) -> Iterator[Finding]:
    curve = seen.curve
    if curve is None or seen.weeks < DRIFT_WEEKS or abs(curve.drift) < DRIFT:
        return
    way = "more" if curve.drift > 0 else "less"
    yield Finding("capacity_drift", f"a replica does {format_number(100 * abs(curve.drift))} % {way} from week to week")
