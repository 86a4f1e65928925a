import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from statistics import NormalDist, correlation, fmean, median, pstdev, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model import EngineStatus, JobState
from autoscaler.simulation.plant import PLANTS, START, STEP, Plant, PlantSpec

# No randomness, n workers process n times as much as one, and nothing happens exactly at the end of a step.
CALM = PlantSpec(startup=28, startup_sd=0, restart_up=12, restart_down=8, restart_sd=0, gamma=1, sigma=0, cold=1)
ONE = 10.0
FLOOD = 1e9


def changed(name: str, value: Any) -> PlantSpec:
    return replace(CALM, **{name: value})


def _plant(size: int = 4, seed: int = 1, **changes: Any) -> Plant:
    return Plant(replace(CALM, **changes), ONE, seed, size)


def _run(plant: Plant, seconds: float, rate: float = 0.0) -> None:
    for _ in range(round(seconds / STEP)):
        plant.advance(rate * STEP)


def _processed(plant: Plant) -> list[float]:
    return [after - before for before, after in pairwise([0.0, *plant.track.position])]


def _stopped(plant: Plant) -> list[float]:
    """Seconds of each step in which the job was stopped."""
    return [share * STEP for share in plant.track.stopped]


def _value(plant: Plant, name: str) -> float:
    value = plant.observe().metrics[name].value
    assert isinstance(value, float)
    return value


def _engine(plant: Plant) -> EngineStatus:
    engine = plant.observe().engine
    assert engine is not None
    return engine


def _time(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


# Capacity


def test_a_new_plant_is_running_and_warm() -> None:
    plant = _plant(4, cold=0.5, cold_for=7200.0)
    _run(plant, 5, FLOOD)
    assert plant.track.position == [4 * ONE * STEP]
    assert plant.track.stopped == [0]
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism, found.restarts) == (JobState.RUNNING, 4, 4, 0)
    assert found.running_since is not None
    assert found.running_since <= _time(-7200)


@pytest.mark.parametrize(("size", "gamma"), [(1, 0.9), (16, 0.9), (24, 0.8), (3, 1.0)])
def test_n_workers_process_as_much_as_one_times_n_to_the_power_of_gamma(size: int, gamma: float) -> None:
    plant = _plant(size, gamma=gamma)
    _run(plant, 5, FLOOD)
    assert plant.track.position[0] == pytest.approx(ONE * size**gamma * STEP)


def test_arrivals_are_processed_in_their_step_while_capacity_suffices() -> None:
    plant = _plant(4)
    _run(plant, 10, 39.0)
    _run(plant, 5, 50.0)
    _run(plant, 10, 30.0)
    assert _processed(plant) == [195, 195, 200, 200, 150]


def test_a_job_that_keeps_up_has_processed_all_arrivals_to_the_last_digit() -> None:
    plant = Plant(CALM, 1e30, 1, 4)
    for step in range(50):
        plant.advance(math.pi**step)
    assert plant.track.position == list(accumulate(plant.track.arrivals))


def test_the_cost_per_record_may_rise() -> None:
    plant = _plant(4)
    _run(plant, 10, FLOOD)
    plant.rate_per_worker /= 2
    _run(plant, 10, FLOOD)
    assert _processed(plant) == [200, 200, 100, 100]


def test_without_workers_nothing_is_processed() -> None:
    plant = _plant(1)
    plant.scale(0)
    _run(plant, 60, 1.0)
    assert plant.track.position[-1] == 0
    assert plant.track.billed == [0] * 12
    assert (_value(plant, "lag"), _value(plant, "utilization")) == (32.5, 0)


def test_the_noise_of_the_capacity_has_its_deviation_and_time_constant() -> None:
    plant = Plant(PlantSpec(sigma=0.04, tau=300, gamma=1), ONE, 5, 1)
    _run(plant, 100_000 * STEP, FLOOD)
    noise = [math.log(done / (ONE * STEP)) for done in _processed(plant)]
    assert fmean(noise) == pytest.approx(0, abs=0.005)
    assert pstdev(noise) == pytest.approx(0.04, rel=0.1)
    for steps in (1, 30, 60):
        assert correlation(noise[:-steps], noise[steps:]) == pytest.approx(math.exp(-steps * STEP / 300), abs=0.06)


