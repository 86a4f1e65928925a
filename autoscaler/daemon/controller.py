"""One cluster under control: observe, decide, keep, act, at a fixed rate."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from autoscaler.config.model import Cluster
from autoscaler.core.capacity import beyond_use
from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Direction,
    Observation,
    Phase,
    Reason,
)
from autoscaler.core.state import call_failed, call_withheld
from autoscaler.core.step import step
from autoscaler.daemon.connections import INSIDE, cancelled_inside, format_error, pass_time
from autoscaler.daemon.observer import Edges, Observer
from autoscaler.ports import DecisionSink, Record, StateStore, StoreError, TargetStatus

log = logging.getLogger("autoscaler.daemon.controller")

SCALE_TIMEOUT = 30.0
"""Seconds a scale call may take before nobody knows whether it was accepted."""

UNANSWERED = "the daemon was stopped before the scale call was answered"

_BACK = 3
"""Ticks a reading has to be there again before that is told: one that comes and goes must not fill the log."""

_MOST_REFUSED = 100

Step = Callable[[ClusterSpec, ClusterState, Observation], tuple[ClusterState, Decision]]


class Pace(Protocol):
    """Takes how late ticks begin and how long they take, in seconds."""

    def ticked(self, late: float, took: float) -> None:
        """Note one tick."""
        ...


@dataclass
class Told:
    """What the log has been told of a cluster, so that it hears of changes only.

    Attributes:
        missing: readings that went missing -> ticks they have been there again.
        sizes: current and desired of the last decision.
        reasons: of the decisions since these sizes.
        refused: why scale calls have failed since the last one that did not.
        beyond_use: the maximum that was more than the job could use: a Spark job's stages may be as wide as the last
            batch was large, which is no news with every batch.
    """

    missing: dict[str, int] = field(default_factory=dict)
    sizes: tuple[int, int] | None = None
    reasons: set[Reason] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    beyond_use: int | None = None

    def refusal(self, why: str) -> bool:
        """Whether this is new."""
        if why in self.refused:
            return False
        if len(self.refused) >= _MOST_REFUSED:
            self.refused.clear()
        self.refused.add(why)
        return True


@dataclass
class Tally:
    """What is counted of a cluster; it outlives a controller that a reload replaces.

    Attributes:
        decisions: reason -> decisions.
        rescales: direction -> rescales requested.
        phases: direction and phase -> number and total seconds.
        errors: what could not be read or trusted -> how often.
        failed_calls: scale calls that failed.
        skipped: ticks that were left out because the one before took too long.
    """

    decisions: dict[Reason, int] = field(default_factory=dict)
    rescales: dict[Direction, int] = field(default_factory=dict)
    phases: dict[tuple[Direction, Phase], tuple[int, float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    skipped: int = 0


def splay(name: str, interval: float) -> float:
    """Where in the interval a cluster's ticks lie, in seconds; the same in every process."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * interval


