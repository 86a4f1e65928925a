"""Traces: what was observed and decided, one record a line, as in a daemon's history and from `simulate --record`.

A file that a daemon is still writing may end in the middle of a line, and a disk may have spoiled another: what cannot
be read is told, and the rest is read all the same.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from autoscaler.ports import Record
from autoscaler.trace.codec import load_record

SUFFIX = ".jsonl"
"""How the name of a trace ends, in a directory of them..."""

COMPRESSED_SUFFIX = f"{SUFFIX}.gz"
"""... and that of one that was compressed afterwards."""

_NAME = "%Y-%m-%dT%H"
_PIECE = 1 << 20


class TraceError(ValueError):
    """A trace cannot be read; the message says where and what was expected."""


def file_name(at: datetime) -> str:
    """The file of the hour (UTC) that a decision belongs to."""
    return f"{at.astimezone(UTC):{_NAME}}{SUFFIX}"


def files(path: Path) -> list[Path]:
    """The files of a trace, oldest first: one, or all in a directory whose names end with `.jsonl` or `.jsonl.gz`.

    What is there packed and plain with the same content is taken once.

    Raises:
        TraceError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise TraceError(f"{path}: there is no such file or directory")
        return [path]
    plain = set(path.glob(f"*{SUFFIX}"))
    packed = [file for file in path.glob(f"*{COMPRESSED_SUFFIX}") if not _twice(file, plain)]
    if not plain and not packed:
        raise TraceError(
            f"{path}: has no file *{SUFFIX}; the history of a daemon is in history/ of its daemon.directory"
        )
    return sorted([*plain, *packed], key=_place)


def _twice(packed: Path, plain: set[Path]) -> bool:
    """Whether a packed file is there unpacked as well, as for a moment while a daemon packs it."""
    file = packed.with_suffix("")
    try:
        return file in plain and same_content(file, packed)
    except FileNotFoundError:  # the moment is over
        plain.discard(file)
        return False
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror}") from error


def _place(file: Path) -> tuple[str, int, str]:
    """Where a file is in the order: by its hour, then the number of a further file of that hour."""
    stem = file.name.removesuffix(".gz").removesuffix(SUFFIX)
    further = re.fullmatch(r"(.*)\.(\d+)", stem)
    return (further[1], int(further[2]), file.name) if further else (stem, 0, file.name)


def same_content(path: Path, packed: Path) -> bool:
    """Whether a packed file holds exactly what a plain one does. Raises OSError when the plain one cannot be read."""
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
            with _opened(file) as lines:
                for number, line in enumerate(lines, 1):
                    record = _record(line, f"{file}:{number}", complain)
                    if record is not None:
                        yield record
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _opened(file: Path) -> BinaryIO:
    if not file.name.endswith(".gz"):
        try:
            return file.open("rb")
        except FileNotFoundError:
            # A daemon has packed it since the directory was looked at.
            packed = file.with_name(f"{file.name}.gz")
            if not file.name.endswith(SUFFIX) or not packed.exists():
                raise
            file = packed
    return cast("BinaryIO", gzip.open(file))


def _record(line: bytes, where: str, complain: Callable[[str], object]) -> Record | None:
    if not line.strip():
        return None
    try:
        return load_record(line)
    except ValueError as error:
        torn = not line.endswith(b"\n")
        complain(f"{where}: is cut off; its writer may still be at it" if torn else f"{where}: {error}")
        return None
