"""The unit, checked by systemd's own checker and against the needs of the daemon."""

from __future__ import annotations

import configparser
import ctypes.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from autoscaler.config.sections import LONGEST_TIMEOUT
from autoscaler.daemon.connections import CONNECT_TIMEOUT
from autoscaler.daemon.controller import SCALE_TIMEOUT
from autoscaler.daemon.sd_notify import POLL_INTERVAL

DEPLOY = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = "autoscaler.service"
SECONDS = {"s": 1, "min": 60}


@pytest.fixture
def analyze() -> str:
    command = shutil.which("systemd-analyze")
    if command is None:
        reason = "systemd-analyze is not installed (Debian: apt-get install systemd)"
        if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return command


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as installed, with an existing command, since systemd checks that."""
    command = tmp_path / "autoscaler"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    text = (DEPLOY / UNIT).read_text()
    assert "ExecStart=/opt/autoscaler/bin/autoscaler run " in text
    unit = tmp_path / UNIT
    unit.write_text(text.replace("/opt/autoscaler/bin/autoscaler", str(command)))
    return unit


def run(*command: str | Path) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def drop_in(unit: Path, text: str) -> None:
    directory = unit.with_name(f"{unit.name}.d")
    directory.mkdir(exist_ok=True)
    (directory / "test.conf").write_text(text)


def about(unit: Path, output: str) -> list[str]:
    """The messages about the unit, without those about the machine's own units."""
    return [line for line in output.splitlines() if str(unit.parent) in line or unit.name in line]


def test_systemd_finds_nothing_wrong_with_the_unit(analyze: str, installed: Path) -> None:
    code, output = run(analyze, "verify", "--man=no", installed)
    assert (code, about(installed, output)) == (0, [])


def test_systemd_finds_nothing_wrong_with_the_drop_in_for_local_workers(analyze: str, installed: Path) -> None:
    drop_in(installed, (DEPLOY / "local-workers.conf").read_text())
    code, output = run(analyze, "verify", "--man=no", installed)
    assert (code, about(installed, output)) == (0, [])


def test_the_check_finds_an_error(analyze: str, installed: Path) -> None:
    drop_in(installed, "[Service]\nRestrat=always\n")
    _, output = run(analyze, "verify", "--man=no", installed)
    assert any("Restrat" in line for line in about(installed, output))


def test_the_unit_has_a_low_exposure(analyze: str, installed: Path) -> None:
    code, output = run(analyze, "security", "--offline=true", "--threshold=15", "--no-pager", installed)
    if "unrecognized option" in output:  # before systemd 250
        pytest.skip("this systemd-analyze cannot judge a unit offline")
    level = re.search(r"Overall exposure level for autoscaler\.service: (\d+\.\d)", output)
    assert level, output
    assert (code, float(level[1]) <= 1.5) == (0, True), output


CONFIG = """\
daemon: {directory: state, listen: "127.0.0.1:0", log: json}
sources:
  prom: {type: prometheus, url: "http://localhost:PORT", fresh: 0s}
clusters:
  orders:
    target: {type: advice}
    max: 5
    interval: 1s
    metrics: {lag: {source: prom, query: lag}}
    policies: {p: {type: target-tracking, metric: lag, target: 1}}
"""


class Prometheus(BaseHTTPRequestHandler):
    """Answers every query with 1."""

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        value = {"metric": {}, "value": [time.time(), "1"]}
        text = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [value]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_daemon_works_under_the_filters_of_the_unit(analyze: str, tmp_path: Path, prometheus: int) -> None:
    """It resolves, polls, decides, stores, serves, reloads, and notifies systemd."""
    if not ctypes.util.find_library("seccomp"):
        pytest.skip("libseccomp is not installed")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.replace("PORT", str(prometheus)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("wb") as log:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        service = settings(UNIT)
        restrict = [analyze, *service["RestrictAddressFamilies"].split()]
        daemon = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("restricted.py"), DEPLOY / UNIT, *restrict, "--", config],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stderr=log,
        )
        try:

            def notified(what: bytes) -> None:
                while what not in manager.recv(4096):
                    pass

            notified(b"READY=1")
            notified(b"STATUS=1 cluster")
            daemon.send_signal(signal.SIGHUP)
            notified(b"RELOADING=1")
            notified(b"READY=1")
            daemon.send_signal(signal.SIGTERM)
            notified(b"STOPPING=1")
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
    assert "not permitted" not in (tmp_path / "log").read_text()
    assert list((tmp_path / "state" / "history").iterdir())


class Unit(configparser.RawConfigParser):
    """Names keep their case, and may repeat."""

    def __init__(self) -> None:
        super().__init__(strict=False)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def settings(name: str) -> dict[str, str]:
    parser = Unit()
    parser.read(DEPLOY / name)
    return dict(parser["Service"])


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(s|min)", text)
    assert found, text
    return int(found[1]) * SECONDS[found[2]]


def test_the_timeouts_of_the_unit_fit_the_daemon() -> None:
    service = settings(UNIT)
    assert seconds(service["WatchdogSec"]) >= 2 * POLL_INTERVAL
    assert seconds(service["TimeoutStartSec"]) > 2 * CONNECT_TIMEOUT
    assert seconds(service["TimeoutStopSec"]) > SCALE_TIMEOUT + LONGEST_TIMEOUT.total_seconds()


def test_the_unit_has_everything_that_the_daemon_needs() -> None:
    service = settings(UNIT)
    assert service["Type"] == "notify"
    assert service["ExecReload"] == '/bin/sh -c "kill -HUP $MAINPID"'
    # 2: the configuration is invalid.
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert (service["MemoryDenyWriteExecute"], service["MemoryMax"]) == ("yes", "1G")
    # Java generates code at run time, and the workers are part of the unit.
    local = settings("local-workers.conf")
    assert (local["MemoryDenyWriteExecute"], local["MemoryMax"], local["PrivateUsers"]) == ("no", "infinity", "no")
    # Workers of the target `local` survive the daemon, and keep their user and files.
    assert (local["KillMode"], local["DynamicUser"], local["PrivateTmp"]) == ("process", "no", "no")


def test_the_directories_are_the_documented_ones() -> None:
    service = settings(UNIT)
    (block,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    assert yaml.safe_load(block) == {"daemon": {"directory": f"/var/lib/{service['StateDirectory']}"}}
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert service["ExecStart"].split()[1:] == ["run", f"/etc/{service['ConfigurationDirectory']}/config.yaml"]


def test_manually_installed_files_are_at_the_paths_of_the_commands() -> None:
    """`pip install '.[...]'` is relative to the project's root, so the paths of the other commands are too."""
    (block,) = re.findall(r"```bash\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    shipped = re.findall(r"^install .* (\S+) /etc/systemd/", block, re.MULTILINE)
    assert [DEPLOY.parents[1] / path for path in shipped] == [DEPLOY / UNIT]
