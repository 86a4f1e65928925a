from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import Observation, Reading, Reason, View
from autoscaler_policies.rules.backlog_drain import BacklogDrain

Make = Callable[..., View]
Value = float | tuple[float, ...]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPARK = BacklogDrain(stops=False)
FLINK = BacklogDrain()


def load(lag: Value, arrivals: Value) -> dict[str, Value]:
    return {"lag": lag, "arrivals": arrivals}


class TestDemo:
    """Spark, 12 partitions, one slot per replica, 50/s per replica learned, at most 4 replicas."""

    @pytest.mark.parametrize("lag", range(0, 501, 20))
    @pytest.mark.parametrize("restart", [None, 5.0, 10.0, 20.0, 30.0])
    def test_the_surge_requests_three_at_once(self, view: Make, lag: int, restart: float | None) -> None:
        seen = view(load(float(lag), 105.0), current=1, maximum=4, table={1: 50.0}, partitions=12, learned_up=restart)
        answer = SPARK.evaluate(seen)
        assert (answer.replicas, answer.reason) == (3, Reason.ABOVE)

    @pytest.mark.parametrize("capacity", [47.0, 50.0, 53.0])
    @pytest.mark.parametrize("arrivals", [98.0, 105.0, 112.0])
    def test_noise_does_not_change_the_requested_size(self, view: Make, capacity: float, arrivals: float) -> None:
        seen = view(load(100.0, arrivals), current=1, maximum=4, table={1: capacity}, partitions=12)
        assert SPARK.evaluate(seen).replicas == 3

    @pytest.mark.parametrize("lag", [0.0, 500.0, 1500.0, 2600.0])
    @pytest.mark.parametrize("rescale", [False, True])
    def test_three_are_kept_until_the_backlog_is_processed(self, view: Make, lag: float, rescale: bool) -> None:
        seen = view(load(lag, 105.0), current=3, ready=1, maximum=4, table={1: 50.0}, partitions=12, rescale=rescale)
        assert SPARK.evaluate(seen).reason is Reason.STEADY

    @pytest.mark.parametrize("policy", [SPARK, FLINK])
    def test_after_the_surge_it_goes_down_to_one_in_one_step(self, view: Make, policy: BacklogDrain) -> None:
        seen = view(load(0.0, 20.0), current=3, maximum=4, table={1: 50.0, 3: 150.0}, partitions=12)
        answer = policy.evaluate(seen)
        assert (answer.replicas, answer.reason) == (1, Reason.BELOW)

    @pytest.mark.parametrize("lag", [0.0, 20.0, 200.0])
    def test_one_replica_suffices_after_the_surge(self, view: Make, lag: float) -> None:
        seen = view(load(lag, 20.0), current=1, maximum=4, table={1: 50.0}, partitions=12)
        assert SPARK.evaluate(seen).reason is Reason.STEADY


@pytest.mark.parametrize(
    ("policy", "lag", "arrivals", "current", "expected"),
    [
        # capacity 100/s per replica. Keeping up: up to 0.9 of the capacity
        (SPARK, 0, 180, 2, 2),
        (SPARK, 0, 181, 2, 3),
        # the present size is kept while it processes the backlog within 60 s: 6000 / (200 - 100)
        (SPARK, 6000, 100, 2, 2),
        (SPARK, 6001, 100, 2, 3),
        # 15 s of restart at the old size (200/s) leave 45 s: 8250 - 1500 = 6750 <= 45 x 200
        (SPARK, 8250, 100, 2, 3),
        (SPARK, 12000, 100, 2, 4),
        # a job that stops during a rescale piles up 100 x 15 = 1500 more, and 1500 + 7500 = 45 x 200
        (FLINK, 7500, 100, 2, 3),
        (FLINK, 7501, 100, 2, 4),
        # down: 0.7 of the smaller capacity, 210 of 300
        (SPARK, 0, 210, 4, 3),
        (SPARK, 0, 211, 4, 4),
        # not while the backlog needs longer than 10 s: 1900 / (400 - 210)
        (SPARK, 1900, 210, 4, 3),
        (SPARK, 1901, 210, 4, 4),
        # in one step, but not below the minimum
        (SPARK, 0, 10, 8, 1),
        (SPARK, 0, 0, 8, 1),
        # no size suffices: the maximum
        (SPARK, 1e9, 100, 2, 10),
        (SPARK, 0, 1e9, 2, 10),
        (SPARK, 1e308, 1e308, 2, 10),
        (FLINK, 1e308, 1e308, 2, 10),
        (SPARK, 1e9, 100, 10, 10),
        # a size above or below the limits is brought within them
        (SPARK, 0, 1150, 12, 10),
        (SPARK, 1e9, 1150, 12, 10),
        (SPARK, 0, 0, 0, 1),
    ],
)
def test_requests_the_smallest_sufficient_size(
    view: Make, *, policy: BacklogDrain, lag: float, arrivals: float, current: int, expected: int
) -> None:
    answer = policy.evaluate(view(load(float(lag), float(arrivals)), current=current, per_replica=100.0))
    assert answer.replicas == expected
    reason = Reason.ABOVE if expected > current else Reason.BELOW if expected < current else Reason.STEADY
    assert answer.reason is reason
    assert all(map(math.isfinite, answer.inputs.values()))


