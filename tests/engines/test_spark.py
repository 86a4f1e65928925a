"""The findings of the doctor, fact by fact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from autoscaler.clients.spark import Executor, Master, milliseconds, seconds
from autoscaler.clients.spark_progress import Run
from autoscaler.engines.spark import Facts, Spark, WidestStage, examine
from autoscaler.ports import Severity
from autoscaler.sources.spark import Spark as Source


def run(state: int | None = None, trigger: str = "ProcessingTimeTrigger(0)", latest: int | None = 20) -> Run:
    batch = {
        "batchId": 1,
        "start": 1.0,
        "received": 2.0,
        "rows": 10,
        "sources": [{"description": "log", "start": 0, "end": 10, "latest": latest, "partitions": 4}],
        "state": [] if state is None else [{"operator": "stateStoreSave", "rows": 5, "partitions": state}],
    }
    known = {"id": "q", "runId": "r", "name": "q1", "trigger": trigger, "started": 0.0, "progress": [batch]}
    return TypeAdapter(Run).validate_json(json.dumps(known))


def executors(count: int) -> list[Executor]:
    known = {"isActive": True, "maxTasks": 1, "activeTasks": 0, "totalTasks": 1, "totalDuration": 1}
    return [Executor.model_validate({"id": str(number), **known}) for number in range(count)]


def master(*used: int) -> Master:
    workers = [
        {"id": f"worker-{number}", "host": "h", "state": "ALIVE", "cores": 1, "coresused": cores}
        for number, cores in enumerate(used)
    ]
    return Master.model_validate_json(json.dumps({"status": "ALIVE", "workers": workers, "activeapps": []}))


# Settings without findings, so that each case shows only its own finding.
GOOD: dict[str, Any] = {
    "settings": {"spark.decommission.enabled": "true"},
    "run": run(),
    "master": master(1, 1),
    "executors": executors(2),
    "partitions": 8,
    "master_settings": {
        "spark.decommission.enabled": "true",
        "spark.worker.timeout": "10",
        "spark.deploy.maxExecutorRetries": "-1",
    },
    "worker_settings": {"spark.decommission.enabled": "true", "spark.worker.timeout": "10"},
}


def test_a_well_configured_job_has_no_finding() -> None:
    assert examine(Facts(**GOOD)) == []


@pytest.mark.parametrize(
    ("changes", "severity", "subject", "problem", "remedy"),
    [
        ({"run": run(state=8)}, "error", "spark.locality.wait", "3s", "spark.locality.wait=0s"),
        ({"settings": {}}, "error", "decommissioning (application)", "without", "spark.decommission.enabled=true"),
        (
            {"master_settings": {"spark.worker.timeout": "10", "spark.deploy.maxExecutorRetries": "-1"}},
            "error",
            "decommissioning (master)",
            "without",
            "SPARK_MASTER_OPTS",
        ),
        (
            {"worker_settings": {"spark.worker.timeout": "10"}},
            "error",
            "decommissioning (workers)",
            "without",
            "SPARK_WORKER_OPTS",
        ),
        ({"worker_settings": None}, "info", "decommissioning (workers)", "cannot be seen", "worker_conf"),
        ({"worker_settings": None}, "warning", "spark.worker.timeout", "the Workers' cannot be seen", "worker_conf"),
        (
            {"worker_settings": {"spark.decommission.enabled": "true"}},
            "error",
            "spark.worker.timeout",
            "the Master's is 10 s and the Workers' is 60 s",
            "same",
        ),
        (
            {"settings": {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true"}},
            "warning",
            "spark.storage.decommission.replicationReattemptInterval",
            "every 30 s",
            "=3s",
        ),
        (
            {"settings": {"spark.decommission.enabled": "true", "spark.cores.max": "4"}},
            "warning",
            "spark.cores.max",
            "more than 4 cores (it has 2 slots now)",
            "without spark.cores.max",
        ),
        (
            {"master_settings": {**GOOD["master_settings"], "spark.deploy.defaultCores": "3"}},
            "warning",
            "spark.deploy.defaultCores",
            "more than 3 cores",
            "without spark.deploy.defaultCores",
        ),
        ({"partitions": 1}, "warning", "tasks of a batch", "1 tasks for 2 slots", "minPartitions"),
        ({"run": run(trigger="RealTimeTrigger(5000)")}, "error", "real-time mode", "hold a slot", "do not scale"),
        (
            {"master_settings": {"spark.decommission.enabled": "true", "spark.worker.timeout": "10"}},
            "warning",
            "spark.deploy.maxExecutorRetries",
            "after 10 executors",
            "=-1",
        ),
        (
            {"settings": {"spark.decommission.enabled": "true", "spark.dynamicAllocation.enabled": "true"}},
            "warning",
            "spark.dynamicAllocation.enabled",
            "itself",
            "=false",
        ),
        ({"master_settings": None}, "info", "spark.deploy.maxExecutorRetries", "cannot be seen", "master_conf"),
        ({"master_settings": None}, "info", "decommissioning (master)", "cannot be seen", "master_conf"),
        ({"master_settings": None}, "info", "spark.worker.timeout", "cannot be seen", "master_conf"),
        (
            {
                "master_settings": {**GOOD["master_settings"], "spark.worker.timeout": "60"},
                "worker_settings": {"spark.decommission.enabled": "true"},
            },
            "info",
            "spark.worker.timeout",
            "after 60 s (the default)",
            "=10",
        ),
        ({"master": master(1, 1, 0)}, "warning", "workers without an executor", "worker-2", "must fit"),
        ({"run": run(latest=None)}, "warning", "lag", "does not report", "reportLatestOffset"),
    ],
)
def test_each_finding_names_the_problem_and_the_setting_that_fixes_it(
    changes: dict[str, Any], severity: str, subject: str, problem: str, remedy: str
) -> None:
    found = {finding.subject: finding for finding in examine(Facts(**{**GOOD, **changes}))}
    assert subject in found
    assert found[subject].severity == severity
    assert problem in found[subject].problem
    assert remedy in found[subject].remedy
    assert len(found[subject].cost.split()) > 4, "what it costs is said in words"
    assert len(found) == (
        3 if changes == {"master_settings": None} else 2 if changes == {"worker_settings": None} else 1
    )


SET = {"spark.decommission.enabled": "true"}


@pytest.mark.parametrize(
    "changes",
    [
        {"run": run(state=8), "settings": {**SET, "spark.locality.wait": "0s"}},
        {"settings": {**SET, "spark.locality.wait": "3s"}},  # without state nothing is lost by it
        {"settings": {"spark.decommission.enabled": "TRUE"}},
        {
            "settings": {
                **SET,
                "spark.storage.decommission.enabled": "true",
                "spark.storage.decommission.replicationReattemptInterval": "3s",
            }
        },
        {"settings": {**SET, "spark.storage.decommission.enabled": "false"}},
        {"settings": {**SET, "spark.dynamicAllocation.enabled": "false"}},
        {"worker_settings": {**SET, "spark.worker.timeout": "10s"}},
        {"partitions": 2},  # as many as slots
        {"partitions": None},
        {"run": run(trigger="ProcessingTimeTrigger(2000)")},
        {"run": None},
        {"master": None},
        {"master": master()},
        {"executors": []},  # all workers are free before the job has begun
    ],
)
def test_good_settings_give_no_finding(changes: dict[str, Any]) -> None:
    assert examine(Facts(**{**GOOD, **changes})) == []


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"spark.locality.wait": "0s"}, False),
        ({"spark.locality.wait": "0"}, False),
        ({"spark.locality.wait": "3000"}, True),
        ({"spark.locality.wait": "0s", "spark.locality.wait.node": "1s"}, True),
        (
            {
                "spark.locality.wait.process": "0s",
                "spark.locality.wait.node": "0s",
                "spark.locality.wait.rack": "0s",
            },
            False,
        ),
        ({"spark.locality.wait": "soon"}, True),
    ],
)
def test_locality_waits_of_all_levels_count(settings: dict[str, str], waits: bool) -> None:
    facts = Facts(**{**GOOD, "run": run(state=8), "settings": {**GOOD["settings"], **settings}})
    assert [finding.subject for finding in examine(facts)] == ["spark.locality.wait"] * waits


MIGRATES = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.replicationReattemptInterval": "3s",
}
BATCH: dict[str, Any] = {**GOOD, "settings": MIGRATES, "run": None, "partitions": None, "batch": True}


@pytest.mark.parametrize(
    ("changes", "severity", "subject", "problem", "remedy"),
    [
        (
            {"settings": {"spark.decommission.enabled": "true"}},
            "warning",
            "shuffle files",
            "(not true: spark.storage.decommission.enabled)",
            "spark.storage.decommission.shuffleBlocks.enabled=true",
        ),
        (
            {"settings": {**MIGRATES, "spark.storage.decommission.shuffleBlocks.enabled": "false"}},
            "warning",
            "shuffle files",
            "(not true: spark.storage.decommission.shuffleBlocks.enabled)",
            "spark.decommission.enabled=true",
        ),
        (
            {"settings": {**MIGRATES, "spark.storage.decommission.replicationReattemptInterval": "30s"}},
            "warning",
            "spark.storage.decommission.replicationReattemptInterval",
            "every 30 s",
            "=3s",
        ),
        (
            {"settings": {**MIGRATES, "spark.dynamicAllocation.enabled": "true"}},
            "warning",
            "spark.dynamicAllocation.enabled",
            "itself",
            "=false; if Spark requests its machines itself (YARN, Kubernetes)",
        ),
        (
            {"settings": {**MIGRATES, "spark.master": "k8s://https://api:6443"}},
            "warning",
            "spark.master",
            "k8s://https://api:6443",
            "its dynamic allocation is the better choice",
        ),
        ({"settings": {**MIGRATES, "spark.cores.max": "4"}}, "warning", "spark.cores.max", "4 cores", "max"),
        ({"master": master(1, 1, 0)}, "warning", "workers without an executor", "worker-2", "must fit"),
        ({"active": False, "settings": {}, "executors": []}, "info", "application", "not active", "while a job runs"),
    ],
)
def test_the_doctor_reports_only_findings_that_matter_to_batch_jobs(
    changes: dict[str, Any], severity: str, subject: str, problem: str, remedy: str
) -> None:
    (found,) = examine(Facts(**{**BATCH, **changes}))
    assert (found.severity, found.subject) == (severity, subject)
    assert problem in found.problem
    assert remedy in found.remedy
    assert len(found.cost.split()) > 4, "what it costs is said in words"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partitions": 1},
        {"settings": {**MIGRATES, "spark.locality.wait": "3s"}},
        {"settings": {**MIGRATES, "spark.master": "spark://master:7077", "spark.dynamicAllocation.enabled": "false"}},
        {"settings": {"spark.decommission.enabled": "true", "spark.shuffle.manager": "com.example.RemoteManager"}},
    ],
)
def test_a_well_configured_batch_application_has_no_finding(changes: dict[str, Any]) -> None:
    assert examine(Facts(**{**BATCH, **changes})) == []


def test_between_batch_jobs_only_the_cluster_is_examined() -> None:
    bare = Facts(**{**BATCH, "settings": {}, "active": False, "master_settings": {}, "worker_settings": {}})
    subjects = {finding.subject for finding in examine(bare)}
    assert {"application", "decommissioning (master)", "decommissioning (workers)"} <= subjects
    assert not {"decommissioning (application)", "shuffle files", "workers without an executor"} & subjects


def test_the_most_severe_findings_come_first() -> None:
    found = examine(Facts(settings={}, run=run(state=8, latest=None), master=master(1), executors=executors(1)))
    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=list(Severity).index
    )
    assert len(found) > 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, 30.0), ("3s", 3.0), ("100ms", 0.1), ("2min", 120.0), ("7", 7.0), ("1h", 3600.0), ("soon", None)],
)
def test_durations_of_spark_are_parsed(text: str | None, expected: float | None) -> None:
    assert seconds(text, 30.0) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(None, 10.0), ("10000", 10.0), ("10000ms", 10.0), ("30s", 30.0), ("", None)]
)
def test_a_bare_number_means_milliseconds_if_it_does_in_spark(text: str | None, expected: float | None) -> None:
    assert milliseconds(text, 10.0) == expected


def test_the_widest_stage_is_forgotten_after_a_minute_and_with_its_run() -> None:
    widest = WidestStage()
    widest.forget("run", 0)
    widest.note(8, 0)
    widest.note(4, 50)
    widest.forget("run", 59)
    assert widest.value == 8
    widest.forget("run", 61)
    assert widest.value == 4
    widest.forget("other", 61)
    assert widest.value is None


def test_the_source_and_the_engine_have_the_same_parameters() -> None:
    parameters: dict[str, Any] = {"app": "a", "report": "http://h:1"}
    assert vars(Source(**parameters)) == vars(Spark(**parameters))
    with pytest.raises(ValueError, match="report: must be an address"):
        Spark(app="a", report="h:1")
