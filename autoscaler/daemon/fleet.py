"""All controllers of a configuration: started, replaced one by one at a reload, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from autoscaler.config.model import Cluster, Config
from autoscaler.core.step import Decide, step
from autoscaler.daemon.connections import ClusterConnections, Connections
from autoscaler.daemon.controller import Controller, TickRecorder
from autoscaler.daemon.observer import utc_now
from autoscaler.ports import DecisionSink, StateStore

CANCEL_TIMEOUT = 1.0
"""Seconds that cancelled tasks may take to end."""


@dataclass(frozen=True, slots=True)
class _Running:
    controller: Controller
    connections: ClusterConnections
    stop: asyncio.Event
    task: asyncio.Task[None]

    def end(self) -> None:
        """Have it end: an observation under way is dropped, a scale call is waited for."""
        self.stop.set()
        self.controller.interrupt()


class Fleet:
    """The running controllers, by the names of their clusters."""

    def __init__(
        self,
        store: StateStore,
        sink: DecisionSink,
        tick_recorder: TickRecorder,
        *,
        utc: Callable[[], datetime] = utc_now,
        dry_run: bool = False,
        decide: Decide = step,
    ) -> None:
        self.controllers: dict[str, Controller] = {}
        self.connections = Connections(dry_run=dry_run)
        self._config: Config | None = None
        self._running: dict[str, _Running] = {}
        self._store = store
        self._sink = sink
        self._tick_recorder = tick_recorder
        self._utc = utc
        self._dry_run = dry_run
        self._decide = decide

    async def apply(self, config: Config) -> tuple[set[str], set[str], set[str]]:
        """Make the controllers those of the configuration. Clusters that it does not change are not disturbed.

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
            running.end()
        # Leased before the old ones are released: what both use stays connected.
        leased = {
            name: ClusterConnections(config, config.clusters[name], self.connections)
            for name in sorted(added | changed)
        }
        self._config = config
        for name in sorted(added):
            self._start(config.clusters[name], leased[name], None)

        async def replace(name: str, before: _Running) -> None:
            await before.task
            if name in changed:
                self._start(config.clusters[name], leased[name], before)
            else:
                del self._running[name], self.controllers[name]
            await before.connections.release()

        # Independently: one in the middle of a scale call delays only its own successor.
        await asyncio.gather(*(replace(name, before) for name, before in leaving.items()))
        return added, removed, changed

    async def stop(self) -> None:
        """End all controllers between two ticks and close their connections."""
        for running in self._running.values():
            running.end()
        await asyncio.gather(*(running.task for running in self._running.values()))
        await self.connections.close()

    async def cancel(self) -> None:
        """End all controllers immediately. One in a call that cannot be cancelled is abandoned."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)

    def _start(self, cluster: Cluster, connections: ClusterConnections, before: _Running | None) -> None:
        controller = Controller(
            cluster,
            connections,
            self._store,
            self._sink,
            utc=self._utc,
            tick_recorder=self._tick_recorder,
            dry_run=self._dry_run,
            decide=self._decide,
        )
        if before is not None:
            controller.adopt_state_of(before.controller)
        stop = asyncio.Event()
        name = cluster.spec.name
        task = asyncio.create_task(controller.run(stop), name=f"controller {name}")
        self._running[name] = _Running(controller, connections, stop, task)
        self.controllers[name] = controller


def _parts(config: Config, name: str) -> tuple[object, ...]:
    """Everything in a configuration that a cluster depends on."""
    cluster = config.clusters[name]
    sources = {metric.source for metric in cluster.metrics.values()}
    return cluster, {source: config.sources[source] for source in sources}
