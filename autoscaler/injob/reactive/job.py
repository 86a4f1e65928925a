"""A reactive job: starts, watches, restarts and stops the streaming queries of one PySpark application.

`run` does all work in the caller's thread. The threads of Spark's listener and of the REST server only put events into
its queue and read the last snapshot.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import queue
import random
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoscaler.core.wording import agree, count_of
from autoscaler.injob.reactive.cluster import Executors, Pools, end_after_batch
from autoscaler.injob.reactive.master import Master, read_master
from autoscaler.injob.reactive.measures import Meters
from autoscaler.injob.reactive.options import Options, OptionsError
from autoscaler.injob.reactive.preflight import Finding, findings, read_facts
from autoscaler.injob.reactive.progress_listener import progress_listener
from autoscaler.injob.reactive.proportions import most, pools
from autoscaler.injob.reactive.repartition import UNFINISHED, Checkpoint, choose_partitions
from autoscaler.injob.reactive.restart_choice import Choice, Measured, cause, choose, is_permanent
from autoscaler.injob.reactive.saved_state import Kept, KeptError, KeptFile
from autoscaler.injob.reactive.scheduler import (
    ENDS,
    STOPPED,
    Action,
    Build,
    Built,
    CancelAsked,
    Committed,
    Ended,
    Event,
    Failed,
    Passed,
    Rebuild,
    Required,
    Scheduler,
    Slots,
    StopAsked,
    Stopped,
    StopQueries,
)
from autoscaler.injob.reactive.snapshot import Commit, Executor, Failure, Query, Snapshot, State, Step
from autoscaler.injob.report import read_trigger
from autoscaler.schedulers.flink import MAX_PARALLELISM
from autoscaler.schedulers.slots import Bounds

if TYPE_CHECKING:
    from autoscaler.injob.reactive.rest import Server

POLL = 1.0
"""Seconds between two polls of the executors and the queries."""

CLOSE = 5.0
"""Seconds between two full polls while nothing changes, and seconds for which every poll is full after a change."""

LAST_COMMIT = 60.0
"""Seconds to wait for the end of a batch; then its query is stopped within the batch."""

REPORTED = 0.5
"""Seconds to wait for the report of a last commit."""

SHORT_BATCHES = 2
"""If no Spark job is seen to run during this many batches of a query, the query is stopped between two batches."""

MOST_PUT_OFF = 3
"""After this many consecutive stops with an interrupted last batch, a repartitioning is given up."""

MAX_UNKNOWN = 60.0
"""Seconds for which the executors may be unreadable before the job fails."""

KEPT = 1000
"""Maximum entries of the timeline, and maximum commits, that are kept."""

RESUME_EVERY = 60.0
"""Seconds between two attempts to read the state that another driver has saved."""

FAILURES = 100
MAX_TEXT = 10_000
"""Maximum failures that are kept, and characters of each: Spark's message includes the plan of the query."""

MAX_STORED_FAILURES = 10
"""Failures that are saved for the next driver."""

ASKED = 5.0
"""Seconds for which the REST API stays up after a requested stop, so that clients can read its result."""

EXAMINED = 3
"""After this many commits the preflight check runs again: by then the queries' partitions are known."""

Policy = Callable[[Snapshot, int, Choice], bool]
"""Called before a restart for added slots, with the snapshot, the slots and the reason: False forbids the restart."""

log = logging.getLogger("autoscaler.injob.reactive")


class BuildError(Exception):
    """`build` did not return queries that the job can run; the message says what was expected."""


class JobFailedError(Exception):
    """The job has failed permanently; the message says why."""


