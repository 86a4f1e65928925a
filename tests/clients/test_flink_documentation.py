"""The page on Flink is held against the code."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.core.model import Learned, Observation, Reading, View
from autoscaler.engines.flink import CHECKS
from autoscaler.engines.flink import Flink as Engine
from autoscaler.sources.flink import Flink, FlinkQuery, Metric
from autoscaler_policies.rules.target_tracking import TargetTracking

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flink.md").read_text()


def rows() -> dict[str, str]:
    """Name in the first column of a table -> its second column."""
    found = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", PAGE, re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("plugin", [Flink, Engine, FlinkQuery])
def test_every_parameter_is_on_the_page_with_its_default(plugin: type) -> None:
    known = rows()
    for field in dataclasses.fields(plugin):
        assert field.name in known
        assert f"        {field.name}: " in (plugin.__doc__ or "")
        match field.default:
            case dataclasses.MISSING:
                assert known[field.name] == "required"
            case timedelta() as default:
                assert known[field.name] == f"`{default.total_seconds():g}s`"
            case float(default):
                assert known[field.name] == f"`{default}`"
            case _:
                assert known[field.name]


def test_every_metric_is_on_the_page() -> None:
    assert set(Metric) <= rows().keys()


def test_the_examples_are_configurations_that_load(tmp_path: Path) -> None:
    needed = "    policies: {p: {type: backlog-drain, drain_time: 1m}}\n"
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        file = tmp_path / "autoscaler.yaml"
        rest = "" if "policies:" in block else needed
        file.write_text(f"{block}{rest}    target: {{type: null}}\n    max: 4\n")
        config = load(file, {"FLINK_TOKEN": "hunter2"})
        assert isinstance(config.sources["job"], Flink)


def test_the_documented_policy_asks_for_the_workers_that_give_the_slots_needed(tmp_path: Path) -> None:
    """Whatever the size is: needed workers = ceil(slots needed / slots per worker)."""
    (block,) = (block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "required_slots" in block)
    file = tmp_path / "autoscaler.yaml"
    file.write_text(f"{block}    target: {{type: null}}\n    max: 24\n")
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
        seen = Observation(now, size, size, readings)
        view = View(now, size, size, readings, (seen,), cluster.spec.limits, Learned(), cluster.spec)
        assert named.policy.evaluate(view).replicas == -(-slots // cluster.spec.slots_per_replica), (slots, size)


def test_the_doctors_table_has_a_row_for_each_check() -> None:
    table = PAGE.split("## The doctor")[1]
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) - 1 >= len(CHECKS)
