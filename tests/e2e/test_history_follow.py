"""`history follow` as a process: killed at any moment, stopped, and scaled by the autoscaler."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from autoscaler.targets.local.workers import spark_home
from tests.e2e.test_local_target import get, java, until

__all__ = ["java"]  # a fixture

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed (extra spark)"),
]

if TYPE_CHECKING:
    from autoscaler.demo.processes import Processes

DAEMONS, HOURS = 4, 6
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=900m", "--conf", "spark.sql.shuffle.partitions=2")
PATIENCE = 600.0


@dataclass
class Place:
    """Daemons' directories, a dataset, and the started processes."""

    root: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write(self, hours: range, *more: bytes) -> None:
        """Write hours of all daemons, compressed as by them, with additional lines."""
        from tests.history.test_follow import NOON, packed  # noqa: PLC0415 - it needs PySpark

        for daemon in range(DAEMONS):
            for hour in hours:
                packed(self.root / f"d{daemon}" / "history", NOON + timedelta(hours=hour), *more)

    def start(self, *options: str, out: str = "out") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "autoscaler", "history", "follow", f"{self.root}/*/history", str(self.dataset)]
        with (self.root / out).open("wb") as output:
            process = subprocess.Popen(
                [*command, "--json", *SMALL, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)
        return process

    @property
    def dataset(self) -> Path:
        return self.root / "dataset"

    def batches(self, out: str = "out") -> list[dict[str, Any]]:
        lines = (self.root / out).read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def until(self, true: Callable[[], object], process: subprocess.Popen[bytes], out: str = "out") -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, (self.root / out).read_text()
            assert process.poll() is None, (self.root / out).read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all started processes, with the Java of each."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.kill()


def halt(place: Place, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Stop it in the middle of a batch that is not the first, while its rows are being written; returns its report."""
    staging = place.dataset / "_staging"
    while True:
        place.until(lambda: place.batches() and staging.exists(), process)
        os.killpg(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        # The report is removed before the batch is reported, so that everything reported now is complete.
        if staging.exists():
            return place.batches()
        os.killpg(process.pid, signal.SIGCONT)


def rows(place: Place) -> list[dict[str, Any]]:
    query = (
        "SELECT cluster, count(*) AS n, count(DISTINCT at) AS instants FROM decisions GROUP BY cluster ORDER BY cluster"
    )
    command = [sys.executable, "-m", "autoscaler", "history", "query", str(place.dataset), query, "--json", *SMALL]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("killed", ["all of it", "all of it, with Spark", "its Java", "Java for odd files"])
def test_killed_in_the_middle_it_loses_and_duplicates_nothing(place: Place, killed: str) -> None:
    place.write(range(HOURS), *([b"nonsense\n"] if killed == "Java for odd files" else []))
    # With this option it uses Spark's checkpoint.
    by_spark = ["--explain"] if killed in {"all of it, with Spark", "its Java"} else []
    options = ("--available-now", "--files", "5", *by_spark)
    first = place.start(*options)
    before = halt(place, first)
    if "Java" in killed:
        for child in psutil.Process(first.pid).children(recursive=True):
            child.kill()
        os.killpg(first.pid, signal.SIGCONT)
        assert first.wait(PATIENCE) == 1
        # PySpark's own threads write something too, before or after it.
        (why,) = re.findall("autoscaler: Spark ended during the query: .*", (place.root / "out").read_text())
        assert "run this again: it continues with the same files" in why
    place.kill()
    second = place.start(*options, out="again")
    assert second.wait(PATIENCE) == 0, (place.root / "again").read_text()
    again = place.batches("again")
    assert [batch["batch"] for batch in again] == list(range(len(before), 5))
    assert sum(batch["files"] for batch in [*before, *again]) == DAEMONS * HOURS
    each = 3 * HOURS
    assert rows(place) == [{"cluster": f"d{number}", "n": each, "instants": each} for number in range(DAEMONS)]


def test_it_reports_the_waiting_files_and_stops_when_requested(place: Place) -> None:
    from autoscaler.demo.processes import free_port  # noqa: PLC0415 - it needs PySpark

    port = free_port()
    place.write(range(1))
    process = place.start("--trigger", "1s", "--files", "3", "--report", f"127.0.0.1:{port}")
    place.until(lambda: sum(batch["files"] for batch in place.batches()) == DAEMONS, process)
    place.write(range(1, 2))

    def reported() -> list[tuple[int, int, int]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/progress", timeout=30) as answer:
            (query,) = json.loads(answer.read())["queries"]
        sources = [batch["sources"][0] for batch in query["progress"] if batch["rows"]]
        return [(source["start"], source["end"], source["latest"]) for source in sources]

    place.until(lambda: reported() and reported()[-1][1] == 2 * DAEMONS, process)
    batches = reported()
    assert batches[:2] == [(0, 3, 4), (3, 4, 4)], "of four files three are read first, and one waits"
    assert [start for start, _, _ in batches[1:]] == [end for _, end, _ in batches[:-1]]
    assert all(end <= latest <= 2 * DAEMONS for _, end, latest in batches)
    assert batches[-1][2] == 2 * DAEMONS
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0, (place.root / "out").read_text()

    place.write(range(2, 3))
    process = place.start("--trigger", "1s", out="interrupted")
    place.until(lambda: place.batches("interrupted"), process, "interrupted")
    # Like a terminal: to Java too.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130, (place.root / "interrupted").read_text()
    assert "Traceback" not in (place.root / "interrupted").read_text()
    assert rows(place) == [{"cluster": f"d{number}", "n": 9, "instants": 9} for number in range(DAEMONS)]


# On a cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "history-follow.yaml"
PILE = 60
"""Files that wait while the second worker is waited for."""


@dataclass
class Scaled:
    """The example: a Master, `history follow` on it, and the daemon, which starts all workers."""

    place: Place
    processes: Processes
    ui: int
    driver: int
    hours: int = 1

    def workers(self) -> int:
        """Workers of the Master."""
        self.processes.check()
        return sum(worker["state"] == "ALIVE" for worker in get(f"http://127.0.0.1:{self.ui}/json/")["workers"])

    def working(self) -> set[str]:
        """Executors that have completed tasks."""
        self.processes.check()
        base = f"http://127.0.0.1:{self.driver}/api/v1/applications"
        found = get(f"{base}/{get(base)[0]['id']}/allexecutors")
        return {one["id"] for one in found if one["id"] != "driver" and one["completedTasks"]}

    def taken(self) -> int:
        """Files that are in the dataset."""
        self.processes.check()
        lines = self.processes.log("follow").read_text().splitlines(keepends=True)
        return sum(json.loads(line)["files"] for line in lines if line.startswith("{") and line.endswith("\n"))

    def pile_up(self) -> None:
        """Let so many files wait that one worker is not enough."""
        while self.hours * DAEMONS - self.taken() < PILE:
            self.place.write(range(self.hours, self.hours + 1))
            self.hours += 1


@pytest.fixture
def scaled(place: Place, java: Path) -> Iterator[Scaled]:
    from autoscaler.demo.processes import Processes, free_port  # noqa: PLC0415 - it needs PySpark
    from autoscaler.demo.spark.cluster import spark_variables  # noqa: PLC0415

    root = place.root
    processes = Processes(root / "logs", root / "workers")
    port, ui, driver, report, page = (free_port() for _ in range(5))
    environment = spark_variables(java)
    text = EXAMPLE.read_text()
    for example, here in {
        "directory: var": f"directory: {root}/var, listen: '127.0.0.1:{page}'",
        "directory: workers": f"directory: {root}/workers",
        "127.0.0.1:7077": f"127.0.0.1:{port}",
        "127.0.0.1:8080": f"127.0.0.1:{ui}",
        "127.0.0.1:4050": f"127.0.0.1:{report}",
        "memory: 2g": "memory: 1g\n      worker_timeout: 60s",
        "max: 8": "max: 2\n    interval: 5s",
        # A batch every 4 s processes at most 4 files/s: with as many waiting that is never enough.
        "drain_time: 10m": "drain_time: 8s, restart: 2s",
    }.items():
        assert example in text
        text = text.replace(example, here)
    file = root / "history-follow.yaml"
    file.write_text(text)
    address = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
    properties = {
        "decommission.enabled": "true",
        "driver.host": "127.0.0.1",
        "driver.memory": "900m",
        "executor.memory": "640m",
        "sql.shuffle.partitions": 2,
        "ui.port": driver,
    }
    follow = (
        *("history", "follow", f"{root}/*/history", str(place.dataset), "--json", "--trigger", "4s", "--files", "16"),
        *("--report", f"127.0.0.1:{report}", "--master", f"spark://127.0.0.1:{port}"),
        *(f"--conf=spark.{name}={value}" for name, value in properties.items()),
    )
    found = Scaled(place, processes, ui, driver)
    command = (sys.executable, "-m", "autoscaler")
    try:
        spark_class = str(spark_home() / "bin" / "spark-class")
        processes.start("master", [spark_class, "org.apache.spark.deploy.master.Master", *address], environment)
        until(lambda: found.workers() == 0)
        place.write(range(found.hours))
        processes.start("daemon", [*command, "run", str(file)], environment)
        processes.start("follow", [*command, *follow], environment)
        yield found
    finally:
        processes.clear()


def test_the_autoscaler_scales_it_when_files_pile_up(scaled: Scaled) -> None:
    until(lambda: scaled.taken() == DAEMONS, PATIENCE)
    assert scaled.workers() == 1, "what the configuration has at least, and that suffices"

    def second_works() -> bool:
        scaled.pile_up()
        return len(scaled.working()) == 2

    until(second_works, PATIENCE)
    assert scaled.workers() == 2
    until(lambda: scaled.taken() == scaled.hours * DAEMONS, PATIENCE)
    scaled.processes.stop("follow", PATIENCE)
    scaled.processes.stop("daemon", PATIENCE)
    each = 3 * scaled.hours
    assert rows(scaled.place) == [{"cluster": f"d{number}", "n": each, "instants": each} for number in range(DAEMONS)]
