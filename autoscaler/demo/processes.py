"""Start the demo's processes with their logs, watch them, and end all of them."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from autoscaler.ports import AutoscalerError, EdgeError
from autoscaler.targets.local import processes
from autoscaler.targets.local.pool import stop_workers

LINES = 15
"""Lines of a log that are shown if its process has failed."""

QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options for short-lived processes that share two cores: less background compilation, less memory."""


class DemoError(AutoscalerError):
    """The demo cannot continue; the message has the reason and the log to read."""


class Processes:
    """The processes of one run, identified by a token in their environment.

    Attributes:
        logs: directory of the logs, one per process.
        pool: directory of the worker pool that the daemon manages.
    """

    def __init__(self, logs: Path, pool: Path) -> None:
        self.logs = logs
        self.pool = pool
        self._token = secrets.token_hex(16)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process in a session of its own, so that Ctrl-C interrupts only this process.

        Raises:
            DemoError: the process cannot be started.
        """
        try:
            with self.log(name).open("wb") as log:
                self._running[name] = subprocess.Popen(  # noqa: S603 - what is started comes from this package
                    argv,
                    env={**environment, processes.VARIABLE: self._token},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise DemoError(f"the {name} cannot be started: {error}") from error

    def pid(self, name: str) -> int:
        """The id of a running process."""
        return self._running[name].pid

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.logs / f"{name}.log"

    def check(self) -> None:
        """Check that all processes still run.

        Raises:
            DemoError: a process has ended; the message shows the end of its log.
        """
        for name, process in self._running.items():
            if (code := process.poll()) is not None:
                raise DemoError(self.with_log(name, f"the {name} ended unexpectedly ({_how(code)})"))

    def with_log(self, name: str, problem: str) -> str:
        """Append the end of a process's log to the description of a problem."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()[-LINES:]
        except OSError as error:
            lines = [f"(cannot be read: {error})"]
        return "\n".join((f"{problem}; the end of {self.log(name)}:", *(f"  {line}" for line in lines)))

    def stop(self, name: str, seconds: float) -> None:
        """Send SIGTERM to a process and wait for it.

        Raises:
            DemoError: the process did not end in time, or it failed.
        """
        self._running[name].send_signal(signal.SIGTERM)
        self.wait_for_exit(name, seconds)

    def wait_for_exit(self, name: str, seconds: float) -> None:
        """Wait for a process to end by itself.

        Raises:
            DemoError: the process did not end in time, or it failed.
        """
        try:
            code = self._running[name].wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise DemoError(self.with_log(name, f"the {name} did not end within {seconds:g} s")) from error
        del self._running[name]
        # A JVM ends with 128 + 15 on SIGTERM.
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise DemoError(self.with_log(name, f"the {name} failed ({_how(code)})"))

    def clear(self, grace: float = 5.0) -> None:
        """End all processes: first the daemon, which would replace stopped workers, then the workers and the rest."""
        self._end([name for name in self._running if name == "daemon"], grace)
        try:
            stop_workers(self.pool, grace)
        except (EdgeError, OSError, ValueError, TypeError) as error:
            # This run has created the pool's directory, so only a foreign daemon could have locked it.
            raise DemoError(f"the workers of {self.pool} could not be stopped: {error}") from error
        finally:
            self._end(list(self._running), grace)
            while left := processes.family(self._token):
                for process in left:
                    processes.send(process.pid, process.start, self._token, signal.SIGKILL)
                time.sleep(0.05)

    def _end(self, names: list[str], grace: float) -> None:
        ending = [self._running.pop(name) for name in names]
        for process in ending:
            process.terminate()
        deadline = time.monotonic() + grace
        for process in ending:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore signals during the clean-up, which takes seconds: a second Ctrl-C would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A free port of the loopback address, a different one at each call.

    The port is below the kernel's ephemeral ports. A starting cluster uses many of those, and the process that gets
    this port may take seconds until it listens on it.
    """
    while True:
        port = _LOWEST_PORT + secrets.randbelow(max(1000, _first_ephemeral_port() - _LOWEST_PORT))
        if port in _given:
            continue
        with socket.socket() as found, suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("127.0.0.1", port))
            _given.add(port)
            return port


_LOWEST_PORT = 10_240
_given: set[int] = set()


def _first_ephemeral_port() -> int:
    """The first ephemeral port of the kernel."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
