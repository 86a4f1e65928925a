"""A simulated cluster under batch jobs: stages of tasks that wait for slots, as Spark schedules them.

Tasks start first come, first served (`spark.scheduler.mode` FIFO), spread over the workers with free slots. Workers
join after the plant's start-up time, and leave when their running tasks have ended, as decommissioned ones do.
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
"""A run ends this many seconds after one slot would have done all tasks twice: a job not done then never will be."""

GIVE_BACK = 600.0
"""After the last job, a run goes on until the cluster has its minimum size, but at most for this many seconds."""

BACKLOG_TIMEOUT = 1.0
"""Default of `spark.dynamicAllocation.schedulerBacklogTimeout` and `sustainedSchedulerBacklogTimeout`, seconds."""

IDLE_TIMEOUT = 60.0
"""Default of `spark.dynamicAllocation.executorIdleTimeout`, seconds."""


MOST_TASKS = 1_000_000
"""The maximum number of tasks of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a job.

    Attributes:
        tasks: their number.
        task_time: how long a task takes.
        skew: one randomly drawn task takes this many times as long.
        shuffle: whether its tasks leave shuffle files that the next stage reads; the last stage of a job never does.
        driver_time: how long the driver works alone before the stage.
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
        at: when it is submitted, as a time since the beginning.
        name: its name in tables; empty: its number.
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
    """The jobs of a cluster. Jobs that overlap share the slots; the job that was submitted first has priority.

    Attributes:
        jobs: the jobs, in any order.
        migrate: whether a worker that leaves hands its shuffle files to the others (`spark.storage.decommission.*`);
            otherwise the files are lost, and their tasks run again when a stage needs them.
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
        """Seconds after which one slot has done all jobs, with a wide margin."""
        driver = math.fsum(stage.driver_time.total_seconds() for job in self.jobs for stage in job.stages)
        return max(job.at for job in self.jobs).total_seconds() + 2 * (self.task_seconds + driver) + SLACK


@dataclass(frozen=True, slots=True)
class Sample:
    """A cluster at one time: seconds since the beginning, tasks, slots, and workers running or starting."""

    after: float
    pending: int
    running: int
    slots: int
    billed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """The result of a run.

    Attributes:
        times: seconds from submission to end of each job, in the workload's order; None: it was not done in time.
        worker_seconds: the time of workers running or starting until the last job has ended; after that only of workers
            above the minimum size, until they are given back.
        finished: tasks that have ended, including those that ran again.
        repeated: tasks that had to run again because their shuffle files were lost.
        changes: requested changes of size.
        samples: one for each decision; empty without decisions.
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
        seconds: seconds that a task takes.
        long, skew: the number of the slow task, and how many times as long it takes.
        shuffle: whether its tasks leave files.
        waiting: tasks that have not been started.
        running: the number of running tasks.
        finished: tasks that have ended, including those that ran again.
        spent: seconds that the finished tasks took together.
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
        """Seconds of slot time that the waiting and the running tasks need, estimated as the source `spark` does."""
        mean = self.spent / self.finished if self.finished else max(0.0, 2 * (now - self.launched))
        return (waiting + self.running / 2) * mean


@dataclass(slots=True, eq=False)
class _Job:
    """A job as it runs.

    Attributes:
        stages: the stages in their order.
        driver_times: seconds that the driver works before each stage.
        at: when the job is submitted.
        current: the number of the current stage.
        begins: when the driver lets the current stage begin.
        ended: when the last stage was done.
    """

    stages: list[_Stage]
    driver_times: list[float]
    at: float
    current: int = 0
    begins: float = 0.0
    ended: float | None = None

    def runnable(self) -> int:
        """The stage whose tasks can start: the current one, or an earlier one whose lost files it needs."""
        stages, number = self.stages, self.current
        while number and stages[number].waiting and stages[number - 1].shuffle and not stages[number - 1].done:
            number -= 1
        return number


class BatchCluster:
    """One simulated cluster under a workload, with the methods `advance`, `observe` and `scale`.

    It begins with the minimum size of the limits, and goes back to it. It uses only the start-up time of the plant.
    """

    def __init__(self, workload: Workload, plant: PlantSpec, seed: int, limits: Limits, slots: int) -> None:
        self._plant = plant
        self._least = self.desired = limits.minimum
        self._slots = slots
        self._migrate = workload.migrate
        # Separate generators, so that the slow tasks are the same, however the cluster is scaled.
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
        """Process all events up to this time, in seconds since the beginning."""
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
            # With migration, one worker is enough: the files of the others can move to it.
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
        """Request a size. Workers that are still starting leave first, then those with the least to lose."""
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
        # Among equal workers, the latest leaves first.
        staying.sort(key=lambda worker: (worker.up, worker in holders, worker.running, -worker.registers))
        for worker in staying[: max(0, len(staying) - size)]:
            self._release(worker)
        self._launch()

    def give_back_idle(self, least: int, *, tracking: bool) -> None:
        """Release workers idle for `IDLE_TIMEOUT`, but keep `least` workers, and with `tracking` those with files."""
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
        """The result so far."""
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
        """Begin the current stage: the driver works alone first."""
        job.begins = self.now + job.driver_times[job.current]
        self._at(job.begins, lambda: None)  # the tasks are launched after every event

    def _register(self, worker: _Worker) -> None:
        if worker in self._workers:
            worker.up = True
            worker.idle_since = self.now

    def _launch(self) -> None:
        """Start waiting tasks, one at a time on each worker with a free slot; the order of the workers is drawn."""
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
        """Complete the current stage: begin the next one, or end the job."""
        if not job.stages[job.current].shuffle:
            # Nothing reads the files of the stages before it any more.
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
        """Workers with shuffle files that a running job may still read."""
        return {worker for job in self._active for stage in job.stages for worker in stage.files.values()}

    def _release(self, worker: _Worker) -> None:
        worker.leaving = True
        if not worker.running:
            self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        """Remove a worker. Its files move to other workers, or the tasks of these files have to run again."""
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
    """Let decisions scale a simulated cluster under batch jobs, until it has its minimum size after the last job.

    Args:
        spec: the spec of the cluster; the first decision is made after one interval, at the minimum size.
        workload: the jobs.
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
    """Run the jobs under Spark's dynamic allocation with its defaults. Executors are workers, and start like them.

    This is the rule of `ExecutorAllocationManager` and `ExecutorMonitor` (apache/spark, core/src/main/scala/org/apache/
    spark/ExecutorAllocationManager.scala and scheduler/dynalloc/ExecutorMonitor.scala). The target is at most
    ceil((pending + running tasks) / slots). While tasks wait, it grows by 1, 2, 4, 8 ... executors every
    `BACKLOG_TIMEOUT`. The growth begins with 1 again when the queue is empty or a step was cut short. A lower target
    only cancels requests; an executor is given back when it has been idle for `IDLE_TIMEOUT`. Executors above the
    minimum end with the application. Here, files that nothing reads any more are removed at once; Spark's cleaner waits
    for a garbage collection of the driver.

    Args:
        limits: minExecutors, which is also the initial number of each application, and maxExecutors.
        slots: tasks that an executor runs at a time.
        workload: the jobs.
        plant: how long workers take to start.
        seed: of all random draws.
        tracking: `spark.dynamicAllocation.shuffleTracking.enabled`: an executor with shuffle files of a running job
            stays. Without it, at least one executor stays, so that the files of the others can move to it.
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
