"""The engine `flink` on recorded answers of Flink 1.18, 1.20 and 2.3, and the findings of its doctor."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoscaler.clients.flink import (
    CheckpointConfig,
    Checkpoints,
    Execution,
    Job,
    JobConfig,
    JobLines,
    TaskManager,
    Vertex,
    version,
)
from autoscaler.core.model import EngineStatus, JobState, Phase
from autoscaler.engines.flink import Facts, Flink, FlinkEngine, examine, restart, slots_of, status, worker
from autoscaler.ports import AnswerError, Finding, RefusedError, Severity, Worker, Workforce
from autoscaler.sources.flink import Flink as Source
from tests.clients.flink_stub import SOURCE, SUM, VERSIONS, FakeFlink, Shared, serve


class Rig:
    """The engine, connected to a fake JobManager."""

    def __init__(self, flink: FakeFlink, url: str, shared: Shared) -> None:
        self.flink, self.url, self.shared = flink, url, shared
        self.engine: FlinkEngine | None = None

    async def open(self, **changes: Any) -> FlinkEngine:
        if self.engine is None:
            self.engine = await self.shared.stack.enter_async_context(
                Flink(url=self.url, **changes).connect(self.shared)
            )
        return self.engine

    async def describe(self, **changes: Any) -> EngineStatus:
        engine = await self.open(**changes)
        self.shared.forget()
        return await engine.describe()

    async def findings(self, **changes: Any) -> dict[str, Finding]:
        engine = await self.open(**changes)
        self.shared.forget()
        return {finding.subject: finding for finding in await engine.diagnose()}


async def _rig(release: str, scene: str) -> AsyncIterator[Rig]:
    flink, shared = FakeFlink(release, scene), Shared()
    async with serve(flink) as url, shared.stack:
        yield Rig(flink, url, shared)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async for known in _rig("2.3", "running"):
        yield known


@pytest.mark.parametrize("release", VERSIONS)
@pytest.mark.parametrize("scene", ["running", "rescaled"])
async def test_a_running_job_shows_its_slots_and_parallelism(release: str, scene: str) -> None:
    async for rig in _rig(release, scene):
        seen = await rig.describe(job="recorded")
        slots = 4 if scene == "rescaled" else 2
        assert (seen.job, seen.slots, seen.parallelism, seen.max_parallelism) == (JobState.RUNNING, slots, slots, 128)
        since = rig.flink.job["timestamps"]["RUNNING"]
        assert seen.running_since == datetime.fromtimestamp(since / 1000, UTC)
        assert seen.last_checkpoint is not None
        assert timedelta(0) < seen.last_checkpoint - seen.running_since
        assert seen.restarts == int(rig.flink.numbers["numRestarts"])
        assert (scene == "rescaled") <= (seen.restarts > 0), "a rescale is a restart too"


@pytest.mark.parametrize("release", VERSIONS)
async def test_a_job_that_waits_for_workers_is_starting_and_uses_nothing(release: str) -> None:
    async for rig in _rig(release, "waiting"):
        seen = await rig.describe()
        assert (seen.job, seen.slots, seen.parallelism) == (JobState.STARTING, 0, 0)
        assert (seen.running_since, seen.last_checkpoint, seen.restarts) == (None, None, None)


@pytest.mark.parametrize(
    ("listed", "shown", "expected"),
    [
        ("RUNNING", "RUNNING", JobState.RUNNING),
        ("RUNNING", "RESTARTING", JobState.RESTARTING),  # the job itself appears up to 3 s later
        ("CREATED", "RUNNING", JobState.RESTARTING),
        ("RESTARTING", "RUNNING", JobState.RESTARTING),
        ("INITIALIZING", "INITIALIZING", JobState.RESTARTING),
        ("FAILING", "FAILING", JobState.RESTARTING),
        ("RECONCILING", "RECONCILING", JobState.RESTARTING),
        ("SUSPENDED", "SUSPENDED", JobState.RESTARTING),
        ("CANCELLING", "CANCELLING", JobState.STOPPED),
        ("CANCELED", "CANCELED", JobState.STOPPED),
        ("FINISHED", "FINISHED", JobState.STOPPED),
        ("FAILED", "FAILED", JobState.FAILED),
        ("DREAMING", "DREAMING", JobState.UNKNOWN),
    ],
)
async def test_each_state_of_flink_maps_to_one_of_ours(rig: Rig, listed: str, shown: str, expected: JobState) -> None:
    rig.flink.line["state"], rig.flink.job["state"] = listed, shown
    seen = await rig.describe()
    assert seen.job is expected
    assert (seen.running_since is not None) == (expected is JobState.RUNNING)


@pytest.mark.parametrize("tasks", ["DEPLOYING", "SCHEDULED", "INITIALIZING", "CANCELED", "FAILED"])
async def test_a_job_is_running_only_when_all_its_tasks_are(rig: Rig, tasks: str) -> None:
    rig.flink.vertex(SUM)["tasks"] |= {"RUNNING": 1, tasks: 1}
    assert (await rig.describe()).job is JobState.RESTARTING


async def test_finished_tasks_do_no_harm(rig: Rig) -> None:
    rig.flink.vertex(SUM)["tasks"] |= {"RUNNING": 1, "FINISHED": 1}
    assert (await rig.describe()).job is JobState.RUNNING


async def test_a_job_without_restarts_has_failed_when_its_worker_is_lost() -> None:
    async for rig in _rig("2.3", "failed"):
        assert await rig.describe() == EngineStatus(job=JobState.FAILED)


async def test_the_slots_of_a_job_of_the_default_scheduler_are_those_it_uses() -> None:
    async for rig in _rig("2.3", "plain"):
        seen = await rig.describe()
        assert (seen.job, seen.slots, seen.parallelism, seen.last_checkpoint) == (JobState.RUNNING, 1, 1, None)
        assert {"checkpointing", "restart strategy", "scheduler-mode"} <= (await rig.findings()).keys()
        for vertex in rig.flink.job["vertices"]:  # it is shown as running while it waits for slots
            vertex["tasks"] = {"SCHEDULED": 1}
            vertex["start-time"] = -1
        seen = await rig.describe()
        assert (seen.job, seen.slots, seen.parallelism) == (JobState.STARTING, 0, 0)


async def test_a_missing_job_is_stopped(rig: Rig) -> None:
    assert await rig.describe(job="other") == EngineStatus(job=JobState.STOPPED)


async def test_two_jobs_with_one_name_are_refused(rig: Rig) -> None:
    lines = rig.flink.answers["/jobs/overview"]["answer"]["jobs"]
    lines.append({**rig.flink.line, "jid": "f" * 32})
    with pytest.raises(AnswerError, match="2 jobs named 'recorded'"):
        await rig.describe(job="recorded")


async def test_restarts_of_an_earlier_run_are_not_reported(rig: Rig) -> None:
    assert (await rig.describe()).restarts is not None
    rig.flink.ages.clear()
    rig.flink.ages.append(-3600_000)  # metrics that still show the previous, longer run
    assert (await rig.describe()).restarts is None


async def test_if_several_jobs_share_the_slots_only_those_in_use_are_counted(rig: Rig) -> None:
    rig.flink.answers["/overview"]["answer"]["slots-total"] = 16
    assert (await rig.describe()).slots == 16
    rig.flink.unset("scheduler-mode")
    rig.shared.live.clear()
    rig.engine = None
    assert (await rig.describe()).slots == 2


def test_slot_sharing_groups_need_their_own_slots() -> None:
    def vertex(parallelism: int, group: str | None) -> Vertex:
        return Vertex(id="v", name="v", parallelism=parallelism, slot_sharing_group=group)

    assert slots_of([vertex(4, "a"), vertex(2, "a"), vertex(3, "b")], lambda known: known.parallelism) == 7
    assert slots_of([vertex(4, None), vertex(2, None)], lambda known: known.parallelism) == 4
    assert slots_of([], lambda known: known.parallelism) == 0


# workers


async def test_workers_are_found_by_every_name(rig: Rig) -> None:
    engine = await rig.open()
    assert isinstance(engine, Workforce)
    workers = await engine.workers()
    assert [known.cost for known in workers] == [2.0] * len(workers)
    assert all("127.0.0.1" in known.hosts and known.id in known.hosts for known in workers)


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("pekko.tcp://flink@10.1.2.3:6122/user/rpc/taskmanager_0", "10.1.2.3"),
        ("akka.ssl.tcp://flink@tm-1.ns.svc:6122/user/rpc/taskmanager_0", "tm-1.ns.svc"),
        ("pekko.tcp://flink@[fd00::1]:6122/user/rpc/taskmanager_0", "fd00::1"),
        ("nonsense", None),
    ],
)
def test_the_host_of_a_worker_is_in_its_path(path: str, host: str | None) -> None:
    known = TaskManager(id="orders-taskmanager-1-1", path=path, slots=4, free=1)
    assert worker(known) == Worker(known.id, frozenset({known.id, host} - {None}), 3.0)  # type: ignore[arg-type]


async def test_draining_is_refused_with_the_alternative(rig: Rig) -> None:
    engine = await rig.open()
    with pytest.raises(RefusedError, match="cannot drain the TaskManager tm; stop it with SIGTERM"):
        await engine.drain(Worker("tm", frozenset()))


# deadlines from its scheduler's settings


def facts(release: str = "2.3", scene: str = "running", **settings: str) -> Facts:
    known = FakeFlink(release, scene)
    known.set(**settings)

    def text(path: str) -> str:
        return json.dumps(known.answers[path]["answer"])

    lines = JobLines.model_validate_json(text("/jobs/overview")).jobs
    return Facts(
        line=lines[0],
        job=Job.model_validate_json(text(f"/jobs/{known.jid}")),
        version=version(known.answers["/overview"]["answer"]["flink-version"]),
        slots=known.answers["/overview"]["answer"]["slots-total"],
        others=0,
        settings={one["key"]: one["value"] for one in known.settings},
        config=JobConfig.model_validate_json(text(f"/jobs/{known.jid}/config")),
        checkpointing=CheckpointConfig.model_validate_json(text(f"/jobs/{known.jid}/checkpoints/config")),
        checkpoints=Checkpoints.model_validate_json(text(f"/jobs/{known.jid}/checkpoints")),
    )


MARGIN = 60
A = "jobmanager__adaptive_scheduler__"


@pytest.mark.parametrize(
    ("release", "settings", "registered", "absorbed", "running"),
    [
        # 1.18 rescales at once; its default restart strategy waits 1 s.
        ("1.18", {}, 50, 0 + 1, 1),
        (
            "1.18",
            {"restart_strategy__fixed_delay__delay": "9 s", "restart_strategy__fixed_delay__attempts": "3"},
            50,
            1,
            1,
        ),
        # 1.19 and 1.20 wait 30 s between rescales; exponential delay up to 60 s with 10 % jitter.
        ("1.20", {}, 50, 30 + 66, 66),
        ("1.20", {A + "scaling_interval__min": "5 s"}, 50, 5 + 66, 66),
        ("1.20", {A + "executing__cooldown_after_rescaling": "5 s"}, 50, 30 + 66, 66),  # a name of 2.0
        # 2.x also waits for stable slots, and for a checkpoint: three times its interval of 3 s.
        ("2.3", {}, 50, 30 + 60 + 9 + 66, 66),
        ("2.3", {A + "executing__cooldown_after_rescaling": "5 s"}, 50, 5 + 60 + 9 + 66, 66),
        ("2.3", {A + "scaling_interval__min": "PT7S"}, 50, 7 + 60 + 9 + 66, 66),  # its old name still works
        ("2.3", {A + "executing__resource_stabilization_timeout": "2s"}, 50, 30 + 2 + 9 + 66, 66),
        ("2.3", {A + "rescale_trigger__max_checkpoint_failures": "4"}, 50, 30 + 60 + 15 + 66, 66),
        ("2.3", {A + "rescale_trigger__max_delay": "1 min"}, 50, 30 + 60 + 60 + 66, 66),
        ("2.3", {A + "submission__resource_stabilization_timeout": "4 s"}, 50, 30 + 60 + 9 + 4 + 66, 70),
        ("1.20", {A + "resource_stabilization_timeout": "4 s"}, 50, 30 + 4 + 66, 70),
        ("2.3", {"heartbeat__timeout": "15000"}, 15, 165, 66),
        ("2.3", {"restart_strategy__type": "fixed-delay"}, 50, 99 + 1, 1),
        ("2.3", {"restart_strategy__type": "fixed-delay", "restart_strategy__fixed_delay__delay": "5 s"}, 50, 104, 5),
        ("2.3", {"restart_strategy__exponential_delay__max_backoff": "10 s"}, 50, 99 + 11, 11),
        ("1.18", {"restart_strategy": "exponential-delay"}, 50, 330, 330),
        ("2.3", {"restart_strategy__type": "none"}, 50, 99, 0),
        ("2.3", {"heartbeat__timeout": "soon"}, 50, 165, 66),  # an invalid value gives the default
    ],
)
def test_deadlines_follow_the_settings_of_each_version(
    release: str, settings: dict[str, str], registered: float, absorbed: float, running: float
) -> None:
    found = status(facts(release, **settings), {}).deadlines
    assert {phase: limit.total_seconds() - MARGIN for phase, limit in found.items()} == pytest.approx(
        {Phase.REGISTERED: registered, Phase.ABSORBED: absorbed, Phase.RUNNING: running}
    )


def test_if_slots_in_use_are_counted_their_deadline_is_that_of_the_parallelism() -> None:
    known = facts()
    shared = replace(known, settings={key: value for key, value in known.settings.items() if key != "scheduler-mode"})
    assert status(shared, {}).deadlines[Phase.REGISTERED] > status(known, {}).deadlines[Phase.ABSORBED]


@pytest.mark.parametrize(
    ("reported", "kind", "delay", "attempts"),
    [
        ("Restart deactivated.", "none", 0, None),
        ("Restart with fixed delay (10000 ms). #3 restart attempts.", "fixed-delay", 10, 3),
        ("Restart with fixed delay (PT5S). #2147483647 restart attempts.", "fixed-delay", 5, None),
        (
            "Failure rate restart with maximum of 3 failures within interval PT1M and fixed delay PT2S",
            "failure-rate",
            2,
            1,
        ),
        (
            "Restart with exponential delay: starting at PT1S, increasing by 2.000000, with maximum PT30S.",
            "exponential-delay",
            33,
            None,
        ),
    ],
)
def test_a_job_may_report_its_own_restart_strategy(
    reported: str, kind: str, delay: float, attempts: int | None
) -> None:
    known = facts("1.20", restart_strategy__type="none")
    own = replace(known, config=known.config.model_copy(update={"execution": Execution(restart_strategy=reported)}))
    found = restart(own)
    assert (found.kind, found.attempts) == (kind, attempts)
    assert found.delay == pytest.approx(delay)


# the doctor

GOOD = {
    "heartbeat__timeout": "15 s",
    A + "executing__resource_stabilization_timeout": "10 s",
    "high_availability__type": "kubernetes",
}


def good(**changes: Any) -> Facts:
    known = facts(**GOOD)
    assert known.checkpointing is not None
    stored = known.checkpointing.model_copy(update={"storage": "FileSystemCheckpointStorage"})
    return replace(known, **{"checkpointing": stored, **changes})


def with_settings(**settings: str) -> Facts:
    known = facts(**GOOD, **settings)
    return replace(good(), settings=known.settings)


def checkpoints(interval: int = 3000, duration: int = 40, **changes: Any) -> Facts:
    known = good()
    assert known.checkpointing is not None
    assert known.checkpoints is not None
    assert known.checkpoints.latest.completed is not None
    completed = known.checkpoints.latest.completed.model_copy(update={"duration": duration})
    latest = known.checkpoints.latest.model_copy(update={"completed": completed, **changes})
    counts = known.checkpoints.counts.model_copy(update={"failed": 3})
    return replace(
        known,
        checkpointing=known.checkpointing.model_copy(update={"interval": interval}),
        checkpoints=known.checkpoints.model_copy(update={"latest": latest, "counts": counts}),
    )


def without(*keys: str, **changes: Any) -> Facts:
    known = good(**changes)
    return replace(known, settings={key: value for key, value in known.settings.items() if key not in keys})


def taskmanagers(*slots: int) -> tuple[TaskManager, ...]:
    return tuple(TaskManager(id=str(number), path="", slots=count, free=0) for number, count in enumerate(slots))


def narrow(most: int) -> Facts:
    known = good(slots=64)
    vertices = tuple(vertex.model_copy(update={"max_parallelism": most}) for vertex in known.job.vertices)
    return replace(known, job=known.job.model_copy(update={"vertices": vertices}))


def test_a_well_configured_job_has_no_finding() -> None:
    assert examine(good()) == []


@pytest.mark.parametrize(
    ("known", "severity", "subject", "problem", "remedy"),
    [
        (
            good(checkpointing=None),
            "error",
            "checkpointing",
            "takes no periodic checkpoints",
            "execution.checkpointing.interval",
        ),
        (checkpoints(interval=2**63 - 1), "error", "checkpointing", "takes no periodic checkpoints", "interval"),
        (good(checkpointing=None), "error", "restart strategy", "none (the default of a job without", "exponential"),
        (with_settings(restart_strategy__type="off"), "error", "restart strategy", "has none", "exponential-delay"),
        (
            with_settings(restart_strategy__type="fixed-delay"),
            "warning",
            "restart strategy",
            "fixed-delay, which gives up",
            "exponential-delay",
        ),
        (
            with_settings(restart_strategy__type="failure-rate"),
            "warning",
            "restart strategy",
            "failure-rate, which gives up",
            "exponential-delay",
        ),
        (
            without("scheduler-mode"),
            "warning",
            "scheduler-mode",
            "only the target flink-requirements scales it (with that target, nothing is wrong)",
            "flink-requirements, which changes these bounds",
        ),
        (
            without("scheduler-mode", job=facts(scene="plain").job),
            "error",
            "scheduler-mode",
            "default scheduler",
            "scheduler-mode: reactive",
        ),
        (
            good(job=facts(scene="plain").job.model_copy(update={"kind": "BATCH"})),
            "error",
            "batch job",
            "a parallelism of its own choice",
            "do not scale it",
        ),
        (without("heartbeat.timeout"), "warning", "heartbeat.timeout", "after 50 s", "heartbeat.timeout: 15 s"),
        (
            without("jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout"),
            "warning",
            "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout",
            "only 60 s after the first",
            "10 s",
        ),
        (
            checkpoints(interval=300_000),
            "warning",
            "execution.checkpointing.interval",
            "300 s apart",
            "10 to 60 s",
        ),
        (
            checkpoints(duration=5_000),
            "warning",
            "duration of checkpoints",
            "took 5 s, longer than the 3 s",
            "unaligned",
        ),
        (checkpoints(completed=None), "error", "failed checkpoints", "3 checkpoints have failed", "web UI"),
        (without("high-availability.type"), "warning", "high-availability.type", "only in its memory", "storageDir"),
        (
            good(checkpointing=facts().checkpointing),
            "warning",
            "execution.checkpointing.dir",
            "JobManager's memory",
            "execution.checkpointing.dir",
        ),
        (good(taskmanagers=taskmanagers(2, 4, 4)), "warning", "taskmanager.numberOfTaskSlots", "2, 4", "same number"),
        (narrow(32), "warning", "maximum parallelism", "can use 32 slots and there are 64", "max to 32"),
        (
            with_settings(metrics__fetcher__update_interval="0"),
            "error",
            "metrics.fetcher.update-interval",
            "gathers no metrics",
            "2 s",
        ),
        (
            with_settings(metrics__fetcher__update_interval="1 min"),
            "warning",
            "metrics.fetcher.update-interval",
            "every 60 s",
            "2 s",
        ),
        (good(others=1), "warning", "session cluster", "1 other job shares", "flink-requirements"),
    ],
)
def test_each_finding_names_the_problem_and_the_setting_that_fixes_it(
    known: Facts, severity: str, subject: str, problem: str, remedy: str
) -> None:
    found = {finding.subject: finding for finding in examine(known)}
    assert subject in found
    assert found[subject].severity == severity
    assert problem in found[subject].problem
    assert remedy in found[subject].remedy
    assert len(found[subject].cost.split()) > 4, "what it costs is said in words"
    alone = {"checkpointing", "restart strategy"} if known.interval is None else {subject}
    assert found.keys() == alone


def test_flink_1_18_restarts_for_every_slot_and_its_steps_may_be_limited() -> None:
    known = facts("1.18", **{**GOOD, A + "min_parallelism_increase": "4"})
    found = {finding.subject: finding for finding in examine(known)}
    assert found["cooldown"].severity is Severity.INFO
    assert "only by 4 slots" in found["jobmanager.adaptive-scheduler.min-parallelism-increase"].problem


def test_the_most_severe_findings_come_first() -> None:
    found = examine(replace(facts(), checkpointing=None))
    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=list(Severity).index
    )
    assert len(found) > 3


async def test_the_doctor_reads_the_job_manager(rig: Rig) -> None:
    assert {"heartbeat.timeout", "high-availability.type"} <= (await rig.findings()).keys()


@pytest.mark.parametrize("state", ["FAILED", "CANCELED"])
async def test_the_doctor_reports_that_a_job_has_ended(rig: Rig, state: str) -> None:
    rig.flink.state(state)
    found = await rig.findings(job="recorded")
    assert f"does not run it; the last one is {state}" in found["job recorded"].problem


async def test_warnings_are_logged_once_per_job(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "autoscaler.engines"):
        for _ in range(3):
            await rig.describe()
        first = {record.__dict__["subject"] for record in caplog.records}
        assert {"heartbeat.timeout", "high-availability.type"} <= first
        assert len(caplog.records) == len(first)
        answers = rig.flink.answers
        for path in [path for path in answers if rig.flink.jid in path]:
            answers[path.replace(rig.flink.jid, "f" * 32)] = answers[path]
        rig.flink.line["jid"] = "f" * 32  # restarted under its name
        rig.flink.jid = "f" * 32
        await rig.describe()
    assert len(caplog.records) == len(first)


async def test_findings_that_appear_only_while_a_job_runs_are_logged_too(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon often starts before the job: an initializing job has neither vertices nor checkpoints."""
    vertices = rig.flink.job["vertices"]
    for vertex in vertices:
        vertex["maxParallelism"] = 1
    with caplog.at_level(logging.WARNING, "autoscaler.engines"):
        rig.flink.job["vertices"] = []
        rig.flink.state("INITIALIZING")
        await rig.describe()
        assert "maximum parallelism" not in {record.__dict__["subject"] for record in caplog.records}
        rig.flink.job["vertices"] = vertices
        rig.flink.state("RUNNING")
        await rig.describe()
        await rig.describe()
    subjects = [record.__dict__["subject"] for record in caplog.records]
    assert "maximum parallelism" in subjects
    assert len(subjects) == len(set(subjects))


