"""Import records of daemons into the dataset like `ingest_records`, but in this process, without Spark.

Starting Spark, and planning and compiling its queries, takes longer than reading what daemons write in an hour. This
module therefore reads a file of this machine if every line is as a daemon writes it. It leaves all other files to
Spark: only `ingest_records` can report what is wrong with a line, and choose one of several rows with the same key.
"""

from __future__ import annotations

import functools
import gc
import gzip
import itertools
import math
import operator
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import CoreConfig, CoreSchema, SchemaValidator, core_schema
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StructType,
    TimestampType,
)

from autoscaler.core.model import Reason
from autoscaler.history.dataset import Dataset
from autoscaler.history.dataset.local import are_twins
from autoscaler.history.ingest_records import (
    AHEAD,
    DURATION,
    EARLIEST,
    NEEDED,
    RATIO,
    UNITS,
    Imported,
    packed_sizes,
)
from autoscaler.history.schema import DECISIONS, LINE, METRIC, OBSERVATIONS
from autoscaler.trace.codec import VERSION

MOST_BYTES = 1 << 30
"""Maximum bytes of lines to read here: about 800,000 records in 2 GB of memory, which an import by Spark needs too."""

_GROUP = 1 << 25
"""Bytes of the lines of small files that are read as a group. If a group has an odd file, its halves are read again."""
_LINES = 256
"""Lines that are Python objects at a time: the objects of more lines do not fit into the processor's caches."""
_ROWS = 20_000
"""Lines that are converted to columns at a time."""

_AT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
"""A time as daemons write it. Arrow also parses other formats, which Spark does not."""

_LEFT_TO_SPARK = (ValueError, TypeError, ArithmeticError, OSError, EOFError, zlib.error)
"""The exceptions for a file or a line that is left to Spark; they include the errors of pydantic and Arrow."""


def add_local(
    dataset: Dataset, files: Sequence[str], *, now: datetime, rename: Mapping[str, str] | None = None
) -> tuple[Imported, list[str]]:
    """Add the records of files to a dataset, like `ingest_records.add`.

    Returns:
        The result, and the files that need Spark. Nothing was added of these.

    Raises:
        DatasetError: another process is writing, or a file of the dataset cannot be written.
    """
    nothing = Imported(), list(files)
    if "://" in dataset.path or not files or sum(map(_size, files)) > MOST_BYTES:
        return nothing
    with dataset.writing() as writer:
        if not writer.can_merge_local():
            return nothing
        with _no_collection():
            found = _found(files, rename or {}, now + AHEAD)
        if found is None:
            return nothing
        merged = writer.merge_local({"observations": found.observations, "decisions": found.decisions})
        if merged is None:
            return nothing
        none = {"rejected": 0}
        merged = replace(merged, added={**merged.added, **none}, known={**merged.known, **none})
        return Imported(merged, len(found.decisions)), [file for file in files if file not in found.lines]


def _size(file: str) -> float:
    """The approximate number of bytes of a file's lines; infinity: the file is not on this machine."""
    if "://" in file:
        return math.inf
    try:
        if not file.endswith(".gz"):
            return Path(file).stat().st_size
        size, content = packed_sizes(file)
        return max(size, min(content, size * RATIO))
    except OSError:
        return 0  # reading the file will report the error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection, which takes 1/5 of the time: the objects of lines have no reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Lines


def _validator() -> Callable[[bytes], dict[str, Any]]:
    """A function that parses a line, and raises if a known field does not have its type."""
    finite = core_schema.float_schema(strict=True, allow_inf_nan=False)
    # The numbers that JSON lacks, as daemons write them.
    other = core_schema.literal_schema(["NaN", "Infinity", "-Infinity"])
    number = core_schema.union_schema([finite, core_schema.no_info_after_validator_function(float, other)])
    value = core_schema.union_schema([number, core_schema.list_schema(number, strict=True)])

    def of(kind: DataType, name: str = "") -> CoreSchema:
        match kind:
            case StructType():
                fields = {
                    each.name: core_schema.typed_dict_field(
                        core_schema.nullable_schema(of(each.dataType, each.name)), required=False
                    )
                    for each in kind
                }
                return core_schema.typed_dict_schema(fields, strict=True)
            case MapType():
                return core_schema.dict_schema(of(kind.keyType), of(kind.valueType), strict=True)
            case ArrayType():
                return core_schema.list_schema(of(kind.elementType), strict=True)
            case IntegerType():
                return core_schema.int_schema(strict=True, ge=-(2**31), lt=2**31)
            case BooleanType():
                return core_schema.bool_schema(strict=True)
            case DoubleType():
                return number
            case TimestampType():
                return core_schema.str_schema(strict=True, pattern=_AT)
            case _:
                return value if name == "value" else core_schema.str_schema(strict=True)

    return SchemaValidator(of(LINE), CoreConfig(cache_strings="keys")).validate_json


