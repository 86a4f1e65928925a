"""Metrics out of a JSON document that some service shows, each picked by a JMESPath expression.

    sources:
      queue: {type: http, url: "https://queue.example.org/stats", token: "${QUEUE_TOKEN}"}
    clusters:
      orders:
        metrics:
          lag: {source: queue, path: "queues[?name=='orders'].waiting | [0]", at: updated}

The document is asked for once, however many metrics and clusters need it: those that come while it is under way
wait for the same answer, and those that come within `fresh` reuse it. What is not there, is no number, or is not
finite is an error and never zero. Proxies of the environment are not used; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import install_hint
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    PluginError,
    RefusedError,
    Secret,
    Shared,
    UnavailableError,
)

SHOWN = 120  # characters of a foreign text that go into an error message
PIECE = 65536  # bytes read at a time
WITHIN = 0.95  # of the time-out is for the whole question, so that its own error comes before the caller's
MILLISECONDS_FROM = 1e11  # a unix time as large as this is in milliseconds; in seconds it would be the year 5138
AUTHORIZATION = "Authorization"


def _jmespath() -> ModuleType | None:
    """The package, or None where it is not installed."""
    try:
        return importlib.import_module("jmespath")
    except ImportError:
        return None


def _check_path(name: str, path: str) -> None:
    """Raises ValueError when it is no JMESPath expression. Without the package, `connect` says what is missing."""
    if not path.strip():
        raise ValueError(f"{name} must not be empty, expected a JMESPath expression")
    if (jmespath := _jmespath()) is not None:
        try:
            jmespath.compile(path)
        except jmespath.exceptions.JMESPathError as error:
            raise ValueError(f"{name}: {path!r} is no JMESPath expression: {_first_line(error)}") from None


@dataclass(frozen=True)
class Query:
    """One metric.

    Attributes:
        path: JMESPath expression that gives a number, or a list of numbers, one per replica.
        at: JMESPath expression that gives the time at which the value was true: unix seconds or milliseconds, or a
            text of ISO 8601 with its zone. Default: the time of the answer.
    """

    path: str
    at: str | None = None

    def __post_init__(self) -> None:
        _check_path("path", self.path)
        if self.at is not None:
            _check_path("at", self.at)


@dataclass(frozen=True)
class Http:
    """A JSON document at an address.

    Attributes:
        url: its address, `http://` or `https://`. It shows in messages and logs: no secrets in it.
        token: sent as `Authorization: Bearer <token>`, or as it is in `token_header`. Default: none.
        token_header: the header that carries the token, such as `X-Api-Key`. Default `Authorization`.
        headers: further HTTP headers. They are not secret: they show in logs.
        ca_file: PEM file with the certificates that sign the server's. Default: those of the system.
        verify: whether the server's certificate is verified. Default true; false lets anyone pose as the server.
        timeout: within this the document is read, retries included. Default 3s.
        attempts: how often it is asked for while the server is unavailable, at least 1. Default 3.
        fresh: how long it is reused for other metrics and clusters; below the interval of the clusters. Default 1s.
        max_bytes: a larger document is refused. Default 1,000,000.
    """

    Query: ClassVar[type] = Query

    url: str
    token: Secret | None = None
    token_header: str = AUTHORIZATION
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    verify: bool = True
    timeout: timedelta = timedelta(seconds=3)
    attempts: int = 3
    fresh: timedelta = timedelta(seconds=1)
    max_bytes: int = 1_000_000

    def __post_init__(self) -> None:
        address = urlsplit(self.url)
        if address.username is not None or address.password is not None:
            raise ParameterError("url", "must not contain a user or password: give a token")
        port = address.port  # raises ValueError when it is no number
        if address.scheme not in {"http", "https"} or not address.hostname or port == 0 or address.fragment:
            raise ParameterError(
                "url", f"must look like http://host:8080/stats or https://host/stats, not {self.url!r}"
            )
        self._check_headers()
        if self.ca_file is not None and not self.verify:
            raise ParameterError("ca_file", "is of no use with verify: false")
        for name in ("attempts", "max_bytes"):
            if getattr(self, name) < 1:
                raise ParameterError(name, f"must be 1 or more, not {getattr(self, name)}")
        if self.timeout <= ZERO:
            raise ParameterError("timeout", "must be above 0s")
        if self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")
        object.__setattr__(self, "headers", dict(sorted(self.headers.items())))

    def _check_headers(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ParameterError("token", "must be ASCII without spaces (is there a line break at its end?)")
        if self.token is None and self.token_header != AUTHORIZATION:
            raise ParameterError("token_header", "needs token")
        for name, value in {**self.headers, self.token_header: ""}.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[ -~]*", value):
                raise ParameterError("headers", f"{name!r} is not a valid HTTP header")
        if {name.lower() for name in self.headers} & {AUTHORIZATION.lower(), self.token_header.lower()}:
            raise ParameterError("headers", f"must not contain {self.token_header}: use token")

    def __hash__(self) -> int:
        return hash((self.url, self.token, self.token_header, tuple(self.headers.items()), self.timeout, self.fresh))

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Open it. Nothing is sent before the first `collect`.

        Raises:
            PluginError: the package jmespath is not installed.
            AnswerError: `ca_file` cannot be used.
        """
        del shared  # equal sources are connected once, and others ask other addresses
        jmespath = _jmespath()
        if jmespath is None:
            raise PluginError(f"the source http needs jmespath: {install_hint('http')}")
        # Nothing is decompressed, so an answer cannot grow beyond what came over the wire.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **self.headers}
        if self.token is not None:
            scheme = "Bearer " if self.token_header == AUTHORIZATION else ""
            headers[self.token_header] = scheme + str(self.token)
        connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(self._context))
        async with aiohttp.ClientSession(headers=headers, auto_decompress=False, connector=connector) as session:
            source = _Source(self, session, jmespath)
            try:
                yield source
            finally:
                await source.close()

    def _context(self) -> ssl.SSLContext | bool:
        if not self.verify:
            return False
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise AnswerError(f"ca_file {self.ca_file} cannot be used: {error}") from None


