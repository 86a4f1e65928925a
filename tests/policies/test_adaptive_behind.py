"""How the default policy treats a job that falls behind although its learned capacity seemed sufficient."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from autoscaler.core.model import Recommendation
from autoscaler_policies.adaptive.policy import Adaptive
from tests.policies.conftest import NOW, make
from tests.policies.test_adaptive import Life

# At low load the policy learned 90 records/s for one replica; the true capacity is 20.
LEARNED = {"capacity.level": math.log(90.0), "capacity.exponent": 0.9}


def fall_behind(
    seconds: int,
    *,
    throughput: float = 20.0,
    utilization: float = 1.0,
    pause: int | None = None,
    highest: float = 0.0,
) -> Recommendation:
    """The last recommendation while 46 records/s arrive, observed every 5 s; at second `pause` the job keeps up."""
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
        # the learned values stay wrong: this is about the time before they are corrected
        learned = {name: number for name, number in policy.learn(view).items() if not name.startswith("size.")}
        memory = {**learned, **LEARNED}
        said = policy.evaluate(replace(view, memory=memory))
    assert said is not None
    return said


def test_a_job_that_is_behind_for_a_minute_shows_its_capacity() -> None:
    assert fall_behind(55).replicas == 1
    said = fall_behind(60)
    assert said.inputs["capacity"] == pytest.approx(20.0)
    assert said.replicas == 4  # 20 x 4^0.9 = 70/s; 3 process 54/s, a fifth more than the arrivals is 55/s
    assert "1 replica (20/s) is too few" in said.detail


@pytest.mark.parametrize(
    ("throughput", "utilization", "pause", "highest", "why"),
    [
        (80.0, 1.0, None, 0.0, "it does what was expected, within what capacities vary by"),
        (20.0, 0.5, None, 0.6, "its workers wait for something else, as they have been busier: more would wait, too"),
        (20.0, 1.0, 30, 0.0, "it has kept up in between"),
    ],
)
def test_otherwise_the_learned_capacity_holds(
    throughput: float, utilization: float, pause: int | None, highest: float, why: str
) -> None:
    said = fall_behind(75, throughput=throughput, utilization=utilization, pause=pause, highest=highest)
    assert said.inputs["capacity"] == pytest.approx(90.0), why


@pytest.mark.parametrize("utilization", [0.01, 0.1, 0.35, 0.5])
def test_a_job_that_is_behind_is_saturated_if_its_workers_have_never_been_busier(utilization: float) -> None:
    assert fall_behind(55, utilization=utilization).replicas == 1
    assert fall_behind(60, utilization=utilization, highest=utilization).replicas == 4


@pytest.mark.parametrize("shown", [0.1, 0.35, 0.7])
def test_a_cpu_that_never_shows_saturation_misleads_the_policy_once(shown: float) -> None:
    # Four replicas process 348/s at a low CPU usage, as each waits for another system most of the time.
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
