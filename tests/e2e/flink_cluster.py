"""A real Flink in Reactive Mode for tests: a JobManager with a job, and TaskManagers as local processes.

    with flink_cluster(tmp_path) as flink:      # skips where there is no Flink or no compiler; fails in CI
        flink.start_job_manager()
        flink.start_task_manager(1)             # or let the target `local` do it
        flink.offer(40.0)                       # records per second from the next second on
        flink.get("/overview")

The job's source has the metric pendingRecords, which is its true lag. Everything is ended with the context.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.java_home import JavaNotFoundError, find_jdk
from autoscaler.demo.flink.cluster import TASK_MANAGER_MEMORY, Job, compile_job, job_manager, stop_job, write_conf
from autoscaler.demo.load import Load, start_clock
from autoscaler.demo.processes import QUICK_START, Processes, free_port
from autoscaler.ports import RefusedError
from autoscaler.targets.local.pool import Place
from autoscaler.targets.local.workers import FlinkTaskManagers, Sizes, flink_home, flink_sizes

FOREVER = 1_000_000.0
SOON = 1.0  # seconds until a new rate holds: no task has read beyond it by then


def until(condition: Callable[[], object], seconds: float = 90, what: str = "") -> None:
    """Wait for a condition; while an address does not answer, its condition does not hold."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, f"waited {seconds} s in vain {what}"
        time.sleep(0.25)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback addresses of our own
        return json.load(answer)


