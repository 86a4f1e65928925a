"""The Spark source and engine against HTTP servers that answer as Spark does, and as it should not."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.clients.http import FRESH, JsonClient
from autoscaler.clients.spark_work import Memory
from autoscaler.core.model import EngineStatus, JobState, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.engines.spark import Spark as SparkEngine
from autoscaler.injob.report import trim
from autoscaler.ports import (
    AnswerError,
    Doctor,
    EdgeError,
    EdgeTimeoutError,
    NotYetError,
    RefusedError,
    UnavailableError,
)
from autoscaler.sources.spark import Spark, SparkQuery
from autoscaler.sources.spark_batch import BatchMetric
from autoscaler.sources.spark_metrics import Metric
from autoscaler.testing import EngineContract, SourceContract

T = TypeVar("T")
DATA = Path(__file__).parent / "data"
NOW = datetime(2026, 11, 21, 2, 12, 20, tzinfo=UTC)
APP = "/api/v1/applications/app-20261121021131-0000"
RUN = "0bd2cf51-7153-4f17-be07-4587d4598e35"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Shared:
    """The shared objects of a daemon."""

    def __init__(self) -> None:
        self.live: dict[Hashable, Any] = {}
        self.stack = AsyncExitStack()

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        if key not in self.live:
            self.live[key] = await self.stack.enter_async_context(factory())
        return self.live[key]  # type: ignore[no-any-return]


class FakeSpark:
    """Master, driver and report on one port, answering with samples taken from Spark 4.3."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/json/": self.sample("master"),
            f"{APP}/allexecutors": self.sample("allexecutors"),
            f"{APP}/jobs?status=running": self.sample("jobs"),
            f"{APP}/jobs?status=succeeded": self.sample("jobs"),
            f"{APP}/stages?status=active": self.sample("stages_active"),
            f"{APP}/stages/24?details=false": [{"stageId": 24, "status": "COMPLETE", "numTasks": 4}],
            f"{APP}/stages/25?details=false": [{"stageId": 25, "status": "COMPLETE", "numTasks": 6}],
            "/environment/": "<h4>Spark Properties</h4><table><tr><td>spark.decommission.enabled</td><td>true</td></tr>"
            "<tr><td>spark.worker.timeout</td><td>10</td></tr></table>",
            "/v1/progress": self.report(),
        }
        self.asked: list[str] = []

    @staticmethod
    def sample(name: str) -> Any:
        return json.loads((DATA / f"{name}.json").read_text())

    def report(self, **changes: Any) -> dict[str, Any]:
        progress = []
        for number in range(14):
            known = self.sample("progress_stateful")
            start = datetime(2026, 11, 21, 2, 11, 50, tzinfo=UTC) + timedelta(seconds=2 * number)
            known |= {"batchId": number, "timestamp": start.isoformat()}
            for offsets, first in (("startOffset", 0), ("endOffset", 200), ("latestOffset", 300)):
                base = first + (200 if offsets != "latestOffset" else 250) * number
                known["sources"][0][offsets] = {str(part): base for part in range(4)}
            progress.append(trim(known, start.timestamp() + 2.1))
        query = {
            "id": "f692b5ef",
            "runId": RUN,
            "name": "q1",
            "trigger": "ProcessingTimeTrigger(0)",
            "started": progress[0]["start"] - 3,
            "idle": None,
            "terminated": None,
            "exception": None,
            "progress": progress,
        }
        return {
            "now": progress[-1]["start"] + 3,
            "format": 1,
            "spark": "4.3.0",
            "application": {"id": APP.rpartition("/")[2], "name": "lab", "ui": None},
            "settings": {"spark.sql.streaming.noDataProgressEventInterval": "10000"},
            "queries": [query],
            **changes,
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = str(request.rel_url)
        self.asked.append(path)
        answer = self.answers.get(path)
        if callable(answer):
            response: web.StreamResponse = await answer(request)
            return response
        if answer is None:
            return web.Response(status=404)
        if isinstance(answer, str):
            return web.Response(text=answer, content_type="text/html")
        return web.json_response(answer)


class Rig:
    """The plug-ins, connected to a fake Spark."""

    def __init__(self, spark: FakeSpark, url: str, shared: Shared) -> None:
        self.spark, self.url, self.shared = spark, url, shared

    def parameters(self, **changes: Any) -> dict[str, Any]:
        return {"app": "lab", "report": self.url, "master": self.url, "driver": self.url, **changes}

    def forget(self) -> None:
        """Expire the cached answers."""
        for live in self.shared.live.values():
            if isinstance(live, JsonClient):
                live.forget()

    async def collect(self, metric: str, now: datetime = NOW, **changes: Any) -> Reading:
        async with Spark(**self.parameters(**changes)).connect(self.shared) as source:
            return await source.collect(SparkQuery(metric), now)

    async def describe(self, **changes: Any) -> EngineStatus:
        async with SparkEngine(**self.parameters(**changes)).connect(self.shared) as engine:
            return await engine.describe()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    spark = FakeSpark()
    app = web.Application()
    app.router.add_get("/{path:.*}", spark.handle)
    shared = Shared()
    async with TestServer(app) as server, shared.stack:
        yield Rig(spark, str(server.make_url("")).rstrip("/"), shared)


def report_query(rig: Rig) -> dict[str, Any]:
    query: dict[str, Any] = rig.spark.answers["/v1/progress"]["queries"][0]
    return query


async def test_every_metric_is_read_and_dated_by_the_drivers_clock(rig: Rig) -> None:
    values = {}
    for metric in Metric:
        if metric is not Metric.UTILIZATION:
            values[metric] = await rig.collect(metric)
    assert values[Metric.ARRIVALS].value == pytest.approx(500)
    assert abs(NOW - values[Metric.ARRIVALS].at - timedelta(seconds=3)) < timedelta(seconds=0.5)
    assert values[Metric.LAG].value == pytest.approx(4 * (300 + 250 * 13 - 200 - 200 * 13) + 500 * 3)
    assert NOW - values[Metric.LAG].at < timedelta(seconds=0.5)
    assert values[Metric.LAG_SECONDS].value == pytest.approx(4500 / 500)
    assert values[Metric.THROUGHPUT].value == pytest.approx(400, rel=0.02)
    assert values[Metric.SATURATION].value == pytest.approx(1)
    assert values[Metric.BATCH_TIME].value == pytest.approx(1.978)


async def test_concurrent_reads_send_one_request_each(rig: Rig) -> None:
    asked = [metric for metric in Metric if metric is not Metric.UTILIZATION]
    await asyncio.gather(*(rig.collect(metric) for metric in asked), rig.describe())
    counts = {path: rig.spark.asked.count(path) for path in rig.spark.asked}
    assert set(counts.values()) == {1}
    assert sum(isinstance(live, JsonClient) for live in rig.shared.live.values()) == 1, "one address, one client"


async def test_one_caller_that_is_cancelled_does_not_take_the_answer_from_the_others(rig: Rig) -> None:
    release, arrived = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        arrived.set()
        await release.wait()
        return web.json_response(rig.spark.report())

    rig.spark.answers["/v1/progress"] = slow
    hasty, patient = (asyncio.create_task(rig.collect("lag")) for _ in range(2))
    await arrived.wait()
    hasty.cancel()
    release.set()
    assert (await patient).value == pytest.approx(4500)
    assert rig.spark.asked.count("/v1/progress") == 1


async def test_utilization_is_the_growth_of_the_counters(rig: Rig) -> None:
    async with Spark(**rig.parameters()).connect(rig.shared) as source:
        before = time.monotonic()
        with pytest.raises(AnswerError, match="two polls"):
            await source.collect(SparkQuery("utilization"), NOW)
        after = time.monotonic()
        await asyncio.sleep(1.2 * FRESH)  # until the cached answers expire
        for executor in rig.spark.answers[f"{APP}/allexecutors"]:
            executor["totalDuration"] += 350
            executor["activeTasks"] = 0
        again = time.monotonic()
        reading = await source.collect(SparkQuery("utilization"), NOW)
        assert isinstance(reading.value, float)
        # The maximum and the minimum time between the two polls.
        assert 0.35 / (time.monotonic() - before) <= reading.value <= 0.35 / (again - after)


@pytest.mark.parametrize("metric", Metric)
async def test_a_finished_query_is_not_a_cluster_without_load(rig: Rig, metric: str) -> None:
    async with Spark(**rig.parameters()).connect(rig.shared) as source:
        with suppress(NotYetError):
            await source.collect(SparkQuery("utilization"), NOW)
        report_query(rig).update(terminated=rig.spark.answers["/v1/progress"]["now"] - 4, exception="boom")
        rig.forget()
        with pytest.raises(AnswerError, match="q1 ended 4 s ago: boom"):
            await source.collect(SparkQuery(metric), NOW)


async def test_an_executor_excluded_after_failures_is_not_idle(rig: Rig) -> None:
    """Spark gives it no task, and the others work at their limit."""
    first, second = rig.spark.answers[f"{APP}/allexecutors"][:2]
    second |= {"isExcluded": True, "activeTasks": 0}
    first |= {"activeTasks": 1}
    async with Spark(**rig.parameters()).connect(rig.shared) as source:
        with pytest.raises(AnswerError, match="two polls"):
            await source.collect(SparkQuery("utilization"), NOW)
        rig.forget()
        assert (await source.collect(SparkQuery("utilization"), NOW)).value == 1.0


async def test_the_executors_of_a_restarted_driver_are_not_those_of_the_old_one(rig: Rig) -> None:
    """A new driver numbers its executors from 0 again and counts their time from 0: neither is idleness."""
    async with Spark(**rig.parameters()).connect(rig.shared) as source:
        with pytest.raises(AnswerError, match="two polls"):
            await source.collect(SparkQuery("utilization"), NOW)
        rig.forget()
        again = APP.replace("0000", "0001")
        rig.spark.answers["/v1/progress"]["application"]["id"] = again.rpartition("/")[2]
        restarted = rig.spark.sample("allexecutors")
        for executor in restarted:
            executor["totalDuration"] += 5  # slightly more than the old one's, by chance
            executor["activeTasks"] = 0
        rig.spark.answers[f"{again}/allexecutors"] = restarted
        with pytest.raises(AnswerError, match="two polls"):
            await source.collect(SparkQuery("utilization"), NOW)


async def test_utilization_is_not_a_mean_over_a_gap_in_the_polls(rig: Rig) -> None:
    async with Spark(**rig.parameters()).connect(rig.shared) as source:
        with pytest.raises(AnswerError, match="two polls"):
            await source.collect(SparkQuery("utilization"), NOW)
        for ago, expected in ((30, None), (600, "two polls")):
            executors = rig.spark.answers[f"{APP}/allexecutors"]
            rig.spark.answers[f"{APP}/allexecutors"] = refusing(404)
            rig.forget()
            with pytest.raises(RefusedError):
                await source.collect(SparkQuery("utilization"), NOW)
            rig.spark.answers[f"{APP}/allexecutors"] = executors
            rig.forget()
            source._samples = deque(replace(sample, at=sample.at - ago) for sample in source._samples)
            if expected is None:
                await source.collect(SparkQuery("utilization"), NOW)
            else:
                with pytest.raises(AnswerError, match=expected):
                    await source.collect(SparkQuery("utilization"), NOW)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_the_clocks_of_driver_and_daemon_may_differ_by_an_hour(rig: Rig, hours: int) -> None:
    report = rig.spark.answers["/v1/progress"]
    report["now"] += 3600 * hours
    (query,) = report["queries"]
    query["started"] += 3600 * hours
    for known in query["progress"]:
        known["start"] += 3600 * hours
        known["received"] += 3600 * hours
    lag, arrivals = await rig.collect("lag"), await rig.collect("arrivals")
    assert lag.value == pytest.approx(4500)
    assert abs(NOW - lag.at) < timedelta(seconds=0.5)
    assert arrivals.value == pytest.approx(500)
    assert abs(NOW - arrivals.at - timedelta(seconds=3)) < timedelta(seconds=0.5)
    back = await rig.collect("lag", NOW - timedelta(hours=2))
    assert back.at <= NOW - timedelta(hours=2), "when the daemon's clock goes back, its readings do too"


async def test_an_adjusted_clock_of_the_driver_is_reported(rig: Rig) -> None:
    report = rig.spark.answers["/v1/progress"]
    report["queries"][0]["progress"][-1]["steady"] = 1000.0
    report["steady"] = 1000.0
    report["now"] += 3600
    report["queries"][0]["trigger"] = "ProcessingTimeTrigger(2000)"  # then utilization is computed from the batches
    for metric in ("arrivals", "utilization"):
        with pytest.raises(AnswerError, match=r"the clock of its driver was set by \+36\d\d s"):
            await rig.collect(metric)


async def test_the_engine_shows_slots_parallelism_partitions_and_state(rig: Rig) -> None:
    assert await rig.describe() == EngineStatus(
        job=JobState.RUNNING,
        slots=2,
        parallelism=2,
        max_parallelism=4,
        partitions=4,
        running_since=datetime(2026, 11, 21, 2, 11, 47, tzinfo=UTC),
        last_checkpoint=datetime(2026, 11, 21, 2, 12, 17, 978000, tzinfo=UTC),
        restarts=0,
    )


async def test_between_batches_the_widest_stage_comes_from_the_last_job(rig: Rig) -> None:
    rig.spark.answers[f"{APP}/stages?status=active"] = []
    async with SparkEngine(**rig.parameters()).connect(rig.shared) as engine:
        assert (await engine.describe()).partitions == 6
        rig.spark.answers[f"{APP}/stages?status=active"] = rig.spark.sample("stages_active")
        assert (await engine.describe()).partitions == 6
    assert rig.spark.asked.count(f"{APP}/jobs?status=succeeded") == 1


async def test_a_new_executor_is_a_slot_at_once_and_parallelism_with_its_first_task(rig: Rig) -> None:
    executors = rig.spark.answers[f"{APP}/allexecutors"]
    executors.append(executors[1] | {"id": "7", "totalTasks": 0})
    executors.append(executors[1] | {"id": "3", "isActive": False, "removeTime": "2026-11-21T02:11:59.000GMT"})
    status = await rig.describe()
    assert (status.slots, status.parallelism) == (3, 2)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("WAITING", JobState.STARTING), ("SUBMITTED", JobState.STARTING), ("RUNNING", JobState.RUNNING)],
)
async def test_the_state_of_the_job_is_that_of_the_master(rig: Rig, state: str, expected: JobState) -> None:
    rig.spark.answers["/json/"]["activeapps"][0]["state"] = state
    assert (await rig.describe()).job is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("FINISHED", JobState.STOPPED),
        ("KILLED", JobState.STOPPED),
        ("FAILED", JobState.FAILED),
        (None, JobState.STOPPED),
    ],
)
async def test_an_application_that_has_disappeared_is_stopped_or_failed(
    rig: Rig, state: str | None, expected: JobState
) -> None:
    master = rig.spark.answers["/json/"]
    (known,) = master["activeapps"]
    master["activeapps"] = []
    master["completedapps"] = [] if state is None else [known | {"state": state}]
    assert (await rig.describe()).job is expected


