"""The options of the commands in this room; what the commands themselves need is loaded when one runs."""

from __future__ import annotations

import argparse
import math
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from autoscaler.core.durations import parse_duration

TRACES = "AUTOSCALER_TRACES"


def simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulate` to a parser."""
    from autoscaler.simulation.faults import NAMED  # noqa: PLC0415 - they are named in the help of this command
    from autoscaler.simulation.loads import MADE, RECORDED  # noqa: PLC0415
    from autoscaler.simulation.plant import OTHERS, PLANTS  # noqa: PLC0415

    parser.description = (
        "Have a cluster of a configuration steer a simulated one under a load, and tell what came of it: cost, "
        "delays, rescales and why. Nothing is connected to. Equal arguments give equal results. docs/simulate.md "
        "has an example."
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add(
        "--load",
        required=True,
        metavar="CSV|NAME",
        help=f"what is offered: a file with lines t_seconds,value (records/s), or one of {', '.join(MADE)} (made), or "
        f"of {', '.join(RECORDED)} (recorded, with --traces)",
    )
    add(
        "--plant",
        default="k8s",
        metavar="NAME|FILE",
        help=f"the simulated cluster: {', '.join((*PLANTS, *OTHERS))}, or a YAML file with its parameters (default: "
        "k8s)",
    )
    add("--cluster", metavar="NAME", help="which cluster of the configuration, where it has several")
    add("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default: 1)")
    add("--hours", type=above, metavar="H", help="only so many hours from the beginning of the load")
    add("--peak", type=above, metavar="RATE", help="stretch the load so that its greatest rate is this, records/s")
    add(
        "--one",
        type=above,
        metavar="RATE",
        help="records/s that one worker processes (default: `one` of the plant's file, capacity.per_replica of the "
        "cluster; else so many that two thirds of its max process the peak)",
    )
    add(
        "--faults",
        metavar="LIST",
        help=f"what goes wrong, like missing,nan@lag:2m,crash:45m; there are {', '.join(NAMED)}, and all",
    )
    add(
        "--metric",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=SHOWN",
        help="what a metric of the configuration is of what the simulated cluster shows, where that is not clear",
    )
    add("--optimum", action="store_true", help="also find the least cost possible (extra simulate; takes a while)")
    add(
        "--traces",
        type=Path,
        default=os.environ.get(TRACES),
        metavar="DIR",
        help=f"where the recorded loads are (default: ${TRACES})",
    )
    add("--record", type=Path, metavar="DIR", help="write what happened there as a daemon's history, for `replay`")
    add("--plot", type=Path, metavar="FILE", help="draw a timeline into this PNG file (extra plot)")
    _telling(parser)


def replay(parser: argparse.ArgumentParser) -> None:
    """Add the options of `replay` to a parser."""
    parser.description = (
        "Decide again, by a configuration, about what a daemon or `simulate` has recorded, and tell what would have "
        "been different, and why. The sizes seen are those recorded: what another size would have led to, only "
        "`simulate` can tell. Nothing is connected to."
    )
    add = parser.add_argument
    add(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a history file (.jsonl, .jsonl.gz), or a directory of them: history/ of a daemon's directory; or a "
        "dataset that `autoscaler history` made (extra spark)",
    )
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add("--cluster", metavar="NAME", help="only this cluster")
    add("--from", dest="since", type=moment, metavar="TIME", help="compare from then on, like 2026-01-31T17:05:00Z")
    add("--to", dest="until", type=moment, metavar="TIME", help="compare up to then")
    _telling(parser)


def _telling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="list everything, however long it gets")
    parser.add_argument("--explain", action="store_true", help="tell the whole story of each decision listed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def count(text: str) -> int:
    """A whole number from 1. Like all of these, for `type=` of an option: a text that is none is told by argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def above(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def pair(text: str) -> tuple[str, str]:
    """What a metric is called, and what it is of what is shown."""
    name, equals, shown = text.partition("=")
    if not (name and equals and shown):
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=SHOWN")
    return name, shown


def renamed(text: str) -> tuple[str, str]:
    """What a cluster was called, and what it is called now."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not like OLD=NEW")
    return old, new


def moment(text: str) -> datetime:
    """A time, in UTC where it does not say."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-01-31T17:05:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def day(text: str) -> date:
    """A day."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day like 2026-01-31") from error


def span(text: str) -> timedelta:
    """A duration above 0."""
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if found <= timedelta(0):
        raise argparse.ArgumentTypeError(f"is {text}, expected above 0s")
    return found
