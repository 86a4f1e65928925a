"""`autoscaler resume`: ends pauses, holds and limits."""

from __future__ import annotations

import argparse

from autoscaler.cli.control_requests import request_control, scope_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = "End all pauses, holds and limits of clusters of a running daemon, except for annotations."
    scope_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return request_control(arguments, "resume", "resumed")
