"""The fit of a known capacity curve."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from autoscaler.core.workload_profile import Curve
from autoscaler.history.capacity_fit import fit

END = 1_770_000_000.0
DAY_S = 86400.0


class Sample(NamedTuple):
    """One column for each input of `fit`."""

    size: int
    throughput: float
    utilization: float
    at: float
    minutes: float = 1.0
    workers: float = 0.0


def curve(samples: Sequence[Sample]) -> Curve | None:
    return fit(*np.array(samples, dtype=np.float64).reshape(-1, len(Sample._fields)).T)


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _samples(
    sizes: Sequence[int] = range(2, 12),
    exponent: float = 0.85,
    count: int = 3000,
    idle: float = 0.0,
    drift: float = 0.0,
    wrong: float = 0.0,
    busy: tuple[float, float] = (0.3, 1.0),
) -> list[Sample]:
    dice = Random(1)  # noqa: S311 - noise of a test, not a secret
    found = []
    for number in range(count):
        size, share = dice.choice(sizes), dice.uniform(*busy)
        ago = 14 * DAY_S * (1 - (number + 1) / count)
        capacity = 100 * size**exponent * dice.lognormvariate(0.0, 0.04) * (1 + drift) ** (-ago / (7 * DAY_S))
        factor = dice.uniform(0.1, 10) if dice.random() < wrong else 1.0
        found.append(Sample(size, capacity * share * factor, idle + (1 - idle) * share, END - ago))
    return found


@pytest.mark.parametrize("exponent", [0.7, 0.85, 1.0])
@pytest.mark.parametrize("idle", [0.0, 0.05, 0.15])
def test_rate_and_exponent_are_found_despite_work_without_records(exponent: float, idle: float) -> None:
    found = curve(_samples(exponent=exponent, idle=idle))

    assert found is not None
    assert found.rate == pytest.approx(100, rel=0.03)
    assert found.exponent == pytest.approx(exponent, abs=0.02)
    assert found.sizes[10] == pytest.approx(100 * 10**exponent, rel=0.03)


def test_low_load_is_sufficient() -> None:
    found = curve(_samples(busy=(0.06, 0.3), idle=0.05))

    assert found is not None
    assert found.rate == pytest.approx(100, rel=0.05)
    assert found.exponent == pytest.approx(0.85, abs=0.03)


def test_a_fifth_of_wrong_readings_does_not_change_the_result() -> None:
    found = curve(_samples(wrong=0.2))

    assert found is not None
    assert found.rate == pytest.approx(100, rel=0.05)
    assert found.exponent == pytest.approx(0.85, abs=0.03)


def test_one_size_gives_its_rate_but_not_the_exponent() -> None:
    found = curve(_samples(sizes=[5]))

    assert found is not None
    assert found.exponent == pytest.approx(0.9, abs=0.001)
    assert found.exponent_error == pytest.approx(0.1, rel=0.05)
    assert found.rate * 5**found.exponent == pytest.approx(100 * 5**0.85, rel=0.02)
    assert found.rate_error < 0.02


def test_the_standard_error_covers_the_deviation() -> None:
    few, many = curve(_samples(count=30)), curve(_samples(count=3000))

    assert few is not None
    assert many is not None
    assert few.exponent_error > 2 * many.exponent_error
    assert abs(few.exponent - 0.85) < 3 * few.exponent_error


@pytest.mark.parametrize("drift", [-0.1, 0.05])
def test_drift_is_found_and_the_rate_is_that_of_the_end(drift: float) -> None:
    found = curve(_samples(drift=drift))

    assert found is not None
    assert found.drift == pytest.approx(drift, abs=0.01)
    assert found.rate == pytest.approx(100, rel=0.03)


def test_partitions_that_do_not_divide_evenly_do_not_lower_the_capacity() -> None:
    samples = [
        Sample(size, 0.8 * 100 * workers**0.9, 0.8, END - 600 * number, 10.0, workers)
        for number in range(40)
        for size, workers in ((2, 2.0), (3, 8 / 3), (4, 4.0), (5, 4.0), (6, 4.0), (8, 8.0))
    ]

    found = curve(samples)

    assert found is not None
    assert found.rate == pytest.approx(100, rel=0.01)
    assert found.exponent == pytest.approx(0.9, abs=0.01)
    assert found.sizes[5] == pytest.approx(found.sizes[4])


def test_the_curve_scales_with_the_records() -> None:
    samples = _samples()

    once, more = curve(samples), curve([each._replace(throughput=1e6 * each.throughput) for each in samples])

    assert once is not None
    assert more is not None
    assert more.rate == pytest.approx(1e6 * once.rate)
    assert more.exponent == pytest.approx(once.exponent)


def test_a_larger_utilization_never_means_a_larger_capacity() -> None:
    samples = _samples(busy=(0.4, 0.6))
    rates = []
    for factor in (1.0, 1.2, 1.5):
        found = curve([each._replace(utilization=each.utilization * factor) for each in samples])
        assert found is not None
        rates.append(found.rate)

    assert rates == sorted(rates, reverse=True)


GOOD = Sample(3, 100.0, 0.5, END)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [GOOD],
        [GOOD] * 10,
        [GOOD._replace(throughput=0.0)] * 10,
        [GOOD._replace(throughput=math.nan), GOOD._replace(utilization=math.inf), *[GOOD] * 8],
        [GOOD._replace(throughput=1e-300)] * 10,
        [GOOD._replace(throughput=1e299)] * 10,
        [GOOD._replace(throughput=1e301)] * 10,
        [GOOD._replace(size=0)] * 10,
        [GOOD._replace(size=10**9)] * 10 + [GOOD] * 10,
        [GOOD._replace(utilization=0.0)] * 10,
        [GOOD._replace(utilization=7.0)] * 10,
        [GOOD._replace(at=math.nan)] * 10,
        [GOOD._replace(throughput=10.0 ** (number % 200)) for number in range(400)],
    ],
)
def test_any_readings_give_finite_numbers_or_none(samples: list[Sample]) -> None:
    found = curve(samples)

    if found is not None:
        numbers = [getattr(found, each.name) for each in fields(found) if each.name != "sizes"]
        assert all(map(math.isfinite, [*numbers, *found.sizes.values()]))
        assert found.rate > 0
