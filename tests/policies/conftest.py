from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.core.model import (
    CapacitySpec,
    Cause,
    ClusterSpec,
    Direction,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    Observation,
    Phase,
    Reading,
    Rescale,
    RescaleTimes,
    SizeCapacity,
    View,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

Value = float | tuple[float, ...]


def make(
    metrics: Mapping[str, Value] | None = None,
    *,
    current: int = 1,
    ready: int | None = None,
    minimum: int = 1,
    maximum: int = 10,
    table: Mapping[int, float] | None = None,
    per_replica: float | None = None,
    partitions: int | None = None,
    learned_up: float | None = None,
    learned_down: float | None = None,
    stall_up: float | None = None,
    stall_down: float | None = None,
    rescale: bool = False,
    missing: Mapping[str, str] | None = None,
    past: tuple[Observation, ...] | None = None,
    engine: bool = True,
) -> View:
    """A view with current readings; `table` is the learned capacity, size -> records/s.

    `stall_up` is the stall per added replica.
    """
    limits = Limits(minimum, maximum)
    readings = {name: Reading(value, NOW) for name, value in (metrics or {}).items()}
    ready = current if ready is None else ready
    if past is None:
        past = (Observation(at=NOW, desired=current, ready=ready, metrics=readings, missing=missing or {}),)
    durations = {
        direction: {Phase.READY: (seconds,)}
        for direction, seconds in ((Direction.UP, learned_up), (Direction.DOWN, learned_down))
        if seconds is not None
    }
    times = {}
    for direction, stall, runs in ((Direction.UP, stall_up, learned_up), (Direction.DOWN, stall_down, learned_down)):
        if stall is not None:
            ran = max(60.0 if runs is None else runs, stall)
            times[direction] = (RescaleTimes(ran - stall, ran - stall, ran, ran),)
    return View(
        now=NOW,
        current=current,
        ready=ready,
        metrics=readings,
        past=past,
        limits=limits,
        learned=Learned(
            {size: SizeCapacity(rate, NOW, 5) for size, rate in (table or {}).items()},
            durations,
            times=times,
        ),
        spec=ClusterSpec(
            name="c",
            limits=limits,
            policies=(),
            capacity=CapacitySpec(per_replica=per_replica),
            partitions=None if engine else partitions,
            max_age=timedelta(seconds=60),
        ),
        engine=EngineStatus(job=JobState.RUNNING, partitions=partitions) if engine else None,
        rescale=Rescale(before=1, to=current, at=NOW, cause=Cause.REQUEST, phase=Phase.REQUESTED, since=NOW)
        if rescale
        else None,
    )


@pytest.fixture(scope="session")
def view() -> Callable[..., View]:
    return make
