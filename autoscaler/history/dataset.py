"""The dataset: tables of Parquet files by date, sorted by cluster and time, to which only what is new is added.

    DATASET/autoscaler-history.json                     format and version
    DATASET/<table>/date=2026-01-31/part-....parquet    see `autoscaler.history.schema`

What is added is written beside the tables first. Then one small file (`COMMIT`) says which files come and which go,
and only then files are moved. Whoever finds that file knows what holds: a reader takes those that come for those that
go, the next writer finishes what a kill has left. Files are moved one by one, so that object stores can do it too.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, DoubleType, MapType, StructType, TimestampType

from autoscaler.history import rescales
from autoscaler.history.schema import TABLES, VERSION
from autoscaler.ports import AutoscalerError

FORMAT = "autoscaler-history"
MARKER = "autoscaler-history.json"
COMMIT = "_commit.json"
LOCK = "_lock"
STAGING = "_staging"

ROWS_PER_FILE = 100_000
"""About 20 MB, and what a task sorts in memory. One cluster's rows of a day are never in two files."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "observations": ("cluster", "at"),
    "decisions": ("cluster", "at"),
    "rescales": ("cluster", "at"),
    "rejected": ("file", "text"),
}
"""What tells the rows of a table apart."""


def _numbers(kind: DataType, path: str) -> Iterator[str]:
    """The columns of a Parquet file that have measured numbers or times, as Parquet calls them."""
    if isinstance(kind, StructType):
        for field in kind:
            yield from _numbers(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from _numbers(kind.elementType, f"{path}.list.element")
    elif isinstance(kind, MapType):
        yield from _numbers(kind.valueType, f"{path}.key_value.value")
    elif isinstance(kind, DoubleType | TimestampType):
        yield path


_PLAIN = {
    table: {f"parquet.enable.dictionary#{column}": "false" for column in _numbers(columns, "")}
    for table, columns in TABLES.items()
}
"""How tables are written: most numbers and times seldom repeat, so that a dictionary takes time and is given up."""

ORDER = "order"
"""A column that rows to be added may have besides: of several with one key, that with the least is taken. The halves of
a record have the same, so that both are of one record."""

_STARTED = secrets.token_hex(4)
"""Tells this process from one before it: in a container that was started again it has the same number and host."""

_MAGIC = b"PAR1"
_TRIES = 20


class DatasetError(AutoscalerError):
    """A dataset cannot be read or written; the message says which file and what to do."""


class BusyError(DatasetError):
    """Somebody else is writing a dataset."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did.

    Attributes:
        added: table -> rows that were not there.
        known: table -> rows that were there already, or came twice.
        dates: table -> the dates that were written; None: rows without a date.
    """

    added: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, tuple[date | None, ...]] = field(default_factory=dict)


