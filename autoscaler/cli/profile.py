"""`autoscaler profile`: what the history of each cluster tells, as a file for each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import options as arguments
from autoscaler.cli import spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import complain, hang, print_json, say, table
from autoscaler.cli.tables import FEW, omitted
from autoscaler.core.explain import count_of, format_number
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from autoscaler.history.dataset import Dataset

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

OK, FAILED = 0, 1
TOLD = 5
"""The findings of so many clusters are printed whole; of more, the most expensive ones only."""

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `profile` to a parser."""
    parser.description = (
        "Find out what the history of each cluster tells: what sizes can do, how long rescales take, the usual week, "
        "what was paid and how late it was, and what people should know. Each profile is a file that the policy "
        "`adaptive` can use. docs/history.md says what each number means."
    )
    add = parser.add_argument
    add("dataset", metavar="DATASET", help="the dataset: a directory, or a URL that Spark can read")
    add(
        "--out", type=Path, required=True, metavar="DIR", help="where the profiles are written, a file for each cluster"
    )
    add("--cluster", action="append", metavar="NAME", help="only this cluster; may be repeated")
    add(
        "--from",
        dest="since",
        type=arguments.moment,
        metavar="TIME",
        help="what is older does not count, like 2026-01-31",
    )
    add("--to", dest="until", type=arguments.moment, metavar="TIME", help="what comes from then on does not count")
    add(
        "--objective",
        type=arguments.span,
        default=timedelta(seconds=60),
        metavar="DURATION",
        help="records that wait longer are too late (default: 60s)",
    )
    add(
        "--holiday",
        action="append",
        type=arguments.day,
        default=[],
        metavar="DATE",
        help="a day (UTC) that is not like others; may be repeated, and days far from their like are found anyway",
    )
    add(
        "--rename",
        action="append",
        type=arguments.renamed,
        default=[],
        metavar="OLD=NEW",
        help="what was called OLD is NEW now, one history; may be repeated",
    )
    add("--table", metavar="PATH", help="also write one table of all profiles there, as Parquet")
    add("--all", action="store_true", help="list everything, however long it gets")
    add("--json", action="store_true", help="print JSON")
    spark_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    spark_options.needed("profile")
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.progress import watched

    if options.since and options.until and options.until <= options.since:
        raise wrong("--to must be after --from")
    if options.table is not None:
        spark_options.table_url(options.table)
    with spark_options.opened(options, "profile") as spark:
        dataset = open_dataset(options.dataset)
        with _made(spark, dataset, options) as rows, watched(spark, f"profiling {options.dataset}"):
            kept = _kept(rows, options)
    if not kept:
        raise wrong(_nothing(options))
    if options.json:
        print_json(kept)
    else:
        _tell(kept, options)
    absent = sorted(set(options.cluster or ()) - {row["cluster"] for row in kept} - dict(options.rename).keys())
    if absent:
        complain(f"{options.dataset}: has no observation of {', '.join(absent)} in the time asked for")
    return FAILED if absent else OK


@contextmanager
def _made(spark: Any, dataset: Dataset, options: argparse.Namespace) -> Iterator[DataFrame]:  # noqa: ANN401
    from autoscaler.history.profile_job import profiles, stored

    with dataset.reading():
        rows = profiles(
            spark,
            dataset,
            made_at=datetime.fromtimestamp(time.time(), UTC),
            objective=options.objective,
            holidays=options.holiday,
            since=options.since,
            until=options.until,
            clusters=options.cluster,
            renamed=dict(options.rename),
        )
        spark_options.tell_plan(options, {"the profiles": rows})
        with stored(rows) as made:
            yield made


def _kept(rows: DataFrame, options: argparse.Namespace) -> list[Row]:
    """Write all that was found; what it was, without the profiles themselves."""
    from autoscaler.history.profile_job import fetched, write

    if options.table is not None:
        together = rows.coalesce(1).sortWithinPartitions("cluster")
        together.write.mode("overwrite").parquet(spark_options.table_url(options.table))
    kept = []
    try:
        for row in write(fetched(rows), options.out):
            told = row.asDict(recursive=True)
            del told["profile"]
            kept.append({key: _plain(value) for key, value in told.items()})
    except OSError as error:
        raise AutoscalerError(f"{options.out}: cannot be written: {error.strerror}") from error
    return sorted(kept, key=lambda row: str(row["cluster"]))


def _plain(value: object) -> object:
    # PySpark gives times as those of this machine, with no time zone.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _nothing(options: argparse.Namespace) -> str:
    what = f" of {', '.join(sorted(options.cluster))}" if options.cluster else ""
    when = " in the time asked for" if options.since or options.until else ""
    return f"{options.dataset}: has no observation{what}{when}"


def _tell(kept: Sequence[Row], options: argparse.Namespace) -> None:
    shown = kept if options.all else kept[:FEW]
    table(
        (
            "cluster",
            "observations",
            "one replica",
            "exponent",
            "stall up/down",
            "season",
            "paid",
            "needed",
            "late",
            "findings",
        ),
        [_line(row) for row in shown],
    )
    say(*omitted(shown, kept, "clusters"))
    findings = [(row["cluster"], finding) for row in kept for finding in row["findings"]]
    if len(kept) > TOLD and not options.all:
        findings.sort(key=lambda each: -(each[1]["replica_hours"] or 0.0))
        listed = findings[:FEW]
    else:
        listed = findings
    if listed:
        say("", *(hang(f"{cluster}: ", f"{finding['kind']}: {finding['text']}") for cluster, finding in listed))
        say(*omitted(listed, findings, "findings"))
    where = f" and {options.table}" if options.table else ""
    say("", f"{count_of(len(kept), 'profile')} in {options.out}{where}")


def _line(row: Row) -> list[str]:
    stalls = [row["stall_up_s"], row["stall_down_s"]]
    return [
        row["cluster"],
        f"{row['observations']:,}",
        _told(row["rate"], "/s"),
        _told(row["exponent"]),
        "/".join(_told(stall, " s") for stall in stalls) if any(stall is not None for stall in stalls) else "-",
        "-" if row["season_error"] is None else f"{100 * row['season_error']:.2g} % off",
        _told(row["replica_hours"], " h"),
        _told(row["needed_hours"], " h"),
        "-" if row["violation"] is None else f"{100 * row['violation']:.2g} %",
        str(len(row["findings"])),
    ]


def _told(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{format_number(value)}{unit}"
