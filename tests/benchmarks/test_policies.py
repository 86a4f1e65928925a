"""The script that compares policies runs, and prints the same for the same arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy is not installed (extra simulate)")

SCRIPT = Path(__file__).with_name("policies.py")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_policies_are_compared_on_what_is_made_when_no_traces_are_given(tmp_path: Path) -> None:
    common = ("-s", "steps6h", "-p", "static", "-p", "one={type: target-tracking, metric: cpu, target: 0.5}")
    cache = ("--cache", str(tmp_path / "cache"))
    first = _run(*common, *cache, "--json", str(tmp_path / "1.json"))
    assert first.returncode == 0, first.stderr
    kept = list((tmp_path / "cache").iterdir())
    assert len(kept) == 1
    again = _run(*common, *cache, "--processes", "1", "--json", str(tmp_path / "2.json"))
    assert list((tmp_path / "cache").iterdir()) == kept
    assert again.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]
    assert "k8s (objective 60 s)" in first.stdout
    assert "means over 1 scenarios" in first.stdout
    rows = json.loads((tmp_path / "1.json").read_text())
    assert rows == json.loads((tmp_path / "2.json").read_text())
    assert [row["policy"] for row in rows] == ["static", "one"]
    static = rows[0]["score"]
    assert static["cost"] == 18 * 6
    assert static["optimum"] == json.loads(kept[0].read_text())
    assert (static["rescales"], static["violation"]) == (0, 0)


def test_settings_that_cannot_be_read_are_said_with_their_line() -> None:
    found = _run("-p", "mine={type: target-tracking, metric: cpu, goal: 1}")
    assert found.returncode == 1
    assert found.stderr.startswith("mine:1: policies.mine.goal: unknown key")


def test_an_unknown_baseline_lists_those_there_are() -> None:
    found = _run("-p", "mine")
    assert found.returncode == 2
    assert "mine: expected NAME=SETTINGS, or one of static, backlog-drain" in found.stderr
