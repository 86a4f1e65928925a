from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.schedulers.flink import FlinkSettings, Rules
from autoscaler.simulation.families import (
    CHECKPOINT,
    FAMILIES,
    FOLDS,
    GAMMA,
    IDLE,
    LEAST_SLO,
    MERGE,
    PLANT_FAMILIES,
    RATE,
    SIGMA,
    TAU,
    WORKERS,
    Sample,
    busiest_minute,
    draw,
    plant,
    recorded,
    requests,
    silence,
    sources,
    split,
)
from autoscaler.simulation.loads import LoadError
from autoscaler.simulation.plant import STEP, work

HOURS = 2
STEPS = round(HOURS * 3600 / STEP)
NAMES = st.sampled_from(sorted(FAMILIES))


def _dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the shape of a load, not a secret


def _draw(family: str, number: int = 0, seed: int = 1, *, kept: bool = False) -> Sample:
    return draw(family, number, seed, HOURS, kept=kept)


# the split


def test_each_family_is_held_out_in_one_fold() -> None:
    assert sorted(name for kept in FOLDS for name in kept) == sorted(FAMILIES)


@pytest.mark.parametrize("fold", range(1, len(FOLDS) + 1))
def test_no_held_out_family_is_used_for_development(fold: int) -> None:
    develop, kept = split(fold)
    assert kept == FOLDS[fold - 1]
    assert not set(develop) & set(kept)
    assert {*develop, *kept} == set(FAMILIES)


