"""The partitions of a query's state, which Spark fixes with its first batch: when to change their number, and how.

Spark 4.2 and later rewrites the state of a query that is stopped, as a batch of its own that reads and writes nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from autoscaler.schedulers.flink_durations import format_seconds

UNFINISHED = "STREAMING_UNFINISHED_REPARTITION_DETECTED"
"""With this Spark refuses to start a query whose repartitioning was interrupted or has failed."""

TASKS_END = 30.0
"""Seconds for which the tasks of a repartitioning that has failed are waited for."""


class RepartitionError(Exception):
    """The state was not repartitioned; the message says why."""


@dataclass(frozen=True, slots=True)
class Due:
    """State is to be repartitioned into so many partitions, and why in one sentence."""

    partitions: int
    why: str


def choose_partitions(
    slots: int, stable: float, state: Mapping[str, int], *, after: float, most: int, failed: AbstractSet[int]
) -> Due | None:
    """Whether state is to be repartitioned, and into how many partitions: as many as there are slots.

    Every slot then has one task in each batch. A multiple would leave some idle again at the next few slots, without
    being exceeded, and each partition costs each batch a commit of its own. Their number never shrinks.

    Args:
        slots: that the job runs on.
        stable: seconds for which there have been so many.
        state: partitions of the queries that have state, by name.
        after: seconds after which slots in excess are taken to stay.
        most: partitions that there may be.
        failed: numbers of partitions that could not be reached.
    """
    partitions = min(slots, most)
    fewer = {name: number for name, number in sorted(state.items()) if number < partitions}
    if not fewer or stable < after or partitions in failed:
        return None
    has = ", ".join(f"{name} has {number} partitions of state" for name, number in fewer.items())
    return Due(partitions, f"{has}, and there have been {slots} slots for {format_seconds(after)}")


class Checkpoint:
    """The checkpoint of a query that is stopped, in a directory that Hadoop knows; Spark 4.2 or later, not Connect."""

    def __init__(self, spark: Any, directory: str) -> None:  # noqa: ANN401 - a SparkSession
        self._manager, self._directory = spark._streamingCheckpointManager, directory.rstrip("/")  # noqa: SLF001 - the only way
        # Python has no file systems of Hadoop of its own.
        self._path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._files = self._path(directory).getFileSystem(conf)

    def unfinished(self) -> int | None:
        """The partitions of a repartitioning that was begun and is not finished; None: there is none."""
        last = self._last("offsets")
        if last < 1 or last == self._last("commits"):
            return None
        before, after = (self._partitions(batch) for batch in (last - 1, last))
        return None if before == after else after

    def interrupted(self) -> bool:
        """Whether the last batch of the query itself is to be run again."""
        return self._last("offsets") != self._last("commits") and self.unfinished() is None

    def repartition(self, partitions: int, idle: Callable[[], bool]) -> None:
        """Rewrite the state into so many partitions; finish what was begun for that number.

        `idle` says whether no task runs.

        Raises:
            RepartitionError: it has failed, and the checkpoint is as it was before; or Spark refuses to start the query
                until it is finished.
        """
        try:
            self._manager.repartition(self._directory, partitions)
        except Exception as error:
            java = getattr(error, "java_exception", None)
            why = str((java.getMessage() or java.toString()) if java else error)
            deadline = time.monotonic() + TASKS_END
            while not idle():  # A task that is being cancelled may write a last file.
                if time.monotonic() >= deadline:
                    raise RepartitionError(f"{why}; its tasks still run") from error
                time.sleep(0.1)
            self.undo()
            raise RepartitionError(why) from error

    def undo(self) -> None:
        """Remove what a repartitioning that is not finished has written.

        The next batch has its number, and would find its files of the state as the ones of its own.
        """
        if self.unfinished() is None:
            return
        batch = self._last("offsets")
        found = self._files.listFiles(self._place("state"), True)
        while found.hasNext():
            path = found.next().getPath()
            if _is_of(path.toString(), batch):
                self._delete(path)
        self._delete(self._place("offsets", batch))  # Last: until then it is seen to be unfinished.

    def _delete(self, path: Any) -> None:  # noqa: ANN401 - a path of Hadoop
        if not self._files.delete(path, False) and self._files.exists(path):
            raise RepartitionError(f"{path.toString()} could not be removed")

    def _place(self, *names: object) -> Any:  # noqa: ANN401 - a path of Hadoop
        return self._path("/".join((self._directory, *map(str, names))))

    def _last(self, log: str) -> int:
        """The number of the last batch in one of Spark's logs; -1: there is none."""
        place = self._place(log)
        found = self._files.listStatus(place) if self._files.exists(place) else ()
        names = (one.getPath().getName() for one in found)
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _partitions(self, batch: int) -> int:
        stream = self._files.open(self._place("offsets", batch))
        try:
            _, metadata, *_ = bytes(stream.readAllBytes()).decode().splitlines()
        finally:
            stream.close()
        return int(json.loads(metadata)["conf"]["spark.sql.shuffle.partitions"])


def _is_of(path: str, batch: int) -> bool:
    """Whether a file of the state was written by a batch, whose version of the state has the next number."""
    _, folder, name = path.rsplit("/", 2)
    return (folder == "v2" and name == str(batch)) or (
        re.fullmatch(rf"{batch + 1}(_[^.]*)?\.(zip|changelog|delta|snapshot)", name) is not None
    )
