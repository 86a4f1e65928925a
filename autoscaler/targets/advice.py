"""Target `null`: nothing is scaled; the daemon only gives advice."""

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
class Null:
    """Nothing is scaled: what is decided is advice, to be read in the log, `explain` and the metrics.

    A decision is always relative to a size. By default the advice counts as taken at once: the size shown is
    `size` until there is advice, and then what was advised last. That is right where somebody acts on the
    advice. Where nobody does, say `follow: false`: the size stays what the configuration says, and the same
    advice comes again as long as it holds (a change of `size` takes effect at the next reload). To be advised
    on a cluster whose size can be read, configure its real target and run the daemon with `--dry-run`.

    Nothing is kept over a restart of the daemon: it then begins at `size` again.

    Attributes:
        size: the number of replicas there are, 0 or more. Default 1.
        follow: whether advice counts as taken. Default true.
    """

    shareable: ClassVar[bool] = True
    size: int = 1
    follow: bool = True

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ParameterError("size", f"must be 0 or more, not {self.size}")

    @asynccontextmanager
    async def connect(self, shared: Shared) -> AsyncIterator[ScaleTarget]:  # noqa: ARG002 - part of the port
        """There is nothing to open."""
        yield _Advice(self)


class _Advice:
    def __init__(self, spec: Null) -> None:
        self._spec = spec
        self._size = spec.size
        self._advised: int | None = None

    async def describe(self) -> TargetStatus:
        """The size there is taken to be, all of it up."""
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
