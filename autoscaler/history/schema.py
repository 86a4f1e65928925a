"""The tables of the dataset, version 1. Times are UTC, spans are seconds, rates are records/s, sizes are replicas.

A record of the trace format becomes one row of `observations` and one row of `decisions`, without loss. Cluster and
time identify a row.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VERSION = 1

_text, _whole, _number, _time, _flag = StringType(), IntegerType(), DoubleType(), TimestampType(), BooleanType()


def struct(**columns: DataType) -> StructType:
    """The type of a row with these columns."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


METRIC = struct(
    value=_number,  # if `values` is not null: the mean of the whole job, or null if that is unknown
    values=ArrayType(_number),  # one number per worker; null if the metric has one number
    at=_time,
    partitions=_whole,
    parts=MapType(_text, MapType(_text, _number)),
    over=_number,
)

ENGINE = struct(
    job=_text,
    slots=_whole,
    parallelism=_whole,
    max_parallelism=_whole,
    partitions=_whole,
    running_since=_time,
    last_checkpoint=_time,
    restarts=_whole,
    deadlines=MapType(_text, _number),
)

BOUND = struct(replicas=_whole, reason=_text)

CONTROL = struct(
    kind=_text,
    by=_text,
    at=_time,
    up=_flag,
    down=_flag,
    replicas=_whole,
    minimum=_whole,
    maximum=_whole,
    until=_time,
    reason=_text,
)

OBSERVATIONS = struct(
    cluster=_text,
    at=_time,
    desired=_whole,
    ready=_whole,
    lag=_number,
    arrivals=_number,
    throughput=_number,
    utilization=_number,
    metrics=MapType(_text, METRIC),
    missing=MapType(_text, _text),
    engine=ENGINE,
    floor=BOUND,
    ceiling=BOUND,
    remarks=ArrayType(_text),
    controls=ArrayType(CONTROL),  # null if no control was in force, and in files older than this column
    date=DateType(),
)
"""`lag`, `arrivals`, `throughput` and `utilization` are the metrics of these names, for quick and simple queries. For a
metric with one number per replica they have the sum, `utilization` the maximum. `metrics` has all metrics in full."""

DECISIONS = struct(
    cluster=_text,
    at=_time,
    current=_whole,
    proposed=_whole,
    desired=_whole,
    reason=_text,
    recommendations=ArrayType(
        struct(policy=_text, replicas=_whole, reason=_text, inputs=MapType(_text, _number), detail=_text)
    ),
    guards=_text,  # the names of all guards in order: "freshness cap bounds"; empty or null: `verdicts` has all guards
    verdicts=ArrayType(struct(guard=_text, before=_whole, after=_whole, reason=_text, detail=_text)),
    notes=ArrayType(struct(reason=_text, text=_text)),
    combined=_text,
    dry_run=_flag,
    failed=_text,
    date=DateType(),
)

RESCALES = struct(
    cluster=_text,
    at=_time,  # when the rescale was requested, or first seen
    before=_whole,
    after=_whole,
    direction=_text,  # up, down
    cause=_text,  # request, external, loss
    reason=_text,  # of the decision that requested the rescale; null for other causes
    detail=_text,
    ready_s=_number,  # from `at` until all replicas are ready; null if that was not observed
    absorbed_s=_number,  # from `at` until the job uses the new size
    stall_s=_number,  # how long the job stood still
    caught_up_s=_number,  # from `at` until the backlog is processed
    lag_peak=_number,
    outcome=_text,  # settled, superseded, unfinished
    ready_after_s=_number,  # last time when replicas were seen not ready; `ready_s` is halfway to when they were ready
    stopped_after_s=_number,  # the job stopped after this time; null if that is exact, or if it stopped several times
    stopped_before_s=_number,  # ... and before this time; `stall_s` counts from the middle
    date=DateType(),
)

REJECTED = struct(file=_text, reason=_text, text=_text, date=DateType())
"""Quarantined lines, with file and reason. `text` has at most 1,000 characters of a line; `date` is the date in the
file's name, if there is one."""


def _but(rows: StructType, left_out: Collection[str], **changed: DataType) -> StructType:
    """A row type without some columns, and with other types for some columns."""
    columns = {each.name: each.dataType for each in rows if each.name not in left_out}
    return struct(**columns | changed)


_WRITTEN = struct(
    value=_text,  # a number, a list of numbers, or a number that JSON lacks
    at=_time,
    partitions=_whole,
    parts=METRIC["parts"].dataType,
    over=_text,
    mean=_number,
)
LINE = struct(
    observation=_but(
        OBSERVATIONS,
        ("cluster", "lag", "arrivals", "throughput", "utilization", "date"),
        metrics=MapType(_text, _WRITTEN),
        engine=_but(ENGINE, (), deadlines=MapType(_text, _text)),
    ),
    decision=_but(DECISIONS, ("dry_run", "failed", "date"), notes=ArrayType(ArrayType(_text))),
    version=_whole,
    dry_run=_flag,
    failed=_text,
)
"""A line that a daemon writes. Spans are ISO 8601 durations."""

TABLES = {"observations": OBSERVATIONS, "decisions": DECISIONS, "rescales": RESCALES, "rejected": REJECTED}
