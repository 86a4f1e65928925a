"""`autoscaler simulate --jobs`: tries a configuration on a simulated cluster under batch jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from autoscaler.cli import configuration, plants, simulate_plot, simulate_setup, size_requests
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import TRACES
from autoscaler.cli.output import print_json, print_lines, table
from autoscaler.cli.size_requests import Request
from autoscaler.cli.tables import DEFAULT_ROWS, format_elapsed, omitted_rows
from autoscaler.config import document
from autoscaler.config.build import Builder
from autoscaler.config.document import Invalid, Problems
from autoscaler.core.durations import format_duration
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Limits, Observation
from autoscaler.core.step import step
from autoscaler.core.wording import format_number
from autoscaler.ports import Record
from autoscaler.simulation.batch import METRICS, BatchRun, Workload, run_dynamic_allocation
from autoscaler.simulation.batch import run as simulated
from autoscaler.simulation.plant import PlantSpec
from autoscaler.simulation.trial import visible_metrics

_OF_LOADS = ("hours", "peak", "rate_per_worker", "faults", "optimum", "open", "traces")
"""Options that apply to a load, and not to batch jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The inputs of a simulation.

    Attributes:
        spec: the spec of the cluster.
        plant: how long its workers take to start.
        workload: the jobs.
        names: metric of the cluster -> the simulated cluster's name of it.
        seed: the seed of all random numbers.
        deadline: the shortest deadline that a policy sets for a job; None: no policy sets one.
        time_zone: the cluster's time zone.
    """

    spec: ClusterSpec
    plant: PlantSpec
    workload: Workload
    names: Mapping[str, str]
    seed: int
    deadline: timedelta | None
    time_zone: str


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    setup = _setup(options)
    if options.plot is not None:
        simulate_plot.check(options.plot)
    with nullcontext() if options.record is None else simulate_setup.recording(options.record) as keep:
        done, requests = _simulate(setup, keep)
    runs = {setup.spec.name: done, **_compared(setup)}
    if options.json:
        print_json(_json(setup, runs, requests, options))
    else:
        _show(setup, runs, requests, options)
    if options.plot is not None:
        simulate_plot.draw_jobs(setup.spec.name, setup.time_zone, done, options.plot)
    return 0


def _setup(options: argparse.Namespace) -> Setup:
    given = {name: getattr(options, name) for name in _OF_LOADS}
    if str(given["traces"]) == os.environ.get(TRACES):
        del given["traces"]  # it is the default
    refused = [f"--{name.replace('_', '-')}: applies to a load, not to --jobs" for name in given if given[name]]
    if refused:
        raise wrong(*refused)
    cluster = configuration.chosen(options)
    described = plants.plant(options.plant)
    policies = [named.policy for named in cluster.spec.policies]
    # Another policy's parameter `deadline` may have another meaning.
    deadlines = [each for policy in policies if isinstance(each := getattr(policy, "deadline", None), timedelta)]
    return Setup(
        spec=cluster.spec,
        plant=described.plant,
        workload=read_jobs(options.jobs),
        names=simulate_setup.plant_metrics(options.config, cluster, dict(options.metric), METRICS),
        seed=options.seed,
        deadline=min(deadlines, default=None),
        time_zone=cluster.time_zone,
    )


def read_jobs(path: Path) -> Workload:
    """Read a file of jobs: a YAML mapping of the fields of `Workload`.

    Raises:
        ConfigurationError: the file is wrong; all problems as `file:line: key: message`.
    """
    problems = Problems(str(path))
    found = None
    with suppress(Invalid):
        found = Builder(problems, path.parent, {}).dataclass(Workload, document.read(path, problems), "")
    if problems or found is None:
        raise problems.error()
    return found


def _simulate(setup: Setup, keep: Callable[[Record], None] | None) -> tuple[BatchRun, list[Request]]:
    requests: list[Request] = []

    def record(each: Record) -> None:
        if each.decision.rescale:
            requests.append(Request(each))
        if keep is not None:
            keep(each)

    def decide(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        return step(spec, state, visible_metrics(spec, setup.names, observation))

    return simulated(setup.spec, setup.workload, setup.plant, setup.seed, record, decide), requests


def _compared(setup: Setup) -> dict[str, BatchRun]:
    """Run the same jobs on a cluster that always has the maximum size, and under Spark's dynamic allocation."""
    limits, slots = setup.spec.limits, setup.spec.slots_per_replica
    given = setup.workload, setup.plant, setup.seed
    always = Limits(limits.maximum, limits.maximum)
    fixed = replace(setup.spec, limits=always, policies=(), combine=None)
    found = {
        f"always {limits.maximum}": simulated(fixed, *given),
        "dynamic allocation": run_dynamic_allocation(limits, slots, *given),
    }
    if setup.workload.migrate:
        found["without shuffle tracking"] = run_dynamic_allocation(limits, slots, *given, tracking=False)
    return found


