"""Notifiers against real servers: an HTTP server for `webhook` and `slack`, and moto's for `sns`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.config.model import NotificationSpec
from autoscaler.core.parameters import ParameterError
from autoscaler.daemon.history import History
from autoscaler.daemon.notifications import DRAIN
from autoscaler.daemon.service import Daemon
from autoscaler.daemon.state_store import open_state_store
from autoscaler.notifiers.slack import Slack
from autoscaler.notifiers.sns import Sns
from autoscaler.notifiers.webhook import Webhook
from autoscaler.ports import (
    EdgeTimeoutError,
    Notification,
    NotificationKind,
    NotifierPlugin,
    RefusedError,
    Secret,
    Severity,
    UnavailableError,
)
from autoscaler.testing import LocalShared
from autoscaler.testing.fakes import Fake, FakeSource, FakeTarget
from tests.clients.aws_server import REGION, Moto
from tests.daemon.conftest import make_cluster, make_config

pytest_plugins = ("tests.clients.aws_fixtures",)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BAD = 'prod/<script>alert("x")</script> <!channel>\U0001f600\nend'


def told(number: int = 1, **changes: Any) -> Notification:
    parts: dict[str, Any] = {
        "id": f"id{number}",
        "at": NOON,
        "kind": NotificationKind.TROUBLE_BEGUN,
        "severity": Severity.ERROR,
        "cluster": f"c{number}",
        "message": "target: away",
        "text": f"c{number} is away",
    }
    return Notification(**{**parts, **changes})


@dataclass
class Hook:
    """An HTTP server that keeps the posted requests.

    Attributes:
        requests: headers and JSON of each.
        answers: statuses of the next answers; then 200.
    """

    url: str = ""
    requests: list[tuple[dict[str, str], Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.append(request.path_qs)
        self.requests.append((dict(request.headers), json.loads(await request.read())))
        status = self.answers.pop(0) if self.answers else 200
        if not status:
            await request.read()
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=status or 200, text="ok")  # like Slack: not JSON


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    found = Hook()
    app = web.Application()
    app.router.add_post("/{path:.*}", found.handle)
    async with TestServer(app) as server:
        found.url = str(server.make_url("/hooks/s3cr3t-path"))
        yield found


async def send(plugin: NotifierPlugin, *notifications: Notification) -> None:
    async with LocalShared() as shared, plugin.connect(shared) as live:
        await live.send(notifications)


async def test_a_webhook_gets_a_cloud_event(hook: Hook) -> None:
    plugin = Webhook(url=Secret(f"{hook.url}?sig=a%20b"), token=Secret("t0ken"), source="/autoscaler/prod")
    await send(plugin, told(cluster=BAD))
    [(headers, event)] = hook.requests
    assert hook.paths == ["/hooks/s3cr3t-path?sig=a%20b"]
    assert headers["Content-Type"] == "application/cloudevents+json"
    assert headers["Authorization"] == "Bearer t0ken"
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "id1",
        "source": "/autoscaler/prod",
        "type": "internal.reactive-autoscaler.trouble-begun",
        "subject": BAD,
        "time": "2026-01-01T12:00:00+00:00",
        "datacontenttype": "application/json",
    }
    assert data == {
        "at": "2026-01-01T12:00:00+00:00",
        "cluster": BAD,
        "kind": "trouble-begun",
        "severity": "error",
        "message": "target: away",
        "text": "c1 is away",
    }


async def test_several_notifications_are_one_event_with_all_of_them(hook: Hook) -> None:
    await send(Webhook(url=Secret(hook.url)), *map(told, range(30)))
    [(_, event)] = hook.requests
    assert (event["type"], event["id"]) == ("internal.reactive-autoscaler.digest", "id29")
    assert "subject" not in event
    assert [each["cluster"] for each in event["data"]["notifications"]] == [f"c{number}" for number in range(30)]


async def test_slack_gets_text_without_mentions_and_of_limited_length(hook: Hook) -> None:
    plugin = Slack(url=Secret(hook.url))
    await send(plugin, told(text=BAD))
    await send(plugin, *map(told, range(30)))
    first, second = [body["text"] for _, body in hook.requests]
    assert first == 'prod/&lt;script&gt;alert("x")&lt;/script&gt; &lt;!channel&gt;\U0001f600\nend'
    lines = second.splitlines()
    assert (len(lines), lines[0], lines[-1]) == (21, "c0 is away", "and 10 more")


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (404, RefusedError, "answered 404 Not Found: ok"),
        (410, RefusedError, "answered 410 Gone"),
        (401, RefusedError, "no token or password was sent"),
        (429, UnavailableError, "answered 429"),
        (500, UnavailableError, "answered 500"),
        (0, UnavailableError, "cannot be reached"),
    ],
)
async def test_a_refusal_by_a_receiver_is_an_error_that_says_whether_a_retry_makes_sense(
    hook: Hook, status: int, error: type[Exception], message: str
) -> None:
    for plugin in (Webhook(url=Secret(hook.url)), Slack(url=Secret(hook.url))):
        hook.answers.append(status)
        with pytest.raises(error, match=message):
            await send(plugin, told())
    assert len(hook.requests) == 2  # a post is sent once: the caller retries


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: Webhook(url=Secret("hooks.example")), "url", "must be an address such as"),
        (lambda: Webhook(url=Secret("https://a.example"), source=""), "source", "must not be empty"),
        (lambda: Webhook(url=Secret("https://ann:pw@a.example")), "url", "must not contain a user or password"),
        (lambda: Slack(url=Secret("https://a.example"), timeout=timedelta(0)), "timeout", "must be above 0s"),
        (lambda: Sns(topic="autoscaler"), "topic", "must be an ARN such as arn:aws:sns:"),
        (lambda: Sns(topic="arn:aws:sns:eu-centrall-1:123456789012:a"), "region", "is not a region of AWS"),
    ],
)
def test_an_invalid_parameter_is_named(make: Any, name: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as raised:
        make()
    assert raised.value.name == name


class TestSns:
    """Against moto's server, with a queue that has subscribed to the topic."""

    @staticmethod
    def topic(moto: Moto, **attributes: str) -> tuple[str, str]:
        """A topic and a queue that receives its messages; returns the topic's ARN and the queue's address."""
        suffix = ".fifo" if attributes else ""
        name = f"topic-{secrets.token_hex(4)}{suffix}"
        arn = moto.client("sns").create_topic(Name=name, Attributes=attributes)["TopicArn"]
        queue = moto.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        endpoint = f"arn:aws:sqs:{REGION}:123456789012:{name}"
        moto.client("sns").subscribe(TopicArn=arn, Protocol="sqs", Endpoint=endpoint)
        return arn, queue

    @staticmethod
    def received(moto: Moto, queue: str) -> dict[str, Any]:
        [message] = moto.client("sqs").receive_message(QueueUrl=queue)["Messages"]
        found: dict[str, Any] = json.loads(message["Body"])
        return found

    async def test_a_notification_is_published_with_attributes_for_filters(self, moto: Moto, identity: str) -> None:
        assert identity
        arn, queue = self.topic(moto)
        await send(Sns(topic=arn, endpoint_url=moto.url), told(cluster=BAD, text=BAD))
        found = self.received(moto, queue)
        assert found["Message"] == BAD
        assert found["Subject"] == 'prod/<script>alert("x")</script> <!channel>??end: trouble-begun'
        values = {name: value["Value"] for name, value in found["MessageAttributes"].items()}
        assert values == {"kind": "trouble-begun", "severity": "error", "cluster": BAD}

    async def test_several_notifications_are_one_message_even_for_an_ordered_topic(
        self, moto: Moto, identity: str
    ) -> None:
        assert identity
        arn, queue = self.topic(moto, FifoTopic="true")
        await send(Sns(topic=arn, endpoint_url=moto.url), *map(told, range(3)))
        found = self.received(moto, queue)
        assert (found["Subject"], found["Message"]) == ("3 notifications", "c0 is away\nc1 is away\nc2 is away")

    async def test_a_missing_topic_is_refused(self, moto: Moto, identity: str) -> None:
        assert identity
        plugin = Sns(topic=f"arn:aws:sns:{REGION}:123456789012:gone", endpoint_url=moto.url)
        with pytest.raises(RefusedError, match=r"AWS sns in us-east-1 at .*: Publish: NotFound"):
            await send(plugin, told())

    async def test_an_unavailable_server_may_be_retried(self, identity: str) -> None:
        assert identity
        arn = f"arn:aws:sns:{REGION}:123456789012:a"
        plugin = Sns(topic=arn, endpoint_url="http://127.0.0.1:9", timeout=timedelta(seconds=3))
        with pytest.raises((UnavailableError, EdgeTimeoutError)):
            await send(plugin, told())


