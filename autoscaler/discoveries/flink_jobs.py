"""Discovery `flink-jobs`: the jobs of a Flink session cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from autoscaler.clients.flink import FlinkApi, FlinkParameters
from autoscaler.ports import Discovery, Member, Secret, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJobs:
    """The jobs of a Flink session cluster that have not ended.

    Attributes:
        url: address of the JobManager's REST endpoint, such as http://jobmanager:8081.
        timeout: time-out for one answer, including retries. Default 3s.
        username: user for basic authentication, if a proxy requires it. Default: none.
        password: the user's password.
        token: bearer token, instead of user and password. Default: none.
        ca_file: PEM file with the CA certificates for the server's certificate. Default: those of the system.
    """

    variables: ClassVar[tuple[str, ...]] = ("id", "name", "state")

    url: str
    timeout: timedelta = timedelta(seconds=3)
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        self._server()

    def _server(self) -> FlinkParameters:
        """The JobManager. Sources and engines with equal parameters share its client. Raises ParameterError."""
        return FlinkParameters(
            url=self.url,
            timeout=self.timeout,
            username=self.username,
            password=self.password,
            token=self.token,
            ca_file=self.ca_file,
        )

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[Discovery]:
        """Use the shared client of the JobManager. The first `members` sends the first request."""
        yield _Live(await self._server().api(shared))


@dataclass(frozen=True, slots=True)
class _Live:
    client: FlinkApi

    async def members(self) -> Sequence[Member]:
        """All jobs that have not ended, in the order of their start. Raises EdgeError.

        A restarted job has a new id and the same name, so the name is the member's id. If several jobs have the same
        name, the oldest one gets the name, and the others get the name followed by their job id.
        """
        found: dict[str, Member] = {}
        jobs = [job for job in await self.client.jobs() if not job.ended]
        for job in sorted(jobs, key=lambda job: (job.start, job.jid)):
            name = job.name or job.jid
            while name in found:
                name += f" {job.jid}"
            found[name] = Member(name, {"id": job.jid, "name": job.name, "state": job.state})
        return list(found.values())