def _late(deadline: timedelta, done: BatchRun) -> int:
    """The number of jobs that took longer than the deadline, or were not done at all."""
    return sum(seconds is None or seconds > deadline.total_seconds() for seconds in done.times)


def _show(setup: Setup, runs: Mapping[str, BatchRun], requests: list[Request], options: argparse.Namespace) -> None:
    spec, workload = setup.spec, setup.workload
    files = "handed to the others" if workload.migrate else "lost"
    stages = sum(len(job.stages) for job in workload.jobs)
    tasks = sum(stage.tasks for job in workload.jobs for stage in job.stages)
    print_lines(
        f"Cluster {spec.name} of {options.config}, {spec.limits.minimum} to {spec.limits.maximum} workers, "
        f"{spec.slots_per_replica} tasks at a time on each, on the simulated cluster {options.plant}:",
        f"  workers are ready after {setup.plant.startup:g} s; the shuffle files of one that leaves are {files}.",
        f"Jobs of {options.jobs}: {len(workload.jobs)} with {stages} stages, {tasks} tasks, "
        f"{format_number(workload.task_seconds)} s of work. Seed {setup.seed}.",
        "",
    )
    titles = [job.name or f"job {number}" for number, job in enumerate(workload.jobs, 1)]
    shown = titles if options.all else titles[:DEFAULT_ROWS]
    ideal = workload.task_seconds / spec.slots_per_replica
    rows: list[tuple[str, ...]] = [
        ("worker-seconds", *(format_number(each.worker_seconds) for each in runs.values())),
        ("  relative to what the tasks need", *(f"{each.worker_seconds / ideal:.2f}" for each in runs.values())),
        *(
            (f"time of {title}", *(_time(each.times[number]) for each in runs.values()))
            for number, title in enumerate(shown)
        ),
        ("tasks that ran again", *(str(each.repeated) for each in runs.values())),
        ("changes of size", *(str(each.changes) for each in runs.values())),
    ]
    if setup.deadline is not None:
        title = f"jobs that took more than {format_duration(setup.deadline)}"
        rows.insert(-2, (title, *(str(_late(setup.deadline, each)) for each in runs.values())))
    table(("", *runs), rows)
    print_lines(*omitted_rows(shown, titles, "jobs"), "")
    size_requests.show(requests, options)


def _time(seconds: float | None) -> str:
    return "not done" if seconds is None else format_elapsed(seconds)


def _json(
    setup: Setup, runs: Mapping[str, BatchRun], requests: list[Request], options: argparse.Namespace
) -> dict[str, Any]:
    workload = setup.workload
    return {
        "cluster": setup.spec.name,
        "plant": {"name": options.plant, "startup": setup.plant.startup, "startup_sd": setup.plant.startup_sd},
        "jobs": [
            {"name": job.name, "at": job.at.total_seconds(), "task_seconds": job.task_seconds} for job in workload.jobs
        ],
        "migrate": workload.migrate,
        "seed": setup.seed,
        "metrics": dict(setup.names),
        "deadline": None if setup.deadline is None else setup.deadline.total_seconds(),
        "results": {
            name: {
                "worker_seconds": each.worker_seconds,
                "job_times": list(each.times),
                "tasks": each.finished,
                "repeated": each.repeated,
                "changes": each.changes,
                "late": None if setup.deadline is None else _late(setup.deadline, each),
            }
            for name, each in runs.items()
        },
        "rescales": size_requests.as_json(requests, explained=options.explain),
    }
