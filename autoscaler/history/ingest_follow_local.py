"""`history follow` for directories of this machine: searches them itself, and starts Spark only for files that need it.

The checkpoint is a file of JSON lines. A batch is appended when its rows are in the dataset. The first line has the
files of a checkpoint that Spark created earlier in the same directory.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from autoscaler.history.ingest_follow import (
    HOUR,
    POLL_S,
    SPARK_ENDED,
    BatchFollower,
    FollowError,
    FollowOptions,
    absolute,
    damaged,
    has_ended,
    in_use,
    join_places,
    normalized,
)
from autoscaler.ports import AutoscalerError

FILE = "files.jsonl"
"""The checkpoint's file."""


def can_follow_local(options: FollowOptions) -> bool:
    """Whether files can be found without Spark. Remote places, patterns with braces or brackets, and counts need it."""
    local = not any("://" in place for place in (*options.places, options.checkpoint))
    literal = all(os.path.lexists(place) or not re.search(r"[{}\[\]\\]", place) for place in options.places)
    return local and literal and not options.count


@dataclass(slots=True, kw_only=True)
class LocalFollower(BatchFollower):
    """Follows directories of this machine.

    Attributes:
        start: the function that starts Spark.

    Raises:
        FollowError: a place is not a directory.
    """

    start: Callable[[], SparkSession]
    _spark: SparkSession | None = None
    _number: int = 0
    _known: set[str] = field(default_factory=set)
    _ended: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        join_places(self.options.places, plain=self.options.plain)  # raises FollowError for a wrong place

    def run(self) -> None:  # noqa: D102 - inherited
        try:
            with self._opened() as checkpoint:
                begun = time.monotonic()
                self._add_found(checkpoint)
                while self.options.every is not None:
                    rest = self.options.every.total_seconds() - (time.monotonic() - begun)
                    if self._pause(max(rest, POLL_S)):
                        return
                    begun = time.monotonic()
                    self._add_found(checkpoint)
        except (AutoscalerError, PySparkException, Py4JError, OSError) as error:
            if self._stopped.is_set():
                return  # the stop interrupted Spark, or the same signal ended Spark
            if self._spark is not None and has_ended(self._spark):
                raise FollowError(SPARK_ENDED) from None
            if isinstance(error, OSError):
                name, why = error.filename or self.options.checkpoint, error.strerror or error
                raise FollowError(f"{name}: cannot be used: {why}") from error
            raise
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Stop after the present batch. Work of Spark is interrupted, and the next run repeats it."""
        self._stopped.set()
        if self._spark is not None:
            # Interrupt in another thread, because this thread may be waiting in a call to Spark.
            Thread(target=self._interrupt, args=[self._spark], daemon=True).start()

    def _interrupt(self, spark: SparkSession) -> None:
        with suppress(Py4JError, OSError):
            while not self._ended.wait(POLL_S):
                spark.sparkContext.cancelAllJobs()

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self.start()
        if self._stopped.is_set():
            raise FollowError("it was stopped")
        return self._spark

    def _add_found(self, checkpoint: IO[str]) -> None:
        found = self._found()
        names = iter(found)
        while not self._stopped.is_set() and (files := list(itertools.islice(names, self.options.files))):
            self._add_batch(self._number, {file: found[file] for file in files}, lambda _: None)
            self._record(checkpoint, {"batch": self._number, "files": files})

    def _found(self) -> Mapping[str, datetime]:
        """The new files with their hours, in the order in which they appeared."""
        found: dict[str, float] = {}
        for place in self.options.places:
            root = absolute(place)
            for each in [root] if os.path.lexists(place) else glob(root, include_hidden=True):  # noqa: PTH207
                for file in _files(each, (".jsonl", ".jsonl.gz") if self.options.plain else (".jsonl.gz",)):
                    if file not in self._known:
                        with suppress(FileNotFoundError):
                            found[file] = Path(file).stat().st_mtime
        return {file: _hour(file, found[file]) for file in sorted(found, key=lambda file: (found[file], file))}

    @contextmanager
    def _opened(self) -> Iterator[IO[str]]:
        """Lock the checkpoint, read it, and yield its file."""
        place = Path(self.options.checkpoint)
        place.mkdir(parents=True, exist_ok=True)
        with (place / FILE).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FollowError(in_use(self.options.checkpoint)) from error
            self._read(place, file)
            yield file

    def _read(self, place: Path, file: IO[str]) -> None:
        file.seek(0)
        try:
            text = file.read()
            whole = text[: text.rfind("\n") + 1]
            file.truncate(len(whole.encode()))  # remove a last line that a killed process left unfinished
            for line in map(json.loads, whole.splitlines()):
                if "id" in line:
                    self._check_owner(line["id"])
                self._take(line)
            before = None if whole else self._of_spark(place)
        except (OSError, LookupError, ValueError, TypeError) as error:
            raise FollowError(damaged(self.options.checkpoint, f"{type(error).__name__}: {error}")) from error
        if before is not None:
            self._record_checkpoint(name := str(uuid.uuid4()))
            self._record(file, {"id": name, **before})

    def _of_spark(self, place: Path) -> dict[str, Any]:
        """The last batch that Spark has completed in its checkpoint, and all files up to that batch."""
        commits = place / "commits"
        last = max((int(each.name) for each in commits.glob("*") if each.name.isdecimal()), default=-1)
        if last < 0:
            return {"batch": last, "files": []}
        self._check_owner(json.loads((place / "metadata").read_text())["id"])
        end = json.loads((place / "offsets" / str(last)).read_text().splitlines()[-1])["logOffset"]
        lines = (line for log in (place / "sources" / "0").glob("[0-9]*") for line in log.read_text().splitlines())
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        paths = {normalized(urllib.parse.unquote(each["path"])) for each in entries if each["batchId"] <= end}
        return {"batch": last, "files": sorted(paths)}

    def _record(self, file: IO[str], line: Mapping[str, Any]) -> None:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
        self._take(line)

    def _take(self, line: Mapping[str, Any]) -> None:
        self._number = line["batch"] + 1
        self._known.update(line["files"])


def _files(root: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """The files in a directory and its subdirectories except hidden ones, as Spark finds them."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    if Path(root).is_file():
        yield from [root] if root.endswith(suffixes) else []
    for directory, below, names in os.walk(root, followlinks=True, onerror=refuse):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        for name in names:
            if name.endswith(suffixes) and not name.startswith((".", "_")):
                yield f"{directory}/{name}"


def _hour(file: str, changed: float) -> datetime:
    named = re.search(HOUR, file)
    try:
        return datetime.strptime(named[1], "%Y-%m-%dT%H")  # type: ignore[index]  # noqa: DTZ007
    except (TypeError, ValueError):
        return datetime.fromtimestamp(changed, UTC).replace(tzinfo=None)
