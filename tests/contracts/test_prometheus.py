"""The source `prometheus` keeps the contract of sources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from autoscaler.ports import Secret
from autoscaler.sources.prometheus import Prometheus, Query
from autoscaler.testing import SourceContract
from tests.sources.prometheus_server import EVALUATED, stub, vector


class TestPrometheus(SourceContract):
    @pytest.fixture
    async def plugin(self) -> AsyncIterator[Prometheus]:
        answers = {
            "lag": vector(({"__name__": "lag", "cluster": "orders"}, "12")),
            "timestamp(lag)": vector(({"cluster": "orders"}, str(EVALUATED - 2))),
        }
        async with stub(answers=answers) as server:
            yield Prometheus(url=server.url, token=Secret("hunter2"), fresh=timedelta(0))

    @pytest.fixture
    def query(self) -> Query:
        return Query(query="lag", match={"cluster": "orders"})

    @pytest.fixture
    def unreachable(self) -> Prometheus:
        return Prometheus(url="http://127.0.0.1:1", username="ann", password=Secret("hunter2"))
