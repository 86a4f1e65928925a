"""The target `kubernetes`. Tests that inject no fault also run against a real API server, if one is given."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml
from aiohttp import web

from autoscaler.clients import kubernetes
from autoscaler.clients import kubernetes_watch as watch
from autoscaler.clients.kubernetes import proxy_of
from autoscaler.clients.kubernetes_annotations import read_controls
from autoscaler.core.model import Bound, Control, ControlKind
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    Notification,
    NotificationKind,
    PluginError,
    RefusedError,
    Severity,
    TargetStatus,
    UnavailableError,
    Worker,
)
from autoscaler.targets.kubernetes.pods import is_worker
from autoscaler.targets.kubernetes.target import Kubernetes, Target, Watch
from autoscaler.testing import LocalShared
from tests.clients.kubernetes_cluster import SERVERS, Cluster, kubeconfig, open_cluster, until
from tests.clients.kubernetes_server import (
    COST,
    DEPLOYMENTS,
    EVENTS,
    FLINK,
    HPAS,
    NAMESPACES,
    PODS,
    QUOTAS,
    REPLICA_SETS,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    ApiServer,
    Grants,
    Json,
    Kind,
    Refusal,
)

KINDS = (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS)
SOON = timedelta(seconds=2)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.fixture(params=SERVERS)
async def any_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(request.param, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(SERVERS[0], tmp_path) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes_watch.FIRST_PAUSE", 0.05)


@asynccontextmanager
async def connected(*plugins: Kubernetes) -> AsyncIterator[list[Target]]:
    async with LocalShared() as shared:
        targets: list[Target] = []
        contexts = [plugin.connect(shared) for plugin in plugins]
        for context in contexts:
            target = await context.__aenter__()
            assert isinstance(target, Target)
            targets.append(target)
        try:
            yield targets
        finally:
            for context in reversed(contexts):
                await context.__aexit__(None, None, None)


async def shows(target: Target, check: Callable[[TargetStatus], bool]) -> TargetStatus:
    async def found() -> TargetStatus | None:
        status = await target.describe()
        return status if check(status) else None

    return await until(found)


async def fails(target: Target, error: type[EdgeError]) -> str:
    async def found() -> str | None:
        try:
            await target.describe()
        except error as caught:
            return str(caught)
        return None

    return await until(found)


class Engine:
    """A workforce with the workers of the test."""

    def __init__(self, *workers: Worker, error: EdgeError | None = None) -> None:
        self._workers, self._error = workers, error

    async def workers(self) -> Sequence[Worker]:
        if self._error:
            raise self._error
        return self._workers

    async def drain(self, worker: Worker) -> None:
        raise RefusedError(f"{worker.id} stays")


def _hpa() -> Json:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tm"}
    return {"metadata": {"name": "by-cpu"}, "spec": {"scaleTargetRef": reference}}


def _forbidden(verb: str, kind: Kind, sub: str = "") -> Refusal:
    """A refusal in the words of RBAC."""
    resource = f"{kind.plural}/{sub}" if sub else kind.plural
    return Refusal(
        403,
        "Forbidden",
        f'{kind} is forbidden: User "system:serviceaccount:jobs:autoscaler" cannot {verb} resource "{resource}" in API '
        f'group "{kind.group}" in the namespace "jobs"',
    )


# -- sizes


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
async def test_a_requested_size_is_shown_at_once_and_its_pods_as_they_become_ready(
    any_cluster: Cluster, kind: Kind
) -> None:
    await any_cluster.workload(kind, "tm", 1)
    async with connected(any_cluster.target("tm", resource=kind.plural)) as [target]:
        status = await shows(target, lambda status: status.desired == 1)
        assert (status.ready, status.floor, status.ceiling) == (0, None, None)
        await target.scale(3)
        assert (await target.describe()).desired == 3
        assert (await any_cluster.get(kind, "tm"))["spec"]["replicas"] == 3
        await any_cluster.up("tm", 2)
        await shows(target, lambda status: status.ready == 2)
        await any_cluster.up("tm", 3)
        await shows(target, lambda status: status == TargetStatus(3, 3))
        await target.scale(0)
        await shows(target, lambda status: status == TargetStatus(0, 0))
        await any_cluster.pods("tm", 0)


async def test_requesting_the_present_size_changes_nothing(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 2)
    async with connected(any_cluster.target("tm")) as [target]:
        await shows(target, lambda status: status.desired == 2)
        await target.scale(2)
        assert (await any_cluster.get(DEPLOYMENTS, "tm"))["metadata"]["generation"] == 1


async def test_a_size_that_another_client_changed_is_kept_and_the_client_is_named(
    any_cluster: Cluster,
) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 2)
    async with connected(any_cluster.target("tm")) as [target]:
        await shows(target, lambda status: status.desired == 2)
        await any_cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 5}}, by="a-person")
        with pytest.raises(RefusedError, match="from 2 to 5 replicas by another client") as caught:
            await target.scale(3)
        assert "3 was not requested" in str(caught.value)
        # The size is known from the refusal; its author only once the watch has shown the object.
        status = await shows(target, lambda status: any("changed" in remark for remark in status.remarks))
        assert status.desired == 5
        assert "the size was changed from 2 to 5 by a-person" in status.remarks
        assert not any("changed" in remark for remark in (await target.describe()).remarks)
        await target.scale(3)
        assert (await any_cluster.get(DEPLOYMENTS, "tm"))["spec"]["replicas"] == 3


async def test_other_changes_of_the_object_do_not_prevent_scaling(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(any_cluster.target("tm")) as [target]:
        await shows(target, lambda status: status.desired == 1)
        for size in (2, 3, 4):
            await any_cluster.patch(DEPLOYMENTS, "tm", {"metadata": {"annotations": {"note": str(size)}}})
            await target.scale(size)
        assert (await any_cluster.get(DEPLOYMENTS, "tm"))["spec"]["replicas"] == 4


async def test_a_missing_object_is_refused_until_it_exists_and_again_after_it_is_deleted(any_cluster: Cluster) -> None:
    async with connected(any_cluster.target("tm")) as [target]:
        with pytest.raises(RefusedError, match=r"there is no tm among the deployments.apps in namespace"):
            await target.describe()
        with pytest.raises(RefusedError, match="there is no tm"):
            await target.scale(1)
        await any_cluster.workload(DEPLOYMENTS, "tm", 1)

        async def found() -> TargetStatus | None:
            try:
                return await target.describe()
            except RefusedError:
                return None

        assert (await until(found)).desired == 1
        await any_cluster.delete(DEPLOYMENTS, "tm")
        assert "tm" in await fails(target, RefusedError)


@pytest.mark.parametrize("watch", list(Watch))
async def test_one_watch_may_cover_an_object_a_namespace_or_everything(any_cluster: Cluster, watch: Watch) -> None:
    await any_cluster.workload(DEPLOYMENTS, "one", 1)
    await any_cluster.workload(DEPLOYMENTS, "two", 2)
    plugins = [any_cluster.target(name, watch=watch) for name in ("one", "two")]
    async with connected(*plugins) as [one, two]:
        await shows(one, lambda status: status.desired == 1)
        await shows(two, lambda status: status.desired == 2)
        await one.scale(4)
        await any_cluster.patch(DEPLOYMENTS, "two", {"spec": {"replicas": 3}})
        await shows(one, lambda status: status.desired == 4)
        await shows(two, lambda status: status.desired == 3)


async def test_all_targets_of_a_namespace_share_one_watch_and_reading_sends_no_request(cluster: Cluster) -> None:
    names = [f"tm-{number}" for number in range(20)]
    for name in names:
        await cluster.workload(DEPLOYMENTS, name, 0)
    async with connected(*(cluster.target(name, watch="namespace") for name in names)) as targets:
        for _ in range(5):
            for target in targets:
                await target.describe()
        await watching(cluster)
        kinds = [request.kind for request in cluster.server.requests]
        assert kinds.count(DEPLOYMENTS) <= 2  # one list, one watch
        assert kinds.count(HPAS) <= 2
        assert cluster.server.watches.count(DEPLOYMENTS) == 1
    assert await until(lambda: _true(not cluster.server.watches))


async def test_with_more_watches_than_pooled_connections_changes_are_still_sent(
    cluster: Cluster,
) -> None:
    names = [f"tm-{number}" for number in range(120)]  # aiohttp's own limit is 100
    for name in names:
        cluster.server.create(DEPLOYMENTS, _bare(name, 0), "jobs")
    async with connected(*(cluster.target(name) for name in names)) as targets:
        await until(lambda: _true(cluster.server.watches.count(DEPLOYMENTS) == len(names)))
        assert [(await target.describe()).desired for target in targets] == [0] * len(names)
        await targets[-1].scale(1)
        await shows(targets[-1], lambda status: status.desired == 1)


async def _true(value: bool) -> bool | None:
    return value or None


async def test_the_same_name_in_another_namespace_is_another_target(cluster: Cluster) -> None:
    cluster.server.create(*_namespace("other"))
    cluster.server.create(DEPLOYMENTS, _bare("tm", 7), "other")
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm", watch=Watch.CLUSTER)) as [target]:
        await target.scale(2)
        assert (await target.describe()).desired == 2
    assert cluster.server.get(DEPLOYMENTS, "other", "tm")["spec"]["replicas"] == 7


def _namespace(name: str) -> tuple[Kind, Json, str]:
    return NAMESPACES, {"metadata": {"name": name}}, ""


def _bare(name: str, replicas: int) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


# -- other controllers


async def test_an_hpa_on_the_same_target_is_named_and_nothing_is_scaled(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 2)
    await any_cluster.workload(DEPLOYMENTS, "jm", 1)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tm"}
    await any_cluster.create(
        HPAS,
        {"metadata": {"name": "by-cpu"}, "spec": {"scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 4}},
    )
    plugins = (
        any_cluster.target("tm"),
        any_cluster.target("jm"),
        any_cluster.target("tm", despite_autoscalers=True),
    )
    async with connected(*plugins) as [held, free, bold]:
        status = await shows(held, lambda status: status.floor is not None)
        assert status.floor == status.ceiling == Bound(2, "the HorizontalPodAutoscaler by-cpu scales it too")
        with pytest.raises(RefusedError, match="HorizontalPodAutoscaler by-cpu scales it too") as caught:
            await held.scale(3)
        assert "despite_autoscalers" in str(caught.value)
        assert (await free.describe()).floor is None
        assert (await bold.describe()).floor is None
        await bold.scale(3)
        await any_cluster.delete(HPAS, "by-cpu")
        await shows(held, lambda status: status.floor is None and status.desired == 3)
        await held.scale(4)


async def test_a_missing_keda_is_not_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Most clusters have none, and a log line about a CRD that is not installed looks like a task for the operator."""
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    with caplog.at_level(logging.DEBUG, "autoscaler.clients"):
        async with connected(cluster.target("tm")) as [target]:
            await target.scale(2)
            keda = next(others for others in target._others if others.scope.resource.group == SCALED_OBJECTS.group)
            assert keda.denied
            cluster.define(SCALED_OBJECTS)
            await watching(cluster, SCALED_OBJECTS)
            await until(lambda: _true(not keda.denied))
    assert [record.message for record in caplog.records] == []


