"""`autoscaler explain`: why a running daemon decided what it did."""

from __future__ import annotations

import argparse
import urllib.parse
from pathlib import Path

from autoscaler.cli.daemon_client import cluster_path, find_daemon, get, url_option
from autoscaler.cli.options import Commands, count, json_option, moment
from autoscaler.cli.output import FAILED, OK, print_error, print_json, print_lines


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("explain", description="Explain the decisions of a running daemon.")
    parser.add_argument("cluster", metavar="CLUSTER", help="name of the cluster")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=count, default=1, metavar="N", help="the last N decisions, newest first")
    which.add_argument(
        "--at", type=moment, metavar="TIME", help="the decision in force at TIME, like 2026-01-31T17:05:00Z"
    )
    parser.add_argument("--config", type=Path, metavar="CONFIG", help="the daemon's configuration, to find its address")
    url_option(parser)
    json_option(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    query = {"limit": str(1 if arguments.at else arguments.last)}
    if arguments.at:
        query["until"] = arguments.at.isoformat()
    path = f"{cluster_path(arguments.cluster)}/decisions?{urllib.parse.urlencode(query)}"
    daemon = find_daemon(arguments)
    answer = get(daemon, path, "decisions")
    daemon.note_problems()
    if arguments.json:
        print_json(answer)
        return OK
    if not answer["decisions"]:
        when = f" up to {arguments.at:%Y-%m-%d %H:%M:%S %Z}" if arguments.at else " yet"
        print_error(f"autoscaler: no decision about cluster {arguments.cluster} is kept{when}")
        return FAILED
    print_lines("\n\n\n".join(decision["explanation"] for decision in answer["decisions"]))
    return OK
