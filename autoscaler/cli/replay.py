"""`autoscaler replay`: decides again about recorded observations, with another configuration."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoscaler.cli import configuration
from autoscaler.cli import options as arguments
from autoscaler.cli.configuration import known, wrong
from autoscaler.cli.output import print_error, print_json, print_lines, progress, table
from autoscaler.cli.spark_options import require_pyspark
from autoscaler.cli.tables import DEFAULT_ROWS, omitted_rows
from autoscaler.core.explain import explain
from autoscaler.core.wording import agree, count_of, format_number, format_span

if TYPE_CHECKING:
    from autoscaler.config.model import Config
    from autoscaler.ports import Record
    from autoscaler.trace.replay import Comparison, Difference, Replay

# ruff: noqa: PLC0415 - what the command needs is imported when it runs

DATASET = "autoscaler-history.json"
"""The file that marks a directory as a dataset of `autoscaler history import`."""

CAVEAT = (
    "Every decision sees the recorded sizes: a different decision has no effect on the next one. "
    "`autoscaler simulate` shows what another size would have led to."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        "Decide again, with a configuration, about what a daemon or `simulate` has recorded, and report which "
        "decisions would have been different, and why. Every decision sees the recorded sizes; only `simulate` can "
        "show what another size would have led to. This command connects to nothing."
    )
    add = parser.add_argument
    add(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a history file (.jsonl, .jsonl.gz), or a directory of them: history/ of a daemon's directory; or a "
        "dataset of `autoscaler history` (extra spark)",
    )
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add("--cluster", metavar="NAME", help="only this cluster")
    moment = arguments.moment
    add("--from", dest="since", type=moment, metavar="TIME", help="compare from this time, like 2026-01-31T17:05:00Z")
    add("--to", dest="until", type=moment, metavar="TIME", help="compare up to this time")
    arguments.add_open(parser)
    arguments.add_listing(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    from autoscaler.trace.format import TraceError

    config = configuration.load(options.config)
    if options.cluster is not None and len(config.clusters) > 1:
        known(options.cluster, config.clusters, f"cluster of {config.path}")
    unreadable, damaged = list[str](), list[str]()
    decided: dict[str, list[Record]] = {}
    try:
        replays, left_out = _replayed(options, config, unreadable, damaged, decided if options.open else None)
    except TraceError as error:
        raise wrong(str(error)) from error
    if not replays:
        raise wrong(_nothing_to_compare(options, config, [*damaged, *unreadable], left_out))
    found = {name: replay.result() for name, replay in replays.items()}
    if not any(comparison.decisions for comparison in found.values()):
        raise wrong(f"{options.trace}: has no decision between --from and --to", *damaged)
    if options.open:
        print_error(f"page: {_open_page(config, replays, decided)}")
    if options.json:
        print_json(
            {
                "clusters": {name: _json(comparison, explained=options.explain) for name, comparison in found.items()},
                "left_out": left_out,
                "unreadable": [*unreadable, *damaged],
            }
        )
        return 0
    for position, comparison in enumerate(found.values()):
        print_lines(*([""] if position else []))
        _show(comparison, options)
    print_lines("", CAVEAT)
    _report_left_out(unreadable, left_out, config)
    if damaged:
        print_error(*damaged)
    return 0


def _open_page(config: Config, replays: Mapping[str, Replay], decided: Mapping[str, Sequence[Record]]) -> Path:
    from autoscaler.daemon.run_page import RecordedRun, open_page

    only = next(iter(config.clusters.values()))
    runs = [
        RecordedRun(replace(config.clusters.get(name, only), spec=replay.spec), decided.get(name, ()), replay.state)
        for name, replay in replays.items()
    ]
    return open_page(runs)


def _replayed(
    options: argparse.Namespace,
    config: Config,
    unreadable: list[str],
    damaged: list[str],
    decided: dict[str, list[Record]] | None,
) -> tuple[dict[str, Replay], dict[str, int]]:
    """Replay each cluster. Returns the replays, and the number of records of each cluster that was left out.

    `decided` receives the new decisions; None: they are not needed.
    """
    from autoscaler.ports import Record
    from autoscaler.trace.replay import Replay

    replays: dict[str, Replay] = {}
    left_out: dict[str, int] = {}
    imported = (options.trace / DATASET).is_file()
    if imported:
        records, left_out = _dataset(options, config)
    else:
        records = _records(options, unreadable, damaged)
    for record in records:
        name = record.decision.cluster
        if options.cluster is not None and name != options.cluster:
            left_out[name] = left_out.get(name, 0) + 1
            continue
        replay = replays.get(name)
        if replay is None:
            cluster = config.clusters.get(name)
            if cluster is None and len(config.clusters) == 1 and options.cluster == name:
                # The user has named it: the configuration may use another name.
                cluster = next(iter(config.clusters.values()))
            if cluster is None:
                left_out[name] = left_out.get(name, 0) + 1
                continue
            spec = replace(cluster.spec, name=name)
            if imported and spec.engine and _unwatched(record):
                # An engine that is configured but never recorded would block every scale-down.
                spec = replace(spec, engine=False)
                print_error(f"{name}: the history has no engine; rescales are tracked by sizes and metrics alone.")
            replay = replays[name] = Replay(spec, options.since, options.until)
        decision = replay.add(record)
        if decided is not None and decision is not None:
            decided.setdefault(name, []).append(Record(record.observation, decision, dry_run=True))
    return replays, left_out


def _unwatched(record: Record) -> bool:
    """Whether the engine was not recorded at all, as in a history imported from metrics."""
    seen = record.observation
    return seen.engine is None and "engine" not in seen.missing


def _dataset(options: argparse.Namespace, config: Config) -> tuple[Iterable[Record], dict[str, int]]:
    """The records of the clusters to compare, and the number of records of the others, which are not read."""
    require_pyspark("replay of a dataset")
    from autoscaler.history import read as dataset

    wanted = set(config.clusters) if options.cluster is None else {options.cluster}
    left_out = {name: count for name, count in dataset.clusters(options.trace).items() if name not in wanted}

    def records() -> Iterable[Record]:
        with progress("replaying", dataset.days(options.trace)) as advanced:
            yield from dataset.read(options.trace, clusters=wanted, until=options.until, advanced=advanced)

    return records(), left_out


def _records(options: argparse.Namespace, unreadable: list[str], damaged: list[str]) -> Iterable[Record]:
    from autoscaler.trace.format import TraceError, files, read

    here = files(options.trace)
    with progress("replaying", len(here)) as advanced:
        for done, file in enumerate(here, 1):
            try:
                yield from read(file, unreadable.append)
            except TraceError as error:
                damaged.append(f"{error}; the rest of this file is left out")
            advanced(done)


def _nothing_to_compare(
    options: argparse.Namespace, config: Config, unreadable: list[str], left_out: Mapping[str, int]
) -> str:
    if not left_out:
        cut = f"; {unreadable[0]}" if unreadable else ""
        return f"{options.trace}: has no readable record{cut}"
    there, ours = ", ".join(sorted(left_out)), ", ".join(sorted(config.clusters))
    if options.cluster is not None:
        return f"{options.trace}: has no record of cluster {options.cluster!r}; it has records of {there}"
    hint = f"; use --cluster {next(iter(left_out))} if {ours} is the same cluster" if len(config.clusters) == 1 else ""
    return f"{options.trace}: has records of {there}, but {config.path} has the clusters {ours}{hint}"


def _report_left_out(unreadable: list[str], left_out: Mapping[str, int], config: Config) -> None:
    if left_out:
        names = ", ".join(f"{name} ({count_of(count, 'record')})" for name, count in sorted(left_out.items()))
        print_error(f"Not compared: {names}; {config.path} has {', '.join(sorted(config.clusters))}.")
    if unreadable:
        print_error(
            f"{count_of(len(unreadable), 'line')} could not be read and {agree(len(unreadable), 'is', 'are')} left out:"
        )
        print_error(
            *(f"  {line}" for line in unreadable[:DEFAULT_ROWS]),
            *omitted_rows(unreadable[:DEFAULT_ROWS], unreadable, "lines"),
        )


def _show(found: Comparison, options: argparse.Namespace) -> None:
    if not found.decisions or found.first is None or found.last is None:
        print_lines(f"{found.cluster}: no decision between --from and --to.")
        return
    different = found.decisions - found.equal
    print_lines(
        f"{found.cluster}: {count_of(found.decisions, 'decision')} from {_time(found.first)} to {_time(found.last)} "
        f"({format_span((found.last - found.first).total_seconds())}).",
        f"  {found.equal} the same, {different} different ({different / found.decisions:.1%})"
        + (f", in {count_of(len(found.differences), 'period')}" if different else ""),
        f"  replica-hours decided: {format_number(found.recorded_hours)} as recorded, "
        f"{format_number(found.hours)} in the replay",
        f"  changes of size: {found.rescales} recorded, {found.agreed} of them replayed, {found.others} at other times "
        "or to other sizes",
    )
    if found.missing:
        print_lines(
            f"  The trace never has {', '.join(found.missing)}, which the configuration uses: policies that need it "
            "abstain, and the size is never lowered."
        )
    if not found.differences:
        return
    shown = found.differences if options.all or options.explain else _greatest(found.differences)
    print_lines("")
    table(
        ("from", "until", "recorded", "replayed", "replica-hours", "first difference", "recorded", "replayed"),
        [
            (
                _time(one.record.decision.at),
                _until(one.record.decision.at, one.until),
                _sizes(one.recorded),
                _sizes(one.replayed),
                f"{one.hours:+.2f}",
                "-" if one.first is None else one.first.stage,
                "-" if one.first is None else one.first.recorded,
                "-" if one.first is None else one.first.replayed,
            )
            for one in shown
        ],
    )
    print_lines(*omitted_rows(shown, found.differences, "periods, all smaller"))
    if options.explain:
        for one in shown:
            record = one.record
            print_lines("", "", "Recorded:", explain(record.observation, record.decision, dry_run=record.dry_run))
            print_lines("", "Replayed:", explain(record.observation, one.decision, dry_run=True))


def _greatest(differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
    """The differences with the most replica-hours, in order of time."""
    kept = sorted(range(len(differences)), key=lambda number: -abs(differences[number].hours))[:DEFAULT_ROWS]
    return tuple(differences[number] for number in sorted(kept))


def _sizes(sizes: tuple[int, int]) -> str:
    least, most = sizes
    return f"{least}" if least == most else f"{least}-{most}"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _until(begin: datetime, end: datetime) -> str:
    return f"{end:%H:%M:%S}" if end.date() == begin.date() else _time(end)


def _json(found: Comparison, *, explained: bool) -> dict[str, Any]:
    return {
        "decisions": found.decisions,
        "equal": found.equal,
        "from": None if found.first is None else found.first.isoformat(),
        "to": None if found.last is None else found.last.isoformat(),
        "replica_hours": {"recorded": found.recorded_hours, "again": found.hours},
        "rescales": {"recorded": found.rescales, "agreed": found.agreed, "others": found.others},
        "missing": list(found.missing),
        "differences": [_difference(one, explained=explained) for one in found.differences],
    }


def _difference(one: Difference, *, explained: bool) -> dict[str, Any]:
    record = one.record
    found: dict[str, Any] = {
        "from": record.decision.at.isoformat(),
        "until": one.until.isoformat(),
        "decisions": one.decisions,
        "recorded": list(one.recorded),
        "again": list(one.replayed),
        "replica_hours": one.hours,
        "why": None
        if one.first is None
        else {"stage": one.first.stage, "recorded": one.first.recorded, "again": one.first.replayed},
    }
    if explained:
        found["explanations"] = {
            "recorded": explain(record.observation, record.decision, dry_run=record.dry_run),
            "again": explain(record.observation, one.decision, dry_run=True),
        }
    return found
