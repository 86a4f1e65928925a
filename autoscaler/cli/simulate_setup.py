"""Sets up and runs `autoscaler simulate`: a cluster of a configuration, a simulated cluster, a load and faults."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from autoscaler.cli import configuration, plants
from autoscaler.cli.configuration import wrong
from autoscaler.cli.output import progress
from autoscaler.cli.size_requests import Request
from autoscaler.config.model import Cluster
from autoscaler.core.durations import format_duration
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Limits, Observation
from autoscaler.core.step import step
from autoscaler.core.wording import format_number
from autoscaler.plugins import guess
from autoscaler.ports import AutoscalerError, Record
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation import faults as simulation_faults
from autoscaler.simulation.faults import ENGINE, TARGET, FaultError, Faults
from autoscaler.simulation.loads import HOUR, RECORDED, SYNTHETIC, Load, LoadError, from_csv, load_by_name
from autoscaler.simulation.loop import Run
from autoscaler.simulation.loop import run as simulated
from autoscaler.simulation.plant import METRICS, STEP, PlantSpec, work
from autoscaler.simulation.scoring import needed
from autoscaler.simulation.trial import STATIC_HEADROOM, visible_metrics
from autoscaler.trace.codec import dump_record
from autoscaler.trace.format import file_name

PEAK_SHARE = 2 / 3
"""Without a rate per worker, the peak of the load needs this share of the maximum size at 100 % utilization..."""

DEFAULT_RATE = 1000.0
"""... and without a peak either, a worker processes this many records/s."""

_NO_STALL = 1e-9  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The inputs of a simulation.

    Attributes:
        cluster: the cluster of the configuration.
        spec: the cluster's spec, with an interval that is a multiple of the plant's step.
        plant, load, faults: as in `simulation.loop.run`.
        fault_texts: the faults as sentences, with the cluster's own names of its metrics.
        seed: the seed of all random numbers.
        static: the fixed size to compare with.
        names: metric of the cluster -> the plant's name of it.
        notes: assumptions that the reader should know.
    """

    cluster: Cluster
    spec: ClusterSpec
    plant: PlantSpec
    load: Load
    faults: Faults
    fault_texts: tuple[str, ...]
    seed: int
    static: int
    names: dict[str, str]
    notes: tuple[str, ...]

    @property
    def rate_per_worker(self) -> float:
        """Records/s that one worker processes."""
        return self.load.per_worker(self.plant.gamma)


def setup(options: argparse.Namespace) -> Setup:
    """Build the setup that the options describe.

    Raises:
        ConfigurationError: an option, or a file that an option names, is wrong.
    """
    cluster = configuration.chosen(options)
    described = plants.plant(options.plant)
    plant = described.plant
    spec = cluster.spec
    notes: list[str] = []
    interval = timedelta(seconds=STEP * max(1, math.ceil(spec.interval.total_seconds() / STEP)))
    if interval != spec.interval:
        notes.append(
            f"The interval is {format_duration(interval)}, not {format_duration(spec.interval)}: the simulation runs "
            f"in steps of {STEP:g} s."
        )
        spec = replace(spec, interval=interval)
    if plant.partitions is None and spec.partitions is not None:
        notes.append(f"The source has {spec.partitions} partitions: partitions of the configuration.")
        plant = replace(plant, partitions=spec.partitions)
    known = {name: shown for name, shown in described.metrics.items() if name in cluster.metrics}
    names = plant_metrics(options.config, cluster, known | dict(options.metric))
    try:
        faults = simulation_faults.NONE if options.faults is None else simulation_faults.parse(options.faults)
        _check(faults, spec, names)
        load = _cut(_sized(_load(options), options, spec, described, notes), options.hours)
    except (LoadError, FaultError) as error:
        raise wrong(*str(error).splitlines()) from error
    try:
        peak = needed([load.peak * STEP], load.per_worker(plant.gamma), plant.gamma)[0]
    except ValueError as error:
        raise wrong(f"--load {options.load}: {error} (--peak, --rate-per-worker)") from error
    if peak > spec.limits.maximum:
        notes.append(f"The peak needs {peak} workers, and at most {spec.limits.maximum} are allowed.")
    notes += _other_objectives(spec, plant.slo)
    readings = tuple([replace(fault, name=names.get(fault.name, fault.name)) for fault in faults.readings])
    return Setup(
        cluster=cluster,
        spec=spec,
        plant=plant,
        load=load,
        faults=replace(faults, readings=readings),
        fault_texts=tuple(simulation_faults.describe(faults)),
        seed=options.seed,
        static=max(1, math.ceil(STATIC_HEADROOM * peak)),
        names=names,
        notes=tuple(notes),
    )


