"""The client of Flink's REST API, shared by the source, the engine and the target of a JobManager.

Jobs are identified by name, because every start gives a job a new id. Flink 1.18 to 2.x give the same answers, except
for the fields whose models note a difference.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

from pydantic import BeforeValidator, Field

from autoscaler.clients.http import Answer, Endpoint, JsonClient
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeTimeoutError, RefusedError, Secret, Shared
from autoscaler.schedulers.flink_durations import seconds

T = TypeVar("T")

SHARE = 0.45  # of the time-out for one request: two requests follow each other, for the job's id and for the job
PAUSE = 0.1
GATHERING_ATTEMPTS = 5
GATHERING_INTERVAL = 10.0
CLOCK_TOLERANCE = 1.5
SETTINGS_KEPT = 60.0
LONGEST_QUERY = 3000  # Flink's server refuses a request line of more than 4096 characters
LONGEST_CAUSE = 300

TERMINAL = frozenset({"FAILED", "CANCELED", "FINISHED"})
"""States of Flink's JobStatus in which a job has ended for good."""

# With these bounds, sums and dates cannot overflow even if an answer is wrong.
Millis = Annotated[int, Field(ge=-1, lt=10**14)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Amount = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Overview(Answer):
    """The number of slots and Flink's version. The slots are those of the whole cluster, for all its jobs."""

    slots_total: Annotated[Count, Field(alias="slots-total")]
    slots_available: Annotated[Count, Field(alias="slots-available")]
    version: Annotated[str, Field(alias="flink-version")] = ""


class JobLine(Answer):
    """One job in the list of all jobs; times are the JobManager's, in milliseconds since 1970, -1 for never."""

    jid: str
    name: str
    state: str
    start: Annotated[Millis, Field(alias="start-time")]
    end: Annotated[Millis, Field(alias="end-time")] = -1

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good."""
        return self.state in TERMINAL


class JobLines(Answer):
    """All jobs that the JobManager remembers."""

    jobs: tuple[JobLine, ...]


class Vertex(Answer):
    """One vertex of the job graph.

    Attributes:
        parallelism: the number of subtasks; -1 while a batch job has not decided yet.
        tasks: state -> number of subtasks in it.
        start: when the first subtask was deployed; -1 if none was yet.
    """

    id: str
    name: str
    max_parallelism: Annotated[int, Field(alias="maxParallelism", ge=-1, le=2**31)] = -1
    parallelism: Annotated[int, Field(ge=-1, le=2**31)]
    start: Annotated[Millis, Field(alias="start-time")] = -1
    tasks: dict[str, Count] = Field(default_factory=dict)
    slot_sharing_group: Annotated[str | None, Field(alias="slotSharingGroupId")] = None

    @property
    def running(self) -> bool:
        """Whether all subtasks are RUNNING or FINISHED."""
        counted = {state: count for state, count in self.tasks.items() if count}
        return self.parallelism > 0 and sum(counted.values()) > 0 and counted.keys() <= {"RUNNING", "FINISHED"}


class Input(Answer):
    """An edge into a vertex."""

    id: str
    ship: Annotated[str | None, Field(alias="ship_strategy")] = None


class Node(Answer):
    """One vertex as the plan shows it."""

    id: str
    inputs: tuple[Input, ...] = ()


class Plan(Answer):
    """The edges of the job graph."""

    nodes: tuple[Node, ...] = ()


class Job(Answer):
    """One job with its vertices; times are the JobManager's, in milliseconds since 1970.

    Attributes:
        timestamps: state -> when the job last entered it, 0 for never.
        now: the JobManager's clock when it answered.
        kind: `STREAMING` or `BATCH`; None before Flink 1.20.
        scheduler: `Adaptive`, `Default` or `AdaptiveBatch`; None before Flink 1.20.
    """

    jid: str
    name: str
    state: str
    start: Annotated[Millis, Field(alias="start-time")]
    now: Millis
    timestamps: dict[str, Millis] = Field(default_factory=dict)
    vertices: tuple[Vertex, ...] = ()
    plan: Plan = Plan()
    kind: Annotated[str | None, Field(alias="job-type")] = None
    scheduler: Annotated[str | None, Field(alias="schedulerType")] = None

    @property
    def inputs(self) -> dict[str, tuple[str, ...]]:
        """Vertex -> its upstream vertices in the order of the plan; a source has none."""
        known = {node.id: tuple(dict.fromkeys(edge.id for edge in node.inputs)) for node in self.plan.nodes}
        return {vertex.id: known.get(vertex.id, ()) for vertex in self.vertices}

    @property
    def hashed(self) -> frozenset[str]:
        """Vertices with an input that is distributed by key."""
        return frozenset(node.id for node in self.plan.nodes if any(edge.ship == "HASH" for edge in node.inputs))

    @property
    def sources(self) -> tuple[Vertex, ...]:
        """The vertices without upstream vertices."""
        inputs = self.inputs
        return tuple(vertex for vertex in self.vertices if not inputs[vertex.id])

    def since(self, state: str) -> int | None:
        """When the job last entered a state, or None for never."""
        return self.timestamps.get(state) or None


class Execution(Answer):
    """How a job is executed."""

    restart_strategy: Annotated[str | None, Field(alias="restart-strategy")] = None


class JobConfig(Answer):
    """`/jobs/<id>/config`; `execution` is None for a job that is initializing."""

    execution: Annotated[Execution | None, Field(alias="execution-config")] = None


class CheckpointConfig(Answer):
    """A job's checkpoint settings; the interval is in milliseconds."""

    interval: Amount
    storage: Annotated[str | None, Field(alias="checkpoint_storage")] = None
    unaligned: Annotated[bool | None, Field(alias="unaligned_checkpoints")] = None

    @property
    def periodic(self) -> float | None:
        """Seconds between two checkpoints, or None when there are no periodic checkpoints."""
        return None if not 0 < self.interval < 2**53 else self.interval / 1000


class Checkpoint(Answer):
    """One checkpoint; times are the JobManager's, in milliseconds since 1970."""

    triggered: Annotated[Millis, Field(alias="trigger_timestamp")]
    acknowledged: Annotated[Millis, Field(alias="latest_ack_timestamp")] = -1
    duration: Annotated[Amount, Field(alias="end_to_end_duration")] = -1


class CheckpointCounts(Answer):
    """The number of checkpoints since the JobManager started the job."""

    restored: Count = 0
    failed: Count = 0


class LatestCheckpoints(Answer):
    """The latest completed checkpoint."""

    completed: Checkpoint | None = None


class Checkpoints(Answer):
    """A job's checkpoints."""

    counts: CheckpointCounts = CheckpointCounts()
    latest: LatestCheckpoints = LatestCheckpoints()


class TaskManager(Answer):
    """One TaskManager as the JobManager sees it."""

    id: str
    path: str
    slots: Annotated[Count, Field(alias="slotsNumber")]
    free: Annotated[Count, Field(alias="freeSlots")]

    @property
    def host(self) -> str | None:
        """The host in `path`, or None when there is none."""
        found = re.search(r"@(\[[^\]]+\]|[^:/@]+)(?::\d+)?/", self.path)
        return found[1].strip("[]") if found else None


class TaskManagers(Answer):
    """All registered TaskManagers."""

    taskmanagers: tuple[TaskManager, ...]


class Setting(Answer):
    """One setting of the cluster's configuration."""

    key: str
    value: str


def _number(value: object) -> object:
    """Convert the strings that Flink writes for NaN and infinities."""
    if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"}:
        return float(value.replace("Infinity", "inf"))
    return value


Figure = Annotated[float, BeforeValidator(_number)]


class ReportedAggregate(Answer):
    """One metric over the subtasks or TaskManagers that report it."""

    id: str
    min: Figure = math.nan
    max: Figure = math.nan
    avg: Figure = math.nan
    sum: Figure = math.nan


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One metric over the subtasks or TaskManagers that report it; NaN if one of them reports NaN."""

    min: float
    max: float
    avg: float
    sum: float


class SubtaskTimes(Answer):
    """Milliseconds that a subtask has spent in each condition since it started; NaN where Flink does not measure them.

    All three are 0 while the JobManager has no metrics of the subtask.
    """

    busy: Annotated[Figure, Field(alias="accumulated-busy-time")] = math.nan
    idle: Annotated[Figure, Field(alias="accumulated-idle-time")] = math.nan
    backpressured: Annotated[Figure, Field(alias="accumulated-backpressured-time")] = math.nan


class Subtask(Answer):
    """One subtask of a vertex, and the TaskManager that it runs on."""

    number: Annotated[Count, Field(alias="subtask")]
    attempt: Count = 0
    status: str
    taskmanager: Annotated[str, Field(alias="taskmanager-id")]
    times: Annotated[SubtaskTimes, Field(alias="metrics")]


class Subtasks(Answer):
    """The subtasks of a vertex (`/jobs/<id>/vertices/<id>`)."""

    subtasks: tuple[Subtask, ...]


class MetricValue(Answer):
    """One metric. `value` is None in a list of metric names."""

    id: str
    value: str | None = None


class Bounds(Answer):
    """The minimum and maximum parallelism of a vertex."""

    lower: Annotated[int, Field(alias="lowerBound")]
    upper: Annotated[int, Field(alias="upperBound")]


class Requirement(Answer):
    """The parallelism that a vertex requires (`/jobs/<id>/resource-requirements`)."""

    parallelism: Bounds


FIGURES = ("min", "max", "avg", "sum")


@dataclass(frozen=True, kw_only=True)
class FlinkParameters:
    """The parameters that the plug-ins for Flink share; the docstrings of the plug-ins describe them."""

    url: str
    job: str | None = None
    timeout: timedelta = timedelta(seconds=3)
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        self._endpoint(self.timeout)
        if self.ca_file is not None and not self.url.startswith("https:"):
            raise ParameterError("ca_file", "needs a url that begins with https://")

    def _endpoint(self, timeout: timedelta) -> Endpoint:
        return Endpoint(
            url=self.url.rstrip("/"),
            username=self.username,
            password=self.password,
            token=self.token,
            ca_file=self.ca_file,
            timeout=timeout,
            follow_redirects=True,
        )

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Limit the total time of several requests. Raises EdgeTimeoutError just before the caller's time-out ends."""
        limit = self.timeout.total_seconds() * 0.95
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            raise EdgeTimeoutError(f"{self.url} did not answer all requests in {limit:g} s") from None

    async def api(self, shared: Shared) -> FlinkApi:
        """The client of the JobManager, which all its users share."""
        return await FlinkApi.open(shared, self._endpoint(self.timeout * SHARE))


class FlinkApi(JsonClient):
    """The client of one JobManager. All methods raise EdgeError; for a 404 (a job lacks something) RefusedError."""

    expected = "JSON of Flink's REST API"

    # ------------------------------------------------------------------------------------------------------
    # the cluster

    async def overview(self) -> Overview:
        """The number of slots, and Flink's version."""
        return await self.get("/overview", Overview)

    async def taskmanagers(self) -> tuple[TaskManager, ...]:
        """The TaskManagers that are registered now."""
        return (await self.get("/taskmanagers", TaskManagers)).taskmanagers

    async def cluster_config(self) -> dict[str, str]:
        """The settings that the JobManager was started with, without Flink's defaults."""
        settings = await self.get("/jobmanager/config", list[Setting], fresh=SETTINGS_KEPT)
        return {setting.key: setting.value for setting in settings}

    async def taskmanager_metrics(self, names: Iterable[str]) -> dict[str, Aggregate]:
        """Metrics over all TaskManagers, without those that no TaskManager reports."""
        return await self._aggregates("/taskmanagers/metrics", names)

    # ------------------------------------------------------------------------------------------------------
    # jobs

    async def jobs(self) -> tuple[JobLine, ...]:
        """All jobs that the JobManager remembers, including ended ones."""
        return (await self.get("/jobs/overview", JobLines)).jobs

    async def find_job(self, name: str | None) -> JobLine | None:
        """Apply `choose_job` to all jobs that the JobManager remembers."""
        return choose_job(await self.jobs(), name, self.endpoint.url)

    async def job(self, jid: str) -> Job:
        """One job with its vertices and its plan."""
        return await self.get(f"/jobs/{jid}", Job)

    async def job_config(self, jid: str) -> JobConfig:
        """The job's execution settings."""
        return await self.get(f"/jobs/{jid}/config", JobConfig, fresh=SETTINGS_KEPT)

    async def checkpoint_config(self, jid: str) -> CheckpointConfig | None:
        """The job's checkpoint settings; None when it does not checkpoint."""
        return await _if_checkpointing(
            self.get(f"/jobs/{jid}/checkpoints/config", CheckpointConfig, fresh=SETTINGS_KEPT)
        )

    async def checkpoints(self, jid: str) -> Checkpoints | None:
        """Counts and the latest checkpoints; None when the job does not checkpoint."""
        return await _if_checkpointing(self.get(f"/jobs/{jid}/checkpoints", Checkpoints))

    async def job_metrics(self, jid: str, names: Iterable[str]) -> dict[str, float]:
        """Metrics of the job as a whole, without those that are missing or not finite numbers."""
        values = await self.get(f"/jobs/{jid}/metrics?get={_list(names)}", list[MetricValue])
        found: dict[str, float] = {}
        for value in values:
            try:
                number = float(value.value or "")
            except ValueError:
                continue
            if math.isfinite(number):
                found[value.id] = number
        return found

    async def metrics_age(self, job: Job) -> float | None:
        """Make Flink gather its metrics if they are old, and return their age in seconds.

        A request makes Flink gather all metrics, at most once per `metrics.fetcher.update-interval` (10 s). But Flink
        answers that request with the metrics it had before. So after a pause the first answer is as old as the pause.
        The age follows from the metric `uptime`, the time since the job entered RUNNING.

        Returns:
            The age, or None while Flink has no metrics of the job's current run.
        """
        key = f"age {job.jid} {job.since('RUNNING')}"
        return await self.share(key, lambda: self._gathered(job))

    async def _gathered(self, job: Job) -> float | None:
        asked = time.monotonic()
        configured = (await self.cluster_config()).get("metrics.fetcher.update-interval")
        every = seconds(configured) if configured else None
        every = GATHERING_INTERVAL if every is None else every
        age: float | None = None
        for attempt in range(GATHERING_ATTEMPTS):
            found = await self.get(f"/jobs/{job.jid}/metrics?get=uptime", list[MetricValue], fresh=0)
            age = _age(job, found, job.now / 1000 + time.monotonic() - asked)
            if age is not None and age <= max(CLOCK_TOLERANCE, every):
                # Flink does not gather metrics that are younger than its interval. If it has just gathered them (on
                # a later attempt), the metrics of the TaskManagers follow a moment later.
                await asyncio.sleep(PAUSE if attempt else 0)
                break
            if attempt < GATHERING_ATTEMPTS - 1:
                await asyncio.sleep(PAUSE)
        return age

    async def vertex_metric_names(self, jid: str, vertex: str) -> frozenset[str]:
        """The names of the metrics that at least one subtask of the vertex reports."""
        return frozenset(
            value.id for value in await self.get(f"/jobs/{jid}/vertices/{vertex}/subtasks/metrics", list[MetricValue])
        )

    async def vertex_metrics(self, jid: str, vertex: str, names: Iterable[str]) -> dict[str, Aggregate]:
        """Metrics over the subtasks of a vertex that report them.

        Flink answers with an empty list when one of the names is unknown, so request only names from
        `vertex_metric_names`.
        """
        return await self._aggregates(f"/jobs/{jid}/vertices/{vertex}/subtasks/metrics", names)

    async def subtasks(self, jid: str, vertex: str) -> tuple[Subtask, ...]:
        """The subtasks of a vertex, each with its TaskManager and its busy, idle and backpressured times."""
        return (await self.get(f"/jobs/{jid}/vertices/{vertex}", Subtasks)).subtasks

    async def requirements(self, jid: str) -> dict[str, Requirement]:
        """Vertex -> minimum and maximum parallelism; only jobs of the adaptive scheduler have them (Flink 1.18 on)."""
        return await self.get(f"/jobs/{jid}/resource-requirements", dict[str, Requirement])

    async def put_requirements(self, jid: str, bounds: Mapping[str, tuple[int, int]]) -> None:
        """Set the parallelism bounds: vertex -> (lower, upper). Flink expects all vertices of the job."""
        await self.put(
            f"/jobs/{jid}/resource-requirements",
            {
                vertex: {"parallelism": {"lowerBound": lower, "upperBound": upper}}
                for vertex, (lower, upper) in bounds.items()
            },
        )

    async def _aggregates(self, path: str, names: Iterable[str]) -> dict[str, Aggregate]:
        found: dict[str, Aggregate] = {}
        for part in _parts(sorted(set(names)), LONGEST_QUERY - len(path)):
            reported = {one.id: one for one in await self.get(f"{path}?get={_list(part)}", list[ReportedAggregate])}
            # Use the caller's name objects as keys: samples of many clusters are kept, and equal strings cost memory.
            found |= {
                name: Aggregate(*(getattr(reported[name], key) for key in FIGURES)) for name in part if name in reported
            }
        return found

    def describe_error(self, body: bytes) -> str | None:
        """The innermost cause in a Flink error, without the stack trace."""
        try:
            errors = json.loads(body)["errors"]
        except (ValueError, TypeError, LookupError, RecursionError):
            errors = None
        if not isinstance(errors, list):
            return super().describe_error(body)
        causes = [
            line.strip().removeprefix("Caused by: ")
            for error in errors
            if isinstance(error, str)
            for line in error.splitlines()
            if line.strip() and not re.match(r"\s*(at |\.\.\. \d+|<Exception on server side|End of exception)", line)
        ]
        specific = [cause for cause in causes if cause != "Internal server error."] or causes
        return specific[-1][:LONGEST_CAUSE] if specific else None

    def is_refusal(self, status: int, reason: str | None) -> bool:
        """Whether a retry is useless. Flink answers 500 also when the job's scheduler does not support the request."""
        return super().is_refusal(status, reason) or "UnsupportedOperationException" in (reason or "")


async def _if_checkpointing(answer: Awaitable[T]) -> T | None:
    """The answer about a job's checkpoints, or None if Flink refuses because the job does not checkpoint."""
    try:
        return await answer
    except RefusedError as error:
        if "heckpointing" in str(error):
            return None
        raise


def choose_job(jobs: Sequence[JobLine], name: str | None, url: str) -> JobLine | None:
    """The job with that name (or id): the one that has not ended, else the one that ended last, else None.

    Without a name, all jobs are candidates: this suits a cluster that runs a single job.

    Raises:
        AnswerError: several of these jobs have not ended.
    """
    mine = [job for job in jobs if name is None or name in {job.name, job.jid}]
    alive = [job for job in mine if not job.ended]
    if len(alive) > 1:
        several = ", ".join(f"{job.name} {job.jid}" for job in alive[:4])
        if name is None:
            raise AnswerError(f"{url} runs {len(alive)} jobs ({several}); name one with job: <name>")
        raise AnswerError(f"{url} runs {len(alive)} jobs named {name!r} ({several}); stop all but one, or give its id")
    return max(alive or mine, key=lambda job: (job.start, job.end), default=None)


def _age(job: Job, values: Sequence[MetricValue], clock: float) -> float | None:
    """The age of the metrics at a time of the JobManager's clock, or None when they are not of the current run."""
    since = job.since("RUNNING")
    try:
        uptime = float(next(value.value or "" for value in values if value.id == "uptime"))
    except (StopIteration, ValueError):
        return None
    if since is None or uptime <= 0:
        return None
    age = clock - since / 1000 - uptime / 1000
    return None if age < -CLOCK_TOLERANCE else max(0.0, age)


def _list(names: Iterable[str]) -> str:
    return quote(",".join(sorted(set(names))), safe=",")


def _parts(names: Sequence[str], limit: int) -> list[list[str]]:
    """Split names into as few requests as the length of a request line allows."""
    parts: list[list[str]] = []
    length = limit
    for name in names:
        size = len(quote(name)) + 1
        if length + size > limit:
            parts.append([])
            length = 0
        parts[-1].append(name)
        length += size
    return parts


def version(text: str) -> tuple[int, int]:
    """The major and minor number of Flink's version. Raises AnswerError when the text has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if not found:
        raise AnswerError(f"expected Flink's version such as 1.20.1, got {text!r}")
    return int(found[1]), int(found[2])
