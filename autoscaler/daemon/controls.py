"""Manual controls of clusters (pauses, holds and limits), persisted in the state store and cached in memory.

New controls are only appended to the stored list. For each cluster and each kind, the newest control is in force that
applies to the cluster, has not expired and is newer than the cluster's last resume. When a control expires, an older
one that has not expired comes into force again.
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
"""The action that ends controls; the other actions are the kinds of controls."""

_MAX_KNOWN = 65_536
"""Clusters whose controls are cached."""


class Controls:
    """The controls that a daemon knows, as of its last read or write."""

    def __init__(self, store: ControlStore, utc: Callable[[], datetime]) -> None:
        self._store = store
        self._utc = utc
        self._failure: str | None = None
        self._know(())

    async def load(self) -> None:
        """Read the controls. Raises StoreError."""
        self._know(await self._store.load_controls())

    async def refresh(self) -> None:
        """Read the controls again, because another daemon on the same store may have written some.

        If they cannot be read, the known ones stay in force; that is logged once.
        """
        before = self._stored
        try:
            found = await self._store.load_controls()
        except StoreError as error:
            if self._failure is None:
                log.error("manual controls cannot be read: the known ones stay in force", extra={"error": str(error)})  # noqa: TRY400 - it is complete
            self._failure = str(error)
            return
        if self._stored is before:  # else this daemon has added a control meanwhile, which `found` may not contain
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
        """Set a control as of now, and write it into the audit.

        Args:
            control: the control; its `by`, `at`, `reason` and `until` are set here. None: a resume, which ends all
                earlier controls.
            clusters: names of clusters, or patterns of them.
            fleets: names of fleets, or patterns of them.
            by: who sets it.
            reason: why, or None.
            until: when it expires; None: it lasts until a resume.

        Raises:
            StoreError: the control cannot be stored; nothing is set.
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
        """The controls in force for a cluster, at most one of each kind, in the order of the kinds.

        Args:
            cluster: its name.
            fleet: the name of its fleet, or None.
            now: the time.
        """
        return in_force(self._stored_for(cluster, fleet), now) if self._stored else ()

    def listing(self, now: datetime) -> tuple[StoredControl, ...]:
        """All stored pauses, holds and limits that have not expired, oldest first; without resumes."""
        return tuple([each for each in self._stored if each.control is not None and not expired(each, now)])

    def _know(self, stored: Iterable[StoredControl]) -> None:
        self._stored = tuple(stored)
        self._stored_for = lru_cache(maxsize=_MAX_KNOWN)(partial(stored_for, self._stored))


def stored_for(stored: Sequence[StoredControl], cluster: str, fleet: str | None) -> tuple[StoredControl, ...]:
    """The controls that apply to a cluster, newest first, back to its last resume."""
    found = []
    for each in reversed(stored):
        if matches(each, cluster, fleet):
            if each.control is None:
                break
            found.append(each)
    return tuple(found)


def matches(stored: StoredControl, cluster: str, fleet: str | None) -> bool:
    """Whether a control applies to this cluster, directly or by its fleet."""
    return any(fnmatchcase(cluster, pattern) for pattern in stored.clusters) or (
        fleet is not None and any(fnmatchcase(fleet, pattern) for pattern in stored.fleets)
    )


def in_force(stored: Iterable[StoredControl], now: datetime) -> tuple[Control, ...]:
    """The newest control of each kind that has not expired, from a cluster's `stored_for`."""
    newest: dict[ControlKind, Control] = {}
    for each in stored:
        if each.control is not None and not expired(each, now):
            newest.setdefault(each.control.kind, each.control)
    return tuple([newest[kind] for kind in ControlKind if kind in newest])


def expired(stored: StoredControl, now: datetime) -> bool:
    """Whether a control has expired."""
    return stored.until is not None and stored.until <= now


def unneeded(stored: Sequence[StoredControl], now: datetime) -> list[int]:
    """The ids of controls that can never be in force again, whatever is added. The store may delete them.

    They have expired, or a newer control of their kind, or a resume, covers at least the same clusters and time.
    A resume is needed for as long as an older control remains.
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
    """The clusters and fleets to which an action applies, as text for the audit."""
    parts = [f"{what} {', '.join(names)}" for what, names in (("clusters", clusters), ("fleets", fleets)) if names]
    return "; ".join(parts)
