"""Following a rescale until the engine has absorbed it: requested, ready, registered, absorbed, running, caught up.

Each phase has a deadline and its duration is kept. A rescale that misses a deadline is reported and released: a
worker that never comes must not hold decisions forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from autoscaler.core.model import (
    PHASES,
    Cause,
    ClusterSpec,
    Direction,
    EngineStatus,
    JobState,
    Observation,
    Phase,
    Reading,
    Reason,
    Rescale,
)

Note = tuple[Reason, str]

DEADLINES: Mapping[Phase, timedelta] = {
    Phase.REGISTERED: timedelta(minutes=2),
    Phase.ABSORBED: timedelta(minutes=3),
    Phase.RUNNING: timedelta(minutes=2),
}
"""What a phase may take when neither the configuration nor the engine says."""

_RECOVERING = frozenset({JobState.RUNNING, JobState.RESTARTING})

_SAME = timedelta(seconds=1)
"""A beginning that moves by less is the same one, told anew."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Where a rescale stands after an observation.

    Attributes:
        rescale: the one still on its way, or None.
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


def begin(before: int, to: int, at: datetime, cause: Cause) -> Rescale:
    """A rescale at its start. One that we did not request is there already, hence confirmed."""
    return Rescale(before, to, at, cause, Phase.REQUESTED, at, confirmed=cause is not Cause.REQUEST)


def disturbed(
    spec: ClusterSpec,
    observation: Observation,
    desired: int,
    past: tuple[Observation, ...],
    last_run: EngineStatus | None,
) -> tuple[Rescale, str] | None:
    """A rescale for what nobody requested, and what it is: replicas that are gone, or a job that restarts by itself.

    A worker that is stopped (SIGTERM) tells the engine, which gives up its slots at once. One that is killed, hangs or
    is cut off tells nobody: its slots stay until its heartbeat runs out, and so long the job stands still.

    `past` is what was seen before; `last_run` is what the engine showed when the job was last seen running, if it was.
    """
    at = observation.at
    ready = observation.ready
    engine = observation.engine
    slots = None if engine is None else engine.slots
    if ready is not None and ready < desired:
        # Never seen whole: they are still on their way.
        if not any(seen.desired == desired and (seen.ready or 0) >= desired for seen in reversed(past)):
            return begin(ready, desired, at, Cause.LOSS), f"{desired - ready} of {desired} replicas are not up"
        text = f"{desired - ready} of {desired} replicas are gone"
        if slots is not None and slots > ready * spec.slots_per_replica:
            text += "; the engine still counts their slots, as for workers that were killed or hang"
        elif slots is not None:
            text += "; the engine has given up their slots, as for workers that were stopped"
        return begin(ready, desired, at, Cause.LOSS), text
    if engine is None:
        return None
    # A surge, as of a rolling update, has more replicas than desired: their slots are nobody's that is gone.
    here = max(desired, ready or 0)
    theirs = here * spec.slots_per_replica
    grown = slots is not None and slots > theirs and last_run is not None and (last_run.slots or 0) <= theirs
    # A job that is neither running nor coming back waits for no heartbeat, and is held as it is.
    if grown and engine.job in _RECOVERING:
        # Replaced before anybody noticed: the heartbeat of the one before has still to run out.
        lost = replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.READY)
        text = f"the engine counts {slots} slots where {here} replicas have {theirs}"
        return lost, f"{text}, as when a worker was killed and is replaced already"
    if engine.job is JobState.RESTARTING or (last_run is not None and _restarted(last_run, engine)):
        # Every replica is there: only the job has to come back and catch up.
        return replace(begin(desired, desired, at, Cause.LOSS), phase=Phase.ABSORBED), "the job restarts"
    return None


def stands_still(spec: ClusterSpec, rescale: Rescale | None, observation: Observation) -> bool:
    """Whether a loss has stopped the job. What piles up meanwhile is no load, and another rescale stops it longer.

    It stands still while it restarts, and while the engine counts the slots of a worker that is not there any more.
    """
    engine = observation.engine
    if rescale is None or rescale.cause is not Cause.LOSS or engine is None:
        return False
    if engine.job is not JobState.RUNNING:
        return engine.job is not JobState.UNKNOWN
    ready = observation.ready
    return ready is not None and engine.slots is not None and engine.slots > ready * spec.slots_per_replica


