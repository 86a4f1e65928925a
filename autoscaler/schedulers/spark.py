"""Spark's standalone scheduler: it takes every worker that registers, without a stop, a few seconds later.

The job continues without a worker that is decommissioned or stopped; one that hangs or is unreachable blocks the batch
until the master notices. Spark itself does not request workers.
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
        heartbeat: until a hung worker is noticed. The master checks every `spark.worker.timeout` (60 s) for workers
            without a heartbeat for so long: 60 to 120 s.
        most: slots that the application takes at most: `spark.cores.max`; math.inf: all.
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
        """A query that has used so many slots since then, or as many of them as it may."""
        return self._use(Job(slots=slots), slots, at)[0]

    def start(self, job: Job, at: float) -> Transition:
        """An application that was only submitted waits for executors."""
        return enter(job, Phase.WAITING_FOR_RESOURCES, at), ()

    def react(self, job: Job, event: Change) -> Transition:
        """What an event changes."""
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
        """The slots that the application has or gets."""
        return int(min(job.slots + job.dead, self.most))

    def _take(self, job: Job, at: float) -> Job:
        """Unused slots are used a little later."""
        coming = sum(timer.slots for timer in job.timers if timer.due is Due.USED)
        more = self._there(job) - job.parallelism - coming
        return set_timer(job, Timer(at + self.used_after, Due.USED, more)) if more > 0 else job

    def _use(self, job: Job, slots: int, at: float) -> Transition:
        """Continue with so many slots, if available."""
        slots = max(0, min(slots, self._there(job)))
        if slots == job.parallelism:
            return job, ()
        phase = Phase.EXECUTING if slots else Phase.WAITING_FOR_RESOURCES
        since = job.since if phase is job.phase else at
        vertices = ((slots,),) if slots else ()
        return replace(job, phase=phase, since=since, vertices=vertices, restored=slots > 0), (Resize(at, slots),)
