"""`autoscaler profile`: computes the profile of each cluster from its history."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import configuration, spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import add_rename, day, json_option, moment, span
from autoscaler.cli.output import FAILED, OK, hang, print_error, print_json, print_lines, table
from autoscaler.cli.tables import DEFAULT_ROWS, omitted_rows
from autoscaler.core.wording import count_of, format_number
from autoscaler.core.workload_profile import local_seconds
from autoscaler.ports import AutoscalerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from autoscaler.history.dataset import Dataset

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

ALL_FINDINGS = 5
"""For up to this many clusters, all findings are printed; for more, only the most expensive ones."""

Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Analyze the history of each cluster: the capacity of sizes, durations of rescales, weekly seasonality, cost, "
        "lateness, and findings. Each profile is a file that the policy `adaptive` can use. docs/history.md explains "
        "the figures."
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
        type=moment,
        metavar="TIME",
        help="ignore older observations, like 2026-01-31",
    )
    add("--to", dest="until", type=moment, metavar="TIME", help="ignore observations from then on")
    add(
        "--objective",
        type=span,
        default=timedelta(seconds=60),
        metavar="DURATION",
        help="records that wait longer are late (default: 60s)",
    )
    add(
        "--holiday",
        action="append",
        type=day,
        default=[],
        metavar="DATE",
        help="a day with an unusual load; may be repeated. Days that differ a lot are detected anyway",
    )
    add(
        "--time-zone",
        action="append",
        type=_time_zone,
        default=[],
        metavar="[CLUSTER=]ZONE",
        help="the time zone of the typical week, such as Europe/Berlin, with its daylight saving time; for one "
        "cluster, or for all (default: UTC); may be repeated",
    )
    add("--config", type=Path, metavar="CONFIG", help="a configuration file: its time zones are used")
    add_rename(parser)
    add("--table", metavar="PATH", help="also write all profiles as one Parquet table")
    add("--all", action="store_true", help="list everything, however long it gets")
    json_option(parser)
    spark_options.add_arguments(parser)


def _time_zone(text: str) -> tuple[str, str]:
    """Read [CLUSTER=]ZONE: a cluster, or the empty name for all clusters, and a time zone."""
    cluster, _, zone = text.rpartition("=")
    try:
        local_seconds(0.0, zone)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return cluster, zone


def _configured_zones(path: Path) -> dict[str, str]:
    """The daemon's time zone under the empty name, and those of the clusters that have another one."""
    config = configuration.load(path)
    usual = config.daemon.time_zone
    return {"": usual} | {name: each.time_zone for name, each in config.clusters.items() if each.time_zone != usual}


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    spark_options.require_pyspark("profile")
    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.progress import show_progress

    if options.since and options.until and options.until <= options.since:
        raise wrong("--to must be after --from")
    if options.table is not None:
        spark_options.table_url(options.table)
    zones = ({} if options.config is None else _configured_zones(options.config)) | dict(options.time_zone)
    with spark_options.open_session(options, "profile", reads=options.dataset) as spark:
        dataset = open_dataset(options.dataset)
        with _computed(spark, dataset, options, zones) as rows, show_progress(spark, f"profiling {options.dataset}"):
            kept = _write(rows, options)
    if not kept:
        raise wrong(_no_observation(options))
    if options.json:
        print_json(kept)
    else:
        _show(kept, options)
    absent = sorted(set(options.cluster or ()) - {row["cluster"] for row in kept} - dict(options.rename).keys())
    if absent:
        print_error(f"{options.dataset}: has no observation of {', '.join(absent)} in the time asked for")
    return FAILED if absent else OK


@contextmanager
def _computed(
    spark: Any,  # noqa: ANN401 - PySpark is not imported here
    dataset: Dataset,
    options: argparse.Namespace,
    zones: Mapping[str, str],
) -> Iterator[DataFrame]:
    from autoscaler.history.profile_job import profiles, stored

    with dataset.reading():
        rows = profiles(
            spark,
            dataset,
            made_at=datetime.fromtimestamp(time.time(), UTC),
            objective=options.objective,
            holidays=options.holiday,
            time_zones=zones,
            since=options.since,
            until=options.until,
            clusters=options.cluster,
            renamed=dict(options.rename),
            in_workers=options.explain,
        )
        spark_options.print_plans(options, {"the profiles": rows})
        with stored(rows) as made:
            yield made


def _write(rows: DataFrame, options: argparse.Namespace) -> list[Row]:
    """Write the profiles. Returns their main figures."""
    from autoscaler.history.profile_job import fetched, write

    if options.table is not None:
        together = rows.coalesce(1).sortWithinPartitions("cluster")
        together.write.mode("overwrite").parquet(spark_options.table_url(options.table))
    kept = []
    try:
        for row in write(fetched(rows), options.out):
            figures = row.asDict(recursive=True)
            del figures["profile"]
            kept.append({key: _to_json(value) for key, value in figures.items()})
    except OSError as error:
        raise AutoscalerError(f"{options.out}: cannot be written: {error.strerror}") from error
    return sorted(kept, key=lambda row: str(row["cluster"]))


def _to_json(value: object) -> object:
    # PySpark returns local times without a time zone.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _no_observation(options: argparse.Namespace) -> str:
    what = f" of {', '.join(sorted(options.cluster))}" if options.cluster else ""
    when = " in the time asked for" if options.since or options.until else ""
    return f"{options.dataset}: has no observation{what}{when}"


def _show(kept: Sequence[Row], options: argparse.Namespace) -> None:
    shown = kept if options.all else kept[:DEFAULT_ROWS]
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
    print_lines(*omitted_rows(shown, kept, "clusters"))
    findings = [(row["cluster"], finding) for row in kept for finding in row["findings"]]
    if len(kept) > ALL_FINDINGS and not options.all:
        findings.sort(key=lambda each: -(each[1]["replica_hours"] or 0.0))
        listed = findings[:DEFAULT_ROWS]
    else:
        listed = findings
    if listed:
        print_lines("", *(hang(f"{cluster}: ", f"{finding['kind']}: {finding['text']}") for cluster, finding in listed))
        print_lines(*omitted_rows(listed, findings, "findings"))
    where = f" and {options.table}" if options.table else ""
    print_lines("", f"{count_of(len(kept), 'profile')} in {options.out}{where}")


def _line(row: Row) -> list[str]:
    stalls = [row["stall_up_s"], row["stall_down_s"]]
    return [
        row["cluster"],
        f"{row['observations']:,}",
        _cell(row["rate"], "/s"),
        _cell(row["exponent"]),
        "/".join(_cell(stall, " s") for stall in stalls) if any(stall is not None for stall in stalls) else "-",
        "-" if row["season_error"] is None else f"{100 * row['season_error']:.2g} % off",
        _cell(row["replica_hours"], " h"),
        _cell(row["needed_hours"], " h"),
        "-" if row["violation"] is None else f"{100 * row['violation']:.2g} %",
        str(len(row["findings"])),
    ]


def _cell(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{format_number(value)}{unit}"
