"""Adding rows to a dataset: only those that are new, all at once, with the rescales that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, DoubleType, MapType, StructType, TimestampType

from autoscaler.history import rescales
from autoscaler.history.dataset.files import DatasetError
from autoscaler.history.dataset.layout import (
    KEYS,
    ROWS_PER_FILE,
    STAGING,
    Change,
    Layout,
    date_of,
    escape_glob,
    of_dates,
    read_errors,
    write_errors,
)
from autoscaler.history.schema import TABLES

ORDER = "order"
"""An optional column of new rows: of several with one key, that with the least value is added. Both halves of a record
have the same value, so that both are of one record."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        added: table -> new rows.
        known: table -> rows that were there already, or were given twice.
        dates: table -> the dates that were written; None: rows without a date.
    """

    added: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, tuple[date | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Count:
    brought: int
    fresh: int  # distinct new keys
    twice: int  # further rows with these keys


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts and keys of the rows to be added.

    Attributes:
        of: date -> counts.
        fresh: the new keys, perhaps more than once.
        sizes: of each cluster and date the number of `fresh` keys, and of further rows with these keys.
        all_new: whether the table has no rows of these dates.
    """

    of: Mapping[date | None, _Count]
    fresh: DataFrame
    sizes: DataFrame
    all_new: bool


def _numbers(kind: DataType, path: str) -> Iterator[str]:
    """The columns of a Parquet file that hold measured numbers or times, by their Parquet paths."""
    if isinstance(kind, StructType):
        for each in kind:
            yield from _numbers(each.dataType, f"{path}.{each.name}" if path else each.name)
    elif isinstance(kind, ArrayType):
        yield from _numbers(kind.elementType, f"{path}.list.element")
    elif isinstance(kind, MapType):
        yield from _numbers(kind.valueType, f"{path}.key_value.value")
    elif isinstance(kind, DoubleType | TimestampType):
        yield path


