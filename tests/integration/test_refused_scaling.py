"""A daemon whose Kubernetes target refuses every scale call, or is deleted: all its interfaces show the problem."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import aiohttp

from tests.clients.kubernetes_cluster import SERVERS, Cluster, kubeconfig, open_cluster, until
from tests.clients.kubernetes_server import DEPLOYMENTS, Grants

FILE = """
daemon: {{directory: var, listen: '127.0.0.1:0', log: json}}
sources:
  prom: {{type: prometheus, url: 'http://127.0.0.1:9', attempts: 1, timeout: 500ms}}
clusters:
  orders:
    interval: 1s
    timeout: 900ms
    target: {{type: kubernetes, name: tm, namespace: {namespace}, kubeconfig: '{kubeconfig}'}}
    min: 3
    max: 5
    metrics: {{cpu: {{source: prom, query: cpu}}}}
    policies: {{cpu: {{type: target-tracking, metric: cpu, target: 0.5}}}}
"""


async def test_refused_scale_calls_and_a_missing_target_are_visible_from_outside(tmp_path: Path) -> None:
    async with open_cluster(SERVERS[0], tmp_path) as cluster:
        # As in the README's Role, but without the right to scale.
        rights = {"apiGroups": ["", "apps", "autoscaling", "keda.sh"], "verbs": ["get", "list", "watch"]}
        resources = ["deployments", "deployments/scale", "pods", "events", "horizontalpodautoscalers", "scaledobjects"]
        grants = Grants([("jobs", {**rights, "resources": resources})])
        limited = kubeconfig(tmp_path / "limited", cluster.server, "limited", grants)
        await cluster.workload(DEPLOYMENTS, "tm", 1)
        (tmp_path / "config.yaml").write_text(FILE.format(namespace=cluster.namespace, kubeconfig=limited))
        await observe(cluster, tmp_path)


async def observe(cluster: Cluster, directory: Path) -> None:
    log = directory / "log"
    with log.open("wb") as stderr:
        daemon = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "autoscaler", "run", str(directory / "config.yaml")), stderr=stderr
        )
    try:
        url = await until(lambda: started(log))
        problem = await until(lambda: problem_of(url, "scale calls have failed"))
        stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        assert re.match(rf"scale calls have failed since {stamp}; the last one, to 3: .*403.*", problem), problem
        assert problem in await status(url)
        await cluster.delete(DEPLOYMENTS, "tm")
        problem = await until(lambda: problem_of(url, "target: "))
        assert problem in await status(url)
        daemon.send_signal(signal.SIGTERM)
        assert await daemon.wait() == 0
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()


async def started(log: Path) -> str | None:
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]  # noqa: ASYNC240
    return next((str(line["url"]) for line in lines if line["message"] == "started"), None)


async def problem_of(url: str, beginning: str) -> str | None:
    """The problem of the cluster that `/readyz` reports with 503, once it begins with this text."""

    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
        body = await response.json()
        assert response.status == (200 if body["ok"] else 503)
        problem = body["problems"].get("orders", "")
    return str(problem) if problem.startswith(beginning) else None


async def status(url: str) -> str:
    command = (sys.executable, "-m", "autoscaler", "status", "--url", url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()
