"""`autoscaler simulate`: a configuration tried on a simulated cluster."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from autoscaler.cli import configuration, plants
from autoscaler.cli import options as typed
from autoscaler.cli import simulate_plot as plot
from autoscaler.cli.configuration import wrong
from autoscaler.cli.options import Commands
from autoscaler.cli.output import print_json, progress, say, table
from autoscaler.cli.plants import SHOWN
from autoscaler.cli.recorder import recording
from autoscaler.cli.tables import FEW, clock, omitted, short
from autoscaler.config.model import Cluster
from autoscaler.core.durations import format_duration
from autoscaler.core.explain import explain, format_number, format_span
from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Limits, Observation
from autoscaler.core.step import step
from autoscaler.plugins import guess
from autoscaler.ports import AutoscalerError, Record
from autoscaler.schedulers.spark import SparkSettings
from autoscaler.simulation import faults as wrongs
from autoscaler.simulation.faults import ENGINE, NAMED, TARGET
from autoscaler.simulation.loads import HOUR, MADE, RECORDED, Load, LoadError, from_csv, named
from autoscaler.simulation.loop import Run
from autoscaler.simulation.loop import run as simulated
from autoscaler.simulation.plant import OTHERS, PLANTS, START, STEP, PlantSpec, work
from autoscaler.simulation.scoring import Score, needed
from autoscaler.simulation.trial import SPARE, seen

OK = 0

SHARE = 2 / 3
"""Where nobody says what a worker processes, the load's peak needs this share of the greatest size, at 100 %..."""

ROUND = 1000.0
"""... and where nobody says how great the peak is either, a worker processes so many records/s."""

