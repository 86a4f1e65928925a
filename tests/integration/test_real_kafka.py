"""The source `kafka` against real Kafka brokers."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer

from autoscaler.clients.kafka_types import Isolation, SecurityProtocol
from autoscaler.core.model import Reading
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Secret, UnavailableError
from autoscaler.sources.kafka import Kafka, Metric, Query, Uncommitted
from autoscaler.testing.contracts import LocalShared
from tests.sources import kafka_broker
from tests.sources.kafka_broker import USERS, Broker, commit, grow_topic, make_topic, produce
from tests.sources.prometheus_server import Authority

pytestmark = pytest.mark.e2e

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT_ONCE = timedelta(0)
QUICK = timedelta(seconds=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    kafka_broker.java()
    with kafka_broker.running(tmp_path_factory.mktemp("kafka") / "one", secure=authority) as one:
        yield one


def is_reading(outcome: Reading | EdgeError) -> bool:
    return isinstance(outcome, Reading)


def is_value(value: float) -> Callable[[Reading | EdgeError], bool]:
    return lambda outcome: isinstance(outcome, Reading) and outcome.value == value


class Asker:
    """An open source; `ask` returns a reading, `fail` the error."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def ask(self, metric: str, *topics: str, now: datetime = NOW, **more: Any) -> Reading:
        return cast("Reading", await self._source.collect(Query(metric=Metric(metric), topics=topics, **more), now))

    async def value(self, metric: str, *topics: str, **more: Any) -> float:
        value = (await self.ask(metric, *topics, **more)).value
        assert isinstance(value, float)
        return value

    async def until(
        self, wanted: Callable[[Reading | EdgeError], bool], metric: str, *topics: str, seconds: float = 40, **more: Any
    ) -> None:
        """Read until the result is the expected one."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                outcome: Reading | EdgeError = await self.ask(metric, *topics, **more)
            except EdgeError as error:
                outcome = error
            if wanted(outcome):
                return
            assert time.monotonic() < deadline, f"still {outcome!r} after {seconds:g} s"
            await asyncio.sleep(0.1)


@asynccontextmanager
async def opened(plugin: Kafka) -> AsyncIterator[Asker]:
    async with LocalShared() as shared, plugin.connect(shared) as source:
        yield Asker(source)


@asynccontextmanager
async def source(broker: Broker, **more: Any) -> AsyncIterator[Asker]:
    async with opened(Kafka(bootstrap_servers=broker.address, **{"fresh": AT_ONCE, **more})) as asker:
        yield asker


async def filled(
    broker: Broker, topic: str, counts: Mapping[int, int], commits: Mapping[int, int] | None = None
) -> None:
    """A topic with these records by partition, of which `group` has committed these."""
    await make_topic(broker.address, topic, len(counts))
    await produce(broker.address, topic, counts)
    if commits is not None:
        await commit(broker.address, "group", topic, commits)


async def test_lag_counts_produced_but_uncommitted_records(broker: Broker) -> None:
    await filled(broker, "exact", {0: 100, 1: 50, 2: 7, 3: 0}, {0: 60, 1: 50, 2: 0, 3: 0})
    async with source(broker) as asker:
        before = NOW - timedelta(seconds=1)
        reading = await asker.ask("lag", "exact", group="group")
        assert (reading.value, reading.partitions) == (47.0, 4)
        assert before < reading.at <= NOW
        assert await asker.value("max_lag", "exact", group="group") == 40.0
        await produce(broker.address, "exact", {3: 3})
        await commit(broker.address, "group", "exact", {0: 100})
        assert await asker.value("lag", "exact", group="group") == 10.0
        await commit(broker.address, "group", "exact", {2: 7, 3: 3})
        assert await asker.value("lag", "exact", group="group") == 0.0


async def test_several_topics_count_as_one(broker: Broker) -> None:
    await filled(broker, "several-a", {0: 10, 1: 20}, {0: 1, 1: 2})
    await filled(broker, "several-b", {0: 5}, {0: 5})
    async with source(broker) as asker:
        reading = await asker.ask("lag", "several-a", "several-b", group="group")
        assert (reading.value, reading.partitions) == (27.0, 3)
        assert await asker.value("max_lag", "several-a", "several-b", group="group") == 18.0


async def test_a_group_without_commits_is_missing_and_the_error_names_other_sources(broker: Broker) -> None:
    await filled(broker, "unread", {0: 10})
    async with source(broker) as asker:
        for policy in Uncommitted:
            with pytest.raises(AnswerError, match=r"group 'group', topic 'unread': no committed offsets.*source flink"):
                await asker.ask("lag", "unread", group="group", uncommitted=policy)
        with pytest.raises(AnswerError, match="no committed offsets"):
            await asker.ask("throughput", "unread", group="group")


async def test_a_partition_without_commits_is_missing_unless_uncommitted_is_set(broker: Broker) -> None:
    await filled(broker, "partly", {0: 10, 1: 20, 2: 0}, {0: 4})
    async with source(broker) as asker:
        with pytest.raises(
            AnswerError, match=r"nothing committed for partition 1 of 3; .* uncommitted: earliest or latest"
        ):
            await asker.ask("lag", "partly", group="group")
        assert await asker.value("lag", "partly", group="group", uncommitted=Uncommitted.EARLIEST) == 26.0
        assert await asker.value("lag", "partly", group="group", uncommitted=Uncommitted.LATEST) == 6.0


async def test_an_unknown_topic_is_missing_and_is_not_created(broker: Broker) -> None:
    async with source(broker) as asker:
        for metric in ("lag", "arrivals"):
            with pytest.raises(AnswerError, match="topic 'nowhere' does not exist"):
                await asker.ask(metric, "nowhere", group="group")
    assert "nowhere" not in await kafka_broker.topics(broker.address)


async def test_commits_beyond_the_end_are_an_error_instead_of_a_negative_lag(broker: Broker) -> None:
    await filled(broker, "again", {0: 10}, {0: 10})
    async with source(broker) as asker:
        assert await asker.value("lag", "again", group="group") == 0.0
        await commit(broker.address, "group", "again", {0: 15})
        with pytest.raises(AnswerError, match=r"committed 15 in partition 0, beyond its end 10; was the topic deleted"):
            await asker.ask("lag", "again", group="group")


async def test_a_recreated_topic_is_read(broker: Broker) -> None:
    await filled(broker, "reborn", {0: 10}, {0: 4})
    async with source(broker) as asker:
        assert await asker.value("lag", "reborn", group="group") == 6.0
        await kafka_broker.delete_topic(broker.address, "reborn")
        await asker.until(lambda outcome: isinstance(outcome, AnswerError), "lag", "reborn", group="group")
        await make_topic(broker.address, "reborn", 2)
        await produce(broker.address, "reborn", {0: 3, 1: 1})
        # Kafka deletes a group's commits with the topic.
        with pytest.raises(AnswerError, match="no committed offsets"):
            await asker.ask("lag", "reborn", group="group")
        await commit(broker.address, "group", "reborn", {0: 0, 1: 1})
        reading = await asker.ask("lag", "reborn", group="group")
        assert (reading.value, reading.partitions) == (3.0, 2)


async def test_records_deleted_before_they_were_read_are_not_lag(broker: Broker) -> None:
    await filled(broker, "expired", {0: 10}, {0: 2})
    async with source(broker) as asker:
        assert await asker.value("lag", "expired", group="group") == 8.0
        await kafka_broker.delete_records(broker.address, "expired", {0: 7})
        assert await asker.value("lag", "expired", group="group") == 3.0


async def test_an_added_partition_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.clients.kafka.METADATA_MAX_AGE", 0.2)
    await filled(broker, "grows", {0: 10}, {0: 4})
    async with source(broker) as asker:
        assert (await asker.ask("lag", "grows", group="group")).partitions == 1
        await grow_topic(broker.address, "grows", 3)
        await asker.until(
            lambda outcome: isinstance(outcome, Reading) and outcome.partitions == 3, "lag", "grows", group="group"
        )
        assert await asker.value("lag", "grows", group="group") == 6.0
        await produce(broker.address, "grows", {2: 5})
        with pytest.raises(AnswerError, match="nothing committed for partition 2 of 3"):
            await asker.ask("lag", "grows", group="group")
        await commit(broker.address, "group", "grows", {2: 1})
        assert await asker.value("lag", "grows", group="group") == 10.0


async def test_rates_count_the_records_appended_and_committed_in_the_window(broker: Broker) -> None:
    await filled(broker, "rates", {0: 100, 1: 100}, {0: 10, 1: 10})
    window = timedelta(seconds=0.5)
    async with source(broker) as asker:
        begun = time.monotonic()
        for metric in ("arrivals", "throughput"):
            with pytest.raises(
                AnswerError, match=rf"{metric} of .*needs two snapshots that far apart, the first was taken \d+ s ago"
            ):
                await asker.ask(metric, "rates", group="group", window=window)
        await produce(broker.address, "rates", {0: 300, 1: 200})
        await commit(broker.address, "group", "rates", {0: 60})
        await asyncio.sleep(0.6)
        arrivals = await asker.value("arrivals", "rates", group="group", window=window)
        throughput = await asker.value("throughput", "rates", group="group", window=window)
        took = time.monotonic() - begun
        assert 500 / took <= arrivals < 500 / 0.5
        assert 50 / took <= throughput < 50 / 0.5
        await asker.until(is_value(0.0), "arrivals", "rates", window=window)


async def test_a_rate_starts_over_when_commits_go_back(broker: Broker) -> None:
    await filled(broker, "replayed", {0: 100}, {0: 90})
    window = timedelta(seconds=0.2)
    async with source(broker) as asker:
        await asker.until(is_reading, "throughput", "replayed", group="group", window=window)
        await commit(broker.address, "group", "replayed", {0: 20})
        with pytest.raises(AnswerError, match="partition 0 went back from 90 to 20"):
            await asker.ask("throughput", "replayed", group="group", window=window)


async def test_records_of_an_open_transaction_count_by_default(broker: Broker) -> None:
    await filled(broker, "transacted", {0: 10}, {0: 4})
    writer = AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id="writer")
    stable: dict[str, Any] = {"group": "group", "isolation": Isolation.READ_COMMITTED}
    async with writer as producer, source(broker) as asker:
        await producer.begin_transaction()
        for _ in range(5):
            await producer.send("transacted", b"x", partition=0)
        await producer.flush()
        assert await asker.value("lag", "transacted", group="group") == 11.0
        assert await asker.value("lag", "transacted", **stable) == 6.0
        await producer.commit_transaction()
        # the five, and the marker that ends the transaction
        await asker.until(is_value(12.0), "lag", "transacted", **stable)


@pytest.fixture(scope="module")
def _permissions(broker: Broker) -> None:
    """The permissions documented in docs/integrations/metrics.md, and no more."""
    broker.tool(
        *("org.apache.kafka.tools.AclCommand", "--bootstrap-server", broker.address, "--add"),
        *("--allow-principal", "User:ann", "--operation", "Describe", "--topic", "allowed", "--group", "group"),
    )
    asyncio.run(filled(broker, "allowed", {0: 10}, {0: 4}))


@pytest.mark.usefixtures("_permissions")
class TestAuthentication:
    """TLS, SASL and permissions."""

    def plugin(self, broker: Broker, listener: str, **more: Any) -> Kafka:
        protocol = SecurityProtocol(kafka_broker.PROTOCOLS[listener])
        return Kafka(bootstrap_servers=broker.at(listener), security_protocol=protocol, fresh=AT_ONCE, **more)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    @pytest.mark.parametrize("listener", ["SASL", "SASL_SSL"])
    @pytest.mark.filterwarnings("ignore:.*in the clear")
    async def test_a_user_with_describe_permission_reads_the_lag(
        self, broker: Broker, authority: Authority, listener: str, mechanism: str
    ) -> None:
        more = {"ca_file": authority.ca} if listener == "SASL_SSL" else {}
        plugin = self.plugin(
            broker, listener, sasl_mechanism=mechanism, username="ann", password=Secret(USERS["ann"]), **more
        )
        async with opened(plugin) as asker:
            assert await asker.value("lag", "allowed", group="group") == 6.0
            with pytest.raises(
                RefusedError, match=r"group 'other': not allowed; .* ACL operation Describe on the group"
            ):
                await asker.ask("lag", "allowed", group="other")

    async def test_a_user_without_permissions_is_refused(self, broker: Broker) -> None:
        plugin = self.plugin(broker, "SASL", sasl_mechanism="PLAIN", username="ben", password=Secret(USERS["ben"]))
        async with opened(plugin) as asker:
            with pytest.raises(
                RefusedError, match=r"topic 'allowed': not allowed; .* ACL operation Describe on the topic"
            ):
                await asker.ask("lag", "allowed", group="group")

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
    async def test_a_wrong_password_is_refused_and_not_shown(self, broker: Broker, mechanism: str) -> None:
        plugin = self.plugin(broker, "SASL", sasl_mechanism=mechanism, username="ann", password=Secret("guessed-word"))
        async with opened(plugin) as asker:
            with pytest.raises(RefusedError, match=r"refuses user 'ann' \(or the password\)") as caught:
                await asker.ask("lag", "allowed", group="group")
        assert "guessed-word" not in str(caught.value)

    async def test_a_token_file_is_read_for_each_connection(self, broker: Broker, tmp_path: Path) -> None:
        file = tmp_path / "token"
        plugin = self.plugin(broker, "SASL", sasl_mechanism="OAUTHBEARER", token_file=file)
        async with opened(plugin) as asker:
            with pytest.raises(AnswerError, match="No such file"):
                await asker.ask("lag", "allowed", group="group")
            file.write_text("not-a-token")
            with pytest.raises(RefusedError, match="refuses the token"):
                await asker.ask("lag", "allowed", group="group")
            file.write_text(unsigned_token("ann") + "\n")
            assert await asker.value("lag", "allowed", group="group") == 6.0

    async def test_tls_trusts_only_the_given_authority(
        self, broker: Broker, authority: Authority, tmp_path: Path
    ) -> None:
        async with opened(self.plugin(broker, "SSL", ca_file=authority.ca)) as asker:
            assert await asker.value("lag", "allowed", group="group") == 6.0
        other = Authority.make(tmp_path)
        for plugin in (self.plugin(broker, "SSL"), self.plugin(broker, "SSL", ca_file=other.ca)):
            async with opened(plugin) as asker:
                with pytest.raises(AnswerError, match=r"TLS failed: .*CERTIFICATE_VERIFY_FAILED"):
                    await asker.ask("lag", "allowed", group="group")

    async def test_a_client_certificate_is_the_login(self, broker: Broker, authority: Authority) -> None:
        plugin = self.plugin(
            broker, "SSL", ca_file=authority.ca, certificate_file=authority.certificate, key_file=authority.key
        )
        async with opened(plugin) as asker:
            # Without it the client is anonymous, who may do everything here; the user of this certificate may do
            # nothing.
            with pytest.raises(RefusedError, match="Describe on the topic"):
                await asker.ask("lag", "allowed", group="group")

    async def test_the_wrong_protocol_is_named_as_a_possible_cause(self, broker: Broker, authority: Authority) -> None:
        wrong: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("SSL", "PLAINTEXT", {}),
            ("SASL", "PLAINTEXT", {}),
            ("PLAINTEXT", "SSL", {"ca_file": authority.ca}),
        )
        for listener, protocol, more in wrong:
            plugin = Kafka(
                bootstrap_servers=broker.at(listener),
                security_protocol=SecurityProtocol(protocol),
                timeout=QUICK,
                **more,
            )
            async with opened(plugin) as asker:
                with pytest.raises(EdgeError, match=f"does it expect {protocol} there|TLS failed"):
                    await asker.ask("lag", "allowed", group="group")


def unsigned_token(user: str) -> str:
    """An unsigned token, which brokers without a verification key accept."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 5, "exp": now + 3600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


