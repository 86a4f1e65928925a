"""How many tasks a vertex gets: by the bytes it consumes, as a source, and where several vertices must agree."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from autoscaler.schedulers.slots import Bounds

MEBIBYTE = 1 << 20
MAX_SUBPARTITIONS_PER_TASK = 1 << 15
"""`MAX_NUM_SUBPARTITIONS_PER_TASK_CONSUME` of Flink 1.17 to 1.20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Options of the scheduler, with Flink's defaults and names; sizes are in bytes.

    Attributes:
        avg_data_volume_per_task: what a task should consume. This and the next three are
            `execution.batch.adaptive.auto-parallelism.*`.
        min_parallelism, max_parallelism: bounds of what is chosen.
        default_source_parallelism: of sources that do not infer theirs, and the most for those that do. None:
            `max_parallelism`.
        skewed_join_optimization_strategy: "auto" splits skewed partitions of a join, "forced" also where its output
            must be shuffled again for it, "none" never. `table.optimizer.skewed-join-optimization.strategy`.
        skewed_factor, skewed_threshold: a partition is skewed above so many times the median, and above so many bytes.
            `table.optimizer.skewed-join-optimization.*`.
        adaptive_broadcast_join_strategy: `table.optimizer.adaptive-broadcast-join.strategy`. "none": no join is changed
            into a broadcast join while the job runs; "auto" and "runtime_only" differ only in the planner.
        broadcast_threshold: `table.optimizer.join.broadcast-threshold`: a smaller side is broadcast. -1: none is.
        max_subpartitions_per_task: `MAX_SUBPARTITIONS_PER_TASK` for the rule of Flink 1.17 to 1.20; None for that since
            2.0, which has no such limit but splits skewed partitions and balances point-wise edges by bytes.
    """

    avg_data_volume_per_task: int = 16 * MEBIBYTE
    min_parallelism: int = 1
    max_parallelism: int = 128
    default_source_parallelism: int | None = None
    skewed_join_optimization_strategy: Literal["auto", "forced", "none"] = "auto"
    skewed_factor: float = 4.0
    skewed_threshold: int = 256 * MEBIBYTE
    adaptive_broadcast_join_strategy: Literal["auto", "runtime_only", "none"] = "auto"
    broadcast_threshold: int = MEBIBYTE
    max_subpartitions_per_task: int | None = None

    def __post_init__(self) -> None:
        if self.avg_data_volume_per_task < 1:
            raise ValueError(f"expected avg_data_volume_per_task of 1 or more, got {self.avg_data_volume_per_task}")
        if not 1 <= self.min_parallelism <= self.max_parallelism:
            raise ValueError(
                "expected 1 <= min_parallelism <= max_parallelism, "
                f"got {self.min_parallelism} and {self.max_parallelism}"
            )
        for name in ("default_source_parallelism", "skewed_factor", "skewed_threshold", "max_subpartitions_per_task"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"expected {name} above 0, got {value}")

    @property
    def bounds(self) -> Bounds:
        """The least and the largest parallelism."""
        return Bounds(self.min_parallelism, self.max_parallelism)


def parallelism(settings: BatchSettings, consumed_bytes: int) -> int:
    """The parallelism of a vertex by the bytes of its inputs, without those that are broadcast.

    `DefaultVertexParallelismAndInputInfosDecider.decideParallelism`, since Flink 1.17.

    Raises:
        ValueError: `consumed_bytes` is negative.
    """
    return clamp(tasks_for(consumed_bytes, settings.avg_data_volume_per_task), settings.bounds)


def parallelism_1_15(settings: BatchSettings, broadcast_bytes: int, non_broadcast_bytes: int) -> int:
    """The same in Flink 1.15: `DefaultVertexParallelismDecider.calculateParallelism`.

    Each task also reads all that is broadcast, which counts as no more than half of its volume. The result is the
    nearest power of two, so that subpartitions, a power of two, divide evenly.

    Raises:
        ValueError: bytes are negative, or there is no power of two within the bounds.
    """
    volume = settings.avg_data_volume_per_task
    broadcast = min(_checked(broadcast_bytes), -(-volume // 2))
    wanted = tasks_for(non_broadcast_bytes, max(volume - broadcast, 1))
    down, up = _power_down(wanted), _power_up(wanted)
    return clamp(down if wanted < (up + down) // 2 else up, normalized_bounds(settings))


def normalized_bounds(settings: BatchSettings) -> Bounds:
    """The powers of two that the bounds hold: `DefaultVertexParallelismDecider.from` of Flink 1.15.

    Raises:
        ValueError: they hold none.
    """
    lower, upper = _power_up(settings.min_parallelism), _power_down(settings.max_parallelism)
    if lower > upper:
        raise ValueError(
            "expected a power of two from min_parallelism to max_parallelism, "
            f"got {settings.min_parallelism} and {settings.max_parallelism}"
        )
    return Bounds(lower, upper)


def source_parallelism(
    settings: BatchSettings, inferred: Iterable[int] = (), max_parallelism: int | None = None
) -> int:
    """The parallelism of a vertex that reads from outside and has no inputs.

    `AdaptiveBatchScheduler.computeDynamicSourceParallelism`, `computeSourceParallelismUpperBound`.

    Args:
        settings: the default.
        inferred: what its sources infer from what there is to read, by `DynamicParallelismInference`; -1: nothing.
        max_parallelism: of the vertex; None: that of the settings.
    """
    largest = settings.max_parallelism if max_parallelism is None else max_parallelism
    wanted = max(inferred, default=-1)
    return min(wanted if wanted > 0 else settings.default_source_parallelism or settings.max_parallelism, largest)


def vertex_bounds(settings: BatchSettings, inferred: Iterable[int], max_parallelism: int | None) -> Bounds:
    """The bounds of a vertex with inputs: `decideParallelismAndInputInfosForVertex`.

    A source in it raises the least to what it infers, the vertex's own largest bounds both.

    Raises:
        ValueError: a source infers more than the settings allow.
    """
    largest = settings.max_parallelism if max_parallelism is None else max_parallelism
    least = max(settings.min_parallelism, *inferred, -1)
    return Bounds(min(least, largest), min(settings.max_parallelism, largest))


def forward_group_parallelism(decided: Iterable[int | None]) -> int | None:
    """The parallelism of vertices that pass each record on to the task of the same index: `JobVertexForwardGroup`.

    The first that is decided, by its author or by its inputs, decides for all: pass it to `decide` for the others.

    Args:
        decided: of each vertex of the group; None: not yet.

    Raises:
        ValueError: two vertices differ.
    """
    known = {each for each in decided if each is not None}
    if len(known) > 1:
        raise ValueError(f"expected one parallelism for all vertices of a forward group, got {sorted(known)}")
    return next(iter(known), None)


def tasks_for(consumed_bytes: int, volume: int) -> int:
    """Tasks of a volume that bytes fill."""
    return -(-_checked(consumed_bytes) // volume)


def clamp(wanted: int, bounds: Bounds) -> int:
    """The nearest number within bounds."""
    return min(max(wanted, bounds.lower), bounds.upper)


def _checked(size: int) -> int:
    if size < 0:
        raise ValueError(f"expected 0 or more bytes, got {size}")
    return size


def _power_up(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def _power_down(number: int) -> int:
    return 1 << number.bit_length() - 1 if number else 0
