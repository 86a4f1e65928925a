"""The control loop of one cluster: observe, decide, persist, act, at a fixed rate."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from autoscaler.config.model import Cluster
from autoscaler.core.capacity import beyond_use
from autoscaler.core.evaluate import allowed
from autoscaler.core.explain import describe_control, summarize_decision
from autoscaler.core.model import (
    ClusterState,
    Control,
    Decision,
    Direction,
    Limits,
    Observation,
    Phase,
    Reason,
)
from autoscaler.core.state import call_failed, call_withheld
from autoscaler.core.step import Decide
from autoscaler.daemon.connections import (
    TARGET,
    ClusterConnections,
    expire,
    format_error,
    uncancelled,
)
from autoscaler.daemon.leases import Ownership
from autoscaler.daemon.observer import FindControls, Observer
from autoscaler.daemon.series import Series
from autoscaler.daemon.tracing import span
from autoscaler.ports import ClusterStore, DecisionSink, EdgeError, LeaseLost, Record, StoreError

log = logging.getLogger("autoscaler.daemon.controller")

SCALE_TIMEOUT = 30.0
"""Seconds a scale call may take; after that it is unknown whether the target accepted it."""

NOT_OBSERVED = "not observed yet"

UNANSWERED = "the daemon was stopped, or handed the cluster over, before the target showed the new size"

EXPIRED = "the lease may have expired: another copy of the daemon may control this cluster"

SILENCE = 15.0
"""Seconds without an answer of the state store after which this is reported and a decision is too old to act on.

A database answers, or the call to it times out, sooner.
"""

LATE = "the decision is too old, because the state store or this process was stalled: the next tick decides again"

SHORTEST_PAUSE = 1.0
"""Shortest time in seconds from a tick to a requested one (or the interval, if shorter), however many are requested."""

FIRST = 15.0
"""Seconds until a cluster taken over has its first tick here: each machine's clock gives another grid of ticks."""

_TICKS_UNTIL_BACK = 3
"""Ticks until a reading counts as available again, or a remark as gone: unstable ones must not fill the log."""

_MAX_REFUSALS = 100


RecordTick = Callable[[float, float], None]
"""Records how late a tick began and how long it took, in seconds."""

Ticked = Callable[["Controller"], None]
"""Called after each tick of a controller. It must return at once and must not raise."""


@dataclass(eq=False)
class LogState:
    """What has been logged about a cluster, so that only changes are logged. A reload keeps it.

    Attributes:
        missing: readings that were logged as missing -> ticks since they are available again.
        remarks: remarks that were logged -> ticks since they are gone.
        sizes: current and desired size of the last decision.
        reasons: the reasons of the decisions since these sizes.
        refused: why scale calls have failed since the last success.
        controls: the controls in force at the last tick.
        beyond_use: the maximum that was logged as more than the job can use. It is logged once, because the size that
            a Spark job can use changes with every batch.
    """

    missing: dict[str, int] = field(default_factory=dict)
    remarks: dict[str, int] = field(default_factory=dict)
    sizes: tuple[int, int] | None = None
    reasons: set[Reason] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    controls: tuple[Control, ...] = ()
    beyond_use: int | None = None

    def is_new_refusal(self, why: str) -> bool:
        """Whether this was not logged yet. Words with digits are ignored: a message may contain a request id."""
        why = re.sub(r"\S*\d\S*", "", why)
        if why in self.refused:
            return False
        if len(self.refused) >= _MAX_REFUSALS:
            self.refused.clear()
        self.refused.add(why)
        return True


