"""What `autoscaler benchmark --generalize` runs and prints."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from autoscaler.cli.benchmark_run import cluster, least, results
from autoscaler.cli.output import OK, USAGE, print_error, print_json, print_lines
from autoscaler.cli.output import table as print_table
from autoscaler.core.wording import count_of
from autoscaler.simulation import generalization
from autoscaler.simulation.baselines import ABLATIONS, BASELINES, Baseline
from autoscaler.simulation.benchmark import DEFAULT, Contender, digest
from autoscaler.simulation.families import FAMILIES, Sample, draw, recorded, split
from autoscaler.simulation.generalization import Judged, Table
from autoscaler.simulation.loads import LoadError, read_points

RECORDED = "recorded"
"""The family of loads that are parts of recorded traces."""

LOADS, HOURS, SEED, FOLD = 4, 6.0, 1, 1
"""The defaults of --loads, --hours, --seed and --fold."""

LOSSES = 5
"""The maximum number of losses that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load for all policies; `trace` is its file if it is a recorded load."""

    family: str
    number: int
    kept: bool
    seed: int
    hours: float
    policies: tuple[tuple[str, Baseline], ...]
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job: scores, CPU seconds."""

    rows: tuple[Judged, ...]
    took: float


def generalize(options: argparse.Namespace) -> int:
    """Judge the policies and print their figures. Returns the exit code."""
    policies = dict(options.policy or BASELINES)
    if options.ablate:
        policies = {**policies, DEFAULT: policies.get(DEFAULT, BASELINES[DEFAULT]), **ABLATIONS}
    try:
        jobs = list(_jobs(options, tuple(policies.items())))
    except (LoadError, OSError) as error:
        print_error(f"autoscaler: {error}")
        return USAGE
    for name, baseline in policies.items():
        cluster(name, baseline, 60.0, 1.0)  # report wrong settings at once
    done = results(work, jobs, options.processes)
    names, families = list(policies), [*FAMILIES, RECORDED]

    def place(one: Judged) -> tuple[int, int, bool, int]:
        return names.index(one.policy), families.index(one.family), one.kept, one.number

    rows = sorted([row for found in done for row in found.rows], key=place)
    if options.json:
        means = [asdict(one) for one in generalization.summaries(_verdict(rows))]
        print_json({"digest": digest(rows), "summaries": means, "runs": [asdict(row) for row in rows]})
    else:
        for table in _tables(rows, cross=options.generalize == "all", ablate=options.ablate):
            if options.markdown:
                print_lines(generalization.markdown(table))
            else:
                print_lines(f"{table.title}:", "")
                print_table(table.head, table.rows)
                print_lines("")
        print_lines(*_lost(rows))
    print_error(f"{count_of(len(jobs), 'load')}, {sum(found.took for found in done):.0f} CPU seconds")
    return OK


# Runs


def _jobs(options: argparse.Namespace, policies: tuple[tuple[str, Baseline], ...]) -> Iterator[Job]:
    """The loads that the options select.

    Raises:
        LoadError: the loads are too short, or a trace cannot be used.
        OSError: the directory of the traces cannot be read.
    """
    hours = options.hours or HOURS
    count = options.loads or LOADS
    job = partial(Job, seed=SEED if options.seed is None else options.seed, hours=hours, policies=policies)
    if hours * 3600 <= generalization.FIRST_S:
        raise LoadError(f"--hours {hours:g}: expected more than 1, because the first hour is scored separately")
    develop, kept = split(options.fold or FOLD)
    if options.generalize == "all":
        develop, kept = tuple(FAMILIES), tuple(FAMILIES)
    if options.generalize != "verdict":
        yield from (job(family=name, number=n, kept=False) for name in develop for n in range(count))
    if options.generalize == "develop":
        return
    yield from (job(family=name, number=n, kept=True) for name in kept for n in range(count))
    if options.traces is not None:
        files = sorted(Path(options.traces).glob("*.csv"))
        if not files:
            raise LoadError(f"--traces {options.traces}: has no CSV file")
        for path in files:
            points = read_points(path)
            if points[-1][0] - points[0][0] <= generalization.FIRST_S:
                raise LoadError(f"{path}: expected more than 1 hour, because the first hour is scored separately")
        for n in range(max(count, len(files))):
            yield job(family=RECORDED, number=n, kept=True, trace=files[n % len(files)])


def sample(job: Job) -> Sample:
    """The sample of a job."""
    shape = None if job.trace is None else recorded(read_points(job.trace))
    return draw(job.family, job.number, job.seed, job.hours, kept=job.kept, shape=shape)


def work(job: Job) -> Done:
    """Judge every policy of a job."""
    begin = time.process_time()
    drawn = sample(job)
    load, plant = drawn.load, drawn.plant
    parts = generalization.first_hour(load), generalization.after_first_hour(load)
    optima = least(parts[0], plant), least(parts[1], plant)
    rows = []
    for name, baseline in job.policies:
        spec = cluster(name, baseline, plant.slo, load.per_worker(plant.gamma))
        rows.append(generalization.judge(Contender(name, spec, baseline.decide(load)), drawn, optima))
    return Done(tuple(rows), time.process_time() - begin)


# Output


def _verdict(rows: Sequence[Judged]) -> list[Judged]:
    """The held-out rows, or all rows if none is held out."""
    return [row for row in rows if row.kept] or list(rows)


def _rivals(rows: Sequence[Judged]) -> list[Judged]:
    """The rows of the default policy and of the other rules without foresight; empty unless both exist."""
    known = [row for row in _verdict(rows) if row.policy not in ABLATIONS]
    found = [row for row in known if row.policy == DEFAULT or not BASELINES.get(row.policy, BASELINES[DEFAULT]).oracle]
    return found if DEFAULT in {row.policy for row in found} and len({row.policy for row in found}) > 1 else []


def _tables(rows: Sequence[Judged], *, cross: bool, ablate: bool) -> Iterator[Table]:
    judged = _verdict(rows)
    yield generalization.overview([row for row in judged if row.policy not in ABLATIONS])
    if rivals := _rivals(rows):
        yield generalization.by_place(rivals, DEFAULT)
    if cross and any(row.policy == DEFAULT for row in rows):
        yield generalization.cross_validation(rows, DEFAULT)
    if ablate:
        yield generalization.ablation(judged, DEFAULT, ABLATIONS)


def _lost(rows: Sequence[Judged]) -> Iterator[str]:
    """Lines about the loads on which the default policy loses most."""
    rivals = _rivals(rows)
    if not rivals:
        return
    lost = generalization.losses(rivals, DEFAULT)
    loads = sum(row.policy == DEFAULT for row in rivals)
    better = f"better than {DEFAULT} by more than {generalization.MARGIN:g}"
    yield f"Another rule without foresight is {better} on {len(lost)} of {loads} loads."
    for one in lost[:LOSSES]:
        family, plant, number = one.sample
        yield f"  {family} {number} on {plant}: {one.j:.2f}, {one.other} {one.other_j:.2f}"
