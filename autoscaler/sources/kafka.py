"""Consumer lag and rates of Kafka topics, from committed offsets and end offsets.

    sources:
      kafka: {type: kafka, bootstrap_servers: "kafka-1:9092,kafka-2:9092"}
    clusters:
      orders:
        metrics:
          lag: {source: kafka, metric: lag, group: orders, topics: [orders]}
          arrivals: {source: kafka, metric: arrivals, topics: [orders]}

This file holds the parameters and what is computed from offsets; `kafka_client` asks the brokers. Committed offsets
are always read before end offsets, so that a lag may count a record too many for as long as the two questions take,
and never one too few. No record is ever read.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from autoscaler.core.durations import format_duration
from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import install_hint
from autoscaler.ports import AnswerError, EdgeError, NotYetError, PluginError, Secret, Shared

if TYPE_CHECKING:
    from autoscaler.clients.kafka import Brokers

SLACK = 0.95  # of a window is enough for a rate: ticks are not punctual
LONGEST = 4.0  # windows, after which a look is too old to count from
LONGEST_AT_LEAST = 60.0  # seconds
SHOWN = 5  # partitions that are named in a message


class Metric(StrEnum):
    """What can be asked of topics and a group."""

    LAG = "lag"
    MAX_LAG = "max_lag"
    ARRIVALS = "arrivals"
    THROUGHPUT = "throughput"


class Uncommitted(StrEnum):
    """Where a group stands in a partition of which it has committed nothing while it has of others."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


class Isolation(StrEnum):
    """Which records there are for the consumers."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class SecurityProtocol(StrEnum):
    """How brokers are spoken to, in Kafka's own words."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """How to log in, in Kafka's own words."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True)
class Query:
    """One metric of one or several topics, which count as one.

    Attributes:
        metric: `lag`, records that the group has not committed, summed over partitions; `max_lag`, the same of its
            worst partition; `arrivals`, records/s appended to the topics; `throughput`, records/s committed by the
            group.
        topics: names of topics; no pattern.
        group: the consumer group. Needed for all but `arrivals`. Default: none.
        uncommitted: what to make of a partition with records of which the group has committed nothing while it has
            of others: `error` (default) leaves the metric missing; `earliest` or `latest`, if that is the consumers'
            `auto.offset.reset`, counts all its records or none. A group without any commit is always an error.
        isolation: `read_uncommitted` (default) counts every record; `read_committed` those before the first open
            transaction, which is as far as consumers get whose `isolation.level` is that.
        window: time over which a rate is averaged; above the time between two commits, of `throughput` at least
            three times. Default 30s.
        partitions: with `lag` or `max_lag`, also tell the lag and the committed offset of each partition, for policies
            that look at them. Default false, as they are kept with every observation.
    """

    metric: Metric
    topics: tuple[str, ...]
    group: str | None = None
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
                raise ParameterError("topics", f"{topic!r} is not the name of a topic; patterns are not understood")
        if len(set(self.topics)) < len(self.topics):
            raise ParameterError("topics", "must name each topic once")
        if self.group is not None and not self.group:
            raise ParameterError("group", "must not be empty")
        if self.group is None and self.metric is not Metric.ARRIVALS:
            raise ValueError(f"{self.metric} needs group: <the consumers' group.id>")
        if self.partitions and self.metric not in (Metric.LAG, Metric.MAX_LAG):
            raise ParameterError("partitions", f"is of no use with {self.metric}; expected lag or max_lag")
        if self.window <= ZERO:
            raise ParameterError("window", "must be above 0s")


