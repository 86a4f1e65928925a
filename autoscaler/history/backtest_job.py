"""Try policies on recorded load, by cluster and day, on all cores of Spark.

The arrivals of one cluster on one day are one row. Spark sends the row to Python once, together with all variants to
try on it, and a task runs whole trials: see `autoscaler.simulation.trial`.
"""

from __future__ import annotations

import gc
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DateType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from autoscaler.history.progress import is_connect
from autoscaler.history.schema import struct
from autoscaler.simulation.scoring import RESCALE_WEIGHT, VIOLATION_WEIGHT
from autoscaler.simulation.trial import BEFORE, MAX_GAP, SLOT, SLOTS, Case, Outcome, Variant, day_load, run_trial

WAVES = 16
"""Tasks per core, if there are enough trials, so that a core that is done early can take another task."""

TRIALS_IN_TASK = 60
"""Maximum trials of a task, about a minute: the progress bar moves, and the retry of a failed task repeats little."""

FEW_TRIALS = 3
"""Up to this many trials run in this process, because the start of a Python worker would take as long."""

_text, _whole, _number = StringType(), IntegerType(), DoubleType()


TRIALS = struct(
    cluster=_text,
    day=DateType(),
    variant=_whole,  # its number among the cluster's variants
    policy=_text,
    parameters=MapType(_text, _text),
    seed=_whole,
    hours=_number,
    replica_hours=_number,
    demand_hours=_number,  # replica-hours that the arrivals need at each moment
    static_hours=_number,  # replica-hours of a constant size for the peak of all days plus 10 %
    late_hours=_number,  # with a record older than the objective
    p50_s=_number,
    p99_s=_number,
    worst_s=_number,
    rescales=_whole,
    digest=_text,
)
"""One row for each cluster, day, variant and seed."""

RESULTS = (
    *("cluster", "variant", "policy", "parameters", "seed", "days", "replica_hours", "static_hours", "demand_hours"),
    *("to_static", "to_demand", "violation", "p99_s", "worst_s", "rescales_per_hour", "j", "pareto", "digest"),
)
"""One row for each cluster, variant and seed: sums and shares over its days, and the maximum of the days' `p99_s` and
`worst_s`. `pareto` applies to the variant, by the means over its seeds."""

_CASES = struct(cluster=_text, number=_whole, first=DateType(), last=DateType(), case=BinaryType())
_FIRST = struct(cluster=_text, first=DateType())


@dataclass(frozen=True, slots=True)
class Known:
    """The recorded days of a cluster.

    Attributes:
        cluster: the cluster's name.
        days: the days that are complete enough for trials, in order.
        peak: the maximum arrivals of these days, averaged over `trial.SLOT` seconds, in records/s.
        left_out: each other day, and the seconds of its longest gap.
    """

    cluster: str
    days: tuple[date, ...]
    peak: float
    left_out: tuple[tuple[date, float], ...]


def arrived(spark: SparkSession, observations: DataFrame, first: Mapping[str, date] | None = None) -> DataFrame:
    """The arrivals, one row for each cluster and day, with the evening before.

    `first`: cluster -> first day to use; clusters that it does not have use all days.

    Returns:
        The columns `cluster`, `day`, `slots` and `rates` (see `trial.offered`), `missing` (seconds of the longest gap)
        and `peak`.
    """
    rate = F.col("arrivals")
    number = F.expr(f"unix_micros(at) div {round(SLOT * 1_000_000)}")
    sound = observations.where(rate.isNotNull() & ~F.isnan(rate) & (rate >= 0) & (rate < math.inf))
    # Aggregate by slot first, so that a cluster with a hundred times the data of others is small before the shuffle.
    means = sound.groupBy("cluster", number.alias("number")).agg(F.avg("arrivals").alias("rate"))
    day, slot = F.expr(f"cast(number div {SLOTS} as int)"), F.expr(f"cast(number % {SLOTS} as int)")
    own, next_day = [F.struct((day + later).alias("day"), (slot - later * SLOTS).alias("slot")) for later in (0, 1)]
    days = F.when(slot >= SLOTS - BEFORE, F.array(own, next_day)).otherwise(F.array(own))
    seen = means.select("cluster", "rate", F.explode(days).alias("of")).select("cluster", "rate", "of.*")
    rows = (
        seen.groupBy("cluster", "day")
        .agg(F.array_sort(F.collect_list(F.struct("slot", "rate"))).alias("seen"))
        .select(
            "cluster",
            F.date_add(F.lit(date(1970, 1, 1)), F.col("day")).alias("day"),
            F.col("seen.slot").alias("slots"),
            F.col("seen.rate").alias("rates"),
            _missing(F.filter("seen.slot", lambda slot: slot >= 0)).alias("missing"),
            F.array_max(F.transform("seen", lambda one: F.when(one["slot"] >= 0, one["rate"]))).alias("peak"),
        )
        .where("peak is not null")
    )
    if not first:
        return rows
    begins = F.broadcast(_frame(spark, sorted(first.items()), _FIRST))
    return rows.join(begins, "cluster", "left").where("first is null or day >= first").drop("first")


