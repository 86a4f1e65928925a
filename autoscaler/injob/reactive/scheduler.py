"""The scheduler of a reactive job as a state machine: it turns events into actions and a timeline with reasons.

It drives Flink's adaptive scheduler (`autoscaler.schedulers.flink`), which decides when a job waits, starts, is
rescaled and restarts after a failure. It adds two differences of Spark: a batch continues without a lost executor while
enough slots are left, and a batch uses a new executor without a restart if it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.core.wording import agree, count_of
from autoscaler.injob.reactive.restart_choice import Choice
from autoscaler.injob.reactive.snapshot import State, Step
from autoscaler.schedulers import state_machine as flink
from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.slots import Bounds
from autoscaler.schedulers.state_machine import Deploy, Job, Phase, Stop, Timed, Why, advance

STOPPED = "the queries are stopped"

ENDS = frozenset({State.FAILED, State.FINISHED, State.CANCELED})
"""The terminal states."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The total slots of the active executors."""

    at: float
    slots: int


class Built(Timed):
    """`build` has returned, and the queries that it started run."""


class Committed(Timed):
    """A batch was committed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A query or `build` has failed; `permanent` means that a restart cannot fix it."""

    at: float
    why: str
    permanent: bool = False


class Ended(Timed):
    """All queries have ended by themselves, because they have read all their input."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The queries have been stopped; `why` is the summary of a repartitioning, if there was one."""

    at: float
    why: str = ""


class StopAsked(Timed):
    """A stop after a last commit was requested."""


class CancelAsked(Timed):
    """An immediate stop was requested."""


@dataclass(frozen=True, slots=True)
class Required:
    """New bounds of the job's slots were requested."""

    at: float
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Stop the queries and build them again. State with fewer than `partitions` partitions is repartitioned before."""

    at: float
    partitions: int
    why: str


class Passed(Timed):
    """Time passed."""


Event = Slots | Built | Committed | Failed | Ended | Stopped | StopAsked | CancelAsked | Required | Rebuild | Passed


@dataclass(frozen=True, slots=True)
class Build:
    """Call `build` for `parallelism` slots, then report `Built` or `Failed`."""

    parallelism: int


@dataclass(frozen=True, slots=True)
class StopQueries:
    """Stop the running queries, with `last_commit` at the end of a batch, then report `Stopped`.

    After the stop, state with fewer than `partitions` partitions is repartitioned into that number.
    """

    last_commit: bool
    partitions: int = 0


Action = Build | StopQueries
Choose = Callable[[int], Choice]
"""Decides whether a job restarts for added slots; the argument is the total number of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """The state of a reactive job's scheduler. Times are seconds from any origin.

    Attributes:
        settings: the settings of Flink's scheduler; their groups have the minimum and maximum slots of the queries.
        max_commit_age: a running job is rescaled only within this many seconds after a commit.
        state: the job's present state.
        since: when the job entered that state.
        job: the job as Flink's scheduler sees it.
        running: whether there are queries: from `Build` until `Stopped`.
        stopping: whether the queries are being stopped.
        deployed: whether the job is built again as soon as the queries are stopped.
        after: the state to enter after the queries are stopped, if the job is not built again.
        restarts: the number of restarts after failures and for rescales.
        committed: when a query last committed a batch.
    """

    settings: FlinkSettings
    max_commit_age: float = math.inf
    state: State = State.CREATED
    since: float = -math.inf
    job: Job = Job()  # noqa: RUF009 - it is frozen
    running: bool = False
    stopping: bool = False
    deployed: bool = False
    after: State | None = None
    restarts: int = 0
    committed: float = -math.inf

    @property
    def over(self) -> bool:
        """Whether the job has reached a terminal state."""
        return self.state in ENDS

    @property
    def wakes_at(self) -> float:
        """When to send `Passed` if no other event comes before."""
        return math.inf if self.over else self.job.wakes_at

    def react(self, event: Event, choose: Choose) -> tuple[Scheduler, tuple[Action, ...], tuple[Step, ...]]:
        """Handle an event. Returns the new state, the actions to do, and the steps to add to the timeline."""
        turn = _Turn(self, event.at, choose)
        if not self.over:
            turn.react(event)
        return turn.scheduler, tuple(turn.actions), tuple(turn.steps)


