"""A connection to PostgreSQL that reconnects, and whose uses all end within a deadline that ticks can tolerate.

The client enforces the deadline of each use: once it has passed, the client shuts down the socket, which ends all waits
for it. The timeouts set in the server only free the resources that an abandoned use holds there.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from autoscaler.core.foreign import foreign_text, mask
from autoscaler.plugins import install_hint
from autoscaler.ports import StoreError

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

R = TypeVar("R")

TIMEOUT = 5.0
"""Seconds within which every use must end, connecting included."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds between two attempts to connect: the first and the longest pause."""

NAMESPACE = "autoscaler"
"""The schema of all tables."""

_PORTS = re.compile(r"[0-9,]*")

_PARAMETERS: dict[str, Any] = {
    # If the URL names several hosts, use the one that accepts writes (the primary).
    "target_session_attrs": "read-write",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": int(TIMEOUT * 1000),
    "connect_timeout": int(TIMEOUT),
}
"""Connection parameters. The URL may override them."""

_SETTINGS = {
    "search_path": NAMESPACE,
    "statement_timeout": f"{TIMEOUT:g}s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "10s",
    # Each statement selects a few rows by key. Without statistics, or with those of a small table, the planner would
    # choose plans that read whole tables.
    "enable_seqscan": "off",
    # JIT compilation takes longer than any of these statements.
    "jit": "off",
}


class Database:
    """The address of a database, how to connect to it, and the meaning of its failures.

    Attributes:
        place: its URL without user and password.
        demotions: how often the connected server stopped accepting writes, for example because it became a standby.
    """

    def __init__(self, url: str) -> None:
        """Raises StoreError if psycopg is not installed or the URL is invalid."""
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise StoreError(
                f"daemon.state needs psycopg, which cannot be imported ({error}): {install_hint('postgres')}"
            ) from error
        self._psycopg = psycopg
        self.demotions = 0
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            given = {}
        # An unescaped special character in the password would make the rest of it a port or a database name.
        if not given or _PORTS.fullmatch(str(given.get("port", ""))) is None or "@" in str(given.get("dbname", "")):
            raise StoreError(
                "daemon.state is not a PostgreSQL URL: expected postgresql://USER:PASSWORD@HOST/DATABASE, with special "
                "characters of the password as %40 and so on, and parameters that libpq knows, such as "
                "?sslmode=verify-full"
            )
        mask.hide(str(given.get("password", "")))
        self._parameters: dict[str, Any] = {**_PARAMETERS, **given}
        port = f":{given['port']}" if "port" in given else ""
        self.place = f"postgresql://{given.get('host', '')}{port}/{given.get('dbname', '')}"

    async def connect(self, purpose: str) -> AsyncConnection[Any]:
        """A new connection in autocommit mode: each statement is its own transaction."""
        parameters = {"application_name": f"autoscaler-{purpose}", **self._parameters}
        return await self._psycopg.AsyncConnection.connect(**parameters, autocommit=True)

    def connect_for_long(self) -> Connection[Any]:
        """A blocking connection for long work, without the deadlines of the daemon."""
        parameters = {"application_name": "autoscaler-state", **self._parameters}
        return self._psycopg.connect(**parameters, options=f"-c search_path={NAMESPACE}")

    def message(self, error: BaseException) -> str:
        """A message that says what has failed and what to do."""
        errors = self._psycopg.errors
        text = foreign_text(error)
        if isinstance(error, TimeoutError | errors.QueryCanceled | errors.LockNotAvailable):
            return f"{self.place} has not answered within {TIMEOUT:g} s: nothing is scaled until it does"
        if isinstance(error, errors.DiskFull):
            return f"{self.place} cannot be written: its disk is full. Decisions are not acted on until there is space"
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return f"{self.place} is read-only ({text}): daemon.state must name the primary server"
        if isinstance(error, errors.InsufficientPrivilege):
            return (
                f"{self.place} refuses ({text}): the user needs CREATE on the database, or its own schema {NAMESPACE!r}"
            )
        return f"{self.place} cannot be used: {text}"

    def refuses(self, error: BaseException) -> bool:
        """Whether the server has answered with a refusal that a retry cannot mend."""
        if not isinstance(error, self._psycopg.OperationalError):
            return isinstance(error, self._psycopg.Error)
        passing = ("starting up", "shutting down", "too many", "recovery", "remaining connection slots")
        text = str(error)
        return "FATAL:" in text and not any(word in text for word in passing)

    def is_read_only(self, error: BaseException) -> bool:
        """Whether the server does not accept writes, for example because it has become a standby."""
        return isinstance(error, self._psycopg.errors.ReadOnlySqlTransaction)

    def is_error(self, error: BaseException) -> bool:
        """Whether this is an error of the database or of the network."""
        return isinstance(error, self._psycopg.Error | OSError | TimeoutError)


