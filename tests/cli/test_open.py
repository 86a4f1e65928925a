"""`--open`: a run as an HTML file that needs no daemon."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from autoscaler import cli

from .test_replay import CONFIG

ARGUMENTS = ("--load", "steps6h", "--hours", "2")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The addresses that a browser would open; there is no display."""
    found: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return found


def page(printed: str) -> dict[str, Any]:
    """The run in the page whose path was printed."""
    path = re.search(r"page: (\S+\.html)", printed)
    assert path is not None, printed
    text = Path(path[1]).read_text()
    assert "Content-Security-Policy" in text
    data = re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    found: dict[str, Any] = json.loads(data[1])
    return found


def test_a_simulation_is_shown_with_its_decisions_and_their_trails(
    config: Path, capsys: pytest.CaptureFixture[str], opened: list[str]
) -> None:
    assert cli.main(["simulate", str(config), *ARGUMENTS, "--open", "--json"]) == 0
    printed = capsys.readouterr()
    json.loads(printed.out)
    run = page(printed.err)
    assert opened == []
    [row] = run["clusters"]
    assert (row["name"], row["problem"], row["trouble"]) == ("orders", None, None)
    series = run["series"]["orders"]
    assert len(series["at"]) == len(series["desired"]) == 480
    assert max(series["desired"]) > min(series["desired"])
    assert series["decisions"]
    trails = run["decisions"]["orders"]
    assert {each["decision"]["at"].replace("Z", "+00:00") for each in trails} >= {
        each["at"] for each in series["decisions"]
    }
    assert all(each["explanation"] for each in trails)


def test_a_replay_is_shown_with_its_new_decisions(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    assert cli.main(["simulate", str(config), *ARGUMENTS, "--record", str(trace)]) == 0
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main(["replay", str(trace), str(config), "--open"]) == 0
    run = page(capsys.readouterr().err)
    [row] = run["clusters"]
    assert (row["dry_run"], row["severity"]) == (True, 1)
    assert len(run["series"]["orders"]["at"]) == 480
    assert run["series"]["orders"]["decisions"]
    [address] = opened
    assert address.startswith("file:///")


def test_a_file_that_cannot_be_written_is_an_error(
    config: Path, capsys: pytest.CaptureFixture[str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> tuple[int, str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert cli.main(["simulate", str(config), *ARGUMENTS, "--open"]) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert opened == []


def test_batch_jobs_cannot_be_shown(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", str(config), "--jobs", str(tmp_path / "jobs.yaml"), "--open"]) == 2
    assert "--open: applies to a load, not to --jobs" in capsys.readouterr().err
