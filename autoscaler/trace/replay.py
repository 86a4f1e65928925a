"""The open loop: what a configuration would have decided about recorded observations.

Every decision sees the recorded sizes. A different decision has no effect on the next one, because its effect on the
cluster is unknown (`simulate` models it). A recorded rescale counts as the configuration's own: its phases are learned,
and its cooldown runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from operator import mul, sub

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Recommendation,
    ScaleEvent,
    Verdict,
)
from autoscaler.core.rescale import request
from autoscaler.core.state import call_failed, call_withheld
from autoscaler.core.step import Decide, step
from autoscaler.ports import Record

GAP = 2.5
"""A gap of more than this many intervals means that no daemon was running: the decision before it held for one."""


def decide_again(
    spec: ClusterSpec, state: ClusterState, record: Record, decide: Decide = step
) -> tuple[ClusterState, Decision]:
    """Decide about a record.

    `state` is the state after the previous record, or `ClusterState()` for the first one.

    Returns:
        The state after the recorded request, and the decision that would have been made.
    """
    if record.failed:
        state = call_failed(state, record.failed)
    after, decision = decide(spec, state, record.observation)
    recorded = record.decision
    asked = recorded.desired if recorded.rescale and not record.dry_run else None
    if decision.rescale and decision.desired != asked:
        after = _not_asked(state, after)
    if asked is not None and not (decision.rescale and decision.desired == asked):
        after = _asked(after, record)
    return after, decision


def _not_asked(before: ClusterState, after: ClusterState) -> ClusterState:
    """Withdraw the request of this step. An earlier request that is in progress stays."""
    after = call_withheld(after)
    if after.rescale is not None and not after.rescale.confirmed:
        # Requested and not confirmed: the withdrawn request had replaced it.
        return replace(after, requested=before.requested)
    return after


def _asked(after: ClusterState, record: Record) -> ClusterState:
    """Add the recorded request, as if this configuration had made it."""
    decision, observation = record.decision, record.observation
    shown = decision.current if observation.desired is None else observation.desired
    return replace(
        after,
        rescale=request(shown, decision.desired, observation, after.rescale),
        events=(*after.events, ScaleEvent(observation.at, decision.desired - decision.current)),
        requested=observation.at,
    )


# What differs


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference between two decisions.

    Attributes:
        stage: `policy NAME`, `combine`, the guard's name, or `size` if not even the present size is the same.
        recorded, replayed: what this stage decided, as sentences.
    """

    stage: str
    recorded: str
    replayed: str


def first_difference(recorded: Decision, anew: Decision) -> FirstDifference | None:
    """The first difference between two decisions about one observation; None if the sizes are the same.

    A different text for the same size does not count.
    """
    if recorded.current != anew.current:
        return FirstDifference("size", f"was {recorded.current}", f"was {anew.current}")
    if recorded.proposed != anew.proposed:
        theirs = {asked.policy: asked for asked in recorded.recommendations}
        ours = {asked.policy: asked for asked in anew.recommendations}
        differ = [
            name
            for name in dict.fromkeys([*ours, *theirs])
            if _requested(ours.get(name)) != _requested(theirs.get(name)) or (name in ours) != (name in theirs)
        ]
        # A policy whose size was proposed comes before one that was ignored.
        counted = [
            name
            for name in differ
            if anew.proposed == _requested(ours.get(name)) or recorded.proposed == _requested(theirs.get(name))
        ]
        for name in (*counted, *differ):
            # A history imported from metrics has no reasons.
            before = _recommended(theirs.get(name)) if theirs else f"was {recorded.proposed}"
            return FirstDifference(f"policy {name}", before, _recommended(ours.get(name)))
        return FirstDifference("combine", _combined(recorded), _combined(anew))
    then_by, now_by = ({verdict.guard: verdict for verdict in each.verdicts} for each in (recorded, anew))
    for guard in dict.fromkeys([*max(then_by, now_by, key=len), *then_by, *now_by]):
        then_verdict, now_verdict = then_by.get(guard), now_by.get(guard)
        if _size(then_verdict) != _size(now_verdict):
            return FirstDifference(guard.value, _verdict(then_verdict), _verdict(now_verdict))
    return None


def _requested(asked: Recommendation | None) -> int | None:
    return None if asked is None else asked.replicas


def _recommended(asked: Recommendation | None) -> str:
    if asked is None:
        return "absent"
    size = asked.reason.value if asked.replicas is None else f"asked for {asked.replicas}"
    return f"{size}: {asked.detail}" if asked.detail else size


def _combined(decision: Decision) -> str:
    return f"{decision.combined or 'the greatest'} is {decision.proposed}"


def _size(verdict: Verdict | None) -> int | None:
    return None if verdict is None else verdict.after


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "absent"
    made = (
        f"changed {verdict.before} to {verdict.after}" if verdict.before != verdict.after else f"kept {verdict.after}"
    )
    return f"{made}: {verdict.detail}" if verdict.detail else made


