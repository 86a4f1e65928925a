"""History of a fleet whose true values are known: quick to make, of any size, the same for the same seed.

A cluster has a capacity curve, a weekly load with workdays and weekends, and its own distributions of start-up and
stall times; a simple rule scales it by its load. The observations are like those of the simulator
(`autoscaler.simulation`): means of the last minute, a job that stops for every change, goes back to its last checkpoint
and is slower for half a minute afterwards. All clusters of a part advance together, a tick at a time.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from autoscaler.history.schema import DECISIONS, OBSERVATIONS, RESCALES, TABLES

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MONDAY = date(2026, 1, 5)
DAY = 86400.0
MEAN_OVER = 60.0
MERGE = 10.0
"""Seconds from when the new workers are there until the job is stopped for them."""
CHECKPOINT = 10.0
COLD, COLD_FOR = 0.85, 30.0
IDLE = 0.05
STARTUP_SD, STALL_SD = 0.25, 0.3
PEAK_LEAST, PEAK_MOST = 4.0, 18.0
"""How many workers the usual peak takes."""
LARGEST = 24
LATE = 900.0
"""Fewer workers must have been enough for so long before any goes."""
METRICS = ("arrivals", "throughput", "lag", "utilization", "saturation", "cpu")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and the period of its history.

    Attributes:
        clusters: number of clusters.
        days: number of days, from `begin`.
        interval: seconds from one observation to the next.
        begin: the first day.
        seed: of all random numbers.
        skewed: the first cluster is observed `SKEW` times as often as the others.
        together: clusters that one task makes, and that share a file per day.
    """

    clusters: int = 20
    days: int = 7
    interval: float = 15.0
    begin: date = MONDAY
    seed: int = 1
    skewed: bool = False
    together: int = 50

    @property
    def observations(self) -> int:
        """The number of observations."""
        ticks = round(DAY / self.interval) * self.days
        return ticks * (self.clusters + (SKEW - 1 if self.skewed else 0))

    def parts(self) -> list[Part]:
        """The work of each task; the cluster with the most data first."""
        first = [Part(self, 0, 1, self.interval / SKEW)] if self.skewed else []
        begin = len(first)
        return first + [
            Part(self, at, min(self.together, self.clusters - at), self.interval)
            for at in range(begin, self.clusters, self.together)
        ]

    def truths(self) -> list[Truth]:
        """The true values of each cluster."""
        return [truth(self.seed, number) for number in range(self.clusters)]


SKEW = 100


@dataclass(frozen=True, slots=True)
class Part:
    """Clusters of a fleet that are made together."""

    fleet: Fleet
    first: int
    count: int
    interval: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The values that a profile should find for one cluster. Times are medians in seconds.

    Attributes:
        cluster: its name. rate, exponent: n replicas process rate * n^exponent records/s when saturated.
        sigma: standard deviation of the logarithm of that, a process with a time constant of five minutes.
        startup: from the request until all replicas are ready. stall_up, stall_down: duration of the stall.
        level: maximum of the usual arrivals of the week, records/s.
        rush: the hour of the day of this maximum.
        low: their share at the quietest hour of a workday.
        weekend: share of a workday on a Saturday or Sunday.
        noise: standard deviation of the arrivals around the usual ones, as a share.
        phase: seconds after the full tick at which it is observed.
        target: share of their capacity at which its rule wants replicas to work.
    """

    cluster: str
    rate: float
    exponent: float
    sigma: float
    startup: float
    stall_up: float
    stall_down: float
    level: float
    rush: float
    low: float
    weekend: float
    noise: float
    phase: float
    target: float

    def usual(self, seconds: Numbers) -> Numbers:
        """The usual arrivals, records/s, so many seconds after a Monday, 0:00 UTC."""
        angle = 2 * np.pi * (seconds / 3600.0 - self.rush) / 24.0
        day = self.low + (1.0 - self.low) * (1.0 + np.cos(angle)) / 2
        workday = (seconds // DAY) % 7 < 5
        return np.asarray(self.level * day * np.where(workday, 1.0, self.weekend))


def truth(seed: int, number: int) -> Truth:
    """The true values of the cluster with that number."""
    dice = np.random.default_rng((seed, number))
    rate = float(np.exp(dice.uniform(np.log(50.0), np.log(5000.0))))
    exponent = float(dice.uniform(0.8, 1.0))
    target = float(dice.uniform(0.7, 0.95))
    return Truth(
        cluster=f"job-{number:04d}",
        rate=rate,
        exponent=exponent,
        sigma=0.03,
        startup=float(dice.uniform(20.0, 90.0)),
        stall_up=float(dice.uniform(8.0, 40.0)),
        stall_down=float(dice.uniform(8.0, 40.0)),
        level=float(rate * dice.uniform(PEAK_LEAST, PEAK_MOST) ** exponent * target),
        rush=float(dice.uniform(8.0, 20.0)),
        low=float(dice.uniform(0.15, 0.4)),
        weekend=float(dice.uniform(0.4, 0.9)),
        noise=0.04,
        phase=float(round(dice.uniform(0.0, 0.14), 3)),
        target=target,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One change of size: the cluster (its number in the part), and the time, in seconds from the fleet's begin."""

    number: int
    at: float
    before: int
    after: int
    ready_s: float
    stall_from: float
    stall_s: float


