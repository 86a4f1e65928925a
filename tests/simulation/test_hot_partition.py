"""A hot partition keeps one worker busy while others wait: with readings per worker the policy meets the objective."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoscaler.core.model import Observation
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.plant import PLANTS, Plant
from tests.simulation.test_adaptive_closed_loop import ONE, Loop, Shown, number, put, spec_for

PARTITIONS, HOT = 24, 0.3
"""One of the partitions has this share of the load; the others are alike."""


def heaviest(workers: int) -> float:
    """The share of the load on the worker with the hot partition, or on one of the others if that is more."""
    rest = (1 - HOT) / (PARTITIONS - 1)
    return max(HOT + (PARTITIONS // workers - 1) * rest, math.ceil(PARTITIONS / workers) * rest)


class HotPlant(Plant):
    """The worker with the most load limits the whole job: the others wait for it."""

    def _use(self, slots: int) -> None:
        super()._use(slots)
        self._work = 1 / heaviest(max(1, self._used))


def mean_of(seen: Observation) -> float:
    workers = max(1, seen.ready or 0)
    return number(seen, "utilization") / (workers * heaviest(workers))


def mean_alone(seen: Observation) -> Observation:
    """The reading of a source that knows only the mean."""
    return put(seen, utilization=mean_of(seen))


def each_worker(seen: Observation) -> Observation:
    """The reading of the source `flink`: one number per worker, and the mean."""
    hottest, mean, others = number(seen, "utilization"), mean_of(seen), (seen.ready or 1) - 1
    each = [min(hottest, (mean * (others + 1) - hottest) / others)] * others if others else []
    reading = replace(seen.metrics["utilization"], value=(hottest, *each), mean=mean)
    return replace(seen, metrics={**seen.metrics, "utilization": reading})


def late(shown: Shown, load: str, seed: int) -> float:
    """Share of the time in which the job is later than the objective."""
    rates = load_by_name(load, seed).scaled(2.6 * ONE).rates
    plant = PLANTS["k8s"]
    return Loop(HotPlant(plant, ONE, seed, 4), spec_for(plant), shown).run(rates).score().violation


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hot_partition_is_detected_by_the_utilization_of_each_worker_but_not_by_their_mean(seed: int) -> None:
    assert heaviest(1) == pytest.approx(1)
    assert 1 / heaviest(8) == pytest.approx(2.77, abs=0.01), "eight workers do what 2.8 would do on equal partitions"
    seeing, blind = late(each_worker, "steps6h", seed), late(mean_alone, "steps6h", seed)
    assert seeing < 0.03
    assert blind > 5 * seeing
