"""The source `flink` on recorded answers of Flink 1.18, 1.20 and 2.3, and on modified ones."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from autoscaler.clients.flink import Aggregate
from autoscaler.core.model import ClusterSpec, ClusterState, Limits, NamedPolicy, Observation, Reading
from autoscaler.core.step import step
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, UnavailableError
from autoscaler.sources.flink import Flink, FlinkSource
from autoscaler.sources.flink_metrics import NEEDS_VERTEX, FlinkQuery, Metric
from autoscaler.sources.flink_samples import Sample, continues, make_sample, partitions, useful_names
from autoscaler_policies.flink_operator.policy import FlinkOperator
from tests.clients.flink_stub import BUSY, HELD, IDLE, SOURCE, SUM, VERSIONS, WORK, FakeFlink, Shared, serve

START = datetime(2026, 1, 1, tzinfo=UTC)


class Rig:
    """The source, connected to a fake JobManager."""

    def __init__(self, flink: FakeFlink, url: str, shared: Shared) -> None:
        self.flink, self.url, self.shared = flink, url, shared
        self.source: FlinkSource | None = None
        self.now = START

    async def open(self, **changes: Any) -> FlinkSource:
        if self.source is None:
            self.source = await self.shared.stack.enter_async_context(
                Flink(url=self.url, **changes).connect(self.shared)
            )
        return self.source

    def tick(self) -> None:
        """Make the next observation send new requests."""
        self.now += timedelta(seconds=15)
        self.shared.forget()

    async def collect(self, metric: str, **query: Any) -> Reading:
        return await (await self.open()).collect(FlinkQuery(metric=metric, **query), self.now)

    async def value(self, metric: str, **query: Any) -> float:
        found = (await self.collect(metric, **query)).value
        assert isinstance(found, float)
        return found

    async def poll(self, seconds: float, rates: dict[str, float], shares: dict[str, tuple[float, float]]) -> None:
        """Let time pass, and read every metric."""
        self.flink.pass_time(seconds, rates, shares)
        self.tick()
        await self.collect("busy", vertex=WORK)

    async def steady(self, rates: dict[str, float], shares: dict[str, tuple[float, float]]) -> None:
        """Poll twice a job that continues like this."""
        await self.poll(10, rates, shares)
        await self.poll(10, rates, shares)


async def _rig(release: str = "2.3", scene: str = "running") -> AsyncIterator[Rig]:
    flink, shared = FakeFlink(release, scene), Shared()
    async with serve(flink) as url, shared.stack:
        yield Rig(flink, url, shared)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async for known in _rig():
        yield known


def all_of(rate: float) -> dict[str, float]:
    return dict.fromkeys((SOURCE, WORK, SUM), rate)


# rates


@pytest.mark.parametrize("release", VERSIONS)
@pytest.mark.parametrize("scene", ["running", "rescaled"])
async def test_rates_and_shares_are_those_between_two_polls(release: str, scene: str) -> None:
    async for rig in _rig(release, scene):
        await rig.steady(all_of(500), {SOURCE: (0.25, 0.5), WORK: (0.5, 0.0), SUM: (0.125, 0.0)})
        assert await rig.value("throughput") == pytest.approx(500)
        assert await rig.value("arrivals") == pytest.approx(500)
        assert await rig.value("records_in", vertex="work") == pytest.approx(500)
        assert await rig.value("records_out", vertex=WORK) == pytest.approx(500)
        assert await rig.value("records_in", vertex="Source: numbers") == pytest.approx(500)
        assert await rig.value("lag") == 2001.0
        assert await rig.value("busy", vertex="work") == pytest.approx(0.5)
        assert await rig.value("idle", vertex="sum") == pytest.approx(0.875)
        assert await rig.value("backpressured") == pytest.approx(0.5)
        assert await rig.value("utilization") == pytest.approx(0.5)
        assert await rig.value("saturation") == pytest.approx(0.75)


async def test_at_the_first_poll_flinks_own_mean_over_a_minute_is_used(rig: Rig) -> None:
    reported = rig.flink.metrics[SOURCE]["Source__numbers.numRecordsOutPerSecond"]["sum"]
    assert await rig.value("throughput") == pytest.approx(reported)
    assert await rig.value("saturation") == pytest.approx(1.0)
    with pytest.raises(AnswerError, match="the growth of its lag needs two polls"):
        await rig.collect("arrivals")


async def test_a_source_that_is_not_busy_reads_all_arrivals_even_at_the_first_poll(rig: Rig) -> None:
    rig.flink.pass_time(10, all_of(500), {SOURCE: (0.3, 0.1)})
    reported = rig.flink.metrics[SOURCE]["Source__numbers.numRecordsOutPerSecond"]["sum"]
    assert await rig.value("arrivals") == pytest.approx(reported)


async def test_flinks_mean_is_too_low_before_a_task_has_run_for_a_minute() -> None:
    async for rig in _rig("1.18"):
        with pytest.raises(AnswerError, match=r"'Source: numbers': a rate needs two polls of its counters"):
            await rig.collect("throughput")


async def test_arrivals_are_the_read_records_plus_the_growth_of_the_lag(rig: Rig) -> None:
    await rig.poll(10, all_of(500), {})
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 5001)
    await rig.poll(10, all_of(500), {})
    assert await rig.value("lag") == 5001
    assert await rig.value("arrivals") == pytest.approx(500 + 300)


async def test_arrivals_are_never_negative(rig: Rig) -> None:
    """The log was truncated while nothing was read."""
    await rig.poll(10, all_of(0), {})
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 0)
    await rig.poll(10, all_of(0), {})
    assert await rig.value("arrivals") == 0


async def test_a_rate_uses_the_clock_of_the_subtasks(rig: Rig) -> None:
    """A second poll that comes a moment later on our clock makes no difference."""
    await rig.steady(all_of(300), {})
    await rig.poll(0.0001, {}, {})
    assert await rig.value("throughput") == pytest.approx(300, rel=0.001)


async def test_a_rate_covers_the_span_of_its_mean(rig: Rig) -> None:
    await rig.steady(all_of(300), {})
    first = (await rig.collect("throughput")).over
    await asyncio.sleep(0.3)
    await rig.poll(10, all_of(300), {})
    for name in ("throughput", "arrivals"):
        assert (await rig.collect(name)).over >= first + timedelta(seconds=0.2)
    assert (await rig.collect("lag")).over == timedelta(0)


async def test_metrics_that_flink_did_not_update_are_not_a_new_sample(rig: Rig) -> None:
    await rig.steady(all_of(300), {})
    before = await rig.collect("throughput")
    await asyncio.sleep(0.3)
    rig.tick()
    after = await rig.collect("throughput")
    assert after.value == before.value
    assert rig.now - after.at >= timedelta(seconds=0.3), "it is as old as when it was gathered"


async def test_a_reading_has_the_time_at_which_flink_gathered_it(rig: Rig) -> None:
    rig.flink.ages.clear()
    rig.flink.ages.append(4_000)
    rig.flink.unset("metrics.fetcher.update-interval")
    found = await rig.collect("lag")
    assert timedelta(seconds=4) <= rig.now - found.at < timedelta(seconds=6)


async def test_only_the_window_counts(rig: Rig) -> None:
    await rig.open(window=timedelta(seconds=0.05))
    await rig.poll(10, all_of(100), {})
    await rig.poll(10, all_of(100), {})
    await asyncio.sleep(0.1)
    await rig.poll(10, all_of(900), {})
    assert await rig.value("throughput") == pytest.approx(900)


async def test_a_gap_in_the_polls_gives_no_rate(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoscaler.sources.flink.MAX_GAP", 0.2)
    await rig.open(window=timedelta(seconds=0.04))
    await rig.steady(all_of(500), {})
    await asyncio.sleep(0.3)
    await rig.poll(300, all_of(100), {})
    assert await rig.value("throughput") == pytest.approx(100), "polled rarely, but polled"
    rig.flink.line["state"] = "RESTARTING"
    rig.tick()
    with pytest.raises(AnswerError):
        await rig.collect("throughput")
    rig.flink.line["state"] = "RUNNING"
    await asyncio.sleep(0.3)
    await rig.poll(300, all_of(100), {})
    assert len((await rig.open())._samples[WORK]) == 1
    await rig.poll(10, all_of(700), {})
    assert await rig.value("throughput") == pytest.approx(700)


# missing metrics


@pytest.mark.parametrize("state", ["CREATED", "RESTARTING", "FAILING", "INITIALIZING", "FAILED", "FINISHED"])
async def test_a_job_that_is_not_running_has_no_metrics(rig: Rig, state: str) -> None:
    await rig.steady(all_of(500), {})
    rig.flink.line["state"] = state
    rig.tick()
    for metric in ("lag", "throughput", "saturation", "heap", "checkpoint_age"):
        with pytest.raises(AnswerError, match=f"job 'recorded' is {state}"):
            await rig.collect(metric)


async def test_a_job_shown_with_an_outdated_state_has_no_metrics(rig: Rig) -> None:
    rig.flink.job["state"] = "RESTARTING"
    with pytest.raises(AnswerError, match="is RESTARTING"):
        await rig.collect("lag")


async def test_metrics_of_an_unknown_job_name_are_an_error(rig: Rig) -> None:
    await rig.open(job="other")
    with pytest.raises(AnswerError, match="runs no job named 'other'"):
        await rig.collect("lag")


async def test_a_restarted_job_is_measured_from_its_restart(rig: Rig) -> None:
    await rig.steady(all_of(500), {})
    rig.flink.job["timestamps"]["RUNNING"] = rig.flink.job["now"] - 5_000
    for vertex in (SOURCE, WORK, SUM):
        for name in (BUSY, IDLE, HELD):
            rig.flink.report(vertex, name, 0)
    rig.tick()
    with pytest.raises(AnswerError, match=r"report no metrics|0 of its 2|two polls"):
        await rig.collect("throughput")
    await rig.steady(all_of(200), {})
    assert await rig.value("throughput") == pytest.approx(200)


async def test_metrics_of_the_previous_run_are_not_used(rig: Rig) -> None:
    rig.flink.ages.clear()
    rig.flink.ages.append(-3600_000)
    with pytest.raises(AnswerError, match="has just started: Flink has no metrics of this run yet"):
        await rig.collect("lag")


async def test_a_vertex_with_a_silent_subtask_is_missing(rig: Rig) -> None:
    await rig.steady(all_of(500), {WORK: (0.5, 0.0)})
    for one in rig.flink.metrics[SUM].values():
        one["sum"] = one["avg"]  # one of two
    rig.tick()
    with pytest.raises(AnswerError, match=r"vertex 'sum -> out: Writer': 1 of its 2 running subtasks report"):
        await rig.collect("utilization")
    assert await rig.value("busy", vertex=WORK) == pytest.approx(0.5), "the others are not harmed"
    assert await rig.value("throughput") == pytest.approx(500)


async def test_a_vertex_that_is_being_deployed_is_missing(rig: Rig) -> None:
    rig.flink.vertex(SUM)["tasks"] |= {"RUNNING": 1, "DEPLOYING": 1}
    with pytest.raises(AnswerError, match="not all of its subtasks run"):
        await rig.collect("saturation")


async def test_a_vertex_without_metrics_is_missing(rig: Rig) -> None:
    known = rig.flink.metrics.pop(WORK)
    with pytest.raises(AnswerError, match=r"vertex 'work': its subtasks report no metrics yet"):
        await rig.collect("saturation")
    rig.flink.metrics[WORK] = known
    rig.tick()
    assert await rig.value("saturation") == pytest.approx(1.0), "names are asked for again"
    del known["numRecordsInPerSecond"]  # an unknown name makes Flink answer nothing at all
    rig.tick()
    assert await rig.value("saturation") == pytest.approx(1.0)


async def test_a_counter_that_decreases_starts_a_new_window(rig: Rig) -> None:
    await rig.steady(all_of(500), {})
    rig.flink.report(WORK, "numRecordsIn", 7)
    await rig.poll(10, all_of(500), {})
    last = (await rig.open())._samples[WORK]
    assert len(last) == 1


async def test_the_error_of_a_source_without_pending_records_names_other_sources(rig: Rig) -> None:
    del rig.flink.metrics[SOURCE]["Source__numbers.pendingRecords"]
    await rig.steady(all_of(500), {SOURCE: (0.3, 0.1)})
    with pytest.raises(AnswerError, match=r"does not report pendingRecords .* by the source kafka or prometheus"):
        await rig.collect("lag")
    assert await rig.value("arrivals") == pytest.approx(500), "it reads all that comes while it is not busy"
    for _ in range(4):
        await rig.poll(20, all_of(500), {SOURCE: (0.3, 0.7)})
    with pytest.raises(AnswerError, match="so it may read less than arrives"):
        await rig.collect("arrivals")


@pytest.mark.parametrize("pending", [-5.0, math.nan])
async def test_a_lag_that_is_not_a_number_of_records_is_an_error(rig: Rig, pending: float) -> None:
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", pending)
    with pytest.raises(AnswerError, match="pendingRecords"):
        await rig.collect("lag")


async def test_a_job_manager_that_does_not_answer_is_unavailable(rig: Rig) -> None:
    async def gone(_: web.Request) -> web.Response:
        return web.json_response({"errors": ["leader election"]}, status=503)

    rig.flink.special["/jobs/overview"] = gone
    with pytest.raises(UnavailableError, match="leader election"):
        await rig.collect("lag")


async def test_a_reading_ends_in_time(rig: Rig) -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    rig.flink.special[f"/jobs/{rig.flink.jid}"] = slow
    await rig.open(timeout=timedelta(seconds=0.5))
    async with asyncio.timeout(5):
        with pytest.raises(EdgeTimeoutError):
            await rig.collect("lag")


# saturation


async def test_a_backpressured_source_counts_as_saturated(rig: Rig) -> None:
    """A hot key: one subtask of two is always busy, and holds up the source."""
    await rig.steady(all_of(500), {SOURCE: (0.1, 0.9), WORK: (0.5, 0.0)})
    assert await rig.value("saturation") == pytest.approx(1.0)
    assert await rig.value("utilization") == pytest.approx(0.5)
    rig.flink.report(WORK, "busyTimeMsPerSecond", 1000, most=1000)
    rig.tick()
    await rig.poll(10, all_of(500), {SOURCE: (0.1, 0.9), WORK: (0.5, 0.0)})
    assert await rig.value("busy", vertex=WORK, aggregate="max") == pytest.approx(0.5, abs=0.2)


async def test_an_unmeasured_busy_time_is_ignored(rig: Rig) -> None:
    """Legacy sources have none: their tasks do not know when they wait."""
    for name in (BUSY, "busyTimeMsPerSecond"):
        rig.flink.report(SOURCE, name, math.nan)
    rig.flink.report(SOURCE, IDLE, 0)
    await rig.open()
    for seconds in (10, 10):
        rig.flink.pass_time(seconds, all_of(500), {WORK: (0.6, 0.0)})
        for name in (BUSY, "busyTimeMsPerSecond"):
            rig.flink.report(SOURCE, name, math.nan)
        rig.tick()
        await rig.collect("busy", vertex=WORK)
    assert await rig.value("utilization") == pytest.approx(0.6)
    assert await rig.value("saturation") == pytest.approx(0.6)
    with pytest.raises(AnswerError, match="does not report busyTimeMsPerSecond"):
        await rig.collect("busy", vertex="numbers")


async def test_a_finished_vertex_is_ignored(rig: Rig) -> None:
    rig.flink.vertex(SOURCE)["tasks"] = {"FINISHED": 2}
    rig.flink.metrics[SOURCE] = {}
    assert await rig.value("utilization") > 0
    with pytest.raises(AnswerError, match="no vertex that still runs"):
        await rig.collect("throughput")


# utilization by worker

HOT = (1.0, 0.2, 0.4, 0.4)
"""Busy shares of the subtasks of `WORK`: a hot key keeps one busy all the time."""


def mean_alone(reading: Reading) -> float:
    """The value of a reading without values per worker."""
    assert reading.mean is None
    assert isinstance(reading.value, float)
    return reading.value


async def show_work(rig: Rig, *taskmanagers: str, shares: Sequence[float] = HOT, polls: int = 3) -> None:
    """Show a subtask of `WORK` per share, on these TaskManagers if any, and poll."""
    known = rig.flink.vertex(WORK)
    known["tasks"]["RUNNING"] = known["parallelism"] = len(shares)
    for name, reported in rig.flink.metrics[WORK].items():
        rig.flink.report(WORK, name, reported["avg"] * len(shares))
    if taskmanagers:
        rig.flink.place(WORK, *taskmanagers)
    for _ in range(polls):
        await work_on(rig, shares)


class Clock:
    """The source's clock: only `work_on` advances it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def work_on(
        self, rig: Rig, shares: Sequence[float] = HOT, others: Mapping[str, float] | None = None
    ) -> Reading:
        self.now += 10
        return await work_on(rig, shares, others)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    known = Clock()
    monkeypatch.setattr("autoscaler.sources.flink.time", known)
    return known


