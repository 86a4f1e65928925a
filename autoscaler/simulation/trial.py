"""One day of a real history tried again: what arrived then, on a simulated cluster that is made as the real one is.

A trial begins `WARM_UP` before the day, with what arrived in the evening before: no day is judged by how a policy
starts. What was not recorded for a few minutes lies on a straight line; before the first thing known it is like that.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from autoscaler.core.model import ClusterSpec, ClusterState, Decision, Direction, Limits, Observation
from autoscaler.core.step import Decide, step
from autoscaler.core.workload_profile import Profile, Spread, reading
from autoscaler.simulation.baselines import with_forecast, without_guards
from autoscaler.simulation.faults import ENGINE, TARGET
from autoscaler.simulation.loads import Load
from autoscaler.simulation.loop import Run, run
from autoscaler.simulation.plant import STEP, PlantSpec, Track
from autoscaler.simulation.scoring import Score

SLOT = 15.0
"""A history is looked at in slots of so many seconds: the mean of what was observed in each."""

SLOTS = round(86400 / SLOT)
"""Of a day."""

WARM_UP = timedelta(hours=2)
"""A trial begins so long before its day..."""

BEFORE = round(WARM_UP.total_seconds() / SLOT)
"""... which is so many slots."""

MAX_GAP = timedelta(minutes=15)
"""A day in which nothing was recorded for longer is not tried."""

STATIC_HEADROOM = 1.1
"""The static size that is compared with: what the greatest arrivals of all days need, and 10 %."""

_DECILES = 2 * 1.2815515655446004  # standard deviations from the tenth to the ninetieth percentile
_LEAST = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to decide about a cluster.

    Attributes:
        policy: what tables call it.
        spec: limits, policies and all else that decisions depend on; `interval` is a multiple of the plant's step.
        parameters: what differs from how the policy is configured: key -> value, as in a configuration file.
        names: metric of the spec -> which of those that the plant shows it is; None: all by their own names.
        profile: the metric in which the policy finds the cluster's profile; empty: it looks at none.
        bare: whether nothing stands between the policy and the limits.
        oracle: whether it is shown the future.
        static: nothing is decided: the size is always what the peak needs, and 10 %.
    """

    policy: str
    spec: ClusterSpec
    parameters: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] | None = None
    profile: str = ""
    bare: bool = False
    oracle: bool = False
    static: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and what is tried on it. Picklable.

    Attributes:
        plant: how it behaves.
        rate_per_worker: records/s that one worker processes.
        static: the size that is compared with.
        variants: what is tried.
        profile: what policies that look at one are shown.
    """

    plant: PlantSpec
    rate_per_worker: float
    static: int
    variants: tuple[Variant, ...]
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial.

    Attributes:
        score: the numbers of the day alone.
        digest: of all that happened: two trials with the same one were the same, step by step.
    """

    score: Score
    digest: str


def plant_from_profile(plant: PlantSpec, profile: Profile) -> PlantSpec:
    """A plant that behaves as a profile says, where it says something."""
    up, down = (profile.times.get(direction, {}) for direction in (Direction.UP, Direction.DOWN))
    found: dict[str, Any] = {}
    if "start_up" in up:
        found["startup"], found["startup_sd"] = _lognormal(up["start_up"])
    if "stall" in up:
        found["restart_up"], found["restart_sd"] = _lognormal(up["stall"])
    if "stall" in down:
        found["restart_down"], _ = _lognormal(down["stall"])
        found["heartbeat"] = 0.0  # the stall contains it
    if profile.capacity is not None:
        found["gamma"] = profile.capacity.exponent
    return replace(plant, **found)


def _lognormal(spread: Spread) -> tuple[float, float]:
    """The median, and the standard deviation of the logarithm."""
    low = max(spread.low, _LEAST)
    return max(spread.median, _LEAST), math.log(max(spread.high, low) / low) / _DECILES


