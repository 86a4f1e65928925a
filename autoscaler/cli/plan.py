"""`autoscaler plan`: what would be decided now."""

from __future__ import annotations

import argparse
import asyncio

from autoscaler.cli.configuration import load_live
from autoscaler.cli.options import Commands, config_argument, json_option
from autoscaler.cli.output import FAILED, OK, log_nothing, print_json, print_lines
from autoscaler.core.explain import explain
from autoscaler.daemon.one_shot import plan
from autoscaler.trace.codec import to_json


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "plan", description="Observe every cluster once and show what would be decided, changing nothing."
    )
    config_argument(parser)
    json_option(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    config = load_live(arguments.config)
    log_nothing()
    records = asyncio.run(plan(config))
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
    return FAILED if any(record.observation.missing for record in records) else OK