@dataclass(slots=True)
class Day:
    """One day of a part: arrays of (cluster, tick), and the changes that were requested in it.

    `at` is in seconds from the fleet's begin, as are `running_since` (NaN while the job is stopped) and `checkpoint`.
    """

    number: int
    at: Numbers
    values: dict[str, Numbers]
    desired: Numbers
    ready: Numbers
    next: Numbers
    parallelism: Numbers
    running_since: Numbers
    checkpoint: Numbers
    restarts: Numbers
    settling: Flags
    changes: list[Change]


def simulated(part: Part) -> Iterator[Day]:  # noqa: PLR0915 - one loop whose lines depend on their order
    """The days of a part, in their order."""
    fleet, interval = part.fleet, part.interval
    truths = [truth(fleet.seed, part.first + number) for number in range(part.count)]
    dice = np.random.default_rng((fleet.seed, part.first, 7))
    count, ticks = part.count, round(DAY / interval)

    def each(name: str) -> Numbers:
        return np.array([getattr(one, name) for one in truths], dtype=float)

    rate, exponent, target = each("rate"), each("exponent"), each("target")
    sigma, noise, phases = each("sigma"), each("noise"), each("phase")
    keeps = np.array([np.exp(-interval / 60.0), np.exp(-interval / 300.0)])
    stirs = np.sqrt(1.0 - keeps**2)
    width = max(1, round(MEAN_OVER / interval))
    arriving, able_noise = dice.standard_normal(count), dice.standard_normal(count)
    offset = (fleet.begin - MONDAY).days * DAY
    usual = np.array([one.usual(np.array([offset]))[0] for one in truths])
    desired = _needed(usual, rate, exponent, target)
    up = desired.copy()
    worth = old_worth = rate * desired**exponent
    parallelism = desired.copy()
    stall_at, stall_end = np.full(count, -DAY), np.full(count, -DAY)
    ready_at, size_to = np.full(count, np.inf), desired.copy()
    stall_s, below = np.zeros(count), np.full(count, np.nan)
    lag, restarts, since = np.zeros(count), np.zeros(count), np.full(count, -DAY)
    now = -interval
    before: dict[str, Numbers] = {}
    for number in range(fleet.days):
        at = number * DAY + interval * np.arange(ticks, dtype=np.float64)
        drawn = dice.standard_normal((ticks, count, 2))
        expected = np.stack([one.usual(offset + at) for one in truths], axis=1)
        raw = {name: np.empty((ticks, count)) for name in ("arrivals", "throughput", "lag", "utilization")}
        names = ("desired", "ready", "next", "parallelism", "running_since", "checkpoint", "restarts")
        seen = {name: np.empty((ticks, count)) for name in names}
        settling = np.empty((ticks, count), dtype=bool)
        shown = {name: each_tick.T for name, each_tick in seen.items()}
        day = Day(number=number, at=at, values={}, settling=settling.T, changes=[], **shown)
        for tick in range(ticks):
            arriving = keeps[0] * arriving + stirs[0] * drawn[tick, :, 0]
            raw["arrivals"][tick] = expected[tick] * np.maximum(0.0, 1.0 + noise * arriving)
        means = {"arrivals": _means(raw["arrivals"], before.get("arrivals"), width)}
        wanted = _needed(means["arrivals"], rate, exponent, target)
        for tick in range(ticks):
            begin, now = now, float(at[tick])
            able_noise = keeps[1] * able_noise + stirs[1] * drawn[tick, :, 1]
            here = ready_at <= now
            if here.any():
                up = np.where(here, size_to, up)
                stall_at = np.where(here, ready_at + MERGE, stall_at)
                stall_end = np.where(here, stall_at + stall_s, stall_end)
                ready_at = np.where(here, np.inf, ready_at)
                old_worth = np.where(here, worth, old_worth)
                worth = np.where(here, rate * size_to**exponent, worth)
            begins = (begin < stall_at) & (stall_at <= now)
            arrivals = raw["arrivals"][tick]
            old = np.clip(np.minimum(stall_at, now) - begin, 0.0, interval)
            new = np.clip(now - np.maximum(stall_end, begin), 0.0, interval)
            cold = np.clip(np.minimum(now, stall_end + COLD_FOR) - np.maximum(begin, stall_end), 0.0, interval)
            able = np.exp(sigma * able_noise) * (old_worth * old + worth * (new - (1.0 - COLD) * cold))
            lag += arrivals * interval
            if begins.any():
                lag += np.where(begins, arrivals * (stall_at % CHECKPOINT), 0.0)
                restarts += begins
            done = np.minimum(able, lag)
            lag -= done
            runs = (stall_end <= now) | (now < stall_at)
            parallelism = np.where(stall_end <= now, up, parallelism)
            since = np.where(stall_end <= now, stall_end, since)
            raw["throughput"][tick] = done / interval
            raw["lag"][tick] = lag
            busy = np.divide(done, able, out=np.zeros(count), where=able > 0)
            raw["utilization"][tick] = busy * (old + new) / interval
            seen["desired"][tick], seen["ready"][tick], seen["restarts"][tick] = desired, up, restarts
            seen["parallelism"][tick] = np.where(runs, parallelism, 0.0)
            seen["running_since"][tick] = np.where(runs, since, np.nan)
            last = np.where(stall_end <= now, now, np.minimum(stall_at, now))
            seen["checkpoint"][tick] = last - last % CHECKPOINT
            # A decision at the end of the tick shows in the next one.
            free = np.isinf(ready_at) & (stall_end + COLD_FOR <= now)
            settling[tick] = ~free
            want = wanted[tick]
            more = free & (want > desired)
            below = np.where(want < desired, np.where(np.isnan(below), now, below), np.nan)
            fewer = free & (now - below >= LATE)
            change = more | fewer
            if change.any():
                _request(day, truths, dice, now, change, desired, want, ready_at, stall_s)
                size_to = np.where(change, want, size_to)
                desired = np.where(change, want, desired)
                # Removed replicas disappear at once, and the job is stopped at once.
                down = fewer & ~more
                if down.any():
                    up = np.where(down, desired, up)
                    stall_at, stall_end = np.where(down, now, stall_at), np.where(down, now + stall_s, stall_end)
                    old_worth, worth = np.where(down, 0.0, old_worth), np.where(down, rate * desired**exponent, worth)
                    lag += np.where(down, arrivals * (now % CHECKPOINT), 0.0)
                    restarts += down
                below = np.where(change, np.nan, below)
            seen["next"][tick] = desired
        for name in ("throughput", "lag", "utilization"):
            means[name] = _means(raw[name], before.get(name), width)
        before = {name: each_tick[-(width - 1) :] if width > 1 else each_tick[:0] for name, each_tick in raw.items()}
        seen["running_since"] += phases
        seen["checkpoint"] += phases
        day.values = {name: mean.T for name, mean in means.items()}
        yield day


