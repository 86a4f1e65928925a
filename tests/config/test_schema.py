"""The JSON Schema follows its standard, accepts files that load, and refuses errors that an editor should mark."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from autoscaler.config import json_schema, load
from autoscaler.ports import ConfigurationError
from tests.config.test_fleets import FLEET
from tests.config.test_fuzz import FULL

GOOD_SOURCES = '  main: {type: stub-source, url: "http://127.0.0.1:9090"}\n'  # of both files
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@cache
def made() -> Draft202012Validator:
    """The schema with the plug-ins that every test has; made once, as that takes most of the time."""
    return Draft202012Validator(json_schema())


@pytest.fixture
def validator() -> Draft202012Validator:
    return made()


def faults(validator: Draft202012Validator, text: str) -> set[str]:
    return {error.json_path for error in validator.iter_errors(yaml.safe_load(text))}


def test_the_schema_follows_its_standard_and_is_json(validator: Draft202012Validator) -> None:
    Draft202012Validator.check_schema(validator.schema)
    assert json.loads(json.dumps(validator.schema, allow_nan=False)) == validator.schema
    assert validator.schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_reference_resolves(validator: Draft202012Validator) -> None:
    definitions = validator.schema["$defs"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return found + [reference for inner in value.values() for reference in references(inner)]
        return [reference for inner in value for reference in references(inner)] if isinstance(value, list) else []

    assert {reference.removeprefix("#/$defs/") for reference in references(validator.schema)} <= definitions.keys()


def test_files_that_load_are_accepted(validator: Draft202012Validator, good: str) -> None:
    for text in (FULL, good, good.replace("max: 4", "max: 4\n    engine:")):
        assert faults(validator, text) == set()


def test_a_file_has_clusters_or_fleets(validator: Draft202012Validator, good: str) -> None:
    for text in (FLEET, f"{good}{FLEET.partition(GOOD_SOURCES)[2]}"):
        assert faults(validator, text) == set()
    assert faults(validator, good.partition("clusters:")[0]) == {"$"}


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("min: 1", "mn: 1", "$.fleets.streaming.template"),
        ("min: 1", "min: one", "$.fleets.streaming.template.min"),
        ("    name:", "    nme:", "$.fleets.streaming"),
        ("stub-discovery", "stub-discover", "$.fleets.streaming.discover.type"),
        ("own: {", "'own one': {", "$.fleets.streaming.template.sources"),
    ],
)
def test_errors_in_a_template_are_marked(validator: Draft202012Validator, old: str, new: str, at: str) -> None:
    assert old in FLEET
    assert at in faults(validator, FLEET.replace(old, new, 1))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(validator: Draft202012Validator, path: Path) -> None:
    assert faults(validator, path.read_text()) == set()


def test_the_target_null_may_be_written_without_quotes(validator: Draft202012Validator, good: str) -> None:
    for name in ("null", "'null'"):
        assert faults(validator, good.replace("type: stub-target", f"type: {name}")) == set()


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("max: 4", "mx: 4", "$.clusters.demo"),
        ("max: 4", "max: '4'", "$.clusters.demo.max"),
        ("15s", "15", "$.clusters.demo.interval"),
        ("15s", "1 hour", "$.clusters.demo.interval"),
        ("stub-policy", "stub-polcy", "$.clusters.demo.policies.calm.type"),
        ("type: stub-policy, ", "", "$.clusters.demo.policies.calm"),
        (", within: 60s", "", "$.clusters.demo.policies.calm"),
        ("within: 60s", "within: 60s, more: 1", "$.clusters.demo.policies.calm"),
        ("type: stub-target", "type: stub-target, colour: blue", "$.clusters.demo.target.colour"),
        ("type: stub-target", "type: stub-target, pair: [a]", "$.clusters.demo.target.pair"),
        ("type: stub-target", "type: stub-target, points: [{y: 1}]", "$.clusters.demo.target.points[0]"),
        ("name: lag", "nme: lag", "$.clusters.demo.metrics.lag"),
        ("calm: {type: stub-policy, within: 60s}", "{}", "$.clusters.demo.policies"),
        ("demo:", "de mo:", "$.clusters"),
        ("sources:", "extra: 1\nsources:", "$"),
    ],
)
def test_errors_that_the_reader_refuses_are_marked(
    validator: Draft202012Validator, good: str, tmp_path: Path, old: str, new: str, at: str
) -> None:
    text = good.replace(old, new, 1)
    assert at in faults(validator, text)
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        load(path, {})


def test_keys_have_their_description_and_default(validator: Draft202012Validator) -> None:
    cluster = validator.schema["properties"]["clusters"]["additionalProperties"]
    assert cluster["properties"]["down"]["properties"]["window"] == {
        "$ref": "#/$defs/duration",
        "description": (
            "stabilization window; scaling up uses the smallest proposal within it, scaling down the largest."
        ),
        "default": "5m",
    }
    assert all("description" in schema for schema in cluster["properties"].values())
    assert cluster["required"] == ["target", "policies", "max"]
    target = validator.schema["$defs"]["targets.stub-target"]
    assert target["description"] == "A target with a parameter of every type."
    assert target["properties"]["grace"]["default"] == "10s"
    assert target["properties"]["origin"]["default"] == {"x": 1.0, "y": 2.0}
    assert "required" in target["properties"]["points"]["items"]


def test_variables_are_accepted(validator: Draft202012Validator, good: str) -> None:
    text = good.replace("{type: stub-source,", "{type: stub-source, token: '${A}', timeout: '${A}',")
    text = text.replace("max: 4", "max: '${A}'").replace("15s", "'${A}s'").replace("name: lag", "name: '${A}'")
    text = text.replace("{type: stub-target}", "{type: '${A}', colour: '${A}', loud: '${A}', either: '${A}'}")
    assert faults(validator, text) == set()