@given(NAMES, st.integers(0, 20), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_held_out_samples_differ_from_those_for_development(family: str, number: int, seed: int) -> None:
    one, other = _draw(family, number, seed), _draw(family, number, seed, kept=True)
    assert one.load.rates != other.load.rates
    assert one.plant != other.plant
    assert one.seed != other.seed
    assert one.plant_family == other.plant_family
    assert (one.kept, other.kept) == (False, True)


# loads


@given(NAMES, st.integers(0, 20), st.integers(0, 1000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_load_has_its_length_and_its_busiest_minute_needs_4_to_16_workers(
    family: str, number: int, seed: int, kept: bool
) -> None:
    found = _draw(family, number, seed, kept=kept)
    load = found.load
    assert load.name == f"{family} {number}"
    assert load.seconds == HOURS * 3600
    assert all(math.isfinite(rate) and rate >= 0 for rate in load.rates)
    peak = busiest_minute(load.rates)
    assert RATE[0] <= round(peak) <= RATE[1]
    assert load.rate_per_worker is not None
    workers = [
        n for n in range(1, 30) if math.isclose(peak, load.rate_per_worker * work(n, found.plant.gamma), rel_tol=1e-6)
    ]
    assert len(workers) == 1
    assert WORKERS[0] <= workers[0] <= WORKERS[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_give_equal_samples_and_others_others(family: str) -> None:
    assert _draw(family) == _draw(family)
    others = [_draw(family, seed=2), _draw(family, 1), _draw(family, 4)]
    assert len({found.load.rates for found in (_draw(family), *others)}) == 4
    assert len({found.seed for found in (_draw(family), *others)}) == 4


@pytest.mark.parametrize(("family", "kept"), [*product(FAMILIES, (False, True))])
def test_any_four_loads_of_a_family_have_all_kinds_of_plants(family: str, kept: bool) -> None:
    found = [draw(family, number, 1, 0.1, kept=kept).plant_family for number in range(1, 5)]
    assert sorted(found) == sorted(PLANT_FAMILIES)


def test_loads_with_the_same_number_have_different_kinds_of_plants() -> None:
    assert {draw(family, 0, 1, 0.1, kept=True).plant_family for family in FAMILIES} == set(PLANT_FAMILIES)


@given(NAMES, st.integers(0, 2**32), st.integers(12, 3000))
@settings(max_examples=40, deadline=None)
def test_rates_are_never_negative_whatever_the_length(family: str, seed: int, steps: int) -> None:
    rates = FAMILIES[family](_dice(seed), steps)
    assert len(rates) == steps
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_in_a_silence_nothing_arrives_for_10_minutes_at_least(seed: int) -> None:
    rates = silence(_dice(seed), STEPS)
    quiet = "".join("." if rate == 0 else "x" for rate in rates).replace("x", " ").split()
    assert max(map(len, quiet)) * STEP >= 600 - STEP


def test_requests_have_bursts_and_moments_without_any() -> None:
    rates = requests(_dice(7), STEPS)
    assert 0.0 in rates
    assert max(rates) > 5 * sum(rates) / len(rates)


def test_a_block_without_requests_is_possible() -> None:
    class Never(Random):
        def gammavariate(self, alpha: float, beta: float) -> float:
            return 0.0 if self.random() < 0.5 else super().gammavariate(alpha, beta)

    rates = requests(Never(1), STEPS)
    assert 0.0 in rates
    assert sum(rates) > 0


@pytest.mark.parametrize("family", ["season", "trend", "shifts", "bursts", "on-off", "launches", "silence"])
def test_a_family_draws_its_parameters_too_and_not_only_its_noise(family: str) -> None:
    means = []
    for number in range(6):
        rates = _draw(family, number).load.rates
        means.append(sum(rates) / len(rates) / busiest_minute(rates))
    assert max(means) > 1.15 * min(means)


# traces


def test_a_part_of_a_recorded_trace_may_begin_anywhere() -> None:
    points = [(100.0 + 60 * n, float(n)) for n in range(601)]
    shape = recorded(points)
    parts = [shape(_dice(seed), 720) for seed in range(20)]
    assert {len(part) for part in parts} == {720}
    assert len({part[0] for part in parts}) == 20
    # grows by one per minute
    assert all(part[-1] - part[0] == pytest.approx(719 * 5 / 60) for part in parts)
    assert all(part[0] >= 0 and part[-1] <= 600 for part in parts)


def test_a_shorter_trace_is_used_completely() -> None:
    points = [(float(n), 2.0 * n) for n in range(0, 601, 5)]
    part = recorded(points)(_dice(1), 720)
    assert len(part) == 120
    assert part[0] == pytest.approx(5.0)
    found = draw("mine", 3, 1, 1.0, kept=True, shape=recorded(points))
    assert (found.family, found.load.name, len(found.load.rates)) == ("mine", "mine 3", 120)


def test_a_load_of_zero_is_refused() -> None:
    with pytest.raises(LoadError, match="mine 0: nothing arrives in it"):
        draw("mine", 0, 1, 1.0, kept=True, shape=lambda _, steps: [0.0] * steps)


@pytest.mark.parametrize(
    ("rates", "most"),
    [([1.0] * 12, 1.0), ([0.0] * 12 + [12.0] + [0.0] * 12, 1.0), ([3.0, 5.0], 4.0), ([0.0] * 20 + [1.0] * 20, 1.0)],
)
def test_the_busiest_minute_is_a_mean_of_twelve_steps(rates: list[float], most: float) -> None:
    assert busiest_minute(rates) == pytest.approx(most)


# plants and sources


@given(st.sampled_from(sorted(PLANT_FAMILIES)), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_plants_are_within_their_ranges(name: str, seed: int) -> None:
    kind, found = PLANT_FAMILIES[name], plant(_dice(seed), name)
    for (low, high), value in {
        kind.startup: found.startup,
        kind.restart: found.restart_up,
        GAMMA: found.gamma,
        SIGMA: found.sigma,
        TAU: found.tau,
        CHECKPOINT: found.checkpoint,
        MERGE: found.merge,
        IDLE: found.idle,
    }.items():
        assert low <= value <= high
    assert kind.restart[0] <= found.restart_down <= found.restart_up
    assert LEAST_SLO <= found.slo <= 2 * (found.startup + 180 + found.restart_up + 2 * found.checkpoint)
    if kind.flink:
        assert isinstance(found.scheduler, FlinkSettings)
        assert found.scheduler.rules is Rules.STABILIZED
        assert found.scheduler.max_delay == 3 * found.checkpoint
    else:
        assert found.scheduler is None


def test_the_ranges_of_all_kinds_of_plants_are_the_documented_ones() -> None:
    kinds = PLANT_FAMILIES.values()
    assert (min(kind.startup[0] for kind in kinds), max(kind.startup[1] for kind in kinds)) == (10, 180)
    assert (min(kind.restart[0] for kind in kinds), max(kind.restart[1] for kind in kinds)) == (5, 90)
    assert (GAMMA, SIGMA, CHECKPOINT, MERGE) == ((0.8, 1.0), (0.01, 0.08), (5, 120), (0, 60))


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_sources_have_gaps_age_and_noise_and_nothing_else(seed: int) -> None:
    found = sources(_dice(seed))
    assert 0 <= found.gaps <= 0.03
    assert found.late in {0.0, 15.0, 30.0}
    assert 0 <= found.noise <= 0.05
    assert all(60 <= fault.seconds <= 300 and not fault.name for fault in found.readings)
    bare = replace(found, gaps=0.0, late=0.0, noise=0.0, readings=())
    assert not any(getattr(bare, field.name) for field in fields(bare))


def test_some_plants_have_metric_outages_and_some_show_only_the_cpu() -> None:
    found = [draw("trend", number, 1, 0.1, kept=False) for number in range(40)]
    assert 5 < sum(bool(one.faults.readings) for one in found) < 25
    assert 10 < sum(one.cpu for one in found) < 30
