"""Metrics from a Prometheus server, or from a server with the same API (Thanos, Mimir, VictoriaMetrics), by queries.

    sources:
      prom: {type: prometheus, url: "https://prometheus:9090", token: "${PROM_TOKEN}", ca_file: ca.pem}
    clusters:
      orders:
        metrics:
          lag: {source: prom, query: "sum by (cluster) (consumer_lag)", match: {cluster: orders}}

**Label fan-out.** All clusters that use a query share one request. Clusters that ask while the request is pending wait
for its answer, and clusters that ask within `fresh` reuse it. `match` selects a cluster's samples. So one query whose
result has a label for the cluster serves all clusters.

**When a value was true.** Prometheus dates the result of an instant query to the time of evaluation, even if the
sample is five minutes old. Therefore, for a plain selector (`consumer_lag{topic="orders"}`), the source also queries
`timestamp(<query>)` at the same instant. For any other expression, set `age`, for example
`min by (cluster) (timestamp(consumer_lag))`. Without `age`, the reading has the time of evaluation. Then only
Prometheus's staleness drops old values: a sample disappears when its target cannot be scraped, or after five minutes.

The answer's own time counts in two cases: if `age` or `timestamp()` is later than it, as when a cache repeats an old
answer, and if it is more than a minute in the future. The reading is then stale or from the future, and is not used.

The time of a sample is when its target was scraped or its recording rule ran. A value in a push gateway may be older:
let the pushing job export the time of its value, and set `age` to that metric. While some series of a sum are missing,
the sum is too small: `sum(lag) and count(lag) == 12` gives no sample in that case.

The source does not use the environment's proxies and `.netrc`, and does not follow redirects.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)
from urllib3.util.retry import Retry

from autoscaler.clients.http import AUTHORIZATION, Endpoint
from autoscaler.clients.shared_requests import (
    DuplicateKeyError,
    Pause,
    PausedError,
    cancel_all,
    one_line,
    outcome_of,
    unique_keys,
)
from autoscaler.core.foreign import Mask
from autoscaler.core.model import ZERO, Reading, no_entries
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    Secret,
    Shared,
    UnavailableError,
)

_AHEAD = 60.0  # seconds: if a server's clock is further ahead of ours, its times cannot be used
SHOWN = 200  # the most characters of the server's text that an error message quotes
CHUNK = 65536  # bytes read at a time
_ANY_TIMEOUT = timedelta(seconds=1)  # a placeholder: plug-ins with different time-outs share one client


class Many(StrEnum):
    """How to make one reading of several samples in an answer."""

    ERROR = "error"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    EACH = "each"


class Empty(StrEnum):
    """How to read an answer without samples."""

    MISSING = "missing"
    ZERO = "zero"


class Warnings(StrEnum):
    """How to treat an answer with warnings."""

    ERROR = "error"
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class Query:
    """One metric: a PromQL expression, and how to make one number, or one number per replica, of its answer.

    Attributes:
        query: a PromQL expression for an instant vector or a scalar.
        match: labels (name -> value) that select this cluster's samples from the result. As in PromQL, a label that a
            sample does not have counts as empty. Default: all samples belong to this cluster.
        many: how to make a reading of several samples. `error` (default) refuses them; `sum`, `mean`, `max`, `min`
            combine them into one number; `each` keeps one number per sample, for a metric with one sample per
            replica. The reading has the time of the oldest sample.
        empty: how to read an answer without samples. `missing` (default) is an error, which never scales down; `zero`
            reads it as 0. `zero` is dangerous: a cluster whose exporter died then seems idle and is scaled down. Use it
            only if the absence of a series really means zero.
        age: a PromQL expression for the unix time (seconds) at which the value was true: a scalar, or a vector with
            the labels of `match`; the oldest counts if there are several. Default: `timestamp(query)` for a plain
            selector, else the time of evaluation.
    """

    query: str
    match: Mapping[str, str] = field(default_factory=dict)
    _: KW_ONLY
    many: Many = Many.ERROR
    empty: Empty = Empty.MISSING
    age: str | None = None

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise ParameterError("query", "must not be empty, expected a PromQL expression")
        if self.age is not None and not self.age.strip():
            raise ParameterError("age", "must not be empty, expected a PromQL expression that gives a unix time")
        for label in self.match:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label):
                raise ParameterError("match", f"{label!r} is not the name of a label")
        object.__setattr__(self, "match", dict(sorted(self.match.items())))
        object.__setattr__(self, "many", Many(self.many))
        object.__setattr__(self, "empty", Empty(self.empty))

    @property
    def doubts(self) -> Iterator[tuple[str, str]]:
        """(key, reason) for each expression that does not parse; none if promql-parser is not installed."""
        try:
            parser = importlib.import_module("promql_parser")
        except ImportError:
            return
        for key, expression in (("query", self.query), ("age", self.age)):
            try:
                parser.parse(expression or "0")
            except ValueError as error:
                message = f"does not parse as PromQL: {error}"
                yield key, f"{message}; ignore this if the server accepts more than PromQL, as VictoriaMetrics does"

    @cached_property
    def over(self) -> timedelta:
        """The time over which the query averages: the only range of its `rate`, `increase` or the like; else 0."""
        ranges = set(_RANGE.findall(self.query))
        used = _RANGED & set(_FUNCTION.findall(self.query))
        if len(ranges) != 1 or not used or not used <= _MEANS or _SUBQUERY.search(self.query):
            return ZERO
        found = _DURATION.findall(ranges.pop())
        return timedelta(milliseconds=sum(int(number) * _UNITS[unit] for number, unit in found))

    def __hash__(self) -> int:
        return hash((self.query, self.wanted, self.many, self.empty, self.age))

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The values of the labels of `match`."""
        return tuple(self.match.values())

    @cached_property
    def asked(self) -> Asked:
        """The request that the server gets for this query."""
        age = self.age
        if age is None and _SELECTOR.fullmatch(self.query) and self.query.strip().lower() not in _NUMBERS:
            age = f"timestamp({self.query.strip()})"
        return Asked(self.query, age, tuple(self.match), exact=self.age is None)


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A Prometheus server.

    Attributes:
        url: the server's address, `http://` or `https://`, with its path prefix if it has one.
        username: user for basic authentication. Default: none.
        password: the user's password.
        token: bearer token, instead of user and password. Default: none.
        ca_file: PEM file with the CA certificates for the server's certificate. Default: those of the certifi package.
        verify: whether the server's certificate is verified. Default true; with false, anyone can impersonate the
            server.
        headers: further HTTP headers, such as `X-Scope-OrgID`. They must not have secrets, because logs show them.
        timeout: time-out for reading a metric, including retries. Default 3s.
        attempts: how often a query is sent while the server is unavailable, at least 1. Default 3.
        fresh: how long an answer is reused for other clusters. Set it below the clusters' interval. Default 5s.
        connections: how many requests run at the same time, 1 to 64. Default 8.
        max_bytes: a larger answer is refused. Default 16,000,000 (about 80,000 samples).
        warnings: an answer with warnings may be partial (Thanos with a store down): `error` (default) refuses
            it, `ignore` uses it. Notes that begin with `PromQL info:` are not warnings.
    """

    Query: ClassVar[type] = Query

    url: str
    _: KW_ONLY
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: Path | None = None
    verify: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta = timedelta(seconds=3)
    attempts: int = 3
    fresh: timedelta = timedelta(seconds=5)
    connections: int = 8
    max_bytes: int = 16_000_000
    warnings: Warnings = Warnings.ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.rstrip("/"))
        object.__setattr__(self, "headers", dict(sorted(self.headers.items())))
        object.__setattr__(self, "warnings", Warnings(self.warnings))
        self.endpoint  # noqa: B018 - it checks its parameters
        if not 1 <= self.connections <= 64:  # noqa: PLR2004 - each may hold a thread
            raise ParameterError("connections", f"must be 1 to 64, not {self.connections}")
        if self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")

    def __hash__(self) -> int:
        return hash((*self._server, self.timeout, self.attempts, self.fresh))

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server, how to authenticate, and the limits of a request."""
        return Endpoint(
            url=self.url,
            username=self.username,
            password=self.password,
            token=self.token,
            headers=tuple(self.headers.items()),
            ca_file=self.ca_file,
            verify=self.verify,
            timeout=self.timeout,
            attempts=self.attempts,
            max_bytes=self.max_bytes,
        )

    @cached_property
    def _server(self) -> tuple[Any, ...]:
        """The parameters that a client depends on: plug-ins with equal ones share a client."""
        return replace(self.endpoint, timeout=_ANY_TIMEOUT, attempts=1), self.connections, self.warnings

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Open the source. The first `collect` sends the first request."""
        server = await shared.enter(("prometheus", self._server), lambda: _serve(self))
        async with aclosing(_Source(self, server)) as source:
            yield source


# A plain selector: a metric's name with optional matchers. `timestamp()` of it gives the time of its own samples.
# The pattern matches whole strings, so that braces and quotes inside a string do not count.
_STRING = r'(?:"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`[^`]*`)'
_MATCHER = rf"[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*{_STRING}"
_SELECTOR = re.compile(rf"\s*[a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:\{{\s*(?:{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*)?\}})?\s*")
_NUMBERS = frozenset({"nan", "inf"})  # literals that look like a metric's name
_DURATION = re.compile(r"(\d+)(ms|[smhdwy])")
_RANGE = re.compile(r"\[\s*((?:\d+(?:ms|[smhdwy]))+)\s*\]")
_SUBQUERY = re.compile(r"\[[^\]\"']*:[^\]\"']*\]")
_FUNCTION = re.compile(r"([a-z_]+)\s*\(")
_MEANS = frozenset({"rate", "increase", "avg_over_time", "sum_over_time", "count_over_time"})
_RANGED = _MEANS | {
    *("irate", "delta", "idelta", "deriv", "changes", "resets", "predict_linear", "holt_winters", "absent_over_time"),
    *("max_over_time", "min_over_time", "last_over_time", "first_over_time", "present_over_time", "mad_over_time"),
    *("quantile_over_time", "stddev_over_time", "stdvar_over_time", "double_exponential_smoothing"),
}
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}


class TooMuchError(AnswerError):
    """The answer is too large for this client or for the server: request less at a time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request to the server. All clusters of a fan-out have an equal one, so one answer serves them.

    Attributes:
        query: the PromQL expression.
        age: the expression for the unix time at which the value was true; None: the time of evaluation.
        labels: the labels whose values differ between clusters.
        exact: whether `age` has one sample for each sample of the query.
    """

    query: str
    age: str | None
    labels: tuple[str, ...]
    exact: bool


@dataclass(slots=True)
class _Sample:
    """One sample as received. It is validated when a cluster reads it, so a bad sample affects only its own cluster."""

    labels: Mapping[str, str]
    value: object
    at: object


@dataclass(slots=True)
class _Answer:
    """A parsed answer, indexed by the values of the labels that differ between clusters."""

    asked: Asked
    now: datetime
    size: int
    samples: Mapping[tuple[str, ...], list[_Sample]]

    def reading(self, query: Query) -> Reading:
        """The reading for one cluster. Raises AnswerError."""
        samples = self.samples.get(query.wanted)
        if not samples:
            if query.empty is Empty.ZERO:
                return Reading(0.0, self.now)
            raise AnswerError(
                f"no sample{_matching(query)} among {self.size}, expected one; does the series still exist?"
            )
        if len(samples) == 1 and query.many is not Many.EACH:
            number, stamp = _number(samples[0].value), _number(samples[0].at, "time")
            return Reading(number, _time(stamp), over=query.over)
        if query.many is Many.ERROR:
            raise AnswerError(
                f"{len(samples)} samples{_matching(query)}, expected one; narrow the query, set match, or combine "
                "them with many: sum, mean, max, min or each"
            )
        numbers = tuple(_number(sample.value) for sample in samples)
        at = _time(min(_number(sample.at, "time") for sample in samples))
        match query.many:
            case Many.EACH:
                return Reading(numbers, at, over=query.over)
            case Many.SUM:
                total = sum(numbers)
            case Many.MEAN:
                total = sum(numbers) / len(numbers)
            case Many.MAX:
                total = max(numbers)
            case Many.MIN:
                total = min(numbers)
        return Reading(_number(total), at, over=query.over)


class _Source:
    """The connected source. All callers of a query share one request and its answer."""

    def __init__(self, plugin: Prometheus, server: _Server) -> None:
        self._plugin = plugin
        self._server = server
        self._fresh = plugin.fresh.total_seconds()
        self._requests: dict[Asked, tuple[asyncio.Task[_Answer | EdgeError], float]] = {}

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the server and the query in its message."""
        loop = asyncio.get_running_loop()
        asked = query.asked
        task, started = self._requests.get(asked, (None, 0.0))
        if task is None or (task.done() and loop.time() - started >= self._fresh):
            task = loop.create_task(self._fetch(asked, now))
            self._requests[asked] = (task, loop.time())
        where = f"{self._server.name}: query {_short(asked.query)}"
        answer = await outcome_of(task, f"{where}: the source was closed")
        try:
            return answer.reading(query)
        except AnswerError as error:
            raise AnswerError(f"{where}: {error}") from None

    async def aclose(self) -> None:
        """Cancel pending requests."""
        await cancel_all(task for task, _ in self._requests.values())

    async def _fetch(self, asked: Asked, now: datetime) -> _Answer | EdgeError:
        """Send a query, with retries while the server is unavailable. An error is returned, as `outcome_of` expects."""
        seconds = self._plugin.timeout.total_seconds()
        until = time.monotonic() + 0.95 * seconds  # so that the library's time-out comes first
        earlier = ""

        def remember(state: RetryCallState) -> None:
            nonlocal earlier
            error = state.outcome.exception() if state.outcome else None
            earlier = f"; before that: {error}" if error else ""

        retries = AsyncRetrying(
            stop=stop_after_attempt(self._plugin.attempts),
            wait=wait_random_exponential(multiplier=0.1, max=1),
            retry=retry_if_exception(
                lambda error: (
                    isinstance(error, UnavailableError) and not isinstance(error, EdgeTimeoutError | PausedError)
                )
            ),
            before_sleep=remember,
            reraise=True,
        )
        try:
            async with asyncio.timeout(seconds):
                return await retries(self._server.read, asked, now, until)
        except EdgeError as error:
            return error
        except TimeoutError:
            return EdgeTimeoutError(
                f"{self._server.name}: query {_short(asked.query)}: no complete answer within {seconds:g}s{earlier}"
            )


