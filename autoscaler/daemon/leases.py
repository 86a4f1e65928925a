"""Leases: they decide which copy controls which cluster if several copies of the daemon share a state store.

Each cluster has a lease with a term, which increases each time a copy takes the lease. A copy renews all its leases
with one row; they expire together, by the clock of the store alone. Rendezvous hashing of the cluster names over the
living copies gives each copy its share: when a copy joins or leaves, no cluster moves between two other copies.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol
from uuid import UUID

from autoscaler.core.wording import first_of
from autoscaler.daemon.connections import format_error, sleep_until_stopped
from autoscaler.daemon.event_loop import Slices
from autoscaler.ports import LEASE, Copy, Leases, StoreError

log = logging.getLogger("autoscaler.daemon.leases")

RENEWAL = 3.0
"""Seconds between two renewals."""

POLL = 1.0
"""Seconds between two renewals while this copy has leases to take or to release."""

MARGIN = 6.0
"""Seconds before the earliest possible expiry from which nothing is scaled: calls to AWS are retried for up to 5 s."""

GRACE = 6.0
"""Seconds for which a copy whose own leases had expired takes no others."""

_AT_ONCE = 1000
"""Leases that one statement takes: the first clusters are already under control while further leases are taken."""

_MAX_NAMED = 10


class Ownership:
    """The clusters that this copy controls. This base class is for a single copy, which controls all of them.

    Attributes:
        copies: the living copies as of the last renewal, this one included; empty for a single copy.
        failure: why the leases cannot be renewed, or None.
        taken: how many leases this copy has taken since its start.
    """

    copies: Mapping[UUID, Copy] = MappingProxyType({})
    failure: str | None = None
    taken = 0

    @property
    def me(self) -> UUID | None:
        """The id of this copy; None for a single copy."""
        return None

    @property
    def owned(self) -> int:
        """How many leases this copy holds."""
        return 0

    def owns(self, cluster: str) -> bool:
        """Whether this copy controls the cluster."""
        del cluster
        return True

    def valid(self, cluster: str) -> bool:
        """Whether this copy certainly still controls the cluster. Check this directly before changing a target."""
        del cluster
        return True

    def shares(self, name: str) -> bool:
        """Whether this copy is responsible for something with this name that belongs to no cluster."""
        del name
        return True

    def doubt(self) -> None:
        """Check the leases of this copy at once, because the store has refused to save."""

    def start(self, controllers: Controllers, url: str) -> None:
        """Begin to take this copy's share. Other copies reach this copy at this URL."""

    async def stop(self) -> None:
        """Release the lease of every cluster as soon as its controller has ended."""

    def cancel(self) -> None:
        """Stop renewing, so that the leases expire."""

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that holds the lease of a cluster, or None. Raises StoreError."""
        del cluster
        return None


class LeaseStore(Protocol):
    """Stores the leases. All methods may raise StoreError, within a few seconds."""

    @property
    def copy(self) -> UUID:
        """The id of this copy."""
        ...

    async def renew(self, name: str, url: str) -> Leases:
        """Renew this copy's row. Returns the living copies and the leases of this copy."""
        ...

    async def take(self, clusters: Collection[str]) -> Mapping[str, int]:
        """Take the leases of these clusters that no copy holds. Returns the terms of those taken."""
        ...

    async def let_go(self, clusters: Collection[str]) -> None:
        """Release leases of this copy."""
        ...

    async def leave(self) -> None:
        """Release all leases and remove this copy's row."""
        ...

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that holds the lease of a cluster, or None."""
        ...


class Controllers(Protocol):
    """The controllers of this copy."""

    @property
    def wanted(self) -> Collection[str]:
        """The names of all configured clusters, whichever copy controls them."""
        ...

    @property
    def running(self) -> Collection[str]:
        """The names of the clusters with a controller here, including controllers that are ending."""
        ...

    async def follow(self) -> None:
        """Start controllers for the clusters whose leases this copy holds, and end the others."""
        ...


def share(name: str, copies: Iterable[UUID]) -> UUID:
    """The copy that has a name in its share, by rendezvous hashing. `copies` must not be empty."""
    text = name.encode(errors="surrogatepass")
    return max(copies, key=lambda copy: hashlib.blake2b(copy.bytes + text, digest_size=8).digest())


class Plan(NamedTuple):
    """The names of the clusters whose leases a copy should take and release."""

    take: frozenset[str]
    let_go: frozenset[str]


def plan(mine: Collection[str], owned: Collection[str]) -> Plan:
    """The leases to take and the leases to release.

    Args:
        mine: the clusters of this copy's share.
        owned: the clusters whose leases this copy holds.
    """
    return Plan(frozenset(mine) - frozenset(owned), frozenset(owned) - frozenset(mine))


def pause(leases: Leases, *, busy: bool) -> float:
    """Seconds until the next renewal: less while busy, and at most until another copy's leases may have expired."""
    return max(0.1, min(POLL if busy else RENEWAL, LEASE - leases.oldest + 0.1))


@dataclass(slots=True)
class _Shares:
    """A cache of the clusters in a copy's share, recalculated when the copies or the clusters change."""

    of: tuple[frozenset[UUID], frozenset[str]] | None = None
    mine: frozenset[str] = frozenset()

    async def update(self, me: UUID, copies: Iterable[UUID], clusters: Iterable[str]) -> frozenset[str]:
        of = (frozenset(copies), frozenset(clusters))
        if of != self.of:
            slices, mine = Slices(), set()
            for name in of[1]:
                await slices.turn()
                if me in of[0] and share(name, of[0]) == me:
                    mine.add(name)
            self.of, self.mine = of, frozenset(mine)
        return self.mine


