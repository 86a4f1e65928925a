"""The daemon scales the TaskManagers of a real Flink in Reactive Mode, and the job's state survives every change.

One job, one load that rises and falls, and in between a TaskManager that is killed and one that is stopped: the first
keeps its slots until its heartbeat times out (10 s here), the second releases them at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from autoscaler.demo.flink.cluster import TASK_MANAGER_MEMORY, read_files
from autoscaler.demo.load import split
from autoscaler.demo.processes import QUICK_START, free_port
from autoscaler.demo.sink import account
from autoscaler.targets.local.pool import request_size

from .flink_cluster import FlinkCluster, flink_cluster, get, kill, until

pytestmark = pytest.mark.e2e

COST = 45  # milliseconds: 22 records/s per slot at best
CALM, SURGE = 10.0, 46.0  # records/s: one slot suffices, two are too many
HEARTBEAT = 10.0  # seconds
# When one is killed, 230 to 330 records are waiting, and 46/s arrive for at least 8 s of heartbeat and 3 s of restart.
MUCH = 600
SETTLED = 150.0  # maximum seconds of any step

CONFIGURATION = """\
daemon: {{directory: {directory}/state, listen: "127.0.0.1:{listen}"}}
sources:
  job: &job {{type: flink, url: "{rest}", job: surge, window: 6s}}
clusters:
  surge:
    interval: 3s
    timeout: 2900ms
    target:
      type: local
      kind: flink-taskmanager
      directory: {directory}/pool
      flink_conf: {directory}/conf
      flink_rest: "{rest}"
      memory: {memory}
    engine: *job
    min: 1
    max: 4
    metrics:
      lag: {{source: job, metric: lag}}
      arrivals: {{source: job, metric: arrivals}}
      throughput: {{source: job, metric: throughput}}
      saturation: {{source: job, metric: saturation}}
    policies:
      drain: {{type: backlog-drain, drain_time: 90s, restart: 10s, stable_time: 6s}}
      # Knows nothing of rescales: it takes what piles up while the job stands still for load.
      naive: {{type: threshold, up: [{{metric: lag, above: {much}}}]}}
    down: {{window: 12s, cooldown: 5s}}
    settle: {{caught_up: 3m, backlog_time: 5s, short: 0.4}}
    capacity: {{per_replica: {per_replica:g}, sustained: 12s, warmup: 20s}}
    max_age: 30s
    lookback: 3m
"""


class Daemon:
    """`autoscaler run` as a separate process, observed through its API."""

    def __init__(self, flink: FlinkCluster) -> None:
        self._flink = flink
        listen = free_port()
        self._api = f"http://127.0.0.1:{listen}/api/v1/clusters/surge"
        file = flink.directory / "autoscaler.yaml"
        file.write_text(
            CONFIGURATION.format(
                directory=flink.directory,
                listen=listen,
                rest=flink.rest,
                memory=TASK_MANAGER_MEMORY,
                much=MUCH,
                per_replica=1000 / COST,
            )
        )
        environment = {**os.environ, "JAVA_HOME": str(flink.jdk), "FLINK_ENV_JAVA_OPTS": QUICK_START}
        flink.processes.start("daemon", [sys.executable, "-m", "autoscaler", "run", str(file)], environment)

    def settled_at(self, size: int) -> None:
        """Wait until so many TaskManagers exist and the job runs on all of them and has caught up."""

        def settled() -> bool:
            self._flink.processes.check()
            cluster = get(self._api)
            sizes = (cluster["current"], cluster["ready"])
            return sizes == (size, size) and cluster["rescale"] is None and self._flink.parallelism() == size

        until(settled, SETTLED, f"for {size} TaskManagers to settle")

    def sees_arrivals(self, rate: float) -> None:
        """Wait until the daemon has measured this many records/s, to within a fifth."""

        def seen() -> bool:
            found = get(self._api)["observation"]["metrics"].get("arrivals")
            return found is not None and abs(found["value"] - rate) < rate / 5

        until(seen, what=f"for the daemon to see {rate} records/s")

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions, oldest first."""
        return [each["decision"] for each in reversed(get(f"{self._api}/decisions?limit=500")["decisions"])]

    def says(self, text: str, start: float) -> None:
        """Wait until a note of a decision from a time on contains this text."""
        until(
            lambda: any(text in note for each in self.since(start) for _, note in each["notes"]),
            what=f"for the note {text!r}",
        )

    def since(self, start: float) -> list[dict[str, Any]]:
        """The decisions from a time on (seconds since 1970)."""
        return [each for each in self.decisions() if at(each) >= start]


