"""A thread that notices when something blocks the event loop, which stops all clusters, and logs what it is."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self

from autoscaler.plugins import plugin_of

log = logging.getLogger("autoscaler.daemon.stall_watch")

LIMIT = 1.0
"""Seconds after which an event loop that does not answer counts as blocked."""

_SHOWN = 15  # innermost frames of the stack that are logged


class StallWatch:
    """Watches the running event loop while its context is open. It logs each stall once, while the stall lasts.

    Args:
        stalled: called for each stall, in the watching thread.
        limit: seconds after which a blocked loop counts as a stall.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, stalled: Callable[[], object], *, limit: float = LIMIT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stalled = stalled
        self._limit = limit
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._asked: float | None = None
        self._logged = False
        self._known: set[tuple[str | None, str | None]] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def check(self) -> None:
        """Ask the loop for a sign of life, or check how long it has not answered."""
        asked, now = self._asked, self._clock()
        if asked is None:
            self._asked, self._logged = now, False
            self._loop.call_soon_threadsafe(self._answer)
        elif now - asked >= self._limit and not self._logged:
            stack = list(_stack(sys._current_frames().get(self._watched)))  # noqa: SLF001 - documented despite its name
            if len(stack) > 1 and stack[1].f_code is asyncio.BaseEventLoop._run_once.__code__:  # type: ignore[attr-defined]  # noqa: SLF001 - in its select
                return  # The loop waits for work: the whole process was suspended, and the loop is about to answer.
            self._logged = True
            task = asyncio.current_task(self._loop)
            plugin = plugin_of([(each.f_globals.get("__name__"), each.f_code.co_qualname) for each in stack])
            name = None if task is None else task.get_name()
            self._stalled()
            if (plugin, name) in self._known:
                return  # Count this stall, but log each plug-in and task only once.
            self._known.add((plugin, name))
            log.error(
                "event loop is blocked: no cluster is observed or scaled until it continues",
                extra={
                    "plugin": plugin,
                    "task": name,
                    "seconds": round(now - asked, 1),
                    "stack": " < ".join(
                        f"{each.f_code.co_qualname} ({each.f_code.co_filename}:{each.f_lineno})"
                        for each in stack[:_SHOWN]
                    ),
                },
            )

    def _answer(self) -> None:
        self._asked = None

    def _watch(self) -> None:
        while not self._end.wait(self._limit / 4):
            self.check()


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back
