from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscaler.core.model import (
    Behaviour,
    Cause,
    ClusterSpec,
    EngineStatus,
    JobState,
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
from autoscaler.simulation.loads import Load, staircase
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import STEP, PlantSpec
from autoscaler.simulation.scoring import needed
from autoscaler.testing import contracts
from autoscaler_policies.research.daedalus import SIZES, Daedalus
from autoscaler_policies.research.daedalus_model import REMEMBERED, Curve, Line, Regression, fit, recovery_time, wape

Make = Callable[..., View]
POLICY = Daedalus()
CALM = {"rescaled_at": 0.0}
"""The last rescale was long ago."""


def regression(samples: Iterable[tuple[float, float]]) -> Regression:
    model = Regression()
    for share, rate in samples:
        model = model.seen(share, rate)
    return model


# capacity


def test_the_regression_finds_the_line_through_the_samples() -> None:
    # an idle process has 10 % CPU: at 100 % it processes 900/s; the ratio at 40 % would give 750/s
    model = regression([(0.1 + rate / 1000, rate) for rate in (100.0, 300.0, 500.0)])
    assert model.at(1.0) == pytest.approx(900.0)
    assert (model.count, model.x, model.y) == pytest.approx((3, 0.4, 300.0))
    # 0.2² x 2 / 3 and 0.2 x 200 x 2 / 3
    assert (model.variance, model.covariance) == pytest.approx((0.08 / 3, 80 / 3))


def test_without_variation_the_ratio_is_used_instead_of_a_fit_to_noise() -> None:
    assert regression([(0.5, 100.0)]).at(1.0) == 200.0
    # a standard deviation of 0.01, from which the slope would make 350/s
    assert regression([(0.49, 95.0), (0.51, 105.0)]).at(1.0) == pytest.approx(200.0)
    # throughput that falls as the share rises gives no capacity
    assert regression([(0.2, 105.0), (0.8, 95.0)]).at(1.0) == pytest.approx(200.0)
    assert math.isnan(regression([(0.0, 100.0)]).at(1.0))


def test_old_samples_lose_weight() -> None:
    model = regression([(0.5, 100.0)] * 1000)
    assert model.count == REMEMBERED
    assert regression([(0.5, 100.0)] * 1000 + [(0.5, 50.0)] * 1000).y == pytest.approx(50.0, abs=1.0)


def _measured(most: float) -> st.SearchStrategy[float]:
    """Measurable numbers: some are so small that their products are 0."""
    return st.one_of(st.just(0.0), st.floats(1e-100, most))


@given(
    samples=st.lists(st.tuples(_measured(1), _measured(1e6)), min_size=1, max_size=30),
    power=st.integers(-20, 20),
)
def test_capacity_scales_with_the_unit_of_records(samples: list[tuple[float, float]], power: int) -> None:
    unit = 2.0**power
    one, other = regression(samples), regression([(share, rate * unit) for share, rate in samples])
    assert other.at(1.0) == pytest.approx(one.at(1.0) * unit, rel=1e-9, nan_ok=True)


# forecast


def test_the_forecast_is_the_line_through_the_arrivals() -> None:
    line = fit([(-120.0, 80.0), (-60.0, 90.0), (0.0, 100.0)], 900.0)
    assert (line.level, line.slope) == pytest.approx((100.0, 1 / 6))
    assert line.most(900.0) == pytest.approx(250.0)
    assert line.most(1e9) == pytest.approx(250.0)  # no further than the horizon
    assert fit([(0.0, 70.0)], 900.0) == Line(70.0, 0.0, 900.0)


def test_a_forecast_ends_at_zero() -> None:
    falling = Line(100.0, -1.0, 900.0)
    assert [falling.at(time) for time in (0.0, 40.0, 100.0, 500.0)] == [100.0, 60.0, 0.0, 0.0]
    assert falling.most(900.0) == 100.0


@pytest.mark.parametrize(
    ("level", "slope", "until", "expected"),
    [
        (100.0, 0.0, 30.0, 3000.0),
        (100.0, 1.0, 30.0, 3450.0),  # 3000 + 30² / 2
        (100.0, -1.0, 30.0, 2550.0),
        (100.0, -1.0, 200.0, 5000.0),  # it ends after 100 s
        (-10.0, 1.0, 30.0, 200.0),  # it begins after 10 s
        (-10.0, 1.0, 5.0, 0.0),
        (-10.0, -1.0, 30.0, 0.0),
        (-10.0, 0.0, 30.0, 0.0),
        (0.0, -1.0, 30.0, 0.0),
    ],
)
def test_counts_the_arrivals_until_a_time(level: float, slope: float, until: float, expected: float) -> None:
    assert Line(level, slope, 900.0).total(until) == pytest.approx(expected)


def test_the_error_of_a_forecast_is_weighted_by_the_arrivals() -> None:
    line = Line(100.0, 0.0, 900.0)
    # |120 - 100| + |80 - 100| of 200
    assert wape(line, [(15.0, 120.0), (30.0, 80.0)]) == pytest.approx(0.2)
    assert wape(line, []) == math.inf
    assert wape(line, [(15.0, 0.0)]) == math.inf


# recovery


def test_recovery_time_is_the_downtime_plus_the_time_to_process_the_backlog() -> None:
    # 100/s arrive; 10 s of them are replayed, 200 wait, and 30 s of downtime add 3,000: 4,200 records. With 150/s the
    # backlog shrinks at 50/s, in 84 s after the 30.
    assert recovery_time(Line(100.0, 0.0, 900.0), 150.0, 10 * 100.0 + 200.0, 30.0) == pytest.approx(114.0)


def test_recovery_time_uses_rising_and_falling_arrivals() -> None:
    # rising by 0.1/s each second: 3,045 during the downtime; the spare capacity falls by 0.1/s each second from 47/s
    slow = recovery_time(Line(100.0, 0.1, 900.0), 150.0, 1200.0, 30.0)
    t = slow - 30.0
    assert 47.0 * t - 0.1 * t * t / 2 == pytest.approx(4245.0)
    # falling, and zero from 100 s on: 2,550 of the downtime and 1,200, less 80 t + t²/2
    quick = recovery_time(Line(100.0, -1.0, 900.0), 150.0, 1200.0, 30.0)
    t = quick - 30.0
    assert 80.0 * t + t * t / 2 == pytest.approx(3750.0)
    # past the point where arrivals end: 9,000 less (80 + 150) / 2 x 70 = 950 at 150/s
    late = recovery_time(Line(100.0, -1.0, 900.0), 150.0, 9000.0 - 2550.0, 30.0)
    assert late == pytest.approx(100.0 + 950.0 / 150.0)


def test_a_recovery_beyond_the_forecast_is_infinite() -> None:
    flat = Line(100.0, 0.0, 900.0)
    assert recovery_time(flat, 100.0, 10.0, 30.0) == math.inf
    assert recovery_time(flat, 101.0, 1000.0, 30.0) == math.inf
    assert recovery_time(flat, 1e6, 0.0, 900.0) == math.inf
    # arrivals exceed the capacity until the load has fallen to 150/s after 50 s; then the spare capacity grows by 1/s
    # each second: 200 x 30 - 30² / 2 = 5,550 records of the downtime are t² / 2
    assert recovery_time(Line(200.0, -1.0, 900.0), 150.0, 0.0, 30.0) == pytest.approx(50.0 + math.sqrt(2 * 5550.0))


def test_a_forecast_by_the_minute_is_a_step_function() -> None:
    curve = Curve((100.0, 40.0, 160.0), 900.0)
    assert [curve.at(time) for time in (0.0, 59.0, 60.0, 130.0, 5000.0)] == [100.0, 100.0, 40.0, 160.0, 160.0]
    assert [curve.most(until) for until in (0.0, 60.0, 120.0, 121.0, 1e9)] == [100.0, 100.0, 100.0, 160.0, 160.0]
    assert curve.total(30.0) == 3000.0
    assert curve.total(150.0) == 6000.0 + 2400.0 + 30 * 160.0
    # 3,000 of the downtime, less 30 s at 50/s, are 1,500; from then on 110/s are spare
    assert recovery_time(curve, 150.0, 0.0, 30.0) == pytest.approx(60.0 + 1500.0 / 110.0)
    # another 9,000 would need more than the spare capacity of the second minute, and in the third there is none
    assert recovery_time(curve, 150.0, 9000.0, 30.0) == math.inf
    assert Curve((100.0,), 90.0).most(1e9) == 100.0


@given(rate=st.floats(0, 1e6), capacity=st.floats(0, 1e6), waiting=st.floats(0, 1e9), downtime=st.floats(0, 600))
def test_a_constant_curve_recovers_like_a_constant_line(
    *, rate: float, capacity: float, waiting: float, downtime: float
) -> None:
    curve, line = Curve((rate,) * 15, 900.0), Line(rate, 0.0, 900.0)
    expected = recovery_time(line, capacity, waiting, downtime)
    assert curve.total(downtime) == pytest.approx(line.total(downtime), rel=1e-9)
    if abs(expected - 900.0) > 1e-3:
        assert recovery_time(curve, capacity, waiting, downtime) == pytest.approx(expected, rel=1e-9)


def test_with_nothing_to_recover_the_recovery_time_is_the_downtime() -> None:
    assert recovery_time(Line(0.0, 0.0, 900.0), 100.0, 0.0, 30.0) == 30.0
    assert recovery_time(Line(0.0, 0.0, 900.0), 0.0, 0.0, 30.0) == 30.0


@given(
    level=st.floats(0, 1e6),
    slope=st.floats(-1e3, 1e3),
    capacity=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
    waiting=st.floats(0, 1e9),
    downtime=st.floats(0, 600),
)
def test_more_capacity_never_recovers_later(
    *, level: float, slope: float, capacity: float, more: float, waiting: float, downtime: float
) -> None:
    line = Line(level, slope, 900.0)
    slow, quick = (recovery_time(line, able, waiting, downtime) for able in (capacity, capacity + more))
    assert quick <= slow * (1 + 1e-9) + 1e-6
    assert slow >= downtime


@given(level=st.floats(0, 1e4), slope=st.floats(-10, 10), capacity=st.floats(0, 1e4), waiting=st.floats(0, 1e6))
def test_at_recovery_the_processed_spare_capacity_equals_the_backlog(
    *, level: float, slope: float, capacity: float, waiting: float
) -> None:
    line = Line(level, slope, 900.0)
    found = recovery_time(line, capacity, waiting, 30.0)
    piled = waiting + line.total(30.0)

    def spare(until: float) -> float:
        step = (until - 30.0) / 2000
        times = (30.0 + step * (index + 0.5) for index in range(2000))
        return sum(max(0.0, capacity - line.at(time)) for time in times) * step

    if found == math.inf:
        assert spare(900.0) <= piled * 1.001 + 1.0
    else:
        assert spare(found) == pytest.approx(piled, rel=1e-3, abs=1.0)


# the policy


def load(view: Make, arrivals: float, **more: Any) -> View:
    """A job that keeps up: 50/s per replica when saturated, by default."""
    current = more.get("current", 1)
    able = 50.0 * max(current, 1)
    metrics = {
        "arrivals": arrivals,
        "throughput": more.pop("throughput", min(arrivals, able)),
        "lag": more.pop("lag", 0.0),
        "utilization": more.pop("utilization", min(arrivals / able, 1.0)),
    }
    return view(metrics, **more)


def with_past(seen: View, rates: Sequence[float], step: float = 15.0) -> View:
    """The view after arrivals at these rates, the present one last."""
    past = tuple(
        Observation(
            at=seen.now - timedelta(seconds=step * back),
            desired=seen.current,
            ready=seen.ready,
            metrics={"arrivals": Reading(rate, seen.now - timedelta(seconds=step * back))},
        )
        for back, rate in zip(range(len(rates) - 1, 0, -1), rates, strict=False)
    )
    return replace(seen, past=(*past, *seen.past))


def decided(policy: Daedalus, seen: View, known: Mapping[str, float] = CALM) -> View:
    """The view with the learned memory of the policy, as a step shows it."""
    return replace(seen, memory=policy.learn(replace(seen, memory=known)))


def ask(policy: Daedalus, seen: View, known: Mapping[str, float] = CALM) -> Recommendation:
    return policy.evaluate(decided(policy, seen, known))


def later(seen: View, seconds: float, **more: Any) -> View:
    now = seen.now + timedelta(seconds=seconds)
    past = (*seen.past[:-1], replace(seen.past[-1], at=now))
    return replace(seen, now=now, past=past, **more)


@pytest.mark.parametrize(
    ("arrivals", "current", "expected", "reason"),
    [
        # 50/s each. 190/s: four could process it (200/s) but not recover; five recover in 190 x 40 / 60 + 30 = 157 s
        (190.0, 2, 5, Reason.ABOVE),
        # a scale-down takes 15 s: 190 x 25 s at 10/s are 475 s, in time
        (190.0, 5, 4, Reason.BELOW),
        (100.0, 3, 3, Reason.STEADY),
        # 40 s of 160/s are 6,400 records, at 200 - 160 = 40/s 160 s, together 190 s
        (160.0, 4, 4, Reason.STEADY),
        (60.0, 6, 2, Reason.BELOW),
        (1.0, 6, 1, Reason.BELOW),
        (0.0, 6, None, None),
        (5000.0, 6, 10, Reason.ABOVE),
    ],
)
def test_requests_the_smallest_size_that_recovers_in_time(
    view: Make, *, arrivals: float, current: int, expected: int | None, reason: Reason | None
) -> None:
    answer = ask(POLICY, load(view, arrivals, current=current))
    assert answer.replicas == expected
    if reason is not None:
        assert answer.reason is reason


def test_the_detail_explains_the_calculation(view: Make) -> None:
    answer = ask(POLICY, load(view, 190.0, current=2))
    # 190 x 10 s of the checkpoint and 190 x 30 s of downtime, at 250 - 190 = 60/s, after 30 s
    assert answer.inputs["recovery"] == pytest.approx(30 + 7600 / 60)
    assert answer.inputs["capacity"] == pytest.approx(250.0)
    assert answer.detail == "190/s arriving, up to 190/s forecast; 5 replicas (250/s) recover in 157 s"
    most = ask(POLICY, load(view, 5000.0, current=6))
    assert most.detail == "5,000/s arriving, up to 5,000/s forecast; 10 replicas (500/s): no size does better"


def test_a_scale_down_uses_its_shorter_downtime(view: Make) -> None:
    # one replica: 45 x (10 + 15) records at 5/s, 225 s after 15
    assert ask(POLICY, load(view, 45.0, current=4)).inputs["recovery"] == pytest.approx(240.0)
    assert ask(replace(POLICY, downtime_down=timedelta(seconds=60)), load(view, 45.0, current=4)).replicas == 2


def test_a_new_size_must_suffice_for_the_forecast(view: Make) -> None:
    # 60/s and 5/s more each minute: 135/s in 15 minutes. The forecast counts once it has been right for an interval
    rates = [60.0 + (second - 900) / 12 for second in range(0, 901, 15)]

    def asked(current: int) -> Recommendation:
        seen = with_past(load(view, 60.0, current=current), rates)
        return ask(POLICY, seen, {**CALM, "line_at": seen.now.timestamp() - 60, "level": 55.0, "slope": 1 / 12})

    answer = asked(1)
    assert answer.inputs["forecast"] == pytest.approx(135.0)
    assert answer.inputs["wape"] == pytest.approx(0.0, abs=1e-9)
    # two could process the arrivals of 8 minutes
    assert answer.replicas == 3
    # but a present size of two stays until it does not suffice for the duration of a recovery
    assert asked(2).replicas == 2


def test_after_a_wrong_forecast_the_last_interval_counts_instead(view: Make) -> None:
    seen = with_past(load(view, 80.0, current=2), [20.0] * 56 + [80.0] * 5)
    line = {"line_at": seen.now.timestamp() - 60, "slope": 0.0}
    right = decided(POLICY, seen, {**CALM, **line, "level": 70.0}).memory
    assert right["wape"] == pytest.approx(0.125)  # 4 x |80 - 70| of 320
    assert right["most"] == pytest.approx(64.9, abs=0.1)  # the end of the line through 15 minutes
    wrong = decided(POLICY, seen, {**CALM, **line, "level": 20.0}).memory
    assert wrong["wape"] == pytest.approx(0.75)
    assert wrong["most"] == pytest.approx(80.0)  # it has been flat for a minute
    # an error of a quarter is too large
    assert decided(POLICY, seen, {**CALM, **line, "level": 60.0}).memory["most"] == pytest.approx(80.0)
    # readings known when it was made do not count against it
    jump = with_past(load(view, 80.0, current=2), [20.0] * 57 + [80.0] * 4)
    assert decided(POLICY, jump, {**CALM, **line, "level": 20.0}).memory["wape"] == pytest.approx(0.75)
    # nor does a forecast that was not observed yet
    assert decided(POLICY, seen).memory["wape"] == 1e6


def test_a_size_must_suffice_for_the_present_arrivals_whatever_the_forecast(view: Make) -> None:
    # 105/s after 15 minutes at 90/s: 100/s would recover in time from a forecast of 92/s
    seen = with_past(load(view, 105.0, current=3), [90.0] * 60 + [105.0])
    line = {"line_at": seen.now.timestamp() - 60, "level": 90.0, "slope": 0.0}
    answer = ask(POLICY, seen, {**CALM, **line})
    assert answer.inputs["forecast"] == pytest.approx(92.0, abs=0.5)
    assert answer.replicas == 3


def test_a_size_must_suffice_for_the_forecast_until_it_has_recovered(view: Make) -> None:
    # falling fast, from 114/s by the forecast: two replicas process 100/s and would have recovered soon
    seen = with_past(load(view, 90.0, current=2), [150.0] * 4 + [90.0])
    answer = ask(POLICY, seen)
    assert answer.inputs["forecast"] == pytest.approx(114.0)
    assert answer.replicas == 3


def test_an_external_forecast_replaces_the_line(view: Make) -> None:
    forecasting = replace(POLICY, forecast="forecast")

    def asked(current: int, *forecast: float) -> Recommendation:
        seen = load(view, 60.0, current=current)
        metrics = {**seen.metrics, "forecast": Reading(forecast, seen.now)}
        return ask(forecasting, replace(seen, metrics=metrics))

    flat = [60.0] * 5
    assert asked(2, *flat).replicas == 2
    # 135/s in five minutes, which the past does not show
    answer = asked(1, *flat, 135.0)
    assert (answer.replicas, answer.inputs["forecast"], answer.inputs["wape"]) == (3, 135.0, 0.0)
    assert asked(2, 135.0).replicas == 3
    # an invalid forecast is ignored
    assert asked(2, -1.0, 135.0).replicas == 2
    assert asked(2, 1.7e308, 1.7e308).replicas == 10
    assert ask(forecasting, load(view, 60.0, current=2)) == ask(POLICY, load(view, 60.0, current=2))


def test_invalid_past_readings_are_skipped(view: Make) -> None:
    # a gap, NaN, a negative rate and numbers per replica, all within the last minute
    now = load(view, 80.0, current=2)
    values: list[float | tuple[float, ...]] = [math.nan, -1.0, math.inf, (30.0, 50.0)]
    times = [now.now - timedelta(seconds=15 * back) for back in (4, 3, 2, 1)]
    seen = [
        Observation(at=at, desired=2, ready=2, metrics={"arrivals": Reading(value, at)})
        for value, at in zip(values, times, strict=True)
    ]
    seen.append(Observation(at=now.now - timedelta(seconds=5), desired=2, ready=2))
    seen.insert(
        0, Observation(at=now.now - timedelta(hours=1), desired=2, ready=2, metrics={"arrivals": Reading(1e9, now.now)})
    )
    line = {"line_at": now.now.timestamp() - 60, "level": 80.0, "slope": 0.0}
    for known in (CALM, CALM | line):  # the last interval, and all of the trend
        answer = ask(POLICY, replace(now, past=(*seen, *now.past)), known)
        assert answer.inputs["forecast"] == pytest.approx(80.0)


# capacity of the sizes


def test_a_seen_size_keeps_its_capacity_and_others_are_proportional(view: Make) -> None:
    memory = {**CALM, "capacity_2": 80.0, "each": 1.0}
    # 3 replicas at 60 %: 150/s when saturated, 50/s each; two were observed to process only 80/s
    seen = decided(POLICY, load(view, 90.0, current=3), memory)
    assert seen.memory["capacity_3"] == pytest.approx(150.0)
    assert seen.memory["each"] == pytest.approx(50.0)
    assert POLICY.evaluate(seen).replicas == 3
    assert ask(POLICY, load(view, 90.0, current=3)).replicas == 2
    assert ask(POLICY, load(view, 160.0, current=3), memory).inputs["capacity"] == pytest.approx(200.0)


def test_the_capacity_of_a_size_moves_half_way_to_the_new_estimate(view: Make) -> None:
    seen = decided(POLICY, load(view, 90.0, current=3), {**CALM, "capacity_3": 100.0})
    assert seen.memory["capacity_3"] == pytest.approx(125.0)


def test_the_hottest_replica_limits_the_capacity_of_all(view: Make) -> None:
    # 100/s by two at 40 % and 60 %: when the second is at 100 %, the first is at 80 %: 100 / 0.5 x 0.9
    skewed = load(view, 100.0, current=2, throughput=100.0, utilization=(0.4, 0.6))
    assert decided(POLICY, skewed).memory["capacity_2"] == pytest.approx(180.0)
    # throughput per replica: both samples are used
    skewed = load(view, 100.0, current=2, throughput=(30.0, 70.0), utilization=(0.4, 0.6))
    memory = decided(POLICY, skewed).memory
    assert (memory["samples_2"], memory["busy_2"], memory["rate_2"]) == pytest.approx((2, 0.5, 50.0))
    # a slope of 40 / 0.2 from (0.5, 50) to 0.9
    assert memory["capacity_2"] == pytest.approx(2 * (50.0 + 200.0 * 0.4))


def engine(seen: View, job: JobState = JobState.RUNNING, ago: float | None = None) -> View:
    since = None if ago is None else seen.now - timedelta(seconds=ago)
    return replace(seen, engine=EngineStatus(job=job, running_since=since))


def test_a_transient_is_not_used_to_learn_capacity(view: Make) -> None:
    seen = load(view, 90.0, current=3)
    rescale = Rescale(before=2, to=3, at=seen.now, cause=Cause.LOSS, phase=Phase.ABSORBED, since=seen.now)
    warm = seen.now - timedelta(seconds=119)
    for transient in (
        replace(seen, ready=2),
        replace(seen, rescale=rescale),
        replace(seen, disturbance_ended_at=warm),
        engine(seen, JobState.RESTARTING),
        engine(seen, ago=119),
        load(view, 90.0, current=3, throughput=0.0, utilization=0.0),
    ):
        answer = ask(POLICY, transient)
        assert (answer.replicas, answer.reason) == (None, Reason.LEARNING)
        assert answer.detail == "90/s arriving; the capacity is not known yet"
    for steady in (
        replace(seen, rescale=replace(rescale, phase=Phase.RUNNING)),
        replace(seen, disturbance_ended_at=warm - timedelta(seconds=1)),
        engine(seen, ago=120),
        engine(seen),
        replace(seen, engine=None),
    ):
        assert ask(POLICY, steady).replicas == 2


def test_the_capacity_of_an_unseen_size_can_be_estimated(view: Make) -> None:
    assert ask(POLICY, replace(load(view, 90.0, current=3), ready=2), {**CALM, "each": 50.0}).replicas == 2


def test_forgets_the_most_distant_sizes(view: Make) -> None:
    facts = ("samples", "busy", "rate", "variance", "covariance", "capacity")
    known = {f"{fact}_{size}": 1.0 for size in range(1, SIZES + 3) for fact in facts if size != 50}
    memory = decided(POLICY, load(view, 90.0, current=50, maximum=200), {**CALM, **known}).memory
    kept = {int(name.split("_")[1]) for name in memory if name.startswith("capacity_")}
    assert kept == set(range(1, SIZES + 2))
    assert not [name for name in memory if name.endswith(f"_{SIZES + 2}")]
    assert len(memory) < 1000


# timing of decisions


def series(policy: Daedalus, seen: Iterable[View], known: Mapping[str, float] = CALM) -> list[int | None]:
    """The requested size at each poll; memory is carried on."""
    memory = known
    sizes = []
    for now in seen:
        memory = policy.learn(replace(now, memory=memory))
        sizes.append(policy.evaluate(replace(now, memory=memory)).replicas)
    return sizes


def test_decides_once_per_interval_and_keeps_the_decision(view: Make) -> None:
    low, high = load(view, 60.0, current=3), load(view, 120.0, current=3)
    polls = [later(low if second == 0 else high, second) for second in (0, 15, 30, 45, 60, 75)]
    assert series(POLICY, polls) == [2, 2, 2, 2, 3, 3]
    early = [low, later(high, 52.4), later(high, 52.6)]
    assert series(POLICY, early) == [2, 2, 3]


def test_an_interval_that_was_not_readable_is_decided_as_soon_as_possible(view: Make) -> None:
    low, high = load(view, 60.0, current=3), load(view, 120.0, current=3)
    gap = replace(high, metrics={})
    assert series(POLICY, [low, later(gap, 60), later(high, 75), later(low, 120)]) == [2, None, 3, 3]


def test_nothing_changes_in_the_grace_after_a_rescale(view: Make) -> None:
    seen = load(view, 190.0, current=2)
    at = seen.now.timestamp()
    answer = ask(POLICY, seen, {"rescaled_at": at - 179, "each": 50.0})
    assert (answer.replicas, answer.reason) == (2, Reason.STEADY)
    assert answer.detail == ("190/s arriving; the last rescale was 179 s ago, and nothing is changed for 180 s")
    assert ask(POLICY, seen, {"rescaled_at": at - 180}).replicas == 5
    # nor is anything planned for the time after it
    assert "size" not in POLICY.learn(replace(seen, memory={"rescaled_at": at - 179}))


def test_soon_after_a_rescale_only_necessary_changes_are_made(view: Make) -> None:
    seen = load(view, 60.0, current=4)
    at = seen.now.timestamp()
    answer = ask(POLICY, seen, {"rescaled_at": at - 599})
    assert (answer.replicas, answer.reason) == (4, Reason.STEADY)
    assert (
        answer.detail == "60/s arriving, up to 60/s forecast; 4 replicas (200/s) will do for now, soon after a rescale"
    )
    assert ask(POLICY, seen, {"rescaled_at": at - 600}).replicas == 2
    # necessary: too small now, or within the next interval
    assert ask(POLICY, load(view, 230.0, current=4), {"rescaled_at": at - 599}).replicas == 5
    rising = with_past(load(view, 195.0, current=4), [150.0, 165.0, 180.0, 195.0])
    assert ask(POLICY, rising, {"rescaled_at": at - 599}).replicas == 10


def test_starts_as_if_the_last_rescale_was_five_minutes_ago(view: Make) -> None:
    seen = load(view, 60.0, current=4)
    polls = [later(seen, second) for second in (0, 240, 300)]
    assert series(POLICY, polls, {}) == [4, 4, 2]


def test_a_backlog_of_more_than_a_second_delays_a_scale_down(view: Make) -> None:
    assert ask(POLICY, load(view, 60.0, current=4, lag=200.0)).replicas == 2
    assert ask(POLICY, load(view, 60.0, current=4, lag=201.0)).replicas == 4


def test_a_backlog_requests_a_size_that_processes_it_in_time(view: Make) -> None:
    # 100,000 records and 60 x 40: at 250 - 60 = 190/s 539 s and 30 s
    answer = ask(POLICY, load(view, 60.0, current=4, lag=100_000.0))
    assert answer.replicas == 5
    assert answer.inputs["recovery"] == pytest.approx(30 + 102_400 / 190)


# rescales


def rescaled(seen: View, to: int, phase: Phase = Phase.REQUESTED, cause: Cause = Cause.REQUEST) -> Rescale:
    return Rescale(
        before=seen.current, to=to, at=seen.now, cause=cause, phase=phase, since=seen.now, durations={Phase.READY: 40.0}
    )


def test_a_rescale_restarts_the_grace_period(view: Make) -> None:
    seen = load(view, 190.0, current=2)
    before = decided(POLICY, seen)
    assert before.memory["size"] == 5
    after = later(seen, 15, rescale=rescaled(seen, 5), current=5)
    memory = POLICY.learn(replace(after, memory=before.memory))
    assert memory["rescaled_at"] == seen.now.timestamp()
    assert "size" not in memory
    assert POLICY.evaluate(replace(after, memory=memory)).detail.startswith("190/s arriving; the last rescale was 15 s")
    # also an external one, but not the replacement of lost replicas
    assert POLICY.learn(later(seen, 15, rescale=rescaled(seen, 4, cause=Cause.EXTERNAL), memory=before.memory))[
        "rescaled_at"
    ] == pytest.approx(seen.now.timestamp())
    assert (
        POLICY.learn(later(seen, 15, rescale=rescaled(seen, 2, cause=Cause.LOSS), memory=before.memory))["rescaled_at"]
        == 0.0
    )


def test_a_rescale_that_ended_between_two_polls_is_noticed(view: Make) -> None:
    before = decided(POLICY, load(view, 60.0, current=6))
    assert before.memory["size"] == 2
    after = later(load(view, 60.0, current=2), 15, memory=before.memory)
    memory = POLICY.learn(after)
    assert memory["rescaled_at"] == after.now.timestamp()
    assert POLICY.evaluate(replace(after, memory=memory)).detail.startswith("60/s arriving; the last rescale was 0 s")
    # 45 s were predicted
    assert memory["downtime_down"] == 14.0
    # external: to another size than the decided one
    memory = POLICY.learn(later(load(view, 60.0, current=3), 15, memory=before.memory))
    assert memory["rescaled_at"] == after.now.timestamp()
    assert "downtime_down" not in memory
    assert not {"stands_at", "up", "predicted"} & memory.keys()


def test_nothing_is_decided_while_a_rescale_takes_longer_than_the_grace_period(view: Make) -> None:
    seen = load(view, 190.0, current=2)
    late = later(seen, 200, rescale=rescaled(seen, 5), ready=1)
    assert ask(POLICY, late, {**CALM, "each": 50.0}).replicas is None


@pytest.mark.parametrize(
    ("current", "arrivals", "to", "took", "name", "expected"),
    [
        # predicted 157 s, without the 40 s until the replicas were ready
        (2, 190.0, 5, 40 + 158, "downtime_up", 31.0),
        (2, 190.0, 5, 40 + 156, "downtime_up", 29.0),
        # predicted 45 s: 60 x 25 / 50 and 15
        (6, 60.0, 2, 53, "downtime_down", 16.0),
        (6, 60.0, 2, 51, "downtime_down", 14.0),
    ],
)
def test_learns_the_downtime_of_each_direction_from_the_recovery_time(
    view: Make, *, current: int, arrivals: float, to: int, took: float, name: str, expected: float
) -> None:
    seen = load(view, arrivals, current=current)
    before = decided(POLICY, seen).memory
    assert before["size"] == to
    on_its_way = later(seen, 15, rescale=rescaled(seen, to, Phase.RUNNING), memory=before)
    memory = POLICY.learn(on_its_way)
    memory = POLICY.learn(replace(on_its_way, memory=memory))
    done = POLICY.learn(later(seen, took, memory=memory))
    assert done[name] == expected
    assert not {"stands_at", "up", "predicted"} & done.keys()
    # the next decision uses it, and the next rescale updates it
    other = "downtime_down" if name == "downtime_up" else "downtime_up"
    assert other not in done


def test_a_downtime_is_never_negative(view: Make) -> None:
    seen = load(view, 190.0, current=2)
    memory = {**CALM, "stands_at": seen.now.timestamp(), "up": 0.0, "predicted": 100.0, "downtime_down": 0.5}
    assert decided(POLICY, seen, memory).memory["downtime_down"] == 0.0


def test_an_unpredicted_rescale_is_not_used_to_learn_the_downtime(view: Make) -> None:
    seen = load(view, 190.0, current=2)
    before = decided(POLICY, seen).memory
    # the guards made it 4 instead of 5
    memory = POLICY.learn(later(seen, 15, rescale=rescaled(seen, 4), memory=before))
    assert not {"stands_at", "up", "predicted"} & memory.keys()
    # and a rescale that another one superseded
    memory = POLICY.learn(later(seen, 15, rescale=rescaled(seen, 5), memory=before))
    assert "stands_at" in memory
    replaced = replace(rescaled(seen, 4), at=seen.now + timedelta(seconds=30))
    memory = POLICY.learn(later(seen, 45, rescale=replaced, memory=memory))
    assert not {"stands_at", "up", "predicted"} & memory.keys()


# edge cases


def test_from_zero_the_first_replica_is_requested_as_soon_as_there_is_work(view: Make) -> None:
    for more in ({"lag": 5.0}, {}):
        answer = ask(POLICY, load(view, 0.0 if more else 5.0, current=0, minimum=0, throughput=0.0, **more))
        assert (answer.replicas, answer.reason) == (1, Reason.ABOVE)
    assert ask(POLICY, load(view, 0.0, current=0, minimum=0)).replicas is None
    # with a known capacity as many as needed
    assert ask(POLICY, load(view, 190.0, current=0, minimum=0), {**CALM, "each": 50.0}).replicas == 5


@pytest.mark.parametrize("absent", ["arrivals", "throughput", "lag", "utilization"])
def test_a_metric_that_is_missing_never_lowers_the_size(view: Make, absent: str) -> None:
    whole = load(view, 60.0, current=6)
    assert ask(POLICY, whole).replicas == 2
    metrics = {name: reading for name, reading in whole.metrics.items() if name != absent}
    answer = POLICY.evaluate(replace(decided(POLICY, whole), metrics=metrics))
    assert (answer.replicas, answer.reason) == (None, Reason.MISSING)
    assert absent in answer.detail


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target_recovery": timedelta(0)}, "target_recovery: is 0s, expected above"),
        ({"cooldown": -timedelta(seconds=1)}, "cooldown: is -1s, expected 0s"),
        ({"trend_window": timedelta(seconds=30)}, "trend_window: is 30s, expected at least the interval"),
        ({"max_forecast_error": -0.1}, "max_forecast_error: is -0.1, expected"),
        ({"max_forecast_error": math.nan}, "max_forecast_error: is nan, expected"),
        ({"lag": ""}, "lag: is empty"),
        ({"forecast": ""}, "forecast: is empty"),
    ],
)
def test_refuses_invalid_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Daedalus(**parameters)


