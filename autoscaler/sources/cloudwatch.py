"""Metrics from Amazon CloudWatch: Kinesis iterator age, MSK lag, SQS depth, CPU of an Auto Scaling group, any other.

    sources:
      cloudwatch: {type: cloudwatch, region: eu-central-1}
    clusters:
      orders:
        metrics:
          age: {source: cloudwatch, namespace: AWS/Kinesis, metric: GetRecords.IteratorAgeMilliseconds,
                dimensions: {StreamName: orders}, stat: Maximum, scale: 0.001}

**What is asked when.** Every metric has its price each time it is asked for, and changes once a period. A query is
therefore asked once a period however many clusters use it and however often they tick; those that become due at about
the same time are asked together, up to 500 in one GetMetricData.

**When a value was true.** CloudWatch dates a datapoint to the beginning of its period. The reading is dated to the end
of it, when the value was complete. The period that is not over yet is left out: its sum is too small.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from autoscaler.clients import aws
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

MOST = 500  # queries in one GetMetricData
WINDOW = 0.02  # seconds within which questions are gathered
EARLY = 0.05  # share of a period by which a query may be asked before it is over: ticks do not meet its end
AHEAD = 0.1  # share of a period: what becomes due within it is asked along
WANTED = 3.0  # periods after which a query that nobody reads is not asked along any more
LATE = timedelta(minutes=3)  # how long a datapoint may take to appear
FAILED = 5.0  # seconds for which a failure is told to all
FAILED_LONG = 60.0  # the most of them when asking again so soon would not help

SHORT_PERIODS = frozenset({1, 5, 10, 20, 30})
DAY = 86400
log = logging.getLogger("autoscaler.sources")

_STAT = re.compile(
    r"SampleCount|Average|Sum|Minimum|Maximum|IQM|(p|tm|tc|ts|wm)\d+(\.\d+)?|(PR|TM|TC|TS|WM)\([\d.%]*:[\d.%]*\)"
)


@dataclass(frozen=True)
class Query:
    """One metric: its newest complete datapoint.

    Attributes:
        metric: name of a metric, such as `GetRecords.IteratorAgeMilliseconds`. Default: none, `expression` is given.
        namespace: namespace of the metric, such as `AWS/Kinesis`.
        dimensions: all dimensions of the metric, name -> value, such as `StreamName: orders`.
        stat: what is made of the values within a period: `Average` (default), `Sum`, `Minimum`, `Maximum`,
            `SampleCount`, or a percentile such as `p99`.
        period: length of a period: 1s, 5s, 10s, 20s, 30s or whole minutes. Default 1m.
        expression: instead of `metric`, a Metrics Insights query or a metric math expression that stands alone and
            gives one series, such as `SUM(SEARCH('...', 'Maximum', 60))`.
        scale: the value is multiplied by this, to have another unit (0.001: milliseconds to seconds). Default 1.
        delay: a period counts only so long after its end, because late values are still added. Default 0s.
    """

    metric: str = ""
    namespace: str = ""
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
            raise ValueError("namespace, dimensions and stat belong to metric; an expression says them itself")
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
        if self._asked.insights and seconds < 60:  # noqa: PLR2004 - likewise
            raise ParameterError(
                "period", "of a Metrics Insights query must be whole minutes: AWS answers for minutes anyway"
            )
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ParameterError("scale", f"must be a number other than 0, not {self.scale}")
        if self.delay < ZERO:
            raise ParameterError("delay", "must not be negative")
        object.__setattr__(self, "dimensions", dict(sorted(self.dimensions.items())))

    def __hash__(self) -> int:
        return hash((self._asked, self.scale, self.delay))

    @property
    def ages(self) -> tuple[timedelta, timedelta]:
        """How old the newest value is just before the next one comes: at the least, and at the most."""
        return self.period + self.delay, 2 * self.period + max(self.delay, LATE)

    @property
    def _asked(self) -> _Asked:
        return _Asked(
            self.metric, self.namespace, tuple(self.dimensions.items()), self.stat, self.period, self.expression
        )


@dataclass(frozen=True)
class CloudWatch:
    """Amazon CloudWatch, in one region.

    Attributes:
        region: AWS region, such as `eu-central-1`.
        profile: profile of `~/.aws/config` to use. Default: boto3's usual search (environment, instance profile).
        role: ARN of a role to assume. Default: none.
        endpoint_url: one address for all services of AWS, such as LocalStack's. Default: AWS's, or boto3's settings.
        fresh: how long an answer is used before the query is asked again. Default: the query's period; less finds a
            new value sooner and costs as many times more.
        timeout: within this a metric is read, retries included. Default 5s.
    """

    Query: ClassVar[type] = Query

    region: str
    profile: str | None = None
    role: str | None = None
    endpoint_url: str | None = None
    fresh: timedelta | None = None
    timeout: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        aws.validate(self)
        if self.fresh is not None and self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Source]:
        """Open it; nothing is asked before the first metric is.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        client = await aws.shared_aws(shared, aws.place_of(self))
        await client.prepare("cloudwatch")
        source = Source(client, self.fresh)
        try:
            yield source
        finally:
            await source.close()


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of CloudWatch: the same for all clusters that use it."""

    metric: str
    namespace: str
    dimensions: tuple[tuple[str, str], ...]
    stat: str
    period: timedelta
    expression: str

    def __str__(self) -> str:
        if self.expression:
            return f"expression {aws.short(self.expression)!r}"
        where = ", ".join(f"{name}={value}" for name, value in self.dimensions)
        return f"{self.stat} of {self.namespace} {self.metric}" + (f" ({where})" if where else "")

    @property
    def insights(self) -> bool:
        """Whether it is a Metrics Insights query, of which a question may have one only."""
        return self.expression.lstrip()[:6].upper() == "SELECT"

    def question(self, number: int) -> dict[str, Any]:
        """One of the MetricDataQueries."""
        seconds = int(self.period.total_seconds())
        if self.expression:
            return {"Id": f"q{number}", "Expression": self.expression, "Period": seconds, "ReturnData": True}
        metric = {
            "Namespace": self.namespace,
            "MetricName": self.metric,
            "Dimensions": [{"Name": name, "Value": value} for name, value in self.dimensions],
        }
        return {
            "Id": f"q{number}",
            "MetricStat": {"Metric": metric, "Period": seconds, "Stat": self.stat},
            "ReturnData": True,
        }


@dataclass(frozen=True, slots=True)
class _Answer:
    """The datapoints of one query, and the time as of which it was asked."""

    points: tuple[tuple[datetime, float], ...]
    now: datetime


@dataclass(slots=True)
class _Known:
    """What is known of one query. Times are the loop's.

    Attributes:
        wanted: when somebody last read it.
        began: when the last question was put.
        alone: whether it spoils a question for others.
    """

    asked: _Asked
    wanted: float = float("-inf")
    began: float = float("-inf")
    outcome: _Answer | EdgeError | None = None
    waiting: asyncio.Future[None] | None = None
    alone: bool = False


class Source:
    """A live source."""

    def __init__(self, client: aws.Aws, fresh: timedelta | None) -> None:
        self._aws = client
        self._fresh = fresh
        self._known: dict[_Asked, _Known] = {}
        self._due: list[_Known] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the region and the metric in its message."""
        loop = asyncio.get_running_loop()
        asked = query._asked  # noqa: SLF001 - same module
        known = self._known.setdefault(asked, _Known(asked, alone=asked.insights))
        known.wanted = loop.time()
        if known.waiting is None and loop.time() - known.began >= self._holds(known):
            self._put(known)
            if self._timer is None:
                self._timer = loop.call_later(WINDOW, self._flush, now)
        if known.waiting is not None:
            # Unlike awaiting it, this does not take it from the others when this collect is cancelled.
            await asyncio.wait((known.waiting,))
        outcome = known.outcome
        if isinstance(outcome, EdgeError):
            raise type(outcome)(*outcome.args)  # a new one each time: a shared one would gather all their tracebacks
        if outcome is None:
            raise UnavailableError(f"{self._name}: {asked}: the source was closed")
        return self._reading(query, asked, outcome)

    async def close(self) -> None:
        """End what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for known in self._known.values():
            _settle(known, None)

    @property
    def _name(self) -> str:
        return f"CloudWatch in {self._aws.place.region}"

    def _holds(self, known: _Known) -> float:
        """For how many seconds the last outcome is used."""
        if isinstance(known.outcome, UnavailableError):
            return FAILED
        usual = (known.asked.period * (1 - EARLY) if self._fresh is None else self._fresh).total_seconds()
        found = known.outcome is None or (isinstance(known.outcome, _Answer) and known.outcome.points)
        return usual if found else min(usual, FAILED_LONG)

    def _put(self, known: _Known) -> None:
        loop = asyncio.get_running_loop()
        known.waiting, known.began = loop.create_future(), loop.time()
        self._due.append(known)

    def _flush(self, now: datetime) -> None:
        """Ask all that is due, and what is soon to be."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, known in list(self._known.items()):
            seconds = known.asked.period.total_seconds()
            if loop.time() - known.wanted > WANTED * max(seconds, 60.0):
                del self._known[key]
            elif known.waiting is None and loop.time() - known.began >= self._holds(known) - AHEAD * seconds:
                self._put(known)
        due, self._due = self._due, []
        # The window of time is one for the whole question, so a question has queries of one period only.
        for period in dict.fromkeys(known.asked.period for known in due):
            group = [known for known in due if known.asked.period == period]
            together = [known for known in group if not known.alone]
            batches = [together[start : start + MOST] for start in range(0, len(together), MOST)]
            for batch in [*batches, *([known] for known in group if known.alone)]:
                task = loop.create_task(self._ask(batch, now))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask(self, batch: Sequence[_Known], now: datetime) -> None:
        """Put one question, and keep what came of it for each of its queries."""
        seconds = self._aws.place.timeout.total_seconds()
        try:
            try:
                async with asyncio.timeout(seconds):
                    outcomes = await self._answers(batch, now)
            except TimeoutError:
                raise EdgeTimeoutError(
                    f"{self._name}: GetMetricData was not answered to its end in {seconds:g} s"
                ) from None
        except aws.InvalidRequestError as error:
            if len(batch) > 1:
                # One bad query spoils the question: find it, and let the others have their answer.
                middle = len(batch) // 2
                await asyncio.gather(self._ask(batch[:middle], now), self._ask(batch[middle:], now))
                return
            batch[0].alone = True
            outcomes = [RefusedError(f"{error}: {batch[0].asked}")]
        except EdgeError as error:
            outcomes = [error] * len(batch)
        except Exception as error:
            # Whatever happened, those who wait have to hear of it.
            log.exception("an unexpected error", extra={"region": self._aws.place.region})
            outcomes = [AnswerError(f"{self._name}: {type(error).__name__}: {error}")] * len(batch)
        for known, outcome in zip(batch, outcomes, strict=True):
            _settle(known, outcome)

    async def _answers(self, batch: Sequence[_Known], now: datetime) -> list[_Answer | EdgeError]:
        period = batch[0].asked.period
        question: dict[str, Any] = {
            "MetricDataQueries": [known.asked.question(number) for number, known in enumerate(batch)],
            "StartTime": _beginning(now - 4 * period - LATE, period),
            "EndTime": now,
            "ScanBy": "TimestampDescending",
        }
        found: dict[str, dict[str, _Series]] = {f"q{number}": {} for number in range(len(batch))}
        while True:
            answer = await self._aws.call("cloudwatch", "GetMetricData", question)
            for result in answer.get("MetricDataResults") or ():
                series = found.get(str(result.get("Id")))
                if series is not None:
                    series.setdefault(str(result.get("Label")), _Series()).add(result)
            if not answer.get("NextToken"):
                break
            question["NextToken"] = answer["NextToken"]
        said = "; ".join(str(message.get("Value")) for message in answer.get("Messages") or ())
        return [self._outcome(known.asked, found[f"q{number}"], now, said) for number, known in enumerate(batch)]

    def _outcome(self, asked: _Asked, series: Mapping[str, _Series], now: datetime, said: str) -> _Answer | EdgeError:
        what = f"{self._name}: {asked}"
        if len(series) > 1:
            return AnswerError(f"{what}: {len(series)} series, expected one; make one of them by SUM(...) or MAX(...)")
        if any(len(dict(one.points)) < len(one.points) for one in series.values()):
            return AnswerError(
                f"{what}: several series of one name, expected one; make one of them by SUM(...) or MAX(...)"
            )
        if not series:
            return AnswerError(f"{what}: no result{f' ({said})' if said else ''}, expected one series")
        one = next(iter(series.values()))
        if one.status == "Forbidden":
            return RefusedError(f"{what}: it may not be read{one.said}")
        if one.status != "Complete":
            return UnavailableError(f"{what}: answered in part only ({one.status}){one.said}")
        return _Answer(tuple(one.points), now)

    def _reading(self, query: Query, asked: _Asked, answer: _Answer) -> Reading:
        what = f"{self._name}: {asked}"
        complete = [(at + query.period, value) for at, value in answer.points]
        complete = [(at, value) for at, value in complete if at + query.delay <= answer.now]
        if not complete:
            raise AnswerError(
                f"{what}: no datapoint of the last {_span(4 * query.period + LATE)}; do metric and dimensions (all of "
                "them) exist, and is something being reported?"
            )
        at, value = max(complete)
        number = value * query.scale
        if not math.isfinite(number):
            raise AnswerError(f"{what}: its value is {value}, expected a finite number")
        return Reading(number, at)


@dataclass(slots=True)
class _Series:
    """One series of an answer, put together from its pages."""

    points: list[tuple[datetime, float]] = field(default_factory=list)
    status: str = ""
    said: str = ""

    def add(self, result: Mapping[str, Any]) -> None:
        """Take a page. A part is complete when its last page is."""
        times, values = result.get("Timestamps") or (), result.get("Values") or ()
        self.points += [(at.astimezone(UTC), float(value)) for at, value in zip(times, values, strict=False)]
        self.status = str(result.get("StatusCode") or "Complete")
        self.said = "".join(f": {message.get('Value')}" for message in result.get("Messages") or ())


def _settle(known: _Known, outcome: _Answer | EdgeError | None) -> None:
    """Keep what came of a question, and wake those who wait for it."""
    known.outcome = outcome
    waiting, known.waiting = known.waiting, None
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _beginning(at: datetime, period: timedelta) -> datetime:
    """The beginning of the period that a time is in: datapoints are dated to such times."""
    seconds = period.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def _span(span: timedelta) -> str:
    return f"{span.total_seconds() / 60:g} minutes"
