"""Following: a Structured Streaming query that adds to a dataset what daemons pack, each file once.

Spark's file source finds the files, and its checkpoint remembers which were taken. A batch is a list of files, a row
for each, and not their lines: it is read by the function that imports files, so both make the same of them. A batch
that is repeated after a kill changes nothing, since a dataset only grows by what is new: exactly once in effect.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from autoscaler.history.dataset import BusyError, Dataset
from autoscaler.history.ingest_records import Imported, add
from autoscaler.ports import AutoscalerError

NAME = "history follow"
"""The query's name."""

CHECKPOINT = "_follow"
"""Where the checkpoint is in a dataset if nothing else is said."""

PACKED, ANY = "*.jsonl.gz", "*.{jsonl,jsonl.gz}"

_KNOWN = "followers.json"
"""The note of a dataset with the ids of the checkpoints that follow into it."""

_FOUND = "path string, modificationTime timestamp, length long, content binary"
_HOUR = r"(\d{4}-\d\d-\d\dT\d\d)[^/]*$"
LATE = timedelta(hours=1)
"""A file is late when it is older than the newest one by more."""

_LOOK = 0.3
_BUSY = 5.0


class FollowError(AutoscalerError):
    """Following cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Following:
    """What is followed, and how.

    Attributes:
        places: directories, patterns of them like `/srv/*/history`, or URLs of one file system that Spark knows.
        checkpoint: a directory for what Spark remembers.
        plain: also take files that are not packed: they must be whole when they appear.
        files: the most files of one batch.
        every: time between two looks; None: take what is there, and end.
        count: whether to count, for each batch, how many files wait.
    """

    places: Sequence[str]
    checkpoint: str
    plain: bool = False
    files: int = 64
    every: timedelta | None = None
    count: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch did.

    Attributes:
        number: Spark's number of it. One that is told again was repeated.
        files: how many there were.
        late: those of them that are older than the newest hour that was there before, by more than an hour.
        gone: those of them that were removed before they could be read.
        imported: what became of their lines.
        waiting: files that were there when it began, beyond its own; None: they were not counted.
        seconds: how long it took.
    """

    number: int
    files: int
    late: int
    gone: int
    imported: Imported
    waiting: int | None
    seconds: float