def test_never_pays_for_a_step_of_the_staircase_without_added_capacity(view: Make) -> None:
    # 12 partitions on 4 replicas: 3 waves; on 5: 3 waves too; on 6: 2
    policy = BacklogDrain(restart=timedelta(0))
    for arrivals, expected in ((170.0, 4), (181.0, 6), (269.0, 6), (271.0, 12)):
        seen = view(load(0.0, arrivals), current=3, maximum=20, per_replica=50.0, partitions=12)
        assert policy.evaluate(seen).replicas == expected


def test_partitions_come_from_the_configuration_when_the_engine_does_not_report_them(view: Make) -> None:
    seen = view(load(0.0, 181.0), current=3, maximum=20, per_replica=50.0, partitions=12, engine=False)
    assert SPARK.evaluate(seen).replicas == 6


def test_the_learned_restart_time_is_used_for_its_direction(view: Make) -> None:
    # stops: 100 x 40 = 4000 pile up, (300 - 100) x (120 - 40) process 16000, 100/s more are not needed
    up = view(load(13000.0, 100.0), current=2, per_replica=100.0, learned_up=40.0)
    assert FLINK.evaluate(up).replicas == 4
    assert FLINK.evaluate(up).inputs["restart"] == 40.0
    assert FLINK.evaluate(up).inputs["backlog_after_rescale"] == 17000.0
    down = view(load(0.0, 65.0), current=2, per_replica=100.0, learned_up=40.0)
    assert FLINK.evaluate(down).replicas == 1
    # 65 x 40 = 2600 pile up, and 35 x 80 process 2800; for 70/s it would be 2800 and 2400
    assert FLINK.evaluate(view(load(0.0, 65.0), current=2, per_replica=100.0, learned_down=40.0)).replicas == 1
    assert FLINK.evaluate(view(load(0.0, 70.0), current=2, per_replica=100.0, learned_down=40.0)).replicas == 2


def test_a_restart_longer_than_within_does_not_request_absurd_sizes(view: Make) -> None:
    # three restarts are allowed: 100 x 75 = 7500 pile up, and 150 s are left for them
    seen = view(load(0.0, 100.0), current=1, maximum=100, per_replica=100.0, learned_up=75.0)
    assert FLINK.evaluate(seen).replicas == 2


def test_the_size_of_a_rescale_in_flight_gets_twice_the_time(view: Make) -> None:
    for lag, waiting, otherwise in ((6001.0, 2, 3), (12000.0, 2, 4), (12001.0, 4, 4)):
        for rescale, expected in ((True, waiting), (False, otherwise)):
            seen = view(load(lag, 100.0), current=2, per_replica=100.0, rescale=rescale)
            assert SPARK.evaluate(seen).replicas == expected


