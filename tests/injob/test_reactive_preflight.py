"""Findings of the preflight check."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.injob.reactive.conf import reactive_conf
from autoscaler.injob.reactive.master import Master
from autoscaler.injob.reactive.options import Options
from autoscaler.injob.reactive.preflight import Facts, Finding, QueryFacts, findings, read_facts
from autoscaler.ports import Severity

MASTER = {
    "spark.worker.timeout": "10",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.decommission.enabled": "true",
}


def query(**changes: Any) -> QueryFacts:
    known: dict[str, Any] = {"name": "counts", "has_checkpoint": True, "source_partitions": 12, "state_partitions": 12}
    return QueryFacts(**(known | changes))


def cluster(*queries: QueryFacts, **changes: Any) -> Facts:
    known: dict[str, Any] = {
        "conf": reactive_conf(stateful=True),
        "master": "spark://here:7077",
        "slots": 4,
        "queries": queries or (query(),),
        "cluster": Master(MASTER),
    }
    return Facts(**(known | changes))


def with_conf(**changes: str) -> Facts:
    return cluster(conf=reactive_conf(stateful=True) | {key.replace("__", "."): text for key, text in changes.items()})


def the_one(facts: Facts, options: Options | None = None) -> Finding:
    (found,) = findings(facts, options or Options())
    assert found.advice
    return found


def test_an_elastic_job_has_no_findings() -> None:
    assert findings(cluster(), Options()) == ()
    assert findings(cluster(), Options(min_slots=2, preferred_slots=8)) == ()


@given(st.floats(2, 3600))
def test_the_settings_for_a_heartbeat_timeout_never_contradict_it(timeout: float) -> None:
    facts = cluster(conf=reactive_conf(stateful=True, heartbeat_timeout=timeout), cluster=Master())

    assert findings(facts, Options(heartbeat_timeout=timeout)) == ()


def test_unknown_values_give_no_findings() -> None:
    unknown = QueryFacts(name="counts")

    assert findings(cluster(unknown, cluster=Master()), Options()) == ()


def test_a_query_without_a_checkpoint_is_an_error() -> None:
    found = the_one(cluster(query(), query(name="raw", has_checkpoint=False)))

    assert (found.severity, found.name) == (Severity.ERROR, "checkpoint")
    assert found.what == "raw has no checkpoint of its own: each restart would lose or repeat records"


def test_errors_come_first() -> None:
    found = findings(cluster(query(has_checkpoint=False, source_partitions=1), conf={}), Options())

    severities = [one.severity for one in found]
    assert severities == [Severity.ERROR] + [Severity.WARNING] * (len(found) - 1)
    assert {one.name for one in found} == {
        "checkpoint",
        "source partitions",
        "spark.locality.wait",
        "spark.decommission.enabled",
        "spark.executor.heartbeatInterval",
        "spark.network.timeout",
        "spark.network.timeoutInterval",
    }


@pytest.mark.parametrize(
    ("partitions", "slots", "options", "names"),
    [
        (3, 4, Options(), ["state partitions"]),
        (4, 4, Options(), []),
        (4, 4, Options(preferred_slots=6), ["state partitions"]),
        (3, 4, Options(preferred_slots=3), []),
        (4, 1, Options(max_parallelism=5), ["state partitions"]),
        (None, 4, Options(), []),
    ],
)
def test_state_with_fewer_partitions_than_the_maximum_of_slots_is_reported(
    partitions: int | None, slots: int, options: Options, names: list[str]
) -> None:
    found = findings(cluster(query(state_partitions=partitions), slots=slots), options)

    assert [one.name for one in found] == names


SHARED = Options(proportions={"counts": (0, 0.5, 0.5), "other": (0, 0.5, 1)})


def test_as_many_partitions_as_slots_of_the_query_are_enough() -> None:
    assert findings(cluster(query(state_partitions=2, source_partitions=2)), SHARED) == ()
    found = findings(cluster(query(state_partitions=1, source_partitions=1)), SHARED)
    assert [(one.name, one.what) for one in found] == [
        (
            "state partitions",
            "counts has had 1 since its first batch, for up to 2 slots: 1 slot never works on its state",
        ),
        ("source partitions", "counts has 1 for 2 slots: 1 slot never reads"),
    ]


@pytest.mark.parametrize(("name", "widest", "found"), [("counts", 2, False), ("counts", 3, True), ("other", 9, False)])
def test_a_stage_wider_than_the_maximum_of_its_query_is_reported(name: str, widest: int, found: bool) -> None:
    facts = cluster(query(name=name, widest=widest))
    assert findings(facts, Options()) == ()
    shown = findings(facts, SHARED)
    assert len(shown) == found
    for one in shown:
        assert (one.severity, one.name) == (Severity.INFO, "proportions")
        assert one.what.startswith("counts has a stage of 3 tasks, and its max is 2 of 4 slots: it uses more")
        assert '.coalesce(maxima["counts"])' in one.advice


ALLOWED = Options(repartition_state="allowed")


def test_state_that_will_be_repartitioned_may_have_few_partitions() -> None:
    assert findings(cluster(query(state_partitions=3)), ALLOWED) == ()


def test_few_partitions_are_reported_with_the_option_that_allows_repartitioning() -> None:
    assert "repartition_state" in the_one(cluster(query(state_partitions=3))).advice


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"repartitions": False}, "needs Spark 4.2 or later, without Spark Connect"),
        ({"conf": reactive_conf()}, "only state in RocksDB"),
    ],
)
def test_state_that_may_but_cannot_be_repartitioned_is_reported(changes: dict[str, Any], what: str) -> None:
    facts = cluster(query(state_partitions=None), **changes)
    assert the_one(facts, ALLOWED).name == "repartition_state"
    assert what in the_one(facts, ALLOWED).what
    assert "repartition_state" not in {one.name for one in findings(facts, Options())}


def test_partitions_that_cannot_be_changed_are_reported_although_repartitioning_is_allowed() -> None:
    found = findings(cluster(query(state_partitions=3), repartitions=False), ALLOWED)
    assert {one.name for one in found} == {"state partitions", "repartition_state"}


@pytest.mark.parametrize(
    ("partitions", "options", "names"),
    [
        (3, Options(), ["source partitions"]),
        (4, Options(), []),
        (3, Options(preferred_slots=3), []),
        (3, Options(preferred_slots=8), ["source partitions"]),
        (None, Options(), []),
    ],
)
def test_more_slots_than_partitions_of_the_source_are_reported(
    partitions: int | None, options: Options, names: list[str]
) -> None:
    assert [one.name for one in findings(cluster(query(source_partitions=partitions)), options)] == names


@pytest.mark.parametrize(
    ("conf", "options", "severity", "what"),
    [
        (
            {"spark__cores__max": "3"},
            Options(preferred_slots=4),
            Severity.WARNING,
            "wants 4 (preferred_slots) and gets 3",
        ),
        ({"spark__cores__max": "3"}, Options(), Severity.WARNING, "wants all that come and gets 3"),
        ({"spark__cores__max": "3"}, Options(min_slots=4), Severity.ERROR, "3 cores are 3 slots, fewer than min_slots"),
        ({"spark__cores__max": "4", "spark__task__cpus": "2"}, Options(min_slots=3), Severity.ERROR, "are 2 slots"),
    ],
)
def test_a_limit_of_cores_below_the_desired_slots_is_reported(
    conf: dict[str, str], options: Options, severity: Severity, what: str
) -> None:
    found = the_one(with_conf(**conf), options)

    assert (found.severity, found.name) == (severity, "spark.cores.max")
    assert what in found.what


def test_a_limit_of_cores_above_the_preferred_slots_gives_no_finding() -> None:
    assert findings(with_conf(spark__cores__max="4"), Options(preferred_slots=4)) == ()


@pytest.mark.parametrize(
    ("conf", "waits"),
    [
        ({"spark__locality__wait": "3s"}, "3 s"),
        ({"spark__locality__wait": "500"}, "0.5 s"),
        ({"spark__locality__wait__node": "1s"}, "1 s"),
    ],
)
def test_a_wait_for_the_executor_with_the_state_is_reported(conf: dict[str, str], waits: str) -> None:
    found = the_one(with_conf(**conf))

    assert found.name == "spark.locality.wait"
    assert f"tasks wait {waits} for" in found.what


def test_a_stateless_job_may_wait_for_a_near_executor() -> None:
    assert findings(cluster(query(state_partitions=None), conf=reactive_conf()), Options()) == ()


@pytest.mark.parametrize(
    ("partitions", "options", "severity", "advice"),
    [
        (10, Options(preferred_slots=15), Severity.WARNING, "min_slots and preferred_slots to 15"),
        (10, Options(preferred_slots=14), Severity.ERROR, "min_slots and preferred_slots to 15"),
        (None, Options(), Severity.WARNING, "min_slots and preferred_slots to that number"),
    ],
)
def test_real_time_mode_needs_a_slot_for_each_task_of_all_stages(
    partitions: int | None, options: Options, severity: Severity, advice: str
) -> None:
    found = the_one(cluster(query(source_partitions=partitions, state_partitions=5, real_time=True)), options)

    assert (found.severity, found.name) == (severity, "real-time mode")
    assert advice in found.advice


@pytest.mark.parametrize(
    ("conf", "name", "what"),
    [
        ({"spark__decommission__enabled": "false"}, "spark.decommission.enabled", "it is not true"),
        ({"spark__dynamicAllocation__enabled": "TRUE"}, "spark.dynamicAllocation.enabled", "executors by idle time"),
        (
            {"spark__executor__heartbeatInterval": "6s"},
            "spark.executor.heartbeatInterval",
            "6 s contradicts heartbeat_timeout, which is 10 s",
        ),
        ({"spark__network__timeout": "120s"}, "spark.network.timeout", "is given up 110 s too late"),
        ({"spark__network__timeout": "5"}, "spark.network.timeout", "is given up 5 s too early"),
        (
            {"spark__network__timeoutInterval": "8000"},
            "spark.network.timeoutInterval",
            "the driver checks for missing heartbeats only at this interval",
        ),
        (
            {"spark__storage__blockManagerHeartbeatTimeoutMs": "30000"},
            "spark.storage.blockManagerHeartbeatTimeoutMs",
            "is given up 20 s too late",
        ),
    ],
)
def test_a_setting_of_the_application_that_prevents_elasticity_is_reported(
    conf: dict[str, str], name: str, what: str
) -> None:
    found = the_one(with_conf(**conf))

    assert (found.severity, found.name) == (Severity.WARNING, name)
    assert what in found.what


def test_an_executor_timeout_takes_precedence_over_that_of_the_network() -> None:
    conf = {"spark__network__timeout": "120s", "spark__storage__blockManagerHeartbeatTimeoutMs": "10000"}

    assert findings(with_conf(**conf), Options()) == ()


@pytest.mark.parametrize(
    ("settings", "name", "what"),
    [
        ({"spark.worker.timeout": "60"}, "spark.worker.timeout", "the Master's 60 s contradicts"),
        ({"spark.worker.timeout": "4"}, "spark.worker.timeout", "6 s too early"),
        ({"spark.deploy.maxExecutorRetries": "10"}, "spark.deploy.maxExecutorRetries", "after 10 lost executors"),
        ({"spark.deploy.maxExecutorRetries": "1"}, "spark.deploy.maxExecutorRetries", "after 1 lost executor while"),
        ({"spark.decommission.enabled": "false"}, "spark.decommission.enabled", "it is not true for the Master"),
    ],
)
def test_a_setting_of_the_master_is_reported(settings: dict[str, str], name: str, what: str) -> None:
    found = the_one(cluster(cluster=Master(MASTER | settings)))

    assert (found.severity, found.name) == (Severity.WARNING, name)
    assert what in found.what


def test_a_fully_known_master_without_settings_has_sparks_defaults() -> None:
    names = [one.name for one in findings(cluster(cluster=Master({})), Options())]

    assert names == ["spark.decommission.enabled", "spark.worker.timeout", "spark.deploy.maxExecutorRetries"]


def test_a_cluster_within_the_application_has_the_applications_settings() -> None:
    facts = cluster(master="local-cluster[2,1,1024]", cluster=Master())

    assert the_one(facts).name == "spark.worker.timeout"


def test_unreadable_settings_of_the_master_are_the_last_finding_and_it_says_what_to_check() -> None:
    facts = cluster(conf={}, cluster=Master(problem="no answer within 2 s"))

    found = findings(facts, Options(heartbeat_timeout=4.5))[-1]

    assert (found.severity, found.name) == (Severity.INFO, "Master")
    assert found.what == "its settings could not be read, so they are not examined (no answer within 2 s)"
    assert "-Dspark.worker.timeout=5 -Dspark.decommission.enabled=true" in found.advice


def test_in_local_mode_only_the_mode_is_reported() -> None:
    found = the_one(cluster(master="local[4]", conf={}))

    assert (found.severity, found.what) == (Severity.WARNING, "local[4] has 4 slots, and never gets others")


def test_in_local_mode_slots_below_the_minimum_are_an_error() -> None:
    found = the_one(cluster(master="local[4]"), Options(min_slots=5))

    assert found.severity is Severity.ERROR
    assert "fewer than min_slots, which is 5: the job would never start" in found.what
    assert found.advice == "start the job on a cluster, or with min_slots=4 or fewer"


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    conf = reactive_conf(stateful=True) | {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    session = sql.SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    yield session
    for running in session.streams.active:
        running.stop()
    session.stop()


@pytest.mark.e2e
def test_the_facts_of_a_live_session_are_read(spark: Any, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=2).load()
    kept = rows.groupBy("value").count().writeStream.queryName("kept").outputMode("update").format("noop")
    queries = [
        kept.option("checkpointLocation", str(tmp_path / "checkpoint")).start(),
        rows.writeStream.queryName("forgetful").format("noop").start(),
    ]
    deadline = time.monotonic() + 120
    while not all(each.lastProgress and each.lastProgress.batchId for each in queries):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    facts = read_facts(spark)

    assert (facts.master, facts.slots, facts.local) == ("local[2]", 2, True)
    assert facts.conf["spark.network.timeout"] == "10s"
    assert sorted(facts.queries, key=lambda one: one.name) == [
        QueryFacts(name="forgetful", has_checkpoint=False, source_partitions=2, widest=2),
        QueryFacts(name="kept", has_checkpoint=True, source_partitions=2, state_partitions=3, widest=3),
    ]
    assert [one.name for one in findings(facts, Options())] == ["checkpoint", "spark.master"]
    assert facts.repartitions
    assert read_facts(spark, slots=7, cluster=Master(MASTER)).slots == 7
