"""`history follow` as a process: killed at any moment, asked to stop, scaled by what it reports."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed (extra spark)"),
]

DAEMONS, HOURS = 4, 6
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=900m", "--conf", "spark.sql.shuffle.partitions=2")
PATIENCE = 300.0


@dataclass
class Place:
    """Daemons' directories, a dataset, and the processes that were started."""

    root: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write(self, hours: range) -> None:
        """Hours of all daemons, packed as they do it."""
        from tests.pipeline.test_follow import NOON, packed  # noqa: PLC0415 - it needs PySpark

        for daemon in range(DAEMONS):
            for hour in hours:
                packed(self.root / f"d{daemon}" / "history", NOON + timedelta(hours=hour))

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
        """All that was started, with the Java of each."""
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


def rows(place: Place) -> list[dict[str, Any]]:
    query = (
        "SELECT cluster, count(*) AS n, count(DISTINCT at) AS instants FROM decisions GROUP BY cluster ORDER BY cluster"
    )
    command = [sys.executable, "-m", "autoscaler", "history", "query", str(place.dataset), query, "--json", *SMALL]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_killed_in_the_middle_it_loses_nothing_and_adds_nothing_twice(place: Place) -> None:
    place.write(range(HOURS))
    first = place.start("--available-now", "--files", "5")
    # In the middle of the second batch: its rows are being written.
    staging = place.dataset / "_staging"
    place.until(lambda: len(place.batches()) == 1 and staging.exists() and any(staging.iterdir()), first)
    place.kill()
    done = len(place.batches())
    assert done < 5
    second = place.start("--available-now", "--files", "5", out="again")
    assert second.wait(PATIENCE) == 0, (place.root / "again").read_text()
    told = place.batches("again")
    assert [batch["batch"] for batch in told] == list(range(done, 5))
    assert sum(batch["files"] for batch in [*place.batches(), *told]) == DAEMONS * HOURS
    each = 3 * HOURS
    assert rows(place) == [{"cluster": f"d{number}", "n": each, "instants": each} for number in range(DAEMONS)]


def test_it_reports_the_files_that_wait_and_stops_when_it_is_told_to(place: Place) -> None:
    from autoscaler.demo.stage import free_port  # noqa: PLC0415 - it needs PySpark

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
    told = reported()
    assert told[:2] == [(0, 3, 4), (3, 4, 4)], "of four files three are read first, and one waits"
    assert [start for start, _, _ in told[1:]] == [end for _, end, _ in told[:-1]]
    assert all(end <= latest <= 2 * DAEMONS for _, end, latest in told)
    assert told[-1][2] == 2 * DAEMONS
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0, (place.root / "out").read_text()

    place.write(range(2, 3))
    process = place.start("--trigger", "1s", out="interrupted")
    place.until(lambda: place.batches("interrupted"), process, "interrupted")
    # As a terminal does it: to Java as well.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130, (place.root / "interrupted").read_text()
    assert "Traceback" not in (place.root / "interrupted").read_text()
    assert rows(place) == [{"cluster": f"d{number}", "n": 9, "instants": 9} for number in range(DAEMONS)]
