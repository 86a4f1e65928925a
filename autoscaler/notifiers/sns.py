"""Notifier `sns`: a topic of Amazon SNS."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from autoscaler.clients.aws import Aws, Place, shared_aws
from autoscaler.core.parameters import ParameterError
from autoscaler.notifiers.digest import digest
from autoscaler.ports import Notification, Notifier, Shared

LONGEST_SUBJECT = 99  # characters: fewer than 100, ASCII, on one line
LONGEST_ATTRIBUTE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sns:
    """Publishes to a topic of Amazon SNS, with `kind`, `severity` and `cluster` as attributes for filter policies.

    Attributes:
        topic: ARN of the topic, such as `arn:aws:sns:eu-central-1:123456789012:autoscaler`.
        profile: a profile of `~/.aws/config`. Default: the credentials that boto3 finds.
        role: ARN of a role to assume. Default: none.
        endpoint_url: another address of SNS. Default: that of the region.
        timeout: time-out for one call, including retries. Default 10s.
    """

    packages: ClassVar[tuple[str, ...]] = ("boto3",)

    topic: str
    profile: str | None = None
    role: str | None = None
    endpoint_url: str | None = None
    timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"arn:aws[\w-]*:sns:[\w-]+:\d{12}:[\w-]{1,256}(\.fifo)?", self.topic):
            raise ParameterError(
                "topic", f"must be an ARN such as arn:aws:sns:eu-central-1:123456789012:name, not {self.topic!r}"
            )
        self._place()

    def _place(self) -> Place:
        """The region and the identity. Raises ParameterError."""
        return Place(self.topic.split(":")[3], self.profile, self.role, self.endpoint_url, self.timeout)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Notifier]:
        """Use the shared client of the region.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        aws = await shared_aws(shared, self._place())
        await aws.prepare("sns")
        yield Live(aws, self.topic)


class Live:
    """A connected topic."""

    def __init__(self, aws: Aws, topic: str) -> None:
        self._aws = aws
        self._topic = topic

    async def send(self, notifications: Sequence[Notification]) -> None:
        """Publish the notifications as one message."""
        last = notifications[-1]
        several = len(notifications) > 1
        subject = f"{len(notifications)} notifications" if several else f"{last.cluster}: {last.kind.value}"
        attributes = {"kind": "digest" if several else last.kind.value, "severity": last.severity.value}
        if not several:
            attributes["cluster"] = last.cluster[:LONGEST_ATTRIBUTE]
        message: dict[str, Any] = {
            "TopicArn": self._topic,
            "Subject": re.sub(r"[^ -~]", "?", subject)[:LONGEST_SUBJECT],
            "Message": digest(notifications),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._topic.endswith(".fifo"):
            message |= {"MessageGroupId": "autoscaler", "MessageDeduplicationId": last.id}
        await self._aws.call("sns", "Publish", message, resource=self._topic)
