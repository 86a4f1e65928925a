from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler_policies.shared.recommend import format_number, smallest


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2000.4, "2,000"),
        (-120.0, "-120"),
        (99.96, "100"),
        (0.354, "0.354"),
        (0.0, "0"),
        (999e12, "999,000,000,000,000"),
        (1e15, "1e+15"),
        (-1e308, "-1e+308"),
    ],
)
def test_numbers_are_formatted_for_people(value: float, said: str) -> None:
    assert format_number(value) == said


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_the_smallest_that_fits_is_found_or_the_largest(low: int, more: int, needed: int) -> None:
    found = smallest(low, low + more, lambda size: size >= needed)
    assert found == min(max(low, needed), low + more)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_a_stricter_requirement_never_gives_fewer_even_with_irregular_sizes(
    capacities: list[float], demand: float, more: float
) -> None:
    low = smallest(0, len(capacities), lambda size: capacities[size] >= demand)
    high = smallest(0, len(capacities), lambda size: capacities[size] >= demand + more)
    assert low <= high
