"""A target for HashiCorp Nomad: the count of a task group of a job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from autoscaler.clients.http import Answer, Endpoint, JsonClient
from autoscaler.ports import AnswerError, Secret, Shared, TargetStatus
from pydantic import Field


class Group(Answer):
    """A task group in Nomad's response. A missing field, or one of another type, is an error, never zero."""

    desired: int = Field(alias="Desired", ge=0)
    running: int = Field(alias="Running", ge=0)


class Scale(Answer):
    """The response of `GET /v1/job/:job_id/scale`."""

    groups: dict[str, Group] = Field(alias="TaskGroups")


@dataclass(frozen=True, slots=True)
class Nomad:
    """The count of a task group of a Nomad job.

    Attributes:
        url: address of a Nomad server or agent, such as http://nomad:4646.
        job, group: id of the job, and its task group that is scaled.
        namespace: the job's namespace; default `default`.
        token: ACL token with `scale-job` and `read-job`; default: none.
    """

    url: str
    job: str
    group: str
    namespace: str = "default"
    token: Secret | None = None

    def __post_init__(self) -> None:
        self.endpoint()  # checks the parameters

    @property
    def subject(self) -> tuple[str, ...]:
        """What is scaled: two clusters must not scale the same group, whatever their tokens are."""
        return self.url, self.namespace, self.job, self.group

    def endpoint(self) -> Endpoint:
        """The server and how to authenticate; Nomad also accepts its token as a bearer token."""
        return Endpoint(url=self.url, token=self.token)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[TaskGroup]:
        """Open the client; nothing is sent yet."""
        yield TaskGroup(self, await JsonClient.open(shared, self.endpoint()))


class TaskGroup:
    """The live target."""

    def __init__(self, nomad: Nomad, client: JsonClient) -> None:
        self.nomad, self.client = nomad, client
        self.path = f"/v1/job/{quote(nomad.job, safe='')}/scale?namespace={quote(nomad.namespace)}"

    async def describe(self) -> TargetStatus:
        """The requested count, and the running allocations."""
        groups = (await self.client.get(self.path, Scale, expected="JSON of Nomad's REST API")).groups
        group = groups.get(self.nomad.group)
        if group is None:
            raise AnswerError(f"{self.client.url(self.path)}: no task group {self.nomad.group!r} in {list(groups)}")
        return TargetStatus(desired=group.desired, ready=group.running)

    async def scale(self, replicas: int) -> None:
        """Request a count. If Nomad refuses, the error has Nomad's message."""
        await self.client.post(self.path, {"Count": replicas, "Target": {"Group": self.nomad.group}})