@pytest.mark.parametrize(
    ("reference", "annotations", "held"),
    [
        ({"name": "tm"}, {}, True),
        ({"name": "tm", "kind": "Deployment", "apiVersion": "apps/v1"}, {}, True),
        ({"name": "tm", "kind": "StatefulSet", "apiVersion": "apps/v1"}, {}, False),
        ({"name": "other"}, {}, False),
        ({"name": "tm"}, {"autoscaling.keda.sh/paused": "true"}, False),
        ({"name": "tm"}, {"autoscaling.keda.sh/paused": "True"}, False),
        ({"name": "tm"}, {"autoscaling.keda.sh/paused": "false"}, True),
        ({"name": "tm"}, {"autoscaling.keda.sh/paused": "true", "autoscaling.keda.sh/paused-replicas": "2"}, True),
    ],
)
async def test_a_scaled_object_of_keda_is_named_unless_it_is_paused(
    cluster: Cluster, reference: Json, annotations: Json, held: bool
) -> None:
    cluster.server.kinds.append(SCALED_OBJECTS)
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    metadata = {"name": "by-lag", "annotations": annotations}
    await cluster.create(SCALED_OBJECTS, {"metadata": metadata, "spec": {"scaleTargetRef": reference}})
    async with connected(cluster.target("tm")) as [target]:
        status = await target.describe()
        assert status.floor == (Bound(2, "the KEDA ScaledObject by-lag scales it too") if held else None)


async def test_a_scaled_object_disappears_with_its_crd_even_while_no_watch_was_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes_watch.MAX_REFUSED_PAUSE", 0.1)
    cluster.server.kinds.append(SCALED_OBJECTS)
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    await cluster.create(SCALED_OBJECTS, {"metadata": {"name": "by-lag"}, "spec": {"scaleTargetRef": {"name": "tm"}}})
    async with connected(cluster.target("tm")) as [target]:
        await shows(target, lambda status: status.floor is not None)
        await watching(cluster, SCALED_OBJECTS)
        cluster.server.kinds.remove(SCALED_OBJECTS)
        cluster.server.cut_watches(SCALED_OBJECTS)
        await shows(target, lambda status: status.floor is None)


async def test_nothing_is_scaled_before_other_controllers_are_known(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tm"}
    await cluster.create(HPAS, {"metadata": {"name": "by-cpu"}, "spec": {"scaleTargetRef": reference}})
    busy = cluster.server.fault("list", "refuse", HPAS, refusal=Refusal(503, "ServiceUnavailable", "soon"), times=10**6)
    async with connected(cluster.target("tm")) as [target]:
        with pytest.raises(UnavailableError, match=r"another controller \(horizontalpodautoscalers"):
            await target.scale(3)
        busy.times = 0
        assert "by-cpu" in (await until(lambda: _describes(target))).floor.reason  # type: ignore[union-attr]
    assert not cluster.server.asked("patch")


async def test_a_denied_list_of_other_controllers_is_logged_once(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.server.kinds.append(SCALED_OBJECTS)
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]},
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]},
    ]
    grants = Grants([("jobs", rule) for rule in rules])
    config = kubeconfig(tmp_path / "limited", cluster.server, "limited", grants)
    with caplog.at_level(logging.WARNING, "autoscaler.clients"):
        async with connected(cluster.target("tm", kubeconfig=config)) as [target]:
            for size in (3, 4):
                await target.scale(size)
                assert (await target.describe()).desired == size
    errors = [record.__dict__["error"] for record in caplog.records]
    assert len(errors) == 2
    for text in errors:
        assert "this needs list on" in text
        assert "see deploy/kubernetes" in text


@pytest.mark.parametrize("times", [2, 3])
async def test_refusals_of_a_starting_api_server_are_retried_and_nothing_is_scaled_meanwhile(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    await cluster.create(HPAS, _hpa())
    cluster.server.fault("list", "refuse", HPAS, refusal=_forbidden("list", HPAS), times=times)  # no RBAC yet
    with caplog.at_level(logging.INFO, "autoscaler.clients"):
        async with connected(cluster.target("tm")) as [target]:
            with pytest.raises(RefusedError, match="HorizontalPodAutoscaler by-cpu scales it too"):
                await target.scale(8)
            assert (await target.describe()).ceiling == Bound(2, "the HorizontalPodAutoscaler by-cpu scales it too")
    assert not cluster.server.asked("patch")
    assert len(cluster.server.asked("list", HPAS)) == times + 1
    assert not [record for record in caplog.records if record.__dict__.get("resource") == str(HPAS)]


async def test_a_crd_that_a_starting_api_server_does_not_serve_yet_is_requested_again(cluster: Cluster) -> None:
    cluster.server.kinds.append(SCALED_OBJECTS)
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    await cluster.create(SCALED_OBJECTS, {"metadata": {"name": "by-lag"}, "spec": {"scaleTargetRef": {"name": "tm"}}})
    cluster.server.fault("list", "refuse", SCALED_OBJECTS, refusal=Refusal(404, "NotFound", "no such page"))
    async with connected(cluster.target("tm")) as [target]:
        with pytest.raises(RefusedError, match="ScaledObject by-lag scales it too"):
            await target.scale(3)
    assert not cluster.server.asked("patch")


async def test_a_refusal_that_lasts_longer_than_the_timeout_is_reported_as_the_reason(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    cluster.server.fault("list", "refuse", HPAS, refusal=_forbidden("list", HPAS), times=3)
    cluster.server.fault("list", "slow", HPAS, seconds=60.0, times=99)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=1))) as [target]:
        with pytest.raises(UnavailableError, match=r"\(horizontal.* is not known at present: this needs list"):
            await target.describe()


async def test_an_hpa_created_while_the_api_server_restarts_is_noticed(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).floor is None
        await watching(cluster, HPAS)
        cluster.server.fault("watch", "refuse", HPAS, refusal=_forbidden("watch", HPAS))
        cluster.server.cut_watches()
        await cluster.create(HPAS, _hpa())
        await shows(target, lambda status: status.floor is not None)


async def test_repeated_refusals_count_as_a_missing_permission_that_is_logged_once_and_may_be_granted_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert watch.MAX_REFUSED_PAUSE == kubernetes.MAX_HOLD == 60, "seconds between two attempts at most"
    monkeypatch.setattr(watch, "MAX_REFUSED_PAUSE", 0.4)
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    refused = [
        cluster.server.fault(verb, "refuse", HPAS, refusal=_forbidden(verb, HPAS), times=10**6)
        for verb in ("watch", "list")
    ]
    with caplog.at_level(logging.INFO, "autoscaler.clients"):
        async with connected(cluster.target("tm")) as [target]:
            await target.scale(3)  # it continues without
            refused[1].times = 0  # a list without a watch is not enough
            await until(lambda: _true(len(cluster.server.asked("watch", HPAS)) >= 3))
            cluster.server.fault("list", "refuse", HPAS, refusal=Refusal(503, "ServiceUnavailable", "soon"))
            await until(lambda: _true(len(cluster.server.asked("watch", HPAS)) >= 5))
            await target.scale(4)
            await cluster.create(HPAS, _hpa())
            refused[0].times = 0
            await shows(target, lambda status: status.floor is not None)
            await watching(cluster, HPAS)
            times = [asked.at for asked in cluster.server.requests if asked.kind is HPAS]
    messages = [record.message for record in caplog.records if record.__dict__.get("resource") == str(HPAS)]
    assert messages == ["cannot watch", "watch resumed"]
    assert max(after - before for before, after in itertools.pairwise(times)) < 2  # it retries at this interval


async def test_a_stale_list_of_other_controllers_is_not_used(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster, HPAS)
        cluster.server.fault("*", "drop", HPAS, times=10**6)
        cluster.server.cut_watches(HPAS)
        [_, hpas] = target._others
        await until(lambda: _true(hpas.error is not None))
        await target.describe()  # not after a short outage
        assert hpas._updated_at is not None
        hpas._updated_at -= 61.0
        with pytest.raises(UnavailableError, match="is not known at present"):
            await target.scale(3)


# -- why pods do not start


