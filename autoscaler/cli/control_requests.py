"""The options and the request that `pause`, `hold`, `limit` and `resume` share: clusters, duration and reason."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from autoscaler.cli.daemon_client import daemon_options, find_daemon, post
from autoscaler.cli.options import span
from autoscaler.cli.output import OK, print_lines
from autoscaler.core.durations import format_duration
from autoscaler.core.wording import count_of, first_of

_MAX_NAMED = 20
"""The maximum number of cluster names in a printed line."""


def scope_options(parser: argparse.ArgumentParser) -> None:
    """Add CLUSTER, `--fleet`, `--reason` and the options that find the daemon."""
    parser.add_argument(
        "clusters",
        metavar="CLUSTER",
        nargs="*",
        help="name of a cluster, or a pattern like 'prod-a/*', in quotes",
    )
    parser.add_argument(
        "--fleet",
        action="append",
        default=[],
        metavar="FLEET",
        help="all clusters of this fleet, or of the fleets that match this pattern; may be repeated",
    )
    parser.add_argument("--reason", metavar="TEXT", help="why: shown wherever the control is shown")
    daemon_options(parser)


def time_options(parser: argparse.ArgumentParser) -> None:
    """Add `--for` and `--until-resumed`."""
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--for", dest="lasting", type=span, metavar="DURATION", help="how long, such as 2h (default: 1h)"
    )
    how_long.add_argument("--until-resumed", action="store_true", help="until `autoscaler resume`")


def request_control(arguments: argparse.Namespace, action: str, done: str, **values: object) -> int:
    """Have the daemon set a control, and print for which clusters and until when. Returns the exit code.

    Args:
        arguments: the arguments of the command.
        action: the daemon's name of the action.
        done: the beginning of the printed line: what holds now.
        values: further values of the request; None values are left out.
    """
    body: dict[str, Any] = {"action": action, "clusters": arguments.clusters, "fleets": arguments.fleet, **values}
    body["reason"] = arguments.reason
    if getattr(arguments, "lasting", None) is not None:
        body["for"] = format_duration(arguments.lasting)
    if getattr(arguments, "until_resumed", False):
        body["until_resumed"] = True
    daemon = find_daemon(arguments)
    answer = post(daemon, "/api/v1/controls", {key: value for key, value in body.items() if value is not None}, "id")
    names, until, held_at = answer["clusters"], answer["until"], answer.get("held_at", {})
    if until is not None:
        done += f" until {format_time(until)}"
    elif action != "resume":
        done += " until it is resumed"
    lines = [f"{done}, {count_of(len(names), 'cluster')}: {_listed(names)}"]
    for size in sorted({*held_at.values()}):
        others = [name for name in names if held_at.get(name) == size]
        lines.append(f"at {size} instead, because of min and max in the configuration: {_listed(others)}")
    preceded_by = answer.get("preceded_by", {})  # a daemon of an earlier version does not send it
    for control in sorted({each for described in preceded_by.values() for each in described}):
        others = [name for name in names if control in preceded_by.get(name, ())]
        lines.append(f"a control in force takes precedence: {control}, for {_listed(others)}")
    if preceded_by:
        lines.append("`autoscaler resume` ends all of these except annotations, which end when they are removed")
    print_lines(*lines)
    daemon.note_problems()
    return OK


def _listed(names: list[str]) -> str:
    return ", ".join(first_of(names, _MAX_NAMED)) or "none yet"


def format_time(text: str) -> str:
    """Format a time of the daemon's answer for people."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S %Z}"


def short_control(control: dict[str, Any]) -> str:
    """The short form of a control of the daemon's answer: `pause up`, `hold 12`, `limit 4-20`, `limit max 20`."""
    match control["kind"]:
        case "pause":
            return "pause" if control["up"] and control["down"] else f"pause {'up' if control['up'] else 'down'}"
        case "hold":
            return f"hold {control['replicas']}"
    least, most = control["min"], control["max"]
    if least is not None and most is not None:
        return f"limit {least}-{most}"
    return f"limit max {most}" if least is None else f"limit min {least}"
