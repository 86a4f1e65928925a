"""Tests of the contract of every target, and of this one, against a server that behaves like Nomad."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from autoscaler.ports import AnswerError, RefusedError, Secret
from autoscaler.testing import LocalShared, TargetContract

from autoscaler_nomad import Nomad


class FakeNomad:
    """A Nomad server with the job `shop`: its one group `web` has an allocation that is still starting."""

    def __init__(self) -> None:
        self.count = 2
        self.posted: list[object] = []

    async def show(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer hunter2":
            return web.Response(status=403, text="Permission denied")
        if request.match_info["job"] != "team/shop" or request.query["namespace"] != "default":
            return web.Response(status=404, text="job not found")
        group = {"Desired": self.count, "Placed": self.count, "Running": max(0, self.count - 1), "Events": None}
        return web.json_response({"JobStopped": False, "TaskGroups": {"web": group}})

    async def scale(self, request: web.Request) -> web.Response:
        document = await request.json()
        if document["Count"] < 0:
            return web.Response(status=400, text="scaling action count can't be negative")
        self.posted.append(document)
        self.count = document["Count"]
        return web.json_response({"EvalID": "d092fdc0", "JobModifyIndex": 19})


@pytest.fixture
def server() -> FakeNomad:
    return FakeNomad()


@pytest.fixture
async def nomad(server: FakeNomad) -> AsyncIterator[Nomad]:
    application = web.Application()
    application.router.add_get("/v1/job/{job}/scale", server.show)
    application.router.add_post("/v1/job/{job}/scale", server.scale)
    async with TestServer(application) as running:
        yield Nomad(str(running.make_url("")), "team/shop", "web", token=Secret("hunter2"))


class TestContract(TargetContract):
    @pytest.fixture
    def plugin(self, nomad: Nomad) -> Nomad:
        return nomad

    @pytest.fixture
    def unreachable(self) -> Nomad:
        return Nomad("http://127.0.0.1:1", "team/shop", "web", token=Secret("hunter2"))


async def test_what_runs_is_ready_and_a_size_is_a_count(nomad: Nomad, server: FakeNomad) -> None:
    async with LocalShared() as shared, nomad.connect(shared) as target:
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 1)
        await target.scale(5)
        assert (await target.describe()).desired == 5
    assert server.posted == [{"Count": 5, "Target": {"Group": "web"}}]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"group": "db"}, AnswerError, r"/scale\?namespace=default: no task group 'db' in \['web'\]"),
        ({"job": "other"}, RefusedError, "answered 404 Not Found: job not found"),
        ({"namespace": "other"}, RefusedError, "answered 404 Not Found: job not found"),
        ({"token": None}, RefusedError, "answered 403 Forbidden: Permission denied; no token or password was sent"),
    ],
)
async def test_what_nomad_does_not_have_is_named(
    nomad: Nomad, changes: dict[str, str | None], error: type[Exception], message: str
) -> None:
    parameters = {"url": nomad.url, "job": nomad.job, "group": nomad.group, "token": nomad.token} | changes
    async with LocalShared() as shared, Nomad(**parameters).connect(shared) as target:
        with pytest.raises(error, match=message):
            await target.describe()


def test_a_wrong_address_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="url: must be an address such as"):
        Nomad("nomad:4646", "shop", "web")
