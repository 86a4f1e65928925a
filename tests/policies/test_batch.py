from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import (
    Behaviour,
    ClusterSpec,
    ClusterState,
    Decision,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    View,
)
from autoscaler.core.step import step
from autoscaler_policies.rules.batch import Batch, Work

Make = Callable[..., View]
Value = float | tuple[float, ...]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def stage(
    pending: Value = 0.0, running: Value = 0.0, remaining: Value = 0.0, shuffle: Value = 0.0, **more: Value
) -> dict[str, Value]:
    return {
        "pending_tasks": pending,
        "running_tasks": running,
        "remaining_task_time": remaining,
        "shuffle_workers": shuffle,
        **more,
    }


def tasks(pending: int, running: int, mean: float, **more: Value) -> dict[str, Value]:
    """Tasks that take so many seconds; the running ones are half done."""
    return stage(float(pending), float(running), (pending + running / 2) * mean, **more)


def watched(*found: tuple[float, float, float], shuffle: float = 0.0) -> tuple[Observation, ...]:
    """Observations so many seconds ago, with pending and running tasks."""
    return tuple(
        Observation(
            at=NOW - seconds(age),
            desired=8,
            ready=8,
            metrics={
                name: Reading(value, NOW - seconds(age))
                for name, value in stage(pending, running, 0.0, shuffle).items()
            },
        )
        for age, pending, running in found
    )


@pytest.mark.parametrize(
    ("policy", "pending", "running", "mean", "current", "expected"),
    [
        # 64 tasks of 10 s on 4: 160 s. In 30 s three waves finish, 52 are left: 9 take 30 + 60 s
        (Batch(), 60, 4, 10.0, 4, 9),
        (Batch(waiting_price=50.0), 60, 4, 10.0, 4, 26),
        (Batch(waiting_price=1e9), 60, 4, 10.0, 4, 52),
        (Batch(waiting_price=0.01), 60, 4, 10.0, 4, 4),
        # the rest is not worth a start-up: the present slots take the last pending tasks before new ones are ready
        (Batch(), 8, 4, 10.0, 4, 4),
        (Batch(waiting_price=1e9), 8, 4, 10.0, 4, 4),
        # long tasks: at the present size none has finished when the new workers start
        (Batch(), 4, 4, 600.0, 4, 8),
        (Batch(), 3, 4, 600.0, 4, 7),
        # no more than the tasks can use, and no more than allowed
        (Batch(waiting_price=1e9), 1, 4, 1e6, 4, 5),
        (Batch(waiting_price=1e9), 10**6, 4, 1e6, 4, 1000),
        # workers that start at once
        (Batch(start_up=timedelta(0)), 60, 4, 10.0, 4, 64),
        # running tasks have their slots: nothing to add
        (Batch(waiting_price=1e9), 0, 4, 600.0, 4, 4),
        (Batch(waiting_price=1e9), 0, 9, 600.0, 4, 4),
        # from zero always the first replica, whatever it costs
        (Batch(waiting_price=0.01), 1, 0, 0.0, 0, 1),
        (Batch(waiting_price=0.01), 64, 0, 10.0, 0, 1),
        (Batch(), 0, 1, 10.0, 0, 1),
        (Batch(waiting_price=1e9), 64, 0, 10.0, 0, 64),
        # tasks of unknown duration count as zero, so they are no reason for more replicas
        (Batch(waiting_price=1e9), 64, 4, 0.0, 4, 4),
        # from zero as many as would cost, if they turn out useless, no more than a second start-up of waiting
        (Batch(), 64, 0, 0.0, 0, 5),
        (Batch(), 3, 0, 0.0, 0, 3),
        (Batch(waiting_price=0.5), 64, 0, 0.0, 0, 1),
        (Batch(waiting_price=1e9), 10**6, 0, 0.0, 0, 1000),
        # absurd readings
        (Batch(), 0.2, 0.0, 1e308, 0, 1),
        (Batch(), 1e308, 1e308, 1.0, 4, 1000),
        (Batch(waiting_price=1e9), 1e10, 0, 1e5, 4, 1000),
    ],
)
def test_requests_the_size_with_the_least_cost(
    view: Make, *, policy: Batch, pending: float, running: float, mean: float, current: int, expected: int
) -> None:
    remaining = min((pending + running / 2) * mean, 1e308)
    seen = view(stage(pending, running, remaining), current=current, minimum=0, maximum=1000)
    answer = policy.evaluate(seen)
    assert answer.replicas == expected
    assert answer.reason is (Reason.ABOVE if expected > current else Reason.STEADY)
    assert all(map(math.isfinite, answer.inputs.values()))


