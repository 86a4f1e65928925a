"""Observes a cluster: its target, engine and metrics concurrently, each within the cluster's time-out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sized
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, NamedTuple, cast

from autoscaler.config.model import Cluster
from autoscaler.core.foreign import foreign_text, shorten
from autoscaler.core.guards import newest_controls
from autoscaler.core.model import Bound, Control, EngineStatus, JobState, Observation, Reading, no_entries
from autoscaler.daemon.connections import CANCELLED, ENGINE, TARGET, ClusterConnections, contained, format_error
from autoscaler.ports import EdgeError, NotYetError, TargetStatus
from autoscaler.trace.codec import TIMES

log = logging.getLogger("autoscaler.daemon.observer")


_MAX_REMARKS = 100
_MAX_CONTROLS = 10
_LONGEST_SHOWN = 60
_ANSWERS_UNTIL_OVER = 3


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)  # noqa: TID251 - the one place where the wall clock is read


class FoundControls(NamedTuple):
    """The controls of a cluster, and remarks on invalid controls."""

    controls: tuple[Control, ...] = ()
    remarks: tuple[str, ...] = ()


FindControls = Callable[[str, datetime], FoundControls]
"""Finds the controls of a cluster, by its name, that are in force at a time; without those set on its target."""

_EMPTY = FoundControls()


def no_controls(cluster: str, at: datetime) -> FoundControls:
    """Find no controls: the default if nobody can set any."""
    del cluster, at
    return _EMPTY


class Observer:
    """Observes one cluster repeatedly.

    A request without an answer in time is cancelled. If it does not end then, it is not repeated until it has ended: a
    plug-in that hangs holds one task, not one more with each tick.

    Attributes:
        status: the last status of the target, with its remarks and controls.
        awaited: readings without a value yet in the last observation (`NotYetError`), which is not a failure.
        unexpected: errors in the last observation that are defects of plug-ins, not failures of an external system.
    """

    def __init__(
        self,
        cluster: Cluster,
        connections: ClusterConnections,
        utc: Callable[[], datetime],
        find_controls: FindControls = no_controls,
    ) -> None:
        self._cluster = cluster
        self._connections = connections
        self._utc = utc
        self._find_controls = find_controls
        self._hanging: dict[str, asyncio.Task[Any]] = {}
        self._defects: dict[str, tuple[type[BaseException], int]] = {}  # the logged error, and answers since
        self.status: TargetStatus | None = None
        self.awaited: frozenset[str] = frozenset()
        self.unexpected = 0

    async def observe(self) -> Observation:
        """Observe once. It never fails: readings that cannot be read are in `missing`, with the reason."""
        now = self._utc()
        cluster = self._cluster
        requests: dict[str, Callable[[], Awaitable[object]]] = {TARGET: self._connections.describe_target}
        if cluster.engine is not None:
            requests[ENGINE] = self._connections.describe_engine
        for name, metric in cluster.metrics.items():
            requests[f"metric {name}"] = lambda metric=metric: self._connections.collect(  # type: ignore[misc]
                metric.source, metric.query, now
            )
        answers, missing = await self._request(requests)
        metrics: dict[str, Reading] = {}
        for name in cluster.metrics:
            reading = answers.get(f"metric {name}")
            if isinstance(reading, Reading):
                if reading.mean is not None and _length(reading.value) > cluster.max_values:
                    reading = replace(reading, value=reading.mean, mean=None)
                count = max(_length(reading.value), *_lengths(reading.parts))
                if count > cluster.max_values:
                    missing[name] = f"{count:,} values, more than the {cluster.max_values:,} of max_values"
                else:
                    metrics[name] = reading
        target, engine = answers.get(TARGET), answers.get(ENGINE)
        # A plug-in may return anything: ignore results of a wrong type.
        status = _limited(target) if isinstance(target, TargetStatus) else None
        if status == self.status:
            status = self.status  # Every observation keeps its parts: equal ones share one object.
        self.status = status
        at = self._utc()
        found = self.controls_at(at)
        return Observation(
            at=at,
            desired=None if status is None else status.desired,
            ready=None if status is None else status.ready,
            metrics=metrics,
            missing=missing or no_entries(),
            engine=engine if isinstance(engine, EngineStatus) else None,
            floor=None if status is None else status.floor,
            ceiling=None if status is None else status.ceiling,
            remarks=found.remarks + (() if status is None else status.remarks),
            controls=found.controls,
        )

    def controls_at(self, at: datetime) -> FoundControls:
        """The controls in force at this time, including those on the target at its last answer."""
        found = self._find_controls(self._cluster.spec.name, at)
        shown = () if self.status is None else self.status.controls
        if not (found.controls or shown):
            return found
        return FoundControls(newest_controls(found.controls + shown), found.remarks)

    async def _request(
        self, requests: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> tuple[dict[str, object], dict[str, str]]:
        tasks = {
            name: asyncio.create_task(_call(ask), name=f"{self._cluster.spec.name}: {name}")
            for name, ask in requests.items()
            if name not in self._hanging
        }
        missing = {_short(name): "the previous request still hangs" for name in self._hanging}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._cluster.timeout.total_seconds())
        finally:
            for name, task in tasks.items():
                if not task.done():
                    self._give_up(name, task)
        answers: dict[str, object] = {}
        awaited = set()
        self.unexpected = 0
        for name, task in tasks.items():
            why = self._failure(name, task)
            if why is not None:
                missing[_short(name)] = why
                if task.done() and not task.cancelled() and isinstance(task.exception(), NotYetError):
                    awaited.add(_short(name))
                continue
            answer, problem = _storable(task.result())
            if problem is not None:
                missing[_short(name)] = problem
            else:
                answers[name] = answer
                self._note_answer(name)
        self.awaited = frozenset(awaited)
        return answers, missing

    def _give_up(self, name: str, task: asyncio.Task[object]) -> None:
        task.cancel()
        self._hanging[name] = task
        task.add_done_callback(lambda task: self._ended(name, task))

    def _failure(self, name: str, task: asyncio.Task[object]) -> str | None:
        """Why a request has no answer, or None."""
        if name in self._hanging:
            return f"no answer within {self._cluster.timeout.total_seconds():g} s"
        if task.cancelled():
            return CANCELLED
        error = task.exception()
        if error is None:
            return None
        text = format_error(error)
        if isinstance(error, EdgeError | TimeoutError):
            return text
        self.unexpected += 1
        logged, self._defects[name] = self._defects.get(name), (type(error), 0)
        if logged is None or logged[0] is not type(error):
            log.error(
                "plug-in raised an unexpected error",
                extra={"cluster": self._cluster.spec.name, "reading": _short(name)},
                exc_info=error,
            )
        return text

    def _note_answer(self, name: str) -> None:
        """After some answers, allow the same defect to be logged again: an intermittent one must not fill the log."""
        if name in self._defects:
            kind, answers = self._defects[name]
            self._defects[name] = kind, answers + 1
            if answers + 1 == _ANSWERS_UNTIL_OVER:
                del self._defects[name]

    def _ended(self, name: str, task: asyncio.Task[object]) -> None:
        del self._hanging[name]
        if not task.cancelled():
            task.exception()  # Too late to be used. Retrieving it keeps the loop from logging it.


def _whole(value: Any) -> int:  # noqa: ANN401 - a plug-in may return anything
    if type(value) is int:
        return value
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, float) and value.is_integer() else index(value)


def _time(value: Any) -> datetime:  # noqa: ANN401 - a plug-in may return anything
    if isinstance(value, datetime) and value.utcoffset() is not None and TIMES[0] <= value < TIMES[1]:
        return value
    raise ValueError


def _of(kind: type) -> Callable[[Any], object]:
    def same(value: Any) -> object:  # noqa: ANN401 - a plug-in may return anything
        if isinstance(value, kind):
            return value
        raise TypeError

    return same


def _or_none(convert: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: None if value is None else convert(value)


_WHOLE = "a whole number"
_TIME = f"a time with its zone from {TIMES[0].year} on"
_FIELDS: Mapping[type, Mapping[str, tuple[Callable[[Any], object], str]]] = {
    TargetStatus: {"desired": (_whole, _WHOLE), "ready": (_whole, _WHOLE)},
    EngineStatus: {
        "job": (JobState, f"one of {', '.join(JobState)}"),
        **dict.fromkeys(
            ("slots", "parallelism", "max_parallelism", "partitions", "restarts"), (_or_none(_whole), _WHOLE)
        ),
        **dict.fromkeys(("running_since", "last_checkpoint"), (_or_none(_time), _TIME)),
        "deadlines": (_of(Mapping), "a mapping"),
    },
    Reading: {
        "partitions": (_or_none(_whole), _WHOLE),
        "parts": (_of(Mapping), "a mapping"),
        "over": (_of(timedelta), "a timedelta"),
    },
}
"""Fields that are stored as they are: converter to the type that is read back (a numpy integer to int), description."""


def _storable(answer: object) -> tuple[object, str | None]:
    """An answer whose fields can be stored and read back, and None; or None, and what is wrong with a field."""
    kind = next((kind for kind in _FIELDS if isinstance(answer, kind)), None)
    if kind is None:
        return answer, None
    changes = {}
    for name, (convert, expected) in _FIELDS[kind].items():
        value: object = getattr(answer, name)
        try:
            fits = convert(value)
        except Exception:  # noqa: BLE001 - of a foreign object
            found = f"{shorten(foreign_text(value), _LONGEST_SHOWN)} ({type(value).__name__})"
            return None, f"no {kind.__name__}: {name} is {found}, expected {expected}"
        if fits is not value:
            changes[name] = fits
    return replace(cast("Any", answer), **changes) if changes else answer, None


def _limited(status: TargetStatus) -> TargetStatus:
    """A status, limited for storage with every observation: fields from a plug-in may have any type and any size."""
    remarks: object = status.remarks
    found = remarks[:_MAX_REMARKS] if isinstance(remarks, list | tuple) else ()
    kept = tuple(map(foreign_text, found))
    return replace(
        status,
        remarks=kept,
        floor=_bound(status.floor),
        ceiling=_bound(status.ceiling),
        controls=tuple(_controls(status.controls)),
    )


def _controls(controls: object) -> Iterator[Control]:
    for each in controls[:_MAX_CONTROLS] if isinstance(controls, list | tuple) else ():
        if isinstance(each, Control):
            why = None if each.reason is None else foreign_text(each.reason)
            yield replace(each, by=foreign_text(each.by), reason=why)


def _bound(bound: object) -> Bound | None:
    return Bound(bound.replicas, foreign_text(bound.reason)) if isinstance(bound, Bound) else None


def _length(value: object) -> int:
    return len(value) if isinstance(value, Sized) else 1


def _lengths(parts: object) -> list[int]:
    return [_length(parts), *map(_length, parts.values() if isinstance(parts, Mapping) else ())]


async def _call(ask: Callable[[], Awaitable[object]]) -> object:
    with contained():
        return await ask()


def _short(request: str) -> str:
    return request.removeprefix("metric ")
