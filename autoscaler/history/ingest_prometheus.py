"""Import the history of a Prometheus server as observations: send queries, store the responses, convert them to rows.

Each response is stored in the dataset as a file (`_prometheus/`) before the next query is sent, so that no query is
sent twice. Spark computes the observations from all responses. A time without a sample has no observation: a gap stays
a gap.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from autoscaler.history.dataset import escape_glob
from autoscaler.history.ingest_records import sum_of
from autoscaler.history.schema import METRIC
from autoscaler.sources.prometheus import Asked, Empty, Many, Prometheus, Query, Series, TooMuchError

DIRECTORY = "_prometheus"
"""The directory of responses in a dataset. After its removal, the next import sends all queries again."""

DESIRED, READY = "#desired", "#ready"
"""The names of the sizes, which are not metrics."""

MAX_POINTS = 11_000
"""Maximum points of a series in one response: Prometheus refuses more."""

SETTLED = timedelta(minutes=1)
"""Younger samples are not queried, because they may still change: scrapes and recording rules can be late."""

Ask = Callable[[str, datetime, datetime, timedelta], Sequence[Series]]


@dataclass(frozen=True)
class Want:
    """A metric or a size of a cluster, and where to query it.

    Attributes:
        cluster: the cluster's name.
        name: the metric's name, or `DESIRED` or `READY`.
        server: the server.
        query: the query.
    """

    cluster: str
    name: str
    server: Prometheus
    query: Query


@dataclass(frozen=True, slots=True)
class Span:
    """An interval in Unix seconds, `end` excluded."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One query over one span, and the file of its response.

    Attributes:
        id: the identity of the query, its server and the step.
        asked: the query; several clusters may share it.
        server: the server.
        span: the interval.
        file: the file of the response, which may cover more than this span.
        there: whether the file exists.
    """

    id: str
    asked: Asked
    server: Prometheus
    span: Span
    file: Path
    there: bool


def spans(begin: datetime, end: datetime, window: timedelta, step: timedelta, now: datetime) -> list[Span]:
    """Split an interval into windows that end at multiples of their length, so that every run has the same windows.

    A window is a whole number of steps, and a step is a whole number of seconds. Times younger than `SETTLED` are left
    out.
    """
    step_s, window_s = round(step.total_seconds()), round(window.total_seconds())
    first = -(-math.ceil(begin.timestamp()) // step_s) * step_s
    last = math.floor(min(end, now - SETTLED).timestamp()) // step_s * step_s
    found = []
    while first <= last:
        until = min((first // window_s + 1) * window_s, last + step_s)
        found.append(Span(first, until))
        first = until
    return found


def plan(directory: Path, wants: Iterable[Want], windows: Sequence[Span], step: timedelta) -> list[Answer]:
    """All necessary responses, those of the first window first."""
    queries = {identity(want, step): want for want in wants}
    kept = {one: _kept(directory / one) for one in queries}

    def answer(one: str, want: Want, span: Span) -> Answer:
        covers = [it for it in kept[one] if it.begin <= span.begin and span.end <= it.end]
        there = covers[0] if covers else span
        return Answer(
            id=one,
            asked=want.query.asked,
            server=want.server,
            span=span,
            file=_file(directory / one, there),
            there=bool(covers),
        )

    return [answer(one, want, span) for span in windows for one, want in queries.items()]


def _file(directory: Path, span: Span) -> Path:
    return directory / f"{span.begin}-{span.end}.parquet"


def _kept(directory: Path) -> list[Span]:
    """The spans of the stored responses in a directory."""
    found = [re.fullmatch(r"(\d+)-(\d+)\.parquet", file.name) for file in directory.glob("*.parquet")]
    return [Span(int(one[1]), int(one[2])) for one in found if one]


def identity(want: Want, step: timedelta) -> str:
    """The identity of a query: equal queries of several clusters are sent once."""
    asked = want.query.asked
    text = json.dumps([want.server.url, asked.query, asked.age, asked.labels, step.total_seconds()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Answers


_ANSWER = pa.schema(
    [
        ("asked", pa.string()),
        ("key", pa.list_(pa.string())),
        ("series", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
        ("true_at", pa.timestamp("us", "UTC")),
    ]
)


def fetch(answer: Answer, step: timedelta, ask: Ask) -> None:
    """Send a query and store its response, or nothing if this is interrupted.

    A span that has too many samples for one response is halved. `ask` queries from one time to another, both inclusive.
    Raises EdgeError if there is no response.
    """
    file, step_s = answer.file, round(step.total_seconds())
    file.parent.mkdir(parents=True, exist_ok=True)
    _describe_query(answer)
    written = file.with_name(f".{file.name}.{os.getpid()}")
    remaining = [(answer.span.begin, answer.span.end)]
    try:
        with pq.ParquetWriter(written, _ANSWER, compression="zstd") as writer:
            while remaining:
                begin, end = remaining.pop()
                try:
                    writer.write_table(_table(answer, *_asked(answer, begin, end - step_s, step, ask)))
                except TooMuchError:
                    steps = (end - begin) // step_s
                    if steps < 2:  # noqa: PLR2004 - one time cannot be halved
                        raise
                    half = begin + steps // 2 * step_s
                    remaining += [(half, end), (begin, half)]
        _replace(written, file)
    finally:
        written.unlink(missing_ok=True)
    for other in _kept(file.parent):
        # Remove shorter responses that this one covers: the last window grows from one run to the next.
        if other != answer.span and answer.span.begin <= other.begin and other.end <= answer.span.end:
            _file(file.parent, other).unlink(missing_ok=True)


def _describe_query(answer: Answer) -> None:
    """Write a file that shows people the query of the responses in its directory."""
    asked = answer.asked
    query = {"server": answer.server.url, "query": asked.query, "age": asked.age, "labels": list(asked.labels)}
    (answer.file.parent / "query.json").write_text(json.dumps(query, indent=2) + "\n", encoding="utf-8")


def _replace(written: Path, file: Path) -> None:
    with written.open("rb") as opened:
        os.fsync(opened.fileno())
    written.replace(file)


def _asked(
    answer: Answer, begin: int, last: int, step: timedelta, ask: Ask
) -> tuple[Sequence[Series], Sequence[Series] | None]:
    since, until = datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(last, UTC)
    values = ask(answer.asked.query, since, until, step)
    if answer.asked.age is None:
        return values, None
    return values, ask(answer.asked.age, since, until, step) if values else []


def _table(answer: Answer, values: Sequence[Series], ages: Sequence[Series] | None) -> pa.Table:
    """Convert series to rows, each with the time at which its value was measured."""
    asked = answer.asked
    known = None if ages is None else _ages(asked, ages)
    tables = []
    for one in values:
        if not one.points:
            continue
        count = len(one.points)
        times = np.array([point[0] for point in one.points], dtype=float)
        numbers = np.array([point[1] for point in one.points], dtype=float)
        true = times
        if known is not None:
            measured = known.get(_key(asked, one), {})
            true = np.array([measured.get(point[0], math.nan) for point in one.points], dtype=float)
        key = [one.labels.get(label, "") for label in asked.labels]
        labels = json.dumps(sorted(one.labels.items()))
        columns = [
            pa.array([answer.id] * count, pa.string()),
            pa.array([key] * count, pa.list_(pa.string())),
            pa.array([labels] * count, pa.string()),
            _times(times),
            pa.array(numbers, pa.float64()),
            _times(true),
        ]
        tables.append(pa.table(columns, schema=_ANSWER))
    return pa.concat_tables(tables) if tables else _ANSWER.empty_table()


def _times(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
    known = np.isfinite(seconds)
    micros = np.rint(np.where(known, seconds, 0.0) * 1e6).astype(np.int64)
    return pa.array(micros, pa.int64(), mask=~known).cast(pa.timestamp("us", "UTC"))


def _key(asked: Asked, one: Series) -> object:
    if asked.exact:  # timestamp() keeps all labels except the name
        return frozenset(item for item in one.labels.items() if item[0] != "__name__")
    return tuple(one.labels.get(label, "") for label in asked.labels)


def _ages(asked: Asked, series: Sequence[Series]) -> dict[object, dict[float, float]]:
    """The times at which values were measured, by series and time; the oldest of several, if all are known."""
    found: dict[object, dict[float, float]] = {}
    for one in series:
        oldest = found.setdefault(_key(asked, one), {})
        for at, number in one.points:
            before = oldest.get(at, math.inf)
            oldest[at] = math.nan if math.isnan(number) or math.isnan(before) else min(number, before)
    return found


# Observations


_SAMPLES = from_arrow_schema(_ANSWER)

_NO_SAMPLE = "no sample"


def observations(spark: SparkSession, answers: Sequence[Answer], wants: Sequence[Want], step: timedelta) -> DataFrame:
    """The observations in the responses, one row for each cluster and time with any sample.

    The session must be in UTC, and its workers must be able to read the response files. There must be at least one
    response.
    """
    samples = _samples(spark, answers)
    each = any(want.query.many is Many.EACH for want in wants)
    wanted = spark.createDataFrame(
        [
            (
                identity(want, step),
                list(want.query.wanted),
                want.cluster,
                want.name,
                want.query.many.value,
                want.query.over.total_seconds(),
            )
            for want in wants
        ],
        "asked string, key array<string>, cluster string, name string, many string, over double",
    )
    read = _grouped(samples, each=each).join(F.broadcast(wanted), ["asked", "key"])
    read = read.select("cluster", "at", "name", _problem().alias("problem"), _reading(each=each).alias("reading"))
    whole = read.groupBy("cluster", "at").agg(*_columns())
    return _completed(whole.join(F.broadcast(_expected(spark, wants)), "cluster"))


def differing(rows: DataFrame, stored: DataFrame) -> int:
    """How many observations differ from the stored ones of the same cluster and time."""

    def sorted_by_key(name: str) -> Column:
        # Maps have no order, so Spark cannot compare them.
        def pair(key: Column) -> Column:
            return F.struct(key.alias("key"), F.col(name)[key].alias("value"))

        return F.transform(F.array_sort(F.map_keys(name)), pair).alias(name)

    def as_json(observations: DataFrame, name: str) -> DataFrame:
        whole = F.struct("desired", "ready", sorted_by_key("metrics"), sorted_by_key("missing"))
        return observations.select("cluster", "at", F.to_json(whole).alias(name))

    both = as_json(rows, "given").join(as_json(stored, "stored"), ["cluster", "at"])
    return int(both.where("given <> stored").count())


def _samples(spark: SparkSession, answers: Sequence[Answer]) -> DataFrame:
    """The samples within each response's span: several responses may share a file, and files may overlap."""
    files = dict.fromkeys(escape_glob(f"file://{answer.file.absolute()}") for answer in answers)
    taken = spark.createDataFrame(
        [(answer.id, answer.file.name, answer.span.begin, answer.span.end) for answer in answers],
        "asked string, file string, begin long, end long",
    )
    kept = spark.read.schema(_SAMPLES).parquet(*files).withColumn("file", F.col("_metadata.file_name"))
    in_span = (F.col("at") >= F.timestamp_seconds("begin")) & (F.col("at") < F.timestamp_seconds("end"))
    return kept.join(F.broadcast(taken), ["asked", "file"]).where(in_span).select(*_SAMPLES.names)


