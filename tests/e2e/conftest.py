"""Fixtures that several tests use and that take minutes to make."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from tests.e2e.test_demo import played, require_demo

POLL_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Poll:
    """The CPU use of the machine at one time.

    Attributes:
        at: seconds since 1970.
        idle: idle CPU seconds.
        ours: CPU seconds of this process and all that it has started.
    """

    at: float
    idle: float
    ours: float


class Machine:
    """The machine while a demo runs on it, observed from a separate thread."""

    def __init__(self, output: Path) -> None:
        """Observe the machine during the demo with this output directory."""
        self._clock = output / "work" / "clock.json"
        self._start: float | None = None
        self._polls: list[Poll] = []
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join()

    def others(self, begin: float, end: float) -> float:
        """The share that other processes had of it between two times, in seconds since the load began.

        That is all time that was neither idle nor ours, including time that the host of a virtual machine gave to
        another one.
        """
        assert self._start is not None
        polls = [poll for poll in self._polls if begin <= poll.at - self._start <= end]
        first, last = polls[0], polls[-1]
        rest = last.idle - first.idle + last.ours - first.ours
        return 1 - rest / ((last.at - first.at) * (os.cpu_count() or 1))

    def _watch(self) -> None:
        me = psutil.Process()
        ours: dict[psutil.Process, float] = {}
        while not self._over.wait(POLL_INTERVAL):
            if self._start is None and self._clock.exists():
                self._start = json.loads(self._clock.read_text())["start"]
            for process in (me, *me.children(recursive=True)):
                ours.setdefault(process, 0.0)
            # A process that has ended keeps its CPU time, and a process that has lost its parent is still ours.
            for process in ours:
                with suppress(psutil.Error):
                    if process.is_running():
                        used = process.cpu_times()
                        ours[process] = used.user + used.system
            machine = psutil.cpu_times()
            self._polls.append(Poll(time.time(), machine.idle + machine.iowait, sum(ours.values())))


@pytest.fixture(scope="session")
def spark_demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a short demo on Spark, and as `others` the share that other processes had of the machine.

    The share is from the rise of the load until the last request: the period that a simulation covers.
    """
    require_demo(tmp_path_factory)
    output = tmp_path_factory.mktemp("demo") / "output"
    with Machine(output) as machine:
        result = played(output, "--duration", "110")
    return {**result, "others": machine.others(result["load_rises_at_s"], result["rescales"][-1]["at"])}
