"""The client for every system with a JSON REST API: Flink, Spark, the source `http`, and your own plug-ins.

    client = await JsonClient.open(shared, Endpoint(url="http://host:4646", token=self.token))
    job = await client.get("/v1/job/orders", Job)
    await client.post("/v1/job/orders/scale", {"Count": 3})

All users that open an equal `Endpoint` share one client. They also share reads: concurrent reads of the same path and
shape wait for one request, and the client keeps its answer for a moment. So all metrics of one poll cost one request.
All methods raise EdgeError. Its message has the address, what was expected and what to do, but no secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from autoscaler.clients.connection_errors import describe_connection_error
from autoscaler.clients.shared_requests import (
    DuplicateKeyError,
    Pause,
    PausedError,
    cancel_all,
    one_line,
    outcome_of,
    unique_keys,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Secret, Shared, UnavailableError

T = TypeVar("T")

AUTHORIZATION = "Authorization"
FRESH = 0.5
"""Seconds for which an answer is reused by default: long enough for the metrics of one poll."""
SHOWN = 120
"""The most characters of another system's text that a message quotes."""

_CONNECTIONS = 512  # for all clients together: below the usual limit of 1,024 open files per process
_CONCURRENT = 8  # requests of one client at a time
_CHUNK = 64 * 1024
_ANYTHING: type[Any] = object
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class Answer(BaseModel):
    """Base class of response models: fields are validated strictly, fields that the model does not name are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)


class StatusError(RefusedError):
    """The server refused the request. `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """An answer and when it arrived, on the monotonic clock."""

    value: T
    at: float

    @property
    def age(self) -> float:
        """Seconds since the answer arrived."""
        return max(0.0, time.monotonic() - self.at)


def check_url(name: str, url: str) -> None:
    """Check the address of a server. Raises ParameterError for the parameter `name`."""
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in {"http", "https"}
            and bool((parts.hostname or "").encode("idna"))
            and parts.port != 0
            and not (parts.query or parts.fragment)
            and not re.search(r"\s", url)
        )
    except ValueError:
        usable, parts = False, urlsplit("")
    if "@" in parts.netloc:
        # The message does not quote the address, because it may contain a password.
        raise ParameterError(name, "must not contain a user or password; use the parameters for authentication")
    if not usable:
        raise ParameterError(name, f"must be an address such as http://host:8081, not {url!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server, how to authenticate, and the limits of a request. The constructor checks all values.

    Attributes:
        url: the server's address, without query. A path that begins with `/` is appended to it.
        username, password: for HTTP basic authentication. Default: none.
        token: sent as `Authorization: Bearer <token>`, or unchanged in `token_header`. Default: none.
        token_header: the header that carries the token, such as `X-Api-Key`.
        headers: further HTTP headers, (name, value). They are not treated as secrets.
        ca_file: PEM file with the CA certificates that the server's certificate must be signed by. Default: those of
            the system.
        verify: whether the server's certificate is verified.
        timeout: time-out for one answer, including retries.
        attempts: how often a read is attempted while the server is unavailable. A write is attempted once.
        max_bytes: a larger answer is an error.
        follow_redirects: whether GET and PUT follow redirects. POST never does: it would become a GET.

    Raises:
        ParameterError: a value cannot be used.
    """

    url: str
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    token_header: str = AUTHORIZATION
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: Path | None = None
    verify: bool = True
    timeout: timedelta = timedelta(seconds=3)
    attempts: int = 2
    max_bytes: int = 32 * 1024 * 1024
    follow_redirects: bool = False

    def __post_init__(self) -> None:
        check_url("url", self.url)
        self._check_login()
        self._check_headers()
        if self.ca_file is not None and not self.verify:
            raise ParameterError("ca_file", "has no effect with verify: false")
        for name in ("attempts", "max_bytes"):
            if getattr(self, name) < 1:
                raise ParameterError(name, f"must be 1 or more, not {getattr(self, name)}")
        if self.timeout <= timedelta(0):
            raise ParameterError("timeout", "must be above 0s")

    def _check_login(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ParameterError("username", "must be given together with password")
        if self.token is not None and self.username is not None:
            raise ParameterError("token", "must not be given together with username and password")
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ParameterError("token", "must be ASCII without spaces (is there a line break at its end?)")
        if self.username is not None and (":" in self.username or not self.username.strip()):
            raise ParameterError("username", "must not be empty or contain a colon")
        if self.password is not None and not (self.password and self.password.isprintable()):
            raise ParameterError("password", "must not be empty or contain a line break (is there one at its end?)")

    def _check_headers(self) -> None:
        if self.token is None and self.token_header != AUTHORIZATION:
            raise ParameterError("token_header", "needs token")
        for name, value in (*self.headers, (self.token_header, "")):
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[ -~]*", value):
                raise ParameterError("headers", f"{name!r} is not a valid HTTP header")
        if {name.lower() for name, _ in self.headers} & {AUTHORIZATION.lower(), self.token_header.lower()}:
            raise ParameterError("headers", f"must not contain {self.token_header}: use token")

    def request_headers(self) -> dict[str, str]:
        """The headers of every request, including the authentication."""
        # "identity" turns compression off, so an answer cannot grow beyond the bytes received.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **dict(self.headers)}
        if self.token is not None:
            headers[self.token_header] = ("Bearer " if self.token_header == AUTHORIZATION else "") + str(self.token)
        elif self.username is not None:
            pair = f"{self.username}:{self.password!s}".encode()
            headers[AUTHORIZATION] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def tls(self) -> ssl.SSLContext | bool:
        """The value of aiohttp's `ssl` argument. Reads `ca_file`; raises AnswerError when it cannot be used."""
        if self.ca_file is None:
            return self.verify
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise AnswerError(f"ca_file {self.ca_file} cannot be used: {error}") from None


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),  # clients must not share cookies such as a proxy's login session
        # No limit per host: many servers may be behind one proxy, and one that hangs must not delay the others.
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
    ) as session:
        yield session


@dataclass(slots=True)
class _Kept:
    """A pending request, or its answer and the time until which the answer is reused."""

    task: asyncio.Task[Any]
    until: float = math.inf


class JsonClient:
    """The client of one endpoint.

    For a system with its own error format, subclass it: set `expected`, override `describe_error` and `is_refusal`.

    Attributes:
        endpoint: the endpoint that the client was opened with.
    """

    expected: ClassVar[str] = "JSON"
    """The error message for an unreadable answer says that this was expected."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession, tls: ssl.SSLContext | bool) -> None:
        self.endpoint = endpoint
        self._session = session
        self._tls = tls
        self._headers = endpoint.request_headers()
        self._timeout = endpoint.timeout.total_seconds()
        self._slots = asyncio.Semaphore(_CONCURRENT)
        # Separate for reads and writes: a Retry-After on a read must not block a scale call. Scale calls are rare and
        # did not overload the server.
        self._pauses = {read: Pause() for read in (True, False)}
        self._kept: dict[Hashable, _Kept] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, shared: Shared, endpoint: Endpoint) -> Self:
        """Return the client of an endpoint. All clients share one HTTP session. This method sends no request."""
        session = await shared.enter(f"{__name__}.session", _session)

        @asynccontextmanager
        async def opened() -> AsyncIterator[Self]:
            tls = await asyncio.to_thread(endpoint.tls) if endpoint.ca_file else endpoint.verify
            client = cls(endpoint, session, tls)
            try:
                yield client
            finally:
                await client.close()

        return await shared.enter((cls, endpoint), opened)

    async def close(self) -> None:
        """Cancel the pending requests."""
        await cancel_all(self._tasks)

    def url(self, path: str) -> str:
        """The address of a path."""
        return (self.endpoint.url.rstrip("/") if path.startswith("/") else self.endpoint.url) + path

    async def get(
        self, path: str, shape: type[T] = _ANYTHING, *, fresh: float = FRESH, expected: str | None = None
    ) -> T:
        """Read a path with GET and return the parsed answer.

        Args:
            path: appended to the endpoint's `url`. It must be URL-quoted and may include a query.
            shape: the type of the answer: a subclass of `Answer` or a `list[...]` of one; default: any JSON.
            fresh: seconds for which other callers get the same answer. They get a failure for at most 0.5 s.
            expected: the error message for an unreadable answer says this; default: the class's `expected`.
        """
        return (await self.fetch(path, shape, fresh=fresh, expected=expected)).value

    async def fetch(
        self, path: str, shape: type[T] = _ANYTHING, *, fresh: float = FRESH, expected: str | None = None
    ) -> Fetched[T]:
        """Like `get`, but also return the time at which the answer arrived."""

        async def read() -> Fetched[T]:
            body = await self._request("GET", path)
            return Fetched(self._parse(path, body, shape, expected), time.monotonic())

        return await self.share((path, shape), read, fresh)

    async def text(self, path: str) -> str:
        """Read a path with GET and return the body as text, for data that a system does not offer as JSON."""
        return (await self._request("GET", path)).decode(errors="replace")

    async def put(self, path: str, document: object) -> Any:  # noqa: ANN401 - any JSON
        """Send a JSON document to a path with PUT, without retries. Returns the JSON answer, or None if it is empty.

        Raises:
            RefusedError: the server refused the request; the message quotes the server.
            UnavailableError: the server could not be reached, or reported that it cannot handle the request now.
            AnswerError: something else answered, such as a proxy's login page: the outcome is unknown.
        """
        return await self._write("PUT", path, document)

    async def post(self, path: str, document: object = None) -> Any:  # noqa: ANN401 - any JSON
        """Like `put`, but with POST."""
        return await self._write("POST", path, document)

    async def send(self, path: str, document: object) -> None:
        """Like `post`, but ignore the answer, which need not be JSON."""
        await self._request("POST", path, document)

    def forget(self) -> None:
        """Discard all kept answers, so that the next reads send requests. Every write calls this."""
        self._kept.clear()

    async def share(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, T]], fresh: float = FRESH) -> T:
        """Call `ask` once for all callers with this key, while the call is pending and for `fresh` seconds after it."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or now >= kept.until:
            self._kept = {known: other for known, other in self._kept.items() if now < other.until}
            kept = self._kept[key] = _Kept(asyncio.create_task(_returned(ask())))
            self._tasks.add(kept.task)
            kept.task.add_done_callback(lambda _, kept=kept: self._ended(kept, fresh))  # type: ignore[misc]
        answer: T = await outcome_of(kept.task, f"{self.endpoint.url}: the client was closed")
        return answer

    def _ended(self, kept: _Kept, fresh: float) -> None:
        self._tasks.discard(kept.task)
        task = kept.task
        failed = task.cancelled() or task.exception() is not None or isinstance(task.result(), EdgeError)
        kept.until = time.monotonic() + (min(fresh, FRESH) if failed else fresh)

    def describe_error(self, body: bytes) -> str | None:
        """The server's own message from the body of a response that is not 2xx, or None."""
        text = body[:1000].decode(errors="replace").strip()
        return None if text.startswith("<") else one_line(text, SHOWN) or None

    def is_refusal(self, status: int, reason: str | None) -> bool:  # noqa: ARG002 - subclasses use it
        """Whether a retry is useless. `reason` is the result of `describe_error`."""
        return status < 500 and status not in {408, 429}  # noqa: PLR2004 - HTTP

    async def _write(self, method: str, path: str, document: object) -> Any:  # noqa: ANN401 - any JSON
        try:
            body = await self._request(method, path, document)
        finally:
            self.forget()
        return self._parse(path, body, _ANYTHING, None) if body.strip() else None

    def _parse(self, path: str, body: bytes, shape: type[T], expected: str | None) -> T:
        try:
            answer: T = _adapter(shape).validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = f"{self.url(path)}: expected {expected or self.expected}"
            if first["type"] == "json_invalid":
                begin = repr(one_line(body[: 4 * SHOWN].decode(errors="replace"), SHOWN))
                raise AnswerError(f"{where}, got {begin} ({first['msg']})") from None
            place = ".".join(map(str, first["loc"])) or "the answer"
            raise AnswerError(f"{where}, but {place}: {first['msg']}") from None
        try:
            json.loads(body, object_pairs_hook=unique_keys)
        except DuplicateKeyError as error:
            raise AnswerError(f"{self.url(path)}: JSON in which {error}: which value counts is unknown") from None
        except (ValueError, RecursionError):
            pass  # This parser rejects JSON that the validation above accepts, such as a very long number.
        return answer

    async def _request(self, method: str, path: str, document: object = None) -> bytes:
        """Return one response body within the time-out. A read is retried while the server is unavailable."""
        before = ""

        def note(state: RetryCallState) -> None:
            nonlocal before
            before = f"; before that: {state.outcome and state.outcome.exception()}"

        try:
            async with asyncio.timeout(self._timeout):
                async for attempt in AsyncRetrying(
                    stop=stop_after_attempt(self.endpoint.attempts if method == "GET" else 1),
                    wait=wait_exponential(multiplier=0.1, max=1) + wait_random(0, 0.1),
                    retry=retry_if_exception_type(UnavailableError) & retry_if_not_exception_type(PausedError),
                    before_sleep=note,
                    reraise=True,
                ):
                    with attempt:
                        self._pauses[method == "GET"].check()
                        async with self._slots:
                            body = await self._exchange(method, path, document)
        except TimeoutError:
            raise EdgeTimeoutError(
                f"{self.url(path)} did not answer in full within {self._timeout:g} s{before}"
            ) from None
        return body

    async def _exchange(self, method: str, path: str, document: object) -> bytes:
        url, endpoint = self.url(path), self.endpoint
        try:
            async with self._session.request(
                method,
                url,
                json=document,
                headers=self._headers,
                ssl=self._tls,
                allow_redirects=endpoint.follow_redirects and method != "POST",
                timeout=aiohttp.ClientTimeout(total=None),  # the caller's time-out covers the retries too
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK):
                    body += chunk
                    if len(body) > endpoint.max_bytes:
                        raise AnswerError(f"{url} answered more than {endpoint.max_bytes:,} bytes, the limit max_bytes")
        except aiohttp.ClientSSLError as error:
            trusted = endpoint.ca_file or "the system"
            if endpoint.ca_file:  # the file may have been replaced together with the server's certificate
                self._tls = await asyncio.to_thread(endpoint.tls)
            raise AnswerError(
                f"{url}: TLS failed: {describe_connection_error(error)}; certificates are trusted by {trusted}"
            ) from None
        except (aiohttp.InvalidURL, aiohttp.TooManyRedirects) as error:
            raise AnswerError(f"{url} cannot be requested: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{url} cannot be reached: {describe_connection_error(error)}") from None
        if response.status // 100 == 2:  # noqa: PLR2004 - HTTP
            return bytes(body)
        raise self._failure(url, response, bytes(body))

    def _failure(self, url: str, response: aiohttp.ClientResponse, body: bytes) -> EdgeError:
        status = response.status
        message = f"{url} answered {status} {response.reason}"
        if status // 100 == 3:  # noqa: PLR2004 - HTTP
            there = one_line(response.headers.get("Location", "").partition("?")[0], SHOWN)
            return AnswerError(f"{message}: redirected to {there!r}; configure the final address (a login page?)")
        reason = self.describe_error(body)
        message += f": {reason}" if reason else ""
        if not self.is_refusal(status, reason):
            self._pauses[response.method == "GET"].note(response.headers.get("Retry-After"), message)
            return UnavailableError(message)
        if status in {401, 403}:
            known = self._headers.keys() & {AUTHORIZATION, self.endpoint.token_header}
            message += "; check the token or password" if known else "; no token or password was sent"
        return StatusError(message, status)


async def _returned(request: Coroutine[Any, Any, T]) -> T | EdgeError:
    """Return the request's result, or return its EdgeError instead of raising it, as `outcome_of` expects."""
    try:
        return await request
    except EdgeError as error:
        return error
