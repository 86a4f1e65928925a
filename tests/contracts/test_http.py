"""The source `http` keeps the contract of sources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.ports import Secret
from autoscaler.sources.http import Http, Query
from autoscaler.testing import SourceContract


class TestHttp(SourceContract):
    @pytest.fixture
    async def plugin(self) -> AsyncIterator[Http]:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"queue": {"waiting": 12}})

        application = web.Application()
        application.router.add_get("/stats", answer)
        async with TestServer(application) as server:
            yield Http(url=str(server.make_url("/stats")), token=Secret("hunter2"), fresh=timedelta(0))

    @pytest.fixture
    def query(self) -> Query:
        return Query("queue.waiting")

    @pytest.fixture
    def unreachable(self) -> Http:
        return Http(url="http://127.0.0.1:1/stats", token=Secret("hunter2"))