class Write(Protocol):
    """What adds rows to a dataset that is held for writing."""

    def __call__(
        self,
        spark: SparkSession,
        rows: Mapping[str, DataFrame],
        keys: Mapping[str, DataFrame] | None = None,
        laid: Collection[str] = (),
    ) -> Merged:
        """Merge, as `Dataset.merge` does.

        Args:
            spark: a session in UTC.
            rows: table -> rows.
            keys: table -> the keys of all of them, where these can be had for less; then rows are evaluated once.
            laid: the tables whose rows come as they are to lie in files: all of a cluster and date in one partition,
                and about as many of a date as `ROWS_PER_FILE` in each. Dates that are new, and have nothing twice, are
                written as they come.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Change:
    """Which files come and which go; paths within the dataset. `come` is where a file is staged -> its place."""

    come: Mapping[str, str] = field(default_factory=dict)
    go: tuple[str, ...] = ()

    def then(self, come: Mapping[str, str], go: Collection[str]) -> _Change:
        """This change and another one."""
        return _Change({**self.come, **come}, (*self.go, *go))

    def after(self, table: str, listed: Collection[str]) -> list[str]:
        """The files of a table when this is done, of those that its directory shows; staged ones where they are."""
        here = set(listed)
        coming = [at for at, place in self.come.items() if place.startswith(f"{table}/") and place not in here]
        return [*(name for name in listed if name not in self.go), *coming]


class _Files(Protocol):
    """A directory in a file system. Names are relative to it, with `/`."""

    def url(self, name: str = "") -> str: ...
    def names(self, directory: str) -> list[str]: ...
    def text(self, name: str) -> str | None: ...
    def put(self, name: str, text: str) -> None: ...
    def move(self, name: str, to: str) -> None: ...
    def keep(self, names: Collection[str]) -> None: ...
    def remove(self, name: str) -> None: ...
    def damage(self, name: str) -> str: ...
    def lock(self, name: str) -> AbstractContextManager[None]: ...


class _Local:
    """A directory of this machine."""

    def __init__(self, path: Path) -> None:
        self._root = path.absolute()

    def url(self, name: str = "") -> str:
        # Not as_uri(): Spark takes %XX for what it says.
        return f"file://{self._root / name}"

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def text(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def put(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        with written.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        _synchronize(path.parent)

    def move(self, name: str, to: str) -> None:
        source, place = self._root / name, self._root / to
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            source.replace(place)

    def keep(self, names: Collection[str]) -> None:
        """Have them on the disk, not only in memory."""
        for path in [self._root / name for name in names]:
            _synchronize(path)
        for directory in {(self._root / name).parent for name in names}:
            _synchronize(directory)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            return
        path.unlink(missing_ok=True)
        # The checksum that Hadoop keeps beside a file.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def damage(self, name: str) -> str:
        """Why a file can be no Parquet file; empty: it may be one."""
        try:
            with (self._root / name).open("rb") as file:
                begin = file.read(len(_MAGIC))
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(_MAGIC)))
                end = file.read()
        except OSError as error:
            return str(error.strerror)
        if begin == end == _MAGIC and size > 2 * len(_MAGIC):
            return ""
        return "it is empty" if size == 0 else "it is cut off" if begin == _MAGIC else "it is no Parquet file"

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock that ends with the process, however that ends."""
        path = self._root / name
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise BusyError(f"{self._root}: is being written by {holder}; wait until it is done") from error
            file.truncate(0)
            file.write(_me())
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


_WHOLE = "fs.capability.outputstream.abortable"
"""What a file system says of itself if a file appears when it is whole, in the place of what was there..."""
_IF_NONE = "fs.option.create.conditional.overwrite"
"""... and if it writes a file only where there is none, in one step, like S3 (If-None-Match)."""
_NO_CLASS = "java.lang.ClassNotFoundException"
_NOT_THERE = "java.io.FileNotFoundException"
_THERE = ("org.apache.hadoop.fs.FileAlreadyExistsException", "org.apache.hadoop.fs.s3a.RemoteFileChangedException")