def test_the_noise_has_its_full_deviation_from_the_first_step_on() -> None:
    noise = []
    for seed in range(1000):
        plant = Plant(PlantSpec(sigma=0.04), ONE, seed, 1)
        _run(plant, 5, FLOOD)
        noise.append(math.log(plant.track.position[0] / (ONE * STEP)))
    assert pstdev(noise) == pytest.approx(0.04, rel=0.1)


def test_a_job_is_cold_for_the_configured_time_after_a_restart() -> None:
    plant = _plant(5, cold=0.5, cold_for=30.0)
    plant.scale(4)
    _run(plant, 50, FLOOD)
    # It runs from 8 s on, cold until 38 s: 20 and then 40 records/s.
    expected = [0, 2 * 20, *[5 * 20] * 5, 3 * 20 + 2 * 40, 5 * 40, 5 * 40]
    assert _processed(plant) == pytest.approx(expected)


# Scale-out


def test_new_workers_are_billed_from_the_request_ready_after_their_start_up_and_used_after_a_restart() -> None:
    plant = _plant(4)
    _run(plant, 5)
    plant.scale(6)
    ready = []
    for _ in range(12):
        _run(plant, 5)
        ready.append(plant.observe().ready)
    # Requested at 5 s, ready at 33 s; the merge window ends 10 s later: the step from 45 s on.
    assert ready == [4] * 5 + [6] * 7
    assert plant.track.billed == [4] + [6] * 12
    assert plant.track.running == [4] * 9 + [6] * 4
    assert _stopped(plant) == pytest.approx([0] * 9 + [5, 5, 2, 0])
    assert plant.track.restarts == 1
    assert plant.track.requests == [(1, 6)]


def test_each_worker_has_its_own_start_up_time() -> None:
    plant = Plant(PlantSpec(startup=30, startup_sd=0.25), ONE, 3, 1)
    plant.scale(4001)
    spread = NormalDist(math.log(30), 0.25)
    for seconds in range(5, 65, 5):
        _run(plant, 5)
        ready = plant.observe().ready
        assert ready is not None
        assert (ready - 1) / 4000 == pytest.approx(spread.cdf(math.log(seconds)), abs=0.025)


def test_registrations_within_the_merge_window_share_one_restart() -> None:
    plant = _plant(4, merge=10)
    plant.scale(5)
    _run(plant, 5)
    plant.scale(6)
    _run(plant, 95)
    # Ready at 28 s and at 33 s; the window of the first ends at 38 s.
    assert plant.track.restarts == 1
    assert plant.track.running == [4] * 8 + [6] * 12


def test_the_merge_window_begins_with_the_first_registration() -> None:
    plant = _plant(4, startup_sd=0.02, merge=3.2)
    plant.scale(204)
    _run(plant, 60)
    # All get ready between 25 and 30 s, the first before 26.8 s and the last after 29 s.
    assert plant.track.running == [4] * 6 + [204] * 6


def test_a_registration_after_the_merge_window_restarts_the_job_again() -> None:
    plant = _plant(4, merge=10)
    plant.scale(5)
    _run(plant, 15)
    plant.scale(6)
    _run(plant, 85)
    # Ready at 28 s and at 43 s.
    assert plant.track.restarts == 2
    assert plant.track.running == [4] * 8 + [5] * 3 + [6] * 9
    # From 40 s on for 12 s, and for another 12 s from 55 s on.
    assert _stopped(plant) == pytest.approx([0] * 8 + [5, 5, 2, 5, 5, 2] + [0] * 6)


def test_a_restart_during_a_stall_restarts_the_stall() -> None:
    plant = _plant(4, merge=0, restart_up=30)
    plant.scale(5)
    _run(plant, 15)
    plant.scale(6)
    _run(plant, 85)
    # At 30 s, and at 45 s while the job is still stopped.
    assert plant.track.restarts == 2
    assert sum(_stopped(plant)) == pytest.approx(45)
    assert _engine(plant).running_since == _time(75)


def test_a_restart_during_a_longer_stall_does_not_shorten_it() -> None:
    plant = _plant(6, heartbeat=50)
    plant.scale(4)
    plant.scale(5)
    _run(plant, 100)
    # From 0 to 58 s, and from 40 s on for 12 s.
    assert plant.track.restarts == 2
    assert sum(_stopped(plant)) == pytest.approx(58)


def test_a_worker_that_gets_ready_after_the_start_of_a_restart_is_not_part_of_it() -> None:
    plant = _plant(4, merge=1, startup=28.5)
    plant.scale(5)
    _run(plant, 5)
    plant.scale(6)
    _run(plant, 60)
    # Ready at 28.5 s and at 33.5 s; the restart at 30 s cannot include the second.
    assert plant.track.running == [4] * 6 + [5] + [6] * 6
    assert plant.track.restarts == 2


