"""`autoscaler demo`: a real cluster and a real job on this machine, scaled by the real daemon."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from autoscaler.demo.load import DURATION

SHORTEST = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to a parser."""
    parser.description = (
        "Start a Spark or Flink cluster and a streaming job on this machine, put it under a changing load, and let "
        "the autoscaler scale its workers. Succeeds only if it scaled up, drained the backlog, scaled down, and every "
        "record arrived exactly once. With --engine spark-batch the job is a batch job, which runs a second time with "
        "Spark's defaults on a cluster of fixed size."
    )
    parser.add_argument(
        "--engine",
        choices=("spark", "flink", "spark-batch"),
        default="spark",
        help="the engine of the job (default: spark); flink needs a Java compiler and the extra flink-test; "
        "spark-batch has no --load and no --duration",
    )
    parser.add_argument(
        "--duration",
        type=_seconds,
        metavar="SECONDS",
        help=f"length of the load, {SHORTEST:g} or more (default: {DURATION:g}, or that of the file)",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="CSV",
        help="a load of your own: lines t_seconds,value (records/s from then on)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where the results go, new or empty (default: demo-output/<date and time>)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs and all working files")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument(
        "--open", action="store_true", help="show the run in a browser when it is over, from one HTML file (page.html)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, to stdout")


def run(options: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 on success, 1 when it failed (the reason is printed), 2 when an option is wrong, 130 when it was
        interrupted.
    """
    from autoscaler.demo import runner  # noqa: PLC0415 - not needed for the options

    return runner.run(options)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= SHORTEST):
        raise argparse.ArgumentTypeError(f"expected {SHORTEST:g} seconds or more, not {text!r}")
    return value
