"""`history follow`: add the compressed files of daemons to a dataset, each once.

`BatchFollower` adds a batch of files with the functions of `history import`. `Follower` gets the files from Structured
Streaming: Spark's file source finds them, and its checkpoint records which were processed. The follower in
`ingest_follow_local` itself searches directories of this machine. Only new rows are added, so a batch that is repeated
after a crash changes nothing: the effect is exactly-once.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from autoscaler.history.dataset import BusyError, Dataset
from autoscaler.history.ingest_local import add_local
from autoscaler.history.ingest_records import Imported, add
from autoscaler.ports import AutoscalerError

NAME = "history follow"
"""The query's name."""

CHECKPOINT = "_follow"
"""The default place of the checkpoint in a dataset."""

PACKED, ANY = "*.jsonl.gz", "*.{jsonl,jsonl.gz}"

_KNOWN = "followers.json"
"""The dataset's note with the ids of the checkpoints that belong to it."""

_FOUND = "path string, modificationTime timestamp, length long, content binary"
HOUR = r"(\d{4}-\d\d-\d\dT\d\d)[^/]*$"
LATE = timedelta(hours=1)
"""A file is late if it is older than the newest file by more than this."""

_T = TypeVar("_T")

POLL_S = 0.3
_BUSY_S = 5.0


class FollowError(AutoscalerError):
    """The query cannot start or continue; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """The options of `history follow`.

    Attributes:
        places: directories, patterns of directories like `/srv/*/history`, or URLs of one file system that Spark
            supports.
        checkpoint: the directory of the checkpoint.
        plain: also import uncompressed files, which must be complete when they appear.
        files: the maximum number of files of a batch.
        every: the time between two searches for files; None: process the present files and end.
        count: whether to count the waiting files at each batch.
    """

    places: Sequence[str]
    checkpoint: str
    plain: bool = False
    files: int = 64
    every: timedelta | None = None
    count: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The result of a batch.

    Attributes:
        number: the number of the batch in its checkpoint. A repeated batch has the same number.
        files: the number of files.
        late: files that are more than an hour older than the newest hour of earlier batches.
        gone: files that were removed before they could be read.
        imported: the result of the import.
        waiting: further files that existed when the batch began; None: they were not counted.
        seconds: the duration of the batch.
    """

    number: int
    files: int
    late: int
    gone: int
    imported: Imported
    waiting: int | None
    seconds: float


