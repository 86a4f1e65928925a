"""Connections of plug-ins and the objects they share: equal plug-ins are connected once, failures are retried.

The task that enters a context must also leave it, so each connection has its own task. A connection that fails does not
delay others: its clusters see it as missing, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any, Protocol, TypeVar

from autoscaler import plugins
from autoscaler.config.model import Cluster, Config
from autoscaler.core.foreign import foreign_text, format_exception
from autoscaler.core.model import EngineStatus, Reading
from autoscaler.core.workload_profile import Profile
from autoscaler.daemon.event_loop import caller
from autoscaler.ports import (
    EdgeError,
    HasProfile,
    PicksWorkers,
    PluginError,
    RefusedError,
    ScaleTarget,
    Shared,
    TargetStatus,
    UnavailableError,
    Workforce,
)

T = TypeVar("T")

log = logging.getLogger("autoscaler.daemon.connections")

CONNECT_TIMEOUT = 30.0
"""Seconds a plug-in may take to connect."""

CLOSE_TIMEOUT = 10.0
"""Seconds a plug-in may take to close."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds between two attempts to connect: the first and the longest pause."""

TARGET = "target"
ENGINE = "engine"


class Plugin(Protocol):
    """The common part of sources, engines and targets."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Connect."""
        ...


def format_error(error: BaseException) -> str:
    """An error on one line, shortened: our own errors by their message, others with their type. It never raises."""
    return (isinstance(error, EdgeError | PluginError) and foreign_text(error)) or format_exception(error)


@contextmanager
def contained() -> Iterator[None]:
    """Turn a plug-in's attempt to end the process into an ordinary error: in a task it would end the event loop.

    Raises:
        RuntimeError: the plug-in raised SystemExit, KeyboardInterrupt or another BaseException that is no `Exception`.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the plug-in raised {format_exception(error)}") from error


CANCELLED = "the plug-in cancelled itself"


def cancelled_itself() -> bool:
    """Whether a caught CancelledError comes from a plug-in and not from a cancellation of this task."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


@contextmanager
def uncancelled() -> Iterator[None]:
    """Like `contained`; also turn a CancelledError of the plug-in itself into an EdgeError: it would end our task."""
    try:
        with contained():
            yield
    except asyncio.CancelledError as error:
        if not cancelled_itself():
            raise
        raise EdgeError(CANCELLED) from error


