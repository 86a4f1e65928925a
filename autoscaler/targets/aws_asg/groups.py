"""Auto Scaling groups as AWS describes them, with shared requests for all clusters of one region.

The ticks of clusters are spread over their interval, so without sharing each cluster would need its own request.
Therefore a request for one group includes up to 100 groups that will be read next: those for which the answer will
still be fresh at their tick. A thousand groups with the same interval need ten requests per interval, whenever they
tick, and an answer is never older than `fresh`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autoscaler.clients.aws import Aws, InvalidRequestError, Place, shared_aws
from autoscaler.clients.shared_requests import cancel_all, one_line, outcome_of
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Shared

MAX_NAMES = 100  # in one request: AWS's limit
DEFAULT_PERIOD = 15.0  # seconds between two ticks, until they are measured; also the highest age of the first answer
ERROR_REUSE = 2.0  # seconds for which an error is returned to all readers of the groups in the request
DETAIL_INTERVAL = 3.0  # seconds between two requests about single groups
REFRESH_MAX_AGE = 30.0  # seconds for which an answer about instance refreshes is used
ACTIVITY_MAX_AGE = 60.0  # seconds for which an answer about failed launches is used
OTHERS_MAX_AGE = 3600.0  # seconds for which the list of scaling policies and scheduled actions is used
OTHERS_RETRY = 300.0  # seconds until this list is requested again after an error

REFRESH_UNDER_WAY = frozenset({"Pending", "InProgress", "Cancelling", "RollbackInProgress"})
NOT_COUNTED = frozenset(
    {"Terminating", "Terminated", "Detaching", "Detached", "EnteringStandby", "Standby", "Warmed", "Quarantined"}
)

log = logging.getLogger("autoscaler.targets")


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a group.

    Attributes:
        state: the lifecycle state, such as InService or Terminating:Wait.
        version: the launch template and version, or the launch configuration, of the instance.
    """

    id: str
    state: str
    healthy: bool
    protected: bool
    version: str

    @property
    def serving(self) -> bool:
        """Whether the instance is in service and healthy."""
        return self.state == "InService" and self.healthy

    @property
    def counts(self) -> bool:
        """Whether the desired capacity includes the instance."""
        return self.state.partition(":")[0] not in NOT_COUNTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One Auto Scaling group.

    Attributes:
        suspended: suspended process -> reason.
        deleting: the group's status while it is being deleted, else None.
        weighted: why the group's sizes are not numbers of instances, else None.
    """

    name: str
    arn: str
    minimum: int
    maximum: int
    desired: int
    instances: tuple[Instance, ...]
    suspended: Mapping[str, str]
    deleting: str | None
    weighted: str | None

    def count(self, *states: str) -> int:
        """The number of instances whose state, without its part after `:`, is one of these."""
        return sum(1 for instance in self.instances if instance.state.partition(":")[0] in states)

    def waiting(self, state: str) -> int:
        """The number of instances that a lifecycle hook keeps in this state."""
        return sum(1 for instance in self.instances if instance.state == f"{state}:Wait")

    @property
    def unsettled(self) -> bool:
        """Whether instances start, stop or have different versions, as during an instance refresh."""
        here = [instance for instance in self.instances if not instance.state.startswith("Warmed:")]
        return any(instance.state != "InService" for instance in here) or len({i.version for i in here}) > 1


def read_group(answer: Mapping[str, Any]) -> Group:
    """Parse a group of the answer to DescribeAutoScalingGroups. Raises AnswerError."""
    try:
        name = answer["AutoScalingGroupName"]
        return Group(
            name=name,
            arn=answer.get("AutoScalingGroupARN") or "",
            minimum=int(answer["MinSize"]),
            maximum=int(answer["MaxSize"]),
            desired=int(answer["DesiredCapacity"]),
            instances=tuple(_instance(found) for found in answer.get("Instances") or ()),
            suspended={
                process["ProcessName"]: process.get("SuspensionReason") or ""
                for process in answer.get("SuspendedProcesses") or ()
            },
            deleting=answer.get("Status") or None,
            weighted=_weighted(answer),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"DescribeAutoScalingGroups: a group that cannot be read: {error!r}") from error


def _instance(answer: Mapping[str, Any]) -> Instance:
    template = answer.get("LaunchTemplate") or {}
    configuration = answer.get("LaunchConfigurationName") or ""
    return Instance(
        id=answer["InstanceId"],
        state=answer["LifecycleState"],
        healthy=str(answer.get("HealthStatus", "")).lower() == "healthy",
        protected=bool(answer.get("ProtectedFromScaleIn")),
        version=f"{template.get('LaunchTemplateId', '')}:{template.get('Version', '')}:{configuration}",
    )


def _weighted(answer: Mapping[str, Any]) -> str | None:
    kind = answer.get("DesiredCapacityType") or "units"
    if kind != "units":
        return f"its size is counted in {kind} (DesiredCapacityType)"
    policy = (answer.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    weights = {str(item["WeightedCapacity"]) for item in policy.get("Overrides") or () if item.get("WeightedCapacity")}
    weights |= {str(item["WeightedCapacity"]) for item in answer.get("Instances") or () if item.get("WeightedCapacity")}
    if weights - {"1"}:
        return f"its instance types have weights ({', '.join(sorted(weights))})"
    return None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group (None: AWS has no group with this name), the time of the request, and our changes before it."""

    group: Group | None
    requested_at: float
    changes: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a group could not be read, the time of the error, and our changes before the request."""

    error: EdgeError
    at: float
    changes: int


@dataclass(slots=True)
class _Detail:
    """A request about a single group: its last answer (`remark`), when it was sent, and how long the answer is used."""

    kind: str
    max_age: float
    remark: str | None = None
    at: float = -math.inf


@dataclass(slots=True, kw_only=True)
class _Member:
    """A group that a cluster scales. Times are the event loop's.

    Attributes:
        last_read: when a cluster last read the group.
        period: seconds between the last two reads; None before the second read.
        changes: number of our changes that have ended. An answer is usable only if it was requested after the last
            change. The changes are counted because two times of a clock may be equal.
        request: the pending or last request that includes the group.
        requested_after: the value of `changes` at that request.
    """

    name: str
    users: int = 0
    last_read: float | None = None
    period: float | None = None
    changes: int = 0
    snapshot: Snapshot | None = None
    failure: _Failure | None = None
    request: asyncio.Task[EdgeError | None] | None = None
    requested_after: int = 0
    refresh: _Detail = field(default_factory=lambda: _Detail("refresh", REFRESH_MAX_AGE))
    activity: _Detail = field(default_factory=lambda: _Detail("activity", ACTIVITY_MAX_AGE))

    def note_read(self, now: float) -> None:
        """Update the period."""
        if self.last_read is not None and now - self.last_read > 0.1:  # noqa: PLR2004 - else it is the same tick
            self.period = now - self.last_read
        self.last_read = now

    def due(self, now: float, default_period: float) -> float:
        """When the group will be read next."""
        if self.last_read is None:
            return now
        period = self.period or default_period
        # Until three periods have passed, the cluster is only late. After that it counts as stopped.
        return self.last_read + period if now - self.last_read <= 3 * period else math.inf

    def usable(self, fresh: float, at: float) -> bool:
        """Whether the snapshot will still be usable at the time `at`."""
        seen = self.snapshot
        return seen is not None and seen.changes == self.changes and at - seen.requested_at <= fresh

    @property
    def pending(self) -> bool:
        """Whether a pending request will show all our changes up to now."""
        return self.request is not None and not self.request.done() and self.requested_after == self.changes


def _fail(members: Iterable[tuple[_Member, int]], error: EdgeError) -> None:
    for member, changes in members:
        member.failure = _Failure(error, asyncio.get_running_loop().time(), changes)


async def shared_groups(shared: Shared, place: Place) -> Groups:
    """The shared groups of a place. Raises the errors of `shared_aws`."""
    aws = await shared_aws(shared, place)
    return await shared.enter(("autoscaler.targets.aws_asg.groups", place), lambda: _open(aws))


@asynccontextmanager
async def _open(aws: Aws) -> AsyncIterator[Groups]:
    await aws.prepare("autoscaling")
    async with aclosing(Groups(aws)) as groups:
        yield groups


class Groups:
    """All groups of one place that clusters scale.

    Attributes:
        unreadable: kind of request that failed at the last attempt (`refresh`, `activity`, `others`) -> its error.
    """

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self._members: dict[str, _Member] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_detail = -math.inf
        self._waiting: dict[tuple[str, str], tuple[_Detail, Callable[[], Awaitable[str | None]]]] = {}
        self._period = DEFAULT_PERIOD
        self._others: dict[str, tuple[str, ...]] = {}
        self._others_at = -math.inf
        self._others_task: asyncio.Task[None] | None = None
        self.unreadable: dict[str, str] = {}

    @contextmanager
    def member(self, name: str) -> Iterator[None]:
        """Include a group in the requests while the context is open."""
        member = self._members.setdefault(name, _Member(name=name))
        member.users += 1
        try:
            yield
        finally:
            member.users -= 1
            if not member.users:
                del self._members[name]
                self._waiting = {key: waiting for key, waiting in self._waiting.items() if key[1] != name}

    async def aclose(self) -> None:
        """Cancel pending requests."""
        await cancel_all(self._tasks)

    def invalidate(self, name: str) -> None:
        """Do not use answers that were requested before now: they may not show our latest change."""
        if name in self._members:
            self._members[name].changes += 1

    async def get(self, name: str, fresh: float) -> Group:
        """The group as it was at most `fresh` seconds ago and after our last change.

        Raises:
            RefusedError: there is no such group, it is being deleted, or its sizes are not numbers of instances.
            EdgeError: AWS failed or cannot be reached.
        """
        loop = asyncio.get_running_loop()
        member = self._members[name]
        max_age = fresh if member.last_read is not None else max(fresh, DEFAULT_PERIOD)
        member.note_read(loop.time())
        self._period = member.period or self._period  # most clusters have the same interval
        reuse = ERROR_REUSE
        # A second round is necessary only if one of our changes ends while the request is pending.
        while not member.usable(max_age, loop.time()):
            failure = member.failure
            if failure is not None and failure.changes == member.changes and loop.time() - failure.at < reuse:
                raise copy.copy(failure.error)  # a shared error would collect the tracebacks of all readers
            request = member.request if member.pending else None
            await outcome_of(request or self._request(member, fresh, loop.time()), "the connection to AWS was closed")
            reuse = math.inf  # use the error of this request, whatever its age
            max_age = math.inf if member.failure is None else fresh  # use its answer, however long it took
        assert member.snapshot is not None  # noqa: S101 - for the type checker: it is usable
        return self._scalable(name, member.snapshot.group)

    def _scalable(self, name: str, group: Group | None) -> Group:
        where = self.aws.place.region
        if group is None:
            raise RefusedError(f"there is no Auto Scaling group {name!r} in {where}; check name, region and account")
        if group.deleting:
            raise RefusedError(f"the Auto Scaling group {name!r} is being deleted ({group.deleting})")
        if group.weighted:
            raise RefusedError(
                f"the Auto Scaling group {name!r} cannot be scaled by instances: {group.weighted}; remove the weights, "
                "or set all of them to 1"
            )
        return group

    def _request(self, member: _Member, fresh: float, now: float) -> asyncio.Task[EdgeError | None]:
        """Request a group, together with the groups whose answer would be too old at their next tick."""
        due_soon = []
        for other in self._members.values():
            due = other.due(now, self._period)
            max_age = fresh if other.last_read is not None else max(fresh, DEFAULT_PERIOD)
            if other is not member and due <= now + fresh and not other.pending and not other.usable(max_age, due):
                due_soon.append((due, other.name))
        names = [member.name, *(name for _, name in sorted(due_soon))][:MAX_NAMES]
        members = [self._members[name] for name in names]
        task: asyncio.Task[EdgeError | None] = asyncio.get_running_loop().create_task(self._fetch(members, now))
        self._track(task)
        for included in members:
            included.request, included.requested_after = task, included.changes
        return task

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, members: Sequence[_Member], requested_at: float) -> None:
        """Request several groups. An error is stored in each of them."""
        names = [member.name for member in members]
        asked = [(member, member.changes) for member in members]
        seconds = self.aws.place.timeout.total_seconds()
        try:
            try:
                async with asyncio.timeout(seconds):
                    answers = await self.aws.pages(
                        "autoscaling",
                        "DescribeAutoScalingGroups",
                        {"AutoScalingGroupNames": names, "MaxRecords": MAX_NAMES},
                        "AutoScalingGroups",
                    )
            except TimeoutError:
                raise EdgeTimeoutError(f"DescribeAutoScalingGroups: not all pages within {seconds:g} s") from None
        except InvalidRequestError as error:
            if len(members) > 1:
                # One invalid name makes the whole request fail. Split the batch until that name is alone.
                middle = len(members) // 2
                halves = members[:middle], members[middle:]
                await asyncio.gather(*(self._fetch(half, requested_at) for half in halves))
                return
            _fail(asked, error)
        except EdgeError as error:
            _fail(asked, error)
        else:
            found = {str(answer.get("AutoScalingGroupName")): answer for answer in answers}
            for member, changes in asked:
                try:
                    group = read_group(found[member.name]) if member.name in found else None
                except AnswerError as error:
                    _fail([(member, changes)], error)
                    continue
                member.failure = None
                if member.snapshot is None or member.snapshot.requested_at <= requested_at:
                    member.snapshot = Snapshot(group, requested_at, changes)

    # ------------------------------------------------------------------------------------------------------
    # requests about single groups, and about other controllers of their size

    async def refresh_under_way(self, group: Group, until: float) -> str | None:
        """A remark about an instance refresh in progress, or None.

        It is requested only if the instances suggest a refresh: they have different versions, start or stop. Requests
        are limited to one in 30 s per group and one in 3 s for all groups together. Until then the last answer is used.
        """
        detail = self._members[group.name].refresh
        return await self._remark(group.name, detail, until, self._refresh, wanted=group.unsettled)

    async def failed_launch(self, group: Group, until: float) -> str | None:
        """Why AWS could not start an instance at the last attempt, or None. At most one request per group in 60 s."""
        detail = self._members[group.name].activity
        wanted = group.count("InService", "Pending") < group.desired
        return await self._remark(group.name, detail, until, self._activity, wanted=wanted)

    def _failed(self, kind: str, why: str) -> None:
        if self.unreadable.get(kind) != why:
            log.warning(
                "details of the Auto Scaling groups cannot be read: they are scaled without them",
                extra={"request": kind, "error": why},
            )
        self.unreadable[kind] = why

    async def _remark(
        self, name: str, detail: _Detail, until: float, request: Callable[[str], Awaitable[str | None]], *, wanted: bool
    ) -> str | None:
        """Return the last answer. If a request is allowed now, first send the one that has waited longest."""
        if not wanted:
            self._waiting.pop((detail.kind, name), None)
            detail.remark, detail.at = None, -math.inf
            return None
        now = asyncio.get_running_loop().time()
        if now - detail.at >= detail.max_age:
            self._waiting.setdefault((detail.kind, name), (detail, partial(request, name)))
        if self._waiting and now - self._last_detail >= DETAIL_INTERVAL:
            kind, longest = next(iter(self._waiting))
            first, send = self._waiting.pop((kind, longest))
            self._last_detail = first.at = now
            try:
                async with asyncio.timeout_at(until):
                    first.remark = await send()
            except (EdgeError, TimeoutError) as error:
                # The size is known without this detail, and the last answer stays in use.
                self._failed(kind, str(error) or f"no time was left to request it for {longest}")
            else:
                self.unreadable.pop(kind, None)
        return detail.remark

    async def _refresh(self, name: str) -> str | None:
        answer = await self.aws.call(
            "autoscaling", "DescribeInstanceRefreshes", {"AutoScalingGroupName": name, "MaxRecords": 5}
        )
        for refresh in answer.get("InstanceRefreshes") or ():
            if refresh.get("Status") in REFRESH_UNDER_WAY:
                return f"the instance refresh {refresh.get('InstanceRefreshId')} is under way ({refresh['Status']})"
        return None

    async def _activity(self, name: str) -> str | None:
        answer = await self.aws.call(
            "autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": name, "MaxRecords": 1}
        )
        for activity in answer.get("Activities") or ():
            launch = str(activity.get("Description") or "Launch").startswith("Launch")
            if launch and activity.get("StatusCode") == "Failed":
                reason = activity.get("StatusMessage") or activity.get("Description") or "no reason is given"
                return f"the last launch failed: {one_line(reason, 200)}"
        return None

    def others(self, name: str) -> tuple[str, ...]:
        """The other controllers that set this group's size, one phrase each. They are read in the background."""
        now = asyncio.get_running_loop().time()
        if now - self._others_at > OTHERS_MAX_AGE and (self._others_task is None or self._others_task.done()):
            self._others_at = now
            self._others_task = asyncio.get_running_loop().create_task(self._read_others())
            self._track(self._others_task)
        return self._others.get(name, ())

    async def wait_for_others(self, name: str) -> None:
        """Wait until the pending read of the other controllers has ended, with any outcome."""
        self.others(name)
        if self._others_task is not None:
            await asyncio.wait((self._others_task,))

    async def _read_others(self) -> None:
        found: dict[str, list[str]] = {}
        try:
            for policy in await self.aws.pages(
                "autoscaling", "DescribePolicies", {"MaxRecords": 100}, "ScalingPolicies"
            ):
                mode = (policy.get("PredictiveScalingConfiguration") or {}).get("Mode")
                if policy.get("Enabled", True) and mode != "ForecastOnly":
                    text = f"the scaling policy {policy.get('PolicyName')!r} ({policy.get('PolicyType')})"
                    found.setdefault(str(policy.get("AutoScalingGroupName")), []).append(text)
            actions = await self.aws.pages(
                "autoscaling", "DescribeScheduledActions", {"MaxRecords": 100}, "ScheduledUpdateGroupActions"
            )
            for action in actions:
                text = f"the scheduled action {action.get('ScheduledActionName')!r}"
                found.setdefault(str(action.get("AutoScalingGroupName")), []).append(text)
        except EdgeError as error:
            self._others_at += OTHERS_RETRY - OTHERS_MAX_AGE
            self._failed("others", str(error))
            return
        self.unreadable.pop("others", None)
        self._others = {name: tuple(texts) for name, texts in found.items()}
