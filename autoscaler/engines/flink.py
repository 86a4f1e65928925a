"""Engine `flink`: the state of a job, the deadlines of its scheduler, and the checks of `autoscaler doctor`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from autoscaler.clients.flink import (
    CheckpointConfig,
    Checkpoints,
    FlinkApi,
    FlinkParameters,
    Job,
    JobConfig,
    JobLine,
    TaskManager,
    Vertex,
    version,
)
from autoscaler.core.model import EngineStatus, JobState, Phase
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import Finding, RefusedError, Severity, Shared, Worker
from autoscaler.schedulers.flink_durations import seconds

MARGIN = 60.0  # seconds for a worker's start and registration, for deploying tasks and for restoring state
MAX_HEARTBEAT = 30.0
MAX_CHECKPOINT_INTERVAL = 60.0
MAX_STABILIZATION = 20.0
MAX_DELAY = 86400.0
JITTER = 1.1  # the largest factor of the exponential delay's default jitter

log = logging.getLogger("autoscaler.engines")


@dataclass(frozen=True, kw_only=True)
class Flink(FlinkParameters):
    """A Flink job, best in Reactive Mode. The source `flink` has the same parameters.

    Attributes:
        url: the JobManager's REST address, such as http://jobmanager:8081.
        job: the job's name, which stays the same over restarts, or its id; default: the only job that runs.
        window: time over which the source averages; default 30s. The engine does not use it.
        timeout: time-out for all requests of a status together; each single request gets 45 % of it; default 3s.
        username: user for basic authentication, if a proxy in front of the JobManager requires it; default: none.
        password: the user's password.
        token: bearer token, instead of user and password; default: none.
        ca_file: PEM file with the CA certificates for the server's certificate; default: those of the system.
    """

    window: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window <= timedelta(0):
            raise ParameterError("window", "must be above 0")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[FlinkEngine]:
        """Open the engine. The first `describe` sends the first request."""
        yield FlinkEngine(await self.api(shared), self)


class FlinkEngine:
    """The connected engine. It names its workers but cannot drain them."""

    def __init__(self, api: FlinkApi, parameters: Flink) -> None:
        self._api = api
        self._parameters = parameters
        self._logged: set[tuple[str, str]] = set()
        self._examined: tuple[str, str] | None = None

    async def describe(self) -> EngineStatus:
        """The state of the job. Raises EdgeError when the JobManager cannot be reached."""
        async with self._parameters.in_time():
            line = await self._api.find_job(self._parameters.job)
            if line is None:
                return EngineStatus(job=JobState.STOPPED)
            if line.ended:
                return EngineStatus(job=JobState.FAILED if line.state == "FAILED" else JobState.STOPPED)
            facts = await self._facts(line)
            numbers = await self._numbers(facts.job)
        if self._examined != (line.jid, line.state):
            # Examine the job again after a change of its state: a starting job has no vertices or checkpoints yet.
            self._examined = line.jid, line.state
            self._warn(facts)
        return status(facts, numbers)

    async def diagnose(self) -> Sequence[Finding]:
        """Find settings that make scaling ineffective or dangerous. Raises EdgeError when they cannot be read."""
        async with self._parameters.in_time():
            line = await self._api.find_job(self._parameters.job)
            if line is None or line.ended:
                return [_no_job(self._parameters, line)]
            return examine(await self._facts(line))

    async def workers(self) -> Sequence[Worker]:
        """The TaskManagers that are registered now. The cost of a TaskManager is its number of slots in use."""
        async with self._parameters.in_time():
            return [worker(known) for known in await self._api.taskmanagers()]

    async def drain(self, worker: Worker) -> None:
        """Refuse: Flink cannot drain a TaskManager. On SIGTERM a TaskManager releases its slots at once."""
        raise RefusedError(
            f"Flink cannot drain the TaskManager {worker.id}; stop it with SIGTERM, it then returns its slots "
            "at once and the job continues from its latest checkpoint"
        )

    async def _facts(self, line: JobLine) -> Facts:
        api, jid = self._api, line.jid
        of_job = asyncio.gather(api.job(jid), api.job_config(jid), api.checkpoint_config(jid), api.checkpoints(jid))
        of_all = asyncio.gather(api.jobs(), api.overview(), api.cluster_config(), api.taskmanagers())
        (
            (job, config, checkpointing, checkpoints),
            (lines, overview, settings, taskmanagers),
        ) = await asyncio.gather(of_job, of_all)
        return Facts(
            line=line,
            job=job,
            version=version(overview.version),
            slots=overview.slots_total,
            others=sum(1 for other in lines if not other.ended and other.jid != jid),
            settings=settings,
            config=config,
            checkpointing=checkpointing,
            checkpoints=checkpoints,
            taskmanagers=taskmanagers,
        )

    async def _numbers(self, job: Job) -> Mapping[str, float]:
        """The job's restart counters; empty while Flink still has the metrics of an earlier run."""
        if await self._api.metrics_age(job) is None:
            return {}
        return await self._api.job_metrics(job.jid, ("numRestarts", "fullRestarts"))

    def _warn(self, facts: Facts) -> None:
        for finding in examine(facts):
            key = (facts.line.name, finding.subject)
            if finding.severity is not Severity.INFO and key not in self._logged:
                self._logged.add(key)
                log.warning(
                    "job %s cannot be scaled well: %s: %s",
                    facts.line.name,
                    finding.subject,
                    finding.problem,
                    extra={
                        "job": facts.line.name,
                        "subject": finding.subject,
                        "problem": finding.problem,
                        "cost": finding.cost,
                        "remedy": finding.remedy,
                    },
                )