def _grouped(samples: DataFrame, *, each: bool) -> DataFrame:
    """Aggregate the samples of each reading into one row."""
    value = F.col("value")
    found = [
        F.count("*").alias("count"),
        F.count_if(F.isnan(value) | (F.abs(value) == math.inf)).alias("bad"),
        F.count_if(F.col("true_at").isNull()).alias("undated"),
        F.sum(value).alias("sum"),
        F.avg(value).alias("mean"),
        F.max(value).alias("max"),
        F.min(value).alias("min"),
        F.min("true_at").alias("true_at"),
    ]
    if each:
        # Sort by labels, as the source does.
        found.append(F.array_sort(F.collect_list(F.struct("series", "value"))).alias("each"))
    return samples.groupBy("asked", "key", "at").agg(*found)


def _problem() -> Column:
    """Why the samples are not a valid reading, in the words of the source; null: they are valid."""
    several = F.concat(F.col("count"), F.lit(" samples, expected one"))
    return (
        F.when((F.col("many") == Many.ERROR.value) & (F.col("count") > 1), several)
        .when(F.col("bad") > 0, F.lit("value is not a finite number"))
        .when(F.col("undated") > 0, F.lit("its time is not known"))
    )


def _reading(*, each: bool) -> Column:
    many = F.col("many")
    one = F.when(many == Many.SUM.value, F.col("sum")).when(many == Many.MEAN.value, F.col("mean"))
    one = one.when(many == Many.MIN.value, F.col("min")).when(many != Many.EACH.value, F.col("max"))
    values = F.lit(None)
    if each:
        values = F.when(many == Many.EACH.value, F.transform("each", lambda item: item["value"]))
    return _metric(one, values, F.col("true_at"), F.col("over"))


