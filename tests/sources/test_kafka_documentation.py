"""The statements of the page on metrics about `kafka` and `http` match the code."""

from __future__ import annotations

import re
from pathlib import Path

import jmespath
import pytest

from autoscaler.sources import kafka

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "integrations" / "metrics.md").read_text()


def test_every_message_of_the_page_is_in_the_code() -> None:
    sources = Path(str(kafka.__file__)).parent
    code = "".join(file.read_text() for file in (sources / "kafka.py", sources.parent / "clients" / "kafka.py"))
    table = PAGE.split("| message |")[1].partition("\n\n")[0]
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
def test_the_expressions_of_the_page_give_the_documented_results(
    expression: str, document: object, value: object
) -> None:
    assert expression in PAGE
    assert jmespath.search(expression, document) == value
