"""Shares of inputs whose partitions go to tasks as they are: `PointwiseVertexInputInfoComputer` of Flink 2."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.schedulers.batch.inputs import Input, Share, shares_by_count, shares_of_slices
from autoscaler.schedulers.batch.ranges import IndexRange, Slice, balanced_ranges, even_ranges
from autoscaler.schedulers.slots import Bounds

SLICES_PER_TASK = 32
"""`MAX_NUM_SUBPARTITION_SLICES_FACTOR`: more make the search slow."""


def pointwise_shares(
    inputs: Mapping[int, Input], parallelism: int, bounds: Bounds, volume: int
) -> dict[int, tuple[Share, ...]]:
    """Shares for each input: all are cut into as many slices, and a task gets the same slices of each.

    Raises:
        ValueError: inputs whose keys must meet have different numbers of partitions.
    """
    count = _slice_count(inputs, bounds)
    slices = {key: _slices(each, count) for key, each in inputs.items()}
    ranges = balanced_ranges(list(zip(*slices.values(), strict=True)), volume, bounds)
    if ranges is None:
        return {key: shares_by_count(each, parallelism) for key, each in inputs.items()}
    return {key: shares_of_slices(each, slices[key], ranges) for key, each in inputs.items()}


def _slice_count(inputs: Mapping[int, Input], bounds: Bounds) -> int:
    """`createSubpartitionSlicesByInputIndex`: whole partitions where keys must meet, else parts of them."""
    correlated = {each.partitions.end + 1 for each in inputs.values() if each.intra_input_key_correlated}
    if len(correlated) > 1:
        raise ValueError(f"expected inputs whose keys must meet to have as many partitions, got {sorted(correlated)}")
    if correlated:
        return correlated.pop()
    fewest = min((each.partitions.end + 1) * (each.subpartitions.end + 1) for each in inputs.values())
    return min(fewest, SLICES_PER_TASK * bounds.upper)


def _slices(each: Input, count: int) -> list[Slice]:
    """So many blocks of about as many subpartitions: `createSubpartitionSlices`.

    Raises:
        ValueError: there are fewer subpartitions.
    """
    partitions = each.partitions.end + 1
    if partitions >= count:
        return [each.slice(part, each.subpartitions) for part in even_ranges(partitions, count)]
    return [
        each.slice(IndexRange(index, index), part)
        for index in range(partitions)
        for part in even_ranges(
            each.subpartitions.end + 1, (index + 1) * count // partitions - index * count // partitions
        )
    ]