def _needed(arrivals: Numbers, rate: Numbers, exponent: Numbers, target: Numbers) -> Numbers:
    return np.asarray(np.clip(np.ceil((arrivals / (rate * target)) ** (1.0 / exponent)), 1.0, LARGEST))


def _means(values: Numbers, before: Numbers | None, width: int) -> Numbers:
    """The mean of each tick and those before it, `width` of them or as many as available."""
    whole = values if before is None else np.concatenate([before, values])
    sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(whole, axis=0)])
    end = np.arange(len(whole) - len(values), len(whole)) + 1
    begin = np.maximum(0, end - width)
    return np.asarray(np.maximum(0.0, np.round((sums[end] - sums[begin]) / (end - begin)[:, None], 6)))


def _request(
    day: Day,
    truths: Sequence[Truth],
    dice: np.random.Generator,
    now: float,
    change: Flags,
    desired: Numbers,
    want: Numbers,
    ready_at: Numbers,
    stall_s: Numbers,
) -> None:
    """Draw the durations of each requested change, and keep it."""
    for number in np.flatnonzero(change).tolist():
        one = truths[number]
        up = want[number] > desired[number]
        start = one.startup * np.exp(STARTUP_SD * dice.standard_normal()) if up else 0.0
        stall = (one.stall_up if up else one.stall_down) * np.exp(STALL_SD * dice.standard_normal())
        stall_s[number] = stall
        if up:
            ready_at[number] = now + start
        day.changes.append(
            Change(
                int(number),
                now,
                int(desired[number]),
                int(want[number]),
                float(start),
                float(now + start + MERGE if up else now),
                float(stall),
            )
        )


