"""Which parameters keep an objective at the least cost, and whether they do so on days that nobody has looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

FIGURES = ("replica_hours", "to_static", "violation", "rescales_per_hour", "p99_s", "days")


@dataclass(frozen=True, slots=True)
class Objective:
    """What is to be kept.

    Attributes:
        violation: at most this share of the time with a record older than the delay objective.
        rescales: at most so many changes of size in an hour; None: as many as it takes.
    """

    violation: float
    rescales: float | None = None

    def kept(self, figures: Mapping[str, Any]) -> bool:
        """Whether the figures of a variant keep it."""
        fits = figures["violation"] <= self.violation
        return bool(fits and (self.rescales is None or figures["rescales_per_hour"] <= self.rescales))


def means(results: DataFrame) -> DataFrame:
    """The figures of each cluster and variant: means over the seeds.

    Args:
        results: as `backtest.results` makes them.
    """
    return results.groupBy("cluster", "variant").agg(
        F.first("parameters").alias("parameters"), *(F.avg(name).alias(name) for name in FIGURES)
    )


def best(figures: DataFrame, objective: Objective) -> DataFrame:
    """For each cluster what is configured (variant 0), the cheapest that keeps the objective, and the nearest to it.

    Args:
        figures: as `means` makes them.
        objective: what is to be kept.

    Returns:
        One row for each cluster: `cluster`, and `configured`, `chosen` (null: none keeps it) and `nearest` with
        `variant` and the figures.
    """
    whole = F.struct("variant", "parameters", *FIGURES)
    kept = F.col("violation") <= objective.violation
    if objective.rescales is not None:
        kept = kept & (F.col("rescales_per_hour") <= objective.rescales)
    # Where two cost the same, the one that is less late, then the one that comes first: what is configured.
    price = F.struct("replica_hours", "violation", "variant")
    return figures.groupBy("cluster").agg(
        F.min_by(whole, "variant").alias("configured"),
        F.min_by(whole, F.when(kept, price)).alias("chosen"),
        F.min_by(whole, F.struct("violation", "replica_hours")).alias("nearest"),
    )