def test_the_lookback_covers_its_trend() -> None:
    assert Daedalus(trend_window=timedelta(minutes=20)).lookback == timedelta(minutes=20)
    assert POLICY.metrics == ("arrivals", "throughput", "lag", "utilization")


# in a closed loop


def test_follows_a_load_with_few_rescales_and_recovers_in_time() -> None:
    rates, changes = staircase([(0.75, 0.3), (0.75, 0.8), (0.75, 0.4)])
    spec = ClusterSpec(
        name="c",
        limits=Limits(1, 24),
        policies=(NamedPolicy("daedalus", Daedalus(utilization="cpu")),),
        down=Behaviour(),
        metrics=("arrivals", "throughput", "lag", "cpu"),
        engine=True,
        lookback=POLICY.trend_window,
    )
    outcome = run(spec, PlantSpec(sigma=0.01), Load("stairs", tuple(rates), changes), seed=1)
    for change in (0.0, *changes):
        # the last five minutes before the next change: enough workers, not many more, and no backlog
        steps = range(int((change + 2400) / STEP), int((change + 2700) / STEP))
        demand = needed([rates[steps[0]] * STEP], outcome.rate_per_worker, 0.9)[0]
        assert {outcome.track.billed[step] for step in steps} <= set(range(demand, demand + 3))
    assert outcome.score().worst < POLICY.target_recovery.total_seconds()
    # from 7 to 10, depending on the noise
    assert len(outcome.track.requests) <= 10
    # CPU has an idle share of 5 %, which the regression or the ratio must not take for load
    memory = outcome.state.learned.memory["daedalus"]
    size = outcome.track.running[-1]
    assert memory[f"capacity_{size}"] == pytest.approx(outcome.rate_per_worker * size**0.9, rel=0.1)


