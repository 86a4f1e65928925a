"""The store in a real PostgreSQL: how it fails, how it recovers, and what the leases of copies allow."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Self

import psycopg
import pytest

from autoscaler.core.foreign import mask
from autoscaler.daemon import postgres_connection
from autoscaler.daemon.observer import utc_now
from autoscaler.daemon.postgres_store import PostgresStateStore, open_postgres_store, read_postgres_states
from autoscaler.ports import AuditEntry, LeaseLost, Member, StoreError
from tests.postgres_server import ENCODED, PASSWORD, PostgresServer, postgres

from .conftest import records_of
from .test_state_store import NOW, a_record, a_state


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.database()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(postgres_connection, "TIMEOUT", 3.0)
    return 3.0


def at(second: int) -> datetime:
    return NOW + timedelta(seconds=second)


async def save(store: PostgresStateStore, second: int, cluster: str = "a") -> None:
    await store.save(cluster, a_state(at(second)), a_record(at(second), cluster))


async def times(store: PostgresStateStore, cluster: str = "a") -> list[int]:
    """The seconds of the saved decisions, newest first."""
    return [int((record.decision.at - NOW).total_seconds()) for record in await records_of(store, cluster, 100)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.05)


async def works(work: Awaitable[object]) -> bool:
    try:
        await work
    except StoreError:
        return False
    return True


async def until_saved(store: PostgresStateStore, second: int) -> None:
    """Retry a save, and then a load, which uses another connection, until both work again."""
    await until(lambda: works(save(store, second)))
    await until(lambda: works(store.load("a")))


async def until_server(server: PostgresServer, url: str, query: str, expected: int) -> None:
    async def asked() -> bool:
        return server.execute(query, url) == [(expected,)]

    await until(asked)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "autoscaler.daemon.postgres_store"]


async def test_waiting_saves_are_written_in_one_transaction(server: PostgresServer, url: str) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await asyncio.gather(*(save(store, 0, f"c{number}") for number in range(200)))
    rows = server.execute("SELECT count(*), count(DISTINCT xmin::text) FROM autoscaler.cluster", url)
    assert rows == [(200, 1)]


async def test_a_stopped_server_is_logged_once_and_saving_resumes(
    server: PostgresServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        server.stop()
        try:
            started = time.monotonic()
            for _ in range(3):
                with pytest.raises(StoreError, match=r"^postgresql://127\.0\.0\.1:\d+/db\d+ cannot be used: .*refused"):
                    await save(store, 1)
            with pytest.raises(StoreError, match="cannot be used"):
                await store.load("a")
            with pytest.raises(StoreError, match="cannot be used"):
                await store.save_members("f", {"a": Member("a", {})})
            assert time.monotonic() - started < 3
            assert "refused" in str(store.failure)
        finally:
            server.start()
        await until_saved(store, 2)
        assert store.failure is None
        assert await times(store) == [2, 0]
    assert messages(caplog) == ["cannot persist state", "state is persisted again"]
    assert PASSWORD not in caplog.text
    assert ENCODED not in caplog.text


async def test_a_server_that_hangs_delays_no_tick_for_long(server: PostgresServer, url: str, impatient: float) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        await store.load("a")
        server.hang()
        try:
            started = time.monotonic()

            async def late(second: int) -> float:
                await asyncio.sleep(second / 10)
                with pytest.raises(StoreError, match="has not answered within 3 s: nothing is scaled until it does"):
                    await save(store, second, f"c{second}")
                return time.monotonic() - started - second / 10

            # Saves that wait behind one that hangs do not wait for a second time-out.
            waited = await asyncio.gather(*map(late, range(40)))
            assert max(waited) < 1.6 * impatient
            with pytest.raises(StoreError, match="has not answered"):
                await store.load("a")
        finally:
            server.go_on()
        await until_saved(store, 1)
        await until(lambda: works(store.load("a")))
        assert await times(store) == [1, 0]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("late", [True, False])
async def test_an_abandoned_save_that_arrives_late_is_replaced_by_the_next_one(
    server: PostgresServer, url: str, *, late: bool
) -> None:
    """This holds whether the server executes the abandoned save before the next one or after it."""
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        server.hang()
        try:
            with pytest.raises(StoreError, match="has not answered"):
                await save(store, 1)  # the statement is on its way to the server
        finally:
            server.go_on()
        if not late:
            await until_server(server, url, "SELECT last FROM autoscaler.cluster", 2)
        await until_saved(store, 2)
        assert await store.load("a") == a_state(at(2))
        assert await times(store) == [2, 0]
        # The server has nothing of the abandoned save left to execute later.
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'autoscaler-writer' AND state = 'active'"
        )
        await until_server(server, url, query, 0)
        assert await store.load("a") == a_state(at(2))
        assert await times(store) == [2, 0]


async def test_an_older_save_changes_nothing(server: PostgresServer, url: str) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        server.execute("UPDATE autoscaler.cluster SET attempt = 7", url)
        with pytest.raises(StoreError, match="'a' was saved by another autoscaler: give each its own database"):
            await save(store, 1)
        assert await store.load("a") == a_state(at(0))
        await save(store, 2)
        assert await times(store) == [2, 0]


async def test_a_cut_connection_loses_no_save(
    server: PostgresServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        await store.load("a")
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'autoscaler-%'"
        assert len(server.execute(query, url)) == 2
        await save(store, 1)
        assert await store.load("a") == a_state(at(1))
        assert await times(store) == [1, 0]
        server.execute(query, url)
        # Writes by people are not retried: the caller gets the error.
        with pytest.raises(StoreError, match="terminating connection due to administrator command"):
            await store.add_audit(an_entry())
        await store.add_audit(an_entry())
        assert len(await store.audit(9)) == 1
    assert messages(caplog) == []


def an_entry() -> AuditEntry:
    return AuditEntry(at=NOW, by="ann", action="decide", scope="a")


@pytest.mark.usefixtures("impatient")
async def test_a_locked_table_does_not_delay_a_tick_for_long(url: str) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE autoscaler.cluster")
            with pytest.raises(StoreError, match="has not answered within 3 s"):
                await save(store, 1)
        await until_saved(store, 2)
        assert await times(store) == [2, 0]


@pytest.mark.parametrize("password", ["wrong", "hunter2%40"])
async def test_a_wrong_password_is_reported_at_the_start_and_not_shown(server: PostgresServer, password: str) -> None:
    server.database()
    with pytest.raises(StoreError, match="password authentication failed") as raised:
        async with open_postgres_store(server.url("db1", password), decisions=9):
            pass
    assert password not in str(raised.value)


async def test_a_missing_database_is_reported_at_the_start(server: PostgresServer) -> None:
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        async with open_postgres_store(server.url("nowhere"), decisions=9):
            pass


@pytest.mark.parametrize(
    "bad",
    ["postgresql://ann:sec/ret@host:port/db", "postgresql://ann:secret@[::1/db?x=1", "postgresql://host/db?sslmod=sec"],
)
async def test_what_is_no_url_is_refused_and_not_shown(bad: str) -> None:
    with pytest.raises(StoreError, match=r"^daemon.state is not a PostgreSQL URL: expected postgresql://") as raised:
        PostgresStateStore(bad, 9)
    assert "sec" not in str(raised.value)
    assert "parameters that libpq knows, such as ?sslmode=verify-full" in str(raised.value)
    assert raised.value.__cause__ is None


def test_without_psycopg_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"daemon.state needs psycopg, .*\[postgres\]"):
        PostgresStateStore("postgresql://host/db", 9)


async def test_the_password_is_masked_in_all_foreign_texts(url: str) -> None:
    PostgresStateStore(url, 9)
    assert mask(f"a {PASSWORD} b") == "a *** b"


async def test_a_server_that_is_down_at_the_start_may_come_later(
    server: PostgresServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    try:
        async with open_postgres_store(url, decisions=9) as store:
            assert "refused" in str(store.failure)
            server.start()
            await until_saved(store, 1)
            assert store.failure is None
    finally:
        if not server.runs:
            server.start()
    assert messages(caplog) == ["cannot persist state"]


async def test_tables_of_a_later_version_are_refused_and_not_changed(server: PostgresServer, url: str) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
    server.execute("UPDATE autoscaler.version SET version = 99", url)
    with pytest.raises(
        StoreError, match="has schema 99, expected 1: use the version that wrote it, or another database"
    ):
        async with open_postgres_store(url, decisions=9):
            pass
    with pytest.raises(StoreError, match="has schema 99"):
        await read_postgres_states(url, ["a"])
    assert server.execute("SELECT count(*) FROM autoscaler.decision", url) == [(1,)]


async def test_copies_that_start_together_create_the_tables_once(server: PostgresServer, url: str) -> None:
    stores = [PostgresStateStore(url, 9) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    assert [store.failure for store in stores] == [None] * 8
    for store in stores:
        await store.close()
    assert server.execute("SELECT count(*) FROM autoscaler.version", url) == [(1,)]


async def test_a_user_without_the_create_privilege_needs_its_own_schema(server: PostgresServer, url: str) -> None:
    server.execute(f"CREATE ROLE bob LOGIN PASSWORD '{PASSWORD}'")
    bob = url.replace("ann:", "bob:")
    with pytest.raises(StoreError, match="the user needs CREATE on the database, or its own schema 'autoscaler'"):
        async with open_postgres_store(bob, decisions=9):
            pass
    server.execute("CREATE SCHEMA autoscaler AUTHORIZATION bob", url)
    async with open_postgres_store(bob, decisions=9) as store:
        await save(store, 0)


async def test_a_standby_is_not_used_for_writing(server: PostgresServer, url: str) -> None:
    name = url.rpartition("/")[2]
    server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with open_postgres_store(url, decisions=9) as store:
        with pytest.raises(StoreError, match="read-only"):
            await save(store, 0)


async def test_a_primary_that_becomes_read_only_is_replaced_by_the_writable_host() -> None:
    with postgres() as first, postgres() as second:
        both = first.database().replace(f":{first.port}/", f":{first.port},127.0.0.1:{second.port}/")
        async with open_postgres_store(second.database(), decisions=9) as store:
            await save(store, 7)
        async with open_postgres_store(both, decisions=9) as store:
            await save(store, 0)
            assert await times(store) == [0]
            # Sessions stay open, as if a managed database changed its role without a restart.
            first.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            first.execute("SELECT pg_reload_conf()")

            async def elsewhere() -> bool:
                await works(save(store, 8))
                return await times(store) == [8, 7]

            await until(elsewhere)


async def test_reading_creates_no_tables(server: PostgresServer, url: str) -> None:
    assert await read_postgres_states(url, ["a"]) == {}
    assert server.execute("SELECT to_regnamespace('autoscaler')::text", url) == [(None,)]


async def test_only_changed_members_are_written(server: PostgresServer, url: str) -> None:
    members = {str(number): Member(str(number), {"name": str(number)}) for number in range(100)}
    async with open_postgres_store(url, decisions=9) as store, open_postgres_store(url, decisions=9) as other:
        await store.save_members("f", members)
        changed = {**members, "7": Member("7", {"name": "other"}), "new": Member("new", {})}
        # The other copy saves the same members, and this one changed ones: neither undoes the other's write.
        await other.save_members("f", members)
        await store.save_members("f", changed)
        await other.save_members("f", changed)
        assert await store.load_members("f") == changed
    assert server.execute("SELECT count(DISTINCT xmin::text) FROM autoscaler.member", url) == [(2,)]


async def test_a_hanging_server_does_not_delay_the_shutdown(server: PostgresServer, url: str, impatient: float) -> None:
    async with open_postgres_store(url, decisions=9) as store:
        await save(store, 0)
        saving = asyncio.create_task(save(store, 1))
        await asyncio.sleep(0)
        server.hang()
        started = time.monotonic()
    try:
        assert time.monotonic() - started < 3 * impatient
        with pytest.raises(StoreError):
            await saving
    finally:
        server.go_on()


class Copies:
    """The stores of two copies, with leases."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self._url = url
        self.first = PostgresStateStore(url, 9, leases=True)
        self.second = PostgresStateStore(url, 9, leases=True)

    async def __aenter__(self) -> Self:
        await self.first.renew("first", "http://first")
        await self.second.renew("second", "")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.first.close()
        await self.second.close()

    def execute(self, query: str) -> list[tuple[object, ...]]:
        return self.server.execute(query, self._url)

    def expire(self, store: PostgresStateStore) -> None:
        late = "UPDATE autoscaler.copy SET seen = seen - interval '16 s' WHERE id ="
        self.execute(f"{late} '{store.copy}'")

    def states(self) -> list[tuple[object, ...]]:
        return self.execute("SELECT name, attempt, last FROM autoscaler.cluster ORDER BY name")


