"""The REST API of a reactive job: Flink 2.3's answers, the daemon's own client, engine and target, and bad input."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import re
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from autoscaler import http_connections
from autoscaler.clients.flink import FlinkApi, FlinkParameters
from autoscaler.core.model import EngineStatus, JobState
from autoscaler.engines.flink import Flink
from autoscaler.injob.reactive import rest
from autoscaler.injob.reactive.rest import MAX_BODY, PATTERNS, Server
from autoscaler.injob.reactive.rest_answers import STATUS
from autoscaler.injob.reactive.rest_rescales import rescales, statistics
from autoscaler.injob.reactive.snapshot import Commit, Executor, Failure, Measures, Query, Snapshot, State, Step
from autoscaler.ports import AnswerError, EdgeError, RefusedError, Secret, Severity
from autoscaler.schedulers.slots import Bounds
from autoscaler.sources.flink import Flink as FlinkMetrics
from autoscaler.sources.flink import FlinkSource
from autoscaler.sources.flink_metrics import FlinkQuery
from autoscaler.targets.flink_requirements import FlinkRequirements
from autoscaler.testing.contracts import LocalShared
from tests.clients.flink_stub import Shared
from tests.e2e.flink_cluster import flink_cluster, until

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "flink-2.3.json").read_text())
"""What a real Flink 2.3 answered: a job that waits for its first slots, runs after two losses, and has ended."""
JID, ONE, TWO, TRIGGER, NOBODY = (digit * 32 for digit in "abcef")
BEGAN = 1_700_000_000.0
"""Seconds since 1970."""
NOW = BEGAN + 100


def step(at: float, state: State, slots: int, *, before: int = 0, after: int = 0, why: str = "so") -> Step:
    return Step(at=BEGAN + at, state=state, why=why, slots=slots, before=before, after=after, took=1.0)


TIMELINE = (
    step(0, State.CREATED, 0),
    step(1, State.WAITING_FOR_RESOURCES, 0),
    step(5, State.CREATING, 2, after=2),
    step(7, State.EXECUTING, 2, after=2),
    step(30, State.RESTARTING, 4, before=2, after=4, why="two slots more"),
    step(31, State.CREATING, 4, before=2, after=4),
    step(33, State.EXECUTING, 4, after=4),
    step(60, State.RESTARTING, 3, before=4, after=3, why="an executor was lost"),
    step(62, State.WAITING_FOR_RESOURCES, 3, before=4, after=3),
    step(63, State.CREATING, 3, before=4, after=3),
    step(65, State.EXECUTING, 3, after=3),
)
WAITING = Snapshot(
    id=JID,
    name="counting",
    state=State.WAITING_FOR_RESOURCES,
    now=BEGAN + 3,
    entered={State.CREATED: BEGAN, State.WAITING_FOR_RESOURCES: BEGAN + 1},
    queries=(
        Query(id=ONE, name="clicks", bounds=Bounds(1, 4)),
        Query(id=TWO, name="query 2", bounds=Bounds(1, 3)),
    ),
    timeline=TIMELINE[:2],
    settings={"execution.checkpointing.interval": "10 s", "pipeline.max-parallelism": "120"},
)
RUNNING = replace(
    WAITING,
    state=State.EXECUTING,
    now=NOW,
    entered={each.state: each.at for each in TIMELINE},
    queries=(
        Query(id=ONE, name="clicks", bounds=Bounds(1, 4), parallelism=3, active=True),
        Query(id=TWO, name="query 2", bounds=Bounds(1, 3), parallelism=3, active=True),
    ),
    executors=(
        Executor(id="0", address="10.0.0.1:4040", slots=2, busy=2),
        Executor(id="1", address="10.0.0.2:4041", slots=1, busy=1),
        Executor(id="2", address="10.0.0.3:4042", slots=1, active=False),
    ),
    commits=tuple(Commit(number=n, query=ONE, batch=n, began=BEGAN + 10 * n, took=1.5, rows=100) for n in range(1, 10)),
    committed=9,
    failures=(Failure(at=BEGAN + 60, query=ONE, error="SparkException", text="executor 2 was lost"),),
    restarts=2,
    timeline=TIMELINE,
)
FINISHED = replace(
    RUNNING,
    state=State.FINISHED,
    entered={**RUNNING.entered, State.STOPPING: BEGAN + 90, State.FINISHED: BEGAN + 91},
    queries=tuple(replace(query, active=False) for query in RUNNING.queries),
    timeline=(*TIMELINE, step(90, State.STOPPING, 3), step(91, State.FINISHED, 3)),
)
SCENES = {"waiting": WAITING, "running": RUNNING, "finished": FINISHED}
MEASURES = Measures(
    age=30.0,
    busy=12.0,
    busy_share=0.5,
    records=900,
    rate=30.0,
    pending=60.0,
    written=90,
    idle=1.5,
    watermark=BEGAN + 80,
)
MEASURED = replace(RUNNING, queries=(replace(RUNNING.queries[0], name="log", measures=MEASURES),))


class Job:
    """The data that the server reads and changes."""

    def __init__(self, shown: Snapshot = RUNNING) -> None:
        self.shown = shown
        self.required: list[Mapping[str, Bounds]] = []
        self.stops: dict[str, bool] = {}
        self.cancelled = 0
        self.error: Exception | None = None

    def snapshot(self) -> Snapshot:
        if self.error:
            raise self.error
        return self.shown

    def require(self, bounds: Mapping[str, Bounds]) -> None:
        self.required.append(bounds)
        changed = tuple(replace(query, bounds=bounds[query.id]) for query in self.shown.queries)
        self.shown = replace(self.shown, queries=changed)

    def request_stop(self) -> str:
        self.stops[TRIGGER] = False
        return TRIGGER

    def cancel(self) -> None:
        self.cancelled += 1

    def stopped(self, trigger: str) -> bool | None:
        return self.stops.get(trigger)


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def url(job: Job) -> Iterator[str]:
    with serving(job) as address:
        yield address


class serving:  # noqa: N801 - named like the function that it replaces
    def __init__(self, job: Job, listen: str = "127.0.0.1:0", token: str | None = None) -> None:
        self.server = Server(job, listen, token)

    def __enter__(self) -> str:
        return self.server.start()

    def __exit__(self, *_: object) -> None:
        self.server.close()


def ask(
    url: str, path: str, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of an answer. A body of bytes is sent unchanged."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, dict(headers or {}))
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "application/json; charset=UTF-8"
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def bounds(lower: object, upper: object, *ids: str) -> dict[str, Any]:
    return {one: {"parallelism": {"lowerBound": lower, "upperBound": upper}} for one in ids or (ONE, TWO)}


def localized(path: str, url: str, jid: str = JID) -> str:
    """A recorded path, for this job."""
    if "RESCALE" in path:
        _, history = ask(url, f"/jobs/{jid}/rescales/history")
        path = path.replace("RESCALE", history[0]["rescaleUuid"])
    return path.replace("JOB", jid).replace("TRIGGER", TRIGGER)


# ----------------------------------------------------------------------------------------------------------
# keys and types of a real Flink

HISTORY = {"web.adaptive-scheduler.rescale-history.size": "10", "execution.shutdown-on-application-finish": "false"}
# Flink's location of a failure; Spark knows only the query.
OPTIONAL = {"taskName", "endpoint", "taskManagerId"}
# An ended or waiting job may have one although the recorded one has none, and vice versa.
NULLABLE = {"completed", "savepoint", "failed", "ignored", "restored", "application-id", "savepointFormat"}
NULLABLE |= {"endTimestampInMillis", "terminalState", "terminatedReason", "stringifiedException"}
NULLABLE |= {"preRescaleParallelism", "preRescaleSlots", "schedulerExecutionMode"}


def differences(real: object, ours: object, at: str = "") -> list[str]:
    """The keys and JSON types in which an answer differs from the recorded one."""
    name = at.rpartition(".")[2]
    if isinstance(real, dict) and isinstance(ours, dict):
        real, ours = ({re.sub(r"^[0-9a-f]{32}$", "ID", key): each[key] for key in each} for each in (real, ours))
        keys = (real.keys() ^ ours.keys()) - OPTIONAL
        return [f"{at}: {sorted(keys)}"] * bool(keys) + [
            line for key in real.keys() & ours.keys() for line in differences(real[key], ours[key], f"{at}.{key}")
        ]
    if isinstance(real, list) and isinstance(ours, list):
        return differences(real[0], ours[0], at) if real and ours else []
    if (real is None or ours is None) and name in NULLABLE:
        return []
    if "NaN" in (real, ours) and {type(real), type(ours)} <= {float, str}:
        return []
    return [] if type(real) is type(ours) else [f"{at}: {real!r} is {ours!r}"]


@pytest.mark.parametrize(
    ("scene", "path"),
    [
        (scene, path)
        for scene in SCENES
        for path in RECORDED[scene]
        # Flink has no such path, and forgets the bounds of a job that has ended.
        if path != "/jobs/JOB/rescales" and (scene, path) != ("finished", "/jobs/JOB/resource-requirements")
    ],
)
def test_an_answer_has_the_keys_and_types_of_flinks(scene: str, path: str, job: Job, url: str) -> None:
    job.shown = SCENES[scene]
    job.stops = {TRIGGER: True}
    status, answer = ask(url, localized(path, url))
    recorded = RECORDED[scene][path]
    assert (status, differences(recorded["answer"], answer)) == (recorded["status"], [])


def test_each_path_is_compared_with_flinks() -> None:
    covered = {re.sub(r"\?.*", "", path) for scene in SCENES for path in RECORDED[scene]}
    named = {"{job}": "JOB", "{rescale}": "RESCALE", "{trigger}": "TRIGGER"}
    paths = {re.sub(r"\{job\}|\{rescale\}|\{trigger\}", lambda found: named[found[0]], path) for path in PATTERNS}
    covered |= {re.sub(r"VERTEX", "{vertex}", re.sub(r"\?.*", "", path)) for path in RECORDED["metrics"]}
    assert paths - covered == {"/jobmanager/config", "/jobs/JOB/stop"}


def shape(answer: object) -> object:
    """The shape of an answer about metrics, without the numbers."""
    if isinstance(answer, list):
        return [(one["id"], *one) for one in answer]
    assert isinstance(answer, dict)
    return list(answer)


def is_like_flinks(path: str, real: tuple[int, Any], ours: tuple[int, Any]) -> bool:
    if "get=" in path or real[1] == [] or real[0] != 200:
        return real[0] == ours[0] and shape(real[1]) == shape(ours[1])
    # Flink has many more names than Spark has data for.
    return real[0] == ours[0] and bool(ours[1]) and set(shape(ours[1])) <= set(shape(real[1]))  # type: ignore[call-overload]


@pytest.mark.parametrize("path", RECORDED["metrics"])
def test_metrics_are_answered_as_by_flink(path: str, job: Job, url: str) -> None:
    job.shown = MEASURED
    recorded = RECORDED["metrics"][path]
    answered = ask(url, path.replace("JOB", JID).replace("VERTEX", ONE))
    assert is_like_flinks(path, (recorded["status"], recorded["answer"]), answered), answered
    if recorded["status"] != 200:
        assert answered[1]["errors"][0].startswith(recorded["answer"]["errors"][0])


@pytest.mark.e2e
def test_a_real_flink_answers_as_recorded(tmp_path: Path, job: Job, url: str) -> None:
    with flink_cluster(tmp_path, {"jobmanager.scheduler": "adaptive", **HISTORY}, cost=1, partitions=2) as flink:
        config = flink.conf / "config.yaml"
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith("scheduler-mode")))
        flink.start_job_manager()
        flink.start_task_manager(1)
        until(lambda: flink.parallelism() == 1, what="for the job to run")
        flink.offer(10.0)
        jid = flink.job_id()
        until(lambda: flink.get(f"/jobs/{jid}/checkpoints")["counts"]["completed"], what="for a checkpoint")
        wrong: dict[str, object] = {}
        for path in RECORDED["running"]:
            if path != "/jobs/JOB/rescales":
                real = ask(flink.rest, localized(path, flink.rest, jid))
                ours = ask(url, localized(path, url))
                if real[0] != ours[0] or differences(real[1], ours[1]):
                    wrong[path] = real[0], ours[0], differences(real[1], ours[1])
        vertex = flink.get(f"/jobs/{jid}")["vertices"][0]["id"]
        metrics = f"/jobs/{jid}/vertices/{vertex}/subtasks/metrics"
        until(lambda: {"id": "Source__log.pendingRecords"} in flink.get(metrics), what="for the source's metrics")
        job.shown = MEASURED
        for path in RECORDED["metrics"]:
            real = ask(flink.rest, path.replace("JOB", jid).replace("VERTEX", vertex))
            ours = ask(url, path.replace("JOB", JID).replace("VERTEX", ONE))
            if not is_like_flinks(path, real, ours):
                wrong[path] = real, ours
        job.shown = RUNNING
        assert not wrong
        known = list(flink.get(f"/jobs/{jid}/resource-requirements"))
        for lower, upper in ((3, 2), (0, 2), (1, 0), ("a", 2), (None, 2), (True, 2), (1, 2**40), (1, 100_000), (1, 2)):
            path = "/resource-requirements"
            real = ask(flink.rest, f"/jobs/{jid}{path}", "PUT", bounds(lower, upper, *known))
            ours = ask(url, f"/jobs/{JID}{path}", "PUT", bounds(lower, upper))
            assert real[0] == ours[0], (lower, upper, real, ours)
            assert type(real[1]) is type(ours[1])
            assert list(real[1]) == list(ours[1])
        assert ask(flink.rest, f"/jobs/{jid}?mode=cancel", "PATCH") == ask(url, f"/jobs/{JID}?mode=cancel", "PATCH")


# Flink answers 500 to some mistakes, 200 to others, and accepts 100 MB.
BETTER = {
    "put null: PUT /jobs/JOB/resource-requirements": 400,
    "put nulls: PUT /jobs/JOB/resource-requirements": 400,
    "put neg: PUT /jobs/JOB/resource-requirements": 400,
    "put str bound: PUT /jobs/JOB/resource-requirements": 400,
    "put float: PUT /jobs/JOB/resource-requirements": 400,
    "put wholefloat: PUT /jobs/JOB/resource-requirements": 400,
    "put trailing: PUT /jobs/JOB/resource-requirements": 400,
    "put big10MB: PUT /jobs/JOB/resource-requirements": 413,
    f"unknownjob: GET /jobs/{'0' * 32}/resource-requirements": 404,
    f"unknownjob: PUT /jobs/{'0' * 32}/resource-requirements": 404,
}


def test_mistakes_have_the_status_of_flinks(url: str) -> None:
    bodies = {
        "text": b"hello", "html": b"<html><body>x</body></html>", "empty": b"", "array": [], "null": b"null",
        "emptyobject": {}, "unknown": bounds(1, 2, NOBODY), "badid": bounds(1, 2, "xyz"), "missing": bounds(1, 2, ONE),
        "lower>upper": bounds(3, 2), "zero": bounds(0, 2), "zeroupper": bounds(1, 0), "neg": bounds(-1, 2),
        "text bound": bounds("a", 2), "str bound": bounds("1", "2"), "float": bounds(1.5, 2),
        "wholefloat": bounds(1.0, 2.0), "nullbound": bounds(None, 2), "bool": bounds(True, 2),
        "huge": bounds(1, 2**40), "nopar": {ONE: {}, TWO: {}}, "nulls": {ONE: None, TWO: None},
        "nullpar": {ONE: {"parallelism": None}, TWO: {"parallelism": None}}, "toobig": bounds(1, 100_000),
        "nan": b'{"a": NaN}', "trailing": json.dumps(bounds(1, 2)).encode() + b" x",
        "upper-missing": {ONE: {"parallelism": {"lowerBound": 1}}, TWO: {"parallelism": {"lowerBound": 1}}},
        "big10MB": b'{"a":"' + b"x" * 10_000_000 + b'"}',
        "extra": {one: {"parallelism": {"lowerBound": 1, "upperBound": 2, "x": 1}} for one in (ONE, TWO)},
        "extra2": {one: {"parallelism": {"lowerBound": 1, "upperBound": 2}, "x": 1} for one in (ONE, TWO)},
        "dup": (json.dumps(bounds(1, 2))[:-1] + "," + json.dumps(bounds(1, 2))[1:]).encode(),
    }  # fmt: skip
    wrong: dict[str, tuple[int, int, Any]] = {}
    compared = 0
    for key, recorded in RECORDED["requests"].items():
        label, _, rest = key.partition(": ")
        method, path = rest.split(" ")
        kind, _, which = label.partition(" ")
        if kind not in {"put", "method", "unknownjob", "badjob", "patch"} or which in {"ok", "finished"} or path == "/":
            continue
        if method == "HEAD" or re.search(r"/vertices/\w+$", path) or (path.endswith("/stop") and kind == "unknownjob"):
            continue  # an answer without a body; not served; Flink's answer is about its savepoint directory
        compared += 1
        body = bodies.get(which, bounds(1, 2) if kind != "method" else {}) if method not in {"GET", "OPTIONS"} else None
        status, answer = ask(url, path.replace("JOB", JID), method, body)
        if status != BETTER.get(key, recorded["status"]):
            wrong[key] = status, recorded["status"], answer
        if status >= 300:
            assert list(answer) == ["errors"]
            assert all(isinstance(line, str) and line for line in answer["errors"])
    assert not wrong
    assert compared > 60


# ----------------------------------------------------------------------------------------------------------
# the daemon's own client, engine and target


@asynccontextmanager
async def connected(url: str, **parameters: Any) -> AsyncIterator[FlinkApi]:
    async with LocalShared() as shared:
        yield await FlinkParameters(url=url, **parameters).api(shared)


async def test_the_daemons_client_parses_each_answer(url: str) -> None:
    async with connected(url) as api:
        overview = await api.overview()
        assert (overview.slots_total, overview.slots_available) == (3, 0)
        assert (await api.get("/overview"))["taskmanagers"] == 2
        line = await api.find_job("counting")
        assert line is not None
        assert (line.jid, line.state, line.ended, line.start) == (JID, "RUNNING", False, BEGAN * 1000)
        shown = await api.job(JID)
        assert [(each.name, each.parallelism, each.running) for each in shown.vertices] == [
            ("clicks", 3, True),
            ("query 2", 3, True),
        ]
        assert shown.sources == shown.vertices
        assert shown.since("RUNNING") == (BEGAN + 65) * 1000
        assert shown.since("RESTARTING") is None, "that was before its last start"
        assert {each.host for each in await api.taskmanagers()} == {"10.0.0.1", "10.0.0.2"}
        assert (await api.cluster_config())["jobmanager.scheduler"] == "adaptive"
        checkpointing = await api.checkpoint_config(JID)
        assert checkpointing is not None
        assert checkpointing.periodic == 10.0
        checkpoints = await api.checkpoints(JID)
        assert checkpoints is not None
        assert checkpoints.latest.completed is not None
        every: Any = await api.get(f"/jobs/{JID}/checkpoints")
        assert (every["counts"]["completed"], every["latest"]["completed"]["id"]) == (9, 9)
        assert await api.job_metrics(JID, ("numRestarts", "uptime", "nonsense")) == {"numRestarts": 2, "uptime": 35_000}
        assert await api.metrics_age(shown) is not None
        assert await api.vertex_metric_names(JID, ONE) == frozenset()
        assert await api.vertex_metrics(JID, ONE, ("numRecordsIn",)) == {}
        assert await api.taskmanager_metrics(("Status.JVM.CPU.Load",)) == {}


class Poll:
    """The daemon's source, which polls the server again each time."""

    def __init__(self, job: Job, source: FlinkSource, shared: Shared) -> None:
        self.job, self._source, self._shared = job, source, shared
        self._at = datetime.fromtimestamp(NOW, UTC)

    async def __call__(self, metric: str, **query: Any) -> float:
        found = (await self._source.collect(FlinkQuery(metric=metric, **query), self._at)).value
        assert isinstance(found, float)
        return found

    async def next(self, measures: Measures | None) -> None:
        """Set this progress if any, and let the source poll it."""
        (query,) = self.job.shown.queries
        self.job.shown = replace(self.job.shown, queries=(replace(query, measures=measures),))
        self._at += timedelta(seconds=15)
        self._shared.forget()
        with contextlib.suppress(AnswerError):
            await self("throughput")