@pytest.mark.parametrize(("exception", "expected"), [("boom", JobState.FAILED), (None, JobState.STOPPED)])
async def test_a_finished_query_is_failed_or_stopped_and_a_restart_is_counted(
    rig: Rig, exception: str | None, expected: JobState
) -> None:
    first = report_query(rig)
    first |= {"terminated": first["started"] + 30, "exception": exception}
    assert (await rig.describe()).job is expected
    rig.forget()
    again = first | {"runId": "again", "started": first["started"] + 31, "terminated": None, "exception": None}
    rig.spark.answers["/v1/progress"]["queries"].append(again | {"progress": []})
    status = await rig.describe()
    assert (status.job, status.restarts) == (JobState.RUNNING, 1)
    rig.forget()
    rig.spark.answers["/v1/progress"]["queries"][-1]["restarts"] = 40  # one of which is in the report
    assert (await rig.describe()).restarts == 40


async def test_two_applications_with_one_name_are_an_error_that_names_them(rig: Rig) -> None:
    master = rig.spark.answers["/json/"]
    master["activeapps"].append(master["activeapps"][0] | {"id": "app-2"})
    with pytest.raises(AnswerError, match=r"2 running applications named 'lab' \(app-20261121021131-0000, app-2\)"):
        await rig.describe()


