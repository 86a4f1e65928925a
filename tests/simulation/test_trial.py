"""A recorded day simulated again, without Spark."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Direction,
    Limits,
    NamedPolicy,
    Observation,
    Reason,
    Recommendation,
    View,
)
from autoscaler.core.workload_profile import Curve, Profile, Season, Spread, reading
from autoscaler.plugins import Kind, load
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import PLANTS, START, STEP, Plant
from autoscaler.simulation.trial import (
    BEFORE,
    SLOTS,
    WARM_UP,
    Case,
    Variant,
    day_load,
    decider,
    plant_from_profile,
    run_trial,
    showing_profile,
    simulate_trial,
    visible_metrics,
)

DAY = datetime(2026, 3, 4, tzinfo=UTC)
LIMITS = Limits(1, 12)
NOON = SLOTS // 2


def _spec(*policies: Any, limits: Limits = LIMITS) -> ClusterSpec:
    named = tuple(NamedPolicy(f"p{number}", policy) for number, policy in enumerate(policies))
    return ClusterSpec(
        name="x", limits=limits, policies=named, metrics=("lag", "arrivals"), engine=True, interval=timedelta(minutes=1)
    )


def _case(*variants: Variant) -> Case:
    return Case(PLANTS["k8s"], 100.0, 6, variants)


def _level(rate: float = 250.0) -> Any:
    return day_load("x", range(-BEFORE, SLOTS), [rate] * (BEFORE + SLOTS), 100.0)


def test_a_day_follows_the_evening_before() -> None:
    rates = [10.0] * BEFORE + [20.0] * SLOTS
    found = day_load("x", range(-BEFORE, SLOTS), rates, 1.0)
    assert found.seconds == 86400 + WARM_UP.total_seconds()
    begin = round(WARM_UP.total_seconds() / STEP)
    assert set(found.rates[:begin]) == {10.0}
    assert set(found.rates[begin:]) == {20.0}


def test_unrecorded_times_are_interpolated_linearly() -> None:
    found = day_load("x", [-BEFORE, 0, 4, SLOTS - 1], [5.0, 10.0, 18.0, 18.0], 1.0)
    begin = round(WARM_UP.total_seconds() / STEP)
    assert found.rates[begin : begin + 15] == (10.0,) * 3 + (12.0,) * 3 + (14.0,) * 3 + (16.0,) * 3 + (18.0,) * 3


def test_before_the_first_and_after_the_last_known_value_it_is_constant() -> None:
    found = day_load("x", [NOON, NOON + 1], [7.0, 9.0], 1.0)
    assert len(found.rates) == (BEFORE + SLOTS) * 3
    assert set(found.rates[: (BEFORE + NOON) * 3]) == {7.0}
    assert set(found.rates[(BEFORE + NOON + 1) * 3 :]) == {9.0}


def test_records_outside_the_day_are_ignored() -> None:
    assert day_load("x", [-BEFORE - 1, 0, SLOTS], [99.0, 7.0, 99.0], 1.0).peak == 7.0


def _profile(**fields: Any) -> Profile:
    return Profile(cluster="x", made_at=DAY, begin=DAY - timedelta(days=7), end=DAY, observations=1000, **fields)


def test_a_plant_behaves_like_the_profile() -> None:
    spread = Spread(40.0, 20.0, 80.0, 9)
    output = _profile(
        capacity=Curve(rate=500.0, exponent=0.8, rate_error=0.01, exponent_error=0.01),
        times={
            Direction.UP: {"start_up": spread, "stall": Spread(20.0, 10.0, 40.0, 9)},
            Direction.DOWN: {"stall": Spread(60.0, 50.0, 70.0, 4)},
        },
    )
    found = plant_from_profile(PLANTS["ungraceful"], output)
    assert (found.startup, found.restart_up, found.restart_down, found.gamma) == (40.0, 20.0, 60.0, 0.8)
    assert found.heartbeat == 0, "how long killed workers go unnoticed is in the stall that was seen"
    assert found.startup_sd == pytest.approx(math.log(4) / 2.563, rel=1e-3)
    assert found.slo == PLANTS["ungraceful"].slo


def test_values_that_a_profile_lacks_keep_their_default() -> None:
    assert plant_from_profile(PLANTS["ec2"], _profile()) == PLANTS["ec2"]
    never = _profile(times={Direction.UP: {"stall": Spread(0.0, 0.0, 0.0, 3)}})
    assert 0 < plant_from_profile(PLANTS["ec2"], never).restart_up < 1


def test_only_the_configured_metrics_are_observed() -> None:
    plant = Plant(PLANTS["k8s"], 100.0, 1, 2)
    plant.advance(1000.0)
    spec = ClusterSpec(name="x", limits=Limits(1, 9), policies=(), metrics=("waiting",))
    found = visible_metrics(spec, {"waiting": "lag"}, plant.observe())
    assert list(found.metrics) == ["waiting"]
    assert found.engine is None


@dataclass(frozen=True, slots=True)
class Looks:
    """Reports the number of values of a metric in its view."""

    name: str
    lookback: ClassVar[timedelta] = timedelta(0)

    def evaluate(self, view: View) -> Recommendation:
        value = view.metrics[self.name].value
        return Recommendation(int(value[0] if isinstance(value, tuple) else value), Reason.STEADY)


def test_a_policy_sees_the_profile_of_that_moment() -> None:
    slots = tuple(float(hour + 1) for hour in range(168))
    profile = _profile(season=Season(slots, slots, slots))
    shown: list[Observation] = []

    def decide(_: Any, state: Any, observation: Observation) -> Any:
        shown.append(observation)
        return state, None

    plant = Plant(PLANTS["k8s"], 100.0, 1, 2, start=DAY)
    plant.advance(0.0)
    showing_profile(decide, profile, "season")(_spec(), None, plant.observe())  # type: ignore[arg-type]
    assert shown[0].metrics["season"] == reading(profile, DAY + timedelta(seconds=STEP))
    assert "lag" in shown[0].metrics


def test_a_trial_has_the_date_of_its_day_and_the_profile_of_its_time() -> None:
    low, high = (2.0,) * 72, (5.0,) * 96  # from Thursday on: the day is a Wednesday
    season = Season(low + high, low + high, low + high)
    case = replace(_case(), profile=_profile(season=season))
    variant = Variant(policy="looks", spec=_spec(Looks("usual"), limits=Limits(1, 9)), profile="usual")
    wednesday = simulate_trial(case, variant, _level(), DAY, 1)
    assert {size for _, size in wednesday.track.requests[:1]} == {2}
    assert wednesday.track.billed[-1] in (2, 3)
    thursday = simulate_trial(case, variant, _level(), DAY + timedelta(days=1), 1)
    assert thursday.track.billed[-1] == 5


def test_only_the_day_itself_is_scored() -> None:
    # Far too few workers in the evening before, and enough from midnight on.
    rates = [2000.0] * (BEFORE - 100) + [100.0] * (100 + SLOTS)
    late = day_load("x", range(-BEFORE, SLOTS), rates, 100.0)
    variant = Variant(policy="none", spec=_spec(limits=Limits(6, 6)))
    found = run_trial(_case(variant), variant, late, DAY, 1)
    assert found.score.hours == 24
    assert found.score.cost == pytest.approx(6 * 24)
    assert 0 < found.score.violation < 0.5
    assert run_trial(_case(variant), variant, _level(), DAY, 1).score.violation == 0


def test_the_static_variant_has_the_static_size() -> None:
    variant = Variant(policy="static", spec=_spec(load(Kind.POLICY, "adaptive")()), static=True)
    assert run_trial(_case(variant), variant, _level(), DAY, 1).score.cost == pytest.approx(6 * 24)


@pytest.mark.e2e
def test_an_oracle_sees_the_future() -> None:
    adaptive = load(Kind.POLICY, "adaptive")
    rates = [100.0] * (BEFORE + NOON) + [900.0] * NOON
    jump = day_load("x", range(-BEFORE, SLOTS), rates, 100.0)
    blind = Variant(policy="adaptive", spec=_spec(adaptive()))
    seer = Variant(policy="oracle", spec=_spec(adaptive(forecast="forecast")), oracle=True)
    late, early = (run_trial(_case(one), one, jump, DAY, 1).score for one in (blind, seer))
    assert early.violation < late.violation


def test_equal_trials_have_the_same_digest_and_others_differ() -> None:
    variant = Variant(policy="drain", spec=_spec(load(Kind.POLICY, "backlog-drain")()))
    first, again, other = (run_trial(_case(variant), variant, _level(), DAY, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.digest != other.digest


def test_a_case_can_be_sent_to_another_process() -> None:
    variant = Variant(
        policy="drain",
        spec=_spec(load(Kind.POLICY, "adaptive")()),
        parameters={"p0.reserve": "0.1"},
        names={"lag": "lag"},
    )
    case = replace(_case(variant), profile=_profile())
    assert pickle.loads(pickle.dumps(case)) == case  # noqa: S301 - our own


def test_metrics_have_the_names_of_the_configuration() -> None:
    spec = replace(_spec(), metrics=("behind",))
    named = decider(
        Variant(policy="x", spec=spec, names={"behind": "lag"}, oracle=True), Load("flat", (5.0,) * 12), None, START
    )
    plant = Plant(PLANTS["k8s"], 100.0, 1, 4)
    plant.advance(1000.0)
    state, _ = named(spec, ClusterState(), plant.observe())
    assert set(state.past[-1].metrics) == {"behind", "forecast"}  # and those that the oracle adds