class ReactiveJob:
    """The scheduler inside a PySpark job, like Flink's adaptive scheduler inside a Flink job.

    It waits for the slots that the job needs, and starts the queries by calling `build`. After executors are added or
    lost, it lets the next batch use the new set of executors if Spark can do so, and restarts the queries otherwise. It
    also restarts the queries after a failure.

    Args:
        spark: the session, in the driver's own process.
        build: a function that starts the queries with a `checkpointLocation` and returns one query, or a list. It is
            called at each start with the session; then, if it takes them, with the slots and, if there are
            proportions, with the number of tasks that each query may run at once, by query name.
        conf: options of Flink's adaptive scheduler and restart strategies, by Flink's names.
        rest: host and port of the REST API, such as `127.0.0.1:8081`; None: no REST API.
        token: the bearer token that clients of the REST API must send to change anything.
        policy: called before each restart for added slots; see `Policy`.
        options: fields of `Options`, such as `min_slots`; they take precedence over `conf`.

    Raises:
        OptionsError: the options cannot be used; the message lists all problems.
        TypeError: `build` cannot be called with a session.
    """

    def __init__(
        self,
        spark: Any,  # noqa: ANN401 - a SparkSession; pyspark is not imported for the sake of its type
        build: Callable[..., Any],
        *,
        conf: Mapping[str, str | float] | None = None,
        rest: str | None = None,
        token: str | None = None,
        policy: Policy | None = None,
        **options: Any,  # noqa: ANN401 - as the fields are
    ) -> None:
        self._spark = spark
        self._build = build
        self._options = Options.of(conf or {}, **options)
        self._policy = policy
        self._server = None if rest is None else _server(self, rest, token)
        self._takes = _takes(build, maxima=self._options.proportions is not None)
        # A SimpleQueue is reentrant: a signal handler may call `stop` in the thread that waits for an event.
        self._events: queue.SimpleQueue[Event | Commit | Mapping[str, Bounds]] = queue.SimpleQueue()
        self._executors = Executors(spark)
        self._meters = Meters(spark, lambda: self._snapshot.executors)
        self._proportions = self._options.proportions or {}
        self._most: Mapping[str, int] = {}
        self._pools = Pools(spark, self._proportions)
        if self._proportions and (problem := self._pools.problem()):
            raise OptionsError(problem)
        self._scheduler = Scheduler(
            settings=self._options.flink_settings(), max_commit_age=self._options.max_commit_age
        )
        self._running: tuple[tuple[Query, Any], ...] = ()
        self._ended: frozenset[str] = frozenset()
        self._at_start: frozenset[str] = frozenset()
        self._tasks: Mapping[str, int] = {}
        self._batches: dict[str, int] = {}
        self._restart_began: float | None = None
        self._restart_took: float | None = None
        self._commits: deque[Commit] = deque(maxlen=KEPT)
        self._failures: deque[Failure] = deque(maxlen=FAILURES)
        self._timeline: deque[Step] = deque(maxlen=KEPT)
        self._cancelled = threading.Event()
        self._logged: set[Finding] = set()
        self._master: Master | None = None
        self._later = 0.0
        # Decisions use the monotonic clock, so that a change of the machine's clock does not delay a restart.
        self._since_1970 = time.time() - time.monotonic()
        self._looked = self._looked_closely = self._close_until = -math.inf

        self._stops: deque[str] = deque(maxlen=KEPT)
        self._answered = threading.Event()
        self._waiting: deque[Event | Commit | Mapping[str, Bounds]] = deque()
        self._ids: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._tried = 0
        self._file: KeptFile | None = None
        self._resume_at = math.inf
        self._unlimited = self._unkept = False
        self._failing_since: float | None = None
        self._required: dict[str, Bounds] = {}
        self._repartitions = self._options.repartition_state == "allowed" and hasattr(
            spark, "_streamingCheckpointManager"
        )
        self._partitions: dict[str, int] = {}
        self._stable = (0, 0.0)
        self._unreached: set[int] = set()
        self._unfinished: set[str] = set()
        self._put_off: dict[str, int] = {}
        self._real_time: frozenset[str] = frozenset()  # Such a query needs one slot for each task of all its stages.
        self._snapshot = Snapshot(
            # The id stays the same after a restart of the driver, so that clients can follow the job by its id.
            id=_identifier(f"job {spark.sparkContext.appName}"),
            name=str(spark.sparkContext.appName),
            state=State.CREATED,
            now=time.time(),
            settings=self._options.shown(),
        )

    # methods for other threads

    def snapshot(self) -> Snapshot:
        """The job as of the last poll. The executors' task counts may be CLOSE seconds old at the first call."""
        self._look_closely()
        return replace(self._snapshot, now=time.time())

    def require(self, bounds: Mapping[str, Bounds]) -> None:
        """Set the minimum and maximum slots of queries, by query id."""
        self._events.put(bounds)

    def stop(self) -> None:
        """Stop the job at the end of a batch. A signal handler may call this method."""
        self._events.put(StopAsked(time.monotonic()))

    def request_stop(self) -> str:
        """Stop the job like `stop`. Returns an id for `stopped`; the REST API stays up a moment to answer that call."""
        trigger = secrets.token_hex(16)
        self._stops.append(trigger)
        self.stop()
        return trigger

    def stopped(self, trigger: str) -> bool | None:
        """Whether the job has stopped after the request with this id; None: no request has this id."""
        if trigger not in self._stops:
            return None
        if over := self._scheduler.over:
            self._answered.set()
        return over

    def cancel(self) -> None:
        """Stop the job at once."""
        self._cancelled.set()
        self._events.put(CancelAsked(time.monotonic()))

    # the job's own thread

    def preflight(self) -> tuple[Finding, ...]:
        """The problems known by now that prevent the job from being elastic; `run` logs them."""
        slots = sum(one.slots for one in self._executors.seen() if one.active)
        if self._master is None or self._master.problem:
            self._master = read_master(self._spark)
        return findings(read_facts(self._spark, slots=slots, cluster=self._master), self._options)

    def run(self) -> State:
        """Run the job until it is finished, stopped or cancelled.

        Returns:
            How the job ended: FINISHED or CANCELED.

        Raises:
            JobFailedError: the job has failed permanently.
        """
        listeners = [
            progress_listener(self._events, self._meters, self._look_closely),
            *([self._pools.listener()] if self._proportions else []),
        ]
        for listener in listeners:
            self._spark.streams.addListener(listener)
        try:
            if self._server is not None:
                log.info("the REST API listens on %s", self._server.start())
            self._enter(State.CREATED, time.time())
            if self._options.most_slots is not None:
                self._limit(self._options.most_slots, self._executors.seen())
            self._log_findings()
            while not self._scheduler.over:
                self._turn_or_fail()
            if self._server is not None and self._stops:
                self._answered.wait(ASKED)
        finally:
            try:
                self._stop_queries(last_commit=False)
                for listener in listeners:
                    self._spark.streams.removeListener(listener)
            except Exception as error:  # noqa: BLE001 - it must not hide how the job has ended
                log.warning("some of the job's queries or listeners could not be stopped: %s", error)
            finally:
                if self._server is not None:
                    self._server.close()
        if self._scheduler.state is State.FAILED:
            raise JobFailedError(next(one.why for one in reversed(self._timeline) if one.why != STOPPED))
        return self._scheduler.state

    def _turn_or_fail(self) -> None:
        """Run one turn of the loop; if the driver's JVM does not respond, the job fails."""
        try:
            self._turn()
        except Exception as error:
            if self._executors.reachable():
                raise
            log.exception("the driver's JVM does not respond")
            self._running, self._file = (), None  # They ended with the JVM.
            what = f"the connection to the driver's JVM is broken ({type(error).__name__}: {cause(str(error))})"
            why = f"{what}: see the JVM's log, or the system's log if memory was short; start the driver again"
            self._handle(Failed(time.monotonic(), why, permanent=True))
            if not self._scheduler.over:  # The job was already ending, and its queries have ended with the JVM.
                self._handle(Stopped(time.monotonic()))

    def _turn(self) -> None:
        """Wait for one event, handle it, and poll if a poll is due."""
        self._since_1970 = time.time() - time.monotonic()
        wait = self._scheduler.wakes_at + self._later - time.monotonic()
        if wait <= 0:  # The deadline has passed, but the scheduler needs more information: ask it again later.
            wait = POLL
        try:
            event = self._waiting.popleft() if self._waiting else self._events.get(timeout=min(POLL, wait))
            self._handle(self._event(event))
        except queue.Empty:
            if wait <= POLL or self._scheduler.state is not State.RESTARTING:
                self._handle(Passed(time.monotonic()))
        if time.monotonic() - self._looked < POLL / 2:
            return
        if not self._quiet():
            self._looked_closely = time.monotonic()
            self._poll_executors()
            self._poll_queries()
        self._poll_most()
        if self._repartitions:
            self._poll_partitions()
        if self._file is None and self._running and time.monotonic() >= self._resume_at:
            self._resume()
        self._show()
        self._looked = time.monotonic()

    def _look_closely(self) -> None:
        """Request full polls for CLOSE seconds: something has changed, or a client reads the state. Any thread."""
        self._close_until = time.monotonic() + CLOSE

    def _quiet(self) -> bool:
        """Whether no change is known or expected. Then one JVM call suffices, while a full poll takes many.

        A JVM does not compile code that runs once a second for minutes, so each call is far more expensive than it
        need be.
        """
        job, now = self._scheduler.job, time.monotonic()
        settled = self._scheduler.state is State.EXECUTING and job.slots == job.parallelism
        retried = self._unlimited or self._failing_since is not None
        if not settled or retried or now >= self._looked_closely + CLOSE:
            return False
        try:
            if self._executors.changed():
                self._look_closely()
        except Exception:  # noqa: BLE001 - a full poll reports what is wrong
            return False
        return now >= self._close_until

    def _poll_executors(self) -> None:
        try:
            stopped, executors = self._executors.stopped(), self._executors.seen()
        except Exception as error:
            if not self._executors.reachable():
                raise
            self._poll_failed(error)
            return
        self._failing_since = None
        if stopped:
            why = "Spark has stopped the application (its log says why): start the driver again"
            self._handle(Failed(time.monotonic(), why, permanent=True))
            return
        slots = sum(one.slots for one in executors if one.active)
        arrived = {one.id for one in executors if one.active} - {
            one.id for one in self._snapshot.executors if one.active
        }
        if arrived:
            self._batches = {}
            self._tasks = {one.id: one.done for one in executors}
        bounds = self._scheduler.settings.groups[0][0]
        if self._unlimited or (arrived and bounds.upper < MAX_PARALLELISM):
            self._limit(bounds.upper, executors)
        self._snapshot = replace(self._snapshot, executors=executors)
        if slots != self._scheduler.job.slots:
            self._handle(Slots(time.monotonic(), slots))

    def _limit(self, slots: int, executors: Sequence[Executor]) -> None:
        """Limit the job's slots; if the cluster manager does not accept the limit, each poll tries again."""
        try:
            problem = None if self._executors.limit(slots, executors) else "the request was not acknowledged"
        except Exception as error:
            if not self._executors.reachable():
                raise
            problem = f"{type(error).__name__}: {cause(str(error))}"
        if problem and not self._unlimited:
            limit = count_of(slots, "slot")
            log.warning("the cluster manager did not accept the limit of %s: %s; trying again", limit, problem)
        self._unlimited = problem is not None

    def _poll_failed(self, error: Exception) -> None:
        """Continue with the executors known so far; fail after MAX_UNKNOWN seconds."""
        now = time.monotonic()
        what = f"the executors could not be read: {type(error).__name__}: {cause(str(error))}"
        if self._failing_since is None:
            self._failing_since = now
            log.warning("%s; trying again", what)
        elif now - self._failing_since > MAX_UNKNOWN:
            why = f"{what}, for more than {MAX_UNKNOWN:g} s: see Spark's log, and start the driver again"
            self._handle(Failed(now, why, permanent=True))

    def _log_findings(self) -> None:
        """Log the findings of the preflight check, each once."""
        try:
            found = self.preflight()
        except Exception:
            log.exception("the preflight check failed; the job continues")
            return
        for finding in found:
            if finding not in self._logged:
                self._logged.add(finding)
                level = logging.getLevelNamesMapping()[finding.severity.name]
                log.log(level, "%s: %s; %s", finding.name, finding.what, finding.advice)

    def _event(self, what: Event | Commit | Mapping[str, Bounds]) -> Event:
        if isinstance(what, Commit):
            return self._committed(what)
        if isinstance(what, Mapping):
            # Save the bounds before showing them: a client that has read them may rely on them.
            self._required |= what
            self._keep()
            queries = tuple(replace(one, bounds=what.get(one.id, one.bounds)) for one in self._snapshot.queries)
            self._snapshot = replace(self._snapshot, queries=queries)
            return Required(time.monotonic(), _bounds(queries))
        return what

    def _handle(self, event: Event) -> None:
        events = deque([event])
        while events:
            event = events.popleft()
            before = self._scheduler.state
            self._scheduler, actions, steps = self._scheduler.react(event, self._choose)
            self._note(before, steps)
            if isinstance(event, Required):
                self._limit(event.bounds.upper, self._snapshot.executors)
            self._show()
            events.extend(self._act(action) for action in actions)

    def _note(self, state: State, steps: Sequence[Step]) -> None:
        """Log the steps of the scheduler, and add them to the timeline."""
        for step in steps:
            log.info("%s: %s", step.state.value, step.why)
            at = self._shown(step.at)
            self._timeline.append(replace(step, at=at))
            if step.state is not state:
                self._enter(step.state, at)
            state = step.state
        if steps:
            self._keep()

    def _enter(self, state: State, at: float) -> None:
        self._snapshot = replace(self._snapshot, entered={**self._snapshot.entered, state: at})

    def _shown(self, at: float) -> float:
        """Convert a time of the monotonic clock to seconds since 1970."""
        return at + self._since_1970

    def _act(self, action: Action) -> Event:
        if isinstance(action, Build):
            return self._start(action.parallelism)
        began, running = time.monotonic(), self._running
        self._later = random.uniform(0, self._options.jitter_factor) * self._scheduler.job.delay  # noqa: S311 - no secret
        going_on = self._stop_queries(last_commit=action.last_commit)
        stopped = time.monotonic()
        why = self._repartition(action, [each for each in running if each[0].id not in going_on])
        self._restart_began = began + time.monotonic() - stopped  # The restart's duration excludes the repartitioning.
        return Stopped(time.monotonic(), why)

    def _show(self) -> None:
        """Update the snapshot that other threads read."""
        scheduler = self._scheduler
        queries = tuple(
            replace(one, parallelism=scheduler.job.parallelism if self._running else 0, active=False)
            for one in self._snapshot.queries
        )
        runs = self._newest_runs()
        running = {
            query.id: self._meters.seen(runs.get(query.id, ""))
            for query, _ in self._running
            if query.id not in self._ended
        }
        self._snapshot = replace(
            self._snapshot,
            state=scheduler.state,
            queries=tuple(replace(one, active=one.id in running, measures=running.get(one.id)) for one in queries),
            commits=tuple(self._commits),
            failures=tuple(self._failures),
            restarts=scheduler.restarts,
            timeline=tuple(self._timeline),
        )

    # queries

    def _start(self, parallelism: int) -> Event:
        before = {one.runId for one in self._spark.streams.active}
        self._ended = frozenset()
        self._pools.set(pools(self._proportions, parallelism))
        try:
            self._running = self._built(parallelism, before)
        except Exception as error:  # noqa: BLE001 - the job's own code
            self._running = tuple(
                (_query(live, number, Bounds(1, 1)), live)
                for number, live in enumerate(self._spark.streams.active, start=1)
                if live.runId not in before
            )
            return self._failed(error, None)
        runs = {str(live.runId): query.id for query, live in self._running}
        # Keep the previous runs too: their last commits may be reported late.
        self._runs = dict(list(self._runs.items())[-len(runs) :]) | runs
        self._snapshot = replace(self._snapshot, queries=tuple(query for query, _ in self._running))
        self._at_start = frozenset(one.id for one in self._snapshot.executors if one.active)
        self._tasks = {one.id: one.done for one in self._snapshot.executors}
        self._batches = {}
        if self._repartitions:
            triggers = {query.id: read_trigger(self._spark, query.id) for query, _ in self._running}
            self._real_time = frozenset(name for name, text in triggers.items() if text.startswith("RealTimeTrigger"))
        if self._file is None:
            self._resume()
        return Built(time.monotonic())

    def _built(self, parallelism: int, before: AbstractSet[object]) -> tuple[tuple[Query, Any], ...]:
        """Call `build`, and return the queries that it started. Raises BuildError, and whatever `build` raises."""
        maxima = most(self._proportions, parallelism)
        self._most = maxima if self._takes == len(_ARGUMENTS) else {}
        found = _queries(self._build(*(self._spark, parallelism, maxima)[: self._takes]))
        known = {one.id: one for one in self._snapshot.queries}
        if self._proportions and {live.name for live in found} != self._proportions.keys():
            raise BuildError(
                f"it started {_names(live.name for live in found)}, and proportions are given for "
                f"{_names(self._proportions)}: name each query by .queryName(...), and give each its proportion"
            )
        running = []
        for number, live in enumerate(found, start=1):
            query = _query(live, number, self._scheduler.settings.groups[0][0])
            if self._ids.setdefault(query.id, str(live.id)) != str(live.id):
                raise BuildError(
                    f"{query.name} starts from another checkpoint than before, without its state and position: set "
                    '.option("checkpointLocation", ...) to the same directory each time'
                )
            running.append((known.get(query.id, query), live))
        others = {one.runId for one in self._spark.streams.active} - before - {live.runId for live in found}
        if others:
            every = len(others) + len(found)
            raise BuildError(f"it started {every} queries and returned {len(found)}: return all of them, in a list")
        return tuple(running)

    # the state that is saved for the next driver

    def _resume(self) -> None:
        """Restore the state that another driver has saved in the checkpoint directory of the job's first query."""
        self._resume_at = time.monotonic() + RESUME_EVERY
        try:
            file = KeptFile(self._spark, _checkpoint(self._running[0][1]))
            kept = self._read(file)
        except Exception:
            # `_file` stays None, so the state is not overwritten before it has been read.
            if not self._unkept:
                log.exception("the job's timeline cannot be read from its checkpoint directory; trying again")
            self._unkept = True
            return
        self._file = file
        if kept is not None:
            self._take_up(kept)

    def _read(self, file: KeptFile) -> Kept | None:
        """Read the state that another driver has saved; rename a file that cannot be used."""
        try:
            return file.read()
        except KeptError as error:
            log.warning("%s cannot be used: %s; the job continues without its former timeline", file.name, error)
            file.quarantine()
            return None

    def _take_up(self, kept: Kept) -> None:
        """Continue the timeline of another driver, and restore the bounds that were set there."""
        began = self._timeline[0].at
        before = kept.timeline[-1:]
        again = (_again(one, began) for one in before)
        self._timeline = deque((*kept.timeline, *again, *self._timeline), maxlen=KEPT)
        self._failures = deque((*kept.failures, *self._failures), maxlen=FAILURES)
        self._scheduler = replace(self._scheduler, restarts=self._scheduler.restarts + kept.restarts)
        known = {one.id for one in self._snapshot.queries}
        bounds = {query: one for query, one in kept.bounds.items() if query in known - self._required.keys()}
        if bounds and kept.declared == self._declared():
            log.info("the bounds set over the REST API before the driver was restarted are in force again")
            self._required |= bounds
            self._waiting.appendleft(bounds)

    def _declared(self) -> Bounds:
        return self._options.flink_settings().groups[0][0]

    def _keep(self) -> None:
        """Save the state for the next driver. A failure is logged once, and the job continues."""
        if self._file is None:
            return
        kept = Kept(
            declared=self._declared(),
            bounds=self._required,
            restarts=self._scheduler.restarts,
            failures=tuple(self._failures)[-MAX_STORED_FAILURES:],
            timeline=tuple(self._timeline),
        )
        try:
            self._file.write(kept)
            self._unkept = False
        except Exception:
            if not self._unkept:
                log.exception("%s cannot be written; the job continues", self._file.name)
            self._unkept = True

    def _stop_queries(self, *, last_commit: bool) -> set[str]:
        """Stop the queries, with `last_commit` at the end of a batch. Returns the ids of queries that still run."""
        deadline = time.monotonic() + (LAST_COMMIT if last_commit else 0.0)
        runs, seen, left = self._newest_runs(), dict(self._batches), list(self._running)
        ends: set[str] = set()
        going_on: set[str] = set()
        while left:
            for query, live in left[:]:
                run = runs.get(query.id, "")
                if self._waits(deadline) and self._commits_later(live, run, seen.get(run, 0), ends):
                    continue
                left.remove((query, live))
                if not self._stop_query(query, live, last_commit=last_commit):
                    going_on.add(query.id)
            if left:
                self._take_commits()
        deadline = min(deadline, time.monotonic() + REPORTED)
        while self._waits(deadline) and any(self._batches.get(run, 0) == seen.get(run, 0) for run in ends):
            self._take_commits()
        if self._running:
            self._close_idle_connections()
        self._running = ()
        return going_on

    def _commits_later(self, live: Any, run: str, seen: int, ends: set[str]) -> bool:  # noqa: ANN401 - a StreamingQuery
        """Whether to wait for a batch that runs; if this Spark version permits, the query then ends by itself."""
        try:
            if not live.status["isTriggerActive"]:
                return False
            if run not in ends and self._executors.runs_job(run) and end_after_batch(live):
                ends.add(run)
            return run in ends or self._batches.get(run, 0) <= seen + SHORT_BATCHES
        except Exception as error:
            if not self._executors.reachable():  # It is not known whether there was a last commit.
                raise
            log.warning("cannot wait for the last commit: %s", error)
            return False

    def _stop_query(self, query: Query, live: Any, *, last_commit: bool) -> bool:  # noqa: ANN401 - a StreamingQuery
        """Stop one query. Returns whether it has stopped."""
        try:
            live.stop()
            error = live.exception() if last_commit else None
        except Exception as raised:
            if not self._executors.reachable():
                raise
            log.warning("%s did not stop cleanly: %s", query.name, raised)
            return False
        if error is not None:
            log.warning("the last batch of %s failed; it runs again from the checkpoint", query.name)
            self._failed(error, query)
        return True

    def _close_idle_connections(self) -> None:
        try:
            self._executors.close_idle_connections()
        except Exception as error:
            if not self._executors.reachable():
                raise
            log.debug("could not close the connections of queries that have ended: %s", error)

    def _waits(self, deadline: float) -> bool:
        return time.monotonic() < deadline and not self._cancelled.is_set()

    def _take_commits(self) -> None:
        """Process one event if it is a commit, and keep any other event for later."""
        try:
            event = self._events.get(timeout=0.02)
        except queue.Empty:
            return
        if isinstance(event, Commit):
            self._committed(event)
        else:
            self._waiting.append(event)

    def _poll_queries(self) -> None:
        if self._scheduler.state is not State.EXECUTING:
            return
        ended = [(query, live) for query, live in self._running if not live.isActive]
        self._ended = frozenset(query.id for query, _ in ended)
        for query, live in ended:
            error = live.exception()
            if error is not None:
                self._handle(self._failed(error, query))
                return
        if ended and len(ended) == len(self._running):
            self._handle(Ended(time.monotonic()))

    def _failed(self, error: BaseException, query: Query | None) -> Failed:
        at, name, text = time.monotonic(), type(error).__name__, str(error)[:MAX_TEXT]
        self._failures.append(Failure(at=self._shown(at), query=query.id if query else None, error=name, text=text))
        if query and self._repartitions and UNFINISHED in text:
            self._unfinished.add(query.id)
        log.warning("%s failed", query.name if query else "build", exc_info=error)
        where = f"the query {query.name}" if query else "`build`"
        why = f"{where} failed: {name}: {cause(str(error))}"
        if UNFINISHED in text and not self._repartitions:
            return Failed(at, f'{why}; repartition_state="allowed" finishes the repartitioning', permanent=True)
        return Failed(at, why, permanent=is_permanent(name, str(error)))

    def _committed(self, commit: Commit) -> Committed | Passed:
        run = commit.query
        query = self._runs.get(run)
        if query is None:  # The query is not the job's.
            return Passed(time.monotonic())
        self._batches[run] = self._batches.get(run, 0) + 1
        current = bool(self._running) and self._newest_runs()[query] == run
        if commit.state_partitions and current:
            self._partitions[query] = commit.state_partitions
        number = self._snapshot.committed + 1
        self._commits.append(replace(commit, number=number, query=query))
        self._snapshot = replace(self._snapshot, committed=number)
        # The restart ends with the first commit of the new queries. A late report of the old ones does not count.
        began, executing = self._restart_began, self._scheduler.state is State.EXECUTING
        if began is not None and executing and current:
            self._restart_took, self._restart_began = time.monotonic() - began, None
        if number == EXAMINED:
            self._log_findings()
        return Committed(time.monotonic())

    def _newest_runs(self) -> dict[str, str]:
        """The newest run of each query, by query id. Asking Spark would take a call into the JVM."""
        return {query: run for run, query in self._runs.items()}

    # whether to restart

    def _choose(self, slots: int) -> Choice:
        least = self._scheduler.job.parallelism + self._options.min_parallelism_increase
        if slots < least and time.monotonic() < self._scheduler.since + self._options.scaling_interval_max:
            return Choice(
                None,
                f"{count_of(slots, 'slot')} {agree(slots, 'is', 'are')} fewer than {least}: min_parallelism_increase",
            )
        executors = self._snapshot.executors
        new = [one for one in executors if one.active and one.id not in self._at_start]
        runs = {query.name: str(live.runId) for query, live in self._running}
        # An idle query has no batches and needs no slots, so it does not count.
        batches = min((number for run in runs.values() if (number := self._batches.get(run, 0))), default=0)
        stages = {name: self._executors.widest_stage(run) if batches else 0 for name, run in runs.items()}
        widest = max(stages.values(), default=0)
        maxima = most(self._proportions, slots)
        choice = choose(
            Measured(
                slots=slots,
                deployed=self._scheduler.job.parallelism,
                takes_parallelism=self._takes > 1,
                widest=widest,
                tried=self._tried,
                tasks=sum(one.done - self._tasks.get(one.id, 0) for one in executors),
                batches=batches,
                share=_share(executors, new, self._tasks),
                fair=sum(one.slots for one in new) / max(1, slots),
                held=tuple(name for name, held in self._most.items() if held <= stages[name] and held < maxima[name]),
                restart=self._restart_took,
            )
        )
        if choice.restart and not self._permits(slots, choice):
            return Choice(False, f"the job's own policy forbids a restart, although {choice.why}")
        if choice.more_tasks:
            self._tried = widest
        return choice

    def _permits(self, slots: int, choice: Choice) -> bool:
        """Whether the job's own policy permits a restart. A policy that raises is logged, and forbids the restart."""
        try:
            return self._policy is None or bool(self._policy(self.snapshot(), slots, choice))
        except Exception:
            log.exception("the job's own policy failed: the job is not restarted for added slots")
            return False

    def _poll_most(self) -> None:
        """Restart the job if slots were lost and a query's maximum of tasks is now below the one it was built with."""
        if self._scheduler.state is not State.EXECUTING:
            return
        maxima = most(self._proportions, self._scheduler.job.parallelism)
        fewer = [
            f"{name} may have {count_of(maxima[name], 'task')} at once instead of {held}"
            for name, held in self._most.items()
            if maxima[name] < held
        ]
        if fewer:
            self._handle(Rebuild(time.monotonic(), 0, ", and ".join(fewer)))

    # the number of state partitions

    def _poll_partitions(self) -> None:
        """Restart the job to repartition state if it has had fewer partitions than there are slots for long enough."""
        now, runs = time.monotonic(), self._newest_runs()
        slots = self._scheduler.job.parallelism if self._scheduler.state is State.EXECUTING else 0
        if slots != self._stable[0]:
            self._stable = (slots, now)
        due = choose_partitions(
            slots,
            now - self._stable[1],
            {
                query.name: self._partitions[query.id]
                for query, _ in self._running
                if query.id in self._partitions.keys() - self._real_time and self._batches.get(runs.get(query.id, ""))
            },
            after=self._options.repartition_after,
            most=self._options.max_parallelism or MAX_PARALLELISM,
            failed=self._unreached,
        )
        if due is None or now - self._scheduler.committed > self._options.max_commit_age:
            return
        self._stable = (slots, now)
        if self._permits(slots, Choice(True, due.why)):
            self._handle(Rebuild(now, due.partitions, due.why))

    def _repartition(self, action: StopQueries, running: Iterable[tuple[Query, Any]]) -> str:
        """Repartition the state of the stopped queries, and return a summary for the timeline."""
        if self._scheduler.state is not State.RESTARTING or self._cancelled.is_set():
            return ""
        unfinished, self._unfinished = self._unfinished, set()
        said = (
            self._repartition_query(query, _checkpoint(live), action.partitions)
            for query, live in running
            if query.id in unfinished or 0 < self._partitions.get(query.id, 0) < action.partitions
        )
        return "; ".join(one for one in said if one)

    def _repartition_query(self, query: Query, directory: str, partitions: int) -> str:
        """Repartition the state of one query, or finish a repartitioning that was interrupted; return a summary."""
        began = time.monotonic()
        try:
            checkpoint = Checkpoint(self._spark, directory)
            begun = checkpoint.unfinished()
            partitions = begun or partitions
            if not partitions:
                return ""  # Another process has finished it.
            if checkpoint.interrupted():
                # Spark would refuse the repartitioning, or skip that batch, and a sink might get its records twice.
                self._put_off[query.id] = self._put_off.get(query.id, 0) + 1
                if self._put_off[query.id] >= MOST_PUT_OFF:
                    self._unreached.add(partitions)
                    return f"the last batch of {query.name} was interrupted again: its state stays as it is"
                return f"the last batch of {query.name} was interrupted: its state is repartitioned at a later restart"
            checkpoint.repartition(partitions, self._idle)
        except Exception as error:
            if not self._executors.reachable():
                raise
            self._unreached.add(partitions)
            into = f"repartitioned into {partitions} partitions" if partitions else "examined"
            what = f"the state of {query.name} could not be {into}"
            log.warning("%s; the job continues", what, exc_info=error)
            at, name, text = self._shown(time.monotonic()), type(error).__name__, str(error)[:MAX_TEXT]
            self._failures.append(Failure(at=at, query=query.id, error=name, text=text))
            return f"{what}: {cause(text)}"
        before = f"instead of {self._partitions[query.id]}" if begun is None else "as was begun before"
        self._partitions[query.id] = partitions
        self._put_off.pop(query.id, None)
        took = time.monotonic() - began
        return f"the state of {query.name} has {partitions} partitions {before}: that took {took:.1f} s"

    def _idle(self) -> bool:
        return not any(one.busy for one in self._executors.seen() if one.active)


