"""`ReactiveJob` on a real Spark cluster: workers come, go and die, batches fail, and the counts are exact."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.test_local_target import Cluster, became, get, java, until

__all__ = ["java"]

pytestmark = pytest.mark.e2e

TOKEN = "let-me"

CONFIG = """
daemon: {{directory: '{directory}', listen: '{listen}'}}
sources:
  wish: {{type: http, url: 'http://127.0.0.1:{port}/'}}
clusters:
  reactive:
    interval: 1s
    timeout: 900ms
    engine: {{type: flink, url: '{url}', job: reactive}}
    target: {{type: flink-requirements, url: '{url}', job: reactive, token: {token}, timeout: 800ms}}
    min: 1
    max: 3
    metrics: {{wish: {{source: wish, path: wish}}}}
    policies:
      wish: {{type: target-tracking, metric: wish, target: 1, mode: total, tolerance_up: 0, tolerance_down: 0}}
    up: {{window: 0s}}
    down: {{window: 0s}}
"""

OWN_METRICS = """
daemon: {{directory: '{directory}', listen: '{listen}'}}
sources:
  job: {{type: flink, url: '{url}', job: reactive, window: 10s, timeout: 800ms}}
clusters:
  reactive:
    interval: 1s
    timeout: 900ms
    engine: {{type: flink, url: '{url}', job: reactive}}
    target: {{type: flink-requirements, url: '{url}', job: reactive, token: {token}, timeout: 800ms}}
    min: 1
    max: 3
    metrics:
      arrivals: {{source: job, metric: arrivals}}
      throughput: {{source: job, metric: throughput}}
      lag: {{source: job, metric: lag}}
      saturation: {{source: job, metric: saturation}}
    policies:
      arrivals: {{type: target-tracking, metric: arrivals, target: 40, mode: total}}
    up: {{window: 0s}}
    down: {{window: 0s}}
