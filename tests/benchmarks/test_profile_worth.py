"""The value of a profile: the third week of a load with a profile of the first two, and without.

On synthetic loads that repeat, by default two on one plant; AUTOSCALER_BENCH_PLANTS names other plants,
AUTOSCALER_BENCH_LOADS other loads, AUTOSCALER_BENCH_SEEDS the number of seeds. With AUTOSCALER_TRACES three weeks of
recorded ones are added. The profile is the pipeline's: it finds the season from the arrivals, or none if nothing
repeats. Curve and times are the plant's own. Equal seeds give equal figures, so these are asserted, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest

from autoscaler.core.model import ClusterSpec, Direction, Limits, NamedPolicy
from autoscaler.core.step import step
from autoscaler.core.workload_profile import Curve, Profile, Spread
from autoscaler.history.seasonality import fit_season
from autoscaler.simulation.loads import Load, bursts, diurnal, noise, ramps, read_points, resample, staircase
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START, STEP
from autoscaler.simulation.scoring import Score
from autoscaler.simulation.trial import showing_profile
from autoscaler_policies.adaptive.policy import Adaptive

pytestmark = pytest.mark.benchmark

CHOSEN = os.environ.get("AUTOSCALER_BENCH_LOADS", "office,hourly").split(",")
ON = os.environ.get("AUTOSCALER_BENCH_PLANTS", "ec2").split(",")
SEEDS = int(os.environ.get("AUTOSCALER_BENCH_SEEDS", "1"))
TRACES = os.environ.get("AUTOSCALER_TRACES")

DAYS = 21
DAY = round(86400 / STEP)
WEEK = 7 * DAY
SLOT = round(60 / STEP)

MORE_COST = 1.03
"""A profile may cost so many times what is paid without one."""

CHANCE_COST, CHANCE = 1.01, 1.05
"""By so much may cost and violation differ where there is nothing to know."""


def office() -> list[float]:
    """Jumps at fixed times of the day, a few minutes early or late, to levels that differ by a few per cent."""
    dice = Random(1)  # noqa: S311 - not a secret
    weekday = ((0, 0.15), (8.5, 0.7), (12, 0.45), (13, 0.8), (17.5, 0.35), (22, 0.15))
    weekend = ((0, 0.12), (10, 0.3), (20, 0.12))
    rates: list[float] = []
    for day in range(DAYS):
        found = [
            ((hour + dice.gauss(0, 1 / 60)) if hour else 0.0, level * (1 + dice.gauss(0, 0.05)))
            for hour, level in (weekday if day % 7 < 5 else weekend)
        ]
        ends = [hour for hour, _ in found[1:]] + [24.0]
        stairs, _ = staircase([(end - hour, level) for (hour, level), end in zip(found, ends, strict=True)])
        rates += [*stairs, *[stairs[-1]] * DAY][:DAY]
    return noise(rates, 0.04, 2)


def workdays(low: float, weekend: float) -> list[float]:
    shape = diurnal(24, low)
    return [(weekend if day % 7 >= 5 else 1.0) * rate for day in range(DAYS) for rate in shape]


def hourly() -> list[float]:
    """Eight minutes of 1.8 times as much from every full hour on: hourly jobs, on top of a day's curve."""
    hour, lasts = round(3600 / STEP), round(480 / STEP)
    rates = [1.8 * rate if at % hour < lasts else rate for at, rate in enumerate(workdays(0.2, 0.8))]
    return noise(rates, 0.04, 3)


def trace(name: str, begin_days: float = 0, minus: float = 0) -> Callable[[], list[float]]:
    """Three weeks of a recorded trace, without the part that is not load."""

    def found() -> list[float]:
        if TRACES is None:
            pytest.skip("the recorded loads are not part of the project: set AUTOSCALER_TRACES to their folder")
        points = [(at, max(0.0, value - minus)) for at, value in read_points(Path(TRACES) / name)]
        begin, seconds = begin_days * 86400, DAYS * 86400.0
        if points[-1][0] < begin + seconds:
            points.append((begin + seconds, points[-1][1]))
        return list(resample(points, begin, seconds))

    return found


REPEATS: dict[str, Callable[[], list[float]]] = {
    "office": office,
    "hourly": hourly,
    "workdays": lambda: noise(workdays(0.15, 0.6), 0.05, 1),
    "wiki": trace("wikipedia_en_5min_21d.csv", 0, 83_000),
    "retail": trace("retailrocket_clicks_5min_21d.csv", 0, 84_000),
    "iot": trace("iot_vehicles_5min_21d.csv", 0, 94_400),
    "taxi": trace("nyc_taxi_30min_7mo.csv", 60),
}
"""Loads in which one week is like another."""