async def test_pods_without_a_node_are_reported_with_the_schedulers_message(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 2)
    message = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    for pod in await any_cluster.pods("tm", 2):
        await any_cluster.pod_status(pod, {"conditions": [condition]})
    async with connected(any_cluster.target("tm")) as [target]:

        def reported(status: TargetStatus) -> bool:
            target._pods_listed_at = -1e9  # the pods are listed every ten seconds
            return any(remark.startswith("2 pods pending: 0/") for remark in status.remarks)

        await shows(target, reported)


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        (
            {"image": "flink:9", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            "1 pod cannot get the image: flink:9 (ImagePullBackOff)",
        ),
        (
            {
                "image": "flink:2",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            },
            "1 pod cannot run: container main is in CrashLoopBackOff, last exit code 137, OOMKilled",
        ),
        (
            {"image": "flink:2", "state": {"waiting": {"reason": "CreateContainerConfigError"}}},
            "1 pod cannot run: container main is in CreateContainerConfigError",
        ),
    ],
    ids=["image", "crash", "config"],
)
async def test_pods_that_cannot_run_are_reported_with_the_kubelets_message(
    any_cluster: Cluster, state: Json, remark: str
) -> None:
    await any_cluster.workload(STATEFUL_SETS, "tm", 2)
    pods = await any_cluster.pods("tm", 2)
    await any_cluster.ready(pods[:1])
    container = {"name": "main", "imageID": "", "ready": False, "restartCount": 1, **state}
    await any_cluster.pod_status(pods[1], {"phase": "Pending", "containerStatuses": [container]})
    async with connected(any_cluster.target("tm", resource="statefulsets")) as [target]:
        status = await shows(target, lambda status: status.ready == 1)
        assert remark in status.remarks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
async def test_pods_that_a_quota_forbids_are_reported_without_their_random_names(
    any_cluster: Cluster, kind: Kind
) -> None:
    await any_cluster.create(QUOTAS, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}})
    await any_cluster.workload(kind, "tm", 3)
    async with connected(any_cluster.target("tm", resource=kind.plural, max_age=timedelta(seconds=30))) as [target]:

        def reported(status: TargetStatus) -> bool:
            target._pods_listed_at = -1e9  # the pods are listed every ten seconds
            return any("exceeded quota" in remark for remark in status.remarks)

        status = await shows(target, reported)
        [remark] = [remark for remark in status.remarks if "exceeded quota" in remark]
        assert remark.startswith("pods are not created: exceeded quota: small, requested: pods=1")


async def test_an_old_failure_to_create_pods_is_not_reported_once_they_exist(cluster: Cluster) -> None:
    await cluster.workload(STATEFUL_SETS, "tm", 2)
    await cluster.pods("tm", 2)
    cluster.server._event(STATEFUL_SETS, "jobs", "tm", "create Pod tm-1 failed: exceeded quota: small")
    async with connected(cluster.target("tm", resource="statefulsets")) as [target]:
        assert (await target.describe()).remarks == ()
    assert len(cluster.server.asked("list", PODS)) == 1


@pytest.mark.parametrize(("since", "reported"), [("2026-05-01T12:00:59Z", True), ("2026-05-01T12:01:01Z", False)])
async def test_an_old_failure_to_create_pods_is_not_reported_once_one_was_created_since(
    cluster: Cluster, since: str, *, reported: bool
) -> None:
    await cluster.workload(STATEFUL_SETS, "tm", 2)
    first, second = await cluster.pods("tm", 2)  # the second is created when the first is ready
    first["metadata"]["creationTimestamp"] = since
    cluster.server.put(PODS, first)
    cluster.server.put(PODS, second, "DELETED")
    cluster.server._event(STATEFUL_SETS, "jobs", "tm", "create Pod tm-0 failed: exceeded quota: small")
    [event] = cluster.server.objects[EVENTS].values()
    event["lastTimestamp"] = "2026-05-01T12:01:00Z"
    async with connected(cluster.target("tm", resource="statefulsets")) as [target]:
        remarks = (await target.describe()).remarks
    shown = "pods are not created: create Pod tm-0 failed: exceeded quota: small (at 12:01 UTC)"
    assert remarks == ((shown,) if reported else ())


@pytest.mark.parametrize(
    ("time", "created", "reported"),
    [
        # Of three at a quota of two, the first was evicted and created again: the third is still forbidden.
        ({"lastTimestamp": "2026-05-01T12:01:00Z"}, {"tm-0": "2026-05-01T12:01:30Z"}, True),
        ({"lastTimestamp": "2026-05-01T12:01:00Z"}, {"tm-2": "2026-05-01T12:01:30Z"}, False),
        ({"eventTime": "2026-05-01T12:01:00.250000Z"}, {"tm-2": "2026-05-01T12:01:00Z"}, True),
        ({"eventTime": "2026-05-01T12:01:00.250000Z"}, {"tm-2": "2026-05-01T12:01:01Z"}, False),
    ],
)
async def test_a_failure_to_create_a_pod_is_over_once_it_or_one_with_a_higher_number_was_created(
    cluster: Cluster, time: dict[str, str], created: dict[str, str], *, reported: bool
) -> None:
    await cluster.workload(STATEFUL_SETS, "tm", 4)
    *pods, last = await cluster.pods("tm", 4)
    cluster.server.put(PODS, last, "DELETED")
    for pod in pods:
        pod["metadata"]["creationTimestamp"] = created.get(pod["metadata"]["name"], "2026-05-01T11:00:00Z")
        cluster.server.put(PODS, pod)
    message = 'create Pod tm-2 in StatefulSet tm failed error: pods "tm-2" is forbidden: exceeded quota: small'
    cluster.server._event(STATEFUL_SETS, "jobs", "tm", message)
    [event] = cluster.server.objects[EVENTS].values()
    del event["lastTimestamp"]
    event.update(time)
    async with connected(cluster.target("tm", resource="statefulsets")) as [target]:
        remarks = (await target.describe()).remarks
    assert remarks == (("pods are not created: exceeded quota: small (at 12:01 UTC)",) if reported else ())


async def test_a_slow_list_of_pods_does_not_delay_readings_and_its_result_is_shown_later(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    for pod in await cluster.pods("tm", 2):
        waiting = {"name": "main", "image": "flink:9", "state": {"waiting": {"reason": "ErrImagePull"}}}
        await cluster.pod_status(pod, {"phase": "Pending", "containerStatuses": [waiting]})
    async with connected(cluster.target("tm")) as [target]:
        await target._objects.attempted()
        cluster.server.fault("list", "slow", PODS, seconds=1.0)
        async with asyncio.timeout(0.9):
            assert (await target.describe()).remarks == ()
        await shows(target, lambda status: status.remarks != ())
        assert len(cluster.server.asked("list", PODS)) == 1
        cluster.server.fault("list", "slow", PODS, seconds=60.0)
        target._pods_listed_at = -1e9
        await target.describe()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("pods of")]


async def test_pods_that_wait_for_the_same_image_give_one_remark_whatever_their_waiting_reason(
    cluster: Cluster,
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    for pod, why in zip(await cluster.pods("tm", 2), ("ErrImagePull", "ImagePullBackOff"), strict=True):
        waiting = {"name": "main", "image": "flink:9", "state": {"waiting": {"reason": why}}}
        await cluster.pod_status(pod, {"phase": "Pending", "containerStatuses": [waiting]})
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).remarks == ("2 pods cannot get the image: flink:9 (ImagePullBackOff)",)


