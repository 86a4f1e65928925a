"""An event loop whose time jumps to the next timer when nothing is ready: hours of ticks in milliseconds.

Work in the loop's executor (`asyncio.to_thread`, `run_in_executor`) and data on sockets are waited for in real time,
with the virtual clock standing still; only waiting itself costs nothing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Default start of a virtual wall clock."""

_PATIENCE = 30.0
"""Real seconds that work outside the loop may take before it counts as hung."""


class _Selector(selectors.DefaultSelector):
    """Polls for what is ready; where the loop would sleep, it moves the loop's time instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.outside:
            ready = super().select(_PATIENCE)
            if not ready:
                raise TimeoutError(f"work outside the loop has not ended within {_PATIENCE:.0f} s")
            return ready
        if timeout is None:
            raise RuntimeError("nothing is ready and no timer is set: this would wait forever")
        self.loop.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. `time()` begins at 0.

    Attributes:
        outside: jobs that run in an executor at the moment.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._virtual = 0.0
        self.outside = 0
        super().__init__(selector)

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._virtual

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self._virtual += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Like the base class; the clock stands still until the job has ended."""
        self.outside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._came_back)
        return future

    async def shutdown_default_executor(self, *args: float | None) -> None:
        """Like the base class; the thread that waits for the executor's is outside the loop as well."""
        self.outside += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.outside -= 1

    def _came_back(self, _: asyncio.Future[Any]) -> None:
        self.outside -= 1


class WallClock:
    """A wall clock that follows the running loop's time and can be set, like a real one.

    Attributes:
        start: what it shows when the loop's time is 0.
        set_by: how far it has been set; change it to make the clock jump.
    """

    def __init__(self, start: datetime = START) -> None:
        self.start = start
        self.set_by = timedelta(0)

    def __call__(self) -> datetime:
        """The time now, aware."""
        return self.start + self.set_by + timedelta(seconds=asyncio.get_running_loop().time())


def run(main: Coroutine[Any, Any, T], *, debug: bool = False) -> T:
    """Run a coroutine in a fresh virtual-time loop, like `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop, debug=debug) as runner:
        return runner.run(main)


Script = Mapping[float, Callable[[], object]]


async def play(script: Script) -> None:
    """Do things at given times of the loop: seconds -> what to do."""
    loop = asyncio.get_running_loop()
    for at in sorted(script):
        await asyncio.sleep(max(0.0, at - loop.time()))
        script[at]()
