"""The policy `flink-operator`: from the observations of a window to a number of workers, vertex by vertex."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoscaler.config import load
from autoscaler.core.durations import format_duration
from autoscaler.core.model import (
    MOST_LEARNED,
    Behaviour,
    Cause,
    ClusterSpec,
    ClusterState,
    EngineStatus,
    JobState,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Phase,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    View,
)
from autoscaler.core.step import step
from autoscaler.testing import PolicyContract
from autoscaler.testing.contracts import views
from autoscaler_policies.flink_operator.policy import FlinkOperator
from autoscaler_policies.flink_operator.scaling import Alignment

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SOURCE, WORK = "a" * 32, "b" * 32
AT_ONCE: dict[str, Any] = {
    "metrics_window": MINUTE,
    "stabilization_interval": timedelta(0),
    "scale_down_interval": timedelta(0),
}
"""A short window, and no waiting before or after it."""
NO_BACKLOG: dict[str, Any] = {"catch_up_duration": timedelta(0)}


LIMITS = Limits(0, 1000)


@dataclass
class Rig:
    """A cluster whose policy is evaluated every 15 s, and keeps its memory."""

    policy: FlinkOperator
    current: int = 2
    slots: int = 1
    limits: Limits = LIMITS
    now: datetime = START
    past: tuple[Observation, ...] = ()
    memory: Mapping[str, float] = field(default_factory=dict)
    engine: EngineStatus | None = None
    rescale: Rescale | None = None
    warm_from: datetime | None = None
    partitions: int | None = None

    def view(self, metrics: Mapping[str, Reading]) -> View:
        observation = Observation(
            at=self.now, desired=self.current, ready=self.current, metrics=metrics, missing={}, engine=self.engine
        )
        oldest = self.now - self.policy.lookback
        self.past = (*(one for one in self.past if one.at >= oldest), observation)
        spec = ClusterSpec(
            name="c", limits=self.limits, policies=(), slots_per_replica=self.slots, partitions=self.partitions
        )
        return View(
            now=self.now,
            current=self.current,
            ready=self.current,
            metrics=metrics,
            past=self.past,
            limits=self.limits,
            learned=Learned(),
            spec=spec,
            engine=self.engine,
            rescale=self.rescale,
            disturbance_ended_at=self.warm_from,
            memory=self.memory,
        )

    def see(self, metrics: Mapping[str, Reading], seconds: float = 15) -> Recommendation:
        """Let time pass and observe: learn, then evaluate, as the core does."""
        self.now += timedelta(seconds=seconds)
        view = self.view(metrics)
        self.memory = self.policy.learn(view)
        return self.policy.evaluate(replace(view, memory=self.memory))

    def job(self, seconds: float = 15, **values: Any) -> Recommendation:
        """Observe a job as one vertex."""
        at = self.now + timedelta(seconds=seconds)
        return self.see({name: Reading(value, at) for name, value in values.items()}, seconds)

    def steady(self, count: int = 6, **values: Any) -> Recommendation:
        """Observe the same for a while, until the window is full."""
        return [self.job(**values) for _ in range(count)][-1]

    def vertices(self, *parts: Mapping[str, float], seconds: float = 15, names: Sequence[str] = ()) -> Recommendation:
        """Observe vertices: the first is called source, the second work."""
        labels = names or [f"{name} ({ident})" for name, ident in zip(("source", "work"), (SOURCE, WORK), strict=True)]
        known = dict(zip(labels, map(dict, parts), strict=False))
        at = self.now + timedelta(seconds=seconds)
        return self.see({"vertices": Reading(float(len(known)), at, parts=known)}, seconds)

    def steady_vertices(self, *parts: Mapping[str, float], count: int = 6, names: Sequence[str] = ()) -> Recommendation:
        return [self.vertices(*parts, names=names) for _ in range(count)][-1]


def rig(*, current: int = 2, slots: int = 1, more: Mapping[str, Any] | None = None, **parameters: Any) -> Rig:
    return Rig(FlinkOperator(**{**AT_ONCE, **parameters}), current, slots, **(more or {}))


def source(parallelism: int = 2, records_in: float = 400, busy: float = 0.2, **more: float) -> dict[str, float]:
    return {
        "parallelism": parallelism,
        "max_parallelism": 128,
        "source": 1,
        "records_in": records_in,
        "records_out": records_in,
        "busy": busy,
        "backpressured": 0,
        "lag": 0,
        **more,
    }


def work(parallelism: int = 2, records_in: float = 400, busy: float = 0.8, **more: float) -> dict[str, float]:
    return {
        "parallelism": parallelism,
        "max_parallelism": 128,
        "source": 0,
        "records_in": records_in,
        "busy": busy,
        f"from:{SOURCE}": 1,
        **more,
    }


class TestASingleVertex(PolicyContract):
    @pytest.fixture
    def policy(self) -> FlinkOperator:
        return FlinkOperator(**{**AT_ONCE, **NO_BACKLOG})


class TestDefaults(PolicyContract):
    @pytest.fixture
    def policy(self) -> FlinkOperator:
        return FlinkOperator(excluded_periods=("9:00-10:00 && * * * ? * MON-FRI",), timezone="Europe/Berlin")


class TestVertices(PolicyContract):
    @pytest.fixture
    def policy(self) -> FlinkOperator:
        return FlinkOperator(
            vertices="vertices",
            **{**AT_ONCE, "scale_down_interval": MINUTE},
            restart_time_tracking_enabled=True,
            scaling_effectiveness_detection_enabled=True,
            observed_scalability_enabled=True,
            quota_cpu=8,
            worker_cpu=1,
        )

    @pytest.fixture
    def views(self, metrics: Sequence[str]) -> Sequence[View]:
        """Views whose vertices have arbitrary numbers: the policy must survive every one of them."""
        found = []
        for index, view in enumerate(views(metrics)):
            odd = (0.0, 1.0, 3.0, 128.0, 1e300, -1.0, 0.5)
            names = ("parallelism", "records_in", "records_out", "busy", "source", "lag", "max_parallelism", "keyed")
            numbers = {name: odd[(index * 7 + place * (index // 7 + 1)) % len(odd)] for place, name in enumerate(names)}
            parts = {
                f"source ({SOURCE})": {**numbers, "source": 1.0, "parallelism": max(1.0, numbers["parallelism"])},
                f"work ({WORK})": {**numbers, f"from:{SOURCE}": 1.0, "group": float(index % 3 - 1)},
            }
            shown = [
                replace(
                    one,
                    metrics={name: replace(reading, value=2.0, parts=parts) for name, reading in one.metrics.items()},
                )
                for one in view.past
            ]
            metrics_now = {name: replace(reading, parts=parts) for name, reading in view.metrics.items()}
            older = [replace(shown[-1], at=view.now - n * timedelta(seconds=15)) for n in range(8, 0, -1)]
            past = (*older, replace(shown[-1], metrics=metrics_now))
            found.append(replace(view, past=past, metrics=metrics_now))
        return found


# a job as one vertex


def test_a_job_gets_the_workers_for_its_target_utilization() -> None:
    """1000 records/s at a busy share of 0.9 on 4 slots: they could process 1111, and need 1000 / 0.7 = 1429."""
    seen = rig(current=2, slots=2, utilization_max=0.8, **NO_BACKLOG).steady(
        lag=0, arrivals=1000, throughput=1000, saturation=0.9
    )
    assert (seen.replicas, seen.reason) == (3, Reason.ABOVE)
    assert seen.detail == (
        "the job: 1,000 records/s need 1,429 at 70%, 4 subtasks could process 1,111 records/s: parallelism 4 to 6, "
        "ceil(6 slots / 2) = 3 replicas"
    )
    assert seen.inputs == {
        "vertices": 1,
        "parallelism": 4,
        "needed": 6,
        "target_rate": 1000,
        "catch_up_rate": 0,
        "true_rate": pytest.approx(1111.11, rel=1e-4),
        "capacity": 1429,
        "backlog": 0,
    }


def test_within_the_band_nothing_changes() -> None:
    seen = rig(**NO_BACKLOG).steady(lag=0, arrivals=900, throughput=900, saturation=0.9)
    assert (seen.replicas, seen.reason) == (2, Reason.STEADY)
    assert "every vertex is within its band, 2 replicas are kept" in seen.detail


def test_the_backlog_and_the_backlog_of_a_restart_are_counted() -> None:
    """1000 / 0.7 + 1000 x 60 / 600 + 24000 / 600 = 1569 of 1250 with 4: 6."""
    known = rig(current=4, catch_up_duration=10 * MINUTE, restart_time=MINUTE, utilization_max=0.75)
    seen = known.steady(lag=24_000, arrivals=1000, throughput=1000, saturation=0.8)
    assert seen.inputs["capacity"] == 1569
    assert seen.replicas == 6


def test_the_load_is_the_arrivals_or_else_the_throughput_plus_the_growth_of_the_lag() -> None:
    known = rig(current=4, utilization_max=0.75, **NO_BACKLOG)
    for tick in range(6):
        seen = known.job(lag=tick * 1500.0, throughput=1000, saturation=1.0)
    assert seen.inputs["target_rate"] == pytest.approx(1100)


def test_a_lag_that_is_unknown_over_the_window_changes_nothing() -> None:
    known = rig(**NO_BACKLOG)
    for _ in range(6):
        known.job(lag=-1.0, throughput=10, saturation=0.01)
    seen = known.job(lag=5, throughput=10, saturation=0.01)
    assert (seen.replicas, seen.reason) == (2, Reason.STEADY)
    assert "its rates are not known" in seen.detail


def test_missing_arrivals_are_not_replaced_by_earlier_ones() -> None:
    known = rig(current=4, utilization_max=0.75, **NO_BACKLOG)
    known.steady(lag=0, arrivals=10, throughput=1000, saturation=1.0)
    assert known.job(lag=0, throughput=1000, saturation=1.0).inputs["target_rate"] == 1000


def test_a_source_with_a_backlog_is_saturated() -> None:
    """It is busy for a tenth of the time and yet 60 s behind: it cannot process more."""
    known = rig(current=4, **NO_BACKLOG)
    seen = known.steady(lag=60_000, arrivals=2000, throughput=1000, saturation=0.1)
    assert seen.inputs["true_rate"] == 1000
    assert seen.replicas == 12


def test_the_capacity_observed_while_a_source_is_behind_holds_after_it_has_caught_up() -> None:
    """The mean of the observations replaces the readings in between, once there are two: (80 + 120) / 2, and so on."""
    known = rig(current=4, **NO_BACKLOG)
    for processed, lag in ((80, 60_000), (120, 60_000), (100, 0), (160, 60_000)):
        known.job(lag=lag, arrivals=100, throughput=processed, saturation=0.5)
    seen = known.job(lag=0, arrivals=100, throughput=100, saturation=0.5)
    assert seen.inputs["true_rate"] == pytest.approx((80 + 120 + 100 + 160 + 115) / 5)


def test_a_share_slightly_above_one_counts_as_one() -> None:
    seen = rig(**NO_BACKLOG).steady(lag=0, arrivals=100, throughput=100, saturation=1.5)
    assert seen.inputs["true_rate"] == 100


def test_a_backlog_keeps_the_workers_that_process_it() -> None:
    """Without it 10 records/s would be far below the band."""
    known = rig(current=4, **NO_BACKLOG)
    assert known.steady(lag=300_100, arrivals=0, throughput=1000, saturation=1.0).replicas == 4
    known = rig(current=4, **NO_BACKLOG)
    assert known.steady(lag=299_000, arrivals=0, throughput=1000, saturation=1.0).replicas == 2


def test_the_busiest_replica_counts_and_rates_are_summed() -> None:
    known = rig(current=2, utilization_max=0.8, **NO_BACKLOG)
    seen = known.steady(lag=0, arrivals=(50.0, 50.0), throughput=(60.0, 40.0), saturation=(0.2, 1.0))
    assert seen.inputs["true_rate"] == 100
    assert seen.replicas == 3


@pytest.mark.parametrize("saturation", [-0.1, 90.0, (0.5, 90.0)])
def test_an_invalid_share_is_missing(saturation: float | tuple[float, ...]) -> None:
    seen = rig().steady(lag=0, arrivals=1, throughput=1, saturation=saturation)
    assert (seen.replicas, seen.reason) == (None, Reason.MISSING)


@pytest.mark.parametrize(("lag", "throughput"), [(-1.0, 10.0), (0.0, -1.0), (0.0, (5.0, -5.0))])
def test_a_negative_number_is_missing(lag: float, throughput: float) -> None:
    seen = rig().steady(lag=lag, arrivals=1, throughput=throughput, saturation=0.5)
    assert (seen.replicas, seen.reason) == (None, Reason.MISSING)


def test_a_stuck_job_is_not_scaled_down() -> None:
    """By Flink's rules it would have unlimited capacity."""
    assert rig().steady(lag=1, arrivals=0, throughput=0, saturation=0).replicas == 2
    assert rig().steady(lag=0, arrivals=5, throughput=0, saturation=0).replicas == 2
    assert rig(current=10).steady(lag=0, arrivals=0, throughput=0, saturation=0).replicas == 4


