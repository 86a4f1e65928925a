"""What Flink SQL changes about a join while its job runs: a broadcast of a small side, splits of skewed partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autoscaler.schedulers.batch.parallelism import BatchSettings
from autoscaler.schedulers.batch.skew import skew_threshold

Side = Literal["left", "right"]
JoinType = Literal["inner", "left", "right", "semi", "anti"]
OutEdge = Literal["free", "consecutive_hash", "forward"]
"""What follows a join, and so whether the join may change: `BaseAdaptiveJoinOperatorOptimizationStrategy`.

free: records are shuffled again, or those of one key need not meet. consecutive_hash: they stay in their task as they
are hashed by the same key; if forced, they are shuffled again. forward: they must stay in their task.
"""
_FREE: frozenset[OutEdge] = frozenset({"free"})


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """How a join runs: `AdaptiveJoin.markAsBroadcastJoin`.

    Attributes:
        broadcast: every task gets all of the side `build`; the other side stays where it is.
        build: the side of which the hash table is made.
    """

    broadcast: bool
    build: Side


def broadcast_join(
    settings: BatchSettings,
    join_type: JoinType,
    left_bytes: int | None,
    right_bytes: int | None,
    out_edges: Iterable[OutEdge] = (),
) -> JoinPlan | None:
    """Whether a join becomes a broadcast join: `AdaptiveBroadcastJoinOptimizationStrategy.tryOptimizeAdaptiveJoin`.

    A side that is small enough is broadcast as soon as it is complete, the left one first; where neither is, the
    smaller one is built.

    Args:
        settings: strategy and threshold.
        join_type: which side may be broadcast: one that is kept whole, as the left one of a left join, may not.
        left_bytes: of the left side; None: not complete yet.
        right_bytes: of the right side.
        out_edges: what consumes the join.

    Returns:
        None: the join stays as planned, until the other side is complete or altogether.

    Raises:
        ValueError: Flink does not adapt this type of join.
    """
    kept = _kept_sides(join_type)
    if settings.adaptive_broadcast_join_strategy == "none" or not _FREE.issuperset(out_edges):
        return None
    sides: tuple[tuple[Side, Side, int | None], ...] = (("left", "right", left_bytes), ("right", "left", right_bytes))
    for side, other, size in sides:
        if size is not None and size < settings.broadcast_threshold and other in kept:
            return JoinPlan(broadcast=True, build=side)
    if left_bytes is None or right_bytes is None:
        return None
    return JoinPlan(broadcast=False, build="left" if left_bytes < right_bytes else "right")


def skewed_sides(
    settings: BatchSettings,
    join_type: JoinType,
    left: Sequence[int],
    right: Sequence[int],
    out_edges: Iterable[OutEdge] = (),
) -> frozenset[Side]:
    """The sides of a join whose skewed partitions are split: `AdaptiveSkewedJoinOptimizationStrategy`.

    Pass their inputs to `decide` with `intra_input_key_correlated=False`. A broadcast join is never changed.

    Args:
        settings: strategy, factor and threshold.
        join_type: which side may be split: the other one is read several times.
        left: bytes of each subpartition of the left side, in all partitions and inputs.
        right: of the right side.
        out_edges: what consumes the join.

    Raises:
        ValueError: Flink does not adapt this type of join.
    """
    kept = _kept_sides(join_type)
    strategy = settings.skewed_join_optimization_strategy
    allowed = _FREE | {"consecutive_hash"} if strategy == "forced" else _FREE
    if strategy == "none" or not allowed.issuperset(out_edges):
        return frozenset()
    sides: tuple[tuple[Side, Sequence[int]], ...] = (("left", left), ("right", right))
    return frozenset(
        side
        for side, sizes in sides
        if side in kept and max(sizes) > skew_threshold(sizes, settings.skewed_factor, settings.skewed_threshold)
    )


def _kept_sides(join_type: JoinType) -> frozenset[Side]:
    """The sides of which a record may be read by one task while the other side is read by several."""
    match join_type:
        case "inner":
            return frozenset({"left", "right"})
        case "left" | "semi" | "anti":
            return frozenset({"left"})
        case "right":
            return frozenset({"right"})
        case _:
            raise ValueError(f"expected an inner, left, right, semi or anti join, got {join_type}")
