"""Requests to a running daemon, for commands such as `status`, `explain` and `pause`."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from autoscaler.cli.output import print_error
from autoscaler.ports import AutoscalerError, ConfigurationError

URL = "http://127.0.0.1:8765"

TOKEN = "AUTOSCALER_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable with the token."""

_READ_TIMEOUT = 10.0
_WRITE_TIMEOUT = 90.0  # `decide` waits for a tick and its scale call

# Both search the section `daemon:`, outside comments.
_LISTEN = re.compile(r"""^daemon:(?:[^\n#]|#[^\n]*+|\n(?=[ \t\r\n#]))*?\blisten:\s*["']?([^\s"',}#]+)""", re.MULTILINE)
_TLS = re.compile(r"""^daemon:(?:[^\n#]|#[^\n]*+|\n(?=[ \t\r\n#]))*?\btls:""", re.MULTILINE)
_HOST_PORT = re.compile(r".+:\d{1,5}")


def daemon_options(parser: argparse.ArgumentParser, *, argument: bool = False) -> None:
    """Add `--config`, `--url`, `--token-file`, `--ca-file`; with `argument`, CONFIG also as a positional argument."""
    where = parser.add_mutually_exclusive_group()
    meaning = "the daemon's configuration, to find its address"
    if argument:
        where.add_argument("config_argument", type=Path, nargs="?", metavar="CONFIG", help=meaning)
    where.add_argument("--config", type=Path, metavar="CONFIG", help=meaning)
    parser.add_argument("--url", help=f"URL of the daemon (default: {URL}, or daemon.listen of CONFIG)")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with one of daemon.tokens, if the daemon needs one (default: the environment variable {TOKEN})",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="PEM file with the CA certificates that sign the daemon's (default: those of the system)",
    )


def cluster_path(name: str) -> str:
    """The path of a cluster in the daemon's API."""
    return f"/api/v1/clusters/{urllib.parse.quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a daemon.

    Attributes:
        url: the URL of its HTTP endpoints.
        config: the configuration file that the daemon must run; None if the user gave the URL: then any file.
        problems: why that file is not valid now; the daemon still runs the version that it loaded before.
        token: the token to send, over TLS or on this machine only; None: no token is sent.
        ca_file: the CA certificates that sign the daemon's; None: those of the system.
    """

    url: str
    config: Path | None = None
    problems: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    @property
    def private(self) -> bool:
        """Whether nobody else can read a request: it uses TLS, or stays on this machine."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme == "https":
            return True
        try:
            return ip_address(parts.hostname or "").is_loopback
        except ValueError:
            return parts.hostname == "localhost"

    def note_problems(self) -> None:
        """Tell on standard error that the file is not valid, so that the daemon runs an earlier version of it."""
        if self.problems:
            print_error(f"autoscaler: `autoscaler check {self.config}` lists what is wrong with the file")


def find_daemon(arguments: argparse.Namespace) -> Address:
    """The daemon that `--url` or a configuration names, with the token and certificates for it.

    Raises:
        AutoscalerError: the options do not tell where it listens, or the token file has no token.
    """
    return replace(_find(arguments), token=_token(arguments.token_file), ca_file=arguments.ca_file)