def test_the_parallelism_is_the_number_of_slots_that_the_engine_reports() -> None:
    running = EngineStatus(job=JobState.RUNNING, slots=8, parallelism=6, max_parallelism=7)
    known = rig(current=4, slots=2, utilization_max=0.8, more={"engine": running}, **NO_BACKLOG)
    seen = known.steady(lag=0, arrivals=600, throughput=600, saturation=1.0)
    assert (seen.inputs["parallelism"], seen.inputs["needed"], seen.replicas) == (6, 7, 4)


def test_replicas_that_the_job_does_not_use_yet_are_not_removed() -> None:
    running = EngineStatus(job=JobState.RUNNING, slots=8, parallelism=4)
    known = rig(current=4, slots=2, utilization_max=0.8, more={"engine": running}, **NO_BACKLOG)
    seen = known.steady(lag=0, arrivals=600, throughput=600, saturation=1.0)
    assert seen.replicas == 4
    assert seen.detail.endswith("ceil(6 slots / 2) = 3 replicas, and 4 are there")


def test_a_job_without_replicas_gets_the_first_one_when_there_is_work() -> None:
    known = rig(current=0)
    assert known.job(lag=1).replicas == 1
    assert known.job(arrivals=1).replicas == 1
    assert known.job(lag=0, arrivals=0).replicas == 0
    assert known.job(lag=0).replicas == 0
    assert known.job(arrivals=0).reason is Reason.MISSING
    assert known.job(lag=-1, throughput=1).reason is Reason.MISSING
    assert rig(current=0, vertices="vertices").vertices(source()).reason is Reason.MISSING