async def test_the_report_of_an_earlier_driver_is_not_used(rig: Rig) -> None:
    rig.spark.answers["/json/"]["activeapps"][0]["id"] = "app-new"
    with pytest.raises(AnswerError, match="the driver was restarted"):
        await rig.describe()


async def test_several_queries_need_a_name(rig: Rig) -> None:
    other = report_query(rig) | {"id": "other", "runId": "other", "name": "q2"}
    rig.spark.answers["/v1/progress"]["queries"].append(other)
    with pytest.raises(AnswerError, match=r"several queries at a time \(q1, q2\); give query"):
        await rig.collect("lag")
    assert (await rig.collect("lag", query="q2")).value == pytest.approx(4500)
    with pytest.raises(AnswerError, match="has no query 'q3'; it has q1, q2"):
        await rig.collect("lag", query="q3")


@pytest.mark.parametrize("exception", ["boom", None])
async def test_when_one_of_two_queries_has_ended_the_other_is_not_taken_for_the_job(
    rig: Rig, exception: str | None
) -> None:
    first = report_query(rig)
    rig.spark.answers["/v1/progress"]["queries"].append(
        first | {"id": "other", "runId": "other", "name": None, "started": first["started"] + 1}
    )
    first |= {"terminated": first["started"] + 20, "exception": exception}
    for both in (False, True):
        rig.spark.answers["/v1/progress"]["queries"][1]["terminated"] = first["terminated"] + 10 if both else None
        rig.forget()
        for ask in (rig.collect("lag"), rig.describe()):
            with pytest.raises(AnswerError, match=r"several queries at a time \(other, q1\); give query"):
                await ask
    assert (await rig.describe(query="q1")).job is (JobState.FAILED if exception else JobState.STOPPED)