@asynccontextmanager
async def _serve(plugin: Prometheus) -> AsyncIterator[_Server]:
    server = _Server(plugin)
    try:
        yield server
    finally:
        server.close()


_INSTANT, _RANGES = frozenset({"vector", "scalar"}), frozenset({"matrix"})
_EXPECTED = {_INSTANT: "an instant vector or a scalar", _RANGES: "a matrix"}


_LAST_TIME = datetime.max.replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query.

    Attributes:
        labels: name -> value.
        points: unix time and value, in order of time; empty for a histogram.
    """

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


class Ranges:
    """Sends range queries, one after the other, with the settings and the credentials of a server's plug-in.

    Args:
        plugin: the server.
        seconds: the time-out for one answer.
    """

    def __init__(self, plugin: Prometheus, seconds: float) -> None:
        self._server = _Server(plugin, _RANGES)
        self._seconds = seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def ask(self, query: str, begin: datetime, end: datetime, step: timedelta) -> list[Series]:
        """Return the results of a query at `begin` and at each `step` up to `end`. All times are whole seconds.

        Raises:
            TooMuchError: the answer is too large for the server or for `max_bytes`.
            EdgeError: there is no answer; the message names the server and the query.
        """
        series = []
        for item in self._server.ask_range(query, begin, end, step, self._seconds):
            try:
                labels = {str(name): str(value) for name, value in item["metric"].items()}
                points = [(float(at), float(value)) for at, value in item.get("values") or ()]
                known = all(0 <= at < _LAST_TIME for at, _ in points)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
                known = False
            if not known:
                raise AnswerError(f"{self._server.name}: query {_short(query)}: not a series: {_short(item)}")
            series.append(Series(labels, points))
        return series


class _Server:
    """The client of one server: prometheus-api-client in its own threads, so that no other server waits for them."""

    def __init__(self, plugin: Prometheus, kinds: frozenset[str] = _INSTANT) -> None:
        self.name = f"prometheus {plugin.url}"
        self._plugin = plugin
        headers = plugin.endpoint.request_headers()
        sent = headers.get(AUTHORIZATION, "").partition(" ")[2]
        self._mask = Mask()
        self._mask.hide(plugin.password or "", plugin.token or "", sent)
        self._session = _Session(plugin.max_bytes, plugin.warnings, kinds)
        self._session.verify = str(plugin.ca_file) if plugin.ca_file else plugin.verify
        if not plugin.verify:
            # The configuration turns verification off on purpose, so do not warn at every request.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        none = Retry(total=0, read=False)
        self._client = PrometheusConnect(plugin.url, headers=headers, session=self._session, retry=none)
        # This replaces the adapter that the library mounts.
        self._session.mount(plugin.url, _Adapter(max_retries=none, pool_maxsize=plugin.connections))
        self._threads = ThreadPoolExecutor(plugin.connections, f"prometheus-{urlsplit(plugin.url).netloc}")

    async def read(self, asked: Asked, now: datetime, until: float) -> _Answer:
        """Send a request and index its answer, in a thread. `until` is on the monotonic clock. Raises EdgeError."""
        connection = _ThreadConnection()
        work = self._threads.submit(self._read, asked, now, until, connection)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            # A time-out frees the loop; only closing the connection frees the thread.
            connection.shut_down()
            raise

    def close(self) -> None:
        """Release threads and connections. A thread that still waits for an answer ends at its own time-out."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    def _read(self, asked: Asked, now: datetime, until: float, connection: _ThreadConnection) -> _Answer:
        with connection:
            samples = self._ask(asked.query, asked.labels, until, None)
            if samples and asked.age is not None:
                ages = self._ask(asked.age, asked.labels, until, samples[0].at)
                _date(samples, ages, asked, now.timestamp() + _AHEAD)
        index: dict[tuple[str, ...], list[_Sample]] = {}
        for sample in samples:
            index.setdefault(tuple(sample.labels.get(name, "") for name in asked.labels), []).append(sample)
        for group in index.values():
            if len(group) > 1:
                group.sort(key=lambda sample: sorted(sample.labels.items()))  # `each` needs a stable order
            for sample in group:
                sample.labels = no_entries()  # not needed any more, and most of an answer's memory
        return _Answer(asked, now, len(samples), index)

    def _ask(self, text: str, labels: tuple[str, ...], until: float, at: object) -> list[_Sample]:
        left = until - time.monotonic()
        with self._translating_errors(text, left):
            if left <= 0:
                raise EdgeTimeoutError(f"no connection free in time (connections: {self._plugin.connections})")
            params = {"timeout": f"{left:.3f}"} | ({} if at is None else {"time": at})
            return _samples(self._client.custom_query(text, params=params, timeout=left), labels)

    def ask_range(self, text: str, begin: datetime, end: datetime, step: timedelta, seconds: float) -> list[Any]:
        """Return the series of a range, including `end`, as the server sends them. Raises EdgeError."""
        params = {"timeout": f"{seconds:g}"}
        with _ThreadConnection(), self._translating_errors(text, seconds):
            result = self._client.custom_query_range(
                text, begin, end, f"{step.total_seconds():g}", params=params, timeout=seconds
            )
            if not isinstance(result, list):
                raise AnswerError(f"result is not a matrix: {_short(result)}")
            return result

    @contextmanager
    def _translating_errors(self, text: str, left: float) -> Iterator[None]:
        """Turn every failure into an EdgeError that names the server and the query."""
        try:
            yield
        except EdgeError as error:
            kind, problem = type(error), str(error)
        except requests.exceptions.SSLError as error:
            trusted = self._plugin.ca_file or "the certifi package"
            kind, problem = AnswerError, f"TLS failed: {_root(error)}; certificates are trusted by {trusted}"
        except requests.exceptions.Timeout:
            kind, problem = EdgeTimeoutError, f"no answer within {left:.3g}s"
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
            kind, problem = UnavailableError, f"no connection, or it was closed: {_root(error)}"
        except OSError as error:
            # requests raises OSError when it cannot read the CA file.
            kind, problem = AnswerError, f"cannot read ca_file {self._plugin.ca_file}: {error}"
        else:
            return
        raise kind(f"{self.name}: query {_short(text)}: {self._mask(problem)}") from None


