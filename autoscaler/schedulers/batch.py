"""How Flink's Adaptive Batch Scheduler chooses a parallelism: pure arithmetic, as in Flink 1.17 to 2.x.

Each vertex of a batch job gets its parallelism when its inputs are complete, by the bytes it consumes.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Options of the scheduler: `execution.batch.adaptive.auto-parallelism.*`, with Flink's defaults.

    Attributes:
        avg_data_volume_per_task: bytes that a task should consume.
        min_parallelism, max_parallelism: bounds of what is chosen.
    """

    avg_data_volume_per_task: int = 16 * MEBIBYTE
    min_parallelism: int = 1
    max_parallelism: int = 128

    def __post_init__(self) -> None:
        if self.avg_data_volume_per_task < 1:
            raise ValueError(f"expected avg_data_volume_per_task of 1 or more, got {self.avg_data_volume_per_task}")
        if not 1 <= self.min_parallelism <= self.max_parallelism:
            raise ValueError(
                "expected 1 <= min_parallelism <= max_parallelism, "
                f"got {self.min_parallelism} and {self.max_parallelism}"
            )


def parallelism(settings: BatchSettings, consumed_bytes: int) -> int:
    """The parallelism of a vertex by the bytes of its inputs, without those that are broadcast."""
    wanted = -(-consumed_bytes // settings.avg_data_volume_per_task)
    return min(max(wanted, settings.min_parallelism), settings.max_parallelism)