_NOTHING = 1e-9  # seconds


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated.

    Attributes:
        spec: the cluster's, its interval a multiple of the plant's step.
        plant, load, faults: as in `replay.simulate.run`.
        wrong: the faults as sentences for people, by the cluster's own names of its metrics.
        seed: of all that is drawn.
        static: the size that is compared with.
        names: the plant's name of each metric of the cluster.
        notes: what the reader should know of how it came about.
    """

    spec: ClusterSpec
    plant: PlantSpec
    load: Load
    faults: wrongs.Faults
    wrong: tuple[str, ...]
    seed: int
    static: int
    names: dict[str, str]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Asked:
    """A change of size that was asked for, and why the call failed, if it did."""

    record: Record
    failed: str = ""


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("simulate")
    _add_arguments(parser)
    parser.set_defaults(command=run)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Have a cluster of a configuration steer a simulated one under a load, and tell what came of it: cost, "
        "delays, rescales and why. Nothing is connected to. Equal arguments give equal results. docs/simulation.md "
        "has an example."
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add(
        "--load",
        required=True,
        metavar="CSV|NAME",
        help=f"what is offered: a file with lines t_seconds,value (records/s), or one of {', '.join(MADE)} (made), or "
        f"of {', '.join(RECORDED)} (recorded, with --traces)",
    )
    add(
        "--plant",
        default="k8s",
        metavar="NAME|FILE",
        help=f"the simulated cluster: {', '.join((*PLANTS, *OTHERS))}, or a YAML file with its parameters (default: "
        "k8s)",
    )
    add("--cluster", metavar="NAME", help="which cluster of the configuration, where it has several")
    add("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default: 1)")
    add("--hours", type=typed.above, metavar="H", help="only so many hours from the beginning of the load")
    add(
        "--peak", type=typed.above, metavar="RATE", help="stretch the load so that its greatest rate is this, records/s"
    )
    add(
        "--one",
        type=typed.above,
        metavar="RATE",
        help="records/s that one worker processes (default: `one` of the plant's file, capacity.per_replica of the "
        "cluster; else so many that two thirds of its max process the peak)",
    )
    add(
        "--faults",
        metavar="LIST",
        help=f"what goes wrong, like missing,nan@lag:2m,crash:45m; there are {', '.join(NAMED)}, and all",
    )
    add(
        "--metric",
        action="append",
        type=typed.pair,
        default=[],
        metavar="NAME=SHOWN",
        help="what a metric of the configuration is of what the simulated cluster shows, where that is not clear",
    )
    add("--optimum", action="store_true", help="also find the least cost possible (extra simulate; takes a while)")
    add(
        "--traces",
        type=Path,
        default=os.environ.get(typed.TRACES),
        metavar="DIR",
        help=f"where the recorded loads are (default: ${typed.TRACES})",
    )
    add("--record", type=Path, metavar="DIR", help="write what happened there as a daemon's history, for `replay`")
    add("--plot", type=Path, metavar="FILE", help="draw a timeline into this PNG file (extra plot)")
    typed.add_listing(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    prepared = setup(options)
    if options.plot is not None:
        plot.check(options.plot)
    least = _optimum(prepared) if options.optimum else None
    rescales: list[Asked] = []
    if options.record is None:
        done = _run(prepared, rescales, None)
    else:
        with recording(options.record) as keep:
            done = _run(prepared, rescales, keep)
    static = _static(prepared)
    if options.json:
        print_json(_json(prepared, done, static, rescales, least, options))
    else:
        _show(prepared, done, static, rescales, least, options)
    if options.plot is not None:
        plot.draw(prepared, done, [asked.record.decision for asked in rescales], options.plot)
    return OK


def setup(options: argparse.Namespace) -> Setup:
    """Make of the options what is simulated.

    Raises:
        ConfigurationError: they, or a file that they name, make no sense.
    """
    read = configuration.load(options.config)
    cluster = configuration.cluster(read, options.cluster)
    described = plants.plant(options.plant)
    plant = described.plant
    spec = cluster.spec
    notes: list[str] = []
    interval = timedelta(seconds=STEP * max(1, math.ceil(spec.interval.total_seconds() / STEP)))
    if interval != spec.interval:
        notes.append(
            f"The interval is {format_duration(interval)} here, not {format_duration(spec.interval)}: the simulation "
            f"goes by steps of {STEP:g} s."
        )
        spec = replace(spec, interval=interval)
    if plant.partitions is None and spec.partitions is not None:
        notes.append(f"The source has {spec.partitions} partitions: partitions of the configuration.")
        plant = replace(plant, partitions=spec.partitions)
    known = {name: shown for name, shown in described.metrics.items() if name in cluster.metrics}
    names = shown_as(options.config, cluster, known | dict(options.metric))
    try:
        faults = wrongs.NONE if options.faults is None else wrongs.parse(options.faults)
        _check(faults, spec, names)
        load = _cut(_sized(_load(options), options, spec, described, notes), options.hours)
    except (LoadError, wrongs.FaultError) as error:
        raise wrong(*str(error).splitlines()) from error
    peak = needed([load.peak * STEP], load.per_worker(plant.gamma), plant.gamma)[0]
    if peak > spec.limits.maximum:
        notes.append(f"The peak needs {peak} workers, and at most {spec.limits.maximum} are allowed.")
    told = tuple(wrongs.describe(faults))
    faults = replace(
        faults, spells=tuple([replace(spell, name=names.get(spell.name, spell.name)) for spell in faults.spells])
    )
    static = max(1, math.ceil(SPARE * peak))
    return Setup(spec, plant, load, faults, told, options.seed, static, names, tuple(notes))


def _check(faults: wrongs.Faults, spec: ClusterSpec, names: Mapping[str, str]) -> None:
    """Refuse a fault of what the cluster does not look at: it would do nothing."""
    known = (*names, TARGET, *((ENGINE,) if spec.engine else ()))
    problems = [
        f"{spell.wrong}@{spell.name}: is nothing that cluster {spec.name} looks at{guess(spell.name, known)}; it has "
        f"{', '.join(known)}"
        for spell in faults.spells
        if spell.name and spell.name not in known
    ]
    if problems:
        raise wrongs.FaultError("\n".join(problems))


def _load(options: argparse.Namespace) -> Load:
    text = options.load
    if text in MADE or text in RECORDED:
        return named(text, options.seed, None if options.traces is None else Path(options.traces))
    path = Path(text)
    if not path.exists():
        names = (*MADE, *RECORDED)
        raise LoadError(
            f"--load {text}: is no load and no file, expected one of {', '.join(names)}{guess(text, names)}"
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
    """The load with its peak, and what one worker processes of it."""
    workers = max(spec.limits.minimum, round(SHARE * spec.limits.maximum), 1)
    peak = options.peak
    gamma = described.plant.gamma
    said = options.one or described.one
    one = said or spec.capacity.per_replica
    if said is None and one is not None:
        notes.append(f"One worker processes {format_number(one)} records/s: capacity.per_replica of the configuration.")
    if peak is None and options.load in (*MADE, *RECORDED):
        # Their figures are of nobody's cluster.
        one = one or ROUND
        peak = one * work(workers, gamma)
        notes.append(
            f"The load is stretched so that {workers} workers at 100 % process its peak: --peak says otherwise."
        )
    if peak is not None:
        load = load.scaled(peak)
    if one is None:
        if not load.peak:
            raise LoadError(f"{load.name}: is 0 throughout: say with --one what a worker processes")
        one = load.peak / work(workers, gamma)
        notes.append(
            f"One worker processes so much that {workers} of them at 100 % process the peak: --one says otherwise."
        )
    return replace(load, one=one)


def shown_as(path: Path, cluster: Cluster, given: Mapping[str, str]) -> dict[str, str]:
    """What each metric of the cluster is of what the plant shows.

    By its own name, or by what it asks its source for, as in `backlog: {source: kafka, metric: lag}`.
    """
    problems = []
    for name in given:
        if name not in cluster.metrics:
            known = ", ".join(cluster.metrics) or "none"
            problems.append(f"--metric {name}: cluster {cluster.spec.name} has no such metric, it has {known}")
    found = {}
    for name, metric in cluster.metrics.items():
        candidates = [given[name]] if name in given else [name, getattr(metric.query, "metric", None)]
        shown = next((candidate for candidate in candidates if candidate in SHOWN), None)
        if shown is None:
            asked = (
                f"--metric {name}={given[name]}" if name in given else f"{path}: metric {name} of {cluster.spec.name}"
            )
            problems.append(
                f"{asked}: the simulated cluster shows {', '.join(SHOWN)}: say which of them it is, like "
                f"--metric {name}={SHOWN[0]}"
            )
        else:
            found[name] = shown
    if problems:
        raise wrong(*problems)
    return found


def _run(prepared: Setup, rescales: list[Asked], keep: Callable[[Record], None] | None) -> Run:
    ticks = len(prepared.load.rates) * STEP / prepared.spec.interval.total_seconds()
    made = 0
    with progress(f"simulating {prepared.load.name}", ticks) as advanced:

        def record(one: Record) -> None:
            nonlocal made
            made += 1
            if made % 100 == 0:
                advanced(made)
            if one.failed and rescales:
                rescales[-1].failed = one.failed
            if one.decision.rescale:
                rescales.append(Asked(one))
            if keep is not None:
                keep(one)

        return _simulated(prepared, prepared.spec, record)


def _static(prepared: Setup) -> Run:
    size = prepared.static
    spec = replace(prepared.spec, limits=Limits(size, size), policies=(), combine=None)
    return _simulated(prepared, spec, None)


def _simulated(prepared: Setup, spec: ClusterSpec, record: Callable[[Record], None] | None) -> Run:
    def decide(_: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        return step(spec, state, seen(spec, prepared.names, observation))

    # What goes wrong goes wrong with what the plant shows, by its own names.
    shown = replace(spec, metrics=SHOWN)
    try:
        return simulated(
            shown, prepared.plant, prepared.load, prepared.seed, record=record, decide=decide, faults=prepared.faults
        )
    except ValueError as error:
        raise wrong(str(error)) from error


def _optimum(prepared: Setup) -> float | None:
    try:
        from autoscaler.simulation import optimum  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        raise AutoscalerError(f"--optimum: {error}") from error
    plant = prepared.plant
    if isinstance(plant.scheduler, SparkSettings):
        # Workers come and go without a stop.
        plant = replace(plant, restart_up=_NOTHING, restart_down=_NOTHING, cold=1.0)
    try:
        return optimum.optimum(prepared.load, plant, prepared.spec.limits.maximum)
    except optimum.OptimumError:
        return None


# What is printed


def _show(
    prepared: Setup,
    done: Run,
    static: Run,
    rescales: list[Asked],
    least: float | None,
    options: argparse.Namespace,
) -> None:
    spec, plant, load = prepared.spec, prepared.plant, prepared.load
    one = load.per_worker(plant.gamma)
    say(
        f"Cluster {spec.name} of {options.config}, {spec.limits.minimum} to {spec.limits.maximum} workers, on the "
        f"simulated cluster {options.plant}:",
        f"  workers come up after {plant.startup:g} s; {_stalls(plant)}; no record should wait for over "
        f"{plant.slo:g} s.",
        f"Load {load.name}: {format_span(load.seconds)}, at most {format_number(load.peak)} records/s; one "
        "worker processes "
        f"{format_number(one)}, n of them n^{plant.gamma:g} times as much. Seed {prepared.seed}.",
        *prepared.notes,
        *(f"Fault: {text}." for text in prepared.wrong),
        "",
    )
    score, still = done.score(least), static.score(least)
    table(("", spec.name, f"always {prepared.static}"), _rows(score, still))
    if options.optimum and least is None:
        say("", f"Not even {spec.limits.maximum} workers keep the delay below {plant.slo:g} s all the time.")
    say("", *_verdict(score, still, prepared), "")
    if not rescales:
        say("The size was never changed.")
        return
    shown = rescales if options.all or options.explain else rescales[:FEW]
    say("Changes of size that were asked for:")
    table(("after", "size", "reason", "why"), [_row(asked) for asked in shown])
    say(*omitted(shown, rescales, "changes of size"))
    if options.explain:
        for asked in shown:
            say("", "", explain(asked.record.observation, asked.record.decision))


def _stalls(plant: PlantSpec) -> str:
    """What changes of size do to the job, in words."""
    if isinstance(plant.scheduler, SparkSettings):
        return "the query goes on while they come and go"
    down = plant.restart_down + plant.heartbeat
    stalls = f"the job stands still for {plant.restart_up:g} s when some come, {down:g} s when some go"
    return stalls if plant.scheduler is None else f"{stalls}, and when by the rules of Flink's scheduler"


def _row(asked: Asked) -> tuple[str, str, str, str]:
    decision = asked.record.decision
    why = short(decision)
    return (
        clock((decision.at - START).total_seconds()),
        f"{decision.current} to {decision.desired}",
        decision.reason.value,
        f"{why}; the call failed: {asked.failed}" if asked.failed else why,
    )


def _rows(score: Score, still: Score) -> list[tuple[str, ...]]:
    both = (score, still)
    rows: list[tuple[str, ...]] = [
        ("cost, worker-hours", *(format_number(each.cost) for each in both)),
        ("  to what the arrivals need at each moment", *(f"{each.to_demand:.2f}" for each in both)),
        *(
            [("  to the least possible", *(f"{each.to_optimum or 0:.2f}" for each in both))]
            if score.to_optimum is not None
            else []
        ),
        ("time with a record too old", *(f"{each.violation:.2%}" for each in both)),
        ("delay of half of the records, at most", *(f"{each.p50:.1f} s" for each in both)),
        ("delay of 99 % of the records, at most", *(f"{each.p99:.1f} s" for each in both)),
        ("age of the oldest record ever", *(f"{each.worst:.0f} s" for each in both)),
        ("changes of size", *(str(each.rescales) for each in both)),
        ("  in an hour", *(f"{each.rescales_per_hour:.2f}" for each in both)),
        ("restarts of the job", *(str(each.restarts) for each in both)),
        ("time the job stood still", *(f"{each.stopped:.2%}" for each in both)),
        ("workers missing, share of those needed", *(f"{each.under:.1%}" for each in both)),
        ("workers too many, share of those needed", *(f"{each.over:.1%}" for each in both)),
    ]
    if score.converged is not None:
        rows.append(
            ("time until the size fits after a jump", *(f"{each.converged or 0:.0f} s" for each in both)),
        )
    return rows


def _verdict(score: Score, still: Score, prepared: Setup) -> list[str]:
    """What of it matters most, as a sentence."""
    saved = 1 - score.cost / still.cost
    cost = f"{saved:.0%} less" if saved >= 0 else f"{-saved:.0%} more"
    late = f"for {score.violation:.2%} of the time the oldest record was older than {prepared.plant.slo:g} s"
    return [f"It costs {cost} than {prepared.static} workers all the time (the peak and 10 %), and {late}."]


def _json(
    prepared: Setup,
    done: Run,
    static: Run,
    rescales: list[Asked],
    least: float | None,
    options: argparse.Namespace,
) -> dict[str, Any]:
    load, plant = prepared.load, prepared.plant
    return {
        "cluster": prepared.spec.name,
        "plant": {"name": options.plant, **_limited(asdict(plant))},
        "load": {"name": load.name, "hours": load.seconds / HOUR, "peak": load.peak},
        "one": load.per_worker(plant.gamma),
        "seed": prepared.seed,
        "faults": list(prepared.wrong),
        "metrics": prepared.names,
        "notes": list(prepared.notes),
        "optimum": least,
        "score": _plain(done.score(least)),
        "static": {"size": prepared.static, "score": _plain(static.score(least))},
        "rescales": [_rescale(asked, explained=options.explain) for asked in rescales],
    }


def _limited(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Without infinities, which JSON does not know: what has no limit is null."""
    if isinstance(value, dict):
        return {key: _limited(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_limited(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _plain(score: Score) -> dict[str, Any]:
    return {
        **asdict(score),
        "rescales_per_hour": score.rescales_per_hour,
        "to_demand": score.to_demand,
        "to_optimum": score.to_optimum,
        "j": score.j,
    }


def _rescale(asked: Asked, *, explained: bool) -> dict[str, Any]:
    decision = asked.record.decision
    found = {
        "at": decision.at.isoformat(),
        "after": (decision.at - START).total_seconds(),
        "from": decision.current,
        "to": decision.desired,
        "reason": decision.reason.value,
        "why": short(decision),
        "failed": asked.failed or None,
    }
    if explained:
        found["explanation"] = explain(asked.record.observation, decision)
    return found