class _ThreadConnection:
    """The connection that a thread waits on, so that the event loop can shut it down."""

    current = threading.local()  # `current.connection` is the connection of the running thread

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._shut_down = False

    def __enter__(self) -> None:
        self.current.connection = self

    def __exit__(self, *_: object) -> None:
        self.current.connection = None
        with self._lock:
            self._sock = None

    def wait_on(self, sock: socket.socket) -> None:
        """Register the socket; the thread calls this before it waits for an answer."""
        with self._lock:
            self._sock = sock
        if self._shut_down:
            self.shut_down()

    def shut_down(self) -> None:
        """Make the waiting thread fail at once."""
        with self._lock:
            self._shut_down = True
            if self._sock is not None:
                try:
                    # Do not call the TLS socket's own shutdown: it changes the TLS state that the other thread uses.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
                except OSError:  # the connection has ended in the meantime
                    self._sock = None


class _HttpConnection(urllib3.connection.HTTPConnection):
    def getresponse(self) -> urllib3.response.HTTPResponse:  # type: ignore[override] # as its parent's
        _ThreadConnection.current.connection.wait_on(self.sock)
        return super().getresponse()


class _HttpsConnection(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.response.HTTPResponse:  # type: ignore[override] # as its parent's
        _ThreadConnection.current.connection.wait_on(self.sock)
        return super().getresponse()


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class _Adapter(HTTPAdapter):
    """Registers the connection of each request with `_ThreadConnection`."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as its parent's
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _ParsedResponse(requests.Response):
    """A response whose body is already read and parsed."""

    document: Any

    def json(self, **_: Any) -> Any:  # noqa: ANN401 - as its parent's
        return self.document


class _Session(requests.Session):
    """A session for the library that limits the size of an answer and raises EdgeError for every failure.

    requests does not limit the size, and the library neither returns warnings nor distinguishes kinds of failure.
    """

    def __init__(self, max_bytes: int, warnings: Warnings, kinds: frozenset[str]) -> None:
        super().__init__()
        self._kinds = kinds
        self.trust_env = False  # otherwise a .netrc would replace our credentials
        self._max_bytes = max_bytes
        self._warnings = warnings
        self._pause = Pause()

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:  # noqa: ANN401 - as its parent's
        """Send a request. Raises EdgeError for an unusable answer, and lets the exceptions of requests through."""
        self._pause.check()
        kwargs |= {"stream": True, "allow_redirects": False}
        with super().request(method, url, *args, **kwargs) as response:
            body = self._body(response)
        if response.status_code != requests.codes.ok:
            error = _status_error(response, body)
            if isinstance(error, UnavailableError):
                self._pause.note(response.headers.get("Retry-After"), str(error))
            raise error
        parsed = _ParsedResponse()
        parsed.status_code = response.status_code
        parsed.document = self._checked(body, response.headers.get("Content-Type", ""))
        return parsed

    def _body(self, response: requests.Response) -> bytes:
        body = bytearray()
        for chunk in response.raw.stream(CHUNK, decode_content=False):
            body += chunk
            if len(body) > self._max_bytes:
                raise TooMuchError(f"more than {self._max_bytes:,} bytes; aggregate in the query, or raise max_bytes")
        return bytes(body)

    def _checked(self, body: bytes, kind: str) -> object:
        try:
            document = json.loads(body, object_pairs_hook=unique_keys)
        except DuplicateKeyError as error:
            raise AnswerError(f"JSON in which {error}: which value counts is unknown") from None
        except (ValueError, RecursionError):
            shown = _short(body[:SHOWN].decode(errors="replace"))
            raise AnswerError(
                f"not JSON but {kind or 'something'} that begins with {shown}; is url Prometheus's address?"
            ) from None
        if isinstance(document, dict) and document.get("status") == "error":
            raise AnswerError(f"it answered with an error: {_short(document.get('error'))}")
        if not (isinstance(document, dict) and isinstance(document.get("data"), dict)):
            raise AnswerError(
                f"JSON that is not an answer of Prometheus: {_short(body[:SHOWN].decode(errors='replace'))}"
            )
        warnings = [str(text) for text in document.get("warnings") or () if not str(text).startswith("PromQL info:")]
        if warnings and self._warnings is Warnings.ERROR:
            raise AnswerError(
                f"answered with a warning, so it may be partial: {_short('; '.join(warnings))}; "
                "`warnings: ignore` accepts it"
            )
        result = document["data"].get("resultType")
        if result not in self._kinds or "result" not in document["data"]:
            raise AnswerError(f"result is a {_short(result)}, expected {_EXPECTED[self._kinds]}")
        return document


def _status_error(response: requests.Response, body: bytes) -> EdgeError:
    """The error for a status other than 200, with the server's own message if it has one."""
    code = response.status_code
    try:
        document = json.loads(body)
        message = document["error"]
    except (ValueError, RecursionError, TypeError, LookupError):
        message = body[: 2 * SHOWN].decode(errors="replace").strip() or response.reason
    text = f"HTTP {code}: {_short(message)}"
    if code in {401, 403}:
        return RefusedError(f"{text}; check username and password, or token")
    if code == 404:  # noqa: PLR2004 - the HTTP status
        return RefusedError(f"{text}; is url the address of a Prometheus server, with its path prefix?")
    if code in {408, 429} or code >= 500:  # noqa: PLR2004 - the HTTP statuses
        return UnavailableError(text)
    if 300 <= code < 400:  # noqa: PLR2004 - the HTTP statuses
        location = response.headers.get("Location", "").partition("?")[0]
        return AnswerError(
            f"HTTP {code}: redirected to {_short(location)}; set url to the final address (a login page?)"
        )
    return TooMuchError(text) if "too many samples" in text else AnswerError(text)


def _samples(result: object, labels: tuple[str, ...]) -> list[_Sample]:
    """The samples of a vector or a scalar. Raises AnswerError."""
    match result:
        case [int() | float() as at, str() as value]:
            if labels:
                raise AnswerError("result is a scalar, which has no labels to match; expected a vector")
            return [_Sample({}, value, at)]
        case list():
            samples = []
            for item in result:
                match item:
                    case {"metric": dict() as metric, "value": [at, value]}:
                        samples.append(_Sample(metric, value, at))
                    case {"metric": dict() as metric, "histogram": [at, _]}:
                        samples.append(_Sample(metric, "a histogram", at))
                    case _:
                        raise AnswerError(f"a sample without metric and value: {_short(item)}")
            return samples
    raise AnswerError(f"result is neither a vector nor a scalar: {_short(result)}")


def _date(samples: list[_Sample], ages: list[_Sample], asked: Asked, latest: float) -> None:
    """Set each sample's time to the time in `ages`, or to None if it has none, which is an error when it is read.

    A sample keeps its own time, the time of the answer, in two cases: if it is older than the time in `ages`, as when a
    cache repeats an old answer, and if it is later than `latest`, so that none of the server's times can be used.
    """

    def key(sample: _Sample) -> object:
        if asked.exact:  # timestamp() keeps all labels but the name
            return frozenset([item for item in sample.labels.items() if item[0] != "__name__"])
        return tuple(sample.labels.get(name, "") for name in asked.labels)

    oldest: dict[object, object] = {}
    for age in ages:
        at = _stamp(age.value)
        before = oldest.setdefault(key(age), at)
        if isinstance(before, float) and not (isinstance(at, float) and at >= before):
            oldest[key(age)] = at
    for sample in samples:
        origin, own = oldest.get(key(sample)), _stamp(sample.at)
        if not (isinstance(origin, float) and isinstance(own, float) and (own < origin <= latest or own > latest)):
            sample.at = origin


def _stamp(value: object) -> float | None:
    try:
        return _number(value, "time")
    except AnswerError:
        return None


def _matching(query: Query) -> str:
    return "".join(f" for {name}={value!r}" for name, value in query.match.items())


def _number(value: object, what: str = "value") -> float:
    """A finite number. Prometheus sends values as strings. Raises AnswerError."""
    try:
        number = float(value)  # type: ignore[arg-type] # any other type raises TypeError
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise AnswerError(f"{what} is {'unknown' if value is None else _short(value)}, expected a finite number")
    return number


@lru_cache(maxsize=1024)  # saves memory: readings are kept, and many have the time of the same scrape
def _time(stamp: float) -> datetime:
    try:
        return datetime.fromtimestamp(stamp, UTC)
    except (ValueError, OverflowError, OSError):
        raise AnswerError(f"time is {stamp:g}, expected unix seconds") from None


def _short(text: object) -> str:
    return repr(one_line(text, SHOWN))


def _root(error: BaseException) -> str:
    """The message of the innermost wrapped error. The outer errors repeat the whole URL."""
    while True:
        candidates = (getattr(error, "reason", None), *reversed(error.args), error.__cause__)
        inner = next((item for item in candidates if isinstance(item, BaseException)), None)
        if inner is None:
            return str(error) or type(error).__name__
        error = inner
