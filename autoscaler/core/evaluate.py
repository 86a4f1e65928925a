"""First stages: which readings can be trusted, what each policy asks for, what they ask for together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from autoscaler.core.model import (
    MOST_LEARNED,
    Allowance,
    ClusterSpec,
    Combine,
    Learned,
    Limits,
    NamedPolicy,
    Observation,
    Reading,
    Reason,
    Recommendation,
    View,
)

_WITHOUT_SIZE = frozenset({Reason.MISSING, Reason.LEARNING, Reason.ABSTAINED, Reason.FAILED})

EMPTY: Mapping[str, str] = MappingProxyType({})

MAX_REPLICAS = 1_000_000
"""More replicas than this are a mistake of a policy or target, not a size."""


def trusted(spec: ClusterSpec, observation: Observation) -> tuple[Mapping[str, Reading], dict[str, str]]:
    """Split what was observed into readings that can be used and names that cannot, with the reason.

    A reading is used when it is finite, at most `max_age` old and at most `max_ahead` in the future. A metric of the
    spec that was not delivered, an engine that should be watched and cannot be read: these are reasons too.
    """
    at = observation.at
    oldest = at - spec.max_age
    newest = at + spec.max_ahead
    doubts = dict(observation.missing)
    good: dict[str, Reading] = {}
    for name, reading in observation.metrics.items():
        try:
            doubt = _doubt(spec, reading, at, oldest, newest)
            if doubt:
                doubts[name] = doubt
            elif name not in doubts:
                good[name] = reading
        except (TypeError, OverflowError) as error:
            # A source is somebody else's code too: a text, a time without a zone, a whole number beyond all floats.
            doubts[name] = f"not a reading: {error}"
    for name in spec.metrics:
        if name not in good and name not in doubts:
            doubts[name] = "not delivered"
    if spec.engine and observation.engine is None and "engine" not in doubts:
        doubts["engine"] = "not delivered"
    return good, doubts


def _doubt(spec: ClusterSpec, reading: Reading, at: datetime, oldest: datetime, newest: datetime) -> str:
    """Why a reading cannot be used, or the empty text."""
    if not reading.finite():
        return f"not a finite number: {reading.value}"
    if reading.at < oldest:
        return f"stale: {(at - reading.at).total_seconds():.0f} s old, {spec.max_age.total_seconds():.0f} s allowed"
    if reading.at > newest:
        return f"from the future: {(reading.at - at).total_seconds():.0f} s ahead"
    if reading.partitions is not None and reading.partitions < 1:
        return f"not a reading: {reading.partitions} partitions"
    return ""


def allowed(policies: tuple[NamedPolicy, ...], now: datetime, limits: Limits) -> tuple[Allowance, dict[str, str]]:
    """What holds of the bounds now, by the policies that move them; and those that failed in it, with the reason.

    Each is shown the bounds that the one before it left.
    """
    excluded = ""
    failed: dict[str, str] = {}
    for named in policies:
        # By its attribute: to check a Protocol takes longer than all the rest of a step.
        allow: Callable[[datetime, Limits], Allowance] | None = getattr(named.policy, "allow", None)
        if not callable(allow):
            continue
        try:
            allowance = allow(now, limits)
            problem = _unfit(allowance)
        except Exception as error:  # noqa: BLE001 - a policy is somebody else's code
            problem = f"raised {type(error).__name__}: {error}"
        if problem:
            failed[named.name] = problem
            continue
        limits = allowance.limits
        excluded = excluded or allowance.excluded
    return Allowance(limits, excluded), failed


def _unfit(allowance: object) -> str:
    """What is wrong with the bounds that a policy allows, or the empty text."""
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
    if not isinstance(allowance.excluded, str):
        return f"gave the reason {repr(allowance.excluded)[:40]} to change nothing, expected a text"
    return ""


def learn(policies: tuple[NamedPolicy, ...], view: View) -> tuple[Mapping[str, Mapping[str, float]], dict[str, str]]:
    """What each policy that learns knows now; and those that failed in it, with the reason, still as before."""
    before = view.learned.memory
    memory: dict[str, Mapping[str, float]] = {}
    failed: dict[str, str] = {}
    for named in policies:
        learning: Callable[[View], Mapping[str, float]] | None = getattr(named.policy, "learn", None)
        if not callable(learning):
            continue
        name = named.name
        known = before.get(name, {})
        try:
            found = learning(view.knowing(view.learned, known) if known else view)
            problem = ""
            if not _plain(found):
                problem = _nonsense(found)
                found = known if problem else {key: float(number) for key, number in found.items()}
        except Exception as error:  # noqa: BLE001 - a policy is somebody else's code
            problem = f"raised {type(error).__name__}: {error}"
            found = known
        if problem:
            failed[name] = f"while learning it {problem}"
        memory[name] = found
    return memory, failed


def _nonsense(found: object) -> str:
    """What is wrong with what a policy has learned, or the empty text."""
    if not isinstance(found, Mapping):
        return f"returned {type(found).__name__}, expected numbers by name"
    if len(found) > MOST_LEARNED:
        return f"kept {len(found)} numbers, expected at most {MOST_LEARNED}"
    if all(map(math.isfinite, found.values())) and set(map(type, found)) <= {str}:
        return ""
    name, number = next(
        (name, number) for name, number in found.items() if type(name) is not str or not math.isfinite(number)
    )
    return f"kept {name!r} = {number}, expected a name and a finite number"


def _plain(found: object) -> bool:
    """Whether it is a dictionary of finite floats by name: of other mappings and numbers not all could be stored."""
    return (
        type(found) is dict
        and len(found) <= MOST_LEARNED
        and [*map(type, found)].count(str) == len(found)
        and [*map(type, found.values())].count(float) == len(found)
        # One that is not finite makes the sum so too: quicker than to look at each.
        and math.isfinite(sum(found.values()))
    )


def evaluate(
    policies: tuple[NamedPolicy, ...], view: View, learned: Learned, failed: Mapping[str, str] = EMPTY
) -> tuple[Recommendation, ...]:
    """Ask every policy. One that raises or answers nonsense is reported as FAILED and stops nobody else.

    `learned` is what is known by now, where the view is of before; `failed` are those that have failed already, with
    the reason.
    """
    return tuple([_ask(named, view, learned, failed) for named in policies])


def _ask(named: NamedPolicy, view: View, learned: Learned, failed: Mapping[str, str]) -> Recommendation:
    if named.name in failed:
        return _failed(named, failed[named.name])
    if learned.memory:
        view = view.knowing(learned, learned.memory.get(named.name, {}))
    try:
        answer = named.policy.evaluate(view)
        problem = _problem(answer)
    except Exception as error:  # noqa: BLE001 - a policy is somebody else's code; whatever it raises is its verdict
        return _failed(named, f"raised {type(error).__name__}: {error}")
    if problem:
        return _failed(named, problem)
    return Recommendation(answer.replicas, answer.reason, answer.inputs, answer.detail, named.name)


def _failed(named: NamedPolicy, detail: str) -> Recommendation:
    return Recommendation(None, Reason.FAILED, {}, detail, named.name)


def _problem(answer: object) -> str:
    """What is wrong with a policy's answer, or the empty text."""
    if not isinstance(answer, Recommendation):
        return f"returned {type(answer).__name__}, expected a Recommendation"
    if not isinstance(answer.reason, Reason):
        return f"gave the reason {answer.reason!r}, expected a Reason"
    replicas: object = answer.replicas
    if replicas is None:
        if answer.reason not in _WITHOUT_SIZE:
            return f"gave the reason {answer.reason} without a size"
    elif isinstance(replicas, bool) or not isinstance(replicas, int) or not 0 <= replicas <= MAX_REPLICAS:
        return f"asked for {repr(replicas)[:40]} replicas, expected a whole number from 0 to {MAX_REPLICAS}"
    if not isinstance(answer.detail, str):
        return f"gave a detail of type {type(answer.detail).__name__}, expected a text"
    if not all(map(math.isfinite, answer.inputs.values())):
        name, number = next((name, number) for name, number in answer.inputs.items() if not math.isfinite(number))
        return f"used the input {name} = {number}, expected a finite number"
    return ""


def combine(recommendations: tuple[Recommendation, ...], current: int, how: Combine | None = None) -> tuple[int, str]:
    """The size that the policies together ask for, and why it cannot be trusted, or the empty text.

    The greatest size asked for, or what `how` makes of them; the current one when nobody asked. Where `how` fails it
    is the greatest, and nothing may be lowered on it.
    """
    proposed = -1
    for recommendation in recommendations:
        replicas = recommendation.replicas
        if replicas is not None and replicas > proposed:
            proposed = replicas
    greatest = current if proposed < 0 else proposed
    if how is None:
        return greatest, ""
    try:
        size = how.combine({asked.policy: asked.replicas for asked in recommendations}, current)
        if size is None:
            return current, ""
        if 0 <= size <= MAX_REPLICAS:  # NaN is not
            # 1e-12: a product like 10 * 1.1 = 11.000000000000002 is a whole number that floats could not hold
            return math.ceil(size * (1 - 1e-12)), ""
        problem = f"they give {str(size)[:40]}, expected 0 to {MAX_REPLICAS}"
    except Exception as error:  # noqa: BLE001 - an expression is somebody else's, and must not end a step
        problem = str(error) or type(error).__name__
    return greatest, f"the policies cannot be combined: {problem}"
