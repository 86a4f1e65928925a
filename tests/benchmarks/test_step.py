"""How many decisions one core makes: printed beside the machine's own speed, never asserted as wall-clock time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest

from autoscaler.core.model import (
    Behaviour,
    CapacitySpec,
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Rate,
    RateKind,
    Reading,
    Select,
)
from autoscaler.core.step import step
from autoscaler.plugins import Kind, load
from autoscaler.simulation.loads import load_by_name
from autoscaler.simulation.loop import run as simulated
from autoscaler.simulation.plant import PLANTS

STEPS = 20_000
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def _spec() -> ClusterSpec:
    threshold = load(Kind.POLICY, "threshold")
    rule = import_module(threshold.__module__).Rule
    policies = (
        NamedPolicy("drain", load(Kind.POLICY, "backlog-drain")()),
        NamedPolicy("cpu", load(Kind.POLICY, "target-tracking")(metric="cpu", target=0.7)),
        NamedPolicy("lag", threshold(up=(rule(metric="lag", above=5000.0),), down=(rule(metric="lag", below=500.0),))),
    )
    return ClusterSpec(
        name="bench",
        limits=Limits(1, 24),
        policies=policies,
        up=Behaviour(rates=(Rate(RateKind.REPLICAS, 4, timedelta(minutes=1)),)),
        down=Behaviour(timedelta(minutes=5), 0.1, timedelta(minutes=1), Select.MAX),
        capacity=CapacitySpec(per_replica=60.0),
        metrics=("lag", "arrivals", "throughput", "saturation", "cpu"),
        partitions=48,
    )


def _observations() -> list[Observation]:
    """A load that sometimes needs fewer replicas: the stabilization window is full and has to prevent a scale-down."""
    found = []
    for n in range(STEPS):
        at = T0 + timedelta(seconds=15 * n)
        arrivals = 290.0 + 10.0 * (n % 7) - 5.0 * (n % 5)
        cpu = 0.6 if n % 7 else 0.68
        values = {"lag": 100.0, "arrivals": arrivals, "throughput": arrivals, "saturation": 0.6, "cpu": cpu}
        found.append(
            Observation(at=at, desired=8, ready=8, metrics={name: Reading(value, at) for name, value in values.items()})
        )
    return found


def _per_second(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def _reference() -> int:
    """Plain Python of a fixed size, to measure the speed of this machine."""
    total = 0
    table = {n: n * 3 for n in range(100)}
    for n in range(2_000_000):
        total += table[n % 100]
    return total


@pytest.mark.benchmark
def test_decisions_per_second_with_three_policies_and_a_full_window() -> None:
    spec, observations = _spec(), _observations()
    state = ClusterState()

    def run() -> None:
        nonlocal state
        for observation in observations:
            state, _ = step(spec, state, observation)

    reference = _per_second(_reference, 2_000_000)
    decisions = _per_second(run, STEPS)
    print(  # noqa: T201 - a benchmark's result is what it prints
        f"\nstep: {decisions:,.0f} decisions/s on one core; "
        f"baseline {reference / 1e6:.1f} million dictionary look-ups/s on this machine"
    )
    window = timedelta(minutes=5) // timedelta(seconds=15)
    assert len(state.proposals) == window + 1
    assert {proposal.replicas for proposal in state.proposals} == {7, 8}
    assert state.events == ()


@pytest.mark.benchmark
def test_a_simulated_day_with_the_default_policy() -> None:
    policy = load(Kind.POLICY, "adaptive")()
    spec = ClusterSpec(
        name="day",
        limits=Limits(1, 24),
        policies=(NamedPolicy("adaptive", policy),),
        metrics=("arrivals", "throughput", "lag", "utilization"),
        engine=True,
        lookback=policy.lookback,
    )
    offered = load_by_name("diurnal24h", 1)
    reference, took = [], []
    for _ in range(3):
        begin = time.process_time()
        _reference()
        middle = time.process_time()
        day = simulated(spec, PLANTS["k8s"], offered, 1)
        took.append(time.process_time() - middle)
        reference.append(middle - begin)
    print(  # noqa: T201 - a benchmark's result is what it prints
        f"\na simulated day: {min(took):.2f} CPU seconds, as long as {2 * min(took) / min(reference):.0f} million "
        "dictionary look-ups take on this machine"
    )
    assert day.decisions == timedelta(days=1) // spec.interval