def day_load(name: str, slots: Sequence[int], rates: Sequence[float], rate_per_worker: float) -> Load:
    """What arrived from `WARM_UP` before a day until its end.

    Args:
        name: what it is called.
        slots: those in which something was observed, ascending, from the day's midnight on; before it they are below 0.
        rates: the mean of each, records/s.
        rate_per_worker: records/s that one worker processes.
    """
    found: list[float] = []
    last, before = -BEFORE - 1, rates[0]
    for slot, rate in zip(slots, rates, strict=True):
        if not -BEFORE <= slot < SLOTS:
            continue
        gap = slot - last
        if gap > 1:
            rise = (rate - before) / gap
            found += [before + rise * number for number in range(1, gap)] if found else [rate] * (gap - 1)
        found.append(rate)
        last, before = slot, rate
    found += [before] * (SLOTS - 1 - last)
    steps = round(SLOT / STEP)
    return Load(name, tuple([rate for rate in found for _ in range(steps)]), rate_per_worker=rate_per_worker)


def visible_metrics(spec: ClusterSpec, names: Mapping[str, str], observation: Observation) -> Observation:
    """What the sources of a configuration would have shown of what the plant shows: no more than it asks for.

    Args:
        spec: of the cluster.
        names: metric of the spec -> which of those that the plant shows it is.
        observation: by the plant's own names.
    """
    metrics, missing = observation.metrics, observation.missing
    engine = observation.engine if spec.engine else None
    asked = {name: shown for name, shown in names.items() if shown in metrics}
    gone = {name: missing[shown] for name, shown in names.items() if shown in missing}
    gone |= {name: why for name, why in missing.items() if name == TARGET or (name == ENGINE and spec.engine)}
    return replace(
        observation, metrics={name: metrics[shown] for name, shown in asked.items()}, missing=gone, engine=engine
    )


def showing_profile(decide: Decide, profile: Profile, name: str) -> Decide:
    """The same, shown what a profile says at each moment, as a metric of that name."""

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        metrics = {**observation.metrics, name: reading(profile, observation.at)}
        return decide(spec, state, replace(observation, metrics=metrics))

    return decided


def _named(decide: Decide, names: Mapping[str, str]) -> Decide:
    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        return decide(spec, state, visible_metrics(spec, names, observation))

    return decided


def decider(variant: Variant, load: Load, profile: Profile | None, start: datetime) -> Decide:
    """What decides in a trial under that load, which begins at that time."""
    decide: Decide = without_guards if variant.bare else step
    if variant.profile and profile is not None:
        decide = showing_profile(decide, profile, variant.profile)
    if variant.oracle:
        decide = with_forecast(decide, load, start)
    return decide if variant.names is None else _named(decide, variant.names)


def run_trial(case: Case, variant: Variant, load: Load, day: datetime, seed: int) -> Outcome:
    """Try a variant on a day.

    Args:
        case: the cluster.
        variant: one of its variants.
        load: what was `offered`.
        day: its midnight.
        seed: of all that the plant draws.
    """
    done = simulate_trial(case, variant, load, day, seed)
    begin = round(WARM_UP.total_seconds() / STEP)
    score = done.score(begin=begin)
    return Outcome(score, digest(done.track))


def simulate_trial(case: Case, variant: Variant, load: Load, day: datetime, seed: int) -> Run:
    """The simulation that a trial is."""
    spec = variant.spec
    if variant.static:
        spec = replace(spec, limits=Limits(case.static, case.static), policies=(), combine=None)
    start = day - WARM_UP
    return run(spec, case.plant, load, seed, decide=decider(variant, load, case.profile, start), start=start)


def digest(track: Track) -> str:
    """Of all that happened in a run."""
    found = hashlib.sha256(array("d", track.position).tobytes())
    found.update(array("l", track.billed).tobytes())
    found.update(repr(track.requests).encode())
    return found.hexdigest()[:16]
