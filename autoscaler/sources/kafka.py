"""Consumer lag and rates of Kafka topics, from committed offsets and end offsets.

    sources:
      kafka: {type: kafka, bootstrap_servers: "kafka-1:9092,kafka-2:9092"}
    clusters:
      orders:
        metrics:
          lag: {source: kafka, metric: lag, group: orders, topics: [orders]}
          arrivals: {source: kafka, metric: arrivals, topics: [orders]}

The source reads committed offsets before end offsets. So a lag is never too low, but it may be too high by the records
that arrive between the two requests. The source never reads records.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from autoscaler.clients.kafka_types import ConnectionSettings, Isolation, TopicSnapshot
from autoscaler.core.durations import format_duration
from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.core.wording import agree, list_of
from autoscaler.plugins import install_hint
from autoscaler.ports import AnswerError, EdgeError, NotYetError, PluginError, Shared

if TYPE_CHECKING:
    from autoscaler.clients.kafka import KafkaClient

MIN_WINDOW_SHARE = 0.95  # of a window is enough for a rate, because ticks are not exactly on time
MAX_GAP_WINDOWS = 4.0  # windows: after a longer gap between two snapshots the older ones are dropped
MIN_MAX_GAP = 60.0  # seconds: the lowest value of that limit
SHOWN = 5  # the most partitions that a message names


class Metric(StrEnum):
    """The metrics, computed from the offsets of topics and of a group."""

    LAG = "lag"
    MAX_LAG = "max_lag"
    ARRIVALS = "arrivals"
    THROUGHPUT = "throughput"


class Uncommitted(StrEnum):
    """The group's position in a partition without a commit, if the group has commits in other partitions."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Query:
    """One metric of one or several topics, whose partitions are counted together.

    Attributes:
        metric: `lag`, records that the group has not committed, summed over partitions; `max_lag`, the lag of the
            partition with the highest lag; `arrivals`, records/s appended to the topics; `throughput`, records/s
            committed by the group.
        topics: names of topics, not patterns.
        group: the consumer group. Required for all metrics except `arrivals`. Default: none.
        uncommitted: how to count a partition that has records but no commit of the group, if the group has commits in
            other partitions. `error` (default) makes the metric missing. `earliest` counts all its records, `latest`
            none: use the value of the consumers' `auto.offset.reset`. A group without any commit is always an error.
        isolation: `read_uncommitted` (default) counts every record. `read_committed` counts the records before the
            first open transaction: consumers with this `isolation.level` read no further.
        window: time over which a rate is averaged. It must be longer than the time between two commits; for
            `throughput` at least three times as long. Default 30s.
        partitions: with `lag` or `max_lag`, also return the lag and the committed offset of each partition, for
            policies that use them. Default false, because they are stored with every observation.
    """

    metric: Metric
    topics: tuple[str, ...]
    group: str | None = None
    _: KW_ONLY
    uncommitted: Uncommitted = Uncommitted.ERROR
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    window: timedelta = timedelta(seconds=30)
    partitions: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", Metric(self.metric))
        object.__setattr__(self, "uncommitted", Uncommitted(self.uncommitted))
        object.__setattr__(self, "isolation", Isolation(self.isolation))
        if not self.topics:
            raise ParameterError("topics", "must name at least one topic")
        for topic in self.topics:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) or topic in {".", ".."}:
                raise ParameterError("topics", f"{topic!r} is not the name of a topic; patterns are not supported")
        if len(set(self.topics)) < len(self.topics):
            raise ParameterError("topics", "must name each topic once")
        if self.group is not None and not self.group:
            raise ParameterError("group", "must not be empty")
        if self.group is None and self.metric is not Metric.ARRIVALS:
            raise ValueError(f"{self.metric} needs group: <the consumers' group.id>")
        if self.partitions and self.metric not in (Metric.LAG, Metric.MAX_LAG):
            raise ParameterError("partitions", f"has no effect with {self.metric}; expected lag or max_lag")
        if self.window <= ZERO:
            raise ParameterError("window", "must be above 0s")


