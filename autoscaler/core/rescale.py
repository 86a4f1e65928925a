"""Second stage: following a rescale until it is absorbed: requested, ready, registered, absorbed, running, caught up.

Each phase has a deadline and its duration is kept. A rescale that misses a deadline is reported and released: a
worker that never starts must not hold decisions forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from autoscaler.core.capacity import learn_durations, learn_times
from autoscaler.core.model import (
    PHASES,
    SAME_RUN,
    Cause,
    ClusterSpec,
    ClusterState,
    Direction,
    EngineStatus,
    Fact,
    JobState,
    Observation,
    Phase,
    Reading,
    Reason,
    Rescale,
)
from autoscaler.core.rescale_times import observed_times
from autoscaler.core.trust import Note, Trusted

MAX_EARLIER = 8
"""So many sizes are known that were requested in a row while the target showed none of them."""

MAX_OVERRIDES = 3
"""So many times at which a requested size was changed from outside are kept."""

DEADLINES: Mapping[Phase, timedelta] = {
    Phase.REGISTERED: timedelta(minutes=2),
    Phase.ABSORBED: timedelta(minutes=3),
    Phase.RUNNING: timedelta(minutes=2),
}
"""What a phase may take when neither the configuration nor the engine limits it."""

_RECOVERING = frozenset({JobState.RUNNING, JobState.RESTARTING})

_UP = frozenset({JobState.RUNNING, JobState.IDLE})
"""What a rescale ends in: nothing is waited for where there is no job."""


@dataclass(slots=True)
class Settled:
    """What the second stage found.

    Attributes:
        state: with the rescale that is on its way now, and what the one that ended has taught.
        current: the size that the target was set to.
        desired: the size the target shows.
        notes: what happened, for the decision.
    """

    state: ClusterState
    current: int
    desired: int
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Settling:
    """Where a rescale stands after an observation.

    Attributes:
        rescale: the one still on its way.
        settled: the one that has just been absorbed.
        missed: the one that has just been released at a deadline.
        dropped: the one whose request never reached the target.
        notes: what happened, for the decision.
    """

    rescale: Rescale | None = None
    settled: Rescale | None = None
    missed: Rescale | None = None
    dropped: Rescale | None = None
    notes: tuple[Note, ...] = ()


def settle(seen: Trusted) -> Settled:
    """Follow the rescale that is on its way, and begin to follow what happened without a request.

    The target's size must be known (`Trusted.size_known`).
    """
    spec, state, observation = seen.spec, seen.state, seen.observation
    desired = observation.desired or 0
    notes = list(seen.notes)
    if state.rescale is None:
        state = _disturb(spec, state, observation, desired, notes, settled=False)
        if state.rescale is not None:
            state = _follow(spec, state, observation, notes)
    else:
        state = _follow(spec, state, observation, notes)
        # What has just settled may have lost a replica since it was ready. Its own restart is over.
        state = _disturb(spec, state, observation, desired, notes, settled=True)
    if notes and any(reason is Reason.SUPERSEDED for reason, _ in notes):
        state = replace(state, override_times=_override_times(state, observation.at))
    rescale = state.rescale
    current = rescale.to if rescale is not None and not rescale.confirmed else desired
    return Settled(state, current, desired, tuple(notes))


def _disturb(
    spec: ClusterSpec, state: ClusterState, observation: Observation, desired: int, notes: list[Note], *, settled: bool
) -> ClusterState:
    """Begin to follow what was not requested here: another size, lost replicas, the job restarting."""
    if state.last_missed is not None and not _still_missed(state.last_missed, observation, desired):
        state = replace(state, last_missed=None)
    if state.rescale is not None:
        return state
    before = state.desired
    if before is not None and before != desired and not settled:
        notes.append((Reason.SUPERSEDED, Fact("external_change", {"before": before, "desired": desired})))
        return replace(state, rescale=begin(before, desired, observation.at, Cause.EXTERNAL, observation.ready))
    if state.last_missed is not None or before is None:
        # What was given up is not waited for again; and at first sight nothing is known to have been lost.
        return state
    found = disturbed(spec, observation, desired, state.past, None if settled else _last_run(state, observation))
    if found is None:
        return state
    lost, fact = found
    notes.append((Reason.SETTLING, fact))
    return replace(state, rescale=lost)


def _override_times(state: ClusterState, at: datetime) -> tuple[datetime, ...]:
    """When sizes that were requested here were changed from outside, now as well if the last one was requested here.

    Users may change it as often as they like.
    """
    before = state.override_times
    if state.requested is None or (before and state.requested < before[-1]):
        return before
    return (*before, at)[-MAX_OVERRIDES:]


def _last_run(state: ClusterState, observation: Observation) -> EngineStatus | None:
    """What the engine showed when the job was last seen running: at a restart it often cannot be asked for a while."""
    if observation.engine is None:
        return None
    for seen in reversed(state.past):
        if seen.engine is not None and seen.engine.job is JobState.RUNNING:
            return seen.engine
    return None


def _still_missed(missed: Rescale, observation: Observation, desired: int) -> bool:
    engine = observation.engine
    short = observation.ready is not None and observation.ready < desired
    restarting = engine is not None and engine.job is JobState.RESTARTING
    return missed.to == desired and (short or restarting)


def _follow(spec: ClusterSpec, state: ClusterState, observation: Observation, notes: list[Note]) -> ClusterState:
    rescale = state.rescale
    if rescale is None:
        return state
    settling = follow(spec, rescale, observation, observation.metrics)
    notes.extend(settling.notes)
    at = observation.at
    if settling.dropped is not None:
        events = tuple(event for event in state.events if event.at != settling.dropped.at)
        return _follow(spec, replace(state, rescale=settling.dropped.replaced, events=events), observation, notes)
    if settling.missed is not None:
        # Accepted and never shown: another controller put it back before the next observation.
        times = state.override_times if settling.missed.confirmed else _override_times(state, at)
        return replace(
            state,
            rescale=None,
            last_missed=settling.missed,
            cooldown_from=at,
            disturbance_ended_at=at,
            override_times=times,
        )
    moved = settling.settled or settling.rescale
    if moved is not None and moved.cause is Cause.REQUEST and runs(moved) and not runs(rescale):
        learned = learn_times(state.learned, moved.direction, observed_times(moved, state, observation))
        state = replace(state, learned=learned)
    if settling.settled is not None:
        done = settling.settled
        learned = learn_durations(state.learned, done) if done.cause is Cause.REQUEST else state.learned
        ended = state.disturbance_ended_at if runs(rescale) else at
        return replace(state, rescale=None, cooldown_from=at, disturbance_ended_at=ended, learned=learned)
    if moved is not None and runs(moved) and not runs(rescale):
        return replace(state, rescale=moved, disturbance_ended_at=at)
    return replace(state, rescale=moved)


def runs(rescale: Rescale) -> bool:
    """Whether the job runs with the size already, though it may have a backlog to catch up with."""
    return PHASES.index(rescale.phase) >= PHASES.index(Phase.RUNNING)


def begin(before: int, to: int, at: datetime, cause: Cause, ready: int | None = None) -> Rescale:
    """A rescale at its start. One that was not requested here is there already, so it is confirmed."""
    return Rescale(
        before=before,
        to=to,
        at=at,
        cause=cause,
        phase=Phase.REQUESTED,
        since=at,
        confirmed=cause is not Cause.REQUEST,
        ready_before=None if ready is None else min(ready, before),
    )


def request(shown: int, to: int, observation: Observation, under_way: Rescale | None) -> Rescale:
    """A request in place of what is under way, from the size that the target shows: that may be one of before it.

    Until it is confirmed it knows what it replaced, even what is not confirmed itself: if it is not accepted, that
    may still arrive.
    """
    ready = observation.ready
    begun = begin(shown, to, observation.at, Cause.REQUEST, ready)
    if under_way is None:
        return begun
    replaced: Rescale | None = under_way
    earlier: tuple[int, ...] = ()
    if not under_way.confirmed:
        earlier = (*under_way.earlier, under_way.to)[-MAX_EARLIER:]
        if len(earlier) == MAX_EARLIER:
            replaced = under_way.replaced
    if ready is not None and _nothing_came(under_way, ready):
        since = under_way.waiting_since or under_way.at
        begun = replace(begun, waiting_since=since, ready_before=under_way.ready_before)
    return replace(begun, replaced=replaced, earlier=earlier)


def _nothing_came(rescale: Rescale, ready: int) -> bool:
    """Whether it is a step up of which no replica has come up."""
    if rescale.cause is Cause.LOSS or rescale.direction is Direction.DOWN or rescale.phase is not Phase.REQUESTED:
        return False
    return ready <= (rescale.before if rescale.ready_before is None else rescale.ready_before)


def disturbed(
    spec: ClusterSpec,
    observation: Observation,
    desired: int,
    past: tuple[Observation, ...],
    last_run: EngineStatus | None,
) -> tuple[Rescale, Fact] | None:
    """A rescale for a disturbance, and what it is: lost replicas, or a job that restarts by itself.

    A worker that is stopped (SIGTERM) unregisters from the engine, which gives up its slots at once. One that is
    killed, hangs or is cut off does not: its slots stay until its heartbeat times out, and the job stands still.

    `past` is what was seen before; `last_run` is what the engine showed when the job was last seen running, if it was.
    """
    at = observation.at
    ready = observation.ready
    engine = observation.engine
    slots = None if engine is None else engine.slots
    if ready is not None and ready < desired:
        kind = "replicas_gone"
        if not any(seen.desired == desired and (seen.ready or 0) >= desired for seen in reversed(past)):
            kind = "replicas_not_up"  # never seen whole: they are still on their way
        elif slots is not None:
            kind = "replicas_killed" if slots > ready * spec.slots_per_replica else "replicas_stopped"
        return begin(ready, desired, at, Cause.LOSS), Fact(kind, {"count": desired - ready, "desired": desired})
    if engine is None:
        return None
    # A surge, as of a rolling update, has more replicas than desired: their slots are not those of a lost worker.
    here = max(desired, ready or 0)
    theirs = here * spec.slots_per_replica
    grown = slots is not None and slots > theirs and last_run is not None and (last_run.slots or 0) <= theirs
    # A job that is neither running nor coming back waits for no heartbeat, and is held as it is.
    if grown and engine.job in _RECOVERING:
        # Replaced between two observations: the heartbeat of the one before has still to time out.
        lost = replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.READY)
        return lost, Fact("replica_replaced", {"slots": slots, "replicas": here, "theirs": theirs})
    if engine.job is JobState.RESTARTING or (last_run is not None and _restarted(last_run, engine)):
        # Every replica is there: only the job has to restart and catch up.
        return replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.ABSORBED), Fact("job_restarts")
    return None


def stands_still(spec: ClusterSpec, rescale: Rescale | None, observation: Observation) -> bool:
    """Whether a loss has stopped the job. The backlog that grows is not load; a rescale prolongs the stop.

    It stands still while it restarts, and while the engine counts the slots of a worker that is not there any more.
    """
    engine = observation.engine
    if rescale is None or rescale.cause is not Cause.LOSS or engine is None:
        return False
    if engine.job is not JobState.RUNNING:
        return engine.job not in {JobState.UNKNOWN, JobState.IDLE}
    ready = observation.ready
    return ready is not None and engine.slots is not None and engine.slots > ready * spec.slots_per_replica


def futile(spec: ClusterSpec, state: ClusterState, observation: Observation) -> Fact | None:
    """Why a step up has to wait: what was requested before it does not come up, so more would not either.

    With no replica up at all it waits; a start from nothing is not waited for before its deadline. Where some are up,
    it waits while no more are than when the last step was requested, from that step's deadline on; of several steps
    in a row the first one's counts. What has missed its deadline is waited for as long once more, then one step is
    tried: these replicas may never come, or not be ready because there are too few.
    """
    ready, rescale, missed = observation.ready, state.rescale, state.last_missed
    if ready is None or ready >= (observation.desired or 0):
        return None
    at = observation.at
    values: dict[str, object] = {
        "desired": observation.desired,
        "rescale": rescale or missed,
        "remarks": observation.remarks,
    }
    if rescale is None and missed is not None:
        if ready > 0 and not _nothing_came(missed, ready):
            return None
        values["passed"] = passed = at - (state.cooldown_from or at)
        values["pause"] = pause = deadline(spec, missed, Phase.READY)
        return None if passed >= pause else Fact("step_not_up" if ready else "none_came_up", values)
    if ready == 0:
        starts = rescale is not None and rescale.before == 0 and rescale.cause is not Cause.LOSS
        return None if starts else Fact("none_up", values)
    if rescale is None or not _nothing_came(rescale, ready):
        return None
    values["passed"] = passed = at - (rescale.waiting_since or rescale.at)
    return Fact("nothing_comes_up", values) if passed > deadline(spec, rescale, Phase.READY) else None


def _restarted(before: EngineStatus, now: EngineStatus) -> bool:
    """Whether the job has restarted in between: it counts one more restart, or has been running for a shorter time."""
    if now.restarts is not None and before.restarts is not None and now.restarts > before.restarts:
        return True
    # After a new submission the count starts from 0.
    return (
        now.running_since is not None
        and before.running_since is not None
        and now.running_since > before.running_since + SAME_RUN
    )


def follow(spec: ClusterSpec, rescale: Rescale, observation: Observation, metrics: Mapping[str, Reading]) -> Settling:
    """Move a rescale on by what is observed. `metrics` are the trusted readings.

    The target's size must be known (`observation.desired`).
    """
    at = observation.at
    desired = observation.desired
    if observation.engine is not None and observation.engine.deadlines:
        rescale = replace(rescale, deadlines=observation.engine.deadlines)
    if desired == rescale.to:
        if not rescale.confirmed:
            rescale = replace(rescale, confirmed=True, error="", replaced=None, earlier=())
    elif not rescale.confirmed and (desired == rescale.before or desired in rescale.earlier):
        if rescale.error:
            fact = Fact("not_accepted", {"before": rescale.before, "to": rescale.to, "error": rescale.error})
            return Settling(dropped=rescale, notes=((Reason.UNCONFIRMED, fact),))
    else:
        assert desired is not None  # noqa: S101 - the caller has checked; for the type checker
        return Settling(
            rescale=begin(
                rescale.to if rescale.confirmed else rescale.before, desired, at, Cause.EXTERNAL, observation.ready
            ),
            notes=((Reason.SUPERSEDED, Fact("replaced_outside", {"to": rescale.to, "desired": desired})),),
        )
    notes: list[Note] = []
    while rescale.phase is not Phase.CAUGHT_UP:
        phase = next_phase(rescale)
        took = (at - rescale.since).total_seconds()
        if not _reached(phase, spec, rescale, observation, metrics):
            limit = deadline(spec, rescale, phase).total_seconds()
            if took <= limit:
                return Settling(rescale=rescale, notes=tuple(notes))
            late = {"rescale": rescale, "phase": phase, "limit": limit, "remarks": observation.remarks}
            return Settling(missed=rescale, notes=(*notes, (Reason.DEADLINE, Fact("deadline_missed", late))))
        rescale = replace(rescale, phase=phase, since=at, durations={**rescale.durations, phase: took})
        fact = Fact("phase_reached", {"rescale": rescale, "phase": phase, "took": took})
        notes.append((Reason.SETTLING, fact))
    fact = Fact("settled", {"rescale": rescale, "took": (at - rescale.at).total_seconds()})
    return Settling(settled=rescale, notes=(*notes, (Reason.SETTLED, fact)))


def next_phase(rescale: Rescale) -> Phase:
    """What a rescale on its way waits for."""
    return PHASES[PHASES.index(rescale.phase) + 1]


def deadline(spec: ClusterSpec, rescale: Rescale, phase: Phase) -> timedelta:
    """How long a phase may take: as configured, else by the engine's own settings, else `DEADLINES`."""
    configured: timedelta | None = getattr(spec.settle, phase.value)
    if configured is not None:
        return configured
    return rescale.deadlines.get(phase) or DEADLINES[phase]


