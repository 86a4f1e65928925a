"""The interfaces of sources, engines, targets, discoveries and stores, and their errors.

A source, engine, target or discovery plug-in is a frozen stdlib dataclass whose fields are its parameters. It does not
hold a connection: `connect()` gives a live object for as long as an asynchronous context is open. Equal sources and
engines (same type, same parameters) are connected once and shared by all clusters that use them, a target once for each
cluster. What several plug-ins need, such as an HTTP client, they take from `Shared`.

A class attribute `packages`, such as `("boto3",)`, names what it imports only to connect: a configuration that uses the
plug-in is refused while one is not installed, with the extra that brings it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from autoscaler.core.model import Bound, ClusterState, Control, Decision, EngineStatus, Observation, Reading
from autoscaler.core.workload_profile import Profile

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
    """An external system failed. The message names it and what was expected."""


class UnavailableError(EdgeError):
    """It could not be reached or cannot answer now (refused, reset, 429, 5xx). A retry may help."""


class EdgeTimeoutError(UnavailableError):
    """It did not answer in time. A retry may help."""


class AnswerError(EdgeError):
    """Its answer is not usable (HTML, no sample, NaN, too large). A retry would not help."""


class NotYetError(AnswerError):
    """There is no value yet, as a rate needs two readings. Nothing is wrong; there will be one later."""


class RefusedError(EdgeError):
    """It refused the request (401, 403, 404, a policy of the target). A retry would not help."""


class StoreError(AutoscalerError):
    """State cannot be read or persisted (disk full, file corrupt). No decision may be acted on."""


class LeaseLost(StoreError):  # noqa: N818 - it is what has happened
    """The cluster belongs to another copy now, or to none: nothing was persisted, and nothing may be done."""


class Secret(str):
    """A string that is not shown: its repr is masked, and it should be `${ENV}` in a configuration."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class Shared(Protocol):
    """What plug-ins share: one live object per key, opened at first use, closed when the daemon stops.

    The daemon's also has `dry_run`: if it is true, a plug-in must not change anything, also without a scale call.
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
            EdgeError: the metric cannot be read; the message says why. Never an invented value.
        """
        ...


@runtime_checkable
class HasProfile(Protocol):
    """Optional interface of a live source: the profile of a cluster as a whole, which is shown to people."""

    def profile(self, query: Any) -> Profile | None:  # noqa: ANN401 - each source has its own query
        """That of a metric, as it was read last, or None."""
        ...


class Engine(Protocol):
    """A live view of an in-job scheduler."""

    async def describe(self) -> EngineStatus:
        """The status of the job. Raises EdgeError when the engine cannot be asked."""
        ...


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The status of a target.

    Attributes:
        desired: the size it was last set to.
        ready: replicas that are up.
        remarks: what users should know now, one sentence each, such as why replicas do not start. They are kept
            with every observation: no permanent facts.
        floor, ceiling: the least and the most it can have at present, and why (an Auto Scaling group's own limits, a
            suspended process, another controller): decisions stay within. Both at `desired` hold the size. None: no
            such limit.
        controls: manual controls that are set on the target itself, as by an annotation.
    """

    desired: int
    ready: int
    remarks: tuple[str, ...] = ()
    floor: Bound | None = None
    ceiling: Bound | None = None
    controls: tuple[Control, ...] = ()


class ScaleTarget(Protocol):
    """A live target."""

    async def describe(self) -> TargetStatus:
        """The status of the target. Raises EdgeError when it cannot be asked."""
        ...

    async def scale(self, replicas: int) -> None:
        """Request a size. Declarative and idempotent: a size, never a difference.

        Returns when the request is accepted, not when it is complete; `describe` shows the progress.

        Raises:
            EdgeError: the request was not accepted, or it is unknown whether it was.
        """
        ...


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as its engine reports it.

    Attributes:
        id: the engine's name for it.
        hosts: every host name and address that the engine has for it: how a target finds the pod or instance.
        cost: of losing it now, comparable within one answer only; 0 for an idle one.
    """

    id: str
    hosts: frozenset[str]
    cost: float = 0.0


