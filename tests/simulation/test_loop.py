from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from autoscaler.core.model import (
    ClusterSpec,
    ClusterState,
    Limits,
    NamedPolicy,
    Observation,
    Policy,
    Reason,
    Recommendation,
    View,
)
from autoscaler.core.step import step
from autoscaler.plugins import Kind, load
from autoscaler.ports import Record
from autoscaler.simulation.loads import Load, load_by_name
from autoscaler.simulation.loop import run
from autoscaler.simulation.plant import PLANTS, START, Track

ALL = Limits(1, 24)
METRICS = ("lag", "arrivals", "throughput", "saturation")
K8S = PLANTS["k8s"]


@dataclass(frozen=True, slots=True)
class Wants:
    """Always requests the same size."""

    size: int

    def evaluate(self, _view: View) -> Recommendation:
        return Recommendation(self.size, Reason.STEADY)


def _spec(policy: Policy | None = None, limits: Limits = ALL) -> ClusterSpec:
    policies = () if policy is None else (NamedPolicy("one", policy),)
    return ClusterSpec(name="x", limits=limits, policies=policies, metrics=METRICS, engine=True)


def _drain() -> ClusterSpec:
    return _spec(load(Kind.POLICY, "backlog-drain")())


def _level(hours: float, level: float = 1.0) -> Load:
    return Load("level", (100.0,) + (100.0 * level,) * (round(hours * 720) - 1))


def test_it_decides_every_interval_from_the_first_on() -> None:
    seen: list[Observation] = []
    found = run(_spec(), K8S, _level(0.1), 1, record=lambda record: seen.append(record.observation))
    assert [observation.at for observation in seen] == [START + timedelta(seconds=15 * n) for n in range(1, 25)]
    assert found.decisions == 24
    assert len(found.track.arrivals) == 72


def test_the_plant_receives_the_decided_size() -> None:
    found = run(_spec(Wants(20)), K8S, _level(0.5), 1, size=16)
    assert found.track.requests == [(3, 20)]
    assert found.track.billed[2] == 16
    assert found.track.billed[3] == 20
    assert found.track.running[-1] == 20


def test_the_peak_needs_sixteen_workers() -> None:
    calm = replace(K8S, sigma=0.0, cold=1.0)
    enough = run(_spec(limits=Limits(16, 16)), calm, _level(1), 1)
    assert enough.track.position[-1] == pytest.approx(sum(enough.track.arrivals))
    short = run(_spec(limits=Limits(15, 15)), calm, _level(1), 1)
    assert short.track.position[-1] == pytest.approx(sum(short.track.arrivals) * (15 / 16) ** 0.9)


def test_it_starts_with_the_size_for_the_first_step_within_the_limits() -> None:
    quiet = Load("rise", (100.0 / 16**0.9,) * 100 + (100.0,))
    assert run(_spec(), K8S, quiet, 1).track.running[0] == 1
    assert run(_spec(limits=Limits(3, 24)), K8S, quiet, 1).track.running[0] == 3
    assert run(_spec(), K8S, _level(0.1), 1).track.running[0] == 16
    assert run(_spec(limits=Limits(1, 12)), K8S, _level(0.1), 1).track.running[0] == 12


def test_equal_seeds_give_equal_runs_to_the_last_digit_and_others_differ() -> None:
    steps = load_by_name("steps6h")
    tracks: list[Track] = [run(_drain(), PLANTS["ec2"], steps, seed).track for seed in (5, 5, 6)]
    assert tracks[0] == tracks[1]
    assert tracks[0].position != tracks[2].position


def test_the_decisions_are_those_of_step_on_the_same_observations() -> None:
    recorded: list[Record] = []
    spec = _drain()
    found = run(spec, K8S, load_by_name("steps6h"), 3, record=recorded.append)
    state = ClusterState()
    for record in recorded:
        state, again = step(spec, state, record.observation)
        assert again == record.decision
    assert state == found.state
    assert len(found.track.requests) == sum(record.decision.rescale for record in recorded) > 5


def test_a_run_may_start_at_any_time() -> None:
    start = datetime(2024, 2, 29, 23, tzinfo=UTC)
    usual: list[Record] = []
    moved: list[Record] = []
    run(_drain(), PLANTS["k8s"], _level(0.2), 1, record=usual.append)
    run(_drain(), PLANTS["k8s"], _level(0.2), 1, record=moved.append, start=start)
    assert [one.decision.at - start for one in moved] == [one.decision.at - START for one in usual]
    engine = moved[-1].observation.engine
    assert engine is not None
    assert engine.last_checkpoint is not None
    assert timedelta(0) <= moved[-1].observation.at - engine.last_checkpoint <= timedelta(seconds=10)
    assert [one.decision.desired for one in moved] == [one.decision.desired for one in usual]


def test_an_interval_that_is_not_a_multiple_of_the_plants_step_is_refused() -> None:
    with pytest.raises(ValueError, match="interval: is 7s, expected a multiple of 5s"):
        run(replace(_spec(), interval=timedelta(seconds=7)), K8S, _level(0.1), 1)


def test_the_score_uses_the_plants_objective_and_the_loads_jumps() -> None:
    found = run(_drain(), K8S, load_by_name("steps6h"), 1)
    usual, strict = found.score(40.0), replace(found, plant=replace(K8S, slo=5.0)).score()
    assert usual.hours == 6
    assert usual.to_optimum == usual.cost / 40
    assert usual.converged is not None
    assert usual.violation < strict.violation
    assert strict.to_optimum is None