@dataclass(slots=True)
class Follower:
    """One query: `run` it once.

    Attributes:
        waiting: batch -> files that were there when it began, beyond its own, of the last batches.
    """

    spark: SparkSession
    dataset: Dataset
    what: Following
    tell: Callable[[Batch], object]
    warn: Callable[[str], object] = lambda _: None
    waiting: dict[int, int] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _known: threading.Event = field(default_factory=threading.Event)
    _failure: Exception | None = None
    _seen: set[str] = field(default_factory=set)
    _newest: datetime = datetime(1970, 1, 2)  # noqa: DTZ001 - naive, as PySpark has times

    def stop(self) -> None:
        """End it, also in the middle of a batch, which is then repeated by the next run. It may be called twice."""
        self._stopped.set()
        self._known.set()

    def run(self) -> None:
        """Follow until there is nothing more to do or `stop` is called.

        Raises:
            FollowError: a place or the checkpoint cannot be used.
            AutoscalerError: the dataset cannot be written.
            PySparkException: Spark failed at it.
        """
        found = self.found()
        place = url(self.what.checkpoint)
        before = _checkpoint_id(self.spark, place)
        if before is not None and before not in self._followers() and _any(self.spark, f"{place}/commits"):
            raise FollowError(
                f"{self.what.checkpoint}: is the checkpoint of another dataset, and says which files that has; give "
                "--checkpoint another directory, or remove it to have all files read again: what is there already is "
                "not added twice"
            )
        if self.what.count:
            self._seen = _taken(self.spark, place)
        writer = found.writeStream.queryName(NAME).foreachBatch(self._work).option("checkpointLocation", place)
        every = self.what.every
        timed = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=_interval(every))
        try:
            query = timed.start()
            self._follows(query.id)
            while not self._stopped.is_set() and not query.awaitTermination(_LOOK):
                pass
            query.stop()
            if _has_ended(self.spark):
                self._cut_off()
        except (PySparkException, Py4JError, OSError) as error:
            if self._stopped.is_set():
                return  # Spark was in the middle of something, or ended by the same signal
            if _has_ended(self.spark):
                self._cut_off()
            if self._failure is not None:
                raise self._failure from None
            raise FollowError(_told(error, self.what.checkpoint)) from error

    def _cut_off(self) -> None:
        if not self._stopped.is_set():
            raise FollowError(_CUT_OFF) from None

    def _follows(self, checkpoint: str) -> None:
        """Keep in the dataset that it is this one that a checkpoint speaks of."""
        known = self._followers()
        if checkpoint not in known:
            self.dataset.keep_note(_KNOWN, json.dumps([*known, checkpoint]) + "\n")
        self._known.set()

    def found(self) -> DataFrame:
        """The files, a row for each: their content is not read here. `at` is the hour of the name."""
        reader = self.spark.readStream.format("binaryFile").schema(_FOUND)
        options = {
            "pathGlobFilter": ANY if self.what.plain else PACKED,
            "recursiveFileLookup": "true",
            "maxFilesPerTrigger": str(self.what.files),
            # A file that is older than the newest one by more than this is never taken, and a week is Spark's default.
            "maxFileAge": f"{100 * 365}d",
            # What is removed between being listed and being looked at.
            "ignoreMissingFiles": "true",
        }
        found = reader.options(**options).load(together(self.what.places, plain=self.what.plain))
        hour = F.try_to_timestamp(F.regexp_extract("path", _HOUR, 1), F.lit("yyyy-MM-dd'T'HH"))
        # Nothing is dropped for being late. The watermark is there so that the progress tells which hours are read.
        return found.select("path", F.coalesce(hour, "modificationTime").alias("at")).withWatermark(
            "at", f"{LATE.total_seconds():.0f} seconds"
        )

    def _work(self, batch: DataFrame, number: int) -> None:
        begun = time.monotonic()
        try:
            self._known.wait()
            if self._stopped.is_set():
                raise FollowError("it was stopped")  # noqa: TRY301 - Spark must not take the batch for done
            found = {row.path: row.at for row in batch.collect()}
            files = sorted(map(_same, found))
            waiting = self._count(files, number)
            there, imported = self._add_those_there(files)
            late = sum(at < self._newest - LATE for at in found.values())
            self._newest = max([self._newest, *found.values()])
            gone = len(files) - len(there)
            self.tell(Batch(number, len(files), late, gone, imported, waiting, time.monotonic() - begun))
        except Exception as error:
            if self._failure is None:
                self._failure = error
            raise

    def _add_those_there(self, files: Sequence[str]) -> tuple[Sequence[str], Imported]:
        """Add files but for those that have been removed. Returns what was read, and what became of it."""
        # To look at each costs a request where it is far: only when something failed.
        there: Sequence[str] = [file for file in files if "://" in file or Path(file).exists()]
        while True:
            try:
                return there, self._add(there)
            except (AutoscalerError, PySparkException, Py4JError):
                left = there if self._stopped.is_set() else [file for file in there if _is_there(self.spark, file)]
                if left == there:
                    raise
                there = left

    def _add(self, files: Sequence[str]) -> Imported:
        told = False
        while True:
            try:
                return add(self.spark, self.dataset, files, now=datetime.fromtimestamp(time.time(), UTC))
            except BusyError as error:
                if not told:
                    self.warn(f"waiting: {error}")
                told = True
                if self._stopped.wait(_BUSY):
                    raise

    def _count(self, files: Sequence[str], number: int) -> int | None:
        if not self.what.count:
            return None
        self._seen.update(files)
        there = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        there = there.option("pathGlobFilter", ANY if self.what.plain else PACKED)
        try:
            listed = there.load(together(self.what.places, plain=self.what.plain)).select("path").toArrow()
        except AnalysisException:  # no directory is there now
            return 0
        count = sum(_same(path) not in self._seen for path in listed["path"].to_pylist())
        self.waiting = {**dict(list(self.waiting.items())[-20:]), number: count}
        return count

    def _followers(self) -> list[str]:
        text = self.dataset.note(_KNOWN)
        return [] if text is None else [str(one) for one in json.loads(text)]


def waiting_of(follower: Follower) -> Callable[[Mapping[str, Any]], int | None]:
    """What `injob.report` asks: how many files a batch has left."""
    return lambda progress: follower.waiting.get(progress["batchId"])


def url(place: str) -> str:
    """A place as Spark takes it."""
    return place if "://" in place else f"file://{_whole(place.removeprefix('file:'))}"


def _whole(path: str) -> str:
    """A path from the root on, without `..`: Spark would take that away without a look at links."""
    parts = Path(path).absolute().parts
    if ".." not in parts:
        return str(Path(*parts))
    after = len(parts) - parts[::-1].index("..")
    # Links further on stay: what they lead to may become another place, and files are known by their path.
    return str(Path(os.path.realpath(Path(*parts[:after])), *parts[after:]))


_CUT_OFF = (
    "Spark was ended while this followed: its application was removed, or its Java was killed or had no memory left; "
    "start this again: it goes on with the same files, and what is there already is not added twice"
)


def _has_ended(spark: SparkSession) -> bool:
    """Whether there is no Spark any more; then whatever it says of an error is about that."""
    try:
        return bool(spark._jsc.sc().isStopped())  # noqa: SLF001 - else nothing tells
    except (Py4JError, OSError):
        return True


