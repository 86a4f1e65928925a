"""docs/aws.md and the examples are held against the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.sources.cloudwatch import CloudWatch, Query
from autoscaler.targets.aws_asg import groups as aws_groups
from autoscaler.targets.aws_asg import target as aws_asg
from autoscaler.targets.aws_asg.target import AwsAsg

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "aws.md").read_text()
TARGET, _, SOURCE = PAGE.partition("## Source `cloudwatch`")


def rows(text: str) -> dict[str, str]:
    """Name of each parameter in a table -> its default."""
    found = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(("text", "plugin"), [(TARGET, AwsAsg), (SOURCE, CloudWatch), (SOURCE, Query)])
def test_every_parameter_is_on_the_page_with_its_default(text: str, plugin: type) -> None:
    known = rows(text)
    for field in dataclasses.fields(plugin):
        assert field.name in known
        assert f"        {field.name}: " in (plugin.__doc__ or "")
        match field.default:
            case dataclasses.MISSING if field.default_factory is dataclasses.MISSING:
                assert known[field.name] == "required"
            case timedelta() as default:
                assert known[field.name] == f"`{default.total_seconds():g}s`"
            case str(default) | float(default) if default:
                assert known[field.name] == f"`{default}`"


def test_the_examples_are_configurations_that_load(tmp_path: Path) -> None:
    needed = "    target: {type: null}\n    max: 4\n    policies: {p: {type: backlog-drain, drain_time: 1m}}\n"
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        file = tmp_path / "autoscaler.yaml"
        file.write_text(block if "policies:" in block else block + needed)
        assert load(file, {}).clusters


@pytest.mark.parametrize("name", ["flink-asg", "spark-asg"])
def test_a_whole_configuration_fits_in_25_lines(name: str) -> None:
    path = ROOT / "examples" / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 25
    (cluster,) = load(path, {}).clusters.values()
    assert isinstance(cluster.target, AwsAsg)
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (2, 24)


def test_every_question_to_aws_is_on_the_page() -> None:
    source = "".join(map(inspect.getsource, (aws_asg, aws_groups)))
    for action in set(re.findall(r'"((?:Describe|Set|Terminate|Complete|Record)[A-Z]\w+)"', source)):
        shown = {"CompleteLifecycleAction": "hook", "RecordLifecycleActionHeartbeat": "heartbeat"}.get(action, action)
        assert shown in TARGET


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
        "instances went without being drained:",
        "workers are not drained:",
        "is not terminated yet",
        "cannot be terminated:",
    ],
)
def test_the_remarks_on_the_page_are_those_of_the_code(remark: str) -> None:
    assert remark.rstrip(":") in PAGE
    assert remark in "".join(map(inspect.getsource, (aws_asg, aws_groups)))
