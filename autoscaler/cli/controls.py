"""`autoscaler controls`: lists the pauses, holds and limits of clusters, with author, end and reason."""

from __future__ import annotations

import argparse
from typing import Any

from autoscaler.cli.control_requests import format_time, short_control
from autoscaler.cli.daemon_client import daemon_options, find_daemon, get
from autoscaler.cli.options import count, json_option
from autoscaler.cli.output import OK, print_json, print_lines, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "List the pauses, holds and limits that were set by command or over HTTP and are in force. "
        "`autoscaler status` shows all controls of each cluster, including annotations."
    )
    parser.add_argument(
        "--audit", type=count, metavar="N", help="list the last N changes instead: who changed what, and when"
    )
    daemon_options(parser, argument=True)
    json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    daemon = find_daemon(arguments)
    if arguments.audit is None:
        answer = get(daemon, "/api/v1/controls", "controls")
    else:
        answer = get(daemon, f"/api/v1/audit?limit={arguments.audit}", "entries")
    if arguments.json:
        print_json(answer)
    elif arguments.audit is None:
        _print_controls(answer["controls"])
    else:
        _print_audit(answer["entries"])
    daemon.note_problems()
    return OK


def _print_controls(controls: list[dict[str, Any]]) -> None:
    if not controls:
        print_lines("No pause, hold or limit is in force.")
        return
    rows = [
        (
            ", ".join([*each["clusters"], *(f"fleet {fleet}" for fleet in each["fleets"])]),
            short_control(each),
            "it is resumed" if each["until"] is None else format_time(each["until"]),
            each["by"],
            each["reason"] or "-",
        )
        for each in controls
    ]
    table(("clusters", "control", "until", "by", "why"), rows)


def _print_audit(entries: list[dict[str, Any]]) -> None:
    rows = [
        (
            format_time(each["at"]),
            each["by"],
            each["action"] if each["accepted"] else f"{each['action']} (refused)",
            each["scope"] or "-",
            each["detail"] or "-",
            each["reason"] or "-",
        )
        for each in entries
    ]
    table(("when", "by", "what", "of", "detail", "why"), rows)