def _stalls(sizes: tuple[int, int], seeds: int = 600) -> list[float]:
    found = []
    for seed in range(seeds):
        plant = Plant(replace(CALM, restart_sd=0.3), ONE, seed, sizes[0])
        plant.scale(sizes[1])
        _run(plant, 100)
        found.append(sum(_stopped(plant)))
    return found


@pytest.mark.parametrize(("sizes", "middle"), [((4, 6), 12), ((6, 4), 8)])
def test_the_duration_of_a_restart_is_lognormal(sizes: tuple[int, int], middle: float) -> None:
    stalls = _stalls(sizes)
    assert median(stalls) == pytest.approx(middle, rel=0.05)
    assert stdev(map(math.log, stalls)) == pytest.approx(0.3, rel=0.1)


def test_cancelled_start_ups_do_not_stop_the_job() -> None:
    plant = _plant(4)
    plant.scale(8)
    _run(plant, 10)
    plant.scale(4)
    _run(plant, 60)
    assert plant.track.billed == [8] * 2 + [4] * 12
    assert plant.track.running == [4] * 14
    assert plant.track.restarts == 0
    assert _stopped(plant) == [0] * 14
    assert plant.track.requests == [(0, 8), (2, 4)]


def test_the_latest_start_up_is_cancelled_first() -> None:
    plant = _plant(4)
    plant.scale(5)
    _run(plant, 10)
    plant.scale(6)
    plant.scale(5)
    _run(plant, 15)
    assert plant.observe().ready == 4
    _run(plant, 5)
    assert plant.observe().ready == 5


def test_requesting_the_present_size_changes_nothing() -> None:
    plant = _plant(4)
    plant.scale(4)
    _run(plant, 5)
    assert plant.track.requests == []
    assert plant.track.billed == [4]


# Scale-in


def test_a_scale_in_takes_effect_at_once_and_stops_the_job() -> None:
    plant = _plant(6)
    _run(plant, 10)
    plant.scale(4)
    _run(plant, 20)
    assert plant.track.billed == [6] * 2 + [4] * 4
    assert plant.track.running == [6] * 2 + [4] * 4
    assert plant.observe().ready == 4
    assert _stopped(plant) == pytest.approx([0, 0, 5, 3, 0, 0])
    assert plant.track.restarts == 1


def test_workers_that_are_not_stopped_gracefully_add_their_heartbeat_timeout() -> None:
    plant = _plant(6, heartbeat=50)
    plant.scale(4)
    _run(plant, 100)
    assert sum(_stopped(plant)) == pytest.approx(58)
    up = _plant(4, heartbeat=50)
    up.scale(6)
    _run(up, 100)
    assert sum(_stopped(up)) == pytest.approx(12)


def test_start_ups_are_cancelled_before_workers_are_stopped() -> None:
    plant = _plant(4)
    plant.scale(6)
    _run(plant, 10)
    plant.scale(3)
    _run(plant, 90)
    assert plant.track.billed == [6] * 2 + [3] * 18
    assert plant.track.running == [4] * 2 + [3] * 18
    assert plant.track.restarts == 1


def test_the_restart_of_a_scale_in_includes_registered_workers_that_wait_for_one() -> None:
    plant = _plant(4)
    plant.scale(7)
    _run(plant, 30)
    assert plant.observe().ready == 7
    plant.scale(6)
    _run(plant, 70)
    assert plant.track.running == [4] * 6 + [6] * 14
    assert plant.track.restarts == 1
    assert sum(_stopped(plant)) == pytest.approx(8)


# Checkpoints


def test_a_restart_goes_back_to_the_last_checkpoint() -> None:
    plant = _plant(4, checkpoint=60)
    _run(plant, 80, 10.0)
    plant.scale(3)
    _run(plant, 15, 10.0)
    # 600 of 800 records are in the checkpoint at 60 s; from 88 s on 30 records/s are processed.
    assert plant.track.position[15:] == pytest.approx([800, 600, 660, 810])


def test_before_the_first_checkpoint_a_restart_goes_back_to_the_beginning() -> None:
    plant = _plant(4, checkpoint=60)
    _run(plant, 55, 10.0)
    plant.scale(3)
    _run(plant, 5, 10.0)
    assert plant.track.position[-2:] == [550, 0]


