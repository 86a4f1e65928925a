"""The profile of a cluster as a metric, from the files that `autoscaler profile` writes.

    sources:
      history: {type: profile, directory: /var/lib/autoscaler/profiles}
    clusters:
      orders:
        metrics:
          profile: {source: history, cluster: orders}
        policies:
          main: {type: adaptive, objective: 60s, profile: profile}

A file is read again when it has changed. If it is invalid, the source logs a warning once and the last valid profile
stays in use. A profile whose history ended longer ago than `max_age` is not used: policies decide without a profile.
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
"""The largest file to read. A profile of a week in slots of a minute has about 250,000 bytes."""


@dataclass(frozen=True, slots=True)
class Query:
    """The cluster whose profile is read.

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
        directory: the directory to which `autoscaler profile --out` writes the profiles.
        max_age: a profile whose history ended longer ago than this is not used. Default 14d.
    """

    Query: ClassVar[type] = Query

    directory: Path
    max_age: timedelta = timedelta(days=14)

    def __post_init__(self) -> None:
        if self.max_age <= ZERO:
            raise ParameterError("max_age", "must be above 0s")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[_Source]:
        """Yield the source. The first `collect` reads the first file."""
        del shared
        yield _Source(self)


@dataclass(frozen=True, slots=True)
class _Read:
    """A file's state: its stamp, the last valid profile, and the problem with the current content."""

    stamp: tuple[int, int, int]
    profile: History | None
    problem: str | None


class _Source:
    """The connected source. It reads a file once, and again after a change."""

    def __init__(self, plugin: Profile) -> None:
        self._plugin = plugin
        self._read: dict[str, _Read] = {}

    async def collect(self, query: Query, now: datetime) -> Reading:
        """Read the profile of the cluster at the time `now`. Raises EdgeError when there is no usable profile."""
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
        """The last valid profile of the cluster, or None."""
        read = self._read.get(query.cluster)
        return None if read is None else read.profile

    def _log_change(self, path: Path, cluster: str, before: _Read | None, found: _Read) -> None:
        if found.problem:
            then = "no profile is used" if found.profile is None else "the last valid one stays in use"
            log.warning("profile cannot be read", extra={"path": str(path), "error": found.problem, "then": then})
        elif before is not None and found.profile is not None:
            log.info("profile has changed", extra={"cluster": cluster, "history": f"{found.profile.end:%Y-%m-%d}"})


def _read_file(path: Path, before: _Read | None) -> _Read:
    """Read a file if it has changed. Raises OSError when it does not exist or cannot be read."""
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
