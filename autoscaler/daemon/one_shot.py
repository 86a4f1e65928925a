"""One look at every cluster of a configuration, with nothing changed: what `plan` and `check --online` do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from autoscaler.config.model import Cluster, Config
from autoscaler.core.capacity import beyond_use
from autoscaler.core.model import ClusterState, Observation
from autoscaler.core.step import step
from autoscaler.core.trust import trusted
from autoscaler.daemon.connections import Connection, Connections, format_error
from autoscaler.daemon.observer import Edges, Observer
from autoscaler.daemon.service import utc_now
from autoscaler.daemon.state_store import read_state
from autoscaler.ports import Doctor, Finding, Record, Severity

_PATIENCE = 60.0
"""Seconds a plug-in may take to examine itself."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What a doctor said of one plug-in.

    Attributes:
        cluster: one of the clusters that use it.
        part: what it is there: target, engine or a source.
        findings: what it found.
        error: why it could not look, else empty.
    """

    cluster: str
    part: str
    findings: tuple[Finding, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of an online check.

    Attributes:
        observations: cluster -> what was seen.
        doubts: cluster -> name -> why it could not be read or cannot be trusted.
        awaited: cluster -> those of them that have no value yet, though nothing is wrong.
        remarks: cluster -> what its target says to people.
        examined: what the doctors said.
    """

    observations: dict[str, Observation]
    doubts: dict[str, dict[str, str]]
    awaited: dict[str, frozenset[str]]
    remarks: dict[str, tuple[str, ...]]
    examined: tuple[Examined, ...]


async def plan(config: Config) -> list[Record]:
    """Observe and decide once for every cluster, from the state a daemon has kept, if there is one.

    Raises:
        StoreError: a kept state cannot be read.
    """
    async with _edges(config) as edges:
        observations = await _observe(config, edges)
    records = []
    for name, observation in observations.items():
        state = read_state(config.daemon.directory, name) or ClusterState()
        after, decision = step(config.clusters[name].spec, state, observation)
        records.append(Record(after.past[-1], decision, dry_run=True))
    return records


async def check(config: Config) -> Checked:
    """Connect everything, read everything once, and let everything that can examine itself do so."""
    async with _edges(config) as edges:
        observers = {name: Observer(config.clusters[name], edges[name], utc_now) for name in sorted(config.clusters)}
        observed = await asyncio.gather(*(observer.observe() for observer in observers.values()))
        observations = dict(zip(observers, observed, strict=True))
        doubts = {
            name: trusted(config.clusters[name].spec, observation)[1] for name, observation in observations.items()
        }
        remarks = {name: observer.status.remarks if observer.status else () for name, observer in observers.items()}
        parts: dict[Connection, tuple[str, str]] = {}
        for name, used in edges.items():
            for part, connection in used.connections().items():
                parts.setdefault(connection, (name, part))
        examined = await asyncio.gather(*(_examine(connection, *parts[connection]) for connection in parts))
    limits = [_limits(config.clusters[name], observation) for name, observation in observations.items()]
    awaited = {name: observer.awaited for name, observer in observers.items()}
    return Checked(
        observations, doubts, awaited, remarks, tuple(found for found in (*limits, *examined) if found is not None)
    )


@asynccontextmanager
async def _edges(config: Config) -> AsyncIterator[dict[str, Edges]]:
    connections = Connections(dry_run=True)
    try:
        edges = {name: Edges(config, config.clusters[name], connections) for name in sorted(config.clusters)}
        await connections.tried()
        yield edges
    finally:
        await connections.close()


async def _observe(config: Config, edges: dict[str, Edges]) -> dict[str, Observation]:
    names: Sequence[str] = sorted(config.clusters)
    found = await asyncio.gather(*(Observer(config.clusters[name], edges[name], utc_now).observe() for name in names))
    return dict(zip(names, found, strict=True))


def _limits(cluster: Cluster, observation: Observation) -> Examined | None:
    """Whether the cluster may grow beyond what its job can use."""
    problem = beyond_use(cluster.spec, observation.engine, (observation,))
    if not problem:
        return None
    finding = Finding(
        Severity.WARNING,
        "max",
        problem,
        "the caps keep the size below that, so the maximum is never reached, however great the load",
        "lower max, or give the job more partitions or a greater maximum parallelism",
    )
    return Examined(cluster.spec.name, "limits", (finding,))


async def _examine(connection: Connection, cluster: str, part: str) -> Examined | None:
    if connection.problem:
        return Examined(cluster, part, (), connection.problem)
    live = connection.get()
    if not isinstance(live, Doctor):
        return None
    try:
        async with asyncio.timeout(_PATIENCE):
            return Examined(cluster, part, tuple(await live.diagnose()))
    except Exception as error:  # noqa: BLE001 - a plug-in is somebody else's code: it may fail in any way
        return Examined(cluster, part, (), format_error(error))
