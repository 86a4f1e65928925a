"""What the daemon costs: 1,000 clusters of 3 metrics each at a 15 s interval, one core, one stub server."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.benchmark

CLUSTERS = 1000
INTERVAL = 15
SETTLE = 20.0  # seconds until the start is over
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))

# The same number of timers and nothing else: what this machine gives any event loop. And a loop of plain Python:
# how fast this core is, to compare figures between machines.
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


def configuration(port: int) -> str:
    lines = [
        "daemon: {directory: var, listen: '127.0.0.1:0', log: json, decisions: 100}",
        f"sources: {{prom: {{type: prometheus, url: 'http://127.0.0.1:{port}'}}}}",
        "clusters:",
    ]
    for number in range(CLUSTERS):
        match = f"match: {{cluster: c{number:04}}}"
        lines += [
            f"  c{number:04}:",
            f"    interval: {INTERVAL}s",
            "    timeout: 10s",
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


@pytest.fixture
def stub() -> Iterator[int]:
    program = Path(__file__).with_name("stub_prometheus.py")
    process = subprocess.Popen([sys.executable, str(program), str(CLUSTERS)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def scrape(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:  # noqa: S310 - the daemon of this test
        text = response.read().decode()
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
    """The upper end of the bucket that holds the quantile, of what was observed between two scrapes."""
    counts = sorted(
        (float(labels[0][1]), value - before.get((sample, labels), 0.0))
        for (sample, labels), value in after.items()
        if sample == f"{name}_bucket"
    )
    total = counts[-1][1]
    return next(bound for bound, count in counts if count >= share * total)


def test_a_thousand_clusters_cost_less_than_a_third_of_a_core(stub: int, tmp_path: Path) -> None:
    baseline = subprocess.run(
        [sys.executable, "-c", BASELINE, str(CLUSTERS), str(INTERVAL), "20"], capture_output=True, check=True
    )
    bare = json.loads(baseline.stdout)
    config = tmp_path / "config.yaml"
    config.write_text(configuration(stub))
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr)
    try:
        process = psutil.Process(daemon.pid)
        url = started(log, daemon)
        time.sleep(SETTLE)
        before, cpu_before, begun = scrape(url), process.cpu_times(), time.monotonic()
        time.sleep(SPAN)
        cpu_after, ended = process.cpu_times(), time.monotonic()
        resident = process.memory_info().rss
        after = scrape(url)
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
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{CLUSTERS} clusters, 3 metrics each, every {INTERVAL} s, {ticks:.0f} ticks in {ended - begun:.0f} s"
        f"\n  CPU       {used:7.1%} of one core   (bare timers {bare['cpu']:.1%}; "
        f"10 million plain steps {bare['loop']:.2f} s)"
        f"\n  resident  {resident / 1e6:7.1f} MB"
        f"\n  lateness  {p99 * 1000:7.1f} ms at p99, at most (bare timers {bare['p99'] * 1000:.1f} ms)"
        f"\n  missing   {missing:7.0f} readings"
    )
    assert missing == 0
    assert ticks >= 0.95 * CLUSTERS * SPAN / INTERVAL
    assert used < 0.30
    assert resident < 200e6
    assert p99 <= 0.25


def started(log: Path, daemon: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and daemon.poll() is None:
        for line in log.read_text().splitlines():
            if '"started"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.1)
    raise AssertionError(f"the daemon has not started: {log.read_text()[-2000:]}")
