"""Several copies of the daemon as processes over a real PostgreSQL, each behind a proxy that can be cut or slow."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from autoscaler.daemon.postgres_store import open_postgres_store
from tests.postgres_server import PostgresServer

PATIENCE = 90.0
INTERVAL = 4.0
RATE, PERIOD = 2, 15.0
"""Replicas by which a cluster may grow within so many seconds."""

WAVE = 80.0
"""Seconds in which the load of a cluster is once low and once high."""

CLUSTER = """
  {name}:
    interval: {interval:g}s
    timeout: 3s
    target: {{type: recorded, path: '{directory}/sizes/{name}'}}
    min: 1
    max: 9
    metrics: {{load: {{source: wave, phase: {phase}}}}}
    policies:
      rate: {{type: target-tracking, metric: load, target: 100, mode: total}}
    up: {{window: 0s, rates: [{{kind: replicas, value: {rate}, period: {period:g}s}}]}}
    down: {{window: 8s, rates: [{{kind: replicas, value: 8, period: 4s}}]}}
    lookback: 30s
"""

_LOGGED = """
CREATE TABLE lease_log (cluster text, copy uuid, term bigint, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION log_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO autoscaler.lease_log (cluster, copy, term) VALUES (new.cluster, new.copy, new.term); RETURN NULL;
END $$;
CREATE TRIGGER logged AFTER INSERT OR UPDATE ON lease FOR EACH ROW EXECUTE FUNCTION log_lease();
CREATE TABLE tick_log (cluster text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION log_tick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO autoscaler.tick_log (cluster) VALUES (new.cluster); RETURN NULL;
END $$;
CREATE TRIGGER logged AFTER INSERT ON decision FOR EACH ROW EXECUTE FUNCTION log_tick();
"""
"""What the database itself says about who had which lease and what was decided when, by its one clock."""


class Call(NamedTuple):
    """One call of a target."""

    at: float
    process: int
    cluster: str
    before: int
    after: int


class Way:
    """A proxy to a server that can be cut or can delay each piece of data."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self._server = port
        self._open = True
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Close the connections, and refuse new ones."""
        with self._lock:
            self._open = False
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        # That alone does not end a thread that waits in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._server)) as far:
            with self._lock:
                if not self._open:
                    return
                self._sockets += [near, far]
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()
            with self._lock:
                self._sockets = [each for each in self._sockets if each not in (near, far)]

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass
class CopyProcess:
    """One copy."""

    process: subprocess.Popen[bytes]
    way: Way
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def messages(self) -> list[str]:
        return [str(line["message"]) for line in self.lines()]

    @property
    def url(self) -> str:
        found = eventually(lambda: [line for line in self.lines() if line["message"] == "started"], self.log.read_text)
        return str(found[0]["url"])

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as response:  # noqa: S310 - our own
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with closing(error):
                return error.code, json.load(error)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE) as response:  # noqa: S310 - our own
            text = response.read().decode()
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")))


def eventually(ask: Callable[[], Any], trouble: Callable[[], str] = str, patience: float = PATIENCE) -> Any:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(trouble())


@dataclass
class Copies:
    """The copies, their clusters and their database."""

    directory: Path
    server: PostgresServer
    database: str
    names: list[str]
    environment: dict[str, str]
    processes: list[CopyProcess] = field(default_factory=list)

    def configure(self) -> None:
        (self.directory / "sizes").mkdir()
        clusters = "".join(
            CLUSTER.format(
                name=name,
                directory=self.directory,
                phase=number * WAVE / len(self.names),
                interval=INTERVAL,
                rate=RATE,
                period=PERIOD,
            )
            for number, name in enumerate(self.names)
        )
        (self.directory / "config.yaml").write_text(
            "daemon: {directory: 'var/${NUMBER}', state: '${DATABASE}', listen: '127.0.0.1:0', log: json}\n"
            f"sources:\n  wave: {{type: wave, period: {WAVE:g}}}\nclusters:{clusters}"
        )

    def start(self, ahead: float = 0.0) -> CopyProcess:
        """Start another copy, whose clocks are so many seconds ahead."""
        way = Way(self.server.port)
        number = len(self.processes)
        log = self.directory / f"log-{number}"
        url = self.server.url(self.database).replace(f":{self.server.port}/", f":{way.port}/")
        shifted = [str(Path(__file__).with_name("shifted.py")), str(ahead)] if ahead else ["-m", "autoscaler"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *shifted, "run", str(self.directory / "config.yaml")],
                stderr=output,
                env={**self.environment, "DATABASE": url, "NUMBER": str(number)},
            )
        self.processes.append(CopyProcess(process, way, log))
        return self.processes[-1]

    @property
    def running(self) -> list[CopyProcess]:
        return [each for each in self.processes if each.process.poll() is None]

    def query(self, query: str) -> list[tuple[Any, ...]]:
        return self.server.execute(query, self.server.url(self.database))

    def owners(self) -> dict[str, str]:
        """Cluster -> the URL of the copy that owns it."""
        rows = self.query(
            "SELECT cluster, url FROM autoscaler.lease JOIN autoscaler.copy ON id = copy "
            "WHERE seen > clock_timestamp() - interval '15 s'"
        )
        return {str(cluster): str(url) for cluster, url in rows}

    def owned_by(self, copy: CopyProcess) -> set[str]:
        return {name for name, url in self.owners().items() if url == copy.url}

    def balanced(self) -> bool:
        """Whether each cluster has an owner, and each running copy has about its share."""
        owners = list(self.owners().values())
        counts = [owners.count(each.url) for each in self.running]
        mean = len(self.names) / len(counts)
        return len(owners) == len(self.names) and all(mean / 2 < count < mean * 2 for count in counts)

    def wait_until_balanced(self, patience: float = PATIENCE) -> None:
        eventually(self.balanced, lambda: f"{self.owners()}", patience)

    def ticks(self) -> dict[str, list[float]]:
        found = defaultdict(list)
        for cluster, at in self.query("SELECT cluster, extract(epoch FROM at)::float FROM autoscaler.tick_log"):
            found[str(cluster)].append(float(at))
        return {name: sorted(times) for name, times in found.items()}

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a tick of any cluster between two times."""
        longest = 0.0
        ticks = self.ticks()
        for name in self.names:
            within = [at for at in ticks[name] if begin <= at <= end]
            edges = [begin, *within, end]
            longest = max(longest, *(later - earlier for earlier, later in pairwise(edges)))
        return longest

    def calls(self) -> list[Call]:
        path = self.directory / "sizes" / "calls"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Call(float(at), int(pid), name, int(before), int(after)) for at, pid, name, before, after in rows]

    def terms(self) -> dict[str, list[tuple[float, str | None, int]]]:
        """Cluster -> start, copy and term of each ownership."""
        found = defaultdict(list)
        for cluster, copy, term, at in self.query(
            "SELECT cluster, copy, term, extract(epoch FROM at)::float FROM autoscaler.lease_log ORDER BY at"
        ):
            found[str(cluster)].append((float(at), None if copy is None else str(copy), int(term)))
        return found

    def callers_by_term(self) -> dict[tuple[str, int], set[int]]:
        """Cluster and term -> the processes that called its target during that term."""
        terms, found = self.terms(), defaultdict(set)
        for call in self.calls():
            changes = terms[call.cluster]
            at = bisect_right(changes, call.at, key=lambda change: change[0]) - 1
            found[call.cluster, changes[at][2]].add(call.process)
        return found

    def calls_without_lease(self) -> list[Call]:
        """The calls that were made while no copy owned the lease."""
        terms, found = self.terms(), []
        for call in self.calls():
            changes = terms[call.cluster]
            at = bisect_right(changes, call.at, key=lambda change: change[0]) - 1
            if at < 0 or changes[at][1] is None:
                found.append(call)
        return found

    def faster_than_the_rate(self) -> list[tuple[str, list[Call]]]:
        """The clusters that grew by more than their rate limit allows, and their calls within its period."""
        found = []
        by_cluster = defaultdict(list)
        for call in self.calls():
            by_cluster[call.cluster].append(call)
        for name, calls in by_cluster.items():
            for index, call in enumerate(calls):
                # Replicas removed within the period may come back. The period counts between ticks: a tick that waited
                # for the database was up to 5 s before its call.
                before = calls[: index + 1]
                up = [each.after - each.before for each in before if each.at > call.at - PERIOD + 5]
                down = [each.before - each.after for each in before if each.at > call.at - PERIOD - 5]
                if sum(max(0, size) for size in up) - sum(max(0, size) for size in down) > RATE:
                    found.append((name, before[-5:]))
        return found

    def stop(self) -> None:
        for each in self.processes:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGCONT)
                each.process.kill()
            each.process.wait()
            each.way.close()


@contextmanager
def copies(directory: Path, server: PostgresServer, clusters: int) -> Iterator[Copies]:
    """An empty database, and the configuration of copies that share it. None is started."""
    site = directory / "site"
    information = site / "recorded_plugins-1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("recorded_plugins.py"), site)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: recorded-plugins\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[autoscaler.sources]\nwave = recorded_plugins:Wave\n"
        "[autoscaler.targets]\nrecorded = recorded_plugins:Recorded\n"
    )
    database = server.database().rsplit("/", 1)[1]
    names = [f"cluster-{number}" for number in range(clusters)]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = Copies(directory, server, database, names, {**os.environ, "PYTHONPATH": path})
    found.configure()
    asyncio.run(_create_tables(server.url(database)))
    found.query("SET search_path TO autoscaler; " + _LOGGED)
    try:
        yield found
    finally:
        found.stop()


async def _create_tables(url: str) -> None:
    async with open_postgres_store(url, decisions=1):
        pass
