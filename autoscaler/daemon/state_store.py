"""State and decisions in SQLite: persisted before the daemon acts on them, and available after a SIGKILL.

The database is in WAL mode with `synchronous=NORMAL`: killing the process loses no committed transaction; a power
failure may lose the last ones, but leaves the file intact. One thread writes all waiting saves in one transaction.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from autoscaler.core.model import ClusterState
from autoscaler.daemon.controls import unneeded
from autoscaler.daemon.stored import MAX_BYTES, PAGE, dump_id, dump_member, restore, restore_member
from autoscaler.daemon.write_batcher import WriteBatcher
from autoscaler.ports import MAX_AUDIT, AuditEntry, Member, Record, StoredControl, StoreError
from autoscaler.trace.codec import (
    dump_audit,
    dump_control,
    dump_record,
    dump_state,
    load_audit,
    load_control,
)

R = TypeVar("R")

log = logging.getLogger("autoscaler.daemon.state_store")

FILE = "state.sqlite3"
SCHEMA = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS cluster (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    state BLOB NOT NULL,
    past INTEGER NOT NULL,
    last INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS decision (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS member (
    fleet TEXT NOT NULL,
    id BLOB NOT NULL,
    found BLOB NOT NULL,
    PRIMARY KEY (fleet, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS control (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stored BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    entry BLOB NOT NULL
) STRICT;
"""

SPAN = 2**32
"""Decision n of cluster c has the id c * 2^32 + n, so that the decisions of a cluster are stored next to each other."""

_PRUNE_EVERY = 16

_FORGET_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class _Save:
    cluster: str
    state: bytes
    past: int
    at: float
    record: bytes | None


