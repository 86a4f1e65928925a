"""A source for RabbitMQ: how many messages a queue holds, from the API of the management plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar
from urllib.parse import quote

from autoscaler.clients.http import Answer, Endpoint, JsonClient
from autoscaler.core.model import Reading
from autoscaler.ports import Secret, Shared
from pydantic import Field


class Queue(Answer):
    """The response of `GET /api/queues/:vhost/:name`. Without `messages` it is an error, never zero."""

    messages: int = Field(ge=0)


@dataclass(frozen=True, slots=True)
class Query:
    """One metric: the messages in a queue.

    Attributes:
        queue: name of the queue.
        vhost: its virtual host; default `/`.
    """

    queue: str
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """The queues of a RabbitMQ server.

    Attributes:
        url: address of the management plugin, such as http://rabbitmq:15672.
        username: a user with the tag `monitoring`; default: none.
        password: the user's password; default: none.
    """

    Query: ClassVar[type] = Query

    url: str
    username: str | None = None
    password: Secret | None = None

    def __post_init__(self) -> None:
        self.endpoint()  # checks the parameters

    def endpoint(self) -> Endpoint:
        """The server and how to authenticate."""
        return Endpoint(url=self.url, username=self.username, password=self.password)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Queues]:
        """Open the client; nothing is sent yet."""
        yield Queues(await JsonClient.open(shared, self.endpoint()))


@dataclass(frozen=True, slots=True)
class Queues:
    """The live source."""

    client: JsonClient

    async def collect(self, query: Query, now: datetime) -> Reading:
        """The messages in a queue, delivered and not yet acknowledged ones included."""
        path = f"/api/queues/{quote(query.vhost, safe='')}/{quote(query.queue, safe='')}"
        queue = await self.client.fetch(path, Queue, expected="JSON of RabbitMQ's management API")
        return Reading(float(queue.value.messages), now - timedelta(seconds=queue.age))
