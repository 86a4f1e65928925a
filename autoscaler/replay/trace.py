"""Traces: what was observed and decided, one record a line, as in a daemon's history and from `simulate --record`.

A file that a daemon is still writing may end in the middle of a line, and a disk may have spoiled another: what cannot
be read is told, and the rest is read all the same.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from autoscaler.ports import Record
from autoscaler.records import load_record

SUFFIX = ".jsonl"
"""How the name of a trace ends, in a directory of them..."""

PACKED = f"{SUFFIX}.gz"
"""... and that of one that was compressed afterwards."""

_NAME = "%Y-%m-%dT%H"


class TraceError(ValueError):
    """A trace cannot be read; the message says where and what was expected."""


def name(at: datetime) -> str:
    """The file of the hour (UTC) that a decision belongs to."""
    return f"{at.astimezone(UTC):{_NAME}}{SUFFIX}"


def files(path: Path) -> list[Path]:
    """The files of a trace, oldest first: one, or all in a directory whose names end with `.jsonl` or `.jsonl.gz`.

    Raises:
        TraceError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise TraceError(f"{path}: there is no such file or directory")
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    packed = [file for file in path.glob(f"*{PACKED}") if file.with_suffix("") not in found]
    if not found and not packed:
        raise TraceError(
            f"{path}: has no file *{SUFFIX}; the history of a daemon is in history/ of its daemon.directory"
        )
    return sorted([*found, *packed])


def _refuse(problem: str) -> NoReturn:
    raise TraceError(problem)


def read(path: Path, complain: Callable[[str], object] = _refuse) -> Iterator[Record]:
    """The records of a file, or of all in a directory, in their order.

    Args:
        path: the file or directory.
        complain: is told of each line that is no record, as `file:line: message`; reading goes on with the next one.
            Left out, the first one is an error.

    Raises:
        TraceError: nothing is there, or a file cannot be read.
    """
    for file in files(path):
        try:
            with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    record = _record(line, f"{file}:{number}", complain)
                    if record is not None:
                        yield record
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _record(line: bytes, where: str, complain: Callable[[str], object]) -> Record | None:
    if not line.strip():
        return None
    try:
        return load_record(line)
    except ValueError as error:
        torn = not line.endswith(b"\n")
        complain(f"{where}: is cut off; its writer may still be at it" if torn else f"{where}: {error}")
        return None
