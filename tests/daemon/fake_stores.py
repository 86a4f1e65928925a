"""In-memory state stores whose failures the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from autoscaler.core.model import ClusterState
from autoscaler.ports import (
    LEASE,
    AuditEntry,
    Copy,
    LeaseLost,
    Leases,
    Member,
    Record,
    StoredControl,
    StoreError,
)


class _Refusing:
    failure: str

    def _answer(self) -> None:
        if self.failure:
            raise StoreError(self.failure)


@dataclass
class FakeStore(_Refusing):
    """A state store in memory.

    Attributes:
        states: cluster -> the last saved state.
        records: every saved record, oldest first.
        members: fleet -> the last saved members.
        controls: all controls, oldest first.
        entries: the entries of the audit, oldest first.
        failure: the error text with which all calls fail, or empty.
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
        """The last saved state."""
        self._answer()
        return self.states.get(cluster)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Save the state and the record."""
        self._answer()
        self.states[cluster] = state
        self.journal.append(("save", cluster))
        if record is not None:
            self.records.append(record)

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Delete clusters whose last record is older."""
        self._answer()
        self.states = {
            name: state for name, state in self.states.items() if name in keep or state.at is None or state.at >= before
        }

    async def load_members(self, fleet: str) -> Mapping[str, Member]:
        """The last saved members."""
        self._answer()
        return self.members.get(fleet, {})

    async def save_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        """Save the members."""
        self._answer()
        self.members[fleet] = members

    async def forget_members(self, fleets: Collection[str]) -> None:
        """Delete the members of other fleets."""
        self._answer()
        self.members = {fleet: members for fleet, members in self.members.items() if fleet in fleets}

    async def load_controls(self) -> list[StoredControl]:
        """All added controls."""
        self._answer()
        return [*self.controls]

    async def add_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        """Save the control and the audit entry."""
        self._answer()
        stored = replace(stored, id=len(self.controls) + 1)
        self.controls.append(stored)
        self.entries.append(audit)
        return stored

    async def add_audit(self, entry: AuditEntry) -> None:
        """Save the entry."""
        self._answer()
        self.entries.append(entry)

    async def audit(self, limit: int, until: datetime | None = None) -> list[AuditEntry]:
        """The last entries of the audit, newest first."""
        self._answer()
        return [entry for entry in reversed(self.entries) if until is None or entry.at <= until][:limit]

    async def write(self, record: Record) -> None:
        """Accept a decision, as a sink does."""
        self.journal.append(("write", record.decision.cluster))


@dataclass
class FakeLeases:
    """The leases of several copies, in memory, as a shared store keeps them.

    Attributes:
        states: the store of the states, shared by all copies.
        seen: copy -> loop time of its last renewal.
        leases: cluster -> the copy that holds the lease, or None, and the term.
        taken: loop time, cluster and copy of every lease that was taken.
    """

    states: FakeStore = field(default_factory=FakeStore)
    seen: dict[Copy, float] = field(default_factory=dict)
    leases: dict[str, tuple[Copy | None, int]] = field(default_factory=dict)
    taken: list[tuple[float, str, Copy]] = field(default_factory=list)

    def live(self) -> set[Copy]:
        """The copies whose leases have not expired."""
        now = asyncio.get_running_loop().time()
        return {copy for copy, seen in self.seen.items() if now - seen <= LEASE}

    def delete_expired(self) -> None:
        """Delete the expired copies, and end their leases."""
        live = self.live()
        self.seen = {copy: seen for copy, seen in self.seen.items() if copy in live}
        for name, (holder, term) in self.leases.items():
            if holder not in live:
                self.leases[name] = (None, term)


@dataclass
class FakeSharedStore(_Refusing):
    """The store of one copy, with leases. All copies need the same `FakeLeases`.

    Attributes:
        failure: the error text with which all calls fail, or empty.
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
        """The state that any copy saved last."""
        self._answer()
        return await self.shared.states.load(cluster)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Save both, if this copy holds the lease."""
        self._answer()
        lease = (self.me, self.terms.get(cluster))
        if self.me not in self.shared.live() or self.shared.leases.get(cluster) != lease:
            raise LeaseLost(f"cluster {cluster!r} belongs to another copy of the daemon")
        await self.shared.states.save(cluster, state, record)

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Delete old clusters of any copy."""
        self._answer()
        await self.shared.states.forget_clusters(before, keep)

    async def write(self, record: Record) -> None:
        """Accept a decision, as a sink does."""
        await self.shared.states.write(record)

    async def renew(self, name: str, url: str) -> Leases:
        """Renew the registration of this copy."""
        self._answer()
        del name, url
        now = asyncio.get_running_loop().time()
        self.shared.delete_expired()
        self.shared.seen[self.me] = now
        self.terms = {name: term for name, (holder, term) in self.shared.leases.items() if holder == self.me}
        oldest = max(now - seen for seen in self.shared.seen.values())
        return Leases({copy.id: copy for copy in self.shared.seen}, dict(self.terms), oldest)

    async def take(self, clusters: Collection[str]) -> dict[str, int]:
        """Take the leases that no copy holds."""
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
        """Release leases."""
        self._answer()
        for name in clusters:
            holder, term = self.shared.leases[name]
            if holder == self.me:
                self.shared.leases[name] = (None, term)
            self.terms.pop(name, None)

    async def leave(self) -> None:
        """Release all leases, and remove this copy."""
        await self.let_go(list(self.terms))
        self.shared.seen.pop(self.me, None)

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that holds the lease of a cluster, or None."""
        self._answer()
        return self.shared.leases.get(cluster, (None, 0))[0]