def test_a_replica_with_several_slots_runs_several_tasks(view: Make) -> None:
    four = view(tasks(56, 8, 10.0), current=2, maximum=100)
    slots = four.__class__(
        **{name: getattr(four, name) for name in ("now", "current", "ready", "metrics", "past", "limits", "learned")},
        spec=ClusterSpec(name="c", limits=four.limits, policies=(), slots_per_replica=4),
    )
    # 64 tasks on 8 slots are 80 s; after three waves 40 are left, and ten replicas need one wave of them
    assert Batch(waiting_price=1e9).evaluate(slots).replicas == 10


def test_the_minimum_takes_precedence_over_the_price(view: Make) -> None:
    assert Batch(waiting_price=0.01).evaluate(view(tasks(64, 1, 10.0), current=1, minimum=3)).replicas == 3
    assert Batch().evaluate(view(tasks(0, 1, 10.0), current=1, minimum=3)).replicas == 3
    assert Batch().evaluate(view(tasks(64, 12, 10.0), current=12, maximum=10)).replicas == 10


def test_a_learned_start_up_time_is_used(view: Make) -> None:
    answer = Batch().evaluate(view(tasks(60, 4, 10.0), current=4, maximum=100, learned_up=300.0))
    assert (answer.replicas, answer.inputs["start_up"]) == (4, 300.0)


@pytest.mark.parametrize(
    ("price", "deadline", "elapsed", "expected", "words"),
    [
        # 64 tasks of 10 s on 4: 160 s; 52 left after 30 s: 13 take 70 s, 26 take 50 s, 52 take 40 s
        (0.0, 170.0, 0.0, 4, "4 replicas finish in 160 s for 640 worker-seconds, 170 s before the deadline"),
        (0.0, 170.0, 11.0, 5, "5 replicas finish in 140 s for 700 worker-seconds, 159 s before the deadline"),
        (0.0, 170.0, 100.0, 13, "13 replicas finish in 70 s for 910 worker-seconds, 70 s before the deadline"),
        (0.0, 170.0, 101.0, 18, "18 replicas finish in 60 s for 1,080 worker-seconds, 69 s before the deadline"),
        (0.0, 170.0, 130.0, 52, "40 s before the deadline"),
        (0.0, 170.0, 131.0, 52, "the soonest: the deadline in 39 s cannot be met; 4 in 160 s"),
        (0.0, 170.0, 171.0, 52, "the soonest: the deadline has passed; 4 in 160 s"),
        (4.0, 600.0, 0.0, 9, "9 replicas finish in 90 s"),  # the price justifies more than the deadline
    ],
)
def test_meets_the_deadline_at_the_least_cost_or_finishes_as_early_as_possible(
    view: Make, *, price: float, deadline: float, elapsed: float, expected: int, words: str
) -> None:
    policy = Batch(waiting_price=price, deadline=seconds(deadline))
    answer = policy.evaluate(view(tasks(60, 4, 10.0, job_time=elapsed), current=4, maximum=100))
    assert answer.replicas == expected
    assert words in answer.detail


