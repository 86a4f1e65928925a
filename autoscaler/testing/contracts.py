"""Contract tests that the author of a plug-in inherits in a pytest suite. (placeholder while being written)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LocalShared:
    """What plug-ins share, for one test: opened at first use, closed when its context is left."""

    def __init__(self) -> None:
        self._live: dict[Hashable, Any] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the live object under `key`, opening it if there is none yet."""
        if key not in self._live:
            self._live[key] = await self._stack.enter_async_context(factory())
        return self._live[key]  # type: ignore[no-any-return]