@pytest.fixture
async def poll(job: Job, url: str) -> AsyncIterator[Poll]:
    job.shown = MEASURED
    shared = Shared()
    async with shared.stack, FlinkMetrics(url=url, job="counting").connect(shared) as source:
        yield Poll(job, source, shared)


async def test_the_daemons_source_reads_the_progress_of_a_query(poll: Poll) -> None:
    await poll.next(MEASURES)
    # In 10 s it read 400 records in 8 s of work, and 40 more wait than before.
    await poll.next(replace(MEASURES, age=40.0, busy=20.0, records=1300, pending=100.0))
    assert await poll("lag") == 100
    assert await poll("throughput") == pytest.approx(40)
    assert await poll("arrivals") == pytest.approx(44)
    assert await poll("saturation") == pytest.approx(0.8)
    assert await poll("utilization") == pytest.approx(0.8)
    assert await poll("capacity", aggregate="avg") == pytest.approx(50)
    assert await poll("required_parallelism", aggregate="avg") == 4, "44 / 0.7 of 16.7 each"
    assert await poll("source_idle") == 1.5
    assert await poll("watermark_lag") == 20
    assert await poll("vertices") == 1
    assert await poll("busy", vertex="log") == pytest.approx(0.8)
    assert await poll("checkpoint_duration") == 1.5


