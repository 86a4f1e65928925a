"""The target `flink-requirements` on a real Flink: a session cluster of the adaptive scheduler, and Reactive Mode."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autoscaler.demo.flink.cluster import compile_job
from autoscaler.demo.processes import QUICK_START
from autoscaler.ports import AnswerError, EdgeError, RefusedError, ScaleTarget, TargetStatus, UnavailableError
from autoscaler.targets.flink_requirements import FlinkRequirements
from autoscaler.targets.local.workers import flink_command, flink_environment, flink_sizes
from autoscaler.testing.contracts import LocalShared
from tests.e2e.flink_cluster import FlinkCluster, flink_cluster, until

pytestmark = pytest.mark.e2e

SLOTS = 4
PATIENCE = 90  # seconds; a rescale takes five


@pytest.fixture
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FlinkCluster]:
    """A session cluster with one TaskManager; parametrized by the scheduler."""
    scheduler = getattr(request, "param", "adaptive")
    settings = {"jobmanager.scheduler": scheduler, "io.tmp.dirs": str(tmp_path)}
    with flink_cluster(tmp_path, settings) as flink:
        config = flink.conf / "config.yaml"
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith("scheduler-mode")))
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        sizes = flink_sizes(flink.home, flink.jdk, flink.conf, "GET_JM_RESOURCE_PARAMS", {})
        command = flink_command(flink.home, flink.jdk, flink.conf, (*sizes.jvm, *QUICK_START.split()), main)
        flink.processes.start("jobmanager", [*command, *sizes.settings], flink_environment(flink.home, flink.conf))
        until(lambda: flink.get("/overview"), what="for the JobManager")
        flink.start_task_manager(1, SLOTS)
        until(lambda: flink.slots() == SLOTS, what="for the TaskManager")
        flink.offer(5.0)
        yield flink


@asynccontextmanager
async def opened(flink: FlinkCluster, **parameters: Any) -> AsyncIterator[ScaleTarget]:
    async with LocalShared() as shared:
        plugin = FlinkRequirements(**{"url": flink.rest, "job": flink.job.name} | parameters)
        async with plugin.connect(shared) as target:
            yield target


async def shown(
    target: ScaleTarget, desired: int, ready: int, meanwhile: type[EdgeError] = UnavailableError
) -> TargetStatus:
    """Wait until the target shows these sizes; until then it may raise this error."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                status = await target.describe()
                if (status.desired, status.ready) == (desired, ready):
                    return status
            except meanwhile:
                pass
            await asyncio.sleep(0.2)


async def upload(flink: FlinkCluster) -> str:
    """Upload the job's JAR to the cluster; returns the id of the JAR."""
    jar = compile_job(flink.jdk, flink.home, flink.directory / "job")
    form = aiohttp.FormData()
    form.add_field("jarfile", jar.read_bytes(), filename="job.jar", content_type="application/java-archive")
    async with aiohttp.ClientSession() as http, http.post(f"{flink.rest}/jars/upload", data=form) as answer:
        assert answer.status == 200, await answer.text()
        return Path((await answer.json())["filename"]).name


async def submit(flink: FlinkCluster, jar: str) -> str:
    """Start the job at parallelism 1; returns its id."""
    how = {"parallelism": 1, "entryClass": "VirtualLogJob", "programArgsList": flink.job.arguments()}
    async with aiohttp.ClientSession() as http, http.post(f"{flink.rest}/jars/{jar}/run", json=how) as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["jobid"])


def cancel(flink: FlinkCluster, jid: str) -> None:
    request = urllib.request.Request(f"{flink.rest}/jobs/{jid}?mode=cancel", method="PATCH")  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        json.load(answer)
    until(lambda: flink.get(f"/jobs/{jid}")["state"] == "CANCELED", what="for the job to end")


async def test_a_job_of_a_session_cluster_gets_the_configured_parallelism(session: FlinkCluster) -> None:
    jar = await upload(session)
    jid = await submit(session, jar)
    async with opened(session) as target:
        status = await shown(target, desired=1, ready=1)
        assert status.ceiling is not None
        assert status.ceiling.replicas == session.job.max_parallelism

        await target.scale(3)
        assert (await target.describe()).desired == 3  # at once, although the job has not followed yet
        await shown(target, desired=3, ready=3)
        assert widths(session, jid) == {3}

        await target.scale(3)  # the same again changes nothing
        await target.scale(1)
        await shown(target, desired=1, ready=1)
        assert widths(session, jid) == {1}

        await target.scale(SLOTS + 2)
        status = await shown(target, desired=SLOTS + 2, ready=SLOTS)
        assert status.remarks == (
            f"the cluster has no free slot: the job runs at {SLOTS} of {SLOTS + 2} until TaskManagers are added",
        )

        cancel(session, jid)
        with pytest.raises(AnswerError, match=r"has ended \(CANCELED\)"):
            await shown(target, desired=0, ready=0)
        again = await submit(session, jar)
        assert again != jid
        # It starts with its author's bounds, not with those of the last run.
        await shown(target, desired=1, ready=1, meanwhile=EdgeError)
        await target.scale(2)
        await shown(target, desired=2, ready=2)
        assert widths(session, again) == {2}

        await submit(session, jar)
        with pytest.raises(AnswerError, match="runs 2 jobs named 'surge'"):
            await shown(target, desired=0, ready=0)


@pytest.mark.parametrize("session", ["default"], indirect=True)
async def test_a_job_of_the_default_scheduler_is_refused_with_the_remedy(session: FlinkCluster) -> None:
    await submit(session, await upload(session))
    async with opened(session) as target:
        for ask in (target.describe(), target.scale(2)):
            with pytest.raises(
                RefusedError, match=r"not run by the adaptive scheduler.*jobmanager\.scheduler: adaptive"
            ):
                await ask


async def test_a_job_in_reactive_mode_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with flink_cluster(tmp_path) as flink:
        flink.start_job_manager()
        flink.start_task_manager(1)
        flink.offer(5.0)
        until(lambda: flink.job_state() == "RUNNING", what="for the job")
        async with opened(flink) as target:
            for ask in (target.describe(), target.scale(2)):
                with pytest.raises(RefusedError, match=r"runs in Reactive Mode.*Scale its TaskManagers instead"):
                    await ask


def widths(flink: FlinkCluster, jid: str) -> set[int]:
    """The parallelisms of the job's vertices, as Flink itself reports them."""
    return {vertex["parallelism"] for vertex in flink.get(f"/jobs/{jid}")["vertices"]}