async def test_pods_are_listed_only_while_some_are_missing_and_not_at_every_tick(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    await cluster.workload(DEPLOYMENTS, "up", 1)
    await cluster.ready(await cluster.pods("up", 1))
    async with connected(cluster.target("tm"), cluster.target("up")) as [short, up]:
        for _ in range(20):
            await short.describe()
            assert await up.describe() == TargetStatus(1, 1)
    assert len(cluster.server.asked("list", PODS)) == 1


async def test_a_denied_list_of_pods_is_a_remark_and_not_a_failure(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    cluster.server.fault("list", "refuse", PODS, refusal=_forbidden("list", PODS))
    async with connected(cluster.target("tm")) as [target]:
        status = await target.describe()
    assert (status.desired, status.ready) == (2, 0)
    assert "needs list on pods in namespace jobs" in status.remarks[0]


@pytest.mark.parametrize(
    ("status", "remark"),
    [
        ({"replicas": 4, "updatedReplicas": 1}, "a rollout is under way: 1 of 4 pods are of the newest version"),
        ({"replicas": 4}, "a rollout is under way: 0 of 4 pods are of the newest version"),
        ({"replicas": 4, "updatedReplicas": 4}, None),
        ({"replicas": 4, "updatedReplicas": 1, "updateRevision": "2", "currentRevision": "1"}, "1 of 4 pods"),
        ({"replicas": 4, "updatedReplicas": 0, "updateRevision": "1", "currentRevision": "1"}, None),
    ],
)
async def test_a_rollout_is_reported_while_it_is_in_progress(
    cluster: Cluster, status: Json, remark: str | None
) -> None:
    metadata = {"name": "tm", "namespace": "jobs"}
    found = {**_bare("tm", 4), "metadata": metadata, "status": {"readyReplicas": 4, **status}}
    cluster.server.put(DEPLOYMENTS, found, "ADDED")
    async with connected(cluster.target("tm")) as [target]:
        remarks = (await target.describe()).remarks
    assert [remark is not None and remark in text for text in remarks] == ([True] if remark else [])


async def test_a_paused_rollout_is_reported_as_paused(cluster: Cluster) -> None:
    found = {**_bare("tm", 4), "metadata": {"name": "tm", "namespace": "jobs"}}
    found["spec"]["paused"] = True
    found["status"] = {"readyReplicas": 4, "replicas": 4}  # updatedReplicas is omitted when it is 0
    cluster.server.put(DEPLOYMENTS, found, "ADDED")
    async with connected(cluster.target("tm")) as [target]:
        remarks = (await target.describe()).remarks
    assert remarks == ("a rollout is paused: 0 of 4 pods are of the newest version",)


# -- manual controls


@pytest.mark.parametrize("kind", [DEPLOYMENTS, STATEFUL_SETS], ids=lambda kind: kind.plural)
async def test_controls_of_annotations_are_shown_while_the_annotations_exist(any_cluster: Cluster, kind: Kind) -> None:
    await any_cluster.workload(kind, "tm", 2)
    async with connected(any_cluster.target("tm", resource=kind.plural)) as [target]:
        await shows(target, lambda status: status.controls == ())
        orders = {"autoscaler/paused": "down", "autoscaler/hold": "12", "team": "clicks"}
        await any_cluster.patch(kind, "tm", {"metadata": {"annotations": orders}})
        status = await shows(target, lambda status: status.controls != ())
        of = f"of {kind.plural}.apps {any_cluster.namespace}/tm"
        assert status.controls == (
            Control(kind=ControlKind.PAUSE, by=f"the annotation autoscaler/paused {of}", down=True),
            Control(kind=ControlKind.HOLD, by=f"the annotation autoscaler/hold {of}", replicas=12),
        )
        wrong = {"autoscaler/paused": "yes", "autoscaler/hold": "many"}
        await any_cluster.patch(kind, "tm", {"metadata": {"annotations": wrong}})
        status = await shows(target, lambda status: status.controls == ())
        assert status.remarks[:2] == (
            f"the annotation autoscaler/paused {of} is 'yes', expected true, up, down or false: no effect",
            f"the annotation autoscaler/hold {of} is 'many', expected a number of replicas, at most 1000000: no effect",
        )
        await any_cluster.patch(kind, "tm", {"metadata": {"annotations": dict.fromkeys(wrong)}})
        await shows(target, lambda status: not any("annotation" in remark for remark in status.remarks))


@pytest.mark.parametrize(
    ("annotations", "ordered"),
    [
        ({}, []),
        ({"autoscaler/paused": "false"}, []),
        ({"autoscaler/paused": "true"}, [(True, True, None)]),
        ({"autoscaler/paused": "up"}, [(True, False, None)]),
        ({"autoscaler/paused": "False"}, ["'False'"]),
        ({"autoscaler/paused": ""}, ["''"]),
        ({"autoscaler/hold": "0"}, [(False, False, 0)]),
        ({"autoscaler/hold": "1000000"}, [(False, False, 1_000_000)]),
        ({"autoscaler/hold": "1000001"}, ["'1000001'"]),
        ({"autoscaler/hold": "-1"}, ["'-1'"]),
        ({"autoscaler/hold": "1.0"}, ["'1.0'"]),
        ({"autoscaler/hold": "١٢"}, ["'١٢'"]),
        ({"autoscaler/hold": "9" * 10_000}, ["'" + "9" * 39 + "…'"]),
    ],
)
def test_controls_of_annotations(annotations: dict[str, str], ordered: list[Any]) -> None:
    controls, wrong = read_controls(annotations, "deployments prod/x")
    found = [(each.up, each.down, each.replicas) for each in controls]
    assert [*found, *(remark.split(" is ")[1].split(",")[0] for remark in wrong)] == ordered


# -- choice of pods


async def test_the_pods_of_the_least_costly_workers_are_deleted_first(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 4)
    await any_cluster.up("tm", 4)
    pods = await any_cluster.pods("tm", 4)
    costs = dict(zip((pod["metadata"]["name"] for pod in pods), (5.0, 0.0, 9.0, 1.0), strict=True))
    workers = [
        Worker(f"worker {name}", frozenset({name} if cost > 4 else {_pod(pods, name)["status"]["podIP"]}), cost)
        for name, cost in costs.items()
    ]
    async with connected(any_cluster.target("tm", choose_pods=True)) as [target]:
        target.attach(lambda: Engine(*workers))
        await shows(target, lambda status: status.ready == 4)
        await target.scale(2)
        left = await any_cluster.pods("tm", 2)
        assert {costs[pod["metadata"]["name"]] for pod in left} == {5.0, 9.0}
        assert not any(COST in pod["metadata"].get("annotations", {}) for pod in left)
        assert (await target.describe()).remarks == ()


@pytest.mark.parametrize(
    "host",
    ["10.9.1.1", "tm-abc", "10-9-1-1.jobs.pod.cluster.local", "10-9-1-1.workers.jobs.svc.example.com"],
)
def test_a_worker_is_found_by_any_address_that_its_name_resolves_to(host: str) -> None:
    pod = {"metadata": {"name": "tm-abc", "namespace": "jobs"}, "status": {"podIP": "10.9.1.1"}}
    assert is_worker(pod, Worker("w", frozenset({host})))
    other = {"metadata": {"name": "tm-abd", "namespace": "jobs"}, "status": {"podIP": "10.9.1.2"}}
    assert not is_worker(other, Worker("w", frozenset({host})))


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_finished_pods_are_not_chosen_instead_of_running_ones(cluster: Cluster, phase: str) -> None:
    """An evicted pod stays for days after it was replaced, and a ReplicaSet that shrinks deletes another one."""
    await cluster.workload(DEPLOYMENTS, "tm", 3)
    pods = await cluster.pods("tm", 3)
    await cluster.ready(pods)
    names = [pod["metadata"]["name"] for pod in pods]
    ended = {name: pods[0]["metadata"][name] for name in ("labels", "ownerReferences") if name in pods[0]["metadata"]}
    await cluster.create(PODS, {"metadata": {**ended, "name": "tm-evicted"}, "spec": pods[0]["spec"]})
    evicted = await cluster.get(PODS, "tm-evicted")
    await cluster.pod_status(evicted, {"phase": phase, "reason": "Evicted"})
    workers = [Worker(name, frozenset({name}), cost) for name, cost in zip(names, (9.0, 5.0, 1.0), strict=True)]
    async with connected(cluster.target("tm", choose_pods=True)) as [target]:
        target.attach(lambda: Engine(*workers))
        await target.describe()
        await target.scale(2)
        marked = [asked.name for asked in cluster.server.asked("patch", PODS)]
    assert marked == [names[2]]


async def test_pods_are_read_beyond_the_first_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a StatefulSet of more than 1,000 pods seems to lack some, and those are never chosen or explained."""
    monkeypatch.setattr("autoscaler.targets.kubernetes.pods.PAGE_SIZE", 2)
    await cluster.workload(DEPLOYMENTS, "tm", 5)
    pods = await cluster.pods("tm", 5)
    await cluster.ready(pods)
    names = [pod["metadata"]["name"] for pod in pods]
    workers = [
        Worker(name, frozenset({name}), cost) for name, cost in zip(names, (9.0, 5.0, 8.0, 7.0, 1.0), strict=True)
    ]
    async with connected(cluster.target("tm", choose_pods=True)) as [target]:
        target.attach(lambda: Engine(*workers))
        await shows(target, lambda status: status.ready == 5)
        await target.scale(4)
        left = await cluster.pods("tm", 4)
        assert {pod["metadata"]["name"] for pod in left} == set(names[:4])
        assert len(cluster.server.asked("list", PODS)) == 3
        await cluster.pod_status(left[3], {"conditions": [], "phase": "Failed", "reason": "Evicted"})
        status = await shows(target, lambda status: status.ready == 3)
        assert status.remarks[-1] == "1 pod failed: Evicted"


def _pod(pods: Sequence[Json], name: str) -> Json:
    return next(pod for pod in pods if pod["metadata"]["name"] == name)


async def test_pod_deletion_costs_of_a_failed_change_are_removed(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 3)
    pods = await cluster.pods("tm", 3)
    await cluster.ready(pods)
    await cluster.patch(PODS, pods[0]["metadata"]["name"], {"metadata": {"annotations": {COST: "-1"}}})
    await cluster.patch(PODS, pods[1]["metadata"]["name"], {"metadata": {"annotations": {COST: "100"}}})
    names = [pod["metadata"]["name"] for pod in pods]
    workers = [Worker(name, frozenset({name}), cost) for name, cost in zip(names, (9.0, 5.0, 1.0), strict=True)]
    async with connected(cluster.target("tm", choose_pods=True)) as [target]:
        target.attach(lambda: Engine(*workers))
        await target.describe()
        await target.scale(2)
    left = await cluster.pods("tm", 2)
    assert [pod["metadata"].get("annotations", {}) for pod in left] == [{}, {COST: "100"}]
    assert [pod["metadata"]["name"] for pod in left] == names[:2]


@pytest.mark.parametrize(
    ("trouble", "remark"),
    [
        ("no engine", "no engine names the workers"),
        ("engine silent", "the JobManager is away"),
        ("strangers", "no pod is one of the engine's workers"),
        ("forbidden", "needs patch on pods"),
        ("slow", "no time left"),
    ],
)
async def test_the_size_is_reached_even_if_pods_cannot_be_chosen(cluster: Cluster, trouble: str, remark: str) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    pods = await cluster.pods("tm", 2)
    await cluster.ready(pods)
    names = [pod["metadata"]["name"] for pod in pods]
    engine = Engine(*(Worker(name, frozenset({name})) for name in names))
    match trouble:
        case "engine silent":
            engine = Engine(error=UnavailableError("the JobManager is away"))
        case "strangers":
            engine = Engine(Worker("w", frozenset({"10.1.1.1"})))
        case "forbidden":
            cluster.server.fault("patch", "refuse", PODS, refusal=_forbidden("patch", PODS))
        case "slow":
            cluster.server.fault("patch", "slow", PODS, seconds=5.0)
    async with connected(cluster.target("tm", choose_pods=True, timeout=SOON)) as [target]:
        if trouble != "no engine":
            target.attach(lambda: engine)
        await target.describe()
        await target.scale(1)
        assert (await cluster.get(DEPLOYMENTS, "tm"))["spec"]["replicas"] == 1
        status = await target.describe()
        assert any(remark in text and "Kubernetes chooses" in text for text in status.remarks)
        await shows(target, lambda status: status == TargetStatus(1, 1))


# -- custom resources


def _flink(replicas: int) -> Json:
    return {"metadata": {"name": "clicks"}, "spec": {"taskManager": {"replicas": replicas}}}


@pytest.fixture
async def flink(cluster: Cluster) -> Cluster:
    cluster.server.kinds.append(FLINK)
    await cluster.create(FLINK, _flink(2))
    return cluster


FLINK_NAME = "flink.apache.org/v1beta1/flinkdeployments"


async def test_controls_in_the_annotations_of_a_custom_resource_are_shown(flink: Cluster) -> None:
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        await shows(target, lambda status: status.controls == ())
        await flink.patch(FLINK, "clicks", {"metadata": {"annotations": {"autoscaler/paused": "up"}}})
        [paused] = (await shows(target, lambda status: status.controls != ())).controls
        assert (paused.up, paused.down) == (True, False)


async def test_a_custom_resource_is_scaled_and_its_pods_are_counted(flink: Cluster) -> None:
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path=".spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 0)
        pods = await flink.pods("clicks", 2)
        await flink.ready(pods)
        await shows(target, lambda status: status == TargetStatus(2, 2))
        await target.scale(3)
        assert (await target.describe()).desired == 3
        assert (await flink.get(FLINK, "clicks"))["spec"]["taskManager"]["replicas"] == 3


async def test_the_author_of_a_change_to_a_custom_resource_is_named_even_if_it_was_a_daemon(flink: Cluster) -> None:
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        await target.describe()
        for size, who in ((5, "a-person"), (4, "reactive-autoscaler")):
            await flink.patch(FLINK, "clicks", {"spec": {"taskManager": {"replicas": size}}}, by=who)
            status = await shows(target, lambda status, size=size: status.desired == size)  # type: ignore[misc]
            assert any(remark.endswith(f"to {size} by {who}") for remark in status.remarks)
        await target.scale(3)
        for _ in range(20):
            assert not any("changed" in remark for remark in (await target.describe()).remarks)
            await asyncio.sleep(0.02)


async def test_pods_are_counted_once_the_custom_resource_has_a_selector(flink: Cluster) -> None:
    found = flink.server.get(FLINK, "jobs", "clicks")  # as the operator leaves it until the JobManager is deployed
    started = found["status"]
    flink.server.put(FLINK, {**found, "status": {"taskManager": {"replicas": 0, "labelSelector": ""}}})
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        with pytest.raises(AnswerError, match="has no selector of its pods"):
            await target.describe()
        flink.server.put(FLINK, {**found, "status": started})
        status = await until(lambda: _describes(target))
        assert (status.desired, status.ready) == (2, 0)


async def test_a_recreated_custom_resource_has_the_pods_of_its_new_selector(flink: Cluster) -> None:
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        await flink.ready(await flink.pods("clicks", 2))
        await shows(target, lambda status: status.ready == 2)
        await flink.delete(FLINK, "clicks")
        await flink.workload(DEPLOYMENTS, "second", 1)
        await flink.up("second", 1)
        made = await flink.create(FLINK, _flink(2))
        status = {"taskManager": {"replicas": 2, "labelSelector": "app=second"}}
        flink.server.put(FLINK, {**made, "status": status})
        await until(lambda: _describes(target))
        await shows(target, lambda status: status.ready == 1)
        await until(lambda: _true(flink.server.watches.count(PODS) == 1))


async def test_a_custom_resource_may_report_its_ready_replicas_itself(flink: Cluster) -> None:
    plugin = flink.target(
        "clicks",
        resource=FLINK_NAME,
        replicas_path="spec.taskManager.replicas",
        ready_path="status.taskManager.replicas",
    )
    async with connected(plugin) as [target]:
        assert await target.describe() == TargetStatus(2, 2)
    assert not flink.server.asked("watch", PODS)


async def test_a_wrong_path_is_an_error_that_names_the_right_one(flink: Cluster) -> None:
    nowhere = flink.target("clicks", resource=FLINK_NAME)
    unready = flink.target(
        "clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas", ready_path="status.nobody.replicas"
    )
    await flink.patch(FLINK, "clicks", {"spec": {"other": {"replicas": 9}}})
    wrong = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.other.replicas")
    async with connected(nowhere, unready, wrong) as [first, second, third]:
        with pytest.raises(AnswerError, match=r"no size at spec.replicas.*specReplicasPath"):
            await first.describe()
        with pytest.raises(AnswerError, match=r"None at status.nobody.replicas"):
            await second.describe()
        with pytest.raises(AnswerError, match=r"size 9 at spec.other.replicas, but its scale subresource has 2"):
            await third.describe()


async def test_a_custom_resource_without_a_scale_subresource_is_reported_as_such(flink: Cluster) -> None:
    refusal = Refusal(404, "NotFound", "the server could not find the requested resource")
    flink.server.fault("get", "refuse", FLINK, sub="scale", refusal=refusal, times=9)
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        with pytest.raises(RefusedError, match=r"there is no clicks .* its CRD has no subresource scale \(404: the"):
            await target.describe()


async def test_an_hpa_on_a_custom_resource_is_found_by_its_group_and_kind(flink: Cluster) -> None:
    reference = {"apiVersion": "flink.apache.org/v1beta1", "kind": "FlinkDeployment", "name": "clicks"}
    await flink.create(HPAS, {"metadata": {"name": "by-cpu"}, "spec": {"scaleTargetRef": reference}})
    plugin = flink.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    async with connected(plugin) as [target]:
        assert (await target.describe()).floor == Bound(2, "the HorizontalPodAutoscaler by-cpu scales it too")


async def test_a_resource_that_is_not_installed_is_refused(cluster: Cluster) -> None:
    async with connected(cluster.target("clicks", resource=FLINK_NAME)) as [target]:
        with pytest.raises(RefusedError, match=r"no flinkdeployments.flink.apache.org.*CRD installed"):
            await target.describe()


# -- faults


async def test_a_change_whose_answer_was_lost_is_detected_and_counts(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        cluster.server.fault("patch", "lose", DEPLOYMENTS)
        await target.scale(3)
        assert (await target.describe()).desired == 3
    assert cluster.server.get(DEPLOYMENTS, "jobs", "tm")["spec"]["replicas"] == 3


async def test_our_change_is_shown_before_the_watch_has_it(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("watch", "mute", DEPLOYMENTS, times=99)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 1
        await until(lambda: _true(DEPLOYMENTS in cluster.server.watches))
        for size in (3, 5, 2):
            await target.scale(size)
            assert (await target.describe()).desired == size


async def test_a_list_older_than_our_change_does_not_revert_it(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        before = cluster.server.get(DEPLOYMENTS, "jobs", "tm")
        await target.scale(4)
        target._objects._put(("jobs", "tm"), target._objects.scope.keep(before))
        assert (await target.describe()).desired == 4


@pytest.mark.parametrize(("code", "wait"), [(429, 1), (500, None), (503, None)])
async def test_a_busy_server_is_retried_after_its_retry_after(cluster: Cluster, code: int, wait: int | None) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        refusal = Refusal(code, "Busy", "later", retry_after=wait)
        cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=refusal)
        await target.scale(2)
        first, second = cluster.server.asked("patch", DEPLOYMENTS)
        assert second.at - first.at >= (wait or 0)
        assert (await target.describe()).desired == 2


async def test_a_too_long_retry_after_is_not_waited_for(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=Refusal(429, "Busy", "later", retry_after=60))
        for size in (2, 2, 3):  # like the next ticks
            with pytest.raises(UnavailableError, match="429, asks to wait 60 s"):
                await target.scale(size)
        assert len(cluster.server.asked("patch")) == 1


async def test_after_its_retry_after_a_request_is_sent_again(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=0.9))) as [target]:
        await target.describe()
        cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=Refusal(429, "Busy", "later", retry_after=1))

        async def scaled() -> bool | None:
            try:
                await target.scale(2)
            except UnavailableError:
                return None
            return True

        await until(scaled)
        first, second = cluster.server.asked("patch", DEPLOYMENTS)
        assert second.at - first.at >= 1


async def test_a_forbidden_size_is_requested_with_growing_pauses_and_another_one_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes.FIRST_HOLD", 0.1)
    monkeypatch.setattr("autoscaler.clients.kubernetes.MAX_HOLD", 0.4)
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    denied = Refusal(403, "Forbidden", 'admission webhook "limits.example.com" denied the request: at most 5')
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        fault = cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=denied, times=5)

        async def scaled() -> bool | None:
            try:
                await target.scale(8)
            except RefusedError as error:
                errors.add(str(error))
                return None
            return True

        errors: set[str] = set()
        await until(scaled)
        assert len(errors) == 1  # even while it is not sent
        times = [asked.at for asked in cluster.server.asked("patch")]
        assert len(times) == 6
        for pause, (before, after) in zip((0.1, 0.2, 0.4, 0.4, 0.4), itertools.pairwise(times), strict=True):
            assert after - before >= pause
        fault.times = 1
        with pytest.raises(RefusedError):
            await target.scale(9)
        await target.scale(5)


async def test_after_a_timeout_it_is_unknown_whether_the_size_was_accepted(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=2))) as [target]:
        await target.describe()
        cluster.server.fault("patch", "slow", DEPLOYMENTS, seconds=30.0, times=9)
        with pytest.raises(EdgeTimeoutError, match="time"):
            await target.scale(2)


async def test_our_change_that_was_accepted_late_is_not_taken_for_an_external_one(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=2))) as [target]:
        await target.describe()
        cluster.server.fault("patch", "lose", DEPLOYMENTS)
        cluster.server.fault("patch", "slow", DEPLOYMENTS, seconds=30.0, times=9)
        with pytest.raises(UnavailableError):
            await target.scale(2)
        status = await shows(target, lambda status: status.desired == 2)
        assert not any("changed" in remark for remark in status.remarks)
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 4}})
        status = await shows(target, lambda status: status.desired == 4)
        assert "the size was changed from 2 to 4 by a-person" in status.remarks


async def test_a_size_read_after_a_conflict_is_shown_before_the_watch_has_it(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 2)
    await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 1}}, by="reactive-autoscaler")
    mute = cluster.server.fault("watch", "mute", DEPLOYMENTS, times=99)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster)
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 5}})
        with pytest.raises(RefusedError, match="from 1 to 5"):
            await target.scale(2)
        status = await target.describe()
        assert status.desired == 5
        assert not any("changed" in remark for remark in status.remarks)  # its author is not known yet
        mute.times = 0
        cluster.server.cut_watches(DEPLOYMENTS)
        await shows(target, lambda status: "the size was changed from 1 to 5 by a-person" in status.remarks)
        await target.scale(4)
    assert cluster.server.get(DEPLOYMENTS, "jobs", "tm")["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("refusal", "error", "text"),
    [
        (Refusal(401, "Unauthorized", "Unauthorized"), RefusedError, "does not accept the credentials"),
        (
            _forbidden("patch", DEPLOYMENTS, "scale"),
            RefusedError,
            "needs patch on deployments.apps/scale named tm in namespace jobs: see deploy/kubernetes",
        ),
        *(
            (
                Refusal(403, "Forbidden", text),
                RefusedError,
                "scale named tm .* was denied, but no permission is missing",
            )
            for text in (
                'admission webhook "limits.example.com" denied the request: at most 5',
                "ValidatingAdmissionPolicy 'limits' with binding 'all' denied request: at most 5",
                'pods "tm-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1',
            )
        ),
        (Refusal(404, "NotFound", "gone"), RefusedError, "there is no tm"),
        (Refusal(422, "Invalid", "too many"), RefusedError, "finds the request invalid.*too many"),
        (Refusal(400, "BadRequest", "what?"), AnswerError, "answered 400"),
    ],
    ids=lambda value: str(value.code) if isinstance(value, Refusal) else "",
)
async def test_errors_of_the_server_say_what_to_do(
    cluster: Cluster, refusal: Refusal, error: type[EdgeError], text: str
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=refusal, times=9)
        with pytest.raises(error, match=text):
            await target.scale(2)
        assert (await target.describe()).desired == 1


async def test_a_web_page_is_an_error(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        cluster.server.fault("patch", "nonsense", DEPLOYMENTS)
        with pytest.raises(AnswerError, match="did not answer with JSON"):
            await target.scale(2)


async def test_an_object_of_another_server_is_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: Any) -> Json:
        return {"error": "log in first"}

    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        with monkeypatch.context() as changed:
            changed.setattr(target._api, "fetch", answer)
            with pytest.raises(AnswerError, match=r"answered with another object: .*log in first"):
                await target.scale(0)
        await target.scale(2)


async def test_an_object_that_keeps_changing_is_an_error_after_some_attempts(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        refusal = Refusal(409, "Conflict", "the object has been modified")
        cluster.server.fault("patch", "refuse", DEPLOYMENTS, refusal=refusal, times=99)
        with pytest.raises(UnavailableError, match="changed 5 times"):
            await target.scale(2)
        assert len(cluster.server.asked("patch")) == 5


async def test_expired_credentials_are_renewed_and_the_renewal_is_logged_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes.RENEWAL_INTERVAL", 0.0)
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    with caplog.at_level(logging.INFO, "autoscaler.clients"):
        async with connected(cluster.target("tm")) as [target]:
            await target.describe()
            del cluster.server.users["daemon"]
            with pytest.raises(RefusedError, match="does not accept the credentials"):
                await target.scale(2)
            assert caplog.messages == []
            kubeconfig(Path(cluster.kubeconfig), cluster.server, "next")
            cluster.server.users["next"] = None
            await target.scale(2)
            assert (await target.describe()).desired == 2
    assert caplog.messages == ["credentials renewed"]


@asynccontextmanager
async def secured(server: ApiServer, authority: trustme.CA, port: int) -> AsyncIterator[None]:
    """The test server behind TLS, where it identifies a user by a certificate instead of by a token."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL

    async def forward(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = dict(pair for [pair] in request.transport.get_extra_info("peercert")["subject"])
        headers = {"Authorization": f"Bearer {subject['commonName']}", "Content-Type": request.content_type}
        if "watch" in request.query:
            return web.json_response({}, status=503)
        async with session.request(
            request.method, f"{server.url}{request.rel_url}", data=await request.read(), headers=headers
        ) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("renewed", ["of the user", "of all"])
async def test_renewed_certificates_of_a_kubeconfig_are_used(
    cluster: Cluster, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, renewed: str
) -> None:
    """Those of the user alone, when they expire; those of the authority too, when a cluster is recreated."""
    monkeypatch.setattr("autoscaler.clients.kubernetes.RENEWAL_INTERVAL", 0.0)
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    first, second = trustme.CA(), trustme.CA()

    def configure(authority: trustme.CA, user: str) -> None:
        certificate = authority.issue_cert(f"{user}@example.com", common_name=user)
        chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        given = {
            "client-certificate-data": base64.b64encode(chain).decode(),
            "client-key-data": base64.b64encode(certificate.private_key_pem.bytes()).decode(),
        }
        trusted = base64.b64encode(authority.cert_pem.bytes()).decode()
        at = {"server": f"https://127.0.0.1:{unused_tcp_port}", "certificate-authority-data": trusted}
        users, clusters = [{"name": "daemon", "user": given}], [{"name": "test", "cluster": at}]
        _change_config(cluster, users=users, clusters=clusters)

    configure(first, "daemon")
    async with AsyncExitStack() as stack:
        async with secured(cluster.server, first, unused_tcp_port):
            [target] = await stack.enter_async_context(connected(cluster.target("tm")))
            assert (await target.describe()).desired == 1
            await target.scale(2)
        later = first if renewed == "of the user" else second
        cluster.server.users["next"] = cluster.server.users.pop("daemon")
        async with secured(cluster.server, later, unused_tcp_port):
            with pytest.raises(EdgeError):
                await target.scale(3)
            configure(later, "next")

            async def scaled() -> bool | None:
                try:
                    await target.scale(3)
                except EdgeError:  # over an existing connection
                    return None
                return True

            await until(scaled)
    assert cluster.server.get(DEPLOYMENTS, "jobs", "tm")["spec"]["replicas"] == 3


# -- watches


async def watching(cluster: Cluster, kind: Kind = DEPLOYMENTS) -> None:
    await until(lambda: _true(kind in cluster.server.watches))


async def test_a_watch_that_loses_its_connection_continues_from_its_last_version(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        for size in (2, 3):
            await watching(cluster)
            cluster.server.cut_watches()
            await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": size}})
            await shows(target, lambda status, size=size: status.desired == size)  # type: ignore[misc]
        assert len(cluster.server.asked("list", DEPLOYMENTS)) == 1


async def test_an_incomplete_line_is_not_an_event(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("watch", "cut", DEPLOYMENTS, times=2)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 1
        await watching(cluster)
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 4}})
        await shows(target, lambda status: status.desired == 4)


async def test_expired_resource_versions_lead_to_a_new_list(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.bookmarks = 60.0
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster)
        cluster.server.cut_watches()
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 6}})
        cluster.server.compact()
        await shows(target, lambda status: status.desired == 6)
        assert len(cluster.server.asked("list", DEPLOYMENTS)) == 2


