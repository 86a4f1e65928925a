"""`autoscaler history query`: queries a dataset in SQL."""

from __future__ import annotations

import argparse
import base64
import csv
import io
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import spark_options
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import Commands, count, json_option
from autoscaler.cli.output import OK, print_error, print_json, print_lines, table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# ruff: noqa: PLC0415 - PySpark is loaded when the command runs

LIMIT = 1000

_USERS = ("0A", "21", "22", "42")
"""Classes of SQLSTATE of errors that the user's statement or its data cause."""


def register(commands: Commands) -> None:
    """Add the command to the commands of `history`."""
    parser = commands.add_parser("query", help="query a dataset in SQL")
    parser.set_defaults(command=run)
    parser.description = (
        "Query a dataset in SQL. Its tables are observations, decisions, rescales and rejected, and with --profiles "
        "also profiles. Times are UTC. docs/history.md has the columns and examples."
    )
    add = parser.add_argument
    add("dataset", metavar="DATASET", help="the dataset: a directory, or a URL that Spark can read")
    add("sql", metavar="SQL", help='the query, like "SELECT cluster, max(lag) FROM observations GROUP BY cluster"')
    add(
        "--limit",
        type=count,
        default=LIMIT,
        metavar="N",
        help=f"maximum number of rows (default: {LIMIT:,})",
    )
    add("--profiles", type=Path, metavar="DIR", help="the profiles of `autoscaler profile`, as a table")
    how = parser.add_mutually_exclusive_group()
    json_option(how)
    how.add_argument("--csv", action="store_true", help="print CSV")
    spark_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    spark_options.require_pyspark("history")
    from pyspark.errors import PySparkException

    from autoscaler.history.dataset import open_dataset
    from autoscaler.history.progress import show_progress
    from autoscaler.history.schema import TABLES

    with spark_options.open_session(options, "history", reads=options.dataset) as spark:
        dataset = open_dataset(options.dataset)
        with dataset.reading():
            for name in TABLES:
                dataset.read(spark, name).createOrReplaceTempView(name)
            if options.profiles is not None:
                _profiles(spark, options.profiles)
            try:
                asked = spark.sql(options.sql)
                spark_options.print_plans(options, {"the query": asked})
                with show_progress(spark, "querying"):
                    found = asked.limit(options.limit + 1).toArrow()
            except PySparkException as error:
                if (error.getSqlState() or "").startswith(_USERS):
                    raise wrong(f"history query: {_first_line(error)}") from error
                raise
    _print(found.slice(0, options.limit), options)
    if found.num_rows > options.limit:
        print_error(f"There are more than {options.limit:,} rows: --limit prints more of them.")
    return OK


def _profiles(spark: SparkSession, directory: Path) -> None:
    """Register the profiles as a table; each part of a profile is a struct."""
    from autoscaler.trace.profile_file import SUFFIX

    # If it read the directory, Spark would skip files whose names begin with `_`; a cluster's name may begin so.
    files = sorted(directory.glob(f"[!.]*{SUFFIX}"))
    try:
        texts = [(file.read_text(encoding="utf-8", errors="replace"),) for file in files]
    except OSError as error:
        raise wrong(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not texts:
        raise wrong(f"{directory}: contains no profile (*{SUFFIX})")
    spark.read.json(spark.createDataFrame(texts, "profile string")).createOrReplaceTempView("profiles")


def _first_line(error: Exception) -> str:
    """The first line of Spark's message: it has the hint and the place, but not the plan."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(";") if lines else type(error).__name__


def _print(found: pa.Table, options: argparse.Namespace) -> None:
    names = list(found.column_names)
    # By position, because two columns may have the same name.
    rows = list(zip(*(_column(column) for column in found.columns), strict=True))
    if options.json:
        print_json([dict(zip(names, map(_to_json, row), strict=True)) for row in rows])
    elif options.csv:
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
        print_lines(written.getvalue().removesuffix("\n"))
    elif rows:
        table(names, [[_shown(value) for value in row] for row in rows])
    else:
        print_lines("No rows.")


def _column(column: pa.ChunkedArray) -> list[Any]:
    return [_value(value, column.type) for value in column.to_pylist()]


def _value(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - whatever a column can hold
    """A value as a Python object; a map, which Arrow gives as pairs, as a dict."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_cell(key): _value(inner, kind.item_type) for key, inner in value}
    if pa.types.is_struct(kind):
        return {part.name: _value(value[part.name], part.type) for part in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(inner, kind.value_type) for inner in value]
    return value


def _to_json(value: Any) -> Any:  # noqa: ANN401 - whatever a column can hold, as JSON
    """A value as JSON; NaN and infinities, which JSON lacks, as strings."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {str(key): _to_json(inner) for key, inner in value.items()}
        case list():
            return [_to_json(inner) for inner in value]
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever a column can hold
    """A value in a cell of CSV; null is empty."""
    plain = _to_json(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain)


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever a column can hold
    """A value in a printed table."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"  # noqa: PLR2004 - where %g begins with 1e+06
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}" + (f".{value:%f}".rstrip("0") if value.microsecond else "")
    return _cell(value)
