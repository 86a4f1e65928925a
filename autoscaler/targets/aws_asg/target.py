"""Target `aws-asg`: the desired capacity of an EC2 Auto Scaling group.

    target: {type: aws-asg, group: flink-taskmanagers, region: eu-central-1}

What is asked of AWS is asked for all groups of one region and identity together (see `aws_groups`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from autoscaler.clients import aws
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
from autoscaler.targets.aws_asg.workers import Staff

REST = 3.0  # seconds before anything is done unasked: who only looks (`autoscaler plan`) changes nothing
TOLD = 300.0  # seconds for which a failure of the background work is remarked
TRIES = 5
STAYS = frozenset({"InService", "Pending", "Pending:Wait", "Pending:Proceed"})
LONGEST_BEAT = 600.0

_log = logging.getLogger("autoscaler.targets")


class ScaleIn(StrEnum):
    """How instances go."""

    GROUP = "group"
    DRAIN = "drain"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class AwsAsg:
    """The size (desired capacity) of an EC2 Auto Scaling group.

    Attributes:
        group: name of the Auto Scaling group.
        region: AWS region, such as `eu-central-1`.
        profile: profile of `~/.aws/config` to use. Default: boto3's usual search (environment, instance profile).
        role: ARN of a role to assume. Default: none.
        endpoint_url: one address for all services of AWS, such as LocalStack's. Default: AWS's, or boto3's settings.
        fresh: how old an answer about the group may be; groups whose clusters tick within this time are asked
            about together, 100 a call. Default 5s.
        echo: how long after a change AWS may still show the size from before it; within this time the old size is
            not taken for somebody else's change. Default 15s.
        scale_in: how instances go: `group` (default) lets the Auto Scaling group choose and stop them at once;
            `drain` chooses those that the engine loses cheapest, lets their workers finish, then terminates them;
            `hook` lets the group choose, and completes its lifecycle hook once the worker has finished.
        hook: name of the lifecycle hook for `hook`. Default: the group's only hook for terminating instances.
        drain: how long workers have to finish, for `drain` and `hook`. Default 5m.
        timeout: time for one answer of AWS, retries included. Default 5s.
    """

    group: str
    region: str
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
        aws.validate(self)
        for name in ("fresh", "echo"):
            if getattr(self, name) < timedelta(0):
                raise ParameterError(name, "must not be negative")
        if self.drain <= timedelta(0):
            raise ParameterError("drain", "must be above 0s")
        object.__setattr__(self, "scale_in", ScaleIn(self.scale_in))
        if self.hook and self.scale_in is not ScaleIn.HOOK:
            raise ParameterError("hook", "is of use with scale_in: hook only")

    @property
    def subject(self) -> tuple[str | None, ...]:
        """What is scaled, whatever else is said of it."""
        return self.group, self.region, self.profile, self.role, self.endpoint_url

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Open it; nothing is asked before the first description is.

        Raises:
            PluginError: boto3 is not installed.
            RefusedError: the profile does not exist.
        """
        groups = await shared_groups(shared, aws.place_of(self))
        with groups.member(self.group):
            # Who only looks changes nothing, and in a dry run somebody else may take care of the hooks.
            target = Target(self, groups, rest=math.inf if getattr(shared, "dry_run", False) else REST)
            try:
                yield target
            finally:
                await target.close()


@dataclass(slots=True)
class Sizes:
    """The size that AWS accepted last, for as long as it may still show one from before."""

    echo: float
    size: int | None = None
    at: float = float("-inf")
    before: dict[int, float] = field(default_factory=dict)

    def accepted(self, size: int, shown: int | None, now: float) -> None:
        """AWS has accepted a size; `shown` is what it showed before."""
        self.before = {old: at for old, at in self.before.items() if now - at <= self.echo}
        for old in (shown, self.size):
            if old is not None:
                self.before[old] = now
        self.before.pop(size, None)
        self.size, self.at = size, now

    def true(self, shown: int, now: float) -> int:
        """What holds when AWS shows this: a size from before our change is an echo, any other is somebody's change."""
        if self.size is None or now - self.at > self.echo:
            return shown
        return self.size if shown in self.before else shown


