"""The simulated cluster: a fluid queue, workers that start with a delay, and a job that stops for changes of size.

Its figures follow published measurements: stall times from public raw data of 18-hour Flink runs (Reactive Mode 4-23 s,
full redeploy 70-79 s), EC2 cold starts, Flink's default heartbeat time-out of 50 s, exponents of 0.80-0.90 measured for
Nexmark, capacity noise of 1-7 % between cloud machines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from random import Random

from autoscaler.core.capacity import effective_slots
from autoscaler.core.model import EngineStatus, JobState, Observation, Phase, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.schedulers.state_machine import (
    Checkpoint,
    Deploy,
    Event,
    Job,
    Killed,
    Passed,
    Restored,
    Slots,
    Stage,
    Stop,
    Why,
    advance,
)
from autoscaler.schedulers.state_machine import Phase as JobPhase

STEP = 5.0
"""Seconds of one step."""

WINDOW_STEPS = 12
"""Steps over which the metrics are averaged: 60 s."""

METRIC_WINDOW = timedelta(seconds=STEP * WINDOW_STEPS)
"""`Reading.over` of every metric."""

METRICS = ("arrivals", "throughput", "lag", "utilization", "saturation", "cpu")
"""The metrics of a simulated cluster."""

SHARES = ("utilization", "saturation", "cpu")
"""Metrics that are shares, from 0 to 1."""

START = datetime(2026, 1, 5, tzinfo=UTC)
"""The default time of the first step: midnight, a Monday."""

RUNNING_FOR = 3600.0
"""Seconds that the job of a new plant has been running, unless it stays cold for longer."""

GRID = 3.0 * 2.0**21
"""x + GRID - GRID is x rounded to 2^-30: the last digits of logarithms and powers differ between mathematical
libraries, but the result of a simulation must not."""


SLOW_WORKER_RATE = 0.7
"""The work of a slow worker, relative to other workers."""


def work(size: float, exponent: float) -> float:
    """The work of `size` workers relative to one worker: size^exponent, the same on every machine."""
    return math.pow(size, exponent) + GRID - GRID


def lognormal(dice: Random, median: float, deviation: float) -> float:
    """A lognormal draw by its median and the standard deviation of its logarithm."""
    return dice.lognormvariate(math.log(median), deviation) + GRID - GRID


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantSpec:
    """How a simulated cluster behaves. Times are seconds; lognormal ones have a median and a standard deviation of ln.

    Attributes:
        startup, startup_sd: time from the request until a worker registers.
        restart_up, restart_down, restart_sd: time to stop and restore the job when workers are added or removed.
        heartbeat: time until the job notices that a scale-in killed workers; the job is stopped meanwhile. 0: workers
            stop gracefully and deregister.
        checkpoint: interval of checkpoints (Spark: batches) while the job runs; a restart resumes from the last one.
        gamma: n workers do n^gamma times the work of one.
        partitions: partitions of the source or the state. The job uses no more slots, and all tasks of a round wait for
            the last one. None: no limit.
        sigma, tau: standard deviation and memory of the capacity's noise, an AR(1) process of ln(capacity).
        scheduler: the rules by which the job restarts or continues when slots change; the `heartbeat` of the plant
            replaces that of the scheduler. None: the rules of the benchmark: the job restarts when `merge` is over, and
            at once for every worker that leaves.
        merge: registrations within this time of the first one share one restart; only without a `scheduler`.
        joining: how long a job that continues when workers are added (Spark) does nothing: the batch with their first
            tasks waits until these start.
        cold, cold_for: the share of its capacity that a job has after a restart, and for how long.
        crash_every: mean time between two crashes in the whole cluster, 0: none. A new worker replaces the crashed one.
            A job's only worker does not crash.
        crash_noticed: time until a crash is noticed; the job is stopped meanwhile.
        slow: share of the new workers that only do `SLOW_WORKER_RATE` of a worker's work.
        never: share of the new workers that never start. They are billed until they are cancelled.
        idle: share of the CPU that is busy even without records; it counts in `cpu`, not in `utilization`.
        slo: the age of the oldest unprocessed record should be at most this.
    """

    startup: float = 30.0
    startup_sd: float = 0.25
    restart_up: float = 12.0
    restart_down: float = 8.0
    restart_sd: float = 0.3
    heartbeat: float = 0.0
    checkpoint: float = 10.0
    gamma: float = 0.9
    partitions: int | None = None
    sigma: float = 0.04
    tau: float = 300.0
    scheduler: FlinkSettings | SparkSettings | None = None
    merge: float = 10.0
    joining: float = 0.0
    cold: float = 0.85
    cold_for: float = 30.0
    crash_every: float = 0.0
    crash_noticed: float = 10.0
    slow: float = 0.0
    never: float = 0.0
    idle: float = 0.05
    slo: float = 60.0

    def __post_init__(self) -> None:
        for field_ in fields(self):
            if isinstance(field_.default, float):
                value = getattr(self, field_.name)
                fits, expected = _CHECKS.get(field_.name, _NOT_NEGATIVE)
                if not (math.isfinite(value) and fits(value)):
                    raise ParameterError(field_.name, f"is {value:g}, expected {expected}")
        if self.partitions is not None and self.partitions < 1:
            raise ParameterError("partitions", f"is {self.partitions}, expected 1 or more")


def start_up(spec: PlantSpec, dice: Random) -> float:
    """Draw the seconds from the request of a worker until it registers; infinite for one that never starts."""
    if spec.never > 0 and dice.random() < spec.never:
        return math.inf
    return lognormal(dice, spec.startup, spec.startup_sd)


_Check = tuple[Callable[[float], bool], str]
_NOT_NEGATIVE: _Check = (lambda value: value >= 0, "0 or more")
_POSITIVE: _Check = (lambda value: value > 0, "above 0")
_SHARE: _Check = (lambda value: 0 <= value <= 1, "a share from 0 to 1")
_CHECKS: Mapping[str, _Check] = {
    **dict.fromkeys(("startup", "restart_up", "restart_down", "checkpoint", "tau", "slo", "gamma"), _POSITIVE),
    "slow": _SHARE,
    "never": _SHARE,
    "cold": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "idle": (lambda value: 0 <= value < 1, "from 0 to below 1"),
}

PLANTS: Mapping[str, PlantSpec] = {
    "k8s": PlantSpec(),
    "ec2": PlantSpec(startup=90.0, restart_up=30.0, restart_down=25.0, checkpoint=60.0, slo=120.0),
    "redeploy": PlantSpec(restart_up=75.0, restart_down=70.0, slo=240.0),
    "ungraceful": PlantSpec(heartbeat=50.0, slo=120.0),
}
"""The four plants of the benchmark, by name."""

SCHEDULER_PLANTS: Mapping[str, PlantSpec] = {
    "flink-2.3": PlantSpec(
        scheduler=FlinkSettings.of("2.3", checkpoint_interval=10.0), crash_noticed=FlinkSettings().heartbeat, slo=180.0
    ),
    "flink-1.20": PlantSpec(
        scheduler=FlinkSettings.of("1.20", checkpoint_interval=10.0), crash_noticed=FlinkSettings().heartbeat, slo=120.0
    ),
    "flink-1.18": PlantSpec(
        scheduler=FlinkSettings.of("1.18", checkpoint_interval=10.0), crash_noticed=FlinkSettings().heartbeat
    ),
    "spark": PlantSpec(scheduler=SparkSettings(), crash_noticed=0.0),
}
"""Plants with the rules of a scheduler: Flink in Reactive Mode with the defaults of a version, and Spark standalone."""


_STATES = {JobPhase.CREATED: JobState.STARTING, JobPhase.FINISHED: JobState.FAILED}
_WAITING = frozenset({Stage.STABILIZING, Stage.STABILIZED})
"""Stages in which a checkpoint matters to a job's scheduler."""

