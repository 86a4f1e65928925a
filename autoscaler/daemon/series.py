"""The last week of a cluster: figures for charts, and its changes of size.

They are kept in memory: less than 100 kB for each cluster, however short its interval. The state store has decisions of
about two hours only, and reading a week of history files of hundreds of clusters would take minutes. Decisions from
before the daemon started, or took the cluster over, are added as far as the state store has them.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from autoscaler.core.model import ClusterSpec, ClusterState, Reason
from autoscaler.daemon.workload import figures
from autoscaler.ports import Record

KEYS = ("load", "capacity", "lag", "backlog_time", "desired", "ready", "current", "used")
"""The figures: records/s, records, seconds, and workers. The target was set to `current`; the job uses `used`."""

_GREATEST = (2, 3)  # lag and backlog time: a point is the maximum of its interval; for other figures, the mean

RESOLUTIONS = ((10.0, 70 * 60.0), (120.0, 25 * 3600.0), (900.0, 170 * 3600.0))
"""Seconds per point, and for how long points are kept: slightly longer than an hour, a day and a week."""

GAP = 3
"""Intervals without a reading after which a chart shows a gap."""

MAX_CHANGES = 300
"""Changes of size that are kept, the newest ones."""

MAX_SETTLED = 20

Row: TypeAlias = tuple[float, "array[float]"]
"""A time, seconds since 1970, and the figures of `KEYS`."""

_LONGEST = 300
_UNKNOWN = math.nan

_ENDS = {Reason.SETTLED, Reason.DEADLINE, Reason.SUPERSEDED, Reason.UNCONFIRMED}


class Points:
    """Figures in intervals of equal width, oldest first: the mean of each interval, or the maximum.

    Args:
        width: the width of an interval, seconds.
        keep: for how long points are kept, seconds.
    """

    def __init__(self, width: float, keep: float = math.inf) -> None:
        self.width = width
        self.keep = keep
        self.at = array("d")
        self.values = array("f")
        self._counts = [0] * len(KEYS)

    def add(self, at: float, values: Sequence[float]) -> None:
        """Add the figures of a time; NaN: unknown. A time before the last interval (clock set back) is ignored."""
        begin = at // self.width * self.width
        if not self.at or begin > self.at[-1]:
            self.at.append(begin)
            self.values.extend(values)
            self._counts = [int(value == value) for value in values]  # noqa: PLR0124 - not NaN
            self._trim(at)
        elif begin == self.at[-1]:
            first = len(self.values) - len(KEYS)
            for key, value in enumerate(values):
                if not math.isnan(value):
                    self._merge(first + key, key, value)

    def before(self, other: Points) -> None:
        """Insert the earlier points of another object in front."""
        end = next((n for n, at in enumerate(other.at) if self.at and at >= self.at[0]), len(other.at))
        self.at = other.at[:end] + self.at
        self.values = other.values[: end * len(KEYS)] + self.values

    def rows(self, since: float, until: float) -> Iterator[Row]:
        """The points between two times."""
        for number, at in enumerate(self.at):
            if since <= at + self.width and at <= until:
                yield at, self.values[number * len(KEYS) : (number + 1) * len(KEYS)]

    def _merge(self, place: int, key: int, value: float) -> None:
        self._counts[key] += 1
        known = self.values[place]
        if self._counts[key] == 1:
            self.values[place] = value
        elif key in _GREATEST:
            self.values[place] = max(known, value)
        else:
            self.values[place] = known + (value - known) / self._counts[key]

    def _trim(self, at: float) -> None:
        # Only once an eighth too much is kept, not at each point.
        if self.at[0] < at - self.keep * 1.125:
            gone = next(n for n, each in enumerate(self.at) if each >= at - self.keep)
            del self.at[:gone], self.values[: gone * len(KEYS)]


@dataclass(slots=True)
class _Rescale:
    at: datetime
    before: int
    to: int
    ended_at: datetime | None = None
    outcome: str | None = None


class Series:
    """The series of one cluster.

    Attributes:
        begun_at: the time of the first decision; None: no decision yet.
        filled: whether earlier decisions have been added from the state store.
    """

    def __init__(self) -> None:
        self.begun_at: datetime | None = None
        self.filled = False
        self._points = [Points(*resolution) for resolution in RESOLUTIONS]
        self._decisions: deque[dict[str, Any]] = deque(maxlen=MAX_CHANGES)
        self._rescales: deque[_Rescale] = deque(maxlen=MAX_CHANGES)
        self._sizes: tuple[int, int] | None = None

    def add(self, spec: ClusterSpec, state: ClusterState, record: Record) -> None:
        """Add an observation and its decision. `state`: the state whose learned values are used."""
        self.begun_at = self.begun_at or record.decision.at
        at = record.decision.at.timestamp()
        values = sample(spec, state, record)
        for points in self._points:
            points.add(at, values)
        self.add_changes(record)

    def fill(self, earlier: Series) -> None:
        """Insert an earlier series in front."""
        for points, others in zip(self._points, earlier._points, strict=True):
            points.before(others)
        self._decisions.extendleft(reversed(earlier._decisions))
        self._rescales.extendleft(reversed(earlier._rescales))
        self.filled = True

    def points(self, since: float, until: float, now: float) -> tuple[list[Row], float]:
        """The points of the finest resolution that reaches back to `since`, and the width of their intervals."""
        found = next((points for points in self._points if now - since <= points.keep), self._points[-1])
        return list(found.rows(since, until)), found.width

    def changes(self, since: float, until: float) -> dict[str, list[dict[str, Any]]]:
        """Decisions for another size, and rescales, between two times."""
        return {
            "decisions": [each for each in self._decisions if since <= _seconds(each["at"]) <= until],
            "rescales": [
                {
                    "at": each.at.isoformat(),
                    "from": each.before,
                    "to": each.to,
                    "ended_at": None if each.ended_at is None else each.ended_at.isoformat(),
                    "outcome": each.outcome,
                }
                for each in self._rescales
                if each.at.timestamp() <= until and (each.ended_at is None or each.ended_at.timestamp() >= since)
            ],
        }

    def settled(self) -> list[tuple[int, int, float]]:
        """The last settled rescales: the size before, the size after, and the seconds until settled."""
        found = [
            (each.before, each.to, (each.ended_at - each.at).total_seconds())
            for each in self._rescales
            if each.ended_at is not None and each.outcome == Reason.SETTLED.value
        ]
        return found[-MAX_SETTLED:]

    def add_changes(self, record: Record) -> None:
        """Add the change of size of a decision, if there is one, and the outcome of the previous change."""
        decision = record.decision
        ended = next((reason for reason, _ in decision.notes if reason in _ENDS), None)
        sizes = decision.current, decision.desired
        anew = decision.rescale and sizes != self._sizes  # while it is refused, each decision repeats the request
        if self._rescales and self._rescales[-1].ended_at is None and (ended is not None or anew):
            self._rescales[-1].ended_at = decision.at
            self._rescales[-1].outcome = (ended or Reason.SUPERSEDED).value
        if anew:
            self._decisions.append(change_document(record))
            if not record.dry_run:
                self._rescales.append(_Rescale(decision.at, *sizes))
        self._sizes = sizes


def sample(spec: ClusterSpec, state: ClusterState, record: Record) -> tuple[float, ...]:
    """The figures of a record, in the order of `KEYS`; NaN: unknown."""
    observation, decision = record.observation, record.decision
    engine = observation.engine
    used = None if engine is None or engine.parallelism is None else -(-engine.parallelism // spec.slots_per_replica)
    found = (*figures(spec, observation, state), decision.desired, observation.ready, observation.desired, used)
    return tuple([_UNKNOWN if value is None else float(value) for value in found])


def change_document(record: Record) -> dict[str, Any]:
    """A short document of a decision for another size."""
    decision = record.decision
    asked = next((each for each in decision.recommendations if each.replicas == decision.proposed), None)
    return {
        "at": decision.at.isoformat(),
        "from": decision.current,
        "to": decision.desired,
        "reason": decision.reason.value,
        "text": "" if asked is None else f"{asked.policy}: {asked.detail}"[:_LONGEST],
    }


def series_document(
    rows: Iterable[Row], since: float, until: float, number: int, width: float, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Figures as lists of at most about `number` points, with a null in each list where a gap begins.

    `width`: the usual maximum of seconds between two rows. `changes`: the result of `Series.changes`.
    """
    coarse = Points(max((until - since) / number, 1.0))
    for at, values in rows:
        coarse.add(at, values)
    longest = GAP * max(coarse.width, width)
    times: list[float] = []
    columns: list[list[float | None]] = [[] for _ in KEYS]
    for place, at in enumerate(coarse.at):
        if times and at - times[-1] > longest:
            times.append(times[-1] + coarse.width)
            for column in columns:
                column.append(None)
        times.append(at)
        for key, column in enumerate(columns):
            value = coarse.values[place * len(KEYS) + key]
            column.append(float(f"{value:.6g}") if math.isfinite(value) else None)
    return {
        "from": datetime.fromtimestamp(since, UTC).isoformat(),
        "until": datetime.fromtimestamp(until, UTC).isoformat(),
        "at": times,
        **dict(zip(KEYS, columns, strict=True)),
        **changes,
    }


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
