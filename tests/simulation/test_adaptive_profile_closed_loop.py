"""The default policy controls simulated clusters with a profile: the value of a right one, the cost of a wrong one."""

from __future__ import annotations

import math
from datetime import timedelta
from statistics import mean

import pytest

from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.core.step import step
from autoscaler.core.workload_profile import Curve, Profile, Season
from autoscaler.simulation.loads import Load, noise, staircase
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START, STEP
from autoscaler.simulation.scoring import Score
from autoscaler.simulation.trial import showing_profile
from autoscaler_policies.adaptive.policy import Adaptive

EC2 = PLANTS["ec2"]
MINUTE = round(60 / STEP)
OFFICE = ((8.5, 0.15), (3.5, 0.7), (1, 0.45), (4.5, 0.8), (4.5, 0.35), (2, 0.15))
"""A day: hours, share of the peak. It jumps at 8:30, 12:00, 13:00, 17:30 and 22:00."""


def load(days: int, seed: int) -> Load:
    shape, _ = staircase(OFFICE * days)
    return Load("office", tuple(noise(shape, 0.04, seed)))


def lived(
    days: int, late_hours: float | None, times: float = 1.0, curve: Curve | None = None, *, seed: int = 1
) -> Score:
    """So many days of office hours on EC2; `late_hours`: with a profile that is so late, and of `times` the rates."""
    policy = Adaptive(
        objective=timedelta(seconds=EC2.slo), profile=None if late_hours is None else "profile", slack=0.75
    )
    spec = ClusterSpec(
        name="plant",
        limits=Limits(1, 24),
        policies=(NamedPolicy("adaptive", policy),),
        metrics=policy.metrics,
        engine=True,
        lookback=policy.lookback,
    )
    come = load(days, seed)
    decide = step
    if late_hours is not None:
        usual, _ = staircase(OFFICE * 7)
        week = [math.fsum(usual[at : at + MINUTE]) / MINUTE for at in range(0, len(usual), MINUTE)]
        late = round(late_hours * 60)
        week = [times * rate for rate in (*week[-late:], *week[:-late])] if late else [times * rate for rate in week]
        season = Season(tuple(week), tuple(week), tuple(week))
        profile = Profile(
            cluster="plant", made_at=START, begin=START, end=START, observations=1, capacity=curve, season=season
        )
        decide = showing_profile(step, profile, "profile")  # type: ignore[assignment]
    return run(spec, EC2, come, seed, decide=decide).score()


def test_with_a_correct_profile_workers_are_ready_before_a_jump() -> None:
    without, found = lived(1, None), lived(1, 0.0)
    assert found.under <= without.under / 2
    assert found.violation < without.violation
    assert found.cost <= 1.03 * without.cost


@pytest.mark.parametrize(
    ("late", "times"),
    [
        (6.0, 1.0),
        pytest.param(12.0, 1.0, marks=pytest.mark.e2e),
        pytest.param(-3.0, 1.0, marks=pytest.mark.e2e),
        pytest.param(6.0, 5.0, marks=pytest.mark.e2e),
        pytest.param(6.0, 0.01, marks=pytest.mark.e2e),
    ],
)
def test_a_wrong_profile_is_no_worse_than_none(late: float, times: float) -> None:
    without, found = lived(2, None), lived(2, late, times)
    assert found.violation <= without.violation + 0.0005
    assert found.cost <= 1.01 * without.cost
    assert found.rescales <= without.rescales + 1


@pytest.mark.e2e
@pytest.mark.parametrize(
    "curve",
    [
        Curve(rate=1e-3, exponent=0.8, rate_error=0.01, exponent_error=0.01),
        Curve(rate=1e6, exponent=1.0, rate_error=0.01, exponent_error=0.01),
        Curve(rate=1.0, exponent=0.3, rate_error=0.01, exponent_error=0.01),
    ],
)
def test_a_wrong_capacity_curve_counts_until_the_job_was_first_observed(curve: Curve) -> None:
    # With one seed it is chance how late a single jump is met.
    without = [lived(1, None, seed=seed) for seed in range(1, 5)]
    found = [lived(1, 6.0, 1.0, curve, seed=seed) for seed in range(1, 5)]
    assert mean(day.violation for day in found) <= mean(day.violation for day in without) + 0.001
    assert mean(day.cost for day in found) <= 1.03 * mean(day.cost for day in without)
