"""`autoscaler limit`: keeps clusters within a range for a while."""

from __future__ import annotations

import argparse

from autoscaler.cli.control_requests import request_control, scope_options, time_options
from autoscaler.cli.options import whole
from autoscaler.ports import ConfigurationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Limit the size of clusters of a running daemon, within min and max of the configuration. The limit ends "
        "after an hour, unless you give another time."
    )
    parser.add_argument("--min", type=whole, metavar="N", help="the smallest size, in replicas")
    parser.add_argument("--max", type=whole, metavar="N", help="the largest size, in replicas")
    scope_options(parser)
    time_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    ends = (("at least", arguments.min), ("at most", arguments.max))
    limits = " and ".join(f"{how} {size}" for how, size in ends if size is not None)
    if not limits:
        raise ConfigurationError(["autoscaler limit: give --min, --max or both"])
    return request_control(arguments, "limit", f"the size is limited to {limits}", min=arguments.min, max=arguments.max)
