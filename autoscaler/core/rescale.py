"""Second stage: follow a rescale until it is absorbed: requested, ready, registered, absorbed, running, caught up.

Each phase has a deadline, and its duration is recorded. A rescale that misses a deadline is reported and released: a
worker that never starts must not block decisions forever.
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
"""How many sizes are remembered that were requested in a row while the target showed none of them."""

MAX_OVERRIDES = 3
"""How many times are remembered at which a requested size was changed from outside."""

DEADLINES: Mapping[Phase, timedelta] = {
    Phase.REGISTERED: timedelta(minutes=2),
    Phase.ABSORBED: timedelta(minutes=3),
    Phase.RUNNING: timedelta(minutes=2),
}
"""The deadline of a phase if neither the configuration nor the engine sets one."""

_RECOVERING = frozenset({JobState.RUNNING, JobState.RESTARTING})

_UP = frozenset({JobState.RUNNING, JobState.IDLE})
"""The states of the job in which a rescale can end. If there is no job, there is nothing to wait for."""


@dataclass(slots=True)
class Settled:
    """The result of the second stage.

    Attributes:
        state: with the rescale now in progress, and with what was learned from one that has ended.
        current: the size that the target was set to.
        desired: the size that the target reports.
        notes: what happened, for the decision.
    """

    state: ClusterState
    current: int
    desired: int
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Settling:
    """The progress of a rescale after an observation. One of the first four fields is set.

    Attributes:
        rescale: it is still in progress.
        settled: it has just been absorbed.
        missed: it has just missed a deadline and was released.
        dropped: the target did not accept its request.
        notes: what happened, for the decision.
    """

    rescale: Rescale | None = None
    settled: Rescale | None = None
    missed: Rescale | None = None
    dropped: Rescale | None = None
    notes: tuple[Note, ...] = ()


def settle(seen: Trusted) -> Settled:
    """Follow the rescale in progress, and start to follow changes that were not requested here.

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
        # A rescale that has just settled may have lost a replica after it was ready. Its own restart is over.
        state = _disturb(spec, state, observation, desired, notes, settled=True)
    if notes and any(reason is Reason.SUPERSEDED for reason, _ in notes):
        state = replace(state, override_times=_override_times(state, observation.at))
    rescale = state.rescale
    current = rescale.to if rescale is not None and not rescale.confirmed else desired
    return Settled(state, current, desired, tuple(notes))


def _disturb(
    spec: ClusterSpec, state: ClusterState, observation: Observation, desired: int, notes: list[Note], *, settled: bool
) -> ClusterState:
    """Start to follow changes that were not requested here: another size, lost replicas, a restart of the job."""
    if state.last_missed is not None and not _still_missed(state.last_missed, observation, desired):
        state = replace(state, last_missed=None)
    if state.rescale is not None:
        return state
    before = state.desired
    if before is not None and before != desired and not settled:
        notes.append((Reason.SUPERSEDED, Fact("external_change", {"before": before, "desired": desired})))
        return replace(state, rescale=begin(before, desired, observation.at, Cause.EXTERNAL, observation.ready))
    if state.last_missed is not None or before is None:
        # A missed rescale is not followed again. At the first observation no loss can be known.
        return state
    found = disturbed(spec, observation, desired, state.past, None if settled else _last_run(state, observation))
    if found is None:
        return state
    lost, fact = found
    notes.append((Reason.SETTLING, fact))
    return replace(state, rescale=lost)


def _override_times(state: ClusterState, at: datetime) -> tuple[datetime, ...]:
    """The times at which requested sizes were changed from outside, with now if this is the first since our request.

    A user may change the size as often as they like: only the first change after a request counts.
    """
    before = state.override_times
    if state.requested is None or (before and state.requested < before[-1]):
        return before
    return (*before, at)[-MAX_OVERRIDES:]


def _last_run(state: ClusterState, observation: Observation) -> EngineStatus | None:
    """The last status in which the job was running: around a restart the engine often cannot be polled for a while."""
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
        # Accepted but never shown: another controller has undone it before the next observation.
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
    """Whether the job already runs with the new size, though it may still have to process a backlog."""
    return PHASES.index(rescale.phase) >= PHASES.index(Phase.RUNNING)


