"""Target `advice`: it scales nothing, and decisions are only advice."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from autoscaler.core.parameters import ParameterError
from autoscaler.ports import RefusedError, ScaleTarget, Shared, TargetStatus, Workforce

_log = logging.getLogger("autoscaler.targets")


@dataclass(frozen=True, slots=True)
class Advice:
    """Scales nothing: decisions are advice, shown in the log, by `explain` and in the metrics.

    Advice is relative to the current size: the number of workers registered with the cluster's engine, or `size` if the
    engine does not name them. As long as nobody follows the advice, the size stays the same, so the advice changes only
    with the load. Decisions are recorded as in a dry run. If the size of a cluster can be read, configure its real
    target instead and run the daemon with `--dry-run`.

    With `follow: true`, advice counts as followed at once. The size is `size` until the first advice, then the last
    advice, whatever the real size is. Use this to try a policy on a load that does not depend on the size. A restart of
    the daemon forgets the advice.

    Attributes:
        size: the current number of replicas, 0 or more. Default 1.
        follow: whether advice counts as followed. Default false.
    """

    former_names: ClassVar[tuple[str, ...]] = ("null",)
    shareable: ClassVar[bool] = True
    size: int = 1
    follow: bool = False

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ParameterError("size", f"must be 0 or more, not {self.size}")

    @property
    def advisory(self) -> bool:
        """Whether the daemon must not request a size, as in a dry run."""
        return not self.follow

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:  # noqa: ARG002 - part of the port
        """Connect to nothing."""
        yield _Target(self)


class _Target:
    def __init__(self, spec: Advice) -> None:
        self._spec = spec
        self._size = spec.size
        self._advised: int | None = None
        self._workforce: Callable[[], Workforce] | None = None

    def attach(self, workforce: Callable[[], Workforce]) -> None:
        """Set the engine that names the registered workers."""
        self._workforce = workforce

    async def describe(self) -> TargetStatus:
        """The current size, as far as it is known. All replicas count as ready."""
        size = self._size if self._spec.follow else await self._registered()
        remarks: tuple[str, ...] = ("nothing is scaled here: advice only",)
        if self._advised is not None:
            remarks += (f"last advice: {self._advised}",)
        return TargetStatus(desired=size, ready=size, remarks=remarks)

    async def scale(self, replicas: int) -> None:
        """Remember the advice."""
        if replicas < 0:
            raise RefusedError(f"a size is 0 or more, not {replicas}")
        if replicas != self._advised:
            _log.info("advice", extra={"size": self._size, "advised": replicas})
        self._advised = replicas
        if self._spec.follow:
            self._size = replicas

    async def _registered(self) -> int:
        """The number of registered workers, or the configured size if no engine names them."""
        if self._workforce is None:
            return self._size
        try:
            workforce = self._workforce()
        except RefusedError:
            return self._size
        return len(await workforce.workers())
