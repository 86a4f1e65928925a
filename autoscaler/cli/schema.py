"""`autoscaler schema`: the JSON Schema of the configuration file."""

from __future__ import annotations

import argparse

from autoscaler.cli.options import Commands
from autoscaler.cli.output import OK, print_json
from autoscaler.config import json_schema


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("schema", description="Print the JSON Schema of the configuration file.")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    del arguments
    print_json(json_schema())
    return OK
