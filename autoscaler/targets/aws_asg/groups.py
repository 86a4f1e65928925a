"""Auto Scaling groups as AWS shows them, asked together for all clusters of one region.

The ticks of clusters are spread over their interval, so a question for each moment would be one for each cluster. A
question about one group therefore also asks about those that are going to be asked about next: the groups whose
answer would still be fresh when their tick comes, up to 100. A thousand groups at one interval are ten questions for
each interval, whatever their ticks; and an answer is never older than `fresh`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoscaler.clients.aws import Aws, InvalidRequestError, Place, shared_aws
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, RefusedError, Shared, UnavailableError

MOST = 100  # names in one question: AWS's limit
GUESS = 15.0  # seconds between two ticks, until two of any cluster were seen; how old a very first answer may be
FAILED = 2.0  # seconds for which a failure is told to all whom the question was about
SIDE = 3.0  # seconds between two questions about single groups
REFRESH = 30.0  # seconds for which an answer about instance refreshes holds
ACTIVITY = 60.0  # seconds for which an answer about failed launches holds
OTHERS = 3600.0  # seconds for which the list of scaling policies and scheduled actions holds
AGAIN = 300.0  # seconds until it is asked for again when that failed

UNDER_WAY = frozenset({"Pending", "InProgress", "Cancelling", "RollbackInProgress"})
PASSIVE = frozenset({"ForecastOnly"})
OUTSIDE = frozenset(
    {"Terminating", "Terminated", "Detaching", "Detached", "EnteringStandby", "Standby", "Warmed", "Quarantined"}
)

log = logging.getLogger("autoscaler.targets")


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of a group.

    Attributes:
        state: its lifecycle state, such as InService or Terminating:Wait.
        version: the launch template and version, or launch configuration, that it was started from.
    """

    id: str
    state: str
    healthy: bool
    protected: bool
    version: str

    @property
    def serving(self) -> bool:
        """Whether it is up and stays."""
        return self.state == "InService" and self.healthy

    @property
    def counts(self) -> bool:
        """Whether the desired capacity includes it."""
        return self.state.partition(":")[0] not in OUTSIDE


@dataclass(frozen=True, slots=True)
class Group:
    """One Auto Scaling group.

    Attributes:
        suspended: suspended process -> why.
        deleting: what AWS says when the group is being deleted, else empty.
        weighted: why its sizes are not numbers of instances, else empty.
    """

    name: str
    arn: str
    minimum: int
    maximum: int
    desired: int
    instances: tuple[Instance, ...]
    suspended: Mapping[str, str]
    deleting: str
    weighted: str

    def count(self, *states: str) -> int:
        """Instances whose state, or its first part, is one of these."""
        return sum(1 for instance in self.instances if instance.state.partition(":")[0] in states)

    def waiting(self, state: str) -> int:
        """Instances that a lifecycle hook keeps in this state."""
        return sum(1 for instance in self.instances if instance.state == f"{state}:Wait")

    @property
    def unsettled(self) -> bool:
        """Whether instances come or go, or run different versions, as they do in an instance refresh."""
        here = [instance for instance in self.instances if not instance.state.startswith("Warmed:")]
        return any(instance.state != "InService" for instance in here) or len({i.version for i in here}) > 1


def read_group(answer: Mapping[str, Any]) -> Group:
    """A group out of the answer to DescribeAutoScalingGroups. Raises AnswerError."""
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
            deleting=answer.get("Status") or "",
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


