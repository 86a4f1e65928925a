"""The Spark engine lists its workers and drains them, against HTTP servers that answer like Spark 4.3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.clients.http import FRESH
from autoscaler.clients.spark_work import IDLE_AFTER
from autoscaler.engines.spark import Spark, SparkEngine
from autoscaler.ports import AnswerError, EdgeError, RefusedError, UnavailableError, Worker, Workforce
from autoscaler.testing.contracts import LocalShared
from tests.sources.test_spark_server import APP, FakeSpark

FIRST, SECOND = "worker-20261121021128-127.0.0.2-42087", "worker-20261121021129-127.0.0.3-35009"
ENABLED = {"spark.decommission.enabled": "true"}


@dataclass
class Cluster:
    """A fake Spark, and the requests that were posted to its Master."""

    spark: FakeSpark
    url: str = ""
    status: int = 200
    posted: list[str] = field(default_factory=list)

    async def post(self, request: web.Request) -> web.Response:
        self.posted.append(str(request.rel_url))
        return web.Response(status=self.status)

    @asynccontextmanager
    async def engine(self, **changes: Any) -> AsyncIterator[SparkEngine]:
        parameters = {"app": "lab", "report": self.url, "master": self.url, "driver": self.url, **changes}
        async with LocalShared() as shared, Spark(**parameters).connect(shared) as engine:
            yield engine

    def worker(self, number: int, **changes: Any) -> None:
        self.spark.answers["/json/"]["workers"][number] |= changes

    def executor(self, host: str, **changes: Any) -> None:
        for executor in self.spark.answers[f"{APP}/allexecutors"]:
            if executor["hostPort"].startswith(f"{host}:"):
                executor.update(changes)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    spark = FakeSpark()
    spark.answers["/v1/progress"] = spark.report(settings=ENABLED)
    found = Cluster(spark)
    application = web.Application()
    application.router.add_get("/{path:.*}", spark.handle)
    application.router.add_post("/{path:.*}", found.post)
    async with TestServer(application) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


async def workers(cluster: Cluster, **changes: Any) -> dict[str, Worker]:
    async with cluster.engine(**changes) as engine:
        assert isinstance(engine, Workforce)
        return {worker.id: worker for worker in await engine.workers()}


async def test_workers_are_those_of_the_master_with_their_work_as_cost(cluster: Cluster) -> None:
    cluster.executor("127.0.0.2", activeTasks=1)
    cluster.executor("127.0.0.3", activeTasks=0)
    assert await workers(cluster) == {
        FIRST: Worker(FIRST, frozenset({"127.0.0.2"}), 2.0),
        SECOND: Worker(SECOND, frozenset({"127.0.0.3"}), 1.0),
    }


async def test_an_idle_worker_costs_nothing(cluster: Cluster) -> None:
    cluster.worker(1, coresused=0)
    cluster.executor("127.0.0.3", isActive=False)
    assert (await workers(cluster))[SECOND].cost == 0


async def test_a_worker_is_found_by_its_public_name_too(cluster: Cluster) -> None:
    cluster.worker(0, webuiaddress="http://spark-1.example.com:8081")
    assert (await workers(cluster))[FIRST].hosts == {"127.0.0.2", "spark-1.example.com"}


async def test_a_task_counted_twice_does_not_raise_the_cost_of_a_worker(cluster: Cluster) -> None:
    cluster.executor("127.0.0.2", activeTasks=2)
    assert (await workers(cluster))[FIRST].cost == 2


async def test_workers_with_shuffle_files_of_a_batch_application_are_removed_last(cluster: Cluster) -> None:
    cluster.executor("127.0.0.2", activeTasks=1, totalShuffleWrite=0)
    cluster.executor("127.0.0.3", activeTasks=0)
    found = await workers(cluster, batch=True)
    assert found[SECOND].cost > 1000 * found[FIRST].cost
    assert (await workers(cluster))[SECOND].cost == 1, "in a streaming query they are no matter"


async def test_shuffle_files_of_earlier_applications_keep_no_worker(cluster: Cluster) -> None:
    for path in ("jobs?status=running", "stages?status=active"):
        cluster.spark.answers[f"{APP}/{path}"] = []
    async with cluster.engine(batch=True) as engine:
        await engine.describe()
        assert all(worker.cost > 1000 for worker in await engine.workers()), "something may have run a moment ago"
        assert engine._memory.quiet_since is not None
        engine._memory = replace(engine._memory, quiet_since=engine._memory.quiet_since - IDLE_AFTER)
        await asyncio.sleep(1.2 * FRESH)  # until the cached answers expire
        assert [worker.cost for worker in await engine.workers()] == [2, 2]


@pytest.mark.parametrize(("active", "listed"), [(True, True), (False, False)])
async def test_a_draining_worker_is_present_while_it_has_executors(
    cluster: Cluster, active: bool, listed: bool
) -> None:
    """Its process stays registered until it is stopped, long after its executors have ended."""
    cluster.worker(0, state="DECOMMISSIONED")
    cluster.executor("127.0.0.2", isActive=active)
    assert (FIRST in await workers(cluster)) == listed


async def test_a_dead_worker_is_gone(cluster: Cluster) -> None:
    cluster.worker(0, state="DEAD")
    assert set(await workers(cluster)) == {SECOND}


async def test_without_a_running_application_the_master_is_enough(cluster: Cluster) -> None:
    cluster.spark.answers["/json/"]["activeapps"] = []
    del cluster.spark.answers["/v1/progress"]
    cluster.worker(0, coresused=0)
    found = await workers(cluster)
    assert [found[FIRST].cost, found[SECOND].cost] == [0, 1]


async def test_without_an_answer_of_the_driver_the_workers_are_an_error(cluster: Cluster) -> None:
    del cluster.spark.answers["/v1/progress"]
    with pytest.raises(EdgeError):
        await workers(cluster)


async def test_without_a_master_no_workers_are_known(cluster: Cluster) -> None:
    with pytest.raises(RefusedError, match="parameter master"):
        await workers(cluster, master=None)
    async with cluster.engine(master=None) as engine:
        with pytest.raises(RefusedError, match="parameter master"):
            await engine.drain(Worker(FIRST, frozenset()))


async def test_draining_makes_the_master_decommission_the_workers_host(cluster: Cluster) -> None:
    async with cluster.engine() as engine:
        await engine.drain(Worker(FIRST, frozenset({"127.0.0.2"})))
    assert cluster.posted == ["/workers/kill/?host=127.0.0.2"]


@pytest.mark.parametrize("state", ["DECOMMISSIONED", "DEAD"])
async def test_draining_again_sends_nothing(cluster: Cluster, state: str) -> None:
    cluster.worker(0, state=state)
    async with cluster.engine() as engine:
        await engine.drain(Worker(FIRST, frozenset({"127.0.0.2"})))
        await engine.drain(Worker("worker-unknown", frozenset({"127.0.0.9"})))
    assert cluster.posted == []


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (403, RefusedError, "decommission.allow.mode=ALLOW"),
        (404, RefusedError, "no alive worker there"),
        (405, RefusedError, "spark.decommission.enabled=true in SPARK_MASTER_OPTS"),
        (302, AnswerError, "redirected to ''; configure the final address"),
        (503, UnavailableError, "answered 503"),
    ],
)
async def test_a_refusal_of_the_master_names_the_remedy(
    cluster: Cluster, status: int, error: type[EdgeError], message: str
) -> None:
    cluster.status = status
    async with cluster.engine() as engine:
        with pytest.raises(error, match=message):
            await engine.drain(Worker(FIRST, frozenset({"127.0.0.2"})))


async def test_an_application_that_would_never_release_a_worker_is_not_drained(cluster: Cluster) -> None:
    cluster.spark.answers["/v1/progress"] = cluster.spark.report(settings={})
    async with cluster.engine() as engine:
        with pytest.raises(RefusedError, match="start the job with it"):
            await engine.drain(Worker(FIRST, frozenset({"127.0.0.2"})))
    assert cluster.posted == []
