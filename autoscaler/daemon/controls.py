"""What people set for clusters, the controls: pauses, holds and limits, kept in the state store and known in memory.

What is stored is a list that only grows at its end. Of each kind the newest one that is for a cluster, that has not
expired and that is newer than the last resume for that cluster is in force. So one that expires gives way to an older
one that has not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache, partial

from autoscaler.core.explain import describe_control
from autoscaler.core.model import Control, ControlKind
from autoscaler.ports import AuditEntry, ControlStore, StoredControl, StoreError

log = logging.getLogger("autoscaler.daemon.controls")

RESUME = "resume"
"""The action that ends controls, beside the kinds of these."""

_MAX_KNOWN = 65_536
"""Clusters for which it is known which controls are for them."""


class Controls:
    """The controls that a daemon knows: as they were when it last read or wrote them."""

    def __init__(self, store: ControlStore, utc: Callable[[], datetime]) -> None:
        self._store = store
        self._utc = utc
        self._failure: str | None = None
        self._know(())

    async def load(self) -> None:
        """Read them. Raises StoreError."""
        self._know(await self._store.load_controls())

    async def refresh(self) -> None:
        """Read them again, as another daemon on the same store may have written some.

        While they cannot be read, those that are known stay in force; that is logged once.
        """
        before = self._stored
        try:
            found = await self._store.load_controls()
        except StoreError as error:
            if self._failure is None:
                log.error("manual controls cannot be read: the known ones stay in force", extra={"error": str(error)})  # noqa: TRY400 - it is complete
            self._failure = str(error)
            return
        if self._stored is before:  # else this daemon has added one meanwhile, which may not be among those
            self._know(found)
        if self._failure is not None:
            log.info("manual controls are read again")
            self._failure = None

    async def add(
        self,
        control: Control | None,
        clusters: Collection[str] = (),
        fleets: Collection[str] = (),
        *,
        by: str,
        reason: str | None = None,
        until: datetime | None = None,
    ) -> StoredControl:
        """Set a control, at the present time, and write it into the audit.

        Args:
            control: its `by`, `at`, `reason` and `until` are those given here. None: what was set before is at an end.
            clusters: names of clusters, or patterns of them.
            fleets: names of fleets, or patterns of them.
            by: who sets it.
            reason: why, or None.
            until: when it ends by itself; None: when it is resumed.

        Raises:
            StoreError: it cannot be stored, and nothing is set.
        """
        at = self._utc()
        if control is None:
            until = None
        else:
            control = replace(control, by=by, at=at, reason=reason, until=until)
        stored = StoredControl(
            clusters=tuple(clusters), fleets=tuple(fleets), control=control, by=by, at=at, until=until, reason=reason
        )
        entry = AuditEntry(
            at=at,
            by=by,
            action=RESUME if control is None else control.kind,
            scope=describe_scope(clusters, fleets),
            detail="" if control is None else describe_control(control, by=False),
            reason=reason,
        )
        stored = await self._store.add_control(stored, entry)
        gone = {*unneeded((*self._stored, stored), at)}
        self._know([each for each in (*self._stored, stored) if each.id not in gone])
        return stored

    def in_force(self, cluster: str, fleet: str | None, now: datetime) -> tuple[Control, ...]:
        """What is in force for a cluster now, one of a kind at most, in the order of the kinds.

        Args:
            cluster: its name.
            fleet: the name of the fleet that it is a member of, or None.
            now: the time.
        """
        return in_force(self._stored_for(cluster, fleet), now) if self._stored else ()

    def listing(self, now: datetime) -> tuple[StoredControl, ...]:
        """All pauses, holds and limits that have not expired or been replaced, oldest first; without resumes."""
        return tuple([each for each in self._stored if each.control is not None and not expired(each, now)])

    def _know(self, stored: Iterable[StoredControl]) -> None:
        self._stored = tuple(stored)
        self._stored_for = lru_cache(maxsize=_MAX_KNOWN)(partial(stored_for, self._stored))


def stored_for(stored: Sequence[StoredControl], cluster: str, fleet: str | None) -> tuple[StoredControl, ...]:
    """Those that are for a cluster, newest first, up to the last resume."""
    found = []
    for each in reversed(stored):
        if matches(each, cluster, fleet):
            if each.control is None:
                break
            found.append(each)
    return tuple(found)


def matches(stored: StoredControl, cluster: str, fleet: str | None) -> bool:
    """Whether it is for this cluster, of this fleet if it is a member of one."""
    return any(fnmatchcase(cluster, pattern) for pattern in stored.clusters) or (
        fleet is not None and any(fnmatchcase(fleet, pattern) for pattern in stored.fleets)
    )


def in_force(stored: Iterable[StoredControl], now: datetime) -> tuple[Control, ...]:
    """Of each kind the newest one of a cluster's `stored_for` that has not expired."""
    newest: dict[ControlKind, Control] = {}
    for each in stored:
        if each.control is not None and not expired(each, now):
            newest.setdefault(each.control.kind, each.control)
    return tuple([newest[kind] for kind in ControlKind if kind in newest])


def expired(stored: StoredControl, now: datetime) -> bool:
    """Whether it has ended by itself."""
    return stored.until is not None and stored.until <= now


def unneeded(stored: Sequence[StoredControl], now: datetime) -> list[int]:
    """The ids of those that can never be in force again, whatever is added: what is stored need not grow forever.

    They have expired, or a newer one of their kind or a resume is for at least the same clusters and time. A resume
    is needed for as long as there is something older.
    """
    kept: list[StoredControl] = []
    gone = []
    for each in reversed(stored):
        if expired(each, now) or any(_replaces(newer, each) for newer in kept):
            gone.append(each.id)
        else:
            kept.append(each)
    while kept and kept[-1].control is None:
        gone.append(kept.pop().id)
    return gone


def _replaces(newer: StoredControl, older: StoredControl) -> bool:
    same = newer.control is None or (older.control is not None and newer.control.kind is older.control.kind)
    longer = newer.until is None or (older.until is not None and newer.until >= older.until)
    return same and longer and {*newer.clusters} >= {*older.clusters} and {*newer.fleets} >= {*older.fleets}


def describe_scope(clusters: Collection[str], fleets: Collection[str]) -> str:
    """For which clusters and fleets something is, as the audit has it."""
    parts = [f"{what} {', '.join(names)}" for what, names in (("clusters", clusters), ("fleets", fleets)) if names]
    return "; ".join(parts)
