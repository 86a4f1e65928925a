"""State and decisions in PostgreSQL, which several copies of the daemon may share.

All waiting saves are written by one statement, which is a transaction of its own. With leases it checks, holding the
rows of the leases, that each cluster still belongs to this copy: see docs/adr/0019-a-save-checks-its-term.md.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from autoscaler.core.model import ClusterState
from autoscaler.daemon.postgres_connection import NAMESPACE, Database, Link
from autoscaler.daemon.stored import MAX_BYTES, PAGE, dump_id, dump_member, restore, restore_member
from autoscaler.daemon.write_batcher import Batches
from autoscaler.ports import LEASE, Copy, LeaseLost, Leases, Member, Record, StoreError
from autoscaler.trace.codec import dump_record, dump_state, load_record

if TYPE_CHECKING:
    from psycopg import AsyncConnection

log = logging.getLogger("autoscaler.daemon.postgres_store")

SCHEMA = 1

_TABLES = """
CREATE TABLE version (version integer NOT NULL);
CREATE TABLE cluster (
    name text PRIMARY KEY,
    state bytea NOT NULL,
    past integer NOT NULL,
    attempt bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.2);
CREATE TABLE decision (
    cluster text NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (cluster, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE member (
    fleet text NOT NULL,
    id bytea NOT NULL,
    found bytea NOT NULL,
    PRIMARY KEY (fleet, id)
);
CREATE TABLE copy (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    url text NOT NULL,
    seen timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE lease (
    cluster text PRIMARY KEY,
    copy uuid,
    term bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX lease_copy ON lease (copy);
"""
"""Each tick updates a row of `cluster`: half of each page is free for its next version, so that no index changes.

`attempt` rises with each save: one that was given up, and is carried out by the server later, changes nothing.
`first` and `last` are the numbers of the decisions that are kept, `bytes` is what they take.
"""

_LOCK = 0x6175746F  # "auto"
"""Of the transactions that create tables, and the first half of the lock of a fleet's members."""

_PRUNE_EVERY = 16

_TOGETHER = 500
"""Saves, or clusters that are loaded, in one statement."""

_PER_PAGE = 100

_GIVEN = """
WITH given AS (
    SELECT * FROM unnest(
        %(names)b::text[], %(states)b::bytea[], %(pasts)b::bigint[], %(attempts)b::bigint[], %(numbers)b::bigint[],
        %(ats)b::timestamptz[], %(records)b::bytea[], %(terms)b::bigint[]
    ) AS given (name, state, past, attempt, number, at, record, term)
), ours AS ({ours}), saved AS (
    INSERT INTO cluster AS kept (name, state, past, attempt, first, last, bytes)
    SELECT name, state, past, attempt, 1, number, coalesce(octet_length(record), 0)
    FROM given JOIN ours USING (name) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
        state = excluded.state, past = excluded.past, attempt = excluded.attempt, last = excluded.last,
        bytes = kept.bytes + excluded.bytes
    WHERE kept.attempt < excluded.attempt
    RETURNING name
), added AS (
    INSERT INTO decision (cluster, number, at, record)
    SELECT name, number, at, record FROM given JOIN saved USING (name) WHERE record IS NOT NULL
    ON CONFLICT (cluster, number) DO UPDATE SET at = excluded.at, record = excluded.record
)
SELECT name, saved.name IS NOT NULL FROM ours LEFT JOIN saved USING (name)
"""

_SAVE = _GIVEN.format(ours="SELECT name FROM given")

_SAVE_OURS = _GIVEN.format(
    ours="""
    SELECT given.name FROM given
    JOIN lease ON lease.cluster = given.name AND lease.term = given.term
    JOIN copy ON copy.id = lease.copy
    WHERE lease.copy = %(copy)s AND copy.seen > clock_timestamp() - %(lease)s * interval '1 s'
    ORDER BY given.name FOR SHARE OF lease
"""
)
"""A lease that is being taken is waited for, and not ours then; one that is ours stays so until this has ended."""

_LOAD = """
SELECT name, state, past, attempt, last, ARRAY(
    SELECT record FROM decision
    WHERE cluster = name AND number > last - past AND number <= last ORDER BY number
) FROM cluster WHERE name = ANY(%s)
"""

_PRUNE = """
WITH due AS (
    SELECT name, first, least(
        greatest(last - %(keep)s, CASE WHEN bytes > %(bytes)s THEN (
            SELECT max(number) FROM (
                SELECT number, sum(octet_length(record)) OVER (ORDER BY number DESC) AS size
                FROM decision WHERE cluster = name
            ) AS sizes WHERE size > %(bytes)s
        ) END),
        last - past
    ) AS until
    FROM cluster WHERE name = ANY(%(names)s)
), gone AS (
    DELETE FROM decision USING due WHERE cluster = name AND number BETWEEN first AND until
    RETURNING cluster, octet_length(record) AS size
)
UPDATE cluster SET first = until + 1, bytes = bytes - size
FROM due JOIN (SELECT cluster, sum(size) AS size FROM gone GROUP BY cluster) AS sums ON sums.cluster = due.name
WHERE cluster.name = due.name
"""

_READ = """
SELECT number, record FROM (
    SELECT number, record, sum(octet_length(record)) OVER (ORDER BY number DESC) - octet_length(record) AS before
    FROM (
        SELECT number, record FROM decision
        WHERE cluster = %(cluster)s AND number < %(below)s AND at <= %(until)s ORDER BY number DESC LIMIT %(limit)s
    ) AS newest
) AS sized WHERE before < %(page)s ORDER BY number DESC
"""

_BURY = """
WITH gone AS (DELETE FROM copy WHERE seen <= clock_timestamp() - %(lease)s * interval '1 s' RETURNING id)
UPDATE lease SET copy = NULL FROM gone WHERE lease.copy = gone.id
"""
"""A copy that renews at the same moment either is in time, or finds its row gone: it has nothing then."""

_RENEW = """
INSERT INTO copy (id, name, url, seen) VALUES (%s, %s, %s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET name = excluded.name, url = excluded.url, seen = clock_timestamp()
"""

_COPIES = """
SELECT id, name, url, greatest(0, extract(epoch FROM clock_timestamp() - seen))::float FROM copy
"""

_TAKE = """
WITH free AS (
    SELECT cluster FROM lease WHERE cluster = ANY(%(names)s) AND copy IS NULL
    ORDER BY cluster FOR UPDATE SKIP LOCKED
)
UPDATE lease SET copy = %(copy)s, term = term + 1 FROM free WHERE lease.cluster = free.cluster
    AND EXISTS (SELECT FROM copy WHERE id = %(copy)s)
RETURNING lease.cluster, term
"""

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class NoTablesError(StoreError):
    """There are no tables, and none may be created."""


@dataclass(slots=True)
class _Save:
    cluster: str
    state: bytes
    past: int
    at: datetime
    record: bytes | None
    error: StoreError | None = None


@dataclass(slots=True)
class _Load:
    cluster: str
    state: ClusterState | None = None
    error: StoreError | None = None


@dataclass(slots=True)
class _Numbers:
    """What the store knows of a cluster: the last attempt to save it, and the number of its last decision."""

    attempt: int
    last: int


class PostgresStateStore:
    """The state store of daemons that share one. Open it with `open_postgres_store`.

    Attributes:
        copy: the id of this copy.
        place: where the database is, without user and password.
        failure: why the last save or renewal failed, or None.
        decisions: how many decisions of each cluster are kept.
    """

    def __init__(self, url: str, decisions: int, *, leases: bool = False, create: bool = True) -> None:
        """Raises StoreError when psycopg is not installed or the URL is none.

        Args:
            url: `postgresql://USER:PASSWORD@HOST/DATABASE`.
            decisions: how many decisions of each cluster are kept.
            leases: whether a cluster is saved only under a lease that was taken before.
            create: whether tables that are not there are created.
        """
        self.copy: UUID = uuid4()
        self.failure: str | None = None
        self.decisions = decisions
        self._database = Database(url)
        self.place = self._database.place
        self._leased = leases
        self._create = create
        self._prepared = False
        self._terms: dict[str, int] = {}
        self._numbers: dict[str, _Numbers] = {}
        self._writer = Link(self._database, "writer", self._prepare)
        self._reader = Link(self._database, "reader", self._prepare)
        self._renewer = Link(self._database, "leases", self._prepare)
        self._saves: Batches[_Save] = Batches(self._save_all)
        self._loads: Batches[_Load] = Batches(self._load_all)

    async def load(self, cluster: str) -> ClusterState | None:
        """The state last saved, its past included, or None. Raises StoreError."""
        load = _Load(cluster)
        await self._loads.put(load)
        if load.error is not None:
            raise load.error
        return load.state

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Persist state and record together.

        Raises:
            LeaseLost: the cluster does not belong to this copy; nothing is persisted.
            StoreError: they may have been persisted nevertheless; the next save of the cluster replaces both.
        """
        save = _Save(
            cluster,
            dump_state(state),
            len(state.past),
            state.at or _LONG_AGO,
            None if record is None else dump_record(record),
        )
        await self._saves.put(save)
        if save.error is not None:
            raise save.error

    async def records(self, cluster: str, limit: int, until: datetime | None = None) -> list[Record]:
        """The last decisions of a cluster, up to a time if one is given, newest first. Raises StoreError."""
        try:
            return [load_record(text) async for page in self.pages(cluster, limit, until) for text in page]
        except ValueError as error:
            raise self._unreadable(f"the decisions of cluster {cluster!r}", error) from error

    async def pages(self, cluster: str, limit: int, until: datetime | None = None) -> AsyncGenerator[list[bytes], None]:
        """Like `records`, as they are stored and some at a time: what all of them take may be more than there is."""
        below = 2**63 - 1
        while limit > 0:
            values = {
                "cluster": cluster,
                "below": below,
                "until": until or datetime.max.replace(tzinfo=UTC),
                "limit": min(limit, _PER_PAGE),
                "page": PAGE,
            }
            rows = await self._reader.use(lambda connection, values=values: _rows(connection, _READ, values))  # type: ignore[misc]
            if not rows:
                return
            yield [record for _, record in rows]
            below = rows[-1][0]
            limit -= len(rows)

    async def load_members(self, fleet: str) -> dict[str, Member]:
        """The members of a fleet that were last saved, by their ids. Raises StoreError."""
        query = "SELECT id, found FROM member WHERE fleet = %s"
        rows = await self._reader.use(lambda connection: _rows(connection, query, (fleet,)))
        try:
            members = [restore_member(key, found) for key, found in rows]
        except ValueError as error:
            raise self._unreadable(f"the members of fleet {fleet!r}", error) from error
        return {member.id: member for member in members}

    async def save_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        """Persist all members of a fleet. Only what differs from what is stored is written. Raises StoreError."""
        found = await asyncio.to_thread(
            lambda: [(dump_id(key), dump_member(member)) for key, member in members.items()]
        )
        keys, values = [key for key, _ in found], [value for _, value in found]

        async def write(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                # Other copies may write the same members: one after the other.
                await connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, fleet))
                await connection.execute(
                    "DELETE FROM member WHERE fleet = %b AND NOT EXISTS "
                    "(SELECT FROM unnest(%b::bytea[]) AS found (key) WHERE key = id)",
                    (fleet, keys),
                )
                await connection.execute(
                    "INSERT INTO member AS kept SELECT %b, * FROM unnest(%b::bytea[], %b::bytea[]) "
                    "ON CONFLICT (fleet, id) DO UPDATE SET found = excluded.found WHERE kept.found <> excluded.found",
                    (fleet, keys, values),
                )

        await self._writer.use(write)

    async def forget_members(self, fleets: Collection[str]) -> None:
        """Delete the members of all fleets but these. Raises StoreError."""
        query = "DELETE FROM member WHERE fleet <> ALL(%s)"
        await self._writer.use(lambda connection: connection.execute(query, (list(fleets),)))

    async def renew(self, name: str, url: str) -> Leases:
        """Prolong all leases of this copy to `LEASE` from now on, and end those of copies that were not in time.

        If this copy is late itself it has none from then on. Renew before the first lease is taken.

        Args:
            name: of this copy, for people.
            url: where other copies reach it.

        Raises:
            StoreError: it is not known whether they were prolonged.
        """

        async def write(connection: AsyncConnection[Any]) -> Leases:
            async with connection.transaction():
                await connection.execute(_BURY, {"lease": LEASE})
                await connection.execute(_RENEW, (self.copy, name, url))
                copies = await _rows(connection, _COPIES, ())
                terms = await _rows(connection, "SELECT cluster, term FROM lease WHERE copy = %s", (self.copy,))
            found = {key: Copy(key, name, url) for key, name, url, _ in copies}
            return Leases(found, dict(terms), max(age for *_, age in copies))

        with self._told():
            leases = await self._renewer.use(write)
        self._set_terms(leases.terms)
        return leases

    async def take(self, clusters: Collection[str]) -> dict[str, int]:
        """Take the leases of those of the clusters that belong to no copy. Returns their terms, which are new.

        Raises:
            StoreError: it is not known whether they were taken; the next renewal tells.
        """
        names = sorted(clusters)

        async def write(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            async with connection.transaction():
                await connection.execute(
                    "INSERT INTO lease SELECT name, NULL, 0 FROM unnest(%s::text[]) AS given (name) "
                    "WHERE NOT EXISTS (SELECT FROM lease WHERE cluster = name) ON CONFLICT DO NOTHING",
                    (names,),
                )
                return await _rows(connection, _TAKE, {"names": names, "copy": self.copy})

        taken: dict[str, int] = dict(await self._renewer.use(write))
        self._set_terms(self._terms | taken)
        return taken

    async def let_go(self, clusters: Collection[str]) -> None:
        """Give up the leases of these clusters, none of which may be being saved. Raises StoreError."""
        names = sorted(clusters)
        self._set_terms({name: term for name, term in self._terms.items() if name not in clusters})
        query = "UPDATE lease SET copy = NULL WHERE copy = %s AND cluster = ANY(%s)"
        await self._renewer.use(lambda connection: connection.execute(query, (self.copy, names)))

    async def leave(self) -> None:
        """Give up all leases, and be no longer among the copies that are alive. Raises StoreError."""

        async def write(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute("DELETE FROM copy WHERE id = %s", (self.copy,))
                await connection.execute("UPDATE lease SET copy = NULL WHERE copy = %s", (self.copy,))

        self._set_terms({})
        await self._renewer.use(write)

    async def owner(self, cluster: str) -> Copy | None:
        """The copy that a cluster belongs to, or None. Raises StoreError."""
        query = (
            "SELECT id, name, url FROM lease JOIN copy ON copy.id = lease.copy WHERE cluster = %s "
            "AND seen > clock_timestamp() - %s * interval '1 s'"
        )
        rows = await self._reader.use(lambda connection: _rows(connection, query, (cluster, LEASE)))
        return Copy(*rows[0]) if rows else None

    async def open(self) -> None:
        """Try to connect, and create the tables. A database that does not answer now may do so later.

        Raises:
            StoreError: it refuses, or its tables are of another version.
        """
        try:
            await self._writer.use(lambda connection: connection.execute("SELECT 1"))
        except StoreError as error:
            # Without a cause it is ours: the tables are of another version.
            if error.__cause__ is None or self._database.refuses(error.__cause__):
                raise
            self._fail(error)

    async def close(self) -> None:
        """Persist what waits, and close the connections."""
        await self._saves.drain()
        for link in (self._writer, self._reader, self._renewer):
            await link.close()

    async def _save_all(self, saves: Sequence[_Save]) -> None:
        for together in _distinct(saves):
            ours = []
            for save in together:
                if self._leased and save.cluster not in self._terms:
                    save.error = _lost(save.cluster)
                else:
                    ours.append(save)
            if not ours:
                continue
            try:
                with self._told():
                    await self._writer.use(lambda connection, ours=ours: self._write(connection, ours))  # type: ignore[misc]
            except StoreError as error:
                for save in ours:
                    save.error = error

    async def _write(self, connection: AsyncConnection[Any], saves: Sequence[_Save]) -> None:
        unknown = [save.cluster for save in saves if save.cluster not in self._numbers]
        if unknown:
            query = "SELECT name, attempt, last FROM cluster WHERE name = ANY(%s)"
            stored = {name: _Numbers(*rest) for name, *rest in await _rows(connection, query, (unknown,))}
            self._numbers |= {name: stored.get(name) or _Numbers(0, 0) for name in unknown}
        known = [self._numbers[save.cluster] for save in saves]
        for numbers in known:
            numbers.attempt += 1
        last = [numbers.last + (save.record is not None) for save, numbers in zip(saves, known, strict=True)]
        names = [save.cluster for save in saves]
        values = {
            "names": names,
            "states": [save.state for save in saves],
            "pasts": [save.past for save in saves],
            "attempts": [numbers.attempt for numbers in known],
            "numbers": last,
            "ats": [save.at for save in saves],
            "records": [save.record for save in saves],
            "terms": [self._terms.get(name, 0) for name in names],
            "copy": self.copy,
            "lease": LEASE,
        }
        outcome = dict(await _rows(connection, _SAVE_OURS if self._leased else _SAVE, values))
        due = []
        for save, numbers, number in zip(saves, known, last, strict=True):
            if outcome.get(save.cluster):
                numbers.last = number
                if save.record is not None and (number + zlib.crc32(save.cluster.encode())) % _PRUNE_EVERY == 0:
                    due.append(save.cluster)
                continue
            self._numbers.pop(save.cluster, None)
            if save.cluster in outcome:
                save.error = StoreError(
                    f"cluster {save.cluster!r} was saved by another autoscaler: give each its own database"
                )
            else:
                self._terms.pop(save.cluster, None)
                save.error = _lost(save.cluster)
        if due:
            await connection.execute(_PRUNE, {"names": due, "keep": self.decisions, "bytes": MAX_BYTES})

    async def _load_all(self, loads: Sequence[_Load]) -> None:
        for start in range(0, len(loads), _TOGETHER):
            some = loads[start : start + _TOGETHER]
            names = [load.cluster for load in some]
            try:
                rows = await self._reader.use(lambda connection, names=names: _rows(connection, _LOAD, (names,)))  # type: ignore[misc]
            except StoreError as error:
                for load in some:
                    load.error = error
                continue
            found = {name: (state, records) for name, state, _, _, _, records in rows}
            self._numbers |= {name: _Numbers(attempt, last) for name, _, _, attempt, last, _ in rows}
            # In a thread: it takes milliseconds for each.
            await asyncio.to_thread(self._restore, some, found)

    def _restore(self, loads: Sequence[_Load], found: Mapping[str, tuple[bytes, list[bytes]]]) -> None:
        for load in loads:
            if load.cluster not in found:
                continue
            try:
                load.state = restore(*found[load.cluster])
            except ValueError as error:
                load.error = self._unreadable(f"the state of cluster {load.cluster!r}", error)

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        """Create the tables if there are none. Raises StoreError when they are of another version."""
        if self._prepared:
            return
        async with connection.transaction():
            # Several copies may start at once.
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            ((schema, table),) = await _rows(
                connection,
                "SELECT to_regnamespace(%s)::text, to_regclass(%s)::text",
                (NAMESPACE, f"{NAMESPACE}.version"),
            )
            if table is None:
                if not self._create:
                    raise NoTablesError(f"{self.place} has no state yet")
                if schema is None:
                    await connection.execute(f"CREATE SCHEMA {NAMESPACE}")
                await connection.execute(_TABLES)
                await connection.execute("INSERT INTO version VALUES (%s)", (SCHEMA,))
            else:
                ((version,),) = await _rows(connection, "SELECT version FROM version", ())
                if version != SCHEMA:
                    raise StoreError(
                        f"{self.place} has schema {version}, expected {SCHEMA}: use the version that wrote it, "
                        "or another database"
                    )
        self._prepared = True

    def _set_terms(self, terms: Mapping[str, int]) -> None:
        """What another copy may have saved since is not known any more."""
        for name in {*self._terms, *terms}:
            if self._terms.get(name) != terms.get(name):
                self._numbers.pop(name, None)
        self._terms = dict(terms)

    def _unreadable(self, what: str, error: ValueError) -> StoreError:
        return StoreError(f"{self.place}: {what} cannot be read: {error}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Log when it fails first, and when it works again."""
        try:
            yield
        except StoreError as error:
            self._fail(error)
            raise
        if self.failure is not None:
            log.info("state is persisted again", extra={"database": self.place})
            self.failure = None

    def _fail(self, error: StoreError) -> None:
        if self.failure is None:
            log.error("cannot persist state", extra={"error": str(error)})
        self.failure = str(error)


@asynccontextmanager
async def open_postgres_store(url: str, *, decisions: int, leases: bool = False) -> AsyncIterator[PostgresStateStore]:
    """Open the state store in a database, in which its tables are created if needed.

    Raises:
        StoreError: it refuses; the message says why and what to do. One that does not answer yet may do so later.
    """
    store = PostgresStateStore(url, decisions, leases=leases)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def read_postgres_states(url: str, clusters: Collection[str]) -> dict[str, ClusterState]:
    """The states of clusters, those without one left out. Changes nothing. Raises StoreError."""
    store = PostgresStateStore(url, 1, create=False)
    try:
        states = await asyncio.gather(*(store.load(name) for name in clusters))
    except NoTablesError:
        return {}
    finally:
        await store.close()
    return {name: state for name, state in zip(clusters, states, strict=True) if state is not None}


async def _rows(connection: AsyncConnection[Any], query: str, values: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - of any type
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(query, values)
        return await cursor.fetchall()


def _distinct(saves: Sequence[_Save]) -> Iterator[list[_Save]]:
    """Groups in which each cluster is once, in their order."""
    group: dict[str, _Save] = {}
    for save in saves:
        if save.cluster in group or len(group) == _TOGETHER:
            yield list(group.values())
            group = {}
        group[save.cluster] = save
    if group:
        yield list(group.values())


def _lost(cluster: str) -> LeaseLost:
    return LeaseLost(f"cluster {cluster!r} belongs to another copy now, or to none")
