"""One row for each cluster: what lists and pages show of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from autoscaler.core.model import Rescale
from autoscaler.daemon.http_requests import control_document
from autoscaler.daemon.status import ClusterSnapshot, DaemonStatus, fleet_of, snapshot
from autoscaler.daemon.workload import workload_document

UNCONTROLLED = "no copy controls it at the moment, or the one that does cannot be asked"


async def clusters_beside(status: DaemonStatus, others: Sequence[Mapping[str, Any]] | None) -> list[ClusterSnapshot]:
    """The clusters of this copy, and those of which no other copy has a row; None: others do not count."""
    found = await snapshot(status)
    if others is not None:
        known = {*status.controllers, *(row["name"] for row in others)}
        found += [
            ClusterSnapshot.unknown(cluster, fleet_of(status.members, name), UNCONTROLLED, dry_run=status.dry_run)
            for name, cluster in status.clusters.items()
            if name not in known
        ]
    return found


def row_document(cluster: ClusterSnapshot, now: datetime) -> dict[str, object]:
    """The row of a cluster."""
    observation, decision, state = cluster.observation, cluster.decision, cluster.state
    limits = cluster.limits
    return {
        "name": cluster.name,
        "fleet": cluster.fleet,
        "dry_run": cluster.dry_run,
        "at": None if decision is None else decision.at.isoformat(),
        "age": None if decision is None else (now - decision.at).total_seconds(),
        "min": limits.minimum,
        "max": limits.maximum,
        "current": None if decision is None or observation is None else observation.desired,
        "ready": None if observation is None else observation.ready,
        "proposed": None if decision is None else decision.proposed,
        "desired": None if decision is None else decision.desired,
        "reason": None if decision is None else decision.reason.value,
        "rescale": None if state is None or state.rescale is None else _rescale(state.rescale),
        "controls": [control_document(control) for control in cluster.controls],
        "missing": {} if observation is None else dict(observation.missing),
        "problem": cluster.trouble,
        **workload_document(cluster),
    }


def _rescale(rescale: Rescale) -> dict[str, object]:
    return {
        "before": rescale.before,
        "to": rescale.to,
        "at": rescale.at.isoformat(),
        "cause": rescale.cause.value,
        "phase": rescale.phase.value,
        "error": rescale.error or None,
    }