class SqliteStateStore:
    """The state store of the daemon. Open it with `open_state_store`.

    Attributes:
        failure: why the last save failed, or None.
        decisions: how many decisions of each cluster are kept.
    """

    def __init__(self, path: Path, decisions: int) -> None:
        self.path = path
        self.decisions = decisions
        self.failure: str | None = None
        self._connection: sqlite3.Connection
        self._lock = -1
        self._file: tuple[int, int] | None = None
        self._batcher: WriteBatcher[_Save] = WriteBatcher("state-store", self._commit)
        self._numbers: dict[str, tuple[int, int]] = {}
        self._members: dict[str, Mapping[str, Member]] = {}
        self._controls: Sequence[StoredControl] | None = None  # as they were last read or written

    async def load(self, cluster: str) -> ClusterState | None:
        """The last saved state with its past, or None. Raises StoreError."""
        return await self._read(lambda: _load(self._connection, cluster), f"the state of cluster {cluster!r}")

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Persist state and record together. Raises StoreError, and then neither is persisted."""
        save = _Save(
            cluster,
            dump_state(state),
            len(state.past),
            state.at.timestamp() if state.at is not None else 0.0,
            None if record is None else dump_record(record),
        )
        try:
            # Save a rescale at once: its scale call waits for the save.
            await self._batcher.put(save, at_once=record is not None and record.decision.rescale)
        except (sqlite3.Error, StoreError) as error:
            message = str(error) if isinstance(error, StoreError) else _message(error, self.path)
            if self.failure is None:
                log.error("cannot persist state", extra={"error": message})  # noqa: TRY400 - the message is complete
            self.failure = message
            raise StoreError(message) from error
        if self.failure is not None:
            log.info("state is persisted again", extra={"path": str(self.path)})
            self.failure = None

    async def pages(self, cluster: str, limit: int, until: datetime | None = None) -> AsyncGenerator[list[bytes], None]:
        """The last decisions of a cluster as stored lines, up to a time if one is given, newest first.

        They come page by page, because all of them may not fit into memory. Raises StoreError.
        """
        before = math.inf
        while limit > 0:
            page, before = await self._read(
                lambda limit=limit, before=before: _page(self._connection, cluster, limit, until, before),  # type: ignore[misc]
                f"the decisions of cluster {cluster!r}",
            )
            if not page:
                return
            yield page
            limit -= len(page)

    async def load_members(self, fleet: str) -> dict[str, Member]:
        """The members of a fleet that were last saved, by their ids. Raises StoreError."""
        return await self._read(lambda: _load_members(self._connection, fleet), f"the members of fleet {fleet!r}")

    async def save_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        """Persist all members of a fleet, but write only those that differ from the last call. Raises StoreError."""
        await self._read(lambda: self._write_members(fleet, members), f"the members of fleet {fleet!r}")

    async def forget_members(self, fleets: Collection[str]) -> None:
        """Delete the members of all fleets except these. Raises StoreError."""
        await self._read(lambda: self._delete_members(fleets), "the members of fleets")

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Delete state and decisions of all clusters whose last decision is older, except those named in `keep`.

        It deletes a few at a time, so that saves do not wait. Raises StoreError.
        """
        while await self._read(lambda: self._delete_clusters(before, keep), "the stored state of removed clusters"):
            pass

    async def load_controls(self) -> list[StoredControl]:
        """The controls, oldest first. Raises StoreError."""
        return list(await self._read(self._read_controls, "the manual controls"))

    async def add_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        """Persist control and audit entry together, and delete controls that are not needed any more.

        Raises:
            StoreError: neither is persisted.
        """
        return await self._read(lambda: self._write_control(stored, audit), "the manual controls")

    async def add_audit(self, entry: AuditEntry) -> None:
        """Persist an entry of the audit. Raises StoreError."""
        await self._read(lambda: self._write_audit(entry), "the audit")

    async def audit(self, limit: int, until: datetime | None = None) -> list[AuditEntry]:
        """The last entries of the audit, up to a time if one is given, newest first. Raises StoreError."""
        return await self._read(lambda: _load_audit(self._connection, limit, until), "the audit")

    async def open(self) -> None:
        """Open the file. Raises StoreError."""
        try:
            await self._batcher.call(self._open)
        except BaseException:
            await self._batcher.close(self._unlock)
            raise

    async def close(self) -> None:
        """Write waiting saves and close the file."""
        await self._batcher.close(self._connection.close)
        self._unlock()

    async def _read(self, read: Callable[[], R], what: str) -> R:
        with store_errors(self.path, what):
            return await self._batcher.call(read)

    def _open(self) -> None:
        # Release our own lock first: it would keep us from locking again.
        self._unlock()
        self._lock = _lock(self.path.parent)
        self._connection = _open(self.path)
        self._file = _identity(self.path)
        self._numbers.clear()
        self._members.clear()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _reopen_if_gone(self) -> None:
        """Reopen if our file was deleted or replaced: writes into the old file would be lost."""
        if self._file is not None and self._file == _identity(self.path):
            return
        if self._file is not None:
            log.error("the state file was deleted or replaced: opening it again", extra={"path": str(self.path)})
        self._file = None
        self._connection.close()
        self._open()
        if self._controls is None:
            return
        try:
            # Known controls are in force: the new file must neither end them nor give their ids to other controls.
            rows = [(each.id, dump_control(each)) for each in self._controls]
            with self._transaction() as connection:
                connection.execute("DELETE FROM control")
                connection.executemany("INSERT INTO control VALUES (?, ?)", rows)
        except BaseException:
            self._file = None  # the next call tries again
            raise

    def _read_controls(self) -> Sequence[StoredControl]:
        self._controls = _load_controls(self._connection)
        return self._controls

    def _commit(self, saves: Sequence[_Save]) -> None:
        self._reopen_if_gone()
        numbers: dict[str, tuple[int, int]] = {}
        with self._transaction():
            for save in saves:
                numbers[save.cluster] = self._write(save, numbers.get(save.cluster))
        self._numbers.update(numbers)

    def _write(self, save: _Save, known: tuple[int, int] | None) -> tuple[int, int]:
        connection = self._connection
        known = known or self._numbers.get(save.cluster)
        if known is None:
            known = connection.execute("SELECT id, last FROM cluster WHERE name = ?", (save.cluster,)).fetchone()
        if known is None:
            cursor = connection.execute(
                "INSERT INTO cluster (name, state, past, last) VALUES (?, ?, 0, 0)", (save.cluster, save.state)
            )
            known = (int(cursor.lastrowid or 0), 0)
        identity, number = known
        if save.record is not None:
            number += 1
            connection.execute(
                "INSERT INTO decision VALUES (?, ?, ?)", (identity * SPAN + number, save.at, save.record)
            )
            if number % _PRUNE_EVERY == 0:
                self._prune(identity * SPAN, identity * SPAN + number, save.past)
        connection.execute(
            "UPDATE cluster SET state = ?, past = ?, last = ? WHERE id = ?",
            (save.state, save.past, number, identity),
        )
        return identity, number

    def _write_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        self._reopen_if_gone()
        before = self._members.get(fleet)
        with self._transaction() as connection:
            if before is None:
                before = {}
                connection.execute("DELETE FROM member WHERE fleet = ?", (fleet,))
            connection.executemany(
                "DELETE FROM member WHERE fleet = ? AND id = ?",
                [(fleet, dump_id(key)) for key in before.keys() - members.keys()],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO member VALUES (?, ?, ?)",
                [
                    (fleet, dump_id(key), dump_member(member))
                    for key, member in members.items()
                    if before.get(key) != member
                ],
            )
        self._members[fleet] = members

    def _delete_members(self, fleets: Collection[str]) -> None:
        self._reopen_if_gone()
        with self._transaction() as connection:
            known = [fleet for (fleet,) in connection.execute("SELECT DISTINCT fleet FROM member")]
            gone = [fleet for fleet in known if fleet not in fleets]
            connection.executemany("DELETE FROM member WHERE fleet = ?", [(fleet,) for fleet in gone])
        for fleet in gone:
            self._members.pop(fleet, None)

    def _delete_clusters(self, before: datetime, keep: Collection[str]) -> bool:
        """Delete some clusters. Returns whether there may be more."""
        self._reopen_if_gone()
        with self._transaction() as connection:
            old = connection.execute(
                "SELECT cluster.id, name FROM cluster JOIN decision ON decision.id = cluster.id * ? + last "
                "WHERE at < ?",
                (SPAN, before.timestamp()),
            )
            gone = [row for row in old if row[1] not in keep][:_FORGET_AT_ONCE]
            for identity, name in gone:
                first = identity * SPAN
                connection.execute("DELETE FROM decision WHERE id BETWEEN ? AND ?", (first, first + SPAN - 1))
                connection.execute("DELETE FROM cluster WHERE id = ?", (identity,))
                self._numbers.pop(name, None)
        return len(gone) == _FORGET_AT_ONCE

    def _write_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        self._reopen_if_gone()
        with self._transaction() as connection:
            cursor = connection.execute("INSERT INTO control (stored) VALUES (?)", (dump_control(stored),))
            gone = unneeded(_load_controls(connection), stored.at)
            connection.executemany("DELETE FROM control WHERE id = ?", [(identity,) for identity in gone])
            _insert_audit(connection, audit)
        self._read_controls()
        return replace(stored, id=int(cursor.lastrowid or 0))

    def _write_audit(self, entry: AuditEntry) -> None:
        self._reopen_if_gone()
        with self._transaction() as connection:
            _insert_audit(connection, entry)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: either all writes inside take effect, or none."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _prune(self, first: int, last: int, past: int) -> None:
        """Delete the oldest decisions above the limits of number and size, but never the past of the state."""
        (large,) = self._connection.execute(
            "SELECT MAX(id) FROM (SELECT id, SUM(LENGTH(record)) OVER (ORDER BY id DESC) AS size "
            "FROM decision WHERE id BETWEEN ? AND ?) WHERE size > ?",
            (first, last, MAX_BYTES),
        ).fetchone()
        until = min(max(last - self.decisions, large or first), last - past)
        self._connection.execute("DELETE FROM decision WHERE id BETWEEN ? AND ?", (first, until))


