"""The command line: `autoscaler --help` lists the commands.

Each command is a module of this package with `add_arguments(parser)` and `run(arguments)`, which returns the exit code.
Only the module of the requested command is imported. This keeps `--help` fast, and the daemon loads nothing that it
does not use.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version

from autoscaler.cli.output import FAILED, INTERRUPTED, OK, USAGE, print_error
from autoscaler.ports import AutoscalerError, ConfigurationError

COMMANDS = {
    "run": "run the daemon until it is stopped",
    "check": "validate a configuration",
    "plan": "observe every cluster once and show the decisions, changing nothing",
    "status": "show the clusters of a running daemon",
    "explain": "explain the decisions of a running daemon",
    "pause": "pause scaling of clusters of a running daemon, in one direction or both",
    "hold": "hold clusters of a running daemon at a size",
    "limit": "limit the size of clusters of a running daemon",
    "resume": "end the pauses, holds and limits of clusters of a running daemon",
    "decide": "make a running daemon decide now, not at its next tick",
    "controls": "list the pauses, holds and limits of clusters of a running daemon",
    "state": "copy the state of daemons between a directory and PostgreSQL",
    "plugins": "list the installed policies, sources, engines, targets and discoveries",
    "schema": "print the JSON Schema of the configuration file",
    "demo": "scale a real Spark or Flink cluster on this machine under a changing load",
    "simulate": "try a configuration on a simulated cluster under a load or batch jobs",
    "replay": "show what a configuration would have decided on recorded observations",
    "benchmark": "compare policies on simulated clusters",
    "history": "collect the history of a fleet in a dataset, and query it",
    "profile": "analyze the history of each cluster",
    "backtest": "try policies and parameters on recorded load",
    "tune": "find the parameters that meet an objective at the least cost",
}
"""The commands, each a module of this package, with the line that `autoscaler --help` shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0 ok, 1 failed, 2 usage or configuration, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        parsed = parse(arguments)
    except SystemExit as stop:  # argparse has printed help or an error
        return stop.code if isinstance(stop.code, int) else USAGE
    command: Callable[[argparse.Namespace], int] = parsed.command
    try:
        return command(parsed)
    except ConfigurationError as error:
        print_error(*error.problems)
        return USAGE
    except AutoscalerError as error:
        print_error(f"autoscaler: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed our standard output. Redirect it, so that the interpreter reports no error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a command. Cluster names may also follow its options, as in `hold 12 --for 2h a`.

    Raises SystemExit after argparse has printed help or an error.
    """
    parser = _parser(arguments[0] if arguments else None)
    parsed, left = parser.parse_known_args(arguments)
    clusters: list[str] | None = getattr(parsed, "clusters", None)
    if left and (clusters is None or any(each.startswith("-") for each in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if clusters is not None:
        clusters += left
    return parsed


def _parser(asked: str | None) -> argparse.ArgumentParser:
    """Build a parser with the options of the requested command; the other commands have only their names."""
    parser = argparse.ArgumentParser(
        prog="autoscaler",
        description="Decides how many workers a streaming cluster needs, changes the number, and explains why.",
        epilog="Exit codes: 0 ok, 1 failed, 2 usage or configuration, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"autoscaler {version('reactive-autoscaler')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    if asked in COMMANDS:
        command = import_module(f"autoscaler.cli.{asked}")
        its_own = commands.add_parser(asked)
        its_own.set_defaults(command=command.run)
        command.add_arguments(its_own)
    else:
        for name, text in COMMANDS.items():
            commands.add_parser(name, help=text)
    return parser