def _text_types(kind: DataType) -> pa.DataType:
    """The Arrow type of a line with times as text, and with several fields for the numbers of a metric."""
    match kind:
        case StructType():
            fields = {each.name: _text_types(each.dataType) for each in kind}
            if "value" in fields:
                number = pa.float64()
                fields |= {"value": number, "values": pa.list_(number), "sum": number, "most": number}
            return pa.struct(fields)
        case MapType():
            return pa.map_(pa.string(), _text_types(kind.valueType))
        case ArrayType():
            return pa.list_(_text_types(kind.elementType))
        case TimestampType():
            return pa.string()
    return to_arrow_type(kind)


_TEXT = _text_types(LINE)
_TIME = pa.timestamp("us", "UTC")
_REASONS = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of files, in the order of the lines.

    Attributes:
        lines: file -> number of lines.
        size: the total bytes of the lines.
    """

    lines: Mapping[str, int]
    size: int
    observations: pa.Table
    decisions: pa.Table


def _found(files: Sequence[str], rename: Mapping[str, str], until: datetime) -> _Found | None:
    """The rows that can be added without Spark: files in which every line is a record with a unique key."""
    found, left = list[_Found](), MOST_BYTES
    todo = _groups(files)[::-1]
    while todo:
        group = todo.pop()
        try:
            some = _tables(group, rename, until, left)
        except _LEFT_TO_SPARK:
            if len(group) > 1:
                middle = len(group) // 2
                todo += [group[middle:], group[:middle]]
        else:
            found.append(some)
            left -= some.size
    if not found:
        return None
    lines = {file: count for some in found for file, count in some.lines.items()}
    observations = pa.concat_tables(some.observations for some in found)
    decisions = pa.concat_tables(some.decisions for some in found)
    twins = are_twins(decisions, "decisions")
    if twins.any():
        of = np.repeat(np.arange(len(lines)), list(lines.values()))
        alone = ~np.isin(np.arange(len(lines)), of[twins])
        lines = dict(itertools.compress(lines.items(), alone))
        rows = pa.array(alone[of])
        observations, decisions = observations.filter(rows), decisions.filter(rows)
    return _Found(lines, MOST_BYTES - left, observations, decisions) if lines else None


def _groups(files: Sequence[str]) -> list[list[str]]:
    groups, size = list[list[str]](), math.inf
    for file in dict.fromkeys(files):
        if size + (more := _size(file)) > _GROUP:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += more
    return groups


def _tables(files: Sequence[str], rename: Mapping[str, str], until: datetime, most: int) -> _Found:
    """The rows of files. Raises one of `_LEFT_TO_SPARK`, also if they have more than `most` bytes."""
    counts, left, tables = dict[str, int](), most, []

    def read() -> Iterator[bytes]:
        nonlocal left
        for file in files:
            count = 0
            with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as opened:
                # Read line by line: the file may have up to MOST_BYTES.
                while line := opened.readline(left + 1):
                    left -= len(line)
                    if left < 0:
                        raise ValueError("it has more bytes than its size says")
                    if b"\r" in line:
                        raise ValueError("it may have other line endings")
                    count += 1
                    yield line
            if not count:
                raise ValueError("it is empty")
            counts[file] = count

    validate, lines = _validator(), read()
    while batches := list(_batches(validate, itertools.islice(lines, _ROWS))):
        tables.append(_rows(pa.concat_arrays(batches), rename, until))
    observations, decisions = (pa.concat_tables(some) for some in zip(*tables, strict=True))
    return _Found(counts, most - left, observations, decisions)


def _batches(validate: Callable[[bytes], dict[str, Any]], lines: Iterator[bytes]) -> Iterator[pa.StructArray]:
    while some := [validate(line) for line in itertools.islice(lines, _LINES)]:
        for line in some:
            for metric in ((line.get("observation") or {}).get("metrics") or {}).values():
                if isinstance(metric.get("value"), list):
                    metric.update(_of_many(metric["value"], metric.get("mean")))
        yield pa.array(some, _TEXT)


def _of_many(values: list[float], mean: float | None) -> dict[str, Any]:
    """The fields of a metric with one number per replica. As in Spark, NaN is the greatest number."""
    return {
        "value": mean,
        "values": values,
        "sum": functools.reduce(operator.add, values, 0.0),
        "most": max(values, key=lambda number: (math.isnan(number), number), default=None),
    }


# Columns


def _rows(lines: pa.StructArray, rename: Mapping[str, str], until: datetime) -> tuple[pa.Table, pa.Table]:
    """The observations and decisions of lines. Raises ValueError if a line is not a record."""
    seen, done = _field(lines, "observation"), _field(lines, "decision")
    version, cluster, at = _field(lines, "version"), _field(done, "cluster"), _field(done, "at").cast(_TIME)
    whole = all(_field(lines, *name.split(".")).null_count == 0 for name in NEEDED)
    first, last = pc.min_max(at).values()
    if not (
        whole
        and not cluster.null_count
        and pc.all(pc.not_equal(cluster, "")).as_py()
        and pc.all(pc.equal(version.fill_null(VERSION), VERSION)).as_py()
        and at.equals(_field(seen, "at").cast(_TIME))
        and first.as_py() >= EARLIEST
        and last.as_py() <= until
    ):
        raise ValueError("a line is not a record")
    both = {"cluster": _mapped(cluster, lambda name: rename.get(name, name)), "at": at}
    done_columns = _decisions(done) | {
        "dry_run": _field(lines, "dry_run").fill_null(False),
        "failed": _field(lines, "failed").fill_null(""),
    }
    return _table(OBSERVATIONS, both | _observations(seen)), _table(DECISIONS, both | done_columns)


def _table(kind: StructType, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Columns in the order and with the types of a table, without `date`, which follows from `at`."""
    wanted = [name for name in kind.names if name != "date"]
    return pa.table({name: columns[name] for name in wanted}).cast(
        to_arrow_schema(StructType([kind[name] for name in wanted]), timezone="UTC")
    )


