"""The scheduler inside a job as a state machine: events in, instructions out.

The driver, a simulated cluster or a test beside a real one, sends events and carries out instructions. Times are
seconds from any origin. The driver also determines how long it takes to stop tasks and to restore state: the machine
instructs it to stop and deploy the job, and is notified when the job has restarted.
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
    """Where a job is, by the names of Flink's states."""

    CREATED = "created"
    WAITING_FOR_RESOURCES = "waiting for resources"
    CREATING_EXECUTION_GRAPH = "creating execution graph"
    EXECUTING = "executing"
    RESTARTING = "restarting"
    FINISHED = "finished"
    """Over for good: it failed and may not restart, or slots never sufficed."""


class Stage(StrEnum):
    """How far an executing job is on its way to a rescale: the phases of Flink 2's `DefaultStateTransitionManager`."""

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
    """It is over: nothing restarts it."""


# ----------------------------------------------------------------------------------------------------------
# events


@dataclass(frozen=True, slots=True)
class Timed:
    """What happens at a time."""

    at: float


@dataclass(frozen=True, slots=True)
class Slots:
    """Workers registered, or were stopped gracefully and deregistered.

    Attributes:
        at: when.
        slots: of all workers that are up now.
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
        slots: those that are lost.
        spare: whether the job used none of them.
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
    """The tasks have restarted, with their state, as they were deployed."""


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
        parallelism: the greatest of all vertices.
        vertices: that of each.
    """

    at: float
    parallelism: int
    vertices: Vertices


@dataclass(frozen=True, slots=True)
class Resize:
    """The job continues with so many slots, without a stop (Spark)."""

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
    GIVEN_UP = "no longer wait for the resources that a job needs to start"
    COOLED = "the cooldown is over"
    STABILIZED = "the slots are taken to be stable"
    EVALUATED = "see whether there are all slots wished for"
    TRIGGERED = "no longer wait for a checkpoint"
    RESCALED = "a rescale was put off until now"
    FORCED = "even the smallest increase is worth a restart"
    USED = "added slots are used"


class Timer(NamedTuple):
    """Something that will happen: when and what; for how many slots, and whether spare ones, where that matters."""

    at: float
    due: Due
    slots: int = 0
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of a job as its scheduler sees it.

    Attributes:
        phase: where it is.
        since: from when on.
        slots: of the workers that are up.
        dead: slots of killed workers that the scheduler still counts.
        vertices: as the job is deployed; empty while it is not.
        restored: whether the tasks run; False from their deployment until `Restored`.
        timers: what will happen if nothing else does, soonest first; of one time in the order they were set.
        stage: on the way to a rescale, while it executes.
        changed: when the slots first changed so that a rescale makes a difference; math.inf: they did not.
        wished: the vertices with which it is to be deployed; empty after a failure, when they are unknown.
        failed_checkpoints: how many more of them may fail before a rescale waits for none; None: none is waited for.
        attempts: restarts after failures in short succession.
        delay: how long it paused after the last of them.
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
        """The greatest of its vertices; 0 while it is not deployed."""
        return widest(self.vertices)

    @property
    def runs(self) -> bool:
        """Whether it processes records: its tasks run, and none was on a worker that is dead and not yet noticed."""
        stuck = any(timer.due is Due.NOTICED and not timer.spare for timer in self.timers)
        return self.phase is Phase.EXECUTING and self.restored and not stuck


Transition = tuple[Job, tuple[Instruction, ...]]
"""What becomes of a job, and what is to be done."""


class Settings(Protocol):
    """The rules of one scheduler: `FlinkSettings` or `SparkSettings`."""

    def start(self, job: Job, at: float) -> Transition:
        """What becomes of a job that was only created."""

    def react(self, job: Job, event: Change) -> Transition:
        """What an event changes; no timer of an earlier time is left."""

    def wake(self, job: Job, timer: Timer) -> Transition:
        """What happens when a timer runs out that is not among the job's any more."""


def advance(settings: Settings, job: Job, event: Event) -> Transition:
    """The state of a job after an event, and the instructions for its driver.

    The first event starts the job. Timers that ran out before an event are handled first, in order. At one and the same
    time the slots change first, then timers run out, then a checkpoint completes: what is due at the time of `Slots`,
    `Killed` or `Restored` waits for the next event, which may be `Passed` of that time. Events are in order of time.
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
    """A job for which something will happen; after what is set for the same time already."""
    timers = list(job.timers)
    insort_right(timers, timer, key=attrgetter("at"))
    return replace(job, timers=tuple(timers))


def enter(job: Job, phase: Phase, at: float) -> Job:
    """A job in its next phase: of its timers only those stay that are about killed workers."""
    kept = tuple(timer for timer in job.timers if timer.due is Due.NOTICED)
    return replace(
        job, phase=phase, since=at, timers=kept, stage=Stage.IDLING, changed=math.inf, failed_checkpoints=None
    )


def widest(vertices: Vertices) -> int:
    """The greatest parallelism of all vertices."""
    return max((share for group in vertices for share in group), default=0)


def occupied(vertices: Vertices) -> int:
    """Slots that these vertices take up: those of one group share them."""
    return sum(max(group, default=0) for group in vertices)
