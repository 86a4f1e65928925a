"""Flink's adaptive scheduler, version by version: when it stops a job for a rescale, and when it restarts the job.

It follows `org.apache.flink.runtime.scheduler.adaptive` of the releases 1.18 to 2.3, and uses the names there. Not
included are savepoints, cancellation, and the jitter of the restart delay.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from autoscaler.core.parameters import ParameterError
from autoscaler.schedulers.slots import Bounds, reactive_bounds, required_slots, slot_allocation
from autoscaler.schedulers.state_machine import (
    Change,
    Checkpoint,
    Deploy,
    Due,
    Failed,
    Instruction,
    Job,
    Killed,
    Phase,
    Slots,
    Stage,
    Stop,
    Timer,
    Transition,
    Vertices,
    Why,
    enter,
    occupied,
    set_timer,
    widest,
)

OLDEST = (1, 18)
CHECKPOINT_FAILURES = 2  # the default of `rescale-trigger.max-checkpoint-failures`
MAX_PARALLELISM = 1 << 15  # of any vertex


class Rules(StrEnum):
    """When an executing job is rescaled."""

    INTERVAL = "interval"
    """Until 1.20: at once, or as soon as the minimum interval since the last restart is over."""
    STABILIZED = "stabilized"
    """From 2.0 on: after a cooldown, once the slots are stable or complete, with the next checkpoint."""


class Restart(StrEnum):
    """What happens after a failure, such as a worker that is lost."""

    NONE = "none"
    FIXED = "fixed-delay"
    EXPONENTIAL = "exponential-delay"


def default_max_delay(interval: float | None, failures: int = CHECKPOINT_FAILURES) -> float:
    """The default of the longest wait of a rescale for a checkpoint, in seconds: `AdaptiveScheduler.Settings.of`.

    Args:
        interval: seconds between checkpoints; None: the job has no checkpoints.
        failures: `rescale-trigger.max-checkpoint-failures`.
    """
    return 0.0 if interval is None else interval * (failures + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkSettings:
    """The rules and settings of a job under Flink's adaptive scheduler. Times are seconds.

    Attributes:
        groups: the job's slot sharing groups: the lower and upper bound of every vertex's parallelism.
        rules: when an executing job is rescaled.
        cooldown: time after a deployment in which there is no rescale: `scaling-interval.min`, in 2.x
            `executing.cooldown-after-rescaling`. 1.18 has none.
        stabilization: how long an executing job waits for more slots after the first change, in 2.x only:
            `executing.resource-stabilization-timeout`.
        max_delay: longest wait of a rescale for a checkpoint, from the first change, in 2.x only:
            `rescale-trigger.max-delay`.
        checkpoint_failures: this many failed checkpoints trigger a rescale like a completed one, in 2.x only.
        min_increase: slots that a vertex must gain to be worth a restart, until 1.20.
        force_after: time after which smaller gains are worth a restart, in 1.19 and 1.20: `scaling-interval.max`;
            math.inf: never.
        resource_wait: how long a starting job waits for all its slots; then it takes the available ones, or fails.
            math.inf: no limit, as in Reactive Mode.
        submission_stabilization: a starting job takes fewer slots than wanted if they suffice for this long; 0 in
            Reactive Mode.
        heartbeat: time until a killed worker is noticed: `heartbeat.timeout`. A refused connection is noticed earlier,
            after about 20 s.
        refused: whether the machine of a killed worker is still up and refuses connections. Then the job fails at once,
            and is deployed again after each delay until the worker is noticed. Otherwise requests time out, and tasks
            are not cancelled before the worker is noticed.
        restart: the restart strategy.
        delay: the pause before the job restarts after a failure; of an exponential delay, the first pause.
        multiplier, longest, reset_after: of the exponential delay: each pause is `multiplier` times the one before, up
            to `longest`; after `reset_after` without a failure, the pauses start again at `delay`.
        attempts: failures that a job survives; math.inf: any number.
        cancel: how long it takes to cancel the tasks.
        create: how long it takes to build the execution graph.
    """

    groups: tuple[tuple[Bounds, ...], ...] = ((reactive_bounds(),),)
    rules: Rules = Rules.STABILIZED
    cooldown: float = 30.0
    stabilization: float = 60.0
    max_delay: float = 0.0
    checkpoint_failures: int = CHECKPOINT_FAILURES
    min_increase: int = 1
    force_after: float = math.inf
    resource_wait: float = math.inf
    submission_stabilization: float = 0.0
    heartbeat: float = 50.0
    refused: bool = False
    restart: Restart = Restart.EXPONENTIAL
    delay: float = 1.0
    multiplier: float = 1.5
    longest: float = 60.0
    reset_after: float = 3600.0
    attempts: float = math.inf
    cancel: float = 0.0
    create: float = 0.0

    def __post_init__(self) -> None:
        for name in _TIMES:
            value = getattr(self, name)
            if not value >= 0:
                raise ParameterError(name, f"is {value:g}, expected seconds, 0 or more")
        for name in ("checkpoint_failures", "min_increase", "multiplier"):
            value = getattr(self, name)
            if not value >= 1:
                raise ParameterError(name, f"is {value:g}, expected 1 or more")
        for name in ("delay", "longest"):
            if self.refused and not getattr(self, name):
                raise ParameterError(name, "is 0, expected more if connections are refused, or it restarts forever")

    @classmethod
    def of(
        cls,
        version: str,
        *,
        reactive: bool = True,
        checkpoint_interval: float | None = None,
        **changes: Any,  # noqa: ANN401 - as the fields are
    ) -> FlinkSettings:
        """The rules and defaults of a version.

        Args:
            version: such as 1.18, 1.20.1, 2.3 or 2.x.
            reactive: whether in Reactive Mode, where a job waits without limit for its first slots and starts at once.
            checkpoint_interval: seconds between checkpoints; None: the job has no checkpoints, and does not restart
                after a failure.
            changes: settings that differ from the defaults.

        Raises:
            ValueError: the version is older than 1.18, or is not a version.
        """
        found = re.fullmatch(r"(\d+)(?:\.(\d+|x)(?:[.-].*)?)?", version)
        known = (int(found[1]), math.inf if found[2] in {None, "x"} else int(found[2])) if found else (0, 0)
        if known < OLDEST:
            raise ValueError(f"expected a version of Flink from 1.18 on, such as 1.20 or 2.3, not {version!r}")
        settings: dict[str, Any] = {}
        if known < (2, 0):
            settings |= {"rules": Rules.INTERVAL}
        if known < (1, 19):
            # With checkpoints, 1.18 restarts with a fixed delay, whatever the settings of the other strategies.
            settings |= {"cooldown": 0.0, "multiplier": 2.0, "longest": 300.0, "restart": Restart.FIXED}
        if not reactive:
            settings |= {"resource_wait": 300.0, "submission_stabilization": 10.0}
        if checkpoint_interval is None:
            settings |= {"restart": Restart.NONE}
        failures = changes.get("checkpoint_failures", CHECKPOINT_FAILURES)
        settings["max_delay"] = default_max_delay(checkpoint_interval, failures)
        return cls(**(settings | changes))

    @classmethod
    def merging(cls, window: float) -> FlinkSettings:
        """A job that restarts at once when slots are lost, and `window` seconds after the first new slot.

        It runs on any number of slots, even 0, without cooldown, checkpoints and heartbeats: the driver of the state
        machine adds the time until a loss is noticed.
        """
        return cls(
            groups=((Bounds(0, MAX_PARALLELISM),),),
            cooldown=0.0,
            stabilization=window,
            max_delay=window,
            heartbeat=0.0,
            restart=Restart.FIXED,
            delay=0.0,
        )

    def executing(self, slots: int, at: float) -> Job:
        """A running job that was deployed on this many slots at that time.

        Raises:
            ValueError: the slots do not suffice.
        """
        job, _ = self._create(replace(Job(slots=slots), phase=Phase.WAITING_FOR_RESOURCES), at)
        if job.phase is Phase.CREATING_EXECUTION_GRAPH:
            job, _ = self._created(job, at)
        if job.phase is not Phase.EXECUTING:
            raise ValueError(f"expected more than {slots} slots, which are too few for the job's slot sharing groups")
        return replace(job, restored=True)

    def start(self, job: Job, at: float) -> Transition:
        """A job that was only created waits for slots."""
        return self._wait(job, at)

    def react(self, job: Job, event: Change) -> Transition:
        """The job after an event, and the instructions that follow."""
        at = event.at
        done: tuple[Instruction, ...] = ()
        match event:
            case Slots(slots=slots, spare=spare):
                before = job.slots
                job = replace(job, slots=slots)
                if slots < before:
                    job, done = self._lose(job, at, spare=spare)
                elif slots > before:
                    job, done = self._gain(job, at)
            case Killed(slots=slots, spare=spare):
                if lost := min(slots, job.slots):
                    job = replace(job, slots=job.slots - lost, dead=job.dead + lost)
                    timer = Timer(at + self.heartbeat, Due.NOTICED, lost, spare or self.refused)
                    job, done = (set_timer(job, timer), ()) if self.heartbeat else self.wake(job, timer)
                    if self.refused:
                        job, more = self._lose(job, at, spare=spare)
                        done += more
            case Checkpoint(completed=completed):
                job, done = self._checkpoint(job, at, completed=completed)
            case Failed():
                job, done = self._fail(job, at, Why.ERROR) if job.phase is Phase.EXECUTING else (job, ())
            case _:  # restored
                job = replace(job, restored=job.phase is Phase.EXECUTING)
        return job, done

    def wake(self, job: Job, timer: Timer) -> Transition:
        """What happens when a timer runs out."""
        at = timer.at
        match timer.due:
            case Due.NOTICED:
                return self._lose(replace(job, dead=job.dead - timer.slots), at, spare=timer.spare)
            case Due.RESTARTED:
                return self._restart(job, at)
            case Due.CREATED:
                return self._created(job, at)
            case Due.GIVEN_UP:
                return self._create(job, at)
            case Due.COOLED:
                return self._cooled(job, at), ()
            case Due.STABILIZED:
                return self._stable(job, at)
            case Due.EVALUATED | Due.TRIGGERED:
                return self._trigger(job, at)
            case Due.RESCALED:
                return self._maybe_rescale(job, at)
            case _:
                return self._rescale(job, at) if self._differs(job) else (job, ())

    # available slots

    def _available(self, job: Job) -> Vertices | None:
        """The parallelism of every vertex with the slots that the scheduler counts; None: too few."""
        return slot_allocation(self.groups, job.slots + job.dead)

    def _all(self, job: Job) -> bool:
        """Whether all wanted slots are available."""
        return job.slots + job.dead >= required_slots(self.groups)

    def _differs(self, job: Job) -> bool:
        """Whether a restart now would change the parallelism of a vertex."""
        return self._available(job) not in {None, job.vertices}

    def _worth(self, job: Job) -> bool:
        """Whether a vertex would lose slots, or gain enough: `EnforceMinimalIncreaseRescalingController`."""
        return any(
            after < before or after - before >= self.min_increase
            for there, here in zip(self._available(job) or (), job.vertices, strict=False)
            for after, before in zip(there, here, strict=True)
        )

    # transitions between phases

    def _wait(self, job: Job, at: float) -> Transition:
        job = enter(job, Phase.WAITING_FOR_RESOURCES, at)
        if self.resource_wait < math.inf:
            job = set_timer(job, Timer(at + self.resource_wait, Due.GIVEN_UP))
        return self._check_slots(job, at)

    def _check_slots(self, job: Job, at: float) -> Transition:
        """Start a waiting job if its slots suffice: at once with all slots, after a stabilization with fewer."""
        if self._all(job):
            return self._create(job, at)
        if self._available(job) is None:
            if self.rules is Rules.INTERVAL:
                job = replace(job, changed=math.inf, timers=_without(job, Due.STABILIZED))
            return job, ()
        if not self.submission_stabilization:
            return self._create(job, at)
        if job.changed == math.inf:
            job = set_timer(replace(job, changed=at), Timer(at + self.submission_stabilization, Due.STABILIZED))
        return job, ()

    def _create(self, job: Job, at: float) -> Transition:
        vertices = self._available(job)
        if vertices is None:
            return _finish(job, at)
        job = replace(enter(job, Phase.CREATING_EXECUTION_GRAPH, at), wished=vertices)
        return (set_timer(job, Timer(at + self.create, Due.CREATED)), ()) if self.create else self._created(job, at)

    def _created(self, job: Job, at: float) -> Transition:
        vertices = job.wished
        if occupied(vertices) > job.slots + job.dead:
            return self._wait(job, at)
        job = replace(enter(job, Phase.EXECUTING, at), vertices=vertices)
        deploy = Deploy(at, widest(vertices), vertices)
        if self.refused and occupied(vertices) > job.slots:
            job, more = self._lose(job, at, spare=False)
            return job, (deploy, *more)
        if self.rules is Rules.INTERVAL:
            # Flink checks again when the interval is over, whether slots were added or not.
            job, more = self._put_off(job, at) if self.cooldown else self._maybe_rescale(job, at)
            return job, (deploy, *more)
        if self.cooldown:
            job = set_timer(replace(job, stage=Stage.COOLDOWN), Timer(at + self.cooldown, Due.COOLED))
        return self._change(job, at), (deploy,)

    def _stop(self, job: Job, at: float, why: Why, delay: float) -> Transition:
        """Cancel the tasks, and restart after a delay."""
        job = replace(enter(job, Phase.RESTARTING, at), vertices=(), restored=False)
        later = at + self.cancel + delay
        if later > at:
            return set_timer(job, Timer(later, Due.RESTARTED)), (Stop(at, why),)
        job, more = self._restart(job, at)
        return job, (Stop(at, why), *more)

    def _restart(self, job: Job, at: float) -> Transition:
        if job.dead and not self.refused:
            # Tasks of a dead worker are not cancelled until the worker is noticed.
            return set_timer(job, Timer(max(timer.at for timer in job.timers), Due.RESTARTED)), ()
        if self.rules is Rules.STABILIZED and job.wished and job.wished == self._available(job):
            return self._create(job, at)
        return self._wait(job, at)

    def _rescale(self, job: Job, at: float) -> Transition:
        return self._stop(replace(job, wished=self._available(job) or ()), at, Why.RESCALE, 0.0)

    # changes of slots, failures, checkpoints

    def _gain(self, job: Job, at: float) -> Transition:
        """Slots were added."""
        if job.phase is Phase.WAITING_FOR_RESOURCES:
            return self._check_slots(job, at)
        if job.phase is not Phase.EXECUTING:
            return job, ()
        if self.rules is Rules.INTERVAL:
            return self._maybe_rescale(job, at) if at - job.since > self.cooldown else self._put_off(job, at)
        if job.failed_checkpoints is None:
            job = replace(job, failed_checkpoints=self.checkpoint_failures)
        return self._change(job, at), ()

    def _lose(self, job: Job, at: float, *, spare: bool) -> Transition:
        """Slots are lost; if the job used them, its tasks fail."""
        if job.phase is not Phase.EXECUTING or (spare and occupied(job.vertices) <= job.slots + job.dead):
            return job, ()
        return self._fail(job, at, Why.LOST)

    def _fail(self, job: Job, at: float, why: Why) -> Transition:
        """The job fails, and restarts after a delay if it may."""
        attempts, delay = job.attempts + 1, self.delay
        if self.restart is Restart.EXPONENTIAL:
            if at - job.restart_at >= self.reset_after:
                attempts = 1
            delay = min(self.delay if attempts == 1 else job.delay * self.multiplier, self.longest)
        if self.restart is Restart.NONE or attempts > self.attempts:
            return _finish(job, at)
        job = replace(job, wished=(), attempts=attempts, delay=delay, restart_at=at + delay)
        return self._stop(job, at, why, delay)

    def _checkpoint(self, job: Job, at: float, *, completed: bool) -> Transition:
        """A checkpoint completed or failed: it can trigger a pending rescale."""
        if not completed:
            if job.failed_checkpoints is None:
                return job, ()
            if job.failed_checkpoints > 1:
                return replace(job, failed_checkpoints=job.failed_checkpoints - 1), ()
        return self._trigger(replace(job, failed_checkpoints=None), at)

    # until 1.20

    def _put_off(self, job: Job, at: float) -> Transition:
        if any(timer.due is Due.RESCALED for timer in job.timers):
            return job, ()
        return set_timer(job, Timer(at + self.cooldown, Due.RESCALED)), ()

    def _maybe_rescale(self, job: Job, at: float) -> Transition:
        if self._worth(job):
            return self._rescale(job, at)
        if self.force_after == math.inf:
            return job, ()
        if at - job.since <= self.force_after:
            return set_timer(job, Timer(at + self.force_after, Due.FORCED)), ()
        return self._rescale(job, at) if self._differs(job) else (job, ())

    # from 2.0 on

    def _change(self, job: Job, at: float) -> Job:
        """The slots changed: `DefaultStateTransitionManager.onChange`."""
        if job.stage is Stage.STABILIZING:
            if any(timer.due is Due.EVALUATED for timer in job.timers):
                return job
            return set_timer(job, Timer(at + self.max_delay, Due.EVALUATED))
        if job.stage is Stage.STABILIZED or not self._differs(job):
            return job
        if job.stage is Stage.IDLING:
            return self._stabilize(job, at, at)
        return job if job.changed < math.inf else replace(job, changed=at)

    def _cooled(self, job: Job, at: float) -> Job:
        if job.changed == math.inf:
            return replace(job, stage=Stage.IDLING)
        return self._stabilize(job, at, job.changed)

    def _stabilize(self, job: Job, at: float, since: float) -> Job:
        """Wait until the slots stay the same, or all of them are available."""
        job = replace(job, stage=Stage.STABILIZING, changed=since)
        job = set_timer(job, Timer(max(since + self.stabilization, at), Due.STABILIZED))
        return set_timer(job, Timer(max(since + self.max_delay, at), Due.EVALUATED))

    def _stable(self, job: Job, at: float) -> Transition:
        """The slots are stable, before a job starts or is rescaled."""
        if job.phase is Phase.WAITING_FOR_RESOURCES:
            return self._create(job, at) if self._available(job) is not None else (replace(job, changed=math.inf), ())
        job = replace(job, stage=Stage.STABILIZED, timers=_without(job, Due.EVALUATED))
        return set_timer(job, Timer(max(job.changed + self.max_delay, at), Due.TRIGGERED)), ()

    def _trigger(self, job: Job, at: float) -> Transition:
        """A checkpoint completed, or the wait for one is over: `DefaultStateTransitionManager.onTrigger`."""
        if job.stage is Stage.STABILIZING:
            return self._rescale(job, at) if self._all(job) and self._differs(job) else (job, ())
        if job.stage is not Stage.STABILIZED:
            return job, ()
        if self._differs(job):
            return self._rescale(job, at)
        return replace(job, stage=Stage.IDLING, changed=math.inf, timers=_without(job, Due.TRIGGERED)), ()


_NUMBERS = [each.name for each in fields(FlinkSettings) if isinstance(each.default, float)]
_TIMES = tuple([name for name in _NUMBERS if name != "multiplier"])


def _finish(job: Job, at: float) -> Transition:
    """The job is over."""
    return replace(enter(job, Phase.FINISHED, at), vertices=(), restored=False), (Stop(at, Why.FAILED),)


def _without(job: Job, due: Due) -> tuple[Timer, ...]:
    return tuple(timer for timer in job.timers if timer.due is not due)
