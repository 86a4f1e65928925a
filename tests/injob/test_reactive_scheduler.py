"""The state machine of a reactive job: each state, each transition, and its reason."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob.reactive.restart_choice import Choice, Measured, cause, choose, is_permanent
from autoscaler.injob.reactive.scheduler import (
    ENDS,
    Action,
    Build,
    Built,
    CancelAsked,
    Committed,
    Ended,
    Event,
    Failed,
    Passed,
    Rebuild,
    Required,
    Scheduler,
    Slots,
    StopAsked,
    Stopped,
    StopQueries,
)
from autoscaler.injob.reactive.snapshot import State, Step
from autoscaler.schedulers.flink import FlinkSettings, Restart
from autoscaler.schedulers.slots import Bounds

RESTART, GO_ON, WAIT = Choice(True, "it pays"), Choice(False, "they are used"), Choice(None, "not yet known")


def settings(lower: int = 1, upper: int = 8, **changes: Any) -> FlinkSettings:
    rules: dict[str, Any] = {
        "groups": ((Bounds(lower, upper),),),
        "cooldown": 0.0,
        "stabilization": 0.0,
        "max_delay": 5.0,
    }
    return FlinkSettings(**(rules | changes))


class Job:
    """A scheduler under test, and its actions."""

    def __init__(self, choice: Choice = RESTART, **changes: Any) -> None:
        self.scheduler = Scheduler(settings=settings(**changes))
        self.choice = choice
        self.actions: list[Action] = []
        self.steps: list[Step] = []

    def play(self, *events: Event) -> State:
        for event in events:
            self.scheduler, actions, steps = self.scheduler.react(event, lambda _: self.choice)
            self.actions += actions
            self.steps += steps
        return self.scheduler.state

    def states(self) -> list[State]:
        return [step.state for step in self.steps]


def executing(slots: int = 2, choice: Choice = RESTART, **changes: Any) -> Job:
    job = Job(choice, **changes)
    assert job.play(Passed(0), Slots(1, slots), Built(2)) is State.EXECUTING
    job.actions.clear()
    job.steps.clear()
    return job


# Starting


def test_a_job_waits_for_its_required_slots_and_starts_with_the_available_ones() -> None:
    job = Job(lower=2, upper=8)
    assert job.play(Passed(0), Slots(5, 1), Passed(1000)) is State.WAITING_FOR_RESOURCES
    assert job.actions == []
    assert job.play(Slots(1010, 3)) is State.CREATING
    assert job.actions == [Build(3)]
    assert job.play(Built(1011)) is State.EXECUTING
    assert [step.why for step in job.steps] == [
        "at least 2 slots are needed",
        "there are 3 slots",
        "the queries run on 3 slots",
    ]
    assert [(step.before, step.after, step.took) for step in job.steps] == [(0, 0, 0.0), (0, 3, 1010.0), (3, 3, 1.0)]


def test_it_uses_no_more_slots_than_allowed() -> None:
    job = Job(upper=2)
    job.play(Slots(0, 5))
    assert job.actions == [Build(2)]


def test_a_job_with_a_resource_timeout_fails_without_slots() -> None:
    job = Job(lower=2, resource_wait=60.0)
    assert job.play(Slots(0, 1), Passed(59)) is State.WAITING_FOR_RESOURCES
    assert job.play(Passed(60)) is State.FAILED
    assert job.steps[-1].why == "at least 2 slots are needed, and there was 1 for too long"
    assert job.actions == []


def test_lowering_the_required_slots_starts_a_waiting_job() -> None:
    job = Job(lower=4)
    assert job.play(Slots(0, 2)) is State.WAITING_FOR_RESOURCES
    assert job.play(Required(1, Bounds(2, 3))) is State.CREATING
    assert job.actions == [Build(2)]


# Using new slots


def test_added_slots_restart_the_queries_at_a_commit_if_that_pays() -> None:
    job = executing(2)
    assert job.play(Slots(10, 4)) is State.EXECUTING
    assert job.play(Committed(12)) is State.RESTARTING
    assert job.actions == [StopQueries(last_commit=True)]
    assert (job.steps[-1].why, job.steps[-1].before, job.steps[-1].after) == ("it pays", 2, 4)
    assert job.play(Stopped(13)) is State.CREATING
    assert job.actions[1:] == [Build(4)]
    assert job.play(Built(14)) is State.EXECUTING
    assert job.scheduler.restarts == 1


def test_added_slots_that_the_next_batch_uses_cause_no_restart() -> None:
    job = executing(2, GO_ON)
    assert job.play(Slots(10, 4), Committed(12), Passed(100)) is State.EXECUTING
    assert job.actions == []
    assert [(step.why, step.before, step.after) for step in job.steps] == [("they are used", 2, 4)]


def test_state_is_repartitioned_between_two_runs_on_the_same_slots() -> None:
    job = executing(4)
    assert job.play(Rebuild(10, 4, "there are 2 partitions")) is State.RESTARTING
    assert job.actions == [StopQueries(last_commit=True, partitions=4)]
    assert job.play(Stopped(15, "there are 4 partitions")) is State.CREATING
    assert job.actions[1:] == [Build(4)]
    assert job.play(Built(16)) is State.EXECUTING
    assert [(step.state, step.why, step.took) for step in job.steps[:2]] == [
        (State.RESTARTING, "there are 2 partitions", 8.0),
        (State.RESTARTING, "there are 4 partitions", 5.0),
    ]
    assert {(step.before, step.after) for step in job.steps[:2]} == {(4, 4)}
    assert job.scheduler.restarts == 1


def test_state_is_not_repartitioned_while_the_job_does_something_else() -> None:
    job = executing(4)
    job.play(Failed(10, "x"))
    job.actions.clear()
    assert job.play(Rebuild(10, 4, "there are 2 partitions")) is State.RESTARTING
    assert job.actions == []
    assert job.play(Stopped(11), Passed(20), Built(21)) is State.EXECUTING


def test_a_rescale_waits_until_enough_batches_have_run() -> None:
    job = executing(2, WAIT)
    assert job.play(Slots(10, 4), Committed(12), Passed(30)) is State.EXECUTING
    assert job.steps == []
    job.choice = RESTART
    assert job.play(Committed(31)) is State.RESTARTING


def test_a_rescale_happens_only_within_a_time_after_a_commit() -> None:
    job = executing(2)
    job.scheduler = replace(job.scheduler, max_commit_age=5.0)
    assert job.play(Slots(10, 4), Passed(20)) is State.EXECUTING, "nothing was committed"
    job.choice = WAIT
    assert job.play(Committed(30)) is State.EXECUTING
    job.choice = RESTART
    assert job.play(Passed(35.1)) is State.EXECUTING
    assert (job.actions, job.steps) == ([], [])
    job.choice = WAIT
    job.play(Committed(40))
    job.choice = RESTART
    assert job.play(Passed(45)) is State.RESTARTING


def test_a_failure_does_not_wait_for_a_commit() -> None:
    job = executing(2)
    job.scheduler = replace(job.scheduler, max_commit_age=5.0)
    assert job.play(Slots(10, 4), Failed(20, "the query a failed")) is State.RESTARTING
    assert job.play(Stopped(21), Passed(22)) is State.CREATING
    assert job.actions[-1] == Build(4)


def test_a_failure_is_handled_while_a_rescale_waits() -> None:
    job = executing(2, WAIT)
    job.play(Slots(10, 4), Committed(12))
    assert job.play(Failed(13, "the query a failed")) is State.RESTARTING
    assert job.steps[-1].why == "the query a failed"


def test_slots_that_come_and_go_while_the_queries_are_stopped_count_at_their_start() -> None:
    job = executing(4)
    job.play(Slots(10, 6), Committed(12), Slots(12.5, 3), Stopped(13))
    assert job.actions == [StopQueries(last_commit=True), Build(3)]


# Losing slots


def test_the_queries_continue_without_a_lost_executor_while_enough_are_left() -> None:
    job = executing(4, lower=2)
    assert job.play(Slots(10, 2)) is State.EXECUTING
    assert job.actions == []
    assert [(step.why, step.before, step.after) for step in job.steps] == [
        ("2 of 4 slots are lost: the queries continue on the others", 4, 2)
    ]


def test_too_few_slots_stop_the_queries_until_there_are_enough() -> None:
    job = executing(3, lower=2)
    assert job.play(Slots(10, 1)) is State.RESTARTING
    assert job.actions == [StopQueries(last_commit=False)]
    assert job.play(Stopped(10.5), Passed(11)) is State.WAITING_FOR_RESOURCES
    assert job.play(Slots(100, 2)) is State.CREATING
    assert job.actions[1:] == [Build(2)]


def test_a_loss_of_all_slots_during_a_restart_waits_for_slots() -> None:
    job = executing(2)
    job.play(Failed(10, "x"), Slots(10.1, 0), Stopped(10.2))
    assert job.play(Passed(20)) is State.WAITING_FOR_RESOURCES
    assert job.play(Slots(30, 1)) is State.CREATING


# Failures


def test_a_failed_query_is_restarted_with_growing_delays() -> None:
    job = executing(2)
    starts = []
    at = 10.0
    for _ in range(4):
        job.play(Failed(at, "the query a failed"), Stopped(at))
        assert job.scheduler.state is State.RESTARTING
        starts.append(job.scheduler.wakes_at - at)
        at = job.scheduler.wakes_at
        assert job.play(Passed(at)) is State.CREATING
        job.play(Built(at))
    assert starts == pytest.approx([1.0, 1.5, 2.25, 3.375])
    assert job.scheduler.restarts == 4


def test_a_failure_that_a_restart_cannot_fix_is_permanent() -> None:
    job = executing(2)
    assert job.play(Failed(10, "`build` failed", permanent=True)) is State.FAILING
    assert job.actions == [StopQueries(last_commit=False)]
    assert job.play(Slots(11, 5), Passed(12), Committed(12), Stopped(13)) is State.FAILED
    assert job.steps[0].why == "`build` failed; a restart does not fix that"
    assert job.scheduler.wakes_at == math.inf


def test_a_failed_build_is_repeated_after_a_delay() -> None:
    job = Job()
    job.play(Slots(0, 1), Failed(1, "`build` failed"))
    assert job.states() == [State.WAITING_FOR_RESOURCES, State.CREATING, State.RESTARTING]
    assert job.play(Stopped(1), Passed(2)) is State.CREATING


def test_without_a_restart_strategy_the_first_failure_is_the_last() -> None:
    job = executing(2, restart=Restart.NONE)
    assert job.play(Failed(10, "the query a failed")) is State.FAILING
    assert job.play(Stopped(11)) is State.FAILED
    assert job.steps[0].why == "the query a failed"


def test_a_query_that_fails_while_it_is_stopped_counts_once() -> None:
    job = executing(2)
    job.play(Failed(10, "a"), Failed(10.1, "b"), Stopped(10.2))
    assert job.scheduler.restarts == 1


# Ending


@pytest.mark.parametrize(
    ("event", "until", "last", "last_commit"),
    [
        (StopAsked(10), State.STOPPING, State.FINISHED, True),
        (CancelAsked(10), State.CANCELING, State.CANCELED, False),
        (Ended(10), State.STOPPING, State.FINISHED, False),
    ],
)
def test_a_job_ends_once_its_queries_are_stopped(event: Event, until: State, last: State, last_commit: bool) -> None:
    job = executing(2)
    assert job.play(event) is until
    assert job.actions == [StopQueries(last_commit)]
    assert job.play(Failed(11, "late"), Stopped(12)) is last
    assert job.play(Slots(20, 9), Passed(30), StopAsked(40), CancelAsked(50)) is last


@pytest.mark.parametrize(("event", "last"), [(StopAsked(10), State.FINISHED), (CancelAsked(10), State.CANCELED)])
def test_a_waiting_job_ends_at_once(event: Event, last: State) -> None:
    job = Job(lower=2)
    job.play(Passed(0))
    assert job.play(event) is last
    assert job.actions == []


def test_a_cancellation_does_not_wait_for_the_last_commit_of_a_stop() -> None:
    job = executing(2)
    job.play(StopAsked(10))
    assert job.play(CancelAsked(11)) is State.CANCELING
    assert job.actions == [StopQueries(last_commit=True), StopQueries(last_commit=False)]
    assert job.play(Stopped(12)) is State.CANCELED


# The table of the documentation


PAGE = Path(__file__).parents[2] / "docs" / "integrations" / "spark-reactive.md"
ROW = re.compile(r"\| ([a-z ]+) \| ([a-z ]+) \| .+ \|")


def documented() -> set[tuple[State, State]]:
    rows = PAGE.read_text().partition("<!-- transitions -->")[2].partition("<!-- /transitions -->")[0]
    states = {state.value for state in State}
    found = [match.groups() for match in map(ROW.fullmatch, rows.strip().splitlines()) if match]
    return {(State(before), State(after)) for before, after in found if before in states and after in states}


STORIES: list[tuple[Choice, dict[str, Any], list[Event]]] = [
    (RESTART, {}, [Slots(0, 2), Built(1), Slots(2, 3), Committed(3), Stopped(4), Built(5), StopAsked(6), Stopped(7)]),
    (GO_ON, {}, [Slots(0, 2), Built(1), Slots(2, 3), Committed(3), CancelAsked(4), Stopped(5)]),
    (
        RESTART,
        {},
        [Slots(0, 1), Failed(1, "x"), Slots(1, 0), Stopped(1), Passed(9), Slots(10, 1), CancelAsked(11), Stopped(12)],
    ),
    (RESTART, {}, [Slots(0, 1), Failed(1, "x", permanent=True), Stopped(2)]),
    (RESTART, {}, [Slots(0, 1), StopAsked(1), Stopped(2)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x", permanent=True), CancelAsked(3), Stopped(4)]),
    (RESTART, {}, [Slots(0, 1), Built(1), StopAsked(2), CancelAsked(3), Stopped(4)]),
    (RESTART, {}, [Slots(0, 1), Built(1), StopAsked(2), Failed(3, "x", permanent=True), Stopped(4)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x"), Stopped(2), StopAsked(3)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x"), Stopped(2), CancelAsked(3)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x"), StopAsked(3), Stopped(4)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x"), CancelAsked(3), Stopped(4)]),
    (RESTART, {"lower": 2}, [Slots(0, 3), Built(1), Slots(2, 4), Committed(3), Slots(4, 1), Stopped(5)]),
    (RESTART, {"restart": Restart.NONE, "lower": 2}, [Slots(0, 3), Built(1), Slots(2, 4), Committed(3), Slots(4, 1)]),
    (RESTART, {"resource_wait": 5.0}, [Passed(0), Passed(6)]),
    (RESTART, {}, [Slots(0, 1), Built(1), Failed(2, "x"), Stopped(2), Failed(3, "it is over", permanent=True)]),
    (RESTART, {}, [Slots(0, 4), Built(1), Rebuild(2, 4, "few"), Stopped(3, "more"), Built(4)]),
    (RESTART, {}, [Passed(0), StopAsked(1)]),
    (RESTART, {}, [Passed(0), CancelAsked(1)]),
]


def transitions(before: State, steps: Sequence[Step]) -> set[tuple[State, State]]:
    states = [before, *(step.state for step in steps)]
    return set(pairwise(states))


def test_the_transitions_are_exactly_those_of_the_page() -> None:
    taken: set[tuple[State, State]] = set()
    for choice, changes, events in STORIES:
        job = Job(choice, **changes)
        job.play(*events)
        taken |= transitions(State.CREATED, job.steps)
    assert taken == documented()


# Laws


EVENTS = st.one_of(
    st.builds(lambda slots: lambda at: Slots(at, slots), st.integers(0, 6)),
    st.sampled_from(
        [
            Built,
            Committed,
            Ended,
            Stopped,
            StopAsked,
            CancelAsked,
            Passed,
            lambda at: Failed(at, "x"),
            lambda at: Rebuild(at, 4, "few"),
        ],
    ),
    st.builds(lambda permanent: lambda at: Failed(at, "x", permanent), st.booleans()),
    st.builds(lambda low, more: lambda at: Required(at, Bounds(low, low + more)), st.integers(1, 4), st.integers(0, 4)),
)


WAYS = documented()


@given(
    st.lists(st.tuples(EVENTS, st.floats(0, 90), st.sampled_from([RESTART, GO_ON, WAIT])), max_size=40),
    st.integers(1, 3),
    st.sampled_from([{}, {"max_delay": 0.0}, {"max_delay": 0.0, "delay": 0.0, "restart": Restart.FIXED}]),
    st.sampled_from([math.inf, 20.0]),
)
def test_in_any_order_of_events_no_state_is_wrong(
    played: list[tuple[Any, float, Choice]], lower: int, rules: dict[str, Any], age: float
) -> None:
    job = Job(lower=lower, **rules)
    job.scheduler = replace(job.scheduler, max_commit_age=age)
    at = 0.0
    building = stopping = running = False
    for make, later, choice in played:
        at += later
        job.choice = choice
        event = make(at)
        # The driver answers its requests, and nothing else.
        if (isinstance(event, Built) and not building) or (isinstance(event, Stopped) and not stopping):
            event = Passed(at)
        if building and not isinstance(event, Built | Failed):
            event = Built(at)
        job.actions.clear()
        job.steps.clear()
        before = job.scheduler.state
        job.play(event)
        assert RESTART.why not in map(attrgetter("why"), job.steps) or at - job.scheduler.committed <= age
        assert transitions(before, job.steps) <= WAYS
        building = building and not isinstance(event, Built | Failed)
        if isinstance(event, Stopped):
            stopping = running = False
        assert sum(isinstance(action, StopQueries) for action in job.actions) <= 1
        for action in job.actions:
            if isinstance(action, Build):
                assert not running, "the former queries still run"
                assert action.parallelism >= 1
                building = running = True
            else:
                assert running, "there is nothing to be stopped"
                stopping = True
        assert job.scheduler.running == running
        if job.scheduler.state is State.EXECUTING:
            assert running
        if job.scheduler.state in ENDS | {State.WAITING_FOR_RESOURCES}:
            assert not running or stopping


# The choice


def measured(**changes: Any) -> Measured:
    facts: dict[str, Any] = {"slots": 3, "deployed": 1, "takes_parallelism": False, "widest": 12, "tried": 0}
    facts |= {"tasks": 60, "batches": 5, "share": 0.6, "fair": 0.67}
    return Measured(**(facts | changes))


@pytest.mark.parametrize(
    ("changes", "restart", "says"),
    [
        ({}, False, "60% of the tasks run on the new executors"),
        ({"batches": 1}, None, "1 of 2 batches"),
        ({"share": 0.1}, True, "10% of the tasks: the state stays on the old ones"),
        ({"share": 0.1, "restart": 12.3}, True, "a restart takes 12 s here"),
        ({"share": 0, "tasks": 0}, False, "no restart is needed"),
        ({"widest": 1}, False, "a restart does not change that"),
        ({"widest": 1, "share": 0.0}, False, "a restart does not change that"),
        ({"widest": 1, "takes_parallelism": True, "tried": 1}, False, "the last restart for that did not change it"),
        ({"widest": 1, "takes_parallelism": True}, True, "a batch has 1 task at most and there are 3 slots"),
        ({"widest": 1, "takes_parallelism": True, "deployed": 3}, False, "a restart does not change that"),
        ({"widest": 0, "takes_parallelism": True}, False, "no restart is needed"),
        (
            {"held": ("a", "b"), "restart": 2.0},
            True,
            "a, b may have more tasks at once: `build` is called with the new max",
        ),
        ({"held": ("a",), "batches": 1}, None, "1 of 2 batches"),
    ],
)
def test_a_restart_is_chosen_for_slots_that_the_next_batch_does_not_use(
    changes: dict[str, Any], restart: bool | None, says: str
) -> None:
    choice = choose(measured(**changes))
    assert choice.restart is restart
    assert says in choice.why


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[UNRESOLVED_COLUMN] no x.\nSQLSTATE: 42703", "[UNRESOLVED_COLUMN] no x."),
        (
            "Message: Traceback (most recent call last):\nValueError: bad\n SQLSTATE\n=== Streaming Query ===\nId: a",
            "ValueError: bad",
        ),
        (
            "Message: Traceback (most recent call last):\n  File\nSyntaxError: at x\nLINE 1: x\n        ^\n\n",
            "SyntaxError: at x",
        ),
        (" \n", "no error message"),
    ],
)
def test_the_cause_of_an_error_is_the_line_with_the_message(text: str, line: str) -> None:
    assert cause(text) == line


@pytest.mark.parametrize(
    ("error", "text", "permanent"),
    [
        ("AnalysisException", "[UNRESOLVED_COLUMN] x", True),
        ("TypeError", "build() got 3", True),
        ("BuildError", "no checkpoint", True),
        ("StreamingQueryException", "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] other", True),
        ("StreamingQueryException", "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA]", True),
        ("StreamingQueryException", "There are [1] sources in the checkpoint offsets and now there are [2]", True),
        ("StreamingQueryException", "PythonException: TypeError: bad record", False),
        ("StreamingQueryException", "Task 3 failed 4 times: ExecutorLostFailure", False),
        ("ConnectionError", "kafka is away", False),
    ],
)
def test_errors_that_a_restart_does_not_fix_are_permanent(error: str, text: str, permanent: bool) -> None:
    assert is_permanent(error, text) is permanent
