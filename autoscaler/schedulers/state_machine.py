"""The scheduler inside a job as a state machine: events in, instructions out.

The driver sends the events and carries out the instructions. It is a simulated cluster, or a test that runs beside a
real one. The driver also determines how long it takes to stop tasks and to restore state: it gets the instructions to
stop and deploy the job, and sends an event when the job has restarted. Times are seconds from any origin.
"""

from __future__ import annotations

import math
from bisect import insort_right
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple, Protocol

Vertices = tuple[tuple[int, ...], ...]
"""The parallelism of each vertex, by slot sharing group."""


class Phase(StrEnum):
    """The phase of a job, with the names of Flink's states."""

    CREATED = "created"
    WAITING_FOR_RESOURCES = "waiting for resources"
    CREATING_EXECUTION_GRAPH = "creating execution graph"
    EXECUTING = "executing"
    RESTARTING = "restarting"
    FINISHED = "finished"
    """Ended for good: it failed and may not restart, or there were never enough slots."""


class Stage(StrEnum):
    """The progress of an executing job towards a rescale: the phases of Flink 2's `DefaultStateTransitionManager`."""

    COOLDOWN = "cooldown"
    IDLING = "idling"
    STABILIZING = "stabilizing"
    STABILIZED = "stabilized"


class Why(StrEnum):
    """Why a job is stopped."""

    RESCALE = "rescale"
    LOST = "lost"
    """Slots that it used are lost."""
    ERROR = "error"
    """Its own code failed."""
    FAILED = "failed"
    """The job has ended: nothing restarts it."""


# ----------------------------------------------------------------------------------------------------------
# events


@dataclass(frozen=True, slots=True)
class Timed:
    """An event at a time."""

    at: float


@dataclass(frozen=True, slots=True)
class Slots:
    """Workers registered, or were stopped gracefully and deregistered.

    Attributes:
        at: when.
        slots: the slots of all workers that are up now.
        spare: whether the job used none of the lost slots. Otherwise it is assumed to have used them.
    """

    at: float
    slots: int
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Killed:
    """Workers ended without deregistering; the scheduler counts their slots until it notices.

    Attributes:
        at: when.
        slots: the lost slots.
        spare: whether the job used none of the lost slots.
    """

    at: float
    slots: int
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint completed, or failed."""

    at: float
    completed: bool = True


class Failed(Timed):
    """The job's own code failed."""


class Restored(Timed):
    """The deployed tasks run, with their state restored."""


class Passed(Timed):
    """Time passed without another event."""


Change = Slots | Killed | Checkpoint | Failed | Restored
Event = Change | Passed


