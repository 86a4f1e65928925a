"""Plug-ins for copies of the daemon: a load, and a target that records its callers in a file."""

# ruff: noqa: ASYNC240 - a small local file; simplicity is the point

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from autoscaler.core.model import Reading
from autoscaler.ports import Shared, TargetStatus


def real_time() -> float:
    """The machine's clock, whatever the clock of the copy shows."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@dataclass(frozen=True, slots=True)
class WaveQuery:
    """One wave.

    Attributes:
        phase: its start, in seconds.
    """

    phase: float = 0.0


@dataclass(frozen=True)
class Wave:
    """A load that is 100 for half of `period` and 900 for the other half.

    Attributes:
        period: seconds of a wave. Default 80.
    """

    Query: ClassVar[type] = WaveQuery

    period: float = 80.0

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator["Wave"]:
        """Nothing to open."""
        del shared
        yield self

    async def collect(self, query: WaveQuery, now: datetime) -> Reading:
        """Return the present value of the wave."""
        high = (real_time() + query.phase) % self.period >= self.period / 2
        return Reading(900.0 if high else 100.0, now)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A size in a file. Each call is a line in `calls` beside it: time, process, cluster, and size.

    Attributes:
        path: the file, named like the cluster.
    """

    path: str

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator["Recorded"]:
        """Nothing to open."""
        del shared
        yield self

    async def describe(self) -> TargetStatus:
        """Return the content of the file."""
        try:
            desired = int(Path(self.path).read_text())
        except FileNotFoundError:
            desired = 1
        return TargetStatus(desired, desired)

    async def scale(self, replicas: int) -> None:
        """Write the size to the file, completely or not at all."""
        path = Path(self.path)
        before = (await self.describe()).desired
        line = f"{real_time()!r} {os.getpid()} {path.name} {before} {replicas}\n"
        calls = os.open(path.with_name("calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(calls, line.encode())
        finally:
            os.close(calls)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(str(replicas))
        temporary.replace(path)
