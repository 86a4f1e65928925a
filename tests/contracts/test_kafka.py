"""The source `kafka` keeps the contract of sources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from autoscaler.clients.kafka_types import SaslMechanism, SecurityProtocol
from autoscaler.ports import Secret
from autoscaler.sources.kafka import Kafka, Metric, Query
from autoscaler.testing import SourceContract
from tests.sources.kafka_stub import stub


class TestKafka(SourceContract):
    @pytest.fixture
    async def plugin(self) -> AsyncIterator[Kafka]:
        async with stub(ends={"orders": [10, 20]}, commits={("group", "orders"): [5, 20]}) as server:
            yield Kafka(bootstrap_servers=server.address, fresh=timedelta(0))

    @pytest.fixture
    def query(self) -> Query:
        return Query(metric=Metric.LAG, topics=("orders",), group="group")

    @pytest.fixture
    def unreachable(self) -> Kafka:
        return Kafka(
            bootstrap_servers="127.0.0.1:1",
            security_protocol=SecurityProtocol.SASL_PLAINTEXT,
            sasl_mechanism=SaslMechanism.PLAIN,
            username="ann",
            password=Secret("hunter2"),
        )
