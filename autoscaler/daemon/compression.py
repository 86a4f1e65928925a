"""Compression of past hours of the history: a file under its final name is complete and never changes.

Collectors of history files, such as Spark's file source, read each file name once, so its content must never change.
If lines of an hour arrive after its compression (because the clock was set back), they go to additional files.
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
"""Names of history files: `2026-01-31T17.jsonl`, `2026-01-31T17.jsonl.gz`; additional ones: `2026-01-31T17.1.jsonl`."""

_PART = ".part"
_PIECE = 1 << 20
_LEVEL = 6


def names(directory: Path, hour: str) -> Iterable[Path]:
    """The possible names of files of an hour, in order; an infinite iterator."""
    yield directory / f"{hour}{SUFFIX}"
    for number in itertools.count(1):
        yield directory / f"{hour}.{number}{SUFFIX}"


def compressed_path(path: Path) -> Path:
    """The path of the compressed file."""
    return path.with_name(f"{path.name}.gz")


class Compressor:
    """Compresses files in its own thread.

    Attributes:
        failure: why the last file could not be compressed, or None. After a failure the plain file is kept.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-compression")
        self._pending: set[Path] = set()
        self._ending = threading.Event()

    def has(self, path: Path) -> bool:
        """Whether a plain file is queued or being compressed, so that no line may be added to it."""
        return path in self._pending

    def add(self, path: Path) -> None:
        """Queue a complete file for compression, unless it is queued already."""
        if path not in self._pending:
            self._pending.add(path)
            self._thread.submit(self._compress, path)

    def close(self) -> None:
        """Stop compressing; files that are not compressed yet stay plain."""
        self._ending.set()
        self._thread.shutdown(cancel_futures=True)

    def _compress(self, path: Path) -> None:
        try:
            compress(path, self._ending)
        except FileNotFoundError:
            pass  # removed, because it was too old
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
    """Compress a complete file, and remove it once the compressed file is safely on the disk.

    Args:
        path: the file.
        ending: once this is set, the compression is abandoned.

    Raises:
        OSError: a file cannot be read or written; nothing has changed.
    """
    compressed = compressed_path(path)
    if compressed.exists() and not same_content(path, compressed):
        compressed = compressed_path(_unused_name(path))
    # If `compressed` exists now, the process was killed before it removed the plain file.
    if compressed.exists() or _write(path, compressed, ending):
        path.unlink(missing_ok=True)


def _unused_name(path: Path) -> Path:
    """An unused name for lines of the same hour."""
    hour = path.name.split(".")[0]
    return next(name for name in names(path.parent, hour) if not name.exists() and not compressed_path(name).exists())


def _write(path: Path, compressed: Path, ending: threading.Event) -> bool:
    # The leading dot hides the file: readers of the directory, Spark included, ignore it.
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
    """Flush the entries of a directory to the disk."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_partial(directory: Path) -> None:
    """Remove partial files that a killed process left behind. Raises OSError."""
    for part in directory.glob(f".*{COMPRESSED_SUFFIX}{_PART}"):
        part.unlink(missing_ok=True)