PHASE_MARGIN = 60.0
"""Seconds that a phase of a rescale may take in addition to the scheduler's waits, to register workers and deploy."""


def deadlines(scheduler: FlinkSettings | SparkSettings | None) -> Mapping[Phase, timedelta]:
    """How long each phase of a rescale may take by the scheduler's settings, as the engine of a real job reports it."""
    if not isinstance(scheduler, FlinkSettings):
        return {}
    absorbing = scheduler.cooldown + scheduler.stabilization + scheduler.max_delay + scheduler.delay
    waits = {Phase.REGISTERED: scheduler.heartbeat, Phase.ABSORBED: absorbing, Phase.RUNNING: scheduler.delay}
    return {phase: timedelta(seconds=wait + PHASE_MARGIN) for phase, wait in waits.items()}


def _max_parallelism(scheduler: FlinkSettings | SparkSettings | None) -> int | None:
    """The maximum parallelism of the job, if its scheduler has one."""
    if not isinstance(scheduler, FlinkSettings):
        return None
    return max(vertex.upper for group in scheduler.groups for vertex in group)


@dataclass(slots=True, kw_only=True)
class Track:
    """What happened, with one entry for each step; `position` is the one at the end of the step.

    Attributes:
        arrivals: records that arrived.
        position: records processed since the beginning, minus those that a restart has rolled back.
        billed: workers running or starting.
        running: workers that the job uses.
        stopped: share of the step in which the job was stopped.
        requests: (step, size) of each requested change of size.
        restarts: how often the job restarted.
    """

    arrivals: list[float] = field(default_factory=list)
    position: list[float] = field(default_factory=list)
    billed: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    restarts: int = 0


