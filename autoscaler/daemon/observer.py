"""Looking at one cluster: its target, its engine and all its metrics at once, each within the cluster's time-out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from autoscaler.config.model import Cluster, Config
from autoscaler.core.model import Bound, EngineStatus, Observation, Reading
from autoscaler.daemon.connections import INSIDE, Connection, Connections, format_error
from autoscaler.ports import EdgeError, NotYetError, PicksWorkers, RefusedError, ScaleTarget, TargetStatus, Workforce

log = logging.getLogger("autoscaler.daemon.observer")

TARGET = "target"
ENGINE = "engine"


class Edges:
    """The connections that one cluster uses."""

    def __init__(self, config: Config, cluster: Cluster, connections: Connections) -> None:
        self._connections = connections
        self._attached: ScaleTarget | None = None
        self._target = connections.lease(cluster.target, of=cluster.spec.name)
        self._engine = None if cluster.engine is None else connections.lease(cluster.engine)
        self._sources: dict[str, Connection] = {
            name: connections.lease(config.sources[name])
            for name in {metric.source: None for metric in cluster.metrics.values()}
        }

    def target(self) -> ScaleTarget:
        """The live target, given the engine if it picks workers. Raises UnavailableError while it is not connected."""
        target: ScaleTarget = self._target.get()
        if target is not self._attached:
            if isinstance(target, PicksWorkers):
                target.attach(self.workforce)
            self._attached = target
        return target

    def workforce(self) -> Workforce:
        """The live engine, if it can name its workers. Raises EdgeError when there is none that can."""
        if self._engine is None:
            raise RefusedError("the cluster has no engine that could name its workers")
        engine = self._engine.get()
        if not isinstance(engine, Workforce):
            raise RefusedError("the cluster's engine cannot name its workers")
        return engine

    async def look_at_target(self) -> TargetStatus:
        """Ask the target."""
        await self._target.tried()
        return await self.target().describe()

    async def look_at_engine(self) -> EngineStatus | None:
        """Ask the engine; None when there is none to watch."""
        if self._engine is None:
            return None
        await self._engine.tried()
        status: EngineStatus = await self._engine.get().describe()
        return status

    async def collect(self, source: str, query: Any, now: datetime) -> Reading:  # noqa: ANN401 - see MetricSource
        """Read one metric."""
        await self._sources[source].tried()
        reading: Reading = await self._sources[source].get().collect(query, now)
        return reading

    def connections(self) -> Mapping[str, Connection]:
        """All of them, by what they are."""
        engine = {} if self._engine is None else {ENGINE: self._engine}
        return {TARGET: self._target, **engine, **{f"source {name}": c for name, c in self._sources.items()}}

    async def release(self) -> None:
        """Give them back."""
        await asyncio.gather(*(self._connections.release(connection) for connection in self.connections().values()))


class Observer:
    """Observes one cluster again and again.

    A question that has not been answered in time is cancelled. If even that does not end it, it is not asked again
    before it has ended: a hanging plug-in holds one task, not one more with every tick.

    Attributes:
        status: what the target showed last, for its remarks.
        awaited: what had no value yet at the last look, though nothing is wrong.
    """

    def __init__(self, cluster: Cluster, edges: Edges, utc: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._edges = edges
        self._utc = utc
        self._hanging: dict[str, asyncio.Task[Any]] = {}
        self._unexpected: dict[str, str] = {}
        self.status: TargetStatus | None = None
        self.awaited: frozenset[str] = frozenset()

    async def observe(self) -> Observation:
        """Look once. What cannot be read is in `missing`, with the reason; it never fails."""
        now = self._utc()
        cluster = self._cluster
        questions: dict[str, Callable[[], Awaitable[object]]] = {TARGET: self._edges.look_at_target}
        if cluster.engine is not None:
            questions[ENGINE] = self._edges.look_at_engine
        for name, metric in cluster.metrics.items():
            questions[f"metric {name}"] = lambda metric=metric: self._edges.collect(metric.source, metric.query, now)  # type: ignore[misc]
        answers, missing = await self._ask(questions)
        metrics: dict[str, Reading] = {}
        for name in cluster.metrics:
            reading = answers.get(f"metric {name}")
            if isinstance(reading, Reading):
                metrics[name] = reading
        target = answers.get(TARGET)
        engine = answers.get(ENGINE)
        self.status = target if isinstance(target, TargetStatus) else None
        return Observation(
            self._utc(),
            None if self.status is None else self.status.desired,
            None if self.status is None else self.status.ready,
            metrics,
            missing,
            engine if isinstance(engine, EngineStatus) else None,
            None if self.status is None else _bound(self.status.floor),
            None if self.status is None else _bound(self.status.ceiling),
            () if self.status is None else tuple(map(str, self.status.remarks)),
        )

    async def _ask(
        self, questions: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> tuple[dict[str, object], dict[str, str]]:
        tasks = {name: asyncio.create_task(_call(ask)) for name, ask in questions.items() if name not in self._hanging}
        missing = {_short(name): "the question before this one still hangs" for name in self._hanging}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._cluster.timeout.total_seconds())
        finally:
            for name, task in tasks.items():
                if not task.done():
                    self._give_up(name, task)
        answers: dict[str, object] = {}
        awaited = set()
        for name, task in tasks.items():
            why = self._why_not(name, task)
            if why:
                missing[_short(name)] = why
                if task.done() and not task.cancelled() and isinstance(task.exception(), NotYetError):
                    awaited.add(_short(name))
            else:
                answers[name] = task.result()
                self._unexpected.pop(name, None)
        self.awaited = frozenset(awaited)
        return answers, missing

    def _give_up(self, name: str, task: asyncio.Task[object]) -> None:
        task.cancel()
        self._hanging[name] = task
        task.add_done_callback(lambda task: self._ended(name, task))

    def _why_not(self, name: str, task: asyncio.Task[object]) -> str:
        """Why a question has no answer, or the empty text."""
        if name in self._hanging:
            return f"no answer within {self._cluster.timeout.total_seconds():g} s"
        if task.cancelled():
            return INSIDE
        error = task.exception()
        return "" if error is None else self._told(name, error)

    def _told(self, name: str, error: BaseException) -> str:
        text = format_error(error)
        if not isinstance(error, EdgeError | TimeoutError) and self._unexpected.get(name) != text:
            self._unexpected[name] = text
            log.error(
                "a plug-in raised an unexpected error",
                extra={"cluster": self._cluster.spec.name, "asked": name},
                exc_info=error,
            )
        return text

    def _ended(self, name: str, task: asyncio.Task[object]) -> None:
        del self._hanging[name]
        if not task.cancelled():
            task.exception()  # It came too late to be of use; taking it keeps the loop from complaining.


def _bound(bound: object) -> Bound | None:
    """A target is somebody else's code: what is no bound is none."""
    return bound if isinstance(bound, Bound) else None


async def _call(ask: Callable[[], Awaitable[object]]) -> object:
    return await ask()


def _short(question: str) -> str:
    return question.removeprefix("metric ")
