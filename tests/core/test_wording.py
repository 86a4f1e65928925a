"""Counts in sentences."""

from __future__ import annotations

from autoscaler.core.wording import agree, count_of, first_of, list_of


def test_a_count_of_one_is_singular() -> None:
    assert [count_of(number, "slot") for number in range(3)] == ["0 slots", "1 slot", "2 slots"]
    assert [agree(number, "is", "are") for number in range(3)] == ["are", "is", "are"]


def test_of_many_names_the_first_are_listed() -> None:
    assert [first_of("abcd"[:number], 2) for number in (0, 2, 3)] == [[], ["a", "b"], ["a", "b", "and 1 more"]]
    assert [list_of("abcd"[:number], 2) for number in (0, 2, 4)] == ["", "a, b", "a, b and 2 more"]
