"""The edges of the house: what a source, an engine, a target and a store must be able to do, and how they fail.

A source, engine or target plug-in is a frozen stdlib dataclass whose fields are its parameters. It does not hold a
connection: `connect()` gives a live object for as long as an asynchronous context is open. Equal sources and engines
(same type, same parameters) are connected once and shared by all the clusters that use them, a target once for each
cluster; what several plug-ins need (an HTTP client, a session with one API server) they take from `Shared`.

A field of type `Secret` is the only place where a configuration may say `${ENV}`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from autoscaler.core.model import Bound, ClusterState, Decision, EngineStatus, Observation, Reading

T = TypeVar("T")


class AutoscalerError(Exception):
    """Anything that this package raises on purpose."""


class ConfigurationError(AutoscalerError):
    """The configuration is not usable. `problems` are complete lines `file:line: path: message`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PluginError(AutoscalerError):
    """A plug-in is unknown, claimed twice, or cannot be imported."""


class EdgeError(AutoscalerError):
    """Something outside did not do what it should. The message names it and what was expected."""


class UnavailableError(EdgeError):
    """It could not be reached or said that it cannot answer now (refused, reset, 429, 5xx). Worth a retry."""


class EdgeTimeoutError(UnavailableError):
    """It did not answer in time. Worth a retry."""


class AnswerError(EdgeError):
    """It answered something that is not usable (HTML, no sample, NaN, too much). A retry would not help."""


class NotYetError(AnswerError):
    """Nothing is wrong, but there is no value yet: a rate needs two looks. It comes by itself."""


class RefusedError(EdgeError):
    """It understood and said no (401, 403, 404, a policy of the target). A retry would not help."""


class StoreError(AutoscalerError):
    """State cannot be read or kept (disk full, file corrupt). No decision may be acted on."""


class Secret(str):
    """A text that is not shown: its repr is masked, and in a configuration it may be `${ENV}`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class Shared(Protocol):
    """What plug-ins share: one live object per key, opened at first use, closed when the daemon stops.

    The daemon's also has `dry_run`, a bool: a plug-in that does something without being asked to scale must not then.
    """

    async def enter(self, key: Hashable, factory: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the live object under `key`, opening it with `factory` if there is none yet."""
        ...


class MetricSource(Protocol):
    """A live source of metrics."""

    async def collect(self, query: Any, now: datetime) -> Reading:  # noqa: ANN401 - each source has its own query
        """Read one metric. `query` is an instance of the plug-in's `Query`.

        `now` is the time of the observation. The reading's `at` is when the value was true at its origin.

        Raises:
            EdgeError: the metric cannot be had; the message says why. Never a made-up value.
        """
        ...


class Engine(Protocol):
    """A live view of an in-job scheduler."""

    async def describe(self) -> EngineStatus:
        """Say how the job is. Raises EdgeError when the engine cannot be asked."""
        ...


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """What a target shows.

    Attributes:
        desired: the size it was told to have.
        ready: replicas that are up.
        remarks: what people should know now, one sentence each: why replicas do not come up, what is under way. They
            are kept with every observation, so what is always so does not belong here.
        floor, ceiling: the least and the most it can have at present, and why (an Auto Scaling group's own limits, a
            suspended process, another controller): the decision stays within and says so. `floor` and `ceiling` both
            at `desired` hold it. None: no such limit.
    """

    desired: int
    ready: int
    remarks: tuple[str, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None


class ScaleTarget(Protocol):
    """A live thing that can be scaled."""

    async def describe(self) -> TargetStatus:
        """Say what there is. Raises EdgeError when the target cannot be asked."""
        ...

    async def scale(self, replicas: int) -> None:
        """Ask for a size. Declarative and idempotent: a size, never a difference.

        Returns when the request is accepted, not when it is done; `describe` shows the progress.

        Raises:
            EdgeError: the request was not accepted, or nobody knows whether it was.
        """
        ...


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as its engine sees it.

    Attributes:
        id: the engine's name for it.
        hosts: every host name and address the engine knows it by: how a target finds the pod or instance.
        cost: what losing it now would cost. Comparable within one answer only; 0 for an idle one.
    """

    id: str
    hosts: frozenset[str]
    cost: float = 0.0


@runtime_checkable
class Workforce(Protocol):
    """What a live engine may also be able to do: name its workers, and let one finish before it goes."""

    async def workers(self) -> Sequence[Worker]:
        """The workers registered now. Raises EdgeError when the engine cannot say."""
        ...

    async def drain(self, worker: Worker) -> None:
        """Ask a worker to take no new work and finish what it has. Idempotent; `workers` shows when it is gone.

        Raises:
            RefusedError: this engine cannot do that; its workers let go of their work when they are stopped.
            EdgeError: it could not be asked.
        """
        ...


@runtime_checkable
class PicksWorkers(Protocol):
    """What a live target may also be able to do: choose, with the engine's help, which worker goes."""

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Take the cluster's engine, before anything else is asked of the target.

        `workforce()` raises EdgeError while there is none: not connected, none configured, or one that cannot name
        its workers. A size that is asked for must be reached even so.
        """
        ...


class SourcePlugin(Protocol):
    """Parameters of a source; `Query` is the frozen dataclass of one metric's parameters.

    A query may say by a property `ages` how old its newest value is just before the next one comes, at the least and at
    the most (two `timedelta`): a cluster whose `max_age` is not above the least is refused, and told to set the most.
    """

    Query: ClassVar[type]

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[MetricSource]:
        """Open it."""
        ...


class EnginePlugin(Protocol):
    """Parameters of an engine."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Engine]:
        """Open it."""
        ...


class TargetPlugin(Protocol):
    """Parameters of a target.

    Two clusters may not have equal targets, as each would undo what the other does. Parameters that do not tell one
    target from another are left out by a property `subject`, anything that can be compared, which then stands for the
    target. A target of which that is not so, because every connection has a size of its own, says so by the class
    attribute `shareable = True`.
    """

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[ScaleTarget]:
        """Open it."""
        ...


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor found: what is wrong, what it costs, the setting that mends it."""

    severity: Severity
    subject: str
    problem: str
    cost: str
    remedy: str


@runtime_checkable
class Doctor(Protocol):
    """A live engine, source or target that can examine itself (`autoscaler check --online`)."""

    async def diagnose(self) -> Sequence[Finding]:
        """Look for settings that make scaling useless or dangerous. Raises EdgeError when it cannot look."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the decision log: the trace format (version 1).

    Attributes:
        dry_run: whether the decision was only written down, with no call to the target.
        failed: why the scale call on its way when this was decided had failed; empty when it had not, or was none.
    """

    observation: Observation
    decision: Decision
    version: int = 1
    dry_run: bool = False
    failed: str = ""


class StateStore(Protocol):
    """Keeps the state of clusters over restarts. A state is kept before it is acted on."""

    async def load(self, cluster: str) -> ClusterState | None:
        """The state last saved, its past included, or None. Raises StoreError."""
        ...

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Keep state and record together, durably against a kill. Raises StoreError, having kept neither."""
        ...


class DecisionSink(Protocol):
    """Takes every decision with its observation."""

    async def write(self, record: Record) -> None:
        """Keep it."""
        ...