def _missing(slots: Column) -> Column:
    """The longest gap of a day without a slot, in seconds."""
    ends, begins = F.concat(slots, F.array(F.lit(SLOTS))), F.concat(F.array(F.lit(-1)), slots)
    return F.array_max(F.zip_with(ends, begins, lambda end, begin: end - begin - 1)) * SLOT


def known(arrivals: DataFrame) -> list[Known]:
    """The recorded days of each cluster, and the days that are left out."""
    fits = _fits()
    rows = (
        arrivals.groupBy("cluster")
        .agg(
            F.array_sort(F.collect_list(F.when(fits, F.col("day")))).alias("days"),
            F.max(F.when(fits, F.col("peak"))).alias("peak"),
            F.array_sort(F.collect_list(F.when(~fits, F.struct("day", "missing")))).alias("left_out"),
        )
        .orderBy("cluster")
        .collect()
    )
    return [
        Known(
            row["cluster"],
            tuple(row["days"]),
            row["peak"] or 0.0,
            tuple((one["day"], one["missing"]) for one in row["left_out"]),
        )
        for row in rows
    ]


def _fits() -> Column:
    return F.col("missing") <= MAX_GAP.total_seconds()


# Trials


def trials(
    spark: SparkSession,
    arrivals: DataFrame,
    cases: Mapping[str, Case],
    found: Sequence[Known],
    seeds: Sequence[int],
) -> DataFrame:
    """Try every variant of every cluster on every day with every seed. Returns `TRIALS`.

    The trials use all complete enough days from the first to the last day of `found`. Clusters without a case are
    skipped.
    """
    # Days are numbered cluster by cluster and assigned to tasks in turn, so that the tasks get similar numbers of days.
    # Spark's own random assignment would leave cores idle while another core still has two tasks to do.
    rows = []
    number = days = 0
    for one in found:
        if one.cluster in cases and one.days:
            first, last = one.days[0], one.days[-1]
            rows.append((one.cluster, number, first, last, pickle.dumps(cases[one.cluster])))
            number += (last - first).days + 1
            days += len(one.days)
    if not rows:
        return spark.createDataFrame([], TRIALS)
    variants = max(len(case.variants) for case in cases.values()) * len(seeds)
    wanted = WAVES * slots(spark)
    parts = min(variants, math.ceil(wanted / days))
    tasks = min(days * parts, max(wanted, math.ceil(days * variants / TRIALS_IN_TASK)))
    place = (F.col("number") + F.datediff("day", "first")) * parts + F.col("part")
    work = (
        arrivals.where(_fits())
        .join(F.broadcast(_frame(spark, rows, _CASES)), "cluster")
        .where("day between first and last")
        .select("*", F.explode(F.sequence(F.lit(0), F.lit(parts - 1))).alias("part"))
        .repartitionById(tasks, (place % tasks).cast("int"))
        .select("cluster", "day", "slots", "rates", "case", "part")
    )
    job = _Work(tuple(seeds), parts)
    if days * variants > FEW_TRIALS:
        return work.mapInArrow(job, TRIALS)
    tried = job(iter(work.toArrow().to_batches()))
    return spark.createDataFrame(pa.Table.from_batches(tried, to_arrow_schema(TRIALS)), TRIALS)


