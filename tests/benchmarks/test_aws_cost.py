"""The cost of 1,000 Auto Scaling groups: calls to AWS, CPU of the daemon, and the delay until a decision is at AWS."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import quantiles

import psutil
import pytest

from autoscaler.targets.aws_asg.target import AwsAsg
from autoscaler.testing.contracts import LocalShared
from tests.clients.aws_server import REGION, Proxy

pytest_plugins = ("tests.clients.aws_fixtures",)
pytestmark = pytest.mark.benchmark

GROUPS = 1000
INTERVAL = 15
SETTLE = 3 * INTERVAL  # seconds until the start is over
# Whole minutes: each metric is requested once a minute.
SPAN = max(60, round(float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60")) / 60) * 60)


def configuration(port: int) -> str:
    place = f"region: us-east-1, endpoint_url: 'http://127.0.0.1:{port}'"
    lines = [
        "daemon: {directory: var, listen: '127.0.0.1:0', log: json, decisions: 100}",
        f"sources: {{cloudwatch: {{type: cloudwatch, {place}}}}}",
        "clusters:",
    ]
    for number in range(GROUPS):
        lines += [
            f"  c{number:04}:",
            f"    interval: {INTERVAL}s",
            f"    target: {{type: aws-asg, group: g{number:04}, {place}}}",
            "    max: 20",
            "    max_age: 5m",
            "    metrics:",
            "      cpu: {source: cloudwatch, namespace: AWS/EC2, metric: CPUUtilization,",
            f"            dimensions: {{AutoScalingGroupName: g{number:04}}}, scale: 0.01}}",
            "    policies: {cpu: {type: target-tracking, metric: cpu, target: 0.5}}",
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def stub() -> Iterator[int]:
    program = Path(__file__).with_name("stub_aws.py")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def counts(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=10) as response:
        found: dict[str, int] = json.loads(response.read())
        return found


def test_a_thousand_groups_need_ten_calls_a_tick(stub: int, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(configuration(stub))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "AWS_ACCESS_KEY_ID": f"AKIA{secrets.token_hex(8).upper()}",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr, env=environment
        )
    try:
        process = psutil.Process(daemon.pid)
        deadline = time.monotonic() + 60
        while '"started"' not in log.read_text():
            assert daemon.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        time.sleep(INTERVAL)
        first = counts(stub)
        time.sleep(SETTLE - INTERVAL)
        before, cpu_before, begun = counts(stub), process.cpu_times(), time.monotonic()
        time.sleep(SPAN)
        cpu_after, ended, after = process.cpu_times(), time.monotonic(), counts(stub)
        resident = process.memory_info().rss
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()
    used = (cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system) / (ended - begun)
    made = {name: after[name] - before.get(name, 0) for name in after}
    ticks = SPAN / INTERVAL
    describes = made["DescribeAutoScalingGroups"] / ticks
    metrics = made["queries"] / SPAN * 60
    others = sum(made.values()) - made["DescribeAutoScalingGroups"] - made["GetMetricData"] - made["queries"]
    missing = log.read_text().count("reading is missing")
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{GROUPS} Auto Scaling groups with a CloudWatch metric each, every {INTERVAL} s, seen for {SPAN} s"
        f"\n  describes    {describes:6.1f} a tick (in the first one {first.get('DescribeAutoScalingGroups', 0)})"
        f"\n  GetMetricData{made['GetMetricData'] / ticks:6.1f} a tick, {metrics:.0f} metrics a minute"
        f"\n  others       {others:6d}"
        f"\n  CPU          {used:6.1%} of one core"
        f"\n  resident     {resident / 1e6:6.1f} MB"
        f"\n  missing      {missing:6d} readings"
    )
    assert missing == 0
    assert describes <= 10 + 1 / ticks  # the span may begin just before a call and end just after one
    assert metrics <= 1.2 * GROUPS


async def test_a_decision_reaches_aws_soon(proxy: Proxy) -> None:
    plugin = AwsAsg(group=proxy.moto.group(1), region=REGION, endpoint_url=proxy.url, timeout=timedelta(seconds=9))
    took = []
    async with LocalShared() as shared, plugin.connect(shared) as target:
        for turn in range(60):
            begun = time.monotonic()
            await target.scale(1 + turn % 2)
            took.append(proxy.made("SetDesiredCapacity")[-1].at - begun)
    cuts = quantiles(took, n=100)
    print(  # noqa: T201 - see above
        f"\nfrom scale() to the request at AWS: {cuts[49] * 1000:.1f} ms (median), {cuts[94] * 1000:.1f} ms (p95), "
        f"{took[0] * 1000:.1f} ms (the first)"
    )
    assert len(proxy.made("SetDesiredCapacity")) == 60