def _token(file: Path | None) -> str | None:
    """The token of a file, or of the environment."""
    if file is None:
        token, source = os.environ.get(TOKEN, "").strip(), f"the environment variable {TOKEN}"
        if not token:
            return None
    else:
        try:
            token, source = file.read_text().strip(), str(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AutoscalerError(f"--token-file: {file} cannot be read: {reason}") from error
    if not re.fullmatch(r"[!-~]+", token):
        raise AutoscalerError(f"{source} has no token: expected one line of ASCII without spaces")
    return token


def _find(arguments: argparse.Namespace) -> Address:
    if arguments.url:
        url = str(arguments.url).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise AutoscalerError(f"{url} is not a URL like {URL}")
        return Address(url)
    path: Path | None = arguments.config or getattr(arguments, "config_argument", None)
    if path is None:
        return Address(URL)
    from autoscaler import config  # noqa: PLC0415 - seldom needed

    problems: tuple[str, ...] = ()
    try:
        daemon = config.load(path, os.environ, offline=True).daemon
        listen, tls = daemon.listen, daemon.tls is not None
    except ConfigurationError as error:
        problems = error.problems
        listen, tls = _listen_in(path, problems)
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise AutoscalerError(f"daemon.listen is {listen}: the port is in the daemon's log, pass it with --url")
    # A daemon that listens on every address is also on the loopback one.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - compared, not listened on
    return Address(f"{'https' if tls else 'http'}://{host}:{port}", path, problems)


def _listen_in(path: Path, problems: Sequence[str]) -> tuple[str, bool]:
    """Find `daemon.listen`, and whether TLS is used, in a file that is not a valid configuration, or not even YAML.

    A wrong guess does no harm, because the daemon reports which configuration it runs.
    """
    try:
        text = path.read_text(errors="replace")
    except (OSError, ValueError) as error:
        raise ConfigurationError(problems) from error
    found = _LISTEN.search(text)
    listen = URL.removeprefix("http://") if found is None else found[1]
    if not _HOST_PORT.fullmatch(listen):
        raise ConfigurationError([*problems, f"{path}: pass the URL of the daemon with --url"])
    return listen, _TLS.search(text) is not None


def get(daemon: Address, path: str, key: str) -> dict[str, Any]:
    """Get the JSON object at a path of a daemon. Raises like `get_with_history`."""
    return get_with_history(daemon, path, key)[0]


def get_with_history(daemon: Address, path: str, key: str) -> tuple[dict[str, Any], Path | None]:
    """Get the JSON object at a path of a daemon, and the path of its history on its machine (None: not reported).

    Raises:
        AutoscalerError: no daemon answers, it runs another configuration, it refuses, or its answer lacks the key.
    """
    return _request(daemon, urllib.request.Request(daemon.url + path), key, _READ_TIMEOUT)  # noqa: S310 - see `_find`


def post(daemon: Address, path: str, body: object, key: str) -> dict[str, Any]:
    """Have a daemon change something. Returns its answer; raises like `get_with_history`."""
    if daemon.token is None:
        raise AutoscalerError(f"this needs one of the daemon's tokens: name its file with --token-file, or set {TOKEN}")
    if not daemon.private:
        raise AutoscalerError(f"the token is not sent to {daemon.url} in clear text: use https, or run on its machine")
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(daemon.url + path, json.dumps(body).encode(), headers)  # noqa: S310 - see `_find`
    return _request(daemon, request, key, _WRITE_TIMEOUT)[0]


def _request(
    daemon: Address, request: urllib.request.Request, key: str, timeout: float
) -> tuple[dict[str, Any], Path | None]:
    url = daemon.url
    if daemon.token is not None and daemon.private:
        # Unredirected: a redirect must not pass the token on to another server.
        request.add_unredirected_header("Authorization", f"Bearer {daemon.token}")
    # Without the proxy of the environment, which cannot reach this machine's loopback address.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=_context(daemon)))
    opener = urllib.request.build_opener(*handlers)
    other = f"{url} answers, but not like an autoscaler"
    try:
        with opener.open(request, timeout=timeout) as response:
            _check_config(daemon, response.headers.get("Autoscaler-Config"))
            history = response.headers.get("Autoscaler-History")
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        _check_config(daemon, error.headers.get("Autoscaler-Config"))
        raise AutoscalerError(_error_of(error) or f"{other}: {error.code} {error.reason}") from error
    except http.client.HTTPException as error:
        dropped = isinstance(error, http.client.RemoteDisconnected) and url.startswith("http:")
        secure = "; a daemon with daemon.tls needs https://" if dropped else ""
        raise AutoscalerError(f"{other}: {type(error).__name__}{secure}") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise AutoscalerError(
                f"the certificate of {url} is not accepted: {reason.verify_message}; pass the CA certificates with "
                "--ca-file, and with --url a host name that is in the certificate"
            ) from error
        plain = "; a daemon without daemon.tls needs http://" if isinstance(reason, ssl.SSLError) else ""
        unreachable = f"no daemon answers at {url} ({reason}{plain})"
        if daemon.problems:
            raise ConfigurationError([*daemon.problems, f"{daemon.config}: {unreachable}"]) from error
        raise AutoscalerError(f"{unreachable}: is it running? Pass its URL with --url, or its configuration") from error
    except ValueError as error:
        raise AutoscalerError(f"{other}: no JSON") from error
    if not isinstance(answer, dict) or key not in answer:
        raise AutoscalerError(f"{other}: the answer has no {key!r}")
    return answer, None if history is None else Path(urllib.parse.unquote(history))


def _context(daemon: Address) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=daemon.ca_file)
    except OSError as error:
        raise AutoscalerError(f"--ca-file: {daemon.ca_file} cannot be used: {error.strerror or error}") from error


def _check_config(daemon: Address, runs: str | None) -> None:
    """Refuse the answer of a daemon that runs another file. A daemon of an earlier version does not report its file.

    Raises:
        AutoscalerError: it runs another file.
    """
    if daemon.config is None or runs is None:
        return
    theirs = Path(urllib.parse.unquote(runs))
    try:
        same = theirs.samefile(daemon.config)
    except OSError:
        same = False
    if not same:
        raise AutoscalerError(
            f"the daemon at {daemon.url} runs another configuration: {theirs}, not {daemon.config}. "
            f"To use this daemon anyway, pass --url {daemon.url}"
        )


def _error_of(error: urllib.error.HTTPError) -> str | None:
    """The error message in an answer of an autoscaler; None if the answer has another form."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return None
