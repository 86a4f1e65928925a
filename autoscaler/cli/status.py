"""`autoscaler status`: the clusters of a running daemon."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoscaler.cli.daemon_client import cluster_path, find_daemon, get, url_option
from autoscaler.cli.options import Commands, json_option
from autoscaler.cli.output import OK, print_json, print_lines, table
from autoscaler.core.explain import count_of, format_age, format_number, format_span


def register(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("status", description="Show the clusters of a running daemon.")
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="the daemon's configuration, to find its address"
    )
    parser.add_argument("--cluster", metavar="CLUSTER", help="show one cluster, and everything that was learned of it")
    url_option(parser)
    json_option(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    daemon = find_daemon(arguments)
    if arguments.cluster is None:
        answer = get(daemon, "/api/v1/clusters", "clusters")
    else:
        answer = get(daemon, cluster_path(arguments.cluster), "learned")
    if arguments.json:
        print_json(answer)
    elif arguments.cluster is None:
        _show_clusters(answer, answer["clusters"])
    else:
        _show_cluster(answer)
    daemon.note_problems()
    return OK


def _show_clusters(answer: dict[str, Any], clusters: Sequence[dict[str, Any]]) -> None:
    # A terminal has no room for whole sentences in a table of so many columns: they follow below it.
    wide = not sys.stdout.isatty()
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
            "-" if row["age"] is None else f"{row['age']:.0f} s ago",
            *((_problems(row) or "-",) if wide else ()),
        )
        for row in clusters
    ]
    head = ("cluster", "ready", "size", "decided", "proposed", "limits", "reason", "rescale", "when")
    table((*head, *(("problem",) if wide else ())), rows)
    if not wide:
        print_lines(*(f"\n{row['name']}: {_problems(row)}" for row in clusters if _problems(row)))
    if answer["dry_run"]:
        print_lines("", "This is a dry run: no target is called.")
    # A daemon of an earlier version does not say.
    if answer.get("reload", "ok") != "ok":
        print_lines("", "The configuration was not reloaded, the previous one stays in use:")
        print_lines(*(f"  {problem}" for problem in answer["reload"]))


def _show_cluster(answer: dict[str, Any]) -> None:
    _show_clusters(answer, [answer])
    if answer["decision"] is not None:
        _show_recommendations(answer["decision"]["recommendations"])
    learned = answer["learned"] or {"capacity": (), "durations": {}, "memory": {}}
    _show_capacity(learned["capacity"])
    _show_durations(learned["durations"])
    _show_memory(learned["memory"])


def _show_recommendations(recommendations: Sequence[dict[str, Any]]) -> None:
    print_lines("", "What the policies ask for, and the numbers they made it of:")
    rows = [
        (
            asked["policy"],
            "-" if asked["replicas"] is None else str(asked["replicas"]),
            asked["reason"],
            asked["detail"] or "-",
            ", ".join(f"{name} {format_number(float(value))}" for name, value in asked["inputs"].items()) or "-",
        )
        for asked in recommendations
    ]
    table(("policy", "size", "reason", "why", "numbers"), rows)


def _show_capacity(capacity: Sequence[dict[str, Any]]) -> None:
    if not capacity:
        print_lines("", "What a size can process was not learned yet: the job has not been seen busy for long enough.")
        return
    print_lines("", "What a size processes when busy:")
    rows = [
        (str(size["replicas"]), format_number(size["rate"]), format_age(size["age"]), count_of(size["samples"], "time"))
        for size in capacity
    ]
    table(("replicas", "records/s", "seen last", "seen"), rows)


def _show_durations(durations: dict[str, dict[str, Any]]) -> None:
    if not any(seen["phases"] for seen in durations.values()):
        print_lines("", "How long a rescale takes was not learned yet: none has settled.")
        return
    print_lines("", "How long a rescale takes, by the last few:")
    rows = []
    for direction, seen in durations.items():
        for phase, took in seen["phases"].items():
            last = "the last one" if took["samples"] == 1 else f"median of the last {took['samples']}"
            rows.append((direction, phase.replace("_", " "), _duration(took["median"]), last))
        if seen["restart"] is not None:
            rows.append((direction, "until it runs", _duration(seen["restart"]), "all phases but catching up"))
    table(("direction", "phase", "takes", "by"), rows)


def _duration(seconds: float) -> str:
    # Below that the rounding to whole seconds hides what there is to see.
    return f"{format_number(seconds)} s" if seconds < 10 else format_span(seconds)  # noqa: PLR2004


def _show_memory(memory: dict[str, dict[str, dict[str, float]]]) -> None:
    rows = [
        (policy, group or "-", ", ".join(numbers))
        for policy, learned in memory.items()
        for group, numbers in _groups(learned)
    ]
    if rows:
        print_lines("", "What the policies have learned:")
        table(("policy", "of", "numbers"), rows)


def _groups(learned: dict[str, dict[str, float]]) -> list[tuple[str, list[str]]]:
    """Learned numbers and ages by what stands before the last dot of their names, numbered ones in order."""
    groups: dict[str, list[str]] = {}
    for kind, write in (("numbers", format_number), ("ages", format_age)):
        for name, value in learned[kind].items():
            group, _, leaf = name.rpartition(".")
            groups.setdefault(group, []).append(f"{leaf} {write(value)}")
    return sorted(groups.items(), key=lambda group: _numbered(group[0]))


def _numbered(name: str) -> list[tuple[int, str]]:
    """What to sort dotted names by, so that 2 comes before 12."""
    return [(len(part) if part.isdecimal() else 0, part) for part in name.split(".")]


def _rescale(rescale: dict[str, Any] | None) -> str:
    if rescale is None:
        return "-"
    return f"{rescale['before']} to {rescale['to']}: {rescale['phase'].replace('_', ' ')}"


def _problems(row: dict[str, Any]) -> str:
    found = [f"{name}: {why}" for name, why in row["missing"].items()]
    if row["problem"] and row["problem"] not in found:
        found.insert(0, row["problem"])
    return "; ".join(found)


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)
