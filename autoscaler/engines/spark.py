"""Engine `spark`: the state of a streaming query or of batch jobs, and the checks of `autoscaler doctor`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from autoscaler.clients.spark import (
    Executor,
    Master,
    Report,
    SparkApi,
    SparkParameters,
    Stage,
    Work,
    active_application,
    find_application,
    find_run,
    milliseconds,
    seconds,
)
from autoscaler.clients.spark_progress import Run
from autoscaler.clients.spark_work import MIGRATION, Memory, keeps_files, migrates, observe, shuffle_hosts
from autoscaler.core.model import EngineStatus, JobState
from autoscaler.ports import EdgeError, Finding, RefusedError, Severity, Shared, Worker

WIDEST_STAGE_KEPT = 60.0
SLOW_DRAIN = 5.0
SHUFFLE_COST = 1e6
"""Shuffle files add this to the cost of a worker: more than any number of tasks."""

ENDED = {"FINISHED": JobState.STOPPED, "KILLED": JobState.STOPPED, "FAILED": JobState.FAILED}

log = logging.getLogger("autoscaler.engines")


@dataclass(frozen=True, kw_only=True)
class Spark(SparkParameters):
    """A Spark Structured Streaming query or batch jobs, on a standalone cluster.

    The job calls `autoscaler.injob.report(spark)`. The source `spark` has the same parameters.

    Attributes:
        app: the application's name or id; a name survives a restart of the driver.
        report: address of the report in the driver, such as http://driver:4050.
        master: address of the standalone Master's web UI, such as http://master:8080; default: not used.
        driver: address of the driver's web UI, such as http://driver:4040; default: the address in the report.
        batch: whether the application runs batch jobs instead of streaming queries; default false.
        query: name of the streaming query; default: the only one.
        window: time over which the source averages; default 15s. The engine does not use it.
        timeout: time-out for all requests of a status together; each single request gets 45 % of it; default 3s.
        master_conf: settings of the Master that the doctor cannot see, each `key=value`; default none.
        worker_conf: settings of the Workers that the doctor cannot see, each `key=value`; default none.
    """

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[SparkEngine]:
        """Open the engine. The first `describe` sends the first request."""
        yield SparkEngine(SparkApi(shared, self), self)


class SparkEngine:
    """The connected engine."""

    def __init__(self, api: SparkApi, parameters: SparkParameters) -> None:
        self._api = api
        self._parameters = parameters
        self._widest = WidestStage()
        self._memory = Memory()

    async def describe(self) -> EngineStatus:
        """The state of the job. Raises EdgeError when the driver or the Master cannot be reached."""
        if self._parameters.batch:
            work = await self._work()
            # Registered slots count as used, because Spark gives waiting tasks to any free slot.
            return (
                EngineStatus(job=JobState.IDLE)
                if work is None
                else EngineStatus(job=JobState.RUNNING, slots=work.slots, parallelism=work.slots)
            )
        deadline = time.monotonic() + self._parameters.timeout.total_seconds() * 0.95
        master, reported = await asyncio.gather(self._api.master(), self._api.report(), return_exceptions=True)
        if isinstance(master, BaseException):
            raise master
        app_id: str | None = None
        if master is not None:
            application = find_application(master, self._parameters.app, self._parameters.master)
            if application is None:
                return EngineStatus(job=JobState.STOPPED)
            if application.state != "RUNNING":
                return EngineStatus(job=ENDED.get(application.state, JobState.STARTING))
            app_id = application.id
        if isinstance(reported, BaseException):
            raise reported
        report = reported.value
        if app_id is not None:
            self._api.check_driver(report, app_id)
        run = find_run(report, self._parameters.query)
        executors, partitions = await asyncio.gather(self._api.executors(), self._partitions(run, deadline))
        return status(report, run, executors.value, partitions)

    async def workers(self) -> Sequence[Worker]:
        """The Master's workers that may hold work: alive, or draining with executors of the application still on them.

        The cost of a worker is the number of its cores in use plus the number of its running tasks. With `batch`, it is
        far higher if the worker has shuffle files on disk that may still be read.

        Raises:
            RefusedError: no Master is configured.
            EdgeError: the Master or the driver cannot be reached.
        """
        master = await self._api.master()
        if master is None:
            raise RefusedError("workers are known only with the parameter master, the address of the Master's web UI")
        if self._parameters.batch:
            work = await self._work()
            if work is None:
                return workers(master, [])
            return workers(master, work.executors, shuffle_hosts(self._memory, work))
        application = find_application(master, self._parameters.app, self._parameters.master)
        running = application is not None and application.state == "RUNNING"
        executors = (await self._api.executors()).value if running else []
        return workers(master, executors)

    async def drain(self, worker: Worker) -> None:
        """Decommission a worker, and with it all workers on its host. Running tasks finish, no task fails. Idempotent.

        Raises:
            RefusedError: the Master or the application runs without decommissioning.
            EdgeError: the Master or the driver cannot be reached.
        """
        master = await self._api.master()
        hosts = [] if master is None else [w.host for w in master.workers if w.id == worker.id and w.state == "ALIVE"]
        if master is not None and not hosts:
            return
        application = None if master is None else find_application(master, self._parameters.app, None)
        if application is not None and application.state == "RUNNING":
            settings = (await self._api.report()).value.settings
            if not _is_true(settings, "spark.decommission.enabled"):
                raise RefusedError(
                    f"the application {self._parameters.app!r} runs without spark.decommission.enabled=true, so a "
                    "drained worker would keep its executor; start the job with it"
                )
        await self._api.decommission(hosts[0] if hosts else "")

    async def diagnose(self) -> Sequence[Finding]:
        """Find settings that make scaling ineffective or dangerous. Raises EdgeError when they cannot be read."""
        batch, app = self._parameters.batch, self._parameters.app
        master = await self._api.master()
        active = not batch or master is None or active_application(master, app, self._parameters.master) is not None
        # Between batch jobs there is no driver to poll, but the cluster can still be examined.
        report = (await self._api.report()).value if active else None
        run = None if batch or report is None else find_run(report, self._parameters.query)
        deadline = time.monotonic() + self._parameters.timeout.total_seconds()
        unreadable: list[str] = []
        master_settings: dict[str, str] | None = None
        try:
            master_settings = await self._api.master_settings()
        except EdgeError as error:
            unreadable.append(str(error))
        return examine(
            Facts(
                settings={} if report is None else report.settings,
                run=run,
                master=master,
                executors=[] if report is None else (await self._api.executors()).value,
                partitions=await self._partitions(run, deadline),
                master_settings=_declared(master_settings, self._parameters.master_conf),
                worker_settings=_declared(None, self._parameters.worker_conf),
                unreadable=tuple(unreadable),
                batch=batch,
                active=active,
            )
        )

    async def _work(self) -> Work | None:
        """The work of the batch application, after an update of the memory; None when no application is active."""
        fetched = await self._api.work()
        if fetched.value is None:
            self._memory = Memory()
            return None
        self._memory = observe(self._memory, fetched.value, fetched.at)
        return fetched.value

    async def _partitions(self, run: Run | None, deadline: float) -> int | None:
        """The tasks of the query's widest stage in the last minute, or None if no stage was seen."""
        if run is None:
            return None
        now = time.monotonic()
        self._widest.forget(run.run, now)
        for stage in (await self._api.active_stages()).value:
            if run.run in (stage.description or ""):
                self._widest.note(stage.tasks, now)
        if self._widest.value is None and now - self._widest.searched > WIDEST_STAGE_KEPT:
            self._widest.searched = now
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    for tasks in await self._last_stages(run):
                        self._widest.note(tasks, now)
            except (EdgeError, TimeoutError) as error:
                log.info(
                    "the number of tasks of a batch is not known yet",
                    extra={"app": self._parameters.app, "error": str(error) or "no time left"},
                )
        return self._widest.value

    async def _last_stages(self, run: Run) -> list[int]:
        mine = [job for job in await self._api.completed_jobs() if job.group == run.run]
        newest = max(mine, key=lambda job: job.number, default=None)
        stages: list[Stage] = []
        for number in newest.stages if newest else ():
            stages += await self._api.stage(number)
        return [stage.tasks for stage in stages]


