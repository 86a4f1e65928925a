"""The files that users begin with."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import json_schema, load
from autoscaler.config.model import DaemonSpec
from autoscaler.config.sections import ClusterSection, FileSections
from autoscaler.core.model import Behaviour, CapacitySpec, Rate, SettleSpec
from autoscaler.plugins import installed
from autoscaler.ports import ConfigurationError

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    assert load(path, {}).clusters


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_tell_the_editor_their_schema_on_the_first_line(path: Path) -> None:
    assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=autoscaler.schema.json"


def test_the_spark_example_says_what_it_means() -> None:
    config = load(ROOT / "examples" / "spark-local.yaml", {})
    cluster = config.clusters["clicks"]
    assert config.daemon.directory == ROOT / "examples" / "var"
    assert (cluster.interval, cluster.timeout) == (timedelta(seconds=15), timedelta(seconds=8))
    assert (cluster.spec.limits.minimum, cluster.spec.limits.maximum) == (1, 12)
    assert cluster.spec.metrics == ("lag", "arrivals", "throughput", "saturation")
    assert cluster.spec.engine


def test_the_spark_example_shows_every_key_of_the_frame() -> None:
    text = (ROOT / "examples" / "spark-local.yaml").read_text()
    shown = set(re.findall(r"(\w+):", text))
    for cls in (FileSections, ClusterSection, DaemonSpec, Behaviour, Rate, SettleSpec, CapacitySpec):
        assert {field.name for field in dataclasses.fields(cls)} <= shown


def yaml_blocks(path: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_shows_the_examples_as_they_are_in_at_most_25_lines() -> None:
    shown = [block for block in yaml_blocks(ROOT / "README.md") if "\nclusters:" in f"\n{block}"]
    names = ("flink-kubernetes.yaml", "flink-asg.yaml", "spark-asg.yaml")
    for block, name in zip(shown, names, strict=True):
        assert block == re.sub(r"\A(#.*\n|\n)*", "", (ROOT / "examples" / name).read_text())
        assert len(block.splitlines()) <= 25


@pytest.mark.parametrize("name", ["README.md", "docs/configuration.md", "docs/writing-a-plugin.md"])
def test_whole_files_shown_in_the_docs_load(name: str, tmp_path: Path) -> None:
    whole = [block for block in yaml_blocks(ROOT / name) if "\nclusters:" in f"\n{block}"]
    assert whole
    for block in whole:
        path = tmp_path / "shown.yaml"
        # The worked example's policy is installed in a test of its own; here a built-in one stands for it.
        path.write_text(block.replace("type: trend, per_replica", "type: target-tracking, metric: sessions, target"))
        assert load(path, {"PROMETHEUS_TOKEN": "value"}).clusters


def test_the_errors_shown_in_the_docs_are_those_of_the_file_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    shown = re.search(r"^```yml\n(.*?)^```.*?^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert shown
    monkeypatch.chdir(tmp_path)
    Path("autoscaler.yaml").write_text(shown[1])
    with pytest.raises(ConfigurationError) as caught:
        load(Path("autoscaler.yaml"), {})
    found = [problem.replace(", stub-source", "") for problem in caught.value.problems]  # only these tests have it
    assert found == shown[2].splitlines()


def test_the_docs_have_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert [row for row in rows() if row not in text] == []


def test_the_docs_name_every_built_in_plug_in() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    built_in = {found.name for found in installed() if found.package == "reactive-autoscaler"}
    assert {name for name in built_in if f"`{name}`" not in text} == set()


def rows() -> list[str]:
    """How the row of each key begins in docs/configuration.md."""
    top = json_schema()["properties"]
    cluster = top["clusters"]["additionalProperties"]["properties"]
    found = [f"| `{key}` |" for key in (*top, *cluster)]
    for section in (top["daemon"], cluster["up"], cluster["settle"], cluster["capacity"]):
        for key, schema in section["properties"].items():
            default = schema["default"]
            written = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
            found.append(f"| `{key}` | {'none' if default in (None, []) else written} |")
    return found