def _restarted(before: EngineStatus, now: EngineStatus) -> bool:
    """Whether the job has restarted in between: it says so, or it has been running for a shorter time."""
    if now.restarts is not None and before.restarts is not None and now.restarts > before.restarts:
        return True
    # A new driver counts its restarts from nought.
    return (
        now.running_since is not None
        and before.running_since is not None
        and now.running_since > before.running_since + _SAME
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
            rescale = replace(rescale, confirmed=True, error="", replaced=None)
    elif not rescale.confirmed and rescale.error and desired == rescale.before:
        text = f"{rescale.before} to {rescale.to} was not accepted: {rescale.error}"
        return Settling(dropped=rescale, notes=((Reason.UNCONFIRMED, text),))
    elif rescale.confirmed or desired != rescale.before:
        assert desired is not None  # noqa: S101 - the caller has checked; tells the type checker
        text = f"{rescale.to} was replaced by {desired} from outside"
        return Settling(
            rescale=begin(rescale.to if rescale.confirmed else rescale.before, desired, at, Cause.EXTERNAL),
            notes=((Reason.SUPERSEDED, text),),
        )
    notes: list[Note] = []
    while rescale.phase is not Phase.CAUGHT_UP:
        phase = PHASES[PHASES.index(rescale.phase) + 1]
        took = (at - rescale.since).total_seconds()
        if not _reached(phase, spec, rescale, observation, metrics):
            limit = deadline(spec, rescale, phase).total_seconds()
            if took <= limit:
                return Settling(rescale=rescale, notes=tuple(notes))
            text = f"{told(rescale)} was not {_words(phase)} within {limit:.0f} s and is no longer waited for"
            text += why_not(rescale, observation.remarks)
            return Settling(missed=rescale, notes=(*notes, (Reason.DEADLINE, text)))
        rescale = replace(rescale, phase=phase, since=at, durations={**rescale.durations, phase: took})
        notes.append((Reason.SETTLING, f"{told(rescale)} is {_words(phase)} after {took:.0f} s"))
    text = f"{told(rescale)} has settled after {(at - rescale.at).total_seconds():.0f} s"
    return Settling(settled=rescale, notes=(*notes, (Reason.SETTLED, text)))


def deadline(spec: ClusterSpec, rescale: Rescale, phase: Phase) -> timedelta:
    """How long a phase may take: as configured, else by the engine's own settings, else our default."""
    configured: timedelta | None = getattr(spec.settle, phase.value)
    if configured is not None:
        return configured
    return rescale.deadlines.get(phase) or DEADLINES[phase]


def waits_for(rescale: Rescale) -> str:
    """What a rescale on its way waits for, in words."""
    return _words(PHASES[PHASES.index(rescale.phase) + 1])


def told(rescale: Rescale) -> str:
    """A rescale in words, as the subject of a sentence."""
    if rescale.cause is Cause.LOSS and rescale.before == rescale.to:
        return f"the job's recovery on {rescale.to}"
    words = {
        Cause.REQUEST: "the rescale",
        Cause.EXTERNAL: "the rescale from outside",
        Cause.LOSS: "the replacement",
    }
    return f"{words[rescale.cause]} from {rescale.before} to {rescale.to}"


def why_not(rescale: Rescale, remarks: tuple[str, ...]) -> str:
    """What the target shows and says of replicas that do not come up or go, to be added to a sentence; or nothing."""
    if rescale.phase is not Phase.REQUESTED:
        return ""
    shown = () if rescale.confirmed else (f"the target still shows {rescale.before}",)
    said = "; ".join((*shown, *remarks))
    return f" ({said})" if said else ""


def _words(phase: Phase) -> str:
    return phase.value.replace("_", " ")


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
    return engine.job is JobState.RUNNING


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
    """Lag divided by throughput is at most the backlog time; a job without these metrics is taken as it is."""
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
