"""Live sources, engines, targets and discoveries in memory, with scripted values, failures and delays, for tests.

Each is a live object and, through `Fake`, a plug-in that connects to it. Delays are `asyncio.sleep`, so in a
virtual-time loop they cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from autoscaler.core.model import Bound, ClusterState, Control, EngineStatus, JobState, Reading
from autoscaler.ports import (
    LEASE,
    AuditEntry,
    Copy,
    LeaseLost,
    Leases,
    Member,
    Record,
    Shared,
    StoredControl,
    StoreError,
    TargetStatus,
    UnavailableError,
)

T = TypeVar("T")
Value = float | tuple[float, ...]


@dataclass(frozen=True)
class FakeQuery:
    """A metric of a `FakeSource`, by its name."""

    metric: str


@dataclass
class FakeSource:
    """A source whose values are set by the test.

    Attributes:
        values: metric name -> a value, or a function of the time that gives one (or a whole `Reading`).
        failures: metric name -> the error it raises.
        delay: seconds every collect takes.
        asked: metric name -> how often it was asked for.
    """

    Query: ClassVar[type] = FakeQuery

    values: dict[str, Value | Callable[[datetime], Value | Reading]] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    delay: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)

    async def collect(self, query: FakeQuery, now: datetime) -> Reading:
        """Answer what is scripted."""
        self.asked[query.metric] = self.asked.get(query.metric, 0) + 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if query.metric in self.failures:
            raise self.failures[query.metric]
        if query.metric not in self.values:
            raise UnavailableError(f"the fake source has no metric {query.metric!r}")
        scripted = self.values[query.metric]
        value = scripted(now) if callable(scripted) else scripted
        return value if isinstance(value, Reading) else Reading(value, now)


@dataclass
class FakeEngine:
    """An engine that shows what the test sets.

    Attributes:
        status: what it shows.
        failure: the error it raises instead.
        delay: seconds an answer takes.
    """

    status: EngineStatus = field(default_factory=lambda: EngineStatus(job=JobState.RUNNING))
    failure: BaseException | None = None
    delay: float = 0.0

    async def describe(self) -> EngineStatus:
        """Answer what is scripted."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return self.status