@dataclass(frozen=True, kw_only=True)
class Kafka(ConnectionSettings):
    """A cluster of Kafka brokers.

    Attributes:
        bootstrap_servers: addresses of some of the brokers, `host:port`, separated by commas.
        security_protocol: `PLAINTEXT` (default), `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
        sasl_mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`; with the two SASL protocols only.
            Default: none.
        username: user for PLAIN and SCRAM.
        password: the user's password.
        token: token for OAUTHBEARER. Default: none.
        token_file: file with the token. It is read for every connection, so a renewed token is used. Default: none.
        ca_file: PEM file with the CA certificates for the brokers' certificates. Default: those of the system.
        certificate_file: PEM file with a client certificate, and its key if there is no key_file. Default: none.
        key_file: PEM file with the key of the client certificate. Default: none.
        key_password: password of the key. Default: none.
        check_hostname: whether a broker's certificate must match its host name. Default true.
        client_id: the client's name in the brokers' logs and quotas. Default `reactive-autoscaler`.
        timeout: time-out for reading a metric, including retries. Default 3s.
        attempts: how often a request is sent while brokers are unavailable or a leader is elected, at least 1.
            Default 3.
        fresh: how long offsets are reused for other metrics and clusters. Set it below the clusters' interval.
            Default 1s.
    """

    Query: ClassVar[type] = Query
    packages: ClassVar[tuple[str, ...]] = ("aiokafka",)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Open the source. The first `collect` sends the first request.

        Raises:
            PluginError: the package aiokafka is not installed.
        """
        del shared  # not needed: equal sources share one connection, and no other plug-in uses these brokers
        try:
            from autoscaler.clients.kafka import KafkaClient  # noqa: PLC0415 - it needs an extra
        except ImportError as error:
            raise PluginError(f"the source kafka needs aiokafka ({error}): {install_hint('kafka')}") from error
        client = KafkaClient(self)
        try:
            yield _Source(client)
        finally:
            await client.close()


def partition_lags(snapshot: TopicSnapshot, query: Query) -> dict[int, int]:
    """Partition -> the records of a topic that the query's group has not committed.

    The lag of a partition without records is 0, whatever the group committed. Records that were deleted before the
    group consumed them do not count.

    Raises:
        AnswerError: the group has no commits, lacks a commit for a partition (see `uncommitted`), or has a commit
            beyond a partition's end.
    """
    positions = _positions(snapshot, query)
    found = {}
    for partition, end in snapshot.ends.items():
        start = snapshot.starts[partition]
        position = positions.get(partition)
        if position is None:
            position = end if query.uncommitted is Uncommitted.LATEST else start
        found[partition] = end - max(position, start)
    return found


def _parts(snapshots: Sequence[TopicSnapshot], query: Query) -> dict[str, dict[str, float]]:
    """`topic/partition` -> the lag and the committed offset (-1: none)."""
    found = {}
    for snapshot in snapshots:
        positions = _positions(snapshot, query)
        for partition, lag in partition_lags(snapshot, query).items():
            offset = positions.get(partition, -1)
            found[f"{snapshot.topic}/{partition}"] = {"lag": float(lag), "offset": float(offset)}
    return found


def _positions(snapshot: TopicSnapshot, query: Query) -> dict[int, int]:
    """The group's committed offsets by partition. Raises AnswerError if the query cannot use them."""
    assert query.group is not None  # noqa: S101 - for the type checker; the query has checked it
    where = f"group {query.group!r}, topic {snapshot.topic!r}"
    committed = snapshot.committed[query.group]
    if isinstance(committed, EdgeError):
        raise type(committed)(*committed.args)  # a copy: a shared error would collect the tracebacks of all callers
    if not set(snapshot.ends) <= set(committed):
        raise AnswerError(f"{where}: a partition was added between the two requests; the next snapshot includes it")
    positions = {partition: offset for partition, offset in committed.items() if offset is not None}
    if not positions:
        raise AnswerError(
            f"{where}: no committed offsets: is the name of the group right, and do its consumers commit to Kafka? "
            "Flink does so at checkpoints unless commit.offsets.on.checkpoint is false: then use the lag of the source "
            "flink; Spark Structured Streaming never does: use the lag of the source spark"
        )
    missing = sorted(p for p, end in snapshot.ends.items() if p not in positions and end > snapshot.starts[p])
    if missing and query.uncommitted is Uncommitted.ERROR:
        raise AnswerError(
            f"{where}: nothing committed for {_named(missing)} of {len(snapshot.ends)}; if the consumers have not "
            "reached it yet, uncommitted: earliest or latest (their auto.offset.reset) counts all its records or none"
        )
    beyond = sorted(p for p, end in snapshot.ends.items() if positions.get(p, 0) > end)
    if beyond:
        first = beyond[0]
        stable = query.isolation is Isolation.READ_COMMITTED
        raise AnswerError(
            f"{where}: committed {positions[first]} in partition {first}, beyond its end {snapshot.ends[first]}"
            f"{f' (and in {_named(beyond[1:])})' if beyond[1:] else ''}; "
            "was the topic deleted and created again, or did it lose records in an unclean leader election"
            f"{', or do the consumers read uncommitted records' if stable else ''}?"
        )
    return positions


def _named(partitions: Sequence[int]) -> str:
    return f"{agree(len(partitions), 'partition', 'partitions')} {list_of([*map(str, partitions)], SHOWN)}"


