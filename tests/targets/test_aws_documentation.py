"""docs/integrations/aws.md and the examples match the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.targets.aws_asg import groups, target
from autoscaler.targets.aws_asg.target import AwsAsg

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations" / "aws.md").read_text()


@pytest.mark.parametrize("name", ["flink-asg", "spark-asg"])
def test_a_complete_configuration_fits_in_25_lines(name: str) -> None:
    path = ROOT / "examples" / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 25
    (cluster,) = load(path, {}).clusters.values()
    assert isinstance(cluster.target, AwsAsg)
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (2, 24)


def test_every_call_to_aws_is_on_the_page() -> None:
    source = "".join(map(inspect.getsource, (target, groups)))
    for action in set(re.findall(r'"((?:Describe|Set|Terminate|Complete|Record)[A-Z]\w+)"', source)):
        shown = {"CompleteLifecycleAction": "hook", "RecordLifecycleActionHeartbeat": "heartbeat"}.get(action, action)
        assert shown in PAGE


@pytest.mark.parametrize(
    "remark",
    [
        "instances are pending",
        "terminating",
        "in service are unhealthy and about to be replaced",
        "the last launch failed:",
        "AWS still shows a desired capacity of",
        "being drained before they are terminated",
        "also sets this group's size",
        "instances were removed without draining:",
        "workers are not drained:",
        "is not terminated yet",
        "cannot be terminated:",
    ],
)
def test_the_remarks_of_the_page_are_those_of_the_code(remark: str) -> None:
    assert remark.rstrip(":") in PAGE
    assert remark in "".join(map(inspect.getsource, (target, groups)))
