"""The interfaces of sources, engines, targets, discoveries and stores, and their errors.

A source, engine, target or discovery plug-in is a frozen stdlib dataclass whose fields are its parameters. It does not
hold a connection: `connect()` gives a live object for as long as an asynchronous context is open. All clusters that use
equal sources or engines (same type, same parameters) share one connection; each cluster has its own connection to its
target. Plug-ins get objects that several of them need, such as an HTTP client, from `Shared`.

A class attribute `packages`, such as `("boto3",)`, lists the packages that a plug-in imports only in `connect()`. While
one of them is not installed, a configuration that uses the plug-in is rejected; the error names the extra to install.
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
    """The base class of all errors that this package raises on purpose."""


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
    """The external system could not be reached, or cannot answer now (refused, reset, 429, 5xx). A retry may help."""


class EdgeTimeoutError(UnavailableError):
    """The external system did not answer in time. A retry may help."""


class AnswerError(EdgeError):
    """The answer of the external system is not usable (HTML, no sample, NaN, too large). A retry would not help."""


class NotYetError(AnswerError):
    """There is no value yet, for example because a rate needs two readings. Nothing is wrong; a value comes later."""


class RefusedError(EdgeError):
    """The external system refused the request (401, 403, 404, a policy of the target). A retry would not help."""


class StoreError(AutoscalerError):
    """State cannot be read or persisted (disk full, file corrupt). The daemon must not act on a decision."""


class LeaseLost(StoreError):  # noqa: N818 - named after the event
    """This copy has lost the cluster's lease. Nothing was persisted, and this copy must not act on the cluster."""


