"""Find rescales in observations and decisions: when and why they happened, and how long each phase took.

A change between two observations gets the time in the middle. This is not an estimate of the true time, because
requests are made right after an observation. The earliest and latest possible times are therefore kept for
`core.censored`. If a job reports since when it runs, that time is exact.

Spark reads the few necessary columns for Python workers; a few rows on this machine are read without Spark. NumPy does
the rest within milliseconds. Spark would take seconds to plan and compile an equivalent query.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import dataset, parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema

from autoscaler.core.model import Cause, Direction, JobState, Reason
from autoscaler.history.minutes import Flags, Numbers
from autoscaler.history.schema import RESCALES

FOLLOWED_S = 6 * 3600
"""A rescale is followed for this long. Later changes have other causes, and the limit bounds the data to read to the
next day."""

GAP_S = 3600
"""A change within a longer gap of the observations is not counted: there may have been several changes, at any time."""

AFFECTED = timedelta(seconds=FOLLOWED_S + 2 * GAP_S)
"""A row affects only rescales that began at most this long before the row's time."""

LOOKBACK = timedelta(days=1)
"""How far back to search for the state before a rescale: the slots that the job used, and when it ran. Usually the
previous observation has it, but a job may have had no replicas overnight."""

REQUEST_S = 120
"""A target shows a requested size within this time; a later change was requested by another controller."""

CAUGHT_UP_S = 10.0
"""The job has caught up when the lag is at most what it processes in this many seconds."""


IN_PROCESS = 1_000_000
"""The rescales of up to this many observations are found without Python workers, in about 450 MB of memory."""

Times = NDArray[np.int64]
"""Microseconds since 1970."""
Places = NDArray[np.intp]
"""Indexes of rows; -1: no row."""

_SECOND = 1_000_000
_NEVER = int(np.iinfo(np.int64).max)
_EPOCH = datetime.fromtimestamp(0, UTC)
_ARROW = to_arrow_schema(RESCALES, timezone="UTC")
_TIME = pa.timestamp("us", "UTC")
"""The type of times. Times written by earlier versions (INT96) are read without a time zone, and cast to it."""
_OF_OBSERVATIONS = [
    *(
        "cluster",
        "at",
        "desired",
        "ready",
        "lag",
        "throughput",
        "metrics.key_value.key",
        "metrics.key_value.value.over",
    ),
    *(f"engine.{name}" for name in ("job", "slots", "parallelism", "max_parallelism", "running_since")),
]
_OF_DECISIONS = [
    *("cluster", "at", "current", "proposed", "desired", "reason", "dry_run"),
    *(f"recommendations.list.element.{name}" for name in ("replicas", "detail")),
]


def find(observations: DataFrame, decisions: DataFrame, tasks: int | None = None) -> DataFrame:
    """The rescales of observations and decisions, as rows of the table `rescales`, found in Python workers.

    A rescale begins when the desired size of the target changes, or when replicas are lost. If a decision requested the
    change, its cause is `request`, and it begins with that decision; other changes are `external`. For a `loss`,
    `before` is the number of replicas left. A rescale is followed until the next one begins, for six hours at most.

    The arguments may be parts of a dataset's tables. `tasks` is the number of tasks, each of which holds the data of
    its clusters in memory; None: Spark chooses the number.
    """
    stream = _stream(observations, decisions)
    parts = stream.repartition("cluster") if tasks is None else stream.repartition(tasks, "cluster")
    return parts.mapInArrow(_of_task, RESCALES)


def find_local(observations: Sequence[Path], decisions: Sequence[Path], since: datetime | None = None) -> pa.Table:
    """Like `find`, but reads files of this machine in this process, which takes less time than to plan a Spark job.

    Rows before `since` are ignored.

    Raises:
        OSError, pa.ArrowInvalid: a file cannot be read.
    """
    # There may be no decisions, for example after an import from Prometheus.
    of_requests = pa.schema([("reason", pa.string()), ("detail", pa.string())])
    tables = [_seen(_read(file, _OF_OBSERVATIONS, since)) for file in observations]
    tables += [_asked(_read(file, _OF_DECISIONS, since)) for file in decisions]
    tables.append(of_requests.empty_table())
    return _found(pa.concat_tables(tables, promote_options="default"))


