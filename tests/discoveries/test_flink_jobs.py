"""The discovery `flink-jobs` against recorded answers of JobManagers of several versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from autoscaler.discoveries.flink_jobs import FlinkJobs
from autoscaler.engines.flink import Flink
from autoscaler.ports import AnswerError, EdgeError, Member, RefusedError, Secret, UnavailableError
from autoscaler.testing import LocalShared
from tests.clients.flink_stub import VERSIONS, FakeFlink, serve

HTML = "<script>alert('${API_TOKEN}')</script>"


@pytest.fixture(params=VERSIONS)
def flink(request: pytest.FixtureRequest) -> FakeFlink:
    return FakeFlink(request.param)


@pytest.fixture
async def url(flink: FakeFlink) -> AsyncIterator[str]:
    async with serve(flink) as address:
        yield address


async def found(url: str, patience: timedelta = timedelta(seconds=3)) -> Sequence[Member]:
    async with LocalShared() as shared, FlinkJobs(url=url, timeout=patience).connect(shared) as discovery:
        return await discovery.members()


def jobs(flink: FakeFlink, *lines: dict[str, Any]) -> None:
    """Set the jobs; the missing fields are those of the recorded one."""
    answer = flink.answers["/jobs/overview"]["answer"]
    answer["jobs"] = [{**flink.line, **line} for line in lines]


async def test_the_jobs_of_a_session_cluster_are_members_until_they_end(flink: FakeFlink, url: str) -> None:
    [member] = await found(url)
    assert member == Member("recorded", {"id": flink.jid, "name": "recorded", "state": "RUNNING"})
    jobs(
        flink,
        {"jid": "a", "name": "orders", "state": "RESTARTING", "start-time": 2},
        {"jid": "b", "name": "clicks", "state": "CREATED", "start-time": 1},
        *({"jid": state, "name": state, "state": state} for state in ("FAILED", "CANCELED", "FINISHED")),
    )
    assert [(member.id, member.values["state"]) for member in await found(url)] == [
        ("clicks", "CREATED"),
        ("orders", "RESTARTING"),
    ]


async def test_a_restarted_job_is_the_same_member_with_another_id(flink: FakeFlink, url: str) -> None:
    jobs(flink, {"jid": "old", "state": "CANCELED"}, {"jid": "new", "state": "RUNNING"})
    [member] = await found(url)
    assert (member.id, member.values["id"]) == ("recorded", "new")


async def test_of_jobs_with_one_name_the_oldest_keeps_the_name_as_its_id(flink: FakeFlink, url: str) -> None:
    same = {"name": "orders", "state": "RUNNING"}
    jobs(
        flink,
        {**same, "jid": "c", "start-time": 3},
        {**same, "jid": "a", "start-time": 1},
        {**same, "jid": "b", "start-time": 2},
        {**same, "jid": "d", "start-time": 0, "name": "orders b"},  # no two ids may be equal
    )
    assert [(member.id, member.values["id"]) for member in await found(url)] == [
        ("orders b", "d"),
        ("orders", "a"),
        ("orders b b", "b"),
        ("orders c", "c"),
    ]


async def test_names_are_passed_on_unchanged_and_a_job_without_one_has_its_id(flink: FakeFlink, url: str) -> None:
    jobs(flink, {"jid": "a", "name": HTML}, {"jid": "b", "name": "x" * 65_536}, {"jid": "c", "name": ""})
    assert [member.values["name"] for member in await found(url)] == [HTML, "x" * 65_536, ""]
    assert (await found(url))[2].id == "c"


async def test_ten_thousand_jobs_are_read(flink: FakeFlink, url: str) -> None:
    jobs(flink, *({"jid": f"{number:032}", "name": f"job-{number}"} for number in range(10_000)))
    # This tests the number of jobs, not the speed: a busy machine takes seconds to write them.
    assert len(await found(url, timedelta(seconds=60))) == 10_000


async def test_a_cluster_without_jobs_is_a_fleet_without_members(flink: FakeFlink, url: str) -> None:
    jobs(flink)
    assert await found(url) == []


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (200, "<html>welcome to the proxy</html>", AnswerError, "expected JSON of Flink's REST API, got '<html>"),
        (200, '{"jobs":[{"jid":"a","na', AnswerError, "expected JSON of Flink's REST API"),
        (200, '{"jobs":[{"jid":"a","state":"RUNNING"}]}', AnswerError, "jobs.0.name: Field required"),
        (401, "", RefusedError, "no token or password was sent"),
        (
            503,
            '{"errors":["no leader"]}',
            UnavailableError,
            "leader",
        ),
    ],
    ids=["html", "cut", "no name", "401", "503"],
)
async def test_an_invalid_answer_is_an_error(
    flink: FakeFlink, url: str, status: int, body: str, error: type[EdgeError], message: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    flink.special["/jobs/overview"] = answer
    with pytest.raises(error, match=message):
        await found(url)


async def test_a_truncated_answer_is_an_error(flink: FakeFlink, url: str) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"jobs":[')
        assert request.transport is not None
        request.transport.abort()
        return response

    flink.special["/jobs/overview"] = cut
    with pytest.raises(UnavailableError, match="/jobs/overview cannot be reached"):
        await found(url)


async def test_an_engine_shares_its_client_and_the_list_of_jobs(flink: FakeFlink, url: str) -> None:
    some, one = FlinkJobs(url=url), Flink(url=url, job="recorded")
    async with LocalShared() as shared, some.connect(shared) as discovery, one.connect(shared) as engine:
        await discovery.members()
        await engine.describe()
    assert flink.asked.count("/jobs/overview") == 1


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"url": "jobmanager:8081"}, "url: must be an address such as"),
        ({"username": "ann"}, "username: must be given together with password"),
        ({"username": "ann", "password": Secret("p"), "token": Secret("t")}, "token: must not be given together"),
        ({"ca_file": "ca.pem"}, "ca_file: needs a url that begins with https://"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FlinkJobs(**{"url": "http://jobmanager:8081", **parameters})
