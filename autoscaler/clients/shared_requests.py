"""Requests that several callers share, pauses by Retry-After, and other systems' texts in our messages."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from autoscaler.core.foreign import mask
from autoscaler.ports import EdgeError, UnavailableError

T = TypeVar("T")


async def outcome_of(request: asyncio.Future[T | EdgeError], closed: str) -> T:
    """Wait for a request that several callers share.

    If this caller is cancelled, the request goes on for the others. The request must return its EdgeError instead of
    raising it, because any number of callers, or none, may raise it.

    Raises:
        EdgeError: the request failed. Each caller gets a copy: a shared error would collect all their tracebacks.
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


MAX_PAUSE = 60.0
"""Seconds: the longest pause that a server may ask for."""


class PausedError(UnavailableError):
    """No request was sent, because the server has asked for a pause. Retry after the pause."""


class Pause:
    """The pause that a server has asked for by Retry-After. It holds for all users of the client, across ticks."""

    def __init__(self) -> None:
        self._until = 0.0
        self._why = ""

    def note(self, retry_after: str | None, why: str) -> None:
        """Record a response that says that the server is unavailable: its Retry-After header and the error message."""
        if retry_after is not None:
            self._until = max(self._until, time.monotonic() + min(_pause(retry_after), MAX_PAUSE))
            self._why = why

    def check(self) -> None:
        """Raise PausedError during the pause."""
        left = self._until - time.monotonic()
        if left > 0:
            raise PausedError(f"{self._why}; it asked to wait another {math.ceil(left)} s (Retry-After)")


def _pause(retry_after: str) -> float:
    """The pause in seconds, from a header that has a number of seconds or a date; 0 if it is unreadable."""
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0


class DuplicateKeyError(ValueError):
    """A JSON object has the same key twice, so it is unknown which value counts."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads(object_pairs_hook=)`. Raises DuplicateKeyError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DuplicateKeyError(f"the key {one_line(twice, 40)!r} appears twice")
    return found


def one_line(text: object, limit: int = 300) -> str:
    """Another system's text on one line, with secrets masked, cut to at most `limit` characters."""
    # Mask before cutting: a secret that is cut in half would not be recognized.
    line = " ".join(mask(str(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
