"""The target `kubernetes` keeps the contract of targets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pytest

from autoscaler.targets.kubernetes.target import Kubernetes
from autoscaler.testing import TargetContract
from tests.clients.kubernetes_cluster import SERVERS, kubeconfig, open_cluster
from tests.clients.kubernetes_server import DEPLOYMENTS, ApiServer


class TestKubernetes(TargetContract):
    @pytest.fixture(params=SERVERS)
    def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubernetes]:
        """The server runs on a separate loop, as the contract counts the tasks of the test's loop."""
        found: Future[tuple[Kubernetes, Callable[[], object]]] = Future()

        async def serve() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            async with open_cluster(request.param, tmp_path) as cluster:
                await cluster.workload(DEPLOYMENTS, "tm", 1)
                found.set_result((cluster.target("tm"), lambda: loop.call_soon_threadsafe(stop.set)))
                await stop.wait()

        thread = Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        plugin, stop = found.result(timeout=30)
        yield plugin
        stop()
        thread.join()

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Kubernetes:
        absent = ApiServer()
        absent.url = "http://127.0.0.1:1"
        return Kubernetes(name="tm", kubeconfig=kubeconfig(tmp_path / "absent", absent, "hunter2"))

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)
