"""Rendering of HTTP answers that would delay ticks: in a thread, and once for all concurrent requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")


class Renderer:
    """Renders answers in its own thread, because plug-ins may use up the threads of the loop.

    After each call the thread rests for twice the time of the call, so that the loop keeps most of the interpreter,
    however many requests there are.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "http")
        self._under_way: dict[Hashable, asyncio.Future[Any]] = {}
        self._rested_at = 0.0
        self._closed = threading.Event()

    async def render(self, function: Callable[[], T]) -> T:
        """Call a function in the thread."""
        if self._closed.is_set():
            raise web.HTTPServiceUnavailable(text="the daemon is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, function)

    async def share(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Compute a result once, and share it with all requests that arrive meanwhile."""
        future = self._under_way.get(key)
        if future is None:
            future = self._under_way[key] = asyncio.ensure_future(make())
            future.add_done_callback(lambda _: self._under_way.pop(key))
        # A client that disconnects must not cancel it for the others.
        result: T = await asyncio.shield(future)
        return result

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[[], T]) -> T:
        if self._closed.wait(max(0.0, self._rested_at - time.monotonic())):
            raise CancelledError
        begun = time.thread_time()
        try:
            return function()
        finally:
            self._rested_at = time.monotonic() + 2 * (time.thread_time() - begun)


RENDERER: web.AppKey[Renderer] = web.AppKey("renderer")
"""The renderer of an application."""