def _metric(value: Column, values: Column, at: Column, over: Column) -> Column:
    known = {"value": value, "values": values, "at": at, "over": over}
    return F.struct(*(known.get(part.name, F.lit(None)).cast(part.dataType).alias(part.name) for part in METRIC))


def _columns() -> Iterator[Column]:
    name, reading, fine = F.col("name"), F.col("reading"), F.col("problem").isNull()
    metric = ~name.isin(DESIRED, READY)
    pair = F.struct(name, reading)
    yield F.map_from_entries(F.collect_list(F.when(metric & fine, pair))).alias("read")
    yield F.map_from_entries(F.collect_list(F.when(metric & ~fine, F.struct(name, "problem")))).alias("problems")
    for size, column in ((DESIRED, "desired"), (READY, "ready")):
        counts = (name == size) & fine & (reading["value"] >= 0)
        yield F.max(F.when(counts, F.round(reading["value"]))).cast("int").alias(column)


def _expected(spark: SparkSession, wants: Sequence[Want]) -> DataFrame:
    """The metrics of each cluster: those that are missing if there is no sample, and those that are then 0."""
    metrics: dict[str, list[Want]] = {}
    for want in wants:
        metrics.setdefault(want.cluster, [])
        if want.name not in {DESIRED, READY}:
            metrics[want.cluster].append(want)
    return spark.createDataFrame(
        [
            (
                cluster,
                [want.name for want in wanted if want.query.empty is Empty.MISSING],
                [want.name for want in wanted if want.query.empty is Empty.ZERO],
            )
            for cluster, wanted in metrics.items()
        ],
        "cluster string, names array<string>, zeros array<string>",
    )


