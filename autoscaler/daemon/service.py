"""The daemon as a whole: start, reload and stop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from autoscaler.config.model import Config, DaemonSpec
from autoscaler.core.foreign import mask
from autoscaler.core.step import Decide, step
from autoscaler.core.wording import first_of
from autoscaler.daemon.connections import contained, expire, format_error, sleep_until_stopped
from autoscaler.daemon.controls import Controls
from autoscaler.daemon.discovery import Discoveries
from autoscaler.daemon.fleet import CANCEL_TIMEOUT, Fleet
from autoscaler.daemon.garbage import collect_on_growth
from autoscaler.daemon.history import History
from autoscaler.daemon.http_access import Access
from autoscaler.daemon.http_api import serve_http
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.logging import setup
from autoscaler.daemon.metrics import DaemonCollector, TickHistograms, loop_stalls, registry
from autoscaler.daemon.notifications import Notifications
from autoscaler.daemon.observer import FoundControls, utc_now
from autoscaler.daemon.sd_notify import Notifier
from autoscaler.daemon.stall_watch import StallWatch
from autoscaler.daemon.status import DaemonStatus, fleet_of
from autoscaler.daemon.stores import open_store, ownership_of
from autoscaler.daemon.tracing import tracing
from autoscaler.ports import ConfigurationError, StateStore, StoreError

log = logging.getLogger("autoscaler.daemon")

NOT_RELOADED = "configuration not reloaded: the previous one stays in use"

MAX_NAMED = 100
"""Most names of clusters in a log line."""

REFRESH = 2.0
"""Seconds between two reads of the controls, which other copies may have changed."""

OK = 0
INTERRUPTED = 130

REPEATED_SIGNAL = 0.3
"""Seconds within which a second signal counts as a copy of the first: a wrapper forwards signals to its group."""


CONFIG_POLL = 5.0
"""Seconds between two checks whether the path of the configuration leads to another file."""

LOAD_TIMEOUT = 60.0
"""Seconds that reading the configuration may take at a reload: a reload that hangs must not block the next ones."""


class Daemon(DaemonStatus):
    """A running daemon.

    Attributes:
        notifications: receivers of events of the clusters.
        registry: its metrics.
        stalls: the metric that counts stalls of the event loop.
        url: the URL of its HTTP endpoints, once they listen.
        access: the access control of the endpoints.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        store: StateStore,
        history: History,
        *,
        utc: Callable[[], datetime] = utc_now,
        dry_run: bool = False,
        decide: Decide = step,
        notifier: Notifier | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        self.store = store
        self.ownership = ownership or Ownership()
        self.history = history
        self.utc = utc
        self.dry_run = dry_run
        self.registry: CollectorRegistry = registry()
        self.stalls = loop_stalls(self.registry)
        self.reload_problems = ()
        self.loaded_at = utc()
        self.url: str | None = None
        self.controls = Controls(store, utc)
        self.fleet = Fleet(
            store,
            history,
            TickHistograms(self.registry).record_tick,
            utc=utc,
            dry_run=dry_run,
            decide=decide,
            ownership=self.ownership,
            find_controls=self.controls_of,
            ticked=lambda controller: self.notifications.ticked(controller),  # noqa: PLW0108 - created below
        )
        self.discoveries = Discoveries(self.fleet, store, utc=utc)
        self.notifications = Notifications(
            self.fleet.controllers, self.ownership, self.registry, utc, self.discoveries.shows
        )
        self.access = Access(config.daemon, store.add_audit, utc)
        self.config = config
        self._load = load
        self._notifier = notifier or Notifier()
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._loading: asyncio.Timeout | None = None
        self.registry.register(DaemonCollector(self))

    def controls_of(self, cluster: str, at: datetime) -> FoundControls:
        """The controls of a cluster in force at a time, including those on its member."""
        controls = self.controls.in_force(cluster, fleet_of(self.members, cluster), at)
        of_member = self.discoveries.controls.get(cluster, FoundControls())
        return FoundControls(controls + of_member.controls, of_member.remarks)

    def stop(self) -> None:
        """Request a stop, which takes effect between ticks."""
        self._stop.set()
        self._reload.set()
        expire(self._loading)

    def reload(self) -> None:
        """Request a reload of the configuration."""
        self._reload.set()

    async def run(self) -> None:
        """Control the clusters until stopped.

        Raises:
            ListenError: it cannot listen on its address.
            StoreError: the controls cannot be read from a store that only this daemon uses.
        """
        mask.hide(*self.config.secrets)
        refreshing: asyncio.Task[None] | None = None
        expiring = asyncio.create_task(self.access.log_expiries(), name="expiry of tokens")
        try:
            daemon = self.config.daemon
            if self.ownership.me is None:
                # Before the first cluster, so that a held one is not scaled, and before anybody can set a control.
                await self.controls.load()
            async with serve_http(self, self.registry, self.access, daemon.listen, daemon.hosts) as self.url:
                log.info(
                    "started",
                    extra={
                        "url": self.url,
                        "clusters": len(self.config.clusters),
                        "fleets": len(self.config.fleets),
                        "directory": str(daemon.directory),
                        "dry_run": self.dry_run,
                    },
                )
                _warn(self.config)
                if self.ownership.me is not None:
                    await self._wait_for_controls()
                    refreshing = asyncio.create_task(self._refresh_controls(), name="manual controls of other copies")
                self.notifications.apply(daemon.notifications)
                await self.discoveries.apply(self.config)
                self.ownership.start(self.fleet, advertised(daemon, self.url, os.environ))
                async with self._notifier.watching(self, self.fleet.connections.tried):
                    while True:
                        await self._reload.wait()
                        self._reload.clear()
                        if self._stop.is_set():
                            break
                        await self._notifier.reloading()
                        await self._reload_config()
                        await self._notifier.ready()
                log.info("stopping")
                if refreshing is not None:
                    refreshing.cancel()
                await self._notifier.stopping()
                await asyncio.gather(self._stop_clusters(), self.notifications.stop())
        except asyncio.CancelledError:
            await self.discoveries.stop()
            self.ownership.cancel()
            self.notifications.cancel()
            await self.fleet.cancel()
            log.warning("cancelled")
            raise
        finally:
            expiring.cancel()
        log.info("stopped")

    async def _stop_clusters(self) -> None:
        await self.discoveries.stop()
        await self.ownership.stop()
        await self.fleet.stop()

    async def _wait_for_controls(self) -> None:
        """Read the controls. A shared store may be unavailable at the start: retry until it answers."""
        logged = False
        while not self._stop.is_set():
            try:
                await self.controls.load()
            except StoreError as error:
                if not logged:
                    text = "manual controls cannot be read: no cluster is scaled until they are"
                    log.error(text, extra={"error": str(error)})  # noqa: TRY400 - it is complete
                    logged = True
                await sleep_until_stopped(self._stop, REFRESH)
            else:
                return

    async def _refresh_controls(self) -> None:
        """Read the controls that other copies have written, regularly until this is cancelled."""
        while True:
            await asyncio.sleep(REFRESH)
            await self.controls.refresh()

    async def _reload_config(self) -> None:
        try:
            # In a thread: reading the configuration of a thousand clusters would delay ticks.
            with contained():
                async with asyncio.timeout(LOAD_TIMEOUT) as self._loading:
                    config = await asyncio.to_thread(self._load)
        except ConfigurationError as error:
            self._refuse_reload(error.problems)
            return
        except Exception as error:
            if self._stop.is_set():  # a stop does not wait for a file that hangs
                return
            if self._loading is not None and self._loading.expired():
                problem = (
                    f"{self.config.path}: this file, or one that it includes, was not read within {LOAD_TIMEOUT:g} s: "
                    "check whether its disk hangs or it is a pipe, then reload"
                )
                self._refuse_reload((problem,))
                return
            # A defect of ours or of a plug-in must not stop the running controllers.
            self.reload_problems = (format_error(error),)
            log.exception(NOT_RELOADED)
            return
        finally:
            self._loading = None
        mask.hide(*config.secrets)
        _warn(config)
        old, new = self.config.daemon, config.daemon
        fixed = [
            (each.directory, each.state, each.listen, each.advertise, each.hosts, each.tls is None, each.tracing)
            for each in (old, new)
        ]
        if fixed[0] != fixed[1]:
            log.warning(
                "changes of daemon.directory, state, listen, advertise, hosts and tracing take effect after a restart, "
                "and so does adding or removing daemon.tls"
            )
        self.access.update(new)
        if old.log is not new.log:
            setup(new.log)
        self.store.decisions = new.decisions
        self.history.keep, self.history.compress = new.history, new.pack
        self.notifications.apply(new.notifications)
        added, removed, changed = await self.discoveries.apply(config)
        self.config = config
        self.reload_problems = ()
        self.loaded_at = self.utc()
        log.info(
            "configuration reloaded",
            extra={"added": _few(added), "removed": _few(removed), "changed": _few(changed)},
        )

    def _refuse_reload(self, problems: tuple[str, ...]) -> None:
        self.reload_problems = problems
        log.error(NOT_RELOADED, extra={"problems": len(problems)})
        for problem in problems:
            log.error(problem)


