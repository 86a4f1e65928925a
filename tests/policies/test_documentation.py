from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler_policies.adaptive.policy import Adaptive
from autoscaler_policies.flink_operator.policy import FlinkOperator
from autoscaler_policies.hpa.policy import Behavior, Hpa, Metric, MetricType, ScaleDown, ScaleUp
from autoscaler_policies.hpa.rules import PODS_UP, PolicyType, ScalingPolicy
from autoscaler_policies.research.daedalus import Daedalus
from autoscaler_policies.research.ds2 import Ds2
from autoscaler_policies.rules.backlog_drain import BacklogDrain
from autoscaler_policies.rules.target_tracking import Mode, TargetTracking
from autoscaler_policies.rules.threshold import Aggregate, Rule, Threshold
from autoscaler_policies.schedule.policy import Exclusion, Schedule, Window

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
FRAME = """
daemon: {{directory: var}}
sources:
  prom: {{type: prometheus, url: "http://127.0.0.1:9090"}}
clusters:
  c:
    interval: 15s
    target: {{type: "null"}}
    min: 1
    max: 10
    metrics:
      cpu: {{source: prom, query: cpu}}
      lag: {{source: prom, query: lag}}
      arrivals: {{source: prom, query: arrivals}}
      throughput: {{source: prom, query: throughput}}
      utilization: {{source: prom, query: utilization}}
      requests: {{source: prom, query: requests}}
    {policies}
"""
WRITTEN = {
    "main": Adaptive(objective=timedelta(seconds=60)),
    "drain": BacklogDrain(drain_time=timedelta(seconds=60), stops=False),
    "cpu": TargetTracking("cpu", 0.6),
    "requests": TargetTracking("requests", 300.0, Mode.TOTAL),
    "hpa": Hpa(
        (Metric(MetricType.UTILIZATION, "cpu", 60.0), Metric(MetricType.VALUE_PER_REPLICA, "lag", 1000.0)),
        Behavior(
            ScaleUp(policies=(PODS_UP, ScalingPolicy(PolicyType.PERCENT, 100, timedelta(seconds=15)))),
            ScaleDown(timedelta(minutes=5), policies=(ScalingPolicy(PolicyType.PERCENT, 10, timedelta(minutes=1)),)),
        ),
    ),
    "rules": Threshold(
        up=(
            Rule("cpu", above=0.8, hold=timedelta(minutes=1), percent=50),
            Rule("lag", above=10000, replicas=4),
        ),
        down=(Rule("cpu", below=0.3, hold=timedelta(minutes=10), aggregate=Aggregate.MAX),),
    ),
    "rates": Ds2(scaling_factor=0.2, minor=0),
    "recovery": Daedalus(utilization="cpu"),
    "flink": FlinkOperator(utilization_target=0.8, catch_up_duration=timedelta(minutes=10), busy="utilization"),
    "calendar": Schedule(
        (
            Window("office hours", "0 8 * * 1-5", "0 18 * * 1-5", min=4),
            Window("sale", "0 6 27 11 *", duration=timedelta(hours=18), min=10, max=40),
        ),
        (Exclusion("deploy", "30 9 * * tue", duration=timedelta(minutes=20)),),
        "Europe/Berlin",
    ),
}


def test_the_examples_of_the_page_are_configurations_that_load(tmp_path: Path) -> None:
    found: dict[str, object] = {}
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        path = tmp_path / "autoscaler.yaml"
        path.write_text(FRAME.format(policies=block.replace("\n", "\n    ")))
        spec = load(path, {}).clusters["c"].spec
        found |= {named.name: named.policy for named in spec.policies}
    assert found == WRITTEN


@pytest.mark.parametrize(
    "policy",
    [
        BacklogDrain,
        Daedalus,
        Ds2,
        FlinkOperator,
        TargetTracking,
        Threshold,
        Rule,
        Schedule,
        Window,
        Exclusion,
        Hpa,
        Metric,
        Behavior,
        ScaleUp,
        ScaleDown,
        ScalingPolicy,
    ],
)
def test_every_parameter_is_on_the_page_and_in_the_docstring(policy: type) -> None:
    for field in dataclasses.fields(policy):
        assert f"`{field.name}`" in PAGE
        assert f"        {field.name}: " in (policy.__doc__ or "")
