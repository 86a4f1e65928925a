"""Spark settings that let a reactive job use added executors, and notice lost ones in time."""

from __future__ import annotations

import math

SHORTEST_HEARTBEAT_TIMEOUT = 2.0
LONGEST_HEARTBEAT_TIMEOUT = 3600.0
BEATS = 10
"""Heartbeats of an executor, and checks for missing ones, per time-out: a loss is noticed at most 1/10 of it late."""
FETCHES = 5
"""Fetches of shuffle data that can fail within one time-out."""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_ALWAYS = {
    # With decommissioning, the executor of a drained worker ends by itself and no task fails. Otherwise the executor
    # stays, and idles because the driver sends it no more tasks. Master and Workers need the setting too.
    "spark.decommission.enabled": "true",
    # With it an executor takes 4 to 31 s to end, without it 1.3 s. It would copy shuffle files of a finished batch,
    # which no later batch reads. State is in the checkpoint.
    "spark.storage.decommission.enabled": "false",
    # Spark counts the loss of an executor as a failure of its tasks. With the default of 4, a query would fail if
    # workers are replaced a few times during a long batch.
    "spark.task.maxFailures": "8",
    # A Master removes an application after 10 lost executors while none runs. The Master reads its own setting; this
    # one counts only if the application starts its Master (`local-cluster`).
    "spark.deploy.maxExecutorRetries": "-1",
    # Dynamic allocation removes executors that are idle for a while. In a streaming query that is chance, so it would
    # undo the scheduler's decisions.
    "spark.dynamicAllocation.enabled": "false",
    # Queries need FAIR scheduling to have pools, which a job's proportions need. Without proportions all tasks are in
    # the default pool, where their order is the same as with FIFO.
    "spark.scheduler.mode": "FAIR",
    # This is Spark's default. It is set here because without it each task of each batch starts a Python process.
    "spark.python.worker.reuse": "true",
}

_STATEFUL = {
    # The time that a task waits for the executor that has its state. Short batches end before that, so new executors
    # get no tasks (533 rows/s on one worker and on two), and a loss costs 8 to 15 s instead of 3.
    "spark.locality.wait": "0s",
    # RocksDB keeps state outside the JVM's heap: 35 MB instead of 260 for a million keys, and half the time to load it.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # A commit uploads only the changes since the last commit, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def reactive_conf(*, stateful: bool = False, heartbeat_timeout: float = 10.0) -> dict[str, str]:
    """Spark settings for a job under `ReactiveJob`, for `SparkSession.builder.config(map=...)`.

    Four time-outs must agree. Three belong to the application: `spark.executor.heartbeatInterval`,
    `spark.network.timeout` and `spark.network.timeoutInterval`. The fourth, `spark.worker.timeout`, belongs to the
    cluster: set it to the same number of seconds for the Master and the Workers.

    Args:
        stateful: whether a query has state: aggregations, deduplication, joins of streams.
        heartbeat_timeout: seconds without a heartbeat after which an executor counts as lost, from 2 to 3600.

    Raises:
        ValueError: the time-out is not a number, too short or too long.
    """
    _check(heartbeat_timeout)
    beat = f"{round(heartbeat_timeout * 1000 / BEATS)}ms"
    return {
        "spark.executor.heartbeatInterval": beat,
        # How long the driver waits for a heartbeat of an executor. Spark reads whole seconds.
        "spark.network.timeout": f"{math.ceil(heartbeat_timeout)}s",
        # How often the driver checks for missing heartbeats: once a minute by default.
        "spark.network.timeoutInterval": beat,
        # How long a task waits for an executor that serves no shuffle data. A hung process still accepts connections,
        # and a task that is retried may fetch from it again: with Spark's three retries a batch took 55 s. A fetch that
        # fails costs one more run of a stage.
        "spark.shuffle.io.connectionTimeout": f"{max(1, math.floor(heartbeat_timeout / FETCHES))}s",
        "spark.shuffle.io.maxRetries": "0",
        # If these are not set, Spark uses spark.network.timeout. It would then drop connections to a Master, and
        # requests to a driver, that are only busy.
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
            f"{LONGEST_HEARTBEAT_TIMEOUT:g}; with a shorter one, executors count as lost during garbage collection"
        )
