"""`autoscaler backtest`: tries policies on recorded load."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from autoscaler.cli import spark_options, trials
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import json_option
from autoscaler.cli.output import OK, print_error, print_json, print_lines, table
from autoscaler.cli.tables import DEFAULT_ROWS, omitted_rows
from autoscaler.core.wording import count_of, format_span
from autoscaler.simulation.trial import MAX_GAP, Case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from autoscaler.cli.trials import Chosen
    from autoscaler.history.backtest_job import Known

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

Row = Mapping[str, Any]

NEEDS = f"at least one whole day of history, and better a week, which has all kinds of days; {trials.WHOLE_DAY}"

HEAD = ("days", "replica-hours", "to static", "to demand", "violation", "p99 s", "worst s", "rescales/h", "J", "front")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Try policies and parameters on recorded load. Each trial replays a day of a cluster on a simulated cluster "
        "with the properties of the real one, and makes the decisions that the daemon would make. Equal arguments "
        f"give equal figures. It needs {NEEDS}. docs/simulate.md explains the figures."
    )
    trials.add_arguments(parser, seeds=1)
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        type=trials.baseline,
        default=[],
        metavar="NAME",
        help="also try this policy: any installed one by its name, one of the benchmark, or NAME=SETTINGS as in a "
        "configuration file; may be repeated",
    )
    add("--out", metavar="PATH", help="write the results as a Parquet table")
    add("--all", action="store_true", help="list everything, however long it gets")
    json_option(parser)
    spark_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    print_error(f"backtest needs {NEEDS}.")  # before Spark is loaded, which takes seconds
    spark_options.require_pyspark("backtest")
    place = None if options.out is None else spark_options.table_url(options.out)
    given = trials.chosen(options)
    grid = trials.combinations(options.set)
    tried = trials.variants(options, given, lambda _: grid)
    from autoscaler.history.backtest_job import results
    from autoscaler.history.progress import show_progress

    with (
        spark_options.open_session(options, "backtest", reads=options.dataset) as spark,
        prepare(options, spark, given) as ready,
    ):
        cases, notes = build_cases(options, given, ready, tried, options.policy)
        tries = ready.trials(cases, options.seeds)
        found = results(tries)
        spark_options.print_plans(options, {"the trials": tries})
        what = (
            f"trying {count_of(len(cases), 'cluster')}, {count_of(_count(ready, cases, options.seeds), 'day')} in all"
        )
        with show_progress(spark, what):
            # Persisted: results that took minutes are both printed and written.
            kept = found.persist()
            if place is not None:
                kept.orderBy("cluster", "variant", "seed").coalesce(1).write.mode("overwrite").parquet(place)
            rows = _rows(kept)
            fleet = _fleet_totals(kept) if len(cases) > 1 else []
    if options.json:
        print_json({"results": rows, "left_out": _left_out(ready.known), "notes": notes})
        return OK
    _show(rows, fleet, options)
    print_lines("", *notes)
    print_left_out(ready.known)
    return OK


# Shared with `tune`


@dataclass(frozen=True, slots=True)
class TrialData:
    """The recorded load for trials.

    Attributes:
        spark: the session.
        arrivals: the arrivals of each day, persisted.
        known: the days of each cluster.
    """

    spark: SparkSession
    arrivals: DataFrame
    known: tuple[Known, ...]

    def trials(self, cases: Mapping[str, Case], seeds: int) -> DataFrame:
        """The rows of `backtest_job.trials`."""
        from autoscaler.history import backtest_job

        return backtest_job.trials(self.spark, self.arrivals, cases, self.known, range(1, seeds + 1))


@contextmanager
def prepare(options: argparse.Namespace, spark: SparkSession, given: Chosen) -> Iterator[TrialData]:
    """Read the arrivals of the selected clusters and days. Raises ConfigurationError if there are none."""
    from autoscaler.history.backtest_job import arrived, known
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.progress import show_progress

    dataset = open_dataset(options.dataset)
    # The trial of a day begins on the evening before.
    since = None if options.since is None else options.since - timedelta(days=1)
    until = None if options.until is None else options.until - timedelta(days=1)
    with dataset.reading():
        rows = dataset.read(spark, "observations", since=since, until=until, clusters=sorted(given.names))
        arrivals = arrived(spark, rows, given.first)
        if options.since is not None:
            arrivals = arrivals.where(arrivals["day"] >= options.since)
        kept = arrivals.persist()
        try:
            with show_progress(spark, f"reading {options.dataset}"):
                found = tuple(known(kept))
            if not any(one.days for one in found):
                raise wrong(_no_days(options, spark, given, found, dataset.dates()))
            yield TrialData(spark, kept, found)
        finally:
            kept.unpersist()


def _no_days(
    options: argparse.Namespace, spark: SparkSession, given: Chosen, found: Sequence[Known], dates: Sequence[date]
) -> str:
    """Explain why there are no days to try."""
    from autoscaler.history.dataset import open_dataset

    if not dates:
        return f"{options.dataset}: has no observations"
    asked = ", ".join(sorted(given.names))
    if found:
        worst = [
            f"{one.cluster} {day}: nothing recorded for {format_span(missing)}"
            for one in found
            for day, missing in one.left_out
        ]
        filled = f"up to {format_span(MAX_GAP.total_seconds())} are filled in"
        return f"{options.dataset}: has no whole day of {asked}: {'; '.join(worst[:DEFAULT_ROWS])}; {filled}"
    rows = open_dataset(options.dataset).read(spark, "observations", clusters=sorted(given.names))
    there = rows.where("arrivals is not null").selectExpr("min(date) as first", "max(date) as last").collect()[0]
    if there["first"] is not None:
        after = [f"{name}: {profile.end:%Y-%m-%d %H:%M}" for name, profile in sorted(given.profiles.items())]
        listed = ", ".join(after[:DEFAULT_ROWS])
        made = f"; a profile is tried on days after those it was computed from ({listed})" if after else ""
        return (
            f"{options.dataset}: has no arrivals of {asked} in this time; it has some from {there['first']} to "
            f"{there['last']}{made}"
        )
    some = open_dataset(options.dataset).read(spark, "observations").where("arrivals is not null")
    first = some.select("cluster").distinct().orderBy("cluster").limit(DEFAULT_ROWS).collect()
    names = [row["cluster"] for row in first]
    known = f"it has those of {', '.join(names)}" if names else "it has no arrivals of any cluster"
    return f"{options.dataset}: has no arrivals of {asked}; {known}"


def build_cases(
    options: argparse.Namespace,
    given: Chosen,
    ready: TrialData,
    tried: Mapping[str, Sequence[Any]],
    policies: Sequence[Any],
) -> tuple[dict[str, Case], list[str]]:
    """Make a simulated cluster for each cluster with whole days, and notes for the user."""
    cases: dict[str, Case] = {}
    notes: list[str] = []
    for one in ready.known:
        if not one.days:
            continue
        case, size = trials.build_case(options, given, one, tried[one.cluster], policies)
        cases[one.cluster] = case
        if len(notes) < DEFAULT_ROWS:
            plant = case.plant
            days = f"{count_of(len(one.days), 'day')} from {one.days[0]} to {one.days[-1]}"
            notes.append(
                f"{one.cluster}: {days}; a worker processes {size}, n workers n^{plant.gamma:.3g} times as much; "
                f"workers start in {plant.startup:.3g} s; objective: no record older than {plant.slo:g} s; static: "
                f"{case.static}."
            )
    absent = sorted(set(given.names) - {one.cluster for one in ready.known})
    if absent:
        notes.append(f"The history has no arrivals of {_shortened(absent)}.")
    without = sorted(set(cases) - set(given.profiles)) if options.profiles is not None else []
    if without:
        notes.append(f"There is no profile of {_shortened(without)}.")
    return cases, notes


def _shortened(names: Sequence[str]) -> str:
    return f"{', '.join(names[:DEFAULT_ROWS])}{' ...' if len(names) > DEFAULT_ROWS else ''}"


def print_left_out(known: Sequence[Known]) -> None:
    """Print the days that are left out, because of too long gaps, to standard error."""
    lines = [
        f"  {one.cluster} {day}: nothing was recorded for {format_span(missing)}"
        for one in known
        for day, missing in one.left_out
    ]
    if lines:
        few = format_span(MAX_GAP.total_seconds())
        print_error(f"{count_of(len(lines), 'day')} left out, with gaps of over {few}:")
        print_error(*lines[:DEFAULT_ROWS], *omitted_rows(lines[:DEFAULT_ROWS], lines, "days"))


def _left_out(known: Sequence[Known]) -> list[Row]:
    return [
        {"cluster": one.cluster, "day": day.isoformat(), "missing_s": missing}
        for one in known
        for day, missing in one.left_out
    ]


def parameters(row: Row) -> str:
    """The parameters of a row, for a table."""
    return " ".join(f"{key}={value}" for key, value in (row["parameters"] or {}).items()) or "-"


# The table


def _count(ready: TrialData, cases: Mapping[str, Case], seeds: int) -> int:
    days = {one.cluster: len(one.days) for one in ready.known}
    return sum(days[name] * len(case.variants) * seeds for name, case in cases.items())


def _rows(results: DataFrame) -> list[Row]:
    return [row.asDict() for row in results.orderBy("cluster", "variant", "seed").collect()]


def _fleet_totals(results: DataFrame) -> list[Row]:
    """The totals of all clusters: sums, and means weighted by the number of days."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def mean(name: str) -> Any:  # noqa: ANN401 - a column of Spark
        return (F.sum(F.col(name) * F.col("days")) / F.sum("days")).alias(name)

    cost = F.sum("replica_hours")
    rows = (
        results.groupBy("variant")
        .agg(
            F.first("policy").alias("policy"),
            F.first("parameters").alias("parameters"),
            F.countDistinct("cluster").alias("clusters"),
            F.countDistinct(F.when(F.col("pareto"), F.col("cluster"))).alias("on_front"),
            F.sum("days").alias("days"),
            cost.alias("replica_hours"),
            (cost / F.sum("static_hours")).alias("to_static"),
            (cost / F.sum("demand_hours")).alias("to_demand"),
            mean("violation"),
            F.max("p99_s").alias("p99_s"),
            F.max("worst_s").alias("worst_s"),
            mean("rescales_per_hour"),
            mean("j"),
        )
        .orderBy("variant")
    )
    return [row.asDict() for row in rows.collect()]