async def test_a_watch_that_is_refused_as_too_old_leads_to_a_new_list(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("watch", "refuse", DEPLOYMENTS, refusal=Refusal(410, "Expired", "too old"))
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster)
        assert len(cluster.server.asked("list", DEPLOYMENTS)) == 2


async def test_bookmarks_keep_the_version_current_while_nothing_happens(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.bookmarks = 0.05
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster)
        await cluster.workload(DEPLOYMENTS, "unrelated", 1)
        version = int(cluster.server.get(DEPLOYMENTS, "jobs", "unrelated")["metadata"]["resourceVersion"])
        await until(lambda: _true(int(target._objects._version or 0) >= version))
        cluster.server._kept_from = version
        cluster.server.cut_watches()
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 2}})
        await shows(target, lambda status: status.desired == 2)
        assert len(cluster.server.asked("list", DEPLOYMENTS)) == 1


async def test_a_stalled_watch_is_detected(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("watch", "mute", DEPLOYMENTS)
    async with connected(cluster.target("tm", max_age=SOON)) as [target]:
        await until(lambda: _describes(target))
        await watching(cluster)
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 4}})

        async def found() -> bool | None:
            status = await _describes(target)  # for a moment the size may be too old to be shown
            return (status is not None and status.desired == 4) or None

        await until(found)
        assert len(cluster.server.asked("list", DEPLOYMENTS)) >= 2