def _frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType) -> DataFrame:
    """Create a DataFrame from rows as Arrow data; for rows of Python objects Spark would start Python workers."""
    arrow = to_arrow_schema(schema)
    named = [dict(zip(arrow.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema=arrow), schema)


def slots(spark: SparkSession) -> int:
    """The number of tasks that can run at a time."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    parts = spark.range(1 << 10).select(F.spark_partition_id().alias("part"))
    return len(parts.distinct().collect())


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a task. Each day has `parts` rows, and a row tries every `parts`-th pair of variant and seed."""

    seeds: tuple[int, ...]
    parts: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(TRIALS)
        # A simulation creates almost no reference cycles, so one garbage collection per row is enough.
        gc.disable()
        try:
            for batch in batches:
                for number in range(batch.num_rows):
                    row = {name: batch.column(name)[number] for name in batch.schema.names}
                    yield pa.RecordBatch.from_pylist(list(self._tried(row)), schema)
                    gc.collect()
                    if not gc.get_freeze_count():
                        # After a worker's first row all modules (Arrow, pandas) are imported; exclude them from the
                        # next collections.
                        gc.freeze()
        finally:
            gc.enable()

    def _tried(self, row: Mapping[str, pa.Scalar]) -> Iterator[dict[str, Any]]:
        case = _case(row["case"].as_py())
        cluster, day = row["cluster"].as_py(), row["day"].as_py()
        name = f"{cluster} {day}"
        # Convert through NumPy, because Arrow would first create an object for each number.
        seen, rates = (row[column].values.to_numpy().tolist() for column in ("slots", "rates"))
        load = day_load(name, seen, rates, case.rate_per_worker)
        midnight = datetime.combine(day, time(), UTC)
        pairs = [(number, seed) for number in range(len(case.variants)) for seed in self.seeds]
        for number, seed in pairs[row["part"].as_py() :: self.parts]:
            variant = case.variants[number]
            outcome = run_trial(case, variant, load, midnight, seed)
            yield {
                "cluster": cluster,
                "day": day,
                "variant": number,
                "seed": seed,
                "static_hours": case.static * outcome.score.hours,
                **_plain(variant, outcome),
            }


@lru_cache(maxsize=4)
def _case(pickled: bytes) -> Case:
    found: Case = pickle.loads(pickled)  # noqa: S301 - `trials` has pickled it
    return found


def _plain(variant: Variant, outcome: Outcome) -> dict[str, Any]:
    score = outcome.score
    return {
        "policy": variant.policy,
        "parameters": list(variant.parameters.items()),
        "hours": score.hours,
        "replica_hours": score.cost,
        "demand_hours": score.demand,
        "late_hours": score.violation * score.hours,
        "p50_s": score.p50,
        "p99_s": score.p99,
        "worst_s": score.worst,
        "rescales": score.rescales,
        "digest": outcome.digest,
    }


# Results


def results(tries: DataFrame) -> DataFrame:
    """Aggregate the days of `TRIALS`, and mark the Pareto front of each cluster. Returns `RESULTS`."""
    hours, cost = F.sum("hours"), F.sum("replica_hours")
    rows = (
        tries.groupBy("cluster", "variant", "seed")
        .agg(
            F.first("policy").alias("policy"),
            F.first("parameters").alias("parameters"),
            F.count("*").cast("int").alias("days"),
            cost.alias("replica_hours"),
            F.sum("static_hours").alias("static_hours"),
            F.sum("demand_hours").alias("demand_hours"),
            (cost / F.sum("static_hours")).alias("to_static"),
            (cost / F.sum("demand_hours")).alias("to_demand"),
            (F.sum("late_hours") / hours).alias("violation"),
            F.max("p99_s").alias("p99_s"),
            F.max("worst_s").alias("worst_s"),
            (F.sum("rescales") / hours).alias("rescales_per_hour"),
            F.substring(F.sha2(F.array_join(F.array_sort(F.collect_list("digest")), ""), 256), 1, 16).alias("digest"),
        )
        .withColumn(
            "j",
            F.col("to_demand") + VIOLATION_WEIGHT * F.col("violation") + RESCALE_WEIGHT * F.col("rescales_per_hour"),
        )
    )
    return _marked(rows).select(*RESULTS)


GOALS = ("replica_hours", "violation", "rescales_per_hour")
"""Less of each is better. A variant is on the Pareto front if no other is better in one goal and worse in none."""


def _marked(rows: DataFrame) -> DataFrame:
    variant, cluster = Window.partitionBy("cluster", "variant"), Window.partitionBy("cluster")
    mine = F.struct(*(F.avg(goal).over(variant).alias(goal) for goal in GOALS))

    def beats(other: Column) -> Column:
        own = F.col("mine")
        no_worse = [other[goal] <= own[goal] for goal in GOALS]
        better = [other[goal] < own[goal] for goal in GOALS]
        return no_worse[0] & no_worse[1] & no_worse[2] & (better[0] | better[1] | better[2])

    marked = rows.withColumn("mine", mine).withColumn("all", F.collect_set("mine").over(cluster))
    return marked.withColumn("pareto", ~F.exists("all", beats)).drop("mine", "all")
