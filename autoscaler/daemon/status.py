"""What the HTTP endpoints, the metrics and the service manager see of a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from autoscaler.config.model import Cluster
from autoscaler.core.evaluate import allowed
from autoscaler.core.model import ClusterState, Decision, Limits, Observation
from autoscaler.daemon.connections import TARGET
from autoscaler.daemon.controller import Controller, Counters

_MAX_NAMED = 5

_SLICE = 0.01
"""Seconds of the loop that a snapshot takes at a time."""


class DaemonStatus(Protocol):
    """The state of a daemon, to be read only."""

    @property
    def controllers(self) -> Mapping[str, Controller]:
        """The controllers by the names of their clusters."""
        ...

    @property
    def dry_run(self) -> bool:
        """Whether no target is called."""
        ...

    @property
    def config_path(self) -> Path:
        """The configuration file."""
        ...

    @property
    def history_directory(self) -> Path:
        """Where the history files are."""
        ...

    @property
    def loaded_at(self) -> datetime:
        """When the configuration was last loaded."""
        ...

    @property
    def reload_problems(self) -> Sequence[str]:
        """The problems of the configuration at the last reload; empty when it was accepted."""
        ...

    @property
    def store_failure(self) -> str | None:
        """Why the last state could not be persisted, or None."""
        ...

    @property
    def history_failure(self) -> str | None:
        """Why the last decision could not be written to the history, or None."""
        ...

    def utc(self) -> datetime:
        """The time."""
        ...

    def pages(self, cluster: str, limit: int, until: datetime | None) -> AsyncGenerator[list[bytes], None]:
        """The last decisions of a cluster as lines of the trace format, newest first, some at a time.

        Raises:
            StoreError: they cannot be read.
        """
        ...


def trouble(controller: Controller) -> str | None:
    """Why a cluster is not under control now, or None: nothing decided, its target does not answer or refuses."""
    if controller.problem is not None:
        return controller.problem
    missing = {} if controller.observation is None else controller.observation.missing
    if TARGET in missing:
        return f"{TARGET}: {missing[TARGET]}"
    refusal = controller.refusal
    if refusal is None:
        return None
    return (
        f"scale calls fail since {refusal.since:%Y-%m-%d %H:%M:%S %Z}; "
        f"the last one, to {refusal.replicas}: {refusal.error}"
    )


class ClusterSnapshot(NamedTuple):
    """What is known of a cluster, of one tick: it can be read in another thread. The counters go on counting."""

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

    @classmethod
    def of(cls, c: Controller, *, ask: bool = True) -> Self:
        """That of a controller, in the loop's thread; unless policies are asked, with the limits of the file."""
        spec, decision = c.cluster.spec, c.decision
        limits = spec.limits
        if ask and decision is not None:
            # They are asked here, as they are not made for several threads.
            limits = allowed(spec.policies, decision.at, limits)[0].limits
        return cls(
            c.name, c.cluster, c.dry_run, c.observation, decision, c.state, c.problem, trouble(c), limits, c.counters
        )


async def snapshot(status: DaemonStatus, *, ask: bool = True) -> list[ClusterSnapshot]:
    """All clusters, by their names, a few milliseconds at a time between the ticks; see `ClusterSnapshot.of`."""
    loop = asyncio.get_running_loop()
    found, until = [], loop.time() + _SLICE
    for _, controller in sorted(status.controllers.items()):
        if loop.time() >= until:
            await asyncio.sleep(0)
            until = loop.time() + _SLICE
        found.append(ClusterSnapshot.of(controller, ask=ask))
    return found


def health(status: DaemonStatus, now: float) -> tuple[bool, str]:
    """Whether the daemon is alive, and the state of the clusters in one line.

    It is alive if the ticks of at least one cluster finish: one failing cluster does not trigger a restart.

    Args:
        status: of the daemon.
        now: the loop's time.
    """
    controllers = status.controllers.values()
    overdue = {c.name for c in controllers if c.overdue(now)}
    waiting = {c.name for c in controllers if c.decision is None} - overdue
    failing = sorted(overdue | {c.name for c in controllers if trouble(c) and c.name not in waiting})
    parts = [f"{len(controllers)} cluster{'' if len(controllers) == 1 else 's'}"]
    if status.dry_run:
        parts[0] += " (dry run)"
    if waiting:
        parts.append(f"{len(waiting)} not observed yet")
    if failing:
        more = ", …" if len(failing) > _MAX_NAMED else ""
        parts.append(f"{len(failing)} failing: {', '.join(failing[:_MAX_NAMED])}{more}")
    if status.reload_problems:
        parts.append("new configuration invalid, the previous one stays in use")
    return len(overdue) < len(controllers) or not controllers, "; ".join(parts)
