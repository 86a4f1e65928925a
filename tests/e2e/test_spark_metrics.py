"""The Spark source, engine, report and doctor on a real standalone cluster, compared with the truth.

The truth is what the job cannot influence: the head of the log follows from the rates in the control file, and the
query's checkpoint has the processed records and their times. The fixed cost of a batch depends on the machine and its
other load, so rates are compared with this truth and delays are counted in batches.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_java
from autoscaler.core.model import EngineStatus, JobState
from autoscaler.demo.processes import free_port
from autoscaler.engines.spark import Spark as SparkEngine
from autoscaler.engines.spark import SparkEngine as LiveEngine
from autoscaler.ports import EdgeError
from autoscaler.sources.spark import Spark, SparkQuery, SparkSource

pytestmark = pytest.mark.e2e

T = TypeVar("T")
JOB = Path(__file__).parent / "data" / "spark_metrics_job.py"
DECOMMISSION = "spark.decommission.enabled=true"
MOST = 200  # records: two workers are faster than one can ever be while a batch has a fixed cost below 2 s
COST = 0.02
CAPACITY = 1 / COST
WINDOW = Spark.window.total_seconds()
PATIENCE = 300  # seconds, for steps whose duration depends on the machine
KEPT = 50  # batches read from the checkpoint; Spark keeps the last 100


def unavailable(reason: str) -> None:
    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class Cluster:
    """A standalone Master, workers of one core, and the job; each in its own process group."""

    def __init__(self, directory: Path, java: Path, spark: Path, stack: ExitStack) -> None:
        self.directory, self.spark, self.stack = directory, spark, stack
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(spark),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": f"-D{DECOMMISSION} -Dspark.worker.timeout=10",
            "SPARK_WORKER_OPTS": f"-D{DECOMMISSION} -Dspark.worker.timeout=10",
        }
        self.port, self.ui, self.report, self.driver_ui = (free_port() for _ in range(4))
        self.control = directory / "control.json"
        self.steps: list[tuple[float, float]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = self.stack.enter_context((self.directory / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [str(self.spark / "bin" / command[0]), *command[1:]],
            stdout=log,
            stderr=log,
            env=self.environment,
            start_new_session=True,
        )
        self.stack.callback(end, process)
        return process

    def start_master(self) -> None:
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui))
        self.start("master", "spark-class", "org.apache.spark.deploy.master.Master", *place)

    def start_worker(self, number: int) -> None:
        size = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        place = ("-d", str(self.directory / f"worker-{number}"), self.url)
        self.start(f"worker-{number}", "spark-class", "org.apache.spark.deploy.worker.Worker", *size, *place)

    def start_job(self) -> subprocess.Popen[bytes]:
        settings = {
            "spark.executor.cores": "1",
            "spark.executor.memory": "768m",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.port": str(self.driver_ui),
            "spark.decommission.enabled": "true",
        }
        confs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        arguments = (str(self.control), str(self.report), str(self.directory / "checkpoint"), str(MOST), str(COST))
        return self.start("job", "spark-submit", "--master", self.url, *confs, str(JOB), *arguments)

    def set_rate(self, rate: float) -> None:
        self.steps.append((time.time(), rate))
        written = self.control.with_suffix(".new")
        written.write_text(json.dumps(self.steps))
        written.replace(self.control)

    def offered(self) -> float:
        ends = [begin for begin, _ in self.steps[1:]] + [time.time()]
        return sum(rate * (end - begin) for (begin, rate), end in zip(self.steps, ends, strict=True))

    def commits(self) -> list[tuple[float, int]]:
        """The commit times of the last batches, and the total records up to each, from the checkpoint."""
        found = []
        paths = sorted((self.directory / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in paths[-KEPT:]:
            lines = (self.directory / "checkpoint" / "offsets" / path.name).read_text().splitlines()
            found.append((path.stat().st_mtime, int(sum(json.loads(lines[2]).values()))))
        return found

    def processed(self) -> int:
        """Records of all committed batches."""
        return max((records for _, records in self.commits()), default=0)

    def truth(self, at: float) -> tuple[float, float]:
        """Records per second in the window that ends with the batch at a time, and the start of its first batch."""
        commits = self.commits()
        last, records = min(commits, key=lambda commit: abs(commit[0] - at))
        first, before = max(commit for commit in commits if commit[0] <= last - WINDOW)
        return (records - before) / (last - first), first

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in self.directory.glob("*.log"))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, by its own process group."""
    for kind, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        if process.poll() is None:
            os.killpg(process.pid, kind)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        break


@contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        unavailable("pyspark is not installed")
        raise AssertionError
    try:
        java = find_java(directory / "java")
    except JavaNotFoundError as error:
        unavailable(str(error))
        raise
    with ExitStack() as stack:
        cluster = Cluster(directory, java, Path(found.submodule_search_locations[0]), stack)
        cluster.set_rate(2)
        cluster.start_master()
        yield cluster


class Shared:
    """The shared objects of a daemon."""

    def __init__(self) -> None:
        self.live: dict[Hashable, Any] = {}
        self.stack = AsyncExitStack()

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        if key not in self.live:
            self.live[key] = await self.stack.enter_async_context(factory())
        return self.live[key]  # type: ignore[no-any-return]


class Daemon:
    """Reads metrics as the daemon does."""

    def __init__(self, source: SparkSource, engine: LiveEngine, cluster: Cluster) -> None:
        self.source, self.engine, self.cluster = source, engine, cluster
        self.last: object = None

    async def reading(self, name: str) -> tuple[float, float]:
        """The value of a metric, and its time."""
        now = datetime.fromtimestamp(time.time(), UTC)
        reading = await self.source.collect(SparkQuery(name), now)
        assert isinstance(reading.value, float)
        assert reading.at <= now
        return reading.value, reading.at.timestamp()

    async def metric(self, name: str) -> float:
        return (await self.reading(name))[0]

    async def metrics(self, *names: str) -> tuple[float, ...]:
        return tuple(await asyncio.gather(*map(self.metric, names)))

    async def metric_and_truth(self, name: str) -> tuple[float, float, float]:
        """A metric, the true throughput in its window, and the start of that window."""
        value, at = await self.reading(name)
        return (value, *self.cluster.truth(at))

    async def arrivals_since(self, rose: float) -> tuple[int, float]:
        """The minimum number of batches that began after a time and have ended, and the arrivals read then."""
        report = (await self.source._api.report()).value
        ended = sum(batch.start > rose for run in report.queries for batch in run.progress)
        return ended, await self.metric("arrivals")

    async def until(self, seconds: float, ask: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
        """Poll every half second until the answer fits; errors count as not fitting."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        self.last = answer = await ask()
                        if fits(answer):
                            return answer
                    except EdgeError as error:
                        self.last = error
                    await asyncio.sleep(0.5)
        except TimeoutError:
            pytest.fail(f"not within {seconds:g} s; the last answer was {self.last!r}\n{self.cluster.logs()}")


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    shared = Shared()
    with running(tmp_path) as cluster:
        parameters: dict[str, Any] = {
            "app": "metrics-job",
            "report": f"http://127.0.0.1:{cluster.report}",
            "master": f"http://127.0.0.1:{cluster.ui}",
            "worker_conf": (DECOMMISSION, "spark.worker.timeout=10"),
        }
        async with (
            shared.stack,
            Spark(**parameters).connect(shared) as source,
            SparkEngine(**parameters).connect(shared) as engine,
        ):
            yield Daemon(source, engine, cluster)


async def test_the_readings_of_a_real_query_are_true(daemon: Daemon) -> None:
    cluster = daemon.cluster

    # The Master starts before it knows the job.
    await daemon.until(PATIENCE, daemon.engine.describe, lambda seen: seen.job is JobState.STOPPED)
    cluster.start_worker(1)
    job = cluster.start_job()

    def runs_on(slots: int) -> Callable[[EngineStatus], bool]:
        return lambda seen: seen.job is JobState.RUNNING and (seen.slots, seen.parallelism) == (slots, slots)

    status = await daemon.until(PATIENCE, daemon.engine.describe, runs_on(1))
    assert status.partitions == 4
    assert status.max_parallelism is None, "the query keeps no state"
    assert status.restarts == 0

    # Low load: once the arrivals of the first, slow batches are processed, the offered rate is shown, and nothing is
    # saturated.
    cluster.set_rate(20)
    await daemon.until(
        PATIENCE,
        lambda: daemon.metrics("arrivals", "throughput", "saturation"),
        lambda seen: abs(seen[0] - 20) < 1 and abs(seen[1] - 20) < 3 and seen[2] < 0.9,
    )

    # Three times the capacity of one worker: visible when three batches that began since have ended, for it takes two
    # intervals between their starts.
    cluster.set_rate(150)
    rose = cluster.steps[-1][0]
    _, arrivals = await daemon.until(
        60, lambda: daemon.arrivals_since(rose), lambda seen: seen[0] >= 3 or seen[1] > 130
    )
    assert arrivals > 130

    # Soon the job is saturated: its throughput is the true one, and its slot is busy for at least that share, less the
    # part that the polls of its executor cut off.
    await daemon.until(30, lambda: daemon.metric("saturation"), lambda share: share >= 0.95)
    saturated = time.time()
    throughput, true, _ = await daemon.until(
        60, lambda: daemon.metric_and_truth("throughput"), lambda seen: seen[2] >= saturated
    )
    assert throughput == pytest.approx(true, rel=0.1)
    assert throughput < CAPACITY
    busy, _, _ = await daemon.until(
        30, lambda: daemon.metric_and_truth("utilization"), lambda seen: seen[0] > 0.85 * seen[1] * COST
    )
    assert busy <= 1

    # Lag is the true backlog, even while a batch runs. If a batch ends between the two reads, both are repeated.
    def lag_is_true() -> Callable[[tuple[float, float, float]], bool]:
        return lambda seen: seen[0] - 25 <= seen[1] <= seen[2] + 25

    async def lag_and_truth() -> tuple[float, float, float]:
        before = cluster.offered() - cluster.processed()
        lag = await daemon.metric("lag")
        # A commit is reported with a delay of some tenths of a second; until then lag is the higher value.
        return min(before, cluster.offered() - cluster.processed()), lag, before + 50

    for _ in range(5):
        await daemon.until(5, lag_and_truth, lag_is_true())
    first, second = await daemon.metric("lag"), 0.0
    second = await daemon.until(20, lambda: daemon.metric("lag"), lambda value: value > first + 200)
    assert second > first

    # A second worker: slots first, then parallelism, then a true throughput that one worker can never have.
    cluster.start_worker(2)
    await daemon.until(PATIENCE, daemon.engine.describe, lambda seen: seen.slots == 2)
    await daemon.until(PATIENCE, daemon.engine.describe, runs_on(2))
    grown = time.time()
    throughput, true, _ = await daemon.until(
        PATIENCE, lambda: daemon.metric_and_truth("throughput"), lambda seen: seen[2] >= grown and seen[0] > CAPACITY
    )
    assert throughput == pytest.approx(true, rel=0.1)
    await daemon.until(30, lambda: daemon.metric("saturation"), lambda share: share >= 0.95)

    # The doctor knows this job; it does not ask for values that the Master shows.
    found = {finding.subject: finding for finding in await daemon.engine.diagnose()}
    assert "spark.deploy.maxExecutorRetries" in found
    assert not {subject for subject in found if "decommission" in subject or "timeout" in subject}

    # The job ends: the engine reports it, and no metric is invented.
    end(job)
    await daemon.until(30, daemon.engine.describe, lambda seen: seen.job in {JobState.STOPPED, JobState.FAILED})
    for name in ("lag", "arrivals", "throughput", "saturation", "utilization", "batch_time"):
        with pytest.raises(EdgeError):
            await daemon.metric(name)
