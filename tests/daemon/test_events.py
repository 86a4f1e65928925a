"""Server-sent events of changed rows: what is sent, to whom, and that nothing waits for a slow reader."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autoscaler.daemon import events, http_api
from autoscaler.daemon.observer import utc_now
from autoscaler.http_connections import Connections
from autoscaler.ports import UnavailableError

from .test_http_control import PATIENCE, READ, TOKENS, WRITE, House, running
from .test_peers import TOKEN, Two, copies

QUICK = timedelta(milliseconds=50)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PERIOD", 0.05)
    monkeypatch.setattr(events, "PEERS_PERIOD", 0.1)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as found:
        yield found


class Listening:
    """A client that reads events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content

    async def line(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return (await self._content.readline()).decode()

    async def event(self) -> tuple[str, Any]:
        """Return the next event; comments are skipped."""
        name = ""
        while True:
            line = await self.line()
            assert line, "the connection has ended"
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                return name, json.loads(line[6:])

    async def ended(self) -> None:
        with suppress(aiohttp.ClientError):
            while await self.line():
                pass


@asynccontextmanager
async def listening(
    session: aiohttp.ClientSession, url: str | None, token: str | None = WRITE, **headers: str
) -> AsyncIterator[tuple[Listening, Mapping[str, Any]]]:
    """A connected client and its greeting."""
    given = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    async with session.get(f"{url}/api/v1/events", headers=given) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        client = Listening(response)
        name, hello = await client.event()
        assert name == "hello"
        yield client, hello


async def test_the_greeting_has_the_rights_of_the_token(house: House) -> None:
    for token, by, writable in (
        (WRITE, "alice", True),
        (READ, "grafana", False),
        ("x" * 32, None, False),
        (None, None, False),
    ):
        async with listening(house.session, house.daemon.url, token) as (_, hello):
            assert (hello["by"], hello["writable"], hello["tokens"]) == (by, writable, True)
            assert hello["version"]


async def test_a_stream_ends_when_its_token_expires_and_the_next_greeting_says_so(tmp_path: Path) -> None:
    expires = utc_now() + timedelta(minutes=5)
    tokens = tuple(replace(each, expires=expires if each.name == "alice" else None) for each in TOKENS)
    async with running(tmp_path, tokens=tokens) as house:
        # By the clock of the access control, the token expires in half a second.
        house.daemon.access._utc = lambda: expires - timedelta(seconds=0.5)
        async with listening(house.session, house.daemon.url) as (client, hello):
            assert (hello["by"], hello["writable"], hello["problem"]) == ("alice", True, None)
            async with asyncio.timeout(PATIENCE), listening(house.session, house.daemon.url, READ) as (other, _):
                await client.ended()
                await house.ask("POST", "/api/v1/clusters/a/decide")
                assert (await other.event())[0] == "rows"
        house.daemon.access._utc = lambda: expires
        async with listening(house.session, house.daemon.url) as (_, hello):
            assert (hello["by"], hello["writable"], hello["tokens"]) == (None, False, True)
            assert hello["problem"] == f"the token of alice has expired, at {expires:%Y-%m-%d %H:%M:%S} UTC"
        async with listening(house.session, house.daemon.url, "x" * 32) as (_, hello):
            assert hello["problem"] == "the token is not one of daemon.tokens"


async def test_only_rows_that_have_changed_are_sent(house: House) -> None:
    async with listening(house.session, house.daemon.url) as (client, _):
        for name in ("b", "a"):
            await house.ask("POST", f"/api/v1/clusters/{name}/decide")
            kind, data = await client.event()
            assert (kind, [row["name"] for row in data["clusters"]], data["gone"]) == ("rows", [name], [])
            [listed] = [row for row in (await house.ask("GET", "/api/v1/clusters"))["clusters"] if row["name"] == name]
            assert {**data["clusters"][0], "age": 0} == {**listed, "age": 0}
        await house.order(action="pause", clusters=["a"])
        _, data = await client.event()
        assert [(row["name"], row["severity"]) for row in data["clusters"]] == [("a", 1)]


async def test_rows_read_before_the_greeting_are_sent_to_nobody_and_later_ones_to_all(house: House) -> None:
    async with (
        listening(house.session, house.daemon.url) as (first, _),
        listening(house.session, house.daemon.url) as (second, _),
    ):
        await house.ask("POST", "/api/v1/clusters/a/decide")
        assert await first.event() == await second.event()


async def test_removed_clusters_are_named(house: House) -> None:
    async with listening(house.session, house.daemon.url) as (client, _):
        clusters = {"a": house.config.clusters["a"]}
        await house.reload(replace(house.config, clusters=clusters))
        assert await client.event() == ("rows", {"clusters": [], "gone": ["b"]})


async def test_comments_are_sent_while_nothing_changes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.1)
    async with listening(house.session, house.daemon.url) as (client, _):
        lines = [await client.line() for _ in range(3)]
        assert ":\n" in lines


