"""The shipped Deployment with two copies on a real API server, whose pods are processes.

The controller of Deployments creates and deletes the pods. This module plays the kubelet: each process has the
arguments, the environment, the configuration and a service account token of its pod, its own address, and its own proxy
to the API server, which can hold changes of sizes back as if it hung at that moment. The audit log of the API server
has the token of each request, the database the owner of each lease over time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import yaml

from autoscaler.demo.processes import free_port
from tests.e2e.kube_server import Json, KubeServer
from tests.e2e.test_kube import ACCOUNT, DEPLOY, Daemon, eventually
from tests.postgres_server import PostgresServer

SPACE, FLEET = "streaming", "fleet"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{SPACE}/deployments/autoscaler"
TOKEN = "of-ann-and-long-enough"

LOGGED = """
SET search_path TO autoscaler;
CREATE TABLE lease_log (cluster text, url text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION log_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO autoscaler.lease_log SELECT new.cluster, (SELECT url FROM autoscaler.copy WHERE id = new.copy);
    RETURN NULL;
END $$;
CREATE TRIGGER logged AFTER INSERT OR UPDATE ON lease FOR EACH ROW EXECUTE FUNCTION log_lease();
CREATE TABLE tick_log (cluster text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION log_tick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO autoscaler.tick_log (cluster) VALUES (new.cluster); RETURN NULL;
END $$;
CREATE TRIGGER logged AFTER INSERT ON decision FOR EACH ROW EXECUTE FUNCTION log_tick();
"""
"""What the database itself says about who had which lease and what was decided when."""


class Way:
    """The proxy between one copy and the API server, which can hold changes of sizes back.

    Attributes:
        url: its address for the copy.
        kept: the paths of the held changes.
    """

    def __init__(self, kube: KubeServer) -> None:
        self.kept: list[str] = []
        self._far = int(urlsplit(kube.url).port or 443)
        self._trust = ssl.create_default_context(cafile=str(kube.directory / "ca.crt"))
        self._shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._shown.load_cert_chain(kube.directory / "server.crt", kube.directory / "server.key")
        self._loop = asyncio.new_event_loop()
        self._open, self._over = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self._listens.wait()

    def keep(self) -> None:
        """Hold back every change of a size from now on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Send the held changes."""
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        """Close it, after the copy has ended."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        passing: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connect(reader, writer))
            passing.add(task)
            task.add_done_callback(passing.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=self._shown)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listens.set()
        await self._over.wait()
        server.close()
        self._open.set()
        await asyncio.gather(*passing, return_exceptions=True)

    async def _connect(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        try:
            far, to_far = await asyncio.open_connection("127.0.0.1", self._far, ssl=self._trust)
            both = [asyncio.ensure_future(self._forth(near, to_far)), asyncio.ensure_future(self._back(far, to_near))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                await _end(to_far)
        finally:
            await _end(to_near)

    async def _forth(self, near: asyncio.StreamReader, to_far: asyncio.StreamWriter) -> None:
        kept = False
        with suppress(OSError):
            while data := await near.read(65536):
                if data.startswith(b"PATCH ") and not self._open.is_set():
                    kept = True
                    self.kept.append(data.split(b" ", 2)[1].partition(b"?")[0].decode())
                    await self._open.wait()
                to_far.write(data)
                await to_far.drain()
        if kept:  # the sender has given up: the request is still on its way
            await self._over.wait()

    async def _back(self, far: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await far.read(65536):
                to_near.write(data)
                await to_near.drain()


@dataclass(kw_only=True)
class Copy(Daemon):
    """One copy.

    Attributes:
        pod: the name of its pod.
        container: that of the pod.
        url: its HTTP address.
        way: its proxy to the API server.
        credential: the name of its token in the audit log.
        stopping: whether it was asked to end.
    """

    pod: str
    container: Json
    url: str
    way: Way
    credential: str
    stopping: bool = False

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def is_ready(self) -> bool:
        """Whether the probes of its container succeed."""
        startup, command = (
            self.container["startupProbe"]["httpGet"],
            self.container["readinessProbe"]["exec"]["command"],
        )
        try:
            urllib.request.urlopen(self.url + startup["path"], timeout=5).close()  # noqa: S310 - our own
        except OSError:
            return False
        at = urlsplit(self.url)
        script = command[2].replace('"127.0.0.1", 8765', f'"{at.hostname}", {at.port}')
        assert script != command[2]
        return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


class Patched(NamedTuple):
    """A change of a size that was requested from the API server."""

    at: float
    copy: str
    cluster: str
    code: int


@dataclass
class Copies:
    """The Deployment, its pods and the objects they share.

    Attributes:
        directory: for the files of the copies.
        names: of all clusters.
        copies: all that were started, in this order.
    """

    directory: Path
    kube: KubeServer
    server: PostgresServer
    database: str
    names: list[str]
    copies: list[Copy] = field(default_factory=list)
    connection: psycopg.Connection | None = None

    def apply(self, config: Json, targets: list[str]) -> None:
        """Apply the overlay as its comments say, with this configuration and these names of Deployments in its Role."""
        overlay = self.directory / "deploy" / "example"
        shutil.copytree(DEPLOY, overlay.parent)
        text = (overlay / "kustomization.yaml").read_text().replace("[flink-taskmanager]", f"[{', '.join(targets)}]")
        used = (
            r"^# (configMapGenerator:|  - \{name: autoscaler, behavior: replace|components:|  - \.\./components/copies)"
        )
        (overlay / "kustomization.yaml").write_text(re.sub(used, r"\1", text, flags=re.MULTILINE))
        (overlay / "config.yaml").write_text(yaml.safe_dump(config))
        self.kube.kubectl("apply", "-f", str(overlay / "namespace.yaml"))
        secret = {"AUTOSCALER_STATE": self.server.url(self.database), "ANN": TOKEN}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "autoscaler"}, "stringData": secret}
        self.kube.request("POST", f"/api/v1/namespaces/{SPACE}/secrets", body)
        self.kube.kubectl("apply", "-k", str(overlay))
        self.kube.kubectl("-n", FLEET, "apply", "-k", str(DEPLOY / "fleet"))

    # -- as a kubelet

    def sync(self) -> None:
        """Start and stop processes as the pods require, and report whether the pods are ready."""
        selector = "labelSelector=app.kubernetes.io/name=autoscaler"
        pods = {pod["metadata"]["name"]: pod for pod in self.kube.request("GET", f"{PODS}?{selector}")["items"]}
        running = {copy.pod: copy for copy in self.copies if copy.runs}
        for name, copy in running.items():
            if name not in pods and not copy.stopping:
                copy.stopping = True
                copy.signal(signal.SIGTERM)
        for name, pod in pods.items():
            if name not in running:
                codes = [
                    copy.process.returncode for copy in self.copies if copy.pod == name and copy.process is not None
                ]
                assert set(codes) <= {-signal.SIGKILL}, self.describe()
                self._start(pod)
            elif not _is_ready(pod) and running[name].is_ready():
                status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.kube.request("PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json")

    def _start(self, pod: Json) -> None:
        number = len(self.copies)
        address, directory = f"127.0.0.{number + 10}", self.directory / f"copy-{number}"
        spec, name = pod["spec"], pod["metadata"]["name"]
        [container] = spec["containers"]
        mounts = {mount["mountPath"]: directory / mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}

        def mounted(text: str) -> str:
            paths = "|".join(map(re.escape, mounts))
            return re.sub(rf"(?<!\S)({paths})(?=/|\s|$)", lambda path: str(mounts[path[0]]), text)

        for mount in container["volumeMounts"]:
            (directory / mount["name"]).mkdir(parents=True)
            if "configMap" in volumes[mount["name"]]:
                for file, text in self._read("configmaps", volumes[mount["name"]]["configMap"]["name"]).items():
                    (directory / mount["name"] / file).write_text(mounted(text))
        way = Way(self.kube)
        kubeconfig, credential = self._account(spec["serviceAccountName"], f"copy-{number}", way)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "KUBECONFIG": kubeconfig,
            **{
                key: base64.b64decode(value).decode()
                for source in container["envFrom"]
                for key, value in self._read("secrets", source["secretRef"]["name"]).items()
            },
        }
        for variable in container["env"]:
            assert variable["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
            environment[variable["name"]] = address
        assert "command" not in container  # the image's: `autoscaler`
        command = [sys.executable, "-m", "autoscaler", *map(mounted, container["args"])]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, env=environment, cwd=directory)
        listen = yaml.safe_load((directory / "config" / "config.yaml").read_text())["daemon"]["listen"]
        url = "http://" + listen.replace("${POD_IP}", address)
        self.copies.append(
            Copy(directory, process, pod=name, container=container, url=url, way=way, credential=credential)
        )

    def _read(self, kind: str, name: str) -> dict[str, str]:
        found = self.kube.request("GET", f"/api/v1/namespaces/{SPACE}/{kind}/{name}")["data"]
        assert isinstance(found, dict)
        return found

    def _account(self, account: str, name: str, way: Way) -> tuple[str, str]:
        """A kubeconfig of the service account with its own token, and the token's name in the audit log."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
        token = self.kube.request("POST", path, body)["status"]["token"]
        claims = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        file = Path(self.kube.kubeconfig(name, token, SPACE))
        file.write_text(file.read_text().replace(self.kube.url, way.url))
        return str(file), f"JTI={found['jti']}"

    # -- observed state

    @property
    def running(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.runs]

    def query(self, query: str) -> list[tuple[Any, ...]]:
        if self.connection is None:  # reused: a new client costs the server more than the request
            self.connection = psycopg.connect(self.server.url(self.database), autocommit=True)
        cursor = self.connection.execute(query)
        return cursor.fetchall() if cursor.description else []

    def owners(self) -> dict[str, str]:
        """Cluster -> the URL of the copy that owns it."""
        rows = self.query(
            "SELECT cluster, url FROM autoscaler.lease JOIN autoscaler.copy ON id = copy "
            "WHERE seen > clock_timestamp() - interval '15 s'"
        )
        return {str(cluster): str(url) for cluster, url in rows}

    def owned_by(self, copy: Copy) -> list[str]:
        return sorted(name for name, url in self.owners().items() if url == copy.url)

    def settle(self) -> None:
        """Wait until two copies are ready and own all clusters, and the Deployment has no other copies."""

        def settled() -> bool:
            self.sync()
            status = self.kube.request("GET", DEPLOYMENT)["status"]
            counts = [status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            owners = list(self.owners().values())
            shares = [owners.count(copy.url) for copy in self.running]
            return counts == [2, 2, 2] and len(shares) == 2 and min(shares) > 0 and sum(shares) == len(self.names)

        eventually(settled, self.describe)

    def describe(self) -> str:
        logs = ((copy.directory / "log").read_text()[-3000:] for copy in self.copies)
        return "\n".join(
            f"{copy.url} {copy.pod} {copy.runs}: {log}" for copy, log in zip(self.copies, logs, strict=True)
        )

    def ticks(self) -> dict[str, list[float]]:
        """Cluster -> the times of its decisions."""
        found: dict[str, list[float]] = {name: [] for name in self.names}
        for cluster, at in self.query(
            "SELECT cluster, extract(epoch FROM at)::float FROM autoscaler.tick_log ORDER BY at"
        ):
            found[str(cluster)].append(float(at))
        return found

    def wait_for_ticks(self, names: Collection[str], since: float) -> float:
        """Wait until there was a decision about each of these clusters since a time; returns the present time."""

        def first() -> float | None:
            ticks = self.ticks()
            found = [min((at for at in ticks[name] if at > since), default=None) for name in names]
            known = [at for at in found if at is not None]
            return max(known) if len(known) == len(found) else None

        return eventually(first, self.describe)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a tick of any cluster between two times."""
        ticks, longest = self.ticks(), 0.0
        for name in self.names:
            edges = [begin, *(at for at in ticks[name] if begin <= at <= end), end]
            longest = max(longest, *(later - earlier for earlier, later in pairwise(edges)))
        return longest

    def patched(self) -> list[Patched]:
        """All changes of sizes that the copies requested, in the order in which they were received."""
        copies = {copy.credential: copy.url for copy in self.copies}
        found = []
        for entry in self.kube.requests(ACCOUNT).entries:
            subject = entry.get("objectRef") or {}
            if (entry["verb"], subject.get("subresource")) == ("patch", "scale"):
                [credential] = entry["user"]["extra"]["authentication.kubernetes.io/credential-id"]
                name, space = subject["name"], subject["namespace"]
                cluster = name if space == SPACE else f"{space}/{name}"
                at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
                found.append(Patched(at, copies[credential], cluster, entry["responseStatus"]["code"]))
        return sorted(found)

    def of_others(self) -> list[Patched]:
        """The changes by a copy that were requested while another one, or none, owned the lease of the cluster."""
        leases = defaultdict(list)
        for cluster, url, at in self.query(
            "SELECT cluster, url, extract(epoch FROM at)::float FROM autoscaler.lease_log ORDER BY at"
        ):
            leases[str(cluster)].append((float(at), url))
        found = []
        for each in self.patched():
            changes = leases[each.cluster]
            before = bisect_right(changes, each.at, key=lambda change: change[0]) - 1
            if before < 0 or changes[before][1] != each.copy:
                found.append(each)
        return found

    def cli(self, copy: Copy, *arguments: str) -> str:
        """Run a command of the CLI against one copy."""
        command = [sys.executable, "-m", "autoscaler", *arguments, "--url", copy.url]
        environment = {**os.environ, "AUTOSCALER_TOKEN": TOKEN, "NO_PROXY": urlsplit(copy.url).hostname or ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
        for copy in self.copies:
            if copy.process is not None and copy.runs:
                copy.signal(signal.SIGCONT)
                copy.process.kill()
                copy.process.wait()
            copy.way.close()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def configuration(load_url: str, clusters: Json, fleet: Json) -> Json:
    """The configuration of all copies."""
    return {
        "daemon": {
            "directory": "/var/lib/autoscaler",
            "listen": f"${{POD_IP}}:{free_port()}",  # not 0.0.0.0: they share a machine
            "log": "json",
            "state": "${AUTOSCALER_STATE}",
            "tokens": [{"name": "ann", "token": "${ANN}", "rights": "write"}],
        },
        "sources": {"load": {"type": "http", "url": load_url}},
        "clusters": clusters,
        "fleets": {"jobs": fleet},
    }
