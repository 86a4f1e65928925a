"""A dataset as its users see it: read a table, merge rows, keep notes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from autoscaler.history.dataset.files import DatasetError, Files, LocalFiles
from autoscaler.history.dataset.hadoop_files import HadoopFiles
from autoscaler.history.dataset.layout import STAGING, Layout, date_of, day_of, unreadable
from autoscaler.history.dataset.merge import Merged, Merger, stage
from autoscaler.history.schema import TABLES, VERSION

FORMAT = "autoscaler-history"
MARKER = "autoscaler-history.json"
LOCK = "_lock"


class Write(Protocol):
    """Merges rows into a dataset that is locked for writing."""

    def __call__(
        self,
        spark: SparkSession,
        rows: Mapping[str, DataFrame],
        keys: Mapping[str, DataFrame] | None = None,
        partitioned: Collection[str] = (),
    ) -> Merged:
        """See `Merger.merge`."""


def open_dataset(path: str | os.PathLike[str], *, make: bool = False) -> Dataset:
    """Open a dataset.

    Args:
        path: a directory, or the URL of one in a file system that Spark knows (`hdfs://`, `s3a://`), for which there
            must be a session, and not one of Spark Connect.
        make: create it if there is none; an empty directory becomes one.

    Raises:
        DatasetError: there is no dataset, or it is of a newer version.
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    files: Files = HadoopFiles(text) if "://" in text else LocalFiles(Path(text))
    try:
        return _opened(text, files, make=make)
    except OSError as error:
        raise DatasetError(f"{text}: cannot be used as a dataset: {error.strerror}") from error