async def work_on(rig: Rig, shares: Sequence[float] = HOT, others: Mapping[str, float] | None = None) -> Reading:
    """Poll utilization after 10 s in which the subtasks of `WORK` were busy for these shares."""
    mean = sum(shares) / len(shares)
    rig.flink.pass_time(10, all_of(500), {WORK: (mean, 0.0)} | {v: (share, 0.0) for v, share in (others or {}).items()})
    if WORK in rig.flink.shown:
        rig.flink.work_unevenly(10, WORK, *shares)
    rig.tick()
    return await rig.collect("utilization")


@pytest.mark.parametrize("release", VERSIONS)
async def test_utilization_is_that_of_the_busiest_subtask_of_each_taskmanager(release: str) -> None:
    async for rig in _rig(release):
        await show_work(rig, "tm-b", "tm-b", "tm-a", "tm-a")
        found = await rig.collect("utilization")
        assert found.value == pytest.approx((0.4, 1.0)), "in the order of their ids"
        assert found.mean == pytest.approx(0.5), "of the slots, and not of the TaskManagers"
        assert await rig.value("saturation") == pytest.approx(0.5)
        assert await rig.value("busy", vertex=WORK) == pytest.approx(0.5)


async def test_a_hot_subtask_is_visible_if_another_vertex_is_busier_on_average(rig: Rig, clock: Clock) -> None:
    await show_work(rig, "a", "b", "c", "d")
    rig.flink.place(SOURCE, "a", "b")
    for _ in range(4):
        found = await clock.work_on(rig, others={SOURCE: 0.75})
    assert found.value == pytest.approx(HOT)
    assert found.mean == pytest.approx(0.75), "of the busiest vertex, as without the subtasks"


