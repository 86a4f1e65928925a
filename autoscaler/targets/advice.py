"""Target `advice`: nothing is scaled; the daemon only gives advice."""

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
    """Nothing is scaled: decisions are advice, shown in the log, by `explain` and in the metrics.

    Advice is relative to the size there is: the workers registered with the cluster's engine, where it names them, else
    `size`. Advice that is not acted on changes neither, so it is the same for as long as the load is; it is recorded as
    in a dry run. For advice on a cluster whose size can be read, configure its real target and run the daemon with
    `--dry-run`.

    With `follow: true` advice counts as acted on at once: the size is `size` until there is advice, then the last
    advice, whatever there is. That is for trying a policy on a load that does not depend on the size. Nothing of it is
    kept over a restart of the daemon.

    Attributes:
        size: the number of replicas there are, 0 or more. Default 1.
        follow: whether advice counts as acted on. Default false.
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
        """Whether nothing is to be requested of it."""
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
        """Take the engine that names the workers there are."""
        self._workforce = workforce

    async def describe(self) -> TargetStatus:
        """The size there is, as far as it is known, all replicas ready."""
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
        """The workers there are, or the configured size where no engine names them."""
        if self._workforce is None:
            return self._size
        try:
            workforce = self._workforce()
        except RefusedError:
            return self._size
        return len(await workforce.workers())
