"""deploy/kubernetes: compared with Kubernetes' own API definition, and its Roles with the requests of the target."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes_asyncio.client import models

from autoscaler.config import load
from autoscaler.config.sections import LONGEST_TIMEOUT
from autoscaler.daemon.connections import CONNECT_TIMEOUT
from autoscaler.daemon.controller import SCALE_TIMEOUT
from autoscaler.daemon.fleet import CANCEL_TIMEOUT
from autoscaler.discoveries.kubernetes import Kubernetes as Discovery
from autoscaler.ports import Notification, NotificationKind, RefusedError, Severity, Worker
from autoscaler.targets.kubernetes.target import Kubernetes, Target
from autoscaler.testing import LocalShared
from tests.clients.kubernetes_cluster import Cluster, kubeconfig, open_cluster, until
from tests.clients.kubernetes_server import DEPLOYMENTS, EVENTS, NAMESPACES, PODS, SCALED_OBJECTS, Grants, Json

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
BASE = DEPLOY / "base"
EXAMPLE = ROOT / "examples" / "flink-kubernetes.yaml"
KUSTOMIZATIONS = sorted(DEPLOY.rglob("kustomization.yaml"))
MANIFESTS = sorted(
    path
    for path in DEPLOY.rglob("*.yaml")
    if path.name != "kustomization.yaml" and path != BASE / "config.yaml" and not path.parent.name.endswith("-monitor")
)
NAME = "flink-taskmanager"
RESCALED = Notification(
    id="1",
    at=datetime(2026, 7, 1, 12, tzinfo=UTC),
    kind=NotificationKind.RESCALE_BEGUN,
    severity=Severity.INFO,
    cluster="clicks",
    message="from 2 to 1",
)


def read(path: Path) -> Json:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def base(name: str) -> Json:
    return read(BASE / f"{name}.yaml")


def problems(kind: str, found: Any, where: str) -> Iterator[str]:
    """Undefined and missing fields of a manifest. `kind` is a type in the terms of the generated models."""
    simple = {"str": str, "int": int, "bool": bool, "object": object, "float": (int, float)}
    inner = re.fullmatch(r"list\[(.*)\]", kind)
    values = re.fullmatch(r"dict\(str, (.*)\)", kind)
    if inner:
        if not isinstance(found, list):
            yield f"{where} is no list"
            return
        for number, item in enumerate(found):
            yield from problems(inner[1], item, f"{where}[{number}]")
    elif values:
        if not isinstance(found, dict):
            yield f"{where} is no mapping"
            return
        for key, value in found.items():
            yield from problems(values[1], value, f"{where}.{key}")
    elif kind in simple:
        if not isinstance(found, simple[kind]):  # type: ignore[arg-type] # types, or tuples of them
            yield f"{where} is {found!r}, expected {kind}"
    else:
        yield from object_problems(getattr(models, kind), found, where)


def object_problems(model: Any, found: Json, where: str) -> Iterator[str]:
    names = {key: attribute for attribute, key in model.attribute_map.items()}
    yield from (f"{where} has no {key}" for key in set(found) - set(names))
    known = {names[key]: value for key, value in found.items() if key in names}
    try:
        model(**known)  # refuses a missing required field and an invalid value
    except ValueError as error:
        yield f"{where}: {error}"
    for attribute, value in known.items():
        yield from problems(model.openapi_types[attribute], value, f"{where}.{model.attribute_map[attribute]}")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_manifest_matches_the_api_definition(path: Path) -> None:
    found = read(path)
    assert list(problems(f"V1{found['kind']}", found, found["kind"])) == []
    group = {
        "Deployment": "apps/v1",
        "NetworkPolicy": "networking.k8s.io/v1",
        "CustomResourceDefinition": "apiextensions.k8s.io/v1",
        "PodDisruptionBudget": "policy/v1",
    }.get(found["kind"], "v1")
    assert found["apiVersion"] == ("rbac.authorization.k8s.io/v1" if "Role" in found["kind"] else group)
    assert "namespace" not in found["metadata"]  # belongs to the overlay


def test_the_check_finds_errors() -> None:
    found = base("deployment")
    pod = found["spec"]["template"]["spec"]
    pod["container"] = pod.pop("containers")
    found["spec"]["replicas"] = "1"
    wrong = list(problems("V1Deployment", found, "Deployment"))
    assert "Deployment.spec.replicas is '1', expected int" in wrong
    assert "Deployment.spec.template.spec has no container" in wrong
    assert any("`containers`, must not be `None`" in problem for problem in wrong)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_every_kustomization_names_existing_files(path: Path) -> None:
    found = read(path)
    generated = [file for generator in found.get("configMapGenerator", ()) for file in generator["files"]]
    named = [path.parent / name for name in (*found.get("resources", ()), *generated)]
    assert [file for file in named if not file.exists()] == []
    beside = {file for file in path.parent.glob("*.yaml") if file != path}
    assert beside == {file for file in named if file.is_file()}
    for patch in found.get("patches", ()):
        target = patch["target"]
        assert target == {"kind": target["kind"], "name": base(target["kind"].lower())["metadata"]["name"]}
        changes = yaml.safe_load(patch["patch"])
        if isinstance(changes, dict):
            assert changes["$patch"] == "delete"
        else:
            assert {operation["op"] for operation in changes} <= {"add", "replace"}


@pytest.fixture
def build() -> list[str]:
    """The command that builds an overlay."""
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            return command
    reason = "neither kubectl nor kustomize is there to build the overlay with"
    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def test_the_overlay_builds_with_all_components_and_binds_its_own_service_account(
    tmp_path: Path, build: list[str]
) -> None:
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "example" / "kustomization.yaml"
    text = overlay.read_text().replace("[flink-taskmanager]", "[tm-a, tm-b]")
    overlay.write_text(re.sub(r"^# (components:|  - \.\./components)", r"\1", text, flags=re.MULTILINE))
    built = subprocess.run([*build, overlay.parent], capture_output=True, text=True, check=True).stdout
    made = {found["kind"]: found for found in yaml.safe_load_all(built)}
    # Applied in this order: on a new cluster everything else would have no namespace.
    assert next(iter(made)) == "Namespace"
    assert made["Namespace"]["metadata"]["name"] == "streaming"
    account = made["ServiceAccount"]["metadata"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": "streaming"}
    assert made["RoleBinding"]["subjects"] == made["ClusterRoleBinding"]["subjects"] == [subject]
    named = [rule["resourceNames"] for rule in made["Role"]["rules"] if "resourceNames" in rule]
    assert named == [["tm-a", "tm-b"], ["tm-a", "tm-b"]]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]} in made["Role"]["rules"]
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com/autoscaler:0.1.0"
    config = next(volume["configMap"] for volume in pod["volumes"] if volume["name"] == "config")
    assert config["name"] == made["ConfigMap"]["metadata"]["name"] == "autoscaler"  # a changed file restarts no pod
    pods = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert made["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= pods.items()


def test_daemons_in_two_namespaces_share_no_cluster_scoped_objects(tmp_path: Path, build: list[str]) -> None:
    """Otherwise only the one applied last may watch, and deleting one takes the right from the other."""
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "example" / "kustomization.yaml"
    text = re.sub(r"^# (components:|  - \.\./components/watch)", r"\1", overlay.read_text(), flags=re.MULTILINE)
    names: list[str] = []
    for namespace in ("streaming", "team-b"):
        overlay.write_text(text.replace("namespace: streaming", f"namespace: {namespace}"))
        built = subprocess.run([*build, overlay.parent], capture_output=True, text=True, check=True).stdout
        found = [one for one in yaml.safe_load_all(built) if one["kind"].startswith("ClusterRole")]
        names += [one["metadata"]["name"] for one in found]
        binding = next(one for one in found if one["kind"] == "ClusterRoleBinding")
        assert binding["roleRef"]["name"] == names[-1]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "autoscaler", "namespace": namespace}]
    assert names == ["autoscaler-watch-streaming"] * 2 + ["autoscaler-watch-team-b"] * 2


def test_two_copies_need_no_volume_and_know_their_own_address(tmp_path: Path, build: list[str]) -> None:
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "example" / "kustomization.yaml"
    text = re.sub(r"^# (components:|  - \.\./components/copies)", r"\1", overlay.read_text(), flags=re.MULTILINE)
    overlay.write_text(text)
    built = subprocess.run([*build, overlay.parent], capture_output=True, text=True, check=True).stdout
    made = {found["kind"]: found for found in yaml.safe_load_all(built)}
    assert "PersistentVolumeClaim" not in made
    deployment = made["Deployment"]["spec"]
    assert list(problems("V1Deployment", made["Deployment"], "Deployment")) == []
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    assert container["env"] == [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    assert {volume["name"]: next(iter(volume)) for volume in pod["volumes"]}["state"] == "emptyDir"
    assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    pods = deployment["template"]["metadata"]["labels"]
    assert made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= pods.items()
    compile(container["readinessProbe"]["exec"]["command"][2], "the probe", "exec")


@pytest.mark.parametrize(
    ("component", "kind", "endpoints"),
    [("service-monitor", "ServiceMonitor", "endpoints"), ("pod-monitor", "PodMonitor", "podMetricsEndpoints")],
)
def test_a_monitor_selects_the_pods_of_the_overlay_by_an_existing_port(
    tmp_path: Path, build: list[str], component: str, kind: str, endpoints: str
) -> None:
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    overlay = tmp_path / "example" / "kustomization.yaml"
    overlay.write_text(f"{overlay.read_text()}components: [../components/{component}]\n")
    built = subprocess.run([*build, overlay.parent], capture_output=True, text=True, check=True).stdout
    made = {found["kind"]: found for found in yaml.safe_load_all(built)}
    monitor = made[kind]
    assert (monitor["apiVersion"], monitor["metadata"]["namespace"]) == ("monitoring.coreos.com/v1", "streaming")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    pod = made["Deployment"]["spec"]["template"]
    if kind == "ServiceMonitor":
        assert wanted <= made["Service"]["metadata"]["labels"].items()
        ports = made["Service"]["spec"]["ports"]
    else:
        assert wanted <= pod["metadata"]["labels"].items()
        ports = pod["spec"]["containers"][0]["ports"]
    [endpoint] = monitor["spec"][endpoints]
    assert endpoint["port"] in {port["name"] for port in ports}
    assert (endpoint["path"], endpoint["honorLabels"]) == ("/metrics", True)


def test_the_manifests_the_image_and_the_configuration_fit_together() -> None:
    deployment, service, account = base("deployment"), base("service"), base("serviceaccount")
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert (
        deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == template["metadata"]["labels"]
    )
    binding, role = base("rolebinding"), base("role")
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role["kind"], role["metadata"]["name"])
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert template["spec"]["serviceAccountName"] == account["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    claim = base("persistentvolumeclaim")["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim
    [generated] = read(BASE / "kustomization.yaml")["configMapGenerator"]
    assert volumes["config"]["configMap"]["name"] == generated["name"]

    config = load(BASE / "config.yaml", {})
    assert Path(mounts["state"]) == config.daemon.directory
    assert container["args"] == ["run", f"{mounts['config']}/{generated['files'][0]}"]
    [port] = container["ports"]
    assert config.daemon.listen == f"0.0.0.0:{port['containerPort']}"
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    target = config.clusters["clicks"].target
    assert isinstance(target, Kubernetes)
    assert target.name == NAME
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    user = template["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:" in dockerfile
    assert f'ENTRYPOINT ["autoscaler"]\nCMD ["run", "{container["args"][1]}"]' in dockerfile


def test_the_container_has_no_more_rights_than_it_needs() -> None:
    pod = base("deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}


@pytest.mark.parametrize(
    ("status", "changes", "event"),
    [
        (200, {}, ""),
        (
            503,
            {"ok": False, "problems": {"clicks": "there is no flink-taskmanager"}},
            '{"ok": false, "problems": {"clicks": "there is no flink-taskmanager"}}',
        ),
        (200, {"reload": ["config.yaml:12: targt: unknown"]}, '{"reload": ["config.yaml:12: targt: unknown"]}'),
    ],
    ids=["ready", "no target", "refused configuration"],
)
async def test_the_readiness_probe_prints_the_problems_which_become_events_of_the_pod(
    status: int, changes: Json, event: str
) -> None:
    [container] = base("deployment")["spec"]["template"]["spec"]["containers"]
    python, flag, script = container["readinessProbe"]["exec"]["command"]
    body = {"ok": True, "not_observed": [], "problems": {}, "store": "ok", "history": "ok", "reload": "ok", **changes}
    app = web.Application()

    async def ready(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app.router.add_get("/readyz", ready)
    async with TestServer(app) as server:
        script = script.replace("8765", str(server.port))
        probe = await asyncio.create_subprocess_exec(sys.executable, flag, script, stderr=asyncio.subprocess.PIPE)
        _, printed = await probe.communicate()
    assert python == "python"
    assert (probe.returncode, printed.decode().strip()) == (1 if event else 0, event)


def test_stops_and_probes_have_enough_time() -> None:
    pod = base("deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    # The call to a target, waiting notifications, and the shutdown of plug-ins.
    stop = SCALE_TIMEOUT + LONGEST_TIMEOUT.total_seconds() + 3 * CANCEL_TIMEOUT
    assert pod["terminationGracePeriodSeconds"] > stop
    startup, readiness = container["startupProbe"], container["readinessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > CONNECT_TIMEOUT
    [inner] = re.findall(r"^daemon = .*timeout=(\d+)\)$", readiness["exec"]["command"][2], re.MULTILINE)
    assert int(inner) < readiness["timeoutSeconds"] < readiness["periodSeconds"]


def test_only_named_objects_may_be_changed() -> None:
    for rule in base("role")["rules"]:
        if rule["resources"] == ["events"]:
            assert rule["verbs"] == ["create"]  # no existing object can be changed
        elif set(rule["verbs"]) - {"get", "list", "watch"}:
            assert rule["resourceNames"] == [NAME]
            assert rule["resources"] == ["deployments/scale"]
        assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
    cluster = read(DEPLOY / "components" / "watch-cluster" / "clusterrole.yaml")
    assert {verb for rule in cluster["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_the_configuration_is_the_example_and_fits_in_25_lines() -> None:
    assert (BASE / "config.yaml").read_text() == EXAMPLE.read_text()
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 25
    cluster = load(EXAMPLE, {}).clusters["clicks"]
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (2, 24)
    assert set(cluster.spec.metrics) == {"lag", "arrivals", "throughput", "utilization"}


def test_additional_needs_of_other_configurations_are_documented_at_the_installation() -> None:
    needed = {key: yaml.safe_load(EXAMPLE.read_text())["daemon"][key] for key in ("directory", "listen")}
    for path in (DEPLOY / "README.md", DEPLOY.parent / "helm" / "README.md"):
        said = re.findall(r"`(daemon: \{directory: .*?\})`", path.read_text())
        assert [yaml.safe_load(text) for text in said] == [{"daemon": needed}], path


# -- RBAC


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster("test server", tmp_path) as cluster:
        cluster.server.kinds.append(SCALED_OBJECTS)
        await cluster.workload(DEPLOYMENTS, NAME, 2)
        await cluster.workload(DEPLOYMENTS, "of-another-team", 2)
        yield cluster


def role(*components: str) -> list[tuple[str, Json]]:
    rules = list(base("role")["rules"])
    for name in components:
        for patch in read(DEPLOY / "components" / name / "kustomization.yaml")["patches"]:
            for operation in yaml.safe_load(patch["patch"]):
                assert (operation["op"], operation["path"]) == ("add", "/rules/-")
                rules.append(operation["value"])
    return [("jobs", rule) for rule in rules]


async def use(cluster: Cluster, plugin: Kubernetes) -> None:
    """All requests of the target: sizes, a change that conflicts with another client's, missing pods."""
    async with LocalShared() as shared, plugin.connect(shared) as target:
        assert isinstance(target, Target)
        assert (await target.describe()).desired == 2  # lists the pods, as none is ready
        await cluster.ready(await cluster.pods(NAME))
        pods = await cluster.pods(NAME)
        workers = [Worker(pod["metadata"]["name"], frozenset({pod["metadata"]["name"]})) for pod in pods]

        class Engine:
            async def workers(self) -> list[Worker]:
                return workers

            async def drain(self, worker: Worker) -> None:
                raise NotImplementedError

        target.attach(Engine)

        async def seen() -> bool | None:
            return (await target.describe()).ready == 2 or None

        await until(seen)
        cluster.server.fault("patch", "lose", DEPLOYMENTS)
        await target.scale(1)
        assert (await target.describe()).desired == 1
        assert (await target.describe()).remarks == ()
        await target.show(RESCALED)
        [shown] = [found for found in cluster.server.objects[EVENTS].values() if found["reason"] == "RescaleBegun"]
        assert (shown["involvedObject"]["name"], shown["message"]) == (NAME, RESCALED.message)
        watched = {plugin.what.plural, "horizontalpodautoscalers", "scaledobjects"}

        async def watching() -> bool | None:
            return {kind.plural for kind in cluster.server.watches} == watched or None

        await until(watching)


