"""What `autoscaler benchmark` runs and prints."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeVar

from autoscaler.cli.output import FAILED, OK, USAGE, print_error, print_json, print_lines, progress, table
from autoscaler.config import document
from autoscaler.config.build import Builder, Plugin
from autoscaler.core.durations import format_duration
from autoscaler.core.model import Behaviour, CapacitySpec, ClusterSpec, Limits, NamedPolicy, Policy, SettleSpec
from autoscaler.core.wording import count_of
from autoscaler.plugins import Kind
from autoscaler.simulation.baselines import BASELINES, LAG_S, Baseline
from autoscaler.simulation.benchmark import (
    COLUMNS,
    DEFAULT,
    FAST,
    Contender,
    Row,
    cells,
    compare,
    digest,
    gate_figures,
    markdown,
    means,
    outperformed,
    regressions,
    rows_json,
)
from autoscaler.simulation.loads import SCENARIOS, SYNTHETIC, Load, LoadError, load_by_name
from autoscaler.simulation.plant import METRICS, PLANTS, PlantSpec

J = TypeVar("J")
D = TypeVar("D")

SMALLEST, LARGEST = 1, 24

# The defaults of the core, so that each default is defined in one place.
_CORE: dict[str, Any] = {item.name: item.default for item in fields(ClusterSpec)}


def benchmark(options: argparse.Namespace) -> int:
    """Run the policies and print their figures. Returns the exit code."""
    traces = None if options.traces is None else Path(options.traces)
    policies = dict(options.policy or BASELINES)
    plants = [name for name in PLANTS if name in (options.plant or PLANTS)]
    scenarios = options.scenario or (
        FAST if options.fast else [name for name in SCENARIOS if traces is not None or name in SYNTHETIC]
    )
    seeds = range(1, (options.seeds or (1 if options.fast else 3)) + 1)
    try:
        _prepare(options)
        before = None if options.against is None else json.loads(options.against.read_text())
        loads = {name: load_by_name(name, 1, traces) for name in dict.fromkeys(scenarios)}
    except (LoadError, OSError, ValueError) as error:
        print_error(f"autoscaler: {error}")
        return USAGE
    for name, baseline in policies.items():
        cluster(name, baseline, 60.0, 1.0)  # report wrong settings at once
    jobs = [
        Job(
            plant=plant,
            scenario=scenario,
            seeds=tuple(seeds),
            policies=tuple(policies.items()),
            traces=traces,
            guarded=options.guarded,
        )
        # The longest first, so that the processes end at about the same time.
        for scenario in sorted(loads, key=lambda name: -loads[name].seconds)
        for plant in plants
    ]
    done = results(work, jobs, options.processes)
    order = [list(plants), list(loads), list(policies)]

    def place(one: Row) -> tuple[int, ...]:
        names = (one.plant, one.scenario, one.policy)
        return *(known.index(name) for known, name in zip(order, names, strict=True)), one.seed

    rows = sorted([row for found in done for row in found.rows], key=place)
    if options.json:
        print_json({"digest": digest(rows), "means": [asdict(one) for one in means(rows)], "runs": rows_json(rows)})
    elif options.markdown:
        print_lines(markdown(rows).rstrip())
    else:
        _show(rows, each=options.each)
    _show_times(done, rows)
    return max(_write(options, rows), _compare(options, before, rows))


def _prepare(options: argparse.Namespace) -> None:
    """Check before the runs that the directories of the output files exist.

    Raises:
        OSError: a directory does not exist.
    """
    for file in (options.plot, options.record):
        if file is not None and not file.parent.is_dir():
            raise NotADirectoryError(f"{file.parent}: is not a directory")


# Runs


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of a cluster that its decisions depend on, as in a configuration file."""

    policies: Mapping[str, Annotated[Policy, Plugin(Kind.POLICY)]]
    min: int = SMALLEST
    max: int = LARGEST
    interval: timedelta = timedelta(seconds=15)
    up: Behaviour = _CORE["up"]
    down: Behaviour = _CORE["down"]
    settle: SettleSpec = field(default_factory=SettleSpec)
    capacity: CapacitySpec = field(default_factory=CapacitySpec)


