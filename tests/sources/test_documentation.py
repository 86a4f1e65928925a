"""The pages of the sources are held against the code."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.config import load
from autoscaler.ports import Secret
from autoscaler.sources.prometheus import Empty, Many, Prometheus, Query, Warned
from autoscaler.sources.spark import Metric, Spark

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("prometheus", "spark")}


def rows(page: str) -> dict[str, str]:
    """Name of each parameter in a table -> its default."""
    found = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", PAGES[page], re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(("page", "plugin"), [("prometheus", Prometheus), ("prometheus", Query), ("spark", Spark)])
def test_every_parameter_is_on_its_page_with_its_default(page: str, plugin: type) -> None:
    known = rows(page)
    for field in dataclasses.fields(plugin):
        assert field.name in known
        assert f"        {field.name}: " in (plugin.__doc__ or "")
        match field.default:
            case dataclasses.MISSING:
                if field.default_factory is dataclasses.MISSING:
                    assert known[field.name] == "required"
            case bool(default):
                assert known[field.name] == f"`{str(default).lower()}`"
            case timedelta() as default:
                assert known[field.name] == f"`{default.total_seconds():g}s`"
            case str(default) | int(default):
                assert known[field.name] == f"`{default}`"


def test_every_metric_and_every_rule_is_on_its_page() -> None:
    for metric in Metric:
        assert metric in rows("spark")
    for word in (*Many, *Empty, *Warned):
        assert f"`{word}`" in PAGES["prometheus"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_are_configurations_that_load(page: str, tmp_path: Path) -> None:
    needed = "    target: {type: null}\n    max: 4\n    policies: {p: {type: backlog-drain, drain_time: 1m}}\n"
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "autoscaler.yaml"
        file.write_text(block if "policies:" in block else block + needed)
        config = load(file, {"PROMETHEUS_TOKEN": "hunter2"})
        if page == "prometheus":
            source = config.sources["prom"]
            assert isinstance(source, Prometheus)
            assert source.token == Secret("hunter2")