async def test_readings_get_older_while_a_batch_runs(poll: Poll) -> None:
    await poll.next(MEASURES)
    await poll.next(replace(MEASURES, age=40.0, busy=20.0, records=1300))
    before = await poll("throughput")
    await poll.next(replace(MEASURES, age=40.0, busy=20.0, records=1300))
    assert await poll("throughput") == before


@pytest.mark.parametrize("metric", ["lag", "throughput", "saturation", "heap", "gc", "cpu"])
async def test_unmeasured_values_are_unknown_and_not_zero(metric: str, poll: Poll) -> None:
    await poll.next(None)
    with pytest.raises(AnswerError):
        await poll(metric)


async def test_a_source_that_does_not_report_its_newest_offset_has_no_lag(poll: Poll) -> None:
    await poll.next(replace(MEASURES, pending=None))
    await poll.next(replace(MEASURES, pending=None, age=40.0, records=1300))
    with pytest.raises(AnswerError, match="does not report pendingRecords"):
        await poll("lag")
    assert await poll("throughput") == pytest.approx(40)


def test_while_the_busy_share_is_unknown_only_the_busy_share_is_missing(job: Job, url: str) -> None:
    unknown = replace(MEASURES, busy_share=None)
    job.shown = replace(MEASURED, queries=(replace(MEASURED.queries[0], measures=unknown),))
    path = f"/jobs/{JID}/vertices/{ONE}/subtasks/metrics"
    _, names = ask(url, path)
    assert {"id": "accumulateBusyTimeMs"} in names
    assert {"id": "busyTimeMsPerSecond"} not in names
    assert ask(url, f"{path}?get=numRecordsIn,busyTimeMsPerSecond") == (200, [])


