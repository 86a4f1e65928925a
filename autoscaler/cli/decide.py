"""`autoscaler decide`: makes a daemon decide about a cluster now, not at its next tick."""

from __future__ import annotations

import argparse

from autoscaler.cli.daemon_client import cluster_path, daemon_options, find_daemon, post
from autoscaler.cli.options import json_option
from autoscaler.cli.output import OK, print_json, print_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = "Make a running daemon observe a cluster, decide and act now, and explain the decision."
    parser.add_argument("cluster", metavar="CLUSTER", help="name of the cluster")
    parser.add_argument("--reason", metavar="TEXT", help="why, for the audit")
    daemon_options(parser)
    json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    daemon = find_daemon(arguments)
    body = {} if arguments.reason is None else {"reason": arguments.reason}
    answer = post(daemon, f"{cluster_path(arguments.cluster)}/decide", body, "decision")
    if arguments.json:
        print_json(answer)
    else:
        print_lines(answer["explanation"])
    daemon.note_problems()
    return OK