@dataclass(frozen=True)
class Kafka:
    """A cluster of Kafka brokers.

    Attributes:
        bootstrap_servers: addresses of some of its brokers, `host:port`, separated by commas.
        security_protocol: `PLAINTEXT` (default), `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`.
        sasl_mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`; with the two SASL protocols only.
            Default: none.
        username: user for PLAIN and SCRAM.
        password: the user's password.
        token: token for OAUTHBEARER. Default: none.
        token_file: file with the token, read again for every connection, so that a renewed one is used. Default: none.
        ca_file: PEM file with the certificates that sign the brokers'. Default: those of the system.
        certificate_file: PEM file with a client certificate, and its key if there is no key_file. Default: none.
        key_file: PEM file with the key to it. Default: none.
        key_password: password of the key. Default: none.
        check_hostname: whether a broker's certificate must be for its host name. Default true.
        client_id: the name that brokers know us by, in their logs and quotas. Default `reactive-autoscaler`.
        timeout: within this a metric is read, retries included. Default 3s.
        attempts: how often a question is asked while brokers are unavailable or a leader is elected, at least 1.
            Default 3.
        fresh: how long offsets are reused for other metrics and clusters; below the interval of the clusters.
            Default 1s.
    """

    Query: ClassVar[type] = Query

    bootstrap_servers: str
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism | None = None
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret | None = None
    check_hostname: bool = True
    client_id: str = "reactive-autoscaler"
    timeout: timedelta = timedelta(seconds=3)
    attempts: int = 3
    fresh: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "security_protocol", SecurityProtocol(self.security_protocol))
        if self.sasl_mechanism is not None:
            object.__setattr__(self, "sasl_mechanism", SaslMechanism(self.sasl_mechanism))
        self.addresses()
        self._check_sasl()
        self._check_tls()
        if self.timeout <= ZERO:
            raise ParameterError("timeout", "must be above 0s")
        if self.attempts < 1:
            raise ParameterError("attempts", f"must be 1 or more, not {self.attempts}")
        if self.fresh < ZERO:
            raise ParameterError("fresh", "must not be negative")
        if not self.client_id:
            raise ParameterError("client_id", "must not be empty")

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The bootstrap servers as pairs of host and port. Raises ValueError."""
        found = []
        for text in self.bootstrap_servers.split(","):
            match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@\[\]]+)):(\d{1,5})", text.strip())
            if match is None or not 0 < int(match[3]) < 2**16:
                raise ParameterError(
                    "bootstrap_servers", f"must look like kafka-1:9092,kafka-2:9092; {text.strip()!r} does not"
                )
            found.append((match[1] or match[2], int(match[3])))
        return tuple(found)

    @property
    def sasl(self) -> bool:
        """Whether brokers want to know who we are."""
        return self.security_protocol in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def tls(self) -> bool:
        """Whether brokers are spoken to over TLS."""
        return self.security_protocol in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    def _check_sasl(self) -> None:
        given = [name for name in ("username", "password", "token", "token_file") if getattr(self, name) is not None]
        if not self.sasl:
            if self.sasl_mechanism is not None or given:
                what = given[0] if given else "sasl_mechanism"
                raise ParameterError(
                    what, f"is of no use with {self.security_protocol}; expected SASL_PLAINTEXT or SASL_SSL"
                )
            return
        if self.sasl_mechanism is None:
            raise ValueError(f"{self.security_protocol} needs sasl_mechanism: {', '.join(SaslMechanism)}")
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            if given not in (["token"], ["token_file"]):
                raise ValueError("OAUTHBEARER needs token or token_file, and neither username nor password")
        elif given != ["username", "password"]:
            raise ValueError(f"{self.sasl_mechanism} needs username and password, and no token")
        for name in ("password", "token"):
            secret = getattr(self, name)
            if secret is not None and (not secret or not secret.isprintable()):
                raise ParameterError(name, "must not be empty or contain a line break (is there one at its end?)")
        if self.username is not None and (not self.username or not self.username.isprintable()):
            raise ParameterError("username", "must not be empty or contain a line break")

    def _check_tls(self) -> None:
        if not self.tls:
            for name in ("ca_file", "certificate_file", "key_file", "key_password"):
                if getattr(self, name) is not None:
                    raise ParameterError(name, f"is of no use with {self.security_protocol}; expected SSL or SASL_SSL")
            if not self.check_hostname:
                raise ParameterError(
                    "check_hostname", f"is of no use with {self.security_protocol}; expected SSL or SASL_SSL"
                )
        if self.certificate_file is None and (self.key_file is not None or self.key_password is not None):
            raise ParameterError("certificate_file", "must be given together with key_file and key_password")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Open it. Nothing is sent before the first `collect`.

        Raises:
            PluginError: the package aiokafka is not installed.
        """
        del shared  # equal sources are connected once, and no other plug-in speaks to these brokers
        try:
            from autoscaler.clients.kafka import Brokers  # noqa: PLC0415 - it needs an extra
        except ImportError as error:
            raise PluginError(f"the source kafka needs aiokafka ({error}): {install_hint('kafka')}") from error
        brokers = Brokers(self)
        try:
            yield _Source(brokers)
        finally:
            await brokers.close()