@pytest.mark.parametrize("name", ["q1", "q2"])
async def test_a_query_that_follows_another_is_the_only_one_although_spark_reports_the_end_late(
    rig: Rig, name: str
) -> None:
    first = report_query(rig)
    started = first["started"] + 20
    last = first | {"id": "other", "runId": "other", "name": name, "started": started}
    first |= {"terminated": started + 2, "progress": []}
    rig.spark.answers["/v1/progress"]["queries"].append(last)
    assert (await rig.describe()).job is JobState.RUNNING
    assert (await rig.collect("lag")).value == pytest.approx(4500)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, expected 1"),
        ({"application": {"id": "app-9", "name": "other"}}, "is of application 'other'"),
        ({"queries": []}, "has not started a streaming query"),
        ({"now": "soon"}, "now: Input should be a valid number"),
        ({"queries": {"q": 1}}, "queries: Input should be a valid array"),
        ({"now": float("nan")}, "now: Input should be a finite number"),
        ({"now": float("inf")}, "now: Input should be a finite number"),
        ({"now": 5.0}, "clock was set back"),
    ],
)
async def test_the_error_of_an_unusable_report_names_the_problem(
    rig: Rig, change: dict[str, Any], message: str
) -> None:
    rig.spark.answers["/v1/progress"] = rig.spark.report(**change)
    with pytest.raises(AnswerError, match=message):
        await rig.collect("lag")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("progress", -1, "start"), float("nan")),
        (("progress", -1, "start"), 1e300),
        (("progress", -1, "rows"), -5),
        (("progress", -1, "rows"), 10**400),
        (("progress", -1, "sources", 0, "latest"), 10**400),
        (("progress", -1, "sources", 0, "latest"), 1.5),
        (("progress", -1, "sources", 0, "latest"), "many"),
        (("progress", -1, "durationMs"), {"triggerExecution": "long"}),
        (("progress", -1, "batchId"), None),
        (("progress",), "none"),
        (("started",), None),
    ],
)
async def test_values_of_the_wrong_type_in_the_report_are_never_numbers(
    rig: Rig, path: tuple[Any, ...], value: Any
) -> None:
    place: Any = report_query(rig)
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(AnswerError, match=r"expected JSON of the report.*, but queries\.0"):
        await rig.collect("lag")


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)
    except ConnectionError:
        return response