async def test_each_finding_is_logged_once(rig: Rig, tmp_path: Path) -> None:
    """Once in its report: the log line of the daemon about the same finding is not shown beside it."""
    file = tmp_path / "autoscaler.yaml"
    file.write_text(
        f"""clusters:
  orders:
    engine: {{type: flink, url: "{rig.url}"}}
    target: {{type: null}}
    max: 4
    metrics: {{lag: {{source: job, metric: lag}}}}
    policies: {{p: {{type: threshold, up: [{{metric: lag, above: 5}}]}}}}
sources: {{job: {{type: flink, url: "{rig.url}"}}}}
"""
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autoscaler", "check", "--online", str(file), stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(60):
        reported, logged = await process.communicate()
    assert reported.count(b"WARNING: heartbeat.timeout") == 1, reported + logged
    assert b"heartbeat.timeout" not in logged


def test_the_source_and_the_engine_have_the_same_parameters() -> None:
    assert vars(Source(url="http://h:1")) == vars(Flink(url="http://h:1"))
    for plugin in (Source, Flink):
        with pytest.raises(ValueError, match="url: must be"):
            plugin(url="h:1")
        with pytest.raises(ValueError, match="window: must be above 0"):
            plugin(url="http://h:1", window=timedelta(0))


def test_a_vertex_without_inputs_is_a_source() -> None:
    assert [vertex.id for vertex in facts().job.sources] == [SOURCE]
