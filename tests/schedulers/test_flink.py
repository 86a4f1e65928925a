"""Flink's adaptive scheduler state by state. The timelines of an executing job are in test_flink_cases."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autoscaler.schedulers.flink import FlinkSettings, Restart, Rules, default_max_delay
from autoscaler.schedulers.slots import Bounds
from autoscaler.schedulers.state_machine import (
    Checkpoint,
    Deploy,
    Event,
    Failed,
    Instruction,
    Job,
    Killed,
    Passed,
    Phase,
    Restored,
    Slots,
    Stage,
    Stop,
    Why,
    advance,
)

ONE_GROUP = ((Bounds(1, 128),),)
UP_TO_4 = ((Bounds(1, 4),),)
AT_LEAST_3 = ((Bounds(3, 8),),)
FOREVER = Passed(1e6)


def flink(version: str = "2.3", **changes: Any) -> FlinkSettings:
    """Settings with checkpoints, but without waiting for one."""
    return FlinkSettings.of(version, **({"checkpoint_interval": 10.0, "max_delay": 0.0} | changes))


def play(settings: FlinkSettings, job: Job, *events: Event) -> tuple[Job, list[Instruction]]:
    done: list[Instruction] = []
    for event in events:
        job, more = advance(settings, job, event)
        done += more
    return job, done


def failed(at: float) -> Checkpoint:
    return Checkpoint(at, completed=False)


def deployed(at: float, parallelism: int) -> Deploy:
    """The deployment of a job with one vertex."""
    return Deploy(at, parallelism, ((parallelism,),))


# Created, waiting for resources


def test_the_first_event_starts_a_job_which_then_waits_for_slots() -> None:
    job = Job()
    assert (job.phase, job.wakes_at, job.parallelism, job.runs) == (Phase.CREATED, math.inf, 0, False)
    job, done = play(flink(), job, Passed(5))
    assert (job.phase, job.since, done) == (Phase.WAITING_FOR_RESOURCES, 5, [])
    assert job.timers == ()  # in Reactive Mode, forever


def test_in_reactive_mode_a_job_is_deployed_on_the_first_slots() -> None:
    job, done = play(flink(), Job(), Slots(3, 2))
    assert done == [deployed(3, 2)]
    assert (job.phase, job.since, job.parallelism, job.restored) == (Phase.EXECUTING, 3, 2, False)
    assert play(flink(), job, Restored(7))[0].runs


def test_outside_reactive_mode_it_waits_for_more_slots_for_a_while() -> None:
    settings = flink(reactive=False, groups=UP_TO_4)
    job, done = play(settings, Job(), Passed(0), Slots(20, 1), Slots(25, 2))
    assert (done, job.wakes_at) == ([], 30)
    assert play(settings, job, Passed(31))[1] == [deployed(30, 2)]


def test_all_desired_slots_start_a_job_at_once() -> None:
    assert play(flink(reactive=False, groups=UP_TO_4), Job(), Slots(1, 2), Slots(4, 5))[1] == [deployed(4, 4)]


@pytest.mark.parametrize("version", ["1.18", "1.20", "2.3"])
def test_too_few_slots_start_nothing_and_slots_that_have_gone_do_not_count(version: str) -> None:
    settings = flink(version, reactive=False, groups=AT_LEAST_3)
    job, done = play(settings, Job(), Slots(0, 2), Slots(1, 3), Slots(5, 2), Passed(60))
    assert (done, job.phase) == ([], Phase.WAITING_FOR_RESOURCES)
    assert play(settings, job, Slots(70, 4), FOREVER)[1] == [deployed(80, 4)]


@pytest.mark.parametrize(("version", "expected"), [("1.20", 17), ("2.3", 11)])
def test_until_1_20_too_small_an_offer_restarts_the_wait(version: str, expected: float) -> None:
    settings = flink(version, reactive=False, groups=AT_LEAST_3)
    assert play(settings, Job(), Slots(1, 3), Slots(5, 1), Slots(6, 2), Slots(7, 3), FOREVER)[1] == [
        deployed(expected, 3)
    ]


def test_a_wait_without_result_leaves_no_timer_behind() -> None:
    settings = flink(reactive=False, groups=AT_LEAST_3)
    job, done = play(settings, Job(), Slots(0, 3), Slots(2, 4), Slots(5, 2), Passed(10))
    assert done == []
    assert play(settings, job, Slots(11, 3), FOREVER)[1] == [deployed(21, 3)]


def test_slots_of_dead_workers_count_until_their_death_is_noticed() -> None:
    settings = flink(reactive=False, groups=UP_TO_4)
    assert play(settings, Job(), Slots(0, 3), Killed(1, 1), Slots(2, 3))[1] == [deployed(2, 4)]


def test_a_job_that_never_gets_enough_slots_fails_at_its_timeout() -> None:
    settings = flink(reactive=False, groups=AT_LEAST_3)
    job, done = play(settings, Job(), Slots(0, 2), Passed(299))
    assert (done, job.wakes_at) == ([], 300)
    job, done = play(settings, job, Passed(300))
    assert (done, job.phase, job.wakes_at) == ([Stop(300, Why.FAILED)], Phase.FINISHED, math.inf)


def test_at_its_timeout_a_job_uses_the_available_slots() -> None:
    settings = flink(reactive=False, groups=AT_LEAST_3, resource_wait=8.0)
    assert play(settings, Job(), Slots(0, 3), FOREVER)[1] == [deployed(8, 3)]


# Creating the execution graph


def test_building_a_graph_takes_time_and_slots_that_come_meanwhile_count_for_the_next_rescale() -> None:
    settings = flink(create=2.0, cooldown=30.0, stabilization=5.0)
    job, done = play(settings, Job(), Slots(0, 2), Slots(1, 3))
    assert (done, job.phase, job.wakes_at) == ([], Phase.CREATING_EXECUTION_GRAPH, 2)
    job, done = play(settings, job, Passed(2))
    assert (done, job.stage, job.changed) == ([deployed(2, 2)], Stage.COOLDOWN, 2)
    assert play(settings, job, FOREVER)[1] == [Stop(32, Why.RESCALE), deployed(34, 3)]


def test_slots_that_disappear_while_the_graph_is_built_make_the_job_wait_again() -> None:
    settings = flink(create=2.0, groups=AT_LEAST_3)
    job, done = play(settings, Job(), Slots(0, 4), Slots(1, 2), Passed(5))
    assert (done, job.phase) == ([], Phase.WAITING_FOR_RESOURCES)
    assert play(settings, job, Slots(6, 3), Passed(8))[1] == [deployed(8, 3)]


@pytest.mark.parametrize(("version", "expected"), [("1.18", 4), ("1.20", 32)])
def test_slots_that_come_while_the_graph_is_built_until_1_20(version: str, expected: float) -> None:
    _, done = play(flink(version, create=2.0), Job(), Slots(0, 2), Slots(1, 3), Passed(50))
    stopped = expected - 2 if version == "1.18" else expected
    assert done == [deployed(2, 2), Stop(stopped, Why.RESCALE), deployed(stopped + 2, 3)]


# Executing


def test_a_running_job_can_be_created_directly() -> None:
    job = flink().executing(4, -100.0)
    assert (job.phase, job.since, job.slots, job.parallelism, job.runs) == (Phase.EXECUTING, -100, 4, 4, True)
    assert flink(create=9.0).executing(4, 0.0).since == 0
    with pytest.raises(ValueError, match="expected more than 2 slots"):
        flink(groups=AT_LEAST_3).executing(2, 0.0)


@pytest.mark.parametrize("version", ["1.18", "1.20", "2.3"])
def test_slots_beyond_the_key_groups_change_nothing(version: str) -> None:
    settings = flink(version, groups=UP_TO_4)
    assert play(settings, settings.executing(4, 0.0), Slots(100, 5), FOREVER)[1] == []


def test_each_slot_sharing_group_has_its_own_slots() -> None:
    settings = flink("1.18", groups=((Bounds(1, 4), Bounds(1, 2)), (Bounds(1, 3),)))
    job, done = play(settings, settings.executing(4, 0.0), Slots(1, 7))
    assert done == [Stop(1, Why.RESCALE), Deploy(1, 4, ((4, 2), (3,)))]
    assert job.parallelism == 4


def test_a_change_that_is_reverted_in_time_is_forgotten() -> None:
    settings = flink(cooldown=0.0, stabilization=60.0, max_delay=30.0)
    job, done = play(settings, settings.executing(2, 0.0), Slots(10, 3), Slots(50, 2, spare=True), Passed(80))
    assert (done, job.stage, job.wakes_at, job.changed) == ([], Stage.IDLING, math.inf, math.inf)
    assert play(settings, job, Slots(100, 3), FOREVER)[1] == [Stop(160, Why.RESCALE), deployed(160, 3)]


def test_a_change_that_is_reverted_while_waiting_for_a_checkpoint_is_forgotten() -> None:
    settings = flink(cooldown=0.0, stabilization=10.0, max_delay=500.0)
    events: list[Event] = [Slots(10, 3), Passed(25), Slots(30, 4), Slots(31, 2, spare=True), Checkpoint(40)]
    job, done = play(settings, settings.executing(2, 0.0), *events)
    assert (done, job.stage, job.wakes_at) == ([], Stage.IDLING, math.inf)


def test_slots_marked_as_spare_that_the_job_needed_stop_it() -> None:
    settings = flink()
    _, done = play(settings, settings.executing(3, 0.0), Slots(10, 2, spare=True), Passed(20))
    assert done == [Stop(10, Why.LOST), deployed(11, 2)]


def test_of_two_losses_each_is_judged_by_the_slots_still_counted() -> None:
    settings = flink()
    job = settings.executing(2, 0.0)
    job, done = play(settings, job, Slots(5, 4), Killed(6, 1, spare=True), Slots(7, 2, spare=True))
    assert (done, job.phase) == ([], Phase.EXECUTING)


def test_the_configured_number_of_failed_checkpoints_counts_as_a_completed_one() -> None:
    settings = flink(cooldown=0.0, stabilization=10.0, max_delay=500.0)
    job, done = play(settings, settings.executing(2, 0.0), failed(5), Slots(10, 3), failed(12))
    assert (done, job.failed_checkpoints) == ([], 1)  # a failure before the change does not count
    assert play(settings, job, failed(25))[1] == [Stop(25, Why.RESCALE), deployed(25, 3)]
    assert play(settings, job, Slots(15, 1))[0].failed_checkpoints is None  # nor does one before a restart
    job, done = play(settings, job, Checkpoint(15), Slots(16, 4), failed(25))
    assert done == []  # after a completed one the count starts again
    job, done = play(settings, job, failed(35))
    assert done == [Stop(35, Why.RESCALE), deployed(35, 4)]
    assert job.failed_checkpoints is None


def test_checkpoints_before_the_slots_are_stable_or_of_an_idle_job_change_nothing() -> None:
    settings = flink(cooldown=0.0, stabilization=60.0, max_delay=500.0)
    job = settings.executing(2, 0.0)
    assert play(settings, job, Checkpoint(5)) == (job, [])
    assert play(settings, job, Slots(10, 3), Checkpoint(20))[1] == []
    assert play(settings, job, Slots(10, 3), Checkpoint(70))[1] == [Stop(70, Why.RESCALE), deployed(70, 3)]


@pytest.mark.parametrize(("at", "expected"), [(1020, 1030), (1030, 1060), (1031, 1031)])
def test_until_1_20_the_interval_counts_from_the_deployment(at: float, expected: float) -> None:
    settings = flink("1.20")
    # A change at 30 s counts as within the interval, whose end has already been checked.
    events = [Slots(at, 3)] if at < 1030 else [Passed(1030), Slots(at, 3)]
    _, done = play(settings, settings.executing(2, 1000.0), *events, Passed(5000))
    assert done == [Stop(expected, Why.RESCALE), deployed(expected, 3)]


def test_until_1_20_one_check_at_the_end_of_the_interval_is_enough() -> None:
    settings = flink("1.20")
    job, _ = play(settings, settings.executing(2, 0.0), Slots(10, 3), Slots(15, 2, spare=True))
    assert job.wakes_at == 30
    assert play(settings, job, Passed(30))[0].timers == ()


@pytest.mark.parametrize("version", ["1.18", "1.20"])
def test_until_1_20_checkpoints_do_not_matter(version: str) -> None:
    settings = flink(version)
    job = play(settings, settings.executing(2, 0.0), Slots(10, 3))[0]
    assert play(settings, job, Checkpoint(10)) == (job, [])


def test_until_1_20_an_increase_may_be_too_small() -> None:
    settings = flink("1.20", min_increase=2)
    job = settings.executing(2, 0.0)
    job, done = play(settings, job, Slots(100, 3), Passed(200))
    assert done == []
    assert play(settings, job, Slots(300, 4))[1] == [Stop(300, Why.RESCALE), deployed(300, 4)]


def test_a_small_increase_is_made_in_the_end() -> None:
    settings = flink("1.20", min_increase=2, force_after=120.0)
    job = settings.executing(2, 0.0)
    # The single timer at the end of the interval found nothing; the timer of the change waits for the full time again.
    assert play(settings, job, Slots(100, 3), Passed(149))[1] == []
    assert play(settings, job, Slots(100, 3), FOREVER)[1] == [Stop(150, Why.RESCALE), deployed(150, 3)]
    assert play(settings, job, Passed(160), Slots(170, 3))[1] == [Stop(170, Why.RESCALE), deployed(170, 3)]
    assert play(settings, job, Passed(160), Slots(170, 2))[1] == []


def test_the_wait_of_a_small_increase_counts_from_the_deployment() -> None:
    settings = flink("1.20", min_increase=2, force_after=120.0, cooldown=0.0)
    job = settings.executing(2, 1000.0)
    for checked, at, expected in ((1010, 1030, 1120), (1120, 1120, 1240), (1120, 1121, 1121)):
        _, done = play(settings, job, Passed(checked), Slots(at, 3), Passed(5000))
        assert done == [Stop(expected, Why.RESCALE), deployed(expected, 3)]


def test_a_small_increase_that_was_reverted_is_not_made() -> None:
    settings = flink("1.20", min_increase=2, force_after=120.0)
    job, done = play(settings, settings.executing(2, 0.0), Slots(100, 3), Slots(110, 2, spare=True), Passed(1000))
    assert (done, job.phase) == ([], Phase.EXECUTING)


# Restarting


@pytest.mark.parametrize("version", ["1.20", "2.3"])
def test_a_stopped_worker_stops_the_job_at_once_and_it_continues_after_the_delay(version: str) -> None:
    settings = flink(version)
    job, done = play(settings, settings.executing(4, 0.0), Slots(10, 3))
    assert (done, job.phase, job.parallelism, job.wakes_at) == ([Stop(10, Why.LOST)], Phase.RESTARTING, 0, 11)
    assert not job.restored
    assert play(settings, job, Passed(11))[1] == [deployed(11, 3)]


def test_slots_that_come_during_a_restart_are_used_by_it() -> None:
    settings = flink()
    assert play(settings, settings.executing(4, 0.0), Slots(10, 3), Slots(10.5, 6), Passed(20))[1] == [
        Stop(10, Why.LOST),
        deployed(11, 6),
    ]


def test_a_job_is_not_deployed_before_its_tasks_are_cancelled() -> None:
    settings = flink(cancel=4.0, cooldown=0.0, stabilization=0.0)
    assert play(settings, settings.executing(2, 0.0), Slots(10, 3), Passed(20))[1] == [
        Stop(10, Why.RESCALE),
        deployed(14, 3),
    ]
    assert play(settings, settings.executing(2, 0.0), Slots(10, 1), Passed(20))[1] == [
        Stop(10, Why.LOST),
        deployed(15, 1),
    ]


@pytest.mark.parametrize(("version", "expected"), [("1.20", 14 + 10), ("2.3", 14)])
def test_since_2_0_a_rescale_deploys_directly_on_its_slots(version: str, expected: float) -> None:
    settings = flink(version, reactive=False, cooldown=0.0, stabilization=0.0, cancel=4.0)
    _, done = play(settings, settings.executing(2, 0.0), Passed(9), Slots(10, 3), FOREVER)
    assert done == [Stop(10, Why.RESCALE), deployed(expected, 3)]


def test_if_the_slots_changed_again_it_waits_like_a_starting_job() -> None:
    settings = flink(reactive=False, cooldown=0.0, stabilization=0.0, cancel=4.0)
    _, done = play(settings, settings.executing(2, 0.0), Slots(10, 3), Passed(10), Slots(12, 4), FOREVER)
    assert done == [Stop(10, Why.RESCALE), deployed(24, 4)]


def test_after_a_failure_it_waits_even_for_the_slots_of_the_previous_rescale() -> None:
    settings = flink(reactive=False, cooldown=0.0, stabilization=0.0)
    job, _ = play(settings, settings.executing(2, 0.0), Slots(10, 3), Passed(20))
    assert play(settings, job, Slots(50, 2), Slots(50.5, 3), FOREVER)[1] == [Stop(50, Why.LOST), deployed(61, 3)]


def test_without_slots_nothing_runs_until_there_are_some_again() -> None:
    settings = flink()
    job, done = play(settings, settings.executing(1, 0.0), Slots(10, 0), Passed(60))
    assert (done, job.phase) == ([Stop(10, Why.LOST)], Phase.WAITING_FOR_RESOURCES)
    assert play(settings, job, Slots(90, 2))[1] == [deployed(90, 2)]


# Killed workers


def test_a_killed_worker_is_noticed_when_its_heartbeat_times_out() -> None:
    settings = flink(heartbeat=50.0)
    job, done = play(settings, settings.executing(4, 0.0), Killed(10, 1))
    assert (done, job.phase, job.slots, job.dead, job.wakes_at) == ([], Phase.EXECUTING, 3, 1, 30)  # the cooldown
    assert not job.runs
    job, done = play(settings, job, Passed(60))
    assert (done, job.dead, job.phase) == ([Stop(60, Why.LOST)], 0, Phase.RESTARTING)
    assert play(settings, job, Passed(61))[1] == [deployed(61, 3)]


def test_an_early_replacement_restarts_a_job_that_then_waits_for_the_dead_worker() -> None:
    settings = flink("1.18", heartbeat=50.0)
    job, done = play(settings, settings.executing(4, 0.0), Killed(10, 1), Slots(30, 4))
    assert (done, job.phase, job.wakes_at) == ([Stop(30, Why.RESCALE)], Phase.RESTARTING, 60)
    assert play(settings, job, Passed(60))[1] == [deployed(60, 4)]


def test_a_killed_worker_that_the_job_did_not_use_does_not_stop_it() -> None:
    settings = flink(cooldown=0.0, heartbeat=50.0)
    job, _ = play(settings, settings.executing(4, 0.0), Slots(10, 5), Killed(20, 1, spare=True))
    assert job.runs
    job, done = play(settings, job, FOREVER)
    assert (done, job.dead) == ([], 0)


def test_a_job_may_be_deployed_on_a_killed_worker_before_its_death_is_noticed() -> None:
    settings = flink(reactive=False, heartbeat=50.0, groups=AT_LEAST_3)
    job, done = play(settings, Job(), Slots(0, 4), Killed(5, 1, spare=True), Passed(10))
    assert (done, job.parallelism) == ([deployed(10, 4)], 4)
    assert play(settings, job, Passed(70))[1] == [Stop(55, Why.LOST), deployed(66, 3)]


def test_if_connections_are_refused_deployments_fail_until_the_dead_worker_is_noticed() -> None:
    # A real Flink 2.3, in which a worker had been stopped before, was deployed 2.6, 6.0 and 10.4 s after the kill.
    settings = flink(refused=True, heartbeat=9.1, submission_stabilization=1.0, longest=5.0)
    _, done = play(settings, settings.executing(4, 0.0), Slots(10.0, 3), Restored(12.5), Killed(20.0, 1), FOREVER)
    assert done == [
        Stop(10.0, Why.LOST),
        deployed(12.0, 3),
        Stop(20.0, Why.LOST),
        *(deployed(22.5, 3), Stop(22.5, Why.LOST)),  # 1.5 s, and 1 s for the slots to be stable
        *(deployed(25.75, 3), Stop(25.75, Why.LOST)),
        deployed(30.125, 2),  # noticed at 29.1, while waiting for them to be stable
    ]


def test_if_connections_are_refused_a_restart_that_does_not_need_the_dead_worker_succeeds() -> None:
    settings = flink(refused=True, groups=UP_TO_4)
    start = settings.executing(4, 0.0)
    job, done = play(settings, start, Killed(20.0, 1), Slots(20.5, 4), Restored(22.0), FOREVER)
    assert done == [Stop(20.0, Why.LOST), deployed(21.0, 4)]
    assert job.runs


def test_if_connections_are_refused_a_dead_spare_worker_does_not_stop_the_job() -> None:
    settings = flink(refused=True, groups=UP_TO_4)
    assert play(settings, settings.executing(5, 0.0), Killed(20.0, 1, spare=True), FOREVER)[1] == []


def test_refused_connections_require_a_restart_delay() -> None:
    with pytest.raises(ValueError, match="delay: is 0, expected more"):
        flink(refused=True, delay=0.0)
    with pytest.raises(ValueError, match="longest: is 0, expected more"):
        flink(refused=True, longest=0.0)


def test_more_workers_than_exist_cannot_be_killed() -> None:
    settings = flink()
    job, _ = play(settings, settings.executing(2, 0.0), Killed(10, 5))
    assert (job.slots, job.dead) == (0, 2)
    assert play(settings, job, Killed(11, 1)) == (job, [])


def test_a_heartbeat_timeout_of_zero_is_noticed_at_once() -> None:
    settings = flink(heartbeat=0.0, delay=0.0)
    assert play(settings, settings.executing(4, 0.0), Killed(10, 1))[1] == [Stop(10, Why.LOST), deployed(10, 3)]


# Restart strategies


def delays(settings: FlinkSettings, failures: list[float]) -> list[float]:
    """The duration of the stall after each failure, at these times."""
    job = settings.executing(40, 0.0)
    events: list[Event] = [Slots(at, 40 - count) for count, at in enumerate(failures, 1)]
    _, done = play(settings, job, *events, FOREVER)
    return [after.at - before.at for before, after in zip(done[::2], done[1::2], strict=False)]


def test_the_exponential_delay_grows_to_its_maximum_and_is_reset_after_a_quiet_time() -> None:
    failures = [100.0 * count for count in range(1, 13)]
    growing = [
        1,
        1.5,
        2.25,
        3.375,
        5.0625,
        7.59375,
        11.390625,
        17.0859375,
        25.62890625,
        38.443359375,
        57.6650390625,
        60,
    ]
    assert delays(flink(), failures) == pytest.approx(growing)
    assert delays(flink(), [10, 20, 20 + 1.5 + 3600]) == [1, 1.5, 1]
    assert delays(flink(), [10, 20, 20 + 1.5 + 3599]) == [1, 1.5, 2.25]


def test_until_1_18_the_delay_is_fixed() -> None:
    assert delays(flink("1.18"), [10, 20, 30]) == [1, 1, 1]
    assert delays(flink("1.18", restart=Restart.EXPONENTIAL), [10, 20, 30]) == [1, 2, 4]


def test_a_job_fails_permanently_after_the_configured_number_of_restarts() -> None:
    settings = flink(restart=Restart.FIXED, attempts=1)
    job, done = play(settings, settings.executing(4, 0.0), Slots(10, 3), Slots(20, 2), FOREVER)
    assert done == [Stop(10, Why.LOST), deployed(11, 3), Stop(20, Why.FAILED)]
    assert job.phase is Phase.FINISHED


def test_without_checkpoints_a_job_does_not_survive_a_lost_worker() -> None:
    settings = FlinkSettings.of("2.3")
    job, done = play(settings, settings.executing(4, 0.0), Slots(10, 3))
    assert (done, job.phase, job.parallelism) == ([Stop(10, Why.FAILED)], Phase.FINISHED, 0)
    assert not job.restored


def test_a_finished_job_stays_finished() -> None:
    settings = FlinkSettings.of("2.3")
    job, _ = play(settings, settings.executing(4, 0.0), Slots(10, 3))
    job, done = play(settings, job, Slots(11, 9), Killed(12, 1), Checkpoint(13), Restored(14), Slots(15, 2), FOREVER)
    assert (done, job.phase, job.runs) == ([], Phase.FINISHED, False)


# Settings


@pytest.mark.parametrize(
    ("version", "rules", "cooldown", "restart"),
    [
        ("1.18", Rules.INTERVAL, 0, Restart.FIXED),
        ("1.18.1", Rules.INTERVAL, 0, Restart.FIXED),
        ("1.19", Rules.INTERVAL, 30, Restart.EXPONENTIAL),
        ("1", Rules.INTERVAL, 30, Restart.EXPONENTIAL),
        ("1.20.2", Rules.INTERVAL, 30, Restart.EXPONENTIAL),
        ("2.0", Rules.STABILIZED, 30, Restart.EXPONENTIAL),
        ("2.0-preview1", Rules.STABILIZED, 30, Restart.EXPONENTIAL),
        ("2.3", Rules.STABILIZED, 30, Restart.EXPONENTIAL),
        ("2.x", Rules.STABILIZED, 30, Restart.EXPONENTIAL),
        ("2", Rules.STABILIZED, 30, Restart.EXPONENTIAL),
    ],
)
def test_a_version_has_its_rules_and_defaults(version: str, rules: Rules, cooldown: float, restart: Restart) -> None:
    settings = FlinkSettings.of(version, checkpoint_interval=20.0)
    assert (settings.rules, settings.cooldown, settings.restart) == (rules, cooldown, restart)
    assert (settings.max_delay, settings.resource_wait, settings.submission_stabilization) == (60, math.inf, 0)


def test_outside_reactive_mode_a_job_waits_for_its_slots_for_a_limited_time() -> None:
    settings = FlinkSettings.of("2.3", reactive=False)
    assert (settings.resource_wait, settings.submission_stabilization) == (300, 10)


def test_configured_values_take_precedence_over_the_defaults() -> None:
    settings = FlinkSettings.of("2.3", checkpoint_interval=20.0, checkpoint_failures=5, cooldown=1.0)
    assert (settings.max_delay, settings.cooldown) == (120, 1)
    assert FlinkSettings.of("2.3", checkpoint_interval=20.0, max_delay=7.0).max_delay == 7


@pytest.mark.parametrize("version", ["1.17", "1.17.2", "0.9", "", "two", "2.3rc", "v2.3"])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version of Flink from 1\.18 on"):
        FlinkSettings.of(version)


@pytest.mark.parametrize(
    ("name", "value"), [("cooldown", -1.0), ("heartbeat", math.nan), ("checkpoint_failures", 0), ("min_increase", 0)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: is"):
        FlinkSettings(**{name: value})  # type: ignore[arg-type]


def test_a_rescale_waits_for_one_checkpoint_more_than_may_fail() -> None:
    assert default_max_delay(60.0, 2) == 180
    assert default_max_delay(10.0) == 30
    assert default_max_delay(None, 2) == 0


# A job that merges registrations


def test_a_merging_job_restarts_once_for_all_registrations_within_the_window() -> None:
    settings = FlinkSettings.merging(10.0)
    job, done = play(settings, settings.executing(4, -3600.0), Slots(5, 5), Slots(10, 7), Passed(15), Slots(20, 8))
    assert done == [Stop(15, Why.RESCALE), deployed(15, 7)]
    assert job.wakes_at == 30


def test_a_merging_job_restarts_at_once_for_a_loss_and_uses_all_ready_workers() -> None:
    settings = FlinkSettings.merging(10.0)
    job, done = play(settings, settings.executing(4, -3600.0), Slots(5, 6), Slots(10, 5), Killed(20, 1), Passed(60))
    assert done == [Stop(10, Why.LOST), deployed(10, 5), Stop(20, Why.LOST), deployed(20, 4)]
    assert job.wakes_at == math.inf


def test_a_merging_job_may_be_deployed_without_slots() -> None:
    settings = FlinkSettings.merging(10.0)
    job, done = play(settings, settings.executing(1, 0.0), Slots(5, 0), Slots(30, 2), Passed(60))
    assert done == [Stop(5, Why.LOST), deployed(5, 0), Stop(40, Why.RESCALE), deployed(40, 2)]
    assert job.parallelism == 2


# Failures of user code


def test_a_failure_of_user_code_restarts_a_job_with_the_same_delays_as_a_loss() -> None:
    job, _ = play(flink(), Job(), Slots(0, 2), Restored(1))
    job, done = play(flink(), job, Failed(10), Passed(11), Restored(12), Failed(20), FOREVER)
    assert done == [Stop(10, Why.ERROR), deployed(11, 2), Stop(20, Why.ERROR), deployed(21.5, 2)]


def test_without_a_restart_strategy_the_first_failure_ends_the_job() -> None:
    settings = flink(restart=Restart.NONE)
    job, done = play(settings, settings.executing(2, 0), Failed(10), FOREVER)
    assert (done, job.phase) == ([Stop(10, Why.FAILED)], Phase.FINISHED)


def test_a_job_that_is_not_running_cannot_fail() -> None:
    _, done = play(flink(), Job(), Slots(0, 2), Failed(10), Failed(10.5), FOREVER)
    assert done == [deployed(0, 2), Stop(10, Why.ERROR), deployed(11, 2)]
