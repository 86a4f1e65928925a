"""`status` and `explain` against a running daemon in a separate process."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoscaler import cli
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import file_name, read

CONFIG = """
daemon: {directory: var, listen: '127.0.0.1:PORT', log: json}
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
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@pytest.fixture
def url(daemon: Running) -> str:
    return daemon.url


@dataclass
class Running:
    """A daemon and its files."""

    process: subprocess.Popen[bytes]
    config: Path
    log: Path
    url: str

    def reload(self, text: str) -> None:
        """Make it reload another configuration."""
        self.config.write_text(text)
        before = self.log.read_text().count("configuration ")
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.log.read_text().count("configuration ") == before:
            time.sleep(0.05)


@contextmanager
def running(directory: Path, text: str = CONFIG) -> Iterator[Running]:
    config, log = directory / "config.yaml", directory / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config.write_text(text.replace("PORT", str(port)))
    with log.open("wb") as stderr:
        daemon = subprocess.Popen([sys.executable, "-m", "autoscaler", "run", str(config)], stderr=stderr)
    try:
        yield Running(daemon, config, log, started(log))
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
    assert "http://127.0.0.1:9" in row  # the whole problem, not cut off
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
    now = datetime.now(UTC)  # noqa: TID251 - compares with a real daemon's time
    assert cli.main(["explain", "orders", "--url", url, "--at", now.isoformat()]) == 0
    assert "cluster orders" in capsys.readouterr().out
    before = now - timedelta(hours=1)
    assert cli.main(["explain", "orders", "--url", url, "--at", before.isoformat()]) == 1
    assert "no decision about cluster orders is kept up to" in capsys.readouterr().err


def test_an_unknown_cluster_is_reported_with_the_known_ones(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "ordres", "--url", url]) == 1
    assert "there is no cluster 'ordres'; there are: orders" in capsys.readouterr().err