# properties for any readings


@settings(deadline=None)  # a busy machine is not a failure
@given(arrivals=st.floats(1, 1e4), more=st.floats(0, 1e4), lag=st.floats(0, 1e5), current=st.integers(1, 10))
def test_more_arrivals_never_give_a_smaller_size(
    view: Make, *, arrivals: float, more: float, lag: float, current: int
) -> None:
    # from a capacity that is known as 50/s per replica: the present readings must not move it
    known = {**CALM, "each": 50.0}
    low, high = (
        ask(POLICY, replace(load(view, offered, current=current, lag=lag), ready=0), known).replicas
        for offered in (arrivals, arrivals + more)
    )
    assert low is not None
    assert high is not None
    assert low <= high


@settings(deadline=None)
@given(
    arrivals=st.floats(1, 1e4),
    throughput=st.floats(1, 1e4),
    lag=st.floats(0, 1e5),
    utilization=st.floats(0.01, 1),
    current=st.integers(1, 10),
    power=st.integers(-20, 20),
)
def test_the_size_does_not_depend_on_the_unit_of_records(
    view: Make, *, arrivals: float, throughput: float, lag: float, utilization: float, current: int, power: int
) -> None:
    def asked(unit: float) -> int | None:
        more = {"throughput": throughput * unit, "lag": lag * unit, "utilization": utilization}
        return ask(POLICY, load(view, arrivals * unit, current=current, **more)).replicas

    assert asked(1.0) == asked(2.0**power)


