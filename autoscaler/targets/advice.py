"""Target `advice`: nothing is scaled; the daemon only gives advice."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from autoscaler.core.parameters import ParameterError
from autoscaler.ports import RefusedError, ScaleTarget, Shared, TargetStatus

_log = logging.getLogger("autoscaler.targets")


@dataclass(frozen=True, slots=True)
class Advice:
    """Nothing is scaled: decisions are advice, shown in the log, by `explain` and in the metrics.

    A decision is always relative to a size. By default the advice counts as followed at once: the size is `size` until
    there is advice, then the last advice. With `follow: false`, for advice that is not acted on, the size stays `size`
    (a change takes effect at the next reload), and the same advice repeats as long as it holds. For advice on a
    cluster whose size can be read, configure its real target and run the daemon with `--dry-run`.

    Nothing is kept over a restart of the daemon, which begins at `size` again.

    Attributes:
        size: the number of replicas there are, 0 or more. Default 1.
        follow: whether advice counts as followed. Default true.
    """

    former_names: ClassVar[tuple[str, ...]] = ("null",)
    shareable: ClassVar[bool] = True
    size: int = 1
    follow: bool = True

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ParameterError("size", f"must be 0 or more, not {self.size}")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:  # noqa: ARG002 - part of the port
        """Connect to nothing."""
        yield _Target(self)


class _Target:
    def __init__(self, spec: Advice) -> None:
        self._spec = spec
        self._size = spec.size
        self._advised: int | None = None

    async def describe(self) -> TargetStatus:
        """The configured or advised size, all replicas ready."""
        remarks: tuple[str, ...] = ("nothing is scaled here: advice only",)
        if self._advised is not None:
            remarks += (f"last advice: {self._advised}",)
        return TargetStatus(desired=self._size, ready=self._size, remarks=remarks)

    async def scale(self, replicas: int) -> None:
        """Remember the advice."""
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        if replicas != self._advised:
            _log.info("advice", extra={"size": self._size, "advised": replicas})
        self._advised = replicas
        if self._spec.follow:
            self._size = replicas
