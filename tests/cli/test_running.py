"""`status` and `explain` against a daemon that runs, in a process of its own."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler import cli

CONFIG = """
daemon: {directory: var, listen: '127.0.0.1:0', log: json}
sources:
  prom: {type: prometheus, url: 'http://127.0.0.1:9', attempts: 1, timeout: 400ms}
clusters:
  orders:
    interval: 500ms
    timeout: 400ms
    target: {type: advice, size: 2, follow: true}
    min: 3
    max: 5
    metrics: {cpu: {source: prom, query: cpu}}
    policies: {cpu: {type: target-tracking, metric: cpu, target: 0.5}}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("daemon")
    config, log = directory / "config.yaml", directory / "log"
    config.write_text(CONFIG)
    with log.open("wb") as stderr:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr)
    try:
        yield started(log)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(60) == 130
    finally:
        daemon.kill()
        daemon.wait()


def started(log: Path) -> str:
    found = ""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found = next((line["url"] for line in lines if line["message"] == "started"), found)
        if found and any(line["message"] == "rescale" for line in lines):
            return str(found)
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def test_status_shows_every_cluster(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", url]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["cluster", "ready", "size"]
    assert row.split()[0] == "orders"
    assert "3-5" in row
    assert "http://127.0.0.1:9" in row  # the whole trouble, not cut off
    assert cli.main(["status", "--url", url + "/", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [cluster["name"] for cluster in answer["clusters"]] == ["orders"]


def test_explain_reports_the_last_decisions(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "orders", "--url", url]) == 0
    assert "cluster orders" in capsys.readouterr().out
    deadline = time.monotonic() + 60
    decisions: list[object] = []
    while len(decisions) < 2 and time.monotonic() < deadline:
        assert cli.main(["explain", "orders", "--url", url, "--last", "2", "--json"]) == 0
        decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert len(decisions) == 2
    now = datetime.now(UTC)  # noqa: TID251 - asks a real daemon about real time
    assert cli.main(["explain", "orders", "--url", url, "--at", now.isoformat()]) == 0
    assert "cluster orders" in capsys.readouterr().out
    before = now - timedelta(hours=1)
    assert cli.main(["explain", "orders", "--url", url, "--at", before.isoformat()]) == 1
    assert "no decision about cluster orders is kept up to" in capsys.readouterr().err


def test_an_unknown_cluster_is_reported_with_those_there_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "ordres", "--url", url]) == 1
    assert "there is no cluster 'ordres'; there are: orders" in capsys.readouterr().err


def test_something_else_at_the_url_is_reported(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", f"{url}/metrics?"]) == 1
    assert "answers, but not like an autoscaler" in capsys.readouterr().err


def everything(terminal: io.RawIOBase) -> bytes:
    """All that was written to a terminal whose other end is closed: it comes in pieces, and then as an error."""
    pieces = []
    with suppress(OSError):
        while piece := terminal.read(65536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_gets_whole_words_and_the_problems_below_the_table(url: str, columns: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, "-m", "autoscaler", "status", "--url", url]
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        for name in ("COLUMNS", "LINES"):  # they would be believed before the terminal is
            environment.pop(name, None)
        subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, timeout=60, check=True)
        os.close(theirs)
        shown = re.sub(r"\x1b\[\d*m", "", everything(terminal).decode())
    head, row, *rest = shown.splitlines()
    assert head.split() == ["cluster", "ready", "size", "decided", "proposed", "limits", "reason", "rescale", "when"]
    assert row.split()[0] == "orders"
    assert any(line.startswith("orders: cpu: ") and "http://127.0.0.1:9" in line for line in rest)
    if columns != 50:  # where not even the titles have room, lines are broken by the terminal
        assert max(len(line) for line in (head, row)) <= columns
