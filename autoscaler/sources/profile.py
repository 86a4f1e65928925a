"""The profile of a cluster, from the files that `autoscaler profile` writes, as one metric.

    sources:
      history: {type: profile, directory: /var/lib/autoscaler/profiles}
    clusters:
      orders:
        metrics:
          profile: {source: history, cluster: orders}
        policies:
          main: {type: adaptive, objective: 60s, profile: profile}

A file is read again when it has changed. If it cannot be read, that is logged once and the last valid profile stays in
use; one whose history ended longer ago than `max_age` is not used. Policies then decide without a profile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

from autoscaler.core.model import ZERO, Reading
from autoscaler.core.parameters import ParameterError
from autoscaler.core.workload_profile import Profile as History
from autoscaler.core.workload_profile import is_stale, reading
from autoscaler.ports import AnswerError, Shared, UnavailableError
from autoscaler.trace import profile_file

log = logging.getLogger("autoscaler.sources.profile")

MAX_BYTES = 5_000_000
"""A week in slots of a minute takes a quarter of a million."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which profile.

    Attributes:
        cluster: name of the cluster in the history.
    """

    cluster: str

    def __post_init__(self) -> None:
        if not self.cluster:
            raise ParameterError("cluster", "must not be empty, expected the name that the cluster has in the history")


@dataclass(frozen=True, slots=True)
class Profile:
    """A directory of profiles.

    Attributes:
        directory: where `autoscaler profile --out` writes them.
        max_age: a profile whose history ended longer ago is not used. Default 14d.
    """

    Query: ClassVar[type] = Query

    directory: Path
    max_age: timedelta = timedelta(days=14)

    def __post_init__(self) -> None:
        if self.max_age <= ZERO:
            raise ParameterError("max_age", "must be above 0s")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Yield the source. Nothing is read before the first `collect`."""
        del shared
        yield _Source(self)


@dataclass(frozen=True, slots=True)
class _Read:
    """A file's state: its stamp, the last valid profile, and the problem with the present content."""

    stamp: tuple[int, int, int]
    profile: History | None
    problem: str | None


class _Source:
    """A live source: every file is read once, and again when it has changed."""

    def __init__(self, plugin: Profile) -> None:
        self._plugin = plugin
        self._read: dict[str, _Read] = {}

    async def collect(self, query: Query, now: datetime) -> Reading:
        """The profile of the cluster at a time. Raises EdgeError when there is no usable one."""
        path = self._plugin.directory / profile_file.file_name(query.cluster)
        before = self._read.get(query.cluster)
        try:
            found = await asyncio.to_thread(_read_file, path, before)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be read: {error.strerror}; `autoscaler profile` writes it"
            ) from error
        if found is not before:
            self._read[query.cluster] = found
            self._log_change(path, query.cluster, before, found)
        profile = found.profile
        if profile is None:
            raise AnswerError(f"{path}: {found.problem}")
        if is_stale(profile, now, self._plugin.max_age):
            raise AnswerError(
                f"{path}: its history ended on {profile.end:%Y-%m-%d}, longer ago than max_age "
                f"({self._plugin.max_age.total_seconds() / 86400:g} days): run `autoscaler profile` again"
            )
        return reading(profile, now)

    def profile(self, query: Query) -> History | None:
        """The profile of the cluster as it was read last, or None."""
        read = self._read.get(query.cluster)
        return None if read is None else read.profile

    def _log_change(self, path: Path, cluster: str, before: _Read | None, found: _Read) -> None:
        if found.problem:
            then = "no profile is used" if found.profile is None else "the last valid one stays in use"
            log.warning("profile cannot be read", extra={"path": str(path), "error": found.problem, "then": then})
        elif before is not None and found.profile is not None:
            log.info("profile has changed", extra={"cluster": cluster, "history": f"{found.profile.end:%Y-%m-%d}"})


def _read_file(path: Path, before: _Read | None) -> _Read:
    """Read a file if it has changed. Raises OSError when it is not there or cannot be read."""
    stat = path.stat()
    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if before is not None and before.stamp == stamp:
        return before
    good = None if before is None else before.profile
    if stat.st_size > MAX_BYTES:
        return _Read(stamp, good, f"has {stat.st_size:,} bytes, expected at most {MAX_BYTES:,}")
    try:
        return _Read(stamp, profile_file.load(path.read_bytes()), None)
    except ValueError as error:
        return _Read(stamp, good, str(error))
