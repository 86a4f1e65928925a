"""Notifier `slack`: an incoming webhook of Slack, or of a compatible service such as Mattermost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from pathlib import Path

from autoscaler.clients.http import Endpoint, JsonClient
from autoscaler.notifiers.digest import digest
from autoscaler.ports import Notification, Notifier, Secret, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """Posts to an incoming webhook of Slack, Mattermost, Rocket.Chat or Discord (`/slack` at the end of its URL).

    Attributes:
        url: address of the incoming webhook. It is a secret, because everybody who knows it can post.
        ca_file: PEM file with the CA certificates for the receiver's certificate. Default: those of the system.
        timeout: time-out for one answer. Default 10s.
    """

    url: Secret
    ca_file: Path | None = None
    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        self._endpoint()

    def _endpoint(self) -> Endpoint:
        """The receiver. Raises ParameterError."""
        return Endpoint(url=str(self.url), ca_file=self.ca_file, timeout=self.timeout)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Notifier]:
        """Use the shared HTTP client. This sends nothing."""
        yield Live(await JsonClient.open(shared, self._endpoint()))


class Live:
    """A connected incoming webhook."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    async def send(self, notifications: Sequence[Notification]) -> None:
        """Post the notifications as one message. A mention such as `<!channel>` is escaped and notifies nobody."""
        await self._client.send("", {"text": escape(digest(notifications), quote=False)})