class _Hadoop:
    """A directory in any file system that Spark can write, through its Java side."""

    def __init__(self, url: str) -> None:
        spark = SparkSession.getActiveSession()
        java = getattr(spark, "_jvm", None)
        if spark is None or java is None:
            raise DatasetError(
                f"{url}: only a local path can be used through Spark Connect; run it with --master or spark-submit"
            )
        self._java = java
        self._root = url.rstrip("/")
        self._settings = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - the only way to it
        try:
            self._system = self._path("").getFileSystem(self._settings)
        except Py4JJavaError as error:
            why = str(error.java_exception.getMessage()).removeprefix(f"{_NO_CLASS}: ")
            raise DatasetError(
                f"{url}: its file system cannot be used: {why}; Spark needs its package, and to know how to log in: "
                "--conf spark.jars.packages=..., --conf spark.hadoop.fs...."
            ) from error

    def _path(self, name: str) -> Any:  # noqa: ANN401 - a Java object
        return self._java.org.apache.hadoop.fs.Path(self.url(name))

    def url(self, name: str = "") -> str:
        return f"{self._root}/{name}" if name else self._root

    def names(self, directory: str) -> list[str]:
        try:
            found = self._system.listStatus(self._path(directory))
        except Py4JJavaError as error:
            if _is(error, _NOT_THERE):
                return []
            raise
        return sorted(status.getPath().getName() for status in found)

    def text(self, name: str) -> str | None:
        try:
            stream = self._system.open(self._path(name))
            try:
                return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is(error, _NOT_THERE):
                return None
            raise

    def put(self, name: str, text: str) -> None:
        path = self._path(name)
        if self._system.hasPathCapability(path, _WHOLE):
            _write(self._system.create(path, True), text)
            return
        written = self._path(f".{name}.{secrets.token_hex(4)}")
        _write(self._system.create(written, False), text)
        hadoop = self._java.org.apache.hadoop.fs
        options = getattr(hadoop, "Options$Rename")
        how = SparkContext._gateway.new_array(options, 1)  # noqa: SLF001 - what has several arguments takes an array
        how[0] = options.OVERWRITE
        # Of a plain rename nothing may be there; this one takes its place at once.
        hadoop.FileContext.getFileContext(path.toUri(), self._settings).rename(written, path, how)

    def move(self, name: str, to: str) -> None:
        source, place = self._path(name), self._path(to)
        if not self._system.exists(source):
            return
        if self._system.exists(place):
            # An object store copies, and was stopped before it removed what it had copied. The name tells that it is
            # the same: readers may be at it.
            self._system.delete(source, False)
            return
        self._system.mkdirs(place.getParent())
        if not self._system.rename(source, place):
            raise DatasetError(f"{self.url(name)}: could not be moved to {self.url(to)}")

    def keep(self, names: Collection[str]) -> None:
        del names  # such a file system has kept what it was given

    def remove(self, name: str) -> None:
        self._system.delete(self._path(name), True)

    def _busy(self, name: str, holder: str) -> BusyError:
        return BusyError(
            f"{self.url()}: is being written by {holder.strip()}; wait until it is done, and if that process is gone, "
            f"remove {self.url(name)}"
        )

    def damage(self, name: str) -> str:
        del name  # to look at each costs a request
        return ""

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        path = self._path(name)
        holder = self.text(name)
        if holder is not None and _dead(holder):
            self.remove(name)
            holder = None
        if holder is not None:
            # Said here as well for a store that knows no condition.
            raise self._busy(name, holder)
        try:
            if self._system.hasPathCapability(path, _IF_NONE):
                # Else an object store looks before it writes, and two may have looked at the same time.
                _write(self._system.createFile(path).overwrite(True).must(_IF_NONE, True).build(), _me())
            else:
                _write(self._system.create(path, False), _me())
        except Py4JJavaError as error:
            holder = self.text(name)
            if holder is None and not _is(error, *_THERE):
                raise
            raise self._busy(name, holder or "another process") from error
        try:
            yield
        finally:
            self.remove(name)


def _write(stream: Any, text: str) -> None:  # noqa: ANN401 - a Java object
    stream.write(bytearray(text.encode()))
    stream.close()


def _is(error: Py4JJavaError, *names: str) -> bool:
    return error.java_exception.getClass().getName() in names