async def huge(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        for _ in range(100):
            await response.write(b"[" * 2**20)
    except ConnectionError:
        pass
    return response


async def broken(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"now": 1')
    assert request.transport is not None
    request.transport.abort()
    return response


def refusing(status: int) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    return answer


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ("<html><body>Spark Master</body></html>", AnswerError, "expected JSON .*got '<html>"),
        ("", AnswerError, "expected JSON .*got ''"),
        ('{"now": 1', AnswerError, "Invalid JSON"),
        ("[]", AnswerError, "Input should be an object"),
        (drip, EdgeTimeoutError, "did not answer in full within"),
        (huge, AnswerError, "answered more than 16,777,216 bytes"),
        (broken, UnavailableError, "cannot be reached"),
        (refusing(500), UnavailableError, "answered 500"),
        (refusing(503), UnavailableError, "answered 503"),
        (refusing(429), UnavailableError, "answered 429"),
        (refusing(403), RefusedError, "answered 403"),
        (refusing(404), RefusedError, "answered 404"),
    ],
    ids=["html", "empty", "cut", "list", "drip", "huge", "broken", "500", "503", "429", "403", "404"],
)
async def test_bad_answers_are_errors_that_name_the_address(
    rig: Rig, answer: Any, error: type[EdgeError], message: str
) -> None:
    for path, ask in (("/v1/progress", rig.collect("lag", timeout=timedelta(seconds=2))), ("/json/", None)):
        rig.spark.answers[path] = answer
        begin = time.monotonic()
        with pytest.raises(error, match=message) as raised:
            await (ask or rig.describe(timeout=timedelta(seconds=1.8)))
        assert time.monotonic() - begin < 2
        assert f"{rig.url}{path}" in str(raised.value)