class Target:
    """The live target."""

    def __init__(self, parameters: AwsAsg, groups: Groups, *, rest: float = REST, poll: float = 1.0) -> None:
        self._parameters = parameters
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._sizes = Sizes(parameters.echo.total_seconds())
        self._shown: int | None = None
        self._arn = (
            f"arn:aws:autoscaling:{parameters.region}:*:autoScalingGroup:*:autoScalingGroupName/{parameters.group}"
        )
        self._staff = Staff(groups.aws, poll)
        self._deciding, self._one = asyncio.Lock(), asyncio.Lock()
        self._goal: int | None = None
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._terminated: set[str] = set()  # until AWS shows it
        self._hook: tuple[str, float] | None = None
        self._told: dict[str, float] = {}
        self._unasked = self._loop.time() + rest

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Take the engine that names the workers."""
        self._staff.workforce = workforce

    async def close(self) -> None:
        """End the background work. What it had begun is seen again, or decided anew, by the next connection."""
        tasks = tuple(self._leaving.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(self) -> TargetStatus:
        """Say the group's size and its instances that are in service, and what bounds it.

        Raises:
            RefusedError: there is no such group, it is being deleted, its instances have weights, or asking is denied.
            EdgeError: AWS cannot be asked.
        """
        until = self._loop.time() + self._parameters.timeout.total_seconds()
        group = await self._look()
        refreshing = await self._groups.refreshing(group, until)
        failing = await self._groups.failing(group, until)
        now = self._loop.time()
        true = self._sizes.true(group.desired, now)
        desired = self._planned(group, true)
        if self._parameters.scale_in is ScaleIn.HOOK and now >= self._unasked:
            self._watch(group)
        self._staff.forget([instance.id for instance in group.instances])
        self._terminated &= {instance.id for instance in group.instances}
        ready = sum(1 for instance in self._staying(group) if instance.serving)
        remarks = [*progress(group, desired), refreshing, failing]
        if true != group.desired:
            remarks.append(f"AWS still shows a desired capacity of {group.desired}")
        if self._leaving and self._parameters.scale_in is ScaleIn.DRAIN:
            remarks.append(f"{len(self._leaving)} being drained before they are terminated")
        remarks += [f"{other} also sets this group's size" for other in self._others(group)]
        self._told = {text: at for text, at in self._told.items() if now - at <= TOLD}
        remarks += self._told
        floor, ceiling = bounds(group, desired, refreshing)
        return TargetStatus(desired, ready, tuple(remark for remark in remarks if remark), floor, ceiling)

    async def scale(self, replicas: int) -> None:
        """Set the desired capacity; with `scale_in: drain`, begin to drain what is too much.

        Raises:
            RefusedError: AWS says no: outside the group's limits, no such group, not allowed.
            EdgeError: AWS cannot be asked, or nobody knows whether it was accepted.
        """
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        async with self._deciding:
            if self._parameters.scale_in is ScaleIn.DRAIN and await self._drain_to(replicas):
                return
            async with self._one:  # not while an instance is being terminated
                await self._set(replicas)

    async def diagnose(self) -> Sequence[Finding]:
        """Look for what makes scaling useless or dangerous. Raises EdgeError when the group cannot be seen."""
        name = f"Auto Scaling group {self._parameters.group}"
        group = await self._look()
        await self._groups.known_others(group.name)
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
        if self._groups.blind:
            found.append(
                Finding(
                    Severity.INFO,
                    name,
                    f"not all of it can be seen: {'; '.join(self._groups.blind.values())}",
                    "scaling policies, scheduled actions or instance refreshes may work against us unseen",
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
            self._staff.workforce()
        except EdgeError as error:
            found.append(
                Finding(
                    Severity.WARNING,
                    name,
                    f"scale_in: {mode} has no engine that names its workers: {error}",
                    "instances go without being drained, as with scale_in: group",
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
                        "docs/integrations/aws.md shows how to put the hook",
                    )
                )
        return found

    async def _look(self) -> Group:
        group = await self._groups.get(self._parameters.group, self._parameters.fresh.total_seconds())
        self._shown = group.desired
        self._arn = group.arn or self._arn
        return group

    def _others(self, group: Group) -> tuple[str, ...]:
        """Who else sets the size, and is not suspended."""
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
        self._sizes.accepted(replicas, self._shown, self._loop.time())

    async def _change(self, operation: str, parameters: dict[str, Any], *, once: bool = False) -> None:
        """Change something. What was asked before it ended does not count any more, whatever came of it."""
        name = self._parameters.group
        try:
            await self._groups.aws.call(
                "autoscaling",
                operation,
                parameters,
                resource=self._arn,
                once=once,
                ended=lambda: self._groups.outdate(name),
            )
        finally:
            self._groups.outdate(name)

    # ------------------------------------------------------------------------------------------------------
    # how instances go with `scale_in: drain`

    async def _drain_to(self, replicas: int) -> bool:
        """Begin to drain what is too much. False: there is nothing to drain, or nobody can; set the size instead."""
        async with self._one:  # not while an instance is being terminated
            group = await self._look()
            if replicas < group.minimum:
                raise RefusedError(f"{replicas} is below the minimum ({group.minimum}) of the group {group.name!r}")
            desired = self._sizes.true(group.desired, self._loop.time())
            owed = self._owed(group)
            count = desired - owed - replicas
            if count <= 0:
                # A worker that drains does not come back: its instance is not one of those that are asked for.
                self._goal = None  # if this is refused, those that leave are replaced: see `_terminate`
                if count < 0:
                    await self._set(max(replicas, min(replicas + owed, group.maximum)))
                self._goal = replicas if self._leaving else None
                return True
            self._goal = replicas if self._leaving else None
            there = sum(1 for instance in group.instances if instance.counts and instance.id not in self._terminated)
            if there < desired:
                # What AWS could not launch goes before anything that works.
                less = max(replicas + owed, there)
                await self._set(less)
                count -= desired - less
        candidates = [i for i in self._staying(group) if i.state in STAYS and not i.protected]
        if count <= 0 and not self._leaving:
            return True
        if count > 0:
            try:
                chosen = await self._staff.choose(candidates, count)
            except EdgeError as error:
                self._tell(f"instances went without being drained: {error}")
                return False
            for instance, workers in chosen:
                self._begin(instance.id, self._leave(instance.id, workers))
        if not self._leaving:
            return False  # nothing that may be terminated by us: the group has to find it
        self._goal = replicas
        return True

    def _staying(self, group: Group) -> list[Instance]:
        """The instances that are not on their way out by us."""
        return [i for i in group.instances if i.id not in self._leaving and i.id not in self._terminated]

    def _owed(self, group: Group) -> int:
        """The instances that are still to be taken off the desired capacity."""
        return sum(
            1
            for instance in group.instances
            if instance.id in self._leaving and instance.id not in self._terminated and instance.state in STAYS
        )

    def _planned(self, group: Group, desired: int) -> int:
        """The size there will be once those that leave have left, as far as it is ours to say."""
        return desired if self._goal is None else min(desired, max(self._goal, desired - self._owed(group)))

    async def _leave(self, instance: str, workers: frozenset[str]) -> None:
        try:
            why = await self._staff.leave(workers, self._parameters.drain.total_seconds())
        except RefusedError as error:
            self._tell(f"workers are not drained: {error}")
        else:
            if why:
                self._tell(f"the worker on {instance} was terminated before it had let go: {why}")
        for _ in range(TRIES):
            async with self._one:
                if await self._terminate(instance):
                    return
            # It may have been done all the same: by then AWS shows it.
            await asyncio.sleep(self._sizes.echo)
        self._tell(f"{instance} could not be terminated in {TRIES} tries")

    async def _terminate(self, instance: str) -> bool:
        """Terminate a drained instance, if it is still there. Returns whether there is nothing more to do."""
        try:
            group = await self._look()
            found = next((known for known in group.instances if known.id == instance), None)
            if found is None or found.state not in STAYS:
                return True
            if found.protected:
                self._tell(f"{instance} was drained, but is now protected from scale-in")
                return True
            desired = self._sizes.true(group.desired, self._loop.time())
            # Meanwhile a larger size may have been asked for: then the group replaces this one.
            fewer = desired > max(group.minimum, desired if self._goal is None else self._goal)
            await self._change(
                "TerminateInstanceInAutoScalingGroup",
                {"InstanceId": instance, "ShouldDecrementDesiredCapacity": fewer},
                once=True,
            )
        except UnavailableError as error:
            self._tell(f"{instance} is not terminated yet: {error}")
            return False
        except EdgeError as error:
            self._tell(f"{instance} cannot be terminated: {error}")
            return True
        self._sizes.accepted(desired - fewer, desired, self._loop.time())
        self._terminated.add(instance)
        return True

    # ------------------------------------------------------------------------------------------------------
    # how instances go with `scale_in: hook`

    def _watch(self, group: Group) -> None:
        """Take care of the instances that the lifecycle hook keeps waiting."""
        waiting = [instance.id for instance in group.instances if instance.state == "Terminating:Wait"]
        for instance in waiting:
            if instance not in self._leaving:
                self._begin(instance, self._release(instance))

    async def _release(self, instance: str) -> None:
        name, timeout = await self._hook_of_group()
        parameters = {"LifecycleHookName": name, "AutoScalingGroupName": self._parameters.group, "InstanceId": instance}
        beaten = -math.inf  # at once: nobody knows how long it has waited before this daemon began

        async def beat() -> None:
            nonlocal beaten
            if self._loop.time() - beaten >= min(timeout / 3, LONGEST_BEAT):
                beaten = self._loop.time()
                try:
                    await self._change("RecordLifecycleActionHeartbeat", parameters)
                except EdgeError as error:
                    self._tell(f"the lifecycle hook {name!r} got no heartbeat for {instance}: {error}")

        try:
            why = await self._drained(instance, beat)
        except RefusedError as error:
            self._tell(f"workers are not drained: {error}")
        else:
            if why:
                self._tell(f"the worker on {instance} was released before it had let go: {why}")
        try:
            await self._change("CompleteLifecycleAction", {**parameters, "LifecycleActionResult": "CONTINUE"})
        except RefusedError:
            self._hook = None  # it may have been replaced
            raise
        # Until AWS shows that it goes on; a second answer would be refused.
        await asyncio.sleep(self._sizes.echo)

    async def _drained(self, instance: str, beat: Callable[[], Awaitable[None]]) -> str:
        deadline = self._loop.time() + self._parameters.drain.total_seconds()
        while True:
            try:
                workers = await self._staff.on(instance)
            except RefusedError:
                raise
            except EdgeError as error:
                if self._loop.time() >= deadline:
                    return str(error)
                await beat()
                await asyncio.sleep(1.0)
            else:
                return await self._staff.leave(workers, max(0.0, deadline - self._loop.time()), beat)

    async def _hook_of_group(self) -> tuple[str, float]:
        """Name and heartbeat time-out in seconds of the hook for terminating instances. Raises EdgeError."""
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
            self._tell(f"{instance} could not be let go: {error}", error)

    def _tell(self, text: str, error: BaseException | None = None) -> None:
        """Remark it for some time; the log hears of it once."""
        if text not in self._told:
            expected = error is None or isinstance(error, EdgeError)
            _log.warning(text, extra={"group": self._parameters.group}, exc_info=None if expected else error)
        self._told[text] = self._loop.time()


def progress(group: Group, desired: int) -> list[str]:
    """What is under way in a group, one sentence each."""
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
    """The suspended processes that keep the group from changing its size, and why, as ` (reason)`."""
    return {
        process: f" ({why})" if (why := group.suspended[process]) else ""
        for process in ("Launch", "Terminate")
        if process in group.suspended
    }


def bounds(group: Group, desired: int, refreshing: str) -> tuple[Bound, Bound]:
    """The least and the most the group can have now, and why."""
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
    if refreshing:
        floors.append(Bound(desired, refreshing))
        ceilings.append(Bound(desired, refreshing))
    floor = max(floors, key=lambda bound: bound.replicas)
    ceiling = min(ceilings, key=lambda bound: bound.replicas)
    return floor, ceiling
