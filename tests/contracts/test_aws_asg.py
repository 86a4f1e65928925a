"""The target `aws-asg` keeps the contract of targets, against moto."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autoscaler.targets.aws_asg.target import AwsAsg
from autoscaler.testing import TargetContract
from tests.clients.aws_server import REGION, Proxy

pytest_plugins = ("tests.clients.aws_fixtures",)


class TestAwsAsg(TargetContract):
    @pytest.fixture
    def plugin(self, proxy: Proxy) -> AwsAsg:
        return AwsAsg(group=proxy.moto.group(), region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=9))

    @pytest.fixture
    def unreachable(self, identity: str) -> AwsAsg:
        del identity
        return AwsAsg(group="group", region=REGION, endpoint_url="http://127.0.0.1:1")
