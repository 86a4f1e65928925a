"""Live plug-ins and what they share: equal plug-ins are connected once, and one that cannot connect is retried.

A context must be left by the task that entered it, so every connection is held by a task of its own. One that fails
keeps nobody else waiting: its clusters see it as missing, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, cast

from autoscaler.ports import EdgeError, Shared, UnavailableError

T = TypeVar("T")

log = logging.getLogger("autoscaler.daemon.connections")

OPENING = 30.0
"""Seconds a plug-in may take to connect."""

CLOSING = 10.0
"""Seconds it may take to let go."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Plugin(Protocol):
    """What sources, engines and targets have in common."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Open it."""
        ...


def format_error(error: BaseException) -> str:
    """An error as one line of text: our own by their message, others with their type."""
    text = " ".join(str(error).split())
    if isinstance(error, EdgeError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


INSIDE = "it was cancelled from inside"


def cancelled_inside() -> bool:
    """Whether a CancelledError that was caught is a plug-in's own affair, and nobody has cancelled this task."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


class Connection:
    """One plug-in, kept connected by a task until it is released.

    Attributes:
        users: how many clusters use it.
    """

    def __init__(self, plugin: Plugin, shared: Shared) -> None:
        self.plugin = plugin
        self.users = 0
        self._shared = shared
        self._live: Any = None
        self._connected = False
        self._error = "not connected yet"
        self._tried = asyncio.Event()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._hold(), name=f"connection {self.name}")

    @property
    def name(self) -> str:
        """The plug-in's type, for people."""
        return type(self.plugin).__name__

    def get(self) -> Any:  # noqa: ANN401 - a source, an engine or a target
        """The live object. Raises UnavailableError while there is none."""
        if not self._connected:
            raise UnavailableError(self._error)
        return self._live

    @property
    def problem(self) -> str:
        """Why there is no live object, or empty."""
        return "" if self._connected else self._error

    async def tried(self) -> None:
        """Wait until the first attempt to connect has ended, well or not."""
        await self._tried.wait()

    async def close(self) -> None:
        """Let go of it. One that does not even end when it is cancelled is left behind."""
        self._stop.set()
        _, hanging = await asyncio.wait((self._task,), timeout=2 * CLOSING)
        if hanging:
            log.warning("plug-in does not let go", extra={"plugin": self.name})

    async def _hold(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            error = await self._connect()
            if error is not None and not self._stop.is_set():
                text = f"{self.name} cannot be connected: {error}"
                if text != self._error:
                    log.warning("plug-in cannot be connected", extra={"plugin": self.name, "error": error})
                self._error = text
                self._tried.set()
                await pass_time(self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> str | None:
        """Hold the connection until it is released. Returns why it could not be opened or kept."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(OPENING) as limit, self.plugin.connect(self._shared) as live:
                limit.reschedule(None)
                if self._error != "not connected yet":
                    log.info("plug-in connected", extra={"plugin": self.name})
                self._live, self._connected, self._error = live, True, "closed"
                self._tried.set()
                try:
                    await self._stop.wait()
                finally:
                    self._connected = False
                    limit.reschedule(loop.time() + CLOSING)
        except TimeoutError:
            return f"no success within {OPENING:.0f} s"
        except asyncio.CancelledError:
            if not cancelled_inside():
                raise
            return INSIDE
        except Exception as error:  # noqa: BLE001 - a plug-in is somebody else's code: it may fail in any way
            return format_error(error)
        return None


class Connections:
    """All connections of a daemon, and the `Shared` that its plug-ins are given.

    Attributes:
        dry_run: nothing may be changed: for plug-ins that do something without being asked to scale.
    """

    def __init__(self, *, dry_run: bool = False) -> None:
        self.dry_run = dry_run
        self._open: dict[tuple[Hashable, ...], Connection] = {}
        self._shared: dict[Hashable, _Holder] = {}

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the live object under `key`, opening it with `factory` if there is none yet."""
        holder = self._shared.get(key)
        if holder is None:
            holder = self._shared[key] = _Holder(factory)
        try:
            # Another plug-in may wait for the same object, so the impatience of one must not take it away.
            live: T = await asyncio.shield(holder.live)
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._shared.get(key) is holder:
                del self._shared[key]
            raise
        return live

    def lease(self, plugin: Plugin, *, of: str = "") -> Connection:
        """The connection of this plug-in or of an equal one; give it back with `release`.

        With `of`, the name of a cluster, it is only shared within that cluster: a target that keeps something of its
        own, as `null` keeps the advice it was given, must not be that of another cluster with equal parameters.
        """
        key = self._key(plugin, of)
        connection = self._open.get(key)
        if connection is None:
            connection = self._open[key] = Connection(plugin, self)
        connection.users += 1
        return connection

    async def release(self, connection: Connection) -> None:
        """Give a leased connection back; the last user closes it."""
        connection.users -= 1
        if connection.users == 0:
            self._open = {key: other for key, other in self._open.items() if other is not connection}
            await connection.close()

    async def tried(self) -> None:
        """Wait until every plug-in has been tried once."""
        await asyncio.gather(*(connection.tried() for connection in self._open.values()))

    async def close(self) -> None:
        """Let go of everything: plug-ins first, then what they shared, newest first."""
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()
        for holder in reversed(self._shared.values()):
            await holder.close()
        self._shared.clear()

    def _key(self, plugin: Plugin, of: str) -> tuple[Hashable, ...]:
        """What equal plug-ins have in common. One that cannot be hashed is looked for among those that are open."""
        try:
            hash(plugin)
        except TypeError:
            for key, connection in self._open.items():
                if key[:2] == (of, type(plugin)) and connection.plugin == plugin:
                    return key
            return of, type(plugin), id(plugin)
        return of, type(plugin), cast("Hashable", plugin)


class _Holder:
    """One shared object, held open by a task of its own."""

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._factory = factory
        self._stop = asyncio.Event()
        self.live: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            async with self._factory() as live:
                self.live.set_result(live)
                await self._stop.wait()
        except asyncio.CancelledError:
            inside = cancelled_inside()
            if inside and not self.live.done():
                self.live.set_exception(UnavailableError(INSIDE))
            if not inside:
                self.live.cancel()
                raise
        except Exception as error:  # noqa: BLE001 - told to those who wait for it, or to the log when it was open
            if self.live.done():
                log.warning("a shared client did not close cleanly", extra={"error": format_error(error)})
            else:
                self.live.set_exception(error)

    async def close(self) -> None:
        """Let go of it. One that does not even end when it is cancelled is left behind."""
        self._stop.set()
        _, hanging = await asyncio.wait((self._task,), timeout=CLOSING)
        if hanging:
            log.warning("a shared client does not let go")


async def pass_time(stop: asyncio.Event, seconds: float) -> bool:
    """Wait, unless told to stop. Returns whether that is so."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return stop.is_set()
    return True
