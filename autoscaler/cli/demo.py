"""`autoscaler demo`: a real cluster on this machine, scaled under a changing load."""

from __future__ import annotations

import argparse

from autoscaler import demo
from autoscaler.cli.options import Commands


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("demo")
    demo.add_arguments(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return demo.run(arguments)