async def test_a_driver_that_sends_slowly_delays_no_reading_beyond_its_timeout(rig: Rig) -> None:
    for path in list(rig.spark.answers):
        if path.startswith("/api"):
            rig.spark.answers[path] = drip
    begin = time.monotonic()
    assert (await rig.collect("lag", timeout=timedelta(seconds=2))).value == pytest.approx(4500)
    with pytest.raises(EdgeTimeoutError):
        await rig.describe(timeout=timedelta(seconds=1.8))
    assert time.monotonic() - begin < 3.8


async def test_only_an_unavailable_server_is_retried_and_not_forever(rig: Rig) -> None:
    for status, times in ((503, 2), (404, 1)):
        rig.spark.asked.clear()
        rig.spark.answers["/v1/progress"] = refusing(status)
        with pytest.raises(EdgeError):
            await rig.collect("lag")
        assert len(rig.spark.asked) == times
        rig.forget()


async def test_an_unreachable_server_is_unavailable(rig: Rig, unused_tcp_port: int) -> None:
    nobody = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(UnavailableError, match=f"{nobody}/v1/progress cannot be reached"):
        await rig.collect("lag", report=nobody)
    with pytest.raises(UnavailableError, match=f"{nobody}/json/ cannot be reached"):
        await rig.describe(master=nobody)


