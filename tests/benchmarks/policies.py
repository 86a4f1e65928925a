"""Runs policies against scenarios, plants and seeds, and prints what each was worth. A tool for people, not a test.

    python tests/benchmarks/policies.py --traces DIR --cache DIR -p adaptive -p hpa70 -p 'mine={type: backlog-drain}'

A policy is one of `BASELINES`, or NAME=SETTINGS: one policy with its parameters as in a configuration file, or the
whole of a cluster's decision settings (`policies`, `up`, `down`, `settle`, `capacity`, `min`, `max`, `interval`).
`$SLO` in it becomes the plant's objective, such as 60s. Equal arguments print equal figures.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import inspect
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from autoscaler.config import document
from autoscaler.config.build import Builder, Plugin
from autoscaler.core.model import Behaviour, CapacitySpec, ClusterSpec, Limits, NamedPolicy, Policy, SettleSpec
from autoscaler.durations import format_duration
from autoscaler.plugins import Kind
from autoscaler.replay import optimum
from autoscaler.replay.loads import MADE, RECORDED, SCENARIOS, Load, named
from autoscaler.replay.plant import PLANTS
from autoscaler.replay.score import Score
from autoscaler.replay.simulate import run

METRICS = ("arrivals", "throughput", "lag", "utilization", "saturation", "cpu")
SMALLEST, LARGEST = 1, 24
LOW_VIOLATION = 0.01

# The core's own defaults, so that each is written in one place.
_CORE: dict[str, Any] = {item.name: item.default for item in fields(ClusterSpec)}

BASELINES: Mapping[str, str] = {
    # the peak and 10 %
    "static": "{policies: {}, min: 18, max: 18}",
    "backlog-drain": "{type: backlog-drain}",
    "adaptive": "{type: adaptive, objective: $SLO}",
    # rules with windows of their own
    "hpa70": "{policies: {hpa: {type: hpa, metrics: [{type: utilization, metric: cpu, target: 70}]}}, "
    "down: {window: 0s}}",
    "ds2": "{policies: {ds2: {type: ds2}}, down: {window: 0s}}",
    "daedalus": "{policies: {daedalus: {type: daedalus}}, down: {window: 0s}}",
    "flink-operator": "{policies: {operator: {type: flink-operator}}, down: {window: 0s}}",
}
"""Policies by name, as one would write them after NAME=."""


@dataclass(frozen=True)
class Settings:
    """What of a cluster's configuration its decisions depend on; each as in a configuration file."""

    policies: Mapping[str, Annotated[Policy, Plugin(Kind.POLICY)]]
    min: int = SMALLEST
    max: int = LARGEST
    interval: timedelta = timedelta(seconds=15)
    up: Behaviour = _CORE["up"]
    down: Behaviour = _CORE["down"]
    settle: SettleSpec = field(default_factory=SettleSpec)
    capacity: CapacitySpec = field(default_factory=CapacitySpec)


def cluster(name: str, text: str, slo: float) -> ClusterSpec:
    """The spec of a cluster with these settings."""
    problems = document.Problems(name)
    try:
        node = document.parse(text.replace("$SLO", format_duration(timedelta(seconds=slo))), problems)
        if isinstance(node, document.Mapping) and "type" in node.entries:
            node = document.parse(f"{{policies: {{{name}: {text.replace('$SLO', f'{slo:g}s')}}}}}", problems)
        read = Builder(problems, Path(), {}).dataclass(Settings, node, "")
    except document.Invalid:
        raise SystemExit(f"{problems.error()}") from None
    policies = tuple([NamedPolicy(key, policy) for key, policy in read.policies.items()])
    looking = [getattr(named.policy, "lookback", timedelta(0)) for named in policies]
    return ClusterSpec(
        name,
        Limits(read.min, read.max),
        policies,
        up=read.up,
        down=read.down,
        settle=read.settle,
        capacity=read.capacity,
        metrics=METRICS,
        engine=True,
        interval=read.interval,
        lookback=max([timedelta(minutes=10), *looking]),
    )


@dataclass(frozen=True)
class Job:
    """One load on one plant, for all policies."""

    plant: str
    scenario: str
    seed: int
    policies: tuple[tuple[str, str], ...]
    traces: Path | None
    cache: Path | None


@dataclass(frozen=True)
class Row:
    """The numbers of one run, and its CPU seconds."""

    policy: str
    plant: str
    scenario: str
    seed: int
    score: Score
    took: float


def work(job: Job) -> list[Row]:
    """Run every policy of a job."""
    load = loaded(job.scenario, job.seed, job.traces)
    spec = PLANTS[job.plant]
    least = least_cost(load, job.plant, job.cache)
    rows = []
    for name, text in job.policies:
        begin = time.process_time()
        score = run(cluster(name, text, spec.slo), spec, load, job.seed).score(least)
        rows.append(Row(name, job.plant, job.scenario, job.seed, score, time.process_time() - begin))
    return rows


@cache
def loaded(scenario: str, seed: int, traces: Path | None) -> Load:
    """A load, once per process."""
    return named(scenario, seed, traces)