async def test_the_role_is_sufficient_and_grants_nothing_unused(cluster: Cluster, tmp_path: Path) -> None:
    grants = Grants(role())
    await use(cluster, cluster.target(NAME, kubeconfig=kubeconfig(tmp_path / "role", cluster.server, "role", grants)))
    assert grants.unused == set()


async def test_choosing_pods_needs_only_its_component(cluster: Cluster, tmp_path: Path) -> None:
    grants = Grants(role("choose-pods"))
    config = kubeconfig(tmp_path / "role", cluster.server, "role", grants)
    await use(cluster, cluster.target(NAME, choose_pods=True, kubeconfig=config))
    assert grants.unused == set()
    assert cluster.server.asked("patch", PODS)


async def test_one_watch_for_the_cluster_needs_only_its_component(cluster: Cluster, tmp_path: Path) -> None:
    everywhere = read(DEPLOY / "components" / "watch-cluster" / "clusterrole.yaml")["rules"]
    grants = Grants([*(("", rule) for rule in everywhere), *role()])
    config = kubeconfig(tmp_path / "role", cluster.server, "role", grants)
    await use(cluster, cluster.target(NAME, watch="cluster", kubeconfig=config))
    assert {entry for entry in grants.unused if entry[0] < len(everywhere)} == set()


