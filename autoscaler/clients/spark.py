"""The client of Spark's REST APIs and its parameters, shared by the Spark source and the Spark engine.

It polls three servers: the Master (`/json/`), the driver (`/api/v1/...`) and the report that
`autoscaler.injob.report(spark)` serves in the driver.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar
from urllib.parse import quote

from pydantic import ConfigDict, Field

from autoscaler.clients.http import Answer, Endpoint, Fetched, JsonClient, StatusError, check_url
from autoscaler.clients.spark_environment import read_settings
from autoscaler.clients.spark_progress import Count, Instant, Run
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, RefusedError, Shared

T = TypeVar("T")

FORMAT = 1
"""The version of the report's format that this client understands."""

LARGEST_ANSWER = 16 * 1024 * 1024
LATE_END = 5.0
"""Seconds that Spark may take to report the end of a query. Another query may have started in this time."""

SHARE = 0.45  # of the time-out for one request, because the driver is polled after the report


class ReportedApplication(Answer):
    """The application that a report describes."""

    id: str
    name: str
    ui: str | None = None


class Report(Answer):
    """The report that `autoscaler.injob.report` serves.

    Attributes:
        now: the driver's clock when it answered.
        steady: the same time on a clock that nobody sets.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    format: int
    now: Instant
    steady: Instant | None = None
    application: ReportedApplication
    settings: dict[str, str] = Field(default_factory=dict)
    queries: tuple[Run, ...] = ()


class Executor(Answer):
    """One executor as the driver shows it."""

    id: str
    address: Annotated[str, Field(alias="hostPort")] = ""
    active: Annotated[bool, Field(alias="isActive")]
    excluded: Annotated[bool, Field(alias="isExcluded")] = False
    slots: Annotated[Count, Field(alias="maxTasks")]
    running: Annotated[Count, Field(alias="activeTasks")]
    tasks: Annotated[Count, Field(alias="totalTasks")]
    busy_ms: Annotated[Count, Field(alias="totalDuration")]
    added: Annotated[str | None, Field(alias="addTime")] = None
    removed: Annotated[str | None, Field(alias="removeTime")] = None
    read: Annotated[Count, Field(alias="totalShuffleRead")] = 0
    written: Annotated[Count, Field(alias="totalShuffleWrite")] = 0

    @property
    def host(self) -> str:
        """The host of the executor, spelled like the host of its worker."""
        return self.address.rpartition(":")[0]


class Job(Answer):
    """One Spark job."""

    number: Annotated[int, Field(alias="jobId")]
    group: Annotated[str | None, Field(alias="jobGroup")] = None
    stages: Annotated[tuple[int, ...], Field(alias="stageIds")] = ()
    submitted: Annotated[str | None, Field(alias="submissionTime")] = None
    tags: Annotated[tuple[str, ...], Field(alias="jobTags")] = ()


class Stage(Answer):
    """One attempt of a stage of a job."""

    number: Annotated[int, Field(alias="stageId")]
    attempt: Annotated[int, Field(alias="attemptId")] = 0
    status: str
    tasks: Annotated[Count, Field(alias="numTasks")]
    running: Annotated[Count, Field(alias="numActiveTasks")] = 0
    finished: Annotated[Count, Field(alias="numCompleteTasks")] = 0
    run_ms: Annotated[Count, Field(alias="executorRunTime")] = 0
    input_bytes: Annotated[Count, Field(alias="inputBytes")] = 0
    shuffle_bytes: Annotated[Count, Field(alias="shuffleReadBytes")] = 0
    launched: Annotated[str | None, Field(alias="firstTaskLaunchedTime")] = None
    description: str | None = None


class MasterWorker(Answer):
    """One worker as the Master shows it."""

    id: str
    host: str
    state: str
    cores: Count
    used: Annotated[Count, Field(alias="coresused")] = 0
    ui: Annotated[str, Field(alias="webuiaddress")] = ""


class MasterApplication(Answer):
    """One application as the Master shows it."""

    id: str
    name: str
    state: str


class Master(Answer):
    """The workers and applications that the Master shows."""

    status: str
    workers: tuple[MasterWorker, ...] = ()
    active: Annotated[tuple[MasterApplication, ...], Field(alias="activeapps")]
    completed: Annotated[tuple[MasterApplication, ...], Field(alias="completedapps")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The running work of an application at one time.

    Attributes:
        application: the application's id.
        now: the driver's clock.
        settings: the application's settings in the report; a missing setting has its default.
        jobs: running jobs.
        stages: running stages.
        executors: all executors except the driver, including dead ones.
    """

    application: str
    now: float
    settings: Mapping[str, str]
    jobs: Sequence[Job] = ()
    stages: Sequence[Stage] = ()
    executors: Sequence[Executor] = ()

    @property
    def slots(self) -> int:
        """The slots of the executors that are alive."""
        return sum(executor.slots for executor in self.executors if executor.active)


