"""`autoscaler simulate`: tries a configuration on a simulated cluster."""

from __future__ import annotations

import argparse
import dataclasses
import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import options as arguments
from autoscaler.cli import size_requests
from autoscaler.cli.output import print_error, print_json, print_lines, table
from autoscaler.cli.size_requests import Request
from autoscaler.core.wording import format_number, format_span

if TYPE_CHECKING:
    from autoscaler.cli.simulate_setup import Setup
    from autoscaler.ports import Record
    from autoscaler.simulation.loop import Run
    from autoscaler.simulation.scoring import Score

# ruff: noqa: PLC0415 - what the command needs is imported when it runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    from autoscaler.simulation.faults import DESCRIPTIONS
    from autoscaler.simulation.loads import RECORDED, SYNTHETIC
    from autoscaler.simulation.plant import PLANTS, SCHEDULER_PLANTS

    parser.description = (
        "Let a cluster of a configuration scale a simulated one under a load, or under batch jobs, and "
        "report cost, delays, rescales and their reasons. This command connects to nothing. Equal arguments give "
        "equal results. docs/simulate.md has an example."
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--load",
        metavar="CSV|NAME",
        help="the load: a file with lines t_seconds,value (records/s), one of the synthetic loads "
        f"{', '.join(SYNTHETIC)}, or one of the recorded ones {', '.join(RECORDED)} (with --traces)",
    )
    what.add_argument(
        "--jobs",
        type=Path,
        metavar="FILE",
        help="batch jobs on a Spark cluster instead of a load: a YAML file with their stages. The result is compared "
        "with the maximum size all the time, and with Spark's dynamic allocation",
    )
    add(
        "--plant",
        default="k8s",
        metavar="NAME|FILE",
        help=f"the simulated cluster: {', '.join((*PLANTS, *SCHEDULER_PLANTS))}, or a YAML file with its parameters "
        "(default: k8s)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cluster", metavar="NAME", help="which cluster of the configuration, if it has several")
    which.add_argument(
        "--member",
        action="append",
        type=arguments.pair,
        default=[],
        metavar="KEY=VALUE",
        help="simulate a fleet's member with this value, such as name=orders or labels.app=shop; may be repeated",
    )
    add("--fleet", metavar="NAME", help="fleet of the member, if there are several")
    add("--seed", type=int, default=1, metavar="N", help="seed of all random numbers (default: 1)")
    add("--hours", type=arguments.above, metavar="H", help="use only the first H hours of the load")
    add("--peak", type=arguments.above, metavar="RATE", help="scale the load to this peak, records/s")
    add(
        "--rate-per-worker",
        "--one",
        action=arguments.Renamed,
        type=arguments.above,
        metavar="RATE",
        help="records/s that one worker processes (default: `rate_per_worker` of the plant's file, "
        "capacity.per_replica of the cluster, or the rate at which two thirds of its max process the peak); --one is "
        "the old name",
    )
    add(
        "--faults",
        metavar="LIST",
        help=f"faults to inject, like missing,nan@lag:2m,crash:45m: {', '.join(DESCRIPTIONS)}, or all",
    )
    arguments.add_metric(parser)
    add("--optimum", action="store_true", help="also compute the least possible cost (extra simulate; takes a while)")
    arguments.add_traces(parser)
    add("--record", type=Path, metavar="DIR", help="write the decisions there as a daemon's history, for `replay`")
    add("--plot", type=Path, metavar="FILE", help="draw a timeline into this PNG file (extra plot)")
    arguments.add_open(parser)
    arguments.add_listing(parser)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The simulation, the static cluster to compare with, the requested sizes, and the least possible cost."""

    setup: Setup
    run: Run
    static: Run
    requests: list[Request]
    optimum: float | None


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    from autoscaler.cli import simulate_batch, simulate_plot, simulate_setup

    if options.jobs is not None:
        return simulate_batch.run(options)
    setup = simulate_setup.setup(options)
    if options.plot is not None:
        simulate_plot.check(options.plot)
    optimum = simulate_setup.least_cost(setup) if options.optimum else None
    records: list[Record] = []
    with nullcontext() if options.record is None else simulate_setup.recording(options.record) as write:

        def keep(record: Record) -> None:
            if write is not None:
                write(record)
            if options.open:
                records.append(record)

        done, requests = simulate_setup.simulate(setup, keep)
    static = simulate_setup.simulate_static(setup)
    result = Result(setup=setup, run=done, static=static, requests=requests, optimum=optimum)
    if options.json:
        print_json(_json(result, options))
    else:
        _show(result, options)
    if options.plot is not None:
        simulate_plot.draw(setup, done, [request.record.decision for request in requests], options.plot)
    if options.open:
        from autoscaler.daemon.run_page import RecordedRun, open_page

        cluster = dataclasses.replace(setup.cluster, spec=setup.spec)
        print_error(f"page: {open_page([RecordedRun(cluster, records, done.state)])}")
    return 0


def _show(result: Result, options: argparse.Namespace) -> None:
    from autoscaler.cli.simulate_setup import describe_stalls

    setup, requests = result.setup, result.requests
    spec, plant, load = setup.spec, setup.plant, setup.load
    print_lines(
        f"Cluster {spec.name} of {options.config}, {spec.limits.minimum} to {spec.limits.maximum} workers, on the "
        f"simulated cluster {options.plant}:",
        f"  workers are ready after {plant.startup:g} s; {describe_stalls(plant)}; no record should wait longer than "
        f"{plant.slo:g} s.",
        f"Load {load.name}: {format_span(load.seconds)}, at most {format_number(load.peak)} records/s; one worker "
        f"processes {format_number(setup.rate_per_worker)}, n workers n^{plant.gamma:g} times as much. Seed "
        f"{setup.seed}.",
        *setup.notes,
        *(f"Fault: {text}." for text in setup.fault_texts),
        "",
    )
    score, static = result.run.score(result.optimum), result.static.score(result.optimum)
    table(("", spec.name, f"always {setup.static}"), _rows(score, static))
    if options.optimum and result.optimum is None:
        print_lines("", f"Not even {spec.limits.maximum} workers keep the delay below {plant.slo:g} s all the time.")
    saved = 1 - score.cost / static.cost
    cost = f"{saved:.0%} less" if saved >= 0 else f"{-saved:.0%} more"
    print_lines(
        "",
        f"It costs {cost} than {setup.static} workers all the time (the peak plus 10 %), and for "
        f"{score.violation:.2%} of the time the oldest record was older than {plant.slo:g} s.",
        "",
    )
    size_requests.show(requests, options)


def _rows(score: Score, static: Score) -> list[tuple[str, ...]]:
    both = (score, static)
    rows: list[tuple[str, ...]] = [
        ("cost, worker-hours", *(format_number(each.cost) for each in both)),
        ("  relative to what the arrivals need", *(f"{each.to_demand:.2f}" for each in both)),
        ("  relative to the least possible", *(f"{each.to_optimum or 0:.2f}" for each in both)),
        ("time with a record too old", *(f"{each.violation:.2%}" for each in both)),
        ("delay, median", *(f"{each.p50:.1f} s" for each in both)),
        ("delay, 99th percentile", *(f"{each.p99:.1f} s" for each in both)),
        ("oldest record ever", *(f"{each.worst:.0f} s" for each in both)),
        ("changes of size", *(str(each.rescales) for each in both)),
        ("  per hour", *(f"{each.rescales_per_hour:.2f}" for each in both)),
        ("restarts of the job", *(str(each.restarts) for each in both)),
        ("time the job was stopped", *(f"{each.stopped:.2%}" for each in both)),
        ("missing workers, share of those needed", *(f"{each.under:.1%}" for each in both)),
        ("excess workers, share of those needed", *(f"{each.over:.1%}" for each in both)),
        ("time until the size fits after a jump", *(f"{each.converged or 0:.0f} s" for each in both)),
    ]
    if score.converged is None:
        del rows[-1]
    if score.to_optimum is None:
        del rows[2]
    return rows


def _json(result: Result, options: argparse.Namespace) -> dict[str, Any]:
    setup, load = result.setup, result.setup.load
    return {
        "cluster": setup.spec.name,
        "plant": {"name": options.plant, **_without_infinities(asdict(setup.plant))},
        "load": {"name": load.name, "hours": load.seconds / 3600, "peak": load.peak},
        "one": setup.rate_per_worker,
        "seed": setup.seed,
        "faults": list(setup.fault_texts),
        "metrics": setup.names,
        "notes": list(setup.notes),
        "optimum": result.optimum,
        "score": _score_json(result.run.score(result.optimum)),
        "static": {"size": setup.static, "score": _score_json(result.static.score(result.optimum))},
        "rescales": size_requests.as_json(result.requests, explained=options.explain),
    }


def _without_infinities(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Replace infinities, which mean no limit, by null: JSON has none."""
    if isinstance(value, dict):
        return {key: _without_infinities(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _score_json(score: Score) -> dict[str, Any]:
    ratios = ("rescales_per_hour", "to_demand", "to_optimum", "j")
    return {**asdict(score), **{name: getattr(score, name) for name in ratios}}
