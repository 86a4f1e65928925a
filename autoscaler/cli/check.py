"""`autoscaler check`: validates a configuration, and with `--online` also the systems that it connects to."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence

from autoscaler.cli.configuration import load_live, summarized
from autoscaler.cli.options import config_argument, json_option
from autoscaler.cli.output import FAILED, OK, USAGE, hang, log_nothing, print_json, print_lines, table
from autoscaler.cli.status import MAX_LISTED
from autoscaler.config.model import Config
from autoscaler.core.explain import readings
from autoscaler.core.wording import agree, count_of, list_of
from autoscaler.daemon.observer import utc_now
from autoscaler.daemon.one_shot import Checked, check
from autoscaler.ports import ConfigurationError, Finding, Severity
from autoscaler.trace.codec import to_json

MAX_NAMED = 5  # clusters that are named for one finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, and add its arguments."""
    parser.description = "Validate a configuration."
    config_argument(parser)
    parser.add_argument(
        "--online", action="store_true", help="also connect to all systems, read every metric once and examine the jobs"
    )
    json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        config = load_live(arguments.config)
    except ConfigurationError as error:
        if arguments.json:
            print_json({"ok": False, "problems": list(error.problems)})
            return USAGE
        raise
    expired = (f"{config.path}: {problem}" for problem in config.daemon.expired(utc_now()))
    config = dataclasses.replace(config, warnings=(*config.warnings, *expired))
    if arguments.online:
        return _online(config, as_json=arguments.json)
    names = sorted(config.clusters)
    if arguments.json:
        found = {"warnings": list(config.warnings), "clusters": names, "fleets": sorted(config.fleets)}
        print_json({"ok": True, "problems": [], **found})
    else:
        print_lines(*(f"warning: {warning}" for warning in config.warnings))
        parts = [
            f"{count_of(len(known), what)}: {', '.join(known)}"
            for what, known in (("cluster", names), ("fleet", sorted(config.fleets)))
            if known
        ]
        print_lines(f"{config.path} is valid: {'; '.join(parts)}")
    return OK


def _online(config: Config, *, as_json: bool) -> int:
    log_nothing()
    checked = asyncio.run(check(config))
    config = checked.config
    ok = (
        not any(checked.fleets.values())
        and not any(_failed(checked, name) for name in checked.untrusted)
        and not any(
            examined.error or any(finding.severity is Severity.ERROR for finding in examined.findings)
            for examined in checked.examined
        )
    )
    if as_json:
        print_json(_json(config, checked, ok=ok))
    else:
        _show(config, checked)
    return OK if ok else FAILED


def _failed(checked: Checked, cluster: str) -> set[str]:
    """The readings of a cluster that failed. A reading that only has no value yet is not a failure."""
    return set(checked.untrusted[cluster]) - checked.awaited[cluster]


def _show(config: Config, checked: Checked) -> None:
    print_lines(*(f"warning: {warning}" for warning in config.warnings))
    rows = []
    for name, observation in checked.observations.items():
        untrusted, awaited = checked.untrusted[name], checked.awaited[name]
        shown = dict(readings(observation))
        for what, text in shown.items():
            problem = untrusted.get(what)
            rows.append((name, what, "failed" if problem else "ok", problem or text))
        for what, why in untrusted.items():
            if what not in shown:
                rows.append((name, what, "not yet" if what in awaited else "failed", why))
        rows.extend((name, "target", "remark", remark) for remark in observation.remarks)
    _readings(rows, many=len(checked.observations) > MAX_LISTED)
    clusters: dict[tuple[str, Finding | str], list[str]] = {}  # a finding of several clusters is shown once
    for examined in checked.examined:
        for found in (*([examined.error] if examined.error else ()), *examined.findings):
            clusters.setdefault((examined.part, found), []).append(examined.cluster)
    for (part, found), names in clusters.items():
        where = f"{part} of {agree(len(names), 'cluster', 'clusters')} {list_of(names, MAX_NAMED)}"
        if isinstance(found, str):
            print_lines("", f"ERROR: {where} could not be examined: {found}")
        else:
            print_lines(
                "",
                f"{found.severity.upper()}: {found.subject} ({where})",
                hang("  problem: ", found.problem),
                hang("  cost:    ", found.cost),
                hang("  remedy:  ", found.remedy),
            )
    problems = summarized(problem for found in checked.fleets.values() for problem in found)
    print_lines(*([""] if problems else []), *(f"ERROR: {problem}" for problem in problems))
    findings = sum(isinstance(found, Finding) for _, found in clusters)
    failed = sum(len(_failed(checked, name)) for name in checked.untrusted)
    print_lines(
        "",
        f"{count_of(len(config.clusters), 'cluster')}, {count_of(failed, 'reading')} failed, "
        f"{count_of(findings, 'finding')}.",
    )


def _readings(rows: Sequence[tuple[str, str, str, str]], *, many: bool) -> None:
    """Print the table of readings. With many clusters, print only the first ones without a value."""
    shown = [row for row in rows if row[2] not in ("ok", "remark")][:MAX_LISTED] if many else rows
    table(("cluster", "what", "result", ""), shown)
    if many:
        print_lines("", f"{len(shown)} of {len(rows):,} rows; --json lists all.")


def _json(config: Config, checked: Checked, *, ok: bool) -> object:
    return {
        "ok": ok,
        "warnings": list(config.warnings),
        "fleets": {name: {"problems": list(problems)} for name, problems in checked.fleets.items()},
        "clusters": {
            name: {
                "observation": to_json(observation),
                "doubts": checked.untrusted[name],
                "awaited": sorted(checked.awaited[name]),
                "remarks": list(observation.remarks),
            }
            for name, observation in checked.observations.items()
        },
        "examined": [
            {
                "cluster": examined.cluster,
                "part": examined.part,
                "error": examined.error,
                "findings": [dataclasses.asdict(finding) for finding in examined.findings],
            }
            for examined in checked.examined
        ],
    }