class Controller:
    """Drives one cluster.

    Attributes:
        observation, decision: the last ones that were kept.
        state: what the next step starts from; None until it could be read.
        tally: what is counted.
        told: what the log has been told.
        status: what the target showed last.
        finished: loop time when the last tick ended well; at first when the controller began.
        problem: why the last tick did not come to a kept decision, or empty.
    """

    def __init__(
        self,
        cluster: Cluster,
        edges: Edges,
        store: StateStore,
        sink: DecisionSink,
        *,
        utc: Callable[[], datetime],
        pace: Pace,
        dry_run: bool = False,
        decide: Step = step,
    ) -> None:
        self.cluster = cluster
        self.name = cluster.spec.name
        self.edges = edges
        self.dry_run = dry_run
        self.tally = Tally()
        self.told = Told()
        self.state: ClusterState | None = None
        self.observation: Observation | None = None
        self.decision: Decision | None = None
        self.status: TargetStatus | None = None
        self.problem = "not observed yet"
        self.finished = asyncio.get_running_loop().time()
        self._store = store
        self._sink = sink
        self._pace = pace
        self._decide = decide
        self._observer = Observer(cluster, edges, utc)
        self._warned = ""
        self._scaling = False

    def take_over(self, before: Controller) -> None:
        """Go on where another controller of the same cluster has ended."""
        self.tally, self.told = before.tally, before.told
        self.state, self.observation, self.decision = before.state, before.observation, before.decision
        self.status, self.problem = before.status, before.problem

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the target says to people."""
        return () if self.status is None else self.status.remarks

    def overdue(self, now: float) -> bool:
        """Whether no tick has ended well for three intervals and a time-out, and the scale call's if there is one."""
        patience = (3 * self.cluster.interval + self.cluster.timeout).total_seconds()
        return now - self.finished > patience + (SCALE_TIMEOUT if self._scaling else 0.0)

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until told to stop, which takes effect between two ticks.

        Ticks lie on a grid of the loop's clock, moved by the cluster's splay: whatever a tick takes, they do not
        drift, and those that were missed are skipped.
        """
        loop = asyncio.get_running_loop()
        interval = self.cluster.interval.total_seconds()
        offset = splay(self.name, interval)
        number = math.floor((loop.time() - offset) / interval) + 1
        while not stop.is_set():
            due = number * interval + offset
            if await pass_time(stop, due - loop.time()):
                return
            begun = loop.time()
            try:
                await self.tick()
            except Exception as error:
                # One cluster's trouble, even a defect of ours, must not end the others.
                self.problem = format_error(error)
                log.exception("a tick failed", extra={"cluster": self.name})
            else:
                self.finished = loop.time()
            ended = loop.time()
            self._pace.ticked(begun - due, ended - begun)
            following = max(number + 1, math.floor((ended - offset) / interval) + 1)
            self.tally.skipped += following - number - 1
            number = following

    async def tick(self) -> None:
        """Observe, decide, keep, act: once.

        A tick whose state cannot be kept has not happened: nothing is done, and the next one starts from the state
        that was kept last.
        """
        try:
            state = await self._state()
            observation = await self._observer.observe()
            status = self._observer.status
            after, decision = self._decide(self.cluster.spec, state, observation)
            # As the core trusted it: a stale reading is missing, and says so wherever the observation is shown.
            observation = after.past[-1]
            if self.dry_run and decision.rescale:
                after = call_withheld(after)
            failed = "" if state.rescale is None else state.rescale.error
            record = Record(observation, decision, dry_run=self.dry_run, failed=failed)
            await self._store.save(self.name, after, record)
        except StoreError as error:
            self._set_problem(str(error))
            return
        self._set_problem("")
        self._tell(state, after, observation, decision, status)
        self.state, self.observation, self.decision, self.status = after, observation, decision, status
        # At the same time: what is acted on is in the store, and no request waits for the sink's disk.
        written = asyncio.create_task(self._write(record))
        if decision.rescale and not self.dry_run:
            await self._scale(decision.desired)
        await written

    async def _state(self) -> ClusterState:
        if self.state is None:
            state = await self._store.load(self.name) or ClusterState()
            rescale = state.rescale
            if rescale is not None and not rescale.confirmed and not rescale.error:
                state = call_failed(state, UNANSWERED)
            self.state = state
        return self.state

    async def _write(self, record: Record) -> None:
        try:
            await self._sink.write(record)
        except StoreError:
            log.debug("a record is not in the history", extra={"cluster": self.name})  # The sink has told why.

    async def _scale(self, replicas: int) -> None:
        self._scaling = True
        try:
            async with asyncio.timeout(SCALE_TIMEOUT):
                await self.edges.target().scale(replicas)
        except TimeoutError:
            await self._scale_failed(replicas, f"no answer within {SCALE_TIMEOUT:g} s")
        except asyncio.CancelledError:
            if not cancelled_inside():
                raise
            await self._scale_failed(replicas, INSIDE)
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the next observation tells what holds
            await self._scale_failed(replicas, format_error(error))
        else:
            self.told.refused.clear()
        finally:
            self._scaling = False

    async def _scale_failed(self, replicas: int, error: str) -> None:
        self.tally.failed_calls += 1
        if self.told.refusal(error):
            log.error("scale call failed", extra={"cluster": self.name, "replicas": replicas, "error": error})
        assert self.state is not None  # noqa: S101 - there was a decision, hence a state
        self.state = call_failed(self.state, error)
        try:
            await self._store.save(self.name, self.state, None)
        except StoreError as trouble:
            self._set_problem(str(trouble))

    def _set_problem(self, text: str) -> None:
        if text and text != self._warned:
            log.error("no decision: state cannot be kept", extra={"cluster": self.name, "error": text})
        elif self._warned and not text:
            log.info("deciding again", extra={"cluster": self.name})
        self.problem = self._warned = text

    def _tell(
        self,
        before: ClusterState,
        after: ClusterState,
        observation: Observation,
        decision: Decision,
        status: TargetStatus | None,
    ) -> None:
        """Count the decision, and log what differs from the one before."""
        self._tell_readings(observation, status)
        for reason, text in decision.notes:
            if reason is Reason.UNCONFIRMED and not self.told.refusal(text):
                continue
            log.log(_level(reason), text, extra={"cluster": self.name, "reason": reason})
        self._tell_decision(decision)
        maximum = self.cluster.spec.limits.maximum
        problem = (
            "" if self.told.beyond_use == maximum else beyond_use(self.cluster.spec, observation.engine, after.past)
        )
        if problem:
            self.told.beyond_use = maximum
            log.warning("the maximum is beyond use: %s", problem, extra={"cluster": self.name})
        self._count_phases(before, after)

    def _tell_readings(self, observation: Observation, status: TargetStatus | None) -> None:
        missing, errors = self.told.missing, self.tally.errors
        for name, why in observation.missing.items():
            errors[name] = errors.get(name, 0) + 1
            if name not in missing:
                log.warning("reading is missing", extra={"cluster": self.name, "reading": name, "error": why})
            missing[name] = 0
        for name in missing.keys() - observation.missing.keys():
            missing[name] += 1
            if missing[name] == _BACK:
                del missing[name]
                log.info("reading is back", extra={"cluster": self.name, "reading": name})
        for remark in () if status is None else status.remarks:
            if remark not in self.remarks:
                log.info("target remarks", extra={"cluster": self.name, "remark": remark})

    def _tell_decision(self, decision: Decision) -> None:
        tally, told = self.tally, self.told
        tally.decisions[decision.reason] = tally.decisions.get(decision.reason, 0) + 1
        if decision.rescale:
            direction = Direction.UP if decision.desired > decision.current else Direction.DOWN
            tally.rescales[direction] = tally.rescales.get(direction, 0) + 1
        sizes = (decision.current, decision.desired)
        if sizes != told.sizes:
            told.sizes = sizes
            told.reasons.clear()
        if decision.reason not in told.reasons:
            told.reasons.add(decision.reason)
            what = "rescale" if decision.rescale else "decision"
            log.info(
                f"{what} (dry run)" if self.dry_run else what,
                extra={
                    "cluster": self.name,
                    "current": decision.current,
                    "proposed": decision.proposed,
                    "desired": decision.desired,
                    "reason": decision.reason,
                },
            )

    def _count_phases(self, before: ClusterState, after: ClusterState) -> None:
        for direction, phases in after.learned.durations.items():
            known = before.learned.durations.get(direction, {})
            for phase, seconds in phases.items():
                # Identity: the same durations may come again, and what was not learned anew is the same object.
                if seconds is not known.get(phase):
                    number, total = self.tally.phases.get((direction, phase), (0, 0.0))
                    self.tally.phases[direction, phase] = (number + 1, total + seconds[-1])


def _level(reason: Reason) -> int:
    return logging.WARNING if reason in _TROUBLE else logging.INFO


_TROUBLE = frozenset({Reason.DEADLINE, Reason.UNCONFIRMED, Reason.SUPERSEDED, Reason.CLOCK})
