"""`autoscaler demo`: the daemon scales a real cluster with a real job on this machine."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from autoscaler.demo.load import DURATION

SHORTEST = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to a parser."""
    parser.description = (
        "Start a Spark or Flink cluster with a streaming job on this machine, put the job under a changing load, and "
        "let the autoscaler scale the workers. The demo succeeds only if the autoscaler scaled up, the job drained its "
        "backlog, the autoscaler scaled down, and every record arrived exactly once. With --engine spark-batch the job "
        "is a batch job. It then runs a second time with Spark's defaults on a cluster of fixed size."
    )
    parser.add_argument(
        "--engine",
        choices=("spark", "flink", "spark-batch"),
        default="spark",
        help="the engine of the job (default: spark); flink needs a Java compiler and the extra flink-test; "
        "spark-batch does not take --load, --duration or --open",
    )
    parser.add_argument(
        "--duration",
        type=_seconds,
        metavar="SECONDS",
        help=f"length of the load, {SHORTEST:g} or more (default: {DURATION:g}, or the length of the load in --load)",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="CSV",
        help="a file with your own load: lines t_seconds,value (records/s from that time on)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="directory for the results, new or empty (default: demo-output/<date and time>)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs and all working files")
    parser.add_argument("--no-plot", action="store_true", help="do not draw a picture")
    parser.add_argument(
        "--open", action="store_true", help="after the run, show it in a browser, from one HTML file (page.html)"
    )
    parser.add_argument("--json", action="store_true", help="print only the result to stdout, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 on success, 1 if the demo failed (the reason is printed), 2 if an option is wrong, 130 if the demo was
        interrupted.
    """
    from autoscaler.demo import runner  # noqa: PLC0415 - the parser does not need it

    return runner.run(options)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= SHORTEST):
        raise argparse.ArgumentTypeError(f"expected {SHORTEST:g} seconds or more, not {text!r}")
    return value