numbers = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    metrics=st.fixed_dictionaries(
        {
            "arrivals": numbers,
            "throughput": numbers | st.lists(numbers, min_size=1, max_size=4).map(tuple),
            "lag": numbers,
            "utilization": numbers | st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple),
        }
    ),
    rates=st.lists(st.floats(), max_size=8),
    current=st.integers(0, 12),
    known=st.dictionaries(st.sampled_from(("each", "capacity_3", "samples_3", "rate_3", "level", "slope")), numbers),
)
@example(
    metrics={"arrivals": 0.0, "throughput": 0.0, "lag": 0.0, "utilization": 0.0},
    rates=[],
    current=0,
    known={"each": -sys.float_info.max},
)
def test_never_leaves_the_limits_and_keeps_only_finite_numbers(
    view: Make, *, metrics: dict[str, Any], rates: list[float], current: int, known: dict[str, float]
) -> None:
    seen = with_past(view(metrics, current=current), rates)
    line = {"line_at": seen.now.timestamp() - 60, "level": 1.0, "slope": 1.0}
    memory = POLICY.learn(replace(seen, memory={**CALM, **line, **known}))
    assert all(map(math.isfinite, memory.values()))
    answer = POLICY.evaluate(replace(seen, memory=memory))
    assert all(map(math.isfinite, answer.inputs.values()))
    assert answer.replicas is None or 1 <= answer.replicas <= 10


class TestContract(contracts.PolicyContract):
    @pytest.fixture
    def policy(self) -> Daedalus:
        return POLICY

    @pytest.fixture
    def views(self, metrics: Sequence[str]) -> Sequence[View]:
        """Views as a step shows them: with the learned memory of the policy."""
        seen = contracts.views(metrics)
        return [decided(POLICY, one, {**CALM, "each": 50.0}) for one in seen] + seen[:20]

    def test_some_of_these_views_lead_to_a_decision(self, views: Sequence[View]) -> None:
        assert sum(POLICY.evaluate(seen).replicas is not None for seen in views) > 10