@runtime_checkable
class Workforce(Protocol):
    """Optional interface of a live engine: list its workers, and drain one."""

    async def workers(self) -> Sequence[Worker]:
        """The workers registered now. Raises EdgeError when the engine cannot be asked."""
        ...

    async def drain(self, worker: Worker) -> None:
        """Ask a worker to take no new work and finish what it has. Idempotent; `workers` shows when it has ended.

        Raises:
            RefusedError: this engine cannot do that; its workers give up their work when they are stopped.
            EdgeError: it cannot be asked.
        """
        ...


@runtime_checkable
class PicksWorkers(Protocol):
    """Optional interface of a live target: choose, with the engine's help, which workers to remove."""

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Take the cluster's engine, before any other call of the target.

        `workforce()` raises EdgeError while there is none: not connected, none configured, or one that cannot list
        its workers. A requested size must be reached nevertheless.
        """
        ...


class SourcePlugin(Protocol):
    """Parameters of a source; `Query` is the frozen dataclass of one metric's parameters.

    A query may have an attribute `share`: whether its value is a share from 0 to 1. If it is not known, leave it out.
    It may have a property `doubts`: pairs of a key and what is probably wrong with its value, shown as warnings; and a
    property `ages`, two `timedelta`: the least and the greatest age of its newest value just before
    the next one arrives. A cluster whose `max_age` is not above the least is refused; the greatest is suggested.
    """

    Query: ClassVar[type]

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[MetricSource]:
        """Connect."""
        ...


@runtime_checkable
class ChecksQueries(Protocol):
    """Optional interface of a source plug-in: refuse queries that do not fit its own parameters."""

    def check_query(self, query: Any) -> None:  # noqa: ANN401 - each source has its own query
        """Raise ParameterError, which names the key of the query, when it cannot be answered."""
        ...


class EnginePlugin(Protocol):
    """Parameters of an engine."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Engine]:
        """Connect."""
        ...


class TargetPlugin(Protocol):
    """Parameters of a target.

    Two clusters may not have equal targets, as each would undo the changes of the other. If some parameters do not
    identify the target, a property `subject`, any value that can be compared, identifies it. If every connection has a
    size of its own, the class attribute `shareable = True` allows equal targets. Of one whose attribute `advisory` is
    true no size is requested: its cluster is decided about as in a dry run. One whose class attribute `shows_events` is
    true has live targets that are `ShowsEvents`.
    """

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[ScaleTarget]:
        """Connect."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a fleet, as a discovery finds it.

    Attributes:
        id: identifies it among all members of the discovery, and stays the same for as long as it is the same thing,
            such as `prod-a/orders`. It names the member while its template cannot be filled.
        values: what the expressions of a template may name: strings, and mappings of strings such as `labels`. They
            come from outside and may be anything, of any length.
        problem: why its values are not known, or None; then it is in trouble alone, for this reason.
        template: its own template as a JSON object, where the discovery's members bring theirs; or None.
    """

    id: str
    values: Mapping[str, str | Mapping[str, str]]
    problem: str | None = None
    template: Mapping[str, Any] | None = None


class Discovery(Protocol):
    """A live discovery: it finds the members of a fleet."""

    async def members(self) -> Sequence[Member]:
        """All members at present. One that is left out has gone.

        It is asked every few seconds, so it should answer from a watch, or with one request.

        Raises:
            EdgeError: they are not known now, in whole or in part. Never a part of them without an error.
        """
        ...


