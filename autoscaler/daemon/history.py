"""The decision log as JSON lines, a file for each hour (UTC): the trace format that `replay` reads.

`history/2026-01-31T17.jsonl` has one `Record` per line, in the order of the decisions. A line is complete or absent:
an incomplete line, after a kill or on a full disk, is removed before the next one is written. A past hour is compressed
to `history/2026-01-31T17.jsonl.gz`. Each cluster may write `MAX_HOUR_BYTES` an hour; its further decisions are omitted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoscaler.daemon.compression import HISTORY_FILE, Compressor, compressed_path, names, remove_partial
from autoscaler.daemon.write_batcher import WriteBatcher
from autoscaler.ports import Record, StoreError
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import SUFFIX

log = logging.getLogger("autoscaler.daemon.history")

_NAME = "%Y-%m-%dT%H"

GRACE = timedelta(minutes=5)
"""Time from the end of an hour until its compression: records of its last observations may arrive later."""

MAX_HOUR_BYTES = 64 * 2**20
"""Uncompressed bytes that one cluster may write in an hour: 18 kB for a decision each second; 1 kB is usual."""

WRITE_TIMEOUT = 5.0
"""Seconds that a write may take before decisions continue without it; also the limit for closing the history."""


@dataclass(frozen=True, slots=True)
class _Line:
    at: datetime
    hour: str
    text: bytes


@dataclass(slots=True)
class _Written:
    hour: str
    size: int = 0
    full: bool = False


class History:
    """The decision sink of the daemon.

    Attributes:
        keep: how long the files of an hour are kept, at least. The files of as many hours always stay.
        compress: whether past hours are compressed.
        failure: why the last lines could not be written, or None.
    """

    def __init__(self, directory: Path, keep: timedelta, *, compress: bool = True) -> None:
        self.directory = directory
        self.keep = keep
        self.compress = compress
        self.failure: str | None = None
        self._compressor = Compressor()
        self._written: dict[str, _Written] = {}
        self._near: tuple[str, ...] = ()
        self._hour = ""
        self._file = -1
        self._path = directory
        self._begun: float | None = None  # when the write under way began, by the monotonic clock
        self._batcher: WriteBatcher[_Line] = WriteBatcher("history", self._append)

    async def start(self) -> None:
        """Create the directory and remove incomplete lines. Raises StoreError."""
        try:
            await self._batcher.call(self._prepare)
        except OSError as error:
            raise StoreError(f"{self.directory} cannot be used for history: {error.strerror}") from error

    async def write(self, record: Record) -> None:
        """Write a record, or omit it if its cluster has written `MAX_HOUR_BYTES` in this hour.

        Raises:
            StoreError: the record cannot be written, not even in part. A disk that hangs may still write it later.
        """
        at = record.decision.at.astimezone(UTC)
        line = _Line(at, at.strftime(_NAME), dump_record(record) + b"\n")
        if self._is_full(record.decision.cluster, line):
            return
        try:
            await self._put(line)
        except OSError as error:
            why = error.strerror or f"no answer within {WRITE_TIMEOUT:g} s"  # strerror is None for our own time-out
            message = f"{self.directory} cannot be written: {why}"
            if self.failure is None:
                log.error("cannot write history", extra={"error": message})  # noqa: TRY400 - the message is complete
            self.failure = message
            raise StoreError(message) from error
        if self.failure is not None:
            log.info("history is written again", extra={"directory": str(self.directory)})
            self.failure = None

    async def _put(self, line: _Line) -> None:
        """Write a line. Raises OSError; its subclass TimeoutError if the disk hangs."""
        # Lines that wait for a disk that hangs must not fill the memory.
        if self._begun is not None and time.monotonic() - self._begun > WRITE_TIMEOUT:
            raise TimeoutError
        async with asyncio.timeout(WRITE_TIMEOUT):
            await self._batcher.put(line)

    def _is_full(self, cluster: str, line: _Line) -> bool:
        written = self._written.get(cluster)
        if written is None or written.hour != line.hour:
            written = self._written[cluster] = _Written(line.hour)
        written.size += len(line.text)
        if written.size > MAX_HOUR_BYTES and not written.full:
            written.full = True
            log.warning(
                "history of this hour is full: decisions are not recorded until the next hour",
                extra={
                    "cluster": cluster,
                    "limit": f"{MAX_HOUR_BYTES / 2**20:.0f} MiB",
                    "advice": "fewer values per metric, or a longer interval",
                },
            )
        return written.full

    async def close(self) -> None:
        """Write pending lines and close the file. A compression in progress is abandoned, and so is a hanging disk."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._batcher.close(self._close_file)
                await asyncio.to_thread(self._compressor.close)
        except TimeoutError:
            log.warning("history is not closed: its disk hangs", extra={"directory": str(self.directory)})

    def _prepare(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_partial(self.directory)
        for path in self.directory.glob(f"*{SUFFIX}"):
            lost = remove_incomplete_line(path)
            if lost:
                log.warning("incomplete line removed", extra={"path": str(path), "bytes": lost})

    def _append(self, lines: Sequence[_Line]) -> None:
        self._begun = time.monotonic()
        try:
            start = 0
            while start < len(lines):
                end = start + 1
                while end < len(lines) and lines[end].hour == lines[start].hour:
                    end += 1
                self._open_file(lines[start].hour)
                self._write(b"".join([line.text for line in lines[start:end]]))
                start = end
            if self.compress:
                self._compress(lines[-1].at)
        finally:
            self._begun = None

    def _write(self, text: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - a short write means a full disk
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _open_file(self, hour: str) -> None:
        if hour == self._hour and self._is_there():
            return
        self._close_file()
        # The directory may have been deleted meanwhile.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path = next(name for name in names(self.directory, hour) if self._may_grow(name))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._hour = hour
        self._remove_old(hour)

    def _is_there(self) -> bool:
        """Whether the open file still has its name: lines written into a deleted file are lost."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def _may_grow(self, path: Path) -> bool:
        # Check in this order: the compressed file exists before the compressor forgets the plain one.
        return not self._compressor.has(path) and not compressed_path(path).exists()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._hour = -1, ""

    def _compress(self, now: datetime) -> None:
        """Compress all hours, even later ones (clock set back), but not those of now and `GRACE` before and after."""
        # Decisions of different clusters arrive in any order: around a full hour, lines of two hours alternate.
        near = tuple((now + change).strftime(_NAME) for change in (-GRACE, timedelta(0), GRACE))
        if near == self._near:
            return
        self._near = near
        for path in self.directory.glob(f"*{SUFFIX}"):
            match = HISTORY_FILE.fullmatch(path.name)
            if match is not None and match["hour"] not in near and path.is_file():
                self._compressor.add(path)

    def _remove_old(self, hour: str) -> None:
        """Remove the files that are older than `keep`, counted from this hour.

        The files of the newest hours, as many as `keep` has, always stay: a clock that jumps ahead must not delete the
        history.
        """
        oldest = (datetime.strptime(hour, _NAME).replace(tzinfo=UTC) - self.keep).strftime(_NAME)
        files: dict[str, list[Path]] = {}
        for path in self.directory.iterdir():
            match = HISTORY_FILE.fullmatch(path.name)
            if match is not None:
                files.setdefault(match["hour"], []).append(path)
        for old in sorted(files)[: -math.ceil(self.keep / timedelta(hours=1)) - 1]:
            if old >= oldest:
                break
            for path in files[old]:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    # This does not prevent writing new lines.
                    log.warning("cannot remove old history", extra={"path": str(path), "error": error.strerror})


def remove_incomplete_line(path: Path) -> int:
    """Remove an incomplete last line. Returns its size in bytes."""
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end