"""
"""The daemon's source, engine and target are Flink's, and the job has no other metrics."""


class Job:
    """A job under `ReactiveJob`, and its input files."""

    def __init__(self, directory: Path, java: Path, cluster: Cluster | None = None) -> None:
        from autoscaler.demo.processes import free_port  # noqa: PLC0415 - it needs pyspark

        self.cluster = cluster or Cluster(directory, java)
        self.name = "job" if cluster is None else f"job-{directory.name}"
        self.ui = free_port() if cluster else self.cluster.driver
        self.place = directory / "job"
        (self.place / "in").mkdir(parents=True)
        (self.place / "out").mkdir()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.files = 0
        self.wish = 3
        self.server: ThreadingHTTPServer | None = None

    def start(self, script: str = "reactive_job.py", **options: Any) -> None:
        settings = {
            "directory": str(self.place),
            "master": f"spark://127.0.0.1:{self.cluster.port}",
            "rest": self.url.removeprefix("http://"),
            "token": TOKEN,
            "conf": {
                "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
                "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
            },
            "options": options,
            "spark": {
                "spark.executor.cores": "1",
                "spark.executor.memory": "640m",
                "spark.driver.host": "127.0.0.1",
                "spark.sql.shuffle.partitions": "3",
                "spark.ui.port": str(self.ui),
            },
        }
        (self.place / "settings.json").write_text(json.dumps(settings))
        path = Path(__file__).with_name(script)
        root = Path(__file__).parents[2]
        environment = {**self.cluster.environment, "PYTHONPATH": str(root)}
        self.cluster.processes.start(
            self.name, [sys.executable, str(path), str(self.place / "settings.json")], environment
        )

    def write(self, files: int) -> None:
        for _ in range(files):
            words = [f"word {number % 100}" for number in range(1000)]
            path = self.place / "in" / f"{self.files}.part"
            path.write_text("\n".join(words))
            path.rename(self.place / "in" / f"{self.files}.txt")
            self.files += 1

    def counted(self) -> dict[str, int]:
        """The state written by the last batch."""
        batches = sorted(int(path.stem) for path in (self.place / "out").glob("*.json"))
        return json.loads((self.place / "out" / f"{batches[-1]}.json").read_text()) if batches else {}

    def expected(self) -> dict[str, int]:
        return {f"word {number}": 10 * self.files for number in range(100)}

    def id(self) -> str:
        (job,) = get(f"{self.url}/jobs/overview")["jobs"]
        return str(job["jid"])

    def slots(self) -> int:
        self.cluster.processes.check()
        return int(get(f"{self.url}/overview")["slots-total"])

    def state(self) -> str:
        return str(get(f"{self.url}/jobs/overview")["jobs"][0]["state"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def bound(self, upper: int) -> None:
        path = f"/jobs/{self.id()}/resource-requirements"
        bounds = {vertex: {"parallelism": {"lowerBound": 1, "upperBound": upper}} for vertex in get(self.url + path)}
        self.ask("PUT", path, bounds)

    def log(self) -> str:
        return self.cluster.processes.log(self.name).read_text()

    def active(self) -> set[str]:
        return {executor["id"] for executor in self.cluster.executors() if executor["isActive"]}

    def kill_executor(self) -> str:
        """Kill the process of an executor, but not its worker; returns Spark's id of it."""
        applications = f"http://127.0.0.1:{self.cluster.driver}/api/v1/applications"
        until(lambda: get(applications))  # the first answer of Spark's UI takes seconds on a busy machine
        (application,) = get(applications)
        active = self.active()
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if application["id"] in line and (name := line[line.index("--executor-id") + 1]) in active:
                process.kill()
                return str(name)
        raise AssertionError("no executor runs")

    def daemon(self) -> str:
        """Start a daemon that scales it to `wish`; returns its URL."""
        test = self

        class Wish(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"wish": test.wish}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Wish)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.daemon_of(CONFIG, port=self.server.server_address[1])

    def daemon_of(self, text: str, **values: Any) -> str:
        """Start a daemon with that configuration; returns its URL."""
        from autoscaler.demo.processes import free_port  # noqa: PLC0415 - it needs pyspark

        listen = f"127.0.0.1:{free_port()}"
        config = self.place / "daemon.yaml"
        config.write_text(text.format(directory=self.place / "var", listen=listen, url=self.url, token=TOKEN, **values))
        argv = [sys.executable, "-m", "autoscaler", "run", str(config)]
        self.cluster.processes.start("daemon", argv, dict(os.environ))
        return f"http://{listen}"

    def commits(self) -> list[float]:
        """The commit times of batches, by the files that they have written."""
        return sorted(path.stat().st_mtime for path in (self.place / "out").glob("*.json"))


@pytest.fixture
def job(tmp_path: Path, java: Path) -> Iterator[Job]:
    found = Job(tmp_path, java)
    try:
        yield found
    finally:
        found.cluster.processes.clear()
        if found.server is not None:
            found.server.shutdown()
            found.server.server_close()


def executed(job: Job) -> None:
    """Wait until all files are counted."""
    until(lambda: job.counted() == job.expected())


