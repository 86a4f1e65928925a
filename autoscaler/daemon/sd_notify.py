"""Reports the status of the daemon to systemd: sd_notify(3), sd_watchdog_enabled(3).

The protocol is one datagram, so it is implemented here. `sdnotify` (last released in 2017) blocks when the manager is
slow, and either hides every error or raises it; other packages need libsystemd and a compiler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress

from autoscaler.daemon.connections import CONNECT_TIMEOUT
from autoscaler.daemon.status import DaemonStatus, health

log = logging.getLogger("autoscaler.daemon.sd_notify")

POLL_INTERVAL = 5.0
"""Seconds between two polls of the controllers; half the watchdog time, if that is shorter."""

SEND_TIMEOUT = 1.0
"""Seconds within which the manager must accept a message."""


class Notifier:
    """Sends messages to the service manager, if there is one.

    A message that cannot be sent is logged once and affects nothing else.

    Attributes:
        address: path of the manager's datagram socket, or @name of an abstract one; None: no manager.
        watchdog: seconds without a sign of life after which the manager restarts the daemon; None: no watchdog.
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self.address = address
        self.watchdog = watchdog
        self._failure: str | None = None
        self._status: str | None = None
        self._owes_ready = False
        self._withheld = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """The notifier that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` define.

        They are removed from the environment, because they are meant for this process and not for its children.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        period = environ.pop("WATCHDOG_USEC", "")
        process = environ.pop("WATCHDOG_PID", "")
        if address and not address.startswith(("/", "@")):
            log.warning("NOTIFY_SOCKET is not used: expected a path or @name", extra={"value": address})
            address = ""
        if period and not (period.isascii() and period.isdecimal() and int(period) > 0):
            log.warning("WATCHDOG_USEC is not used: expected microseconds", extra={"value": period})
            period = ""
        watched = address and period and process in {"", str(os.getpid())}
        return cls(address or None, int(period) / 1e6 if watched else None)

    async def ready(self) -> None:
        """Report that the start, or a reload, is complete."""
        self._owes_ready = not await self._send("READY=1")

    async def reloading(self) -> None:
        """Report that a reload of the configuration has begun; `ready` ends it."""
        # A manager that waits for the reload (Type=notify-reload) identifies it by this time.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        await self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    async def stopping(self) -> None:
        """Report that the daemon is stopping."""
        await self._send("STOPPING=1", "STATUS=stopping")

    @asynccontextmanager
    async def watching(self, daemon: DaemonStatus, connected: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """While the context is open, report the completed start, the status of the clusters, and signs of life.

        Args:
            daemon: the daemon whose status is reported.
            connected: returns when every plug-in has tried to connect.
        """
        if not self.address:
            yield
            return
        watch = asyncio.create_task(self._watch(daemon, connected), name="sd_notify")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    async def _watch(self, daemon: DaemonStatus, connected: Callable[[], Awaitable[None]]) -> None:
        # A plug-in that does not end when it is cancelled must not delay READY.
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT + SEND_TIMEOUT):
                await connected()
        self._owes_ready = True
        while True:
            await self._poll(daemon)
            await asyncio.sleep(POLL_INTERVAL if self.watchdog is None else min(POLL_INTERVAL, self.watchdog / 2))

    async def _poll(self, daemon: DaemonStatus) -> None:
        alive, text = health(daemon, asyncio.get_running_loop().time())
        lines = ["READY=1"] if self._owes_ready else []
        if text != self._status:
            lines.append(f"STATUS={text}")
        if self.watchdog is not None:
            if alive:
                lines.append("WATCHDOG=1")
            if self._withheld is alive:
                self._withheld = not alive
                if alive:
                    log.info("ticks finish again: the watchdog is notified")
                else:
                    log.error("no tick finishes: the watchdog is not notified", extra={"watchdog": self.watchdog})
        if lines and await self._send(*lines):
            self._owes_ready, self._status = False, text

    async def _send(self, *lines: str) -> bool:
        """Send a message. Returns whether it was accepted; True if there is no manager."""
        if not self.address:
            return True
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            # A new socket for each message: the manager may have been restarted since the last one.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.connect(address)
                async with asyncio.timeout(SEND_TIMEOUT):
                    await asyncio.get_running_loop().sock_sendall(out, "\n".join(lines).encode())
        except OSError as error:  # a time-out is one
            failure = str(error) or f"not accepted within {SEND_TIMEOUT:g} s"
            if failure != self._failure:
                self._failure = failure
                log.warning("cannot notify the service manager", extra={"address": self.address, "error": failure})
            return False
        self._failure = None
        return True
