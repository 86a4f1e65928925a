"""`autoscaler plan`: what would be decided now."""

from __future__ import annotations

import argparse
import asyncio

from autoscaler.cli.configuration import load_live
from autoscaler.cli.options import Commands, config_argument, json_option
from autoscaler.cli.output import FAILED, OK, log_nothing, print_error, print_json, print_lines
from autoscaler.core.explain import explain
from autoscaler.daemon.one_shot import plan
from autoscaler.ports import AutoscalerError
from autoscaler.trace.codec import to_json


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "plan", description="Observe every cluster once and show what would be decided, changing nothing."
    )
    config_argument(parser)
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only the clusters whose names match, like 'orders-*'; may be repeated",
    )
    json_option(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    config = load_live(arguments.config)
    log_nothing()
    records, fleets = asyncio.run(plan(config, arguments.filter))
    problems = [problem for found in fleets.values() for problem in found]
    if arguments.filter and not records:
        raise AutoscalerError(f"no cluster matches {' or '.join(arguments.filter)}")
    explained = [(record, explain(record.observation, record.decision, dry_run=True)) for record in records]
    if arguments.json:
        print_json(
            [
                {
                    "observation": to_json(record.observation),
                    "decision": to_json(record.decision),
                    "explanation": explanation,
                }
                for record, explanation in explained
            ]
        )
    else:
        print_lines("\n\n".join(explanation for _, explanation in explained))
    if problems:
        print_error(*problems)
    return FAILED if problems or any(record.observation.missing for record in records) else OK
