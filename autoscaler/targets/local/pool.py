"""A pool of worker processes on this machine.

The pool is declarative: it keeps the last requested number of workers alive. Its state is in its directory, so that
workers outlive the daemon and the next daemon finds them:

    lock             held while a daemon uses the directory
    desired.json     the last requested size
    workers/N.json   one record per worker: pid, start time, token, address, whether it is being drained
    logs/N.log       the worker's output
    work/N/          its working directory
    local/N/         its temporary files, removed when it ends

`Pool` manages the processes. A `Kind` defines how to start and drain a worker.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from autoscaler.clients.shared_requests import cancel_all
from autoscaler.core.foreign import format_exception
from autoscaler.ports import EdgeError, RefusedError, TargetStatus, UnavailableError, Workforce
from autoscaler.targets.local import processes

_log = logging.getLogger("autoscaler.targets")
_MAX_WORKERS = 250  # of one pool, because each worker has its own address in one block of 254
_STARTUP_DELAY = 3.0  # seconds before the first change without a request, so that `autoscaler plan` changes nothing
_PICK_TIMEOUT = 5.0  # seconds for the engine to name its workers
_KEPT_LOGS = 20  # number of ended workers whose logs and working directories are kept


class Kind(Protocol):
    """A kind of worker."""

    @property
    def drain_signal(self) -> signal.Signals | None:
        """The signal that makes a worker finish its work, so that its child processes end. None: SIGTERM is enough."""
        ...

    def launch(self, place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command line and the environment of a worker."""
        ...

    async def registered(self, places: Collection[Place]) -> int:
        """The number of these workers that are registered with the cluster. Raises EdgeError when it is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """The address and the directories of one worker.

    Attributes:
        address: the worker's loopback address. Another worker may get it after this one has ended.
        work: the worker's working directory.
        local: the worker's directory for large files.
        number: the worker's number in the pool, which is not reused.
    """

    address: str
    work: Path
    local: Path
    number: int


@dataclass(frozen=True, slots=True)
class Times:
    """The time-outs of a pool; see `Local`."""

    drain: timedelta
    grace: timedelta
    backoff: timedelta
    max_backoff: timedelta


@dataclass(slots=True, kw_only=True)
class Worker:
    """A worker's record. It is written before the start, so `pid` may be missing."""

    number: int
    token: str
    address: str
    pid: int | None = None
    start: int | None = None
    draining: bool = False