def grow_old(target: Target) -> None:
    """Pretend that the last message of the watch was a minute ago."""
    assert target._objects._updated_at is not None
    target._objects._updated_at -= 61.0


async def test_a_size_is_not_shown_once_it_is_stale(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    with caplog.at_level(logging.INFO, "autoscaler.clients"):
        async with connected(cluster.target("tm")) as [target]:
            assert (await target.describe()).desired == 1
            await watching(cluster)
            outage = cluster.server.fault("*", "drop", times=10**6)
            cluster.server.cut_watches()
            await until(lambda: _true(target._objects.error is not None))
            assert (await target.describe()).desired == 1  # a short outage does not hide the size
            grow_old(target)
            assert "the last known state is stale" in await fails(target, UnavailableError)
            with pytest.raises(UnavailableError):
                await target.scale(3)
            outage.times = 0
            await until(lambda: _describes(target))
            attempts = len(cluster.server.asked("watch", DEPLOYMENTS)) + len(cluster.server.asked("list", DEPLOYMENTS))
            assert attempts < 20  # with pauses between them
    messages = [record.message for record in caplog.records if record.__dict__.get("resource") == "deployments.apps"]
    assert messages == ["cannot watch", "watch resumed"]


async def _describes(target: Target) -> TargetStatus | None:
    try:
        return await target.describe()
    except EdgeError:
        return None


async def test_a_revoked_permission_is_reported_once_the_size_is_stale(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await watching(cluster)
        for verb in ("watch", "list"):
            cluster.server.fault(verb, "refuse", DEPLOYMENTS, refusal=_forbidden(verb, DEPLOYMENTS), times=10**6)
        cluster.server.cut_watches()
        await until(lambda: _true(target._objects.error is not None))
        assert (await target.describe()).desired == 1
        grow_old(target)
        text = await fails(target, RefusedError)
        assert "this needs" in text
        assert "named tm in namespace jobs" in text


async def test_a_server_restored_to_an_earlier_version_is_listed_again(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(cluster.target("tm")) as [target]:
        await target.describe()
        await target.scale(5)
        await watching(cluster)
        refusal = Refusal(504, "Timeout", "Too large resource version: 200, current: 100")
        cluster.server.fault("watch", "refuse", DEPLOYMENTS, refusal=refusal, times=3)
        restored = cluster.server.get(DEPLOYMENTS, "jobs", "tm")
        restored["spec"]["replicas"] = 2
        cluster.server._version = 50
        cluster.server.compact()
        cluster.server.put(DEPLOYMENTS, restored)
        cluster.server.cut_watches()
        await shows(target, lambda status: status.desired == 2)
        assert len(cluster.server.asked("list", DEPLOYMENTS)) == 2


async def test_an_overloaded_server_does_not_get_additional_lists(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    too_many = Refusal(429, "TooManyRequests", "too many requests")
    cluster.server.fault("watch", "refuse", DEPLOYMENTS, refusal=too_many, times=5)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 1
        await watching(cluster)
        await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"replicas": 2}})
        await shows(target, lambda status: status.desired == 2)
    assert len(cluster.server.asked("watch", DEPLOYMENTS)) == 6
    assert len(cluster.server.asked("list", DEPLOYMENTS)) == 1


async def test_a_slow_list_is_waited_for(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("list", "slow", DEPLOYMENTS, seconds=0.3)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 1


@pytest.mark.e2e
async def test_a_list_may_take_longer_than_other_requests(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    cluster.server.fault("list", "slow", seconds=1.2, times=99)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=1))) as [target]:
        assert (await until(lambda: _describes(target))).desired == 1


