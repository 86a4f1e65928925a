"""How long the default policy takes the job to stand still for a rescale."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import EngineStatus, JobState, View
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import NOW, make

STARTED = NOW - timedelta(hours=1)


class Life:
    """A job that is observed every 15 s, and what the policy knows of it."""

    def __init__(self) -> None:
        self.policy = Adaptive()
        self.memory: dict[str, float] = {}

    def poll(self, at: float, engine: EngineStatus | None, ready: int = 2) -> None:
        view: View = make({"lag": 0.0, "arrivals": 10.0, "throughput": 10.0}, current=ready, per_replica=10)
        now = NOW + timedelta(seconds=at)
        view = replace(view, now=now, engine=engine, memory=self.memory)
        self.memory = dict(self.policy.learn(view))


def running(parallelism: int, since: float | None = None) -> EngineStatus:
    began = STARTED if since is None else NOW + timedelta(seconds=since)
    return EngineStatus(job=JobState.RUNNING, parallelism=parallelism, running_since=began)


def restarting(state: JobState = JobState.RESTARTING) -> EngineStatus:
    return EngineStatus(job=state)


def test_a_stall_lasts_until_the_job_says_to_run_again() -> None:
    life = Life()
    life.poll(0, running(4))
    life.poll(15, restarting())
    life.poll(30, running(2, since=18), ready=1)
    assert life.memory["stall.down"] == 18


@pytest.mark.parametrize("state", [JobState.RESTARTING, JobState.STARTING])
def test_a_job_that_runs_without_its_state_stands_still(state: JobState) -> None:
    # Flink's job runs from 18 s on, its tasks read their state until some time between 75 and 90 s
    life = Life()
    life.poll(0, running(4))
    for at in (15, 30, 45, 60, 75):
        life.poll(at, restarting(state))
    life.poll(90, running(2, since=18), ready=1)
    assert life.memory["stall.down"] == 75


def test_an_answer_that_is_a_few_seconds_old_makes_no_stall_longer() -> None:
    life = Life()
    life.poll(0, running(4))
    life.poll(15, restarting())
    life.poll(30, running(2, since=11), ready=1)
    assert life.memory["stall.down"] == 11


def test_a_restart_before_says_nothing_of_the_next_one() -> None:
    life = Life()
    life.poll(0, running(4))
    life.poll(15, restarting())
    life.poll(30, running(4, since=16))  # a failure: the parallelism is the same
    life.poll(45, running(2, since=40), ready=1)
    assert life.memory["stall.down"] == 10


@pytest.mark.parametrize("engine", [None, running(2, since=-1000), restarting()])
def test_what_happened_between_distant_observations_is_no_stall(engine: EngineStatus | None) -> None:
    life = Life()
    life.poll(0, running(4))
    life.poll(3600, engine, ready=1)
    life.poll(3615, running(2, since=2000), ready=1)
    assert "stall.down" not in life.memory
    life.poll(3630, restarting())
    life.poll(3645, running(4, since=3635))
    assert life.memory["stall.up"] == 3635 - 3615 - 7.5