async def test_a_query_that_may_have_an_unreported_backlog_is_not_taken_for_idle(poll: Poll, url: str) -> None:
    await poll.next(replace(MEASURES, busy=None, busy_share=None, pending=None))
    _, names = ask(url, f"/jobs/{JID}/vertices/{ONE}/subtasks/metrics")
    assert {one["id"].removeprefix("Source__log.") for one in names} == {
        *("numRecordsIn", "numRecordsInPerSecond", "numRecordsOut", "sourceIdleTime", "currentOutputWatermark"),
    }
    for metric in ("saturation", "utilization"):
        with pytest.raises(AnswerError, match="reports"):
            await poll(metric)


def test_the_records_of_a_query_are_divided_among_subtasks(job: Job, url: str) -> None:
    job.shown = MEASURED
    path = f"/jobs/{JID}/vertices/{ONE}/subtasks/metrics"
    names = "numRecordsIn,accumulateBusyTimeMs,accumulateIdleTimeMs,busyTimeMsPerSecond,Source__log.pendingRecords"
    found = {one["id"]: (one["avg"], one["sum"]) for one in ask(url, f"{path}?get={names}")[1]}
    assert found == {
        "numRecordsIn": (300, 900),
        "accumulateBusyTimeMs": (12_000, 36_000),
        "accumulateIdleTimeMs": (18_000, 54_000),
        "busyTimeMsPerSecond": (500, 1500),
        "Source__log.pendingRecords": (20, 60),
    }
    for subtasks, chosen in (("0-1", 2), ("2", 1), ("1-99", 2), ("0,0-1", 2), ("3", None), ("0-999999999", 3)):
        _, answer = ask(url, f"{path}?get=numRecordsIn&agg=sum&subtasks={subtasks}")
        assert answer == ([{"id": "numRecordsIn", "sum": 300 * chosen}] if chosen else [])


async def test_the_daemons_client_shows_errors_of_bounds(url: str) -> None:
    async with connected(url) as api:
        with pytest.raises(RefusedError, match=f"lower bound .3. for job vertex .{TWO}. is higher than the upper"):
            await api.put_requirements(JID, {ONE: (3, 2), TWO: (3, 2)})
        with pytest.raises(RefusedError, match=f"missing job vertex .{TWO}. resource requirements. Send "):
            await api.put_requirements(JID, {ONE: (1, 2)})
        with pytest.raises(RefusedError, match=f"Job {NOBODY} not found"):
            await api.requirements(NOBODY)


@asynccontextmanager
async def engine(url: str) -> AsyncIterator[Any]:
    async with LocalShared() as shared, Flink(url=url, job="counting").connect(shared) as live:
        yield live


