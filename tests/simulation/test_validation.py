import math
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from autoscaler.cli.benchmark_run import cluster
from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Decision,
    Limits,
    Observation,
    Reading,
    Reason,
)
from autoscaler.simulation.loads import Load, load_by_name
from autoscaler.simulation.plant import START, work
from tests.simulation.published import (
    HPA,
    MEASURED,
    PLANT,
    SETUPS,
    STATIC,
    Measured,
    Setup,
    cpu_as_pods,
    simulated,
)

SPEC = ClusterSpec(name="test", limits=Limits(1, STATIC), policies=(), metrics=("cpu",), interval=timedelta(seconds=15))


def fake(replicas: int) -> Measured:
    return Measured("fake", replicas / STATIC, 0.0, rate=1000.0, cpu=0.5)


class Pods:
    """Records the readings of the pods that a decider receives."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Mapping[str, float]]] = []
        self.decide = cpu_as_pods(self._note)

    def _note(self, _spec: ClusterSpec, state: ClusterState, observation: Observation) -> tuple[ClusterState, Decision]:
        self.seen.append(observation.metrics["cpu"].parts)
        size = observation.desired or 0
        return state, Decision(
            cluster="test", at=observation.at, current=size, proposed=size, desired=size, reason=Reason.STEADY
        )

    def show(self, seconds: float, ready: int | None, cpu: float | tuple[float, ...]) -> list[tuple[float, float]]:
        """Usage and readiness of each pod, the oldest first."""
        at = START + timedelta(seconds=seconds)
        observation = Observation(
            at=at, desired=ready, ready=ready, metrics={"cpu": Reading(cpu, at)}, missing={}, engine=None
        )
        self.decide(SPEC, ClusterState(), observation)
        return [(part["usage"], part["ready"]) for part in self.seen[-1].values()]


def test_the_cpu_is_read_once_a_minute() -> None:
    pods = Pods()
    assert pods.show(15, 2, 0.4) == [(0.4, 1), (0.4, 1)]
    assert pods.show(60, 2, 0.9) == [(0.4, 1), (0.4, 1)]
    assert pods.show(75, 2, 0.9) == [(0.9, 1), (0.9, 1)]


def test_the_cpu_of_a_new_pod_counts_once_it_was_ready_for_a_whole_reading() -> None:
    pods = Pods()
    pods.show(15, 1, 0.4)
    assert [ready for _, ready in pods.show(30, 2, 0.4)] == [1, 0]
    assert [ready for _, ready in pods.show(75, 2, 0.4)] == [1, 0]
    assert [ready for _, ready in pods.show(120, 2, 0.4)] == [1, 0]
    assert [ready for _, ready in pods.show(135, 2, 0.4)] == [1, 1]


def test_the_cpu_of_a_pod_counts_after_five_minutes_in_any_case() -> None:
    pods = Pods()
    pods.show(15, 1, 0.4)
    pods.show(30, 2, 0.4)
    assert [ready for _, ready in pods.show(330, 2, 0.4)] == [1, 1]


def test_the_youngest_pods_are_removed_first() -> None:
    pods = Pods()
    pods.show(15, 2, 0.4)
    pods.show(30, 4, 0.4)
    assert [ready for _, ready in pods.show(45, 3, 0.4)] == [1, 1, 0]
    assert pods.show(60, None, 0.4) == []
    assert [ready for _, ready in pods.show(75, 1, 0.4)] == [0]


def test_the_cpu_of_all_replicas_is_their_mean() -> None:
    assert Pods().show(15, 1, (0.25, 0.75)) == [(0.5, 1)]


@pytest.mark.parametrize("exponent", [0.9, 1.0])
def test_the_static_workers_have_the_measured_cpu(exponent: float) -> None:
    plant = replace(PLANT, gamma=exponent)
    for measured in MEASURED:
        capacity = measured.rate_per_worker(plant) * work(STATIC, exponent)
        assert plant.idle + (1 - plant.idle) * measured.rate / capacity == pytest.approx(measured.cpu)


def test_a_constant_size_costs_its_size_and_is_late_only_after_failures() -> None:
    # no policy requests anything: the initial size stays
    load = Load("fake", (500.0,) * 1440)
    calm = simulated(SPEC, fake(24), load, Setup("calm", replace(PLANT, crash_every=0.0)), (1,))
    assert calm == type(calm)(1.0, 0.0, 0.0, 0.0, 0.0)
    failing = simulated(SPEC, fake(24), load, Setup("failing", replace(PLANT, crash_every=900.0)), (1, 2))
    assert failing.workers == pytest.approx(1.0)
    # The job is stopped for 20 s and more before Flink notices it, and shows no latency meanwhile.
    assert failing.late > failing.shown > 0
    assert failing.restarts > 4
    assert failing.rescales == 0


def test_a_worker_is_sized_by_the_load_if_configured() -> None:
    load = Load("fake", (500.0,) * 360, rate_per_worker=1.0)  # 24 workers cannot process it
    plant = replace(PLANT, crash_every=0.0)
    assert simulated(SPEC, fake(24), load, Setup("so", plant, sized=False), (1,)).late > 0.9
    assert simulated(SPEC, fake(24), load, Setup("so", plant, pods=False), (1,)).late == 0


def test_the_first_setup_is_the_known_one_and_the_others_are_variants() -> None:
    first, *others = SETUPS
    assert first == Setup("as published")
    assert all((each.plant, each.pods, each.sized) != (first.plant, first.pods, first.sized) for each in others)


@pytest.mark.e2e
@pytest.mark.skipif(not os.environ.get("AUTOSCALER_TRACES"), reason="AUTOSCALER_TRACES names no folder of traces")
def test_the_hpa_costs_about_as_much_as_was_measured() -> None:
    spec = cluster("hpa", HPA, PLANT.slo, 1.0)
    folder = Path(os.environ["AUTOSCALER_TRACES"])
    for measured in MEASURED:
        found = simulated(spec, measured, load_by_name(measured.scenario, 0, folder), SETUPS[0], (1,))
        assert math.isclose(found.workers, measured.workers, rel_tol=0.25)
        assert 0 < found.shown < found.late < 0.15
