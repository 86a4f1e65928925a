"""Add rows to a dataset: only new rows, atomically, together with the rescales that follow from them.

New dates, and new rows of the newest date, are added as new files, so the cost of a merge depends only on the new rows.
The next merge compacts a date into few files when the date is over, or when it has the files of very many writes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from autoscaler.history import rescales
from autoscaler.history.dataset import local
from autoscaler.history.dataset.files import DatasetError, LocalFiles
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
"""An optional column of new rows: of several rows with one key, the row with the least value is added. Both halves of a
record have the same value, so that the halves that are added belong to one record."""


LOCAL_ROWS = 500_000
"""Days with up to this many rows are rewritten in this process, in about 1 GB of memory."""

MOST_WRITES = 32
"""The newest date is compacted when it has the files of more writes than this."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        added: table -> number of new rows.
        known: table -> number of rows that the table already had, or that were given twice.
        dates: table -> the dates that were written; None: rows without a date.
    """

    added: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, tuple[date | None, ...]] = field(default_factory=dict)

    def __add__(self, other: Merged) -> Merged:
        """The result of this merge and another one."""

        def total(one: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
            return {table: one.get(table, 0) + more.get(table, 0) for table in {**one, **more}}

        dates = {
            table: _in_order({*self.dates.get(table, ()), *other.dates.get(table, ())})
            for table in {**self.dates, **other.dates}
        }
        return Merged(total(self.added, other.added), total(self.known, other.known), dates)


def _in_order(dates: Collection[date | None]) -> tuple[date | None, ...]:
    return tuple(sorted(dates, key=lambda day: (day is not None, day or date.min)))


@dataclass(frozen=True, slots=True)
class _Count:
    """Numbers of rows of a date.

    Attributes:
        brought: all rows to merge.
        fresh: distinct keys that the table does not have yet.
        twice: further rows with these keys.
    """

    brought: int
    fresh: int
    twice: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts and keys of the rows to be added.

    Attributes:
        of: date -> counts.
        fresh: the new keys, possibly with duplicates.
        first, last: the first and last time of the rows.
    """

    of: Mapping[date | None, _Count]
    fresh: DataFrame
    first: datetime | None
    last: datetime | None


def count_keys(keys: DataFrame, table: str, *by: str) -> DataFrame:
    """The numbers of rows and of distinct keys of each date, with their first and last time, as input of `counted`.

    `by`: further columns to group by.
    """
    at = F.col("at") if "at" in KEYS[table] else F.lit(None).cast("timestamp")
    each = keys.groupBy(*by, "date", *KEYS[table]).count().groupBy(*by, "date")
    return each.agg(
        F.sum("count").alias("rows"), F.count("*").alias("keys"), F.min(at).alias("first"), F.max(at).alias("last")
    )


def counted(keys: DataFrame, counts: Sequence[Row]) -> Counted:
    """Combine keys with their counts, as if the table were empty."""
    of = {row.date: _Count(row.rows, row["keys"], row.rows - row["keys"]) for row in counts}
    times = [time.astimezone(UTC) for row in counts for time in (row.first, row.last) if time is not None]
    return Counted(of, keys, min(times, default=None), max(times, default=None))


def _counted(keys: DataFrame, table: str) -> Counted:
    return counted(keys, count_keys(keys, table).collect())