async def test_workers_come_go_and_die_and_a_batch_fails_and_the_counts_are_exact(job: Job) -> None:
    job.write(2)
    async with job.cluster.target() as pool:
        await pool.scale(1)
        await became(pool, desired=1, ready=1)
        job.start(min_slots=2)
        # It waits for its required slots.
        until(lambda: job.slots() == 1)
        assert job.state() == "CREATED"
        assert job.counted() == {}
        await pool.scale(3)
        await became(pool, desired=3, ready=3)
        executed(job)
        until(lambda: job.slots() == 3)
        assert job.state() == "RUNNING"

        # Lowering the bound releases executors and takes no new ones; raising it takes them.
        begun = time.monotonic()
        job.bound(2)
        until(lambda: job.slots() == 2, 15)
        assert time.monotonic() - begun < 15
        job.write(2)
        executed(job)
        assert job.slots() == 2
        # A lost executor is replaced.
        lost = job.kill_executor()
        until(lambda: lost not in job.active() and job.slots() == 2)
        job.bound(3)
        until(lambda: job.slots() == 3)

        # The daemon scales it, by a number in a document of a server.
        daemon = job.daemon()
        job.wish = 1
        until(lambda: job.slots() == 1)
        job.wish = 3
        until(lambda: job.slots() == 3)
        status = get(f"{daemon}/api/v1/clusters/reactive")
        assert status["observation"]["engine"]["job"] == "running"
        job.cluster.processes.stop("daemon", 30)

        # A worker that is killed.
        pid = pool._workers[3].pid
        assert pid is not None
        os.killpg(os.getpgid(pid), signal.SIGKILL)
        job.write(2)
        executed(job)

        # A batch that fails.
        (job.place / "fail").touch()
        job.write(1)
        executed(job)
        assert "this batch fails" in str(get(f"{job.url}/jobs/{job.id()}/exceptions"))

        job.write(1)
        executed(job)
        trigger = job.ask("POST", f"/jobs/{job.id()}/stop", {})["request-id"]
        assert trigger
        until((job.place / "ended").exists)
    assert (job.place / "ended").read_text() == "finished", job.log()
    assert job.counted() == job.expected()


async def test_the_daemon_scales_a_job_by_the_metrics_of_the_job_itself(job: Job) -> None:
    from autoscaler.demo.load import Load, start_clock  # noqa: PLC0415 - as in the demo

    began, steps = time.time(), [(0.0, 0.0)]

    def offer(rate: float | None = None) -> None:
        if rate is not None:
            steps.append((time.time() + 1 - began, rate))
        start_clock(job.place / "clock.json", Load(tuple(steps), 3600.0), began)

    def readings() -> dict[str, float]:
        last = get(f"{daemon}/api/v1/clusters/reactive")["observation"]
        return {name: one["value"] for name, one in last["metrics"].items()} if last else {}

    def comes_to(slots: int, arrivals: float) -> None:
        """Wait until the job runs on so many slots and reports this load."""

        def reached() -> bool:
            now = readings()
            return (
                job.slots() == slots
                and now.keys() == {"arrivals", "throughput", "lag", "saturation"}
                and abs(now["arrivals"] - arrivals) < arrivals / 5
                and now["throughput"] > 0
                and 0 <= now["saturation"] <= 1
            )

        until(reached, 240)

    offer()
    async with job.cluster.target() as pool:
        await pool.scale(3)
        await became(pool, desired=3, ready=3)
        job.start("reactive_log_job.py", preferred_slots=3)
        until(lambda: job.slots() == 3)
        daemon = job.daemon_of(OWN_METRICS)
        offer(30)
        comes_to(1, 30)
        offer(100)
        comes_to(3, 100)
        offer(30)
        comes_to(1, 30)
        print(readings())  # noqa: T201 - the figures


async def test_a_hung_worker_is_removed_after_the_heartbeat_timeout(job: Job) -> None:
    job.write(1)
    async with job.cluster.target() as pool:
        await pool.scale(2)
        await became(pool, desired=2, ready=2)
        job.start(heartbeat_timeout=10)
        executed(job)
        until(lambda: job.cluster.working() == 2)
        pid = pool._workers[2].pid
        assert pid is not None
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        for each in family:
            os.kill(each, signal.SIGSTOP)
        try:
            hung = time.time()
            while time.time() < hung + 40:
                job.write(1)
                await asyncio.sleep(1)
            commits = [at for at in job.commits() if at > hung]
            gap = max(after - before for before, after in pairwise([hung, *commits]))
            print(f"longest time without a commit: {gap:.1f} s")  # noqa: T201 - the figure
            assert len(commits) > 10
            assert gap < 10 + 5
        finally:
            for each in family:
                os.kill(each, signal.SIGCONT)
