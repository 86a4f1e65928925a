"""`autoscaler resume`: pauses, holds and limits are at an end."""

from __future__ import annotations

import argparse

from autoscaler.cli.control_requests import request_control, scope_options
from autoscaler.cli.options import Commands


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
    return request_control(arguments, "resume", "resumed")
