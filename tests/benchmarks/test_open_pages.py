"""1,000 open pages beside a daemon of 350 clusters: ticks stay on time, and each page gets the changes."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from .test_daemon_cost import BASELINE, configuration, download, parsed, prometheus, quantile, started

pytestmark = pytest.mark.benchmark

CLUSTERS = 350
INTERVAL = 15
PAGES = 1000
SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))

# In a separate process: its share of the core must not be the daemon's. It only reads bytes, as 1,000 browsers would
# decode them on 1,000 machines.
CLIENTS = """
import asyncio, json, sys, time
host, port, pages, span = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
got, greeted, rows, cut = 0, 0, [], 0
async def page():
    global got, greeted, cut
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /api/v1/events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
            head = await reader.readuntil(b"event: hello")
            assert b" 200 " in head, head
            greeted += 1
            try:
                while part := await reader.read(1 << 16):
                    got += len(part)
                    rows.append(part.count(b"event: rows"))
            finally:
                greeted -= 1
            cut += 1
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            cut += 1
        await asyncio.sleep(1)
async def main():
    tasks = [asyncio.create_task(page()) for _ in range(pages)]
    deadline = time.monotonic() + 60
    while greeted < pages and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    print(json.dumps({"greeted": greeted, "cut": cut}), flush=True)
    before, rows[:], bytes_before = cut, [], got
    await asyncio.sleep(span)
    found = {"bytes": got - bytes_before, "events": sum(rows), "cut": cut - before, "open": greeted}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
asyncio.run(main())
"""


def test_ticks_are_on_time_while_a_thousand_pages_are_open(tmp_path: Path) -> None:
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = (min(8192, hard), hard)
    with prometheus(CLUSTERS) as port, log.open("wb") as stderr:
        config.write_text(configuration(port, CLUSTERS, INTERVAL))
        daemon = subprocess.Popen(
            [sys.executable, "-m", "autoscaler", "run", str(config)],
            stderr=stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),  # noqa: PLW1509 - one thread
        )
        clients = None
        try:
            url = started(log, daemon)
            process = psutil.Process(daemon.pid)
            time.sleep(INTERVAL + 5)
            alone = parsed(download(url))
            cpu = process.cpu_times()
            time.sleep(SPAN / 2)
            before = parsed(download(url))
            used = [_share(process, cpu, SPAN / 2)]
            host, number = url.removeprefix("http://").split(":")
            clients = _clients(host, number, files)
            assert clients.stdout is not None
            opened = json.loads(clients.stdout.readline())
            while_opening = parsed(download(url))
            cpu = process.cpu_times()
            timers = [str(CLUSTERS), str(INTERVAL), str(SPAN)]
            idle = subprocess.run([sys.executable, "-c", BASELINE, *timers], capture_output=True, text=True, check=True)
            machine = json.loads(idle.stdout)["p99"]
            read = json.loads(clients.stdout.readline())
            after = parsed(download(url))
            used.append(_share(process, cpu, SPAN))
            resident = process.memory_info().rss
            first = _page(url)
            stopped = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
            stopped = time.monotonic() - stopped
        finally:
            daemon.kill()
            daemon.wait()
            if clients is not None:
                clients.kill()
                clients.communicate()
    late = [
        quantile(one, other, "autoscaler_tick_lateness_seconds", 0.99)
        for one, other in ((alone, before), (before, while_opening), (while_opening, after))
    ]
    missing = sum(value for (name, _), value in after.items() if name == "autoscaler_reading_missing")
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{PAGES} open pages, {CLUSTERS} clusters every {INTERVAL} s, {SPAN:.0f} s"
        f"\n  lateness     {late[2] * 1000:7.1f} ms at p99, at most ({late[0] * 1000:.1f} without pages, "
        f"{late[1] * 1000:.1f} while they open; {machine * 1000:.1f} in a loop that has nothing else to do)"
        f"\n  CPU          {used[1]:7.1%} of a core ({used[0]:.1%} without pages)"
        f"\n  memory       {resident / 2**20:7.0f} MiB"
        f"\n  opened       {opened['greeted']:7} ({opened['cut']} had to try again)"
        f"\n  each page    {read['bytes'] / PAGES / SPAN / 1024:7.1f} KiB/s"
        f"\n  events       {read['events'] / PAGES / SPAN:7.2f} a second for each page"
        f"\n  cut off      {read['cut']:7} ({read['open']} open at the end)"
        f"\n  GET /        {first * 1000:7.1f} ms"
        f"\n  SIGTERM      {stopped:7.2f} s"
        f"\n  missing      {missing:7.0f} readings"
    )
    assert opened["greeted"] >= PAGES
    assert read["cut"] == 0
    assert read["events"] > 0
    assert late[2] <= 0.25 + 2 * machine  # on a machine with spare time, 250 ms
    assert missing == 0
    assert stopped < 10


def _share(process: psutil.Process, before: object, span: float) -> float:
    now = process.cpu_times()
    return float(now.user + now.system - before.user - before.system) / span  # type: ignore[attr-defined]


def _clients(host: str, port: str, files: tuple[int, int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENTS, host, port, str(PAGES), str(SPAN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),  # noqa: PLW1509 - one thread
    )


def _page(url: str) -> float:
    """The time for the page itself."""
    begun = time.monotonic()
    with urllib.request.urlopen(f"{url}/", timeout=30) as response:  # noqa: S310 - the daemon of this test
        response.read()
    return time.monotonic() - begun