async def test_rows_are_made_only_while_a_client_listens(house: House) -> None:
    async with listening(house.session, house.daemon.url):
        assert [task for task in asyncio.all_tasks() if task.get_name() == "events"]
    async with asyncio.timeout(PATIENCE):
        while [task for task in asyncio.all_tasks() if task.get_name() == "events"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    async with listening(house.session, house.daemon.url) as (client, _):
        await house.ask("POST", "/api/v1/clusters/a/decide")
        assert (await client.event())[0] == "rows"


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        (None, {}, 401),
        ("x" * 32, {}, 401),
        (READ, {"Origin": "https://elsewhere.example"}, 403),
        (READ, {"Host": "elsewhere.example"}, 421),
    ],
)
async def test_events_follow_the_same_access_rules_as_everything_else(
    tmp_path: Path, token: str | None, headers: dict[str, str], status: int
) -> None:
    async with running(tmp_path, read_needs_token=True) as house:
        await house.ask("GET", "/api/v1/events", token, status, headers=headers)
        async with listening(house.session, house.daemon.url, READ):
            pass


async def test_one_listener_too_many_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    async with running(tmp_path) as house:
        opened = [await house.session.get(f"{house.daemon.url}/api/v1/events") for _ in range(32)]
        assert "already 32 event streams are open" in (await house.ask("GET", "/api/v1/events", status=503))["error"]
        opened[0].close()
        async with asyncio.timeout(PATIENCE):
            while True:
                async with house.session.get(f"{house.daemon.url}/api/v1/events") as response:
                    if response.status == 200:
                        break
                await asyncio.sleep(0.01)
        for each in opened:
            each.close()


async def test_the_connection_of_a_refused_listener_counts_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 1)
    connections = Connections()
    monkeypatch.setattr(http_api, "Connections", lambda: connections)
    async with running(tmp_path) as house, listening(house.session, house.daemon.url):
        assert not connections._idle
        await house.ask("GET", "/api/v1/events", status=503)
        assert len(connections._idle) == 1


async def test_a_slow_reader_is_disconnected_and_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SYSTEM_BUFFER", 2048)
    monkeypatch.setattr(events, "MAX_UNREAD", 2048)
    served = events.Events()
    monkeypatch.setattr(http_api, "Events", lambda: served)
    async with running(tmp_path, QUICK) as house:
        loop, port = asyncio.get_running_loop(), int((house.daemon.url or "").rpartition(":")[2])
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", port))
            await loop.sock_sendall(slow, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with listening(house.session, house.daemon.url) as (client, _), asyncio.timeout(PATIENCE):
                while len(served._listeners) < 2:  # noqa: ASYNC110 - the other side of TCP
                    await asyncio.sleep(0.01)
                while len(served._listeners) > 1:
                    assert (await client.event())[0] == "rows"
                assert (await client.event())[0] == "rows"
                with suppress(ConnectionError):  # its unread bytes are lost
                    while await loop.sock_recv(slow, 65536):
                        pass


async def test_a_stop_does_not_wait_for_listeners(tmp_path: Path) -> None:
    async with running(tmp_path) as house, listening(house.session, house.daemon.url) as (client, _):
        begun = time.monotonic()
        house.daemon.stop()
        await client.ended()
        assert time.monotonic() - begun < 5


async def test_a_failure_ends_the_connections_so_that_clients_reconnect(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(house.session, house.daemon.url) as (client, _):

        def broken(*_: object) -> None:
            raise UnavailableError("a defect")

        monkeypatch.setattr(events, "clusters_beside", broken)
        await client.ended()
    assert "cannot build events" in caplog.text


async def test_rows_of_all_copies_are_sent(tmp_path: Path) -> None:
    async with copies(tmp_path) as two:
        await _all_are_sent(two)


async def _all_are_sent(two: Two) -> None:
    missing = {name for daemon in two.daemons for name in daemon.controllers}
    async with listening(two.session, two.daemons[0].url, TOKEN) as (client, _):
        while missing:
            _, data = await client.event()
            missing -= {row["name"] for row in data["clusters"] if row["problem"] is None}
    alone, other, shown = {"Autoscaler-Forwarded": "1"}, two.daemons[1].controllers, set()
    async with listening(two.session, two.daemons[0].url, TOKEN, **alone) as (client, _):
        before = {*other}
        for _ in range(5):
            _, data = await client.event()
            shown |= {row["name"] for row in data["clusters"]}
        assert not shown & before & {*other}  # on a busy machine leases may move meanwhile