class FlinkCluster:
    """The processes of one cluster. `settings` override those of `autoscaler.demo.flink.cluster`."""

    def __init__(self, directory: Path, jdk: Path, home: Path, settings: Mapping[str, str], **job: Any) -> None:
        self.directory, self.jdk, self.home = directory, jdk, home
        self.conf = directory / "conf"
        self.pool = directory / "pool"
        self.processes = Processes(directory / "logs", self.pool)
        self.rest_port = free_port()
        self.job = Job(name="surge", clock=directory / "clock.json", sink=directory / "sink", **job)
        self._sizes: dict[int, Sizes] = {}
        write_conf(
            self.conf,
            {
                "jobmanager.rpc.port": str(free_port()),
                "rest.port": str(self.rest_port),
                "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
                **settings,
            },
        )
        self._began = 0.0
        self._steps: list[tuple[float, float]] = []
        self._end = FOREVER

    @property
    def rest(self) -> str:
        """Address of the REST API."""
        return f"http://127.0.0.1:{self.rest_port}"

    def get(self, path: str) -> Any:
        """Return an answer of the REST API."""
        return get(self.rest + path)

    def start_job_manager(self) -> None:
        """Start it with the job, which waits for the first TaskManager."""
        jar = compile_job(self.jdk, self.home, self.directory / "job")
        command, environment = job_manager(self.home, self.jdk, self.conf, jar, self.job, QUICK_START.split())
        self.processes.start("jobmanager", command, environment)
        until(self._job_id, what="for the JobManager and its job")

    def start_task_manager(self, number: int, slots: int = 1) -> None:
        """Start one without the target `local`; `processes.stop(f"taskmanager-{number}", 10)` stops it."""
        kind = FlinkTaskManagers(
            home=self.home, java=self.jdk, conf=self.conf, sizes=self.task_manager_sizes(slots), page=None
        )
        work = self.directory / f"taskmanager-{number}"
        work.mkdir()
        command, environment = kind.launch(Place(f"127.77.7.{number + 1}", work, work, number))
        self.processes.start(f"taskmanager-{number}", [command[0], *QUICK_START.split(), *command[1:]], environment)

    def task_manager_sizes(self, slots: int = 1) -> Sizes:
        """How a TaskManager's memory is divided. The first call takes a second."""
        if slots not in self._sizes:
            settings = {
                "taskmanager.numberOfTaskSlots": str(slots),
                "taskmanager.memory.process.size": TASK_MANAGER_MEMORY,
            }
            self._sizes[slots] = flink_sizes(self.home, self.jdk, self.conf, "GET_TM_RESOURCE_PARAMS", settings)
        return self._sizes[slots]

    def end_task_manager(self, number: int, how: signal.Signals) -> None:
        """Send a signal to one that `start_task_manager` has started, without waiting."""
        os.kill(self.processes.pid(f"taskmanager-{number}"), how)

    def job_id(self) -> str:
        """The id of the job."""
        return str(self.get("/jobs/overview")["jobs"][0]["jid"])

    def _job_id(self) -> object:
        return self.get("/jobs/overview")["jobs"]

    def job_state(self) -> str:
        """RUNNING, RESTARTING and so on."""
        return str(self.get("/jobs/overview")["jobs"][0]["state"])

    def parallelism(self) -> int:
        """The parallelism of the source with all tasks running."""
        vertex = self.get(f"/jobs/{self.job_id()}")["vertices"][0]
        return int(vertex["parallelism"]) if vertex["status"] == "RUNNING" else 0

    def slots(self) -> int:
        """The number of slots of the JobManager."""
        return int(self.get("/overview")["slots-total"])

    def task_managers(self) -> set[str]:
        """Names of the TaskManagers that the JobManager lists."""
        return {each["id"] for each in self.get("/taskmanagers")["taskmanagers"]}

    def pending(self) -> int | None:
        """Records waiting, by the source's metric, which may be two seconds old; None while the job restarts."""
        vertex = self.get(f"/jobs/{self.job_id()}")["vertices"][0]["id"]
        path = f"/jobs/{self.job_id()}/vertices/{vertex}/subtasks/metrics?get=Source__log.pendingRecords&agg=sum"
        found = self.get(path)
        return int(found[0]["sum"]) if found else None

    # ---- the load

    def offer(self, rate: float) -> float:
        """Offer so many records per second from the next second on; returns that time (seconds since 1970)."""
        at = time.time() + SOON
        self._began = self._began or at
        self._steps.append((at - self._began, rate))
        self._write()
        return at

    def end_load(self) -> int:
        """Stop offering records from the next second on; returns the total number of records at that time."""
        self._end = time.time() + SOON - self._began
        self._write()
        return self._load(self._end).offered(math.inf)

    def offered(self) -> int:
        """Records offered until now."""
        return self._load(self._end).offered(time.time() - self._began) if self._steps else 0

    def _load(self, duration: float) -> Load:
        return Load(tuple(self._steps), duration)

    def _write(self) -> None:
        start_clock(self.job.clock, self._load(self._end), self._began)

    def drained(self) -> bool:
        """Whether the load has ended and no records are waiting."""
        # Flink's metrics may be two seconds old.
        return time.time() > self._began + self._end + 3 and self.pending() == 0

    def take_checkpoint(self) -> int:
        """Trigger a checkpoint of the job; returns its number when it is complete."""
        path = f"/jobs/{self.job_id()}/checkpoints"
        request = urllib.request.Request(self.rest + path, b"{}", {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - loopback addresses of our own
            trigger = json.load(answer)["request-id"]
        until(lambda: self.get(f"{path}/{trigger}")["status"]["id"] == "COMPLETED", what="for a checkpoint")
        made = self.get(f"{path}/{trigger}")["operation"]
        assert "failure-cause" not in made, made
        return int(made["checkpointId"])

    def stop_job(self, seconds: float = 60) -> None:
        """Stop the job with a final savepoint: all read records are written. The JobManager ends with it."""
        stop_job(self.rest, self.job_id(), self.directory / "savepoint", seconds)
        self.processes.wait_for_exit("jobmanager", seconds)


@contextmanager
def flink_cluster(directory: Path, settings: Mapping[str, str] | None = None, **job: Any) -> Iterator[FlinkCluster]:
    """A cluster without running processes. Skips if Flink is missing, or fails if everything has to be installed."""
    try:
        jdk, home = find_jdk(), flink_home()
    except (JavaNotFoundError, RefusedError) as error:
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    cluster = FlinkCluster(directory, jdk, home, settings or {}, **job)
    try:
        yield cluster
    finally:
        cluster.processes.clear()


def kill(pid: int) -> None:
    """Kill the process like the machine when it is out of memory."""
    os.kill(pid, signal.SIGKILL)