class Connection:
    """One plug-in, kept connected by a task until it is released.

    Attributes:
        key: the key under which it is open.
        users: how many clusters use it.
    """

    def __init__(self, plugin: Plugin, shared: Shared, key: Hashable) -> None:
        self.plugin = plugin
        self.key = key
        self.users = 0
        self._shared = shared
        self._live: Any = None
        self._connected = False
        self._error = "not connected yet"
        self._tried = asyncio.Event()
        self._stop = asyncio.Event()
        self._limit: asyncio.Timeout | None = None
        self._task = asyncio.create_task(self._hold(), name=f"connection {self.name}")

    @property
    def name(self) -> str:
        """The plug-in's type, for messages."""
        return type(self.plugin).__name__

    def get(self) -> Any:  # noqa: ANN401 - a source, an engine or a target
        """The live object. Raises UnavailableError while there is none.

        From now on, calls that this context makes in threads count as calls of this plug-in.
        """
        caller.set(self)
        if not self._connected:
            raise UnavailableError(self._error)
        return self._live

    @property
    def problem(self) -> str | None:
        """Why there is no live object, or None."""
        return None if self._connected else self._error

    async def tried(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._tried.wait()

    async def close(self) -> None:
        """Close the connection. If its task does not end when it is cancelled, abandon it."""
        self._stop.set()
        if not self._connected:
            expire(self._limit)  # Nothing is lost: it has not connected.
        _, hanging = await asyncio.wait((self._task,), timeout=2 * CLOSE_TIMEOUT)
        if hanging:
            log.warning("plug-in does not close", extra={"plugin": self.name})

    async def _hold(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            error = await self._connect()
            self._tried.set()  # even if it was released meanwhile
            if error is not None and not self._stop.is_set():
                text = f"{self.name} cannot be connected: {error}"
                if text != self._error:
                    log.warning("plug-in cannot connect", extra={"plugin": self.name, "error": error})
                self._error = text
                await sleep_until_stopped(self._stop, pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> str | None:
        """Hold the connection until it is released. Returns why it could not be opened or kept, or None."""
        loop = asyncio.get_running_loop()
        caller.set(self)
        limit = self._limit = asyncio.timeout(CONNECT_TIMEOUT)
        try:
            with uncancelled():
                async with limit, self.plugin.connect(self._shared) as live:
                    limit.reschedule(None)
                    if self._error != "not connected yet":
                        log.info("plug-in connected", extra={"plugin": self.name})
                    self._live, self._connected, self._error = live, True, "closed"
                    self._tried.set()
                    try:
                        await self._stop.wait()
                    finally:
                        self._connected = False
                        limit.reschedule(loop.time() + CLOSE_TIMEOUT)
        except TimeoutError as error:
            # If the limit has not expired, the TimeoutError is the plug-in's own.
            return f"not connected within {CONNECT_TIMEOUT:.0f} s" if limit.expired() else format_error(error)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
            return format_error(error)
        finally:
            self._limit = None
        return None


def equal(one: object, other: object) -> bool:
    """Whether two plug-ins, or two objects that contain some, are equal. If comparing them fails, they are not."""
    try:
        return bool(one == other)
    except Exception as error:  # noqa: BLE001 - a plug-in's __eq__
        place = traceback.extract_tb(error.__traceback__)[-1]
        _warn_of_comparison(f"{format_exception(error)} ({place.filename}:{place.lineno})")
        return False


@lru_cache(maxsize=100)  # log each error once: every reload compares all plug-ins
def _warn_of_comparison(error: str) -> None:
    log.warning("a plug-in cannot be compared: each reload restarts everything that uses it", extra={"error": error})


class Connections:
    """All connections of a daemon. Its plug-ins get this object as their `Shared`.

    Attributes:
        dry_run: nothing may be changed, not even by plug-ins that act without a scale call.
    """

    def __init__(self, *, dry_run: bool = False) -> None:
        self.dry_run = dry_run
        self._open: dict[Hashable, Connection] = {}
        self._shared: dict[Hashable, _Holder] = {}

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the live object under `key`, opening it with `factory` if there is none yet."""
        holder = self._shared.get(key)
        if holder is None:
            holder = self._shared[key] = _Holder(factory)
        try:
            # Another plug-in may wait for the same object: a time-out of this caller must not cancel the opening.
            live: T = await asyncio.shield(holder.live)
        except asyncio.CancelledError:
            raise
        except BaseException:
            if self._shared.get(key) is holder:
                del self._shared[key]
            raise
        return live

    def lease(self, plugin: Plugin, *, of: str = "") -> Connection:
        """The connection of this plug-in or of an equal one. Return it with `release`.

        With `of`, the name of a cluster, the connection is shared only within that cluster: a target may have state, as
        `advice` has, that clusters with equal parameters must not share.
        """
        key = self._key(plugin, of)
        connection = self._open.get(key)
        if connection is None:
            connection = self._open[key] = Connection(plugin, self, key)
        connection.users += 1
        return connection

    async def release(self, connection: Connection) -> None:
        """Return a leased connection; the last user closes it."""
        connection.users -= 1
        if connection.users == 0:
            del self._open[connection.key]
            await connection.close()

    async def tried(self) -> None:
        """Wait until every plug-in has tried to connect once."""
        await asyncio.gather(*(connection.tried() for connection in self._open.values()))

    async def close(self) -> None:
        """Close everything: first the plug-ins, then the objects they shared, newest first."""
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()
        for holder in reversed(self._shared.values()):
            await holder.close()
        self._shared.clear()

    def _key(self, plugin: Plugin, of: str) -> Hashable:
        """A key that is the same for equal plug-ins."""
        # Different plug-ins that cannot be hashed may have the same hash key: the number tells them apart.
        keys = ((of, type(plugin), plugins.hash_key(plugin), number) for number in count())
        return next(key for key in keys if key not in self._open or equal(self._open[key].plugin, plugin))


class _Holder:
    """One shared object, held open by its own task."""

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._factory = factory
        self._client = "not opened yet"  # the type of the object, for messages
        self._stop = asyncio.Event()
        self.live: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            with contained():
                async with self._factory() as live:
                    self._client = type(live).__name__
                    self.live.set_result(live)
                    await self._stop.wait()
        except asyncio.CancelledError:
            inside = cancelled_itself()
            if inside and not self.live.done():
                self.live.set_exception(UnavailableError(CANCELLED))
            if not inside:
                self.live.cancel()
                raise
        except Exception as error:  # noqa: BLE001 - raised where it is awaited, or logged if it was open
            if self.live.done():
                extra = {"client": self._client, "error": format_error(error)}
                log.warning("shared client failed while closing", extra=extra)
            else:
                self.live.set_exception(error)

    async def close(self) -> None:
        """Close the object. If its task does not end in time, abandon it."""
        self._stop.set()
        if not self.live.done():
            self._task.cancel()  # Nothing is lost: it has not opened.
        _, hanging = await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT)
        if hanging:
            log.warning("shared client was not closed within %g s", CLOSE_TIMEOUT, extra={"client": self._client})


class ClusterConnections:
    """The connections that one cluster uses."""

    def __init__(self, config: Config, cluster: Cluster, connections: Connections) -> None:
        self._connections = connections
        self._attached: ScaleTarget | None = None
        self._target = connections.lease(cluster.target, of=cluster.spec.name)
        self._engine = None if cluster.engine is None else connections.lease(cluster.engine)
        self._sources: dict[str, Connection] = {
            name: connections.lease(config.sources[name])
            for name in {metric.source: None for metric in cluster.metrics.values()}
        }

    def target(self) -> ScaleTarget:
        """The live target; if it picks workers, it gets the engine. Raises UnavailableError while not connected."""
        target: ScaleTarget = self._target.get()
        if target is not self._attached:
            if isinstance(target, PicksWorkers):
                target.attach(self.workforce)
            self._attached = target
        return target

    def workforce(self) -> Workforce:
        """The live engine, which can list its workers. Raises EdgeError if there is no such engine."""
        if self._engine is None:
            raise RefusedError("the cluster has no engine that could name its workers")
        engine = self._engine.get()
        if not isinstance(engine, Workforce):
            raise RefusedError("the cluster's engine cannot name its workers")
        return engine

    async def describe_target(self) -> TargetStatus:
        """The status of the target."""
        await self._target.tried()
        return await self.target().describe()

    async def describe_engine(self) -> EngineStatus | None:
        """The status of the engine; None if the cluster has none."""
        if self._engine is None:
            return None
        await self._engine.tried()
        status: EngineStatus = await self._engine.get().describe()
        return status

    async def collect(self, source: str, query: Any, now: datetime) -> Reading:  # noqa: ANN401 - see MetricSource
        """Read one metric."""
        await self._sources[source].tried()
        reading: Reading = await self._sources[source].get().collect(query, now)
        return reading

    def profile(self, cluster: Cluster) -> Profile | None:
        """The workload profile of the cluster, if one of its sources has one."""
        for metric in cluster.metrics.values():
            try:
                live = self._sources[metric.source].get()
                found = live.profile(metric.query) if isinstance(live, HasProfile) else None
            except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the profile is only for display
                log.debug("no profile to show", extra={"source": metric.source, "error": format_error(error)})
                continue
            if found is not None:
                return found
        return None

    def connections(self) -> Mapping[str, Connection]:
        """All connections of the cluster, by their role."""
        engine = {} if self._engine is None else {ENGINE: self._engine}
        return {TARGET: self._target, **engine, **{f"source {name}": c for name, c in self._sources.items()}}

    async def release(self) -> None:
        """Return all connections."""
        await asyncio.gather(*(self._connections.release(connection) for connection in self.connections().values()))


def expire(limit: asyncio.Timeout | None) -> None:
    """Make a running time-out expire now."""
    if limit is not None and not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


async def sleep_until_stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but at most until `stop` is set. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return stop.is_set()
    return True
