"""Two jobs under `ReactiveJob` on one Spark cluster: each stays within its bounds, and takes no slots of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.keyed_cluster import grow
from tests.e2e.test_local_target import java, until
from tests.e2e.test_reactive_job import Job, executed

__all__ = ["java"]

pytestmark = pytest.mark.e2e


@pytest.fixture
def jobs(tmp_path: Path, java: Path) -> Iterator[tuple[Job, Job]]:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Job(tmp_path / "first", java)
    try:
        yield first, Job(tmp_path / "second", java, first.cluster)
    finally:
        first.cluster.processes.clear()


async def test_two_jobs_stay_within_their_bounds_and_use_slots_that_the_other_releases(jobs: tuple[Job, Job]) -> None:
    first, second = jobs
    for job in jobs:
        job.write(2)
    async with first.cluster.target() as pool:
        await grow(pool, 3)
        # Without a bound the first one would take all three, and the second one would wait.
        first.start(preferred_slots=2)
        until(lambda: first.slots() == 2)
        second.start(preferred_slots=1)
        for job in jobs:
            executed(job)
        assert (first.slots(), second.slots()) == (2, 1)

        # The other job takes the released slots, at once and no more than these.
        first.bound(1)
        second.bound(2)
        until(lambda: (first.slots(), second.slots()) == (1, 2))
        for job in jobs:
            job.write(1)
            executed(job)

        # A worker is lost: each job continues with its remaining slots or waits, and gets its slots again.
        await grow(pool, 2)
        until(lambda: first.slots() + second.slots() == 2)
        await grow(pool, 3)
        until(lambda: (first.slots(), second.slots()) == (1, 2))
        for job in jobs:
            job.write(1)
            executed(job)
        await asyncio.sleep(3)
        assert (first.slots(), second.slots()) == (1, 2)
