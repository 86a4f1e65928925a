"""The client of Flink's REST API against recorded answers, and against what a server should not answer."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from autoscaler.clients.flink import (
    LONGEST_QUERY,
    FlinkApi,
    FlinkParameters,
    JobLine,
    choose_job,
    version,
)
from autoscaler.ports import AnswerError, EdgeTimeoutError, RefusedError, Secret, UnavailableError
from autoscaler.schedulers.flink_durations import seconds
from tests.clients.flink_stub import DATA, SOURCE, VERSIONS, FakeFlink, Shared, serve


class Rig:
    def __init__(self, flink: FakeFlink, url: str, shared: Shared) -> None:
        self.flink, self.url, self.shared = flink, url, shared

    async def api(self, **changes: Any) -> FlinkApi:
        return await FlinkParameters(url=self.url, **changes).api(self.shared)


@pytest.fixture(params=VERSIONS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    flink, shared = FakeFlink(request.param), Shared()
    async with serve(flink) as url, shared.stack:
        yield Rig(flink, url, shared)


@pytest.fixture
async def newest() -> AsyncIterator[Rig]:
    flink, shared = FakeFlink(), Shared()
    async with serve(flink) as url, shared.stack:
        yield Rig(flink, url, shared)


async def test_answers_of_real_flinks_are_parsed(rig: Rig) -> None:
    api = await rig.api()
    overview = await api.overview()
    assert overview.slots_total == 2 * len(await api.taskmanagers())
    line = await api.find_job("recorded")
    assert line is not None
    assert (line.jid, line.state, line.ended) == (rig.flink.jid, "RUNNING", False)
    job = await api.job(line.jid)
    assert [vertex.id for vertex in job.sources] == [SOURCE]
    assert len(job.hashed) == 1
    assert all(vertex.running and vertex.max_parallelism == 128 for vertex in job.vertices)
    assert job.since("RUNNING")
    assert job.since("FAILED") is None
    checkpointing = await api.checkpoint_config(line.jid)
    assert checkpointing is not None
    assert checkpointing.periodic == 3.0
    checkpoints = await api.checkpoints(line.jid)
    assert checkpoints is not None
    assert checkpoints.latest.completed is not None
    assert (await api.cluster_config())["scheduler-mode"] == "reactive"
    execution = (await api.job_config(line.jid)).execution
    assert execution is not None
    assert execution.restart_strategy == "Cluster level default restart strategy"
    assert {worker.host for worker in await api.taskmanagers()} == {"127.0.0.1"}
    bounds = (await api.requirements(line.jid))[SOURCE].parallelism
    assert (bounds.lower, bounds.upper) == (1, 128)
    assert (await api.job_metrics(line.jid, ("numRestarts", "nonsense"))).keys() == {"numRestarts"}


async def test_metrics_of_subtasks_are_aggregated_by_flink(rig: Rig) -> None:
    api = await rig.api()
    names = await api.vertex_metric_names(rig.flink.jid, SOURCE)
    assert {"busyTimeMsPerSecond", "Source__numbers.pendingRecords"} <= names
    found = await api.vertex_metrics(rig.flink.jid, SOURCE, ["Source__numbers.pendingRecords"])
    assert found["Source__numbers.pendingRecords"].sum == 2001.0
    rig.flink.metrics[SOURCE]["busyTimeMsPerSecond"]["avg"] = math.nan
    rig.shared.forget()
    busy = await api.vertex_metrics(rig.flink.jid, SOURCE, ["busyTimeMsPerSecond"])
    assert math.isnan(busy["busyTimeMsPerSecond"].avg)


async def test_subtasks_have_their_taskmanager_and_their_times(newest: Rig) -> None:
    path = f"/jobs/{newest.flink.jid}/vertices/{SOURCE}"
    newest.flink.answers[path] = {"status": 200, "answer": json.loads((DATA / "2.3" / "subtasks.json").read_text())}
    found = await (await newest.api()).subtasks(newest.flink.jid, SOURCE)
    assert [subtask.number for subtask in found] == [0, 1, 2, 3]
    assert [subtask.taskmanager for subtask in found] == ["127.77.7.3-2"] * 2 + ["127.77.7.2-1"] * 2
    assert {(subtask.attempt, subtask.status) for subtask in found} == {(0, "RUNNING")}
    assert (found[0].times.busy, found[0].times.idle, found[0].times.backpressured) == (265.0, 529.0, 0.0)


async def test_one_unknown_name_gives_an_empty_answer_as_in_flink(newest: Rig) -> None:
    api = await newest.api()
    assert await api.vertex_metrics(newest.flink.jid, SOURCE, ["busyTimeMsPerSecond", "nonsense"]) == {}


async def test_concurrent_reads_of_one_path_send_one_request(newest: Rig) -> None:
    api = await newest.api()
    await asyncio.gather(*(api.overview() for _ in range(20)))
    await api.overview()
    assert newest.flink.asked == ["/overview"]
    api.forget()
    await api.overview()
    assert len(newest.flink.asked) == 2


async def test_a_cancelled_caller_does_not_take_the_answer_from_others(newest: Rig) -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.json_response(newest.flink.answers["/overview"]["answer"])

    newest.flink.special["/overview"] = slow
    api = await newest.api()
    impatient, patient = asyncio.create_task(api.overview()), asyncio.create_task(api.overview())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).slots_total > 0


async def test_long_lists_of_names_are_sent_in_several_requests(newest: Rig) -> None:
    api = await newest.api()
    for number in range(200):
        newest.flink.report(SOURCE, f"Source__numbers.{'x' * 40}{number}", number)
    names = await api.vertex_metric_names(newest.flink.jid, SOURCE)
    assert (await api.vertex_metrics(newest.flink.jid, SOURCE, names)).keys() == names
    assert max(map(len, newest.flink.asked)) <= LONGEST_QUERY + 20
    assert sum("get=" in path for path in newest.flink.asked) > 2


@pytest.mark.parametrize(
    ("ages", "expected", "questions"),
    [
        ([100], 0.1, 1),
        ([300_000, 100], 0.1, 2),  # the first request made Flink gather them
        ([300_000, 300_000, 300_000, 100], 0.1, 4),
        ([300_000], 300, 5),  # not gathered again: the age is reported
        ([-60_000], None, 5),  # of the previous run, which had run for longer
        ([5_000], 5, 1),  # younger than Flink's interval of 10 s: another request would not change them
    ],
)
async def test_old_metrics_are_gathered_again(
    newest: Rig, ages: list[float], expected: float | None, questions: int
) -> None:
    newest.flink.unset("metrics.fetcher.update-interval")
    newest.flink.ages.clear()
    newest.flink.ages.extend(ages)
    api = await newest.api()
    job = await api.job(newest.flink.jid)
    asked = time.monotonic()
    age = await api.metrics_age(job)
    took = time.monotonic() - asked  # in which they become older
    assert sum("get=uptime" in path for path in newest.flink.asked) == questions
    if expected is None:
        assert age is None
    else:
        assert age is not None
        assert expected <= age <= expected + took + 0.001  # Flink's times are whole milliseconds


async def test_a_json_document_is_put_once_and_a_refusal_has_flinks_words(newest: Rig) -> None:
    path = f"/jobs/{newest.flink.jid}/resource-requirements"
    trace = (
        "<Exception on server side:\njava.lang.UnsupportedOperationException: Cannot change it.\n\tat a.b(C.java:1)\n"
    )
    bodies = []

    async def refuse(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"errors": ["Internal server error.", trace]}, status=500)

    newest.flink.special[path] = refuse
    api = await newest.api()
    with pytest.raises(
        RefusedError,
        match=r"answered 500 Internal Server Error: java.lang.UnsupportedOperationException: Cannot change it\.$",
    ):
        await api.put_requirements(newest.flink.jid, {SOURCE: (1, 4)})
    assert bodies == [{SOURCE: {"parallelism": {"lowerBound": 1, "upperBound": 4}}}]


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        (404, {"errors": ["org.apache.flink.runtime.rest.NotFoundException: Job x not found\n\tat a.b"]}, RefusedError,
         "Job x not found"),
        (401, "who are you", RefusedError, "401 Unauthorized: who are you; no token or password was sent"),
        (503, {"errors": ["Service temporarily unavailable due to an ongoing leader election. Please refresh."]},
         UnavailableError, "leader election"),
        (429, {"errors": []}, UnavailableError, "429"),
        (500, {"errors": ["Internal server error."]}, UnavailableError, "Internal server error"),
        (200, "<html>login</html>", AnswerError, "expected JSON of Flink's REST API, got '<html>login"),
        (200, {}, AnswerError, "jobs: Field required"),
        (200, {"jobs": 5}, AnswerError, "jobs: "),
        (200, {"jobs": [{"jid": "a"}]}, AnswerError, "jobs.0"),
    ],
)  # fmt: skip
async def test_an_invalid_answer_is_named(
    newest: Rig, status: int, body: Any, error: type[Exception], text: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    newest.flink.special["/jobs/overview"] = answer
    with pytest.raises(error, match=text):
        await (await newest.api()).jobs()
    # Only temporary failures are retried.
    assert len(newest.flink.asked) == (2 if error is UnavailableError else 1)


@pytest.mark.parametrize("said", [{"errors": 5}, {"errors": None}, {"errors": {"a": 1}}, {"errors": [7]}, 5, None, []])
async def test_an_error_without_a_message_of_flink_is_still_an_error(newest: Rig, said: Any) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response(said, status=404)

    newest.flink.special["/jobs/overview"] = refuse
    with pytest.raises(RefusedError, match="/jobs/overview answered 404 Not Found"):
        await (await newest.api()).jobs()


async def test_an_answer_without_taskmanagers_is_an_error_and_not_zero_workers(newest: Rig) -> None:
    newest.flink.answers["/taskmanagers"] = {"status": 200, "answer": {}}
    with pytest.raises(AnswerError, match="taskmanagers: Field required"):
        await (await newest.api()).taskmanagers()


@pytest.mark.parametrize("body", ["<html>login</html>", "[" * 100_000, "{"])
async def test_a_document_that_only_a_proxy_accepted_was_not_put(newest: Rig, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    newest.flink.special["/jobs/x"] = answer
    with pytest.raises(AnswerError, match="/jobs/x: expected JSON of Flink's REST API, got "):
        await (await newest.api()).put("/jobs/x", {})


async def test_a_job_manager_that_hangs_does_not_slow_others_behind_the_same_proxy(newest: Rig) -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    asked = [f"/hanging/jobs/{number}" for number in range(100)]
    newest.flink.special = dict.fromkeys(asked, hang)
    newest.flink.answers["/good/overview"] = newest.flink.answers["/overview"]
    slow = await FlinkParameters(url=newest.url + "/hanging", timeout=timedelta(minutes=5)).api(newest.shared)
    good = await FlinkParameters(url=newest.url + "/good").api(newest.shared)
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(slow.get(path.removeprefix("/hanging"))) for path in asked]
    async with asyncio.timeout(10):
        while len(newest.flink.asked) < 8:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert (await good.overview()).slots_total
    assert len(newest.flink.asked) == 8 + 1  # nor is one with many concurrent requests
    release.set()
    assert await asyncio.gather(*waiting) == [{}] * len(asked)


async def test_a_job_without_checkpoints_may_have_no_checkpoint_configuration(newest: Rig) -> None:
    async def none(_: web.Request) -> web.Response:
        return web.json_response({"errors": ["Checkpointing has not been enabled."]}, status=404)

    newest.flink.special[f"/jobs/{newest.flink.jid}/checkpoints/config"] = none
    newest.flink.special[f"/jobs/{newest.flink.jid}/checkpoints"] = none
    api = await newest.api()
    assert await api.checkpoint_config(newest.flink.jid) is None
    assert await api.checkpoints(newest.flink.jid) is None
    with pytest.raises(RefusedError, match="404"):
        await api.checkpoints("another")


async def test_a_server_that_hangs_times_out(newest: Rig) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    newest.flink.special["/overview"] = hang
    api = await newest.api(timeout=timedelta(seconds=0.3))
    async with asyncio.timeout(5):
        with pytest.raises(EdgeTimeoutError, match="did not answer in full"):
            await api.overview()
    await api.close()


async def test_a_job_manager_that_is_down_is_unavailable() -> None:
    shared = Shared()
    async with shared.stack:
        api = await FlinkParameters(url="http://127.0.0.1:1").api(shared)
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await api.overview()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"token": Secret("t0ken")}, "Bearer t0ken"),
        ({"username": "ann", "password": Secret("pw")}, "Basic YW5uOnB3"),
    ],
)
async def test_requests_carry_the_login(newest: Rig, changes: dict[str, Any], expected: str | None) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"jobs": []})

    newest.flink.special["/jobs/overview"] = answer
    api = await newest.api(**changes)
    assert await api.jobs() == ()
    assert seen == [expected]
    assert "t0ken" not in repr(api.endpoint)


async def test_the_login_of_one_client_is_not_used_for_another(newest: Rig) -> None:
    """Proxies give a session to a client that has sent a token: another client must not use this session."""
    cookies = []

    async def greet(request: web.Request) -> web.Response:
        cookies.append(dict(request.cookies))
        answer = web.json_response(newest.flink.answers["/overview"]["answer"])
        answer.set_cookie("session", "of the first")
        return answer

    newest.flink.special["/overview"] = greet
    # Cookies are stored for names, not for addresses.
    url = newest.url.replace("127.0.0.1", "localhost")
    for token in ("first", "second"):
        await (await FlinkParameters(url=url, token=Secret(token)).api(newest.shared)).overview()
    assert cookies == [{}, {}]


async def test_a_missing_certificate_file_is_named(newest: Rig) -> None:
    with pytest.raises(AnswerError, match=r"ca_file /nowhere/ca.pem cannot be used"):
        await FlinkParameters(url="https://127.0.0.1:1", ca_file=Path("/nowhere/ca.pem")).api(newest.shared)


def line(jid: str, state: str = "RUNNING", name: str = "orders", start: int = 0) -> JobLine:
    return JobLine(jid=jid, name=name, state=state, start=start, end=-1)


@pytest.mark.parametrize(
    ("jobs", "name", "expected"),
    [
        ([], "orders", None),
        ([line("a")], "orders", "a"),
        ([line("a")], "a", "a"),
        ([line("a")], None, "a"),
        ([line("a")], "other", None),
        ([line("a", "FAILED", start=9), line("b", start=5)], "orders", "b"),  # the running one
        ([line("a", "CANCELED", start=5), line("b", "FINISHED", start=9)], "orders", "b"),  # otherwise the newest
        ([line("a", "RESTARTING"), line("b", name="other")], "orders", "a"),
    ],
)
def test_a_job_is_found_by_its_name(jobs: list[JobLine], name: str | None, expected: str | None) -> None:
    found = choose_job(jobs, name, "http://h:1")
    assert (found.jid if found else None) == expected


def test_two_jobs_with_one_name_are_an_error() -> None:
    with pytest.raises(AnswerError, match=r"runs 2 jobs named 'orders' \(orders a, orders b\); stop all but one"):
        choose_job([line("a"), line("b"), line("c", "FAILED")], "orders", "http://h:1")
    with pytest.raises(AnswerError, match="name one with job: <name>"):
        choose_job([line("a"), line("b", name="other")], None, "http://h:1")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"url": "jobmanager:8081"}, "url: must be an address such as http://host:8081"),
        ({"url": "http://"}, "url: must be an address such as http://host:8081"),
        ({"url": "http://h:99999"}, "url: must be an address such as http://host:8081"),
        ({"url": "http://h:1/?a=b"}, "url: must be an address such as http://host:8081"),
        ({"url": "http://ann:hunter2@h:1"}, "^url: must not contain a user or password"),
        ({"username": "ann"}, "must be given together"),
        ({"username": "ann", "password": Secret("x"), "token": Secret("y")}, "must not be given together"),
        ({"token": Secret("abc\n")}, "token: must be ASCII without spaces .is there a line break at its end"),
        ({"token": Secret("")}, "token: must be ASCII"),
        ({"username": "ann:lee", "password": Secret("x")}, "username: must not be empty or contain a colon"),
        ({"username": "", "password": Secret("x")}, "username: must not be empty"),
        ({"username": "ann", "password": Secret("x\n")}, "password: must not be empty or contain a line break"),
        ({"ca_file": Path("ca.pem")}, "needs a url that begins with https"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
    ],
)
def test_invalid_parameters_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FlinkParameters(**{"url": "http://h:1", **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 s", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("1 min", 60.0),
        ("10 minutes", 600.0),
        ("50000", 50.0),
        ("1 h", 3600.0),
        ("PT30S", 30.0),
        ("PT1M30S", 90.0),
        ("P1DT1S", 86401.0),
        ("PT0S", 0.0),
        ("-1", -0.001),
        ("9" * 400 + " s", math.inf),
        ("'5 s'", 5.0),
        ("soon", None),
        ("P", None),
        ("", None),
        ("5 fortnights", None),
    ],
)
def test_durations_of_flink_are_parsed(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


def test_versions_are_parsed() -> None:
    assert version("1.18.1") == (1, 18)
    assert version("2.3-SNAPSHOT") == (2, 3)
    with pytest.raises(AnswerError, match="got ''"):
        version("")
