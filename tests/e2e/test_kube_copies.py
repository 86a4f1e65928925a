"""Two copies of the shipped Deployment on a real API server, with its service account, and faults of each.

All tests use one set of copies. At the end the audit log of the API server is compared with the leases: every change of
a size must come from the owner of the cluster.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from autoscaler.daemon.postgres_store import open_postgres_store
from tests.e2e.kube_copies import DEPLOYMENT, FLEET, LOGGED, SPACE, Copies, Copy, configuration
from tests.e2e.kube_server import kube_server
from tests.e2e.test_kube import (
    ACCOUNT,
    NODE,
    Load,
    apps,
    cluster,
    deployment,
    eventually,
    namespace,
    ready,
    rules,
    size,
)
from tests.postgres_server import postgres

pytestmark = pytest.mark.e2e

JOBS = 30
OWN = ["own-0", "own-1", "own-2"]
"""Clusters of the file, whose Deployments the Role names."""

TAKEN = 20.0
"""Seconds within which another copy must have taken over, and the longest time without a tick in a rolling update."""

INTERVAL = 2.0
SLACK = 2.0
"""Seconds by which a busy machine may be late with what is due within an interval."""

PAUSED, HELD, ORDERED = "job-0", "job-1", "job-2"
"""Members with an order: paused and held by annotation, held at another size through one of the copies."""

ORDERS = {PAUSED: 1, HELD: 3, ORDERED: 4}


async def create_tables(url: str) -> None:
    async with open_postgres_store(url, decisions=1):
        pass


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    load = Load()
    yield load
    load.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, load: Load) -> Iterator[Copies]:
    """Two copies that share the clusters; some clusters have manual controls."""
    with postgres() as server, kube_server(tmp_path_factory.mktemp("kube")) as kube:
        database = server.database().rsplit("/", 1)[1]
        names = [*OWN, *(f"{FLEET}/job-{number}" for number in range(JOBS))]
        found = Copies(tmp_path_factory.mktemp("copies"), kube, server, database, names)
        asyncio.run(create_tables(server.url(database)))
        found.query(LOGGED)
        kube.node(NODE)
        namespace(kube, FLEET)
        target = {"type": "kubernetes", "name": "${name}", "namespace": "${namespace}", "watch": "namespace"}
        fleet = {
            "discover": {"type": "kubernetes", "selector": "autoscale=streaming", "namespaces": [FLEET]},
            "name": "${namespace}/${name}",
            "interval": "2s",
            "template": cluster("${name}", target=target),
        }
        own = {name: cluster(name, target={"type": "kubernetes", "name": name}) for name in OWN}
        found.apply(configuration(load.url, own, fleet), OWN)
        annotations = {PAUSED: {"autoscaler/paused": "true"}, HELD: {"autoscaler/hold": str(ORDERS[HELD])}}
        for number in range(JOBS):
            name = f"job-{number}"
            kube.request("POST", apps(FLEET), deployment(name, {"autoscale": "streaming"}, annotations.get(name, {})))
        for name in OWN:
            kube.request("POST", apps(SPACE), deployment(name))
        try:
            found.settle()
            order(found, f"{FLEET}/{ORDERED}")
            yield found
        finally:
            found.stop()


def order(copies: Copies, name: str) -> None:
    """Hold a cluster through the copy that does not own it."""
    url = copies.owners()[name]
    asked = next(copy for copy in copies.running if copy.url != url)
    hold = ("hold", str(ORDERS[ORDERED]), name, "--until-resumed", "--reason", "a rehearsal")
    assert name in copies.cli(asked, *hold)


@pytest.fixture
def system(played: Copies) -> Copies:
    """The same system, repaired after the previous fault."""
    played.settle()
    return played


def reaches(copies: Copies, name: str, replicas: int) -> None:
    """Wait until a cluster has this size and as many ready pods."""
    space, _, short = name.rpartition("/")
    space = space or SPACE
    eventually(
        lambda: size(copies.kube, space, short) == ready(copies.kube, space, short) == replicas,
        lambda: (name, size(copies.kube, space, short), copies.describe()),
    )


def obeys(copies: Copies, load: Load) -> None:
    """Check that controls are followed whatever the load is, by ticks from now on."""
    for name in ORDERS:
        load.of[name] = 700 if load.of.get(name) == 600 else 600
    begin = time.time()
    for name, replicas in ORDERS.items():
        reaches(copies, f"{FLEET}/{name}", replicas)
    copies.wait_for_ticks([f"{FLEET}/{name}" for name in ORDERS], begin + INTERVAL)
    for name, replicas in ORDERS.items():
        assert size(copies.kube, FLEET, name) == replicas


def free(copies: Copies, copy: Copy) -> list[str]:
    """The members of a copy without manual controls."""
    jobs = {name.partition("/")[2] for name in copies.owned_by(copy) if name.startswith(FLEET)}
    return sorted(jobs - ORDERS.keys())


def test_controls_by_annotation_and_through_any_copy_are_followed_by_the_owner(system: Copies, load: Load) -> None:
    obeys(system, load)
    for copy in system.running:
        for name in ORDERS:
            controls = copy.get(f"/api/v1/clusters/{FLEET}/{name}")["controls"]
            assert len(controls) == 1, (name, controls)


def test_a_killed_copy_is_replaced_and_its_controls_stay(system: Copies, load: Load) -> None:
    url = system.owners()[f"{FLEET}/{ORDERED}"]
    killed, other = sorted(system.running, key=lambda copy: copy.url != url)
    lost, rises = system.owned_by(killed), free(system, killed)[0]
    killed.signal(signal.SIGKILL)
    at = time.time()
    load.of[rises] = 300
    eventually(lambda: len(system.owned_by(other)) == len(system.names), system.describe, TAKEN)
    taken = time.time() - at
    first = system.wait_for_ticks(lost, at + 1)
    reaches(system, f"{FLEET}/{rises}", 3)
    print(f"\nkilled: {len(lost)} clusters are taken after {taken:.1f} s, all decided about after {first - at:.1f} s")  # noqa: T201
    assert first - at <= TAKEN + INTERVAL + SLACK
    obeys(system, load)


def test_a_change_of_a_suspended_copy_that_arrives_after_its_lease_is_refused_or_corrected(
    system: Copies, load: Load
) -> None:
    stopped = max(system.running, key=lambda copy: len(free(system, copy)))
    [other] = [copy for copy in system.running if copy is not stopped]
    falls, rises = [name for name in free(system, stopped) if name not in load.of][:2]
    load.of[falls] = 300
    reaches(system, f"{FLEET}/{falls}", 3)
    # Both changes are on their way when the copy is suspended.
    stopped.way.keep()
    for name, wanted in ((falls, 100), (rises, 300)):
        load.of[name] = wanted
        path = f"{apps(FLEET, name)}/scale"
        eventually(lambda path=path: path in stopped.way.kept, system.describe, pause=0.05)  # type: ignore[misc]
    stopped.signal(signal.SIGSTOP)
    at = time.time()
    load.of[falls] = 300
    try:
        eventually(lambda: len(system.owned_by(other)) == len(system.names), system.describe, TAKEN)
        taken = time.time() - at
        # The new owner requests the same size for one cluster, and keeps the present size of the other.
        reaches(system, f"{FLEET}/{rises}", 3)
        system.wait_for_ticks([f"{FLEET}/{falls}"], at + taken + INTERVAL)
        assert size(system.kube, FLEET, falls) == 3
        stopped.way.release()
        eventually(lambda: len({each.cluster for each in system.of_others()}) == 2, system.describe)
        [accepted] = eventually(lambda: [each for each in system.of_others() if each.code == 200], system.describe)
        assert (accepted.copy, accepted.cluster) == (stopped.url, f"{FLEET}/{falls}")
        corrected = eventually(
            lambda: [
                each.at
                for each in system.patched()
                if (each.copy, each.cluster, each.code) == (other.url, f"{FLEET}/{falls}", 200)
                and each.at > accepted.at
            ],
            system.describe,
        )
    finally:
        stopped.way.release()
        stopped.signal(signal.SIGCONT)
    after = corrected[0] - accepted.at
    print(f"\nstopped: taken after {taken:.1f} s; what was accepted late is corrected after {after:.1f} s")  # noqa: T201
    assert after <= INTERVAL + SLACK
    reaches(system, f"{FLEET}/{falls}", 3)
    eventually(lambda: stopped.said("leases lost: expired, or taken by another copy of the daemon"), system.describe)


def test_a_rolling_update_by_the_deployment_causes_no_long_gap_between_ticks(system: Copies, load: Load) -> None:
    old = system.running
    begin = time.time()
    annotations = {"kubectl.kubernetes.io/restartedAt": "now"}
    change = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    system.kube.request("PATCH", DEPLOYMENT, change, "application/merge-patch+json")

    def updated() -> bool:
        system.sync()
        return not any(copy.runs for copy in old)

    eventually(updated, system.describe)
    system.settle()
    system.wait_for_ticks(system.names, time.time())
    assert [copy.process.returncode for copy in old if copy.process is not None] == [0, 0]
    gap = system.longest_gap(begin, time.time())
    print(f"\nrolling update: {time.time() - begin:.0f} s, the longest time without a tick of a cluster {gap:.1f} s")  # noqa: T201
    assert gap <= TAKEN
    obeys(system, load)


def test_clusters_without_controls_follow_their_load_again(system: Copies, load: Load) -> None:
    accepted = [each.cluster.partition("/")[2] for each in system.patched() if each.code == 200]
    assert [accepted.count(name) for name in (PAUSED, HELD, ORDERED)] == [0, 1, 1]  # whatever has happened before
    none = {"metadata": {"annotations": {"autoscaler/paused": None, "autoscaler/hold": None}}}
    for name in (PAUSED, HELD):
        system.kube.request("PATCH", apps(FLEET, name), none, "application/merge-patch+json")
    system.cli(system.running[0], "resume", f"{FLEET}/{ORDERED}")
    for name in (*ORDERS, *OWN):
        load.of[name] = 200
    for name in (*ORDERS, *OWN):
        reaches(system, name if name in OWN else f"{FLEET}/{name}", 2)


def test_each_cluster_was_scaled_only_by_its_owner(played: Copies) -> None:
    changes = played.patched()
    assert len({each.copy for each in changes if each.code == 200}) >= 4
    # Except for the held changes: the one for the cluster that nobody else had changed was accepted, once.
    assert {each.code for each in played.of_others()} == {200, 409}
    assert len({each.copy for each in played.of_others()}) == 1
    assert [each.code for each in played.of_others()].count(200) == 1


def test_the_shipped_roles_are_sufficient(played: Copies) -> None:
    asked = played.kube.requests(ACCOUNT)
    assert asked.refused == set()
    assert asked.used <= rules("base/role.yaml", "fleet/role.yaml")
