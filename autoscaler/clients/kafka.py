"""Asks a cluster of Kafka brokers for offsets, over one connection to each broker that is needed.

What aiokafka has above its connections is not used, for reasons that matter to a monitor. Its clients ask for a
topic's metadata so that a broker with `auto.create.topics.enable`, which is the default, makes a topic that does not
exist; its admin client drops the error of a whole group, which then looks like one without commits; and its clients
log the cause of a failed connection instead of telling it. Here a topic is only looked at, and every error of a
partition, a group or a broker is told apart.

Questions of one kind to one broker that come while another is under way wait for it and then go together: the
metrics of a tick, of one cluster or of hundreds, cost few requests.
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

from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, UnavailableError
from autoscaler.sources.kafka import Isolation, Kafka, Look

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Address = tuple[str, int]
Partitions = tuple[str, tuple[int, ...]]
"""A topic and some of its partitions."""

WITHIN = 0.95  # of the time-out is for the whole question, so that its own error comes before the caller's
GROUPS = 0.5  # of it for what the groups have committed: a coordinator that hangs does not cost the end offsets
OPENING = 0.4  # of it for a connection with all its handshakes
REQUEST = 0.3  # of it for one request: a broker that hangs leaves time to ask another
LEADERS_KEPT = 30.0  # seconds until leaders and the number of partitions are asked for again
CLOSING = 1.0  # seconds that connections may take to close
TRIED = 3  # brokers that are asked before nobody answers

NOBODY = -1  # leader of a partition that has none
NOTHING = -1  # committed, or no offset
CONSUMER = -1  # replica that a consumer asks as
GROUP = 0  # what a coordinator is looked for
STABLE = {Isolation.READ_UNCOMMITTED: 0, Isolation.READ_COMMITTED: 1}

# Kafka's error codes, by what they mean to us.
UNKNOWN_TOPIC, NO_LEADER, TOPIC_REFUSED, GROUP_REFUSED = 3, 5, 29, 30
PASSING = {
    NO_LEADER: "it has no leader now",
    6: "its leader has changed",
    7: "the broker could not answer in time",
    8: "its broker is not there",
    9: "its replica is not there",
    14: "its coordinator is still loading",
    15: "it has no coordinator now",
    16: "its coordinator has changed",
    56: "its disk failed",
    74: "its leader has changed",
    75: "its leader has just changed",
    76: "its leader has just changed",
    78: "its new leader does not know the end yet",
    89: "the broker throttles us",
}


class Brokers:
    """One cluster of brokers. Its methods raise EdgeError.

    Attributes:
        name: what it is called in messages.
    """

    def __init__(self, plugin: Kafka) -> None:
        self.name = f"kafka {plugin.bootstrap_servers}"
        self._plugin = plugin
        self._seconds = plugin.timeout.total_seconds()
        self._links = _Links(plugin)
        self._nodes: tuple[Address, ...] = ()
        self._topics: dict[str, _Topic] = {}
        self._coordinators: dict[str, Address] = {}
        self._flights: dict[tuple[str, Isolation], _Flight] = {}
        self._flying: set[asyncio.Task[Look | EdgeError]] = set()  # also those that a newer one has replaced
        self._asked_topics = _Together(self._ask_topics)
        self._asked_groups: dict[str, _Together[Partitions, dict[int, int | None]]] = {}
        self._asked_leaders: dict[tuple[Address, int, int], _Together[Partitions, dict[int, int]]] = {}

    async def close(self) -> None:
        """End what is under way and close the connections."""
        flying = list(self._flying)
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
        await self._asked_topics.close()
        for groups in self._asked_groups.values():
            await groups.close()
        for leaders in self._asked_leaders.values():
            await leaders.close()
        await self._links.close()

    async def look(self, topic: str, isolation: Isolation, group: str | None) -> Look:
        """Look at a topic, and at what a group has committed there.

        Who asks in the same turn of the loop shares one look, and so does who comes within `fresh`. That a group
        cannot be asked is told in the look: it is no error to those who need only the offsets.
        """
        loop = asyncio.get_running_loop()
        flight = self._flights.get((topic, isolation))
        if flight is None or not flight.serves(group, loop.time() - self._plugin.fresh.total_seconds()):
            flight = _Flight(loop.time())
            flight.task = loop.create_task(self._fly(topic, isolation, flight))
            self._flying.add(flight.task)
            flight.task.add_done_callback(self._flying.discard)
            self._flights[topic, isolation] = flight
        if group is not None:
            flight.groups.add(group)
        if not flight.task.done():
            # Unlike awaiting the task, this does not take it from the others when this question is cancelled.
            await asyncio.wait((flight.task,))
        if flight.task.cancelled():
            raise UnavailableError(f"{self.name}: the source was closed")
        outcome = flight.task.result()
        if isinstance(outcome, EdgeError):
            raise type(outcome)(f"{self.name}: {outcome}")  # a new one: a shared one would gather all their tracebacks
        return outcome

    async def _fly(self, topic: str, isolation: Isolation, flight: _Flight) -> Look | EdgeError:
        """Look. An error is returned: many may raise it, or nobody."""
        flight.begun = True
        groups = sorted(flight.groups)
        before: list[str] = []
        try:
            async with asyncio.timeout(WITHIN * self._seconds):
                await self._again(lambda: self._leaders(topic), before)
                committed = await asyncio.gather(*(self._committed(group, topic) for group in groups))
                at, starts, ends = await self._again(lambda: self._offsets(topic, isolation), before)
        except EdgeError as error:
            return error
        except TimeoutError:
            return EdgeTimeoutError("; ".join((f"topic {topic!r}: no answer within {self._seconds:g}s", *before[-1:])))
        return Look(topic, at, starts, ends, dict(zip(groups, committed, strict=True)))

    async def _again(self, ask: Callable[[], Awaitable[V]], before: list[str]) -> V:
        """Ask, and again while that is unavailable; why it was goes to `before`."""
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(self._plugin.attempts),
            wait=wait_random_exponential(multiplier=0.1, max=0.5),
            retry=retry_if_exception_type(UnavailableError),
            reraise=True,
        ):
            with attempt:
                try:
                    answer = await ask()
                except UnavailableError as error:
                    before.append(str(error))
                    raise
        return answer

    # ---- topics

    async def _leaders(self, topic: str) -> Mapping[int, Address | None]:
        """Who leads each partition; None: nobody."""
        known = self._topics.get(topic)
        if known is None or asyncio.get_running_loop().time() - known.at > LEADERS_KEPT:
            known = (await self._asked_topics.ask((topic,)))[topic]
        return known.leaders

    async def _ask_topics(self, topics: Collection[str]) -> Mapping[str, _Topic | EdgeError]:
        # Never without names, which would mean all topics; and no topic is made by being asked for.
        answer = await self._anybody(MetadataRequest(sorted(topics), allow_auto_topic_creation=False))
        nodes = {node: (host, port) for node, host, port, *_ in answer.brokers}
        self._nodes = tuple(nodes.values())
        found: dict[str, _Topic | EdgeError] = {}
        for code, topic, _, partitions in answer.topics:
            if code or not partitions:
                self._topics.pop(topic, None)
                found[topic] = _problem(code or NO_LEADER, topic=topic)
            else:
                leaders = {number: nodes.get(leader) for _, number, leader, *_ in partitions}
                found[topic] = self._topics[topic] = _Topic(leaders, asyncio.get_running_loop().time())
        return found

    async def _anybody(self, request: Any) -> Any:  # noqa: ANN401 - aiokafka's requests and answers have no types
        """Ask any broker, those first that are known to answer."""
        problems: list[UnavailableError] = []
        for address in self._links.order((*self._nodes, *self._plugin.addresses()))[:TRIED]:
            try:
                return await self._links.send(address, request)
            except UnavailableError as error:
                problems.append(error)
        raise type(problems[-1])("; ".join(map(str, problems)))

    # ---- groups

    async def _committed(self, group: str, topic: str) -> dict[int, int | None] | EdgeError:
        """What a group has committed of a topic. An error is returned."""
        asked = self._asked_groups.get(group)
        if asked is None:
            asked = self._asked_groups[group] = _Together(lambda wanted: self._ask_group(group, wanted))

        before: list[str] = []

        async def ask() -> dict[int, int | None]:
            wanted = (topic, tuple(await self._leaders(topic)))
            return (await asked.ask((wanted,)))[wanted]

        try:
            async with asyncio.timeout(GROUPS * self._seconds):
                return await self._again(ask, before)
        except EdgeError as error:
            return error
        except TimeoutError:
            late = f"group {group!r}: no answer of its coordinator within {GROUPS * self._seconds:g}s"
            return EdgeTimeoutError("; ".join((late, *before[-1:])))

    async def _ask_group(
        self, group: str, wanted: Collection[Partitions]
    ) -> Mapping[Partitions, dict[int, int | None] | EdgeError]:
        address = self._coordinators.get(group)
        if address is None:
            answer = await self._anybody(FindCoordinatorRequest(group, GROUP))
            if answer.error_code:
                raise _problem(answer.error_code, group=group)
            address = self._coordinators[group] = (answer.host, answer.port)
        try:
            answer = await self._links.send(address, OffsetFetchRequest(group, _merged(wanted)))
            if answer.error_code:
                raise _problem(answer.error_code, group=group)
        except UnavailableError:
            self._coordinators.pop(group, None)
            raise
        told = {
            (topic, number): _problem(code, topic=topic, number=number, group=group) if code else offset
            for topic, partitions in answer.topics
            for number, offset, _, code in partitions
        }
        return {
            (topic, numbers): _all(
                {number: told.get((topic, number), _untold(topic, number)) for number in numbers},
                lambda offset: None if offset == NOTHING else offset,
            )
            for topic, numbers in wanted
        }

    # ---- offsets

    async def _offsets(self, topic: str, isolation: Isolation) -> tuple[float, dict[int, int], dict[int, int]]:
        """When it was asked, the first offsets and the end offsets of a topic."""
        led: dict[Address, list[int]] = {}
        for number, leader in (await self._leaders(topic)).items():
            if leader is None:
                self._topics.pop(topic, None)
                raise _problem(NO_LEADER, topic=topic, number=number)
            led.setdefault(leader, []).append(number)
        at = asyncio.get_running_loop().time()
        kinds = ((OffsetResetStrategy.EARLIEST, 0), (OffsetResetStrategy.LATEST, STABLE[isolation]))
        asked = [
            self._led(leader, *kind, (topic, tuple(sorted(numbers))))
            for kind in kinds
            for leader, numbers in led.items()
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                self._topics.pop(topic, None)  # whoever leads it now is asked for before it is tried again
                raise answer
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        half = len(led)
        starts = {number: offset for part in found[:half] for number, offset in part.items()}
        ends = {number: offset for part in found[half:] for number, offset in part.items()}
        return at, starts, ends

    async def _led(self, leader: Address, which: int, stable: int, wanted: Partitions) -> dict[int, int]:
        asked = self._asked_leaders.get((leader, which, stable))
        if asked is None:
            asked = _Together(lambda wanted: self._ask_leader(leader, which, stable, wanted))
            self._asked_leaders[leader, which, stable] = asked
        return (await asked.ask((wanted,)))[wanted]

    async def _ask_leader(
        self, leader: Address, which: int, stable: int, wanted: Collection[Partitions]
    ) -> Mapping[Partitions, dict[int, int] | EdgeError]:
        topics = [(topic, [(number, which) for number in numbers]) for topic, numbers in _merged(wanted)]
        answer = await self._links.send(leader, OffsetRequest(CONSUMER, stable, topics))
        told: dict[tuple[str, int], int | EdgeError] = {}
        for topic, partitions in answer.topics:
            for number, code, _, offset, *_ in partitions:
                # A leader that does not know the topic may only be late, or not lead it any more.
                problem = _problem(NO_LEADER if code == UNKNOWN_TOPIC else code, topic=topic, number=number)
                told[topic, number] = problem if code or offset == NOTHING else offset
        return {
            (topic, numbers): _all(
                {number: told.get((topic, number), _untold(topic, number)) for number in numbers}, int
            )
            for topic, numbers in wanted
        }


@dataclass(frozen=True, slots=True)
class _Topic:
    """Who leads its partitions (None: nobody), and when that was so."""

    leaders: Mapping[int, Address | None]
    at: float


@dataclass(slots=True)
class _Flight:
    """A look that is under way or has just ended."""

    started: float
    groups: set[str] = field(default_factory=set)
    begun: bool = False
    task: asyncio.Task[Look | EdgeError] = field(init=False)

    def serves(self, group: str | None, since: float) -> bool:
        """Whether one who comes now can have its outcome too."""
        if not self.begun:
            return True
        return (group is None or group in self.groups) and (not self.task.done() or self.started > since)


class _Together(Generic[K, V]):
    """Questions of one kind: what comes while one is under way waits, and is then asked together."""

    def __init__(self, ask: Callable[[Collection[K]], Awaitable[Mapping[K, V | EdgeError]]]) -> None:
        self._ask = ask
        self._next: dict[K, asyncio.Future[V | EdgeError]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, keys: Iterable[K]) -> dict[K, V]:
        """The answers, of which none is older than the question. Raises EdgeError."""
        loop = asyncio.get_running_loop()
        futures = {}
        for key in keys:
            if key not in self._next:
                self._next[key] = loop.create_future()
            futures[key] = self._next[key]
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        await asyncio.wait(futures.values())  # leaves the futures to the others when this question is cancelled
        found = {}
        for key, future in futures.items():
            if future.cancelled():
                raise UnavailableError("the question was given up")
            answer = future.result()
            if isinstance(answer, EdgeError):
                raise type(answer)(*answer.args)  # a new one: a shared one would gather all their tracebacks
            found[key] = answer
        return found

    async def close(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._next:
            asked, self._next = self._next, {}
            try:
                answers = await self._ask(tuple(asked))
                for key, future in asked.items():
                    future.set_result(answers.get(key, UnavailableError("the broker left it out of its answer")))
            except EdgeError as error:
                for future in asked.values():
                    future.set_result(error)
            finally:
                # Cancelled, or a defect of ours, which the task's own exception shows: nobody waits for it forever.
                for future in asked.values():
                    future.cancel()


class _Links:
    """The connections to the brokers, one to each that was needed, opened when they are."""

    def __init__(self, plugin: Kafka) -> None:
        self._plugin = plugin
        self._seconds = plugin.timeout.total_seconds()
        self._open: dict[Address, AIOKafkaConnection] = {}
        self._opening: dict[Address, asyncio.Task[AIOKafkaConnection | EdgeError]] = {}
        self._failed: dict[Address, float] = {}

    async def close(self) -> None:
        """Close them all."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        closing = [_closed(connection) for connection in self._open.values()]
        self._open.clear()
        if closing:
            await asyncio.wait(closing, timeout=CLOSING)

    def order(self, addresses: Iterable[Address]) -> list[Address]:
        """Those first that are connected, those last that have just failed."""
        return sorted(
            dict.fromkeys(addresses),
            key=lambda address: (self._failed.get(address, 0.0), address not in self._open),
        )

    async def send(self, address: Address, request: Any) -> Any:  # noqa: ANN401 - as in `Brokers._anybody`
        """Ask one broker. Raises EdgeError."""
        try:
            answer = await self._send(address, await self._connection(address), request)
        except EdgeError:
            self._failed[address] = asyncio.get_running_loop().time()
            raise
        self._failed.pop(address, None)
        return answer

    async def _send(self, address: Address, connection: AIOKafkaConnection, request: Any) -> Any:  # noqa: ANN401 - likewise
        try:
            return await connection.send(request)
        except TimeoutError:
            problem: EdgeError = EdgeTimeoutError(
                f"{_named(address)} did not answer within {REQUEST * self._seconds:g}s"
            )
        except (errors.KafkaConnectionError, OSError) as error:
            problem = UnavailableError(f"{_named(address)} closed the connection{_cause(error)}{self._hint(address)}")
        except (errors.KafkaError, NotImplementedError) as error:
            problem = AnswerError(f"{_named(address)} does not understand us{_cause(error)}")
        if self._open.get(address) is connection:
            del self._open[address]
        _closed(connection)
        raise problem

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
        await asyncio.wait((task,))  # others may want it too, even if this one is cancelled
        if task.cancelled():
            raise UnavailableError("the source was closed")
        outcome = task.result()
        if isinstance(outcome, EdgeError):
            raise type(outcome)(*outcome.args)
        return outcome

    async def _connect(self, address: Address) -> AIOKafkaConnection | EdgeError:
        """Open a connection. An error is returned: many may raise it."""
        plugin, seconds = self._plugin, OPENING * self._seconds
        try:
            context = await asyncio.to_thread(_context, plugin) if plugin.tls else None
            token = await asyncio.to_thread(_token, plugin)
        except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
            return AnswerError(f"a file of the configuration cannot be used: {error}")
        connection: AIOKafkaConnection | None = None
        try:
            async with asyncio.timeout(seconds):
                connection = await create_conn(
                    *address,
                    client_id=plugin.client_id,
                    request_timeout_ms=round(REQUEST * self._seconds * 1000),
                    security_protocol=str(plugin.security_protocol),
                    ssl_context=context,
                    sasl_mechanism=None if plugin.sasl_mechanism is None else str(plugin.sasl_mechanism),
                    sasl_plain_username=plugin.username,
                    sasl_plain_password=None if plugin.password is None else str(plugin.password),
                    sasl_oauth_token_provider=token,
                )
                if token is not None and (await connection.send(ApiVersionRequest())).error_code:
                    # aiokafka takes the broker's complaint about a token for the end of the login.
                    _closed(connection)
                    return RefusedError(f"{_named(address)} refuses the token")
        except TimeoutError:
            if connection is not None:
                _closed(connection)
            return EdgeTimeoutError(
                f"{_named(address)} did not complete a connection in {seconds:g}s{self._hint(address)}"
            )
        except ssl.SSLError as error:
            trusted = plugin.ca_file or "the system"
            return AnswerError(f"{_named(address)}: TLS failed: {error}; certificates are trusted by {trusted}")
        except errors.UnsupportedSaslMechanismError as error:
            return RefusedError(
                f"{_named(address)}: sasl_mechanism: {error.args[0] if error.args else plugin.sasl_mechanism}"
            )
        except (
            errors.SaslAuthenticationFailed,
            errors.AuthenticationFailedError,
            errors.IllegalSaslStateError,
        ) as error:
            return RefusedError(f"{_named(address)} refuses {self._who()}{_cause(error)}")
        except (errors.KafkaConnectionError, OSError) as error:
            return UnavailableError(f"{_named(address)} cannot be reached{_cause(error)}{self._hint(address)}")
        except (errors.KafkaError, NotImplementedError, AssertionError, ValueError, LookupError) as error:
            # What SCRAM makes of a server that is not what it says, or of one that is no Kafka broker.
            return AnswerError(f"{_named(address)} does not answer like a Kafka broker{_cause(error)}")
        self._open[address] = connection
        return connection

    def _who(self) -> str:
        plugin = self._plugin
        return "the token" if plugin.username is None else f"user {plugin.username!r} (or the password)"

    def _hint(self, address: Address) -> str:
        """What else may be wrong when a broker hangs up or is not there: it never says what it expected."""
        theirs = (
            "" if address in self._plugin.addresses() else "; brokers gave this address: their advertised.listeners"
        )
        return f" (does it expect {self._plugin.security_protocol} there?{theirs})"