@asynccontextmanager
async def open_state_store(directory: Path, *, decisions: int) -> AsyncIterator[SqliteStateStore]:
    """Open the state store in a directory, which is created if needed. One process at a time can use it.

    Raises:
        StoreError: the directory or the file cannot be used; the message says why and what to do.
    """
    store = SqliteStateStore(directory / FILE, decisions)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def open_alone(directory: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a directory, and lock out all daemons while it is open. Raises StoreError."""
    lock = _lock(directory)
    try:
        with closing(_open(directory / FILE)) as connection:
            yield connection
    finally:
        os.close(lock)


def _lock(directory: Path) -> int:
    """Lock the directory, which is created if needed, for this process."""
    lock = _open_lock(directory)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"{directory} cannot be locked: {error.strerror}") from error
            raise StoreError(
                f"{directory} is in use by another autoscaler (process {_owner(lock)}): stop that one, "
                "or give this one its own daemon.directory"
            ) from error
        _write_owner(lock, directory)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, or None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_lock(directory: Path) -> int:
    """Create the directory if needed, accessible to our user only, and open its lock file."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{directory} cannot be used for state: {error.strerror}") from error


def _write_owner(lock: int, directory: Path) -> None:
    """Write our process id into the lock file."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise StoreError(f"{directory} cannot be written: {error.strerror}") from error


def read_state(directory: Path, cluster: str) -> ClusterState | None:
    """The state that a daemon, running or not, has persisted in a directory, or None. It changes nothing.

    Raises:
        StoreError: the file exists, but cannot be read.
    """
    path = directory / FILE
    with store_errors(path, f"the state of cluster {cluster!r}"):
        try:
            path.stat()
        except FileNotFoundError:
            return None
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            # Version 0: the daemon was killed before it created its tables.
            return _load(connection, cluster) if _version(connection, path) else None


@contextmanager
def store_errors(path: Path, what: str) -> Iterator[None]:
    """Convert errors of the file, of SQLite and of stored values to StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreError(_message(error, path)) from error
    except ValueError as error:
        raise StoreError(f"{path}: {what} cannot be read: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    with store_errors(path, "the schema"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # One thread opens the connection; afterwards only the writer's thread uses it.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    _version(connection, path)
    connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0 if there are none yet. Raises StoreError if the version is not supported."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA):
        raise StoreError(
            f"{path} has schema {version}, expected {SCHEMA}: use the version that wrote it, or move the file away"
        )
    return version


def _load(connection: sqlite3.Connection, cluster: str) -> ClusterState | None:
    row = connection.execute("SELECT id, state, past, last FROM cluster WHERE name = ?", (cluster,)).fetchone()
    if row is None:
        return None
    identity, text, past, last = row
    rows = connection.execute(
        "SELECT record FROM decision WHERE id BETWEEN ? AND ? ORDER BY id",
        (identity * SPAN + last - past + 1, identity * SPAN + last),
    )
    return restore(text, (record for (record,) in rows))


def _load_members(connection: sqlite3.Connection, fleet: str) -> dict[str, Member]:
    found = {}
    for key, text in connection.execute("SELECT id, found FROM member WHERE fleet = ?", (fleet,)):
        member = restore_member(key, text)
        found[member.id] = member
    return found


def _load_controls(connection: sqlite3.Connection) -> list[StoredControl]:
    return [load_control(*row) for row in connection.execute("SELECT id, stored FROM control ORDER BY id")]


def _insert_audit(connection: sqlite3.Connection, entry: AuditEntry) -> None:
    cursor = connection.execute(
        "INSERT INTO audit (at, entry) VALUES (?, ?)", (entry.at.timestamp(), dump_audit(entry))
    )
    connection.execute("DELETE FROM audit WHERE id <= ?", ((cursor.lastrowid or 0) - MAX_AUDIT,))


def _load_audit(connection: sqlite3.Connection, limit: int, until: datetime | None) -> list[AuditEntry]:
    rows = connection.execute(
        "SELECT entry FROM audit WHERE at <= ? ORDER BY id DESC LIMIT ?",
        (math.inf if until is None else until.timestamp(), limit),
    )
    return [load_audit(entry) for (entry,) in rows]


def _page(
    connection: sqlite3.Connection, cluster: str, limit: int, until: datetime | None, before: float
) -> tuple[list[bytes], float]:
    """Decisions with an id below `before`, newest first, and the id of the last one."""
    rows = connection.execute(
        "SELECT decision.id, record "
        "FROM cluster JOIN decision ON decision.id BETWEEN cluster.id * ? AND cluster.id * ? + last "
        "WHERE name = ? AND at <= ? AND decision.id < ? ORDER BY decision.id DESC LIMIT ?",
        (SPAN, SPAN, cluster, math.inf if until is None else until.timestamp(), before, limit),
    )
    page: list[bytes] = []
    size = 0
    for identity, record in rows:
        page.append(record)
        size, before = size + len(record), identity
        if size >= PAGE:
            break
    return page, before


def _owner(lock: int) -> str:
    return os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"


def _message(error: sqlite3.Error, path: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return f"{path} cannot be written: the disk is full. Decisions are not acted on until there is space"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"{path} is damaged ({error}): stop the daemon and move the file away together with its -wal and -shm; "
            "it then starts without state, and scales down only after one stabilization window"
        )
    return f"{path} cannot be used: {error}"
