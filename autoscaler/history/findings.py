"""Findings about a cluster: problems and possible savings, as sentences with numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from autoscaler.core.model import Cause, Direction
from autoscaler.core.wording import count_of, format_number, format_span
from autoscaler.core.workload_profile import Curve, Finding, Spread
from autoscaler.history.minutes import Minutes, Numbers, Rescaled

WEEK_H = 7 * 24.0
FLAP_S = 3600.0
MIN_FLAPS = 3
SLOW = 2.0
MIN_SLOW_S = 30.0
"""A start is slow if it takes this many times the median, and this many seconds more than the median."""
MIN_COUNT = 5
"""Percentiles of fewer values are meaningless."""
HEARTBEAT_S = 20.0
"""A loss that stops the job for at least this time was detected by a time-out. A worker that shuts down cleanly
deregisters, so its loss is detected at once."""
MIN_LOSSES = 2
MIN_WASTE = 0.1
"""Waste above this share of the replica-hours paid for is a finding."""
MIN_SHORT = 0.01
"""A lack of replicas for more than this share of the time is a finding."""
MIN_DRIFT, DRIFT_WEEKS = 0.03, 1.0
GAP_H = 12.0
SKEW_S = 30.0
FLAT = 0.35
"""Below this exponent more replicas add almost no capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The input of the findings; see `cluster_profile`.

    Attributes:
        cluster: the cluster's name.
        needed: the smallest size for the arrivals of each minute; NaN if it is not known.
        useful: the smallest size that can process as much as the actual size.
        notes: facts from other data: `renamed_to`, `renamed_from`, `skew_s`.
    """

    cluster: str
    minutes: Minutes
    rescales: Sequence[Rescaled]
    times: Mapping[Direction, Mapping[str, Spread]]
    curve: Curve | None
    needed: Numbers
    useful: Numbers
    partitions: int | None
    notes: Mapping[str, Any]

    @property
    def weeks(self) -> float:
        """The weeks of history, without gaps."""
        return max(float(self.minutes.hours.sum()) / WEEK_H, 1e-9)


def list_findings(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the most expensive first."""
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
    findings = [finding for kind in kinds for finding in kind(evidence)]
    return tuple(sorted(findings, key=lambda finding: -(finding.replica_hours or 0.0)))


def _flaps(evidence: Evidence) -> Iterator[Finding]:
    """Rescales that are reversed within an hour."""
    requested = [each for each in evidence.rescales if each.cause != Cause.LOSS]
    count, lost = 0, 0.0
    last = None
    for each in requested:
        if last is not None and each.direction != last.direction and each.at - last.at <= FLAP_S:
            count += 1
            for one in (last, each):
                lost += (one.stall_s or 0.0) * max(one.before, one.after) / 3600.0
            last = None  # each rescale is part of one flap only
        else:
            last = each
    if count >= MIN_FLAPS:
        cost = lost / evidence.weeks if lost else None
        text = (
            f"the size was changed and changed back within an hour {count} times "
            f"({format_number(count / evidence.weeks)} a week)"
        )
        if cost:
            text += f"; while the job stood still for this, {format_number(cost)} replica-hours a week were paid"
        yield Finding("flaps", text, cost)


def _slow_starts(evidence: Evidence) -> Iterator[Finding]:
    spread = evidence.times.get(Direction.UP, {}).get("start_up")
    if spread is None or spread.count < MIN_COUNT:
        return
    if spread.high < SLOW * spread.median or spread.high < spread.median + MIN_SLOW_S:
        return
    waits = [
        (each.ready_s - spread.median) * (each.after - each.before) / 3600.0
        for each in evidence.rescales
        if each.direction == Direction.UP and each.ready_s is not None and each.ready_s > spread.median
    ]
    yield Finding(
        "slow_starts",
        f"one start in ten takes more than {format_span(spread.high)}, the median is {format_span(spread.median)} "
        f"(of {count_of(spread.count, 'start')})",
        sum(waits) / evidence.weeks,
    )


def _heartbeats(evidence: Evidence) -> Iterator[Finding]:
    up, down = (evidence.times.get(way, {}).get("stall") for way in (Direction.UP, Direction.DOWN))
    # Scaling down stops a job no longer than scaling up, unless a time-out has to detect that workers are gone.
    killed = up is not None and down is not None and down.median >= up.median + HEARTBEAT_S
    stalls = [
        (each.stall_s, max(each.before, each.after))
        for each in evidence.rescales
        if (each.cause == Cause.LOSS or (killed and each.direction == Direction.DOWN))
        and each.stall_s is not None
        and each.stall_s >= HEARTBEAT_S
    ]
    if len(stalls) < MIN_LOSSES:
        return
    middle = float(np.median([stall for stall, _ in stalls]))
    yield Finding(
        "heartbeat_stalls",
        f"{len(stalls)} times workers were lost and the job stood still for {format_span(middle)} (median), as when a "
        "heartbeat has to time out; workers that receive a signal and have time to stop are detected at once",
        sum(stall * size for stall, size in stalls) / 3600.0 / evidence.weeks,
    )


