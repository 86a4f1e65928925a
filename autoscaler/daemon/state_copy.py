"""Copies the whole content of one state store into another, empty one: a file, or PostgreSQL.

No daemon may use either store meanwhile. Rows are copied one by one, so that memory does not grow with their number.
The target gets all rows or none.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autoscaler.daemon.postgres_connection import Database
from autoscaler.daemon.postgres_store import NoTablesError, PostgresStateStore
from autoscaler.daemon.state_store import FILE, SPAN, open_alone, store_errors
from autoscaler.ports import LEASE, StoreError

if TYPE_CHECKING:
    from psycopg import Connection

TABLES = ("cluster", "decision", "member", "control", "audit")
"""The tables that are copied, in this order. Leases are not copied."""

_AT_ONCE = 500

Row = tuple[Any, ...]
"""A row as in SQLite, except for decisions: the cluster's name, the number, the time in seconds, and the record."""

_Side: TypeAlias = "_Sqlite | _Postgres"
"""One of the two stores."""


def copy_state(source: str, target: str) -> Mapping[str, int]:
    """Copy everything. Source and target are directories or PostgreSQL URLs. Returns the number of rows per table.

    Raises:
        StoreError: one of them cannot be used, or is in use; the source has no state, or the target has one.
    """
    counts = dict.fromkeys(TABLES, 0)

    def counted(table: str, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            counts[table] += 1
            yield row

    with _opened(source, exists=True) as old, _opened(target, exists=False) as new:
        if all(next(new.rows(table), None) is None for table in TABLES):
            for table in TABLES:
                new.write(table, counted(table, old.rows(table)))
            new.finish()
            return counts
    raise StoreError(f"{_shown(target)} has a state already: name an empty database or another directory")


def is_database(place: str) -> bool:
    """Whether a place is a URL, not a directory."""
    return place.startswith(("postgresql://", "postgres://"))


def _shown(place: str) -> str:
    return Database(place).place if is_database(place) else place


def _opened(place: str, *, exists: bool) -> AbstractContextManager[_Side]:
    return _database(place, exists=exists) if is_database(place) else _directory(Path(place), exists=exists)


@contextmanager
def _directory(directory: Path, *, exists: bool) -> Iterator[_Side]:
    if exists and not (directory / FILE).exists():
        raise StoreError(f"{directory} has no state: there is no {FILE} in it")
    with open_alone(directory) as connection, store_errors(directory / FILE, "the state"):
        yield _Sqlite(connection)


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("BEGIN IMMEDIATE")

    def rows(self, table: str) -> Iterator[Row]:
        return self._connection.execute(
            {
                "cluster": "SELECT name, state, past, last FROM cluster",
                "decision": "SELECT name, decision.id - cluster.id * :span, at, record FROM cluster JOIN decision "
                "ON decision.id BETWEEN cluster.id * :span AND cluster.id * :span + last",
                "member": "SELECT fleet, id, found FROM member",
                "control": "SELECT id, stored FROM control",
                "audit": "SELECT id, at, entry FROM audit",
            }[table],
            {"span": SPAN},
        )

    def write(self, table: str, rows: Iterable[Row]) -> None:
        if table == "decision":
            ids = dict(self._connection.execute("SELECT name, id FROM cluster"))
            rows = ((ids[name] * SPAN + number, at, record) for name, number, at, record in rows)
        self._connection.executemany(
            {
                "cluster": "INSERT INTO cluster (name, state, past, last) VALUES (?, ?, ?, ?)",
                "decision": "INSERT INTO decision VALUES (?, ?, ?)",
                "member": "INSERT INTO member VALUES (?, ?, ?)",
                "control": "INSERT INTO control VALUES (?, ?)",
                "audit": "INSERT INTO audit VALUES (?, ?, ?)",
            }[table],
            rows,
        )

    def finish(self) -> None:
        self._connection.execute("COMMIT")


@contextmanager
def _database(url: str, *, exists: bool) -> Iterator[_Side]:
    database = Database(url)
    asyncio.run(_prepared(url, exists=exists))
    try:
        with database.connect_for_long() as connection:
            query = "SELECT name FROM copy WHERE seen > clock_timestamp() - %s * interval '1 s'"
            running = sorted(name for (name,) in connection.execute(query, (LEASE,)))
            if not running:
                yield _Postgres(connection)
            connection.rollback()  # undoes everything unless `finish` has committed it
    except Exception as error:
        if not database.is_error(error):
            raise
        raise StoreError(database.message(error)) from error
    if running:
        raise StoreError(f"{database.place} is in use by {', '.join(running)}: stop all copies first")


async def _prepared(url: str, *, exists: bool) -> None:
    store = PostgresStateStore(url, 1, create=not exists)
    try:
        await store.open()
        if store.failure is not None:
            raise StoreError(store.failure)
    except NoTablesError as error:
        raise StoreError(f"{store.place} has no state") from error
    finally:
        await store.close()


class _Postgres:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        # This gives a consistent read, and prevents a daemon that starts from writing meanwhile.
        connection.execute("LOCK TABLE cluster IN SHARE ROW EXCLUSIVE MODE")

    def rows(self, table: str) -> Iterator[Row]:
        with self._connection.cursor(f"rows_of_{table}", binary=True) as cursor:
            cursor.execute(
                {
                    "cluster": "SELECT name, state, past, last FROM cluster",
                    "decision": "SELECT cluster, number, extract(epoch FROM at)::float8, record FROM decision "
                    "ORDER BY cluster, number",
                    "member": "SELECT fleet, id, found FROM member",
                    "control": "SELECT id, stored FROM control",
                    "audit": "SELECT id, extract(epoch FROM at)::float8, entry FROM audit",
                }[table]
            )
            while some := cursor.fetchmany(_AT_ONCE):
                yield from some

    def write(self, table: str, rows: Iterable[Row]) -> None:
        columns, types = {
            "cluster": ("name, state, past, last, attempt, first, bytes", "text bytea int4 int8 int8 int8 int8"),
            "decision": ("cluster, number, at, record", "text int8 timestamptz bytea"),
            "member": ("fleet, id, found", "text bytea bytea"),
            "control": ("id, stored", "int8 bytea"),
            "audit": ("id, at, entry", "int8 timestamptz bytea"),
        }[table]
        at = columns.split(", ").index("at") if "at" in columns.split(", ") else None
        with self._connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types.split())
            for row in rows:
                values = [*row, 0, 1, 0] if table == "cluster" else list(row)
                if at is not None:
                    values[at] = datetime.fromtimestamp(values[at], UTC)
                copy.write_row(values)

    def finish(self) -> None:
        self._connection.execute(
            "UPDATE cluster SET first = sums.first, bytes = sums.bytes FROM (SELECT cluster, min(number) AS first, "
            "sum(octet_length(record)) AS bytes FROM decision GROUP BY cluster) AS sums WHERE sums.cluster = name"
        )
        set_next = "SELECT setval(pg_get_serial_sequence('%s', 'id'), max(id)) FROM %s HAVING max(id) > 0"
        for table in ("control", "audit"):
            self._connection.execute(set_next % (table, table))
        self._connection.commit()
        self._connection.set_autocommit(True)
        # Without this, the planner would use the statistics of empty tables.
        self._connection.execute("ANALYZE cluster, decision, member")