@dataclass(kw_only=True)
class Counters:
    """The counters of a cluster, kept when a reload replaces its controller.

    Attributes:
        decisions: reason -> decisions.
        rescales: direction -> rescales requested.
        phases: direction and phase -> number and total seconds.
        errors: name of a reading -> how often it was missing.
        failed_calls: scale calls that failed.
        unexpected: errors of its plug-ins that are defects, not failures of an external system.
        skipped: ticks that were skipped because the previous one took too long.
    """

    decisions: dict[Reason, int] = field(default_factory=dict)
    rescales: dict[Direction, int] = field(default_factory=dict)
    phases: dict[tuple[Direction, Phase], tuple[int, float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    unexpected: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A series of failed scale calls.

    Attributes:
        since: when the first call failed.
        replicas: the size that the last call requested.
        error: why the last call failed.
    """

    since: datetime
    replicas: int
    error: str

    def is_over(self, observation: Observation, decision: Decision) -> bool:
        """Whether the target has the size nevertheless, or it is certain that the size is not needed any more."""
        return observation.desired == self.replicas or (
            decision.desired == decision.current and not observation.missing
        )


def splay(name: str, interval: float) -> float:
    """The offset of a cluster's ticks within the interval, in seconds; the same in every process."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * interval


class Controller:
    """Drives one cluster.

    Attributes:
        observation, decision: the last ones that were persisted.
        limits: the limits in force at the last decision; policies may move them.
        state: the input of the next step; None until it has been loaded.
        finished: loop time when the last tick ended without a failure, or when the controller was created.
        problem: why the last tick has no persisted decision, or None.
        refusal: the scale calls that have failed since the last success, while another size is needed; or None.
        template_problem: why the cluster keeps earlier values in the template of its fleet, or None.
        series: the history of the cluster, for charts.
    """

    def __init__(
        self,
        cluster: Cluster,
        connections: ClusterConnections,
        store: ClusterStore,
        sink: DecisionSink,
        *,
        utc: Callable[[], datetime],
        record_tick: RecordTick,
        dry_run: bool,
        decide: Decide,
        ownership: Ownership,
        find_controls: FindControls,
        ticked: Ticked,
    ) -> None:
        self.cluster = cluster
        self.name = cluster.spec.name
        self.connections = connections
        self.dry_run = dry_run or getattr(cluster.target, "advisory", False) is True
        self.counters = Counters()
        self.logged = LogState()
        self.state: ClusterState | None = None
        self.observation: Observation | None = None
        self.decision: Decision | None = None
        self.limits = cluster.spec.limits
        self.problem: str | None = NOT_OBSERVED
        self.refusal: Refusal | None = None
        self.template_problem: str | None = None
        self.series = Series()
        self.finished = asyncio.get_running_loop().time()
        self._store = store
        self._sink = sink
        self._utc = utc
        self._record_tick = record_tick
        self._decide = decide
        self._ownership = ownership
        self._ticked = ticked
        self._observer = Observer(cluster, connections, utc, find_controls)
        self._logged_problem: str | None = None
        self._scaling = False
        self._observing: asyncio.Timeout | None = None
        self._asked: asyncio.Future[None] | None = None
        self._sleeping: asyncio.Timeout | None = None
        self._begun = -math.inf

    def adopt_state_of(self, before: Controller) -> None:
        """Continue from the state of an ended controller of the same cluster."""
        self.counters, self.logged = before.counters, before.logged
        self.state, self.observation, self.decision = before.state, before.observation, before.decision
        self.limits = self._allowed_limits()
        self.problem, self.series = before.problem, before.series
        self.template_problem = before.template_problem
        self.refusal = None if self.dry_run else before.refusal

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks of the target, and the remarks on controls."""
        return () if self.observation is None else self.observation.remarks

    @property
    def controls(self) -> tuple[Control, ...]:
        """The controls in force now, including those set since the last tick."""
        return self._observer.controls_at(self._utc()).controls

    def overdue(self, now: float) -> bool:
        """Whether no tick has succeeded for three intervals and a time-out, plus that of a scale call in progress."""
        limit = (3 * self.cluster.interval + self.cluster.timeout).total_seconds()
        return now - self.finished > limit + (SCALE_TIMEOUT if self._scaling else 0.0)

    def interrupt(self) -> None:
        """Abandon the observation in progress, so that a stop does not wait for a plug-in that hangs."""
        expire(self._observing)

    async def decide_now(self) -> None:
        """Request a tick as soon as possible, and wait for it. Concurrent callers share one tick.

        If the controller ends before, this returns without a new decision.
        """
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            if self._sleeping is not None and not self._sleeping.expired():
                self._sleeping.reschedule(self._hastened(self._sleeping.when() or 0.0))
        # A cancelled caller must not cancel the tick for the others.
        await asyncio.shield(self._asked)

    def _hastened(self, due: float) -> float:
        """When a requested tick begins that would otherwise begin at `due`."""
        interval = self.cluster.interval.total_seconds()
        earliest = self._begun + min(SHORTEST_PAUSE, interval)
        return min(due, max(earliest, asyncio.get_running_loop().time()))

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until stopped. A stop takes effect between two ticks; see also `interrupt`.

        Ticks follow a grid of the loop's clock, shifted by the cluster's splay: they do not drift, however long one
        takes, and missed ticks are skipped. `decide_now` adds a tick, and so does taking over a cluster.
        """
        try:
            await self._run(stop)
        finally:
            # Release the waiting callers, and those who request a tick from here on.
            self._asked = self._asked or asyncio.get_running_loop().create_future()
            _resolve(self._asked)

    async def _sleep(self, stop: asyncio.Event, due: float) -> float | None:
        """Wait until `due`, or until an earlier requested tick. Returns when the tick is due; None: stopped."""
        if self._asked is not None:
            due = self._hastened(due)
        try:
            async with asyncio.timeout_at(due) as self._sleeping:
                await stop.wait()
        except TimeoutError:
            return None if stop.is_set() or self._sleeping is None else self._sleeping.when()
        finally:
            self._sleeping = None
        return None

    async def _run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        interval = self.cluster.interval.total_seconds()
        offset = splay(self.name, interval)
        number = math.floor((loop.time() - offset) / interval) + 1
        taken = interval > FIRST and self._ownership.me is not None and self.state is None
        soon = loop.time() + splay(self.name, FIRST) if taken else math.inf
        while not stop.is_set():
            planned = number * interval + offset
            due, soon = await self._sleep(stop, min(planned, soon)), math.inf
            if due is None:
                return
            # Requests from here on get the next tick: this one may have observed already.
            asked, self._asked = self._asked, None
            begun = self._begun = loop.time()
            try:
                with span("tick", self.name):
                    await self.tick()
            except (asyncio.CancelledError, GeneratorExit):
                _resolve(asked)
                raise
            except BaseException as error:
                # A failure of one cluster, even by a defect of ours, must not end the others.
                self.counters.unexpected += 1
                problem = format_error(error)
                if problem != self.problem:
                    log.exception("tick failed", extra={"cluster": self.name})
                self.problem = problem
            else:
                self.finished = loop.time()
            self._ticked(self)
            ended = loop.time()
            self._record_tick(begun - due, ended - begun)
            following = number if due < planned else number + 1  # a requested tick does not move the grid
            number = max(following, math.floor((ended - offset) / interval) + 1)
            self.counters.skipped += number - following
            _resolve(asked)

    async def tick(self) -> None:
        """Observe, decide, persist and act once.

        A tick whose state cannot be persisted has no effect: the next one starts from the last persisted state.
        """
        try:
            with self._noticed_silence():
                state = await self._state()
            begun = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(None) as self._observing:
                    with span("poll", self.name):
                        observation = await self._observer.observe()
            except TimeoutError:  # `interrupt`: the observer raises nothing
                return
            finally:
                self._observing = None
            self.counters.unexpected += self._observer.unexpected
            with span("decide", self.name):
                after, decision = self._decide(self.cluster.spec, state, observation)
            # The observation as the core used it: it lists stale readings as missing, wherever it is shown.
            observation = after.past[-1]
            if self.dry_run and decision.rescale:
                after = call_withheld(after)
            failed = "" if state.rescale is None else state.rescale.error
            record = Record(observation, decision, dry_run=self.dry_run, failed=failed)
            with self._noticed_silence():
                await self._store.save(self.name, after, record)
        except LeaseLost as error:
            self.problem = str(error)  # the renewal logs what has happened to the lease
            self._ownership.doubt()
            return
        except StoreError as error:
            self._set_problem(str(error))
            return
        self._set_problem(None)
        self._report(state, after, observation, decision)
        self.state, self.observation, self.decision = after, observation, decision
        self.limits = self._allowed_limits()
        self.series.add(self.cluster.spec, after, record)
        if self.refusal is not None and self.refusal.is_over(observation, decision):
            self.refusal = None
            self.logged.refused.clear()
        # Concurrently: the decision is in the store, and no scale call waits for the sink's disk.
        written = asyncio.create_task(self._write(record))
        if decision.rescale and not self.dry_run:
            await self._scale(decision.desired, begun)
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
            log.debug("record not written to the history", extra={"cluster": self.name})  # The sink has logged why.

    async def _scale(self, replicas: int, begun: float) -> None:
        self._scaling = True
        limit = asyncio.timeout(SCALE_TIMEOUT)
        try:
            with uncancelled(), span("scale", self.name, replicas=replicas):
                async with limit:
                    took = asyncio.get_running_loop().time() - begun
                    late = took > self.cluster.timeout.total_seconds() + SILENCE
                    if late or not self._ownership.valid(self.name):
                        raise EdgeError(LATE if late else EXPIRED)  # noqa: TRY301 - it is a call that fails
                    await self.connections.target().scale(replicas)
        except TimeoutError as error:
            ours = limit.expired()  # else it is the plug-in's own
            await self._scale_failed(replicas, f"no answer within {SCALE_TIMEOUT:g} s" if ours else format_error(error))
        except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way; the next observation shows the result
            self.counters.unexpected += not isinstance(error, EdgeError)
            await self._scale_failed(replicas, format_error(error))
        else:
            if self.logged.refused:
                log.info("scale calls succeed again", extra={"cluster": self.name, "replicas": replicas})
            self.logged.refused.clear()
            self.refusal = None
        finally:
            self._scaling = False

    async def _scale_failed(self, replicas: int, error: str) -> None:
        self.counters.failed_calls += 1
        if self.logged.is_new_refusal(error):
            log.error("scale call failed", extra={"cluster": self.name, "replicas": replicas, "error": error})
        assert self.state is not None and self.decision is not None  # noqa: S101, PT018 - a scale call follows a decision
        self.refusal = Refusal(self.refusal.since if self.refusal else self.decision.at, replicas, error)
        self.state = call_failed(self.state, error)
        try:
            await self._store.save(self.name, self.state, None)
        except LeaseLost as store_error:
            self.problem = str(store_error)
            self._ownership.doubt()
        except StoreError as store_error:
            self._set_problem(str(store_error))

    @contextmanager
    def _noticed_silence(self) -> Iterator[None]:
        """Report it as a problem if a call of the store takes longer than `SILENCE`, for example if its disk hangs."""
        text = f"the state store has not answered for {SILENCE:g} s: nothing is scaled until it does"
        late = asyncio.get_running_loop().call_later(SILENCE, self._set_problem, text)
        try:
            yield
        finally:
            late.cancel()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._logged_problem:
            what = "read" if self.state is None else "persist"
            log.error("decision skipped: cannot %s state", what, extra={"cluster": self.name, "error": problem})
        elif self._logged_problem is not None and problem is None:
            log.info("decisions resumed", extra={"cluster": self.name})
        self.problem = self._logged_problem = problem

    def _allowed_limits(self) -> Limits:
        spec = self.cluster.spec
        return spec.limits if self.decision is None else allowed(spec.policies, self.decision.at, spec.limits)[0]

    def _report(
        self,
        before: ClusterState,
        after: ClusterState,
        observation: Observation,
        decision: Decision,
    ) -> None:
        """Count the decision, and log how it differs from the previous one."""
        self._report_readings(observation)
        self._report_controls(observation)
        settled = any(reason is Reason.SETTLED for reason, _ in decision.notes)
        rescale = before.rescale
        at_once = settled and rescale is not None and rescale.at == before.past[-1].at
        for reason, text in decision.notes:
            # One line for a rescale whose last steps were seen together; none for one that had ended by the next tick.
            if settled and (reason is Reason.SETTLING or (reason is Reason.SETTLED and at_once)):
                continue
            # A scale call before the start is logged once; the size requested in its place is logged as a new decision.
            if reason is Reason.UNCONFIRMED and self.refusal is not None and not self.logged.is_new_refusal(text):
                continue
            log.log(_level(reason), text, extra={"cluster": self.name, "reason": reason})
        self._report_decision(decision)
        maximum = self.cluster.spec.limits.maximum
        if self.logged.beyond_use != maximum:
            problem = beyond_use(self.cluster.spec, observation.engine, after.past)
            if problem:
                self.logged.beyond_use = maximum
                log.warning("max is more than the job can use: %s", problem, extra={"cluster": self.name})
        self._count_phases(before, after)

    def _report_readings(self, observation: Observation) -> None:
        missing, errors = self.logged.missing, self.counters.errors
        for name, why in observation.missing.items():
            errors[name] = errors.get(name, 0) + 1
            if name not in missing:
                log.warning("reading is missing", extra={"cluster": self.name, "reading": name, "error": why})
            missing[name] = 0
        for name in missing.keys() - observation.missing.keys():
            missing[name] += 1
            if missing[name] == _TICKS_UNTIL_BACK:
                del missing[name]
                log.info("reading is available again", extra={"cluster": self.name, "reading": name})
        remarks = self.logged.remarks
        for remark in observation.remarks:
            if remark not in remarks:
                log.info("target or annotation reports a condition", extra={"cluster": self.name, "remark": remark})
            remarks[remark] = 0
        # While the target does not answer, its remarks are not known.
        for remark in remarks.keys() - observation.remarks if TARGET not in observation.missing else ():
            remarks[remark] += 1
            if remarks[remark] == _TICKS_UNTIL_BACK:
                del remarks[remark]

    def _report_controls(self, observation: Observation) -> None:
        """Log the controls that have come into force and those that have ended."""
        before, now = self.logged.controls, observation.controls
        if before == now or observation.desired is None:  # while the target does not answer, its controls are not known
            return
        for message, some, others in (("control in force", now, before), ("control ended", before, now)):
            for each in some:
                if each not in others:
                    log.info(message, extra={"cluster": self.name, "control": describe_control(each)})
        self.logged.controls = now

    def _report_decision(self, decision: Decision) -> None:
        counters, logged = self.counters, self.logged
        counters.decisions[decision.reason] = counters.decisions.get(decision.reason, 0) + 1
        if decision.rescale:
            direction = Direction.UP if decision.desired > decision.current else Direction.DOWN
            counters.rescales[direction] = counters.rescales.get(direction, 0) + 1
            if logged.refused:
                return  # While calls fail, every tick repeats the request; the failure has been logged.
        sizes = (decision.current, decision.desired)
        if sizes != logged.sizes:
            arrived = logged.sizes is not None and sizes == 2 * logged.sizes[1:]
            logged.sizes = sizes
            logged.reasons.clear()
            if arrived:  # Nothing new: the cluster has reached the size that was decided.
                logged.reasons.add(decision.reason)
        if decision.reason not in logged.reasons:
            logged.reasons.add(decision.reason)
            what = "rescale" if decision.rescale else "decision"
            log.info(
                f"{what} (dry run)" if self.dry_run else what,
                extra={
                    "cluster": self.name,
                    "current": decision.current,
                    "proposed": decision.proposed,
                    "desired": decision.desired,
                    "reason": decision.reason,
                    "why": summarize_decision(decision),
                },
            )

    def _count_phases(self, before: ClusterState, after: ClusterState) -> None:
        for direction, phases in after.learned.durations.items():
            known = before.learned.durations.get(direction, {})
            for phase, seconds in phases.items():
                # Compare by identity: equal durations may repeat, and durations not learned now are the same object.
                if seconds is not known.get(phase):
                    number, total = self.counters.phases.get((direction, phase), (0, 0.0))
                    self.counters.phases[direction, phase] = (number + 1, total + seconds[-1])


def _resolve(asked: asyncio.Future[None] | None) -> None:
    if asked is not None and not asked.done():
        asked.set_result(None)


def trouble(controller: Controller) -> str | None:
    """Why a cluster is not under control now, or not as it is configured; or None.

    Nothing is decided, its target does not answer or refuses scale calls, or its fleet's template cannot be filled.
    """
    if controller.problem is not None:
        return controller.problem
    missing = {} if controller.observation is None else controller.observation.missing
    if TARGET in missing:
        return f"{TARGET}: {missing[TARGET]}"
    refusal = controller.refusal
    if refusal is None:
        return controller.template_problem
    return (
        f"scale calls have failed since {refusal.since:%Y-%m-%d %H:%M:%S %Z}; "
        f"the last one, to {refusal.replicas}: {refusal.error}"
    )


def _level(reason: Reason) -> int:
    return logging.WARNING if reason in _WARNINGS else logging.INFO


_WARNINGS = frozenset({Reason.DEADLINE, Reason.UNCONFIRMED, Reason.SUPERSEDED, Reason.CLOCK})