async def test_without_the_drivers_ui_the_report_still_gives_lag_but_no_utilization(
    rig: Rig, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    gone = f"http://127.0.0.1:{unused_tcp_port}"
    async with Spark(**rig.parameters(driver=gone)).connect(rig.shared) as source:
        for _ in range(2):
            assert (await source.collect(SparkQuery("lag"), NOW)).value == pytest.approx(4500)
        with pytest.raises(UnavailableError):
            await source.collect(SparkQuery("utilization"), NOW)
    assert [record.message for record in caplog.records].count(
        "the driver's UI cannot be reached; metrics come only from the report"
    ) == 1
    with pytest.raises(AnswerError, match=r"has no UI \(spark.ui.enabled=false\)"):
        await rig.collect("utilization", driver=None)


@pytest.mark.parametrize("ui", [True, False])
async def test_a_long_batch_without_spark_jobs_is_not_taken_for_a_pause(
    rig: Rig, ui: bool, unused_tcp_port: int
) -> None:
    report = rig.spark.answers["/v1/progress"]
    batches = report_query(rig)["progress"]
    for batch in batches:
        batch["sources"][0]["latest"] = batch["sources"][0]["end"]
    report["now"] += 8
    report_query(rig)["idle"] = batches[-1]["received"] + 1
    rig.spark.answers[f"{APP}/jobs?status=running"] = []
    driver = rig.url if ui else f"http://127.0.0.1:{unused_tcp_port}"
    assert (await rig.collect("lag", driver=driver)).value == 0
    report_query(rig).update(working=True)
    rig.forget()
    with pytest.raises(AnswerError, match="was idle 8 s ago and is not idle now"):
        await rig.collect("lag", driver=driver)
    report_query(rig).update(idle=None)
    rig.forget()
    assert (await rig.collect("lag", driver=driver)).value == pytest.approx(400 * 11)


async def test_the_doctor_examines_a_live_job(rig: Rig) -> None:
    async with SparkEngine(**rig.parameters()).connect(rig.shared) as engine:
        assert isinstance(engine, Doctor)
        subjects = [finding.subject for finding in await engine.diagnose()]
    assert subjects[:2] == ["spark.locality.wait", "decommissioning (application)"]
    assert "decommissioning (master)" not in subjects, "the Master's page says that it is enabled"
    assert {"decommissioning (workers)", "spark.worker.timeout", "spark.deploy.maxExecutorRetries"} <= set(subjects)
    assert not [path for path in rig.spark.asked if "kill" in path]


async def test_the_doctor_reports_missing_information(rig: Rig) -> None:
    rig.spark.answers["/environment/"] = refusing(404)
    async with SparkEngine(**rig.parameters()).connect(rig.shared) as engine:
        found = {finding.subject: finding for finding in await engine.diagnose()}
    assert "cannot be seen" in found["decommissioning (master)"].problem
    assert "declare it" in found["decommissioning (master)"].remedy
    declared = {
        "master_conf": ("spark.decommission.enabled=true",),
        "worker_conf": ("spark.decommission.enabled=true",),
    }
    async with SparkEngine(**rig.parameters(**declared)).connect(rig.shared) as engine:
        subjects = {finding.subject for finding in await engine.diagnose()}
    assert not {"decommissioning (master)", "decommissioning (workers)"} & subjects


class TestSourceContract(SourceContract):
    @pytest.fixture
    def plugin(self, rig: Rig) -> Spark:
        return Spark(**rig.parameters())

    @pytest.fixture
    def query(self) -> SparkQuery:
        return SparkQuery("lag")

    @pytest.fixture
    def unreachable(self) -> Spark:
        return Spark(app="lab", report="http://127.0.0.1:1", master="http://127.0.0.1:1")


class TestEngineContract(EngineContract):
    @pytest.fixture
    def plugin(self, rig: Rig) -> SparkEngine:
        return SparkEngine(**rig.parameters())

    @pytest.fixture
    def unreachable(self) -> SparkEngine:
        return SparkEngine(app="lab", report="http://127.0.0.1:1", master="http://127.0.0.1:1")


# ----------------------------------------------------------------------------------------------------------
# batch jobs

READINGS = {
    BatchMetric.PENDING_TASKS: 4,
    BatchMetric.RUNNING_TASKS: 0,
    BatchMetric.REMAINING_TASK_TIME: 0,
    BatchMetric.RUNNABLE_BYTES: 0,
    BatchMetric.SHUFFLE_WORKERS: 2,
}


@pytest.fixture
async def batch(rig: Rig) -> Rig:
    rig.spark.answers["/v1/progress"] = rig.spark.report(queries=[])
    return rig


async def test_the_metrics_of_a_batch_application_are_read(batch: Rig) -> None:
    found = {metric: await batch.collect(metric, batch=True) for metric in BatchMetric}
    for metric, expected in READINGS.items():
        assert found[metric].value == expected, metric
        assert NOW - timedelta(seconds=1) < found[metric].at <= NOW, metric
    submitted = datetime(2026, 11, 21, 2, 12, 16, 527000, tzinfo=UTC).timestamp()
    assert found[BatchMetric.JOB_TIME].value == pytest.approx(
        batch.spark.answers["/v1/progress"]["now"] - submitted, abs=0.5
    )


async def test_concurrent_reads_of_a_batch_application_send_one_request_each(batch: Rig) -> None:
    async with Spark(**batch.parameters(batch=True)).connect(batch.shared) as source:
        asked = (source.collect(SparkQuery(metric), NOW) for metric in BatchMetric)
        readings, status = await asyncio.gather(asyncio.gather(*asked), batch.describe(batch=True))
    assert len(readings) == len(BatchMetric)
    assert status == EngineStatus(job=JobState.RUNNING, slots=2, parallelism=2)
    assert sorted(batch.spark.asked) == sorted(
        [
            "/json/",
            "/v1/progress",
            *(f"{APP}/{path}" for path in ("allexecutors", "jobs?status=running", "stages?status=active")),
        ]
    )


@pytest.mark.parametrize("state", [None, "FINISHED", "KILLED", "FAILED"])
async def test_without_an_active_application_nothing_runs_and_no_driver_has_to_answer(
    batch: Rig, state: str | None
) -> None:
    master = batch.spark.answers["/json/"]
    (known,) = master["activeapps"]
    master["activeapps"] = []
    master["completedapps"] = [] if state is None else [known | {"state": state}]
    batch.spark.answers["/v1/progress"] = refusing(503)
    for metric in BatchMetric:
        assert (await batch.collect(metric, batch=True)).value == 0
    assert await batch.describe(batch=True) == EngineStatus(job=JobState.IDLE)
    async with SparkEngine(**batch.parameters(batch=True)).connect(batch.shared) as engine:
        assert [worker.cost for worker in await engine.workers()] == [1, 1]
        assert isinstance(engine, Doctor)
        found = {finding.subject: finding for finding in await engine.diagnose()}
    assert "not active" in found["application"].problem
    assert "decommissioning (application)" not in found


@pytest.mark.parametrize("state", ["RUNNING", "WAITING"])
async def test_an_active_application_counts_as_running_even_while_it_waits_for_workers(batch: Rig, state: str) -> None:
    batch.spark.answers["/json/"]["activeapps"][0]["state"] = state
    batch.spark.answers[f"{APP}/allexecutors"] = []
    assert await batch.describe(batch=True) == EngineStatus(job=JobState.RUNNING, slots=0, parallelism=0)
    assert (await batch.collect("pending_tasks", batch=True)).value == 4


async def test_without_a_master_the_driver_alone_shows_that_it_runs(batch: Rig) -> None:
    assert (await batch.describe(batch=True, master=None)).job is JobState.RUNNING
    assert (await batch.collect("pending_tasks", batch=True, master=None)).value == 4
    batch.forget()
    batch.spark.answers["/v1/progress"] = refusing(503)
    with pytest.raises(UnavailableError):
        await batch.describe(batch=True, master=None)
    with pytest.raises(UnavailableError):
        await batch.collect("pending_tasks", batch=True, master=None)


@pytest.mark.parametrize("path", ["/v1/progress", f"{APP}/jobs?status=running", f"{APP}/allexecutors", "/json/"])
async def test_the_work_of_an_active_application_is_never_guessed(batch: Rig, path: str) -> None:
    batch.spark.answers[path] = refusing(503)
    with pytest.raises(UnavailableError):
        await batch.collect("pending_tasks", batch=True)
    with pytest.raises(UnavailableError):
        await batch.describe(batch=True)


async def test_a_standby_master_does_not_mean_that_nothing_runs(batch: Rig) -> None:
    batch.spark.answers["/json/"] |= {"status": "STANDBY", "activeapps": [], "workers": []}
    with pytest.raises(AnswerError, match="the Master is STANDBY"):
        await batch.collect("pending_tasks", batch=True)
    with pytest.raises(AnswerError, match="the Master is STANDBY"):
        await batch.describe(batch=True)


async def test_the_report_of_an_earlier_batch_application_is_not_used(batch: Rig) -> None:
    batch.spark.answers["/json/"]["activeapps"][0]["id"] = "app-new"
    with pytest.raises(AnswerError, match="the driver was restarted"):
        await batch.collect("pending_tasks", batch=True)


async def test_the_files_of_a_finished_application_do_not_count_for_the_next_one(batch: Rig) -> None:
    master = batch.spark.answers["/json/"]
    async with Spark(**batch.parameters(batch=True)).connect(batch.shared) as source:
        assert (await source.collect(SparkQuery("shuffle_workers"), NOW)).value == 2
        apps, master["activeapps"] = master["activeapps"], []
        batch.forget()
        assert (await source.collect(SparkQuery("shuffle_workers"), NOW)).value == 0
        assert source._memory == Memory()
        master["activeapps"] = apps
        batch.forget()
        assert (await source.collect(SparkQuery("shuffle_workers"), NOW)).value == 2


async def test_the_doctor_examines_a_batch_application(batch: Rig) -> None:
    async with SparkEngine(**batch.parameters(batch=True)).connect(batch.shared) as engine:
        assert isinstance(engine, Doctor)
        subjects = {finding.subject for finding in await engine.diagnose()}
    assert {"decommissioning (application)", "shuffle files"} <= subjects
    assert not {"spark.locality.wait", "lag", "tasks of a batch", "application"} & subjects


@pytest.mark.parametrize(
    ("batch", "metric", "message"),
    [
        (True, "lag", "lag is for streaming queries, but the source has batch: true; use pending_tasks, "),
        (False, "job_time", "job_time is for batch applications; give the source batch: true"),
    ],
)
def test_a_metric_of_the_other_kind_is_refused(batch: bool, metric: str, message: str) -> None:
    source = Spark(app="lab", report="http://h:1", batch=batch)
    with pytest.raises(ParameterError, match=message) as refused:
        source.check_query(SparkQuery(metric))
    assert refused.value.name == "metric"
    for fits in BatchMetric if batch else Metric:
        source.check_query(SparkQuery(fits))


def test_a_batch_application_has_no_streaming_query() -> None:
    with pytest.raises(ParameterError, match="names a streaming query"):
        Spark(app="lab", report="http://h:1", batch=True, query="q1")


class TestBatchSourceContract(SourceContract):
    @pytest.fixture
    def plugin(self, batch: Rig) -> Spark:
        return Spark(**batch.parameters(batch=True))

    @pytest.fixture
    def query(self) -> SparkQuery:
        return SparkQuery("pending_tasks")

    @pytest.fixture
    def unreachable(self) -> Spark:
        return Spark(app="lab", report="http://127.0.0.1:1", master="http://127.0.0.1:1", batch=True)


class TestBatchEngineContract(EngineContract):
    @pytest.fixture
    def plugin(self, batch: Rig) -> SparkEngine:
        return SparkEngine(**batch.parameters(batch=True))

    @pytest.fixture
    def unreachable(self) -> SparkEngine:
        return SparkEngine(app="lab", report="http://127.0.0.1:1", master="http://127.0.0.1:1", batch=True)
