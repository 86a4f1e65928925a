"""The whole decision machine against a small simulated job: replicas start slowly, changes may stop the job, noise."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from autoscaler.core.capacity import effective_slots
from autoscaler.core.model import (
    Behaviour,
    CapacitySpec,
    ClusterSpec,
    ClusterState,
    EngineStatus,
    JobState,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reading,
)
from autoscaler.core.step import step
from autoscaler.ports import Record
from autoscaler.trace.codec import dump_record, dump_state, load_record, load_state
from autoscaler_policies.rules.backlog_drain import BacklogDrain
from autoscaler_policies.rules.target_tracking import TargetTracking
from autoscaler_policies.rules.threshold import Rule, Threshold
from tests.core.build import at, seconds

METRICS = ("lag", "arrivals", "throughput", "saturation")
INTERVAL = 15


@dataclass
class Plant:
    """A job, one second at a time.

    Attributes:
        load: offered records/s at a second.
        each: records/s of one replica at a second.
        stops: whether each change of size stops the job for some seconds.
        silent: share of the ticks at which the engine does not answer.
        stale: for up to this many seconds after a change the target shows the old or the new size at random.
    """

    load: Callable[[int], float]
    dice: random.Random
    each: Callable[[int], float] = lambda _: 50.0
    size: int = 2
    stops: bool = False
    silent: float = 0.0
    stale: int = 0
    partitions: int = 48
    second: int = 0
    lag: float = 0.0
    stopped_until: int = -1
    coming: list[int] = field(default_factory=list)
    wanted: deque[int] = field(default_factory=lambda: deque([2], maxlen=100))
    last: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=10))
    busy: float = 0.0

    def tick(self) -> None:
        self.second += 1
        desired = self.wanted[-1]
        self.wanted.append(desired)
        arrived = self.coming.count(self.second)
        self.coming = [due for due in self.coming if due > self.second][: max(0, desired - self.size - arrived)]
        missing = desired - self.size - arrived - len(self.coming)
        self.coming += [self.second + self.dice.randint(8, 20) for _ in range(missing)]
        gone = 1 if self.size > desired and self.second % 3 == 0 else 0
        self.size += arrived - gone
        if self.stops and (arrived or gone):
            self.stopped_until = self.second + 5
        capacity = self.each(self.second) * effective_slots(self.size, 1, self.partitions) if self.running else 0.0
        capacity *= self.dice.uniform(0.95, 1.05)
        offered = self.load(self.second) * self.dice.uniform(0.95, 1.05)
        done = min(capacity, self.lag + offered)
        self.lag += offered - done
        self.busy = done / capacity if capacity else 1.0
        self.last.append((offered, done))

    @property
    def running(self) -> bool:
        return self.second > self.stopped_until

    def seen(self) -> Observation:
        now = at(self.second)
        offered, done = (sum(values) / len(self.last) for values in zip(*self.last, strict=True))
        numbers = {"lag": self.lag, "arrivals": offered, "throughput": done, "saturation": self.busy}
        job = JobState.RUNNING if self.running else JobState.RESTARTING
        engine = EngineStatus(job=job, slots=self.size, parallelism=self.size, partitions=self.partitions)
        silent = self.dice.random() < self.silent
        shown = self.wanted[-1 - self.dice.randint(0, min(self.stale, len(self.wanted) - 1))]
        readings = {name: Reading(number, now) for name, number in numbers.items()}
        return Observation(
            at=now, desired=shown, ready=self.size, metrics=readings, missing={}, engine=None if silent else engine
        )


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - noise of a simulation, not a secret


def run(spec: ClusterSpec, plant: Plant, until: int) -> list[tuple[int, int]]:
    """The requested changes of size, each with its second; the daemon is killed before every twelfth tick."""
    state = ClusterState()
    found: list[tuple[int, int]] = []
    while plant.second < until:
        plant.tick()
        if plant.second % INTERVAL:
            continue
        observation = plant.seen()
        after, decision = step(spec, state, observation)
        if plant.second % (12 * INTERVAL) == 0:
            records = [dump_record(Record(past, decision, dry_run=False)) for past in state.past]
            past = tuple(load_record(record).observation for record in records)
            assert step(spec, replace(load_state(dump_state(state)), past=past), observation) == (after, decision)
        state = after
        if decision.rescale and decision.desired != plant.wanted[-1]:
            plant.wanted.append(decision.desired)
            found.append((plant.second, decision.desired))
    return found


def cluster(*policies: Policy, per_replica: float | None = 50.0, up: float = 0) -> ClusterSpec:
    return ClusterSpec(
        name="plant",
        limits=Limits(1, 20),
        policies=tuple(NamedPolicy(f"p{n}", policy) for n, policy in enumerate(policies)),
        up=Behaviour(window=seconds(up)),
        down=Behaviour(window=seconds(120), tolerance=0.1),
        capacity=CapacitySpec(per_replica=per_replica),
        metrics=METRICS,
        engine=True,
        interval=seconds(INTERVAL),
    )


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("load", [80, 140, 210, 310])
@pytest.mark.parametrize("per_replica", [50.0, None])
def test_a_constant_load_causes_no_changes_once_the_size_is_sufficient(
    load: float, stops: bool, per_replica: float | None
) -> None:
    for seed in range(2):
        plant = Plant(lambda _: load, dice(seed), stops=stops, silent=0.05)
        brake = Threshold(up=(Rule(metric="lag", above=50_000.0, hold=seconds(30)),))
        found = run(cluster(BacklogDrain(stops=stops), brake, per_replica=per_replica), plant, 3600)
        assert len(found) <= 4, found
        assert [when for when, _ in found if when > 1800] == []
        assert plant.lag < load * 10


@pytest.mark.parametrize("stops", [False, True])
def test_a_surge_gets_replicas_and_they_are_removed_when_it_ends(stops: bool) -> None:
    def load(second: int) -> float:
        return 420 if 900 < second <= 2700 else 60

    plant = Plant(load, dice(3), stops=stops, silent=0.05, stale=20)
    drain = BacklogDrain(stops=stops)
    before = run(cluster(drain), plant, 2700)
    assert plant.lag < 4200
    assert plant.wanted[-1] >= 10
    after = run(cluster(drain), plant, 4500)
    assert plant.wanted[-1] <= 2
    assert plant.size == plant.wanted[-1]
    assert len(before) + len(after) <= 6, (before, after)


def test_a_rising_cost_per_record_causes_few_steps() -> None:
    """The learned capacity of smaller sizes is discarded once a larger size processes less."""

    def load(second: int) -> float:
        return 90 if second // 900 % 2 == 0 else 220

    for seed in range(3):
        plant = Plant(load, dice(seed), each=lambda second: 50 if second < 6000 else 15, partitions=120)
        found = run(cluster(BacklogDrain(stops=False), per_replica=None), plant, 6300)
        assert len([size for when, size in found if when > 6000]) <= 2, found


@pytest.mark.parametrize(("window", "least", "most"), [(0, 20, 200), (60, 0, 6)])
def test_a_job_that_stops_on_rescale_needs_a_window_before_busy_time_counts_as_load(
    window: float, least: int, most: int
) -> None:
    """This is the measurement behind the statement in the documentation of target-tracking."""
    plant = Plant(lambda _: 140, dice(1), stops=True)
    found = run(cluster(TargetTracking("saturation", 0.7), up=window), plant, 3600)
    assert least <= len(found) <= most
