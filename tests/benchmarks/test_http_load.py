"""Clients of the HTTP endpoints beside a ticking daemon: 1,000 idle ones and 300 that send requests all the time."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from .test_daemon_cost import configuration, download, parsed, prometheus, quantile, started

pytestmark = pytest.mark.benchmark

CLUSTERS = 100
IDLE = 1000
BUSY = 300
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "30"))

# In a separate process: its share of the core must not be the daemon's.
CLIENTS = """
import asyncio, random, sys, time
import aiohttp
url, idle, busy, span = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
host, port = url.removeprefix("http://").split(":")
PATHS = ["/healthz", "/readyz", "/api/v1/clusters", "/api/v1/clusters/c0001", "/metrics"]
PATHS.append("/api/v1/clusters/c0001/decisions?limit=500")
took, failed = [], 0
async def waits():
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HT")
            await reader.read()
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(1)
async def asks(session):
    global failed
    while True:
        begun = time.monotonic()
        try:
            async with session.get(url + random.choice(PATHS)) as response:
                await response.read()
                assert response.status == 200
            took.append(time.monotonic() - begun)
        except aiohttp.ClientError:
            failed += 1
            await asyncio.sleep(0.1)
async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(waits()) for _ in range(idle)]
        tasks += [asyncio.create_task(asks(session)) for _ in range(busy)]
        await asyncio.sleep(span)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    took.sort()
    print(f"{len(took) / span:.0f} answers/s, p50 {took[len(took) // 2]:.2f} s, "
          f"p99 {took[int(len(took) * 0.99)]:.2f} s, {failed} connections refused or closed", flush=True)
asyncio.run(main())
"""


def test_ticks_are_on_time_and_a_stop_is_quick_whatever_clients_do(tmp_path: Path) -> None:
    threads = threading.active_count()  # of other benchmarks
    config = tmp_path / "config.yaml"
    log = tmp_path / "log"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with prometheus(CLUSTERS) as port, log.open("wb") as stderr:
        config.write_text(configuration(port, CLUSTERS, 1))
        daemon = subprocess.Popen(
            [sys.executable, "-m", "autoscaler", "run", str(config)],
            stderr=stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard)),  # noqa: PLW1509 - one thread
        )
        try:
            url = started(log, daemon)
            process = psutil.Process(daemon.pid)
            time.sleep(5)
            before = parsed(download(url))
            arguments = [sys.executable, "-c", CLIENTS, url, str(IDLE), str(BUSY), str(SPAN + 10)]
            clients = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
            descriptors = 0
            deadline = time.monotonic() + SPAN
            while time.monotonic() < deadline:
                descriptors = max(descriptors, process.num_fds())
                time.sleep(0.1)
            after = parsed(download(url))
            written = log.stat().st_size
            stopped = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
            stopped = time.monotonic() - stopped
            printed = clients.communicate()[0]
        finally:
            daemon.kill()
            daemon.wait()
    messages = Counter(json.loads(line)["message"][-80:] for line in log.read_text().splitlines()[201:]).most_common(3)
    p99 = quantile(before, after, "autoscaler_tick_lateness_seconds", 0.99)
    missing = sum(value for (name, _), value in after.items() if name == "autoscaler_reading_missing")
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{IDLE} idle and {BUSY} busy clients, {CLUSTERS} clusters every second, {SPAN:.0f} s"
        f"\n  lateness     {p99 * 1000:7.1f} ms at p99, at most"
        f"\n  SIGTERM      {stopped:7.2f} s"
        f"\n  descriptors  {descriptors:7} at most, of 1,024"
        f"\n  log          {written:7} bytes"
        f"\n  missing      {missing:7.0f} readings"
        f"\n  clients      {printed.strip()}"
        f"\n  log lines    {messages}"
    )
    assert missing == 0
    # The printed figures are the result; these bounds distinguish a blocked loop from a slow machine.
    assert p99 <= 1
    assert stopped < 10
    assert descriptors < 512
    assert threading.active_count() == threads
