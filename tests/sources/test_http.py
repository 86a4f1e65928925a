"""The source `http`: a JSON document and a JMESPath."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import Reading
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    PluginError,
    RefusedError,
    Secret,
    UnavailableError,
)
from autoscaler.sources.http import Http, Query, _numbers, _time
from autoscaler.testing.contracts import LocalShared
from tests.sources.prometheus_server import Authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENT = {
    "updated": 1_767_225_500,
    "queues": [{"name": "orders", "waiting": 12}, {"name": "bills", "waiting": 0.5}],
    "busy": [0.25, 1, 0.5],
    "text": "12",
    "yes": True,
    "nothing": None,
    "empty": [],
}


@dataclass
class Server:
    """A server of one document.

    Attributes:
        document: its content; bytes are sent unchanged.
        statuses: HTTP statuses of the next answers, before 200 again.
        pause: seconds before an answer.
        headers: of each request.
        queries: of each request.
    """

    document: Any = field(default_factory=lambda: DOCUMENT)
    statuses: list[int] = field(default_factory=list)
    pause: float = 0.0
    headers: list[Mapping[str, str]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers)
        self.queries.append(request.rel_url.raw_query_string)
        await asyncio.sleep(self.pause)
        status = self.statuses.pop(0) if self.statuses else 200
        body = self.document if isinstance(self.document, bytes) else json.dumps(self.document).encode()
        return web.Response(status=status, body=body, headers={"Location": "/login?secret=x"})


@asynccontextmanager
async def serving(server: Server | None = None, **more: Any) -> AsyncIterator[Server]:
    server = server or Server()
    application = web.Application()
    application.router.add_get("/stats", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, **more).start()
    server.url = f"http{'s' if more else ''}://127.0.0.1:{runner.addresses[0][1]}/stats"
    try:
        yield server
    finally:
        await runner.cleanup()


async def read(plugin: Http, *queries: Query) -> list[Any]:
    """The results of concurrent queries of a source opened for them alone: readings or errors."""
    async with LocalShared() as shared, plugin.connect(shared) as source:
        return await asyncio.gather(*(source.collect(query, NOW) for query in queries), return_exceptions=True)


async def reading(plugin: Http, path: str, at: str | None = None) -> Reading:
    (outcome,) = await read(plugin, Query(path, at))
    if isinstance(outcome, BaseException):
        raise outcome
    return cast("Reading", outcome)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("queues[0].waiting", 12.0),
        ("queues[?name=='bills'].waiting | [0]", 0.5),
        ("sum(queues[].waiting)", 12.5),
        ("busy", (0.25, 1.0, 0.5)),
        ("length(queues)", 2.0),
    ],
)
async def test_a_path_selects_one_number_or_several(path: str, value: object) -> None:
    async with serving() as server:
        assert (await reading(Http(url=server.url), path)).value == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("queues[5].waiting", "finds nothing in the document"),
        ("queues[?name=='none'].waiting", "gives an empty list, expected a number or a list of numbers"),
        ("nothing", "finds nothing in the document"),
        ("text", r"""gives '"12"', expected a finite number"""),
        ("yes", "gives 'true', expected a finite number"),
        ("queues", "expected a finite number"),
        ("empty", "gives an empty list"),
        ("[busy, text][]", "expected a finite number"),
        ("sum(queues[].name)", "cannot be applied: In function sum"),
    ],
)
async def test_a_value_that_is_not_a_number_is_missing(path: str, message: str) -> None:
    async with serving() as server:
        with pytest.raises(AnswerError, match=rf"{server.url}: path .*{message}"):
            await reading(Http(url=server.url), path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
async def test_a_value_that_is_not_finite_is_missing(number: str) -> None:
    async with serving(Server(f'{{"lag": {number}}}'.encode())) as server:
        with pytest.raises(AnswerError, match=r"path 'lag' gives .*, expected a finite number"):
            await reading(Http(url=server.url), "lag")


@pytest.mark.parametrize(
    "path",
    ["ceil(nan)", "floor(endless)", "sum([large, nan])", "avg([large, `1.5`])", "max_by(mixed, &@)", "mixed[::0]"],
)
async def test_an_evaluation_error_of_the_expression_is_missing(path: str) -> None:
    body = f'{{"nan": NaN, "endless": Infinity, "large": 1{"0" * 400}, "mixed": [1, "a"]}}'
    async with serving(Server(body.encode())) as server:
        with pytest.raises(AnswerError, match=rf"{server.url}: path .* cannot be applied: "):
            await reading(Http(url=server.url), path)


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"{", b"[" * 100_000, b"\xff\xfe\x00"])
async def test_an_answer_that_is_not_json_is_missing(body: bytes) -> None:
    async with serving(Server(body)) as server:
        with pytest.raises(AnswerError, match=f"{server.url}: expected JSON, got "):
            await reading(Http(url=server.url), "lag")


@pytest.mark.parametrize(
    "stamp", [1_767_225_500, 1_767_225_500.0, 1_767_225_500_000, "2025-12-31T23:58:20Z", "2026-01-01T00:58:20+01:00"]
)
async def test_the_document_may_have_the_time_of_its_values(stamp: object) -> None:
    async with serving(Server({"lag": 1, "at": stamp})) as server:
        assert (await reading(Http(url=server.url), "lag", "at")).at == NOW - timedelta(seconds=100)
        assert (await reading(Http(url=server.url), "lag")).at == NOW


@pytest.mark.parametrize("stamp", ["2025-12-31T23:58:20", "yesterday", True, [1], 1e300, {}])
async def test_an_unreadable_time_is_an_error(stamp: object) -> None:
    async with serving(Server({"lag": 1, "at": stamp})) as server:
        with pytest.raises(AnswerError, match="path 'at' gives"):
            await reading(Http(url=server.url), "lag", "at")


async def test_a_document_is_requested_once_for_all_its_metrics() -> None:
    async with serving() as server, LocalShared() as shared:
        plugin = Http(url=server.url, fresh=timedelta(seconds=30))
        async with plugin.connect(shared) as source:
            queries = [Query("queues[0].waiting"), Query("busy"), Query("text")] * 20
            outcomes = await asyncio.gather(*(source.collect(q, NOW) for q in queries), return_exceptions=True)
            assert sum(isinstance(outcome, Reading) for outcome in outcomes) == 40
            await asyncio.sleep(0.05)
            again = await source.collect(Query("busy"), NOW)
            assert len(server.headers) == 1
            assert NOW - timedelta(seconds=20) < again.at <= NOW - timedelta(seconds=0.05)


async def test_the_query_of_the_url_is_sent() -> None:
    async with serving() as server:
        assert (await reading(Http(url=server.url + "?queue=a%20b"), "busy")).value == (0.25, 1.0, 0.5)
    assert server.queries == ["queue=a%20b"]


async def test_the_token_is_sent_in_the_configured_header() -> None:
    async with serving() as server:
        await reading(Http(url=server.url, token=Secret("hunter2")), "busy")
        await reading(Http(url=server.url, token=Secret("hunter2"), token_header="X-Api-Key"), "busy")
        await reading(Http(url=server.url, headers={"X-Tenant": "a"}), "busy")
    first, second, third = server.headers
    assert first["Authorization"] == "Bearer hunter2"
    assert second["X-Api-Key"] == "hunter2"
    assert "Authorization" not in second
    assert third["X-Tenant"] == "a"


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (302, AnswerError, "answered 302 Found: redirected to '/login'; configure the final address"),
        (401, RefusedError, "answered 401 Unauthorized: .*; no token or password was sent"),
        (403, RefusedError, "answered 403 Forbidden: .*; no token or password was sent"),
        (404, RefusedError, "answered 404 Not Found"),
        (204, AnswerError, "expected JSON, got ''"),
    ],
)
async def test_other_answers_are_errors_and_are_not_retried(status: int, error: type[EdgeError], message: str) -> None:
    async with serving(Server(statuses=[status])) as server:
        with pytest.raises(error, match=message) as caught:
            await reading(Http(url=server.url), "busy")
        assert "secret" not in str(caught.value)
        assert len(server.headers) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_busy_server_is_retried(status: int) -> None:
    async with serving(Server(statuses=[status])) as server:
        assert (await reading(Http(url=server.url), "busy")).value == (0.25, 1.0, 0.5)
    async with serving(Server(statuses=[status] * 9)) as server:
        with pytest.raises(UnavailableError, match=f"answered {status}"):
            await reading(Http(url=server.url), "busy")
        assert len(server.headers) == 3


async def test_a_server_that_hangs_is_missing_within_the_timeout() -> None:
    async with serving(Server(pause=60)) as server:
        begun = time.monotonic()
        with pytest.raises(EdgeTimeoutError, match=f"{server.url} did not answer in full within 0.285 s"):
            await reading(Http(url=server.url, timeout=timedelta(seconds=0.3)), "busy")
        assert time.monotonic() - begun < 10


async def test_a_document_that_is_too_large_is_refused() -> None:
    async with serving(Server(b" " * 2000)) as server:
        with pytest.raises(AnswerError, match="answered more than 1,000 bytes, the limit max_bytes"):
            await reading(Http(url=server.url, max_bytes=1000), "busy")


async def test_tls_trusts_the_given_authority(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    async with serving(ssl_context=authority.context()) as server:
        assert (await reading(Http(url=server.url, ca_file=authority.ca), "queues[0].waiting")).value == 12
        assert (await reading(Http(url=server.url, verify=False), "queues[0].waiting")).value == 12
        with pytest.raises(AnswerError, match=r"TLS failed: .*certificates are trusted by the system"):
            await reading(Http(url=server.url), "busy")
    with pytest.raises(AnswerError, match=r"ca_file .* cannot be used"):
        await reading(Http(url="https://127.0.0.1:1/", ca_file=tmp_path / "none.pem"), "busy")


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"url": "ftp://host/stats"}, "url: must be an address such as"),
        ({"url": "http:///stats"}, "url: must be an address such as"),
        ({"url": "http://ann:secret@host/"}, "url: must not contain a user or password"),
        ({"url": "http://host/?a=1#b"}, "url: must not contain a fragment"),
        ({"url": "http://host:port/"}, "url: must be an address such as"),
        ({"token": Secret("two words")}, "token: must be ASCII without spaces"),
        ({"token_header": "X-Api-Key"}, "token_header: needs token"),
        ({"headers": {"authorization": "x"}}, "headers: must not contain Authorization: use token"),
        ({"headers": {"a b": "x"}}, "'a b' is not a valid HTTP header"),
        ({"headers": {"a": "x\r\ny"}}, "'a' is not a valid HTTP header"),
        ({"ca_file": Path("ca.pem"), "verify": False}, "ca_file: has no effect with verify: false"),
        ({"attempts": 0}, "attempts: must be 1 or more"),
        ({"max_bytes": 0}, "max_bytes: must be 1 or more"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
        ({"fresh": timedelta(-1)}, "fresh: must not be negative"),
    ],
)
def test_an_invalid_parameter_is_named(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Http(**{"url": "http://host/stats", **given_})


@pytest.mark.parametrize(("path", "at"), [("", None), ("queues[", None), ("a..b", None), ("lag", "a b"), ("lag", " ")])
def test_an_invalid_path_is_refused_when_the_configuration_is_read(path: str, at: str | None) -> None:
    with pytest.raises(ValueError, match="JMESPath expression") as caught:
        Query(path, at)
    assert not str(caught.value).endswith(":"), "as if more followed"


async def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    Query("not [ an expression")  # without the package it cannot be checked
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match=r"pip install '\.\[http\]'"):
            async with Http(url="http://host/").connect(shared):
                pass


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_document_gives_finite_numbers_or_an_error(found: Any) -> None:
    with suppress(AnswerError):
        assert Reading(_numbers(found, "here"), NOW).finite()
    with suppress(AnswerError):
        assert _time(found, "here").tzinfo is not None