def test_a_checkpoint_in_the_middle_of_a_step_has_the_records_processed_until_then() -> None:
    plant = _plant(4, checkpoint=13)
    _run(plant, 20, 10.0)
    assert _engine(plant).last_checkpoint == _time(13)
    plant.scale(3)
    _run(plant, 5, 10.0)
    assert plant.track.position[-2:] == pytest.approx([200, 130])


def test_of_several_checkpoints_in_a_step_the_last_counts() -> None:
    plant = _plant(4, checkpoint=2)
    _run(plant, 15, 10.0)
    assert _engine(plant).last_checkpoint == _time(14)
    plant.scale(3)
    _run(plant, 5, 10.0)
    assert plant.track.position[-1] == pytest.approx(140)


def test_checkpoints_complete_only_while_the_job_runs() -> None:
    plant = _plant(4, checkpoint=10)
    _run(plant, 25)
    plant.scale(3)
    completed = []
    for _ in range(6):
        _run(plant, 5)
        completed.append(_engine(plant).last_checkpoint)
    # Not from 25 to 33 s, and then every 10 s from the restart on.
    assert completed == [_time(20)] * 3 + [_time(43)] * 2 + [_time(53)]


# Crashes


def test_a_crash_removes_a_worker_that_is_replaced_and_stops_the_job_twice() -> None:
    plant = _plant(4, crash_every=3600, crash_noticed=10)
    seen: list[int | None] = []
    while 3 not in seen or plant.track.running[-1] < 4:
        _run(plant, 5)
        seen.append(plant.observe().ready)
    first = seen.index(3)
    # Noticed after 10 s, restarted for 8 s; the new worker is ready 28 s after the crash and in use 12 s later.
    assert seen[first:] == [3] * 5 + [4] * 4
    assert plant.track.running[first:] == [3] * 8 + [4]
    assert plant.track.billed == [4] * (first + 9)
    assert _stopped(plant)[first:] == pytest.approx([5, 5, 5, 3, 0, 0, 0, 0, 5])
    assert plant.track.requests == []
    assert plant.track.restarts == 2


def test_crashes_have_the_configured_frequency() -> None:
    plant = _plant(4, crash_every=1800)
    _run(plant, 500 * 1800)
    # Each is followed by the restart for the new worker, unless the next crash comes sooner.
    assert plant.track.restarts / 2 == pytest.approx(500, rel=0.1)
    assert set(plant.track.billed) == {4}


def test_the_only_worker_does_not_crash() -> None:
    plant = _plant(1, crash_every=60)
    _run(plant, 3600)
    assert plant.track.restarts == 0


def test_without_a_configured_frequency_there_are_no_crashes() -> None:
    plant = Plant(PLANTS["k8s"], ONE, 1, 4)
    _run(plant, 24 * 3600)
    assert plant.track.restarts == 0


# Observations


def test_observations_are_means_over_the_last_minute() -> None:
    plant = _plant(4, idle=0.1)
    _run(plant, 60, 1000.0)
    _run(plant, 30, 20.0)
    _run(plant, 30, 60.0)
    seen = plant.observe()
    assert seen.at == _time(120)
    assert (seen.desired, seen.ready) == (4, 4)
    assert {reading.at for reading in seen.metrics.values()} == {_time(120)}
    assert dict(seen.missing) == {}
    behind = 60 * 960.0
    lag = [behind - 100 * n for n in range(1, 7)] + [behind - 600 + 100 * n for n in range(1, 7)]
    values = {name: reading.value for name, reading in seen.metrics.items()}
    assert values == pytest.approx(
        {
            "arrivals": 40.0,
            "throughput": 40.0,
            "lag": fmean(lag),
            "utilization": 1.0,
            "saturation": 1.0,
            "cpu": 1.0,
        }
    )


def test_in_the_first_minute_observations_are_means_since_the_start() -> None:
    plant = _plant(4)
    _run(plant, 5, 10.0)
    _run(plant, 5, 20.0)
    assert _value(plant, "arrivals") == 15
    assert _value(plant, "lag") == 0


def test_utilization_is_the_used_share_of_capacity_and_cpu_adds_an_idle_share() -> None:
    plant = _plant(4, idle=0.1)
    _run(plant, 60, 10.0)
    assert _value(plant, "utilization") == _value(plant, "saturation") == pytest.approx(0.25)
    assert _value(plant, "cpu") == pytest.approx(0.1 + 0.9 * 0.25)


