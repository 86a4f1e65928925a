"""A document of 490,000 numbers beside a healthy cluster: memory, state and ticks of the daemon."""

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from .test_hanging_names import scrape, wait_for

pytestmark = pytest.mark.benchmark

SPAN = float(os.environ.get("AUTOSCALER_BENCH_SECONDS", "60"))
SETTLE = 30.0
"""Seconds until Python's allocator has the memory that documents of this size take in turn."""

DOCUMENT = b"[" + b"1," * 489_999 + b"1]"

CONFIG = """
daemon: {{directory: var, listen: '127.0.0.1:0', log: json}}
sources:
  large: {{type: http, url: 'http://127.0.0.1:{port}/large', max_bytes: 10000000}}
  small: {{type: http, url: 'http://127.0.0.1:{port}/small'}}
clusters:
"""
CLUSTER = """
  {name}:
    interval: 1s
    target: {{type: advice, size: 3}}
    max: 20
    metrics: {{load: {{source: {name}, path: '@'}}}}
    policies: {{rate: {{type: target-tracking, metric: load, target: 100}}}}
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = DOCUMENT if self.path == "/large" else b"100"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_memory_stays_flat(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config, log = tmp_path / "config.yaml", tmp_path / "log"
    clusters = "".join(CLUSTER.format(name=name) for name in ("large", "small"))
    config.write_text(CONFIG.format(port=server.server_port) + clusters)
    with log.open("wb") as stderr:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr, cwd=tmp_path)
    try:
        url = wait_for(log, "started")["url"]
        time.sleep(SETTLE)
        process = psutil.Process(daemon.pid)
        before, resident = scrape(url), [process.memory_info().rss / 1e6]
        for _ in range(6):
            time.sleep(SPAN / 6)
            resident.append(process.memory_info().rss / 1e6)
        after = scrape(url)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait()
        server.shutdown()
        server.server_close()
    lateness = "autoscaler_tick_lateness_seconds_bucket"
    counts = sorted(
        (float(labels[0][1]), n - before.get((name, labels), 0.0))
        for (name, labels), n in after.items()
        if name == lateness
    )
    p99 = next(bound for bound, count in counts if count >= 0.99 * counts[-1][1])
    state = sum(path.stat().st_size for path in (tmp_path / "var").rglob("*") if path.is_file())
    print(  # noqa: T201 - the figures are the point of a benchmark
        f"\na document of 490,000 numbers every second for {SPAN:.0f} s"
        f"\n  resident  {' '.join(f'{each:.0f}' for each in resident)} MB"
        f"\n  state     {state / 1e6:.1f} MB in all"
        f"\n  lateness  {p99 * 1000:.0f} ms at p99, at most, of both clusters"
    )
    assert resident[-1] < 1.1 * resident[0]