async def test_the_daemons_engine_describes_a_running_job(url: str) -> None:
    async with engine(url) as live:
        status = await live.describe()
        assert (status.job, status.slots, status.parallelism, status.max_parallelism) == (JobState.RUNNING, 3, 3, 120)
        assert status.running_since == datetime.fromtimestamp(BEGAN + 65, UTC)
        assert status.last_checkpoint == datetime.fromtimestamp(BEGAN + 91.5, UTC)
        assert status.restarts == 2
        workers = await live.workers()
    assert [(worker.id, worker.cost, "10.0.0.1" in worker.hosts) for worker in workers] == [
        ("10.0.0.1:4040-0", 2.0, True),
        ("10.0.0.2:4041-1", 1.0, False),
    ]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.CREATED, JobState.RESTARTING),
        (State.WAITING_FOR_RESOURCES, JobState.RESTARTING),
        (State.CREATING, JobState.RESTARTING),
        (State.EXECUTING, JobState.RUNNING),
        (State.RESTARTING, JobState.RESTARTING),
        (State.STOPPING, JobState.RUNNING),
        (State.CANCELING, JobState.STOPPED),
        (State.FAILING, JobState.RESTARTING),
        (State.FAILED, JobState.FAILED),
        (State.FINISHED, JobState.STOPPED),
        (State.CANCELED, JobState.STOPPED),
    ],
)
async def test_the_daemons_engine_recognizes_each_state(state: State, expected: JobState, job: Job, url: str) -> None:
    running = state in {State.EXECUTING, State.STOPPING}
    job.shown = replace(
        RUNNING,
        state=state,
        entered={**RUNNING.entered, state: RUNNING.entered[State.EXECUTING] if running else BEGAN + 99},
        queries=tuple(replace(query, active=running) for query in RUNNING.queries),
    )
    async with engine(url) as live:
        status: EngineStatus = await live.describe()
    assert status.job is expected
    assert ask(url, f"/jobs/{JID}/status") == (200, {"status": STATUS[state]})


async def test_a_job_that_waits_for_its_first_slots_is_starting(job: Job, url: str) -> None:
    job.shown = WAITING
    async with engine(url) as live:
        status = await live.describe()
    assert (status.job, status.slots, status.parallelism, status.restarts) == (JobState.STARTING, 0, 0, None)


async def test_a_query_without_a_slot_does_not_run(job: Job, url: str) -> None:
    job.shown = replace(RUNNING, queries=(replace(RUNNING.queries[0], parallelism=0), RUNNING.queries[1]))
    async with engine(url) as live:
        assert (await live.describe()).job is JobState.RESTARTING
    _, shown = ask(url, f"/jobs/{JID}")
    assert [each["status"] for each in shown["vertices"]] == ["SCHEDULED", "RUNNING"]


async def test_a_finished_query_does_no_harm(job: Job, url: str) -> None:
    job.shown = replace(RUNNING, queries=(replace(RUNNING.queries[0], active=False), RUNNING.queries[1]))
    async with engine(url) as live:
        assert (await live.describe()).job is JobState.RUNNING


async def test_the_daemons_doctor_finds_the_adaptive_scheduler_and_no_error(url: str) -> None:
    async with engine(url) as live:
        findings = await live.diagnose()
    # Not high-availability.type: a restarted driver continues from the checkpoint.
    assert {each.subject for each in findings} == {
        "scheduler-mode",
        "heartbeat.timeout",
        "taskmanager.numberOfTaskSlots",
    }
    assert all(each.severity is Severity.WARNING for each in findings)


async def test_without_a_configured_interval_it_is_that_of_the_commits(job: Job, url: str) -> None:
    job.shown = replace(RUNNING, settings={})
    async with connected(url) as api:
        checkpointing = await api.checkpoint_config(JID)
    assert checkpointing is not None
    assert checkpointing.periodic == 10.0


@asynccontextmanager
async def target(url: str, **parameters: Any) -> AsyncIterator[Any]:
    async with LocalShared() as shared, FlinkRequirements(url=url, **parameters).connect(shared) as live:
        yield live


async def test_the_daemons_target_describes_and_scales(job: Job, url: str) -> None:
    async with target(url, job="counting") as live:
        status = await live.describe()
        assert (status.desired, status.ready) == (4, 3)
        assert status.remarks == ("the cluster has no free slot: the job runs at 3 of 4 until TaskManagers are added",)
        assert status.ceiling is not None
        assert status.ceiling.replicas == 120
        await live.scale(2)
        assert job.required == [{ONE: Bounds(1, 2), TWO: Bounds(1, 2)}]
        assert (await live.describe()).desired == 2
        with pytest.raises(RefusedError, match="121 is more than any vertex can use"):
            await live.scale(121)
        assert await live.diagnose() == []


async def test_the_daemons_target_waits_for_queries_that_are_not_known_yet(job: Job, url: str) -> None:
    job.shown = replace(WAITING, queries=())
    async with target(url) as live:
        with pytest.raises(EdgeError, match="its vertices are not all known yet"):
            await live.describe()


async def test_the_daemons_target_reports_that_a_job_has_ended(job: Job, url: str) -> None:
    job.shown = FINISHED
    async with target(url, job="counting") as live:
        with pytest.raises(AnswerError, match=r"has ended \(FINISHED\)"):
            await live.scale(2)


async def test_the_daemons_target_refuses_reactive_mode(job: Job, url: str) -> None:
    job.shown = replace(RUNNING, settings={"scheduler-mode": "reactive"})
    async with target(url, job="counting") as live:
        with pytest.raises(RefusedError, match="runs in Reactive Mode"):
            await live.describe()
    async with connected(url) as api:
        with pytest.raises(RefusedError, match="Cannot change the parallelism of a job running in reactive mode"):
            await api.put_requirements(JID, {ONE: (1, 2), TWO: (1, 2)})
    assert not job.required


async def test_the_daemons_target_sends_the_token(job: Job) -> None:
    with serving(job, token="open-sesame") as url:
        async with target(url, token=Secret("open-sesame")) as live:
            await live.scale(2)
        async with target(url) as live:
            with pytest.raises(RefusedError, match="Changes need the job's token"):
                await live.scale(3)
    assert job.required == [{ONE: Bounds(1, 2), TWO: Bounds(1, 2)}]


# ----------------------------------------------------------------------------------------------------------
# changes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"hello", "did not match expected format JobResourceRequirementsBody. Send "),
        (b"<html></html>", "did not match expected format JobResourceRequirementsBody. Send "),
        (b"\xff\xfe\x00", "did not match expected format"),
        (b"[" * 100_000, "did not match expected format"),
        (b'{"a": ' * 100_000, "did not match expected format"),
        (b"1" * 5_000, "did not match expected format"),
        ([], "did not match expected format"),
        ({}, "does not specify resource requirements. Send "),
        (b"", "does not specify resource requirements. Send "),
        (b"null", "does not specify resource requirements"),
        (bounds(1, 2, "xyz"), "'xyz': {'parallelism': {'lowerBound': 1, 'upperBound': 2}} is not understood. Send "),
        (bounds(1, 2, ""), "'': {'parallelism'"),
        (bounds("1", 2), "is not understood"),
        (bounds(1.0, 2), "is not understood"),
        (bounds(True, 2), "is not understood"),
        (bounds(None, 2), "is not understood"),
        (bounds(1, 2**31), "is not understood"),
        ({ONE: None, TWO: 3}, "None is not understood"),
        (bounds(1, 2, NOBODY), f"Job vertex [{NOBODY}] was not found in the JobGraph.\nThe request is incomplete"),
        (bounds(1, 2, ONE), f"missing job vertex [{TWO}] resource requirements. Send "),
        (bounds(1, 2, ONE, TWO, NOBODY), f"Job vertex [{NOBODY}] was not found in the JobGraph. Send "),
        (bounds(3, 2), "The requested lower bound [3] for job vertex"),
        (bounds(0, 2), "Both, the requested lower bound [0] and upper bound [2] for job vertex"),
        (bounds(-1, -1), "must be greater than zero"),
        (bounds(1, 121), "exceeds its maximum parallelism 120."),
        ({f"{n:032x}": bounds(1, 2, ONE)[ONE] for n in range(1000)}, "was not found"),
    ],
)
def test_bounds_that_cannot_be_set_are_refused(body: object, message: str, job: Job, url: str) -> None:
    status, answer = ask(url, f"/jobs/{JID}/resource-requirements", "PUT", body)
    (error,) = answer["errors"]
    assert status == 400
    assert message in error
    assert len(error) < 3000
    assert not job.required


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json"}])
def test_bounds_are_set_whatever_the_content_type(headers: dict[str, str], job: Job, url: str) -> None:
    assert ask(url, f"/jobs/{JID}/resource-requirements", "PUT", bounds(1, 2), headers) == (200, {})
    assert job.required == [{ONE: Bounds(1, 2), TWO: Bounds(1, 2)}]
    assert ask(url, f"/jobs/{JID}/resource-requirements") == (200, bounds(1, 2))