@dataclass(kw_only=True)
class FakeTarget:
    """A target that starts and stops replicas in no time, or after `startup` seconds.

    Attributes:
        desired: the requested size.
        ready: replicas that are up.
        startup: seconds until `ready` follows `desired`.
        failure: the error that `describe` raises.
        scale_failure: the error that `scale` raises.
        accepts_failing: whether a failing `scale` takes effect all the same (the answer was lost).
        delay: seconds `describe` takes.
        scale_delay: seconds `scale` takes.
        requests: every size asked for, oldest first.
        scaling: calls of `scale` that have begun and not ended.
        remarks, floor, ceiling, controls: what it shows besides.
    """

    desired: int = 1
    ready: int = 1
    startup: float = 0.0
    failure: BaseException | None = None
    scale_failure: BaseException | None = None
    accepts_failing: bool = False
    delay: float = 0.0
    scale_delay: float = 0.0
    requests: list[int] = field(default_factory=list)
    scaling: int = 0
    remarks: tuple[str, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None
    controls: tuple[Control, ...] = ()

    async def describe(self) -> TargetStatus:
        """Answer what there is."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return TargetStatus(self.desired, self.ready, self.remarks, self.floor, self.ceiling, self.controls)

    async def scale(self, replicas: int) -> None:
        """Take the size."""
        self.scaling += 1
        try:
            if self.scale_delay:
                await asyncio.sleep(self.scale_delay)
            self.requests.append(replicas)
            if self.scale_failure is None or self.accepts_failing:
                self.desired = replicas
                asyncio.get_running_loop().call_later(self.startup, self._start)
            if self.scale_failure is not None:
                raise self.scale_failure
        finally:
            self.scaling -= 1

    def _start(self) -> None:
        self.ready = self.desired


@dataclass
class FakeDiscovery:
    """A discovery that finds what the test sets.

    Attributes:
        found: what it finds.
        failure: the error it raises instead.
        delay: seconds an answer takes.
        asked: how often it was asked.
    """

    found: Sequence[Member] = ()
    failure: BaseException | None = None
    delay: float = 0.0
    asked: int = 0

    async def members(self) -> Sequence[Member]:
        """Answer what is scripted."""
        self.asked += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return self.found


@dataclass(frozen=True, eq=False)
class Fake(Generic[T]):
    """A plug-in that connects to a given live object. Two fakes are never equal.

    Attributes:
        live: what `connect` gives.
        failures: errors raised by the first attempts to connect, one each.
        opened: one entry per connection opened.
        closed: one entry per connection closed.
    """

    Query: ClassVar[type] = FakeQuery
    variables: ClassVar[tuple[str, ...]] = ("name",)

    live: T
    failures: list[BaseException] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[T]:
        """Give the live object."""
        del shared
        if self.failures:
            raise self.failures.pop(0)
        loop = asyncio.get_running_loop()
        self.opened.append(loop.time())
        try:
            yield self.live
        finally:
            self.closed.append(loop.time())


@dataclass
class FakeStore:
    """A state store in memory.

    Attributes:
        states: cluster -> the state last kept.
        records: every record kept, oldest first.
        members: fleet -> the members last kept.
        controls: all that people have set, oldest first.
        entries: of the audit, oldest first.
        failure: the error text with which everything is refused, or empty.
        journal: what happened, for tests of the order: `save` entries are added by the store.
    """

    states: dict[str, ClusterState] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    members: dict[str, Mapping[str, Member]] = field(default_factory=dict)
    controls: list[StoredControl] = field(default_factory=list)
    entries: list[AuditEntry] = field(default_factory=list)
    failure: str = ""
    journal: list[Any] = field(default_factory=list)

    async def load(self, cluster: str) -> ClusterState | None:
        """The state last saved."""
        if self.failure:
            raise StoreError(self.failure)
        return self.states.get(cluster)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Keep both."""
        if self.failure:
            raise StoreError(self.failure)
        self.states[cluster] = state
        self.journal.append(("save", cluster))
        if record is not None:
            self.records.append(record)

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Forget those that are older."""
        if self.failure:
            raise StoreError(self.failure)
        self.states = {
            name: state for name, state in self.states.items() if name in keep or state.at is None or state.at >= before
        }

    async def load_members(self, fleet: str) -> Mapping[str, Member]:
        """The members last saved."""
        if self.failure:
            raise StoreError(self.failure)
        return self.members.get(fleet, {})

    async def save_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        """Keep them."""
        if self.failure:
            raise StoreError(self.failure)
        self.members[fleet] = members

    async def forget_members(self, fleets: Collection[str]) -> None:
        """Forget those of other fleets."""
        if self.failure:
            raise StoreError(self.failure)
        self.members = {fleet: members for fleet, members in self.members.items() if fleet in fleets}

    async def load_controls(self) -> list[StoredControl]:
        """All that was added."""
        if self.failure:
            raise StoreError(self.failure)
        return [*self.controls]

    async def add_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        """Keep both."""
        if self.failure:
            raise StoreError(self.failure)
        stored = replace(stored, id=len(self.controls) + 1)
        self.controls.append(stored)
        self.entries.append(audit)
        return stored

    async def add_audit(self, entry: AuditEntry) -> None:
        """Keep it."""
        if self.failure:
            raise StoreError(self.failure)
        self.entries.append(entry)

    async def audit(self, limit: int, until: datetime | None = None) -> list[AuditEntry]:
        """The last ones, newest first."""
        if self.failure:
            raise StoreError(self.failure)
        return [entry for entry in reversed(self.entries) if until is None or entry.at <= until][:limit]

    async def write(self, record: Record) -> None:
        """Be a decision sink too."""
        self.journal.append(("write", record.decision.cluster))


@dataclass
class FakeLeases:
    """The leases of several copies, in memory: what a shared store keeps beside states.

    Attributes:
        states: the store of the states, shared by all copies.
        seen: copy -> loop time of its last renewal.
        leases: cluster -> the copy that has it, or None, and its term.
        taken: loop time, cluster and copy of every lease taken.
    """

    states: FakeStore = field(default_factory=FakeStore)
    seen: dict[Copy, float] = field(default_factory=dict)
    leases: dict[str, tuple[Copy | None, int]] = field(default_factory=dict)
    taken: list[tuple[float, str, Copy]] = field(default_factory=list)

    def live(self) -> set[Copy]:
        """The copies that have not expired."""
        now = asyncio.get_running_loop().time()
        return {copy for copy, seen in self.seen.items() if now - seen <= LEASE}

    def delete_expired(self) -> None:
        """Delete the copies that have expired, and end their leases."""
        live = self.live()
        self.seen = {copy: seen for copy, seen in self.seen.items() if copy in live}
        for name, (holder, term) in self.leases.items():
            if holder not in live:
                self.leases[name] = (None, term)


@dataclass
class FakeSharedStore:
    """The store of one copy, with leases. Make one for each copy over the same `FakeLeases`.

    Attributes:
        failure: the error text with which everything is refused, or empty.
    """

    me: Copy
    shared: FakeLeases
    failure: str = ""
    terms: dict[str, int] = field(default_factory=dict)

    @property
    def copy(self) -> UUID:
        """The id of this copy."""
        return self.me.id

    async def load(self, cluster: str) -> ClusterState | None:
        """The state last saved by any copy."""
        self._answer()
        return await self.shared.states.load(cluster)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Keep both, if the lease is this copy's."""
        self._answer()
        lease = (self.me, self.terms.get(cluster))
        if self.me not in self.shared.live() or self.shared.leases.get(cluster) != lease:
            raise LeaseLost(f"cluster {cluster!r} belongs to another copy of the daemon")
        await self.shared.states.save(cluster, state, record)

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Forget those of any copy."""
        self._answer()
        await self.shared.states.forget_clusters(before, keep)

    async def write(self, record: Record) -> None:
        """Be a decision sink too."""
        await self.shared.states.write(record)

    async def renew(self, name: str, url: str) -> Leases:
        """Renew this copy's row."""
        self._answer()
        del name, url
        now = asyncio.get_running_loop().time()
        self.shared.delete_expired()
        self.shared.seen[self.me] = now
        self.terms = {name: term for name, (holder, term) in self.shared.leases.items() if holder == self.me}
        oldest = max(now - seen for seen in self.shared.seen.values())
        return Leases({copy.id: copy for copy in self.shared.seen}, dict(self.terms), oldest)

    async def take(self, clusters: Collection[str]) -> dict[str, int]:
        """Take what nobody has."""
        self._answer()
        found = {}
        for name in clusters:
            holder, term = self.shared.leases.get(name, (None, 0))
            if holder is None:
                found[name] = term + 1
                self.shared.leases[name] = (self.me, term + 1)
                self.shared.taken.append((asyncio.get_running_loop().time(), name, self.me))
        self.terms |= found
        return found

    async def let_go(self, clusters: Collection[str]) -> None:
        """Let go of leases."""
        self._answer()
        for name in clusters:
            holder, term = self.shared.leases[name]
            if holder == self.me:
                self.shared.leases[name] = (None, term)
            self.terms.pop(name, None)

    async def leave(self) -> None:
        """Let go of all, and be no copy any more."""
        await self.let_go(list(self.terms))
        self.shared.seen.pop(self.me, None)

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that has the lease of a cluster, or None."""
        self._answer()
        return self.shared.leases.get(cluster, (None, 0))[0]

    def _answer(self) -> None:
        if self.failure:
            raise StoreError(self.failure)
