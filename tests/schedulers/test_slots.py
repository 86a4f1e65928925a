"""How Flink divides slots and key groups: edge cases, and properties of any job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.schedulers.slots import (
    Bounds,
    reactive_bounds,
    required_slots,
    slot_allocation,
    slots_needed,
)


def test_in_reactive_mode_a_vertex_uses_all_slots_up_to_its_key_groups() -> None:
    assert reactive_bounds() == Bounds(1, 128)
    assert reactive_bounds(7) == Bounds(1, 7)
    assert slot_allocation([[reactive_bounds(), reactive_bounds(7)]], 40) == ((40, 7),)


@pytest.mark.parametrize(
    ("groups", "slots", "expected"),
    [
        ([[(1, 4), (1, 2)], [(1, 3)]], 50, ((4, 2), (3,))),
        ([[(1, 8)], [(10, 10)]], 13, ((3,), (10,))),
        ([[(4, 4)], [(10, 10)]], 13, None),
        ([[(2, 2), (8, 8)]], 5, None),
        ([[(4, 10)], [(4, 10)]], 8, ((4,), (4,))),
        ([[(4, 4)], [(10, 10)]], 26, ((4,), (10,))),
        ([[(1, 9)], [(1, 9)]], 7, ((3,), (4,))),  # the last one gets the remainder
        ([[(1, 2)], [(1, 9)], [(1, 9)]], 12, ((2,), (5,), (5,))),
        ([[(1, 5)], []], 9, ((5,), ())),
        ([], 3, ()),
    ],
)
def test_slots_beyond_the_minimum_of_each_group_are_divided_evenly(
    groups: list[list[tuple[int, int]]], slots: int, expected: tuple[tuple[int, ...], ...] | None
) -> None:
    assert slot_allocation([[Bounds(*vertex) for vertex in group] for group in groups], slots) == expected


@pytest.mark.parametrize(("lower", "upper"), [(2, 1), (-1, 1)])
def test_contradicting_bounds_are_refused(lower: int, upper: int) -> None:
    with pytest.raises(ValueError, match=f"got lower {lower} and upper {upper}"):
        Bounds(lower, upper)


def test_one_group_needs_as_many_slots_as_its_widest_vertex() -> None:
    assert slots_needed([[Bounds(1, 128), Bounds(1, 128)]], [[3, 5]]) == 5
    assert slots_needed([[Bounds(1, 128), Bounds(1, 4)]], [[3, 50]]) == 4
    assert slots_needed([], []) == 0


def test_a_group_without_vertices_needs_no_slots() -> None:
    assert required_slots([[Bounds(1, 5)], []]) == 5
    assert slot_allocation([[Bounds(1, 5)], []], 1) == ((1,), ())


def test_groups_that_need_different_numbers_need_more_than_their_sum() -> None:
    groups = [[Bounds(1, 128)], [Bounds(1, 128)]]
    assert slots_needed(groups, [[4], [1]]) == 8  # of seven one group has three, and it is unknown which
    assert slots_needed(groups, [[1], [4]]) == 8
    assert slots_needed(groups, [[4], [4]]) == 8


bounds = st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda pair: Bounds(pair[0], sum(pair)))
jobs = st.lists(st.lists(bounds, min_size=1, max_size=3), min_size=1, max_size=4)


@given(jobs, st.integers(0, 200))
def test_no_slot_is_given_twice_and_every_vertex_stays_within_its_bounds(
    groups: list[list[Bounds]], slots: int
) -> None:
    given = slot_allocation(groups, slots)
    if given is None:
        assert slots < sum(max(vertex.lower for vertex in group) for group in groups)
        return
    assert sum(max(shares) for shares in given) <= min(slots, required_slots(groups))
    for group, shares in zip(groups, given, strict=True):
        assert all(vertex.lower <= share <= vertex.upper for vertex, share in zip(group, shares, strict=True))


@given(jobs, st.integers(0, 200))
def test_an_additional_slot_takes_none_from_any_group(groups: list[list[Bounds]], slots: int) -> None:
    fewer, more = slot_allocation(groups, slots), slot_allocation(groups, slots + 1)
    if fewer is not None:
        assert more is not None
        assert all(a <= b for few, many in zip(fewer, more, strict=True) for a, b in zip(few, many, strict=True))


@given(jobs, st.data())
def test_with_the_slots_needed_everybody_has_enough_in_whatever_order(
    groups: list[list[Bounds]], data: st.DataObject
) -> None:
    needed = [[data.draw(st.integers(1, 40)) for _ in group] for group in groups]

    def enough(slots: int, order: Sequence[int]) -> bool:
        given = slot_allocation([groups[index] for index in order], slots)
        return given is not None and all(
            share >= min(want, vertex.upper)
            for index, shares in zip(order, given, strict=True)
            for vertex, share, want in zip(groups[index], shares, needed[index], strict=True)
        )

    found = slots_needed(groups, needed)
    orders = list(permutations(range(len(groups))))
    assert all(enough(found, order) for order in orders)
    assert found == 0 or not all(enough(found - 1, order) for order in orders)