def _opened(path: str, files: Files, *, make: bool) -> Dataset:
    marker = files.read(MARKER)
    if marker is None:
        if not make:
            raise DatasetError(f"{path}: is not a dataset (it has no {MARKER}); `autoscaler history import` makes one")
        if any(not name.startswith(".") for name in files.names("")):
            raise DatasetError(f"{path}: contains other files; a dataset is made in a new or an empty directory")
        files.write(MARKER, json.dumps({"format": FORMAT, "version": VERSION}) + "\n")
        return Dataset(path, Layout(path, files))
    try:
        content = json.loads(marker)
        kind, version = content["format"], content["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}/{MARKER}: is damaged, expected a format and a version") from error
    if kind != FORMAT or not isinstance(version, int):
        raise DatasetError(f"{path}/{MARKER}: has format {kind!r}, expected {FORMAT!r} and a version")
    if version > VERSION:
        raise DatasetError(
            f"{path}: was written by a newer autoscaler (version {version}, this one knows {VERSION}); update it"
        )
    return Dataset(path, Layout(path, files))


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset, opened by `open_dataset`.

    Attributes:
        path: where it is.
    """

    path: str
    _layout: Layout

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: date | datetime | None = None,
        until: date | datetime | None = None,
        clusters: Collection[str] | None = None,
    ) -> DataFrame:
        """A table, or a part of it. A merge that was interrupted is seen complete or not at all.

        Args:
            spark: a session in UTC.
            table: one of `schema.TABLES`.
            since: the first date, or time.
            until: the last date (inclusive), or the time before which rows end. Rows without a date are included.
            clusters: only these.

        Raises:
            DatasetError: there is no such table, or a file of it is damaged. `reading` reports damage that Spark finds
                later.
        """
        if table not in TABLES:
            raise DatasetError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        self._layout.check(table, since, until)
        return _select(self._layout.table(spark, table), table, since, until, clusters)

    def files(self, table: str) -> dict[date | None, list[str]]:
        """The files that make up a table, by date, in order; paths within the dataset. None: rows without a date."""
        found: dict[date | None, list[str]] = {}
        for name in self._layout.current(table)[0]:
            found.setdefault(date_of(name), []).append(name)
        return dict(sorted(found.items(), key=lambda item: (item[0] is not None, item[0] or date.min)))

    def dates(self, table: str = "observations") -> tuple[date, ...]:
        """The dates that a table has rows of, in order."""
        return tuple(day for day in self.files(table) if day is not None)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise errors of Spark about a file of this dataset as a DatasetError that names the file."""
        try:
            yield
        except (PySparkException, Py4JError) as error:  # Spark's own exceptions may have no class in PySpark
            problem = _damage(str(error))
            if problem is None:
                raise
            raise DatasetError(problem) from error

    def merge(self, spark: SparkSession, rows: Mapping[str, DataFrame]) -> Merged:
        """Add the rows that are not there yet, and find the rescales of the days that change.

        A row that is there stays as it is. Of several new ones with the same key that with the least `order` is added
        (if they have such a column) or whose content is the least. Dates that get nothing new are not touched, the
        others are rewritten, all of them at once: an interrupted merge leaves all or nothing.

        Args:
            spark: a session in UTC.
            rows: table -> rows; `date` is made from `at`, missing columns are null. They are evaluated several times:
                stage (`stage`) or persist what is costly.

        Raises:
            DatasetError: another process is writing, or a file of the dataset is damaged.
        """
        with self.writing() as write:
            return write(spark, rows)

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Lock the dataset for writing, after completing a commit that was interrupted.

        Yields:
            a function that merges rows, as `merge` does.

        Raises:
            BusyError: another process is writing.
            DatasetError: a file cannot be written.
        """
        files = self._layout.files
        with ExitStack() as held:
            with self._write_errors():
                held.enter_context(files.lock(LOCK))
                self._layout.finish()
                files.remove(STAGING)

            def write(
                spark: SparkSession,
                rows: Mapping[str, DataFrame],
                keys: Mapping[str, DataFrame] | None = None,
                partitioned: Collection[str] = (),
            ) -> Merged:
                with self.reading(), self._write_errors():
                    return Merger(self._layout, spark).merge(rows, keys or {}, partitioned)

            try:
                yield write
            finally:
                files.remove(STAGING)

    def stage(self, rows: DataFrame, name: str) -> DataFrame:
        """Within `writing`: write rows to the staging directory and read them back, to evaluate them only once."""
        return stage(self._layout, rows, name)

    def note(self, name: str) -> str | None:
        """A small file of the dataset, such as the list of imported files; None: there is none."""
        return self._layout.files.read(f"_{name}")

    def keep_note(self, name: str, text: str) -> None:
        """Replace a small file. Raises DatasetError if it cannot be written."""
        with self._write_errors():
            self._layout.files.write(f"_{name}", text)

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Raise an OSError, such as of a full disk, as a DatasetError that names the file where it is known."""
        try:
            yield
        except OSError as error:
            file = error.filename or self.path
            raise DatasetError(f"{file}: cannot be written: {error.strerror or error}") from error


def _select(
    rows: DataFrame,
    table: str,
    since: date | datetime | None,
    until: date | datetime | None,
    clusters: Collection[str] | None,
) -> DataFrame:
    undated = F.col("date").isNull() if table == "rejected" else F.lit(False)
    if since is not None:
        rows = rows.where((F.col("date") >= F.lit(day_of(since))) | undated)
        if isinstance(since, datetime) and "at" in rows.columns:
            rows = rows.where(F.col("at") >= F.lit(since))
    if until is not None:
        rows = rows.where((F.col("date") <= F.lit(day_of(until))) | undated)
        if isinstance(until, datetime) and "at" in rows.columns:
            rows = rows.where(F.col("at") < F.lit(until))
    if clusters is not None and "cluster" in rows.columns:
        rows = rows.where(F.col("cluster").isin(*clusters))
    return rows


def _damage(text: str) -> str | None:
    """The message for an error of Spark about a file that it could not read; None: it is another error."""
    if not any(kind in text for kind in ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file")):
        return None
    found = re.search(r"(?:[a-z0-9]+:/[^\s'\"]*?\.parquet)", text)
    file = found[0] if found else "a Parquet file"
    if "FILE_NOT_EXIST" in text:
        return f"{file}: was replaced by an import while it was read; run this again"
    return unreadable(file, "it is damaged")
