"""Metrics from a JSON document that a service offers over HTTP. A JMESPath expression selects each metric.

    sources:
      queue: {type: http, url: "https://queue.example.org/stats", token: "${QUEUE_TOKEN}"}
    clusters:
      orders:
        metrics:
          lag: {source: queue, path: "queues[?name=='orders'].waiting | [0]", at: updated}

All metrics and clusters share one request for the document, and its answer is reused for `fresh`. A value that is
missing, not a number or not finite is an error; it is never read as zero. The source does not use the environment's
proxies and does not follow redirects.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from autoscaler.clients.http import AUTHORIZATION, SHOWN, Endpoint, Fetched, JsonClient
from autoscaler.clients.shared_requests import one_line
from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import install_hint
from autoscaler.ports import AnswerError, PluginError, Secret, Shared

SHARE = 0.95  # of the time-out, for the request: its error is raised before the caller's time-out ends
MILLISECONDS_FROM = 1e11  # a unix time from this value on is in milliseconds; in seconds it would be the year 5138


def _jmespath() -> ModuleType | None:
    """The package, or None if it is not installed."""
    try:
        return importlib.import_module("jmespath")
    except ImportError:
        return None


def _check_path(name: str, path: str) -> None:
    """Raise ParameterError if `path` is not a JMESPath expression. If the package is missing, `connect` raises."""
    if not path.strip():
        raise ParameterError(name, "must not be empty, expected a JMESPath expression")
    if (jmespath := _jmespath()) is not None:
        try:
            jmespath.compile(path)
        except jmespath.exceptions.JMESPathError as error:
            raise ParameterError(name, f"{path!r} is not a JMESPath expression: {_first_line(error)}") from None


@dataclass(frozen=True)
class Query:
    """One metric.

    Attributes:
        path: JMESPath expression for a number, or for a list of numbers, one per replica.
        at: JMESPath expression for the time at which the value was true: unix seconds or milliseconds, or an ISO 8601
            string with a time zone. Default: the time of the answer.
    """

    path: str
    at: str | None = None

    def __post_init__(self) -> None:
        _check_path("path", self.path)
        if self.at is not None:
            _check_path("at", self.at)


@dataclass(frozen=True, kw_only=True)
class Http:
    """A JSON document at an address.

    Attributes:
        url: the document's address, `http://` or `https://`. Messages and logs show it, so it must not have secrets.
        token: sent as `Authorization: Bearer <token>`, or unchanged in `token_header`. Default: none.
        token_header: the header that carries the token, such as `X-Api-Key`. Default `Authorization`.
        headers: further HTTP headers. They must not have secrets, because logs show them.
        ca_file: PEM file with the CA certificates for the server's certificate. Default: those of the system.
        verify: whether the server's certificate is verified. Default true; with false, anyone can impersonate the
            server.
        timeout: time-out for reading the document, including retries. Default 3s.
        attempts: how often the document is requested while the server is unavailable, at least 1. Default 3.
        fresh: how long the document is reused for other metrics and clusters. Set it below the clusters' interval.
            Default 1s.
        max_bytes: a larger document is refused. Default 1,000,000.
    """

    Query: ClassVar[type] = Query
    packages: ClassVar[tuple[str, ...]] = ("jmespath",)

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
        object.__setattr__(self, "headers", dict(sorted(self.headers.items())))
        self._endpoint()
        if "#" in self.url:
            raise ParameterError("url", f"must not contain a fragment, not {self.url!r}")
        if self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")

    def __hash__(self) -> int:
        return hash((self.url, self.token, self.token_header, tuple(self.headers.items()), self.timeout, self.fresh))

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            url=self.url.partition("?")[0],
            token=self.token,
            token_header=self.token_header,
            headers=tuple(self.headers.items()),
            ca_file=self.ca_file,
            verify=self.verify,
            timeout=self.timeout * SHARE,
            attempts=self.attempts,
            max_bytes=self.max_bytes,
        )

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[HttpSource]:
        """Open the source. The first `collect` sends the first request.

        Raises:
            PluginError: the package jmespath is not installed.
            AnswerError: `ca_file` cannot be used.
        """
        jmespath = _jmespath()
        if jmespath is None:
            raise PluginError(f"the source http needs jmespath: {install_hint('http')}")
        yield HttpSource(self, await JsonClient.open(shared, self._endpoint()), jmespath)


class HttpSource:
    """The connected source."""

    def __init__(self, plugin: Http, client: JsonClient, jmespath: ModuleType) -> None:
        self._plugin = plugin
        self._client = client
        self._jmespath = jmespath

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the address and the path in its message."""
        begun = time.monotonic()
        _, mark, parameters = self._plugin.url.partition("?")
        fresh = self._plugin.fresh.total_seconds()
        document: Fetched[object] = await self._client.fetch(mark + parameters, fresh=fresh)
        value = _numbers(self._pick(query.path, document.value), self._where(query.path))
        if query.at is None:
            return Reading(value, now - timedelta(seconds=max(0.0, begun - document.at)))
        return Reading(value, _time(self._pick(query.at, document.value), self._where(query.at)))

    def _where(self, path: str) -> str:
        return f"{self._plugin.url}: path {path!r}"

    def _pick(self, path: str, document: object) -> object:
        try:
            found: object = self._jmespath.search(path, document)
        except (ValueError, TypeError, OverflowError) as error:
            # A JMESPathError is a ValueError. JMESPath functions also let Python's own errors through, such as those
            # for NaN, for large integers and for values that cannot be compared.
            raise AnswerError(f"{self._where(path)} cannot be applied: {_first_line(error)}") from None
        if found is None:
            raise AnswerError(f"{self._where(path)} finds nothing in the document")
        return found


def _numbers(found: object, where: str) -> float | tuple[float, ...]:
    """A number or several. Raises AnswerError."""
    if isinstance(found, list):
        if not found:
            raise AnswerError(f"{where} gives an empty list, expected a number or a list of numbers")
        try:
            # A fast path, because there may be hundreds of thousands of numbers and all clusters wait meanwhile.
            if set(map(type, found)) <= {int, float} and all(map(math.isfinite, found)):
                return tuple(map(float, found))
        except OverflowError:
            pass  # reported below
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
    raise AnswerError(f"{where} gives {one_line(json.dumps(found), SHOWN)!r}, expected a finite number")


def _time(found: object, where: str) -> datetime:
    """Parse the time at which a value was true. Raises AnswerError."""
    try:
        if isinstance(found, str):
            at = datetime.fromisoformat(found)
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        else:
            stamp = _number(found, where)
            return datetime.fromtimestamp(stamp / 1000 if abs(stamp) >= MILLISECONDS_FROM else stamp, UTC)
    except (ValueError, OverflowError, OSError):
        pass  # reported below
    raise AnswerError(
        f"{where} gives {one_line(json.dumps(found), SHOWN)!r}, expected unix seconds or milliseconds, or ISO 8601 "
        "with a zone"
    )


def _first_line(error: BaseException) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return first.removesuffix(", for expression:").rstrip(":")  # the message has the expression already