def _mapped(texts: pa.Array, of: Callable[[Any], Any]) -> pa.Array:
    """Apply a function to texts, once for each distinct text."""
    encoded = texts.dictionary_encode(null_encoding="encode")
    return pa.array(map(of, encoded.dictionary.to_pylist())).take(encoded.indices)


def _field(of: pa.StructArray, *path: str) -> pa.Array:
    """A field of structs; null for a null struct, unlike `StructArray.field`, which is undefined there."""
    return pc.struct_field(of, list(path))


def _map(of: pa.MapArray, items: pa.Array) -> pa.MapArray:
    """A map with the same keys and other items; empty instead of null."""
    return pa.MapArray.from_arrays(of.offsets, of.keys, items)


def _structs(of: pa.StructArray, **changed: pa.Array) -> pa.StructArray:
    """Structs with some fields replaced."""
    fields = {each.name: _field(of, each.name) for each in of.type} | changed
    return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=of.is_null())


def _observations(seen: pa.StructArray) -> dict[str, pa.Array]:
    metrics = _field(seen, "metrics")
    items = metrics.items
    value, values, parts = _field(items, "value"), _field(items, "values"), _field(items, "parts")
    if _field(items, "at").null_count or pc.any(pc.and_(value.is_null(), values.is_null())).as_py():
        raise ValueError("a metric has no time or no number")
    over = _mapped(_field(items, "over"), lambda span: 0.0 if span is None else _seconds(span))
    sums, most = (_map(metrics, pc.coalesce(_field(items, name), value)) for name in ("sum", "most"))
    engine = _field(seen, "engine")
    deadlines = _field(engine, "deadlines")
    return {
        **{name: _field(seen, name) for name in ("desired", "ready", "floor", "ceiling", "controls")},
        **{name: pc.map_lookup(sums, name, "first") for name in ("lag", "arrivals", "throughput")},
        "utilization": pc.map_lookup(most, "utilization", "first"),
        "metrics": _map(metrics, _metrics(items, over, _map(parts, parts.items))),
        "missing": _map(_field(seen, "missing"), _field(seen, "missing").items),
        "engine": _structs(engine, deadlines=_map(deadlines, _mapped(deadlines.items, _seconds))),
        "remarks": _filled_list(_field(seen, "remarks"), _field(seen, "remarks").values),
    }


