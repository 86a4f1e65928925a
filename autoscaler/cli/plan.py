"""`autoscaler plan`: shows what a daemon would decide now."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from autoscaler.cli.configuration import load_live, summarized
from autoscaler.cli.options import config_argument, json_option
from autoscaler.cli.output import FAILED, OK, log_nothing, print_error, print_json, print_lines, table
from autoscaler.cli.status import MAX_LISTED, MAX_TROUBLED
from autoscaler.core.explain import explain, summarize_decision
from autoscaler.core.wording import count_of
from autoscaler.daemon.one_shot import plan
from autoscaler.ports import AutoscalerError, Record
from autoscaler.trace.codec import to_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Observe every cluster once and show what would be decided, changing nothing. For more than "
        f"{MAX_LISTED} clusters, print a summary; --filter explains the decisions."
    )
    config_argument(parser)
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="PATTERN",
        help="observe only the clusters whose names match, like 'orders-*'; may be repeated",
    )
    json_option(parser)


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
    elif len(records) > MAX_LISTED and not arguments.filter:
        _summary(records)
    else:
        print_lines("\n\n".join(explanation for _, explanation in explained))
    if problems:
        print_error(*summarized(problems))
    return FAILED if problems or any(record.observation.missing for record in records) else OK


def _summary(records: Sequence[Record]) -> None:
    """Print how many clusters would be changed, and the first of them."""
    decisions = [record.decision for record in records]
    up = sum(decision.desired > decision.current for decision in decisions)
    down = sum(decision.desired < decision.current for decision in decisions)
    now, then = (sum(getattr(decision, size) for decision in decisions) for size in ("current", "desired"))
    missing = sum(bool(record.observation.missing) for record in records)
    marked = [
        record.decision
        for record in records
        if record.decision.desired != record.decision.current or record.observation.missing
    ]
    rows = [
        (decision.cluster, str(decision.current), str(decision.desired), summarize_decision(decision))
        for decision in marked[:MAX_TROUBLED]
    ]
    if rows:
        table(("cluster", "size", "decided", "why"), rows)
        print_lines("")
    more = (
        f"; listed above: the first {len(rows)} that would be scaled or have a missing reading"
        if len(rows) < len(marked)
        else ""
    )
    print_lines(
        f"{count_of(len(records), 'cluster')}: {up} would be scaled up, {down} down; "
        f"{count_of(now, 'replica')}, then {then}. {count_of(missing, 'cluster')} with a missing reading{more}.",
        "--filter PATTERN explains the decisions of the clusters whose names match.",
    )
