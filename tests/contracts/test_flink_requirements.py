"""The target `flink-requirements` keeps the contract of targets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from autoscaler.ports import Secret
from autoscaler.targets.flink_requirements import FlinkRequirements
from autoscaler.testing import TargetContract
from tests.targets.flink_jobs import FakeFlink, serving


class TestFlinkRequirements(TargetContract):
    @pytest.fixture
    async def plugin(self) -> AsyncIterator[FlinkRequirements]:
        async with serving(FakeFlink()) as url:
            yield FlinkRequirements(url=url, job="counting", username="me", password=Secret("hunter2"))

    @pytest.fixture
    def unreachable(self) -> FlinkRequirements:
        return FlinkRequirements(url="http://127.0.0.1:1", username="me", password=Secret("hunter2"))
