"""An event loop whose time jumps to the next timer when nothing is ready. Hours of ticks take milliseconds.

The loop waits in real time for work in its executor (`asyncio.to_thread`, `run_in_executor`) and for data on sockets.
The virtual clock stands still during that time. Only timers cost no real time.
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
"""Real seconds after which work outside the loop counts as hung."""


class _Selector(selectors.DefaultSelector):
    """Returns what is ready now. Where the loop would sleep, the selector advances the loop's time instead."""

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
    """An event loop with virtual time. `time()` starts at 0.

    Attributes:
        outside: number of jobs that run in an executor now.
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
        """Advance the virtual time."""
        self._virtual += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Like the base class, but the clock stands still until the job has ended."""
        self.outside += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._came_back)
        return future

    async def shutdown_default_executor(self, *args: float | None) -> None:
        """Like the base class, but the thread that joins the executor's threads also counts as outside the loop."""
        self.outside += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.outside -= 1

    def _came_back(self, _: asyncio.Future[Any]) -> None:
        self.outside -= 1


class WallClock:
    """A wall clock that follows the running loop's time and can be set, like a real clock.

    Attributes:
        start: the clock's time when the loop's time is 0.
        set_by: the offset by which the clock was set; change it to make the clock jump.
    """

    def __init__(self, start: datetime = START) -> None:
        self.start = start
        self.set_by = timedelta(0)

    def __call__(self) -> datetime:
        """The current time, with a time zone."""
        return self.start + self.set_by + timedelta(seconds=asyncio.get_running_loop().time())


def run(main: Coroutine[Any, Any, T], *, debug: bool = False) -> T:
    """Run a coroutine in a fresh virtual-time loop, like `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop, debug=debug) as runner:
        return runner.run(main)


Script = Mapping[float, Callable[[], object]]


async def play(script: Script) -> None:
    """Call functions at given times of the loop: seconds -> function."""
    loop = asyncio.get_running_loop()
    for at in sorted(script):
        await asyncio.sleep(max(0.0, at - loop.time()))
        script[at]()
