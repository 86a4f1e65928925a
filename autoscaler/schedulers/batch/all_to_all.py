"""Shares of inputs of which every task reads from every partition: `AllToAllVertexInputInfoComputer` of Flink 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product

from autoscaler.schedulers.batch.inputs import (
    Input,
    Share,
    pointwise_shares_by_count,
    portion,
    shares_by_count,
    shares_of_slices,
    subpartition_count,
    whole_shares,
)
from autoscaler.schedulers.batch.parallelism import BatchSettings
from autoscaler.schedulers.batch.ranges import IndexRange, Row, Slice, balanced_ranges
from autoscaler.schedulers.batch.skew import skew_threshold, split_partitions, target_size
from autoscaler.schedulers.slots import Bounds


def all_to_all_shares(
    settings: BatchSettings, inputs: Mapping[int, Input], parallelism: int, bounds: Bounds, volume: int
) -> dict[int, tuple[Share, ...]]:
    """Shares for each input: those whose keys must meet are divided together, then others one by one."""
    together = {key: each for key, each in inputs.items() if each.inter_inputs_keys_correlated}
    alone = {key: each for key, each in inputs.items() if not each.inter_inputs_keys_correlated}
    shares: dict[int, tuple[Share, ...]] = {}
    if together:
        part = portion(volume, together.values(), inputs.values())
        shares = _shares_together(settings, together, parallelism, bounds, part)
        parallelism = len(next(iter(shares.values())))
    left = portion(volume, alone.values(), inputs.values())
    for key, each in alone.items():
        shares[key] = _shares_alone(each, parallelism, portion(left, [each], alone.values()))
    return shares


def _shares_together(
    settings: BatchSettings, inputs: Mapping[int, Input], parallelism: int, bounds: Bounds, volume: int
) -> dict[int, tuple[Share, ...]]:
    """`computeJobVertexInputInfosForInputsWithInterKeysCorrelation`."""
    groups: dict[int, list[Input]] = {}
    for each in sorted(inputs.values(), key=lambda each: each.type_number):
        if not each.broadcast:
            groups.setdefault(each.type_number, []).append(each)
    rows = _rows(settings, list(groups.values()), volume) if groups else []
    ranges = balanced_ranges(rows, volume, bounds) if rows else None
    if ranges is None:
        return {key: shares_by_count(each, parallelism) for key, each in inputs.items()}
    slices = dict(zip(groups, zip(*rows, strict=True), strict=True))
    return {
        key: whole_shares(each, len(ranges))
        if each.broadcast
        else shares_of_slices(each, slices[each.type_number], ranges)
        for key, each in inputs.items()
    }


def _rows(settings: BatchSettings, groups: Sequence[Sequence[Input]], volume: int) -> list[Row]:
    """Slices that tasks read together: `createSubpartitionSlicesForInputsWithInterKeysCorrelation`.

    One for each subpartition; where it is split in several groups, each part meets each part of the others.
    """
    subpartition_count(list(chain.from_iterable(groups)))
    parts = zip(*(_parts(settings, group, volume) for group in groups), strict=True)
    return [row for together in parts for row in product(*together)]


def _parts(settings: BatchSettings, group: Sequence[Input], volume: int) -> list[list[Slice]]:
    """Of each subpartition of inputs of one kind its slices: `AggregatedBlockingInputInfo`.

    A skewed one has several, if its keys need not meet and the inputs have the same number of partitions.

    Raises:
        ValueError: keys of some of them must meet, of others not.
    """
    if len({each.intra_input_key_correlated for each in group}) > 1:
        raise ValueError(f"expected one intra_input_key_correlated for all inputs of type {group[0].type_number}")
    sizes = [sum(each) for each in zip(*(each.by_subpartition for each in group), strict=True)]
    threshold = skew_threshold(sizes, settings.skewed_factor, settings.skewed_threshold)
    target = target_size(sizes, threshold, volume)
    partitions = max(each.partitions for each in group)
    splittable = not group[0].intra_input_key_correlated and len({each.partitions for each in group}) == 1
    parts = []
    for index, size in enumerate(sizes):
        ranges: Sequence[IndexRange] = (partitions,)
        if splittable and size > threshold:
            by_partition = [
                sum(each.subpartition_bytes[row][index] for each in group) for row in range(partitions.end + 1)
            ]
            ranges = split_partitions(by_partition, target)
        subpartition = IndexRange(index, index)
        parts.append(
            [Slice(part, subpartition, sum(each.slice(part, subpartition).size for each in group)) for part in ranges]
        )
    return parts


def _shares_alone(each: Input, parallelism: int, volume: int) -> tuple[Share, ...]:
    """`computeVertexInputInfoForInputWithoutInterKeysCorrelation`."""
    if each.broadcast:
        return whole_shares(each, parallelism)
    subpartitions = [IndexRange(index, index) for index in range(each.subpartitions.end + 1)]
    if each.intra_input_key_correlated:
        slices = [each.slice(each.partitions, subpartition) for subpartition in subpartitions]
    else:
        partitions = [IndexRange(index, index) for index in range(each.partitions.end + 1)]
        slices = [each.slice(*block) for block in product(partitions, subpartitions)]
    ranges = balanced_ranges([(part,) for part in slices], volume, Bounds(parallelism, parallelism))
    if ranges is None:
        return pointwise_shares_by_count(each, parallelism)
    return shares_of_slices(each, slices, ranges)
