"""A configuration file as it is read where nothing is connected to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler.plugins import guess
from autoscaler.ports import ConfigurationError

if TYPE_CHECKING:
    from autoscaler.config.document import Node
    from autoscaler.config.model import Cluster, Config

UNUSED = "not-set-and-not-used-offline"
"""What stands for an environment variable that is not set: nobody is ever shown it."""


class _Environment(Mapping[str, str]):
    """The environment, in which every variable is set: secrets open connections, and there are none."""

    def __getitem__(self, name: str) -> str:
        return os.environ.get(name) or UNUSED

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def load(path: Path, root: Node | None = None) -> Config:
    """Read a configuration; secrets that are not there do not matter.

    Args:
        path: the file.
        root: what stands in it, changed since it was read.

    Raises:
        ConfigurationError: it is not usable.
    """
    from autoscaler import config  # noqa: PLC0415 - modules that only register options need no pydantic

    return config.load(path, _Environment(), root)


def cluster(read: Config, name: str | None) -> Cluster:
    """One of its clusters: the one of that name, or the only one.

    Raises:
        ConfigurationError: there is none of that name, or there are several and none is named.
    """
    if name is None:
        if len(read.clusters) > 1:
            raise wrong(f"{read.path}: has the clusters {', '.join(sorted(read.clusters))}: choose with --cluster NAME")
        return next(iter(read.clusters.values()))
    return read.clusters[known(name, read.clusters, f"cluster of {read.path}")]


def known(name: str, names: Iterable[str], what: str) -> str:
    """A name that must be one of some.

    Raises:
        ConfigurationError: it is not.
    """
    names = sorted(names)
    if name not in names:
        raise wrong(f"{name!r} is no {what}, expected one of {', '.join(names)}{guess(name, names)}")
    return name


def wrong(*problems: str) -> ConfigurationError:
    """What was asked for cannot be done, and why."""
    return ConfigurationError(problems)
