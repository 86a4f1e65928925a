"""The policies in deploy/aws allow the calls of the target, and nothing else."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.ports import AnswerError, RefusedError
from autoscaler.sources.cloudwatch import CloudWatch, Query
from autoscaler.targets.aws_asg.target import AwsAsg, ScaleIn
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Moto, Proxy, until
from tests.targets.test_aws_scale_in import DESCRIBE, Hooked, connected, with_workers

pytest_plugins = ("tests.clients.aws_fixtures",)

POLICIES = Path(__file__).parents[2] / "deploy" / "aws"
NAMESPACE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'
NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)

# From the Service Authorization Reference: the actions that may be restricted to Auto Scaling groups.
RESTRICTABLE = {
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
}


def statements(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((POLICIES / name).read_text())["Statement"]
    return found


def allowed(*names: str) -> set[str]:
    return {action for name in names for statement in statements(name) for action in statement["Action"]}


def plugin(proxy: Proxy, group: str, **changes: Any) -> AwsAsg:
    return AwsAsg(
        group=group,
        region=REGION,
        endpoint_url=proxy.url,
        fresh=timedelta(0),
        echo=timedelta(seconds=0.2),
        timeout=timedelta(seconds=9),
        **changes,
    )


def unmodelled(proxy: Proxy) -> None:
    """Answers that moto does not give."""
    for action in (
        "CompleteLifecycleAction",
        "DescribeInstanceRefreshes",
        "DescribeScalingActivities",
        "RecordLifecycleActionHeartbeat",
    ):
        proxy.answer(action, f"<{action}Response {NAMESPACE}><{action}Result/></{action}Response>")


async def scale_by_group(proxy: Proxy, group: str) -> None:
    """All calls of `scale_in: group`, including those made only when instances start, stop or fail to launch."""
    async with connected(plugin(proxy, group), None) as target:
        proxy.rewrite(DESCRIBE, lambda text: text.replace(">InService<", ">Pending<", 1), times=1)
        await target.describe()
        target._groups._last_detail = float("-inf")
        changed = "<DesiredCapacity>9</DesiredCapacity>"
        proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>3</DesiredCapacity>", changed), times=1)
        await target.describe()
        await target.diagnose()
        await target.scale(4)
        assert (await target.describe()).desired == 4


async def scale_by_draining(proxy: Proxy, group: str) -> None:
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    async with connected(plugin(proxy, group, scale_in=ScaleIn.DRAIN), engine) as target:
        await target.scale(2)
        await until(lambda: not target._leaving)
        assert (await target.describe()).desired == 2


async def scale_by_hook(proxy: Proxy, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.targets.aws_asg.target.MAX_HEARTBEAT_INTERVAL", 0.1)
    proxy.moto.client("autoscaling").put_lifecycle_hook(
        AutoScalingGroupName=group,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )
    instances, engine = with_workers(proxy, group)
    hooked = Hooked(group, next(iter(instances)))
    rule = proxy.rewrite(DESCRIBE, hooked.rewrite)
    async with connected(plugin(proxy, group, scale_in=ScaleIn.HOOK), engine) as target:
        await target.describe()
        await until(lambda: proxy.made("RecordLifecycleActionHeartbeat"))
        engine.gone.update(engine.costs)
        await until(lambda: proxy.made("CompleteLifecycleAction"))
    proxy.rules.remove(rule)


async def read_metrics(proxy: Proxy) -> None:
    source = CloudWatch(region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=9))
    async with LocalShared() as shared, source.connect(shared) as live:
        with pytest.raises(AnswerError, match="no datapoint"):
            await live.collect(Query(metric="Lag", namespace=f"Test/{secrets.token_hex(4)}"), NOW)


async def test_the_calls_of_the_target_are_those_that_its_policy_allows(proxy: Proxy) -> None:
    unmodelled(proxy)
    await scale_by_group(proxy, proxy.moto.group(3))
    assert {call.permission for call in proxy.calls} == allowed("policy.json")


async def test_the_calls_of_draining_are_those_that_its_policy_adds(proxy: Proxy) -> None:
    unmodelled(proxy)
    await scale_by_draining(proxy, proxy.moto.group(3))
    made = {call.permission for call in proxy.calls}
    assert made - allowed("policy.json") == allowed("policy-drain.json")


async def test_the_calls_of_the_hook_are_those_that_its_policy_adds(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmodelled(proxy)
    await scale_by_hook(proxy, proxy.moto.group(3), monkeypatch)
    made = {call.permission for call in proxy.calls}
    assert made - allowed("policy.json") == allowed("policy-hook.json")


async def test_the_calls_of_cloudwatch_are_those_that_its_policy_allows(proxy: Proxy) -> None:
    await read_metrics(proxy)
    assert {call.permission for call in proxy.calls} == allowed("policy-cloudwatch.json")


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.json")), ids=lambda path: path.name)
def test_changes_are_allowed_on_tagged_groups_only(path: Path) -> None:
    for statement in statements(path.name):
        assert statement["Effect"] == "Allow"
        assert "*" not in "".join(statement["Action"])
        if set(statement["Action"]) & RESTRICTABLE:
            assert set(statement["Action"]) <= RESTRICTABLE
            assert statement["Resource"].startswith("arn:aws:autoscaling:")
            assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/autoscaler": "managed"}}
        else:
            # AWS has no resource for these.
            assert statement["Resource"] == "*"
            assert all(":Describe" in action or ":Get" in action for action in statement["Action"])


@contextmanager
def enforced(moto: Moto, monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Be a user with these policies, and make moto enforce them.

    Moto checks actions, but not resources and conditions, so those are removed; the test above checks them.
    """
    iam = moto.client("iam")
    user = f"user-{secrets.token_hex(4)}"
    iam.create_user(UserName=user)
    for name in names:
        loose = [{**statement, "Resource": "*"} for statement in statements(name)]
        for statement in loose:
            statement.pop("Condition", None)
        # Moto identifies the service by the name in its address, AWS by its prefix.
        document = json.dumps({"Version": "2012-10-17", "Statement": loose}).replace("cloudwatch:", "monitoring:")
        iam.put_user_policy(UserName=user, PolicyName=name.removesuffix(".json"), PolicyDocument=document)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    moto.post("/moto-api/reset-auth", "0")
    try:
        yield
    finally:
        moto.post("/moto-api/reset-auth", "inf")


