"""What the default policy makes of a job that falls behind though it was learned to do enough."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import Recommendation
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import NOW, make
from tests.policies.test_adaptive import Life

# On little load one replica was learned to do 90 records/s; it does 20.
LEARNED = {"capacity.level": math.log(90.0), "capacity.exponent": 0.9}


def fall_behind(
    seconds: int,
    *,
    throughput: float = 20.0,
    utilization: float = 1.0,
    pause: int | None = None,
    highest: float = 0.0,
) -> Recommendation:
    """46 records/s arrive, observed every 5 s; the last thing it says. In the `pause`th second it keeps up."""
    policy = Adaptive()
    memory = {**LEARNED, "saturation.highest": highest}
    said = None
    for at in range(0, seconds + 1, 5):
        done = 46.0 if at == pause else throughput
        metrics = {"lag": 500.0, "arrivals": 46.0, "throughput": done, "utilization": utilization}
        view = make(metrics, maximum=20, rescale=False, stall_up=1.0, stall_down=1.0)
        view = replace(
            view,
            now=NOW + timedelta(seconds=at),
            metrics={name: replace(each, at=NOW + timedelta(seconds=at)) for name, each in view.metrics.items()},
            spec=replace(view.spec, interval=timedelta(seconds=5)),
            memory=memory,
        )
        # what was learned stays as wrong as it is: here it is about the time until that is right
        learned = {name: number for name, number in policy.learn(view).items() if not name.startswith("size.")}
        memory = {**learned, **LEARNED}
        said = policy.evaluate(replace(view, memory=memory))
    assert said is not None
    return said


def test_a_job_that_is_behind_for_a_minute_shows_what_it_can_do() -> None:
    assert fall_behind(55).replicas == 1
    said = fall_behind(60)
    assert said.inputs["capacity"] == pytest.approx(20.0)
    assert said.replicas == 4  # 20 x 4^0.9 = 70/s; 3 do 54/s, a fifth more than what arrives is 55/s
    assert "1 replica (20/s) is too few" in said.detail


@pytest.mark.parametrize(
    ("throughput", "utilization", "pause", "highest", "why"),
    [
        (80.0, 1.0, None, 0.0, "it does what was expected, within what capacities vary by"),
        (20.0, 0.5, None, 0.6, "its workers wait for something else, as they have been busier: more would wait, too"),
        (20.0, 1.0, 30, 0.0, "it has kept up in between"),
    ],
)
def test_else_it_does_what_was_learned(
    throughput: float, utilization: float, pause: int | None, highest: float, why: str
) -> None:
    said = fall_behind(75, throughput=throughput, utilization=utilization, pause=pause, highest=highest)
    assert said.inputs["capacity"] == pytest.approx(90.0), why


@pytest.mark.parametrize("utilization", [0.01, 0.1, 0.35, 0.5])
def test_a_job_that_is_behind_does_all_it_can_where_its_workers_have_never_been_busier(utilization: float) -> None:
    assert fall_behind(55, utilization=utilization).replicas == 1
    assert fall_behind(60, utilization=utilization, highest=utilization).replicas == 4


@pytest.mark.parametrize("shown", [0.1, 0.35, 0.7])
def test_a_cpu_that_never_shows_that_the_job_can_do_no_more_misleads_it_once(shown: float) -> None:
    # Four replicas do 348/s, and then show a CPU of a part only, as each waits for another system most of the time.
    life = Life(size=4)

    def poll(arrivals: float, lag: float = 0.0) -> Recommendation:
        busy = min(arrivals / life.able, 1.0) * shown
        return life.poll(arrivals, lag, throughput=min(arrivals, life.able), utilization=busy)

    for _ in range(8):
        poll(200.0)
    assert (life.policy.estimate_capacity(life.memory, 4, 4.0) or 0.0) == pytest.approx(life.able / shown, rel=0.05)
    for number in range(1, 8):
        found = poll(450.0, (450.0 - life.able) * 15 * number + 10_000.0)
    assert (found.replicas or 0) > 4
    assert life.policy.estimate_capacity(life.memory, 4, 4.0) == pytest.approx(life.able, rel=0.05)
    for _ in range(8):
        poll(200.0)
    assert life.policy.estimate_capacity(life.memory, 4, 4.0) == pytest.approx(life.able, rel=0.05)
