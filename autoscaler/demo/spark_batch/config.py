"""The configuration file of the demo with a batch job: an ordinary one, which the user can read and change."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaler.demo.config import CLUSTER

WORKERS = 4
"""Most workers, and the size of the fixed cluster."""

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
    timeout: 4s                 # the first answer of a driver that is starting is slow
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
      drain: 1h                 # a worker goes once its task has ended, which may be long: 60s by default
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
        waiting_price: 4        # a second of the job's time is worth as much as four workers for a second
        start_up: 10s           # how long a worker takes until its first task, until that was measured; workers are
                                # given back when their slots were useless for as long
    settle: {{ready: 1m, registered: 1m, absorbed: 1m, running: 1m}}
    max_age: 30s
    lookback: 3m
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one run: of the Master, its page, the driver's page, the report, and the daemon's endpoint."""

    master: int
    master_ui: int
    driver_ui: int
    report: int
    listen: int


def configuration(
    ports: Ports, *, app: str, limits: tuple[int, int], state: Path, pool: Path, memory: str, worker_timeout: int
) -> str:
    """The configuration file of a cluster with so few and so many workers: the same for one of fixed size.

    `state` is the directory of the daemon, `pool` that of the workers.
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