def test_ids_may_be_in_upper_case(job: Job, url: str) -> None:
    body = bounds(1, 2, ONE.upper(), TWO.upper())
    assert ask(url, f"/jobs/{JID.upper()}/resource-requirements", "PUT", body) == (200, {})
    assert job.required


@pytest.mark.parametrize("size", [MAX_BODY + 1, 10_000_000])
def test_a_body_above_a_megabyte_is_refused(size: int, job: Job, url: str) -> None:
    status, answer = ask(url, f"/jobs/{JID}/resource-requirements", "PUT", b" " * size)
    assert status == 413
    assert answer["errors"][0].startswith("The request is longer than 1048576 bytes.")
    assert not job.required
    assert ask(url, "/overview")[0] == 200


def test_a_body_that_does_not_arrive_times_out(job: Job, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "BODY_TIMEOUT", 0.05)
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection:
        connection.sendall(f"POST /jobs/{JID}/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
    assert not job.stops


def closes(connection: socket.socket) -> bool:
    """Whether the server closes the connection."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /overview HT", b"GET /overview HTTP/1.1\r\nHost: local"])
def test_a_client_that_sends_an_incomplete_request_is_disconnected(
    sent: bytes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "IDLE_TIMEOUT", 0.1)
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection:
        connection.sendall(sent)
        assert closes(connection)


def test_a_connection_stays_open_for_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "KEEP_ALIVE", 0.1)
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection:
        connection.sendall(b"GET /overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert closes(connection)


def test_idle_clients_do_not_block_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    with serving(job) as url, contextlib.ExitStack() as stack:
        parts = urlsplit(url)
        address = parts.hostname or "", parts.port or 0
        idle = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(50)]
        assert ask(url, "/overview")[0] == 200
        # A quarter of the descriptors are left.
        assert all(closes(connection) for connection in idle[:40])


def test_a_job_is_stopped_with_a_last_commit(job: Job, url: str) -> None:
    for body in (None, {}, {"targetDirectory": "file:/x", "drain": False, "formatType": None}):
        assert ask(url, f"/jobs/{JID}/stop", "POST", body) == (202, {"request-id": TRIGGER})
    path = f"/jobs/{JID}/savepoints/{TRIGGER}"
    assert ask(url, path) == (200, {"status": {"id": "IN_PROGRESS"}, "operation": None})
    job.stops[TRIGGER] = True
    status, answer = ask(url, path)
    assert (status, answer["status"], list(answer["operation"])) == (200, {"id": "COMPLETED"}, ["location"])
    status, answer = ask(url, f"/jobs/{JID}/savepoints/{NOBODY}")
    assert (status, answer["errors"][0]) == (
        404,
        f"There is no savepoint operation with triggerId={NOBODY} for job {JID}. POST /jobs/{JID}/stop starts one.",
    )


def test_a_stop_that_failed_reports_the_reason(job: Job, url: str) -> None:
    job.stops[TRIGGER] = True
    job.shown = replace(FINISHED, state=State.FAILED)
    _, answer = ask(url, f"/jobs/{JID}/savepoints/{TRIGGER}")
    assert answer["operation"]["failure-cause"]["stack-trace"] == "SparkException: executor 2 was lost"


@pytest.mark.parametrize("body", [b"text", [], {"drain": "maybe"}, {"drain": True}, {"targetDirectory": 3}])
def test_an_invalid_stop_request_is_refused(body: object, job: Job, url: str) -> None:
    status, answer = ask(url, f"/jobs/{JID}/stop", "POST", body)
    assert (status, list(answer)) == (400, ["errors"])
    assert not job.stops


def test_a_job_is_cancelled(job: Job, url: str) -> None:
    assert ask(url, f"/jobs/{JID}?mode=cancel", "PATCH") == (202, {})
    assert ask(url, f"/jobs/{JID}", "PATCH") == (202, {})
    assert job.cancelled == 2
    job.shown = replace(FINISHED, state=State.CANCELED)
    assert ask(url, f"/jobs/{JID}?mode=cancel", "PATCH") == (202, {}), "as Flink: it is cancelled already"
    assert job.cancelled == 2


def test_an_ended_job_is_not_changed(job: Job, url: str) -> None:
    job.shown = FINISHED
    for path, method in (("/resource-requirements", "PUT"), ("/stop", "POST"), ("?mode=cancel", "PATCH")):
        status, answer = ask(url, f"/jobs/{JID}{path}", method, bounds(1, 2) if method == "PUT" else None)
        assert status == 409
        assert "FINISHED" in answer["errors"][0]
    assert (job.required, job.stops, job.cancelled) == ([], {}, 0)


CHANGES = (
    (f"/jobs/{JID}/resource-requirements", "PUT", bounds(1, 2)),
    (f"/jobs/{JID}/stop", "POST", None),
    (f"/jobs/{JID}?mode=cancel", "PATCH", None),
)


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
def test_a_change_needs_the_token(path: str, method: str, body: object, job: Job) -> None:
    with serving(job, token="open-sesame") as url:
        for given in (None, "", "Bearer", "Bearer open-sesam", "open-sesame", "Basic open-sesame", "Bearer \xe9"):
            status, answer = ask(url, path, method, body, {"Authorization": given} if given is not None else {})
            assert status == 401
            assert "Authorization: Bearer" in answer["errors"][0]
            assert "sesame" not in answer["errors"][0]
        assert (job.required, job.stops, job.cancelled) == ([], {}, 0)
        assert ask(url, "/overview")[0] == 200, "reading does not"
        assert ask(url, path, method, body, {"Authorization": "Bearer open-sesame"})[0] in {200, 202}


@pytest.mark.parametrize(("path", "method", "body"), CHANGES)
def test_without_a_token_only_loopback_clients_may_change_something(
    path: str, method: str, body: object, job: Job
) -> None:
    with serving(job, "0.0.0.0:0") as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(local, "/overview")[0] == 200
        status, answer = ask(local, path, method, body)
        assert status == 403
        assert answer["errors"] == [
            "Changes are refused: the job listens on 0.0.0.0 without a token. Give it a token, or loopback."
        ]
    with serving(job, "0.0.0.0:0", token="t") as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert ask(local, path, method, body, {"Authorization": "Bearer t"})[0] in {200, 202}


def test_web_pages_of_other_sites_change_nothing(job: Job, url: str) -> None:
    for origin in ("http://evil.example", "null", "http://[", "file://"):
        status, _ = ask(url, f"/jobs/{JID}/stop", "POST", b"{}", {"Origin": origin})
        assert status == 403
    assert not job.stops
    assert ask(url, f"/jobs/{JID}/stop", "POST", b"{}", {"Origin": "http://localhost:8081"})[0] == 202


# ----------------------------------------------------------------------------------------------------------
# reading


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/", 404, "Unable to load requested file /. GET /jobs/overview shows the job."),
        ("/nosuch", 404, "Unable to load requested file /nosuch."),
        (f"/jobs/{JID}/nosuch", 404, "Unable to load requested file"),
        (f"/jobs/{JID}/stop", 404, "This path has only POST."),
        ("/jobs/xyz", 400, 'Cannot resolve path parameter (jobid) from value "xyz". Expected 32 hexadecimal digits'),
        (f"/jobs/{NOBODY}", 404, f"Job {NOBODY} not found. GET /jobs shows the job that runs here."),
        (f"/jobs/{JID}/vertices/xyz/subtasks/metrics", 400, "(vertexid)"),
        (f"/jobs/{JID}/savepoints/xyz", 400, "(triggerid)"),
        (f"/jobs/{JID}/rescales/details/{NOBODY}", 404, f"/jobs/{JID}/rescales/history shows those that are known"),
        (f"/jobs/{JID}/rescales/details/xyz", 400, "(rescaleuuid)"),
        (f"/jobs/{JID}/exceptions?maxExceptions=x", 400, "(maxExceptions)"),
        (f"/jobs/{JID}/exceptions?maxExceptions=-1", 400, "(maxExceptions)"),
        ("/" + "a" * 3000, 404, "Unable to load"),
    ],
)
def test_the_error_for_an_unknown_path_says_what_to_do(path: str, status: int, message: str, url: str) -> None:
    answered, answer = ask(url, path)
    assert answered == status
    assert message in answer["errors"][0]
    assert len(answer["errors"][0]) < 400


def test_paths_may_have_a_version_and_a_slash(url: str) -> None:
    for path in ("/v1/overview", "/overview/", "/v1/overview/"):
        assert ask(url, path)[1]["taskmanagers"] == 2


def test_an_unknown_job_has_no_metrics(url: str) -> None:
    assert ask(url, f"/jobs/{NOBODY}/metrics?get=uptime") == (200, [])


def test_failures_are_listed_newest_first_up_to_the_requested_number(job: Job, url: str) -> None:
    failures = tuple(Failure(at=BEGAN + n, query=None, error="E", text=str(n)) for n in range(25))
    job.shown = replace(RUNNING, failures=failures)
    _, answer = ask(url, f"/jobs/{JID}/exceptions")
    entries = answer["exceptionHistory"]["entries"]
    assert (len(entries), answer["exceptionHistory"]["truncated"], entries[0]["stacktrace"]) == (20, True, "E: 24")
    _, answer = ask(url, f"/jobs/{JID}/exceptions?maxExceptions=30")
    assert (len(answer["exceptionHistory"]["entries"]), answer["exceptionHistory"]["truncated"]) == (25, False)


def test_free_slots_are_those_that_the_job_does_not_use(job: Job, url: str) -> None:
    narrow = tuple(replace(query, parallelism=1) for query in RUNNING.queries)
    job.shown = replace(RUNNING, queries=narrow)
    assert ask(url, "/overview")[1]["slots-available"] == 2
    job.shown = replace(RUNNING, state=State.RESTARTING)
    assert ask(url, "/overview")[1]["slots-available"] == 3


# ----------------------------------------------------------------------------------------------------------
# rescales


def test_the_timeline_is_shown_as_flinks_history_of_rescales(url: str) -> None:
    _, history = ask(url, f"/jobs/{JID}/rescales/history")
    assert [(one["triggerCause"], one["terminalState"], one["rescaleAttemptId"]) for one in history] == [
        ("RECOVERABLE_FAILOVER", "COMPLETED", 3),
        ("NEW_RESOURCE_AVAILABLE", "COMPLETED", 2),
        ("INITIAL_SCHEDULE", "COMPLETED", 1),
    ]
    _, details = ask(url, f"/jobs/{JID}/rescales/details/{history[0]['rescaleUuid']}")
    spans = [
        (span["state"], span["durationInMillis"], span["stringifiedException"]) for span in details["schedulerStates"]
    ]
    assert spans == [
        ("Executing", 27_000, None),
        ("Restarting", 2_000, "SparkException: executor 2 was lost"),
        ("WaitingForResources", 1_000, None),
        ("CreatingExecutionGraph", 2_000, None),
        ("Executing", 0, None),
    ]
    assert details["vertices"][ONE]["preRescaleParallelism"] == 4
    assert details["vertices"][ONE]["postRescaleParallelism"] == 3
    assert details["vertices"][TWO]["preRescaleParallelism"] == 3, "its upper bound"


def test_the_reason_for_each_step_is_shown(url: str) -> None:
    _, answer = ask(url, f"/jobs/{JID}/rescales")
    assert answer["rescalesCounts"] == {"ignored": 0, "inProgress": 0, "completed": 3, "failed": 0}
    assert [(one["state"], one["why"]) for one in answer["timeline"] if one["state"] == "restarting"] == [
        ("restarting", "two slots more"),
        ("restarting", "an executor was lost"),
    ]


@pytest.mark.parametrize(
    ("more", "cause", "reason"),
    [
        ((step(70, State.RESTARTING, 3, before=3, after=1),), "UPDATE_REQUIREMENT", None),
        ((step(70, State.RESTARTING, 5, before=3, after=5),), "NEW_RESOURCE_AVAILABLE", None),
        # for a repartitioning of its state, which is done
        (
            (step(70, State.RESTARTING, 3, before=3, after=3), step(71, State.RESTARTING, 3, before=3, after=3)),
            "NEW_RESOURCE_AVAILABLE",
            None,
        ),
        ((step(70, State.RESTARTING, 2, before=3, after=2),), "RECOVERABLE_FAILOVER", None),
        (
            (step(70, State.EXECUTING, 4, before=3, after=3),),
            "NEW_RESOURCE_AVAILABLE",
            "NO_RESOURCES_OR_PARALLELISMS_CHANGE",
        ),
        (
            (step(70, State.RESTARTING, 2, before=3), step(71, State.FAILING, 2), step(72, State.FAILED, 2)),
            "RECOVERABLE_FAILOVER",
            "JOB_FAILED",
        ),
        (
            (step(70, State.RESTARTING, 2, before=3), step(71, State.CANCELING, 2)),
            "RECOVERABLE_FAILOVER",
            "JOB_CANCELED",
        ),
        (
            (step(70, State.RESTARTING, 2, before=3), step(71, State.FINISHED, 2)),
            "RECOVERABLE_FAILOVER",
            "JOB_FINISHED",
        ),
        ((step(70, State.CREATED, 0), step(71, State.WAITING_FOR_RESOURCES, 0)), "INITIAL_SCHEDULE", None),
        (
            (
                step(70, State.RESTARTING, 5, before=3),
                step(71, State.CREATING, 5),
                step(72, State.RESTARTING, 2, before=5),
            ),
            "RECOVERABLE_FAILOVER",
            None,
        ),
    ],
)
def test_the_reasons_for_the_start_and_the_end_of_a_rescale(
    more: tuple[Step, ...], cause: str, reason: str | None
) -> None:
    found = rescales(replace(RUNNING, timeline=(*TIMELINE, *more)))
    assert (found[-1].cause, found[-1].reason) == (cause, reason)
    if len(found) > 4:
        assert found[-2].reason == "JOB_FAILOVER_RESTARTING"


@pytest.mark.parametrize(("last", "failures"), [(State.RESTARTING, 1), (State.FAILING, 0)])
def test_a_rescale_whose_build_raised_has_failed(last: State, failures: int, job: Job, url: str) -> None:
    build = Failure(at=BEGAN + 72, query=None, error="ValueError", text="no such topic")
    more = (
        step(70, State.RESTARTING, 5, before=3, after=5),
        step(71, State.CREATING, 5, before=3, after=5),
        step(72, last, 5),
    )
    job.shown = replace(RUNNING, timeline=(*TIMELINE, *more), failures=(*RUNNING.failures, build)[: 1 + failures])
    _, answer = ask(url, f"/jobs/{JID}/rescales/overview")
    assert answer["rescalesCounts"]["failed"] == 1
    failed = answer["latest"]["failed"]
    assert failed["terminatedReason"] == "EXCEPTION_OCCURRED"
    _, details = ask(url, f"/jobs/{JID}/rescales/details/{failed['rescaleUuid']}")
    assert details["schedulerStates"][-1]["stringifiedException"] == ("ValueError: no such topic" if failures else None)


def test_attempts_are_counted_again_for_new_bounds() -> None:
    more = (
        step(70, State.RESTARTING, 3, before=3, after=1),
        step(71, State.EXECUTING, 3, after=1),
        step(80, State.RESTARTING, 2, before=3, after=2),
    )
    found = rescales(replace(RUNNING, timeline=(*TIMELINE, *more)))
    assert [(one.requirements, one.attempt) for one in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def test_durations_are_summarized_as_by_flink() -> None:
    shown = statistics([6190, 28])
    assert shown == {
        "min": 28,
        "max": 6190,
        "avg": 3109,
        "p50": 3109.0,
        **dict.fromkeys(("p90", "p95", "p99", "p999"), 6190.0),
    }


# ----------------------------------------------------------------------------------------------------------
# the server


def test_an_exception_of_the_job_becomes_an_answer_and_has_no_other_effect(
    job: Job, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job.error = RuntimeError("no snapshot")
    with caplog.at_level(logging.CRITICAL, "autoscaler.injob.reactive.rest"):
        status, answer = ask(url, "/overview")
    assert (status, answer["errors"][0]) == (500, "Internal server error.")
    assert "RuntimeError: no snapshot" in answer["errors"][1]
    job.error = None
    assert ask(url, "/overview")[0] == 200


def test_numbers_that_json_lacks_are_an_error(job: Job, url: str, caplog: pytest.LogCaptureFixture) -> None:
    job.shown = replace(RUNNING, now=float("nan"))
    with caplog.at_level(logging.CRITICAL, "autoscaler.injob.reactive.rest"):
        assert ask(url, "/jobs/overview")[0] == 500


def test_a_port_in_use_is_reported(job: Job) -> None:
    with serving(job) as url:
        port = urlsplit(url).port
        with pytest.raises(OSError, match=f"rest: 127.0.0.1:{port} cannot be listened on: .* Choose another port"):
            Server(job, f"127.0.0.1:{port}").start()


@pytest.mark.parametrize("listen", ["", "8081", ":8081", "localhost", "localhost:", "localhost:x", "localhost:65536"])
def test_an_invalid_address_is_refused(listen: str, job: Job) -> None:
    with pytest.raises(ValueError, match="expected host:port such as"):
        Server(job, listen)


@pytest.mark.parametrize("token", ["", "two words", "new\nline", "ü"])
def test_a_token_that_cannot_be_sent_is_refused(token: str, job: Job) -> None:
    with pytest.raises(ValueError, match="token must be ASCII"):
        Server(job, token=token)


def test_a_closed_server_leaves_no_thread_and_no_port(job: Job) -> None:
    server = Server(job, "127.0.0.1:0")
    server.close()
    url = server.start()
    port = cast("int", urlsplit(url).port)
    thread = next(thread for thread in threading.enumerate() if thread.name == "reactive-rest")
    assert thread.daemon
    with socket.create_connection(("127.0.0.1", port)):
        server.close()
        server.close()
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_it_listens_on_ipv6(job: Job) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with serving(job, "[::1]:0") as url:
            assert url.startswith("http://[::1]:")
            assert ask(url, "/overview")[0] == 200
            assert ask(url, f"/jobs/{JID}/stop", "POST")[0] == 202
    except OSError:
        pytest.skip("no IPv6")


async def test_many_clients_are_answered_at_once(url: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(asyncio.to_thread(ask, url, f"/jobs/{JID}")) for _ in range(50)]
    assert {task.result()[0] for task in asked} == {200}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8081", 421),
        ("localhost.evil.example", 421),
        ("a:b:c", 421),
        ("", 421),
        ("localhost:8081", 200),
        ("127.0.0.1", 200),
        ("[::1]:8081", 200),
    ],
)
def test_a_page_whose_host_name_resolves_to_this_machine_reads_nothing(host: str, status: int, job: Job) -> None:
    with serving(job) as url:
        assert ask(url, "/jobs", "GET", None, {"Host": host})[0] == status
