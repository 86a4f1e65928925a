"""The capacity of a job by its size, learned from throughput and utilization."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler_policies.adaptive import capacity_model
from autoscaler_policies.adaptive.capacity_model import EXPONENT_VARIANCE, Capacity, Idle, Saturation
from autoscaler_policies.adaptive.state import State
from autoscaler_policies.adaptive.tuning import TUNING

INTERVAL = 15.0
HOUR = 240
"""Samples within an hour."""


@dataclass
class Model:
    """The learned values of one job."""

    capacity: Capacity = field(default_factory=Capacity)
    idle: Idle = field(default_factory=Idle)

    def sample(self, replicas: float, throughput: float, utilization: float, now: float) -> None:
        self.capacity.sample(self.idle, replicas, throughput, utilization, now)

    def rate(self, replicas: float) -> float:
        return self.capacity.rate(replicas)

    def kept(self) -> dict[str, float]:
        """The part of it that is stored: finite numbers."""
        names = ("capacity.", "idle.")
        dumped = State(capacity=self.capacity, idle=self.idle).dump()
        return {name: number for name, number in dumped.items() if name.startswith(names)}

    @classmethod
    def of(cls, memory: dict[str, float]) -> Model:
        state = State.load(memory)
        return cls(state.capacity, state.idle)


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


def noise(chance: Random, share: float = 0.04, lasts: float = 300.0) -> Iterator[float]:
    """Autocorrelated factors around 1 (AR(1)), like the deviations of real machines."""
    kept = math.exp(-INTERVAL / lasts)
    value = chance.gauss(0, share)
    while True:
        yield math.exp(value)
        value = kept * value + math.sqrt(1 - kept * kept) * chance.gauss(0, share)


def hours(
    model: Model,
    sizes: tuple[int, ...],
    one: float,
    exponent: float,
    *,
    seed: int = 1,
    count: int = HOUR,
    begin: float = 0.0,
    share: float = 0.04,
) -> float:
    """Feed samples of a job that processes one * size^exponent, some time at each size; returns the end time."""
    chance = dice(seed)
    factors = noise(chance, share)
    now = begin
    for number in range(count):
        size = sizes[number * len(sizes) // count]
        now += INTERVAL
        busy = chance.uniform(0.5, 0.95)
        model.sample(size, one * size**exponent * next(factors) * busy, busy, now)
    return now


@pytest.mark.parametrize("exponent", [0.8, 0.85, 0.9])
def test_an_hour_at_three_sizes_shows_their_capacity_and_the_exponent(exponent: float) -> None:
    off: list[float] = []
    bent: list[float] = []
    for seed in range(20):
        model = Model()
        hours(model, (4, 8, 16), 1000.0, exponent, seed=seed)
        bent.append(abs(model.capacity.exponent - exponent))
        off += [abs(model.rate(size) / (1000 * size**exponent) - 1) for size in (4, 8, 16)]
        # an unseen size, by the power law
        assert model.rate(24) == pytest.approx(1000 * 24**exponent, rel=0.12)
    # Errors with a time constant of 5 minutes leave few independent ones: one in twenty may be off.
    assert sorted(off)[56] < 0.05
    assert sorted(bent)[18] < 0.05
    assert max(off) < 0.1
    assert max(bent) < 0.1


def test_before_the_first_sample_and_for_zero_replicas_nothing_is_known() -> None:
    model = Model()
    assert model.rate(4) == 0
    model.sample(4, 800, 0.8, 100.0)
    assert model.rate(0) == 0


def test_other_sizes_follow_from_the_first_sample_by_the_default_exponent() -> None:
    model = Model()
    model.sample(4, 800, 0.8, 100.0)
    assert model.rate(4) == pytest.approx(1000)  # 800 / 0.8
    assert model.rate(8) == pytest.approx(1000 * 2**TUNING.exponent)
    model.sample(4, 400, 0.8, 100.0)  # the same moment again adds nothing
    assert model.rate(4) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("replicas", "throughput", "utilization"),
    [
        (4, 100, 0.049),  # two small numbers
        (4, 0, 0.8),
        (4, -1, 0.8),
        (0, 100, 0.8),
        (4, math.nan, 0.8),
        (4, 100, math.nan),
        (4, math.inf, 0.8),  # the ratio is not a number
    ],
)
def test_a_sample_without_information_is_ignored(replicas: float, throughput: float, utilization: float) -> None:
    model = Model()
    model.sample(replicas, throughput, utilization, 100.0)
    assert model.rate(4) == 0
    assert model.capacity == Capacity()


def test_a_utilization_above_1_counts_as_1() -> None:
    model = Model()
    model.sample(4, 1000, 1.3, 100.0)
    assert model.rate(4) == pytest.approx(1000)


@pytest.mark.parametrize("seed", range(4))
def test_the_idle_utilization_of_workers_is_derived_from_the_cost_of_records(seed: int) -> None:
    # 8 replicas process 8000/s; CPU is 10 % without a record, and goes from 15 % to 60 %
    chance = dice(seed)
    model = Model()
    for number in range(HOUR):
        cpu = 0.375 + 0.225 * math.sin(number / 20)
        throughput = 8000 * (cpu - 0.1) / 0.9
        model.sample(8, throughput * math.exp(chance.gauss(0, 0.01)), cpu, number * INTERVAL)
    assert model.idle.utilization() == pytest.approx(0.1, abs=0.01)
    assert model.rate(8) == pytest.approx(8000, rel=0.05)
    plain = 8000 * (0.15 - 0.1) / 0.9 / 0.15
    assert plain < 0.4 * 8000  # the plain ratio at 15 % CPU


def test_lower_utilization_at_higher_throughput_gives_no_idle_share() -> None:
    model = Model()
    for number in range(HOUR):
        model.sample(8, 2000.0 + 2000.0 * (number % 2), 0.6 - 0.3 * (number % 2), number * INTERVAL)
    assert model.idle.utilization() == 0


def test_the_idle_share_stays_zero_until_throughput_has_varied() -> None:
    model = Model()
    assert model.idle.utilization() == 0
    for number in range(HOUR):
        model.sample(8, 3000.0 + number % 2, 0.4, number * INTERVAL)
    assert model.idle.utilization() == 0
    assert model.rate(8) == pytest.approx(3000 / 0.4, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [1 / 1.5, 1.5])
def test_a_sudden_change_of_the_cost_per_record_is_learned_within_a_quarter_of_an_hour(
    seed: int, factor: float
) -> None:
    model = Model()
    now = hours(model, (8,), 1000.0, 0.9, seed=seed)
    assert model.rate(8) == pytest.approx(1000 * 8**0.9, rel=0.05)
    now = hours(model, (8,), 1000.0 * factor, 0.9, seed=seed + 100, count=60, begin=now)
    assert model.rate(8) == pytest.approx(factor * 1000 * 8**0.9, rel=0.08)


def test_without_a_sudden_change_the_same_time_changes_much_less() -> None:
    model = Model()
    now = hours(model, (8,), 1000.0, 0.9, share=0.0)
    before = model.rate(8)
    hours(model, (8,), 1080.0, 0.9, count=16, begin=now, share=0.0)
    assert 1 < model.rate(8) / before < 1.03  # 8 % more for 4 minutes may be chance


def test_after_a_long_gap_new_samples_weigh_more_but_never_more_than_one() -> None:
    def moved_by(gap: float) -> float:
        model = Model()
        now = hours(model, (8,), 1000.0, 0.9, share=0.0)
        before = model.rate(8)
        model.sample(8, 1.1 * 0.8 * 1000 * 8**0.9, 0.8, now + gap)
        return model.rate(8) / before - 1

    assert 0 < moved_by(INTERVAL) < moved_by(3600) < moved_by(86400) < moved_by(30 * 86400) < 0.1
    assert moved_by(1e6 * 86400) == pytest.approx(moved_by(1000 * 86400))


CAPACITY = sorted(name for name in State(capacity=Capacity(0.0, 0.0)).dump() if name.startswith("capacity."))
IDLE = [name for name in State().dump() if name.startswith("idle.")]


@pytest.mark.parametrize("lost", [CAPACITY, CAPACITY[::2], CAPACITY[1::2], IDLE, [*CAPACITY[::2], *IDLE]])
def test_learning_continues_from_partial_memory(lost: list[str]) -> None:
    model = Model()
    now = hours(model, (4, 8), 1000.0, 0.9)
    kept = model.kept()
    assert {*CAPACITY, *IDLE} == set(kept)
    rest = Model.of({name: number for name, number in kept.items() if name not in lost})
    hours(rest, (4, 8), 1000.0, 0.9, begin=now, count=2 * HOUR, seed=2)
    assert rest.rate(8) == pytest.approx(1000 * 8**0.9, rel=0.08)


@pytest.mark.parametrize("exponent", [1e308, -1e308])
def test_an_unbelievable_exponent_is_corrected_by_samples(exponent: float) -> None:
    model = Model.of({"capacity.level": math.log(1000.0), "capacity.exponent": exponent})
    hours(model, (4, 8), 1000.0, 0.9, count=6 * HOUR)
    assert model.rate(8) == pytest.approx(1000 * 8**0.9, rel=0.08)


positive = st.floats(0, allow_infinity=False)


@settings(deadline=None)  # a busy machine is not a failure
@given(
    st.lists(st.tuples(positive, positive, st.integers(0, 1_000_000), st.floats(-1e5, 1e9)), min_size=1, max_size=8),
    st.integers(0, 2),
)
def test_any_readings_give_a_finite_capacity(samples: list[tuple[float, float, int, float]], forgotten: int) -> None:
    model = Model()
    now = 1.7e9
    for throughput, busy, size, later in samples:
        now += later
        model.sample(size, throughput, busy, now)
        kept = model.kept()
        if forgotten:  # after an upgrade a part may be missing
            kept = {name: kept[name] for name in list(kept)[forgotten - 1 :: 2]}
        model = Model.of(kept)
        for asked in (size, 1, 7, 1_000_000):
            assert 0 <= model.rate(asked) < math.inf
            assert asked < 1 or 0 <= model.capacity.uncertainty(asked) < math.inf
        assert 0 <= model.idle.utilization() <= 1


def test_a_change_of_the_cost_per_record_is_not_taken_for_an_idle_share() -> None:
    model = Model()
    now = hours(model, (8,), 1000.0, 0.9, count=2 * HOUR)
    for part in range(8):
        now = hours(model, (8,), 1500.0, 0.9, seed=part, count=HOUR // 2, begin=now)
        assert model.idle.utilization() < 0.02


@settings(deadline=None)
@given(st.integers(0, 10**9), st.floats(1e-6, 1e6))
def test_a_thousand_times_the_records_are_a_thousand_times_the_capacity(seed: int, factor: float) -> None:
    once, often = Model(), Model()
    hours(once, (3, 7), 100.0, 0.8, seed=seed, count=20)
    hours(often, (3, 7), 100.0 * factor, 0.8, seed=seed, count=20)
    for size in (1, 3, 7, 20):
        assert often.rate(size) == pytest.approx(factor * once.rate(size), rel=1e-9)


def test_the_capacity_of_an_unseen_size_is_less_certain() -> None:
    assert Capacity().uncertainty(4) == 0
    model = Model()
    model.sample(8, 650.0, 1.0, 0.0)
    assert model.capacity.uncertainty(8) == pytest.approx(TUNING.noise)
    away = math.sqrt(EXPONENT_VARIANCE) * math.log(4)
    assert model.capacity.uncertainty(2) == pytest.approx(math.hypot(TUNING.noise, away))
    assert Capacity(covariance=-1.0).uncertainty(8) == 0


def test_a_known_exponent_extends_the_first_sample_to_other_sizes() -> None:
    model = Model(Capacity(exponent=0.7))
    assert model.rate(4) == 0
    model.sample(4, 800, 0.8, 0.0)
    assert model.rate(8) == pytest.approx(1000 * 2**0.7)


@pytest.mark.parametrize(("at_eight", "at"), [(1.0, 0), (16.0, 1)])
def test_an_exponent_outside_the_realistic_range_is_not_used(at_eight: float, at: int) -> None:
    model = Model()
    now = 0.0
    for _ in range(20):
        for size, does in ((1, 1000.0), (8, 1000.0 * at_eight)):
            now = hours(model, (size,), does, 0.0, begin=now, count=40, share=0.0)
    low, high = capacity_model.EXPONENTS
    assert low <= model.capacity.exponent <= high
    assert model.capacity.exponent == pytest.approx((low, high)[at])


@pytest.mark.parametrize(
    ("known", "busy", "saturated", "utilization"),
    [
        (1.0, 0.84, True, 0.84),
        (1.0, 0.86, True, 1.0),  # noise
        (1.0, 0.35, False, 1.0),
        (1.0, 0.0, True, 1.0),  # nothing was measured
        (0.35, 0.01, True, 0.01),
        (0.35, 0.40, False, 0.35),
        (0.35, 0.41, False, 0.41),  # it can be busier
        (0.35, 1.0, True, 1.0),
        (1.0, 0.5, True, 0.5),
    ],
)
def test_capacity_is_reached_at_the_utilization_at_which_throughput_stopped_growing(
    known: float, busy: float, utilization: float, *, saturated: bool
) -> None:
    found = Saturation(utilization=known, highest=known)
    assert found.follow(busy, 0.0, saturated=saturated) == pytest.approx(utilization / known)
    assert found == Saturation(utilization=utilization, highest=max(known, busy))


@pytest.mark.parametrize(
    ("utilization", "highest", "busy", "plausible"),
    [
        (1.0, 1.0, 0.61, True),
        (1.0, 1.0, 0.59, False),  # it was busier: something else limits it
        (1.0, 0.4, 0.35, True),
        (1.0, 0.4, 0.33, False),
        (0.4, 0.4, 0.25, True),
        (0.4, 0.4, 0.23, False),
    ],
)
def test_a_job_may_be_saturated_if_it_is_as_busy_as_ever(
    utilization: float, highest: float, busy: float, *, plausible: bool
) -> None:
    assert Saturation(utilization=utilization, highest=highest).plausible(busy) is plausible


def test_the_highest_utilization_decays_to_37_percent_in_half_an_hour() -> None:
    found = Saturation(highest=0.9)
    assert found.follow(0.3, 1800.0, saturated=False) == 1.0
    assert found.highest == pytest.approx(0.3 + 0.6 / math.e)


@pytest.mark.parametrize("damaged", [0.0, -1.0, 7.0])
def test_an_invalid_stored_utilization_is_reset(damaged: float) -> None:
    found = Saturation(utilization=damaged)
    assert found.follow(0.0, 15.0, saturated=False) == 1.0
    assert found.utilization == 1.0
