"""Traces: observations and decisions, one record a line, as in a daemon's history and from `simulate --record`.

A file that a daemon is still writing may end in the middle of a line. A line that cannot be read is reported, and the
reading continues.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from autoscaler.ports import Record
from autoscaler.trace.codec import check_times, load_record

SUFFIX = ".jsonl"
"""The suffix of a trace file in a directory..."""

COMPRESSED_SUFFIX = f"{SUFFIX}.gz"
"""... and of a trace file that was compressed afterwards."""

_NAME = "%Y-%m-%dT%H"
_PIECE = 1 << 20


class TraceError(ValueError):
    """A trace cannot be read; the message has the place and the expected content."""


def file_name(at: datetime) -> str:
    """The file of the hour (UTC) that a decision belongs to."""
    return f"{at.astimezone(UTC):{_NAME}}{SUFFIX}"


def files(path: Path) -> list[Path]:
    """The files of a trace, oldest first: one file, or all files `*.jsonl` and `*.jsonl.gz` of a directory.

    A file that exists both compressed and plain with the same content is used once.

    Raises:
        TraceError: there is no file.
    """
    if not path.is_dir():
        if not path.exists():
            raise TraceError(f"{path}: there is no such file or directory")
        return [path]
    plain = set(path.glob(f"*{SUFFIX}"))
    packed = [file for file in path.glob(f"*{COMPRESSED_SUFFIX}") if not _is_copy(file, plain)]
    if not plain and not packed:
        raise TraceError(
            f"{path}: has no file *{SUFFIX}; the history of a daemon is in history/ of its daemon.directory"
        )
    return sorted([*plain, *packed], key=_place)


def _is_copy(packed: Path, plain: set[Path]) -> bool:
    """Whether the plain file with the same content exists too, as it does while a daemon compresses it."""
    file = packed.with_suffix("")
    try:
        return file in plain and same_content(file, packed)
    except FileNotFoundError:  # the plain file is gone now
        plain.discard(file)
        return False
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror}") from error


def _place(file: Path) -> tuple[str, int, str]:
    """The sort key of a file: its hour, then its number within the hour."""
    stem = file.name.removesuffix(".gz").removesuffix(SUFFIX)
    further = re.fullmatch(r"(.*)\.(\d+)", stem)
    return (further[1], int(further[2]), file.name) if further else (stem, 0, file.name)


def same_content(path: Path, packed: Path) -> bool:
    """Whether a compressed file has the content of a plain one. Raises OSError if the plain one cannot be read."""
    with path.open("rb") as plain:
        try:
            with gzip.open(packed) as unpacked:
                while piece := plain.read(_PIECE):
                    if unpacked.read(len(piece)) != piece:
                        return False
                return not unpacked.read(1)
        except (OSError, EOFError, zlib.error):
            return False


def _refuse(problem: str) -> NoReturn:
    raise TraceError(problem)


def read(path: Path, complain: Callable[[str], object] = _refuse) -> Iterator[Record]:
    """The records of a file, or of all files of a directory, in their order.

    Args:
        path: the file or directory.
        complain: receives `file:line: message` for each line that is not a record; reading continues with the next.
            By default, the first such line raises TraceError.

    Raises:
        TraceError: there is no file, or a file cannot be read.
    """
    for file in files(path):
        yield from _read_file(file, complain)


def read_back(
    path: Path, cluster: str, until: datetime | None = None, complain: Callable[[str], object] = _refuse
) -> Iterator[Record]:
    """The records of one cluster in a daemon's history until a time, the newest first. `complain` is as in `read`.

    The directory has one or more files for each hour. Only the files that are needed are read.

    Raises:
        TraceError: there is no file, or a file cannot be read.
    """
    last = None if until is None else file_name(until).removesuffix(SUFFIX)
    # Most lines are about other clusters: skip them before parsing, which is slow.
    name = f'"{cluster}"'.encode()
    for hour, of_hour in groupby(reversed(files(path)), key=lambda file: _place(file)[0]):
        if last is not None and hour > last:
            continue
        found = [
            record
            for file in of_hour
            for record in _read_file(file, complain, name)
            if record.decision.cluster == cluster and (until is None or record.decision.at <= until)
        ]
        yield from sorted(found, key=lambda record: record.decision.at, reverse=True)


def _read_file(file: Path, complain: Callable[[str], object], containing: bytes = b"") -> Iterator[Record]:
    """The records of a file whose lines contain the given bytes."""
    try:
        with _opened(file) as lines:
            for number, line in enumerate(lines, 1):
                record = _record(line, f"{file}:{number}", complain) if containing in line else None
                if record is not None:
                    yield record
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _opened(file: Path) -> BinaryIO:
    if not file.name.endswith(".gz"):
        try:
            return file.open("rb")
        except FileNotFoundError:
            # A daemon has compressed the file since the directory was listed.
            packed = file.with_name(f"{file.name}.gz")
            if not file.name.endswith(SUFFIX) or not packed.exists():
                raise
            file = packed
    return cast("BinaryIO", gzip.open(file))


def _record(line: bytes, where: str, complain: Callable[[str], object]) -> Record | None:
    if not line.strip():
        return None
    try:
        record = load_record(line)
        check_times(_times(record))
    except ValueError as error:
        torn = not line.endswith(b"\n")
        complain(f"{where}: is cut off; a daemon may still be writing it" if torn else f"{where}: {error}")
        return None
    return record


def _times(record: Record) -> list[datetime | None]:
    seen = record.observation
    times: list[datetime | None] = [seen.at, record.decision.at, *(reading.at for reading in seen.metrics.values())]
    return times if seen.engine is None else [*times, seen.engine.running_since, seen.engine.last_checkpoint]
