"""Import records of daemons into the dataset: JSON lines become rows of `observations` and `decisions`.

Spark parses the lines with a schema. The schema supports numbers that JSON lacks ("NaN", "Infinity") and ISO 8601
durations; unknown fields are skipped. Lines that are not records are quarantined in the table `rejected` with a reason.

Spark parses lines once, and shuffles them to the task that writes the file of their date and cluster. The shuffle
output is read several times: to count keys, which shows the new rows, for observations, and for decisions.
"""

from __future__ import annotations

import gzip
import itertools
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache, partial, reduce
from pathlib import Path
from random import Random

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DoubleType, MapType, StringType, StructField, StructType

from autoscaler.core.guards import GUARDS
from autoscaler.core.model import Reason
from autoscaler.history.dataset import ROWS_PER_FILE, Dataset, Merged, count_keys, counted, escape_glob
from autoscaler.history.dataset.layout import KEYS
from autoscaler.history.progress import is_connect
from autoscaler.history.schema import DECISIONS, ENGINE, LINE, METRIC, OBSERVATIONS
from autoscaler.history.session import little_data
from autoscaler.trace.codec import VERSION

EARLIEST = datetime.fromisoformat("2000-01-01T00:00:00+00:00")
AHEAD = timedelta(days=1)
"""A time before `EARLIEST`, or more than this after the import, comes from a wrong clock."""

ALL_GUARDS = " ".join([*(name.value for name, _ in GUARDS), Reason.BOUNDS.value])
"""The guard names that nearly all records have."""

RATIO = 100
"""If a `.gz` file claims a content more than this many times as large, the file is checked before it is read."""

SAMPLE_FILES = 16
"""Files that are sampled for the clusters and their numbers of lines: one out of 24, and at most this many."""

LEAST, LEAST_PACKED = 200, 40
"""Minimum bytes of a line, plain and compressed. They bound the number of rows by file sizes, without a count."""

DATE = r"(\d{4}-\d\d-\d\d)[^/]*$"
"""The date in a file's name."""

MAX_TEXT = 1000
"""Maximum characters that are kept of a rejected line."""

_SPARK_FAILED = (PySparkException, Py4JError)
"""The exceptions if a file cannot be read: some of Spark's exceptions have no class in PySpark."""

_BAD = "_bad"
_METRICS = "_metrics"
WRONG_TYPE = "a value in it is missing, or not of the type that it should be"
NO_ZONE = "a time in it has no zone, expected one like 2026-01-31T17:05:00Z"
_ZONED = "yyyy-MM-dd['T'][ ]HH:mm:ss[.SSSSSSSSS]XXX"
"""The format of times. Without a format Spark reads a time without a zone as UTC, and a date as its midnight."""
_UNZONED = r':\s*"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.]\d+)?)?)?"'
NEEDED = (
    *(f"decision.{name}" for name in ("at", "current", "proposed", "desired", "reason")),
    "observation.at",
)
"""The fields that each record must have."""
DAMAGED = "the file is damaged: the readable part was imported"

