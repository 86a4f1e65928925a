"""The event loop of the daemon: no call in a thread waits for another one, and no plug-in ends the process.

asyncio gives name resolution and `asyncio.to_thread` one pool of a few threads: a handful of names that hang in DNS
stop every other call, and the process waits for them when it ends. Here every call has a daemon thread of its own.
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
from typing import Any, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger("autoscaler.daemon.event_loop")

MAX_CALLS = 512
"""Calls in threads at a time, name resolution included."""

MAX_LOOKUPS = 256
"""Names resolved at a time: each once, however many clusters ask for it."""


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop whose default executor is a daemon thread for each call."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: set[threading.Thread] = set()
        self._lookups: dict[tuple[Any, ...], asyncio.Future[Any]] = {}
        self._main: asyncio.Future[Any] | None = None

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Like the base class, without a queue. Raises OSError while too many calls have not returned."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        if len(self._calls) >= MAX_CALLS:
            raise OSError(errno.EAGAIN, f"{MAX_CALLS} calls in threads have not returned")
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def call() -> None:
            result, raised = None, None
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                raised = error
            self._calls.discard(thread)
            if self.is_closed():
                return
            if raised is None:
                outcome.set_result(result)  # type: ignore[arg-type]  # func has returned it
            else:
                outcome.set_exception(raised)

        thread = threading.Thread(target=call, name=f"call {getattr(func, '__qualname__', func)}", daemon=True)
        self._calls.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._calls.discard(thread)
            raise OSError(errno.EAGAIN, f"no thread can be started: {error}") from None
        return asyncio.wrap_future(outcome, loop=self)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as its parent's
        proto: int = 0,
        flags: int = 0,
    ) -> Any:  # noqa: ANN401 - as socket's
        """Resolve a name. A thread that hangs in it serves all who ask for the same."""
        asked = (host, port, family, type, proto, flags)
        lookup = self._lookups.get(asked)
        if lookup is None:
            if len(self._lookups) >= MAX_LOOKUPS:
                raise OSError(errno.EAGAIN, f"{MAX_LOOKUPS} names are being resolved already")
            lookup = self._lookups[asked] = self.run_in_executor(None, socket.getaddrinfo, *asked)
            lookup.add_done_callback(lambda _: self._lookups.pop(asked))
        return await asyncio.shield(lookup)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Like the base class."""
        main: asyncio.Future[T] = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        self._main = main
        return super().run_until_complete(main)

    def run_forever(self) -> None:
        """Like the base class; `SystemExit` and `KeyboardInterrupt` of other tasks than the main one do not end it."""
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # Where the daemon does not handle Ctrl-C itself, before it runs and after, it is a person's.
                handled = signal.SIGINT in self._signal_handlers  # type: ignore[attr-defined]  # the base class's
                typed = isinstance(error, KeyboardInterrupt) and not handled
                if typed or self._main is None or self._main.done():
                    raise
                log.exception("plug-in tried to end the process", extra={"error": type(error).__name__})
