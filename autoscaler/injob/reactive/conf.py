"""Settings with which Spark lets a reactive job take what comes, and notices in time what goes."""

from __future__ import annotations

import math

SHORTEST_HEARTBEAT_TIMEOUT = 2.0
LONGEST_HEARTBEAT_TIMEOUT = 3600.0
BEATS = 10
"""Heartbeats of an executor, and checks for missing ones, in one time-out: it is given up at most a tenth late."""
FETCHES = 5
"""Fetches of shuffle data that can fail in one time-out."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_ALWAYS = {
    # A drained worker's executor ends by itself and no task fails; without it the executor stays, idle, and the
    # driver sends it nothing more. Master and Workers need it too.
    "spark.decommission.enabled": "true",
    # With it an executor takes 4 to 31 s to end, without it 1.3 s; and what it would copy, shuffle files of a batch
    # that is over, no later batch reads. State is in the checkpoint.
    "spark.storage.decommission.enabled": "false",
    # Spark counts the loss of an executor as a failure of its tasks (4 by default), so a worker that is replaced a few
    # times during a long batch would fail the query.
    "spark.task.maxFailures": "8",
    # A Master gives an application up after 10 lost executors while none runs. It reads its own setting; this one
    # counts where the application starts its Master (`local-cluster`).
    "spark.deploy.maxExecutorRetries": "-1",
    # It removes executors that are idle for a while, which in a streaming query is chance: it would undo each choice.
    "spark.dynamicAllocation.enabled": "false",
    # With it queries can have pools, which a job's proportions need. In the default pool, where all tasks are without
    # proportions, their order is the same.
    "spark.scheduler.mode": "FAIR",
    # Spark's default, stated because without it each task of each batch starts a Python.
    "spark.python.worker.reuse": "true",
}

_STATEFUL = {
    # A task waits so long for the executor that has its state; short batches end before, so new executors get nothing
    # (533 rows/s on one worker and on two), and a loss costs 8 to 15 s instead of 3.
    "spark.locality.wait": "0s",
    # State outside of the JVM's heap: 35 MB instead of 260 for a million keys, and half the time to load it.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # A commit uploads what changed, not all: moved state is found as it was committed last.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def reactive_conf(*, stateful: bool = False, heartbeat_timeout: float = 10.0) -> dict[str, str]:
    """Spark's settings for a job under `ReactiveJob`, for `SparkSession.builder.config(map=...)`.

    Three of the four time-outs that must agree are an application's: `spark.executor.heartbeatInterval`,
    `spark.network.timeout` and `spark.network.timeoutInterval`. The fourth, `spark.worker.timeout`, is the cluster's:
    set it to the same number of seconds for the Master and the Workers.

    Args:
        stateful: whether a query has state: aggregations, deduplication, joins of streams.
        heartbeat_timeout: seconds without a heartbeat after which an executor is given up, from 2 to 3600.

    Raises:
        ValueError: the time-out is none, too short or too long.
    """
    _check(heartbeat_timeout)
    beat = f"{round(heartbeat_timeout * 1000 / BEATS)}ms"
    return {
        "spark.executor.heartbeatInterval": beat,
        # The driver's patience with an executor that does not beat. Spark reads whole seconds.
        "spark.network.timeout": f"{math.ceil(heartbeat_timeout)}s",
        # How often the driver looks for missing heartbeats: once a minute by default.
        "spark.network.timeoutInterval": beat,
        # A task's patience with an executor that serves no shuffle data. A process that hangs still accepts
        # connections, and a task that is started anew when it is given up may ask it again: with Spark's three retries
        # a batch took 55 s. A fetch that is given up costs one more run of a stage.
        "spark.shuffle.io.connectionTimeout": f"{max(1, math.floor(heartbeat_timeout / FETCHES))}s",
        "spark.shuffle.io.maxRetries": "0",
        # Spark takes spark.network.timeout unless they are set, and would drop the connection to a Master, and the
        # question to a driver, that is only busy.
        "spark.rpc.askTimeout": "120s",
        "spark.rpc.io.connectionTimeout": "120s",
        **_ALWAYS,
        **(_STATEFUL if stateful else {}),
    }


def _check(given: object) -> None:
    seconds = given if isinstance(given, int | float) and not isinstance(given, bool) else math.nan
    if not SHORTEST_HEARTBEAT_TIMEOUT <= seconds <= LONGEST_HEARTBEAT_TIMEOUT:
        raise ValueError(
            f"heartbeat_timeout: is {given!r}, expected seconds from {SHORTEST_HEARTBEAT_TIMEOUT:g} to "
            f"{LONGEST_HEARTBEAT_TIMEOUT:g}; a short one gives up executors that only collect garbage"
        )
