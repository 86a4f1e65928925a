"""The closed loop: the decisions of `step` scale a plant, and the next decision observes the plant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from autoscaler.core.model import ClusterSpec, ClusterState
from autoscaler.core.state import call_failed
from autoscaler.core.step import Decide, step
from autoscaler.ports import Record
from autoscaler.simulation.faults import NONE, Faults, Injector, restart_daemon
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import START, STEP, Plant, PlantSpec, Track
from autoscaler.simulation.scoring import Score, needed, score

Keep = Callable[[Record], object]
"""Receives the record of each decision, for example to write it to a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a simulation.

    Attributes:
        plant: how the cluster behaved.
        load: the offered load.
        rate_per_worker: records/s that one worker processed.
        track: what happened in each step.
        state: the state at the end, with everything that was learned.
        decisions: the number of decisions.
    """

    plant: PlantSpec
    load: Load
    rate_per_worker: float
    track: Track
    state: ClusterState
    decisions: int

    def score(self, optimum: float | None = None, begin: int = 0, end: int | None = None) -> Score:
        """The score of this run.

        Steps before `begin`, and from `end` on, do not count; `optimum` is the least cost possible in worker-hours.
        """
        return score(
            self.track, self.rate_per_worker, self.plant.gamma, self.plant.slo, optimum, self.load.changes, begin, end
        )


def run(
    spec: ClusterSpec,
    plant: PlantSpec,
    load: Load,
    seed: int,
    size: int | None = None,
    record: Keep | None = None,
    decide: Decide = step,
    faults: Faults = NONE,
    start: datetime = START,
) -> Run:
    """Let a cluster's decisions scale a plant under a load. The first decision is made after one interval.

    Args:
        spec: the spec of the cluster; `interval` is the time between two decisions.
        plant: how the cluster behaves.
        load: the offered load.
        seed: the seed of all random draws.
        size: workers at the start; None: as many as the first step needs, within the limits.
        record: receives the record of every decision, as a daemon keeps it.
        decide: makes the decisions.
        faults: the faults to inject.
        start: the time at which the load begins, for policies that use the calendar.

    Raises:
        ValueError: the interval is not a multiple of the plant's step, or a fault is about an unknown metric.
    """
    every = spec.interval.total_seconds() / STEP
    if every != int(every):
        raise ValueError(f"interval: is {spec.interval.total_seconds():g}s, expected a multiple of {STEP:g}s")
    rate_per_worker = load.per_worker(plant.gamma)
    if size is None:
        size = needed([load.rates[0] * STEP], rate_per_worker, plant.gamma)[0]
    plant = faults.applied_to(plant)
    injector = Injector(faults, seed, spec)
    size = max(spec.limits.minimum, min(size, spec.limits.maximum))
    cluster = Plant(plant, rate_per_worker, seed, size, spec.slots_per_replica, start)
    advance = cluster.advance
    state = ClusterState()
    decisions = 0
    wait = ticks = int(every)
    for number, rate in enumerate(load.rates, 1):
        advance(rate * STEP)
        if faults.delayed:
            injector.apply_delayed(cluster, number * STEP)
        wait -= 1
        if wait:
            continue
        wait = ticks
        now = number * STEP
        if injector.restarts(now):
            state = restart_daemon(state)
        failed = "" if state.rescale is None else state.rescale.error
        observation = injector.seen(cluster.observe(), now)
        state, decision = decide(spec, state, observation)
        decisions += 1
        if record is not None:
            # If the state keeps the past, its observation is recorded: it has no untrusted readings.
            record(Record(state.past[-1] if state.past else observation, decision, failed=failed))
        if decision.desired != decision.current:
            error = injector.scale(cluster, decision.desired, now)
            if error:
                state = call_failed(state, error)
    return Run(
        plant=plant,
        load=load,
        rate_per_worker=rate_per_worker,
        track=cluster.track,
        state=state,
        decisions=decisions,
    )
