"""Limits on the connections of our HTTP servers: their number, and how long each may take.

A client that sends nothing, sends half a request, or does not read its answer holds a descriptor that others need.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger("autoscaler.http_connections")

IDLE_TIMEOUT = 30.0
"""Seconds from connecting within which a client must send its first complete request."""

KEEP_ALIVE = 90.0
"""Seconds from an answer within which a client must send its next complete request.

It is longer than scrapers and reverse proxies keep a connection, which is mostly 60 s.
"""

ANSWER_TIMEOUT = 30.0
"""Seconds from a request within which the client must read the whole answer."""

HANDSHAKE_TIMEOUT = 5.0
"""Seconds that a TLS handshake may take."""

MAX_CONNECTIONS = 256
"""Most open connections; the limit is also at most a quarter of the descriptors that the process may have."""

ACCEPTED = 16
"""Connections that asyncio accepts at a time, before any of them is counted; more wait in the kernel."""

_BACKLOG = 1024

# A client that does not speak HTTP gets an answer. Neither such clients nor those that disconnect may fill the log.
_protocol = logging.getLogger("autoscaler.http_connections.protocol")
_OF_CLIENTS = HttpProcessingError | web.RequestPayloadError | ConnectionError
_protocol.addFilter(lambda line: not (line.exc_info and isinstance(line.exc_info[1], _OF_CLIENTS)))


class Connections:
    """All open connections.

    Above the limit, the connection that has been idle longest is closed, so that a probe gets its answer however many
    clients do nothing. If every other connection has a request, the new connection is closed.
    """

    def __init__(self) -> None:
        self._idle: dict[_Counted, asyncio.TimerHandle] = {}
        self._busy: dict[_Counted, asyncio.TimerHandle] = {}
        self._full = False
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = MAX_CONNECTIONS if descriptors < 0 else max(1, min(MAX_CONNECTIONS, descriptors // 4))

    async def listen(
        self,
        server: web.Server,
        host: str | None = None,
        port: int | None = None,
        *,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Server:
        """Accept connections at an address or on a listening socket, with TLS if it is given. Raises OSError."""
        loop = asyncio.get_running_loop()

        def connect() -> _Connection:
            return _Connection(self, server, loop=loop, access_log=None, logger=_protocol)

        listener = await loop.create_server(
            connect if tls is None else lambda: _Handshake(self, connect, tls),
            host,
            port,  # type: ignore[arg-type]  # either an address or a socket
            sock=sock,  # type: ignore[arg-type]
            backlog=ACCEPTED,
        )
        for each in listener.sockets:
            with each.dup() as copy:
                copy.listen(_BACKLOG)
        return listener

    @contextmanager
    def busy(self, connection: web.RequestHandler) -> Iterator[None]:
        """Count a connection as busy while its request is answered."""
        self.forget(connection)
        self._add(self._busy, connection, ANSWER_TIMEOUT)
        try:
            yield
        finally:
            self.forget(connection)
            transport = connection.transport
            if transport is not None and not transport.is_closing():  # else it was closed or lost meanwhile
                self._add(self._idle, connection, KEEP_ALIVE)

    @contextmanager
    def receiving(self, connection: web.RequestHandler) -> Iterator[None]:
        """Count a connection as idle while the rest of its request is read: half a request must not block others."""
        if connection not in self._busy:
            yield
            return
        self.forget(connection)
        self._add(self._idle, connection, IDLE_TIMEOUT)
        try:
            yield
        finally:
            if connection in self._idle:  # else it was closed or lost meanwhile
                self.forget(connection)
                self._add(self._busy, connection, ANSWER_TIMEOUT)

    def extend(self, connection: web.RequestHandler, seconds: float) -> None:
        """Give a request these additional seconds, once it has been received completely."""
        if connection in self._busy:
            self.forget(connection)
            self._add(self._busy, connection, seconds + ANSWER_TIMEOUT)

    def opened(self, connection: _Counted) -> None:
        """Count a new connection."""
        self._add(self._idle, connection, IDLE_TIMEOUT)
        number = len(self._idle) + len(self._busy)
        if number > self.limit:
            if not self._full:
                log.warning("too many HTTP connections: idle ones are closed", extra={"limit": self.limit})
            self._full = True
            self._close(next(iter(self._idle)))
        elif number < self.limit // 2:
            self._full = False

    def forget(self, connection: _Counted) -> None:
        """Stop counting a connection."""
        timer = self._idle.pop(connection, None) or self._busy.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _add(self, to: dict[_Counted, asyncio.TimerHandle], connection: _Counted, s: float) -> None:
        to[connection] = asyncio.get_running_loop().call_later(s, self._close, connection)

    def _close(self, connection: _Counted) -> None:
        self.forget(connection)
        # Not close(): it waits until the client has read all written bytes.
        if isinstance(connection.transport, asyncio.WriteTransport):
            connection.transport.abort()


class _Connection(web.RequestHandler):
    __slots__ = ("_connections",)

    def __init__(self, connections: Connections, server: web.Server, **options: object) -> None:
        super().__init__(server, **options)  # type: ignore[arg-type]  # those of `listen`
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.forget(self)
        super().connection_lost(exc)


class _Handshake(asyncio.Protocol):
    """A connection during its TLS handshake. It counts like others; asyncio's server would count it only afterwards.

    Args:
        connections: the connections among which it counts.
        connect: makes the connection that follows the handshake.
        tls: the context with the certificate.
    """

    def __init__(self, connections: Connections, connect: Callable[[], _Connection], tls: ssl.SSLContext) -> None:
        self.transport: asyncio.Transport | None = None
        self._connections = connections
        self._connect = connect
        self._tls = tls
        self._received = bytearray()
        self._lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a server's has both directions
        self.transport = transport
        transport.pause_reading()
        self._connections.opened(self)
        self._task = asyncio.create_task(self._shake(transport), name="TLS handshake")

    def data_received(self, data: bytes) -> None:
        # These bytes came with the end of the handshake.
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost = True
        self._connections.forget(self)

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport, self, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT
            )
        except OSError:  # not TLS, an unsupported version, or too slow
            return
        finally:
            self._connections.forget(self)
        if secure is None or self._lost:
            return
        connection = self._connect()
        secure.set_protocol(connection)
        connection.connection_made(secure)
        if self._received:
            connection.data_received(bytes(self._received))


_Counted: TypeAlias = web.RequestHandler | _Handshake
