"""The configuration file of the demo with a batch job: an ordinary file that the user can read and change."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaler.demo.config import CLUSTER

WORKERS = 4
"""The maximum of workers, and the size of the fixed cluster."""

_TEXT = """\
# The configuration of this run: `autoscaler run` takes such a file in production.
daemon:
  directory: {state}
  listen: 127.0.0.1:{listen}
sources:
  job: &job                     # the job itself: its report (one line in the job) and Spark's own pages
    type: spark
    app: {app}
    report: http://127.0.0.1:{report}
    master: http://127.0.0.1:{master_ui}
    driver: http://127.0.0.1:{driver_ui}
    batch: true
    timeout: 4s                 # the first response of a starting driver is slow
clusters:
  {cluster}:
    interval: 2s
    timeout: 1900ms
    target:                     # what is scaled: workers of one core each on this machine
      type: local
      kind: spark-worker
      directory: {pool}
      master: spark://127.0.0.1:{master}
      master_ui: http://127.0.0.1:{master_ui}
      cores: 1
      memory: {memory}
      worker_timeout: {worker_timeout}s
      drain: 1h                 # a worker ends after its task, which may take long: 60s by default
    engine: *job                # what uses the workers: Spark gives a new worker's core to the job at once
    slots_per_replica: 1
    min: {least}
    max: {most}
    metrics:
      pending_tasks: {{source: job, metric: pending_tasks}}
      running_tasks: {{source: job, metric: running_tasks}}
      remaining_task_time: {{source: job, metric: remaining_task_time}}
      shuffle_workers: {{source: job, metric: shuffle_workers}}
    policies:
      main:
        type: batch
        waiting_price: 4        # one second of the job's time costs as much as four workers for one second
        start_up: 10s           # time of a worker until its first task, used until it is measured; a worker is also
                                # released after its slots were useless for this time
    settle: {{ready: 1m, registered: 1m, absorbed: 1m, running: 1m}}
    max_age: 30s
    lookback: 3m
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one run: the Master, its web UI, the driver's web UI, the report, and the daemon's HTTP API."""

    master: int
    master_ui: int
    driver_ui: int
    report: int
    listen: int


def configuration(
    ports: Ports, *, app: str, limits: tuple[int, int], state: Path, pool: Path, memory: str, worker_timeout: int
) -> str:
    """The configuration file of a cluster.

    `limits` are the minimum and maximum workers, equal for a fixed size. `state` is the directory of the daemon, and
    `pool` is the directory of the workers.
    """
    return _TEXT.format(
        cluster=CLUSTER,
        app=app,
        state=json.dumps(str(state)),
        pool=json.dumps(str(pool)),
        **asdict(ports),
        memory=memory,
        worker_timeout=worker_timeout,
        least=limits[0],
        most=limits[1],
    )