def _server(job: ReactiveJob, listen: str, token: str | None) -> Server:
    # Import only if needed: an HTTP server takes 15 MB of memory.
    from autoscaler.injob.reactive.rest import Server  # noqa: PLC0415

    return Server(job, listen, token)


def _share(executors: Sequence[Executor], new: Sequence[Executor], before: Mapping[str, int]) -> float:
    """The fraction of the tasks since `before` that ran on the executors `new`."""
    done = {one.id: one.done - before.get(one.id, 0) for one in executors}
    return sum(done[one.id] for one in new) / max(1, sum(done.values()))


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


_ARGUMENTS: tuple[Any, ...] = (None, 1, {})
"""Sample arguments of `build`: the session, the slots, and the tasks that each query may run at once."""


def _takes(build: Callable[..., Any], *, maxima: bool = False) -> int:
    """How many of its possible arguments `build` takes; the maxima only if there are proportions.

    Raises:
        TypeError: `build` cannot be called with a session.
    """
    expected = "the session and, if it needs it, the parallelism" + (" and the maxima" if maxima else "")
    if not callable(build):
        raise TypeError(f"build is {build!r}, expected a function of {expected}")
    for number in range(len(_ARGUMENTS) if maxima else 2, 0, -1):
        try:
            inspect.signature(build).bind(*_ARGUMENTS[:number])
        except TypeError:
            continue
        return number
    raise TypeError(f"build takes {inspect.signature(build)}, expected {expected}")


