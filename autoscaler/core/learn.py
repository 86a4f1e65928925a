"""Third stage: learn the capacity of the current size, and let the policies learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.core.capacity import learn_rate
from autoscaler.core.evaluate import PolicyView, views_for
from autoscaler.core.fast_init import creator
from autoscaler.core.foreign import format_exception
from autoscaler.core.model import (
    MOST_LEARNED,
    SHARE,
    ClusterSpec,
    ClusterState,
    JobState,
    Learned,
    Observation,
    View,
)
from autoscaler.core.rescale import Settled, runs
from autoscaler.core.trust import Trusted

_create_view = creator(View)


@dataclass(slots=True)
class LearnResult:
    """What was learned.

    Attributes:
        views: each policy with its view, from before the policies learned.
        learned: what is known now.
        policy_errors: policy -> its error, from moving the bounds or from learning.
    """

    views: tuple[PolicyView, ...]
    learned: Learned
    policy_errors: Mapping[str, str]


def learn(seen: Trusted, settled: Settled) -> LearnResult:
    """Learn the capacity of the current size, then let the policies learn."""
    learned = _learn_capacity(seen, settled.state)
    ready = seen.observation.ready
    view = view_of(seen, settled.state, learned, settled.current, settled.desired if ready is None else ready)
    views = views_for(seen.spec.policies, view)
    memory, errors = learn_policies(views, learned)
    if memory or learned.memory:
        learned = Learned(learned.capacity, learned.durations, memory, learned.times)
    return LearnResult(views, learned, {**seen.policy_errors, **errors} if errors else seen.policy_errors)


def view_of(seen: Trusted, state: ClusterState, learned: Learned, current: int, ready: int) -> View:
    """The view that policies get."""
    observation, spec = seen.observation, seen.spec
    return _create_view(
        now=observation.at,
        current=current,
        ready=ready,
        metrics=observation.metrics,
        past=seen.past,
        limits=spec.limits,
        learned=learned,
        spec=spec,
        engine=observation.engine,
        rescale=state.rescale,
        disturbance_ended_at=state.disturbance_ended_at,
    )


def _learn_capacity(seen: Trusted, state: ClusterState) -> Learned:
    """Learn the throughput as capacity if the job is saturated, complete and warm; never from a transient."""
    spec, observation = seen.spec, seen.observation
    if not _sustained(spec, seen.past):
        return state.learned
    throughput = observation.metrics.get(spec.capacity.throughput)
    if throughput is None or isinstance(throughput.value, tuple) or "engine" in seen.untrusted:
        return state.learned
    size = observation.desired
    if size is None or size != observation.ready:
        return state.learned
    if observation.engine is not None and observation.engine.job is not JobState.RUNNING:
        return state.learned
    if state.rescale is not None and not runs(state.rescale):
        return state.learned
    ended = state.disturbance_ended_at
    if ended is not None and observation.at - ended < spec.capacity.warmup:
        return state.learned
    return learn_rate(state.learned, spec, size, throughput.value, observation.at)


def _sustained(spec: ClusterSpec, past: tuple[Observation, ...]) -> bool:
    """Whether the job was saturated at every observation within the last `sustained`.

    A throughput that is averaged over a rise of the load is less than the capacity.
    """
    for observation in reversed(past):
        saturation = observation.metrics.get(spec.capacity.saturation)
        if saturation is None:
            return False
        share = saturation.value if saturation.mean is None else saturation.mean
        if isinstance(share, tuple):
            return False
        if not spec.capacity.saturated_at <= share <= SHARE.most:
            return False
        if past[-1].at - observation.at >= spec.capacity.sustained:
            return True
    return False


def learn_policies(
    views: tuple[PolicyView, ...], learned: Learned
) -> tuple[Mapping[str, Mapping[str, float]], dict[str, str]]:
    """Let each policy learn: policy -> numbers, policy -> error. A policy that fails keeps its earlier numbers."""
    memory: dict[str, Mapping[str, float]] = {}
    errors: dict[str, str] = {}
    for named, view in views:
        if named.learn is None:
            continue
        known = learned.memory.get(named.name, {})
        try:
            found = named.learn(view.with_learned(learned, known) if known else view)
            if not _storable(found):
                _check(found)
                found = {key: float(number) for key, number in found.items()}
        except _WrongMemoryError as error:
            errors[named.name], found = f"while learning it {error}", known
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of a plug-in: whatever it raises must not end a step
            errors[named.name], found = f"while learning it raised {format_exception(error)}", known
        memory[named.name] = found
    return memory, errors


class _WrongMemoryError(Exception):
    """What a policy has learned cannot be kept."""


def _check(found: object) -> None:
    if not isinstance(found, Mapping):
        raise _WrongMemoryError(f"returned {type(found).__name__}, expected numbers by name")
    if len(found) > MOST_LEARNED:
        raise _WrongMemoryError(f"kept {len(found)} numbers, expected at most {MOST_LEARNED}")
    for name, number in found.items():
        if type(name) is not str or not math.isfinite(number):
            raise _WrongMemoryError(f"kept {name!r} = {number}, expected a name and a finite number")


def _storable(found: object) -> bool:
    """Whether it is a dictionary of finite floats by name, which can be stored as it is."""
    return (
        type(found) is dict
        and len(found) <= MOST_LEARNED
        and [*map(type, found)].count(str) == len(found)
        and [*map(type, found.values())].count(float) == len(found)
        # If a number is not finite, neither is the sum: faster than testing each.
        and math.isfinite(sum(found.values()))
    )