def _other_objectives(spec: ClusterSpec, slo: float) -> list[str]:
    """Notes about policies whose objective differs from the age that the output calls too old."""
    objectives = {named.name: getattr(named.policy, "objective", None) for named in spec.policies}
    return [
        f"The objective of {name} is {objective.total_seconds():g} s; too old means older than {slo:g} s, the `slo` of "
        "the simulated cluster, which a file for --plant can set."
        for name, objective in objectives.items()
        if isinstance(objective, timedelta) and objective.total_seconds() != slo
    ]


def _check(faults: Faults, spec: ClusterSpec, names: Mapping[str, str]) -> None:
    """Refuse a fault of a reading that the cluster does not use: it would have no effect."""
    known = (*names, TARGET, *((ENGINE,) if spec.engine else ()))
    problems = [
        f"{fault.kind}@{fault.name}: cluster {spec.name} does not read it{guess(fault.name, known)}; it has "
        f"{', '.join(known)}"
        for fault in faults.readings
        if fault.name and fault.name not in known
    ]
    if problems:
        raise FaultError("\n".join(problems))


def _load(options: argparse.Namespace) -> Load:
    text = options.load
    if text in SYNTHETIC or text in RECORDED:
        return load_by_name(text, options.seed, None if options.traces is None else Path(options.traces))
    path = Path(text)
    if not path.exists():
        names = (*SYNTHETIC, *RECORDED)
        raise LoadError(
            f"--load {text}: is not a load and not a file, expected one of {', '.join(names)}{guess(text, names)}"
        )
    return from_csv(path)


def _cut(load: Load, hours: float | None) -> Load:
    if hours is None:
        return load
    steps = round(hours * HOUR / STEP)
    if not 0 < steps <= len(load.rates):
        raise LoadError(f"--hours {hours:g}: {load.name} has {load.seconds / HOUR:g} hours, in steps of {STEP:g} s")
    changes = tuple(at for at in load.changes if at < steps * STEP)
    return replace(load, rates=load.rates[:steps], changes=changes)


def _sized(
    load: Load, options: argparse.Namespace, spec: ClusterSpec, described: plants.Described, notes: list[str]
) -> Load:
    """The load, scaled to its peak, with the rate that one worker processes."""
    workers = max(spec.limits.minimum, round(PEAK_SHARE * spec.limits.maximum), 1)
    peak = options.peak
    gamma = described.plant.gamma
    given = options.rate_per_worker or described.rate_per_worker
    rate = given or spec.capacity.per_replica
    if given is None and rate is not None:
        notes.append(
            f"One worker processes {format_number(rate)} records/s: capacity.per_replica of the configuration."
        )
    if peak is None and options.load in (*SYNTHETIC, *RECORDED):
        # The rates of these loads are not the rates of a real cluster.
        rate = rate or DEFAULT_RATE
        peak = rate * work(workers, gamma)
        notes.append(f"The load is scaled so that {workers} workers at 100 % process its peak; change it with --peak.")
    if peak is not None:
        load = load.scaled(peak)
    if rate is None:
        if not load.peak:
            raise LoadError(f"{load.name}: is 0 throughout: set --rate-per-worker")
        rate = load.peak / work(workers, gamma)
        notes.append(
            f"The rate of a worker is assumed, so that {workers} workers at 100 % process the peak; change it with "
            "--rate-per-worker."
        )
    return replace(load, rate_per_worker=rate)


