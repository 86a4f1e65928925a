"""One observation of every cluster of a configuration, without any change: for `plan` and `check --online`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from autoscaler.config.model import Cluster, Config
from autoscaler.core.capacity import beyond_use
from autoscaler.core.foreign import mask
from autoscaler.core.model import ClusterState, Observation
from autoscaler.core.step import step
from autoscaler.core.trust import trusted
from autoscaler.daemon.connections import ClusterConnections, Connection, Connections, contained, format_error
from autoscaler.daemon.discovery import find_members
from autoscaler.daemon.observer import Observer, utc_now
from autoscaler.daemon.stores import read_states
from autoscaler.ports import Doctor, Finding, Record, Severity

_EXAMINE_TIMEOUT = 60.0
"""Seconds a plug-in may take to examine itself."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings of one plug-in.

    Attributes:
        cluster: one of the clusters that use the plug-in.
        part: its role there: target, engine or a source.
        findings: its findings.
        error: why it could not be examined, or None.
    """

    cluster: str
    part: str
    findings: tuple[Finding, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of an online check.

    Attributes:
        config: the configuration, with the members of its fleets.
        fleets: fleet -> problems of its discovery and of members that cannot be added.
        observations: cluster -> its observation.
        untrusted: cluster -> name of a reading -> why it could not be read or cannot be trusted.
        awaited: cluster -> the untrusted readings that have no value yet, which is not a failure.
        examined: the findings of plug-ins.
    """

    config: Config
    fleets: dict[str, tuple[str, ...]]
    observations: dict[str, Observation]
    untrusted: dict[str, dict[str, str]]
    awaited: dict[str, frozenset[str]]
    examined: tuple[Examined, ...]


async def plan(config: Config, patterns: Sequence[str] = ()) -> tuple[list[Record], dict[str, tuple[str, ...]]]:
    """Observe and decide once for every cluster, from the state that a daemon has persisted, if any.

    Args:
        config: the configuration.
        patterns: patterns of the names of clusters; if empty, all clusters.

    Returns:
        The decisions; fleet -> problems of its discovery and of members that cannot be added.

    Raises:
        StoreError: a persisted state cannot be read.
    """
    async with _observers(config, patterns) as (config, fleets, observers, _):  # noqa: PLR1704 - with its members
        observations = await _observe(observers)
    states = await read_states(config.daemon, observations)
    records = []
    for name, observation in observations.items():
        state = states.get(name) or ClusterState()
        after, decision = step(config.clusters[name].spec, state, observation)
        records.append(Record(after.past[-1], decision, dry_run=True))
    return records, fleets


async def check(config: Config) -> Checked:
    """Connect all plug-ins, read everything once, and let every plug-in that is a `Doctor` examine itself."""
    async with _observers(config) as (config, fleets, observers, connections):  # noqa: PLR1704 - with its members
        observations = await _observe(observers)
        parts: dict[Connection, tuple[str, str]] = {}
        for name, used in connections.items():
            for part, connection in used.connections().items():
                parts.setdefault(connection, (name, part))
        examined = await asyncio.gather(*(_examine(connection, *parts[connection]) for connection in parts))
    limits = [_limits(config.clusters[name], observation) for name, observation in observations.items()]
    return Checked(
        config,
        fleets,
        observations,
        {name: trusted(config.clusters[name].spec, observation)[1] for name, observation in observations.items()},
        {name: observer.awaited for name, observer in observers.items()},
        tuple(found for found in (*limits, *examined) if found is not None),
    )


class _Observed(NamedTuple):
    """The observers of the clusters of a configuration.

    Attributes:
        config: the configuration, with the members of its fleets.
        fleets: fleet -> problems of its discovery and of members that cannot be added.
        observers, connections: by the names of the clusters, sorted.
    """

    config: Config
    fleets: dict[str, tuple[str, ...]]
    observers: dict[str, Observer]
    connections: dict[str, ClusterConnections]


@asynccontextmanager
async def _observers(config: Config, patterns: Sequence[str] = ()) -> AsyncIterator[_Observed]:
    """The observers of the clusters whose names match one of the patterns; if there are no patterns, of all."""
    mask.hide(*config.secrets)
    connections = Connections(dry_run=True)
    try:
        config, fleets = await find_members(config, connections)
        clusters = {
            name: config.clusters[name]
            for name in sorted(config.clusters)
            if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        used = {name: ClusterConnections(config, cluster, connections) for name, cluster in clusters.items()}
        await connections.tried()
        observers = {name: Observer(cluster, used[name], utc_now) for name, cluster in clusters.items()}
        yield _Observed(config, fleets, observers, used)
    finally:
        await connections.close()


async def _observe(observers: dict[str, Observer]) -> dict[str, Observation]:
    found = await asyncio.gather(*(observer.observe() for observer in observers.values()))
    return dict(zip(observers, found, strict=True))


def _limits(cluster: Cluster, observation: Observation) -> Examined | None:
    """A finding if max is more than the job can use."""
    problem = beyond_use(cluster.spec, observation.engine, (observation,))
    if not problem:
        return None
    finding = Finding(
        Severity.WARNING,
        "max",
        problem,
        "the caps keep the size below max, whatever the load",
        "lower max, or give the job more partitions or a greater maximum parallelism",
    )
    return Examined(cluster.spec.name, "limits", (finding,))


async def _examine(connection: Connection, cluster: str, part: str) -> Examined | None:
    if connection.problem is not None:
        return Examined(cluster, part, (), connection.problem)
    live = connection.get()
    if not isinstance(live, Doctor):
        return None
    try:
        with contained():
            async with asyncio.timeout(_EXAMINE_TIMEOUT):
                return Examined(cluster, part, tuple(await live.diagnose()))
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
        return Examined(cluster, part, (), format_error(error))
