"""Removing instances with `scale_in: drain` and `scale_in: hook`, with moto's groups and an in-memory engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from autoscaler.daemon.connections import Connections
from autoscaler.ports import EdgeError, RefusedError, Severity, UnavailableError, Worker, Workforce
from autoscaler.targets.aws_asg.groups import shared_groups
from autoscaler.targets.aws_asg.target import AwsAsg, ScaleIn, Target
from autoscaler.targets.aws_asg.workers import _on, names_of
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Forward, Proxy, until

pytest_plugins = ("tests.clients.aws_fixtures",)

TERMINATE = "TerminateInstanceInAutoScalingGroup"
DESCRIBE = "DescribeAutoScalingGroups"
NAMESPACE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'


@dataclass
class Engine:
    """An engine whose workers finish when the test wants it."""

    costs: dict[str, float] = field(default_factory=dict)
    drained: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    failure: EdgeError | None = None
    drain_failure: EdgeError | None = None
    obedient: bool = False

    async def workers(self) -> Sequence[Worker]:
        if self.failure is not None:
            raise self.failure
        left = {host: cost for host, cost in self.costs.items() if host not in self.gone}
        return [Worker(f"worker-{host}", frozenset({host}), cost) for host, cost in left.items()]

    async def drain(self, worker: Worker) -> None:
        if self.drain_failure is not None:
            raise self.drain_failure
        (host,) = worker.hosts
        self.drained.append(host)
        if self.obedient:
            self.gone.add(host)


@asynccontextmanager
async def connected(plugin: AwsAsg, engine: Workforce | None, delay: float = 0.0) -> AsyncIterator[Target]:
    """Like `connect`, with a shorter delay and more frequent polls."""
    async with LocalShared() as shared, plugin.connect(shared) as unused:
        assert isinstance(unused, Target)
        groups = unused._groups
        assert groups is await shared_groups(shared, groups.aws.place)
        target = Target(plugin, groups, delay=delay, poll=0.05)
        if engine is not None:
            target.attach(lambda: engine)
        try:
            yield target
        finally:
            await target.aclose()


@pytest.fixture
def parameters(proxy: Proxy) -> dict[str, Any]:
    return {
        "region": REGION,
        "endpoint_url": proxy.url,
        "fresh": timedelta(0),
        "timeout": timedelta(seconds=9),
        "echo": timedelta(seconds=0.3),
        "scale_in": ScaleIn.DRAIN,
        "drain": timedelta(seconds=20),
    }


def with_workers(proxy: Proxy, group: str) -> tuple[dict[str, str], Engine]:
    """Instance id -> address, and an engine with a worker on each; the first costs least."""
    instances = proxy.moto.instances(group)
    return instances, Engine({address: float(number) for number, address in enumerate(instances.values())})


# ----------------------------------------------------------------------------------------------------------
# drain


async def test_the_cheapest_worker_is_drained_before_its_instance_is_terminated(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(3)
    instances, engine = with_workers(proxy, group)
    cheapest = next(iter(instances))
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: engine.drained)
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 2)
        assert "1 being drained before they are terminated" in status.remarks
        assert engine.drained == [instances[cheapest]]
        assert not proxy.made(TERMINATE)
        engine.gone.add(instances[cheapest])
        await until(lambda: proxy.made(TERMINATE))
        await until(lambda: not target._leaving)
        status = await target.describe()
        assert (status.desired, status.ready, status.remarks) == (2, 2, ())
    assert set(proxy.moto.instances(group)) == set(instances) - {cheapest}
    assert [call.parameters for call in proxy.made(TERMINATE)] == [
        {"InstanceId": cheapest, "ShouldDecrementDesiredCapacity": "true", "Version": "2011-01-01"}
    ]
    assert not proxy.made("SetDesiredCapacity")


async def test_several_instances_are_removed_but_never_more_than_requested(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(5)
    instances, engine = with_workers(proxy, group)
    engine.obedient = True
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await asyncio.gather(*(target.scale(2) for _ in range(3)))
        await until(lambda: not target._leaving)
        assert (await target.describe()).desired == 2
    assert len(proxy.made(TERMINATE)) == 3
    assert len(engine.drained) == len(set(engine.drained)) == 3
    assert set(proxy.moto.instances(group)) == set(list(instances)[3:])


async def test_stale_answers_do_not_terminate_more_instances(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(4)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    async with connected(AwsAsg(group=group, **parameters | {"echo": timedelta(seconds=30)}), engine) as target:
        proxy.echo(DESCRIBE, times=40)
        await target.scale(2)
        await until(lambda: not target._leaving)
        assert (await target.describe()).desired == 2
        await target.scale(2)
        await asyncio.sleep(0)
        assert (await target.describe()).desired == 2
    assert len(proxy.made(TERMINATE)) == 2
    assert proxy.moto.shown(group)["DesiredCapacity"] == 2


async def test_a_termination_whose_answer_was_lost_is_not_repeated(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    proxy.drop(TERMINATE, after=True)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 2)
        assert any("is not terminated yet" in remark for remark in status.remarks)
    assert len(proxy.made(TERMINATE)) == 1
    assert proxy.moto.shown(group)["DesiredCapacity"] == 2


async def test_a_throttled_termination_is_retried(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    proxy.error(TERMINATE, "Throttling")
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
        assert (await target.describe()).desired == 2
    assert len(proxy.made(TERMINATE)) == 2


async def test_a_refused_termination_is_reported_with_the_actual_size(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    proxy.error(TERMINATE, "AccessDenied", "not authorized", 403)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
        status = await target.describe()
    assert status.desired == 3
    assert any("allow the action autoscaling:TerminateInstance" in remark for remark in status.remarks)


async def test_a_worker_that_does_not_finish_is_terminated_at_the_deadline(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(2)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters | {"drain": timedelta(seconds=0.3)}), engine) as target:
        await target.scale(1)
        await until(lambda: not target._leaving)
        status = await target.describe()
    assert status.desired == 1
    assert any("before it had finished: not gone within 0.3 s" in remark for remark in status.remarks)


async def test_an_engine_that_cannot_drain_does_not_keep_the_instance(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    _, engine = with_workers(proxy, group)
    engine.drain_failure = RefusedError("no endpoint")
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(1)
        await until(lambda: not target._leaving)
        assert any("workers are not drained: no endpoint" in remark for remark in (await target.describe()).remarks)
    assert proxy.moto.shown(group)["DesiredCapacity"] == 1


@pytest.mark.parametrize("case", ["no engine", "engine down", "other hosts", "no workers"])
async def test_if_the_workers_are_unknown_the_group_chooses(
    proxy: Proxy, parameters: dict[str, Any], case: str
) -> None:
    """A requested size must be reached all the same."""
    group = proxy.moto.group(3)
    engine = Engine({"10.99.99.99": 1.0})
    if case == "engine down":
        engine.failure = UnavailableError("the Master is gone")
    if case == "no workers":
        engine.costs.clear()  # as at a Master that was restarted, while its workers continue to work
    async with connected(AwsAsg(group=group, **parameters), None if case == "no engine" else engine) as target:
        await target.scale(2)
        status = await target.describe()
    assert status.desired == 2
    assert len(proxy.made("SetDesiredCapacity")) == 1
    assert any("without draining" in remark for remark in status.remarks)
    assert ("10.99.99.99" in " ".join(status.remarks)) == (case == "other hosts")


async def test_protected_instances_are_not_chosen(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    instances, engine = with_workers(proxy, group)
    engine.obedient = True
    cheapest, second, _ = instances
    proxy.moto.client("autoscaling").set_instance_protection(
        AutoScalingGroupName=group, InstanceIds=[cheapest], ProtectedFromScaleIn=True
    )
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
    assert [call.parameters["InstanceId"] for call in proxy.made(TERMINATE)] == [second]


async def test_an_instance_without_a_worker_is_removed_first(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    instances, engine = with_workers(proxy, group)
    idle = list(instances)[2]
    del engine.costs[instances[idle]]
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
    assert [call.parameters["InstanceId"] for call in proxy.made(TERMINATE)] == [idle]
    assert engine.drained == []


async def test_below_the_groups_minimum_nothing_is_drained(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3, minimum=2)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        with pytest.raises(RefusedError, match="below the minimum"):
            await target.scale(1)
    assert engine.drained == []


@pytest.mark.parametrize(("maximum", "set_to", "decremented"), [(10, "5", "true"), (4, "4", "false")])
async def test_a_larger_size_during_a_drain_is_reached_at_once_without_the_draining_workers(
    proxy: Proxy, parameters: dict[str, Any], maximum: int, set_to: str, decremented: str
) -> None:
    """A draining worker takes no more work: its instance cannot be one of the requested ones."""
    group = proxy.moto.group(3, maximum=maximum)
    instances, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: engine.drained)
        await target.scale(4)
        status = await target.describe()
        assert (status.desired, status.ready) == (4, int(set_to) - 1)
        await target.scale(4)
        engine.gone.update(engine.drained)
        await until(lambda: not target._leaving)
        status = await target.describe()
        assert (status.desired, status.ready) == (4, 4)
    assert proxy.made("SetDesiredCapacity")[0].parameters["DesiredCapacity"] == set_to
    assert [call.parameters["ShouldDecrementDesiredCapacity"] for call in proxy.made(TERMINATE)] == [decremented]
    assert proxy.moto.shown(group)["DesiredCapacity"] == 4
    assert next(iter(instances)) not in proxy.moto.instances(group)


async def test_a_partly_reverted_drain_never_leaves_fewer_than_requested(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(5)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: len(engine.drained) == 3)
        await target.scale(4)
        status = await target.describe()
        assert (status.desired, status.ready) == (4, 4)
        engine.gone.update(engine.drained)
        await until(lambda: not target._leaving)
        status = await target.describe()
        assert (status.desired, status.ready) == (4, 4)
    assert len(proxy.made(TERMINATE)) == 3


async def test_a_smaller_size_during_a_drain_drains_more(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(4)
    instances, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(3)
        await until(lambda: len(engine.drained) == 1)
        await target.scale(1)
        await until(lambda: len(engine.drained) == 3)
        assert (await target.describe()).desired == 1
        engine.gone.update(engine.drained)
        await until(lambda: not target._leaving)
    assert set(proxy.moto.instances(group)) == {list(instances)[3]}


async def test_a_larger_size_that_aws_refuses_is_not_shown(proxy: Proxy, parameters: dict[str, Any]) -> None:
    """Otherwise the decision would count on instances that were never requested."""
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: engine.drained)
        proxy.error("SetDesiredCapacity", "ValidationError", "above max value")
        with pytest.raises(RefusedError, match="above max value"):
            await target.scale(12)
        status = await target.describe()
        assert (status.desired, status.ready) == (3, 2)
        assert "1 being drained before they are terminated" in status.remarks
        engine.gone.update(engine.drained)
        await until(lambda: not target._leaving)
    assert proxy.moto.shown(group)["DesiredCapacity"] == 3


@pytest.mark.parametrize(("theirs", "shown"), [(6, 5), (2, 2), (1, 1)])
async def test_an_external_change_during_a_drain_is_read(
    proxy: Proxy, parameters: dict[str, Any], theirs: int, shown: int
) -> None:
    """Minus those that are still leaving, down to the requested size."""
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: engine.drained)
        assert (await target.describe()).desired == 2
        proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>3<", f"<DesiredCapacity>{theirs}<"))
        assert (await target.describe()).desired == shown


async def test_an_instance_that_dies_during_its_drain_is_not_counted_as_removed(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    """The group replaces it: the size that AWS shows is the actual one."""
    group = proxy.moto.group(3)
    instances, engine = with_workers(proxy, group)
    dead = Hooked(group, next(iter(instances)), completed=True)
    proxy.answer("DescribeInstanceRefreshes", f"<DescribeInstanceRefreshesResponse {NAMESPACE}/>")
    proxy.answer("DescribeScalingActivities", f"<DescribeScalingActivitiesResponse {NAMESPACE}/>")
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: engine.drained)
        proxy.rewrite(DESCRIBE, dead.rewrite)
        assert (await target.describe()).desired == 3
        engine.gone.update(engine.drained)
        await until(lambda: not target._leaving)
    assert not proxy.made(TERMINATE)


@pytest.mark.parametrize(("size", "set_to", "drained"), [(4, "4", 0), (3, "3", 0), (2, "3", 1)])
async def test_instances_that_were_never_launched_are_removed_before_working_ones(
    proxy: Proxy, parameters: dict[str, Any], size: int, set_to: str, drained: int
) -> None:
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    proxy.answer("DescribeScalingActivities", f"<DescribeScalingActivitiesResponse {NAMESPACE}/>")
    rule = proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>3<", "<DesiredCapacity>5<"))
    async with connected(AwsAsg(group=group, **parameters | {"echo": timedelta(seconds=30)}), engine) as target:
        assert (await target.describe()).desired == 5
        await target.scale(size)
        proxy.rules.remove(rule)
        assert [call.parameters["DesiredCapacity"] for call in proxy.made("SetDesiredCapacity")] == [set_to]
        assert (await target.describe()).desired == size
        if drained:
            await until(lambda: engine.drained)
    assert len(engine.drained) == drained


async def test_a_pending_instance_without_a_worker_is_removed_first(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3)
    instances, engine = with_workers(proxy, group)
    pending = list(instances)[2]
    del engine.costs[instances[pending]]

    def change(text: str) -> str:
        members = re.split("(?=<member>)", text)
        return "".join(m.replace(">InService<", ">Pending:Wait<") if pending in m else m for m in members)

    proxy.rewrite(DESCRIBE, change)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
    assert [call.parameters["InstanceId"] for call in proxy.made(TERMINATE)] == [pending]
    assert engine.drained == []


async def test_an_instance_is_terminated_once_however_stale_the_answers_are(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(4)
    instances, engine = with_workers(proxy, group)
    engine.obedient = True
    async with connected(AwsAsg(group=group, **parameters | {"echo": timedelta(seconds=30)}), engine) as target:
        proxy.echo(DESCRIBE, times=40)
        await target.scale(3)
        await until(lambda: not target._leaving)
        assert (await target.describe()).ready == 3
        await target.scale(2)
        await until(lambda: not target._leaving)
    assert [call.parameters["InstanceId"] for call in proxy.made(TERMINATE)] == list(instances)[:2]


async def test_closing_the_connection_ends_the_drain(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    _, engine = with_workers(proxy, group)
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        await target.scale(1)
        await until(lambda: engine.drained)
        tasks = list(target._leaving.values())
    assert all(task.cancelled() for task in tasks)
    # The next connection reads the actual state and decides the rest again.
    async with connected(AwsAsg(group=group, **parameters), engine) as target:
        assert (await target.describe()).desired == 2
    assert not proxy.made(TERMINATE)


async def test_a_defect_of_an_engine_is_reported(
    proxy: Proxy, parameters: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    group = proxy.moto.group(2)
    _, engine = with_workers(proxy, group)

    class Broken(Engine):
        async def drain(self, worker: Worker) -> None:
            raise ZeroDivisionError(worker.id)

    async with connected(AwsAsg(group=group, **parameters), Broken(engine.costs)) as target:
        await target.scale(1)
        await until(lambda: not target._leaving)
        status = await target.describe()
    assert status.desired == 2
    assert any("could not be removed" in remark for remark in status.remarks)
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("10.0.0.12", True),
        ("ip-10-0-0-12", True),
        ("I-0ABC.eu-central-1.compute.internal", True),
        ("[2001:db8::1]", True),
        ("10.0.0.1", False),
        ("i-0abcd.eu-central-1.compute.internal", False),
    ],
)
def test_a_worker_is_found_by_its_host(host: str, found: bool) -> None:
    names = frozenset({"i-0abc", "10.0.0.12", "ip-10-0-0-12", "2001:db8::1"})
    worker = Worker("w", frozenset({host}))
    assert (_on(names, [worker]) == [worker]) == found


def test_an_instance_is_found_by_all_its_names() -> None:
    names = names_of(
        {
            "InstanceId": "i-0abc",
            "PrivateIpAddress": "10.0.0.12",
            "PrivateDnsName": "ip-10-0-0-12.ec2.internal",
            "PublicDnsName": "",
            "NetworkInterfaces": [
                {
                    "PrivateIpAddresses": [{"PrivateIpAddress": "10.0.1.7"}],
                    "Ipv6Addresses": [{"Ipv6Address": "2001:db8::1"}],
                    "PrivateDnsName": "IP-10-0-1-7.ec2.internal",
                }
            ],
        }
    )
    assert names >= {"i-0abc", "10.0.0.12", "ip-10-0-0-12", "ip-10-0-0-12.ec2.internal", "10.0.1.7", "2001:db8::1"}
    assert "ip-10-0-1-7" in names
    assert "10" not in names


# ----------------------------------------------------------------------------------------------------------
# hook


@dataclass
class Hooked:
    """A group whose lifecycle hook keeps one instance waiting, which moto cannot do."""

    group: str
    instance: str
    completed: bool = False

    def rewrite(self, text: str) -> str:
        state = "Terminating:Proceed" if self.completed else "Terminating:Wait"
        members = re.split("(?=<member>)", text)
        return "".join(
            re.sub("<LifecycleState>[^<]*", f"<LifecycleState>{state}", member) if self.instance in member else member
            for member in members
        )


@pytest.fixture
def hooked(proxy: Proxy) -> Hooked:
    group = proxy.moto.group(2)
    proxy.moto.client("autoscaling").put_lifecycle_hook(
        AutoScalingGroupName=group,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=30,
        DefaultResult="CONTINUE",
    )
    found = Hooked(group, next(iter(proxy.moto.instances(group))))
    proxy.rewrite(DESCRIBE, found.rewrite)
    for action in ("DescribeInstanceRefreshes", "DescribeScalingActivities", "RecordLifecycleActionHeartbeat"):
        proxy.answer(action, f"<{action}Response {NAMESPACE}><{action}Result/></{action}Response>")

    async def complete(_: web.Request, __: Forward) -> web.Response:
        found.completed = True
        return web.Response(text=COMPLETED, content_type="text/xml")

    proxy.rule("CompleteLifecycleAction", complete, None)
    return found


COMPLETED = (
    f"<CompleteLifecycleActionResponse {NAMESPACE}><CompleteLifecycleActionResult/></CompleteLifecycleActionResponse>"
)


async def test_the_hook_is_completed_once_the_worker_has_gone(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked
) -> None:
    instances, engine = with_workers(proxy, hooked.group)
    async with connected(AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine) as target:
        status = await target.describe()
        assert status.ready == 1
        assert "1 terminating (1 wait for a lifecycle hook)" in status.remarks
        await until(lambda: engine.drained)
        assert engine.drained == [instances[hooked.instance]]
        await target.describe()
        assert not hooked.completed
        engine.gone.add(instances[hooked.instance])
        await until(lambda: hooked.completed)
        await target.describe()
        await until(lambda: not target._leaving)
        assert "1 terminating" in (await target.describe()).remarks
    (call,) = proxy.made("CompleteLifecycleAction")
    assert call.parameters | {"Version": ""} == {
        "LifecycleHookName": "drain",
        "AutoScalingGroupName": hooked.group,
        "InstanceId": hooked.instance,
        "LifecycleActionResult": "CONTINUE",
        "Version": "",
    }


async def test_with_a_hook_a_size_is_sent_directly_to_the_group(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked
) -> None:
    _, engine = with_workers(proxy, hooked.group)
    async with connected(AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine) as target:
        await target.scale(1)
        assert (await target.describe()).desired == 1
    assert len(proxy.made("SetDesiredCapacity")) == 1


async def test_a_long_drain_sends_heartbeats(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.targets.aws_asg.target.MAX_HEARTBEAT_INTERVAL", 0.2)
    instances, engine = with_workers(proxy, hooked.group)
    async with connected(AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine) as target:
        await target.describe()
        await until(lambda: len(proxy.made("RecordLifecycleActionHeartbeat")) >= 2)
        assert not hooked.completed
        engine.gone.add(instances[hooked.instance])
        await until(lambda: hooked.completed)
    assert proxy.made("RecordLifecycleActionHeartbeat")[0].parameters["LifecycleHookName"] == "drain"


async def test_a_restarted_daemon_sends_a_heartbeat_at_once(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked
) -> None:
    """It is unknown how much of the timeout is already over."""
    _, engine = with_workers(proxy, hooked.group)
    async with connected(AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine) as target:
        await target.describe()
        await until(lambda: proxy.made("RecordLifecycleActionHeartbeat"), 8)
    assert not hooked.completed


async def test_a_replaced_hook_is_found_again(proxy: Proxy, parameters: dict[str, Any], hooked: Hooked) -> None:
    _, engine = with_workers(proxy, hooked.group)
    engine.obedient = True
    proxy.error("CompleteLifecycleAction", "ValidationError", "No Lifecycle Hook found")
    proxy.rules.insert(0, proxy.rules.pop())
    async with connected(AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine) as target:
        await target.describe()
        await until(lambda: not target._leaving)
        autoscaling = proxy.moto.client("autoscaling")
        autoscaling.delete_lifecycle_hook(AutoScalingGroupName=hooked.group, LifecycleHookName="drain")
        autoscaling.put_lifecycle_hook(
            AutoScalingGroupName=hooked.group,
            LifecycleHookName="other",
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        )
        await target.describe()
        await until(lambda: hooked.completed)
    assert proxy.made("CompleteLifecycleAction")[-1].parameters["LifecycleHookName"] == "other"


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_dry_run_completes_no_hook(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    monkeypatch.setattr("autoscaler.targets.aws_asg.target.STARTUP_DELAY", 0.0)
    _, engine = with_workers(proxy, hooked.group)
    engine.obedient = True
    connections = Connections(dry_run=dry_run)
    plugin = AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK})
    connection = connections.lease(plugin)
    try:
        await connection.tried()
        target = connection.get()
        target.attach(lambda: engine)
        status = await target.describe()
        assert "1 terminating (1 wait for a lifecycle hook)" in status.remarks
        assert bool(target._leaving) != dry_run
    finally:
        await connections.close()
    if dry_run:
        assert not engine.drained
        assert not hooked.completed


@pytest.mark.parametrize("case", ["deadline", "no engine", "cannot drain"])
async def test_an_instance_is_released_all_the_same(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked, case: str
) -> None:
    _, engine = with_workers(proxy, hooked.group)
    changes: dict[str, Any] = {"scale_in": ScaleIn.HOOK}
    if case == "deadline":
        changes["drain"] = timedelta(seconds=0.3)
    if case == "cannot drain":
        engine.drain_failure = RefusedError("no endpoint")
    plugin = AwsAsg(group=hooked.group, **parameters | changes)
    async with connected(plugin, None if case == "no engine" else engine) as target:
        await target.describe()
        await until(lambda: hooked.completed)
        wanted = "before it had finished" if case == "deadline" else "workers are not drained"
        assert any(wanted in remark for remark in (await target.describe()).remarks)


async def test_a_short_connection_completes_nothing(proxy: Proxy, parameters: dict[str, Any], hooked: Hooked) -> None:
    _, engine = with_workers(proxy, hooked.group)
    engine.obedient = True
    async with connected(
        AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK}), engine, delay=60
    ) as target:
        await target.describe()
        assert not target._leaving
    assert not hooked.completed
    assert not engine.drained


async def test_the_next_daemon_finds_the_waiting_instance_again(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked
) -> None:
    instances, engine = with_workers(proxy, hooked.group)
    plugin = AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK})
    async with connected(plugin, engine) as target:
        await target.describe()
        await until(lambda: engine.drained)
    assert not hooked.completed
    engine.gone.add(instances[hooked.instance])
    async with connected(plugin, engine) as target:
        await target.describe()
        await until(lambda: hooked.completed)


async def test_a_failed_completion_is_reported_and_retried_at_the_next_poll(
    proxy: Proxy, parameters: dict[str, Any], hooked: Hooked
) -> None:
    _, engine = with_workers(proxy, hooked.group)
    engine.obedient = True
    proxy.error("CompleteLifecycleAction", "ValidationError", "No active Lifecycle Action found with instance ID")
    proxy.rules.insert(0, proxy.rules.pop())
    plugin = AwsAsg(group=hooked.group, **parameters | {"scale_in": ScaleIn.HOOK})
    async with connected(plugin, engine) as target:
        await target.describe()
        await until(lambda: not target._leaving)
        status = await target.describe()
        assert any("No active Lifecycle Action" in remark for remark in status.remarks)
        await until(lambda: hooked.completed)


@pytest.mark.parametrize(("hook", "names"), [("", ["a", "b"]), ("drain", ["other"]), ("", [])])
async def test_the_doctor_finds_a_hook_that_cannot_work(
    proxy: Proxy, parameters: dict[str, Any], hook: str, names: list[str]
) -> None:
    group = proxy.moto.group(1)
    for name in names:
        proxy.moto.client("autoscaling").put_lifecycle_hook(
            AutoScalingGroupName=group,
            LifecycleHookName=name,
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        )
    plugin = AwsAsg(group=group, **parameters | {"scale_in": ScaleIn.HOOK, "hook": hook})
    async with connected(plugin, None) as target:
        found = await target.diagnose()
    assert [finding.severity for finding in found] == [Severity.WARNING, Severity.ERROR]
    assert "lifecycle hooks" in found[1].problem
