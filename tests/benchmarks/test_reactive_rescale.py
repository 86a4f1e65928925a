"""A query with a million keys on one worker, then three, then one: the gain of new workers, beside plain Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.e2e.keyed_cluster import Keyed, grow
from tests.e2e.test_local_target import java

__all__ = ["java"]

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 10 minutes"
    ),
]

ROWS, COST = 2400, 0.005
"""Rows of a batch after the first one, which has each key once, and seconds that each of them costs."""

STEADY = 20.0
"""Seconds after the first task on a new worker from which on the throughput is measured."""


async def rescaled(job: Keyed) -> tuple[float, float]:
    """The throughput on one worker, and on three."""
    async with job.cluster.target() as pool:
        await grow(pool, 1)
        job.start()
        one = job.throughput(job.warm(2))
        await grow(pool, 3)
        three = job.throughput(job.tasks_on(2) + STEADY)
        await grow(pool, 1)
        job.throughput(time.time())
        job.cluster.processes.stop("job", 60)
    job.check()
    return one, three


async def fresh(job: Keyed) -> float:
    """The throughput of a job that is started on three workers."""
    async with job.cluster.target() as pool:
        await grow(pool, 3)
        job.start()
        found = job.throughput(job.warm(4))
        job.cluster.processes.stop("job", 60)
    return found


async def test_a_million_keys_use_new_workers_like_a_job_started_on_them(tmp_path: Path, java: Path) -> None:
    async def measured(name: str, *, reactive: bool, steps: bool) -> tuple[float, float]:
        job = Keyed(tmp_path / name, java, reactive=reactive, keys=1_000_000, rows=ROWS, cost=COST, files=150)
        try:
            return await rescaled(job) if steps else (0.0, await fresh(job))
        finally:
            job.cluster.processes.clear()

    _, full = await measured("fresh", reactive=True, steps=False)
    one, three = await measured("reactive", reactive=True, steps=True)
    plain_one, plain_three = await measured("plain", reactive=False, steps=True)
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\nstarted on three workers: {full:.0f} rows/s; 1 -> 3 workers:"
        f"\nReactiveJob {one:.0f} -> {three:.0f} rows/s ({three / full:.0%} of that start)"
        f"\nplain Spark {plain_one:.0f} -> {plain_three:.0f} rows/s ({plain_three / full:.0%})"
    )
    assert three > 0.9 * full
    assert plain_three < 1.5 * plain_one
