"""How Flink's Adaptive Batch Scheduler divides a batch job into tasks: pure arithmetic, as in Flink 1.15 to 2.3.

Each vertex of a batch job gets its parallelism when its inputs are complete, by the bytes it consumes, and each of its
tasks a part of them. `parallelism` is the rule in one line, `decide` all of it, `parallelism_1_15` how it began;
`broadcast_join` and `skewed_sides` tell what Flink SQL changes about a join before that.
"""

from autoscaler.schedulers.batch.decision import Decision, decide
from autoscaler.schedulers.batch.inputs import Consumed, Input, Share
from autoscaler.schedulers.batch.joins import JoinPlan, JoinType, OutEdge, Side, broadcast_join, skewed_sides
from autoscaler.schedulers.batch.parallelism import (
    MAX_SUBPARTITIONS_PER_TASK,
    MEBIBYTE,
    BatchSettings,
    forward_group_parallelism,
    normalized_bounds,
    parallelism,
    parallelism_1_15,
    source_parallelism,
)
from autoscaler.schedulers.batch.ranges import IndexRange

__all__ = [
    "MAX_SUBPARTITIONS_PER_TASK",
    "MEBIBYTE",
    "BatchSettings",
    "Consumed",
    "Decision",
    "IndexRange",
    "Input",
    "JoinPlan",
    "JoinType",
    "OutEdge",
    "Share",
    "Side",
    "broadcast_join",
    "decide",
    "forward_group_parallelism",
    "normalized_bounds",
    "parallelism",
    "parallelism_1_15",
    "skewed_sides",
    "source_parallelism",
]
