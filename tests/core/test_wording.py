"""Counts in sentences."""

from __future__ import annotations

from autoscaler.core.wording import agree, count_of


def test_one_of_something_is_singular() -> None:
    assert [count_of(number, "slot") for number in range(3)] == ["0 slots", "1 slot", "2 slots"]
    assert [agree(number, "is", "are") for number in range(3)] == ["are", "is", "are"]