@pytest.mark.e2e
async def test_a_server_that_rejects_every_watch_is_listed_with_growing_pauses(
    cluster: Cluster,
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    too_old = Refusal(410, "Expired", "too old resource version")
    cluster.server.fault("watch", "refuse", DEPLOYMENTS, refusal=too_old, times=5)
    async with connected(cluster.target("tm")) as [target]:
        await watching(cluster)
        assert (await target.describe()).desired == 1
        times = [request.at for request in cluster.server.asked("list", DEPLOYMENTS)]
    assert len(times) == 6
    assert times[-1] - times[-2] > 0.3  # the fifth pause is 0.05 s * 2**4, spread by a half


async def test_long_lists_come_in_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.clients.kubernetes_watch.PAGE_SIZE", 4)
    names = [f"tm-{number:02}" for number in range(10)]
    for number, name in enumerate(names):
        await cluster.workload(DEPLOYMENTS, name, number % 3)
    refusal = Refusal(410, "Expired", "The provided continue parameter is too old")
    fault = cluster.server.fault("list", "refuse", DEPLOYMENTS, refusal=refusal)
    fault.to = lambda request: request.kind is DEPLOYMENTS and "continue" in request.query
    async with connected(*(cluster.target(name, watch="namespace") for name in names)) as targets:
        await until(lambda: _describes(targets[0]))
        assert [(await target.describe()).desired for target in targets] == [number % 3 for number in range(10)]


# -- the plug-in itself


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"name": ""}, "name: must be"),
        ({"name": "Tm"}, "name: must be"),
        ({"name": "../secrets"}, "name: must be"),
        ({"namespace": "a/b"}, "namespace: must be"),
        ({"resource": "daemonsets"}, "resource: must be one of deployments, statefulsets, replicasets or group"),
        ({"resource": "v1/pods"}, "resource: must be"),
        ({"resource": FLINK_NAME, "replicas_path": "spec[0]"}, "replicas_path: must be"),
        ({"resource": FLINK_NAME, "replicas_path": ""}, "replicas_path: must be"),
        ({"ready_path": "status.ready"}, "for custom resources"),
        ({"resource": "statefulsets", "choose_pods": True}, "highest ordinal"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
        ({"max_age": timedelta(seconds=1)}, "max_age: must be 2s or more"),
    ],
)
def test_invalid_parameters_are_refused(parameters: Json, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Kubernetes(**{"name": "tm", **parameters})


async def test_a_missing_package_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio.client", None)
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match=r"pip install '\.\[kubernetes\]'"):
            async with Kubernetes(name="tm").connect(shared):
                pass


async def test_a_missing_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415 - it belongs to an extra

    path = tmp_path / "absent"
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", f"{path}:{path}2")
    async with LocalShared() as shared:
        for plugin in (Kubernetes(name="tm", kubeconfig=str(path)), Kubernetes(name="tm")):
            with pytest.raises(PluginError, match=rf"the file {path}.* does not exist; give kubeconfig"):
                async with plugin.connect(shared):
                    pass


@pytest.mark.parametrize("text", ["", "clusters: 3", "- a", "{"])
async def test_an_unusable_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match=rf"no credentials for Kubernetes \({path}"):
            async with Kubernetes(name="tm", kubeconfig=str(path)).connect(shared):
                pass


def _change_config(cluster: Cluster, **parts: list[Json]) -> None:
    path = Path(cluster.kubeconfig)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **parts}))


@pytest.mark.parametrize(
    "user",
    [
        {"name": "daemon", "token": "hunter2"},
        {"name": "daemon", "user": {"token": "hunter2", "exec": {"command": "login"}}},
        {"name": "daemon", "user": {"auth-provider": {"name": "oidc", "config": {"refresh-token": "hunter2"}}}},
    ],
    ids=["no user", "half an exec", "half an auth-provider"],
)
async def test_a_malformed_kubeconfig_is_not_shown_in_messages(
    cluster: Cluster, user: Json, caplog: pytest.LogCaptureFixture
) -> None:
    _change_config(cluster, users=[user])
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match="no credentials for Kubernetes") as caught:
            async with cluster.target("tm").connect(shared):
                pass
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caplog.text


async def test_a_clusters_ca_that_newer_pythons_reject_is_accepted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def strict(**more: Any) -> ssl.SSLContext:  # as Python 3.13 does
        context = usual(**more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    async with connected(cluster.target("tm")) as [target]:
        context = target._api._client.rest_client.pool_manager.connector._ssl
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.verify_mode is ssl.CERT_REQUIRED


async def test_a_token_file_may_end_with_a_newline(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 3)
    (tmp_path / "token").write_text("daemon\n")
    _change_config(cluster, users=[{"name": "daemon", "user": {"tokenFile": "token"}}])
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 3


PLUGIN = """
import json, os, sys, pathlib, time
if pathlib.Path("{hangs}").exists():
    pathlib.Path("{hung}").write_text(str(os.getpid()))
    time.sleep(60)
token = pathlib.Path("{token}").read_text()
print(json.dumps({{"apiVersion": sys.argv[1], "kind": "ExecCredential", "status": {{"token": token}}}}))
"""


def _use_plugin(cluster: Cluster, folder: Path) -> None:
    """Make the kubeconfig get its token from `PLUGIN`, with its files in a folder."""
    (folder / "token").write_text("daemon")
    program = PLUGIN.format(**{name: folder / name for name in ("hangs", "hung", "token")})
    version = "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": sys.executable, "args": ["-c", program, version]}
    _change_config(cluster, users=[{"name": "daemon", "user": {"exec": plugin}}])


async def test_the_plugin_of_a_kubeconfig_is_run_again_when_its_token_is_no_longer_accepted(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    monkeypatch.setattr("autoscaler.clients.kubernetes.RENEWAL_INTERVAL", 0.0)
    monkeypatch.setattr("autoscaler.clients.kubernetes.RENEWAL_TIMEOUT", 2.0)
    _use_plugin(cluster, tmp_path)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=20))) as [target]:
        assert (await target.describe()).desired == 1
        cluster.server.users["next"] = cluster.server.users.pop("daemon")
        (tmp_path / "hangs").touch()
        await watching(cluster)
        cluster.server.cut_watches(DEPLOYMENTS)
        await until(lambda: _true((tmp_path / "hung").exists()))
        (tmp_path / "hangs").unlink()
        (tmp_path / "token").write_text("next")
        await target.scale(2)  # although the watch is waiting for the plug-in
    assert cluster.server.get(DEPLOYMENTS, "jobs", "tm")["spec"]["replicas"] == 2
    with pytest.raises(ProcessLookupError):  # as it was killed at its timeout
        os.kill(int((tmp_path / "hung").read_text()), 0)


async def test_a_plugin_that_hangs_when_credentials_are_renewed_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    _use_plugin(cluster, tmp_path)
    async with connected(cluster.target("tm", timeout=timedelta(seconds=20))) as [target]:
        await target.describe()
        monkeypatch.setattr("autoscaler.clients.kubernetes.RENEWAL_TIMEOUT", 0.2)
        del cluster.server.users["daemon"]
        (tmp_path / "hangs").touch()
        with pytest.raises(RefusedError, match=r"not renewed within 0\.2 s: a plug-in of the kubeconfig may wait"):
            await target.scale(2)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('log in first')", "exec: process returned 1. log in first"),
        ("print('{')", "exec: the output is not an ExecCredential"),
        ("print('[]')", "exec: the output is not an ExecCredential"),
        ('print(\'{"apiVersion": "v0", "status": 1}\')', "exec: the process answered v0, expected v1"),
    ],
    ids=["fails", "half an answer", "no answer", "another version"],
)
async def test_a_plugin_without_credentials_is_an_error(cluster: Cluster, program: str, words: str) -> None:
    plugin = {"apiVersion": "v1", "command": sys.executable, "args": ["-c", program]}
    _change_config(cluster, users=[{"name": "daemon", "user": {"exec": plugin}}])
    with pytest.raises(PluginError, match=re.escape(words)):
        async with connected(cluster.target("tm")):
            pass