@pytest.fixture
def copies(server: PostgresServer, url: str) -> Copies:
    return Copies(server, url)


async def test_a_cluster_is_saved_only_under_its_lease(copies: Copies) -> None:
    async with copies:
        with pytest.raises(LeaseLost, match="cluster 'a' belongs to another copy of the daemon now, or to none"):
            await save(copies.first, 0)
        assert await copies.first.take(["a", "b"]) == {"a": 1, "b": 1}
        assert await copies.second.take(["a", "c"]) == {"c": 1}
        outcomes = await asyncio.gather(
            save(copies.first, 1, "a"), save(copies.first, 1, "c"), save(copies.first, 1, "b"), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLost, type(None)]
        assert copies.states() == [("a", 1, 1), ("b", 1, 1)]
        assert copies.first.failure is None
        found = await copies.second.renew("second", "")
        assert {copy.name: copy.url for copy in found.copies.values()} == {"first": "http://first", "second": ""}
        assert found.terms == {"c": 1}
        owner = await copies.second.owner("b")
        assert owner is not None
        assert owner.id == copies.first.copy
        assert await copies.second.owner("nobody") is None


async def test_a_save_of_an_earlier_term_is_refused_even_if_the_copy_owns_the_lease_again(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a"])
        await save(copies.first, 0)
        copies.execute("UPDATE autoscaler.lease SET term = term + 2")
        with pytest.raises(LeaseLost):
            await save(copies.first, 1)
        assert copies.states() == [("a", 1, 1)]


async def test_a_released_lease_is_taken_in_a_new_term(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a", "b"])
        await save(copies.first, 0)
        await copies.first.let_go(["a"])
        with pytest.raises(LeaseLost):
            await save(copies.first, 1)
        assert await copies.second.owner("a") is None
        assert await copies.second.take(["a", "b"]) == {"a": 2}
        assert await copies.second.load("a") == a_state(at(0))
        await save(copies.second, 2)
        assert await times(copies.first) == [2, 0]


async def test_failures_of_saves_and_of_renewals_are_logged_separately(
    copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with copies:
        await copies.first.take(["a"])
        copies.execute("ALTER TABLE autoscaler.copy RENAME COLUMN url TO address")
        for second in range(3):
            with pytest.raises(StoreError):
                await copies.first.renew("first", "")
            await save(copies.first, second)
        copies.execute("ALTER TABLE autoscaler.copy RENAME COLUMN address TO url")
        assert messages(caplog) == []
        copies.execute("ALTER TABLE autoscaler.decision RENAME TO elsewhere")
        for second in range(3):
            with pytest.raises(StoreError):
                await save(copies.first, second)
            await copies.first.renew("first", "")
        assert messages(caplog) == ["cannot persist state"]
        await copies.first.let_go(["a"])
        await copies.first.renew("first", "")
        assert copies.first.failure is None
        assert messages(caplog) == ["cannot persist state", "state is persisted again"]


async def test_a_copy_that_leaves_releases_everything(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a", "b"])
        await copies.first.leave()
        assert await copies.second.take(["a", "b"]) == {"a": 2, "b": 2}
        assert set((await copies.second.renew("second", "")).copies) == {copies.second.copy}
        # A copy without a row takes nothing.
        assert await copies.first.take(["c"]) == {}


async def test_a_copy_that_was_away_too_long_owns_nothing_any_more(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a", "b"])
        await save(copies.first, 0)
        copies.expire(copies.first)
        assert await copies.second.owner("a") is None
        # No other copy has taken the lease yet; nevertheless this copy cannot save.
        with pytest.raises(LeaseLost):
            await save(copies.first, 1)
        assert await copies.second.take(["a"]) == {}
        await copies.second.renew("second", "")
        assert await copies.second.take(["a"]) == {"a": 2}
        with pytest.raises(LeaseLost):
            await save(copies.first, 2, "b")
        found = await copies.first.renew("first", "")
        assert found.terms == {}
        assert set(found.copies) == {copies.first.copy, copies.second.copy}
        assert await copies.first.take(["a", "b"]) == {"b": 2}
        assert await times(copies.first) == [0]


async def test_an_expired_copy_loses_even_leases_that_no_other_copy_took(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a"])
        copies.expire(copies.first)
        assert (await copies.first.renew("first", "")).terms == {}
        assert await copies.first.take(["a"]) == {"a": 2}


async def test_a_save_waits_for_a_take_over_and_then_writes_nothing(copies: Copies, url: str) -> None:
    async with copies:
        await copies.first.take(["a"])
        await save(copies.first, 0)
        with psycopg.connect(url) as other:
            other.execute("UPDATE autoscaler.lease SET copy = %s, term = term + 1", (copies.second.copy,))
            saving = asyncio.create_task(save(copies.first, 1))
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await until_server(copies.server, url, query, 1)
        with pytest.raises(LeaseLost):
            await saving
        assert copies.states() == [("a", 1, 1)]


async def test_a_take_over_skips_a_cluster_that_is_being_saved(copies: Copies, url: str) -> None:
    async with copies:
        await copies.first.take(["a", "b"])
        await copies.first.let_go(["a", "b"])
        with psycopg.connect(url) as other:
            other.execute("SELECT FROM autoscaler.lease WHERE cluster = 'a' FOR SHARE")
            assert await copies.second.take(["a", "b"]) == {"b": 2}
        assert await copies.second.take(["a", "b"]) == {"a": 2}


async def test_a_lease_that_was_lost_and_taken_again_starts_from_the_stored_state(copies: Copies) -> None:
    async with copies:
        await copies.first.take(["a"])
        await save(copies.first, 0)
        await copies.first.let_go(["a"])
        await copies.second.take(["a"])
        for second in (1, 2, 3):
            await save(copies.second, second)
        await copies.second.let_go(["a"])
        await copies.first.take(["a"])
        await save(copies.first, 4)
        assert await times(copies.first) == [4, 3, 2, 1, 0]
        assert copies.states() == [("a", 5, 5)]


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
async def test_ages_in_a_state_are_the_same_for_a_copy_with_a_different_clock(url: str, ahead: timedelta) -> None:
    state = a_state(at(0))
    async with (
        open_postgres_store(url, decisions=9) as store,
        open_postgres_store(url, decisions=9, utc=lambda: utc_now() + ahead) as later,
        open_postgres_store(url, decisions=9, utc=lambda: utc_now() + timedelta(seconds=1)) as nearly,
    ):
        await store.save("a", state, a_record(at(0), "a"))
        assert await store.load("a") == await nearly.load("a")
        found = await later.load("a")
        assert found is not None
        assert found.at is not None
        assert abs((found.at - at(0) - ahead).total_seconds()) < 2
        # In the other direction, times in a state that the other copy saves are shifted back.
        await later.save("a", found, None)
        again = await store.load("a")
        assert again is not None
        assert again.at is not None
        assert abs((again.at - at(0)).total_seconds()) < 2
