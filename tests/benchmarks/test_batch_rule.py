"""`adaptive_batch` beside Spark's defaults on TPC-H-like tables of three sizes: tasks of stages, time, a skewed join.

The number of tasks is asserted; times are printed as ratios.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from autoscaler.injob import adaptive_batch
from autoscaler.injob.batch_stages import Stage, parallelism_by_rule, within_one_power_of_two
from tests.injob.local_spark import local_spark

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        "AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 10 minutes"
    ),
]

ITEMS = 100_000
"""Line items at x1; TPC-H's scale factor 1 has 60 times as many."""

SCALES = (1, 8, 64)
SLOTS = 2
VOLUMES = {1: "4m", 8: "4m", 64: "16m"}
"""Of a task by scale: as large as leaves the stages a few tasks for each slot, so that starting them costs little."""

ROUNDS = 3

QUERIES = {
    "returned items": "SELECT orderkey, sum(price) AS s, max(comment) AS c FROM items{scale} WHERE flag < 3 GROUP BY 1",
    "orders by day": (
        "SELECT day, count(*) AS n, sum(price) AS s FROM orders{scale} JOIN items{scale} USING (orderkey) GROUP BY 1"
    ),
    "customers": (
        "SELECT custkey, max(name) AS name, sum(price) AS s FROM orders{scale} JOIN customers{scale} USING (custkey) "
        "JOIN items{scale} USING (orderkey) GROUP BY 1"
    ),
}
JOIN = "SELECT orderkey, total, name FROM {orders} JOIN customers{scale} ON {key} = customers{scale}.custkey"


def create(spark: Any, directory: Path, scale: int) -> None:
    """Write the tables of a scale; `favourite` is the customer of 30 % of the orders of another column."""
    orders = ITEMS * scale // 4
    tables = {
        "items": spark.range(0, ITEMS * scale, 1, 8).selectExpr(
            "id AS line",
            "id DIV 4 AS orderkey",
            "rand(1) * 1000 AS price",
            "id % 4 AS flag",
            "sha2(CAST(id AS STRING), 256) AS comment",
        ),
        "orders": spark.range(0, orders, 1, 8).selectExpr(
            "id AS orderkey",
            f"abs(xxhash64(id)) % {orders // 10} AS custkey",
            f"IF(id % 10 < 3, 1, abs(xxhash64(id)) % {orders // 10}) AS favourite",
            "id % 365 AS day",
            "sha2(CAST(id AS STRING), 512) AS total",
        ),
        "customers": spark.range(0, orders // 10, 1, 2).selectExpr(
            "id AS custkey", "sha2(CAST(id AS STRING), 256) AS name"
        ),
    }
    for name, table in tables.items():
        path = str(directory / f"{name}{scale}")
        table.write.parquet(path)
        spark.read.parquet(path).createOrReplaceGlobalTempView(f"{name}{scale}")


def run(spark: Any, name: str, query: str) -> float:
    """Run a query, discard its rows, and return its seconds."""
    spark.sparkContext.setJobDescription(name)
    began = time.perf_counter()
    spark.sql(query).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A session with Spark's defaults and one under `adaptive_batch`, with the tables."""
    directory = tmp_path_factory.mktemp("batch")
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(directory),
        "spark.sql.shuffle.partitions": "200",
        "spark.sql.autoBroadcastJoinThreshold": "-1",  # joins must shuffle
    }
    with local_spark(directory, SLOTS, conf) as spark:
        for scale in SCALES:
            create(spark, directory, scale)
        both = spark.newSession(), spark.newSession()
        for session in both:
            for table in ("items", "orders", "customers"):
                for scale in SCALES:
                    session.table(f"global_temp.{table}{scale}").createOrReplaceTempView(f"{table}{scale}")
        yield both


def beside(sessions: tuple[Any, Any], name: str, query: str) -> tuple[float, float]:
    """Median seconds of a query with the defaults and under `adaptive_batch`, alternating, without the first round."""
    times = [[run(session, name, query) for session in sessions] for _ in range(ROUNDS + 1)][1:]
    plain, ours = zip(*times, strict=True)
    return median(plain), median(ours)


def test_the_tasks_of_stages_are_within_a_power_of_two_of_the_rule(sessions: tuple[Any, Any]) -> None:
    plain, ours = sessions
    lines = [
        f"\n{SLOTS} slots; seconds, the median of {ROUNDS}",
        f"{'query':24} {'defaults':>9} {'ours':>7} {'ratio':>6}  tasks of stages that read shuffles (by the rule)",
    ]
    wrong: list[Stage] = []
    totals = [0.0, 0.0]
    for scale in SCALES:
        batch = adaptive_batch(ours, avg_data_volume_per_task=VOLUMES[scale], max_parallelism=512)
        for title, query in QUERIES.items():
            name = f"{title} x{scale}"
            text = query.format(scale=scale)
            default, adaptive = beside((plain, ours), name, text)
            run(ours, f"{name} counted", text)
            stages = [each for each in batch.read().stages if each.name == f"{name} counted"]
            read = [each for each in stages if each.shuffle_read_bytes]
            assert read
            wrong += [each for each in read if within_one_power_of_two(each, batch.options) is False]
            tasks = ", ".join(f"{each.tasks} ({parallelism_by_rule(each, batch.options)})" for each in read)
            lines.append(f"{name:24} {default:9.2f} {adaptive:7.2f} {adaptive / default:6.2f}  {tasks}")
            totals[0] += default
            totals[1] += adaptive
    lines.append(f"{'all':24} {totals[0]:9.2f} {totals[1]:7.2f} {totals[1] / totals[0]:6.2f}")
    print("\n".join(lines))  # noqa: T201 - the figures are the point of a benchmark
    assert not wrong
    assert totals[1] <= 1.05 * totals[0]


def test_a_join_with_a_key_of_30_percent_is_split(sessions: tuple[Any, Any]) -> None:
    plain, ours = sessions
    scale = SCALES[-1]
    # A partition is skewed only if it is larger than a task's volume.
    batch = adaptive_batch(ours, avg_data_volume_per_task="4m", max_parallelism=512)
    even, skewed = (
        beside((plain, ours), f"join on {key}", JOIN.format(orders=f"orders{scale}", key=key, scale=scale))
        for key in (f"orders{scale}.custkey", "favourite")
    )
    lines = [
        f"{name:10} even {before:6.2f}, with a key of 30 % {after:6.2f}: {after / before:.2f} times"
        for name, before, after in zip(("defaults", "ours"), even, skewed, strict=True)
    ]
    title = f"\njoin x{scale}; seconds, the median of {ROUNDS}"
    print("\n".join((title, *lines)))  # noqa: T201 - the figures are the point of a benchmark
    assert skewed[1] <= 1.3 * even[1]
    assert batch.read().skewed_partitions
