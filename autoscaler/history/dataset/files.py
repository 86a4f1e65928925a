"""The files of a dataset in a directory of this machine, and the interface that any file system implements."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from autoscaler.ports import AutoscalerError

# ruff: noqa: D102 - `Files` documents the methods

_MAGIC = b"PAR1"
_STARTED = secrets.token_hex(4)
"""Identifies this process. After the restart of a container, the next process has the same process id and host name."""


class DatasetError(AutoscalerError):
    """A dataset cannot be read or written; the message says which file and what to do."""


class BusyError(DatasetError):
    """Another process is writing the dataset."""


class Files(Protocol):
    """A directory in a file system. Names are relative to it, with `/`."""

    def url(self, name: str = "") -> str:
        """The URL under which Spark reads and writes a file, or the directory itself."""

    def names(self, directory: str) -> list[str]:
        """The sorted names in a directory; empty if there is no such directory."""

    def read(self, name: str) -> str | None:
        """The content of a file; None: there is no such file."""

    def write(self, name: str, text: str) -> None:
        """Create or replace a file atomically."""

    def move(self, name: str, to: str) -> None:
        """Move a file, unless it has already been moved."""

    def sync(self, names: Collection[str]) -> None:
        """Flush files to disk."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""

    def damage(self, name: str) -> str | None:
        """Why a file cannot be a Parquet file; None: it may be one, or the check would need a request for each file."""

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the write lock. Raises BusyError."""


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, path: Path) -> None:
        self._root = path.absolute()

    def url(self, name: str = "") -> str:
        # Not as_uri(): Spark does not decode %XX.
        return f"file://{self._root / name}"

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        with written.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
        _fsync(path.parent)

    def move(self, name: str, to: str) -> None:
        source, place = self._root / name, self._root / to
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            source.replace(place)

    def sync(self, names: Collection[str]) -> None:
        for path in [self._root / name for name in names]:
            _fsync(path)
        for directory in {(self._root / name).parent for name in names}:
            _fsync(directory)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            return
        path.unlink(missing_ok=True)
        # Hadoop's checksum file.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def damage(self, name: str) -> str | None:
        try:
            with (self._root / name).open("rb") as file:
                begin = file.read(len(_MAGIC))
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(_MAGIC)))
                end = file.read()
        except OSError as error:
            return error.strerror or str(error)
        if begin == end == _MAGIC and size > 2 * len(_MAGIC):
            return None
        # Spark reads an empty file as zero rows, so a day would be missing without an error.
        return "it is empty" if size == 0 else "it is cut off" if begin == _MAGIC else "it is not a Parquet file"

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        # The kernel releases the lock when the process ends.
        with (self._root / name).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise BusyError(f"{self._root}: is being written by {holder}; wait until it is done") from error
            file.truncate(0)
            file.write(lock_holder())
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


def _fsync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock_holder() -> str:
    """The content of a lock file of this process."""
    return f"process {os.getpid()} on {socket.gethostname()}, {_STARTED}\n"


def is_dead(holder: str) -> bool:
    """Whether the holder of a lock was a process of this machine that has ended."""
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
