"""Sources, engines, targets and discoveries in memory, with scripted values, failures and delays, for tests.

Each class is a connected object. `Fake` wraps it into a plug-in that connects to it. Delays use `asyncio.sleep`, so
they cost no real time in a virtual-time loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Generic, TypeVar

from autoscaler.core.model import Bound, Control, EngineStatus, JobState, Reading
from autoscaler.ports import Member, Shared, TargetStatus, UnavailableError

T = TypeVar("T")
Value = float | tuple[float, ...]


@dataclass(frozen=True)
class FakeQuery:
    """The name of a metric of a `FakeSource`."""

    metric: str


@dataclass
class FakeSource:
    """A source whose values are set by the test.

    Attributes:
        values: metric name -> a value, or a function of the time that returns a value or a whole `Reading`.
        failures: metric name -> the error that `collect` raises.
        delay: seconds that every `collect` takes.
        asked: metric name -> number of calls of `collect`.
    """

    Query: ClassVar[type] = FakeQuery

    values: dict[str, Value | Callable[[datetime], Value | Reading]] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)
    delay: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)

    async def collect(self, query: FakeQuery, now: datetime) -> Reading:
        """Return the scripted value, or raise the scripted error."""
        self.asked[query.metric] = self.asked.get(query.metric, 0) + 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if query.metric in self.failures:
            raise self.failures[query.metric]
        if query.metric not in self.values:
            raise UnavailableError(f"the fake source has no metric {query.metric!r}")
        scripted = self.values[query.metric]
        value = scripted(now) if callable(scripted) else scripted
        return value if isinstance(value, Reading) else Reading(value, now)


@dataclass
class FakeEngine:
    """An engine whose status is set by the test.

    Attributes:
        status: the status to return.
        failure: the error to raise instead.
        delay: seconds that `describe` takes.
    """

    status: EngineStatus = field(default_factory=lambda: EngineStatus(job=JobState.RUNNING))
    failure: BaseException | None = None
    delay: float = 0.0

    async def describe(self) -> EngineStatus:
        """Return the scripted status, or raise the scripted error."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return self.status


@dataclass(kw_only=True)
class FakeTarget:
    """A target that starts and stops replicas at once, or after `startup` seconds.

    Attributes:
        desired: the requested size.
        ready: number of ready replicas.
        startup: seconds until `ready` follows `desired`.
        failure: the error that `describe` raises.
        scale_failure: the error that `scale` raises.
        accepts_failing: whether a `scale` that raises still takes effect, as if its answer was lost.
        delay: seconds that `describe` takes.
        scale_delay: seconds that `scale` takes.
        requests: all requested sizes, oldest first.
        scaling: number of calls of `scale` that are in progress.
        remarks, floor, ceiling, controls: the other fields of the status.
    """

    desired: int = 1
    ready: int = 1
    startup: float = 0.0
    failure: BaseException | None = None
    scale_failure: BaseException | None = None
    accepts_failing: bool = False
    delay: float = 0.0
    scale_delay: float = 0.0
    requests: list[int] = field(default_factory=list)
    scaling: int = 0
    remarks: tuple[str, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None
    controls: tuple[Control, ...] = ()

    async def describe(self) -> TargetStatus:
        """Return the current status, or raise the scripted error."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return TargetStatus(self.desired, self.ready, self.remarks, self.floor, self.ceiling, self.controls)

    async def scale(self, replicas: int) -> None:
        """Record the requested size and set it, or raise the scripted error."""
        self.scaling += 1
        try:
            if self.scale_delay:
                await asyncio.sleep(self.scale_delay)
            self.requests.append(replicas)
            if self.scale_failure is None or self.accepts_failing:
                self.desired = replicas
                asyncio.get_running_loop().call_later(self.startup, self._start)
            if self.scale_failure is not None:
                raise self.scale_failure
        finally:
            self.scaling -= 1

    def _start(self) -> None:
        self.ready = self.desired


@dataclass
class FakeDiscovery:
    """A discovery whose members are set by the test.

    Attributes:
        found: the members to return.
        failure: the error to raise instead.
        delay: seconds that `members` takes.
        asked: number of calls of `members`.
    """

    found: Sequence[Member] = ()
    failure: BaseException | None = None
    delay: float = 0.0
    asked: int = 0

    async def members(self) -> Sequence[Member]:
        """Return the scripted members, or raise the scripted error."""
        self.asked += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return self.found


@dataclass(frozen=True, eq=False)
class Fake(Generic[T]):
    """A plug-in that connects to a given object. Two fakes are never equal.

    Attributes:
        live: the object that `connect` yields.
        failures: the errors of the first attempts to connect, one for each attempt.
        opened: loop time of each opened connection.
        closed: loop time of each closed connection.
    """

    Query: ClassVar[type] = FakeQuery
    variables: ClassVar[tuple[str, ...]] = ("name",)

    live: T
    failures: list[BaseException] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[T]:
        """Yield the object `live`, or raise the next of the `failures`."""
        del shared
        if self.failures:
            raise self.failures.pop(0)
        loop = asyncio.get_running_loop()
        self.opened.append(loop.time())
        try:
            yield self.live
        finally:
            self.closed.append(loop.time())
