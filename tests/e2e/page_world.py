"""A real daemon with a day of history, and a real browser that shows its page."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from autoscaler import config
from autoscaler.core.model import ClusterState
from autoscaler.daemon.state_store import open_state_store
from autoscaler.demo.processes import free_port
from autoscaler.ports import Record
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS

T = TypeVar("T")

expect.set_options(timeout=30_000)  # milliseconds: CI has two cores, and runs other tests at the same time

PATIENCE = 60.0
WRITE, READ, EXPIRED = "w" * 32, "r" * 32, "e" * 32
PICTURES = os.environ.get("AUTOSCALER_PAGE_PICTURES")
"""A directory for pictures of the page; without it none are made."""

HEAD = """
daemon:
  directory: {directory}/var
  listen: "127.0.0.1:{port}"
  log: json
  decisions: 100000
  tokens:
    - {{name: alice, rights: write, token: "${{PAGE_WRITE}}"}}
    - {{name: grafana, rights: read, token: "${{PAGE_READ}}"}}
    - {{name: carol, rights: write, token: "${{PAGE_EXPIRED}}", expires: 2026-01-31}}
sources:
  web: {{type: http, url: "{url}", fresh: 200ms, timeout: {timeout}ms}}
clusters:
"""

CLUSTER = """
  {name}:
    interval: {interval}ms
    timeout: {timeout}ms
    target: {{type: advice, size: {size}, follow: true}}
    min: {least}
    max: {most}
    metrics:
      lag: {{source: web, path: '"{name}".lag'}}
      arrivals: {{source: web, path: '"{name}".arrivals'}}
      throughput: {{source: web, path: '"{name}".throughput'}}
      utilization: {{source: web, path: '"{name}".utilization'}}
    policies:
      main: {{type: adaptive, objective: 60s}}