@dataclass(frozen=True, kw_only=True)
class SparkParameters:
    """The parameters of the source and of the engine; their docstrings describe them."""

    app: str
    report: str
    master: str | None = None
    driver: str | None = None
    batch: bool = False
    query: str | None = None
    window: timedelta = timedelta(seconds=15)
    timeout: timedelta = timedelta(seconds=3)
    master_conf: tuple[str, ...] = ()
    worker_conf: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.app:
            raise ParameterError("app", "must be the application's name or id")
        for name, url in (("report", self.report), ("master", self.master), ("driver", self.driver)):
            if url is not None:
                check_url(name, url)
        if self.batch and self.query is not None:
            raise ParameterError("query", "names a streaming query; leave it out for an application with batch: true")
        for name, length in (("window", self.window), ("timeout", self.timeout)):
            if length <= timedelta(0):
                raise ParameterError(name, "must be above 0")
        for name in ("master_conf", "worker_conf"):
            for setting in getattr(self, name):
                if not re.fullmatch(r"spark\.[\w.]+=.+", str(setting)):
                    raise ParameterError(name, f"must be settings such as spark.worker.timeout=60, not {setting!r}")


class SparkApi:
    """The client of one application's Master, driver and report. All methods raise EdgeError."""

    def __init__(self, shared: Shared, parameters: SparkParameters) -> None:
        self.parameters = parameters
        self._shared = shared

    async def report(self) -> Fetched[Report]:
        """Return the driver's report, after a check that it describes this application."""
        base, app = self.parameters.report.rstrip("/"), self.parameters.app
        expected = "the report (does the job call autoscaler.injob.report(spark)?)"
        fetched = await self._fetch(base, "/v1/progress", Report, expected)
        report, url = fetched.value, f"{base}/v1/progress"
        if report.format != FORMAT:
            raise AnswerError(
                f"{url}: the report has format {report.format}, expected {FORMAT}; "
                "use the same version of the autoscaler in the job and in the daemon"
            )
        if app not in {report.application.name, report.application.id}:
            raise AnswerError(
                f"{url}: the report is of application {report.application.name!r} ({report.application.id}), "
                f"expected {app!r}; is its port used by another job?"
            )
        return fetched

    async def master(self) -> Master | None:
        """The Master's state, or None when no Master is configured."""
        return None if self.parameters.master is None else (await self._master(self.parameters.master)).value

    async def work(self) -> Fetched[Work | None]:
        """The application's running work; None when the Master shows no active application with this name.

        Callers at about the same time share the requests for jobs, active stages and executors.
        """
        url = self.parameters.master
        reported: Fetched[Report] | BaseException
        if url is None:
            reported = await self.report()
        else:
            shown, reported = await asyncio.gather(self._master(url), self.report(), return_exceptions=True)
            if isinstance(shown, BaseException):
                raise shown
            active = active_application(shown.value, self.parameters.app, url)
            if active is None:
                return Fetched(None, shown.at)
            if isinstance(reported, BaseException):
                raise reported
            self.check_driver(reported.value, active.id)
        jobs, stages, executors = await asyncio.gather(
            self.running_jobs(),
            self.active_stages(),
            self.executors(),
        )
        at = min(jobs.at, stages.at, executors.at)
        report = reported.value
        work = Work(
            application=report.application.id,
            now=report.now + at - reported.at,
            settings=report.settings,
            jobs=jobs.value,
            stages=stages.value,
            executors=executors.value,
        )
        return Fetched(work, at)

    def check_driver(self, report: Report, application: str) -> None:
        """Raise AnswerError when a report does not describe the application with this id, which the Master runs."""
        if report.application.id != application:
            raise AnswerError(
                f"{self.parameters.report}: the report is of {report.application.id}, but the Master runs "
                f"{self.parameters.app!r} as {application}; the driver was restarted and the old one still answers"
            )

    async def _master(self, url: str) -> Fetched[Master]:
        return await self._fetch(url, "/json/", Master, "a Spark Master")

    async def master_settings(self) -> dict[str, str] | None:
        """The settings that the Master was started with, or None when it does not show them (Spark before 4.0)."""
        if self.parameters.master is None:
            return None
        return read_settings(await (await self._client(self.parameters.master)).text("/environment/"))

    async def decommission(self, host: str) -> None:
        """Make the Master decommission all workers on a host.

        Raises:
            RefusedError: no Master is configured, the Master does not allow decommissioning, or has no such host.
        """
        if self.parameters.master is None:
            raise RefusedError("workers can be drained only with the parameter master, the Master's web UI")
        hints = {
            403: "requests from this host are not allowed; start the Master with "
            "-Dspark.master.ui.decommission.allow.mode=ALLOW in SPARK_MASTER_OPTS, and guard its port",
            404: "the Master has no alive worker there",
            405: "the Master does not offer decommissioning; start it with -Dspark.decommission.enabled=true in "
            "SPARK_MASTER_OPTS",
        }
        try:
            await (await self._client(self.parameters.master)).post(f"/workers/kill/?host={quote(host)}")
        except StatusError as error:
            if error.status not in hints:
                raise
            raise RefusedError(f"{error}: {hints[error.status]}") from None

    async def executors(self) -> Fetched[list[Executor]]:
        """All executors of the application, including dead ones, without the driver."""
        fetched = await self._driver("/allexecutors", list[Executor])
        return Fetched([executor for executor in fetched.value if executor.id != "driver"], fetched.at)

    async def running_jobs(self) -> Fetched[list[Job]]:
        """Jobs that are running now."""
        return await self._driver("/jobs?status=running", list[Job])

    async def completed_jobs(self) -> list[Job]:
        """Completed jobs, newest first. The answer has up to a megabyte, so do not request it at every poll."""
        return (await self._driver("/jobs?status=succeeded", list[Job])).value

    async def active_stages(self) -> Fetched[list[Stage]]:
        """Stages that are running now."""
        return await self._driver("/stages?status=active", list[Stage])

    async def stage(self, number: int) -> list[Stage]:
        """The attempts of one stage."""
        return (await self._driver(f"/stages/{number}?details=false", list[Stage])).value

    async def _driver(self, path: str, shape: type[T]) -> Fetched[T]:
        """Read a path of the application from the driver's REST API."""
        application = (await self.report()).value.application
        ui = self.parameters.driver or application.ui
        if not ui:
            raise AnswerError(
                f"application {self.parameters.app!r} has no UI (spark.ui.enabled=false), "
                "so its executors cannot be seen"
            )
        try:
            check_url("driver", ui)
        except ParameterError as error:
            raise AnswerError(f"the report's address of the driver's UI cannot be used; {error}") from None
        path = f"/api/v1/applications/{application.id}{path}"
        return await self._fetch(ui, path, shape, "the driver's REST API")

    async def _client(self, url: str) -> JsonClient:
        endpoint = Endpoint(
            url=url.rstrip("/"),
            timeout=self.parameters.timeout * SHARE,
            max_bytes=LARGEST_ANSWER,
            follow_redirects=True,
        )
        return await JsonClient.open(self._shared, endpoint)

    async def _fetch(self, base: str, path: str, shape: type[T], expected: str) -> Fetched[T]:
        return await (await self._client(base)).fetch(path, shape, expected=f"JSON of {expected}")


