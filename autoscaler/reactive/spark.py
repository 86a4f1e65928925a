"""Spark's standalone scheduler: it takes every worker that registers, without a stop, a few seconds later.

A worker that is decommissioned, or stopped, leaves the others to go on; one that hangs or is cut off holds up the batch
until the master notices. Spark itself never says how many workers there should be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from autoscaler.reactive.scheduler import (
    Due,
    Event,
    Instruction,
    Job,
    Killed,
    Phase,
    Resize,
    Slots,
    Step,
    Timer,
    enter,
    set_timer,
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """A Structured Streaming query on a standalone cluster. Times are seconds.

    Attributes:
        used_after: from a worker's registration until its executor has its first task; measured 3.5 to 5 s.
        heartbeat: until a hung worker is noticed. The master looks every `spark.worker.timeout` (60 s), for workers
            that have been silent for so long: 60 to 120 s.
        most: slots that the application takes at most: `spark.cores.max`; None: all.
    """

    used_after: float = 4.0
    heartbeat: float = 90.0
    most: int | None = None

    def executing(self, slots: int, at: float) -> Job:
        """A query that has used so many slots since then."""
        return self._use(Job(slots=slots), slots, at)[0]

    def react(self, job: Job, event: Event) -> Step:
        """What an event changes."""
        at = event.at
        if job.phase is Phase.CREATED:
            job = enter(job, Phase.WAITING_FOR_RESOURCES, at)
        match event:
            case Slots(slots=slots, spare=spare):
                lost = job.slots - slots
                job = replace(job, slots=slots)
                if lost < 0:
                    return set_timer(job, Timer(at + self.used_after, Due.USED, -lost)), ()
                return self._use(job, job.parallelism - (0 if spare else lost), at)
            case Killed(slots=slots, spare=spare):
                gone = min(slots, job.slots)
                job = replace(job, slots=job.slots - gone, dead=job.dead + gone)
                return set_timer(job, Timer(at + self.heartbeat, Due.NOTICED, gone, spare)), ()
            case _:
                return job, ()

    def wake(self, job: Job, timer: Timer) -> Step:
        """What happens when a timer runs out."""
        if timer.due is Due.USED:
            return self._use(job, job.parallelism + timer.slots, timer.at)
        job = replace(job, dead=job.dead - timer.slots)
        return self._use(job, job.parallelism - (0 if timer.spare else timer.slots), timer.at)

    def _use(self, job: Job, slots: int, at: float) -> Step:
        """Go on with so many slots, but no more than there are and may be."""
        slots = max(0, min(slots, job.slots + job.dead, job.slots + job.dead if self.most is None else self.most))
        if slots == job.parallelism:
            return job, ()
        phase = Phase.EXECUTING if slots else Phase.WAITING_FOR_RESOURCES
        since = job.since if phase is job.phase else at
        done: tuple[Instruction, ...] = (Resize(at, slots),)
        return replace(job, phase=phase, since=since, vertices=((slots,),) if slots else (), restored=slots > 0), done


def speed(tasks: int, slots: int) -> float:
    """How many slots' worth of work is done by so many: tasks run in ceil(tasks / slots) rounds.

    Of 4 tasks 3 slots make no more than 2 do: measured 351 and 362 rows/s.

    Args:
        tasks: of a stage; partitions, for the source's.
        slots: that the query uses.
    """
    return tasks / ceil(tasks / slots) if slots else 0.0
