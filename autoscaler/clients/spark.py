"""What the Spark source and the Spark engine share: their parameters and one client of Spark's REST answers.

Three endpoints are asked: the Master (`/json/`), the driver (`/api/v1/...`) and the report that
`autoscaler.injob.report(spark)` serves in the driver. Answers are kept for a moment, so that the metrics of
one tick cost one request per address, and callers that come together await the same request.
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Generic, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, EdgeTimeoutError, RefusedError, Shared, UnavailableError

T = TypeVar("T")

FORMAT = 1
"""Version of the report's format that is understood."""

LARGEST_ANSWER = 16 * 1024 * 1024
KEPT = 0.5
ATTEMPTS = 2
SHARE = 0.45  # of the time-out for one answer: what is asked of the driver is asked after the report
PAUSE = 0.1

# The bounds keep sums and dates of wrong answers from overflowing.
Instant = Annotated[float, Field(allow_inf_nan=False, ge=0, lt=1e11)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Position = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Answer(BaseModel):
    """Part of an answer: only what is used is read, and that strictly."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class SourceProgress(Answer):
    """One source in a batch; offsets are summed over the source's partitions, None where it does not tell."""

    description: str = ""
    rows: Count | None = None
    start: Position | None = None
    end: Position | None = None
    latest: Position | None = None
    partitions: Count | None = None
    start_partitions: Annotated[Count | None, Field(alias="startPartitions")] = None


class StateProgress(Answer):
    """One stateful operator in a batch."""

    operator: str | None = None
    rows: int | None = None
    partitions: Count | None = None


class Batch(Answer):
    """One completed batch; times are the driver's, in seconds since 1970.

    Attributes:
        steady: `received` on a clock that is never set.
        idle: when the query last said that it was idle before this batch ended.
    """

    number: Annotated[int, Field(alias="batchId")]
    start: Instant
    received: Instant
    steady: Instant | None = None
    idle: Instant | None = None
    rows: Count | None = None
    durations: Annotated[dict[str, Position], Field(alias="durationMs")] = {}
    sources: tuple[SourceProgress, ...] = ()
    state: tuple[StateProgress, ...] = ()

    @property
    def length(self) -> float:
        """Seconds from the trigger to the end of the batch."""
        execution = self.durations.get("triggerExecution")
        return max(0.0, self.received - self.start if execution is None else execution / 1000)

    @property
    def end(self) -> float:
        """When the batch was committed."""
        return self.start + self.length

    @property
    def head(self) -> int | None:
        """The newest position of all sources at the start of the batch, or None when one does not tell."""
        return _sum(source.latest for source in self.sources)

    @property
    def done(self) -> int | None:
        """The position up to which the batch has read, or None when a source does not tell."""
        return _sum(source.end for source in self.sources)

    @property
    def left(self) -> int | None:
        """What the batch left behind: what was there when it started, less what it read."""
        head, done = self.head, self.done
        return None if head is None or done is None else max(0, head - done)

    @property
    def records(self) -> int | None:
        """Records read: the way the sources' positions went, else the rows that Spark counted.

        A partition that was added came with a position of its own, which nobody went.
        """
        ways = [
            source.end - source.start
            for source in self.sources
            if source.end is not None
            and source.start is not None
            and source.start_partitions in {None, source.partitions}
        ]
        if ways and len(ways) == len(self.sources) and min(ways) >= 0:
            return sum(ways)
        return self.rows

    @property
    def state_partitions(self) -> int | None:
        """Partitions of the state, the largest of its operators; None for a query without state."""
        return max((operator.partitions for operator in self.state if operator.partitions), default=None)


def _sum(values: Any) -> int | None:  # noqa: ANN401 - an iterable of int | None
    known = list(values)
    return None if not known or any(value is None for value in known) else sum(known)


class Run(Answer):
    """One run of one query; times are the driver's, in seconds since 1970."""

    query: Annotated[str, Field(alias="id")]
    run: Annotated[str, Field(alias="runId")]
    name: str | None = None
    trigger: str | None = None
    started: Instant
    restarts: Count = 0
    idle: Instant | None = None
    terminated: Instant | None = None
    exception: str | None = None
    progress: tuple[Batch, ...] = ()

    @property
    def interval(self) -> float:
        """The trigger's interval in seconds, 0 when batches start as fast as possible."""
        found = re.fullmatch(r"ProcessingTimeTrigger\((\d+)\)", self.trigger or "")
        return int(found[1]) / 1000 if found else 0.0

    @property
    def once(self) -> bool:
        """Whether it ends when it has read what was there at its start."""
        return self.trigger in {"AvailableNowTrigger", "OneTimeTrigger"}

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"query {self.name or self.query}"


class ReportedApplication(Answer):
    """The application that a report is of."""

    id: str
    name: str
    ui: str | None = None


class Report(Answer):
    """What `autoscaler.injob.report` serves.

    Attributes:
        now: the driver's clock when it answered.
        steady: the same on a clock that is never set.
    """

    format: int
    now: Instant
    steady: Instant | None = None
    spark: str = ""
    application: ReportedApplication
    settings: dict[str, str] = {}
    queries: tuple[Run, ...] = ()


class Executor(Answer):
    """One executor as the driver shows it."""

    id: str
    address: Annotated[str, Field(alias="hostPort")] = ""
    active: Annotated[bool, Field(alias="isActive")]
    slots: Annotated[Count, Field(alias="maxTasks")]
    running: Annotated[Count, Field(alias="activeTasks")]
    tasks: Annotated[Count, Field(alias="totalTasks")]
    busy_ms: Annotated[Count, Field(alias="totalDuration")]
    added: Annotated[str | None, Field(alias="addTime")] = None
    removed: Annotated[str | None, Field(alias="removeTime")] = None
    reason: Annotated[str | None, Field(alias="removeReason")] = None

    @property
    def host(self) -> str:
        """Its host, as the worker that runs it is called."""
        return self.address.rpartition(":")[0]


class Job(Answer):
    """One Spark job."""

    number: Annotated[int, Field(alias="jobId")]
    group: Annotated[str | None, Field(alias="jobGroup")] = None
    stages: Annotated[tuple[int, ...], Field(alias="stageIds")] = ()


class Stage(Answer):
    """One stage of a job."""

    number: Annotated[int, Field(alias="stageId")]
    status: str
    tasks: Annotated[Count, Field(alias="numTasks")]
    description: str | None = None


class MasterWorker(Answer):
    """One worker as the Master shows it."""

    id: str
    host: str
    state: str
    cores: Count
    used: Annotated[Count, Field(alias="coresused")] = 0
    memory_free: Annotated[int, Field(alias="memoryfree")] = 0
    ui: Annotated[str, Field(alias="webuiaddress")] = ""


class MasterApplication(Answer):
    """One application as the Master shows it."""

    id: str
    name: str
    state: str
    cores: Count = 0


class Master(Answer):
    """What the Master shows."""

    status: str
    workers: tuple[MasterWorker, ...] = ()
    active: Annotated[tuple[MasterApplication, ...], Field(alias="activeapps")]
    completed: Annotated[tuple[MasterApplication, ...], Field(alias="completedapps")] = ()


class Parameters(Protocol):
    """The parameters that the source and the engine have in common."""

    @property
    def app(self) -> str: ...  # noqa: D102
    @property
    def report(self) -> str: ...  # noqa: D102
    @property
    def master(self) -> str | None: ...  # noqa: D102
    @property
    def driver(self) -> str | None: ...  # noqa: D102
    @property
    def query(self) -> str | None: ...  # noqa: D102
    @property
    def window(self) -> timedelta: ...  # noqa: D102
    @property
    def timeout(self) -> timedelta: ...  # noqa: D102
    @property
    def master_conf(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def worker_conf(self) -> tuple[str, ...]: ...  # noqa: D102


def validate(parameters: Parameters) -> None:
    """Check the common parameters. Raises ValueError naming what is wrong."""
    if not parameters.app:
        raise ParameterError("app", "must be the application's name or id")
    for name in ("report", "master", "driver"):
        url: str | None = getattr(parameters, name)
        if url is not None and "@" in urlsplit(url).netloc:
            # Not quoted: what stands there may be a password, and addresses show in messages.
            raise ParameterError(name, "must not contain a user or password: Spark's pages ask for none")
        if not _usable(url) and (url is not None or name == "report"):
            raise ParameterError(name, f"must be an address such as http://host:port, not {url!r}")
    for name in ("window", "timeout"):
        span: timedelta = getattr(parameters, name)
        if span <= timedelta(0):
            raise ParameterError(name, "must be above 0")
    for name in ("master_conf", "worker_conf"):
        for setting in getattr(parameters, name):
            if not re.fullmatch(r"spark\.[\w.]+=.+", str(setting)):
                raise ParameterError(name, f"must be settings such as spark.worker.timeout=60, not {setting!r}")


def _usable(url: str | None) -> bool:
    try:
        parts = urlsplit(url or "")
        (parts.hostname or "").encode("idna")
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.query or parts.fragment)
            and not re.search(r"\s", url or "")
        )
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class SparkKey:
    """Under this the client of one application is shared between the source and the engine."""

    app: str
    report: str
    master: str | None
    driver: str | None
    query: str | None
    timeout: timedelta