OTHERS: dict[str, Callable[[], list[float]]] = {
    "ramps": lambda: noise(ramps(24 * DAYS, 5, 0.1, (5, 60)), 0.03, 4),
    "bursts": lambda: noise(bursts(24 * DAYS, 6, 0.3, 60, 15), 0.05, 7),
    "aapl": trace("twitter_aapl_5min_55d.csv", 7),
}
"""... and in which it is not."""


@cache
def rates(name: str) -> tuple[float, ...]:
    return tuple({**REPEATS, **OTHERS}[name]())


@cache
def known(name: str) -> Profile:
    """The profile of two weeks of arrivals."""
    slots = [math.fsum(rates(name)[at : at + SLOT]) / SLOT for at in range(0, 2 * WEEK, SLOT)]
    begin = START.timestamp()
    found = fit_season(begin + 60.0 * np.arange(len(slots), dtype=np.float64), np.array(slots)).season
    return Profile(
        cluster=name, made_at=START, begin=START, end=START + timedelta(days=14), observations=len(slots), season=found
    )


def lived(job: tuple[str, str, int, bool]) -> Score:
    """The third week, without or with the profile of the weeks before."""
    name, on, seed, with_profile = job
    plant, profile = PLANTS[on], known(name)
    one = Load(name, rates(name)).per_worker(plant.gamma)
    policy = Adaptive(objective=timedelta(seconds=plant.slo), profile="profile" if with_profile else None)
    policies = (NamedPolicy("adaptive", policy),)
    spec = ClusterSpec(
        name=name,
        limits=Limits(1, 24),
        policies=policies,
        metrics=policy.metrics,
        engine=True,
        lookback=policy.lookback,
    )
    up = {"start_up": Spread(plant.startup, 0, 0, 9), "stall": Spread(plant.restart_up, 0, 0, 9)}
    profile = replace(
        profile,
        capacity=Curve(rate=one, exponent=plant.gamma, rate_error=0.01, exponent_error=0.01),
        times={Direction.UP: up},
    )
    decide = showing_profile(step, profile, "profile") if with_profile else step
    return run(spec, plant, Load(name, rates(name)[2 * WEEK :], rate_per_worker=one), seed, decide=decide).score()


def compared(names: list[str]) -> list[tuple[float, float, float]]:
    """For each load and plant: the cost ratio with and without a profile; the violation without, and with."""
    jobs = [
        (name, on, seed, has) for name in names for on in ON for seed in range(1, SEEDS + 1) for has in (False, True)
    ]
    for name in names:
        known(name)  # once, before there are more processes
    with ProcessPoolExecutor() as pool:
        scores = dict(zip(jobs, pool.map(lived, jobs), strict=True))
    found = []
    for name in names:
        for on in ON:
            without, having = ([scores[name, on, seed, has] for seed in range(1, SEEDS + 1)] for has in (False, True))
            cost = math.fsum(each.cost for each in having) / math.fsum(each.cost for each in without)
            before, after = (math.fsum(each.violation for each in some) / SEEDS for some in (without, having))
            times = [math.fsum(each.rescales_per_hour for each in some) / SEEDS for some in (without, having)]
            print(  # noqa: T201 - a benchmark's result is what it prints
                f"\n{name:>9} {on:>10}: {cost:6.3f} times the cost, violation {before:.3%} -> {after:.3%}, "
                f"rescales an hour {times[0]:.2f} -> {times[1]:.2f}",
                end="",
            )
            found.append((cost, before, after))
    cost = math.exp(math.fsum(math.log(each) for each, _, _ in found) / len(found))
    before, after = (math.fsum(each[at] for each in found) / len(found) for at in (1, 2))
    share = f", {after / before:.2f} of it" if before else ""
    print(  # noqa: T201 - a benchmark's result is what it prints
        f"\n  together: {cost:.3f} times the cost, violation {before:.3%} -> {after:.3%}{share}"
    )
    return found


def test_a_load_that_repeats_is_late_half_as_often_with_a_profile() -> None:
    names = [name for name in CHOSEN if name in REPEATS]
    if not names:
        pytest.skip("none of the loads that are asked for repeats")
    assert all(known(name).season is not None for name in names)
    found = compared(names)
    assert math.fsum(after for _, _, after in found) <= math.fsum(before for _, before, _ in found) / 2
    assert math.fsum(cost for cost, _, _ in found) <= MORE_COST * len(found)


def test_a_load_that_does_not_repeat_is_no_worse_with_a_profile() -> None:
    names = [name for name in CHOSEN if name in OTHERS] or ["bursts"]
    found = compared(names)
    # Without a season the profile has only the first times and the first exponent: each run differs by chance.
    assert math.fsum(cost for cost, _, _ in found) <= CHANCE_COST * len(found)
    assert math.fsum(after for _, _, after in found) <= CHANCE * math.fsum(before for _, before, _ in found)
