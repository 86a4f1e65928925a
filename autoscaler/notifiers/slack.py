"""Notifier `slack`: an incoming webhook of Slack, or of what understands the same, such as Mattermost."""

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
        url: of the incoming webhook; who knows it can post, so it is a secret.
        ca_file: PEM file with the certificates that sign the receiver's. Default: those of the system.
        timeout: time for one answer. Default 10s.
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
        """Share the HTTP client. Nothing is sent yet."""
        yield Live(await JsonClient.open(shared, self._endpoint()))


class Live:
    """A live incoming webhook."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    async def send(self, notifications: Sequence[Notification]) -> None:
        """Post them as one message. A name such as `<!channel>` is text, and calls nobody."""
        await self._client.send("", {"text": escape(digest(notifications), quote=False)})
