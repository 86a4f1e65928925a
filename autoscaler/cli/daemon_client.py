"""Requests to a running daemon, for `status` and `explain`."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.cli.output import print_error
from autoscaler.ports import AutoscalerError, ConfigurationError

URL = "http://127.0.0.1:8765"

# In the lines of `daemon:`, outside of comments.
_LISTEN = re.compile(r"""^daemon:(?:[^\n#]|#[^\n]*+|\n(?=[ \t\r\n#]))*?\blisten:\s*["']?([^\s"',}#]+)""", re.MULTILINE)
_HOST_PORT = re.compile(r".+:\d{1,5}")


def url_option(parser: argparse.ArgumentParser) -> None:
    """Add `--url`."""
    parser.add_argument("--url", help=f"URL of the daemon (default: {URL}, or daemon.listen of CONFIG)")


def cluster_path(name: str) -> str:
    """The path of a cluster in the daemon's API."""
    return f"/api/v1/clusters/{urllib.parse.quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon is asked.

    Attributes:
        url: of its HTTP endpoints.
        config: the configuration that it must run; None where it was named by its URL: then any daemon is asked.
        problems: why that file cannot be used as it is now; the daemon runs what it has loaded before.
    """

    url: str
    config: Path | None = None
    problems: tuple[str, ...] = ()

    def note_problems(self) -> None:
        """Say on the standard error that the file is not what the daemon runs."""
        if self.problems:
            print_error(f"autoscaler: `autoscaler check {self.config}` lists what is wrong with the file")


def find_daemon(arguments: argparse.Namespace) -> Address:
    """The daemon that `--url` or a configuration names.

    Raises:
        AutoscalerError: they do not say where it listens.
    """
    if arguments.url:
        url = str(arguments.url).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise AutoscalerError(f"{url} is not a URL like {URL}")
        return Address(url)
    if arguments.config is None:
        return Address(URL)
    from autoscaler import config  # noqa: PLC0415 - most often there is no configuration to read

    path: Path = arguments.config
    problems: tuple[str, ...] = ()
    try:
        listen = config.load(path, os.environ, offline=True).daemon.listen
    except ConfigurationError as error:
        problems = error.problems
        listen = _listen_in(path, problems)
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise AutoscalerError(f"daemon.listen is {listen}: the port is in the daemon's log, pass it with --url")
    # A daemon that listens on every address is also on the loopback one.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - compared, not listened on
    return Address(f"http://{host}:{port}", path, problems)


def _listen_in(path: Path, problems: Sequence[str]) -> str:
    """The `daemon.listen` of a file that is not a valid configuration, and may not even be YAML.

    A wrong guess does no harm, as the daemon says which configuration it runs.
    """
    try:
        text = path.read_text(errors="replace")
    except (OSError, ValueError) as error:
        raise ConfigurationError(problems) from error
    found = _LISTEN.search(text)
    listen = URL.removeprefix("http://") if found is None else found[1]
    if not _HOST_PORT.fullmatch(listen):
        raise ConfigurationError([*problems, f"{path}: pass the URL of the daemon with --url"])
    return listen


def get(daemon: Address, path: str, key: str) -> dict[str, Any]:
    """The JSON object at a path of a daemon. Raises like `get_with_history`."""
    return get_with_history(daemon, path, key)[0]


def get_with_history(daemon: Address, path: str, key: str) -> tuple[dict[str, Any], Path | None]:
    """The JSON object at a path of a daemon, and where its history is, on its machine; None: it does not say.

    Raises:
        AutoscalerError: there is no daemon, it runs another configuration, or the answer has not the key.
    """
    url = daemon.url
    # Without the proxy of the environment, which cannot reach this machine's loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    other = f"{url} answers, but not like an autoscaler"
    try:
        with opener.open(url + path, timeout=10) as response:
            _check_config(daemon, response.headers.get("Autoscaler-Config"))
            history = response.headers.get("Autoscaler-History")
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        _check_config(daemon, error.headers.get("Autoscaler-Config"))
        raise AutoscalerError(_error_of(error) or f"{other}: {error.code} {error.reason}") from error
    except http.client.HTTPException as error:
        raise AutoscalerError(f"{other}: {type(error).__name__}") from error
    except (urllib.error.URLError, OSError) as error:
        unreachable = f"no daemon answers at {url} ({getattr(error, 'reason', error)})"
        if daemon.problems:
            raise ConfigurationError([*daemon.problems, f"{daemon.config}: {unreachable}"]) from error
        raise AutoscalerError(
            f"{unreachable}: is it running? Name its address with --url or its configuration"
        ) from error
    except ValueError as error:
        raise AutoscalerError(f"{other}: no JSON") from error
    if not isinstance(answer, dict) or key not in answer:
        raise AutoscalerError(f"{other}: there is no {key!r} in it")
    return answer, None if history is None else Path(urllib.parse.unquote(history))


def _check_config(daemon: Address, runs: str | None) -> None:
    """Refuse the answer of a daemon that runs another file. One of an earlier version does not name its own.

    Raises:
        AutoscalerError: it runs another one.
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
            f"To ask it all the same, pass --url {daemon.url}"
        )


def _error_of(error: urllib.error.HTTPError) -> str | None:
    """The message of an error of ours."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return None