@dataclass(slots=True, kw_only=True)
class BatchFollower(ABC):
    """Adds batches of files to a dataset: `run` it once."""

    dataset: Dataset
    options: FollowOptions
    report: Callable[[Batch], object]
    warn: Callable[[str], object] = lambda _: None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _newest: datetime = datetime(1970, 1, 2)  # noqa: DTZ001 - naive, like PySpark's times

    @abstractmethod
    def run(self) -> None:
        """Run until there is nothing more to do or `stop` is called.

        Raises:
            FollowError: a place or the checkpoint cannot be used.
            AutoscalerError: the dataset cannot be written.
            PySparkException: Spark failed.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop following. The next run repeats a batch that was not completed. Further calls have no effect."""

    @abstractmethod
    def _session(self) -> SparkSession:
        """The Spark session for files that need Spark."""

    def _add_batch(
        self, number: int, found: Mapping[str, datetime], waiting: Callable[[Sequence[str]], int | None]
    ) -> None:
        """Add the found files, a map of files to their hours, and report the batch."""
        begun = time.monotonic()
        files = sorted(found)
        left = waiting(files)
        gone, imported = self._add_existing(files)
        late = sum(at < self._newest - LATE for at in found.values())
        self._newest = max([self._newest, *found.values()])
        self.report(
            Batch(
                number=number,
                files=len(files),
                late=late,
                gone=gone,
                imported=imported,
                waiting=left,
                seconds=time.monotonic() - begun,
            )
        )

    def _add_existing(self, files: Sequence[str]) -> tuple[int, Imported]:
        """Add files, except those that were removed. Returns the number of removed files, and the result."""
        # A check costs a request for each remote file, so remote files are checked only after a failure.
        there = [file for file in files if "://" in file or Path(file).exists()]
        done, odd = self._unless_busy(partial(add_local, self.dataset, there))
        left = [file for file in odd if "://" in file or Path(file).exists()]
        gone = len(files) - len(there) + len(odd) - len(left)
        while left:
            spark = self._session()
            try:
                return gone, done + self._unless_busy(partial(add, spark, self.dataset, left))
            except (AutoscalerError, PySparkException, Py4JError):
                there = left if self._stopped.is_set() else [file for file in left if _is_there(spark, file)]
                if there == left:
                    raise
                gone += len(left) - len(there)
                left = there
        return gone, done

    def _unless_busy(self, work: Callable[..., _T]) -> _T:
        """Call `work`, and retry it while another process writes the dataset."""
        warned = False
        while True:
            try:
                return work(now=datetime.fromtimestamp(time.time(), UTC))
            except BusyError as error:
                if not warned:
                    self.warn(f"waiting: {error}")
                warned = True
                if self._pause(_BUSY_S):
                    raise

    def _pause(self, seconds: float) -> bool:
        """Sleep for some seconds, or until the follower is stopped. Returns whether it is stopped.

        `Event.wait` is not used: a signal handler sets the event, and would deadlock if `wait` held the event's lock.
        """
        until = time.monotonic() + seconds
        while not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))
        return self._stopped.is_set()

    def _check_owner(self, checkpoint: str) -> None:
        """Raise FollowError if a checkpoint with files does not belong to this dataset."""
        if checkpoint not in self._followers():
            raise FollowError(
                f"{self.options.checkpoint}: is the checkpoint of another dataset, with the files imported there; give "
                "--checkpoint another directory, or remove it to have all files read again: records that the dataset "
                "already has are not added twice"
            )

    def _record_checkpoint(self, checkpoint: str) -> None:
        """Record in the dataset that a checkpoint belongs to it."""
        known = self._followers()
        if checkpoint not in known:
            self.dataset.keep_note(_KNOWN, json.dumps([*known, checkpoint]) + "\n")

    def _followers(self) -> list[str]:
        text = self.dataset.note(_KNOWN)
        return [] if text is None else [str(one) for one in json.loads(text)]