async def test_a_broker_that_hangs_is_missing_within_the_timeout_and_recovers(broker: Broker) -> None:
    await filled(broker, "hangs", {0: 10}, {0: 4})
    async with source(broker, timeout=QUICK) as asker:
        assert await asker.value("lag", "hangs", group="group") == 6.0
        broker.signal(signal.SIGSTOP)
        try:
            for _ in range(2):
                begun = time.monotonic()
                with pytest.raises(EdgeTimeoutError, match=broker.address):
                    await asker.ask("lag", "hangs", group="group")
                assert time.monotonic() - begun < 10  # aiokafka's own time-out is 40 s
        finally:
            broker.signal(signal.SIGCONT)
        await asker.until(is_reading, "lag", "hangs", group="group")
        assert await asker.value("lag", "hangs", group="group") == 6.0


async def test_a_broker_that_is_killed_is_missing_and_recovers(broker: Broker) -> None:
    await filled(broker, "killed", {0: 10}, {0: 4})
    async with source(broker, timeout=QUICK) as asker:
        assert await asker.value("lag", "killed", group="group") == 6.0
        broker.signal(signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(UnavailableError, match=rf"broker {broker.address} cannot be reached"):
                await asker.ask("lag", "killed", group="group")
        await asyncio.to_thread(broker.start)
        await asker.until(is_reading, "lag", "killed", group="group")
        assert await asker.value("lag", "killed", group="group") == 6.0


async def test_many_clusters_need_few_requests(broker: Broker) -> None:
    await filled(broker, "shared", dict.fromkeys(range(4), 25))
    for number in range(10):
        await commit(broker.address, f"group-{number}", "shared", dict.fromkeys(range(4), number))
    async with source(broker, fresh=QUICK) as asker:
        values = await asyncio.gather(
            *(asker.value("lag", "shared", group=f"group-{number}") for number in range(10) for _ in range(20))
        )
    assert values == [100.0 - 4 * number for number in range(10) for _ in range(20)]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    kafka_broker.java()
    with kafka_broker.cluster(tmp_path / "two") as both:
        yield both


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers; one that hangs is still the leader when a request to it times out."""
    kafka_broker.java()
    with kafka_broker.cluster(tmp_path / "patient", lost_after=10) as both:
        yield both


@pytest.mark.e2e
async def test_a_lost_leader_is_missing_until_another_is_elected(two: tuple[Broker, Broker]) -> None:
    first, second = two
    await make_topic(first.address, "copied", assigned={0: [2, 1], 1: [1, 2]})
    await make_topic(first.address, "single", assigned={0: [2], 1: [1]})
    for topic in ("copied", "single"):
        await produce(first.address, topic, {0: 10, 1: 10})
        await commit(first.address, "group", topic, {0: 4, 1: 4})
    # Only the second is known at first, so that the first is found through it.
    async with opened(Kafka(bootstrap_servers=second.address, fresh=AT_ONCE, timeout=QUICK)) as asker:
        for topic in ("copied", "single"):
            await asker.until(is_value(12.0), "lag", topic, group="group")
        second.signal(signal.SIGKILL)
        with pytest.raises(UnavailableError, match=rf"broker {second.address} (closed|cannot be reached)|no leader"):
            await asker.ask("lag", "single", group="group")
        await asker.until(is_value(12.0), "lag", "copied", group="group")
        for metric in ("lag", "arrivals"):
            with pytest.raises(UnavailableError, match="topic 'single', partition 0: it has no leader at present"):
                await asker.ask(metric, "single", group="group")
        await asyncio.to_thread(second.start)
        await asker.until(is_value(12.0), "lag", "single", group="group")


@pytest.mark.e2e
async def test_a_leader_that_hangs_does_not_cost_topics_of_other_brokers(patient: tuple[Broker, Broker]) -> None:
    first, second = patient
    await make_topic(first.address, "here", assigned={0: [1]})
    await make_topic(first.address, "there", assigned={0: [2]})
    async with opened(Kafka(bootstrap_servers=f"{first.address},{second.address}", fresh=AT_ONCE)) as asker:
        window = timedelta(seconds=0.1)
        for topic in ("here", "there"):
            await asker.until(is_value(0.0), "arrivals", topic, window=window)
        second.signal(signal.SIGSTOP)
        try:
            missing = asyncio.create_task(asker.ask("arrivals", "there", window=window))
            for _ in range(20):
                begun = time.monotonic()
                assert await asker.value("arrivals", "here", window=window) == 0.0
                assert time.monotonic() - begun < 2.5  # the other one takes 3 s
            with pytest.raises(EdgeTimeoutError, match=second.address):
                await missing
        finally:
            second.signal(signal.SIGCONT)
        await asker.until(is_value(0.0), "arrivals", "there", window=window)
