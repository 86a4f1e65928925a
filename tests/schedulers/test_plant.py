"""The benchmark's plants restart when the state machine says so."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoscaler.schedulers.flink import FlinkSettings
from autoscaler.schedulers.state_machine import Deploy, Event, Passed, Slots, advance
from autoscaler.simulation.plant import PLANTS, STEP, Plant


@pytest.mark.parametrize("merge", [5.0, 10.0, 20.0])
@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_deploys_its_job_at_the_time_and_size_of_the_state_machine(name: str, merge: float) -> None:
    dice = Random(merge)  # noqa: S311 - sizes of a test
    plant = Plant(replace(PLANTS[name], merge=merge), 10.0, 1, 4)
    plant.advance(0.0)
    settings = FlinkSettings.merging(merge)
    job = settings.executing(4, 0.0)
    deployments = 0

    def tell(event: Event) -> None:
        nonlocal job, deployments
        job, done = advance(settings, job, event)
        deployments += sum(isinstance(instruction, Deploy) for instruction in done)

    for step in range(1, 2000):
        tell(Passed(step * STEP))
        plant.advance(0.0)
        assert (plant.track.running[-1], plant.track.restarts) == (job.parallelism, deployments)
        tell(Slots((step + 1) * STEP, plant.observe().ready or 0))
        if dice.random() < 0.05:
            plant.scale(dice.randrange(12))
            tell(Slots((step + 1) * STEP, plant.observe().ready or 0))
    assert deployments > 50