async def test_the_role_grants_no_access_to_anything_else(cluster: Cluster, tmp_path: Path) -> None:
    grants = Grants(role())
    config = kubeconfig(tmp_path / "role", cluster.server, "role", grants)
    for plugin in (
        cluster.target("of-another-team", kubeconfig=config),
        cluster.target(NAME, watch="namespace", kubeconfig=config),
        cluster.target(NAME, watch="cluster", kubeconfig=config),
        cluster.target(NAME, resource="statefulsets", kubeconfig=config),
    ):
        async with LocalShared() as shared, plugin.connect(shared) as target:
            with pytest.raises(RefusedError, match=r"this needs list on .* see deploy/kubernetes"):
                await target.describe()


async def test_the_role_of_a_fleet_is_sufficient_in_its_namespaces_and_grants_nothing_unused(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules = read(DEPLOY / "fleet" / "role.yaml")["rules"]
    grants = Grants([("jobs", rule) for rule in rules])
    config = kubeconfig(tmp_path / "fleet", cluster.server, "fleet", grants)
    async with LocalShared() as shared, Discovery(namespaces=("jobs",), kubeconfig=config).connect(shared) as fleet:
        assert [member.id for member in await fleet.members()] == [f"jobs/{NAME}", "jobs/of-another-team"]
    await use(cluster, cluster.target(NAME, watch="namespace", kubeconfig=config))
    assert grants.unused == set()
    cluster.server.create(NAMESPACES, {"metadata": {"name": "other"}}, "")
    for elsewhere in (
        Discovery(namespaces=("jobs", "other"), kubeconfig=config),
        Discovery(all=True, kubeconfig=config),
    ):
        async with LocalShared() as shared, elsewhere.connect(shared) as fleet:
            with pytest.raises(RefusedError, match=r"this needs list on deployments.apps in .* see deploy/kubernetes"):
                await fleet.members()


def test_the_role_of_a_fleet_is_bound_to_the_daemons_account() -> None:
    binding, role = read(DEPLOY / "fleet" / "rolebinding.yaml"), read(DEPLOY / "fleet" / "role.yaml")
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role["kind"], role["metadata"]["name"])
    namespace = read(DEPLOY / "example" / "kustomization.yaml")["namespace"]
    account = base("serviceaccount")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    changing = [rule["resources"] for rule in role["rules"] if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert changing == [["deployments/scale"], ["events"]]


def test_the_role_of_a_fleet_can_be_built_for_any_namespace(build: list[str]) -> None:
    built = subprocess.run([*build, DEPLOY / "fleet"], capture_output=True, text=True, check=True).stdout
    made = {found["kind"]: found for found in yaml.safe_load_all(built)}
    assert made.keys() == {"Role", "RoleBinding"}
    assert not any("namespace" in found["metadata"] for found in made.values())
    assert made["RoleBinding"]["subjects"] == read(DEPLOY / "fleet" / "rolebinding.yaml")["subjects"]