def test_without_a_ready_replica_nothing_is_decided() -> None:
    known = rig(current=2)
    known.steady(lag=0, arrivals=1, throughput=1, saturation=0.5)
    view = replace(known.view(known.past[-1].metrics), ready=0)
    assert known.policy.evaluate(view).reason is Reason.ABSTAINED


# when it may decide


def test_nothing_is_requested_before_the_window_is_full() -> None:
    known = rig(**NO_BACKLOG)
    seen = [known.job(lag=0, arrivals=1, throughput=1, saturation=0.001) for _ in range(5)]
    assert [one.reason for one in seen] == [*[Reason.LEARNING] * 4, Reason.BELOW]
    assert seen[0].detail == "metrics_window is complete in 60 s at the earliest"


def test_observations_during_the_stabilization_interval_do_not_count() -> None:
    running = EngineStatus(job=JobState.RUNNING, running_since=START)
    known = rig(more={"engine": running}, stabilization_interval=2 * MINUTE)
    details = [known.job(lag=0, arrivals=1, throughput=1, saturation=0.5).detail for _ in range(12)]
    assert details[0] == "the job has just started: metrics are ignored for another 105 s (stabilization_interval)"
    assert details[6] == "the job has just started: metrics are ignored for another 15 s (stabilization_interval)"
    assert details[7] == "metrics_window is complete in 60 s at the earliest"
    assert "kept" in details[11]


def test_a_disturbance_restarts_the_window() -> None:
    known = rig()
    known.steady(lag=0, arrivals=1, throughput=1, saturation=0.5)
    known.warm_from = known.now
    assert known.job(lag=0, arrivals=1, throughput=1, saturation=0.5).reason is Reason.LEARNING


def test_a_change_of_size_restarts_the_window() -> None:
    known = rig()
    known.steady(lag=0, arrivals=1, throughput=1, saturation=0.5)
    known.current = 3
    assert known.job(lag=0, arrivals=1, throughput=1, saturation=0.5).reason is Reason.LEARNING
    running = EngineStatus(job=JobState.RUNNING, parallelism=2)
    known = rig(more={"engine": running})
    known.steady(lag=0, arrivals=1, throughput=1, saturation=0.5)
    known.engine = replace(running, parallelism=3)
    assert known.job(lag=0, arrivals=1, throughput=1, saturation=0.5).reason is Reason.LEARNING


def test_an_observation_without_a_size_does_not_restart_the_window() -> None:
    known = rig()
    known.steady(lag=0, arrivals=1, throughput=1, saturation=0.5)
    known.past = (*known.past[:-1], replace(known.past[-1], ready=None, metrics={}))
    assert known.job(lag=0, arrivals=1, throughput=1, saturation=0.5).replicas == 2


def test_two_readings_are_required() -> None:
    known = rig()
    known.job(lag=0, arrivals=1, throughput=1, saturation=0.5)
    known.past = (replace(known.past[0], at=known.now - 2 * MINUTE),)
    seen = known.job(lag=0, arrivals=1, throughput=1, saturation=0.5)
    assert (seen.reason, seen.detail) == (Reason.LEARNING, "there are 1 readings in the window, expected 2 or more")


