"""Rates, busy shares and rescales of a view, for policies that measure what a job could process."""

from __future__ import annotations

from datetime import timedelta

from autoscaler.policy_api import PHASES, Phase, View
from autoscaler_policies.shared.recommend import finite

MARGIN = timedelta(minutes=5)
"""More of the past than a time needs: an observation at or before its beginning must be there, at any interval."""

GAP = 2.5
"""Intervals without an observation that leave nothing unseen: one tick may be skipped, another late."""

BUSIEST = 2.0
"""A larger number is not a busy share: it may be in percent. One that is a little above 1 counts as 1."""


def total(view: View, name: str) -> float | None:
    """A metric as one number, the sum where it has one per replica.

    None when it is missing, negative, or does not have a number of every replica that is up.
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
    """The numbers of a metric that has one per replica; nothing for one with a single number."""
    reading = view.metrics.get(name)
    return reading.value if reading is not None and isinstance(reading.value, tuple) else ()


def busy(view: View, name: str) -> tuple[float, ...] | None:
    """The busy shares of a metric, 0 to 1: one per replica, or the mean of them all; None when it has none."""
    reading = view.metrics.get(name)
    if reading is None:
        return None
    averaged = reading.averaged
    values = averaged if isinstance(averaged, tuple) else (averaged,)
    if not values or min(values) < 0 or max(values) > BUSIEST:
        return None
    return tuple([min(value, 1.0) for value in values])


def slots_in_use(view: View) -> int:
    """Slots that the job runs on: as the engine shows it, else those of the replicas that are up."""
    engine = view.engine
    if engine is not None and engine.parallelism:
        return engine.parallelism
    return view.ready * view.spec.slots_per_replica


def moving(view: View) -> bool:
    """Whether a rescale is on its way that the job does not run with yet."""
    rescale = view.rescale
    return rescale is not None and PHASES.index(rescale.phase) < PHASES.index(Phase.RUNNING)


def warm_since(view: View) -> float:
    """When the last rescale or restart was over, in seconds since 1970; 0 when none was seen."""
    return 0.0 if view.disturbance_ended_at is None else view.disturbance_ended_at.timestamp()
