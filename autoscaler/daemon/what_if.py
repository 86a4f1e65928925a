"""Simulates, in its own process, what another objective or other policies would have done with the recorded load.

The load comes from the series. The simulated cluster has the learned capacity and start-up time of the real one, and
the policies begin with today's learned state. The process reads a pickled `Job`, and writes JSON.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoscaler.config import document
from autoscaler.config.build import Builder
from autoscaler.config.document import Invalid, Node, Problems
from autoscaler.core.durations import parse_duration
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, NamedPolicy, Observation
from autoscaler.core.state import rebase
from autoscaler.core.step import step
from autoscaler.daemon.series import GAP, KEYS, Row, Series, series_document
from autoscaler.daemon.workload import roles
from autoscaler.plugins import Kind
from autoscaler.ports import AutoscalerError, ConfigurationError, Record
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PlantSpec
from autoscaler.simulation.trial import visible_metrics

POINTS = 600

_CURRENT, _BACKLOG_TIME = KEYS.index("current"), KEYS.index("backlog_time")


class WhatIfError(AutoscalerError):
    """The request cannot be simulated; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A simulation to run. Picklable.

    Attributes:
        spec: the specification of the cluster, with only the metrics that the simulated cluster has.
        objective, policies: the changes: a duration, and policies as in a configuration file; None: unchanged.
        names: metric of the cluster -> its name in the simulated cluster.
        plant, load: the simulated cluster, and its load.
        size: workers at the start.
        start: when the load begins.
        state: the state of the cluster; the simulation uses only its learned part.
        at: the time of `state`.
    """

    spec: ClusterSpec
    objective: str | None
    policies: Mapping[str, Any] | None
    names: Mapping[str, str]
    plant: PlantSpec
    load: Load
    size: int
    start: datetime
    state: ClusterState
    at: datetime


def changed(spec: ClusterSpec, objective: str | None, policies: Mapping[str, Any] | None) -> ClusterSpec:
    """The same cluster with other policies, and another objective. Raises WhatIfError."""
    if policies is not None:
        spec = replace(spec, policies=_built(policies, spec.metrics), combine=None)
    if objective is None:
        return spec
    try:
        limit = parse_duration(objective)
        with_one = [named for named in spec.policies if isinstance(getattr(named.policy, "objective", None), timedelta)]
        if not with_one:
            names = ", ".join(named.name for named in spec.policies)
            raise WhatIfError(f"objective: none of the policies ({names}) has one")
        return replace(
            spec,
            policies=tuple(
                NamedPolicy(named.name, replace(named.policy, objective=limit)) if named in with_one else named  # type: ignore[type-var]
                for named in spec.policies
            ),
        )
    except ValueError as error:
        raise WhatIfError(f"objective: {error}") from error


def _built(policies: Mapping[str, Any], metrics: Iterable[str]) -> tuple[NamedPolicy, ...]:
    problems = Problems("policies")
    build = Builder(problems, Path(), {}, offline=True)

    def read(name: str, node: Node, path: str) -> NamedPolicy:
        policy = NamedPolicy(name, build.plugin(Kind.POLICY, node, path))
        unknown = sorted({*getattr(policy.policy, "metrics", ())} - {*metrics})
        if unknown:
            raise problems.fail(
                node.line,
                path,
                f"reads {', '.join(unknown)}, but the simulation has only the metrics {', '.join(metrics)}",
            )
        return policy

    try:
        found = build.entries(document.from_json(policies, 1, problems, "policies"), "policies", read)
    except Invalid:
        texts = [line.split(": ", 1)[1] for line in problems.error().problems]
        raise WhatIfError("; ".join(texts)) from None
    if not found:
        raise WhatIfError("policies: at least one policy is needed")
    return tuple(found.values())


def simulate(job: Job, spec: ClusterSpec) -> tuple[list[Row], float, Series]:
    """Simulate a job with these policies. Returns the figures, their width in seconds, and the changes of size."""
    known = rebase(ClusterState(learned=job.state.learned), job.start - job.at).learned
    begun, found, latest = False, Series(), ClusterState()

    def decide(_: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        nonlocal begun, latest
        state = state if begun else replace(state, learned=known)
        begun = True
        latest, decision = step(spec, state, visible_metrics(spec, job.names, observation))
        return latest, decision

    def keep(record: Record) -> None:
        found.add(spec, latest, record)

    run(spec, job.plant, job.load, 1, size=job.size, record=keep, decide=decide, start=job.start)
    begin, end = job.start.timestamp(), job.start.timestamp() + job.load.seconds
    rows, width = found.points(begin, end, end)
    return rows, max(width, spec.interval.total_seconds()), found


def figures_of(
    rows: Iterable[Row], width: float, objective: timedelta | None, rescales: int
) -> dict[str, float | None]:
    """Worker-hours, the share of the time with a backlog time above the objective, and the number of rescales.

    `width`: the usual maximum of seconds between two rows. Unknown values do not count.
    """
    seconds = known = late = total = 0.0
    for (at, values), (following, _) in pairwise(rows):
        span = min(following - at, GAP * width)
        if not math.isnan(values[_CURRENT]):
            seconds += values[_CURRENT] * span
            total += span
        if objective is not None and not math.isnan(values[_BACKLOG_TIME]):
            known += span
            late += span * (values[_BACKLOG_TIME] > objective.total_seconds())
    return {
        "worker_hours": round(seconds / 3600, 3),
        "share_later_than_objective": round(late / known, 5) if known else None,
        "rescales": rescales,
        "hours": round(total / 3600, 3),
    }


def answer(job: Job) -> dict[str, Any]:
    """Simulate the changed policies, and the present ones to judge the simulation by. Raises WhatIfError."""
    other = changed(job.spec, job.objective, job.policies)
    objective = roles(other).objective or roles(job.spec).objective
    begin, end = job.start.timestamp(), job.start.timestamp() + job.load.seconds
    drawn, figures = {}, {}
    for name, spec in (("what", other), ("present", job.spec)):
        rows, width, series = simulate(job, spec)
        changes = series.changes(begin, end)
        drawn[name] = series_document(rows, begin, end, POINTS, width, changes)
        figures[name] = figures_of(rows, width, objective, len(changes["decisions"]))
    seconds = None if objective is None else objective.total_seconds()
    return {"what": drawn["what"], "objective": seconds, "figures": figures}


def main() -> None:
    """Read the job, and write the answer, or the error."""
    os.nice(10)  # ticks come first
    job: Job = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - our own daemon has written it
    resource.setrlimit(resource.RLIMIT_CPU, (300, 300))  # if the daemon has died, nobody else ends this process
    try:
        found = answer(job)
    except (WhatIfError, ConfigurationError, ValueError) as error:
        found = {"error": str(error)}
    sys.stdout.write(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    main()
