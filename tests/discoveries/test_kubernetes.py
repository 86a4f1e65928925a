"""The discovery `kubernetes`. Tests that inject no fault also run against a real API server, if one is given."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.discoveries.kubernetes import APPLIED, Kubernetes
from autoscaler.ports import AnswerError, Discovery, EdgeError, Member, RefusedError, UnavailableError
from autoscaler.testing import LocalShared
from tests.clients.kubernetes_cluster import SERVERS, Cluster, kubeconfig, open_cluster, until
from tests.clients.kubernetes_server import (
    DEPLOYMENTS,
    FLINK,
    NAMESPACES,
    STATEFUL_SETS,
    ApiServer,
    Grants,
    Json,
    Kind,
    Refusal,
)

HTML = "<script>alert('${API_TOKEN}')</script>"
SOON = timedelta(seconds=2)


@pytest.fixture(params=SERVERS)
async def any_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(request.param, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(SERVERS[0], tmp_path) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: Cluster) -> ApiServer:
    return cluster.server


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes_watch.FIRST_PAUSE", 0.05)


def plugin(cluster: Cluster, **more: Any) -> Kubernetes:
    place = {} if more.get("all") else {"namespaces": (cluster.namespace,)}
    return Kubernetes(**{"kubeconfig": cluster.kubeconfig, **place, **more})


SPARK = Kind("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")


@asynccontextmanager
async def connected(plugin: Kubernetes) -> AsyncIterator[Discovery]:
    async with LocalShared() as shared, plugin.connect(shared) as discovery:
        yield discovery


async def shows(discovery: Discovery, check: Callable[[dict[str, Member]], bool]) -> dict[str, Member]:
    async def found() -> dict[str, Member] | None:
        members = {member.id: member for member in await discovery.members()}
        return members if check(members) else None

    return await until(found)


async def fails(discovery: Discovery, error: type[EdgeError]) -> str:
    async def found() -> str | None:
        try:
            await discovery.members()
        except error as caught:
            return str(caught)
        return None

    return await until(found)


async def names(discovery: Discovery) -> list[str]:
    return [str(member.values["name"]) for member in await discovery.members()]


def deployment(name: str, labels: Json | None = None, annotations: Json | None = None) -> Json:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "flink:2.3"}]}}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def many(server: ApiServer, count: int) -> None:
    """Deployments like those of kubectl, without the controllers, which would read all of them each time."""
    fields = {"f:metadata": {"f:labels": {f"f:label-{n}": {} for n in range(20)}}, "f:spec": {"f:replicas": {}}}
    for number in range(count):
        labels = {"autoscale": "streaming", "app": f"job-{number}", "team": f"team-{number % 10}"}
        annotations = {
            "autoscaler/max": str(number % 20),
            "deployment.kubernetes.io/revision": "1",
            APPLIED: "x" * 2000,
        }
        found = deployment(f"job-{number:05}", labels, annotations)
        found["metadata"] |= {"namespace": "jobs", "uid": f"5f0f4c6e-0000-4000-8000-{number:012}"}
        found["metadata"]["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": fields}]
        found["status"] = {"observedGeneration": 1}
        server.put(DEPLOYMENTS, found, "ADDED")


# -- members


async def test_members_are_the_objects_of_the_selector_with_the_variables_of_a_template(any_cluster: Cluster) -> None:
    labels, annotations = {"autoscale": "streaming", "app": "orders"}, {"autoscaler/max": "8", APPLIED: "{}"}
    made = await any_cluster.create(DEPLOYMENTS, deployment("orders", labels, annotations))
    await any_cluster.create(DEPLOYMENTS, deployment("clicks", {"autoscale": "streaming"}))
    await any_cluster.create(DEPLOYMENTS, deployment("web", {"autoscale": "no"}))
    async with connected(plugin(any_cluster, selector="autoscale=streaming")) as discovery:
        assert await names(discovery) == ["clicks", "orders"]
        _, orders = await discovery.members()
    assert orders.id == f"{any_cluster.namespace}/orders"
    values = dict(orders.values)
    shown = values.pop("annotations")
    assert isinstance(shown, dict)
    assert (shown["autoscaler/max"], APPLIED in shown) == ("8", False)
    uid = made["metadata"]["uid"]
    assert values == {"name": "orders", "namespace": any_cluster.namespace, "uid": uid, "labels": labels}


async def test_members_are_added_changed_and_removed_without_a_request(any_cluster: Cluster) -> None:
    here = any_cluster.namespace
    await any_cluster.create(DEPLOYMENTS, deployment("orders", {"team": "a"}))
    async with connected(plugin(any_cluster, selector="team")) as discovery:
        await shows(discovery, lambda members: list(members) == [f"{here}/orders"])
        await any_cluster.create(DEPLOYMENTS, deployment("clicks", {"team": "b"}))
        await shows(discovery, lambda members: list(members) == [f"{here}/clicks", f"{here}/orders"])
        await any_cluster.patch(DEPLOYMENTS, "orders", {"metadata": {"annotations": {"autoscaler/max": "3"}}})
        await shows(discovery, lambda members: "autoscaler/max" in members[f"{here}/orders"].values["annotations"])
        await any_cluster.patch(DEPLOYMENTS, "orders", {"metadata": {"labels": {"team": None}}})
        await shows(discovery, lambda members: list(members) == [f"{here}/clicks"])
        await any_cluster.delete(DEPLOYMENTS, "clicks")
        await shows(discovery, lambda members: not members)
        if any_cluster.kubeconfig.endswith("daemon.kubeconfig"):
            assert [asked.verb for asked in any_cluster.server.requests] == ["list", "watch"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("", ["a", "b", "c"]),
        ("team in (x, y)", ["a", "b"]),
        ("team notin (x),!test", ["b"]),
        ("team != x , team", ["b"]),
        ("team==x", ["a"]),
    ],
)
async def test_a_selector_has_the_syntax_of_kubectl(any_cluster: Cluster, selector: str, found: list[str]) -> None:
    for name, labels in {"a": {"team": "x"}, "b": {"team": "y"}, "c": {"test": "1"}}.items():
        await any_cluster.create(DEPLOYMENTS, deployment(name, labels))
    async with connected(plugin(any_cluster, selector=selector)) as discovery:
        assert await names(discovery) == found


async def test_an_object_that_is_being_deleted_is_not_a_member(cluster: Cluster, server: ApiServer) -> None:
    server.create(DEPLOYMENTS, deployment("orders"), "jobs")
    going = server.create(DEPLOYMENTS, deployment("clicks"), "jobs")
    async with connected(plugin(cluster)) as discovery:
        assert await names(discovery) == ["clicks", "orders"]
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        server.put(DEPLOYMENTS, going)
        await shows(discovery, lambda members: list(members) == ["jobs/orders"])


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        (STATEFUL_SETS, "statefulsets"),
        (FLINK, "flinkdeployments"),
        (FLINK, "flink.apache.org/v1beta1/flinkdeployments"),
        (
            Kind("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication"),
            "sparkoperator.k8s.io/v1beta2/sparkapplications",
        ),
    ],
    ids=str,
)
async def test_any_resource_may_be_found(cluster: Cluster, server: ApiServer, kind: Kind, resource: str) -> None:
    if kind not in server.kinds:
        server.kinds.append(kind)
    found = deployment("clicks", {"autoscale": "streaming"})
    server.put(kind, {**found, "metadata": {**found["metadata"], "namespace": "jobs", "uid": "u"}}, "ADDED")
    async with connected(plugin(cluster, resource=resource)) as discovery:
        assert await names(discovery) == ["clicks"]


async def test_namespaces_are_searched_one_by_one_and_all_only_on_request(cluster: Cluster, server: ApiServer) -> None:
    for namespace in ("prod-a", "prod-b"):
        server.create(NAMESPACES, {"metadata": {"name": namespace}}, "")
        server.create(DEPLOYMENTS, deployment("orders"), namespace)
    server.create(DEPLOYMENTS, deployment("other"), "jobs")
    async with connected(plugin(cluster, namespaces=("prod-b", "prod-a"))) as discovery:
        assert [member.id for member in await discovery.members()] == ["prod-a/orders", "prod-b/orders"]
    assert {asked.namespace for asked in server.requests} == {"prod-a", "prod-b"}
    async with connected(plugin(cluster, all=True)) as discovery:
        assert [member.id for member in await discovery.members()] == ["jobs/other", "prod-a/orders", "prod-b/orders"]
    async with connected(plugin(cluster, namespaces=())) as discovery:  # that of the kubeconfig's context
        assert [member.id for member in await discovery.members()] == ["jobs/other"]


# -- cost


async def test_a_thousand_members_cost_one_list_and_one_watch_even_for_several_fleets(
    cluster: Cluster, server: ApiServer
) -> None:
    many(server, 1000)
    spec = plugin(cluster, selector="autoscale=streaming")
    async with LocalShared() as shared, spec.connect(shared) as one, spec.connect(shared) as other:
        for _ in range(5):
            assert len(await one.members()) == len(await other.members()) == 1000
        await until(lambda: _true(server.watches == [DEPLOYMENTS]))
        async with cluster.target("job-00001", watch="namespace", despite_autoscalers=True).connect(shared) as target:
            assert (await target.describe()).desired == 0
        asked = [(request.verb, request.query.get("labelSelector", "")) for request in server.requests]
        assert asked.count(("list", "autoscale=streaming")) == 2  # one list, in pages of 500
        assert asked.count(("watch", "autoscale=streaming")) == 1


async def _true(value: bool) -> bool | None:
    return value or None


async def test_a_member_takes_less_than_2_kb_whatever_else_its_object_has(cluster: Cluster, server: ApiServer) -> None:
    many(server, 1000)
    async with connected(plugin(cluster, selector="none")) as discovery:  # the client is loaded
        assert await discovery.members() == []
    spec = plugin(cluster, selector="autoscale=streaming", timeout=timedelta(seconds=60))
    tracemalloc.start()
    try:
        async with connected(spec) as discovery:
            assert len(await discovery.members()) == 1000
            gc.collect()
            found = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = found.filter_traces([tracemalloc.Filter(False, "*/aiohttp/web_*"), tracemalloc.Filter(False, "*/tests/*")])
    used = sum(trace.size for trace in ours.traces) / 1000
    assert 500 < used < 2000, f"{used:.0f} bytes a member"


async def test_ten_thousand_members_delay_nothing_for_long(cluster: Cluster, server: ApiServer) -> None:
    many(server, 10_000)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - begun)

    async with connected(plugin(cluster, timeout=timedelta(seconds=60))) as discovery:
        assert len(await discovery.members()) == 10_000  # the server is on this loop, so the list is not measured
        ticking = asyncio.create_task(tick())
        for _ in range(3):
            begun = time.process_time()
            assert len(await discovery.members()) == 10_000
            took = time.process_time() - begun
            await asyncio.sleep(0.01)
        ticking.cancel()
    assert took < 0.1, f"{took:.3f} s of processor time for an answer"
    assert longest < 1, f"the loop was held up for {longest:.2f} s"


# -- faults


async def test_expired_resource_versions_lead_to_a_new_list(cluster: Cluster, server: ApiServer) -> None:
    server.create(DEPLOYMENTS, deployment("orders"), "jobs")
    async with connected(plugin(cluster)) as discovery:
        await shows(discovery, lambda members: list(members) == ["jobs/orders"])
        await until(lambda: _true(server.watches == [DEPLOYMENTS]))
        server.cut_watches()
        server.delete(DEPLOYMENTS, "jobs", "orders")
        server.create(DEPLOYMENTS, deployment("clicks"), "jobs")
        server.compact()
        await shows(discovery, lambda members: list(members) == ["jobs/clicks"])
    assert len(server.asked("list")) == 2


async def test_members_are_unknown_once_the_watch_is_stale_and_known_again_later(
    cluster: Cluster, server: ApiServer
) -> None:
    server.create(DEPLOYMENTS, deployment("orders"), "jobs")
    async with connected(plugin(cluster, max_age=SOON)) as discovery:
        assert await names(discovery) == ["orders"]
        outage = server.fault("*", "drop", times=10**6)
        server.cut_watches()
        message = await fails(discovery, UnavailableError)
        assert "watch on deployments.apps in namespace jobs: no event for" in message
        assert "the last known state is stale: " in message
        outage.times = 0
        await until(lambda: _known(discovery))


async def _known(discovery: Discovery) -> Sequence[Member] | None:
    try:
        return await discovery.members()
    except EdgeError:
        return None


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_missing_permission_in_one_namespace_is_named_and_no_partial_result_is_returned(
    cluster: Cluster, server: ApiServer, tmp_path: Path, verb: str
) -> None:
    for namespace in ("prod-a", "prod-b"):
        server.create(NAMESPACES, {"metadata": {"name": namespace}}, "")
        server.create(DEPLOYMENTS, deployment("orders"), namespace)
    rule = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]}
    less = {**rule, "verbs": [other for other in ("list", "watch") if other != verb]}
    config = kubeconfig(tmp_path / "some", server, "some", Grants([("prod-a", rule), ("prod-b", less)]))
    spec = plugin(cluster, kubeconfig=config, namespaces=("prod-a", "prod-b"))
    async with connected(spec) as discovery:
        message = await fails(discovery, RefusedError)
        assert f"this needs {verb} on deployments.apps in namespace prod-b: see deploy/kubernetes" in message
        server.users["some"] = Grants([("prod-a", rule), ("prod-b", rule)])
        assert len(await until(lambda: _known(discovery))) == 2


async def test_searching_all_namespaces_without_a_cluster_role_is_refused_by_that_name(
    cluster: Cluster, server: ApiServer, tmp_path: Path
) -> None:
    rule = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]}
    config = kubeconfig(tmp_path / "some", server, "some", Grants([("jobs", rule)]))
    async with connected(plugin(cluster, kubeconfig=config, all=True)) as discovery:
        with pytest.raises(RefusedError, match=r"this needs list on deployments.apps in all namespaces"):
            await discovery.members()


async def test_a_resource_that_is_not_installed_is_refused(cluster: Cluster) -> None:
    async with connected(plugin(cluster, resource="flinkdeployments")) as discovery:
        with pytest.raises(RefusedError, match=r"no flinkdeployments.flink.apache.org.*CRD installed"):
            await discovery.members()


async def test_a_removed_resource_is_not_a_fleet_without_members(cluster: Cluster, server: ApiServer) -> None:
    server.kinds.append(FLINK)
    server.put(FLINK, {"metadata": {"name": "clicks", "namespace": "jobs"}, "spec": {}}, "ADDED")
    async with connected(plugin(cluster, resource="flinkdeployments")) as discovery:
        assert await names(discovery) == ["clicks"]
        await until(lambda: _true(server.watches == [FLINK]))
        server.kinds.remove(FLINK)
        server.cut_watches()

        async def answer() -> Exception | int | None:
            try:
                found = len(await discovery.members())
            except RefusedError as error:
                return error
            return None if found else 0

        assert "CRD installed" in str(await until(answer))
        for _ in range(5):  # also after the cached members were dropped
            await asyncio.sleep(0.1)
            with pytest.raises(RefusedError, match="CRD installed"):
                await discovery.members()


async def test_a_selector_that_the_server_does_not_accept_is_an_error(cluster: Cluster, server: ApiServer) -> None:
    refusal = Refusal(400, "BadRequest", 'unable to parse requirement: values[0][team]: Invalid value: "x": too long')
    server.fault("list", "refuse", DEPLOYMENTS, refusal=refusal, times=9)
    async with connected(plugin(cluster, selector=f"team={'x' * 64}")) as discovery:
        with pytest.raises(AnswerError, match=r"list on deployments.apps in namespace jobs: unable to parse"):
            await discovery.members()


async def test_long_lists_are_paged_and_complete_or_an_error(
    cluster: Cluster, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes_watch.PAGE_SIZE", 4)
    many(server, 10)
    old = Refusal(410, "Expired", "the continue token is too old")
    second = server.fault("list", "refuse", refusal=old, times=3)  # attempts of one request
    second.to = lambda asked: asked.verb == "list" and "continue" in asked.query
    async with connected(plugin(cluster)) as discovery:
        with pytest.raises(UnavailableError, match=r"no longer kept: list on deployments.apps"):
            await discovery.members()
        assert len(await until(lambda: _known(discovery))) == 10


@pytest.mark.parametrize("act", ["nonsense", "cut", "drop"])
async def test_an_invalid_answer_of_an_api_server_is_a_temporary_error(
    cluster: Cluster, server: ApiServer, act: str
) -> None:
    server.create(DEPLOYMENTS, deployment("orders"), "jobs")
    spoilt = server.fault("list", act, DEPLOYMENTS, times=10**6)
    async with connected(plugin(cluster)) as discovery:
        message = await fails(discovery, EdgeError)
        assert "list on deployments.apps in namespace jobs" in message
        spoilt.times = 0
        assert [member.id for member in await until(lambda: _known(discovery))] == ["jobs/orders"]


@pytest.mark.parametrize("labels", [["a"], {"a": 1}, {"a": {"b": "c"}}, "a"], ids=str)
async def test_invalid_labels_are_an_error(cluster: Cluster, server: ApiServer, labels: object) -> None:
    found = deployment("orders")
    found["metadata"] |= {"namespace": "jobs", "labels": labels}
    server.put(DEPLOYMENTS, found, "ADDED")
    async with connected(plugin(cluster)) as discovery:
        with pytest.raises(AnswerError, match="was not answered with a Kubernetes list"):
            await discovery.members()


async def test_values_are_passed_on_unchanged_however_long_or_odd(cluster: Cluster, server: ApiServer) -> None:
    values = {"note": "x" * 65_536, "page": HTML, "control": "a\x00b\nc", "empty": ""}
    server.create(DEPLOYMENTS, deployment("orders", {"odd": HTML}, values), "jobs")
    async with connected(plugin(cluster)) as discovery:
        [member] = await discovery.members()
        assert member.values["annotations"] == values
        assert member.values["labels"] == {"odd": HTML}
        server.create(DEPLOYMENTS, deployment("clicks", {}, {"note": "y" * 1_000_000}), "jobs")  # in an event
        await shows(discovery, lambda members: len(members) == 2)


# -- parameters


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"resource": "deployment"}, "resource: must be one of .* did you mean 'deployments'?"),
        ({"resource": "flinkdeployments.flink.apache.org/v1beta1"}, "resource: must be one of .* group/version/plural"),
        ({"selector": "autoscale=streaming,"}, "selector: must be a label selector"),
        ({"selector": "a in b"}, "selector: "),
        ({"selector": "a=b c"}, "selector: "),
        ({"selector": "a=<b>"}, "selector: "),
        ({"namespaces": ("Prod",)}, "namespaces: must be names of namespaces, not 'Prod'"),
        ({"namespaces": ("a", "a")}, "namespaces: must not name one twice"),
        ({"namespaces": ("a",), "all": True}, "all: has no effect with namespaces"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
        ({"max_age": timedelta(seconds=1)}, "max_age: must be 2s or more"),
    ],
)
def test_invalid_parameters_are_refused(parameters: Json, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Kubernetes(**parameters)
