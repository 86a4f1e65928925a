"""Parity: Spark's decisions on a history equal the recorded ones, and those of `replay`, digest for digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from autoscaler.core.model import ClusterSpec, Limits, NamedPolicy
from autoscaler.history.dataset import open_dataset
from autoscaler.plugins import Kind, load
from autoscaler.ports import Record
from autoscaler.simulation import faults
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS
from autoscaler.testing import virtual_time
from autoscaler.trace.replay import Replay
from tests.cli import test_parity
from tests.history import written
from tests.history.replay_job import REPLAYED, digest, replay_decisions

METRICS = ("lag", "arrivals", "throughput", "saturation", "utilization", "cpu")


def spec(name: str, kind: str, **fields: Any) -> ClusterSpec:
    policy = NamedPolicy("main", load(Kind.POLICY, kind)(**fields))
    return ClusterSpec(
        name=name,
        limits=Limits(1, 24),
        policies=(policy,),
        metrics=METRICS,
        engine=True,
        lookback=timedelta(minutes=32),
    )


def simulated(what: ClusterSpec, wrong: str, seed: int) -> list[Record]:
    steps = load_by_name("steps6h")
    cut = replace(steps, rates=steps.rates[600:1000], changes=(), rate_per_worker=steps.per_worker(0.9))
    kept: list[Record] = []
    run(what, PLANTS["k8s"], cut, seed, record=kept.append, faults=faults.parse(wrong))
    return kept


def decided(spark: SparkSession, place: Path, specs: dict[str, ClusterSpec]) -> dict[tuple[str, Any], Any]:
    dataset = open_dataset(place)
    found = replay_decisions(dataset.read(spark, "observations"), dataset.read(spark, "decisions"), specs)
    assert found.schema == REPLAYED
    order: dict[str, Any] = {}
    rows = {}
    for row in found.collect():
        assert order.setdefault(row["cluster"], row["at"]) <= row["at"], "in order of time"
        rows[row["cluster"], row["at"].timestamp()] = row
    return rows


def test_spark_makes_the_recorded_decisions(spark: SparkSession, tmp_path: Path) -> None:
    specs = {"a": spec("a", "adaptive"), "b": spec("b", "backlog-drain")}
    wrong = "missing@lag:1m,refused:40%,half:30%"
    records = [*simulated(specs["a"], wrong, 1), *simulated(specs["b"], wrong, 2)]
    assert any(one.failed for one in records)
    place = written.dataset(tmp_path / "history", [*records, *simulated(spec("c", "adaptive"), wrong, 3)])
    rows = decided(spark, place, specs)
    assert len(rows) == len(records)
    for one in records:
        row = rows[one.decision.cluster, one.decision.at.timestamp()]
        assert row["digest"] == row["recorded_digest"] == digest(one.decision)
        assert row["why"] is None


@pytest.mark.e2e
def test_spark_decides_like_replay_with_another_policy(spark: SparkSession, tmp_path: Path) -> None:
    records = simulated(spec("a", "adaptive"), "crash:10m", 4)
    other = spec("a", "backlog-drain")
    replay = Replay(other)
    rows = decided(spark, written.dataset(tmp_path / "history", records), {"a": other})
    different = 0
    for one in records:
        decision = replay.add(one)
        assert decision is not None
        row = rows["a", one.decision.at.timestamp()]
        assert row["digest"] == digest(decision)
        assert (row["recorded"], row["again"]) == (one.decision.desired, decision.desired)
        different += row["why"] is not None
    assert different


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["adaptive", "backlog-drain"])
def test_spark_decides_like_a_daemon_whatever_went_wrong(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    one = test_parity._spec(kind)
    offered: Callable[[], Any] = test_parity._load
    what = faults.parse("refused:40%,half:30%,crash:20m,missing@lag:3m")
    lived = virtual_time.run(test_parity._daemon(one, offered(), what, 0)).records
    rows = decided(spark, written.dataset(tmp_path / "history", lived), {"x": one})
    assert len(rows) == len(lived)
    assert sum(record.decision.rescale for record in lived) > 1
    for record in lived:
        row = rows["x", record.decision.at.timestamp()]
        assert row["digest"] == row["recorded_digest"] == digest(record.decision)
