"""Rates, busy shares and rescales of a view, for policies that measure what a job could process."""

from __future__ import annotations

from datetime import timedelta

from autoscaler.policy_api import PHASES, Phase, View
from autoscaler_policies.shared.recommend import finite

MARGIN = timedelta(minutes=5)
"""Extra lookback: at any interval, the past must contain an observation at or before the beginning of a window."""

GAP = 2.5
"""A gap of up to this many intervals between observations is allowed: one tick may be skipped, another late."""

BUSIEST = 2.0
"""A larger number is not a busy share: it may be in percent. A number slightly above 1 counts as 1."""


def total(view: View, name: str) -> float | None:
    """A metric as one number; the sum if it has one number per replica.

    None if it is missing or negative, or lacks the number of a replica that is up.
    """
    reading = view.metrics.get(name)
    if reading is None:
        return None
    value = reading.value
    if not isinstance(value, tuple):
        return value if value >= 0 else None
    if len(value) < view.ready or min(value) < 0:
        return None
    return finite(sum(value))


def each(view: View, name: str) -> tuple[float, ...]:
    """The numbers of a metric that has one per replica; empty if it has a single number."""
    reading = view.metrics.get(name)
    return reading.value if reading is not None and isinstance(reading.value, tuple) else ()


def busy(view: View, name: str) -> tuple[float, ...] | None:
    """The busy shares of a metric, 0 to 1: one per replica, or their mean; None if it has no valid ones."""
    reading = view.metrics.get(name)
    if reading is None:
        return None
    averaged = reading.averaged
    values = averaged if isinstance(averaged, tuple) else (averaged,)
    if not values or min(values) < 0 or max(values) > BUSIEST:
        return None
    return tuple([min(value, 1.0) for value in values])


def slots_in_use(view: View) -> int:
    """Slots that the job runs on: as the engine reports, else the slots of the replicas that are up."""
    engine = view.engine
    if engine is not None and engine.parallelism:
        return engine.parallelism
    return view.ready * view.spec.slots_per_replica


def moving(view: View) -> bool:
    """Whether a rescale is in progress and the job does not run with its size yet."""
    rescale = view.rescale
    return rescale is not None and PHASES.index(rescale.phase) < PHASES.index(Phase.RUNNING)


def warm_since(view: View) -> float:
    """When the last rescale or restart was over, in seconds since 1970; 0 if none was seen."""
    return 0.0 if view.disturbance_ended_at is None else view.disturbance_ended_at.timestamp()