class DiscoveryPlugin(Protocol):
    """Parameters of a discovery.

    The class attribute `variables`, a tuple of strings, names the `values` that each of its members has. If the class
    attribute `brings_templates` is true, each of its members has a template of its own, and its fleet has none.
    """

    variables: ClassVar[tuple[str, ...]]

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Discovery]:
        """Connect."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """The status of a member of a fleet, as it is shown where the member was found.

    Attributes:
        at: when this was so first.
        size: the size its target was last set to; None: not known.
        proposed: the size that its policies propose, before the guards; None: not known.
        reason: of the last decision, one word such as `rescale`; empty: there is none.
        message: the last decision as a sentence; empty: there is none.
        rescaled_at: when another size was last requested, or None.
        problem: what is wrong with it, or None.
        refused: whether the problem is its own template or values, so that it is not scaled or goes on with earlier
            ones.
    """

    at: datetime
    size: int | None = None
    proposed: int | None = None
    reason: str = ""
    message: str = ""
    rescaled_at: datetime | None = None
    problem: str | None = None
    refused: bool = False


@runtime_checkable
class Reports(Protocol):
    """Optional interface of a live discovery: show the status of a member where it was found."""

    async def report(self, member: str, status: MemberStatus) -> None:
        """Show it, by the member's id. One that has gone is no error.

        It is called on changes only, and again later if it fails. In a dry run too: then nothing may be changed.

        Raises:
            EdgeError: it cannot be shown now.
        """
        ...


@runtime_checkable
class MembersWithControls(Protocol):
    """Optional interface of a discovery plug-in: manual controls are set on the members themselves, as by annotations.

    A fleet asks it about each member that it finds or has kept from before a start.
    """

    def controls(self, member: Member) -> tuple[tuple[Control, ...], tuple[str, ...]]:
        """The controls of the cluster of a member, and remarks on what is wrong with it. Pure."""
        ...


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a plug-in: what is wrong, what it costs, and the setting that fixes it."""

    severity: Severity
    subject: str
    problem: str
    cost: str
    remedy: str


class NotificationKind(StrEnum):
    """What has happened to a cluster."""

    RESCALE_BEGUN = "rescale-begun"
    RESCALE_ENDED = "rescale-ended"
    RESCALE_FAILED = "rescale-failed"
    TROUBLE_BEGUN = "trouble-begun"
    TROUBLE_ENDED = "trouble-ended"
    CONTROL_SET = "control-set"
    CONTROL_EXPIRING = "control-expiring"
    CONTROL_ENDED = "control-ended"
    AT_MAXIMUM_BEGUN = "at-maximum-begun"
    AT_MAXIMUM_ENDED = "at-maximum-ended"
    OWNER_CHANGED = "owner-changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something that has happened to a cluster, for people and for other systems.

    Attributes:
        id: the same whenever it is sent again.
        at: when it was noticed.
        kind: what has happened.
        severity: how bad it is.
        cluster: the name of the cluster.
        message: it in words.
        text: the message by the receiver's template.
    """

    id: str
    at: datetime
    kind: NotificationKind
    severity: Severity
    cluster: str
    message: str
    text: str = ""


class Notifier(Protocol):
    """A live receiver of notifications."""

    async def send(self, notifications: Sequence[Notification]) -> None:
        """Send them, as one message. After an UnavailableError they are sent again, after another error not.

        Args:
            notifications: one; or several, oldest first, that would have been too many messages.

        Raises:
            EdgeError: they were not accepted.
        """
        ...


class NotifierPlugin(Protocol):
    """Parameters of a receiver of notifications."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Notifier]:
        """Connect."""
        ...


@runtime_checkable
class ShowsEvents(Protocol):
    """Optional interface of a live target: show what happens to its cluster beside what is scaled."""

    async def show(self, notification: Notification) -> None:
        """Show it. Raises EdgeError when it cannot be shown."""
        ...


