"""One step of the decision machine: evaluate, combine, guard, settle.

`step` is pure, synchronous and total. The daemon, replay, simulate and backtest all drive this one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from autoscaler.core.capacity import learn_durations, learn_rate
from autoscaler.core.evaluate import EMPTY, MAX_REPLICAS, allowed, combine, evaluate, learn, trusted
from autoscaler.core.guards import OVERRULED, Situation, guard
from autoscaler.core.model import (
    PHASES,
    ZERO,
    Cause,
    ClusterSpec,
    ClusterState,
    Decision,
    EngineStatus,
    JobState,
    Learned,
    Observation,
    Phase,
    Proposal,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    ScaleEvent,
    Verdict,
    View,
)
from autoscaler.core.rescale import Note, Settling, begin, disturbed, follow, stands_still

Decide = Callable[[ClusterSpec, ClusterState, Observation], tuple[ClusterState, Decision]]
"""What decides: `step`, or something that it is compared with."""

_GAP = 2.5
"""Intervals without an observation after which what happened in between counts as unseen."""

_UNSETTLED = frozenset({JobState.STARTING, JobState.RESTARTING, JobState.STOPPED, JobState.FAILED})


def step(
    spec: ClusterSpec,
    state: ClusterState,
    observation: Observation,
    judge: Callable[[Situation], tuple[Verdict, ...]] = guard,
) -> tuple[ClusterState, Decision]:
    """Decide about one cluster.

    Args:
        spec: what is fixed.
        state: what the last step returned, or `ClusterState()` at first.
        observation: what is seen now. Its time is the only clock.
        judge: what stands between the proposal and the size; anything but the guards is for comparisons alone.

    Returns:
        The new state and the decision. When `decision.rescale` is true the state holds the rescale as requested:
        keep the state first, then call the target; if that fails, pass the state through `call_failed`.
        The last entry of `state.past` is the observation as it was trusted: the one to record.
    """
    at = observation.at
    notes: list[Note] = []
    if state.at is not None and at < state.at:
        notes.append((Reason.CLOCK, f"the clock went back by {(state.at - at).total_seconds():.0f} s"))
        state = rebase(state, at - state.at)
    allowance, failed = allowed(spec.policies, at, spec.limits)
    if allowance.limits is not spec.limits:
        spec = replace(spec, limits=allowance.limits)
    metrics, doubts = trusted(spec, observation)
    if doubts:
        # What is remembered, recorded and replayed holds only what was trusted, and why the rest was not.
        observation = replace(observation, metrics=metrics, missing=doubts)
    past = _past(spec, state.past, observation)
    since = _since(spec, state, at)
    if not _target_known(observation):
        return _hold(spec, state, observation, metrics, doubts, past, since, notes, failed)
    desired = observation.desired or 0
    if state.rescale is None:
        state = _disturb(spec, state, observation, desired, notes, settled=False)
        state = _settle(spec, state, observation, metrics, notes)
    else:
        state = _settle(spec, state, observation, metrics, notes)
        # What has just settled may have lost a replica since it was ready. Its own restart is over.
        state = _disturb(spec, state, observation, desired, notes, settled=True)
    if notes and any(reason is Reason.SUPERSEDED for reason, _ in notes):
        state = replace(state, overruled=_overruled(state, at))
    rescale = state.rescale
    current = rescale.to if rescale is not None and not rescale.confirmed else desired
    learned = _learn(spec, state, past, metrics, doubts)
    view = View(
        at,
        current,
        desired if observation.ready is None else observation.ready,
        metrics,
        past,
        spec.limits,
        learned,
        spec,
        observation.engine,
        rescale,
        state.warm_from,
    )
    memory, unlearned = learn(spec.policies, view)
    if memory or learned.memory:
        learned = Learned(learned.capacity, learned.durations, memory)
    unfit = {**failed, **unlearned} if failed or unlearned else EMPTY
    recommendations = evaluate(spec.policies, view, learned, unfit)
    proposed, muddled = combine(recommendations, current, spec.combine)
    distrust = _distrust(doubts, recommendations, observation.engine, notes, muddled)
    proposals = _proposals(spec, state.proposals, at, proposed, trustworthy=not distrust)
    events = _events(spec, state.events, at)
    verdicts = judge(
        Situation(
            spec,
            at,
            current,
            proposed,
            distrust,
            _unsettled(observation.engine),
            rescale,
            observation.engine,
            proposals,
            events,
            state.ended,
            since,
            past,
            observation.floor,
            observation.ceiling,
            observation.remarks,
            state.overruled,
            stands_still(spec, rescale, observation),
            allowance.excluded,
        )
    )
    wanted = verdicts[-1].after
    if wanted != current:
        if rescale is not None:
            notes.append((Reason.SUPERSEDED, f"{rescale.before} to {rescale.to} gives way to {wanted}"))
        under_way = rescale if rescale is None or rescale.confirmed else rescale.replaced
        # From the size that is shown: a request before this one may not have arrived yet.
        rescale = replace(begin(desired, wanted, at, Cause.REQUEST), replaced=under_way)
        events = (*events, ScaleEvent(at, wanted - current))
    decision = Decision(
        spec.name,
        at,
        current,
        proposed,
        wanted,
        _reason(current, proposed, recommendations, verdicts),
        recommendations,
        verdicts,
        tuple(notes),
        _told(spec, muddled),
    )
    return (
        ClusterState(
            at,
            desired,
            since,
            proposals,
            events,
            rescale,
            state.ended,
            state.warm_from,
            state.missed,
            state.requested if wanted == current else at,
            state.overruled,
            past,
            learned,
        ),
        decision,
    )


def call_failed(state: ClusterState, error: str) -> ClusterState:
    """Note that the scale call failed. What the target shows next tells whether it worked all the same."""
    if state.rescale is None or state.rescale.confirmed:
        return state
    # What may never have arrived is not counted as undone by somebody else.
    return replace(state, rescale=replace(state.rescale, error=error), requested=None)


def call_withheld(state: ClusterState) -> ClusterState:
    """Take back a request that was never sent (dry run): what was on its way before still is, and no event counts."""
    rescale = state.rescale
    if rescale is None or rescale.confirmed:
        return state
    events = tuple(event for event in state.events if event.at != rescale.at)
    return replace(state, rescale=rescale.replaced, requested=None, events=events)


def rebase(state: ClusterState, shift: timedelta) -> ClusterState:
    """Move every time in the state by `shift`, so that ages stay what they were when the clock was set."""

    def moved(time: datetime | None) -> datetime | None:
        return None if time is None else time + shift

    def moved_rescale(rescale: Rescale | None) -> Rescale | None:
        return rescale and replace(
            rescale, at=rescale.at + shift, since=rescale.since + shift, replaced=moved_rescale(rescale.replaced)
        )

    learned = state.learned
    return ClusterState(
        moved(state.at),
        state.desired,
        moved(state.since),
        tuple(Proposal(p.at + shift, p.replicas) for p in state.proposals),
        tuple(ScaleEvent(e.at + shift, e.change) for e in state.events),
        moved_rescale(state.rescale),
        moved(state.ended),
        moved(state.warm_from),
        moved_rescale(state.missed),
        moved(state.requested),
        tuple(at + shift for at in state.overruled),
        tuple(_moved_observation(o, shift) for o in state.past),
        Learned(
            {n: replace(c, at=c.at + shift) for n, c in learned.capacity.items()},
            learned.durations,
            {policy: _moved_memory(memory, shift) for policy, memory in learned.memory.items()},
        ),
    )


def _moved_memory(memory: Mapping[str, float], shift: timedelta) -> Mapping[str, float]:
    seconds = shift.total_seconds()
    return {name: number + seconds if name.endswith("_at") else number for name, number in memory.items()}


def _moved_observation(observation: Observation, shift: timedelta) -> Observation:
    metrics = {name: replace(reading, at=reading.at + shift) for name, reading in observation.metrics.items()}
    return replace(observation, at=observation.at + shift, metrics=metrics)


def _target_known(observation: Observation) -> bool:
    desired, ready = observation.desired, observation.ready
    return desired is not None and 0 <= desired <= MAX_REPLICAS and (ready is None or 0 <= ready <= MAX_REPLICAS)


def _hold(
    spec: ClusterSpec,
    state: ClusterState,
    observation: Observation,
    metrics: Mapping[str, Reading],
    doubts: Mapping[str, str],
    past: tuple[Observation, ...],
    since: datetime,
    notes: list[Note],
    failed: Mapping[str, str],
) -> tuple[ClusterState, Decision]:
    """Decide nothing: a size that cannot be seen is not changed, since even more might be less than there is."""
    current = spec.limits.minimum if state.desired is None else state.desired
    view = View(
        observation.at,
        current,
        current,
        metrics,
        past,
        spec.limits,
        state.learned,
        spec,
        observation.engine,
        state.rescale,
        state.warm_from,
    )
    recommendations = evaluate(spec.policies, view, state.learned, failed)
    proposed, muddled = combine(recommendations, current, spec.combine)
    why = doubts.get("target") or f"desired {observation.desired}, ready {observation.ready}"
    verdict = Verdict(Reason.FRESHNESS, proposed, current, Reason.MISSING, f"the target's size is unknown: {why}")
    decision = Decision(
        spec.name,
        observation.at,
        current,
        proposed,
        current,
        Reason.MISSING,
        recommendations,
        (verdict,),
        tuple(notes),
        _told(spec, muddled),
    )
    return replace(state, at=observation.at, since=since, past=past), decision


def _told(spec: ClusterSpec, muddled: str) -> str:
    """How the policies are combined, for people; empty where the greatest size counts."""
    if spec.combine is None:
        return ""
    return f"{spec.combine} ({muddled}; the greatest counts)" if muddled else str(spec.combine)


def _past(spec: ClusterSpec, past: tuple[Observation, ...], observation: Observation) -> tuple[Observation, ...]:
    oldest = observation.at - spec.lookback
    start = 0
    while start < len(past) and past[start].at < oldest:
        start += 1
    return past[start:] + (observation,)  # noqa: RUF005 - there are many, and an unpacked tuple is copied twice more


def _since(spec: ClusterSpec, state: ClusterState, at: datetime) -> datetime:
    """From when on the cluster has been watched; a gap longer than a few ticks and half a window starts anew.

    What could not be trusted was not watched: the gap counts from the last proposal that was.
    """
    if state.since is None or not state.proposals:
        return at
    gap = at - state.proposals[-1].at
    seen = gap <= spec.interval or gap <= max(spec.down.window / 2, spec.interval * _GAP)
    return state.since if seen else at


def _disturb(
    spec: ClusterSpec, state: ClusterState, observation: Observation, desired: int, notes: list[Note], *, settled: bool
) -> ClusterState:
    """Begin to follow what nobody of us requested: another size, replicas gone, the job restarting."""
    if state.missed is not None and not _still_missed(state.missed, observation, desired):
        state = replace(state, missed=None)
    if state.rescale is not None:
        return state
    before = state.desired
    if before is not None and before != desired and not settled:
        notes.append((Reason.SUPERSEDED, f"the size was changed from outside: {before} to {desired}"))
        return replace(state, rescale=begin(before, desired, observation.at, Cause.EXTERNAL))
    if state.missed is not None or before is None:
        # What was given up is not waited for again; and at first sight nothing is known to have been lost.
        return state
    found = disturbed(spec, observation, desired, state.past, None if settled else _last_run(state, observation))
    if found is None:
        return state
    lost, what = found
    notes.append((Reason.SETTLING, what))
    return replace(state, rescale=lost)


def _overruled(state: ClusterState, at: datetime) -> tuple[datetime, ...]:
    """When sizes that we had requested were changed from outside, now as well if the last one was requested by us.

    People may change it as often as they like.
    """
    before = state.overruled
    if state.requested is None or (before and state.requested < before[-1]):
        return before
    return (*before, at)[-OVERRULED:]


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


def _settle(
    spec: ClusterSpec,
    state: ClusterState,
    observation: Observation,
    metrics: Mapping[str, Reading],
    notes: list[Note],
) -> ClusterState:
    if state.rescale is None:
        return state
    settling: Settling = follow(spec, state.rescale, observation, metrics)
    notes.extend(settling.notes)
    at = observation.at
    if settling.dropped is not None:
        events = tuple(event for event in state.events if event.at != settling.dropped.at)
        before = replace(state, rescale=settling.dropped.replaced, events=events)
        return _settle(spec, before, observation, metrics, notes)
    if settling.missed is not None:
        # Accepted and never shown: somebody was quicker in putting it back than we in looking.
        overruled = state.overruled if settling.missed.confirmed else _overruled(state, at)
        return replace(state, rescale=None, missed=settling.missed, ended=at, warm_from=at, overruled=overruled)
    if settling.settled is not None:
        done = settling.settled
        learned = learn_durations(state.learned, done) if done.cause is Cause.REQUEST else state.learned
        warm_from = state.warm_from if _is_running(state.rescale) else at
        return replace(state, rescale=None, ended=at, warm_from=warm_from, learned=learned)
    moved = settling.rescale
    if moved is not None and _is_running(moved) and not _is_running(state.rescale):
        return replace(state, rescale=moved, warm_from=at)
    return replace(state, rescale=moved)


def _is_running(rescale: Rescale) -> bool:
    return PHASES.index(rescale.phase) >= PHASES.index(Phase.RUNNING)


def _learn(
    spec: ClusterSpec,
    state: ClusterState,
    past: tuple[Observation, ...],
    metrics: Mapping[str, Reading],
    doubts: Mapping[str, str],
) -> Learned:
    """Take the throughput as capacity when the job is saturated, whole and warm; never from a transient."""
    observation = past[-1]
    names = spec.capacity
    throughput = metrics.get(names.throughput)
    if throughput is None or isinstance(throughput.value, tuple) or "engine" in doubts:
        return state.learned
    size = observation.desired
    if size is None or size != observation.ready:
        return state.learned
    if observation.engine is not None and observation.engine.job is not JobState.RUNNING:
        return state.learned
    if state.rescale is not None and not _is_running(state.rescale):
        return state.learned
    if state.warm_from is not None and observation.at - state.warm_from < names.warmup:
        return state.learned
    if not _sustained(spec, past):
        return state.learned
    return learn_rate(state.learned, spec, size, throughput.value, observation.at)


def _sustained(spec: ClusterSpec, past: tuple[Observation, ...]) -> bool:
    """Whether every observation of the last `sustained` showed the job saturated.

    A throughput averaged over the moment when the load rose is less than the job can do.
    """
    begin = past[-1].at - spec.capacity.sustained
    for observation in reversed(past):
        saturation = observation.metrics.get(spec.capacity.saturation)
        if saturation is None or isinstance(saturation.value, tuple):
            return False
        if saturation.value < spec.capacity.saturated_at:
            return False
        if observation.at <= begin:
            return True
    return False


def _distrust(
    doubts: Mapping[str, str],
    recommendations: tuple[Recommendation, ...],
    engine: EngineStatus | None,
    notes: list[Note],
    muddled: str,
) -> str:
    """Why nothing may be lowered on this input, or the empty text."""
    reasons = [f"{name}: {why}" for name, why in doubts.items()]
    reasons += [
        f"policy {asked.policy}: {asked.detail or asked.reason}"
        for asked in recommendations
        if asked.reason in (Reason.FAILED, Reason.MISSING)
    ]
    if engine is not None and engine.job is JobState.UNKNOWN:
        reasons.append("engine: the job's state is unknown")
    if muddled:
        reasons.append(muddled)
    reasons.extend(text for reason, text in notes if reason is Reason.CLOCK)
    return "; ".join(reasons)


def _unsettled(engine: EngineStatus | None) -> str:
    if engine is not None and engine.job in _UNSETTLED:
        return f"the job is {engine.job}"
    return ""


def _proposals(
    spec: ClusterSpec, proposals: tuple[Proposal, ...], at: datetime, proposed: int, *, trustworthy: bool
) -> tuple[Proposal, ...]:
    """Keep what the windows need. A proposal made on missing input is not one to stabilize on."""
    cutoff = at - max(spec.up.window, spec.down.window)
    start = 0
    while start < len(proposals) and proposals[start].at < cutoff:
        start += 1
    kept = proposals[start:]
    return (*kept, Proposal(at, proposed)) if trustworthy else kept


def _events(spec: ClusterSpec, events: tuple[ScaleEvent, ...], at: datetime) -> tuple[ScaleEvent, ...]:
    if not events:
        return events
    longest = max((rate.period for rate in (*spec.up.rates, *spec.down.rates)), default=ZERO)
    cutoff = at - longest
    return tuple([event for event in events if event.at > cutoff])


def _reason(
    current: int,
    proposed: int,
    recommendations: tuple[Recommendation, ...],
    verdicts: tuple[Verdict, ...],
) -> Reason:
    """The last guard that changed the size, or the bounds where they are not kept; else what the policies said."""
    if verdicts[-1].detail:
        return verdicts[-1].reason
    for verdict in reversed(verdicts):
        if verdict.before != verdict.after:
            return verdict.reason
    if proposed != current:
        return Reason.ABOVE if proposed > current else Reason.BELOW
    said = {recommendation.reason for recommendation in recommendations}
    for reason in (Reason.STEADY, Reason.FAILED, Reason.MISSING, Reason.LEARNING):
        if reason in said:
            return reason
    return Reason.STEADY if any(r.replicas is not None for r in recommendations) else Reason.ABSTAINED