def _partitions(evidence: Evidence) -> Iterator[Finding]:
    minutes, hours = evidence.minutes, evidence.minutes.hours
    if evidence.partitions:
        wasted = np.where(np.isfinite(minutes.paid), minutes.paid - evidence.useful, 0.0)
        cost = float((hours * wasted).sum()) / evidence.weeks
        long = float(hours[wasted > 0].sum())
        if cost > 0 and long >= MIN_SHORT * float(hours.sum()):
            yield Finding(
                "partition_bound",
                f"for {format_number(long)} h there were more replicas than "
                f"{count_of(evidence.partitions, 'partition')} can use, or than share them evenly: fewer would "
                f"process as much and save {format_number(cost)} replica-hours a week",
                cost,
            )
    elif evidence.curve is not None and len(evidence.curve.sizes) > 1 and evidence.curve.exponent <= FLAT:
        yield Finding(
            "partition_bound",
            f"more replicas add almost no capacity (exponent {format_number(evidence.curve.exponent)}): something "
            "else limits the job, such as partitions, skewed keys or a sink",
        )


def _over(evidence: Evidence) -> Iterator[Finding]:
    hours, more = evidence.minutes.hours, evidence.minutes.paid - evidence.needed
    known = np.isfinite(more)
    paid = float((hours * evidence.minutes.paid)[known].sum())
    spare = float((hours * np.maximum(more, 0.0))[known].sum())
    if paid > 0 and spare > MIN_WASTE * paid:
        cost = spare / evidence.weeks
        yield Finding(
            "over_provisioned",
            f"{format_number(100 * spare / paid)} % of the replica-hours paid for were more than the arrivals needed: "
            f"{format_number(cost)} replica-hours a week",
            cost,
        )


def _under(evidence: Evidence) -> Iterator[Finding]:
    hours, less = evidence.minutes.hours, evidence.needed - evidence.minutes.paid
    known = np.isfinite(less)
    long = float(hours[known & (less > 0.5)].sum())  # noqa: PLR2004 - half a replica: the mean of a minute is not whole
    if long > MIN_SHORT * float(hours[known].sum()) and long > 0:
        missing = float((hours * np.maximum(less, 0.0))[known].sum())
        yield Finding(
            "under_provisioned",
            f"for {format_number(long / evidence.weeks)} h a week there were fewer replicas than the arrivals needed, "
            f"{format_number(missing / long)} too few on average",
        )


def _unknown(evidence: Evidence) -> Iterator[Finding]:
    minutes = evidence.minutes
    if not np.isfinite(minutes.paid).any():
        yield Finding("no_size", "the size is not known: the target could not be read")
    for name, effect in (
        ("arrivals", "neither a season nor the needed size can be computed"),
        ("throughput", "the capacity of a size is not known"),
        ("utilization", "the capacity of a size shows only while the job falls behind"),
        ("lag", "how late records were is not known"),
    ):
        if not np.isfinite(getattr(minutes, name)).any():
            yield Finding(f"no_{name}", f"there is no metric {name}: {effect}")


def _short(evidence: Evidence) -> Iterator[Finding]:
    days = evidence.weeks * 7
    if days < 7:  # noqa: PLR2004 - a week
        yield Finding(
            "little_history", f"only {format_span(days * 86400)} are recorded: a season needs a week, better two"
        )
    elif evidence.curve is None:
        yield Finding("no_capacity", "the job was never busy and undisturbed: the capacity of a size is not known")


def _gaps(evidence: Evidence) -> Iterator[Finding]:
    minute = evidence.minutes.minute
    apart = np.diff(minute) / 60.0
    for place in np.flatnonzero(apart >= max(GAP_H, 2 * evidence.minutes.every / 60.0))[:3]:
        begin, end = (_format_time(float(minute[at]) * 60.0) for at in (place, place + 1))
        yield Finding("gap", f"nothing is recorded from {begin} to {end} ({format_span(float(apart[place]) * 3600)})")


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _renamed(evidence: Evidence) -> Iterator[Finding]:
    if after := evidence.notes.get("renamed_to"):
        yield Finding(
            "renamed",
            f"it ended when {after} began with a similar load: if they are the same cluster, join their histories with "
            f"--rename {evidence.cluster}={after}",
        )
    if before := evidence.notes.get("renamed_from"):
        yield Finding(
            "renamed",
            f"it began when {before} ended with a similar load: if they are the same cluster, join their histories "
            f"with --rename {before}={evidence.cluster}",
        )


def _skew(evidence: Evidence) -> Iterator[Finding]:
    skew = evidence.notes.get("skew_s")
    if skew is None or not math.isfinite(skew) or abs(skew) < SKEW_S:
        return
    way = "older than their observations" if skew > 0 else "from the future"
    yield Finding(
        "clock_skew", f"readings are on average {format_span(abs(skew))} {way}: clocks differ, or a source is slow"
    )


def _drift(evidence: Evidence) -> Iterator[Finding]:
    curve = evidence.curve
    if curve is None or evidence.weeks < DRIFT_WEEKS or abs(curve.drift) < MIN_DRIFT:
        return
    way = "grows" if curve.drift > 0 else "shrinks"
    yield Finding(
        "capacity_drift", f"the capacity of a replica {way} by {format_number(100 * abs(curve.drift))} % a week"
    )
