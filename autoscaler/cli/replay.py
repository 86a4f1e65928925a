"""`autoscaler replay`: a configuration decides again about what was recorded."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from autoscaler.cli import configuration
from autoscaler.cli import options as typed
from autoscaler.cli.configuration import known, wrong
from autoscaler.cli.options import Commands
from autoscaler.cli.output import complain, print_json, progress, say, table
from autoscaler.cli.spark_options import needed
from autoscaler.cli.tables import FEW, omitted
from autoscaler.config.model import Config
from autoscaler.core.explain import count_of, explain, format_number, format_span
from autoscaler.ports import Record
from autoscaler.trace.format import TraceError, files, read
from autoscaler.trace.replay import Comparison, Difference, Replay

OK = 0

DATASET = "autoscaler-history.json"
"""What a directory has that is a dataset: `autoscaler history import` made it."""

OPEN = (
    "The sizes seen are those recorded: nothing follows from a decision that differs, and the next one is made again "
    "in the situation that really was. What another size would have led to, `autoscaler simulate` shows."
)


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("replay")
    _add_arguments(parser)
    parser.set_defaults(command=run)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `replay` to a parser."""
    parser.description = (
        "Decide again, by a configuration, about what a daemon or `simulate` has recorded, and tell what would have "
        "been different, and why. The sizes seen are those recorded: what another size would have led to, only "
        "`simulate` can tell. Nothing is connected to."
    )
    add = parser.add_argument
    add(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a history file (.jsonl, .jsonl.gz), or a directory of them: history/ of a daemon's directory; or a "
        "dataset that `autoscaler history` made (extra spark)",
    )
    add("config", type=Path, metavar="CONFIG", help="the configuration file (YAML)")
    add("--cluster", metavar="NAME", help="only this cluster")
    add(
        "--from",
        dest="since",
        type=typed.moment,
        metavar="TIME",
        help="compare from then on, like 2026-01-31T17:05:00Z",
    )
    add("--to", dest="until", type=typed.moment, metavar="TIME", help="compare up to TIME")
    typed.add_listing(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    config = configuration.load(options.config)
    if options.cluster is not None and len(config.clusters) > 1:
        known(options.cluster, config.clusters, f"cluster of {config.path}")
    unread: list[str] = []
    try:
        replays, left_out = _replayed(options, config, unread)
    except TraceError as error:
        raise wrong(str(error)) from error
    if not replays:
        raise wrong(_nothing(options, config, unread, left_out))
    found = {name: one.result() for name, one in replays.items()}
    if not any(one.decisions for one in found.values()):
        raise wrong(f"{options.trace}: has no decision in the time asked for")
    if options.json:
        print_json(
            {
                "clusters": {name: _json(one, explained=options.explain) for name, one in found.items()},
                "left_out": left_out,
                "unreadable": unread,
            }
        )
        return OK
    for position, one in enumerate(found.values()):
        say(*([""] if position else []))
        _show(one, options)
    say("", OPEN)
    _complain(unread, left_out, config)
    return OK


def _replayed(
    options: argparse.Namespace, config: Config, unread: list[str]
) -> tuple[dict[str, Replay], dict[str, int]]:
    """Every cluster's replay, and how many records there were of those that the configuration does not have."""
    replays: dict[str, Replay] = {}
    left_out: dict[str, int] = {}
    imported = (options.trace / DATASET).is_file()
    if imported:
        records, left_out = _dataset(options, config)
    else:
        records = _records(options, unread)
    for record in records:
        name = record.decision.cluster
        if options.cluster is not None and name != options.cluster:
            left_out[name] = left_out.get(name, 0) + 1
            continue
        replay = replays.get(name)
        if replay is None:
            cluster = config.clusters.get(name)
            if cluster is None and len(config.clusters) == 1 and options.cluster == name:
                # Named on the command line: it is meant, whatever the configuration calls it.
                cluster = next(iter(config.clusters.values()))
            if cluster is None:
                left_out[name] = left_out.get(name, 0) + 1
                continue
            spec = replace(cluster.spec, name=name)
            if imported and spec.engine and _unwatched(record):
                # Else nothing would ever be lowered, as where an engine that is watched cannot be asked.
                spec = replace(spec, engine=False)
                complain(f"{name}: nothing is known of its engine; a rescale is followed by sizes and metrics alone.")
            replay = replays[name] = Replay(spec, options.since, options.until)
        replay.add(record)
    return replays, left_out


def _unwatched(record: Record) -> bool:
    """Whether nobody looked at the engine, as where the history was imported from metrics."""
    seen = record.observation
    return seen.engine is None and "engine" not in seen.missing


def _dataset(options: argparse.Namespace, config: Config) -> tuple[Iterable[Record], dict[str, int]]:
    """The records of the clusters that are meant, and how many there are of the others, which are not read."""
    needed("replay of a dataset")
    from autoscaler.history import read as dataset  # noqa: PLC0415 - only a dataset needs what it needs

    meant = set(config.clusters) if options.cluster is None else {options.cluster}
    left_out = {name: count for name, count in dataset.clusters(options.trace).items() if name not in meant}

    def records() -> Iterable[Record]:
        with progress("replaying", dataset.days(options.trace)) as advanced:
            yield from dataset.read(options.trace, clusters=meant, until=options.until, advanced=advanced)

    return records(), left_out


def _records(options: argparse.Namespace, unread: list[str]) -> Iterable[Record]:
    here = files(options.trace)
    with progress("replaying", len(here)) as advanced:
        for done, file in enumerate(here, 1):
            yield from read(file, unread.append)
            advanced(done)


def _nothing(options: argparse.Namespace, config: Config, unread: list[str], left_out: Mapping[str, int]) -> str:
    if not left_out:
        cut = f"; {unread[0]}" if unread else ""
        return f"{options.trace}: has no record that can be read{cut}"
    there, ours = ", ".join(sorted(left_out)), ", ".join(sorted(config.clusters))
    if options.cluster is not None:
        return f"{options.trace}: has no record of cluster {options.cluster!r}, but of {there}"
    hint = f"; say --cluster {next(iter(left_out))} if {ours} is the same" if len(config.clusters) == 1 else ""
    return f"{options.trace}: has records of {there}, and {config.path} the clusters {ours}{hint}"


def _complain(unread: list[str], left_out: Mapping[str, int], config: Config) -> None:
    if left_out:
        names = ", ".join(f"{name} ({count_of(count, 'record')})" for name, count in sorted(left_out.items()))
        complain(f"Not compared: {names}; {config.path} has {', '.join(sorted(config.clusters))}.")
    if unread:
        complain(
            f"{count_of(len(unread), 'line')} could not be read and {'is' if len(unread) == 1 else 'are'} left out:"
        )
        complain(*(f"  {line}" for line in unread[:FEW]), *omitted(unread[:FEW], unread, "lines"))


def _show(found: Comparison, options: argparse.Namespace) -> None:
    if not found.decisions or found.first is None or found.last is None:
        say(f"{found.cluster}: no decision in the time asked for.")
        return
    different = found.decisions - found.equal
    say(
        f"{found.cluster}: {count_of(found.decisions, 'decision')} from {_time(found.first)} to {_time(found.last)} "
        f"({format_span((found.last - found.first).total_seconds())}).",
        f"  {found.equal} the same, {different} different ({different / found.decisions:.1%})"
        + (
            f", in {len(found.differences)} {'stretch' if len(found.differences) == 1 else 'stretches'}"
            if different
            else ""
        ),
        f"  replica-hours decided: {format_number(found.recorded_hours)} as recorded, "
        f"{format_number(found.hours)} again",
        f"  changes of size: {found.rescales} recorded, {found.agreed} of them again, {found.others} at other times or "
        "to other sizes",
    )
    if found.missing:
        say(
            f"  The trace never has {', '.join(found.missing)}, which the configuration wants: policies that read it "
            "have nothing to say, and nothing is lowered."
        )
    if not found.differences:
        return
    shown = found.differences if options.all or options.explain else _greatest(found.differences)
    say("")
    table(
        ("from", "until", "recorded", "again", "replica-hours", "what differs first", "recorded", "again"),
        [
            (
                _time(one.record.decision.at),
                _until(one.record.decision.at, one.until),
                _sizes(one.recorded),
                _sizes(one.again),
                f"{one.hours:+.2f}",
                "-" if one.why is None else one.why.stage,
                "-" if one.why is None else one.why.recorded,
                "-" if one.why is None else one.why.again,
            )
            for one in shown
        ],
    )
    say(*omitted(shown, found.differences, "stretches, all smaller"))
    if options.explain:
        for one in shown:
            record = one.record
            say("", "", "Recorded:", explain(record.observation, record.decision, dry_run=record.dry_run))
            say("", "Again:", explain(record.observation, one.decision, dry_run=True))


def _greatest(differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
    """Those that matter most, in order of time."""
    kept = sorted(range(len(differences)), key=lambda number: -abs(differences[number].hours))[:FEW]
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
        "again": list(one.again),
        "replica_hours": one.hours,
        "why": None
        if one.why is None
        else {"stage": one.why.stage, "recorded": one.why.recorded, "again": one.why.again},
    }
    if explained:
        found["explanations"] = {
            "recorded": explain(record.observation, record.decision, dry_run=record.dry_run),
            "again": explain(record.observation, one.decision, dry_run=True),
        }
    return found
