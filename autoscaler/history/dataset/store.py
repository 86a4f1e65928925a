"""The public interface of a dataset: read a table, merge rows, keep notes."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from autoscaler.history.dataset.files import DatasetError, Files, LocalFiles
from autoscaler.history.dataset.hadoop_files import HadoopFiles
from autoscaler.history.dataset.layout import (
    COMMIT,
    STAGING,
    Layout,
    date_of,
    day_of,
    full_disk_errors,
    read_errors,
    write_errors,
)
from autoscaler.history.dataset.merge import Writer
from autoscaler.history.schema import TABLES, VERSION

FORMAT = "autoscaler-history"
MARKER = "autoscaler-history.json"
LOCK = "_lock"

FEW_ROWS = 50_000
"""Up to this many observations are processed with few tasks and without Python workers, whose start takes longer."""


def open_dataset(path: str | os.PathLike[str], *, make: bool = False) -> Dataset:
    """Open a dataset.

    Args:
        path: a local directory, or the URL of a directory in a file system that Spark supports (`hdfs://`, `s3a://`).
            A URL needs a Spark session, and not one of Spark Connect.
        make: create the dataset if there is none, in a new or an empty directory.

    Raises:
        DatasetError: there is no dataset, or it has a newer version.
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
        path: the path or URL of the dataset.
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
        """Read a table, or a part of it. The result has all rows of an interrupted merge, or none.

        Args:
            spark: a session in UTC.
            table: one of `schema.TABLES`.
            since: the first date, or time.
            until: the last date (inclusive), or the time before which rows end. Rows without a date are included.
            clusters: only these clusters.

        Raises:
            DatasetError: there is no such table, or one of its files is evidently not Parquet. Within `reading`, also
                when Spark reads a file with other damage.
        """
        if table not in TABLES:
            raise DatasetError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        self._layout.check(table, day_of(since), day_of(until))
        return _select(self._layout.table(spark, table), table, since, until, clusters)

    def files(self, table: str) -> dict[date | None, list[str]]:
        """The files that make up a table, by date, in order; paths within the dataset. None: rows without a date."""
        found: dict[date | None, list[str]] = {}
        for name in self._layout.current(table)[0]:
            found.setdefault(date_of(name), []).append(name)
        return dict(sorted(found.items(), key=lambda item: (item[0] is not None, item[0] or date.min)))

    def dates(self) -> tuple[date, ...]:
        """The dates that have observations, in order."""
        return tuple(day for day in self.files("observations") if day is not None)

    def has_few_rows(self, table: str, most: int) -> bool:
        """Whether a table on this machine has at most `most` rows, by the metadata of its files."""
        rows = self._layout.count(self._layout.current(table)[0], most)
        return rows is not None and rows <= most

    def reading(self) -> AbstractContextManager[None]:
        """Raise errors of Spark about a file of this dataset as a DatasetError that names the file."""
        return read_errors()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Lock the dataset for writing, after completing a commit that was interrupted.

        Raises:
            BusyError: another process is writing.
            DatasetError: a file cannot be written.
        """
        files = self._layout.files
        with ExitStack() as held:
            with write_errors(self.path):
                held.enter_context(files.lock(LOCK))
                self._layout.finish()
                files.remove(STAGING)
            try:
                with full_disk_errors(self.path):
                    yield Writer(self._layout)
            finally:
                # The next writer needs the staged files to complete an interrupted commit.
                if files.read(COMMIT) is None:
                    files.remove(STAGING)

    def note(self, name: str) -> str | None:
        """A small file of the dataset, such as the list of imported files; None: there is none."""
        return self._layout.files.read(f"_{name}")

    def keep_note(self, name: str, text: str) -> None:
        """Replace a small file. Raises DatasetError if it cannot be written."""
        with write_errors(self.path):
            self._layout.files.write(f"_{name}", text)


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
