"""Replacing a value in a configuration that was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler import config
from autoscaler.config import document
from autoscaler.config.document import Mapping, Node, Problems, Scalar
from autoscaler.ports import ConfigurationError

TEXT = """
x-policy: &policy {type: adaptive}
sources: {k: {type: http, url: 'http://127.0.0.1:9'}}
clusters:
  one: &one
    target: {type: advice}
    max: 4
    metrics: &metrics
      lag: {source: k, path: a}
      arrivals: {source: k, path: b}
      throughput: {source: k, path: c}
    policies: {main: *policy}
  two: {<<: *one, target: {type: advice}}
"""


def node(text: str) -> Node:
    return document.parse(text, Problems("x"))


def test_a_new_value_replaces_the_old_one() -> None:
    tree = node("a: {b: 1, c: 2}\nd: 3")
    changed = document.put(tree, ["a", "b"], node("[7, 8]"))
    assert changed == node("a: {b: [7, 8], c: 2}\nd: 3")
    assert tree == node("a: {b: 1, c: 2}\nd: 3")


def test_missing_keys_are_created() -> None:
    changed = document.put(node("\n\na: {}"), ["a", "b", "c"], node("5m"))
    assert isinstance(changed, Mapping)
    inner = changed.entries["a"].node
    assert isinstance(inner, Mapping)
    found = inner.entries["b"].node
    assert isinstance(found, Mapping)
    assert found.entries["c"].node == Scalar(3, "5m", "5m")


def test_a_value_that_is_not_a_mapping_has_no_keys() -> None:
    with pytest.raises(KeyError) as found:
        document.put(node("a: {b: 1}"), ["a", "b", "c"], node("5m"))
    assert found.value.args == ("a.b",)


def test_an_alias_is_changed_in_one_place_only(tmp_path: Path) -> None:
    tree = node(TEXT)
    changed = document.put(tree, ["clusters", "one", "policies", "main", "objective"], node("30s"))
    found = config.load(tmp_path / "x.yaml", {}, changed)
    seconds = [
        getattr(found.clusters[name].spec.policies[0].policy, "objective").total_seconds()  # noqa: B009 - of a plug-in
        for name in ("one", "two")
    ]
    assert seconds == [30, 60]


def test_an_invalid_value_is_refused_in_the_same_words_as_in_the_file(tmp_path: Path) -> None:
    changed = document.put(node(TEXT), ["clusters", "two", "max"], node("many"))
    with pytest.raises(ConfigurationError) as found:
        config.load(tmp_path / "x.yaml", {}, changed)
    (problem,) = found.value.problems
    assert problem == f"{tmp_path}/x.yaml:7: clusters.two.max: expected a whole number, not a string"
