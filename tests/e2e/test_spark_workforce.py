"""The target `aws-asg` drains real Spark workers: a real Master, Workers and job, and moto's Auto Scaling group."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from autoscaler.clients.spark import SparkApi
from autoscaler.engines.spark import Spark
from autoscaler.ports import RefusedError
from autoscaler.targets.aws_asg.target import AwsAsg, ScaleIn, Target
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Proxy
from tests.e2e.test_local_target import Cluster, became, missing, until

pytest_plugins = ("tests.clients.aws_fixtures",)
pytestmark = pytest.mark.e2e


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Cluster]:
    if importlib.util.find_spec("pyspark") is None:
        missing("pyspark is not installed (extra spark)")
    try:
        java = find_java(tmp_path / "java")
    except JavaNotFoundError as error:
        missing(str(error))
        raise
    found = Cluster(tmp_path, java)
    try:
        yield found
    finally:
        found.processes.clear()


async def test_a_real_worker_is_drained_before_its_instance_is_terminated_and_no_task_fails(
    standalone: Cluster, proxy: Proxy
) -> None:
    async with standalone.target() as pool:
        await pool.scale(2)
        await became(pool, desired=2, ready=2)
        await asyncio.to_thread(standalone.start_job, 30.0)
        await asyncio.to_thread(until, lambda: standalone.working() == 2)

        group = proxy.moto.group(2)
        hosts = sorted(worker.address for worker in pool._workers.values())
        # In moto the instances have their own addresses; here they are those of the workers.
        places = dict(zip(proxy.moto.instances(group).values(), hosts, strict=True))

        def rewrite(text: str) -> str:
            for address, host in places.items():
                text = text.replace(f"<privateIpAddress>{address}<", f"<privateIpAddress>{host}<")
            return text

        proxy.rewrite("DescribeInstances", rewrite)
        ui = f"http://127.0.0.1:{standalone.ui}"
        spark = Spark(app="local-target", report=f"http://127.0.0.1:{standalone.report}", master=ui)
        plugin = AwsAsg(
            group=group,
            region=REGION,
            endpoint_url=proxy.url,
            scale_in=ScaleIn.DRAIN,
            drain=timedelta(minutes=2),
            timeout=timedelta(seconds=9),
        )
        async with LocalShared() as shared, spark.connect(shared) as engine, plugin.connect(shared) as target:
            assert isinstance(target, Target)
            assert {host for worker in await engine.workers() for host in worker.hosts} == set(hosts)
            target.attach(lambda: engine)
            assert (await target.describe()).ready == 2
            await target.scale(1)
            status = await target.describe()
            assert (status.desired, status.ready) == (1, 1)
            async with asyncio.timeout(120):
                await asyncio.gather(*target._leaving.values())
            status = await target.describe()
            assert (status.desired, status.ready, status.remarks) == (1, 1, ())
            assert len(proxy.made("TerminateInstanceInAutoScalingGroup")) == 1
            (left,) = await engine.workers()
            await engine.drain(left)  # once more, for the last worker
            await engine.drain(left)

        def drained() -> bool:
            return not any(executor["isActive"] for executor in standalone.executors())

        await asyncio.to_thread(until, drained)
        executors = standalone.executors()
        assert [executor["failedTasks"] for executor in executors] == [0] * len(executors)
        assert all("decommission" in executor["removeReason"] for executor in executors)


async def test_a_host_that_the_master_does_not_know_is_refused(standalone: Cluster) -> None:
    ui = f"http://127.0.0.1:{standalone.ui}"
    async with LocalShared() as shared:
        api = SparkApi(shared, Spark(app="none", report="http://127.0.0.1:1", master=ui))
        with pytest.raises(RefusedError, match=r"answered 404 Not Found.*the Master has no alive worker there"):
            await api.decommission("127.0.0.99")
