"""Target `flink-requirements`: the parallelism of one Flink job, set from outside.

From Flink 1.18 on, clients can set the bounds of the parallelism of each vertex of a running job ("Externalized
Declarative Resource Management"). The adaptive scheduler then rescales the job in place, as far as there are slots. An
active resource manager (native Kubernetes, YARN) starts TaskManagers for requested slots, so the cluster scales too. In
Reactive Mode, a job takes every slot by itself and Flink refuses to set bounds: scale its TaskManagers with another
target instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from autoscaler.clients.flink import FlinkApi, FlinkParameters, Job, Overview, Requirement, Vertex
from autoscaler.clients.http import StatusError
from autoscaler.core.model import Bound
from autoscaler.core.parameters import ParameterError
from autoscaler.core.wording import list_of
from autoscaler.ports import (
    AnswerError,
    EdgeTimeoutError,
    Finding,
    RefusedError,
    ScaleTarget,
    Severity,
    Shared,
    TargetStatus,
    UnavailableError,
)

_log = logging.getLogger("autoscaler.targets")

_MAX_NAMES = 6  # names in a message


@dataclass(frozen=True, kw_only=True)
class FlinkRequirements(FlinkParameters):
    """The parallelism of one Flink job of the adaptive scheduler, Flink 1.18 or newer, not in Reactive Mode.

    A replica is `slots_per_replica` of parallelism, which is the same number of slots if all vertices share slots. A
    request for a size sets the upper bound of every vertex to it, or to the vertex's maximum parallelism if that is
    lower. The target looks the job up by name each time, so it follows the job over restarts. After a new start, the
    size is what the job's author or Flink has set for that start.

    Attributes:
        url: the JobManager's REST address, `http://host:8081`.
        job: name or id of the job. Default: the only job that runs there.
        slots_per_replica: parallelism of one replica; should be the same as the cluster's `slots_per_replica`.
            Default 1.
        lower_bound: lowest parallelism at which the job may run when slots are missing. With fewer slots the job waits.
            Default 1.
        pinned: names or ids of vertices whose bounds are not changed and that do not count. Default none.
        username: user name for HTTP Basic authentication. Default none.
        password: password for HTTP Basic authentication. Default none.
        token: bearer token. Default none.
        ca_file: PEM file with the certificates to trust, for https. Default: those of the system.
        timeout: time-out for one reading or one request, including retries. Default 3s.
    """

    slots_per_replica: int = 1
    lower_bound: int = 1
    pinned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.job is not None and not self.job.strip():
            raise ParameterError("job", "must be the name or the id of a job, not an empty string")
        for name in ("slots_per_replica", "lower_bound"):
            if getattr(self, name) < 1:
                raise ParameterError(name, f"must be 1 or more, not {getattr(self, name)}")

    @property
    def subject(self) -> tuple[str, str | None]:
        """The identity of the scaled object, without the other parameters."""
        return self.url.rstrip("/"), self.job

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Connect with the client that all users of this JobManager share."""
        yield _Requirements(self, await self.api(shared))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The data of one poll."""

    job: Job
    bounds: dict[str, Requirement]
    free: tuple[Vertex, ...]
    overview: Overview


class _Requirements:
    def __init__(self, spec: FlinkRequirements, api: FlinkApi) -> None:
        self._spec = spec
        self._api = api
        self._named = f"job {spec.job!r} at {spec.url}" if spec.job else f"the job at {spec.url}"
        self._jid = ""

    async def describe(self) -> TargetStatus:
        """The desired size (from the upper bounds) and the ready size (from the running subtasks).

        Raises:
            RefusedError: the job cannot be scaled this way: Reactive Mode, another scheduler, Flink before 1.18.
            EdgeError: the JobManager cannot be reached, or there is no such job.
        """
        seen = await self._read_snapshot()
        unit = self._spec.slots_per_replica
        upper = max(seen.bounds[vertex.id].parallelism.upper for vertex in seen.free)
        running = _running(seen)
        desired = -(-upper // unit)
        ready = desired if running == upper else running // unit
        most = _max_parallelism(seen.free)
        return TargetStatus(
            desired=desired,
            ready=ready,
            remarks=self._remarks(seen, running, upper),
            floor=Bound(1, "a Flink job runs at a parallelism of 1 or more"),
            ceiling=None
            if most is None
            else Bound(-(-most // unit), f"no vertex of the job can use more than its maximum parallelism of {most}"),
        )

    async def scale(self, replicas: int) -> None:
        """Set the bounds of every vertex that is not pinned.

        Raises:
            RefusedError: the size is below 1 or above the maximum parallelism, or the job cannot be scaled this way.
            EdgeError: Flink did not accept the request, or its outcome is unknown.
        """
        if replicas < 1:
            raise RefusedError(f"a Flink job runs at a parallelism of 1 or more: {replicas} replicas are not possible")
        limit = self._spec.timeout.total_seconds()
        try:
            async with asyncio.timeout(limit):
                await self._put(replicas)
        except TimeoutError:
            raise EdgeTimeoutError(f"{self._named} did not accept new bounds within {limit:g} s") from None

    async def diagnose(self) -> Sequence[Finding]:
        """Find settings that prevent scaling from working. Raises EdgeError when the job cannot be scaled at all."""
        seen = await self._read_snapshot()
        slots = seen.overview.slots_total
        if self._spec.lower_bound <= slots:
            return []
        return [
            Finding(
                Severity.WARNING,
                self._named,
                f"lower_bound is {self._spec.lower_bound}, and the cluster has {slots} slots",
                "when it has to restart, the job waits for slots and then fails, instead of running on the "
                "slots that exist",
                "leave lower_bound at 1",
            )
        ]

    async def _put(self, replicas: int) -> None:
        seen = await self._read_snapshot()
        wished = replicas * self._spec.slots_per_replica
        most = _max_parallelism(seen.free)
        if most is not None and wished >= most + self._spec.slots_per_replica:
            raise RefusedError(
                f"{self._named}: a parallelism of {wished} is more than any vertex can use; "
                f"the greatest maximum parallelism is {most}"
            )
        bounds = {vertex: (has.parallelism.lower, has.parallelism.upper) for vertex, has in seen.bounds.items()}
        for vertex in seen.free:
            upper = wished if vertex.max_parallelism < 1 else min(wished, vertex.max_parallelism)
            bounds[vertex.id] = min(self._spec.lower_bound, upper), upper
        try:
            await self._api.put_requirements(seen.job.jid, bounds)
        except RefusedError as refusal:
            raise self._explained(refusal) from None

    async def _read_snapshot(self) -> _Snapshot:
        line = await self._api.find_job(self._spec.job)
        if line is None:
            others = [job.name for job in await self._api.jobs() if not job.ended]
            raise AnswerError(
                f"{self._named} does not run there; running jobs: {list_of(others, _MAX_NAMES) or 'none'}"
            )
        if line.ended:
            raise AnswerError(
                f"{self._named} has ended ({line.state}); start it again: the target follows it by its name"
            )
        try:
            overview, job, settings, bounds = await asyncio.gather(
                self._api.overview(),
                self._api.job(line.jid),
                self._api.cluster_config(),
                self._api.requirements(line.jid),
            )
        except RefusedError as refusal:
            raise self._explained(refusal) from None
        # In Reactive Mode Flink also shows bounds (the maximum parallelism), although nobody can set them.
        if settings.get("scheduler-mode", "").strip().lower() == "reactive":
            raise RefusedError(self._reactive())
        if line.jid != self._jid:
            _log.info("scaling this job", extra={"job": line.name, "jid": line.jid, "before": self._jid})
            self._jid = line.jid
        return _Snapshot(job, bounds, self._free(job, bounds), overview)

    def _free(self, job: Job, bounds: dict[str, Requirement]) -> tuple[Vertex, ...]:
        """The vertices that are not pinned."""
        if not job.vertices or {vertex.id for vertex in job.vertices} != bounds.keys():
            raise UnavailableError(f"{self._named} is {job.state.lower()}: its vertices are not all known yet")
        pinned = self._spec.pinned
        known = {name for vertex in job.vertices for name in (vertex.id, vertex.name)}
        for name in pinned:
            if name not in known:
                names = list_of([vertex.name for vertex in job.vertices], _MAX_NAMES)
                raise AnswerError(f"{self._named} has no vertex {name!r} to pin; its vertices: {names}")
        free = tuple(vertex for vertex in job.vertices if not {vertex.id, vertex.name} & set(pinned))
        if not free:
            raise AnswerError(f"{self._named}: every vertex is pinned, so there is nothing to scale")
        return free

    def _remarks(self, seen: _Snapshot, running: int, upper: int) -> tuple[str, ...]:
        remarks = []
        if seen.job.state != "RUNNING":
            remarks.append(f"the job is not running: its state is {seen.job.state}")
        elif running < upper and not seen.overview.slots_available:
            remarks.append(
                f"the cluster has no free slot: the job runs at {running} of {upper} until TaskManagers are added"
            )
        return tuple(remarks)

    def _explained(self, refusal: RefusedError) -> RefusedError:
        """Add the remedy to errors whose message from Flink lacks it."""
        reason = str(refusal)
        if "reactive mode" in reason:
            return RefusedError(self._reactive())
        if "does not support changing the parallelism" in reason:
            return RefusedError(
                f"{self._named} is not run by the adaptive scheduler, so its parallelism cannot be changed while it "
                f"runs: set jobmanager.scheduler: adaptive, or scale its TaskManagers in Reactive Mode. Flink: {reason}"
            )
        if (
            isinstance(refusal, StatusError)
            and refusal.status == HTTPStatus.NOT_FOUND
            and "/resource-requirements" in reason
        ):
            return RefusedError(
                f"{self._named}: bounds can be set from Flink 1.18 on; this version is older. Flink: {reason}"
            )
        return refusal

    def _reactive(self) -> str:
        return (
            f"{self._named} runs in Reactive Mode: it takes every slot, and Flink does not allow changing its "
            "parallelism. Scale its TaskManagers instead, with the target kubernetes, aws-asg or local"
        )


def _running(seen: _Snapshot) -> int:
    """The running parallelism: the lowest of the vertices below their upper bound, or else the highest of all."""
    counts = {vertex.id: vertex.tasks.get("RUNNING", 0) + vertex.tasks.get("FINISHED", 0) for vertex in seen.free}
    below = [count for vertex, count in counts.items() if count < seen.bounds[vertex].parallelism.upper]
    return min(below) if below else max(counts.values())


def _max_parallelism(vertices: Sequence[Vertex]) -> int | None:
    """The greatest maximum parallelism, or None when it is unknown for a vertex."""
    limits = [vertex.max_parallelism for vertex in vertices]
    return max(limits) if min(limits) > 0 else None