Offsets = Mapping[int, int]
"""Partition -> offset."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a topic has shown.

    Attributes:
        topic: its name.
        at: time of the loop at which the end offsets were asked for.
        starts: first offset that is still there, by partition.
        ends: end offset, by partition: the offset that the next record will get, or the last stable one.
        committed: group -> its committed offsets (None: nothing committed) by partition, or why it has none.
    """

    topic: str
    at: float
    starts: Offsets
    ends: Offsets
    committed: Mapping[str, Mapping[int, int | None] | EdgeError] = field(default_factory=dict)


def waiting(look: Look, query: Query) -> dict[int, int]:
    """Records of a topic that wait for the query's group, by partition.

    A partition that holds no record has nothing waiting, whatever was committed. Records that were deleted before
    they were consumed wait no more.

    Raises:
        AnswerError: the group has no commits, or none in a partition that counts, or is beyond the end.
    """
    positions = _positions(look, query)
    found = {}
    for partition, end in look.ends.items():
        start = look.starts[partition]
        position = positions.get(partition)
        if position is None:
            position = end if query.uncommitted is Uncommitted.LATEST else start
        found[partition] = end - max(position, start)
    return found


def partitions(looks: Sequence[Look], query: Query) -> dict[str, dict[str, float]]:
    """The lag and the committed offset (-1: none) of each partition, named `topic/partition`.

    Raises:
        AnswerError: as of `waiting`.
    """
    found = {}
    for look in looks:
        positions = _positions(look, query)
        for partition, lag in waiting(look, query).items():
            offset = positions.get(partition, -1)
            found[f"{look.topic}/{partition}"] = {"lag": float(lag), "offset": float(offset)}
    return found


def _positions(look: Look, query: Query) -> dict[int, int]:
    """Where the group has committed. Raises AnswerError unless that tells where it stands in all partitions."""
    assert query.group is not None  # noqa: S101 - for the type checker; the query has looked
    where = f"group {query.group!r}, topic {look.topic!r}"
    outcome = look.committed[query.group]
    if isinstance(outcome, EdgeError):
        raise type(outcome)(*outcome.args)  # a new one: a shared one would gather all its tracebacks
    if not set(look.ends) <= set(outcome):
        raise AnswerError(f"{where}: a partition was added during the question; the next one will count it")
    positions = {partition: offset for partition, offset in outcome.items() if offset is not None}
    if not positions:
        raise AnswerError(
            f"{where}: no committed offsets: is the name of the group right, and do its consumers commit to Kafka? "
            "Flink does so at checkpoints unless commit.offsets.on.checkpoint is false: then use the lag of the source "
            "flink; Spark Structured Streaming never does: use the lag of the source spark"
        )
    missing = sorted(p for p, end in look.ends.items() if p not in positions and end > look.starts[p])
    if missing and query.uncommitted is Uncommitted.ERROR:
        raise AnswerError(
            f"{where}: nothing committed for {_partitions(missing)} of {len(look.ends)}; if the consumers have not "
            "come to it yet, uncommitted: earliest or latest (their auto.offset.reset) counts all its records or none"
        )
    beyond = sorted(p for p, end in look.ends.items() if positions.get(p, 0) > end)
    if beyond:
        first = beyond[0]
        stable = query.isolation is Isolation.READ_COMMITTED
        raise AnswerError(
            f"{where}: committed {positions[first]} in partition {first}, beyond its end {look.ends[first]}"
            f"{f' (and in {_partitions(beyond[1:])})' if beyond[1:] else ''}; "
            "was the topic deleted and made again, or did it lose records in an unclean election"
            f"{', or do the consumers read uncommitted records' if stable else ''}?"
        )
    return positions


