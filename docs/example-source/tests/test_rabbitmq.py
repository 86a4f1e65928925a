"""Tests of the contract of every source, and of this one, against a server that behaves like RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from autoscaler.core.model import Reading
from autoscaler.ports import AnswerError, RefusedError, Secret
from autoscaler.testing import LocalShared, SourceContract

from autoscaler_rabbitmq import Query, RabbitMQ

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUES = {
    ("/", "orders"): {"messages": 12, "messages_ready": 10, "messages_unacknowledged": 2},
    ("team/a", "no statistics yet"): {},
}


async def show(request: web.Request) -> web.Response:
    if request.headers["Authorization"] != "Basic Z3Vlc3Q6aHVudGVyMg==":  # guest:hunter2
        return web.json_response({"error": "not_authorized", "reason": "Login failed"}, status=401)
    queue = QUEUES.get((request.match_info["vhost"], request.match_info["queue"]))
    if queue is None:
        return web.json_response({"error": "Object Not Found", "reason": "Not Found"}, status=404)
    return web.json_response(queue)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/api/queues/{vhost}/{queue}", show)
    async with TestServer(application) as server:
        yield str(server.make_url(""))


async def collect(url: str, query: Query, password: str = "hunter2") -> Reading:
    async with LocalShared() as shared, RabbitMQ(url, "guest", Secret(password)).connect(shared) as source:
        return await source.collect(query, NOW)


class TestContract(SourceContract):
    @pytest.fixture
    def plugin(self, url: str) -> RabbitMQ:
        return RabbitMQ(url, "guest", Secret("hunter2"))

    @pytest.fixture
    def query(self) -> Query:
        return Query("orders")

    @pytest.fixture
    def unreachable(self) -> RabbitMQ:
        return RabbitMQ("http://127.0.0.1:1", "guest", Secret("hunter2"))


async def test_the_messages_of_a_queue_are_counted(url: str) -> None:
    assert (await collect(url, Query("orders"))).value == 12


async def test_a_queue_without_statistics_is_missing_and_not_empty(url: str) -> None:
    with pytest.raises(AnswerError, match="expected JSON of RabbitMQ's management API, but messages: Field required"):
        await collect(url, Query("no statistics yet", "team/a"))


async def test_a_queue_that_does_not_exist_and_a_wrong_password_are_named(url: str) -> None:
    with pytest.raises(RefusedError, match="answered 404 Not Found: .*Object Not Found"):
        await collect(url, Query("other"))
    with pytest.raises(RefusedError, match="answered 401 Unauthorized: .*Login failed.*; check the token or password"):
        await collect(url, Query("orders"), password="wrong")