class Plant:
    """One simulated cluster, with the methods `advance`, `observe` and `scale`. At first it runs steadily.

    Workers start and checkpoints complete at any time; the scheduler reacts, and workers crash, at the next step.

    Args:
        spec: how it behaves.
        rate_per_worker: records/s that one worker processes; it may change, for example if records get more expensive.
        seed: the seed of all random draws.
        size: workers that run at the start.
        slots: the slots of each worker.
        start: the time of the first step.
    """

    def __init__(
        self, spec: PlantSpec, rate_per_worker: float, seed: int, size: int, slots: int = 1, start: datetime = START
    ) -> None:
        self.spec = spec
        self._slots = slots
        self._start_at = start
        self.rate_per_worker = rate_per_worker
        self.track = Track()
        self.desired = size
        self._dice = Random(seed)  # noqa: S311 - noise of a simulation, nothing secret
        self._now = 0.0
        self._up = [1.0] * size  # for each running worker, its work relative to a normal one, the oldest first
        self._starting: list[float] = []  # when each starting worker will register
        self._stalled_until = 0.0
        self._waits_until = 0.0  # until then a running job waits for new workers
        self._running_since = -max(RUNNING_FOR, spec.cold_for)
        self._up_since = self._start_at + timedelta(seconds=self._running_since)
        self._rules = FlinkSettings.merging(spec.merge) if spec.scheduler is None else spec.scheduler
        # Without workers, only a job with the benchmark's rules is deployed.
        deployed = size > 0 or spec.scheduler is None
        self._job = self._rules.executing(size * slots, self._running_since) if deployed else Job()
        self._wakes_at = self._job.wakes_at  # when to notify the scheduler that time has passed
        self._completed = False  # whether it must be notified that a checkpoint completed
        self._max_parallelism = _max_parallelism(spec.scheduler)
        self._deadlines = deadlines(spec.scheduler)
        self._halted = not deployed  # not deployed, or stuck on a dead worker that is not noticed yet
        self._why = Why.RESCALE  # the reason of the last stop
        self._stopped_at = 0.0
        self._used = 0  # workers that the job uses
        self._work = 0.0  # the work of these workers, relative to one worker
        self._parallelism = self._job.parallelism
        self._use(self._parallelism)
        self._arrived = 0.0
        self._position = 0.0
        self._committed = 0.0
        self._checkpoint_in = spec.checkpoint
        self._checkpointed = 0.0
        self._noise = spec.sigma * (self._dice.gauss(0.0, 1.0) + GRID - GRID)
        self._keeps = math.exp(-STEP / spec.tau) + GRID - GRID
        self._stirs = spec.sigma * math.sqrt(1.0 - self._keeps * self._keeps)
        self._crash_at = self._next_crash()
        # arrivals/s, processed/s, lag and utilization of each step of the last minute
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=WINDOW_STEPS)

    def advance(self, arrivals: float) -> None:
        """Simulate one step of 5 s, in which the given number of records arrives."""
        spec, track = self.spec, self.track
        begin = self._now
        end = begin + STEP
        if self._completed or self._wakes_at <= begin:
            self._notify(Checkpoint(begin) if self._completed else Passed(begin), begin)
            self._completed = False
        if self._crash_at <= begin:
            self._crash(begin)
        self._noise = self._keeps * self._noise + self._stirs * (self._dice.gauss(0.0, 1.0) + GRID - GRID)
        self._arrived += arrivals
        waiting = self._arrived - self._position
        capacity = done = 0.0
        stopped_until = math.inf if self._halted else max(self._stalled_until, self._waits_until)
        stalled = min(stopped_until - begin, STEP) if stopped_until > begin else 0.0
        runs = STEP - stalled
        if runs > 0.0:
            capacity = self.rate_per_worker * self._work * (math.exp(self._noise) + GRID - GRID)
            cold = self._running_since + spec.cold_for - begin - stalled
            if cold > 0.0:
                capacity *= 1.0 - (1.0 - spec.cold) * min(cold / runs, 1.0)
            done = min(capacity * runs, waiting)
            # By rounding, the sum could exceed the records that have arrived.
            self._position = self._arrived if done == waiting else self._position + done
            self._checkpoint_in -= runs
            if self._checkpoint_in <= 0.0:
                # `ago` seconds before the end of the step it completed: records processed since then are not in it.
                ago = -self._checkpoint_in % spec.checkpoint
                self._committed = self._position - done * ago / runs
                self._checkpointed = end - ago
                self._checkpoint_in = spec.checkpoint - ago
                self._completed = self._job.stage in _WAITING
        self._seen.append((arrivals / STEP, done / STEP, waiting - done, done / (capacity * STEP) if capacity else 0.0))
        self._now = end
        track.arrivals.append(arrivals)
        track.position.append(self._position)
        track.billed.append(len(self._up) + len(self._starting))
        track.running.append(self._used)
        track.stopped.append(stalled / STEP)
        if self._starting:
            self._register(end)

    def observe(self) -> Observation:
        """What real sources would show now, after at least one step: averages of the last minute."""
        now = self._start_at + timedelta(seconds=self._now)
        count = len(self._seen)
        # fsum: the last digit of `sum` depends on Python's version.
        offered, processed, lag, busy = [math.fsum(each) / count for each in zip(*self._seen, strict=True)]
        # Positional: keyword arguments take twice as long.
        utilization = Reading(busy, now, None, {}, METRIC_WINDOW)
        return Observation(
            at=now,
            desired=self.desired,
            ready=len(self._up),
            metrics={
                "arrivals": Reading(offered, now, None, {}, METRIC_WINDOW),
                "throughput": Reading(processed, now, None, {}, METRIC_WINDOW),
                "lag": Reading(lag, now, None, {}, METRIC_WINDOW),
                "utilization": utilization,
                "saturation": utilization,
                "cpu": Reading(self.spec.idle + (1.0 - self.spec.idle) * busy, now, None, {}, METRIC_WINDOW),
            },
            missing={},
            engine=self._status(),
        )

    def scale(self, size: int) -> None:
        """Request a size."""
        if size == self.desired:
            return
        self.desired = size
        self.track.requests.append((len(self.track.arrivals), size))
        have = len(self._up) + len(self._starting)
        for _ in range(size - have):
            self._start()
        if size < have:
            cancelled = min(have - size, len(self._starting))
            # Cancel the latest ones first.
            self._starting = sorted(self._starting)[: len(self._starting) - cancelled]
            removed = have - size - cancelled
            if removed:
                del self._up[len(self._up) - removed :]
                self._lose(removed, self._now, self.spec.heartbeat, spare=self._used <= len(self._up))

    def _status(self) -> EngineStatus:
        job = self._job
        running = job.phase is JobPhase.EXECUTING and self._now >= self._stalled_until
        return EngineStatus(
            job=JobState.RUNNING if running else _STATES.get(job.phase, JobState.RESTARTING),
            slots=job.slots + job.dead,
            parallelism=self._parallelism if running else 0,
            max_parallelism=self._max_parallelism,
            partitions=self.spec.partitions,
            running_since=self._up_since if running else None,
            last_checkpoint=self._start_at + timedelta(seconds=self._checkpointed),
            restarts=self.track.restarts,
            deadlines=self._deadlines,
        )

    def _start(self) -> None:
        self._starting.append(self._now + start_up(self.spec, self._dice))

    def _register(self, until: float) -> None:
        """Register the workers that start in this step. The first one opens the window for a shared restart."""
        here = [at for at in self._starting if at <= until]
        if not here:
            return
        self._starting = [at for at in self._starting if at > until]
        slow = self.spec.slow
        self._up += [SLOW_WORKER_RATE if slow > 0 and self._dice.random() < slow else 1.0 for _ in here]
        # At the latest when the scheduler wakes up, so that the next step handles its events in order.
        self._notify(Slots(min(*here, self._wakes_at), len(self._up) * self._slots), until)

    def _crash(self, at: float) -> None:
        """Crash the oldest worker and start another one; the job continues without it once the crash is noticed."""
        self._crash_at = self._next_crash()
        if len(self._up) > 1:
            del self._up[0]
            self._start()
            self._lose(1, at, self.spec.crash_noticed, spare=False)

    def _lose(self, workers: int, at: float, noticed: float, *, spare: bool) -> None:
        """Notify the scheduler of workers that ended; if they were killed, it notices that later."""
        at = min(at, self._wakes_at)
        if self.spec.scheduler is None:
            # With the benchmark's rules the job always restarts; its stall includes the time until it notices the loss.
            self._notify(Slots(at, len(self._up) * self._slots), self._now, noticed)
        elif noticed:
            rules = replace(self._rules, heartbeat=noticed)
            self._notify(Killed(at, workers * self._slots, spare), self._now, rules=rules)
        else:
            self._notify(Slots(at, len(self._up) * self._slots, spare), self._now)

    def _notify(
        self, event: Event, at: float, extra: float = 0.0, rules: FlinkSettings | SparkSettings | None = None
    ) -> None:
        """Notify the job's scheduler of an event, and carry out its instructions.

        Restoring the job takes `extra` more seconds.
        """
        self._job, done = advance(rules or self._rules, self._job, event)
        for instruction in done:
            match instruction:
                case Stop(why=why):
                    self._why, self._stopped_at = why, at
                    self._position = self._committed
                    self._use(0)
                case Deploy(at=begun, parallelism=parallelism):
                    self._restore(max(begun, self._stopped_at), extra)
                    self._use(parallelism)
                case _:
                    if instruction.parallelism > self._used * self._slots:
                        self._waits_until = at + self.spec.joining
                    self._use(instruction.parallelism)
        # The scheduler's rules do not depend on how long the restoring takes.
        self._job, _ = advance(self._rules, self._job, Restored(event.at))
        self._wakes_at = self._job.wakes_at
        self._parallelism = self._job.parallelism
        self._halted = not self._job.runs

    def _restore(self, at: float, extra: float) -> None:
        """Deploy the job, which restores the last checkpoint."""
        spec = self.spec
        median = spec.restart_up if self._why is Why.RESCALE else spec.restart_down
        stall = extra + lognormal(self._dice, median, spec.restart_sd)
        self._stalled_until = max(self._stalled_until, at + stall)
        self._running_since = self._stalled_until
        self._up_since = self._start_at + timedelta(seconds=self._running_since)
        self._checkpoint_in = spec.checkpoint
        self.track.restarts += 1

    def _use(self, slots: int) -> None:
        """Let the job use the given number of slots, those of the oldest workers."""
        self._used = used = -(-slots // self._slots)
        busy = effective_slots(slots, 1, self.spec.partitions) / self._slots
        share = math.fsum(self._up[:used]) / max(1, used)
        self._work = work(share * busy, self.spec.gamma)

    def _next_crash(self) -> float:
        if not self.spec.crash_every:
            return math.inf
        return self._now + self._dice.expovariate(1.0 / self.spec.crash_every) + GRID - GRID
