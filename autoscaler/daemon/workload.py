"""The load, capacity and backlog of a cluster, from its metrics and policies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from autoscaler.core.capacity import effective_slots, rate, source_partitions
from autoscaler.core.model import ClusterSpec, ClusterState, Learned, Observation


@dataclass(frozen=True, slots=True)
class Roles:
    """The metrics with a special meaning, and the objective of the policies.

    Attributes:
        arrivals, throughput: the metrics with the offered and the processed records/s.
        lag: the metric with the waiting records.
        objective: the longest time that a record should wait; None: no policy has an objective.
    """

    arrivals: str
    throughput: str
    lag: str
    objective: timedelta | None


class Figures(NamedTuple):
    """The figures of one moment; None: not known.

    Attributes:
        load: records/s that arrive.
        capacity: records/s that the present size can process.
        lag: waiting records.
        backlog_time: seconds that processing these takes.
    """

    load: float | None = None
    capacity: float | None = None
    lag: float | None = None
    backlog_time: float | None = None


def roles(spec: ClusterSpec) -> Roles:
    """The roles by the first policy that names them (`Serving`); else by the cluster's `settle` and `arrivals`."""

    def said(name: str, kind: type) -> object:
        values = (getattr(named.policy, name, None) for named in spec.policies)
        return next((value for value in values if isinstance(value, kind)), None)

    objective = said("objective", timedelta)
    return Roles(
        str(said("arrivals", str) or "arrivals"),
        str(said("throughput", str) or spec.settle.throughput),
        str(said("lag", str) or spec.settle.lag),
        objective if isinstance(objective, timedelta) else None,
    )


def capacity_at(spec: ClusterSpec, learned: Learned, size: int, partitions: int | None) -> float | None:
    """Records/s that a size can process: a policy's estimate (`Estimating`), else the learned capacity of sizes."""
    workers = effective_slots(size, spec.slots_per_replica, partitions) / spec.slots_per_replica
    for named in spec.policies:
        estimate = getattr(named.policy, "estimate_capacity", None)
        if callable(estimate) and size:
            try:
                found = estimate(learned.memory.get(named.name, {}), size, workers)
            except Exception:  # noqa: BLE001, S112 - a plug-in may fail in any way; the estimate is only for display
                continue
            if isinstance(found, float) and math.isfinite(found):
                return found
    return rate(learned, spec, size, partitions)


def figures(spec: ClusterSpec, observation: Observation, state: ClusterState | None) -> Figures:
    """The figures of an observation. If no metric has the arrivals, the throughput counts as the load."""
    known = roles(spec)
    throughput, lag = _total(observation, known.throughput), _total(observation, known.lag)
    arrivals = _total(observation, known.arrivals)
    if arrivals is None and known.arrivals not in spec.metrics:
        arrivals = throughput
    capacity, size = None, observation.ready if observation.ready is not None else observation.desired
    if state is not None and size is not None:
        partitions = source_partitions(spec, observation.engine, state.past)
        capacity = capacity_at(spec, state.learned, size, partitions)
    # A stopped job has no throughput: then divide by the arrivals, as the backlog took that long to arrive.
    served = throughput or arrivals or None
    return Figures(arrivals, capacity, lag, 0.0 if lag == 0 else _seconds(lag, served))


def backlog_time(spec: ClusterSpec, observation: Observation) -> float | None:
    """Lag divided by throughput, in seconds; infinite if there is a lag but no throughput. None: not known."""
    return _seconds(_total(observation, spec.settle.lag), _total(observation, spec.settle.throughput))


def _seconds(lag: float | None, served: float | None) -> float | None:
    """How long records wait if `served` records are processed per second."""
    if lag is None or served is None:
        return None
    return lag / served if served else math.inf if lag else 0.0


def _total(observation: Observation, name: str) -> float | None:
    """A metric as one number: the sum if it has one value per replica. None: not read or not usable."""
    reading = observation.metrics.get(name)
    if reading is None:
        return None
    total = math.fsum(reading.value) if isinstance(reading.value, tuple) else reading.value
    return total if math.isfinite(total) and total >= 0 else None
