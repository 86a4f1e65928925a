"""Source and engine `spark` keep their contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.engines.spark import Spark as SparkEngine
from autoscaler.sources.spark import Spark, SparkQuery
from autoscaler.sources.spark_metrics import Metric
from autoscaler.testing import EngineContract, SourceContract
from tests.sources.test_spark_server import FakeSpark

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/{path:.*}", FakeSpark().handle)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


class TestSparkSource(SourceContract):
    @pytest.fixture
    def plugin(self, url: str) -> Spark:
        return Spark(app="lab", report=url, master=url, driver=url)

    @pytest.fixture(params=[Metric.LAG, Metric.THROUGHPUT])
    def query(self, request: pytest.FixtureRequest) -> SparkQuery:
        return SparkQuery(request.param)

    @pytest.fixture
    def unreachable(self) -> Spark:
        return Spark(app="lab", report=NOWHERE, master=NOWHERE, driver=NOWHERE)


class TestSparkEngine(EngineContract):
    @pytest.fixture
    def plugin(self, url: str) -> SparkEngine:
        return SparkEngine(app="lab", report=url, master=url, driver=url)

    @pytest.fixture
    def unreachable(self) -> SparkEngine:
        return SparkEngine(app="lab", report=NOWHERE, master=NOWHERE, driver=NOWHERE)