def _completed(whole: DataFrame) -> DataFrame:
    """Add missing metrics with the reason, and the columns of the main metrics."""
    read, problems = F.col("read"), F.col("problems")

    def unknown(name: Column) -> Column:
        return ~F.map_contains_key(read, name) & ~F.map_contains_key(problems, name)

    def zero(name: Column) -> Column:
        return F.struct(name, _metric(F.lit(0.0), F.lit(None), F.col("at"), F.lit(0.0)))

    zeros = F.map_from_entries(F.transform(F.filter("zeros", unknown), zero))
    absent = F.map_from_entries(F.transform(F.filter("names", unknown), lambda name: F.struct(name, F.lit(_NO_SAMPLE))))
    size = F.when(
        F.col("desired").isNull() & F.col("ready").isNull(), F.create_map(F.lit("target"), F.lit(_NO_SAMPLE))
    ).otherwise(F.create_map().cast("map<string,string>"))
    found = whole.select(
        "cluster",
        "at",
        "desired",
        "ready",
        F.map_concat(read, zeros).alias("metrics"),
        F.map_concat(problems, absent, size).alias("missing"),
    )

    def flat(name: str, several: Callable[[Column], Column]) -> Column:
        metric = F.col("metrics")[name]
        return F.coalesce(metric["value"], several(metric["values"])).alias(name)

    return found.select(
        "*", flat("lag", sum_of), flat("arrivals", sum_of), flat("throughput", sum_of), flat("utilization", F.array_max)
    )