class OffsetHistory:
    """The offsets of a topic in several snapshots, to compute their rate.

    Offsets can only grow. If they go back, the topic or the group is not the same any more, so the history is reset.
    """

    def __init__(self) -> None:
        self._sums: deque[tuple[float, int]] = deque()  # loop time, and the sum of the offsets
        self._offsets: Mapping[int, int] = {}
        self._window = 0.0
        self._reset: str | None = None

    def add(self, at: float, offsets: Mapping[int, int], *, grows: bool) -> None:
        """Add a snapshot. `grows`: a new partition started at offset 0 after the previous snapshot."""
        if self._sums:
            if at <= self._sums[-1][0]:
                return
            reset = self._reset_reason(at, offsets, grows=grows)
            if reset is not None:
                self._sums.clear()
                self._reset = reset
        self._sums.append((at, sum(offsets.values())))
        self._offsets = dict(offsets)
        while len(self._sums) > 2 and self._sums[1][0] <= at - max(MIN_MAX_GAP, self._window):  # noqa: PLR2004 - two make a rate
            self._sums.popleft()

    def _reset_reason(self, at: float, offsets: Mapping[int, int], *, grows: bool) -> str | None:
        """Why this snapshot cannot be compared with the earlier ones, or None if it can."""
        gap, limit = at - self._sums[-1][0], max(MIN_MAX_GAP, MAX_GAP_WINDOWS * self._window)
        if gap > limit:
            return (
                f"the previous snapshot was {gap:.0f} s earlier, above the limit of {limit:.0f} s: use a longer window"
            )
        if not set(self._offsets) <= set(offsets):
            return "a partition has disappeared since the previous snapshot"
        if not grows and set(self._offsets) != set(offsets):
            return "it is the first snapshot with commits of another partition"
        for partition, before in self._offsets.items():
            if offsets[partition] < before:
                after = offsets[partition]
                return f"since the previous snapshot, partition {partition} went back from {before} to {after}"
        return None

    def rate(self, window: timedelta) -> float:
        """Records/s over the window that ends with the last snapshot.

        Raises:
            NotYetError: the snapshots do not cover the window yet.
        """
        seconds = window.total_seconds()
        self._window = max(self._window, seconds)
        now, total = self._sums[-1]
        for at, before in reversed(self._sums):
            if now - at >= MIN_WINDOW_SHARE * seconds:
                self._reset = None
                return (total - before) / (now - at)
        reset = "" if self._reset is None else f"; {self._reset}"
        raise NotYetError(
            f"a rate over {format_duration(window)} needs two snapshots that far apart, the first was taken "
            f"{now - self._sums[0][0]:.0f} s ago (no action is needed){reset}"
        )


class _Source:
    """The connected source. It computes metrics from offsets."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._arrived: dict[tuple[str, Isolation], OffsetHistory] = {}
        self._consumed: dict[tuple[str, str], OffsetHistory] = {}

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the brokers, the group and the topic in its message."""
        begun = asyncio.get_running_loop().time()
        group = None if query.metric is Metric.ARRIVALS else query.group
        requests = (self._client.snapshot(topic, query.isolation, group) for topic in query.topics)
        snapshots = []
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            snapshots.append(outcome)
        for snapshot in snapshots:
            history = self._arrived.setdefault((snapshot.topic, query.isolation), OffsetHistory())
            history.add(snapshot.at, snapshot.ends, grows=True)
        try:
            value = self._value(query, snapshots)
            parts = _parts(snapshots, query) if query.partitions else {}
        except EdgeError as error:
            raise type(error)(f"{self._client.name}: {error}") from None
        age = max(0.0, begun - min(snapshot.at for snapshot in snapshots))
        return Reading(value, now - timedelta(seconds=age), sum(len(snapshot.ends) for snapshot in snapshots), parts)

    def _value(self, query: Query, snapshots: Sequence[TopicSnapshot]) -> float:
        match query.metric:
            case Metric.LAG:
                return float(sum(sum(partition_lags(snapshot, query).values()) for snapshot in snapshots))
            case Metric.MAX_LAG:
                return float(max(max(partition_lags(snapshot, query).values()) for snapshot in snapshots))
            case Metric.ARRIVALS:
                return sum(self._arrivals(snapshot, query) for snapshot in snapshots)
            case Metric.THROUGHPUT:
                return sum(self._throughput(snapshot, query) for snapshot in snapshots)

    def _arrivals(self, snapshot: TopicSnapshot, query: Query) -> float:
        try:
            return self._arrived[snapshot.topic, query.isolation].rate(query.window)
        except AnswerError as error:
            raise type(error)(f"arrivals of topic {snapshot.topic!r}: {error}") from None

    def _throughput(self, snapshot: TopicSnapshot, query: Query) -> float:
        assert query.group is not None  # noqa: S101 - for the type checker; the query has checked it
        history = self._consumed.setdefault((query.group, snapshot.topic), OffsetHistory())
        history.add(snapshot.at, _positions(snapshot, query), grows=False)
        try:
            return history.rate(query.window)
        except AnswerError as error:
            raise type(error)(f"throughput of group {query.group!r}, topic {snapshot.topic!r}: {error}") from None
