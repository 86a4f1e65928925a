"""Properties of any scheduler, for any events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.schedulers.flink import FlinkSettings, Restart, Rules
from autoscaler.schedulers.slots import Bounds, required_slots, slot_allocation
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.schedulers.state_machine import (
    Checkpoint,
    Deploy,
    Due,
    Event,
    Instruction,
    Job,
    Killed,
    Passed,
    Phase,
    Resize,
    Restored,
    Slots,
    Stop,
    Timer,
    advance,
    enter,
    occupied,
    set_timer,
    widest,
)

times = st.sampled_from([0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0])
groups = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=2).map(
        lambda group: tuple(Bounds(lower, lower + more) for lower, more in group)
    ),
    min_size=1,
    max_size=2,
).map(tuple)
flinks = st.builds(
    lambda refused, **found: FlinkSettings(
        refused=refused, **found | {name: found[name] or 1.0 for name in ("delay", "longest") if refused}
    ),
    refused=st.booleans(),
    groups=groups,
    rules=st.sampled_from(Rules),
    cooldown=times,
    stabilization=times,
    max_delay=times,
    checkpoint_failures=st.integers(1, 3),
    min_increase=st.integers(1, 3),
    force_after=times | st.just(math.inf),
    resource_wait=times | st.just(math.inf),
    submission_stabilization=times,
    heartbeat=times,
    restart=st.sampled_from(Restart),
    delay=times,
    longest=times,
    reset_after=times,
    attempts=st.integers(0, 5) | st.just(math.inf),
    cancel=times,
    create=times,
)
sparks = st.builds(SparkSettings, used_after=times, heartbeat=times, most=st.integers(0, 8) | st.just(math.inf))
gaps = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 10.0, 100.0])
happenings = st.lists(
    st.tuples(
        gaps,
        st.one_of(
            st.builds(Slots, st.just(0.0), st.integers(0, 10), st.booleans()),
            st.builds(Killed, st.just(0.0), st.integers(0, 3), st.booleans()),
            st.builds(Checkpoint, st.just(0.0), st.booleans()),
            st.builds(Restored, st.just(0.0)),
            st.builds(Passed, st.just(0.0)),
        ),
    ),
    max_size=25,
)


def in_order(happened: list[tuple[float, Event]]) -> Iterator[Event]:
    at = 0.0
    for gap, event in happened:
        at += gap
        yield replace(event, at=at)


def run(
    rules: FlinkSettings | SparkSettings, events: list[Event]
) -> Iterator[tuple[Event, Job, Job, Instruction | None]]:
    """Every event with the job before and after it, and every instruction by itself."""
    job = Job()
    for event in events:
        before = job
        job, done = advance(rules, job, event)
        for instruction in done or (None,):
            yield event, before, job, instruction


@given(flinks, happenings)
def test_a_job_is_stopped_before_it_is_deployed_again_and_deployed_before_it_is_stopped(
    flink: FlinkSettings, happened: list[tuple[float, Event]]
) -> None:
    deployed = over = False
    last = 0.0
    for event, _, _, instruction in run(flink, list(in_order(happened))):
        if instruction is None:
            continue
        assert last <= instruction.at <= event.at
        last = instruction.at
        assert not over
        match instruction:
            case Deploy():
                assert not deployed
                deployed = True
            case Stop(why=why):
                over = why == "failed"
                assert deployed or over  # a job that never gets its slots ends without having run
                deployed = False


@given(flinks, happenings)
def test_a_job_is_never_deployed_beyond_its_slots_or_its_vertices_bounds(
    flink: FlinkSettings, happened: list[tuple[float, Event]]
) -> None:
    counted = {0}  # the slots that the scheduler counted since the last event
    job = Job()
    for event in in_order(happened):
        before = job
        job, done = advance(flink, job, event)
        counted = {before.slots + before.dead, job.slots + job.dead}
        for instruction in done:
            if isinstance(instruction, Deploy):
                assert occupied(instruction.vertices) <= max(counted)
                assert instruction.parallelism == widest(instruction.vertices)
                for group, shares in zip(flink.groups, instruction.vertices, strict=True):
                    assert all(each.lower <= share <= each.upper for each, share in zip(group, shares, strict=True))


@given(flinks | sparks, happenings)
def test_the_state_of_a_job_is_consistent_after_any_event(
    rules: FlinkSettings | SparkSettings, happened: list[tuple[float, Event]]
) -> None:
    for event, _, job, _ in run(rules, list(in_order(happened))):
        assert job.wakes_at > event.at if isinstance(event, Passed) else job.wakes_at >= event.at
        assert job.since <= event.at
        assert list(job.timers) == sorted(job.timers, key=lambda timer: timer.at)
        assert job.dead == sum(timer.slots for timer in job.timers if timer.due is Due.NOTICED)
        assert (job.parallelism > 0) <= (job.phase is Phase.EXECUTING)
        assert job.runs <= job.restored <= (job.phase is Phase.EXECUTING)
        assert job.slots >= 0
        assert occupied(job.vertices) <= job.slots + job.dead
        assert job.phase is not Phase.CREATED


@given(flinks | sparks, happenings)
def test_time_alone_changes_nothing_before_something_is_due(
    rules: FlinkSettings | SparkSettings, happened: list[tuple[float, Event]]
) -> None:
    for event, _, job, _ in run(rules, list(in_order(happened))):
        soon = min(job.wakes_at, event.at + 1000.0)
        between = (event.at + soon) / 2
        if event.at < between < job.wakes_at:
            assert advance(rules, job, Passed(between)) == (job, ())
            assert advance(rules, job, Slots(between, job.slots)) == (job, ())
            assert advance(rules, job, Killed(between, 0)) == (job, ())


@given(flinks | sparks, happenings)
def test_it_does_not_matter_how_often_it_is_polled(
    rules: FlinkSettings | SparkSettings, happened: list[tuple[float, Event]]
) -> None:
    events = [Passed(0.0), *in_order(happened), Passed(1e6)]
    once = [done for *_, done in run(rules, events) if done]
    job = Job()
    often: list[Instruction] = []
    for event in events:
        while job.wakes_at < event.at:
            job, done = advance(rules, job, Passed(job.wakes_at))
            often += done
        job, done = advance(rules, job, event)
        often += done
    assert often == once
    assert job.wakes_at == math.inf


@given(flinks | sparks, happenings)
def test_a_job_without_further_events_ends_up_on_all_usable_slots(
    rules: FlinkSettings | SparkSettings, happened: list[tuple[float, Event]]
) -> None:
    job = Job()
    for event in [Passed(0.0), *in_order(happened), Passed(1e6)]:
        job, _ = advance(rules, job, event)
    assert job.wakes_at == math.inf
    if isinstance(rules, SparkSettings):
        assert job.parallelism == min(job.slots, rules.most)
    elif job.phase is Phase.WAITING_FOR_RESOURCES:
        assert slot_allocation(rules.groups, job.slots) is None
    elif job.phase is Phase.EXECUTING and rules.rules is Rules.INTERVAL and rules.min_increase == 1:
        assert job.vertices == slot_allocation(rules.groups, job.slots)
    else:
        assert job.phase in {Phase.EXECUTING, Phase.FINISHED}
        assert occupied(job.vertices) <= min(job.slots, required_slots(rules.groups))


@given(sparks, happenings)
def test_spark_never_stops_a_query(spark: SparkSettings, happened: list[tuple[float, Event]]) -> None:
    size = 0
    for _, _, _, instruction in run(spark, list(in_order(happened))):
        if instruction is not None:
            assert isinstance(instruction, Resize)
            assert instruction.parallelism != size
            assert 0 <= instruction.parallelism <= spark.most
            size = instruction.parallelism


def test_simultaneous_timers_expire_in_the_order_they_were_set() -> None:
    job = Job()
    for timer in (Timer(5, Due.COOLED), Timer(3, Due.STABILIZED), Timer(5, Due.FORCED), Timer(3, Due.EVALUATED)):
        job = set_timer(job, timer)
    assert [timer.due for timer in job.timers] == [Due.STABILIZED, Due.EVALUATED, Due.COOLED, Due.FORCED]


def test_only_killed_workers_are_remembered_between_phases() -> None:
    job = set_timer(set_timer(Job(), Timer(5, Due.COOLED)), Timer(9, Due.NOTICED, 2))
    assert enter(job, Phase.RESTARTING, 4).timers == (Timer(9, Due.NOTICED, 2),)


@pytest.mark.parametrize("event", [Slots(30, 4), Killed(30, 1), Restored(30)])
def test_timers_due_at_the_time_of_an_event_expire_after_it(event: Event) -> None:
    flink = FlinkSettings.of("2.3", checkpoint_interval=10.0)
    job = flink.executing(4, 0.0)
    job, _ = advance(flink, job, event)
    assert job.wakes_at == 30


def test_a_checkpoint_comes_after_timers_due_at_its_time() -> None:
    flink = FlinkSettings.of("2.3", checkpoint_interval=10.0)
    job = flink.executing(4, 0.0)
    assert advance(flink, job, Checkpoint(30))[0].wakes_at == math.inf
