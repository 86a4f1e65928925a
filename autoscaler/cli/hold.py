"""`autoscaler hold`: holds clusters at a size for a while."""

from __future__ import annotations

import argparse

from autoscaler.cli.control_requests import request_control, scope_options, time_options
from autoscaler.cli.options import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Hold clusters of a running daemon at a size, whatever their policies ask for. The hold takes effect at the "
        "next tick, within min and max of the configuration. It ends after an hour, unless you give another time."
    )
    parser.add_argument("replicas", type=whole, metavar="N", help="the size, in replicas")
    scope_options(parser)
    time_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return request_control(arguments, "hold", f"the size is held at {arguments.replicas}", replicas=arguments.replicas)
