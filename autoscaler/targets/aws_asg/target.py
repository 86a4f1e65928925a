"""Target `aws-asg`: the desired capacity of an EC2 Auto Scaling group.

    target: {type: aws-asg, group: flink-taskmanagers, region: eu-central-1}

All groups of one region and identity share requests to AWS (see `groups`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

from autoscaler.clients import aws
from autoscaler.clients.shared_requests import cancel_all
from autoscaler.core.model import Bound
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import (
    EdgeError,
    Finding,
    RefusedError,
    ScaleTarget,
    Severity,
    Shared,
    TargetStatus,
    UnavailableError,
    Workforce,
)
from autoscaler.targets.aws_asg.groups import Group, Groups, Instance, shared_groups
from autoscaler.targets.aws_asg.workers import GroupWorkers

STARTUP_DELAY = 3.0  # seconds before the first change without a request, so that `autoscaler plan` changes nothing
REMARK_AGE = 300.0  # seconds for which a remark shows a failure of the background work
ATTEMPTS = 5
UNSEEN_ECHOES = 4  # times `echo`: the longest time until AWS shows a change
STAYING = frozenset({"InService", "Pending", "Pending:Wait", "Pending:Proceed"})
MAX_HEARTBEAT_INTERVAL = 600.0  # seconds

_log = logging.getLogger("autoscaler.targets")


class ScaleIn(StrEnum):
    """How the target removes instances."""

    GROUP = "group"
    DRAIN = "drain"
    HOOK = "hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAsg:
    """The size (desired capacity) of an EC2 Auto Scaling group.

    Attributes:
        group: name of the Auto Scaling group.
        region: AWS region, such as `eu-central-1`.
        profile: profile of `~/.aws/config` to use. Default: boto3's usual search (environment, instance profile).
        role: ARN of a role to assume. Default: none.
        endpoint_url: one address for all AWS services, such as LocalStack's. Default: AWS's, or boto3's settings.
        fresh: how old an answer about the group may be. Groups whose clusters tick within this time share a request,
            up to 100 per call. Default 5s.
        echo: AWS may show an old size for some time after a change. For this time after AWS has first shown our change,
            and before that for up to four times as long, an old size does not count as a change by another user.
            Default 15s.
        scale_in: how to remove instances. `group` (default): the Auto Scaling group chooses and stops them at once;
            `drain`: the target chooses the instances whose loss costs the engine least, waits until their workers have
            finished, then terminates them; `hook`: the group chooses, and the target completes the group's lifecycle
            hook when the worker has finished.
        hook: name of the lifecycle hook for `hook`. Default: the group's only hook for terminating instances.
        drain: how long workers have to finish, for `drain` and `hook`. Default 5m.
        timeout: time-out for one answer of AWS, including retries. Default 5s.
    """

    packages: ClassVar[tuple[str, ...]] = ("boto3",)

    group: str
    region: str
    _: KW_ONLY
    profile: str | None = None
    role: str | None = None
    endpoint_url: str | None = None
    fresh: timedelta = timedelta(seconds=5)
    echo: timedelta = timedelta(seconds=15)
    scale_in: ScaleIn = ScaleIn.GROUP
    hook: str = ""
    drain: timedelta = timedelta(minutes=5)
    timeout: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^:\x00-\x1f]{1,255}", self.group):
            raise ParameterError("group", f"must be the name of an Auto Scaling group, not {self.group!r}")
        self.place  # noqa: B018 - it checks its parameters
        for name in ("fresh", "echo"):
            if getattr(self, name) < timedelta(0):
                raise ParameterError(name, "must not be negative")
        if self.drain <= timedelta(0):
            raise ParameterError("drain", "must be above 0s")
        object.__setattr__(self, "scale_in", ScaleIn(self.scale_in))
        if self.hook and self.scale_in is not ScaleIn.HOOK:
            raise ParameterError("hook", "has an effect only with scale_in: hook")

    @property
    def subject(self) -> tuple[str | None, ...]:
        """The identity of the scaled object, without the other parameters."""
        return self.group, self.region, self.profile, self.role, self.endpoint_url

    @property
    def place(self) -> aws.Place:
        """The region and the identity."""
        return aws.Place(self.region, self.profile, self.role, self.endpoint_url, self.timeout)

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Open the target. The first `describe` sends the first request.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        groups = await shared_groups(shared, self.place)
        with groups.member(self.group):
            # A dry run must change nothing, and another daemon may be completing the hooks.
            delay = math.inf if getattr(shared, "dry_run", False) else STARTUP_DELAY
            async with aclosing(Target(self, groups, delay=delay)) as target:
                yield target


@dataclass(slots=True)
class AcceptedSize:
    """The size that AWS accepted last, remembered as long as AWS may still show an earlier size.

    This time ends `echo` seconds after AWS has first shown a newer size, or `UNSEEN_ECHOES` times that after the change
    if AWS shows no newer size.
    """

    echo: float
    size: int | None = None
    at: float = -math.inf
    seen: bool = True
    earlier: dict[int, float] = field(default_factory=dict)

    def accept(self, size: int, shown: int | None, now: float) -> None:
        """Record a size that AWS has accepted. `shown` is the size that AWS showed before."""
        self.earlier = {old: at for old, at in self.earlier.items() if now - at <= self.echo}
        for old in (shown, self.size):
            if old is not None:
                self.earlier[old] = now
        self.earlier.pop(size, None)
        self.size, self.at, self.seen = size, now, False

    def actual(self, shown: int, now: float) -> int:
        """The actual size if AWS shows `shown`: an earlier size is an echo, any other size is another user's change."""
        if not self.seen and shown not in self.earlier:
            self.seen, self.at = True, now
        if self.size is None or now - self.at > self.echo * (1 if self.seen else UNSEEN_ECHOES):
            return shown
        return self.size if shown in self.earlier else shown