async def test_a_hanging_webhook_delays_neither_the_ticks_of_a_daemon_nor_its_shutdown(tmp_path: Path) -> None:
    released, asked = asyncio.Event(), asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        asked.set()
        await released.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/", hang)
    source = FakeSource({"load": 300.0})
    more = {"interval": timedelta(milliseconds=100), "timeout": timedelta(milliseconds=90)}
    clusters = {name: make_cluster(name, Fake(FakeTarget()), **more) for name in "ab"}
    config = make_config(clusters, Fake(source), tmp_path)
    async with TestServer(app) as server, open_state_store(tmp_path, decisions=100) as store:
        spec = NotificationSpec(to=Webhook(url=Secret(str(server.make_url("/")))))
        config = replace(config, daemon=replace(config.daemon, notifications={"hook": spec}))
        history = History(tmp_path / "history", timedelta(days=1))
        await history.start()
        daemon = Daemon(config, lambda: config, store, history)
        work = asyncio.create_task(daemon.run())
        await asyncio.wait_for(asked.wait(), 60)
        decided = {name: daemon.controllers[name].counters.decisions.copy() for name in clusters}
        await asyncio.sleep(1)
        for name, controller in daemon.controllers.items():
            assert sum(controller.counters.decisions.values()) >= sum(decided[name].values()) + 5
        begun = time.monotonic()
        daemon.stop()
        await work
        assert time.monotonic() - begun < DRAIN + 5
        await history.close()
        released.set()
