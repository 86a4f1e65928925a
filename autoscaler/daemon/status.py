"""The status of a daemon for the HTTP endpoints, the metrics and the service manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Self

from autoscaler.config.model import Cluster, Config
from autoscaler.core.model import ClusterState, Control, Decision, Limits, Observation
from autoscaler.core.wording import count_of
from autoscaler.daemon.controller import Controller, Counters, trouble
from autoscaler.daemon.controls import Controls
from autoscaler.daemon.discovery import Discoveries, FleetStatus
from autoscaler.daemon.event_loop import Slices
from autoscaler.daemon.fleet import Fleet
from autoscaler.daemon.history import History
from autoscaler.daemon.leases import Ownership
from autoscaler.ports import StateStore

_MAX_NAMED = 5


class DaemonStatus:
    """The parts of a daemon, and its status, which can be read while it runs.

    Attributes:
        config: the configuration in use.
        fleet: its controllers.
        discoveries: its fleets.
        controls: the pauses, holds and limits that people have set.
        store, history: the stores of decisions.
        ownership: knows the copies, and the clusters that this one controls.
        utc: the clock.
        dry_run: whether the daemon makes no scale calls.
        loaded_at: when the configuration was last loaded.
        reload_problems: the problems of the configuration at the last reload; empty when it was accepted.
    """

    config: Config
    fleet: Fleet
    discoveries: Discoveries
    controls: Controls
    store: StateStore
    history: History
    ownership: Ownership
    utc: Callable[[], datetime]
    dry_run: bool
    loaded_at: datetime
    reload_problems: tuple[str, ...]

    @property
    def controllers(self) -> dict[str, Controller]:
        """The controllers of this copy, by the names of their clusters."""
        return self.fleet.controllers

    @property
    def clusters(self) -> Mapping[str, Cluster]:
        """All clusters of the configuration and of its fleets, whichever copy controls them, by their names."""
        return self.fleet.wanted

    @property
    def fleets(self) -> Sequence[FleetStatus]:
        """The status of the fleets, sorted by name. Other threads may read it."""
        return self.discoveries.status

    @property
    def members(self) -> Mapping[str, tuple[str, str]]:
        """Name of a member's cluster -> its fleet and the member's id."""
        return self.discoveries.members

    @property
    def store_failure(self) -> str | None:
        """Why the last state could not be persisted, or the leases could not be renewed; or None."""
        return self.store.failure or self.ownership.failure


class ClusterSnapshot(NamedTuple):
    """The status of a cluster after one tick, which other threads can read. Only the counters continue to change."""

    name: str
    cluster: Cluster
    dry_run: bool
    observation: Observation | None
    decision: Decision | None
    state: ClusterState | None
    problem: str | None
    trouble: str | None
    limits: Limits
    counters: Counters
    fleet: str | None
    controls: tuple[Control, ...]

    @classmethod
    def of(cls, c: Controller, fleet: str | None) -> Self:
        """The snapshot of a controller. Call it in the loop's thread."""
        return cls(
            c.name,
            c.cluster,
            c.dry_run,
            c.observation,
            c.decision,
            c.state,
            c.problem,
            trouble(c),
            c.limits,
            c.counters,
            fleet,
            c.controls,
        )

    @classmethod
    def unknown(cls, cluster: Cluster, fleet: str | None, why: str, *, dry_run: bool) -> Self:
        """The snapshot of a cluster about which this copy knows nothing."""
        spec = cluster.spec
        return cls(spec.name, cluster, dry_run, None, None, None, why, why, spec.limits, Counters(), fleet, ())


def fleet_of(members: Mapping[str, tuple[str, str]], cluster: str) -> str | None:
    """The fleet that a cluster is a member of, or None."""
    return members[cluster][0] if cluster in members else None


async def snapshot(status: DaemonStatus) -> list[ClusterSnapshot]:
    """Snapshots of all clusters of this copy, sorted by name, taken a few milliseconds at a time between ticks."""
    found, slices = [], Slices()
    members = status.members
    for name, controller in sorted(status.controllers.items()):
        await slices.turn()
        found.append(ClusterSnapshot.of(controller, fleet_of(members, name)))
    return found


def health(status: DaemonStatus, now: float) -> tuple[bool, str]:
    """Whether the daemon is alive, and the state of the clusters in one line.

    It is alive if the ticks of at least one cluster finish: one failing cluster does not trigger a restart.

    Args:
        status: the status of the daemon.
        now: the loop's time.
    """
    controllers = status.controllers.values()
    overdue = {c.name for c in controllers if c.overdue(now)}
    waiting = {c.name for c in controllers if c.decision is None} - overdue
    failing = sorted(overdue | {c.name for c in controllers if trouble(c) and c.name not in waiting})
    parts = [count_of(len(controllers), "cluster")]
    if status.dry_run:
        parts[0] += " (dry run)"
    if waiting:
        parts.append(f"{len(waiting)} not observed yet")
    if failing:
        parts.append(f"{len(failing)} failing: {_few(failing)}")
    fleets = status.fleets
    if fleets:
        parts[0] += f", {count_of(len(fleets), 'fleet')}"
    unanswered = [fleet.name for fleet in fleets if fleet.failure is not None]
    if unanswered:
        parts.append(f"no answer of the discovery of {_few(unanswered)}")
    refused = sum(len(fleet.problems) for fleet in fleets)
    if refused:
        parts.append(f"{count_of(refused, 'member')} refused")
    if status.reload_problems:
        parts.append("new configuration invalid, the previous one stays in use")
    return len(overdue) < len(controllers) or not controllers, "; ".join(parts)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
