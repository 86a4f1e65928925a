"""Fourth stage: the recommendation of each policy; and, before the first stage, the bounds that policies move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from types import MappingProxyType

from autoscaler.core.fast_init import creator
from autoscaler.core.foreign import MAX_TEXT, format_exception, shorten
from autoscaler.core.model import (
    MAX_REPLICAS,
    MOST_LEARNED,
    Allowance,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Range,
    Reason,
    Recommendation,
    View,
)

_WITHOUT_SIZE = frozenset({Reason.MISSING, Reason.LEARNING, Reason.ABSTAINED, Reason.FAILED})

PolicyView = tuple[NamedPolicy, View]
"""A policy and the view that it gets."""

_create_recommendation = creator(Recommendation)


def allowed(
    policies: tuple[NamedPolicy, ...], now: datetime, limits: Limits
) -> tuple[Limits, str | None, dict[str, str]]:
    """Ask the policies that move the bounds. Returns the bounds, why nothing may change, and policy -> error.

    Each policy gets the bounds that the one before it returned.
    """
    excluded: str | None = None
    errors: dict[str, str] = {}
    for named in policies:
        if named.allow is None:
            continue
        try:
            allowance = named.allow(now, limits)
            problem = _allowance_problem(allowance)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of a plug-in: whatever it raises must not end a step
            problem = f"raised {format_exception(error)}"
        if problem is not None:
            errors[named.name] = problem
            continue
        limits = allowance.limits
        excluded = excluded or shorten(allowance.excluded or "") or None
    return limits, excluded, errors


def _allowance_problem(allowance: object) -> str | None:
    if not isinstance(allowance, Allowance):
        return f"returned {type(allowance).__name__}, expected an Allowance"
    limits: object = allowance.limits
    if not isinstance(limits, Limits):
        return f"allowed {type(limits).__name__}, expected Limits"
    whole = all(isinstance(size, int) for size in (limits.minimum, limits.maximum))
    if not whole or limits.minimum > MAX_REPLICAS:
        return (
            f"allowed {limits.minimum} to {limits.maximum}, expected whole numbers, the minimum at most {MAX_REPLICAS}"
        )
    if not isinstance(allowance.excluded, str | None):
        return f"gave {repr(allowance.excluded)[:40]} as the reason to change nothing, expected a string"
    return None


def evaluate(
    views: tuple[PolicyView, ...],
    learned: Learned,
    policy_errors: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Recommendation, ...]:
    """Ask every policy. One that raises or returns nonsense is reported as FAILED and does not affect the others.

    `learned` is what is known after learning, which the views do not have yet. `policy_errors` has the policies that
    failed in an earlier stage.
    """
    return tuple([_ask(named, view, learned, policy_errors) for named, view in views])


def _ask(named: NamedPolicy, view: View, learned: Learned, policy_errors: Mapping[str, str]) -> Recommendation:
    if named.name in policy_errors:
        return _failed(named, policy_errors[named.name])
    if learned.memory:
        view = view.with_learned(learned, learned.memory.get(named.name, {}))
    try:
        answer = named.policy.evaluate(view)
        problem = _problem(answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - code of a plug-in: whatever it raises must not end a step
        return _failed(named, f"raised {format_exception(error)}")
    if problem is not None:
        return _failed(named, problem)
    inputs = answer.inputs
    if len(inputs) > MOST_LEARNED:  # they are kept, recorded and shown
        inputs = dict(islice(inputs.items(), MOST_LEARNED))
    detail = answer.detail
    if len(detail) > MAX_TEXT or not detail.isascii():
        detail = shorten(detail)
    return _create_recommendation(answer.replicas, answer.reason, inputs, detail, named.name)


def views_for(policies: tuple[NamedPolicy, ...], view: View) -> tuple[PolicyView, ...]:
    """The view of each policy, without the present and past readings that it knows to be impossible.

    See `trust.trusted`. If no policy reads the past, it is left as it is.
    """
    past = view.past
    # A list is a third faster than `any`, and this runs in every step.
    missing = [True for each in past if each.missing] if view.spec.looks_back else past[-1].missing
    if not missing:
        return tuple([(named, view) for named in policies])
    return tuple([(named, _view_for(named, view)) for named in policies])


def _view_for(named: NamedPolicy, view: View) -> View:
    if not named.ranges:
        return view
    past = tuple([_possible(seen, named.ranges) for seen in view.past])
    return view if past == view.past else replace(view, metrics=past[-1].metrics, past=past)


def _possible(seen: Observation, ranges: Mapping[str, Range]) -> Observation:
    hidden = [
        name
        for name in seen.missing
        if name in ranges and name in seen.metrics and not seen.metrics[name].within(*ranges[name][:2])
    ]
    if not hidden:
        return seen
    return replace(seen, metrics={name: reading for name, reading in seen.metrics.items() if name not in hidden})


def _failed(named: NamedPolicy, detail: str) -> Recommendation:
    return Recommendation(None, Reason.FAILED, {}, detail, named.name)


def _problem(answer: object) -> str | None:
    if not isinstance(answer, Recommendation):
        return f"returned {type(answer).__name__}, expected a Recommendation"
    if not isinstance(answer.reason, Reason):
        return f"gave the reason {answer.reason!r}, expected a Reason"
    replicas: object = answer.replicas
    if replicas is None:
        if answer.reason not in _WITHOUT_SIZE:
            return f"gave the reason {answer.reason} without a size"
    elif not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        return f"asked for {repr(replicas)[:40]} replicas, expected a whole number from 0 to {MAX_REPLICAS}"
    if not isinstance(answer.detail, str):
        return f"gave a detail of type {type(answer.detail).__name__}, expected a string"
    if not all(map(math.isfinite, answer.inputs.values())):
        name, number = next((name, number) for name, number in answer.inputs.items() if not math.isfinite(number))
        return f"used the input {name} = {number}, expected a finite number"
    return None
