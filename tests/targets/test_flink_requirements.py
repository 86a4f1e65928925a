"""The target that sets a Flink job's bounds, against a server that answers as Flink 2.3 does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from autoscaler.core.model import Bound
from autoscaler.ports import (
    AnswerError,
    Doctor,
    EdgeError,
    EdgeTimeoutError,
    RefusedError,
    ScaleTarget,
    UnavailableError,
)
from autoscaler.targets.flink_requirements import FlinkRequirements
from autoscaler.testing.contracts import LocalShared
from tests.targets.flink_jobs import NARROW, SEEN, SINK, SOURCE, FakeFlink, answer, serving

Opened = Callable[..., AbstractAsyncContextManager[ScaleTarget]]


@pytest.fixture
def flink() -> FakeFlink:
    return FakeFlink()


@pytest.fixture
async def opened(flink: FakeFlink) -> AsyncIterator[Opened]:
    async with serving(flink) as url, LocalShared() as shared:

        @asynccontextmanager
        async def open_it(**parameters: Any) -> AsyncIterator[ScaleTarget]:
            async with FlinkRequirements(**{"url": url, "job": "counting"} | parameters).connect(shared) as target:
                yield target

        yield open_it


async def shown(target: ScaleTarget, desired: int, ready: int) -> None:
    """Wait until the target shows these sizes: answers are cached for a moment."""
    async with asyncio.timeout(30):
        while True:
            status = await target.describe()
            if (status.desired, status.ready) == (desired, ready):
                return
            await asyncio.sleep(0.05)


def bounds(put: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {vertex: (of["parallelism"]["lowerBound"], of["parallelism"]["upperBound"]) for vertex, of in put.items()}


async def test_a_size_is_the_upper_bound_of_every_vertex_within_its_limits(flink: FakeFlink, opened: Opened) -> None:
    async with opened() as target:
        await target.scale(3)
        assert bounds(flink.puts[-1]) == {SOURCE: (1, 3), NARROW: (1, 2), SINK: (1, 3)}
        status = await target.describe()
        assert (status.desired, status.ready, status.remarks) == (3, 3, ())
        await target.scale(1)
        status = await target.describe()
        assert (status.desired, status.ready) == (1, 1)


async def test_requesting_the_same_size_again_puts_the_same_bounds(flink: FakeFlink, opened: Opened) -> None:
    async with opened() as target:
        await target.scale(3)
        await target.scale(3)
    assert flink.puts[0] == flink.puts[1]


async def test_until_the_job_applies_its_bounds_the_running_tasks_are_ready(flink: FakeFlink, opened: Opened) -> None:
    flink.busy = True
    async with opened() as target:
        await target.scale(3)
        status = await target.describe()
        assert (status.desired, status.ready) == (3, 1)
        flink.follow()
        await shown(target, desired=3, ready=3)
        await target.scale(1)
        status = await target.describe()
        assert (status.desired, status.ready) == (1, 3)


async def test_missing_slots_are_reported(opened: Opened) -> None:
    async with opened() as target:
        await target.scale(10)
        status = await target.describe()
    assert (status.desired, status.ready) == (10, 4)
    assert status.remarks == ("the cluster has no free slot: the job runs at 4 of 10 until TaskManagers are added",)


async def test_a_job_with_all_requested_slots_lacks_nothing_although_no_slot_is_free(opened: Opened) -> None:
    async with opened() as target:
        await target.scale(4)
        status = await target.describe()
    assert (status.desired, status.ready, status.remarks) == (4, 4, ())


async def test_an_unreported_maximum_parallelism_is_not_a_limit(flink: FakeFlink, opened: Opened) -> None:
    flink.maximum = dict.fromkeys(flink.maximum, -1)
    async with opened() as target:
        assert (await target.describe()).ceiling is None
        await target.scale(200)
    assert bounds(flink.puts[-1]) == {SOURCE: (1, 200), NARROW: (1, 200), SINK: (1, 200)}


async def test_a_vertex_that_cannot_have_a_second_subtask_stays_at_one(flink: FakeFlink, opened: Opened) -> None:
    flink.maximum[NARROW] = 1
    async with opened() as target:
        await target.scale(3)
    assert bounds(flink.puts[-1]) == {SOURCE: (1, 3), NARROW: (1, 1), SINK: (1, 3)}


async def test_the_job_cannot_go_beyond_its_maximum_parallelism(flink: FakeFlink, opened: Opened) -> None:
    async with opened() as target:
        status = await target.describe()
        assert status.floor == Bound(1, "a Flink job runs at a parallelism of 1 or more")
        assert status.ceiling == Bound(128, "no vertex of the job can use more than its maximum parallelism of 128")
        with pytest.raises(
            RefusedError, match="129 is more than any vertex can use; the greatest maximum parallelism is 128"
        ):
            await target.scale(129)
    assert not flink.puts


async def test_a_job_cannot_run_at_zero(flink: FakeFlink, opened: Opened) -> None:
    async with opened() as target:
        with pytest.raises(RefusedError, match="parallelism of 1 or more: 0 replicas"):
            await target.scale(0)
    assert not flink.puts


async def test_a_replica_may_stand_for_several_slots(flink: FakeFlink, opened: Opened) -> None:
    flink.slots, flink.upper = 3, {SOURCE: 3, NARROW: 2, SINK: 3}
    flink.follow()
    async with opened(slots_per_replica=2) as target:
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 2)  # three is no whole number of replicas, but the limit
        await target.scale(3)
        assert bounds(flink.puts[-1]) == {SOURCE: (1, 6), NARROW: (1, 2), SINK: (1, 6)}
        status = await target.describe()
        assert (status.desired, status.ready) == (3, 1)
        assert status.ceiling is not None
        assert status.ceiling.replicas == 64


async def test_the_last_replica_may_be_used_in_part(flink: FakeFlink, opened: Opened) -> None:
    async with opened(slots_per_replica=3) as target:
        await target.scale(43)
        assert bounds(flink.puts[-1]) == {SOURCE: (1, 128), NARROW: (1, 2), SINK: (1, 128)}
        status = await target.describe()
        assert status.ceiling is not None
        assert (status.desired, status.ceiling.replicas) == (43, 43)
        with pytest.raises(RefusedError, match="a parallelism of 132 is more"):
            await target.scale(44)


async def test_the_lower_bound_is_limited_by_the_upper_bound(flink: FakeFlink, opened: Opened) -> None:
    async with opened(lower_bound=3) as target:
        await target.scale(4)
        await target.scale(2)
    assert [bounds(put) for put in flink.puts] == [
        {SOURCE: (3, 4), NARROW: (2, 2), SINK: (3, 4)},
        {SOURCE: (2, 2), NARROW: (2, 2), SINK: (2, 2)},
    ]


@pytest.mark.parametrize("name", ["sink: Writer", SINK])
async def test_a_pinned_vertex_keeps_its_bounds_and_does_not_count(name: str, flink: FakeFlink, opened: Opened) -> None:
    flink.upper[SINK] = flink.lower[SINK] = 4
    flink.follow()
    async with opened(pinned=(name,)) as target:
        assert (await target.describe()).desired == 1
        await target.scale(2)
        assert bounds(flink.puts[-1]) == {SOURCE: (1, 2), NARROW: (1, 2), SINK: (4, 4)}
        status = await target.describe()
        assert (status.desired, status.ready) == (2, 2)


async def test_a_vertex_with_a_lower_fixed_parallelism_is_not_taken_for_unready(
    flink: FakeFlink, opened: Opened
) -> None:
    flink.upper = {SOURCE: 2, NARROW: 1, SINK: 4}
    flink.follow()
    async with opened() as target:
        status = await target.describe()
    assert (status.desired, status.ready) == (4, 4)


async def test_finished_subtasks_count_as_running(flink: FakeFlink, opened: Opened) -> None:
    seen = flink.job

    def job(jid: str) -> dict[str, Any]:
        of = seen(jid)
        of["vertices"][0]["tasks"] |= {"RUNNING": 1, "FINISHED": 2}
        return of

    flink.job = job  # type: ignore[method-assign]
    async with opened() as target:
        await target.scale(3)
        assert (await target.describe()).ready == 3


async def test_a_restarting_job_has_nothing_ready_and_is_reported(flink: FakeFlink, opened: Opened) -> None:
    flink.state, flink.running = "RESTARTING", dict.fromkeys(flink.running, 0)
    async with opened() as target:
        status = await target.describe()
    assert (status.desired, status.ready, status.remarks) == (
        1,
        0,
        ("the job is not running: its state is RESTARTING",),
    )


async def test_a_job_is_identified_by_its_name(
    flink: FakeFlink, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autoscaler.targets")
    async with opened() as target:
        await target.scale(3)
        flink.jids = ["f" * 32]
        flink.upper = flink.running = {SOURCE: 2, NARROW: 2, SINK: 2}
        await shown(target, desired=2, ready=2)  # a new start has its own bounds
        await target.scale(3)
        assert (await target.describe()).desired == 3
    assert [record.getMessage() for record in caplog.records] == ["scaling this job"] * 2  # once per start


async def test_the_only_job_needs_no_name(opened: Opened) -> None:
    async with opened(job=None) as target:
        assert (await target.describe()).desired == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": "other"}, AnswerError, "job 'counting' at http://[^ ]+ does not run there; running jobs: other$"),
        ({"jids": []}, AnswerError, "running jobs: none$"),
        ({"jids": ["a" * 32, "b" * 32]}, AnswerError, "runs 2 jobs named 'counting'"),
        ({"state": "FAILED"}, AnswerError, r"has ended \(FAILED\); start it again: the target follows it by its name"),
        ({"state": "INITIALIZING"}, UnavailableError, "is initializing: its vertices are not all known yet"),
        (
            {"mode": "reactive"},
            RefusedError,
            "takes every slot.* Scale its TaskManagers instead, with the target kubernetes, aws-asg or local",
        ),
        (
            {"mode": "default"},
            RefusedError,
            "not run by the adaptive scheduler.*jobmanager.scheduler: adaptive.*The DefaultScheduler does not support",
        ),
        ({"mode": "old"}, RefusedError, "from Flink 1.18 on; this version is older"),
        ({"failing": answer(SEEN["no_such_job_500"], 500)}, UnavailableError, "Could not find Flink job"),
        ({"failing": answer({"errors": ["who are you"]}, 401)}, RefusedError, "answered 401 Unauthorized: who are you"),
        ({"failing": answer(["nonsense"])}, AnswerError, "expected JSON of Flink's REST API, but"),
    ],
)
async def test_the_error_for_a_job_that_cannot_be_scaled_names_the_reason(
    change: dict[str, Any], error: type[EdgeError], message: str, flink: FakeFlink, opened: Opened
) -> None:
    for name, value in change.items():
        setattr(flink, name, value)
    async with opened() as target:
        for ask in (target.describe(), target.scale(2)):
            with pytest.raises(error, match=message):
                await ask
    assert not flink.puts


async def test_a_reactive_job_is_recognized_by_its_refusal_too(flink: FakeFlink, opened: Opened) -> None:
    flink.refusal = answer(SEEN["put_reactive_500"], 500)
    async with opened() as target:
        with pytest.raises(RefusedError, match=r"runs in Reactive Mode.*Scale its TaskManagers instead"):
            await target.scale(2)


async def test_bounds_that_flink_refuses_are_refused_in_its_words(flink: FakeFlink, opened: Opened) -> None:
    flink.refusal = answer(SEEN["put_incomplete_400"], 400)
    async with opened() as target:
        with pytest.raises(RefusedError, match=r"answered 400 Bad Request: .*missing job vertex"):
            await target.scale(2)


async def test_a_missing_answer_is_an_unknown_outcome(flink: FakeFlink, opened: Opened) -> None:
    release = asyncio.Event()
    handle = flink.requirements

    async def slow(request: web.Request) -> web.Response:
        if request.method == "PUT":
            await release.wait()
        return await handle(request)

    flink.requirements = slow  # type: ignore[method-assign]
    async with opened(timeout=timedelta(seconds=1)) as target:
        with pytest.raises(EdgeTimeoutError):
            await target.scale(2)
        release.set()


async def test_a_pin_that_matches_no_vertex_lists_the_existing_ones(opened: Opened) -> None:
    async with opened(pinned=("sink",)) as target:
        with pytest.raises(AnswerError, match=r"no vertex 'sink' to pin; its vertices: Source: .*, narrow, sink"):
            await target.describe()


async def test_if_everything_is_pinned_nothing_can_be_scaled(opened: Opened) -> None:
    async with opened(pinned=(SOURCE, NARROW, SINK)) as target:
        with pytest.raises(AnswerError, match="every vertex is pinned"):
            await target.describe()


async def test_the_doctor_finds_a_lower_bound_that_the_cluster_cannot_provide(opened: Opened) -> None:
    async with opened(lower_bound=5) as target, opened(lower_bound=4) as usual:
        assert isinstance(target, Doctor)
        assert isinstance(usual, Doctor)
        assert [finding.problem for finding in await target.diagnose()] == [
            "lower_bound is 5, and the cluster has 4 slots"
        ]
        assert not await usual.diagnose()


async def test_the_doctor_reports_a_job_that_cannot_be_scaled_at_all(flink: FakeFlink, opened: Opened) -> None:
    flink.mode = "reactive"
    async with opened() as target:
        assert isinstance(target, Doctor)
        with pytest.raises(RefusedError, match="Reactive Mode"):
            await target.diagnose()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"url": "host:8081"}, "url: must be an address such as"),
        ({"job": " "}, "job: must be the name or the id"),
        ({"slots_per_replica": 0}, "slots_per_replica: must be 1 or more, not 0"),
        ({"lower_bound": 0}, "lower_bound: must be 1 or more, not 0"),
        ({"username": "me"}, "username: must be given together"),
        ({"timeout": timedelta(0)}, "timeout: must be above 0"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlinkRequirements(**{"url": "http://jobmanager:8081"} | parameters)
