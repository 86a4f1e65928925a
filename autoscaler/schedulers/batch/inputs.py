"""What a vertex consumes, and the part of it that each task gets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from autoscaler.schedulers.batch.ranges import IndexRange, Slice, even_ranges, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A result that a vertex consumes: `BlockingInputInfo`.

    Attributes:
        subpartition_bytes: of each partition (one for each task that produced it), the bytes of each subpartition.
        broadcast: every task consumes all of it. What was broadcast from the start has one subpartition.
        pointwise: a task consumes whole partitions, as of forward and rescale edges; otherwise subpartitions of all
            partitions, as after a hash.
        type_number: inputs of a kind share one, as those that a union makes one side of a join.
        inter_inputs_keys_correlated: records of one key must meet those of other inputs in one task, as in a join.
            Of point-wise inputs it does not count.
        intra_input_key_correlated: records of one key must meet each other in one task, as in an aggregation.
    """

    subpartition_bytes: Sequence[Sequence[int]]
    broadcast: bool = False
    pointwise: bool = False
    type_number: int = 0
    inter_inputs_keys_correlated: bool = True
    intra_input_key_correlated: bool = True

    def __post_init__(self) -> None:
        if len({len(each) for each in self.subpartition_bytes}) != 1 or not self.subpartition_bytes[0]:
            raise ValueError("expected partitions with the same number of subpartitions, 1 or more")
        least = min(map(min, self.subpartition_bytes))
        if least < 0:
            raise ValueError(f"expected 0 or more bytes, got {least}")
        if self.broadcast and self.pointwise:
            raise ValueError("expected broadcast or pointwise, got both")

    @property
    def partitions(self) -> IndexRange:
        """All of them."""
        return IndexRange(0, len(self.subpartition_bytes) - 1)

    @property
    def subpartitions(self) -> IndexRange:
        """All of each partition."""
        return IndexRange(0, len(self.subpartition_bytes[0]) - 1)

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(map(sum, self.subpartition_bytes))

    @property
    def by_subpartition(self) -> tuple[int, ...]:
        """Bytes of each subpartition in all partitions: `getAggregatedSubpartitionBytes`."""
        return tuple(map(sum, zip(*self.subpartition_bytes, strict=True)))

    def slice(self, partitions: IndexRange, subpartitions: IndexRange) -> Slice:
        """A block, with its bytes."""
        rows = self.subpartition_bytes[partitions.start : partitions.end + 1]
        size = sum(sum(row[subpartitions.start : subpartitions.end + 1]) for row in rows)
        return Slice(partitions, subpartitions, size)


@dataclass(frozen=True, slots=True, order=True)
class Consumed:
    """Subpartitions of partitions that a task reads: an entry of `ExecutionVertexInputInfo`."""

    partitions: IndexRange
    subpartitions: IndexRange


Share = tuple[Consumed, ...]
"""What one task reads of one input."""


def portion(volume: int, some: Iterable[Input], inputs: Iterable[Input]) -> int:
    """The part of a task's volume for some of its inputs: `calculateDataVolumePerTaskForInputsGroup`."""
    total = sum(each.size for each in inputs)
    return int(sum(each.size for each in some) / total * volume) if total else 0


def subpartition_count(inputs: Collection[Input]) -> int:
    """The number of subpartitions that all have: `checkAndGetSubpartitionNum`.

    Raises:
        ValueError: they differ.
    """
    counts = {each.subpartitions.end + 1 for each in inputs}
    if len(counts) > 1:
        raise ValueError(f"expected inputs with the same number of subpartitions, got {sorted(counts)}")
    return counts.pop()


def shares_by_count(each: Input, parallelism: int) -> tuple[Share, ...]:
    """Shares of about as many subpartitions: `VertexInputInfoComputationUtils.computeVertexInputInfos`.

    Raises:
        ValueError: there are more tasks than subpartitions.
    """
    if each.broadcast:
        return whole_shares(each, parallelism)
    if each.pointwise:
        return pointwise_shares_by_count(each, parallelism)
    ranges = even_ranges(each.subpartitions.end + 1, parallelism)
    return tuple((Consumed(each.partitions, subpartitions),) for subpartitions in ranges)


def whole_shares(each: Input, parallelism: int) -> tuple[Share, ...]:
    """All of it for every task, as of what is broadcast."""
    return ((Consumed(each.partitions, each.subpartitions),),) * parallelism


def pointwise_shares_by_count(each: Input, parallelism: int) -> tuple[Share, ...]:
    """Partitions, or parts of one, for each task: `computeVertexInputInfoForPointwise`.

    Raises:
        ValueError: there are more tasks for a partition than subpartitions.
    """
    count = each.partitions.end + 1
    if count >= parallelism:
        return tuple((Consumed(partitions, each.subpartitions),) for partitions in even_ranges(count, parallelism))
    shares: list[Share] = []
    for index in range(count):
        first, end = (-(-position * parallelism // count) for position in (index, index + 1))
        parts = even_ranges(each.subpartitions.end + 1, end - first)
        shares += [(Consumed(IndexRange(index, index), parts[task % len(parts)]),) for task in range(first, end)]
    return tuple(shares)


def shares_of_slices(each: Input, slices: Sequence[Slice], ranges: Sequence[IndexRange]) -> tuple[Share, ...]:
    """Shares from ranges of slices: `createdJobVertexInputInfoForNonBroadcast`.

    Slices may be of several inputs with different numbers of partitions: no more are read than there are.
    """
    return tuple(_share(each, slices[part.start : part.end + 1]) for part in ranges)


def _share(each: Input, slices: Sequence[Slice]) -> Share:
    """Join the blocks: `computeConsumedSubpartitionGroups`.

    Of a point-wise input no partition is in two blocks, of others no subpartition.
    """
    blocks: dict[IndexRange, list[IndexRange]] = defaultdict(list)
    for part in slices:
        partitions = IndexRange(part.partitions.start, min(part.partitions.end, each.partitions.end))
        key, value = (partitions, part.subpartitions) if each.pointwise else (part.subpartitions, partitions)
        blocks[key].append(value)
    keys_of: dict[IndexRange, list[IndexRange]] = defaultdict(list)
    for key, values in blocks.items():
        for value in merged(values):
            keys_of[value].append(key)
    joined = [(key, value) for value, keys in keys_of.items() for key in merged(keys)]
    return tuple(sorted(Consumed(key, value) if each.pointwise else Consumed(value, key) for key, value in joined))
