"""`GET /api/v1/events`: server-sent events with changed rows, for open pages.

While there are listeners, one event a second is built for all of them. The daemon waits for no listener: it disconnects
one that reads too slowly, and that one reconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import resource
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

from aiohttp import HttpVersion11, hdrs, web

from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.http_access import ACCESS
from autoscaler.daemon.http_requests import CONNECTIONS, STATUS
from autoscaler.daemon.peers import Peers, is_alone
from autoscaler.daemon.renderer import RENDERER
from autoscaler.daemon.rows import clusters_beside, row_document
from autoscaler.daemon.status import ClusterSnapshot

log = logging.getLogger("autoscaler.daemon.events")

PERIOD = 1.0
"""Seconds between two events."""

PEERS_PERIOD = 2.0
"""Seconds between two requests to other copies for their rows."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: proxies close idle connections."""

MAX_LISTENERS = 1200
"""Most concurrent listeners; the limit is also at most half of the descriptors that the process may have."""

MAX_UNREAD = 64 * 1024
"""Bytes of earlier events that a listener may leave unread, in addition to `SYSTEM_BUFFER`."""

SYSTEM_BUFFER = 256 * 1024
"""Bytes of the socket's send buffer for each listener; the system's default would be megabytes."""

_COMMENT = b":\n\n"

_AT_ONCE = 8
"""Greetings in one iteration of the loop: after a restart of the daemon, a thousand pages reconnect at once."""


@dataclass(slots=True, eq=False)
class _Listener:
    request: web.Request
    done: asyncio.Future[None]
    greeted: bool = False

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Events:
    """The listeners, and the rows that they know."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._work: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._known: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, ClusterSnapshot] = {}
        self._others: Sequence[Mapping[str, Any]] = ()
        self._ask_at = -math.inf
        self._turns = asyncio.Semaphore(_AT_ONCE)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = MAX_LISTENERS if descriptors < 0 else max(1, min(MAX_LISTENERS, descriptors // 2))

    async def listen(
        self,
        request: web.Request,
        response: web.StreamResponse,
        hello: Mapping[str, object],
        seconds: float | None = None,
    ) -> None:
        """Send events until the client leaves, reads too slowly, `seconds` are over, or this object is closed.

        Raises:
            HTTPServiceUnavailable: there are too many listeners.
        """
        if len(self._listeners) >= self.limit:
            text = (
                f"already {self.limit} event streams are open, the maximum: close browser pages, or raise the daemon's "
                f"limit of open files (half of it is used for streams, at most {MAX_LISTENERS})"
            )
            raise web.HTTPServiceUnavailable(text=text)
        loop = asyncio.get_running_loop()
        listener = _Listener(request, loop.create_future())
        self._listeners.append(listener)
        try:
            if self._work is None:
                self._ready = loop.create_future()
                self._work = asyncio.create_task(self._run(), name="events")
            async with self._turns:
                await asyncio.sleep(0)
            # The first event must compare with rows that are older than any the client reads after the greeting.
            await asyncio.shield(self._ready)
            await response.prepare(request)
            if request.transport is not None:
                opened: socket.socket = request.transport.get_extra_info("socket")
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER)
            listener.greeted = True  # set it before: the write first sends, and only then may wait
            await response.write(_event("hello", hello))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await listener.done
        finally:
            self._listeners.remove(listener)

    def close(self) -> None:
        """Disconnect all listeners."""
        if self._work is not None:
            self._work.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._changes()  # listeners that come now read these rows themselves
            self._ready.set_result(None)
            begun = spoke = loop.time()
            while self._listeners:
                await asyncio.sleep(begun + PERIOD - loop.time())
                begun = loop.time()
                event = await self._changes()
                if not event and begun - spoke >= HEARTBEAT:
                    event = _COMMENT
                spoke = begun if event else spoke
                await self._send(event)
        except Exception:
            log.exception("cannot build events: all event streams are closed")
        finally:
            self._work = None
            self._known, self._seen = {}, {}
            if not self._ready.done():
                self._ready.set_result(None)
            for listener in self._listeners:
                listener.end()

    async def _send(self, event: bytes) -> None:
        # Encode the chunk once for all listeners, in the same way as aiohttp would for each.
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        slices = Slices()
        for listener in [*self._listeners]:
            await slices.turn()
            transport = listener.request.transport
            if transport is None or transport.is_closing():
                listener.end()
            elif event and listener.greeted:
                if transport.get_write_buffer_size() > MAX_UNREAD:
                    transport.abort()
                    listener.end()
                else:
                    transport.write(chunk if listener.request.version >= HttpVersion11 else event)

    async def _changes(self) -> bytes:
        """The rows that differ from the last call, as an event; empty if none does."""
        if not self._listeners:
            return b""
        request, loop = self._listeners[0].request, asyncio.get_running_loop()
        status, alone = request.app[STATUS], is_alone(request)
        if not alone and loop.time() >= self._ask_at:
            # With the rights of any listener: each of them may read all rows.
            answers = await Peers.of(request).ask(request.clone(rel_url="/api/v1/clusters"))
            self._others = [row for answer in answers for row in answer.body.get("clusters", ())]
            self._ask_at = loop.time() + PEERS_PERIOD
        others = () if alone else self._others
        clusters = await clusters_beside(status, None if alone else others)
        now = status.utc()
        return await request.app[RENDERER].render(lambda: self._compare(clusters, others, now))

    def _compare(
        self, clusters: Sequence[ClusterSnapshot], others: Sequence[Mapping[str, Any]], now: datetime
    ) -> bytes:
        """Run in the renderer's thread; nothing else uses the known rows meanwhile."""
        known, seen = self._known, self._seen
        self._seen = {cluster.name: cluster for cluster in clusters}
        self._known = {row["name"]: dict(row) for row in others}
        for name, cluster in self._seen.items():
            same = name in known and seen.get(name) == cluster
            self._known[name] = known[name] if same else row_document(cluster, now)
        changed = [row for name, row in self._known.items() if not _is_same(row, known.get(name))]
        gone = [name for name in known if name not in self._known]
        return _event("rows", {"clusters": changed, "gone": gone}) if changed or gone else b""


def _is_same(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a client knows a row already. The age is ignored, because it always grows."""
    return before is row or (before is not None and {**before, "age": row["age"]} == row)


def _event(name: str, data: Mapping[str, object]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


EVENTS: web.AppKey[Events] = web.AppKey("events")
"""The events of an application."""


async def events(request: web.Request) -> web.StreamResponse:
    """The endpoint."""
    request.app[CONNECTIONS].forget(request.protocol)  # a stream stays open, and streams have their own limit
    access = request.app[ACCESS]
    response = web.StreamResponse(
        headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"}
    )
    response.force_close()
    hello = {
        "version": version("reactive-autoscaler"),
        "by": access.holder(request),
        "writable": access.may_write(request),
        "tokens": access.has_writers,
        "problem": access.problem(request),
    }
    # Once the token expires, the stream ends: the client's next request gets the 401 that says so.
    await request.app[EVENTS].listen(request, response, hello, access.time_left(request))
    return response
