"""Group commit: all waiting items are written in one batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


PAUSE = 0.01
"""Seconds between two batches, so that batches get larger under load: each batch costs as much as half a tick."""


class Batches(Generic[T]):
    """Passes items to `apply`, one batch after the other.

    Items that arrive while a batch is applied form the next batch. Each caller waits for the batch of its item, and
    gets the error of that batch.
    """

    def __init__(self, apply: Callable[[Sequence[T]], Awaitable[None]]) -> None:
        self._apply = apply
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._work: asyncio.Task[None] | None = None
        self._next = -math.inf
        self._go = asyncio.Event()

    async def put(self, item: T, *, at_once: bool = False) -> None:
        """Wait until the item has been applied; with `at_once`, skip the pause. Raises the error of `apply`."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if at_once:
            self._go.set()
        if self._work is None:
            self._work = asyncio.create_task(self._run())
        await done

    async def drain(self) -> None:
        """Apply all waiting items."""
        if self._work is not None:
            await self._work

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                pause = loop.call_at(self._next, self._go.set)
                await self._go.wait()
                pause.cancel()
                self._go.clear()
                batch, self._waiting = self._waiting, []
                error: Exception | None = None
                try:
                    await self._apply([item for item, _ in batch])
                except Exception as raised:  # noqa: BLE001 - raised for every item of the batch
                    error = raised
                self._next = loop.time() + PAUSE
                for _, done in batch:
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._work = None


class WriteBatcher(Batches[T]):
    """Passes items to `apply` in its own thread, one batch after the other."""

    def __init__(self, name: str, apply: Callable[[Sequence[T]], None]) -> None:
        super().__init__(lambda items: self.call(lambda: apply(items)))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, function: Callable[[], R]) -> R:
        """Call a function in the same thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def close(self, last: Callable[[], None]) -> None:
        """Apply all waiting items, call `last` in the thread, and end the thread."""
        await self.drain()
        await self.call(last)
        self._thread.shutdown()