def test_replicas_that_are_not_ready_do_not_reduce_the_backlog(view: Make) -> None:
    few = view(load(12500.0, 100.0), current=3, ready=1, per_replica=100.0)
    all_up = view(load(12500.0, 100.0), current=3, ready=3, per_replica=100.0)
    assert SPARK.evaluate(few).inputs["backlog_after_rescale"] == 12500.0
    assert SPARK.evaluate(all_up).inputs["backlog_after_rescale"] == 9500.0


def test_without_arrivals_and_backlog_nothing_is_needed(view: Make) -> None:
    assert SPARK.evaluate(view(load(0.0, 0.0), current=1, minimum=0, per_replica=100.0)).replicas == 0
    assert SPARK.evaluate(view(load(0.0, 0.0), current=0, minimum=0, per_replica=100.0)).replicas == 0
    assert SPARK.evaluate(view(load(1.0, 0.0), current=0, minimum=0, per_replica=100.0)).replicas == 1
    assert SPARK.evaluate(view(load(0.0, 1.0), current=0, minimum=0, per_replica=100.0)).replicas == 1


@pytest.mark.parametrize(
    ("metrics", "absent"),
    [
        ({"lag": 5.0}, "arrivals"),
        ({"arrivals": 5.0}, "lag"),
        ({}, "lag, arrivals"),
        ({"lag": -1.0, "arrivals": 5.0}, "lag"),  # no count of records
        ({"lag": 1.0, "arrivals": (2.0, 2.0)}, "arrivals"),  # the third replica has no reading
    ],
)
def test_abstains_without_lag_or_arrivals(view: Make, metrics: dict[str, Value], absent: str) -> None:
    answer = SPARK.evaluate(view(metrics, current=3, per_replica=100.0))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert answer.detail == f"no trusted reading of {absent}"


def test_values_per_replica_are_summed(view: Make) -> None:
    answer = SPARK.evaluate(view(load((1.0, 2.0), (90.0, 95.0)), current=2, per_replica=100.0))
    assert answer.inputs["lag"] == 3.0
    assert answer.inputs["arrivals"] == 185.0
    assert answer.replicas == 3
    assert SPARK.evaluate(view(load((1e308, 1e308), 1.0), current=2, per_replica=100.0)).replicas == 10


@pytest.mark.parametrize(
    ("lag", "arrivals", "size"),
    [(0.0, 5.0, 1), (5.0, 0.0, 1), (0.0, 0.0, None)],
)
def test_with_unknown_capacity_the_size_does_not_stay_at_zero(
    view: Make, lag: float, arrivals: float, size: int | None
) -> None:
    metrics = {"lag": lag, "arrivals": arrivals, "throughput": 0.0}
    answer = BacklogDrain().evaluate(view(metrics, current=0, minimum=0))
    assert answer.replicas == size


@pytest.mark.parametrize(
    ("lag", "throughput", "rescale", "expected"),
    [
        (6001.0, 100.0, False, 4),  # more than 60 s behind and not gaining
        (6000.0, 100.0, False, None),
        (9999.0, 101.0, False, None),  # gaining
        (6001.0, 100.0, True, None),  # a scale-up is in flight
        (6001.0, 0.0, False, None),  # the job is stopped: more replicas would not help
        (6001.0, None, False, None),
    ],
)
def test_with_unknown_capacity_it_requests_one_more_only_when_falling_behind(
    view: Make, *, lag: float, throughput: float | None, rescale: bool, expected: int | None
) -> None:
    metrics = load(lag, 100.0)
    if throughput is not None:
        metrics["throughput"] = throughput
    answer = SPARK.evaluate(view(metrics, current=3, rescale=rescale))
    assert answer.replicas == expected
    assert answer.reason is (Reason.LEARNING if expected is None else Reason.ABOVE)
    assert "capacity not known yet" in answer.detail


