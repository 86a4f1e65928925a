"""Replay on Spark: decides again on recorded observations, as `autoscaler.trace.replay` does, for a fleet."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, TimestampType

from autoscaler.core.model import ClusterSpec, ClusterState, Decision
from autoscaler.history.read import _observation, _record, _time
from autoscaler.history.schema import struct
from autoscaler.trace.replay import decide_again, first_difference

REPLAYED = struct(
    cluster=StringType(),
    at=TimestampType(),
    recorded=IntegerType(),
    again=IntegerType(),
    recorded_digest=StringType(),
    digest=StringType(),
    why=StringType(),
)
"""The recorded size and the one of the replay, a digest of each decision, and the first difference, or null."""


def replay_decisions(observations: DataFrame, decisions: DataFrame, specs: Mapping[str, ClusterSpec]) -> DataFrame:
    """Decide again on each record of the clusters that have a spec, in order of time.

    A task holds one batch and the state of one cluster, however long its history is.

    Args:
        observations: the table of a dataset.
        decisions: the table of a dataset.
        specs: cluster -> its spec.

    Returns: `REPLAYED`.
    """
    seen = observations.where(F.col("cluster").isin(*specs)).select("cluster", "at", F.struct("*").alias("observation"))
    done = decisions.select("cluster", "at", F.struct("*").alias("decision"))
    records = (
        seen.join(done, ["cluster", "at"])
        .repartition(max(1, len(specs)), "cluster")
        .sortWithinPartitions("cluster", "at")
        .select("cluster", "at", "observation", "decision")
    )
    return records.mapInArrow(_Replay(pickle.dumps(dict(specs))), REPLAYED)


@dataclass(frozen=True, slots=True)
class _Replay:
    specs: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        specs: Mapping[str, ClusterSpec] = pickle.loads(self.specs)  # noqa: S301 - `replay_decisions` has pickled it
        schema = to_arrow_schema(REPLAYED, timezone="UTC")
        cluster, state = "", ClusterState()
        for batch in batches:
            rows = []
            for pair in batch.to_pylist():
                at = _time(pair["at"])
                seen = _observation({**pair["observation"], "at": at})
                one = _record(seen, {**pair["decision"], "at": at})
                if pair["cluster"] != cluster:
                    cluster, state = pair["cluster"], ClusterState()
                state, decision = decide_again(specs[cluster], state, one)
                recorded = one.decision
                differs = first_difference(recorded, decision)
                rows.append(
                    {
                        "cluster": cluster,
                        "at": recorded.at,
                        "recorded": recorded.desired,
                        "again": decision.desired,
                        "recorded_digest": digest(recorded),
                        "digest": digest(decision),
                        "why": None if differs is None else f"{differs.stage}: {differs.recorded}; {differs.replayed}",
                    }
                )
            yield pa.RecordBatch.from_pylist(rows, schema)


def digest(decision: Decision) -> str:
    """A digest of a whole decision."""
    return hashlib.sha256(repr(decision).encode()).hexdigest()[:16]
