"""The cost of the daemon: 1,000 clusters of 3 metrics each at a 15 s interval, one core, one stub server."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.benchmark

CLUSTERS = 1000
INTERVAL = 15
SETTLE = 20.0  # seconds until the start is over
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))

# For comparison between machines: the same number of timers and nothing else, to measure any event loop here; and a
# loop of plain Python, to measure this core.
BASELINE = """
import asyncio, json, random, sys, time
count, interval, span = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
late = []
async def tick(offset):
    loop = asyncio.get_running_loop()
    due = loop.time() + offset
    while True:
        await asyncio.sleep(due - loop.time())
        late.append(loop.time() - due)
        due += interval
async def main():
    tasks = [asyncio.create_task(tick(random.random() * interval)) for _ in range(count)]
    begun = time.process_time()
    await asyncio.sleep(span)
    used = time.process_time() - begun
    for task in tasks:
        task.cancel()
    late.sort()
    return used / span
share = asyncio.run(main())
begun = time.process_time()
total = 0
for number in range(10_000_000):
    total += number & 7
loop = time.process_time() - begun
print(json.dumps({"p99": late[int(len(late) * 0.99)], "cpu": share, "loop": loop}))
"""


def configuration(port: int, clusters: int, interval: float) -> str:
    lines = [
        "daemon: {directory: var, listen: '127.0.0.1:0', log: json, decisions: 100}",
        f"sources: {{prom: {{type: prometheus, url: 'http://127.0.0.1:{port}'}}}}",
        "clusters:",
    ]
    for number in range(clusters):
        match = f"match: {{cluster: c{number:04}}}"
        lines += [
            f"  c{number:04}:",
            f"    interval: {interval}s",
            f"    timeout: {interval * 2 / 3:.1f}s",
            "    target: {type: 'null', size: 3}",
            "    min: 1",
            "    max: 20",
            "    metrics:",
            f"      lag: {{source: prom, query: lag, {match}}}",
            f"      arrivals: {{source: prom, query: arrivals, {match}}}",
            f"      throughput: {{source: prom, query: throughput, {match}}}",
            "    policies:",
            "      drain: {type: backlog-drain, drain_time: 60s}",
            "    capacity: {per_replica: 120}",
        ]
    return "\n".join(lines) + "\n"


@contextmanager
def prometheus(clusters: int) -> Iterator[int]:
    """A stub server; yields its port."""
    program = Path(__file__).with_name("stub_prometheus.py")
    process = subprocess.Popen([sys.executable, str(program), str(clusters)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def download(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:  # noqa: S310 - the daemon of this test
        return str(response.read().decode())


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def quantile(
    before: dict[tuple[str, tuple[tuple[str, str], ...]], float],
    after: dict[tuple[str, tuple[tuple[str, str], ...]], float],
    name: str,
    share: float,
) -> float:
    """The upper end of the bucket with the quantile, from the difference of two scrapes."""
    counts = sorted(
        (float(labels[0][1]), value - before.get((sample, labels), 0.0))
        for (sample, labels), value in after.items()
        if sample == f"{name}_bucket"
    )
    total = counts[-1][1]
    return next(bound for bound, count in counts if count >= share * total)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The figures of a daemon; `late` is at p99, `scrape` the longest, both in seconds."""

    cpu: float
    resident: int
    late: float
    ticks: float
    missing: float
    scrape: float
    stop: float


def cost(directory: Path, clusters: int) -> Cost:
    """Run a daemon and print its figures."""
    baseline = subprocess.run(
        [sys.executable, "-c", BASELINE, str(clusters), str(INTERVAL), "20"], capture_output=True, check=True
    )
    bare = json.loads(baseline.stdout)
    config, log = directory / "config.yaml", directory / "log"
    with prometheus(clusters) as port, log.open("wb") as stderr:
        config.write_text(configuration(port, clusters, INTERVAL))
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr)
        try:
            process = psutil.Process(daemon.pid)
            process.cpu_affinity([process.cpu_affinity()[0]])
            url = started(log, daemon)
            time.sleep(SETTLE)
            before, cpu_before, begun = parsed(download(url)), process.cpu_times(), time.monotonic()
            longest = 0.0
            while time.monotonic() - begun < SPAN:
                time.sleep(min(15.0, SPAN))
                asked = time.monotonic()
                text = download(url)
                longest = max(longest, time.monotonic() - asked)
            cpu_after, ended = process.cpu_times(), time.monotonic()
            resident = process.memory_info().rss
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
            stopped = time.monotonic()
        finally:
            daemon.kill()
            daemon.wait()
    after = parsed(text)
    count = ("autoscaler_tick_lateness_seconds_count", ())
    found = Cost(
        cpu=(cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system) / (ended - begun),
        resident=resident,
        late=quantile(before, after, "autoscaler_tick_lateness_seconds", 0.99),
        ticks=(after[count] - before[count]) / (clusters * (ended - begun) / INTERVAL),
        missing=sum(value for (name, _), value in after.items() if name == "autoscaler_reading_missing"),
        scrape=longest,
        stop=stopped - ended,
    )
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{clusters:,} clusters, 3 metrics each, every {INTERVAL} s, one core, {ended - begun:.0f} s"
        f"\n  CPU       {found.cpu:7.1%} of one core   (bare timers {bare['cpu']:.1%}; "
        f"10 million plain steps {bare['loop']:.2f} s)"
        f"\n  resident  {found.resident / 1e6:7.1f} MB"
        f"\n  ticks     {found.ticks:7.1%} of those that were due"
        f"\n  lateness  {found.late * 1000:7.1f} ms at p99, at most (bare timers {bare['p99'] * 1000:.1f} ms)"
        f"\n  missing   {found.missing:7.0f} readings"
        f"\n  /metrics  {found.scrape:7.2f} s at most for {len(text) / 1e6:.1f} MB"
        f"\n  SIGTERM   {found.stop:7.2f} s"
    )
    return found


def test_a_thousand_clusters_cost_less_than_a_third_of_a_core(tmp_path: Path) -> None:
    found = cost(tmp_path, CLUSTERS)
    assert found.missing == 0
    assert found.ticks >= 0.95
    assert found.cpu < 0.30
    assert found.resident < 200e6
    assert found.late <= 0.25


@pytest.mark.skipif("AUTOSCALER_BENCH_LARGE" not in os.environ, reason="AUTOSCALER_BENCH_LARGE is not set: 5 minutes")
def test_ten_thousand_clusters_fit_on_one_core(tmp_path: Path) -> None:
    found = cost(tmp_path, 10 * CLUSTERS)
    assert found.missing == 0
    assert found.ticks >= 0.95
    assert found.resident < 450e6
    assert found.late < 1
    assert found.scrape < 1


def started(log: Path, daemon: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and daemon.poll() is None:
        for line in log.read_text().splitlines():
            if '"started"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.1)
    raise AssertionError(f"the daemon has not started: {log.read_text()[-2000:]}")
