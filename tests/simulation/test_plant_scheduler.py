"""Plants whose job restarts or continues by the rules of a real scheduler."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import EngineStatus, JobState, Phase
from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.slots import Bounds
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation.plant import SCHEDULER_PLANTS, STEP, Plant, PlantSpec

# No randomness, n workers process n times as much as one, and nothing happens exactly at the end of a step.
CALM = PlantSpec(startup=28, startup_sd=0, restart_up=12, restart_down=8, restart_sd=0, gamma=1, sigma=0, cold=1)
FLINK_2 = FlinkSettings.of("2.3", checkpoint_interval=10.0)
ONE = 10.0
FLOOD = 1e9


def _plant(scheduler: FlinkSettings | SparkSettings, size: int = 4, slots: int = 1, **changes: Any) -> Plant:
    return Plant(replace(CALM, scheduler=scheduler, **changes), ONE, 1, size, slots)


def _run(plant: Plant, seconds: float, rate: float = 0.0) -> None:
    for _ in range(round(seconds / STEP)):
        plant.advance(rate * STEP)


def _engine(plant: Plant) -> EngineStatus:
    engine = plant.observe().engine
    assert engine is not None
    return engine


def _rates(plant: Plant) -> list[float]:
    """Records/s of each step."""
    return [(after - before) / STEP for before, after in pairwise([0.0, *plant.track.position])]


def _stopped(plant: Plant) -> float:
    """Seconds in which the job was stopped."""
    return sum(plant.track.stopped) * STEP


# Flink


def test_flink_2_uses_new_workers_when_slots_are_stable_and_a_checkpoint_has_completed() -> None:
    plant = _plant(replace(FLINK_2, max_delay=3600.0), checkpoint=7)
    plant.scale(6)
    _run(plant, 120)
    # Ready at 28 s and stable at 88 s: the checkpoint at 91 s is the next one; it restarts at the end of its step.
    assert plant.track.running == [4] * 19 + [6] * 5
    assert plant.track.restarts == 1
    assert _stopped(plant) == pytest.approx(12)


def test_flink_2_waits_for_no_checkpoint_beyond_its_maximum_delay() -> None:
    settings = replace(FLINK_2, max_delay=90.0)
    plant = _plant(settings, checkpoint=3600)
    plant.scale(6)
    _run(plant, 150)
    # Ready at 28 s.
    assert plant.track.running.index(6) == 120 / STEP


def test_flink_2_cools_down_after_a_restart() -> None:
    plant = _plant(replace(FLINK_2, cooldown=200.0))
    plant.scale(5)
    _run(plant, 95)
    first = plant.track.running.index(5)
    plant.scale(6)
    _run(plant, 400)
    assert plant.track.running.index(6) - first == pytest.approx(200 / STEP, abs=3)


def test_flink_1_18_restarts_at_once_for_every_new_worker() -> None:
    plant = _plant(FlinkSettings.of("1.18", checkpoint_interval=10.0))
    plant.scale(5)
    _run(plant, 15)
    plant.scale(6)
    _run(plant, 60)
    assert plant.track.running == [4] * 6 + [5] * 3 + [6] * 6
    assert plant.track.restarts == 2


def test_flink_1_20_restarts_at_most_once_in_its_interval() -> None:
    plant = _plant(FlinkSettings.of("1.20", checkpoint_interval=10.0))
    plant.scale(5)
    _run(plant, 15)
    plant.scale(6)
    _run(plant, 75)
    # Ready at 28 s and 43 s; the second waits until 30 s after the first restart.
    assert plant.track.running == [4] * 6 + [5] * 6 + [6] * 6


def test_gracefully_stopped_workers_restart_the_job_after_flinks_delay() -> None:
    plant = _plant(FLINK_2, 6)
    _run(plant, 10, 10.0)
    plant.scale(4)
    _run(plant, 40, 10.0)
    # A second's delay, and 8 s to restore.
    assert _stopped(plant) == pytest.approx(9)
    assert plant.track.running[2:] == [0, *[4] * 7]
    assert plant.track.restarts == 1


def test_killed_workers_stall_the_job_until_their_heartbeat_times_out() -> None:
    plant = _plant(FLINK_2, 6, heartbeat=50)
    _run(plant, 100, 10.0)
    plant.scale(4)
    _run(plant, 30, 10.0)
    seen = plant.observe()
    assert (seen.desired, seen.ready) == (4, 4)
    # Not noticed yet: the job is still shown as running, on the slots that it had.
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism, found.restarts) == (JobState.RUNNING, 6, 6, 0)
    _run(plant, 70, 10.0)
    assert _stopped(plant) == pytest.approx(50 + 1 + 8)
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism, found.restarts) == (JobState.RUNNING, 4, 4, 1)


def test_a_crash_counts_as_a_killed_worker() -> None:
    plant = _plant(FLINK_2, 4, crash_every=3600, crash_noticed=20)
    while not any(plant.track.stopped):
        plant.advance(10.0)
    _run(plant, 35, 10.0)
    assert _stopped(plant) == pytest.approx(20 + 1 + 8)
    assert plant.track.billed[-1] == 4
    _run(plant, 150, 10.0)
    # Its replacement was ready while the others were still stalled, and is part of the same restart.
    assert (_engine(plant).parallelism, plant.track.restarts) == (4, 2)


def test_workers_that_leave_before_the_job_used_them_do_not_stop_it() -> None:
    plant = _plant(FLINK_2)
    plant.scale(6)
    _run(plant, 50)
    assert _engine(plant).slots == 6
    plant.scale(4)
    _run(plant, 200)
    assert plant.track.restarts == 0
    assert _stopped(plant) == 0


def test_flink_waits_for_its_first_slots() -> None:
    plant = _plant(FLINK_2, 0)
    _run(plant, 10, 1.0)
    assert _engine(plant).job is JobState.STARTING
    plant.scale(2)
    _run(plant, 50, 1.0)
    assert (_engine(plant).job, _engine(plant).parallelism) == (JobState.RUNNING, 2)
    assert plant.track.position[-1] == 60
    plant.scale(0)
    _run(plant, 40, 1.0)
    assert (_engine(plant).job, _engine(plant).slots) == (JobState.RESTARTING, 0)


def test_a_job_without_a_restart_strategy_ends_with_the_first_lost_worker() -> None:
    plant = _plant(FlinkSettings.of("2.3"))
    plant.scale(3)
    _run(plant, 300, 10.0)
    assert (_engine(plant).job, _engine(plant).parallelism) == (JobState.FAILED, 0)
    assert plant.track.position[-1] == 0


def test_flink_reports_its_deadline_and_the_slots_that_it_can_use() -> None:
    plant = _plant(replace(FLINK_2, groups=((Bounds(1, 6),),)), 4, partitions=12)
    plant.scale(9)
    _run(plant, 200, FLOOD)
    found = _engine(plant)
    assert (found.slots, found.parallelism, found.max_parallelism, found.partitions) == (9, 6, 6, 12)
    # 30 s of cooldown, 60 s until slots are stable, three checkpoints of 10 s, 1 s until it restarts, and a minute.
    assert dict(found.deadlines) == {
        Phase.REGISTERED: timedelta(seconds=110),
        Phase.ABSORBED: timedelta(seconds=181),
        Phase.RUNNING: timedelta(seconds=61),
    }
    assert _rates(plant)[-1] == pytest.approx(60)
    # All slots that it can use were available: it does not wait until they are stable.
    assert plant.track.running.index(6) * STEP < 60


# Spark


def test_spark_uses_new_workers_some_seconds_later_without_a_stop() -> None:
    plant = _plant(SparkSettings(used_after=4.0))
    plant.scale(6)
    _run(plant, 60, FLOOD)
    # Ready at 28 s, in use at 32 s.
    assert _rates(plant) == pytest.approx([40] * 7 + [60] * 5)
    assert (plant.track.restarts, _stopped(plant)) == (0, 0)
    assert dict(_engine(plant).deadlines) == {}
    assert _engine(plant).max_parallelism is None


def test_a_batch_that_gets_tasks_on_new_workers_waits_for_them() -> None:
    plant = _plant(SparkSettings(used_after=4.0), joining=7.0)
    plant.scale(6)
    _run(plant, 60, FLOOD)
    # Used from 35 s on, the end of the step in which they get ready; their tasks start 7 s later, and the job ran
    # meanwhile.
    assert _rates(plant) == pytest.approx([40.0] * 7 + [0.0, 0.6 * 60.0] + [60.0] * 3)
    assert plant.track.restarts == 0
    assert _engine(plant).job is JobState.RUNNING
    plant.scale(4)
    _run(plant, 10, FLOOD)
    assert _rates(plant)[-2:] == pytest.approx([40.0] * 2)


def test_spark_continues_at_once_without_removed_workers() -> None:
    plant = _plant(SparkSettings(), 6)
    _run(plant, 20, FLOOD)
    plant.scale(4)
    _run(plant, 20, FLOOD)
    assert _rates(plant) == pytest.approx([60] * 4 + [40] * 4)
    assert (plant.track.restarts, _stopped(plant)) == (0, 0)


def test_a_hung_worker_stalls_sparks_batch_until_it_is_noticed() -> None:
    plant = _plant(SparkSettings(), 6, heartbeat=60)
    _run(plant, 20, FLOOD)
    plant.scale(4)
    _run(plant, 80, FLOOD)
    assert _rates(plant) == pytest.approx([60] * 4 + [0] * 12 + [40] * 4)


def test_a_spark_query_waits_while_there_are_no_workers() -> None:
    plant = _plant(SparkSettings(), 1)
    plant.scale(0)
    _run(plant, 20, 1.0)
    assert plant.track.position[-1] == 0
    plant.scale(1)
    _run(plant, 60, 1.0)
    assert plant.track.position[-1] == 80


@pytest.mark.parametrize("settings", [SparkSettings(), FLINK_2])
@pytest.mark.parametrize(("size", "slots"), [(1, 1), (2, 2), (3, 2), (4, 4), (9, 4)])
def test_three_workers_process_four_partitions_no_faster_than_two(
    settings: FlinkSettings | SparkSettings, size: int, slots: int
) -> None:
    plant = _plant(settings, size, partitions=4)
    _run(plant, 5, FLOOD)
    assert _rates(plant) == [slots * ONE]


def test_partitions_are_divided_among_slots_and_not_among_workers() -> None:
    plant = _plant(SparkSettings(), 3, slots=4, partitions=8)
    _run(plant, 5, FLOOD)
    found = _engine(plant)
    assert (found.slots, found.parallelism, found.partitions) == (12, 12, 8)
    assert plant.track.running == [3]
    # 8 of the 12 slots have a task.
    assert _rates(plant) == [pytest.approx(2 * ONE)]


# Invariants

_SIZES = st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=1, max_size=120)


@pytest.mark.parametrize("name", SCHEDULER_PLANTS)
@settings(max_examples=25, deadline=None)
@given(sizes=_SIZES, seed=st.integers(0, 100), crashes=st.sampled_from([0.0, 60.0]), slots=st.integers(1, 3))
def test_without_further_events_a_job_uses_every_worker_and_processes_everything(
    name: str, sizes: list[int | None], seed: int, crashes: float, slots: int
) -> None:
    spec = replace(SCHEDULER_PLANTS[name], crash_every=crashes)
    plant = Plant(spec, ONE, seed, 4, slots)
    for size in sizes:
        if size is not None:
            plant.scale(size)
        plant.advance(20.0)
        seen = plant.observe()
        assert seen.ready is not None
        assert seen.engine is not None
        assert (seen.engine.parallelism or 0) <= (seen.engine.slots or 0)
        assert seen.engine.slots == seen.ready * slots or spec.crash_noticed
        assert 0 <= plant.track.position[-1] <= sum(plant.track.arrivals) * (1 + 1e-9)
        assert 0 <= plant.track.stopped[-1] <= 1
    plant._crash_at = 1e12
    plant.scale(5)
    for _ in range(600):
        plant.advance(0.0)
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism) == (JobState.RUNNING, 5 * slots, 5 * slots)
    assert plant.track.position[-1] == pytest.approx(sum(plant.track.arrivals))
