"""`autoscaler explain`: explains the decisions of a running daemon."""

from __future__ import annotations

import argparse
import urllib.parse
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from autoscaler.cli.daemon_client import Address, cluster_path, daemon_options, find_daemon, get, get_with_history
from autoscaler.cli.options import count, json_option, moment
from autoscaler.cli.output import FAILED, OK, print_error, print_json, print_lines
from autoscaler.core.wording import count_of
from autoscaler.ports import AutoscalerError, Record

_MAX_DECISIONS = 10_000
"""The maximum number of decisions in one answer of a daemon."""

_MAX_CLUSTERS = 20
"""The maximum number of clusters that a pattern may match."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Explain the decisions of a running daemon. If it runs on this machine, decisions that it no longer keeps "
        "are read from its history files."
    )
    parser.add_argument(
        "cluster", metavar="CLUSTER", help=f"name of the cluster, or a pattern like 'prod-a/*' of up to {_MAX_CLUSTERS}"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=count, default=1, metavar="N", help="the last N decisions, newest first")
    which.add_argument(
        "--at", type=moment, metavar="TIME", help="the decision in force at TIME, like 2026-01-31T17:05:00Z"
    )
    daemon_options(parser)
    json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    daemon = find_daemon(arguments)
    name = arguments.cluster
    if not any(sign in name for sign in "*?["):
        answer = _explained(daemon, name, arguments)
        answers = [answer]
    else:
        names = [row["name"] for row in get(daemon, "/api/v1/clusters", "clusters")["clusters"]]
        matching = [each for each in names if fnmatchcase(each, name)]
        if not 0 < len(matching) <= _MAX_CLUSTERS:
            shown = ", ".join(sorted(matching or names)[:_MAX_CLUSTERS])
            raise AutoscalerError(
                f"{name} matches {count_of(len(matching), 'cluster')}, expected 1 to {_MAX_CLUSTERS}; such as: {shown}"
                if matching
                else f"no cluster matches {name}; there are: {shown or 'none'}"
            )
        answers = [_explained(daemon, each, arguments) for each in matching]
    daemon.note_problems()
    if arguments.json:
        print_json(answers[0] if name == answers[0]["cluster"] else {"clusters": answers})
        return OK
    explained = [decision["explanation"] for answer in answers for decision in answer["decisions"]]
    if explained:
        print_lines("\n\n\n".join(explained))
        return OK
    when = f" up to {arguments.at:%Y-%m-%d %H:%M:%S %Z}" if arguments.at else " yet"
    print_error(f"autoscaler: no decision about cluster {name} is kept{when}")
    return FAILED


def _explained(daemon: Address, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Get the requested decisions about a cluster from the daemon, and older ones from its history files."""
    wanted = 1 if arguments.at else arguments.last
    query = {"limit": str(min(wanted, _MAX_DECISIONS))}
    if arguments.at:
        query["until"] = arguments.at.isoformat()
    path = f"{cluster_path(name)}/decisions?{urllib.parse.urlencode(query)}"
    answer, history = get_with_history(daemon, path, "decisions")
    decisions = answer["decisions"]
    if len(decisions) < wanted and history is not None:
        oldest = datetime.fromisoformat(decisions[-1]["decision"]["at"]) if decisions else None
        until = arguments.at or oldest
        decisions += _recorded(history, name, until, oldest, wanted - len(decisions))
    return answer


def _recorded(
    history: Path, cluster: str, until: datetime | None, before: datetime | None, number: int
) -> list[dict[str, object]]:
    """Read decisions from the daemon's history, the newest first, in the form of the daemon's answer.

    Args:
        history: the directory of the files.
        cluster: its name.
        until: the latest time of a decision.
        before: return only decisions before this time.
        number: the maximum number of decisions.
    """
    from autoscaler.daemon.http_requests import decision_document  # noqa: PLC0415 - seldom needed
    from autoscaler.trace.codec import call_failure  # noqa: PLC0415
    from autoscaler.trace.format import TraceError, read_back  # noqa: PLC0415

    newer = None
    older: list[tuple[Record, str | None]] = []
    try:
        for record in read_back(history, cluster, until, print_error):
            if before is None or record.decision.at < before:
                older.append((record, call_failure(record, newer)))
            if len(older) == number:
                break
            newer = record
    except (OSError, TraceError) as error:
        print_error(
            f"autoscaler: older decisions are in the daemon's history, but it cannot be read here: {error}. "
            "Run this on the daemon's machine, as its user; to see what is older than a damaged file, move that away"
        )
    if older:
        # The user must know: a daemon on another machine may have its history at the same path.
        print_error(f"autoscaler: {count_of(len(older), 'decision')} read from {history} on this machine")
    return [decision_document(record, failed) for record, failed in older]
