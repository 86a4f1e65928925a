"""Last stage: the decision with its whole trail, and the state for the next step."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.core.combine import Combined, combined_size
from autoscaler.core.evaluate import evaluate, views_for
from autoscaler.core.explain import describe, describe_combination
from autoscaler.core.fast_init import creator
from autoscaler.core.guards import GuardContext, unopposed
from autoscaler.core.learn import LearnResult, view_of
from autoscaler.core.model import (
    ClusterState,
    Decision,
    Fact,
    Reason,
    Recommendation,
    ScaleEvent,
    Verdict,
)
from autoscaler.core.rescale import Settled, request
from autoscaler.core.trust import Trusted

_IF_UNCHANGED = (Reason.STEADY, Reason.FAILED, Reason.MISSING, Reason.LEARNING)
"""Reasons of policies for a decision that changes nothing; the first one here that a policy gave counts."""

_create_decision = creator(Decision)
_create_state = creator(ClusterState)


def decide(
    seen: Trusted,
    settled: Settled,
    learn_result: LearnResult,
    recommendations: tuple[Recommendation, ...],
    combined: Combined,
    context: GuardContext,
    verdicts: tuple[Verdict, ...],
) -> tuple[ClusterState, Decision]:
    """Request the size that remains after the last guard, if it differs from the current size."""
    spec, state, at, current = seen.spec, settled.state, context.at, context.current
    rescale, events, notes, wanted = context.rescale, context.events, settled.notes, verdicts[-1].after
    if wanted != current:
        if rescale is not None:
            fact = Fact("gives_way", {"before": rescale.before, "to": rescale.to, "wanted": wanted})
            notes = (*notes, (Reason.SUPERSEDED, fact))
        rescale = request(settled.desired, wanted, seen.observation, rescale)
        events = (*events, ScaleEvent(at, wanted - current))
    decision = _create_decision(
        cluster=spec.name,
        at=at,
        current=current,
        proposed=combined.proposed,
        desired=wanted,
        reason=_reason(current, combined.proposed, recommendations, verdicts),
        recommendations=recommendations,
        verdicts=verdicts,
        notes=tuple([(reason, describe(fact)) for reason, fact in notes]) if notes else (),
        combined=describe_combination(spec.combine, combined.error),
    )
    return (
        _create_state(
            at=at,
            desired=settled.desired,
            watched_since=seen.watched_since,
            proposals=context.proposals,
            events=events,
            rescale=rescale,
            cooldown_from=state.cooldown_from,
            disturbance_ended_at=state.disturbance_ended_at,
            last_missed=state.last_missed,
            requested=state.requested if wanted == current else at,
            override_times=state.override_times,
            past=seen.past,
            learned=learn_result.learned,
        ),
        decision,
    )


def hold(seen: Trusted) -> tuple[ClusterState, Decision]:
    """Change nothing, because the current size is unknown: even a larger request could remove replicas."""
    spec, state, observation = seen.spec, seen.state, seen.observation
    current = spec.limits.minimum if state.desired is None else state.desired
    view = view_of(seen, state, state.learned, current, current)
    recommendations = evaluate(views_for(spec.policies, view), state.learned, seen.policy_errors)
    proposed, error = combined_size(recommendations, current, spec.combine)
    values = {"desired": observation.desired, "ready": observation.ready}
    why = seen.untrusted.get("target") or Fact("target_size", values)
    detail = describe(Fact("size_unknown", {"why": why}))
    decision = _create_decision(
        cluster=spec.name,
        at=observation.at,
        current=current,
        proposed=proposed,
        desired=current,
        reason=Reason.MISSING,
        recommendations=recommendations,
        verdicts=(Verdict(Reason.FRESHNESS, proposed, current, Reason.MISSING, detail),),
        notes=tuple([(reason, describe(fact)) for reason, fact in seen.notes]),
        combined=describe_combination(spec.combine, error),
    )
    return replace(state, at=observation.at, watched_since=seen.watched_since, past=seen.past), decision


def _reason(
    current: int,
    proposed: int,
    recommendations: tuple[Recommendation, ...],
    verdicts: tuple[Verdict, ...],
) -> Reason:
    """The last guard that changed the size, or the bounds if the size stays outside them; else the policies' reason."""
    if verdicts is not unopposed(current):  # by identity: most steps have this cached object
        if verdicts[-1].detail:
            return verdicts[-1].reason
        for verdict in reversed(verdicts):
            if verdict.before != verdict.after:
                return verdict.reason
    if proposed != current:
        return Reason.ABOVE if proposed > current else Reason.BELOW
    given = [recommendation.reason for recommendation in recommendations]
    for reason in _IF_UNCHANGED:
        if reason in given:
            return reason
    return Reason.STEADY if any(r.replicas is not None for r in recommendations) else Reason.ABSTAINED
