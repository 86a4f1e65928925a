"""The CustomResourceDefinition: a structural schema of a cluster's section. In e2e a real server checks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from autoscaler.config.crd import crd_manifest
from autoscaler.config.sections import TemplateSection

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "crd" / "streamautoscalers.yaml"
CRD = yaml.safe_load(MANIFEST.read_text())
[VERSION] = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
# The keywords of a structural schema, fewer than those of JSON Schema.
ALLOWED = {
    *("type", "description", "properties", "additionalProperties", "required", "items", "enum", "pattern", "format"),
    *("nullable", "minimum", "minLength", "maxLength", "minProperties"),
}
SPEC = {
    "target": {"type": "kubernetes", "name": "orders"},
    "max": 8,
    "timeout": "1h30m",
    "policies": {"lag": {"type": "target-tracking", "metric": "lag", "target": 100}},
    "down": {"window": "5m", "rates": [{"kind": "percent", "value": 50, "period": "1m"}]},
}


def schemas(found: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All nested schemas by their paths."""
    yield path, found
    for key, inner in found.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if key in found:
            yield from schemas(found[key], f"{path}[]")


def test_the_manifest_equals_the_output_of_the_command() -> None:
    assert MANIFEST.read_text() == crd_manifest()  # python -m tests.docs.refresh


def test_it_has_every_key_of_a_template_and_its_description() -> None:
    spec = SCHEMA["properties"]["spec"]
    assert set(spec["properties"]) == {field.name for field in fields(TemplateSection)}
    assert set(spec["required"]) == {"target", "policies", "max"}
    assert [key for key, found in spec["properties"].items() if "description" not in found] == []


def test_the_schema_is_structural() -> None:
    for path, found in schemas(SCHEMA):
        extensions = {key for key in found if key.startswith("x-kubernetes-")}
        assert set(found) - extensions <= ALLOWED, path
        assert isinstance(found.get("type"), str) or "x-kubernetes-preserve-unknown-fields" in extensions, path
        assert "(?=" not in found.get("pattern", ""), path  # RE2 has no lookahead


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"interval": "15s", "engine": {"type": "flink", "url": "http://flink:8081"}}, True),
        ({"interval": ""}, False),
        ({"interval": "15"}, False),
        ({"interval": 15}, False),
        ({"max": "8"}, False),
        ({"max": -1}, False),
        ({"policies": {}}, False),
        ({"target": {}}, False),
        ({"down": {"select": "most"}}, False),
    ],
)
def test_it_reports_what_is_wrong_at_once(change: dict[str, Any], *, valid: bool) -> None:
    found = json.loads(json.dumps({"spec": {**SPEC, **change}}))
    assert Draft202012Validator(SCHEMA).is_valid(found) is valid
