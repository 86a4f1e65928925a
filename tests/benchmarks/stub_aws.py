"""Auto Scaling groups of three instances under any name, and any metric once a minute, in AWS's format."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from urllib.parse import parse_qsl

from aiohttp import web

NAMESPACE = 'xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"'
INSTANCE = (
    "<member><InstanceId>i-{:017x}</InstanceId><AvailabilityZone>us-east-1a</AvailabilityZone>"
    "<LifecycleState>InService</LifecycleState><HealthStatus>Healthy</HealthStatus>"
    "<ProtectedFromScaleIn>false</ProtectedFromScaleIn><InstanceType>m5.large</InstanceType>"
    "<LaunchTemplate><LaunchTemplateId>lt-1</LaunchTemplateId><LaunchTemplateName>t</LaunchTemplateName>"
    "<Version>1</Version></LaunchTemplate></member>"
)
GROUP = (
    "<member><AutoScalingGroupName>{name}</AutoScalingGroupName><AutoScalingGroupARN>arn:aws:autoscaling:us-east-1:1:"
    "autoScalingGroup:x:autoScalingGroupName/{name}</AutoScalingGroupARN><MinSize>1</MinSize><MaxSize>20</MaxSize>"
    "<DesiredCapacity>3</DesiredCapacity><DefaultCooldown>300</DefaultCooldown><AvailabilityZones>"
    "<member>us-east-1a</member></AvailabilityZones><HealthCheckType>EC2</HealthCheckType>"
    "<Instances>{instances}</Instances><SuspendedProcesses/><VPCZoneIdentifier>subnet-1</VPCZoneIdentifier><Tags>"
    "<member><Key>autoscaler</Key><Value>managed</Value><ResourceId>{name}</ResourceId></member></Tags></member>"
)

counts: Counter[str] = Counter()


async def answer(request: web.Request) -> web.Response:
    body = await request.read()
    target = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
    if target:
        counts[target] += 1
        question = json.loads(body)
        queries = question["MetricDataQueries"]
        counts["queries"] += len(queries)
        # For the requested time, which may be a minute ago by now.
        minutes = range(math.ceil(question["StartTime"] / 60), math.ceil(question["EndTime"] / 60))
        series = {"Timestamps": [60 * minute for minute in reversed(minutes)], "Values": [50.0] * len(minutes)}
        results = [{"Id": query["Id"], "Label": "l", "StatusCode": "Complete"} | series for query in queries]
        document = json.dumps({"MetricDataResults": results})
        return web.Response(text=document, content_type="application/x-amz-json-1.0")
    parameters = parse_qsl(body.decode())
    action = dict(parameters)["Action"]
    counts[action] += 1
    inner = ""
    if action == "DescribeAutoScalingGroups":
        names = [value for key, value in parameters if key.startswith("AutoScalingGroupNames")]
        groups = [
            GROUP.format(name=name, instances="".join(INSTANCE.format(hash((name, n)) % 2**60) for n in range(3)))
            for name in names
        ]
        inner = f"<AutoScalingGroups>{''.join(groups)}</AutoScalingGroups>"
    return web.Response(
        text=f"<{action}Response {NAMESPACE}><{action}Result>{inner}</{action}Result></{action}Response>",
        content_type="text/xml",
    )


async def show_counts(_: web.Request) -> web.Response:
    return web.json_response(counts)


async def main() -> None:
    application = web.Application(client_max_size=2**24)
    application.router.add_get("/counts", show_counts)
    application.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - how the test learns the port
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
