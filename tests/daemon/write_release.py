"""Writes state and history of this version for test_releases, at a release: `python -m tests.daemon.write_release`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.docs.refresh import VERSION

RELEASES = Path(__file__).parent / "data" / "releases"
TOKEN = "of-a-test-and-long-enough"
SECONDS = 30
CONFIG = """\
daemon:
  directory: state
  listen: "127.0.0.1:0"
  log: json
  tokens: [{{name: alice, rights: write, token: "{token}"}}]
sources:
  load: {{type: http, url: "http://127.0.0.1:{port}/"}}
clusters:
  held: &usual
    interval: 1s
    timeout: 900ms
    min: 1
    max: 9
    target: {{type: advice, size: 2}}
    metrics:
      arrivals: {{source: load, path: arrivals}}
      lag: {{source: load, path: lag}}
      throughput: {{source: load, path: arrivals}}
    policies: {{p: {{type: target-tracking, metric: arrivals, target: 100, mode: total}}}}
  learning: {{<<: *usual, policies: {{p: {{type: adaptive, objective: 60s}}}}}}
"""


class Load(BaseHTTPRequestHandler):
    """Arrivals that start at 150/s and rise by 10/s each second."""

    begun = time.monotonic()

    def do_GET(self) -> None:
        arrivals = 150 + 10 * int(time.monotonic() - self.begun)
        text = json.dumps({"arrivals": arrivals, "lag": 10 * arrivals}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    directory = RELEASES / VERSION
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Load) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (directory / "config.yaml").write_text(CONFIG.format(port=server.server_port, token=TOKEN))
        command = [sys.executable, "-m", "autoscaler"]
        log = directory / "log"
        with log.open("wb") as file:
            daemon = subprocess.Popen([*command, "run", "config.yaml"], cwd=directory, stderr=file)
        while not (found := re.search(r'"url": ?"([^"]+)"', log.read_text())):
            if daemon.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        order = ["hold", "4", "held", "--until-resumed", "--reason", "a release", "--url", found[1]]
        environment = {**os.environ, "AUTOSCALER_TOKEN": TOKEN}
        subprocess.run([*command, *order], env=environment, check=True)
        time.sleep(SECONDS)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        server.shutdown()
    for name in ("log", "state/lock"):
        (directory / name).unlink()


if __name__ == "__main__":
    main()
