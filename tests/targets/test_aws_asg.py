"""The target `aws-asg` against moto over HTTP, with a proxy in between that answers as AWS may."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import botocore.session
import pytest
from aiohttp import web

from autoscaler.clients import aws
from autoscaler.clients.aws import Place, shared_aws
from autoscaler.config import load
from autoscaler.core.model import (
    Behaviour,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Reason,
    Recommendation,
    View,
)
from autoscaler.core.step import step
from autoscaler.daemon.controller import splay
from autoscaler.ports import (
    AnswerError,
    ConfigurationError,
    Doctor,
    EdgeError,
    EdgeTimeoutError,
    PicksWorkers,
    PluginError,
    RefusedError,
    Severity,
    TargetStatus,
    UnavailableError,
)
from autoscaler.sources.cloudwatch import CloudWatch, Query
from autoscaler.targets.aws_asg import groups
from autoscaler.targets.aws_asg.groups import Group, Instance, shared_groups
from autoscaler.targets.aws_asg.target import AcceptedSize, AwsAsg, Target, progress
from autoscaler.testing import virtual_time
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Forward, Proxy, failure, until

pytest_plugins = ("tests.clients.aws_fixtures",)

DESCRIBE = "DescribeAutoScalingGroups"
LONG = timedelta(seconds=9)
NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)


@asynccontextmanager
async def connected(plugin: AwsAsg) -> AsyncIterator[Target]:
    async with LocalShared() as shared, plugin.connect(shared) as target:
        assert isinstance(target, Target)
        yield target


@pytest.fixture
def parameters(proxy: Proxy) -> dict[str, Any]:
    """Every read sends its own request, unless a test configures it."""
    return {"region": REGION, "endpoint_url": proxy.url, "fresh": timedelta(0), "timeout": LONG}


async def described(plugin: AwsAsg) -> TargetStatus:
    async with connected(plugin) as target:
        return await target.describe()


def state(instance: int, value: str) -> Callable[[str], str]:
    """Rewrites the lifecycle state of one instance."""

    def change(text: str) -> str:
        count = -1

        def one(found: re.Match[str]) -> str:
            nonlocal count
            count += 1
            return f"<LifecycleState>{value}</LifecycleState>" if count == instance else found[0]

        return re.sub("<LifecycleState>[^<]*</LifecycleState>", one, text)

    return change


# ----------------------------------------------------------------------------------------------------------
# status


async def test_it_counts_instances_in_service(proxy: Proxy, parameters: dict[str, Any]) -> None:
    status = await described(AwsAsg(group=proxy.moto.group(3, minimum=1, maximum=7), **parameters))
    assert (status.desired, status.ready, status.remarks) == (3, 3, ())
    assert status.floor is not None
    assert status.ceiling is not None
    assert (status.floor.replicas, status.ceiling.replicas) == (1, 7)
    assert "own minimum" in status.floor.reason


@pytest.mark.parametrize(
    ("shown", "remark"),
    [
        ("Pending", "1 of 3 instances are pending"),
        ("Pending:Wait", "1 of 3 instances are pending (1 wait for a lifecycle hook)"),
        ("Terminating:Wait", "1 terminating (1 wait for a lifecycle hook)"),
        ("Terminating:Proceed", "1 terminating"),
        ("Standby", "1 in standby"),
        ("EnteringStandby", "1 in standby"),
        ("Detaching", "1 detaching"),
        ("Quarantined", "1 quarantined"),
        ("ReplacingRootVolume:Wait", "1 getting a new root volume"),
        ("Warmed:Stopped", ""),
        ("Warmed:Pending:Wait", ""),
        ("Terminated", ""),
    ],
)
async def test_only_instances_in_service_are_ready(
    proxy: Proxy, parameters: dict[str, Any], shown: str, remark: str
) -> None:
    proxy.rewrite(DESCRIBE, state(1, shown))
    proxy.answer("DescribeInstanceRefreshes", REFRESHES.format(""))
    proxy.answer("DescribeScalingActivities", ACTIVITIES.format(""))
    status = await described(AwsAsg(group=proxy.moto.group(3), **parameters))
    assert (status.desired, status.ready) == (3, 2)
    assert status.remarks == ((remark,) if remark else ())


async def test_an_unhealthy_instance_is_not_ready(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    first = next(iter(proxy.moto.instances(group)))
    proxy.moto.client("autoscaling").set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    status = await described(AwsAsg(group=group, **parameters))
    assert status.ready == 1
    assert status.remarks == ("1 in service are unhealthy and about to be replaced",)


async def test_a_warm_pool_does_not_count(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.moto.client("autoscaling").put_warm_pool(AutoScalingGroupName=group, MinSize=3)
    status = await described(AwsAsg(group=group, **parameters))
    assert (status.desired, status.ready) == (2, 2)


@pytest.mark.parametrize(
    ("process", "floor", "ceiling"),
    [("Launch", 0, 3), ("Terminate", 3, 10), ("AZRebalance", 0, 10), ("ReplaceUnhealthy", 0, 10)],
)
async def test_a_suspended_process_is_a_bound(
    proxy: Proxy, parameters: dict[str, Any], process: str, floor: int, ceiling: int
) -> None:
    group = proxy.moto.group(3)
    proxy.moto.client("autoscaling").suspend_processes(AutoScalingGroupName=group, ScalingProcesses=[process])
    status = await described(AwsAsg(group=group, **parameters))
    assert status.floor is not None
    assert status.ceiling is not None
    assert (status.floor.replicas, status.ceiling.replicas) == (floor, ceiling)
    reasons = f"{status.floor.reason} {status.ceiling.reason}"
    assert (f"process {process} is suspended" in reasons) == (process in {"Launch", "Terminate"})


async def test_protected_instances_are_a_floor(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(3, minimum=1)
    proxy.moto.client("autoscaling").set_instance_protection(
        AutoScalingGroupName=group, InstanceIds=list(proxy.moto.instances(group))[:2], ProtectedFromScaleIn=True
    )
    status = await described(AwsAsg(group=group, **parameters))
    assert status.floor is not None
    assert (status.floor.replicas, status.floor.reason) == (2, "2 instances are protected from scale-in")


NAMESPACE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'
REFRESHES = (
    f"<DescribeInstanceRefreshesResponse {NAMESPACE}><DescribeInstanceRefreshesResult><InstanceRefreshes>{{}}"
    "</InstanceRefreshes></DescribeInstanceRefreshesResult></DescribeInstanceRefreshesResponse>"
)
REFRESH = (
    "<member><InstanceRefreshId>08b91cf7</InstanceRefreshId><AutoScalingGroupName>g</AutoScalingGroupName>"
    "<Status>{}</Status><PercentageComplete>40</PercentageComplete><StartTime>2026-11-21T00:00:00Z</StartTime></member>"
)
ACTIVITIES = (
    f"<DescribeScalingActivitiesResponse {NAMESPACE}><DescribeScalingActivitiesResult><Activities>{{}}</Activities>"
    "</DescribeScalingActivitiesResult></DescribeScalingActivitiesResponse>"
)
ACTIVITY = (
    "<member><ActivityId>a</ActivityId><AutoScalingGroupName>g</AutoScalingGroupName><Cause>c</Cause>"
    "<StartTime>2026-11-21T00:00:00Z</StartTime><StatusCode>{}</StatusCode>"
    "<StatusMessage>We currently do not have sufficient m5.large capacity</StatusMessage></member>"
)


@pytest.mark.parametrize(
    ("status", "holds"), [("InProgress", True), ("Cancelling", True), ("Successful", False), ("Baking", False)]
)
async def test_an_instance_refresh_in_progress_holds_the_size(
    proxy: Proxy, parameters: dict[str, Any], status: str, holds: bool
) -> None:
    proxy.rewrite(DESCRIBE, state(0, "Terminating"))
    proxy.answer("DescribeInstanceRefreshes", REFRESHES.format(REFRESH.format(status)))
    proxy.answer("DescribeScalingActivities", ACTIVITIES.format(""))
    seen = await described(AwsAsg(group=proxy.moto.group(3), **parameters))
    assert seen.floor is not None
    assert seen.ceiling is not None
    assert ((seen.floor.replicas, seen.ceiling.replicas) == (3, 3)) == holds
    assert ("the instance refresh 08b91cf7 is under way (InProgress)" in seen.remarks) == (status == "InProgress")


async def test_refreshes_are_not_requested_for_a_settled_group(proxy: Proxy, parameters: dict[str, Any]) -> None:
    async with connected(AwsAsg(group=proxy.moto.group(3), **parameters)) as target:
        for _ in range(3):
            await target.describe()
    assert not proxy.made("DescribeInstanceRefreshes")


async def test_refreshes_are_requested_at_intervals_for_an_unsettled_group(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    proxy.rewrite(DESCRIBE, state(0, "Pending"))
    proxy.answer("DescribeInstanceRefreshes", REFRESHES.format(""))
    async with connected(AwsAsg(group=proxy.moto.group(3), **parameters)) as target:
        for _ in range(5):
            await target.describe()
    assert len(proxy.made("DescribeInstanceRefreshes")) == 1


async def test_the_reason_for_a_failed_launch_is_a_remark(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>2<", "<DesiredCapacity>4<"))
    proxy.answer("DescribeScalingActivities", ACTIVITIES.format(ACTIVITY.format("Failed")))
    status = await described(AwsAsg(group=group, **parameters))
    assert "the last launch failed: We currently do not have sufficient m5.large capacity" in status.remarks


async def test_a_missing_read_permission_does_not_stop_scaling(
    proxy: Proxy, parameters: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    proxy.rewrite(DESCRIBE, state(0, "Pending"))
    proxy.error("DescribeInstanceRefreshes", "AccessDenied", times=None)
    proxy.error("DescribePolicies", "AccessDenied", times=None)
    async with connected(AwsAsg(group=proxy.moto.group(3), **parameters)) as target:
        assert (await target.describe()).desired == 3
        findings = await target.diagnose()
    assert "some details of the group cannot be read" in findings[-1].problem
    assert "autoscaling:Describe" in findings[-1].problem
    assert any(record.name == "autoscaler.targets" for record in caplog.records)


# ----------------------------------------------------------------------------------------------------------
# groups that cannot be scaled


async def test_an_unknown_group_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=r"no Auto Scaling group 'missing' in us-east-1"):
        await described(AwsAsg(group="missing", **parameters))


async def test_a_group_that_is_being_deleted_is_refused(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.rewrite(DESCRIBE, lambda text: text.replace("<MinSize>", "<Status>Delete in progress</Status><MinSize>"))
    with pytest.raises(RefusedError, match="is being deleted"):
        await described(AwsAsg(group=proxy.moto.group(), **parameters))


WEIGHTS = "<MixedInstancesPolicy><LaunchTemplate><Overrides>{}</Overrides></LaunchTemplate></MixedInstancesPolicy>"


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<DesiredCapacityType>vcpu</DesiredCapacityType>", "counted in vcpu"),
        ("<DesiredCapacityType>units</DesiredCapacityType>", ""),
        (
            WEIGHTS.format(
                "<member><InstanceType>m5.large</InstanceType><WeightedCapacity>2</WeightedCapacity></member>"
                "<member><InstanceType>m5.xlarge</InstanceType><WeightedCapacity>4</WeightedCapacity></member>"
            ),
            r"weights \(2, 4\)",
        ),
        (
            WEIGHTS.format(
                "<member><InstanceType>m5.large</InstanceType><WeightedCapacity>1</WeightedCapacity></member>"
                "<member><InstanceType>m5.xlarge</InstanceType></member>"
            ),
            "",
        ),
    ],
)
async def test_weighted_capacity_is_refused(
    proxy: Proxy, parameters: dict[str, Any], inside: str, message: str
) -> None:
    proxy.rewrite(DESCRIBE, lambda text: text.replace("<MinSize>", f"{inside}<MinSize>"))
    plugin = AwsAsg(group=proxy.moto.group(), **parameters)
    if not message:
        assert (await described(plugin)).desired == 2
        return
    with pytest.raises(RefusedError, match=message):
        await described(plugin)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": ""}, "group"),
        ({"region": "europe"}, "eu-central-1"),
        ({"region": "eu-cental-1"}, "did you mean 'eu-central-1'"),
        ({"region": "eu-central-9"}, "is not a region of AWS that botocore "),
        ({"role": "admin"}, "ARN"),
        ({"profile": ""}, "profile"),
        ({"endpoint_url": "localhost"}, "endpoint_url"),
        ({"endpoint_url": "http://user:secret@host"}, "password"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"fresh": timedelta(seconds=-1)}, "fresh"),
        ({"drain": timedelta(0)}, "drain"),
        ({"hook": "name"}, "scale_in: hook"),
        ({"scale_in": "gently"}, "gently"),
    ],
)
def test_invalid_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(AwsAsg(group="group", region=REGION), **changes)


@pytest.mark.parametrize("region", ["cn-northwest-1", "us-gov-west-1", "us-iso-east-1", "eusc-de-east-1", "us-east-1"])
def test_regions_of_every_partition_are_accepted(region: str) -> None:
    assert AwsAsg(group="group", region=region).place.region == region


def test_regions_are_not_checked_with_another_endpoint_or_without_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AwsAsg(group="group", region="eu-mars-1", endpoint_url="http://127.0.0.1:4566").place.region
    for cached in (aws.known_regions, aws._loader):
        monkeypatch.setattr(aws, cached.__name__, cache(cached.__wrapped__))
    monkeypatch.setitem(sys.modules, "botocore.loaders", None)
    assert AwsAsg(group="group", region="eu-mars-1").place.region


@pytest.mark.parametrize(("other", "same"), [("fresh: 9s", True), ("scale_in: drain", True), ("profile: two", False)])
def test_two_clusters_may_not_scale_one_group(tmp_path: Path, other: str, same: bool) -> None:
    """Whatever their other parameters are."""
    file = tmp_path / "autoscaler.yaml"
    lines = ["clusters:"]
    for name, rest in (("a", "timeout: 4s"), ("b", other)):
        lines += [
            f"  {name}:",
            f"    target: {{type: aws-asg, group: g, region: us-east-1, {rest}}}",
            "    max: 4",
            "    metrics: {cpu: {source: cw, metric: CPU, namespace: N}}",
            "    max_age: 5m",
            "    policies: {p: {type: target-tracking, metric: cpu, target: 1}}",
        ]
    file.write_text("\n".join(["sources: {cw: {type: cloudwatch, region: us-east-1}}", *lines]))
    if same:
        with pytest.raises(ConfigurationError, match="has the same target"):
            load(file, {})
    else:
        assert len(load(file, {}).clusters) == 2


# ----------------------------------------------------------------------------------------------------------
# requests for a size


async def test_the_requested_size_is_the_desired_capacity(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        await target.scale(5)
        assert (await target.describe()).desired == 5
    assert proxy.moto.shown(group)["DesiredCapacity"] == 5
    call = proxy.made("SetDesiredCapacity")[0]
    assert call.parameters["HonorCooldown"] == "false"


async def test_a_size_outside_the_groups_limits_is_refused(proxy: Proxy, parameters: dict[str, Any]) -> None:
    message = "New SetDesiredCapacity value 12 is above max value 10 for the AutoScalingGroup."
    proxy.error("SetDesiredCapacity", "ValidationError", message)
    async with connected(AwsAsg(group=proxy.moto.group(2), **parameters)) as target:
        with pytest.raises(RefusedError, match="above max value 10"):
            await target.scale(12)
    assert len(proxy.made("SetDesiredCapacity")) == 1


async def test_a_missing_permission_is_named_with_its_resource(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.error("SetDesiredCapacity", "AccessDenied", "User is not authorized", 403)
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        await target.describe()
        with pytest.raises(RefusedError) as caught:
            await target.scale(3)
    assert "allow the action autoscaling:SetDesiredCapacity on arn:aws:autoscaling:us-east-1:" in str(caught.value)
    assert group in str(caught.value)


async def test_an_html_page_of_a_proxy_is_reported_with_its_status(proxy: Proxy, parameters: dict[str, Any]) -> None:
    async def forbid(_: web.Request, __: Forward) -> web.Response:
        return web.Response(status=403, text="<html>not from here</html>", content_type="text/html")

    proxy.rule(DESCRIBE, forbid, times=None)
    with pytest.raises(RefusedError, match=f"{DESCRIBE}: HTTP 403: no message"):
        await described(AwsAsg(group="group", **parameters))


@pytest.mark.parametrize(("code", "status"), [("InvalidClientTokenId", 403), ("ExpiredToken", 400)])
async def test_invalid_credentials_are_refused(
    proxy: Proxy, parameters: dict[str, Any], code: str, status: int
) -> None:
    proxy.error(DESCRIBE, code, status=status, times=None)
    with pytest.raises(RefusedError, match=f"{code}.*check the credentials"):
        await described(AwsAsg(group="group", **parameters))


async def test_expired_credentials_are_read_again(
    proxy: Proxy, parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most once a minute: a thousand groups of an account whose key was deleted must not all read files again."""
    passed = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(aws, "time", clock)
    monkeypatch.setattr(groups, "ERROR_REUSE", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def write(key: str) -> None:
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n"
        (tmp_path / "aws-credentials").write_text(text)

    async def spoil(request: web.Request, forward: Forward) -> web.Response:
        expired = proxy.calls[-1].key != valid
        return failure(request, "ExpiredToken", "expired", 400) if expired else await forward()

    async def refused(key: str) -> None:
        with pytest.raises(RefusedError, match="ExpiredToken"):
            await target.describe()
        assert proxy.made(DESCRIBE)[-1].key == key

    write("FIRST")
    valid = "FIRST"
    proxy.rule(DESCRIBE, spoil, times=None)
    async with connected(AwsAsg(group=proxy.moto.group(2), **parameters)) as target:
        assert (await target.describe()).desired == 2
        write("SECOND")
        valid = "THIRD"
        passed = 60.0
        await refused("FIRST")  # makes the next call read them again
        await refused("SECOND")
        write("THIRD")
        passed = 119.0
        await refused("SECOND")  # 59 s after they were read
        await refused("SECOND")
        passed = 121.0
        await refused("SECOND")
        assert (await target.describe()).desired == 2


async def test_credentials_that_become_available_after_the_start_are_found(
    proxy: Proxy, parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example those of a machine whose metadata service did not answer yet when the daemon started."""
    passed = 0.0
    monkeypatch.setattr(aws, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(groups, "ERROR_REUSE", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    async with connected(AwsAsg(group=proxy.moto.group(2), **parameters)) as target:
        with pytest.raises(RefusedError, match="no credentials: Unable to locate credentials"):
            await target.describe()
        passed = 61.0
        with pytest.raises(RefusedError, match="no credentials: Unable to locate credentials"):
            await target.describe()
        (tmp_path / "aws-credentials").write_text("[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
        assert (await target.describe()).desired == 2


# ----------------------------------------------------------------------------------------------------------
# transport faults


async def test_a_temporary_error_is_retried(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.error(DESCRIBE, "Throttling")
    proxy.error("SetDesiredCapacity", "ServiceUnavailable", status=503)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        assert (await target.describe()).desired == 2
        await target.scale(3)
    assert proxy.moto.shown(group)["DesiredCapacity"] == 3


@pytest.mark.e2e
async def test_lasting_throttling_is_unavailable_after_a_few_attempts(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.error(DESCRIBE, "RequestLimitExceeded", "Rate exceeded", times=None)
    with pytest.raises(UnavailableError, match="throttled"):
        await described(AwsAsg(group="group", **parameters))
    assert len(proxy.made(DESCRIBE)) == 3


@pytest.mark.parametrize("code", ["ScalingActivityInProgress", "ResourceContention"])
async def test_a_busy_group_is_unavailable(proxy: Proxy, parameters: dict[str, Any], code: str) -> None:
    status = 400 if code == "ScalingActivityInProgress" else 500
    proxy.error("SetDesiredCapacity", code, status=status, times=None)
    async with connected(AwsAsg(group=proxy.moto.group(2), **parameters)) as target:
        with pytest.raises(UnavailableError, match=code):
            await target.scale(3)


async def test_a_server_that_does_not_answer_times_out(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.stall(DESCRIBE, 30, times=None)
    loop = asyncio.get_running_loop()
    async with connected(AwsAsg(group="group", **parameters | {"timeout": timedelta(seconds=1)})) as target:
        begun = loop.time()
        with pytest.raises(EdgeTimeoutError, match=r"DescribeAutoScalingGroups"):
            await target.describe()
        assert loop.time() - begun < 8


@pytest.mark.e2e
async def test_nothing_is_sent_after_the_timeout(proxy: Proxy, parameters: dict[str, Any]) -> None:
    """Otherwise an old request might set its size at some later time."""
    proxy.stall("SetDesiredCapacity", 30, times=None)
    async with connected(AwsAsg(group="group", **parameters | {"timeout": timedelta(seconds=0.5)})) as target:
        with pytest.raises(EdgeTimeoutError):
            await target.scale(3)
        made = len(proxy.made("SetDesiredCapacity"))
        await asyncio.sleep(1.5)
        assert len(proxy.made("SetDesiredCapacity")) == made <= 3


async def test_a_service_that_hangs_does_not_delay_another(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.stall("GetMetricData", 30, times=None)
    queries = [Query(expression=f"SELECT MAX({name}) FROM N") for name in "abcdefgh"]  # noqa: S608 - not a database
    source = CloudWatch(region=REGION, endpoint_url=proxy.url, timeout=LONG)
    async with LocalShared() as shared, AwsAsg(group=group, **parameters).connect(shared) as target:
        async with source.connect(shared) as live:
            asking = [asyncio.create_task(live.collect(query, NOW)) for query in queries]
            await until(lambda: len(proxy.made("GetMetricData")) == 4)
            status = asyncio.create_task(target.describe())
            await asyncio.wait((status, *asking), return_when=asyncio.FIRST_COMPLETED)
            assert status.done()
            assert (await status).desired == 2
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_connection_cut_before_the_request_arrived_is_retried(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.drop("SetDesiredCapacity")
    async with connected(AwsAsg(group=group, **parameters)) as target:
        await target.scale(3)
        assert (await target.describe()).desired == 3


async def test_a_size_that_was_set_is_read_although_the_answer_was_lost(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(2)
    proxy.drop("SetDesiredCapacity", after=True, times=None)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        assert (await target.describe()).desired == 2
        with pytest.raises(UnavailableError, match="no connection, or it was closed"):
            await target.scale(3)
        assert (await target.describe()).desired == 3


@pytest.mark.parametrize("body", ["<html>Sign in</html>", "", "{}", "<a>"])
async def test_an_answer_that_is_not_awss_is_an_error(proxy: Proxy, parameters: dict[str, Any], body: str) -> None:
    proxy.answer(DESCRIBE, body)
    with pytest.raises(EdgeError):
        await described(AwsAsg(group="group", **parameters))


async def test_a_group_without_its_sizes_is_an_error(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.rewrite(DESCRIBE, lambda text: re.sub("<DesiredCapacity>.*</DesiredCapacity>", "", text))
    with pytest.raises(AnswerError, match="DesiredCapacity"):
        await described(AwsAsg(group=proxy.moto.group(), **parameters))


# ----------------------------------------------------------------------------------------------------------
# reading our own writes


async def test_a_stale_answer_after_our_change_is_not_taken_for_an_external_change(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        proxy.echo(DESCRIBE, times=2)
        assert (await target.describe()).desired == 2
        await target.scale(5)
        for _ in range(2):
            status = await target.describe()
            assert (status.desired, status.ready) == (5, 2)
            assert "AWS still shows a desired capacity of 2" in status.remarks
        status = await target.describe()
        assert (status.desired, status.ready, status.remarks) == (5, 5, ())


async def test_our_change_that_aws_shows_half_a_minute_later_is_not_taken_for_an_external_one(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        proxy.echo(DESCRIBE, times=3)
        assert (await target.describe()).desired == 2
        await target.scale(5)
        for _ in range(3):
            target._accepted.at -= 10  # seconds
            assert (await target.describe()).desired == 5
        assert (await target.describe()).desired == 5  # AWS shows it now
        proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>5", "<DesiredCapacity>2"), times=2)
        assert (await target.describe()).desired == 5  # from a part of AWS that still lags
        target._accepted.at -= 16
        assert (await target.describe()).desired == 2


async def test_a_stale_answer_after_the_echo_time_is_an_external_change(
    proxy: Proxy, parameters: dict[str, Any]
) -> None:
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters, echo=timedelta(0))) as target:
        proxy.echo(DESCRIBE, times=1)
        assert (await target.describe()).desired == 2
        await target.scale(5)
        assert (await target.describe()).desired == 2


async def test_an_external_change_is_read_at_once(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        await target.describe()
        await target.scale(5)
        proxy.moto.client("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=4)
        assert (await target.describe()).desired == 4


def test_sizes_of_several_consecutive_changes_are_echoes() -> None:
    sizes = AcceptedSize(15)
    sizes.accept(5, 3, 0)
    sizes.accept(7, 5, 4)
    assert [sizes.actual(shown, 5) for shown in (3, 5, 7, 6)] == [7, 7, 7, 6]
    sizes.accept(3, 7, 8)
    assert [sizes.actual(shown, 9) for shown in (3, 5, 7)] == [3, 3, 3]
    assert [sizes.actual(shown, 25) for shown in (3, 5, 7)] == [3, 5, 7]


def test_a_size_that_is_never_shown_was_reverted() -> None:
    sizes = AcceptedSize(15)
    sizes.accept(5, 3, 0)
    assert [sizes.actual(3, at) for at in (1, 30, 60, 61)] == [5, 5, 5, 3]
    sizes.accept(5, 3, 100)
    assert [sizes.actual(shown, at) for shown, at in ((4, 110), (3, 120), (3, 126))] == [4, 5, 3]


async def test_an_answer_requested_before_our_change_does_not_count(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    async with connected(
        AwsAsg(group=group, **parameters | {"fresh": timedelta(minutes=1), "echo": timedelta(0)})
    ) as target:
        assert (await target.describe()).desired == 2
        assert (await target.describe()).desired == 2
        assert len(proxy.made(DESCRIBE)) == 1
        await target.scale(5)
        assert (await target.describe()).desired == 5
        assert len(proxy.made(DESCRIBE)) == 2


async def test_an_answer_in_transit_during_our_change_does_not_count(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    async with connected(
        AwsAsg(group=group, **parameters | {"fresh": timedelta(minutes=1), "echo": timedelta(0)})
    ) as target:
        going = asyncio.Event()

        async def slow(_: Any, forward: Any) -> Any:
            answer = await forward()
            await going.wait()
            return answer

        proxy.rule(DESCRIBE, slow)
        before = asyncio.create_task(target.describe())
        await until(lambda: proxy.made(DESCRIBE))
        await target.scale(5)
        after = asyncio.create_task(target.describe())
        await until(lambda: len(proxy.made(DESCRIBE)) == 2)
        assert (await after).desired == 5
        going.set()
        assert (await before).desired == 5


# ----------------------------------------------------------------------------------------------------------
# many groups


async def fleet(proxy: Proxy, stack: AsyncExitStack, count: int, parameters: dict[str, Any]) -> list[Target]:
    shared = await stack.enter_async_context(LocalShared())
    targets = []
    for number in range(count):
        target = await stack.enter_async_context(AwsAsg(group=f"fleet-{number}", **parameters).connect(shared))
        assert isinstance(target, Target)
        targets.append(target)

    async def canned(request: Any, _: Any) -> Any:
        names = [value for key, value in (await request.post()).items() if key.startswith("AutoScalingGroupNames")]
        members = "".join(
            f"<member><AutoScalingGroupName>{name}</AutoScalingGroupName><MinSize>0</MinSize><MaxSize>9</MaxSize>"
            "<DesiredCapacity>1</DesiredCapacity></member>"
            for name in names
        )
        return web.Response(
            text=f"<DescribeAutoScalingGroupsResponse {NAMESPACE}><DescribeAutoScalingGroupsResult><AutoScalingGroups>"
            f"{members}</AutoScalingGroups></DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>",
            content_type="text/xml",
        )

    proxy.rule(DESCRIBE, canned, None)
    proxy.answer("DescribeScalingActivities", ACTIVITIES.format(""))
    return targets


async def test_groups_read_together_need_one_call_per_hundred(proxy: Proxy, parameters: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        targets = await fleet(proxy, stack, 250, parameters | {"fresh": timedelta(seconds=30)})
        statuses = await asyncio.gather(*(target.describe() for target in targets))
        assert {status.desired for status in statuses} == {1}
        sizes = [sum(key.startswith("AutoScalingGroupNames") for key in c.parameters) for c in proxy.made(DESCRIBE)]
        assert sorted(sizes) == [50, 100, 100]


@dataclass
class InMemory:
    """Answers for any group after a fifth of a second of the loop's own time."""

    place: Place
    names: list[tuple[float, list[str]]] = field(default_factory=list)

    async def pages(self, _: str, operation: str, parameters: Mapping[str, Any], __: str) -> list[dict[str, Any]]:
        assert operation == DESCRIBE
        self.names.append((asyncio.get_running_loop().time(), parameters["AutoScalingGroupNames"]))
        await asyncio.sleep(0.2)
        size = {"MinSize": 0, "MaxSize": 9, "DesiredCapacity": 1}
        return [{"AutoScalingGroupName": name, **size} for name in parameters["AutoScalingGroupNames"]]


@pytest.mark.parametrize(("count", "most"), [(1000, 10), (300, 4), (40, 3), (1, 1)])
def test_spread_ticks_share_calls_and_no_answer_is_older_than_allowed(count: int, most: int) -> None:
    """1,000 groups that tick every 15 s, each at its own time: ten calls per round, answers at most 5 s old."""
    interval, fresh, rounds = 15.0, 5.0, 8
    aws = InMemory(Place(REGION, None, None, None, LONG))
    ages: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        shared = groups.Groups(cast("Any", aws))

        async def tick(number: int) -> None:
            for turn in range(rounds):
                lateness = (number * 7919 + turn * 104729) % 101 / 1000
                due = (turn + splay(f"g{number}", 1.0)) * interval + lateness
                await asyncio.sleep(max(0.0, due - loop.time()))
                await shared.get(f"g{number}", fresh)
                seen = shared._members[f"g{number}"].snapshot
                assert seen is not None
                if turn:
                    ages.append(loop.time() - seen.requested_at)

        with ExitStack() as stack:
            for number in range(count):
                stack.enter_context(shared.member(f"g{number}"))
            await asyncio.gather(*(tick(number) for number in range(count)))
        await shared.aclose()

    virtual_time.run(main())
    assert max(ages) <= fresh
    assert max(len(names) for _, names in aws.names) <= 100
    assert sum(1 for at, _ in aws.names if at < interval) <= max(1, count // 100)
    assert len(aws.names) <= most * rounds + 2


@dataclass
class AtOnce(InMemory):
    """Answers before the loop's time advances, optionally with an error, and counts the requests."""

    error: EdgeError | None = None

    async def pages(self, *what: Any) -> list[dict[str, Any]]:
        self.names.append((asyncio.get_running_loop().time(), [what[0]]))
        assert len(self.names) <= 2, "a read that does not end"
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return [{"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 9, "DesiredCapacity": 1}]


def test_an_error_ends_a_read_even_if_it_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ERROR_REUSE", 0.0)
    aws = AtOnce(Place(REGION, None, None, None, LONG), error=UnavailableError("Throttling"))

    async def main() -> None:
        shared = groups.Groups(cast("Any", aws))
        with shared.member("g"):
            for requests in (1, 2):
                with pytest.raises(UnavailableError, match="Throttling"):
                    await shared.get("g", 0.0)
                assert len(aws.names) == requests

    virtual_time.run(main())


def test_one_request_shows_a_change_even_if_the_clock_has_not_advanced() -> None:
    aws = AtOnce(Place(REGION, None, None, None, LONG))

    async def main() -> None:
        shared = groups.Groups(cast("Any", aws))
        with shared.member("g"):
            for requests in (1, 2):
                shared.invalidate("g")
                assert (await shared.get("g", 0.0)).desired == 1
                assert len(aws.names) == requests

    virtual_time.run(main())


def test_reads_after_a_change_share_a_request_and_no_error_from_before_it() -> None:
    aws = AtOnce(Place(REGION, None, None, None, LONG), error=UnavailableError("Throttling"))

    async def main() -> None:
        shared = groups.Groups(cast("Any", aws))
        with shared.member("g"):
            with pytest.raises(UnavailableError, match="Throttling"):
                await shared.get("g", 0.0)
            aws.error = None
            shared.invalidate("g")
            found = await asyncio.gather(*(shared.get("g", 0.0) for _ in range(3)))
            assert [group.desired for group in found] == [1, 1, 1]
            assert len(aws.names) == 2

    virtual_time.run(main())


async def test_a_failed_request_is_sent_once_for_all_its_groups(proxy: Proxy, parameters: dict[str, Any]) -> None:
    proxy.error(DESCRIBE, "AccessDenied", status=403, times=None)
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(LocalShared())
        targets = [
            await stack.enter_async_context(AwsAsg(group=f"g{number}", **parameters).connect(shared))
            for number in range(50)
        ]
        failures = await asyncio.gather(*(target.describe() for target in targets), return_exceptions=True)
        assert all(isinstance(failure, RefusedError) for failure in failures)
        assert len({id(failure) for failure in failures}) == 50
    assert len(proxy.made(DESCRIBE)) == 1


async def test_a_role_that_cannot_be_assumed_is_named(proxy: Proxy, parameters: dict[str, Any]) -> None:
    role = "arn:aws:iam::123456789012:role/scaler"
    proxy.error("AssumeRole", "AccessDenied", "not authorized", 403, times=None)
    with pytest.raises(RefusedError, match=f"allow the action sts:AssumeRole on {role}"):
        await described(AwsAsg(group="group", **parameters, role=role))


def test_every_state_of_an_instance_is_counted_or_reported() -> None:
    model: Any = botocore.session.Session().get_service_model("autoscaling")
    for state in model.shape_for("LifecycleState").enum:
        instance = Instance("i-1", state, healthy=True, protected=False, version="")
        group = Group(
            name="g",
            arn="",
            minimum=0,
            maximum=9,
            desired=1,
            instances=(instance,),
            suspended={},
            deleting=None,
            weighted=None,
        )
        reported = bool(progress(group, 1))
        silent = state.startswith("Warmed:") or state in {"InService", "Terminated"}
        assert reported != silent, state
        assert instance.serving == (state == "InService")
        assert group.unsettled == (state != "InService" and not state.startswith("Warmed:"))
    assert set(model.shape_for("InstanceRefreshStatus").enum) >= groups.REFRESH_UNDER_WAY


@pytest.mark.parametrize(("echo", "superseded"), [(15, False), (0, True)])
async def test_a_stale_answer_does_not_end_a_rescale(
    proxy: Proxy, parameters: dict[str, Any], echo: int, superseded: bool
) -> None:
    """The effect on the core: with `echo` the rescale continues, without it another user seems to have reverted it."""
    group = proxy.moto.group(2)
    limits = Limits(1, 9)
    spec = ClusterSpec(
        name="c", limits=limits, policies=(NamedPolicy("five", Five()),), down=Behaviour(window=timedelta(0))
    )
    state, notes, at = ClusterState(), [], datetime(2026, 1, 1, tzinfo=UTC)
    async with connected(AwsAsg(group=group, **parameters, echo=timedelta(seconds=echo))) as target:
        for turn in range(5):
            status = await target.describe()
            observation = Observation(at=at + timedelta(seconds=15 * turn), desired=status.desired, ready=status.ready)
            state, decision = step(spec, state, observation)
            notes += [reason for reason, _ in decision.notes]
            if decision.rescale:
                await target.scale(decision.desired)
            if turn == 1:
                # AWS has shown the new size, and shows the old one once more.
                proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>5", "<DesiredCapacity>2"), times=1)
    assert (Reason.SUPERSEDED in notes) == superseded
    assert proxy.moto.shown(group)["DesiredCapacity"] == 5


@dataclass(frozen=True)
class Five:
    """A policy that requests five."""

    def evaluate(self, view: View) -> Recommendation:
        reason = Reason.STEADY if view.current == 5 else Reason.ABOVE if view.current < 5 else Reason.BELOW
        return Recommendation(5, reason, {}, "five")


async def test_one_unreadable_group_does_not_affect_the_others(proxy: Proxy, parameters: dict[str, Any]) -> None:
    good, bad = proxy.moto.group(2), proxy.moto.group(3)
    proxy.rewrite(DESCRIBE, lambda text: text.replace("<DesiredCapacity>3</DesiredCapacity>", ""))
    async with LocalShared() as shared, AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(AwsAsg(group=name, **parameters).connect(shared)) for name in (good, bad)
        ]
        one, other = await asyncio.gather(*(target.describe() for target in targets), return_exceptions=True)
        assert isinstance(one, TargetStatus)
        assert one.desired == 2
        assert isinstance(other, AnswerError)
    assert len(proxy.made(DESCRIBE)) == 1


async def test_one_name_that_aws_refuses_does_not_affect_the_others(proxy: Proxy, parameters: dict[str, Any]) -> None:
    names = [proxy.moto.group(1) for _ in range(4)]

    async def refuse(request: web.Request, forward: Forward) -> web.Response:
        if names[2] in (await request.text()):
            return failure(request, "ValidationError", "1 validation error detected", 400)
        return await forward()

    proxy.rule(DESCRIBE, refuse, None)
    async with LocalShared() as shared, AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(AwsAsg(group=name, **parameters).connect(shared)) for name in names]
        seen = await asyncio.gather(*(target.describe() for target in targets), return_exceptions=True)
    assert [isinstance(one, TargetStatus) for one in seen] == [True, True, False, True]
    assert isinstance(seen[2], RefusedError)


async def test_requests_for_single_groups_alternate(
    proxy: Proxy, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "DETAIL_INTERVAL", 0.1)
    proxy.rewrite(DESCRIBE, lambda text: text.replace(">InService<", ">Terminating<", 1))
    for action in ("DescribeInstanceRefreshes", "DescribeScalingActivities"):
        proxy.answer(action, f"<{action}Response {NAMESPACE}><{action}Result/></{action}Response>")
    names = [proxy.moto.group(2) for _ in range(3)]

    def asked() -> set[str]:
        return {call.parameters["AutoScalingGroupName"] for call in proxy.made("DescribeInstanceRefreshes")}

    async with LocalShared() as shared, AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(AwsAsg(group=name, **parameters).connect(shared)) for name in names]
        async with asyncio.timeout(20):
            while asked() != set(names):
                # The first is always there first.
                for target in targets:
                    await target.describe()
                await asyncio.sleep(0.05)
        made = proxy.made("DescribeInstanceRefreshes") + proxy.made("DescribeScalingActivities")
        assert len(made) == len({(call.action, call.parameters["AutoScalingGroupName"]) for call in made})


async def test_without_boto3_the_error_names_the_extra(
    parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(PluginError, match=r"pip install '\.\[aws\]'"):
        async with connected(AwsAsg(group="group", **parameters)):
            pass


async def test_a_cancelled_caller_does_not_cancel_the_others(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.stall(DESCRIBE, 0.3)
    async with connected(AwsAsg(group=group, **parameters)) as target:
        first, second = (asyncio.create_task(target.describe()) for _ in range(2))
        await until(lambda: proxy.made(DESCRIBE))
        first.cancel()
        assert (await second).desired == 2


async def test_groups_of_another_identity_use_another_client(parameters: dict[str, Any]) -> None:
    async with LocalShared() as shared:
        one = await shared_groups(shared, (await place(parameters)))
        two = await shared_groups(shared, (await place(parameters)))
        other = await shared_groups(shared, (await place(parameters | {"timeout": timedelta(seconds=1)})))
        assert one is two
        assert one is not other
        assert await shared_aws(shared, await place(parameters)) is one.aws


async def place(parameters: dict[str, Any]) -> Any:
    return AwsAsg(group="group", **parameters).place


def test_a_stopped_cluster_is_not_requested_forever() -> None:
    member = groups._Member(name="g")
    assert member.due(100, 15) == 100
    member.note_read(100)
    assert member.due(101, 15) == 115
    member.note_read(110)
    assert member.due(111, 15) == 120
    assert member.due(125, 15) == 120  # late, so urgent
    assert member.due(141, 15) == float("inf")


# ----------------------------------------------------------------------------------------------------------
# other controllers


async def test_other_controllers_of_the_size_are_named(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    autoscaling = proxy.moto.client("autoscaling")
    for name, enabled in (("keep-cpu-at-50", True), ("not-any-more", False)):
        autoscaling.put_scaling_policy(
            AutoScalingGroupName=group,
            PolicyName=name,
            PolicyType="TargetTrackingScaling",
            Enabled=enabled,
            TargetTrackingConfiguration={
                "PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"},
                "TargetValue": 50.0,
            },
        )
    autoscaling.put_scheduled_update_group_action(
        AutoScalingGroupName=group, ScheduledActionName="night", Recurrence="0 22 * * *", DesiredCapacity=1
    )
    off = "not-any-more</PolicyName>"
    proxy.rewrite(
        "DescribePolicies", lambda text: text.replace(off, f"{off}<Enabled>false</Enabled>")
    )  # moto does not report it
    policy = "the scaling policy 'keep-cpu-at-50' (TargetTrackingScaling) also sets this group's size"
    action = "the scheduled action 'night' also sets this group's size"
    async with connected(AwsAsg(group=group, **parameters)) as target:
        assert isinstance(target, Doctor)
        assert isinstance(target, PicksWorkers)
        found = await target.diagnose()
        assert {(finding.severity, finding.problem) for finding in found} >= {
            (Severity.WARNING, policy),
            (Severity.WARNING, action),
        }
        remarks = (await target.describe()).remarks
        assert policy in remarks
        assert action in remarks
        assert len(proxy.made("DescribePolicies")) == 1
        assert not [remark for remark in remarks if "not-any-more" in remark]
        autoscaling.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["ScheduledActions"])
        assert (await target.describe()).remarks == (policy,)


async def test_the_doctor_finds_suspended_processes(proxy: Proxy, parameters: dict[str, Any]) -> None:
    group = proxy.moto.group(2)
    proxy.moto.client("autoscaling").suspend_processes(AutoScalingGroupName=group, ScalingProcesses=["Launch"])
    async with connected(AwsAsg(group=group, **parameters)) as target:
        found = [finding for finding in await target.diagnose() if "Launch" in finding.problem]
    assert found[0].cost == "the group cannot grow"
    assert f"--auto-scaling-group-name {group}" in found[0].remedy


async def test_a_missing_profile_is_refused_when_connecting(parameters: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="profile"):
        async with connected(AwsAsg(group="group", **parameters, profile="nobody")):
            pass


async def test_missing_credentials_are_refused(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(RefusedError, match="instance profile, or set profile"):
        await described(AwsAsg(group="group", **parameters))


async def test_a_role_is_assumed(proxy: Proxy, parameters: dict[str, Any], identity: str) -> None:
    role = "arn:aws:iam::123456789012:role/scaler"
    status = await described(AwsAsg(group=proxy.moto.group(2), **parameters, role=role))
    assert status.desired == 2
    assert [call.key for call in proxy.made("AssumeRole")] == [identity]
    assert identity not in {call.key for call in proxy.made(DESCRIBE)}
