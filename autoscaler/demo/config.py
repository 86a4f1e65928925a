"""The configuration file of the demo: an ordinary one, which the user can open and change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from autoscaler.demo.load import DURATION

CLUSTER = "demo"

_TEXT = """\
# The configuration with which the demo runs the autoscaler: `autoscaler run` takes such a file in production.
daemon:
  directory: {state}
  listen: 127.0.0.1:{listen}
sources:
  job: &job                     # the job itself: its report (one line in the job) and Spark's own pages
    type: spark
    app: {app}
    report: http://127.0.0.1:{report_port}
    master: http://127.0.0.1:{master_ui_port}
    driver: http://127.0.0.1:{driver_ui_port}
    window: 10s
clusters:
  {cluster}:
    interval: 2s
    timeout: 1500ms
    target:                     # what is scaled: workers of one core each on this machine
      type: local
      kind: spark-worker
      directory: {pool}
      master: spark://127.0.0.1:{master_port}
      master_ui: http://127.0.0.1:{master_ui_port}
      cores: 1
      memory: {worker_memory}
      worker_timeout: {worker_timeout}s
    engine: *job                # what absorbs the change: Spark gives a new worker's cores to the job at once
    slots_per_replica: 1
    min: 1
    max: 4
    metrics:
      lag: {{source: job, metric: lag}}
      arrivals: {{source: job, metric: arrivals}}
      throughput: {{source: job, metric: throughput}}
      saturation: {{source: job, metric: saturation}}
    policies:
      drain:                    # the fewest workers that keep up and work off the backlog within a minute
        type: backlog-drain
        within: 60s
        restart: 15s
        confirm: 3s             # a rate measured across a change of the load is neither the old nor the new
        stops: false            # while new workers come up, the old ones go on working
    up: {{window: 0s}}
    down: {{window: {window}s, cooldown: 5s}}
    settle: {{ready: 1m, registered: 1m, absorbed: 1m, running: 1m, caught_up: 3m, backlog_time: 5s}}
    capacity:                   # records/s, until it has been seen how much it really is
      per_replica: {per_worker}
      sustained: 12s            # a little more than the window the throughput is averaged over
      warmup: 20s             # the first batches on new workers are slow
    max_age: 30s
    lookback: 3m
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Ports of one run, all of the loopback address."""

    listen: int
    master: int
    master_ui: int
    driver_ui: int
    report: int

    @property
    def api(self) -> str:
        """The daemon's page about the cluster."""
        return f"http://127.0.0.1:{self.listen}/api/v1/clusters/{CLUSTER}"


@dataclass(frozen=True, slots=True)
class Pool:
    """The worker pool of one run."""

    directory: Path
    worker_memory: str
    worker_timeout: int
    per_worker: float


def configuration(app: str, addresses: Addresses, pool: Pool, state: Path, duration: float) -> str:
    """The text of the configuration file for a load of this duration (seconds).

    A shorter demo is less patient before it scales down, or there would be no time left to see it.
    """
    return _TEXT.format(
        app=app,
        cluster=CLUSTER,
        state=json.dumps(str(state)),
        listen=addresses.listen,
        report_port=addresses.report,
        master_port=addresses.master,
        master_ui_port=addresses.master_ui,
        driver_ui_port=addresses.driver_ui,
        pool=json.dumps(str(pool.directory)),
        worker_memory=pool.worker_memory,
        worker_timeout=pool.worker_timeout,
        window=max(8, round(30 * min(1.0, duration / DURATION))),
        per_worker=f"{pool.per_worker:g}",
    )
