"""Compression of past hours of the history: a file under its final name is complete and never changes.

Collectors of history files, such as Spark's file source, read a file once, so the content of a name never changes: what
is written about an hour after it was compressed (the clock was set back) goes to files of its own.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autoscaler.trace.format import COMPRESSED_SUFFIX, SUFFIX, same_content

log = logging.getLogger("autoscaler.daemon.history")

HISTORY_FILE = re.compile(
    rf"(?P<hour>\d{{4}}-\d\d-\d\dT\d\d)(?:\.(?P<number>\d+))?{re.escape(SUFFIX)}(?P<packed>\.gz)?"
)
"""Names of history files: `2026-01-31T17.jsonl`, `2026-01-31T17.jsonl.gz`, and `2026-01-31T17.1.jsonl` for more."""

_PART = ".part"
_PIECE = 1 << 20
_LEVEL = 6


def names(directory: Path, hour: str) -> Iterable[Path]:
    """The names of files of an hour, in order, without end."""
    yield directory / f"{hour}{SUFFIX}"
    for number in itertools.count(1):
        yield directory / f"{hour}.{number}{SUFFIX}"


def compressed_path(path: Path) -> Path:
    """The path of the compressed file."""
    return path.with_name(f"{path.name}.gz")


class Compressor:
    """Compresses files in a thread of its own.

    Attributes:
        failure: why the last file could not be compressed, or None. The plain file is then kept.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-compression")
        self._pending: set[Path] = set()
        self._ending = threading.Event()

    def has(self, path: Path) -> bool:
        """Whether a plain file waits or is being compressed: no line may be added to it."""
        return path in self._pending

    def add(self, path: Path) -> None:
        """Compress a complete file, unless it waits already."""
        if path not in self._pending:
            self._pending.add(path)
            self._thread.submit(self._compress, path)

    def close(self) -> None:
        """End it; files that are not compressed yet stay as they are."""
        self._ending.set()
        self._thread.shutdown(cancel_futures=True)

    def _compress(self, path: Path) -> None:
        try:
            compress(path, self._ending)
        except FileNotFoundError:
            pass  # removed, as it was too old
        except OSError as error:
            if self.failure is None:
                log.warning(
                    "cannot compress history: the plain file is kept",
                    extra={"path": str(path), "error": error.strerror},
                )
            self.failure = error.strerror or str(error)
        else:
            if self.failure is not None:
                log.info("history is compressed again", extra={"path": str(path)})
            self.failure = None
        finally:
            self._pending.discard(path)


def compress(path: Path, ending: threading.Event) -> None:
    """Compress a complete file, and remove it once the compressed one is safe on the disk.

    Args:
        path: the file.
        ending: when this is set, it is given up.

    Raises:
        OSError: a file cannot be read or written; then nothing has changed.
    """
    compressed = compressed_path(path)
    if compressed.exists() and not same_content(path, compressed):
        compressed = compressed_path(_unused_name(path))
    # If it exists now, the process was killed before the plain one was removed.
    if compressed.exists() or _write(path, compressed, ending):
        path.unlink(missing_ok=True)


def _unused_name(path: Path) -> Path:
    """An unused name for lines of the same hour."""
    hour = path.name.split(".")[0]
    return next(name for name in names(path.parent, hour) if not name.exists() and not compressed_path(name).exists())


def _write(path: Path, compressed: Path, ending: threading.Event) -> bool:
    # Hidden by the dot: readers of the directory, also Spark, ignore it.
    part = compressed.with_name(f".{compressed.name}{_PART}")
    try:
        with path.open("rb") as plain, open(part, "wb", opener=_private) as file:
            with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as archive:
                while piece := plain.read(_PIECE):
                    if ending.is_set():
                        return False
                    archive.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.rename(compressed)
        _sync(compressed.parent)
    finally:
        part.unlink(missing_ok=True)
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: Path) -> None:
    """Write the names in a directory to the disk."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_partial(directory: Path) -> None:
    """Remove partial files that a kill has left. Raises OSError."""
    for part in directory.glob(f".*{COMPRESSED_SUFFIX}{_PART}"):
        part.unlink(missing_ok=True)
