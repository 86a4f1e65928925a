"""The source and engine `flink` on a real Flink, compared with the truth.

The truth is what the job cannot influence: the growth rate of its log, the time per record, and the processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from autoscaler.core.model import EngineStatus, JobState, Phase, Reading
from autoscaler.engines.flink import Flink as FlinkPlugin
from autoscaler.engines.flink import FlinkEngine
from autoscaler.ports import EdgeError, UnavailableError
from autoscaler.sources.flink import Flink, FlinkSource
from autoscaler.sources.flink_metrics import FlinkQuery, Metric
from tests.clients.flink_stub import Shared

from .flink_cluster import FlinkCluster, flink_cluster, until

pytestmark = pytest.mark.e2e

COST = 45  # milliseconds
PER_SLOT = 1000 / COST
PATIENCE = 120.0  # maximum seconds of any step on a busy machine

T = TypeVar("T")


class Rig:
    """A cluster with its source and engine, and the last reading of each metric."""

    def __init__(self, cluster: FlinkCluster, source: FlinkSource, engine: FlinkEngine) -> None:
        self.cluster, self.source, self.engine = cluster, source, engine
        self.readings: dict[str, Reading] = {}

    async def read(self, *metrics: str, **query: float) -> dict[str, float]:
        """Read these metrics, as far as they are available now."""
        now = datetime.now(UTC)  # noqa: TID251 - a real daemon's clock
        found = await asyncio.gather(
            *(self.source.collect(FlinkQuery(metric=metric, **query), now) for metric in metrics),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        values: dict[str, float] = {}
        for metric, reading in zip(metrics, found, strict=True):
            if isinstance(reading, EdgeError):
                continue
            assert not isinstance(reading, BaseException), reading
            assert isinstance(reading.averaged, float)
            values[metric] = reading.averaged
            self.readings[metric] = reading
        return values

    async def comes_to(self, expected: dict[str, Callable[[float], bool]]) -> dict[str, float]:
        """Poll every two seconds until all values are as expected."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.read(*expected)
            if found.keys() == expected.keys() and all(holds(found[metric]) for metric, holds in expected.items()):
                return found
            assert time.monotonic() < deadline, f"last seen: {found}"
            await asyncio.sleep(2)

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The engine's answer; repeated while a JobManager without CPU time answers late."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await ask()
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.5)

    async def status(self, holds: Callable[[EngineStatus], bool]) -> tuple[EngineStatus, list[EngineStatus]]:
        """Poll until the status is as expected; returns all statuses on the way."""
        deadline = time.monotonic() + PATIENCE
        seen: list[EngineStatus] = []
        while True:
            seen.append(await self.answer(self.engine.describe))
            if holds(seen[-1]):
                return seen[-1], seen
            assert time.monotonic() < deadline, f"last seen: {seen[-1]}"
            await asyncio.sleep(0.5)

    async def finds(self, subjects: set[str]) -> None:
        """Poll until these are the only findings."""
        deadline = time.monotonic() + PATIENCE
        while (found := {finding.subject for finding in await self.answer(self.engine.diagnose)}) != subjects:
            assert time.monotonic() < deadline, f"last found: {found}"
            await asyncio.sleep(0.5)


@pytest.fixture
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    shared = Shared()
    with flink_cluster(tmp_path, cost=COST, **getattr(request, "param", {})) as cluster:
        cluster.start_job_manager()
        for number in (1, 2):
            cluster.start_task_manager(number)
        await asyncio.to_thread(until, lambda: cluster.parallelism() == 2, PATIENCE, "for two slots")
        window = timedelta(seconds=10)
        async with (
            shared.stack,
            Flink(url=cluster.rest, job="surge", timeout=window).connect(shared) as source,
            FlinkPlugin(url=cluster.rest, job="surge", timeout=window).connect(shared) as engine,
        ):
            yield Rig(cluster, source, engine)


def about(value: float, share: float = 0.15) -> Callable[[float], bool]:
    return lambda found: abs(found - value) <= share * value