@dataclass(slots=True)
class WidestStage:
    """The widest stage of the last minute, remembered for polls at which no stage runs."""

    run: str = ""
    seen: dict[int, float] = field(default_factory=dict)
    searched: float = float("-inf")

    @property
    def value(self) -> int | None:
        """The number of its tasks, or None."""
        return max(self.seen, default=None)

    def note(self, tasks: int, now: float) -> None:
        """Record the number of tasks of a stage."""
        self.seen[tasks] = now

    def forget(self, run: str, now: float) -> None:
        """Drop stages of another run and old stages."""
        if run != self.run:
            self.run, self.seen, self.searched = run, {}, float("-inf")
        self.seen = {tasks: at for tasks, at in self.seen.items() if now - at <= WIDEST_STAGE_KEPT}


def status(report: Report, run: Run | None, executors: Sequence[Executor], partitions: int | None) -> EngineStatus:
    """The status of a running application. Times are on the driver's clock."""
    live = [executor for executor in executors if executor.active]
    slots = sum(executor.slots for executor in live)
    parallelism = sum(executor.slots for executor in live if executor.tasks)
    if run is None:
        return EngineStatus(job=JobState.STARTING, slots=slots, parallelism=parallelism)
    last = run.progress[-1] if run.progress else None
    state = last.state_partitions if last else None
    return EngineStatus(
        job=job_state(run),
        slots=slots,
        parallelism=parallelism,
        # A stage that reads the source may have more tasks than the state has partitions, and can use more slots.
        max_parallelism=None if state is None else max(state, partitions or 0),
        partitions=partitions,
        running_since=datetime.fromtimestamp(run.started, UTC),
        last_checkpoint=None if last is None else datetime.fromtimestamp(last.end, UTC),
        restarts=max(run.restarts, sum(1 for other in report.queries if other.query == run.query) - 1),
    )