def at(decision: dict[str, Any]) -> float:
    return datetime.fromisoformat(decision["at"]).timestamp()


@pytest.fixture
def flink(tmp_path: Path) -> Iterator[FlinkCluster]:
    settings = {"heartbeat.timeout": f"{HEARTBEAT:g}s"}
    with flink_cluster(tmp_path, settings, cost=COST) as cluster:
        yield cluster


def lose_one(flink: FlinkCluster, number: signal.Signals) -> tuple[float, float]:
    """End the oldest TaskManager; returns the time, and for how many seconds Flink still counted its slots."""
    record = min((flink.pool / "workers").glob("*.json"), key=lambda path: int(path.stem))
    worker = json.loads(record.read_text())
    name = f"{worker['address']}-{worker['number']}"
    assert name in flink.task_managers()
    lost = time.time()
    if number == signal.SIGKILL:
        kill(worker["pid"])
    else:
        os.kill(worker["pid"], number)
    until(lambda: name not in flink.task_managers(), what=f"for {name} to be given up")
    return lost, time.time() - lost


def test_task_managers_follow_the_load_and_no_state_is_lost(flink: FlinkCluster) -> None:
    request_size(flink.pool, 1)
    flink.start_job_manager()
    daemon = Daemon(flink)
    # Not before it runs: the arrivals while the first worker starts would be a jump, and the job would be scaled for
    # it.
    daemon.settled_at(1)
    flink.offer(CALM)
    daemon.sees_arrivals(CALM)
    daemon.settled_at(1)

    # The load rises: more workers are requested until there are three.
    risen = flink.offer(SURGE)
    daemon.settled_at(3)
    ups = [each for each in daemon.since(risen) if each["desired"] > each["current"]]
    assert ups[0]["current"] == 1
    assert ups[-1]["desired"] == 3

    # One is killed: its slots count, and the job is stalled, until its heartbeat times out.
    killed, counted_killed = lose_one(flink, signal.SIGKILL)
    daemon.says("the engine still counts their slots, as for workers that were killed or hang", killed)
    daemon.settled_at(3)
    assert counted_killed > HEARTBEAT / 2

    # One is stopped: its slots disappear at once.
    stopped, counted_stopped = lose_one(flink, signal.SIGTERM)
    daemon.says("the engine has given up their slots, as for workers that were stopped", stopped)
    daemon.settled_at(3)
    assert counted_stopped < counted_killed

    # The backlog of this time did not count as load. If a policy counted it, which depends on timing, a guard prevented
    # it.
    asked = {each["proposed"] for each in daemon.since(killed)}
    assert asked <= {3, 4}
    verdicts = [verdict for each in daemon.since(killed) for verdict in each["verdicts"]]
    held = {(each["guard"], each["before"], each["after"]) for each in verdicts if each["before"] != each["after"]}
    assert held == ({("settling", 4, 3)} if 4 in asked else set())
    assert [each for each in daemon.since(killed) if each["desired"] != each["current"]] == []

    # The load falls: back to one.
    fallen = flink.offer(CALM)
    daemon.settled_at(1)
    assert all(each["desired"] <= each["current"] for each in daemon.since(fallen))

    # Every record was read, counted and written exactly once.
    offered = flink.end_load()
    until(flink.drained, what="for the job to drain")
    flink.processes.stop("daemon", 20)
    flink.stop_job()
    written = read_files(flink.job.sink)
    heads = split(offered, flink.job.partitions)
    found = account(heads, ((arrival.partition, arrival.offset) for arrival in written.arrivals))
    assert found.exact, found
    assert written.miscounted == ()
    assert len({arrival.worker for arrival in written.arrivals}) >= 5