async def test_netrc_and_proxies_of_the_environment_are_not_used_on_loopback(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await cluster.workload(DEPLOYMENTS, "tm", 3)
    async with connected(cluster.target("tm")) as [target]:
        assert (await target.describe()).desired == 3


@pytest.mark.parametrize(
    ("server", "proxied"),
    [
        ("https://kube.example.com:6443", True),
        ("https://api.corp.example.com", False),
        ("https://10.96.0.1", False),
        ("https://10.97.0.1:443", True),
        ("https://[fd00::1]:443", False),
        ("https://localhost:6443", False),
        ("https://127.0.0.1:6443", False),
        ("http://kube.example.com", False),
    ],
)
def test_proxies_of_the_environment_are_used_as_by_kubectl(
    monkeypatch: pytest.MonkeyPatch, server: str, proxied: bool
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", ".corp.example.com, 10.96.0.0/16,fd00::/8,")
    assert proxy_of(server) == ("http://proxy:3128" if proxied else None)


async def test_the_password_of_a_proxy_is_not_shown(cluster: Cluster) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        way = {"server": "https://kube.invalid:6443", "proxy-url": f"http://me:hunter2@127.0.0.1:{port}"}
        _change_config(cluster, clusters=[{"name": "test", "cluster": way}])
        async with connected(cluster.target("tm")) as [target]:
            text = await fails(target, UnavailableError)
    assert "407" in text
    assert "hunter2" not in text


async def test_the_context_is_selected_and_gives_the_namespace(cluster: Cluster) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 3)
    path = cluster.kubeconfig
    async with connected(Kubernetes(name="tm", kubeconfig=path, context="test")) as [target]:
        assert (await target.describe()).desired == 3
    async with LocalShared() as shared:
        with pytest.raises(PluginError, match="context nowhere"):
            async with Kubernetes(name="tm", kubeconfig=path, context="nowhere").connect(shared):
                pass


async def test_in_a_pod_the_service_account_is_used_and_its_token_is_reread(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kubernetes_asyncio.config import incluster_config  # noqa: PLC0415 - it belongs to an extra

    await cluster.workload(DEPLOYMENTS, "tm", 3)
    (tmp_path / "token").write_text("daemon")
    (tmp_path / "namespace").write_text("jobs\n")
    host, _, port = cluster.server.url.removeprefix("http://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("autoscaler.clients.kubernetes.ACCOUNT", tmp_path)

    def load(client_configuration: Any) -> None:  # the pod's files have another path here; the server has no TLS
        loader = incluster_config.InClusterConfigLoader(str(tmp_path / "token"), str(tmp_path / "token"))
        loader._load_config()
        loader.host = cluster.server.url
        loader.ssl_ca_cert = None
        loader._set_config(client_configuration)

    monkeypatch.setattr("kubernetes_asyncio.config.load_incluster_config", load)
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", timedelta(0))  # of a minute
    async with connected(Kubernetes(name="tm")) as [target]:
        assert (await target.describe()).desired == 3
        cluster.server.users["renewed"] = cluster.server.users.pop("daemon")  # as the kubelet does every hour
        (tmp_path / "token").write_text("renewed\n")
        await target.scale(4)
        assert not [record for record in caplog.records if "credentials renewed" in record.message]  # without a 401
        (tmp_path / "token").write_text("")
        with pytest.raises(UnavailableError, match="token"):
            await target.scale(5)


# -- Events


def told(kind: NotificationKind, severity: Severity, message: str) -> Notification:
    return Notification(id="1", at=NOON, kind=kind, severity=severity, cluster="c", message=message)


@pytest.mark.parametrize("kind", [DEPLOYMENTS, FLINK], ids=str)
async def test_a_notification_becomes_an_event_of_the_scaled_object(cluster: Cluster, kind: Kind) -> None:
    if kind is FLINK:
        cluster.server.kinds.append(FLINK)
        await cluster.create(FLINK, _flink(2))
        plugin = cluster.target("clicks", resource=FLINK_NAME, replicas_path="spec.taskManager.replicas")
    else:
        await cluster.workload(DEPLOYMENTS, "clicks", 2)
        plugin = cluster.target("clicks")
    async with connected(plugin) as [target]:
        await target.show(told(NotificationKind.RESCALE_BEGUN, Severity.INFO, "from 2 to 4"))
        await target.show(told(NotificationKind.TROUBLE_BEGUN, Severity.ERROR, "é" * 2000))
    events = cluster.server.objects.get(EVENTS, {}).values()
    begun, trouble = sorted([found for found in events if "source" in found], key=lambda found: str(found["reason"]))
    uid = cluster.server.get(kind, "jobs", "clicks")["metadata"]["uid"]
    version = f"{kind.group}/{kind.version}"
    subject = {"apiVersion": version, "kind": kind.kind, "name": "clicks", "namespace": "jobs", "uid": uid}
    assert begun["involvedObject"] == subject
    assert (begun["type"], begun["reason"], begun["message"]) == ("Normal", "RescaleBegun", "from 2 to 4")
    assert begun["lastTimestamp"] == "2026-07-01T12:00:00Z"
    assert (trouble["type"], trouble["reason"]) == ("Warning", "TroubleBegun")
    assert len(trouble["message"].encode()) <= 1024


async def test_an_event_that_is_forbidden_or_without_an_object_is_an_error(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    rule = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]}
    config = kubeconfig(tmp_path / "limited", cluster.server, "limited", Grants([("jobs", rule)]))
    news = told(NotificationKind.RESCALE_BEGUN, Severity.INFO, "from 2 to 4")
    async with connected(cluster.target("tm", kubeconfig=config)) as [target]:
        with pytest.raises(RefusedError, match="this needs create on events in namespace jobs"):
            await target.show(news)
    async with connected(cluster.target("gone")) as [target]:
        with pytest.raises(RefusedError, match="there is no gone"):
            await target.show(news)


# -- doctor


async def test_the_doctor_finds_nothing_when_all_is_well(any_cluster: Cluster) -> None:
    await any_cluster.workload(DEPLOYMENTS, "tm", 1)
    async with connected(any_cluster.target("tm", choose_pods=True)) as [target]:
        await shows(target, lambda status: status.desired == 1)
        assert list(await target.diagnose()) == []


async def test_the_doctor_names_missing_permissions_and_other_controllers(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    await cluster.patch(DEPLOYMENTS, "tm", {"spec": {"minReadySeconds": 30}})
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tm"}
    await cluster.create(HPAS, {"metadata": {"name": "by-cpu"}, "spec": {"scaleTargetRef": reference}})
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]},
        {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list", "watch"]},
    ]
    config = kubeconfig(tmp_path / "limited", cluster.server, "limited", Grants([("jobs", rule) for rule in rules]))
    async with connected(cluster.target("tm", kubeconfig=config)) as [target]:
        findings = [f"{finding.severity}: {finding.problem}" for finding in await target.diagnose()]
    assert findings == [
        "error: no permission: get on deployments.apps/scale named tm in namespace jobs",
        "error: no permission: patch on deployments.apps/scale named tm in namespace jobs",
        "warning: no permission: list on pods in namespace jobs",
        "info: no permission: create on events in namespace jobs",
        "warning: no permission: list on scaledobjects.keda.sh in namespace jobs",
        "warning: no permission: watch on scaledobjects.keda.sh in namespace jobs",
        "error: the HorizontalPodAutoscaler by-cpu scales it too",
        "info: minReadySeconds is 30",
    ]


async def test_the_doctor_names_all_missing_permissions_even_if_nothing_can_be_read(
    cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        await cluster.workload(DEPLOYMENTS, name, 1)
    config = kubeconfig(tmp_path / "limited", cluster.server, "limited", Grants([]))
    async with connected(*(cluster.target(name, kubeconfig=config) for name in ("one", "two"))) as targets:
        one, two = [await target.diagnose() for target in targets]
    assert [finding.problem.removeprefix("no permission: ") for finding in one] == [
        "list on deployments.apps named one in namespace jobs",
        "watch on deployments.apps named one in namespace jobs",
        "get on deployments.apps/scale named one in namespace jobs",
        "patch on deployments.apps/scale named one in namespace jobs",
        "list on pods in namespace jobs",
        "create on events in namespace jobs",
        "list on scaledobjects.keda.sh in namespace jobs",
        "watch on scaledobjects.keda.sh in namespace jobs",
        "list on horizontalpodautoscalers.autoscaling in namespace jobs",
        "watch on horizontalpodautoscalers.autoscaling in namespace jobs",
    ]
    assert set(one[4:]) == set(two[4:])  # equal, so that they can be shown once
    # The answer is the same for a misspelt name as for an object without a rule.
    assert all(finding.remedy.startswith("correct name and namespace of the target") for finding in one[:4])
    assert {finding.remedy.partition(" (")[0] for finding in one[4:]} == {
        "add the rule to the Role of the daemon's service account"
    }


async def test_the_doctor_names_the_cluster_role_if_all_namespaces_are_watched(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.workload(DEPLOYMENTS, "tm", 1)
    config = kubeconfig(tmp_path / "limited", cluster.server, "limited", Grants([]))
    async with connected(cluster.target("tm", kubeconfig=config, watch=Watch.CLUSTER)) as [target]:
        findings = [finding for finding in await target.diagnose() if finding.problem.endswith("in all namespaces")]
    assert findings
    assert all("ClusterRole (see deploy/kubernetes/components/watch-cluster)" in finding.remedy for finding in findings)
    assert (Path(__file__).parents[2] / "deploy/kubernetes/components/watch-cluster/clusterrole.yaml").is_file()


async def test_a_cancelled_list_of_pods_leaves_no_connection_open(cluster: Cluster) -> None:
    before = asyncio.all_tasks()
    async with connected(cluster.target("tm")) as [target]:
        describing = asyncio.create_task(target.describe())
        await asyncio.sleep(0)
        describing.cancel()
        await asyncio.wait((describing,))
    left = {task for task in asyncio.all_tasks() - before if "watch" in task.get_name()}
    assert left == set()