async def test_the_shares_of_workers_are_those_of_the_window(rig: Rig, clock: Clock) -> None:
    await rig.open(window=timedelta(seconds=35))  # polls 10 s apart span 40 s
    await show_work(rig, "a", "b", "c", "d", shares=[0.2] * 4, polls=1)
    for _ in range(6):
        await clock.work_on(rig, shares=[0.2] * 4)
    found = [await clock.work_on(rig) for _ in range(4)]
    assert [max(one.value) for one in found if isinstance(one.value, tuple)] == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert [one.mean for one in found] == pytest.approx([0.275, 0.35, 0.425, 0.5]), "over the same window"


async def test_before_two_polls_of_subtasks_utilization_is_the_mean(rig: Rig) -> None:
    await show_work(rig, "a", "b", "c", "d", polls=0)
    found = [await work_on(rig) for _ in range(3)]
    assert [one.mean for one in found] == [None, None, pytest.approx(0.5)]
    assert found[1].value == pytest.approx(0.5)
    assert found[2].value == pytest.approx(HOT)


async def test_if_subtasks_are_not_shown_utilization_is_the_mean_and_they_are_requested_once(rig: Rig) -> None:
    await show_work(rig, polls=1)
    rig.flink.asked.clear()
    for _ in range(3):
        found = await work_on(rig)
        assert mean_alone(found) == pytest.approx(0.5)
    assert rig.flink.asked.count(f"/jobs/{rig.flink.jid}/vertices/{WORK}") == 1


