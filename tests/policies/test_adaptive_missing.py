"""How the default policy treats missing readings: never fewer replicas than if they had been available."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import make
from tests.policies.test_adaptive import KNOWN, SURE, Life, T


def settled(load: float, *, profile: tuple[float, ...] | None = None, **given: Any) -> Life:
    """Eight replicas with a capacity of 650/s, after a while at this load."""
    life = Life(Adaptive(profile="profile" if profile else None), size=8)
    life.memory = {**SURE, "season.ratio": 1.0, "season.trusted": 1.0}
    for _ in range(30):
        life.poll(load, profile=profile, **given)
    return life


@pytest.mark.parametrize("missing", ["lag", "arrivals", "throughput", "lag arrivals throughput utilization"])
@pytest.mark.parametrize("polls", [5, 9, 20, 38, 39, 50])
def test_one_low_reading_after_a_gap_does_not_lower_the_size(missing: str, polls: int) -> None:
    # 600/s need all eight. Nothing is known about the gap, and after it nobody has observed that 300/s last.
    life = settled(600.0)
    for _ in range(polls):
        life.poll(600.0, missing=missing)
    assert [life.poll(300.0).replicas for _ in range(12)] == [8] * 12


@pytest.mark.parametrize("missing", ["lag", "arrivals", "throughput"])
def test_one_missing_reading_costs_nothing(missing: str) -> None:
    life, other = (Life(size=5) for _ in range(2))
    life.memory = other.memory = SURE
    for _ in range(10):
        life.poll()
        other.poll()
    life.poll(missing=missing)
    other.poll()
    assert life.until(4) == other.until(4) == 10


@pytest.mark.parametrize("apart", [150, 300, 900])
def test_infrequent_polls_lower_the_size_only_after_a_second_low_reading(apart: int) -> None:
    later = timedelta(seconds=apart)
    spec = replace(make().spec, interval=later)
    life = settled(600.0)
    for _ in range(10):
        life.poll(600.0, later=later, spec=spec)
    assert life.poll(300.0, later=later, spec=spec).replicas == 8


def test_without_the_throughput_too_low_arrivals_count_no_savings() -> None:
    life = settled(300.0, throughput=600.0)
    for _ in range(12):
        life.poll(300.0, missing="throughput")
    assert life.memory["spare.saved"] == 0.0
    assert life.poll(300.0, throughput=300.0).replicas == 8


def test_without_the_profile_no_savings_count_that_the_profile_would_have_prevented() -> None:
    rises = (300.0, 300.0, *[620.0] * 29)
    life = settled(300.0, profile=rises)
    for _ in range(9):
        life.poll(300.0, missing="profile")
    assert life.memory["spare.saved"] == 0.0
    assert life.poll(300.0, profile=(300.0,) * 31).replicas == 8


def behind(**memory: float) -> Life:
    """Eight replicas that cannot keep up, after four have processed as much."""
    life = Life(size=8)
    climbed = {"climb.size": 4.0, "climb.rate": 400.0, "climb.seen_at": T - 60, "spare.size": 8.0, "spare.seen_at": T}
    life.memory = {**KNOWN, **climbed, **memory}
    return life


@pytest.mark.parametrize("gap", [0, 4, 30])
def test_two_readings_behind_with_a_gap_between_them_are_not_a_minute_behind(gap: int) -> None:
    life = behind()
    life.poll(900.0, lag=20000.0, throughput=440.0, utilization=1.0)
    for _ in range(gap):
        life.poll(900.0, lag=20000.0, missing="arrivals")
    assert (life.poll(900.0, lag=20000.0, throughput=440.0, utilization=1.0).replicas or 0) > 8
    assert "plateau.size" not in life.memory or life.memory["plateau.size"] == 0.0


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_missing_throughput_does_not_delay_help_for_a_job_that_is_behind(lost: int) -> None:
    # 90/s were learned at low load: a minute behind shows that the capacity is 20/s.
    life = Life(size=1, stall_up=1.0, stall_down=1.0)
    wrong = {"capacity.level": math.log(90.0), "capacity.exponent": 0.9, "capacity.level_variance": 1e-9}
    asked = []
    for number in range(6):
        life.memory = {**life.memory, **wrong, "capacity.seen_at": life.now.timestamp()}
        missing = "throughput" if number == lost else ""
        asked.append(life.poll(46.0, lag=500.0, throughput=20.0, utilization=1.0, missing=missing).replicas)
    assert asked[:4].count(4) == 0
    assert asked[4 if lost != 4 else 5] == 4


def test_without_the_utilization_workers_that_may_be_idle_are_not_taken_for_a_limit() -> None:
    life = behind()
    for number in range(8):
        found = life.poll(900.0, lag=20000.0 + 6000.0 * number, throughput=440.0, missing="utilization")
    assert (found.replicas or 0) > 8