def test_a_stopped_job_uses_nothing_and_shows_its_lag() -> None:
    plant = _plant(5, heartbeat=52)
    plant.scale(4)
    _run(plant, 60, 10.0)
    assert _value(plant, "throughput") == _value(plant, "utilization") == 0
    assert _value(plant, "arrivals") == 10
    assert _value(plant, "lag") == 10 * fmean(range(5, 65, 5))


def test_utilization_is_over_the_whole_time_even_if_the_job_ran_for_a_part_of_it() -> None:
    plant = _plant(5)
    plant.scale(4)
    _run(plant, 10, FLOOD)
    assert _value(plant, "utilization") == pytest.approx(2 / 10)


def test_replayed_records_count_as_throughput() -> None:
    plant = _plant(4, checkpoint=100, restart_down=0.1)
    _run(plant, 60, 10.0)
    plant.scale(3)
    _run(plant, 60, 10.0)
    assert sum(plant.track.arrivals) == pytest.approx(plant.track.position[-1])
    assert _value(plant, "arrivals") == 10
    assert _value(plant, "throughput") == pytest.approx(20)


def test_the_engine_reports_a_restart() -> None:
    plant = _plant(6)
    _run(plant, 20)
    plant.scale(4)
    _run(plant, 5)
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism, found.restarts) == (JobState.RESTARTING, 4, 0, 1)
    assert found.running_since is None
    _run(plant, 5)
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism, found.restarts) == (JobState.RUNNING, 4, 4, 1)
    assert found.running_since == _time(28)


def test_the_engine_counts_the_slots_of_workers_that_it_does_not_use_yet() -> None:
    plant = _plant(4)
    plant.scale(6)
    _run(plant, 30)
    found = _engine(plant)
    assert (found.job, found.slots, found.parallelism) == (JobState.RUNNING, 6, 4)


def test_the_first_day_is_a_monday_in_a_known_time_zone() -> None:
    assert START.weekday() == 0
    assert START.utcoffset() == timedelta(0)


# Invariants

Steps = Sequence[tuple[float, int | None]]
_STEPS = st.lists(st.tuples(st.floats(0, 400), st.one_of(st.none(), st.integers(1, 24))), min_size=1, max_size=80)
_SPECS = st.builds(
    PlantSpec,
    startup=st.floats(1, 60),
    restart_up=st.floats(1, 40),
    restart_down=st.floats(1, 40),
    heartbeat=st.sampled_from([0.0, 50.0]),
    checkpoint=st.floats(1, 90),
    merge=st.floats(0, 20),
    cold_for=st.floats(0, 60),
    crash_every=st.sampled_from([0.0, 60.0, 600.0]),
)


def _ran(spec: PlantSpec, seed: int, steps: Steps) -> Plant:
    plant = Plant(spec, ONE, seed, 4)
    for records, size in steps:
        if size is not None:
            plant.scale(size)
        plant.advance(records)
    return plant


@given(_SPECS, st.integers(0, 100), _STEPS)
def test_no_record_is_processed_before_it_arrives_and_none_is_lost(spec: PlantSpec, seed: int, steps: Steps) -> None:
    plant = _ran(spec, seed, steps)
    track = plant.track
    assert track.arrivals == [records for records, _ in steps]
    assert all(0 <= done <= come for done, come in zip(track.position, accumulate(track.arrivals), strict=True))
    # Without further changes and arrivals, all records are processed at the end.
    while plant.track.position[-1] < sum(track.arrivals) * (1 - 1e-9) and len(track.arrivals) < 5000:
        plant.advance(0.0)
    assert track.position[-1] == pytest.approx(sum(track.arrivals))


@given(_SPECS, st.integers(0, 100), _STEPS)
def test_requested_workers_are_billed_and_only_ready_ones_are_used(spec: PlantSpec, seed: int, steps: Steps) -> None:
    track = _ran(spec, seed, steps).track
    wanted, asked = 4, []
    for _, size in steps:
        wanted = wanted if size is None else size
        asked.append(wanted)
    assert track.billed == asked
    assert all(0 < running <= billed for running, billed in zip(track.running, track.billed, strict=True))
    assert all(0 <= share <= 1 for share in track.stopped)