_WRITE_OPTIONS = {
    table: {f"parquet.enable.dictionary#{column}": "false" for column in _numbers(columns, "")}
    for table, columns in TABLES.items()
}
"""Most numbers and times seldom repeat: a dictionary of them takes time to build, and is then discarded."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Adds rows to a dataset that is locked for writing.

    Attributes:
        layout: the dataset's files.
    """

    layout: Layout

    def merge(
        self,
        spark: SparkSession,
        rows: Mapping[str, DataFrame],
        keys: Mapping[str, DataFrame] | None = None,
        partitioned: Collection[str] = (),
    ) -> Merged:
        """Add the rows that are not there yet, and find the rescales of the days that change.

        A row that is there stays as it is. Of several new ones with the same key that with the least `order` is added
        (if they have such a column) or whose content is the least. Dates that get nothing new are not touched, the
        others are rewritten, all of them at once: an interrupted merge leaves all or nothing.

        Args:
            spark: a session in UTC.
            rows: table -> rows; `date` is made from `at`, missing columns are null. They are evaluated several times.
            keys: table -> the keys of all of them, where these cost less to compute; then rows are evaluated once.
            partitioned: the tables whose rows are partitioned as their files will be: all of a cluster and date in one
                partition, about `ROWS_PER_FILE` rows in each. New dates without duplicates are written directly.

        Raises:
            DatasetError: a file of the dataset is damaged, or cannot be written.
        """
        with read_errors(), write_errors(self.layout.path):
            return self._merge(spark, rows, keys or {}, partitioned)

    def stage(self, rows: DataFrame, name: str) -> DataFrame:
        """Write rows to the staging directory and read them back: for what is costly to evaluate twice."""
        place = self.layout.files.url(f"{STAGING}/{name}")
        rows.write.mode("overwrite").option("compression", "lz4").parquet(place)
        return rows.sparkSession.read.schema(rows.schema).parquet(escape_glob(place))

    def _merge(
        self,
        spark: SparkSession,
        rows: Mapping[str, DataFrame],
        keys: Mapping[str, DataFrame],
        partitioned: Collection[str],
    ) -> Merged:
        if spark.conf.get("spark.sql.session.timeZone") != "UTC":
            raise DatasetError("spark.sql.session.timeZone must be UTC: dates are of UTC")
        change = Change()
        added, known, dates = {}, {}, {}
        counted: dict[int, _Counted] = {}
        for table, brought in rows.items():
            planned = keys.get(table, brought)
            # Tables may have the same keys.
            counts = self._count(table, planned, counted.get(id(planned)))
            counted[id(planned)] = counts
            added[table] = sum(one.fresh for one in counts.of.values())
            known[table] = sum(one.brought for one in counts.of.values()) - added[table]
            changed = {day: one for day, one in counts.of.items() if one.fresh}
            dates[table] = tuple(sorted(changed, key=lambda day: (day is not None, day or date.min)))
            new = _with_columns_of(table, brought)
            whole = self._new_dates(table, changed) if table in partitioned else {}
            if whole:
                change = change.then(self._write(_on_dates(new, whole), table, "partitioned"), ())
            others = {day: one for day, one in changed.items() if day not in whole}
            if others:
                change = change.then(*self._rewrite(table, _on_dates(new, others), counts, others))
        days = {day for table in ("observations", "decisions") for day in dates.get(table, ()) if day is not None}
        if days and "rescales" not in rows:
            change = self._with_rescales(spark, change, days)
        if change.add:
            self.layout.commit(change)
        return Merged(added, known, dates)

    def _count(self, table: str, keys: DataFrame, same_keys: _Counted | None) -> _Counted:
        """Count the new rows; `same_keys` is the result for another table with the same keys."""
        planned = _with_columns_of(table, keys).select("date", *KEYS[table])
        if same_keys:
            brought = {day: one.brought for day, one in same_keys.of.items()}
        else:
            brought = {row.date: row["count"] for row in planned.groupBy("date").count().collect()}
        present = of_dates(self.layout.current(table)[0], brought)
        if same_keys and same_keys.all_new and not present:
            return same_keys
        fresh = planned
        if present:
            fresh = _join(planned, self.layout.rows(keys.sparkSession, table, present), table, "left_anti")
        together = fresh
        if table != "rejected":
            # Nearly all keys are different: a partial count before the shuffle would not shrink them.
            together = fresh.repartition(sum(brought.values()) // ROWS_PER_FILE + 1, "date", KEYS[table][0])
        each = together.groupBy("date", *KEYS[table]).count().groupBy("date", KEYS[table][0])
        sizes = each.agg(F.count("*").alias("fresh"), F.sum(F.col("count") - 1).alias("twice"))
        sizes = self.stage(sizes, f"sizes-{table}")
        found = {
            row.date: (row.fresh, row.twice)
            for row in sizes.groupBy("date").agg(F.sum("fresh").alias("fresh"), F.sum("twice").alias("twice")).collect()
        }
        of = {day: _Count(count, *found.get(day, (0, 0))) for day, count in brought.items()}
        return _Counted(of, fresh, sizes, all_new=not present)

    def _new_dates(self, table: str, changed: Mapping[date | None, _Count]) -> dict[date | None, _Count]:
        """The dates that a table has no rows of yet, and gets no duplicates of."""
        present = {date_of(name) for name in self.layout.current(table)[0]}
        return {day: one for day, one in changed.items() if not one.twice and day not in present}

    def _rewrite(
        self, table: str, new: DataFrame, counts: _Counted, changed: Mapping[date | None, _Count]
    ) -> tuple[dict[str, str], list[str]]:
        """Stage the changed dates of a table: staged file -> its place, and the files that they replace."""
        if any(one.fresh + one.twice < one.brought for one in changed.values()):
            new = _join(new, _on_dates(counts.fresh, changed), table, "left_semi")
        new = _distinct(new, table) if any(one.twice for one in changed.values()) else new.drop(ORDER)
        sizes = _on_dates(counts.sizes, changed).select("date", KEYS[table][0], F.col("fresh").alias("rows"))
        present = of_dates(self.layout.current(table)[0], changed)
        if present:
            old = self.layout.rows(new.sparkSession, table, present)
            new, sizes = new.unionByName(old), sizes.unionByName(_sizes(old, table))
        return self._write_files(new, sizes, table), present

    def _with_rescales(self, spark: SparkSession, change: Change, days: Collection[date]) -> Change:
        """The change, and the rescales that follow from it, where they differ from those already there."""
        near = {day + timedelta(days=away) for day in days for away in (-1, 0, 1)}
        read = {day + timedelta(days=away) for day in near for away in (-1, 0, 1)}
        observations = of_dates(self.layout.after(change, "observations"), read)
        if not observations:
            return change
        decisions = of_dates(self.layout.after(change, "decisions"), read)
        rows = self.layout.rows
        found = rescales.find(
            rows(spark, "observations", observations),
            rows(spark, "decisions", decisions),
            tasks=len(observations),
        )
        found = self.stage(_on_dates(_with_columns_of("rescales", found), near), "found")
        present = rows(spark, "rescales", of_dates(self.layout.after(change, "rescales"), near))
        different = found.exceptAll(present).unionAll(present.exceptAll(found)).select("date").distinct()
        changed = [row.date for row in different.collect()]
        if not changed:
            return change
        replaced = of_dates(self.layout.after(change, "rescales"), changed)
        found = _on_dates(found, changed)
        return change.then(self._write_files(found, _sizes(found, "rescales"), "rescales"), replaced)

    def _write_files(self, rows: DataFrame, sizes: DataFrame, table: str) -> dict[str, str]:
        """Stage rows, partitioned into the files of the table: staged file -> its place.

        `sizes` has the number of `rows` of each cluster and date, in one part or in several.
        """
        first = KEYS[table][0]
        # The file of a cluster's day: as many clusters as fit, in their order.
        before = Window.partitionBy("date").orderBy(first).rowsBetween(Window.unboundedPreceding, -1)
        part = F.floor(F.coalesce(F.sum("rows").over(before), F.lit(0)) / ROWS_PER_FILE)
        sizes = sizes.groupBy("date", first).agg(F.sum("rows").alias("rows"))
        parts = sizes.select("date", first, part.alias("part"))
        # One task for all clusters and dates, but of three columns.
        number = F.dense_rank().over(Window.orderBy("date", "part")) - 1
        parts = parts.select(F.col("date").alias("_date"), F.col(first).alias("_first"), number.alias("_part"))
        parts = parts.persist()
        try:
            last = parts.agg(F.max("_part")).collect()[0][0]
            if last is None:
                return {}
            same = rows["date"].eqNullSafe(parts["_date"]) & (rows[first] == parts["_first"])
            joined = rows.join(F.broadcast(parts), same)
            return self._write(joined.repartitionById(last + 1, F.col("_part").cast("int")), table, "new")
        finally:
            parts.unpersist()

    def _write(self, rows: DataFrame, table: str, directory: str) -> dict[str, str]:
        """Stage partitions of rows as files of a table: staged file -> its place."""
        within = f"{STAGING}/{directory}/"
        # A write replaces only the dates that it has: those of a failed write would stay.
        self.layout.files.remove(f"{within}{table}")
        ordered = rows.sortWithinPartitions("date", *KEYS[table]).select(*TABLES[table].names)
        writer = ordered.write.mode("overwrite").options(**_WRITE_OPTIONS[table])
        writer.partitionBy("date").parquet(self.layout.files.url(f"{within}{table}"))
        return {name: name.removeprefix(within) for name in self.layout.listed(table, within)}


def _sizes(rows: DataFrame, table: str) -> DataFrame:
    """The number of rows of each date and cluster."""
    return rows.groupBy("date", KEYS[table][0]).agg(F.count("*").alias("rows"))


def _with_columns_of(table: str, rows: DataFrame) -> DataFrame:
    """Rows with the columns and types of the table, `date` from `at`, and `order` if there is one."""
    if "at" in TABLES[table].names:
        rows = rows.withColumn("date", F.to_date("at"))
    wanted = TABLES[table]
    if ORDER in rows.columns:
        wanted = StructType([*wanted, rows.schema[ORDER]])
    # `to` rebuilds maps and arrays even if their types match, which takes as long as writing them.
    types = {each.name: each.dataType.simpleString() for each in rows.schema}
    same = all(types.get(each.name) == each.dataType.simpleString() for each in wanted)
    return rows.select(*wanted.names) if same else rows.to(wanted)


def _join(rows: DataFrame, others: DataFrame, table: str, how: str) -> DataFrame:
    """Join by key, and by date too, so that Spark can skip dates."""
    match = rows["date"].eqNullSafe(others["date"])
    for key in KEYS[table]:
        match = match & (rows[key] == others[key])
    return rows.join(others, match, how)


def _on_dates(rows: DataFrame, dates: Collection[date | None]) -> DataFrame:
    known = [day for day in dates if day is not None]
    wanted = F.col("date").isin(*known) if known else F.lit(False)
    return rows.where(wanted | F.col("date").isNull() if None in dates else wanted)


def _distinct(rows: DataFrame, table: str) -> DataFrame:
    """One row of each key, the same one whatever their order."""
    least = F.col(ORDER) if ORDER in rows.columns else F.to_json(F.struct(*TABLES[table].names))
    same = Window.partitionBy("date", *KEYS[table])
    numbered = rows.withColumn("_place", F.row_number().over(same.orderBy(least)))
    return numbered.where("_place = 1").select(*TABLES[table].names)