def cluster(name: str, baseline: Baseline, slo: float, one: float) -> ClusterSpec:
    """The spec of a cluster with a policy's settings.

    `slo` is the plant's objective in seconds; `one` is the records/s that one worker processes.

    Raises:
        ConfigurationError: the settings cannot be read.
    """
    if baseline.policy is not None:
        read = Settings(policies={name: baseline.policy})
    else:
        text = baseline.settings.replace("$SLO", format_duration(timedelta(seconds=slo)))
        text = text.replace("$LAG", f"{one * LAG_S:.6g}")
        problems = document.Problems(name)
        try:
            node = document.parse(text, problems)
            if isinstance(node, document.Mapping) and "type" in node.entries:
                node = document.parse(f"{{policies: {{{name}: {text}}}}}", problems)
            read = Builder(problems, Path(), {}).dataclass(Settings, node, "")
        except document.Invalid:
            raise problems.error() from None
    policies = tuple([NamedPolicy(key, policy) for key, policy in read.policies.items()])
    lookbacks = [getattr(named.policy, "lookback", timedelta(0)) for named in policies]
    return ClusterSpec(
        name=name,
        limits=Limits(read.min, read.max),
        policies=policies,
        up=read.up,
        down=read.down,
        settle=read.settle,
        capacity=read.capacity,
        metrics=METRICS,
        engine=True,
        interval=read.interval,
        lookback=max([timedelta(minutes=10), *lookbacks]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load on one plant, for all policies and seeds."""

    plant: str
    scenario: str
    seeds: tuple[int, ...]
    policies: tuple[tuple[str, Baseline], ...]
    traces: Path | None
    guarded: bool


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job: the scores, and the CPU seconds of each policy."""

    rows: tuple[Row, ...]
    took: Mapping[str, float]


def work(job: Job) -> Done:
    """Run every policy of a job with every seed."""
    plant = PLANTS[job.plant]
    rows: list[Row] = []
    took: dict[str, float] = {}
    known: dict[tuple[float, ...], float | None] = {}
    for seed in job.seeds:
        load = load_by_name(job.scenario, seed, job.traces)
        if load.rates not in known:
            begin = time.process_time()
            known[load.rates] = least(load, plant)
            took["optimum"] = took.get("optimum", 0.0) + time.process_time() - begin
        one = load.per_worker(plant.gamma)
        for name, baseline in job.policies:
            begin = time.process_time()
            decide = baseline.decide(load, guarded=job.guarded)
            contender = Contender(name, cluster(name, baseline, plant.slo, one), decide)
            rows.append(compare(contender, job.plant, plant, load, seed, known[load.rates]))
            took[name] = took.get(name, 0.0) + time.process_time() - begin
    return Done(tuple(rows), took)


def least(load: Load, plant: PlantSpec) -> float | None:
    """The exact optimum in worker-hours; None if no sequence of sizes keeps the objective."""
    from autoscaler.simulation import optimum  # noqa: PLC0415 - it needs an extra

    try:
        return optimum.optimum(load, plant, LARGEST)
    except optimum.OptimumError:
        return None


def results(work: Callable[[J], D], jobs: Sequence[J], processes: int) -> list[D]:
    """The results of all jobs, in any order, with a progress bar on a terminal."""
    done: list[D] = []
    with progress("benchmark", len(jobs)) as advanced:
        for found in _run_jobs(work, jobs, processes):
            done.append(found)
            advanced(len(done))
    return done


def _run_jobs(work: Callable[[J], D], jobs: Sequence[J], processes: int) -> Iterator[D]:
    if min(processes, len(jobs)) <= 1:
        yield from map(work, jobs)
        return
    # Spawned: the bar has a thread, and a process with threads should not be forked.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(processes, len(jobs)), partial(signal.signal, signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(work, jobs)


# Output


def _show(rows: Sequence[Row], *, each: bool) -> None:
    for plant in dict.fromkeys(row.plant for row in rows):
        here = [row for row in rows if row.plant == plant]
        scenarios, seeds = len({row.scenario for row in here}), len({row.seed for row in here})
        print_lines(
            f"{plant}: objective {PLANTS[plant].slo:g} s, {count_of(scenarios, 'scenario')}, {count_of(seeds, 'seed')}",
            "",
        )
        for scenario, some in groupby(means(here, each=True) if each else (), lambda one: one.scenario):
            table((scenario, *COLUMNS), [(one.policy, *cells(one)) for one in some])
            print_lines("")
        table(
            ("policy", *COLUMNS, "under 1 %"),
            [(one.policy, *cells(one), f"{one.low} of {one.of}") for one in means(here)],
        )
        better = outperformed(here, DEFAULT, [name for name, baseline in BASELINES.items() if baseline.oracle])
        if len({row.policy for row in here}) > 1 and any(row.policy == DEFAULT for row in here):
            losses = "; ".join(f"{name}: {j:.3f}, {rule} {best:.3f}" for name, j, rule, best in better)
            print_lines(
                "", f"J of {DEFAULT} is the lowest in {scenarios - len(better)} of {scenarios}. {losses}".rstrip()
            )
        print_lines("")


def _show_times(done: Sequence[Done], rows: Sequence[Row]) -> None:
    """Print the CPU seconds of a simulated day to standard error, because they are not a result."""
    hours: dict[str, float] = {}
    took: dict[str, float] = {}
    for row in rows:
        hours[row.policy] = hours.get(row.policy, 0.0) + row.score.hours
    for found in done:
        for name, seconds in found.took.items():
            took[name] = took.get(name, 0.0) + seconds
    times = ", ".join(f"{name} {took[name] / (hours[name] / 24):.2f}" for name in hours)
    print_error(
        f"CPU seconds for a simulated day: {times}; {sum(took.values()):.0f} in all, optima {took['optimum']:.1f}"
    )


def _write(options: argparse.Namespace, rows: Sequence[Row]) -> int:
    """Write the files that were requested."""
    try:
        if options.record is not None:
            options.record.write_text(json.dumps(gate_figures(rows, DEFAULT), indent=2) + "\n")
        if options.plot is not None:
            from autoscaler.cli import benchmark_plot  # noqa: PLC0415 - it needs an extra

            benchmark_plot.costs(means(rows), options.plot)
    except OSError as error:
        print_error(f"autoscaler: {error.filename}: cannot be written: {error.strerror or error}")
        return FAILED
    return OK


def _compare(options: argparse.Namespace, before: Mapping[str, object] | None, rows: Sequence[Row]) -> int:
    """Compare the figures of the default policy with those recorded."""
    if before is None:
        return OK
    try:
        found = regressions(before, rows)
    except ValueError as error:
        print_error(f"autoscaler: {options.against}: {error}")
        return USAGE
    if found:
        print_error(f"autoscaler: worse than {options.against}:", *(f"  {line}" for line in found))
        return FAILED
    print_error(f"nothing is worse than {options.against}")
    return OK