def least_cost(load: Load, plant: str, folder: Path | None) -> float | None:
    """The exact optimum, kept under what it depends on; None where nothing keeps the objective."""
    spec = PLANTS[plant]
    code = inspect.getsource(optimum)
    key = hashlib.sha256(array.array("d", load.rates).tobytes() + f"{spec!r} {LARGEST} {code}".encode()).hexdigest()[
        :24
    ]
    kept = None if folder is None else folder / f"optimum-{plant}-{load.name}-{key}.json"
    if kept is not None and kept.exists():
        found: float | None = json.loads(kept.read_text())
        return found
    try:
        least = optimum.optimum(load, spec, LARGEST)
    except optimum.OptimumError:
        least = None
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(least))
        new.replace(kept)
    return least


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The vector of each policy per scenario, and the means, plant by plant."""
    for plant in dict.fromkeys(row.plant for row in rows):
        here = [row for row in rows if row.plant == plant]
        policies = list(dict.fromkeys(row.policy for row in here))
        wide = max(len(policy) for policy in (*policies, "policy"))
        yield f"{plant} (objective {PLANTS[plant].slo:g} s)"
        yield (
            f"  {'scenario':<12} {'policy':<{wide}} {'cost/opt':>8} {'/demand':>8} {'violation':>9} {'p99 s':>7} "
            f"{'worst s':>7} {'resc/h':>6} {'stopped':>7} {'under':>6} {'over':>6} {'J':>6}"
        )
        for scenario in dict.fromkeys(row.scenario for row in here):
            for policy in policies:
                scores = [row.score for row in here if (row.scenario, row.policy) == (scenario, policy)]
                yield f"  {scenario:<12} {policy:<{wide}} {_numbers(scores)}"
        yield f"  means over {len({row.scenario for row in here})} scenarios: cost geometric, the others arithmetic"
        for policy in policies:
            mine = [row for row in here if row.policy == policy]
            yield f"  {'':<12} {policy:<{wide}} {_numbers([row.score for row in mine])}  {_low(mine)}"
        yield ""


def _numbers(scores: Sequence[Score]) -> str:
    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(scores)

    ratios = [score.to_optimum for score in scores]
    known = [ratio for ratio in ratios if ratio is not None]
    cost = f"{_geometric(known):8.3f}" if len(known) == len(scores) else f"{'-':>8}"
    return (
        f"{cost} {_geometric([score.to_demand for score in scores]):8.3f} "
        f"{mean(score.violation for score in scores):9.2%} {mean(score.p99 for score in scores):7.1f} "
        f"{mean(score.worst for score in scores):7.0f} {mean(score.rescales_per_hour for score in scores):6.2f} "
        f"{mean(score.stopped for score in scores):7.2%} {mean(score.under for score in scores):6.3f} "
        f"{mean(score.over for score in scores):6.2f} {mean(score.j for score in scores):6.3f}"
    )


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _low(rows: Sequence[Row]) -> str:
    """How many scenarios stay below 1 % of violation."""
    each: dict[str, list[float]] = {}
    for row in rows:
        each.setdefault(row.scenario, []).append(row.score.violation)
    low = sum(math.fsum(values) / len(values) < LOW_VIOLATION for values in each.values())
    return f"under {LOW_VIOLATION:.0%} in {low} of {len(each)}"


def named_policy(text: str) -> tuple[str, str]:
    """What stands after -p: a baseline, or NAME=SETTINGS."""
    name, separator, settings = text.partition("=")
    if separator:
        return name, settings
    if name not in BASELINES:
        raise argparse.ArgumentTypeError(f"{name}: expected NAME=SETTINGS, or one of {', '.join(BASELINES)}")
    return name, BASELINES[name]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    names = ", ".join(BASELINES)
    add("-p", "--policy", action="append", type=named_policy, metavar="P", help=f"NAME=SETTINGS, or one of {names}")
    add("-s", "--scenario", action="append", choices=(*RECORDED, *MADE), help="default: the sixteen, if --traces")
    add("--plant", action="append", choices=tuple(PLANTS), help="default: k8s")
    add("--seeds", type=int, default=1, help="how many, from 1 on; default 1")
    add("--traces", type=Path, default=os.environ.get("AUTOSCALER_TRACES"), help="folder of the recorded loads")
    add("--cache", type=Path, help="folder in which optima are kept")
    add("--processes", type=int, default=2)
    add("--json", type=Path, help="write every run's numbers there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    options = _options(arguments)
    policies = tuple(
        dict(options.policy or [named_policy(name) for name in ("static", "hpa70", "backlog-drain")]).items()
    )
    traces = None if options.traces is None else Path(options.traces)
    scenarios = options.scenario or [name for name in SCENARIOS if traces is not None or name in MADE]
    plants = options.plant or ["k8s"]
    for plant in plants:
        for name, text in policies:
            cluster(name, text, PLANTS[plant].slo)  # what cannot be read is said at once
    jobs = [
        Job(plant, scenario, seed, policies, traces, options.cache)
        for plant in plants
        for scenario in scenarios
        for seed in range(1, options.seeds + 1)
    ]
    begin = time.perf_counter()
    rows: list[Row] = []
    for found in _results(jobs, options.processes):
        rows += found
        if len(rows) % (len(policies) * len(jobs) // len(plants)) == 0:
            here = [row for row in rows if row.plant == found[0].plant]
            sys.stdout.writelines(f"{line}\n" for line in table(here))
            sys.stdout.flush()
    days = math.fsum(row.score.hours for row in rows) / 24
    spent = math.fsum(row.took for row in rows)
    wall = time.perf_counter() - begin
    sys.stdout.write(f"{len(rows)} runs of {days:.1f} days in {wall:.0f} s, {spent / days:.2f} CPU seconds for a day\n")
    if options.json is not None:
        options.json.write_text(json.dumps([_plain(row) for row in rows], indent=1))


def _results(jobs: Sequence[Job], processes: int) -> Iterator[list[Row]]:
    """What came of each job, in their order."""
    if processes <= 1:
        yield from map(work, jobs)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(work, jobs)


def _plain(row: Row) -> dict[str, Any]:
    plain = asdict(row)
    del plain["took"]
    return plain


if __name__ == "__main__":
    main()