def test_the_detail_explains_the_calculation(view: Make) -> None:
    def detail(lag: float, arrivals: float, current: int) -> str:
        return SPARK.evaluate(view(load(lag, arrivals), current=current, maximum=4, per_replica=50.0)).detail

    assert detail(2000, 120, 3) == (
        "lag 2,000 records at 120/s arriving; 4 replicas (200/s) can process the backlog in 34.4 s, "
        "of which the restart takes 15 s; 3 (150/s) are too few"
    )
    assert (
        detail(1500, 120, 3)
        == "lag 1,500 records at 120/s arriving; 3 replicas (150/s) can process the backlog in 50 s"
    )
    assert detail(0, 120, 3) == "lag 0 records at 120/s arriving; 3 replicas (150/s) are enough"
    assert detail(0, 20, 3) == "lag 0 records at 20/s arriving; 1 replica (50/s) is enough; there are 3"
    assert detail(9e5, 120, 3) == (
        "lag 900,000 records at 120/s arriving; 4 replicas (200/s), the maximum, "
        "cannot keep up and process the backlog in 60 s"
    )
    assert detail(0, 46, 1) == (
        "lag 0 records at 46/s arriving; 2 replicas (100/s) can process the backlog in 15 s, "
        "of which the restart takes 15 s; 1 (50/s) is too few"
    )


CONFIRMING = BacklogDrain(stops=False, stable_time=timedelta(seconds=4))


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        # age of the reading -> arrivals, oldest first; 20/s is the base load, 105/s the surge
        ({10: 20.0, 5: 20.0, 0: 105.0}, 1),  # it is not known yet whether 105 is the full rate
        ({10: 20.0, 5: 62.0, 0: 105.0}, 1),  # 62 was measured across the rise
        ({10: 62.0, 5: 105.0, 0: 105.0}, 3),
        ({10: 62.0, 5: 95.0, 0: 105.0}, 3),  # noise
        ({10: 62.0, 5: 115.0, 0: 105.0}, 3),
        ({10: 62.0, 5: (55.0, 50.0), 0: 105.0}, 3),
        ({10: 62.0, 5: (55.0, 5.0), 0: 105.0}, 1),
        ({10: 20.0, 5: math.nan, 0: 105.0}, 1),  # not a number, so the previous one counts
        ({10: 105.0, 5: math.nan, 0: 105.0}, 3),
        ({10: 20.0, 2: 105.0, 0: 105.0}, 1),  # for less than 4 s
        ({4: 105.0, 2: 105.0, 0: 105.0}, 3),
        ({0: 105.0}, 3),  # nothing to compare it with
    ],
)
def test_waits_until_the_arrivals_are_confirmed(view: Make, arrivals: dict[int, Value], expected: int) -> None:
    past = tuple(
        Observation(
            at=NOW - timedelta(seconds=age),
            desired=1,
            ready=1,
            metrics={"arrivals": Reading(value, NOW - timedelta(seconds=age))},
        )
        for age, value in arrivals.items()
    )
    seen = view(
        load(0.0, arrivals[0]), current=1, per_replica=50.0, past=(*past, Observation(at=NOW, desired=1, ready=1))
    )
    answer = CONFIRMING.evaluate(seen)
    assert answer.replicas == expected
    assert answer.detail.endswith("(stable_time)") == (expected == 1)


def test_a_reading_shown_twice_does_not_confirm_itself(view: Make) -> None:
    ages = ((15, 20.0, 15), (5, 62.0, 0), (0, 62.0, 0))
    past = tuple(
        Observation(
            at=NOW - timedelta(seconds=seen),
            desired=1,
            ready=1,
            metrics={"arrivals": Reading(value, NOW - timedelta(seconds=age))},
        )
        for seen, value, age in ages
    )
    answer = CONFIRMING.evaluate(view(load(0.0, 62.0), current=1, per_replica=50.0, past=past))
    assert (answer.replicas, answer.reason) == (1, Reason.STEADY)
    assert answer.detail == (
        "lag 0 records at 62/s arriving; 1 replica (50/s); arrivals were 20/s just before: "
        "waiting until they are stable (stable_time)"
    )


