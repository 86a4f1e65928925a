"""A job that counts keys, on its own Spark cluster: its throughput, its exactness, and its commits."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from autoscaler.targets.local.pool import Pool
from tests.e2e.test_local_target import Cluster, became, until


async def grow(pool: Pool, size: int) -> None:
    """Change the number of workers, and wait for them."""
    await pool.scale(size)
    await became(pool, desired=size, ready=size)


class Keyed:
    """The job (`keyed_job.py`), with `ReactiveJob` or as plain Spark, and its input.

    Its first batch has each of `keys` once; each later batch has `rows`, each of which takes so many seconds.
    """

    def __init__(
        self, directory: Path, java: Path, *, reactive: bool, keys: int, rows: int, cost: float, files: int
    ) -> None:
        from autoscaler.demo.processes import free_port  # noqa: PLC0415 - it needs pyspark

        self.cluster = Cluster(directory, java)
        self.place = directory / "job"
        (self.place / "in").mkdir(parents=True)
        self.reactive = reactive
        self.rest = free_port()
        chance = random.Random(1)  # noqa: S311 - not a secret
        self.rows = rows
        self.write(0, range(keys), 0.0)
        for number in range(1, files):
            self.write(number, [chance.randrange(keys) for _ in range(rows)], cost)

    def write(self, number: int, keys: Iterable[int], cost: float) -> None:
        column = pa.array(keys, pa.int64())
        path = self.place / "in" / f"{number:05}.parquet"
        pa.parquet.write_table(pa.table({"key": column, "cost": pa.array([cost] * len(column))}), path)
        os.utime(path, (1e9 + number, 1e9 + number))

    def start(self) -> None:
        settings = {
            "directory": str(self.place),
            "master": f"spark://127.0.0.1:{self.cluster.port}",
            "reactive": self.reactive,
            "rest": f"127.0.0.1:{self.rest}",
            "conf": {
                "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
                "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
            },
            "spark": {
                "spark.executor.cores": "1",
                "spark.executor.memory": "640m",
                "spark.driver.memory": "1g",
                "spark.driver.host": "127.0.0.1",
                "spark.sql.shuffle.partitions": "6",
                "spark.ui.port": str(self.cluster.driver),
            },
        }
        (self.place / "settings.json").write_text(json.dumps(settings))
        root = Path(__file__).parents[2]
        script = root / "tests" / "e2e" / "keyed_job.py"
        environment = {**self.cluster.environment, "PYTHONPATH": str(root)}
        argv = [sys.executable, str(script), str(self.place / "settings.json")]
        self.cluster.processes.start("job", argv, environment)

    def committed(self) -> dict[int, float]:
        """The time at which each batch was written."""
        return {int(path.parent.name): path.stat().st_mtime for path in (self.place / "out").glob("*/_SUCCESS")}

    def throughput(self, since: float, batches: int = 8) -> float:
        """Rows per second of the next batches that begin after a time."""
        until(lambda: sum(at > since for at in self.committed().values()) > batches, 600)
        times = sorted(at for at in self.committed().values() if at > since)[: batches + 1]
        return self.rows * batches / (times[-1] - times[0])

    def longest_gap(self, since: float) -> float:
        """The longest time without a commit from then until now, in seconds."""
        times = sorted(at for at in self.committed().values() if at > since)
        return max(after - before for before, after in pairwise([since, *times, time.time()]))

    def tasks_on(self, executors: int) -> float:
        """Wait until so many executors have had a task; returns that time."""
        until(lambda: self.cluster.working() >= executors, 600)
        return time.time()

    def warm(self, batches: int) -> float:
        """Wait until some batches after the first one have ended; returns that time."""
        until(lambda: len(self.committed()) > batches, 600)
        return time.time()

    def check(self) -> None:
        """Check that each count is exact, over all complete batches."""
        expected: Counter[int] = Counter()
        counted: dict[int, int] = {}
        done = sorted(self.committed())
        assert done == list(range(len(done)))
        for batch in done:
            rows = pa.parquet.read_table(self.place / "out" / str(batch))
            counted.update(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), strict=True))
            expected.update(pa.parquet.read_table(self.place / "in" / f"{batch:05}.parquet")["key"].to_pylist())
        assert counted == expected