@dataclass(slots=True)
class Fetched(Generic[T]):
    """An answer and when it came, on the event loop's monotonic clock."""

    value: T
    at: float

    @property
    def age(self) -> float:
        """Seconds since it came."""
        return time.monotonic() - self.at


async def shared_api(shared: Shared, parameters: Parameters) -> SparkApi:
    """The client for these parameters, over the one HTTP session that all Spark clients share."""
    session: aiohttp.ClientSession = await shared.enter("autoscaler.clients.spark.session", _session)
    key = SparkKey(
        parameters.app,
        parameters.report.rstrip("/"),
        parameters.master and parameters.master.rstrip("/"),
        parameters.driver and parameters.driver.rstrip("/"),
        parameters.query,
        parameters.timeout,
    )

    def factory() -> AbstractAsyncContextManager[SparkApi]:
        return _api(key, session)

    hashable: Hashable = key
    return await shared.enter(hashable, factory)


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    # Nothing is decompressed, so an answer cannot grow beyond what came over the wire.
    async with aiohttp.ClientSession(
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        auto_decompress=False,
        connector=aiohttp.TCPConnector(limit=64),
    ) as session:
        yield session


@asynccontextmanager
async def _api(key: SparkKey, session: aiohttp.ClientSession) -> AsyncIterator[SparkApi]:
    api = SparkApi(key, session)
    try:
        yield api
    finally:
        await api.close()


