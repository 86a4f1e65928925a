"""The decision log as JSON lines, a file for each hour (UTC): the trace format that `replay` reads.

`history/2026-01-31T17.jsonl` has one `Record` per line, in the order of the decisions. A line is complete or absent:
what a kill or a full disk has cut off is taken away before the next line is written. An hour that is over is packed to
`history/2026-01-31T17.jsonl.gz`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoscaler.daemon.compression import OURS, Packer, forget_parts, names, packed_name
from autoscaler.daemon.write_batcher import Batches
from autoscaler.ports import Record, StoreError
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import SUFFIX

log = logging.getLogger("autoscaler.daemon.history")

_NAME = "%Y-%m-%dT%H"

GRACE = timedelta(minutes=5)
"""An hour is packed so long after its end: what was observed before it may be decided after it."""


@dataclass(frozen=True, slots=True)
class _Line:
    at: datetime
    hour: str
    text: bytes


class History:
    """The decision sink of the daemon.

    Attributes:
        keep: how long the files of an hour are kept after it, at least; those of so many hours are left in any case.
        pack: whether hours that are over are compressed.
        failure: why the last lines could not be written; empty when they were.
    """

    def __init__(self, directory: Path, keep: timedelta, *, pack: bool = True) -> None:
        self.directory = directory
        self.keep = keep
        self.pack = pack
        self.failure = ""
        self._packer = Packer()
        self._near: tuple[str, ...] = ()
        self._hour = ""
        self._file = -1
        self._batches: Batches[_Line] = Batches("history", self._append)

    async def start(self) -> None:
        """Make the directory and mend files that a kill left torn. Raises StoreError."""
        try:
            await self._batches.call(self._prepare)
        except OSError as error:
            raise StoreError(f"{self.directory} cannot be used for history: {error.strerror}") from error

    async def write(self, record: Record) -> None:
        """Keep a record. Raises StoreError when it could not be written, and then nothing of it is there."""
        at = record.decision.at.astimezone(UTC)
        line = _Line(at, at.strftime(_NAME), dump_record(record) + b"\n")
        try:
            await self._batches.put(line)
        except OSError as error:
            text = f"{self.directory} cannot be written: {error.strerror}"
            if not self.failure:
                log.error("history cannot be written", extra={"error": text})  # noqa: TRY400 - the text says it all
            self.failure = text
            raise StoreError(text) from error
        if self.failure:
            log.info("history can be written again", extra={"directory": str(self.directory)})
            self.failure = ""

    async def close(self) -> None:
        """Finish what waits and close the file; what is being packed is left as it is."""
        await self._batches.close(self._leave)
        await asyncio.to_thread(self._packer.close)

    def _prepare(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        forget_parts(self.directory)
        for path in self.directory.glob(f"*{SUFFIX}"):
            lost = mend(path)
            if lost:
                log.warning("a torn line was removed", extra={"path": str(path), "bytes": lost})

    def _append(self, lines: Sequence[_Line]) -> None:
        start = 0
        while start < len(lines):
            end = start + 1
            while end < len(lines) and lines[end].hour == lines[start].hour:
                end += 1
            self._enter(lines[start].hour)
            self._write(b"".join([line.text for line in lines[start:end]]))
            start = end
        if self.pack:
            self._pack(lines[-1].at)

    def _write(self, text: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - a short write is the full disk
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _enter(self, hour: str) -> None:
        if hour == self._hour:
            return
        self._leave()
        path = next(name for name in names(self.directory, hour) if self._may_grow(name))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._hour = hour
        self._forget(hour)

    def _may_grow(self, path: Path) -> bool:
        # In this order: it is packed before the packer is done with it.
        return not self._packer.has(path) and not packed_name(path).exists()

    def _leave(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._hour = -1, ""

    def _pack(self, now: datetime) -> None:
        """Have packed all hours but the present one and one that has just ended or begun, whatever the clock did."""
        # Decisions of different clusters come in any order: those of two hours alternate for a while.
        near = tuple((now + change).strftime(_NAME) for change in (-GRACE, timedelta(0), GRACE))
        if near == self._near:
            return
        self._near = near
        for path in self.directory.glob(f"*{SUFFIX}"):
            ours = OURS.fullmatch(path.name)
            if ours is not None and ours["hour"] not in near and path.is_file():
                self._packer.give(path)

    def _forget(self, hour: str) -> None:
        """Remove the files that are older than `keep`, counted from the hour that begins.

        Those of as many hours as there are in `keep` always stay: a clock that jumps ahead must not take the history
        away.
        """
        oldest = (datetime.strptime(hour, _NAME).replace(tzinfo=UTC) - self.keep).strftime(_NAME)
        files: dict[str, list[Path]] = {}
        for path in self.directory.iterdir():
            ours = OURS.fullmatch(path.name)
            if ours is not None:
                files.setdefault(ours["hour"], []).append(path)
        for old in sorted(files)[: -math.ceil(self.keep / timedelta(hours=1)) - 1]:
            if old >= oldest:
                break
            for path in files[old]:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    # Its lines can be written all the same.
                    log.warning("old history cannot be removed", extra={"path": str(path), "error": error.strerror})


def mend(path: Path) -> int:
    """Cut off a last line that is not complete. Returns how many bytes were lost."""
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
