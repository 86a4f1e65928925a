"""A stand-in for a worker: a real process that has a child, and that can drain, ignore signals or end early."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.targets.local import processes
from autoscaler.targets.local.pool import Place, Pool, Times

STAND_IN = """
import os, signal, sys, time
mode = sys.argv[1]
if mode == "crash":
    sys.exit(3)
def finish(*_):  # the child, an executor: ends once its work is done
    while not os.path.exists(os.environ["DONE"]):
        time.sleep(0.01)
    os._exit(0)
executor = os.fork()
if executor == 0:
    os.setsid()  # as Spark's Python workers do, it leaves its parent's process group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "zombie":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGUSR1, finish)
    while True:
        time.sleep(60)
def drain(*_):
    global executor
    print("draining", flush=True)
    os.kill(executor, signal.SIGUSR1)
    os.waitpid(executor, 0)
    executor = None
def end(*_):
    print("ending", flush=True)
    if executor and mode != "orphan":
        os.kill(executor, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGPWR, drain)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else end)
print("up", flush=True)
while True:
    time.sleep(60)
"""


@dataclass
class StandIn:
    """A kind of worker that costs nothing to start.

    Attributes:
        mode: good, or how it misbehaves.
        done: a draining worker has finished its work once this file exists; by default it exists.
        drain_signal: the signal that asks it to finish its work.
        places: of the started workers.
        starts: start times, in seconds of the machine's clock.
    """

    mode: str = "good"
    done: Path = Path("/")
    drain_signal: signal.Signals | None = signal.SIGPWR
    places: list[Place] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        self.places.append(place)
        self.starts.append(time.monotonic())
        environment = {"PATH": os.environ["PATH"], "DONE": str(self.done)}
        return [sys.executable, "-S", "-E", "-c", STAND_IN, self.mode], environment

    async def registered(self, places: Collection[Place]) -> int:
        return len(places)


def times(**changes: timedelta) -> Times:
    usual = {
        "drain": timedelta(seconds=60),
        "grace": timedelta(seconds=60),
        "backoff": timedelta(milliseconds=50),
        "max_backoff": timedelta(seconds=2),
    }
    return Times(**{**usual, **changes})


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - processes have no event to wait for
            await asyncio.sleep(0.02)


async def settled(pool: Pool) -> None:
    """Wait until there are as many processes as requested, and no drain is in progress."""
    while len(pool._serving()) != pool._desired or len(pool._workers) != pool._desired:
        pool._check()
        await asyncio.sleep(pool._poll / 2)


def up(pool: Pool) -> bool:
    """Whether every worker has installed its signal handlers."""
    return all("up" in pool._log_file(worker.number).read_text() for worker in pool._workers.values())


@asynccontextmanager
async def opened(directory: Path, kind: StandIn, **changes: timedelta) -> AsyncIterator[Pool]:
    pool = Pool(directory, kind, times(**changes), poll=0.05, delay=0.0)
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Pool]]]:
    """Opens pools in the test's directory, and ends their workers after the test."""
    made: list[Pool] = []
    async with AsyncExitStack() as stack:

        async def start(kind: StandIn | None = None, **changes: timedelta) -> Pool:
            made.append(await stack.enter_async_context(opened(tmp_path, kind or StandIn(), **changes)))
            return made[-1]

        yield start
    for pool in made:
        for worker in pool._workers.values():
            pool._kill(worker)
            if worker.pid is not None:
                await until(lambda pid=worker.pid: processes.find(pid) is None)  # type: ignore[misc]
                processes.reap(worker.pid)