def seconds(text: str | None, default: float) -> float | None:
    """Parse a Spark duration (`3s`, `100ms`, `2min`; a bare number means seconds); None when it is invalid."""
    if text is None:
        return default
    found = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*", text.lower())
    if not found:
        return None
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2] or "s"]
    return int(found[1]) * unit


def milliseconds(text: str | None, default: float) -> float | None:
    """Like `seconds`, for settings where a bare number means milliseconds."""
    return seconds(f"{text}ms" if text is not None and text.strip().isdecimal() else text, default)


def parse_time(text: str | None) -> float | None:
    """Parse a time of the driver's REST API (`2026-11-21T02:11:37.218GMT`) into seconds since 1970, or None."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.removesuffix("GMT")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def find_application(master: Master, app: str, url: str | None) -> MasterApplication | None:
    """The application called `app` (its name or id): the running one, else the one that ended last, else None.

    Raises:
        AnswerError: several running applications have the name.
    """
    active = [known for known in master.active if app in {known.id, known.name}]
    if len(active) > 1:
        raise AnswerError(
            f"{url} shows {len(active)} running applications named {app!r} "
            f"({', '.join(known.id for known in active)}); stop all but one, or give app: <id>"
        )
    if active:
        return active[0]
    ended = [known for known in master.completed if app in {known.id, known.name}]
    return max(ended, key=lambda known: known.id, default=None)


def active_application(master: Master, app: str, url: str | None) -> MasterApplication | None:
    """The active application called `app` (its name or id), or None when the Master shows none.

    Raises:
        AnswerError: several are active, or the Master is on standby or in recovery and shows no applications.
    """
    if master.status != "ALIVE":
        raise AnswerError(
            f"{url}: the Master is {master.status} and shows no application; give the address of the one that is ALIVE"
        )
    application = find_application(master, app, url)
    return application if application in master.active else None


def find_run(report: Report, query: str | None) -> Run | None:
    """The newest run of the query with that name or id, or None if there is none yet.

    Raises:
        AnswerError: no query has the given name; or no name is given and several queries run or ran at the same time.
    """
    runs = [run for run in report.queries if query is None or query in {run.name, run.query}]
    if not runs and query is not None and report.queries:
        names = ", ".join(sorted({run.name or run.query for run in report.queries}))
        raise AnswerError(f"application {report.application.name!r} has no query {query!r}; it has {names}")
    active = [run for run in runs if run.terminated is None]
    found = max(active or runs, key=lambda run: run.started, default=None)
    if found is None or query is not None:
        return found
    # If two queries ran at the same time and one has ended, the other one is not automatically the job's query.
    beside = {run.name or run.query for run in runs if _ran_beside(run, found)}
    if beside:
        names = ", ".join(sorted(beside | {found.name or found.query}))
        raise AnswerError(
            f"application {report.application.name!r} has several queries at a time ({names}); give query: <name>"
        )
    return found


def _ran_beside(one: Run, other: Run) -> bool:
    """Whether two runs belong to different queries and were active at the same time."""
    if one.query == other.query or (one.name is not None and one.name == other.name):
        return False
    ends = [run.terminated for run in (one, other) if run.terminated is not None]
    return not ends or min(ends) - max(one.started, other.started) > LATE_END