def read_local(files: Sequence[Path]) -> pa.Table:
    """Read files of the table `rescales` on this machine. Raises like `find_local`."""
    by_date = dataset.partitioning(pa.schema([_ARROW.field("date")]), flavor="hive")
    return dataset.dataset([*map(str, files)], _ARROW, "parquet", partitioning=by_date).to_table()


def _read(file: Path, leaves: Sequence[str], since: datetime | None) -> pa.Table:
    """Read some leaf columns of a file, or all columns if it has no rows: PyArrow 18 cannot select columns then."""
    opened = parquet.ParquetFile(file)
    rows = opened.read(leaves) if opened.num_row_groups else opened.schema_arrow.empty_table()
    rows = rows.set_column(rows.schema.get_field_index("at"), "at", rows["at"].cast(_TIME))
    return rows if since is None else rows.filter(pc.field("at") >= since)


def _seen(rows: pa.Table) -> pa.Table:
    """Observations in the format of `_stream`. Reading whole maps and lists would take five times as long."""
    of_lag, engine = pc.map_lookup(rows["metrics"], "lag", "first"), functools.partial(pc.struct_field, rows["engine"])
    return pa.table(
        {
            **{name: rows[name] for name in ("cluster", "at", "ready", "lag", "throughput")},
            "kind": pa.repeat(0, len(rows)),
            "size": rows["desired"],
            "over": pc.coalesce(pc.struct_field(of_lag, "over"), 0.0),
            "job": engine("job"),
            "used": pc.coalesce(engine("parallelism"), engine("slots")),
            "most": engine("max_parallelism"),
            "since": engine("running_since").cast(_TIME),
        }
    )


def _asked(rows: pa.Table) -> pa.Table:
    """The decisions that request a rescale, in the format of `_stream`."""
    rows = rows.filter((pc.field("desired") != pc.field("current")) & ~pc.coalesce(pc.field("dry_run"), False))
    chosen = [
        next((one["detail"] for one in row["recommendations"] if one["replicas"] == row["proposed"]), None)
        for row in rows.select(["recommendations", "proposed"]).to_pylist()
    ]
    return pa.table(
        {
            **{name: rows[name] for name in ("cluster", "at", "reason")},
            "kind": pa.repeat(1, len(rows)),
            "size": rows["desired"],
            "detail": pa.array(chosen, pa.string()),
        }
    )


def _of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = list(batches)
    if rows:
        yield from _found(pa.Table.from_batches(rows)).to_batches()


def _stream(observations: DataFrame, decisions: DataFrame) -> DataFrame:
    """One stream of rows: the observations, and each request after the observation that led to it."""
    engine = F.col("engine")
    seen = observations.select(
        "cluster",
        "at",
        F.lit(0).alias("kind"),
        F.col("desired").alias("size"),
        "ready",
        "lag",
        "throughput",
        F.coalesce(F.col("metrics")["lag"]["over"], F.lit(0.0)).alias("over"),
        engine["job"].alias("job"),
        F.coalesce(engine["parallelism"], engine["slots"]).alias("used"),
        engine["max_parallelism"].alias("most"),
        engine["running_since"].alias("since"),
    )
    asked = decisions.where((F.col("desired") != F.col("current")) & ~F.coalesce("dry_run", F.lit(False))).select(
        "cluster",
        "at",
        F.lit(1).alias("kind"),
        F.col("desired").alias("size"),
        "reason",
        _detail(decisions.sparkSession).alias("detail"),
    )
    return seen.unionByName(asked, allowMissingColumns=True)


@lru_cache(maxsize=1)
def _detail(spark: SparkSession) -> Column:
    """The detail of the recommendation that was followed; created once per session, see `ingest_records._of_line`."""
    del spark
    chosen = F.filter("recommendations", lambda one: one["replicas"] == F.col("proposed"))
    return F.get(chosen, F.lit(0))["detail"]