def _metrics(items: pa.StructArray, over: pa.Array, parts: pa.Array) -> pa.StructArray:
    fields = {name: _field(items, name) for name in METRIC.names} | {"over": over, "parts": parts}
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _filled_list(of: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Lists of the same lengths with other values; empty instead of null."""
    return pa.ListArray.from_arrays(of.offsets, values)


def _decisions(done: pa.StructArray) -> dict[str, pa.Array]:
    asked, verdicts, notes = (_field(done, name) for name in ("recommendations", "verdicts", "notes"))
    asked_values, inputs, verdict_values = asked.values, _field(asked.values, "inputs"), verdicts.values
    _check_trails(_field(done, "guards"), verdicts)
    return {
        **{name: _field(done, name) for name in ("current", "proposed", "desired", "reason")},
        "recommendations": _filled_list(
            asked,
            _structs(
                asked_values,
                policy=_field(asked_values, "policy").fill_null(""),
                detail=_field(asked_values, "detail").fill_null(""),
                inputs=_map(inputs, inputs.items),
            ),
        ),
        "guards": _mapped(_field(done, "guards"), lambda guards: " ".join(_words(guards))),
        "verdicts": _filled_list(
            verdicts, _structs(verdict_values, detail=_field(verdict_values, "detail").fill_null(""))
        ),
        "notes": _filled_list(
            notes,
            pa.StructArray.from_arrays([_element(notes.values, 0), _element(notes.values, 1)], ["reason", "text"]),
        ),
        "combined": _field(done, "combined").fill_null(""),
    }


def _element(lists: pa.ListArray, place: int) -> pa.Array:
    """The element at `place` of each list; null if the list is shorter."""
    begins, ends = np.asarray(lists.offsets)[:-1], np.asarray(lists.offsets)[1:]
    return lists.values.take(pa.array(begins + place, mask=begins + place >= ends))


def _words(guards: str | None) -> list[str]:
    """The names in a text, split at the characters that are spaces to Spark."""
    return [name for name in re.split(r"\s+", guards or "", flags=re.ASCII) if name]


def _check_trails(guards: pa.Array, verdicts: pa.ListArray) -> None:
    """Raise ValueError if a verdict trail cannot be restored from guard names and some verdicts: see `restored`."""
    for given in guards.unique().to_pylist():
        names = _words(given)
        if len(set(names)) < len(names) or not set(names) <= _REASONS:
            raise ValueError("the names of guards are wrong")
    judged = pc.fill_null(pc.list_value_length(verdicts), 0).to_numpy()
    which = np.flatnonzero(judged > 0)
    of_rows = pa.ListArray.from_arrays(verdicts.offsets, _field(verdicts.values, "guard")).take(which).to_pylist()
    for given, some in set(zip(guards.take(which).to_pylist(), map(tuple, of_rows), strict=True)):
        names = _words(given)
        if names and (len(set(some)) < len(some) or not set(some) <= set(names)):
            raise ValueError("a verdict has no guard, or a guard has several verdicts")


def _seconds(span: str) -> float:
    """Convert an ISO 8601 duration, as pydantic writes it, to seconds. A year has 365 days. Raises ValueError."""
    if not re.fullmatch(DURATION, span):
        raise ValueError(f"{span} is not a duration")
    amounts = re.findall(f"([0-9.]+)([{''.join(UNITS)}])", span)
    if len({unit for _, unit in amounts}) < len(amounts):
        raise ValueError(f"{span} has a unit twice")
    total = functools.reduce(operator.add, (float(amount) * UNITS[unit] for amount, unit in amounts), 0.0)
    exact = float(Decimal(repr(total)).quantize(Decimal("1e-6"), ROUND_HALF_UP))  # pydantic's resolution is 1 µs
    return -exact if span.startswith("-") else exact
