"""The JSON client against servers that answer well and badly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.clients import shared_requests
from autoscaler.clients.http import Answer, Endpoint, JsonClient, StatusError, check_url
from autoscaler.clients.shared_requests import DuplicateKeyError, Pause, PausedError, unique_keys
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Secret, UnavailableError
from autoscaler.testing.contracts import LocalShared
from tests.sources.prometheus_server import Authority

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Job(Answer):
    name: str
    count: int


JOB_JSON = {"name": "orders", "count": 3, "extra": True}


class Server:
    """A server for one test: `answer` handles every request, and `requests` keeps them."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.answer: Handler = replying(JOB_JSON)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.rel_url}")
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.json() if request.can_read_body else None)
        return await self.answer(request)

    @asynccontextmanager
    async def client(self, **parameters: Any) -> AsyncIterator[JsonClient]:
        async with LocalShared() as shared:
            yield await JsonClient.open(shared, Endpoint(**{"url": self.url, **parameters}))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.handle)
    async with TestServer(application) as running:
        found.url = str(running.make_url("")).rstrip("/")
        yield found


def replying(document: object = None, status: int = 200, **more: Any) -> Handler:
    """Answer with a JSON document, or with unchanged `text` or `body`."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, **more) if more else web.json_response(document, status=status)

    return answer


class Gate:
    """An answer that waits until the test opens it."""

    def __init__(self, document: object = JOB_JSON) -> None:
        self.arrived, self.open = asyncio.Event(), asyncio.Event()
        self._document = document

    async def __call__(self, _: web.Request) -> web.StreamResponse:
        self.arrived.set()
        async with asyncio.timeout(10):
            await self.open.wait()
        return web.json_response(self._document)


async def drip(request: web.Request) -> web.StreamResponse:
    """Answer a byte at a time, forever."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)
    except ConnectionError:
        return response


