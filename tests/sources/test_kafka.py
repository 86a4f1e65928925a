"""The source `kafka`: its parameters, its readings from offsets, and its reaction to errors of brokers."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.clients.kafka import _context
from autoscaler.clients.kafka_types import SaslMechanism, SecurityProtocol, TopicSnapshot
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    NotYetError,
    PluginError,
    RefusedError,
    Secret,
    UnavailableError,
)
from autoscaler.sources.kafka import (
    Kafka,
    Metric,
    OffsetHistory,
    Query,
    Uncommitted,
    partition_lags,
)
from autoscaler.testing.contracts import LocalShared
from tests.sources.kafka_stub import COMMITS, COORDINATOR, METADATA, OFFSETS, Stub, stub
from tests.sources.prometheus_server import Authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAG = Query(metric=Metric.LAG, topics=("orders",), group="group")
ARRIVALS = Query(metric=Metric.ARRIVALS, topics=("orders",), window=timedelta(seconds=10))
QUICK = timedelta(seconds=1)


def plugin(server: Stub, **more: Any) -> Kafka:
    return Kafka(bootstrap_servers=server.address, **{"fresh": timedelta(0), **more})


@asynccontextmanager
async def opened(plugin: Kafka) -> AsyncIterator[Any]:
    async with LocalShared() as shared, plugin.connect(shared) as source:
        yield source


async def read(plugin: Kafka, *queries: Query) -> list[Any]:
    """The results of concurrent queries of a source opened for them alone: readings or errors."""
    async with opened(plugin) as source:
        asked = (source.collect(query, NOW) for query in queries)
        return await asyncio.gather(*asked, return_exceptions=True)


async def value(plugin: Kafka, query: Query = LAG) -> float:
    (outcome,) = await read(plugin, query)
    if isinstance(outcome, BaseException):
        raise outcome
    return cast("float", outcome.value)


def orders(**more: Any) -> dict[str, Any]:
    """A topic with two partitions of 10 and 20 records; the group has 5 left to process."""
    return {"ends": {"orders": [10, 20]}, "commits": {("group", "orders"): [5, 20]}, **more}


class TestParameters:
    @pytest.mark.parametrize(
        "servers",
        ["kafka:9092", "a:1,b:2", " a:9092 , b:9092", "[::1]:9092", "10.0.0.1:65535", "kafka-1.example.org:9"],
    )
    def test_addresses_are_parsed(self, servers: str) -> None:
        assert Kafka(bootstrap_servers=servers).addresses()

    @pytest.mark.parametrize(
        "servers", ["", "kafka", "kafka:", "kafka:0", "kafka:70000", "http://kafka:9092", "a:1,,b:2"]
    )
    def test_an_invalid_address_is_reported(self, servers: str) -> None:
        with pytest.raises(ValueError, match="bootstrap_servers: must look like kafka-1:9092,kafka-2:9092"):
            Kafka(bootstrap_servers=servers)

    @pytest.mark.parametrize(
        ("given_", "message"),
        [
            ({"security_protocol": "TLS"}, "TLS"),
            ({"username": "ann"}, "username: has no effect with PLAINTEXT; expected SASL_PLAINTEXT or SASL_SSL"),
            ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism: has no effect with PLAINTEXT"),
            ({"ca_file": "ca.pem"}, "ca_file: has no effect with PLAINTEXT; expected SSL or SASL_SSL"),
            ({"check_hostname": False}, "check_hostname: has no effect"),
            ({"security_protocol": "SASL_SSL"}, "SASL_SSL needs sasl_mechanism: PLAIN, SCRAM-SHA-256"),
            ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "PLAIN needs username and password"),
            (
                {
                    "security_protocol": "SASL_SSL",
                    "sasl_mechanism": "PLAIN",
                    "username": "a",
                    "password": Secret("x\n"),
                },
                "password: must not be empty or contain a line break",
            ),
            (
                {
                    "security_protocol": "SASL_SSL",
                    "sasl_mechanism": "OAUTHBEARER",
                    "username": "a",
                    "password": Secret("x"),
                },
                "OAUTHBEARER needs token or token_file",
            ),
            ({"security_protocol": "SSL", "key_file": "key.pem"}, "certificate_file: must be given together"),
            ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
            ({"attempts": 0}, "attempts: must be 1 or more, not 0"),
            ({"fresh": timedelta(-1)}, "fresh: must not be negative"),
            ({"client_id": ""}, "client_id: must not be empty"),
        ],
    )
    def test_an_invalid_source_is_reported(self, given_: Mapping[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Kafka(bootstrap_servers="kafka:9092", **given_)

    @pytest.mark.parametrize(
        ("given_", "message"),
        [
            ({"metric": "lags"}, "lags"),
            ({"topics": ()}, "topics: must name at least one topic"),
            ({"topics": ("orders-*",)}, "'orders-.*' is not the name of a topic; patterns are not supported"),
            ({"topics": ("a", "a")}, "topics: must name each topic once"),
            ({"group": None}, "lag needs group"),
            ({"metric": "throughput", "group": None}, "throughput needs group"),
            ({"metric": "throughput", "partitions": True}, "partitions: has no effect with throughput"),
            ({"group": ""}, "group: must not be empty"),
            ({"window": timedelta(0)}, "window: must be above 0s"),
        ],
    )
    def test_an_invalid_metric_is_reported(self, given_: Mapping[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Query(**{"metric": "lag", "topics": ("orders",), "group": "group", **given_})


class TestPartitionLags:
    """The lag of a group in a topic."""

    def snapshot(self, ends: list[int], committed: list[int | None], starts: list[int] | None = None) -> TopicSnapshot:
        numbers = range(len(ends))
        first = dict(zip(numbers, starts or [0] * len(ends), strict=True))
        return TopicSnapshot("orders", 0.0, first, dict(enumerate(ends)), {"group": dict(enumerate(committed))})

    def test_lag_is_the_number_of_records_after_the_commits(self) -> None:
        assert partition_lags(self.snapshot([10, 20, 5], [4, 20, 0]), LAG) == {0: 6, 1: 0, 2: 5}

    def test_deleted_records_are_not_lag(self) -> None:
        assert partition_lags(self.snapshot([10, 20], [4, 6], starts=[7, 0]), LAG) == {0: 3, 1: 14}

    def test_an_empty_partition_has_no_lag_whatever_was_committed(self) -> None:
        assert partition_lags(self.snapshot([10, 7], [4, None], starts=[0, 7]), LAG) == {0: 6, 1: 0}

    def test_of_many_partitions_without_commits_only_some_are_named(self) -> None:
        with pytest.raises(AnswerError, match=r"nothing committed for partitions 1, 2, 3, 4, 5 and 4 more of 10"):
            partition_lags(self.snapshot([1] * 10, [1] + [None] * 9), LAG)

    def test_a_partition_without_a_requested_commit_is_an_error(self) -> None:
        snapshot = TopicSnapshot("orders", 0.0, {0: 0, 1: 0}, {0: 5, 1: 5}, {"group": {0: 1}})
        with pytest.raises(AnswerError, match="a partition was added between the two requests"):
            partition_lags(snapshot, LAG)

    @given(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.none() | st.integers(0, 300)), min_size=1),
        st.sampled_from(list(Uncommitted)),
    )
    def test_lag_is_an_error_or_between_zero_and_all_records(
        self, partitions: list[tuple[int, int, int | None]], uncommitted: Uncommitted
    ) -> None:
        starts = [start for start, _, _ in partitions]
        ends = [start + records for start, records, _ in partitions]
        query = Query(metric=Metric.LAG, topics=("orders",), group="group", uncommitted=uncommitted)
        try:
            found = partition_lags(self.snapshot(ends, [committed for *_, committed in partitions], starts), query)
        except AnswerError:
            return
        assert found.keys() == set(range(len(ends)))
        assert all(0 <= found[number] <= ends[number] - starts[number] for number in found)


class TestHistory:
    """Rates of offsets."""

    WINDOW = timedelta(seconds=10)

    def rate(self, *snapshots: tuple[float, dict[int, int]], grows: bool = True, window: timedelta = WINDOW) -> float:
        history = OffsetHistory()
        for at, offsets in snapshots:
            history.add(at, offsets, grows=grows)
        return history.rate(window)

    def test_a_rate_is_the_growth_over_the_window(self) -> None:
        assert self.rate((0, {0: 5, 1: 5}), (10, {0: 25, 1: 15})) == 3.0
        assert self.rate((0, {0: 0}), (5, {0: 1000}), (10, {0: 1100}), (15, {0: 1200})) == 20.0

    def test_a_slightly_early_snapshot_is_enough(self) -> None:
        assert self.rate((0, {0: 0}), (9.6, {0: 96})) == 10.0

    def test_one_snapshot_is_not_enough_for_a_rate(self) -> None:
        with pytest.raises(AnswerError, match="needs two snapshots that far apart, the first was taken 4 s ago"):
            self.rate((0, {0: 0}), (4, {0: 100}))

    def test_the_same_snapshot_added_twice_counts_once(self) -> None:
        assert self.rate((0, {0: 0}), (0, {0: 0}), (10, {0: 10}), (10, {0: 10})) == 1.0

    def test_an_added_partition_starts_at_zero(self) -> None:
        assert self.rate((0, {0: 100}), (10, {0: 110, 1: 40})) == 5.0

    def test_the_first_commits_of_another_partition_give_no_rate(self) -> None:
        with pytest.raises(AnswerError, match="it is the first snapshot with commits of another partition"):
            self.rate((0, {0: 100}), (10, {0: 110, 1: 4_000_000}), grows=False)

    @pytest.mark.parametrize(
        ("after", "message"),
        [({0: 3, 1: 9}, "0 went back from 5 to 3"), ({0: 7}, "a partition has disappeared")],
    )
    def test_nothing_is_counted_across_decreasing_offsets(self, after: dict[int, int], message: str) -> None:
        snapshots = ((0.0, {0: 5, 1: 5}), (10.0, after))
        with pytest.raises(AnswerError, match=message):
            self.rate(*snapshots)
        grown = {number: offset + 20 for number, offset in after.items()}
        assert self.rate(*snapshots, (20, grown)) == 2.0 * len(after)

    def test_nothing_is_counted_across_a_long_gap(self) -> None:
        history = OffsetHistory()
        history.add(0, {0: 0}, grows=True)
        history.add(10, {0: 10}, grows=True)
        assert history.rate(self.WINDOW) == 1.0
        history.add(100, {0: 1_000_000}, grows=True)
        with pytest.raises(
            AnswerError, match="the previous snapshot was 90 s earlier, above the limit of 60 s: use a longer"
        ):
            history.rate(self.WINDOW)

    def test_it_forgets_snapshots_that_no_window_needs(self) -> None:
        history = OffsetHistory()
        for second in range(10_000):
            history.add(second, {0: second}, grows=True)
            if second >= 60:
                assert history.rate(timedelta(seconds=60)) == 1.0
        assert len(history._sums) < 70


class TestAnswers:
    """The results from the brokers' answers."""

    async def test_a_tick_of_many_metrics_and_groups_needs_one_request_of_each_kind(self) -> None:
        groups = [f"group-{number}" for number in range(20)]
        commits = {(group, topic): [5, 5] for group in groups for topic in ("orders", "bills")}
        async with stub(ends={"orders": [10, 20], "bills": [7, 7]}, commits=commits) as server:
            queries = [
                Query(metric=metric, topics=("orders", "bills"), group=group)
                for group in groups
                for metric in (Metric.LAG, Metric.MAX_LAG)
            ]
            outcomes = await read(
                plugin(server), *queries, Query(metric=Metric.LAG, topics=("orders",), group="group-0")
            )
            assert [outcome.value for outcome in outcomes] == [24.0, 15.0] * 20 + [20.0]
            assert server.count(METADATA) == 1
            assert server.count(COORDINATOR) == len(groups)
            assert server.count(COMMITS) == len(groups)
            assert server.count(OFFSETS) <= 4
            assert server.connections == 1

    async def test_each_partition_is_returned_when_requested(self) -> None:
        commits = {("group", "orders"): [5, -1], ("group", "bills"): [7]}
        async with stub(ends={"orders": [10, 0], "bills": [9]}, commits=commits) as server:
            each = Query(metric=Metric.LAG, topics=("orders", "bills"), group="group", partitions=True)
            asked = await read(
                plugin(server), each, Query(metric=Metric.LAG, topics=("orders", "bills"), group="group")
            )
        assert [outcome.value for outcome in asked] == [7.0, 7.0]
        assert [outcome.parts for outcome in asked] == [
            {
                "orders/0": {"lag": 5.0, "offset": 5.0},
                "orders/1": {"lag": 0.0, "offset": -1.0},
                "bills/0": {"lag": 2.0, "offset": 7.0},
            },
            {},
        ]

    async def test_offsets_are_requested_after_the_commits(self) -> None:
        async with stub(**orders()) as server:
            assert await value(plugin(server)) == 5.0
            assert [kind for kind, _ in server.asked] == [METADATA, COORDINATOR, COMMITS, OFFSETS, OFFSETS]

    async def test_answers_are_reused_while_they_are_fresh_and_have_their_age(self) -> None:
        async with stub(**orders()) as server, opened(plugin(server, fresh=timedelta(seconds=30))) as source:
            first = await source.collect(LAG, NOW)
            await asyncio.sleep(0.05)
            again = await source.collect(LAG, NOW)
            assert server.count(COMMITS) == 1
            assert first.at == NOW
            assert NOW - timedelta(seconds=10) < again.at <= NOW - timedelta(seconds=0.05)

    async def test_another_group_does_not_get_offsets_older_than_its_commits(self) -> None:
        commits = {("group", "orders"): [5, 20], ("other", "orders"): [10, 20]}
        reused = {"fresh": timedelta(seconds=30)}
        async with stub(**orders(commits=commits)) as server, opened(plugin(server, **reused)) as source:
            assert (await source.collect(LAG, NOW)).value == 5.0
            server.ends["orders"] = [12, 22]
            commits["other", "orders"] = [12, 22]
            assert (await source.collect(Query(metric=Metric.LAG, topics=("orders",), group="other"), NOW)).value == 0.0

    @pytest.mark.parametrize("kind", [METADATA, COORDINATOR, COMMITS, OFFSETS])
    @pytest.mark.parametrize("code", [5, 6, 14, 15, 16])
    async def test_a_temporary_error_is_retried(self, kind: int, code: int) -> None:
        async with stub(**orders(faults={kind: [code]})) as server:
            assert await value(plugin(server)) == 5.0

    @pytest.mark.parametrize(
        ("kind", "code", "message"),
        [
            (METADATA, 5, "topic 'orders': it has no leader at present"),
            (OFFSETS, 6, "topic 'orders', partition 0: its leader has changed"),
            (OFFSETS, 3, "topic 'orders', partition 0: it has no leader at present"),
            (COORDINATOR, 15, "group 'group': its coordinator is not available"),
            (COMMITS, 14, "group 'group': its coordinator is still loading"),
            (COMMITS, 16, "group 'group': its coordinator has changed"),
        ],
    )
    async def test_a_lasting_error_is_missing(self, kind: int, code: int, message: str) -> None:
        async with stub(**orders(faults={kind: [code] * 100})) as server:
            with pytest.raises(UnavailableError, match=message):
                await value(plugin(server))

    @pytest.mark.parametrize(
        ("kind", "code", "error", "message"),
        [
            (METADATA, 29, RefusedError, "ACL operation Describe on the topic"),
            (METADATA, 17, AnswerError, "InvalidTopicError"),
            (COORDINATOR, 30, RefusedError, "ACL operation Describe on the group"),
            (COMMITS, 30, RefusedError, "ACL operation Describe on the group"),
            (COMMITS, 129, RefusedError, "ACL operation Describe on the topic"),
            (COMMITS, 24, AnswerError, "group 'group': InvalidGroupIdError"),
            (OFFSETS, 29, RefusedError, "topic 'orders', partition 0: not allowed"),
            (OFFSETS, 99, AnswerError, r"UnknownError \(Kafka's error 99\)"),
        ],
    )
    async def test_a_refusal_is_not_retried(self, kind: int, code: int, error: type[EdgeError], message: str) -> None:
        async with stub(**orders(faults={kind: [code]})) as server:
            with pytest.raises(error, match=message):
                await value(plugin(server))

    async def test_a_partition_without_a_leader_is_missing(self) -> None:
        async with stub(**orders(leaderless={1})) as server:
            for query in (LAG, ARRIVALS):
                with pytest.raises(UnavailableError, match="topic 'orders', partition 1: it has no leader at present"):
                    await value(plugin(server), query)

    async def test_a_failing_group_does_not_affect_the_arrivals(self) -> None:
        async with stub(silent={COMMITS}) as other, stub(**orders(coordinator=other.port)) as server:
            lag, arrivals = await read(plugin(server, timeout=QUICK), LAG, ARRIVALS)
            assert isinstance(lag, EdgeTimeoutError)
            assert f"broker {other.address} did not answer" in str(lag)
            assert "needs two snapshots" in str(arrivals)

    @pytest.mark.parametrize("metric", [Metric.ARRIVALS, Metric.THROUGHPUT])
    async def test_a_rate_at_the_first_snapshot_is_missing_but_not_a_failure(self, metric: Metric) -> None:
        async with stub(**orders()) as server:
            with pytest.raises(NotYetError, match=f"{metric} of .*orders.* needs two snapshots .*no action is needed"):
                await value(plugin(server), Query(metric=metric, topics=("orders",), group="group"))

    @pytest.mark.parametrize("kind", [METADATA, COORDINATOR, COMMITS, OFFSETS])
    async def test_a_silent_broker_is_missing_within_the_timeout(self, kind: int) -> None:
        async with stub(**orders(silent={kind})) as server:
            begun = time.monotonic()
            with pytest.raises(EdgeTimeoutError, match=f"kafka {server.address}: .*{server.address} did not answer"):
                await value(plugin(server, timeout=QUICK))
            assert time.monotonic() - begun < 10  # aiokafka's own time-out is 40 s

    async def test_an_unreachable_advertised_address_is_named(self) -> None:
        async with stub(**orders(coordinator=1)) as server:
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached.*advertised\.listeners"):
                await value(plugin(server))
        with pytest.raises(UnavailableError) as caught:
            await value(Kafka(bootstrap_servers="127.0.0.1:1"))
        assert "advertised" not in str(caught.value)

    async def test_the_next_server_is_tried_when_one_is_down(self) -> None:
        async with stub(**orders()) as server:
            for servers in (f"127.0.0.1:1,{server.address}", f"{server.address},127.0.0.1:1"):
                assert await value(Kafka(bootstrap_servers=servers)) == 5.0

    @pytest.mark.parametrize(
        "greeting",
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\4\0\0\0\0", b"\0\0\0\6\0\0\0\1\0\0", b"\xff" * 64],
    )
    async def test_another_kind_of_server_is_an_error(self, greeting: bytes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(greeting)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(EdgeError, match=address):
                await value(Kafka(bootstrap_servers=address, timeout=QUICK))

    async def test_a_cancelled_caller_does_not_cancel_the_others(self) -> None:
        async with stub(**orders(silent={OFFSETS})) as server, opened(plugin(server)) as source:
            impatient, patient = (asyncio.create_task(source.collect(LAG, NOW)) for _ in range(2))
            async with asyncio.timeout(10):
                while not server.count(COMMITS):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
            impatient.cancel()
            server.silent.clear()
            assert (await patient).value == 5.0  # the request is repeated
            assert impatient.cancelled()

    async def test_it_closes_while_brokers_are_silent(self) -> None:
        before = asyncio.all_tasks()
        async with stub(**orders(silent={COMMITS, OFFSETS})) as server:
            async with opened(plugin(server, timeout=timedelta(minutes=5))) as source:
                first = asyncio.create_task(source.collect(LAG, NOW))
                async with asyncio.timeout(10):
                    while not server.connections:  # noqa: ASYNC110 - no event
                        await asyncio.sleep(0.01)
                # Too late for the first snapshot, so that there are two.
                second = asyncio.create_task(
                    source.collect(Query(metric=Metric.LAG, topics=("orders",), group="other"), NOW)
                )
                await asyncio.sleep(0.1)
            for task in (first, second):
                with pytest.raises(UnavailableError, match="the source was closed"):
                    await task
            servers = {task for task in asyncio.all_tasks() if "connected" in repr(task.get_coro())}
            assert asyncio.all_tasks() - before - servers == set()


class TestFiles:
    """Certificates and keys."""

    @pytest.fixture
    def locked(self, tmp_path: Path) -> Authority:
        """An authority whose key has the password `opensesame`."""
        authority = Authority.make(tmp_path)
        key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
        lock = serialization.BestAvailableEncryption(b"opensesame")
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        authority.key.write_bytes(key.private_bytes(pem, pkcs8, lock))
        return authority

    def plugin(self, locked: Authority, password: Secret | None) -> Kafka:
        return Kafka(
            bootstrap_servers="127.0.0.1:1",
            security_protocol=SecurityProtocol.SSL,
            ca_file=locked.ca,
            certificate_file=locked.certificate,
            key_file=locked.key,
            key_password=password,
        )

    async def test_a_key_is_unlocked_by_its_password(self, locked: Authority) -> None:
        with pytest.raises(UnavailableError, match=r"broker 127\.0\.0\.1:1 cannot be reached: Connection refused: "):
            await value(self.plugin(locked, Secret("opensesame")))

    @pytest.mark.parametrize("password", [None, Secret("guessed")])
    async def test_a_key_without_its_password_is_an_error_and_does_not_prompt(
        self, locked: Authority, password: Secret | None
    ) -> None:
        with pytest.raises(AnswerError, match="a file of the configuration cannot be used"):
            await value(self.plugin(locked, password))

    async def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        plugin = Kafka(
            bootstrap_servers="127.0.0.1:1", security_protocol=SecurityProtocol.SSL, ca_file=tmp_path / "none.pem"
        )
        with pytest.raises(AnswerError, match=r"a file of the configuration cannot be used: .*No such file"):
            await value(plugin)

    def test_host_names_are_checked_by_default(self) -> None:
        for check in (True, False):
            plugin = Kafka(bootstrap_servers="kafka:9093", security_protocol=SecurityProtocol.SSL, check_hostname=check)
            context = _context(plugin)
            assert context.check_hostname is check
            assert context.verify_mode is ssl.CERT_REQUIRED


def test_secrets_are_not_shown() -> None:
    plugin = Kafka(
        bootstrap_servers="kafka:9093",
        security_protocol=SecurityProtocol.SASL_SSL,
        sasl_mechanism=SaslMechanism.PLAIN,
        username="ann",
        password=Secret("hunter2"),
        certificate_file=Path("a.pem"),
        key_password=Secret("hunter3"),
    )
    assert "hunter" not in f"{plugin!r} {plugin}"


async def test_without_the_package_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    monkeypatch.delitem(sys.modules, "autoscaler.clients.kafka", raising=False)
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match=r"pip install '\.\[kafka\]'"):
            async with Kafka(bootstrap_servers="kafka:9092").connect(shared):
                pass