def workers(master: Master, executors: Sequence[Executor], holding: frozenset[str] = frozenset()) -> list[Worker]:
    """The workers that may hold work, from the Master and the driver. `holding`: hosts with needed shuffle files."""
    found = []
    for worker in master.workers:
        here = [executor for executor in executors if executor.active and executor.host == worker.host]
        # A decommissioned Worker stays registered until its process stops, so look at its executors.
        if worker.state == "ALIVE" or (worker.state == "DECOMMISSIONED" and here):
            # The driver counts a new task before it subtracts the previous one.
            tasks = sum(min(executor.running, executor.slots) for executor in here)
            hosts = {worker.host, urlsplit(worker.ui).hostname}
            cost = worker.used + tasks + (SHUFFLE_COST if worker.host in holding else 0.0)
            found.append(Worker(worker.id, frozenset(host for host in hosts if host), cost))
    return found


def job_state(run: Run) -> JobState:
    """The state of a query's run in a running application."""
    if run.terminated is None:
        return JobState.RUNNING
    return JobState.FAILED if run.exception else JobState.STOPPED


# ----------------------------------------------------------------------------------------------------------
# the doctor


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that the doctor examines.

    Attributes:
        settings: settings of the application in the report; a missing one has its default.
        run: the run of the query, or None.
        master: the Master's state, or None when no Master is configured.
        executors: executors, including dead ones.
        partitions: tasks of the widest stage, or None when unknown.
        master_settings: settings of the Master, or None when they cannot be seen and are not declared.
        worker_settings: settings of the Workers, or None when they are not declared; they cannot be seen.
        unreadable: why the settings of the Master could not be read.
        batch: whether the application runs batch jobs.
        active: whether the application is active; otherwise its settings and executors are unknown.
    """

    settings: Mapping[str, str]
    run: Run | None = None
    master: Master | None = None
    executors: Sequence[Executor] = ()
    partitions: int | None = None
    master_settings: Mapping[str, str] | None = None
    worker_settings: Mapping[str, str] | None = None
    unreadable: tuple[str, ...] = ()
    batch: bool = False
    active: bool = True


def _declared(seen: Mapping[str, str] | None, declared: Sequence[str]) -> dict[str, str] | None:
    """The settings that were read, completed by those in the configuration; None when there are neither."""
    if seen is None and not declared:
        return None
    stated = dict(setting.split("=", 1) for setting in declared)
    return {**stated, **(seen or {})}


def _is_true(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "false").strip().lower() == "true"


def locality(facts: Facts) -> Iterator[Finding]:
    """With a locality wait, stateful tasks stay on executors that hold their state, so new workers get no tasks."""
    if facts.run is None or not facts.run.progress or facts.run.progress[-1].state_partitions is None:
        return
    general = facts.settings.get("spark.locality.wait")
    waits = [
        milliseconds(facts.settings.get(f"spark.locality.wait.{level}", general), 3.0)
        for level in ("process", "node", "rack")
    ]
    if any(wait is None or wait > 0 for wait in waits):
        yield Finding(
            Severity.ERROR,
            "spark.locality.wait",
            f"the query has state and waits {general or '3s (the default)'} for the executor that holds it",
            "new workers get almost nothing to do while batches are short (measured: 533 rows/s with one worker and "
            "with two, against 460 and 920 without the wait), and losing an executor costs 8-15 s instead of 3 s",
            "start the job with spark.locality.wait=0s",
        )


def decommission(facts: Facts) -> Iterator[Finding]:
    """For a drain without failed tasks, application, Master and Workers need this setting. Here: the application."""
    key = "spark.decommission.enabled"
    if not _is_true(facts.settings, key):
        yield Finding(
            Severity.ERROR,
            "decommissioning (application)",
            f"the application runs without {key}=true",
            "an executor on a drained worker stays registered: the driver sends it no more tasks, but it keeps its "
            "memory; a drain never ends, and tasks are lost when the worker is finally stopped",
            f"start the job with {key}=true",
        )


def decommission_cluster(facts: Facts) -> Iterator[Finding]:
    """The same for the Master and its Workers."""
    key = "spark.decommission.enabled"
    if facts.master is not None and facts.master_settings is None:
        yield Finding(
            Severity.INFO,
            "decommissioning (master)",
            f"whether the Master runs with {key}=true cannot be seen"
            + "".join(f" ({why})" for why in facts.unreadable),
            "without it the Master cannot drain a worker, which then loses its tasks",
            f"check SPARK_MASTER_OPTS, and declare it: master_conf: [{key}=true]",
        )
    elif facts.master_settings is not None and not _is_true(facts.master_settings, key):
        yield Finding(
            Severity.ERROR,
            "decommissioning (master)",
            f"the Master runs without {key}=true",
            "a drained worker is not recognised: executors may be placed on it again, and POST /workers/kill is "
            "absent; a task lost on it counts towards spark.task.maxFailures",
            f"start the Master with SPARK_MASTER_OPTS=-D{key}=true",
        )
    if facts.worker_settings is None:
        yield Finding(
            Severity.INFO,
            "decommissioning (workers)",
            f"whether the Workers run with {key}=true cannot be seen: Spark does not show the settings of a Worker",
            "without it, a Worker ignores the request to drain, and stopping it fails its running task",
            f"check SPARK_WORKER_OPTS, and declare it: worker_conf: [{key}=true]",
        )
    elif not _is_true(facts.worker_settings, key):
        yield Finding(
            Severity.ERROR,
            "decommissioning (workers)",
            f"the Workers are declared to run without {key}=true",
            "a Worker ignores the request to drain, and stopping it fails its running task",
            f"start the Workers with SPARK_WORKER_OPTS=-D{key}=true",
        )


def slow_drain(facts: Facts) -> Iterator[Finding]:
    """A drained executor that moves its blocks waits for the next check of their migration."""
    interval = seconds(facts.settings.get("spark.storage.decommission.replicationReattemptInterval"), 30.0)
    moving = facts.settings.get("spark.storage.decommission.enabled", "false").strip().lower() == "true"
    if (
        _is_true(facts.settings, "spark.decommission.enabled")
        and moving
        and (interval is None or interval > SLOW_DRAIN)
    ):
        yield Finding(
            Severity.WARNING,
            "spark.storage.decommission.replicationReattemptInterval",
            "a drained executor checks only every "
            + (f"{interval:g} s" if interval is not None else "so often")
            + " whether its blocks have moved",
            "each worker takes about 31 s to drain, against 4 s with 3 s, or 1.3 s without moving blocks",
            "spark.storage.decommission.replicationReattemptInterval=3s"
            + (
                ""
                if facts.batch
                else ", or spark.storage.decommission.enabled=false when the query keeps no cached data"
            ),
        )


def core_limit(facts: Facts) -> Iterator[Finding]:
    """Workers beyond a limit of cores are useless."""
    have = sum(executor.slots for executor in facts.executors if executor.active)
    limit = facts.settings.get("spark.cores.max")
    where, remedy = "spark.cores.max", "start the job without spark.cores.max"
    if limit is None and facts.master_settings is not None:
        limit = facts.master_settings.get("spark.deploy.defaultCores")
        where = "spark.deploy.defaultCores"
        remedy = "start the Master without spark.deploy.defaultCores"
    if limit is not None:
        yield Finding(
            Severity.WARNING,
            where,
            f"the application never takes more than {limit} cores (it has {have} slots now)",
            "workers beyond that cost money and get no executor",
            f"{remedy}, or keep the cluster's max at or below this limit",
        )


def timeouts(facts: Facts) -> Iterator[Finding]:
    """Workers send four heartbeats in their own time-out, but the Master uses its own time-out to declare them dead."""
    key = "spark.worker.timeout"
    if facts.master_settings is None:
        if facts.master is not None:
            yield Finding(
                Severity.INFO,
                key,
                "the Master's and the Workers' time-outs cannot be seen",
                "if the Master's is lower than four heartbeat intervals of the Workers, healthy workers flap between "
                "DEAD and ALIVE",
                f"set {key} to the same value on both and declare it in master_conf and worker_conf",
            )
        return
    master = facts.master_settings.get(key, "60")
    if facts.worker_settings is None:
        if master != "60":
            yield Finding(
                Severity.WARNING,
                key,
                f"the Master's is {master} s; the Workers' cannot be seen and is 60 s unless it was set",
                "with a lower one on the Master alone, healthy workers flap between DEAD and ALIVE every 30 s and "
                "batches take 17-19 s instead of 2 s",
                f"set {key}={master} in SPARK_WORKER_OPTS too, and declare it: worker_conf: [{key}={master}]",
            )
        return
    workers = facts.worker_settings.get(key, "60")
    if master.rstrip("s") != workers.rstrip("s"):
        yield Finding(
            Severity.ERROR,
            key,
            f"the Master's is {master} s and the Workers' is {workers} s",
            "if the Master's is lower, healthy workers flap between DEAD and ALIVE; if the Workers' is lower, a hung "
            "Worker is still detected only after the Master's time-out",
            f"set the same {key} in SPARK_MASTER_OPTS and SPARK_WORKER_OPTS",
        )
    elif master == "60":
        yield Finding(
            Severity.INFO,
            key,
            "the Master declares a worker dead after 60 s (the default)",
            "a hung worker stops the query for about 73 s, against 13 s with 10 s on both sides",
            f"set {key}=10 in SPARK_MASTER_OPTS and SPARK_WORKER_OPTS if workers hang",
        )


def unused_slots(facts: Facts) -> Iterator[Finding]:
    """Slots beyond the number of tasks of a batch are never used."""
    slots = sum(executor.slots for executor in facts.executors if executor.active)
    if facts.partitions is not None and facts.partitions < slots:
        yield Finding(
            Severity.WARNING,
            "tasks of a batch",
            f"the widest stage has {facts.partitions} tasks for {slots} slots",
            f"{slots - facts.partitions} slots never work, and capacity grows in steps of ceil(tasks / slots)",
            "give the source more partitions (Kafka: minPartitions), about three times the most slots you want, or "
            "lower the cluster's max",
        )


def real_time(facts: Facts) -> Iterator[Finding]:
    """A query in real-time mode holds a fixed number of slots."""
    if facts.run is not None and (facts.run.trigger or "").startswith("RealTimeTrigger"):
        yield Finding(
            Severity.ERROR,
            "real-time mode",
            "the query runs in real-time mode: all tasks of all its stages hold a slot all the time",
            "more slots are useless, fewer fail the query (CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT), and the loss of "
            "an executor restarts it",
            "do not scale this job (min = max = its tasks), or use a processing-time trigger",
        )


def retries(facts: Facts) -> Iterator[Finding]:
    """The Master ends an application after a number of lost executors."""
    key = "spark.deploy.maxExecutorRetries"
    if facts.master_settings is None:
        if facts.master is not None:
            yield Finding(
                Severity.INFO,
                key,
                "the Master's setting cannot be seen; it is 10 unless it was set",
                "then many lost executors within a short time end the application",
                f"start the Master with SPARK_MASTER_OPTS=-D{key}=-1, and declare it: master_conf: [{key}=-1]",
            )
        return
    limit = facts.master_settings.get(key, "10")
    if limit.strip() != "-1":
        yield Finding(
            Severity.WARNING,
            key,
            f"the Master fails an application after {limit} executors exited abnormally while none was running",
            "many lost executors within a short time end the application",
            f"start the Master with SPARK_MASTER_OPTS=-D{key}=-1",
        )


def dynamic(facts: Facts) -> Iterator[Finding]:
    """Spark's own dynamic allocation works against the autoscaler."""
    if _is_true(facts.settings, "spark.dynamicAllocation.enabled"):
        yield Finding(
            Severity.WARNING,
            "spark.dynamicAllocation.enabled",
            "Spark adds and removes executors of this application itself",
            "it removes executors after an idle time, which a micro-batch query never has: it holds executors forever, "
            "or kills and re-creates them between batches, and the autoscaler mistakes this for lost workers",
            "start the job with spark.dynamicAllocation.enabled=false",
        )


