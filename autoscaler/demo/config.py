"""The configuration file of the demo: an ordinary configuration file that the user can read and change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoscaler.demo.load import DURATION

CLUSTER = "demo"

_TEXT = """\
# The configuration of this demo: `autoscaler run` takes such a file in production.
daemon:
  directory: {state}
  listen: 127.0.0.1:{listen}
sources:
  job: &job                     # {about_source}
{source}
clusters:
  {cluster}:
    interval: 2s
    timeout: {timeout}
    target:                     # {about_target}
      type: local
{target}
    engine: *job                # what uses the workers: {about_engine}
    slots_per_replica: 1
    partitions: {partitions}               # of the log: further slots would have nothing to read
    min: 1
    max: 4
    metrics:
      lag: {{source: job, metric: lag}}
      arrivals: {{source: job, metric: arrivals}}
      throughput: {{source: job, metric: throughput}}
      saturation: {{source: job, metric: saturation}}
{utilization}    policies:
      main:
        type: adaptive
        objective: 30s          # a record should not wait longer; the policy learns the capacity for that
        restart: {restart}s             # {about_restart}; used until it is measured
        start_up: 10s           # how long new workers take to start; used until it is measured
        scale_down_window: {window}s  # the default is 3m, too long for a demo
        rescale_price: {price}s       # a rescale costs as much as all workers for this time; the default is 60s
    settle: {{{settle}caught_up: 3m, backlog_time: 5s}}
    capacity:                   # records/s, until it is measured
      per_replica: {per_worker:g}
      sustained: 12s            # a little longer than the window over which the throughput is averaged
      warmup: 20s             # new workers process their first records slowly
    max_age: 30s
    lookback: 3m
"""

_UTILIZATION = "      utilization: {source: job, metric: utilization}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the configuration that depend on the engine.

    Attributes:
        about_source, about_target, about_engine: comments.
        source: parameters of the source, which the engine uses too.
        target: parameters of the target `local`.
        timeout: the timeout of all readings.
        restart: the assumed downtime of the first rescale, in seconds.
        about_restart: a comment on `restart`.
        utilization: whether the source reports the workers' utilization at any load.
        settle: deadlines of the first phases, unless they follow from the engine's settings.
        per_worker: the assumed initial records/s of a worker.
    """

    about_source: str
    source: Mapping[str, str | int]
    about_target: str
    target: Mapping[str, str | int]
    about_engine: str
    timeout: str
    restart: int
    about_restart: str
    utilization: bool
    settle: Mapping[str, str]
    per_worker: float


def configuration(parts: Parts, partitions: int, listen: int, state: Path, duration: float) -> str:
    """The configuration file for a load of this duration (seconds).

    A shorter demo has a shorter scale-down window, so that the scale-down happens before the end.
    """
    scale = max(0.4, min(1.0, duration / DURATION))
    return _TEXT.format(
        about_source=parts.about_source,
        source=_lines(parts.source, 4),
        about_target=parts.about_target,
        target=_lines(parts.target, 6),
        about_engine=parts.about_engine,
        timeout=parts.timeout,
        restart=parts.restart,
        about_restart=parts.about_restart,
        utilization=_UTILIZATION if parts.utilization else "",
        settle="".join(f"{phase}: {limit}, " for phase, limit in parts.settle.items()),
        per_worker=parts.per_worker,
        partitions=partitions,
        cluster=CLUSTER,
        state=json.dumps(str(state)),
        listen=listen,
        window=round(20 * scale),
        price=round(10 * scale),
    )


def api(listen: int) -> str:
    """The URL of the cluster in the daemon's HTTP API."""
    return f"http://127.0.0.1:{listen}/api/v1/clusters/{CLUSTER}"


def _lines(parameters: Mapping[str, str | int], indent: int) -> str:
    return "\n".join(f"{' ' * indent}{name}: {_scalar(value)}" for name, value in parameters.items())


def _scalar(value: str | int) -> str:
    """A value as a YAML scalar, quoted if it needs to be."""
    text = str(value)
    return text if re.fullmatch(r"[\w./:-]+", text) else json.dumps(text)
