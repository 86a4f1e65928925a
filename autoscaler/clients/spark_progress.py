"""The progress of a streaming query, in the format that `autoscaler.injob.report` serves.

Drivers import this module too, so it does not need an HTTP client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Lt

# With these bounds, sums and dates cannot overflow even if an answer is wrong.
Instant = Annotated[float, Ge(0), Lt(1e11)]
Count = Annotated[int, Ge(0), Lt(2**63)]
Position = Annotated[int, Ge(-(2**63)), Lt(2**63)]

T = TypeVar("T")

_NAMES = {
    "number": "batchId",
    "durations": "durationMs",
    "start_partitions": "startPartitions",
    "query": "id",
    "run": "runId",
}

# The validation settings that `clients.http.Answer` has, as a dict, so that a driver need not load pydantic (6 MB).
_STRICT: dict[str, Any] = {
    "extra": "ignore",
    "strict": True,
    "allow_inf_nan": False,
    "populate_by_name": True,
    "alias_generator": lambda name: _NAMES.get(name, name),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """One source in a batch. Offsets are sums over the source's partitions, or None if the source reports none."""

    __pydantic_config__ = _STRICT

    description: str = ""
    rows: Count | None = None
    start: Position | None = None
    end: Position | None = None
    latest: Position | None = None
    partitions: Count | None = None
    start_partitions: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateProgress:
    """One stateful operator in a batch."""

    __pydantic_config__ = _STRICT

    partitions: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One completed batch; times are the driver's, in seconds since 1970.

    Attributes:
        steady: the time of `received` on a clock that nobody sets.
        idle: when the query last reported that it was idle before this batch ended.
    """

    __pydantic_config__ = _STRICT

    number: int
    start: Instant
    received: Instant
    steady: Instant | None = None
    idle: Instant | None = None
    rows: Count | None = None
    durations: dict[str, Position] = field(default_factory=dict)
    sources: tuple[SourceProgress, ...] = ()
    state: tuple[StateProgress, ...] = ()

    @property
    def length(self) -> float:
        """Seconds from the trigger to the end of the batch."""
        execution = self.durations.get("triggerExecution")
        return max(0.0, self.received - self.start if execution is None else execution / 1000)

    @property
    def end(self) -> float:
        """When the batch was committed."""
        return self.start + self.length

    @property
    def head(self) -> int | None:
        """The newest positions at the start of the batch, summed over all sources; None if one does not report it."""
        return _sum(source.latest for source in self.sources)

    @property
    def done(self) -> int | None:
        """The positions up to which the batch has read, summed over all sources; None if one does not report it."""
        return _sum(source.end for source in self.sources)

    @property
    def left(self) -> int | None:
        """The backlog that was there at the start of the batch and that the batch did not read."""
        head, done = self.head, self.done
        return None if head is None or done is None else max(0, head - done)

    @property
    def records(self) -> int | None:
        """Records read: the progress of the sources' positions, or else the rows that Spark counted.

        The rows are used if a source has new partitions, because their start positions would count as progress, and if
        a source does not report its newest position: such a source usually counts something else, such as files.
        """
        ways = [
            source.end - source.start
            for source in self.sources
            if source.latest is not None
            and source.end is not None
            and source.start is not None
            and source.start_partitions in {None, source.partitions}
        ]
        if ways and len(ways) == len(self.sources) and min(ways) >= 0:
            return sum(ways)
        return self.rows

    @property
    def state_partitions(self) -> int | None:
        """The largest number of state partitions of any operator; None for a query without state."""
        return max((operator.partitions for operator in self.state if operator.partitions), default=None)


def read_batch(entry: Mapping[str, Any]) -> Batch:
    """The batch of an entry of a report that was made in this process, so the entry is not validated."""
    sources = tuple(_read(SourceProgress, one) for one in entry["sources"])
    state = tuple(_read(StateProgress, one) for one in entry["state"])
    return _read(Batch, {**entry, "sources": sources, "state": state})


_KEYS: Mapping[type, Mapping[str, str]] = {
    kind: {each.name: _NAMES.get(each.name, each.name) for each in fields(kind)}
    for kind in (Batch, SourceProgress, StateProgress)
}


def _read(kind: type[T], entry: Mapping[str, Any]) -> T:
    return kind(**{name: entry[key] for name, key in _KEYS[kind].items() if key in entry})


def _sum(values: Iterable[int | None]) -> int | None:
    given = list(values)
    known = [value for value in given if value is not None]
    return sum(known) if known and len(known) == len(given) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one query; times are the driver's, in seconds since 1970.

    Attributes:
        working: whether a batch with data was running at the time of the report; None: unknown.
    """

    __pydantic_config__ = _STRICT

    query: str
    run: str
    name: str | None = None
    trigger: str | None = None
    started: Instant
    restarts: Count = 0
    idle: Instant | None = None
    terminated: Instant | None = None
    exception: str | None = None
    working: bool | None = None
    progress: tuple[Batch, ...] = ()

    @property
    def interval(self) -> float:
        """The trigger's interval in seconds; 0 when batches start as fast as possible."""
        found = re.fullmatch(r"ProcessingTimeTrigger\((\d+)\)", self.trigger or "")
        return int(found[1]) / 1000 if found else 0.0

    @property
    def once(self) -> bool:
        """Whether the query ends after it has read the data that was available at its start."""
        return self.trigger in {"AvailableNowTrigger", "OneTimeTrigger"}

    @property
    def label(self) -> str:
        """The query's name in messages."""
        return f"query {self.name or self.query}"
