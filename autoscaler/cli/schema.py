"""`autoscaler schema`: prints the JSON Schema of the configuration file, or the CustomResourceDefinition."""

from __future__ import annotations

import argparse
import sys

from autoscaler.cli.output import OK, print_json
from autoscaler.config import json_schema
from autoscaler.config.crd import crd_manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = "Print the JSON Schema of the configuration file."
    parser.add_argument(
        "--crd", action="store_true", help="print the CustomResourceDefinition of StreamAutoscaler, as YAML"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    if arguments.crd:
        sys.stdout.write(crd_manifest())
    else:
        print_json(json_schema())
    return OK