# With NumPy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The columns of `_stream`, sorted by cluster and time. Whole numbers are stored as floats; NaN means null.

    Attributes:
        start: the index of the first row of the same cluster.
        seen: whether the row is an observation; otherwise it is a request.
        text: the text columns.
    """

    start: Places
    at: Times
    seen: Flags
    size: Numbers
    ready: Numbers
    lag: Numbers
    throughput: Numbers
    has_lag: Flags
    has_throughput: Flags
    over: Numbers
    has_job: Flags
    running: Flags
    idle: Flags
    used: Numbers
    most: Numbers
    since: Times
    has_since: Flags
    text: pa.Table

    def last(self, wanted: Flags) -> Places:
        """For each row, the index of the last wanted row before it of the same cluster."""
        latest = np.maximum.accumulate(np.where(wanted, np.arange(len(wanted)), -1))
        before = np.concatenate([[-1], latest[:-1]])
        return np.where(before >= self.start, before, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """The starts of rescales, in columns.

    Attributes:
        places: the indexes of the observations that show them.
        at: when the rescale began.
        before, after: the sizes; for a loss, `before` is the number of replicas left.
        size: the desired size before.
        used: the slots used before.
        request: the index of the request; -1: there is none.
    """

    places: Places
    at: Times
    before: Numbers
    after: Numbers
    size: Numbers
    used: Numbers
    request: Places
    is_loss: Flags


def _sorted(table: pa.Table) -> _Rows:
    def floats(name: str) -> Numbers:
        return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)

    def times(name: str) -> Times:
        return np.asarray(table[name].cast(pa.int64()).fill_null(0).to_numpy(), np.int64)

    def flags(values: Any) -> Flags:  # noqa: ANN401 - Arrow has no types
        return np.asarray(pc.fill_null(values, False).to_numpy(), np.bool_)

    table = table.combine_chunks()
    codes = table["cluster"].chunk(0).dictionary_encode().indices.to_numpy()
    order = np.lexsort((floats("kind"), times("at"), codes))
    table, codes = table.take(order), codes[order]
    first = np.concatenate([[True], codes[1:] != codes[:-1]])
    return _Rows(
        start=np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0)),
        at=times("at"),
        seen=floats("kind") == 0,
        size=floats("size"),
        ready=floats("ready"),
        lag=floats("lag"),
        throughput=floats("throughput"),
        has_lag=flags(table["lag"].is_valid()),
        has_throughput=flags(table["throughput"].is_valid()),
        over=floats("over"),
        has_job=flags(table["job"].is_valid()),
        running=flags(pc.equal(table["job"], JobState.RUNNING.value)),
        idle=flags(pc.equal(table["job"], JobState.IDLE.value)),
        used=floats("used"),
        most=floats("most"),
        since=times("since"),
        has_since=flags(table["since"].is_valid()),
        text=table.select(["cluster", "reason", "detail"]),
    )


def _middle(one: Times, other: Times) -> Times:
    return (one + other) // 2


def _at_most(some: Numbers, most: Numbers) -> Flags:
    """Whether `some` <= `most`. As in Spark, NaN is greater than any number."""
    return np.isnan(most) | (some <= most)


def _found(table: pa.Table) -> pa.Table:
    """The rescales of all clusters of a table."""
    if not table.num_rows:
        return _ARROW.empty_table()
    rows = _sorted(table)
    events = _events(rows)
    number = np.zeros(len(rows.at), np.intp)
    number[events.places] = 1
    # For each row the number of the last event so far, which may belong to another cluster.
    number = np.cumsum(number) - 1
    known = np.flatnonzero(rows.seen & (number >= 0))
    known = known[events.places[number[known]] >= rows.start[known]]
    known = known[rows.at[known] - events.at[number[known]] <= FOLLOWED_S * _SECOND]
    return pa.Table.from_pylist(_summarized(rows, events, known, number[known]) if len(known) else [], _ARROW)


def _events(rows: _Rows) -> _Events:
    at, size, ready = rows.at, rows.size, rows.ready
    before, request = rows.last(rows.seen & ~np.isnan(size)), rows.last(~rows.seen)
    watched = rows.seen & (before >= 0) & (at - at[before] <= GAP_S * _SECOND)
    changed = watched & (size != size[before]) & ~np.isnan(size)
    lost = watched & (size == size[before]) & (ready < size) & (ready[before] >= size[before])
    asked = changed & (request >= 0) & (size[request] == size) & (at[before] - at[request] <= REQUEST_S * _SECOND)
    used = rows.last(rows.seen & (rows.running | ~rows.has_job) & (rows.used > 0))
    places = np.flatnonzero(changed | lost)
    ours, old = asked[places], before[places]
    return _Events(
        places=places,
        at=np.where(ours, at[request[places]], _middle(at[old], at[places])),
        before=np.where(changed[places], size[old], ready[places]),
        after=size[places],
        size=size[old],
        used=np.where(used[places] >= 0, rows.used[used[places]], np.nan),
        request=np.where(ours, request[places], -1),
        is_loss=~changed[places],
    )


def _next_seen(rows: _Rows) -> Times:
    """When the cluster is observed next. At most one request lies between two observations."""
    found = np.full(len(rows.at), _NEVER)
    for away in (2, 1):
        same = rows.seen[away:] & (rows.start[away:] == rows.start[:-away])
        found[:-away] = np.where(same, rows.at[away:], found[:-away])
    return found


def _summarized(rows: _Rows, events: _Events, places: Places, number: Places) -> list[dict[str, Any]]:
    """The rescales, from the indexes of the observations that follow them, and the number of each one's event."""
    at, used, since, has_since = rows.at[places], rows.used[places], rows.since[places], rows.has_since[places]
    begun, before, after = events.at[number], events.before[number], events.after[number]
    first = np.concatenate([[True], number[1:] != number[:-1]])
    begins = np.flatnonzero(first)
    group = np.cumsum(first) - 1

    def earlier(flags: Flags) -> Flags:
        """Whether an earlier observation of the same rescale has the flag."""
        count: Places = np.cumsum(flags) - flags
        return np.asarray(count > count[begins][group], np.bool_)

    up, previous = after >= before, rows.last(rows.seen)[places]
    middle = _middle(rows.at[previous], at)
    runs = rows.running[places] | rows.idle[places] | ~rows.has_job[places]
    ready = (rows.ready[places] == after) | (up & (rows.ready[places] > after))
    # The slots of one replica, if all slots were used.
    size = events.size[number]
    each = np.divide(events.used[number], size, out=np.full(len(size), np.nan), where=size != 0)
    wanted = np.where((each >= 1) & (each == np.floor(each)), after * each, np.nan)
    wanted = np.where(np.isnan(rows.most[places]), wanted, np.fmin(wanted, rows.most[places]))
    restarted = has_since & (since > begun)
    reached = np.where(up, used >= wanted, used <= wanted)
    # If it is not known how many slots the job should use, its restart shows that it has absorbed the change.
    absorbed = runs & (used > 0) & ready & np.where(np.isnan(wanted), restarted, reached)
    # If it is not known what the job uses, the change counts as absorbed when the replicas are ready.
    taken = np.where(np.isnan(used), ready, absorbed)
    was_taken = earlier(taken)
    ran = rows.last(rows.seen & rows.running & rows.has_since)[places]
    restarted_again = runs & has_since & (ran >= 0) & (since - rows.since[ran] > _SECOND)
    stopped_by = np.minimum(_next_seen(rows)[ran], since)
    # Replicas that are removed on request stop right after the observation. Others stop at any time between two.
    at_once = (events.request[number] >= 0) & ~up & (rows.at[ran] <= begun)
    stall = (since - np.where(at_once, begun, _middle(rows.at[ran], stopped_by))) / 1e6
    stalled = restarted_again & ~was_taken
    even = _at_most(rows.lag[places], CAUGHT_UP_S * rows.throughput[places])
    caught = (was_taken | taken) & even & rows.has_lag[places] & rows.has_throughput[places]
    # A mean over an interval describes the middle of the interval.
    caught_at = np.where(caught, middle - rows.over[places] * 5e5, 0.0).astype(np.int64)
    late = rows.has_lag[places] & ~earlier(caught)

    def least(values: Times, where: Flags) -> list[int | None]:
        found = np.minimum.reduceat(np.where(where, values, _NEVER), begins).tolist()
        return [None if one == _NEVER else one for one in found]

    stood: dict[int, tuple[int, int, int]] = {}
    for place in np.flatnonzero(stalled & ~at_once).tolist():
        one = int(rows.at[ran[place]]), int(since[place]), int(stopped_by[place])
        stood[int(group[place])] = max(one, stood.get(int(group[place]), one))
    starts = rows.start[places[begins]]
    following = np.where(starts[1:] == starts[:-1], events.at[number[begins[1:]]], _NEVER)
    columns = {
        "event": number[begins].tolist(),
        "following": [*following.tolist(), _NEVER],
        "ready_at": least(middle, ready),
        "ready_after": least(rows.at[previous], ready),
        "absorbed_at": least(np.where(restarted, since, middle), absorbed),
        "caught_at": least(caught_at, caught),
        "stalls": np.bincount(group[stalled], minlength=len(begins)).tolist(),
        "stall": np.bincount(group[stalled], stall[stalled], minlength=len(begins)).tolist(),
        "runs": np.logical_or.reduceat(has_since, begins).tolist(),
        "reports_use": np.logical_or.reduceat(~np.isnan(used), begins).tolist(),
        "is_late": np.logical_or.reduceat(late, begins).tolist(),
        "lag_peak": np.maximum.reduceat(np.where(late, rows.lag[places], -np.inf), begins).tolist(),
        "stood": [stood.get(place) for place in range(len(begins))],
    }
    return [_row(rows, events, _Phases(*values)) for values in zip(*columns.values(), strict=True)]