def test_another_server_at_the_url_is_reported(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", f"{url}/metrics?"]) == 1
    assert "answers, but not like an autoscaler" in capsys.readouterr().err


def test_https_to_a_daemon_without_tls_is_reported(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", url.replace("http:", "https:")]) == 1
    assert "; a daemon without daemon.tls needs http://): is it running?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text.replace("max: 5", "maxx: 5"),  # YAML, but not a configuration
        lambda text: text + "  orders-2: {interval: [\n",  # not even YAML
        lambda text: text.replace("var, ", "var,\n# listen: '127.0.0.1:1'\n  ").replace("max: 5", "maxx: 5"),
        lambda text: text.replace("daemon: {", "daemon: {logs: console, ").replace("min: 3", "min: no"),
    ],
)
def test_status_finds_the_daemon_of_a_file_that_has_become_invalid_and_shows_the_refused_reload(
    daemon: Running, broken: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    good = daemon.config.read_text()
    try:
        daemon.reload(broken(good))
        assert cli.main(["status", str(daemon.config)]) == 0
        out, err = capsys.readouterr()
        table, _, refused = out.partition("\n\n")
        assert table.splitlines()[1].startswith("orders ")
        title, *problems = refused.splitlines()
        assert title == "The configuration was not reloaded, the previous one stays in use:"
        assert problems
        assert all(line.startswith(f"  {daemon.config}:") for line in problems)
        assert f"`autoscaler check {daemon.config}` lists what is wrong with the file" in err
        assert cli.main(["status", "--url", daemon.url, "--cluster", "orders"]) == 0
        assert problems[0] in capsys.readouterr().out
        assert cli.main(["status", "--url", daemon.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["reload"] == [line.strip() for line in problems]
        assert cli.main(["explain", "orders", "--config", str(daemon.config)]) == 0
        out, err = capsys.readouterr()
        assert "cluster orders" in out
        assert "autoscaler check" in err
    finally:
        daemon.reload(good)
    assert cli.main(["status", str(daemon.config)]) == 0
    out, err = capsys.readouterr()
    assert ("not reloaded" in out, err) == (False, "")


def test_an_invalid_file_without_a_daemon_gives_its_problems_and_the_address_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("PORT", "9").replace("max: 5", "maxx: 5"))
    assert cli.main(["status", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("maxx" in line for line in lines)
    assert lines[-1].startswith(f"{config}: no daemon answers at http://127.0.0.1:9 (")
    config.write_text(CONFIG.replace("'127.0.0.1:PORT'", "8765"))
    assert cli.main(["status", str(config)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"{config}: pass the URL of the daemon with --url"
    assert cli.main(["status", str(tmp_path / "none.yaml")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_the_clusters_of_another_daemon_are_shown_only_if_its_url_is_given(
    daemon: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "ä config.yaml"
    other.write_text(daemon.config.read_text())
    for command in (["status", str(other)], ["explain", "ordres", "--config", str(other)]):
        assert cli.main(command) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err == (
            f"autoscaler: the daemon at {daemon.url} runs another configuration: {daemon.config}, not {other}. "
            f"To use this daemon anyway, pass --url {daemon.url}\n"
        )
    assert cli.main(["status", str(other), "--url", daemon.url]) == 0
    assert "orders" in capsys.readouterr().out
    # The same file under another name is not another configuration.
    link = tmp_path / "link.yaml"
    link.symlink_to(daemon.config)
    assert cli.main(["status", str(link)]) == 0
    assert "orders" in capsys.readouterr().out


def test_explain_reads_decisions_that_the_daemon_no_longer_has_from_its_history(
    daemon: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    history = daemon.config.parent / "var" / "history"
    kept = next(read(history))
    oldest = kept.decision.at - timedelta(hours=30)
    written: list[Path] = []
    for number in range(3):
        at = oldest + number * timedelta(hours=10)
        older = replace(kept, observation=replace(kept.observation, at=at), decision=replace(kept.decision, at=at))
        written.append(history / f"{file_name(at)}.gz")
        written[-1].write_bytes(gzip.compress(dump_record(older) + b"\n"))
    explain = ["explain", "orders", "--url", daemon.url]
    try:
        asked = oldest + timedelta(hours=11)
        assert cli.main([*explain, "--at", asked.isoformat()]) == 0
        assert capsys.readouterr().out.startswith(f"{oldest + timedelta(hours=10):%Y-%m-%d %H:%M:%S} UTC: cluster orde")
        assert cli.main([*explain, "--last", "10000", "--json"]) == 0
        out, err = capsys.readouterr()
        decisions = json.loads(out)["decisions"]
        times = [datetime.fromisoformat(decision["decision"]["at"]) for decision in decisions]
        assert times == sorted(set(times), reverse=True)
        assert times[-4:] == [kept.decision.at, *(oldest + hours * timedelta(hours=1) for hours in (20, 10, 0))]
        assert err == f"autoscaler: 3 decisions read from {history} on this machine\n"
        assert [decision.keys() for decision in decisions[-4:]] == [decisions[0].keys()] * 4
        assert cli.main([*explain, "--at", (oldest - timedelta(hours=1)).isoformat()]) == 1
        assert "no decision about cluster orders is kept up to" in capsys.readouterr().err
        written[1].write_bytes(written[1].read_bytes()[:-12])
        assert cli.main([*explain, "--last", "10000"]) == 0
        out, err = capsys.readouterr()
        assert f"{oldest + timedelta(hours=20):%Y-%m-%d %H:%M:%S} UTC: cluster orders" in out
        assert f"{written[1]}: cannot be read: " in err
        assert "to see what is older than a damaged file, move that away" in err
    finally:
        for path in written:
            path.unlink()
    elsewhere, undisturbed, tries = history.with_name("elsewhere"), False, 0
    while not undisturbed and (tries := tries + 1) < 20:
        history.rename(elsewhere)
        code = cli.main([*explain, "--at", asked.isoformat()])
        lines = capsys.readouterr().err.splitlines()
        undisturbed = not history.exists()
        if not undisturbed:  # the daemon has written meanwhile: on a slow machine it has the time
            for path in history.iterdir():
                with (elsewhere / path.name).open("ab") as file:
                    file.write(path.read_bytes())
            shutil.rmtree(history)
        elsewhere.rename(history)
    assert undisturbed
    assert code == 1
    assert f"{history}: there is no such file or directory. Run this on the daemon's machine" in lines[0]
    assert "no decision about cluster orders is kept up to" in lines[1]


def everything(terminal: io.RawIOBase) -> bytes:
    """All output to a terminal whose other end is closed: it comes in pieces, and then as an error."""
    pieces = []
    with suppress(OSError):
        while piece := terminal.read(65536):
            pieces.append(piece)
    return b"".join(pieces)


@contextmanager
def terminal_of(arguments: Sequence[str], columns: int) -> Iterator[tuple[io.RawIOBase, subprocess.Popen[bytes]]]:
    """A command in its own terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    for name in ("COLUMNS", "LINES"):  # they would override the size of the terminal
        environment.pop(name, None)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "autoscaler", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        try:
            yield terminal, process
        finally:
            process.kill()
            process.wait()


def test_status_is_redrawn_until_ctrl_c(url: str) -> None:
    with terminal_of(["status", "--url", url, "--watch"], 80) as (terminal, process):
        shown = b""
        while shown.count(b"Refreshed every 2 s") < 2:
            shown += terminal.read(65536) or b""
        process.send_signal(signal.SIGINT)
        shown += everything(terminal)
        assert process.wait(60) == 0
    frames = shown.decode().split("\x1b[H")[1:]
    assert len(frames) >= 2
    for frame in frames:
        assert "orders" in frame
        assert "cpu: " in frame
    assert "Traceback" not in shown.decode()


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_gets_whole_words_and_the_problems_below_the_table(url: str, columns: int) -> None:
    with terminal_of(["status", "--url", url], columns) as (terminal, process):
        shown = re.sub(r"\x1b\[\d*m", "", everything(terminal).decode())
        assert process.wait(60) == 0
    head, row, *rest = shown.splitlines()
    assert head.split() == ["cluster", "ready", "size", "decided", "proposed", "limits", "reason", "rescale", "when"]
    assert row.split()[0] == "orders"
    assert any(line.startswith("orders: cpu: ") and "http://127.0.0.1:9" in line for line in rest)
    if columns != 50:  # if not even the titles fit, the terminal breaks the lines
        assert max(len(line) for line in (head, row)) <= columns
