"""How the default policy uses a profile: early before a usual rise, calm during a usual bump, never fewer replicas."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.core.model import Direction, Learned, Reading, Reason, Recommendation, RescaleTimes, View
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import make

# n replicas process 100 n records/s; a trusted profile at the present level
KNOWN = {
    "capacity.level": math.log(100.0),
    "capacity.exponent": 1.0,
    "season.ratio": 1.0,
    "season.trusted": 1.0,
    "checkpoint.interval": 20.0,
}
FLAT = (380.0,) * 31
RISES = (380.0, 380.0, *[600.0] * 29)
"""In two minutes 600/s will come: six replicas are asked for, for what takes a minute to come up."""


def shown(
    arrivals: float, profile: Any = None, lag: float = 0.0, *, memory: dict[str, float] | None = None, **parts: Any
) -> View:
    view = make({"lag": lag, "arrivals": arrivals, "throughput": min(arrivals, 400.0)}, current=4, maximum=20)
    known = {**KNOWN, "arrivals.level": arrivals, "lasting.mean": arrivals, **(memory or {})}
    metrics = dict(view.metrics)
    if profile is not None:
        metrics["profile"] = Reading(profile, view.now, parts=parts)
    return replace(view, metrics=metrics, memory=known)


def asked(view: View, **parameters: Any) -> Recommendation:
    return Adaptive(**{"profile": "profile", **parameters}).evaluate(view)


def test_workers_are_ready_before_a_typical_rise() -> None:
    found = asked(shown(380, RISES))
    # up to 600/s and the headroom
    assert (found.reason, found.replicas) == (Reason.ABOVE, 8)
    assert found.inputs["expected"] == pytest.approx(380)  # within the minute that a rescale takes nothing rises yet
    assert asked(shown(380, FLAT)).replicas == 4


@pytest.mark.parametrize(("minutes", "size"), [(3, 8), (4, 4)])
def test_a_typical_rise_is_acted_on_almost_three_downtimes_before_a_rescale_would_start(
    minutes: int, size: int
) -> None:
    # 45 s + 15 s, and 2.7 x (15 s + 10 s): that is within the third minute
    rises = (*[380.0] * minutes, *[600.0] * (31 - minutes))
    assert asked(shown(380, rises)).replicas == size


def test_at_the_threshold_of_trust_a_profile_lowers_no_size() -> None:
    # Of 400/s less than 300/s are not normal: below that the profile does not count. 600/s were the mean of the last
    # minutes, to which arrivals have always returned.
    back = {"lasting.mean": 600.0, "lasting.weight": 60.0, "lasting.square": 2.4, "lasting.total": 36000.0}
    found = [asked(shown(arrivals, (400.0,) * 31, memory=back)) for arrivals in (299.0, 300.0, 400.0)]
    without = [asked(shown(arrivals, None, memory=back)) for arrivals in (299.0, 300.0, 400.0)]
    assert [each.replicas for each in without] == [8, 8, 8]
    assert min(each.replicas or 0 for each in found) >= 8


@pytest.mark.parametrize("stall", [170.0, 200.0, 250.0, 300.0])
@pytest.mark.parametrize("minutes", range(5, 20))
def test_a_size_for_a_typical_rise_can_process_it(stall: float, minutes: int) -> None:
    rises = (*[380.0] * minutes, *[900.0] * (31 - minutes))
    learned = Learned(times={Direction.UP: (RescaleTimes(45.0, 45.0, 45.0 + stall, 45.0 + stall),)})
    found = asked(replace(shown(380, rises), learned=learned), objective=timedelta(minutes=10))
    assert found.replicas == 4 or found.inputs["new_capacity"] > 900


def test_a_profile_counts_while_it_is_trusted() -> None:
    soon = (380.0, *[600.0] * 30)
    assert asked(shown(380, soon)).inputs["expected"] == pytest.approx(600)
    doubted = asked(shown(380, soon, memory={"season.trusted": 0.0}))
    assert doubted == asked(shown(380))


@settings(deadline=None, max_examples=100)
@given(
    st.floats(10, 2000),
    st.lists(st.floats(1, 2000), min_size=31, max_size=31),
    st.booleans(),
    st.floats(0, 1e5),
)
def test_a_profile_never_asks_for_fewer_than_without(
    arrivals: float, profile: list[float], trusted: bool, lag: float
) -> None:
    found = asked(shown(arrivals, tuple(profile), lag, memory={"season.trusted": float(trusted)}))
    without = asked(shown(arrivals, None, lag))
    assert found.replicas is not None
    assert without.replicas is not None
    assert found.replicas >= without.replicas


@settings(deadline=None, max_examples=200)
@given(
    st.floats(10, 2000),
    st.floats(1, 1.5),
    st.lists(st.floats(1, 2000), min_size=31, max_size=31),
    st.booleans(),
    st.floats(0, 1e5),
)
def test_more_arrivals_never_ask_for_fewer(
    arrivals: float, more: float, profile: list[float], trusted: bool, lag: float
) -> None:
    memory = {"season.trusted": float(trusted)}
    less = asked(shown(arrivals, tuple(profile), lag, memory=memory))
    found = asked(shown(arrivals * more, tuple(profile), lag, memory=memory))
    assert found.replicas is not None
    assert less.replicas is not None
    assert found.replicas >= less.replicas


def test_no_trend_is_used_beside_a_trusted_profile() -> None:
    rising = {"arrivals.trend": 1.2}
    assert asked(shown(390, FLAT, memory=rising)).replicas == 4
    doubted = asked(shown(390, FLAT, memory={**rising, "season.trusted": 0.0}))
    assert doubted.replicas == asked(shown(390, None, memory=rising)).replicas == 7


def test_the_first_sizes_follow_the_capacity_curve_of_the_profile() -> None:
    nothing = {"capacity.level": -1.0}
    view = shown(800, FLAT, capacity={"rate": 100.0, "exponent": 1.0})
    view = replace(view, memory={name: value for name, value in view.memory.items() if name not in KNOWN | nothing})
    found = asked(view)
    assert (found.inputs["capacity"], found.reason) == (400.0, Reason.ABOVE)
    # without it the capacity of a size is unknown
    bare = replace(view, metrics={name: each for name, each in view.metrics.items() if name != "profile"})
    assert "capacity not known yet" in asked(bare).detail
    for wrong in (
        {"rate": 0.0, "exponent": 1.0},
        {"rate": 100.0, "exponent": 1.21},
        {"rate": math.inf, "exponent": 1.0},
        {},
    ):
        reading = replace(view.metrics["profile"], parts={"capacity": wrong})
        changed = replace(view, metrics={**view.metrics, "profile": reading})
        assert "capacity not known yet" in asked(changed).detail


def test_learning_starts_with_the_exponent_of_the_profile() -> None:
    view = shown(300, FLAT, capacity={"rate": 100.0, "exponent": 0.8})
    view = replace(view, memory={})
    busy = replace(view, metrics={**view.metrics, "utilization": Reading(0.75, view.now)})
    learned = Adaptive(profile="profile").learn(busy)
    assert learned["capacity.exponent"] == 0.8
    assert math.exp(learned["capacity.level"]) * 4**0.8 == pytest.approx(400)


def test_an_exponent_of_the_profile_that_promises_far_more_capacity_is_ignored() -> None:
    # 300/s at 75 %: 400/s. By the profile four could process 126 * 4 = 504/s, a quarter more, or 124 * 4
    for rate, exponent in ((126.0, 0.9), (124.0, 1.0)):
        view = replace(shown(300, FLAT, capacity={"rate": rate, "exponent": 1.0}), memory={})
        busy = replace(view, metrics={**view.metrics, "utilization": Reading(0.75, view.now)})
        assert Adaptive(profile="profile").learn(busy)["capacity.exponent"] == exponent


def test_the_exponent_of_the_profile_is_kept_while_workers_are_almost_idle_and_afterwards() -> None:
    view = replace(shown(300, FLAT, capacity={"rate": 100.0, "exponent": 0.8}), memory={})
    for number, busy in enumerate((0.01, 0.75)):
        now = view.now + timedelta(seconds=15 * number)
        metrics = {**view.metrics, "utilization": Reading(busy, now)}
        view = replace(view, now=now, metrics=metrics)
        view = replace(view, memory=Adaptive(profile="profile").learn(view))
        assert view.memory["capacity.exponent"] == 0.8


@pytest.mark.parametrize(("up", "ahead"), [({"start_up": 90.0, "stall": 30.0}, 120.0), ({"stall": 5.0}, 50.0)])
def test_the_rescale_times_of_the_profile_hold_until_some_are_observed(up: dict[str, float], ahead: float) -> None:
    assert asked(shown(380, FLAT, up=up)).inputs["ahead"] == ahead


@pytest.mark.parametrize("seconds", [-1.0, 601.0])
def test_an_impossible_time_of_the_profile_is_ignored(seconds: float) -> None:
    assert asked(shown(380, FLAT, up={"start_up": seconds})).inputs["ahead"] == 60


@pytest.mark.parametrize("profile", [500.0, (-1.0, 5000.0), (0.0,) * 31])
def test_an_invalid_profile_is_ignored(profile: Any) -> None:
    assert asked(shown(380, profile)) == asked(shown(380))


def test_an_external_forecast_takes_precedence_over_the_profile() -> None:
    view = shown(380, RISES)
    view = replace(view, metrics={**view.metrics, "forecast": Reading((380.0,) * 20, view.now)})
    assert asked(view, forecast="forecast").replicas == 4
