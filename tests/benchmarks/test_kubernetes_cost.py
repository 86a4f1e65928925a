"""The cost of Kubernetes targets: 2,000 clusters on one API server, every 15 s, and the delay of their requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.benchmarks.test_daemon_cost import download, parsed, quantile, started

pytestmark = pytest.mark.benchmark

CLUSTERS = 2000
INTERVAL = 15
SETTLE = 30.0  # seconds until the start is over
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))


def configuration(port: int, kubeconfig: Path) -> str:
    lines = [
        "daemon: {directory: var, listen: '127.0.0.1:0', log: json, decisions: 20}",
        f"sources: {{prom: {{type: prometheus, url: 'http://127.0.0.1:{port}'}}}}",
        "clusters:",
    ]
    for number in range(CLUSTERS):
        name = f"c{number:04}"
        where = f"name: {name}, namespace: team-{number % 20:02}, kubeconfig: {kubeconfig}, watch: cluster"
        lines += [
            f"  {name}:",
            f"    interval: {INTERVAL}s",
            "    timeout: 10s",
            f"    target: {{type: kubernetes, {where}}}",
            "    min: 1",
            "    max: 99",
            f"    metrics: {{load: {{source: prom, query: load, match: {{cluster: {name}}}}}}}",
            "    policies: {load: {type: target-tracking, metric: load, target: 100, mode: total}}",
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[tuple[int, Path, int]]:
    program = Path(__file__).with_name("stub_kubernetes.py")
    kubeconfig = tmp_path / "kubeconfig"
    command = [sys.executable, str(program), str(CLUSTERS), str(kubeconfig)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, size = map(int, process.stdout.readline().split())
        yield port, kubeconfig, size
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - a server of this test
        return json.loads(response.read())


def delays(url: str, sizes: list[tuple[str, float]]) -> list[float]:
    """Seconds from the observation of a decision to the arrival of its request at the API server."""
    found = []
    for name, at in sizes:
        records = fetch(f"{url}/api/v1/clusters/{name}/decisions?limit=20")["decisions"]
        times = [datetime.fromisoformat(record["decision"]["at"]).timestamp() for record in records]
        found.append(min(at - time for time in times if time <= at))
    return sorted(found)


def test_two_thousand_deployments_cost_less_than_two_fifths_of_a_core(
    stub: tuple[int, Path, int], tmp_path: Path
) -> None:
    port, kubeconfig, size = stub
    config = tmp_path / "config.yaml"
    config.write_text(configuration(port, kubeconfig))
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr)
    try:
        process = psutil.Process(daemon.pid)
        url = started(log, daemon)
        time.sleep(SETTLE)
        seen_before = fetch(f"http://127.0.0.1:{port}/seen")
        before, cpu_before, begun = parsed(download(url)), process.cpu_times(), time.monotonic()
        time.sleep(SPAN)
        cpu_after, ended = process.cpu_times(), time.monotonic()
        resident = process.memory_info().rss
        after, seen = parsed(download(url)), fetch(f"http://127.0.0.1:{port}/seen")
        sizes = seen["sizes"][len(seen_before["sizes"]) :]
        late = delays(url, sizes)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    finally:
        daemon.kill()
        daemon.wait()
    used = (cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system) / (ended - begun)
    p99 = quantile(before, after, "autoscaler_tick_lateness_seconds", 0.99)
    ticks = (
        after[("autoscaler_tick_lateness_seconds_count", ())] - before[("autoscaler_tick_lateness_seconds_count", ())]
    )
    missing = sum(value for (name, _), value in after.items() if name == "autoscaler_reading_missing")
    asked = {what: count - seen_before["counts"].get(what, 0) for what, count in seen["counts"].items()}
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{CLUSTERS} Deployments of {size / 1000:.1f} kB, one metric each, every {INTERVAL} s, {ticks:.0f} ticks in "
        f"{ended - begun:.0f} s"
        f"\n  CPU       {used:7.1%} of one core"
        f"\n  resident  {resident / 1e6:7.1f} MB"
        f"\n  lateness  {p99 * 1000:7.1f} ms at p99, at most"
        f"\n  asked at the start: {seen_before['counts']}"
        f"\n  asked meanwhile:    {asked}"
        f"\n  from the decision's observation to its request, {len(late)} rescales: median "
        f"{late[len(late) // 2] * 1000:.0f} ms, p95 {late[int(len(late) * 0.95)] * 1000:.0f} ms, "
        f"longest {late[-1] * 1000:.0f} ms"
    )
    assert missing == 0
    assert len({name for name, _ in sizes}) == len(sizes) > 0  # each size was requested once
    assert ticks >= 0.95 * CLUSTERS * SPAN / INTERVAL
    assert used < 0.40
    # One watch for all of a kind, which is renewed every half minute; none per cluster.
    assert seen["counts"]["list deployments"] == -(-CLUSTERS // 500)  # one list, in pages
    assert asked["watch deployments"] <= SPAN / 20 + 1
    assert not {what for what in asked if what.startswith("get") and asked[what] > len(late)}
    assert late[int(len(late) * 0.95)] <= 0.1
