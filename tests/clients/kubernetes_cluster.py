"""A Kubernetes cluster for a test: the test server, or a namespace of the real one AUTOSCALER_TEST_KUBECONFIG names.

No node can run the pods, and tests write the status that a scheduler and a kubelet would write: so the same tests work
with and without nodes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from autoscaler.clients.kubernetes import Access, Api, NotFoundError, Request, Resource, connect_api
from autoscaler.targets.kubernetes.pods import is_ready
from autoscaler.targets.kubernetes.target import Kubernetes
from tests.clients.kubernetes_server import NAMESPACES, ApiServer, Grants, Json, Kind

REAL = "AUTOSCALER_TEST_KUBECONFIG"
SERVERS = ("test server", *(["real API server"] if os.environ.get(REAL) else []))
PATIENCE = 20.0

T = TypeVar("T")


class Cluster:
    """A namespace of a cluster, with the rights of an administrator.

    Attributes:
        kubeconfig: for the target under test.
        server: the test server; None if it is a real one.
    """

    def __init__(self, api: Api, kubeconfig: str, namespace: str, server: ApiServer | None) -> None:
        self.api, self.kubeconfig, self.namespace, self._server = api, kubeconfig, namespace, server

    @property
    def server(self) -> ApiServer:
        assert self._server is not None, "only the test server can do that"
        return self._server

    def define(self, kind: Kind) -> None:
        """Make the test server serve a custom resource. A real server must have its definition already."""
        if self._server is not None:
            self._server.kinds.append(kind)

    def target(self, name: str, **more: Any) -> Kubernetes:
        return Kubernetes(name=name, **{"namespace": self.namespace, "kubeconfig": self.kubeconfig, **more})

    async def create(self, kind: Kind, body: Json) -> Json:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return await self.api.call(Request("create", _resource(kind), self.namespace), body=body)

    async def get(self, kind: Kind, name: str) -> Json:
        return await self.api.call(Request("get", _resource(kind), self.namespace, name))

    async def patch(self, kind: Kind, name: str, body: Json, sub: str = "", by: str = "a-person") -> Json:
        ask = Request("patch", _resource(kind), self.namespace, name, sub)
        return await self.api.call(ask, {"fieldManager": by}, body)

    async def delete(self, kind: Kind, name: str) -> None:
        await self.api.call(Request("delete", _resource(kind), self.namespace, name))

    async def workload(self, kind: Kind, name: str, replicas: int) -> None:
        """A Deployment, StatefulSet or ReplicaSet whose pods no node can run."""
        container = {"name": "main", "image": "registry.invalid/none:1"}
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"nodeSelector": {"autoscaler-test": "nowhere"}, "containers": [container]},
        }
        spec: Json = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        if kind.plural == "statefulsets":
            spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        await self.create(kind, {"metadata": {"name": name}, "spec": spec})

    async def pods(self, app: str, count: int | None = None) -> Sequence[Json]:
        """The pods of a workload by name, once there are this many."""

        async def found() -> Sequence[Json] | None:
            query = {"labelSelector": f"app={app}"}
            answer = await self.api.call(Request("list", Resource("", "v1", "pods"), self.namespace), query)
            items = [pod for pod in answer["items"] if "deletionTimestamp" not in pod["metadata"]]
            return sorted(items, key=_name) if count in {None, len(items)} else None

        return await until(found)

    async def pod_status(self, pod: Json, status: Json) -> None:
        """Write the status like a kubelet or the scheduler."""
        ask = Request("patch", Resource("", "v1", "pods"), self.namespace, _name(pod), "status")
        await self.api.call(ask, body={"status": status})

    async def ready(self, pods: Sequence[Json]) -> None:
        """Make pods ready, each with its own address."""
        for number, pod in enumerate(pods, start=1):
            address = f"10.9.{int(pod['metadata']['resourceVersion']) % 250}.{number}"
            conditions = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
            await self.pod_status(pod, status)

    async def up(self, app: str, count: int) -> None:
        """Make so many pods of a workload ready, even if single ones are replaced."""

        async def are_up() -> bool | None:
            pods = await self.pods(app)
            ready = [pod for pod in pods if is_ready(pod)]
            for pod in [pod for pod in pods if not is_ready(pod)][: count - len(ready)]:
                with suppress(NotFoundError):
                    await self.ready([pod])
            return len(ready) == count or None

        await until(are_up)


def _name(found: Json) -> str:
    return str(found["metadata"]["name"])


def _resource(kind: Kind) -> Resource:
    return Resource(kind.group, kind.version, kind.plural)


async def until(found: Callable[[], Awaitable[T | None]], patience: float = PATIENCE) -> T:
    """Repeat the request until it returns something; raises TimeoutError."""
    async with asyncio.timeout(patience):
        while (result := await found()) is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
        return result


@asynccontextmanager
async def open_cluster(which: str, directory: Path) -> AsyncIterator[Cluster]:
    """One of SERVERS, with a namespace that is deleted at the end."""
    if which == SERVERS[0]:
        server = ApiServer()
        server.users["daemon"] = None
        async with server.serving():
            server.create(NAMESPACES, {"metadata": {"name": "jobs"}}, "")
            admin = kubeconfig(directory / "admin.kubeconfig", server, "admin")
            daemon = kubeconfig(directory / "daemon.kubeconfig", server, "daemon")
            async with connect_api(Access(admin, "", 5.0, 60.0)) as api:
                yield Cluster(api, daemon, "jobs", server)
        return
    path = os.environ[REAL]
    namespace = f"autoscaler-test-{secrets.token_hex(4)}"
    async with connect_api(Access(path, "", 10.0, 60.0)) as api:
        everything = _resource(NAMESPACES)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await api.call(Request("create", everything), body=body)
        try:
            yield Cluster(api, path, namespace, None)
        finally:
            await api.call(Request("delete", everything, name=namespace))


def kubeconfig(path: Path, server: ApiServer, token: str, grants: Grants | None = None) -> str:
    """Write a kubeconfig for a user of the test server."""
    if grants is not None:
        server.users[token] = grants
    context = {"cluster": "test", "user": token, "namespace": "jobs"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": token, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)
