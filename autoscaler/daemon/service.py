"""The daemon as a whole: what it is made of, how it starts, reloads and stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from autoscaler.config.model import Cluster, Config
from autoscaler.core.step import step
from autoscaler.daemon.connections import Connections, format_error
from autoscaler.daemon.controller import Controller, Pace, Step
from autoscaler.daemon.history import History
from autoscaler.daemon.http_api import doors
from autoscaler.daemon.logging import setup
from autoscaler.daemon.metrics import DaemonCollector, Ticks, registry
from autoscaler.daemon.observer import Edges
from autoscaler.daemon.sd_notify import Notifier
from autoscaler.daemon.state_store import Journal, open_journal
from autoscaler.ports import ConfigurationError, DecisionSink, StateStore

log = logging.getLogger("autoscaler.daemon")

OK = 0
INTERRUPTED = 130

ECHO = 0.3
"""Seconds within which a signal is the one before again: a wrapper passes on what its whole process group was sent."""

LEAVING = 1.0
"""Seconds that what plug-ins have left behind may take to end once it is cancelled."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)  # noqa: TID251 - the one place where the wall clock is read


@dataclass(frozen=True, slots=True)
class _Running:
    controller: Controller
    edges: Edges
    stop: asyncio.Event
    task: asyncio.Task[None]


class Fleet:
    """All controllers of a configuration: started, exchanged one by one at a reload, stopped."""

    def __init__(
        self,
        store: StateStore,
        sink: DecisionSink,
        pace: Pace,
        *,
        utc: Callable[[], datetime] = utc_now,
        dry_run: bool = False,
        decide: Step = step,
    ) -> None:
        self.controllers: dict[str, Controller] = {}
        self.connections = Connections(dry_run=dry_run)
        self._config: Config | None = None
        self._running: dict[str, _Running] = {}
        self._store = store
        self._sink = sink
        self._pace = pace
        self._utc = utc
        self._dry_run = dry_run
        self._decide = decide

    async def apply(self, config: Config) -> tuple[set[str], set[str], set[str]]:
        """Make the controllers those of the configuration. Clusters that are not touched by it are not disturbed.

        Returns:
            The names of the clusters that were added, removed and changed.
        """
        before = self._config
        added = set(config.clusters) - set(self._running)
        removed = set(self._running) - set(config.clusters)
        changed = {
            name
            for name in set(config.clusters) & set(self._running)
            if before is None or _parts(before, name) != _parts(config, name)
        }
        leaving = {name: self._running[name] for name in sorted(removed | changed)}
        for running in leaving.values():
            running.stop.set()
        # Leased before the old ones are released: what both use stays connected.
        edges = {name: Edges(config, config.clusters[name], self.connections) for name in sorted(added | changed)}
        self._config = config
        for name in sorted(added):
            self._start(config.clusters[name], edges[name], None)

        async def replace(name: str, before: _Running) -> None:
            await before.task
            if name in changed:
                self._start(config.clusters[name], edges[name], before)
            else:
                del self._running[name], self.controllers[name]
            await before.edges.release()

        # Each for itself: one in the middle of a scale call keeps only its own successor waiting.
        await asyncio.gather(*(replace(name, before) for name, before in leaving.items()))
        return added, removed, changed

    async def stop(self) -> None:
        """End all controllers between two ticks and close what they used."""
        for running in self._running.values():
            running.stop.set()
        await asyncio.gather(*(running.task for running in self._running.values()))
        await self.connections.close()

    async def cancel(self) -> None:
        """End all controllers wherever they are. One in a call that will not be cancelled is left behind."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVING)

    def _start(self, cluster: Cluster, edges: Edges, before: _Running | None) -> None:
        controller = Controller(
            cluster,
            edges,
            self._store,
            self._sink,
            utc=self._utc,
            pace=self._pace,
            dry_run=self._dry_run,
            decide=self._decide,
        )
        if before is not None:
            controller.take_over(before.controller)
        stop = asyncio.Event()
        name = cluster.spec.name
        task = asyncio.create_task(controller.run(stop), name=f"controller {name}")
        self._running[name] = _Running(controller, edges, stop, task)
        self.controllers[name] = controller


def _parts(config: Config, name: str) -> tuple[object, ...]:
    """Everything in a configuration that a cluster depends on."""
    cluster = config.clusters[name]
    sources = {metric.source for metric in cluster.metrics.values()}
    return cluster, {source: config.sources[source] for source in sources}


class Daemon:
    """A running daemon.

    Attributes:
        journal, history: where decisions are kept.
        registry: its metrics.
        reload_problems: what was wrong with the configuration at the last reload; empty when it was taken.
        loaded: when the configuration was last taken.
        url: where its doors are, once they are open.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        journal: Journal,
        history: History,
        *,
        utc: Callable[[], datetime] = utc_now,
        dry_run: bool = False,
        decide: Step = step,
        notifier: Notifier | None = None,
    ) -> None:
        self.journal = journal
        self.history = history
        self.utc = utc
        self.dry_run = dry_run
        self.registry: CollectorRegistry = registry()
        self.reload_problems: tuple[str, ...] = ()
        self.loaded = utc()
        self.url = ""
        self.fleet = Fleet(journal, history, Ticks(self.registry), utc=utc, dry_run=dry_run, decide=decide)
        self._config = config
        self._load = load
        self._notifier = notifier or Notifier()
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self.registry.register(DaemonCollector(self))

    @property
    def controllers(self) -> dict[str, Controller]:
        """The controllers by the names of their clusters."""
        return self.fleet.controllers

    def stop(self) -> None:
        """Ask it to end, between ticks."""
        self._stop.set()
        self._reload.set()

    def reload(self) -> None:
        """Ask it to read its configuration again."""
        self._reload.set()

    async def run(self) -> None:
        """Control the clusters until told to stop. Raises ListenError when its address cannot be had."""
        try:
            async with doors(self, self._config.daemon.listen) as self.url:
                log.info(
                    "started",
                    extra={
                        "url": self.url,
                        "clusters": len(self._config.clusters),
                        "directory": str(self._config.daemon.directory),
                        "dry_run": self.dry_run,
                    },
                )
                _warn(self._config)
                await self.fleet.apply(self._config)
                async with self._notifier.watching(self):
                    while True:
                        await self._reload.wait()
                        self._reload.clear()
                        if self._stop.is_set():
                            break
                        await self._notifier.reloading()
                        await self._read_again()
                        await self._notifier.ready()
                log.info("stopping")
                await self._notifier.stopping()
                await self.fleet.stop()
        except asyncio.CancelledError:
            await self.fleet.cancel()
            log.warning("cancelled")
            raise
        log.info("stopped")

    async def _read_again(self) -> None:
        try:
            # In a thread: reading the configuration of a thousand clusters takes longer than a tick may be late.
            config = await asyncio.to_thread(self._load)
        except ConfigurationError as error:
            self.reload_problems = error.problems
            log.error("configuration not reloaded: the old one stays", extra={"problems": len(error.problems)})  # noqa: TRY400 - the problems follow
            for problem in error.problems:
                log.error(problem)  # noqa: TRY400 - told in full
            return
        except Exception as error:
            # A defect, of ours or of a plug-in: no reason to end what runs well.
            self.reload_problems = (format_error(error),)
            log.exception("configuration not reloaded: the old one stays")
            return
        _warn(config)
        old, new = self._config.daemon, config.daemon
        if (old.directory, old.listen) != (new.directory, new.listen):
            log.warning("daemon.directory and daemon.listen change only with a restart")
        if old.log is not new.log:
            setup(new.log)
        self.journal.decisions = new.decisions
        self.history.keep, self.history.pack = new.history, new.pack
        added, removed, changed = await self.fleet.apply(config)
        self._config = config
        self.reload_problems = ()
        self.loaded = self.utc()
        log.info(
            "configuration reloaded",
            extra={"added": sorted(added), "removed": sorted(removed), "changed": sorted(changed)},
        )


