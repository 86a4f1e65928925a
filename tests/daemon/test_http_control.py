"""The HTTP endpoints that change something, on a running daemon: who may use them, refusals, and effects."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
import trustme

from autoscaler import http_connections
from autoscaler.config.model import Config, DaemonSpec, Rights, TlsSpec, TokenSpec
from autoscaler.core.model import Control, ControlKind
from autoscaler.daemon import http_access, http_api
from autoscaler.daemon.history import History
from autoscaler.daemon.http_control import preceded_by
from autoscaler.daemon.observer import utc_now
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.state_store import open_state_store
from autoscaler.http_connections import Connections
from autoscaler.ports import ConfigurationError, Secret
from autoscaler.testing.fakes import Fake, FakeSource, FakeTarget

from .conftest import make_cluster, make_config

TIMEOUT = timedelta(seconds=5)
PATIENCE = 60.0
WRITE, READ = "w" * 32, "r" * 32
TOKENS = (
    TokenSpec(name="alice", rights=Rights.WRITE, token=Secret(WRITE)),
    TokenSpec(name="grafana", rights=Rights.READ, token=Secret(READ)),
)


@dataclass
class House:
    """A running daemon with two clusters that tick rarely."""

    daemon: Daemon
    config: Config
    session: aiohttp.ClientSession
    source: FakeSource
    targets: dict[str, FakeTarget]
    tls: ssl.SSLContext | bool = True

    async def ask(
        self, method: str, path: str, token: str | None = WRITE, status: int = 200, **options: Any
    ) -> dict[str, Any]:
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **options.pop("headers", {})}
        url = f"{self.daemon.url}{path}"
        async with self.session.request(method, url, headers=headers, ssl=self.tls, **options) as response:
            assert response.status == status, await response.text()
            assert response.content_type == "application/json"
            found: dict[str, Any] = await response.json()
            return found

    async def order(self, status: int = 201, token: str | None = WRITE, /, **body: Any) -> dict[str, Any]:
        return await self.ask("POST", "/api/v1/controls", token, status, json=body)

    async def audit(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = (await self.ask("GET", "/api/v1/audit"))["entries"]
        return entries

    async def reload(self, config: Config) -> None:
        self.daemon._load = lambda: config
        before = self.daemon.loaded_at
        self.daemon.reload()
        async with asyncio.timeout(PATIENCE):
            while self.daemon.loaded_at == before and not self.daemon.reload_problems:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    directory: Path, interval: timedelta = timedelta(hours=1), utc: Callable[[], datetime] = utc_now, **spec: Any
) -> AsyncIterator[House]:
    source = FakeSource({"load": 300.0})
    targets = {"a": FakeTarget(), "b": FakeTarget()}
    clusters = {
        name: make_cluster(name, Fake(target), interval=interval, timeout=min(TIMEOUT, interval))
        for name, target in targets.items()
    }
    config = make_config(clusters, Fake(source), directory)
    daemon_spec: DaemonSpec = replace(config.daemon, **{"tokens": TOKENS, **spec})
    config = replace(config, daemon=daemon_spec)

    def load() -> Config:
        raise ConfigurationError(["config.yaml:1: nonsense"])

    async with open_state_store(directory, decisions=100) as store, aiohttp.ClientSession() as session:
        history = History(directory / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, load, store, history, utc=utc)
        work = asyncio.create_task(daemon.run())
        async with asyncio.timeout(PATIENCE):
            while len(daemon.controllers) < len(clusters):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        yield House(daemon, config, session, source, targets)
        daemon.stop()
        await work
        await history.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with running(tmp_path) as found:
        yield found


async def test_a_control_is_in_force_at_the_next_decision_listed_and_audited(house: House) -> None:
    before = house.daemon.utc()
    answer = await house.order(action="hold", clusters=["a"], replicas=7, reason="  load test ", **{"for": "2h"})
    until = datetime.fromisoformat(answer["until"])
    assert timedelta(hours=2) <= until - before <= timedelta(hours=2, seconds=PATIENCE)
    assert answer["clusters"] == ["a"]
    [listed] = (await house.ask("GET", "/api/v1/controls"))["controls"]
    assert (listed["id"], listed["kind"], listed["replicas"]) == (answer["id"], "hold", 7)
    assert (listed["by"], listed["reason"], listed["until"]) == ("alice", "load test", answer["until"])
    await house.ask("POST", "/api/v1/clusters/a/decide")
    await house.ask("POST", "/api/v1/clusters/b/decide")
    assert (house.targets["a"].desired, house.targets["b"].desired) == (7, 3)
    decided_b, decided_a, held = await house.audit()
    assert [entry["action"] for entry in (decided_b, decided_a, held)] == ["decide", "decide", "hold"]
    assert (held["by"], held["reason"], held["accepted"]) == ("alice", "load test", True)
    assert "7" in held["detail"]
    assert "a" in held["scope"]


async def test_a_control_is_refused_while_the_clock_has_not_been_set(tmp_path: Path) -> None:
    now = datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
    async with running(tmp_path, utc=lambda: now) as house:
        answer = await house.order(503, action="pause", clusters=["a"])
        assert "the clock of the daemon's machine shows 1970-01-01 00:00:07 UTC" in answer["error"]
        now = utc_now()
        assert (await house.order(action="pause", clusters=["a"]))["clusters"] == ["a"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 4", b"{}{}"),
        ("Transfer-Encoding: chunked", b"5\r\n{}"),
        ("Content-Length: 50", b"{"),
    ],
)
async def test_an_unreadable_body_is_not_an_internal_error(
    house: House, caplog: pytest.LogCaptureFixture, headers: str, body: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int((house.daemon.url or "").rpartition(":")[2]))
    head = f"POST /api/v1/controls HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WRITE}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n{headers}\r\n\r\n".encode() + body)
    if "gzip" not in headers:
        writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    if "gzip" in headers:
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"the body of the request cannot be read" in answer
    writer.close()
    await house.ask("GET", "/healthz")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_hold_reports_the_clusters_whose_bounds_keep_them_at_another_size(house: House) -> None:
    assert (await house.order(action="hold", clusters=["*"], replicas=10))["held_at"] == {}
    assert (await house.order(action="hold", clusters=["*"], replicas=50))["held_at"] == {"a": 10, "b": 10}
    assert (await house.order(action="hold", clusters=["a"], replicas=0))["held_at"] == {"a": 1}
    assert (await house.order(action="limit", clusters=["a"], max=50))["held_at"] == {}


async def test_the_response_names_controls_in_force_that_take_precedence(house: House) -> None:
    assert (await house.order(action="limit", clusters=["*"], max=9))["preceded_by"] == {}
    assert (await house.order(action="hold", clusters=["*"], replicas=7))["preceded_by"] == {}
    paused = await house.order(action="pause", clusters=["a"], up=True, reason="upgrade")
    assert paused["preceded_by"] == {}
    answer = await house.order(action="hold", clusters=["*"], replicas=8)
    (why,) = answer["preceded_by"].pop("a")
    assert why.startswith("scaling up is paused by ")
    assert why.endswith(": upgrade")
    assert answer["preceded_by"] == {}
    limited = await house.order(action="limit", clusters=["*"], max=9)
    assert {name: len(described) for name, described in limited["preceded_by"].items()} == {"a": 2, "b": 1}
    assert (await house.order(action="resume", clusters=["a"]))["preceded_by"] == {}


async def test_controls_that_take_precedence_are_found_without_blocking_the_loop(house: House) -> None:
    await house.order(action="pause", clusters=["*"])
    hold = Control(kind=ControlKind.HOLD, by="alice", replicas=7)
    names = [f"cluster-{number}" for number in range(1000)]
    finding = asyncio.create_task(preceded_by(house.daemon, hold, names))
    turns = 0
    while not finding.done():
        await asyncio.sleep(0)
        turns += 1
    assert list(await finding) == names
    assert turns >= 5


async def test_a_resume_ends_the_controls(house: House) -> None:
    await house.order(action="hold", clusters=["*"], replicas=7)
    assert (await house.order(action="resume", clusters=["a"]))["until"] is None
    for name in ("a", "b"):
        await house.ask("POST", f"/api/v1/clusters/{name}/decide")
    assert (house.targets["a"].desired, house.targets["b"].desired) == (3, 7)


async def test_only_controls_that_are_in_force_somewhere_are_listed_with_their_clusters(house: House) -> None:
    async def listed() -> list[tuple[str, list[str]]]:
        answer = await house.ask("GET", "/api/v1/controls")
        return [(each["kind"], each["in_force"]) for each in answer["controls"]]

    await house.order(action="pause", clusters=["*"])
    await house.order(action="hold", clusters=["a"], replicas=7)
    assert await listed() == [("pause", ["a", "b"]), ("hold", ["a"])]
    await house.order(action="pause", clusters=["?"], up=True)
    await house.order(action="resume", clusters=["b"])
    assert await listed() == [("hold", ["a"]), ("pause", ["a"])]
    await house.order(action="resume", clusters=["*"])
    assert await listed() == []


@pytest.mark.parametrize(
    ("sent", "directions"),
    [({}, (True, True)), ({"up": True}, (True, False)), ({"down": True, "up": False}, (False, True))],
)
async def test_by_default_a_pause_is_for_both_directions(
    house: House, sent: dict[str, bool], directions: tuple[bool, bool]
) -> None:
    answer = await house.order(action="pause", clusters=["*"], until_resumed=True, **sent)
    assert (answer["until"], answer["clusters"]) == (None, ["a", "b"])
    [control] = house.daemon.controls.in_force("a", None, house.daemon.utc())
    assert (control.kind, (control.up, control.down)) == (ControlKind.PAUSE, directions)


async def test_by_default_a_control_lasts_an_hour(house: House) -> None:
    before = house.daemon.utc()
    answer = await house.order(action="limit", clusters=["a"], max=5)
    assert timedelta(0) <= datetime.fromisoformat(answer["until"]) - before - timedelta(hours=1) < timedelta(minutes=1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"action": "stop", "clusters": ["a"]}, "action: "),
    ({"clusters": ["a"]}, "action: Field required"),
    ({"action": "pause"}, "names no cluster: give clusters, fleets or both"),
    ({"action": "pause", "clusters": []}, "names no cluster"),
    ({"action": "pause", "clusters": [""]}, "clusters.0: "),
    ({"action": "pause", "clusters": "a"}, "clusters: "),
    ({"action": "pause", "clusters": ["a"] * 101}, "clusters: "),
    ({"action": "pause", "clusters": ["a"], "up": False, "down": False}, "pauses nothing"),
    ({"action": "pause", "clusters": ["a"], "up": "yes"}, "up: "),
    ({"action": "pause", "clusters": ["a"], "replicas": 3}, "pause takes no replicas"),
    ({"action": "pause", "clusters": ["a"], "unti": "2h"}, "unti: Extra inputs are not permitted"),
    ({"action": "hold", "clusters": ["a"]}, "hold needs replicas"),
    ({"action": "hold", "clusters": ["a"], "replicas": -1}, "replicas: "),
    ({"action": "hold", "clusters": ["a"], "replicas": 10**9}, "replicas: "),
    ({"action": "hold", "clusters": ["a"], "replicas": "3"}, "replicas: "),
    ({"action": "hold", "clusters": ["a"], "replicas": 3.5}, "replicas: "),
    ({"action": "hold", "clusters": ["a"], "replicas": True}, "replicas: "),
    ({"action": "hold", "clusters": ["a"], "replicas": 3, "min": 1}, "hold takes no min"),
    ({"action": "limit", "clusters": ["a"]}, "limit needs min, max or both"),
    ({"action": "limit", "clusters": ["a"], "min": 5, "max": 4}, "min is 5, expected at most max (4)"),
    ({"action": "resume", "clusters": ["a"], "for": "2h"}, "resume takes no for"),
    ({"action": "resume", "clusters": ["a"], "until_resumed": True}, "resume takes no until_resumed"),
    ({"action": "pause", "clusters": ["a"], "for": "2h", "until_resumed": True}, "for and until_resumed contradict"),
    ({"action": "pause", "clusters": ["a"], "for": "-2h"}, "for: "),
    ({"action": "pause", "clusters": ["a"], "for": "0s"}, "for: is 0s, expected above 0s and at most 366d"),
    ({"action": "pause", "clusters": ["a"], "for": "367d"}, "for: is 367d, expected above 0s and at most 366d"),
    ({"action": "pause", "clusters": ["a"], "for": "7200"}, "for: 7200 has no unit"),
    ({"action": "pause", "clusters": ["a"], "for": 7200}, "for: "),
    ({"action": "pause", "clusters": ["a"], "reason": "x" * 501}, "reason: "),
    ({"action": "pause", "clusters": ["a"], "reason": "\x1b[31mred"}, r"reason: is '\x1b[31mred', expected characters"),
    ({"action": "pause", "clusters": ["a"], "reason": "\u202eevil"}, r"reason: is '\u202eevil', expected characters"),
    ({"action": "pause", "clusters": ["a", "[\0a]"]}, r"clusters.1: is '[\x00a]', expected characters"),
]


@pytest.mark.parametrize(("body", "problem"), WRONG, ids=lambda value: str(value)[:60])
async def test_an_invalid_body_changes_nothing(house: House, body: dict[str, Any], problem: str) -> None:
    assert problem in (await house.order(400, **body))["error"]
    assert house.daemon.controls.listing(house.daemon.utc()) == ()
    assert await house.audit() == []


async def test_a_reason_of_several_lines_is_kept_on_one(house: House) -> None:
    await house.order(action="pause", clusters=["a"], reason=" broker\n\tupgrade\u00a0\u4e2d \n")
    assert [each["reason"] for each in await house.audit()] == ["broker upgrade \u4e2d"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"clusters": ["a", "c"]}, "no cluster matches 'c'; there are: a, b"),
        ({"clusters": ["a", "prod-*"]}, "no cluster matches 'prod-*'; there are: a, b"),
        ({"clusters": ["a"], "fleets": ["f"]}, "no fleet matches 'f'; there are: none"),
    ],
)
async def test_a_control_for_an_unknown_cluster_changes_nothing(
    house: House, body: dict[str, Any], problem: str
) -> None:
    assert (await house.order(404, action="pause", **body))["error"] == problem
    assert house.daemon.controls.listing(house.daemon.utc()) == ()


@pytest.mark.parametrize(
    ("data", "content_type", "status"),
    [
        (b'{"action": "resume", "clusters": ["a"]}', "text/plain", 415),
        (b'{"action": "resume", "clusters": ["a"]}', "application/x-www-form-urlencoded", 415),
        (b'{"action": "resume", "clusters": ["a"', "application/json", 400),
        (b'{"action": "hold", "clusters": ["a"], "replicas": NaN}', "application/json", 400),
        (b"[" * 50_000, "application/json", 400),
        (b'["a"]', "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"reason": "' + b"x" * http_api.MAX_BODY + b'"}', "application/json", 413),
    ],
)
async def test_a_body_that_is_not_short_json_is_refused(
    house: House, data: bytes, content_type: str, status: int
) -> None:
    headers = {"Content-Type": content_type}
    answer = await house.ask("POST", "/api/v1/controls", status=status, data=data, headers=headers)
    assert answer["error"]
    assert await house.audit() == []


async def test_a_requested_decision_is_made_now_and_returned(house: House) -> None:
    assert house.daemon.controllers["a"].decision is None
    answer = await house.ask("POST", "/api/v1/clusters/a/decide", json={"reason": "a deployment"})
    assert (answer["cluster"], answer["decision"]["desired"], house.targets["a"].desired) == ("a", 3, 3)
    assert answer["explanation"].startswith(f"{datetime.fromisoformat(answer['decision']['at']):%Y-%m-%d %H:%M:%S}")
    assert house.daemon.controllers["b"].decision is None
    assert (await house.audit())[0]["reason"] == "a deployment"
    assert (await house.ask("POST", "/api/v1/clusters/c/decide", status=404))["error"].startswith("there is no cluster")
    assert "when" in (await house.ask("POST", "/api/v1/clusters/a/decide", status=400, json={"when": "now"}))["error"]


async def test_all_requests_before_a_tick_begins_share_it_and_later_ones_get_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        path = "/api/v1/clusters/a/decide"
        answers = await asyncio.gather(*(house.ask("POST", path) for _ in range(5)))
        times = {answer["decision"]["at"] for answer in answers}
        later = await house.ask("POST", path)
        assert later["decision"]["at"] > max(times)
        kept = (await house.ask("GET", "/api/v1/clusters/a/decisions"))["decisions"]
        assert len(kept) <= 3


async def test_a_decision_that_cannot_be_stored_is_reported(house: House) -> None:
    await house.ask("POST", "/api/v1/clusters/a/decide")
    house.daemon.controllers["a"]._store = _Full()  # type: ignore[assignment]
    answer = await house.ask("POST", "/api/v1/clusters/a/decide", status=503)
    assert answer["error"] == "nothing was decided: the disk is full"


class _Full:
    async def save(self, *_: object) -> None:
        from autoscaler.ports import StoreError  # noqa: PLC0415

        raise StoreError("the disk is full")


async def test_a_request_for_a_decision_is_answered_when_its_cluster_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as house:
        house.targets["a"].delay = PATIENCE
        waiting = asyncio.create_task(house.ask("POST", "/api/v1/clusters/a/decide", status=503))
        async with asyncio.timeout(PATIENCE):
            while house.daemon.controllers["a"]._observing is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        await house.reload(replace(house.config, clusters={"b": house.config.clusters["b"]}))
        assert "the cluster was reconfigured, removed or handed over, or the daemon stops" in (await waiting)["error"]


@pytest.mark.parametrize("path", ["/api/v1/controls", "/api/v1/clusters/a/decide"])
async def test_without_tokens_nothing_can_be_changed_and_the_response_says_what_to_configure(
    tmp_path: Path, path: str
) -> None:
    async with running(tmp_path, tokens=()) as house:
        body = {"action": "pause", "clusters": ["a"]}
        for token in (None, WRITE):
            answer = await house.ask("POST", path, token, 403, json=body)
            assert "the configuration has no daemon.tokens" in answer["error"]
        assert (await house.ask("GET", "/api/v1/controls", None))["controls"] == []


async def test_only_a_token_with_the_write_right_changes_something(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"action": "pause", "clusters": ["a"]}
    assert "send it as Authorization: Bearer" in (await house.order(401, None, **body))["error"]
    wrong = "x" * 32
    with caplog.at_level(logging.WARNING):
        assert "not one of daemon.tokens" in (await house.order(401, wrong, **body))["error"]
        assert "the token of grafana may only read" in (await house.order(403, READ, **body))["error"]
    assert house.daemon.controls.listing(house.daemon.utc()) == ()
    assert (await house.ask("POST", "/api/v1/clusters/a/decide", READ, 403))["error"]
    decide, right, bad = await house.audit()
    assert [entry["accepted"] for entry in (decide, right, bad)] == [False] * 3
    assert [entry["by"] for entry in (decide, right, bad)] == ["grafana", "grafana", "(no valid token)"]
    assert "POST /api/v1/controls from 127.0.0.1" in bad["detail"]
    shown = caplog.text + str(await house.audit()) + "".join(str(vars(record)) for record in caplog.records)
    assert not any(token in shown for token in (wrong, READ, WRITE))
    async with house.session.post(f"{house.daemon.url}/api/v1/controls", json=body) as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    "header", ["Basic eDp5", "Bearer", "Bearer  ", WRITE, f"Bearer {WRITE}x", f"Bearer {WRITE[1:]}"]
)
async def test_only_an_exact_token_is_accepted(house: House, header: str) -> None:
    body = {"action": "pause", "clusters": ["a"]}
    await house.ask("POST", "/api/v1/controls", None, 401, json=body, headers={"Authorization": header})


async def test_guessing_tokens_floods_neither_the_log_nor_the_audit(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3 * http_access.MAX_REFUSALS):
        await house.order(401, f"guess-{number:030}", action="resume", clusters=["a"])
    assert len(await house.audit()) == http_access.MAX_REFUSALS
    lines = [record for record in caplog.records if record.getMessage() == "HTTP request refused"]
    assert len(lines) == http_access.MAX_REFUSALS
    monkeypatch.setattr(http_access, "REFUSALS_PERIOD", 0.0)
    await house.order(401, "guess" * 8, action="resume", clusters=["a"])
    last, *_ = await house.audit()
    assert f"{2 * http_access.MAX_REFUSALS} more were refused before" in last["detail"]


async def test_a_refusal_that_cannot_be_audited_is_still_a_refusal(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(_: object) -> None:
        from autoscaler.ports import StoreError  # noqa: PLC0415

        raise StoreError("the disk is full")

    house.daemon.access._audit = full
    await house.order(401, "x" * 32, action="resume", clusters=["a"])
    assert "refused HTTP request not audited" in caplog.text


async def test_reading_needs_a_token_if_configured_except_for_the_health(tmp_path: Path) -> None:
    async with running(tmp_path, read_needs_token=True) as house:
        for path in ("/readyz", "/api/v1/clusters", "/api/v1/controls", "/api/v1/audit", "/api/v1/openapi.json"):
            await house.ask("GET", path, None, 401)
            await house.ask("GET", path, "x" * 32, 401)
        for token in (READ, WRITE):
            await house.ask("GET", "/api/v1/clusters", token)
        await house.ask("GET", "/healthz", None)
        async with house.session.get(f"{house.daemon.url}/metrics") as response:
            assert response.status == 401


async def test_reading_needs_no_token_by_default(house: House) -> None:
    for token in (None, "x" * 32, READ, WRITE):
        await house.ask("GET", "/api/v1/clusters", token)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://[broken"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Origin": "OWN"}, True),
        ({"Origin": "OWN", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_page_of_another_site_is_refused(
    house: House, headers: dict[str, str], allowed: bool, method: str
) -> None:
    sent = {name: value.replace("OWN", house.daemon.url or "") for name, value in headers.items()}
    body = {"action": "resume", "clusters": ["a"]} if method == "POST" else None
    status = (201 if method == "POST" else 200) if allowed else 403
    await house.ask(method, "/api/v1/controls", status=status, headers=sent, json=body)


async def test_a_refused_page_is_audited_with_its_token(house: House) -> None:
    headers = {"Origin": "https://evil.example"}
    body = {"action": "resume", "clusters": ["a"]}
    await house.ask("POST", "/api/v1/controls", status=403, headers=headers, json=body)
    await house.ask("POST", "/api/v1/controls", None, status=403, headers=headers, json=body)
    assert [(entry["by"], entry["accepted"]) for entry in await house.audit()] == [
        ("(no valid token)", False),
        ("alice", False),
    ]


async def test_a_link_from_another_site_may_be_opened_but_changes_nothing(house: House) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    await house.ask("GET", "/api/v1/clusters", None, headers=headers)
    body = {"action": "resume", "clusters": ["a"]}
    await house.ask("POST", "/api/v1/controls", status=403, json=body, headers=headers)


async def test_the_valid_tokens_are_those_of_the_last_loaded_configuration(house: House) -> None:
    new = TokenSpec(name="bob", rights=Rights.WRITE, token=Secret("b" * 32))
    daemon = replace(house.config.daemon, tokens=(new,), read_needs_token=True)
    await house.reload(replace(house.config, daemon=daemon))
    await house.order(401, action="resume", clusters=["a"])
    await house.ask("GET", "/api/v1/clusters", None, 401)
    await house.order(201, "b" * 32, action="resume", clusters=["a"])


EXPIRED = "the token of alice has expired, at 2027-03-31 16:00:00 UTC"


async def test_an_expired_token_is_refused_and_the_response_says_since_when(tmp_path: Path) -> None:
    expires = datetime.fromisoformat("2027-03-31T18:00:00+02:00")
    tokens = (replace(TOKENS[0], expires=expires), TOKENS[1])
    async with running(tmp_path, tokens=tokens, read_needs_token=True) as house:
        body = {"action": "pause", "clusters": ["a"]}
        house.daemon.access._utc = lambda: expires - timedelta(seconds=1)
        await house.order(201, **body)
        house.daemon.access._utc = lambda: expires
        assert (await house.order(401, **body))["error"] == EXPIRED
        assert (await house.ask("GET", "/api/v1/clusters", WRITE, 401))["error"] == EXPIRED
        assert (await house.ask("GET", "/api/v1/clusters", "x" * 32, 401))["error"] != EXPIRED
        await house.ask("GET", "/api/v1/clusters", READ)
        _, _, refused, _ = (await house.ask("GET", "/api/v1/audit", READ))["entries"]
        assert (refused["by"], refused["accepted"]) == ("alice", False)
        assert refused["detail"].endswith(EXPIRED)


async def test_an_expired_token_is_logged_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = datetime.fromisoformat("2027-03-31T16:00:00Z")
    times = iter([expires - timedelta(seconds=1)] * 5 + [expires] * 5)
    looked = asyncio.Event()

    def utc() -> datetime:
        found = next(times, None)
        if found is None:
            looked.set()
        return found or expires

    monkeypatch.setattr(http_access, "EXPIRY_POLL", 0.0)
    async with running(tmp_path, tokens=(replace(TOKENS[0], expires=expires),)) as house:
        access = house.daemon.access
        access._utc = utc
        async with asyncio.timeout(PATIENCE):
            await looked.wait()
        lines = [record for record in caplog.records if record.getMessage() == "a token has expired"]
        assert [vars(line)["error"] for line in lines] == [EXPIRED]
        await house.ask("GET", "/api/v1/clusters", None)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


def certificate(ca: trustme.CA, directory: Path) -> TlsSpec:
    """Write a certificate for this machine; existing files are overwritten."""
    issued = ca.issue_cert("localhost", "127.0.0.1")
    spec = TlsSpec(certificate=directory / "tls.crt", key=directory / "tls.key")
    issued.private_key_pem.write_to_path(spec.key)
    spec.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    return spec


async def serial(house: House) -> int:
    """The serial number of the certificate that a new connection gets."""
    assert house.daemon.url is not None
    port = int(house.daemon.url.rpartition(":")[2])
    assert isinstance(house.tls, ssl.SSLContext)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=house.tls)
    found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return int(found, 16)


async def test_with_a_certificate_it_serves_tls_and_uses_a_new_one_after_a_reload(
    tmp_path: Path, ca: trustme.CA
) -> None:
    async with running(tmp_path, tls=certificate(ca, tmp_path)) as house:
        assert (house.daemon.url or "").startswith("https://127.0.0.1:")
        house.tls = ssl.create_default_context()
        ca.configure_trust(house.tls)
        await house.order(action="pause", clusters=["a"])
        own = (house.daemon.url or "").replace("https:", "http:")
        await house.ask("GET", "/api/v1/clusters", status=403, headers={"Origin": own})
        with pytest.raises(aiohttp.ClientError):
            await house.session.get(own)
        before = await serial(house)
        certificate(ca, tmp_path)
        await house.reload(house.config)
        assert await serial(house) != before
        await house.ask("GET", "/api/v1/clusters")


async def test_unfinished_handshakes_count_as_connections_and_a_probe_is_still_answered(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = Connections()
    connections.limit = 4
    monkeypatch.setattr(http_api, "Connections", lambda: connections)
    async with running(tmp_path, tls=certificate(ca, tmp_path)) as house:
        house.tls = ssl.create_default_context()
        ca.configure_trust(house.tls)
        port = int((house.daemon.url or "").rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        async with asyncio.timeout(PATIENCE):
            await house.ask("GET", "/healthz", None)
            # The oldest idle connections were closed in favour of later ones.
            for reader, _ in silent[:6]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert len(connections._idle) + len(connections._busy) <= connections.limit
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_fails_or_takes_too_long_ends_only_its_connection(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_connections, "HANDSHAKE_TIMEOUT", 0.2)
    async with running(tmp_path, tls=certificate(ca, tmp_path)) as house:
        house.tls = ssl.create_default_context()
        ca.configure_trust(house.tls)
        port = int((house.daemon.url or "").rpartition(":")[2])
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(PATIENCE):
                with suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        monkeypatch.setattr(http_connections, "HANDSHAKE_TIMEOUT", PATIENCE)
        await house.ask("GET", "/healthz", None)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_request_in_pieces_or_together_with_the_handshake_is_answered_over_tls(
    tmp_path: Path, ca: trustme.CA
) -> None:
    async with running(tmp_path, tls=certificate(ca, tmp_path)) as house:
        house.tls = ssl.create_default_context()
        ca.configure_trust(house.tls)
        port = int((house.daemon.url or "").rpartition(":")[2])
        for pieces in ([b"GET /healthz HTTP/1.0\r\n\r\n"], [b"GET /healthz HT", b"TP/1.0\r\n", b"\r\n"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=house.tls)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
            async with asyncio.timeout(PATIENCE):
                assert (await reader.read()).startswith(b"HTTP/1.0 200")
            writer.close()


async def test_tokens_that_a_reload_would_expose_in_clear_text_wait_for_the_restart(
    tmp_path: Path, ca: trustme.CA
) -> None:
    async with running(tmp_path, tokens=(), listen="0.0.0.0:0") as house:
        house.daemon.url = (house.daemon.url or "").replace("0.0.0.0", "127.0.0.1")
        daemon = replace(house.config.daemon, tokens=TOKENS, tls=certificate(ca, tmp_path))
        await house.reload(replace(house.config, daemon=daemon))
        assert "no daemon.tokens" in (await house.order(403, action="pause", clusters=["a"]))["error"]


async def test_every_path_is_in_the_openapi_document_and_responses_match_it(house: House) -> None:
    document = await house.ask("GET", "/api/v1/openapi.json")
    app = http_api.application(house.daemon, house.daemon.registry, house.daemon.access, ())
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert {(method, path.replace("{name:.+}", "{name}")) for method, path in served} == described
    await house.order(action="limit", clusters=["*"], min=2, max=5, reason="a sale")
    await house.ask("POST", "/api/v1/clusters/a/decide")
    checked = set()
    for method, path in sorted(described):
        described_answers = document["paths"][path][method]["responses"]
        for name, token, options in (
            ("a", WRITE, {"json": _body(path)} if method == "post" else {}),
            ("nobody", WRITE, {"json": {"what": 1}} if method == "post" else {"params": {"limit": "none"}}),
            ("a", "x" * 32, {}),
        ):
            url = f"{house.daemon.url}{path.replace('{name}', name)}"
            headers = {"Authorization": f"Bearer {token}"}
            async with house.session.request(method, url, headers=headers, **options) as response:
                answer = described_answers[str(response.status)]
                [(content_type, content)] = answer["content"].items()
                assert response.content_type == content_type
                if content_type == "application/json":
                    schema = {**content["schema"], "components": document["components"]}
                    jsonschema.validate(await response.json(), schema, jsonschema.Draft202012Validator)
                checked.add((path, response.status))
    for body, _ in WRONG:
        schema = document["components"]["schemas"]["ControlRequest"]
        assert isinstance(schema, dict), body
    assert {status for _, status in checked} >= {200, 201, 400, 401, 404}


def _body(path: str) -> dict[str, object]:
    return {"action": "resume", "clusters": ["b"]} if path == "/api/v1/controls" else {}
