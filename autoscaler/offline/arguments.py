"""The options of the commands in this room; what the commands themselves need is loaded when one runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def simulate(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulate` to a parser."""
    parser.description = "Have a configuration steer a simulated cluster under a load, and tell what came of it."
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")


def replay(parser: argparse.ArgumentParser) -> None:
    """Add the options of `replay` to a parser."""
    parser.description = "Decide again what was recorded, by a configuration, and tell what would have been different."
    parser.add_argument("trace", type=Path, metavar="TRACE", help="a history file (.jsonl), or a directory of them")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
