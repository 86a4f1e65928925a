"""The example of a fleet on Kubernetes: found with the rights of deploy/kubernetes/fleet, filled into its template."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from autoscaler.config import load
from autoscaler.discoveries.kubernetes import Kubernetes
from autoscaler.ports import ConfigurationError, Member
from autoscaler.sources.flink import Flink
from autoscaler.targets.kubernetes.target import Kubernetes as Target
from autoscaler.targets.kubernetes.target import Watch
from autoscaler.testing import LocalShared
from tests.clients.kubernetes_cluster import SERVERS, kubeconfig, open_cluster
from tests.clients.kubernetes_server import DEPLOYMENTS, NAMESPACES, Grants, Json

ROOT = Path(__file__).parents[2]
NAMES = ("prod-a", "prod-b")
HTML = "<script>alert(1)</script>"


def job(name: str, annotations: Json) -> Json:
    labels = {"autoscale": "streaming", "app": name}
    template = {"metadata": {"labels": {"app": name}}, "spec": {}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": spec}


async def found(directory: Path, discover: Kubernetes) -> list[Member]:
    """The members of a cluster with two valid jobs and two that the template cannot use."""
    rules = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "fleet" / "role.yaml").read_text())["rules"]
    async with open_cluster(SERVERS[0], directory) as cluster:
        for namespace in NAMES:
            cluster.server.create(NAMESPACES, {"metadata": {"name": namespace}}, "")
        cluster.server.create(
            DEPLOYMENTS, job("orders", {"autoscaler/max": "20", "autoscaler/objective": "5m"}), "prod-a"
        )
        cluster.server.create(DEPLOYMENTS, job("orders", {}), "prod-b")
        cluster.server.create(DEPLOYMENTS, job("page", {"autoscaler/max": HTML}), "prod-a")
        cluster.server.create(DEPLOYMENTS, job("long", {"autoscaler/max": "9" * 65_536}), "prod-b")
        grants = Grants([(namespace, rule) for namespace in NAMES for rule in rules])
        config = kubeconfig(directory / "fleet", cluster.server, "fleet", grants)
        plugin = dataclasses.replace(discover, kubeconfig=config)
        async with LocalShared() as shared, plugin.connect(shared) as discovery:
            return list(await discovery.members())


async def test_the_example_scales_labelled_objects_and_one_bad_annotation_affects_only_its_member(
    tmp_path: Path,
) -> None:
    fleet = load(ROOT / "examples" / "flink-fleet.yaml", {}).fleets["streaming"]
    assert isinstance(fleet.discover, Kubernetes)
    members = {member.id: member for member in await found(tmp_path, fleet.discover)}
    assert list(members) == ["prod-a/orders", "prod-a/page", "prod-b/long", "prod-b/orders"]
    large, small = (fleet.template.expand(members[name]) for name in ("prod-a/orders", "prod-b/orders"))
    assert (large.name, small.name) == ("prod-a/orders", "prod-b/orders")
    assert [(one.cluster.spec.limits.minimum, one.cluster.spec.limits.maximum) for one in (large, small)] == [
        (1, 20),
        (1, 8),
    ]
    target = large.cluster.target
    assert target == Target(name="orders", namespace="prod-a", watch=Watch.NAMESPACE)
    [source] = large.sources.values()
    assert isinstance(source, Flink)
    assert source.url == "http://orders-jobmanager.prod-a:8081"
    for bad in ("prod-a/page", "prod-b/long"):
        with pytest.raises(ConfigurationError) as caught:
            fleet.template.expand(members[bad])
        [problem] = caught.value.problems
        assert f"fleets.streaming[{bad}].template.max: " in problem
        assert len(problem) < 1000
