"""`autoscaler state`: manages the persisted state of daemons."""

from __future__ import annotations

import argparse

from autoscaler.cli.options import json_option
from autoscaler.cli.output import OK, print_json, print_lines, table
from autoscaler.core.foreign import mask

_SHOWN = {
    "cluster": "clusters",
    "decision": "decisions",
    "member": "members of fleets",
    "control": "orders",
    "audit": "entries of the audit",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command `copy`."""
    parser.description = "Manage the persisted state of daemons."
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    copy = own.add_parser("copy", help="copy all state from a directory to PostgreSQL, or back")
    copy.description = (
        "Copy everything a daemon has persisted: the states of clusters, their decisions, the members of fleets, the "
        "pauses, holds and limits, and the audit. Stop all daemons first. TO must be empty, and stays empty after an "
        "error. The hourly history files stay in their directory."
    )
    where = "daemon.directory of a configuration, or postgresql://USER@HOST/DATABASE with the password in $PGPASSWORD"
    copy.add_argument("source", metavar="FROM", help=f"the state to copy: {where}")
    copy.add_argument("target", metavar="TO", help=f"where to copy the state, an empty place: {where}")
    json_option(copy)
    copy.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run `state copy`. Returns the exit code."""
    from autoscaler.daemon.state_copy import copy_state  # noqa: PLC0415 - `--help` does not need it

    counts = copy_state(arguments.source, arguments.target)
    if arguments.json:
        print_json({_SHOWN[name]: count for name, count in counts.items()})
    else:
        names = {**_SHOWN, "control": "pauses, holds and limits"}  # the key in JSON is public
        table(("copied", "rows"), [(names[name], f"{count:,}") for name, count in counts.items()])
        print_lines(mask(f"Set daemon.state or daemon.directory to {arguments.target}, then start the daemons."))
    return OK
