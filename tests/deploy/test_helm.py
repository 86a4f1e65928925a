"""The Helm chart: it renders the output of kustomize and refuses wrong values. tests/e2e/test_kube.py installs it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from tests.deploy.test_kubernetes_manifests import DEPLOY, build, problems
from tests.docs.refresh import VERSION
from tests.e2e.helm import CHART, helm

__all__ = ["build"]

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
OF_A_RELEASE = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"}
STATE = 'daemon: {directory: /var/lib/autoscaler, listen: "0.0.0.0:8765", log: json, state: "${AUTOSCALER_STATE}"}\n'


def render(*options: str, release: str = "autoscaler") -> dict[tuple[str, str, str], Json]:
    done = helm("template", release, CHART, "--namespace=streaming", *options)
    return by_name(done.stdout)


def by_name(text: str) -> dict[tuple[str, str, str], Json]:
    found = [document for document in yaml.safe_load_all(text) if document]
    return {
        (each["kind"], each["metadata"].get("namespace", "streaming"), each["metadata"]["name"]): each for each in found
    }


def kustomized(tmp_path: Path, build: list[str], *components: str) -> dict[tuple[str, str, str], Json]:
    """The output of kustomize for the shipped overlay, with the image as the chart names it."""
    shutil.copytree(DEPLOY, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "example" / "kustomization.yaml"
    found = yaml.safe_load(overlay.read_text())
    found["resources"] = ["../base"]
    found["images"] = [{"name": "autoscaler", "newTag": VERSION}]
    found["components"] = [f"../components/{name}" for name in components]
    overlay.write_text(yaml.safe_dump(found))
    done = subprocess.run([*build, overlay.parent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def plain(found: Any) -> Any:
    """Without the namespace, and without the labels that Helm adds to those of the manifests."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    if not isinstance(found, dict):
        return found
    kept = {key: plain(value) for key, value in found.items() if key not in OF_A_RELEASE}
    return {key: value for key, value in kept.items() if not (key == "namespace" and value == "streaming")}


@pytest.mark.parametrize(
    ("components", "options"),
    [
        ((), ()),
        (("choose-pods", "watch-cluster"), ("--set=rbac.choosePods=true,rbac.watchCluster=true",)),
        (("service-monitor",), ("--set=serviceMonitor.enabled=true",)),
        (("copies",), ("--set=replicas=2", "--set-file=config={config}")),
    ],
    ids=["default", "rights", "monitor", "copies"],
)
def test_the_chart_renders_the_output_of_kustomize(
    tmp_path: Path, build: list[str], components: tuple[str, ...], options: tuple[str, ...]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(STATE)
    expected = kustomized(tmp_path, build, *components)
    if "copies" in components:
        expected["ConfigMap", "streaming", "autoscaler"]["data"]["config.yaml"] = STATE
    made = render(*(option.format(config=config) for option in options))
    assert made.keys() == expected.keys()
    for key, found in made.items():
        assert found["metadata"].pop("labels").keys() > OF_A_RELEASE
        expected[key]["metadata"].pop("labels", None)
        assert plain(found) == plain(expected[key]), key


def test_a_fleet_has_its_roles_in_each_of_its_namespaces() -> None:
    made = render("--set=rbac.fleetNamespaces={prod-a,prod-b},rbac.streamAutoscalers=true", release="scaler")
    for name in ("fleet", "stream-autoscalers"):
        rules = yaml.safe_load((DEPLOY / name / "role.yaml").read_text())["rules"]
        for namespace in ("prod-a", "prod-b"):
            assert made["Role", namespace, f"scaler-autoscaler-{name}"]["rules"] == rules
            binding = made["RoleBinding", namespace, f"scaler-autoscaler-{name}"]
            assert binding["roleRef"]["name"] == f"scaler-autoscaler-{name}"
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": "scaler-autoscaler", "namespace": "streaming"}
            ]


