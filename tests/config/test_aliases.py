"""Former names of keys and plug-ins: accepted with a warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from autoscaler import cli, config, plugins
from autoscaler.config import document
from autoscaler.config.document import Problems
from autoscaler.config.model import Config
from autoscaler.plugins import Kind
from autoscaler.ports import ConfigurationError
from tests.config.stub_plugins import Renamed

POLICY = "calm: {type: stub-policy, within: 60s}"


def using(good: str, policy: str) -> str:
    return good.replace(POLICY, f"calm: {{type: {policy}}}")


def test_present_names_give_no_warning(accepted: Callable[..., Config], good: str) -> None:
    assert accepted(using(good, "new-policy, replicas: 2, window: 9s")).warnings == ()


def test_a_former_name_is_accepted_with_a_warning(accepted: Callable[..., Config], good: str, tmp_path: Path) -> None:
    found = accepted(using(good, "new-policy, size: 2, within: 9s"))
    policy = found.clusters["demo"].spec.policies[0].policy
    assert (policy.replicas, policy.window.total_seconds()) == (2, 9.0)  # type: ignore[attr-defined]
    place = f"{tmp_path / 'autoscaler.yaml'}:12: clusters.demo.policies.calm"
    assert found.warnings == (
        f"{place}.size: 'size' is now called 'replicas'",
        f"{place}.within: 'within' is now called 'window'",
    )


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("replicas: 2, size: 3", "calm.size: 'size' and 'replicas' are the same key: keep 'replicas' only"),
        ("size: 2, count: 3", "calm.count: 'count' and 'size' are the same key: keep 'replicas' only"),
        ("size: 0", "calm.size: must be 1 or more, not 0"),
        ("size: many", "calm.size: expected a whole number, not a string"),
    ],
)
def test_problems_are_reported_at_the_key_as_written(
    refused: Callable[..., list[str]], good: str, keys: str, problem: str
) -> None:
    assert refused(using(good, f"new-policy, {keys}")) == [f"12: clusters.demo.policies.{problem}"]


def test_a_former_name_of_a_plug_in_is_accepted_with_a_warning(
    accepted: Callable[..., Config], good: str, tmp_path: Path
) -> None:
    found = accepted(using(good, "old-policy, replicas: 2"))
    assert found.warnings == (
        f"{tmp_path / 'autoscaler.yaml'}:12: clusters.demo.policies.calm.type: 'old-policy' is now called 'new-policy'",
    )


def test_the_target_null_is_now_called_advice(accepted: Callable[..., Config], good: str) -> None:
    for name in ("null", "'null'"):
        (warning,) = accepted(good.replace("type: stub-target", f"type: {name}")).warnings
        assert warning.endswith("clusters.demo.target.type: 'null' is now called 'advice'")
    assert accepted(good.replace("type: stub-target", "type: advice")).warnings == ()


def test_a_former_name_can_be_set_in_a_file_but_not_beside_the_present_one(good: str, tmp_path: Path) -> None:
    def put(policy: str, key: str) -> Config:
        root = document.parse(using(good, policy), Problems("x"))
        value = document.parse("7", Problems("x"))
        return config.load(
            tmp_path / "x.yaml", {}, document.put(root, ["clusters", "demo", "policies", "calm", key], value)
        )

    (warning,) = put("new-policy", "size").warnings
    assert warning.endswith("'size' is now called 'replicas'")
    with pytest.raises(ConfigurationError, match="'replicas' and 'size' are the same key"):
        put("new-policy, size: 2", "replicas")


def test_the_schema_marks_former_names_as_deprecated(good: str) -> None:
    schema = config.json_schema()
    policy = schema["$defs"]["policies.new-policy"]
    assert policy["properties"]["size"]["deprecated"] is True
    assert policy["properties"]["size"]["description"] == "Now called `replicas`."
    assert schema["$defs"]["policies.old-policy"]["deprecated"] is True
    assert "deprecated" not in policy
    validator = Draft202012Validator(schema)

    def valid(keys: str) -> bool:
        return bool(validator.is_valid(yaml.safe_load(using(good, f"new-policy, {keys}"))))

    assert [valid(keys) for keys in ("replicas: 2", "size: 2", "count: 2, within: 9s")] == [True] * 3
    assert not valid("window: 9s")
    assert not valid("replicas: 2, size: 2")
    assert not valid("count: 2, size: 2")
    assert not valid("size: 2, window: 9s, within: 9s")


def test_a_plug_in_is_described_with_its_present_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert [found.name for found in plugins.installed() if found.reference.endswith(":Renamed")] == ["new-policy"]
    assert plugins.current_name(Kind.POLICY, "old-policy") == "new-policy"
    assert cli.main(["plugins", "old-policy"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith(" (formerly old-policy)")
    assert "the size it asks for, 1 or more. Formerly `count`, `size`." in out
    assert cli.main(["plugins", "new-policy", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["former_names"] == ["old-policy"]
    assert shown["parameters"][0]["aliases"] == ["count", "size"]


def test_every_alias_is_unique() -> None:
    assert plugins.aliases(Renamed) == {"count": "replicas", "size": "replicas", "within": "window"}
    for found in plugins.installed():
        if found.problem is None:
            cls = plugins.load(found.kind, found.name)
            for part in (cls, cls.Query) if found.kind is Kind.SOURCE else (cls,):
                assert plugins.aliases(part).keys().isdisjoint(part.__dataclass_fields__)
