"""deploy/prometheus: the rules, checked by promtool, and a runbook for each alert."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
TESTS = Path(__file__).with_name("rules_test.yaml")


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.mark.parametrize("command", [["check", "rules", RULES], ["test", "rules", TESTS]], ids=["check", "test"])
def test_promtool_accepts_the_rules_and_their_tests(command: list[Any]) -> None:
    if shutil.which("promtool") is None:
        missing = "no promtool on the PATH (Debian: apt-get install prometheus)"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_and_not_to_fire() -> None:
    quiet, loud, *_ = yaml.safe_load(TESTS.read_text())["tests"]
    fires = {test["alertname"] for test in loud["alert_rule_test"] if test.get("exp_alerts")}
    assert fires == {test["alertname"] for test in quiet["alert_rule_test"]} == alerts().keys()


def test_documented_inhibitions_name_existing_alerts_with_the_labels_that_must_be_equal() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    [block] = [found for found in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "inhibit_rules" in found]
    _, loud, *_ = yaml.safe_load(TESTS.read_text())["tests"]
    labels = {
        test["alertname"]: set(test["exp_alerts"][0]["exp_labels"])
        for test in loud["alert_rule_test"]
        if test.get("exp_alerts")
    }
    inhibited = yaml.safe_load(block)["inhibit_rules"]
    assert inhibited
    for rule in inhibited:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            names = re.fullmatch(r'alertname=~?"([\w|]+)"', matcher)
            assert names, matcher
            for name in names[1].split("|"):
                assert set(rule["equal"]) <= labels[name] | {"namespace"}, name


def test_dashboards_do_not_need_the_recording_rules() -> None:
    """If these are not loaded, "In trouble" would show 0."""
    for path in (ROOT / "deploy" / "grafana").glob("*.json"):
        board = json.loads(path.read_text())
        asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        assert asked
        assert [query for query in asked if re.search(r"\w:autoscaler_", query)] == [], path.name


def test_the_documented_command_puts_another_address_before_each_runbook(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    [command] = re.findall(r"^sed -i '(.*)' deploy/prometheus/rules\.yaml$", page, flags=re.MULTILINE)
    assert f"sed -i '{command}' rules.yaml" in RULES.read_text()
    copy = tmp_path / "rules.yaml"
    # Without the comment, which contains both addresses.
    copy.write_text("".join(line for line in RULES.read_text().splitlines(keepends=True) if not line.startswith("#")))
    subprocess.run(["sed", "-i", command, copy], check=True)
    assert copy.read_text().count("https://docs.acme.example/autoscaler/runbooks.html#") == len(alerts())
    assert "docs.example.com" not in copy.read_text()


def test_each_alert_links_to_its_section_of_the_runbooks() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert sections.keys() == alerts().keys()
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook_url"].endswith(f"/runbooks.html#{name.lower()}")
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        for part in ("**Means**", "**Look at**", "**Do**"):
            assert part in sections[name], name
