"""The discovery `stream-autoscalers`: what a resource may set, what it may not, and its status."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.config import load
from autoscaler.config.model import MemberCluster
from autoscaler.core.parameters import ParameterError
from autoscaler.discoveries.stream_autoscalers import Live, StreamAutoscalers
from autoscaler.ports import ConfigurationError, Member, MemberStatus, MembersWithControls, RefusedError
from autoscaler.targets.kubernetes.target import Kubernetes, Watch
from autoscaler.testing import LocalShared
from tests.clients.kubernetes_cluster import SERVERS, Cluster, kubeconfig, open_cluster, until
from tests.clients.kubernetes_server import EVENTS, STREAMS, Grants, Json

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
SPEC: Json = {
    "target": {"type": "kubernetes", "name": "orders"},
    "min": 2,
    "max": 8,
    "interval": "10s",
    "metrics": {"lag": {"source": "prom", "query": "lag{job='${name}'}"}},
    "policies": {"lag": {"type": "target-tracking", "metric": "lag", "target": 100}},
}


def resource(name: str = "orders", spec: object = SPEC, **metadata: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "jobs", "uid": "u1", **metadata}, "spec": spec}


def kept(spec: object, plugin: StreamAutoscalers | None = None) -> Member:
    found = resource(spec=spec, resourceVersion="1")
    member = (plugin or StreamAutoscalers()).keep(found)["member"]
    assert isinstance(member, Member)
    return member


def plugin_of(parameters: Json) -> StreamAutoscalers:
    tuples: Json = {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
    return StreamAutoscalers(**tuples)


def expand(tmp_path: Path, spec: object, **more: Any) -> MemberCluster:
    """Store a resource with this spec, and expand its template."""
    plugin = plugin_of(more)
    path = tmp_path / "config.yaml"
    path.write_text(
        "sources: {prom: {type: prometheus, url: 'http://prometheus:9090'}}\n"
        "fleets:\n"
        "  jobs:\n"
        f"    discover: {json.dumps({'type': 'stream-autoscalers', **more})}\n"
        "    name: ${namespace}/${name}\n"
    )
    config = load(path, {"API_TOKEN": "do-not-read-this"})
    assert config.fleets["jobs"].discover == plugin
    return config.fleets["jobs"].template.expand(kept(spec, plugin))


def refused(tmp_path: Path, spec: object, **more: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        expand(tmp_path, spec, **more)
    prefix = f"{tmp_path}/config.yaml:3: fleets.jobs[jobs/orders]"
    assert all(problem.startswith(prefix) for problem in raised.value.problems), raised.value.problems
    return [problem.removeprefix(prefix) for problem in raised.value.problems]


def test_a_resource_is_a_cluster_with_its_target_in_its_own_namespace_and_the_access_of_the_discovery(
    tmp_path: Path,
) -> None:
    member = expand(tmp_path, SPEC, kubeconfig="/etc/kubeconfig", context="prod")
    assert (member.id, member.name, member.sources) == ("jobs/orders", "jobs/orders", {})
    target = member.cluster.target
    access: dict[str, Any] = {"namespace": "jobs", "kubeconfig": "/etc/kubeconfig", "context": "prod"}
    assert target == Kubernetes(name="orders", watch=Watch.NAMESPACE, **access)
    limits = member.cluster.spec.limits
    assert (limits.minimum, limits.maximum, member.cluster.interval) == (2, 8, timedelta(seconds=10))
    assert getattr(member.cluster.metrics["lag"].query, "query", None) == "lag{job='orders'}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"target": {"type": "local", "command": "rm"}}, ": spec.target.type: must be one of kubernetes, not local"),
        ({"target": {"type": ["kubernetes"]}}, ": spec.target.type: must be one of kubernetes, not list"),
        ({"target": "kubernetes"}, ": spec.target: missing; expected a mapping with `type` and its parameters"),
        (
            {"target": {"type": "kubernetes", "name": "db", "namespace": "kube-system"}},
            ": spec.target.namespace: must be left out: the target is in jobs",
        ),
        (
            {"target": {"type": "kubernetes", "name": "db", "kubeconfig": "/root/.kube/config"}},
            ": spec.target.kubeconfig: must be left out: the target uses the discovery's access",
        ),
        (
            {"target": {"type": "kubernetes", "name": "db", "context": "other"}},
            ": spec.target.context: must be left out: the target uses the discovery's access",
        ),
        (
            {"metrics": {"lag": {"source": "prom", "query": "${API_TOKEN}"}}},
            ".spec.metrics.lag.query: ${API_TOKEN} is an environment variable, which only the daemon's own file",
        ),
        (
            {"sources": {"own": {"type": "prometheus", "url": "http://evil", "ca_file": "/etc/shadow"}}},
            ".spec.sources.own.ca_file: names a file or directory, which only the daemon's own file may have",
        ),
        (
            {"sources": {"own": {"type": "prometheus", "url": "http://evil", "token": "e"}}},
            ".spec.sources.own.token: is a secret, which only the daemon's own file may have",
        ),
        (
            {"sources": {"prom": {"type": "prometheus", "url": "http://evil"}}},
            ".spec.sources.prom: the file has a source of this name; give this one another",
        ),
        ({"min": 9}, ".spec.min: must not be above max (8), not 9"),
        ({"maximum": 9}, ".spec.maximum: unknown key"),
        ({"max": "${labels.max}"}, ".spec.max: ${labels.max} has no value and no default; there are none"),
        ({"max": "${labels.}"}, ".spec.max: ${labels.} is not an expression"),
        ({"combine": "x" * 10_001}, ".spec.combine: longer than 10,000 characters"),
        (
            {"metrics": {f"m{number}": {"source": "prom"} for number in range(2000)}},
            ": more than 2,000 values in all",
        ),
    ],
)
def test_forbidden_settings_of_a_resource_are_refused_with_their_path(
    tmp_path: Path, change: Json, problem: str
) -> None:
    found = refused(tmp_path, {**SPEC, **change})
    assert any(problem in line for line in found), found
    assert "do-not-read-this" not in str(found)


def test_a_missing_or_endlessly_nested_spec_is_a_problem_of_its_resource_only(tmp_path: Path) -> None:
    assert refused(tmp_path, None) == [": spec.target: missing; expected a mapping with `type` and its parameters"]
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    [problem] = refused(tmp_path, {**SPEC, "combine": deep})
    assert "nested more than 100 levels deep" in problem


def test_other_targets_are_possible_only_if_allowed(tmp_path: Path) -> None:
    spec = {**SPEC, "target": {"type": "advice"}}
    assert refused(tmp_path, spec) == [": spec.target.type: must be one of kubernetes, not advice"]
    assert type(expand(tmp_path, spec, allow=["advice", "kubernetes"]).cluster.target).__name__ == "Advice"


def test_invalid_parameters(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="allow"):
        StreamAutoscalers(allow=())
    with pytest.raises(ParameterError, match="namespaces"):
        StreamAutoscalers(namespaces=("Not A Name",))
    path = tmp_path / "config.yaml"
    path.write_text(
        "fleets:\n  jobs:\n    discover: {type: stream-autoscalers}\n    name: ${name}\n    template: {max: 1}\n"
        "  others:\n    discover: {type: kubernetes}\n    name: ${name}\n"
    )
    with pytest.raises(ConfigurationError) as raised:
        load(path, {})
    assert [problem.removeprefix(f"{path}:") for problem in raised.value.problems] == [
        "5: fleets.jobs.template: must be left out: the members of this discovery have templates of their own",
        "6: fleets.others.template: missing; expected a mapping",
    ]


def test_controls_in_the_annotations_of_a_resource_are_for_its_cluster() -> None:
    plugin = StreamAutoscalers()
    assert isinstance(plugin, MembersWithControls)
    annotations = {"autoscaler/hold": "12", "autoscaler/paused": "perhaps", "team": "clicks"}
    member = plugin.keep(resource(resourceVersion="1", annotations=annotations))["member"]
    [held], [remark] = plugin.controls(member)
    assert (held.kind, held.replicas, held.at, held.until) == ("hold", 12, None, None)
    assert held.by == "the annotation autoscaler/hold of streamautoscalers jobs/orders"
    assert remark.startswith("the annotation autoscaler/paused of streamautoscalers jobs/orders is 'perhaps', expected")
    assert plugin.controls(kept(SPEC)) == ((), ())
    # As another client would store it.
    assert plugin.controls(Member("jobs/orders", {"annotations": "nonsense"})) == ((), ())


# -- against a server


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(SERVERS[0], tmp_path) as cluster:
        cluster.define(STREAMS)
        yield cluster


@asynccontextmanager
async def connected(plugin: StreamAutoscalers, *, dry_run: bool = False) -> AsyncIterator[Live]:
    async with LocalShared() as shared:
        shared.dry_run = dry_run  # type: ignore[attr-defined]  # as that of the daemon has it
        async with plugin.connect(shared) as live:
            assert isinstance(live, Live)
            yield live


def status(**more: Any) -> MemberStatus:
    usual = {"at": NOON, "size": 2, "proposed": 4, "reason": "rescale", "message": "2 to 4", "rescaled_at": NOON}
    return MemberStatus(**{**usual, **more})


async def seen(live: Live, check: Callable[[dict[str, Member]], bool]) -> None:
    async def found() -> bool | None:
        return check({member.id: member for member in await live.members()}) or None

    await until(found)


def events(cluster: Cluster) -> list[tuple[str, str, str]]:
    found = cluster.server.objects.get(EVENTS, {}).values()
    return [(event["type"], event["reason"], event["message"]) for event in found]


async def test_the_status_of_a_resource_is_written_and_its_changes_are_events(cluster: Cluster, tmp_path: Path) -> None:
    rules: list[Json] = [
        {"apiGroups": [STREAMS.group], "resources": [STREAMS.plural], "verbs": ["list", "watch"]},
        {"apiGroups": [STREAMS.group], "resources": [f"{STREAMS.plural}/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    grants = Grants([("jobs", rule) for rule in rules])
    config = kubeconfig(tmp_path / "role", cluster.server, "role", grants)
    await cluster.create(STREAMS, resource())
    async with connected(StreamAutoscalers(kubeconfig=config)) as live:
        await seen(live, lambda members: set(members) == {"jobs/orders"})
        await live.report("jobs/orders", status())
        written = (await cluster.get(STREAMS, "orders"))["status"]
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Decided",
            "message": "2 to 4",
            "lastTransitionTime": "2026-07-01T12:00:00Z",
            "observedGeneration": 1,
        }
        assert written == {
            "observedGeneration": 1,
            "size": 2,
            "proposedSize": 4,
            "reason": "rescale",
            "message": "2 to 4",
            "lastRescaleTime": "2026-07-01T12:00:00Z",
            "conditions": [condition],
        }
        assert events(cluster) == [("Normal", "Rescaled", "2 to 4")]
        later = NOON + timedelta(minutes=5)
        await live.report("jobs/orders", status(at=later, rescaled_at=later, message="4 to 6"))
        assert events(cluster)[1:] == [("Normal", "Rescaled", "4 to 6")]
        wrong = status(at=later, rescaled_at=later, problem="config.yaml:4: spec.max: <b>" + "é" * 1000, refused=True)
        for _ in range(2):
            await live.report("jobs/orders", wrong)
        kind, reason, message = events(cluster)[2]
        assert (kind, reason, len(events(cluster))) == ("Warning", "SpecRefused", 3)
        assert message.startswith("config.yaml:4: spec.max: <b>éé")
        assert len(message.encode()) <= 1000
        [condition] = (await cluster.get(STREAMS, "orders"))["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "SpecRefused")
        assert condition["lastTransitionTime"] == "2026-07-01T12:05:00Z"
        await live.report("jobs/orders", status(at=later, rescaled_at=later))
        assert [event[1] for event in events(cluster)] == ["Rescaled", "Rescaled", "SpecRefused", "Recovered"]
    assert grants.unused == set()


async def test_the_transition_time_of_a_condition_is_kept_while_it_holds_even_across_a_restart(
    cluster: Cluster,
) -> None:
    await cluster.create(STREAMS, resource())
    for minute in range(3):
        async with connected(StreamAutoscalers(kubeconfig=cluster.kubeconfig, namespaces=("jobs",))) as live:
            await seen(live, bool)
            at = NOON + timedelta(minutes=minute)
            await live.report("jobs/orders", status(at=at, problem="no metric"))
        [condition] = (await cluster.get(STREAMS, "orders"))["status"]["conditions"]
        assert condition["lastTransitionTime"] == "2026-07-01T12:00:00Z"
    assert events(cluster) == [("Normal", "Rescaled", "2 to 4"), ("Warning", "Troubled", "no metric")]


async def test_a_resource_that_was_deleted_meanwhile_is_not_an_error(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await cluster.create(STREAMS, resource())
    async with connected(StreamAutoscalers(kubeconfig=cluster.kubeconfig, namespaces=("jobs",))) as live:
        await seen(live, bool)
        cluster.server.fault("patch", "lose", STREAMS)
        cluster.server.delete(STREAMS, "jobs", "orders")
        await live.report("jobs/orders", status())
        await seen(live, lambda members: not members)
        await live.report("jobs/orders", status())
    assert events(cluster) == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_without_the_permission_the_error_names_the_rule(cluster: Cluster, tmp_path: Path) -> None:
    rules: Json = {"apiGroups": [STREAMS.group], "resources": [STREAMS.plural], "verbs": ["list", "watch"]}
    config = kubeconfig(tmp_path / "role", cluster.server, "role", Grants([("jobs", rules)]))
    await cluster.create(STREAMS, resource())
    async with connected(StreamAutoscalers(kubeconfig=config)) as live:
        await seen(live, bool)
        with pytest.raises(RefusedError, match=r"patch on streamautoscalers\.reactive-autoscaler\.internal/status"):
            await live.report("jobs/orders", status())


async def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    await cluster.create(STREAMS, resource())
    plugin = StreamAutoscalers(kubeconfig=cluster.kubeconfig, namespaces=("jobs",))
    async with connected(plugin, dry_run=True) as live:
        await seen(live, bool)
        await live.report("jobs/orders", status())
    assert not (await cluster.get(STREAMS, "orders")).get("status")
    assert cluster.server.asked("patch") == cluster.server.asked("create", EVENTS) == []


def test_a_changed_status_is_not_a_changed_member() -> None:
    plugin = StreamAutoscalers()
    before = plugin.keep(resource(resourceVersion="1", generation=1))
    changed = {**resource(resourceVersion="2", generation=1), "status": {"size": 3, "conditions": [{"type": "Ready"}]}}
    assert plugin.keep(changed)["member"] == before["member"]
    assert plugin.keep(resource(spec={**SPEC, "max": 9}, resourceVersion="3"))["member"] != before["member"]
    assert replace(before["member"], values={}) != before["member"]