def _partitions(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"partition{'s' if len(numbers) > 1 else ''} {shown}{more}"


class History:
    """What the offsets of a topic were at several looks, for their rate.

    Offsets only ever grow. Where they do not, they are of something else, and nothing is counted across that.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()  # when, and the offsets' sum
        self._offsets: Offsets = {}
        self._window = 0.0
        self._why = ""

    def add(self, at: float, offsets: Offsets, *, grows: bool) -> None:
        """Take a look into account; `grows` if a partition that is new to it has begun at 0 since."""
        if self._looks:
            if at <= self._looks[-1][0]:
                return
            problem = self._problem(at, offsets, grows=grows)
            if problem:
                self._looks.clear()
                self._why = f"; {problem}"
        self._looks.append((at, sum(offsets.values())))
        self._offsets = dict(offsets)
        while len(self._looks) > 2 and self._looks[1][0] <= at - max(LONGEST_AT_LEAST, self._window):  # noqa: PLR2004 - two make a rate
            self._looks.popleft()

    def _problem(self, at: float, offsets: Offsets, *, grows: bool) -> str:
        """Why this look has nothing to do with those before, or empty."""
        gap, longest = at - self._looks[-1][0], max(LONGEST_AT_LEAST, LONGEST * self._window)
        if gap > longest:
            return f"the look before it was {gap:.0f} s earlier, and {longest:.0f} s is the most: give a longer window"
        if not set(self._offsets) <= set(offsets):
            return "a partition has gone since the look before it"
        if not grows and set(self._offsets) != set(offsets):
            return "it is the first with commits of another partition"
        back = [partition for partition, offset in self._offsets.items() if offsets[partition] < offset]
        if back:
            before, after = self._offsets[back[0]], offsets[back[0]]
            return f"since the look before it, partition {back[0]} went back from {before} to {after}"
        return ""

    def rate(self, window: timedelta) -> float:
        """Records/s over the window that ends with the last look.

        Raises:
            NotYetError: it has not been looked for long enough.
        """
        seconds = window.total_seconds()
        self._window = max(self._window, seconds)
        now, total = self._looks[-1]
        for at, before in reversed(self._looks):
            if now - at >= SLACK * seconds:
                self._why = ""
                return (total - before) / (now - at)
        raise NotYetError(
            f"a rate over {format_duration(window)} needs two looks so far apart, "
            f"the first was {now - self._looks[0][0]:.0f} s ago (it comes by itself){self._why}"
        )


class _Source:
    """A live source: what the brokers show, made into metrics."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._arrived: dict[tuple[str, Isolation], History] = {}
        self._consumed: dict[tuple[str, str], History] = {}

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read one metric. Raises EdgeError with the brokers, the group and the topic in its message."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        group = None if query.metric is Metric.ARRIVALS else query.group
        asked = (self._brokers.look(topic, query.isolation, group) for topic in query.topics)
        looks = []
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            looks.append(outcome)
        for look in looks:
            self._arrived.setdefault((look.topic, query.isolation), History()).add(look.at, look.ends, grows=True)
        try:
            value = self._value(query, looks)
            parts = partitions(looks, query) if query.partitions else {}
        except EdgeError as error:
            raise type(error)(f"{self._brokers.name}: {error}") from None
        age = max(0.0, begun - min(look.at for look in looks))
        return Reading(value, now - timedelta(seconds=age), sum(len(look.ends) for look in looks), parts)

    def _value(self, query: Query, looks: Sequence[Look]) -> float:
        match query.metric:
            case Metric.LAG:
                return float(sum(sum(waiting(look, query).values()) for look in looks))
            case Metric.MAX_LAG:
                return float(max(max(waiting(look, query).values()) for look in looks))
            case Metric.ARRIVALS:
                return sum(self._arrivals(look, query) for look in looks)
            case Metric.THROUGHPUT:
                return sum(self._throughput(look, query) for look in looks)

    def _arrivals(self, look: Look, query: Query) -> float:
        try:
            return self._arrived[look.topic, query.isolation].rate(query.window)
        except AnswerError as error:
            raise type(error)(f"arrivals of topic {look.topic!r}: {error}") from None

    def _throughput(self, look: Look, query: Query) -> float:
        assert query.group is not None  # noqa: S101 - for the type checker; the query has looked
        positions = _positions(look, query)
        history = self._consumed.setdefault((query.group, look.topic), History())
        history.add(look.at, positions, grows=False)
        try:
            return history.rate(query.window)
        except AnswerError as error:
            raise type(error)(f"throughput of group {query.group!r}, topic {look.topic!r}: {error}") from None
