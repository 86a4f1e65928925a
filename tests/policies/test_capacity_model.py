"""What a job can process by its size, learned from throughput and utilization."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler_policies.adaptive import capacity_model
from autoscaler_policies.adaptive.capacity_model import EXPONENT, MAX_SIZES, idle, rate, sample

Memory = dict[str, float]
INTERVAL = 15.0
HOUR = 240
"""Samples within an hour."""


def dice(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - noise that is the same each time, not a secret


def noise(chance: Random, share: float = 0.04, lasts: float = 300.0) -> Iterator[float]:
    """Factors around 1 whose deviations hold on for a while (AR(1)), as those of real machines do."""
    kept = math.exp(-INTERVAL / lasts)
    value = chance.gauss(0, share)
    while True:
        yield math.exp(value)
        value = kept * value + math.sqrt(1 - kept * kept) * chance.gauss(0, share)


def hours(
    memory: Memory,
    sizes: tuple[int, ...],
    one: float,
    exponent: float,
    *,
    seed: int = 1,
    count: int = HOUR,
    begin: float = 0.0,
    share: float = 0.04,
) -> float:
    """Show samples of a job that does one * size^exponent, some time at each size; returns the time after them."""
    chance = dice(seed)
    factors = noise(chance, share)
    now = begin
    for number in range(count):
        size = sizes[number * len(sizes) // count]
        now += INTERVAL
        busy = chance.uniform(0.5, 0.95)
        sample(memory, float(size), size, one * size**exponent * next(factors) * busy, busy, now)
    return now


@pytest.mark.parametrize("exponent", [0.8, 0.85, 0.9])
def test_an_hour_at_three_sizes_shows_what_they_do_and_the_exponent(exponent: float) -> None:
    off: list[float] = []
    bent: list[float] = []
    for seed in range(20):
        memory: Memory = {}
        hours(memory, (4, 8, 16), 1000.0, exponent, seed=seed)
        bent.append(abs(memory["capacity.exponent"] - exponent))
        off += [abs(rate(memory, size, size) / (1000 * size**exponent) - 1) for size in (4, 8, 16)]
        # a size that was never seen, by the law
        assert rate(memory, 24, 24) == pytest.approx(1000 * 24**exponent, rel=0.12)
    # Errors that hold on for 5 minutes leave few that are independent of each other: one in twenty may be off.
    assert sorted(off)[56] < 0.05
    assert sorted(bent)[18] < 0.05
    assert max(off) < 0.1
    assert max(bent) < 0.1


def test_nothing_is_known_before_the_first_sample_and_of_no_replicas() -> None:
    memory: Memory = {}
    assert rate(memory, 4, 4) == 0
    sample(memory, 4, 4, 800, 0.8, 100.0)
    assert rate(memory, 0, 0) == 0


def test_the_first_sample_gives_its_size_and_the_usual_exponent_the_others() -> None:
    memory: Memory = {}
    sample(memory, 4, 4, 800, 0.8, 100.0)
    assert rate(memory, 4, 4) == pytest.approx(1000)  # 800 / 0.8
    assert rate(memory, 8, 8) == pytest.approx(1000 * 2**EXPONENT)
    sample(memory, 4, 4, 400, 0.8, 100.0)  # the same moment again says nothing new
    assert rate(memory, 4, 4) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("replicas", "throughput", "utilization"),
    [
        (4, 100, 0.049),  # two small numbers
        (4, 0, 0.8),
        (4, -1, 0.8),
        (0, 100, 0.8),
        (4, math.nan, 0.8),
        (4, 100, math.nan),
        (4, math.inf, 0.8),  # the ratio is no number
    ],
)
def test_a_sample_without_information_is_left_out(replicas: float, throughput: float, utilization: float) -> None:
    memory: Memory = {}
    sample(memory, replicas, 4, throughput, utilization, 100.0)
    assert rate(memory, 4, 4) == 0
    assert "capacity.seen_at" not in memory


def test_more_than_fully_busy_is_fully_busy() -> None:
    memory: Memory = {}
    sample(memory, 4, 4, 1000, 1.3, 100.0)
    assert rate(memory, 4, 4) == pytest.approx(1000)


@pytest.mark.parametrize("seed", range(4))
def test_what_workers_do_without_records_is_derived_from_what_records_cost(seed: int) -> None:
    # 8 replicas do 8000/s; CPU is 10 % without a record, and goes from 15 % to 60 %
    chance = dice(seed)
    memory: Memory = {}
    for number in range(HOUR):
        cpu = 0.375 + 0.225 * math.sin(number / 20)
        throughput = 8000 * (cpu - 0.1) / 0.9
        sample(memory, 8, 8, throughput * math.exp(chance.gauss(0, 0.01)), cpu, number * INTERVAL)
    assert idle(memory) == pytest.approx(0.1, abs=0.01)
    assert rate(memory, 8, 8) == pytest.approx(8000, rel=0.05)
    plain = 8000 * (0.15 - 0.1) / 0.9 / 0.15
    assert plain < 0.4 * 8000  # what the plain ratio makes of 15 % CPU


def test_no_idle_share_is_believed_until_throughput_has_varied() -> None:
    memory: Memory = {}
    assert idle(memory) == 0
    for number in range(HOUR):
        sample(memory, 8, 8, 3000.0 + number % 2, 0.4, number * INTERVAL)
    assert idle(memory) == 0
    assert rate(memory, 8, 8) == pytest.approx(3000 / 0.4, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [1 / 1.5, 1.5])
def test_records_that_suddenly_cost_otherwise_are_followed_within_a_quarter_of_an_hour(
    seed: int, factor: float
) -> None:
    memory: Memory = {}
    now = hours(memory, (8,), 1000.0, 0.9, seed=seed)
    assert rate(memory, 8, 8) == pytest.approx(1000 * 8**0.9, rel=0.05)
    now = hours(memory, (8,), 1000.0 * factor, 0.9, seed=seed + 100, count=60, begin=now)
    assert rate(memory, 8, 8) == pytest.approx(factor * 1000 * 8**0.9, rel=0.08)


def test_without_a_surprise_the_same_time_changes_much_less() -> None:
    memory: Memory = {}
    now = hours(memory, (8,), 1000.0, 0.9, share=0.0)
    before = rate(memory, 8, 8)
    hours(memory, (8,), 1080.0, 0.9, count=16, begin=now, share=0.0)
    assert 1 < rate(memory, 8, 8) / before < 1.03  # 8 % more for 4 minutes may be chance


def test_a_size_that_does_less_than_the_law_says_is_known_by_itself() -> None:
    memory: Memory = {}
    now = 0.0
    for turn in range(24):
        for size, odd in ((6, 1.0), (7, 0.85), (8, 1.0), (9, 1.0), (10, 1.0)):
            now = hours(memory, (size,), 1000.0 * odd, 0.9, seed=turn, count=40, begin=now, share=0.0)
    law = [1000 * size**0.9 for size in range(11)]
    assert rate(memory, 7, 7) == pytest.approx(0.85 * law[7], rel=0.04)
    assert rate(memory, 9, 9) == pytest.approx(law[9], rel=0.04)
    assert memory["size.7.deviation"] < -0.1 < memory["size.9.deviation"]
    # by the law of the others it would do so much
    assert rate(memory, 7, 70) == pytest.approx(law[7], rel=0.08)


def test_a_deviation_counts_for_half_after_half_an_hour() -> None:
    memory: Memory = {"capacity.level": 0.0, "size.1.deviation": 0.2, "size.1.seconds": capacity_model.DEVIATION_S}
    assert rate(memory, 1, 1) == pytest.approx(math.exp(0.1))


def test_the_sizes_not_seen_for_longest_are_forgotten() -> None:
    memory: Memory = {}
    now = 0.0
    for size in range(1, MAX_SIZES + 20):
        now = hours(memory, (size,), 1000.0, 0.9, count=3, begin=now)
    known = {int(name.split(".")[1]) for name in memory if name.startswith("size.")}
    assert known == set(range(20, MAX_SIZES + 20))
    assert sum(name.startswith("size.") for name in memory) == 3 * MAX_SIZES


def test_after_a_long_time_unseen_new_samples_weigh_more_but_a_month_no_more_than_a_week() -> None:
    def moved_by(gap: float) -> float:
        memory: Memory = {}
        now = hours(memory, (8,), 1000.0, 0.9, share=0.0)
        before = rate(memory, 8, 8)
        sample(memory, 8, 8, 1.1 * 0.8 * 1000 * 8**0.9, 0.8, now + gap)
        return rate(memory, 8, 8) / before - 1

    assert 0 < moved_by(INTERVAL) < moved_by(3600) < moved_by(86400) < 0.15
    assert moved_by(30 * 86400) == pytest.approx(moved_by(7 * 86400))


def test_hardly_busy_workers_teach_less_than_busy_ones() -> None:
    def moved_at(busy: float) -> float:
        memory: Memory = {}
        sample(memory, 8, 8, 8000 * 0.8, 0.8, 0.0)
        sample(memory, 8, 8, 8800 * busy, busy, 60.0)
        return rate(memory, 8, 8) / 8000 - 1

    assert 0 < 2 * moved_at(0.1) < moved_at(0.8)
    assert moved_at(0.4) == pytest.approx(moved_at(0.8))


@pytest.mark.parametrize("keep", [0, 1])
def test_half_of_what_was_known_is_enough_to_go_on(keep: int) -> None:
    whole: Memory = {}
    now = hours(whole, (4, 8), 1000.0, 0.9)
    half = {name: whole[name] for name in sorted(whole)[keep::2]}
    hours(half, (4, 8), 1000.0, 0.9, begin=now, count=2 * HOUR, seed=2)
    assert rate(half, 8, 8) == pytest.approx(1000 * 8**0.9, rel=0.08)


positive = st.floats(0, allow_infinity=False)
anything = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.tuples(positive, positive, st.integers(0, 1_000_000), st.floats(-1e5, 1e9)), min_size=1, max_size=8),
    st.integers(0, 2),
)
def test_whatever_is_read_what_a_size_does_is_a_number(
    samples: list[tuple[float, float, int, float]], forgotten: int
) -> None:
    memory: Memory = {}
    now = 1.7e9
    for throughput, busy, size, later in samples:
        now += later
        sample(memory, float(size), size, throughput, busy, now)
        # what is kept: finite numbers, and after an upgrade not all of them
        memory = {name: number for name, number in memory.items() if math.isfinite(number)}
        if forgotten:
            memory = {name: memory[name] for name in list(memory)[forgotten - 1 :: 2]}
        for asked in (size, 1, 7, 1_000_000):
            assert 0 <= rate(memory, asked, asked) < math.inf
        assert 0 <= idle(memory) <= capacity_model.MAX_IDLE


def test_records_that_cost_otherwise_are_not_taken_for_an_idle_share() -> None:
    memory: Memory = {}
    now = hours(memory, (8,), 1000.0, 0.9, count=2 * HOUR)
    for part in range(8):
        now = hours(memory, (8,), 1500.0, 0.9, seed=part, count=HOUR // 2, begin=now)
        assert idle(memory) < 0.02


@settings(deadline=None)
@given(st.integers(0, 10**9), st.floats(1e-6, 1e6))
def test_a_thousand_times_the_records_are_a_thousand_times_the_capacity(seed: int, factor: float) -> None:
    once: Memory = {}
    often: Memory = {}
    hours(once, (3, 7), 100.0, 0.8, seed=seed, count=20)
    hours(often, (3, 7), 100.0 * factor, 0.8, seed=seed, count=20)
    for size in (1, 3, 7, 20):
        assert rate(often, size, size) == pytest.approx(factor * rate(once, size, size), rel=1e-9)


def test_a_size_that_was_never_seen_is_less_sure_than_the_one_that_was() -> None:
    assert capacity_model.uncertainty({}, 4) == 0
    memory: dict[str, float] = {}
    capacity_model.sample(memory, 8, 8, 650.0, 1.0, 0.0)
    assert capacity_model.uncertainty(memory, 8) == pytest.approx(capacity_model.NOISE)
    assert capacity_model.uncertainty(memory, 2) == pytest.approx(math.hypot(0.05, 0.1 * math.log(4)))
    assert capacity_model.uncertainty({"capacity.covariance": -1.0}, 8) == 0
