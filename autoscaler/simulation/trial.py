"""Simulates one day of a real history: its arrivals, on a simulated cluster with the times of the real one.

A trial begins `WARM_UP` before the day, with the arrivals of the evening before, so that the start of a policy does not
count. Short gaps are interpolated; before the first known value the arrivals are constant.
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
"""Seconds of a slot: arrivals are the mean of each slot."""

SLOTS = round(86400 / SLOT)
"""Slots of a day."""

WARM_UP = timedelta(hours=2)
"""A trial begins this long before its day..."""

BEFORE = round(WARM_UP.total_seconds() / SLOT)
"""... which is this many slots."""

MAX_GAP = timedelta(minutes=15)
"""A day with a longer gap in its records is left out."""

STATIC_HEADROOM = 1.1
"""The static size for comparison: what the greatest arrivals of all days need, plus 10 %."""

_DECILES = 2 * 1.2815515655446004  # standard deviations from the tenth to the ninetieth percentile
_LEAST = 0.1  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to decide about a cluster.

    Attributes:
        policy: its name in tables.
        spec: the spec of the cluster; `interval` is a multiple of the plant's step.
        parameters: the parameters that differ from the configuration: key -> value, as in a configuration file.
        names: metric of the spec -> metric of the plant; None: the same names.
        profile: the metric with the cluster's profile; empty: the policy uses none.
        bare: whether it runs without the guards, with the limits only.
        oracle: whether it sees the future.
        static: whether it makes no decisions: the size is always what the peak needs, plus 10 %.
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
    """A cluster, and the variants to try on it. Picklable.

    Attributes:
        plant: how it behaves.
        rate_per_worker: records/s that one worker processes.
        static: the fixed size for comparison.
        variants: the variants to try.
        profile: the profile of the cluster, for policies that use one.
    """

    plant: PlantSpec
    rate_per_worker: float
    static: int
    variants: tuple[Variant, ...]
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial.

    Attributes:
        score: the score of the day alone.
        digest: a hash of all steps: trials with the same digest were identical.
    """

    score: Score
    digest: str


def plant_from_profile(plant: PlantSpec, profile: Profile) -> PlantSpec:
    """A plant with the times and the exponent of a profile, as far as it has them."""
    up, down = (profile.times.get(direction, {}) for direction in (Direction.UP, Direction.DOWN))
    found: dict[str, Any] = {}
    if "start_up" in up:
        found["startup"], found["startup_sd"] = _lognormal(up["start_up"])
    if "stall" in up:
        found["restart_up"], found["restart_sd"] = _lognormal(up["stall"])
    if "stall" in down:
        found["restart_down"], _ = _lognormal(down["stall"])
        found["heartbeat"] = 0.0  # the stall includes it
    if profile.capacity is not None:
        found["gamma"] = profile.capacity.exponent
    return replace(plant, **found)


def _lognormal(spread: Spread) -> tuple[float, float]:
    """The median, and the standard deviation of the logarithm."""
    low = max(spread.low, _LEAST)
    return max(spread.median, _LEAST), math.log(max(spread.high, low) / low) / _DECILES


def day_load(name: str, slots: Sequence[int], rates: Sequence[float], rate_per_worker: float) -> Load:
    """The arrivals from `WARM_UP` before a day until its end.

    `slots` are the numbers of the slots with observations, ascending; they count from midnight, and are negative before
    it. `rates` are their mean arrivals in records/s, which is also the unit of `rate_per_worker`.
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
    """The observation that the sources of a configuration would have made of the plant.

    `names`: metric of the spec -> metric of the plant; the given observation uses the plant's names.
    """
    metrics, missing = observation.metrics, observation.missing
    engine = observation.engine if spec.engine else None
    asked = {name: shown for name, shown in names.items() if shown in metrics}
    unavailable = {name: missing[shown] for name, shown in names.items() if shown in missing}
    unavailable |= {name: why for name, why in missing.items() if name == TARGET or (name == ENGINE and spec.engine)}
    return replace(
        observation, metrics={name: metrics[shown] for name, shown in asked.items()}, missing=unavailable, engine=engine
    )


def showing_profile(decide: Decide, profile: Profile, name: str) -> Decide:
    """The same decider with the values of a profile as a metric of that name."""

    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        metrics = {**observation.metrics, name: reading(profile, observation.at)}
        return decide(spec, state, replace(observation, metrics=metrics))

    return decided


def _named(decide: Decide, names: Mapping[str, str]) -> Decide:
    def decided(spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        return decide(spec, state, visible_metrics(spec, names, observation))

    return decided


def decider(variant: Variant, load: Load, profile: Profile | None, start: datetime) -> Decide:
    """The decider of a trial under a load that begins at `start`."""
    decide: Decide = without_guards if variant.bare else step
    if variant.profile and profile is not None:
        decide = showing_profile(decide, profile, variant.profile)
    if variant.oracle:
        decide = with_forecast(decide, load, start)
    return decide if variant.names is None else _named(decide, variant.names)


def run_trial(case: Case, variant: Variant, load: Load, day: datetime, seed: int) -> Outcome:
    """Try a variant on a day. `day` is the midnight at its beginning."""
    done = simulate_trial(case, variant, load, day, seed)
    begin = round(WARM_UP.total_seconds() / STEP)
    score = done.score(begin=begin)
    return Outcome(score, digest(done.track))


def simulate_trial(case: Case, variant: Variant, load: Load, day: datetime, seed: int) -> Run:
    """Run the simulation of a trial."""
    spec = variant.spec
    if variant.static:
        spec = replace(spec, limits=Limits(case.static, case.static), policies=(), combine=None)
    start = day - WARM_UP
    return run(spec, case.plant, load, seed, decide=decider(variant, load, case.profile, start), start=start)


def digest(track: Track) -> str:
    """A hash of all steps of a run."""
    found = hashlib.sha256(array("d", track.position).tobytes())
    found.update(array("l", track.billed).tobytes())
    found.update(repr(track.requests).encode())
    return found.hexdigest()[:16]