async def test_the_readings_are_those_of_the_job(rig: Rig) -> None:
    rig.cluster.offer(20.0)
    await rig.comes_to(
        {
            Metric.LAG: lambda lag: lag < 20,
            Metric.ARRIVALS: about(20),
            Metric.THROUGHPUT: about(20),
            Metric.SATURATION: about(20 / (2 * PER_SLOT), 0.25),
            Metric.UTILIZATION: about(20 / (2 * PER_SLOT), 0.25),
            Metric.CAPACITY: about(2 * PER_SLOT, 0.25),
            Metric.REQUIRED_PARALLELISM: lambda slots: slots == 2,
        }
    )
    rig.cluster.offer(100.0)
    found = await rig.comes_to(
        {
            Metric.LAG: lambda lag: lag > 500,
            Metric.ARRIVALS: about(100),
            Metric.THROUGHPUT: about(2 * PER_SLOT),
            Metric.SATURATION: lambda share: share >= 0.95,
            Metric.CAPACITY: about(2 * PER_SLOT),
            Metric.REQUIRED_PARALLELISM: lambda slots: 6 <= slots <= 8,  # 100 / 0.7 of 22 each
        }
    )
    pending = await asyncio.to_thread(rig.cluster.pending)
    assert pending is not None
    assert abs(found[Metric.LAG] - pending) <= 100 * 5, "they are up to some seconds apart"
    others = (Metric.HEAP, Metric.GC, Metric.CPU, Metric.CHECKPOINT_AGE, Metric.CHECKPOINT_DURATION)
    found = await rig.comes_to(dict.fromkeys(others, lambda _: True))
    assert 0 < found[Metric.HEAP] < 1


@pytest.mark.parametrize("rig", [{"partitions": 3}], indirect=True)
async def test_a_worker_with_more_partitions_than_the_other_is_the_hottest(rig: Rig) -> None:
    rig.cluster.offer(20.0)
    hot, cool = 20 * 2 / 3 / PER_SLOT, 20 / 3 / PER_SLOT
    deadline = time.monotonic() + PATIENCE
    shares: tuple[float, ...] = ()
    while sorted(shares) != pytest.approx([cool, hot], rel=0.2):
        assert time.monotonic() < deadline, f"last seen: {shares}"
        await asyncio.sleep(2)
        if await rig.read(Metric.UTILIZATION):
            value = rig.readings[Metric.UTILIZATION].value
            shares = value if isinstance(value, tuple) else ()
    assert rig.readings[Metric.UTILIZATION].mean == pytest.approx((cool + hot) / 2, rel=0.2)


async def test_a_stopped_worker_releases_its_slots_at_once_and_no_metric_is_invented(rig: Rig) -> None:
    rig.cluster.offer(20.0)
    before, _ = await rig.status(lambda seen: seen.job is JobState.RUNNING and seen.parallelism == 2)
    assert (before.slots, before.max_parallelism) == (2, 120)
    # From its settings: 10 s heartbeat; 5 s cooldown, 2 s stabilization, 3 s for a checkpoint, 1 s more, 5 s restart.
    margin = timedelta(minutes=1)
    assert before.deadlines[Phase.REGISTERED] - margin == timedelta(seconds=10)
    assert before.deadlines[Phase.ABSORBED] - margin == timedelta(seconds=5 + 2 + 3 + 1 + 5.5)
    assert len(await rig.answer(rig.engine.workers)) == 2
    # On a busy machine the first checkpoint may fail, which is a finding until one has completed.
    await rig.finds({"high-availability.type"})
    await asyncio.to_thread(rig.cluster.processes.stop, "taskmanager-2", 20)
    after, seen = await rig.status(lambda seen: seen.job is JobState.RUNNING and seen.parallelism == 1)
    assert after.slots == 1
    assert before.running_since is not None
    assert after.running_since is not None
    assert after.running_since > before.running_since
    assert {known.job for known in seen} <= {JobState.RUNNING, JobState.RESTARTING}
    found = await rig.comes_to({Metric.THROUGHPUT: lambda rate: rate > 0})
    assert found[Metric.THROUGHPUT] < 1.3 * PER_SLOT
