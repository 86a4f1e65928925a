"""Configuration files, read for the daemon or where nothing is connected to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.plugins import guess
from autoscaler.ports import ConfigurationError

if TYPE_CHECKING:
    from autoscaler.config.document import Node
    from autoscaler.config.model import Cluster, Config


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
        ConfigurationError: it is not usable.
    """
    from autoscaler import config  # noqa: PLC0415 - modules that only register options need no pydantic

    return config.load(path, os.environ, root, offline=True)


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