def idle_workers(facts: Facts) -> Iterator[Finding]:
    """A worker without an executor does no work."""
    if facts.master is None or not any(executor.active for executor in facts.executors):
        return
    empty = [worker.id for worker in facts.master.workers if worker.state == "ALIVE" and worker.used == 0]
    if empty:
        yield Finding(
            Severity.WARNING,
            "workers without an executor",
            f"{len(empty)} alive: {', '.join(empty[:3])}{' ...' if len(empty) > 3 else ''}",  # noqa: PLR2004
            "they cost money and do nothing",
            "if they did not just start: spark.executor.cores and spark.executor.memory must fit a worker, and "
            "spark.cores.max must not be reached",
        )


def no_lag(facts: Facts) -> Iterator[Finding]:
    """The metrics lag and arrivals need a source that reports its newest offset."""
    last = facts.run.progress[-1] if facts.run is not None and facts.run.progress else None
    for source in last.sources if last else ():
        if source.latest is None:
            yield Finding(
                Severity.WARNING,
                "lag",
                f"{source.description} does not report its newest offset",
                "the metrics lag, lag_seconds and arrivals cannot be read; they are missing, not zero",
                "use a source that reports it (Kafka, or a Python data source with reportLatestOffset), or read the "
                "lag elsewhere, and decide by utilization, or by saturation with a processing-time trigger",
            )