# ----------------------------------------------------------------------------------------------------------
# instructions


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the tasks: nothing is processed from now on."""

    at: float
    why: Why


@dataclass(frozen=True, slots=True)
class Deploy:
    """Deploy the tasks, which restore the last checkpoint; send `Restored` when they run.

    Attributes:
        at: when.
        parallelism: the largest parallelism of all vertices.
        vertices: the parallelism of each vertex.
    """

    at: float
    parallelism: int
    vertices: Vertices


@dataclass(frozen=True, slots=True)
class Resize:
    """The job continues with this many slots, without a stop (Spark)."""

    at: float
    parallelism: int


Instruction = Stop | Deploy | Resize


# ----------------------------------------------------------------------------------------------------------
# the job


class Due(StrEnum):
    """What happens when a timer runs out."""

    NOTICED = "killed workers are noticed"
    RESTARTED = "tasks are cancelled and the restart delay is over"
    CREATED = "the execution graph is built"
    GIVEN_UP = "the wait for the resources that a job needs to start is over"
    COOLED = "the cooldown is over"
    STABILIZED = "the slots count as stable"
    EVALUATED = "check whether all wanted slots are available"
    TRIGGERED = "the wait for a checkpoint is over"
    RESCALED = "a rescale was postponed until now"
    FORCED = "even the smallest increase is worth a restart"
    USED = "added slots are used"


class Timer(NamedTuple):
    """Something that will happen: when and what; if it matters, for how many slots, and whether those are spare."""

    at: float
    due: Due
    slots: int = 0
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of a job as its scheduler sees it.

    Attributes:
        phase: the present phase.
        since: when that phase began.
        slots: slots of the workers that are up.
        dead: slots of killed workers that the scheduler still counts.
        vertices: the deployed parallelism of each vertex; empty while the job is not deployed.
        restored: whether the tasks run; False from their deployment until `Restored`.
        timers: what will happen without other events, soonest first; at the same time in the order they were set.
        stage: the progress towards a rescale, while the job executes.
        changed: when the slots first changed so that a rescale makes a difference; math.inf: they did not.
        wished: the vertices with which to deploy it next; empty after a failure, when they are unknown.
        failed_checkpoints: how many more checkpoints must fail until a rescale no longer waits for one; None: no
            rescale waits for a checkpoint.
        attempts: restarts after failures in short succession.
        delay: the pause after the last of these failures.
        restart_at: when that pause was over.
    """

    phase: Phase = Phase.CREATED
    since: float = -math.inf
    slots: int = 0
    dead: int = 0
    vertices: Vertices = ()
    restored: bool = False
    timers: tuple[Timer, ...] = ()
    stage: Stage = Stage.IDLING
    changed: float = math.inf
    wished: Vertices = ()
    failed_checkpoints: int | None = None
    attempts: int = 0
    delay: float = 0.0
    restart_at: float = -math.inf

    @property
    def wakes_at(self) -> float:
        """When the next timer runs out: send `Passed` then. math.inf: there is none."""
        return self.timers[0].at if self.timers else math.inf

    @property
    def parallelism(self) -> int:
        """The largest parallelism of its vertices; 0 while it is not deployed."""
        return widest(self.vertices)

    @property
    def runs(self) -> bool:
        """Whether it processes records: its tasks run, and none was on a worker that is dead and not yet noticed."""
        stuck = any(timer.due is Due.NOTICED and not timer.spare for timer in self.timers)
        return self.phase is Phase.EXECUTING and self.restored and not stuck


Transition = tuple[Job, tuple[Instruction, ...]]
"""The new state of a job, and the instructions for the driver."""


class Settings(Protocol):
    """The rules of one scheduler: `FlinkSettings` or `SparkSettings`."""

    def start(self, job: Job, at: float) -> Transition:
        """Start a job that was only created."""

    def react(self, job: Job, event: Change) -> Transition:
        """Handle an event; the job has no timer of an earlier time."""

    def wake(self, job: Job, timer: Timer) -> Transition:
        """Handle a timer that has run out, and that was already removed from the job."""


def advance(settings: Settings, job: Job, event: Event) -> Transition:
    """The state of a job after an event, and the instructions for its driver.

    The first event starts the job. Events must be in order of time. Timers that ran out before an event are handled
    first, in order. If several things happen at the same time, the slots change first, then timers run out, then a
    checkpoint completes: timers due at the time of `Slots`, `Killed`, `Failed` or `Restored` wait for the next event,
    which may be `Passed` with the same time.
    """
    done: list[Instruction] = []
    if job.phase is Phase.CREATED:
        job, more = settings.start(job, event.at)
        done += more
    late = isinstance(event, Checkpoint | Passed)
    while job.timers and (job.timers[0].at < event.at or (late and job.timers[0].at == event.at)):
        timer, rest = job.timers[0], job.timers[1:]
        job, more = settings.wake(replace(job, timers=rest), timer)
        done += more
    if not isinstance(event, Passed):
        job, more = settings.react(job, event)
        done += more
    return job, tuple(done)


def set_timer(job: Job, timer: Timer) -> Job:
    """The job with one more timer, after existing timers of the same time."""
    timers = list(job.timers)
    insort_right(timers, timer, key=attrgetter("at"))
    return replace(job, timers=tuple(timers))


def enter(job: Job, phase: Phase, at: float) -> Job:
    """The job in its next phase. Only the timers for killed workers stay."""
    kept = tuple(timer for timer in job.timers if timer.due is Due.NOTICED)
    return replace(
        job, phase=phase, since=at, timers=kept, stage=Stage.IDLING, changed=math.inf, failed_checkpoints=None
    )


def widest(vertices: Vertices) -> int:
    """The largest parallelism of all vertices."""
    return max((share for group in vertices for share in group), default=0)


def occupied(vertices: Vertices) -> int:
    """The slots that these vertices occupy: vertices of one group share slots."""
    return sum(max(group, default=0) for group in vertices)