def _is_there(spark: SparkSession, file: str) -> bool:
    if "://" not in file:
        return Path(file).exists()
    path = spark._jvm.org.apache.hadoop.fs.Path(file)  # noqa: SLF001 - the only way to it
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))  # noqa: SLF001


def together(places: Sequence[str], *, plain: bool = False) -> str:
    """One pattern for all places: a query has one source, whatever places are added to it or taken away later.

    Raises:
        FollowError: a place is not there or cannot be used, or they are in several file systems.
    """
    systems: dict[str, list[str]] = {}
    for place in places:
        if "://" not in place:
            _look(place, plain=plain)
        system, path = re.fullmatch(r"([^:]+://[^/]*)/*(.*)", url(place), re.DOTALL).groups()  # type: ignore[union-attr]
        there = "://" not in place and os.path.lexists(place)
        systems.setdefault(system, []).append(_as_it_is(path, among=len(places) > 1) if there else path)
    if len(systems) > 1:
        raise FollowError(
            f"{' and '.join(systems)} are different file systems: follow each by a command of its own, with its own "
            "--checkpoint"
        )
    ((system, paths),) = systems.items()
    return f"{system}/{paths[0]}" if len(paths) == 1 else f"{system}/{{{','.join(paths)}}}"


def _as_it_is(path: str, *, among: bool) -> str:
    """A path in which no letter means others. Among several in braces, Hadoop takes one escape away first."""
    if not among:
        return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
    return re.sub(r"([\\{}\[\]*?])", r"\\\\\\\1", path).replace(",", "\\,")


def _look(place: str, *, plain: bool) -> None:
    path = Path(place)
    if not path.is_dir():
        if os.path.lexists(path):
            raise FollowError(f"{place}: is no directory")
        if not re.search(r"[{\[*?]", place):
            raise FollowError(
                f"{place}: there is no such directory; the history of a daemon is in history/ of its daemon.directory"
            )
    elif plain and any((path / up / "state.sqlite3").exists() for up in ("", "..")):
        raise FollowError(
            f"{place}: belongs to a daemon, whose plain files still grow, and each file is read once; leave out "
            "--plain: the daemon packs each when its hour is over"
        )


def _interval(every: timedelta) -> str:
    return f"{round(every.total_seconds() * 1000)} milliseconds"


def _same(path: str) -> str:
    """One name for a file, which Spark calls `file:/a` here and `file:///a` there; on this machine its path."""
    return re.sub(r"^file:/+", "/", path)


def _checkpoint_id(spark: SparkSession, place: str) -> str | None:
    """What tells a checkpoint from others; None: there is none yet. Raises FollowError."""
    try:
        text = "".join(row.value for row in spark.read.text(f"{place}/metadata", wholetext=True).collect())
    except AnalysisException:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise FollowError(_damaged(place, "its file metadata has no id")) from error


def _any(spark: SparkSession, place: str) -> bool:
    try:
        return not spark.read.text(place).isEmpty()
    except AnalysisException:
        return False


def _taken(spark: SparkSession, place: str) -> set[str]:
    """The files that a checkpoint knows."""
    try:
        lines = spark.read.text(f"{place}/sources/0").where("value LIKE '{%'")
        paths = (
            lines.select(F.get_json_object("value", "$.path").alias("path")).distinct().toArrow()["path"].to_pylist()
        )
    except AnalysisException:
        return set()
    return {_same(urllib.parse.unquote(path)) for path in paths if path}


def _damaged(place: str, why: str) -> str:
    return (
        f"{place}: the checkpoint is damaged ({why}); move it away and start again: all files are then read again, and "
        "what is there already is not added twice"
    )


_DAMAGE = re.compile(
    r"log file|[Nn]o ?such ?[Ee]lement|next on empty iterator|batch \d+ doesn't exist|end-of-input|Unexpected character"
    r"|sources in the checkpoint|log version|not a directory"
)
"""What Spark says of a checkpoint that it cannot use."""


def _told(error: Exception, checkpoint: str) -> str:
    """What is wrong with a query that failed of itself, in one sentence."""
    told = re.sub(r"^.*?terminated with exception: ", "", str(error), flags=re.DOTALL)
    causes = re.findall(r"^(?:: |Caused by: )?[\w.$]+(?:Exception|Error): (.*)$", told, re.MULTILINE)
    why = (causes[:1] or told.strip().splitlines()[:1] or [type(error).__name__])[0].split(" SQLSTATE: ")[0]
    if "CONCURRENT_STREAM_LOG_UPDATE" in told:
        return (
            f"{checkpoint}: is the checkpoint of two at a time: another `history follow` runs with it; if none does, "
            "move it away and start again: all files are then read again, and what is there already is not added twice"
        )
    return _damaged(checkpoint, why) if _DAMAGE.search(why) else f"Spark failed: {why}"