class Pool:
    """A running pool. Several coroutines may use it at once; the last requested size counts."""

    def __init__(
        self, directory: Path, kind: Kind, times: Times, poll: float = 0.5, delay: float = _STARTUP_DELAY
    ) -> None:
        self._delay = delay
        self._directory = directory
        self._kind = kind
        self._times = times
        self._poll = poll
        self._desired = 0
        self._workers: dict[int, Worker] = {}
        self._started_at: dict[int, float] = {}
        self._drains: dict[int, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._maintenance: asyncio.Task[None] | None = None
        self._losses = 0
        self._not_before = 0.0
        self._failure: str | None = None
        self._ended: list[int] = []
        self._workforce: Callable[[], Workforce] | None = None
        # Two pools rarely get the same block, and addresses in use are skipped.
        block = hashlib.sha256(str(directory).encode()).digest()
        self._block = f"127.{block[0] % 254 + 1}.{block[1]}"

    async def open(self) -> None:
        """Read the records, find the workers, and start the maintenance of the pool."""
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
        self._maintenance = asyncio.create_task(self._maintain(), name=f"pool {self._directory}")

    async def close(self) -> None:
        """Release the pool. The workers go on; the next `open` resumes unfinished drains."""
        await cancel_all(task for task in (self._maintenance, *self._drains.values()) if task is not None)

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Set the engine that reports the cost of losing each worker."""
        self._workforce = workforce

    async def describe(self) -> TargetStatus:
        """Return the last requested size, and the number of ready workers without those being drained."""
        self._check()
        serving = self._serving()
        try:
            alive = [self._place(worker) for worker in serving if self._lives(worker)]
        except OSError as error:
            raise UnavailableError(f"the processes of the pool in {self._directory} cannot be read: {error}") from error
        registered = await self._kind.registered(alive) if alive else 0
        remarks = []
        if waiting := len(alive) - registered:
            remarks.append(f"{waiting} of {len(alive)} workers have not registered")
        if draining := len(self._workers) - len(serving):
            remarks.append(f"{draining} draining")
        if self._failure is not None:
            remarks.append(self._failure)
        return TargetStatus(desired=self._desired, ready=registered, remarks=tuple(remarks))

    async def scale(self, replicas: int) -> None:
        """Request a size. It is on disk when this method returns; workers are started and drained afterwards."""
        self._check()
        if not 0 <= replicas <= _MAX_WORKERS:
            raise RefusedError(f"a local pool has from 0 to {_MAX_WORKERS} workers, not {replicas}")
        if replicas == self._desired:
            return
        try:
            _write(self._directory / "desired.json", {"desired": replicas})
        except OSError as error:
            raise UnavailableError(f"the requested size cannot be written to {self._directory}: {error}") from error
        _log.info(
            "size requested",
            extra={"directory": str(self._directory), "before": self._desired, "to": replicas},
        )
        self._desired = replicas
        # A new request resets the back-off.
        self._losses, self._not_before = 0, 0.0
        self._wake.set()

    # ---- maintenance

    async def _maintain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._delay):
                await self._wake.wait()
        while True:
            pause = self._poll
            try:
                self._notice_losses()
                self._start_missing()
                await self._drain_surplus()
                while self._ended:
                    await asyncio.to_thread(self._clean, self._ended.pop())
            except OSError as error:  # it may be temporary, such as too many open files
                self._back_off(f"the workers cannot be checked, started or drained: {error}")
                pause = self._not_before - self._now()
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def _check(self) -> None:
        for task in (self._maintenance, *self._drains.values()):
            if task is not None and task.done() and not task.cancelled() and (error := task.exception()):
                raise EdgeError(f"the pool in {self._directory} has stopped working: {error!r}") from error

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _serving(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if not worker.draining]

    def _lives(self, worker: Worker) -> bool:
        if worker.pid is None:
            return False
        process = processes.find(worker.pid)
        return process is not None and process.start == worker.start

    def _notice_losses(self) -> None:
        serving = self._serving()
        for worker in serving:
            if self._lives(worker):
                continue
            code = processes.reap(worker.pid) if worker.pid is not None else None
            how = "" if code is None else f" (signal {-code})" if code < 0 else f" (exit code {code})"
            self._kill(worker)  # ends executors that the worker may have left behind
            self._forget(worker)
            self._back_off(f"worker {worker.number} ended by itself{how}, see {self._log_file(worker.number)}")
        limit = self._times.max_backoff.total_seconds()
        now = self._now()
        # Only a pool that has been complete for a while resets the back-off. Otherwise a single worker that keeps
        # failing would be restarted without a back-off.
        complete = len(serving) == self._desired
        if self._losses and complete and all(now - self._started_at.get(each.number, now) > limit for each in serving):
            self._losses, self._failure = 0, None

    def _back_off(self, problem: str) -> None:
        limit = self._times.max_backoff.total_seconds()
        wait = min(self._times.backoff.total_seconds() * 2.0 ** min(self._losses, 30), limit)
        self._losses += 1
        self._not_before = self._now() + wait
        self._failure = f"{problem}; failure {self._losses} in a row, next start after {wait:g} s"
        _log.warning("%s", self._failure, extra={"directory": str(self._directory)})

    def _start_missing(self) -> None:
        for _ in range(self._desired - len(self._serving())):
            if self._now() < self._not_before:
                return
            try:
                self._start()
            except (OSError, EdgeError) as error:
                self._back_off(f"a worker cannot be started: {error}")

    async def _drain_surplus(self) -> None:
        costs = await self._costs() if len(self._serving()) > self._desired else {}
        # Drain the workers with the lowest cost first; with equal cost, the newest first.
        by_cost = sorted(self._serving(), key=lambda worker: (costs.get(worker.address, 0.0), -worker.number))
        for worker in by_cost[: max(0, len(by_cost) - self._desired)]:
            worker.draining = True
            try:
                self._record(worker)
            except OSError:
                worker.draining = False
                raise
        for worker in self._workers.values():
            if worker.draining and worker.number not in self._drains:
                self._drains[worker.number] = asyncio.create_task(self._drain(worker), name=f"drain {worker.number}")

    async def _costs(self) -> dict[str, float]:
        """Address -> the cost of losing its worker, as far as the engine reports it."""
        if self._workforce is None:
            return {}
        try:
            async with asyncio.timeout(_PICK_TIMEOUT):
                found = await self._workforce().workers()
            return {host: worker.cost for worker in found for host in worker.hosts}
        except Exception as error:  # noqa: BLE001 - a plug-in's error of any kind must not end the pool
            _log.info("draining the newest workers: their costs are unknown", extra={"error": format_exception(error)})
            return {}

    # ---- one worker

    def _start(self) -> None:
        worker = Worker(number=self._next_number(), token=secrets.token_hex(16), address=self._free_address())
        place = self._place(worker)
        for path in (place.work, place.local):
            path.mkdir(exist_ok=True)
        command, environment = self._kind.launch(place)
        # Write the record before the start, so that every worker has one.
        self._record(worker)
        try:
            worker.pid = processes.spawn(
                command, {**environment, processes.VARIABLE: worker.token}, self._log_file(worker.number)
            )
        except OSError:
            self._forget(worker)
            raise
        started = processes.find(worker.pid)
        # If the worker has already ended, it counts as lost at the next poll.
        worker.start = started.start if started is not None else -1
        self._workers[worker.number] = worker
        self._started_at[worker.number] = self._now()
        self._record(worker)
        _log.info(
            "worker started",
            extra={"worker": worker.number, "pid": worker.pid, "address": worker.address},
        )

    def _place(self, worker: Worker) -> Place:
        return Place(
            address=worker.address,
            work=self._directory / "work" / str(worker.number),
            local=self._directory / "local" / str(worker.number),
            number=worker.number,
        )

    async def _drain(self, worker: Worker) -> None:
        """Wait until the worker has finished its work, then end it and all processes that it started."""
        while True:
            try:
                return await self._try_to_drain(worker)
            except OSError as error:  # it may be temporary, see `_maintain`
                self._back_off(f"worker {worker.number} cannot be drained: {error}")
                await asyncio.sleep(self._not_before - self._now())

    async def _try_to_drain(self, worker: Worker) -> None:
        begun = self._now()
        if self._kind.drain_signal is not None and self._signal(worker, self._kind.drain_signal):
            # Wait until the signal has taken effect: the worker may be about to start an executor.
            await asyncio.sleep(self._poll)
            while self._lives(worker) and self._others(worker):
                if self._now() - begun > self._times.drain.total_seconds():
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
            if self._now() - drained > self._times.grace.total_seconds():
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
            # The daemon was killed after the start and before it recorded the pid. The oldest process is the worker.
            worker.pid, worker.start = family[0].pid, family[0].start
            self._record(worker)
        known = worker.pid is not None and worker.start is not None
        if known and processes.matches(worker.pid or 0, worker.start or 0, worker.token):
            self._workers[worker.number] = worker
            self._started_at[worker.number] = self._now()
            return
        self._kill(worker)  # the worker has ended, but its executors may still run
        _log.info("worker ended while no daemon was running", extra={"worker": worker.number, "pid": worker.pid})
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
                f"{path} does not contain the size of the pool ({error}); correct or remove it"
            ) from error
        if not isinstance(desired, int) or not 0 <= desired <= _MAX_WORKERS:
            raise RefusedError(f"{path} contains {desired!r}, expected the size of a pool (0 to {_MAX_WORKERS})")
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
        self._started_at.pop(worker.number, None)
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
    """End all workers of a pool that no daemon uses, without draining, and set its size to 0.

    Args:
        directory: the pool's directory.
        grace: seconds between SIGTERM and SIGKILL.

    Raises:
        RefusedError: a daemon still uses the pool.
    """
    if not directory.is_dir():
        return
    with locked(directory):
        _write(directory / "desired.json", {"desired": 0})
        paths = sorted((directory / "workers").glob("*.json"))
        workers = [Worker(**json.loads(path.read_text())) for path in paths]
        deadline = time.monotonic() + grace
        number = signal.SIGTERM
        while families := [(worker, left) for worker in workers if (left := processes.family(worker.token))]:
            for worker, family in families:
                for process in family:
                    # Send SIGTERM only to the worker, which ends its own executors.
                    if number == signal.SIGKILL or process.pid == worker.pid:
                        processes.send(process.pid, process.start, worker.token, number)
            time.sleep(0.1)
            if time.monotonic() > deadline or not any(processes.find(worker.pid or 0) for worker in workers):
                number = signal.SIGKILL
        for path in paths:
            path.unlink()


def request_size(directory: Path, replicas: int) -> None:
    """Request a size while no daemon uses the pool. The next daemon starts with this size."""
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        _write(directory / "desired.json", {"desired": replicas})


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the pool's lock.

    Raises:
        RefusedError: another process holds the lock; the message names that process.
        UnavailableError: the lock file cannot be opened.
    """
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
    """Replace the file atomically. The content is on disk when this function returns."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