class _Phases(NamedTuple):
    """The phases of a rescale, from the observations that follow its event. Times are microseconds; None: not seen."""

    event: int
    following: int  # the next event
    ready_at: int | None
    ready_after: int | None
    absorbed_at: int | None
    caught_at: int | None
    stalls: int
    stall: float
    runs: bool
    reports_use: bool
    is_late: bool
    lag_peak: float
    stood: tuple[int, int, int] | None  # when the job last ran, since when it runs again, by when it had stopped


def _row(rows: _Rows, events: _Events, seen: _Phases) -> dict[str, Any]:
    event, begun = seen.event, int(events.at[seen.event])

    def after(when: int | None) -> float | None:
        return None if when is None else (when - begun) / 1e6

    before, size, request = int(events.before[event]), int(events.after[event]), int(events.request[event])
    ours = request >= 0
    settled = seen.ready_at is not None and (seen.absorbed_at is not None or not seen.reports_use)
    once = settled and seen.stalls == 1
    done = [when for when in (seen.caught_at, seen.absorbed_at, seen.ready_at) if when is not None]
    stood = seen.stood or (None, None, None)
    superseded = seen.following - begun <= FOLLOWED_S * _SECOND
    at = _EPOCH + timedelta(microseconds=begun)
    return {
        "cluster": rows.text["cluster"][int(events.places[event])].as_py(),
        "at": at,
        "before": before,
        "after": size,
        "direction": (Direction.UP if size >= before else Direction.DOWN).value,
        "cause": (Cause.REQUEST if ours else Cause.LOSS if events.is_loss[event] else Cause.EXTERNAL).value,
        "reason": rows.text["reason"][request].as_py() if ours else None,
        "detail": rows.text["detail"][request].as_py() if ours else None,
        "ready_s": after(seen.ready_at),
        "absorbed_s": after(seen.absorbed_at),
        "stall_s": seen.stall if settled and seen.runs else None,
        "caught_up_s": None if seen.caught_at is None else after(max(done)),
        "lag_peak": seen.lag_peak if seen.is_late else None,
        "outcome": Reason.SETTLED.value if settled else Reason.SUPERSEDED.value if superseded else "unfinished",
        "ready_after_s": max(after(seen.ready_after) or 0.0, 0.0),
        "stopped_after_s": max(after(stood[0]) or 0.0, 0.0) if once else None,
        "stopped_before_s": after(stood[2]) if once else None,
        "date": at.date(),
    }
