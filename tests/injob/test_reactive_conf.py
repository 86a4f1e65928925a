"""Spark's settings for a reactive job."""

from __future__ import annotations

import math
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob.reactive.conf import reactive_conf
from autoscaler.schedulers.flink_durations import seconds

JARS = ("spark-core_*", "spark-catalyst_*", "spark-sql_*")
ELSEWHERE = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.shuffle.io.connectionTimeout",
    "spark.shuffle.io.maxRetries",
    "spark.rpc.io.connectionTimeout",
}
"""Keys that Spark puts together of two strings."""


def test_a_hung_executor_is_removed_after_ten_seconds_by_default() -> None:
    conf = reactive_conf()

    assert conf["spark.executor.heartbeatInterval"] == "1000ms"
    assert conf["spark.network.timeout"] == "10s"
    assert conf["spark.network.timeoutInterval"] == "1000ms"


def test_a_drained_worker_is_released_without_copying_its_blocks() -> None:
    conf = reactive_conf()

    assert conf["spark.decommission.enabled"] == "true"
    assert conf["spark.storage.decommission.enabled"] == "false"


def test_lost_executors_end_neither_the_query_nor_the_application() -> None:
    conf = reactive_conf()

    assert int(conf["spark.task.maxFailures"]) > 4
    assert conf["spark.deploy.maxExecutorRetries"] == "-1"


def test_a_short_executor_timeout_does_not_apply_to_a_busy_driver_or_master() -> None:
    conf = reactive_conf(heartbeat_timeout=2)

    assert conf["spark.rpc.askTimeout"] == "120s"
    assert conf["spark.rpc.io.connectionTimeout"] == "120s"


@pytest.mark.parametrize(("timeout", "patience"), [(2, "1s"), (10, "2s"), (60, "12s")])
def test_a_task_waits_for_data_of_a_hung_executor_for_a_fifth_of_the_timeout(timeout: float, patience: str) -> None:
    conf = reactive_conf(heartbeat_timeout=timeout)

    assert conf["spark.shuffle.io.connectionTimeout"] == patience
    assert conf["spark.shuffle.io.maxRetries"] == "0"


def test_only_a_stateful_job_gets_the_settings_for_state() -> None:
    added = reactive_conf(stateful=True).items() - reactive_conf().items()

    assert dict(added) == {
        "spark.locality.wait": "0s",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


@given(st.floats(2, 3600), st.booleans())
def test_spark_accepts_the_time_outs_of_any_heartbeat_timeout(timeout: float, stateful: bool) -> None:
    conf = reactive_conf(stateful=stateful, heartbeat_timeout=timeout)
    beat, patience, check = (
        seconds(conf[key]) or 0.0
        for key in ("spark.executor.heartbeatInterval", "spark.network.timeout", "spark.network.timeoutInterval")
    )

    # The checks of SparkConf and HeartbeatReceiver.
    assert 0 < beat < patience
    assert 0 < check <= patience
    # No earlier than requested, and later by at most the rounding and one check.
    assert timeout <= patience < timeout + 1
    assert patience + check < timeout * 1.1 + 1.01


@pytest.mark.parametrize("given", [0, -1, 1.9, 3601, math.inf, math.nan, "10 s", None, True])
def test_a_heartbeat_timeout_that_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"heartbeat_timeout: is .*, expected seconds from 2 to 3600"):
        reactive_conf(heartbeat_timeout=given)


def test_spark_knows_every_setting() -> None:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    jars = Path(found.origin).parent / "jars"
    code = b"".join(
        archive.read(name)
        for pattern in JARS
        for jar in jars.glob(f"{pattern}.jar")
        for archive in [zipfile.ZipFile(jar)]
        for name in archive.namelist()
        if "/config/" in name or "SQLConf" in name
    )

    unknown = [key for key in reactive_conf(stateful=True) if key.encode() not in code]

    assert set(unknown) == ELSEWHERE