# As tables


def _arrow(table: StructType) -> pa.Schema:
    return to_arrow_schema(table, timezone="UTC")


def _times(seconds: Numbers, fleet: Fleet) -> pa.Array:
    epoch = (fleet.begin - date(1970, 1, 1)).days * DAY
    micros = np.rint((seconds + epoch) * 1e6)
    gone = np.isnan(micros)
    return pa.array(np.where(gone, 0, micros).astype("int64"), mask=gone).cast(pa.timestamp("us", tz="UTC"))


def _nothing(count: int, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(
            pa.array(np.zeros(count + 1, dtype="int32")), pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type)
        ).cast(kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(count + 1, dtype="int32")), pa.nulls(0, kind.value_type)
        ).cast(kind)
    return pa.nulls(count, kind)


def _same(text: Any, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(text, kind), count)


def _whole(values: Numbers) -> pa.Array:
    return pa.array(values.ravel().astype("int32"))


def _struct(kind: pa.DataType, count: int, **known: pa.Array) -> pa.Array:
    """A column of structs with these fields only."""
    columns = [known.get(part.name, _nothing(count, part.type)) for part in kind]
    return pa.StructArray.from_arrays([c.cast(f.type) for c, f in zip(columns, kind, strict=True)], fields=list(kind))


def _times_of(part: Part, day: Day) -> Numbers:
    phases = np.array([truth(part.fleet.seed, part.first + n).phase for n in range(part.count)])
    return np.asarray((day.at[None, :] + phases[:, None]).ravel())


def _names(part: Part, ticks: int) -> pa.Array:
    names = [truth(part.fleet.seed, part.first + n).cluster for n in range(part.count)]
    return pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(part.count, dtype="int32"), ticks)), pa.array(names)
    ).cast(pa.string())


def _date(part: Part, number: int) -> date:
    return part.fleet.begin + timedelta(days=number)


def observations(part: Part, day: Day) -> pa.Table:
    """One day of a part, as the table `observations`, sorted by cluster and time."""
    schema = _arrow(OBSERVATIONS)
    count = day.desired.size
    at = _times(_times_of(part, day), part.fleet)
    values = {name: mean.ravel() for name, mean in day.values.items()}
    values["saturation"] = values["utilization"]
    values["cpu"] = IDLE + (1.0 - IDLE) * values["utilization"]
    many = len(METRICS)
    kind = schema.field("metrics").type
    item = _struct(
        kind.item_type,
        count * many,
        value=pa.array(np.stack([values[name] for name in METRICS], axis=1).ravel()),
        values=pa.nulls(count * many, pa.list_(pa.float64())),
        at=at.take(pa.array(np.repeat(np.arange(count), many))),
        over=_same(MEAN_OVER, count * many, pa.float64()),
    )
    keys = pa.DictionaryArray.from_arrays(
        pa.array(np.tile(np.arange(many, dtype="int32"), count)), pa.array(METRICS)
    ).cast(pa.string())
    metrics = pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype="int32") * many), keys, item).cast(kind)
    runs = day.parallelism.ravel() > 0
    engine = _struct(
        schema.field("engine").type,
        count,
        job=pa.array(np.where(runs, "running", "restarting")),
        slots=_whole(day.ready),
        parallelism=_whole(day.parallelism),
        running_since=_times(np.where(runs, day.running_since.ravel(), np.nan), part.fleet),
        last_checkpoint=_times(day.checkpoint.ravel(), part.fleet),
        restarts=_whole(day.restarts),
    )
    known = {
        "cluster": _names(part, len(day.at)),
        "at": at,
        "desired": _whole(day.desired),
        "ready": _whole(day.ready),
        **{name: pa.array(values[name]) for name in ("lag", "arrivals", "throughput", "utilization")},
        "metrics": metrics,
        "engine": engine,
        "date": _same(_date(part, day.number), count, pa.date32()),
    }
    return pa.Table.from_arrays(
        [known.get(part_.name, _nothing(count, part_.type)).cast(part_.type) for part_ in schema], schema=schema
    )


