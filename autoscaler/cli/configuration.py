"""Configuration files, read for the daemon or where nothing is connected to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.plugins import guess
from autoscaler.ports import ConfigurationError

if TYPE_CHECKING:
    from autoscaler.config.document import Node
    from autoscaler.config.model import Cluster, Config

MAX_PROBLEMS = 20
"""Lines of problems of fleets that are printed."""


def load_live(path: Path) -> Config:
    """Read a configuration for a command that connects to what is in it. Raises ConfigurationError."""
    from autoscaler import config  # noqa: PLC0415 - `--help` does not need it

    return config.load(path, os.environ)


def load(path: Path, root: Node | None = None) -> Config:
    """Read a configuration for a command that connects to nothing: variables of secrets need not be set, others must.

    Args:
        path: the file.
        root: its content, changed since it was read.

    Raises:
        ConfigurationError: it is not usable, or has fleets only.
    """
    from autoscaler import config  # noqa: PLC0415 - modules that only register options need no pydantic

    return with_clusters(config.load(path, os.environ, root, offline=True))


def with_clusters(read: Config) -> Config:
    """Return it. Raises ConfigurationError when it has fleets only, whose members are not in the file."""
    if not read.clusters:
        raise wrong(
            f"{read.path}: has fleets only, and this command takes clusters that are written in the file: write one "
            "that stands for the members under clusters, with the template's keys and values in place of expressions"
        )
    return read


_MEMBER = re.compile(r"""(: fleets\.[\w.-]+)\[(?:"(?:[^"\\]|\\.)*"|[\w./@-]+)\]""")
"""In the line of a problem: the fleet, and the member's id as `document.join` shows it."""


def summarized(problems: Iterable[str]) -> list[str]:
    """Problems of fleets and their members, the same one of several members once, with their number."""
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