class Secret(str):
    """A string whose repr is masked. A configuration should set it by `${ENV}`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class Shared(Protocol):
    """The objects that plug-ins share: one live object per key, opened at first use, closed when the daemon stops.

    The daemon's instance also has `dry_run`. If it is true, a plug-in must not change anything, even outside `scale`.
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
            EdgeError: the metric cannot be read; the message says why. A source never invents a value.
        """
        ...


@runtime_checkable
class HasProfile(Protocol):
    """Optional interface of a live source: the workload profile of a whole cluster, for display."""

    def profile(self, query: Any) -> Profile | None:  # noqa: ANN401 - each source has its own query
        """The profile of the query's cluster as it was last read, or None."""
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
        desired: the size that the target was last set to.
        ready: replicas that are up.
        remarks: what users should know now, one sentence each, such as why replicas do not start. Every observation
            stores them, so they must not contain permanent facts.
        floor, ceiling: the smallest and the largest size that the target can have at present, and why (an Auto Scaling
            group's own limits, a suspended process, another controller). Decisions stay within. If both equal
            `desired`, the size is held. None: no such limit.
        controls: manual controls that are set on the target itself, for example by an annotation.
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
        id: the engine's name for the worker.
        hosts: every host name and address that the engine knows for it; a target finds the pod or instance by them.
        cost: the cost of losing this worker now; comparable only within one answer; 0 for an idle worker.
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
        """Ask a worker to accept no new work and finish its own. Idempotent; `workers` shows when it has ended.

        Raises:
            RefusedError: this engine cannot drain; its workers abandon their work when they are stopped.
            EdgeError: the engine cannot be asked.
        """
        ...


@runtime_checkable
class PicksWorkers(Protocol):
    """Optional interface of a live target: choose, with the engine's help, which workers to remove."""

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Receive the cluster's engine. The daemon calls this before any other method of the target.

        `workforce()` raises EdgeError while the engine is not connected, none is configured, or it cannot list its
        workers. Even then the target must reach a requested size.
        """
        ...


class SourcePlugin(Protocol):
    """Parameters of a source; `Query` is the frozen dataclass of one metric's parameters.

    A query may have an attribute `share`: whether its value is a share from 0 to 1. Omit it if that is not known.
    It may have a property `doubts`: pairs of a key and what is probably wrong with its value, shown as warnings.
    It may have a property `ages`, two `timedelta`: the smallest and the largest age of the newest value just before the
    next one arrives. A cluster whose `max_age` is not above the smallest is rejected; the error suggests the largest.
    """

    Query: ClassVar[type]

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[MetricSource]:
        """Connect."""
        ...


@runtime_checkable
class ChecksQueries(Protocol):
    """Optional interface of a source plug-in: reject queries that do not fit its own parameters."""

    def check_query(self, query: Any) -> None:  # noqa: ANN401 - each source has its own query
        """Raise ParameterError, which names the key of the query, if the source cannot answer the query."""
        ...


class EnginePlugin(Protocol):
    """Parameters of an engine."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Engine]:
        """Connect."""
        ...


class TargetPlugin(Protocol):
    """Parameters of a target.

    Two clusters may not have equal targets, because each would undo the changes of the other. If some parameters do not
    identify the target, define a property `subject`: any comparable value that does. If every connection has a size of
    its own, the class attribute `shareable = True` allows equal targets. If the attribute `advisory` is true, the
    daemon requests no size from the target and decides as in a dry run. If the class attribute `shows_events` is true,
    the live targets are `ShowsEvents`.
    """

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[ScaleTarget]:
        """Connect."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a fleet, as a discovery finds it.

    Attributes:
        id: unique among all members of the discovery and the same for as long as the member exists, such as
            `prod-a/orders`. It names the member while its template cannot be filled.
        values: the variables of the expressions in a template: strings, and mappings of strings such as `labels`. They
            come from outside and may have any content and any length.
        problem: why its values are not known, or None. A problem affects this member only.
        template: its own template as a JSON object, if members of this discovery bring one; or None.
    """

    id: str
    values: Mapping[str, str | Mapping[str, str]]
    problem: str | None = None
    template: Mapping[str, Any] | None = None


class Discovery(Protocol):
    """A live discovery: it finds the members of a fleet."""

    async def members(self) -> Sequence[Member]:
        """All present members. A member that is not among them has gone.

        The daemon calls this every few seconds, so it should answer from a watch, or with one request.

        Raises:
            EdgeError: the members, or some of them, are not known now. Never return only a part of them.
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
    """The status of a member of a fleet, for display where the member was found.

    Attributes:
        at: since when the member has had this status.
        size: the size its target was last set to; None: not known.
        proposed: the size that its policies propose, before the guards; None: not known.
        reason: the reason of the last decision, one word such as `rescale`; empty: no decision yet.
        message: the last decision as a sentence; empty: no decision yet.
        rescaled_at: when another size was last requested, or None.
        problem: what is wrong with it, or None.
        refused: whether its own template or values are the problem. The member is then not scaled, or continues with
            earlier ones.
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
        """Show the status of the member with this id. A member that has gone is not an error.

        The daemon calls this only on changes, and retries later if it fails. A dry run calls it too: change nothing.

        Raises:
            EdgeError: the status cannot be shown now.
        """
        ...


@runtime_checkable
class MembersWithControls(Protocol):
    """Optional interface of a discovery plug-in: manual controls set on the members themselves, e.g. by annotations.

    A fleet calls it for each member that it finds or restores at a start.
    """

    def controls(self, member: Member) -> tuple[tuple[Control, ...], tuple[str, ...]]:
        """The controls of a member's cluster, and remarks on what is wrong with the member. A pure function."""
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
        id: stays the same in retries.
        at: when the daemon noticed it.
        kind: what has happened.
        severity: how bad it is.
        cluster: the name of the cluster.
        message: what has happened, in words.
        text: the message, rendered with the receiver's template.
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
        """Send all as one message. The daemon retries after an UnavailableError, and not after other errors.

        Args:
            notifications: one, or several (oldest first) if a message for each would be too many messages.

        Raises:
            EdgeError: the receiver did not accept them.
        """
        ...


class NotifierPlugin(Protocol):
    """Parameters of a receiver of notifications."""

    def connect(self, shared: Shared) -> AbstractAsyncContextManager[Notifier]:
        """Connect."""
        ...


@runtime_checkable
class ShowsEvents(Protocol):
    """Optional interface of a live target: show the events of its cluster at the object that is scaled."""

    async def show(self, notification: Notification) -> None:
        """Show the event. Raises EdgeError if that fails."""
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
        id: a newer control has a greater one; 0: not stored yet.
        clusters: names of clusters, or patterns of them such as `prod-*`.
        fleets: names of fleets, or patterns of them; the control applies to all clusters of these fleets.
        control: the control; None: a resume, which ends all earlier controls.
        by: who set it.
        at: when it was set.
        until: when it expires, or None.
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
    """One entry of the audit: what somebody changed, or was not allowed to change.

    Attributes:
        at: when.
        by: who; for a refused request, who the client said it was.
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
"""How many entries of the audit are kept: the newest ones."""


class ClusterStore(Protocol):
    """Persists the state of clusters. The daemon persists a state before it acts on it."""

    async def load(self, cluster: str) -> ClusterState | None:
        """The last saved state with its past, or None. Raises StoreError."""
        ...

    async def save(self, cluster: str, state: ClusterState, record: Record | None) -> None:
        """Persist state and record together. Raises StoreError, and then neither is persisted."""
        ...

    async def forget_clusters(self, before: datetime, keep: Collection[str]) -> None:
        """Delete state and records of all clusters whose last record is older, except those named in `keep`.

        It delays saves by a moment at most, however many clusters it deletes. Raises StoreError.
        """
        ...


class ControlStore(Protocol):
    """Persists manual controls, and the audit of them."""

    async def load_controls(self) -> list[StoredControl]:
        """All stored controls, oldest first. Raises StoreError."""
        ...

    async def add_control(self, stored: StoredControl, audit: AuditEntry) -> StoredControl:
        """Persist control and audit entry together, and return the control with its id.

        It also deletes the controls that are not needed any more.

        Raises:
            StoreError: neither is persisted.
        """
        ...

    async def add_audit(self, entry: AuditEntry) -> None:
        """Persist an entry of the audit; only the last `MAX_AUDIT` are kept. Raises StoreError."""
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
        """Delete the members of all fleets except these. Raises StoreError."""
        ...


class StateStore(ClusterStore, ControlStore, MemberStore, Protocol):
    """Everything that a daemon persists.

    Attributes:
        decisions: how many decisions of each cluster are kept.
    """

    decisions: int

    @property
    def failure(self) -> str | None:
        """Why the last save failed, or None."""
        ...

    def pages(self, cluster: str, limit: int, until: datetime | None = None) -> AsyncGenerator[list[bytes], None]:
        """The last decisions of a cluster as lines of the trace format, newest first, page by page.

        Raises:
            StoreError: the decisions cannot be read.
        """
        ...

    async def close(self) -> None:
        """Write pending changes and close the store."""
        ...


LEASE = 15
"""Seconds from a copy's last renewal until all its leases expire, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One running copy of the daemon.

    Attributes:
        id: random, drawn at its start.
        name: for people, such as the name of its pod.
        url: where other copies reach its HTTP endpoints; empty: they cannot.
    """

    id: UUID
    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Leases:
    """The result of a renewal of leases.

    Attributes:
        copies: the living copies by their ids, this copy included.
        terms: the clusters whose leases this copy holds, and the term of each lease.
        oldest: the longest time, in seconds, since any of these copies last renewed.
    """

    copies: Mapping[UUID, Copy]
    terms: Mapping[str, int]
    oldest: float = 0.0


class DecisionSink(Protocol):
    """Records every decision with its observation."""

    async def write(self, record: Record) -> None:
        """Write one record. Raises StoreError."""
        ...
