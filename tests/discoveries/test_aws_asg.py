"""The discovery `aws-asg` against moto."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.discoveries.aws_asg import AwsAsg
from autoscaler.ports import AnswerError, Discovery, EdgeTimeoutError, Member, RefusedError, UnavailableError
from autoscaler.testing import LocalShared
from tests.clients.aws_server import REGION, Proxy

pytest_plugins = ("tests.clients.aws_fixtures",)

ROOT = Path(__file__).parents[2]
DESCRIBE = "DescribeAutoScalingGroups"
HTML = "<script>alert('${API_TOKEN}')</script>"
GROUP = """<member><AutoScalingGroupName>{name}</AutoScalingGroupName>
<AutoScalingGroupARN>arn:aws:{name}</AutoScalingGroupARN><Status>{status}</Status></member>"""
ANSWER = """<DescribeAutoScalingGroupsResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
<DescribeAutoScalingGroupsResult><AutoScalingGroups>{groups}</AutoScalingGroups>{more}</DescribeAutoScalingGroupsResult>
</DescribeAutoScalingGroupsResponse>"""


@pytest.fixture
def fleet() -> str:
    return f"fleet-{secrets.token_hex(4)}"


def plugin(proxy: Proxy, fleet: str, **more: Any) -> AwsAsg:
    settings = {"tags": {"autoscale": fleet}, "timeout": timedelta(seconds=9), **more}
    return AwsAsg(region=REGION, endpoint_url=proxy.url, **settings)


@asynccontextmanager
async def connected(plugin: AwsAsg) -> AsyncIterator[Discovery]:
    async with LocalShared() as shared, plugin.connect(shared) as discovery:
        yield discovery


async def found(plugin: AwsAsg) -> Sequence[Member]:
    async with connected(plugin) as discovery:
        return await discovery.members()


async def test_members_are_the_groups_with_all_tags(proxy: Proxy, fleet: str) -> None:
    group, other, foreign = (proxy.moto.group() for _ in range(3))
    proxy.moto.tag(group, autoscale=fleet, team="a", note=HTML)
    proxy.moto.tag(other, autoscale=fleet, team="b")
    proxy.moto.tag(foreign, autoscale="no", team="a")
    members = await found(plugin(proxy, fleet))
    assert [member.id for member in members] == sorted([group, other])
    [member] = await found(plugin(proxy, fleet, tags={"team": "a", "autoscale": fleet}))
    arn = proxy.moto.shown(group)["AutoScalingGroupARN"]
    assert member.id == group
    assert member.values == {"name": group, "arn": arn, "tags": {"autoscale": fleet, "team": "a", "note": HTML}}


async def test_members_join_and_leave(proxy: Proxy, fleet: str) -> None:
    group = proxy.moto.group()
    async with connected(plugin(proxy, fleet)) as discovery:
        assert await discovery.members() == []
        proxy.moto.tag(group, autoscale=fleet)
        assert [member.id for member in await discovery.members()] == [group]
        proxy.moto.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=group, ForceDelete=True)
        assert await discovery.members() == []


async def test_groups_are_requested_a_hundred_at_a_time_and_without_their_instances(proxy: Proxy, fleet: str) -> None:
    await found(plugin(proxy, fleet))
    [call] = proxy.calls
    policy = json.loads((ROOT / "deploy" / "aws" / "policy.json").read_text())
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert call.permission == "autoscaling:DescribeAutoScalingGroups"
    assert call.permission in allowed
    assert {key: call.parameters[key] for key in ("IncludeInstances", "MaxRecords")} == {
        "IncludeInstances": "false",
        "MaxRecords": "100",
    }


async def test_either_all_pages_are_read_or_none(proxy: Proxy, fleet: str) -> None:
    first = ANSWER.format(groups=GROUP.format(name="b", status=""), more="<NextToken>t</NextToken>")
    last = ANSWER.format(groups=GROUP.format(name="a", status=""), more="")
    proxy.answer(DESCRIBE, first, times=1)
    proxy.answer(DESCRIBE, last, times=1)
    assert [member.id for member in await found(plugin(proxy, fleet))] == ["a", "b"]
    proxy.answer(DESCRIBE, first, times=1)
    proxy.error(DESCRIBE, "ValidationError", "the token has expired")
    with pytest.raises(RefusedError, match="the token has expired"):
        await found(plugin(proxy, fleet))


async def test_a_group_that_is_being_deleted_is_not_a_member(proxy: Proxy, fleet: str) -> None:
    groups = GROUP.format(name="a", status="Delete in progress") + GROUP.format(name="b", status="")
    proxy.answer(DESCRIBE, ANSWER.format(groups=groups, more=""))
    assert [member.id for member in await found(plugin(proxy, fleet))] == ["b"]


async def test_ten_thousand_groups_are_read(proxy: Proxy, fleet: str) -> None:
    for page in range(100):
        groups = "".join(GROUP.format(name=f"group-{page:02}-{number:02}", status="") for number in range(100))
        token = f"<NextToken>{page}</NextToken>" if page < 99 else ""
        proxy.answer(DESCRIBE, ANSWER.format(groups=groups, more=token), times=1)
    assert len(await found(plugin(proxy, fleet))) == 10_000


async def test_a_missing_permission_is_named(proxy: Proxy, fleet: str) -> None:
    proxy.error(DESCRIBE, "AccessDenied", "no identity-based policy allows it", status=403)
    with pytest.raises(RefusedError, match=r"allow the action autoscaling:DescribeAutoScalingGroups on \*"):
        await found(plugin(proxy, fleet))


@pytest.mark.parametrize("body", ["<html>welcome to the proxy</html>", "<html", ""], ids=["html", "cut", "empty"])
async def test_an_answer_that_is_not_awss_is_an_error(proxy: Proxy, fleet: str, body: str) -> None:
    proxy.answer(DESCRIBE, body)
    with pytest.raises(AnswerError, match=DESCRIBE):
        await found(plugin(proxy, fleet))


async def test_a_group_without_a_name_is_an_error(proxy: Proxy, fleet: str) -> None:
    proxy.answer(DESCRIBE, ANSWER.format(groups="<member><Status></Status></member>", more=""))
    with pytest.raises(AnswerError, match="a group that cannot be read: KeyError"):
        await found(plugin(proxy, fleet))


async def test_throttling_lost_connections_and_silence_are_retryable(proxy: Proxy, fleet: str) -> None:
    proxy.error(DESCRIBE, "Throttling", "rate exceeded", times=None)
    with pytest.raises(UnavailableError, match=r"rate exceeded.*throttled"):
        await found(plugin(proxy, fleet))
    proxy.rules.clear()
    proxy.drop(DESCRIBE, times=None)
    with pytest.raises(UnavailableError, match=DESCRIBE):
        await found(plugin(proxy, fleet))
    proxy.rules.clear()
    proxy.stall(DESCRIBE, 5.0, times=None)
    with pytest.raises(EdgeTimeoutError, match=DESCRIBE):
        await found(plugin(proxy, fleet, timeout=timedelta(seconds=1)))


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"tags": {}}, "tags: must have one tag or more"),
        ({"region": "nowhere"}, "region: must be the name of an AWS region"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0s"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AwsAsg(**{"region": REGION, "tags": {"a": "b"}, **parameters})