def test_nothing_is_decided_during_a_rescale_or_while_the_job_does_not_run() -> None:
    values: dict[str, Any] = {"lag": 0, "arrivals": 1, "throughput": 1, "saturation": 0.5}
    known = rig()
    known.steady(**values)
    known.rescale = Rescale(before=2, to=3, at=known.now, cause=Cause.REQUEST, phase=Phase.READY, since=known.now)
    assert known.job(**values).reason is Reason.ABSTAINED
    known.rescale = replace(known.rescale, phase=Phase.RUNNING)
    assert known.job(**values).replicas == 2
    known.engine = EngineStatus(job=JobState.RESTARTING)
    assert known.job(**values).detail == "the job is restarting: metrics are not evaluated"


def test_without_a_past_the_policy_reports_that_it_learns() -> None:
    known = rig()
    view = known.view({name: Reading(1.0, START) for name in known.policy.metrics})
    assert known.policy.evaluate(replace(view, past=())).reason is Reason.LEARNING


# vertices


def test_the_vertex_with_the_highest_demand_determines_the_number_of_workers() -> None:
    """The source could process 2000 with 2; the work vertex 500, and needs 400 / 0.5."""
    known = rig(vertices="vertices", utilization_target=0.5, target_utilization_boundary=0.2, slots=2, **NO_BACKLOG)
    seen = known.steady_vertices(source(), work())
    assert (seen.replicas, seen.reason) == (2, Reason.STEADY)
    assert seen.detail == (
        "work: 400 records/s need 800 at 50%, 2 subtasks could process 500 records/s: parallelism 2 to 4, "
        "ceil(4 slots / 2) = 2 replicas"
    )
    assert seen.inputs["vertices"] == 2


def test_a_vertex_that_multiplies_records_raises_the_demand_of_later_vertices() -> None:
    known = rig(vertices="vertices", utilization_max=0.75, **NO_BACKLOG)
    seen = known.steady_vertices(source(records_in=40), work(records_in=400, busy=0.8))
    assert seen.inputs["target_rate"] == pytest.approx(400)
    assert seen.replicas == 3


def test_the_lag_of_a_source_counts_for_all_vertices_after_it() -> None:
    known = rig(vertices="vertices", catch_up_duration=10 * MINUTE, restart_time=timedelta(0), utilization_max=0.75)
    seen = known.steady_vertices(source(lag=6000), work(records_in=4000, busy=0.8))
    assert seen.inputs["catch_up_rate"] == pytest.approx(100)


def test_the_latest_lag_counts() -> None:
    known = rig(vertices="vertices", catch_up_duration=10 * MINUTE, restart_time=timedelta(0), utilization_max=0.75)
    known.steady_vertices(source(lag=0), work(records_in=4000, busy=0.8))
    seen = known.vertices(source(lag=6000), work(records_in=4000, busy=0.8))
    assert seen.inputs["catch_up_rate"] == pytest.approx(100)


def test_the_rate_is_that_of_the_whole_window() -> None:
    known = rig(vertices="vertices", **NO_BACKLOG)
    for records_in in (100, 200, 300, 400, 500):
        seen = known.vertices(source(records_in=records_in), work(records_in=records_in, busy=0.5))
    assert seen.inputs["target_rate"] == 300
    assert seen.inputs["true_rate"] == 600


def test_a_source_that_never_reports_lag_has_none_and_one_that_stops_reporting_is_unknown() -> None:
    silent = source()
    del silent["lag"]
    known = rig(vertices="vertices", **NO_BACKLOG)
    assert known.steady_vertices(silent, work(busy=0.1)).replicas == 1
    known = rig(vertices="vertices", current=10, **NO_BACKLOG)
    known.steady_vertices(source(10), work(10, busy=0.8))
    assert known.vertices(silent | {"parallelism": 10}, work(10, busy=0.001)).replicas == 10


def test_a_vertex_that_cannot_be_measured_keeps_its_parallelism() -> None:
    mute = work(10, busy=0.1)
    del mute["busy"]
    known = rig(vertices="vertices", current=10, **NO_BACKLOG)
    seen = known.steady_vertices(source(10, busy=0.01), mute)
    assert (seen.replicas, seen.reason) == (10, Reason.STEADY)
    assert "its rates are not known, it keeps parallelism 10" in seen.detail


def test_a_legacy_source_without_busy_time_is_ignored() -> None:
    legacy = source(10)
    del legacy["busy"], legacy["lag"]
    known = rig(vertices="vertices", current=10, **NO_BACKLOG)
    assert known.steady_vertices(legacy, work(10, busy=0.1)).replicas == 4


def test_a_stuck_vertex_keeps_its_parallelism() -> None:
    known = rig(vertices="vertices", current=10, **NO_BACKLOG)
    assert known.steady_vertices(source(10, records_in=0, lag=1), work(10, records_in=0)).replicas == 10
    known = rig(vertices="vertices", current=10, **NO_BACKLOG)
    assert known.steady_vertices(source(10, records_in=0), work(10, records_in=0)).replicas == 4


@pytest.mark.parametrize("text", [WORK, "work", "or"])
def test_an_excluded_vertex_is_ignored(text: str) -> None:
    known = rig(vertices="vertices", vertex_exclude_ids=(text,), current=10, **NO_BACKLOG)
    assert known.steady_vertices(source(10, busy=0.01), work(10, busy=1.0)).replicas == 4
    known = rig(vertices="vertices", vertex_exclude_ids=(text, "source"), current=10, **NO_BACKLOG)
    assert known.steady_vertices(source(10, busy=0.01), work(10, busy=1.0)).reason is Reason.ABSTAINED


def test_a_source_gets_no_more_subtasks_than_it_has_partitions() -> None:
    known = rig(vertices="vertices", vertex_exclude_ids=("work",), utilization_max=0.8, **NO_BACKLOG)
    assert known.steady_vertices(source(busy=1.0, partitions=6, records_in=800), work()).replicas == 3
    known = rig(vertices="vertices", utilization_max=0.8, current=4, **NO_BACKLOG)
    seen = known.steady_vertices(source(4, busy=1.0, partitions=5), work(4, busy=0.7))
    assert seen.replicas == 5  # 400 / 0.7 of 400 with 4 would be 6


