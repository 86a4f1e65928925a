"""A client of one Kafka cluster. It reads offsets, over one connection to each broker that it needs.

It uses only aiokafka's connections, because aiokafka's own clients have three faults. They request a topic's metadata
in a way that makes a broker with `auto.create.topics.enable` (the default) create a missing topic. The admin client
drops the error of a whole group, which then looks like a group without commits. And they log the cause of a failed
connection instead of raising it. This client creates no topic and reports every error of a partition, group or broker.

While a request to a broker is pending, further requests of that kind are collected and then sent as one batch.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aiokafka import errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest, OffsetResetStrategy
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from autoscaler.clients.connection_errors import describe_connection_error
from autoscaler.clients.kafka_types import ConnectionSettings, Isolation, TopicSnapshot
from autoscaler.clients.shared_requests import cancel_all, outcome_of
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, UnavailableError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Address = tuple[str, int]
Partitions = tuple[str, tuple[int, ...]]
"""A topic and some of its partitions."""

# Shares of the time-out.
SNAPSHOT_SHARE = 0.95  # for a whole snapshot, so that its error is raised before the caller's time-out ends
GROUP_SHARE = 0.5  # for committed offsets: if a coordinator hangs, there is still time for the end offsets
CONNECT_SHARE = 0.4  # for a connection with all its handshakes
REQUEST_SHARE = 0.3  # for one request: if a broker hangs, there is still time to try another
METADATA_MAX_AGE = 30.0  # seconds until leaders and the number of partitions are requested again
CLOSE_TIMEOUT = 1.0  # seconds
MAX_BROKERS = 3  # brokers to try for a request that any broker can answer

NO_OFFSET = -1
CONSUMER_REPLICA_ID = -1
GROUP_COORDINATOR = 0  # FindCoordinator's key type for a group
ISOLATION_LEVELS = {Isolation.READ_UNCOMMITTED: 0, Isolation.READ_COMMITTED: 1}

# Kafka's error codes.
UNKNOWN_TOPIC, NO_LEADER, TOPIC_UNAUTHORIZED, GROUP_UNAUTHORIZED = 3, 5, 29, 30
RETRIABLE = {
    NO_LEADER: "it has no leader at present",
    6: "its leader has changed",
    7: "the broker's request timed out",
    8: "its broker is not available",
    9: "its replica is not available",
    14: "its coordinator is still loading",
    15: "its coordinator is not available",
    16: "its coordinator has changed",
    56: "its disk failed",
    74: "its leader epoch has changed",
    75: "its leader has just changed",
    76: "its leader has just changed",
    78: "its new leader does not know the end offset yet",
    89: "the broker throttles this client",
}


class KafkaClient:
    """A client of one Kafka cluster. Its methods raise EdgeError.

    Attributes:
        name: the client's name in messages.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.name = f"kafka {settings.bootstrap_servers}"
        self._settings = settings
        self._seconds = settings.timeout.total_seconds()
        self._connections = _Connections(settings)
        self._brokers: tuple[Address, ...] = ()
        self._topics: dict[str, _Topic] = {}
        self._coordinators: dict[str, Address] = {}
        self._requests: dict[tuple[str, Isolation], _SnapshotRequest] = {}
        self._tasks: set[asyncio.Task[TopicSnapshot | EdgeError]] = set()  # includes replaced requests
        self._metadata_batches = _Batches(self._request_metadata)
        self._group_batches: dict[str, _Batches[Partitions, dict[int, int | None]]] = {}
        self._leader_batches: dict[tuple[Address, int, int], _Batches[Partitions, dict[int, int]]] = {}

    async def close(self) -> None:
        """Cancel pending requests and close the connections."""
        await cancel_all(self._tasks)
        batches: list[_Batches[Any, Any]] = [self._metadata_batches]
        for each in [*batches, *self._group_batches.values(), *self._leader_batches.values()]:
            await each.close()
        await self._connections.close()

    async def snapshot(self, topic: str, isolation: Isolation, group: str | None) -> TopicSnapshot:
        """Return the offsets of a topic, and those that a group has committed for it.

        Callers in the same turn of the event loop share one snapshot, and so do callers within `fresh` of its start.
        A group's error is part of the snapshot instead of raised, because other callers need only the topic's offsets.
        """
        loop = asyncio.get_running_loop()
        request = self._requests.get((topic, isolation))
        if request is None or not request.serves(group, loop.time() - self._settings.fresh.total_seconds()):
            request = _SnapshotRequest(loop.time())
            request.task = loop.create_task(self._take_snapshot(topic, isolation, request))
            self._tasks.add(request.task)
            request.task.add_done_callback(self._tasks.discard)
            self._requests[topic, isolation] = request
        if group is not None:
            request.groups.add(group)
        return await outcome_of(request.task, f"{self.name}: the source was closed")

    async def _take_snapshot(
        self, topic: str, isolation: Isolation, request: _SnapshotRequest
    ) -> TopicSnapshot | EdgeError:
        request.begun = True
        groups = sorted(request.groups)
        earlier: list[str] = []
        try:
            async with asyncio.timeout(SNAPSHOT_SHARE * self._seconds):
                await self._retry(lambda: self._leaders(topic), earlier)
                committed = await asyncio.gather(*(self._committed(group, topic) for group in groups))
                at, starts, ends = await self._retry(lambda: self._offsets(topic, isolation), earlier)
        except EdgeError as error:
            return type(error)(f"{self.name}: {error}")
        except TimeoutError:
            late = "; ".join((f"topic {topic!r}: no answer within {self._seconds:g}s", *earlier[-1:]))
            return EdgeTimeoutError(f"{self.name}: {late}")
        return TopicSnapshot(topic, at, starts, ends, dict(zip(groups, committed, strict=True)))

    async def _retry(self, request: Callable[[], Awaitable[V]], earlier: list[str]) -> V:
        """Send a request and retry on UnavailableError. The error of each failed attempt is appended to `earlier`."""
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(self._settings.attempts),
            wait=wait_random_exponential(multiplier=0.1, max=0.5),
            retry=retry_if_exception_type(UnavailableError),
            reraise=True,
        ):
            with attempt:
                try:
                    answer = await request()
                except UnavailableError as error:
                    earlier.append(str(error))
                    raise
        return answer

    # ---- topics

    async def _leaders(self, topic: str) -> Mapping[int, Address | None]:
        """The leader of each partition, or None for a partition without a leader."""
        known = self._topics.get(topic)
        if known is None or asyncio.get_running_loop().time() - known.at > METADATA_MAX_AGE:
            known = await self._metadata_batches.request(topic)
        return known.leaders

    async def _request_metadata(self, topics: Collection[str]) -> Mapping[str, _Topic | EdgeError]:
        # `topics` must not be empty: that would request all topics.
        answer = await self._send_to_any(MetadataRequest(sorted(topics), allow_auto_topic_creation=False))
        brokers = {broker: (host, port) for broker, host, port, *_ in answer.brokers}
        self._brokers = tuple(brokers.values())
        found: dict[str, _Topic | EdgeError] = {}
        for code, topic, _, partitions in answer.topics:
            if code or not partitions:
                self._topics.pop(topic, None)
                found[topic] = _error(code or NO_LEADER, topic=topic)
            else:
                leaders = {number: brokers.get(leader) for _, number, leader, *_ in partitions}
                found[topic] = self._topics[topic] = _Topic(leaders, asyncio.get_running_loop().time())
        return found

    async def _send_to_any(self, request: Any) -> Any:  # noqa: ANN401 - aiokafka's requests and answers have no types
        """Send to any broker. Brokers that are known to answer are tried first."""
        problems: list[UnavailableError] = []
        for address in self._connections.order((*self._brokers, *self._settings.addresses()))[:MAX_BROKERS]:
            try:
                return await self._connections.send(address, request)
            except UnavailableError as error:
                problems.append(error)
        raise type(problems[-1])("; ".join(map(str, problems)))

    # ---- groups

    async def _committed(self, group: str, topic: str) -> dict[int, int | None] | EdgeError:
        """Return the offsets that a group has committed for a topic. An error is returned, not raised."""
        batches = self._group_batches.get(group)
        if batches is None:
            batches = self._group_batches[group] = _Batches(lambda wanted: self._request_committed(group, wanted))

        async def request() -> dict[int, int | None]:
            return await batches.request((topic, tuple(await self._leaders(topic))))

        earlier: list[str] = []
        try:
            async with asyncio.timeout(GROUP_SHARE * self._seconds):
                return await self._retry(request, earlier)
        except EdgeError as error:
            return error
        except TimeoutError:
            late = f"group {group!r}: no answer of its coordinator within {GROUP_SHARE * self._seconds:g}s"
            return EdgeTimeoutError("; ".join((late, *earlier[-1:])))

    async def _request_committed(
        self, group: str, wanted: Collection[Partitions]
    ) -> Mapping[Partitions, dict[int, int | None] | EdgeError]:
        address = self._coordinators.get(group)
        if address is None:
            answer = await self._send_to_any(FindCoordinatorRequest(group, GROUP_COORDINATOR))
            if answer.error_code:
                raise _error(answer.error_code, group=group)
            address = self._coordinators[group] = (answer.host, answer.port)
        try:
            answer = await self._connections.send(address, OffsetFetchRequest(group, _merged(wanted)))
            if answer.error_code:
                raise _error(answer.error_code, group=group)
        except UnavailableError:
            self._coordinators.pop(group, None)
            raise
        answered = {
            (topic, number): _error(code, topic=topic, number=number, group=group) if code else offset
            for topic, partitions in answer.topics
            for number, offset, _, code in partitions
        }
        return _by_request(wanted, answered, lambda offset: None if offset == NO_OFFSET else offset)

    # ---- offsets

    async def _offsets(self, topic: str, isolation: Isolation) -> tuple[float, dict[int, int], dict[int, int]]:
        """The loop time of the request, and the first offsets and end offsets of a topic."""
        by_leader: dict[Address, list[int]] = {}
        for number, leader in (await self._leaders(topic)).items():
            if leader is None:
                self._topics.pop(topic, None)
                raise _error(NO_LEADER, topic=topic, number=number)
            by_leader.setdefault(leader, []).append(number)
        at = asyncio.get_running_loop().time()
        kinds = ((OffsetResetStrategy.EARLIEST, 0), (OffsetResetStrategy.LATEST, ISOLATION_LEVELS[isolation]))
        requests = [
            self._leader_offsets(leader, *kind, (topic, tuple(sorted(numbers))))
            for kind in kinds
            for leader, numbers in by_leader.items()
        ]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        found: list[dict[int, int]] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                self._topics.pop(topic, None)  # so the next attempt requests the leaders again
                raise answer
            found.append(answer)
        half = len(by_leader)
        starts = {number: offset for part in found[:half] for number, offset in part.items()}
        ends = {number: offset for part in found[half:] for number, offset in part.items()}
        return at, starts, ends

    async def _leader_offsets(
        self, leader: Address, timestamp: int, isolation: int, wanted: Partitions
    ) -> dict[int, int]:
        batches = self._leader_batches.get((leader, timestamp, isolation))
        if batches is None:
            batches = _Batches(lambda wanted: self._request_offsets(leader, timestamp, isolation, wanted))
            self._leader_batches[leader, timestamp, isolation] = batches
        return await batches.request(wanted)

    async def _request_offsets(
        self, leader: Address, timestamp: int, isolation: int, wanted: Collection[Partitions]
    ) -> Mapping[Partitions, dict[int, int] | EdgeError]:
        topics = [(topic, [(number, timestamp) for number in numbers]) for topic, numbers in _merged(wanted)]
        answer = await self._connections.send(leader, OffsetRequest(CONSUMER_REPLICA_ID, isolation, topics))
        answered: dict[tuple[str, int], int | EdgeError] = {}
        for topic, partitions in answer.topics:
            for number, code, _, offset, *_ in partitions:
                # A broker that does not know the topic may have old metadata, or no longer lead the partition.
                error = _error(NO_LEADER if code == UNKNOWN_TOPIC else code, topic=topic, number=number)
                answered[topic, number] = error if code or offset == NO_OFFSET else offset
        return _by_request(wanted, answered, int)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The leader of each partition (None: no leader), and the loop time at which they were requested."""

    leaders: Mapping[int, Address | None]
    at: float


@dataclass(slots=True)
class _SnapshotRequest:
    """The pending or the latest snapshot of a topic."""

    started: float
    groups: set[str] = field(default_factory=set)
    begun: bool = False
    task: asyncio.Task[TopicSnapshot | EdgeError] = field(init=False)

    def serves(self, group: str | None, since: float) -> bool:
        """Whether a new caller can share this snapshot."""
        if not self.begun:
            return True
        return (group is None or group in self.groups) and (not self.task.done() or self.started > since)


class _Batches(Generic[K, V]):
    """Requests of one kind. Those that arrive while a batch is pending form the next batch."""

    def __init__(self, send: Callable[[Collection[K]], Awaitable[Mapping[K, V | EdgeError]]]) -> None:
        self._send = send
        self._next: dict[K, asyncio.Future[V | EdgeError]] = {}
        self._task: asyncio.Task[None] | None = None

    async def request(self, key: K) -> V:
        """Return an answer that was requested after this call. Raises EdgeError."""
        loop = asyncio.get_running_loop()
        if key not in self._next:
            self._next[key] = loop.create_future()
        future = self._next[key]
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await outcome_of(future, "the request was cancelled")

    async def close(self) -> None:
        """Cancel the pending batch."""
        if self._task is not None:
            await cancel_all((self._task,))

    async def _run(self) -> None:
        while self._next:
            batch, self._next = self._next, {}
            try:
                answers = await self._send(tuple(batch))
                for key, future in batch.items():
                    future.set_result(answers.get(key, UnavailableError("the broker left it out of its answer")))
            except EdgeError as error:
                for future in batch.values():
                    future.set_result(error)
            finally:
                # If this task is cancelled or has a bug (asyncio logs its exception), no caller may wait forever.
                for future in batch.values():
                    future.cancel()


class _Connections:
    """One connection to each broker that is needed, opened on first use."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._seconds = settings.timeout.total_seconds()
        self._open: dict[Address, AIOKafkaConnection] = {}
        self._opening: dict[Address, asyncio.Task[AIOKafkaConnection | EdgeError]] = {}
        self._failed: dict[Address, float] = {}

    async def close(self) -> None:
        """Close all connections."""
        await cancel_all(self._opening.values())
        closing = [_closed(connection) for connection in self._open.values()]
        self._open.clear()
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)

    def order(self, addresses: Iterable[Address]) -> list[Address]:
        """Sort addresses: connected brokers first, brokers that failed most recently last."""
        return sorted(
            dict.fromkeys(addresses),
            key=lambda address: (self._failed.get(address, 0.0), address not in self._open),
        )

    async def send(self, address: Address, request: Any) -> Any:  # noqa: ANN401 - as in `KafkaClient._send_to_any`
        """Send a request to one broker. Raises EdgeError."""
        try:
            answer = await self._send(address, await self._connection(address), request)
        except EdgeError:
            self._failed[address] = asyncio.get_running_loop().time()
            raise
        self._failed.pop(address, None)
        return answer

    async def _send(self, address: Address, connection: AIOKafkaConnection, request: Any) -> Any:  # noqa: ANN401 - as above
        try:
            return await connection.send(request)
        except TimeoutError:
            failure: EdgeError = EdgeTimeoutError(
                f"{_broker(address)} did not answer within {REQUEST_SHARE * self._seconds:g}s"
            )
        except (errors.KafkaConnectionError, OSError) as error:
            failure = UnavailableError(f"{_broker(address)} closed the connection{_cause(error)}{self._hint(address)}")
        except (errors.KafkaError, NotImplementedError) as error:
            failure = AnswerError(f"{_broker(address)} does not understand the request{_cause(error)}")
        if self._open.get(address) is connection:
            del self._open[address]
        _closed(connection)
        raise failure

    async def _connection(self, address: Address) -> AIOKafkaConnection:
        connection = self._open.get(address)
        if connection is not None:
            if connection.connected():
                return connection
            _closed(self._open.pop(address))
        task = self._opening.get(address)
        if task is None:
            task = self._opening[address] = asyncio.get_running_loop().create_task(self._connect(address))
            task.add_done_callback(lambda _: self._opening.pop(address, None))
        return await outcome_of(task, "the source was closed")

    async def _connect(self, address: Address) -> AIOKafkaConnection | EdgeError:
        """Open a connection. An error is returned, because several callers may raise it."""
        settings, seconds = self._settings, CONNECT_SHARE * self._seconds
        try:
            context = await asyncio.to_thread(_context, settings) if settings.tls else None
            token = await asyncio.to_thread(_token, settings)
        except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
            return AnswerError(f"a file of the configuration cannot be used: {error}")
        connection: AIOKafkaConnection | None = None
        try:
            async with asyncio.timeout(seconds):
                connection = await create_conn(
                    *address,
                    client_id=settings.client_id,
                    request_timeout_ms=round(REQUEST_SHARE * self._seconds * 1000),
                    security_protocol=str(settings.security_protocol),
                    ssl_context=context,
                    sasl_mechanism=None if settings.sasl_mechanism is None else str(settings.sasl_mechanism),
                    sasl_plain_username=settings.username,
                    sasl_plain_password=None if settings.password is None else str(settings.password),
                    sasl_oauth_token_provider=token,
                )
                if token is not None and (await connection.send(ApiVersionRequest())).error_code:
                    # When a broker rejects a token, aiokafka treats that answer as a completed login.
                    _closed(connection)
                    return RefusedError(f"{_broker(address)} refuses the token")
        except TimeoutError:
            if connection is not None:
                _closed(connection)
            return EdgeTimeoutError(
                f"{_broker(address)} did not complete a connection in {seconds:g}s{self._hint(address)}"
            )
        except ssl.SSLError as error:
            trusted = settings.ca_file or "the system"
            return AnswerError(f"{_broker(address)}: TLS failed: {error}; certificates are trusted by {trusted}")
        except errors.UnsupportedSaslMechanismError as error:
            return RefusedError(
                f"{_broker(address)}: sasl_mechanism: {error.args[0] if error.args else settings.sasl_mechanism}"
            )
        except (
            errors.SaslAuthenticationFailed,
            errors.AuthenticationFailedError,
            errors.IllegalSaslStateError,
        ) as error:
            return RefusedError(f"{_broker(address)} refuses {self._credential()}{_cause(error)}")
        except (errors.KafkaConnectionError, OSError) as error:
            return UnavailableError(f"{_broker(address)} cannot be reached{_cause(error)}{self._hint(address)}")
        except (errors.KafkaError, NotImplementedError, AssertionError, ValueError, LookupError) as error:
            # Either SCRAM could not verify the server's identity, or the server is not a Kafka broker.
            return AnswerError(f"{_broker(address)} does not answer like a Kafka broker{_cause(error)}")
        self._open[address] = connection
        return connection

    def _credential(self) -> str:
        settings = self._settings
        return "the token" if settings.username is None else f"user {settings.username!r} (or the password)"

    def _hint(self, address: Address) -> str:
        """Possible causes: a broker that is down or closes the connection does not report what it expected."""
        advertised = address not in self._settings.addresses()
        origin = "; the address comes from the brokers' advertised.listeners" if advertised else ""
        return f" (does it expect {self._settings.security_protocol} there?{origin})"