async def abort(request: web.Request) -> web.StreamResponse:
    """Break the connection in the middle of the answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"name": ')
    assert request.transport is not None
    request.transport.abort()
    return response


# reading


async def test_an_answer_is_checked_strictly_but_only_in_its_used_fields(server: Server) -> None:
    async with server.client() as client:
        assert await client.get("/v1/job?region=a", Job) == Job(name="orders", count=3)
        assert await client.get("/v1/job?region=a") == JOB_JSON
    assert server.requests == ["GET /v1/job?region=a"] * 2, "in another shape it is another answer"


@pytest.mark.parametrize(
    ("base", "path", "requested"),
    [
        ("/", "/job", "/job"),
        ("/api", "/job", "/api/job"),
        ("/api/", "/job", "/api/job"),
        ("/stats/", "?a=1", "/stats/?a=1"),
    ],
)
async def test_a_path_is_appended_to_the_address(server: Server, base: str, path: str, requested: str) -> None:
    async with server.client(url=server.url + base) as client:
        await client.get(path)
    assert server.requests == [f"GET {requested}"]


async def test_a_page_that_is_not_json_can_be_read_as_text(server: Server) -> None:
    server.answer = replying(text="<h4>Settings</h4>")
    async with server.client() as client:
        assert await client.text("/environment/") == "<h4>Settings</h4>"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (replying(text="<html>login</html>"), r"/job: expected JSON, got '<html>login</html>' \(Invalid JSON"),
        (replying(text=""), "expected JSON, got ''"),
        (replying(text='{"name": "or'), 'got \'{"name": "or\' '),
        (replying(text="[" * 100_000), r"expected JSON, got '\[\["),
        (replying(body=b"\xff\xfe\x00"), "expected JSON, got "),
        (replying(text="x" * 5000), "got 'x{119}…'"),
        (replying([]), "expected JSON, but the answer: Input should be an object"),
        (replying({"name": "orders"}), "expected JSON, but count: Field required"),
        (replying({"name": "orders", "count": "3"}), "expected JSON, but count: Input should be a valid integer"),
        (replying({"name": "orders", "count": 3.5}), "expected JSON, but count: "),
    ],
)
async def test_an_unusable_answer_names_the_address_and_what_was_expected(
    server: Server, answer: Handler, message: str
) -> None:
    server.answer = answer
    async with server.client() as client:
        with pytest.raises(AnswerError, match=message) as caught:
            await client.get("/job", Job)
        client.forget()
        with pytest.raises(AnswerError, match="expected the JSON of a job"):
            await client.get("/job", Job, expected="the JSON of a job")
    assert str(caught.value).startswith(f"{server.url}/job: ")
    assert len(str(caught.value)) < 400


async def test_an_answer_that_is_too_large_is_not_read_completely(server: Server) -> None:
    sent = 0

    async def huge(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for _ in range(200):
                await response.write(b"[" * 2**20)
                sent += 1
        except ConnectionError:
            pass
        return response

    server.answer = huge
    async with server.client(max_bytes=100_000) as client:
        with pytest.raises(AnswerError, match="/job answered more than 100,000 bytes, the limit max_bytes"):
            await client.get("/job")
    assert sent < 200


async def test_a_compressed_answer_is_not_decompressed(server: Server) -> None:
    async def bomb(_: web.Request) -> web.StreamResponse:
        response = web.Response(body=b"0" * 1_000_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    server.answer = bomb
    async with server.client(max_bytes=100_000) as client:
        with pytest.raises(AnswerError, match="expected JSON, got "):
            await client.get("/job")
    assert server.headers[0]["Accept-Encoding"] == "identity"


# statuses and retries


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (400, RefusedError, "answered 400 Bad Request: no such field"),
        (401, RefusedError, "answered 401 Unauthorized: no such field; no token or password was sent"),
        (403, RefusedError, "answered 403 Forbidden: no such field; no token or password was sent"),
        (404, RefusedError, "answered 404 Not Found: no such field"),
        (408, UnavailableError, "answered 408 Request Timeout: no such field"),
        (429, UnavailableError, "answered 429 Too Many Requests"),
        (500, UnavailableError, "answered 500 Internal Server Error"),
        (503, UnavailableError, "answered 503 Service Unavailable"),
    ],
)
async def test_only_temporary_failures_are_retried(
    server: Server, status: int, error: type[EdgeError], message: str
) -> None:
    server.answer = replying(status=status, text="no such\n field")
    async with server.client(attempts=3) as client:
        with pytest.raises(error, match=f"^{server.url}/job {message}") as caught:
            await client.get("/job")
    assert len(server.requests) == (3 if error is UnavailableError else 1)
    assert getattr(caught.value, "status", status) == status


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pause_requested_by_a_server_lasts_over_several_ticks(
    server: Server, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(shared_requests, "time", SimpleNamespace(monotonic=lambda: now))
    server.answer = replying(status=status, text="busy", headers={"Retry-After": "30"})
    async with server.client(attempts=3) as client:
        asked = rf"answered {status} .*: busy; it asked to wait another 30 s \(Retry-After\)$"
        with pytest.raises(UnavailableError, match=asked):
            await client.get("/job")
        now += 29
        with pytest.raises(UnavailableError, match="it asked to wait another 1 s"):
            await client.get("/other")
        assert len(server.requests) == 1
        # A scale call does not wait for the pause of reads: it is rare, and did not overload the server.
        for _ in range(2):
            with pytest.raises(UnavailableError, match="busy"):
                await client.put("/job", {})
        assert len(server.requests) == 2
        now += 1
        server.answer = replying(JOB_JSON)
        assert (await client.get("/job", Job)).count == 3


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5),
        ("86400", 60),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10),
        ("-5", 0),
        ("nan", 0),
        ("soon", 0),
        ("Thu, 01 Jan 1970 99:99:99 GMT", 0),
    ],
)
def test_a_requested_pause_is_observed_up_to_a_minute(
    header: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_requests, "time", SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 1000.0))
    pause = Pause()
    pause.note(header, "busy")
    if seconds:
        with pytest.raises(PausedError, match=f"^busy; it asked to wait another {seconds} s"):
            pause.check()
    else:
        pause.check()


@pytest.mark.parametrize("shape", [object, dict[str, Any], Job])
async def test_a_duplicate_key_is_an_error(server: Server, shape: type[Any]) -> None:
    server.answer = replying(body=b'{"name": "orders", "count": 3, "more": [{"x": 1, "x": 2}], "name": "orders"}')
    async with server.client() as client:
        with pytest.raises(AnswerError, match=r"/job: JSON in which the key '\w+' appears twice: which value counts"):
            await client.get("/job", shape)


async def test_a_shared_refusal_keeps_its_status(server: Server) -> None:
    server.answer = replying(status=404, text="gone")
    async with server.client() as client:
        for _ in range(2):
            with pytest.raises(StatusError) as caught:
                await client.get("/job")
            assert caught.value.status == 404
    assert len(server.requests) == 1


async def test_an_html_page_is_not_quoted_as_the_servers_explanation(server: Server) -> None:
    server.answer = replying(status=404, text="<html>nginx</html>")
    async with server.client() as client:
        with pytest.raises(RefusedError, match=r"answered 404 Not Found$"):
            await client.get("/job")


@pytest.mark.parametrize("login", [{"token": Secret("hunter2")}, {"username": "ann", "password": Secret("hunter2")}])
async def test_a_rejected_login_is_reported_with_advice_and_not_shown(server: Server, login: dict[str, Any]) -> None:
    server.answer = replying(status=401, text="")
    async with server.client(**login) as client:
        with pytest.raises(RefusedError, match=r"answered 401 Unauthorized; check the token or password$") as caught:
            await client.get("/job")
        assert "hunter2" not in f"{caught.value!r} {client.endpoint!r}"


async def test_a_server_that_recovers_is_read_again(server: Server) -> None:
    async def recover(request: web.Request) -> web.StreamResponse:
        failing = len(server.requests) == 1
        return await (abort if failing else replying(JOB_JSON))(request)

    server.answer = recover
    async with server.client() as client:
        assert await client.get("/job") == JOB_JSON
    assert len(server.requests) == 2


async def test_a_broken_or_refused_connection_is_unavailable(server: Server, unused_tcp_port: int) -> None:
    server.answer = abort
    async with server.client() as client:
        with pytest.raises(UnavailableError, match=f"{server.url}/job cannot be reached: "):
            await client.get("/job")
    nobody = f"http://127.0.0.1:{unused_tcp_port}"
    async with server.client(url=nobody) as client:
        with pytest.raises(UnavailableError, match=f"{nobody}/job cannot be reached: Connection refused: "):
            await client.get("/job")


@pytest.mark.parametrize("method", ["get", "put", "post"])
async def test_a_slow_answer_times_out(server: Server, method: str) -> None:
    server.answer = drip
    begun = time.monotonic()
    async with server.client(timeout=timedelta(seconds=0.3), attempts=9) as client:
        with pytest.raises(EdgeTimeoutError, match=f"{server.url}/job did not answer in full within 0.3 s$"):
            await (client.get("/job") if method == "get" else getattr(client, method)("/job", {}))
    assert time.monotonic() - begun < 5


async def test_retries_end_at_the_timeout_and_the_last_failure_is_named(server: Server) -> None:
    server.answer = replying(status=503, text="starting")
    async with server.client(timeout=timedelta(seconds=0.5), attempts=1000) as client:
        with pytest.raises(EdgeTimeoutError, match=r"within 0\.5 s; before that: .* answered 503 .*: starting"):
            await client.get("/job")
    assert 2 <= len(server.requests) < 20


@pytest.mark.parametrize("follow", [True, False])
async def test_redirects_are_followed_only_if_allowed(server: Server, follow: bool) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        if request.path == "/final":
            return web.json_response(JOB_JSON)
        return web.Response(status=307, headers={"Location": "/final?session=hunter2"})

    server.answer = redirect
    async with server.client(follow_redirects=follow) as client:
        if follow:
            assert await client.get("/job") == JOB_JSON
            assert await client.put("/job", {}) == JOB_JSON
        message = "/job answered 307 Temporary Redirect: redirected to '/final'; configure the final address"
        for ask in (client.post("/job", {}),) if follow else (client.get("/job"), client.put("/job", {})):
            with pytest.raises(AnswerError, match=message) as caught:
                await ask
            assert "hunter2" not in str(caught.value)


async def test_circular_redirects_end(server: Server) -> None:
    server.answer = replying(status=302, headers={"Location": "/job"})
    async with server.client(follow_redirects=True) as client:
        with pytest.raises(AnswerError, match="/job cannot be requested: "):
            await client.get("/job")


# sharing


async def test_a_path_is_requested_once_for_all_concurrent_or_soon_following_readers(server: Server) -> None:
    async with server.client() as client:
        assert await asyncio.gather(*(client.get("/job") for _ in range(20))) == [JOB_JSON] * 20
        assert (await client.fetch("/job")).age < 5
        await client.get("/other")
        assert server.requests == ["GET /job", "GET /other"]
        client.forget()
        await client.get("/job")
    assert server.requests[2:] == ["GET /job"]


async def test_an_answer_is_cached_as_long_as_the_caller_wants(server: Server) -> None:
    async with server.client() as client:
        first = await client.fetch("/job", Job, fresh=0)
        second = await client.fetch("/job", Job, fresh=0.1)
        assert second.at > first.at
        assert await client.fetch("/job", Job) == second
        await asyncio.sleep(0.11)
        third = await client.fetch("/job", Job, fresh=60)
        assert third.at > second.at
        await asyncio.sleep(0.6)
        assert await client.fetch("/job", Job) == third
        assert third.age >= 0.6
    assert len(server.requests) == 3


async def test_a_failure_is_cached_briefly_whatever_the_caller_wants(server: Server) -> None:
    server.answer = replying(status=404)
    async with server.client() as client:
        for _ in range(2):
            with pytest.raises(RefusedError):
                await client.get("/job", fresh=60)
        assert len(server.requests) == 1
        server.answer = replying(JOB_JSON)
        await asyncio.sleep(0.6)
        assert await client.get("/job", fresh=60) == JOB_JSON


async def test_a_shared_failure_does_not_accumulate_the_tracebacks_of_its_readers(server: Server) -> None:
    server.answer = replying(status=404)
    async with server.client() as client:
        depths = set()
        for _ in range(5):
            with pytest.raises(RefusedError) as caught:
                await client.get("/job", fresh=60)
            depths.add(len(caught.traceback))
    assert len(depths) == 1


async def test_a_cancelled_reader_does_not_cancel_the_others(server: Server) -> None:
    server.answer = gate = Gate()
    async with server.client() as client:
        hasty, patient = (asyncio.create_task(client.get("/job", Job)) for _ in range(2))
        await gate.arrived.wait()
        hasty.cancel()
        gate.open.set()
        assert (await patient).count == 3
        assert hasty.cancelled()
    assert len(server.requests) == 1


async def test_a_failure_after_its_readers_have_gone_is_silent(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = gate = Gate("not a job")
    async with server.client() as client:
        hasty = asyncio.create_task(client.get("/job", Job))
        await gate.arrived.wait()
        hasty.cancel()
        gate.open.set()
        with pytest.raises(AnswerError):
            await client.get("/job", Job)
    assert not caplog.records


async def test_expired_answers_are_not_kept_in_memory(server: Server) -> None:
    async with server.client() as client:
        for number in range(50):
            await client.get(f"/job?n={number}", fresh=0)
        assert len(client._kept) == 1


async def test_closing_a_client_cancels_its_requests(server: Server) -> None:
    server.answer = gate = Gate()
    async with server.client() as client:
        waiting = asyncio.create_task(client.get("/job", Job))
        await gate.arrived.wait()
    with pytest.raises(UnavailableError, match=f"{server.url}: the client was closed"):
        await waiting
    gate.open.set()


async def test_one_server_gets_eight_requests_at_a_time(server: Server) -> None:
    server.answer = gate = Gate()
    async with server.client(timeout=timedelta(seconds=30)) as client:
        waiting = [asyncio.create_task(client.get(f"/job?n={number}", Job)) for number in range(20)]
        async with asyncio.timeout(10):
            while len(server.requests) < 8:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(server.requests) == 8
        gate.open.set()
        await asyncio.gather(*waiting)
    assert len(server.requests) == 20


async def test_equal_endpoints_share_a_client_and_all_share_a_session(server: Server) -> None:
    async with LocalShared() as shared:
        first, second, other = [
            await JsonClient.open(shared, Endpoint(url=server.url, token=Secret(token))) for token in ("a", "a", "b")
        ]
        assert first is second
        assert first is not other
        assert first._session is other._session


# writing


@pytest.mark.parametrize("method", ["put", "post"])
async def test_a_document_is_written_once_and_cached_answers_are_dropped(server: Server, method: str) -> None:
    async with server.client(attempts=5) as client:
        await client.get("/job", fresh=60)
        assert await getattr(client, method)("/job", {"count": 4}) == JOB_JSON
        await client.get("/job", fresh=60)
        server.answer = replying(status=503, text="")
        with pytest.raises(UnavailableError, match="answered 503"):
            await getattr(client, method)("/job", {"count": 5})
    name = method.upper()
    assert server.requests == ["GET /job", f"{name} /job", "GET /job", f"{name} /job"]
    assert server.bodies == [None, {"count": 4}, None, {"count": 5}]


async def test_a_read_from_before_a_write_is_not_used_after_it(server: Server) -> None:
    server.answer = gate = Gate({"count": 3})
    async with server.client() as client:
        before: asyncio.Task[Any] = asyncio.create_task(client.get("/job"))
        await gate.arrived.wait()
        server.answer = replying({"count": 4})
        await client.post("/job", {"count": 4})
        assert await client.get("/job") == {"count": 4}
        gate.open.set()
        assert await before == {"count": 3}


async def test_an_empty_answer_to_a_write_is_accepted_but_not_a_login_page(server: Server) -> None:
    async with server.client() as client:
        server.answer = replying(status=204, body=b"")
        assert await client.post("/job") is None
        server.answer = replying(text="<html>login</html>")
        with pytest.raises(AnswerError, match="/job: expected JSON, got '<html>login</html>'"):
            await client.post("/job", {})


# authentication and TLS


@pytest.mark.parametrize(
    ("parameters", "header", "value"),
    [
        ({}, "Authorization", None),
        ({"token": Secret("hunter2")}, "Authorization", "Bearer hunter2"),
        ({"token": Secret("hunter2"), "token_header": "X-Nomad-Token"}, "X-Nomad-Token", "hunter2"),
        ({"token": Secret("hunter2"), "token_header": "X-Nomad-Token"}, "Authorization", None),
        ({"username": "ann", "password": Secret("pw")}, "Authorization", "Basic YW5uOnB3"),
        ({"headers": (("X-Tenant", "a"),)}, "X-Tenant", "a"),
    ],
)
async def test_a_request_has_its_authentication(
    server: Server, parameters: dict[str, Any], header: str, value: str | None
) -> None:
    async with server.client(**parameters) as client:
        await client.get("/job")
        await client.put("/job", {})
    assert [headers.get(header) for headers in server.headers] == [value, value]


async def test_a_cookie_of_one_client_is_not_sent_by_another(server: Server) -> None:
    """Cookies are stored for names, not for addresses, so the name of the host is used."""
    server.answer = replying(text="{}", headers={"Set-Cookie": "session=of-the-first"})
    async with LocalShared() as shared:
        for token in ("first", "second"):
            endpoint = Endpoint(url=server.url.replace("127.0.0.1", "localhost"), token=Secret(token))
            await (await JsonClient.open(shared, endpoint)).get("/job")
    assert not any("Cookie" in headers for headers in server.headers)


async def test_tls_trusts_the_given_authority(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    application = web.Application()
    application.router.add_get("/job", replying(JOB_JSON))
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.context()).start()
    found = Server()
    found.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        for trusted in ({"ca_file": authority.ca}, {"verify": False}):
            async with found.client(**trusted) as client:
                assert await client.get("/job") == JOB_JSON
        async with found.client() as client:
            with pytest.raises(AnswerError, match=r"/job: TLS failed: .*certificates are trusted by the system"):
                await client.get("/job")
    finally:
        await runner.cleanup()
    with pytest.raises(AnswerError, match=r"ca_file .*none\.pem cannot be used: "):
        async with found.client(ca_file=tmp_path / "none.pem"):
            pass


async def test_a_renewed_authority_is_trusted_without_a_restart(tmp_path: Path, unused_tcp_port: int) -> None:
    trusted, found = tmp_path / "ca.pem", Server()
    found.url = f"https://127.0.0.1:{unused_tcp_port}"

    async def job(_: web.Request) -> web.Response:
        response = web.json_response(JOB_JSON)
        response.force_close()  # the next request opens a new connection
        return response

    @asynccontextmanager
    async def served(name: str) -> AsyncIterator[None]:
        (tmp_path / name).mkdir()
        authority = Authority.make(tmp_path / name)
        trusted.write_bytes(authority.ca.read_bytes())
        application = web.Application()
        application.router.add_get("/job", job)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", unused_tcp_port, ssl_context=authority.context()).start()
            yield
        finally:
            await runner.cleanup()

    async with AsyncExitStack() as stack:
        async with served("before"):
            client = await stack.enter_async_context(found.client(ca_file=trusted))
            assert await client.get("/job", fresh=0) == JOB_JSON
        async with served("after"):
            with pytest.raises(AnswerError, match=r"TLS failed: .*certificates are trusted by .*ca\.pem"):
                await client.get("/job", fresh=0)
            assert await client.get("/job", fresh=0) == JOB_JSON


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"url": "host:8081"}, "url: must be an address such as http://host:8081, not 'host:8081'"),
        ({"url": "ftp://host/"}, "url: must be an address"),
        ({"url": "http://"}, "url: must be an address"),
        ({"url": "http://host:99999"}, "url: must be an address"),
        ({"url": "http://host:0"}, "url: must be an address"),
        ({"url": "http://host/?a=b"}, "url: must be an address"),
        ({"url": "http://host\n"}, "url: must be an address"),
        ({"url": f"http://{'a' * 70}.example"}, "url: must be an address"),
        ({"url": "http://ann:hunter2@host"}, "url: must not contain a user or password"),
        ({"username": "ann"}, "username: must be given together with password"),
        ({"username": "a:b", "password": Secret("x")}, "username: must not be empty or contain a colon"),
        ({"username": "ann", "password": Secret("x\n")}, "password: must not be empty or contain a line break"),
        ({"username": "ann", "password": Secret("x"), "token": Secret("y")}, "token: must not be given together"),
        ({"token": Secret("hunter2\n")}, "token: must be ASCII without spaces"),
        ({"token_header": "X-Token"}, "token_header: needs token"),
        ({"headers": (("a b", "x"),)}, "headers: 'a b' is not a valid HTTP header"),
        ({"headers": (("a", "x\r\ny"),)}, "headers: 'a' is not a valid HTTP header"),
        ({"headers": (("authorization", "x"),)}, "headers: must not contain Authorization: use token"),
        ({"ca_file": Path("ca.pem"), "verify": False}, "ca_file: has no effect with verify: false"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
        ({"attempts": 0}, "attempts: must be 1 or more, not 0"),
        ({"max_bytes": 0}, "max_bytes: must be 1 or more, not 0"),
    ],
)
def test_an_invalid_endpoint_is_refused_when_it_is_created(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{message}") as caught:
        Endpoint(**{"url": "http://host", **parameters})
    assert "hunter2" not in str(caught.value)


def test_an_invalid_address_is_reported_with_the_name_of_its_parameter() -> None:
    check_url("master", "http://master:8080")
    with pytest.raises(ParameterError, match=r"^master: must be an address"):
        check_url("master", "master:8080")


def test_a_duplicate_key_is_found_in_a_large_object() -> None:
    """In quadratic time this would take minutes, during which no cluster is served."""
    pairs: list[tuple[str, object]] = [(f"key{number}", number) for number in range(200_000)]
    assert unique_keys(pairs) == dict(pairs)
    with pytest.raises(DuplicateKeyError, match="the key 'key199999' appears twice"):
        unique_keys([*pairs, pairs[-1]])