def test_no_vertex_gets_more_subtasks_than_key_groups() -> None:
    known = rig(vertices="vertices", utilization_max=0.8, **NO_BACKLOG)
    assert known.steady_vertices(source(), work(busy=1.0, max_parallelism=2)).replicas == 2


def test_the_configured_alignment_is_applied() -> None:
    found = {}
    for mode in (Alignment.BALANCED, Alignment.EVENLY_SPREAD, Alignment.OFF):
        known = rig(
            vertices="vertices",
            current=16,
            scaling_parallelism_alignment_mode=mode,
            utilization_max=0.8,
            **NO_BACKLOG,
        )
        seen = known.steady_vertices(source(16), work(16, busy=1.0, keyed=1, records_in=400))
        found[mode] = seen.replicas
    assert found == {Alignment.BALANCED: 26, Alignment.EVENLY_SPREAD: 32, Alignment.OFF: 23}


def test_each_slot_sharing_group_needs_its_own_slots() -> None:
    known = rig(vertices="vertices", utilization_max=0.75, current=4, **NO_BACKLOG)
    assert known.steady_vertices(source(group=0), work(group=1)).replicas == 6
    over = {"group": 2.0, "max_parallelism": 1.0}
    names = [f"source ({SOURCE})", f"work ({WORK})", f"over ({'c' * 32})"]
    assert known.steady_vertices(source(group=0), work(group=1), over, names=names).replicas == 7


def test_one_vertex_outside_its_band_allows_changes_of_all_vertices() -> None:
    """The source alone is within its band, and would go from 10 to 8."""
    known = rig(vertices="vertices", current=10, utilization_max=0.9, utilization_min=0.4, **NO_BACKLOG)
    seen = known.steady_vertices(source(10, busy=0.5), work(10, busy=0.5))
    assert seen.replicas == 10
    known = rig(vertices="vertices", current=10, utilization_max=0.9, utilization_min=0.4, **NO_BACKLOG)
    seen = known.steady_vertices(source(10, busy=0.5), work(10, busy=0.3))
    assert seen.replicas == 8


def test_a_waiting_vertex_is_named() -> None:
    known = rig(vertices="vertices", current=10, scale_down_interval=MINUTE, **NO_BACKLOG)
    seen = known.steady_vertices(source(10, busy=0.1), work(10, busy=0.7))
    assert seen.detail.startswith("work: 400 records/s need 571 at 70%, 10 subtasks could process 571 records/s; ")
    assert seen.detail.endswith(
        "; source: parallelism 4 is enough, scaling down in 45 s at the earliest, 10 replicas are kept"
    )


def test_a_cyclic_job_graph_is_refused() -> None:
    known = rig(vertices="vertices")
    seen = known.steady_vertices(source(**{f"from:{WORK}": 1}), work())
    assert (seen.reason, seen.detail) == (Reason.MISSING, "vertices: the vertices feed each other in a circle")


def test_a_reading_without_vertices_is_missing() -> None:
    known = rig(vertices="vertices")
    assert known.steady_vertices({"group": 0.0}).reason is Reason.MISSING
    assert known.see({}).reason is Reason.MISSING


def test_readings_without_vertices_do_not_fill_the_window() -> None:
    known = rig(vertices="vertices", **NO_BACKLOG)
    known.steady_vertices(count=5)
    assert known.vertices(source(), work()).reason is Reason.LEARNING


def test_another_parallelism_restarts_the_window_and_a_gap_does_not() -> None:
    known = rig(vertices="vertices", **NO_BACKLOG)
    known.steady_vertices(source(), work(busy=0.65))
    known.see({})
    assert known.vertices(source(), work(busy=0.65)).replicas == 2
    assert known.vertices(source(3), work(3)).reason is Reason.LEARNING


def test_a_vertex_without_an_id_is_identified_by_its_name() -> None:
    known = rig(vertices="vertices", vertex_exclude_ids=("sink",), utilization_max=0.75, **NO_BACKLOG)
    after = work() | {"from:map": 1}
    seen = known.steady_vertices(source(busy=0.8), after, names=["map", "sink"])
    assert seen.replicas == 3
    assert seen.detail.startswith("map: ")


# quota and excluded periods


def test_a_step_beyond_the_quota_is_not_made() -> None:
    for more, expected in (
        ({}, 3),
        ({"quota_cpu": 6, "worker_cpu": 2}, 3),
        ({"quota_cpu": 5, "worker_cpu": 2}, 2),
        ({"quota_memory": 12, "worker_memory": 4}, 3),
        ({"quota_memory": 11.9, "worker_memory": 4}, 2),
    ):
        known = rig(utilization_max=0.75, **NO_BACKLOG, **more)
        seen = known.steady(lag=0, arrivals=400, throughput=400, saturation=0.8)
        assert seen.replicas == expected
        assert ("the quota allows no more" in seen.detail) == (expected == 2)


def test_the_quota_counts_the_slot_sharing_groups_that_change() -> None:
    for quota, expected in ((7, 4), (8, 8)):
        half: dict[str, Any] = {"utilization_target": 0.4, "utilization_max": 0.5}
        known = rig(vertices="vertices", current=4, quota_cpu=quota, worker_cpu=1, **half, **NO_BACKLOG)
        assert known.steady_vertices(source(busy=0.7, group=0), work(busy=0.7, group=1)).replicas == expected


def test_a_quota_does_not_prevent_a_scale_down() -> None:
    known = rig(current=10, quota_cpu=1, worker_cpu=2, **NO_BACKLOG)
    assert known.steady(lag=0, arrivals=10, throughput=10, saturation=0.01).replicas == 4


def test_nothing_may_change_in_an_excluded_period() -> None:
    policy = FlinkOperator(excluded_periods=("13:00-14:00",), timezone="Europe/Berlin")
    limits = Limits(1, 5)
    assert policy.allow(START, limits).excluded == "13:00 is within excluded_periods"
    assert policy.allow(START + timedelta(hours=2), limits).excluded is None
    assert policy.allow(START, limits).limits == limits
    assert FlinkOperator().allow(START, limits).excluded is None


# memory


