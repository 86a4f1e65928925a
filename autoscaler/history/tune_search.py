"""Selects the parameters that meet an objective at the least cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
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
    """For each cluster the configured variant (0), the cheapest that meets the objective, and the nearest to it.

    Returns:
        One row for each cluster: `cluster`, and `configured`, `chosen` (null: none meets it) and `nearest` with
        `variant` and the figures.
    """
    whole = F.struct("variant", "parameters", *FIGURES)
    met = F.col("violation") <= objective.violation
    if objective.rescales is not None:
        met = met & (F.col("rescales_per_hour") <= objective.rescales)
    # Of equal costs the less late one, then the first: the configured one.
    price = F.struct("replica_hours", "violation", "variant")
    return figures.groupBy("cluster").agg(
        F.min_by(whole, "variant").alias("configured"),
        F.min_by(whole, F.when(met, price)).alias("chosen"),
        F.min_by(whole, F.struct("violation", "replica_hours")).alias("nearest"),
    )