def decisions(part: Part, day: Day) -> pa.Table:
    """One day of a part, as the table `decisions`: one policy, and the guard that checks changes in flight."""
    schema = _arrow(DECISIONS)
    count = day.desired.size
    current, desired = day.desired.ravel(), day.next.ravel()
    reasons = pa.DictionaryArray.from_arrays(
        pa.array((1 + np.sign(desired - current)).astype("int32")), pa.array(["below", "steady", "above"])
    ).cast(pa.string())
    reason = pc.if_else(pa.array(day.settling.ravel()), "settling", reasons)
    each = pa.array(np.arange(count + 1, dtype="int32"))
    said = schema.field("recommendations").type
    recommendations = _struct(
        said.value_type,
        count,
        policy=_same("follow", count, pa.string()),
        replicas=_whole(desired),
        reason=reasons,
        detail=_same("", count, pa.string()),
    )
    known = {
        "cluster": _names(part, len(day.at)),
        "at": _times(_times_of(part, day), part.fleet),
        "current": _whole(current),
        "proposed": _whole(desired),
        "desired": _whole(desired),
        "reason": reason,
        "recommendations": pa.ListArray.from_arrays(each, recommendations).cast(said),
        "guards": _same("settling", count, pa.string()),
        "combined": _same("", count, pa.string()),
        "dry_run": _same(False, count, pa.bool_()),
        "failed": _same("", count, pa.string()),
        "date": _same(_date(part, day.number), count, pa.date32()),
    }
    return pa.Table.from_arrays(
        [known.get(part_.name, _nothing(count, part_.type)).cast(part_.type) for part_ in schema], schema=schema
    )


def rescales(part: Part, day: Day) -> pa.Table:
    """The changes of one day of a part, as the table `rescales`, with their true times."""
    truths = [truth(part.fleet.seed, part.first + number) for number in range(part.count)]
    begin = datetime(part.fleet.begin.year, part.fleet.begin.month, part.fleet.begin.day, tzinfo=UTC)
    rows = [
        {
            "cluster": truths[change.number].cluster,
            "at": begin + timedelta(seconds=change.at + truths[change.number].phase),
            "before": change.before,
            "after": change.after,
            "direction": "up" if change.after > change.before else "down",
            "cause": "request",
            "reason": "above" if change.after > change.before else "below",
            "detail": "",
            "ready_s": change.ready_s,
            "absorbed_s": change.stall_from + change.stall_s - change.at,
            "stall_s": change.stall_s,
            "caught_up_s": None,
            "lag_peak": None,
            "outcome": "settled",
            "date": _date(part, day.number),
        }
        for change in sorted(day.changes, key=lambda change: (change.number, change.at))
    ]
    return pa.Table.from_pylist(rows, schema=_arrow(RESCALES))


MAKERS = {"observations": observations, "decisions": decisions, "rescales": rescales}