def _show(rows: Sequence[Row], fleet: Sequence[Row], options: argparse.Namespace) -> None:
    clusters = dict.fromkeys(row["cluster"] for row in rows)
    if len(clusters) > 1:
        print_lines(f"All {len(clusters)} clusters together:")
        table(
            ("policy", "parameters", *HEAD),
            [
                (row["policy"], parameters(row), *_cells(row), f"{row['on_front']} of {row['clusters']}")
                for row in fleet
            ],
        )
        print_lines("")
    shown = rows if options.all else rows[:DEFAULT_ROWS]
    seeds = options.seeds > 1
    table(
        ("cluster", "policy", "parameters", *(("seed",) if seeds else ()), *HEAD),
        [
            (
                row["cluster"],
                row["policy"],
                parameters(row),
                *((str(row["seed"]),) if seeds else ()),
                *_cells(row),
                "yes" if row["pareto"] else "-",
            )
            for row in shown
        ],
    )
    print_lines(*omitted_rows(shown, rows, "rows"))


def _cells(row: Row) -> tuple[str, ...]:
    """The figures of a row."""
    return (
        str(row["days"]),
        f"{row['replica_hours']:.1f}",
        f"{row['to_static']:.3f}",
        f"{row['to_demand']:.3f}",
        f"{row['violation']:.3%}",
        f"{row['p99_s']:.1f}",
        f"{row['worst_s']:.0f}",
        f"{row['rescales_per_hour']:.2f}",
        f"{row['j']:.3f}",
    )
