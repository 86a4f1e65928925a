"""A PostgreSQL server from Debian's package, for tests: only the tests use it, and they leave nothing behind."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from autoscaler.demo.processes import free_port

PASSWORD = "p%ss/w:rd@1"  # must be encoded in a URL
ENCODED = "p%25ss%2Fw%3Ard%401"

# Nobody needs the data after a test, and a test is too short for the writes of a durable server.
FAST = ("fsync=off", "max_wal_size=4GB", "checkpoint_timeout=1h")


def programs() -> Path:
    """The directory of its programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        missing = "no PostgreSQL server (Debian: apt-get install postgresql)"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found[-1].parent


class PostgresServer:
    """A server that tests start and stop, or suspend by a signal as if its machine were frozen."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.port = free_port()
        self._directory = directory
        self._settings = (*FAST, *settings)
        self._numbers = itertools.count(1)
        # The server refuses to run as root.
        self._user = None
        if os.geteuid() == 0:
            self._user = next(
                name for name in ("postgres", "nobody") if any(name == each[0] for each in pwd.getpwall())
            )
            shutil.chown(directory, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        secret = directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}", "--username=ann", "--locale=C.UTF-8"
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    def url(self, database: str, password: str = ENCODED) -> str:
        return f"postgresql://ann:{password}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The URL of a new database."""
        name = f"db{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, query: str, url: str = "") -> list[tuple[object, ...]]:
        with psycopg.connect(url or self.url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        command = [str(programs() / "postgres"), "-D", str(self._directory / "data"), "-p", str(self.port)]
        for setting in (f"unix_socket_directories={self._directory}", "listen_addresses=127.0.0.1", *self._settings):
            command += ["-c", setting]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, user=self._user, cwd="/")
        deadline = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, (self._directory / "log").read_text()
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._directory / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Kill it in the middle of its work."""
        if self._process is not None:
            self.go_on()
            self._process.send_signal(signal.SIGINT)  # a fast shutdown
            self._process.wait(60)
            self._process = None

    def hang(self) -> None:
        """Suspend all of its processes."""
        for pid in self._processes():
            with suppress(ProcessLookupError):  # one of a closed connection
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):  # one of a closed connection
                os.kill(pid, signal.SIGCONT)

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(programs() / program), "-D", str(self._directory / "data"), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd="/", capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def postgres(*settings: str) -> Iterator[PostgresServer]:
    """A running server. Its directory is not below those of pytest, which only their owner may enter."""
    programs()
    directory = Path(tempfile.mkdtemp(prefix="autoscaler-postgres-"))
    try:
        server = PostgresServer(directory, *settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
