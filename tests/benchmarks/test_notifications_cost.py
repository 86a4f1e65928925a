"""The cost of notifications for a daemon of 1,000 clusters while a receiver hangs: ticks on time, a bounded queue."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from .test_daemon_cost import BASELINE, configuration, download, parsed, prometheus, quantile, started

pytestmark = pytest.mark.benchmark

CLUSTERS = 1000
INTERVAL = 15
SPAN = max(float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60")) / 2, 2.0 * INTERVAL)
"""Seconds of each of three parts: without the receiver, with it, and without it again."""

TOKEN = "t" * 32
LATENESS = "autoscaler_tick_lateness_seconds"
Metrics = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextmanager
def hanging() -> Iterator[int]:
    """A server that accepts connections and requests, and never answers; yields its port."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    for each in kept:
        each.close()


def order(url: str, number: int) -> None:
    """Pause all clusters again, which is a notification for each of them."""
    body = {"action": "pause", "clusters": ["*"], "for": "1h", "reason": f"number {number}"}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/v1/controls", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - the daemon of this test
        assert len(json.load(response)["clusters"]) == CLUSTERS


def part(url: str, process: psutil.Process, first: int) -> dict[str, Any]:
    """Tick and CPU figures of one part of the run, with a control for all clusters in each interval."""
    before, cpu, begun = parsed(download(url)), process.cpu_times(), time.monotonic()
    for number in range(int(SPAN / INTERVAL)):
        order(url, first + number)
        time.sleep(max(0.0, begun + (number + 1) * INTERVAL - time.monotonic()))
    after, now, span = parsed(download(url)), process.cpu_times(), time.monotonic() - begun

    def more(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0.0) - before.get(key, 0.0)

    ticks = more(f"{LATENESS}_count")
    return {
        "cpu": (now.user + now.system - cpu.user - cpu.system) / span,
        "late": quantile(before, after, LATENESS, 0.99),
        "mean": more(f"{LATENESS}_sum") / ticks,
        "ticks": ticks / span,
        "dropped": more("autoscaler_notifications_total", receiver="ops", outcome="dropped"),
        "sent": more("autoscaler_notifications_total", receiver="ops", outcome="sent"),
    }


def test_a_hanging_receiver_delays_no_tick_of_a_thousand_clusters(tmp_path: Path) -> None:
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    timers = [str(CLUSTERS), str(INTERVAL), "20"]
    idle = subprocess.run([sys.executable, "-c", BASELINE, *timers], capture_output=True, text=True, check=True)
    machine = json.loads(idle.stdout)["p99"]
    environment = {**os.environ, "BENCH_TOKEN": TOKEN}
    with prometheus(CLUSTERS) as port, hanging() as webhook, log.open("wb") as stderr:
        tokens = "tokens: [{name: bench, rights: write, token: '${BENCH_TOKEN}'}]"
        quiet = configuration(port, CLUSTERS, INTERVAL).replace("decisions: 100}", f"decisions: 100, {tokens}}}", 1)
        receivers = f"notifications: {{ops: {{to: {{type: webhook, url: 'http://127.0.0.1:{webhook}/'}}, rate: 600}}}}"
        notifying = quiet.replace("decisions: 100,", f"decisions: 100, {receivers},", 1)
        config.write_text(quiet)
        command = [sys.executable, "-m", "autoscaler", "run", str(config)]
        daemon = subprocess.Popen(command, stderr=stderr, env=environment)
        try:
            url = started(log, daemon)
            process = psutil.Process(daemon.pid)
            time.sleep(INTERVAL + 5)
            parts = []
            for number, text in enumerate((quiet, notifying, quiet)):
                if number:
                    config.write_text(text)
                    daemon.send_signal(signal.SIGHUP)
                    wait_for(log, '"configuration reloaded"', number)
                parts.append(part(url, process, 100 * number))
            resident = process.memory_info().rss
            stopped = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
            stopped = time.monotonic() - stopped
        finally:
            daemon.kill()
            daemon.wait()
    first, hung, last = parts
    without = {key: (first[key] + last[key]) / 2 for key in ("cpu", "mean", "ticks")}
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\n{CLUSTERS} clusters every {INTERVAL} s, one notification for each at each tick, parts of {SPAN:.0f} s"
        f"\n  lateness     {hung['mean'] / without['mean']:7.2f} times as much with a webhook that hangs: "
        f"{hung['mean'] * 1000:.1f} ms in the mean, without {first['mean'] * 1000:.1f} before and "
        f"{last['mean'] * 1000:.1f} after"
        f"\n  at p99       {hung['late'] * 1000:7.1f} ms at most, without {first['late'] * 1000:.1f} and "
        f"{last['late'] * 1000:.1f} ({machine * 1000:.1f} in a loop that has nothing else to do)"
        f"\n  CPU          {hung['cpu'] / without['cpu']:7.2f} times as much: {hung['cpu']:.1%} of a core, without "
        f"{first['cpu']:.1%} and {last['cpu']:.1%}"
        f"\n  ticks        {hung['ticks']:7.1f} a second, without {without['ticks']:.1f}"
        f"\n  dropped      {hung['dropped']:7.0f} notifications of a full queue"
        f"\n  memory       {resident / 2**20:7.0f} MiB"
        f"\n  SIGTERM      {stopped:7.2f} s"
    )
    assert hung["sent"] == 0
    assert hung["dropped"] > 0  # the queue of 1,000 was full
    assert hung["ticks"] >= 0.8 * CLUSTERS / INTERVAL
    assert hung["late"] <= 0.25 + 2 * machine + max(first["late"], last["late"])
    assert stopped < 20


def wait_for(log: Path, text: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while log.read_text().count(text) < count:
        assert time.monotonic() < deadline, f"{text} is not in the log"
        time.sleep(0.1)
