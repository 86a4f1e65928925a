"""AWS on loopback: moto's server, and a proxy in front of it that records and falsifies answers."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import boto3
from aiohttp import web

REGION = "us-east-1"
Forward = Callable[[], Awaitable[web.Response]]
Spoil = Callable[[web.Request, Forward], Awaitable[web.StreamResponse]]


@dataclass
class Moto:
    """The server, with methods that access it directly, without the proxy."""

    url: str
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        if service not in self.clients:
            self.clients[service] = boto3.client(  # type: ignore[call-overload] # the service is given as a variable
                service,
                region_name=REGION,
                endpoint_url=self.url,
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
        return self.clients[service]

    def post(self, path: str, body: str = "") -> None:
        request = urllib.request.Request(f"{self.url}{path}", body.encode(), {"Content-Type": "text/plain"})  # noqa: S310 - loopback
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            pass

    def group(self, size: int = 2, minimum: int = 0, maximum: int = 10, **parameters: Any) -> str:
        """Create a group with a unique name."""
        name = f"group-{secrets.token_hex(4)}"
        autoscaling = self.client("autoscaling")
        autoscaling.create_launch_configuration(
            LaunchConfigurationName=name, ImageId="ami-12c6146b", InstanceType="t3.micro"
        )
        autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchConfigurationName=name,
            MinSize=minimum,
            MaxSize=maximum,
            DesiredCapacity=size,
            AvailabilityZones=[f"{REGION}a"],
            **parameters,
        )
        return name

    def tag(self, group: str, **tags: str) -> None:
        """Tag a group."""
        what = {"ResourceId": group, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": False}
        tagged = [{**what, "Key": key, "Value": value} for key, value in tags.items()]
        self.client("autoscaling").create_or_update_tags(Tags=tagged)

    def shown(self, group: str) -> dict[str, Any]:
        """The state of a group in moto."""
        answer = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
        found: dict[str, Any] = answer["AutoScalingGroups"][0]
        return found

    def instances(self, group: str) -> dict[str, str]:
        """Instance id -> private address."""
        ids = [instance["InstanceId"] for instance in self.shown(group)["Instances"]]
        answer = self.client("ec2").describe_instances(InstanceIds=ids)
        return {
            instance["InstanceId"]: instance["PrivateIpAddress"]
            for reservation in answer["Reservations"]
            for instance in reservation["Instances"]
        }


@dataclass(frozen=True)
class Call:
    """One call that boto3 made."""

    service: str
    action: str
    parameters: dict[str, Any]
    key: str
    at: float

    @property
    def permission(self) -> str:
        return f"{self.service}:{self.action}"


@dataclass
class Rule:
    """How the proxy handles the calls of an action; `times` None: all from now on."""

    action: str
    spoil: Spoil
    times: int | None = 1


@dataclass
class Proxy:
    """Between boto3 and moto."""

    moto: Moto
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    session: aiohttp.ClientSession | None = None

    def made(self, action: str) -> list[Call]:
        return [call for call in self.calls if call.action == action]

    def rule(self, action: str, spoil: Spoil, times: int | None = 1) -> Rule:
        self.rules.append(Rule(action, spoil, times))
        return self.rules[-1]

    def error(self, action: str, code: str, message: str = "no", status: int = 400, times: int | None = 1) -> Rule:
        """An error in the service's own format."""

        async def spoil(request: web.Request, _: Forward) -> web.Response:
            return failure(request, code, message, status)

        return self.rule(action, spoil, times)

    def answer(self, action: str, body: str, times: int | None = None) -> Rule:
        """Return an answer that moto cannot give."""

        async def spoil(_: web.Request, __: Forward) -> web.Response:
            return web.Response(text=body, content_type="text/xml")

        return self.rule(action, spoil, times)

    def drop(self, action: str, *, after: bool = False, times: int | None = 1) -> Rule:
        """Cut the connection: before AWS receives the request, or after AWS has executed it."""

        async def spoil(request: web.Request, forward: Forward) -> web.Response:
            if after:
                await forward()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        return self.rule(action, spoil, times)

    def stall(self, action: str, seconds: float, times: int | None = 1) -> Rule:
        """Answer slowly."""

        async def spoil(_: web.Request, forward: Forward) -> web.Response:
            await asyncio.sleep(seconds)
            return await forward()

        return self.rule(action, spoil, times)

    def rewrite(self, action: str, change: Callable[[str], str], times: int | None = None) -> Rule:
        """Change moto's answers."""

        async def spoil(_: web.Request, forward: Forward) -> web.Response:
            response = await forward()
            return web.Response(text=change(response.text or ""), status=response.status, content_type="text/xml")

        return self.rule(action, spoil, times)

    def echo(self, action: str, times: int) -> None:
        """Eventual consistency: the next answers are those of now."""
        kept: list[web.Response] = []

        async def keep(_: web.Request, forward: Forward) -> web.Response:
            kept.append(await forward())
            return clone(kept[0])

        async def replay(_: web.Request, __: Forward) -> web.Response:
            return clone(kept[0])

        self.rule(action, keep, 1)
        self.rule(action, replay, times)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        scope = request.headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
        key, service = (scope[0], scope[3]) if len(scope) > 3 else ("", "")
        target = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        parameters = json.loads(body) if target else dict(parse_qsl(body.decode()))
        service = {"monitoring": "cloudwatch"}.get(service, service)
        action = target or parameters.pop("Action", "")
        self.calls.append(Call(service, action, parameters, key, time.monotonic()))

        async def forward() -> web.Response:
            assert self.session is not None
            url = f"{self.moto.url}{request.rel_url}"
            headers = {name: value for name, value in request.headers.items() if name != "Accept-Encoding"}
            async with self.session.request(request.method, url, data=body, headers=headers) as answer:
                kind = answer.headers.get("Content-Type", "text/xml")
                return web.Response(body=await answer.read(), status=answer.status, headers={"Content-Type": kind})

        for rule in self.rules:
            if rule.action == action and (rule.times is None or rule.times > 0):
                if rule.times is not None:
                    rule.times -= 1
                return await rule.spoil(request, forward)
        return await forward()


def clone(response: web.Response) -> web.Response:
    return web.Response(
        body=response.body, status=response.status, headers={"Content-Type": response.headers["Content-Type"]}
    )


def failure(request: web.Request, code: str, message: str, status: int) -> web.Response:
    if "X-Amz-Target" in request.headers:
        body = json.dumps({"__type": f"com.amazonaws.cloudwatch#{code}", "message": message})
        return web.Response(text=body, status=status, content_type="application/x-amz-json-1.0")
    if "/ec2/" in request.headers.get("Authorization", ""):
        inner = f"<Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        return web.Response(text=f"<Response>{inner}<RequestID>r</RequestID></Response>", status=status)
    return web.Response(
        text='<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><Error><Type>Sender</Type>'
        f"<Code>{code}</Code><Message>{message}</Message></Error><RequestId>r</RequestId></ErrorResponse>",
        status=status,
        content_type="text/xml",
    )


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition that has no event."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
