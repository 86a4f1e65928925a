"""The interface of the demo to an engine: a cluster, a job, and an exact account of the processed records."""

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
"""Partitions of the log: useful sizes are 1, 2, 3 and 6 workers."""

JOB = "autoscaler-demo"
"""The name of the job."""

STOP_TIMEOUT = 60.0
"""Seconds within which a job must stop."""

FINAL_TIMEOUT = 60.0
"""Time-out in seconds of the requests at the end, long enough for a busy machine."""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """The output of a stopped job.

    Attributes:
        arrivals: the records at the sink, in the order in which they were processed.
        problems: further evidence that the job was not exactly-once.
        commits: when each batch was committed, seconds since 1970; empty if the engine has no batches.
        timeline: the timeline of the scheduler inside the job, if the job uses `ReactiveJob`.
    """

    arrivals: Sequence[Arrival]
    problems: Sequence[str] = field(default=())
    commits: Sequence[float] = field(default=())
    timeline: Sequence[Step] = field(default=())


class Environment(ABC):
    """The cluster and job of one engine. The constructor raises AutoscalerError if something is not installed.

    Attributes:
        java: the JAVA_HOME of the Java that the engine uses.
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
        """The parts of the daemon's configuration that depend on this engine."""

    @abstractmethod
    def start_cluster(self) -> None:
        """Start the process that the workers register with."""

    @abstractmethod
    def up(self) -> bool:
        """Whether the cluster responds."""

    @abstractmethod
    def start_job(self) -> None:
        """Start the job, which waits for a worker."""

    @abstractmethod
    def running(self) -> bool:
        """Whether the job runs on a worker."""

    @abstractmethod
    def lag(self, offered: int) -> int | None:
        """How many of the records `offered` until now still wait; None if unknown."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Figures of the run that the engine reports, for the result; None for a figure that it does not report now."""

    @abstractmethod
    def finish(self) -> FinishedJob:
        """Stop the job after it has read all records, and read its output. Raises DemoError."""

    def wait_for_facts(self, seconds: float, every: float = 1.0) -> Mapping[str, Any]:
        """Poll the facts until none is missing, for at most `seconds`; return the last ones."""
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
    """The environment variables of this process whose names do not begin with `prefix`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


def require(packages: Sequence[str], extra: str) -> None:
    """Check that packages are installed.

    Raises:
        DemoError: a package is missing; the message has the command that installs it.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise DemoError(f"the package {package} is not installed: {install_hint(extra)}")


def get(address: str, seconds: float = 2.0) -> Any:  # noqa: ANN401 - JSON of any shape
    """Fetch the JSON at an address; None if there is no usable response."""
    try:
        with urllib.request.urlopen(address, timeout=seconds) as answer:  # noqa: S310 - our own loopback addresses
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def describe(decision: Mapping[str, Any]) -> str:
    """Why a size was requested: the detail of a policy if there is one, or else the daemon's reason."""
    details = [each["detail"] for each in decision["recommendations"] if each["detail"]]
    return str((*details, decision["reason"])[0])


def rescales(processes: Processes, listen: int) -> list[Mapping[str, Any]]:
    """The daemon's decisions that changed the size, oldest first, from its HTTP API.

    Raises:
        DemoError: the daemon does not respond.
    """
    answer = get(api(listen) + "/decisions?limit=2000", seconds=FINAL_TIMEOUT)
    if answer is None:
        raise DemoError(processes.with_log("daemon", "the daemon does not return its decisions"))
    decisions = [entry["decision"] for entry in reversed(answer["decisions"])]
    return [decision for decision in decisions if decision["desired"] != decision["current"]]