@dataclass(slots=True, kw_only=True)
class Follower(BatchFollower):
    """Follows by one query of Structured Streaming.

    Attributes:
        waiting: number of a batch -> further files that existed when it began; the last batches only.
    """

    spark: SparkSession
    waiting: dict[int, int] = field(default_factory=dict)
    _known: threading.Event = field(default_factory=threading.Event)
    _failure: Exception | None = None
    _seen: set[str] = field(default_factory=set)

    def _session(self) -> SparkSession:
        return self.spark

    def stop(self) -> None:
        """Stop following, even within a batch, which the next run repeats. Further calls have no effect."""
        self._stopped.set()
        self._known.set()

    def run(self) -> None:  # noqa: D102 - inherited
        found = self.found()
        place = url(self.options.checkpoint)
        before = _checkpoint_id(self.spark, place)
        if before is not None and _any(self.spark, f"{place}/commits"):
            self._check_owner(before)
        if self.options.count:
            self._seen = _processed(self.spark, place)
        writer = found.writeStream.queryName(NAME).foreachBatch(self._work).option("checkpointLocation", place)
        every = self.options.every
        timed = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=_interval(every))
        try:
            query = timed.start()
            self._record_checkpoint(query.id)
            self._known.set()
            while not self._stopped.is_set() and not query.awaitTermination(POLL_S):
                pass
            query.stop()
            if has_ended(self.spark):
                self._spark_ended()
        except (PySparkException, Py4JError, OSError) as error:
            if self._stopped.is_set():
                return  # the stop interrupted Spark, or the same signal ended Spark
            if has_ended(self.spark):
                self._spark_ended()
            if self._failure is not None:
                raise self._failure from None
            raise FollowError(_describe(error, self.options.checkpoint)) from error

    def _spark_ended(self) -> None:
        if not self._stopped.is_set():
            raise FollowError(SPARK_ENDED) from None

    def found(self) -> DataFrame:
        """A stream of the files, one row each, without their content. `at` is the hour in the file's name."""
        reader = self.spark.readStream.format("binaryFile").schema(_FOUND)
        options = {
            "pathGlobFilter": ANY if self.options.plain else PACKED,
            "recursiveFileLookup": "true",
            "maxFilesPerTrigger": str(self.options.files),
            # Spark ignores files that are older than the newest one by more than this; its default is a week.
            "maxFileAge": f"{100 * 365}d",
            # Ignore files that are removed after they were listed.
            "ignoreMissingFiles": "true",
        }
        found = reader.options(**options).load(join_places(self.options.places, plain=self.options.plain))
        hour = F.try_to_timestamp(F.regexp_extract("path", HOUR, 1), F.lit("yyyy-MM-dd'T'HH"))
        # The watermark only makes the query's progress show which hours are read. No late file is dropped.
        return found.select("path", F.coalesce(hour, "modificationTime").alias("at")).withWatermark(
            "at", f"{LATE.total_seconds():.0f} seconds"
        )

    def _work(self, batch: DataFrame, number: int) -> None:
        try:
            self._known.wait()
            if self._stopped.is_set():
                raise FollowError("it was stopped")  # noqa: TRY301 - so that Spark does not record the batch as done
            found = {normalized(row.path): row.at for row in batch.collect()}
            self._add_batch(number, found, partial(self._count, number))
        except Exception as error:
            if self._failure is None:
                self._failure = error
            raise

    def _count(self, number: int, files: Sequence[str]) -> int | None:
        if not self.options.count:
            return None
        self._seen.update(files)
        there = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        there = there.option("pathGlobFilter", ANY if self.options.plain else PACKED)
        try:
            listed = there.load(join_places(self.options.places, plain=self.options.plain)).select("path").toArrow()
        except AnalysisException:  # no directory exists now
            return 0
        count = sum(normalized(path) not in self._seen for path in listed["path"].to_pylist())
        self.waiting = {**dict(list(self.waiting.items())[-20:]), number: count}
        return count


def waiting_of(follower: Follower) -> Callable[[Mapping[str, Any]], int | None]:
    """The function `waiting` for `injob.report`: it returns the number of files that wait after a batch."""
    return lambda progress: follower.waiting.get(progress["batchId"])


def url(place: str) -> str:
    """A place as a URL for Spark."""
    return place if "://" in place else f"file://{absolute(place.removeprefix('file:'))}"


def absolute(path: str) -> str:
    """An absolute path without `..`, because Spark would resolve `..` without following links."""
    parts = Path(path).absolute().parts
    if ".." not in parts:
        return str(Path(*parts))
    after = len(parts) - parts[::-1].index("..")
    # Links after the last `..` stay, because files are identified by their paths and links may change.
    return str(Path(os.path.realpath(Path(*parts[:after])), *parts[after:]))


