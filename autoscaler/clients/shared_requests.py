"""One request for several callers, and what other systems answer as part of our messages."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from autoscaler.ports import EdgeError, UnavailableError

T = TypeVar("T")


async def outcome_of(request: asyncio.Future[T | EdgeError], closed: str) -> T:
    """Wait for a request that several callers share.

    Unlike awaiting it, cancelling this caller does not cancel the request for the others. The request returns its
    error instead of raising it: many callers may raise it, or none.

    Raises:
        EdgeError: the request failed; each caller gets its own, as a shared one would collect all their tracebacks.
        UnavailableError: the request was cancelled; `closed` is the message.
    """
    if not request.done():
        await asyncio.wait((request,))
    if request.cancelled():
        raise UnavailableError(closed)
    outcome = request.result()
    if isinstance(outcome, EdgeError):
        raise copy.copy(outcome)
    return outcome


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, with any outcome."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def one_line(text: object, limit: int = 300) -> str:
    """Another system's message on one line, cut to a length that fits into ours."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
