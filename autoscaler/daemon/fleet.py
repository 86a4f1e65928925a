"""Runs the controllers of a configuration: starts them, replaces changed ones at a reload, and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from autoscaler.config.model import Cluster, Config
from autoscaler.core.step import Decide, step
from autoscaler.daemon.connections import ClusterConnections, Connections, equal
from autoscaler.daemon.controller import Controller, RecordTick, Ticked
from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.observer import FindControls, no_controls, utc_now
from autoscaler.ports import ClusterStore, DecisionSink

CANCEL_TIMEOUT = 1.0
"""Seconds that cancelled tasks may take to end."""

END_TIMEOUT = 0.5
"""Seconds for which `Fleet.follow` waits for controllers that end before it returns."""


@dataclass(frozen=True, slots=True)
class _Running:
    controller: Controller
    connections: ClusterConnections
    stop: asyncio.Event
    task: asyncio.Task[None]

    def end(self) -> None:
        """Ask the controller to end: it abandons an observation in progress, but completes a scale call."""
        self.stop.set()
        self.controller.interrupt()


@dataclass(slots=True)
class _Ending:
    """A controller that is ending, which takes as long as its scale call.

    Attributes:
        running: the controller.
        successor: the cluster that follows under the same name, with its connections; None: no successor.
        unused: connections of successors that were superseded and never start.
        task: waits for the end, and starts the successor.
    """

    running: _Running
    successor: tuple[Cluster, ClusterConnections] | None = None
    unused: list[ClusterConnections] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Changes(NamedTuple):
    """The changes by a configuration: names of clusters, and tasks that end when the old controllers have ended."""

    added: set[str]
    removed: set[str]
    changed: set[str]
    ending: list[asyncio.Task[None]]


class Fleet:
    """The running controllers, by the names of their clusters.

    Attributes:
        controllers: the controllers of the clusters that this copy controls.
        ownership: tells which clusters these are.
        template_problems: name of a member's cluster -> why it keeps earlier values in its fleet's template.
    """

    def __init__(
        self,
        store: ClusterStore,
        sink: DecisionSink,
        record_tick: RecordTick,
        *,
        utc: Callable[[], datetime] = utc_now,
        dry_run: bool = False,
        decide: Decide = step,
        ownership: Ownership | None = None,
        find_controls: FindControls = no_controls,
        ticked: Ticked = lambda _: None,
    ) -> None:
        self.controllers: dict[str, Controller] = {}
        self.connections = Connections(dry_run=dry_run)
        self.template_problems: Mapping[str, str] = {}
        self.ownership = ownership or Ownership()
        self._config: Config | None = None
        self._lock = asyncio.Lock()
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, _Ending] = {}
        self._stopped = False
        self._store = store
        self._sink = sink
        self._record_tick = record_tick
        self._utc = utc
        self._dry_run = dry_run
        self._decide = decide
        self._find_controls = find_controls
        self._ticked = ticked

    async def apply(self, config: Config) -> tuple[set[str], set[str], set[str]]:
        """Make the controllers match the configuration, and wait until the old ones have ended.

        Returns:
            The names of the clusters that were added, removed and changed.
        """
        changes = await self.change(config)
        await asyncio.gather(*changes.ending)
        return changes.added, changes.removed, changes.changed

    @property
    def wanted(self) -> Mapping[str, Cluster]:
        """All clusters of the configuration, whichever copy controls them."""
        return {} if self._config is None else self._config.clusters

    @property
    def running(self) -> Collection[str]:
        """The names of the clusters that have a controller here, including controllers that are ending."""
        return self._running.keys()

    async def follow(self) -> None:
        """Match the controllers to the leases that this copy holds, and wait up to `END_TIMEOUT` for those that end."""
        if self._config is not None:
            ending = (await self.change(None)).ending
            if ending:
                await asyncio.wait(ending, timeout=END_TIMEOUT)

    async def change(self, config: Config | None) -> Changes:
        """Run a controller for each cluster of the configuration whose lease this copy holds; None: of the present one.

        Unchanged clusters are not disturbed, and their ticks are not late, however many others change. A controller in
        the middle of a scale call delays only its own successor; this method does not wait for it.
        """
        async with self._lock:
            config = config or self._config
            assert config is not None  # noqa: S101 - the first call passes a configuration
            return await self._change(config)

    async def _change(self, config: Config) -> Changes:
        before, slices = self._config, Slices()
        owned = {name: cluster for name, cluster in config.clusters.items() if self.ownership.owns(name)}
        # Not the clusters of the previous configuration: a plug-in's defect may have interrupted the change to it.
        present = {name for name in self._running if name not in self._ending or self._ending[name].successor}
        added, changed = set(), set()
        for name in owned:
            await slices.turn()
            if name not in present:
                added.add(name)
            elif before is None or name not in before.clusters or not equal(_parts(before, name), _parts(config, name)):
                changed.add(name)
        gone = self._running.keys() - owned.keys()
        removed = {name for name in gone if name in present or self._ending[name].task is None}
        self._config = config
        for name in removed | changed:
            await slices.turn()
            self._end(name)
        # Lease the new connections before the old ones are released: plug-ins that both use stay connected.
        for name in sorted(changed) + sorted(added):
            await slices.turn()
            cluster = config.clusters[name]
            self._follow(name, (cluster, ClusterConnections(config, cluster, self.connections)))
        for name in sorted(removed):
            await slices.turn()
            self._follow(name, None)
        tasks = [self._ending[name].task for name in added | removed | changed if name in self._ending]
        return Changes(added, removed, changed, [task for task in tasks if task is not None])

    async def forget(self, before: datetime) -> None:
        """Delete stored data of clusters that are not configured and have no later record. Raises StoreError."""
        await self._store.forget_clusters(before, frozenset(self.wanted))

    async def stop(self) -> None:
        """End all controllers between two ticks and close their connections."""
        self._stopped = True
        for running in self._running.values():
            running.end()
        await asyncio.gather(*(running.task for running in self._running.values()))
        await self.connections.close()

    async def cancel(self) -> None:
        """Cancel all controllers. If one is in a call that cannot be cancelled, abandon it."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)

    def _end(self, name: str) -> _Ending | None:
        """Ask the controller of a cluster to end. Returns None if there is none."""
        if name in self._running and name not in self._ending:
            self._running[name].end()
            self._ending[name] = _Ending(self._running[name])
        return self._ending.get(name)

    def _follow(self, name: str, successor: tuple[Cluster, ClusterConnections] | None) -> None:
        """Replace the controller of a cluster with a successor, or end it if there is no successor."""
        ending = self._end(name)
        if ending is None:
            if successor is not None:
                self._start(*successor, None)
            return
        if ending.successor is not None:
            ending.unused.append(ending.successor[1])
        ending.successor = successor
        if ending.task is None:
            ending.task = asyncio.create_task(self._replace(name, ending), name=f"end of controller {name}")

    async def _replace(self, name: str, ending: _Ending) -> None:
        before = ending.running
        await before.task
        if self._stopped:
            return
        del self._ending[name]
        if ending.successor is None:
            del self._running[name], self.controllers[name]
        else:
            self._start(*ending.successor, before)
        for connections in (before.connections, *ending.unused):
            await connections.release()

    def _start(self, cluster: Cluster, connections: ClusterConnections, before: _Running | None) -> None:
        controller = Controller(
            cluster,
            connections,
            self._store,
            self._sink,
            utc=self._utc,
            record_tick=self._record_tick,
            dry_run=self._dry_run,
            decide=self._decide,
            ownership=self.ownership,
            find_controls=self._find_controls,
            ticked=self._ticked,
        )
        controller.template_problem = self.template_problems.get(cluster.spec.name)
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