REPORT = TypeAdapter(Report)
MASTER = TypeAdapter(Master)
EXECUTORS = TypeAdapter(list[Executor])
JOBS = TypeAdapter(list[Job])
STAGES = TypeAdapter(list[Stage])


class SparkApi:
    """Asks one application's Master, driver and report. All methods raise EdgeError."""

    def __init__(self, key: SparkKey, session: aiohttp.ClientSession) -> None:
        self.key = key
        self._session = session
        self._timeout = key.timeout.total_seconds() * SHARE
        self._asked: dict[str, asyncio.Task[Fetched[Any]]] = {}
        self._ended: dict[str, float] = {}

    async def close(self) -> None:
        """Give up what is still being asked."""
        tasks = [task for task in self._asked.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._asked.clear()

    async def report(self) -> Fetched[Report]:
        """What the driver's report says, checked to be of this application."""
        url = f"{self.key.report}/v1/progress"
        fetched = await self._ask(url, REPORT, "the report; does the job call autoscaler.injob.report(spark)?")
        report = fetched.value
        if report.format != FORMAT:
            raise AnswerError(
                f"{url}: the report has format {report.format}, expected {FORMAT}; "
                "use the same version of the autoscaler in the job and in the daemon"
            )
        if self.key.app not in {report.application.name, report.application.id}:
            raise AnswerError(
                f"{url}: the report is of application {report.application.name!r} ({report.application.id}), "
                f"expected {self.key.app!r}; is its port used by another job?"
            )
        return fetched

    async def master(self) -> Master | None:
        """What the Master shows, or None when no Master is configured."""
        if self.key.master is None:
            return None
        return (await self._ask(f"{self.key.master}/json/", MASTER, "a Spark Master's JSON")).value

    async def master_settings(self) -> dict[str, str] | None:
        """The settings the Master was started with, or None when it does not show them (Spark before 4.0)."""
        if self.key.master is None:
            return None
        url = f"{self.key.master}/environment/"
        page = (await self._fetch(url)).decode(errors="replace")
        if "Spark Properties" not in page:
            return None
        rows = re.findall(r"<td>(spark\.[^<]*)</td>\s*<td>([^<]*)</td>", page)
        return {html.unescape(key).strip(): html.unescape(value).strip() for key, value in rows}

    async def decommission(self, host: str) -> None:
        """Have the Master decommission all workers on a host.

        Raises:
            RefusedError: no Master is configured, it does not allow it, or it has no such host.
        """
        if self.key.master is None:
            raise RefusedError("workers can be drained only with the parameter master, the Master's web UI")
        url = f"{self.key.master}/workers/kill/?host={quote(host)}"
        try:
            async with self._session.post(
                url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=self._timeout)
            ) as response:
                status = response.status
        except TimeoutError:
            raise EdgeTimeoutError(f"{url} did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from None
        if status == 200:  # noqa: PLR2004 - HTTP
            return
        why = {
            403: "it may not be used from here; start the Master with "
            "-Dspark.master.ui.decommission.allow.mode=ALLOW in SPARK_MASTER_OPTS, and guard its port",
            404: "the Master has no alive worker there",
            405: "the Master has no such door; start it with -Dspark.decommission.enabled=true in SPARK_MASTER_OPTS",
        }.get(status, "expected 200")
        if status in {408, 429} or status >= 500:  # noqa: PLR2004 - HTTP
            raise UnavailableError(f"{url} answered {status}")
        raise RefusedError(f"{url} answered {status}: {why}")

    async def driver(self) -> str:
        """Address of the application in the driver's REST API."""
        application = (await self.report()).value.application
        ui = self.key.driver or application.ui
        if not ui:
            raise AnswerError(
                f"application {self.key.app!r} has no UI (spark.ui.enabled=false), so its executors cannot be seen"
            )
        return f"{ui.rstrip('/')}/api/v1/applications/{application.id}"

    async def executors(self) -> Fetched[list[Executor]]:
        """All executors of the application, the driver left out and dead ones included."""
        fetched = await self._ask(f"{await self.driver()}/allexecutors", EXECUTORS, "the driver's executors")
        return Fetched([executor for executor in fetched.value if executor.id != "driver"], fetched.at)

    async def running_jobs(self) -> list[Job]:
        """Jobs that are running now."""
        return (await self._ask(f"{await self.driver()}/jobs?status=running", JOBS, "the driver's jobs")).value

    async def completed_jobs(self) -> list[Job]:
        """Jobs that have completed, newest first: up to a megabyte, so not for every tick."""
        return (await self._ask(f"{await self.driver()}/jobs?status=succeeded", JOBS, "the driver's jobs")).value

    async def active_stages(self) -> list[Stage]:
        """Stages that are running now."""
        url = f"{await self.driver()}/stages?status=active"
        return (await self._ask(url, STAGES, "the driver's stages")).value

    async def stage(self, number: int) -> list[Stage]:
        """One stage: its attempts."""
        url = f"{await self.driver()}/stages/{number}?details=false"
        return (await self._ask(url, STAGES, "a stage of the driver")).value

    async def _ask(self, url: str, shape: TypeAdapter[T], expected: str) -> Fetched[T]:
        """Ask once for all who come while the answer is on its way or has just come."""
        task = self._asked.get(url)
        if task is None or (task.done() and time.monotonic() - self._ended.get(url, 0.0) > KEPT):
            task = self._asked[url] = asyncio.create_task(self._answer(url, shape, expected))
            task.add_done_callback(lambda done: self._note(url, done))
        # One caller's cancellation must not take the answer from the others.
        return await asyncio.shield(task)

    def _note(self, url: str, task: asyncio.Task[Fetched[Any]]) -> None:
        self._ended[url] = time.monotonic()
        if not task.cancelled():
            task.exception()  # somebody may have stopped waiting for it; it is raised to whoever still does
        for old, ended in list(self._ended.items()):
            known = self._asked.get(old)
            if self._ended[url] - ended > 10 * KEPT and (known is None or known.done()):
                self._asked.pop(old, None)
                del self._ended[old]

    async def _answer(self, url: str, shape: TypeAdapter[T], expected: str) -> Fetched[T]:
        try:
            async with asyncio.timeout(self._timeout):
                async for attempt in AsyncRetrying(
                    stop=stop_after_attempt(ATTEMPTS),
                    wait=wait_fixed(PAUSE),
                    retry=retry_if_exception_type(UnavailableError),
                    reraise=True,
                ):
                    with attempt:
                        body = await self._fetch(url)
        except TimeoutError:
            raise EdgeTimeoutError(f"{url} did not answer in full within {self._timeout:g} s") from None
        try:
            return Fetched(shape.validate_json(body), time.monotonic())
        except ValidationError as error:
            if body.lstrip()[:1] not in {b"{", b"["}:
                raise AnswerError(
                    f"{url}: expected JSON ({expected}), got {body[:60].decode(errors='replace')!r}"
                ) from None
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "answer"
            raise AnswerError(f"{url}: expected {expected}, but {where}: {first['msg']}") from None

    async def _fetch(self, url: str) -> bytes:
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=self._timeout)) as response:
                if response.status in {408, 429} or response.status >= 500:  # noqa: PLR2004 - HTTP
                    raise UnavailableError(f"{url} answered {response.status} {response.reason}")
                if response.status != 200:  # noqa: PLR2004 - HTTP
                    raise RefusedError(f"{url} answered {response.status} {response.reason}")
                body = bytearray()
                async for chunk in response.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > LARGEST_ANSWER:
                        raise AnswerError(f"{url} answered more than {LARGEST_ANSWER // 2**20} MB")
                return bytes(body)
        except TimeoutError:
            raise EdgeTimeoutError(f"{url} did not answer in full within {self._timeout:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.TooManyRedirects) as error:
            raise AnswerError(f"{url} cannot be asked: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from None


def seconds(text: str | None, default: float) -> float | None:
    """A duration of Spark (`3s`, `100ms`, `2min`; seconds without a unit); None when it cannot be read."""
    if text is None:
        return default
    found = re.fullmatch(r"\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*", text.lower())
    if not found:
        return None
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2] or "s"]
    return int(found[1]) * unit


def milliseconds(text: str | None, default: float) -> float | None:
    """Like `seconds`, for settings whose bare number means milliseconds."""
    return seconds(f"{text}ms" if text is not None and text.strip().isdecimal() else text, default)


def find_application(master: Master, app: str, url: str | None) -> MasterApplication | None:
    """The application called `app` (its name or id), running or else the last that ended, or None.

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


def find_run(report: Report, query: str | None) -> Run | None:
    """The run of the query with that name or id, the newest if it was restarted, or None if there is none yet.

    Raises:
        AnswerError: no name is given and several queries are active, or the name is of none.
    """
    runs = [run for run in report.queries if query is None or query in {run.name, run.query}]
    active = [run for run in runs if run.terminated is None]
    if len({run.query for run in active}) > 1:
        names = ", ".join(sorted({run.name or run.query for run in active}))
        raise AnswerError(
            f"application {report.application.name!r} has several active queries ({names}); give query: <name>"
        )
    if not runs and query is not None and report.queries:
        names = ", ".join(sorted({run.name or run.query for run in report.queries}))
        raise AnswerError(f"application {report.application.name!r} has no query {query!r}; it has {names}")
    return max(active or runs, key=lambda run: run.started, default=None)