def plant_metrics(
    path: Path, cluster: Cluster, given: Mapping[str, str], shown: Sequence[str] = METRICS
) -> dict[str, str]:
    """Map each metric of the cluster to one of the plant's metrics (`shown`).

    A metric is recognized by its own name, or by what it reads from its source, as in
    `backlog: {source: kafka, metric: lag}`. `given` is the mapping by the user.

    Raises:
        ConfigurationError: a metric is unknown, or it is not clear which one it is.
    """
    problems = []
    for name in given:
        if name not in cluster.metrics:
            known = ", ".join(cluster.metrics) or "none"
            problems.append(f"--metric {name}: cluster {cluster.spec.name} has no such metric, it has {known}")
    found = {}
    for name, metric in cluster.metrics.items():
        candidates = [given[name]] if name in given else [name, getattr(metric.query, "metric", None)]
        match = next((candidate for candidate in candidates if candidate in shown), None)
        if match is None:
            where = (
                f"--metric {name}={given[name]}" if name in given else f"{path}: metric {name} of {cluster.spec.name}"
            )
            problems.append(
                f"{where}: the simulated cluster has {', '.join(shown)}; set which of them it is, like "
                f"--metric {name}={shown[0]}"
            )
        else:
            found[name] = match
    if problems:
        raise wrong(*problems)
    return found


def simulate(prepared: Setup, keep: Callable[[Record], None] | None) -> tuple[Run, list[Request]]:
    """Run the simulation. Returns what happened, and the changes of size that were requested.

    `keep` receives the record of each decision.

    Raises:
        ConfigurationError: the policies and the simulated cluster do not fit.
    """
    ticks = len(prepared.load.rates) * STEP / prepared.spec.interval.total_seconds()
    requests: list[Request] = []
    decisions = 0
    with progress(f"simulating {prepared.load.name}", ticks) as advanced:

        def record(each: Record) -> None:
            nonlocal decisions
            decisions += 1
            if decisions % 100 == 0:
                advanced(decisions)
            if each.failed and requests:
                requests[-1].error = each.failed
            if each.decision.rescale:
                requests.append(Request(each))
            if keep is not None:
                keep(each)

        return _simulated(prepared, prepared.spec, record), requests


def simulate_static(prepared: Setup) -> Run:
    """Run the same load on a cluster that always has the static size."""
    limits = Limits(prepared.static, prepared.static)
    return _simulated(prepared, replace(prepared.spec, limits=limits, policies=(), combine=None), None)


def _simulated(prepared: Setup, spec: ClusterSpec, record: Callable[[Record], None] | None) -> Run:
    def decide(_: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        return step(spec, state, visible_metrics(spec, prepared.names, observation))

    # Faults apply to the plant's metrics under the plant's names.
    shown = replace(spec, metrics=METRICS)
    try:
        return simulated(
            shown, prepared.plant, prepared.load, prepared.seed, record=record, decide=decide, faults=prepared.faults
        )
    except ValueError as error:
        raise wrong(str(error)) from error


@contextmanager
def recording(directory: Path) -> Iterator[Callable[[Record], None]]:
    """Open a new or empty directory for records; each record goes to the file of its hour.

    Yields:
        a function that writes a record.

    Raises:
        ConfigurationError: the directory is not empty.
        AutoscalerError: the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise wrong(f"{directory}: is not empty; its records would be mixed with those of this run")
        with ExitStack() as opened:
            files: dict[str, BinaryIO] = {}

            def keep(record: Record) -> None:
                hour = file_name(record.decision.at)
                if hour not in files:
                    files[hour] = opened.enter_context((directory / hour).open("wb"))
                files[hour].write(dump_record(record) + b"\n")

            yield keep
    except OSError as error:
        raise AutoscalerError(f"{directory}: cannot be written: {error.strerror}") from error


def least_cost(prepared: Setup) -> float | None:
    """The optimum in worker-hours; None when not even the maximum size keeps the objective.

    Raises:
        AutoscalerError: numpy is not installed.
    """
    try:
        from autoscaler.simulation import optimum  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        raise AutoscalerError(f"--optimum: {error}") from error
    plant = prepared.plant
    if isinstance(plant.scheduler, SparkSettings):
        # Spark adds and removes workers without stopping the job.
        plant = replace(plant, restart_up=_NO_STALL, restart_down=_NO_STALL, cold=1.0)
    try:
        return optimum.optimum(prepared.load, plant, prepared.spec.limits.maximum)
    except optimum.OptimumError:
        return None


def describe_stalls(plant: PlantSpec) -> str:
    """Describe in words how changes of size affect the job."""
    if isinstance(plant.scheduler, SparkSettings):
        return "the query continues while workers come and go"
    down = plant.restart_down + plant.heartbeat
    stalls = f"the job stops for {plant.restart_up:g} s when workers are added, {down:g} s when they are removed"
    return stalls if plant.scheduler is None else f"{stalls}; when it stops follows the rules of Flink's scheduler"