@runtime_checkable
class Doctor(Protocol):
    """A live engine, source or target that can examine itself (`autoscaler check --online`)."""

    async def diagnose(self) -> Sequence[Finding]:
        """Find settings that make scaling useless or dangerous. Raises EdgeError when it cannot be examined."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the decision log: the trace format (version 1).

    Attributes:
        dry_run: whether the decision was recorded without calling the target.
        failed: why the scale call of the rescale in progress had failed; empty if there was none or it had not failed.
    """

    observation: Observation
    decision: Decision
    version: int = 1
    dry_run: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredControl:
    """A manual control, as it is stored.

    Attributes:
        id: of several the greatest is the newest; 0: it is not stored yet.
        clusters: names of clusters, or patterns of them such as `prod-*`.
        fleets: names of fleets, or patterns of them, all of whose clusters it is for.
        control: that one; None: the controls that were set before are at an end.
        by: who set it.
        at: when it was set.
        until: when it ends by itself, or None.
        reason: why it was set, or None.
    """

    id: int = 0
    clusters: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()
    control: Control | None
    by: str
    at: datetime
    until: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit: what somebody changed, or was not allowed to.

    Attributes:
        at: when.
        by: who; what they said they are where it was refused.
        action: `pause`, `hold`, `limit`, `resume` or `decide`.
        scope: which clusters and fleets.
        detail: what exactly, such as a size.
        reason: why, in their own words; or None.
        accepted: whether it was done.
    """

    at: datetime
    by: str
    action: str
    scope: str
    detail: str = ""
    reason: str | None = None
    accepted: bool = True


MAX_AUDIT = 10_000
"""The last so many entries of the audit are kept."""


class ClusterStore(Protocol):
    """Persists the state of clusters. A state is persisted before it is acted on."""

    async def load(self, cluster: str) -> ClusterState | None:
        """The last saved state with its past, or None. Raises StoreError."""
        ...

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Persist state and record together. Raises StoreError, and then neither is persisted."""
        ...

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Delete state and records of all clusters whose last record is older, but of those named in `keep`.

        Saves are not delayed by more than a moment, however many there are. Raises StoreError.
        """
        ...


class ControlStore(Protocol):
    """Persists manual controls, and the audit of them."""

    async def load_controls(self) -> list[StoredControl]:
        """All that is stored, oldest first. Raises StoreError."""
        ...

    async def add_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        """Persist both together, delete what is not needed any more, and return it with its id.

        Raises:
            StoreError: neither is persisted.
        """
        ...

    async def add_audit(self, entry: AuditEntry) -> None:
        """Persist an entry of the audit, of which the last `MAX_AUDIT` are kept. Raises StoreError."""
        ...

    async def audit(self, limit: int, until: datetime | None = None) -> list[AuditEntry]:
        """The last entries of the audit, up to a time if one is given, newest first. Raises StoreError."""
        ...


class MemberStore(Protocol):
    """Persists the members of fleets."""

    async def load_members(self, fleet: str) -> Mapping[str, Member]:
        """The members of a fleet that were last saved, by their ids. Raises StoreError."""
        ...

    async def save_members(self, fleet: str, members: Mapping[str, Member]) -> None:
        """Persist all members of a fleet. Raises StoreError."""
        ...

    async def forget_members(self, fleets: Collection[str]) -> None:
        """Delete the members of all fleets but these. Raises StoreError."""
        ...


class StateStore(ClusterStore, ControlStore, MemberStore, Protocol):
    """All that a daemon persists.

    Attributes:
        decisions: how many decisions of each cluster are kept.
    """

    decisions: int

    @property
    def failure(self) -> str | None:
        """Why the last save failed, or None."""
        ...

    def pages(self, cluster: str, limit: int, until: datetime | None = None) -> AsyncGenerator[list[bytes], None]:
        """The last decisions of a cluster as lines of the trace format, newest first, some at a time.

        Raises:
            StoreError: they cannot be read.
        """
        ...

    async def close(self) -> None:
        """Write what waits and close it."""
        ...


LEASE = 15
"""Seconds after its last renewal at which all leases of a copy end, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One running copy of the daemon.

    Attributes:
        id: drawn at its start.
        name: for people, such as that of its pod.
        url: where other copies reach its HTTP endpoints; empty: nowhere.
    """

    id: UUID
    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Leases:
    """What a renewal has found.

    Attributes:
        copies: those that are alive, this one among them, by their ids.
        terms: the clusters that belong to this copy, and the term of each lease.
        oldest: the most seconds since one of the copies has renewed.
    """

    copies: Mapping[UUID, Copy]
    terms: Mapping[str, int]
    oldest: float = 0.0


class DecisionSink(Protocol):
    """Records every decision with its observation."""

    async def write(self, record: Record) -> None:
        """Record it. Raises StoreError."""
        ...
