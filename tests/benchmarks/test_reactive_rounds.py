"""Fifty random rounds of losses, arrivals, bounds, failures and ends: the counts stay exact and nothing grows."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from autoscaler.demo.processes import DemoError
from autoscaler.injob.reactive.snapshot import State
from autoscaler.targets.local.pool import Pool
from tests.e2e.keyed_cluster import grow
from tests.e2e.test_local_target import get, java, until
from tests.e2e.test_reactive_job import Job, job

__all__ = ["java", "job"]

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 15 minutes"
    ),
]

ROUNDS = int(os.environ.get("AUTOSCALER_BENCH_ROUNDS", "50"))
SEED = 22
SETTLED = 8
"""Rounds after which memory, threads and descriptors are taken as what the driver needs."""


async def meanwhile(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for a condition, while the pool starts and replaces workers."""
    await asyncio.to_thread(until, condition, seconds)


class Rounds:
    """Random events of a job."""

    def __init__(self, job: Job, pool: Pool) -> None:
        self.job, self.pool = job, pool
        self.chance = random.Random(SEED)  # noqa: S311 - not a secret
        self.size, self.states = 2, {State.CREATED.value}
        self.log: list[str] = []

    # events while the driver runs

    async def workers(self) -> None:
        self.size = self.chance.randrange(1, 4)
        await self.pool.scale(self.size)

    async def no_worker(self) -> None:
        await grow(self.pool, 0)
        await meanwhile(lambda: self.job.slots() == 0)
        await self.pool.scale(self.size)

    async def worker_killed(self) -> None:
        workers = [one.pid for one in self.pool._workers.values() if one.pid is not None]
        if workers:
            os.killpg(os.getpgid(self.chance.choice(workers)), signal.SIGKILL)

    async def executor_killed(self) -> None:
        with suppress(AssertionError):
            self.job.kill_executor()

    async def executor_hangs(self) -> None:
        workers = [one.pid for one in self.pool._workers.values() if one.pid is not None]
        found = [child for pid in workers for child in psutil.Process(pid).children(recursive=True)]
        for process in found[:1]:
            process.suspend()
            await asyncio.sleep(self.chance.uniform(0.5, 4))
            process.resume()

    async def bounds(self) -> None:
        self.job.bound(self.chance.randrange(1, 4))

    async def batch_fails(self) -> None:
        (self.job.place / "fail").touch()

    # events that end the driver; it is started again

    async def ended(self) -> None:
        await meanwhile((self.job.place / "ended").exists)
        self.collect()
        with suppress(DemoError):
            self.job.cluster.processes.wait_for_exit("job", 60)
        (self.job.place / "ended").unlink()
        await self.start()

    async def stopped(self) -> None:
        self.job.ask("POST", f"/jobs/{self.job.id()}/stop", {})
        await self.ended()

    async def cancelled(self) -> None:
        self.job.ask("PATCH", f"/jobs/{self.job.id()}")
        await self.ended()

    async def failed_for_good(self) -> None:
        (self.job.place / "broken").touch()
        (self.job.place / "fail").touch()
        self.job.write(1)
        await self.ended()

    async def killed(self) -> None:
        os.killpg(self.job.cluster.processes.pid("job"), signal.SIGKILL)
        self.collect()
        with suppress(DemoError):
            self.job.cluster.processes.wait_for_exit("job", 60)
        await self.start()

    # checks

    async def start(self) -> None:
        self.job.start()
        await meanwhile(lambda: self.job.state() is not None)

    def collect(self) -> None:
        """Record the states that the driver has logged."""
        lines = self.job.log().splitlines()
        self.states |= {state.value for state in State if any(f" {state.value}: " in line for line in lines)}

    def used(self) -> dict[str, float]:
        """The resources that the driver's Python and its JVM use."""
        driver = psutil.Process(self.job.cluster.processes.pid("job"))
        (jvm,) = (one for one in driver.children() if "java" in one.name())
        (restarts,) = get(f"{self.job.url}/jobs/{self.job.id()}/metrics?get=numRestarts")
        return {
            "restarts": float(restarts["value"]),
            "Python threads": driver.num_threads(),
            "Python descriptors": driver.num_fds(),
            "Python MB": driver.memory_info().rss / 1e6,
            "JVM threads": jvm.num_threads(),
            "JVM descriptors": jvm.num_fds(),
            "JVM MB": jvm.memory_info().rss / 1e6,
        }


async def test_fifty_rounds_lose_and_repeat_nothing_and_nothing_grows(job: Job) -> None:
    job.write(2)
    async with job.cluster.target() as pool:
        rounds = Rounds(job, pool)
        await rounds.start()
        await meanwhile(lambda: job.state() == "CREATED")
        await grow(pool, 2)
        await meanwhile(lambda: job.counted() == job.expected())
        goes_on = [
            rounds.workers,
            rounds.no_worker,
            rounds.worker_killed,
            rounds.executor_killed,
            rounds.executor_hangs,
            rounds.bounds,
            rounds.batch_fails,
        ]
        ends = [rounds.stopped, rounds.cancelled, rounds.failed_for_good, rounds.killed]
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for number in range(ROUNDS):
            begun = time.monotonic()
            # The first two thirds use one driver, which must not grow.
            one_driver = number < ROUNDS * 2 // 3
            event = rounds.chance.choice(goes_on if one_driver else goes_on + ends)
            if not one_driver and number >= ROUNDS - len(ends):
                event = ends[number - ROUNDS]
            print(f"round {number}: {event.__name__}", end=" ", flush=True)  # noqa: T201 - it takes minutes
            await event()
            job.write(rounds.chance.randrange(1, 3))
            await meanwhile(lambda: job.counted() == job.expected(), 180)
            print(f"{time.monotonic() - begun:.0f} s")  # noqa: T201
            if one_driver:
                after = rounds.used()
                if number <= SETTLED:  # the maximum: thread pools of the JVM grow and shrink
                    before = {name: max(used, before.get(name, 0)) for name, used in after.items()}
        rounds.collect()
    print("".join(f"\n{name}: {before[name]:.0f} -> {after[name]:.0f}" for name in after))  # noqa: T201
    assert rounds.states == {state.value for state in State}
    assert after["Python threads"] <= before["Python threads"] + 2
    assert after["Python descriptors"] <= before["Python descriptors"] + 4
    assert after["Python MB"] < before["Python MB"] + 20
    assert after["JVM MB"] < 1.5 * before["JVM MB"]  # its heap grows up to its limit
    assert after["JVM threads"] <= before["JVM threads"] + 20
    assert after["JVM descriptors"] <= before["JVM descriptors"] + 20
