"""The source `cloudwatch` keeps the contract of sources, against moto."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.sources.cloudwatch import CloudWatch, Query
from autoscaler.testing import SourceContract
from tests.clients.aws_server import REGION, Proxy

pytest_plugins = ("tests.clients.aws_fixtures",)


class TestCloudWatch(SourceContract):
    @pytest.fixture
    def plugin(self, proxy: Proxy) -> CloudWatch:
        return CloudWatch(region=REGION, endpoint_url=proxy.url, fresh=timedelta(0), timeout=timedelta(seconds=9))

    @pytest.fixture
    def query(self, proxy: Proxy) -> Query:
        namespace = f"Test/{secrets.token_hex(4)}"
        at = datetime.fromtimestamp(time.time() - 120, UTC)
        datum = {"MetricName": "Lag", "Value": 7.0, "Timestamp": at}
        proxy.moto.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[datum])
        return Query(metric="Lag", namespace=namespace, stat="Maximum")

    @pytest.fixture
    def unreachable(self, identity: str) -> CloudWatch:
        del identity
        return CloudWatch(region=REGION, endpoint_url="http://127.0.0.1:1")