class SharedOwnership(Ownership):
    """The leases of this copy among others.

    Args:
        store: stores the leases.
        name: the name of this copy, for people.
    """

    def __init__(self, store: LeaseStore, name: str) -> None:
        self._store = store
        self._name = name
        self._url = ""
        self._owned: set[str] = set()
        self._leaving: frozenset[str] = frozenset()
        self._renewed_at = -math.inf
        self._take_from = -math.inf
        self._shares = _Shares()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def me(self) -> UUID:
        """The id of this copy."""
        return self._store.copy

    @property
    def owned(self) -> int:
        """How many leases this copy holds."""
        return len(self._owned)

    def owns(self, cluster: str) -> bool:
        """Whether this copy controls the cluster."""
        return not self._stopping and cluster in self._owned and cluster not in self._leaving

    def valid(self, cluster: str) -> bool:
        """Whether no other copy can have taken the cluster yet.

        This uses the machine's monotonic clock, which continues while the process is stopped. It counts from the start
        of the last renewal, because the store may have renewed the leases at any time after that.
        """
        return cluster in self._owned and asyncio.get_running_loop().time() - self._renewed_at < LEASE - MARGIN

    def shares(self, name: str) -> bool:
        """Whether this copy is responsible for something with this name that belongs to no cluster."""
        return bool(self.copies) and share(name, self.copies) == self.me

    def doubt(self) -> None:
        """Renew at once, which shows which leases another copy has taken."""
        self._wake.set()

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that holds the lease of a cluster, or None. Raises StoreError."""
        return await self._store.owner(cluster)

    def start(self, controllers: Controllers, url: str) -> None:
        """Begin to take this copy's share. Other copies reach this copy at this URL."""
        self._url = url
        self._task = asyncio.create_task(self._run(controllers), name="leases")

    async def stop(self) -> None:
        """Release the lease of every cluster as soon as its controller has ended, and renew until the last one has."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def cancel(self) -> None:
        """Stop renewing, so that the leases expire."""
        for task in (self._task, self._following):
            if task is not None:
                task.cancel()

    async def _run(self, controllers: Controllers) -> None:
        ended = False
        while not ended:
            self._wake.clear()
            ended, seconds = await self._attempt(controllers)
            if not ended:
                await sleep_until_stopped(self._wake, seconds)

    async def _attempt(self, controllers: Controllers) -> tuple[bool, float]:
        """Run a round and log repeated failures once. Returns whether it was the last, and seconds until the next."""
        ended, seconds = False, POLL
        try:
            if self._stopping:
                await self._follow(controllers)  # even if the store fails
                ended = self._following is None and not controllers.running
            seconds = await self._round(controllers)
            if ended:
                await self._store.leave()
        except StoreError as error:
            # Leases that could not be released expire.
            if self.failure is None:
                log.error("cannot renew leases: nothing is scaled", extra={"error": str(error)})  # noqa: TRY400 - it is complete
            self.failure = str(error)
        except Exception as error:
            # A defect, of ours or of a plug-in being connected: the next round retries.
            if self.failure is None:
                log.exception("leases cannot be balanced")
            self.failure = format_error(error)
        else:
            # Only after a complete round: a failure in the middle of every round is logged once.
            if self.failure is not None:
                log.info("leases are renewed again")
                self.failure = None
        return ended, seconds

    async def _round(self, controllers: Controllers) -> float:
        """Renew, release leases outside our share, take those in our share. Returns seconds until the next round."""
        begun = asyncio.get_running_loop().time()
        leases = await self._store.renew(self._name, self._url)
        if -math.inf < self._renewed_at < begun - LEASE:
            # Most likely the store was unavailable for all copies: the others are about to renew as well.
            self._take_from = begun + GRACE
        self._renewed_at, self.copies = begun, leases.copies
        lost = self._owned - leases.terms.keys()
        if lost:
            log.warning("leases lost: expired, or taken by another copy of the daemon", extra=_named(lost))
        # This includes leases that we have taken without receiving the answer.
        self._owned = set(leases.terms)
        live = () if self._stopping else self.copies
        planned = plan(await self._shares.update(self.me, live, controllers.wanted), self._owned)
        self._leaving = planned.let_go
        await self._follow(controllers)
        # A controller ends between two ticks: in the middle of a scale call it must wait for the answer.
        idle = planned.let_go.difference(controllers.running)
        if idle:
            await self._store.let_go(idle)
            self._owned -= idle
            log.info("clusters handed over", extra=_named(idle))
        if begun >= self._take_from:
            await self._take(planned.take.difference(controllers.running), controllers)
        return pause(leases, busy=bool(planned.let_go - idle or planned.take - self._owned))

    async def _take(self, clusters: Collection[str], controllers: Controllers) -> None:
        names = sorted(clusters)
        taken: set[str] = set()
        for first in range(0, len(names), _AT_ONCE):
            if asyncio.get_running_loop().time() - self._renewed_at > RENEWAL:
                break  # our leases must not expire meanwhile: the others are taken after the next renewal
            found = await self._store.take(names[first : first + _AT_ONCE])
            taken.update(found)
            self._owned.update(found)
            self.taken += len(found)
            if found:
                await self._follow(controllers)
        if taken:
            log.info("clusters taken over", extra=_named(taken))

    async def _follow(self, controllers: Controllers) -> None:
        """Make the controllers match, but wait at most `RENEWAL`: a reload of thousands takes longer than a lease."""
        following = self._following or asyncio.create_task(controllers.follow(), name="controllers of leases")
        done, _ = await asyncio.wait((following,), timeout=RENEWAL)
        self._following = None if done else following
        if done:
            following.result()


def _named(clusters: Collection[str]) -> dict[str, object]:
    """The number of clusters and the first names, for a log line."""
    return {"clusters": len(clusters), "names": first_of(sorted(clusters), _MAX_NAMED)}
