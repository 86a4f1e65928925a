"""The target `kubernetes` keeps the contract of targets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from autoscaler.targets.kubernetes import Kubernetes
from autoscaler.testing import TargetContract
from tests.kubernetes.cluster import SERVERS, kubeconfig, open_cluster
from tests.kubernetes.server import DEPLOYMENTS, ApiServer


class TestKubernetes(TargetContract):
    @pytest.fixture(params=SERVERS)
    async def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubernetes]:
        async with open_cluster(request.param, tmp_path) as cluster:
            await cluster.workload(DEPLOYMENTS, "tm", 1)
            yield cluster.target("tm")

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Kubernetes:
        nobody = ApiServer()
        nobody.url = "http://127.0.0.1:1"
        return Kubernetes("tm", kubeconfig=kubeconfig(tmp_path / "nobody", nobody, "hunter2"))

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)
