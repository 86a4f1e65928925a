"""Decide when to change the number of partitions of a query's state, and change it.

Spark fixes this number with the query's first batch. Spark 4.2 and later can rewrite the state of a stopped query, in a
batch of its own that reads no source and writes to no sink.
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
"""The error with which Spark refuses to start a query after its repartitioning was interrupted or failed."""

TASKS_END = 30.0
"""Seconds to wait for the tasks of a failed repartitioning to end."""


class RepartitionError(Exception):
    """The state was not repartitioned; the message says why."""


@dataclass(frozen=True, slots=True)
class Due:
    """The decision to repartition state into `partitions` partitions, and the reason in one sentence."""

    partitions: int
    why: str


def choose_partitions(
    slots: int, stable: float, state: Mapping[str, int], *, after: float, most: int, failed: AbstractSet[int]
) -> Due | None:
    """Decide whether to repartition state, and into how many partitions: as many as there are slots.

    Every slot then has one task in each batch. A multiple of the slots is not used: after the next few slots are added,
    some would be idle although there are still more partitions than slots. In addition, each partition costs every
    batch one more commit. The number of partitions never shrinks.

    Args:
        slots: the slots that the job runs on.
        stable: seconds for which this number of slots has not changed.
        state: the number of state partitions of each stateful query, by name.
        after: seconds after which the number of slots counts as permanent.
        most: the maximum number of partitions.
        failed: numbers of partitions at which repartitioning failed before.
    """
    partitions = min(slots, most)
    fewer = {name: number for name, number in sorted(state.items()) if number < partitions}
    if not fewer or stable < after or partitions in failed:
        return None
    has = ", ".join(f"{name} has {number} partitions of state" for name, number in fewer.items())
    return Due(partitions, f"{has}, and there have been {slots} slots for {format_seconds(after)}")


class Checkpoint:
    """The checkpoint of a stopped query, in a Hadoop file system; needs Spark 4.2 or later, without Spark Connect."""

    def __init__(self, spark: Any, directory: str) -> None:  # noqa: ANN401 - a SparkSession
        self._manager, self._directory = spark._streamingCheckpointManager, directory.rstrip("/")  # noqa: SLF001 - the only way
        # PySpark has no Python API for Hadoop's file systems.
        self._path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._files = self._path(directory).getFileSystem(conf)

    def unfinished(self) -> int | None:
        """The number of partitions that an unfinished repartitioning aims at; None: no repartitioning is unfinished."""
        last = self._last("offsets")
        if last < 1 or last == self._last("commits"):
            return None
        before, after = (self._partitions(batch) for batch in (last - 1, last))
        return None if before == after else after

    def interrupted(self) -> bool:
        """Whether the query's last batch, not counting a repartitioning, was interrupted and has to run again."""
        return self._last("offsets") != self._last("commits") and self.unfinished() is None

    def repartition(self, partitions: int, idle: Callable[[], bool]) -> None:
        """Rewrite the state into `partitions` partitions, or finish an unfinished repartitioning to that number.

        `idle` tells whether no task runs.

        Raises:
            RepartitionError: the repartitioning failed. Either the checkpoint is as it was before, or Spark refuses to
                start the query until the repartitioning is finished.
        """
        try:
            self._manager.repartition(self._directory, partitions)
        except Exception as error:
            java = getattr(error, "java_exception", None)
            why = str((java.getMessage() or java.toString()) if java else error)
            deadline = time.monotonic() + TASKS_END
            while not idle():  # A task that is being cancelled may still write a file.
                if time.monotonic() >= deadline:
                    raise RepartitionError(f"{why}; its tasks still run") from error
                time.sleep(0.1)
            self.undo()
            raise RepartitionError(why) from error

    def undo(self) -> None:
        """Remove the files that an unfinished repartitioning has written.

        The query's next batch has the same number as the repartitioning, and would use its state files as its own.
        """
        if self.unfinished() is None:
            return
        batch = self._last("offsets")
        found = self._files.listFiles(self._place("state"), True)
        while found.hasNext():
            path = found.next().getPath()
            if _is_of(path.toString(), batch):
                self._delete(path)
        self._delete(self._place("offsets", batch))  # Last: while this file exists, the repartitioning is unfinished.

    def _delete(self, path: Any) -> None:  # noqa: ANN401 - a path of Hadoop
        if not self._files.delete(path, False) and self._files.exists(path):
            raise RepartitionError(f"{path.toString()} could not be removed")

    def _place(self, *names: object) -> Any:  # noqa: ANN401 - a path of Hadoop
        return self._path("/".join((self._directory, *map(str, names))))

    def _last(self, log: str) -> int:
        """The number of the last batch in one of the checkpoint's logs; -1: the log is empty."""
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
    """Whether a batch wrote this state file. The state version that a batch writes is the batch's number plus one."""
    _, folder, name = path.rsplit("/", 2)
    return (folder == "v2" and name == str(batch)) or (
        re.fullmatch(rf"{batch + 1}(_[^.]*)?\.(zip|changelog|delta|snapshot)", name) is not None
    )
