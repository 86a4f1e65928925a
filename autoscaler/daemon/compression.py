"""Hours of the history that are over, compressed: a file under its last name is whole and never changes again.

Whoever collects history files reads such a file once (Spark's file source does), so one name never stands for two
contents: what is written about an hour after it was packed (the clock was set back) goes to files of its own.
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

OURS = re.compile(rf"(?P<hour>\d{{4}}-\d\d-\d\dT\d\d)(?:\.(?P<number>\d+))?{re.escape(SUFFIX)}(?P<packed>\.gz)?")
"""Names of history files: `2026-01-31T17.jsonl`, `2026-01-31T17.jsonl.gz`, and `2026-01-31T17.1.jsonl` for more."""

_PART = ".part"
_PIECE = 1 << 20
_LEVEL = 6


def names(directory: Path, hour: str) -> Iterable[Path]:
    """The names that the lines of an hour may have, one after the other; without end."""
    yield directory / f"{hour}{SUFFIX}"
    for number in itertools.count(1):
        yield directory / f"{hour}.{number}{SUFFIX}"


def packed_name(path: Path) -> Path:
    """What a file is called when it is packed."""
    return path.with_name(f"{path.name}.gz")


class Packer:
    """Packs files in a thread of its own, so that nobody waits for it.

    Attributes:
        failure: why the last file could not be packed; empty when it could. The plain file stays then.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-packing")
        self._given: set[Path] = set()
        self._ending = threading.Event()

    def has(self, path: Path) -> bool:
        """Whether a plain file was given to it and is not done with: no line may be added to it."""
        return path in self._given

    def give(self, path: Path) -> None:
        """Have a file packed that is complete. It may be told again."""
        if path not in self._given:
            self._given.add(path)
            self._thread.submit(self._pack, path)

    def close(self) -> None:
        """End it, and leave what is not packed yet as it is."""
        self._ending.set()
        self._thread.shutdown(cancel_futures=True)

    def _pack(self, path: Path) -> None:
        try:
            pack(path, self._ending)
        except FileNotFoundError:
            pass  # too old to be kept, and removed
        except OSError as error:
            if not self.failure:
                log.warning(
                    "history cannot be packed, and stays as it is", extra={"path": str(path), "error": error.strerror}
                )
            self.failure = error.strerror or str(error)
        else:
            if self.failure:
                log.info("history can be packed again", extra={"path": str(path)})
            self.failure = ""
        finally:
            self._given.discard(path)


def pack(path: Path, ending: threading.Event) -> None:
    """Compress a file that is complete, and remove it. Until its packed form is safe on the disk, the plain one stays.

    Args:
        path: the file.
        ending: when this is set, it is given up.

    Raises:
        OSError: it cannot be read, or its packed form not be written; then nothing has changed.
    """
    packed = packed_name(path)
    if packed.exists() and not same_content(path, packed):
        packed = packed_name(_another(path))
    # If it exists now, a kill came before the plain one was removed.
    if packed.exists() or _write(path, packed, ending):
        path.unlink(missing_ok=True)


def _another(path: Path) -> Path:
    """A name for the lines of the same hour that is not taken."""
    hour = path.name.split(".")[0]
    return next(name for name in names(path.parent, hour) if not name.exists() and not packed_name(name).exists())


def _write(path: Path, packed: Path, ending: threading.Event) -> bool:
    # A dot in front: readers of the directory, Spark's too, do not see it. Its ending is nobody's either.
    part = packed.with_name(f".{packed.name}{_PART}")
    try:
        with path.open("rb") as plain, open(part, "wb", opener=_private) as file:
            with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed:
                while piece := plain.read(_PIECE):
                    if ending.is_set():
                        return False
                    compressed.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.rename(packed)
        _sync(packed.parent)
    finally:
        part.unlink(missing_ok=True)
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: Path) -> None:
    """Have the names in a directory on the disk before one of them is taken away."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def forget_parts(directory: Path) -> None:
    """Remove what a kill has left half packed. Raises OSError."""
    for part in directory.glob(f".*{COMPRESSED_SUFFIX}{_PART}"):
        part.unlink(missing_ok=True)
