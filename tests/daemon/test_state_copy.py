"""`autoscaler state copy`: the whole content of a store, copied to the other kind of store and back."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.config.model import DaemonSpec
from autoscaler.core.model import ClusterState
from autoscaler.core.step import step
from autoscaler.daemon.postgres_store import PostgresStateStore
from autoscaler.daemon.state_copy import copy_state
from autoscaler.daemon.state_store import FILE, open_state_store
from autoscaler.ports import AuditEntry, Member, Record, Secret, StateStore, StoreError
from tests.postgres_server import ENCODED, PASSWORD, PostgresServer, postgres

from .conftest import records_of, spec
from .test_state_store import NOW, a_record
from .test_store_contract import noted, open_alone, ordered

ODD = Member("prod/a\ud800", {"name": "a\x00b"}, template={"max": 8})


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.database()


def daemon(place: str) -> DaemonSpec:
    if place.startswith("postgresql"):
        return DaemonSpec(directory=Path("unused"), state=Secret(place), decisions=20)
    return DaemonSpec(directory=Path(place), decisions=20)


async def fill(store: StateStore, clusters: int = 3) -> None:
    async def ticks(index: int) -> None:
        state = ClusterState()
        for number in range(50 + index):
            observation = replace(a_record().observation, at=NOW + timedelta(seconds=10.123457 * number))
            state, decision = step(spec(f"c{index}"), state, observation)
            await store.save(f"c{index}", state, Record(state.past[-1], decision))

    await asyncio.gather(*map(ticks, range(clusters)))
    await store.save_members("f", {"b": Member("b", {"name": "b"}), ODD.id: ODD})
    for second in range(3):
        await store.add_control(ordered(second, second, f"c{second}"), noted(second))
    await store.add_audit(noted(9, "decide"))


async def content(store: StateStore) -> object:
    """Everything that a daemon can read from a store."""
    names = [f"c{index}" for index in range(4)]
    return (
        [await store.load(name) for name in names],
        [[page async for page in store.pages(name, 1000)] for name in names],
        [await records_of(store, name, 1000, NOW + timedelta(seconds=10.123457 * 45)) for name in names],
        await store.load_members("f"),
        await store.load_controls(),
        await store.audit(100),
    )


async def kept(place: str) -> object:
    async with open_alone(daemon(place)) as store:
        return await content(store)


async def filled(place: str) -> object:
    async with open_alone(daemon(place)) as store:
        await fill(store)
        return await content(store)


async def goes_on(place: str) -> None:
    """A daemon continues where the previous one has stopped: numbers increase, and old decisions are pruned."""
    async with open_alone(daemon(place)) as store:
        before = await records_of(store, "c0", 1)
        for second in range(1000, 1040):
            at = NOW + timedelta(seconds=second)
            await store.save("c0", replace(ClusterState(), at=at), a_record(at, "c0"))
        found = await records_of(store, "c0", 1000)
        assert found[0].decision.at == NOW + timedelta(seconds=1039)
        assert before[0] not in found
        assert 20 <= len(found) < 36
        last = (await store.load_controls())[-1]
        assert (await store.add_control(ordered(20, 1, "c9"), noted(20))).id > last.id


@pytest.mark.parametrize("there", ["directory", "postgresql"])
@pytest.mark.parametrize("back", ["directory", "postgresql"])
def test_everything_is_copied_and_a_daemon_continues_there(
    server: PostgresServer, tmp_path: Path, there: str, back: str
) -> None:
    places = [
        server.database() if kind == "postgresql" else str(tmp_path / str(number))
        for number, kind in enumerate(("directory", there, back))
    ]
    before = asyncio.run(filled(places[0]))
    for source, target in itertools.pairwise(places):
        counts = copy_state(source, target)
        # Of the 50, 51 and 52 decisions, those that the state needs are kept, and at least 20.
        assert {name: counts[name] for name in ("cluster", "member", "control", "audit")} == {
            "cluster": 3,
            "member": 2,
            "control": 3,
            "audit": 4,
        }
        assert 3 * 31 <= counts["decision"] < 3 * (31 + 16)
        assert asyncio.run(kept(target)) == before
    asyncio.run(goes_on(places[2]))


def test_a_target_that_is_not_empty_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    source = str(tmp_path / "var")
    asyncio.run(filled(source))
    copy_state(source, url)
    before = asyncio.run(kept(url))
    with pytest.raises(StoreError, match=r"^postgresql://127.*/db\d+ has a state already: name an empty database"):
        copy_state(source, url)
    with pytest.raises(StoreError, match="var has a state already"):
        copy_state(url, source)
    assert asyncio.run(kept(url)) == before
    # The copy is refused even if the target has nothing but an audit.
    other = server.database()

    async def note() -> None:
        async with open_alone(daemon(other)) as store:
            await store.add_audit(AuditEntry(at=NOW, by="ann", action="decide", scope="a"))

    asyncio.run(note())
    with pytest.raises(StoreError, match="has a state already"):
        copy_state(source, other)


def test_a_directory_in_use_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    full = server.database()
    asyncio.run(filled(full))

    async def copy() -> None:
        async with open_state_store(tmp_path, decisions=9) as store:
            await fill(store, 1)
            with pytest.raises(StoreError, match=r"is in use by another autoscaler \(process \d+\)"):
                await asyncio.to_thread(copy_state, str(tmp_path), url)
            with pytest.raises(StoreError, match="is in use"):
                await asyncio.to_thread(copy_state, full, str(tmp_path))

    asyncio.run(copy())


def test_a_database_in_use_is_refused(url: str, tmp_path: Path) -> None:
    async def use() -> None:
        async with open_state_store(tmp_path / "full", decisions=9) as full:
            await fill(full, 1)
        store = PostgresStateStore(url, 9, leases=True)
        await store.renew("pod-7", "")
        for source, target in ((url, str(tmp_path / "new")), (str(tmp_path / "full"), url)):
            with pytest.raises(StoreError, match="is in use by pod-7: stop all copies first"):
                await asyncio.to_thread(copy_state, source, target)
        await store.leave()
        await asyncio.to_thread(copy_state, str(tmp_path / "full"), url)
        await store.close()

    asyncio.run(use())


def test_an_empty_source_is_refused(server: PostgresServer, url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"nowhere has no state: there is no {FILE} in it"):
        copy_state(str(tmp_path / "nowhere"), url)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError, match=r"^postgresql://.* has no state$"):
        copy_state(url, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert server.execute("SELECT to_regnamespace('autoscaler')::text", url) == [(None,)]


def test_a_failure_half_way_leaves_the_target_empty(server: PostgresServer, tmp_path: Path) -> None:
    source = str(tmp_path / "var")
    asyncio.run(filled(source))
    with closing(sqlite3.connect(tmp_path / "var" / FILE)) as connection, connection:
        times = connection.execute("SELECT id, at FROM decision").fetchall()
        connection.execute("UPDATE decision SET at = 1e12 WHERE id IN (SELECT max(id) FROM decision)")
    target = server.database()
    with pytest.raises(StoreError, match="the state cannot be read: year 33658 is out of range"):
        copy_state(source, target)
    assert server.execute("SELECT count(*) FROM autoscaler.cluster", target) == [(0,)]
    with closing(sqlite3.connect(tmp_path / "var" / FILE)) as connection, connection:
        connection.executemany("UPDATE decision SET at = ?2 WHERE id = ?1", times)
    assert copy_state(source, target)["cluster"] == 3


def test_the_command_prints_counts_and_no_password(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "var")
    asyncio.run(filled(source))
    assert cli.main(["state", "copy", source, url]) == 0
    shown = capsys.readouterr().out
    assert "clusters" in shown
    assert "pauses, holds and limits" in shown
    assert cli.main(["state", "copy", url, str(tmp_path / "new"), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["entries of the audit"] == 4
    assert cli.main(["state", "copy", source, url]) == 1
    shown += capsys.readouterr().err
    assert "has a state already" in shown
    assert PASSWORD not in shown
    assert ENCODED not in shown