"""


def eventually(ask: Callable[[], T], patience: float = PATIENCE) -> T:
    deadline = time.monotonic() + patience
    while True:
        found = ask()
        if found or time.monotonic() > deadline:
            assert found, f"not within {patience:g} s"
            return found
        time.sleep(0.05)


class Metrics:
    """The metrics of the clusters: a JSON document at an address."""

    def __init__(self) -> None:
        self.clusters: dict[str, dict[str, Any]] = {}
        clusters = self.clusters

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(clusters).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def set(self, name: str, load: float, capacity: float, lag: float = 0.0) -> None:
        """Set the load of a cluster, which it processes as far as it can."""
        busy = 1.0 if lag else min(load / capacity, 1.0)
        self.clusters[name] = {
            "lag": lag,
            "arrivals": load,
            "throughput": capacity if lag else min(load, capacity),
            "utilization": busy,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class World:
    """A daemon process and its metrics."""

    directory: Path
    metrics: Metrics
    interval: int  # milliseconds between two decisions
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    written: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def config(self) -> Path:
        return self.directory / "config.yaml"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PAGE_WRITE": WRITE, "PAGE_READ": READ, "PAGE_EXPIRED": EXPIRED}

    def add(self, name: str, *, size: int, most: int, least: int = 1) -> None:
        times = {"interval": self.interval, "timeout": self.interval * 8 // 10}
        self.written.append(CLUSTER.format(name=name, size=size, least=least, most=most, **times))
        web = {"url": self.metrics.url, "timeout": self.interval * 6 // 10}
        head = HEAD.format(directory=self.directory, port=self.port, **web)
        self.config.write_text(head + "".join(self.written))

    def start(self) -> None:
        log = self.directory / "log"
        with log.open("wb") as file:
            command = [sys.executable, "-m", "autoscaler", "run", str(self.config)]
            self.process = subprocess.Popen(command, stderr=file, env=self.environment, cwd=self.directory)

        eventually(lambda: '"started"' in log.read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def reload(self, text: str) -> None:
        """Make the daemon use another configuration."""
        assert self.process is not None
        self.config.write_text(text)
        self.process.send_signal(signal.SIGHUP)

    def observed(self) -> int:
        """The number of clusters with a decision."""
        return sum(row["at"] is not None for row in self.get("/api/v1/clusters")["clusters"])

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(f"{self.url}{path}"))  # noqa: S310 - the daemon of this test

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {WRITE}", "Content-Type": "application/json"}
        return self._ask(urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers))  # noqa: S310

    def _ask(self, request: urllib.request.Request) -> Any:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - the daemon of this test
            return json.load(answer)


def remember_a_day(world: World, name: str) -> Record:
    """Write a day of history for a cluster: the decisions of its policies on a simulated day. Returns the last one."""
    spec = config.load(world.config, world.environment).clusters[name].spec
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1, seconds=15)  # noqa: TID251 - real daemons follow
    records: list[Record] = []
    load = load_by_name("diurnal24h", 1).scaled(11_000)
    simulated = replace(spec, interval=timedelta(seconds=15))
    result = run(simulated, PLANTS["k8s"], load, 1, record=records.append, start=start)
    _save(world, name, result.state, records)
    return records[-1]


def _save(world: World, name: str, state: ClusterState, records: Sequence[Record]) -> None:
    async def save() -> None:
        async with open_state_store(world.directory / "var", decisions=100_000) as store:
            for begin in range(0, len(records), 200):
                each = records[begin : begin + 200]
                await asyncio.gather(*(store.save(name, replace(state, at=r.decision.at), r) for r in each))

    with ThreadPoolExecutor(1) as other:  # Playwright runs its own loop in this thread
        other.submit(asyncio.run, save()).result()


def remember_a_week(world: World, name: str) -> Record:
    """Write a week of history at a decision per minute: seven times a simulated day. Returns the last decision."""
    spec = config.load(world.config, world.environment).clusters[name].spec
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=60)  # noqa: TID251 - real daemons follow
    day: list[Record] = []
    load = load_by_name("diurnal24h", 1).scaled(11_000)
    simulated = replace(spec, interval=timedelta(minutes=1))
    result = run(simulated, PLANTS["k8s"], load, 1, record=day.append, start=end - timedelta(days=1))
    records = [_later(record, timedelta(days=-back)) for back in range(6, -1, -1) for record in day]
    _save(world, name, result.state, records)
    return records[-1]


def _later(record: Record, by: timedelta) -> Record:
    return replace(
        record,
        observation=replace(record.observation, at=record.observation.at + by),
        decision=replace(record.decision, at=record.decision.at + by),
    )


@contextmanager
def world(directory: Path, interval: int = 1000) -> Iterator[World]:
    """A world without clusters; the daemon is not started yet."""
    found = World(directory, Metrics(), interval)
    try:
        yield found
    finally:
        found.stop()
        found.metrics.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, since Playwright's own download is not available everywhere."""
    program = shutil.which("chromium")
    if program is None:
        missing = "no chromium on the PATH (Debian: apt-get install chromium)"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """An open page and the messages of its console."""

    page: Page
    url: str
    said: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def open(self, fragment: str = "#/") -> None:
        self.page.goto(f"{self.url}/{fragment}")
        self.page.locator("#link.live").wait_for()

    def go(self, fragment: str) -> None:
        self.page.evaluate("fragment => { location.hash = fragment }", fragment)

    def enter(self, token: str) -> None:
        self.page.locator("#access").click()
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Use it").click()

    def problems(self) -> list[str]:
        """Errors and warnings in the console that should not be there."""
        return [text for text in self.said if not text.startswith("log:")]

    def violations(self) -> list[str]:
        """The violations that axe reports."""
        results = Axe().run(self.page, options={"resultTypes": ["violations"]})
        return [
            f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']]}"
            for each in results.response["violations"]
        ]

    def picture(self, name: str, **options: Any) -> None:
        if PICTURES:
            self.page.screenshot(path=Path(PICTURES) / f"page-{name}.png", **options)


@contextmanager
def tab_of(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """A tab with its own storage. At its end its console must have no errors."""
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 850}, "color_scheme": "dark", **options})
    try:
        page = context.new_page()
        found = Tab(page, url)

        def said(message: ConsoleMessage) -> None:
            # Chromium itself logs an answer with an error for every page that requests one.
            if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
                found.said.append(f"{message.type}: {message.text}")

        def alerted(dialog: Dialog) -> None:
            found.dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("console", said)
        page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
        page.on("dialog", alerted)
        page.on("request", lambda request: found.requested.append(request.url))
        yield found
        assert found.problems() == []
        assert found.dialogs == []
    finally:
        context.close()


Opener = Callable[..., Any]


def opener(browser: Browser, world: World) -> Opener:
    """Opens tabs of a daemon."""
    return partial(tab_of, browser, world.url)
