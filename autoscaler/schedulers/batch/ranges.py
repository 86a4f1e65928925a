"""Contiguous ranges: by count, and by bytes with the search for the nearest number of them that is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autoscaler.schedulers.slots import Bounds


@dataclass(frozen=True, slots=True, order=True)
class IndexRange:
    """Indexes from `start` to `end`, both included: `IndexRange`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """A block of subpartitions that goes to one task as a whole: `SubpartitionSlice`. Equal only to itself."""

    partitions: IndexRange
    subpartitions: IndexRange
    size: int


Row = tuple[Slice, ...]
"""Slices of several inputs that one task reads together."""


def even_ranges(count: int, parts: int) -> tuple[IndexRange, ...]:
    """Parts of so many indexes whose lengths differ by no more than 1.

    `VertexInputInfoComputationUtils.computeConsumedSubpartitionRange`.

    Raises:
        ValueError: there are more parts than indexes.
    """
    if not 1 <= parts <= count:
        raise ValueError(f"expected 1 to {count} tasks for {count} subpartitions, got {parts}")
    return tuple(IndexRange(index * count // parts, (index + 1) * count // parts - 1) for index in range(parts))


def balanced_ranges(rows: Sequence[Row], volume: int, bounds: Bounds) -> tuple[IndexRange, ...] | None:
    """Ranges of rows for tasks, by bytes or else by count; None: there are fewer rows than tasks.

    `VertexParallelismAndInputInfosDeciderUtils.tryComputeSubpartitionSliceRange`.
    """
    ranges = ranges_by_bytes(rows, volume, bounds)
    if ranges is None and len(rows) >= bounds.lower:
        return even_ranges(len(rows), min(len(rows), bounds.upper))
    return ranges


def ranges_by_bytes(
    rows: Sequence[Row], volume: int, bounds: Bounds, longest: float = math.inf
) -> tuple[IndexRange, ...] | None:
    """Ranges of up to `volume` bytes, or of the volume nearest to it whose number of ranges is within the bounds.

    `VertexParallelismAndInputInfosDeciderUtils.adjustToClosestLegalParallelism`.

    Args:
        rows: what is to be divided.
        volume: bytes that a range should have at most. A row that has more makes a range by itself.
        bounds: how many ranges there may be.
        longest: rows that a range may have.

    Returns:
        None: no volume leads to a number within the bounds.
    """

    def count(limit: int) -> int:
        return len(split_by_bytes(rows, limit, longest))

    found = count(volume)
    sizes = [sum(each.size for each in row) for row in rows]
    least = min(volume, *sizes, volume)
    if found < bounds.lower:
        limit = max_legal_value(lambda value: count(value) >= bounds.lower, least, volume)
        nearest = count(limit)
        # Of the volumes that lead to this number the smallest makes the ranges most even.
        limit = min_legal_value(lambda value: count(value) == nearest, least, limit)
    elif found > bounds.upper:
        limit = min_legal_value(lambda value: count(value) <= bounds.upper, volume, sum(sizes))
    else:
        limit = volume
    ranges = split_by_bytes(rows, limit, longest)
    return ranges if bounds.lower <= len(ranges) <= bounds.upper else None


def split_by_bytes(rows: Sequence[Row], limit: int, longest: float = math.inf) -> tuple[IndexRange, ...]:
    """Fill one range after the other up to a limit: `computeSubpartitionSliceRanges`.

    A slice that several rows of a range have in common is read, and counts, once.
    """
    ranges: list[IndexRange] = []
    start, size, seen = 0, 0, set[Slice]()
    for index, row in enumerate(rows):
        more = sum(each.size for each in row if each not in seen)
        if index > start and (size + more > limit or index - start >= longest):
            ranges.append(IndexRange(start, index - 1))
            start, size, seen = index, 0, set()
            more = sum(each.size for each in row)
        size += more
        seen.update(row)
    return (*ranges, IndexRange(start, len(rows) - 1))


def merged(ranges: Iterable[IndexRange]) -> list[IndexRange]:
    """Join ranges that overlap or touch: `IndexRangeUtil.mergeIndexRanges`."""
    joined: list[IndexRange] = []
    for each in sorted(ranges):
        if joined and each.start <= joined[-1].end + 1:
            joined[-1] = IndexRange(joined[-1].start, max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined


def min_legal_value(legal: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest legal value; -1 if `high` is not legal: `BisectionSearchUtils.findMinLegalValue`."""
    if not legal(high):
        return -1
    while low <= high:
        middle = (low + high) // 2
        if legal(middle):
            high = middle - 1
        else:
            low = middle + 1
    return high + 1


def max_legal_value(legal: Callable[[int], bool], low: int, high: int) -> int:
    """The largest legal value; -1 if `low` is not legal: `BisectionSearchUtils.findMaxLegalValue`."""
    if not legal(low):
        return -1
    while low <= high:
        middle = (low + high) // 2
        if legal(middle):
            low = middle + 1
        else:
            high = middle - 1
    return low - 1
