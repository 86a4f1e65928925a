"""Telling a service manager how the daemon is, by systemd's protocol: sd_notify(3), sd_watchdog_enabled(3).

Written here: it is one datagram, and the packages for it do not do better. `sdnotify` (last released in 2017) blocks
when the manager is slow, and either hides every error or raises it; others need libsystemd and a compiler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from autoscaler.daemon.connections import OPENING

if TYPE_CHECKING:
    from autoscaler.daemon.service import Daemon

log = logging.getLogger("autoscaler.daemon.sd_notify")

LOOK = 5.0
"""Most seconds between two looks at the controllers; a short watchdog time asks for more."""

SENDING = 1.0
"""Seconds one message may take to be accepted."""

_MOST_NAMED = 5


class Notifier:
    """Speaks to the service manager; where there is none, says nothing.

    Nothing the daemon does fails because a message cannot be sent: that is logged, once.

    Attributes:
        address: path of the manager's datagram socket, or @name of an abstract one; empty when there is no manager.
        watchdog: seconds without a sign of life after which the manager restarts the daemon; None when it does not.
    """

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        self.address = address
        self.watchdog = watchdog
        self._trouble = ""
        self._status = ""
        self._owes_ready = False
        self._withheld = False

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """The notifier that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` ask for.

        They are taken out of the environment: they are meant for this process, not for those that it starts.
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
        return cls(address, int(period) / 1e6 if watched else None)

    async def ready(self) -> None:
        """Say that the start, or a reload, is over."""
        self._owes_ready = not await self._send("READY=1")

    async def reloading(self) -> None:
        """Say that the configuration is read again, until `ready`."""
        # By the time a manager that waits for it (Type=notify-reload) knows which reload this is.
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        await self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    async def stopping(self) -> None:
        """Say that the daemon is ending."""
        await self._send("STOPPING=1", "STATUS=stopping")

    @asynccontextmanager
    async def watching(self, daemon: Daemon) -> AsyncIterator[None]:
        """Inside, the manager hears when the start is over, how the clusters are, and signs of life."""
        if not self.address:
            yield
            return
        watch = asyncio.create_task(self._watch(daemon), name="systemd")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    async def _watch(self, daemon: Daemon) -> None:
        # A plug-in that does not even let itself be given up must not keep the others from being served.
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENING + SENDING):
                await daemon.fleet.connections.tried()
        self._owes_ready = True
        while True:
            await self._look(daemon)
            await asyncio.sleep(LOOK if self.watchdog is None else min(LOOK, self.watchdog / 2))

    async def _look(self, daemon: Daemon) -> None:
        alive, text = alive_and_status(daemon, asyncio.get_running_loop().time())
        lines = ["READY=1"] if self._owes_ready else []
        if text != self._status:
            lines.append(f"STATUS={text}")
        if self.watchdog is not None:
            if alive:
                lines.append("WATCHDOG=1")
            if self._withheld is alive:
                self._withheld = not alive
                if alive:
                    log.info("ticks finish again")
                else:
                    log.error("no tick finishes: the watchdog is told nothing", extra={"watchdog": self.watchdog})
        if lines and await self._send(*lines):
            self._owes_ready, self._status = False, text

    async def _send(self, *lines: str) -> bool:
        """Send a message. Returns whether it was accepted; where nobody listens, it counts as that."""
        if not self.address:
            return True
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            # A socket for each message: the manager may have been restarted since the last one.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.connect(address)
                async with asyncio.timeout(SENDING):
                    await asyncio.get_running_loop().sock_sendall(out, "\n".join(lines).encode())
        except OSError as error:  # a time-out is one
            trouble = str(error) or f"not accepted within {SENDING:g} s"
            if trouble != self._trouble:
                self._trouble = trouble
                log.warning("the service manager cannot be told", extra={"address": self.address, "error": trouble})
            return False
        self._trouble = ""
        return True


def alive_and_status(daemon: Daemon, now: float) -> tuple[bool, str]:
    """Whether ticks finish, and how the clusters are in one line.

    One cluster whose ticks finish is enough to be alive: the daemon is not restarted for the trouble of the others.

    Args:
        daemon: whose controllers to look at.
        now: the loop's time.
    """
    controllers = daemon.controllers.values()
    overdue = {c.name for c in controllers if c.overdue(now)}
    waiting = {c.name for c in controllers if c.decision is None} - overdue
    trouble = sorted(overdue | {c.name for c in controllers if c.problem and c.name not in waiting})
    parts = [f"{len(controllers)} cluster{'' if len(controllers) == 1 else 's'}"]
    if daemon.dry_run:
        parts[0] += " (dry run)"
    if waiting:
        parts.append(f"{len(waiting)} not observed yet")
    if trouble:
        more = ", …" if len(trouble) > _MOST_NAMED else ""
        parts.append(f"{len(trouble)} in trouble: {', '.join(trouble[:_MOST_NAMED])}{more}")
    if daemon.reload_problems:
        parts.append("the configuration file was refused, the old one stays")
    return len(overdue) < len(controllers) or not controllers, "; ".join(parts)