def advertised(daemon: DaemonSpec, url: str, environ: Mapping[str, str]) -> str:
    """The URL by which other copies reach the HTTP endpoints that listen at `url`.

    If the daemon listens on all addresses, that is the address of its pod or, outside Kubernetes, of its machine.
    """
    if daemon.advertise is not None:
        return daemon.advertise.rstrip("/")
    parts = urlsplit(url)
    if parts.hostname not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not listened on
        return url
    host = environ.get("POD_IP") or socket.gethostname()
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def _few(names: Collection[str]) -> list[str]:
    """The first names, for a log line: a template may change thousands of clusters."""
    return first_of(sorted(names), MAX_NAMED)


def _warn(config: Config) -> None:
    for warning in config.warnings:
        log.warning(warning)


async def _follow(files: dict[Path, str], signals: _Signals) -> None:
    """Reload when one of the paths leads to another file than before, as links of mounted ConfigMaps and Secrets do.

    A file edited in place does not trigger a reload, because it may be half written.
    """
    while True:
        for path, before in files.items():
            try:
                after = await asyncio.to_thread(os.path.realpath, path)
            except OSError as error:  # too many calls in threads: try again at the next poll
                log.debug("cannot resolve a path", extra={"error": str(error)})
                continue
            if after != before:
                files[path] = after
                log.info("a configured path leads to another file: reloading", extra={"file": after})
                signals.reload(signal.SIGHUP)
        await asyncio.sleep(CONFIG_POLL)