async def test_subtasks_cost_one_request_per_poll_and_none_if_utilization_is_not_read(rig: Rig) -> None:
    path = f"/jobs/{rig.flink.jid}/vertices/{WORK}"
    await show_work(rig, "a", "b", polls=0, shares=(0.5, 0.5))
    for metrics, expected in ((["lag", "busy"], 0), (["lag", "utilization", "saturation"], 1)):
        for _ in range(2):
            rig.flink.pass_time(10, all_of(500), {WORK: (0.5, 0.0)})
            rig.tick()
            rig.flink.asked.clear()
            await asyncio.gather(*(rig.collect(metric) for metric in metrics))
        assert rig.flink.asked.count(path) == expected
        assert len(rig.flink.asked) <= 4 + 3 + expected


async def test_a_restarted_subtask_restarts_the_window_of_workers(rig: Rig) -> None:
    await show_work(rig, "a", "b", "c", "d")
    rig.flink.shown[WORK][1] |= {"attempt": 1, "taskmanager-id": "e"}
    assert (await work_on(rig)).mean is None
    assert (await work_on(rig)).value == pytest.approx((1.0, 0.4, 0.4, 0.2))


@pytest.mark.parametrize(
    ("status", "answer"),
    [(503, {"errors": ["busy"]}), (429, {"errors": ["busy"]}), (200, {"subtasks": [{"subtask": "no number"}]})],
    ids=["unavailable", "too many requests", "not an answer"],
)
async def test_unreadable_subtasks_leave_the_mean_and_all_other_metrics(rig: Rig, status: int, answer: object) -> None:
    async def unavailable(_: web.Request) -> web.StreamResponse:
        return web.json_response(answer, status=status)

    await show_work(rig, "a", "b", "c", "d")
    path = f"/jobs/{rig.flink.jid}/vertices/{WORK}"
    rig.flink.special[path] = unavailable
    found = await work_on(rig)
    assert mean_alone(found) == pytest.approx(0.5)
    assert await rig.value("throughput") == pytest.approx(500)
    del rig.flink.special[path]
    assert (await work_on(rig)).value == pytest.approx(HOT), "at once: the counters go on"


@pytest.mark.parametrize(
    "metrics",
    [
        {"accumulated-busy-time": "NaN", "accumulated-idle-time": 0, "accumulated-backpressured-time": 0},
        {"accumulated-busy-time": 0.0, "accumulated-idle-time": 0, "accumulated-backpressured-time": 0},
        {"read-bytes": 0},
    ],
    ids=["not measured", "not gathered yet", "not reported"],
)
async def test_with_a_subtask_without_times_utilization_is_the_mean(rig: Rig, metrics: dict[str, Any]) -> None:
    await show_work(rig, "a", "b", "c", "d")
    rig.flink.work_unevenly = lambda *_: None  # type: ignore[method-assign]
    rig.flink.shown[WORK][2]["metrics"] = metrics
    found = await work_on(rig)
    assert mean_alone(found) == pytest.approx(0.5)


async def test_finished_subtasks_do_not_count(rig: Rig) -> None:
    await show_work(rig, "a", "b", "c", "d")
    rig.flink.shown[WORK][3]["status"] = "FINISHED"
    for _ in range(2):
        found = await work_on(rig)
    assert found.value == pytest.approx(HOT[:3])


async def test_without_a_running_subtask_utilization_is_the_mean(rig: Rig) -> None:
    await show_work(rig, "a", "b", "c", "d")
    for one in rig.flink.shown[WORK]:
        one["status"] = "INITIALIZING"
    found = await work_on(rig)
    assert mean_alone(found) == pytest.approx(0.5)


