"""Discovery `aws-asg`: the EC2 Auto Scaling groups of a region with given tags."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from autoscaler.clients.aws import Aws, Place, shared_aws
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import AnswerError, Discovery, Member, Shared

PAGE = 100  # groups in one answer: AWS's limit


@dataclass(frozen=True, kw_only=True)
class AwsAsg:
    """The EC2 Auto Scaling groups of a region with given tags.

    Attributes:
        region: AWS region, such as `eu-central-1`.
        tags: tags (key -> value); a group must have all of them.
        profile: profile of `~/.aws/config` to use. Default: boto3's usual search (environment, instance profile).
        role: ARN of a role to assume. Default: none.
        endpoint_url: one address for all AWS services, such as LocalStack's. Default: AWS's, or boto3's settings.
        timeout: time-out for one answer of AWS with up to 100 groups, including retries. Default 5s.
    """

    packages: ClassVar[tuple[str, ...]] = ("boto3",)
    variables: ClassVar[tuple[str, ...]] = ("name", "arn", "tags")

    region: str
    tags: Mapping[str, str]
    profile: str | None = None
    role: str | None = None
    endpoint_url: str | None = None
    timeout: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        self.place  # noqa: B018 - it checks its parameters
        if not self.tags:
            raise ParameterError("tags", "must have one tag or more, such as {autoscale: streaming}")
        object.__setattr__(self, "tags", dict(sorted(self.tags.items())))

    def __hash__(self) -> int:
        return hash((self.place, tuple(self.tags.items())))

    @property
    def place(self) -> Place:
        """The region and the identity."""
        return Place(self.region, self.profile, self.role, self.endpoint_url, self.timeout)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Discovery]:
        """Use the shared client of the region. The first `members` sends the first request.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        aws = await shared_aws(shared, self.place)
        await aws.prepare("autoscaling")
        yield _Live(aws, self.tags)


class _Live:
    def __init__(self, aws: Aws, tags: Mapping[str, str]) -> None:
        self._aws = aws
        self._parameters = {
            "Filters": [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()],
            "IncludeInstances": False,
            "MaxRecords": PAGE,
        }

    async def members(self) -> Sequence[Member]:
        """All groups in the order of their names, without those being deleted. Raises EdgeError."""
        groups = await self._aws.pages(
            "autoscaling", "DescribeAutoScalingGroups", self._parameters, "AutoScalingGroups"
        )
        found: dict[str, Member] = {}
        try:
            for group in groups:
                name = group["AutoScalingGroupName"]
                tags = {tag["Key"]: tag.get("Value") or "" for tag in group.get("Tags") or ()}
                if not group.get("Status"):
                    found[name] = Member(name, {"name": name, "arn": group["AutoScalingGroupARN"], "tags": tags})
        except (KeyError, TypeError, AttributeError) as error:
            raise AnswerError(f"DescribeAutoScalingGroups: a group that cannot be read: {error!r}") from error
        return [found[name] for name in sorted(found)]