@dataclass(frozen=True, slots=True)
class _Document:
    """A document and the time of the loop at which it came."""

    content: Any
    at: float


class _Source:
    """A live source: one document, asked for once for whoever comes."""

    def __init__(self, plugin: Http, session: aiohttp.ClientSession, jmespath: ModuleType) -> None:
        self._plugin = plugin
        self._session = session
        self._jmespath = jmespath
        self._flight: asyncio.Task[_Document | EdgeError] | None = None
        self._started = 0.0

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the address and the path in its message."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        task = self._flight
        if task is None or (task.done() and begun - self._started >= self._plugin.fresh.total_seconds()):
            task = self._flight = loop.create_task(self._fetch())
            self._started = begun
        if not task.done():
            # Unlike awaiting the task, this does not take it from the others when this collect is cancelled.
            await asyncio.wait((task,))
        if task.cancelled():
            raise UnavailableError(f"{self._plugin.url}: the source was closed")
        document = task.result()
        if isinstance(document, EdgeError):
            raise type(document)(*document.args)  # a new one: a shared one would gather all their tracebacks
        value = _numbers(self._pick(query.path, document), self._where(query.path))
        if query.at is None:
            return Reading(value, now - timedelta(seconds=max(0.0, begun - document.at)))
        return Reading(value, _time(self._pick(query.at, document), self._where(query.at)))

    async def close(self) -> None:
        """End what is under way."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    def _where(self, path: str) -> str:
        return f"{self._plugin.url}: path {path!r}"

    def _pick(self, path: str, document: _Document) -> object:
        try:
            found: object = self._jmespath.search(path, document.content)
        except (ValueError, TypeError, OverflowError) as error:
            # A JMESPathError is a ValueError; its functions let through what Python says of NaN, of large integers and
            # of values that cannot be compared.
            raise AnswerError(f"{self._where(path)} cannot be applied: {_first_line(error)}") from None
        if found is None:
            raise AnswerError(f"{self._where(path)} finds nothing in the document")
        return found

    async def _fetch(self) -> _Document | EdgeError:
        """Ask, and again while the server is unavailable. An error is returned: many may raise it, or nobody."""
        seconds = self._plugin.timeout.total_seconds()
        before: list[str] = []
        try:
            async with asyncio.timeout(WITHIN * seconds):
                async for attempt in AsyncRetrying(
                    stop=stop_after_attempt(self._plugin.attempts),
                    wait=wait_random_exponential(multiplier=0.1, max=1),
                    retry=retry_if_exception(lambda error: isinstance(error, UnavailableError)),
                    before_sleep=lambda state: before.append(str(state.outcome and state.outcome.exception())),
                    reraise=True,
                ):
                    with attempt:
                        body = await self._read()
                return _Document(self._parse(body), asyncio.get_running_loop().time())
        except EdgeError as error:
            return error
        except TimeoutError:
            late = f"{self._plugin.url}: no answer to its end within {seconds:g}s"
            return EdgeTimeoutError("; before that: ".join((late, *before[-1:])))

    async def _read(self) -> bytes:
        url = self._plugin.url
        # The whole question has a time-out; aiohttp's own would only hide which it was.
        limits = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.get(url, allow_redirects=False, timeout=limits) as response:
                body = bytearray()
                async for piece in response.content.iter_chunked(PIECE):
                    body += piece
                    if len(body) > self._plugin.max_bytes:
                        raise AnswerError(f"{url}: more than {self._plugin.max_bytes:,} bytes; raise max_bytes")
        except aiohttp.ClientSSLError as error:
            trusted = self._plugin.ca_file or "the system"
            raise AnswerError(f"{url}: TLS failed: {error}; certificates are trusted by {trusted}") from None
        except aiohttp.InvalidURL as error:
            raise AnswerError(f"{url} cannot be asked: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from None
        status = response.status
        if status == 200:  # noqa: PLR2004 - HTTP
            return bytes(body)
        text = f"{url}: HTTP {status} {response.reason}"
        if status in {408, 429} or status >= 500:  # noqa: PLR2004 - HTTP
            raise UnavailableError(text)
        if 300 <= status < 400:  # noqa: PLR2004 - HTTP
            there = response.headers.get("Location", "").partition("?")[0]
            raise AnswerError(f"{text}: redirected to {_short(there)}; give the final address as url (a login page?)")
        if status in {401, 403}:
            raise RefusedError(f"{text}; check token and token_header")
        raise RefusedError(text)

    def _parse(self, body: bytes) -> object:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            shown = _short(body[:SHOWN].decode(errors="replace"))
            raise AnswerError(f"{self._plugin.url}: expected JSON, got what begins with {shown}") from None


def _numbers(found: object, where: str) -> float | tuple[float, ...]:
    """A number or several. Raises AnswerError."""
    if isinstance(found, list):
        if not found:
            raise AnswerError(f"{where} gives an empty list, expected a number or a list of numbers")
        return tuple(_number(each, where) for each in found)
    return _number(found, where)


def _number(found: object, where: str) -> float:
    """A finite number. Raises AnswerError."""
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise AnswerError(f"{where} gives {_short(json.dumps(found))}, expected a finite number")


def _time(found: object, where: str) -> datetime:
    """When a value was true. Raises AnswerError."""
    try:
        if isinstance(found, str):
            at = datetime.fromisoformat(found)
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        else:
            stamp = _number(found, where)
            return datetime.fromtimestamp(stamp / 1000 if abs(stamp) >= MILLISECONDS_FROM else stamp, UTC)
    except (ValueError, OverflowError, OSError):
        pass  # said below
    raise AnswerError(
        f"{where} gives {_short(json.dumps(found))}, expected unix seconds or milliseconds, or ISO 8601 with a zone"
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
