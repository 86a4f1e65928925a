"""Profiles of a fleet: the JVM summarizes observations by the minute, and Python computes the profiles from minutes.

Python gets at most one row per minute, however often a cluster was observed. A cluster with a hundred times the data of
others therefore costs Python no more time.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, TimestampType

from autoscaler.core.model import Direction, JobState
from autoscaler.core.workload_profile import Profile
from autoscaler.history.cluster_profile import ProfileOptions, build_profile
from autoscaler.history.dataset import FEW_ROWS, Dataset
from autoscaler.history.minutes import COLUMNS, Minutes, Rescaled
from autoscaler.history.progress import is_connect
from autoscaler.history.schema import struct
from autoscaler.history.seasonality import DAY_S, WEEK, WEEKS
from autoscaler.trace.profile_file import dump, file_name

MAX_RATE = 1e200
"""Larger numbers of records are invalid."""
MEAN_OVER_S = 60.0
"""The usual averaging interval of rates."""
BEHIND_S = 10.0
SATURATED = 0.6
"""A job that falls behind is saturated if its workers are busier than this. Otherwise it waits for another system."""

ENDED_S = 900.0
SIMILAR = 0.22
FOLLOWS_S = (-600.0, 7200.0)
"""A cluster was probably renamed if it ended ENDED_S before the last cluster's end, and another cluster, whose arrivals
differ by less than SIMILAR (ln), began within FOLLOWS_S after its end."""

_text, _number, _long, _time = StringType(), DoubleType(), LongType(), TimestampType()
PROFILES = struct(
    cluster=_text,
    made_at=_time,
    begin=_time,
    end=_time,
    observations=_long,
    rate=_number,
    exponent=_number,
    start_up_up_s=_number,
    stall_up_s=_number,
    stall_down_s=_number,
    season_error=_number,
    replica_hours=_number,
    needed_hours=_number,
    violation=_number,
    rescales_per_hour=_number,
    findings=ArrayType(struct(kind=_text, text=_text, replica_hours=_number)),
    profile=_text,
)
"""One row for each cluster: the main figures, and the whole profile as JSON. Times are UTC; `_s` means seconds;
`season_error` is the error of the season's forecasts `AHEAD` minutes ahead."""

AHEAD = 15

PER_PARTITION = 100
"""Number of profiles that are fetched at a time: up to 30 MB."""

_RESCALES = tuple(column.name for column in fields(Rescaled))
_NOTES = ("renamed_to", "renamed_from", "skew_s", "over_s")


def profiles(
    spark: SparkSession,
    dataset: Dataset,
    *,
    made_at: datetime,
    objective: timedelta = timedelta(seconds=60),
    holidays: Collection[date] = (),
    time_zones: Mapping[str, str] = MappingProxyType({}),
    since: date | datetime | None = None,
    until: date | datetime | None = None,
    clusters: Collection[str] | None = None,
    renamed: Mapping[str, str] | None = None,
    in_workers: bool = False,
) -> DataFrame:
    """The profiles of a dataset's clusters, one row for each; see `PROFILES`.

    Args:
        spark: a session in UTC.
        dataset: the history.
        made_at: the present time.
        objective: records that wait longer are late.
        holidays: days to exclude from the season.
        time_zones: cluster -> the time zone of its days, as in `ProfileOptions`.
        since: the first date, or time; None: as many weeks before the end as a season uses.
        until: the last date (inclusive), or the time before which the history ends.
        clusters: only these clusters, by their names in the dataset.
        renamed: name in the dataset -> present name.
        in_workers: compute the profiles in Python workers even if there are few observations, as one query whose plan
            can be shown.

    Raises:
        DatasetError: a file of the dataset is damaged.
    """
    if since is None:
        since = _begin(dataset, until)
    wanted = None if clusters is None else _with_old(clusters, renamed or {})
    observations = dataset.read(spark, "observations", since=since, until=until, clusters=wanted)
    rescales = dataset.read(spark, "rescales", since=since, until=until, clusters=wanted)
    sample = dataset.read(spark, "observations", since=_latest(dataset, until), until=until, clusters=wanted)
    observations, rescales, sample = (_renamed(rows, renamed or {}) for rows in (observations, rescales, sample))
    options = ProfileOptions(made_at, objective.total_seconds(), frozenset(holidays), dict(time_zones))

    notes = _notes(observations, sample)

    def profile(left: pa.Table, right: pa.Table) -> pa.Table:
        return _profile(left, right, notes, options)

    minutes = _minutes(observations, options.objective)
    others = rescales.select("cluster", *_RESCALES).withColumn("at", F.unix_micros("at") / 1e6)
    if in_workers or not dataset.has_few_rows("observations", FEW_ROWS):
        return minutes.groupBy("cluster").cogroup(others.groupBy("cluster")).applyInArrow(profile, PROFILES)
    left, right = minutes.toArrow(), others.toArrow()
    found = [
        profile(*(rows.filter(pc.equal(rows["cluster"], name)) for rows in (left, right)))
        for name in left["cluster"].unique()
    ]
    return spark.createDataFrame(pa.concat_tables([_ARROW.empty_table(), *found]), PROFILES)