def worker(known: TaskManager) -> Worker:
    """A TaskManager as a worker. Its id starts with its host, or is the name of its pod."""
    names = {known.host, known.id, known.id.rpartition(":")[0]}
    return Worker(known.id, frozenset(name for name in names if name), float(known.slots - known.free))


# ----------------------------------------------------------------------------------------------------------
# the state of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a job that has not ended.

    Attributes:
        line: the job in the list of all jobs. Its state is the newest; the state in `job` may be 3 s older.
        slots: number of slots of all TaskManagers.
        others: number of other jobs that have not ended.
        settings: the JobManager's settings, without Flink's defaults.
        checkpointing: the job's checkpoint settings, or None when it does not checkpoint.
    """

    line: JobLine
    job: Job
    version: tuple[int, int]
    slots: int
    others: int
    settings: Mapping[str, str]
    config: JobConfig
    checkpointing: CheckpointConfig | None
    checkpoints: Checkpoints | None
    taskmanagers: Sequence[TaskManager] = ()

    @property
    def reactive(self) -> bool:
        """Whether the job runs in Reactive Mode and takes all slots."""
        return self.settings.get("scheduler-mode", "").strip().lower() == "reactive"

    @property
    def adaptive(self) -> bool:
        """Whether the adaptive scheduler runs the job."""
        if self.job.scheduler is not None:
            return self.job.scheduler == "Adaptive"
        return self.reactive or self.settings.get("jobmanager.scheduler", "").strip().lower() == "adaptive"

    @property
    def interval(self) -> float | None:
        """Seconds between checkpoints, or None when there are no periodic checkpoints."""
        return None if self.checkpointing is None else self.checkpointing.periodic


def status(facts: Facts, numbers: Mapping[str, float]) -> EngineStatus:
    """The status of a job that has not ended. Times are on the JobManager's clock."""
    job = facts.job
    state = job_state(facts)
    used = slots_of(job.vertices, _parallelism)
    most = slots_of(job.vertices, lambda vertex: vertex.max_parallelism)
    latest = None if facts.checkpoints is None else facts.checkpoints.latest.completed
    restarts = numbers.get("numRestarts", numbers.get("fullRestarts"))
    since = job.since("RUNNING")
    done = None if latest is None else max(latest.acknowledged, latest.triggered)
    return EngineStatus(
        job=state,
        # Only in Reactive Mode all slots belong to the job. Otherwise other jobs may take the free ones.
        slots=facts.slots if facts.reactive else used,
        parallelism=used,
        max_parallelism=most if most > 0 else None,
        running_since=None if since is None or state is not JobState.RUNNING else _time(since),
        last_checkpoint=None if done is None else _time(done),
        restarts=None if restarts is None or restarts < 0 else int(restarts),
        deadlines=deadlines(facts),
    )


