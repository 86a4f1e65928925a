"""Plug-ins that keep their state in files and use the machine's clock, so that it survives a killed daemon."""

# ruff: noqa: ASYNC230, ASYNC240 - a small local file; the plug-ins should stay simple

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from autoscaler.core.model import Reading, Reason, Recommendation, View
from autoscaler.ports import EdgeError, Shared, TargetStatus, UnavailableError


@dataclass(frozen=True, slots=True)
class WaveQuery:
    """One wave.

    Attributes:
        phase: its start, in seconds.
    """

    phase: float = 0.0


@dataclass(frozen=True)
class Wave:
    """A load between 100 and 900 that rises and falls within `period` seconds; one reading in ten fails.

    Attributes:
        period: seconds of a wave. Default 3.
        stubborn: whether closing its connection hangs for ever. Default false.
    """

    Query: ClassVar[type] = WaveQuery

    period: float = 3.0
    stubborn: bool = False

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator["Wave"]:
        """Nothing to open."""
        del shared
        try:
            yield self
        finally:
            while self.stubborn:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)

    async def collect(self, query: WaveQuery, now: datetime) -> Reading:
        """Where the wave is."""
        if int(now.timestamp() * 10) % 10 == 0:
            raise UnavailableError("this is the tenth time")
        return Reading(500 + 400 * math.sin((time.time() + query.phase) * 2 * math.pi / self.period), now)


@dataclass(frozen=True, slots=True)
class File:
    """A size in a file. New replicas are ready after 0.25 s; one call in seven fails, half of those take effect.

    Attributes:
        path: the file; calls are appended to the same path with `.calls`.
        takes: seconds a call takes. Default 0.
    """

    path: str
    takes: float = 0.0

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator["File"]:
        """Nothing to open."""
        del shared
        yield self

    async def describe(self) -> TargetStatus:
        """Return the content of the file."""
        try:
            held = json.loads(Path(self.path).read_text())
        except FileNotFoundError:
            return TargetStatus(1, 1)
        ready = held["desired"] if time.time() - held["at"] > 0.25 else held["before"]
        return TargetStatus(held["desired"], ready)

    async def scale(self, replicas: int) -> None:
        """Write the size to the file, completely or not at all."""
        before = (await self.describe()).desired
        luck = int(time.time() * 1000) % 14
        with Path(f"{self.path}.calls").open("a") as calls:
            calls.write(f"{os.getpid()} {replicas}\n")
        await asyncio.sleep(self.takes)
        if luck != 0:
            temporary = Path(f"{self.path}.{os.getpid()}")
            temporary.write_text(json.dumps({"desired": replicas, "before": before, "at": time.time()}))
            temporary.replace(self.path)
        if luck <= 1:
            raise EdgeError("bad luck")


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts the ticks at each size, and remembers when it began. It recommends no size."""

    def learn(self, view: View) -> Mapping[str, float]:
        """Count this tick."""
        name = f"size.{view.current}.ticks"
        return {"began_at": view.now.timestamp(), **view.memory, name: view.memory.get(name, 0.0) + 1}

    def evaluate(self, view: View) -> Recommendation:
        """Report the memory."""
        return Recommendation(None, Reason.ABSTAINED, dict(view.memory), "it only counts")