async def test_the_policies_are_sufficient_when_they_are_enforced(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = proxy.moto.group(3)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    proxy.answer("DescribeInstanceRefreshes", f"<DescribeInstanceRefreshesResponse {NAMESPACE}/>")
    with enforced(proxy.moto, monkeypatch, "policy.json", "policy-drain.json", "policy-cloudwatch.json"):
        async with connected(plugin(proxy, group, scale_in=ScaleIn.DRAIN), engine) as target:
            await target.scale(4)
            assert (await target.describe()).desired == 4
            await target.scale(3)
            await until(lambda: not target._leaving)
            status = await target.describe()
            assert (status.desired, status.remarks) == (3, ())
            assert not await target.diagnose()
        await read_metrics(proxy)


@pytest.mark.parametrize("missing", ["policy.json", "policy-drain.json"])
async def test_a_denied_call_names_the_missing_permission(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    group = proxy.moto.group(2)
    _, engine = with_workers(proxy, group)
    engine.obedient = True
    given = {"policy.json", "policy-drain.json"} - {missing}
    with enforced(proxy.moto, monkeypatch, *given):
        async with connected(plugin(proxy, group, scale_in=ScaleIn.DRAIN), engine) as target:
            if missing == "policy.json":
                with pytest.raises(RefusedError, match="allow the action autoscaling:DescribeAutoScalingGroups"):
                    await target.describe()
                return
            await target.scale(1)
            status = await target.describe()
    assert status.desired == 1
    assert any("allow the action ec2:DescribeInstances" in remark for remark in status.remarks)