def lost_files(facts: Facts) -> Iterator[Finding]:
    """When a worker is lost, so are its shuffle files, and the tasks that wrote them run again."""
    if keeps_files(facts.settings) and not migrates(facts.settings):
        unset = [key for key, default in MIGRATION.items() if not _is_true({key: default, **facts.settings}, key)]
        yield Finding(
            Severity.WARNING,
            "shuffle files",
            f"they are lost with the worker that holds them (not true: {', '.join(unset)})",
            "workers that hold files of a running job are kept until it ends (the metric shuffle_workers), and if "
            "one is lost, its tasks run again",
            f"start the job with {', '.join(f'{key}=true' for key in MIGRATION)} and "
            "spark.storage.decommission.replicationReattemptInterval=3s, so that a drained worker moves its files",
        )


def dynamic_batch(facts: Facts) -> Iterator[Finding]:
    """Dynamic allocation and the autoscaler must not control the same cluster."""
    better = (
        "if Spark requests its machines itself (YARN, Kubernetes), its dynamic allocation is the better choice; "
        "do not configure this cluster here"
    )
    where = facts.settings.get("spark.master", "")
    if where.startswith(("yarn", "k8s")):
        yield Finding(
            Severity.WARNING,
            "spark.master",
            f"the application runs on {where}, where Spark requests its executors itself",
            "workers that the autoscaler adds are used only if Spark happens to request executors on them",
            f"use spark.dynamicAllocation.enabled=true: {better}",
        )
    elif _is_true(facts.settings, "spark.dynamicAllocation.enabled"):
        yield Finding(
            Severity.WARNING,
            "spark.dynamicAllocation.enabled",
            "Spark adds and removes executors of this application itself",
            "Spark and the autoscaler work against each other: Spark releases executors of workers that you pay for, "
            "and the autoscaler mistakes them for lost workers; new workers stay empty until Spark requests executors",
            f"start the job with spark.dynamicAllocation.enabled=false; {better}",
        )


def inactive(facts: Facts) -> Iterator[Finding]:  # noqa: ARG001 - all checks have the same signature
    """Between batch jobs, only the cluster can be examined."""
    yield Finding(
        Severity.INFO,
        "application",
        "it is not active, so its settings cannot be seen",
        "whether its workers can be drained without losing work is unknown",
        "run this check once more while a job runs",
    )


Check = Callable[[Facts], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    locality,
    decommission,
    decommission_cluster,
    slow_drain,
    core_limit,
    timeouts,
    unused_slots,
    real_time,
    retries,
    dynamic,
    idle_workers,
    no_lag,
)
BATCH_CHECKS: tuple[Check, ...] = (
    decommission,
    decommission_cluster,
    lost_files,
    slow_drain,
    core_limit,
    timeouts,
    retries,
    dynamic_batch,
    idle_workers,
)
INACTIVE_CHECKS: tuple[Check, ...] = (inactive, decommission_cluster, core_limit, timeouts, retries)


def examine(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    order = list(Severity)
    checks = CHECKS if not facts.batch else BATCH_CHECKS if facts.active else INACTIVE_CHECKS
    found = [finding for check in checks for finding in check(facts)]
    return sorted(found, key=lambda finding: order.index(finding.severity))
