"""Tokens and TLS of the daemon: accepted values, values from files, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from autoscaler.config import load
from autoscaler.config.model import Config, DaemonSpec, Rights, TlsSpec, TokenSpec
from autoscaler.core.parameters import ParameterError
from autoscaler.ports import Secret

Accepted = Callable[..., Config]
Refused = Callable[..., list[str]]

ENVIRONMENT = {"LONG": "long-enough-for-it", "OTHER": "another-long-enough", "SHORT": "short-of-one-ch"}


def test_tokens_have_the_content_of_their_files_and_are_masked(accepted: Accepted, good: str, tmp_path: Path) -> None:
    tokens = "[{name: alice, rights: write, token_file: alice}, {name: bob@a.b, rights: read, token: '${BOB}'}]"
    (tmp_path / "alice").write_text("a" * 16 + "\n")
    text = f"daemon: {{tokens: {tokens}, read_needs_token: true}}\n{good}"
    config = accepted(text, {"BOB": "b" * 16})
    assert config.daemon.tokens == (
        TokenSpec(name="alice", rights=Rights.WRITE, token=Secret("a" * 16)),
        TokenSpec(name="bob@a.b", rights=Rights.READ, token=Secret("b" * 16)),
    )
    assert config.daemon.read_needs_token
    assert config.secrets >= {"a" * 16, "b" * 16}
    assert not any(part in repr(config) for part in ("aaaa", "bbbb"))


@pytest.mark.parametrize(
    ("written", "expires"),
    [
        ("2027-03-31", "2027-03-31T00:00:00+00:00"),
        ("'2027-03-31'", "2027-03-31T00:00:00+00:00"),
        ("2027-03-31T18:00:00+02:00", "2027-03-31T16:00:00+00:00"),
        ("2027-03-31 18:00Z", "2027-03-31T18:00:00+00:00"),
        ("null", None),
    ],
)
def test_a_token_may_expire_on_a_date_or_at_a_time_with_a_time_zone(
    accepted: Accepted, good: str, written: str, expires: str | None
) -> None:
    tokens = f"[{{name: a, rights: read, token: '${{LONG}}', expires: {written}}}]"
    [token] = accepted(f"daemon: {{tokens: {tokens}}}\n{good}", ENVIRONMENT).daemon.tokens
    assert token.expires == (None if expires is None else datetime.fromisoformat(expires))


@pytest.mark.parametrize("written", ["2027-03-31T18:00:00", "2027-02-30", "20270331", "tomorrow", "90d", "true"])
def test_an_invalid_expiry_or_one_without_a_time_zone_is_refused(refused: Refused, good: str, written: str) -> None:
    tokens = f"[{{name: a, rights: read, token: '${{LONG}}', expires: {written}}}]"
    [problem] = refused(f"daemon: {{tokens: {tokens}}}\n{good}", ENVIRONMENT)
    expected = "expected a date like 2026-12-31, or a time with its zone like 2026-12-31T18:00:00+01:00"
    shown = written if written == "true" else repr(written)
    assert problem == f"1: daemon.tokens[0].expires: {expected}, not {shown}"


def test_a_token_has_expired_from_its_expiry_on(tmp_path: Path) -> None:
    now = datetime(2027, 3, 31, 16, tzinfo=UTC)
    times = {"a": now, "b": now + timedelta(seconds=1), "c": None, "d": now - timedelta(days=9)}
    tokens = tuple(
        TokenSpec(name=name, rights=Rights.READ, token=Secret(name * 16), expires=at) for name, at in times.items()
    )
    assert DaemonSpec(directory=tmp_path, tokens=tokens).expired(now) == (
        "daemon.tokens[0].expires: the token of a has expired, at 2027-03-31 16:00:00 UTC",
        "daemon.tokens[3].expires: the token of d has expired, at 2027-03-22 16:00:00 UTC",
    )


def test_a_command_that_does_not_connect_needs_neither_the_tokens_nor_the_certificate(
    accepted: Accepted, good: str, tmp_path: Path
) -> None:
    tokens = "[{name: alice, rights: write, token_file: none}, {name: bob, rights: read, token: '${BOB}'}]"
    text = f"daemon: {{listen: '0.0.0.0:1', tokens: {tokens}, tls: {{certificate: a, key: b}}}}\n{good}"
    assert accepted(text, offline=True).daemon.tls == TlsSpec(certificate=tmp_path / "a", key=tmp_path / "b")


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_tokens_in_clear_text_are_accepted_only_on_this_machine(listen: str, loopback: bool, tmp_path: Path) -> None:
    tokens = (TokenSpec(name="a", rights=Rights.READ, token=Secret("a" * 16)),)
    tls = TlsSpec(certificate=tmp_path, key=tmp_path)
    assert DaemonSpec(directory=tmp_path, listen=listen, tokens=tokens, tls=tls).tokens == tokens
    assert DaemonSpec(directory=tmp_path, listen=listen).loopback is loopback
    if loopback:
        assert DaemonSpec(directory=tmp_path, listen=listen, tokens=tokens).tokens == tokens
    else:
        with pytest.raises(ParameterError, match=r"tokens: would be sent in clear text .* set daemon\.tls"):
            DaemonSpec(directory=tmp_path, listen=listen, tokens=tokens)


@pytest.mark.parametrize(
    ("advertise", "accepted"),
    [
        ("http://10.0.0.7:1", False),
        ("https://10.0.0.7:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
    ],
)
def test_copies_forward_tokens_in_clear_text_only_on_this_machine(
    advertise: str, accepted: bool, tmp_path: Path
) -> None:
    tokens = (TokenSpec(name="a", rights=Rights.READ, token=Secret("a" * 16)),)
    assert DaemonSpec(directory=tmp_path, advertise=advertise).advertise == advertise
    if accepted:
        assert DaemonSpec(directory=tmp_path, advertise=advertise, tokens=tokens).advertise == advertise
    else:
        with pytest.raises(ParameterError, match=r"advertise: is .* pass tokens on in clear text; use https"):
            DaemonSpec(directory=tmp_path, advertise=advertise, tokens=tokens)


@pytest.mark.parametrize(
    ("daemon", "problems"),
    [
        (
            "{listen: '0.0.0.0:1', tokens: [{name: a, rights: write, token: '${LONG}'}]}",
            [
                (
                    "1: daemon.tokens: would be sent in clear text to daemon.listen, 0.0.0.0:1: set daemon.tls, or "
                    "listen on 127.0.0.1"
                )
            ],
        ),
        (
            "\n  tokens: [{name: a, rights: write}, {name: b, rights: all, token: '${LONG}'}]",
            [
                "2: daemon.tokens[0]: token: set either this or token_file",
                "2: daemon.tokens[1].rights: expected one of read, write, not 'all'",
            ],
        ),
        (
            "{tokens: [{name: a, rights: write, token: '${LONG}', token_file: b}]}",
            ["1: daemon.tokens[0].token: set either this or token_file"],
        ),
        (
            "{tokens: [{name: a, rights: write, token: '${SHORT}'}]}",
            [
                (
                    "1: daemon.tokens[0].token: must be 16 or more characters of ASCII without spaces; "
                    "`openssl rand -hex 32` makes one"
                )
            ],
        ),
        (
            "{tokens: [{name: a b, rights: write, token: '${LONG}'}]}",
            ["1: daemon.tokens[0].name: is 1 to 63 letters, digits, `_`, `.`, `-`, `@`"],
        ),
        (
            "{tokens: [{name: a, rights: write, token: '${LONG}'}, {name: a, rights: read, token: '${OTHER}'}]}",
            ["1: daemon.tokens: two tokens have the name a"],
        ),
        (
            "{tokens: [{name: a, rights: write, token: '${LONG}'}, {name: b, rights: read, token: '${LONG}'}]}",
            ["1: daemon.tokens[1]: has the same token as a"],
        ),
        ("{read_needs_token: true}", ["1: daemon.read_needs_token: needs tokens: without them, nobody could read"]),
        (
            "\n  tokens: [{name: a, rights: write, token_file: none}]",
            ["2: daemon.tokens[0].token_file: DIR/none cannot be used: No such file or directory"],
        ),
        (
            "\n  tokens: [{name: a, rights: write, token_file: short}]",
            [
                (
                    "2: daemon.tokens[0].token_file: DIR/short cannot be used: token: must be 16 or more characters of "
                    "ASCII without spaces; `openssl rand -hex 32` makes one"
                )
            ],
        ),
        ("{tls: {certificate: short}}", ["1: daemon.tls.key: missing; expected a path"]),
    ],
)
def test_unusable_tokens_are_named(
    refused: Refused, good: str, tmp_path: Path, daemon: str, problems: list[str]
) -> None:
    (tmp_path / "short").write_text("two lines and\nspaces")
    found = refused(f"daemon: {daemon}\n{good}", ENVIRONMENT)
    assert found == [problem.replace("DIR", str(tmp_path)) for problem in problems]


@pytest.mark.parametrize(("certificate", "key"), [("none", "key"), ("cert", "none"), ("cert", "other"), ("key", "key")])
def test_an_unusable_certificate_is_named(
    refused: Refused, good: str, tmp_path: Path, certificate: str, key: str
) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    ca.issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "other")
    text = f"daemon: {{tls: {{certificate: CERT, key: KEY}}}}\n{good}"
    [problem] = refused(text.replace("CERT", certificate).replace("KEY", key))
    assert problem.startswith(f"1: daemon.tls: {tmp_path / certificate} and {tmp_path / key} cannot be used: ")
    load_good = text.replace("CERT", "cert").replace("KEY", "key")
    (tmp_path / "good.yaml").write_text(load_good)
    assert load(tmp_path / "good.yaml", {}).daemon.tls is not None
