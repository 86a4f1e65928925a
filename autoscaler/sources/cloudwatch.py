"""Metrics from Amazon CloudWatch, such as Kinesis iterator age, MSK lag, SQS depth or CPU of an Auto Scaling group.

    sources:
      cloudwatch: {type: cloudwatch, region: eu-central-1}
    clusters:
      orders:
        metrics:
          age: {source: cloudwatch, namespace: AWS/Kinesis, metric: GetRecords.IteratorAgeMilliseconds,
                dimensions: {StreamName: orders}, stat: Maximum, scale: 0.001}

**Requests.** AWS charges for every metric in every request, and a metric changes once per period. Therefore the source
sends a query once per period, no matter how many clusters use it and how often they tick. Queries that become due at
about the same time are sent together, up to 500 in one GetMetricData.

**When a value was true.** CloudWatch dates a datapoint to the start of its period. The reading has the end of the
period, when the value is complete. The current period is left out, because its sum is still too small.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar

from autoscaler.clients import aws
from autoscaler.clients.shared_requests import cancel_all, one_line, outcome_of
from autoscaler.core.foreign import format_exception
from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    Shared,
    UnavailableError,
)

MAX_QUERIES = 500  # in one GetMetricData
BATCH_WINDOW = 0.02  # seconds within which queries are collected into one request
EARLY_SHARE = 0.05  # of a period: a query may be sent this long before its end, because ticks do not coincide with it
AHEAD_SHARE = 0.1  # of a period: a request includes the queries that become due within this time
UNUSED_PERIODS = 3.0  # periods without a reader after which a query is no longer sent
PUBLISH_DELAY = timedelta(minutes=3)  # the longest time until a datapoint appears
ERROR_REUSE = 5.0  # seconds for which an error is returned to all callers
MAX_ERROR_REUSE = 60.0  # seconds, for errors that a retry after 5 s would not resolve

SHORT_PERIODS = frozenset({1, 5, 10, 20, 30})
DAY = 86400
log = logging.getLogger("autoscaler.sources")

_STAT = re.compile(
    r"SampleCount|Average|Sum|Minimum|Maximum|IQM|(p|tm|tc|ts|wm)\d+(\.\d+)?|(PR|TM|TC|TS|WM)\([\d.%]*:[\d.%]*\)"
)


@dataclass(frozen=True, kw_only=True)
class Query:
    """The newest complete datapoint of one metric.

    Attributes:
        metric: name of a metric, such as `GetRecords.IteratorAgeMilliseconds`. Default: none, if `expression` is given.
        namespace: namespace of the metric, such as `AWS/Kinesis`.
        dimensions: all dimensions of the metric, name -> value, such as `StreamName: orders`.
        stat: statistic of the values within a period: `Average` (default), `Sum`, `Minimum`, `Maximum`,
            `SampleCount`, or a percentile such as `p99`.
        period: length of a period: 1s, 5s, 10s, 20s, 30s or whole minutes. Default 1m.
        expression: instead of `metric`, a Metrics Insights query, or a metric math expression. It must not refer to
            other queries and must give one series, such as `SUM(SEARCH('...', 'Maximum', 60))`.
        scale: factor to convert the unit (0.001: milliseconds to seconds). Default 1.
        delay: a datapoint is used only this long after the end of its period, because AWS adds late values. Default 0s.
    """

    share: ClassVar[bool] = False  # AWS reports shares in percent

    metric: str = ""
    namespace: str = ""
    _: KW_ONLY
    dimensions: Mapping[str, str] = field(default_factory=dict)
    stat: str = "Average"
    period: timedelta = timedelta(minutes=1)
    expression: str = ""
    scale: float = 1.0
    delay: timedelta = ZERO

    def __post_init__(self) -> None:
        if bool(self.metric) == bool(self.expression):
            raise ValueError("give metric (with namespace), or expression, and not both")
        if self.metric and not self.namespace:
            raise ParameterError("namespace", "must be given with metric, such as AWS/Kinesis")
        if self.expression and (self.namespace or self.dimensions or self.stat != "Average"):
            raise ValueError("namespace, dimensions and stat belong to metric; an expression contains them")
        if not _STAT.fullmatch(self.stat):
            raise ParameterError(
                "stat",
                f"must be Average, Sum, Minimum, Maximum, SampleCount or a percentile such as p99, not {self.stat!r}",
            )
        seconds = self.period.total_seconds()
        if seconds not in SHORT_PERIODS and not (60 <= seconds <= DAY and seconds % 60 == 0):  # noqa: PLR2004 - a minute
            raise ParameterError(
                "period", f"must be 1s, 5s, 10s, 20s, 30s or whole minutes up to a day, not {self.period}"
            )
        if self.insights and seconds < 60:  # noqa: PLR2004 - a minute
            raise ParameterError(
                "period", "of a Metrics Insights query must be whole minutes: AWS rounds it to minutes"
            )
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ParameterError("scale", f"must be a number other than 0, not {self.scale}")
        if self.delay < ZERO:
            raise ParameterError("delay", "must not be negative")
        object.__setattr__(self, "dimensions", dict(sorted(self.dimensions.items())))

    def __hash__(self) -> int:
        described = (self.metric, self.namespace, tuple(self.dimensions.items()), self.stat, self.expression)
        return hash((described, self.period, self.scale, self.delay))

    def __str__(self) -> str:
        """The metric or the expression, for messages."""
        if self.expression:
            return f"expression {one_line(self.expression)!r}"
        where = ", ".join(f"{name}={value}" for name, value in self.dimensions.items())
        return f"{self.stat} of {self.namespace} {self.metric}" + (f" ({where})" if where else "")

    @property
    def ages(self) -> tuple[timedelta, timedelta]:
        """The lowest and the highest age of the newest value just before the next value appears."""
        return self.period + self.delay, 2 * self.period + max(self.delay, PUBLISH_DELAY)

    @cached_property
    def asked(self) -> Query:
        """The query without `scale` and `delay`, which CloudWatch does not see: queries with an equal one share it."""
        return replace(self, scale=1.0, delay=ZERO)

    @property
    def insights(self) -> bool:
        """Whether this is a Metrics Insights query. A request may have only one of them."""
        return self.expression.lstrip()[:6].upper() == "SELECT"

    def metric_data_query(self, number: int) -> dict[str, Any]:
        """The entry for the request's MetricDataQueries."""
        common = {"Id": f"q{number}", "ReturnData": True}
        seconds = int(self.period.total_seconds())
        if self.expression:
            return {**common, "Expression": self.expression, "Period": seconds}
        metric = {
            "Namespace": self.namespace,
            "MetricName": self.metric,
            "Dimensions": [{"Name": name, "Value": value} for name, value in self.dimensions.items()],
        }
        return {**common, "MetricStat": {"Metric": metric, "Period": seconds, "Stat": self.stat}}


