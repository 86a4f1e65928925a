"""What the demo needs of an engine: a cluster, a job on it, and the truth about what the job has done."""

from __future__ import annotations

import importlib.util
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autoscaler.demo.config import Parts
from autoscaler.demo.processes import DemoError
from autoscaler.demo.sink import Arrival
from autoscaler.plugins import install_hint

PARTITIONS = 6
"""Of the log: useful sizes are 1, 2, 3 and 6 workers."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is left when the job has been stopped.

    Attributes:
        arrivals: the records at the sink, in the order in which they were processed.
        problems: what else shows that the job was not exact.
        commits: when each batch was committed, seconds since 1970, where there are batches.
    """

    arrivals: Sequence[Arrival]
    problems: Sequence[str] = field(default=())
    commits: Sequence[float] = field(default=())


class Scene(Protocol):
    """One engine's cluster and job. To make one finds what is installed, and raises AutoscalerError if it is not."""

    @property
    def java(self) -> Path:
        """The Java that is used, as a JAVA_HOME."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the daemon, from which the workers have it."""
        ...

    @property
    def parts(self) -> Parts:
        """What the daemon's configuration says of this engine."""
        ...

    def start_cluster(self) -> None:
        """Start what the workers will register with."""
        ...

    def up(self) -> bool:
        """Whether it answers."""
        ...

    def start_job(self) -> None:
        """Start the job, which waits for a worker."""
        ...

    def running(self) -> bool:
        """Whether the job runs on a worker."""
        ...

    def lag(self, offered: int) -> int | None:
        """Records waiting of those `offered` until now; None when the job does not say."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What the engine tells of the run, for the result; None for what it does not say."""
        ...

    def finish(self) -> Ending:
        """Stop the job, which has read everything, and read what it has written. Raises DemoError."""
        ...


def answered(scene: Scene, seconds: float, every: float = 1.0) -> Mapping[str, Any]:
    """The facts of a scene, asked for again as long as one of them is missing, and for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while None in (facts := scene.facts()).values() and time.monotonic() < deadline:
        time.sleep(every)
    return facts


def require(packages: Sequence[str], extra: str) -> None:
    """Make sure that packages are installed.

    Raises:
        DemoError: one is not; the message says what to do.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise DemoError(f"the package {package} is not installed: {install_hint(extra)}")


def get(url: str, seconds: float = 2.0) -> Any:  # noqa: ANN401 - JSON of any shape
    """The JSON at an address, or None while nobody (or nothing usable) answers there."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:  # noqa: S310 - loopback addresses of our own
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None