class Target:
    """The connected target."""

    def __init__(self, parameters: AwsAsg, groups: Groups, *, delay: float = STARTUP_DELAY, poll: float = 1.0) -> None:
        self._parameters = parameters
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._accepted = AcceptedSize(parameters.echo.total_seconds())
        self._shown: int | None = None
        self._arn = (
            f"arn:aws:autoscaling:{parameters.region}:*:autoScalingGroup:*:autoScalingGroupName/{parameters.group}"
        )
        self._workers = GroupWorkers(groups.aws, poll)
        self._scaling, self._changing = asyncio.Lock(), asyncio.Lock()
        self._goal: int | None = None
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._terminated: set[str] = set()  # instances that AWS may still show
        self._hook: tuple[str, float] | None = None
        self._failures: dict[str, float] = {}
        self._start = self._loop.time() + delay

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Set the engine that names the registered workers."""
        self._workers.workforce = workforce

    async def aclose(self) -> None:
        """Cancel the background work. The next connection resumes or replaces it."""
        await cancel_all(self._leaving.values())

    async def describe(self) -> TargetStatus:
        """Return the group's size, its instances in service, and its bounds.

        Raises:
            RefusedError: there is no such group, it is being deleted, its instances have weights, or access is denied.
            EdgeError: AWS failed or cannot be reached.
        """
        until = self._loop.time() + self._parameters.timeout.total_seconds()
        group = await self._read()
        refresh = await self._groups.refresh_under_way(group, until)
        failed_launch = await self._groups.failed_launch(group, until)
        now = self._loop.time()
        actual = self._accepted.actual(group.desired, now)
        desired = self._planned(group, actual)
        if self._parameters.scale_in is ScaleIn.HOOK and now >= self._start:
            self._release_waiting(group)
        self._workers.forget([instance.id for instance in group.instances])
        self._terminated &= {instance.id for instance in group.instances}
        ready = sum(1 for instance in self._staying(group) if instance.serving)
        remarks = [*progress(group, desired), *filter(None, (refresh, failed_launch))]
        if actual != group.desired:
            remarks.append(f"AWS still shows a desired capacity of {group.desired}")
        if self._leaving and self._parameters.scale_in is ScaleIn.DRAIN:
            remarks.append(f"{len(self._leaving)} being drained before they are terminated")
        remarks += [f"{other} also sets this group's size" for other in self._others(group)]
        self._failures = {text: at for text, at in self._failures.items() if now - at <= REMARK_AGE}
        remarks += self._failures
        floor, ceiling = bounds(group, desired, refresh)
        return TargetStatus(desired, ready, tuple(remarks), floor, ceiling)

    async def scale(self, replicas: int) -> None:
        """Set the desired capacity; with `scale_in: drain`, start to drain the surplus.

        Raises:
            RefusedError: AWS refused: outside the group's limits, no such group, access denied.
            EdgeError: AWS failed or cannot be reached. AWS may still have accepted the change.
        """
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        async with self._scaling:
            if self._parameters.scale_in is ScaleIn.DRAIN and await self._drain_to(replicas):
                return
            async with self._changing:  # wait for a termination in progress
                await self._set(replicas)

    async def diagnose(self) -> Sequence[Finding]:
        """Find settings that make scaling ineffective or dangerous. Raises EdgeError when the group cannot be read."""
        name = f"Auto Scaling group {self._parameters.group}"
        group = await self._read()
        await self._groups.wait_for_others(group.name)
        found = [
            Finding(
                Severity.WARNING,
                name,
                f"{other} also sets this group's size",
                "the two undo each other's changes, and each change stops or slows the job",
                "remove it, or suspend the group's processes AlarmNotification and ScheduledActions",
            )
            for other in self._others(group)
        ]
        found += [
            Finding(
                Severity.WARNING,
                name,
                f"its process {process} is suspended{why}",
                "the group cannot grow" if process == "Launch" else "the group cannot shrink",
                f"aws autoscaling resume-processes --auto-scaling-group-name {shlex.quote(group.name)} "
                f"--scaling-processes {process}",
            )
            for process, why in suspended(group).items()
        ]
        if self._groups.unreadable:
            found.append(
                Finding(
                    Severity.INFO,
                    name,
                    f"some details of the group cannot be read: {'; '.join(self._groups.unreadable.values())}",
                    "scaling policies, scheduled actions or instance refreshes that change the size are not noticed",
                    "allow the Describe actions of deploy/aws/policy.json",
                )
            )
        return found + await self._examine_scale_in(name)

    async def _examine_scale_in(self, name: str) -> list[Finding]:
        mode = self._parameters.scale_in
        if mode is ScaleIn.GROUP:
            return []
        found = []
        try:
            self._workers.workforce()
        except EdgeError as error:
            found.append(
                Finding(
                    Severity.WARNING,
                    name,
                    f"scale_in: {mode} has no engine that names its workers: {error}",
                    "instances are removed without draining, as with scale_in: group",
                    "configure an engine that can (Spark with its Master), or scale_in: group",
                )
            )
        if mode is ScaleIn.HOOK:
            try:
                await self._hook_of_group()
            except RefusedError as error:
                found.append(
                    Finding(
                        Severity.ERROR,
                        name,
                        f"scale_in: hook does not work: {error}",
                        "instances are terminated at once, or wait until the hook's time-out",
                        "docs/integrations/aws.md shows how to create the hook",
                    )
                )
        return found

    async def _read(self) -> Group:
        group = await self._groups.get(self._parameters.group, self._parameters.fresh.total_seconds())
        self._shown = group.desired
        self._arn = group.arn or self._arn
        return group

    def _others(self, group: Group) -> tuple[str, ...]:
        """The scaling policies and scheduled actions that also set the size and are not suspended."""
        idle = {"the scaling policy": "AlarmNotification", "the scheduled action": "ScheduledActions"}
        return tuple(
            other
            for other in self._groups.others(group.name)
            if not any(other.startswith(kind) and process in group.suspended for kind, process in idle.items())
        )

    async def _set(self, replicas: int) -> None:
        await self._change(
            "SetDesiredCapacity",
            {
                "AutoScalingGroupName": self._parameters.group,
                "DesiredCapacity": replicas,
                "HonorCooldown": False,
            },
        )
        self._accepted.accept(replicas, self._shown, self._loop.time())

    async def _change(self, operation: str, parameters: dict[str, Any], *, once: bool = False) -> None:
        """Send a change. Whatever its result, answers that were requested before it ended are not used any more."""
        name = self._parameters.group
        try:
            await self._groups.aws.call(
                "autoscaling",
                operation,
                parameters,
                resource=self._arn,
                once=once,
                ended=lambda: self._groups.invalidate(name),
            )
        finally:
            self._groups.invalidate(name)

    # ------------------------------------------------------------------------------------------------------
    # removing instances with `scale_in: drain`

    async def _drain_to(self, replicas: int) -> bool:
        """Start to drain the surplus. Returns False if draining is impossible, so that the caller must set the size."""
        async with self._changing:  # wait for a termination in progress
            group = await self._read()
            if replicas < group.minimum:
                raise RefusedError(f"{replicas} is below the minimum ({group.minimum}) of the group {group.name!r}")
            desired = self._accepted.actual(group.desired, self._loop.time())
            owed = self._owed(group)
            count = desired - owed - replicas
            if count <= 0:
                # A draining worker cannot be used again, so its instance does not count towards the new size.
                self._goal = None  # if AWS refuses the size, the group replaces draining instances: see `_terminate`
                if count < 0:
                    await self._set(max(replicas, min(replicas + owed, group.maximum)))
                self._goal = replicas if self._leaving else None
                return True
            self._goal = replicas if self._leaving else None
            there = sum(1 for instance in group.instances if instance.counts and instance.id not in self._terminated)
            if there < desired:
                # First give up instances that AWS could not launch, before any that work.
                less = max(replicas + owed, there)
                await self._set(less)
                count -= desired - less
        candidates = [i for i in self._staying(group) if i.state in STAYING and not i.protected]
        if count <= 0 and not self._leaving:
            return True
        if count > 0:
            try:
                chosen = await self._workers.choose(candidates, count)
            except EdgeError as error:
                self._report(f"instances were removed without draining: {error}")
                return False
            for instance, workers in chosen:
                self._begin(instance.id, self._leave(instance.id, workers))
        if not self._leaving:
            return False  # there is no instance that this target may terminate, so the group has to choose
        self._goal = replicas
        return True

    def _staying(self, group: Group) -> list[Instance]:
        """The instances that this target is not removing."""
        return [i for i in group.instances if i.id not in self._leaving and i.id not in self._terminated]

    def _owed(self, group: Group) -> int:
        """The number of draining instances that the desired capacity still includes."""
        return sum(
            1
            for instance in group.instances
            if instance.id in self._leaving and instance.id not in self._terminated and instance.state in STAYING
        )

    def _planned(self, group: Group, desired: int) -> int:
        """The size after the draining instances are terminated."""
        return desired if self._goal is None else min(desired, max(self._goal, desired - self._owed(group)))

    async def _leave(self, instance: str, workers: frozenset[str]) -> None:
        try:
            why = await self._workers.leave(workers, self._parameters.drain.total_seconds())
        except RefusedError as error:
            self._report(f"workers are not drained: {error}")
        else:
            if why is not None:
                self._report(f"the worker on {instance} was terminated before it had finished: {why}")
        for _ in range(ATTEMPTS):
            async with self._changing:
                if await self._terminate(instance):
                    return
            # The termination may have succeeded although its answer was lost. Wait until AWS shows it.
            await asyncio.sleep(self._accepted.echo)
        self._report(f"{instance} could not be terminated in {ATTEMPTS} attempts")

    async def _terminate(self, instance: str) -> bool:
        """Terminate a drained instance if it still exists. Returns whether the work is done; False means try again."""
        try:
            group = await self._read()
            found = next((known for known in group.instances if known.id == instance), None)
            if found is None or found.state not in STAYING:
                return True
            if found.protected:
                self._report(f"{instance} was drained, but is now protected from scale-in")
                return True
            desired = self._accepted.actual(group.desired, self._loop.time())
            # If a larger size was requested meanwhile, keep the capacity, so that the group replaces this instance.
            fewer = desired > max(group.minimum, desired if self._goal is None else self._goal)
            await self._change(
                "TerminateInstanceInAutoScalingGroup",
                {"InstanceId": instance, "ShouldDecrementDesiredCapacity": fewer},
                once=True,
            )
        except UnavailableError as error:
            self._report(f"{instance} is not terminated yet: {error}")
            return False
        except EdgeError as error:
            self._report(f"{instance} cannot be terminated: {error}")
            return True
        self._accepted.accept(desired - fewer, desired, self._loop.time())
        self._terminated.add(instance)
        return True

    # ------------------------------------------------------------------------------------------------------
    # removing instances with `scale_in: hook`

    def _release_waiting(self, group: Group) -> None:
        """Drain and release the instances that the lifecycle hook keeps waiting."""
        waiting = [instance.id for instance in group.instances if instance.state == "Terminating:Wait"]
        for instance in waiting:
            if instance not in self._leaving:
                self._begin(instance, self._release(instance))

    async def _release(self, instance: str) -> None:
        name, timeout = await self._hook_of_group()
        parameters = {"LifecycleHookName": name, "AutoScalingGroupName": self._parameters.group, "InstanceId": instance}
        last = -math.inf  # send the first heartbeat at once: nobody knows how long the instance has already waited

        async def heartbeat() -> None:
            nonlocal last
            if self._loop.time() - last >= min(timeout / 3, MAX_HEARTBEAT_INTERVAL):
                last = self._loop.time()
                try:
                    await self._change("RecordLifecycleActionHeartbeat", parameters)
                except EdgeError as error:
                    self._report(f"the lifecycle hook {name!r} got no heartbeat for {instance}: {error}")

        try:
            why = await self._drained(instance, heartbeat)
        except RefusedError as error:
            self._report(f"workers are not drained: {error}")
        else:
            if why is not None:
                self._report(f"the worker on {instance} was released before it had finished: {why}")
        try:
            await self._change("CompleteLifecycleAction", {**parameters, "LifecycleActionResult": "CONTINUE"})
        except RefusedError:
            self._hook = None  # the hook may have been replaced, so read it again
            raise
        # Wait until AWS shows the new state: it would refuse a second completion.
        await asyncio.sleep(self._accepted.echo)

    async def _drained(self, instance: str, heartbeat: Callable[[], Awaitable[None]]) -> str | None:
        deadline = self._loop.time() + self._parameters.drain.total_seconds()
        while True:
            try:
                workers = await self._workers.on(instance)
            except RefusedError:
                raise
            except EdgeError as error:
                if self._loop.time() >= deadline:
                    return str(error)
                await heartbeat()
                await asyncio.sleep(1.0)
            else:
                return await self._workers.leave(workers, max(0.0, deadline - self._loop.time()), heartbeat)

    async def _hook_of_group(self) -> tuple[str, float]:
        """The name and the heartbeat time-out (seconds) of the hook for terminating instances. Raises EdgeError."""
        if self._hook is None:
            answer = await self._groups.aws.call(
                "autoscaling", "DescribeLifecycleHooks", {"AutoScalingGroupName": self._parameters.group}
            )
            wanted = self._parameters.hook
            hooks = {
                str(hook.get("LifecycleHookName")): float(hook.get("HeartbeatTimeout") or 3600)
                for hook in answer.get("LifecycleHooks") or ()
                if hook.get("LifecycleTransition") == "autoscaling:EC2_INSTANCE_TERMINATING"
                and hook.get("LifecycleHookName") == (wanted or hook.get("LifecycleHookName"))
            }
            if len(hooks) != 1:
                raise RefusedError(
                    f"the group {self._parameters.group!r} has {len(hooks)} lifecycle hooks"
                    + (f" called {wanted!r}" if wanted else "")
                    + f" for terminating instances{': ' + ', '.join(sorted(hooks)) if hooks else ''}, expected one"
                )
            self._hook = next(iter(hooks.items()))
        return self._hook

    # ------------------------------------------------------------------------------------------------------

    def _begin(self, instance: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=f"{self._parameters.group}: {instance} leaves")
        self._leaving[instance] = task
        task.add_done_callback(lambda ended: self._ended(instance, ended))

    def _ended(self, instance: str, task: asyncio.Task[None]) -> None:
        del self._leaving[instance]
        if not self._leaving:
            self._goal = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"{instance} could not be removed: {error}", error)

    def _report(self, text: str, error: BaseException | None = None) -> None:
        """Show a text as a remark for some time, and log it once."""
        if text not in self._failures:
            expected = error is None or isinstance(error, EdgeError)
            _log.warning(text, extra={"group": self._parameters.group}, exc_info=None if expected else error)
        self._failures[text] = self._loop.time()


def progress(group: Group, desired: int) -> list[str]:
    """Remarks about the instances that are in transition, one sentence each."""
    remarks = []
    pending = group.count("Pending")
    if pending:
        hooked = group.waiting("Pending")
        remarks.append(
            f"{pending} of {desired} instances are pending"
            + (f" ({hooked} wait for a lifecycle hook)" if hooked else "")
        )
    terminating = group.count("Terminating")
    if terminating:
        hooked = group.waiting("Terminating")
        remarks.append(f"{terminating} terminating" + (f" ({hooked} wait for a lifecycle hook)" if hooked else ""))
    for states, text in (
        (("Standby", "EnteringStandby"), "in standby"),
        (("Detaching", "Detached"), "detaching"),
        (("Quarantined",), "quarantined"),
        (("ReplacingRootVolume", "RootVolumeReplaced"), "getting a new root volume"),
    ):
        if count := group.count(*states):
            remarks.append(f"{count} {text}")
    unhealthy = sum(1 for instance in group.instances if instance.state == "InService" and not instance.healthy)
    if unhealthy:
        remarks.append(f"{unhealthy} in service are unhealthy and about to be replaced")
    return remarks


def suspended(group: Group) -> dict[str, str]:
    """Suspended process that prevents changes of the size -> its reason as ` (reason)`, or an empty string."""
    return {
        process: f" ({why})" if (why := group.suspended[process]) else ""
        for process in ("Launch", "Terminate")
        if process in group.suspended
    }


def bounds(group: Group, desired: int, refresh: str | None) -> tuple[Bound, Bound]:
    """The smallest and the largest size that the group can have at present, with their reasons."""
    floors = [Bound(group.minimum, f"the group's own minimum is {group.minimum}")]
    ceilings = [Bound(group.maximum, f"the group's own maximum is {group.maximum}")]
    stopped = suspended(group)
    if "Launch" in stopped:
        ceilings.append(Bound(desired, f"the group's process Launch is suspended{stopped['Launch']}"))
    if "Terminate" in stopped:
        floors.append(Bound(desired, f"the group's process Terminate is suspended{stopped['Terminate']}"))
    protected = sum(1 for instance in group.instances if instance.state == "InService" and instance.protected)
    if protected:
        floors.append(Bound(protected, f"{protected} instances are protected from scale-in"))
    if refresh:
        floors.append(Bound(desired, refresh))
        ceilings.append(Bound(desired, refresh))
    floor = max(floors, key=lambda bound: bound.replicas)
    ceiling = min(ceilings, key=lambda bound: bound.replicas)
    return floor, ceiling
