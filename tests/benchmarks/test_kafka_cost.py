"""The cost of the source `kafka` with many clusters, against a real broker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from autoscaler.sources.kafka import Kafka, Metric, Query
from autoscaler.testing.contracts import LocalShared
from tests.sources import kafka_broker
from tests.sources.kafka_broker import commit

pytestmark = pytest.mark.benchmark

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTERS, PARTITIONS, ROUNDS, INTERVAL = 300, 4, 10, 15.0


async def make(address: str, names: list[str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address, request_timeout_ms=120_000)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    finally:
        await admin.close()
    for name in names:
        await commit(address, name, name, dict.fromkeys(range(PARTITIONS), 0))


async def test_many_clusters_on_one_broker(tmp_path: Path) -> None:
    kafka_broker.java()
    with kafka_broker.running(tmp_path / "kafka") as broker:
        names = [f"topic-{number}" for number in range(CLUSTERS)]
        await make(broker.address, names)
        plugin = Kafka(bootstrap_servers=broker.address, fresh=timedelta(0), timeout=timedelta(seconds=10))
        queries = [
            Query(metric=metric, topics=(name,), group=name)
            for name in names
            for metric in (Metric.LAG, Metric.MAX_LAG)
        ]
        queries += [Query(metric=Metric.ARRIVALS, topics=(name,), window=timedelta(milliseconds=1)) for name in names]
        async with LocalShared() as shared, plugin.connect(shared) as source:
            took, cpu, sent = [], [], []
            connections = source._client._connections._open
            for _ in range(ROUNDS):
                before = sum(connection._correlation_id for connection in connections.values())
                begun, used = time.perf_counter(), time.process_time()
                answers = await asyncio.gather(*(source.collect(q, NOW) for q in queries), return_exceptions=True)
                took.append(time.perf_counter() - begun)
                cpu.append(time.process_time() - used)
                sent.append(sum(connection._correlation_id for connection in connections.values()) - before)
                await asyncio.sleep(0.01)
            assert not any(isinstance(answer, BaseException) for answer in answers), answers[-1]
            opened = len(connections)
    print(  # noqa: T201 - the figures are the result
        f"\nkafka: {CLUSTERS} clusters x 3 metrics, {PARTITIONS} partitions each, on one broker: the first round "
        f"took {took[0] * 1000:.0f} ms and {sent[0]} requests; a later one {min(took[1:]) * 1000:.0f} to "
        f"{max(took[1:]) * 1000:.0f} ms, {min(cpu[1:]) * 1000:.0f} ms of CPU ({min(cpu[1:]) / INTERVAL:.2%} of a core "
        f"at {INTERVAL:g} s) and {sent[-1]} requests over {opened} connection"
    )