async def test_unchanged_counters_are_not_a_new_sample_and_later_leave_the_mean(rig: Rig, clock: Clock) -> None:
    """A TaskManager hangs: the busy time of its subtasks is unknown."""
    await show_work(rig, "a", "b", "c", "d")
    kept = {**rig.flink.shown[WORK][0]["metrics"]}
    rig.tick()
    assert (await rig.collect("utilization")).value == pytest.approx(HOT), "nothing was gathered"
    for _ in range(4):
        rig.flink.pass_time(10, all_of(500), {WORK: (0.5, 0.0)})
        rig.flink.work_unevenly(10, WORK, *HOT)
        rig.flink.shown[WORK][0]["metrics"] = {**kept}
        clock.now += 10
        rig.tick()
        found = await rig.collect("utilization")
    assert mean_alone(found) == pytest.approx(0.5)


async def test_subtasks_of_the_formerly_hottest_vertex_do_not_hide_the_present_one(rig: Rig, clock: Clock) -> None:
    await show_work(rig, "a", "b", "c", "d", shares=[0.2] * 4)
    for _ in range(4):
        found = await clock.work_on(rig, shares=[0.2] * 4, others={SUM: 0.95})
    assert mean_alone(found) == pytest.approx(0.95), "it shows no subtasks"


async def test_a_vertex_that_was_not_the_hottest_for_a_long_time_starts_a_new_window(rig: Rig, clock: Clock) -> None:
    await show_work(rig, "a", "b", "c", "d", polls=2)
    rig.flink.place(SUM, *["e"] * rig.flink.subtasks(SUM))
    for seconds in (10, 10, 10, 150):
        clock.now += seconds - 10
        await clock.work_on(rig, shares=[0.1] * 4, others={SUM: 0.95})
    found = [await clock.work_on(rig) for _ in range(6)]
    hot = [one.value for one in found if isinstance(one.value, tuple) and len(one.value) == 4]
    assert hot
    assert hot == [pytest.approx(HOT)] * len(hot), "nothing of the time before"


# capacity by Flink's rules

RATES = all_of(400)
SHARES = {SOURCE: (0.1, 0.5), WORK: (0.8, 0.0), SUM: (0.2, 0.0)}


async def test_the_capacity_is_that_of_the_limiting_vertex(rig: Rig) -> None:
    await rig.steady(RATES, SHARES)
    assert await rig.value("true_rate", vertex="work") == pytest.approx(400 / 0.8)
    assert await rig.value("true_rate", vertex="sum") == pytest.approx(400 / 0.2)
    assert await rig.value("true_rate", vertex="numbers") == pytest.approx(400 / 0.1)
    assert await rig.value("capacity") == pytest.approx(500)


async def test_the_capacity_of_a_source_with_a_backlog_is_its_throughput(rig: Rig) -> None:
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 1_000_000)
    await rig.steady(RATES, SHARES)
    assert await rig.value("true_rate", vertex="numbers") == pytest.approx(400 / (1 - 0.5))


async def test_a_vertex_with_multiplied_input_limits_by_its_own_rate(rig: Rig) -> None:
    """The sum receives ten records for each one that the source reads."""
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 0)
    await rig.steady({SOURCE: 40, WORK: 40, SUM: 400}, {SOURCE: (0.1, 0), WORK: (0.2, 0), SUM: (0.8, 0)})
    assert await rig.value("capacity") == pytest.approx(50)


async def test_the_hottest_subtask_limits_by_default(rig: Rig) -> None:
    for _ in range(2):
        rig.flink.pass_time(10, RATES, SHARES)
        rig.flink.report(WORK, "busyTimeMsPerSecond", 1600, most=1000)
        rig.tick()
        await rig.collect("lag")
    assert await rig.value("capacity") == pytest.approx(400)
    assert await rig.value("capacity", aggregate="avg") == pytest.approx(500)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, 3),  # 400 / 0.7 = 571 of 500 with 2
        ({"utilization": 1.0}, 2),
        ({"utilization": 0.4}, 4),
        ({"catch_up": timedelta(seconds=2)}, 7),  # and 2001 waiting in 2 s
        ({"catch_up": timedelta(minutes=1), "restart": timedelta(minutes=2)}, 6),  # and 2 minutes of downtime
    ],
)
async def test_the_vertex_with_the_highest_demand_determines_the_slots(
    rig: Rig, query: dict[str, Any], expected: float
) -> None:
    await rig.steady(RATES, SHARES)
    assert await rig.value("required_parallelism", **query) == expected


async def test_no_more_slots_are_needed_than_the_vertex_can_use(rig: Rig) -> None:
    for vertex in (SOURCE, WORK, SUM):
        rig.flink.vertex(vertex)["maxParallelism"] = 3
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 100_000)
    await rig.steady(RATES, SHARES)
    assert await rig.value("required_parallelism", catch_up=timedelta(seconds=60)) == 3


async def test_each_slot_sharing_group_needs_its_own_slots(rig: Rig) -> None:
    """The work vertex needs 3, the others 1; every group gets the same number of slots: a third group costs 3 too."""
    await rig.steady(RATES, SHARES)
    assert await rig.value("required_slots") == 3
    for vertex, group in ((SOURCE, "a"), (WORK, "b"), (SUM, "b")):
        rig.flink.vertex(vertex)["slotSharingGroupId"] = group
    rig.tick()
    assert await rig.value("required_slots") == 3 + 3
    assert await rig.value("required_parallelism") == 3
    rig.flink.vertex(SUM)["slotSharingGroupId"] = "c"
    rig.tick()
    assert await rig.value("required_slots") == 3 + 3 + 3
    for vertex in (SOURCE, SUM):
        rig.flink.vertex(vertex)["maxParallelism"] = 1
    rig.tick()
    assert await rig.value("required_slots") == 1 + 3 + 1


