"""`autoscaler benchmark`: scores policies on loads, plants and seeds, and compares them with the exact optimum."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.cli import options as arguments
from autoscaler.cli.output import USAGE, print_error

if TYPE_CHECKING:
    from autoscaler.simulation.baselines import Baseline

# ruff: noqa: PLC0415 - what the command needs is imported when it runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    from autoscaler.simulation.baselines import BASELINES
    from autoscaler.simulation.benchmark import DEFAULT, FAST
    from autoscaler.simulation.families import FOLDS
    from autoscaler.simulation.loads import RECORDED, SYNTHETIC
    from autoscaler.simulation.plant import PLANTS

    parser.description = (
        "Run policies under loads on simulated clusters. For each policy, print the cost relative to the exact "
        "optimum, the share of the time beyond the delay objective, and the number of rescales. Equal arguments give "
        "equal figures. docs/contributing/benchmark.md explains them."
    )
    add = parser.add_argument
    names = ", ".join(BASELINES)
    add("--fast", action="store_true", help=f"synthetic loads only ({', '.join(FAST)}), one seed: under a minute")
    add("--plant", action="append", choices=tuple(PLANTS), help="a simulated cluster (default: all)")
    add(
        "--scenario",
        action="append",
        choices=(*RECORDED, *SYNTHETIC),
        metavar="LOAD",
        help=f"one of {', '.join((*RECORDED, *SYNTHETIC))} (default: the sixteen of "
        "docs/contributing/benchmark.md, recorded ones only with --traces)",
    )
    add(
        "--policy",
        action="append",
        type=policy,
        metavar="P",
        help=f"NAME=SETTINGS as in a configuration file, or one of {names} (default: all of these)",
    )
    add("--seeds", type=arguments.count, metavar="N", help="use the seeds 1 to N (default: 3; --fast: 1)")
    unknown = parser.add_argument_group("loads and plants with random parameters")
    add_unknown = unknown.add_argument
    add_unknown(
        "--generalize",
        choices=("develop", "verdict", "all"),
        help="use families of loads, plants and sources with random parameters: the families to develop on, "
        "those held out for the verdict (with --traces also parts of all its files), or all, cross-validated",
    )
    add_unknown(
        "--fold", type=int, choices=range(1, len(FOLDS) + 1), help="which split into these two is used (default: 1)"
    )
    add_unknown("--loads", type=arguments.count, metavar="N", help="loads of each family (default: 4)")
    add_unknown(
        "--hours", type=arguments.above, metavar="H", help="hours of each load, including the first (default: 6)"
    )
    add_unknown("--seed", type=int, metavar="S", help="seed of all random parameters (default: 1)")
    add_unknown("--ablate", action="store_true", help=f"also run {DEFAULT} with one rule off at a time")
    arguments.add_traces(parser)
    add("--guarded", action="store_true", help="apply the guards of this project to third-party rules, too")
    add("--each", action="store_true", help="print every scenario, not only the means")
    add(
        "--processes",
        type=arguments.count,
        metavar="N",
        default=os.cpu_count() or 1,
        help="number of processes (default: one for each core)",
    )
    add("--plot", type=Path, metavar="FILE", help="draw cost against violation into this file (extra plot)")
    add("--record", type=Path, metavar="FILE", help=f"write the figures of {DEFAULT} to FILE, for --against")
    add("--against", type=Path, metavar="FILE", help=f"fail if the figures of {DEFAULT} are worse than those in FILE")
    form = parser.add_mutually_exclusive_group()
    arguments.json_option(form)
    form.add_argument("--markdown", action="store_true", help="print the means as a table in Markdown")


def run(options: argparse.Namespace) -> int:
    """Run the benchmark.

    Returns:
        0; 1 when a figure is worse than recorded or a package is missing; 2 when an option is wrong.
    """
    try:
        from autoscaler.simulation import optimum  # noqa: F401 - reports a missing extra before the runs

        if options.plot is not None:
            from autoscaler.cli import benchmark_plot  # noqa: F401 - the same
    except ModuleNotFoundError as error:
        print_error(f"autoscaler: {error}")
        return 1
    generalizes = options.generalize is not None
    no_use = [name for name in (_NAMED_LOADS if generalizes else _RANDOM_LOADS) if getattr(options, name)]
    if options.generalize == "all" and options.fold:
        no_use = ["fold"]
    if no_use:
        how = f"with --generalize {options.generalize}" if generalizes else "without --generalize"
        print_error(f"autoscaler: --{no_use[0]}: has no effect {how}")
        return USAGE
    if generalizes:
        from autoscaler.cli.benchmark_generalize import generalize

        return generalize(options)
    from autoscaler.cli.benchmark_run import benchmark

    return benchmark(options)


_NAMED_LOADS = ("fast", "plant", "scenario", "seeds", "guarded", "each", "plot", "record", "against")
_RANDOM_LOADS = ("fold", "loads", "hours", "seed", "ablate")
"""The options that apply only to named loads, and those that apply only to random loads (`--generalize`)."""


def policy(text: str) -> tuple[str, Baseline]:
    """Read the name of a baseline, or NAME=SETTINGS. A policy that is not a baseline runs with the guards."""
    from autoscaler.simulation.baselines import BASELINES, Baseline

    name, separator, settings = text.partition("=")
    if separator:
        known = BASELINES.get(name)
        if known is not None and known.policy is None:
            return name, replace(known, settings=settings)
        return name, Baseline(settings, bare=False)
    if name not in BASELINES:
        raise argparse.ArgumentTypeError(f"{name}: expected NAME=SETTINGS, or one of {', '.join(BASELINES)}")
    return name, BASELINES[name]