def _weighted(answer: Mapping[str, Any]) -> str:
    kind = answer.get("DesiredCapacityType") or "units"
    if kind != "units":
        return f"its size is counted in {kind} (DesiredCapacityType)"
    policy = (answer.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    weights = {str(item["WeightedCapacity"]) for item in policy.get("Overrides") or () if item.get("WeightedCapacity")}
    weights |= {str(item["WeightedCapacity"]) for item in answer.get("Instances") or () if item.get("WeightedCapacity")}
    if weights - {"1"}:
        return f"its instance types have weights ({', '.join(sorted(weights))})"
    return ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A group, or None when AWS has none of the name, and the loop time before which it was not asked."""

    group: Group | None
    asked: float


@dataclass(slots=True)
class _Asked:
    """A question about one group alone: its last answer and when it came."""

    text: str = ""
    at: float = float("-inf")


@dataclass(slots=True)
class _Member:
    """A group that a cluster scales.

    Attributes:
        last: loop time when it was asked about last.
        period: seconds between the last two times; None until there were two.
        since: an answer must have been asked for after this: there was a change of ours.
        flight: the question under way, or last, that is also about it.
    """

    name: str
    users: int = 0
    last: float | None = None
    period: float | None = None
    since: float = float("-inf")
    seen: Seen | None = None
    failure: tuple[EdgeError, float] | None = None
    flight: asyncio.Task[None] | None = None
    started: float = float("-inf")
    refresh: _Asked = field(default_factory=_Asked)
    activity: _Asked = field(default_factory=_Asked)

    def note(self, now: float) -> None:
        """It is asked about."""
        if self.last is not None and now - self.last > 0.1:  # noqa: PLR2004 - else the same tick asks again
            self.period = now - self.last
        self.last = now

    def due(self, now: float, guess: float) -> float:
        """When it will be asked about next; `guess` is its period while that is not known."""
        if self.last is None:
            return now
        period = self.period or guess
        # Later than that its cluster has gone quiet; until then it is only late.
        return self.last + period if now - self.last <= 3 * period else float("inf")


def _fail(members: Iterable[_Member], error: EdgeError) -> None:
    for member in members:
        member.failure = (error, asyncio.get_running_loop().time())


async def shared_groups(shared: Shared, place: Place) -> Groups:
    """The groups of a place. Raises as `shared_aws` does."""
    aws = await shared_aws(shared, place)
    return await shared.enter(("autoscaler.targets.aws_asg.groups", place), lambda: _groups(aws))


@asynccontextmanager
async def _groups(aws: Aws) -> AsyncIterator[Groups]:
    await aws.prepare("autoscaling")
    groups = Groups(aws)
    try:
        yield groups
    finally:
        await groups.close()


class Groups:
    """All the groups of one place that clusters scale.

    Attributes:
        blind: what could not be seen when it was last asked about (`refresh`, `activity`, `others`) -> why.
    """

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self._members: dict[str, _Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._side = float("-inf")
        self._waiting: dict[tuple[str, str], tuple[_Asked, Callable[[], Any]]] = {}
        self._period = GUESS
        self._others: dict[str, tuple[str, ...]] = {}
        self._others_at = float("-inf")
        self._others_task: asyncio.Task[None] | None = None
        self.blind: dict[str, str] = {}

    @contextmanager
    def member(self, name: str) -> Any:  # noqa: ANN401 - a context manager
        """Be asked about, too, when others are."""
        member = self._members.setdefault(name, _Member(name))
        member.users += 1
        try:
            yield
        finally:
            member.users -= 1
            if not member.users:
                del self._members[name]
                self._waiting = {key: waiting for key, waiting in self._waiting.items() if key[1] != name}

    async def close(self) -> None:
        """End what is under way."""
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def outdate(self, name: str) -> None:
        """What was asked up to now does not show a change of ours, or may not."""
        if name in self._members:
            self._members[name].since = asyncio.get_running_loop().time()

    async def get(self, name: str, fresh: float) -> Group:
        """The group, as it was at most `fresh` seconds ago and after our last change of it.

        Raises:
            RefusedError: there is no such group, or it is being deleted, or its sizes are not numbers of instances.
            EdgeError: AWS cannot be asked.
        """
        loop = asyncio.get_running_loop()
        member = self._members[name]
        patience = fresh if member.last is not None else max(fresh, GUESS)
        member.note(loop.time())
        self._period = member.period or self._period  # most clusters have the same
        while True:
            seen = member.seen
            if seen is not None and seen.asked > member.since and loop.time() - seen.asked <= patience:
                break
            patience = fresh
            if member.failure is not None and member.failure[1] > max(member.since, loop.time() - FAILED):
                error = member.failure[0]
                raise type(error)(*error.args)  # a new one each time: a shared one would gather all their tracebacks
            flight = member.flight
            if flight is None or flight.done() or member.started <= member.since:
                flight = self._ask(member, fresh, loop.time())
            # Unlike awaiting the task, this does not take it from the others when this caller is cancelled.
            await asyncio.wait((flight,))
            if flight.cancelled():
                raise UnavailableError("the connection to AWS was closed")
            flight.result()
            seen = member.seen
            if member.failure is None and seen is not None and seen.asked > member.since:
                break  # however long that took
        return self._usable(name, seen.group)

    def _usable(self, name: str, group: Group | None) -> Group:
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

    def _ask(self, member: _Member, fresh: float, now: float) -> asyncio.Task[None]:
        """Ask about a group, and about those whose answer would be too old when their tick comes."""
        soon = []
        for other in self._members.values():
            due = other.due(now, self._period)
            asking = other.flight is not None and not other.flight.done() and other.started > other.since
            holds = fresh if other.last is not None else max(fresh, GUESS)
            known = other.seen is not None and other.seen.asked > other.since and due - other.seen.asked <= holds
            if other is not member and due <= now + fresh and not asking and not known:
                soon.append((due, other.name))
        names = [member.name, *(name for _, name in sorted(soon))][:MOST]
        members = [self._members[name] for name in names]
        task = self._start(self._fetch(members, now))
        for asked in members:
            asked.flight, asked.started = task, now
        return task

    def _start(self, work: Any) -> asyncio.Task[None]:  # noqa: ANN401 - a coroutine
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fetch(self, members: Sequence[_Member], asked: float) -> None:
        """Ask about several groups. A failure is kept with each of them."""
        names = [member.name for member in members]
        seconds = self.aws.place.timeout.total_seconds()
        try:
            try:
                async with asyncio.timeout(seconds):
                    answers = await self.aws.pages(
                        "autoscaling",
                        "DescribeAutoScalingGroups",
                        {"AutoScalingGroupNames": names, "MaxRecords": MOST},
                        "AutoScalingGroups",
                    )
            except TimeoutError:
                raise EdgeTimeoutError(f"DescribeAutoScalingGroups: not all pages within {seconds:g} s") from None
        except InvalidRequestError as error:
            if len(members) > 1:
                # One bad name spoils the question: find it, and let the others have their answer.
                middle = len(members) // 2
                await asyncio.gather(self._fetch(members[:middle], asked), self._fetch(members[middle:], asked))
                return
            _fail(members, error)
        except EdgeError as error:
            _fail(members, error)
        else:
            found = {str(answer.get("AutoScalingGroupName")): answer for answer in answers}
            for member in members:
                try:
                    group = read_group(found[member.name]) if member.name in found else None
                except AnswerError as error:
                    _fail((member,), error)
                    continue
                member.failure = None
                if member.seen is None or member.seen.asked < asked:
                    member.seen = Seen(group, asked)

    # ------------------------------------------------------------------------------------------------------
    # questions about single groups, and about who else scales them

    async def refreshing(self, group: Group, until: float) -> str:
        """What an instance refresh under way does, or the empty text.

        It is asked only when something hints at one (instances of different versions, or coming or going), for each
        group every 30 s at most, and for all groups together every 3 s: the rest of the time the last answer holds.
        """
        asked, key = self._members[group.name].refresh, ("refresh", group.name)
        if not group.unsettled:
            return self._settled(key, asked)
        await self._side_question(key, asked, REFRESH, until, lambda: self._refresh(group.name))
        return asked.text

    async def failing(self, group: Group, until: float) -> str:
        """Why AWS could not start the last instance that it tried to, or the empty text; asked as rarely."""
        asked, key = self._members[group.name].activity, ("activity", group.name)
        if group.count("InService", "Pending") >= group.desired:
            return self._settled(key, asked)
        await self._side_question(key, asked, ACTIVITY, until, lambda: self._activity(group.name))
        return asked.text

    def _blinded(self, kind: str, why: str) -> None:
        if self.blind.get(kind) != why:
            log.warning("cannot see all of the Auto Scaling groups", extra={"asked": kind, "error": why})
        self.blind[kind] = why

    def _settled(self, key: tuple[str, str], asked: _Asked) -> str:
        """There is nothing to ask any more."""
        self._waiting.pop(key, None)
        asked.text, asked.at = "", float("-inf")
        return ""

    async def _side_question(
        self, key: tuple[str, str], asked: _Asked, holds: float, until: float, ask: Callable[[], Any]
    ) -> None:
        """Ask about the group that has waited longest, if it is time: this one, or another."""
        now = asyncio.get_running_loop().time()
        if now - asked.at >= holds:
            self._waiting.setdefault(key, (asked, ask))
        if not self._waiting or now - self._side < SIDE:
            return
        kind, name = next(iter(self._waiting))
        asked, ask = self._waiting.pop((kind, name))
        self._side = asked.at = now
        try:
            async with asyncio.timeout_at(until):
                asked.text = await ask()
        except (EdgeError, TimeoutError) as error:
            # It is one more thing to know: without it the size is still known, and the last answer holds.
            self._blinded(kind, str(error) or f"no time was left to ask about {name}")
        else:
            self.blind.pop(kind, None)

    async def _refresh(self, name: str) -> str:
        answer = await self.aws.call(
            "autoscaling", "DescribeInstanceRefreshes", {"AutoScalingGroupName": name, "MaxRecords": 5}
        )
        for refresh in answer.get("InstanceRefreshes") or ():
            if refresh.get("Status") in UNDER_WAY:
                return f"the instance refresh {refresh.get('InstanceRefreshId')} is under way ({refresh['Status']})"
        return ""

    async def _activity(self, name: str) -> str:
        answer = await self.aws.call(
            "autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": name, "MaxRecords": 1}
        )
        for activity in answer.get("Activities") or ():
            launch = str(activity.get("Description") or "Launch").startswith("Launch")
            if launch and activity.get("StatusCode") == "Failed":
                said = activity.get("StatusMessage") or activity.get("Description") or "no reason is given"
                return f"the last launch failed: {' '.join(str(said).split())[:200]}"
        return ""

    def others(self, name: str) -> tuple[str, ...]:
        """Who else sets this group's size, one phrase each, as far as it is known; read in the background."""
        now = asyncio.get_running_loop().time()
        if now - self._others_at > OTHERS and (self._others_task is None or self._others_task.done()):
            self._others_at = now
            self._others_task = self._start(self._look_for_others())
        return self._others.get(name, ())

    async def known_others(self, name: str) -> tuple[str, ...]:
        """The same, waited for."""
        self.others(name)
        if self._others_task is not None:
            await asyncio.wait((self._others_task,))
        return self._others.get(name, ())

    async def _look_for_others(self) -> None:
        found: dict[str, list[str]] = {}
        try:
            for policy in await self.aws.pages(
                "autoscaling", "DescribePolicies", {"MaxRecords": 100}, "ScalingPolicies"
            ):
                mode = (policy.get("PredictiveScalingConfiguration") or {}).get("Mode")
                if policy.get("Enabled", True) and mode not in PASSIVE:
                    text = f"the scaling policy {policy.get('PolicyName')!r} ({policy.get('PolicyType')})"
                    found.setdefault(str(policy.get("AutoScalingGroupName")), []).append(text)
            actions = await self.aws.pages(
                "autoscaling", "DescribeScheduledActions", {"MaxRecords": 100}, "ScheduledUpdateGroupActions"
            )
            for action in actions:
                text = f"the scheduled action {action.get('ScheduledActionName')!r}"
                found.setdefault(str(action.get("AutoScalingGroupName")), []).append(text)
        except EdgeError as error:
            self._others_at += AGAIN - OTHERS
            self._blinded("others", str(error))
            return
        self.blind.pop("others", None)
        self._others = {name: tuple(texts) for name, texts in found.items()}