async def test_a_finished_vertex_still_uses_the_slots_of_its_group(rig: Rig) -> None:
    for vertex, group in ((SOURCE, "a"), (WORK, "a"), (SUM, "b")):
        rig.flink.vertex(vertex)["slotSharingGroupId"] = group
        rig.flink.vertex(vertex)["maxParallelism"] = -1
    await rig.steady(RATES, SHARES)
    tasks = rig.flink.vertex(SUM)["tasks"]
    tasks["RUNNING"], tasks["FINISHED"] = 0, tasks["RUNNING"]
    rig.tick()
    assert await rig.value("required_parallelism") == 3
    assert await rig.value("required_slots") == 3 + 3


async def test_a_source_that_stands_still_while_records_arrive_does_not_need_fewer_slots(rig: Rig) -> None:
    """By Flink's rules a vertex without input has unlimited capacity: it would shrink the stuck job."""
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 0)
    await rig.poll(10, all_of(0), {SOURCE: (0.0, 1.0)})
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 5000)
    await rig.poll(10, all_of(0), {SOURCE: (0.0, 1.0)})
    for metric in ("required_parallelism", "required_slots"):
        with pytest.raises(AnswerError) as caught:
            await rig.collect(metric)
        assert str(caught.value).endswith(
            "the parallelism that 'Source: numbers' needs is unknown: it reads no records although 500 records/s "
            "arrive; the job is stuck, check its backpressure"
        )
    assert await rig.value("arrivals") == pytest.approx(500)


async def test_a_source_that_stands_still_with_a_backlog_does_not_need_fewer_slots(rig: Rig) -> None:
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 5000)
    await rig.steady(all_of(0), {SOURCE: (0.0, 1.0)})
    with pytest.raises(AnswerError, match=r"it reads no records although records wait for it; the job is stuck"):
        await rig.collect("required_slots", catch_up=timedelta(minutes=1))