class _Token(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """A token that was read before the connection was opened."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


def _token(settings: ConnectionSettings) -> _Token | None:
    """The token for the login, or None. Raises OSError and ValueError."""
    if settings.token is not None:
        return _Token(str(settings.token))
    if settings.token_file is None:
        return None
    text = settings.token_file.read_text().strip()
    if not text or not text.isprintable():
        raise ValueError(f"{settings.token_file} does not hold a token: it is empty or has a line break in it")
    return _Token(text)


def _context(settings: ConnectionSettings) -> ssl.SSLContext:
    """The TLS settings. The files are read for each connection, because they may have been renewed. Raises OSError."""
    context = ssl.create_default_context(cafile=settings.ca_file)
    context.check_hostname = settings.check_hostname
    if settings.certificate_file is not None:
        # Without a password argument, OpenSSL would prompt for a password at the terminal.
        password = "" if settings.key_password is None else str(settings.key_password)
        context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: password)
    return context


def _closed(connection: AIOKafkaConnection) -> asyncio.Future[None]:
    """Close a connection at once. The future is done when the connection is closed."""
    writer = connection._writer  # noqa: SLF001 - there is no other way to end a TLS connection whose peer hangs
    closed: asyncio.Future[None] = connection.close(reason=CloseReason.SHUTDOWN)
    if writer is not None:
        writer.transport.abort()
    return closed


def _error(code: int, topic: str = "", number: int | None = None, group: str = "") -> EdgeError:
    """The error for one of Kafka's error codes."""
    where = f"group {group!r}" if group and not topic else f"topic {topic!r}"
    where += "" if number is None else f", partition {number}"
    if code in RETRIABLE:
        return UnavailableError(f"{where}: {RETRIABLE[code]} (Kafka's error {code})")
    if code == UNKNOWN_TOPIC:
        return AnswerError(f"{where} does not exist; expected the name of a topic of these brokers")
    if code == TOPIC_UNAUTHORIZED:
        return RefusedError(f"{where}: not allowed; this user needs the ACL operation Describe on the topic")
    if code == GROUP_UNAUTHORIZED:
        return RefusedError(f"{where}: not allowed; this user needs the ACL operation Describe on the group")
    return AnswerError(f"{where}: {errors.for_code(code).__name__} (Kafka's error {code})")


def _by_request(
    wanted: Collection[Partitions],
    answered: Mapping[tuple[str, int], int | EdgeError],
    read: Callable[[int], V],
) -> Mapping[Partitions, dict[int, V] | EdgeError]:
    """Request -> the offsets of all its partitions, or the error of its first partition that has one."""
    found: dict[Partitions, dict[int, V] | EdgeError] = {}
    for topic, numbers in wanted:
        offsets: dict[int, V] = {}
        found[topic, numbers] = offsets
        for number in numbers:
            answer = answered.get((topic, number))
            if not isinstance(answer, int):
                found[topic, numbers] = answer or UnavailableError(
                    f"topic {topic!r}, partition {number}: the broker left it out of its answer"
                )
                break
            offsets[number] = read(answer)
    return found


def _merged(wanted: Iterable[Partitions]) -> list[tuple[str, list[int]]]:
    """Remove duplicate topics and partitions: brokers refuse a request that names one twice."""
    merged: dict[str, set[int]] = {}
    for topic, numbers in wanted:
        merged.setdefault(topic, set()).update(numbers)
    return [(topic, sorted(numbers)) for topic, numbers in merged.items()]


def _broker(address: Address) -> str:
    host, port = address
    return f"broker [{host}]:{port}" if ":" in host else f"broker {host}:{port}"


def _cause(error: BaseException) -> str:
    """The innermost error's message, as the end of a sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f": {describe_connection_error(error)}"
