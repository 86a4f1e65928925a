"""Whatever the file contains, it loads or raises ConfigurationError soon, and no secret is shown."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaler.config import load
from autoscaler.config.model import Config
from autoscaler.ports import ConfigurationError

SECRET = "correct-horse-battery"
ENVIRON = {"TOKEN": SECRET, "FOUR": "4", "EMPTY": ""}

FULL = """\
daemon: {directory: var, listen: "127.0.0.1:0", log: json, decisions: 5, history: 1d}
x-common: &common {interval: 15s, max: 4}
sources:
  main: {type: stub-source, url: "http://x", token: "Bearer ${TOKEN}", headers: {a: "${TOKEN}"}}
clusters:
  demo:
    <<: *common
    target: {type: stub-target, directory: d, points: [{x: 1, y: 2}], either: 3, labels: {a: b}, pair: [a, 1]}
    engine: {type: stub-engine}
    min: 1
    timeout: 5s
    metrics:
      lag: &lag {source: main, name: lag, factor: 1.5, match: {a: b}}
      speed: *lag
    policies:
      calm: {type: stub-policy, within: 60s, rules: [{metric: speed}]}
    up: {window: 5s, rates: [{kind: percent, value: 50, period: 1m}]}
    settle: {ready: 1m, lag: lag, throughput: speed}
    capacity: {per_replica: 10}
    max_age: 1m
"""

# Characters with a meaning in YAML, and words with a meaning here.
PIECES = st.sampled_from(
    [
        *"{}[]:,&*!|>'\"%@`#?-<~\t\n\0\x85\u2028\ud7ff",
        "  ",
        "\n  ",
        ": ",
        "- ",
        "<<",
        "<<: *common",
        "&lag ",
        "*lag",
        "*x",
        "${FOUR}",
        "${EMPTY}",
        "${",
        "!!binary ",
        "!!python/name:os.system ",
        "---\n",
        "...\n",
        "null",
        "on",
        "1:30",
        ".nan",
        "1e999",
        "9" * 30,
        "0x1F",
        "2020-01-01",
        "60",
        "-1s",
        "99999d",
        "type: ",
        "stub-policy",
        "\ufeff",
        "é",
        "demo:",
        "=",
    ]
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "autoscaler.yaml"


def attempt(path: Path, data: bytes) -> Config | None:
    path.write_bytes(data)
    problems: tuple[str, ...] = ()
    start = time.process_time()
    try:
        return load(path, ENVIRON)
    except ConfigurationError as error:
        problems = error.problems
    assert time.process_time() - start < 5
    assert problems
    for problem in problems:
        where, line, rest = problem.removeprefix(str(path)).split(":", 2)
        assert not where
        assert int(line) >= 1
        assert ": " in rest
        assert "\n" not in problem
        assert SECRET not in problem
    return None


# Every example overwrites the file.
_quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def test_the_mutated_file_is_valid(file: Path) -> None:
    assert attempt(file, FULL.encode()) is not None


@_quick
@given(st.text())
def test_any_text(file: Path, text: str) -> None:
    attempt(file, text.encode("utf-8", "surrogatepass"))


@_quick
@given(st.binary())
def test_any_bytes(file: Path, data: bytes) -> None:
    attempt(file, data)


@_quick
@given(
    st.lists(
        st.tuples(st.integers(0, len(FULL)), st.integers(0, 30), st.one_of(PIECES, st.text(max_size=5))),
        min_size=1,
        max_size=4,
    )
)
def test_a_valid_file_with_pieces_replaced(file: Path, edits: list[tuple[int, int, str]]) -> None:
    text = FULL
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]
    attempt(file, text.encode("utf-8", "surrogatepass"))


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["${FOUR}", "60s", "lag"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


PLACES = places(yaml.safe_load(FULL))


@_quick
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=3))
def test_a_valid_file_with_values_replaced(file: Path, edits: list[tuple[tuple[Any, ...], Any]]) -> None:
    tree = yaml.safe_load(FULL)
    for path, value in edits:
        tree = replaced(tree, path, value)
    attempt(file, json.dumps(tree, allow_nan=True, default=str).encode())


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    head, *rest = path
    if isinstance(tree, dict) and head in tree:
        return {**tree, head: replaced(tree[head], tuple(rest), value)}
    if isinstance(tree, list) and isinstance(head, int) and head < len(tree):
        return [*tree[:head], replaced(tree[head], tuple(rest), value), *tree[head + 1 :]]
    return tree  # an earlier edit has removed it
