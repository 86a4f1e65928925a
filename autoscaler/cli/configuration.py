"""Reads configuration files, for commands that connect to systems and for commands that connect to nothing."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.plugins import guess
from autoscaler.ports import ConfigurationError, Member

if TYPE_CHECKING:
    from autoscaler.config.document import Node
    from autoscaler.config.model import Cluster, Config

MAX_PROBLEMS = 20
"""The maximum number of lines about problems of fleets that are printed."""


def load_live(path: Path) -> Config:
    """Read a configuration for a command that connects to its systems. Raises ConfigurationError."""
    from autoscaler import config  # noqa: PLC0415 - `--help` does not need it

    return config.load(path, os.environ)


def load(path: Path, root: Node | None = None) -> Config:
    """Read a configuration for a command that connects to nothing. Only variables of secrets may be unset.

    Args:
        path: the file.
        root: the content to use instead of the file's, which was changed after reading it.

    Raises:
        ConfigurationError: the file is not usable, or has only fleets.
    """
    return with_clusters(_load(path, root))


def _load(path: Path, root: Node | None = None) -> Config:
    from autoscaler import config  # noqa: PLC0415 - modules that only register options need no pydantic

    return config.load(path, os.environ, root, offline=True)


def with_clusters(read: Config) -> Config:
    """Return the configuration. Raises ConfigurationError if it has only fleets: the file lacks their members."""
    if not read.clusters:
        raise wrong(
            f"{read.path}: has only fleets, but this command needs a cluster in the file: write one under clusters "
            "that stands for the members, with the keys of the template and with values instead of expressions; "
            "or simulate one member by its values, with --member name=NAME"
        )
    return read


_MEMBER = re.compile(r"""(: fleets\.[\w.-]+)\[(?:"(?:[^"\\]|\\.)*"|[\w./@-]+)\]""")
"""Matches, in the line of a problem, the fleet and the member's id as `document.join` writes it."""


def summarized(problems: Iterable[str]) -> list[str]:
    """Summarize problems of fleets and members: a problem that several members share appears once, with a count."""
    counts: dict[str, tuple[str, int]] = {}
    for problem in problems:
        alike = _MEMBER.sub(r"\1", problem, count=1)
        first, count = counts.get(alike, (problem, 0))
        counts[alike] = first, count + 1
    lines = [first if count == 1 else f"{first} (and {count - 1} more like it)" for first, count in counts.values()]
    return [
        *lines[:MAX_PROBLEMS],
        *([f"and {len(lines) - MAX_PROBLEMS} more problems"] if lines[MAX_PROBLEMS:] else []),
    ]


def chosen(options: argparse.Namespace) -> Cluster:
    """The cluster that `--cluster`, or `--member` and `--fleet`, select. Raises ConfigurationError."""
    if options.member:
        return _member(_load(options.config), options.fleet, options.member)
    if options.fleet is not None:
        raise wrong("--fleet: chooses the template that --member fills; give its values, such as --member name=NAME")
    return cluster(load(options.config), options.cluster)


def _member(read: Config, name: str | None, given: Sequence[tuple[str, str]]) -> Cluster:
    """Fill the template of a fleet with the given values. `labels.app` gives the value of key `app` of `labels`."""
    if not read.fleets:
        raise wrong(f"{read.path}: has no fleet, but --member needs one")
    if name is None and len(read.fleets) > 1:
        raise wrong(f"{read.path}: has the fleets {', '.join(sorted(read.fleets))}: choose with --fleet NAME")
    fleet = read.fleets[known(name or next(iter(read.fleets)), read.fleets, f"fleet of {read.path}")]
    if getattr(fleet.discover, "brings_templates", False):
        raise wrong(
            f"{read.path}: fleets.{fleet.name}: its members bring their own templates: write one of them as a cluster"
        )
    values: dict[str, str | dict[str, str]] = {}
    for path, value in given:
        variable, _, key = path.partition(".")
        known(variable, fleet.discover.variables, f"variable of fleet {fleet.name}")
        inner = values.setdefault(variable, {} if key else value)
        if isinstance(inner, dict) is not bool(key):
            raise wrong(f"--member {path}: {variable} has either one value or keys")
        if isinstance(inner, dict):
            inner[key] = value
    return fleet.template.expand(Member("--member", values)).cluster


def cluster(read: Config, name: str | None) -> Cluster:
    """The cluster of that name, or the only one.

    Raises:
        ConfigurationError: there is no such cluster, or there are several and no name is given.
    """
    if name is None:
        if len(read.clusters) > 1:
            raise wrong(f"{read.path}: has the clusters {', '.join(sorted(read.clusters))}: choose with --cluster NAME")
        return next(iter(read.clusters.values()))
    return read.clusters[known(name, read.clusters, f"cluster of {read.path}")]


def known(name: str, names: Iterable[str], what: str) -> str:
    """Return the name. Raises ConfigurationError when it is not one of the names."""
    names = sorted(names)
    if name not in names:
        raise wrong(f"{name!r} is not a {what}, expected one of {', '.join(names)}{guess(name, names)}")
    return name


def wrong(*problems: str) -> ConfigurationError:
    """An error for arguments or settings that cannot be used."""
    return ConfigurationError(problems)
