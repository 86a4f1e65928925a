"""A real Kubernetes: the shipped Roles, the target, fleets of Deployments and the custom resource, with daemons."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import yaml

from autoscaler.daemon.reports import AT_ONCE, POLL, RATE
from tests.e2e.helm import CHART, helm
from tests.e2e.kube_server import Json, KubeServer, RefusedRequest, Requests, kube_server

pytestmark = pytest.mark.e2e

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
ACCOUNT = "system:serviceaccount:streaming:autoscaler"
STREAMS = "/apis/reactive-autoscaler.internal/v1alpha1"
PATIENCE = 90.0
FLEET = 1000
NODE = "a-node"
INTERVAL = 10.0  # seconds between two observations of a member
MEMBER_BYTES = 150_000
LATE = 1.0  # seconds by which most ticks may be late
# Tests in which another client changes the size at the same time, and tests with KEDA.
SELDOM = {("get", "deployments/scale"), ("watch", "scaledobjects")}


def eventually(
    ask: Callable[[], T | None], what: Callable[[], object], seconds: float = PATIENCE, pause: float = 0.2
) -> T:
    deadline = time.monotonic() + seconds
    while True:
        found = ask()
        if found:
            return found
        assert time.monotonic() < deadline, what()
        time.sleep(pause)


# -- observations and effects of the daemon


class Load:
    """A document with a load for each name: one replica per 100 of it.

    Attributes:
        url: its address.
        of: name -> load.
        usual: that of all others.
    """

    def __init__(self) -> None:
        self.of: dict[str, float] = {}
        self.usual = 100.0
        load = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"of": load.of, "usual": load.usual}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def load() -> Iterator[Load]:
    load = Load()
    yield load
    load.close()


def cluster(load_of: str, **more: Any) -> Json:
    """The section of a cluster, or a template, that follows a load."""
    return {
        "interval": "2s",
        "timeout": "1900ms",
        "min": 1,
        "max": 8,
        "metrics": {"load": {"source": "load", "path": f'of."{load_of}" || usual'}},
        "policies": {"load": {"type": "target-tracking", "metric": "load", "target": 100, "mode": "total"}},
        "down": {"window": "4s"},
        **more,
    }


@dataclass
class Daemon:
    """A daemon process.

    Attributes:
        directory: with its configuration and log.
    """

    directory: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def lines(self) -> list[Json]:
        text = (self.directory / "log").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n") and line[0] == "{"]

    def said(self, message: str) -> list[Json]:
        return [line for line in self.lines if message in line["message"]]

    def text(self, path: str) -> str:
        url = eventually(lambda: self.said("started"), (self.directory / "log").read_text)[0]["url"]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{url}{path}", timeout=30) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:  # /readyz answers 503 with the reasons
            with error:
                return str(error.read(), "utf-8")

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def fleet(self) -> Json:
        [fleet] = self.get("/api/v1/fleets")["fleets"]
        assert isinstance(fleet, dict)
        return fleet


@contextmanager
def daemon(directory: Path, load: Load, **sections: Any) -> Iterator[Daemon]:
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "daemon": {"directory": "state", "listen": "127.0.0.1:0", "log": "json"},
        "sources": {"load": {"type": "http", "url": load.url}},
        **sections,
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "API_TOKEN": "do-not-read-this"}
    command = [sys.executable, "-m", "autoscaler", "run", str(directory / "config.yaml")]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        running = Daemon(directory, process)
        try:
            yield running
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (directory / "log").read_text()[-3000:]
        finally:
            if process.poll() is None:
                process.kill()


# -- objects on the server


@pytest.fixture(scope="module")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    with kube_server(tmp_path_factory.mktemp("kube")) as server:
        namespace(server, "streaming")
        server.kubectl("-n", "streaming", "apply", "-f", str(DEPLOY / "base" / "serviceaccount.yaml"))
        server.node(NODE)
        yield server


def namespace(server: KubeServer, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    server.request("POST", "/api/v1/namespaces", body)


def deployment(
    name: str, labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}, node: str = NODE
) -> Json:
    """A Deployment of one replica. Its pods become ready on the node, if there is one of this name."""
    container = {"name": "main", "image": "registry.invalid/none:1"}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"nodeName": node, "containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(annotations)},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def apps(space: str, name: str = "") -> str:
    return f"/apis/apps/v1/namespaces/{space}/deployments" + (f"/{name}" if name else "")


def size(server: KubeServer, space: str, name: str) -> int:
    return int(server.request("GET", apps(space, name))["spec"]["replicas"])


def ready(server: KubeServer, space: str, name: str) -> int:
    """The number of ready pods of a Deployment."""
    return int(server.request("GET", apps(space, name))["status"].get("readyReplicas", 0))


def reaches(server: KubeServer, space: str, name: str, replicas: int, *, running: Daemon) -> None:
    """Wait until a Deployment has this size and as many ready pods."""
    eventually(
        lambda: size(server, space, name) == ready(server, space, name) == replicas,
        lambda: (size(server, space, name), ready(server, space, name), running.lines[-20:]),
    )


def rules(*manifests: str) -> set[tuple[str, str]]:
    """The verbs and resources that Roles grant."""
    found = [yaml.safe_load((DEPLOY / path).read_text()) for path in manifests]
    return {
        (verb, resource)
        for role in found
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


# -- the target


def test_the_shipped_role_is_exactly_sufficient_to_scale_a_deployment(
    kube: KubeServer, load: Load, tmp_path: Path
) -> None:
    for name in ("role", "rolebinding"):
        kube.kubectl("-n", "streaming", "apply", "-f", str(DEPLOY / "base" / f"{name}.yaml"))
    kube.request("POST", apps("streaming"), deployment("flink-taskmanager", node="a-late-node"))
    kubeconfig = kube.account("streaming", "autoscaler")
    target = {"type": "kubernetes", "name": "flink-taskmanager", "namespace": "streaming", "kubeconfig": kubeconfig}
    with daemon(tmp_path / "daemon", load, clusters={"tm": cluster("tm", target=target)}) as running:
        # Its pod is not ready: the target reads the reason.
        eventually(lambda: kube.requests(ACCOUNT).count("list", "pods"), lambda: running.lines[-20:])
        kube.node("a-late-node")
        load.of["tm"] = 300
        reaches(kube, "streaming", "flink-taskmanager", 3, running=running)
        load.of["tm"] = 100
        reaches(kube, "streaming", "flink-taskmanager", 1, running=running)
        assert running.get("/readyz")["problems"] == {}
    asked, granted = kube.requests(ACCOUNT), rules("base/role.yaml")
    assert asked.refused == set()
    assert asked.used <= granted
    assert granted - asked.used <= SELDOM
    assert asked.count("watch", "deployments") >= 1


# -- the chart


def test_the_chart_is_installed_upgraded_and_removed_and_its_account_may_scale_the_configured_objects(
    kube: KubeServer, load: Load, tmp_path: Path
) -> None:
    space = "charted"
    namespace(kube, space)
    kube.request("POST", apps(space), deployment("tm"))
    config = tmp_path / "config.yaml"
    config.write_text((DEPLOY / "base" / "config.yaml").read_text())
    where = ("autoscaler", CHART, f"--namespace={space}", f"--kubeconfig={kube.admin}")
    values = ("--set=rbac.targets={tm}", f"--set=podSpec.nodeName={NODE}", f"--set-file=config={config}")
    helm("install", *where, *values)
    eventually(lambda: ready(kube, space, "autoscaler") == 1, lambda: kube.request("GET", apps(space, "autoscaler")))

    kubeconfig = kube.account(space, "autoscaler")
    target = {"type": "kubernetes", "name": "tm", "namespace": space, "kubeconfig": kubeconfig}
    with daemon(tmp_path / "daemon", load, clusters={"tm": cluster("tm", target=target)}) as running:
        load.of["tm"] = 200
        reaches(kube, space, "tm", 2, running=running)
    assert kube.requests(f"system:serviceaccount:{space}:autoscaler").refused == set()

    def pods() -> set[str]:
        found = kube.request("GET", f"/api/v1/namespaces/{space}/pods?labelSelector=app.kubernetes.io/name=autoscaler")
        return {pod["metadata"]["uid"] for pod in found["items"]}

    [pod] = pods()
    changed = config.read_text().replace("max: 24", "max: 12")
    config.write_text(changed)
    helm("upgrade", *where, *values)
    at = f"/api/v1/namespaces/{space}/configmaps/autoscaler"
    assert kube.request("GET", at)["data"]["config.yaml"] == changed
    assert pods() == {pod}  # the daemon loads it
    refused = helm("upgrade", *where, *values, "--set=replicas=2", check=False)
    assert "config needs daemon.state" in refused.stderr
    config.write_text(changed.replace("log: json", 'log: json, state: "${AUTOSCALER_STATE}"'))
    helm("upgrade", *where, *values, "--set=replicas=2")
    eventually(
        lambda: ready(kube, space, "autoscaler") == len(pods()) == 2 and pod not in pods(),
        lambda: kube.request("GET", apps(space, "autoscaler")),
    )

    helm("uninstall", "autoscaler", *where[2:])
    # The claim too, except for the controller that releases it, which does not run here.
    kinds = "deployment,configmap,serviceaccount,role,rolebinding,service,networkpolicy,pdb"
    left = kube.kubectl("get", kinds, f"--namespace={space}", "--selector=app.kubernetes.io/managed-by=Helm", "-oname")
    assert left.stdout == ""


def test_the_tests_of_target_and_discovery_also_pass_on_a_real_kubernetes(kube: KubeServer, tmp_path: Path) -> None:
    files = ["tests/targets/test_kubernetes.py", "tests/discoveries/test_kubernetes.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/own"]
    environment = {**os.environ, "AUTOSCALER_TEST_KUBECONFIG": kube.admin, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [*command, "-k", "real", *files], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


def test_a_label_that_is_too_long_for_a_template_is_refused_by_the_server(kube: KubeServer) -> None:
    with pytest.raises(RefusedRequest, match="must be no more than 63") as raised:
        kube.request("POST", apps("default"), deployment("long", {"autoscale": "x" * 64}))
    assert raised.value.code == 422


# -- fleets of Deployments


def template(kubeconfig: str, **more: Any) -> Json:
    target = {
        "type": "kubernetes",
        "name": "${name}",
        "namespace": "${namespace}",
        "watch": "namespace",
        "kubeconfig": kubeconfig,
    }
    usual = {"max": "${annotations['autoscaler/max'] | 8}", "interval": f"{INTERVAL:g}s", "timeout": "9s"}
    return cluster("${name}", target=target, **{**usual, **more})


def discovered(kubeconfig: str, space: str, **more: Any) -> Json:
    discover = {
        "type": "kubernetes",
        "selector": "autoscale=streaming",
        "namespaces": [space],
        "kubeconfig": kubeconfig,
    }
    return {"discover": discover, "name": "${namespace}/${name}", "interval": "2s", **more}


def up(server: KubeServer, space: str, name: str) -> None:
    """Create a Deployment and write its status, since no controller does here."""
    labels = {"autoscale": "streaming", "team": f"team-{len(name)}"}
    server.request("POST", apps(space), deployment(name, labels))
    status = {"status": {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}}
    server.request("PATCH", f"{apps(space, name)}/status", status, "application/merge-patch+json")


def test_a_thousand_deployments_by_one_label_cost_one_list_and_one_watch(load: Load, tmp_path: Path) -> None:
    (tmp_path / "kube").mkdir()
    with kube_server(tmp_path / "kube", workloads=False) as kube:
        for name in ("streaming", "fleet"):
            namespace(kube, name)
        kube.kubectl("-n", "streaming", "apply", "-f", str(DEPLOY / "base" / "serviceaccount.yaml"))
        kube.kubectl("-n", "fleet", "apply", "-k", str(DEPLOY / "fleet"))
        with ThreadPoolExecutor(8) as threads:
            first = [f"job-{number}" for number in range(FLEET // 10)]
            list(threads.map(lambda name: up(kube, "fleet", name), first))
            kubeconfig = kube.account("streaming", "autoscaler")
            fleets = {"jobs": discovered(kubeconfig, "fleet", template=template(kubeconfig))}
            with daemon(tmp_path / "daemon", load, fleets=fleets) as running:
                controlled(running, len(first))
                before = resident(running)
                rest = [f"job-{number}" for number in range(len(first), FLEET)]
                list(threads.map(lambda name: up(kube, "fleet", name), rest))
                controlled(running, FLEET)
                each = (resident(running) - before) / len(rest)
                asked = kube.requests(ACCOUNT)
                # A discovery and the targets, each with one list and one watch, which restarts twice a minute.
                assert asked.count("list", "deployments") <= 4
                watches = asked.count("watch", "deployments")
                assert asked.refused == set()
                assert asked.used <= rules("fleet/role.yaml")

                load.of["late"] = 300
                begun = time.monotonic()
                up(kube, "fleet", "late")
                eventually(lambda: size(kube, "fleet", "late") == 3, lambda: running.lines[-20:])
                took = time.monotonic() - begun
                kube.request("DELETE", apps("fleet", "late"))
                eventually(lambda: running.fleet()["members"] == FLEET, running.fleet)
    print(f"\n{FLEET} members: {each / 1000:.0f} kB each, {watches} watches, a new one is scaled in {took:.1f} s")  # noqa: T201
    assert each < MEMBER_BYTES
    assert took <= 2 * INTERVAL


def controlled(running: Daemon, count: int) -> None:
    """Wait until so many members have two decisions each."""

    def are() -> bool:
        found = running.get("/readyz")
        return running.fleet()["members"] == count and found["problems"] == {} and not found["not_observed"]

    eventually(are, lambda: str(running.get("/readyz"))[:2000], 300.0)
    time.sleep(2 * INTERVAL)


def resident(running: Daemon) -> int:
    assert running.process is not None
    return int(psutil.Process(running.process.pid).memory_info().rss)


def test_members_have_their_own_limits_and_an_invalid_one_fails_alone(
    kube: KubeServer, load: Load, tmp_path: Path
) -> None:
    namespace(kube, "notes")
    kube.kubectl("-n", "notes", "apply", "-k", str(DEPLOY / "fleet"))
    html = "<script>alert('${API_TOKEN}')</script>"
    for name, most in {"usual": "", "small": "2", "html": html, "more": "x" * 2000}.items():
        annotations = {"autoscaler/max": most} if most else {}
        kube.request("POST", apps("notes"), deployment(name, {"autoscale": "streaming"}, annotations))
        load.of[name] = 400
    kube.request("POST", apps("notes"), deployment("of-another-team"))
    kubeconfig = kube.account("streaming", "autoscaler")
    fleet = discovered(kubeconfig, "notes", template=template(kubeconfig, interval="2s", timeout="1900ms"))
    with daemon(tmp_path / "daemon", load, fleets={"jobs": fleet}) as running:
        reaches(kube, "notes", "usual", 4, running=running)
        reaches(kube, "notes", "small", 2, running=running)
        refused = {line["member"]: line["problem"] for line in running.said("member refused")}
        assert set(refused) == {"notes/html", "notes/more"}
        assert "fleets.jobs[notes/html].template.max" in refused["notes/html"]
        assert "at most 1,000 are allowed" in refused["notes/more"]
        assert "do-not-read-this" not in (tmp_path / "daemon" / "log").read_text()
        assert [size(kube, "notes", name) for name in ("html", "more", "of-another-team")] == [1, 1, 1]
        note = {"metadata": {"annotations": {"autoscaler/max": "3"}}}
        kube.request("PATCH", apps("notes", "html"), note, "application/merge-patch+json")
        reaches(kube, "notes", "html", 3, running=running)
        kube.kubectl("-n", "notes", "label", "deployment", "small", "autoscale-")
        eventually(lambda: running.fleet()["members"] == 3, running.fleet)


def test_a_discovery_without_permission_names_the_missing_rule_and_other_fleets_continue(
    kube: KubeServer, load: Load, tmp_path: Path
) -> None:
    for name in ("granted", "denied"):
        namespace(kube, name)
        kube.request("POST", apps(name), deployment("job", {"autoscale": "streaming"}))
    kube.kubectl("-n", "granted", "apply", "-k", str(DEPLOY / "fleet"))
    load.of["job"] = 200
    kubeconfig = kube.account("streaming", "autoscaler")
    short = {"interval": "2s", "timeout": "1900ms"}
    fleets = {
        name: discovered(kubeconfig, name, template=template(kubeconfig, **short)) for name in ("granted", "denied")
    }
    with daemon(tmp_path / "daemon", load, fleets=fleets) as running:
        reaches(kube, "granted", "job", 2, running=running)
        [line] = eventually(lambda: running.said("discovery failed"), lambda: running.lines[-20:])
        assert line["fleet"] == "denied"
        assert "this needs list on deployments.apps in namespace denied" in line["error"]
        assert size(kube, "denied", "job") == 1


# -- the custom resource


STREAM: Json = {
    "apiVersion": "reactive-autoscaler.internal/v1alpha1",
    "kind": "StreamAutoscaler",
    "metadata": {"name": "orders"},
    "spec": cluster("orders", target={"type": "kubernetes", "name": "orders"}),
}


@pytest.fixture(scope="module")
def streams(kube: KubeServer) -> KubeServer:
    """The server with the custom resource, and a namespace for it."""
    kube.kubectl("apply", "--server-side", "-k", str(DEPLOY / "crd"))
    kube.kubectl("wait", "--for=condition=Established", "crd/streamautoscalers.reactive-autoscaler.internal")
    namespace(kube, "team")
    kube.kubectl("-n", "team", "apply", "-k", str(DEPLOY / "stream-autoscalers"))
    return kube


def stream(name: str, **changes: Any) -> Json:
    spec = {**STREAM["spec"], "target": {"type": "kubernetes", "name": name}, **changes}
    spec["metrics"] = {"load": {"source": "load", "path": f'of."{name}" || usual'}, **changes.get("metrics", {})}
    return {**STREAM, "metadata": {"name": name}, "spec": spec}


def path_of(name: str = "") -> str:
    return f"{STREAMS}/namespaces/team/streamautoscalers" + (f"/{name}" if name else "")


def applied(server: KubeServer, found: Json, *, check: bool = True) -> str:
    done = server.kubectl("-n", "team", "apply", "--validate=strict", "-f", "-", stdin=json.dumps(found), check=check)
    return done.stderr if done.returncode else ""


def condition(server: KubeServer, name: str) -> Json:
    status = server.request("GET", path_of(name)).get("status") or {}
    [found] = status.get("conditions") or [{"status": "", "reason": "", "message": ""}]
    assert isinstance(found, dict)
    return found


def test_the_definition_is_accepted_as_structural(streams: KubeServer) -> None:
    found = streams.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + CRD_NAME)
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


STREAM_PLURAL = "streamautoscalers"
CRD_NAME = f"{STREAM_PLURAL}.reactive-autoscaler.internal"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min": 9}, "min must not be above max"),
        ({"timeout": "2s"}, "timeout must be shorter than the interval"),
        ({"interval": None, "timeout": "16s"}, "timeout must be shorter than the interval"),
        ({"policies": {}}, "should have at least 1 properties"),
        ({"interval": "soon"}, "should match"),
        ({"max": "many"}, "must be of type integer"),
        ({"target": {"name": "orders"}}, "Required value"),
        ({"maximum": 9}, "unknown field"),
    ],
)
def test_the_server_refuses_an_invalid_resource(streams: KubeServer, change: Json, message: str) -> None:
    spec = {key: value for key, value in {**STREAM["spec"], **change}.items() if value is not None}
    assert message in applied(streams, {**STREAM, "spec": spec}, check=False)


def test_a_resource_is_scaled_and_has_its_status_its_events_and_its_columns(
    streams: KubeServer, load: Load, tmp_path: Path
) -> None:
    before = streams.requests(ACCOUNT)
    streams.node("a-lost-node")
    for name in ("orders", "wrong", "other", "gone"):
        streams.request("POST", apps("team"), deployment(name, node="a-lost-node" if name == "gone" else NODE))
    applied(streams, stream("orders"))
    applied(streams, stream("wrong", metrics={"load": {"source": "load", "path": "${API_TOKEN}"}}))
    applied(streams, stream("other", target={"type": "kubernetes", "name": "other", "namespace": "kube-system"}))
    applied(streams, stream("gone"))
    kubeconfig = streams.account("streaming", "autoscaler")
    discover = {"type": "stream-autoscalers", "namespaces": ["team"], "kubeconfig": kubeconfig}
    fleet = {"discover": discover, "name": "${namespace}/${name}", "interval": "2s"}
    with daemon(tmp_path / "daemon", load, fleets={"streams": fleet}) as running:
        load.of["orders"] = 300
        reaches(streams, "team", "orders", 3, running=running)

        def shown() -> Json | None:
            status = streams.request("GET", path_of("orders")).get("status") or {}
            return status if status.get("size") == 3 and status.get("lastRescaleTime") else None

        status = eventually(shown, lambda: (condition(streams, "orders"), running.lines[-20:]))
        assert status["proposedSize"] == 3
        assert condition(streams, "orders")["status"] == "True"
        eventually(lambda: condition(streams, "wrong")["status"], lambda: running.lines[-20:])
        eventually(lambda: condition(streams, "other")["status"], lambda: running.lines[-20:])
        wrong, other = condition(streams, "wrong"), condition(streams, "other")
        assert (wrong["status"], wrong["reason"]) == ("False", "SpecRefused")
        assert "[team/wrong].spec.metrics.load.path: ${API_TOKEN} is an environment variable" in wrong["message"]
        assert "spec.target.namespace: must be left out: the target is in team" in other["message"]
        assert "do-not-read-this" not in (tmp_path / "daemon" / "log").read_text()

        columns = streams.kubectl("-n", "team", "get", "streamautoscalers", "orders").stdout.splitlines()
        assert columns[0].split() == ["NAME", "SIZE", "PROPOSED", "MIN", "MAX", "READY", "REASON", "RESCALED", "AGE"]
        assert columns[1].split()[:6] == ["orders", "3", "3", "1", "8", "True"]
        described = streams.kubectl("-n", "team", "describe", "streamautoscalers", "orders").stdout
        assert "Rescaled" in described.partition("Events:")[2]
        assert "SpecRefused" in streams.kubectl("-n", "team", "describe", "streamautoscalers", "wrong").stdout

        # Deleted in the middle of a rescale: none of the new pods is ready.
        reaches(streams, "team", "gone", 1, running=running)
        streams.request("DELETE", "/api/v1/nodes/a-lost-node")
        load.of["gone"] = 500
        eventually(lambda: size(streams, "team", "gone") == 5, lambda: running.lines[-20:])
        assert ready(streams, "team", "gone") == 1
        asks_why(streams, before, running)
        streams.request("DELETE", path_of("gone"))
        eventually(lambda: running.fleet()["members"] == 3, running.fleet)
        time.sleep(3 * POLL)  # must not happen: a write of its status, checked three times
        assert not [line for line in running.lines if line["level"] in {"error", "critical"}]
        assert not running.said("cannot be shown")
        assert streams.kubectl("-n", "team", "get", "streamautoscalers", "gone", check=False).returncode == 1
    asked = streams.requests(ACCOUNT)
    new = asked.entries[len(before.entries) :]
    granted = rules("fleet/role.yaml", "stream-autoscalers/role.yaml")
    of_team = type(asked)([entry for entry in new if (entry.get("objectRef") or {}).get("namespace") == "team"])
    assert of_team.refused == set()
    assert of_team.used <= granted
    assert granted - of_team.used <= SELDOM


def asks_why(server: KubeServer, before: Requests, running: Daemon) -> None:
    """Wait until the daemon has requested the pods, to find out why they are not ready."""
    listed = before.count("list", "pods")
    eventually(lambda: server.requests(ACCOUNT).count("list", "pods") > listed, lambda: running.lines[-20:])


STATUSES = f"{STREAM_PLURAL}/status"
# A priority level without seats, which lets one request through at a time: to the others, when the daemon writes
# statuses, the server answers 429.
FULL: list[Json] = [
    {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "full"},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "lendablePercent": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    },
    {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": "full"},
        "spec": {
            "priorityLevelConfiguration": {"name": "full"},
            "matchingPrecedence": 2,
            "rules": [
                {
                    "subjects": [
                        {"kind": "ServiceAccount", "serviceAccount": {"namespace": "streaming", "name": "autoscaler"}}
                    ],
                    "resourceRules": [
                        {
                            "verbs": ["patch"],
                            "apiGroups": [CRD_NAME.partition(".")[2]],
                            "resources": [STATUSES],
                            "namespaces": ["*"],
                        }
                    ],
                }
            ],
        },
    },
]


def test_the_statuses_of_a_thousand_resources_are_written_on_changes_at_a_limited_rate_and_delay_no_tick(
    load: Load, tmp_path: Path
) -> None:
    (tmp_path / "kube").mkdir()
    with kube_server(tmp_path / "kube", workloads=False) as kube:
        for name in ("streaming", "team"):
            namespace(kube, name)
        kube.kubectl("apply", "--server-side", "-k", str(DEPLOY / "crd"))
        kube.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}")
        kube.kubectl("-n", "streaming", "apply", "-f", str(DEPLOY / "base" / "serviceaccount.yaml"))
        kube.kubectl("-n", "team", "apply", "-k", str(DEPLOY / "stream-autoscalers"))
        names = [f"job-{number}" for number in range(FLEET)]

        def create(name: str) -> None:
            up(kube, "team", name)
            kube.request("POST", path_of(), stream(name, interval=f"{INTERVAL:g}s", timeout="9s"))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(create, names))
        for found in FULL:
            kube.kubectl("apply", "-f", "-", stdin=json.dumps(found))
        kube.kubectl("wait", "--for=condition=Dangling=False", "flowschema/full")
        kubeconfig = kube.account("streaming", "autoscaler")
        discover = {"type": "stream-autoscalers", "namespaces": ["team"], "kubeconfig": kubeconfig}
        fleets = {"streams": {"discover": discover, "name": "${namespace}/${name}", "interval": "2s"}}
        load.usual = 300

        def deployed() -> Counter[int]:
            return Counter(each["spec"]["replicas"] for each in kube.request("GET", apps("team"))["items"])

        def shown() -> Counter[int | None]:
            return Counter((each.get("status") or {}).get("size") for each in kube.request("GET", path_of())["items"])

        with daemon(tmp_path / "daemon", load, fleets=fleets) as running:
            eventually(lambda: deployed() == {3: FLEET}, deployed, 300.0, pause=2.0)
            # The server refuses nearly every status, and nothing else waits for that.
            assert shown()[3] < FLEET / 4
            [failed] = eventually(lambda: running.said("cannot be shown"), lambda: running.lines[-20:])
            assert "429" in failed["error"]
            kube.kubectl("delete", "flowschema", "full")
            begun = time.monotonic()
            eventually(lambda: shown() == {3: FLEET}, shown, 300.0, pause=2.0)
            took = time.monotonic() - begun
            eventually(lambda: running.said("is shown again"), lambda: running.lines[-20:])
            metrics = running.text("/metrics")
        asked = kube.requests(ACCOUNT)
    written = [entry for entry in asked.entries if entry["responseStatus"]["code"] in {200, 201}]
    statuses = times(written, "patch", STREAM_PLURAL)
    events = times(written, "create", "events")
    throttled = [entry for entry in asked.entries if entry["responseStatus"]["code"] == 429]
    refused = times(throttled, "patch", STREAM_PLURAL)
    print(  # noqa: T201
        f"\n{FLEET} statuses in {took:.0f} s: at most {most(statuses)} a second, and {most(events)} Events; "
        f"{most(refused)} while they are refused; {len(statuses)} statuses and {len(events)} Events in all; "
        f"a tick is {late(metrics, 0.5):g} s late at the median, {late(metrics, 1.0):g} s at most"
    )
    assert most(statuses) <= RATE + 2 * AT_ONCE  # a second of the server's clock may have one more batch
    assert most(events) <= RATE + 2 * AT_ONCE
    assert most(refused) <= RATE + 2 * AT_ONCE
    # On a busy machine a target or a reading may fail and recover: these are changes too. The last Events may be on
    # their way when the daemon is stopped.
    assert FLEET - AT_ONCE <= len(events) <= 3 * FLEET
    assert FLEET <= len(statuses) <= 3 * FLEET
    # All statuses take two intervals: if ticks waited for them, nearly all would be late.
    assert late(metrics, 0.5) <= LATE


def times(entries: Sequence[Json], verb: str, resource: str) -> list[float]:
    """The times at which such requests were received, in seconds."""
    return [
        datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
        for entry in entries
        if (entry["verb"], (entry.get("objectRef") or {}).get("resource")) == (verb, resource)
    ]


def most(times: Sequence[float]) -> int:
    """The maximum number of them in one second."""
    ordered = sorted(times)
    return max((bisect_left(ordered, at + 1.0) - number for number, at in enumerate(ordered)), default=0)


def late(metrics: str, share: float) -> float:
    """The maximum delay of this share of the ticks, with the resolution of the metric's buckets."""
    found = re.findall(r'autoscaler_tick_lateness_seconds_bucket{le="([^"]+)"} (\S+)', metrics)
    counts = {float(edge): float(count) for edge, count in found}
    return min(edge for edge, count in counts.items() if count >= share * counts[math.inf])
