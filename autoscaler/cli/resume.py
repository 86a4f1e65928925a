"""`autoscaler resume`: what was ordered is at an end."""

from __future__ import annotations

import argparse

from autoscaler.cli.options import Commands
from autoscaler.cli.orders import order, scope_options


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "resume",
        description="End all pauses, holds and limits of clusters of a running daemon, except for annotations.",
    )
    scope_options(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return order(arguments, "resume", "resumed")
