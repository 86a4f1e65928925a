"""The demo's batch job at growing sizes: a fixed cluster, Spark's dynamic allocation, the daemon with policy batch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.demo.spark_batch.cluster import BatchCluster, Variant, autoscaled, defaults
from autoscaler.demo.spark_batch.config import WORKERS
from autoscaler.demo.spark_batch.result import BatchRun, same_results
from autoscaler.demo.spark_batch.tables import files, write_tables
from tests.e2e.test_demo import require_demo

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ,
        reason="AUTOSCALER_BENCH_LARGE is not set: five minutes for a scale of 1, 25 for 8, three hours for 64",
    ),
]

SCALES = [float(scale) for scale in os.environ.get("AUTOSCALER_BENCH_SCALES", "1 8").split()]
"""Times 10 000 orders; 64 as well takes three hours."""

WORTH = 8
"""From this scale on the targets are judged; below, phases of the job are as short as the start of a worker."""

FEWER_THAN_FIXED, FEWER_THAN_DYNAMIC, MORE_TIME = 0.25, 0.10, 0.05


def variants(scale: float) -> Iterator[tuple[str, Variant]]:
    """Each way to run the job, by its name in the table."""
    sources, dynamic = files(scale), {"spark.dynamicAllocation.enabled": "true"}
    fixed = defaults(WORKERS)
    yield "fixed", fixed
    yield "dynamic allocation", replace(fixed, name="dynamic", conf=dynamic)
    # The part of the difference that adaptive_batch alone makes.
    yield "fixed, adaptive_batch", replace(fixed, name="adaptive", sources=sources)
    yield "dynamic, adaptive_batch", replace(fixed, name="both", sources=sources, conf=dynamic)
    yield "autoscaler", autoscaled(WORKERS, sources, least=1)


def cost(name: str, run: BatchRun) -> float:
    """Worker-seconds; for dynamic allocation those of its executors, as if each had its own worker."""
    return run.executor_seconds if name.startswith("dynamic") else run.worker_seconds


@pytest.mark.parametrize("scale", SCALES)
def test_the_daemon_takes_fewer_worker_seconds(
    scale: float, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require_demo(tmp_path_factory)
    write_tables(tmp_path / "tables", scale)
    runs: dict[str, BatchRun] = {}
    print(f"\nscale {scale:g}: {'':24} time  worker-seconds  of tasks  failed  again")  # noqa: T201 - the table
    for name, variant in variants(scale):
        runs[name] = run = BatchCluster(variant, tmp_path / "tables", tmp_path, lambda _: None).run()
        shutil.rmtree(tmp_path / "work" / variant.name)
        print(  # noqa: T201
            f"{name:>34}: {run.time:4.0f} s  {cost(name, run):14.0f}  {run.task_seconds:8.0f}  "
            f"{run.failed_tasks!s:>6}  {len(run.repeated):5}",
            flush=True,
        )
    ours, fixed = runs["autoscaler"], runs["fixed"]
    assert all(same_results(ours, run) for run in runs.values())
    assert (ours.failed_tasks, ours.repeated) == (0, [])
    if scale >= WORTH:
        assert ours.worker_seconds <= (1 - FEWER_THAN_FIXED) * fixed.worker_seconds
        assert ours.worker_seconds <= (1 - FEWER_THAN_DYNAMIC) * runs["dynamic allocation"].executor_seconds
        assert ours.time <= (1 + MORE_TIME) * fixed.time
