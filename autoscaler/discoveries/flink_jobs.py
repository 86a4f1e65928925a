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
        timeout: time for one answer, retries included. Default 3s.
        username: user for basic authentication, where a proxy asks for it. Default: none.
        password: the user's password.
        token: bearer token, instead of user and password. Default: none.
        ca_file: PEM file with the certificates that sign the server's. Default: those of the system.
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
        """The JobManager, whose client sources and engines with equal parameters share. Raises ParameterError."""
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
        """Share the client of the JobManager. Nothing is sent before the first `members`."""
        yield _Live(await self._server().api(shared))


@dataclass(frozen=True, slots=True)
class _Live:
    client: FlinkApi

    async def members(self) -> Sequence[Member]:
        """All of them in the order of their start. Raises EdgeError.

        A job that is started again has another id and the same name, so the name identifies it. Of several with one
        name it identifies the oldest; the others have their id behind it.
        """
        found: dict[str, Member] = {}
        jobs = [job for job in await self.client.jobs() if not job.ended]
        for job in sorted(jobs, key=lambda job: (job.start, job.jid)):
            name = job.name or job.jid
            while name in found:
                name += f" {job.jid}"
            found[name] = Member(name, {"id": job.jid, "name": job.name, "state": job.state})
        return list(found.values())