class _Token(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """A token that is known already."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


def _token(plugin: Kafka) -> _Token | None:
    """The token to log in with. Raises OSError and ValueError."""
    if plugin.token is not None:
        return _Token(str(plugin.token))
    if plugin.token_file is None:
        return None
    text = plugin.token_file.read_text().strip()
    if not text or not text.isprintable():
        raise ValueError(f"{plugin.token_file} holds no token")
    return _Token(text)


def _context(plugin: Kafka) -> ssl.SSLContext:
    """How certificates are checked, from files that may have been renewed. Raises OSError."""
    context = ssl.create_default_context(cafile=plugin.ca_file)
    context.check_hostname = plugin.check_hostname
    if plugin.certificate_file is not None:
        # Without a password of ours, OpenSSL would ask for one at the terminal.
        password = "" if plugin.key_password is None else str(plugin.key_password)
        context.load_cert_chain(plugin.certificate_file, plugin.key_file, lambda: password)
    return context


def _closed(connection: AIOKafkaConnection) -> asyncio.Future[None]:
    """Close a connection at once; the future is done when it is."""
    writer = connection._writer  # noqa: SLF001 - nothing else ends a TLS connection whose other end hangs
    closed: asyncio.Future[None] = connection.close(reason=CloseReason.SHUTDOWN)
    if writer is not None:
        writer.transport.abort()
    return closed


def _problem(code: int, topic: str = "", number: int | None = None, group: str = "") -> EdgeError:
    """What an error code of Kafka means."""
    where = f"group {group!r}" if group and not topic else f"topic {topic!r}"
    where += "" if number is None else f", partition {number}"
    if code in PASSING:
        return UnavailableError(f"{where}: {PASSING[code]} (Kafka's error {code})")
    if code == UNKNOWN_TOPIC:
        return AnswerError(f"{where} does not exist; expected the name of a topic of these brokers")
    if code == TOPIC_REFUSED:
        return RefusedError(f"{where}: not allowed; this user needs the ACL operation Describe on the topic")
    if code == GROUP_REFUSED:
        return RefusedError(f"{where}: not allowed; this user needs the ACL operation Describe on the group")
    return AnswerError(f"{where}: {errors.for_code(code).__name__} (Kafka's error {code})")


def _untold(topic: str, number: int) -> EdgeError:
    return UnavailableError(f"topic {topic!r}, partition {number}: the broker left it out of its answer")


def _all(told: Mapping[int, int | EdgeError], read: Callable[[int], V]) -> dict[int, V] | EdgeError:
    """All partitions, or what is wrong with the first that is wrong."""
    for answer in told.values():
        if isinstance(answer, EdgeError):
            return answer
    return {number: read(answer) for number, answer in told.items() if not isinstance(answer, EdgeError)}


def _merged(wanted: Iterable[Partitions]) -> list[tuple[str, list[int]]]:
    """Each topic once and each of its partitions once: brokers refuse to be asked twice."""
    merged: dict[str, set[int]] = {}
    for topic, numbers in wanted:
        merged.setdefault(topic, set()).update(numbers)
    return [(topic, sorted(numbers)) for topic, numbers in merged.items()]


def _named(address: Address) -> str:
    host, port = address
    return f"broker [{host}]:{port}" if ":" in host else f"broker {host}:{port}"


def _cause(error: BaseException) -> str:
    """What the innermost error says, to end a sentence with."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    return f": {text}" if text else f": {type(error).__name__}"