def test_a_scale_down_waits_for_confirmation_too_but_a_dangerous_backlog_does_not_wait(view: Make) -> None:
    before = NOW - timedelta(seconds=5)
    past = (Observation(at=before, desired=3, ready=3, metrics={"arrivals": Reading(105.0, before)}),)
    assert CONFIRMING.evaluate(view(load(0.0, 20.0), current=3, per_replica=50.0, past=past)).replicas == 3
    assert CONFIRMING.evaluate(view(load(9000.0, 140.0), current=3, per_replica=50.0, past=past)).replicas == 3
    assert CONFIRMING.evaluate(view(load(9001.0, 140.0), current=3, per_replica=50.0, past=past)).replicas == 7


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ({10: 20.0, 5: 20.0, 2: 20.0, 0: 20.0}, 1),
        ({5: 20.0, 2: None, 0: 20.0}, 3),  # it may have been another rate
        ({0: 20.0}, 3),
    ],
)
def test_missing_arrivals_are_not_stable_enough_for_a_scale_down(
    view: Make, arrivals: dict[int, Value | None], expected: int
) -> None:
    past = tuple(
        Observation(
            at=NOW - timedelta(seconds=age),
            desired=3,
            ready=3,
            metrics={} if value is None else {"arrivals": Reading(value, NOW - timedelta(seconds=age))},
        )
        for age, value in arrivals.items()
    )
    answer = CONFIRMING.evaluate(view(load(0.0, 20.0), current=3, per_replica=50.0, past=past))
    assert answer.replicas == expected
    assert ("were not read at every observation" in answer.detail) == (expected == 3)


def test_the_lookback_covers_the_readings_it_confirms_with() -> None:
    assert SPARK.lookback == timedelta(0)
    assert CONFIRMING.lookback == timedelta(minutes=5, seconds=4)


