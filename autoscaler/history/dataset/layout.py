"""The files that make up a dataset's tables, and the commit that changes them."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from autoscaler.history.dataset.files import DatasetError, Files, LocalFiles
from autoscaler.history.schema import TABLES

COMMIT = "_commit.json"
STAGING = "_staging"

ROWS_PER_FILE = 100_000
"""Rows of a file: about 20 MB, which a task can sort in memory. A write never splits a cluster's day into two files."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "observations": ("cluster", "at"),
    "decisions": ("cluster", "at"),
    "rescales": ("cluster", "at"),
    "rejected": ("file", "text"),
}
"""The key of each table."""

_ATTEMPTS = 20
_ALWAYS = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """Files to add and to remove, as paths within the dataset. `add` is staged file -> its place in a table."""

    add: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()

    def then(self, add: Mapping[str, str], remove: Collection[str]) -> Change:
        """This change and another one."""
        return Change({**self.add, **add}, (*self.remove, *remove))

    def apply(self, table: str, listed: Collection[str]) -> list[str]:
        """The files of a table after this change, given those in its directory; unmoved files are in staging."""
        moved = set(listed)
        staged = [at for at, place in self.add.items() if place.startswith(f"{table}/") and place not in moved]
        return [*(name for name in listed if name not in self.remove), *staged]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a dataset as files.

    Attributes:
        path: the path or URL of the dataset, for messages.
        files: the dataset's directory.
    """

    path: str
    files: Files

    def listed(self, table: str, within: str = "") -> list[str]:
        """The Parquet files in the directory of a table, or in a staging directory for it."""
        place = f"{within}{table}"
        return [
            f"{place}/{day}/{name}"
            for day in self.files.names(place)
            if day.startswith("date=")
            for name in self.files.names(f"{place}/{day}")
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]

    def current(self, table: str) -> tuple[list[str], bool]:
        """The files that make up a table now, and whether these are exactly the files in its directory."""
        for _ in range(_ATTEMPTS):
            change, listed = self.pending(), self.listed(table)
            if change != self.pending() or listed != self.listed(table):
                continue  # a writer is moving files
            return (listed, True) if change is None else (change.apply(table, listed), False)
        raise self._changing()

    def after(self, change: Change, table: str) -> list[str]:
        """The files that make up a table after a change that is not committed yet."""
        return change.apply(table, self.current(table)[0])

    def pending(self) -> Change | None:
        """The change in the commit file; None: there is no commit file."""
        text = self.files.read(COMMIT)
        if text is None:
            return None
        commit = json.loads(text)
        return Change(commit["come"], tuple(commit["go"]))

    def commit(self, change: Change) -> None:
        """Make a change atomically, even if the process ends at any time."""
        self.files.sync(change.add)
        self.files.write(COMMIT, json.dumps({"come": dict(change.add), "go": list(change.remove)}))
        self.finish()

    def finish(self) -> None:
        """Complete the change in the commit file, if there is one. Steps that are already done are skipped."""
        change = self.pending()
        if change is None:
            return
        for staged, place in change.add.items():
            self.files.move(staged, place)
        self.files.sync(change.add.values())
        for name in change.remove:
            self.files.remove(name)
        self.files.remove(COMMIT)

    def table(self, spark: SparkSession, table: str) -> DataFrame:
        """A whole table."""
        for _ in range(_ATTEMPTS):
            names, is_directory = self.current(table)
            if not names or not is_directory:
                return self.rows(spark, table, names)
            # Spark lists the directories here. The list is valid if the table has not changed in the meantime.
            rows = spark.read.schema(TABLES[table]).parquet(escape_glob(self.files.url(table)))
            if self.current(table) == (names, True):
                return rows
        raise self._changing()

    def rows(self, spark: SparkSession, table: str, names: Sequence[str]) -> DataFrame:
        """The rows of files of a table, including files that are staged for it."""
        if not names:
            return spark.createDataFrame([], TABLES[table])
        bases: dict[str, list[str]] = {}
        for name in names:
            bases.setdefault(name.rsplit("/", 2)[0], []).append(escape_glob(self.files.url(name)))
        frames = [
            spark.read.schema(TABLES[table]).option("basePath", self.files.url(base)).parquet(*urls)
            for base, urls in bases.items()
        ]
        return reduce(DataFrame.unionByName, frames)

    def count(self, names: Collection[str], enough: float = math.inf) -> int | None:
        """The number of rows of files from their metadata, or any number above `enough`; None: only Spark can tell."""
        if not isinstance(self.files, LocalFiles):
            return None
        rows = 0
        for name in names:
            try:
                rows += pq.read_metadata(Path(self.path) / name).num_rows
            except (OSError, pa.ArrowInvalid):
                return None  # Spark reports it
            if rows > enough:
                break
        return rows

    def overlapping(self, names: Sequence[str], first: datetime, last: datetime) -> list[str]:
        """The files that may have rows from `first` to `last`, inclusive, by the statistics of the column `at`."""
        if not isinstance(self.files, LocalFiles):
            return list(names)
        found = []
        for name in names:
            try:
                begin, end = _times(pq.read_metadata(Path(self.path) / name))
            except (OSError, pa.ArrowInvalid):
                begin, end = first, last  # Spark reports it
            if begin <= last and end >= first:
                found.append(name)
        return found

    def check(self, table: str, first: date | None, last: date | None) -> None:
        """Raise DatasetError if a file of these dates is evidently damaged, unless a writer is moving it now."""
        for name in self.current(table)[0]:
            day = date_of(name)
            if day is not None and ((first and day < first) or (last and day > last)):
                continue
            problem = self.files.damage(name)
            if problem is not None and self.files.read(COMMIT) is None and name in self.listed(table):
                raise unreadable(self.files.url(name), problem)

    def _changing(self) -> DatasetError:
        return DatasetError(f"{self.path}: other processes keep changing it; try again when they are done")


def _times(metadata: pq.FileMetaData) -> tuple[datetime, datetime]:
    """The minimum and maximum of `at` in a file by its statistics; without statistics, all times."""
    least, greatest = [], []
    for group in range(metadata.num_row_groups):
        columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
        found = next((column.statistics for column in columns if column.path_in_schema == "at"), None)
        if found is None or not found.has_min_max:
            return _ALWAYS
        least.append(found.min.replace(tzinfo=UTC))
        greatest.append(found.max.replace(tzinfo=UTC))
    return (min(least), max(greatest)) if least else _ALWAYS


def unreadable(file: str, problem: str) -> DatasetError:
    """The error for a file that cannot be read."""
    return DatasetError(
        f"{file}: cannot be read: {problem}; put a good copy of it there, or remove it and import that day again with "
        "--reimport"
    )


@contextmanager
def read_errors() -> Iterator[None]:
    """Raise errors of Spark about a file of a dataset as a DatasetError that names the file."""
    try:
        yield
    except (PySparkException, Py4JError) as error:  # Spark's own exceptions may have no class in PySpark
        text = str(error)
        if not any(kind in text for kind in ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file")):
            raise
        found = re.search(r"(?:[a-z0-9]+:/[^\s'\"]*?\.parquet)", text)
        file = found[0] if found else "a Parquet file"
        if "FILE_NOT_EXIST" in text:
            raise DatasetError(f"{file}: was replaced by an import while it was read; run this again") from error
        raise unreadable(file, "it is damaged") from error


_FULL = re.compile("No space left on device|Disk quota exceeded")


def full_disk(error: BaseException, path: str | None = None) -> str | None:
    """The message for Spark's error of a full disk; None: it is another error."""
    found = _FULL.search(str(error))
    if found is None:
        return None
    temporary = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    where = " or ".join(
        [*([path] if path else []), f"Spark's temporary files ({temporary}; --conf spark.local.dir=DIR)"]
    )
    return f"the disk is full, of {where}: {found[0]}; make room and run this again: no file was imported in part"


@contextmanager
def full_disk_errors(path: str) -> Iterator[None]:
    """Raise Spark's error of a full disk as a DatasetError."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        full = full_disk(error, path)
        if full is None:
            raise
        raise DatasetError(full) from error


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Raise an OSError, such as that of a full disk, as a DatasetError that names the file if it is known."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{error.filename or path}: cannot be written: {error.strerror or error}") from error


def escape_glob(url: str) -> str:
    """Escape the glob characters of a path or URL for Spark."""
    return re.sub(r"([\\{}\[\]*?^])", r"\\\1", url)


def day_of(at: date | datetime | None) -> date | None:
    """The UTC date of a time; a time without a time zone is UTC."""
    if not isinstance(at, datetime):
        return at
    return (at.astimezone(UTC) if at.tzinfo else at).date()


def date_of(name: str) -> date | None:
    """The date of a table's file; None: its rows have no date."""
    try:
        return date.fromisoformat(name.rsplit("/", 2)[1].removeprefix("date="))
    except ValueError:
        return None  # Spark's name of the directory for rows without a date


def of_dates(names: Collection[str], dates: Collection[date | None]) -> list[str]:
    """The files of a table that belong to these dates."""
    return [name for name in names if date_of(name) in dates]
