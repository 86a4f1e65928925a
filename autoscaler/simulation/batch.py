"""A simulated cluster under batch jobs: stages of tasks that wait for slots, as Spark schedules them.

Tasks start first come, first served (`spark.scheduler.mode` FIFO), spread over the workers with free slots. Workers
come with the plant's start-up, and leave when the tasks that they run have ended, as decommissioned ones do.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from random import Random

from autoscaler.core.model import (
    ZERO,
    ClusterSpec,
    ClusterState,
    EngineStatus,
    JobState,
    Limits,
    Observation,
    Reading,
)
from autoscaler.core.parameters import ParameterError
from autoscaler.core.step import Decide, step
from autoscaler.ports import Record
from autoscaler.simulation.loop import Keep
from autoscaler.simulation.plant import START, PlantSpec, start_up

METRICS = ("pending_tasks", "running_tasks", "remaining_task_time", "shuffle_workers", "job_time")
"""The metrics of a cluster under batch jobs, as the source `spark` calls them."""

SLACK = 3600.0
"""A run ends so many seconds after one slot would have done all tasks twice: what is not done then never is."""

GIVE_BACK = 600.0
"""After the last job a run goes on for so many seconds at most, until the cluster has its least size."""

BACKLOG_TIMEOUT = 1.0
"""Default of `spark.dynamicAllocation.schedulerBacklogTimeout` and of the one for a sustained backlog, seconds."""

IDLE_TIMEOUT = 60.0
"""Default of `spark.dynamicAllocation.executorIdleTimeout`, seconds."""


MOST_TASKS = 1_000_000
"""A stage has at most so many tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a job.

    Attributes:
        tasks: their number.
        task_time: how long a task takes.
        skew: one task, at a drawn place, takes so many times as long.
        shuffle: whether its tasks leave shuffle files that the next stage reads; those of a job's last stage do not.
        driver_time: before it the driver works alone for so long.
    """

    tasks: int
    task_time: timedelta
    skew: float = 1.0
    shuffle: bool = True
    driver_time: timedelta = ZERO

    def __post_init__(self) -> None:
        if not 1 <= self.tasks <= MOST_TASKS:
            raise ParameterError("tasks", f"is {self.tasks}, expected 1 to {MOST_TASKS}")
        if self.task_time <= ZERO:
            raise ParameterError("task_time", "must be above 0s")
        if not (math.isfinite(self.skew) and self.skew >= 1):
            raise ParameterError("skew", f"is {self.skew:g}, expected 1 or more")
        if self.driver_time < ZERO:
            raise ParameterError("driver_time", "must be 0s or more")

    @property
    def task_seconds(self) -> float:
        """Seconds of slot time that its tasks take together."""
        return (self.tasks - 1 + self.skew) * self.task_time.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A job: an application that runs its stages one after the other, and ends.

    Attributes:
        stages: in their order.
        at: when it is submitted, after the beginning.
        name: what tables call it; empty: its number.
    """

    stages: tuple[Stage, ...]
    at: timedelta = ZERO
    name: str = ""

    def __post_init__(self) -> None:
        if not self.stages:
            raise ParameterError("stages", "must have at least one")
        if self.at < ZERO:
            raise ParameterError("at", "must be 0s or more")

    @property
    def task_seconds(self) -> float:
        """Seconds of slot time that its tasks take together."""
        return math.fsum(stage.task_seconds for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What runs on a cluster. Jobs that overlap share the slots, the one submitted first comes first.

    Attributes:
        jobs: in any order.
        migrate: whether a worker that leaves hands its shuffle files to the others (`spark.storage.decommission.*`);
            else they are lost, and their tasks run again when a stage needs them.
    """

    jobs: tuple[BatchJob, ...]
    migrate: bool = True

    def __post_init__(self) -> None:
        if not self.jobs:
            raise ParameterError("jobs", "must have at least one")

    @property
    def task_seconds(self) -> float:
        """Seconds of slot time that all tasks take together."""
        return math.fsum(job.task_seconds for job in self.jobs)

    @property
    def longest(self) -> float:
        """A time after which all of it is done on one slot, with much to spare, seconds."""
        driver = math.fsum(stage.driver_time.total_seconds() for job in self.jobs for stage in job.stages)
        return max(job.at for job in self.jobs).total_seconds() + 2 * (self.task_seconds + driver) + SLACK


@dataclass(frozen=True, slots=True)
class Sample:
    """What a cluster showed at a time: seconds since the beginning, tasks, slots, and workers running or starting."""

    after: float
    pending: int
    running: int
    slots: int
    billed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """What became of the jobs.

    Attributes:
        times: seconds from submission to end of each job, in the workload's order; None: it was not done in time.
        worker_seconds: of workers running or starting, until the last job has ended; after it those above the least
            size, while they are given back.
        finished: tasks that have ended, those included that ran again.
        repeated: tasks that were to run again because their shuffle files were lost.
        changes: of size that were requested.
        samples: at each decision; empty where there is none.
    """

    times: tuple[float | None, ...]
    worker_seconds: float
    finished: int
    repeated: int
    changes: int
    samples: tuple[Sample, ...]


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker: starting, up, or leaving as soon as its tasks have ended."""

    registers: float
    up: bool = False
    leaving: bool = False
    running: int = 0
    idle_since: float = 0.0


@dataclass(slots=True, eq=False)
class _Stage:
    """A stage as it runs.

    Attributes:
        seconds: that a task takes.
        long, skew: this task takes so many times as long.
        shuffle: whether its tasks leave files.
        waiting: tasks that have not been started.
        running: how many run.
        finished: tasks that have ended, those that ran again included.
        spent: seconds that these took together.
        launched: when its first task was started.
        files: task -> the worker with its shuffle files.
    """

    seconds: float
    long: int
    skew: float
    shuffle: bool
    waiting: deque[int]
    running: int = 0
    finished: int = 0
    spent: float = 0.0
    launched: float = math.inf
    files: dict[int, _Worker] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all its tasks have ended and no files of them are lost."""
        return not self.waiting and not self.running

    def remaining(self, waiting: int, now: float) -> float:
        """Seconds of slot time that so many waiting tasks and those that run need, as the source `spark` has them."""
        mean = self.spent / self.finished if self.finished else max(0.0, 2 * (now - self.launched))
        return (waiting + self.running / 2) * mean


@dataclass(slots=True, eq=False)
class _Job:
    """A job as it runs.

    Attributes:
        stages: in their order.
        driver_times: seconds that the driver works before each.
        at: when it is submitted.
        current: the stage that it is at.
        begins: when the driver lets that stage begin.
        ended: when the last one was done.
    """

    stages: list[_Stage]
    driver_times: list[float]
    at: float
    current: int = 0
    begins: float = 0.0
    ended: float | None = None

    def runnable(self) -> int:
        """The stage whose tasks can start: the current one, or one before it whose lost files it needs."""
        stages, number = self.stages, self.current
        while number and stages[number].waiting and stages[number - 1].shuffle and not stages[number - 1].done:
            number -= 1
        return number


class BatchCluster:
    """One simulated cluster under a workload. `advance` it, `observe` it, `scale` it.

    The least size of the limits is up at the beginning, and is what it goes back to. Of the plant only the time that
    workers take to start counts.
    """

    def __init__(self, workload: Workload, plant: PlantSpec, seed: int, limits: Limits, slots: int) -> None:
        self._plant = plant
        self._least = self.desired = limits.minimum
        self._slots = slots
        self._migrate = workload.migrate
        # Each has its own, so that the long tasks are the same ones whoever scales the cluster.
        self._starts = Random(f"{seed} starts")  # noqa: S311 - noise of a simulation, nothing secret
        self._places = Random(f"{seed} places")  # noqa: S311
        skews = Random(f"{seed} skews")  # noqa: S311
        self.now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._workers = [_Worker(0.0, up=True) for _ in range(self.desired)]
        self._jobs = [
            _Job(
                [
                    _Stage(
                        stage.task_time.total_seconds(),
                        skews.randrange(stage.tasks),
                        stage.skew,
                        stage.shuffle and number < len(job.stages),
                        deque(range(stage.tasks)),
                    )
                    for number, stage in enumerate(job.stages, 1)
                ],
                [stage.driver_time.total_seconds() for stage in job.stages],
                job.at.total_seconds(),
            )
            for job in workload.jobs
        ]
        self._active: list[_Job] = []
        self._left = len(self._jobs)
        for job in self._jobs:
            self._at(job.at, partial(self._submit, job))
        self._worker_seconds = 0.0
        self._changes = 0
        self._repeated = 0
        self._samples: list[Sample] = []

    @property
    def done(self) -> bool:
        """Whether every job has ended."""
        return not self._left

    @property
    def active(self) -> bool:
        """Whether a job runs."""
        return bool(self._active)

    @property
    def billed(self) -> int:
        """Workers running or starting."""
        return len(self._workers)

    @property
    def up(self) -> int:
        """Workers that take tasks."""
        return sum(worker.up and not worker.leaving for worker in self._workers)

    @property
    def pending(self) -> int:
        """Tasks that wait for a slot."""
        return sum(len(stage.waiting) for stage in self._runnable())

    @property
    def running(self) -> int:
        """Tasks that run."""
        return sum(stage.running for job in self._active for stage in job.stages)

    def advance(self, until: float) -> None:
        """Let everything happen up to this time, seconds since the beginning."""
        while self._events and self._events[0][0] <= until:
            at, _, happens = heappop(self._events)
            self._pass(at)
            happens()
            self._launch()
        self._pass(until)

    def observe(self, start: datetime = START) -> Observation:
        """What real sources would show now."""
        now = start + timedelta(seconds=self.now)
        self._samples.append(Sample(self.now, self.pending, self.running, self.up * self._slots, self.billed))
        runnable = self._runnable()
        holders = len(self._holders())
        stages = [stage for job in self._active for stage in job.stages]
        values = (
            self.pending,
            self.running,
            math.fsum(each.remaining(len(each.waiting) if each in runnable else 0, self.now) for each in stages),
            # One at least has to stay where the others' files go to it.
            min(1, holders) if self._migrate else holders,
            self.now - min((job.at for job in self._active), default=self.now),
        )
        slots = self.up * self._slots
        running = EngineStatus(job=JobState.RUNNING, slots=slots, parallelism=slots)
        return Observation(
            at=now,
            desired=self.desired,
            ready=sum(worker.up for worker in self._workers),
            metrics={name: Reading(float(value), now) for name, value in zip(METRICS, values, strict=True)},
            engine=running if self._active else EngineStatus(job=JobState.IDLE),
        )

    def scale(self, size: int) -> None:
        """Request a size. Of those that leave, the ones that are starting go first, then those with least to lose."""
        if size == self.desired:
            return
        self.desired = size
        self._changes += 1
        staying = [worker for worker in self._workers if not worker.leaving]
        for _ in range(size - len(staying)):
            worker = _Worker(self.now + start_up(self._plant, self._starts))
            self._workers.append(worker)
            if worker.registers < math.inf:
                self._at(worker.registers, partial(self._register, worker))
        holders = set() if self._migrate else self._holders()
        # Of equal ones the latest goes first.
        staying.sort(key=lambda worker: (worker.up, worker in holders, worker.running, -worker.registers))
        for worker in staying[: max(0, len(staying) - size)]:
            self._release(worker)
        self._launch()

    def give_back_idle(self, least: int, *, tracking: bool) -> None:
        """Release what has been idle for `IDLE_TIMEOUT`, but keep `least`, and with `tracking` those with files."""
        before = self.now - IDLE_TIMEOUT
        idle = [worker for worker in self._workers if worker.up and not worker.running and worker.idle_since <= before]
        if idle and tracking:
            holders = self._holders()
            idle = [worker for worker in idle if worker not in holders]
        for worker in idle[: max(0, self.up - least)]:
            self.desired -= 1
            self._release(worker)
        self._launch()

    def result(self) -> BatchRun:
        """What happened so far."""
        return BatchRun(
            times=tuple([None if job.ended is None else job.ended - job.at for job in self._jobs]),
            worker_seconds=self._worker_seconds,
            finished=sum(stage.finished for job in self._jobs for stage in job.stages),
            repeated=self._repeated,
            changes=self._changes,
            samples=tuple(self._samples),
        )

    def _at(self, when: float, happens: Callable[[], object]) -> None:
        heappush(self._events, (when, next(self._order), happens))

    def _pass(self, until: float) -> None:
        counted = self.billed if self._left else max(0, self.billed - self._least)
        self._worker_seconds += counted * (until - self.now)
        self.now = until

    def _runnable(self) -> list[_Stage]:
        """Stages whose tasks can start, in the order of their jobs."""
        return [job.stages[job.runnable()] for job in self._active if job.begins <= self.now]

    def _submit(self, job: _Job) -> None:
        self._active.append(job)
        self._begin(job)

    def _begin(self, job: _Job) -> None:
        """The driver works on what comes before the current stage."""
        job.begins = self.now + job.driver_times[job.current]
        self._at(job.begins, lambda: None)  # the tasks are launched after every event

    def _register(self, worker: _Worker) -> None:
        if worker in self._workers:
            worker.up = True
            worker.idle_since = self.now

    def _launch(self) -> None:
        """Start what can run, one task after the other on each worker with a free slot, in a drawn order."""
        waiting = [stage for stage in self._runnable() if stage.waiting]
        if not waiting:
            return
        free = [w for w in self._workers if w.up and not w.leaving and w.running < self._slots]
        self._places.shuffle(free)
        offers = deque(free)
        for stage in waiting:
            if offers:
                stage.launched = min(stage.launched, self.now)
            while stage.waiting and offers:
                worker = offers.popleft()
                task = stage.waiting.popleft()
                seconds = stage.seconds * (stage.skew if task == stage.long else 1.0)
                worker.running += 1
                stage.running += 1
                self._at(self.now + seconds, partial(self._finish, stage, task, worker, seconds))
                if worker.running < self._slots:
                    offers.append(worker)

    def _finish(self, stage: _Stage, task: int, worker: _Worker, seconds: float) -> None:
        stage.running -= 1
        stage.finished += 1
        stage.spent += seconds
        if stage.shuffle:
            stage.files[task] = worker
        worker.running -= 1
        if not worker.running:
            worker.idle_since = self.now
            if worker.leaving:
                self._leave(worker)
        for job in self._active:
            if job.stages[job.current] is stage and stage.done:
                self._complete(job)
                break

    def _complete(self, job: _Job) -> None:
        """The current stage is done: the next one begins, or the job has ended."""
        if not job.stages[job.current].shuffle:
            # Nothing reads what the stages before it have left.
            for stage in job.stages:
                stage.files.clear()
        if job.current == len(job.stages) - 1:
            job.ended = self.now
            self._active.remove(job)
            self._left -= 1
        else:
            job.current += 1
            self._begin(job)

    def _holders(self) -> set[_Worker]:
        """Workers with shuffle files that what runs may still read."""
        return {worker for job in self._active for stage in job.stages for worker in stage.files.values()}

    def _release(self, worker: _Worker) -> None:
        worker.leaving = True
        if not worker.running:
            self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        """A worker is gone. Its files are on others, or their tasks have to run again."""
        self._workers.remove(worker)
        others = [other for other in self._workers if other.up and not other.leaving] if self._migrate else []
        heirs = itertools.cycle(others)
        for stage in (stage for job in self._active for stage in job.stages):
            for task in [task for task, holder in stage.files.items() if holder is worker]:
                if others:
                    stage.files[task] = next(heirs)
                else:
                    del stage.files[task]
                    stage.waiting.append(task)
                    self._repeated += 1


def run(
    spec: ClusterSpec,
    workload: Workload,
    plant: PlantSpec,
    seed: int,
    record: Keep | None = None,
    decide: Decide = step,
) -> BatchRun:
    """Let a cluster's decisions scale a simulated one under batch jobs, until it has its least size after the last job.

    Args:
        spec: of the cluster; the first decision is made after one interval, at the least size.
        workload: what runs.
        plant: how long workers take to start.
        seed: of all random draws.
        record: receives the record of every decision.
        decide: makes the decisions.
    """
    cluster = BatchCluster(workload, plant, seed, spec.limits, spec.slots_per_replica)
    interval = spec.interval.total_seconds()
    state = ClusterState()
    until = workload.longest
    while True:
        cluster.advance(cluster.now + interval)
        if cluster.done:
            until = min(until, cluster.now + GIVE_BACK)
            if cluster.billed <= spec.limits.minimum:
                break
        if cluster.now >= until:
            break
        observation = cluster.observe()
        state, decision = decide(spec, state, observation)
        if record is not None:
            record(Record(state.past[-1] if state.past else observation, decision))
        cluster.scale(decision.desired)
    return cluster.result()


def run_dynamic_allocation(
    limits: Limits, slots: int, workload: Workload, plant: PlantSpec, seed: int, *, tracking: bool = True
) -> BatchRun:
    """The same under Spark's dynamic allocation with its defaults; executors stand for workers, and start like them.

    The rule of `ExecutorAllocationManager` and `ExecutorMonitor` (apache/spark, core/src/main/scala/org/apache/spark/
    ExecutorAllocationManager.scala and scheduler/dynalloc/ExecutorMonitor.scala). The target is
    ceil((pending + running tasks) / slots) at most. While tasks wait it grows by 1, 2, 4, 8 ... executors every
    `BACKLOG_TIMEOUT`; the steps begin with 1 again when the queue is empty or one was cut short. A lower target
    cancels requests only; an executor is given back when it has been idle for `IDLE_TIMEOUT`. Those above the least
    number end with the application. Files that nothing reads any more are taken to be gone at once; Spark's cleaner
    waits for a garbage collection of the driver.

    Args:
        limits: minExecutors, which are also the initial ones of each application, and maxExecutors.
        slots: tasks that an executor runs at a time.
        workload: what runs.
        plant: how long workers take to start.
        seed: of all random draws.
        tracking: `spark.dynamicAllocation.shuffleTracking.enabled`: an executor with shuffle files of what runs stays.
            Without it one stays in any case, for the others' files to go to.
    """
    cluster = BatchCluster(workload, plant, seed, limits, slots)
    target, growth, grows_at = limits.minimum, 1, math.inf
    least = limits.minimum if tracking else max(1, limits.minimum)
    until = workload.longest
    while True:
        cluster.advance(cluster.now + BACKLOG_TIMEOUT)
        if cluster.done or cluster.now >= until:
            break
        if not cluster.active:
            target, growth, grows_at = limits.minimum, 1, math.inf
            cluster.scale(target)
            continue
        pending = cluster.pending
        needed = -(-(pending + cluster.running) // slots)
        if not pending:
            growth, grows_at = 1, math.inf
        if needed < target:
            target, growth = max(needed, limits.minimum), 1
        elif cluster.now >= grows_at:
            grown = max(min(max(target, cluster.up) + growth, needed, limits.maximum), limits.minimum)
            growth = growth * 2 if grown - target == growth else 1
            target = grown
            grows_at = cluster.now + BACKLOG_TIMEOUT
        elif pending and grows_at == math.inf:
            grows_at = cluster.now + BACKLOG_TIMEOUT
        cluster.scale(max(target, cluster.up))
        cluster.give_back_idle(least, tracking=tracking)
    return cluster.result()