def _begin(dataset: Dataset, until: date | datetime | None) -> date | None:
    """The first date to use by default: as many weeks before the end as a season uses."""
    last = _latest(dataset, until)
    return None if last is None else last - timedelta(days=WEEKS * WEEK)


def _latest(dataset: Dataset, until: date | datetime | None) -> date | None:
    """The last date, even if only a part of it is used."""
    end = until if until is None or isinstance(until, datetime) else datetime.combine(until, time(), UTC)
    begun = (day for day in dataset.dates() if end is None or datetime.combine(day, time(), UTC) < end)
    return max(begun, default=None)


def _with_old(clusters: Collection[str], renamed: Mapping[str, str]) -> list[str]:
    return [*clusters, *(old for old, new in renamed.items() if new in clusters and old not in clusters)]


def _renamed(rows: DataFrame, renamed: Mapping[str, str]) -> DataFrame:
    cluster: Column = F.col("cluster")
    for old, new in renamed.items():
        cluster = F.when(F.col("cluster") == old, F.lit(new)).otherwise(cluster)
    return rows.withColumn("cluster", cluster) if renamed else rows


# In the JVM


def _valid(column: str) -> Column:
    """The column as a number of records: null unless it is finite and at least 0."""
    value = F.col(column)
    return F.when((value >= 0) & (value < MAX_RATE), value)  # NaN is greater than any number


def _minutes(observations: DataFrame, objective: float) -> DataFrame:
    """One row for each cluster and minute, with the columns of `Minutes`."""
    arrivals, throughput, lag, busy = (_valid(name) for name in ("arrivals", "throughput", "lag", "utilization"))
    at = F.unix_micros("at") / 1e6
    coming = F.coalesce(arrivals, throughput)
    late = F.when(lag == 0, 0.0).when(coming > 0, F.when(lag > objective * coming, 1.0).otherwise(0.0))
    behind = (throughput < arrivals) & (lag > BEHIND_S * throughput) & (busy.isNull() | (busy > SATURATED))
    job = F.col("engine.job")
    rows = observations.select(
        "cluster",
        # A mean over a minute describes the time half a minute earlier.
        F.floor((at - MEAN_OVER_S / 2) / 60).alias("minute"),
        at.alias("at"),
        F.least("desired", "ready").alias("least"),
        F.greatest("desired", "ready").alias("most"),
        arrivals.alias("arrivals"),
        throughput.alias("throughput"),
        busy.alias("utilization"),
        lag.alias("lag"),
        late.alias("late"),
        F.when(behind, 1.0).otherwise(0.0).alias("behind"),
        F.when(~job.isin(JobState.RUNNING.value, JobState.IDLE.value), 1.0).otherwise(0.0).alias("stopped"),
        (F.unix_micros("engine.running_since") / 1e6).alias("running_since"),
        F.col("engine.slots").alias("slots"),
        F.col("engine.partitions").alias("partitions"),
    )
    numbers = {
        "observations": F.count(F.lit(1)),
        "first": F.min("at"),
        "last": F.max("at"),
        "least": F.min("least"),
        "most": F.max("most"),
        "paid": F.avg("most"),
        "running_since": F.max("running_since"),
        "slots": F.max("slots"),
        "partitions": F.max("partitions"),
        **{each: F.avg(each) for each in ("arrivals", "throughput", "utilization", "lag", "late", "behind", "stopped")},
    }
    return rows.groupBy("cluster", "minute").agg(
        *(numbers[each].cast("double").alias(each) for each in COLUMNS if each != "minute")
    )


def _notes(observations: DataFrame, sample: DataFrame) -> dict[str, dict[str, Any]]:
    """Cluster -> further facts about it: see `_NOTES`."""
    notes = {row.cluster: row.asDict() for row in _reading_ages(sample).collect()}
    for cluster, names in _renames([row.asDict() for row in _lives(observations).collect()]).items():
        notes.setdefault(cluster, {}).update(names)
    return notes


def _lives(observations: DataFrame) -> DataFrame:
    """The begin and end of each cluster, and its arrivals (ln) on a busy day: not every cluster has seen a weekend."""
    at = F.unix_micros("at") / 1e6
    days = observations.groupBy("cluster", F.floor(at / DAY_S).alias("day")).agg(
        F.min(at).alias("begin"), F.max(at).alias("end"), F.avg(_valid("arrivals")).alias("level")
    )
    # There are few rows, so they go into one partition: all cores would wait for another tiny stage.
    return (
        days.coalesce(1)
        .groupBy("cluster")
        .agg(
            F.min("begin").alias("begin"),
            F.max("end").alias("end"),
            F.ln(F.percentile_approx("level", 0.75)).alias("level"),
        )
    )


