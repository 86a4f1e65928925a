"""The target `kubernetes` keeps the contract of targets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pytest

from autoscaler.targets.kubernetes import Kubernetes
from autoscaler.testing import TargetContract
from tests.kubernetes.cluster import SERVERS, kubeconfig, open_cluster
from tests.kubernetes.server import DEPLOYMENTS, ApiServer


class TestKubernetes(TargetContract):
    @pytest.fixture(params=SERVERS)
    def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubernetes]:
        """The server has a loop of its own, as the contract counts the tasks of the test's."""
        found: Future[Kubernetes] = Future()
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            async with open_cluster(request.param, tmp_path) as cluster:
                await cluster.workload(DEPLOYMENTS, "tm", 1)
                found.set_result(cluster.target("tm"))
                await stop.wait()

        def run() -> None:
            try:
                loop.run_until_complete(serve())
            finally:
                loop.close()

        thread = Thread(target=run)
        thread.start()
        yield found.result(timeout=30)
        loop.call_soon_threadsafe(stop.set)
        thread.join()

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Kubernetes:
        nobody = ApiServer()
        nobody.url = "http://127.0.0.1:1"
        return Kubernetes("tm", kubeconfig=kubeconfig(tmp_path / "nobody", nobody, "hunter2"))

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)