def _followed(config: Config, origin: str) -> dict[Path, str]:
    """The paths that may lead to another file, and the file each leads to now; for the configuration, `origin`."""
    files = {config.path: origin}
    if config.daemon.tls is not None:
        files[config.daemon.tls.certificate] = os.path.realpath(config.daemon.tls.certificate)
    return files


class _Signals:
    """The signals that this process has received, including those from before the daemon could handle them.

    Attributes:
        stops: the signals to stop.
        work: the task that a second signal to stop cancels.
    """

    def __init__(self) -> None:
        self.stops: list[signal.Signals] = []
        self.work: asyncio.Task[None] | None = None
        self._reload = False
        self._daemon: Daemon | None = None
        self._last = -math.inf

    def stop(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last < REPEATED_SIGNAL:
            return
        self._last = now
        self.stops.append(number)
        if len(self.stops) > 1 and self.work is not None:
            self.work.cancel()
        if self._daemon is not None:
            self._daemon.stop()

    def reload(self, _: signal.Signals) -> None:
        self._reload = True
        if self._daemon is not None:
            self._daemon.reload()

    def pass_to(self, daemon: Daemon) -> None:
        """Pass signals to this daemon, including those already received."""
        self._daemon = daemon
        if self._reload:
            daemon.reload()
        if self.stops:
            daemon.stop()


async def serve(config: Config, load: Callable[[], Config], origin: str, *, dry_run: bool = False) -> int:
    """Run a daemon in this process until a signal ends it.

    SIGTERM and SIGINT stop it between ticks; a second signal stops it at once. SIGHUP reloads the configuration, and so
    does a change of a link in its path, for example when a mounted ConfigMap changes.

    Args:
        config: the configuration to start with.
        load: reads the configuration again; raises ConfigurationError.
        origin: the file that the path of the configuration led to before it was read.
        dry_run: decide and record everything, but make no scale calls.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT or a second signal.

    Raises:
        StoreError: the state directory cannot be used.
        ListenError: the daemon cannot listen on its address.
    """
    notifier = Notifier.from_environment(os.environ)
    signals = _Signals()
    handlers = {signal.SIGTERM: signals.stop, signal.SIGINT: signals.stop, signal.SIGHUP: signals.reload}
    threads = frozenset(threading.enumerate())
    loop = asyncio.get_running_loop()
    # The handlers are installed before anything is opened, and until everything is closed.
    for number, act in handlers.items():
        loop.add_signal_handler(number, act, number)
    signals.work = asyncio.create_task(_serve(config, load, signals, notifier, dry_run=dry_run))
    following = asyncio.create_task(_follow(_followed(config, origin), signals), name="configuration file")
    # The command line blocks these signals while it reads the configuration.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
    try:
        await signals.work
    except asyncio.CancelledError:
        if not signals.stops:
            raise
        return await _end(INTERRUPTED, threads)
    finally:
        following.cancel()
        for number in handlers:
            loop.remove_signal_handler(number)
    return await _end(INTERRUPTED if signal.SIGINT in signals.stops[:1] else OK, threads)


async def _end(code: int, before: frozenset[threading.Thread]) -> int:
    """Cancel tasks that plug-ins have left behind. If a task or a thread does not end, end the process at once."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=CANCEL_TIMEOUT)
    if left:
        log.warning("tasks of plug-ins do not end", extra={"tasks": sorted(task.get_name() for task in left)})
        os._exit(code)
    # At exit Python would wait without limit for a thread that hangs in name resolution or in a foreign library.
    until = time.monotonic() + CANCEL_TIMEOUT
    threads = [each for each in threading.enumerate() if not each.daemon and each not in before]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        os._exit(code)
    return code


async def _serve(
    config: Config, load: Callable[[], Config], signals: _Signals, notifier: Notifier, *, dry_run: bool
) -> None:
    async with open_store(config.daemon) as store:
        history = History(config.daemon.directory / "history", config.daemon.history, compress=config.daemon.pack)
        await history.start()
        try:
            daemon = Daemon(
                config, load, store, history, dry_run=dry_run, notifier=notifier, ownership=ownership_of(store)
            )
            signals.pass_to(daemon)
            collecting = asyncio.create_task(collect_on_growth(), name="garbage collection")
            try:
                async with tracing(on=config.daemon.tracing):
                    with StallWatch(daemon.stalls.inc):
                        await daemon.run()
            finally:
                collecting.cancel()
        finally:
            await history.close()
