"""The event loop of the daemon: no call in a thread waits for another one, and no plug-in ends the process.

asyncio runs name resolution and `asyncio.to_thread` in one pool of a few threads: a handful of names that hang in DNS
block every other call, and the process waits for them at exit. Here each call runs in its own daemon thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import Any, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("autoscaler.daemon.event_loop")

MAX_CALLS = 512
"""Concurrent calls in threads, name resolution included, above which each plug-in may have only one."""

MAX_THREADS = 4096
"""Concurrent calls in threads of all plug-ins together."""

MAX_CALLS_OF_ONE = 128
"""Concurrent calls in threads of one plug-in: a plug-in whose calls never return must not use up the threads of all."""

MAX_LOOKUPS_OF_ONE = 16
"""Names that one plug-in resolves concurrently; others wait. Concurrent requests for one name share a lookup."""

SLICE = 0.01
"""Seconds for which long work may occupy the loop without a break."""

SLICE_PIECES = 100
"""Pieces of long work without a break: each may start a task, and all of these run at once after the slice."""

caller: ContextVar[object] = ContextVar("caller")
"""The connected plug-in that this context runs in."""


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop whose default executor is a daemon thread for each call."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[threading.Thread, object] = {}
        self._lookups: dict[tuple[Any, ...], asyncio.Future[Any]] = {}
        self._turns: WeakKeyDictionary[object, asyncio.Semaphore] = WeakKeyDictionary()
        self._main: asyncio.Future[Any] | None = None

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Like the base class, but without a queue. Raises OSError while too many calls of plug-ins are running."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        by = caller.get(self)
        if by is not self:
            calls = list(self._calls.values())
            if calls.count(by) >= MAX_CALLS_OF_ONE:
                raise OSError(errno.EAGAIN, f"{MAX_CALLS_OF_ONE} calls of this plug-in in threads have not returned")
            if len(calls) >= (MAX_CALLS if by in calls else MAX_THREADS):
                raise OSError(errno.EAGAIN, f"{len(calls)} calls in threads have not returned")
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def call() -> None:
            result, raised = None, None
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                raised = error
            self._calls.pop(thread, None)
            if self.is_closed():
                return
            if raised is None:
                outcome.set_result(result)  # type: ignore[arg-type]  # func has returned it
            else:
                outcome.set_exception(raised)

        thread = threading.Thread(target=call, name=f"call {getattr(func, '__qualname__', func)}", daemon=True)
        self._calls[thread] = by
        try:
            thread.start()
        except RuntimeError as error:
            self._calls.pop(thread, None)
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from None
        return asyncio.wrap_future(outcome, loop=self)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as in the base class
        proto: int = 0,
        flags: int = 0,
    ) -> Any:  # noqa: ANN401 - as in socket
        """Resolve a name. All concurrent callers with the same arguments share one thread, even if it hangs."""
        asked = (host, port, family, type, proto, flags)
        turns = self._turns.setdefault(caller.get(self), asyncio.Semaphore(MAX_LOOKUPS_OF_ONE))
        while (lookup := self._lookups.get(asked)) is None:
            await turns.acquire()
            if asked not in self._lookups:
                try:
                    lookup = self._lookups[asked] = self.run_in_executor(None, socket.getaddrinfo, *asked)
                except OSError:
                    turns.release()
                    raise
                lookup.add_done_callback(lambda _: self._lookups.pop(asked))
                lookup.add_done_callback(lambda _: turns.release())
                break
            turns.release()
        return await asyncio.shield(lookup)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Like the base class."""
        main: asyncio.Future[T] = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        self._main = main
        return super().run_until_complete(main)

    def run_forever(self) -> None:
        """Like the base class, but `SystemExit` and `KeyboardInterrupt` end it only if the main task raises them."""
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # If the daemon does not handle Ctrl-C itself (before and after it runs), a person has typed it.
                handled = signal.SIGINT in self._signal_handlers  # type: ignore[attr-defined]  # the base class's
                typed = isinstance(error, KeyboardInterrupt) and not handled
                if typed or self._main is None or self._main.done():
                    raise
                log.exception("plug-in tried to end the process", extra={"error": type(error).__name__})


class Slices:
    """Divides long work into slices so that ticks are not late. The first slice begins when the object is created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    async def turn(self) -> None:
        """Yield to other tasks if this slice is used up. Call this before each piece of work."""
        self._pieces += 1
        if self._pieces > SLICE_PIECES or self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._begin()

    def _begin(self) -> None:
        self._pieces = 0
        self._until = self._loop.time() + SLICE
