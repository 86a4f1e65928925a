"""The demo on Flink: a cluster in Reactive Mode with a Java job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.clients.java_home import find_jdk
from autoscaler.demo.config import Parts
from autoscaler.demo.environment import (
    JOB,
    PARTITIONS,
    STOP_TIMEOUT,
    Environment,
    FinishedJob,
    get,
    url,
    variables_without,
)
from autoscaler.demo.flink.cluster import (
    TASK_MANAGER_MEMORY,
    Job,
    compile_job,
    job_manager,
    read_files,
    stop_job,
    write_conf,
)
from autoscaler.demo.processes import QUICK_START, DemoError, Processes, free_port
from autoscaler.targets.local.workers import flink_home

COST = 45  # milliseconds of waiting per record: at most 22 records/s per slot
PENDING = "Source__log.pendingRecords"


class FlinkEnvironment(Environment):
    """Flink's JobManager, which runs the job's main program. The daemon scales the TaskManagers."""

    def __init__(self, processes: Processes, work: Path) -> None:
        super().__init__(processes, work)
        self._home = flink_home()
        self.java = find_jdk()
        java = {"JAVA_HOME": str(self.java), "FLINK_ENV_JAVA_OPTS": QUICK_START}
        self.variables = variables_without("FLINK_") | java
        self._conf = work / "conf"
        self._rpc, self._rest = free_port(), free_port()
        self._url = url(self._rest)
        self._job = Job(name=JOB, clock=self._clock, sink=self._sink, partitions=PARTITIONS, cost=COST)

    @property
    def parts(self) -> Parts:
        """The parts of the daemon's configuration that depend on Flink."""
        return Parts(
            about_source="the job, read from the REST API of Flink's JobManager",
            source={"type": "flink", "url": self._url, "job": JOB, "window": "10s"},
            about_target="what is scaled: TaskManagers of one slot each on this machine",
            target={
                "kind": "flink-taskmanager",
                "directory": str(self._processes.pool),
                "flink_conf": str(self._conf),
                "flink_rest": self._url,
                "slots": 1,
                "memory": TASK_MANAGER_MEMORY,
            },
            about_engine="Reactive Mode restarts the job on all available slots",
            timeout="1800ms",
            restart=4,
            about_restart="the whole job restarts, from its latest checkpoint",
            utilization=True,
            settle={},
            per_worker=1000 / COST,
        )

    def start_cluster(self) -> None:
        """Compile the job and start the JobManager with it."""
        write_conf(
            self._conf,
            {
                "jobmanager.rpc.port": str(self._rpc),
                "rest.port": str(self._rest),
                "execution.checkpointing.dir": (self._work / "checkpoints").as_uri(),
            },
        )
        jar = compile_job(self.java, self._home, self._work / "job")
        command, environment = job_manager(self._home, self.java, self._conf, jar, self._job, QUICK_START.split())
        self._processes.start("jobmanager", command, {**self.variables, **environment})

    def up(self) -> bool:
        """Whether the JobManager responds and has the job."""
        return self._line() is not None

    def start_job(self) -> None:
        """Do nothing: the JobManager already has the job, which waits for a slot."""

    def running(self) -> bool:
        """Whether all tasks of the job run."""
        line = self._line()
        return line is not None and line["state"] == "RUNNING" and line["tasks"]["running"] == line["tasks"]["total"]

    def lag(self, offered: int) -> int | None:  # noqa: ARG002 - Flink's source has a metric of its own
        """The waiting records, from the metric of the job's source."""
        vertex = self._source()
        found = None if vertex is None else get(f"{vertex}/subtasks/metrics?get={PENDING}&agg=sum")
        return int(found[0]["sum"]) if found else None

    def facts(self) -> Mapping[str, Any]:
        """The number of restarts and of completed checkpoints of the job."""
        job = self._job_url()
        restarts = None if job is None else get(f"{job}/metrics?get=numRestarts")
        checkpoints = None if job is None else get(f"{job}/checkpoints")
        return {
            "restarts": int(restarts[0]["value"]) if restarts else None,
            "checkpoints": checkpoints["counts"]["completed"] if checkpoints else None,
        }

    def finish(self) -> FinishedJob:
        """Stop the job with a savepoint and read its files."""
        line = self._line()
        if line is None:
            raise DemoError(self._processes.with_log("jobmanager", "the JobManager no longer has the job"))
        stop_job(self._url, line["jid"], self._work / "savepoint", STOP_TIMEOUT)
        self._processes.wait_for_exit("jobmanager", STOP_TIMEOUT)
        output = self._read_sink(read_files)
        problems = [f"the state is not exact: key {key} was not counted 1, 2, 3, ..." for key in output.miscounted]
        return FinishedJob(output.arrivals, problems)

    def _line(self) -> dict[str, Any] | None:
        jobs = (get(f"{self._url}/jobs/overview") or {}).get("jobs")
        return jobs[0] if jobs else None

    def _job_url(self) -> str | None:
        line = self._line()
        return None if line is None else f"{self._url}/jobs/{line['jid']}"

    def _source(self) -> str | None:
        url = self._job_url()
        job = None if url is None else get(url)
        return None if job is None else f"{url}/vertices/{job['vertices'][0]['id']}"