def test_a_scale_down_waits_for_the_interval_and_uses_its_maximum() -> None:
    known = rig(current=10, scale_down_interval=MINUTE, **NO_BACKLOG)
    known.steady(5, lag=0, arrivals=350, throughput=350, saturation=0.35)
    known.past = known.past[-1:]
    known.policy = replace(known.policy, metrics_window=timedelta(seconds=15))
    seen = [known.job(lag=0, arrivals=a, throughput=a, saturation=a / 1000) for a in (300, 290, 350, 200)]
    assert [one.replicas for one in seen] == [10, 10, 10, 5]
    assert "parallelism 5 is enough, scaling down in" in seen[0].detail


def test_a_requested_scale_down_is_forgotten() -> None:
    known = rig(current=10, scale_down_interval=MINUTE, **NO_BACKLOG)
    known.steady(lag=0, arrivals=300, throughput=300, saturation=0.3)
    assert any(".down." in name for name in known.memory)
    known.rescale = Rescale(before=10, to=5, at=known.now, cause=Cause.REQUEST, phase=Phase.REQUESTED, since=known.now)
    known.job(lag=0, arrivals=300, throughput=300, saturation=0.3)
    assert not any(".down" in name for name in known.memory)
    assert known.memory["asked_at"] == known.rescale.at.timestamp()


def test_a_change_of_parallelism_restarts_the_wait_of_a_vertex() -> None:
    known = rig(current=10, scale_down_interval=5 * MINUTE, **NO_BACKLOG)
    known.steady(lag=0, arrivals=100, throughput=100, saturation=0.1)
    since = known.memory["job.down_at"]
    known.current = 12
    known.steady(lag=0, arrivals=100, throughput=100, saturation=0.1)
    assert known.memory["job.down_at"] > since


@pytest.mark.parametrize(("missing", "size"), [(2, 5), (20, 10)])
def test_time_without_metrics_does_not_count_for_a_scale_down(missing: int, size: int) -> None:
    known = rig(current=10, scale_down_interval=5 * MINUTE, **NO_BACKLOG)
    known.steady(15, lag=0, arrivals=300, throughput=300, saturation=0.3)
    for _ in range(missing):
        assert known.see({}).reason is Reason.MISSING
    assert known.steady(15, lag=0, arrivals=300, throughput=300, saturation=0.3).replicas == size
    assert known.steady(15, lag=0, arrivals=300, throughput=300, saturation=0.3).replicas == 5


def test_the_maximum_of_the_interval_is_exact_after_many_steps_down() -> None:
    parameters = {"metrics_window": timedelta(seconds=15), **NO_BACKLOG}
    known = rig(current=100, scale_down_interval=9 * MINUTE, **parameters)
    at_once = rig(current=100, scale_down_interval=timedelta(0), target_utilization_boundary=0.0, **parameters)
    wanted: list[int] = []
    rates = [500.0 - 4 * tick for tick in range(80)]
    found: int | None = 100
    for rate in rates:
        values = {"lag": 0.0, "arrivals": rate, "throughput": rate, "saturation": rate / 1000}
        wanted.append(at_once.job(**values).replicas or 100)
        found = known.job(**values).replicas or 100
        if found != 100:
            break
    # 36 polls are 9 minutes, and the maximum must be from when the vertex was outside its band: below 400/s of 1,000
    assert rates[len(wanted) - 37] < 400 <= rates[len(wanted) - 38]
    assert found == max(wanted[-37:])
    assert len({*wanted}) > 30


def test_a_queue_of_many_parallelisms_stays_short_and_is_never_too_low() -> None:
    names = [f"v{index} ({index:032x})" for index in range(40)]
    known = rig(
        vertices="vertices",
        current=100,
        scale_down_interval=60 * MINUTE,
        metrics_window=timedelta(seconds=15),
        **NO_BACKLOG,
    )
    for tick in range(40):
        share = 0.5 - 0.008 * tick
        known.vertices(*[source(100, 1000 * share, share) for _ in names], names=names)
    kept = [known.memory[f"{0:032x}.down.{index}"] for index in range(7)]
    assert f"{0:032x}.down.7" not in known.memory
    assert len(known.memory) <= MOST_LEARNED
    assert kept == sorted(kept, reverse=True)
    assert kept[0] >= 70
    assert kept[-1] == 40


def rescaled(known: Rig, to: int, **after: float) -> None:
    """Request a rescale, make it and let the job absorb it."""
    begun = known.now
    known.rescale = Rescale(
        before=known.current, to=to, at=begun, cause=Cause.REQUEST, phase=Phase.REQUESTED, since=begun
    )
    known.job(**after)
    known.job(**after)
    known.current, known.rescale, known.warm_from = to, None, known.now


def test_after_an_ineffective_step_a_vertex_gets_no_more() -> None:
    values: dict[str, Any] = {"lag": 0.0, "arrivals": 200.0, "throughput": 100.0, "saturation": 1.0}
    found = {}
    for enabled in (True, False):
        known = rig(scaling_effectiveness_detection_enabled=enabled, utilization_target=1.0, **NO_BACKLOG)
        assert known.steady(**values).replicas == 4
        rescaled(known, 4, **values)
        seen = known.steady(8, **values)
        found[enabled] = seen.replicas
        assert ("the last scale up gained 0% of what was expected" in seen.detail) == enabled
    assert found == {True: 4, False: 8}
    assert not any(".step." in name for name in known.memory)


def test_a_step_by_another_controller_is_not_evaluated() -> None:
    values: dict[str, Any] = {"lag": 0.0, "arrivals": 200.0, "throughput": 100.0, "saturation": 1.0}
    known = rig(scaling_effectiveness_detection_enabled=True, utilization_target=1.0, **NO_BACKLOG)
    known.steady(**values)
    known.current = 4
    assert known.steady(**values).replicas == 8


