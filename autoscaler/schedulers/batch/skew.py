"""Skewed subpartitions: which they are, and how large their parts should be."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high, median_low

from autoscaler.schedulers.batch.ranges import IndexRange


def skew_threshold(sizes: Sequence[int], factor: float, threshold: int) -> int:
    """Bytes above which a subpartition is skewed: `VertexParallelismAndInputInfosDeciderUtils.computeSkewThreshold`.

    So many times the median, which counts as 1 or more, but no less than the threshold.
    """
    median = max((median_low(sizes) + median_high(sizes)) // 2, 1)
    return int(max(median * factor, threshold))


def target_size(sizes: Sequence[int], threshold: int, volume: int) -> int:
    """Bytes for each part of a skewed subpartition: `VertexParallelismAndInputInfosDeciderUtils.computeTargetSize`.

    The mean of those that are not skewed, but no less than the volume of a task.
    """
    usual = [size for size in sizes if size <= threshold]
    return max(volume, sum(usual) // len(usual)) if usual else volume


def split_partitions(sizes: Sequence[int], target: int) -> tuple[IndexRange, ...]:
    """Ranges of partitions of less than the target: `AllToAllVertexInputInfoComputer.computePartitionRangesEvenlyData`.

    Args:
        sizes: of one subpartition, its bytes in each partition.
        target: bytes; a partition that has as many is a range by itself.
    """
    ranges: list[IndexRange] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size >= target:
            ranges.append(IndexRange(start, index - 1))
            start, total = index, 0
        total += size
    return (*ranges, IndexRange(start, len(sizes) - 1))
