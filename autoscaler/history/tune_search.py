"""Select the parameters that meet an objective at the least cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

FIGURES = ("replica_hours", "to_static", "violation", "rescales_per_hour", "p99_s", "days")


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective.

    Attributes:
        violation: maximum share of the time with a record older than the delay objective.
        rescales: maximum number of rescales per hour; None: any.
    """

    violation: float
    rescales: float | None = None

    def is_met(self, figures: Mapping[str, Any]) -> bool:
        """Whether the figures of a variant meet it."""
        fits = figures["violation"] <= self.violation
        return bool(fits and (self.rescales is None or figures["rescales_per_hour"] <= self.rescales))


def means(results: DataFrame) -> DataFrame:
    """The figures of each cluster and variant in `backtest_job.results`: means over the seeds."""
    return results.groupBy("cluster", "variant").agg(
        F.first("parameters").alias("parameters"), *(F.avg(name).alias(name) for name in FIGURES)
    )


def best(figures: DataFrame, objective: Objective) -> DataFrame:
    """For each cluster the configured variant (0), the cheapest variant that meets the objective, and the nearest one.

    Returns:
        One row per cluster: `cluster`, and `configured`, `second` (variant 1), `chosen` (null: no variant meets the
        objective) and `nearest`, each with `variant` and the figures.
    """
    whole = F.struct("variant", "parameters", *FIGURES)
    met = F.col("violation") <= objective.violation
    if objective.rescales is not None:
        met = met & (F.col("rescales_per_hour") <= objective.rescales)
    # If costs are equal, choose the variant with fewer violations, then the lowest number: the configured one is 0.
    price = F.struct("replica_hours", "violation", "variant")
    return figures.groupBy("cluster").agg(
        F.min_by(whole, "variant").alias("configured"),
        F.min_by(whole, F.when(F.col("variant") == 1, 1)).alias("second"),
        F.min_by(whole, F.when(met, price)).alias("chosen"),
        F.min_by(whole, F.struct("violation", "replica_hours")).alias("nearest"),
    )


def savings(tries: DataFrame) -> DataFrame:
    """What variants save compared with the configured variant (0), in pairs of the same day and seed.

    Returns:
        `cluster`, `variant`, `saved` (share of the configured variant's cost) and `noise`, the standard error of
        `saved`. The error is the greater one of that over pairs and that over days, because the seeds of one day are
        not independent.
    """
    pair = Window.partitionBy("cluster", "day", "seed")
    paid = F.max(F.when(F.col("variant") == 0, F.col("replica_hours"))).over(pair)
    pairs = tries.select(
        "cluster", "variant", "day", paid.alias("paid"), (paid - F.col("replica_hours")).alias("saved")
    )
    days = pairs.groupBy("cluster", "variant", "day").agg(
        F.sum("paid").alias("paid"),
        F.sum("saved").alias("saved"),
        F.var_samp("saved").alias("variance"),
        F.count("*").alias("n"),
    )
    error = F.sqrt(
        F.greatest(F.sum(F.col("n") * F.col("variance")), F.count("*") * F.coalesce(F.var_samp("saved"), F.lit(0.0)))
    )
    return days.groupBy("cluster", "variant").agg(
        F.coalesce(F.try_divide(F.sum("saved"), F.sum("paid")), F.signum(F.sum("saved"))).alias("saved"),
        F.coalesce(F.try_divide(error, F.sum("paid")), F.lit(0.0)).alias("noise"),
    )