def _queries(result: Any) -> list[Any]:  # noqa: ANN401 - whatever `build` returns
    """Convert the return value of `build` to a list of queries. Raises BuildError."""
    found = list(result) if isinstance(result, list | tuple) else [result]
    if not found or any(not hasattr(one, "runId") for one in found):
        what = "nothing" if not found or found == [None] else type(result).__name__
        raise BuildError(
            f"it returned {what}, expected the query that `writeStream....start()` gives, or a list of them"
        )
    for live in found:
        last = _checkpoint(live).rstrip("/").rsplit("/", 1)[-1]
        # Under `spark.sql.streaming.checkpointLocation`, a query without a name gets a new directory at each start.
        if last.startswith("temporary-") or (not live.name and _UUID.fullmatch(last)):
            raise BuildError(
                f"the query {live.name or live.id} has no checkpoint of its own, so a restart would lose or repeat "
                'records: set .option("checkpointLocation", ...) to a directory that outlives the driver'
            )
    return found


def _names(names: Iterable[str | None]) -> str:
    return ", ".join(sorted(name or "a query without a name" for name in names))


def _query(live: Any, number: int, bounds: Bounds) -> Query:  # noqa: ANN401 - a StreamingQuery
    name = live.name or f"query {number}"
    return Query(id=_identifier(name), name=name, bounds=bounds, active=True)


def _identifier(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def _checkpoint(live: Any) -> str:  # noqa: ANN401 - a StreamingQuery
    return str(live._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001 - there is no public way


def _again(last: Step, at: float) -> Step:
    """The timeline entry for the change from one driver to the next."""
    why = "the driver was started again"
    if last.state not in ENDS:
        why += f": the previous one ended while the job was {last.state.value}"
    return Step(at=at, state=State.CREATED, why=why, slots=0, before=last.after, after=0, took=max(0.0, at - last.at))


def _bounds(queries: Sequence[Query]) -> Bounds:
    """The bounds of all queries together. The queries share the slots, so these are the maxima."""
    return Bounds(max(one.bounds.lower for one in queries), max(one.bounds.upper for one in queries))
