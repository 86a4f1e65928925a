"""Source and engine `flink` keep their contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from autoscaler.engines.flink import Flink as FlinkEngine
from autoscaler.ports import Secret
from autoscaler.sources.flink import Flink
from autoscaler.sources.flink_metrics import FlinkQuery, Metric
from autoscaler.testing import EngineContract, SourceContract
from tests.clients.flink_stub import VERSIONS, FakeFlink, serve

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(params=VERSIONS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with serve(FakeFlink(request.param, "rescaled")) as address:
        yield address


class TestFlinkSource(SourceContract):
    @pytest.fixture
    def plugin(self, url: str) -> Flink:
        return Flink(url=url, job="recorded")

    @pytest.fixture(params=[Metric.LAG, Metric.SATURATION, Metric.UTILIZATION])
    def query(self, request: pytest.FixtureRequest) -> FlinkQuery:
        return FlinkQuery(metric=request.param)

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)

    @pytest.fixture
    def unreachable(self) -> Flink:
        return Flink(url=NOWHERE, username="ann", password=Secret("hunter2"))


class TestFlinkEngine(EngineContract):
    @pytest.fixture
    def plugin(self, url: str) -> FlinkEngine:
        return FlinkEngine(url=url, job="recorded")

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)

    @pytest.fixture
    def unreachable(self) -> FlinkEngine:
        return FlinkEngine(url=NOWHERE, token=Secret("hunter2"))
