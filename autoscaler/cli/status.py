"""`autoscaler status`: shows the clusters of a running daemon."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from autoscaler.cli.configuration import summarized
from autoscaler.cli.control_requests import short_control
from autoscaler.cli.daemon_client import Address, cluster_path, daemon_options, find_daemon, get
from autoscaler.cli.options import json_option
from autoscaler.cli.output import OK, WATCH_INTERVAL, print_json, print_lines, table_lines, watch
from autoscaler.core.wording import count_of, format_age, format_number, format_span
from autoscaler.ports import AutoscalerError

MAX_LISTED = 40
"""Up to this many clusters are listed without an option; for more, a summary is printed."""

MAX_TROUBLED = 10
"""The maximum number of problems in a summary."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = (
        f"Show the clusters of a running daemon. For more than {MAX_LISTED}, print a summary with the clusters that "
        "have a problem; the options list clusters."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cluster", metavar="CLUSTER", help="show one cluster, and what was learned about it")
    which.add_argument(
        "--filter",
        action="append",
        metavar="PATTERN",
        help="show the clusters whose names match, like 'orders-*'; may be repeated",
    )
    which.add_argument("--fleet", metavar="PATTERN", help="show the clusters of the fleets whose names match")
    parser.add_argument("--troubled", action="store_true", help="show the clusters with a problem or a missing reading")
    parser.add_argument(
        "--verbose", action="store_true", help="with --cluster: also show the numbers that the policies use"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help=f"refresh every {WATCH_INTERVAL:g} s, until Ctrl-C")
    json_option(how)
    daemon_options(parser, argument=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    daemon = find_daemon(arguments)
    if arguments.watch:
        watch(lambda: _lines(_ask(daemon, arguments), arguments))
    elif arguments.json:
        print_json(_ask(daemon, arguments))
    else:
        print_lines(*_lines(_ask(daemon, arguments), arguments))
    daemon.note_problems()
    return OK


def _ask(daemon: Address, arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer of the daemon, with only the selected clusters."""
    if arguments.cluster is not None:
        return get(daemon, cluster_path(arguments.cluster), "learned")
    answer = get(daemon, "/api/v1/clusters", "clusters")
    # A daemon of an earlier version has no fleets.
    fleets = answer.get("fleets", [])
    if arguments.fleet is not None:
        names = [fleet["name"] for fleet in fleets]
        fleets = [fleet for fleet in fleets if fnmatchcase(fleet["name"], arguments.fleet)]
        if not fleets:
            raise AutoscalerError(f"there is no fleet {arguments.fleet}; there are: {', '.join(names) or 'none'}")
    asked = {fleet["name"] for fleet in fleets}
    clusters = [
        row
        for row in answer["clusters"]
        if (not arguments.filter or any(fnmatchcase(row["name"], pattern) for pattern in arguments.filter))
        and (arguments.fleet is None or row["fleet"] in asked)
        and (not arguments.troubled or _problems(row))
    ]
    return {**answer, "fleets": fleets, "clusters": clusters}


def _lines(answer: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    if arguments.cluster is not None:
        return [*_clusters([answer]), *_details(answer, verbose=arguments.verbose), *_daemon(answer)]
    clusters, fleets = answer["clusters"], answer["fleets"]
    if len(clusters) > MAX_LISTED and not (arguments.filter or arguments.fleet or arguments.troubled):
        return [*_summary(clusters, fleets), *_daemon(answer)]
    none = "No cluster has a problem or a missing reading." if arguments.troubled else "No cluster matches."
    if not (clusters or arguments.troubled or arguments.filter):
        none = "There is no cluster yet."
    problems = [] if arguments.filter else _fleet_problems(fleets)
    return [*(_clusters(clusters) if clusters else [none]), *problems, *_daemon(answer)]


def _summary(clusters: Sequence[dict[str, Any]], fleets: Sequence[dict[str, Any]]) -> list[str]:
    """Counts of the clusters by fleet, and the first problems."""
    rows: dict[str | None, list[dict[str, Any]]] = {fleet["name"]: [] for fleet in fleets}
    for row in clusters:
        rows.setdefault(row.get("fleet"), []).append(row)
    known = {fleet["name"]: fleet for fleet in fleets}
    head = (
        "fleet",
        "clusters",
        "troubled",
        "refused",
        "missing",
        "at max",
        "rescaling",
        "control",
        "size",
        "decided",
        "discovered",
    )
    lines = table_lines(head, [_sums(name, of_fleet, known.get(name)) for name, of_fleet in rows.items()])
    troubled = [f"{row['name']}: {_problems(row)}" for row in clusters if _problems(row)]
    if troubled:
        shown = troubled[:MAX_TROUBLED]
        first = f"; the first {len(shown)}" if len(shown) < len(troubled) else ""
        lines += ["", f"{count_of(len(troubled), 'cluster')} with a problem or a missing reading{first}:", *shown]
    return [
        *lines,
        *_fleet_problems(fleets),
        "",
        "--fleet NAME, --filter PATTERN and --troubled list the clusters.",
    ]


def _sums(name: str | None, clusters: Sequence[dict[str, Any]], fleet: dict[str, Any] | None) -> tuple[str, ...]:
    numbers = (
        len(clusters),
        sum(bool(_problems(row)) for row in clusters),
        *(("-", "-") if fleet is None else (len(fleet["refused"]), len(fleet["held"]))),
        sum(row["desired"] is not None and row["desired"] >= row["max"] for row in clusters),
        sum(row["rescale"] is not None for row in clusters),
        sum(bool(row.get("controls")) for row in clusters),
        sum(row["current"] or 0 for row in clusters),
        sum(row["desired"] or 0 for row in clusters),
    )
    found = "-" if fleet is None else "not yet" if fleet["age"] is None else f"{fleet['age']:.0f} s ago"
    return ("(no fleet)" if name is None else name, *map(str, numbers), found)


def _fleet_problems(fleets: Sequence[dict[str, Any]]) -> list[str]:
    """The problems of fleets, and of members that have no row of their own."""
    lines = [
        f"Fleet {fleet['name']}: the discovery failed, the known members are kept: {fleet['problem']}"
        for fleet in fleets
        if fleet["problem"]
    ]
    lines += [
        f"Fleet {fleet['name']}: {count_of(len(fleet['held']), 'member')} not found, kept until missing for `confirm`"
        for fleet in fleets
        if fleet["held"]
    ]
    refused = summarized(
        problem
        for fleet in fleets
        for each in fleet["refused"]
        if each["cluster"] is None  # otherwise the row of its cluster shows the problem
        for problem in each["problems"]
    )
    lines += [f"Refused: {line}" for line in refused]
    return ["", *lines] if lines else []


def _clusters(clusters: Sequence[dict[str, Any]]) -> list[str]:
    # A terminal has no room for sentences in a table with this many columns: they follow below the table.
    wide = not sys.stdout.isatty()
    controlled = any(row.get("controls") for row in clusters)
    rows = [
        (
            row["name"],
            _size(row["ready"]),
            _size(row["current"]),
            _size(row["desired"]),
            _size(row["proposed"]),
            f"{row['min']}-{row['max']}",
            row["reason"] or "-",
            _rescale(row["rescale"]),
            *((_control(row),) if controlled else ()),
            "-" if row["age"] is None else f"{row['age']:.0f} s ago",
            *((_problems(row) or "-",) if wide else ()),
        )
        for row in clusters
    ]
    head = ("cluster", "ready", "size", "decided", "proposed", "limits", "reason", "rescale")
    more = ("control", "when") if controlled else ("when",)
    lines = table_lines((*head, *more, *(("problem",) if wide else ())), rows)
    if not wide:
        lines += [f"\n{row['name']}: {_problems(row)}" for row in clusters if _problems(row)]
    return lines


def _daemon(answer: dict[str, Any]) -> list[str]:
    """The lines about the whole daemon."""
    lines = ["", "This is a dry run: no target is called."] if answer["dry_run"] else []
    # A daemon of an earlier version does not report this.
    if answer.get("reload", "ok") != "ok":
        lines += ["", "The configuration was not reloaded, the previous one stays in use:"]
        lines += [f"  {problem}" for problem in answer["reload"]]
    # A daemon of an earlier version has no copies.
    for copy in answer.get("copies", ()):
        if copy["problem"] is not None:
            lines += ["", f"The copy {copy['name']} ({copy['url']}) cannot be asked: {copy['problem']}"]
    return lines


def _details(answer: dict[str, Any], *, verbose: bool) -> list[str]:
    learned = answer["learned"] or {"capacity": (), "durations": {}, "memory": {}}
    asked = [] if answer["decision"] is None else answer["decision"]["recommendations"]
    # A daemon of an earlier version has no controls.
    controls = [f"  {each['text']}" for each in answer.get("controls", ())]
    return [
        *(["", "Controls in force:", *controls] if controls else ()),
        *(_recommendations(asked, verbose=verbose) if asked else ()),
        *_capacity(learned["capacity"]),
        *_durations(learned["durations"]),
        *(_memory(learned["memory"]) if verbose else ()),
    ]


def _recommendations(recommendations: Sequence[dict[str, Any]], *, verbose: bool) -> list[str]:
    head = ("policy", "size", "reason", "why", *(("numbers",) if verbose else ()))
    rows = [
        (
            asked["policy"],
            "-" if asked["replicas"] is None else str(asked["replicas"]),
            asked["reason"],
            asked["detail"] or "-",
            *((_numbers(asked["inputs"]) or "-",) if verbose else ()),
        )
        for asked in recommendations
    ]
    title = "What the policies ask for, and the numbers behind it:" if verbose else "What the policies ask for:"
    return ["", title, *table_lines(head, rows)]


def _numbers(inputs: dict[str, Any]) -> str:
    return ", ".join(f"{name} {format_number(float(value))}" for name, value in inputs.items())


def _capacity(capacity: Sequence[dict[str, Any]]) -> list[str]:
    if not capacity:
        return ["", "The capacity of a size is not learned yet: the job has not been seen busy for long enough."]
    rows = [
        (str(size["replicas"]), format_number(size["rate"]), format_age(size["age"]), count_of(size["samples"], "time"))
        for size in capacity
    ]
    head = ("replicas", "records/s", "seen last", "seen")
    return ["", "What a size processes when busy:", *table_lines(head, rows)]


def _durations(durations: dict[str, dict[str, Any]]) -> list[str]:
    if not any(seen["phases"] for seen in durations.values()):
        return ["", "How long a rescale takes is not learned yet: no rescale has completed."]
    rows = []
    for direction, seen in durations.items():
        for phase, took in seen["phases"].items():
            last = "the last one" if took["samples"] == 1 else f"median of the last {took['samples']}"
            rows.append((direction, phase.replace("_", " "), _duration(took["median"]), last))
        if seen["restart"] is not None:
            rows.append((direction, "until it runs", _duration(seen["restart"]), "all phases but catching up"))
    head = ("direction", "phase", "takes", "by")
    return ["", "How long a rescale takes, by the last few:", *table_lines(head, rows)]


def _duration(seconds: float) -> str:
    # Rounding to whole seconds would hide the differences between short times.
    return f"{format_number(seconds)} s" if seconds < 10 else format_span(seconds)  # noqa: PLR2004


def _memory(memory: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    rows = [
        (policy, group or "-", ", ".join(numbers))
        for policy, learned in memory.items()
        for group, numbers in _groups(learned)
    ]
    return ["", "What the policies have learned:", *table_lines(("policy", "of", "numbers"), rows)] if rows else []


def _groups(learned: dict[str, dict[str, float]]) -> list[tuple[str, list[str]]]:
    """Group learned numbers and ages by the part of their names before the last dot, sorted with `_numbered`."""
    groups: dict[str, list[str]] = {}
    for kind, write in (("numbers", format_number), ("ages", format_age)):
        for name, value in learned[kind].items():
            group, _, leaf = name.rpartition(".")
            groups.setdefault(group, []).append(f"{leaf} {write(value)}")
    return sorted(groups.items(), key=lambda group: _numbered(group[0]))


def _numbered(name: str) -> list[tuple[int, str]]:
    """A sort key for dotted names in which 2 comes before 12."""
    return [(len(part) if part.isdecimal() else 0, part) for part in name.split(".")]


def _rescale(rescale: dict[str, Any] | None) -> str:
    if rescale is None:
        return "-"
    return f"{rescale['before']} to {rescale['to']}: {rescale['phase'].replace('_', ' ')}"


def _control(row: dict[str, Any]) -> str:
    """The controls of a cluster, in short."""
    return ", ".join(map(short_control, row.get("controls", ()))) or "-"


def _problems(row: dict[str, Any]) -> str:
    found = [f"{name}: {why}" for name, why in row["missing"].items()]
    if row["problem"] and row["problem"] not in found:
        found.insert(0, row["problem"])
    # Trouble as on the web page: also a stuck rescale, or a backlog at the maximum. A daemon of an earlier version
    # does not report it.
    if not found and row.get("trouble"):
        found.append(row["trouble"])
    return "; ".join(found)


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)
