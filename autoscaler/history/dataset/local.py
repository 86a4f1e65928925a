"""Rows and files of a dataset in this process, with Arrow: planning a Spark job takes longer than writing a day."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DoubleType, MapType, StructType, TimestampType

from autoscaler.history.dataset.layout import KEYS, ROWS_PER_FILE
from autoscaler.history.schema import TABLES


def leaves(kind: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """The columns of a Parquet file by their Parquet paths, with their types."""
    if isinstance(kind, StructType):
        for each in kind:
            yield from leaves(each.dataType, f"{path}.{each.name}" if path else each.name)
    elif isinstance(kind, ArrayType):
        yield from leaves(kind.elementType, f"{path}.list.element")
    elif isinstance(kind, MapType):
        yield from leaves(kind.keyType, f"{path}.key_value.key")
        yield from leaves(kind.valueType, f"{path}.key_value.value")
    else:
        yield path, kind


def is_number(kind: DataType) -> bool:
    """Whether a column has measured numbers or times.

    Such values seldom repeat, so a dictionary takes time to build and is then discarded.
    """
    return isinstance(kind, DoubleType | TimestampType)


_DICTIONARIES = {
    table: [path for path, kind in leaves(columns) if not is_number(kind)] for table, columns in TABLES.items()
}
_STATISTICS = {
    table: [path for path, kind in leaves(columns) if not isinstance(kind, DoubleType)]
    for table, columns in TABLES.items()
}
"""No statistics for doubles: Arrow ignores NaN there, and Spark, to which NaN is the greatest, would skip such rows."""


def with_date(rows: pa.Table) -> pa.Table:
    """Add the column `date`, which is the date of `at`."""
    return rows.append_column("date", rows["at"].cast(pa.timestamp("us")).cast(pa.date32()))


def read_keys(files: Sequence[Path], table: str, first: pa.Scalar, last: pa.Scalar) -> pa.Table:
    """The keys of rows from `first` to `last`, inclusive. Raises OSError or ArrowInvalid for a damaged file."""
    between = (pc.field("at") >= first) & (pc.field("at") <= last)
    return _dataset(files, table).to_table(list(KEYS[table]), filter=between)


def read_rows(files: Sequence[Path], table: str) -> pa.Table:
    """All rows of files of a table that has the column `at`. Raises OSError or ArrowInvalid for a damaged file."""
    return with_date(_dataset(files, table).to_table())


def _dataset(files: Sequence[Path], table: str) -> dataset.Dataset:
    schema = to_arrow_schema(TABLES[table], timezone="UTC")
    return dataset.dataset([*map(str, files)], schema.remove(schema.get_field_index("date")), "parquet")


def are_twins(rows: pa.Table, table: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row, whether another row has the same key."""
    keys = list(KEYS[table])
    if rows.select(keys).group_by(keys).aggregate([]).num_rows == rows.num_rows:
        return np.zeros(rows.num_rows, bool)
    return np.asarray(rows.select(keys).to_pandas().duplicated(keep=False))


def without(rows: pa.Table, known: pa.Table, table: str) -> pa.Table:
    """The rows whose keys are not in `known`."""
    keys = list(KEYS[table])
    numbered = rows.select(keys).append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(numbered.join(known, keys, join_type="left anti")["place"])


def write(rows: pa.Table, table: str, directory: Path) -> list[str]:
    """Write rows to files like Spark: by date, with as many consecutive clusters per file as fit.

    Returns:
        The paths of the files within the directory.
    """
    if not rows:
        return []
    keys = list(KEYS[table])
    ordered = rows.sort_by([(name, "ascending") for name in ("date", *keys)])
    places = np.arange(len(ordered))
    dates = ordered["date"].cast(pa.int32()).to_numpy()
    clusters = ordered[keys[0]].combine_chunks().dictionary_encode().indices.to_numpy()
    is_day = np.diff(dates, prepend=dates[:1] - 1) != 0
    is_cluster = is_day | (np.diff(clusters, prepend=-1) != 0)
    begin_of_day = np.maximum.accumulate(np.where(is_day, places, 0))
    part = (np.maximum.accumulate(np.where(is_cluster, places, 0)) - begin_of_day) // ROWS_PER_FILE
    begins = np.flatnonzero(is_day | (np.diff(part, prepend=-1) != 0)).tolist()
    write_id, names = uuid.uuid4(), []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(ordered)], strict=True)):
        some = ordered.slice(begin, end - begin)
        name = f"{table}/date={some['date'][0].as_py()}/part-{number:05}-{write_id}.c000.zstd.parquet"
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            some.drop_columns(["date"]),
            place,
            compression="zstd",
            use_dictionary=_DICTIONARIES[table],
            write_statistics=_STATISTICS[table],
            store_schema=False,
        )
        names.append(name)
    return names