class _Turn:
    """The handling of one event."""

    def __init__(self, scheduler: Scheduler, at: float, choose: Choose) -> None:
        self.scheduler, self.at, self.choose = scheduler, at, choose
        self.actions: list[Action] = []
        self.steps: list[Step] = []

    def react(self, event: Event) -> None:
        if self.scheduler.state is State.CREATED:
            self.enter(State.WAITING_FOR_RESOURCES, _needs(self.scheduler.settings))
        here = self.scheduler
        sooner = here.state is State.STOPPING and (
            isinstance(event, CancelAsked) or (isinstance(event, Failed) and event.permanent)
        )
        if here.after is None or sooner or isinstance(event, Slots | Stopped):
            _HANDLERS[type(event)](self, event)

    def set(self, **changes: Any) -> None:  # noqa: ANN401 - its own fields
        self.scheduler = replace(self.scheduler, **changes)

    def enter(self, state: State, why: str, *, before: int | None = None) -> None:
        here = self.scheduler
        now = here.job.parallelism
        step = Step(
            at=self.at,
            state=state,
            why=why,
            slots=here.job.slots,
            before=now if before is None else before,
            after=now,
            took=0.0 if math.isinf(here.since) else self.at - here.since,
        )
        self.steps.append(step)
        self.set(state=state, since=here.since if state is here.state else self.at)

    # events

    def slots(self, event: Slots) -> None:
        here, job, slots = self.scheduler, self.scheduler.job, event.slots
        if here.after is not None:
            self.set(job=replace(job, slots=slots))
        elif job.phase is Phase.EXECUTING and here.settings.groups[0][0].lower <= slots < job.slots:
            self.go_on(slots, f"{_lost(job.slots - slots, job.slots)}: the queries continue on the others")
        else:
            self.advance(flink.Slots(self.at, slots))

    def built(self, _: Built) -> None:
        if self.scheduler.state is State.CREATING:
            self.enter(State.EXECUTING, f"the queries run on {count_of(self.scheduler.job.parallelism, 'slot')}")
            self.advance(flink.Restored(self.at))

    def committed(self, _: Committed) -> None:
        self.set(committed=self.at)
        if self.scheduler.state is State.EXECUTING:
            self.advance(flink.Checkpoint(self.at))

    def failed(self, event: Failed) -> None:
        here = self.scheduler
        if event.permanent:
            why = f"{event.why}; a restart does not fix that"
            self.finish(State.FAILED, why, State.FAILING, last_commit=False)
        elif here.running and not here.stopping:
            self.advance(flink.Failed(self.at), event.why)

    def ended(self, _: Ended) -> None:
        self.finish(State.FINISHED, "all queries have read all their input", State.STOPPING, last_commit=False)

    def stop_asked(self, _: StopAsked) -> None:
        self.finish(State.FINISHED, "a stop was requested", State.STOPPING, last_commit=True)

    def cancel_asked(self, _: CancelAsked) -> None:
        self.finish(State.CANCELED, "a cancellation was requested", State.CANCELING, last_commit=False)

    def required(self, event: Required) -> None:
        here = self.scheduler
        slots = here.job.slots
        self.set(settings=replace(here.settings, groups=((event.bounds,),)))
        if here.state is State.RESTARTING and here.job.phase is Phase.EXECUTING:
            if slots >= event.bounds.lower:
                self.go_on(slots, "")
            return
        # Slots that the job has not taken so far count as new ones.
        self.set(job=replace(here.job, slots=here.job.parallelism))
        self.advance(flink.Slots(self.at, slots, spare=True))

    def rebuild(self, event: Rebuild) -> None:
        if self.scheduler.state is State.EXECUTING:
            self.enter(State.RESTARTING, event.why)
            self.set(restarts=self.scheduler.restarts + 1, stopping=True, deployed=True)
            self.actions.append(StopQueries(last_commit=True, partitions=event.partitions))

    def passed(self, _: Passed) -> None:
        self.advance(flink.Passed(self.at))

    def stopped(self, event: Stopped) -> None:
        here = self.scheduler
        self.set(running=False, stopping=False)
        if event.why and here.state is State.RESTARTING:
            self.enter(State.RESTARTING, event.why)
        if here.after is not None:
            self.enter(here.after, STOPPED)
        elif here.deployed:
            self.deploy()
        else:
            self.wait()

    # reactions

    def go_on(self, slots: int, why: str) -> None:
        """Continue on other slots without a restart; a restart in progress uses these slots."""
        here, job = self.scheduler, self.scheduler.job
        kept = here.settings.executing(slots, self.at)
        kept = replace(kept, attempts=job.attempts, delay=job.delay, restart_at=job.restart_at)
        self.set(job=kept)
        if here.state is State.EXECUTING:
            self.enter(State.EXECUTING, why, before=job.parallelism)

    def advance(self, event: flink.Event, why: str | None = None) -> None:
        """Let Flink's scheduler handle an event, and carry out its result."""
        here = self.scheduler
        job, done = advance(here.settings, here.job, event)
        stops = {one.why for one in done if isinstance(one, Stop)}
        if stops == {Why.RESCALE} and here.state is State.EXECUTING:
            if self.at - here.committed > here.max_commit_age:
                return  # The rescale is considered again at the next event.
            choice = self.choose(job.slots)
            if choice.restart is None:
                return  # The choice is made again at the next event.
            if not choice.restart:
                self.go_on(job.slots, choice.why)
                return
            why = choice.why
        before = here.job.parallelism
        self.set(job=job)
        for one in done:
            if isinstance(one, Stop):
                self.stop(one.why, why, before)
            elif isinstance(one, Deploy):
                self.set(deployed=True)
        if self.scheduler.deployed and not self.scheduler.running:
            self.deploy()
        self.wait()

    def wait(self) -> None:
        """Enter the state of waiting for resources, if Flink's scheduler waits and the queries are stopped."""
        here = self.scheduler
        waits = here.job.phase is Phase.WAITING_FOR_RESOURCES and here.state is State.RESTARTING
        if waits and not here.running:
            self.enter(State.WAITING_FOR_RESOURCES, _needs(here.settings))

    def stop(self, cause: Why, why: str | None, before: int) -> None:
        here = self.scheduler
        if cause is Why.FAILED:
            were = agree(here.job.slots, "was", "were")
            needs = f"{_needs(here.settings)}, and there {were} {here.job.slots} for too long"
            self.finish(State.FAILED, why or needs, State.FAILING, last_commit=False)
            return
        left = f"{count_of(here.job.slots, 'slot')} {agree(here.job.slots, 'is', 'are')} left"
        self.enter(State.RESTARTING, why or f"{left}, and {_needs(here.settings)}", before=before)
        self.set(restarts=here.restarts + 1, deployed=False)
        self.stop_queries(last_commit=cause is Why.RESCALE)

    def deploy(self) -> None:
        here = self.scheduler
        why = f"there {agree(here.job.slots, 'is', 'are')} {count_of(here.job.slots, 'slot')}"
        self.enter(State.CREATING, why, before=0)
        self.set(running=True, deployed=False)
        self.actions.append(Build(here.job.parallelism))

    def finish(self, last: State, why: str, until: State, *, last_commit: bool) -> None:
        """Stop the queries and end the job in the state `last`; `until` is the state while they stop."""
        if not self.scheduler.running:
            self.enter(last, why)
            return
        self.enter(until, why)
        self.set(after=last, deployed=False)
        self.stop_queries(last_commit=last_commit)

    def stop_queries(self, *, last_commit: bool) -> None:
        if not self.scheduler.running:
            return
        if self.actions:  # The same event stops the queries for another reason too: stop once, and do not wait.
            self.actions = [StopQueries(last_commit=False)]
        elif not (self.scheduler.stopping and last_commit):  # A cancellation interrupts the wait for a last commit.
            self.actions.append(StopQueries(last_commit))
        self.set(stopping=True)


_HANDLERS: Mapping[type[Event], Callable[[_Turn, Any], None]] = {
    Slots: _Turn.slots,
    Built: _Turn.built,
    Committed: _Turn.committed,
    Failed: _Turn.failed,
    Ended: _Turn.ended,
    Stopped: _Turn.stopped,
    StopAsked: _Turn.stop_asked,
    CancelAsked: _Turn.cancel_asked,
    Required: _Turn.required,
    Rebuild: _Turn.rebuild,
    Passed: _Turn.passed,
}


def _needs(settings: FlinkSettings) -> str:
    least = settings.groups[0][0].lower
    return f"at least {count_of(least, 'slot')} {agree(least, 'is', 'are')} needed"


def _lost(lost: int, slots: int) -> str:
    return f"{lost} of {count_of(slots, 'slot')} {agree(lost, 'is', 'are')} lost"