async def test_a_job_without_arrivals_shows_no_capacity_and_needs_one_slot(rig: Rig) -> None:
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 0)
    await rig.steady(all_of(0), {})
    with pytest.raises(AnswerError, match="capacity of the job is unknown while no records flow"):
        await rig.collect("capacity")
    assert await rig.value("required_parallelism") == 1
    assert await rig.value("throughput") == 0
    assert await rig.value("saturation") == 0


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without busy time the only clock is ours, and rates would need a second of it."""
    monkeypatch.setattr("autoscaler.sources.flink_samples.MIN_RATE_SPAN", 40.0)


@pytest.mark.usefixtures("_soon")
async def test_a_vertex_without_busy_time_makes_the_capacity_unknown(rig: Rig) -> None:
    for seconds in (10, 10):
        rig.flink.pass_time(seconds, RATES, SHARES)
        for name in (BUSY, "busyTimeMsPerSecond"):
            rig.flink.report(WORK, name, math.nan)
        rig.tick()
        await rig.collect("lag")
        await asyncio.sleep(0.05)
    rig.tick()
    with pytest.raises(AnswerError, match="work cannot be measured"):
        await rig.collect("capacity")
    with pytest.raises(AnswerError, match="the parallelism that 'work' needs is unknown"):
        await rig.collect("required_parallelism")


# the rest


async def test_taskmanagers_are_measured_together(rig: Rig) -> None:
    known = rig.flink.workers
    known["Status.JVM.Memory.Heap.Used"] = {"min": 25.0, "max": 75.0, "avg": 50.0, "sum": 100.0}
    known["Status.JVM.Memory.Heap.Max"] = {"min": 100.0, "max": 100.0, "avg": 100.0, "sum": 200.0}
    known["Status.JVM.GarbageCollector.All.TimeMsPerSecond"] = {"min": 0.0, "max": 50.0, "avg": 25.0, "sum": 50.0}
    known["Status.JVM.CPU.Load"] = {"min": 0.2, "max": 0.6, "avg": 0.4, "sum": 0.8}
    assert await rig.value("heap") == 0.5
    assert await rig.value("gc") == 0.025
    assert await rig.value("cpu") == 0.4
    known["Status.JVM.CPU.Load"] = {"min": -1.0, "max": -1.0, "avg": -1.0, "sum": -2.0}
    known.pop("Status.JVM.Memory.Heap.Used")
    rig.tick()
    with pytest.raises(AnswerError, match=r"report -1.0 as the load"):
        await rig.collect("cpu")
    with pytest.raises(AnswerError, match=r"no TaskManager reports Status.JVM.Memory.Heap.Used"):
        await rig.collect("heap")


async def test_checkpoints_have_a_duration_and_an_age(rig: Rig) -> None:
    latest = rig.flink.answers[f"/jobs/{rig.flink.jid}/checkpoints"]["answer"]["latest"]
    latest["completed"] |= {"end_to_end_duration": 1500, "trigger_timestamp": rig.flink.job["now"] - 7_000}
    assert await rig.value("checkpoint_duration") == 1.5
    assert await rig.value("checkpoint_age") == 7
    latest["completed"] = None
    rig.tick()
    for metric in ("checkpoint_duration", "checkpoint_age"):
        with pytest.raises(AnswerError, match="no checkpoint has completed"):
            await rig.collect(metric)


async def test_watermarks_and_event_times_are_spans_or_missing(rig: Rig) -> None:
    with pytest.raises(AnswerError, match="has no watermarks"):
        await rig.collect("watermark_lag")
    with pytest.raises(AnswerError, match="does not report currentEmitEventTimeLag"):
        await rig.collect("event_lag")
    now = rig.flink.job["now"]
    for vertex, behind in ((WORK, 2_000), (SUM, 9_000)):
        name = "currentInputWatermark"
        rig.flink.metrics[vertex][name] = dict.fromkeys(("min", "max", "avg"), float(now - behind)) | {"sum": 0.0}
    rig.flink.report(SOURCE, "Source__numbers.currentEmitEventTimeLag", 3_000, most=2_500)
    rig.flink.report(SOURCE, "Source__numbers.sourceIdleTime", 8_000)
    await rig.poll(1, {}, {})
    assert await rig.value("watermark_lag") == pytest.approx(9 + 1, abs=0.5)
    assert await rig.value("event_lag") == 2.5
    assert await rig.value("source_idle") == 4


async def test_a_vertex_is_found_by_its_id_its_name_or_a_part_of_it(rig: Rig) -> None:
    await rig.steady(all_of(5), {WORK: (0.5, 0)})
    for name in (WORK, "work", "wor"):
        assert await rig.value("busy", vertex=name) == pytest.approx(0.5)
    with pytest.raises(AnswerError, match="no vertex named 'map'; it has 'Source: numbers', 'work'"):
        await rig.collect("busy", vertex="map")
    with pytest.raises(AnswerError, match="3 vertices named 'r'"):
        await rig.collect("busy", vertex="r")


# all vertices at once


async def vertices(rig: Rig, **query: Any) -> tuple[float, dict[str, dict[str, float]]]:
    """The value, and the parts of each vertex by its name."""
    reading = await rig.collect("vertices", **query)
    assert isinstance(reading.value, float)
    assert reading.finite()
    return reading.value, {name.rpartition(" (")[0]: dict(numbers) for name, numbers in reading.parts.items()}


async def test_the_numbers_of_all_vertices_are_read_at_once(rig: Rig) -> None:
    for vertex, most in ((SOURCE, 90), (WORK, 128), (SUM, 128)):
        rig.flink.vertex(vertex)["maxParallelism"] = most
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", 1000)
    await rig.steady({SOURCE: 40, WORK: 40, SUM: 400}, SHARES)
    count, found = await vertices(rig)
    assert count == 3
    total = next(numbers for name, numbers in found.items() if name.startswith("sum"))
    assert found["Source: numbers"] == {
        "group": 0,
        "max_parallelism": 90,
        "parallelism": rig.flink.subtasks(SOURCE),
        "source": 1,
        "partitions": 0,
        "records_in": pytest.approx(40),
        "records_out": pytest.approx(40),
        "busy": pytest.approx(SHARES[SOURCE][0]),
        "backpressured": pytest.approx(SHARES[SOURCE][1]),
        "true_rate": pytest.approx(await rig.value("true_rate", vertex="numbers")),
        "lag": 1000,
        "keyed": 0,
    }
    assert (total["keyed"], total["source"], "lag" in total, "records_out" in total) == (1, 0, False, False)
    assert total[f"from:{WORK}"] == pytest.approx(10)
    assert found["work"][f"from:{SOURCE}"] == pytest.approx(1)


async def test_a_vertex_is_identified_by_its_name_and_id(rig: Rig) -> None:
    rig.flink.vertex(WORK)["name"] = "select " + "x" * 1000
    await rig.steady(RATES, SHARES)
    names = [*(await rig.collect("vertices")).parts]
    assert names[0] == f"Source: numbers ({SOURCE})"
    assert names[1] == f"select {'x' * 73} ({WORK})"


async def test_the_hottest_subtask_counts_for_all_vertices_by_default(rig: Rig) -> None:
    for _ in range(2):
        rig.flink.pass_time(10, RATES, SHARES)
        rig.flink.report(WORK, "busyTimeMsPerSecond", 1600, most=1000)
        rig.tick()
        await rig.collect("lag")
    assert (await vertices(rig))[1]["work"]["busy"] == pytest.approx(1.0)
    assert (await vertices(rig, aggregate="avg"))[1]["work"]["busy"] == pytest.approx(0.8)


async def test_slot_sharing_groups_are_numbered_and_a_finished_vertex_keeps_its_own(rig: Rig) -> None:
    for vertex, group in ((SOURCE, "a"), (WORK, "a"), (SUM, "b")):
        rig.flink.vertex(vertex)["slotSharingGroupId"] = group
        rig.flink.vertex(vertex)["maxParallelism"] = -1
    await rig.steady(RATES, SHARES)
    tasks = rig.flink.vertex(SUM)["tasks"]
    tasks["RUNNING"], tasks["FINISHED"] = 0, tasks["RUNNING"]
    rig.tick()
    count, found = await vertices(rig)
    assert count == 2
    assert [numbers["group"] for numbers in found.values()] == [0, 0, 1]
    assert [numbers for name, numbers in found.items() if name.startswith("sum")] == [{"group": 1}]


@pytest.mark.usefixtures("_soon")
async def test_unreported_numbers_of_a_vertex_are_omitted(rig: Rig) -> None:
    del rig.flink.metrics[SOURCE]["Source__numbers.pendingRecords"]
    for _ in range(2):
        rig.flink.pass_time(10, RATES, SHARES)
        for name in (BUSY, "busyTimeMsPerSecond"):
            rig.flink.report(WORK, name, math.nan)
        rig.tick()
        await rig.collect("throughput")
        await asyncio.sleep(0.05)
    _, found = await vertices(rig)
    assert "lag" not in found["Source: numbers"]
    assert not {"busy", "true_rate"} & found["work"].keys()
    assert {"records_in", "parallelism", "max_parallelism"} <= found["work"].keys()


async def test_a_vertex_that_cannot_be_measured_makes_the_whole_reading_missing(rig: Rig) -> None:
    await rig.steady(RATES, SHARES)
    rig.flink.pass_time(10, RATES, SHARES)
    rig.flink.report(SOURCE, "Source__numbers.pendingRecords", -5)
    rig.tick()
    with pytest.raises(AnswerError, match="pendingRecords"):
        await rig.collect("vertices")


async def test_the_partitions_of_a_source_are_counted(rig: Rig) -> None:
    for number in range(6):
        rig.flink.report(SOURCE, f"Source__numbers.KafkaSourceReader.topic.orders.partition.{number}.currentOffset", 7)
    await rig.steady(RATES, SHARES)
    assert (await vertices(rig))[1]["Source: numbers"]["partitions"] == 6
    assert (await vertices(rig))[1]["work"]["partitions"] == 0


async def test_the_policy_that_scales_each_vertex_reads_these_numbers(rig: Rig) -> None:
    """The work vertex can process 500 with 2 subtasks; 400 / 0.5 are 4, on 2 workers of 2 slots. It has no keys."""
    policy = FlinkOperator(
        vertices="vertices",
        utilization_target=0.5,
        target_utilization_boundary=0.2,
        metrics_window=timedelta(seconds=30),
        stabilization_interval=timedelta(0),
        catch_up_duration=timedelta(0),
    )
    spec = ClusterSpec(
        name="c",
        limits=Limits(1, 9),
        policies=(NamedPolicy("flink", policy),),
        slots_per_replica=2,
        lookback=policy.lookback,
    )
    state, found = ClusterState(), []
    await rig.steady(RATES, SHARES)
    for _ in range(4):
        await rig.poll(10, RATES, SHARES)
        observation = Observation(at=rig.now, desired=1, ready=1, metrics={"vertices": await rig.collect("vertices")})
        state, decision = step(spec, state, observation)
        found.append(decision.recommendations[0])
    asked = next(one for one in found if one.replicas is not None)
    assert asked.replicas == 2
    assert asked.detail == (
        "work: 400 records/s need 800 at 50%, 2 subtasks could process 500 records/s: parallelism 2 to 4, "
        "ceil(4 slots / 2) = 2 replicas"
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 0),
        (["Source__x.KafkaSourceReader.topic.a.partition.0.currentOffset"] * 2, 1),
        ([f"Source__x.KafkaSourceReader.topic.{topic}.partition.1.currentOffset" for topic in "ab"], 2),
        ([f"x.KafkaSourceReader.topic.a.partition.b.partition.{number}.currentOffset" for number in range(3)], 3),
        ([f"x.PulsarConsumer.persistent://p/t-partition-{number}.c.numMsgsReceived" for number in range(4)], 4),
        (["x.KafkaSourceReader.topic.a.partition.0.committedOffset", "x.KafkaSourceReader.topic.a.currentOffset"], 0),
        (["x.KafkaSourceReader.topic.a.partition.one.currentOffset", "KafkaSourceReader.commitsFailed"], 0),
        (["x.PulsarConsumer.persistent://p/t.c.numMsgsReceived", "numRecordsIn"], 0),
    ],
)
def test_partitions_are_counted_by_the_names_of_metrics(names: list[str], expected: int) -> None:
    assert partitions(names) == expected


async def test_all_metrics_of_one_observation_need_one_poll(rig: Rig) -> None:
    queries = [FlinkQuery(metric=metric, vertex=WORK if metric in NEEDS_VERTEX else None) for metric in Metric]
    source = await rig.open()

    async def ask() -> int:
        rig.flink.asked.clear()
        found = await asyncio.gather(*(source.collect(q, rig.now) for q in queries), return_exceptions=True)
        unexpected = [one for one in found if not isinstance(one, Reading | EdgeError)]
        assert not unexpected
        return len(rig.flink.asked)

    # Jobs, the job, the settings, the age of the metrics; two per vertex; checkpoints; three of TaskManagers.
    assert await ask() <= 4 + 2 * 3 + 1 + 3
    for subtasks in (1, 0):  # of the busiest vertex, which this JobManager does not show
        rig.flink.pass_time(10, all_of(5), {})
        rig.tick()
        assert await ask() <= 4 + 3 + 1 + 3 + subtasks


async def test_clusters_that_share_a_source_each_poll_at_their_own_time(rig: Rig) -> None:
    source = await rig.open()
    await source.collect(FlinkQuery(metric="lag"), START)
    before = len(rig.flink.asked)
    await source.collect(FlinkQuery(metric="lag"), START)
    assert len(rig.flink.asked) == before
    rig.shared.forget()
    await source.collect(FlinkQuery(metric="lag"), START + timedelta(seconds=1))
    assert len(rig.flink.asked) > before


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"metric": "lagg"}, "metric: must be one of lag, arrivals"),
        ({"metric": "records_in"}, "records_in needs a vertex"),
        ({"metric": "lag", "vertex": "x"}, "vertex: has no meaning for lag"),
        ({"metric": "busy", "aggregate": "mean"}, "aggregate: must be avg, max or min, not 'mean'"),
        ({"metric": "required_parallelism", "utilization": 0}, "utilization: must be above 0"),
        ({"metric": "required_parallelism", "catch_up": timedelta(-1)}, "catch_up: must not be negative"),
    ],
)
def test_invalid_queries_are_named(query: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FlinkQuery(**query)


def test_names_that_would_split_a_request_are_omitted() -> None:
    names = {
        "busyTimeMsPerSecond",
        "Source__a.pendingRecords",
        "Source__a,b.pendingRecords",
        "Source__a.numRecordsInPerSecond",
        "Map.numRecordsIn",
        "Source__a.split.1.watermark.currentOutputWatermark",
        "Shuffle.Netty.Input.numBuffersInLocal",
    }
    assert useful_names(frozenset(names)) == {
        "busyTimeMsPerSecond",
        "Source__a.pendingRecords",
        "Source__a.numRecordsInPerSecond",
    }


def aggregate(total: float, count: int) -> Aggregate:
    return Aggregate(min=total / count, max=total / count, avg=total / count, sum=total)


@pytest.mark.parametrize(("count", "expected", "good"), [(2, 2, True), (1, 2, False), (3, 2, False)])
def test_subtasks_are_counted_by_their_age(count: int, expected: int, good: bool) -> None:
    metrics = {BUSY: aggregate(1000 * count, count), IDLE: aggregate(0, count), HELD: aggregate(500 * count, count)}
    found = make_sample(metrics, 0.0, expected)
    assert isinstance(found, Sample) == good
    if isinstance(found, Sample):
        assert found.clock == 1500


def test_a_restarted_run_does_not_continue_the_old_one() -> None:
    def at(clock: float | None, records: float, count: int = 2) -> Sample:
        return Sample(0.0, clock, count, {"numRecordsIn": aggregate(records, 2)})

    assert continues(at(10, 5), at(20, 5))
    assert continues(at(None, 5), at(None, 6))
    assert not continues(at(10, 5), at(5, 6))
    assert not continues(at(10, 5), at(20, 4))
    assert not continues(at(10, 5), at(None, 6))
    assert not continues(at(10, 5), at(20, 6, count=1))
