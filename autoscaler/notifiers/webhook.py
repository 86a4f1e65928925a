"""Notifier `webhook`: CloudEvents 1.0 with HTTP POST, in structured mode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from autoscaler.clients.http import Endpoint, JsonClient
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import Notification, Notifier, Secret, Shared

TYPE = "internal.reactive-autoscaler."
"""The prefix of an event's type; the kind of the notification follows, or `digest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Posts each notification as a CloudEvent 1.0: JSON, `application/cloudevents+json`.

    Attributes:
        url: address to post to, which may have a query. Any answer 2xx is a success.
        token: sent as `Authorization: Bearer <token>`. Default: none.
        source: the `source` of the events, a URI reference that names this daemon. Default `autoscaler`.
        ca_file: PEM file with the CA certificates for the receiver's certificate. Default: those of the system.
        timeout: time-out for one answer. Default 10s.
    """

    url: Secret
    token: Secret | None = None
    source: str = "autoscaler"
    ca_file: Path | None = None
    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        if not self.source:
            raise ParameterError("source", "must not be empty: a CloudEvent needs a source")
        self._endpoint()

    def _endpoint(self) -> Endpoint:
        """The receiver. Raises ParameterError."""
        return Endpoint(
            url=str(self.url).partition("?")[0],
            token=self.token,
            ca_file=self.ca_file,
            timeout=self.timeout,
            headers=(("Content-Type", "application/cloudevents+json"),),
        )

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Notifier]:
        """Use the shared HTTP client. This sends nothing."""
        client = await JsonClient.open(shared, self._endpoint())
        yield Live(client, "".join(self.url.partition("?")[1:]), self.source)


class Live:
    """A connected webhook."""

    def __init__(self, client: JsonClient, query: str, source: str) -> None:
        self._client = client
        self._query = query
        self._source = source

    async def send(self, notifications: Sequence[Notification]) -> None:
        """Post one notification as an event, or several as one event of the type `digest` with a list in its `data`."""
        last = notifications[-1]
        one = len(notifications) == 1
        event = {
            "specversion": "1.0",
            "id": last.id,
            "source": self._source,
            "type": TYPE + (last.kind.value if one else "digest"),
            "time": last.at.isoformat(),
            "datacontenttype": "application/json",
            **({"subject": last.cluster} if one else {}),
            "data": _data(last) if one else {"notifications": [_data(each) for each in notifications]},
        }
        await self._client.send(self._query, event)


def _data(notification: Notification) -> dict[str, Any]:
    return {
        "at": notification.at.isoformat(),
        "cluster": notification.cluster,
        "kind": notification.kind.value,
        "severity": notification.severity.value,
        "message": notification.message,
        "text": notification.text,
    }
