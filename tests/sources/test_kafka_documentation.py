"""The pages of the sources `kafka` and `http` are held against the code."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import jmespath
import pytest

from autoscaler.config import load
from autoscaler.sources import http, kafka

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("kafka", "http")}


def rows(page: str) -> dict[str, str]:
    """Name of each parameter in a table -> its default."""
    found = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", PAGES[page], re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("page", "plugin"), [("kafka", kafka.Kafka), ("kafka", kafka.Query), ("http", http.Http), ("http", http.Query)]
)
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


@pytest.mark.parametrize(
    "words", [kafka.Metric, kafka.Uncommitted, kafka.Isolation, kafka.SecurityProtocol, kafka.SaslMechanism]
)
def test_every_word_is_on_the_page(words: type[StrEnum]) -> None:
    for word in words:
        assert f"`{word}`" in PAGES["kafka"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_are_configurations_that_load(page: str, tmp_path: Path) -> None:
    needed = "    target: {type: null}\n    max: 4\n    policies: {p: {type: backlog-drain, drain_time: 1m}}\n"
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "autoscaler.yaml"
        file.write_text(block + needed)
        assert load(file, {"KAFKA_PASSWORD": "hunter2", "QUEUE_TOKEN": "hunter2"}).clusters


def test_the_listener_on_the_page_is_the_one_of_the_end_to_end_test() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGES["kafka"], re.DOTALL)
    job = (DOCS.parent / "tests" / "e2e" / "kafka_job.py").read_text()
    assert block.partition("\n\n\n")[0] in re.sub(r"  # .*", "", job)


def test_every_message_on_the_page_is_one_that_is_said() -> None:
    sources = Path(str(kafka.__file__)).parent
    code = "".join(file.read_text() for file in (sources / "kafka.py", sources.parent / "clients" / "kafka.py"))
    table = PAGES["kafka"].split("| message |")[1]
    messages = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    assert len(messages) > 5
    for words in re.findall("`([^`]*)`", " ".join(messages)):
        assert words in code


@pytest.mark.parametrize(
    ("expression", "document", "value"),
    [
        ("queues.orders || `0`", {"queues": {}}, 0),
        ("queues.orders || `0`", {"queues": {"orders": 5}}, 5),
        ("queues[?name=='orders'].waiting | [0]", {"queues": [{"name": "orders", "waiting": 3}]}, 3),
    ],
)
def test_the_expressions_on_the_page_do_what_it_says(expression: str, document: object, value: object) -> None:
    assert expression in PAGES["http"]
    assert jmespath.search(expression, document) == value
