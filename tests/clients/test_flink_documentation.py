"""The page on Flink matches the code."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from autoscaler.config import load
from autoscaler.core.model import Learned, Observation, Reading, View
from autoscaler.sources.flink_metrics import FlinkQuery, Metric
from autoscaler_policies.rules.target_tracking import TargetTracking

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations" / "flink.md").read_text()


def rows() -> dict[str, str]:
    """Name in the first column of a table -> its second column."""
    found = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", PAGE, re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


def test_every_metric_is_on_the_page() -> None:
    assert set(Metric) <= rows().keys()


def test_the_documented_policy_requests_the_workers_for_the_needed_slots(tmp_path: Path) -> None:
    """Whatever the size is: needed workers = ceil(slots needed / slots per worker)."""
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "required_slots" in block)
    file = tmp_path / "autoscaler.yaml"
    file.write_text(block)
    cluster = load(file, {"FLINK_TOKEN": "hunter2"}).clusters["orders"]
    (named,) = cluster.spec.policies
    assert isinstance(named.policy, TargetTracking)
    metric = named.policy.metric
    query = cluster.metrics[metric].query
    assert isinstance(query, FlinkQuery)
    assert query.metric == "required_slots"
    for slots, size in product(range(1, 49), range(1, 25)):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        readings = {metric: Reading(float(slots), now)}
        seen = Observation(at=now, desired=size, ready=size, metrics=readings)
        view = View(
            now=now,
            current=size,
            ready=size,
            metrics=readings,
            past=(seen,),
            limits=cluster.spec.limits,
            learned=Learned(),
            spec=cluster.spec,
        )
        assert named.policy.evaluate(view).replicas == -(-slots // cluster.spec.slots_per_replica), (slots, size)
