"""The closed loop: the decisions of `step` steer a plant, and what the plant shows makes the next decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from autoscaler.core.model import ClusterSpec, ClusterState
from autoscaler.core.step import Decide, call_failed, step
from autoscaler.ports import Record
from autoscaler.simulation.faults import NONE, Faults, Injector, restart_daemon
from autoscaler.simulation.loads import Load
from autoscaler.simulation.plant import START, STEP, Plant, PlantSpec, Track
from autoscaler.simulation.scoring import Score, needed, score

Keep = Callable[[Record], object]
"""What is done with the record of each decision, such as writing it to a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a simulation.

    Attributes:
        plant: how the cluster behaved.
        load: what was offered.
        rate_per_worker: records/s that one worker processed.
        track: what happened in each step.
        state: what the decisions left, with all that was learned.
        decisions: how many there were.
    """

    plant: PlantSpec
    load: Load
    rate_per_worker: float
    track: Track
    state: ClusterState
    decisions: int

    def score(self, optimum: float | None = None, begin: int = 0) -> Score:
        """The numbers of this run.

        Args:
            optimum: the least cost possible in worker-hours, where known.
            begin: the steps before this one do not count.
        """
        return score(
            self.track, self.rate_per_worker, self.plant.gamma, self.plant.slo, optimum, self.load.changes, begin
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
    """Have a cluster's decisions steer a plant under a load; as many steps as the load has.

    The first decision is made after one interval. A worker processes so much that the load's peak needs
    `PEAK_WORKERS` of them at 100 %.

    Args:
        spec: limits, policies and all else that decisions depend on; `interval` is the time between two of them.
        plant: how the cluster behaves.
        load: what is offered.
        seed: of everything that the plant draws.
        size: workers at the start; None: as many as the first step needs, within the limits.
        record: is given the record of every decision, as a daemon keeps it.
        decide: what makes the decisions.
        faults: what goes wrong.
        start: the time at which the load begins: policies may look at the calendar.

    Raises:
        ValueError: the interval is no multiple of the plant's step, or a fault is about no metric of the cluster.
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
            # As it was trusted, where the decider keeps that.
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
