"""Save a job's timeline and requested bounds next to its checkpoint, for the driver that is started next.

The state is a small JSON file in the checkpoint directory of the job's first query. It is written through Hadoop's file
systems, so it is stored where the checkpoint is, and is as durable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from autoscaler.injob.reactive.snapshot import Failure, State, Step
from autoscaler.schedulers.flink import MAX_PARALLELISM
from autoscaler.schedulers.slots import Bounds

FORMAT = 1
NAME = "_reactive_job.json"

MAX_BYTES = 8 << 20
"""A larger file was not written by this module."""


class KeptError(Exception):
    """A state file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The saved state of a job.

    Attributes:
        declared: the bounds that the job's options declare.
        bounds: the bounds that were set over the REST API instead, by query id.
        restarts: the number of restarts after failures and for rescales.
        failures: oldest first.
        timeline: oldest first.
    """

    declared: Bounds
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    restarts: int = 0
    failures: tuple[Failure, ...] = ()
    timeline: tuple[Step, ...] = ()


def encode(kept: Kept) -> bytes:
    """Encode the state as the content of a file."""
    return json.dumps(
        {
            "format": FORMAT,
            "declared": [kept.declared.lower, kept.declared.upper],
            "bounds": {query: [one.lower, one.upper] for query, one in kept.bounds.items()},
            "restarts": kept.restarts,
            "failures": [asdict(one) for one in kept.failures],
            "timeline": [asdict(one) for one in kept.timeline],
        },
        ensure_ascii=False,
    ).encode()


def decode(text: bytes) -> Kept:
    """Decode the content of a file. Raises KeptError if `encode` cannot have written it."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        version = found["format"]
        if version != FORMAT:
            raise KeptError(f"its format is {version!r}, and this version of autoscaler reads {FORMAT}")
        return Kept(
            declared=_bounds(found["declared"]),
            bounds={str(query): _bounds(one) for query, one in found["bounds"].items()},
            restarts=_count(found["restarts"]),
            failures=tuple(_failure(one) for one in found["failures"]),
            timeline=tuple(_step(one) for one in found["timeline"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise KeptError(f"it is damaged ({type(error).__name__}: {error})") from None


class KeptFile:
    """The state file in a directory of a Hadoop file system, with the session's Hadoop configuration."""

    def __init__(self, spark: Any, directory: str) -> None:  # noqa: ANN401 - a SparkSession
        # PySpark has no Python API for Hadoop's file systems.
        path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
        self.name = f"{directory.rstrip('/')}/{NAME}"
        self._path, self._next, self._bad = (path(self.name + suffix) for suffix in ("", ".next", ".unreadable"))
        self._found = self._path
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._files = self._path.getFileSystem(conf)

    def read(self) -> Kept | None:
        """Read the saved state; None: there is no file. Raises KeptError, and what the file system raises."""
        found = next((path for path in (self._path, self._next) if self._files.exists(path)), None)
        if found is None:
            return None
        self._found = found
        size = self._files.getFileStatus(found).getLen()
        if size > MAX_BYTES:
            raise KeptError(f"it has {size} bytes, expected at most {MAX_BYTES}")
        stream = self._files.open(found)
        try:
            return decode(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def quarantine(self) -> None:
        """Rename the file that was read and cannot be used, so that a person can examine it."""
        self._files.delete(self._bad, False)
        if not self._files.rename(self._found, self._bad):
            raise OSError(f"{self.name} could not be renamed")

    def write(self, kept: Kept) -> None:
        """Replace the saved state. Raises what the file system raises.

        Hadoop's `rename` does not replace an existing file on every file system, so the old file is deleted first.
        Between the two steps `read` reads the new file under its temporary name.
        """
        stream = self._files.create(self._next, True)
        try:
            stream.write(encode(kept))
        finally:
            stream.close()
        self._files.delete(self._path, False)
        if not self._files.rename(self._next, self._path):
            raise OSError("it could not be renamed")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _time(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r:.40} is no time")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _bounds(value: Any) -> Bounds:  # noqa: ANN401 - whatever was read
    lower, upper = map(_count, value)
    if not 1 <= lower <= upper <= MAX_PARALLELISM:
        raise ValueError(f"{value!r:.40} are no bounds")
    return Bounds(lower, upper)


def _failure(one: Mapping[str, Any]) -> Failure:
    query = one["query"]
    return Failure(
        at=_time(one["at"]),
        query=None if query is None else _text(query),
        error=_text(one["error"]),
        text=_text(one["text"]),
    )


def _step(one: Mapping[str, Any]) -> Step:
    return Step(
        at=_time(one["at"]),
        state=State(one["state"]),
        why=_text(one["why"]),
        slots=_count(one["slots"]),
        before=_count(one["before"]),
        after=_count(one["after"]),
        took=_time(one["took"]),
    )