@given(_SPECS, st.integers(0, 100), _STEPS)
def test_throughput_never_exceeds_the_capacity_and_only_a_restart_goes_back(
    spec: PlantSpec, seed: int, steps: Steps
) -> None:
    plant = Plant(replace(spec, sigma=0.0), ONE, seed, 4)
    track = plant.track
    position = 0.0
    for records, size in steps:
        restarts = track.restarts
        if size is not None:
            plant.scale(size)
        plant.advance(records)
        capacity = ONE * track.running[-1] ** spec.gamma * STEP * (1 - track.stopped[-1])
        assert track.position[-1] - position <= capacity * (1 + 1e-9)
        if track.restarts == restarts:
            assert track.position[-1] >= position
        position = track.position[-1]


@given(_SPECS, st.integers(0, 100), _STEPS)
def test_observations_are_plausible(spec: PlantSpec, seed: int, steps: Steps) -> None:
    plant = _ran(spec, seed, steps)
    seen = plant.observe()
    assert all(reading.finite() for reading in seen.metrics.values())
    assert _value(plant, "lag") >= 0
    assert _value(plant, "throughput") >= 0
    assert 0 <= _value(plant, "utilization") <= 1
    assert spec.idle <= _value(plant, "cpu") <= 1
    assert seen.ready is not None
    assert seen.desired is not None
    assert 0 < seen.ready <= seen.desired
    assert (_engine(plant).job is JobState.RUNNING) == (plant.track.stopped[-1] < 1)


@given(_SPECS, st.integers(0, 100), _STEPS)
def test_a_seed_gives_one_run_to_the_digit(spec: PlantSpec, seed: int, steps: Steps) -> None:
    first, again = _ran(spec, seed, steps), _ran(spec, seed, steps)
    assert first.track == again.track
    assert first.observe() == again.observe()


def test_another_seed_gives_another_run() -> None:
    tracks = []
    for seed in (1, 2):
        plant = Plant(PLANTS["k8s"], ONE, seed, 4)
        plant.scale(8)
        _run(plant, 120, 50.0)
        tracks.append(plant.track)
    assert tracks[0].position != tracks[1].position
    assert tracks[0].stopped != tracks[1].stopped


# Parameters


def test_the_plants_of_the_benchmark() -> None:
    names = ("startup", "restart_up", "restart_down", "heartbeat", "checkpoint", "slo")
    assert {plant: tuple(getattr(spec, name) for name in names) for plant, spec in PLANTS.items()} == {
        "k8s": (30, 12, 8, 0, 10, 60),
        "ec2": (90, 30, 25, 0, 60, 120),
        "redeploy": (30, 75, 70, 0, 10, 240),
        "ungraceful": (30, 12, 8, 50, 10, 120),
    }
    for spec in PLANTS.values():
        assert (spec.startup_sd, spec.restart_sd, spec.crash_every) == (0.25, 0.3, 0)
        assert (spec.gamma, spec.sigma, spec.tau, spec.merge) == (0.9, 0.04, 300, 10)
        assert (spec.cold, spec.cold_for) == (0.85, 30)


@pytest.mark.parametrize("name", ["startup", "restart_up", "restart_down", "checkpoint", "tau", "slo", "gamma"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_parameters_that_must_be_positive_are_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: is .*, expected above 0"):
        changed(name, value)


@pytest.mark.parametrize(
    "name",
    ["startup_sd", "restart_sd", "heartbeat", "sigma", "merge", "cold_for", "crash_every", "crash_noticed"],
)
@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_parameters_that_must_not_be_negative_are_checked(name: str, value: float) -> None:
    assert getattr(changed(name, 0.0), name) == 0
    with pytest.raises(ValueError, match=f"{name}: is .*, expected 0 or more"):
        changed(name, value)


@pytest.mark.parametrize("name", ["slow", "never"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_shares_of_workers_are_from_0_to_1(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: is .*, expected a share from 0 to 1"):
        changed(name, value)


def test_a_source_has_at_least_one_partition() -> None:
    with pytest.raises(ValueError, match="partitions: is 0, expected 1 or more"):
        replace(CALM, partitions=0)


@pytest.mark.parametrize("cold", [0.0, -0.1, 1.1, math.nan])
def test_a_cold_job_has_some_capacity(cold: float) -> None:
    with pytest.raises(ValueError, match=r"cold: is .*, expected above 0 and at most 1"):
        replace(CALM, cold=cold)


@pytest.mark.parametrize("idle", [1.0, -0.1, math.nan])
def test_an_idle_job_leaves_some_cpu_free(idle: float) -> None:
    with pytest.raises(ValueError, match=r"idle: is .*, expected from 0 to below 1"):
        replace(CALM, idle=idle)