def test_a_release_with_another_name_refers_only_to_its_own_objects() -> None:
    made = render("--set=persistence.size=5Gi,persistence.storageClassName=fast", release="b")
    assert {name for _, _, name in made} == {"b-autoscaler"}
    deployment = made["Deployment", "streaming", "b-autoscaler"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "b"
    selectors = [
        deployment["selector"]["matchLabels"],
        made["Service", "streaming", "b-autoscaler"]["spec"]["selector"],
        made["NetworkPolicy", "streaming", "b-autoscaler"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert selectors == [labels, labels, labels]
    pod = deployment["template"]["spec"]
    assert pod["serviceAccountName"] == "b-autoscaler"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "b-autoscaler"
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == "b-autoscaler"
    claim = made["PersistentVolumeClaim", "streaming", "b-autoscaler"]["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == ("5Gi", "fast")


def test_releases_with_one_name_in_two_namespaces_share_no_cluster_scoped_objects() -> None:
    for namespace in ("streaming", "team-b"):
        made = render("--set=rbac.watchCluster=true", f"--namespace={namespace}")
        name = f"autoscaler-watch-{namespace}"
        assert {name for kind, _, name in made if kind.startswith("Cluster")} == {name}
        binding = made["ClusterRoleBinding", "streaming", name]  # the namespace of cluster-scoped objects in `by_name`
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "autoscaler", "namespace": namespace}]


def test_the_monitor_has_the_labels_and_the_scheme_of_the_values() -> None:
    values = "enabled=true,serviceMonitor.labels.release=prometheus,serviceMonitor.endpoint.scheme=https"
    made = render(f"--set=serviceMonitor.{values}", release="b")
    monitor = made["ServiceMonitor", "streaming", "b-autoscaler"]
    assert (monitor["metadata"]["labels"]["release"], monitor["spec"]["endpoints"][0]["scheme"]) == (
        "prometheus",
        "https",
    )
    assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "b"


def test_the_rules_are_those_of_the_file_with_the_runbook_address_and_the_labels_of_the_values() -> None:
    values = (
        "enabled=true,prometheusRule.labels.release=prometheus,prometheusRule.runbooks=https://docs.acme.example/a/"
    )
    rule = render(f"--set=prometheusRule.{values}", release="b")["PrometheusRule", "streaming", "b-autoscaler"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    text = (DEPLOY.parent / "prometheus" / "rules.yaml").read_text()
    assert rule["spec"] == yaml.safe_load(text.replace("docs.example.com/autoscaler", "docs.acme.example/a"))
    assert not any(kind == "PrometheusRule" for kind, _, _ in render())


def test_the_values_are_applied_to_the_pod(tmp_path: Path) -> None:
    values = {
        "image": {"repository": "registry.example.com/autoscaler", "tag": "1.2.3@sha256:" + "a" * 64},
        "secretName": "secrets",
        "serviceAccount": {"create": False, "name": "of-the-cloud"},
        "persistence": {"enabled": False},
        "resources": {"limits": {"memory": "1Gi"}},
        "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "data"},
        "podSpec": {"nodeSelector": {"disk": "ssd"}, "securityContext": {"fsGroup": 7}},
        "networkPolicy": {"enabled": False},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    made = render(f"--values={file}")
    assert {kind for kind, _, _ in made} == {"ConfigMap", "Role", "RoleBinding", "Service", "Deployment"}
    assert made["RoleBinding", "streaming", "autoscaler"]["subjects"][0]["name"] == "of-the-cloud"
    deployment = made["Deployment", "streaming", "autoscaler"]
    assert list(problems("V1Deployment", deployment, "Deployment")) == []
    template = deployment["spec"]["template"]
    assert (template["metadata"]["annotations"], template["metadata"]["labels"]["team"]) == ({"a": "b"}, "data")
    pod = template["spec"]
    assert (pod["serviceAccountName"], pod["nodeSelector"]) == ("of-the-cloud", {"disk": "ssd"})
    assert (pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsUser"]) == (7, 65532)
    assert next(volume for volume in pod["volumes"] if volume["name"] == "state") == {"name": "state", "emptyDir": {}}
    [container] = pod["containers"]
    assert container["image"] == "registry.example.com/autoscaler:1.2.3@sha256:" + "a" * 64
    assert container["envFrom"][0]["secretRef"]["name"] == "secrets"
    assert container["env"] == [{"name": "AWS_REGION", "value": "eu-central-1"}]
    assert container["resources"] == {"limits": {"memory": "1Gi"}}


@pytest.mark.parametrize("replicas", [1, 2])
def test_copies_can_reach_each_other_whatever_the_network_policy_for_others(tmp_path: Path, replicas: int) -> None:
    config, values = tmp_path / "config.yaml", tmp_path / "values.yaml"
    config.write_text(STATE)
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "metrics"}}}
    values.write_text(yaml.safe_dump({"replicas": replicas, "networkPolicy": {"from": [prometheus]}}))
    made = render(f"--values={values}", f"--set-file=config={config}")
    policy = made["NetworkPolicy", "streaming", "autoscaler"]
    assert list(problems("V1NetworkPolicy", policy, "NetworkPolicy")) == []
    copies = {"podSelector": {"matchLabels": policy["spec"]["podSelector"]["matchLabels"]}}
    assert policy["spec"]["ingress"][0]["from"] == [prometheus, copies][:replicas]


@pytest.mark.parametrize("replicas", [1, 2])
def test_with_tls_and_tokens_the_secrets_are_mounted_and_the_probes_use_them(tmp_path: Path, replicas: int) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(STATE)
    made = render(
        f"--set=replicas={replicas},access.tlsSecret=certificate",
        "--set=access.tokensSecret=tokens,access.tokens={alice,probe}",
        f"--set-file=config={config}",
    )
    deployment = made["Deployment", "streaming", "autoscaler"]
    assert list(problems("V1Deployment", deployment, "Deployment")) == []
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "access")["projected"]
    items = [{"key": key, "path": f"tokens/{key}"} for key in ("alice", "probe")]
    assert volume["sources"] == [{"secret": {"name": "certificate"}}, {"secret": {"name": "tokens", "items": items}}]
    assert volume["defaultMode"] == 0o440
    assert {"name": "access", "mountPath": "/etc/autoscaler-access", "readOnly": True} in container["volumeMounts"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    script = container["readinessProbe"]["exec"]["command"][2]
    compile(script, "the probe", "exec")
    code = [line for line in script.splitlines() if not line.startswith("#")]
    assert [line.partition("(")[0] for line in code[:5]] == [
        "import http.client, json, sys",
        "daemon = http.client.HTTPConnection",
        "import pathlib, ssl",
        "daemon = http.client.HTTPSConnection",
        "token = pathlib.Path",
    ]
    assert [line for line in code if "daemon.request" in line] == [
        'daemon.request("GET", "/readyz", headers={"Authorization": f"Bearer {token}"})'
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--set=replicas=0", r"replicas.*minimum.*1"),
        ("--set=replica=2", r"additional properties 'replica' not allowed"),
        ("--set-string=replicas=two", r"replicas.*want integer"),
        ("--set=image.repository=", r"image/repository|image\.repository"),
        ("--set=image.tag=a b", r"tag"),
        ("--set=rbac.targets={Not_A_Name}", r"targets"),
        ("--set=persistence.size=big", r"size"),
        ("--set=replicas=2", r"config needs daemon\.state"),
        ("--set=access.tlsSecret=a,access.tokens={b}", r"name it as access\.tokensSecret"),
        ("--set=config=clusters: null", r'config: daemon\.listen is 127\.0\.0\.1:8765, .* set "0\.0\.0\.0:8765"'),
        ("--set=config=daemon:", r"config: daemon\.listen is 127\.0\.0\.1:8765"),
        ("--set=config=daemon: {", r"config: not valid YAML: .*line 1"),
        ("--set=config=daemon: {listen: 'localhost:8765'}", r"config: daemon\.listen is localhost:8765"),
        ("--set=config=daemon: {listen: '0.0.0.0:9000'}", r"config: daemon\.listen is 0\.0\.0\.0:9000, .* port 8765"),
    ],
)
def test_wrong_values_are_refused_and_named(option: str, message: str) -> None:
    done = helm("template", "autoscaler", CHART, option, check=False)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr


def test_helm_finds_nothing_wrong_with_the_chart_and_every_value_has_a_schema() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART).stdout
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    for name, section in values.items():
        if isinstance(section, dict) and section:
            assert section.keys() == schema["properties"][name]["properties"].keys()


def test_a_packaged_chart_includes_the_manifests_and_renders_the_same(tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    [package] = tmp_path.iterdir()
    assert package.name == f"autoscaler-{VERSION}.tgz"
    assert package.stat().st_size < 60_000
    rendered = helm("template", "autoscaler", package).stdout
    assert rendered == helm("template", "autoscaler", CHART).stdout
    option = "--set=prometheusRule.enabled=true"
    assert (
        helm("template", "autoscaler", package, option).stdout == helm("template", "autoscaler", CHART, option).stdout
    )