def frame(spark: SparkSession, fleet: Fleet, table: str = "observations") -> DataFrame:
    """A table of a fleet's history, made where it is used; one partition per part."""

    parts = fleet.parts()

    def made(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _each(numbers):
            for day in simulated(parts[number]):
                yield from MAKERS[table](parts[number], day).to_batches(max_chunksize=20_000)

    return _numbers(spark, parts).mapInArrow(made, TABLES[table])


def _numbers(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    # By value: Python workers need not find the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return spark.range(0, len(parts), numPartitions=len(parts))


def _each(numbers: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in numbers:
        yield from batch.column(0).to_pylist()


def write(
    spark: SparkSession,
    fleet: Fleet,
    directory: Path,
    tables: Sequence[str] = ("observations", "decisions", "rescales"),
) -> int:
    """Write a fleet's history as a dataset, new or replacing an old one; returns the number of observations.

    Arrow writes the files in Spark's tasks: through the JVM it takes several times as long.
    """
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    parts = fleet.parts()

    rows = _run(spark, parts, lambda part: _write(part, directory, tables))
    (directory / "autoscaler-history.json").write_text(
        json.dumps({"format": "autoscaler-history", "version": 1}) + "\n", encoding="utf-8"
    )
    return rows


def _run(spark: SparkSession, parts: Sequence[Part], work: Callable[[Part], int]) -> int:
    """Run a function for each part, in Spark's tasks; returns the sum of its results."""

    def made(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _each(numbers):
            yield pa.RecordBatch.from_pydict({"rows": pa.array([work(parts[number])])})

    done = _numbers(spark, parts).mapInArrow(made, StructType([StructField("rows", LongType())]))
    return sum(row.rows for row in done.collect())


def _write(part: Part, directory: Path, tables: Sequence[str]) -> int:
    rows = 0
    for day in simulated(part):
        rows += day.desired.size
        for table in tables:
            folder = directory / table / f"date={_date(part, day.number)}"
            folder.mkdir(parents=True, exist_ok=True)
            columns = MAKERS[table](part, day).drop_columns(["date"])
            pq.write_table(columns, folder / f"part-{part.first:05d}.zstd.parquet", compression="zstd")
    return rows


def write_traces(spark: SparkSession, fleet: Fleet, directory: Path) -> int:
    """Write a fleet's history like daemons: `daemon-00000/2026-01-05T00.jsonl` etc.; returns the number of lines."""
    return _run(spark, fleet.parts(), lambda part: _write_traces(part, directory / f"daemon-{part.first:05d}"))


def _write_traces(part: Part, directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    lines = 0
    for day in simulated(part):
        files: dict[str, list[str]] = {}
        for hour, line in trace(part, day):
            files.setdefault(hour, []).append(line)
        for hour, text in files.items():
            (directory / f"{hour}.jsonl").write_text("".join(text), encoding="utf-8")
            lines += len(text)
    return lines


def trace(part: Part, day: Day) -> Iterator[tuple[str, str]]:
    """One day of a part as (hour, line), in the order in which a daemon writes them."""
    fleet, shape = part.fleet, (part.count, len(day.at))
    epoch = (fleet.begin - date(1970, 1, 1)).days * DAY

    def texts(seconds: Numbers) -> list[str]:
        micros = np.rint((np.nan_to_num(seconds) + epoch) * 1e6).astype("datetime64[us]")
        return [text + "Z" for text in np.datetime_as_string(micros.ravel()).tolist()]

    names = [truth(fleet.seed, part.first + number).cluster for number in range(part.count)]
    at = texts(_times_of(part, day))
    since, checkpoint = texts(day.running_since), texts(day.checkpoint)
    whole = [each.ravel().astype(int).tolist() for each in (day.desired, day.ready, day.next, day.parallelism)]
    desired, ready, after, parallelism = whole
    restarts = day.restarts.ravel().astype(int).tolist()
    settling = day.settling.ravel().tolist()
    arrivals, throughput, lag, busy = [
        day.values[name].ravel().tolist() for name in ("arrivals", "throughput", "lag", "utilization")
    ]
    for row in np.arange(shape[0] * shape[1]).reshape(shape).T.ravel().tolist():
        when, now, then, works = at[row], desired[row], after[row], busy[row]
        runs = parallelism[row] > 0
        said = "above" if then > now else "below" if then < now else "steady"
        why = "settling" if settling[row] else said
        name, have = names[row // shape[1]], ready[row]
        tail = f',"at":"{when}","partitions":null,"parts":{{}},"over":"PT1M"}}'
        running_since = f'"{since[row]}"' if runs else "null"
        line = (
            f'{{"observation":{{"at":"{when}","desired":{now},"ready":{have},"metrics":{{'
            f'"arrivals":{{"value":{arrivals[row]}{tail},"throughput":{{"value":{throughput[row]}{tail},'
            f'"lag":{{"value":{lag[row]}{tail},"utilization":{{"value":{works}{tail},'
            f'"saturation":{{"value":{works}{tail},"cpu":{{"value":{IDLE + (1.0 - IDLE) * works}{tail}}},'
            f'"missing":{{}},"engine":{{"job":"{"running" if runs else "restarting"}","slots":{have},'
            f'"parallelism":{parallelism[row]},"max_parallelism":null,"partitions":null,'
            f'"running_since":{running_since},"last_checkpoint":"{checkpoint[row]}",'
            f'"restarts":{restarts[row]},"deadlines":{{}}}},"floor":null,"ceiling":null,"remarks":[]}},'
            f'"decision":{{"cluster":"{name}","at":"{when}","current":{now},"proposed":{then},'
            f'"desired":{then},"reason":"{why}","recommendations":[{{"replicas":{then},'
            f'"reason":"{said}","inputs":{{}},"detail":"","policy":"follow"}}],"verdicts":[{{"guard":"settling",'
            f'"before":{then},"after":{then},"reason":"settling","detail":""}}],"notes":[],"combined":""}},'
            '"version":1,"dry_run":false,"failed":""}\n'
        )
        yield when[:13], line
