"""`pause`, `hold`, `limit`, `resume`, `decide` and `controls` against a running daemon with TLS and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from autoscaler import cli
from autoscaler.cli.daemon_client import TOKEN
from autoscaler.core.model import MAX_REPLICAS

from .test_running import CONFIG, Running, running

SECURE = (
    "daemon: {directory: var, listen: '127.0.0.1:PORT', log: json, read_needs_token: true,\n"
    "  tls: {certificate: tls.crt, key: tls.key},\n"
    "  tokens: [{name: alice, rights: write, token_file: alice}, {name: grafana, rights: read, token_file: grafana}]}\n"
)


@dataclass
class Secure:
    """A daemon with TLS and tokens, and the options that a command needs for it."""

    daemon: Running
    directory: Path

    @property
    def url(self) -> list[str]:
        return ["--url", self.daemon.url]

    @property
    def ca(self) -> list[str]:
        return ["--ca-file", str(self.directory / "ca.pem")]

    def token(self, name: str = "alice") -> list[str]:
        return ["--token-file", str(self.directory / name)]

    @property
    def options(self) -> list[str]:
        return [*self.url, *self.ca, *self.token()]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("secure")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / "ca.pem")
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "tls.key")
    (directory / "tls.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    for name in ("alice", "grafana", "nobody"):
        (directory / name).write_text(f"{name[0] * 32}\n")
    rest = CONFIG[CONFIG.index("sources:") :]
    with running(directory, SECURE + rest) as daemon:
        yield Secure(daemon, directory)


@pytest.fixture
def resumed(secure: Secure, capsys: pytest.CaptureFixture[str]) -> Iterator[Secure]:
    yield secure
    assert cli.main(["resume", "*", *secure.options]) == 0
    capsys.readouterr()


def test_a_hold_is_set_listed_shown_in_the_decision_and_ended(
    secure: Secure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["hold", "4", "orders", "--for", "2h", "--reason", "load test", *secure.options]) == 0
    until = datetime.now(UTC) + timedelta(hours=2)  # noqa: TID251 - compares with a real daemon's time
    out = capsys.readouterr().out
    assert out.startswith(f"the size is held at 4 until {until:%Y-%m-%d %H:}")
    assert out.endswith(" UTC, 1 cluster: orders\n")
    assert cli.main(["decide", "orders", *secure.options]) == 0
    assert "load test" in (decided := capsys.readouterr().out), decided
    # A tick may have come first, and have made the same decision.
    assert cli.main(["explain", "orders", "--last", "20", *secure.options]) == 0
    assert "cluster orders is scaled up from 3 to 4" in (explained := capsys.readouterr().out), explained
    assert cli.main(["controls", *secure.options]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["clusters", "control", "until", "by", "why"]
    assert [cell for cell in row.split("  ") if cell][:2] == ["orders", "hold 4"]
    assert "alice" in row
    assert "load test" in row
    assert cli.main(["resume", "orders", *secure.options]) == 0
    assert capsys.readouterr().out == "resumed, 1 cluster: orders\n"
    assert cli.main(["controls", *secure.options]) == 0
    assert capsys.readouterr().out == "No pause, hold or limit is in force.\n"
    assert cli.main(["controls", "--audit", "3", *secure.options]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split("  ")[2].strip() for row in rows] == ["resume", "decide", "hold"]


@pytest.mark.parametrize(
    ("command", "printed", "body"),
    [
        (["pause", "orders"], "scaling up and down is paused until ", {"up": True, "down": True}),
        (["pause", "--up", "ord*"], "scaling up is paused until ", {"up": True, "down": False}),
        (
            ["pause", "orders", "--down", "--until-resumed"],
            "scaling down is paused until it is resumed, ",
            {"up": False},
        ),
        (["limit", "--min", "3", "--max", "4", "orders"], "the size is limited to at least 3 and at most 4 until ", {}),
        (["limit", "orders", "--max", "4", "--for", "30m"], "the size is limited to at most 4 until ", {"min": None}),
        (["hold", "0", "orders"], "the size is held at 0 until ", {"replicas": 0}),
        (["hold", "2", "--for", "2h", "orders"], "the size is held at 2 until ", {"clusters": ["orders"]}),
        (
            ["pause", "ord*", "--up", "orders", "--for", "2h", "o*"],
            "scaling up is paused until ",
            {"clusters": ["ord*", "orders", "o*"]},
        ),
    ],
)
def test_each_control_arrives_unchanged(
    resumed: Secure, capsys: pytest.CaptureFixture[str], command: list[str], printed: str, body: dict[str, object]
) -> None:
    assert cli.main([*command, *resumed.options]) == 0
    assert capsys.readouterr().out.startswith(printed)
    assert cli.main(["controls", "--json", *resumed.options]) == 0
    [control] = json.loads(capsys.readouterr().out)["controls"]
    assert control["kind"] == command[0]
    assert control.items() >= body.items()


@pytest.mark.parametrize(("requested", "held"), [("50", "5"), ("0", "3")])
def test_a_hold_outside_the_bounds_reports_the_actual_size(
    resumed: Secure, capsys: pytest.CaptureFixture[str], requested: str, held: str
) -> None:
    assert cli.main(["hold", requested, "orders", *resumed.options]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"the size is held at {requested} until ")
    assert second == f"at {held} instead, because of min and max in the configuration: orders"


def test_a_hold_during_a_pause_reports_that_the_pause_takes_precedence(
    resumed: Secure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pause", "orders", "--reason", "upgrade", *resumed.options]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert cli.main(["hold", "4", "orders", *resumed.options]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("the size is held at 4 until ")
    assert second.startswith("a control in force takes precedence: scaling up and down is paused by ")
    assert second.endswith(": upgrade, for orders")
    assert third == "`autoscaler resume` ends all of these except annotations, which end when they are removed"


def test_errors_of_the_daemon_are_shown_unchanged(secure: Secure, capsys: pytest.CaptureFixture[str]) -> None:
    for command, problem in (
        (["pause", "ordres"], "no cluster matches 'ordres'; there are: orders"),
        (["pause", "--fleet", "f"], "no fleet matches 'f'; there are: none"),
        (["pause"], "names no cluster: give clusters, fleets or both"),
        (["limit", "--min", "5", "--max", "4", "orders"], "min is 5, expected at most max (4)"),
        (["hold", "99999999999", "orders"], f"replicas: Input should be less than or equal to {MAX_REPLICAS}"),
        (["decide", "ordres"], "there is no cluster 'ordres'; there are: orders"),
    ):
        assert cli.main([*command, *secure.options]) == 1
        assert capsys.readouterr().err == f"autoscaler: {problem}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["pause", "--up", "--down", "orders"],
        ["pause", "orders", "--for", "2h", "--until-resumed"],
        ["pause", "orders", "--for", "0s"],
        ["hold", "-1", "orders"],
        ["hold", "many", "orders"],
        ["hold", "2", "orders", "--fro", "2h"],
        ["decide", "orders", "payments"],
        ["limit", "orders"],
        ["controls", "--audit", "0"],
    ],
)
def test_invalid_arguments_are_a_usage_error(command: list[str]) -> None:
    assert cli.main([*command, "--url", "http://127.0.0.1:9"]) == 2


def test_without_a_token_with_the_write_right_nothing_is_changed(
    secure: Secure, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = ["pause", "orders", *secure.url, *secure.ca]
    for token, problem in (
        ([], "this needs one of the daemon's tokens: name its file with --token-file, or set AUTOSCALER_TOKEN"),
        (secure.token("nobody"), "the token is not one of daemon.tokens"),
        (secure.token("grafana"), "the token of grafana may only read; this needs one with rights: write"),
    ):
        assert cli.main([*pause, *token]) == 1
        assert capsys.readouterr().err == f"autoscaler: {problem}\n"
    monkeypatch.setenv(TOKEN, "a" * 32)
    assert cli.main(pause) == 0
    assert cli.main(["resume", "orders", *secure.url, *secure.ca]) == 0
    capsys.readouterr()
    assert cli.main([*pause, *secure.token("nobody")]) == 1  # the file is more specific


def test_commands_that_read_work_with_tls_and_a_token(
    secure: Secure, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(secure.daemon.config)
    monkeypatch.setenv(TOKEN, "g" * 32)
    for command in (
        ["status", config],
        ["explain", "orders", "--config", config],
        ["explain", "ord*", "--config", config],
        ["controls", config],
        ["status", "--config", config],
        ["controls", "--config", config],
    ):
        assert cli.main([*command, *secure.ca]) == 0, command
    assert "orders" in capsys.readouterr().out
    monkeypatch.delenv(TOKEN)
    assert cli.main(["status", config, *secure.ca]) == 1
    assert "this needs a token" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "controls"])
def test_the_configuration_may_be_given_only_once(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.main([command, "a.yaml", "--config", "b.yaml"]) == 2
    assert "argument --config: not allowed with argument CONFIG" in capsys.readouterr().err


def test_a_file_that_has_become_invalid_still_shows_that_its_daemon_uses_tls(
    secure: Secure, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = secure.daemon.config.read_text().replace("max: 5", "maxx: 5")
    good = secure.daemon.config.read_text()
    secure.daemon.config.write_text(broken)
    try:
        assert cli.main(["status", str(secure.daemon.config), *secure.ca, *secure.token()]) == 0
    finally:
        secure.daemon.config.write_text(good)
    assert "orders" in capsys.readouterr().out


def test_http_to_a_daemon_with_tls_is_reported(secure: Secure, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", secure.daemon.url.replace("https:", "http:")]) == 1
    assert "RemoteDisconnected; a daemon with daemon.tls needs https://" in capsys.readouterr().err


def test_an_untrusted_certificate_is_refused_before_the_token_is_sent(
    secure: Secure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pause", "orders", *secure.url, *secure.token()]) == 1
    problem = capsys.readouterr().err
    assert f"the certificate of {secure.daemon.url} is not accepted: " in problem
    assert "--ca-file" in problem
    other = secure.daemon.url.replace("127.0.0.1", "localhost")
    assert cli.main(["status", "--url", other, *secure.ca, *secure.token()]) == 1
    assert "localhost" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "two words", "two\nlines"])
def test_a_file_without_a_token_is_named(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    assert cli.main(["status", "--url", "http://127.0.0.1:9", "--token-file", str(file)]) == 1
    assert str(file) in capsys.readouterr().err


def test_a_file_without_certificates_is_named(
    tmp_path: Path, secure: Secure, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (tmp_path / "none.pem", secure.directory / "alice"):
        assert cli.main(["status", *secure.url, "--ca-file", str(file)]) == 1
        assert f"--ca-file: {file} cannot be used" in capsys.readouterr().err


def test_a_token_is_not_sent_in_clear_text_to_another_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("a" * 32)
    assert cli.main(["pause", "orders", "--url", "http://scaler.example.com", "--token-file", str(file)]) == 1
    assert "the token is not sent to http://scaler.example.com in clear text: use https" in capsys.readouterr().err