# A whole trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A period in which every decision would have been higher, or every one lower, than recorded.

    Attributes:
        record, decision: the first recorded decision of the period, and the decision in its place.
        until: when the decisions agreed again, went the other way, or ended.
        decisions: their number.
        recorded, replayed: least and greatest size decided.
        hours: replica-hours beyond those recorded; below 0: fewer.
        first: the first difference at the beginning of the period.
    """

    record: Record
    decision: Decision
    until: datetime
    decisions: int
    recorded: tuple[int, int]
    replayed: tuple[int, int]
    hours: float
    first: FirstDifference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of replaying one cluster's records.

    Attributes:
        cluster: its name in the trace.
        first, last: times of the first and the last decision compared; None: no decision was compared.
        decisions: how many were compared.
        equal: how many of them decided the same size.
        recorded_hours, hours: replica-hours of the sizes decided, as recorded and as they would have been. Times
            without decisions do not count.
        rescales: changes of size that were recorded.
        agreed: how many of these would have been made as well.
        others: changes of size at times when none, or another, was recorded.
        missing: metrics of the configuration that no record had.
        differences: in order.
    """

    cluster: str
    first: datetime | None
    last: datetime | None
    decisions: int
    equal: int
    recorded_hours: float
    hours: float
    rescales: int
    agreed: int
    others: int
    missing: tuple[str, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """One decision as recorded and as replayed: the sizes, and whether they requested a change of size."""

    at: datetime
    recorded: int
    replayed: int
    asked: bool
    asks: bool

    @property
    def way(self) -> int:
        """1 if the replayed size is larger than the recorded one, -1 if it is smaller, 0 if they are equal."""
        return (self.replayed > self.recorded) - (self.replayed < self.recorded)


class Replay:
    """Replays one cluster's records one after the other, and compares the decisions.

    Args:
        spec: the spec of the configuration that is tried.
        since, until: only decisions in between are compared. Earlier ones are also made, because later ones depend on
            them. None: all.
        decide: makes the decisions.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        since: datetime | None = None,
        until: datetime | None = None,
        decide: Decide = step,
    ) -> None:
        self.spec = spec
        self.state = ClusterState()
        self._since, self._until = since, until
        self._decide = decide
        self._seen: set[str] = set()
        self._rows: list[_Row] = []
        self._starts: dict[int, tuple[Record, Decision]] = {}

    def add(self, record: Record) -> Decision | None:
        """Decide about the next record. Returns the decision; None if it is not compared."""
        at = record.decision.at
        if self._until is not None and at > self._until:
            return None
        self.state, decision = decide_again(self.spec, self.state, record, self._decide)
        if self._since is not None and at < self._since:
            return None
        self._seen.update(record.observation.metrics)
        recorded = record.decision
        row = _Row(at, recorded.desired, decision.desired, recorded.rescale, decision.rescale)
        if row.way and (not self._rows or row.way != self._rows[-1].way):
            self._starts[len(self._rows)] = (record, decision)
        self._rows.append(row)
        return decision

    def result(self) -> Comparison:
        """The comparison of all records added."""
        rows = self._rows
        hours = [span / timedelta(hours=1) for span in _spans([row.at for row in rows], self.spec.interval)]
        agreed = [row for row in rows if row.asked and row.replayed == row.recorded]
        begun = [
            row
            for before, row in pairwise([None, *rows])
            if row is not None and row.asks and row.way and (before is None or before.replayed != row.replayed)
        ]
        return Comparison(
            cluster=self.spec.name,
            first=rows[0].at if rows else None,
            last=rows[-1].at if rows else None,
            decisions=len(rows),
            equal=sum(not row.way for row in rows),
            recorded_hours=math.fsum(map(mul, [row.recorded for row in rows], hours)),
            hours=math.fsum(map(mul, [row.replayed for row in rows], hours)),
            rescales=sum(row.asked for row in rows),
            agreed=len(agreed),
            others=len(begun),
            missing=tuple(name for name in self.spec.metrics if rows and name not in self._seen),
            differences=tuple(self._difference(start, hours) for start in self._starts),
        )

    def _difference(self, start: int, hours: Sequence[float]) -> Difference:
        rows = self._rows
        way = rows[start].way
        end = next((number for number in range(start, len(rows)) if rows[number].way != way), len(rows))
        until = rows[end].at if end < len(rows) else rows[-1].at + self.spec.interval
        here = rows[start:end]
        recorded, anew = [row.recorded for row in here], [row.replayed for row in here]
        record, decision = self._starts[start]
        return Difference(
            record=record,
            decision=decision,
            until=until,
            decisions=len(here),
            recorded=(min(recorded), max(recorded)),
            replayed=(min(anew), max(anew)),
            hours=math.fsum(map(mul, map(sub, anew, recorded), hours[start:end])),
            first=first_difference(record.decision, decision),
        )


def _spans(times: Sequence[datetime], interval: timedelta) -> list[timedelta]:
    """How long each decision held: until the next one, or for one interval at a gap or a clock change."""
    spans = [*(after - before for before, after in pairwise(times)), interval]
    return [span if timedelta(0) < span <= interval * GAP else interval for span in spans]