def test_past_steps_show_how_well_a_vertex_scales() -> None:
    """Each doubling gains half of the ideal: 100, 150 and 225 with 2, 4 and 8; then 200 need 1.3 times as many."""
    known = rig(observed_scalability_enabled=True, observed_scalability_min_observations=2, utilization_target=1.0)
    known.policy = replace(known.policy, catch_up_duration=timedelta(0))
    for size, able in ((2, 100.0), (4, 150.0)):
        known.steady(lag=0, arrivals=300, throughput=able, saturation=1.0)
        rescaled(known, size * 2, lag=0, arrivals=300, throughput=able, saturation=1.0)
    seen = known.steady(8, lag=0, arrivals=300, throughput=225, saturation=1.0)
    assert known.memory["job.step.1.rate"] == 150
    assert seen.replicas == math.ceil(8 * 300 / 225 / 0.8)


def test_only_a_limited_number_of_steps_is_remembered() -> None:
    known = rig(observed_scalability_enabled=True, history_max_count=2, **NO_BACKLOG)
    for size in (3, 4, 5, 6):
        values: dict[str, Any] = {"lag": 0.0, "arrivals": 100.0, "throughput": 100.0, "saturation": 0.7}
        known.steady(**values)
        rescaled(known, size, **values)
    known.steady(lag=0, arrivals=100, throughput=100, saturation=0.7)
    assert [known.memory[f"job.step.{index}.to"] for index in range(2)] == [5, 6]
    assert "job.step.2.to" not in known.memory


def test_the_longest_observed_restart_is_used_if_configured() -> None:
    values: dict[str, Any] = {"lag": 0.0, "arrivals": 100.0, "throughput": 100.0, "saturation": 0.9}
    found = {}
    for tracked in (True, False):
        known = rig(restart_time_tracking_enabled=tracked, catch_up_duration=10 * MINUTE)
        known.steady(**values)
        rescaled(known, 3, **values)
        found[tracked] = known.steady(8, **values).inputs["capacity"]
    assert found == {True: round(100 * 30 / 600 + 100 / 0.7), False: round(100 * 300 / 600 + 100 / 0.7)}


def test_a_restart_ends_when_the_engine_reports_a_running_job() -> None:
    values: dict[str, Any] = {"lag": 0.0, "arrivals": 100.0, "throughput": 100.0, "saturation": 0.9}
    running = EngineStatus(job=JobState.RUNNING, running_since=START)
    known = rig(restart_time_tracking_enabled=True, more={"engine": running})
    known.steady(**values)
    rescaled(known, 3, **values)
    known.engine = replace(running, running_since=known.warm_from and known.warm_from - timedelta(seconds=10))
    known.job(**values)
    assert known.memory["restart.0"] == 20
    known.job(**values)
    assert known.memory["restart.0"] == 20


def test_a_vertex_that_does_not_fit_into_the_memory_waits_again() -> None:
    known = rig(vertices="vertices", current=10, scale_down_interval=60 * MINUTE, **NO_BACKLOG)
    many = [source(10, busy=0.1) for _ in range(400)]
    names = [f"v{index} ({index:032x})" for index in range(400)]
    assert known.steady_vertices(*many, names=names).replicas == 10
    assert 900 < len(known.memory) <= MOST_LEARNED


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "job.down_at",
                "job.down.0_at",
                "job.down.0",
                "job.down.0.outside",
                "job.down.1_at",
                "job.down.1",
                "job.parallelism",
                "job.rate",
                "asked_at",
                "asked",
                "read_at",
                "restart.0_at",
                "restart.0",
                "job.step.0_at",
                "job.step.0.from",
                "job.step.0.to",
            ]
        ),
        st.floats(allow_nan=False, allow_infinity=False),
    )
)
@example({"job.down_at": 0.0, "job.down.0_at": 0.0})
def test_any_stored_memory_is_accepted_and_stays_finite(memory: dict[str, float]) -> None:
    known = rig(
        current=10,
        scale_down_interval=MINUTE,
        scaling_effectiveness_detection_enabled=True,
        observed_scalability_enabled=True,
        restart_time_tracking_enabled=True,
    )
    known.steady(lag=0, arrivals=100, throughput=100, saturation=0.1)
    known.memory = memory
    seen = known.job(lag=0, arrivals=100, throughput=100, saturation=0.1)
    assert seen.replicas is not None
    assert seen.replicas <= 1000
    assert all(map(math.isfinite, known.memory.values()))


# the whole decision machine


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 1), st.floats(0, 1e6))
def test_more_arrivals_never_give_fewer_workers(low: float, more: float, busy: float, lag: float) -> None:
    sizes = []
    for arrivals in (low, low + more):
        seen = rig(current=10).steady(lag=lag, arrivals=arrivals, throughput=1000, saturation=busy)
        assert seen.replicas is not None
        sizes.append(seen.replicas)
    assert sizes[0] <= sizes[1]


@given(st.integers(1, 30), st.floats(0.05, 1), st.sampled_from([1e-9, 1e-6, 1e-3, 1.0]))
def test_rates_times_a_number_give_the_same_size(current: int, busy: float, times: float) -> None:
    """Except for the rounding of capacities to whole records, which is the original's: none is near a step here."""
    sizes = {
        rig(current=current, **NO_BACKLOG)
        .steady(lag=0, arrivals=70_000_000 * by, throughput=70_000_000 * by, saturation=busy)
        .replicas
        for by in (1.0, times)
    }
    assert len(sizes) == 1


def test_a_job_with_few_records_is_not_taken_for_an_idle_one() -> None:
    """0.3 records/s at 70 % are 0.43, which Flink rounds to zero."""
    seen = rig(current=4, utilization_max=0.8, **NO_BACKLOG).steady(lag=0, arrivals=0.3, throughput=0.3, saturation=0.9)
    assert seen.inputs["capacity"] == pytest.approx(0.3 / 0.7)
    assert seen.replicas == 6


