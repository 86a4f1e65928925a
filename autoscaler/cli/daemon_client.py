"""Requests to a running daemon, for `status` and `explain`."""

from __future__ import annotations

import argparse
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from autoscaler.ports import AutoscalerError

URL = "http://127.0.0.1:8765"


def url_option(parser: argparse.ArgumentParser) -> None:
    """Add `--url`."""
    parser.add_argument("--url", help=f"URL of the daemon (default: {URL}, or daemon.listen of CONFIG)")


def cluster_path(name: str) -> str:
    """The path of a cluster in the daemon's API."""
    return f"/api/v1/clusters/{urllib.parse.quote(name, safe='')}"


def get(arguments: argparse.Namespace, path: str, key: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON object at a path of the daemon that `--url` or a configuration names.

    Raises:
        AutoscalerError: there is no daemon, or the answer has not the key.
    """
    url = _url(arguments)
    if not url.startswith(("http://", "https://")):
        raise AutoscalerError(f"{url} is not a URL like {URL}")
    # Without the proxy of the environment, which cannot reach this machine's loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    other = f"{url} answers, but not like an autoscaler"
    try:
        with opener.open(url + path, timeout=10) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise AutoscalerError(_error_of(error) or f"{other}: {error.code} {error.reason}") from error
    except http.client.HTTPException as error:
        raise AutoscalerError(f"{other}: {type(error).__name__}") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise AutoscalerError(
            f"no daemon answers at {url} ({reason}): is it running? Name its address with --url or its configuration"
        ) from error
    except ValueError as error:
        raise AutoscalerError(f"{other}: no JSON") from error
    if not isinstance(answer, dict) or key not in answer:
        raise AutoscalerError(f"{other}: there is no {key!r} in it")
    return answer


def _url(arguments: argparse.Namespace) -> str:
    if arguments.url:
        return str(arguments.url).rstrip("/")
    if arguments.config is None:
        return URL
    from autoscaler.cli.configuration import load_live  # noqa: PLC0415 - most often there is no configuration to read

    listen = load_live(arguments.config).daemon.listen
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise AutoscalerError(f"daemon.listen is {listen}: the port is in the daemon's log, pass it with --url")
    # A daemon that listens on every address is also on the loopback one.
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - compared, not listened on
    return f"http://{host}:{port}"


def _error_of(error: urllib.error.HTTPError) -> str | None:
    """The message of an error of ours."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return None