def _renames(lives: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The old and new names of probably renamed clusters; of several, the names with the most similar arrivals."""
    first, last = (of((life[when] for life in lives), default=0.0) for of, when in ((min, "begin"), (max, "end")))
    known = [life for life in lives if life["level"] is not None]
    ended = [life for life in known if life["end"] < last - ENDED_S]
    begun = sorted((life for life in known if life["begin"] > first + ENDED_S), key=itemgetter("begin"))
    pairs = []
    for old in ended:
        nearest = bisect_left(begun, old["end"] + FOLLOWS_S[0], key=itemgetter("begin"))
        for new in islice(begun, nearest, None):
            if new["begin"] - old["end"] > FOLLOWS_S[1]:
                break
            off = abs(old["level"] - new["level"])
            if off < SIMILAR and new["cluster"] != old["cluster"]:
                pairs.append((off, old["cluster"], new["cluster"]))
    names: dict[str, dict[str, str]] = {}
    for _, old_name, new_name in sorted(pairs, reverse=True):
        names.setdefault(old_name, {})["renamed_to"] = new_name
        names.setdefault(new_name, {})["renamed_from"] = old_name
    return names


def _reading_ages(sample: DataFrame) -> DataFrame:
    """The mean age of readings at their observation, and the interval over which they are averaged."""
    reading = F.element_at("metrics", "arrivals")
    return sample.groupBy("cluster").agg(
        F.avg((F.unix_micros("at") - F.unix_micros(reading["at"])) / 1e6).alias("skew_s"),
        F.max(reading["over"]).alias("over_s"),
    )


# In Python workers


def _profile(
    left: pa.Table, right: pa.Table, notes: Mapping[str, Mapping[str, Any]], options: ProfileOptions
) -> pa.Table:
    """The profile of one cluster as a row; no row if there are only rescales."""
    rows = []
    if left.num_rows:
        order = np.argsort(_numbers(left["minute"]))
        columns = {each: _numbers(left[each])[order] for each in COLUMNS}
        cluster = left["cluster"][0].as_py()
        rescales = [
            Rescaled(**{key: row[key] for key in _RESCALES})
            for row in right.select(list(_RESCALES)).to_pylist()
            if None not in (row["before"], row["after"])
        ]
        known = {key: notes.get(cluster, {}).get(key) for key in _NOTES}
        columns["minute"] = columns["minute"] - round(((known["over_s"] or MEAN_OVER_S) - MEAN_OVER_S) / 120.0)
        rows.append(_row(build_profile(cluster, Minutes(**columns), rescales, options, known)))
    return pa.Table.from_pylist(rows, schema=_ARROW)


def _numbers(column: Any) -> Any:  # noqa: ANN401 - Arrow and numpy without types
    return column.cast(pa.float64()).to_numpy().astype(np.float64, copy=False)


_ARROW = to_arrow_schema(PROFILES, timezone="UTC")


def _row(profile: Profile) -> dict[str, Any]:
    curve, done = profile.capacity, profile.done

    def median(direction: Direction, part: str) -> float | None:
        spread = profile.times.get(direction, {}).get(part)
        return None if spread is None else spread.median

    return {
        **{name: getattr(profile, name) for name in ("cluster", "made_at", "begin", "end", "observations")},
        "rate": None if curve is None else curve.rate,
        "exponent": None if curve is None else curve.exponent,
        "start_up_up_s": median(Direction.UP, "start_up"),
        "stall_up_s": median(Direction.UP, "stall"),
        "stall_down_s": median(Direction.DOWN, "stall"),
        "season_error": None if profile.season is None else profile.errors.get(AHEAD),
        "replica_hours": None if done is None else done.replica_hours,
        "needed_hours": None if done is None else done.needed_hours,
        "violation": None if done is None else done.violation,
        "rescales_per_hour": None if done is None else done.rescales_per_hour,
        "findings": [asdict(finding) for finding in profile.findings],
        "profile": dump(profile),
    }


# Files


@contextmanager
def stored(rows: DataFrame) -> Iterator[DataFrame]:
    """Compute the rows of `profiles` on all cores, and keep them until the end of the block.

    `fetched` runs a job for each partition, one after the other. This function therefore computes all rows first, and
    yields them in few partitions, each small enough for the driver's memory.
    """
    if rows.isLocal():  # there are few rows, and they are computed already
        yield rows
        return
    kept = rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept.coalesce(max(kept.count() // PER_PARTITION, 1))
    finally:
        kept.unpersist()


def fetched(rows: DataFrame) -> Iterator[Any]:
    """Fetch the rows that `stored` has yielded, one partition at a time.

    This does not use `toLocalIterator` of the DataFrame: its jobs start after the end of their query, so Spark 4.3
    keeps their results until the session ends. A few thousand profiles would fill the driver's memory.
    """
    if rows.isLocal():
        yield from rows.collect()
    else:
        yield from rows.toLocalIterator() if is_connect(rows.sparkSession) else rows.rdd.toLocalIterator()


def write(rows: Iterable[Any], directory: Path) -> Iterator[Any]:
    """Write each profile atomically to a file in a directory; yield the written rows."""
    directory.mkdir(parents=True, exist_ok=True)
    for row in rows:
        path = directory / file_name(row.cluster)
        part = path.with_name(f".{path.name}.part")
        with part.open("w", encoding="utf-8") as file:
            file.write(row.profile)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        yield row
