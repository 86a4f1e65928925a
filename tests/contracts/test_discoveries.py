"""The built-in discoveries keep their contract, against servers that speak the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

from autoscaler.discoveries.aws_asg import AwsAsg
from autoscaler.discoveries.files import Files
from autoscaler.discoveries.flink_jobs import FlinkJobs
from autoscaler.discoveries.kubernetes import Kubernetes
from autoscaler.discoveries.prometheus import Prometheus
from autoscaler.discoveries.stream_autoscalers import StreamAutoscalers
from autoscaler.ports import DiscoveryPlugin, Secret
from autoscaler.testing import DiscoveryContract
from tests.clients.aws_server import REGION, Proxy
from tests.clients.flink_stub import VERSIONS, FakeFlink, serve
from tests.clients.kubernetes_cluster import SERVERS, Cluster, kubeconfig, open_cluster
from tests.clients.kubernetes_server import DEPLOYMENTS, STREAMS, ApiServer
from tests.sources.prometheus_server import stub, vector

pytest_plugins = ("tests.clients.aws_fixtures",)

NOWHERE = "http://127.0.0.1:1"


class _OnKubernetes(DiscoveryContract):
    """A discovery of an API server on a separate loop: the contract counts the tasks of the test's loop."""

    def create(self, cluster: Cluster) -> Awaitable[object]:
        """Create two members."""
        raise NotImplementedError

    def found_by(self, kubeconfig: str, namespaces: tuple[str, ...] = ()) -> DiscoveryPlugin:
        """Return the discovery."""
        raise NotImplementedError

    @pytest.fixture(params=SERVERS)
    def plugin(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiscoveryPlugin]:
        found: Future[tuple[DiscoveryPlugin, Callable[[], object]]] = Future()

        async def serve() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            async with open_cluster(request.param, tmp_path) as cluster:
                await self.create(cluster)
                plugin = self.found_by(cluster.kubeconfig, (cluster.namespace,))
                found.set_result((plugin, lambda: loop.call_soon_threadsafe(stop.set)))
                await stop.wait()

        thread = Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        plugin, stop = found.result(timeout=30)
        yield plugin
        stop()
        thread.join()

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> DiscoveryPlugin:
        absent = ApiServer()
        absent.url = NOWHERE
        return self.found_by(kubeconfig(tmp_path / "absent", absent, "hunter2"))

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        return ("hunter2",)


class TestKubernetes(_OnKubernetes):
    async def create(self, cluster: Cluster) -> None:
        for name in ("orders", "clicks"):
            await cluster.workload(DEPLOYMENTS, name, 0)

    def found_by(self, kubeconfig: str, namespaces: tuple[str, ...] = ()) -> Kubernetes:
        return Kubernetes(kubeconfig=kubeconfig, namespaces=namespaces)


class TestStreamAutoscalers(_OnKubernetes):
    async def create(self, cluster: Cluster) -> None:
        cluster.define(STREAMS)
        for name in ("orders", "clicks"):
            spec = {
                "target": {"type": "kubernetes", "name": name},
                "max": 8,
                "metrics": {"lag": {"source": "prometheus", "query": "lag"}},
                "policies": {"lag": {"type": "target-tracking", "metric": "lag", "target": 100}},
            }
            await cluster.create(STREAMS, {"metadata": {"name": name}, "spec": spec})

    def found_by(self, kubeconfig: str, namespaces: tuple[str, ...] = ()) -> StreamAutoscalers:
        return StreamAutoscalers(kubeconfig=kubeconfig, namespaces=namespaces)


class TestAwsAsg(DiscoveryContract):
    @pytest.fixture
    def plugin(self, proxy: Proxy) -> AwsAsg:
        fleet = proxy.moto.group()
        proxy.moto.tag(fleet, fleet=fleet)
        proxy.moto.tag(proxy.moto.group(), fleet=fleet)
        return AwsAsg(region=REGION, tags={"fleet": fleet}, endpoint_url=proxy.url, timeout=timedelta(seconds=9))

    @pytest.fixture
    def unreachable(self, identity: str) -> AwsAsg:
        del identity
        return AwsAsg(region=REGION, tags={"fleet": "f"}, endpoint_url=NOWHERE)


class TestPrometheus(DiscoveryContract):
    @pytest.fixture
    async def plugin(self) -> AsyncIterator[Prometheus]:
        async with stub(answers={"up": vector(({"job": "a"}, "1"), ({"job": "b"}, "0"))}) as server:
            yield Prometheus(url=server.url, query="up", label="job", token=Secret("hunter2"))

    @pytest.fixture
    def unreachable(self) -> Prometheus:
        return Prometheus(url=NOWHERE, query="up", label="job", username="ann", password=Secret("hunter2"))


class TestFlinkJobs(DiscoveryContract):
    @pytest.fixture(params=VERSIONS)
    async def plugin(self, request: pytest.FixtureRequest) -> AsyncIterator[FlinkJobs]:
        flink = FakeFlink(request.param)
        flink.answers["/jobs/overview"]["answer"]["jobs"].append({**flink.line, "jid": "b" * 32, "name": "other"})
        async with serve(flink) as url:
            yield FlinkJobs(url=url)

    @pytest.fixture
    def unreachable(self) -> FlinkJobs:
        return FlinkJobs(url=NOWHERE, token=Secret("hunter2"))


class TestFiles(DiscoveryContract):
    @pytest.fixture
    def plugin(self, tmp_path: Path) -> Files:
        for name in ("orders", "clicks"):
            (tmp_path / f"{name}.yaml").write_text(f"app: {name}\n")
        return Files(tmp_path)

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> Files:
        return Files(tmp_path / "nowhere")
