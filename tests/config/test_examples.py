"""The example files for users."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.config.model import DaemonSpec, NotificationSpec, TlsSpec, TokenSpec
from autoscaler.config.sections import ClusterSection, FileSections
from autoscaler.core.model import Behaviour, CapacitySpec, Rate, SettleSpec
from autoscaler.plugins import installed

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    config = load(path, {})
    assert config.clusters or config.fleets


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_name_their_schema_for_editors_on_the_first_line(path: Path) -> None:
    assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=autoscaler.schema.json"


def test_the_spark_example_gives_the_documented_settings() -> None:
    config = load(ROOT / "examples" / "spark-local.yaml", {})
    cluster = config.clusters["clicks"]
    assert config.daemon.directory == ROOT / "examples" / "var"
    assert (cluster.interval, cluster.timeout) == (timedelta(seconds=15), timedelta(seconds=8))
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (1, 12)
    assert cluster.spec.metrics == ("lag", "arrivals", "throughput", "saturation")
    assert cluster.spec.engine


def test_the_spark_example_shows_every_general_key() -> None:
    text = (ROOT / "examples" / "spark-local.yaml").read_text()
    shown = set(re.findall(r"(\w+):", text))
    of_daemon = (DaemonSpec, TokenSpec, TlsSpec, NotificationSpec)
    for cls in (FileSections, *of_daemon, ClusterSection, Behaviour, Rate, SettleSpec, CapacitySpec):
        assert {field.name for field in dataclasses.fields(cls)} <= shown


def test_the_docs_name_every_built_in_plug_in() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    built_in = {found.name for found in installed() if found.package == "reactive-autoscaler"}
    assert {name for name in built_in if f"`{name}`" not in text} == set()
