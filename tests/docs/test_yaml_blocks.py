from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from autoscaler.config import load
from tests.docs.blocks import Block, blocks

YAML = tuple(blocks("yaml", "yml"))
WHOLE = tuple(block for block in YAML if re.search(r"^(clusters|fleets):", block.text, re.MULTILINE))
POLICIES = tuple(block for block in YAML if block.text.startswith("policies:"))
METRICS = (
    *("cpu", "lag", "arrivals", "throughput", "utilization", "requests"),
    *("pending_tasks", "running_tasks", "remaining_task_time", "shuffle_workers", "job_time"),
)


def loads(text: str, directory: Path) -> bool:
    """The result of `autoscaler check`, with every variable set."""
    path = directory / "autoscaler.yaml"
    path.write_text(text)
    config = load(path, dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "value"))
    return bool(config.clusters or config.fleets)


@pytest.mark.parametrize("block", WHOLE, ids=lambda block: block.where)
def test_a_configuration_passes_check_unless_it_is_an_excerpt(block: Block, tmp_path: Path) -> None:
    assert block.excerpt or loads(block.text, tmp_path)


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_other_yaml_is_marked_as_an_excerpt(block: Block) -> None:
    assert block in WHOLE or block.excerpt or block.where.startswith("deploy/")


@pytest.mark.parametrize("block", POLICIES, ids=lambda block: block.where)
def test_policy_blocks_load_in_a_cluster(block: Block, tmp_path: Path) -> None:
    metrics = ", ".join(f"{name}: {{source: stats, path: {name}}}" for name in METRICS)
    cluster = f"target: {{type: 'null'}}\nmax: 10\nmetrics: {{{metrics}}}\n{block.text}"
    sources = "sources: {stats: {type: http, url: 'http://127.0.0.1/'}}\n"
    assert loads(f"{sources}clusters:\n  c:\n{textwrap.indent(cluster, '    ')}", tmp_path)


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_every_block_is_yaml(block: Block) -> None:
    if "duplicate" not in block.text and "    max: 6\n" not in block.text:  # the file with errors has a key twice
        assert list(yaml.safe_load_all(block.text))


def test_there_are_blocks_of_each_kind() -> None:
    assert len(WHOLE) > 15
    assert len(POLICIES) > 8
    assert any(not block.excerpt for block in WHOLE)