def _reached(
    phase: Phase,
    spec: ClusterSpec,
    rescale: Rescale,
    observation: Observation,
    metrics: Mapping[str, Reading],
) -> bool:
    if phase is Phase.READY:
        ready = observation.ready
        return (
            rescale.confirmed
            and ready is not None
            and (ready >= rescale.to if rescale.direction is Direction.UP else ready <= rescale.to)
        )
    if phase is Phase.CAUGHT_UP:
        return _caught_up(spec, metrics)
    if not spec.engine:
        return True
    engine = observation.engine
    if engine is None:
        return False
    if phase is Phase.REGISTERED:
        return _registered(spec, rescale, engine)
    if phase is Phase.ABSORBED:
        return _absorbed(spec, rescale, engine)
    return engine.job in _UP


def _registered(spec: ClusterSpec, rescale: Rescale, engine: EngineStatus) -> bool:
    if engine.slots is None:
        return True
    expected = rescale.to * spec.slots_per_replica
    if rescale.cause is Cause.LOSS:
        # The slots of a lost worker stay registered until its heartbeat runs out: more is not there yet.
        return engine.slots == expected
    return engine.slots >= expected if rescale.direction is Direction.UP else engine.slots <= expected


def _absorbed(spec: ClusterSpec, rescale: Rescale, engine: EngineStatus) -> bool:
    if engine.parallelism is None:
        return True
    slots = rescale.to * spec.slots_per_replica
    if rescale.direction is Direction.DOWN:
        return engine.parallelism <= slots
    partitions = engine.partitions or spec.partitions
    usable = min(slots, engine.max_parallelism or slots, partitions or slots)
    return engine.parallelism >= usable


def _caught_up(spec: ClusterSpec, metrics: Mapping[str, Reading]) -> bool:
    """Lag divided by throughput is at most the backlog time; a job without these metrics has caught up at once."""
    if spec.settle.lag not in spec.metrics:
        return True
    lag = metrics.get(spec.settle.lag)
    if lag is None:
        return False
    waiting = _total(lag)
    if waiting <= 0:
        return True
    throughput = metrics.get(spec.settle.throughput)
    if throughput is None:
        return spec.settle.throughput not in spec.metrics
    return waiting <= _total(throughput) * spec.settle.backlog_time.total_seconds()


def _total(reading: Reading) -> float:
    return sum(reading.value) if isinstance(reading.value, tuple) else reading.value
