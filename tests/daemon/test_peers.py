"""Copies that query each other over HTTP: any copy answers for all clusters."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
import trustme

from autoscaler import http_connections
from autoscaler.config.model import Rights, TlsSpec, TokenSpec
from autoscaler.core.model import ClusterState
from autoscaler.daemon.history import History
from autoscaler.daemon.leases import SharedOwnership
from autoscaler.daemon.service import Daemon, advertised
from autoscaler.daemon.state_store import SqliteStateStore, open_state_store
from autoscaler.demo.processes import free_port
from autoscaler.ports import Copy, Record, Secret
from autoscaler.testing.fakes import Fake, FakeSource, FakeTarget
from tests.daemon.conftest import make_cluster, make_config
from tests.daemon.fake_stores import FakeLeases, FakeSharedStore

TICK, TIMEOUT = timedelta(milliseconds=50), timedelta(milliseconds=40)
PATIENCE = 60.0
TOKEN = "alice-may-do-it-all"
NAMES = [f"team/c{number}" for number in range(6)]


@dataclass
class Shared(FakeSharedStore):
    """One store with leases for all copies in this process."""

    inner: SqliteStateStore = field(kw_only=True)

    async def load(self, cluster: str) -> ClusterState | None:
        return await self.inner.load(cluster)

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        await self.inner.save(cluster, state, record)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Two:
    """Two daemons and a client."""

    daemons: list[Daemon]
    leases: FakeLeases
    session: aiohttp.ClientSession

    async def ask(self, daemon: Daemon, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
        async with self.session.request(method, f"{daemon.url}{path}", headers=headers, **options) as response:
            return response.status, await response.json()

    async def balanced(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not (  # noqa: ASYNC110 - no event for the condition
                all(daemon.controllers for daemon in self.daemons)
                and sorted(name for daemon in self.daemons for name in daemon.controllers) == sorted(NAMES)
                and all(each.decision for daemon in self.daemons for each in daemon.controllers.values())
            ):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def copies(
    directory: Path, tls: TlsSpec | None = None, client: ssl.SSLContext | bool = True
) -> AsyncIterator[Two]:
    source, leases = FakeSource({"load": 300.0}), FakeLeases()
    tokens = (TokenSpec(name="alice", rights=Rights.WRITE, token=Secret(TOKEN)),)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_state_store(directory, decisions=100))
        connector = aiohttp.TCPConnector(ssl=client)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        history = History(directory / "history", timedelta(days=1))
        await history.start()
        stack.push_async_callback(history.close)
        clusters = {name: make_cluster(name, Fake(FakeTarget()), interval=TICK, timeout=TIMEOUT) for name in NAMES}
        daemons = []
        for number in range(2):
            port = free_port()
            url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}"
            # With these ids each copy gets three of the clusters.
            shared = Shared(Copy(UUID(int=number), f"pod-{number}", url), leases, inner=store)
            config = make_config(clusters, Fake(source), directory)
            spec = replace(config.daemon, listen=f"127.0.0.1:{port}", tokens=tokens, tls=tls, read_needs_token=True)
            config = replace(config, daemon=spec)
            ownership = SharedOwnership(shared, f"pod-{number}")
            daemon = Daemon(
                config, pytest.fail, shared, history, ownership=ownership
            )  # the configuration is never reloaded
            daemons.append(daemon)
            work = asyncio.create_task(daemon.run())
            stack.push_async_callback(asyncio.wait_for, work, PATIENCE)
            stack.callback(daemon.stop)
        two = Two(daemons, leases, session)
        await two.balanced()
        yield two


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with copies(tmp_path) as found:
        yield found


async def test_any_copy_lists_all_clusters_and_the_copies(two: Two) -> None:
    for daemon in two.daemons:
        status, answer = await two.ask(daemon, "/api/v1/clusters")
        assert status == 200
        assert [row["name"] for row in answer["clusters"]] == NAMES
        assert {row["problem"] for row in answer["clusters"]} == {None}
        assert answer["copies"][0]["url"] == daemon.url
        assert sorted(copy["name"] for copy in answer["copies"]) == ["pod-0", "pod-1"]
        assert {copy["problem"] for copy in answer["copies"]} == {None}


async def test_a_forwarded_request_is_answered_by_the_owner(two: Two) -> None:
    first = two.daemons[0]
    _, answer = await two.ask(first, "/api/v1/clusters", headers={"Autoscaler-Forwarded": "1"})
    assert [row["name"] for row in answer["clusters"]] == sorted(first.controllers)
    other = next(iter(two.daemons[1].controllers))
    status, answer = await two.ask(first, f"/api/v1/clusters/{other}", headers={"Autoscaler-Forwarded": "1"})
    assert (status, "there is no cluster" in answer["error"]) == (404, True)


async def test_a_cluster_of_another_copy_can_be_shown_explained_and_decided(two: Two) -> None:
    asked, owner = two.daemons
    name = next(iter(owner.controllers))
    for written in (name, name.replace("/", "%2F")):
        status, answer = await two.ask(asked, f"/api/v1/clusters/{written}")
        assert (status, answer["name"], answer["desired"]) == (200, name, 3)
    status, answer = await two.ask(asked, f"/api/v1/clusters/{name}/decisions?limit=2")
    assert (status, len(answer["decisions"])) == (200, 2)
    before = owner.controllers[name].decision
    status, answer = await two.ask(asked, f"/api/v1/clusters/{name}/decide", "POST", json={"reason": "to see"})
    assert (status, answer["cluster"]) == (200, name)
    assert owner.controllers[name].decision is not before
    status, answer = await two.ask(asked, "/api/v1/clusters/nobody")
    assert status == 404
    assert all(known in answer["error"] for known in NAMES)


async def test_a_slow_decision_is_answered_by_any_copy(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, owner = two.daemons
    name = next(iter(owner.controllers))

    def delay(of: object, method: str) -> None:
        usual = getattr(of, method)

        async def slowly(*arguments: object) -> object:
            await asyncio.sleep(0.6)
            return await usual(*arguments)

        monkeypatch.setattr(of, method, slowly)

    delay(owner.controllers[name], "decide_now")
    delay(SqliteStateStore, "add_audit")
    delay(SharedOwnership, "owner")
    monkeypatch.setattr(http_connections, "ANSWER_TIMEOUT", 0.5)
    for daemon in (owner, asked):
        status, answer = await two.ask(daemon, f"/api/v1/clusters/{name}/decide", "POST")
        assert (status, answer["cluster"]) == (200, name)


async def test_a_forwarded_request_has_the_token_of_the_client(two: Two) -> None:
    asked, owner = two.daemons
    name = next(iter(owner.controllers))
    owner.access._tokens = ()
    status, _ = await two.ask(asked, f"/api/v1/clusters/{name}")
    assert status == 401
    _, answer = await two.ask(asked, "/api/v1/clusters")
    assert [copy["problem"] for copy in answer["copies"]] == [None, "it answers 401"]


async def test_a_control_is_for_clusters_of_all_copies_and_known_to_all(two: Two) -> None:
    status, answer = await two.ask(
        two.daemons[0], "/api/v1/controls", "POST", json={"action": "hold", "clusters": ["team/*"], "replicas": 5}
    )
    assert (status, answer["clusters"]) == (201, NAMES)
    async with asyncio.timeout(PATIENCE):
        while True:
            decided = [each.decision for daemon in two.daemons for each in daemon.controllers.values()]
            if all(decision is not None and decision.desired == 5 for decision in decided):
                break
            await asyncio.sleep(0.01)


async def test_an_unreachable_copy_is_named_and_so_are_its_clusters(two: Two) -> None:
    asked, owner = two.daemons
    name = next(iter(owner.controllers))
    holder, _ = two.leases.leases[name]
    assert holder is not None
    gone = replace(holder, url=f"http://127.0.0.1:{free_port()}")
    two.leases.leases[name] = (gone, 1)
    ownership = asked.ownership
    assert isinstance(ownership, SharedOwnership)
    ownership.copies = {**ownership.copies, gone.id: gone}
    status, answer = await two.ask(asked, "/api/v1/clusters")
    assert status == 200
    assert [row["name"] for row in answer["clusters"]] == NAMES
    row = next(row for row in answer["clusters"] if row["name"] == name)
    assert (
        row["problem"]
        == "no copy of the daemon controls this cluster at the moment, or the one that does cannot be asked"
    )
    problem = next(copy["problem"] for copy in answer["copies"] if copy["url"] == gone.url)
    assert "Cannot connect" in problem
    status, answer = await two.ask(asked, f"/api/v1/clusters/{name}")
    assert status == 503
    said = f"is controlled by another copy of the daemon, {gone.name} ({gone.url}), which cannot be asked"
    assert said in answer["error"]


async def test_a_cluster_without_an_owner_at_the_moment_is_not_reported_as_unknown(two: Two) -> None:
    asked, owner = two.daemons
    name = next(iter(owner.controllers))
    two.leases.leases[name] = (None, 1)
    status, answer = await two.ask(asked, f"/api/v1/clusters/{name}")
    assert (status, answer["error"]) == (
        503,
        f"no copy of the daemon controls cluster {name!r} at the moment: try again",
    )


async def test_copies_with_tls_trust_their_shared_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    spec = TlsSpec(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    # The certificate is for another name than the one by which the copies reach each other.
    issued = authority.issue_cert("autoscaler.example.com")
    spec.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(spec.key)
    client = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    client.check_hostname = False
    async with copies(tmp_path, spec, client) as two:
        status, answer = await two.ask(two.daemons[0], "/api/v1/clusters")
        assert status == 200
        assert [copy["problem"] for copy in answer["copies"]] == [None, None]
        assert [row["name"] for row in answer["clusters"]] == NAMES


@pytest.mark.parametrize(
    ("listens", "advertise", "environment", "url"),
    [
        ("http://127.0.0.1:1", None, {}, "http://127.0.0.1:1"),
        ("http://127.0.0.1:1", "https://a.example:2/", {}, "https://a.example:2"),
        ("https://0.0.0.0:1", None, {"POD_IP": "10.0.0.7"}, "https://10.0.0.7:1"),
        ("http://[::]:1", None, {"POD_IP": "fd00::7"}, "http://[fd00::7]:1"),
        ("http://10.1.1.1:1", None, {"POD_IP": "10.0.0.7"}, "http://10.1.1.1:1"),
    ],
)
def test_the_url_of_a_copy(
    listens: str, advertise: str | None, environment: dict[str, str], url: str, tmp_path: Path
) -> None:
    daemon = replace(make_config({}, None, tmp_path).daemon, advertise=advertise)
    assert advertised(daemon, listens, environment) == url