def _warn(config: Config) -> None:
    for warning in config.warnings:
        log.warning(warning)


class _Signals:
    """What this process is asked for by signals, also before there is a daemon to act on it.

    Attributes:
        stops: those that asked it to stop.
        work: what a second one cancels.
    """

    def __init__(self) -> None:
        self.stops: list[signal.Signals] = []
        self.work: asyncio.Task[None] | None = None
        self._reload = False
        self._daemon: Daemon | None = None
        self._last = -math.inf

    def stop(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last < ECHO:
            return
        self._last = now
        self.stops.append(number)
        if len(self.stops) > 1 and self.work is not None:
            self.work.cancel()
        if self._daemon is not None:
            self._daemon.stop()

    def reload(self, number: signal.Signals) -> None:
        del number
        self._reload = True
        if self._daemon is not None:
            self._daemon.reload()

    def pass_to(self, daemon: Daemon) -> None:
        """From now on to this daemon, what has come already included."""
        self._daemon = daemon
        if self._reload:
            daemon.reload()
        if self.stops:
            daemon.stop()


async def serve(config: Config, load: Callable[[], Config], *, dry_run: bool = False) -> int:
    """Run a daemon in this process until a signal ends it.

    SIGTERM and SIGINT stop it between ticks, a second one at once; SIGHUP reads the configuration again.

    Args:
        config: what to start with.
        load: reads the configuration again; raises ConfigurationError.
        dry_run: decide and keep everything, call no target.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT or when it was cut short.

    Raises:
        StoreError: the state directory cannot be used.
        ListenError: the address cannot be listened on.
    """
    notifier = Notifier.from_environment(os.environ)
    signals = _Signals()
    handlers = {signal.SIGTERM: signals.stop, signal.SIGINT: signals.stop, signal.SIGHUP: signals.reload}
    loop = asyncio.get_running_loop()
    # Before anything is opened, until everything is closed.
    for number, act in handlers.items():
        loop.add_signal_handler(number, act, number)
    signals.work = asyncio.create_task(_serve(config, load, signals, notifier, dry_run=dry_run))
    # The command line holds them back while it reads the configuration.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
    try:
        await signals.work
    except asyncio.CancelledError:
        if not signals.stops:
            raise
        return await _end(INTERRUPTED)
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
    return await _end(INTERRUPTED if signal.SIGINT in signals.stops[:1] else OK)


async def _end(code: int) -> int:
    """Cancel what plug-ins have left on the loop; what does not even end then ends with the process, and now."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=LEAVING)
    if left:
        log.warning("plug-ins left behind", extra={"tasks": sorted(task.get_name() for task in left)})
        os._exit(code)
    return code


async def _serve(
    config: Config, load: Callable[[], Config], signals: _Signals, notifier: Notifier, *, dry_run: bool
) -> None:
    async with open_journal(config.daemon.directory, decisions=config.daemon.decisions) as journal:
        history = History(config.daemon.directory / "history", config.daemon.history, pack=config.daemon.pack)
        await history.start()
        try:
            daemon = Daemon(config, load, journal, history, dry_run=dry_run, notifier=notifier)
            signals.pass_to(daemon)
            # What is there now stays: looking through it at every full collection makes ticks late by 0.1 s and more.
            gc.collect()
            gc.freeze()
            await daemon.run()
        finally:
            await history.close()
