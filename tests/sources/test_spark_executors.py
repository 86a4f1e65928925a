"""Why `utilization` of a Spark query is one number: its busiest executor is a matter of chance, not a hot worker.

Between two batches tasks move: chance decides which executor gets the last task of a batch, or the long one of a hot
partition. So the busiest executor's share over a window is above the mean if all partitions are even, and far below 1
if a hot partition keeps the query busy. `saturation` shows the hot partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from statistics import mean
from typing import NamedTuple

import pytest

from autoscaler.sources.spark import BusySample, busy_share

BATCHES, POLL = 200, 15.0


class Query(NamedTuple):
    """A query with a fixed trigger, and the tasks of its batches; times in seconds."""

    executors: int
    slots: int
    tasks: int
    cost: float
    trigger: float
    hot: float = 0.0
    """Share of a batch's work that one of its tasks has; 0: all are alike."""


class Shares(NamedTuple):
    """Means over all polls: of the busiest executor, of all, and of the share of the trigger interval in batches."""

    busiest: float
    mean: float
    saturation: float


class Task(NamedTuple):
    """The time and the executor of a task."""

    begin: float
    end: float
    executor: int


def run_batch(query: Query, begin: float, dice: Random) -> Iterator[Task]:
    """Each free slot takes the next task, as without a locality wait; a random one if several are free."""
    free = [(begin, dice.random(), executor) for executor in range(query.executors) for _ in range(query.slots)]
    heapq.heapify(free)
    whole = query.tasks * query.cost
    for number in range(query.tasks):
        cost = query.cost
        if query.hot:
            cost = whole * (query.hot if number == 0 else (1 - query.hot) / (query.tasks - 1))
        at, _, executor = heapq.heappop(free)
        end = at + cost * dice.lognormvariate(0.0, 0.04)
        heapq.heappush(free, (end, dice.random(), executor))
        yield Task(at, end, executor)


def measure(query: Query, seed: int = 1) -> Shares:
    dice = Random(seed)  # noqa: S311 - noise of a simulation, not a secret
    tasks: list[Task] = []
    taken = []
    for number in range(BATCHES):
        batch = list(run_batch(query, number * query.trigger, dice))
        taken.append(max(task.end for task in batch) - number * query.trigger)
        tasks += batch
    assert max(taken) < query.trigger, "each batch is done before the next one is due"

    def sample(at: float) -> BusySample:
        found = {}
        for executor in range(query.executors):
            own = [task for task in tasks if task.executor == executor]
            booked = sum(round(1000 * (task.end - task.begin)) for task in own if task.end <= at)
            found[str(executor)] = (booked, query.slots, sum(task.begin <= at < task.end for task in own))
        return BusySample(at, found)

    busiest, whole = [], []
    for first, last in pairwise([sample(POLL * number) for number in range(int(BATCHES * query.trigger / POLL))]):
        each = [
            busy_share([BusySample(one.at, {name: one.executors[name]}) for one in (first, last)])
            for name in last.executors
        ]
        busiest.append(max(share or 0.0 for share in each))
        whole.append(busy_share([first, last]) or 0.0)
    return Shares(mean(busiest), mean(whole), mean(taken) / query.trigger)


@pytest.mark.parametrize(
    "query",
    [
        Query(executors=4, slots=1, tasks=6, cost=2.0, trigger=5.0),
        Query(executors=4, slots=2, tasks=12, cost=2.0, trigger=5.0),
        Query(executors=8, slots=2, tasks=24, cost=1.5, trigger=5.0),
    ],
    ids=["6 tasks for 4 slots", "12 tasks for 8 slots", "24 tasks for 16 slots"],
)
def test_without_a_hot_partition_one_executor_looks_busier_by_chance(query: Query) -> None:
    found = measure(query)
    assert found.busiest > 1.1 * found.mean


@pytest.mark.parametrize(
    "query",
    [
        Query(executors=4, slots=2, tasks=12, cost=2.0, trigger=8.5, hot=0.3),
        Query(executors=8, slots=2, tasks=24, cost=1.2, trigger=10.0, hot=0.3),
    ],
    ids=["4 executors", "8 executors"],
)
def test_a_hot_partition_is_visible_in_saturation_but_not_in_the_busiest_executor(query: Query) -> None:
    found = measure(query)
    assert found.saturation > 0.8
    assert found.busiest < 0.6
