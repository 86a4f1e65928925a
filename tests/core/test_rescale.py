"""A rescale is followed until the job has absorbed it, and given up at its deadline otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.core.explain import describe
from autoscaler.core.model import (
    Bound,
    Cause,
    ClusterSpec,
    ClusterState,
    Direction,
    EngineStatus,
    JobState,
    Observation,
    Phase,
    Reason,
    Rescale,
    SettleSpec,
)
from autoscaler.core.rescale import Settling, begin, follow, next_phase, stands_still
from autoscaler.core.step import step
from autoscaler.core.trust import trusted
from tests.core.build import T0, Fixed, at, running, seconds, seen, spec

DEADLINES = SettleSpec(
    ready=seconds(60),
    registered=seconds(30),
    absorbed=seconds(30),
    running=seconds(30),
    caught_up=seconds(100),
)
WATCHED = spec(settle=DEADLINES, engine=True, metrics=("lag", "throughput"))
UP = begin(2, 4, T0, Cause.REQUEST)
DOWN = begin(4, 2, T0, Cause.REQUEST)


def now(s: ClusterSpec, rescale: Rescale, observation: Observation) -> Settling:
    return follow(s, rescale, observation, trusted(s, observation)[0])


def notes_of(settling: Settling) -> tuple[tuple[Reason, str], ...]:
    return tuple((reason, describe(fact)) for reason, fact in settling.notes)


def world(second: float, desired: int, ready: int, engine: EngineStatus | None, lag: float = 0.0) -> Observation:
    metrics = {"lag": lag, "throughput": 100.0}
    return seen(second, desired, ready=ready, engine=engine, metrics=metrics)


def test_a_rescale_goes_through_its_phases_and_each_duration_is_kept() -> None:
    rescale: Rescale | None = UP
    for second, desired, ready, engine, lag, phase in [
        (5, 4, 2, running(2), 0, Phase.REQUESTED),
        (10, 4, 4, running(2), 0, Phase.READY),
        (14, 4, 4, running(4, 2), 0, Phase.REGISTERED),
        (16, 4, 4, EngineStatus(job=JobState.RESTARTING, slots=4, parallelism=4), 0, Phase.ABSORBED),
        (20, 4, 4, running(4), 5000, Phase.RUNNING),
    ]:
        assert rescale is not None
        rescale = now(WATCHED, rescale, world(second, desired, ready, engine, lag)).rescale
        assert rescale is not None
        assert rescale.phase is phase
    assert rescale is not None
    assert next_phase(rescale) is Phase.CAUGHT_UP
    last = now(WATCHED, rescale, world(50, 4, 4, running(4), 900))
    assert last.settled is not None
    assert last.settled.durations == {
        Phase.READY: 10,
        Phase.REGISTERED: 4,
        Phase.ABSORBED: 2,
        Phase.RUNNING: 4,
        Phase.CAUGHT_UP: 30,
    }
    assert notes_of(last)[-1] == (Reason.SETTLED, "the rescale from 2 to 4 has settled after 50 s")


def test_a_scale_down_waits_until_the_replicas_and_slots_are_gone() -> None:
    rescale: Rescale | None = DOWN
    for second, ready, engine, phase in [
        (5, 3, running(4), Phase.REQUESTED),
        (6, 2, running(4), Phase.READY),
        (7, 2, running(2, 4), Phase.REGISTERED),
    ]:
        assert rescale is not None
        rescale = now(WATCHED, rescale, world(second, 2, ready, engine)).rescale
        assert rescale is not None
        assert rescale.phase is phase
    assert rescale is not None
    assert now(WATCHED, rescale, world(9, 2, 2, running(2))).settled is not None


@pytest.mark.parametrize(
    ("start", "ready", "engine", "lag", "waits", "said"),
    [
        (UP, 3, running(2), 0.0, Phase.READY, "the target has the new number of replicas ready"),
        (UP, 4, running(3), 0.0, Phase.REGISTERED, "the engine has registered their slots"),
        (UP, 4, running(4, 3), 0.0, Phase.ABSORBED, "the job runs at the new parallelism"),
        (
            UP,
            4,
            EngineStatus(job=JobState.RESTARTING, slots=4, parallelism=4),
            0.0,
            Phase.RUNNING,
            "the job runs",
        ),
        (UP, 4, None, 0.0, Phase.REGISTERED, "the engine has registered their slots"),
        (UP, 4, running(4), 9000.0, Phase.CAUGHT_UP, "the backlog is processed"),
    ],
)
def test_each_phase_has_a_deadline_after_which_it_is_reported_and_released(
    start: Rescale, ready: int, engine: EngineStatus | None, lag: float, waits: Phase, said: str
) -> None:
    waiting = now(WATCHED, start, world(30, 4, ready, engine, lag))
    assert waiting.rescale is not None
    assert next_phase(waiting.rescale) is waits
    missed = now(WATCHED, waiting.rescale, world(300, 4, ready, engine, lag))
    assert missed.missed is not None
    assert missed.rescale is None
    reason, text = notes_of(missed)[-1]
    assert reason is Reason.DEADLINE
    assert text.startswith("the rescale from 2 to 4 is no longer waited for: ")
    assert f" s were not enough until {said}" in text


def test_a_phase_that_ends_late_is_not_reported_as_missed() -> None:
    assert now(WATCHED, UP, world(5000, 4, 4, running(4))).settled is not None


def test_without_engine_and_metrics_a_rescale_only_waits_for_ready_replicas() -> None:
    assert now(spec(), UP, seen(9, 4)).settled is not None


@pytest.mark.parametrize("rescale", [UP, DOWN])
def test_without_a_job_a_rescale_ends_when_its_replicas_are_ready(rescale: Rescale) -> None:
    idle = EngineStatus(job=JobState.IDLE)
    assert now(WATCHED, rescale, world(9, rescale.to, rescale.to, idle)).settled is not None
    assert now(WATCHED, rescale, world(9, rescale.to, rescale.before, idle)).settled is None


def test_a_lost_replica_stalls_no_job_if_none_is_running() -> None:
    loss = begin(1, 2, T0, Cause.LOSS)
    assert not stands_still(WATCHED, loss, world(9, 2, 1, EngineStatus(job=JobState.IDLE)))
    assert stands_still(WATCHED, loss, world(9, 2, 1, EngineStatus(job=JobState.STOPPED)))


def test_slots_are_not_waited_for_if_the_engine_does_not_report_them() -> None:
    assert now(WATCHED, UP, world(9, 4, 4, EngineStatus(job=JobState.RUNNING))).settled is not None


@pytest.mark.parametrize(
    ("more", "parallelism", "reached"),
    [
        ({"max_parallelism": 3}, 3, True),
        ({"partitions": 3}, 3, True),
        ({"partitions": 3}, 2, False),
        ({}, 3, False),
    ],
)
def test_a_rescale_waits_for_no_more_parallelism_than_the_job_can_use(
    more: dict[str, Any], parallelism: int, reached: bool
) -> None:
    settling = now(WATCHED, UP, world(9, 4, 4, running(4, parallelism, **more)))
    assert (settling.settled is not None) is reached


@pytest.mark.parametrize(
    ("metrics", "reached"),
    [
        ({"lag": 1000.0, "throughput": 100.0}, True),
        ({"lag": 1001.0, "throughput": 100.0}, False),
        ({"lag": 1.0, "throughput": 0.0}, False),
        ({"lag": 0.0}, True),
        ({"lag": 5.0}, False),
        ({"throughput": 5.0}, False),
        ({"lag": (600.0, 400.0), "throughput": (50.0, 50.0)}, True),
    ],
)
def test_caught_up_means_lag_over_throughput_within_the_backlog_time(metrics: dict[str, Any], reached: bool) -> None:
    settling = now(WATCHED, UP, seen(9, 4, engine=running(4), metrics=metrics))
    assert (settling.settled is not None) is reached


def test_lag_without_a_throughput_metric_counts_as_caught_up_only_at_zero_or_when_unknowable() -> None:
    only_lag = spec(metrics=("lag",))
    assert now(only_lag, UP, seen(9, 4, metrics={"lag": 50.0})).settled is not None


def test_a_failed_request_is_dropped_when_the_target_shows_the_old_size() -> None:
    failed = replace(UP, error="503")
    settling = now(WATCHED, failed, world(5, 2, 2, running(2)))
    assert settling.dropped == failed
    assert notes_of(settling) == ((Reason.UNCONFIRMED, "the target did not accept the change from 2 to 4: 503"),)


def test_a_failed_request_is_overruled_and_not_refused_when_the_target_shows_a_third_size() -> None:
    settling = now(WATCHED, replace(UP, error="timed out"), world(5, 3, 2, running(2)))
    assert settling.dropped is None
    assert settling.rescale is not None
    assert (settling.rescale.cause, settling.rescale.to) == (Cause.EXTERNAL, 3)


def test_replicas_do_not_count_as_ready_before_the_target_confirms_the_size() -> None:
    waiting = now(WATCHED, DOWN, world(5, 4, 2, running(2)))
    assert waiting.rescale == DOWN
    assert now(WATCHED, UP, world(60, 2, 2, running(2))).rescale == UP
    assert now(WATCHED, UP, world(61, 2, 2, running(2))).missed == UP


def test_a_target_that_does_not_count_its_replicas_is_waited_for_until_the_deadline() -> None:
    waiting = now(WATCHED, UP, seen(9, 4, ready=None, engine=running(4), metrics={"lag": 0.0}))
    assert waiting.rescale is not None
    assert waiting.rescale.phase is Phase.REQUESTED


def test_a_rescale_waits_for_no_more_slots_than_the_configured_partitions() -> None:
    s = replace(WATCHED, partitions=3)
    assert now(s, UP, world(9, 4, 4, running(4, 3))).settled is not None
    assert now(s, UP, world(9, 4, 4, running(4, 2))).settled is None


def test_a_request_that_failed_but_took_effect_is_followed() -> None:
    settling = now(WATCHED, replace(UP, error="timed out"), world(5, 4, 2, running(2)))
    assert settling.rescale is not None
    assert settling.rescale.confirmed
    assert settling.rescale.error == ""


@pytest.mark.parametrize("confirmed", [True, False])
def test_an_external_change_of_size_supersedes_our_rescale(confirmed: bool) -> None:
    settling = now(WATCHED, replace(UP, confirmed=confirmed), world(5, 7, 4, running(4)))
    assert settling.rescale is not None
    assert settling.rescale.cause is Cause.EXTERNAL
    assert (settling.rescale.before, settling.rescale.to) == (4 if confirmed else 2, 7)
    assert notes_of(settling) == ((Reason.SUPERSEDED, "the size that was requested, 4, was changed to 7 from outside"),)


def test_a_confirmed_size_that_is_reverted_is_superseded_too() -> None:
    settling = now(WATCHED, replace(UP, confirmed=True), world(5, 2, 4, running(4)))
    assert settling.rescale is not None
    assert settling.rescale.direction is Direction.DOWN


STEADY = spec(Fixed(3), settle=DEADLINES, engine=True)


def lived(*observations: Observation, s: ClusterSpec = STEADY) -> tuple[ClusterState, list[tuple[Reason, str]]]:
    state = ClusterState()
    notes: list[tuple[Reason, str]] = []
    for observation in observations:
        state, decision = step(s, state, observation)
        notes += decision.notes
    return state, notes


def test_additional_slots_do_not_delay_a_rescale() -> None:
    assert now(WATCHED, UP, world(9, 4, 4, running(5))).settled is not None
    assert now(WATCHED, DOWN, world(9, 2, 2, running(1))).settled is not None


def test_a_target_that_does_not_count_its_replicas_has_lost_none() -> None:
    state, notes = lived(seen(0, 3, engine=running(3)), seen(15, 3, ready=None, engine=running(3)))
    assert state.rescale is None
    assert notes == []


def test_lost_replicas_are_followed_until_their_slots_are_back() -> None:
    fine, lost = seen(0, 3, engine=running(3)), seen(15, 3, ready=2, engine=running(3))
    state, notes = lived(fine, lost)
    assert state.rescale is not None
    assert state.rescale.cause is Cause.LOSS
    still = "1 of 3 replicas are gone; the engine still counts their slots, as for workers that were killed or hang"
    assert notes == [(Reason.SETTLING, still)]
    # The slot of the lost worker is still registered beside the new one: its heartbeat timeout has not expired.
    zombie, _ = lived(fine, lost, seen(30, 3, engine=running(4, 3)))
    assert zombie.rescale is not None
    assert zombie.rescale.phase is Phase.READY
    whole, notes = lived(fine, lost, seen(30, 3, engine=running(3)))
    assert whole.rescale is None
    assert whole.cooldown_from == at(30)
    assert notes[-1] == (Reason.SETTLED, "the replacement from 2 to 3 has settled after 15 s")


def test_replicas_that_never_come_back_are_given_up_once() -> None:
    ticks = [seen(15 * n, 3, ready=3 if n == 0 else 2, engine=running(2)) for n in range(12)]
    state, notes = lived(*ticks)
    assert state.rescale is None
    assert state.last_missed is not None
    assert [reason for reason, _ in notes].count(Reason.DEADLINE) == 1
    healed, _ = lived(*ticks, seen(200, 3, engine=running(3)))
    assert healed.last_missed is None


@pytest.mark.parametrize(
    "engine",
    [
        EngineStatus(job=JobState.RESTARTING, slots=3, parallelism=3, restarts=0),
        EngineStatus(job=JobState.RUNNING, slots=3, parallelism=3, restarts=1),
    ],
)
def test_a_spontaneous_restart_of_the_job_is_followed_until_the_job_has_caught_up(engine: EngineStatus) -> None:
    metrics = ("lag", "throughput")
    s = spec(Fixed(3), settle=DEADLINES, engine=True, metrics=metrics)

    def tick(second: float, engine: EngineStatus, lag: float) -> Observation:
        return seen(second, 3, engine=engine, metrics={"lag": lag, "throughput": 10.0})

    fine = running(3, restarts=0)
    state, notes = lived(tick(0, fine, 0), tick(15, engine, 900), s=s)
    assert state.rescale is not None
    assert (Reason.SETTLING, "the job restarts") in notes
    state, notes = lived(tick(0, fine, 0), tick(15, engine, 900), tick(30, running(3, restarts=1), 10), s=s)
    assert state.rescale is None
    assert notes[-1][1] == "the job's recovery on 3 has settled after 15 s"


def test_a_restart_during_an_outage_of_the_engines_api_is_followed_too() -> None:
    s = spec(Fixed(3), settle=DEADLINES, engine=True, metrics=("lag", "throughput"))

    def tick(second: float, engine: EngineStatus | None, lag: float = 0.0) -> Observation:
        return seen(second, 3, engine=engine, metrics={"lag": lag, "throughput": 10.0})

    def fate(*engines: EngineStatus | None) -> Rescale | None:
        ticks = [tick(15.0 * n, engine, 900 * (n > 0)) for n, engine in enumerate(engines)]
        return lived(*ticks, s=s)[0].rescale

    gone = [None, EngineStatus(job=JobState.STOPPED), EngineStatus(job=JobState.STARTING, slots=3)]
    first = running(3, restarts=0, running_since=at(-100))
    again = fate(first, *gone, running(3, restarts=1))
    assert again is not None
    assert (again.cause, again.phase) == (Cause.LOSS, Phase.RUNNING)
    # A new driver counts its restarts from zero, but its start time is later.
    assert fate(first, *gone, running(3, restarts=0, running_since=at(50))) is not None
    assert fate(first, *gone, running(3, restarts=0, running_since=at(-99.5))) is None
    assert fate(first, *gone, running(3, restarts=0, running_since=at(-99))) is None
    assert fate(first, *gone, running(3)) is None
    assert fate(running(3), *gone, running(3, restarts=1, running_since=at(50))) is None


def test_the_first_observation_of_a_running_job_is_not_a_restart() -> None:
    state, _ = lived(
        seen(0, 3, engine=EngineStatus(job=JobState.STARTING, slots=3)), seen(15, 3, engine=running(3, restarts=2))
    )
    assert state.rescale is None


def test_only_requested_rescales_are_used_to_learn_durations() -> None:
    state, _ = lived(
        seen(0, 3, engine=running(3)), seen(15, 3, ready=2, engine=running(3)), seen(30, 3, engine=running(3))
    )
    assert state.learned.durations == {}
    wish = spec(Fixed(4), settle=DEADLINES, engine=True)
    state, _ = lived(seen(0, 3, engine=running(3)), seen(15, 4, engine=running(4)), s=wish)
    assert state.learned.durations[Direction.UP][Phase.READY] == (15.0,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ready": seconds(0)}, "ready: must be above 0s"),
        ({"short": -0.1}, "short: must be 0 or more"),
        ({"backlog_time": seconds(-1)}, "backlog_time: must not be negative"),
    ],
)
def test_invalid_deadlines_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SettleSpec(**changes)


def test_a_stopped_worker_and_a_killed_one_are_distinguished_by_their_slots() -> None:
    fine = seen(0, 3, engine=running(3))
    _, stopped = lived(fine, seen(15, 3, ready=2, engine=running(2)))
    _, killed = lived(fine, seen(15, 3, ready=2, engine=running(3)))
    _, unknown = lived(fine, seen(15, 3, ready=2, engine=replace(running(3), slots=None)))
    assert "given up their slots, as for workers that were stopped" in stopped[0][1]
    assert "still counts their slots, as for workers that were killed or hang" in killed[0][1]
    assert unknown == [(Reason.SETTLING, "1 of 3 replicas are gone")]


def test_a_killed_worker_that_was_replaced_between_polls_is_noticed_by_its_slots() -> None:
    fine, replaced = seen(0, 3, engine=running(3)), seen(15, 3, engine=replace(running(3), slots=4))
    state, notes = lived(fine, replaced)
    assert state.rescale is not None
    assert (state.rescale.cause, state.rescale.phase) == (Cause.LOSS, Phase.READY)
    assert notes == [
        (
            Reason.SETTLING,
            "the engine counts 4 slots where 3 replicas have 3, as when a worker was killed and is replaced already",
        ),
    ]
    after, notes = lived(fine, replaced, seen(30, 3, engine=replace(running(3), slots=3)))
    assert after.rescale is None
    assert (Reason.SETTLED, "the job's recovery on 3 has settled after 15 s") in notes


def test_a_rolling_update_with_additional_replicas_has_lost_none() -> None:
    fine, surge = seen(0, 3, engine=running(3)), seen(15, 3, ready=4, engine=replace(running(3), slots=4))
    state, notes = lived(fine, surge)
    assert state.rescale is None
    assert notes == []
    state, notes = lived(fine, replace(surge, engine=replace(running(3), slots=5)))
    assert state.rescale is not None
    assert "counts 5 slots where 4 replicas have 4" in notes[0][1]


@pytest.mark.parametrize("job", [JobState.RUNNING, JobState.RESTARTING, JobState.FAILED, JobState.UNKNOWN])
def test_slots_that_never_disappear_are_waited_for_at_most_once(job: JobState) -> None:
    more = [seen(15 * tick, 3, engine=EngineStatus(job=job, slots=4, parallelism=3)) for tick in range(1, 60)]
    state, reported = ClusterState(), []
    s = spec(Fixed(3), engine=True)
    for observation in [seen(0, 3, engine=running(3)), *more]:
        state, decision = step(s, state, observation)
        reported += [reason for reason, _ in decision.notes]
    expected = [Reason.SETTLING, Reason.DEADLINE] if job in (JobState.RUNNING, JobState.RESTARTING) else []
    assert reported == expected


def test_a_constant_surplus_of_slots_is_not_a_lost_replica() -> None:
    odd = replace(running(3), slots=4)
    state, notes = lived(seen(0, 3, engine=odd), seen(15, 3, engine=odd))
    assert state.rescale is None
    assert notes == []
    first, _ = lived(seen(0, 3), seen(15, 3, engine=odd))
    assert first.rescale is None


@pytest.mark.parametrize(
    ("configured", "reported", "limit"),
    [(None, None, 180), (None, 95, 95), (30, 95, 30), (30, None, 30)],
)
def test_a_deadline_is_configured_or_derived_from_the_engine_or_our_default(
    configured: int | None, reported: int | None, limit: int
) -> None:
    s = spec(settle=replace(DEADLINES, absorbed=None if configured is None else seconds(configured)), engine=True)
    engine = replace(running(2), slots=4, deadlines={Phase.ABSORBED: seconds(reported)} if reported else {})
    rescale = replace(UP, phase=Phase.REGISTERED, confirmed=True)
    moved = now(s, rescale, world(1, 4, 4, engine)).rescale
    assert moved is not None
    # The latest setting that the engine reported holds while the engine does not answer.
    assert now(s, moved, world(limit, 4, 4, None)).missed is None
    missed = now(s, moved, world(limit + 1, 4, 4, None))
    assert missed.missed is not None
    assert f"{limit} s were not enough until the job runs at the new parallelism" in notes_of(missed)[-1][1]


def test_the_trail_says_why_replicas_are_not_ready() -> None:
    pending = "2 pods pending: Insufficient cpu"
    waiting = replace(world(5, 4, 2, running(2)), remarks=(pending,))
    state = replace(ClusterState(), rescale=replace(UP, confirmed=True), watched_since=T0)
    _, decision = step(replace(WATCHED, policies=spec(Fixed(2)).policies), state, waiting)
    assert any(f"replicas ready ({pending})" in verdict.detail for verdict in decision.verdicts)
    late = now(WATCHED, replace(UP, confirmed=True), replace(waiting, at=at(61)))
    assert notes_of(late)[-1][1].endswith(f"replicas ready ({pending})")
    up = replace(UP, confirmed=True, phase=Phase.READY)
    assert pending not in notes_of(now(WATCHED, up, replace(waiting, at=at(61))))[-1][1]


def test_a_request_that_the_target_never_shows_is_reported_as_such() -> None:
    unseen = replace(world(5, 2, 2, running(2)), remarks=("1 pod pending",))
    state = replace(ClusterState(), rescale=UP, watched_since=T0)
    _, decision = step(replace(WATCHED, policies=spec(Fixed(2)).policies), state, unseen)
    why = (
        "the rescale from 2 to 4 is in progress: waiting until the target has the new number of replicas ready "
        "(the target still shows 2; 1 pod pending)"
    )
    assert decision.verdicts[1].detail == why
    late = now(WATCHED, UP, world(61, 2, 2, running(2)))
    assert notes_of(late)[-1][1].endswith(
        "60 s were not enough until the target has the new number of replicas ready (the target still shows 2)"
    )


def test_a_job_that_recovers_is_not_reported_as_a_change_of_size() -> None:
    restart = replace(begin(3, 3, T0, Cause.LOSS), phase=Phase.ABSORBED)
    state = replace(ClusterState(), rescale=restart, watched_since=T0, desired=3)
    watched = replace(WATCHED, policies=spec(Fixed(2)).policies)
    _, decision = step(watched, state, world(5, 3, 3, EngineStatus(job=JobState.RESTARTING, slots=3, parallelism=3)))
    assert decision.verdicts[1].detail == "the job's recovery on 3 is in progress: waiting until the job runs"


def test_an_invalid_deadline_or_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="the deadline of absorbed must be above 0s"):
        EngineStatus(job=JobState.RUNNING, deadlines={Phase.ABSORBED: seconds(0)})
    with pytest.raises(ValueError, match="'soon' has a deadline and is no phase, expected one of requested, "):
        EngineStatus(job=JobState.RUNNING, deadlines={"soon": seconds(9)})  # type: ignore[dict-item]
    for odd in (-1, 2.5, True, "3"):
        with pytest.raises(ValueError, match=f"a bound must be a whole number of replicas, 0 or more, not {odd!r}"):
            Bound(odd, "odd")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a bound must have a reason"):
        Bound(3, "")


def test_a_replica_that_was_never_ready_is_not_reported_as_lost() -> None:
    state, notes = lived(seen(0, 3, ready=2, engine=running(2)), seen(15, 3, ready=2, engine=running(2)))
    assert state.rescale is not None
    assert notes == [(Reason.SETTLING, "1 of 3 replicas are not up")]


@pytest.mark.parametrize(
    ("engine", "ready", "desired"),
    [
        (running(3), 2, 3),  # the slots of the lost replica are still counted
        (replace(running(3), slots=4), 3, 3),  # and when it is already replaced
        (replace(running(2), job=JobState.RESTARTING), 3, 3),
        (replace(running(2), job=JobState.FAILED), 2, 3),
        (running(2), 2, 9),  # given up: the job runs on the remaining replicas and may be clearly short
        (replace(running(2), slots=None), 2, 9),
        (replace(running(3), job=JobState.UNKNOWN), 2, 9),
        (None, 2, 9),
    ],
)
def test_a_backlog_from_a_lost_replica_that_stalls_the_job_does_not_count_as_load(
    engine: EngineStatus | None, ready: int, desired: int
) -> None:
    naive = replace(STEADY, policies=spec(Fixed(9)).policies)
    state, _ = step(STEADY, ClusterState(), seen(0, 3, engine=running(3)))
    state, decision = step(naive, state, seen(15, 3, ready=2, engine=replace(running(2), job=JobState.RESTARTING)))
    assert state.rescale is not None
    assert state.rescale.cause is Cause.LOSS
    _, decision = step(naive, state, seen(30, 3, ready=ready, engine=engine))
    assert decision.desired == desired
    assert any("the job stands still meanwhile" in verdict.detail for verdict in decision.verdicts) == (desired == 3)
