"""One row for each cluster, for lists and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from autoscaler.core.explain import describe_rescale
from autoscaler.core.model import Rescale
from autoscaler.daemon.controller import NOT_OBSERVED
from autoscaler.daemon.http_requests import control_document
from autoscaler.daemon.status import ClusterSnapshot, DaemonStatus, fleet_of, snapshot
from autoscaler.daemon.workload import Figures, figures, roles

UNCONTROLLED = "no copy of the daemon controls this cluster at the moment, or the one that does cannot be asked"


async def clusters_beside(status: DaemonStatus, others: Sequence[Mapping[str, Any]] | None) -> list[ClusterSnapshot]:
    """The clusters of this copy, and those in no row of another copy; `others` None: only the clusters of this copy."""
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
        **_workload(cluster),
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


def _workload(cluster: ClusterSnapshot) -> dict[str, object]:
    """The figures of a cluster, its trouble, and the severity: 0 nothing, 1 a notice, 2 trouble."""
    spec, observation = cluster.cluster.spec, cluster.observation
    found = Figures() if observation is None else figures(spec, observation, cluster.state)
    objective = roles(spec).objective
    trouble = _trouble(cluster, found, objective)
    if trouble is not None:
        severity = 1 if trouble == NOT_OBSERVED else 2
    else:
        severity = 1 if cluster.controls or cluster.dry_run else 0
    return {
        **found._asdict(),
        "objective": None if objective is None else objective.total_seconds(),
        "trouble": trouble,
        "severity": severity,
    }


def _trouble(cluster: ClusterSnapshot, found: Figures, objective: timedelta | None) -> str | None:
    """The most urgent problem of a cluster, or None."""
    if cluster.trouble is not None:
        return cluster.trouble
    missing: Mapping[str, str] = {} if cluster.observation is None else cluster.observation.missing
    for name, why in missing.items():
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"{name} cannot be read{more}: {why}"
    missed = None if cluster.state is None else cluster.state.last_missed
    if missed is not None:
        phase = missed.phase.value.replace("_", " ")
        return (
            f"{describe_rescale(missed)} is stuck after phase {phase!r}: the next phase missed its deadline; "
            "see `autoscaler explain`"
        )
    decision, most = cluster.decision, cluster.limits.maximum
    limit = (objective or cluster.cluster.spec.settle.backlog_time).total_seconds()
    if decision is not None and decision.current >= most and (found.backlog_time or 0.0) > limit:
        return f"at its maximum of {most}, with {found.backlog_time:.0f} s of backlog"
    return None
