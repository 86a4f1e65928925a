"""How Flink's adaptive scheduler distributes slots: pure arithmetic, as in Flink 1.18 to 2.x.

Vertices of one slot sharing group share slots: one slot runs one subtask of each of them. Vertices of different groups
do not share slots. A job without configured groups has a single group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_MAX_PARALLELISM = 1 << 7
"""The default number of key groups of a vertex with a parallelism up to 85."""
MOST_MAX_PARALLELISM = 1 << 15


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest parallelism with which a vertex may run, and the largest that it can use."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise ValueError(f"expected 0 <= lower <= upper, got lower {self.lower} and upper {self.upper}")


Group = Sequence[Bounds]
"""The vertices of one slot sharing group."""


def reactive_bounds(max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> Bounds:
    """The bounds of a vertex in Reactive Mode: `AdaptiveScheduler.computeReactiveModeVertexParallelismStore`.

    Its configured parallelism does not count: it uses all available slots, up to its number of key groups.
    """
    return Bounds(1, max_parallelism)


def required_slots(groups: Sequence[Group]) -> int:
    """Slots that the job asks for: `SlotSharingSlotAllocator.calculateRequiredSlots`."""
    return sum(_most(group) for group in groups)


def slot_allocation(groups: Sequence[Group], slots: int) -> tuple[tuple[int, ...], ...] | None:
    """The parallelism of every vertex with this many slots: `SlotSharingSlotAllocator.determineParallelism`.

    Each group gets its minimum; the remaining slots are shared evenly, and slots that a group cannot use go to the
    others. Flink takes the groups with the narrowest bounds first; for equal bounds its order is undefined, and this
    function takes them in the given order.

    Returns:
        The parallelism by group and vertex; None if the slots do not suffice for the minimum of every group.
    """
    reserved = sum(_least(group) for group in groups)
    if reserved > slots:
        return None
    shares = dict.fromkeys(range(len(groups)), 0)
    left = len(groups)
    for index in sorted(shares, key=lambda index: _most(groups[index]) - _least(groups[index])):
        least = _least(groups[index])
        shares[index] = least + min(_most(groups[index]) - least, (slots - reserved) // left)
        reserved -= least
        slots -= shares[index]
        left -= 1
    return tuple(tuple(min(vertex.upper, shares[index]) for vertex in group) for index, group in enumerate(groups))


def slots_needed(groups: Sequence[Group], needed: Sequence[Sequence[int]]) -> int:
    """The fewest slots with which every vertex is certain to run at the parallelism it needs, or at its upper bound.

    With a single group that is the largest needed parallelism. Slots are shared evenly among groups, so a job whose
    groups differ may need more than the sum of their needs. No group may be empty; `needed` has the same order.
    """

    def beyond(pair: tuple[Group, Sequence[int]]) -> int:
        group, wants = pair
        return max(min(want, vertex.upper) for vertex, want in zip(group, wants, strict=True)) - _least(group)

    # Of groups with equally wide bounds, any may come first and get fewer slots: assume that the neediest comes first.
    pairs = sorted(zip(groups, needed, strict=True), key=beyond, reverse=True)

    def enough(slots: int) -> bool:
        given = slot_allocation([group for group, _ in pairs], slots)
        return given is not None and all(
            has >= min(want, vertex.upper)
            for (group, wants), shares in zip(pairs, given, strict=True)
            for vertex, want, has in zip(group, wants, shares, strict=True)
        )

    return bisect_left(range(required_slots(groups)), True, key=enough)


def _least(group: Group) -> int:
    return max((vertex.lower for vertex in group), default=0)


def _most(group: Group) -> int:
    return max((vertex.upper for vertex in group), default=0)
