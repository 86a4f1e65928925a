"""`autoscaler pause`: pauses scaling up, scaling down or both for a while."""

from __future__ import annotations

import argparse

from autoscaler.cli.control_requests import request_control, scope_options, time_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Pause scaling of clusters of a running daemon: they keep their present size. The daemon still shows what "
        "the policies ask for. A pause ends after an hour, unless you give another time."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--up", action="store_true", help="pause scaling up only")
    which.add_argument("--down", action="store_true", help="pause scaling down only")
    scope_options(parser)
    time_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    up, down = not arguments.down, not arguments.up
    ways = " and ".join(way for way, paused in (("up", up), ("down", down)) if paused)
    return request_control(arguments, "pause", f"scaling {ways} is paused", up=up, down=down)