UNITS = {"Y": 365 * 86400, "W": 604800, "D": 86400, "H": 3600, "M": 60, "S": 1}
DURATION = r"^-?P([0-9.]+[YWD])*(T([0-9.]+[HMS])+)?$"


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        merged: the rows added to each table; records are counted by their decisions.
        lines: the number of lines read.
        rejected: reason -> number of lines, or files, quarantined.
        damaged: damaged files; their readable part was imported.
    """

    merged: Merged = field(default_factory=Merged)
    lines: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()

    def __add__(self, other: Imported) -> Imported:
        """The result of this import and another one."""
        return Imported(
            self.merged + other.merged,
            self.lines + other.lines,
            dict(Counter(self.rejected) + Counter(other.rejected)),
            (*self.damaged, *other.damaged),
        )


@dataclass(frozen=True, slots=True)
class _Input:
    """Files to read.

    Attributes:
        files: all files.
        damaged: the compressed files that cannot be read to their end.
        torn: file -> its last line, which its writer may not have finished.
        rename: old name of a cluster -> new name.
        until: later times come from a wrong clock.
    """

    files: tuple[str, ...]
    rename: Mapping[str, str]
    until: datetime
    damaged: frozenset[str] = frozenset()
    torn: Mapping[str, str] = field(default_factory=dict)


def add(
    spark: SparkSession,
    dataset: Dataset,
    files: Sequence[str],
    *,
    now: datetime,
    rename: Mapping[str, str] | None = None,
    torn: Mapping[str, str] | None = None,
) -> Imported:
    """Add the records of files to a dataset. Records that the dataset already has stay unchanged.

    Args:
        spark: a session in UTC.
        dataset: the dataset.
        files: local paths or URLs of JSON lines, plain or compressed (`.gz`).
        now: the present time.
        rename: old name of a cluster -> new name.
        torn: file -> its last line, if that has no line ending. It may be unfinished, so it is not quarantined.

    Raises:
        DatasetError: another process is writing, or a file of the dataset is damaged.
    """
    if not files:
        return Imported()
    given = _Input(tuple(files), rename or {}, now + AHEAD, torn=torn or {})
    given = replace(given, damaged=_damaged(spark, [file for file in files if not _has_plausible_end(file)]))
    with dataset.writing() as writer, ExitStack() as held:
        if "://" not in dataset.path and rows_at_most(files) <= ROWS_PER_FILE:
            held.enter_context(little_data(spark))
        try:
            lines, found = _shuffled_lines(spark, given, held)
        except _SPARK_FAILED:
            damaged = _damaged(spark, files)
            if damaged <= given.damaged:
                raise
            given = replace(given, damaged=damaged)
            lines, found = _shuffled_lines(spark, given, held)
        counts = Counter[str]()
        for row in found:
            if row.problem is not None and not row.torn:
                counts[row.problem] += row.rows
        counts[DAMAGED] = len(given.damaged)
        counts = +counts
        records = lines.where("problem is null")
        rows = {
            "observations": records.select("cluster", "at", "seen.*", "order"),
            "decisions": records.select("cluster", "at", "done.*", "order"),
        }
        if counts:
            rows["rejected"] = _rejected(lines.where(~_is_torn(given)), given)
        keys = records.select(F.to_date("at").alias("date"), *KEYS["decisions"])
        new = counted(keys, [row for row in found if row.problem is None])
        merged = writer.merge(
            spark, rows, {"observations": new, "decisions": new}, partitioned=("observations", "decisions")
        )
        if not counts:
            none = {"rejected": 0}
            merged = replace(merged, added={**merged.added, **none}, known={**merged.known, **none})
        return Imported(merged, sum(row.rows for row in found), dict(counts), tuple(sorted(given.damaged)))


def _shuffled_lines(spark: SparkSession, given: _Input, held: ExitStack) -> tuple[DataFrame, list[Row]]:
    """All lines, parsed and shuffled, until `held` is closed; and the counts of their keys and problems."""
    lines = held.enter_context(_computed_once(_partitioned(_parsed(spark, given), given)))
    # An invalid time may be millions of years away, which Python's datetime cannot represent.
    at = F.when(F.col("problem").isNull(), F.col("at"))
    keys = lines.select(
        "problem", _is_torn(given).alias("torn"), F.to_date(at).alias("date"), "cluster", at.alias("at")
    )
    return lines, count_keys(keys, "decisions", "problem", "torn").collect()


def query_plans(
    spark: SparkSession, files: Sequence[str], *, now: datetime, rename: Mapping[str, str] | None = None
) -> Mapping[str, DataFrame]:
    """The queries that read files, by name, for `--explain`."""
    return {"the lines": _parsed(spark, _Input(tuple(files), rename or {}, now + AHEAD))}


def _partitioned(lines: DataFrame, given: _Input) -> DataFrame:
    """Partition lines by the files that will be written. The plan is based on a sample of the input files.

    A partition has one date, or a few, and as many consecutive clusters as fit. All lines of a cluster and date are in
    one partition, whatever the sample is.
    """
    spark, files = lines.sparkSession, given.files
    if rows_at_most(files) <= ROWS_PER_FILE:
        return lines.repartitionById(1, F.lit(0))
    # Sample at random: every n-th file could be the first file of each daemon.
    sample = Random(len(files)).sample(files, min(SAMPLE_FILES, math.ceil(len(files) / 24)))  # noqa: S311 - nothing secret
    dates, names = Counter[date | None](), Counter[str]()
    for cluster, day, count in zip(*_count_rows(spark, sample, given).toArrow().to_pydict().values(), strict=True):
        dates[day] += count
        names[cluster] += count
    rows, most = names.total() or 1, max(dates.values(), default=1)
    each = rows / len(sample) / ROWS_PER_FILE
    # The names of a daemon's files have the date.
    found = (re.search(DATE, file) for file in files)
    named = Counter(name and name[1] for name in found)
    a_date = math.ceil(each * (len(files) * most / rows if None in named else max(named.values())))
    parts = max(math.ceil(each * len(files)) + a_date, min(len(files), SAMPLE_FILES))
    place: Column = F.lit(0)
    if a_date > 1:
        before = itertools.accumulate((names[name] for name in sorted(names)), initial=0)
        of = {name: math.floor(count / rows * a_date) for name, count in zip(sorted(names), before, strict=False)}
        places = spark.createDataFrame(pa.table({"_seen": list(of), "_place": pa.array(list(of.values()), pa.int32())}))
        first = {each: min(group) for each, group in itertools.groupby(of, of.__getitem__)}
        bounds = F.array(
            *(F.struct(F.lit(each).alias("place"), F.lit(name).alias("name")) for each, name in first.items())
        )
        lines = lines.join(F.broadcast(places), F.col("cluster") == F.col("_seen"), "left")
        # A search of all bounds is slow, so only clusters that are not in the sample are searched.
        below = F.filter(bounds, lambda bound: bound["name"] <= F.col("cluster"))
        place = F.coalesce("_place", F.array_max(F.transform(below, lambda bound: bound["place"])), F.lit(0))
    # An invalid time may be millions of years away.
    day = F.datediff(F.to_date("at"), F.lit(EARLIEST.date())).cast("long")
    of_text = F.when(F.col("cluster").isNull() | F.col("problem").isNotNull(), F.xxhash64("text"))
    part = F.pmod(F.coalesce(of_text, day * a_date + place), F.lit(parts)).cast("int")
    return lines.repartitionById(parts, part).drop("_seen", "_place")


def rows_at_most(files: Sequence[str]) -> float:
    """An upper bound of the number of rows of files, from their sizes."""
    try:
        return sum(Path(file).stat().st_size / (LEAST_PACKED if file.endswith(".gz") else LEAST) for file in files)
    except OSError:
        return math.inf  # for example, a file is not on this machine


def _count_rows(spark: SparkSession, files: Sequence[str], given: _Input) -> DataFrame:
    """The number of rows of each cluster and date in files."""
    lines = spark.read.schema("decision struct<cluster:string,at:timestamp>").option("ignoreCorruptFiles", "true")
    date = F.to_date("decision.at")
    return (
        lines.json([_escaped(file) for file in files])
        .select(_cluster(given).alias("cluster"), date.alias("date"))
        .where(F.col("date").between(F.lit(EARLIEST.date()), F.lit(given.until.date())))
        .where("cluster is not null")
        .groupBy("cluster", "date")
        .agg(F.count("*").alias("rows"))
    )


@contextmanager
def _computed_once(rows: DataFrame) -> Iterator[DataFrame]:
    """Compute the output of a shuffle only once until the end of the block.

    Spark keeps shuffle files on the disks of its executors, and recomputes files that are lost with an executor. But
    each action would plan its own shuffle, so the block gets a DataFrame of the first shuffle's RDD.
    """
    spark = rows.sparkSession
    if is_connect(spark):
        kept = rows.persist(StorageLevel.DISK_ONLY)
        forget: Callable[[], object] = kept.unpersist
    else:
        java, session = rows._jdf, spark._jsparkSession  # noqa: SLF001 - there is no public way
        made = java.queryExecution().toRdd()
        kept = DataFrame(session.internalCreateDataFrame(made, java.schema(), False), spark)
        forget = partial(made.cleanShuffleDependencies, True)
    try:
        yield kept
    finally:
        # If Spark has ended, do not hide its error.
        with suppress(*_SPARK_FAILED, OSError):
            forget()


def _has_plausible_end(file: str) -> bool:
    """Whether a file may be complete, by a check that costs almost nothing.

    A `.gz` file ends with the size of its content, so the check detects nearly all truncated files.
    """
    if "://" in file or not file.endswith(".gz"):
        return True
    try:
        size, content = packed_sizes(file)
        return size <= content <= size * RATIO
    except OSError:
        return True  # Spark reports it


def packed_sizes(file: str) -> tuple[int, int]:
    """The size of a `.gz` file, and the size of its content if the file is complete. Raises OSError."""
    with Path(file).open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - 4))
        return size, int.from_bytes(opened.read(), "little")


def _damaged(spark: SparkSession, files: Sequence[str]) -> frozenset[str]:
    """The compressed files that cannot be read to their end."""
    packed = [file for file in files if file.endswith(".gz")]
    # Threads run in parallel here: zlib releases the GIL, and remote files are read by Spark.
    with ThreadPoolExecutor() as pool:
        whole = pool.map(partial(_is_whole, spark), packed)
        return frozenset(file for file, is_whole in zip(packed, whole, strict=True) if not is_whole)


def _is_whole(spark: SparkSession, file: str) -> bool:
    try:
        if "://" in file:
            spark.read.text(_escaped(file)).agg(F.max(F.length("value"))).collect()
            return True
        with gzip.open(file) as opened:
            while opened.read(1 << 20):
                pass
    except FileNotFoundError:
        return True  # Spark reports it
    except (*_SPARK_FAILED, OSError, EOFError, zlib.error):
        return False
    return True


def _escaped(path: str) -> str:
    """A path for Spark with escaped glob characters."""
    return escape_glob(path if "://" in path else f"file://{path}")


def _parsed(spark: SparkSession, given: _Input) -> DataFrame:
    """A row for each line: key, observation (`seen`) and decision (`done`), or the problem of the line."""
    frames = []
    for damaged in (False, True):
        files = [_escaped(file) for file in given.files if (file in given.damaged) is damaged]
        if files:
            lines = (
                spark.read.schema(StructType([*LINE, StructField(_BAD, StringType())]))
                .option("columnNameOfCorruptRecord", _BAD)
                .option("timestampFormat", _ZONED)
                .option("ignoreCorruptFiles", str(damaged).lower())
                .json(files)
            )
            frames.append(_rows_of(lines, given))
    return reduce(DataFrame.unionByName, frames)


@dataclass(frozen=True, slots=True)
class _Of:
    """Columns computed from a line: `metrics` first; the others also use its result."""

    metrics: Column
    is_incomplete: Column
    is_inconsistent: Column
    seen: Column
    done: Column


@lru_cache(maxsize=1)
def _of_line(spark: SparkSession) -> _Of:
    """The columns, created once per session.

    Spark numbers the variables of lambda functions. If each batch of `history follow` created the columns again, the
    numbers would differ, and Spark would compile the same Java code again.
    """
    del spark
    metrics = F.coalesce("observation.metrics", F.create_map().cast(LINE["observation"].dataType["metrics"].dataType))
    return _Of(
        F.transform_values(metrics, _metric),
        F.exists(F.map_values(_METRICS), _is_incomplete),
        _is_inconsistent(F.col("decision.guards"), F.col("decision.verdicts")),
        F.struct(*_observation()),
        F.struct(*_decision()),
    )


def _rows_of(lines: DataFrame, given: _Input) -> DataFrame:
    of = _of_line(lines.sparkSession)
    parsed = F.to_json(F.struct(*(name for name in lines.columns if name != _BAD)))
    known = lines.withColumn(_METRICS, of.metrics).withColumn("problem", _problem(of, given))
    problem = F.col("problem").isNotNull()
    return known.select(
        _cluster(given).alias("cluster"),
        F.col("decision.at").alias("at"),
        _order().alias("order"),
        "problem",
        F.when(problem, _path()).alias("file"),
        # Spark does not keep the text of a well-formed line; the parsed content is used instead.
        # A damaged or truncated line may have invalid bytes, and Arrow reads only valid UTF-8.
        F.when(problem, F.left(F.make_valid_utf8(F.coalesce(_BAD, parsed)), F.lit(MAX_TEXT))).alias("text"),
        F.when(~problem, of.seen).alias("seen"),
        F.when(~problem, of.done).alias("done"),
    )


def _path() -> Column:
    """The file of a line, as given by the caller."""
    decoded = F.url_decode(F.replace(F.input_file_name(), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(decoded, "^file:/+", "/")


def _cluster(given: _Input) -> Column:
    name = F.col("decision.cluster")
    if not given.rename:
        return name
    renamed = reduce(
        lambda cases, one: cases.when(name == one[0], one[1]),
        list(given.rename.items())[1:],
        F.when(name == next(iter(given.rename)), next(iter(given.rename.values()))),
    )
    return renamed.otherwise(name)


def _order() -> Column:
    """A number that both halves of a record share: of several records with one key, the one with the least is added."""
    return F.xxhash64(
        "observation.desired",
        "observation.ready",
        "decision.current",
        "decision.proposed",
        "decision.desired",
        "decision.reason",
        "dry_run",
        "failed",
    )


def _problem(of: _Of, given: _Input) -> Column:
    """Why a line is not a record; null: it is a record."""
    bad, cluster, at = F.col(_BAD), F.col("decision.cluster"), F.col("decision.at")
    unread = bad.isNotNull() & cluster.isNull() & at.isNull()
    known = (
        F.when(unread & ~bad.startswith("{"), "it is not a JSON object")
        .when(unread & ~F.rtrim(bad).endswith("}"), "it is cut off")
        .when(unread & F.get_json_object(bad, "$.decision").isNull(), "it is not JSON, or has no decision")
        .when(
            F.col("version") != VERSION,
            F.concat(
                F.lit("version "), F.col("version"), F.lit(f" of the trace format is not known, expected {VERSION}")
            ),
        )
        .when(bad.rlike(_UNZONED), NO_ZONE)
        .when(bad.isNotNull(), WRONG_TYPE)
        .when(cluster.isNull() | (cluster == ""), "it has no decision.cluster")
    )
    for name in NEEDED:
        known = known.when(F.col(name).isNull(), f"it has no {name}")
    return (
        known.when(at != F.col("observation.at"), "its observation is of another time than its decision")
        .when(at < F.lit(EARLIEST), f"its time is before {EARLIEST.year}: a clock was wrong")
        .when(_is_after(at, given.until), "its time is in the future: a clock was wrong")
        .when(of.is_incomplete, WRONG_TYPE)
        .when(of.is_inconsistent, WRONG_TYPE)
    )


def _is_after(at: Column, until: datetime) -> Column:
    """Whether a time is after another one, compared as structs.

    Otherwise Spark would put the time as a literal into the Java code that it generates: see `_of_line`.
    """
    return F.struct(at.alias("at")) > F.struct(F.lit(until).alias("at"))


def _is_inconsistent(guards: Column, verdicts: Column) -> Column:
    """Whether the verdict trail cannot be restored from guard names and some verdicts: see `restored`."""
    names, judged = _words(guards), F.transform(verdicts, lambda one: one["guard"])
    unknown = F.size(F.array_except(names, F.array(*(F.lit(reason.value) for reason in Reason)))) > 0
    twice = (F.size(F.array_distinct(names)) < F.size(names)) | (F.size(F.array_distinct(judged)) < F.size(judged))
    wrong = unknown | F.coalesce(twice | (F.size(F.array_except(judged, names)) > 0), F.lit(False))
    # Nearly all records have this form, for which one comparison is enough.
    quiet = (guards == ALL_GUARDS) & (F.coalesce(F.size(verdicts), F.lit(0)) <= 0)
    return F.when(quiet | ~F.coalesce(guards.rlike(r"\S"), F.lit(False)), F.lit(False)).otherwise(wrong)


def _words(guards: Column) -> Column:
    """The names in a string, split like `str.split`."""
    return F.filter(F.split(guards, r"\s+"), lambda name: name != "")


def _is_incomplete(metric: Column) -> Column:
    """Whether a metric has no valid value, or no time."""
    return metric["at"].isNull() | (metric["value"].isNull() & metric["values"].isNull())


def _is_torn(given: _Input) -> Column:
    """Whether a line is the last line of a file, which its writer may not have finished."""
    torn = F.lit(False)
    for file, line in given.torn.items():
        torn |= (F.col("file") == file) & (F.col("text") == line[:MAX_TEXT])
    return F.coalesce(torn, F.lit(False))


def _rejected(lines: DataFrame, given: _Input) -> DataFrame:
    """Lines that are not records, and damaged files."""
    rows = lines.where("problem is not null").select("file", F.col("problem").alias("reason"), "text")
    if given.damaged:
        damaged = [(file, DAMAGED, "") for file in sorted(given.damaged)]
        rows = rows.unionByName(lines.sparkSession.createDataFrame(damaged, "file string, reason string, text string"))
    day = F.regexp_extract("file", DATE, 1)
    return rows.withColumn("date", F.try_to_date(day))


def _observation() -> list[Column]:
    seen = "observation."
    return [
        *(F.col(f"{seen}{name}") for name in ("desired", "ready")),
        *(_number(name, sum_of).alias(name) for name in ("lag", "arrivals", "throughput")),
        _number("utilization", F.array_max).alias("utilization"),
        F.col(_METRICS).alias("metrics"),
        F.coalesce(F.col(f"{seen}missing"), _empty(OBSERVATIONS, "missing")).alias("missing"),
        _engine().alias("engine"),
        *(F.col(f"{seen}{name}") for name in ("floor", "ceiling")),
        F.coalesce(F.col(f"{seen}remarks"), _empty(OBSERVATIONS, "remarks")).alias("remarks"),
        F.col(f"{seen}controls").alias("controls"),
    ]


def _numbers(text: Column) -> Column:
    return F.from_json(text, ArrayType(DoubleType()))


def _number(name: str, of_many: Callable[[Column], Column]) -> Column:
    metric = F.col(_METRICS)[name]
    return F.coalesce(of_many(metric["values"]), metric["value"])


def sum_of(values: Column) -> Column:
    """The sum of an array of numbers."""
    return F.aggregate(values, F.lit(0.0), lambda total, one: total + one)


def _metric(_: Column, metric: Column) -> Column:
    text = metric["value"]
    many = text.startswith("[")
    # An integer has no negative zero, even if Spark reads it as a double.
    number = F.when(text == "-0", 0.0).otherwise(text.try_cast("double"))
    return F.struct(
        F.when(many, metric["mean"]).otherwise(number).alias("value"),
        F.when(many, _numbers(text)).alias("values"),
        metric["at"].alias("at"),
        metric["partitions"].alias("partitions"),
        F.coalesce(metric["parts"], _empty(METRIC, "parts")).alias("parts"),
        _seconds(F.coalesce(metric["over"], F.lit("PT0S"))).alias("over"),
    )


def _engine() -> Column:
    engine = F.col("observation.engine")
    plain = [name for name in ENGINE.names if name != "deadlines"]
    spans = F.coalesce(engine["deadlines"], F.create_map().cast("map<string,string>"))
    deadlines = F.transform_values(spans, lambda _, span: _seconds(span)).alias("deadlines")
    return F.when(engine.isNotNull(), F.struct(*(engine[name].alias(name) for name in plain), deadlines))


def _seconds(text: Column) -> Column:
    """Convert an ISO 8601 duration, as pydantic writes it, to seconds. A year has 365 days. Null: it is no duration."""
    return (
        # Nearly all metrics have these durations, and a comparison takes a tenth of the time of parsing.
        F.when(text == "PT0S", 0.0)
        .when(text == "PT1M", 60.0)
        .when(text.contains("P"), F.coalesce(_short(F.substring(text, 3, 99)), _long(text)))
        .otherwise(text.try_cast("double"))
    )


def _short(text: Column) -> Column:
    """Whole seconds of `90S`, `5M` or `1M50S`, in a fraction of the time of `_long`; null for any other duration.

    The conditions avoid casts of other text, because each failed cast costs an exception.
    """

    def before(unit: str, rest: Column) -> Column:
        # Multiply as double, which does not overflow.
        return F.substring_index(rest, unit, 1).try_cast("int").cast("double")

    rest = F.substring_index(text, "M", -1)
    minutes = before("M", text) * 60 + F.when(rest == "", 0.0).otherwise(before("S", rest))
    other = text.contains("H") | text.contains(".")
    return F.when(~other, F.when(text.contains("M"), minutes).otherwise(before("S", text)))


def _long(text: Column) -> Column:
    """The seconds of any duration."""
    amounts = F.regexp_extract_all(text, F.lit(f"([0-9.]+[{''.join(UNITS)}])"), F.lit(1))
    units = F.create_map(*(F.lit(each) for pair in UNITS.items() for each in pair))
    total = F.aggregate(
        amounts,
        F.lit(0.0),
        lambda total, one: (
            total + F.regexp_replace(one, "[A-Z]", "").try_cast("double") * units[F.right(one, F.lit(1))]
        ),
    )
    exact = F.round(total, 6)  # pydantic's resolution is 1 µs
    return F.when(text.rlike(DURATION), F.when(text.startswith("-"), -exact).otherwise(exact))


def _decision() -> list[Column]:
    def listed(name: str, of: Callable[[Column], Column]) -> Column:
        given = F.transform(F.col(f"decision.{name}"), of)
        return F.coalesce(given, _empty(DECISIONS, name)).alias(name)

    def note(pair: Column) -> Column:
        return F.struct(F.get(pair, F.lit(0)).alias("reason"), F.get(pair, F.lit(1)).alias("text"))

    return [
        *(F.col(f"decision.{name}") for name in ("current", "proposed", "desired", "reason")),
        listed("recommendations", partial(_filled, "recommendations")),
        F.when(F.col("decision.guards") == ALL_GUARDS, ALL_GUARDS)
        .otherwise(F.coalesce(F.array_join(_words(F.col("decision.guards")), " "), F.lit("")))
        .alias("guards"),
        listed("verdicts", partial(_filled, "verdicts")),
        listed("notes", note),
        F.coalesce("decision.combined", F.lit("")).alias("combined"),
        F.coalesce("dry_run", F.lit(False)).alias("dry_run"),
        F.coalesce("failed", F.lit("")).alias("failed"),
    ]


def _filled(name: str, one: Column) -> Column:
    """An element of one of the decision's lists, with empty values for the fields that a line omits."""
    columns = DECISIONS[name].dataType.elementType
    empty = {"inputs": _empty(columns, "inputs")} if "inputs" in columns.names else {}
    empty |= {text: F.lit("") for text in ("policy", "detail") if text in columns.names}
    return F.struct(
        *(F.coalesce(one[each], empty[each]).alias(each) if each in empty else one[each] for each in columns.names)
    )


def _empty(columns: StructType, name: str) -> Column:
    """The value of a column that a line omits: an empty map or list."""
    kind = columns[name].dataType
    return (F.create_map() if isinstance(kind, MapType) else F.array()).cast(kind)
