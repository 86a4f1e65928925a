"""An API server with N Deployments in 20 namespaces, and a Prometheus with their load. Serves until killed.

Usage: stub_kubernetes.py N KUBECONFIG. Prints its port. `/seen` shows the requests to the API server by verb and
resource, and the time of each request for a size. Every 20 s the load of one in forty rises by that of one replica.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.clients.kubernetes_cluster import kubeconfig
from tests.clients.kubernetes_server import DEPLOYMENTS, ApiServer, Json, Kind

COUNT = int(sys.argv[1])
STEP = 20.0
EACH = 40
BEGUN = time.time()


class Server(ApiServer):
    """A server without controllers for pods; new replicas are ready after a second."""

    def _reconcile(self, namespace: str) -> None:
        pass

    def _store(self, kind: Kind, after: Json) -> None:
        self.put(kind, after)
        asyncio.get_running_loop().call_later(1.0, self._ready, kind, after)

    def _ready(self, kind: Kind, found: Json) -> None:
        size = found["spec"]["replicas"]
        status = {**found["status"], "replicas": size, "updatedReplicas": size, "readyReplicas": size}
        self.put(kind, {**found, "metadata": {**found["metadata"]}, "status": status})


def deployment(number: int) -> Json:
    """A Deployment of usual length, 5 kB as JSON."""
    name = f"c{number:04}"
    labels = {"app": name}
    environment = [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(40)]
    container = {"name": "main", "image": "flink:2.3", "env": environment}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    fields: Json = {f"f:{index:03}": {} for index in range(80)}
    entry = {"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}, **fields}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": f"team-{number % 20:02}", "uid": name, "managedFields": [entry]},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
        "status": {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "observedGeneration": 1},
    }


def load(number: int, now: float) -> float:
    """The load of three replicas, and of one more for each turn that this Deployment has had."""
    steps = int((now - BEGUN) / STEP)
    turns = (steps + EACH - number % EACH - 1) // EACH
    return 280.0 + 100.0 * turns


async def query(request: web.Request) -> web.Response:
    parameters = await request.post() if request.method == "POST" else request.query
    text, now = str(parameters["query"]), time.time()
    samples = [
        {
            "metric": {"cluster": f"c{number:04}"},
            "value": [now, str(now if text.startswith("timestamp") else load(number, now))],
        }
        for number in range(COUNT)
    ]
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": samples}})


async def main() -> None:
    server = Server()

    async def seen(_: web.Request) -> web.Response:
        counts = Counter(f"{request.verb} {request.resource}" for request in server.requests)
        sizes = [[request.name, request.at] for request in server.asked("patch", DEPLOYMENTS)]
        return web.json_response({"counts": counts, "sizes": sizes})

    server.routes = [
        web.get("/seen", seen),
        web.get("/api/v1/query", query),
        web.post("/api/v1/query", query),
    ]
    server.bookmarks = 60.0
    server.users["daemon"] = None
    for number in range(COUNT):
        server.put(DEPLOYMENTS, deployment(number), "ADDED")
    server.compact()
    async with server.serving():
        kubeconfig(Path(sys.argv[2]), server, "daemon")
        size = len(json.dumps(deployment(0)))
        print(server.url.rpartition(":")[2], size, flush=True)  # noqa: T201 - read by the parent
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