def test_lists_the_metrics_it_requires() -> None:
    assert BacklogDrain(lag="kafka").metrics == ("kafka", "arrivals")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"drain_time": timedelta(0)}, "drain_time: is 0s, expected above 0s"),
        ({"restart": timedelta(seconds=-1)}, "restart: is -1s, expected 0s or more"),
        ({"down_backlog_time": timedelta(seconds=-1)}, "down_backlog_time: is -1s, expected 0s or more"),
        ({"stable_time": timedelta(seconds=-1)}, "stable_time: is -1s, expected 0s or more"),
        ({"utilization": 0.0}, "utilization: is 0.0, expected above 0 to 1"),
        ({"utilization": 1.1}, "utilization: is 1.1, expected"),
        ({"utilization": math.nan}, "utilization: is nan, expected"),
        ({"down_utilization": 0.9}, "down_utilization: is 0.9, expected above 0 and below utilization"),
        ({"down_utilization": math.nan}, "down_utilization: is nan"),
        ({"lag": ""}, "lag: is empty"),
        ({"throughput": ""}, "throughput: is empty"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BacklogDrain(**parameters)


def simulate(view: Make, policy: BacklogDrain, mean: float, seed: int, stall: float) -> list[int]:
    """Sizes over two hours at constant load, a decision every 5 s, noise of 10 % on arrivals and 3 % on capacity.

    A short form of the guards: no decision during a restart; a scale-down only when the job has caught up and every
    proposal of the last five minutes was lower.
    """
    chance = random.Random(seed)  # noqa: S311 - noise that is the same every time, not a secret
    size, before, lag, stalled, catching_up = 1, 1, 0.0, 0.0, False
    learned: float | None = None
    proposals: deque[int] = deque(maxlen=60)
    sizes = []
    for _ in range(1440):
        working = size
        if stalled > 0:
            working = 0 if policy.stops else min(before, size)
            stalled -= 5
        lag = max(0.0, lag + (mean - 50 * working) * 5)
        catching_up = catching_up and (stalled > 0 or lag > 10 * mean)
        seen = view(
            load(lag, mean * chance.uniform(0.9, 1.1)),
            current=size,
            maximum=60,
            table={1: 50 * chance.uniform(0.97, 1.03)},
            rescale=catching_up,
            learned_up=learned,
            learned_down=learned,
        )
        wanted = policy.evaluate(seen).replicas
        assert wanted is not None
        proposals.append(wanted)
        least = wanted if wanted > size else max(proposals)
        if stalled <= 0 and (least > size or (least < size and not catching_up and len(proposals) == 60)):
            before, size, stalled, catching_up = size, least, stall, True
            learned = stall
        sizes.append(size)
    return sizes


@pytest.mark.parametrize("policy", [SPARK, FLINK], ids=["spark", "flink"])
@pytest.mark.parametrize("mean", [44.0, 105.0, 135.0, 900.0])
@pytest.mark.parametrize("stall", [5.0, 30.0, 75.0])
def test_does_not_oscillate_at_constant_load_with_noise(
    view: Make, *, policy: BacklogDrain, mean: float, stall: float
) -> None:
    for seed in range(2):
        sizes = simulate(view, policy, mean, seed, stall)
        changes = [after - size for size, after in itertools.pairwise([1, *sizes]) if after != size]
        ups = [change for change in changes if change > 0]
        assert changes == ups + changes[len(ups) :], "up again after a down"
        assert len(ups) <= 3
        assert len(changes) <= 4
        assert len(set(sizes[720:])) == 1, "still moving in the second hour"
        assert sizes[-1] * 50 > mean


amounts = st.floats(0, 1e7) | st.sampled_from([0.0, 1e-300, 1e308])
tables = st.dictionaries(st.integers(1, 30), st.floats(1e-3, 1e6), max_size=4)
policies = st.builds(
    BacklogDrain,
    drain_time=st.integers(1, 600).map(lambda s: timedelta(seconds=s)),
    restart=st.integers(0, 600).map(lambda s: timedelta(seconds=s)),
    down_backlog_time=st.integers(0, 100).map(lambda s: timedelta(seconds=s)),
    stable_time=st.integers(0, 100).map(lambda s: timedelta(seconds=s)),
    stops=st.booleans(),
    utilization=st.floats(0.6, 1.0),
    down_utilization=st.floats(0.1, 0.5),
)
situations = st.fixed_dictionaries(
    {
        "current": st.integers(0, 35),
        "ready": st.integers(0, 35),
        "minimum": st.integers(0, 5),
        "maximum": st.integers(5, 1000),
        "table": tables,
        "partitions": st.none() | st.integers(1, 50),
        "rescale": st.booleans(),
        "learned_up": st.none() | st.floats(0, 1000),
        "learned_down": st.none() | st.floats(0, 1000),
    }
)


@settings(deadline=None)  # a busy machine is not a failure
@given(policy=policies, situation=situations, lag=amounts, arrivals=amounts, lag2=amounts, arrivals2=amounts)
def test_more_arrivals_or_more_lag_never_give_a_smaller_size(
    view: Make,
    *,
    policy: BacklogDrain,
    situation: dict[str, Any],
    lag: float,
    arrivals: float,
    lag2: float,
    arrivals2: float,
) -> None:
    less = policy.evaluate(view(load(min(lag, lag2), min(arrivals, arrivals2)), **situation))
    more = policy.evaluate(view(load(max(lag, lag2), max(arrivals, arrivals2)), **situation))
    for answer in (less, more):
        assert all(map(math.isfinite, answer.inputs.values()))
        assert "nan" not in answer.detail
        if answer.replicas is not None:
            assert situation["minimum"] <= answer.replicas <= situation["maximum"]
    if less.replicas is not None and more.replicas is not None:
        assert less.replicas <= more.replicas


@settings(deadline=None)  # a busy machine is not a failure
@given(
    policy=policies,
    situation=situations,
    metrics=st.dictionaries(
        st.sampled_from(["lag", "arrivals", "throughput"]),
        st.floats(allow_nan=False, allow_infinity=False)
        | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5).map(tuple),
    ),
)
def test_is_total(view: Make, policy: BacklogDrain, situation: dict[str, Any], metrics: dict[str, Value]) -> None:
    answer = policy.evaluate(view(metrics, **situation))
    assert all(map(math.isfinite, answer.inputs.values()))
    if answer.replicas is None:
        assert answer.reason in {Reason.MISSING, Reason.LEARNING}
    else:
        assert {"lag", "arrivals"} <= set(metrics)
        assert situation["minimum"] <= answer.replicas <= situation["maximum"]