def begin(before: int, to: int, at: datetime, cause: Cause, ready: int | None = None) -> Rescale:
    """A rescale at its start. One that was not requested here has already happened, so it is confirmed."""
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
    """A new request, which replaces the rescale in progress. It starts at the size that the target shows.

    Until it is confirmed, it remembers the rescale that it replaced, even an unconfirmed one: if the target does not
    accept the new request, it may still carry out the earlier one.
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
    """Whether it is a step up and none of its replicas has come up."""
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
    """A rescale that stands for a disturbance, and its cause: lost replicas, or a job that restarts by itself.

    A worker that is stopped (SIGTERM) unregisters from the engine, which gives up its slots at once. One that is
    killed, hangs or is cut off does not: its slots stay until its heartbeat times out, and the job stands still.

    `past` has the earlier observations; `last_run` is the last status in which the job was running, if there is one.
    """
    at = observation.at
    ready = observation.ready
    engine = observation.engine
    slots = None if engine is None else engine.slots
    if ready is not None and ready < desired:
        kind = "replicas_gone"
        if not any(seen.desired == desired and (seen.ready or 0) >= desired for seen in reversed(past)):
            kind = "replicas_not_up"  # never seen complete: they are still starting
        elif slots is not None:
            kind = "replicas_killed" if slots > ready * spec.slots_per_replica else "replicas_stopped"
        return begin(ready, desired, at, Cause.LOSS), Fact(kind, {"count": desired - ready, "desired": desired})
    if engine is None:
        return None
    # During a rolling update there may be more replicas than desired: their slots are not those of a lost worker.
    here = max(desired, ready or 0)
    theirs = here * spec.slots_per_replica
    grown = slots is not None and slots > theirs and last_run is not None and (last_run.slots or 0) <= theirs
    # A job that neither runs nor restarts does not wait for a heartbeat, so there is nothing to follow.
    if grown and engine.job in _RECOVERING:
        # A worker was replaced between two observations: the heartbeat of the old one still has to time out.
        lost = replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.READY)
        return lost, Fact("replica_replaced", {"slots": slots, "replicas": here, "theirs": theirs})
    if engine.job is JobState.RESTARTING or (last_run is not None and _restarted(last_run, engine)):
        # Every replica is up: only the job has to restart and catch up.
        return replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.ABSORBED), Fact("job_restarts")
    return None


def stands_still(spec: ClusterSpec, rescale: Rescale | None, observation: Observation) -> bool:
    """Whether a loss has stopped the job. The growing backlog is not load, and a rescale would prolong the stop.

    The job stands still while it restarts, and while the engine still counts the slots of a worker that is gone.
    """
    engine = observation.engine
    if rescale is None or rescale.cause is not Cause.LOSS or engine is None:
        return False
    if engine.job is not JobState.RUNNING:
        return engine.job not in {JobState.UNKNOWN, JobState.IDLE}
    ready = observation.ready
    return ready is not None and engine.slots is not None and engine.slots > ready * spec.slots_per_replica


def futile(spec: ClusterSpec, state: ClusterState, observation: Observation) -> Fact | None:
    """Why a step up must wait: earlier requested replicas do not come up, so more of them would not either.

    A step waits while no replica is up, except during a start from 0 replicas until its deadline. If some are up, it
    waits from the deadline of the last step on, while no more are up than when that step was requested; of several
    steps in a row, the deadline of the first counts. After a missed deadline it waits once more for the same time, then
    one step is tried: the replicas may never come, or may not be ready because there are too few.
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
    """Whether the job has restarted in between: it counts more restarts, or its run began later."""
    if now.restarts is not None and before.restarts is not None and now.restarts > before.restarts:
        return True
    # After a new submission the number of restarts starts from 0.
    return (
        now.running_since is not None
        and before.running_since is not None
        and now.running_since > before.running_since + SAME_RUN
    )


def follow(spec: ClusterSpec, rescale: Rescale, observation: Observation, metrics: Mapping[str, Reading]) -> Settling:
    """Advance a rescale by what is observed. `metrics` are the trusted readings.

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
    """The phase that a rescale in progress waits for."""
    return PHASES[PHASES.index(rescale.phase) + 1]


def deadline(spec: ClusterSpec, rescale: Rescale, phase: Phase) -> timedelta:
    """How long a phase may take: as configured, else as the engine's own settings say, else as in `DEADLINES`."""
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
        # The slots of a lost worker stay registered until its heartbeat times out: more slots mean that it has not yet.
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
    """Whether lag divided by throughput is at most the backlog time; without these metrics it is true at once."""
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
