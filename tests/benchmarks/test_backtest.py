"""How many days each core simulates per minute: decisions every 15 s, nothing skipped, and the overhead of Spark.

It is printed beside the figure of one process without Spark at the same time, so that the machine's own speed cancels
out. The time until Python's workers have started is printed too. AUTOSCALER_BENCH_DAYS is the number of days (16 by
default; 500 take some minutes).
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from datetime import time as clock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.history.backtest_job import arrived, known, slots, trials
from autoscaler.history.session import session
from autoscaler.plugins import Kind, load
from autoscaler.simulation.plant import PLANTS
from autoscaler.simulation.trial import Case, Variant, day_load, run_trial

DAYS = int(os.environ.get("AUTOSCALER_BENCH_DAYS", "16"))
CLUSTERS = 4
ALONE = 3
"""Days that are tried without Spark, to compare with."""

FIRST = date(2026, 3, 4)
METRICS = ("lag", "arrivals", "throughput", "utilization")


def case(name: str) -> Case:
    policy = load(Kind.POLICY, "adaptive")()
    policies = (NamedPolicy("main", policy),)
    spec = ClusterSpec(
        name=name, limits=Limits(1, 24), policies=policies, metrics=METRICS, engine=True, lookback=policy.lookback
    )
    return Case(PLANTS["k8s"], 75.0, 18, (Variant(policy="configured", spec=spec),))


def observations(spark: SparkSession, days: int) -> DataFrame:
    """Every 15 s of each day of each cluster: a day's wave and some noise."""
    number = F.floor(F.col("id") / CLUSTERS)
    wave = 500 + 400 * F.sin(number * (15 / 86400 * 2 * math.pi))
    noisy = wave * (1 + 0.04 * F.sin(number * 1.7) * F.sin(number * 0.031))
    return spark.range(days * 5760 * CLUSTERS, numPartitions=4).select(
        F.concat(F.lit("cluster-"), F.col("id") % CLUSTERS).alias("cluster"),
        F.timestamp_seconds(int(datetime.combine(FIRST, clock(), UTC).timestamp()) + number * 15).alias("at"),
        noisy.alias("arrivals"),
    )


@pytest.mark.benchmark
def test_simulated_days_per_minute_and_core() -> None:
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.log.level": "ERROR"}
    settings["spark.ui.showConsoleProgress"] = "false"
    with session("benchmark", master="local[2]", settings=settings) as spark:
        cores = slots(spark)
        arrivals = arrived(spark, observations(spark, -(-DAYS // CLUSTERS))).persist()
        begin = time.perf_counter()
        found = known(arrivals)
        read = time.perf_counter() - begin
        cases = {one.cluster: case(one.cluster) for one in found}
        row = arrivals.orderBy("cluster", "day").first()
        assert row is not None
        midnight = datetime.combine(row["day"], clock(), UTC)
        alone = []
        for _ in range(ALONE):
            # A process's own time: on a busy machine it does not depend on other processes.
            begin = time.process_time()
            one = day_load("x", row["slots"], row["rates"], 75.0)
            done = run_trial(cases[row["cluster"]], cases[row["cluster"]].variants[0], one, midnight, 1)
            alone.append(time.process_time() - begin)
        begin = time.perf_counter()
        first = [replace(one, days=one.days[:1]) for one in found]
        firsts = len(trials(spark, arrivals, cases, first, (1,)).collect())
        started = time.perf_counter() - begin
        begin = time.perf_counter()
        rows = trials(spark, arrivals, cases, found, (1,)).collect()
        took = time.perf_counter() - begin
        same = [one for one in rows if (one["cluster"], one["day"]) == (row["cluster"], row["day"])]
        arrivals.unpersist()
    days = sum(len(one.days) for one in found)
    assert len(rows) == days >= DAYS
    assert [one["digest"] for one in same] == [done.digest], "with Spark and without it is the same"
    here = 60 / min(alone)
    there, cold = (60 / cores * many / seconds for many, seconds in ((days, took), (days + firsts, took + started)))
    print(  # noqa: T201 - a benchmark's result is what it prints
        f"\n{days} days of {len(found)} clusters on {cores} cores: {there:.0f} days a minute and core with Spark, "
        f"{cold:.0f} with the start of its workers (read in {read:.1f} s, {firsts} days tried first in "
        f"{started:.1f} s, then all in {took:.1f} s), {here:.0f} in a process that has a core to itself"
    )