def _synchronize(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, {_STARTED}\n"


def _dead(holder: str) -> bool:
    """Whether a process of this machine is gone."""
    known = re.fullmatch(r"process (\d+) on ([^\s,]+)(?:, (\w+))?\s*", holder)
    if known is None or known[2] != socket.gethostname():
        return False
    if int(known[1]) == os.getpid():
        return known[3] != _STARTED
    try:
        os.kill(int(known[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _is_local(path: str) -> bool:
    return "://" not in path and not path.startswith("file:")


def open_dataset(path: str | os.PathLike[str], *, make: bool = False) -> Dataset:
    """Open a dataset.

    Args:
        path: a directory, or the URL of one in a file system that Spark knows (`hdfs://`, `s3a://`), for which there
            must be a session that is no Spark Connect one.
        make: make it if there is none; an empty directory becomes one.

    Raises:
        DatasetError: there is none, it is something else, or of a newer version.
    """
    text = os.fspath(path)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    files: _Files = _Local(Path(text)) if _is_local(text) else _Hadoop(text)
    try:
        return _opened(text, files, make=make)
    except OSError as error:
        raise DatasetError(f"{text}: cannot be used as a dataset: {error.strerror}") from error


def _opened(path: str, files: _Files, *, make: bool) -> Dataset:
    marker = files.text(MARKER)
    if marker is None:
        if not make:
            raise DatasetError(f"{path}: is no dataset (it has no {MARKER}); `autoscaler history import` makes one")
        if any(not name.startswith(".") for name in files.names("")):
            raise DatasetError(f"{path}: has something else in it; a dataset is made in a new or an empty directory")
        files.put(MARKER, json.dumps({"format": FORMAT, "version": VERSION}) + "\n")
        return Dataset(path, files)
    try:
        told = json.loads(marker)
        kind, version = told["format"], told["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}/{MARKER}: is damaged, expected a format and a version") from error
    if kind != FORMAT or not isinstance(version, int):
        raise DatasetError(f"{path}/{MARKER}: tells of {kind!r}, expected {FORMAT!r} and a version")
    if version > VERSION:
        raise DatasetError(
            f"{path}: was written by a newer autoscaler (version {version}, this one knows {VERSION}); update it"
        )
    return Dataset(path, files)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset, opened by `open_dataset`.

    Attributes:
        path: where it is.
    """

    path: str
    _files: _Files

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: date | datetime | None = None,
        until: date | datetime | None = None,
        clusters: Collection[str] | None = None,
    ) -> DataFrame:
        """A table, or a part of it; what a merge has half done is seen whole.

        Args:
            spark: a session in UTC.
            table: one of `schema.TABLES`.
            since: the first date, or time.
            until: the last date (inclusive), or the time before which rows end. Rows without a date are not left out.
            clusters: of these only.

        Raises:
            DatasetError: there is no such table, or a file of it is damaged. What is found out later, when Spark reads,
                `reading` tells.
        """
        if table not in TABLES:
            raise DatasetError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        self._look(table, since, until)
        return _part(self._table(spark, table), table, since, until, clusters)

    def dates(self, table: str = "observations") -> tuple[date, ...]:
        """The dates that a table has rows of, in order."""
        found = {_date(name.rsplit("/", 2)[1]) for name in self._current(table)[0]}
        return tuple(sorted(day for day in found if day is not None))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tell what goes wrong while Spark reads files of this dataset as a DatasetError that names the file."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            # The plain exception of Spark's own side has none of PySpark.
            problem = _damage(str(error))
            if problem is None:
                raise
            raise DatasetError(problem) from error

    def merge(self, spark: SparkSession, rows: Mapping[str, DataFrame]) -> Merged:
        """Add the rows that are not there yet, and find the rescales of the days that change.

        A row that is there stays as it is. Of several new ones with the same key that with the least `order` is taken
        (if they have such a column) or whose content is the least. Dates that get nothing new are not touched, the
        others are written anew, all of them at once: a kill leaves all or nothing.

        Args:
            spark: a session in UTC.
            rows: table -> rows; `date` is made from `at`, missing columns are null. They are evaluated several times:
                what is costly is to be staged (`stage`) or persisted before.

        Raises:
            DatasetError: somebody else is writing, or a file of the dataset is damaged.
        """
        with self.writing() as write:
            return write(spark, rows)

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Hold the dataset for writing, after what a kill may have left was finished.

        Yields:
            what merges, as `merge` does.

        Raises:
            BusyError: somebody else is writing.
            DatasetError: a file cannot be written.
        """
        with ExitStack() as held:
            with self._telling():
                held.enter_context(self._files.lock(LOCK))
                self._finish()
                self._files.remove(STAGING)

            def write(
                spark: SparkSession,
                rows: Mapping[str, DataFrame],
                keys: Mapping[str, DataFrame] | None = None,
                laid: Collection[str] = (),
            ) -> Merged:
                with self.reading(), self._telling():
                    return self._merge(spark, rows, keys or {}, laid)

            try:
                yield write
            finally:
                self._files.remove(STAGING)

    def stage(self, spark: SparkSession, rows: DataFrame, name: str) -> DataFrame:
        """Write rows aside, within `writing`, and read them back: for what would be costly to evaluate twice."""
        place = self._files.url(f"{STAGING}/{name}")
        rows.write.mode("overwrite").option("compression", "lz4").parquet(place)
        return spark.read.schema(rows.schema).parquet(literal(place))

    def note(self, name: str) -> str | None:
        """A small file of the dataset, such as the list of what was imported; None: there is none."""
        return self._files.text(f"_{name}")

    def keep_note(self, name: str, text: str) -> None:
        """Replace a small file. Raises DatasetError if it cannot be written."""
        with self._telling():
            self._files.put(f"_{name}", text)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell of a full disk, or of what is not allowed, as a DatasetError that names the file where it is known."""
        try:
            yield
        except OSError as error:
            file = error.filename or self.path
            raise DatasetError(f"{file}: cannot be written: {error.strerror or error}") from error

    def _merge(
        self, spark: SparkSession, rows: Mapping[str, DataFrame], keys: Mapping[str, DataFrame], laid: Collection[str]
    ) -> Merged:
        if spark.conf.get("spark.sql.session.timeZone") != "UTC":
            raise DatasetError("spark.sql.session.timeZone must be UTC: dates are of UTC")
        change = _Change()
        added, known, dates = {}, {}, {}
        counted: dict[int, _Counted] = {}
        for table, brought in rows.items():
            planned = keys.get(table, brought)
            # Tables may have the same keys.
            counts = self._counted(spark, table, planned, counted.get(id(planned)))
            counted[id(planned)] = counts
            added[table] = sum(one.fresh for one in counts.of.values())
            known[table] = sum(one.brought for one in counts.of.values()) - added[table]
            changed = {day: one for day, one in counts.of.items() if one.fresh}
            dates[table] = tuple(sorted(changed, key=lambda day: (day is not None, day or date.min)))
            new = _dated(table, brought)
            whole = self._new(table, changed) if table in laid else {}
            if whole:
                change = change.then(self._write(_of_dates(new, whole), table, "laid"), ())
            others = {day: one for day, one in changed.items() if day not in whole}
            if others:
                change = change.then(*self._staged(spark, table, _of_dates(new, others), counts, others))
        days = {day for table in ("observations", "decisions") for day in dates.get(table, ()) if day is not None}
        if days and "rescales" not in rows:
            change = self._with_rescales(spark, change, days)
        if change.come:
            self._commit(change)
        return Merged(added, known, dates)

    def _new(self, table: str, changed: Mapping[date | None, _Count]) -> dict[date | None, _Count]:
        """The days of which a table has nothing yet, and gets nothing twice."""
        there = {_date(name.rsplit("/", 2)[1]) for name in self._current(table)[0]}
        return {day: one for day, one in changed.items() if not one.twice and day not in there}

    def _staged(
        self,
        spark: SparkSession,
        table: str,
        new: DataFrame,
        counts: _Counted,
        changed: Mapping[date | None, _Count],
    ) -> tuple[dict[str, str], list[str]]:
        """Stage the days of a table that change: where each file is staged -> its place, and the files that go."""
        if any(one.fresh + one.twice < one.brought for one in changed.values()):
            # Those that are there already are left out.
            new = _matched(new, _of_dates(counts.fresh, changed), table, "left_semi")
        new = _once(new, table) if any(one.twice for one in changed.values()) else new.drop(ORDER)
        sizes = _of_dates(counts.sizes, changed).select("date", KEYS[table][0], F.col("fresh").alias("rows"))
        there = _of(self._current(table)[0], changed)
        if there:
            old = self._files_of(spark, table, there)
            new, sizes = new.unionByName(old), sizes.unionByName(_sizes(old, table))
        return self._stage_table(new, sizes, table), there

    def _counted(self, spark: SparkSession, table: str, keys: DataFrame, like: _Counted | None) -> _Counted:
        """How many of these rows are new; `like` is what was found out for another table with the same keys."""
        planned = _dated(table, keys).select("date", *KEYS[table])
        if like:
            brought = {day: one.brought for day, one in like.of.items()}
        else:
            brought = {row.date: row["count"] for row in planned.groupBy("date").count().collect()}
        there = _of(self._current(table)[0], brought)
        if like and like.all_new and not there:
            return like
        fresh = planned
        if there:
            fresh = _matched(planned, self._files_of(spark, table, there), table, "left_anti")
        together = fresh
        if table != "rejected":
            # Nearly all keys are different: to count them before they are together would only cost.
            together = fresh.repartition(sum(brought.values()) // ROWS_PER_FILE + 1, "date", KEYS[table][0])
        each = together.groupBy("date", *KEYS[table]).count().groupBy("date", KEYS[table][0])
        sizes = each.agg(F.count("*").alias("fresh"), F.sum(F.col("count") - 1).alias("twice"))
        sizes = self.stage(spark, sizes, f"sizes-{table}")
        found = {
            row.date: (row.fresh, row.twice)
            for row in sizes.groupBy("date").agg(F.sum("fresh").alias("fresh"), F.sum("twice").alias("twice")).collect()
        }
        of = {day: _Count(count, *found.get(day, (0, 0))) for day, count in brought.items()}
        return _Counted(of, fresh, sizes, all_new=not there)

    def _with_rescales(self, spark: SparkSession, change: _Change, days: Collection[date]) -> _Change:
        """The same change, with the rescales that follow from it; only where they differ from those that are there."""
        near = {day + timedelta(days=away) for day in days for away in (-1, 0, 1)}
        seen = {day + timedelta(days=away) for day in near for away in (-1, 0, 1)}
        observations = _of(self._after(change, "observations"), seen)
        if not observations:
            return change
        found = _dated(
            "rescales",
            rescales.find(
                self._files_of(spark, "observations", observations),
                self._files_of(spark, "decisions", _of(self._after(change, "decisions"), seen)),
                tasks=len(observations),
            ),
        )
        found = self.stage(spark, _of_dates(found, near), "found")
        there = self._files_of(spark, "rescales", _of(self._after(change, "rescales"), near))
        different = found.exceptAll(there).unionAll(there.exceptAll(found)).select("date").distinct()
        changed = [row.date for row in different.collect()]
        if not changed:
            return change
        gone = _of(self._after(change, "rescales"), changed)
        rows = _of_dates(found, changed)
        return change.then(self._stage_table(rows, _sizes(rows, "rescales"), "rescales"), gone)

    def _stage_table(self, rows: DataFrame, sizes: DataFrame, table: str) -> dict[str, str]:
        """Write rows as they will lie in the table. Returns where each is staged -> its place.

        `sizes` tells of each cluster and date how many `rows` there are, in one part or in several.
        """
        first = KEYS[table][0]
        # Which file a cluster's day goes to: as many clusters as fit, in their order.
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
            laid = rows.join(F.broadcast(parts), same).repartitionById(last + 1, F.col("_part").cast("int"))
            return self._write(laid, table, "new")
        finally:
            parts.unpersist()

    def _write(self, rows: DataFrame, table: str, beside: str) -> dict[str, str]:
        """Write the partitions of rows as files of a table. Returns where each is staged -> its place."""
        place = f"{STAGING}/{beside}/{table}"
        # A write replaces the dates that it has; of one that failed before others would stay.
        self._files.remove(place)
        ordered = rows.sortWithinPartitions("date", *KEYS[table]).select(*TABLES[table].names)
        writer = ordered.write.mode("overwrite").options(**_PLAIN[table])
        writer.partitionBy("date").parquet(self._files.url(place))
        return {
            f"{place}/{day}/{name}": f"{table}/{day}/{name}"
            for day in self._files.names(place)
            if day.startswith("date=")
            for name in self._files.names(f"{place}/{day}")
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        }

    def _commit(self, change: _Change) -> None:
        self._files.keep(change.come)
        self._files.put(COMMIT, json.dumps({"come": dict(change.come), "go": list(change.go)}))
        self._finish()

    def _finish(self) -> None:
        """Do what the commit file says, if there is one; all that was done already is left alone."""
        change = self._change()
        if change is None:
            return
        for staged, place in change.come.items():
            self._files.move(staged, place)
        self._files.keep(change.come.values())
        for name in change.go:
            self._files.remove(name)
        self._files.remove(COMMIT)

    def _change(self) -> _Change | None:
        text = self._files.text(COMMIT)
        if text is None:
            return None
        told = json.loads(text)
        return _Change(told["come"], tuple(told["go"]))

    def _listed(self, table: str) -> list[str]:
        return [
            f"{table}/{day}/{name}"
            for day in self._files.names(table)
            if day.startswith("date=")
            for name in self._files.names(f"{table}/{day}")
            if name.endswith(".parquet") and not name.startswith(("_", "."))
        ]

    def _current(self, table: str) -> tuple[list[str], bool]:
        """The files that hold the table now, and whether that is just what its directory shows."""
        for _ in range(_TRIES):
            change, listed = self._change(), self._listed(table)
            if change != self._change() or listed != self._listed(table):
                continue  # somebody is at it
            if change is None:
                return listed, True
            return change.after(table, listed), False
        raise DatasetError(f"{self.path}: is being changed all the time; try again when it is not")

    def _after(self, change: _Change, table: str) -> list[str]:
        return change.after(table, self._current(table)[0])

    def _table(self, spark: SparkSession, table: str) -> DataFrame:
        for _ in range(_TRIES):
            names, plain = self._current(table)
            if not names or not plain:
                return self._files_of(spark, table, names)
            # Spark looks into the directories now, so what it has seen is known if nothing changed meanwhile.
            rows = spark.read.schema(TABLES[table]).parquet(literal(self._files.url(table)))
            if self._current(table) == (names, True):
                return rows
        raise DatasetError(f"{self.path}: is being changed all the time; try again when it is not")

    def _files_of(self, spark: SparkSession, table: str, names: Sequence[str]) -> DataFrame:
        """The rows of these files, which are in the table's directory or staged for it."""
        if not names:
            return spark.createDataFrame([], TABLES[table])
        bases: dict[str, list[str]] = {}
        for name in names:
            bases.setdefault(name.rsplit("/", 2)[0], []).append(literal(self._files.url(name)))
        frames = [
            spark.read.schema(TABLES[table]).option("basePath", self._files.url(base)).parquet(*urls)
            for base, urls in bases.items()
        ]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def _look(self, table: str, since: date | datetime | None, until: date | datetime | None) -> None:
        first, last = day_of(since), day_of(until)
        for name in self._current(table)[0]:
            day = _date(name.rsplit("/", 2)[1])
            if day is not None and ((first and day < first) or (last and day > last)):
                continue
            problem = self._files.damage(name)
            if problem and self._files.text(COMMIT) is None and name in self._listed(table):
                raise DatasetError(_spoiled(self._files.url(name), problem))


@dataclass(frozen=True, slots=True)
class _Count:
    brought: int
    fresh: int  # of different keys
    twice: int  # more of the same keys


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is known of rows to be added: how many by date, and their keys.

    Attributes:
        of: date -> how many.
        fresh: the keys that are not there, perhaps more than once.
        sizes: of each cluster and date how many `fresh` ones there are, and how many more of the same.
        all_new: whether the table has nothing of these dates.
    """

    of: Mapping[date | None, _Count]
    fresh: DataFrame
    sizes: DataFrame
    all_new: bool


def _sizes(rows: DataFrame, table: str) -> DataFrame:
    """How many rows there are of each date and cluster."""
    return rows.groupBy("date", KEYS[table][0]).agg(F.count("*").alias("rows"))


def literal(url: str) -> str:
    """A path or URL to read, in which Spark takes no letter for a pattern."""
    return re.sub(r"([\\{}\[\]*?^])", r"\\\1", url)


def day_of(at: date | datetime | None) -> date | None:
    """The date of UTC that a time is in; what has no time zone is UTC."""
    if not isinstance(at, datetime):
        return at
    return (at.astimezone(UTC) if at.tzinfo else at).date()


def _date(directory: str) -> date | None:
    try:
        return date.fromisoformat(directory.removeprefix("date="))
    except ValueError:
        return None  # what Spark calls the directory of rows without one


def _part(
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


def _dated(table: str, rows: DataFrame) -> DataFrame:
    """Rows with the columns and types of the table, `date` made from `at`, and `order` if there is one."""
    if "at" in TABLES[table].names:
        rows = rows.withColumn("date", F.to_date("at"))
    wanted = TABLES[table]
    if ORDER in rows.columns:
        wanted = StructType([*wanted, rows.schema[ORDER]])
    # `to` puts maps and arrays together anew, even if they are the same: that takes as long as to write them.
    there = {field.name: field.dataType.simpleString() for field in rows.schema}
    same = all(there.get(field.name) == field.dataType.simpleString() for field in wanted)
    return rows.select(*wanted.names) if same else rows.to(wanted)


def _of(names: Collection[str], dates: Collection[date | None]) -> list[str]:
    """Those of a table's files that are of these dates."""
    return [name for name in names if _date(name.rsplit("/", 2)[1]) in dates]


def _matched(rows: DataFrame, others: DataFrame, table: str, how: str) -> DataFrame:
    """Rows that are, or are not, among others by their key. By date too, so that Spark can leave out dates."""
    match = rows["date"].eqNullSafe(others["date"])
    for key in KEYS[table]:
        match = match & (rows[key] == others[key])
    return rows.join(others, match, how)


def _of_dates(rows: DataFrame, dates: Collection[date | None]) -> DataFrame:
    some = [day for day in dates if day is not None]
    wanted = F.col("date").isin(*some) if some else F.lit(False)
    return rows.where(wanted | F.col("date").isNull() if None in dates else wanted)


def _once(rows: DataFrame, table: str) -> DataFrame:
    """One row of each key, always the same one whatever the order in which they come."""
    least = F.col(ORDER) if ORDER in rows.columns else F.to_json(F.struct(*TABLES[table].names))
    same = Window.partitionBy("date", *KEYS[table])
    placed = rows.withColumn("_place", F.row_number().over(same.orderBy(least)))
    return placed.where("_place = 1").select(*TABLES[table].names)


def _spoiled(file: str, problem: str) -> str:
    return (
        f"{file}: cannot be read: {problem}; put a good copy of it there, or remove it and import that day again with "
        "--again"
    )


def _damage(text: str) -> str | None:
    """What an error of Spark says about a file that it could not read; None: it is about something else."""
    if not any(kind in text for kind in ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file")):
        return None
    found = re.search(r"(?:[a-z0-9]+:/[^\s'\"]*?\.parquet)", text)
    file = found[0] if found else "a Parquet file"
    if "FILE_NOT_EXIST" in text:
        return f"{file}: was replaced by an import while it was read; run this again"
    return _spoiled(file, "it is damaged")
