"""What the demo needs of an engine: a cluster, a job on it, and an exact account of what the job has processed."""

from __future__ import annotations

import importlib.util
import json
import os
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autoscaler.demo.config import Parts, api
from autoscaler.demo.processes import DemoError, Processes
from autoscaler.demo.sink import Arrival
from autoscaler.injob.reactive.snapshot import Step
from autoscaler.plugins import install_hint

T = TypeVar("T")

PARTITIONS = 6
"""Of the log: useful sizes are 1, 2, 3 and 6 workers."""

JOB = "autoscaler-demo"
"""The name of the job."""

STOP_TIMEOUT = 60.0
"""Seconds in which a job stops."""

FINAL_TIMEOUT = 60.0
"""Seconds for the requests at the end, on a busy machine."""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """What a stopped job has left.

    Attributes:
        arrivals: the records at the sink, in the order in which they were processed.
        problems: what else shows that the job was not exact.
        commits: when each batch was committed, seconds since 1970, if there are batches.
        timeline: what the scheduler inside the job did, if it is ours.
    """

    arrivals: Sequence[Arrival]
    problems: Sequence[str] = field(default=())
    commits: Sequence[float] = field(default=())
    timeline: Sequence[Step] = field(default=())


class Environment(ABC):
    """One engine's cluster and job. The constructor raises AutoscalerError if something is not installed.

    Attributes:
        java: the Java that is used, as a JAVA_HOME.
        variables: environment variables of the daemon, which the workers inherit.
    """

    java: Path
    variables: Mapping[str, str]

    def __init__(self, processes: Processes, work: Path) -> None:
        self._processes = processes
        self._work = work
        self._sink = work / "sink"
        self._clock = work / "clock.json"

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """What the daemon's configuration has for this engine."""

    @abstractmethod
    def start_cluster(self) -> None:
        """Start what the workers will register with."""

    @abstractmethod
    def up(self) -> bool:
        """Whether it responds."""

    @abstractmethod
    def start_job(self) -> None:
        """Start the job, which waits for a worker."""

    @abstractmethod
    def running(self) -> bool:
        """Whether the job runs on a worker."""

    @abstractmethod
    def lag(self, offered: int) -> int | None:
        """Records waiting of those `offered` until now; None if unknown."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the engine reports of the run, for the result; None for what it does not report."""

    @abstractmethod
    def finish(self) -> FinishedJob:
        """Stop the job, which has read everything, and read its output. Raises DemoError."""

    def wait_for_facts(self, seconds: float, every: float = 1.0) -> Mapping[str, Any]:
        """The facts, asked for until none of them is missing, for at most so many seconds."""
        deadline = time.monotonic() + seconds
        while None in (facts := self.facts()).values() and time.monotonic() < deadline:
            time.sleep(every)
        return facts

    def _read_sink(self, read: Callable[[Path], T]) -> T:
        try:
            return read(self._sink)
        except (OSError, ValueError) as error:
            raise DemoError(f"the sink cannot be read: {error}") from error


def url(port: int) -> str:
    """The HTTP address of a port on this machine."""
    return f"http://127.0.0.1:{port}"


def variables_without(prefix: str) -> dict[str, str]:
    """The environment variables of this process whose names do not begin like this."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


def require(packages: Sequence[str], extra: str) -> None:
    """Make sure that packages are installed.

    Raises:
        DemoError: one is not; the message has the command that installs it.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise DemoError(f"the package {package} is not installed: {install_hint(extra)}")


def get(address: str, seconds: float = 2.0) -> Any:  # noqa: ANN401 - JSON of any shape
    """The JSON at an address, or None if there is no usable answer."""
    try:
        with urllib.request.urlopen(address, timeout=seconds) as answer:  # noqa: S310 - our own loopback addresses
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def describe(decision: Mapping[str, Any]) -> str:
    """Why a size was requested: in the policy's words, else in the daemon's."""
    details = [each["detail"] for each in decision["recommendations"] if each["detail"]]
    return str((*details, decision["reason"])[0])


def rescales(processes: Processes, listen: int) -> list[Mapping[str, Any]]:
    """The daemon's decisions that changed the size, oldest first, as its HTTP endpoint shows them.

    Raises:
        DemoError: it does not answer.
    """
    answer = get(api(listen) + "/decisions?limit=2000", seconds=FINAL_TIMEOUT)
    if answer is None:
        raise DemoError(processes.with_log("daemon", "the daemon does not return its decisions"))
    decisions = [entry["decision"] for entry in reversed(answer["decisions"])]
    return [decision for decision in decisions if decision["desired"] != decision["current"]]
