"""One surge, through the whole decision machine: base load 20/s, surge 105/s, 50/s per replica."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.core.model import (
    Behaviour,
    CapacitySpec,
    ClusterSpec,
    ClusterState,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
)
from autoscaler.core.step import step
from autoscaler_policies.rules.backlog_drain import BacklogDrain

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
INTERVAL = 5
RISE, FALL, END = 60, 160, 300


def requests(batch: int, phase: int, start_up: int) -> tuple[list[tuple[int, int]], int]:
    """The requested sizes, each with its second, and the remaining records; rates are those of batches of `batch` s."""
    policy = BacklogDrain(stops=False, stable_time=timedelta(seconds=INTERVAL - 1))
    spec = ClusterSpec(
        name="demo",
        limits=Limits(1, 4),
        policies=(NamedPolicy("drain", policy),),
        down=Behaviour(window=timedelta(seconds=30)),
        capacity=CapacitySpec(per_replica=50.0),
        metrics=("lag", "arrivals", "throughput", "saturation"),
        engine=True,
    )
    offered = [105 if RISE <= second < FALL else 20 for second in range(END)]
    state, desired, ready, lag = ClusterState(), 1, 1, 0
    coming: int | None = None
    found = []
    for second in range(END):
        if second == coming:
            ready = desired
        done = min(lag + offered[second], 50 * ready)
        lag += offered[second] - done
        if second % INTERVAL != phase % INTERVAL:
            continue
        at = BEGIN + timedelta(seconds=second)
        until = max(batch, (second - phase) // batch * batch + phase)
        shown = sum(offered[until - batch : until]) / batch
        metrics = {
            "lag": Reading(float(lag), at),
            "arrivals": Reading(shown, BEGIN + timedelta(seconds=min(until, second))),
            "throughput": Reading(float(done), at),
            "saturation": Reading(done / (50 * ready), at),
        }
        engine = EngineStatus(
            job=JobState.RUNNING,
            slots=ready,
            parallelism=ready,
            max_parallelism=None,
            partitions=12,
            running_since=BEGIN,
        )
        state, decision = step(
            spec, state, Observation(at=at, desired=desired, ready=ready, metrics=metrics, missing={}, engine=engine)
        )
        if decision.rescale:
            found.append((second, decision.desired))
            coming = second + (start_up if decision.desired > ready else 3)
            desired = decision.desired
    return found, lag


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("start_up", [8, 20])
def test_a_surge_costs_one_step_up_and_one_step_down(batch: int, start_up: int) -> None:
    for phase in range(INTERVAL * batch):
        found, left = requests(batch, phase, start_up)
        assert [size for _, size in found] == [3, 1], (phase, found)
        assert found[0][0] - RISE <= 20
        assert found[1][0] > FALL
        assert left == 0
