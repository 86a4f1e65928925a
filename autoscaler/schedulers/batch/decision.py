"""The whole decision for one vertex: its parallelism, and what each task reads of each input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.schedulers.batch.all_to_all import all_to_all_shares
from autoscaler.schedulers.batch.inputs import (
    Consumed,
    Input,
    Share,
    portion,
    shares_by_count,
    subpartition_count,
    whole_shares,
)
from autoscaler.schedulers.batch.parallelism import (
    BatchSettings,
    clamp,
    source_parallelism,
    tasks_for,
    vertex_bounds,
)
from autoscaler.schedulers.batch.pointwise import pointwise_shares
from autoscaler.schedulers.batch.ranges import IndexRange, Slice, ranges_by_bytes
from autoscaler.schedulers.slots import Bounds


@dataclass(frozen=True, slots=True)
class Decision:
    """What a vertex gets: `ParallelismAndInputInfos`.

    Attributes:
        parallelism: its number of tasks.
        shares: for each input, in the order given, what each task reads of it.
    """

    parallelism: int
    shares: tuple[tuple[Share, ...], ...]


def decide(
    settings: BatchSettings,
    inputs: Sequence[Input],
    *,
    parallelism: int | None = None,
    inferred: Iterable[int] = (),
    max_parallelism: int | None = None,
) -> Decision:
    """Decide for a vertex whose inputs are complete: `decideParallelismAndInputInfosForVertex`.

    Args:
        settings: volumes and bounds.
        inputs: what it consumes; empty: it is a source.
        parallelism: that is fixed already, by its author or by its forward group. Its inputs are then divided by count.
        inferred: what each of its sources infers; -1: nothing.
        max_parallelism: of this vertex, or the least of its forward group; None: that of the settings.

    Raises:
        ValueError: the parallelism is not possible, inputs do not fit together, or have fewer subpartitions than tasks.
    """
    least = 1 if parallelism is None else parallelism
    if least < 1 or (max_parallelism is not None and max_parallelism < least):
        raise ValueError(f"expected 1 <= parallelism <= max_parallelism, got {parallelism} and {max_parallelism}")
    if parallelism is not None:
        return Decision(parallelism, tuple(shares_by_count(each, parallelism) for each in inputs))
    if not inputs:
        return Decision(source_parallelism(settings, inferred, max_parallelism), ())
    by_rule = _shares if settings.max_subpartitions_per_task is None else _shares_until_1_20
    shares = by_rule(settings, inputs, vertex_bounds(settings, inferred, max_parallelism))
    return Decision(len(shares[0]), tuple(shares[key] for key in range(len(inputs))))


def _shares(settings: BatchSettings, inputs: Sequence[Input], bounds: Bounds) -> Mapping[int, tuple[Share, ...]]:
    """The rule since Flink 2.0: `decideParallelismAndInputInfosForNonSource`."""
    parallelism = _parallelism(settings, inputs, bounds)
    pointwise = {key: each for key, each in enumerate(inputs) if each.pointwise}
    others = {key: each for key, each in enumerate(inputs) if not each.pointwise}
    if pointwise and not all(each.broadcast for each in others.values()):
        bounds = Bounds(parallelism, parallelism)  # by the bytes of both, as neither knows those of the other
    volume = settings.avg_data_volume_per_task
    shares: dict[int, tuple[Share, ...]] = {}
    if pointwise:
        shares |= pointwise_shares(pointwise, parallelism, bounds, portion(volume, pointwise.values(), inputs))
        parallelism = len(next(iter(shares.values())))
        bounds = Bounds(parallelism, parallelism)
    part = portion(volume, others.values(), inputs)
    return shares | all_to_all_shares(settings, others, parallelism, bounds, part)


def _shares_until_1_20(
    settings: BatchSettings, inputs: Sequence[Input], bounds: Bounds
) -> Mapping[int, tuple[Share, ...]]:
    """The rule of Flink 1.17 to 1.20: `decideParallelismAndEvenlyDistributeData` and `...Subpartitions`."""
    ranges = None if any(each.pointwise for each in inputs) else _ranges_until_1_20(settings, inputs, bounds)
    if ranges is None:
        parallelism = _parallelism(settings, inputs, bounds)
        return {key: shares_by_count(each, parallelism) for key, each in enumerate(inputs)}
    return {
        key: whole_shares(each, len(ranges))
        if each.broadcast
        else tuple((Consumed(each.partitions, part),) for part in ranges)
        for key, each in enumerate(inputs)
    }


def _ranges_until_1_20(
    settings: BatchSettings, inputs: Sequence[Input], bounds: Bounds
) -> tuple[IndexRange, ...] | None:
    counted = [each for each in inputs if not each.broadcast]
    if not counted:
        return None
    subpartition_count(counted)
    partitions = max(each.partitions for each in counted)
    sizes = map(sum, zip(*(each.by_subpartition for each in counted), strict=True))
    rows = [(Slice(partitions, IndexRange(index, index), size),) for index, size in enumerate(sizes)]
    longest = (settings.max_subpartitions_per_task or 0) // (partitions.end + 1)
    return ranges_by_bytes(rows, settings.avg_data_volume_per_task, bounds, longest)


def _parallelism(settings: BatchSettings, inputs: Sequence[Input], bounds: Bounds) -> int:
    """By all bytes that are not broadcast, and by the limit of subpartitions: `decideParallelism`."""
    counted = [each for each in inputs if not each.broadcast]
    wanted = tasks_for(sum(each.size for each in counted), settings.avg_data_volume_per_task)
    if counted and settings.max_subpartitions_per_task is not None:
        most = max((each.partitions.end + 1) * (each.subpartitions.end + 1) for each in counted)
        wanted = max(wanted, -(-most // settings.max_subpartitions_per_task))
    return clamp(wanted, bounds)