SPARK_ENDED = (
    "Spark ended during the query: its application was removed, or its Java was killed or had no memory left; run this "
    "again: it continues with the same files, and records that the dataset already has are not added twice"
)


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark has ended. If so, this is the cause of its other errors."""
    try:
        return bool(spark._jsc.sc().isStopped())  # noqa: SLF001 - the only way
    except (Py4JError, OSError):
        return True


def _is_there(spark: SparkSession, file: str) -> bool:
    if "://" not in file:
        return Path(file).exists()
    path = spark._jvm.org.apache.hadoop.fs.Path(file)  # noqa: SLF001 - there is no public way
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))  # noqa: SLF001


def join_places(places: Sequence[str], *, plain: bool = False) -> str:
    """One pattern for all places, so that the query keeps one source when places are added or removed later.

    Raises:
        FollowError: a place does not exist or cannot be used, or the places are in several file systems.
    """
    systems: dict[str, list[str]] = {}
    for place in places:
        if "://" not in place:
            _check_place(place, plain=plain)
        system, path = re.fullmatch(r"([^:]+://[^/]*)/*(.*)", url(place), re.DOTALL).groups()  # type: ignore[union-attr]
        there = "://" not in place and os.path.lexists(place)
        systems.setdefault(system, []).append(_literal(path, among=len(places) > 1) if there else path)
    if len(systems) > 1:
        raise FollowError(
            f"{' and '.join(systems)} are different file systems: follow each with its own command and its own "
            "--checkpoint"
        )
    ((system, paths),) = systems.items()
    return f"{system}/{paths[0]}" if len(paths) == 1 else f"{system}/{{{','.join(paths)}}}"


def _literal(path: str, *, among: bool) -> str:
    """A path with escaped glob characters. If it is one of several in braces, Hadoop removes one level of escapes."""
    if not among:
        return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
    return re.sub(r"([\\{}\[\]*?])", r"\\\\\\\1", path).replace(",", "\\,")


def _check_place(place: str, *, plain: bool) -> None:
    path = Path(place)
    if not path.is_dir():
        if os.path.lexists(path):
            raise FollowError(f"{place}: is not a directory")
        if not re.search(r"[{\[*?]", place):
            raise FollowError(
                f"{place}: there is no such directory; the history of a daemon is in history/ of its daemon.directory"
            )
    elif plain and any((path / up / "state.sqlite3").exists() for up in ("", "..")):
        raise FollowError(
            f"{place}: belongs to a daemon, whose uncompressed files still grow, and each file is read once; leave out "
            "--uncompressed: the daemon compresses each file when its hour is over"
        )


def _interval(every: timedelta) -> str:
    return f"{round(every.total_seconds() * 1000)} milliseconds"


def normalized(path: str) -> str:
    """The canonical name of a file, which Spark calls `file:/a` or `file:///a`: a local file's path, or its URL."""
    return re.sub(r"^file:/+", "/", path)


def _checkpoint_id(spark: SparkSession, place: str) -> str | None:
    """The id of a checkpoint; None: the checkpoint does not exist yet. Raises FollowError."""
    try:
        text = "".join(row.value for row in spark.read.text(f"{place}/metadata", wholetext=True).collect())
    except AnalysisException:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise FollowError(damaged(place, "its file metadata has no id")) from error


def _any(spark: SparkSession, place: str) -> bool:
    try:
        return not spark.read.text(place).isEmpty()
    except AnalysisException:
        return False


def _processed(spark: SparkSession, place: str) -> set[str]:
    """The files that a checkpoint has recorded as processed."""
    try:
        lines = spark.read.text(f"{place}/sources/0").where("value LIKE '{%'")
        paths = (
            lines.select(F.get_json_object("value", "$.path").alias("path")).distinct().toArrow()["path"].to_pylist()
        )
    except AnalysisException:
        return set()
    return {normalized(urllib.parse.unquote(path)) for path in paths if path}


def damaged(place: str, why: str) -> str:
    """The error message for a damaged checkpoint."""
    return (
        f"{place}: the checkpoint is damaged ({why}); move it away and run this again: all files are then read again, "
        "and records that the dataset already has are not added twice"
    )


def in_use(checkpoint: str) -> str:
    """The error message for a checkpoint that another process uses."""
    return (
        f"{checkpoint}: is used by two queries at a time: another `history follow` runs with it; if none does, "
        "move it away and run this again: all files are then read again, and records that the dataset already has "
        "are not added twice"
    )


_DAMAGE = re.compile(
    r"log file|[Nn]o ?such ?[Ee]lement|next on empty iterator|batch \d+ doesn't exist|end-of-input|Unexpected character"
    r"|sources in the checkpoint|log version|not a directory"
)
"""Spark's messages about a damaged checkpoint."""


def _describe(error: Exception, checkpoint: str) -> str:
    """Why a query failed, in one sentence."""
    text = re.sub(r"^.*?terminated with exception: ", "", str(error), flags=re.DOTALL)
    causes = re.findall(r"^(?:: |Caused by: )?[\w.$]+(?:Exception|Error): (.*)$", text, re.MULTILINE)
    why = (causes[:1] or text.strip().splitlines()[:1] or [type(error).__name__])[0].split(" SQLSTATE: ")[0]
    if "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return in_use(checkpoint)
    return damaged(checkpoint, why) if _DAMAGE.search(why) else f"Spark failed: {why}"
