"""The contract of all state stores: the one in a file, and the one in PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
import pytest

from autoscaler.config.model import DaemonSpec
from autoscaler.core.model import ClusterState, Control, ControlKind, Observation, Reading
from autoscaler.core.state import rebase
from autoscaler.core.step import step
from autoscaler.daemon import postgres_store, state_store
from autoscaler.daemon.postgres_store import open_postgres_store
from autoscaler.daemon.state_store import FILE
from autoscaler.daemon.stores import open_store, read_states
from autoscaler.ports import AuditEntry, Member, Record, Secret, StateStore, StoredControl, StoreError
from autoscaler.trace.codec import dump_record
from tests.postgres_server import PostgresServer, postgres

from .conftest import records_of, spec
from .test_state_store import NOW, a_record, a_state


def open_alone(daemon: DaemonSpec) -> AbstractAsyncContextManager[StateStore]:
    """The store of a daemon without leases, so that any cluster can be saved in it."""
    if daemon.state is None:
        return open_store(daemon)
    return open_postgres_store(daemon.state, decisions=daemon.decisions)


class Place:
    """The place of a store: a directory or a database."""

    def __init__(self, directory: Path, url: str | None) -> None:
        self._url = url
        self._daemon = DaemonSpec(directory=directory, state=None if url is None else Secret(url))
        self._file = directory / FILE

    def open(self, decisions: int = 9) -> AbstractAsyncContextManager[StateStore]:
        return open_alone(replace(self._daemon, decisions=decisions))

    async def read(self, *clusters: str) -> dict[str, ClusterState]:
        return await read_states(self._daemon, clusters)

    def damage(self, table: str, column: str, value: bytes) -> None:
        query = f"UPDATE {table} SET {column} = "  # noqa: S608 - names of the tests
        if self._url is None:
            with closing(sqlite3.connect(self._file)) as connection, connection:
                connection.execute(f"{query} ?", (value,))
        else:
            with psycopg.connect(self._url, options="-c search_path=autoscaler") as server:
                server.execute(f"{query} %s", (value,))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    # Start the server only if needed: the other store does not use it.
    url = request.getfixturevalue("server").database() if request.param == "postgresql" else None
    return Place(tmp_path / "var", url)


async def test_state_and_past_are_loaded_unchanged(place: Place) -> None:
    state = ClusterState()
    assert await place.read("a") == {}
    async with place.open(decisions=3) as store:
        assert await store.load("a") is None
        for number in range(100):
            observation = replace(a_record().observation, at=NOW + timedelta(seconds=10 * number))
            state, decision = step(spec("a"), state, observation)
            await store.save("a", state, Record(state.past[-1], decision))
    full = replace(a_state(state.at or NOW), past=state.past)
    async with place.open(decisions=3) as store:
        # The past is complete although only three decisions are to be kept: decisions depend on it.
        assert len(state.past) == 31
        assert await store.load("a") == state
        await store.save("a", full, None)
        assert await store.load("a") == full
        # The state can be read while a daemon uses the store, too.
        assert await place.read("a", "b") == {"a": full}
    assert await place.read("a", "b") == {"a": full}


async def test_the_past_is_shifted_when_the_clock_was_set_back(place: Place) -> None:
    state = ClusterState()
    async with place.open(decisions=100) as store:
        for at in (0, 10, 20, -3580, -3570, 15, 5):
            observation = Observation(
                at=NOW + timedelta(seconds=at), desired=3, ready=3, metrics={"load": Reading(300.0, NOW)}
            )
            state, decision = step(spec("a", lookback=timedelta(hours=2)), state, observation)
            await store.save("a", state, Record(state.past[-1], decision))
        loaded = await store.load("a")
    assert loaded == state
    assert rebase(state, timedelta(0)) == state


async def test_decisions_are_listed_newest_first_and_pruned(place: Place) -> None:
    async with place.open(decisions=20) as store:
        for number in range(100):
            at = NOW + timedelta(seconds=number)
            await store.save("a", a_state(at), a_record(at))
        await store.save("b", a_state(), a_record(cluster="b"))
        records = await records_of(store, "a", 5)
        assert [(record.decision.at - NOW).total_seconds() for record in records] == [99, 98, 97, 96, 95]
        records = await records_of(store, "a", 2, NOW + timedelta(seconds=90.5))
        assert [(record.decision.at - NOW).total_seconds() for record in records] == [90, 89]
        assert 20 <= len(await records_of(store, "a", 1000)) < 40
        assert len(await records_of(store, "b", 1000)) == 1
        assert await records_of(store, "c", 1000) == []


async def test_many_decisions_are_returned_in_batches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state_store, postgres_store):
        monkeypatch.setattr(module, "PAGE", 3 * len(dump_record(a_record())) - 10)
    async with place.open(decisions=100) as store:
        for number in range(10):
            await store.save("a", a_state(), a_record(NOW + timedelta(seconds=number)))
        pages = [page async for page in store.pages("a", 8)]
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [json.loads(line)["decision"]["at"] for page in pages for line in page][7].endswith("17:05:05.250000Z")


async def test_concurrent_saves_are_all_stored(place: Place) -> None:
    async with place.open() as store:
        names = [f"c{number}" for number in range(1200)]
        await asyncio.gather(*(store.save(name, a_state(), a_record(cluster=name)) for name in names))
        states = await asyncio.gather(*(store.load(name) for name in names))
        assert states == [a_state()] * len(names)
        # Saves of one cluster are written in order, even if they wait for the same transaction.
        await asyncio.gather(
            *(
                store.save("a", a_state(NOW + timedelta(seconds=n)), a_record(NOW + timedelta(seconds=n)))
                for n in range(5)
            )
        )
        assert (await records_of(store, "a", 9))[0].decision.at == NOW + timedelta(seconds=4)
        assert await store.load("a") == a_state(NOW + timedelta(seconds=4))


async def test_an_invalid_state_is_an_error(place: Place) -> None:
    async with place.open() as store:
        await store.save("a", a_state(), a_record())
        place.damage("cluster", "state", b'{"at": 5, "x": ')
        with pytest.raises(StoreError, match="the state of cluster 'a' cannot be read"):
            await store.load("a")
    with pytest.raises(StoreError, match="the state of cluster 'a' cannot be read"):
        await place.read("a")


async def test_an_invalid_decision_is_an_error(place: Place) -> None:
    async with place.open() as store:
        await store.save("a", a_state(), a_record())
        place.damage("decision", "record", b"{}")
        with pytest.raises(StoreError, match="a decision cannot be read"):
            await records_of(store, "a", 1)


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00"])
@pytest.mark.parametrize("name", ["at", "since"])
async def test_a_state_with_an_impossible_time_is_damaged(place: Place, name: str, time: str) -> None:
    async with place.open() as store:
        await store.save("a", a_state(), a_record())
        place.damage("cluster", "state", json.dumps({name: time}).encode())
        with pytest.raises(StoreError, match="the state of cluster 'a' cannot be read: it has the time"):
            await store.load("a")


async def test_decisions_are_pruned_by_size_except_those_that_the_state_needs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(dump_record(a_record()))
    for module in (state_store, postgres_store):
        monkeypatch.setattr(module, "MAX_BYTES", 10 * size)
    async with place.open(decisions=500) as store:
        kept = []
        for _ in range(64):
            await store.save("a", a_state(), a_record())
            await store.save("b", replace(a_state(), past=(a_record().observation,) * 20), a_record())
            kept.append((len(await records_of(store, "a", 1000)), len(await records_of(store, "b", 1000))))
        # Old decisions are pruned at every sixteenth decision.
        assert min(a for a, _ in kept[-16:]) == 10
        assert min(b for _, b in kept[-16:]) == 20


ODD = Member("prod/a\ud800", {"name": "a\x00b", "labels": MappingProxyType({"app": "<b>\udcff"})})


async def test_members_of_a_fleet_are_loaded_and_those_that_left_are_not(place: Place) -> None:
    a, b = Member("a", {"name": "a", "labels": {"x": "1"}}), Member("b", {"name": "b"})
    async with place.open() as store:
        assert await store.load_members("f") == {}
        await store.save_members("f", {"a": a, "b": b, ODD.id: ODD})
        await store.save_members("other", {"a": b})
        changed = replace(a, values={"name": "a", "labels": {"x": "2"}})
        await store.save_members("f", {"a": changed, ODD.id: ODD})
    async with place.open() as store:
        assert await store.load_members("f") == {"a": changed, ODD.id: ODD}
        # The first save after a start replaces all members.
        await store.save_members("f", {"b": b})
        assert await store.load_members("f") == {"b": b}
        await store.forget_members({"f"})
        assert await store.load_members("f") == {"b": b}
        assert await store.load_members("other") == {}
        await store.save_members("f", {})
        assert await store.load_members("f") == {}


async def test_values_that_no_template_can_use_do_not_prevent_other_members_from_being_saved(place: Place) -> None:
    values: dict[Any, Any] = {"name": "a", "labels": {"x": "1", ("y",): "2", "z": 3}, "size": 4, "raw": b"x"}
    values["self"] = values
    async with place.open() as store:
        await store.save_members("f", {"a": Member("a", values), "b": Member("b", {"name": "b"})})
        found = await store.load_members("f")
    assert found["b"] == Member("b", {"name": "b"})
    assert found["a"].values == {"name": "a", "labels": {"x": "1"}, "self": {"name": "a"}}


@pytest.mark.parametrize("damage", [b"{", b"[]"])
async def test_unreadable_members_are_an_error(place: Place, damage: bytes) -> None:
    async with place.open() as store:
        await store.save_members("f", {"a": Member("a", {})})
        place.damage("member", "found", damage)
        with pytest.raises(StoreError, match="the members of fleet 'f' cannot be read"):
            await store.load_members("f")


async def test_a_member_is_loaded_with_its_own_template(place: Place) -> None:
    found = {"a": Member("a", {"name": "a"}, template={"max": 8, "target": {"name": "a"}}), "b": Member("b", {})}
    async with place.open() as store:
        await store.save_members("f", found)
    async with place.open() as store:
        assert await store.load_members("f") == found


def ordered(second: int, replicas: int | None, *clusters: str) -> StoredControl:
    at = NOW + timedelta(seconds=second)
    until = at + timedelta(hours=1)
    control = None
    if replicas is not None:
        control = Control(kind=ControlKind.HOLD, replicas=replicas, until=until, reason="a test", by="ann", at=at)
    return StoredControl(clusters=clusters, control=control, by="ann", at=at, until=until, reason="a test")


def noted(second: int, action: str = "hold") -> AuditEntry:
    return AuditEntry(at=NOW + timedelta(seconds=second), by="ann", action=action, scope="a", detail="3", reason="ü")


async def test_controls_are_loaded_with_their_ids_and_expired_ones_are_deleted(place: Place) -> None:
    async with place.open() as store:
        assert await store.load_controls() == []
        first = await store.add_control(ordered(0, 3, "a"), noted(0))
        second = await store.add_control(ordered(1, 4, "b"), noted(1))
        assert second.id > first.id > 0
        assert await store.load_controls() == [first, second]
        third = await store.add_control(ordered(2, 5, "a"), noted(2))
    async with place.open() as store:
        assert await store.load_controls() == [second, third]
        fourth = await store.add_control(ordered(3, 6, "c"), noted(3))
        assert fourth.id > third.id
        assert await store.audit(10) == [noted(3), noted(2), noted(1), noted(0)]


async def test_the_last_entries_of_the_audit_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state_store, postgres_store):
        monkeypatch.setattr(module, "MAX_AUDIT", 5)
    async with place.open() as store:
        for second in range(8):
            await store.add_audit(noted(second, "decide"))
        assert await store.audit(10) == [noted(second, "decide") for second in (7, 6, 5, 4, 3)]
        assert await store.audit(2) == [noted(7, "decide"), noted(6, "decide")]
        until = datetime.fromtimestamp((NOW + timedelta(seconds=5)).timestamp(), UTC)
        assert await store.audit(1, until) == [noted(5, "decide")]


@pytest.mark.parametrize(
    ("table", "column", "what"), [("control", "stored", "the manual controls"), ("audit", "entry", "the audit")]
)
async def test_unreadable_controls_are_an_error(place: Place, table: str, column: str, what: str) -> None:
    async with place.open() as store:
        await store.add_control(ordered(0, 3, "a"), noted(0))
        place.damage(table, column, b"{")
        with pytest.raises(StoreError, match=f"{what} cannot be read"):
            await (store.load_controls() if table == "control" else store.audit(1))
        if table == "control":
            with pytest.raises(StoreError, match="cannot be read"):
                await store.add_control(ordered(1, 3, "a"), noted(1))
            assert len(await store.audit(10)) == 1


async def test_only_clusters_that_left_long_ago_are_forgotten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state_store, postgres_store):
        monkeypatch.setattr(module, "_FORGET_AT_ONCE", 2)
    now = a_record().observation.at
    old, limit = now - timedelta(days=31), now - timedelta(days=30)
    ages = {"new": now, "old": old, "old-and-kept": old, "on-time": limit, "older": old - timedelta(days=9), "x": old}
    async with place.open() as store:
        for name, at in ages.items():
            for _ in range(3):
                await store.save(name, replace(a_state(), at=at), a_record())
        await store.forget_clusters(limit, {"old-and-kept", "unknown"})
        left = ["new", "old-and-kept", "on-time"]
        assert [name for name in ages if await store.load(name) is not None] == left
        assert [name for name in ages if await records_of(store, name, 9)] == left
        # A cluster that returns starts without state, and is persisted like any other.
        await store.save("old", a_state(), a_record())
    async with place.open() as store:
        assert await store.load("old") is not None
        assert len(await records_of(store, "old", 9)) == 1