@dataclass(frozen=True, kw_only=True)
class CloudWatch:
    """Amazon CloudWatch, in one region.

    Attributes:
        region: AWS region, such as `eu-central-1`.
        profile: profile of `~/.aws/config` to use. Default: boto3's usual search (environment, instance profile).
        role: ARN of a role to assume. Default: none.
        endpoint_url: one address for all AWS services, such as LocalStack's. Default: AWS's, or boto3's settings.
        fresh: how long an answer is reused. Default: the query's period. A shorter time finds a new value sooner and
            costs proportionally more.
        timeout: time-out for reading a metric, including retries. Default 5s.
    """

    Query: ClassVar[type] = Query
    packages: ClassVar[tuple[str, ...]] = ("boto3",)

    region: str
    _: KW_ONLY
    profile: str | None = None
    role: str | None = None
    endpoint_url: str | None = None
    fresh: timedelta | None = None
    timeout: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        self.place  # noqa: B018 - it checks its parameters
        if self.fresh is not None and self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")

    @property
    def place(self) -> aws.Place:
        """The region and the identity."""
        return aws.Place(self.region, self.profile, self.role, self.endpoint_url, self.timeout)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Source]:
        """Open the source. The first `collect` sends the first request.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        client = await aws.shared_aws(shared, self.place)
        await client.prepare("cloudwatch")
        async with aclosing(Source(client, self.fresh)) as source:
            yield source


@dataclass(frozen=True, slots=True)
class _Answer:
    """The datapoints of one query, and the EndTime of the request."""

    points: tuple[tuple[datetime, float], ...]
    now: datetime


@dataclass(slots=True, kw_only=True)
class _Entry:
    """The state of one query. Times are the event loop's.

    Attributes:
        request: the last request. Its result may be an error, as `outcome_of` expects.
        used: when a caller last read the query.
        sent: when the query was last added to a request.
        alone: whether the query needs a request of its own: it is a Metrics Insights query, or it was found invalid.
    """

    asked: Query
    request: asyncio.Future[_Answer | EdgeError] | None = None
    used: float = -math.inf
    sent: float = -math.inf
    alone: bool


class Source:
    """The connected source."""

    def __init__(self, client: aws.Aws, fresh: timedelta | None) -> None:
        self._aws = client
        self._name = f"CloudWatch in {client.place.region}"
        self._fresh = fresh
        self._entries: dict[Query, _Entry] = {}
        self._due: list[_Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the region and the metric in its message."""
        loop = asyncio.get_running_loop()
        asked = query.asked
        entry = self._entries.setdefault(asked, _Entry(asked=asked, alone=asked.insights))
        entry.used = loop.time()
        request = entry.request
        if request is None or self._is_due(entry):
            request = self._add(entry)
            if self._timer is None:
                self._timer = loop.call_later(BATCH_WINDOW, self._flush, now)
        return self._reading(query, await outcome_of(request, f"{self._name}: {query}: the source was closed"))

    async def aclose(self) -> None:
        """Cancel pending requests."""
        if self._timer is not None:
            self._timer.cancel()
        await cancel_all(self._tasks)
        for entry in self._entries.values():
            if entry.request is not None:
                entry.request.cancel()

    def _is_due(self, entry: _Entry, ahead: float = 0.0) -> bool:
        """Whether the query must be sent again now, or within `ahead` seconds."""
        if entry.request is None or entry.request.cancelled() or not entry.request.done():
            return False
        outcome = entry.request.result()
        if isinstance(outcome, UnavailableError):
            reuse = ERROR_REUSE
        else:
            reuse = (entry.asked.period * (1 - EARLY_SHARE) if self._fresh is None else self._fresh).total_seconds()
            if isinstance(outcome, EdgeError) or not outcome.points:
                reuse = min(reuse, MAX_ERROR_REUSE)
        return asyncio.get_running_loop().time() - entry.sent >= reuse - ahead

    def _add(self, entry: _Entry) -> asyncio.Future[_Answer | EdgeError]:
        """Add a query to the next requests."""
        loop = asyncio.get_running_loop()
        request: asyncio.Future[_Answer | EdgeError] = loop.create_future()
        entry.request, entry.sent = request, loop.time()
        self._due.append(entry)
        return request

    def _flush(self, now: datetime) -> None:
        """Send all queries that are due now or soon."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for asked, entry in list(self._entries.items()):
            seconds = asked.period.total_seconds()
            if loop.time() - entry.used > UNUSED_PERIODS * max(seconds, 60.0):
                del self._entries[asked]
            elif self._is_due(entry, AHEAD_SHARE * seconds):
                self._add(entry)
        due, self._due = self._due, []
        # A request has one start and one end time, so all its queries must have the same period.
        for period in dict.fromkeys(entry.asked.period for entry in due):
            group = [entry for entry in due if entry.asked.period == period]
            together = [entry for entry in group if not entry.alone]
            batches = [together[start : start + MAX_QUERIES] for start in range(0, len(together), MAX_QUERIES)]
            for batch in [*batches, *([entry] for entry in group if entry.alone)]:
                task = loop.create_task(self._send(batch, now))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: Sequence[_Entry], now: datetime) -> None:
        """Send one request, and set the outcome of each of its queries."""
        seconds = self._aws.place.timeout.total_seconds()
        outcomes: Sequence[_Answer | EdgeError]
        try:
            try:
                async with asyncio.timeout(seconds):
                    outcomes = await self._answers(batch, now)
            except TimeoutError:
                raise EdgeTimeoutError(f"{self._name}: no complete answer to GetMetricData in {seconds:g} s") from None
        except aws.InvalidRequestError as error:
            if len(batch) > 1:
                # One invalid query makes the whole request fail. Split the batch until that query is alone.
                middle = len(batch) // 2
                await asyncio.gather(self._send(batch[:middle], now), self._send(batch[middle:], now))
                return
            batch[0].alone = True
            outcomes = [RefusedError(f"{error}: {batch[0].asked}")]
        except EdgeError as error:
            outcomes = [error] * len(batch)
        except Exception as error:
            # Callers wait for an outcome, so every error must become one.
            log.exception(
                "CloudWatch request failed with an unexpected error",
                extra={"region": self._aws.place.region, "queries": len(batch)},
            )
            outcomes = [AnswerError(f"{self._name}: {format_exception(error)}")] * len(batch)
        for entry, outcome in zip(batch, outcomes, strict=True):
            if entry.request is not None and not entry.request.done():
                entry.request.set_result(outcome)

    async def _answers(self, batch: Sequence[_Entry], now: datetime) -> list[_Answer | EdgeError]:
        period = batch[0].asked.period
        request: dict[str, Any] = {
            "MetricDataQueries": [entry.asked.metric_data_query(number) for number, entry in enumerate(batch)],
            "StartTime": _period_start(now - 4 * period - PUBLISH_DELAY, period),
            "EndTime": now,
            "ScanBy": "TimestampDescending",
        }
        found: dict[str, dict[str, _Series]] = {f"q{number}": {} for number in range(len(batch))}
        while True:
            answer = await self._aws.call("cloudwatch", "GetMetricData", request)
            for result in answer.get("MetricDataResults") or ():
                series = found.get(str(result.get("Id")))
                if series is not None:
                    series.setdefault(str(result.get("Label")), _Series()).add(result)
            if not answer.get("NextToken"):
                break
            request["NextToken"] = answer["NextToken"]
        messages = "; ".join(str(message.get("Value")) for message in answer.get("Messages") or ())
        return [self._outcome(entry.asked, found[f"q{number}"], now, messages) for number, entry in enumerate(batch)]

    def _outcome(
        self, asked: Query, series: Mapping[str, _Series], now: datetime, messages: str
    ) -> _Answer | EdgeError:
        what = f"{self._name}: {asked}"
        if len(series) > 1:
            return AnswerError(f"{what}: {len(series)} series, expected one; combine them with SUM(...) or MAX(...)")
        if any(len(dict(one.points)) < len(one.points) for one in series.values()):
            return AnswerError(
                f"{what}: several series of one name, expected one; combine them with SUM(...) or MAX(...)"
            )
        if not series:
            return AnswerError(f"{what}: no result{f' ({messages})' if messages else ''}, expected one series")
        one = next(iter(series.values()))
        if one.status == "Forbidden":
            return RefusedError(f"{what}: access is denied{one.messages}")
        if one.status != "Complete":
            return UnavailableError(f"{what}: answered only in part ({one.status}){one.messages}")
        return _Answer(tuple(one.points), now)

    def _reading(self, query: Query, answer: _Answer) -> Reading:
        complete = [(at + query.period, value) for at, value in answer.points]
        complete = [(at, value) for at, value in complete if at + query.delay <= answer.now]
        if not complete:
            minutes = (4 * query.period + PUBLISH_DELAY).total_seconds() / 60
            raise AnswerError(
                f"{self._name}: {query}: no datapoint of the last {minutes:g} minutes; does the metric exist with all "
                "these dimensions, and are values being published?"
            )
        at, value = max(complete)
        number = value * query.scale
        if not math.isfinite(number):
            raise AnswerError(f"{self._name}: {query}: its value is {value}, expected a finite number")
        return Reading(number, at)


@dataclass(slots=True)
class _Series:
    """One series of an answer, assembled from its pages."""

    points: list[tuple[datetime, float]] = field(default_factory=list)
    status: str = ""
    messages: str = ""

    def add(self, result: Mapping[str, Any]) -> None:
        """Add a page. The status of the last page is the status of the series."""
        times, values = result.get("Timestamps") or (), result.get("Values") or ()
        self.points += [(at.astimezone(UTC), float(value)) for at, value in zip(times, values, strict=False)]
        self.status = str(result.get("StatusCode") or "Complete")
        self.messages = "".join(f": {message.get('Value')}" for message in result.get("Messages") or ())


def _period_start(at: datetime, period: timedelta) -> datetime:
    """The start of the period that contains `at`. CloudWatch dates datapoints to it."""
    seconds = period.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)