class Link:
    """One connection, opened on demand; one use at a time.

    Args:
        database: the database.
        purpose: a part of the connection's `application_name`.
        prepare: called with each new connection before its first use.
    """

    def __init__(
        self, database: Database, purpose: str, prepare: Callable[[AsyncConnection[Any]], Awaitable[None]]
    ) -> None:
        self._database = database
        self._purpose = purpose
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection[Any] | None = None
        self._demotions = database.demotions
        self._pause = 0.0
        self._not_before = 0.0
        self._failure = ""
        self._given_up = False

    async def use(self, work: Callable[[AsyncConnection[Any]], Awaitable[R]], *, again: bool = True) -> R:
        """Run work with the connection, within `TIMEOUT`.

        Args:
            work: the work.
            again: whether the work may be repeated once with a new connection if the old one turns out to be lost.

        Raises:
            StoreError: the database cannot be used, or has not answered in time. It is not known whether the work was
                done.
        """
        until = time.monotonic() + TIMEOUT
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._lock.acquire()
        except TimeoutError as error:
            raise StoreError(self._database.message(error)) from error
        try:
            return await self._until(until, work, again=again)
        except Exception as error:
            if not self._database.is_error(error):
                raise
            raise StoreError(self._database.message(error)) from error
        finally:
            self._lock.release()

    async def close(self) -> None:
        """Close the connection, after all waiting uses."""
        async with self._lock:
            await self._drop()

    async def _until(self, until: float, work: Callable[[AsyncConnection[Any]], Awaitable[R]], *, again: bool) -> R:
        using = asyncio.ensure_future(self._use(work, again=again))
        try:
            done, _ = await asyncio.wait({using}, timeout=max(0.0, until - time.monotonic()))
        except asyncio.CancelledError:
            await self._give_up(using)
            raise
        if not done:
            await self._give_up(using)
            # Uses that have waited meanwhile must not wait for the next attempt as well.
            self._back_off(self._database.message(TimeoutError()))
            raise TimeoutError
        return using.result()

    async def _give_up(self, using: asyncio.Future[R]) -> None:
        """End a use that waits for an answer. If it were cancelled, psycopg would send a request to the same server."""
        self._given_up = True
        if self._connection is None:
            using.cancel()
        else:
            _shut_down(self._connection)
        with suppress(Exception, asyncio.CancelledError):
            await using
        self._given_up = False

    async def _use(self, work: Callable[[AsyncConnection[Any]], Awaitable[R]], *, again: bool) -> R:
        if self._demotions != self._database.demotions:
            await self._drop()  # a demoted server does not have the data of the new primary
        try:
            if (connection := self._connection) is None:
                return await work(await self._connect())
            try:
                return await work(connection)
            except Exception as error:
                lost = connection.closed and self._database.is_error(error)
                if not (lost and again) or self._given_up:
                    raise
                await self._drop()
                return await work(await self._connect())
        except Exception as error:
            if self._database.is_read_only(error):
                # All links reconnect, to the host that accepts writes now.
                self._database.demotions += 1
            raise
        finally:
            if self._connection is not None and not _is_idle(self._connection):
                await self._drop()

    async def _connect(self) -> AsyncConnection[Any]:
        if time.monotonic() < self._not_before:
            raise StoreError(self._failure)
        try:
            self._demotions = self._database.demotions
            self._connection = connection = await self._database.connect(self._purpose)
            settings = ", ".join("set_config(%s, %s, false)" for _ in _SETTINGS)
            await connection.execute(f"SELECT {settings}", [part for item in _SETTINGS.items() for part in item])
            await self._prepare(connection)
        except BaseException as error:
            if not self._given_up:
                self._back_off(str(error) if isinstance(error, StoreError) else self._database.message(error))
            await self._drop()
            raise
        self._pause = 0.0
        return connection

    def _back_off(self, failure: str) -> None:
        self._failure = failure
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _is_idle(connection: AsyncConnection[Any]) -> bool:
    return not connection.closed and connection.info.transaction_status == 0


def _shut_down(connection: AsyncConnection[Any]) -> None:
    """Shut down the socket: all waits for the connection get an error at once."""
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)