_WRITE_OPTIONS = {
    table: {
        f"parquet.enable.dictionary#{column}": "false"
        for column, kind in local.leaves(columns)
        if local.is_number(kind)
    }
    for table, columns in TABLES.items()
}


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
        keys: Mapping[str, Counted] | None = None,
        partitioned: Collection[str] = (),
    ) -> Merged:
        """Add the rows that the tables do not have yet, and find the rescales of all days of the given rows.

        This includes days without new rows: their rescales may be missing, or may have been found by an earlier
        version.

        A row that the table already has stays unchanged. Of several new rows with the same key, the row with the least
        `order` is added, or the row with the least content if there is no such column. Dates without new rows are not
        rewritten. The merge is atomic: an interrupted merge leaves all changes or none.

        Args:
            spark: a session in UTC.
            rows: table -> rows, evaluated several times; `date` is derived from `at`, missing columns are null.
            keys: table -> the keys of all its rows with their `date`, if these cost less to compute than the rows. Then
                the rows are evaluated once.
            partitioned: the tables whose rows are partitioned like their files: all rows of a cluster and date in one
                partition, about `ROWS_PER_FILE` rows per partition. New dates without duplicates are written directly.

        Raises:
            DatasetError: a file of the dataset is damaged, or cannot be written.
        """
        with read_errors(), write_errors(self.layout.path):
            return self._merge(spark, rows, keys or {}, partitioned)

    def can_merge_local(self) -> bool:
        """Whether present rows can be merged without Spark: the newest days are on this machine, and have few rows.

        `merge_local` checks the same, but this check comes before the new rows are read.
        """
        names = self.layout.current("observations")[0]
        newest = sorted({day for day in map(date_of, names) if day is not None})[-3:]
        count = self.layout.count(of_dates(names, newest), rescales.IN_PROCESS)
        return count is not None and count <= rescales.IN_PROCESS

    def merge_local(self, rows: Mapping[str, pa.Table]) -> Merged | None:
        """Like `merge`, but without Spark, for rows in the memory of this process with unique keys.

        Returns:
            The result; None: nothing was done. Spark is necessary to sort rows that do not fit into memory, to report
            damaged files, and for a dataset that is not on this machine.
        """
        if not isinstance(self.layout.files, LocalFiles):
            return None
        with write_errors(self.layout.path):
            try:
                return self._merge_local(rows)
            except pa.ArrowInvalid:
                return None  # a column of old and new rows has more than 2 GB of text, which Arrow cannot sort

    def _merge_local(self, rows: Mapping[str, pa.Table]) -> Merged | None:
        change, days = Change(), set[date]()
        added, known, dates = {}, {}, {}
        there = [day for day in map(date_of, self.layout.current("observations")[0]) if day is not None]
        for table, given in rows.items():
            brought = local.with_date(given)
            days |= set(brought["date"].unique().to_pylist())
            new = self._new_local(table, brought)
            if new is None:
                return None
            counts = {pair["values"]: pair["counts"] for pair in new["date"].value_counts().to_pylist()}
            added[table], known[table] = len(new), len(brought) - len(new)
            dates[table] = tuple(sorted(counts))
            appended = self._appended(table, {day: _Count(count, count, 0) for day, count in counts.items()})
            rewritten = {*counts, *self._scattered(table, counts)} - appended
            present = of_dates(self.layout.current(table)[0], rewritten)
            if present:
                old = self._read_local(table, present)
                if old is None:
                    return None
                new = pa.concat_tables([new, old])
            change = change.then(self._write_local(new, table), present)
        is_newest = not any(known.values()) and there and min(days) >= max(there)
        since = min(pc.min(given["at"]).as_py() for given in rows.values()) if is_newest else None
        complete = self._with_rescales_local(change, days, since)
        if complete is None:
            return None
        if complete.add or complete.remove:
            self.layout.commit(complete)
        return Merged(added, known, dates)

    def _new_local(self, table: str, brought: pa.Table) -> pa.Table | None:
        """The rows that a table does not have yet; None: a file is damaged, and Spark must report it."""
        first, last = pc.min_max(brought["at"]).values()
        present = of_dates(self.layout.current(table)[0], brought["date"].unique().to_pylist())
        present = self.layout.overlapping(present, first.as_py(), last.as_py())
        if not present:
            return brought
        try:
            return local.without(brought, local.read_keys(self._paths(present), table, first, last), table)
        except (OSError, pa.ArrowException):
            return None

    def _read_local(self, table: str, names: Sequence[str]) -> pa.Table | None:
        """The rows of files; None: there are too many rows for this process, or Spark must report a damaged file."""
        count = self.layout.count(names)
        if count is None or count > LOCAL_ROWS:
            return None
        try:
            return local.read_rows(self._paths(names), table)
        except (OSError, pa.ArrowException):
            return None

    def _write_local(self, rows: pa.Table, table: str) -> dict[str, str]:
        """Stage rows as files of a table, without Spark. Returns staged file -> its place in the table."""
        within = f"{STAGING}/here"
        return {f"{within}/{name}": name for name in local.write(rows, table, Path(self.layout.path, within))}

    def _paths(self, names: Sequence[str]) -> list[Path]:
        return [Path(self.layout.path, name) for name in names]

    def stage(self, rows: DataFrame, name: str) -> DataFrame:
        """Write rows to the staging directory and read them back, if it is costly to evaluate them twice."""
        place = self.layout.files.url(f"{STAGING}/{name}")
        rows.write.mode("overwrite").option("compression", "lz4").parquet(place)
        return rows.sparkSession.read.schema(rows.schema).parquet(escape_glob(place))

    def _merge(
        self,
        spark: SparkSession,
        rows: Mapping[str, DataFrame],
        keys: Mapping[str, Counted],
        partitioned: Collection[str],
    ) -> Merged:
        if spark.conf.get("spark.sql.session.timeZone") != "UTC":
            raise DatasetError("spark.sql.session.timeZone must be UTC: dates are of UTC")
        change, days = Change(), set[date]()
        added, known, dates = {}, {}, {}
        for table, brought in rows.items():
            known_keys = keys.get(table)
            if known_keys is None:
                known_keys = _counted(_with_columns_of(table, brought).select("date", *KEYS[table]), table)
            counts = self._new(table, known_keys)
            added[table] = sum(one.fresh for one in counts.of.values())
            known[table] = sum(one.brought for one in counts.of.values()) - added[table]
            changed = {day: one for day, one in counts.of.items() if one.fresh}
            if table in {"observations", "decisions"}:
                days.update(day for day in counts.of if day is not None)
            dates[table] = _in_order(changed)
            new = _with_columns_of(table, brought)
            appended = self._appended(table, changed) if table in partitioned else set()
            if appended:
                change = change.then(self._write(_on_dates(new, appended), table, "partitioned"), ())
            others = {day: one for day, one in changed.items() if day not in appended}
            if others:
                change = change.then(*self._rewrite(table, _on_dates(new, others), counts, others))
            scattered = self._scattered(table, changed)
            if scattered:
                change = change.then(*self._compact(spark, table, scattered))
        if days and "rescales" not in rows:
            change = self._with_rescales(spark, change, days)
        if change.add or change.remove:
            self.layout.commit(change)
        return Merged(added, known, dates)

    def _new(self, table: str, brought: Counted) -> Counted:
        """The counts and keys of the rows that a table does not have yet."""
        present = of_dates(self.layout.current(table)[0], brought.of)
        if brought.first is not None and brought.last is not None:
            present = self.layout.overlapping(present, brought.first, brought.last)
        if not present:
            return brought
        there = self.layout.rows(brought.fresh.sparkSession, table, present)
        if brought.first is not None:
            # Let Spark skip row groups of other times.
            there = there.where(F.col("at").between(F.lit(brought.first), F.lit(brought.last)))
        fresh = _join(brought.fresh, there, table, "left_anti")
        found = _counted(fresh, table).of
        of = {
            day: replace(found[day], brought=one.brought) if day in found else _Count(one.brought, 0, 0)
            for day, one in brought.of.items()
        }
        return replace(brought, of=of, fresh=fresh)

    def _appended(self, table: str, changed: Mapping[date | None, _Count]) -> set[date | None]:
        """The dates whose new rows are appended as new files: new dates and the newest date, if no row comes twice."""
        present = {date_of(name) for name in self.layout.current(table)[0]}
        newest = max((day for day in present if day is not None), default=date.min)
        return {
            day
            for day, one in changed.items()
            if not one.twice
            and (day not in present or (day is not None and day >= newest and one.fresh == one.brought))
        }

    def _scattered(self, table: str, changed: Collection[date | None]) -> list[date]:
        """The dates to compact: past dates with the files of several writes, and the newest one after many writes."""
        writes: dict[date, set[str]] = {}
        for name in self.layout.current(table)[0]:
            day = date_of(name)
            if day is not None and day not in changed:
                writes.setdefault(day, set()).add(_write_of(name))
        newest = max([*writes, *(day for day in changed if day is not None)], default=date.min)
        return [day for day, of in writes.items() if len(of) > (1 if day < newest else MOST_WRITES)]

    def _rewrite(
        self, table: str, new: DataFrame, counts: Counted, changed: Mapping[date | None, _Count]
    ) -> tuple[dict[str, str], list[str]]:
        """Stage the changed dates of a table. Returns staged file -> its place, and the files to replace."""
        fresh = _on_dates(counts.fresh, changed)
        if any(one.fresh + one.twice < one.brought for one in changed.values()):
            new = _join(new, fresh, table, "left_semi")
        new = _distinct(new, table) if any(one.twice for one in changed.values()) else new.drop(ORDER)
        sizes = _sizes(fresh.distinct(), table)
        present = of_dates(self.layout.current(table)[0], changed)
        if present:
            old = self.layout.rows(new.sparkSession, table, present)
            new, sizes = new.unionByName(old), sizes.unionByName(_sizes(old, table))
        return self._write_files(new, sizes, table), present

    def _compact(self, spark: SparkSession, table: str, days: Collection[date]) -> tuple[dict[str, str], list[str]]:
        """Stage dates of a table as few files. Returns staged file -> its place, and the files to replace."""
        present = of_dates(self.layout.current(table)[0], days)
        rows = self.layout.rows(spark, table, present)
        return self._write_files(rows, _sizes(rows, table), table, "compacted"), present

    def _with_rescales(self, spark: SparkSession, change: Change, days: Collection[date]) -> Change:
        """Add to the change the rescales that follow from it, on dates where they differ from the stored ones."""
        complete = self._with_rescales_local(change, days)
        if complete is not None:
            return complete
        near, observations, decisions, before = self._near(change, days)
        count = self.layout.count(observations)
        rows = self.layout.rows
        tasks = None if count is None else math.ceil(count / ROWS_PER_FILE)
        found = rescales.find(rows(spark, "observations", observations), rows(spark, "decisions", decisions), tasks)
        found = self.stage(_on_dates(_with_columns_of("rescales", found), near), "found")
        changed = _different_dates(found, rows(spark, "rescales", before))
        if not changed:
            return change
        replaced = of_dates(before, changed)
        return change.then(self._write(_on_dates(found.repartition("date"), changed), "rescales", "new"), replaced)

    def _with_rescales_local(
        self, change: Change, days: Collection[date], since: datetime | None = None
    ) -> Change | None:
        """Like `_with_rescales`, but without Spark; None: Spark is necessary.

        Args:
            change: files of other tables to add and to remove.
            days: the days of the given rows.
            since: the time of the first row, if all rows are new and of the newest day. Earlier rescales then stay
                unchanged.
        """
        near, observations, decisions, before = self._near(change, days)
        if not observations:
            return change
        affected = begin = None
        if since is not None:
            affected = since - rescales.AFFECTED
            begin = affected - rescales.LOOKBACK
            observations, decisions = (
                self.layout.overlapping(names, begin, datetime.max.replace(tzinfo=UTC))
                for names in (observations, decisions)
            )
        count = self.layout.count(observations)
        if count is None or count > rescales.IN_PROCESS:
            return None
        paths = self._paths
        try:
            known = rescales.read_local(paths(before))
            new = rescales.find_local(paths(observations), paths(decisions), begin)
        except (OSError, pa.ArrowInvalid):
            return None  # a file is damaged, and Spark must report it
        if affected is not None:
            kept = known.filter(pc.field("at") < affected).select(new.column_names)
            new = pa.concat_tables([kept, new.filter(pc.field("at") >= affected)])
        changed = [day for day in near if _of_date(new, day) != _of_date(known, day)]
        new = new.filter(pc.is_in(new["date"], pa.array(changed, pa.date32())))
        return change.then(self._write_local(new, "rescales"), of_dates(before, changed))

    def _near(self, change: Change, days: Collection[date]) -> tuple[set[date], list[str], list[str], list[str]]:
        """The days whose rescales may change, and the files of observations, decisions and rescales to find them."""
        near = {day + timedelta(days=away) for day in days for away in (-1, 0, 1)}
        read = {day + timedelta(days=away) for day in near for away in (-1, 0, 1)}
        after = self.layout.after
        seen, done = (of_dates(after(change, table), read) for table in ("observations", "decisions"))
        return near, seen, done, of_dates(after(change, "rescales"), near)

    def _write_files(self, rows: DataFrame, sizes: DataFrame, table: str, directory: str = "new") -> dict[str, str]:
        """Stage rows, partitioned into the files of the table. Returns staged file -> its place.

        `sizes` has the number of `rows` of each cluster and date, in one or several parts.
        """
        first = KEYS[table][0]
        # The number of the file of a cluster's day: a file has as many consecutive clusters as fit.
        before = Window.partitionBy("date").orderBy(first).rowsBetween(Window.unboundedPreceding, -1)
        part = F.floor(F.coalesce(F.sum("rows").over(before), F.lit(0)) / ROWS_PER_FILE)
        sizes = sizes.groupBy("date", first).agg(F.sum("rows").alias("rows"))
        parts = sizes.select("date", first, part.alias("part"))
        # This window runs in one task for all clusters and dates, but it has only three columns.
        number = F.dense_rank().over(Window.orderBy("date", "part")) - 1
        parts = parts.select(F.col("date").alias("_date"), F.col(first).alias("_first"), number.alias("_part"))
        parts = parts.persist()
        try:
            last = parts.agg(F.max("_part")).collect()[0][0]
            if last is None:
                return {}
            same = rows["date"].eqNullSafe(parts["_date"]) & (rows[first] == parts["_first"])
            joined = rows.join(F.broadcast(parts), same)
            return self._write(joined.repartitionById(last + 1, F.col("_part").cast("int")), table, directory)
        finally:
            parts.unpersist()

    def _write(self, rows: DataFrame, table: str, directory: str) -> dict[str, str]:
        """Stage partitions of rows as files of a table. Returns staged file -> its place."""
        within = f"{STAGING}/{directory}/"
        # A write replaces only its own dates, so remove the dates that a failed write may have left.
        self.layout.files.remove(f"{within}{table}")
        ordered = rows.sortWithinPartitions("date", *KEYS[table]).select(*TABLES[table].names)
        writer = ordered.write.mode("overwrite").options(**_WRITE_OPTIONS[table])
        writer.partitionBy("date").parquet(self.layout.files.url(f"{within}{table}"))
        return {name: name.removeprefix(within) for name in self.layout.listed(table, within)}