def test_in_the_decision_machine_a_job_reaches_its_size_and_stays() -> None:
    """1000 records/s, 100 a worker: from 5 to 15 workers, then 14 hours without a change."""
    policy = FlinkOperator(metrics_window=2 * MINUTE, stabilization_interval=MINUTE, catch_up_duration=timedelta(0))
    spec = ClusterSpec(
        name="c",
        limits=Limits(1, 50),
        policies=(NamedPolicy("flink", policy),),
        down=Behaviour(),
        metrics=policy.metrics,
        lookback=policy.lookback,
    )
    state, size, sizes = ClusterState(), 5, []
    for tick in range(2000):
        now = START + tick * timedelta(seconds=15)
        done = min(1000.0, size * 100.0)
        values: dict[str, Any] = {"lag": 0.0, "arrivals": 1000.0, "throughput": done, "saturation": done / size / 100}
        readings = {name: Reading(value, now) for name, value in values.items()}
        state, decision = step(spec, state, Observation(at=now, desired=size, ready=size, metrics=readings))
        size = decision.desired
        sizes.append(size)
    assert sorted(set(sizes)) == [5, 15]
    assert sizes.index(15) < 20


# parameters


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"utilization_target": 0.0}, "utilization_target: is 0.0, expected above 0 to 1"),
        ({"utilization_target": 1.1}, "utilization_target: is 1.1"),
        ({"target_utilization_boundary": -0.1}, "target_utilization_boundary: is -0.1, expected a finite number"),
        ({"utilization_max": 0.6}, r"utilization_max: is 0.6, expected utilization_target \(0.7\) to 1"),
        ({"utilization_max": 1.1}, "utilization_max: is 1.1"),
        ({"utilization_min": 0.8}, "utilization_min: is 0.8, expected 0 to utilization_target"),
        ({"utilization_min": -0.1}, "utilization_min: is -0.1"),
        ({"scale_down_max_factor": 1.5}, "scale_down_max_factor: is 1.5, expected 0 to 1"),
        ({"scale_up_max_factor": math.inf}, "scale_up_max_factor: is inf, expected a finite number of 0 or more"),
        ({"vertex_min_parallelism": 0}, "vertex_min_parallelism: is 0, expected 1 or more"),
        (
            {"vertex_min_parallelism": 9, "vertex_max_parallelism": 8},
            r"vertex_max_parallelism: is 8, expected .* \(9\)",
        ),
        ({"observed_scalability_coefficient_min": 0}, "observed_scalability_coefficient_min: is 0"),
        ({"history_max_count": 21}, "history_max_count: is 21, expected 20 at most"),
        ({"catch_up_duration": -MINUTE}, "catch_up_duration: is -60s, expected 0s or more"),
        ({"metrics_window": timedelta(0)}, "metrics_window: is 0s, expected above 0s"),
        ({"quota_cpu": 0.0, "worker_cpu": 1.0}, "quota_cpu: is 0.0, expected a finite number above 0"),
        ({"quota_cpu": 4.0}, "worker_cpu: is missing, expected together with quota_cpu"),
        (
            {"quota_memory": 4.0},
            "worker_memory: is missing, expected together with quota_memory",
        ),
        ({"lag": ""}, "lag: is empty, expected the name of a metric"),
        ({"vertices": ""}, "vertices: is empty, expected the name of a metric"),
        ({"vertex_exclude_ids": ("a", "")}, "vertex_exclude_ids: is .*, expected ids or parts of names"),
        ({"excluded_periods": ("9-10",)}, "excluded_periods: '9' is not a time"),
        ({"timezone": "Mars"}, "timezone: is Mars, expected the name of a time zone"),
    ],
)
def test_invalid_parameters_are_named(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FlinkOperator(**parameters)


def test_the_required_metrics_are_those_of_its_mode() -> None:
    assert FlinkOperator().metrics == ("lag", "throughput", "saturation")
    assert FlinkOperator(vertices="parts").metrics == ("parts",)
    assert FlinkOperator().lookback > timedelta(minutes=15)


# documentation

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "policies" / "flink-operator.md").read_text()
MOVE = PAGE.partition("## From the Flink autoscaler")[2].partition("\n## ")[0]


def written(default: object) -> str:
    match default:
        case None | ():
            return "none"
        case bool():
            return str(default).lower()
        case timedelta():
            return format_duration(default)
        case float():
            return f"{default:g}"
    return str(default)


def test_the_configuration_of_an_operator_is_migrated(tmp_path: Path) -> None:
    before, after = re.findall(r"```yaml\n(.*?)```", MOVE, re.DOTALL)
    path = tmp_path / "autoscaler.yaml"
    path.write_text(after)
    cluster = load(path, {}).clusters["orders"]
    (named,) = cluster.spec.policies
    policy = named.policy
    assert isinstance(policy, FlinkOperator)
    assert policy == FlinkOperator(
        vertices="vertices",
        utilization_target=0.6,
        utilization_max=0.8,
        utilization_min=0.4,
        metrics_window=5 * MINUTE,
        stabilization_interval=MINUTE,
        catch_up_duration=10 * MINUTE,
        restart_time=2 * MINUTE,
        restart_time_tracking_enabled=True,
        scale_down_interval=30 * MINUTE,
        vertex_max_parallelism=48,
        vertex_exclude_ids=("6cdc5bb954874d922eaee11a8e7b5dd5",),
        excluded_periods=("* * * ? * 2-6 && 09:30:00-11:00:00",),
        quota_cpu=32.0,
        worker_cpu=2.0,
    )
    options = dict(re.findall(r'^job\.autoscaler\.([\w.-]+): "(.*)"', before, re.MULTILINE))
    del options["enabled"]
    for option, value in options.items():
        found = getattr(policy, re.sub("[.-]", "_", option))
        assert written(found[0] if isinstance(found, tuple) else found) == value


def test_the_worked_numbers_of_the_page_hold() -> None:
    """The numbers on the page; once with the default band."""
    numbers: dict[str, Any] = {"catch_up_duration": 10 * MINUTE, "restart_time": MINUTE}
    for most, expected in (0.75, 6), (None, 4):
        known = rig(current=4, utilization_max=most, **numbers)
        seen = known.steady(lag=24_000, arrivals=1000, throughput=1000, saturation=0.8)
        assert (seen.inputs["true_rate"], seen.inputs["capacity"], seen.replicas) == (1250, 1569, expected)
    assert "1000 / 0.7 + 1000 x 60 / 600 + 24000 / 600 = 1,569" in PAGE