def _time(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


def _parallelism(vertex: Vertex) -> int:
    """The vertex's parallelism, or 0 before its first tasks are deployed: until then Flink shows its upper bound."""
    return vertex.parallelism if any(vertex.tasks.values()) and vertex.start > 0 else 0


def slots_of(vertices: Sequence[Vertex], count: Callable[[Vertex], int]) -> int:
    """The slots needed if each vertex has `count` subtasks. Vertices in one slot sharing group share their slots.

    Flink before 1.20 does not report the groups; then all vertices are assumed to be in one group, the default.
    """
    groups: dict[str | None, int] = {}
    for vertex in vertices:
        groups[vertex.slot_sharing_group] = max(groups.get(vertex.slot_sharing_group, 0), count(vertex))
    return sum(groups.values())


def job_state(facts: Facts) -> JobState:
    """The state of a job that has not ended. It is RUNNING only when all its tasks run."""
    state, job = facts.line.state, facts.job
    ran = job.since("RUNNING") is not None or (facts.checkpoints is not None and facts.checkpoints.counts.restored > 0)
    if state == "RUNNING":
        if job.state == "RUNNING" and job.vertices and all(vertex.running for vertex in job.vertices):
            return JobState.RUNNING
        deployed_before = bool(job.since("RESTARTING")) or any(vertex.start > 0 for vertex in job.vertices)
        return JobState.RESTARTING if ran and deployed_before else JobState.STARTING
    if state in {"INITIALIZING", "CREATED"}:
        return JobState.RESTARTING if ran else JobState.STARTING
    if state in {"RESTARTING", "FAILING", "RECONCILING", "SUSPENDED"}:
        return JobState.RESTARTING
    if state == "CANCELLING":
        return JobState.STOPPED
    return JobState.UNKNOWN


# ----------------------------------------------------------------------------------------------------------
# the deadlines of its scheduler

PREFIX = "jobmanager.adaptive-scheduler."


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The default waits of a Flink version, in seconds, from its `JobManagerOptions` and similar classes.

    Attributes:
        cooldown: wait between two rescales.
        stabilization: wait after the first change of the slots, while there are fewer slots than desired. In Reactive
            Mode there are always fewer.
        at_checkpoint: whether a rescale waits for the next completed checkpoint.
        submission: wait before tasks are deployed, while there are fewer slots than desired; 0 in Reactive Mode.
        restart: restart strategy of a job that checkpoints and does not set one.
        longest: longest pause of the exponential delay.
    """

    cooldown: float = 0.0
    stabilization: float = 0.0
    at_checkpoint: bool = False
    submission: float = 10.0
    restart: str = "exponential-delay"
    longest: float = 60.0


TIMINGS: tuple[tuple[tuple[int, int], Timing], ...] = (
    ((2, 0), Timing(cooldown=30.0, stabilization=60.0, at_checkpoint=True)),
    ((1, 19), Timing(cooldown=30.0)),
    ((1, 0), Timing(restart="fixed-delay", longest=300.0)),
)
"""(first version, its waits), the newest first."""


def timing(facts: Facts) -> Timing:
    """The default waits of the cluster's Flink version."""
    return next(known for since, known in TIMINGS if facts.version >= since)


def setting(settings: Mapping[str, str], default: float, *keys: str) -> float:
    """The first of these durations that is set and valid, in seconds; else the default."""
    for key in keys:
        value = seconds(settings[key]) if key in settings else None
        if value is not None:
            return value
    return default


def heartbeat(facts: Facts) -> float:
    """Seconds without a heartbeat after which a TaskManager counts as dead."""
    return setting(facts.settings, 50.0, "heartbeat.timeout")


def cooldown(facts: Facts) -> float:
    """Seconds between two rescales."""
    if facts.version < (1, 19):
        return 0.0
    keys = (PREFIX + "executing.cooldown-after-rescaling",) if facts.version >= (2, 0) else ()
    return setting(facts.settings, timing(facts).cooldown, *keys, PREFIX + "scaling-interval.min")


def stabilization(facts: Facts) -> float:
    """Seconds that a running job waits until the number of slots is stable."""
    if facts.version < (2, 0):
        return 0.0
    return setting(facts.settings, timing(facts).stabilization, PREFIX + "executing.resource-stabilization-timeout")


def submission(facts: Facts) -> float:
    """Seconds that a starting or restarting job waits for more slots."""
    default = 0.0 if facts.reactive else timing(facts).submission
    keys = (PREFIX + "submission.resource-stabilization-timeout",) if facts.version >= (2, 0) else ()
    return setting(facts.settings, default, *keys, PREFIX + "resource-stabilization-timeout")


def checkpoint_wait(facts: Facts) -> float:
    """Seconds that a rescale may wait for a checkpoint to complete."""
    if not timing(facts).at_checkpoint:
        return 0.0
    try:
        failures = int(facts.settings.get(PREFIX + "rescale-trigger.max-checkpoint-failures", "2"))
    except ValueError:
        failures = 2
    default = 0.0 if facts.interval is None else facts.interval * (failures + 1)
    return setting(facts.settings, default, PREFIX + "rescale-trigger.max-delay")


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart strategy.

    Attributes:
        kind: `none`, `fixed-delay`, `failure-rate` or `exponential-delay`.
        delay: the longest pause before the job restarts, in seconds.
        attempts: number of restarts after which the job fails for good; None: no limit.
    """

    kind: str
    delay: float = 0.0
    attempts: int | None = None


def restart(facts: Facts) -> Restart:
    """The job's restart strategy: its own if Flink reports it, else the cluster's, else the version's default."""
    execution = facts.config.execution
    own = (execution.restart_strategy or "").lower() if execution else ""
    if "deactivated" in own:
        return Restart("none")
    if own.startswith("restart with fixed delay"):
        limit = re.search(r"#(\d+)", own)
        return Restart("fixed-delay", _described_delay(own, r"\(([^)]*)\)"), _attempts(limit[1] if limit else None))
    if own.startswith("failure rate"):
        return Restart("failure-rate", _described_delay(own, r"fixed delay (\S+)"), 1)
    if own.startswith("restart with exponential delay"):
        return Restart("exponential-delay", _described_delay(own, r"with maximum ([^\s.]+)") * JITTER)
    given = facts.settings.get("restart-strategy.type", facts.settings.get("restart-strategy"))
    kind = given or (timing(facts).restart if facts.interval is not None else "none")
    kind = kind.strip().strip("'\"").lower().replace("fixeddelay", "fixed-delay").replace("failurerate", "failure-rate")
    key = "restart-strategy."
    if kind in {"none", "off", "disable"}:
        return Restart("none")
    if kind == "fixed-delay":
        if given is None:
            return Restart(kind, 1.0)  # the default of Flink 1.18 ignores its own settings
        attempts = facts.settings.get(key + "fixed-delay.attempts", "1")
        return Restart(kind, setting(facts.settings, 1.0, key + "fixed-delay.delay"), _attempts(attempts))
    if kind == "failure-rate":
        return Restart(kind, setting(facts.settings, 1.0, key + "failure-rate.delay"), 1)
    longest = setting(facts.settings, timing(facts).longest, key + "exponential-delay.max-backoff")
    return Restart("exponential-delay", longest * JITTER)


def _attempts(text: str | None) -> int | None:
    """The number of attempts, or None (no limit) for Flink's largest number or an unreadable text."""
    return int(text) if text and text.isdecimal() and int(text) < 2**31 - 1 else None


def _described_delay(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    value = seconds(found[1]) if found else None
    return 1.0 if value is None else value


def deadlines(facts: Facts) -> dict[Phase, timedelta]:
    """The longest duration of each phase of a rescale by the job's settings, plus a margin for starts and deployment.

    After a worker is killed, Flink lists its slots until the heartbeat times out. Meanwhile the job fails and restarts,
    and it runs again only after its restart delay.
    """
    after_failure = min(restart(facts).delay, MAX_DELAY)
    absorbing = cooldown(facts) + stabilization(facts) + checkpoint_wait(facts) + submission(facts) + after_failure
    registering = heartbeat(facts)
    if not facts.reactive:
        registering += absorbing  # outside Reactive Mode the status counts only slots in use
    found = {
        Phase.REGISTERED: registering,
        Phase.ABSORBED: absorbing,
        Phase.RUNNING: after_failure + submission(facts),
    }
    return {phase: timedelta(seconds=min(max(0.0, length), MAX_DELAY) + MARGIN) for phase, length in found.items()}


# ----------------------------------------------------------------------------------------------------------
# the doctor


def _no_job(parameters: Flink, line: JobLine | None) -> Finding:
    name = "job" if parameters.job is None else f"job {parameters.job}"
    return Finding(
        Severity.ERROR,
        name,
        f"{parameters.url} does not run it" + ("" if line is None else f"; the last one is {line.state}"),
        "there is nothing to scale or to examine",
        "start the job, or correct job: it must be the name that the job was executed with, or its id",
    )


def checkpointing(facts: Facts) -> Iterator[Finding]:
    """Without checkpoints, every rescale starts the job from scratch."""
    if facts.interval is None:
        yield Finding(
            Severity.ERROR,
            "checkpointing",
            "the job takes no periodic checkpoints",
            "a rescale restarts the job without its state: windows and counts are lost, and a source without a "
            "position of its own reads from the start again",
            "set execution.checkpointing.interval, such as 10 s",
        )


def restarting(facts: Facts) -> Iterator[Finding]:
    """Without restarts, the loss of a worker ends the job."""
    strategy = restart(facts)
    if strategy.kind == "none":
        why = " (the default of a job without checkpoints)" if facts.interval is None else ""
        yield Finding(
            Severity.ERROR,
            "restart strategy",
            f"the job has none{why}",
            "the loss of the first TaskManager ends the job for good",
            "set restart-strategy.type: exponential-delay",
        )
    elif strategy.attempts is not None:
        yield Finding(
            Severity.WARNING,
            "restart strategy",
            f"{strategy.kind}, which gives up after a number of attempts, or of failures in an interval",
            "a killed worker makes the job fail again and again until its heartbeat times out, and a few failures "
            "within a minute end the job permanently",
            "set restart-strategy.type: exponential-delay, which does not give up",
        )


def mode(facts: Facts) -> Iterator[Finding]:
    """Only a job in Reactive Mode uses new slots by itself."""
    if facts.job.kind == "BATCH":
        yield Finding(
            Severity.ERROR,
            "batch job",
            "the job is a batch job, which Flink runs with a parallelism of its own choice",
            "it reads the existing data and ends: lag and arrivals have no meaning, and each stage needs other slots",
            "do not scale it with this autoscaler; see Flink's adaptive batch scheduler",
        )
    elif facts.reactive:
        return
    elif facts.adaptive:
        yield Finding(
            Severity.WARNING,
            "scheduler-mode",
            "the adaptive scheduler runs the job, but not in Reactive Mode, so only the target flink-requirements "
            "scales it (with that target, nothing is wrong)",
            "with any other target, TaskManagers beyond its upper bounds of parallelism cost money and stay empty",
            "on an application cluster set scheduler-mode: reactive; elsewhere use the target flink-requirements, "
            "which changes these bounds",
        )
    else:
        yield Finding(
            Severity.ERROR,
            "scheduler-mode",
            "the job is run by the default scheduler: its parallelism is fixed",
            "new TaskManagers stay empty, and after the loss of one the job waits for slots until it fails",
            "on an application cluster set scheduler-mode: reactive; on a session or active-resource-manager cluster "
            "set jobmanager.scheduler: adaptive and use the target flink-requirements",
        )


def heartbeats(facts: Facts) -> Iterator[Finding]:
    """A killed worker stops the job until its heartbeat times out."""
    limit = heartbeat(facts)
    if limit > MAX_HEARTBEAT:
        yield Finding(
            Severity.WARNING,
            "heartbeat.timeout",
            f"a TaskManager counts as dead only after {limit:g} s without a heartbeat",
            f"a killed TaskManager stops the job for 10 to 20 s if its host refuses connections, and for {limit:g} s "
            "if the host is gone: until then the job restarts on the lost slots and fails again",
            "set heartbeat.interval: 3 s and heartbeat.timeout: 15 s, and stop TaskManagers by SIGTERM",
        )


def slow_absorption(facts: Facts) -> Iterator[Finding]:
    """Flink 2 waits before it uses new slots; Flink before 1.19 restarts for each of them."""
    if not facts.reactive:
        return
    wait = stabilization(facts)
    if wait > MAX_STABILIZATION:
        yield Finding(
            Severity.WARNING,
            PREFIX + "executing.resource-stabilization-timeout",
            f"the job uses new slots only {wait:g} s after the first of them has registered",
            "in Reactive Mode the job always waits that long, because it never has all the slots that it could use",
            "set it to the time in which all workers of one rescale register, such as 10 s",
        )
    if facts.version < (1, 19):
        yield Finding(
            Severity.INFO,
            "cooldown",
            "this version of Flink restarts the job for every new slot",
            "workers that register one after the other cost one restart each",
            "use Flink 1.20 or newer",
        )


def checkpoint_times(facts: Facts) -> Iterator[Finding]:
    """After each rescale, the job repeats its work since the last checkpoint."""
    interval = facts.interval
    if interval is None or facts.checkpointing is None:
        return
    if interval > MAX_CHECKPOINT_INTERVAL:
        wait = checkpoint_wait(facts)
        yield Finding(
            Severity.WARNING,
            "execution.checkpointing.interval",
            f"checkpoints are {interval:g} s apart",
            "each rescale repeats up to that much work"
            + (f", and may wait {wait:g} s for a checkpoint before it begins" if wait else ""),
            "set execution.checkpointing.interval to 10 to 60 s, with incremental checkpoints where state is large",
        )
    latest = None if facts.checkpoints is None else facts.checkpoints.latest.completed
    if latest is not None and latest.duration / 1000 > interval:
        aligned = "" if facts.checkpointing.unaligned else " and execution.checkpointing.unaligned.enabled: true"
        yield Finding(
            Severity.WARNING,
            "duration of checkpoints",
            f"the last one took {latest.duration / 1000:.0f} s, longer than the {interval:g} s between two",
            "a checkpoint is always in progress, and a rescale goes back to a checkpoint older than the interval",
            f"set execution.checkpointing.incremental: true{aligned}, or a longer interval",
        )
    counts = None if facts.checkpoints is None else facts.checkpoints.counts
    if counts is not None and counts.failed and latest is None:
        yield Finding(
            Severity.ERROR,
            "failed checkpoints",
            f"{counts.failed} checkpoints have failed and none has completed",
            "a rescale starts the job from scratch",
            "find the reason in Flink's web UI; do not scale this job before one completes",
        )


def availability(facts: Facts) -> Iterator[Finding]:
    """Without high availability, the loss of the JobManager loses the job's state."""
    kind = facts.settings.get("high-availability.type", facts.settings.get("high-availability", "none")).lower()
    memory = facts.checkpointing is not None and facts.checkpointing.storage == "JobManagerCheckpointStorage"
    if kind == "none":
        yield Finding(
            Severity.WARNING,
            "high-availability.type",
            "the JobManager keeps its state only in its memory" + (", and its checkpoints too" if memory else ""),
            "when it is lost, the job starts from scratch, even if there were checkpoints",
            "set high-availability.type: kubernetes (or zookeeper) with high-availability.storageDir, and "
            "execution.checkpointing.dir, on storage that outlives the JobManager",
        )
    elif memory:
        yield Finding(
            Severity.WARNING,
            "execution.checkpointing.dir",
            "checkpoints are kept in the JobManager's memory",
            "they are lost with the JobManager, and large state does not fit",
            "set execution.checkpointing.dir (before Flink 1.20: state.checkpoints.dir)",
        )


def uneven_slots(facts: Facts) -> Iterator[Finding]:
    """`slots_per_replica` is one number, so all TaskManagers need the same number of slots."""
    counts = sorted({known.slots for known in facts.taskmanagers})
    if len(counts) > 1:
        yield Finding(
            Severity.WARNING,
            "taskmanager.numberOfTaskSlots",
            f"TaskManagers have different numbers of slots: {', '.join(map(str, counts))}",
            "slots_per_replica is one number, so a size in replicas gives a different parallelism than computed",
            "give all TaskManagers the same number, and slots_per_replica that number",
        )


def unused_slots(facts: Facts) -> Iterator[Finding]:
    """Slots above the maximum parallelism are never used."""
    most = slots_of(facts.job.vertices, lambda vertex: vertex.max_parallelism)
    if facts.reactive and 0 < most < facts.slots:
        yield Finding(
            Severity.WARNING,
            "maximum parallelism",
            f"the job can use {most} slots and there are {facts.slots}",
            f"{facts.slots - most} slots cost money and do nothing; the cluster's max is higher than useful",
            f"lower the cluster's max to {most} slots; more needs a higher pipeline.max-parallelism, which a job with "
            "state gets only by starting without that state",
        )


def min_increase(facts: Facts) -> Iterator[Finding]:
    """Flink before 2.0 may ignore small increases."""
    least = facts.settings.get(PREFIX + "min-parallelism-increase", "1").strip()
    if least != "1" and facts.version < (2, 0):
        yield Finding(
            Severity.WARNING,
            PREFIX + "min-parallelism-increase",
            f"the job scales up only by {least} slots or more at a time",
            "a smaller step is never absorbed, and its workers stay empty",
            f"set {PREFIX}min-parallelism-increase: 1",
        )


def metrics(facts: Facts) -> Iterator[Finding]:
    """The JobManager must gather metrics often enough."""
    every = setting(facts.settings, 10.0, "metrics.fetcher.update-interval")
    if every <= 0:
        yield Finding(
            Severity.ERROR,
            "metrics.fetcher.update-interval",
            "the JobManager gathers no metrics",
            "the source flink has nothing to read",
            "set metrics.fetcher.update-interval: 2 s",
        )
    elif every > MAX_HEARTBEAT:
        yield Finding(
            Severity.WARNING,
            "metrics.fetcher.update-interval",
            f"the JobManager gathers metrics only every {every:g} s",
            "readings are as old as that, and decisions are delayed by it",
            "set metrics.fetcher.update-interval: 2 s",
        )


def shared_cluster(facts: Facts) -> Iterator[Finding]:
    """On a session cluster, jobs share the slots."""
    if facts.others:
        yield Finding(
            Severity.WARNING,
            "session cluster",
            f"{facts.others} other {'job shares' if facts.others == 1 else 'jobs share'} the TaskManagers",
            "their load shows in the workers' metrics, and a target that removes TaskManagers restarts them too",
            "give the job an application cluster of its own, or scale it with the target flink-requirements, "
            "which removes no TaskManagers",
        )


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    checkpointing,
    restarting,
    mode,
    heartbeats,
    slow_absorption,
    checkpoint_times,
    availability,
    uneven_slots,
    unused_slots,
    min_increase,
    metrics,
    shared_cluster,
)


def examine(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    order = list(Severity)
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: order.index(finding.severity))
