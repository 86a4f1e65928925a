"""Options that several commands share, and types of options. Each command imports its own needs when it runs."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from autoscaler.cli.output import print_error
from autoscaler.core.durations import parse_duration

TRACES = "AUTOSCALER_TRACES"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name
"""Where a command adds its parser."""


def config_argument(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG, the configuration file."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")


def json_option(parser: argparse._ActionsContainer) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_listing(parser: argparse.ArgumentParser) -> None:
    """Add `--all`, `--explain` and `--json`."""
    parser.add_argument("--all", action="store_true", help="list everything, however long")
    parser.add_argument("--explain", action="store_true", help="explain each decision listed in full")
    json_option(parser)


def add_rename(parser: argparse.ArgumentParser) -> None:
    """Add `--rename`."""
    text = "cluster OLD was renamed to NEW: treat its records as records of NEW; may be repeated"
    parser.add_argument("--rename", action="append", type=renamed, default=[], metavar="OLD=NEW", help=text)


def add_metric(parser: argparse.ArgumentParser) -> None:
    """Add `--metric`, for commands that simulate the cluster of a configuration."""
    text = "use the metric SHOWN of the simulated cluster as the metric NAME of the configuration, if that is not clear"
    parser.add_argument("--metric", action="append", type=pair, default=[], metavar="NAME=SHOWN", help=text)


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Add `--traces`."""
    text = f"directory of the recorded loads (default: ${TRACES}; without it, only synthetic loads are available)"
    parser.add_argument("--traces", type=Path, default=os.environ.get(TRACES), metavar="DIR", help=text)


class Renamed(argparse.Action):
    """An argparse action for an option with former names: it warns if a former name is used.

    The present name is the first one. With `nargs=0`, the option stores its `const`.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - the signature of actions
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        if option_string is not None and option_string != self.option_strings[0]:
            print_error(f"warning: {option_string} is now called {self.option_strings[0]}")
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)


def count(text: str) -> int:
    """A whole number from 1. This function and those below are for `type=`: argparse reports their errors."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
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
    """Two texts such as NAME=SHOWN."""
    name, equals, shown = text.partition("=")
    if not (name and equals and shown):
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=SHOWN")
    return name, shown


def renamed(text: str) -> tuple[str, str]:
    """The old and the new name of a cluster, OLD=NEW."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not like OLD=NEW")
    return old, new


def moment(text: str) -> datetime:
    """A time, in UTC unless it names another time zone."""
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


def duration(text: str) -> timedelta:
    """A duration."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def span(text: str) -> timedelta:
    """A duration above 0."""
    found = duration(text)
    if found <= timedelta(0):
        raise argparse.ArgumentTypeError(f"is {text}, expected above 0s")
    return found


def add_open(parser: argparse.ArgumentParser) -> None:
    """Add `--open`."""
    text = "show the run in a browser: write it as one HTML file that needs no daemon, and print its path"
    parser.add_argument("--open", action="store_true", help=text)