def _of_date(rows: pa.Table, day: date) -> Counter[str]:
    """The rows of a date as text for comparison, in which NaN equals NaN."""
    chosen = rows.filter(pc.equal(rows["date"], pa.scalar(day)))
    return Counter(map(repr, zip(*(column.to_pylist() for column in chosen.columns), strict=True)))


def _different_dates(rows: DataFrame, others: DataFrame) -> list[date]:
    """The dates on which two sets of rows of one table differ."""
    keys = [
        each.select("date", F.xxhash64(*each.columns).alias("key"), F.lit(sign).alias("sign"))
        for each, sign in ((rows, 1), (others.select(*rows.columns), -1))
    ]
    both = keys[0].unionByName(keys[1]).groupBy("date").agg(F.bit_xor("key").alias("key"), F.sum("sign").alias("more"))
    return [row.date for row in both.where("key <> 0 or more <> 0").collect()]


def _write_of(name: str) -> str:
    """Spark's id of the write in a file's name, which all files of one write share."""
    found = re.search(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", name)
    return found[1] if found else name


def _sizes(rows: DataFrame, table: str) -> DataFrame:
    """The number of rows of each date and cluster."""
    return rows.groupBy("date", KEYS[table][0]).agg(F.count("*").alias("rows"))


def _with_columns_of(table: str, rows: DataFrame) -> DataFrame:
    """Give rows the columns and types of the table, with `date` from `at`, and `order` if it exists."""
    if "at" in TABLES[table].names:
        rows = rows.withColumn("date", F.to_date("at"))
    wanted = TABLES[table]
    if ORDER in rows.columns:
        wanted = StructType([*wanted, rows.schema[ORDER]])
    # Avoid `to` if all types match: it rebuilds maps and arrays, which takes as long as writing them.
    types = {each.name: each.dataType.simpleString() for each in rows.schema}
    same = all(types.get(each.name) == each.dataType.simpleString() for each in wanted)
    return rows.select(*wanted.names) if same else rows.to(wanted)


def _join(rows: DataFrame, others: DataFrame, table: str, how: str) -> DataFrame:
    """Join by key and by date, so that Spark can skip dates."""
    match = rows["date"].eqNullSafe(others["date"])
    for key in KEYS[table]:
        match = match & (rows[key] == others[key])
    return rows.join(others, match, how)


def _on_dates(rows: DataFrame, dates: Collection[date | None]) -> DataFrame:
    known = [day for day in dates if day is not None]
    wanted = F.col("date").isin(*known) if known else F.lit(False)
    return rows.where(wanted | F.col("date").isNull() if None in dates else wanted)


def _distinct(rows: DataFrame, table: str) -> DataFrame:
    """One row per key, which does not depend on the order of the rows."""
    least = F.col(ORDER) if ORDER in rows.columns else F.to_json(F.struct(*TABLES[table].names))
    same = Window.partitionBy("date", *KEYS[table])
    numbered = rows.withColumn("_place", F.row_number().over(same.orderBy(least)))
    return numbered.where("_place = 1").select(*TABLES[table].names)
