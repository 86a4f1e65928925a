"""Spark's standalone scheduler: it uses every worker a few seconds after it has registered, without stopping the job.

If a worker is decommissioned or stopped, the job continues without it. A worker that hangs or is unreachable blocks the
batch until the master notices. Spark itself does not request workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.core.parameters import ParameterError
from autoscaler.schedulers.state_machine import (
    Change,
    Due,
    Instruction,
    Job,
    Killed,
    Phase,
    Resize,
    Slots,
    Timer,
    Transition,
    enter,
    set_timer,
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """A Structured Streaming query on a standalone cluster. Times are seconds.

    Attributes:
        used_after: from a worker's registration until its executor has its first task; measured 3.5 to 5 s.
        heartbeat: until a hung worker is noticed. Every `spark.worker.timeout` (60 s) the master looks for workers that
            have sent no heartbeat for that time: 60 to 120 s.
        most: the most slots that the application takes: `spark.cores.max`; math.inf: all.
    """

    used_after: float = 4.0
    heartbeat: float = 90.0
    most: float = math.inf

    def __post_init__(self) -> None:
        for name in ("used_after", "heartbeat", "most"):
            value = getattr(self, name)
            if not value >= 0:
                raise ParameterError(name, f"is {value:g}, expected 0 or more")

    def executing(self, slots: int, at: float) -> Job:
        """A query that has used this many slots since that time, limited to `most`."""
        return self._use(Job(slots=slots), slots, at)[0]

    def start(self, job: Job, at: float) -> Transition:
        """An application that was only submitted waits for executors."""
        return enter(job, Phase.WAITING_FOR_RESOURCES, at), ()

    def react(self, job: Job, event: Change) -> Transition:
        """The job after an event, and the instructions that follow."""
        at = event.at
        done: tuple[Instruction, ...] = ()
        match event:
            case Slots(slots=slots, spare=spare):
                lost = 0 if spare else max(0, job.slots - slots)
                job, done = self._use(replace(job, slots=slots), job.parallelism - lost, at)
            case Killed(slots=slots, spare=spare) if lost := min(slots, job.slots):
                job = replace(job, slots=job.slots - lost, dead=job.dead + lost)
                job = set_timer(job, Timer(at + self.heartbeat, Due.NOTICED, lost, spare))
            case _:
                pass
        return self._take(job, at), done

    def wake(self, job: Job, timer: Timer) -> Transition:
        """What happens when a timer runs out."""
        if timer.due is Due.USED:
            return self._use(job, job.parallelism + timer.slots, timer.at)
        lost = 0 if timer.spare else timer.slots
        job, done = self._use(replace(job, dead=job.dead - timer.slots), job.parallelism - lost, timer.at)
        return self._take(job, timer.at), done

    def _there(self, job: Job) -> int:
        """The slots that the application has or will get."""
        return int(min(job.slots + job.dead, self.most))

    def _take(self, job: Job, at: float) -> Job:
        """Set a timer after which the unused slots are used."""
        coming = sum(timer.slots for timer in job.timers if timer.due is Due.USED)
        more = self._there(job) - job.parallelism - coming
        return set_timer(job, Timer(at + self.used_after, Due.USED, more)) if more > 0 else job

    def _use(self, job: Job, slots: int, at: float) -> Transition:
        """Continue with this many slots, as far as they are available."""
        slots = max(0, min(slots, self._there(job)))
        if slots == job.parallelism:
            return job, ()
        phase = Phase.EXECUTING if slots else Phase.WAITING_FOR_RESOURCES
        since = job.since if phase is job.phase else at
        vertices = ((slots,),) if slots else ()
        return replace(job, phase=phase, since=since, vertices=vertices, restored=slots > 0), (Resize(at, slots),)