@pytest.mark.parametrize(
    ("past", "shuffle", "expected", "words"),
    [
        (((30, 0, 3), (15, 0, 3), (0, 0, 2)), 0.0, 3, "tasks could use at most 3 for 30 s"),
        (((45, 0, 8), (30, 0, 3), (15, 0, 3), (0, 0, 2)), 0.0, 3, "tasks could use at most 3"),  # longer ago
        (((30, 1, 4), (15, 0, 3), (0, 0, 2)), 0.0, 5, "tasks could use at most 5"),  # the pending tasks could use one
        (((30, 0, 8), (15, 0, 3), (0, 0, 2)), 0.0, 8, "tasks could use 8 within the last 30 s"),
        (((30, 70, 8), (15, 0, 3), (0, 0, 2)), 0.0, 8, "tasks could use 78 within the last 30 s"),
        (((30, 0, 0), (15, 0, 0), (0, 0, 0)), 0.0, 0, "tasks could use at most 0"),
        (
            ((30, 0, 3), (15, 0, 3), (0, 0, 2)),
            5.0,
            5,
            "tasks could use at most 3 for 30 s, workers that hold shuffle files: 5",
        ),
        (
            ((30, 0, 3), (15, 0, 3), (0, 0, 2)),
            2.0,
            3,
            "tasks could use at most 3 for 30 s, workers that hold shuffle files: 2",
        ),
        (((30, 0, 3), (15, 0, 3), (0, 0, 2)), 8.0, 8, "workers that hold shuffle files: 8"),
        (((30, 0, 3), (15, 0, 3), (0, 0, 2)), 1e308, 8, "hold shuffle files"),
        (
            ((30, 0, 0), (15, 0, 0), (0, 0, 0)),
            2.0,
            2,
            "tasks could use at most 0 for 30 s, workers that hold shuffle files: 2",
        ),
        (((15, 0, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),
        (((0, 0, 0),), 0.0, 8, "observed for less than 30 s"),
        ((), 0.0, 8, "observed for less than 30 s"),
        (((120, 0, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),  # a gap in which anything may have run
        (((-5, 0, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),  # the clock was adjusted
        (((30, 0, 3), (15, -1, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),
        (((30, 0, 3), (15, math.nan, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),
        (((30, 0, 3), (15, math.inf, 3), (0, 0, 2)), 0.0, 8, "observed for less than 30 s"),
    ],
)
def test_removes_replicas_that_were_useless_for_the_idle_time(
    view: Make, *, past: Sequence[tuple[float, float, float]], shuffle: float, expected: int, words: str
) -> None:
    now = past[-1] if past else (0, 0, 0)
    metrics = stage(now[1], now[2], now[2] * 5.0, shuffle)
    answer = Batch().evaluate(view(metrics, current=8, minimum=0, past=watched(*past)))
    assert answer.replicas == expected
    assert words in answer.detail


def test_missing_or_old_past_readings_do_not_count_as_zero(view: Make) -> None:
    old, between, new = watched((30, 0, 1), (15, 0, 1), (0, 0, 1))
    stale = Observation(
        at=between.at,
        desired=8,
        ready=8,
        metrics={name: Reading(0.0, between.at - seconds(61)) for name in between.metrics},
    )
    for seen in (Observation(at=between.at, desired=8, ready=8), stale):
        assert Batch().evaluate(view(tasks(0, 1, 5.0), current=8, past=(old, seen, new))).replicas == 8
    assert Batch().evaluate(view(tasks(0, 1, 5.0), current=8, past=(old, between, new))).replicas == 1


def test_readings_per_replica_are_summed(view: Make) -> None:
    metrics = stage((1.0, 2.0), (1.0, 0.0), (20.0, 15.0), (1.0, 1.0))
    past = tuple(
        Observation(
            at=NOW - seconds(age),
            desired=6,
            ready=2,
            metrics={name: Reading(value, NOW - seconds(age)) for name, value in metrics.items()},
        )
        for age in (30, 0)
    )
    answer = Batch().evaluate(view(metrics, current=6, ready=2, past=past))
    assert (answer.replicas, answer.inputs["pending"], answer.inputs["shuffle"]) == (4, 3.0, 2)


@pytest.mark.parametrize(
    ("policy", "learned", "idle"),
    [
        (Batch(), None, 30.0),
        (Batch(start_up=seconds(90)), None, 90.0),
        (Batch(), 90.0, 90.0),
        (Batch(), 0.0, 15.0),  # two observations, not one
        (Batch(), 1e300, 600.0),
        (Batch(start_up=seconds(1200)), 1e300, 1200.0),
        (Batch(idle_time=seconds(45)), 90.0, 45.0),
    ],
)
def test_the_idle_time_defaults_to_the_start_up_time(
    view: Make, *, policy: Batch, learned: float | None, idle: float
) -> None:
    for longest, expected in ((idle, 1), (idle - 1, 8)):
        times = sorted({*range(0, int(longest), 15), longest}, reverse=True)
        past = watched(*((age, 0, 1) for age in times))
        assert policy.evaluate(view(tasks(0, 1, 5.0), current=8, learned_up=learned, past=past)).replicas == expected
    assert policy.lookback >= seconds(idle)


@pytest.mark.parametrize("name", ["pending_tasks", "running_tasks", "remaining_task_time", "shuffle_workers"])
def test_abstains_if_one_of_its_metrics_is_missing(view: Make, name: str) -> None:
    metrics = tasks(60, 4, 10.0)
    del metrics[name]
    answer = Batch().evaluate(view(metrics, current=4))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == f"no trusted reading of {name}"


def test_the_elapsed_time_of_the_job_is_required_only_with_a_deadline(view: Make) -> None:
    policy = Batch(deadline=seconds(60), elapsed="since")
    answer = policy.evaluate(view(tasks(60, 4, 10.0), current=4))
    assert answer.detail == "no trusted reading of since"
    assert policy.metrics[-1] == "since"
    assert "since" not in Batch(elapsed="since").metrics
    assert "since" in policy.ranges


def test_reports_that_the_task_duration_is_unknown(view: Make) -> None:
    answer = Batch().evaluate(view(tasks(48, 0, 0.0), current=0, minimum=0, maximum=20))
    assert answer.replicas == 5
    assert answer.detail == "48 tasks (48 wait), 0 s of work; 5 replicas, as it is not known yet how long a task takes"
    answer = Batch().evaluate(view(tasks(48, 4, 0.0), current=4, minimum=0, maximum=20))
    assert answer.replicas == 4
    assert answer.detail == "52 tasks (48 wait), 0 s of work; 4 replicas, as it is not known yet how long a task takes"


def test_the_detail_explains_the_calculation(view: Make) -> None:
    def detail(pending: int, running: int, current: int) -> str:
        return Batch().evaluate(view(tasks(pending, running, 10.0), current=current, minimum=0, maximum=20)).detail

    assert detail(60, 4, 4) == (
        "64 tasks (60 wait), 620 s of work; 9 replicas finish in 90 s for 810 worker-seconds; 4 in 160 s"
    )
    assert detail(8, 4, 4) == ("12 tasks (8 wait), 100 s of work; 4 replicas finish in 30 s for 120 worker-seconds")
    assert detail(1, 0, 0) == "1 task (1 wait), 10 s of work; 1 replica finishes in 40 s for 40 worker-seconds"
    assert detail(0, 4, 4) == "4 tasks (0 wait), 20 s of work; 4 replicas"
    assert detail(0, 0, 0) == "0 tasks (0 wait), 0 s of work; 0 replicas"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"waiting_price": -1.0}, "waiting_price: is -1.0, expected 0 to 1e\\+09"),
        ({"waiting_price": math.nan}, "waiting_price: is nan"),
        ({"waiting_price": math.inf}, "waiting_price: is inf"),
        ({"waiting_price": 0.0}, "waiting_price: is 0 without a deadline"),
        ({"deadline": timedelta(0)}, "deadline: is 0s, expected above 0s"),
        ({"idle_time": timedelta(0)}, "idle_time: is 0s, expected above 0s"),
        ({"start_up": seconds(-1)}, "start_up: is -1s, expected 0s or more"),
        ({"pending": ""}, "pending: is empty"),
        ({"elapsed": ""}, "elapsed: is empty"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batch(**parameters)


def test_only_a_few_sizes_are_compared() -> None:
    work = Work(tasks=100_000, mean=10.0, slots=1, current=1, start_up=30.0)
    assert len([*work.sizes(1, 100_000)]) < 2 * math.sqrt(100_000) + 1


counts = st.integers(0, 300)
works = st.builds(
    Work,
    tasks=counts,
    mean=st.just(0.0) | st.floats(1e-3, 1e4) | st.sampled_from([1e-320, 10.0, 30.0]),
    slots=st.integers(1, 5),
    current=st.integers(0, 60),
    start_up=st.sampled_from([0.0, 30.0, 1e15]) | st.floats(0, 1000),
)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    work=works,
    waiting=counts,
    price=st.floats(0.01, 100),
    minimum=st.integers(0, 20),
    more=st.integers(1, 80),
    left=st.none() | st.floats(-10, 3000),
)
def test_no_other_size_is_cheaper(
    view: Make, *, work: Work, waiting: int, price: float, minimum: int, more: int, left: float | None
) -> None:
    waiting = min(waiting, work.tasks)
    running = work.tasks - waiting
    remaining = (waiting + running / 2) * work.mean
    metrics = stage(float(waiting), float(running), remaining, job_time=10.0)
    deadline = None if left is None else seconds(left + 10.001)
    policy = Batch(waiting_price=price, deadline=deadline)
    base = view(metrics, current=work.current, minimum=minimum, maximum=minimum + more, learned_up=work.start_up)
    spec = ClusterSpec(name="c", limits=base.limits, policies=(), slots_per_replica=work.slots)
    names = ("now", "current", "ready", "metrics", "past", "limits", "learned")
    answer = policy.evaluate(View(**{name: getattr(base, name) for name in names}, spec=spec))
    assert answer.replicas is not None
    if not waiting and (work.current or not work.tasks):
        assert answer.replicas == max(minimum, min(work.current, minimum + more))
        return

    # Every size by the definition: the present slots finish a wave each `mean`, then all slots do.
    mean = remaining / (waiting + running / 2)
    done = math.floor(min(work.start_up / mean, 1e15)) * work.current * work.slots if mean else 0

    def time(size: int) -> float:
        if size == work.current:
            return math.ceil(work.tasks / (size * work.slots)) * mean
        return work.start_up + math.ceil(max(0, work.tasks - done) / (size * work.slots)) * mean

    least = max(1, minimum, work.current)
    if not (mean or work.current):
        least = max(least, min(math.ceil(work.tasks / work.slots), 1 + math.floor(price), minimum + more))
    allowed = list(range(least, minimum + more + 1)) or [work.current]
    if deadline is not None:
        in_time = [size for size in allowed if time(size) <= deadline.total_seconds() - 10.0]
        soonest = min(map(time, allowed))
        allowed = in_time or [size for size in allowed if time(size) == soonest]
        if not in_time:
            allowed = allowed[:1]
    best = min(allowed, key=lambda size: ((size + price) * time(size), size))
    assert answer.replicas == min(best, minimum + more)


amounts = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    policy=st.builds(
        Batch,
        waiting_price=st.floats(1e-300, 1e9),
        deadline=st.none() | st.timedeltas(min_value=seconds(1)),
        start_up=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10**6)),
        idle_time=st.none() | st.timedeltas(min_value=seconds(1), max_value=timedelta(days=100)),
    ),
    situation=st.fixed_dictionaries(
        {
            "current": st.integers(0, 300),
            "ready": st.integers(0, 300),
            "minimum": st.integers(0, 5),
            "maximum": st.integers(5, 1000),
            "rescale": st.booleans(),
            "learned_up": st.none() | st.floats(0, 1e300),
        }
    ),
    metrics=st.dictionaries(
        st.sampled_from([*stage(), "job_time"]),
        amounts | st.lists(amounts, min_size=1, max_size=5).map(tuple),
    ),
)
def test_is_total(view: Make, policy: Batch, situation: dict[str, Any], metrics: dict[str, Value]) -> None:
    answer = policy.evaluate(view(metrics, **situation))
    assert all(map(math.isfinite, answer.inputs.values()))
    assert "nan" not in answer.detail
    if answer.replicas is None:
        assert answer.reason is Reason.MISSING
    else:
        assert situation["minimum"] <= answer.replicas <= situation["maximum"]
        # never fewer at the first observation
        assert answer.replicas >= min(situation["current"], situation["maximum"])


INTERVAL = 5


class Cluster:
    """Workers of one slot that start 10 s after the request, observed every 5 s through the whole decision machine."""

    def __init__(self, policy: Batch, *, minimum: int = 0, desired: int = 0) -> None:
        self.spec = ClusterSpec(
            name="orders",
            limits=Limits(minimum, 64),
            policies=(NamedPolicy("batch", policy),),
            down=Behaviour(),
            metrics=policy.metrics,
            interval=seconds(INTERVAL),
            max_age=seconds(60),
        )
        self.state = ClusterState()
        self.desired = self.ready = desired
        self.second = 0
        self.coming = 0

    def see(self, metrics: dict[str, Value], *, hang: bool = False) -> Decision:
        """One observation; `hang`: workers neither start nor stop."""
        self.second += INTERVAL
        if not hang and self.second >= self.coming:
            self.ready = self.desired
        at = NOW + seconds(self.second)
        readings = {name: Reading(value, at) for name, value in metrics.items()}
        missing = {name: "no answer" for name in self.spec.metrics if name not in metrics}
        seen = Observation(at=at, desired=self.desired, ready=self.ready, metrics=readings, missing=missing)
        self.state, decision = step(self.spec, self.state, seen)
        if decision.desired != self.desired:
            self.coming = self.second + (10 if decision.desired > self.desired else 0)
            self.desired = decision.desired
        return decision

    def sizes(self, metrics: dict[str, Value], times: int) -> list[int]:
        return [self.see(metrics).desired for _ in range(times)]


def steps(sizes: Sequence[int]) -> list[int]:
    return [size for size, _ in itertools.groupby(sizes)]


POLICY = Batch(start_up=seconds(10), idle_time=seconds(20))


def test_a_wide_stage_is_requested_at_once_and_its_tail_is_removed() -> None:
    cluster = Cluster(POLICY)
    assert cluster.sizes(tasks(0, 0, 0.0), 6) == [0] * 6
    wide = [cluster.see(tasks(64, 0, 20.0)).desired, cluster.see(tasks(64, 0, 20.0)).desired]
    up = wide[0]
    assert up > 1
    assert wide == [up, up]
    while_it_runs = cluster.sizes(tasks(64 - up, up, 20.0), 6)
    assert steps(while_it_runs) == [up]
    tail = cluster.sizes(tasks(0, 2, 20.0), 5)
    assert tail[:4] == [up] * 4  # 20 s after the first of these, not before
    assert tail[4] == 2
    after = cluster.sizes(tasks(0, 0, 0.0), 8)
    assert steps(after) == [2, 0]
    assert cluster.see(tasks(1, 0, 20.0)).desired == 1


def test_a_metric_that_is_missing_never_lowers_the_size() -> None:
    cluster = Cluster(POLICY, desired=8)
    cluster.sizes(tasks(0, 8, 20.0), 4)
    assert steps(cluster.sizes({}, 20)) == [8]
    # nor does time without information count
    assert cluster.sizes(tasks(0, 1, 20.0), 5) == [8, 8, 8, 8, 1]
    cluster = Cluster(POLICY, desired=8)
    unknown = tasks(0, 0, 0.0)
    del unknown["shuffle_workers"]
    assert steps(cluster.sizes(unknown, 20)) == [8]


def test_a_daemon_that_just_started_does_not_lower_the_size() -> None:
    cluster = Cluster(POLICY, desired=8)
    assert cluster.sizes(tasks(0, 0, 0.0), 5) == [8, 8, 8, 8, 0]


def test_workers_with_shuffle_files_stay_until_the_files_are_read() -> None:
    cluster = Cluster(POLICY, desired=8)
    assert steps(cluster.sizes(tasks(0, 1, 20.0, shuffle=6.0), 12)) == [8, 6]
    # then at once down to the useful replicas, and to zero when none is useful
    assert steps(cluster.sizes(tasks(0, 0, 0.0), 12)) == [1, 0]


def test_the_minimum_is_kept_between_jobs() -> None:
    cluster = Cluster(POLICY, minimum=2, desired=8)
    assert steps(cluster.sizes(tasks(0, 0, 0.0), 12)) == [8, 2]


def test_a_rescale_in_flight_is_not_reverted() -> None:
    cluster = Cluster(POLICY, desired=2)
    cluster.sizes(tasks(0, 2, 20.0), 6)
    up = cluster.see(tasks(64, 2, 20.0)).desired
    assert up > 2
    # The stage ends before the workers are ready: they are waited for, then removed.
    waiting = [cluster.see(tasks(0, 1, 20.0), hang=True) for _ in range(8)]
    assert {decision.desired for decision in waiting} == {up}
    assert waiting[-1].recommendations[0].replicas == 1
    assert steps(cluster.sizes(tasks(0, 1, 20.0), 8))[-1] == 1


def test_a_deadline_gets_enough_workers_and_an_impossible_one_the_most_that_help() -> None:
    for deadline, words in ((60, "before the deadline"), (1, "cannot be met")):
        policy = Batch(waiting_price=0.0, deadline=seconds(deadline), start_up=seconds(10))
        cluster = Cluster(policy, desired=2)
        cluster.sizes(tasks(0, 2, 20.0, job_time=0.0), 4)
        decision = cluster.see(tasks(30, 2, 20.0, job_time=0.0))
        assert words in decision.recommendations[0].detail
        assert decision.desired == (16 if deadline == 60 else 32)
