"""The readings of a batch job, and its engine, on a real standalone cluster.

The work of the job is known: 12 tasks and then 6 that read their output, each of a known time.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.core.model import EngineStatus, JobState
from autoscaler.engines.spark import SHUFFLE_COST
from autoscaler.engines.spark import Spark as SparkEngine
from autoscaler.sources.spark import Spark
from autoscaler.sources.spark_batch import BatchMetric
from tests.e2e.test_spark_metrics import DECOMMISSION, PATIENCE, Cluster, Daemon, Shared, running

pytestmark = pytest.mark.e2e

JOB = Path(__file__).parent / "data" / "spark_batch_job.py"
TASKS, READERS = 12, 6
COST = 1.0
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "768m",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.decommission.enabled": "true",
}


def start_job(cluster: Cluster, **settings: str) -> subprocess.Popen[bytes]:
    confs = {**SETTINGS, "spark.ui.port": str(cluster.driver_ui), **settings}
    options = [part for key, value in confs.items() for part in ("--conf", f"{key}={value}")]
    files = (str(cluster.directory / name) for name in ("done", "stop"))
    arguments = (str(cluster.report), str(COST), *files)
    return cluster.start("job", "spark-submit", "--master", cluster.url, *options, str(JOB), *arguments)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    shared = Shared()
    with running(tmp_path) as cluster:
        parameters: dict[str, Any] = {
            "app": "batch-job",
            "report": f"http://127.0.0.1:{cluster.report}",
            "master": f"http://127.0.0.1:{cluster.ui}",
            "worker_conf": (DECOMMISSION, "spark.worker.timeout=10"),
            "batch": True,
            "timeout": timedelta(seconds=30),  # the first answers of a driver take long on a busy machine
        }
        async with (
            shared.stack,
            Spark(**parameters).connect(shared) as source,
            SparkEngine(**parameters).connect(shared) as engine,
        ):
            yield Daemon(source, engine, cluster)


async def test_the_readings_of_a_batch_job_rise_and_fall_to_0_with_it(daemon: Daemon) -> None:
    cluster = daemon.cluster
    polls: list[dict[str, float]] = []

    async def readings() -> dict[str, float]:
        polls.append(dict(zip(BatchMetric, await daemon.metrics(*BatchMetric), strict=True)))
        return polls[-1]

    def nothing(seen: dict[str, float]) -> bool:
        return not any(seen.values())

    # The Master starts before it knows the job.
    await daemon.until(PATIENCE, daemon.engine.describe, lambda seen: seen == EngineStatus(job=JobState.IDLE))
    assert nothing(await readings())
    job = start_job(cluster)
    await daemon.until(PATIENCE, daemon.engine.describe, lambda seen: seen.job is JobState.RUNNING and seen.slots == 0)
    waiting = await daemon.until(PATIENCE, readings, lambda seen: seen["pending_tasks"] > 0)
    assert waiting["pending_tasks"] == TASKS
    assert waiting["running_tasks"] == waiting["remaining_task_time"] == waiting["shuffle_workers"] == 0

    cluster.start_worker(1)
    begin = time.monotonic()
    ran = await daemon.until(PATIENCE, readings, lambda seen: 0 < seen["pending_tasks"] <= TASKS - 3)
    assert ran["running_tasks"] <= 1
    left = ran["pending_tasks"] + ran["running_tasks"] / 2
    # The first task also starts Python, which may take long on a busy machine; all of them have run on one slot.
    finished = TASKS - ran["pending_tasks"] - ran["running_tasks"]
    mean = ran["remaining_task_time"] / left
    assert mean >= COST
    assert mean * (finished - 1) <= time.monotonic() - begin

    # Only the second stage reads a shuffle.
    second = await daemon.until(PATIENCE, readings, lambda seen: seen["runnable_bytes"] > 0)
    assert second["pending_tasks"] + second["running_tasks"] <= READERS
    assert second["shuffle_workers"] == 1
    workers = await daemon.engine.workers()
    assert [worker.cost >= SHUFFLE_COST for worker in workers] == [True]
    await daemon.until(PATIENCE, readings, nothing)
    assert job.poll() is None
    assert (cluster.directory / "done").read_text() == str(TASKS)
    assert await daemon.engine.describe() == EngineStatus(job=JobState.RUNNING, slots=1, parallelism=1)

    # The second stage is a separate Spark job, but of the same query.
    assert second["job_time"] > ran["job_time"]
    assert max(poll["job_time"] for poll in polls) >= (TASKS + READERS - 1) * COST
    assert max(poll["running_tasks"] for poll in polls) == 1
    assert {finding.subject for finding in await daemon.engine.diagnose()} >= {"shuffle files"}

    (cluster.directory / "stop").touch()
    await daemon.until(PATIENCE, daemon.engine.describe, lambda seen: seen == EngineStatus(job=JobState.IDLE))
    assert nothing(await readings())
    assert await asyncio.to_thread(job.wait, 60) == 0
